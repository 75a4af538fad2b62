"""The claims of Figures 2, 4 and 5 under other readings of the paper:  python beyond/readings.py

The summaries that we know leave open how encodings are drawn, how long they are, how many draws a
training step averages, and more.  So the claims of claims.py are measured here under several
readings, with one seed.  The first column, "signs 300", has the figures' own runs.  Each other
reading changes what its name says, and the steps.  "One draw in a test" tests the figures' own runs
with one draw instead of 16.  The counts leave these two columns out.

It takes half an hour on two cores, and can be stopped and started again.  It keeps its runs in
runs/readings/, and uses the runs that plots.py keeps.  The table is printed, and written to
beyond/figures/; with --quick, for small tasks, to runs/quick/.
"""

import claims       # first: it finds the other files, and sets the number of threads

import argparse
import os

import numpy as np

import plots
import sts
import train


def gaussian(rng, T, d_e):
    """Independent directions, uniform on the sphere."""
    E = rng.standard_normal((T, d_e))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


sts.LAWS["gaussian"] = gaussian, lambda T: 1    # here, so that each process that trains has it

FIGURES, ONE_DRAW = "signs 300", "one draw in a test"
READINGS = {    # for each optimizer: what each reading changes in the settings of the figures
    "gd": {
        FIGURES: {}, "1 draw": {"draws": 1},
        "signs 170": {"d_e": 170, "steps": 6000},
        "signs 500": {"d_e": 500, "steps": 12000},
        "Gaussian 300": {"law": "gaussian"},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400, "steps": 12000},
        "d = 3": {"d": 3, "steps": 12000},
    },
    "adam": {
        FIGURES: {}, "1 draw": {"draws": 1},
        "16 draws": {"draws": 16},
        "signs 170": {"d_e": 170},
        "signs 500": {"d_e": 500},
        "Gaussian 300": {"law": "gaussian"},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400},
        "d = 3": {"d": 3},
        "lr .003": {"lr": 0.003, "steps": 4000},
    },
}
SMALL = {"T": 20, "evaluations": 6, "eval_sequences": 32}


def arms(quick):
    """The settings of each arm, by (optimizer, reading, kind of encodings), long runs first."""
    found = {}
    for key, arm in plots.arms(quick=False).items():
        for reading, change in READINGS.get(key[0], {}).items():
            draws = {"draws": 1} if key[1] == "fixed" else {}       # fixed encodings are one draw
            found[key[0], reading, key[1]] = arm | change | draws
    if quick:
        found = {key: arm | SMALL | {"d_e": arm["d_e"] // 10, "steps": arm["steps"] // 20,
                                     "lr": arm.get("lr", 0.01) / 2} for key, arm in found.items()}
    return dict(sorted(found.items(), reverse=True,
                       key=lambda item: item[1]["steps"] * item[1]["d_e"] * item[1]["draws"]))


def trained(arms, quick, jobs):
    """The run of each arm with seed 0; those that plots.py has too are kept where it keeps them."""
    theirs = {key: arm for key, arm in plots.arms(quick=False).items() if arm in arms.values()}
    kept = plots.trained(theirs, jobs=jobs, seeds=[0])
    own = {key: arm for key, arm in arms.items() if arm not in theirs.values()}
    runs = plots.trained(own, train.RUNS / ("quick" if quick else "readings"), jobs, seeds=[0])
    return runs | {key: kept[name] for key, arm in arms.items() for name in theirs
                   if arm == theirs[name]}


def with_one_draw(run):
    """A copy of a trained run with the errors of single draws at the end, and no others after 0."""
    error = np.full_like(run["error"], np.nan)
    error[0] = run["error"][0]
    error[-1] = claims.single_draw_errors(run, run["tests"].tolist())
    return run | {"error": error}


def cells(runs, optimizer):
    """For each reading, the claims of the figures that are trained with this optimizer."""
    pairs = {reading: [runs[optimizer, reading, pe] for pe in ("stochastic", "fixed")]
             for reading in READINGS[optimizer]}
    redrawn, fixed = pairs[FIGURES]
    pairs[ONE_DRAW] = [with_one_draw(run) for run in redrawn], fixed
    found = {reading: [] for reading in pairs}
    for reading, (redrawn, fixed) in pairs.items():
        pair = {(optimizer, "stochastic"): redrawn, (optimizer, "fixed"): fixed}
        for figure in ("2", "4") if optimizer == "gd" else ("5",):
            found[reading] += [(figure, row._replace(holds="-") if "nan" in row.measured else row)
                               for row in claims.CLAIMS[figure](pair)]
    return found


def show(row):
    """The worst number of a claim, and its verdict."""
    digits = 3 if row.worst < 1 else 2 if row.worst < 10 else 0
    return ("" if np.isnan(row.worst) else f"{row.worst:.{digits}f} ") + row.holds


def table(found):
    """Claims in rows, readings in columns, as text; the readings that are not our own counted."""
    text = ""
    for optimizer, readings in found.items():
        lines = [("figure", optimizer, *readings, "other readings")]
        for line in zip(*readings.values()):
            figure, rows = line[0][0], [row for _, row in line]
            others = [row.holds for row in rows[1:-1]]      # neither our own runs nor ONE_DRAW
            counts = ", ".join(f"{verdict} in {others.count(verdict)}"
                               for verdict in ("seen", "undecided", "not seen"))
            lines.append((figure, rows[0].claim, *map(show, rows), f"{counts} of {len(others)}"))
        text += claims.aligned(lines) + "\n"
    return text


def main():
    """Train the readings, print their table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small tasks, into runs/quick/")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs trained at a time")
    args = parser.parse_args()
    runs = trained(arms(args.quick), args.quick, args.jobs)
    text = table({optimizer: cells(runs, optimizer) for optimizer in READINGS})
    print(text)
    folder = train.RUNS / "quick" if args.quick else claims.HERE / "figures"
    (folder / "readings.txt").write_text(text)


if __name__ == "__main__":
    claims.in_one_line(main)
