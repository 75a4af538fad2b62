"""What is measured of the captions' claims, and of the nets.

    python beyond/claims.py                all claims, into figures/claims.txt
    python beyond/claims.py 1 3 widths     those of some figures
    python beyond/claims.py --readings     the same under other readings of the paper, one seed,
                                           into beyond/figures/readings.txt

It measures the runs that plots.py keeps, and trains those that are missing.  A claim is a caption's
words.  Errors are shares of d/(2q), but for the caption's 0.15.  Numbers stand for words like this:

    falls              at most a quarter of the start is left, and the last third of training
                       multiplies it by at most 0.9 (the table has both numbers)
    never below 0.15   the least error at any time, not over d/(2q)
    levels off         the last third of training multiplies it by at least 0.9
    clear advantage    fixed encodings have at least twice the error of stochastic ones
    ahead              the same ratio is above 1
    worse as q grows   the share at a q_test, over the share at the q_test before, is above 1

These thresholds are ours, but for the 0.15.  A claim is seen if every seed shows it on every test;
the table has the worst test.  A ratio that is compared with 1 is a geometric mean over the seeds.
It has a standard error, since each seed has its own sequences, encodings and training.  Within two
standard errors of 1 the claim is undecided.  The ratios of all tests follow it, in their order.

At the end, a test of stochastic encodings takes the mean output of 16 draws, as in the figures, or
one draw.  No caption speaks of one draw, or of the trained task: these rows are ours, and so are
"widths" and "scaled logits".
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))        # for all files here: they import claims first

import plots        # before NumPy loads, since it sets the number of threads

import argparse
from collections import namedtuple

import numpy as np

import fcn
import scaled_logits
import sts
import train
from plots import shares

LEFT, FALLING, LEVEL, CONSTANT, CLEAR = 0.25, 0.9, 0.9, 0.15, 2
ONE_SEED = 0.13     # the standard error of a ratio from one seed: what the runs of plots.py have


def zero_predictor(c):
    """d/(2q), the expected error of the zero predictor."""
    return c.d / (2 * c.q)


Row = namedtuple("Row", "claim allowed measured worst verdict")     # worst: a number, else texts


def within(claim, values, least=-np.inf, greatest=np.inf):
    """A claim that is seen if the values of all seeds are in a range."""
    low, high = np.min(values), np.max(values)
    limits = (">=", least), ("<=", greatest)
    return Row(claim,
               ", ".join(f"{sign} {limit:g}" for sign, limit in limits if np.isfinite(limit)),
               f"{np.mean(values):.4g} ({low:.4g} to {high:.4g})",
               low if greatest == np.inf else high,
               "seen" if least <= low and high <= greatest else "not seen")


def reported(claim, values):
    """What is measured without a demand, and so without a verdict."""
    return within(claim, values)._replace(allowed="-", verdict="-")


def ahead(claim, ratios, tests):
    """A claim that is seen if on each test the ratios (tests, seeds) are above 1.

    It is undecided if on some test their geometric mean is within two standard errors of 1.
    """
    logs = np.log(ratios)
    mean, seeds = logs.mean(axis=1), logs.shape[1]
    se = logs.std(axis=1, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.full(len(mean), ONE_SEED)
    worst, means = np.argmin(mean), np.exp(mean)
    measured = (f"{means[worst]:.3g} ({ratios[worst].min():.3g} to {ratios[worst].max():.3g}) +- "
                f"{se[worst]:.0%}")
    if len(tests) > 1:
        measured += f", {tests[worst]}; all {', '.join(f'{value:.3g}' for value in means)}"
    return Row(claim, "> 1", measured, means[worst], "seen" if all(mean > 2 * se)
               else "undecided" if all(mean >= -2 * se) else "not seen")


# Curves are arrays (tests, seeds, m), with one number for each evaluation.


def curves(runs, optimizer, longer):
    """The steps t, the shares of stochastic and of fixed encodings at t, the names of the tests.

    The tests are the ones on longer sequences, or the ones on other subset sizes.
    """
    stochastic, fixed = runs[optimizer, "stochastic"], runs[optimizer, "fixed"]
    own = stochastic[0]["config"].q
    tests = [(T, q) for T, q in stochastic[0]["tests"].tolist()[1:] if (q == own) == longer]
    return (stochastic[0]["eval_step"], *[np.array([shares(arm, T, q) for T, q in tests])
                                       for arm in (stochastic, fixed)],
            [f"T_test {T}" if longer else f"q_test {q}" for T, q in tests])


def late_change(curves, t):
    """The factor by which each curve changes in the last third: a line through its logarithm.

    The line is fitted to the evaluations at steps t (m,), by least squares.
    """
    late = t >= t[-1] * 2 / 3
    centred = t[late] - t[late].mean()
    slopes = np.log(curves[..., late]) @ centred / (centred ** 2).sum()
    return np.exp(slopes * np.ptp(t[late]))


def falls(claim, curves, t):
    """A claim that is seen if on all tests little of the start is left, and curves still fall."""
    rest = within(claim, (curves[..., -1] / curves[..., 0]).max(axis=0), greatest=LEFT)
    late = within(claim, late_change(curves, t).max(axis=0), greatest=FALLING)
    return rest._replace(allowed=f"{rest.allowed}; {late.allowed}",
                         measured=f"{rest.measured}; {late.measured}",
                         verdict=min(rest.verdict, late.verdict))   # not seen comes before seen


def best(curves):
    """The least mean of five evaluations in a row, which is less noisy than the least error."""
    return np.lib.stride_tricks.sliding_window_view(curves, 5, axis=-1).mean(axis=-1).min(axis=-1)


# The claims of each figure


def claims_1(runs):
    """Global convergence: the rate 1/t, and the directions of W and V."""
    runs = runs["full model",]
    t, L = plots.smooth_loss(runs[0])[0], np.array([plots.smooth_loss(run)[1] for run in runs])
    late, inverse = t[50:], 1 / L[:, 50:]
    slopes = np.polyfit(late, inverse.T, 1)[0] / plots.predicted_slope(runs[0]["config"])
    R2 = [np.corrcoef(late, values)[0, 1] ** 2 for values in inverse]
    return [falls("L falls", L[None], t),
            within("1/L is linear in t: R^2, second half", R2, 0.99),
            within("1/L: slope / the derived slope", slopes, 0.85, 1.15),
            within("cosine of W and W*, end", [run["cos_W"][-1] for run in runs], 0.99),
            within("cosine of V and V*, end", [run["cos_V"][-1] for run in runs], 0.99)]


def claims_2(runs, optimizer="gd"):
    """Length generalization."""
    t, stochastic, fixed, _ = curves(runs, optimizer, longer=True)
    zero = zero_predictor(runs[optimizer, "fixed"][0]["config"])
    return [falls("lengths: stochastic falls", stochastic, t),
            within("lengths: fixed never below 0.15", zero * fixed.min(axis=(0, 2)), CONSTANT),
            within("lengths: fixed levels off, last third", late_change(fixed, t).min(axis=0),
                   LEVEL),
            within("lengths: clear advantage at the end",
                   (fixed / stochastic)[:, :, -1].min(axis=0), CLEAR)]


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


def claims_3(runs):
    """Interpretable training: which entries of W and V remain."""
    rows = []
    for name, part in ("W", "PE-PE block"), ("V", "token block"):
        after = np.transpose([block(run, name) for run in runs["full model",]])
        before = np.transpose([block(train.start(run["config"]), name)
                               for run in runs["full model",]])
        rows += [within(f"{name}: {part}, share of the squared norm", after[0], 0.95),
                 within(f"{name}: {part}, cosine to the identity", after[1], 0.99),
                 within(f"{name}: other entries converge to 0, share of their norm left",
                        after[2] / before[2], greatest=LEFT)]
    return rows


def single_draw_errors(run, draws=24):
    """The errors at the end with one draw of encodings in a test, means over many draws (k,)."""
    found = []
    for k, (T, _) in enumerate(run["tests"].tolist()):
        X, y, _ = train.held_out(run, k, 1)
        E = train.encodings(run, T, draws, "tests", k, 2)       # others than in train.evaluate
        found.append(np.mean([sts.loss(run["W"], run["V"], X, y, E_k) for E_k in E]))
    return found


def advantage(runs, optimizer):
    """Fixed over stochastic encodings at the end, by the mean of 16 draws in a test, and by one.

    Definition 5 has the mean.  Subset sizes with it are Figure 4's claim, the other rows are ours.
    """
    stochastic, fixed = runs[optimizer, "stochastic"], runs[optimizer, "fixed"]
    c, tests = stochastic[0]["config"], stochastic[0]["tests"].tolist()
    T, q = np.transpose(tests)
    names = np.where(T > c.T, [f"T_test {T}" for T in T], [f"q_test {q}" for q in q])
    groups = {"the trained task": (T == c.T) & (q == c.q), "lengths": T > c.T, "sizes": q != c.q}
    ends, rows = np.array([run["error"][-1] for run in fixed]), []
    for how, errors in ((f"{c.eval_draws} draws", [run["error"][-1] for run in stochastic]),
                        ("one draw", [single_draw_errors(run) for run in stochastic])):
        ratios = (ends / errors).T                                          # (tests, seeds)
        rows += [ahead(f"{how}: stochastic ahead on {group}", ratios[own], names[own])
                 for group, own in groups.items()]
    return rows


def claims_4(runs):
    """Longer sequences, but for what Figure 2 has, and other subset sizes."""
    _, _, lengths, _ = curves(runs, "gd", longer=True)
    t, stochastic, fixed, names = curves(runs, "gd", longer=False)
    zero = zero_predictor(runs["gd", "fixed"][0]["config"])
    ends = fixed[:, :, -1]
    return [within("lengths: fixed at least 0.15 at the end",
                   zero * lengths[:, :, -1].min(axis=0), CONSTANT),
            falls("sizes: stochastic falls", stochastic, t),
            falls("sizes: fixed falls", fixed, t),
            ahead("sizes: fixed worse as q_test grows", ends[1:] / ends[:-1], names[1:]),
            *advantage(runs, "gd")]


def claims_5(runs):
    """The same with Adam, also with each arm stopped early, at its best."""
    _, *lengths, longer = curves(runs, "adam", longer=True)
    t, stochastic, fixed, names = curves(runs, "adam", longer=False)
    return claims_2(runs, "adam") + [
        ahead("lengths: stochastic ahead, each at its best", best(lengths[1]) / best(lengths[0]),
              longer),
        falls("sizes: stochastic falls", stochastic, t),
        falls("sizes: fixed falls", fixed, t),
        ahead("sizes: stochastic ahead, each at its best", best(fixed) / best(stochastic), names),
        *advantage(runs, "adam")]


def claims_widths(runs):
    """Nets on their bound at T = 10, and attention below it."""
    c = runs["attention",][0]["config"]
    T, d, q = c.T, c.d, c.q
    nets = [runs[("net", *sizes)] for sizes in plots.NETS]
    m = np.array([m for m, _ in plots.NETS])[:, None]
    zero = zero_predictor(c)
    error = np.array([shares(seeds, T, q)[:, -1] for seeds in nets])            # (nets, seeds)
    se = np.array([[net["se"][-1, 0] / zero for net in seeds] for seeds in nets])
    bound, narrow = fcn.width_lower_bound(m, T, d, q) / zero, m[:, 0] < T * d
    ends = shares(runs["attention",], T, q)[:, -1]
    return [within("T = 10: no net below the bound, (error - bound) / standard error",
                   ((error - bound) / se).min(axis=0), -4),
            within("T = 10: nets with m < T d on the bound, error / bound",
                   (error[narrow] / bound[narrow]).max(axis=0), greatest=1.1),
            within("T = 10: nets with m = T d, error / (d/(2q))",
                   error[~narrow].max(axis=0), greatest=0.02),
            within("T = 10: attention, error / bound for nets of its width",
                   ends * zero / fcn.width_lower_bound(d + c.d_e, T, d, q), greatest=0.1)]


def scale_and_rest(run, T, q):
    """The slope of the output over the target, and the two parts of the error over d/(2q) (3,).

    Let f = slope * target + rest by least squares.  Then the error is (1 - slope)^2 times that of
    the zero predictor, plus the rest's.  The slope is alpha s: V = alpha V* copies tokens, and the
    selected ones together get the attention s.
    """
    f, target = scaled_logits.end_outputs(run, T, q, scaled=False)
    f, zero = f.mean(axis=0), run["config"].d / q * len(target)
    slope = np.vdot(f, target) / np.vdot(target, target)
    return (slope, (1 - slope) ** 2 * (target ** 2).sum() / zero,
            ((f - slope * target) ** 2).sum() / zero)


def claims_scaled_logits(runs):
    """What stochastic encodings lack on longer sequences, and scaled logits."""
    stochastic, fixed = runs["gd", "stochastic"], runs["gd", "fixed"]
    c, tests = fixed[0]["config"], fixed[0]["tests"].tolist()
    slope, scale, rest = np.mean([[scale_and_rest(run, T, q) for T, q in tests if q == c.q]
                                  for run in stochastic], axis=0).T
    rows = [reported("lengths: output / target", slope[1:]),
            reported("lengths: part of the error that is this scale",
                     (scale / (scale + rest))[1:]),
            reported("lengths: the other part / error on the trained task",
                     rest[1:] / (scale + rest)[0])]
    for name, found, lengths in (("fixed", fixed, (2,)),
                                 ("stochastic", stochastic, (2, 5, 20, 80, 500))):
        for scaled in False, True:
            for times in lengths:
                share = scaled_logits.end_shares(found, [(times * c.T, c.q)], scaled, n=64)
                rows.append(reported(f"{name}{', scaled logits' * scaled}: error / (d/(2q)) at "
                                     f"{times} T", share))
    return rows


CLAIMS = {"1": claims_1, "2": claims_2, "3": claims_3, "4": claims_4, "5": claims_5,
          "widths": claims_widths, "scaled logits": claims_scaled_logits}


def aligned(lines):
    """Lines of cells as a text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines) + "\n"


def table(runs, names):
    """The claims of these figures and their verdicts, as text."""
    lines = [("figure", "claim", "allowed", "mean (least to greatest) over seeds", "seen")]
    for figure in names:
        for row in CLAIMS[figure](runs):
            lines.append((figure, row.claim, row.allowed, row.measured, row.verdict))
    return aligned(lines)


# Other readings of the paper.  The summaries that we know leave open how encodings are drawn, how
# long they are, how many draws a training step averages, and more.


def gaussian(rng, T, d_e):
    """Independent directions, uniform on the sphere."""
    E = rng.standard_normal((T, d_e))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


sts.LAWS["gaussian"] = gaussian, lambda T: 1    # here, so that each process that trains has it

FIGURES = "signs 500"   # this reading has the figures' own runs
READINGS = {    # for each optimizer: what each reading changes in the settings of the figures
    "gd": {
        FIGURES: {},
        "signs 300": {"d_e": 300, "steps": 8000},
        "1 draw": {"draws": 1},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400, "steps": 12000},
    },
    "adam": {
        FIGURES: {},
        "1 draw": {"draws": 1},
        "signs 170": {"d_e": 170},
        "Gaussian 500": {"law": "gaussian"},
        "orthonormal 400": {"law": "orthonormal", "d_e": 400},
    },
}


def read(optimizer):
    """The runs of each reading with one seed, as the claims take them.

    Those that plots.py has, too, are kept where it keeps them.
    """
    figures = {key: arm for key, arm in plots.arms(quick=False).items() if key[0] == optimizer}
    arms = {}
    for reading, change in READINGS[optimizer].items():
        for (_, pe), arm in figures.items():
            draws = {"draws": 1} if pe == "fixed" else {}           # fixed encodings are one draw
            if arm | change | draws != arm:
                arms[optimizer, reading, pe] = arm | change | draws
    kept = plots.trained(figures, seeds=plots.SEEDS[:1])
    own = plots.trained(arms, train.RUNS / "readings", seeds=plots.SEEDS[:1])
    return {reading: {key: own.get((optimizer, reading, key[1]), runs)
                      for key, runs in kept.items()} for reading in READINGS[optimizer]}


def with_one_draw(run):
    """A copy of a run with the errors of single draws at the end, and no others after step 0."""
    error = np.full_like(run["error"], np.nan)
    error[0], error[-1] = run["error"][0], single_draw_errors(run)
    return run | {"error": error}


def cell(row):
    """The worst number of a claim, and its verdict; "-" if it needs errors that are not known."""
    digits = 3 if row.worst < 1 else 2 if row.worst < 10 else 0
    number = "" if np.isnan(row.worst) else f"{row.worst:.{digits}f} "
    return number + ("-" if "nan" in row.measured else row.verdict)


def table_of_readings():
    """Claims in rows, readings in columns, as text; the readings that are not our own counted."""
    text = ""
    for optimizer, figures in ("gd", ("2", "4")), ("adam", ("5",)):
        readings, stochastic = read(optimizer), (optimizer, "stochastic")
        own = readings[FIGURES]
        readings["one draw in a test"] = own | {
            stochastic: [with_one_draw(run) for run in own[stochastic]]}
        lines = [("figure", optimizer, *readings, "other readings")]
        for figure in figures:
            for rows in zip(*[CLAIMS[figure](runs) for runs in readings.values()]):
                others = [row.verdict for row in rows[1:-1]]
                counts = ", ".join(f"{verdict} in {others.count(verdict)}"
                                   for verdict in ("seen", "undecided", "not seen"))
                lines.append((figure, rows[0].claim, *map(cell, rows),
                              f"{counts} of {len(others)}"))
        text += aligned(lines) + "\n"
    return text


def in_one_line(main):
    """Run a program; if it is interrupted or fails, it ends with one line."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command trains the other runs")
    except (FloatingPointError, ValueError, OSError) as problem:
        sys.exit(f"error: {problem}")


NEEDED = {"1": {"full model"}, "3": {"full model"}, "2": {"gd"}, "4": {"gd"}, "5": {"adam"},
          "widths": {"attention", "net"}, "scaled logits": {"gd"}}


def main():
    """Measure the claims that the command line names, and print their table; write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"{', '.join(CLAIMS)} (all)")
    parser.add_argument("--readings", action="store_true",
                        help="all under other readings of the paper (half an hour)")
    args = parser.parse_args()
    if not set(args.names) <= set(CLAIMS):
        parser.error(f"figures are {', '.join(CLAIMS)}, got {' '.join(args.names)}")
    names = args.names or list(CLAIMS)
    if args.readings:
        text, path = table_of_readings(), HERE / "figures" / "readings.txt"
    else:
        needed = set().union(*(NEEDED[name] for name in names))
        runs = plots.trained({key: arm for key, arm in plots.ARMS.items() if key[0] in needed})
        text, path = table(runs, names), HERE.parent / "figures" / "claims.txt"
        text += "" if args.names else "\n" + __doc__[__doc__.index("    falls "):]
    print(text)
    if not args.names:
        path.write_text(text)


if __name__ == "__main__":
    in_one_line(main)
