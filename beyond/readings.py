"""Does it hang on our choices?  Figures 2 and 4 at every d_e, without training.

    python beyond/readings.py                prints the map, within a minute
    python beyond/readings.py picture.png    also trains (half an hour after plots.py), and plots

What we have read of the paper leaves open how long encodings are, and how many draws of them a test
averages.  Here they are random signs, and all else is as in Figures 2 and 4.  Fixed encodings have
the errors of fixed.py.  Stochastic ones have W = a W* and V = alpha V*: the law of random signs
stays the same if coordinates are permuted or change sign, which is what two_numbers.py asks for.
Their slopes are means over scores (width.py).  All is derived for the population loss; with batches
noise of tokens adds to it (fixed.py and plateau.py print how much).
"""

from common import UNTESTED, end_error, main, multiples, row     # first: NumPy gets one thread

import functools
import math

import numpy as np

import fixed
import width

T, D, Q, LR, STEPS, K = 200, 5, 3, 5.0, 24_000, 4       # of Figures 2 and 4; K draws in a step
SIZES = 60, 100, 150, 200, 250, 350, 500, 700, 1000, 1400
TESTS = {"$T_{test}$ = 400": (400, 3), "$q_{test}$ = 8": (200, 8), "$q_{test}$ = 2": (200, 2)}
CURVES = {"fixed": ("--", "#D55E00"), "stochastic, one draw in a test": (":", "#56B4E9"),
          "stochastic, mean of 16": ("-", "#0072B2")}


def stochastic(rng, T, d, q, d_e, lr, steps, K, draws=300):
    """Training with stochastic random signs: yields the step, a and alpha, each 0.02 in a or less.

    Slopes are means over this many draws of scores.  alpha is the best one for a: that leaves out
    the time that V takes, of the order T/lr steps (plateau.py).
    """
    scores, t, a = width.sample_scores(rng, T, d_e, q, draws), 0.0, 0.0
    while True:
        square, inside = width.mean_attention(width.attention_moments(a, scores), T, q, K)
        alpha = inside / (q * square)
        yield t, a, alpha
        if t >= steps:
            return
        _, slope, _ = width.stochastic_slopes(a, alpha, scores, d, q, K)
        pace = min(1 / max(lr * abs(slope) / (0.02 * d_e), 200 / steps), steps - t)
        t, a = t + pace, a - pace * lr / d_e * slope


def errors(rng, d_e):
    """Errors over d/(2q) after training (curves, tests), with one draw of fixed encodings."""
    E = rng.choice([-1, 1], (2 * T, d_e)) / math.sqrt(d_e)
    for _, C, alpha in fixed.descend(E, T, D, Q, LR, STEPS, rng, pace=16):
        pass                                                            # to the last step
    found = [[fixed.error(E, T, C, alpha, fixed.subsets(rng, 2000, *test))
              for test in TESTS.values()]]
    *_, (_, a, alpha) = stochastic(rng, T, D, Q, d_e, LR, STEPS, K)
    return np.array(found + [
        [width.predict_loss(rng, a, alpha, length, D, q, d_e, draws, 0.03)[0] * 2 * q / D
         for length, q in TESTS.values()] for draws in (1, 16)])


@functools.cache
def chart():
    """The map: errors (sizes, 2, curves, tests), each twice, with other draws.  Prints means."""
    rng, found = np.random.default_rng(0), []
    for d_e in SIZES:
        found.append([errors(rng, d_e) for _ in range(2)])
        print(f"  {d_e:4}", *("  ".join(f"{x:6.3f}" for x in own)
                              for own in np.mean(found[-1], axis=0).T), sep="     ", flush=True)
    return np.array(found)


def summary(found):
    """Print the standard errors of the map's means, and where it shows what captions say.

    The standard error of a mean of two is half their difference; relative to the mean, and as the
    root mean square over sizes, it is one for each curve and test.
    """
    mean, (fixed_, one, many) = found.mean(axis=1), found.mean(axis=1).transpose(1, 2, 0)
    error = np.sqrt(np.mean((np.diff(found, axis=1)[:, 0] / 2 / mean) ** 2, axis=0))
    print("  s.e.", *("  ".join(f"{x:6.1%}" for x in own) for own in error.T), sep="     ")
    print("\nThe d_e that show it (in brackets: within two standard errors):")
    both = np.hypot(error[0], error[1:])                                # of the ratios to fixed
    for text, ratio, width_ in (
            ("T_test = 400: fixed has twice the error of one draw or more", fixed_[0] / one[0] / 2,
             both[0, 0]),
            ("T_test = 400: fixed has twice the error of 16 draws or more", fixed_[0] / many[0] / 2,
             both[1, 0]),
            ("q_test = 8: fixed keeps a quarter or less", 0.25 / fixed_[1], error[0, 1]),
            ("q_test = 8: 16 draws are ahead of fixed", fixed_[1] / many[1], both[1, 1]),
            ("q_test = 2: 16 draws are ahead of fixed", fixed_[2] / many[2], both[1, 2]),
            ("q_test = 8: one draw is ahead of fixed", fixed_[1] / one[1], both[0, 1]),
            ("q_test = 2: one draw is ahead of fixed", fixed_[2] / one[2], both[0, 2])):
        lead = np.log(ratio)
        print(f"  {text:60}", *[f"{d_e}" if x > 2 * width_ else f"({d_e})"
                                for d_e, x in zip(SIZES, lead) if x > -2 * width_])


def demo():
    """Print the errors over d_e: fixed, and stochastic with one draw in a test and with 16."""
    print(f"Errors over d/(2q) after {STEPS} steps, T = {T}, q = {Q}, random signs.  Each test:\n"
          "fixed encodings; stochastic with one draw in a test; stochastic with the mean of 16.\n\n"
          "   d_e     T_test = 400               q_test = 8                 q_test = 2")
    summary(chart())


# Training

POINTS = 100, 250, 500, 1000        # of SIZES; 500 is that of the runs of plots.py


def arms(pe):
    """The runs of fixed or stochastic encodings at POINTS, {name: settings}."""
    import plots
    own = UNTESTED | {"T_test": [400], "evaluations": 20}
    return {f"readings {pe} {d_e}" if d_e != 500 else f"gd {pe}": plots.GD[f"gd {pe}"] | (
        own | {"d_e": d_e} if d_e != 500 else {}) for d_e in POINTS}


def other_arms():
    """Figure 1 with random signs, and Figure 5's fixed encodings with d_e = 170."""
    import plots
    return {"readings full model, random signs": plots.FULL["full model"] | UNTESTED | {
                "law": "rademacher"},
            "readings adam fixed 170": plots.ADAM["adam fixed"] | UNTESTED | {"d_e": 170}}


def figure_4(runs):
    """Print a, alpha and the errors of Figure 4's stochastic runs over the computed ones."""
    c, rng = runs[0]["config"], np.random.default_rng(0)
    *_, (_, *numbers) = stochastic(rng, c.T, c.d, c.q, c.d_e, c.lr, c.steps, c.draws, 2000)
    for name, found, computed in zip(("a", "alpha"), np.transpose(list(map(multiples, runs))),
                                     numbers):
        row(f"gd stochastic: {name}", found)
        row(f"gd stochastic: {name} / computed", found / computed)
    for T, q in runs[0]["tests"].tolist():
        L, _ = width.predict_loss(rng, *numbers, T, c.d, q, c.d_e, c.eval_draws)
        row(f"gd stochastic, T = {T}, q = {q}: error / computed",
            np.array([end_error(run, T, q) for run in runs]) / (L * 2 * q / c.d))


def figure():
    """Train, and plot the map with trained runs as points; print trained over computed."""
    import plots
    import matplotlib.pyplot as plt
    lines = dict(zip(CURVES, chart().mean(axis=1).transpose(1, 2, 0)))      # (tests, sizes) each
    runs = {pe: [run for run, in plots.trained(arms(pe), seeds=plots.SEEDS[:1]).values()]
            for pe in ("fixed", "stochastic")}
    canvas, axes = plt.subplots(1, len(TESTS), figsize=(11, 6.5), sharey=True)
    for curve, (style, color) in CURVES.items():
        for axis, line, (name, (length, q)) in zip(axes, lines[curve], TESTS.items()):
            ends = [end_error(run, length, q, draws=1 if "one" in curve else None)
                    for run in runs[curve.split(",")[0]]]
            axis.plot(SIZES, line, style, color=color, label=curve.replace(", ", ",\n"))
            axis.plot(POINTS, ends, "o", color=color, fillstyle="none", markersize=10)
            axis.set(title=name, xlabel="$d_e$", xscale="log", yscale="log")
            axis.set_xticks([60, 100, 250, 500, 1400], [60, 100, 250, 500, 1400])
            axis.minorticks_off()
            row(f"{curve}, T = {length}, q = {q}: trained / computed",
                [end / line[SIZES.index(d_e)] for d_e, end in zip(POINTS, ends)])
    axes[0].set(ylabel="error over d/(2q)")
    axes[2].legend(loc="upper right", handlelength=1.5)
    canvas.suptitle("At 2 T stochastic encodings lead; on other sizes it depends on $d_e$")
    plots.caption(canvas, "Lines: computed, without training. Circles: trained, one seed. "
                  f"T = {T}, q = {Q}, d = {D}, lr = {LR:g}.")
    figure_4(plots.trained({"gd stochastic": plots.GD["gd stochastic"]})["gd stochastic"])
    (full,), (adam,) = plots.trained(other_arms(), seeds=plots.SEEDS[:1]).values()
    inverse = 1 / plots.smooth_loss(full)[1]
    row("full model, random signs: 1/L, last quarter of training", inverse[75:])
    row("adam fixed, d_e = 170, q = 8: error over d/(2q)", [end_error(adam, T, 8)])
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
