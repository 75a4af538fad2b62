"""Tests of claims.py:  python -m pytest beyond/test_claims.py

All claims hold on made-up runs.  Then one number of one seed is changed, at one time or on one
test, and exactly those claims fail that speak of it.
"""

import claims       # first: it finds the other files

import re
import sys
from concurrent.futures.process import BrokenProcessPool
from unittest.mock import Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fcn
import plots
import sts
import train

PATTERN = np.array([1, -1, -1, 1])      # its least-squares line is 0


def made_up(key, seed, arm):
    """A run for which all claims hold.  Errors begin at 0.8 (1 + q/100), or on lengths of fixed
    encodings at 0.9."""
    run = train.start(train.configuration(**arm | {"seed": seed, "eval_sequences": 2}))
    c, rng = run["config"], np.random.default_rng([seed, *str(key).encode()])
    u, (T, q) = np.linspace(0, 1, c.evaluations + 1)[:, None], run["tests"].T
    noise = rng.uniform(1, 1.05, (len(u), len(T)))
    noise[0] = 1
    if c.attend_to_query:
        inverse = rng.uniform(10, 10.2, 100)
        inverse[45:] += np.arange(55)
        for name, part in ("W", run["W"][c.d:, c.d:]), ("V", run["V"][:, :c.d]):
            run[name] *= rng.uniform(0.02, 0.08)
            np.fill_diagonal(part, rng.uniform(2.7, 3.3, len(part)))
        inverse *= 4 * c.lr / (c.q ** 2 * c.d_e) * c.steps / 100
        return run | {"loss": np.repeat(1 / inverse, c.steps // 100),
                      "cos_W": 1 - noise[:, 0] / 200, "cos_V": 1 - noise[:, 0] / 180}
    if c.model == "fcn":
        error = noise * fcn.width_lower_bound(c.hidden[0], c.T, c.d, c.q) + 0.001 * noise
    elif key == ("attention",):
        error = noise / 100
    elif c.pe == "stochastic":
        error = 0.8 * noise * np.exp(-4 * u) * (1 + q / 100)
    else:                       # on lengths it levels off; on subset sizes it grows with q_test
        sizes = 0.8 * np.exp((-2.6 + 0.12 * q) * u) * (1 + q / 100)
        error = noise * np.where(T > c.T, 0.5 + 0.4 * np.exp(-20 * u), sizes)
    return run | {"error": error, "se": 0.001 * noise}


@pytest.fixture(scope="module")
def runs():
    return {key: [made_up(key, seed, arm) for seed in plots.SEEDS]
            for key, arm in plots.arms(quick=True).items()}


@pytest.fixture(autouse=True)
def setting(monkeypatch):
    """Made-up runs have no trained weights; with one draw their errors are 1.2 times as large."""
    monkeypatch.setattr(claims, "single_draw_errors", lambda run, tests: [
        1.2 * run["error"][-1, run["tests"].tolist().index([*test])] for test in tests])
    with plt.rc_context(plots.STYLE):
        yield
    plt.close("all")


def failing(runs):
    """The claims that fail: their figures and texts."""
    return [f"{figure} {row.claim}" for figure, measure in claims.CLAIMS.items()
            for row in measure(runs) if row.holds != "seen"]


# Columns of errors: 0 is the trained task, 1 to 4 are longer, 5 to 8 have q = 2, 4, 5, 8.
full, redrawn, fixed = ("full model",), ("gd", "stochastic"), ("gd", "fixed")
own, other = ("adam", "stochastic"), ("adam", "fixed")
LATE = slice(-14, None)


@pytest.mark.parametrize("key, name, place, value, claims_that_fail", [
    (full, "cos_W", -1, 0.989, "1 cosine of W"), (full, "cos_W", -1, 0.991, ""),
    (full, "cos_V", -1, 0.989, "1 cosine of V"), (full, "cos_V", -2, 0, ""),
    (full, "loss", slice(0, 20), 0.02, "1 L converges"),
    (full, "loss", slice(1660, 1700), 0.7, "1 1/L is linear"),
    (full, "W", (-1, 3), 3, "3 W: PE-PE block, cosine; 3 W: other"),
    (full, "W", (0, 0), 5, "3 W: PE-PE block, share; 3 W: other"),
    (full, "W", (0, 0), 0.23, "3 W: other"), (full, "W", (0, 0), 0.2, ""),
    (full, "V", (0, 1), 0.8, "3 V: token block, cosine; 3 V: other"),
    (full, "V", (0, -1), 1.4, "3 V: token block, share; 3 V: other"),
    (full, "V", (0, -1), 0.06, "3 V: other"), (full, "V", (0, -1), 0.05, ""),
    (redrawn, "error", (-1, 0), 0.08, "4 one draw: redrawn ahead on the trained task"),
    (redrawn, "error", (-1, 0), 0.2, "4 16 draws: redrawn ahead on the trained task; "
                                     "4 one draw: redrawn ahead on the trained task"),
    (redrawn, "error", (20, 2), 9, ""), (redrawn, "error", (-1, 1), 0.204, ""),
    (redrawn, "error", (-1, 3), 0.207, "2 lengths: redrawn converges"),
    (redrawn, "error", (LATE, 2), 0.03, "2 lengths: redrawn converges"),
    (redrawn, "error", (LATE, 2), np.geomspace(0.03, 0.03 * 0.89, 14), ""),
    (redrawn, "error", (LATE, 2), np.geomspace(0.03, 0.03 * 0.91, 14),
     "2 lengths: redrawn converges"),
    (redrawn, "error", (-1, 4), 0.27, "2 lengths: redrawn converges; 2 lengths: clear"),
    (redrawn, "error", (LATE, 8), 0.01, "4 sizes: redrawn converges"),
    (redrawn, "error", (-1, 5), 0.07, "4 one draw: redrawn ahead on sizes"),
    (redrawn, "error", (-1, 5), 0.15, "4 16 draws: redrawn ahead on sizes; "
                                      "4 one draw: redrawn ahead on sizes"),
    (fixed, "error", (20, 4), 0.149, "2 lengths: fixed never"),
    (fixed, "error", (20, 1), 0.151, ""),
    (fixed, "error", (28, 3), 3, "2 lengths: fixed levels"),
    (fixed, "error", (LATE, 1), np.geomspace(0.4, 0.4 * 0.81, 14), ""),
    (fixed, "error", (LATE, 1), np.geomspace(0.4, 0.4 * 0.79, 14), "2 lengths: fixed levels"),
    (fixed, "error", (-1, 4), 0.149,
     "2 lengths: fixed never; 2 lengths: fixed levels; 4 lengths: fixed at least"),
    (fixed, "error", (LATE, 5), 0.09, "4 sizes: fixed converges"),
    (fixed, "error", (-1, 6), 0.02, "4 sizes: fixed worse"),
    (other, "error", (0, 3), 0.01, "5 lengths: fixed never"),
    (other, "error", (slice(10, 15), 3), 0.001,
     "5 lengths: fixed never; 5 lengths: redrawn ahead, each at its best"),
    (other, "error", (slice(10, 15), 7), 0.001, "5 sizes: redrawn ahead, each at its best"),
    (own, "error", (slice(-5, None), 6), 0.08, "5 sizes: redrawn converges"),
    (own, "error", (-1, 7), 0.11, "5 one draw: redrawn ahead on sizes"),
    (own, "error", (-1, 2), 0.26, "5 lengths: redrawn converges; 5 lengths: clear"),
    (("net", 15, 2), "error", (-1, 0), 0.43, "widths T = 10: no net below"),
    (("net", 5, 1), "error", (-1, 0), 0.83, "widths T = 10: nets with m < T d"),
    (("net", 50, 2), "error", (-1, 0), 0.03, "widths T = 10: nets with m = T d"),
    (("attention",), "error", (-1, 0), 0.06, "widths T = 10: attention")])
def test_a_claim_fails_if_a_number_that_it_speaks_of_is_changed(runs, key, name, place, value,
                                                                claims_that_fail):
    values = runs[key][2][name].copy()
    values[place] = value
    changed = [*runs[key][:2], runs[key][2] | {name: values}]
    found, expected = failing(runs | {key: changed}), claims_that_fail.split("; ")
    assert len(found) == len(expected) * bool(claims_that_fail)
    assert all(any(text in claim for text in expected) for claim in found)


@pytest.mark.parametrize("ratio, claim, count", [(1.99, "clear advantage", 1),
                                                 (2.01, "clear advantage", 0),
                                                 (1.19, "one draw: redrawn ahead on lengths", 1),
                                                 (1.21, "one draw: redrawn ahead on lengths", 0),
                                                 (0.99, "16 draws: redrawn ahead on lengths", 1),
                                                 (1.01, "16 draws: redrawn ahead on lengths", 0)])
def test_fixed_over_redrawn_at_the_end_decides_who_is_ahead(runs, ratio, claim, count):
    pair = {}
    for key in redrawn, fixed:
        pair[key] = [run | {"error": run["error"].copy()} for run in runs[key]]
    for one, two in zip(pair[redrawn], pair[fixed]):        # the same ratio for all seeds
        one["error"][-1, 3] = two["error"][-1, 3] / ratio
    assert sum(claim in text for text in failing(runs | pair)) == count


def test_no_claim_is_seen_if_one_of_three_seeds_diverges(runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(claims, "HERE", tmp_path / "beyond")
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    (tmp_path / "figures").mkdir()
    nan = {"loss", "error", "cos_W", "cos_V", "W", "V"}
    diverged = {arm: [one, two | {key: two[key] * np.nan for key in nan & two.keys()}, three]
                for arm, (one, two, three) in runs.items()}
    for found, verdict in (runs, "seen"), (diverged, "not seen"):
        monkeypatch.setattr(plots, "trained",
                            lambda arms: found if arms == plots.arms(quick=False) else {})
        claims.main()
        text = (tmp_path / "figures" / "claims.txt").read_text()
        assert text.strip() == capsys.readouterr().out.strip()
        rows = [re.split("  +", line) for line in text.split("\n\n")[0].splitlines()[1:]]
        assert {row[0] for row in rows} == claims.CLAIMS.keys()
        assert {row[-1] for row in rows} == {verdict}


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


def test_the_best_of_a_run_is_the_least_mean_of_five_evaluations():
    assert claims.best(np.array([[9.0, 9, 1, 2, 3, 4, 5, 9], [1, 1, 9, 9, 9, 9, 9, 9]])
                       ).tolist() == [3, 5.8]


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
    used = Mock(wraps=train.encodings)
    monkeypatch.setattr(train, "encodings", used)
    claims.single_draw_errors(run, tests)
    assert [call.args[1:3] for call in used.call_args_list] == [(9, 24), (6, 24)]


def test_one_draw_is_tested_on_the_sequences_of_the_figures(monkeypatch):
    monkeypatch.undo()
    run = train.start(train.configuration(T=6, q=2, law="orthonormal", eval_sequences=4))
    run["W"], run["V"] = (5 * matrix for matrix in sts.ground_truth(5, 12))
    train.evaluate(run)             # with these weights all orthonormal draws have the same error
    found = claims.single_draw_errors(run, run["tests"].tolist())
    np.testing.assert_allclose(found, run["error"][0], rtol=1e-4)


@pytest.mark.parametrize("limits, allowed, worst, holds", [
    ((1, None), ">= 1", 1, "seen"), ((1.5, None), ">= 1.5", 1, "not seen"),
    ((None, 6), "<= 6", 6, "seen"), ((None, 5.5), "<= 5.5", 6, "not seen"),
    ((1, 5.5), ">= 1, <= 5.5", 6, "not seen"), ((), "-", 1, "-")])
def test_a_claim_is_seen_if_all_seeds_are_within_the_limits(limits, allowed, worst, holds):
    assert claims.within("text", [1.0, 2, 6], *limits) == (
        "text", allowed, "3 (1 to 6)", worst, holds)


@pytest.mark.parametrize("log, holds", [(0.35, "seen"), (0.34, "undecided"), (-0.34, "undecided"),
                                        (-0.35, "not seen"), (np.nan, "not seen")])
def test_a_ratio_is_undecided_within_two_standard_errors(log, holds):
    ratios = np.exp(log + np.array([[1, 1, 1], [-0.3, 0, 0.3]]))    # standard error 0.3/sqrt(3)
    row = claims.ahead("text", ratios, ["A", "B"])
    assert row.holds == holds and (row.worst == pytest.approx(np.exp(log)) or np.isnan(log))
    if holds == "seen":
        assert row[:3] == ("text", "> 1", "1.42 (1.05 to 1.92) +- 17%, B; all 3.86, 1.42")
    one_seed = ratios[1:, 1:2] ** (0.26 / 0.345)            # a standard error of 13 %
    assert claims.ahead("", one_seed, ["B"]).holds == holds


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), PermissionError(13, "no", "runs"),
                                     BrokenProcessPool("a process was killed")])
def test_an_error_is_one_line_and_the_help_trains_nothing(problem, monkeypatch, capsys):
    monkeypatch.setattr(plots, "trained", Mock(side_effect=problem))
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    with pytest.raises(SystemExit) as end:
        claims.in_one_line(claims.main)
    assert (str(problem) or "interrupted") in end.value.code.strip().split("\n")[0]
    monkeypatch.setattr(sys, "argv", ["claims.py", "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        claims.main()
