"""Tests of claims.py and pictures.py:  python -m pytest beyond/test_claims.py

Claims are computed from made-up runs, whose numbers differ by seed, by test and by time.  So what
is measured on another seed, on another test or at another time has another value.
"""

import sys
from pathlib import Path
from unittest.mock import MagicMock, Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import claims
import fcn
import pictures
import plots
import sts
import train

LONGER, OTHER = [(25, 2), (30, 2), (35, 2), (40, 2)], [(20, 3), (20, 4), (20, 5), (20, 8)]
PATTERN = np.array([1, -1, -1, 1])      # its least-squares line is 0


def needed(seed, T):
    """The d_e that attention needs in made-up runs."""
    return 14 + (8 + seed / 2) * np.log2(T / 10)


def made_up(arm, seed):
    """A run for which all claims hold."""
    c = train.configuration(seed=seed, **plots.arms(quick=True)[arm])
    rng, tests = np.random.default_rng([seed, *arm.encode()]), np.array(train.tests(c))
    u, zero = np.linspace(0, 1, c.evaluations + 1)[:, None], plots.zero_predictor(c)
    noise = rng.uniform(1, 1.3, (len(u), len(tests)))
    if arm == "full model":
        run, inverse = train.start(c), rng.uniform(10, 12, 100)
        inverse[45:] += rng.uniform(1.8, 2.2) * np.arange(55)
        for name, part in ("W", run["W"][c.d:, c.d:]), ("V", run["V"][:, :c.d]):
            run[name] *= rng.uniform(0.02, 0.08)
            np.fill_diagonal(part, rng.uniform(2.7, 3.3, len(part)))
        return run | {"loss": np.repeat(1 / inverse, c.steps // 100),
                      "cos_W": 1 - noise[:, 0] / 200, "cos_V": 1 - noise[:, 1] / 200}
    if c.model == "fcn":
        bound = fcn.width_lower_bound(c.hidden[0], c.T, c.d, c.q)
        error = bound * (0.77 + noise / 4) if bound else noise / 100
    elif arm.startswith("width"):
        error = plots.SHARE * zero * (needed(seed, c.T) / c.pe_dim) ** 2 * (2 - u)
    elif c.pe == "fixed":       # rises, falls, rises again and levels off; grows with q_test
        curve = 0.4 + (0.8 + 40 * u) * np.exp(-20 * u) - 0.2 * np.exp(-40 * (u - 0.3) ** 2)
        rank = np.append(rng.uniform(0, 4, 5), np.arange(4) + rng.uniform(0, 0.8, 4))
        error = (1 + rank / 10 + noise / 50) * curve
    else:                       # falls until just before the end
        error = 0.05 * noise * np.exp(-1.5 * u) * (1 + 0.3 * (u == 1))
    return {"config": c, "tests": tests, "error": error, "eval_step": u[:, 0] * c.steps,
            "se": rng.uniform(0.001, 0.002, noise.shape)}


@pytest.fixture(scope="module")
def runs():
    return {arm: [made_up(arm, seed) for seed in plots.SEEDS] for arm in plots.arms(quick=True)}


def curves(runs, tests, optimizer=""):
    """For each seed, the errors on each test as a pair of curves (stochastic, fixed)."""
    pairs = zip(runs[f"stochastic{optimizer}"], runs[f"fixed{optimizer}"])
    return [[[run["error"][:, train.tests(run["config"]).index(test)] for run in pair]
             for test in tests] for pair in pairs]


def single(run):
    """Stands for with_one_draw."""
    return run | {"error": np.sqrt(run["error"])}


def check(rows, expected):
    """Compare claims with the numbers that each seed should have."""
    for (text, values, *_), numbers in zip(rows, np.transpose(expected), strict=True):
        np.testing.assert_allclose(values, numbers, rtol=1e-5, err_msg=text)


def test_figure_1_is_judged_by_the_second_half_and_by_the_end(runs):
    expected = []
    for run in runs["full model"]:
        slope, R2 = claims.late_slope(run)
        expected.append([R2, slope / (4 * 4 / (2 ** 2 * 40)), run["loss"][-1] / (3 / 4),
                         run["cos_W"][-1], run["cos_V"][-1]])
    check(claims.claims_1(runs), expected)


def test_figure_2_is_judged_by_the_worst_length(runs):
    def change(curve):
        return claims.late_change(curve[None], np.arange(31))[0]

    check(claims.claims_2(runs), [
        [min(f[-1] / s[-1] for s, f in pairs), min(f.min() for s, f in pairs),
         max(change(s) for s, f in pairs), min(change(f) for s, f in pairs)]
        for pairs in curves(runs, LONGER)])


def test_figure_3_compares_each_matrix_with_its_own_start(runs):
    expected = []
    for run in runs["full model"]:
        first = train.start(run["config"])
        expected.append([])
        for name in "WV":           # one entry will do: all others have shrunk by one factor
            factor = run[name][0, -1] / first[name][0, -1]
            expected[-1] += [*claims.block(run, name)[:2], factor]
    check(claims.claims_3(runs), expected)


def test_figure_4_is_judged_by_the_end_and_the_worst_test(runs, monkeypatch):
    monkeypatch.setattr(claims, "with_one_draw", single)
    check(claims.claims_4(runs), [
        [max(s[-1] for s, f in longer), min(f[-1] for s, f in longer),
         max(curve[-1] / curve[0] for pair in other for curve in pair),
         min(f[-1] / s[-1] for s, f in other),
         min(after[-1] - f[-1] for (_, f), (_, after) in zip(other, other[1:])),
         min(f[-1] / np.sqrt(s[-1]) for s, f in other)]
        for longer, other in zip(curves(runs, LONGER), curves(runs, OTHER))])


def test_figure_5_is_judged_by_means_of_five_evaluations(runs):
    def means(curve):
        return [curve[i:i + 5].mean() for i in range(len(curve) - 4)]

    expected = [[], [], []]
    for tests in LONGER, OTHER:
        for numbers, pairs in zip(expected, curves(runs, tests, ", Adam")):
            pairs = [(means(s), means(f)) for s, f in pairs]
            numbers += [min(f[-1] / s[-1] for s, f in pairs),
                        min(min(f) / min(s) for s, f in pairs)]
            if tests == LONGER:
                numbers.append(min(f[-1] / min(f) for s, f in pairs))
    check(claims.claims_5(runs), expected)


def test_figure_6_compares_with_the_bound_at_the_same_width(runs):
    *rows, nets, last = claims.claims_6(runs)
    bound = {m: fcn.width_lower_bound(m, 10, 5, 3) for m in (5, 15, 25, 40, 50)}
    width = {T: plots.net_width(T, 5, 3) for T in plots.WIDTHS}
    expected = []
    for seed in plots.SEEDS:
        ends = [(m, *(runs[plots.net_name(m, hidden)][seed][key][-1, 0] for key in ("error", "se")))
                for m, hidden in plots.NETS]
        attention = runs["attention, T = 10"][seed]["error"][-1, 0]         # d + d_e = 25
        expected.append([min((error - bound[m]) / se for m, error, se in ends),
                         max(error / bound[m] for m, error, _ in ends if m < 50),
                         max(error / (5 / 6) for m, error, _ in ends if m == 50),
                         attention / bound[25], 8 + seed / 2,
                         width[320] / (5 + needed(seed, 320))])
    check([*rows, last], expected)
    np.testing.assert_allclose(nets[1], [width[2 * T] / width[T] for T in (10, 20, 40, 80, 160)])


def test_all_claims_hold_and_none_does_if_one_of_three_seeds_diverges(
        runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(claims, "HERE", tmp_path / "beyond")
    monkeypatch.setattr(claims, "with_one_draw", single)
    (tmp_path / "figures").mkdir()
    measured = {"loss", "error", "cos_W", "cos_V", "W", "V"}
    diverged = {arm: [one, two | {key: two[key] * np.nan for key in measured & two.keys()}, three]
                for arm, (one, two, three) in runs.items()}
    for found, verdict in (runs, "yes"), (diverged, "NO"):
        monkeypatch.setattr(plots, "trained",
                            lambda arms: found if arms == plots.arms(quick=False) else {})
        claims.main()
        text = (tmp_path / "figures" / "claims.txt").read_text()
        assert text.strip() == capsys.readouterr().out.strip()
        lines = [line for line in text.splitlines()[1:] if "nets: growth" not in line]  # no runs
        assert {line[0] for line in lines} == set("123456")
        assert [line for line in lines if not line.endswith(verdict)] == []


def test_late_slope_fits_a_line_to_the_second_half():
    inverse = np.full(100, 7.0)
    inverse[50:] = 3 + 0.4 * np.arange(50)
    inverse[50:98] += np.tile(PATTERN, 12)
    slope, R2 = claims.late_slope({"loss": np.repeat(1 / inverse, 3)})      # 300 steps
    line, rest = 0.4 ** 2 * (50 ** 2 - 1) / 12, 48 / 50                     # variances
    np.testing.assert_allclose([slope, R2], [0.4 / 3, line / (line + rest)])


def test_late_change_fits_a_line_to_the_logarithm_in_the_last_third():
    t, factors = np.arange(31) * 10, np.array([0.5, 1.2])
    found = np.random.default_rng(0).uniform(1, 2, (2, 31))
    found[:, 20:] = 3 * factors[:, None] ** (np.arange(11) / 10)
    found[:, 20:28] *= np.exp(np.tile(PATTERN, 2))
    np.testing.assert_allclose(claims.late_change(found, t), factors)


def test_block_measures_the_block_where_the_ground_truth_is_the_identity():
    u, v = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 7, 1, 8, 2])         # d = 2, d_e = 3
    run = {"config": train.configuration(d=2, pe_dim=3), "W": np.outer(u, v),
           "V": np.outer(u[:2], v)}
    assert claims.block(run, "W") == pytest.approx(
        (50 * 69 / (55 * 122), 45 / np.sqrt(3 * 50 * 69), np.sqrt(55 * 122 - 9 - 32 ** 2 - 100)))
    assert claims.block(run, "V") == pytest.approx(
        (53 / 122, 16 / np.sqrt(2 * 5 * 53), np.sqrt(5 * 122 - 4 - 14 ** 2)))


def test_with_one_draw_is_the_last_evaluation_with_a_single_draw():
    settings = {"quick": True, "steps": 4, "evaluations": 2, "eval_sequences": 8}
    run, expected = train.train(**settings), train.train(**settings, eval_draws=1)
    before = run["error"].copy()
    found = claims.with_one_draw(run)["error"]
    np.testing.assert_array_equal(found, [*before[:-1], expected["error"][-1]])
    np.testing.assert_array_equal(run["error"], before)


def test_the_table_shows_what_is_allowed_the_mean_the_range_and_the_verdict():
    limits = [(1, None, ">= 1", "yes"), (1.5, None, ">= 1.5", "NO"), (None, 6, "<= 6", "yes"),
              (None, 5.5, "<= 5.5", "NO"), (1, 5.5, ">= 1, <= 5.5", "NO")]
    _, *lines = claims.table(
        [("1", "text", [1.0, 2, 6], *limit[:2]) for limit in limits]).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        f"1 text {allowed} 3 (1 to 6) {holds}" for _, _, allowed, holds in limits]


@pytest.fixture(scope="module")
def small():
    """A run of a few steps, its weights at each evaluation, and a sequence."""
    run, frames = pictures.trained(steps=4, evaluations=2)
    return run, frames, pictures.example(run["config"])


def assert_attention(bars, W, X, y, E):
    """Bars show the attention weights, and only the bars of selected positions are blue."""
    np.testing.assert_allclose([bar.get_height() for bar in bars], sts.attention(W, X, y, E)[0])
    blue = [bar.get_facecolor() == to_rgba(plots.STOCHASTIC) for bar in bars]
    assert np.flatnonzero(blue).tolist() == sorted(y[0])


def test_the_picture_shows_the_target_and_attention_before_and_after(small):
    run, frames, (X, y, E, _) = small
    axes = {axis.get_title(): axis.patches for axis in pictures.task(run, frames).axes}
    tokens, *_ = axes.values()
    assert [frame.get_x() + 0.5 for frame in tokens] == y[0].tolist()
    lengths = {"target: mean of the selected": X[0, y[0]].mean(axis=0)}
    for when, model in ("before training", train.start(run["config"])), ("after 4 steps", run):
        assert_attention(axes[f"attention {when}"], model["W"], X, y, E)
        lengths[f"output {when}"] = sts.forward(model["W"], model["V"], X, y, E)[0][0]
    for title, vector in lengths.items():
        np.testing.assert_allclose([bar.get_width() for bar in axes[title]], vector)
    plt.close("all")


def test_the_movie_has_a_frame_for_each_evaluation(small, monkeypatch):
    run, frames, (X, y, E, _) = small
    seen = []

    def grab(**style):
        t, W, V = frames[len(seen)]
        top, right, *matrices = figure.axes
        assert_attention(top.patches, W, X, y, E)
        for axis, matrix in zip(matrices, (W, V), strict=True):
            np.testing.assert_array_equal(axis.images[0].get_array(), matrix)
        np.testing.assert_array_equal(right.lines[0].get_ydata(), run["loss"][:t])
        seen.append(t)

    movie, figure = pictures.movie(run, frames), plt.gcf()
    monkeypatch.setattr(figure.canvas, "draw_idle", Mock())     # no window shows it
    movie.save("", MagicMock(grab_frame=grab))
    assert seen == run["eval_step"].tolist() == [0, 2, 4]
    plt.close("all")
