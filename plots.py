"""Figures 1 to 5 of the paper, or a run of train.py.

    python plots.py                      all of them, into figures/
    python plots.py 2 4 --format pdf     two of them, for slides
    python plots.py --quick              all of them on small tasks, into runs/quick/
    python plots.py --run runs/NAME.npz  a run of train.py, beside its file

Every curve has seeds 3, 4 and 5; settings were chosen with seeds 0, 1 and 2.  Runs are kept in
runs/figures/ or runs/quick/ until their settings change: delete them if you change the program.
"""

import train        # before NumPy, since it sets the number of threads

import argparse
import os
import textwrap
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, Process, current_process, parent_process
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from time import monotonic

if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"            # before matplotlib: pictures go into files

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import PercentFormatter

import fcn
import sts

# The runs of the figures: for each curve its settings, where they are not the defaults of train.py.

PAPER = {"T": 200, "batch": 256, "fresh": True, "T_test": [250, 300, 350, 400]}     # the paper's
FULL = {"full model": PAPER | {                                             # Figures 1 and 3
    "attend_to_query": True, "query": "mean", "d_e": 200, "init_std": 0.02,
    "lr": 9.0, "steps": 16000, "evaluations": 30, "T_test": [], "q_test": []}}
SIGNS = PAPER | {"law": "rademacher", "d_e": 500, "evaluations": 40}        # Figures 2, 4 and 5
SLOW = SIGNS | {"lr": 5.0, "steps": 24000}
FAST = SIGNS | {"lr": 0.004, "steps": 4000, "optimizer": "adam"}
NEW, SAME = {"draws": 4, "eval_draws": 16}, {"pe": "fixed"}
GD = {"gd stochastic": SLOW | NEW, "gd fixed": SLOW | SAME}                 # Figures 2 and 4
ADAM = {"adam stochastic": FAST | NEW, "adam fixed": FAST | SAME}           # Figure 5
SMALL = {"T": 50, "T_test": [62, 75, 87, 100], "d_e": 100}
QUICK = {                                                                   # what --quick changes
    "full model": {"T": 20, "d": 3, "q": 2, "d_e": 40, "lr": 4.0, "steps": 2000},
    **dict.fromkeys(GD, SMALL | {"lr": 2.0, "steps": 2000}),
    **dict.fromkeys(ADAM, SMALL | {"steps": 600})}

HERE, SEEDS = Path(__file__).resolve().parent, (3, 4, 5)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
STOCHASTIC, FIXED, THEORY = "#0072B2", "#D55E00", "#444444"
SHADES = STOCHASTIC, "#56B4E9", "#08306B"       # of blue: the seeds of stochastic encodings
STYLE = {"font.size": 14, "axes.titlesize": 14, "figure.titlesize": 16,
         "figure.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
         "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 2, "legend.frameon": False,
         "figure.constrained_layout.use": True, "savefig.dpi": 140, "pdf.fonttype": 42,
         "svg.hashsalt": "sts"}                         # the same bytes at every run
in_style = plt.style.context(["default", STYLE])        # a decorator: the function draws in it


def smooth_loss(run):
    """The training loss in 100 stretches of a run: their middle steps, and their mean losses."""
    t = np.array_split(np.arange(len(run["loss"])), 100)
    return np.array([part.mean() for part in t]), np.array([run["loss"][p].mean() for p in t])


def band(axis, x, curves, color, **style):
    """A line for the mean of the curves of all seeds, and a band for their range."""
    axis.plot(x, curves.mean(0), color=color, **style)
    axis.fill_between(x, curves.min(0), curves.max(0), color=color, alpha=0.25, linewidth=0)


def dotted_line(axis, level, text="zero predictor"):
    """A dotted line with a name, such as that of the zero predictor at its error."""
    axis.axhline(level, color=THEORY, linestyle=":", linewidth=1.5)
    axis.text(0.98, level, text, transform=axis.get_yaxis_transform(), color=THEORY, ha="right",
              va="bottom")


def caption(figure, text, c=None):
    """A text below the figure, followed by the settings c that all its runs share."""
    if c:
        size = f"$d_e$ = {c.d_e}" if c.model == "attention" else f"hidden units: {c.hidden}"
        text += (f" T = {c.T}, q = {c.q}, d = {c.d}, {size}, "
                 f"{train.OPTIMIZERS[c.optimizer][0]}, lr = {c.lr:.3g}, "
                 f"{'fresh batches' if c.fresh else 'one full batch'} of {c.batch} sequences.")
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    figure.supxlabel(textwrap.fill(text, int(9.5 * figure.get_figwidth())), fontsize=14)


def figure_1(runs):
    """Global convergence of the full model: loss, 1/L, and the directions of W and V."""
    runs = runs["full model"]
    c, (t, _) = runs[0]["config"], smooth_loss(runs[0])
    L = np.array([smooth_loss(run)[1] for run in runs])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 5))
    for axis in left, middle, right:
        axis.set_prop_cycle(color=SHADES)
        axis.set(xlabel="step t", xticks=np.linspace(0, c.steps, 3))
    left.plot(t, L.T)
    dotted_line(left, c.d / (2 * c.q))
    left.set(title="training loss L", ylim=(0, 1.1 * c.d / (2 * c.q)))
    middle.plot(t, 1 / L.T)
    late, end = t[50:], np.mean(1 / L[:, -1])
    slope = 4 * c.lr / (c.q ** 2 * c.d_e)               # derived in beyond/two_numbers.py
    middle.plot(late, end + slope * (late - t[-1]), ":", color=THEORY, linewidth=3,
                label="derived slope,\nthrough the end")
    middle.set(title="1/L", ylim=(0, None))
    middle.legend(loc="upper left")
    for name, line in ("W", "-"), ("V", "--"):
        cosines = np.array([run[f"cos_{name}"] for run in runs])
        right.plot(runs[0]["eval_step"], cosines.T, line,
                   label=[f"cos({name}, {name}*)"] + ["_"] * (len(runs) - 1))
    right.set(title="cosine similarity")
    right.legend(loc="center right")
    caption(figure, "Full model, mean query, stochastic orthonormal encodings, random start. "
            f"A shade for each of {len(runs)} seeds.", c)
    return figure


def panel(axis, stochastic, fixed, k):
    """The errors of both kinds of encodings on test k, as means and ranges of all seeds."""
    c, t, (T, q) = fixed[0]["config"], fixed[0]["eval_step"], fixed[0]["tests"][k]
    errors = [np.array([run["error"][:, k] for run in runs]) for runs in (stochastic, fixed)]
    band(axis, t, errors[0], STOCHASTIC, label="stochastic")
    band(axis, t, errors[1], FIXED, linestyle="--", label="fixed")
    dotted_line(axis, 1, "zero predictor" if axis.get_subplotspec().is_first_col() else "")
    if T > c.T:
        axis.axhline(0.15 * 2 * c.q / c.d, color=THEORY, linewidth=1, label="loss 0.15")
    axis.set(title=f"$T_{{test}}$ = {T}" if q == c.q else f"$q_{{test}}$ = {q}", xlabel="step t",
             xticks=np.linspace(0, c.steps, 3))
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.margins(y=0.12)


def error_panels(runs, rows, scale):
    """Figures 2, 4, 5: in row 1 the trained task and longer sequences, in row 2 other sizes."""
    stochastic, fixed = runs.values()
    c, tests = stochastic[0]["config"], len(stochastic[0]["tests"])
    figure, axes = plt.subplots(rows, 5, figsize=(11, 2 + 2.6 * rows), sharey="row", squeeze=False)
    for k, axis in enumerate(axes.flat[:tests]):
        axis.set_yscale(scale)
        panel(axis, stochastic, fixed, k)
    axes[0, 0].set_title("the trained task")
    for axis in axes[:, 0]:
        axis.set(ylabel="error", ylim=(0, None) if scale == "linear" else None)
    for axis in axes.flat[tests:]:
        axis.set_axis_off()                             # room for the legend
    corner = axes[0, 0] if rows == 1 else axes[1, 4]
    corner.legend(*axes[0, 4].get_legend_handles_labels(), loc="center right", handlelength=0.8,
                  handletextpad=0.3, borderaxespad=0, borderpad=0)
    caption(figure, f"Mean and range of {len(fixed)} seeds, {c.eval_sequences} sequences in a test."
            f" Random signs; stochastic: {c.draws} draws in a step, {c.eval_draws} in a test.", c)
    return figure


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model"][0]
    c, first = run["config"], train.start(run["config"])
    size, ticks = c.d + 25, ([(c.d - 1) / 2, c.d + 12], ["token", "encoding"])
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), height_ratios=[5, 1])
    for row, name in zip(axes, "WV"):
        for axis, which, when in (row[0], first, "before"), (row[1], run, "after"):
            image = axis.imshow(which[name][:size, :size], cmap="RdGy_r", aspect="auto",
                                norm=SymLogNorm(0.1, vmin=-15, vmax=15), interpolation="nearest")
            axis.axvline(c.d - 0.5, color="k", linewidth=1)
            query, key = "coordinate of the query", "coordinate of a key"
            axis.set(title=f"{name} {when} training", yticks=[],
                     xlabel=query if name == "W" else key, ylabel=key if name == "W" else "output")
            axis.set_xticks(*ticks)
            axis.grid(False)
            if name == "W":
                axis.axhline(c.d - 0.5, color="k", linewidth=1)
                axis.set_yticks(*ticks, rotation=90, va="center")
    figure.colorbar(image, ax=axes, shrink=0.7, label="entry (logarithmic beyond 0.1)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    caption(figure, f"Full model as in Figure 1, seed {c.seed}. Shown are the {c.d} token "
            f"coordinates and 25 of {c.d_e} encoding coordinates.")
    return figure


FIGURES = {     # number: its function, the runs that it shows, its headline
    "1": (figure_1, FULL, "With the mean query the loss of the full model falls like 1/t"),
    "2": (partial(error_panels, rows=1, scale="linear"), GD,
          "On longer sequences fixed encodings stay above a constant"),
    "3": (figure_3, FULL, "The identity grows in W and in V; other entries stay small, but not 0"),
    "4": (partial(error_panels, rows=2, scale="log"), GD,
          "Other subset sizes: both errors fall. Longer sequences: fixed encodings stay high"),
    "5": (partial(error_panels, rows=2, scale="log"), ADAM,
          "With Adam, too, fixed encodings stay high on longer sequences, and fall on other sizes")}


@in_style
def one_run(run):
    """A run of train.py: its loss, its errors, and attention on one new sequence."""
    c, zero = run["config"], run["config"].d / (2 * run["config"].q)    # the expected loss of f = 0
    figure, (left, middle, *right) = plt.subplots(1, 2 + (c.model == "attention"), figsize=(11, 5))
    left.plot(run["loss"] / zero, color=THEORY, linewidth=1)
    middle.set_prop_cycle(color=plt.colormaps["viridis"](np.linspace(0, 0.85, 1 + len(c.T_test))))
    for (T, q), errors in zip(run["tests"], run["error"].T):
        if q == c.q:
            middle.plot(run["eval_step"], errors, label=f"T = {T}")
    if c.model == "fcn":
        bound = fcn.width_lower_bound(len(run["bias_1"]), c.T, c.d, c.q) / zero
        middle.axhline(bound, color=THEORY, linestyle="--", label="bound for this width")
    figure.legend(loc="outside right center", title="error")
    for axis, title in (left, "training loss over d/(2q)"), (middle, "error"):
        dotted_line(axis, 1)
        axis.set(title=title, xlabel="step t", xticks=np.linspace(0, c.steps, 3),
                 ylim=(0, 1.12 * axis.get_ylim()[1]))
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    for axis in right:
        X, y, E = train.held_out(run, 0, draws=1)
        P = sts.attention(run["W"], X, y, E[0], c.attend_to_query, c.query)[0]
        axis.vlines(range(len(P)), 0, P, color="#888888", linewidth=1)
        axis.vlines(y[0], 0, P[y[0]], color=STOCHASTIC, linewidth=4)
        dotted_line(axis, 1 / c.q, "1/q")
        axis.set(title="attention, one sequence", xlabel="position (blue: selected)",
                 ylim=(0, 1.12 * max(1 / c.q, P.max())))
    name, text = f"{c.pe} encodings".capitalize(), f"Law: {c.law}."
    if c.model == "fcn":
        name, text = "A net", ""
    elif c.pe == "stochastic":
        text += f" Draws: {c.draws} in a step, {c.eval_draws} in a test, 1 for the attention."
    caption(figure, text, c)
    figure.suptitle(f"{name} after {run['t']} steps")
    for axis in figure.axes:
        axis.tick_params(labelsize=14)                  # else a user's style counts the ticks
    figure.draw_without_rendering()
    return figure


# Training them, each in a process of its own

def train_one(path, settings, result):
    """What a process does: train a run, and send "", or what went wrong."""
    def end_with_main():
        parent_process().join()
        os._exit(1)
    signal(SIGINT, SIG_IGN)                             # Ctrl-C ends the main process
    Thread(target=end_with_main, daemon=True).start()
    try:
        train.train(path=path, **settings)
        result.send("")
    except (ArithmeticError, ValueError, MemoryError, OSError) as problem:
        result.send(str(problem) or type(problem).__name__)


def train_all(jobs):
    """Train all jobs (path, settings).  Raises ChildProcessError, and ends all, if one fails."""
    from multiprocessing.connection import wait         # a browser's Python has none
    begin, waiting, running = monotonic(), list(jobs), {}
    try:
        while waiting or running:
            while waiting and len(running) < min(CORES, 60):    # Windows waits for at most 63
                path, settings = waiting.pop(0)
                receiver, sender = Pipe(duplex=False)
                process = Process(target=train_one, args=(path, settings, sender), name=path.stem)
                ctrl_c = signal(SIGINT, SIG_IGN)        # it must not meet a process that begins
                process.start()
                signal(SIGINT, ctrl_c)
                sender.close()                          # so the pipe ends if the process does
                running[receiver] = process
            for receiver in wait(running):
                name = running[receiver].name
                problem = "its process has ended (memory?  A script without a main guard?)"
                with suppress(EOFError):
                    problem = receiver.recv()
                if problem:
                    raise ChildProcessError(f"{name}: {problem}")
                running.pop(receiver).join()
                left = len(waiting) + len(running)
                minutes = (monotonic() - begin) / 60 * left / (len(jobs) - left)
                print(f"{name} is done; {left} are left, about {minutes:.0f} minutes", flush=True)
    finally:
        for process in running.values():
            process.terminate()
            process.join()


def trained(arms, folder=train.RUNS / "figures", seeds=SEEDS):
    """The runs of each arm, one for each seed.  Missing ones are trained first.

    Raises ValueError for a wrong setting, ChildProcessError if a run fails.
    """
    if getattr(current_process(), "_inheriting", False):     # a script without a main guard
        os._exit(1)
    jobs = {(name, seed): (folder / f"{name} seed {seed}.npz", settings | {"seed": seed})
            for name, settings in arms.items() for seed in seeds}
    missing = []
    for path, settings in jobs.values():
        c, run = train.Settings(**settings), {"config": None}
        with suppress(OSError, ValueError):             # there is no file, or an older program's
            run = train.load(path)
        if run["config"] != c:
            path.unlink(missing_ok=True)
        if run["config"] != c or run["t"] < c.steps:
            missing.append((path, settings))
    print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {folder} already", flush=True)
    train_all(missing)
    runs = {job: train.load(path) for job, (path, _) in jobs.items()}
    for job, (path, settings) in jobs.items():          # another program may have replaced one
        if (c := runs[job]["config"]) != train.Settings(**settings) or runs[job]["t"] < c.steps:
            raise ChildProcessError(f"another program has replaced {path}")
    return {name: [runs[name, seed] for seed in seeds] for name in arms}


def save(figure, path):
    """Write a figure to a file, print its path, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, metadata=dates.get(path.suffix))
    plt.close(figure)
    print(path, flush=True)


@in_style
def main():
    """Plot the figures, or the run, that the command line names."""
    parser = argparse.ArgumentParser(usage="%(prog)s [FIGURE ...] [--FLAGS]", allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)} (all)")
    parser.add_argument("--quick", action="store_true", help="small tasks, for the classroom")
    parser.add_argument("--run", type=Path, help="plot this run of train.py, beside its file")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png")
    args = parser.parse_args()
    if not set(args.names) <= set(FIGURES):
        parser.error(f"figures are {', '.join(FIGURES)}, got {' '.join(args.names)}")
    if args.run and (args.names or args.quick):
        parser.error("--run goes neither with figures nor with --quick")
    try:
        if args.run:
            picture = args.run.with_suffix(f".{args.format}")
            if picture == args.run:
                parser.error(f"--run {args.run}: the picture would replace the run; rename it")
            save(one_run(train.load(args.run)), picture)
            return
        names, change = args.names or list(FIGURES), QUICK if args.quick else {}
        out = train.RUNS / "quick" if args.quick else HERE / "figures"
        runs = trained({arm: settings | change.get(arm, {}) for name in names
                        for arm, settings in FIGURES[name][1].items()}, train.RUNS / out.name)
        for name in names:
            plot, arms, headline = FIGURES[name]
            figure = plot({arm: runs[arm] for arm in arms})
            figure.suptitle("A small task (--quick)" if args.quick else headline)
            save(figure, out / f"figure_{name}.{args.format}")
    except KeyboardInterrupt:
        parser.exit(1, "\ninterrupted; the same command goes on\n")
    except BrokenPipeError:                             # `| head` has stopped reading
        os._exit(1)
    except (ArithmeticError, ValueError, MemoryError, OSError) as problem:
        parser.error(problem)


if __name__ == "__main__":
    main()
