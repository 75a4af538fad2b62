"""Pictures of the task and of the model, and a movie of training:  python beyond/pictures.py

All show one run on a small task, and are drawn into figures/.  With --format svg or pdf there are
the two pictures, without the movie.  It takes some ten seconds, and without the movie five.
"""

import claims       # first: it finds the other files, and sets the number of threads

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import plots
import sts
import train
from plots import THEORY

# A color means one thing: a selected position, another one, the output, the target (THEORY), and
# entries of matrices, which are brown below 0 and green above 0.
SELECTED, UNSELECTED, OUTPUT, ENTRIES = "#0072B2", "#BBBBBB", "#CC3377", "BrBG"
SHOWN = 12                              # the coordinates of encodings that are drawn
FRAMES = 50                             # of the movie, after its first one


def trained(steps=9600, evaluations=400):
    """A run on a small task, and its weights (t, W, V) at each evaluation."""
    run = train.start(train.configuration(
        T=20, d=3, q=2, d_e=60, batch=256, lr=1, steps=steps,
        evaluations=evaluations, T_test=[], q_test=[]))
    states = [(0, run["W"], run["V"])]
    train.descend(run, lambda run: states.append((run["t"], run["W"], run["V"])))
    return run, states


def example(c):
    """One sequence and one draw of encodings: X, y, E, and a color for each position."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c.T, c.d, c.q)
    E = sts.positional_encoding(c.law, c.T, c.d_e, rng)
    return X, y, E, [SELECTED if j in y[0] else UNSELECTED for j in range(c.T)]


def diagonals(c, W, V):
    """The mean of W's diagonal on encodings, and of V's diagonal on tokens."""
    return W.diagonal()[c.d:].mean(), V.diagonal().mean()


def show_attention(axis, c, P, colors):
    """Bars for the attention on each token, and a dotted line at 1/q; returns the bars."""
    axis.axhline(1 / c.q, color=THEORY, linestyle=":")
    axis.text(c.T - 0.5, 1 / c.q, "1/q", color=THEORY, ha="right", va="bottom")
    axis.set(xlim=(-0.5, c.T - 0.5), ylim=(0, 1.25 / c.q), ylabel="weight $P_j$",
             xticks=range(c.T))
    return axis.bar(range(c.T), P, color=colors)


def heat_map(axis, matrix, limit, d=0):
    """A heat map of entries from -limit to limit, and a line after d columns; returns its image."""
    axis.set(xticks=[], yticks=[])
    axis.axvline(d - 0.5, color="k", linewidth=1)
    axis.grid(False)
    return axis.imshow(matrix, cmap=ENTRIES, vmin=-limit, vmax=limit, interpolation="nearest")


def frame_selected(axis, y, height):
    """A blue frame for each selected column of a heat map."""
    for j in y[0]:
        axis.add_patch(plt.Rectangle((j - 0.5, -0.5), 1, height, fill=False, color=SELECTED,
                                     linewidth=3, clip_on=False))


def task(run, states):
    """The task and its solution: a sequence, attention before and after training, the output."""
    c = run["config"]
    X, y, E, colors = example(c)
    figure, axes = plt.subplots(3, 2, figsize=(14, 8.6), width_ratios=[2.6, 1])
    figure.get_layout_engine().set(h_pad=0.12)
    tokens = axes[0, 0]
    image = heat_map(tokens, X[0].T, 2.5)
    figure.colorbar(image, ax=tokens, label="entry of $x_j$", ticks=[-2, 0, 2])
    frame_selected(tokens, y, c.d)
    tokens.set(title=f"T = {c.T} tokens $x_j$ in $R^{c.d}$; q = {c.q} of them are selected (blue)",
               xticks=range(c.T), yticks=range(c.d), yticklabels=range(1, c.d + 1),
               ylabel="coordinate", aspect="auto")
    outputs = [("target", sts.sts_target(X, y)[0], THEORY)]
    for axis, (t, W, V) in zip(axes[1:, 0], (states[0], states[-1])):
        when, P = f"after {t} steps" if t else "before training", sts.attention(W, X, y, E)[0]
        show_attention(axis, c, P, colors)
        axis.set_title(f"attention {when}")
        outputs.append((f"output {when}", sts.forward(W, V, X, y, E)[0][0], OUTPUT))
    axis.set_xlabel("position j")
    limit = 1.4 * abs(outputs[0][1]).max()
    for axis, (name, vector, color) in zip(axes[:, 1], outputs):
        axis.barh(range(c.d), vector, color=color)
        axis.set(title=name, xlim=(-limit, limit), ylim=(c.d - 0.5, -0.5), yticks=range(c.d),
                 yticklabels=range(1, c.d + 1), ylabel="coordinate")
        if abs(vector).max() < 0.02 * limit:
            axis.text(0.04 * limit, (c.d - 1) / 2, "0", color=color, va="center")
    axis.set_xlabel("value")
    figure.suptitle("Sparse token selection: output the mean of the selected tokens")
    plots.caption(figure, f"The trained V makes tokens {diagonals(c, W, V)[1]:.2f} times as large, "
                  f"since in the mean over sequences {run['on_selected'][-1]:.2f} of the attention "
                  "is on selected tokens.")
    return figure


def model(run):
    """The model on one sequence: each part of f = V Z softmax(Z^T W z_query), with its shape.

    Encodings are drawn sqrt(d_e) times as large: then their entries are 1 or -1.
    """
    c, (X, y, E, colors) = run["config"], example(run["config"])
    W, V, d, rows, width = run["W"], run["V"], c.d, c.d + SHOWN, c.d + c.d_e
    (f,), (_, (z_query,), _, (P,), (z,)) = sts.forward(W, V, X, y, E)
    Z, Wz = np.column_stack([X[0], E]).T, W @ z_query       # (d + d_e, T), (d + d_e)
    scale = np.where(np.arange(rows) < d, 1, np.sqrt(c.d_e))[:, None]
    on_W, on_V = diagonals(c, W, V)

    figure = plt.figure(figsize=(14, 8.6))
    figure.get_layout_engine().set(h_pad=0.12)
    left, right = figure.add_gridspec(1, 2, width_ratios=[1, 2.8])
    upper, lower = right.subgridspec(2, 1)
    keys = figure.add_subplot(left)
    query, weights, product, logits = upper.subgridspec(1, 4, width_ratios=[1, 7, 1, 10]).subplots()
    output, values, read, attention = lower.subgridspec(1, 4, width_ratios=[6, 7, 1, 10]).subplots()

    def columns(axis, matrix, title, shape, limit=2.5, names=(), line=0):
        """A matrix with d token entries in each column, and below a line the encoding."""
        heat_map(axis, matrix, limit, line)
        axis.set(title=title, xlabel=shape, aspect="auto")
        axis.axhline(d - 0.5, color="k", linewidth=1)
        axis.set_yticks([(d - 1) / 2, d + (SHOWN - 1) / 2][:len(names)], names)

    columns(keys, Z[:rows] * scale, "keys $Z$: column $j$ is\n$z_j = (x_j, e_j)$",
            f"$(d + d_e) × T$ = {width} × {c.T}", names=["$x_j$", "$e_j$"])
    frame_selected(keys, y, rows)
    keys.set_xticks(sorted(y[0]))
    for axis, vector, title, limit, names in (
            (query, z_query, "query\n$z_{query}$", 2.5, ["0", "$U$"]),
            (product, Wz, "$W z_{query}$", abs(Wz).max() * np.sqrt(c.d_e), []),
            (read, z, "$z = Z P$", 2.5, [])):
        columns(axis, vector[:rows, None] * scale, title, f"$d + d_e$\n= {width}", limit, names)
    columns(weights, W[:rows, :rows],
            f"$W$ compares encodings\n(mean of its diagonal: {on_W:.2f})",
            f"$(d + d_e) × (d + d_e)$\n= {width} × {width}", abs(W).max(), line=d)
    heat_map(values, V[:, :rows], abs(V).max(), d)
    values.set(title=f"$V$ copies tokens\n(mean of its diagonal: {on_V:.2f})",
               xlabel=f"$d × (d + d_e)$\n= {d} × {width}")
    for axis, heights, title in (
            (logits, Z.T @ Wz, "logits $A = Z^T W z_{query}$"),
            (attention, P, f"attention $P$ = softmax$(A)$:\n{P[y[0]].sum():.2f} on selected tokens")):
        axis.bar(range(c.T), heights, color=colors)
        axis.set(title=title, xlabel=f"$T$ = {c.T} positions", xticks=sorted(y[0]),
                 xlim=(-0.5, c.T - 0.5))
    for shift, name, vector, color in ((-0.2, "output", f, OUTPUT),
                                       (0.2, "target", sts.sts_target(X, y)[0], THEORY)):
        output.bar(np.arange(1, d + 1) + shift, vector, 0.4, color=color, label=name)
    output.set(title="output $f = V z$\nbeside the target", xlabel=f"$d$ = {d} coordinates",
               xticks=range(1, d + 1), ylim=(None, 1.8 * f.max()))
    output.legend(loc="upper left")
    for axis, end, shift, text, ha, va in (         # the way from the query to the output
            (query, (1, 0.5), (4, 0), "→", "left", "center"),
            (weights, (1, 0.5), (4, 0), "→", "left", "center"),
            (logits, (0, 0.5), (-30, 0), "$Z^T$\n→", "right", "center"),
            (logits, (0.5, 0), (0, -42), "↓ softmax", "center", "top"),
            (attention, (0, 0.5), (-60, 0), "$Z$\n←", "right", "center"),
            (read, (0, 0.5), (-4, 0), "←", "right", "center"),
            (values, (0, 0.5), (-4, 0), "←", "right", "center")):
        axis.annotate(text, end, shift, "axes fraction", "offset points", fontsize=20, ha=ha,
                      va=va, multialignment="center")
    figure.suptitle(r"$f \;=\; V\; Z\; \mathrm{softmax}(Z^T\, W\, z_{query})$", fontsize=26)
    U = " + ".join(f"$e_{{{j}}}$" for j in sorted(y[0]))
    plots.caption(figure, f"The model after {c.steps} steps, on one sequence. Selected positions "
                  f"are blue, $U$ = {U}. Entries above 0 are green, below 0 brown, with a scale "
                  f"for each part; {SHOWN} of {c.d_e} coordinates of encodings are drawn.")
    return figure


def movie(run, states):
    """Attention on one sequence, W, V, the loss and both diagonals: yields each frame's figure."""
    c = run["config"]
    X, y, E, colors = example(c)
    states, size = states[:FRAMES + 1], c.d + SHOWN
    steps, means = [t for t, *_ in states], np.array([diagonals(c, W, V) for _, W, V in states])
    figure = plt.figure(figsize=(14, 8.6), dpi=60)
    figure.get_layout_engine().set(h_pad=0.12)
    title = figure.suptitle("")
    grid = figure.add_gridspec(1, 2, width_ratios=[1, 1.7])
    left = grid[0].subgridspec(2, 1, height_ratios=[size, c.d]).subplots()
    top, middle, bottom = grid[1].subgridspec(3, 1).subplots()
    bars = show_attention(top, c, np.zeros(c.T), colors)
    top.set_title(f"attention at each position of a sequence; {c.q} selected ones are blue")
    images = []
    for i, (axis, name) in enumerate(zip(left, "WV"), 1):
        matrices = np.array([state[i][:size, :size] for state in states])
        images.append(heat_map(axis, matrices[0], abs(matrices).max(), c.d))
        axis.set_title(f"{name}: tokens | encodings")
    loss, = middle.plot([], [], color=THEORY)
    level = (sts.sts_target(*train.batch(c, 0)) ** 2).sum() / c.batch / 2
    plots.zero_line(middle, level, "zero predictor on these sequences")
    middle.set(title="training loss: a plateau comes first", xlim=(0, steps[-1]),
               ylim=(0, 1.3 * level))
    lines = [bottom.plot([], [], style, color=THEORY, label=text)[0]
             for style, text in (("-", "W, on encodings"), ("--", "V, on tokens"))]
    bottom.legend(loc="upper left")
    bottom.set(title="means of the diagonals: V is large while attention is spread",
               xlabel="step t", xlim=(0, steps[-1]), ylim=(0, 1.25 * means.max()))
    plots.caption(figure, f"Encodings are redrawn. W and V start at 0; {size} of their "
                  f"{c.d + c.d_e} coordinates are drawn, green above 0.", c)

    for k, (t, W, V) in enumerate(states):
        for bar, weight in zip(bars, sts.attention(W, X, y, E)[0]):
            bar.set_height(weight)
        for image, matrix in zip(images, (W, V)):
            image.set_data(matrix[:size, :size])
        loss.set_data(range(t), run["loss"][:t])
        for line, values in zip(lines, means.T):
            line.set_data(steps[:k + 1], values[:k + 1])
        title.set_text(f"Learning to select tokens: step {t}")
        figure.canvas.draw()
        figure.set_layout_engine("none")        # the first frame's layout is that of all
        yield figure


def main():
    """Train a run on the small task, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=plots.HERE / "figures", help="their folder")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the two pictures; with pdf and svg there is no movie")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(plots.STYLE):
        run, states = trained()
        for name, figure in ("task", task(run, states)), ("model", model(run)):
            figure.savefig(args.out / f"{name}.{args.format}")
            print(args.out / f"{name}.{args.format}")
        if args.format == "png":
            frames = [Image.fromarray(np.array(figure.canvas.buffer_rgba())).convert("RGB")
                      for figure in movie(run, states)]
            pauses = [1000, *[125] * (len(frames) - 2), 3000]       # milliseconds
            frames[0].save(args.out / "movie.gif", save_all=True, append_images=frames[1:],
                           duration=pauses, loop=0)
            print(args.out / "movie.gif")


if __name__ == "__main__":
    claims.in_one_line(main)
