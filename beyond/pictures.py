"""The picture of the task, and the movie of training:  python beyond/pictures.py

Both show a run on a small task, and are drawn into figures/.  It takes some ten seconds.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import plots        # first, since it sets the number of threads before NumPy loads

import argparse
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

import sts
import train
from plots import STOCHASTIC, THEORY

UNSELECTED = "#BBBBBB"
FRAMES_PER_SECOND, PAUSE = 12, 30       # PAUSE: how often the last frame is repeated


def trained(steps=1200, evaluations=150):
    """A run on a small task, and its weights (t, W, V) at each evaluation."""
    run = train.start(train.configuration(
        T=20, d=3, q=2, d_e=40, batch=128, init_std=0.02, lr=2, steps=steps,
        evaluations=evaluations, T_test=[], q_test=[]))
    states = [(0, run["W"], run["V"])]
    train.descend(run, lambda run: states.append((run["t"], run["W"], run["V"])))
    return run, states


def example(c):
    """One sequence and one draw of encodings: X, y, E, and a colour for each position."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c.T, c.d, c.q)
    E = sts.positional_encoding(c.law, c.T, c.d_e, rng)
    return X, y, E, [STOCHASTIC if j in y[0] else UNSELECTED for j in range(c.T)]


def show_attention(axis, c, P, colors):
    """Bars for the attention on each token, and a dotted line at 1/q; returns the bars."""
    axis.axhline(1 / c.q, color=THEORY, linestyle=":")
    axis.text(c.T - 0.5, 1 / c.q, "1/q", color=THEORY, ha="right", va="bottom")
    axis.set(xlim=(-0.5, c.T - 0.5), ylim=(0, 1.25 / c.q), ylabel="weight $P_j$",
             xticks=range(c.T))
    return axis.bar(range(c.T), P, color=colors)


def task(run, states):
    """The task and its solution: a sequence, attention before and after training, the output."""
    c = run["config"]
    X, y, E, colors = example(c)
    figure = plt.figure(figsize=(14, 8.6))
    figure.get_layout_engine().set(h_pad=0.12)
    grid = figure.add_gridspec(3, 2, width_ratios=[2.6, 1])
    tokens = figure.add_subplot(grid[0, 0])
    image = tokens.imshow(X[0].T, cmap="PuOr", vmin=-2.5, vmax=2.5, aspect="auto")
    figure.colorbar(image, ax=tokens, label="entry of $x_j$", ticks=[-2, 0, 2])
    for j in y[0]:
        tokens.add_patch(plt.Rectangle((j - 0.5, -0.5), 1, c.d, fill=False, color=STOCHASTIC,
                                       linewidth=4))
    tokens.set(title=f"T = {c.T} tokens $x_j$ in $R^{c.d}$; q = {c.q} of them are selected (blue)",
               xticks=range(c.T), yticks=range(c.d), yticklabels=range(1, c.d + 1),
               ylabel="coordinate")
    tokens.grid(False)
    outputs = [("target", sts.sts_target(X, y)[0], THEORY)]
    for row, (t, W, V) in (1, states[0]), (2, states[-1]):
        when = f"after {t} steps" if t else "before training"
        axis = figure.add_subplot(grid[row, 0])
        show_attention(axis, c, sts.attention(W, X, y, E)[0], colors)
        axis.set_title(f"attention {when}")
        outputs.append((f"output {when}", sts.forward(W, V, X, y, E)[0][0], STOCHASTIC))
    axis.set_xlabel("position j")
    limit = 1.4 * abs(outputs[0][1]).max()
    for row, (name, vector, color) in enumerate(outputs):
        axis = figure.add_subplot(grid[row, 1])
        axis.barh(range(c.d), vector, color=color)
        axis.set(title=name, xlim=(-limit, limit), ylim=(c.d - 0.5, -0.5), yticks=range(c.d),
                 yticklabels=range(1, c.d + 1), ylabel="coordinate")
        if abs(vector).max() < 0.02 * limit:
            axis.text(0.04 * limit, (c.d - 1) / 2, "nearly 0", color=color, va="center")
    axis.set_xlabel("value")
    figure.suptitle("Sparse token selection: output the mean of the selected tokens")
    plots.caption(figure, "W and V start as small random numbers. The trained V copies tokens, "
                  f"{np.trace(V[:, :c.d]) / c.d:.2f} times as large, which makes up for attention "
                  "on others.")
    return figure


def movie(run, states):
    """Attention on one sequence, W, V and the loss during training; most frames show its start."""
    c = run["config"]
    X, y, E, colors = example(c)
    states = [state for state in states if state[0] <= c.steps / 3 or 5 * state[0] % c.steps == 0]
    figure = plt.figure(figsize=(14, 7.5))
    size = c.d + 17                     # W and V have c.d + c.d_e columns: these can be told apart
    grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.7])
    left = grid[:, 0].subgridspec(2, 1, height_ratios=[size, c.d + 2])
    top, right = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    bars = show_attention(top, c, np.zeros(c.T), colors)
    top.set(title=f"attention on a sequence; q = {c.q} selected tokens are blue",
            xlabel="position j")
    images = []
    for place, name in enumerate("WV"):
        axis = figure.add_subplot(left[place])
        limit = abs(run[name]).max()
        image = axis.imshow(run[name][:size, :size], cmap="RdBu_r", vmin=-limit, vmax=limit,
                            interpolation="nearest")
        axis.set(title=f"{name}: token | encoding", xticks=[], yticks=[])
        axis.axvline(c.d - 0.5, color="k", linewidth=1)
        axis.grid(False)
        figure.colorbar(image, ax=axis)
        images.append(image)
    line, = right.plot([], [], color=STOCHASTIC)
    level = plots.zero_predictor(c)
    right.set(xlabel="step t", ylabel="training loss", xlim=(0, c.steps), ylim=(0, 1.1 * level))
    plots.zero_line(right, level, "zero predictor, d/(2q)")
    plots.caption(figure, "W and V start as small random numbers. Of them the first "
                  f"{size} rows and columns are shown.", run)

    def draw(k):
        t, W, V = states[k]
        for bar, weight in zip(bars, sts.attention(W, X, y, E)[0]):
            bar.set_height(weight)
        for image, matrix in zip(images, (W, V)):
            image.set_data(matrix[:size, :size])
        line.set_data(range(t), run["loss"][:t])
        figure.suptitle(f"Learning to select tokens: step {t} of {c.steps}")

    draw(0)
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.96))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")        # the first frame's layout is that of all
    frames = [*range(len(states)), *[len(states) - 1] * PAUSE]
    return FuncAnimation(figure, draw, frames, init_func=lambda: None)


def main():
    """Train a run on the small task, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "figures",
                        help="folder for both (figures)")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the picture of the task (%(default)s)")
    args = parser.parse_args()
    with plots.errors_in_one_line(parser), plt.rc_context(plots.STYLE):
        args.out.mkdir(parents=True, exist_ok=True)
        run, states = trained()
        plots.save_picture(task(run, states), args.out / f"task.{args.format}")
        path = args.out / "movie.gif"
        with train.replacing(path) as file, tempfile.TemporaryDirectory() as folder:
            movie(run, states).save(f"{folder}/movie.gif", PillowWriter(FRAMES_PER_SECOND), dpi=60)
            file.write(Path(folder, "movie.gif").read_bytes())
        print(os.path.relpath(path))


if __name__ == "__main__":
    main()
