"""The picture of the task, and the movie of training:  python beyond/pictures.py

Both show a run on a small task, and are drawn into figures/.  It takes some seconds.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

import plots
import sts
import train
from plots import STOCHASTIC, THEORY

UNSELECTED = "#BBBBBB"


def trained(steps=1200, evaluations=60):
    """A run on the small task, and its weights (t, W, V) at each evaluation."""
    run = train.start(train.configuration(quick=True, init_std=0.02, steps=steps,
                                          evaluations=evaluations))
    frames = [(0, run["W"], run["V"])]
    train.descend(run, lambda run: frames.append((run["t"], run["W"], run["V"])))
    return run, frames


def example(c):
    """One sequence and one draw of encodings: X, y, E, and a colour for each position."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c.T, c.d, c.q)
    E = sts.positional_encoding(c.pe_family, c.T, c.pe_dim, rng)[0]
    return X, y, E, [STOCHASTIC if j in y[0] else UNSELECTED for j in range(c.T)]


def task(run, frames):
    """The task and its solution: a sequence, attention before and after training, the output."""
    c = run["config"]
    X, y, E, colors = example(c)
    figure = plt.figure(figsize=(12, 6.8))
    grid = figure.add_gridspec(3, 2, width_ratios=[3, 1])
    tokens = figure.add_subplot(grid[0, 0])
    image = tokens.imshow(X[0].T, cmap="PuOr", vmin=-2.5, vmax=2.5, aspect="auto")
    figure.colorbar(image, ax=tokens, label="entry of $x_j$", ticks=[-2, 0, 2])
    for j in y[0]:
        tokens.add_patch(plt.Rectangle((j - 0.5, -0.5), 1, c.d, fill=False, color=STOCHASTIC,
                                       linewidth=4))
    tokens.set(title=f"T = {c.T} tokens $x_j$ in $R^{c.d}$; q = {c.q} of them are selected (blue)",
               xticks=range(c.T), yticks=range(c.d), yticklabels=[f"{i + 1}" for i in range(c.d)],
               ylabel="coordinate")
    tokens.grid(False)
    outputs = [("target: mean of the selected", sts.sts_target(X, y)[0], THEORY)]
    for row, (t, W, V) in (1, frames[0]), (2, frames[-1]):
        when = f"after {t} steps" if t else "before training"
        axis = figure.add_subplot(grid[row, 0])
        axis.bar(range(c.T), sts.attention(W, X, y, E)[0], color=colors)
        axis.axhline(1 / c.q, color=THEORY, linestyle=":")
        axis.text(c.T - 0.5, 1 / c.q, "1/q ", color=THEORY, ha="right", va="bottom")
        axis.set(title=f"attention {when}", xlim=(-0.5, c.T - 0.5), ylim=(0, 0.62),
                 ylabel="weight $P_j$", xticks=range(c.T))
        outputs.append((f"output {when}", sts.forward(W, V, X, y, E)[0][0], STOCHASTIC))
    axis.set_xlabel("position j")
    for row, (name, vector, color) in enumerate(outputs):
        axis = figure.add_subplot(grid[row, 1])
        axis.barh(range(c.d), vector, color=color)
        axis.set_title(name, fontsize=13)
        axis.set(xlim=1.4 * abs(outputs[0][1]).max() * np.array([-1, 1]), yticks=range(c.d),
                 yticklabels=[f"{i + 1}" for i in range(c.d)], ylabel="coordinate")
        axis.invert_yaxis()
    axis.set_xlabel("value")
    plots.caption(figure, "Sparse token selection: output the mean of the selected tokens",
                  "The output is V times the attended mean. V = $\\alpha$ V* with $\\alpha$ above "
                  "1 makes up for the attention that other tokens still get;\non one sequence "
                  "it can give too much or too little.")
    return figure


def movie(run, frames):
    """Attention on one sequence, W, V and the loss during training."""
    c = run["config"]
    X, y, E, colors = example(c)
    figure = plt.figure(figsize=(10, 6.4))
    grid = figure.add_gridspec(2, 3, width_ratios=[1, 1, 1.6])
    top, right = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 2])
    bars = top.bar(range(c.T), np.zeros(c.T), color=colors)
    top.axhline(1 / c.q, color=THEORY, linestyle=":")
    top.set(xlabel=f"position j (blue: the q = {c.q} selected ones; dotted: 1/q)", ylim=(0, 0.6),
            ylabel="attention $P_j$", xticks=range(c.T))
    limit, images = abs(run["W"]).max(), []
    for place, name in enumerate("WV"):
        axis = figure.add_subplot(grid[1, place])
        images.append(axis.imshow(run[name], cmap="RdBu_r", vmin=-limit, vmax=limit,
                                  interpolation="nearest", aspect="auto"))
        axis.set(title=f"{name}: token | encoding", xticks=[], yticks=[])
        axis.axvline(c.d - 0.5, color="k", linewidth=1)
        axis.grid(False)
    line, = right.plot([], [], color=STOCHASTIC)
    level = plots.zero_predictor(c)
    right.set(xlabel="step t", ylabel="training loss", xlim=(0, c.steps), ylim=(0, 1.1 * level))
    plots.zero_line(right, level)

    def draw(k):
        t, W, V = frames[k]
        for bar, weight in zip(bars, sts.attention(W, X, y, E)[0]):
            bar.set_height(weight)
        for image, matrix in zip(images, (W, V)):
            image.set_data(matrix)
        line.set_data(range(t), run["loss"][:t])
        figure.suptitle(f"Attention learns to select: step {t}", weight="bold")

    draw(0)
    figure.canvas.draw()
    figure.set_layout_engine("none")        # laid out once, not again for each frame
    return FuncAnimation(figure, draw, len(frames))


def main(folder=HERE.parent / "figures"):
    """Draw both."""
    run, frames = trained()
    with plt.rc_context(plots.STYLE):
        task(run, frames).savefig(folder / "task.png")
        movie(run, frames).save(folder / "movie.gif", PillowWriter(fps=10), dpi=70)


if __name__ == "__main__":
    main()
