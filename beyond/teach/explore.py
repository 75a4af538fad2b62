"""Sliders over the recursion of two_numbers.py, for orthonormal encodings, stochastic or fixed.

    python beyond/teach/explore.py [picture.png]       opens a window, or saves what it shows first
    import explore; w = explore.figure()       in a notebook here, after %matplotlib widget (ipympl)
"""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":      # before matplotlib loads: notebooks name a backend of their own
    os.environ["MPLBACKEND"] = "Agg" if sys.argv[1:] else ""

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))     # of common.py
from common import main     # before NumPy, which gets one thread

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.widgets import CheckButtons, Slider

import plots
from fixed import one_hot_error
from lengths import scaled, stochastic_loss
from two_numbers import descend

D, STEPS, SIZE = 5, 2000, np.array([11, 7.5])
SLIDERS = {     # smallest, largest and first value, and step: T' is at most d_e, half before STEPS
    "length T": (10, 50, 50, 1), "test: T' / T": (1, 2, 1, 0.1), "selected q": (1, 5, 3, 1),
    "$d_e$, stochastic": (100, 200, 100, 10), "lr": (1, 2, 2, 0.5), "step t": (0, STEPS, 300, 10)}


@plots.in_style
def figure():
    """The window: errors, attention at step t on one sequence of length T', and the sliders."""
    window = plt.figure(figsize=SIZE, layout="none")
    left, right = [window.add_axes((x, 0.4, 0.4, 0.48)) for x in (0.09, 0.58)]
    places = [window.add_axes((x, y, 0.24, 0.04)) for y in (0.24, 0.18, 0.12) for x in (0.17, 0.68)]
    sliders = [Slider(place, name, low, high, valinit=first, valstep=step, handle_style={"size": 7})
               for place, (name, (low, high, first, step)) in zip(places, SLIDERS.items())]
    boxes = CheckButtons(window.add_axes((0.07, 0, 0.4, 0.1), frameon=False),
                         ["scaled logits at T'", "fixed encodings"])
    curves = [left.plot([], [], color=c, linewidth=w)[0] for c, w in zip(plots.SHADES, (5, 2))]
    (dots,), line = left.plot([], [], "ko"), left.axvline(0, color=plots.THEORY, linestyle="--")
    left.set(xlabel="step t", ylabel="error: loss over that of f = 0", xlim=(0, STEPS))
    left.yaxis.set_major_formatter(plots.PercentFormatter(1))
    left.legend(curves, ["length T: recursion, no noise", "length T'"], loc="upper right")
    bars = [right.stairs([0], fill=True, color=color) for color in ("#BBBBBB", plots.STOCHASTIC)]
    border = right.axvline(1, color=plots.THEORY, linestyle=":")        # new positions follow
    right.set(ylabel="q times attention", xticks=[], xlim=(0, 1))

    @plots.in_style
    def update(_):
        T, times, q, d_e, lr, t = [slider.val for slider in sliders]
        are_scaled, are_fixed = boxes.get_status()
        n, N = round(times * T), T - 1 if are_fixed else d_e    # T' and ||W*||^2
        L, a, alpha = descend(lr, STEPS, N, T, D, q)
        a_test = scaled(a, T, q, n, q) if are_scaled else a
        error = stochastic_loss(a_test, alpha, n, D, q) * 2 * q / D
        selected = np.isin(np.arange(n), (2 * np.arange(q) + 1) * n // (2 * q))
        logits = a_test[t] * selected
        if are_fixed:                                           # the logits of new positions are 0
            error = one_hot_error(a_test, alpha, T, n, q)
            logits = a_test[t] * (selected - selected[:T].mean()) * (np.arange(n) < T)
        P = np.exp(logits) / np.exp(logits).sum()
        half, errors = np.argmax(L <= D / (4 * q)), (L * 2 * q / D, error)
        for curve, values in zip(curves, errors):
            curve.set_data(range(STEPS + 1), values)
        dots.set_data([t, t], [values[t] for values in errors])
        line.set_xdata([half, half])
        left.set(ylim=(0, 1.1 * max(1.1, error.max())), title=f"half is left at step {half:,}")
        for bar, part in zip(bars, (~selected, selected)):
            bar.set_data(q * P * part, np.linspace(0, 1, n + 1))
        border.set(xdata=[T / n, T / n], visible=n > T)
        right.set(xlabel=f"{T} positions trained, {n - T} new",
                  ylim=(0, 1.1 * (q if are_fixed and n > T else 1)),    # for all steps t
                  title=f"step {t}: a = {a[t]:.2f}, α = {alpha[t]:.2f}\n"
                        f"{P[selected].sum():.0%} of attention is on selected tokens (blue)")
        window.canvas.draw_idle()

    for change in boxes.on_clicked, *[slider.on_changed for slider in sliders]:
        change(update)
    window.canvas.mpl_connect("resize_event", lambda _: plt.setp(       # letters grow with it
        window.findobj(plt.Text), fontsize=14 * min(window.get_size_inches() / SIZE)))
    update(None)
    window.parts = sliders, boxes, curves, line, bars, border     # kept, or nothing would move
    return window


if __name__ == "__main__":
    main(__doc__, lambda: None, figure)
    if not sys.argv[1:]:
        if figure().canvas.required_interactive_framework is None:
            sys.exit("There is no display: explore.py PICTURE.png saves a picture instead.")
        with suppress(KeyboardInterrupt):
            plt.show()
