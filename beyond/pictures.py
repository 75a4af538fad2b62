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
from two_numbers import count_steps, descend, slopes

# Entries of matrices are red above 0, as in Figure 3, and grey below 0.
SELECTED, UNSELECTED, OUTPUT, ENTRIES = "#0072B2", "#BBBBBB", "#009E73", "RdGy_r"
SHOWN = 12                              # the coordinates of encodings that the movie shows
CLASS = {"T": 50, "d_e": 100, "law": "orthonormal", "lr": 1.0, "steps": 2000, "fresh": True,
         "evaluations": 50, "T_test": [], "q_test": []}
TASK = CLASS | {"T": 20, "d": 3, "d_e": 20, "evaluations": 1}           # of the drawing


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
    plots.caption(figure, f"Blue: selected. Red: above 0. After {c.steps} steps with orthonormal "
                  f"encodings, T = {c.T}, d = {d}, $d_e$ = {c.d_e}.")
    figure.suptitle(r"$f = V Z\ \mathrm{softmax}(Z^T W z_{query})$: W compares, V copies")
    return figure


def movie(states):
    """Attention on one sequence, W, V, the loss and both diagonals: yields each frame's figure."""
    c, t = states[0]["config"], states[0]["eval_step"]
    X, y, E, colors = example(c)
    size, means = c.d + SHOWN, np.array([multiples(state) for state in states])
    loss = [part.mean() for part in np.split(states[-1]["loss"], t[1:-1])]
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
    plots.dotted_line(middle, c.d / (2 * c.q))
    middle.set(title="training loss", ylim=(0, 1.4 * c.d / (2 * c.q)))
    lines = bottom.plot([], [], "-", [], [], "--", color=THEORY)
    bottom.legend(lines, ["a, in W", "α, in V"], loc="upper left")
    bottom.set(title="means of the diagonals", xlabel="step t", ylim=(0, 1.25 * means.max()))
    plt.setp((middle, bottom), xlim=(0, c.steps), xticks=np.linspace(0, c.steps, 5))
    plots.caption(figure, f"Stochastic orthonormal encodings, {SHOWN} of {c.d_e} coordinates. "
                  "Red: above 0, on one scale in W and V.")

    for k, state in enumerate(states):
        for bar, weight in zip(bars, sts.attention(state["W"], X, y, E)[0]):
            bar.set_height(weight)
        for image, name in zip(images, "WV"):
            image.set_data(state[name][:size, :size])
        curve.set_data((t[:k] + t[1:k + 1]) / 2, loss[:k])
        for line, values in zip(lines, means.T):
            line.set_data(t[:k + 1], values[:k + 1])
        title.set_text(f"Learning to select tokens: step {t[k]}")
        figure.canvas.draw()
        figure.set_layout_engine("none")        # the first frame's layout is that of all
        yield figure


def class_run(run):
    """The loss of the class run, and who makes it fall faster than at the pace of step 2.

    Prints when half of d/(2q) is left.  The paces are those of a at a = 0, with alpha = lr/T as in
    step 2, and with alpha = 1; then a grows by its slope at alpha = 1, and at the best alpha.  The
    losses of these four are those of the best alpha for a.
    """
    c, (t, L) = run["config"], plots.smooth_loss(run)
    zero, others, task = c.d / (2 * c.q), c.T - c.q, (c.T, c.d, c.q, c.lr, c.d_e)
    sizes, steps = (c.lr, c.steps, c.d_e, c.T, c.d, c.q), np.arange(c.steps + 1)
    pace = c.lr * c.d * others / (c.T ** 2 * c.d_e)         # what a step adds to a, at alpha = 1
    held = descend(*sizes, lambda a, _, *task: slopes(a, 1, *task))[1]
    least, half = np.linspace(others / c.T, 0.01, 200), np.log(others / c.q) / 2

    def share(a):                                               # of d/(2q), at the best alpha
        return others / (c.q * np.exp(2 * a) + others)

    figure, axis = plt.subplots(figsize=(8, 7))
    for x, y, step, name, color, style in (
            (steps, share(pace * c.lr / c.T * steps), half / (pace * c.lr / c.T), "pace of step 2",
             "#D55E00", ":"),
            (steps, share(pace * steps), half / pace, "V copies", "#D55E00", "-."),
            (steps, share(held), np.argmax(held > half), "attention grows, V is held",
             "#D55E00", "--"),
            (flow_steps(least, *task), least, flow_steps(0.5, *task), "V grows, too: formula",
             THEORY, "--"),
            (steps, descend(*sizes)[0] / zero, count_steps(0.5, *task), "V lags: recursion",
             THEORY, "-"),
            (t, L / zero, np.interp(-zero / 2, -np.minimum.accumulate(L), t), "noise: the run",
             SELECTED, "-")):
        axis.plot(x, y, style, color=color, linewidth=2 if color == THEORY else 4,
                  label=f"{step:,.0f}  {name}")
        print(f"Half of d/(2q) is left at step {step:5.0f}: {name}")
    plots.dotted_line(axis, 0.5, "half of d/(2q)")
    axis.set(xlabel="step t", ylabel="loss over d/(2q)", xlim=(0, c.steps), ylim=(0, 1.7),
             yticks=np.linspace(0, 1, 6))
    axis.legend(title="half of d/(2q) is left at step", loc="upper center")
    plots.caption(figure, "Stochastic orthonormal encodings.", c)
    figure.suptitle("Who made it 90 times as fast? V, then a and V together")
    return figure


def make():
    """Train on the two small tasks, and draw all three."""
    folder, states = plots.HERE / "figures", []
    run = train.train(lambda run: states.append(dict(run)), **CLASS)
    plots.save(class_run(run), plots.HERE / "beyond" / "figures" / "class.png")
    plots.save(model(train.train(**TASK)), folder / "model.png")
    frames = [Image.fromarray(np.array(figure.canvas.buffer_rgba())).convert("RGB")
              for figure in movie(states)]
    pauses = [1500, 1000, *[125] * (len(frames) - 2), 1500]     # milliseconds; it begins with the
    frames[-1].save(folder / "movie.gif", save_all=True, append_images=frames,      # last frame, as
                    duration=pauses, loop=0)                        # a page may show the first only


if __name__ == "__main__":
    main(__doc__, make)
