"""What does a trained linear attention layer compute in context?

It does one step of preconditioned gradient descent on the examples of the prompt.

Companion to "Fine-grained Analysis of In-context Linear Estimation: Data, Architecture, and Beyond"
(Li, Rawat, Oymak, 2024, arXiv:2407.10005).  NumPy only.

    python beyond/related/in_context.py                     prints the headline
    python beyond/related/in_context.py picture.png         also plots the picture

Throughout this file we have:

    B, n, d    prompts in a batch, examples in a prompt, dimension
    X, y       the examples of a prompt, y_i = x_i . beta_i + noise      (B, n, d), (B, n)
    x, t       the query and its label, t = x . beta + noise             (B, d), (B,)
    beta       the task, new in each prompt                              (d,)
    s2         variance of the noise, in y and in t
    Sx, Sb     covariances of the inputs and of beta; both have mean 0   (d, d)
    u          X^T y / n, one step of gradient descent from 0            (B, d)
    W, omega   preconditioner, weights of the examples                   (d, d), (n,)
    A, h       attention: Wq Wk^T, and Wv times the linear head          (d + 1, d + 1), (d + 1,)
    f, L       a prediction of t, and its risk L = E (f - t)^2           (B,), number
    a          correlation with the query x: of the examples (retrieval) or of beta (alignment)
    R          correlations of the tasks beta_i, the query's last        (n + 1, n + 1)

What is the paper's, from its abstract: one layer of linear attention, or of the state-space model
H3, does one step of preconditioned gradient descent (PGD); H3 can also weight the examples, which
can let it beat attention; new risk bounds under retrieval (RAG) and alignment; the best risk at low
rank; how LoRA adapts to a shift of the task covariance.  From memory, not verified: the prompts and
models, rag_approximation, and the best risk for Sx = Sb = I and at low rank.  Derived here: all
gradients and all other risks.  Our choice: drift, the reduction of H3 to omega (so its step of PGD
is built in), sizes, spectra, training.  We found no official code and did not read the full text.
"""

import argparse

import numpy as np


def label(rng, X, beta, s2):
    """Split inputs X (B, n + 1, d) into examples and query, and answer them by beta plus noise."""
    y = np.einsum("bnd,bnd->bn", X, beta)                   # (B, n + 1), with one task or n + 1
    y += np.sqrt(s2) * rng.standard_normal(y.shape)
    return X[:, :-1], y[:, :-1], X[:, -1], y[:, -1]


def sample_linear(rng, B, n, Sx, Sb, s2):
    """Prompts X (B, n, d), y (B, n), x (B, d), t (B,), with x_i, x ~ N(0, Sx), beta ~ N(0, Sb)."""
    X = rng.standard_normal((B, n + 1, len(Sx))) @ np.linalg.cholesky(Sx).T
    return label(rng, X, rng.standard_normal((B, 1, len(Sb))) @ np.linalg.cholesky(Sb).T, s2)


def sample_rag(rng, B, n, d, a, s2):
    """Retrieval: as sample_linear with Sx = Sb = I, but x_i = a x + sqrt(1 - a^2) N(0, I)."""
    X = rng.standard_normal((B, n + 1, d))
    X[:, :-1] = a * X[:, -1:] + np.sqrt(1 - a * a) * X[:, :-1]
    return label(rng, X, rng.standard_normal((B, 1, d)), s2)


def sample_aligned(rng, B, n, d, a, s2):
    """Alignment: as sample_linear with Sx = I, but beta = a x + sqrt(1 - a^2) N(0, I)."""
    X = rng.standard_normal((B, n + 1, d))
    return label(rng, X, a * X[:, -1:] + np.sqrt(1 - a * a) * rng.standard_normal((B, 1, d)), s2)


def sample_drift(rng, B, R, d, s2):
    """Drift: as sample_linear with Sx = Sb = I, but the tasks beta_i have the correlations R."""
    beta = np.linalg.cholesky(R) @ rng.standard_normal((B, len(R), d))          # (B, n + 1, d)
    return label(rng, rng.standard_normal((B, len(R), d)), beta, s2)


def pgd_loss(W, X, y, x, t):
    """A step of PGD, f = x^T W X^T y / n: L (the mean over the batch), dW (d, d), dy (B, n)."""
    B, n, _ = X.shape
    u = (y[:, None] @ X)[:, 0] / n                          # (B, d)
    f = (x @ W * u).sum(1)                                  # (B,)

    df = 2 * (f - t) / B                                    # (B,)
    dW, du = x.T @ (df[:, None] * u), df[:, None] * (x @ W)
    dy = (X @ du[..., None])[..., 0] / n                    # (B, n)
    return ((f - t) ** 2).mean(), dW, dy


def attention_loss(A, h, X, y, x, t):
    """Linear attention, f = z^T A Z^T (Z h) / n with z_i = (x_i, y_i), z = (x, 0): L, dA, dh.

    This is a step of PGD from the tokens z_i with the labels Z h.
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
    """PGD with W = W0 + U V^T, U and V (d, r): L, dU, dV.  LoRA, or W of rank r if W0 = 0."""
    L, dW, _ = pgd_loss(W0 + U @ V.T, X, y, x, t)
    return L, dW @ V, dW.T @ U


def moments(n, Sx, Sb, s2):
    """E t^2, S = Sx Sb Sx and C = E u u^T = S + (S + E[t^2] Sx) / n, of sample_linear."""
    variance, S = np.trace(Sx @ Sb) + s2, Sx @ Sb @ Sx
    return variance, S, S + (S + variance * Sx) / n


def risk(W, n, Sx, Sb, s2):
    """The exact L of f = x^T W u on the prompts of sample_linear."""
    variance, S, C = moments(n, Sx, Sb, s2)
    return variance - 2 * np.trace(W @ S) + np.trace(Sx @ W @ C @ W.T)


def best_map(n, Sx, Sb, s2, W0=0.0, rank=None):
    """The W (d, d) of least risk, and its L; with a rank, the best W0 + (a matrix of that rank).

        W* = Sb Sx C^-1,   L(W) = L(W*) + |Lx^T (W* - W) Lc|_F^2,   Sx = Lx Lx^T,  C = Lc Lc^T

    With a rank, the matrix in the norm at W = W0 keeps only its largest singular values (Eckart,
    Young).  This is LoRA, or low rank if W0 = 0.  If Sx = I, Sb = diag(l), M = sum l, W0 = 0:

        W*_ii = n l_i / ((n + 1) l_i + M + s2),   L = M + s2 - sum of the rank largest l_i W*_ii
    """
    _, _, C = moments(n, Sx, Sb, s2)
    Lx, Lc = np.linalg.cholesky(Sx), np.linalg.cholesky(C)
    P, s, Q = np.linalg.svd(Lx.T @ (Sb @ Sx @ np.linalg.inv(C) - W0) @ Lc)
    W = W0 + np.linalg.inv(Lx.T) @ (P[:, :rank] * s[:rank]) @ Q[:rank] @ np.linalg.inv(Lc)
    return W, risk(W, n, Sx, Sb, s2)


def best_rag(n, d, a, s2):
    """For sample_rag: c of the best W = c I, its risk L*, and the risk E t^2 of the zero predictor.

    By symmetry under rotations the best W is a multiple c I, and with p = x^T u,
    c = E[p t] / E[p^2].  One step cannot divide by |x|^2.  So even at a = 1, s2 = 0, where each
    y_i is the answer, L* = 2 d / (d + 4), and a smaller a can be better.
    """
    a2, b = a * a, 1 - a * a
    pt = a2 * d * (d + 2) + b * d
    same = a2 * d * (d + 2) * (d + 4) + b * d * (d + 2)     # E (x.x_i) (x_i.x_j) (x_j.x), i = j
    other = a2 * a2 * d * (d + 2) * (d + 4) + 2 * a2 * b * d * (d + 2) + b * b * d      # i != j
    pp = (same + (n - 1) * other + s2 * pt) / n
    return pt / pp, d + s2 - pt * pt / pp, d + s2


def rag_approximation(n, d, a, s2):
    """The risk if retrieval turns n examples into k n: best_rag at large d, fixed n/d and a^2 d."""
    k = 1 + a * a * d
    return d + s2 - k * n * d / (k * n + d + s2)


def best_aligned(n, d, a, s2):
    """For sample_aligned: c, L* and E t^2 as in best_rag; E[p t] = E (x.beta)^2 = d k."""
    k = 1 + a * a * (d + 1)
    q = (n + 1) * k + d + 2 * a * a + s2                    # E[p^2] = d q / n
    return n * k / q, d * k + s2 - n * d * k * k / q, d * k + s2


def drift_moments(R, d, s2):
    """H = R + (d + 1 + s2) I among the examples (n, n), and r, the query's row of R (n,)."""
    n = len(R) - 1
    return R[:n, :n] + (d + 1 + s2) * np.eye(n), R[n, :n]


def drift_risk(W, omega, R, s2):
    """The exact L of f = x^T W X^T (omega y) / n on the prompts of sample_drift."""
    d, n = len(W), len(omega)
    H, r = drift_moments(R, d, s2)
    return d + s2 - 2 * np.trace(W) * (omega @ r) / n + (W * W).sum() * (omega @ H @ omega) / n ** 2


def best_weights(R, d, s2):
    """For sample_drift, W = I: the best equal weights and the best omega, n H^-1 r, both (n,)."""
    H, r = drift_moments(R, d, s2)
    return np.full(len(r), len(r) * r.sum() / H.sum()), len(r) * np.linalg.solve(H, r)


def train(loss, params, task, rng, lr, steps):
    """Adam on fresh batches of 256 prompts; lr falls linearly to 0.  Returns the trained params.

    loss(*params, *prompts) returns L and gradients of the first params; the others stay.  task is a
    sampler and its arguments after B, as in (sample_linear, n, Sx, Sb, s2).
    """
    sample, *setting = task
    params = [np.array(p) for p in params]
    m, v = [[np.zeros_like(p) for p in params] for _ in range(2)]
    for step in range(1, steps + 1):
        _, *grads = loss(*params, *sample(rng, 256, *setting))
        rate = lr * (1 - (step - 1) / steps)
        for p, g, m_p, v_p in zip(params, grads, m, v):
            m_p += 0.1 * (g - m_p)
            v_p += 0.001 * (g * g - v_p)
            p -= rate * (m_p / (1 - 0.9 ** step)) / (np.sqrt(v_p / (1 - 0.999 ** step)) + 1e-8)
    return params


def train_attention(rng, task, d, steps):
    """A and h of attention, from a random start: at A = 0, h = 0 the gradient is 0."""
    A = rng.standard_normal((d + 1, d + 1)) / (d + 1)
    h = rng.standard_normal(d + 1) / np.sqrt(d + 1)
    return train(attention_loss, [A, h], task, rng, 0.01, steps)


def excess(loss, params, W, task, batches):
    """Loss of params minus loss of PGD with W, on the same prompts: the losses are heavy-tailed."""
    rng, (sample, *setting) = np.random.default_rng(1), task
    prompts = (sample(rng, 1000, *setting) for _ in range(batches))
    return np.mean([loss(*params, *batch)[0] - pgd_loss(W, *batch)[0] for batch in prompts])


I5, I10 = np.eye(5), np.eye(10)
HARMONIC = np.diag(1 / np.arange(1, 11)) * 10 / (1 / np.arange(1, 11)).sum()    # Sb of trace 10
RETRIEVED = 0, 0.1, 0.2, 0.4, 0.6, 1
FADING = 0.9 ** abs(np.subtract.outer(np.arange(31), np.arange(31)))            # R, n = 30


def demo():
    """Print trained attention beside the best step of PGD, then the closed forms under drift."""
    print("Claim: trained linear attention is one step of preconditioned gradient descent (PGD).")
    print("n = 20 examples, d = 5, no noise; 3000 steps of Adam:")
    setting = 20, I5, I5, 0                                 # n, Sx, Sb, s2
    W, L = best_map(*setting)
    A, h = train_attention(np.random.default_rng(0), (sample_linear, *setting), 5, 3000)
    learned = A[:5, :5] * h[5]
    more = excess(attention_loss, [A, h], W, (sample_linear, *setting), 100)
    equal, best = [drift_risk(I5, omega, FADING, 0) for omega in best_weights(FADING, 5, 0)]
    print(f"""
    risk of the zero predictor, d                        5.0000
    risk of the best step, d - n d / (n + d + 1)         {L:.4f}
    attention minus the best step, on 100,000 prompts   {more:+.4f}
    risk of PGD with the learned W = A[:d, :d] h[d]      {risk(learned, *setting):.4f}
    largest entry of W - best W; the best is {W[0, 0]:.4f} I    {abs(learned - W).max():.4f}

A drifting task, R_ij = 0.9^|i - j|, n = 30, d = 5: the least risk in closed form

    with equal weights of the examples, PGD              {equal:.4f}
    with the best weights, H3                            {best:.4f}""")
    print("\nRetrieval: the least risk at the correlation a, in closed form, without noise\n")
    print("               a = " + "".join(f"{a:10.1f}" for a in RETRIEVED) + "  large d, a = 1")
    for n, d in (5, 5), (20, 5), (100, 5), (40, 20):
        risks = "".join(f"{best_rag(n, d, a, 0)[1]:10.3f}" for a in RETRIEVED)
        print(f"    n = {n:3}, d = {d:2}  {risks}{rag_approximation(n, d, 1, 0):13.3f}")
    print("\nTasks shift from covariance I to diag(l), d = 10, n = 20: the least risk\n")
    print("                  rank        0         1         2         3        10")
    (old, _), square = best_map(20, I10, I10, 0), HARMONIC ** 2
    for name, Sb in ("1/i", HARMONIC), ("1/i^2", 10 * square / np.trace(square)):
        for start, W0 in ("W of rank r", 0), ("old W + LoRA", old):
            risks = "".join(f"{best_map(20, I10, Sb, 0, W0, r)[1]:10.3f}" for r in (0, 1, 2, 3, 10))
            print(f"    l ~ {name:5} {start:12}{risks}")


BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot four panels into the file path: trained models (colour) on closed forms (grey)."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((prompts, relation), (low_rank, drift)) = plt.subplots(2, 2, figsize=(10, 8))
    rng, steps = np.random.default_rng(0), 1000

    for s2, color, marker in (0, BLUE, "o"), (1, VERMILLION, "s"):
        closed = [best_map(n, I5, I5, s2)[1] for n in range(2, 43)]
        prompts.plot(range(2, 43), closed, "--", color=GREY)
        for n in 5, 10, 20, 40:
            task, (W, L) = (sample_linear, n, I5, I5, s2), best_map(n, I5, I5, s2)
            L += excess(attention_loss, train_attention(rng, task, 5, steps), W, task, 50)
            prompts.plot(n, L, marker, color=color, markersize=9)
    prompts.text(3, 0.2, "without\nnoise", color=BLUE)
    prompts.text(22, 2.6, "noise of variance 1", color=VERMILLION)
    prompts.text(13, 4, "dashed: best step of PGD", color=GREY)
    prompts.set(title="Trained attention is the best step of PGD", ylim=(0, None),
                xlabel="number n of examples in the prompt", ylabel="risk")

    grid = np.linspace(0, 1, 101)
    for sample, best, color, marker in ((sample_rag, best_rag, BLUE, "o"),
                                        (sample_aligned, best_aligned, VERMILLION, "s")):
        _, closed, variance = np.transpose([best(20, 5, a, 0) for a in grid])
        relation.plot(grid, closed / variance, "--", color=GREY)
        for a in 0, 0.2, 0.4, 0.6, 0.8:
            task, (c, L, variance) = (sample, 20, 5, a, 0), best(20, 5, a, 0)
            trained = train(pgd_loss, [0 * I5], task, rng, 0.02, steps)
            L += excess(pgd_loss, trained, c * I5, task, 50)
            relation.plot(a, L / variance, marker, color=color, markersize=9)
    for n in 5, 100:
        closed = [np.divide(*best_rag(n, 5, a, 0)[1:]) for a in grid]
        relation.plot(grid, closed, "--", color=BLUE)
    for x, y, words in (0.42, 0.49, "retrieval, n = 5"), (0, 0.26, "n = 20"), (0, 0.015, "n = 100"):
        relation.text(x, y, words, color=BLUE)
    relation.text(0.45, 0.03, "alignment, n = 20", color=VERMILLION)
    relation.set(title="Retrieval helps if examples are few", ylim=(0, 0.6),
                 xlabel="correlation a with the query (d = 5)",
                 ylabel="risk / risk of predicting 0")

    setting, (old, _) = (20, I10, HARMONIC, 0), best_map(20, I10, I10, 0)
    for W0, color, marker in (0 * I10, BLUE, "o"), (old, VERMILLION, "s"):
        closed = [best_map(*setting, W0, r)[1] for r in range(11)]
        low_rank.plot(range(11), closed, "--", color=GREY)
        for r in 1, 2, 3, 5:
            start = [*0.5 * rng.standard_normal((2, 10, r)), W0]
            U, V, _ = train(low_rank_loss, start, (sample_linear, *setting), rng, 0.02, steps)
            low_rank.plot(r, risk(W0 + U @ V.T, *setting), marker, color=color, markersize=9)
    low_rank.text(2.3, 6, "W of rank r", color=BLUE)
    low_rank.text(0, 1, "rank 0: the old W alone;\nthen with LoRA of rank r", color=VERMILLION)
    low_rank.set(title="New tasks: the old W is nearly enough", ylim=(0, None),
                 xlabel="rank r", ylabel="risk on the new tasks")

    task = sample_drift, FADING, 5, 0
    pgd = train(pgd_loss, [0 * I5], task, rng, 0.02, steps) + [np.ones(30)]
    h3 = train(h3_loss, [0 * I5, np.ones(30)], task, rng, 0.02, steps)
    equal, best = best_weights(FADING, 5, 0)
    for name, (W, omega), closed, color, marker, y in (
            ("equal weights", pgd, equal, VERMILLION, "s", 0.6), ("H3", h3, best, BLUE, "o", 2)):
        drift.plot(range(1, 31), np.trace(W) / 5 * omega, marker, color=color)
        drift.plot(range(1, 31), closed, "--", color=GREY)
        drift.text(1, y, f"{name}:\nrisk {drift_risk(W, omega, FADING, 0):.2f}", color=color)
    drift.set(title="Under drift H3 trusts recent examples", ylabel="weight of example i",
              xlabel="example i (the query follows)")
    canvas.supxlabel(
        "PGD: a step of preconditioned gradient descent. H3: with a weight for each example.\n"
        "LoRA: a matrix of rank r is added to W. Dashes: closed forms. Markers: trained.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
