"""Sliders over the recursion of two_numbers.py, for stochastic orthonormal encodings.

    python beyond/explore.py [picture.png]       opens a window, or saves what it shows at first
"""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":      # before matplotlib loads: notebooks name a backend of their own
    os.environ["MPLBACKEND"] = "Agg" if sys.argv[1:] else ""

from common import main     # before NumPy, which gets one thread

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.widgets import CheckButtons, Slider

import plots
from lengths import scaled, stochastic_loss
from plateau import flow_steps
from two_numbers import descend

D, STEPS = 5, 4000
SLIDERS = {     # the smallest and the largest value, the one at the start, and the step
    "T": (10, 100, 50, 1), "T_test": (10, 400, 50, 1), "q": (1, 8, 3, 1),
    "d_e": (100, 400, 100, 10), "lr": (0.25, 2, 1, 0.25), "step t": (0, STEPS, 600, 10)}


def figure():
    """The window: the errors, attention at step t on one sequence of length T_test, the sliders."""
    window = plt.figure(figsize=(11, 7), layout="none")
    left, right = [window.add_axes((x, 0.42, 0.41, 0.5)) for x in (0.07, 0.57)]
    corner = window.add_axes((0.09, 0.01, 0.3, 0.07), frameon=False)
    places = [window.add_axes((x, y, 0.28, 0.04)) for y in (0.24, 0.17, 0.1) for x in (0.1, 0.64)]
    sliders = [Slider(place, name, low, high, valinit=first, valstep=step)
               for place, (name, (low, high, first, step)) in zip(places, SLIDERS.items())]
    box = CheckButtons(corner, ["scaled logits"], useblit=False)        # a click draws everything
    curves = [left.plot([], [], color=color)[0] for color in plots.SHADES[:2]]
    (dots,), line = left.plot([], [], "ko"), left.axvline(0, color=plots.THEORY, linestyle="--")
    left.set(xlabel="step t", ylabel="loss over d/(2q)", xlim=(0, STEPS), ylim=(0, 1.1))
    left.legend([*curves, line], ["length T, as trained", "length T_test", "half, by the formula"])
    bars = [right.stairs([0], fill=True, color=color) for color in ("#BBBBBB", plots.STOCHASTIC)]
    right.set(xlabel="positions", ylabel="q times attention", xticks=[], xlim=(0, 1), ylim=(0, 1.1))
    titles = [axis.text(0, 1.04, "", transform=axis.transAxes) for axis in (left, right)]

    def update(_, rest_is_new=False):       # what moves is drawn over the rest, which is kept
        T, T_test, q, d_e, lr, t = [slider.val for slider in sliders]
        if T_test > d_e:                                    # orthonormal encodings end at d_e
            return sliders[1].set_val(d_e)                  # this updates
        _, a, alpha = descend(lr, STEPS, d_e, T, D, q)
        a_test = scaled(a, T, q, T_test, q) if box.get_status()[0] else a
        for curve, x, n in zip(curves, (a, a_test), (T, T_test)):
            curve.set_data(range(STEPS + 1), stochastic_loss(x, alpha, n, D, q) * 2 * q / D)
        dots.set_data([t, t], [curve.get_ydata()[t] for curve in curves])
        half = max(0, flow_steps(0.5, T, D, q, lr, d_e))
        line.set_xdata([half, half])
        selected = np.isin(np.arange(T_test), (2 * np.arange(q) + 1) * T_test // (2 * q))
        P = np.exp(a_test[t] * selected) / np.exp(a_test[t] * selected).sum()
        for bar, part in zip(bars, (~selected, selected)):
            bar.set_data(q * P * part, np.linspace(0, 1, T_test + 1))
        titles[0].set_text(f"half is left at step {half:,.0f}, by the formula")
        titles[1].set_text(f"{P[selected].sum():.0%} of attention is on selected tokens (blue)")
        if rest_is_new:
            window.rest = window.canvas.copy_from_bbox(window.bbox)
        window.canvas.restore_region(window.rest)
        for artist in moving:
            window.draw_artist(artist)
        window.canvas.blit()

    moving = [*curves, line, dots, *bars, *titles]
    for slider in sliders:
        slider.drawon = False
        slider.on_changed(update)
        moving += slider.poly, slider.valtext, *slider.ax.lines
    plt.setp(moving, animated=True)
    window.canvas.mpl_connect("draw_event", lambda _: window.canvas.is_saving() or update(_, True))
    window.canvas.draw()
    window.parts = sliders, box, curves, line, bars         # widgets that are not kept do not move
    return window


if __name__ == "__main__":
    main(__doc__, lambda: None, figure)
    if not sys.argv[1:]:
        plt.rcParams.update(plots.STYLE)
        if figure().canvas.required_interactive_framework is None:
            sys.exit("There is no display: python beyond/explore.py PICTURE.png saves the picture.")
        with suppress(KeyboardInterrupt):
            plt.show()
