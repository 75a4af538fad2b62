"""How wide attention must be when encodings are random signs, and how wide a net.

    python beyond/width.py                     prints what is derived
    python beyond/width.py separation.png      also trains, a quarter of an hour, and plots

README.md says why a d_e of order q ln T is enough, and why one draw has a floor for q >= 3; the
proof is in teach/EXERCISES.md, 3.  Symbols are those of two_numbers.py.  s_j = e_j . U is the score
of position j: with W = a W* its logit is a s_j.  Outputs are means over K draws of encodings.
"""

from common import end_error, main, row     # first: it finds plots.py, and gives NumPy one thread

import numpy as np

import plots
from sts import softmax


def random_scores(rng, T, d_e, q, draws=1000, equal=False):
    """Scores s_j (draws, T) for random signs; the first q positions are the selected ones.

    All subsets are alike.  Given U, an unselected score is U . e_j, and depends only on how many
    coordinates of U have each size, so that e_j need not be drawn.  With `equal` the selected ones
    are changed to their mean.
    """
    signs = rng.integers(2, size=(draws, q, d_e), dtype=np.int8) * 2 - 1
    U = signs.sum(axis=1)                                           # (draws, d_e), times sqrt(d_e)
    others = np.zeros((draws, T - q))
    for size in range(1, q + 1):
        n = (abs(U) == size).sum(axis=1)[:, None]
        others += size * (2 * rng.binomial(n, 0.5, others.shape) - n)       # the sum of n signs
    own = (signs @ U[:, :, None])[:, :, 0]
    own = own.mean(axis=1, keepdims=True).repeat(q, axis=1) if equal else own
    return np.concatenate([own, others], axis=1) / d_e


def mean_attention(a, scores, q, K):
    """S, the attention on y, and the squared length of the mean P of K draws, for W = a W*.

    Both are means over the draws.  By symmetry P_j has the mean S/q on y, else (1 - S)/(T - q).
    """
    P = softmax(a * scores)
    S = P[:, :q].sum(axis=1).mean()
    of_all = S ** 2 / q + (1 - S) ** 2 / (scores.shape[1] - q)
    return S, (P * P).sum(axis=1).mean() / K + (1 - 1 / K) * of_all


def signs_error(a, alpha, scores, q, K):
    """The error over d/(2q) of a W*, alpha V* and the mean of K draws of random signs.

    The tokens integrate out: it is the mean of q sum_j (alpha P_j - 1[j in y]/q)^2.
    """
    S, length = mean_attention(a, scores, q, K)
    return q * alpha ** 2 * length - 2 * alpha * S + 1


def best_weights(scores, q, K):
    """The a and alpha of the least error, for the mean of K draws; for each a alpha is the best."""
    grid = np.geomspace(1, 60, 40)
    for _ in range(2):                                  # the second time finer
        fits = [(*mean_attention(a, scores, q, K), a) for a in grid]
        S, length, a = max(fits, key=lambda fit: fit[0] ** 2 / fit[1])
        grid = np.linspace(0.9 * a, 1.1 * a, 41)
    return a, S / (q * length)


def stochastic(scores, d, q, d_e, lr, steps, K):
    """Training with stochastic random signs: yields the step, a and alpha, each 0.02 in a or less.

    Slopes are means over these scores; dL/da is Im L(a + ih)/h for a tiny h.  alpha is the best one
    for a: that leaves out the time that V takes, of the order T/lr steps (plateau.py).
    """
    t, a = 0.0, 0.0
    while True:
        S, length = mean_attention(a, scores, q, K)
        alpha = S / (q * length)
        yield t, a, alpha
        if t >= steps:
            return
        slope = d / (2 * q) * signs_error(a + 1e-30j, alpha, scores, q, K).imag / 1e-30
        pace = min(1 / max(lr * abs(slope) / (0.02 * d_e), 200 / steps), steps - t)
        t, a = t + pace, a - pace * lr / d_e * slope


def floors(c, tests, draws=3000):
    """What is left of d/(2q) on each test (T, q) when training with random signs has ended.

    c are the settings of a run: a step has c.draws draws, a test c.eval_draws.  See CLAIMS.md.
    """
    rng = np.random.default_rng(0)
    a, alpha = best_weights(random_scores(rng, c.T, c.d_e, c.q, draws), c.q, c.draws)
    return [signs_error(a, alpha, random_scores(rng, T, c.d_e, q, draws), q, c.eval_draws)
            for T, q in tests]


def needed_width(T, q, error, K, rng, equal=False):
    """The least d_e for this error with the mean of K draws in a test, to about 5 per cent.

    a and alpha are the best ones for one draw, as in `floors`: noise of batches adds to it.
    """
    def is_enough(d_e):
        scores = random_scores(rng, T, d_e, q, 300, equal)
        return signs_error(*best_weights(scores, q, 1), scores, q, K) <= error

    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > max(1, 0.02 * low):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def demo():
    """Print what one draw and 16 draws leave at their best weights, and the d_e that is needed."""
    (rng, other), T, d_e = map(np.random.default_rng, (0, 1)), 200, 170
    print(f"Random signs, {T = }, {d_e = }: the least error with so many draws in a test.\n")
    for q, K, equal in (3, 1, False), (3, 16, False), (2, 1, False), (3, 1, True):
        scores = random_scores(other if equal else rng, T, d_e, q, equal=equal)
        a, alpha = best_weights(scores, q, K)
        error = signs_error(a, alpha, scores, q, K)
        print(f"  q = {q}, draws: {K:2d} {abs(error):6.1%}   {a = :.1f}, {alpha = :.2f}"
              f"{', selected logits made equal' * equal}")
    print("\nThe least d_e (to about 5%) for an error of 10%, q = 3, at the weights that are best\n"
          "for one draw; and the units that every net needs (d = 5).\n\n"
          "          d_e: 1 draw 16 draws  1 draw, equal logits   units of nets")
    for T in 10, 100, 1000:
        one, many = (needed_width(T, 3, 0.1, K, rng) for K in (1, 16))
        bound = T * 5 * (1 - 0.1 * (T - 1) / (T - 3))                       # see fcn.py
        equal = needed_width(T, 3, 0.1, 1, other, equal=True)
        print(f"  T = {T:4d} {one:11d} {many:8d} {equal:21d} {bound:15.0f}", flush=True)


# Training

ADAM = {"d": 5, "q": 3, "batch": 256, "optimizer": "adam", "schedule": "cosine",
        "evaluations": 1}
SIGNS = ADAM | {"law": "rademacher", "T_test": [], "q_test": []}
CURVES = {      # settings, and the widths that are trained at each T: d_e, or units of a net
    "one draw": (SIGNS | {"lr": 0.005, "steps": 6000},                          # less noise in W
                 {10: (48, 64), 40: (96, 128), 320: (192, 256)}),
    "16 draws": (SIGNS | {"lr": 0.03, "steps": 1000, "eval_draws": 16},
                 {10: (12, 16, 24), 20: (16, 24, 32), 40: (24, 32, 48), 80: (32, 48, 64),
                  160: (32, 48, 64), 320: (48, 64, 96)}),
    "net": (ADAM | {"model": "fcn", "fresh": True, "lr": 0.01, "eval_sequences": 2},
            {10: (40, 50), 20: (89, 100), 40: (179, 200)})}
NET_STEPS = {10: 6000, 20: 40_000, 40: 60_000}
ARMS = {f"width {name} {T} {m}": settings | {"T": T} | (
            {"hidden": [m], "steps": NET_STEPS[T]} if name == "net" else {"d_e": m})
        for name, (settings, sizes) in CURVES.items() for T in sizes for m in sizes[T]}


def trained_widths(name):
    """Train a curve; {T: the width for an error of 10% of each seed}.

    It is read from a line through the errors, and for attention in logarithms.
    """
    runs, needed = plots.trained({arm: ARMS[arm] for arm in ARMS if name in arm}), {}
    scale, back, n = (np.array, np.array, 20_480) if name == "net" else (np.log, np.exp, 2048)
    for T, sizes in CURVES[name][1].items():
        errors = [[end_error(run, T, ADAM["q"], n=n) for run in runs[f"width {name} {T} {m}"]]
                  for m in sizes]
        needed[T] = back([np.interp(-scale(0.1), -scale(ends), scale(sizes), np.nan, np.nan)
                          for ends in np.transpose(errors)])
    return needed


def separation():
    """Train, and plot the width of nets, and of attention with one draw in a test and with 16."""
    d, q = ADAM["d"], ADAM["q"]
    nets, one, many = (trained_widths(name) for name in ("net", "one draw", "16 draws"))
    bound = {T: T * d * (1 - 0.1 * (T - 1) / (T - q)) for T in many}        # see fcn.py
    row("trained nets: units / bound", [nets[T] / bound[T] for T in nets])
    canvas, axis = plots.plt.subplots(figsize=(8, 7))
    axis.plot(list(bound), list(bound.values()), "--", color="#009E73",
              label="all nets: bound for the first layer")
    axis.plot(list(bound), [d + T for T in bound], "k--", label="attention, orthonormal: d + T")
    for name, needed, more, color, marker in (
            ("trained nets", nets, 0, "#009E73", "D"),
            ("attention, random signs: d + $d_e$", one, d, "#56B4E9", "s"),
            ("the same, mean of 16 draws in a test", many, d, plots.STOCHASTIC, "o")):
        plots.band(axis, list(needed), np.transpose(list(needed.values())) + more, color,
                   marker=marker, markersize=9, label=name)
        if more:
            axis.text(340, 1.25 * (d + needed[320].mean()), color=color,
                      s=f"{(bound[320] / (d + needed[320])).mean():.1f} times")
    axis.vlines([320], [d + many[320].mean()], [bound[320]], color=plots.THEORY, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="sequence length T", xlim=(9, 680),
             ylim=(13, 2500), ylabel="width for an error of 10%")
    axis.set_xticks(list(bound), list(bound))
    axis.set_yticks([20, 50, 100, 200, 500, 1000], [20, 50, 100, 200, 500, 1000])
    axis.legend(loc="upper left")
    canvas.suptitle("Nets need about T d units; attention soon needs far fewer")
    plots.caption(canvas, f"q = {q}, d = {d}. Dotted: by how much attention is narrower. Markers: "
                  "trained by Adam, 3 seeds, nets on fresh batches, attention on one batch of 256.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, separation)
