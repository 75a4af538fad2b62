"""Training follows two numbers: exact gradient descent on the population loss.

    python beyond/two_numbers.py                   prints what is derived
    python beyond/two_numbers.py dynamics.png      also trains, and plots both

Symbols are those of sts.py.  For one-hot encodings the block of W* is I - 11^T/T.  Stochastic
encodings are orthonormal here, new at every step.  U is the sum of the selected encodings.

From W = V = 0, gradient descent on L, the mean over all X, y and E, keeps W = a W* and V = alpha V*
(in exact arithmetic: at a large lr rounding errors grow).  README.md has the recursion that this
leaves, and its late rate.  The reason is symmetry: a map that keeps L and the weights keeps the
gradient, and so the weights after a step.  Block by block:

    W, token columns     They are multiplied by the 0 in z_query, so their gradient is 0.
    W, the token-PE      Change the sign of both, and of X.  P stays the same, and f and the target
    block, and V_e of    change sign.  So L is even in the two together, and where both are 0, so is
    V = [V_x, V_e]       the gradient.
    V_x                  Map all tokens by an orthogonal O, V_x to O V_x O^T, and W's token rows and
                         V_e, which are 0, with them: L stays the same.  At a multiple of I the
                         gradient commutes with every O, so it is a multiple of I, too.
    W, the PE-PE block   Stochastic: permute coordinates of all encodings, or change their signs:
                         the law of E stays the same.  What commutes with all these maps is a I.
                         One-hot: permute positions.  What commutes is a I + w 11^T, and softmax
                         ignores 11^T.

P does not depend on X, and the tokens integrate out.  With r_j = alpha P_j - 1[j in y]/q the
residual is sum_j r_j x_j, so L = d/2 sum_j r_j^2.

In the full model of Figures 1 and 3 z_query is one more key.  The maps treat it like the keys, so
with stochastic encodings two numbers move here, too.
"""

from common import UNTESTED, main, multiples, row     # first: NumPy gets one thread

import math
from functools import partial

import numpy as np

import plots


def slopes(a, alpha, T, d, q, query=None):
    """L, dL/da and dL/dalpha; for the full model if query is "sum" or "mean".

    With W = a W* selected logits are higher by a than the others.  In the full model U is scale
    times the sum of the selected encodings: their logits are a scale, and that of the query is
    a scale^2 q.  The query has the value V z_query = 0: it takes attention, and adds nothing to f.
    The slopes of L by P_j are g_j = d alpha r_j, and 0 for the query.  Softmax turns them into
    P_j (g_j - mean), where mean = sum_j P_j g_j.
    """
    scale = 1 / q if query == "mean" else 1
    e_in, e_query = math.exp(a * scale), math.exp(a * scale ** 2 * q) if query else 0
    p_out = 1 / (q * e_in + T - q + e_query)
    p_in, p_query = e_in * p_out, e_query * p_out
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    mean = alpha * dalpha
    da = scale * q * p_in * (d * alpha * r_in - mean) - scale ** 2 * q * p_query * mean
    return L, da, dalpha


def held(a, alpha, *sizes):
    """The slopes where V is held at V*: alpha is 1, and its slope 0."""
    return *slopes(a, 1.0, *sizes)[:2], 0.0


def descend(lr, steps, N, T, d, q, slopes=slopes):
    """L, a and alpha (3, steps + 1) before each step of gradient descent from zero, and at the end.

    For one-hot encodings, N = T - 1, or stochastic orthonormal ones, N = d_e.
    """
    a, alpha, path = 0.0, 0.0, []
    for _ in range(steps + 1):
        L, da, dalpha = slopes(a, alpha, T, d, q)
        path.append((L, a, alpha))
        a, alpha = a - lr / N * da, alpha - lr / d * dalpha
    return np.array(path).T


def count_steps(share, T, d, q, lr, N):
    """The number of steps of `descend` after which L is at most share d/(2q)."""
    steps = 1000
    while True:
        below = descend(lr, steps, N, T, d, q)[0] <= share * d / (2 * q)
        if below.any():
            return below.argmax()
        steps *= 2


def late_loss(t, T, d, q, query, lr, d_e):
    """L of the full model, stochastic orthonormal encodings, after many steps t (an array, too).

    To leading order.  Why it is this power of t is in README.md; the factors are derived here.
    Mean, lr < 2 (q + 1)^2/q: alpha has its best value, and dL/da = -(2/q) L at the end, so
    da/dt = (lr/d_e) (2/q) L, while L falls like e^(-2a/q).
    Sum, q >= 2, lr < 2 q d_e / (d (q - 1)^2): p_out = e^(-qa), and alpha = e^((q-1)a) / q, so
    L = d (T - q) / (2 q^2) e^(-2a).  Where dL/da = 0, dalpha/dt = lr (T - q) alpha p_out^2/(q - 1).
    It is (q - 1) alpha da/dt, too, so that e^(2qa) = 2 q lr (T - q) t / (q - 1)^2.
    """
    if query == "mean" or q == 1:
        return q * q * d_e / (4 * lr * t)
    return d * (T - q) / (2 * q * q) * (2 * q * lr * (T - q) * t / (q - 1) ** 2) ** (-1 / q)


def demo():
    """Print late rates, what takes them away, and Theorem 1's case."""
    d, q = 5, 3
    print(f"One-hot, T = 50, {d = }, {q = }: growth of 1/L over 4 lr/N, near step 300,000.\n")
    for lr, own in (1.0, slopes), (5.8, slopes), (7.0, slopes), (7.0, held):
        L = descend(lr, 300_000, 49, 50, d, q, own)[0]
        growth = (1 / L[-1] - 1 / L[150_000]) / 150_000 / (4 * lr / 49)
        print(f"  {lr = :g}: {abs(growth):5.3f}{', with alpha held at 1' * (own is held)}")
    print("\nFull model, stochastic, T = d_e = 20, near step 1,000,000: L is this power of t.\n")
    for query, q in ("sum", 2), ("sum", 3), ("mean", 3):
        L = descend(1.0, 1_000_000, 20, 20, d, q, partial(slopes, query=query))[0]
        print(f"  {q = }, {query} as query: {math.log2(L[-1] / L[500_000]):.2f}", flush=True)
    lr, eps = 1 / (20 * d * d), d * 20 / (100 * (20 - q) * q)
    print(f"\nUnder the conditions of Theorem 1 at T = 20, lr 1/(20 d^2) = {lr:g}:\n"
          f"  {count_steps(0.01, 20, d, q, lr, 19)} steps until L = 0.01 d/(2q) = "
          f"{0.01 * d / (2 * q):.4f} < {eps:.4f} = d T/(100 (T - q) q), the largest eps")


# Training

ENCODINGS = {       # settings of train.py, ||W*||^2, color
    "one-hot": ({"T": 50, "pe": "onehot", "batch": 256}, 49, "#CC79A7"),
    "orthonormal": ({"T": 50, "law": "orthonormal", "batch": 256}, 100, "#0072B2")}
ARMS = {f"two_numbers {name} {steps}": UNTESTED | settings | {"lr": 1.0, "steps": steps}
        for name, (settings, _, _) in ENCODINGS.items() for steps in (150, 400, 1000, 4000)}


def delays(runs, N):
    """How many times as many steps as by the recursion each run takes until L is half of d/(2q)."""
    c = runs[0]["config"]
    steps = [np.interp(-c.d / (4 * c.q), -np.minimum.accumulate(L), t, right=np.nan)
             for t, L in map(plots.smooth_loss, runs)]
    return np.array(steps) / count_steps(0.5, c.T, c.d, c.q, c.lr, N)


def dynamics():
    """Train, plot L, 1/L, a and alpha, measured and exact, and print measured over exact."""
    runs, halved, growth = plots.trained(ARMS), [], []
    c = runs["two_numbers orthonormal 4000"][0]["config"]
    canvas, ((left, right), below) = plots.plt.subplots(2, 2, figsize=(10, 8.5))
    for name, (_, N, color) in ENCODINGS.items():
        longest = runs[f"two_numbers {name} 4000"]
        exact = descend(c.lr, c.steps, N, c.T, c.d, c.q)
        t, _ = plots.smooth_loss(longest[0])
        L = np.array([plots.smooth_loss(run)[1] for run in longest])
        for axis, values, curve in (left, L, exact[0]), (right, 1 / L, 1 / exact[0]):
            plots.band(axis, t, values, color, linewidth=5, label=name)
            axis.plot(curve, "--", color=plots.THEORY)
        points = np.transpose([(run["config"].steps, *multiples(run))
                               for arm in runs if name in arm for run in runs[arm]])
        for k, axis in enumerate(below, 1):
            axis.plot(points[0], points[k], "o", color=color, fillstyle="none", markersize=9)
            axis.plot(exact[k], "--", color=color)
        halved.extend(delays(longest, N))
        late = np.polyfit(t[33:], 1 / L.T[33:], 1, w=L.mean(axis=0)[33:])
        growth.extend(late[0] / (4 * c.lr / N))
    left.set(title="loss L", yscale="log")
    right.set(title="1/L", ylim=(0, None))
    right.legend(title="encodings", loc="upper left")
    below[0].set(title="a, with W near a W*", xlabel="step t")
    below[1].set(title="$\\alpha$, with V near $\\alpha$ V*", xlabel="step t")
    canvas.suptitle("Training follows two numbers, a and $\\alpha$, a little late")
    plots.caption(canvas, "Dashed: the recursion. Thick, and circles: trained, 3 seeds.", c)
    row("step at which L has halved / exact", halved)
    row("growth of 1/L / (4 lr/||W*||^2)", growth)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, dynamics)
