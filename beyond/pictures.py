"""A picture of the model, and a movie, into figures/:  python beyond/pictures.py"""

import common       # first: it finds plots.py, and gives NumPy one thread
import plots

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from PIL import Image

import sts
import train
from plots import THEORY

# A color means one thing: a selected position, another one, the output, the target (THEORY).
# Entries of matrices are red above 0, as in Figure 3, and grey below 0.
SELECTED, UNSELECTED, OUTPUT, ENTRIES = "#0072B2", "#BBBBBB", "#009E73", "RdGy_r"
SHOWN = 12                              # the coordinates of encodings that are shown
TASK = {"T": 20, "d": 3, "q": 2, "d_e": 60, "lr": 1.0, "steps": 9600, "evaluations": 1,
        "T_test": [], "q_test": []}
MOVIE = TASK | {"T": 50, "d_e": 100, "lr": 2.0, "steps": 2000, "fresh": True, "evaluations": 50}


def example(c):
    """One sequence and one draw of encodings: X, y, E, and a color for each position."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c.T, c.d, c.q)
    E = sts.positional_encoding(c.law, c.T, c.d_e, rng)
    return X, y, E, [SELECTED if j in y[0] else UNSELECTED for j in range(c.T)]


def diagonals(run):
    """The mean of W's diagonal on encodings, and of V's diagonal on tokens."""
    return run["W"].diagonal()[run["config"].d:].mean(), run["V"].diagonal().mean()


def heat_map(axis, matrix, norm, d=0):
    """A heat map of entries, with a line after d columns; returns its image."""
    axis.set(xticks=[], yticks=[])
    axis.axvline(d - 0.5, color="k", linewidth=1)
    axis.grid(False)
    return axis.imshow(matrix, cmap=ENTRIES, norm=norm, interpolation="nearest", aspect="auto")


def model(run):
    """The model on one sequence: each part of f = V Z softmax(Z^T W z_query), with its shape.

    Encodings are shown sqrt(d_e) times as large: then their entries are 1 or -1.
    """
    c, (X, y, E, colors) = run["config"], example(run["config"])
    W, V, d, rows, width = run["W"], run["V"], c.d, c.d + SHOWN, c.d + c.d_e
    (f,), (_, (z_query,), _, (P,), (z,)) = sts.forward(W, V, X, y, E)
    Z, Wz = np.column_stack([X[0], E]).T, W @ z_query       # (d + d_e, T), (d + d_e)
    scale = np.where(np.arange(rows) < d, 1, np.sqrt(c.d_e))[:, None]
    figure, axes = plt.subplots(2, 5, figsize=(10, 7.6), width_ratios=[5, 1, 4, 1, 5])
    (keys, query, weights, product, logits), (output, empty, values, read, attention) = axes
    empty.set_axis_off()

    def column(axis, matrix, limit=2.5, line=0):
        """A matrix with d token entries in each column, and below a line the encoding."""
        heat_map(axis, matrix, Normalize(-limit, limit), line)
        axis.axhline(d - 0.5, color="k", linewidth=1)

    column(keys, Z[:rows] * scale)
    keys.set_yticks([(d - 1) / 2, d + (SHOWN - 1) / 2], ["$x_j$", "$e_j$"])
    for j in y[0]:
        keys.add_patch(plt.Rectangle((j - 0.5, -0.5), 1, rows, fill=False, color=SELECTED,
                                     linewidth=3, clip_on=False))
    column(query, z_query[:rows, None] * scale)
    query.set_yticks([(d - 1) / 2, d + (SHOWN - 1) / 2], ["0", "$U$"])
    column(weights, W[:rows, :rows], abs(W).max(), d)
    column(product, Wz[:rows, None] * scale, abs(Wz).max() * np.sqrt(c.d_e))
    column(read, z[:rows, None] * scale)
    heat_map(values, V[:, :rows], Normalize(-abs(V).max(), abs(V).max()), d)
    values.set_aspect("equal")
    for axis, heights in (logits, Z.T @ Wz), (attention, P):
        axis.bar(range(c.T), heights, color=colors)
        axis.set(xlim=(-0.5, c.T - 0.5))
    plt.setp((keys, logits, attention), xticks=sorted(y[0]))
    for shift, name, vector, color in ((-0.2, "output", f, OUTPUT),
                                       (0.2, "target", sts.sts_target(X, y)[0], THEORY)):
        output.bar(np.arange(1, d + 1) + shift, vector, 0.4, color=color, label=name)
    output.set(xticks=range(1, d + 1), ylim=(None, 2 * f.max()))
    output.legend(loc="upper left")
    for axis, title, shape in (
            (keys, "keys $Z$", f"$(d + d_e) × T$\n= {width} × {c.T}"),
            (query, "$z_{query}$", f"$d + d_e$\n= {width}"),
            (weights, "$W$ compares\nencodings",
             f"$(d + d_e) × (d + d_e)$\n= {width} × {width}"),
            (product, "$W z_{query}$", f"$d + d_e$\n= {width}"),
            (logits, "logits\n$A = Z^T W z_{query}$", f"T = {c.T}"),
            (attention, f"attention $P$: {P[y[0]].sum():.2f}\non selected tokens", f"T = {c.T}"),
            (read, "$z = Z P$", f"$d + d_e$\n= {width}"),
            (values, "$V$ copies\ntokens", f"$d × (d + d_e)$\n= {d} × {width}"),
            (output, "output $f = V z$", f"d = {d}")):
        axis.set(title=title, xlabel=shape)
    for axis, end, shift, text, ha, va in (         # the way from the query to the output
            (query, (1, 0.5), (4, 0), "→", "left", "center"),
            (weights, (1, 0.5), (4, 0), "→", "left", "center"),
            (logits, (0, 0.5), (-30, 0), "$Z^T$\n→", "right", "center"),
            (logits, (0.5, 0), (0, -42), "↓ softmax", "center", "top"),
            (attention, (0, 0.5), (-40, 0), "$Z$\n←", "right", "center"),
            (read, (0, 0.5), (-4, 0), "←", "right", "center"),
            (values, (0, 0.5), (-4, 0), "←", "right", "center")):
        axis.annotate(text, end, shift, "axes fraction", "offset points", fontsize=20, ha=ha,
                      va=va, multialignment="center")
    figure.suptitle(r"$f \;=\; V\; Z\; \mathrm{softmax}(Z^T\, W\, z_{query})$", fontsize=24)
    U = " + ".join(f"$e_{{{j}}}$" for j in sorted(y[0]))
    plots.caption(figure, f"After {c.steps} steps. Selected positions are blue; as q = {c.q}, "
                  f"their logits are equal. $U$ = {U}. Red is above 0, each part has a scale. "
                  f"{SHOWN} of {c.d_e} encoding coordinates are shown.")
    return figure


def movie(states):
    """Attention on one sequence, W, V, the loss and both diagonals: yields each frame's figure."""
    c, t = states[0]["config"], states[0]["eval_step"]
    X, y, E, colors = example(c)
    size, means = c.d + SHOWN, np.array([diagonals(state) for state in states])
    loss = [part.mean() for part in np.split(states[-1]["loss"], t[1:-1])]
    figure = plt.figure(figsize=(10, 7), dpi=84)
    title = figure.suptitle("")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.9])
    left = grid[0].subgridspec(2, 1, height_ratios=[size, c.d]).subplots()
    top, middle, bottom = grid[1].subgridspec(3, 1).subplots()
    bars = top.bar(range(c.T), np.zeros(c.T), color=colors)
    top.axhline(1 / c.q, color=THEORY, linestyle=":")
    top.text(0, 1 / c.q, "1/q", color=THEORY, va="bottom")
    top.set(xlim=(-0.5, c.T - 0.5), ylim=(0, 1.3 / c.q), ylabel="weight $P_j$",
            title=f"attention on T = {c.T} tokens, q = {c.q} are selected (blue)")
    scale = SymLogNorm(0.1, vmin=-15, vmax=15)                      # as in Figure 3
    images = []
    for axis, name in zip(left, "WV"):
        images.append(heat_map(axis, states[0][name][:size, :size], scale, c.d))
        axis.set_title(f"{name}: tokens | encodings")
    curve, = middle.plot([], [], color=THEORY)
    plots.dotted_line(middle, c.d / (2 * c.q))
    middle.set(title="training loss: a plateau comes first", ylim=(0, 1.4 * c.d / (2 * c.q)))
    lines = [bottom.plot([], [], style, color=THEORY, label=text)[0]
             for style, text in (("-", "W, on encodings"), ("--", "V, on tokens"))]
    bottom.legend(loc="upper left")
    bottom.set(title="means of the diagonals", xlabel="step t", ylim=(0, 1.25 * means.max()))
    plt.setp((middle, bottom), xlim=(0, c.steps), xticks=np.linspace(0, c.steps, 5))
    plots.caption(figure, "Stochastic encodings, fresh sequences, W = V = 0. Red: entries above "
                  f"0, on one scale in W and V. {SHOWN} of {c.d_e} encoding coordinates are shown.")

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


def make():
    """Train on the two small tasks, and draw both."""
    folder, states = plots.HERE / "figures", []
    train.train(lambda run: states.append(dict(run)), **MOVIE)
    with plt.rc_context(plots.STYLE):
        model(train.train(**TASK)).savefig(folder / "model.png")
        frames = [Image.fromarray(np.array(figure.canvas.buffer_rgba())).convert("RGB")
                  for figure in movie(states)]
    pauses = [1500, 1000, *[125] * (len(frames) - 2), 1500]     # milliseconds; it begins with the
    frames[-1].save(folder / "movie.gif", save_all=True, append_images=frames,      # last frame, as
                    duration=pauses, loop=0)                        # a page may show the first only


if __name__ == "__main__":
    make()
