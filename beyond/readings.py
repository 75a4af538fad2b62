"""The claims of Figures 2, 4 and 5 under other readings of the paper:  python beyond/readings.py

The summaries that we know leave open how the encodings are drawn, how long they are, and more.  So
the claims of claims.py are measured here under several readings, with one seed.  Columns named
after encodings differ in their law and in d_e.  The other columns change one setting of the
figures; "one draw" tests the figures' runs with one draw of encodings instead of 16.

It takes half an hour on two cores, and can be stopped and started again: runs are kept in
runs/readings/, and those of plots.py are used.  It prints a table, and writes it and a picture to
beyond/figures/.  With --quick it trains small tasks, and writes to runs/quick/.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = map(str, [HERE, HERE.parent])

import plots        # first, since it sets the number of threads before NumPy loads

import argparse
import os

import matplotlib.pyplot as plt
import numpy as np

import claims
import sts
import train


def gaussian(rng, T, d_e):
    """Independent directions, uniform on the sphere."""
    E = rng.standard_normal((T, d_e))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


sts.LAWS["gaussian"] = gaussian, lambda T: 1    # here, so that each process that trains has it

READINGS = {    # for each optimizer: the settings of each reading
    "gd": {
        "signs 170": {"d_e": 170, "steps": 8000},
        "signs 320": {"d_e": 320, "steps": 8000},
        "signs 400": {"d_e": 400, "steps": 10000},
        "signs 500": {"d_e": 500, "steps": 12000},
        "signs 800": {"d_e": 800, "steps": 16000},
        "Gaussian 400": {"law": "gaussian", "d_e": 400, "steps": 10000},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400, "steps": 12000},
        "d = 3": {"d": 3, "d_e": 400, "steps": 16000},
        "lr 2": {"lr": 2.0, "d_e": 400, "steps": 14000},
    },
    "adam": {
        "signs 170": {"d_e": 170, "steps": 3000},
        "signs 320": {"d_e": 320, "steps": 3000},
        "signs 400": {"d_e": 400, "steps": 3000},
        "signs 500": {"d_e": 500, "steps": 3000},
        "signs 800": {"d_e": 800, "steps": 3000},
        "Gaussian 500": {"law": "gaussian", "d_e": 500, "steps": 3000},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400, "steps": 3000},
        "d = 3": {"d": 3, "d_e": 500, "steps": 3000},
        "lr .003, 800": {"lr": 0.003, "d_e": 800, "steps": 4000},
    },
}
SMALL = {"T": 20, "evaluations": 6, "eval_sequences": 32}
FIGURES = {"gd": "signs 400", "adam": "signs 500"}      # the readings of plots.py
ONE_DRAW, NOT_MEASURED = "one draw", "-"


def arms(quick):
    """The settings of each arm, by (optimizer, reading, kind of encodings)."""
    base = plots.arms(quick=False)
    found = {(optimizer, reading, pe): base[optimizer, pe] | change
             for optimizer, readings in READINGS.items() for reading, change in readings.items()
             for pe in ("stochastic", "fixed")}
    if quick:
        found = {key: arm | SMALL | {"d_e": arm["d_e"] // 10, "steps": arm["steps"] // 20,
                                     "lr": arm.get("lr", 0.01) / 2} for key, arm in found.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]["steps"] * item[1]["d_e"]))


def trained(arms, quick, jobs):
    """The run of each arm with seed 0; those that plots.py has too are kept where it keeps them."""
    theirs = {key: arm for key, arm in plots.arms(quick=False).items() if arm in arms.values()}
    kept = plots.trained(theirs, None, jobs, seeds=[0])
    own = {key: arm for key, arm in arms.items() if arm not in theirs.values()}
    runs = plots.trained(own, train.RUNS / ("quick" if quick else "readings"), jobs, seeds=[0])
    for key in arms.keys() - own.keys():
        runs[key] = next(kept[name] for name in theirs if theirs[name] == arms[key])
    return runs


def with_one_draw(run):
    """A copy of a trained run with the errors of single draws at the end, and no others after 0."""
    error = np.full_like(run["error"], np.nan)
    error[0] = run["error"][0]
    error[-1] = claims.single_draw_errors(run, train.tests(run["config"]))
    return run | {"error": error}


def cells(runs, optimizer):
    """For each reading, the claims of the figures that are trained with this optimizer."""
    def rows(stochastic, fixed):
        pair = {(optimizer, "stochastic"): stochastic, (optimizer, "fixed"): fixed}
        figures = ["2", "4"] if optimizer == "gd" else ["5"]
        return [(figure, row) for figure in figures for row in claims.CLAIMS[figure](pair)]

    found = {reading: rows(*[runs[optimizer, reading, pe] for pe in ("stochastic", "fixed")])
             for reading in READINGS[optimizer]}
    stochastic, fixed = (runs[optimizer, FIGURES[optimizer], pe] for pe in ("stochastic", "fixed"))
    found[ONE_DRAW] = [
        (figure, row._replace(holds=NOT_MEASURED) if "nan" in row.measured else row)
        for figure, row in rows([with_one_draw(run) for run in stochastic], fixed)]
    return found


def count(rows):
    """In how many of the readings, where it was measured, a claim holds."""
    verdicts = [row.holds for row in rows if row.holds != NOT_MEASURED]
    return f"{verdicts.count('yes')} of {len(verdicts)}"


def show(row):
    """The worst number of a claim."""
    digits = 3 if row.worst < 1 else 2 if row.worst < 10 else 0
    return "" if np.isnan(row.worst) else f"{row.worst:.{digits}f}"


def table(found):
    """Claims in rows, readings in columns, as text: the worst number, and whether it holds."""
    text = ""
    for optimizer, readings in found.items():
        lines = [("figure", optimizer, *readings, "holds in")]
        for line in zip(*readings.values()):
            rows = [row for _, row in line]
            lines.append((line[0][0], rows[0].claim,
                          *[f"{show(row)} {row.holds}".strip() for row in rows], count(rows)))
        text += claims.aligned(lines) + "\n"
    return text


COLORS = {"yes": "#9ECAE9", "NO": "#F6B48F", "undecided": "#E4E4E4", NOT_MEASURED: "#FFFFFF"}
MARKS = {"yes": "\N{CHECK MARK}", "NO": "\N{BALLOT X}", "undecided": "?",
         NOT_MEASURED: "\N{EN DASH}"}


def picture(found):
    """The table as a grid of coloured cells."""
    sizes = [len(next(iter(readings.values()))) for readings in found.values()]
    figure, axes = plt.subplots(len(found), 1, figsize=(14, 0.42 * sum(sizes) + 4.4),
                                height_ratios=sizes)
    for axis, (optimizer, readings) in zip(axes, found.items()):
        lines = list(zip(*readings.values()))
        width = len(readings)
        for i, line in enumerate(lines):
            for j, (_, row) in enumerate(line):
                axis.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, edgecolor="white",
                                             facecolor=COLORS[row.holds], linewidth=2))
                axis.text(j, i, f"{show(row)} {MARKS[row.holds]}", ha="center", va="center")
            axis.text(width, i, count([row for _, row in line]), ha="center", va="center")
        axis.set(xlim=(-0.5, width + 0.5), ylim=(len(lines) - 0.5, -0.5))
        names = [name.replace("orthonormal", "ortho- normal").replace("Gaussian", "Gauss- ian")
                 for name in readings]
        axis.set_xticks(range(width + 1), [name.replace(" ", "\n") if "=" not in name else name
                                           for name in names + ["holds in"]])
        column = list(readings).index(FIGURES[optimizer])
        axis.xaxis.get_major_ticks()[column].label2.set_fontweight("bold")
        axis.set_yticks(range(len(lines)), [f"{row.claim} ({figure})"
                                            for (figure, row), *_ in lines])
        axis.tick_params(length=0, labeltop=True, labelbottom=False)
        axis.spines[:].set_visible(False)
        axis.grid(False)
        axis.set_title("gradient descent" if optimizer == "gd" else "Adam", fontweight="bold",
                       loc="left")
    plots.caption(figure, "Bold: plots.py; in brackets: the figure. Numbers: worst test, seed 0 "
                  "(converges: the share that is left; it must still fall). \N{CHECK MARK} holds, "
                  "\N{BALLOT X} does not, ? undecided, \N{EN DASH} not measured.")
    return figure


def main():
    """Train the readings, print their table, write it, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small tasks, into runs/quick/")
    parser.add_argument("--jobs", **train.number(int), default=os.cpu_count(),
                        help="number of runs trained at a time (%(default)s)")
    args = parser.parse_args()
    folder = train.RUNS / "quick" if args.quick else HERE / "figures"
    with plots.errors_in_one_line(parser):
        folder.mkdir(parents=True, exist_ok=True)
        runs = trained(arms(args.quick), args.quick, args.jobs)
        found = {optimizer: cells(runs, optimizer) for optimizer in READINGS}
        print(table(found))
        with train.replacing(folder / "readings.txt") as file:
            file.write(table(found).encode())
        with plt.rc_context(plots.STYLE | {"savefig.dpi": 65}):         # a smaller file
            figure = picture(found)
            figure.suptitle("Which claims of Figures 2, 4 and 5 hold under which reading")
            plots.save_picture(figure, folder / "readings.png")


if __name__ == "__main__":
    main()
