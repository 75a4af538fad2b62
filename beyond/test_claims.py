"""Tests of claims.py and pictures.py:  python -m pytest beyond/test_claims.py

All claims hold on made-up runs.  Then one number of one seed is changed, at one time or on one
test, and exactly those claims fail that speak of it.
"""

import sys
from pathlib import Path
from unittest.mock import MagicMock, Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text

sys.path[:0] = map(str, [Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent])

import claims
import fcn
import pictures
import plots
import sts
import train

PATTERN = np.array([1, -1, -1, 1])      # its least-squares line is 0


def needed(seed, T):
    """The d_e that attention needs in made-up runs."""
    return 14 + (8 + seed / 2) * np.log2(T / 10)


def made_up(key, seed, arm):
    """A run for which all claims hold.  Errors begin at 0.8 (1 + q/100), or on lengths of fixed
    encodings at 0.9."""
    c = train.configuration(**arm | {"seed": seed})
    rng, tests = np.random.default_rng([seed, *str(key).encode()]), np.array(train.tests(c))
    u, (T, q) = np.linspace(0, 1, c.evaluations + 1)[:, None], tests.T
    noise = rng.uniform(1, 1.05, (len(u), len(tests)))
    noise[0] = 1
    if c.attend_to_query:
        run, inverse = train.start(c), rng.uniform(10, 10.2, 100)
        inverse[45:] += np.arange(55)
        for name, part in ("W", run["W"][c.d:, c.d:]), ("V", run["V"][:, :c.d]):
            run[name] *= rng.uniform(0.02, 0.08)
            np.fill_diagonal(part, rng.uniform(2.7, 3.3, len(part)))
        inverse *= plots.predicted_slope(c) * c.steps / 100
        return run | {"loss": np.repeat(1 / inverse, c.steps // 100),
                      "cos_W": 1 - noise[:, 0] / 200, "cos_V": 1 - noise[:, 0] / 180}
    if c.model == "fcn":
        error = noise * fcn.width_lower_bound(c.hidden[0], c.T, c.d, c.q) + 0.001 * noise
    elif key[0] == "attention":
        error = noise / 100
    elif key[0] == "width":
        error = plots.SHARE * plots.zero_predictor(c) * (needed(seed, c.T) / c.d_e) ** 2 * (2 - u)
    elif c.pe == "stochastic":
        error = 0.8 * noise * np.exp(-4 * u) * (1 + q / 100)
    else:                       # on lengths it levels off; on subset sizes it grows with q_test
        sizes = 0.8 * np.exp((-2.6 + 0.12 * q) * u) * (1 + q / 100)
        error = noise * np.where(T > c.T, 0.5 + 0.4 * np.exp(-20 * u), sizes)
    return {"config": c, "tests": tests, "error": error, "eval_step": u[:, 0] * c.steps,
            "se": 0.001 * noise}


@pytest.fixture(scope="module")
def runs():
    arms = plots.arms(quick=True) | {key: arm for key, arm in plots.arms(quick=False).items()
                                     if key[0] == "width"}
    return {key: [made_up(key, seed, arm) for seed in plots.SEEDS] for key, arm in arms.items()}


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    """Made-up runs have no trained weights; with one draw their errors are 1.2 times as large."""
    monkeypatch.setattr(plots, "predicted_error", lambda T, d, q, d_e, rng:
                        plots.SHARE * d / (2 * q) * (13 + 8.4 * np.log2(T / 10)) / d_e)
    monkeypatch.setattr(claims, "single_draw_errors", lambda run, tests: [
        1.2 * run["error"][-1, run["tests"].tolist().index([*test])] for test in tests])
    with plt.rc_context(plots.STYLE):
        yield
    plt.close("all")


def failing(runs):
    """The claims that fail, as a text: the numbers of their figures, and their rows from 0."""
    return " ".join(f"{figure}.{i}" for figure, measure in claims.CLAIMS.items()
                    for i, row in enumerate(measure(runs)) if row.holds not in ("yes", "-"))


# Rows of 2: stochastic converges, fixed never below, fixed levels off, advantage.
# Rows of 4: fixed at the end, stochastic converges, fixed converges, ahead, worse, one draw.
# Rows of 5: those of 2, lengths at best, stochastic converges, fixed converges, ahead, at best.
# Columns of errors: 0 is T = 50, 1 to 4 are longer, 5 to 8 have q = 2, 4, 5, 8.
full, redrawn, fixed = ("full model",), ("gd", "stochastic"), ("gd", "fixed")
own, other = ("adam", "stochastic"), ("adam", "fixed")


@pytest.mark.parametrize("key, name, place, value, claims_that_fail", [
    (full, "cos_W", -1, 0.989, "1.3"), (full, "cos_W", -1, 0.991, ""),
    (full, "cos_V", -1, 0.989, "1.4"), (full, "cos_V", -2, 0, ""),
    (full, "loss", slice(0, 20), 0.02, "1.0"), (full, "loss", slice(1660, 1700), 0.7, "1.1"),
    (full, "W", (-1, 3), 3, "3.1 3.2"), (full, "W", (0, 0), 5, "3.0 3.2"),
    (full, "W", (0, 0), 0.23, "3.2"), (full, "W", (0, 0), 0.2, ""),
    (full, "V", (0, 1), 0.8, "3.4 3.5"), (full, "V", (0, -1), 1.4, "3.3 3.5"),
    (full, "V", (0, -1), 0.06, "3.5"), (full, "V", (0, -1), 0.05, ""),
    (redrawn, "error", (-1, 0), 0.7, ""), (redrawn, "error", (20, 2), 9, ""),
    (redrawn, "error", (-1, 1), 0.204, ""), (redrawn, "error", (-1, 3), 0.207, "2.0"),
    (redrawn, "error", (slice(-14, None), 2), 0.03, "2.0"),
    (redrawn, "error", (-1, 4), 0.27, "2.0 2.3"), (redrawn, "error", (-1, 5), 0.15, "4.3 4.5"),
    (redrawn, "error", (-1, 5), 0.07, "4.5"),
    (redrawn, "error", (slice(-14, None), 8), 0.01, "4.1"),
    (fixed, "error", (20, 4), 0.149, "2.1"), (fixed, "error", (20, 1), 0.151, ""),
    (fixed, "error", (-1, 4), 0.149, "2.1 2.2 4.0"), (fixed, "error", (28, 3), 3, "2.2"),
    (fixed, "error", (-1, 1), 0.16, "2.2"), (fixed, "error", (slice(-14, None), 5), 0.09, "4.2"),
    (fixed, "error", (-1, 6), 0.02, "4.4"),
    (other, "error", (slice(10, 15), 3), 0.001, "5.1 5.4"), (other, "error", (0, 3), 0.01, "5.1"),
    (other, "error", (slice(10, 15), 7), 0.001, "5.8"), (other, "error", (-1, 7), 0.001, "5.7"),
    (own, "error", (slice(-5, None), 6), 0.08, "5.5"), (own, "error", (-1, 2), 0.26, "5.0 5.3"),
    (("net", 15, 2), "error", (-1, 0), 0.43, "widths.0"), (("net", 5, 1), "error", (-1, 0), 0.83,
                                                          "widths.1"),
    (("net", 50, 2), "error", (-1, 0), 0.03, "widths.2"),
    (("attention", 10), "error", (-1, 0), 0.06, "widths.3")])
def test_a_claim_fails_if_a_number_that_it_speaks_of_is_changed(runs, key, name, place, value,
                                                                claims_that_fail):
    values = runs[key][2][name].copy()
    values[place] = value
    changed = [*runs[key][:2], runs[key][2] | {name: values}]
    assert failing(runs | {key: changed}) == claims_that_fail


def test_widths_are_counted_per_token_in_parameters_and_in_all(runs):
    rows, net = claims.claims_widths(runs), {T: plots.net_width(T, 5, 3) for T in (10, 320)}
    small, large = (np.array([needed(seed, T) for seed in plots.SEEDS]) for T in (10, 320))
    expected = {
        "d_e / predicted": [needed(seed, T) / (13 + 8.4 * np.log2(T / 10)) for seed in plots.SEEDS
                            for T in plots.WIDTHS],
        "a doubling": [8.5] * 5,
        "d + d_e, T = 320 / T = 10": (5 + large) / (5 + small),
        "nets: needed width, T = 320 / T = 10": net[320] / net[10],
        "320: width": net[320] / (5 + large),
        "320: parameters": net[320] * (320 * 5 + 320) / ((5 + large) ** 2 + 5 * (5 + large)),
        "10: parameters": net[10] * 60 / ((5 + small) ** 2 + 5 * (5 + small)),
        "320: units": net[320] / (320 * (5 + large))}
    for text, values in expected.items():
        row, = (row for row in rows if text in row.claim)
        assert row.measured == claims.within("", values).measured, text
    assert [row.allowed for row in rows if "doubling" in row.claim] == ["predicted 8.4 to 8.4"]


def test_no_claim_holds_if_one_of_three_seeds_diverges(runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(claims, "HERE", tmp_path / "beyond")
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    (tmp_path / "figures").mkdir()
    nan = {"loss", "error", "cos_W", "cos_V", "W", "V"}
    diverged = {arm: [one, two | {key: two[key] * np.nan for key in nan & two.keys()}, three]
                for arm, (one, two, three) in runs.items()}
    for found, verdict in (runs, "yes"), (diverged, "NO"):
        monkeypatch.setattr(plots, "trained",
                            lambda arms: found if arms == plots.arms(quick=False) else {})
        claims.main()
        text = (tmp_path / "figures" / "claims.txt").read_text()
        assert text.strip() == capsys.readouterr().out.strip()
        rows = text.split("\n\n")[0].splitlines()[1:]          # without the legend
        lines = [line for line in rows if "nets: needed width" not in line]
        assert {line.split()[0] for line in lines} == claims.CLAIMS.keys()
        assert {line.split()[-1] for line in lines} == {verdict, "-"}


def test_late_slope_fits_a_line_to_the_second_half():
    inverse = np.full(100, 7.0)
    inverse[50:] = 3 + 0.4 * np.arange(50)
    inverse[50:98] += np.tile(PATTERN, 12)
    slope, R2 = claims.late_slope({"loss": np.repeat(1 / inverse, 3)})      # 300 steps
    line, rest = 0.4 ** 2 * (50 ** 2 - 1) / 12, 48 / 50                     # variances
    np.testing.assert_allclose([slope, R2], [0.4 / 3, line / (line + rest)])


def test_late_change_fits_a_line_to_the_logarithm_in_the_last_third():
    t, factors = np.arange(31) * 10, np.array([0.5, 1.2])
    found = np.random.default_rng(0).uniform(1, 2, (3, 2, 31))
    found[:, :, 20:] = 3 * factors[:, None] ** (np.arange(11) / 10)
    found[:, :, 20:28] *= np.exp(np.tile(PATTERN, 2))
    np.testing.assert_allclose(claims.late_change(found, t), [factors] * 3)


def test_block_measures_the_block_where_the_ground_truth_is_the_identity():
    u, v = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 7, 1, 8, 2])         # d = 2, d_e = 3
    run = {"config": train.configuration(d=2, d_e=3), "W": np.outer(u, v), "V": np.outer(u[:2], v)}
    assert claims.block(run, "W") == pytest.approx(
        (50 * 69 / (55 * 122), 45 / np.sqrt(3 * 50 * 69), np.sqrt(55 * 122 - 9 - 32 ** 2 - 100)))
    assert claims.block(run, "V") == pytest.approx(
        (53 / 122, 16 / np.sqrt(2 * 5 * 53), np.sqrt(5 * 122 - 4 - 14 ** 2)))


def test_errors_with_one_draw_are_means_over_many_draws(monkeypatch):
    monkeypatch.undo()
    run = train.train(T=6, q=2, d_e=9, T_test=[9], q_test=[3], steps=30, lr=1, evaluations=1,
                      eval_sequences=1000)
    rng, tests = np.random.default_rng(0), [(9, 2), (6, 3)]
    for k, (T, q), mean in zip((1, 2), tests, claims.single_draw_errors(run, tests, 200)):
        X, y = sts.sample_sts(rng, 1000, T, 5, q)
        own = [sts.loss(run["W"], run["V"], X, y, E)
               for E in sts.positional_encoding("rademacher", T, 9, rng, 200)]
        assert mean == pytest.approx(np.mean(own), rel=0.1)
        assert run["error"][-1, k] < 0.9 * mean                # 16 draws are better


@pytest.mark.parametrize("limits, allowed, worst, holds", [
    ((1, None), ">= 1", 1, "yes"), ((1.5, None), ">= 1.5", 1, "NO"), ((None, 6), "<= 6", 6, "yes"),
    ((None, 5.5), "<= 5.5", 6, "NO"), ((1, 5.5), ">= 1, <= 5.5", 6, "NO"), ((), "-", 1, "-")])
def test_a_claim_holds_if_all_seeds_are_within_the_limits(limits, allowed, worst, holds):
    assert claims.within("text", [1.0, 2, 6], *limits) == (
        "text", allowed, "3 (1 to 6)", worst, holds)


@pytest.mark.parametrize("factor, holds", [(1.5, "yes"), (1.3, "undecided"), (0.8, "undecided"),
                                           (0.6, "NO"), (np.nan, "NO")])
def test_a_ratio_is_undecided_within_two_standard_errors(factor, holds):
    ratios = factor * np.exp([[1, 1, 1], [-0.3, 0, 0.3]])   # standard error 0.3/sqrt(3) = .17
    row = claims.ahead("text", ratios, ["A", "B"])
    assert row.holds == holds and (row.worst == pytest.approx(factor) or holds == "NO")
    if factor == 1.5:
        assert row[:3] == ("text", "> 1", "1.5 (1.11 to 2.02) +- 17%, B")
    assert claims.ahead("", ratios[1:, 1:2] ** 0.75, ["B"]).holds == holds     # .1 for one seed


def test_the_help_trains_nothing_and_an_error_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(plots, "trained", Mock(side_effect=PermissionError(13, "no", "runs")))
    for module, argument, status in (claims, "--help", 0), (pictures, "--help", 0), (
            pictures, "--out=/dev/null", 2), (claims, "", 2):
        monkeypatch.setattr(sys, "argv", ["program", *argument.split()])
        with pytest.raises(SystemExit, match=f"^{status}$"):
            module.main()
        assert len(capsys.readouterr().err.splitlines()) == status / 2


@pytest.fixture(scope="module")
def small():
    """A run of a few steps, its weights at each evaluation, and a sequence."""
    run, states = pictures.trained(steps=6, evaluations=6)
    return run, states, pictures.example(run["config"])


def assert_readable(figure):
    """No text leaves the picture, and all can be read from the last row."""
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01
    assert min(text.get_fontsize() for text in figure.findobj(Text)) >= width
    assert figure._supxlabel.get_text().count("\n") <= 1


def assert_attention(bars, W, X, y, E):
    """Bars show the attention weights, and only the bars of selected positions are blue."""
    np.testing.assert_allclose([bar.get_height() for bar in bars], sts.attention(W, X, y, E)[0])
    blue = [bar.get_facecolor() == to_rgba(plots.STOCHASTIC) for bar in bars]
    assert np.flatnonzero(blue).tolist() == sorted(y[0])


def test_the_picture_shows_the_target_and_attention_before_and_after(small):
    run, states, (X, y, E, _) = small
    figure = pictures.task(run, states)
    assert_readable(figure)
    axes = {axis.get_title(): axis for axis in figure.axes}
    tokens = next(axes[title] for title in axes if "tokens" in title)
    assert [frame.get_x() + 0.5 for frame in tokens.patches] == y[0].tolist()
    lengths = {"target": X[0, y[0]].mean(axis=0)}
    for when, model in ("before training", train.start(run["config"])), ("after 6 steps", run):
        axis = axes[f"attention {when}"]
        assert_attention(axis.patches, model["W"], X, y, E)
        assert axis.lines[0].get_ydata() == [1 / 2, 1 / 2] and axis.get_ylim()[1] > 1 / 2
        lengths[f"output {when}"] = sts.forward(model["W"], model["V"], X, y, E)[0][0]
    for title, vector in lengths.items():
        np.testing.assert_allclose([bar.get_width() for bar in axes[title].patches], vector)
    assert [text.get_text() for text in axes["output before training"].texts] == ["nearly 0"]
    assert f"{np.trace(run['V'][:, :3]) / 3:.2f} times" in figure._supxlabel.get_text()


def test_the_movie_shows_each_step_and_ends_with_a_pause(small, monkeypatch):
    run, states, (X, y, E, _) = small
    seen, movie = [], pictures.movie(run, states)
    figure = plt.gcf()
    top, right = (next(axis for axis in figure.axes if text in axis.get_ylabel())
                  for text in ("weight", "training loss"))
    assert_readable(figure)
    assert right.lines[1].get_ydata() == [3 / 4, 3 / 4]

    def grab(**style):
        t = int(figure._suptitle.get_text().split("step ")[1].split(" of 6")[0])
        weights = dict(zip("WV", next(pair for step, *pair in states if step == t)))
        assert_attention(top.patches, weights["W"], X, y, E)
        np.testing.assert_array_equal(right.lines[0].get_ydata(), run["loss"][:t])
        for name in "WV":
            axis, = (axis for axis in figure.axes if axis.get_title().startswith(f"{name}:"))
            np.testing.assert_array_equal(axis.images[0].get_array(), weights[name][:20, :20])
            assert axis.images[0].get_clim()[1] == abs(run[name]).max() and axis.get_aspect() == 1
        seen.append(t)

    monkeypatch.setattr(figure.canvas, "draw_idle", Mock())     # no window shows it
    movie.save("", MagicMock(grab_frame=grab))
    assert seen == [0, 1, 2, 6] + [6] * 30                      # most frames show the first third
