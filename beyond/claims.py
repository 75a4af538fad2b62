"""What CLAIMS.md says about the captions of Figures 1 to 5, measured.

    python beyond/claims.py          all of it, into beyond/claims.txt
    python beyond/claims.py 1 3      about some figures

Numbers are means over seeds on each test, and the range of all.  CLAIMS.md says what is measured.
"""

from common import end_error, guarded      # first: NumPy gets one thread

import argparse

import numpy as np

import plots
import train
import width
from fixed import kept_error, subsets


def row(text, values, floor="", form="#.4g"):
    """A line for values (tests, seeds) or (seeds,): means over seeds, the range of all, floors."""
    means = ", ".join(f"{mean:{form}}" for mean in np.atleast_2d(values).mean(axis=1))
    return f"{text:52}  {means} ({np.min(values):{form}} to {np.max(values):{form}}){floor}"


def convergence(runs):
    """Figure 1: the error at the end, the rate 1/t, and the directions of W and V."""
    runs = runs["full model"]
    c, (t, _) = runs[0]["config"], plots.smooth_loss(runs[0])
    L = np.array([plots.smooth_loss(run)[1] for run in runs])
    slopes = np.polyfit(t[50:], 1 / L[:, 50:].T, 1)[0] * c.q ** 2 * c.d_e / (4 * c.lr)
    fits = [np.corrcoef(t[50:], inverse)[0, 1] ** 2 for inverse in 1 / L[:, 50:]]
    return [row("error at the end", L[:, -1] * 2 * c.q / c.d),
            row("1/L in the second half: slope / the derived one", slopes),
            row("1/L in the second half: R^2 of a straight line", fits),
            row("cosine of W and W*", [run["cos_W"][-1] for run in runs]),
            row("cosine of V and V*", [run["cos_V"][-1] for run in runs])]


def block(run, name):
    """Of W or V: the part of its squared norm that W* or V* is in, and the norm of the rest."""
    d, matrix = run["config"].d, run[name].astype(float)      # for a small difference of squares
    inside = ((matrix[d:, d:] if name == "W" else matrix[:, :d]) ** 2).sum()
    return inside / (matrix ** 2).sum(), np.sqrt((matrix ** 2).sum() - inside)


def entries(runs):
    """Figure 3: which entries of W and V remain."""
    after, rows = runs["full model"], []
    before = [train.start(run["config"]) for run in after]
    for name, part in ("W", "encoding block"), ("V", "token block"):
        (inside, rest), (_, start) = (np.transpose([block(run, name) for run in arm])
                                      for arm in (after, before))
        rows += [row(f"{name}, {part}: part of the squared norm", inside),
                 row(f"{name}, other entries: part of their norm that is left", rest / start)]
    return rows


def floors(runs, tests):
    """The computed floors on these tests, as text; a range over seeds if encodings are fixed."""
    c, rng = runs[0]["config"], np.random.default_rng(0)
    if c.pe == "stochastic":
        return "; floors " + ", ".join(f"{value:.2g}" for value in width.floors(c, tests))
    if c.optimizer == "adam" or tests[0][0] > c.T:
        return ""                                               # is not known
    kept = [[kept_error(E @ E.T, c.q, subsets(rng, 2000, *test)) for test in tests]
            for E in (run["E"][:c.T].astype(float) for run in runs)]
    return "; floors " + ", ".join(f"{min(own):.2g} to {max(own):.2g}" for own in zip(*kept))


def second_half(curves, t):
    """By which factor the second half of training changes each curve: its logarithm's line."""
    late = t >= t[-1] / 2
    slopes = np.polyfit(t[late], np.log(curves[..., late]).reshape(-1, late.sum()).T, 1)[0]
    return np.exp(slopes * np.ptp(t[late])).reshape(curves.shape[:-1])


def errors(runs, optimizer, longer):
    """Figures 2, 4 and 5: both kinds of encodings on longer sequences, or on other sizes."""
    first, name = runs[f"{optimizer} fixed"][0], "lengths" if longer else "sizes"
    c, t, ends, curves, rows = first["config"], first["eval_step"], [], [], []
    tests = [(T, q) for T, q in first["tests"].tolist()[1:] if (q == c.q) == longer]
    for pe in "stochastic", "fixed":
        arm = runs[f"{optimizer} {pe}"]
        ends.append(np.array([[end_error(run, *test) for run in arm] for test in tests]))
        columns = [first["tests"].tolist().index([*test]) for test in tests]
        curves.append(np.array([run["error"][:, columns].T for run in arm]).swapaxes(0, 1))
        rows += [row(f"{name}, {pe}: error at the end", ends[-1], floors(arm, tests)),
                 row(f"{name}, {pe}: factor of the second half", second_half(curves[-1], t))]
    rows += [row(f"{name}: fixed / stochastic at the end", ends[1] / ends[0])]
    if longer:
        rows += [row("lengths, fixed: least error at any step", curves[1].min(axis=-1))]
        rows += [row(f"lengths, stochastic: error at step {t[k]}", curves[0][..., k])
                 for k in np.flatnonzero(t >= 10_000)[:1]]
    elif optimizer == "adam":
        behind = np.where(curves[1] > curves[0], -1, np.arange(len(t))).max(axis=-1)
        rows += [row("sizes: stochastic lead from this step on", np.append(t, np.inf)[behind + 1],
                     form=".0f")]
    else:
        one = [[end_error(run, *test, draws=1) for run in runs["gd stochastic"]] for test in tests]
        rows += [row("sizes: fixed / stochastic, one draw in a test", ends[1] / one),
                 row("sizes, fixed: error / that at the size before", ends[1][1:] / ends[1][:-1])]
    return rows


MEASURED = {"1": [(convergence,)], "2": [(errors, "gd", True)], "3": [(entries,)],
            "4": [(errors, "gd", False)], "5": [(errors, "adam", True), (errors, "adam", False)]}


def measure(names):
    """Measure for these figures, and print it; if it is all of them, into claims.txt, too."""
    runs = plots.trained({k: arm for name in names for k, arm in plots.FIGURES[name][1].items()})
    text = "".join(f"{name}  {line}\n" for name in names
                   for part, *how in MEASURED[name] for line in part(runs, *how))
    print(text, end="")
    if names == [*MEASURED]:
        (plots.HERE / "beyond" / "claims.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FIGURE", help=f"{', '.join(MEASURED)} (all)")
    names = parser.parse_args().names or [*MEASURED]
    if not set(names) <= set(MEASURED):
        parser.error(f"figures are {', '.join(MEASURED)}, got {' '.join(names)}")
    guarded(parser, lambda: measure(names))
