"""The claims of the paper's captions, Figures 1 to 5, measured.

    python beyond/claims.py          all claims, into beyond/claims.txt
    python beyond/claims.py 1 3      those of some figures

CLAIMS.md has the captions, what we demand, and why.  The runs are those that plots.py keeps; it
trains those that are missing.  A claim is seen if every seed shows it on every test, and seen in
part if errors converge, but to a floor above 0.  Floors are computed: those of stochastic random
signs by width.floors, those of fixed encodings by fixed.kept_error.

Curves are errors on 128 sequences, as in the paper, with a standard error of about 8 %.  So the
last weights are also tested on 2,048 new sequences, and each curve is rescaled to end there.
"""

from common import end_error, guarded      # first: NumPy gets one thread

import argparse
from pathlib import Path

import numpy as np

import plots
import width
import sts
import train
from fixed import kept_error, subsets


def numbers(values):
    """Values (tests, seeds) or (seeds,) as text: means over seeds, and the range of all."""
    means = ", ".join(f"{mean:.4g}" for mean in np.atleast_2d(values).mean(axis=1))
    return f"{means} ({np.min(values):.4g} to {np.max(values):.4g})"


def row(claim, demand, measured, shown, floor="-"):
    """A row of the table; `shown`, of all tests and seeds, says where the demand is met."""
    verdict = "not seen" if not np.all(shown) else "seen" if floor == "-" else "in part"
    return claim, demand, measured, floor, verdict


def within(claim, values, least=-np.inf, greatest=np.inf):
    """A claim that is seen if all values are in a range."""
    values, limits = np.array(values), ((">=", least), ("<=", greatest))
    demand = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if np.isfinite(limit))
    return row(claim, demand, numbers(values), (values >= least) & (values <= greatest))


# Curves are shares of d/(2q), arrays (tests, seeds, m) or (seeds, m), at the steps t (m,).

def end(run):
    """The errors over d/(2q) at the end of a run (k,), on 2,048 new sequences; kept in the run."""
    if "end" not in run:
        run["end"] = np.array([end_error(run, T, q) for T, q in run["tests"].tolist()])
    return run["end"]


def curves(runs, optimizer, longer):
    """The steps t, and stochastic and fixed errors on longer sequences, or on other sizes."""
    arms = [runs[f"{optimizer} {pe}"] for pe in ("stochastic", "fixed")]
    (_, own), *tests = arms[0][0]["tests"].tolist()
    columns = [k for k, (_, q) in enumerate(tests, 1) if (q == own) == longer]
    errors = [np.array([run["error"] / run["error"][-1] * end(run) for run in arm]) for arm in arms]
    return arms[0][0]["eval_step"], *[all_[..., columns].transpose(2, 0, 1) for all_ in errors]


def floors(runs, longer):
    """Floors on longer sequences, or on other sizes, as text; a range if encodings are fixed."""
    c, tests = runs[0]["config"], runs[0]["tests"].tolist()[1:]
    tests = [(T, q) for T, q in tests if (q == c.q) == longer]
    if c.pe == "stochastic":
        return ", ".join(f"{value:.2g}" for value in width.floors(c, tests))
    if c.optimizer == "adam":
        return "not known"
    rng, encodings = np.random.default_rng(0), [run["E"][:c.T].astype(float) for run in runs]
    kept = [[kept_error(E @ E.T, c.q, subsets(rng, 2000, *test)) for test in tests]
            for E in encodings]
    return ", ".join(f"{min(own):.2g} to {max(own):.2g}" for own in zip(*kept))


def second_half(curves, t):
    """The factor by which the second half of training changes each curve: its logarithm's line."""
    late = t >= t[-1] / 2
    centred = t[late] - t[late].mean()
    slopes = np.log(curves[..., late]) @ centred / (centred ** 2).sum()
    return np.exp(slopes * np.ptp(t[late]))


def converges(claim, curves, t, floor="-", level=False):
    """Seen if all curves converge, in part if they do to a floor; or seen if all level off."""
    left, factor = curves[..., -1], second_half(curves, t)
    demand, shown = ("factor >= 0.9", factor >= 0.9) if level else (
        "<= 0.1, or <= 0.5 and factor <= 0.85", (left <= 0.1) | (left <= 0.5) & (factor <= 0.85))
    return row(claim, demand, f"{numbers(left)}; factor {numbers(factor)}", shown, floor)


def ahead_from(ratios, t):
    """The step from which on a ratio (..., m) is above 1; infinite if it is not at the end."""
    last_behind = np.where(ratios > 1, -1, np.arange(len(t))).max(axis=-1)
    return np.append(t, np.inf)[last_behind + 1]


# The claims of each figure

def claims_1(runs):
    """Global convergence: the rate 1/t, and the directions of W and V."""
    runs = runs["full model"]
    c, (t, _) = runs[0]["config"], plots.smooth_loss(runs[0])
    L = np.array([plots.smooth_loss(run)[1] for run in runs])
    late, inverse = t[50:], 1 / L[:, 50:]
    slopes = np.polyfit(late, inverse.T, 1)[0] * c.q ** 2 * c.d_e / (4 * c.lr)
    fit = [np.corrcoef(late, values)[0, 1] ** 2 for values in inverse]
    return [converges("L converges", L * 2 * c.q / c.d, t),
            within("1/L is linear: R^2", fit, 0.99),
            within("1/L is linear: slope / the derived slope", slopes, 0.85, 1.15),
            within("W is aligned with W*: cosine", [run["cos_W"][-1] for run in runs], 0.99),
            within("V is aligned with V*: cosine", [run["cos_V"][-1] for run in runs], 0.99)]


def claims_2(runs, optimizer="gd"):
    """Length generalization: fixed encodings stay above 0.15, not over d/(2q)."""
    t, stochastic, fixed = curves(runs, optimizer, longer=True)
    c = runs[f"{optimizer} fixed"][0]["config"]
    k = np.append(np.flatnonzero(t >= 10_000), len(t) - 1)[0]           # "after 10k steps"
    return [within("lengths: clear advantage, fixed / stochastic",
                   fixed[..., -1] / stochastic[..., -1], 2),
            converges(f"lengths: stochastic converges by step {t[k]}", stochastic[..., :k + 1],
                      t[:k + 1], floors(runs[f"{optimizer} stochastic"], longer=True)),
            within("lengths: fixed never below 0.15", fixed.min(axis=-1) * c.d / (2 * c.q), 0.15),
            converges("lengths: fixed levels off", fixed, t, level=True)]


def block(run, name):
    """Three numbers about the block of W or V where the ground truth is the identity.

    Its fraction of the squared norm, its cosine to the identity, and the norm of what is outside.
    """
    d, matrix = run["config"].d, run[name].astype(float)      # for a small difference of squares
    part = matrix[d:, d:] if name == "W" else matrix[:, :d]
    squares = (matrix ** 2).sum()
    return ((part ** 2).sum() / squares, sts.cosine(part, np.eye(len(part))),
            np.sqrt(squares - (part ** 2).sum()))


def claims_3(runs):
    """Interpretable training: which entries of W and V remain."""
    trained, rows = runs["full model"], []
    new = [train.start(run["config"]) for run in trained]
    for name, part in ("W", "PE-PE block"), ("V", "token block"):
        after, before = (np.transpose([block(run, name) for run in arm]) for arm in (trained, new))
        rows += [within(f"{name}: only the {part}, fraction of the squared norm", after[0], 0.95),
                 within(f"{name}: {part} aligned with the identity, cosine", after[1], 0.99),
                 within(f"{name}: other entries go to 0, fraction of their norm left",
                        after[2] / before[2], greatest=0.25)]
    return rows


def sizes_converge(runs, optimizer):
    """Whether errors on other subset sizes converge."""
    t, *both = curves(runs, optimizer, longer=False)
    return [converges(f"sizes: {pe} converges", errors, t,
                      floors(runs[f"{optimizer} {pe}"], longer=False))
            for pe, errors in zip(("stochastic", "fixed"), both)]


def claims_4(runs):
    """Longer sequences, but for what Figure 2 has, and other subset sizes."""
    t, longer, lengths = curves(runs, "gd", longer=True)
    _, stochastic, fixed = curves(runs, "gd", longer=False)
    c, ends = runs["gd fixed"][0]["config"], fixed[..., -1]
    q = np.array([q for q in c.q_test if q != c.q])[:, None]
    ahead, worse = ends / stochastic[..., -1], ends[1:] / ends[:-1]
    one = ends / [[end_error(run, c.T, size, draws=1) for run in runs["gd stochastic"]]
                  for size in q[:, 0]]
    return [converges("lengths: stochastic converges", longer, t,
                      floors(runs["gd stochastic"], longer=True)),
            within("lengths: fixed at least 0.15 at the end", lengths[..., -1] * c.d / (2 * c.q),
                   0.15),
            *sizes_converge(runs, "gd"),
            row("sizes: stochastic ahead, fixed / stochastic", "> 1", numbers(ahead), ahead > 1),
            row("sizes: the same, one draw in a test", "> 1", numbers(one), one > 1),
            row("sizes: fixed worse as q_test grows", "> 1",
                f"{numbers(worse)}; plain errors {numbers(worse * q[:-1] / q[1:])}", worse > 1)]


def claims_5(runs):
    """The same with Adam, and from which step on stochastic encodings are ahead on each size."""
    t, stochastic, fixed = curves(runs, "adam", longer=False)
    own, *sizes = runs["adam fixed"][0]["tests"][:, 1].tolist()
    return [*claims_2(runs, "adam"), *sizes_converge(runs, "adam"),
            *[within(f"q_test {q}: stochastic ahead from this step on",
                     ahead_from(fixed[k] / stochastic[k], t), greatest=t[-1] / 4)
              for k, q in enumerate(q for q in sizes if q != own)]]


CLAIMS = {"1": claims_1, "2": claims_2, "3": claims_3, "4": claims_4, "5": claims_5}


def table(runs, names):
    """The claims of these figures with their verdicts, as text."""
    titles = ("figure", "claim", "demand", "mean over seeds on each test (range of all)", "floor",
              "verdict")
    lines = [titles] + [(name, *row) for name in names for row in CLAIMS[name](runs)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def main():
    """Measure the claims that the command line names, and print their table; write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"{', '.join(CLAIMS)} (all)")
    names = parser.parse_args().names
    if not set(names) <= set(CLAIMS):
        parser.error(f"figures are {', '.join(CLAIMS)}, got {' '.join(names)}")

    def work():
        runs = plots.trained({arm: settings for name in names or CLAIMS
                              for arm, settings in plots.FIGURES[name][1].items()})
        text = table(runs, names or CLAIMS)
        print(text, end="")
        if not names:
            Path(__file__).with_name("claims.txt").write_text(text, encoding="utf-8")

    guarded(parser, work)


if __name__ == "__main__":
    main()
