"""Learning linear regression in context: linear attention against preconditioned gradient descent.

Companion to "Fine-grained Analysis of In-context Linear Estimation: Data, Architecture, and Beyond"
(Li, Rawat, Oymak, 2024, arXiv:2407.10005).  NumPy only.  `python in_context.py` prints the
headline, and `python in_context.py in_context.png` also draws the picture.

Throughout this file we have:

    B, n, d    prompts in a batch, examples in a prompt, dimension
    X, y       the examples of a prompt, y_i = x_i . beta_i + noise      (B, n, d), (B, n)
    x, t       the query, and its label t = x . beta + noise             (B, d), (B,)
    beta       the task, another one in each prompt                      (d,)
    s2         variance of the noise, in y and in t
    Sx, Sb     covariances of the inputs and of beta, which have mean 0  (d, d)
    u          X^T y / n, one step of gradient descent from 0            (B, d)
    W, omega   preconditioner, and weights of the examples               (d, d), (n,)
    A, h       attention: Wq Wk^T, and Wv times the head, merged         (d + 1, d + 1), (d + 1,)
    f, L       a prediction of t; the risk L = E (f - t)^2               (B,), number
    a          x_i = a x + ... (retrieval) or beta = a x + ... (alignment), 0 <= a <= 1
    R          correlations of beta_i and beta_j, the query's last       (n + 1, n + 1)

Paper (abstract): one layer of linear attention, or of H3 (a state-space model), is one step of
preconditioned gradient descent (PGD); H3's filters can also weight the examples, and it then
outperforms attention; new risk bounds for retrieval (RAG) and alignment; the best risk at low rank;
how LoRA adapts to a shift of the task covariance.  From memory, unverified: the prompts and models,
rag_approximation, and the best risk for Sx = Sb = I and at low rank.  Derived here: all gradients
and all other risks.  Our choice: drift, H3 reduced to omega, sizes, spectra, training.  We found no
official code.  The paper's full text was not read.
"""

import argparse

import numpy as np


def _check(n, d, s2, a=0):
    if min(n, d) < 1 or s2 < 0 or not 0 <= a <= 1:
        raise ValueError(f"need n, d >= 1, s2 >= 0, 0 <= a <= 1, got {n=}, {d=}, {s2=}, {a=}")


def _label(rng, X, beta, s2):
    """Answer the inputs X (B, n + 1, d) by tasks beta (B, 1 or n + 1, d); the last is the query."""
    y = (X * beta).sum(-1) + np.sqrt(s2) * rng.standard_normal(X.shape[:2])     # (B, n + 1)
    return X[:, :-1], y[:, :-1], X[:, -1], y[:, -1]


def sample_linear(rng, B, n, Sx, Sb, s2):
    """Prompts X (B, n, d), y (B, n), x (B, d), t (B,); x_i, x ~ N(0, Sx) and beta ~ N(0, Sb)."""
    _check(n, len(Sx), s2)
    X = rng.standard_normal((B, n + 1, len(Sx))) @ np.linalg.cholesky(Sx).T
    return _label(rng, X, rng.standard_normal((B, 1, len(Sb))) @ np.linalg.cholesky(Sb).T, s2)


def sample_rag(rng, B, n, d, a, s2):
    """Retrieval: as sample_linear with Sx = Sb = I, but x_i = a x + sqrt(1 - a^2) N(0, I)."""
    _check(n, d, s2, a)
    X = rng.standard_normal((B, n + 1, d))
    X[:, :-1] = a * X[:, -1:] + np.sqrt(1 - a * a) * X[:, :-1]
    return _label(rng, X, rng.standard_normal((B, 1, d)), s2)


def sample_aligned(rng, B, n, d, a, s2):
    """Alignment: as sample_linear with Sx = I, but beta = a x + sqrt(1 - a^2) N(0, I)."""
    _check(n, d, s2, a)
    X = rng.standard_normal((B, n + 1, d))
    return _label(rng, X, a * X[:, -1:] + np.sqrt(1 - a * a) * rng.standard_normal((B, 1, d)), s2)


def sample_drift(rng, B, R, d, s2):
    """Drift: as sample_linear with Sx = Sb = I, but the tasks beta_i have the correlations R."""
    beta = np.linalg.cholesky(R) @ rng.standard_normal((B, len(R), d))          # (B, n + 1, d)
    return _label(rng, rng.standard_normal((B, len(R), d)), beta, s2)


def pgd_loss(W, X, y, x, t):
    """One step of preconditioned gradient descent, f = x^T W X^T y / n: L, dW (d, d), dy (B, n).

    L is the mean over the batch.  Raises ValueError unless W is (d, d).
    """
    B, n, d = X.shape
    if W.shape != (d, d):
        raise ValueError(f"need W (d, d) for X (B, n, d), got {W.shape=}, {X.shape=}")
    u = (y[:, None] @ X)[:, 0] / n                          # (B, d)
    f = (x @ W * u).sum(1)                                  # (B,)

    df = 2 * (f - t) / B                                    # (B,)
    dW, du = x.T @ (df[:, None] * u), df[:, None] * (x @ W)
    dy = (X @ du[..., None])[..., 0] / n                    # (B, n)
    return ((f - t) ** 2).mean(), dW, dy


def attention_loss(A, h, X, y, x, t):
    """Linear attention, f = z^T A Z^T (Z h) / n with z_i = (x_i, y_i), z = (x, 0): L, dA, dh.

    It is a step of PGD from whole tokens z_i, with labels Z h.  Raises ValueError as pgd_loss.
    """
    Z = np.concatenate([X, y[..., None]], axis=2)           # (B, n, d + 1)
    z = np.concatenate([x, np.zeros((len(x), 1))], axis=1)  # (B, d + 1)
    L, dA, dv = pgd_loss(A, Z, Z @ h, z, t)
    return L, dA, np.tensordot(dv, Z, 2)


def h3_loss(W, omega, X, y, x, t):
    """H3, reduced to weights of the examples, f = x^T W X^T (omega y) / n: L, dW, domega."""
    L, dW, dv = pgd_loss(W, X, omega * y, x, t)
    return L, dW, (dv * y).sum(0)


def low_rank_loss(U, V, W0, X, y, x, t):
    """PGD with W = W0 + U V^T, U and V (d, r), W0 fixed: L, dU, dV.  LoRA; low rank if W0 = 0."""
    L, dW, _ = pgd_loss(W0 + U @ V.T, X, y, x, t)
    return L, dW @ V, dW.T @ U


def _moments(n, Sx, Sb, s2):
    """E t^2, S = Sx Sb Sx and C = E u u^T = S + (S + E[t^2] Sx) / n, of sample_linear."""
    _check(n, len(Sx), s2)
    variance, S = np.trace(Sx @ Sb) + s2, Sx @ Sb @ Sx
    return variance, S, S + (S + variance * Sx) / n


def risk(W, n, Sx, Sb, s2):
    """The exact L of f = x^T W u on the prompts of sample_linear."""
    variance, S, C = _moments(n, Sx, Sb, s2)
    return variance - 2 * np.trace(W @ S) + np.trace(Sx @ W @ C @ W.T)


def best_map(n, Sx, Sb, s2, W0=0.0, rank=None):
    """The W (d, d) of least risk, and its L; with a rank, the best W0 + (a matrix of that rank).

        W* = Sb Sx C^-1,   L(W) = L(W*) + |Lx^T (W* - W) Lc|_F^2,   Sx = Lx Lx^T,  C = Lc Lc^T

    The matrix in the norm is cut to its largest singular values (Eckart, Young): LoRA, and low rank
    if W0 = 0.  If Sx = I, Sb = diag(l) and M = sum l, all is diagonal,

        W*_ii = n l_i / ((n + 1) l_i + M + s2),   L = M + s2 - sum of the rank largest l_i W*_ii
    """
    _, _, C = _moments(n, Sx, Sb, s2)
    Lx, Lc = np.linalg.cholesky(Sx), np.linalg.cholesky(C)
    P, s, Q = np.linalg.svd(Lx.T @ (Sb @ Sx @ np.linalg.inv(C) - W0) @ Lc)
    W = W0 + np.linalg.inv(Lx.T) @ (P[:, :rank] * s[:rank]) @ Q[:rank] @ np.linalg.inv(Lc)
    return W, risk(W, n, Sx, Sb, s2)


def best_rag(n, d, a, s2):
    """For sample_rag: c of the best W = c I, its risk L*, and the risk E t^2 of answering 0.

    By symmetry under rotations the best of all W is c I, so with p = x^T u, c = E[p t] / E[p^2].
    One step cannot divide by |x|^2: even at a = 1, s2 = 0, where each y_i is the answer,
    L* = 2 d / (d + 4), and on the way it may be lower.
    """
    _check(n, d, s2, a)
    a2, b = a * a, 1 - a * a
    pt = a2 * d * (d + 2) + b * d
    same = a2 * d * (d + 2) * (d + 4) + b * d * (d + 2)     # E (x.x_i) (x_i.x_j) (x_j.x), i = j
    other = a2 * a2 * d * (d + 2) * (d + 4) + 2 * a2 * b * d * (d + 2) + b * b * d      # i != j
    pp = (same + (n - 1) * other + s2 * pt) / n
    return pt / pp, d + s2 - pt * pt / pp, d + s2


def rag_approximation(n, d, a, s2):
    """Risk under retrieval if n examples count as k n: best_rag at large d, fixed n/d and a^2 d."""
    k = 1 + a * a * d
    return d + s2 - k * n * d / (k * n + d + s2)


def best_aligned(n, d, a, s2):
    """For sample_aligned: c, L* and E t^2 as in best_rag; E[p t] = E (x.beta)^2 = d k."""
    _check(n, d, s2, a)
    k = 1 + a * a * (d + 1)
    q = (n + 1) * k + d + 2 * a * a + s2                    # E[p^2] = d q / n
    return n * k / q, d * k + s2 - n * d * k * k / q, d * k + s2


def _drift_moments(R, d, s2):
    """H = R + (d + 1 + s2) I among the examples (n, n), and r, the query's row of R (n,)."""
    n = len(R) - 1
    _check(n, d, s2)
    return R[:n, :n] + (d + 1 + s2) * np.eye(n), R[n, :n]


def drift_risk(W, omega, R, s2):
    """The exact L of f = x^T W X^T (omega y) / n on the prompts of sample_drift."""
    d, n = len(W), len(omega)
    H, r = _drift_moments(R, d, s2)
    return d + s2 - 2 * np.trace(W) * (omega @ r) / n + (W * W).sum() * (omega @ H @ omega) / n ** 2


def best_weights(R, d, s2):
    """For sample_drift, W = I: the best equal weights and the best omega, n H^-1 r, both (n,)."""
    H, r = _drift_moments(R, d, s2)
    return np.full(len(r), len(r) * r.sum() / H.sum()), len(r) * np.linalg.solve(H, r)


def train(loss, params, task, rng, lr, steps):
    """Adam on new batches of 256 prompts, its rate falling from lr to 0 in a line; the new params.

    loss(*params, *prompts) returns L and gradients; params without one stay.  task is a sampler and
    what it takes after B, as in (sample_linear, n, Sx, Sb, s2).
    """
    sample, *law = task
    params = [np.array(p) for p in params]
    m, v = [[np.zeros_like(p) for p in params] for _ in range(2)]
    for step in range(1, steps + 1):
        _, *grads = loss(*params, *sample(rng, 256, *law))
        rate = lr * (1 - (step - 1) / steps)
        for p, g, m_p, v_p in zip(params, grads, m, v):
            m_p += 0.1 * (g - m_p)
            v_p += 0.001 * (g * g - v_p)
            p -= rate * (m_p / (1 - 0.9 ** step)) / (np.sqrt(v_p / (1 - 0.999 ** step)) + 1e-8)
    return params


def train_attention(rng, task, d, steps):
    """A and h of attention, trained from a random start, as A = 0, h = 0 is stationary."""
    A = rng.standard_normal((d + 1, d + 1)) / (d + 1)
    h = rng.standard_normal(d + 1) / np.sqrt(d + 1)
    return train(attention_loss, [A, h], task, rng, 0.01, steps)


def excess(loss, params, W, task, batches):
    """How much more params lose than PGD with W, on the same prompts: losses are heavy-tailed."""
    rng, (sample, *law) = np.random.default_rng(1), task
    draws = (sample(rng, 1000, *law) for _ in range(batches))
    return np.mean([loss(*params, *draw)[0] - pgd_loss(W, *draw)[0] for draw in draws])


I5, I10 = np.eye(5), np.eye(10)
HARMONIC = np.diag(1 / np.arange(1, 11)) * 10 / (1 / np.arange(1, 11)).sum()    # Sb of trace 10
FADING = 0.9 ** abs(np.subtract.outer(np.arange(31), np.arange(31)))            # R, n = 30


def demo():
    """Print trained attention beside the best step of PGD, then the closed forms."""
    law = 20, I5, I5, 0                                     # n, Sx, Sb, s2
    W, L = best_map(*law)
    A, h = train_attention(np.random.default_rng(0), (sample_linear, *law), 5, 3000)
    learnt = A[:5, :5] * h[5]
    more = excess(attention_loss, [A, h], W, (sample_linear, *law), 100)
    equal, best = [drift_risk(I5, omega, FADING, 0) for omega in best_weights(FADING, 5, 0)]
    print(f"""Claim: trained linear attention is one step of preconditioned gradient descent (PGD).
n = 20 examples, d = 5, no noise; 3000 steps of Adam:

    risk of answering 0, d                               5.0000
    risk of the best step, d - n d / (n + d + 1)         {L:.4f}
    attention minus the best step, on 100,000 prompts   {more:+.4f}
    risk of PGD with the learnt W, A[:d, :d] h[d]        {risk(learnt, *law):.4f}
    largest entry of W - best W; the best is {W[0, 0]:.4f} I    {abs(learnt - W).max():.4f}

A drifting task, R_ij = 0.9^|i - j|, n = 30, d = 5: the least risk in closed form

    with equal weights of the examples, PGD              {equal:.4f}
    with the best weights, H3                            {best:.4f}""")


BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#444444"
STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}


def figure(path):
    """Draw four panels into the file path: what was trained (colour) on closed forms (grey)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    with rc_context(STYLE):
        canvas = Figure(figsize=(12, 8))
        canvas.savefig(path)            # a path that cannot be written is said before the work
        (one, two), (three, four) = canvas.subplots(2, 2)
        rng, steps = np.random.default_rng(0), 1000

        for s2, color, marker, place in (0, BLUE, "o", 1.2), (1, VERMILLION, "s", 2.3):
            closed = [best_map(n, I5, I5, s2)[1] for n in range(2, 43)]
            one.plot(range(2, 43), closed, "--", color=GREY)
            for n in 5, 10, 20, 40:
                task, (W, L) = (sample_linear, n, I5, I5, s2), best_map(n, I5, I5, s2)
                L += excess(attention_loss, train_attention(rng, task, 5, steps), W, task, 50)
                one.plot(n, L, marker, color=color, markersize=9)
            one.text(29, place, f"noise $s^2$ = {s2}", color=color)
        one.set(title="Trained attention is the best step of PGD", ylim=(0, None),
                xlabel="examples n in the prompt", ylabel="risk L")

        grid = np.linspace(0, 1, 101)
        for sample, best, color, marker, *words in (
                (sample_rag, best_rag, BLUE, "o", 0.62, 0.225, "retrieval"),
                (sample_aligned, best_aligned, VERMILLION, "s", 0.66, 0.14, "alignment")):
            _, closed, variance = np.transpose([best(20, 5, a, 0) for a in grid])
            two.plot(grid, closed / variance, "--", color=GREY)
            for a in 0, 0.2, 0.4, 0.6, 0.8:
                task, (c, L, variance) = (sample, 20, 5, a, 0), best(20, 5, a, 0)
                trained = train(pgd_loss, [0 * I5], task, rng, 0.02, steps)
                L += excess(pgd_loss, trained, c * I5, task, 50)
                two.plot(a, L / variance, marker, color=color, markersize=9)
            two.text(*words, color=color)
        two.plot(grid, [rag_approximation(20, 5, a, 0) / 5 for a in grid], ":", color=GREY)
        two.text(0, 0.06, "retrieval, limit of large d\nat fixed $a^2 d$ and n/d", color=GREY)
        two.set(title="Alignment helps; retrieval only at first", ylim=(0, 0.26),
                xlabel="correlation a with the query", ylabel="risk L / risk of answering 0")

        law, (old, _) = (20, I10, HARMONIC, 0), best_map(20, I10, I10, 0)
        for W0, color, marker, *words in (
                (0 * I10, BLUE, "o", 2.3, 6, "W of rank r"),
                (old, VERMILLION, "s", 0, 2.2, "best W for Sb = I, and LoRA of rank r")):
            three.plot(range(11), [best_map(*law, W0, r)[1] for r in range(11)], "--", color=GREY)
            for r in 1, 2, 3, 5:
                start = [*0.5 * rng.standard_normal((2, 10, r)), W0]
                U, V, _ = train(low_rank_loss, start, (sample_linear, *law), rng, 0.02, steps)
                three.plot(r, risk(W0 + U @ V.T, *law), marker, color=color, markersize=9)
            three.text(*words, color=color)
        three.set(title="With LoRA, a low rank is enough", ylim=(0, None), xlabel="rank r",
                  ylabel="risk L")

        bars, task = four.inset_axes([0.12, 0.44, 0.4, 0.5]), (sample_drift, FADING, 5, 0)
        pgd = train(pgd_loss, [0 * I5], task, rng, 0.02, steps) + [np.ones(30)]
        h3 = train(h3_loss, [0 * I5, np.ones(30)], task, rng, 0.02, steps)
        for place, (W, omega), closed, color, marker in zip(
                (0, 1), (pgd, h3), best_weights(FADING, 5, 0), (VERMILLION, BLUE), "so"):
            four.plot(range(1, 31), np.trace(W) / 5 * omega, marker, color=color)
            four.plot(range(1, 31), closed, "--", color=GREY)
            bars.bar(place, drift_risk(W, omega, FADING, 0), 0.6, color=color)
            bars.axhline(drift_risk(I5, closed, FADING, 0), color=GREY, ls="--")
        bars.set(ylabel="risk L", xticks=[0, 1], xticklabels=["PGD", "H3"])
        four.text(1, 0.55, "PGD: equal weights", color=VERMILLION)
        four.text(28, 2.4, "H3", color=BLUE, ha="right")
        four.set(title="H3 learns to trust recent examples", ylabel="weight of example i",
                 xlabel="example i of a drifting task (n = 30)")

        canvas.supxlabel("Dashed: closed forms. Coloured: trained, 1000 steps; d = 5 (below left "
                         "10), n = 20, no noise unless said.\nAbove: closed form plus (trained "
                         "minus closed form), the same 50,000 prompts; below: exact.", fontsize=11)
        canvas.savefig(path)


def main():
    """Print the headline; with the name of a file, also draw the picture into it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?",
                        help="also draw the picture into this file (.png, .pdf, .svg)")
    path = parser.parse_args().picture
    if path is not None:
        try:
            figure(path)
        except (OSError, ValueError) as problem:
            parser.error(f"argument picture: {path!r} cannot be written: {problem}")
    demo()


if __name__ == "__main__":
    main()
