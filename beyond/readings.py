"""Does it depend on our choices?  Figures 2 and 4 at every d_e, without training.

    python beyond/readings.py                prints the map, in two minutes
    python beyond/readings.py picture.png    also plots it

Encodings are random signs, on the population loss.  Fixed ones have the errors of fixed.py.
Stochastic ones have W = a W* and V = alpha V*: their law stays the same if coordinates are permuted
or change sign, as two_numbers.py asks for.  Their slopes are means over scores (width.py).
"""

from common import main     # first: it finds plots.py, and gives NumPy one thread

import functools
from collections import deque

import numpy as np

import fixed
import plots
from width import random_scores, signs_error, stochastic

T, D, Q, LR, STEPS, K = 200, 5, 3, 5.0, 24_000, 4       # of Figures 2 and 4; K draws in a step
SIZES = 60, 100, 150, 200, 250, 350, 500, 700, 1000, 1400
TESTS = {"$T_{test}$ = 400": (400, 3), "$q_{test}$ = 8": (200, 8), "$q_{test}$ = 2": (200, 2)}
CURVES = {"fixed": ("--", "#D55E00"), "stochastic, one draw": (":", "#56B4E9"),
          "stochastic, 16 draws": ("-", "#0072B2")}


def errors(rng, d_e):
    """Errors after training (curves, tests), with one draw of fixed encodings."""
    E = rng.choice([-1, 1], (2 * T, d_e)) / np.sqrt(d_e)
    (_, C, alpha), = deque(fixed.descend(E, T, D, Q, LR, STEPS, rng, pace=16), 1)     # the last
    found = [[fixed.error(E, T, C, alpha, fixed.subsets(rng, 2000, *test))
              for test in TESTS.values()]]
    scores = random_scores(rng, T, d_e, Q, draws=300)
    *_, (_, a, alpha) = stochastic(scores, D, Q, d_e, LR, STEPS, K)
    scores = [(random_scores(rng, length, d_e, q), q) for length, q in TESTS.values()]
    return np.array(found + [[signs_error(a, alpha, own, q, draws) for own, q in scores]
                             for draws in (1, 16)])


@functools.cache
def demo():
    """Print and return the map: errors (sizes, curves, tests), means of two draws if fixed."""
    print(f"Errors after {STEPS} steps, T = {T}, q = {Q}, random signs.  Each test:\n"
          "fixed encodings; stochastic with one draw in a test; stochastic with the mean of 16.\n\n"
          "   d_e     T_test = 400                  q_test = 8                    q_test = 2")
    rng, found = np.random.default_rng(0), []
    for d_e in SIZES:
        found.append((errors(rng, d_e) + errors(rng, d_e)) / 2)
        print(f"  {d_e:4}", *("  ".join(f"{x:7.1%}" for x in own) for own in found[-1].T),
              sep="     ", flush=True)
    return np.array(found)


def figure():
    """Plot the map that demo() prints, but for its last test."""
    lines = demo().transpose(1, 2, 0)
    canvas, axes = plots.plt.subplots(1, 2, figsize=(8, 6.5), sharey=True)
    for (curve, (style, color)), tests in zip(CURVES.items(), lines):
        for axis, name, line in zip(axes, TESTS, tests):
            axis.plot(SIZES, line, style, color=color, label=curve)
            axis.set(title=name, xlabel="$d_e$", xscale="log", yscale="log")
            axis.set_xticks([60, 200, 500, 1400], [60, 200, 500, 1400])
            axis.minorticks_off()
    axes[0].set(ylabel="error")
    axes[0].yaxis.set_major_formatter(plots.PercentFormatter(1))
    axes[0].legend(loc="upper right", handlelength=1.5)
    canvas.suptitle("At 2 T stochastic encodings lead; at q = 8 it depends")
    plots.caption(canvas, f"Computed for random signs, on the population loss: T = {T}, q = {Q}, "
                  f"lr = {LR:g}, {STEPS} steps, with {K} draws in a step, and 1 or 16 in a test.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
