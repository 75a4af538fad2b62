"""What does linear attention learn?  From 13 of 20 starts, the best preconditioned gradient step.

Companion to "Fine-grained Analysis of In-context Linear Estimation: Data, Architecture, and Beyond"
(Li, Rawat, Oymak, 2024, arXiv:2407.10005).  NumPy only.

    python beyond/related/in_context.py                     prints the headline
    python beyond/related/in_context.py picture.png         also plots the picture

Throughout this file we have:

    B, n, d      prompts in a batch, examples in a prompt, dimension
    X, y         the examples of a prompt, y_i = x_i.beta                       (B, n, d), (B, n)
    x, t         the query, and the value that is asked for, t = x.beta            (B, d), (B,)
    beta         the task, from N(0, I), new in each prompt and hidden                      (d,)
    lam          variances of the inputs: all x_i and x are from N(0, diag(lam))            (d,)
    Z, z         tokens z_i = (x_i, y_i) and z = (x, 0)              (B, n, d + 1), (B, d + 1)
    A            query times key matrix of attention, in R runs side by side   (R, d + 1, d + 1)
    h            value matrix times read-out of attention                             (R, d + 1)
    M, a, g, c   the parts of A and h that count: A[:d, :d], A[:d, d], h[:d], h[d]
    u            X^T y / n, the negative gradient of mean_i (x_i.b - y_i)^2 / 2 at b = 0  (B, d)
    W, W*        a preconditioner, and the best one                                       (d, d)
    f, L         the answers of a model, and its risk E (f - t)^2; f*, L* of the best step (W*)

    f = mean_i (z^T A z_i) (h.z_i)      (linear attention: scores without softmax, times values)
    f = x^T W u                         (preconditioned gradient descent: from b = 0 to b = W u)

Why does attention become a step?  In terms of M, a, g, c, f is x^T W u + e with W = c M + a g^T and
e = x^T (M X^T X g + c a y^T y) / n.  If beta turns to -beta, u and t change sign, but e does not.
So e is of no use: L = L(x^T W u) + E e^2.  The first term is quadratic in W, and least at W*.
Thus L = L* + E (f - f*)^2 for all A and h, and only f* has the least risk.

    W*_ii = n / ((n + 1) lam_i + sum(lam))      (short steps where inputs vary much)

If A stays at I, W can only be a multiple of I.  Why are trained runs stuck?  In c M scores read x_i
and values read y_i, in a g^T the other way round.  Stuck runs use a g^T for the input of largest
variance and c M for the others.  Then E e^2 stays large, and W is nearly a multiple of I.

Paper (abstract): attention does one step of preconditioned gradient descent.  So does H3, which we
leave out.  Derived here: the reason, W*, gradients, risks.  Our choice: data, sizes, starts, Adam,
training A and h, not their factors.  We found no official code.  The full text was not read.
"""

import argparse
from functools import cache

import numpy as np

LAM = np.array([4, 2, 1, 0.5, 0.25])
N, D, STARTS = 20, len(LAM), 20
SQUARES = LAM ** 2 + (LAM ** 2 + LAM.sum() * LAM) / N   # the diagonal of E u u^T; elsewhere it is 0
BEST = np.diag(LAM / SQUARES)                           # W*: there the slope of the risk is 0
MULTIPLE = np.eye(D) * (LAM @ LAM) / (LAM @ SQUARES)    # the best W among multiples of I


def sample(rng, B):
    """Prompts X (B, n, d), y (B, n), x (B, d), t (B,)."""
    X = rng.standard_normal((B, N + 1, D)) * np.sqrt(LAM)
    y = (X @ rng.standard_normal((B, D, 1)))[..., 0]                    # (B, n + 1)
    return X[:, :-1], y[:, :-1], X[:, -1], y[:, -1]


def step(W, X, y, x):
    """The answers f (B,) of one step."""
    u = (y[:, None] @ X)[:, 0] / y.shape[1]                             # (B, d)
    return ((x @ W) * u).sum(axis=1)


def attention(A, h, X, y, x):
    """The answers f (B, R), and Z, z, scores and values (B, n, R) for the gradients."""
    Z = np.concatenate([X, y[..., None]], axis=2)
    z = np.pad(x, ((0, 0), (0, 1)))
    scores, values = Z @ (z @ A).transpose(1, 2, 0), Z @ h.T
    return (scores * values).mean(axis=1), Z, z, scores, values


def gradients(A, h, X, y, x, t):
    """dL/dA and dL/dh of each run, with the mean over these prompts as L."""
    f, Z, z, scores, values = attention(A, h, X, y, x)
    df = 2 * (f - t[:, None])[:, None] / y.size                         # (B, 1, R)
    dA = z.T @ (Z.swapaxes(1, 2) @ (df * values)).transpose(2, 0, 1)
    return dA, np.tensordot(df * scores, Z, ((0, 1), (0, 1)))


def train(A, h, rng, steps=2000, eta=0.01):
    """A, h after Adam, with 256 new prompts at each step.  The last run keeps its A."""
    w = np.concatenate([A, h[:, None]], axis=1)                         # (R, d + 2, d + 1)
    m, v = np.zeros((2, *w.shape))
    for k in range(1, steps + 1):
        dA, dh = gradients(w[:, :-1], w[:, -1], *sample(rng, 256))
        dA[-1] = 0
        dw = np.concatenate([dA, dh[:, None]], axis=1)
        m, v = 0.9 * m + 0.1 * dw, 0.999 * v + 0.001 * dw ** 2
        size = np.sqrt(v / (1 - 0.999 ** k)) + 1e-8
        w = w - eta * (1 - (k - 1) / steps) * m / (1 - 0.9 ** k) / size
    return w[:, :-1], w[:, -1]


def preconditioner(A, h):
    """The W (R, d, d) of attention."""
    return h[:, -1:, None] * A[:, :-1, :-1] + A[:, :-1, -1:] * h[:, None, :-1]


def risk(W):
    """The exact L of f = x^T W u.  Derived here."""
    return LAM.sum() - 2 * np.diag(W) @ LAM ** 2 + LAM @ W ** 2 @ SQUARES


@cache     # demo and figure share it
def experiment(seed=0):
    """A and h, trained from random STARTS, and in one more run h alone, with A = I."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((STARTS + 1, D + 2, D + 1)) / (D + 1)
    w[-1, :-1] = np.eye(D + 1)
    return train(w[:, :-1], w[:, -1], rng)


def measure(A, h, prompts):
    """f, e (B, R) and f* (B, 1) on this many prompts, and the kinds of runs: {name: (R,) bools}."""
    X, y, x, _ = sample(np.random.default_rng(1), prompts)
    f, f_best = attention(A, h, X, y, x)[0], step(BEST, X, y, x)[:, None]
    found, fixed = ((f - f_best) ** 2).mean(axis=0) < 0.1, np.arange(STARTS + 1) == STARTS
    e = (f + attention(A, h, X, -y, x)[0]) / 2
    return f, e, f_best, {"trained": found, "trained, stuck": ~found & ~fixed, "A = I": fixed}


def demo():
    """Print how far all runs are from the best step, in their answers and in W."""
    A, h = experiment()
    f, e, f_best, kinds = measure(A, h, 20_000)
    square, W = (f - f_best) ** 2, preconditioner(A, h)
    print(f"n = {N}, d = {D}. The best step has the risk {risk(BEST):.4f}, an answer of 0 has "
          f"{LAM.sum():.4f}.\nThe risk of a run is E (f - f*)^2 above, here on 20,000 prompts.\n")
    print(f"    {'runs':28}E (f - f*)^2   E e^2   diagonal of W (mean of the runs)")
    for name, runs in kinds.items():
        risks, diagonal = square[:, runs].mean(axis=0), np.diag(W[runs].mean(axis=0))
        print(f"    {runs.sum():2} {name:16}{risks.min():9.4f} to {risks.max():.4f}",
              f"{(e[:, runs] ** 2).mean():7.4f}  ", *(f"{w:6.3f}" for w in diagonal))
    print(f"    {'the best step':46}", *(f"{w:6.3f}" for w in np.diag(BEST)))
    print(f"\nWith A = I it should be {risk(MULTIPLE) - risk(BEST):.4f}, and is "
          f"{square[:, -1].mean():.4f} +- {square[:, -1].std() / 20_000 ** 0.5:.4f}.")


def figure(path):
    """Plot the answers against those of the best step, and the preconditioners."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4, "lines.markersize": 15})
    canvas, (answers, weights) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    f, _, f_best, kinds = measure(*experiment(), 200)
    (trained, stuck, _), W = kinds.values(), preconditioner(*experiment()).diagonal(0, 1, 2).T
    weights.plot(np.diag(BEST), "k--", W[:, -1], "#888888")
    for runs, color, marker, shift in (trained, "#0072B2", "o", 0), (stuck, "#D55E00", "^", 0.15):
        answers.plot(f_best, f[:, runs.argmax()], marker, color=color, markersize=7)
        weights.plot(np.arange(D) + shift, W[:, runs], marker, color=color)
    answers.text(-7, 8, f"one of {trained.sum()} runs", color="#0072B2")
    answers.text(-0.5, -7, f"one of {stuck.sum()} stuck runs", color="#D55E00")
    weights.text(0, 1.05, "dashed: the best step\ngrey: A stays at I")
    weights.text(1.8, 0.02, "stuck runs", color="#D55E00")
    canvas.suptitle(f"{trained.sum()} of {STARTS} runs do the best preconditioned gradient step")
    answers.set(title="The answers agree", xlabel="best step's answer", ylabel="attention's answer")
    weights.set(title="W is the best preconditioner", xlabel="variance of the input",
                ylabel="diagonal of W", xticks=range(D), xticklabels=LAM, ylim=(0, 1.65))
    canvas.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", help="also plot into this file")
    picture = parser.parse_args().picture
    try:
        demo()
        if picture:
            figure(picture)
    except (ImportError, OSError, ValueError) as problem:
        parser.error(problem)
