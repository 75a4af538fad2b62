"""Tests of claims.py:  python -m pytest beyond/test_claims.py"""

import re
from dataclasses import replace

import numpy as np
import pytest
from common import end_error

import claims
import plots
import sts
import train
import width

t = np.arange(41) * 100
SMALL = {"T": 8, "d": 2, "q": 2, "d_e": 12, "steps": 300, "lr": 1.0, "batch": 64, "fresh": True,
         "evaluations": 1, "eval_sequences": 9, "T_test": [12], "q_test": [3]}


def curve(end, factor):
    """A curve (1, 1, m) that half of training multiplies by a factor, until its end."""
    return end * factor ** (t / 2000 - 2)[None, None]


@pytest.mark.parametrize("end, factor, converges, levels_off", [
    (0.01, 1.0, "seen", "seen"),            # level near 0
    (0.5, 1.0, "not seen", "seen"),
    (0.2, 0.86, "not seen", "not seen"),
    (0.49, 0.84, "seen", "not seen"), (0.51, 0.5, "not seen", "not seen"),
    (0.2, 0.91, "not seen", "seen"),
    (np.nan, 0.5, "not seen", "not seen")])
def test_a_curve_converges_or_levels_off(end, factor, converges, levels_off):
    good, level = curve(0.01, 0.5), curve(0.5, 1.0)
    in_part = "in part" if converges == "seen" else "not seen"
    assert claims.converges("text", curve(end, factor), t, "0.1")[-1] == in_part
    found = curve(end, factor)
    for curves in found, np.concatenate([good, found]), np.concatenate([good, found], axis=1):
        assert claims.converges("text", curves, t)[-1] == converges
    for curves in found, np.concatenate([level, found]), np.concatenate([level, found], axis=1):
        assert claims.levels_off("text", curves, t)[-1] == levels_off


def test_the_second_half_is_a_line_through_all_its_logarithms():
    found = np.random.default_rng(0).uniform(1, 2, 41)
    slope, _ = np.polyfit(t[20:], np.log(found[20:]), 1)
    assert claims.second_half(found, t) == pytest.approx(np.exp(2000 * slope))


def test_a_row_has_the_mean_on_each_test_and_the_range_of_all():
    assert claims.within("text", [[1, 2], [3, 6]], least=1, greatest=5) == (
        "text", ">= 1, <= 5", "1.5, 4.5 (1 to 6)", "-", "not seen")
    assert claims.within("text", [1, np.nan], least=0)[-1] == "not seen"


def test_block_measures_the_block_where_the_ground_truth_is_the_identity():
    u, v = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 7, 1, 8, 2])         # d = 2, d_e = 3
    run = {"config": train.Settings(d=2, d_e=3), "W": np.outer(u, v), "V": np.outer(u[:2], v)}
    assert claims.block(run, "W") == pytest.approx(
        (50 * 69 / (55 * 122), 45 / np.sqrt(3 * 50 * 69), np.sqrt(55 * 122 - 50 * 69)))
    assert claims.block(run, "V") == pytest.approx(
        (53 / 122, 16 / np.sqrt(2 * 5 * 53), np.sqrt(5 * 122 - 5 * 53)))


def test_curves_are_multiplied_to_end_at_the_error_of_2048_new_sequences():
    runs = {f"gd {pe}": [train.train(pe=pe, **SMALL)] for pe in ("stochastic", "fixed")}
    for curve, (run,) in zip(claims.curves(runs, "gd", longer=True)[1:], runs.values()):
        c = replace(run["config"], eval_sequences=5_000)
        many = run | {"config": c, "error": run["error"].copy()}
        train.evaluate(many)
        single, zero = run["error"][:, 1], c.d / (2 * run["tests"][:, 1])
        assert abs(claims.end(run) * zero / many["error"][1] - 1).max() < 0.15
        np.testing.assert_allclose(curve[0, 0], single * claims.end(run)[1] / single[-1])


# If one number of one seed is changed, those claims fail that speak of it, and no others.


@pytest.mark.parametrize("draws", (1, 4))
def test_floors_are_those_of_the_lattice_of_scores(draws):
    """Of plots.py by direct simulation, and of width.py from counts.  Their deviation is 5 %."""
    rng, c = np.random.default_rng(0), train.Settings(T=30, d_e=80, draws=draws)
    _, *numbers = width.noise_floor(width.sample_scores(rng, 30, 80, 3, 3000), 6, 3, draws)
    tests = [(30, 3), (60, 3), (30, 2), (30, 8)]
    for (T, q), found in zip(tests, plots.floors(c, tests, 3000)):
        exact, _ = width.predict_loss(rng, *numbers, T, 2 * q, q, 80, 16, 0.02)
        assert found == pytest.approx(exact, rel=0.17)


def test_training_ends_at_the_floors():
    """On longer sequences and other sizes, too; with one draw in a step floors are others."""
    tests, settings = [(12, 3), (24, 3), (12, 2), (12, 5)], {"T": 12, "d": 3, "d_e": 24}
    run = train.train(**settings, draws=4, lr=2.0, fresh=True, steps=1500, evaluations=1,
                      eval_sequences=2, T_test=[], q_test=[])
    errors = [end_error(run, *test) for test in tests]
    assert errors == pytest.approx(plots.floors(run["config"], tests, 2000), rel=0.17)
    one = plots.floors(train.Settings(**settings), tests, 2000)
    assert one != pytest.approx(errors, rel=0.17)


def test_floors_are_those_of_the_tests_and_of_the_encodings():
    c = train.Settings(T=20, d_e=60, draws=4, T_test=[25, 40], q_test=[2, 5], eval_sequences=2)
    runs = [train.start(replace(c, seed=seed)) for seed in (3, 4)]
    for longer, tests in (False, [(20, 2), (20, 5)]), (True, [(25, 3), (40, 3)]):
        shown = [float(left) for left in claims.floors(runs, longer).split(", ")]
        assert shown == pytest.approx(plots.floors(c, tests), rel=0.15)
    one, two = (train.start(train.Settings(T=20, d_e=60, pe="fixed", q_test=[2, 5], seed=seed))
                for seed in (3, 4))
    left = [claims.floors(of, longer=False).split(", ") for of in ([one], [two], [one, two])]
    left = np.array(left, float)
    np.testing.assert_allclose(left[2], (left[0] + left[1]) / 2, rtol=0.05)
    assert (left[:, 0] < left[:, 1]).all() and (left[0] != left[1]).any()
    one["config"] = replace(one["config"], optimizer="adam")
    assert claims.floors([one], longer=False) == "not known"


def made_up(name, arm, seed):
    """A run for which all claims hold; column 0 of its errors is the trained task."""
    run = train.start(train.Settings(**arm | {"seed": seed, "eval_sequences": 2}))
    c, (T, q) = run["config"], run["tests"].T
    if name == "full model":
        inverse = 4 * c.lr / (c.q ** 2 * c.d_e) * c.steps / 100 * (10 + np.arange(100))
        inverse[:49] = 2
        for matrix, part in (run["W"], run["W"][c.d:, c.d:]), (run["V"], run["V"][:, :c.d]):
            matrix *= 0.05
            np.fill_diagonal(part, 3)
        return run | {"loss": np.repeat(1 / inverse, c.steps // 100),
                      "cos_W": np.ones(2), "cos_V": np.ones(2)}
    u, share = run["eval_step"][:, None] / c.steps, 0.8 * (1 + q / 100)
    shares = share * np.exp(-4 * u)
    if c.pe == "fixed":
        shares = np.where(T > c.T, 0.5 + 0.3 * np.exp(-20 * u), share * np.exp((0.2 * q - 3.2) * u))
    shares = (1 + seed / 1000) * shares
    return run | {"error": shares * c.d / (2 * q), "end": shares[-1].copy()}


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.setattr(claims, "floors", lambda runs, longer: "-")
    arms = {name: arm | (plots.QUICK[name] if name in plots.FULL else {"d_e": 4})
            for name, arm in (plots.FULL | plots.GD | plots.ADAM).items()}
    return {name: [made_up(name, arm, seed) for seed in plots.SEEDS] for name, arm in arms.items()}


@pytest.mark.parametrize("name, key, place, factor, claims_that_fail", [
    ("full model", "cos_W", -1, 0.98, {"1 W is aligned with W*: cosine"}),
    ("gd stochastic", "end", 4, 40, {
        "2 lengths: stochastic converges by step 10200", "4 lengths: stochastic converges",
        "2 lengths: clear advantage, fixed / stochastic"}),
    ("gd stochastic", "error", (17, 4), 8, {"2 lengths: stochastic converges by step 10200"}),
    ("gd stochastic", "error", (18, 4), 8, set()),
    ("gd stochastic", "end", 8, 40, {
        "4 sizes: stochastic converges", "4 sizes: stochastic ahead, fixed / stochastic"}),
    ("gd fixed", "error", (20, 1), 0.34, {"2 lengths: fixed never below 0.15"}),
    ("gd fixed", "end", 1, 0.34, {
        "2 lengths: fixed never below 0.15", "4 lengths: fixed at least 0.15 at the end"}),
    ("gd fixed", "error", (slice(36, None), 4), 0.8, {"2 lengths: fixed levels off"}),
    ("gd fixed", "end", 6, 2, {"4 sizes: fixed worse as q_test grows"}),
    ("adam fixed", "error", (10, 7), 0.1, {"5 q_test 5: stochastic ahead from this step on"}),
    ("adam fixed", "error", (9, 7), 0.1, set())])
def test_a_claim_fails_if_a_number_that_it_speaks_of_is_changed(runs, name, key, place, factor,
                                                                claims_that_fail):
    values = runs[name][2][key].copy()
    values[place] *= factor
    changed = runs | {name: [*runs[name][:2], runs[name][2] | {key: values}]}
    found = {f"{figure} {row[0]}" for figure, measure in claims.CLAIMS.items()
             for row in measure(changed) if row[-1] != "seen"}
    assert found == claims_that_fail


def test_each_claim_of_convergence_has_its_own_floor(runs, monkeypatch):
    monkeypatch.setattr(claims, "floors", lambda runs, longer: (
        f"{'lengths' if longer else 'sizes'}: {runs[0]['config'].pe} {runs[0]['config'].optimizer}"))
    for figure, optimizer in ("2", "gd"), ("4", "gd"), ("5", "adam"):
        rows = [row for row in claims.CLAIMS[figure](runs) if "converges" in row[0]]
        assert len(rows) == (1 if figure == "2" else 3)
        for claim, _, _, floor, verdict in rows:
            assert claim.startswith(floor.removesuffix(optimizer)) and verdict == "in part"


def test_the_table_has_the_columns_and_the_criteria_of_the_committed_one(runs):
    kept = (plots.HERE / "figures/claims.txt").read_text(encoding="utf-8")
    texts = claims.table(runs, claims.CLAIMS), kept
    rows, committed = ([re.split("  +", line) for line in text.split("\n\n")[0].splitlines()]
                       for text in texts)
    assert [row[:2] for row in rows] == [row[:2] for row in committed]
    assert {len(row) for row in rows + committed} == {6}
    assert {row[-1] for row in rows[1:]} == {"seen"}
    assert rows[1][3].startswith("0.006116 (")              # 1 over 2 (10 + 99) and d/(2q)
    assert texts[0].split("\n\n")[1:] == texts[1].split("\n\n")[1:]


@pytest.mark.parametrize("full", [False, True])
def test_the_lines_for_slides_agree_with_sts(full):
    text, slide = (plots.HERE / "beyond" / "LECTURE.md").read_text("utf-8"), {}
    exec(re.search("```python\n(.*?)```", text, re.S)[1], slide)
    rng, (n, T, d, d_e) = np.random.default_rng(0), (3, 5, 2, 4)
    X, y = sts.sample_sts(rng, n, T, d, 2)
    W, V, E = (rng.standard_normal(shape) for shape in ((6, 6), (2, 6), (T, d_e)))
    f, cache = sts.forward(W, V, X, y, E, full)
    r, found = rng.standard_normal(f.shape), [0, 0]
    for i in range(n):
        Z, z_query = np.column_stack([X[i], E]).T, np.append(np.zeros(d), E[y[i]].sum(axis=0))
        f_i, own = slide["forward"](W, V, np.column_stack([Z, z_query]) if full else Z, z_query)
        np.testing.assert_allclose(f_i, f[i])
        found = [total + part for total, part in zip(found, slide["backward"](own, r[i]))]
    for one, two in zip(found, sts.backward(cache, r)):
        np.testing.assert_allclose(one, two, atol=1e-12)
