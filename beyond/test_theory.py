"""Tests of theory.py, theory_plots.py and benchmark.py:  python -m pytest beyond/test_theory.py

The recursions are compared with gradient descent on all entries of W and V, over all subsets and
all encodings.  Statistical tests have a fixed seed, and allow 5 standard errors.
"""

import itertools
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import benchmark
import plots
import sts
import theory
import theory_plots
import train

both_queries = pytest.mark.parametrize("query", ("sum", "mean"))


# Gradient descent on all entries of W and V


def all_sequences(T, d, q):
    """All subsets, each with X = +- sqrt(T d) times every unit matrix: X (n, T, d), y (n, q).

    Up to the third power their moments are those of i.i.d. N(0, 1) tokens.  Where logits do not
    depend on X and V_e = 0, f is linear in X: so the means of L, dW and dV are exact.
    """
    units = math.sqrt(T * d) * np.eye(T * d).reshape(T * d, T, d)
    X, y = np.concatenate([units, -units]), theory.all_subsets(T, q)
    return np.tile(X, (len(y), 1, 1)), np.repeat(y, len(X), axis=0)


def all_encodings(law, T, d_e):
    """All E that a law of stochastic encodings can draw (number, T, d_e)."""
    if law == "rademacher":
        signs = np.array(list(itertools.product((-1, 1), repeat=T * d_e)))
        return signs.reshape(-1, T, d_e) / math.sqrt(d_e)
    return np.array([np.eye(d_e)[list(order)] * np.array(signs)[:, None]
                     for order in itertools.permutations(range(d_e), T)
                     for signs in itertools.product((-1, 1), repeat=T)])


def follow(path, E, d, q, lr, truth, inside=True, **model):
    """Gradient descent from zero on all entries of W and V has to go along path (L, a, alpha).

    The expectation over the encodings E (number, T, d_e) is inside or outside the loss.
    """
    X, y = all_sequences(E.shape[1], d, q)
    W, V = (np.zeros_like(star) for star in truth)
    for L_exact, a, alpha in path.T:
        parts = [sts.loss_and_grads(W, V, X, y, e, **model) for e in ([E] if inside else E)]
        L, dW, dV = (sum(part) / len(parts) for part in zip(*parts))
        assert math.isclose(L, L_exact, rel_tol=1e-12)
        np.testing.assert_allclose(W, a * truth[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(V, alpha * truth[1], rtol=0, atol=1e-12)
        W, V = W - lr * dW, V - lr * dV
    assert path[0, -1] < 0.7 * path[0, 0] and path[1, -1] > 0.3      # it has learnt


def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path, error = theory.population_descent("onehot", T, d, q, lr, 150)
    assert not error.any() and path[0, -1] < 0.1 * path[0, 0]
    follow(path, np.eye(T)[None], d, q, lr, sts.ground_truth(d, T, T))


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers(inside):
    T, d_e, d, q, lr = 3, 3, 2, 2, 2.0
    path, _ = theory.population_descent("orthonormal", T, d, q, lr, 25, d_e)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, sts.ground_truth(d, d_e), inside)


@pytest.mark.parametrize("K", (1, math.inf))
def test_rademacher_descent_is_two_numbers(K):
    """With the scores of all encodings for a sample; K = inf is the expectation inside the loss."""
    T, d_e, d, q, lr = 3, 2, 2, 2, 2.0
    E = all_encodings("rademacher", T, d_e)
    scores = (E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0]
    path = theory.descend(lambda a, alpha: theory.stochastic_slopes(a, alpha, scores, d, q, K),
                          lr, 25, d_e, d)
    follow(path, E, d, q, lr, sts.ground_truth(d, d_e), inside=K > 1)


@both_queries
@pytest.mark.parametrize("q", (1, 2))
def test_full_model_descent_is_two_numbers(query, q):
    T, d_e, d, lr = 3, 3, 2, 2.0
    path = theory.descend(lambda a, alpha: theory.full_model_slopes(a, alpha, T, d, q, query),
                          lr, 40, d_e, d)
    E = all_encodings("orthonormal", T, d_e)
    follow(path, E, d, q, lr, sts.ground_truth(d, d_e), attend_to_query=True, query=query)


def test_on_fixed_sequences_fresh_encodings_leave_1_plus_d_squared_numbers():
    """W = a W*, V = [V_x, 0]: what figure data says of full-batch descent with stochastic PE."""
    rng, T, d_e, d, q = np.random.default_rng(0), 3, 4, 2, 2
    (X, y), (W, V) = sts.sample_sts(rng, 4, T, d, q), map(np.zeros_like, sts.ground_truth(d, d_e))
    E = all_encodings("orthonormal", T, d_e)
    for _ in range(10):
        _, dW, dV = (sum(part) / len(E) for part in zip(*[
            sts.loss_and_grads(W, V, X, y, e) for e in E]))
        W, V = W - 2 * dW, V - 2 * dV
    np.testing.assert_allclose(W, W[d, d] * sts.ground_truth(d, d_e)[0], rtol=0, atol=1e-13)
    assert abs(V[:, d:]).max() < 1e-13 and abs(W[d, d]) > 0.01 and abs(V[0, 1] - V[1, 0]) > 0.01


def test_descent_on_the_integrated_loss_is_that_on_the_tokens():
    """For fixed encodings without any symmetry, and weights without any."""
    rng, T, d, q, d_e = np.random.default_rng(0), 5, 2, 2, 4
    E, W_pe = rng.standard_normal((T, d_e)), rng.standard_normal((d_e, d_e))
    V_x, (X, y) = rng.standard_normal((d, d)), all_sequences(T, d, q)
    L, dW_pe, dV_x = theory.integrated_loss_and_grads(W_pe, V_x, E, theory.all_subsets(T, q))
    exact = sts.loss_and_grads(np.pad(W_pe, (d, 0)), np.pad(V_x, ((0, 0), (0, d_e))), X, y, E)
    assert math.isclose(L, exact[0], rel_tol=1e-12)
    np.testing.assert_allclose(np.pad(dW_pe, (d, 0)), exact[1], rtol=0, atol=1e-13)
    np.testing.assert_allclose(np.pad(dV_x, ((0, 0), (0, d_e))), exact[2], rtol=0, atol=1e-13)


def test_the_integrated_loss_is_the_mean_over_normal_tokens():
    rng, T, d, q, d_e, n = np.random.default_rng(0), 5, 2, 2, 4, 40_000
    E, W_pe = rng.standard_normal((T, d_e)), rng.standard_normal((d_e, d_e))
    V_x = rng.standard_normal((d, d))
    L, _, _ = theory.integrated_loss_and_grads(W_pe, V_x, E, theory.all_subsets(T, q))
    X, y = sts.sample_sts(rng, n, T, d, q)
    f, _ = sts.forward(np.pad(W_pe, (d, 0)), np.pad(V_x, ((0, 0), (0, d_e))), X, y, E)
    losses = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1)
    assert abs(losses.mean() - L) < 5 * losses.std() / math.sqrt(n)


def test_an_unknown_law_or_query_is_refused():
    with pytest.raises(ValueError, match="onehot, orthonormal or rademacher, got 'fixed'"):
        theory.population_descent("fixed", 6, 2, 2, 1.0, 1, 6)
    with pytest.raises(ValueError, match="sum or mean, got 'max'"):
        theory.full_model_slopes(0.0, 0.0, 6, 2, 2, "max")


# Slopes, scores, floors and their errors


SCORES = theory.sample_scores(np.random.default_rng(0), 20, 30, 3, 60)
SLOPES = {"one-hot": lambda a, alpha: theory.onehot_slopes(a, alpha, 20, 5, 3)} | {
    f"K = {K}": lambda a, alpha, K=K: theory.stochastic_slopes(a, alpha, SCORES, 5, 3, K)
    for K in (1, 4, math.inf)} | {
    query: lambda a, alpha, query=query: theory.full_model_slopes(a, alpha, 20, 5, 3, query)
    for query in ("sum", "mean")}


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("a, alpha", ((0, 0.5), (2, 1.3), (-1, -0.4), (5, 0.9)))
def test_slopes_are_the_derivatives_of_the_loss(name, a, alpha):
    slopes, h = SLOPES[name], 1e-5
    _, da, dalpha = slopes(a, alpha)
    by_a = (slopes(a + h, alpha)[0] - slopes(a - h, alpha)[0]) / (2 * h)
    by_alpha = (slopes(a, alpha + h)[0] - slopes(a, alpha - h)[0]) / (2 * h)
    assert math.isclose(by_a, da, rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(by_alpha, dalpha, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("K", (1, 4))
def test_the_stochastic_loss_is_that_of_the_model(K):
    """At 3 W*, 1.4 V*, with fresh encodings for each batch of 8 sequences."""
    rng, T, d, q, d_e = np.random.default_rng(0), 12, 2, 3, 20
    W, V = sts.ground_truth(d, d_e)
    losses = []
    for _ in range(400):
        X, y = sts.sample_sts(rng, 8, T, d, q)
        E = sts.positional_encoding("rademacher", T, d_e, rng, K)
        losses.append(sts.loss_and_grads(3 * W, 1.4 * V, X, y, E)[0])
    L, error = theory.predict_loss(rng, 3, 1.4, T, d, q, d_e, K)
    assert error <= 0.005 * L
    assert abs(np.mean(losses) - L) < 5 * math.hypot(np.std(losses) / math.sqrt(400), error)


STATISTICS = {
    "of a selected position": lambda s: s[:, 0], "of two": lambda s: s[:, 0] * s[:, 1],
    "of another position": lambda s: s[:, 3], "its square": lambda s: s[:, 3] ** 2,
    "its fourth power": lambda s: s[:, 3] ** 4, "two squares": lambda s: (s[:, 3] * s[:, 4]) ** 2,
    "both kinds": lambda s: s[:, 0] * s[:, 3] ** 2,
    "attention": lambda s: np.exp(3 * s[:, 0]) / np.exp(3 * s).sum(axis=1)}


@pytest.mark.parametrize("name", STATISTICS)
def test_scores_have_the_law_of_rademacher_encodings(name):
    """Each statistic of a draw has the same mean as with E drawn in full."""
    rng, T, d_e, q, draws = np.random.default_rng(0), 8, 15, 3, 10_000
    E = sts.positional_encoding("rademacher", T, d_e, rng, draws)
    full = STATISTICS[name]((E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0])
    short = STATISTICS[name](theory.sample_scores(rng, T, d_e, q, draws))
    error = math.sqrt((full.var() + short.var()) / draws)
    assert abs(full.mean() - short.mean()) < 5 * error


@pytest.mark.parametrize("K", (1, 4, 16, math.inf))
def test_the_standard_error_is_the_deviation_of_repeated_predictions(K):
    """Of 60 predictions that stop after one portion of draws; their deviation is known to 9 %."""
    rng = np.random.default_rng(0)
    found = [theory.predict_loss(rng, 3, 1.4, 30, 5, 3, 170, K, 1e9) for _ in range(60)]
    L, errors = np.transpose(found)
    assert 0.65 < errors.mean() / L.std(ddof=1) < 1.5


def test_the_errors_of_a_sampled_descent_are_the_deviation_of_repeated_ones():
    rng = np.random.default_rng(0)
    runs = [theory.population_descent("rademacher", 6, 2, 3, 2.0, 30, 8, 2, rng, draws=30)
            for _ in range(30)]
    paths, errors = (np.array(part)[:, :, -1] for part in zip(*runs))
    ratios = errors.mean(axis=0) / paths.std(axis=0, ddof=1)
    assert (0.5 < ratios).all() and (ratios < 1.7).all()


@pytest.mark.parametrize("K", (1, 4, 16))
def test_the_noise_floor_is_the_least_loss(K):
    L, a, alpha = theory.noise_floor(SCORES, 5, 3, K)
    here, da, dalpha = theory.stochastic_slopes(a, alpha, SCORES, 5, 3, K)
    assert math.isclose(here, L, rel_tol=1e-12) and abs(da) < 1e-3 and abs(dalpha) < 1e-9
    for other_a in np.linspace(0, 30, 31):
        for other_alpha in np.linspace(0.5, 3, 11):
            assert theory.stochastic_slopes(other_a, other_alpha, SCORES, 5, 3, K)[0] >= L


def test_averaging_lowers_the_noise_floor_and_definition_5_has_none():
    floors = [theory.noise_floor(SCORES, 5, 3, K)[0] for K in (1, 4, 16, math.inf)]
    assert floors[0] > 2 * floors[1] > 4 * floors[2] > 0 and abs(floors[3]) < 1e-5


@pytest.mark.parametrize("q, has_one", ((1, False), (2, False), (3, True), (4, True)))
def test_one_draw_has_a_noise_floor_for_three_selected_tokens_or_more(q, has_one):
    scores = theory.sample_scores(np.random.default_rng(0), 20, 170, q, 100)
    floor = theory.noise_floor(scores, 5, q)[0] / (5 / (2 * q))
    assert floor > 0.03 if has_one else floor < 1e-4
    assert (np.ptp(scores[:, :q], axis=1).max() > 0.1) == has_one


# What follows: rates, costs


@pytest.mark.parametrize("law, norm2", (("onehot", 49), ("orthonormal", 100)))
def test_the_inverse_loss_grows_by_its_asymptotic_slope(law, norm2):
    (L, _, _), _ = theory.population_descent(law, 50, 5, 3, 3.0, 20_000, 100)
    assert math.isclose((1 / L[-1] - 1 / L[10_000]) / 10_000, 4 * 3 / norm2, rel_tol=0.01)


@pytest.mark.parametrize("T, d, q, share, lr, norm2", (
    (200, 5, 3, 0.01, 1, None), (400, 5, 3, 0.01, 5, None), (200, 5, 10, 0.1, 1, 400),
    (200, 1, 3, 0.001, 4, None), (100, 5, 40, 0.05, 1, None)))
def test_the_number_of_steps_in_closed_form(T, d, q, share, lr, norm2):
    """It is that of small steps: a few per cent, which come from alpha, are missing."""
    counted = theory.count_steps(share, T, d, q, lr, norm2)
    assert math.isclose(theory.predict_steps(share, T, d, q, lr, norm2), counted, rel_tol=0.07)
    L, _, _ = theory.descend(lambda a, alpha: theory.onehot_slopes(a, alpha, T, d, q), lr, counted,
                             norm2 or T - 1, d)
    assert L[-1] <= share * d / (2 * q) < L[-2]


def flow(share, T, d, q):
    """The integral of predict_steps, da / (-dL/da) with the best alpha for each a, by Simpson."""
    def pace(a):
        L_0, _, slope = theory.onehot_slopes(a, 0.0, T, d, q)
        alpha = slope / (slope - theory.onehot_slopes(a, 1.0, T, d, q)[2])
        L, da, _ = theory.onehot_slopes(a, alpha, T, d, q)
        return -(T - 1) / da, L
    a = np.linspace(0, math.log((T - q) * (1 / share - 1) / q) / 2, 401)
    paces, losses = np.transpose([pace(value) for value in a])
    assert math.isclose(losses[-1], share * d / (2 * q), rel_tol=1e-9)
    return (a[1] - a[0]) / 3 * (paces[0] + 4 * paces[1:-1:2].sum() + 2 * paces[2:-1:2].sum()
                                + paces[-1])


@pytest.mark.parametrize("share, T, d, q", ((0.01, 200, 5, 3), (0.3, 10, 2, 4), (0.5, 8, 1, 1)))
def test_the_closed_form_is_the_integral_of_the_flow(share, T, d, q):
    assert math.isclose(theory.predict_steps(share, T, d, q), flow(share, T, d, q), rel_tol=1e-6)


def test_the_plateau_costs_T_squared():
    assert math.isclose(theory.predict_steps(0.5, 1e6, 5, 3), 1e12 / 10, rel_tol=0.001)


@pytest.mark.parametrize("q", (2, 3, 5))
def test_the_full_model_with_the_sum_has_rate_one_over_q(q):
    """Of L / law the logarithm, and the slope of log L against log t, go to 0 and to -1/q."""
    L, _, _ = theory.descend(lambda a, alpha: theory.full_model_slopes(a, alpha, 10, 5, q, "sum"),
                             1.0, 50_000, 20, 5)
    ratios = [L[t] / theory.full_model_law(t, 10, 5, q, "sum", 1.0) for t in (500, 50_000)]
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1) and abs(ratios[1] - 1) < 0.08
    slope = math.log(L[50_000] / L[25_000]) / math.log(2)
    assert math.isclose(slope, -1 / q, rel_tol=0.08)


@pytest.mark.parametrize("q", (1, 2, 3))
def test_the_full_model_with_the_mean_has_rate_one_over_t(q):
    d_e, lr = 20, 3.0
    L, _, _ = theory.descend(lambda a, alpha: theory.full_model_slopes(a, alpha, 10, 5, q, "mean"),
                             lr, 20_000, d_e, 5)
    growth = (1 / L[-1] - 1 / L[10_000]) / 10_000
    law = 1 / theory.full_model_law(1.0, 10, 5, q, "mean", lr, d_e)
    assert math.isclose(law, 4 * lr / (q * q * d_e), rel_tol=1e-12)
    assert math.isclose(growth, law, rel_tol=0.02)


def test_with_one_selected_token_sum_and_mean_are_one():
    for function in (lambda query: theory.full_model_slopes(2.0, 1.3, 9, 4, 1, query),
                     lambda query: theory.full_model_law(7, 9, 4, 1, query, 2.0, 30)):
        np.testing.assert_allclose(function("sum"), function("mean"), rtol=1e-14)


def test_where_all_positions_are_selected_the_loss_can_be_zero():
    """T = q: attention is uniform, and no other position is left to divide by."""
    assert theory.onehot_slopes(1.0, 1.0, 3, 5, 3)[:2] == (0.0, 0.0)
    scores = theory.sample_scores(np.random.default_rng(0), 3, 8, 3, 10)
    assert abs(theory.stochastic_slopes(0.0, 1.0, scores, 5, 3, 4)[0]) < 1e-15


# Against training of train.py on sampled sequences


@pytest.mark.parametrize("law, settings", (
    ("onehot", {"pe": "onehot"}), ("orthonormal", {"pe_family": "orthonormal"}),
    ("rademacher", {"draws": 1}), ("rademacher", {"draws": 4})))
def test_the_recursions_foretell_sampled_training(law, settings):
    T, d, q, d_e = 8, 3, 3, 16
    run = train.train(T=T, d=d, q=q, pe_dim=T if law == "onehot" else d_e, lr=0.5, steps=500,
                      batch=256, evaluations=1, eval_sequences=2, T_test=[T], q_test=[], **settings)
    (L, a, alpha), error = theory.population_descent(
        law, T, d, q, 0.5, 500, d_e, settings.get("draws", 1), np.random.default_rng(0), draws=150)
    assert error[0, -1] < 0.03 * L[-1] < L[0]
    assert math.isclose(run["a"][-1], a[-1], rel_tol=0.05)
    assert math.isclose(run["alpha"][-1], alpha[-1], rel_tol=0.05)
    assert math.isclose(run["loss"][-200:].mean(), L[-200:].mean(), rel_tol=0.1)


@both_queries
def test_the_recursion_of_the_full_model_foretells_sampled_training(query):
    T, d, q, d_e = 10, 3, 2, 20
    run = train.train(T=T, d=d, q=q, pe_family="orthonormal", pe_dim=d_e, attend_to_query=True,
                      query=query, lr=0.5, steps=900, batch=128, evaluations=1, eval_sequences=2,
                      T_test=[T], q_test=[])
    slopes = lambda a, alpha: theory.full_model_slopes(a, alpha, T, d, q, query)
    L, a, alpha = theory.descend(slopes, 0.5, 900, d_e, d)
    assert L[-1] < 0.5 * L[0]
    assert math.isclose(run["a"][-1], a[-1], rel_tol=0.05)
    assert math.isclose(run["alpha"][-1], alpha[-1], rel_tol=0.05)
    assert math.isclose(run["loss"][-200:].mean(), L[-200:].mean(), rel_tol=0.1)


# The programs


def test_theory_stands_alone_and_prints_its_tables(tmp_path):
    shutil.copy(HERE / "theory.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "theory.py"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("10000  0.01106   4.247   1.915   0.955", "1000    139608    1.36e+05",
                "q = 3, K =  1   0.0", "100000  0.10038      0.97    0.00221      1.23    0.994"):
        assert row in done.stdout
    sampled = re.findall(r"(\d\.\d+) \+- (\d\.\d+)", done.stdout)
    assert len(sampled) == 15
    assert all(float(error) < 0.013 * float(L) + 1e-5 for L, error in sampled)


@pytest.fixture
def runs_folder(monkeypatch, tmp_path):
    """An empty folder for the runs that are kept."""
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr(train, "RUNS", tmp_path)
    return tmp_path


FIXED_SET = {"T": 10, "d": 3, "q": 2, "pe": "onehot", "batch": 8, "full_batch": True, "steps": 30,
             "evaluations": 1, "eval_sequences": 50, "T_test": [10], "q_test": []}


def test_runs_on_a_fixed_set_are_those_of_train(runs_folder):
    configs = [train.configuration(**FIXED_SET, lr=lr) for lr in (1.0, 0.5)]
    assert theory_plots.train_group(configs) == 2
    for c in configs:
        run, same = train.load(plots.kept(c)), train.train(**c)
        for key in "W", "V", "loss", "error_T_test", "a":
            assert (run[key] == same[key]).all()


def test_a_run_that_diverges_is_kept_and_counts_as_such(runs_folder):
    good, bad = (train.configuration(**FIXED_SET, lr=lr) for lr in (1.0, 1e4))
    theory_plots.train_group([bad, good])
    runs = {f"one-hot 10 {N}": [train.load(plots.kept(c))] for N, c in ((1, bad), (2, good))}
    assert np.isnan(theory_plots.final(runs, "one-hot", 10, 1)).all()
    assert np.isfinite(theory_plots.final(runs, "one-hot", 10, 2)).all()


@pytest.mark.parametrize("errors, least", (
    ((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.2, 0.05), math.sqrt(80 * 120)),
    ((0.05, 0.05, 0.05), 50), ((0.01, 0.01, 0.2), math.nan), ((0.1, math.nan, 0.1), math.nan),
    ((1, math.nan, 0.1 / math.exp(3)), math.sqrt(80 * 120))))
def test_the_least_n_is_where_the_error_stays_under_a_tenth(errors, least, monkeypatch):
    monkeypatch.setitem(theory_plots.NEEDED["one-hot"], 10, [50, 80, 120])
    of_size = dict(zip((50, 80, 120), errors))
    monkeypatch.setattr(theory_plots, "final", lambda runs, arm, T, N: np.array([[of_size[N]]]))
    np.testing.assert_allclose(theory_plots.needed({}, "one-hot", 10), [least], rtol=1e-12)


def test_errors_are_measured_with_the_right_number_of_draws_and_a_standard_error(monkeypatch):
    """Of 3 W*, 1.4 V*, for which they are predicted."""
    monkeypatch.setattr(theory_plots, "TOKENS", 4000)
    c = {"seed": 0, "d": 2, "q": 3, "pe_dim": 20, "dtype": "float64"}
    W, V = sts.ground_truth(2, 20)
    values, errors = theory_plots.measured({"config": c, "W": 3 * W, "V": 1.4 * V}, 12)
    for K, value, error in zip((1, 16), values, errors):
        L, deviation = theory.predict_loss(np.random.default_rng(0), 3, 1.4, 12, 2, 3, 20, K)
        assert 0.003 * L < error < 0.1 * L
        assert abs(value - L) < 5 * math.hypot(error, deviation)


@pytest.mark.parametrize("name", theory_plots.FIGURES)
def test_each_figure_is_drawn_and_has_its_claims(name, runs_folder, monkeypatch):
    """With tiny runs; predictions, which have tests of their own, are replaced by constants."""
    for key, value in (
            ("COST_T", (20, 30)), ("TOKENS", 100),
            ("full_descent", lambda *sizes: np.full((3, 100_001), 0.5)),
            ("floor", lambda *sizes: (0.1, 0.001)),
            ("predicted", lambda *sizes: (0.5, 0.001)),
            ("exact", lambda *sizes: np.full((2, 3, 101), 0.5))):
        monkeypatch.setattr(theory_plots, key, value)
    draw, claims, names = theory_plots.FIGURES[name]
    settings, runs = theory_plots.arms(True), {}
    for arm in names:
        small = {"batch": 8, "eval_sequences": 2, "lr": 0.1, "steps": 20, "evaluations": 1}
        small |= {"steps": 100, "evaluations": 5} if name in ("dynamics", "full_model") else {}
        c = train.configuration(**settings[arm] | small)
        if not plots.kept(c).exists():
            theory_plots.train_group([c])
        runs[arm] = [train.load(plots.kept(c))]
    draw(runs).savefig(runs_folder / "figure.png")
    rows = claims(runs)
    assert 1 <= len(rows) <= 6 and all(len(row) == 4 and len(row[0]) <= 50 for row in rows)
    assert plots.table([(name, *row) for row in rows])


def test_the_benchmark_prints_its_tables(capsys):
    benchmark.main(repeats=1, steps=3, T=8, pe_dim=8, batch=4, eval_sequences=2)
    out = capsys.readouterr().out
    assert "A step at T = 8, d = 5, q = 3, pe_dim = 8, batch = 4, draws = 1" in out
    assert sum(line.split()[:1] == ["float32"] for line in out.splitlines()) == 1
    assert "draws x 8" in out
