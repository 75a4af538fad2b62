"""Figures 1 to 5 of the paper, and our Figure 6.

    python plots.py                      all of them, into figures/
    python plots.py 2 4 --format pdf     two of them, for slides
    python plots.py --quick              all of them on small tasks, into runs/quick/

Every curve has seeds 0, 1 and 2: the line is their mean, the band their range.  Runs with one seed
see the same sequences.  A trained run is kept in runs/figures/, in a file such as
"fixed, seed 0.npz".  It is trained again if its settings or the code of the model have changed.
"""

import argparse
import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: each process trains one run, in one thread
    for library in "OPENBLAS", "MKL", "OMP":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import matplotlib

matplotlib.use("Agg")           # draws into files, no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import NullFormatter

import fcn
import train

HERE, SEEDS = Path(__file__).resolve().parent, (0, 1, 2)
STOCHASTIC, FIXED, NET, THEORY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}

# The runs.  An arm is the settings of train.py that all seeds of a curve have in common.

NETS = [(m, hidden) for hidden in (1, 2) for m in (5, 15, 25, 40, 50)]      # Figure 6, left
WIDTHS = {10: (12, 16, 24), 20: (16, 24, 32), 40: (24, 32, 48), 80: (32, 48, 64),
          160: (32, 48, 64), 320: (48, 64, 96)}                 # Figure 6, right: d_e for each T
SHARE = 0.1                                                     # of d/(2q): the error to be reached


def arms(quick):
    """The settings of each arm, by its name."""
    def pick(full, small):
        return small if quick else full

    small = {"quick": True} if quick else {}
    signs = {"pe_dim": pick(320, 64), "lr": pick(5.0, 2.0), "steps": pick(8000, 1500)}
    adam = {"pe_dim": pick(170, 32), "optimizer": "adam", "steps": pick(4000, 600)}
    found = {"full model": {
        "attend_to_query": True, "query": "mean", "pe_family": "orthonormal", "init_std": 0.02,
        "pe_dim": pick(200, 40), "lr": pick(9.0, 4.0), "steps": pick(16000, 2000),
        "evaluations": 30, "eval_draws": 1, "q_test": [], **small}}
    for pe in "stochastic", "fixed":
        found[pe] = {"pe": pe, "fresh": True, "evaluations": 30, **signs, **small}
        found[f"{pe}, Adam"] = {"pe": pe, "fresh": True, "evaluations": 30, **adam, **small}
    task = {"T": 10, "d": 5, "q": 3, "fresh": True, "steps": pick(6000, 600), "evaluations": 1}
    found["attention, T = 10"] = task | {
        "pe_family": "orthonormal", "lr": 1.0, "T_test": [], "q_test": [],
        "eval_sequences": 2000}
    for m, hidden in NETS:
        found[net_name(m, hidden)] = task | {
            "model": "fcn", "hidden": [m] + [max(m, 64)] * (hidden - 1), "optimizer": "adam",
            "schedule": "cosine", "eval_sequences": 50000}
    for T, sizes in WIDTHS.items():
        for d_e in sizes:
            found[width_name(T, d_e)] = width_arm(T, d_e, 3, pick(1000, 100))
    return found


def net_name(m, hidden):
    """The name of the arm of a net with m units in the first of its hidden layers."""
    return f"net, {m} units, {hidden} hidden"


def width_name(T, d_e, q=3):
    """The name of the arm of width_arm."""
    return f"width, q = {q}, T = {T}, d_e = {d_e}"


def width_arm(T, d_e, q, steps=1000):
    """An arm that shows whether d_e dimensions are enough for length T."""
    return {"T": T, "q": q, "d": 5, "pe_dim": d_e, "optimizer": "adam", "lr": 0.03,
            "schedule": "cosine", "steps": steps, "evaluations": 1, "eval_sequences": 512,
            "T_test": [], "q_test": []}


def keep(path, settings):
    """Train a run and keep it in a file.  If it diverges, its later errors are nan."""
    run = train.start(train.configuration(**settings))
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            train.descend(run)
    except FloatingPointError:
        pass
    train.save(run, path)
    return path.stem


def kept(path, settings):
    """The run in a file, or None unless it has these settings and this code."""
    try:
        return train.load(path, train.configuration(**settings))
    except ValueError:
        return None


def trained(arms, folder=None, processes=os.cpu_count()):
    """The runs of each arm, one for each seed; what the folder does not keep is trained."""
    folder = folder or train.RUNS / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {(name, seed): (folder / f"{name}, seed {seed}.npz", arm | {"seed": seed})
            for name, arm in arms.items() for seed in SEEDS}
    missing = [job for job in jobs.values() if kept(*job) is None]
    if missing:
        ignore = signal.signal, (signal.SIGINT, signal.SIG_IGN)     # the parent ends the children
        with get_context("spawn").Pool(min(processes, len(missing)), *ignore) as pool:
            running = [pool.apply_async(keep, job) for job in missing]
            for i, result in enumerate(running, 1):
                print(f"{i:3} of {len(missing)}: {result.get()}", flush=True)
    return {name: [train.load(jobs[name, seed][0]) for seed in SEEDS] for name in arms}


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
    return 4 * c.lr / c.pe_dim / (c.q ** 2 if c.query == "mean" else 1)


def errors(runs, T, q):
    """The errors during training on the test with length T and subset size q (seeds, m)."""
    column = runs[0]["tests"].tolist().index([T, q])
    return np.array([run["error"][:, column] for run in runs])


def tests_of(c):
    """The tests on longer sequences, and those on other subset sizes, each as pairs (T, q)."""
    return [(T, c.q) for T in c.T_test], [(c.T, q) for q in c.q_test]


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


def needed_widths(runs, T, q=3):
    """The least d_e for an error of SHARE d/(2q) at length T, for each seed; nan if unknown."""
    sizes = sorted(runs[name][0]["config"].pe_dim for name in runs
                   if name.startswith(f"width, q = {q}, T = {T},"))
    found = np.array([errors(runs[width_name(T, d_e, q)], T, q)[:, -1] for d_e in sizes])
    level = SHARE * zero_predictor(runs[width_name(T, sizes[0], q)][0]["config"])
    return np.array([crossing(sizes, seed, level) for seed in found.T])


def net_width(T, d, q):
    """The least first-layer width m that the bound of fcn.py allows for the same error."""
    m = np.arange(T * d + 1)
    return int(np.argmax(fcn.width_lower_bound(m, T, d, q) <= SHARE * d / (2 * q)))


# The figures


def band(axis, x, curves, color, **style):
    """A line for the mean of the curves of all seeds, and a band for their range."""
    curves = np.array(curves)
    axis.plot(x, curves.mean(axis=0), color=color, **style)
    axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.25,
                      linewidth=0)


def zero_line(axis, level, text="zero predictor: d/(2q)"):
    """A dotted line at the error of the zero predictor."""
    axis.axhline(level, color=THEORY, linestyle=":", linewidth=1.5)
    axis.text(0.98, level, text, transform=axis.get_yaxis_transform(), color=THEORY, fontsize=11,
              ha="right", va="bottom")


def caption(figure, headline, text, c=None):
    """A headline above the figure; below it a text, and the settings c of its runs."""
    if c:
        how = "gradient descent" if c.optimizer == "gd" else "Adam"
        batch = "fresh batches" if c.fresh else "one full batch"
        text += (f"\nT = {c.T}, q = {c.q}, d = {c.d}, $d_e$ = {c.pe_dim}; {how}, lr {c.lr:g}, "
                 f"{batch} of {c.batch} sequences; {len(SEEDS)} seeds: mean and range.")
    figure.suptitle(headline, weight="bold")
    figure.supxlabel(text, fontsize=12)


def figure_1(runs):
    """Global convergence of the full model: loss, 1/L, and the directions of W and V."""
    runs = runs["full model"]
    c, t = runs[0]["config"], smooth_loss(runs[0])[0]
    losses = np.array([smooth_loss(run)[1] for run in runs])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.8))
    band(left, t, losses, STOCHASTIC)
    zero_line(left, zero_predictor(c))
    left.set(title="the loss goes to 0", xlabel="step t", ylabel="training loss L", ylim=(0, None))
    band(middle, t, 1 / losses, STOCHASTIC)
    late, end = t[50:], (1 / losses).mean(axis=0)[-1]
    middle.plot(late, end + predicted_slope(c) * (late - t[-1]), "--", color=THEORY)
    middle.text(0.05, 0.9, "dashed: derived slope\n4 lr/($q^2 d_e$) a step", color=THEORY,
                transform=middle.transAxes, va="top")
    middle.set(title="its inverse grows linearly", xlabel="step t", ylabel="1/L", ylim=(0, None))
    for name, line, color in ("W", "-", STOCHASTIC), ("V", "--", NET):
        curves = [run[f"cos_{name}"] for run in runs]
        band(right, runs[0]["eval_step"], curves, color, linestyle=line,
             label=f"cos({name}, {name}*)")
    right.legend(frameon=False, loc="center right")
    right.set(title="W and V turn to W* and V*", xlabel="step t", ylabel="cosine similarity")
    caption(figure, "The full model converges to loss 0 at rate 1/t",
            "Full model: keys [Z, $z_{query}$]. Mean query, redrawn orthonormal encodings, random "
            "start.", c)
    return figure


def error_curves(stochastic, fixed, rows, scale):
    """A figure with a row of panels for each list of tests (T, q), and a curve for each arm."""
    figure, axes = plt.subplots(len(rows), 4, figsize=(14, 1.8 + 3.1 * len(rows)), sharex=True,
                                sharey="row", squeeze=False)
    c, t = stochastic[0]["config"], stochastic[0]["eval_step"]
    for row, tests in zip(axes, rows):
        for axis, (T, q) in zip(row, tests[-4:]):
            for runs, color, line in (fixed, FIXED, "--"), (stochastic, STOCHASTIC, "-"):
                band(axis, t, errors(runs, T, q), color, linestyle=line)
            zero_line(axis, c.d / (2 * q), "zero predictor" if axis is row[0] else "")
            title = f"$T_{{test}}$ = {T}" if q == c.q else f"$q_{{test}}$ = {q}"
            axis.set(title=title, yscale=scale)
            axis.yaxis.set_minor_formatter(NullFormatter())
        row[0].set_ylabel("error, " + ("longer sequences" if q == c.q else "other subset sizes"))
    T, q = rows[0][-1]
    for runs, color, name in (fixed, FIXED, "fixed"), (stochastic, STOCHASTIC, "stochastic"):
        axes[0, -1].annotate(name, (t[-1], errors(runs, T, q)[:, -1].mean()), (8, 0), color=color,
                             textcoords="offset points", weight="bold", va="center",
                             annotation_clip=False)
    for axis in axes[-1]:
        axis.set_xlabel("step t")
    return figure


def figure_2(runs):
    """Length generalization: error on longer sequences during training."""
    c = runs["stochastic"][0]["config"]
    figure = error_curves(runs["stochastic"], runs["fixed"], tests_of(c)[:1], "linear")
    caption(figure, "On longer sequences redrawn encodings go on improving, fixed ones level off",
            "Random signs, redrawn at every step (stochastic) or drawn once (fixed).", c)
    return figure


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model"][0]
    first, d = train.start(run["config"]), run["config"].d
    size = d + 25
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.6), height_ratios=[6, 1])
    for row, name, title in (axes[0], "W", "the identity appears on encodings"), (
            axes[1], "V", "the identity appears on tokens"):
        for axis, matrix, when in (row[0], first[name], "before training"), (
                row[1], run[name], f"after: {title}"):
            image = axis.imshow(matrix[:size, :size], cmap="RdBu_r", interpolation="nearest",
                                norm=SymLogNorm(0.1, vmin=-10, vmax=10))
            axis.axvline(d - 0.5, color="k", linewidth=1)
            axis.set_title(f"{name} {when}", fontsize=14)
            axis.set(xticks=[(d - 1) / 2, d + 12], yticks=[])
            axis.set_xticklabels(["token", "encoding"])
            axis.grid(False)
        if name == "W":
            for axis in row:
                axis.axhline(d - 0.5, color="k", linewidth=1)
                axis.set(yticks=[(d - 1) / 2, d + 12], yticklabels=["token", "encoding"])
    figure.colorbar(image, ax=axes, shrink=0.7, label="entry (logarithmic beyond 0.1)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    c = run["config"]
    caption(figure, "Training adds the identity to W and V, far larger than the noise they began "
            "with", f"Full model as in Figure 1, seed 0. The first {size} rows and columns of W "
            f"({d} token, 25 of {c.pe_dim} encoding coordinates)\nand the first {size} columns of "
            "V. Most of the other entries of W stay as they began.")
    return figure


def figure_4(runs):
    """Out of distribution: longer sequences (top) and other subset sizes (bottom)."""
    c = runs["stochastic"][0]["config"]
    figure = error_curves(runs["stochastic"], runs["fixed"], tests_of(c), "log")
    caption(figure, "Redrawn encodings end far lower on all tests but $q_{test}$ = 2, where they "
            "end a little lower", "Random signs, redrawn (stochastic; the test averages 16 draws, "
            "Definition 5) or fixed. With a single draw fixed ones are lower at the bottom.", c)
    return figure


def figure_5(runs):
    """The same with Adam."""
    c = runs["stochastic, Adam"][0]["config"]
    figure = error_curves(runs["stochastic, Adam"], runs["fixed, Adam"], tests_of(c), "log")
    caption(figure, "With Adam redrawn encodings are better on longer sequences, but not at "
            "$q_{test}$ = 2", "Random signs, redrawn (stochastic; the test averages 16 draws, "
            "Definition 5) or fixed.", c)
    return figure


def figure_6(runs):
    """What nets cannot do: the error against the width, and the width that is needed against T."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 5.8))
    c = runs["attention, T = 10"][0]["config"]
    T, d, q = c.T, c.d, c.q
    m = np.arange(2 * T * d + 1)
    left.plot(m, fcn.width_lower_bound(m, T, d, q), "--", color=THEORY, label="bound for every net")
    for hidden, color, marker in (1, FIXED, "o"), (2, NET, "^"):
        points = [(m, error) for m, layers in NETS if layers == hidden
                  for error in errors(runs[net_name(m, hidden)], T, q)[:, -1]]
        left.plot(*np.transpose(points), marker, color=color, fillstyle="none", markersize=9,
                  label=f"trained nets, {hidden} hidden layer{'s' * (hidden > 1)}")
    left.plot([T * d, 2 * T * d], [fcn.constructed_loss(T, d, q, 5, narrow) for narrow in (1, 0)],
              "D", color=THEORY, markersize=9, label="constructed nets (fcn.py)")
    width = d + c.pe_dim
    left.plot([width] * len(SEEDS), errors(runs["attention, T = 10"], T, q)[:, -1], "*",
              color=STOCHASTIC, markersize=16, label="trained attention")
    left.axvline(T * d, color=THEORY, linewidth=1, linestyle=":")
    left.text(T * d, 0.55 * zero_predictor(c), f" T d = {T * d}", color=THEORY)
    left.set(title=f"T = {T}: trained nets come near the bound", ylabel="error",
             xlabel="width: units of the first layer; for attention d + $d_e$")
    left.legend(framealpha=1, edgecolor="none")
    lengths = list(WIDTHS)
    right.plot(lengths, [net_width(T, d, q) for T in lengths], "--s", color=THEORY,
               fillstyle="none", markersize=9)
    right.text(lengths[-1], net_width(lengths[-1], d, q) / 2.2, "every net:\nat least this",
               color=THEORY, va="top", ha="right")
    for T in lengths:
        right.plot([T] * len(SEEDS), d + needed_widths(runs, T, q), "*", color=STOCHASTIC,
                   markersize=13)
    right.text(lengths[-1], 42, "attention, trained", color=STOCHASTIC, va="top", ha="right")
    right.set(title=f"width needed for an error of {SHARE:.0%} of d/(2q)", xlabel="length T",
              ylabel="width", xscale="log", yscale="log", ylim=(10, 3000))
    right.set_xticks(lengths, lengths)
    right.minorticks_off()
    caption(figure, "Twice the length: a net's width must double, attention's grows by about 9",
            f"d = {d}, q = {q}; {len(SEEDS)} seeds, a point for each. Left: nets by Adam, "
            "attention by gradient descent, on fresh batches; orthonormal encodings.\nRight: the "
            "exact bound; attention with random signs by Adam on one full batch of 256 sequences.")
    return figure


FIGURES = {     # name: the drawing, and the arms that it needs
    "1": (figure_1, ["full model"]),
    "2": (figure_2, ["stochastic", "fixed"]),
    "3": (figure_3, ["full model"]),
    "4": (figure_4, ["stochastic", "fixed"]),
    "5": (figure_5, ["stochastic, Adam", "fixed, Adam"]),
    "6": (figure_6, ["attention, T = 10", *[net_name(*net) for net in NETS],
                     *[width_name(T, d_e) for T, sizes in WIDTHS.items() for d_e in sizes]]),
}


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
    parser.add_argument("--jobs", type=int, choices=range(1, 65), default=os.cpu_count(),
                        metavar="N", help="number of runs trained at a time (%(default)s)")
    parser.add_argument("--out", type=Path, help=f"folder for the pictures ({folder.name}, or "
                        "runs/quick with --quick)")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the pictures (%(default)s)")
    args, begin = parser.parse_args(), time.time()
    names = args.names or list(figures)
    out = args.out or (train.RUNS / "quick" if args.quick else folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        settings = arms(args.quick)
        needed = {arm: settings[arm] for name in names for arm in figures[name][1]}
        runs = trained(needed, train.RUNS / ("quick" if args.quick else "figures"), args.jobs)
        for name in names:
            path = out / f"{'figure_' * name.isdigit()}{name}.{args.format}"
            with plt.rc_context(STYLE):
                figures[name][0](runs).savefig(path)
            plt.close("all")
            print(os.path.relpath(path))
    except KeyboardInterrupt:
        parser.exit(1, f"\n{parser.prog}: interrupted; the same command trains the other runs\n")
    except OSError as problem:
        parser.exit(2, f"{parser.prog}: error: {problem}\n")
    print(f"\nin {time.time() - begin:.0f} s", flush=True)
    return {} if args.quick else {name: runs for name in names}


if __name__ == "__main__":
    main()
