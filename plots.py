"""Figures 1 to 5 of the paper, and our picture of the widths.

    python plots.py                      all of them, into figures/
    python plots.py 2 4 --format pdf     two of them, for slides
    python plots.py --quick              all of them on small tasks, into runs/quick/

Every curve has seeds 0, 1 and 2.  Runs with the same seed and task see the same sequences.  A
trained run is kept in runs/figures/.  It is trained again if its settings have changed, or code in
sts.py, fcn.py or train.py.
"""

import train        # first, since it sets the number of threads before NumPy loads

import argparse
import contextlib
import math
import os
import signal
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path

import matplotlib

matplotlib.use("Agg")           # draws into files, no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import NullFormatter

import fcn
import sts

HERE, SEEDS = Path(__file__).resolve().parent, (0, 1, 2)
STOCHASTIC, FIXED, ONEHOT, NET, THEORY = "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 14, "axes.labelsize": 14, "legend.fontsize": 14,
         "xtick.labelsize": 14, "ytick.labelsize": 14, "figure.titlesize": 16,
         "figure.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
         "axes.grid": True, "grid.alpha": 0.3, "lines.linewidth": 2, "legend.frameon": False,
         "figure.constrained_layout.use": True, "savefig.dpi": 100}

# The runs.  An arm is the settings of train.py that all seeds of a curve have in common.

NETS = [(m, hidden) for hidden in (1, 2) for m in (5, 15, 25, 40, 50)]      # widths, left
WIDTHS = {10: (12, 16, 24), 20: (16, 24, 32), 40: (24, 32, 48), 80: (32, 48, 64),
          160: (32, 48, 64), 320: (48, 64, 96)}                 # widths, right: d_e for each T
SHARE = 0.1                                                     # of d/(2q): the error to be reached


def arms(quick):
    """The settings of each arm, by its key."""
    def pick(full, small):
        return small if quick else full

    full_model = {"attend_to_query": True, "query": "mean", "law": "orthonormal",
                  "init_std": 0.02, "evaluations": 30, "eval_draws": 1, "q_test": []}
    found = {("full model",): full_model | pick(
        {"d_e": 200, "lr": 9.0, "steps": 16000},
        {"T": 20, "d": 3, "q": 2, "d_e": 40, "lr": 4.0, "steps": 2000})}
    for pe in "stochastic", "fixed":
        how = {"pe": pe, "fresh": True, "evaluations": 40}
        found["gd", pe] = how | pick({"d_e": 400, "lr": 5.0, "steps": 10000}, {"quick": True})
        found["adam", pe] = how | {"optimizer": "adam"} | pick({"d_e": 500, "steps": 3000},
                                                               {"quick": True, "steps": 600})
    task = {"T": 10, "d": 5, "q": 3, "fresh": True, "steps": pick(6000, 2000), "evaluations": 1}
    found["attention", 10] = task | {
        "law": "orthonormal", "d_e": 20, "lr": 1.0, "T_test": [], "q_test": [],
        "eval_sequences": 2000}
    for m, hidden in NETS:
        found["net", m, hidden] = task | {
            "model": "fcn", "hidden": [m] + [max(m, 64)] * (hidden - 1), "optimizer": "adam",
            "schedule": "cosine", "eval_sequences": 50000}
    for T, sizes in WIDTHS.items():
        if T <= 40 or not quick:
            for d_e in sizes:
                found["width", 3, T, d_e] = width_arm(3, T, d_e)
    return found


def width_arm(q, T, d_e):
    """An arm that shows whether d_e dimensions are enough for subset size q and length T."""
    return {"T": T, "q": q, "d": 5, "d_e": d_e, "optimizer": "adam", "lr": 0.03,
            "schedule": "cosine", "steps": 1000, "evaluations": 1, "eval_sequences": 512,
            "T_test": [], "q_test": []}


def train_into(path, settings):
    """Train a run into its file.  If it diverges, its later errors are nan."""
    run = train.start(train.configuration(**settings))
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            train.descend(run)
    except FloatingPointError:
        pass
    train.save(run, path)
    return path.stem


def is_kept(path, settings):
    """Whether the file holds a run with these settings, of this code."""
    try:
        return bool(train.load(path, train.configuration(**settings)))
    except ValueError:
        return False


def end_with_parent():
    """Let a process ignore Ctrl-C, which is for its parent, and end when its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()


def trained(arms, folder=None, processes=os.cpu_count(), seeds=SEEDS):
    """The runs of each arm, one for each seed.  Those that the folder does not keep are trained."""
    folder = folder or train.RUNS / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    files = {(key, seed): folder / f"{' '.join(map(str, key))} seed {seed}.npz"
             for key in arms for seed in seeds}
    jobs = [(path, arms[key] | {"seed": seed}) for (key, seed), path in files.items()]
    missing = [job for job in jobs if not is_kept(*job)]
    if missing:
        print(f"{len(missing)} runs to train, {min(processes, len(missing))} at a time", flush=True)
        with ProcessPoolExecutor(min(processes, len(missing)), get_context("spawn"),
                                 end_with_parent) as pool:
            try:
                for i, name in enumerate(pool.map(train_into, *zip(*missing)), 1):
                    print(f"{i:3} of {len(missing)}: {name}", flush=True)
            except KeyboardInterrupt:
                for process in active_children():
                    process.terminate()
                raise
    return {key: [train.load(files[key, seed]) for seed in seeds] for key in arms}


# What a figure shows of its runs


def zero_predictor(c):
    """d/(2q), the expected error of the zero predictor."""
    return c.d / (2 * c.q)


def smooth_loss(run):
    """The training loss in 100 stretches of a run: their middle steps, and their mean losses."""
    t = np.array_split(np.arange(len(run["loss"])), 100)
    return np.array([part.mean() for part in t]), np.array([run["loss"][p].mean() for p in t])


def predicted_slope(c):
    """The growth of 1/L in a step with orthonormal encodings; derived in beyond/theory.py."""
    return 4 * c.lr / c.d_e / (c.q ** 2 if c.query == "mean" else 1)


def errors(runs, T, q):
    """The errors during training on the test with length T and subset size q (seeds, m)."""
    column = runs[0]["tests"].tolist().index([T, q])
    return np.array([run["error"][:, column] for run in runs])


def tests_of(c):
    """The tests on longer sequences, and those on other subset sizes, each as pairs (T, q)."""
    return ([(T, c.q) for T in c.T_test if T != c.T], [(c.T, q) for q in c.q_test if q != c.q])


def crossing(sizes, errors, level):
    """The size where the error falls to a level, by a line through ln error against ln size.

    The line joins the last size whose error is above the level, or nan, and the next size.  The
    answer is nan if the first error is below the level already, or the last one is not.
    """
    above = ~(np.array(errors) <= level)
    last = np.flatnonzero(above).max(initial=-1)
    if last in (-1, len(sizes) - 1):
        return np.nan
    (x, u), (y, v) = np.log(sizes[last:last + 2]), np.log(errors[last:last + 2])
    return np.exp(x + (u - x) * (y - np.log(level)) / (y - v))


def needed_widths(runs, q, T):
    """The least d_e for an error of SHARE d/(2q) at length T, for each seed; nan if unknown.

    It is interpolated between the sizes d_e that were trained.
    """
    found = {key[3]: arm for key, arm in runs.items() if key[:3] == ("width", q, T)}
    sizes = sorted(found)
    ends = np.array([errors(found[d_e], T, q)[:, -1] for d_e in sizes])         # (sizes, seeds)
    level = SHARE * zero_predictor(found[sizes[0]][0]["config"])
    return np.array([crossing(sizes, seed, level) for seed in ends.T])


def predicted_error(T, d, q, d_e, rng, draws=2000):
    """The error with 16 draws of the weights a W*, alpha V* that are the best ones for one draw.

    For random signs; training with one draw in a step finds these weights.  Derived in
    beyond/width.py, which does it for any T.  Here the mean is over some draws of the scores.
    """
    scores, best = np.empty((draws, T)), math.inf
    for k in range(draws):
        E = sts.positional_encoding("rademacher", T, d_e, rng)
        scores[k] = E @ E[:q].sum(axis=0)
    for a in np.geomspace(1, 30, 40):
        P = sts.softmax(a * scores)
        S, length = P[:, :q].sum(axis=1).mean(), (P * P).sum(axis=1).mean()
        alpha = S / (q * length)                                    # the best one for this a
        one = d / 2 * (1 / q - S * S / (q * q * length))            # the loss with one draw
        if one < best:
            mean = S ** 2 / q + (1 - S) ** 2 / (T - q)              # |P|^2 of the mean P
            best, many = one, d / 2 * (alpha ** 2 * (length + 15 * mean) / 16
                                       - 2 * alpha / q * S + 1 / q)
    return many


def net_width(T, d, q):
    """The first-layer width that the bound of fcn.py demands of every net for the same error."""
    return T * d * (1 - SHARE * (T - 1) / (T - q))


# The figures.  A drawing makes no claim: the headlines are in FIGURES, and stand above full-size
# pictures only.


def band(axis, x, curves, color, **style):
    """A line for the mean of the curves of all seeds, and a band for their range."""
    curves = np.array(curves)
    axis.plot(x, curves.mean(axis=0), color=color, **style)
    axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.25,
                      linewidth=0)


def zero_line(axis, level, text="zero predictor"):
    """A dotted line at the error of the zero predictor."""
    axis.axhline(level, color=THEORY, linestyle=":", linewidth=1.5)
    axis.text(0.98, level, text, transform=axis.get_yaxis_transform(), color=THEORY, ha="right",
              va="bottom")


def caption(figure, text, *runs):
    """A text below the figure, followed by those settings that all the runs share."""
    configs = [vars(run["config"]) for run in runs]
    shared = {name: value for name, value in configs[0].items()
              if all(c[name] == value for c in configs)} if runs else {}
    names = {"T": "T", "q": "q", "d": "d", "d_e": "$d_e$", "lr": "lr"}
    words = [f"{label} = {shared[name]:g}" for name, label in names.items() if name in shared]
    if "optimizer" in shared:
        words.append("gradient descent" if shared["optimizer"] == "gd" else
                     shared["optimizer"].capitalize())
    if {"fresh", "batch"} <= shared.keys():
        words.append(f"{'fresh batches' if shared['fresh'] else 'one full batch'} of "
                     f"{shared['batch']} sequences")
    words = [word.replace(" ", "\N{NO-BREAK SPACE}") for word in words]
    text = " ".join([text, *([", ".join(words) + "."] if words else [])])
    figure.supxlabel(textwrap.fill(text, int(10 * figure.get_figwidth())), fontsize=14)


def figure_1(runs):
    """Global convergence of the full model: loss, 1/L, and the directions of W and V."""
    runs = runs["full model",]
    c, t = runs[0]["config"], smooth_loss(runs[0])[0]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 5))
    for run in runs:
        L = smooth_loss(run)[1]
        left.plot(t, L, color=STOCHASTIC, linewidth=1.5)
        middle.plot(t, 1 / L, color=STOCHASTIC, linewidth=1.5)
        for name, line in ("W", "-"), ("V", "--"):
            right.plot(run["eval_step"], run[f"cos_{name}"], line, color=STOCHASTIC, linewidth=1.5,
                       label=f"cos({name}, {name}*)" if run is runs[0] else None)
    zero_line(left, zero_predictor(c))
    late, end = t[50:], np.mean([1 / smooth_loss(run)[1][-1] for run in runs])
    middle.plot(late, end + predicted_slope(c) * (late - t[-1]), ":", color=THEORY, linewidth=3,
                label="derived slope,\n4 lr/($q^2 d_e$) a step")
    left.set(title="training loss L", ylim=(0, None))
    middle.set(title="1/L", ylim=(0, None))
    right.set(title="cosine similarity")
    for axis in left, middle, right:
        axis.set(xlabel="step t", xticks=np.linspace(0, c.steps, 3))
    middle.legend(loc="upper left")
    right.legend(loc="center right")
    caption(figure, f"Full model: keys [Z, $z_{{query}}$], mean query, redrawn orthonormal "
            f"encodings, random start. A line for each of {len(SEEDS)} seeds.", *runs)
    return figure


def error_curves(stochastic, fixed, rows, scale):
    """A figure with a row of panels for each list of tests (T, q), and a curve for each arm."""
    figure, axes = plt.subplots(len(rows), 5, figsize=(14, 1.6 + 3 * len(rows)), sharex=True,
                                sharey="row", squeeze=False)
    c, t = stochastic[0]["config"], stochastic[0]["eval_step"]
    for row, tests in zip(axes, rows):
        used = row[5 - len(tests):]
        for axis in row:
            axis.margins(y=0.15)
            axis.set_visible(axis in used)
        for axis, (T, q) in zip(used, tests):
            curves = [(errors(stochastic, T, q), STOCHASTIC, "-", "stochastic"),
                      (errors(fixed, T, q), FIXED, "--", "fixed")]
            lower = min(curves, key=lambda curve: curve[0][:, -1].mean())[-1]
            for values, color, line, name in curves:
                band(axis, t, values, color, linestyle=line, label=name)
                axis.annotate(name, (t[-1], values[:, -1].mean()), (0, -9 if name == lower else 9),
                              color=color, textcoords="offset points", ha="right",
                              va="top" if name == lower else "bottom",
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0})
            zero_line(axis, c.d / (2 * q), "zero predictor" if axis is used[0] else "")
            title = f"$T_{{test}}$ = {T}" if q == c.q else f"$q_{{test}}$ = {q}"
            axis.set(title="the trained task" if (T, q) == (c.T, c.q) else title, yscale=scale)
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.tick_params(labelleft=axis is used[0])
        used[0].set_ylabel("error")
    for axis in (axes[0, 0], *axes[-1]):
        axis.set(xlabel="step t", xticks=np.linspace(0, c.steps, 3))
        axis.tick_params(labelbottom=True)
    return figure


def pair_caption(figure, stochastic, fixed):
    """The caption of Figures 2, 4 and 5."""
    caption(figure, "Random signs. A test of stochastic encodings averages 16 draws (Definition 5)."
            f" {len(SEEDS)} seeds: mean and range.", *stochastic, *fixed)


def figure_2(runs):
    """Length generalization: error on the trained task and on longer sequences."""
    stochastic, fixed = runs["gd", "stochastic"], runs["gd", "fixed"]
    c = stochastic[0]["config"]
    figure = error_curves(stochastic, fixed, [[(c.T, c.q), *tests_of(c)[0]]], "linear")
    pair_caption(figure, stochastic, fixed)
    return figure


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model",][0]
    first, d = train.start(run["config"]), run["config"].d
    size = d + 25
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), height_ratios=[5, 1])
    for row, name in zip(axes, "WV"):
        for axis, matrix, when in (row[0], first[name], "before training"), (
                row[1], run[name], "after training"):
            image = axis.imshow(matrix[:size, :size], cmap="RdBu_r", interpolation="nearest",
                                norm=SymLogNorm(0.01, vmin=-10, vmax=10), aspect="auto")
            axis.axvline(d - 0.5, color="k", linewidth=1)
            axis.set(title=f"{name} {when}", xticks=[(d - 1) / 2, d + 12], yticks=[],
                     xlabel="coordinate of the query" if name == "W" else "coordinate of a key")
            axis.set_xticklabels(["token", "encoding"])
            axis.grid(False)
            if name == "W":
                axis.axhline(d - 0.5, color="k", linewidth=1)
                axis.set(yticks=[(d - 1) / 2, d + 12])
                axis.set_yticklabels(["token", "encoding"], rotation=90, va="center")
                axis.set_ylabel("coordinate of a key")
            else:
                axis.set_ylabel("output")
    figure.colorbar(image, ax=axes, shrink=0.7, label="entry (logarithmic beyond 0.01)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    c = run["config"]
    caption(figure, f"Full model as in Figure 1, seed 0. Shown are the {d} token coordinates and "
            f"25 of {c.d_e} encoding coordinates.")
    return figure


def out_of_distribution(runs, optimizer):
    """Longer sequences (top) and other subset sizes (bottom)."""
    stochastic, fixed = runs[optimizer, "stochastic"], runs[optimizer, "fixed"]
    c = stochastic[0]["config"]
    longer, other = tests_of(c)
    figure = error_curves(stochastic, fixed, [[(c.T, c.q), *longer], other], "log")
    pair_caption(figure, stochastic, fixed)
    return figure


def figure_4(runs):
    """Out of distribution: longer sequences (top) and other subset sizes (bottom)."""
    return out_of_distribution(runs, "gd")


def figure_5(runs):
    """The same with Adam."""
    return out_of_distribution(runs, "adam")


def widths(runs):
    """What nets cannot do: the error against the width, and the width that is needed against T."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6.4))
    attention = runs["attention", 10]
    c = attention[0]["config"]
    T, d, q = c.T, c.d, c.q
    m = np.arange(2 * T * d + 1)
    left.plot(m, fcn.width_lower_bound(m, T, d, q), "--", color=THEORY, label="bound for every net")
    for hidden, marker in (1, "o"), (2, "^"):
        points = [(m, error) for m, layers in NETS if layers == hidden
                  for error in errors(runs["net", m, hidden], T, q)[:, -1]]
        left.plot(*np.transpose(points), marker, color=NET, fillstyle="none", markersize=9,
                  label=f"trained nets, {hidden} hidden layer{'s' * (hidden > 1)}")
    left.plot([T * d, 2 * T * d], [fcn.constructed_loss(T, d, q, 5, narrow) for narrow in (1, 0)],
              "D", color=THEORY, markersize=9, label="constructed nets (fcn.py)")
    left.plot([d + c.d_e] * len(SEEDS), errors(attention, T, q)[:, -1], "*", color=STOCHASTIC,
              markersize=16, label="trained attention")
    left.axvline(T * d, color=THEORY, linewidth=1, linestyle=":")
    left.annotate(f"T d = {T * d}", (T * d, 0.12), (8, 0), textcoords="offset points",
                  color=THEORY)
    left.set(title=f"error at T = {T}", ylabel="error",
             xlabel="width: units of a net's first layer; for attention d + $d_e$")
    left.legend(loc="upper right")
    lengths = sorted({key[2] for key in runs if key[0] == "width"})
    rng, guesses = np.random.default_rng(0), []
    for T in lengths:
        right.plot([T] * len(SEEDS), needed_widths(runs, q, T), "*", color=STOCHASTIC,
                   markersize=13, label="trained" if T == lengths[0] else None)
        level, sizes = SHARE * d / (2 * q), WIDTHS[T]
        guesses.append(crossing(sizes, [predicted_error(T, d, q, d_e, rng) for d_e in sizes],
                                level))
    right.plot(lengths, guesses, "D", color=THEORY, fillstyle="none", markersize=9,
               label="predicted")
    right.set(title=f"$d_e$ that attention needs for an error of {SHARE:.0%} of d/(2q)",
              xlabel="length T (in brackets: the width that every net needs)", xscale="log",
              ylabel="dimension $d_e$ of an encoding", ylim=(0, None))
    right.set_xticks(lengths, [f"{T}\n({math.ceil(net_width(T, d, q))})" for T in lengths])
    right.minorticks_off()
    right.legend(loc="upper left")
    caption(figure, "Left: nets by Adam, attention by gradient descent, fresh batches, "
            f"orthonormal encodings. Right: random signs, interpolated between three trained "
            f"$d_e$; Adam, one full batch of 256. d = {d}, q = {q}, {len(SEEDS)} seeds.")
    return figure


FIGURES = {     # name: the drawing, its headline, and the arms that it needs, by key[0]
    "1": (figure_1, "With the mean query the full model converges to loss 0, and 1/L grows in a "
          "line", {"full model"}),
    "2": (figure_2, "On longer sequences stochastic encodings go on improving, and fixed ones "
          "level off", {"gd"}),
    "3": (figure_3, "A multiple of the identity grows in W on encodings, and in V on tokens",
          {"full model"}),
    "4": (figure_4, "Stochastic encodings end far lower on all tests but $q_{test}$ = 2, where "
          "both end alike", {"gd"}),
    "5": (figure_5, "With Adam, too, stochastic encodings end far lower on all tests but "
          "$q_{test}$ = 2", {"adam"}),
    "widths": (widths, "When T doubles, a net's width must double; attention adds 7 to 14 "
               "dimensions", {"attention", "net", "width"}),
}


@contextlib.contextmanager
def errors_in_one_line(parser):
    """End the program with one line if it is interrupted, or if a file cannot be written."""
    try:
        yield
    except KeyboardInterrupt:
        parser.exit(1, f"\n{parser.prog}: interrupted; the same command trains the other runs\n")
    except BrokenProcessPool:
        parser.exit(1, f"{parser.prog}: error: a process that trained a run was killed, perhaps "
                    "for lack of memory; the same command trains the other runs\n")
    except OSError as problem:
        parser.exit(2, f"{parser.prog}: error: {problem}\n")


def save_picture(figure, path):
    """Write a figure to a file, which is replaced as a whole."""
    with train.replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:])
    plt.close(figure)
    print(os.path.relpath(path), flush=True)


def main(figures=FIGURES, arms=arms, folder=HERE / "figures", description=__doc__):
    """Draw the figures that the command line names; returns the runs of each, unless --quick."""
    def name_of_a_figure(text):
        if text not in figures:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(figures)}")
        return text

    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    parser.add_argument("names", nargs="*", type=name_of_a_figure, metavar="FIGURE",
                        help=f"one of {', '.join(figures)} (all of them)")
    parser.add_argument("--quick", action="store_true", help="small tasks, for the classroom")
    parser.add_argument("--jobs", **train.number(int), default=os.cpu_count(),
                        help="number of runs trained at a time (%(default)s)")
    parser.add_argument("--out", type=Path, help=f"folder for the pictures ({folder.name}, or "
                        "runs/quick with --quick)")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the pictures (%(default)s)")
    args, begin = parser.parse_args(), time.time()
    names = args.names or list(figures)
    out = args.out or (train.RUNS / "quick" if args.quick else folder)
    with errors_in_one_line(parser):
        out.mkdir(parents=True, exist_ok=True)
        settings = arms(args.quick)
        needed = {key: settings[key] for key in settings
                  if any(key[0] in figures[name][2] for name in names)}
        runs = trained(needed, train.RUNS / ("quick" if args.quick else "figures"), args.jobs)
        for name in names:
            draw, headline, _ = figures[name]
            with plt.rc_context(STYLE):
                figure = draw(runs)
                figure.suptitle("A small task (--quick)" if args.quick else headline)
                save_picture(figure, out / f"{'figure_' * name.isdigit()}{name}.{args.format}")
        print(f"\nin {time.time() - begin:.0f} s", flush=True)
    return [] if args.quick else names, runs


if __name__ == "__main__":
    main()
