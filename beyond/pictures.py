"""Draw the model, the class run and who makes it fast, and its movie:  python beyond/pictures.py"""

from common import main, multiples          # first: it finds plots.py, and gives NumPy one thread
import plots

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from PIL import Image

import sts
import train
from plateau import flow_steps
from plots import THEORY
from two_numbers import descend, slopes

# Entries of matrices are red above 0, as in Figure 3, and grey below 0.
SELECTED, UNSELECTED, OUTPUT, ENTRIES = "#0072B2", "#BBBBBB", "#009E73", "RdGy_r"
SHOWN = 12                              # the coordinates of encodings that the movie shows
CLASS = {"evaluations": 100, "T_test": [], "q_test": []}        # the first run of the first page
TASK = CLASS | {"T": 20, "d": 3, "d_e": 20, "evaluations": 1}   # of the drawing


def example(c):
    """One sequence and one draw of encodings: X, y, E, and a color for each position."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c.T, c.d, c.q)
    E = sts.positional_encoding(c.law, c.T, c.d_e, rng)
    return X, y, E, [SELECTED if j in y[0] else UNSELECTED for j in range(c.T)]


def heat_map(axis, matrix, rows, columns, norm=None):
    """A heat map of entries, with lines after the rows and columns of tokens; returns its image."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    axis.axhline(rows - 0.5, color="k", linewidth=1)
    axis.axvline(columns - 0.5, color="k", linewidth=1)
    norm = norm or Normalize(-abs(matrix).max(), abs(matrix).max())
    return axis.imshow(matrix, cmap=ENTRIES, norm=norm, interpolation="nearest", aspect="auto")


def model(run):
    """The model on one sequence, from the keys and the query to the output, with its weights."""
    c, W, V, d = run["config"], run["W"], run["V"], run["config"].d
    X, y, E, colors = example(c)
    (f,), (_, (z_query,), _, (P,), _) = sts.forward(W, V, X, y, E)
    figure, axes = plt.subplot_mosaic("ZqW;P.V;P.f", figsize=(8, 6.5), width_ratios=[9, 1, 8],
                                      height_ratios=[6, 1.2, 4.2])
    for name, part, row, column in (("Z", np.column_stack([X[0], E]).T, d, -1),
                                    ("q", z_query[:, None], d, -1), ("W", W, d, d), ("V", V, 0, d)):
        heat_map(axes[name], part, row, column)
        for (i, j), x in np.ndenumerate(part / abs(part).max()):
            if abs(x) > 0.1:                                    # signs, for grey print
                axes[name].text(j, i, "+" if x > 0 else "−", ha="center", va="center",
                                fontsize=10, color="w" if abs(x) > 0.5 else "k")
    for name, rows in ("Z", ("$x_j$", "$e_j$")), ("q", ("0", "$U$")):
        axes[name].set_yticks([(d - 1) / 2, d + (c.d_e - 1) / 2], rows)
    for j in y[0]:
        axes["Z"].axvspan(j - 0.5, j + 0.5, fill=False, color=SELECTED, linewidth=3, clip_on=False)
    axes["P"].bar(range(c.T), P, color=colors)
    plt.setp((axes["Z"], axes["P"]), xticks=sorted(y[0]), xlim=(-0.5, c.T - 0.5))
    places = np.arange(1, d + 1)
    axes["f"].bar(places - 0.2, f, 0.4, color=OUTPUT, label="output")
    axes["f"].bar(places + 0.2, sts.sts_target(X, y)[0], 0.4, color=THEORY, label="target")
    axes["f"].set(xticks=places, ylim=(None, 2 * f.max()))
    axes["f"].legend(loc="upper left")
    for name, title in (
            ("Z", "1. keys Z"), ("q", "query"), ("W", "2. W compares encodings"),
            ("P", f"3. attention: {P[y[0]].sum():.0%} on selected"), ("V", "4. V copies tokens")):
        axes[name].set_title(title)
    plots.caption(figure, "Blue: selected. +, red: above 0. −, grey: below 0. After "
                  f"{c.steps} steps with orthonormal encodings, T = {c.T}, d = {d}, "
                  f"$d_e$ = {c.d_e}.")
    figure.suptitle(r"$f = V Z\ \mathrm{softmax}(Z^T W z_{query})$: W compares, V copies")
    return figure


def movie(states):
    """Attention on one sequence, W, V, the error and both diagonals: yields each frame's figure."""
    c, t = states[0]["config"], np.array([state["t"] for state in states])
    zero = c.d / (2 * c.q)                                              # the loss of f = 0
    X, y, E, colors = example(c)
    size, means = c.d + SHOWN, np.array([multiples(state) for state in states])
    error = [part.mean() / zero for part in np.split(states[-1]["loss"][:t[-1]], t[1:-1])]
    figure = plt.figure(figsize=(8, 6.6), dpi=105)
    title = figure.suptitle("")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.9])
    left = grid[0].subgridspec(2, 1, height_ratios=[size, c.d]).subplots()
    top, middle, bottom = grid[1].subgridspec(3, 1).subplots()
    images, bars = [], top.bar(range(c.T), np.zeros(c.T), color=colors)
    plots.dotted_line(top, 1 / c.q, "1/q")
    top.set(xlim=(-0.5, c.T - 0.5), ylim=(0, 1.3 / c.q), ylabel="weight $P_j$",
            title=f"attention (blue: {c.q} selected of {c.T} tokens)")
    scale = SymLogNorm(0.1, vmin=-15, vmax=15)                      # as in Figure 3
    for axis, name in zip(left, "WV"):
        part = states[0][name][:size, :size]
        images.append(heat_map(axis, part, c.d if name == "W" else 0, c.d, scale))
        axis.set_title(f"{name}: tokens, encodings")
    curve, = middle.plot([], [], color=THEORY)
    plots.dotted_line(middle, 1)
    middle.set(title="error in training", ylim=(0, 1.4))
    middle.yaxis.set_major_formatter(plots.PercentFormatter(1))
    lines = bottom.plot([], [], "-", [], [], "--", color=THEORY)
    bottom.legend(lines, ["a, in W", "α, in V"], loc="upper left")
    bottom.set(title="means of the diagonals", xlabel="step t", ylim=(0, 1.5 * means.max()))
    plt.setp((middle, bottom), xlim=(0, t[-1]), xticks=np.linspace(0, t[-1], 6))
    plots.caption(figure, f"Stochastic orthonormal encodings, {SHOWN} of {c.d_e} coordinates. "
                  "Red: above 0, on one scale in W and V.")

    for k, state in enumerate(states):
        for bar, weight in zip(bars, sts.attention(state["W"], X, y, E)[0]):
            bar.set_height(weight)
        for image, name in zip(images, "WV"):
            image.set_data(state[name][:size, :size])
        curve.set_data((t[:k] + t[1:k + 1]) / 2, error[:k])
        for line, values in zip(lines, means.T):
            line.set_data(t[:k + 1], values[:k + 1])
        title.set_text(f"Learning to select tokens: step {t[k]}")
        figure.canvas.draw()
        figure.set_layout_engine("none")        # the first frame's layout is that of all
        yield figure


def class_run(states):
    """a in the class run, and in five simpler processes: who made it so much faster than step 2?

    Prints the first step at which a has the value that leaves half of d/(2q), with the best alpha.
    The two paces are those of a at a = 0, with alpha = lr/T as in step 2, and with alpha = 1.  Then
    a grows by its slope, with V held at alpha = 1, and with alpha always at its best for a.
    """
    c = states[0]["config"]
    others, sizes, task = c.T - c.q, (c.T, c.d, c.q), (c.T, c.d, c.q, c.lr, c.d_e)
    half, steps, a = np.log(others / c.q) / 2, np.arange(c.steps + 1), np.linspace(0, 2, 300)
    pace = c.lr * c.d * others / (c.T ** 2 * c.d_e)         # what a step adds to a, at alpha = 1
    held = descend(c.lr, c.steps, c.d_e, *sizes, lambda a, _, *sizes: slopes(a, 1, *sizes))
    figure, axis = plt.subplots(figsize=(8, 7))
    for x, y, name, color, style in (
            (steps * c.T / c.lr, pace * steps, "the pace of step 2", "#D55E00", ":"),
            (steps, pace * steps, "V copies", "#D55E00", "-."),
            (steps, held[1], "attention grows, V is held", "#D55E00", "--"),
            (flow_steps(others / (c.q * np.exp(2 * a) + others), *task), a,
             "V grows, too: formula", THEORY, "--"),
            (steps, descend(c.lr, c.steps, c.d_e, *sizes)[1], "V lags: recursion", THEORY, "-"),
            (states[0]["eval_step"], [multiples(state)[0] for state in states], "noise: the run",
             SELECTED, "-")):
        step, k = np.ceil(np.interp(half, y, x)), np.searchsorted(y, half)
        axis.plot([*x[:k], step], [*y[:k], half], style, color=color,
                  linewidth=2 if color == THEORY else 4, label=f"{step:,.0f}  {name}")
        print(f"a = {half:.2f} at step {step:5.0f}: {name}")
    plots.dotted_line(axis, half, f"{half:.2f}: half of the loss is left, at the best α")
    axis.set(xlabel="step t", ylabel="a, the one number of W", xlim=(0, 0.4 * c.steps),
             ylim=(0, 1.8 * half), yticks=[0, 0.5, 1, round(half, 2)])
    axis.legend(title=f"a = {half:.2f} at step", loc="upper center", handlelength=4)
    plots.caption(figure, "Stochastic orthonormal encodings.", c)
    figure.suptitle("Who made it so fast? V, then a and V together")
    return figure


def make():
    """Train on the two small tasks, and draw all three."""
    folder, states = plots.HERE / "figures", []
    train.train(lambda run: states.append(dict(run)), **CLASS)
    plots.save(class_run(states), plots.HERE / "beyond" / "teach" / "figures" / "class.png")
    plots.save(model(train.train(**TASK)), folder / "model.png")
    frames = [Image.fromarray(np.array(figure.canvas.buffer_rgba())).convert("RGB")
              for figure in movie(states[:51])]         # the first half of the run
    pauses = [1500, 1000, *[350] * 25, *[150] * 24, 1500]       # milliseconds; it begins with the
    frames[-1].save(folder / "movie.gif", save_all=True, append_images=frames,      # last frame, as
                    duration=pauses, loop=0)                        # a page may show the first only


if __name__ == "__main__":
    main(__doc__, make)
