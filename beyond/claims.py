"""What the captions of Figures 1 to 6 claim, and what we measure:  python beyond/claims.py

It measures the runs that plots.py keeps, trains those that are missing, prints a table, and writes
it to figures/claims.txt.  Each claim has several values, mostly one for
every seed.  It holds if all of them lie in
the allowed range.  The thresholds are ours, but for the 0.15 of Figure 4's caption.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np

import fcn
import plots
import sts
import train
from plots import errors, tests_of, zero_predictor


def late_slope(run):
    """The slope of 1/L in the second half of a run, by least squares, and the R^2 of that line."""
    t, L = (values[50:] for values in plots.smooth_loss(run))
    slope, offset = np.polyfit(t, 1 / L, 1)
    return slope, 1 - np.var(1 / L - slope * t - offset) / np.var(1 / L)


def late_change(curves, t):
    """The factor by which each curve (seeds, m) changes in the last third: a line through its ln.

    The line is fitted to the evaluations at steps t (m,), by least squares.
    """
    late = t >= t[-1] * 2 / 3
    return np.exp(np.polyfit(t[late], np.log(curves[:, late]).T, 1)[0] * np.ptp(t[late]))


def block(run, name):
    """Three numbers about W or V and about its block where the ground truth is the identity.

    They are the block's share of the squared norm, its cosine to the identity, and the norm of all
    entries off the block's diagonal.
    """
    d, matrix = run["config"].d, run[name].astype(float)      # for a small difference of squares
    part = matrix[d:, d:] if name == "W" else matrix[:, :d]
    squares = (matrix ** 2).sum()
    return ((part ** 2).sum() / squares, sts.cosine(part, np.eye(len(part))),
            np.sqrt(squares - (np.diag(part) ** 2).sum()))


def with_one_draw(run):
    """A copy of a finished run whose last errors are measured with a single draw of encodings."""
    single = run | {name: run[name].copy() for name in ("error", "se", "cos_W", "cos_V")}
    single["config"] = train.configuration(**vars(run["config"]) | {"eval_draws": 1})
    train.evaluate(single)
    return single


def all_errors(runs, tests):
    """The errors on several tests (tests, seeds, m)."""
    return np.array([errors(runs, T, q) for T, q in tests])


# The claims of each figure: (text, a value for each seed, least allowed, greatest allowed)


def claims_1(runs):
    """Global convergence: the rate 1/t, and the directions of W and V."""
    runs = runs["full model"]
    c, (slopes, R2) = runs[0]["config"], np.transpose([late_slope(run) for run in runs])
    ends = [plots.smooth_loss(run)[1][-1] / zero_predictor(c) for run in runs]
    return [("R^2 of 1/L against t, second half", R2, 0.99, None),
            ("its slope / the derived slope", slopes / plots.predicted_slope(c), 0.85, 1.15),
            ("L at the end / (d/(2q))", ends, None, 0.02),
            ("cosine of W and W* at the end", [run["cos_W"][-1] for run in runs], 0.99, None),
            ("cosine of V and V* at the end", [run["cos_V"][-1] for run in runs], 0.99, None)]


def claims_2(runs):
    """Length generalization, on the worst of the four lengths."""
    c, t = runs["fixed"][0]["config"], runs["fixed"][0]["eval_step"]
    longer, _ = tests_of(c)
    stochastic, fixed = (all_errors(runs[arm], longer) for arm in ("stochastic", "fixed"))
    falls, levels = ([late_change(curves, t) for curves in found] for found in (stochastic, fixed))
    return [("all T_test: fixed / stochastic, at the end",
             (fixed / stochastic)[:, :, -1].min(axis=0), 2, None),
            ("all T_test: least error of fixed at any time", fixed.min(axis=(0, 2)), 0.15, None),
            ("all T_test: stochastic, change in the last third", np.max(falls, axis=0), None, 0.9),
            ("all T_test: fixed, change in the last third", np.min(levels, axis=0), 0.9, None)]


def claims_3(runs):
    """Interpretable training: which entries of W and V remain."""
    rows = []
    for name, part in ("W", "PE-PE block"), ("V", "token block"):
        after = np.transpose([block(run, name) for run in runs["full model"]])
        before = np.transpose([block(train.start(run["config"]), name)
                               for run in runs["full model"]])
        rows += [(f"{name}: share of the {part} in the squared norm", after[0], 0.95, None),
                 (f"{name}: cosine of the {part} to the identity", after[1], 0.99, None),
                 (f"{name}: norm of all other entries, end / start", after[2] / before[2], None,
                  0.1)]
    return rows


def claims_4(runs):
    """Longer sequences and other subset sizes; the last row is ours: a test with one draw."""
    longer, other = tests_of(runs["fixed"][0]["config"])
    length, subset = ([all_errors(runs[arm], tests) for arm in ("stochastic", "fixed")]
                      for tests in (longer, other))
    ends = [curves[:, :, -1] for curves in (*length, *subset)]          # each (tests, seeds)
    falls = [(curves[:, :, -1] / curves[:, :, 0]).max(axis=0) for curves in subset]
    single = all_errors([with_one_draw(run) for run in runs["stochastic"]], other)[:, :, -1]
    return [("all T_test: stochastic, at the end", ends[0].max(axis=0), None, 0.15),
            ("all T_test: fixed, at the end", ends[1].min(axis=0), 0.15, None),
            ("all q_test: both arms, end / start", np.max(falls, axis=0), None, 1),
            ("all q_test: fixed / stochastic, at the end", (ends[3] / ends[2]).min(axis=0), 1,
             None),
            ("fixed: least rise from a q_test to the next", np.diff(ends[3], axis=0).min(axis=0),
             0, None),
            ("all q_test: fixed / stochastic with one draw", (ends[3] / single).min(axis=0), 1,
             None)]


def claims_5(runs):
    """The same with Adam.  Errors are means of 5 evaluations in a row, which are less noisy."""
    rows = []
    for name, tests in zip(("T_test", "q_test"), tests_of(runs["fixed, Adam"][0]["config"])):
        stochastic, fixed = (
            np.apply_along_axis(np.convolve, 2, all_errors(runs[arm], tests), np.ones(5) / 5,
                                "valid") for arm in ("stochastic, Adam", "fixed, Adam"))
        best = fixed.min(axis=2) / stochastic.min(axis=2)
        rows += [(f"all {name}: fixed / stochastic, at the end",
                  (fixed / stochastic)[:, :, -1].min(axis=0), 1, None),
                 (f"all {name}: the same, each stopped at its best", best.min(axis=0), 1, None)]
        if name == "T_test":
            rows.append(("all T_test: fixed rises again, end / least",
                         (fixed[:, :, -1] / fixed.min(axis=2)).min(axis=0), 1.1, None))
    return rows


def claims_6(runs):
    """Nets on the bound at T = 10, attention far below it; and how the needed widths grow."""
    c = runs["attention, T = 10"][0]["config"]
    T, d, q = c.T, c.d, c.q
    gaps, ratios, left = [], [], []
    for m, hidden in plots.NETS:
        nets = runs[plots.net_name(m, hidden)]
        bound, error = fcn.width_lower_bound(m, T, d, q), errors(nets, T, q)[:, -1]
        gaps.append((error - bound) / [net["se"][-1, 0] for net in nets])
        (ratios if m < T * d else left).append(error / (bound if m < T * d else zero_predictor(c)))
    own = fcn.width_lower_bound(d + c.pe_dim, T, d, q)
    lengths = np.array(list(plots.WIDTHS))
    needed = np.array([plots.needed_widths(runs, length, q) for length in lengths])
    doubling = np.polyfit(np.log2(lengths), needed, 1)[0]
    nets = np.array([plots.net_width(length, d, q) for length in lengths])
    return [("T = 10, all nets: (loss - bound) / standard error", np.min(gaps, axis=0), -4, None),
            ("T = 10, nets with m < T d: loss / bound", np.max(ratios, axis=0), None, 1.1),
            ("T = 10, nets with m >= T d: loss / (d/(2q))", np.max(left, axis=0), None, 0.02),
            ("T = 10: attention / bound for nets of its width",
             errors(runs["attention, T = 10"], T, q)[:, -1] / own, None, 0.1),
            ("attention: growth of needed d_e, T doubled", doubling, 7, 11),
            ("nets: growth of needed width, T doubled", nets[1:] / nets[:-1], 1.9, 2.1),
            (f"T = {lengths[-1]}: width of nets / of attention", nets[-1] / (d + needed[-1]), 10,
             None)]


CLAIMS = {"1": claims_1, "2": claims_2, "3": claims_3, "4": claims_4, "5": claims_5, "6": claims_6}


def table(rows):
    """Claims (figure, text, values, least, greatest) and whether they hold for all values, as text.

    A value that is nan is outside every range.
    """
    lines = [("figure", "claim", "allowed", "mean (least to greatest)", "holds")]
    for figure, text, values, least, greatest in rows:
        allowed = [f"{sign} {limit:g}" for sign, limit in ((">=", least), ("<=", greatest))
                   if limit is not None]
        holds = ((least is None or np.min(values) >= least)
                 and (greatest is None or np.max(values) <= greatest))
        lines.append((figure, text, ", ".join(allowed), f"{np.mean(values):.4g} "
                      f"({np.min(values):.4g} to {np.max(values):.4g})", "yes" if holds else "NO"))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines) + "\n"


def main():
    """Measure all claims, print their table, and write it to figures/claims.txt."""
    runs = plots.trained(plots.arms(quick=False))
    rows = [(figure, *row) for figure, claims in CLAIMS.items() for row in claims(runs)]
    print(table(rows))
    (HERE.parent / "figures" / "claims.txt").write_text(table(rows))


if __name__ == "__main__":
    main()
