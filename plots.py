"""Figures 1 to 5 of the paper, and one of ours: the widths of nets.

    python plots.py                      all of them, into figures/
    python plots.py 2 4 --format pdf     two of them, for slides
    python plots.py --quick              all of them on small tasks, into runs/quick/
    python plots.py --run runs/NAME.npz  a run of train.py, beside its file

Every curve has seeds 3, 4 and 5; settings were chosen with seeds 0, 1 and 2.  Trained runs are kept
in runs/figures/ or runs/quick/, until their settings change: delete them if you change the program.
"""

import signal
import sys

if __name__ == "__main__":      # first of all: Ctrl-C ends in one line at any moment
    signal.signal(signal.SIGINT, lambda *_: sys.exit(
        "\nplots.py: interrupted; the same command trains the other runs"))

import train        # before NumPy, since it sets the number of threads

import argparse
import os
import textwrap
from multiprocessing import get_context
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import SymLogNorm

import fcn
import sts

HERE, SEEDS = Path(__file__).resolve().parent, (3, 4, 5)
STOCHASTIC, FIXED, NET, THEORY = "#0072B2", "#D55E00", "#009E73", "#444444"
SHADES = STOCHASTIC, "#56B4E9", "#08306B"       # of blue: the seeds of stochastic encodings
STYLE = {"font.size": 14, "axes.titlesize": 14, "axes.labelsize": 14, "legend.fontsize": 14,
         "xtick.labelsize": 14, "ytick.labelsize": 14, "figure.titlesize": 16,
         "figure.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
         "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 2, "legend.frameon": False,
         "figure.constrained_layout.use": True, "savefig.dpi": 140}

# The runs: for each curve its settings of train.py.

GD = {"d_e": 500, "fresh": True, "evaluations": 40, "lr": 5.0, "steps": 24000}
ADAM = {"d_e": 500, "fresh": True, "evaluations": 40, "optimizer": "adam", "lr": 0.004,
        "steps": 4000}
SHORT = {"T": 10, "fresh": True, "evaluations": 1, "steps": 6000}
NETS = [(m, hidden) for hidden in (1, 2) for m in (5, 15, 25, 40, 50)]
ARMS = {
    "full model": {                                         # Figures 1 and 3
        "attend_to_query": True, "query": "mean", "law": "orthonormal", "d_e": 200,
        "init_std": 0.02, "lr": 9.0, "steps": 16000, "evaluations": 30, "eval_draws": 1,
        "q_test": []},
    "gd stochastic": GD | {"pe": "stochastic", "draws": 4},                 # Figures 2 and 4
    "gd fixed": GD | {"pe": "fixed"},
    "adam stochastic": ADAM | {"pe": "stochastic", "draws": 4},             # Figure 5
    "adam fixed": ADAM | {"pe": "fixed"},
    "attention": SHORT | {"law": "orthonormal", "d_e": 20, "lr": 1.0, "T_test": [], "q_test": [],
                          "eval_sequences": 2000},
    **{f"net {m} {hidden}": SHORT | {
        "model": "fcn", "hidden": [m] + [max(m, 64)] * (hidden - 1), "optimizer": "adam",
        "schedule": "cosine", "eval_sequences": 50000} for m, hidden in NETS}}
QUICK = {           # what --quick changes, by the first word of a name
    "full": {"T": 20, "d": 3, "q": 2, "d_e": 40, "lr": 4.0, "steps": 2000},
    "gd": {"T": 50, "d_e": 100, "lr": 2.0, "steps": 2000},
    "adam": {"T": 50, "d_e": 100, "steps": 600},
    "attention": {"steps": 2000},
    "net": {"steps": 2000}}


def train_into(item):
    """Train a run with the settings of an item (path, settings) into its file; returns its name."""
    path, settings = item
    train.save(train.train(**settings), path)
    return path.stem


def trained(arms, folder=train.RUNS / "figures", jobs=os.cpu_count(), seeds=SEEDS):
    """The runs of each arm, one for each seed.  Those that the folder does not keep are trained."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: [folder / f"{name} seed {seed}.npz" for seed in seeds] for name in arms}
    missing = {}
    for name, arm in arms.items():
        for path, seed in zip(files[name], seeds):
            settings = arm | {"seed": seed}
            if not path.exists() or train.load(path)["config"] != train.configuration(**settings):
                missing[path] = settings
    if kept := len(arms) * len(seeds) - len(missing):
        print(f"{kept} runs are kept in {folder}: if you changed the program, delete them")
    if missing:
        print(f"{len(missing)} runs to train, {jobs} at a time", flush=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)      # workers inherit this, so
        with get_context("spawn").Pool(jobs) as pool:               # Ctrl-C reaches only us
            signal.signal(signal.SIGINT, handler)
            for i, name in enumerate(pool.imap_unordered(train_into, missing.items()), 1):
                print(f"{i:3} of {len(missing)}: {name}", flush=True)
    return {name: [train.load(path) for path in files[name]] for name in arms}


# What a figure shows of its runs


def smooth_loss(run):
    """The training loss in 100 stretches of a run: their middle steps, and their mean losses."""
    t = np.array_split(np.arange(len(run["loss"])), 100)
    return np.array([part.mean() for part in t]), np.array([run["loss"][p].mean() for p in t])


def predicted_slope(c):
    """The growth of 1/L in a step, orthonormal encodings; derived in beyond/full_model.py."""
    return 4 * c.lr / c.d_e / (c.q ** 2 if c.query == "mean" else 1)


def shares(runs, T, q):
    """The errors over d/(2q) on the test with length T and subset size q (seeds, evaluations)."""
    column = runs[0]["tests"].tolist().index([T, q])
    return np.array([run["error"][:, column] * 2 * q / run["config"].d for run in runs])


def band(axis, x, curves, color, **style):
    """A line for the mean of the curves of all seeds, and a band for their range."""
    axis.plot(x, curves.mean(axis=0), color=color, **style)
    axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.25,
                      linewidth=0)


def zero_line(axis, level, text="zero predictor"):
    """A dotted line at the error of the zero predictor."""
    axis.axhline(level, color=THEORY, linestyle=":", linewidth=1.5)
    axis.text(0.98, level, text, transform=axis.get_yaxis_transform(), color=THEORY, ha="right",
              va="bottom")


def caption(figure, text, c=None):
    """A text below the figure, followed by the settings c that all its runs share."""
    if c:
        text += (f" T = {c.T}, q = {c.q}, d = {c.d}, $d_e$ = {c.d_e}, "
                 f"{train.OPTIMIZERS[c.optimizer]}, lr = {c.lr:.3g}, "
                 f"{'fresh batches' if c.fresh else 'one full batch'} of {c.batch} sequences.")
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    figure.supxlabel(textwrap.fill(text, int(9.5 * figure.get_figwidth())), fontsize=14)


# The figures


def figure_1(runs):
    """Global convergence of the full model: loss, 1/L, and the directions of W and V."""
    runs = runs["full model"]
    c, (t, _) = runs[0]["config"], smooth_loss(runs[0])
    L = np.array([smooth_loss(run)[1] for run in runs])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 5))
    for axis in left, middle, right:
        axis.set_prop_cycle(color=SHADES)
    left.plot(t, L.T)
    zero_line(left, c.d / (2 * c.q))
    left.set(title="training loss L", ylim=(0, 1.1 * c.d / (2 * c.q)))
    middle.plot(t, 1 / L.T)
    late, end = t[50:], np.mean(1 / L[:, -1])
    middle.plot(late, end + predicted_slope(c) * (late - t[-1]), ":", color=THEORY, linewidth=3,
                label="derived slope,\nfitted height")
    middle.set(title="1/L", ylim=(0, None))
    middle.legend(loc="upper left")
    for name, line in ("W", "-"), ("V", "--"):
        cosines = np.array([run[f"cos_{name}"] for run in runs])
        right.plot(runs[0]["eval_step"], cosines.T, line,
                   label=[f"cos({name}, {name}*)"] + ["_"] * (len(runs) - 1))
    right.set(title="cosine similarity")
    right.legend(loc="center right")
    for axis in left, middle, right:
        axis.set(xlabel="step t", xticks=np.linspace(0, c.steps, 3))
    caption(figure, "Full model, mean query, stochastic orthonormal encodings, random start. "
            f"A shade for each of {len(runs)} seeds.", c)
    return figure


def error_curves(runs, optimizer, rows, scale):
    """The errors on each test: longer sequences, and in a second row other subset sizes."""
    stochastic, fixed = runs[f"{optimizer} stochastic"], runs[f"{optimizer} fixed"]
    c, t, tests = fixed[0]["config"], fixed[0]["eval_step"], fixed[0]["tests"].tolist()
    size = 11, 2 + 2.6 * rows
    figure, axes = plt.subplots(rows, 5, figsize=size, sharey="row", squeeze=False)
    for row, longer in zip(axes, (True, False)):
        own = [[T, q] for T, q in tests if (q == c.q) == longer]
        for axis, (T, q) in zip(row, own):
            band(axis, t, shares(stochastic, T, q), STOCHASTIC,
                 label=f"stochastic,\nmean of\n{c.eval_draws} draws")
            band(axis, t, shares(fixed, T, q), FIXED, linestyle="--", label="fixed")
            zero_line(axis, 1, "zero predictor" if axis is row[0] else "")
            if T > c.T:
                axis.axhline(0.15 * 2 * q / c.d, color=THEORY, linewidth=1,
                             label=f"error 0.15,\nhere {0.15 * 2 * q / c.d:.2f}")
            title = f"$T_{{test}}$ = {T}" if longer else f"$q_{{test}}$ = {q}"
            axis.set(title="the trained task" if [T, q] == tests[0] else title, yscale=scale,
                     xlabel="step t", xticks=np.linspace(0, c.steps, 3))
            axis.margins(y=0.12)
        row[0].set(ylabel="error over d/(2q)", ylim=(0, None) if scale == "linear" else None)
        for axis in row[len(own):]:
            axis.set_axis_off()             # room for the legend
    corner = axes[0, 0] if rows == 1 else axes[1, 4]
    corner.legend(*axes[0, 4].get_legend_handles_labels(), loc="center right", handlelength=0.8,
                  handletextpad=0.3, borderaxespad=0, borderpad=0)
    draws = stochastic[0]["config"].draws
    caption(figure, f"Random signs; stochastic encodings have {draws} draws in a training step. "
            f"Mean and range of {len(SEEDS)} seeds.", c)
    return figure


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model"][0]
    c, first = run["config"], train.start(run["config"])
    size = c.d + 25
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), height_ratios=[5, 1])
    for row, name in zip(axes, "WV"):
        for axis, which, when in (row[0], first, "before"), (row[1], run, "after"):
            image = axis.imshow(which[name][:size, :size], cmap="RdGy_r", aspect="auto",
                                norm=SymLogNorm(0.1, vmin=-15, vmax=15), interpolation="nearest")
            axis.axvline(c.d - 0.5, color="k", linewidth=1)
            axis.set(title=f"{name} {when} training", yticks=[], ylabel="output",
                     xlabel="coordinate of the query" if name == "W" else "coordinate of a key")
            axis.set_xticks([(c.d - 1) / 2, c.d + 12], ["token", "encoding"])
            axis.grid(False)
            if name == "W":
                axis.axhline(c.d - 0.5, color="k", linewidth=1)
                axis.set_yticks([(c.d - 1) / 2, c.d + 12], ["token", "encoding"], rotation=90,
                                va="center")
                axis.set_ylabel("coordinate of a key")
    figure.colorbar(image, ax=axes, shrink=0.7, label="entry (logarithmic beyond 0.1)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    caption(figure, f"Full model as in Figure 1, seed {SEEDS[0]}. Shown are the {c.d} token "
            f"coordinates and 25 of {c.d_e} encoding coordinates.")
    return figure


def widths(runs):
    """What nets cannot do: the error against the width, at T = 10."""
    c = runs["attention"][0]["config"]
    T, d, q = c.T, c.d, c.q
    figure, axis = plt.subplots(figsize=(10, 6))
    m = np.arange(2 * T * d + 1)
    bound = fcn.width_lower_bound(m, T, d, q) / (d / (2 * q))
    axis.plot(m, bound, "--", color=THEORY, label="bound for all nets")
    for hidden, marker, size, fill in (1, "o", 13, "none"), (2, "^", 7, "full"):
        points = [(m, share) for m, layers in NETS if layers == hidden
                  for share in shares(runs[f"net {m} {hidden}"], T, q)[:, -1]]
        axis.plot(*np.transpose(points), marker, color=NET, fillstyle=fill, markersize=size,
                  label=f"trained nets, {hidden} hidden layer{'s' * (hidden > 1)}")
    axis.axhline(shares(runs["attention"], T, q)[:, -1].mean(), color=STOCHASTIC, linewidth=3,
                 zorder=0, label=f"trained attention, orthonormal, $d_e$ = {c.d_e}")
    for m, text in (d, f"d = {d}"), (T * d, f"T d = {T * d}"):
        axis.axvline(m, color=THEORY, linewidth=1, linestyle=":")
        axis.text(m + 1, 0.05, text, color=THEORY)
    axis.set(xlabel="units m of a net's first layer", ylabel="error over d/(2q)")
    axis.legend(loc="upper right")
    caption(figure, f"T = {T}, d = {d}, q = {q}, fresh batches, {len(SEEDS)} seeds. Attention has "
            "no such layer.")
    return figure


def one_run(run):
    """A run of train.py: its loss, its errors, and attention on one new sequence."""
    c, same_q = run["config"], run["tests"][:, 1] == run["config"].q
    figure, (left, middle, *right) = plt.subplots(1, 2 + (c.model == "attention"), figsize=(11, 5))
    left.plot(run["loss"], color=THEORY, linewidth=1)
    middle.plot(run["eval_step"], run["error"][:, same_q],
                label=[f"T = {T}" for T in run["tests"][same_q, 0]])
    middle.legend()
    for axis, title in (left, "training loss"), (middle, "error"):
        zero_line(axis, c.d / (2 * c.q))
        axis.set(title=title, xlabel="step t", xticks=np.linspace(0, c.steps, 3),
                 ylim=(0, 1.12 * axis.get_ylim()[1]))
    for axis in right:
        X, y, E = train.held_out(run, 0, draws=1)
        P = sts.attention(run["W"], X, y, E[0], c.attend_to_query, c.query)[0]
        axis.bar(range(len(P)), P, width=1,
                 color=[STOCHASTIC if j in y[0] else "#BBBBBB" for j in range(len(P))])
        zero_line(axis, 1 / c.q, "1/q")
        axis.set(title="attention on one new sequence", xlabel="position (blue: selected)",
                 ylim=(0, 1.12 * max(1 / c.q, P.max())))
    model = f"Hidden layers of {c.hidden} units." if c.model == "fcn" else f"Encodings: {c.law}."
    caption(figure, model, c)
    return figure


FIGURES = {     # name: the function, its headline, and the first word of the arms that it needs
    "1": (figure_1, "With the mean query the loss of the full model falls like 1/t", ["full"]),
    "2": (lambda runs: error_curves(runs, "gd", 1, "linear"),
          "On longer sequences fixed encodings stay above a constant", ["gd"]),
    "3": (figure_3, "The identity grows in W and in V; other entries stay small, but not 0",
          ["full"]),
    "4": (lambda runs: error_curves(runs, "gd", 2, "log"),
          "Both converge on other subset sizes, fixed encodings do not on longer sequences",
          ["gd"]),
    "5": (lambda runs: error_curves(runs, "adam", 2, "log"),
          "With Adam, too, fixed encodings converge only on other subset sizes", ["adam"]),
    "widths": (widths, "Nets with a first layer narrower than T d cannot do it; attention can",
               ["attention", "net"])}


def picture(plot, runs, headline, path):
    """Plot a figure into its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure = plot(runs)
        figure.suptitle(headline)
        figure.savefig(path)
        plt.close(figure)
    print(path, flush=True)


def main():
    """Plot the figures, or the run, that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)} (all)")
    parser.add_argument("--quick", action="store_true", help="small tasks, for the classroom")
    parser.add_argument("--run", type=Path, help="plot this run of train.py, beside its file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs trained at a time")
    parser.add_argument("--out", type=Path, help="folder for the pictures")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png")
    args = parser.parse_args()
    if not set(args.names) <= set(FIGURES):
        parser.error(f"figures are {', '.join(FIGURES)}, got {' '.join(args.names)}")
    matplotlib.use("Agg")       # plots into files; no display is needed
    try:
        if args.run:
            run = train.load(args.run)
            model = "A net" if run["config"].model == "fcn" else f"{run['config'].pe} encodings"
            picture(one_run, run, f"{model.capitalize()} after {run['t']} steps",
                    (args.out or args.run.parent) / f"{args.run.stem}.{args.format}")
            return
        names, change = args.names or list(FIGURES), QUICK if args.quick else {}
        kept = train.RUNS / ("quick" if args.quick else "figures")
        out = args.out or (kept if args.quick else HERE / "figures")
        needed = {word for name in names for word in FIGURES[name][2]}
        arms = {name: arm | change.get(name.split()[0], {}) for name, arm in ARMS.items()
                if name.split()[0] in needed}
        runs = trained(arms, kept, args.jobs)
        for name in names:
            plot, headline, _ = FIGURES[name]
            path = out / f"{'figure_' * name.isdigit()}{name}.{args.format}"
            picture(plot, runs, "A small task (--quick)" if args.quick else headline, path)
    except (FloatingPointError, ValueError, OSError) as problem:
        parser.error(problem)


if __name__ == "__main__":
    main()
