"""How much data: full-batch gradient descent on n sequences.

    python beyond/data.py                     prints what is derived
    python beyond/data.py picture.png         also trains (two minutes), and plots

All steps have the same n sequences.  Other symbols are those of two_numbers.py.  The mean over
stochastic orthonormal E keeps W's block on encodings a multiple of I.  The token-PE block of W and
V_e stay 0, as L stays the same if E and these two change sign together.  Only V_x is free.

Why they have to solve the task (a -> infinity, V_x -> I) if the loss of n > d sequences in general
position tends to 0: with attention p_in on each selected token, and p_out on any other one,
residuals are G [S; R] with G = [p_in V_x - I/q, p_out V_x], where columns of S and R (d, n) are the
sums of a sequence's selected and other tokens.  For n > d the rows of [S; R] have fewer than d
relations.  So if residuals tend to 0, then for some unit vectors v so does v G: p_in v V_x tends to
v/q, and p_out v V_x to 0.  Hence p_out/p_in tends to 0, and p_in to 1/q.  Then V_x (p_in S + p_out
R) and p_in S + p_out R both tend to S/q, of rank d, and V_x to I.
"""

from common import end_error, main, row     # first: NumPy gets one thread

import numpy as np

import plots
import sts
import train


def descend(S, R, T, q, lr, steps, d_e, scalar=False):
    """a (samples,), V_x (samples, d, d) and the test error after descent on the mean over E.

    S and R (samples, n, d) are the sums of selected and of other tokens.  With `scalar` V_x is held
    at multiples of I.
    """
    samples, n, d = S.shape
    a, V = np.zeros((samples, 1, 1)), np.zeros((samples, d, d))
    for t in range(steps + 1):
        p_out = 1 / (q * np.exp(a) + T - q)
        p_in = np.exp(a) * p_out
        if t == steps:
            squares = q * (p_in * V - np.eye(d) / q) ** 2 + (T - q) * (p_out * V) ** 2
            return a.ravel(), V, q / d * squares.sum(axis=(1, 2))
        z = p_in * S + p_out * R                                    # dz/da = p_in (S - q z)
        r = (z @ V.transpose(0, 2, 1) - S / q) / n
        dV = r.transpose(0, 2, 1) @ z
        if scalar:
            dV = np.eye(d) * dV.trace(axis1=1, axis2=2)[:, None, None] / d
        da = (p_in * (r @ V) * (S - q * z)).sum(axis=(1, 2), keepdims=True)
        a, V = a - lr / d_e * da, V - lr * dV


def demo():
    """Print how often these numbers learn from n sequences, and if V_x has but one."""
    rng, T, d, q, samples = np.random.default_rng(0), 20, 3, 2, 200
    print(f"{T = }, {d = }, {q = }, stochastic orthonormal encodings, 4000 steps, mean gradients.\n"
          f"Of {samples} samples of n sequences so many learn, or have a < 0, with V_x free, and\n"
          "held at multiples of I.\n\n     n   free   a < 0   held   a < 0")
    for n in 4, 6, 8, 16:
        X = rng.standard_normal((samples, n, T, d))
        S, R = X[:, :, :q].sum(axis=2), X[:, :, q:].sum(axis=2)
        ends = [descend(S, R, T, q, 0.5, 4000, 20, scalar) for scalar in (False, True)]
        counts = [((error < 0.1).sum(), (a < 0).sum()) for a, _, error in ends]
        print("  {:4} {:6} {:7} {:6} {:7}".format(n, *counts[0], *counts[1]))


# Training

TASK = {"T": 20, "d": 3, "q": 2, "evaluations": 1, "eval_sequences": 2000, "T_test": [],
        "q_test": []}
ORTHONORMAL = {"law": "orthonormal", "d_e": 20, "lr": 0.5, "steps": 4000}
MODELS = {      # settings of train.py, numbers n of sequences, color, marker
    "stochastic": (ORTHONORMAL | {"eval_draws": 16}, [6, 8, 16, 32, 64, 128, 256], "#0072B2", "o"),
    "fixed": (ORTHONORMAL | {"pe": "fixed"}, [4, 8, 16, 32, 64, 128, 256], "#D55E00", "^"),
    "net": ({"model": "fcn", "hidden": [120], "optimizer": "adam", "lr": 0.02,
             "schedule": "cosine", "steps": 600}, [16, 64, 256, 1024, 4096], "#009E73", "D")}
ARMS = {f"data {name} {n}": TASK | settings | {"batch": n}
        for name, (settings, sizes, _, _) in MODELS.items() for n in sizes}


def tied(run):
    """Hold the weights at the 1 + d^2 numbers that move with stochastic encodings."""
    W, V, d = run["W"], run["V"], run["config"].d
    W[:], V[:, d:] = sts.ground_truth(d, len(W) - d)[0] * W[d:, d:].trace() / (len(W) - d), 0


def figure():
    """Train, plot error and training loss against n, and print the errors."""
    runs = plots.trained(ARMS)
    c = runs["data fixed 4"][0]["config"]
    canvas, axes = plots.plt.subplots(1, 2, figsize=(10, 6), sharey=True)
    for name, (_, sizes, color, marker) in MODELS.items():
        arms = [runs[f"data {name} {n}"] for n in sizes]
        errors = np.array([[run["error"][-1, 0] for run in arm] for arm in arms])
        losses = np.array([[run["loss"][-100:].mean() for run in arm] for arm in arms])
        for n, values in zip(sizes, errors):
            row(f"{name}, n = {n}: error", values)
        for axis, values in zip(axes, (errors, losses * 2 * c.q / c.d)):
            shown = np.maximum(values, 1e-4)
            axis.plot(sizes, shown, marker, color=color, fillstyle="none")
            axis.plot(sizes, np.median(shown, axis=1), color=color, marker=marker, markevery=[0],
                      fillstyle="none", label=name)
    held = ARMS["data fixed 16"] | {"evaluations": c.steps, "eval_sequences": 2}
    row("fixed, n = 16, held at the numbers of stochastic: error", [
        end_error(train.train(tied, **held, seed=seed), c.T, c.q) for seed in plots.SEEDS])
    for axis, name in zip(axes, ("test error", "training loss over d/(2q)")):
        axis.set(title=name, xscale="log", yscale="log", ylim=(5e-5, 30),
                 xlabel="training sequences n")
        axis.set_xticks([4, 16, 64, 256, 1024, 4096], [4, 16, 64, 256, 1024, 4096])
        axis.minorticks_off()
    plots.dotted_line(axes[0], 0.1, "10%")
    axes[1].legend(loc="upper right")
    canvas.suptitle("16 sequences of length 20: stochastic encodings learn, others memorize")
    plots.caption(canvas, "One batch, orthonormal encodings; net of 120 units, by Adam. Markers: 3 "
                  "seeds; lines: medians. Losses below $10^{-4}$ are put there. "
                  f"T = $d_e$ = {c.T}, d = {c.d}, q = {c.q}.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
