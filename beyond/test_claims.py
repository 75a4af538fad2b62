"""Tests of claims.py:  python -m pytest beyond/test_claims.py

All claims hold on made-up runs.  Then one number of one seed is changed, at one time or on one
test, and exactly those claims fail that speak of it.
"""

import claims       # first: it finds the other files

import re
import sys
from unittest.mock import Mock

import numpy as np
import pytest

import fcn
import plots
import scaled_logits
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


@pytest.fixture
def one_draw(monkeypatch):
    """Made-up runs have no trained weights; with one draw their errors are 1.2 times as large."""
    monkeypatch.setattr(claims, "single_draw_errors", lambda run: 1.2 * run["error"][-1])
    outputs = np.ones((2, 3, 5)), np.eye(3, 5)
    monkeypatch.setattr(scaled_logits, "end_outputs", lambda *given, **n: outputs)


# Columns of errors: 0 is the trained task, 1 to 4 are longer, 5 to 8 have q = 2, 4, 5, 8.
full, stochastic, fixed = ("full model",), ("gd", "stochastic"), ("gd", "fixed")
own, other = ("adam", "stochastic"), ("adam", "fixed")
LATE = slice(-14, None)


@pytest.mark.parametrize("key, name, place, value, claims_that_fail", [
    (full, "cos_W", -1, 0.989, "1 cosine of W"), (full, "cos_V", -1, 0.989, "1 cosine of V"),
    (full, "loss", slice(0, 20), 0.02, "1 L falls"),
    (full, "loss", slice(1660, 1700), 0.7, "1 1/L is linear"),
    (full, "W", (-1, 3), 3, "3 W: PE-PE block, cosine; 3 W: other"),
    (full, "W", (0, 0), 5, "3 W: PE-PE block, share; 3 W: other"),
    (full, "V", (0, 1), 0.8, "3 V: token block, cosine; 3 V: other"),
    (full, "V", (0, -1), 1.4, "3 V: token block, share; 3 V: other"),
    (stochastic, "error", (-1, 0), 0.2,
     "4 16 draws: stochastic ahead on the trained task; "
     "4 one draw: stochastic ahead on the trained task"),
    (stochastic, "error", (-1, 4), 0.27, "2 lengths: stochastic falls; 2 lengths: clear"),
    (stochastic, "error", (LATE, 8), 0.01, "4 sizes: stochastic falls"),
    (stochastic, "error", (-1, 5), 0.07, "4 one draw: stochastic ahead on sizes"),
    (fixed, "error", (-1, 4), 0.149,
     "2 lengths: fixed never; 2 lengths: fixed levels; 4 lengths: fixed at least"),
    (fixed, "error", (LATE, 5), 0.09, "4 sizes: fixed falls"),
    (fixed, "error", (-1, 6), 0.02, "4 sizes: fixed worse"),
    (other, "error", (slice(10, 15), 3), 0.001,
     "5 lengths: fixed never; 5 lengths: stochastic ahead, each at its best"),
    (other, "error", (slice(10, 15), 7), 0.001, "5 sizes: stochastic ahead, each at its best"),
    (own, "error", (-1, 7), 0.11, "5 one draw: stochastic ahead on sizes"),
    (("net", 15, 2), "error", (-1, 0), 0.43, "widths T = 10: no net below"),
    (("net", 5, 1), "error", (-1, 0), 0.83, "widths T = 10: nets with m < T d"),
    (("net", 50, 2), "error", (-1, 0), 0.03, "widths T = 10: nets with m = T d"),
    (("attention",), "error", (-1, 0), 0.06, "widths T = 10: attention")])
def test_a_claim_fails_if_a_number_that_it_speaks_of_is_changed(runs, one_draw, key, name, place,
                                                                value, claims_that_fail):
    values = runs[key][2][name].copy()
    values[place] = value
    changed = [*runs[key][:2], runs[key][2] | {name: values}]
    found = [f"{figure} {row.claim}" for figure, measure in claims.CLAIMS.items()
             for row in measure(runs | {key: changed}) if row.verdict not in ("seen", "-")]
    expected = claims_that_fail.split("; ")
    assert len(found) == len(expected)
    assert all(any(text in claim for text in expected) for claim in found)


def test_the_table_has_the_committed_claims_and_limits(runs, one_draw, monkeypatch, tmp_path,
                                                       capsys):
    """All are seen.  None is if one of three seeds diverges."""
    committed = (plots.HERE / "figures/claims.txt").read_text()
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
        assert text.split("\n\n")[1:] == committed.split("\n\n")[1:]      # the legend
        rows, expected = ([re.split("  +", line) for line in table.split("\n\n")[0].splitlines()]
                          for table in (text, committed))
        assert [row[:3] for row in rows] == [row[:3] for row in expected]   # with all limits
        assert {row[-1] for row in rows[1:]} == {verdict, "-"}
        assert {row[0] for row in rows if row[-1] == "-"} == {"scaled logits"}


def test_the_line_through_the_inverse_loss_is_that_of_the_second_half(runs):
    run, inverse = runs[full][0], np.full(100, 7.0)
    inverse[50:] = 3 + 0.4 * np.arange(50)
    inverse[50:98] += np.tile(PATTERN, 12)
    c = run["config"]
    _, R2, slope, *_ = claims.claims_1({full: [
        run | {"loss": np.repeat(1 / inverse, c.steps // 100)}]})
    line, rest = 0.4 ** 2 * (50 ** 2 - 1) / 12, 48 / 50                     # variances
    assert R2.worst == pytest.approx(line / (line + rest))
    assert slope.worst == pytest.approx(0.4 * 100 / c.steps / plots.predicted_slope(c))


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


def test_errors_with_one_draw_are_means_over_draws_on_the_sequences_of_the_figures():
    run = train.train(T=6, q=2, d_e=9, T_test=[9], q_test=[3], steps=30, lr=1, evaluations=1,
                      eval_sequences=8)
    rng, tests = np.random.default_rng(0), [(9, 2), (6, 3)]
    for k, (T, q), mean in zip((1, 2), tests, claims.single_draw_errors(run, 1000)[1:]):
        X, y, _ = train.held_out(run, k, 1)
        own = [sts.loss(run["W"], run["V"], X, y, E)
               for E in sts.positional_encoding("rademacher", T, 9, rng, 1000)]
        assert mean == pytest.approx(np.mean(own), rel=0.05)
        assert run["error"][-1, k] < 0.9 * mean                # 16 draws are better


@pytest.mark.parametrize("limits, allowed, worst, verdict", [
    ({"least": 1}, ">= 1", 1, "seen"), ({"least": 1.5}, ">= 1.5", 1, "not seen"),
    ({"greatest": 6}, "<= 6", 6, "seen"), ({"greatest": 5.5}, "<= 5.5", 6, "not seen"),
    ({"least": 1, "greatest": 5.5}, ">= 1, <= 5.5", 6, "not seen")])
def test_a_claim_is_seen_if_all_seeds_are_within_the_limits(limits, allowed, worst, verdict):
    assert claims.within("text", [1.0, 2, 6], **limits) == (
        "text", allowed, "3 (1 to 6)", worst, verdict)


@pytest.mark.parametrize("log, verdict", [(0.35, "seen"), (0.34, "undecided"),
                                          (-0.34, "undecided"), (-0.35, "not seen"),
                                          (np.nan, "not seen")])
def test_a_ratio_is_undecided_within_two_standard_errors(log, verdict):
    ratios = np.exp(log + np.array([[1, 1, 1], [-0.3, 0, 0.3]]))    # standard error 0.3/sqrt(3)
    row = claims.ahead("text", ratios, ["A", "B"])
    assert row.verdict == verdict and (row.worst == pytest.approx(np.exp(log)) or np.isnan(log))
    if verdict == "seen":                                           # B is the worst test
        assert row[:3] == ("text", "> 1", "1.42 (1.05 to 1.92) +- 17%, B; all 3.86, 1.42")
    one_seed = ratios[1:, 1:2] ** (0.26 / 0.345)            # a standard error of 13 %
    assert claims.ahead("", one_seed, ["B"]).verdict == verdict


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 7, 8])       # columns of errors, as above
def test_a_row_names_its_worst_test(runs, one_draw, k):
    (T, q), group = runs[fixed][0]["tests"][k], "lengths" if k < 5 else "sizes"
    worse = np.where(np.arange(9) == k, 0.2, 1)             # fixed encodings are better on this one
    pairs = runs | {key: [run | {"error": run["error"] * worse} for run in runs[key]]
                    for key in (fixed, other)}
    rows = [row for row in claims.claims_4(pairs) + claims.claims_5(pairs)
            if row.allowed == "> 1" and group in row.claim]
    assert len(rows) >= 5
    for row in rows:
        assert (f", T_test {T}; all" if k < 5 else f", q_test {q}; all") in row.measured


def test_the_error_is_its_scale_and_a_rest(monkeypatch):
    target, rest = np.array([[1.0, 0], [0, 2]]), np.array([[0.0, 1], [1, 0]])
    f = np.array([0.5 * target + 3 * rest + 1, 0.5 * target - rest - 1])    # the mean: rest once
    monkeypatch.setattr(scaled_logits, "end_outputs", lambda run, T, q, scaled: (f, target))
    slope, scale, left = claims.scale_and_rest({"config": train.configuration(d=2)}, 300, 4)
    assert (slope, scale, left) == pytest.approx((0.5, 0.25 * 5 / 2 * 4 / 2, 2 / 2 * 4 / 2))
    error = ((f.mean(axis=0) - target) ** 2).sum() / (2 * len(target))
    assert scale + left == pytest.approx(error / (2 / (2 * 4)))


def test_rows_of_lengths_speak_of_the_tests_that_they_name(runs, monkeypatch):
    monkeypatch.setattr(claims, "scale_and_rest", lambda run, T, q: (T * q, T, 3 * q))
    monkeypatch.setattr(
        scaled_logits, "end_shares", lambda runs, tests, scaled, n: np.array(
            [[T * q + scaled + 2 * ("E" in runs[0]) + seed for T, q in tests] for seed in range(3)]))
    found = {row.claim: row.measured for row in claims.claims_scaled_logits(runs)}
    assert found["lengths: output / target"] == "243 (186 to 300)"
    assert found["lengths: part of the error that is this scale"].endswith(
        f"({62 / 71:.4g} to {100 / 109:.4g})")
    assert found["lengths: the other part / error on the trained task"] == (
        f"{9 / 59:.4g} ({9 / 59:.4g} to {9 / 59:.4g})")
    for text, least, lengths in (("fixed", 2, (2,)), ("fixed, scaled logits", 3, (2,)),
                                 ("stochastic", 0, (2, 5, 20, 80, 500)),
                                 ("stochastic, scaled logits", 1, (2, 5, 20, 80, 500))):
        for times in lengths:
            least_share = 50 * times * 3 + least
            assert found[f"{text}: error / (d/(2q)) at {times} T"] == (
                f"{least_share + 1:.4g} ({least_share:.4g} to {least_share + 2:.4g})")


# Other readings


@pytest.fixture
def trained(monkeypatch):
    """What is asked of plots.trained: each folder, key, and seeds.  It returns made-up runs."""
    asked = []

    def fake(arms, folder=train.RUNS / "figures", seeds=plots.SEEDS):
        asked.extend((folder.name, key, *seeds) for key in arms)
        return {key: [made_up(key, 0, arm)] for key, arm in arms.items()}

    monkeypatch.setattr(plots, "trained", fake)
    return asked


def test_readings_are_what_their_names_say():
    meant = {"Gaussian": {"law", "d_e"}, "orthonormal": {"law", "d_e"}, "signs": {"d_e"},
             "d": {"d"}, "lr": {"lr"}, "draw": {"draws"}, "draws": {"draws"}}
    for optimizer, changes in claims.READINGS.items():
        base = train.configuration(**plots.arms(quick=False)[optimizer, "stochastic"])
        for reading, change in changes.items():
            c = vars(base) | change
            word, = re.findall("[a-zA-Z]+", reading)
            number, = map(float, re.findall(r"[.\d]+", reading))
            assert change.keys() - {"steps"} <= meant[word]
            assert c["law"] == {"Gaussian": "gaussian", "orthonormal": word}.get(word, "rademacher")
            assert number in [c[name] for name in meant[word]]


def test_the_runs_of_the_figures_are_not_trained_again(trained):
    for optimizer in claims.READINGS:
        runs = claims.read(optimizer)
        for reading, pair in runs.items():
            for pe in "stochastic", "fixed":
                shared = reading == claims.FIGURES or pe == "fixed" and "draw" in reading
                asked = ("readings", (optimizer, reading, pe), 3) in trained
                assert asked == (not shared)
                figures = runs[claims.FIGURES][optimizer, pe]
                assert (pair[optimizer, pe] is figures) == shared
    assert [asked[1:] for asked in trained if asked[0] == "figures"] == [
        ((optimizer, pe), 3) for optimizer in claims.READINGS for pe in ("stochastic", "fixed")]


def test_gaussian_encodings_have_length_1_and_random_directions():
    E = sts.positional_encoding("gaussian", 4000, 3, np.random.default_rng(0))
    np.testing.assert_allclose((E * E).sum(axis=1), 1)
    np.testing.assert_allclose([*E.mean(axis=0), *(E.T @ E / 4000 - np.eye(3) / 3).ravel()], 0,
                               atol=0.03)
    assert abs(np.quantile(E, 0.75) - 0.5) < 0.03           # a coordinate is uniform on a sphere


def test_the_table_of_readings_shows_the_claims_of_their_runs(trained, one_draw, monkeypatch,
                                                              tmp_path):
    committed = (claims.HERE / "figures/readings.txt").read_text().strip().split("\n\n")
    monkeypatch.setattr(claims, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["claims.py", "--readings"])
    (tmp_path / "figures").mkdir()
    claims.main()
    blocks = (tmp_path / "figures/readings.txt").read_text().strip().split("\n\n")
    for block, other, optimizer in zip(blocks, committed, claims.READINGS, strict=True):
        head, *lines = [re.split("  +", line) for line in block.splitlines()]
        old_head, *old_lines = [re.split("  +", line) for line in other.splitlines()]
        assert head == old_head
        assert [line[:2] for line in lines] == [line[:2] for line in old_lines]
        readings, shown = claims.read(optimizer), {}
        for figure, claim, *cells, counts in lines:
            rows = [row for runs in readings.values() for row in claims.CLAIMS[figure](runs)
                    if row.claim == claim]
            assert cells[:-1] == [claims.cell(row) for row in rows]
            others = [row.verdict for row in rows[1:]]
            assert [int(number) for number in re.findall(r"\d+", counts)] == [
                *map(others.count, ("seen", "undecided", "not seen")), len(others)]
            shown[claim] = cells
        ahead = "stochastic ahead on sizes"
        assert shown[f"16 draws: {ahead}"][-1] == shown[f"one draw: {ahead}"][0]
        assert shown["sizes: stochastic falls"][-1].endswith(" -")


@pytest.mark.parametrize("worst, measured, cell", [
    (0.0776, "0.0776", "0.078 seen"), (2.218, "2.2", "2.22 seen"), (10.4, "10.4", "10 seen"),
    (0.1186, "0.1; nan", "0.119 -"), (np.nan, "nan", "-")])
def test_a_cell_is_the_worst_number_and_the_verdict(worst, measured, cell):
    assert claims.cell(claims.Row("", "", measured, worst, "seen")) == cell


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), PermissionError(13, "no", "runs")])
def test_an_error_is_one_line(problem, monkeypatch):
    monkeypatch.setattr(plots, "trained", Mock(side_effect=problem))
    monkeypatch.setattr(sys, "argv", ["claims.py"])
    with pytest.raises(SystemExit) as end:
        claims.in_one_line(claims.main)
    assert len(end.value.code.strip().splitlines()) == 1
