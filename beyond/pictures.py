"""Draw the model, the class run over the recursion, and its movie:  python beyond/pictures.py"""

from common import multiples        # first: it finds plots.py, and gives NumPy one thread
import plots

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from PIL import Image

import sts
import train
from plateau import flow_steps
from plots import THEORY
from two_numbers import count_steps, descend

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
    """The model on one sequence: each part of f = V Z softmax(Z^T W z_query), with its shape."""
    c, W, d = run["config"], run["W"], run["config"].d
    X, y, E, colors = example(c)
    (f,), (V, (z_query,), _, (P,), (z,)) = sts.forward(W, run["V"], X, y, E)
    Z, Wz = np.column_stack([X[0], E]).T, W @ z_query       # (d + d_e, T), (d + d_e)
    figure, axes = plt.subplots(2, 5, figsize=(10, 7.6), width_ratios=[5, 1, 4, 1, 5])
    (keys, query, weights, product, logits), (output, empty, values, read, attention) = axes
    empty.set_axis_off()

    for axis, part, line in ((keys, Z, 0), (query, z_query[:, None], 0), (weights, W, d),
                             (product, Wz[:, None], 0), (read, z[:, None], 0)):
        heat_map(axis, part, d, line)
    heat_map(values, V, 0, d)
    values.set_aspect("equal")
    for axis, names in (keys, ["$x_j$", "$e_j$"]), (query, ["0", "$U$"]):
        axis.set_yticks([(d - 1) / 2, d + (c.d_e - 1) / 2], names)
    for j in y[0]:
        keys.axvspan(j - 0.5, j + 0.5, fill=False, color=SELECTED, linewidth=3, clip_on=False)
    for axis, heights in (logits, Z.T @ Wz), (attention, P):
        axis.bar(range(c.T), heights, color=colors)
        axis.set(xlim=(-0.5, c.T - 0.5))
    plt.setp((keys, logits, attention), xticks=sorted(y[0]))
    places = np.arange(1, d + 1)
    output.bar(places - 0.2, f, 0.4, color=OUTPUT, label="output")
    output.bar(places + 0.2, sts.sts_target(X, y)[0], 0.4, color=THEORY, label="target")
    output.set(xticks=places, ylim=(None, 2 * f.max()))
    output.legend(loc="upper left")
    for axis, title, shape in (
            (keys, "keys $Z$", "$(d + d_e) × T$"), (query, "$z_{query}$", "$d + d_e$"),
            (weights, "$W$ compares\nencodings", "$(d + d_e) × (d + d_e)$"),
            (product, "$W z_{query}$", "$d + d_e$"),
            (logits, "logits\n$A = Z^T W z_{query}$", "$T$\n↓ softmax"),
            (attention, f"attention $P$: {P[y[0]].sum():.2f}\non selected tokens", "$T$"),
            (read, "$z = Z P$", "$d + d_e$"), (values, "$V$ copies\ntokens", "$d × (d + d_e)$"),
            (output, "output $f = V z$", "$d$")):
        axis.set(title=title, xlabel=shape)
    for axis, x, text in ((query, 1.6, "→"), (weights, 1.16, "→"), (logits, -0.28, "$Z^T$\n→"),
                          (attention, -0.3, "$Z$\n←"), (read, -0.6, "←"), (values, -0.1, "←")):
        axis.text(x, 0.5, text, transform=axis.transAxes, fontsize=20, ha="center", va="center")
    figure.suptitle(r"$f \;=\; V\; Z\; \mathrm{softmax}(Z^T\, W\, z_{query})$", fontsize=24)
    U = " + ".join(f"$e_{{{j}}}$" for j in sorted(y[0]))
    plots.caption(figure, f"After {c.steps} steps with orthonormal encodings, T = {c.T}, d = {d}, "
                  f"$d_e$ = {c.d_e}. Blue: selected, $U$ = {U}. Red: above 0.")
    return figure


def movie(states):
    """Attention on one sequence, W, V, the loss and both diagonals: yields each frame's figure."""
    c, t = states[0]["config"], states[0]["eval_step"]
    X, y, E, colors = example(c)
    size, means = c.d + SHOWN, np.array([multiples(state) for state in states])
    loss = [part.mean() for part in np.split(states[-1]["loss"], t[1:-1])]
    figure = plt.figure(figsize=(10, 7), dpi=84)
    title = figure.suptitle("")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.9])
    left = grid[0].subgridspec(2, 1, height_ratios=[size, c.d]).subplots()
    top, middle, bottom = grid[1].subgridspec(3, 1).subplots()
    images, bars = [], top.bar(range(c.T), np.zeros(c.T), color=colors)
    plots.dotted_line(top, 1 / c.q, "1/q")
    top.set(xlim=(-0.5, c.T - 0.5), ylim=(0, 1.3 / c.q), ylabel="weight $P_j$",
            title=f"attention on T = {c.T} tokens, q = {c.q} are selected (blue)")
    scale = SymLogNorm(0.1, vmin=-15, vmax=15)                      # as in Figure 3
    for axis, name in zip(left, "WV"):
        part = states[0][name][:size, :size]
        images.append(heat_map(axis, part, c.d if name == "W" else 0, c.d, scale))
        axis.set_title(f"{name}: tokens | encodings")
    curve, = middle.plot([], [], color=THEORY)
    plots.dotted_line(middle, c.d / (2 * c.q))
    middle.set(title="training loss: a plateau comes first", ylim=(0, 1.4 * c.d / (2 * c.q)))
    lines = bottom.plot([], [], "-", [], [], "--", color=THEORY)
    bottom.legend(lines, ["W, on encodings", "V, on tokens"], loc="upper left")
    bottom.set(title="means of the diagonals", xlabel="step t", ylim=(0, 1.25 * means.max()))
    plt.setp((middle, bottom), xlim=(0, c.steps), xticks=np.linspace(0, c.steps, 5))
    plots.caption(figure, "Stochastic orthonormal encodings, W = V = 0 at the start. Red: above 0, "
                  f"on one scale in W and V. {SHOWN} of {c.d_e} encoding coordinates are shown.")

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
    """The loss of the class run over the recursion; prints where half of d/(2q) is left."""
    c, (t, L) = run["config"], plots.smooth_loss(run)
    zero, task = c.d / (2 * c.q), (c.T, c.d, c.q, c.lr, c.d_e)
    figure, axis = plt.subplots(figsize=(10, 6))
    axis.plot(t, L / zero, color=SELECTED, linewidth=4, label="run")
    exact = descend(c.lr, c.steps, c.d_e, c.T, c.d, c.q)[0]
    axis.plot(exact / zero, "--", color=THEORY, label="recursion: no noise of batches")
    for name, step in (("formula", flow_steps(0.5, *task)), ("recursion", count_steps(0.5, *task)),
                       ("run", np.interp(-zero / 2, -np.minimum.accumulate(L), t))):
        print(f"Half of d/(2q) is left at step {step:.0f}: {name}")
        axis.axvline(step, color=THEORY, linewidth=1)
        axis.text(step, 0.02, f"{name}: {step:.0f}", rotation=90, ha="right", va="bottom")
    plots.dotted_line(axis, 0.5, "half of d/(2q)")
    axis.set(xlabel="step t", ylabel="training loss over d/(2q)", xlim=(0, c.steps), ylim=(0, 1))
    axis.legend()
    plots.caption(figure, "Stochastic orthonormal encodings.", c)
    return figure


def make():
    """Train on the two small tasks, and draw all three."""
    folder, states = plots.HERE / "figures", []
    run = train.train(lambda run: states.append(dict(run)), **CLASS)
    plots.picture(lambda: class_run(run), plots.HERE / "beyond" / "figures" / "class.png",
                  "The class run follows two numbers, a little late")
    with plt.rc_context(plots.STYLE):
        model(train.train(**TASK)).savefig(folder / "model.png")
        frames = [Image.fromarray(np.array(figure.canvas.buffer_rgba())).convert("RGB")
                  for figure in movie(states)]
    pauses = [1500, 1000, *[125] * (len(frames) - 2), 1500]     # milliseconds; it begins with the
    frames[-1].save(folder / "movie.gif", save_all=True, append_images=frames,      # last frame, as
                    duration=pauses, loop=0)                        # a page may show the first only


if __name__ == "__main__":
    make()
