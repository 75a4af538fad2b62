"""Tests of theory.py:  python -m pytest beyond/test_theory.py

The recursions are compared with gradient descent on all entries of W and V, over all subsets and
all encodings.
"""

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import sts
import theory
import train
import width

both_queries = pytest.mark.parametrize("query", ("sum", "mean"))


# Gradient descent on all entries of W and V


def all_sequences(T, d, q):
    """All subsets, each with X = +- sqrt(T d) times every unit matrix: X (n, T, d), y (n, q).

    Up to the third power their moments are those of i.i.d. N(0, 1) tokens.  Where logits do not
    depend on X and V_e = 0, f is linear in X.  So the means of L, dW and dV are exact.
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


def follow(path, E, d, q, lr, directions, inside=True, **model):
    """Gradient descent from zero on all entries of W and V has to go along path (L, numbers of W,
    alpha), where W is a sum of numbers times directions, and V = alpha V*.

    The expectation over the encodings E (number, T, d_e) is inside or outside the loss.
    """
    X, y = all_sequences(E.shape[1], d, q)
    V_star = np.eye(d, d + E.shape[2])
    W, V = np.zeros_like(directions[0]), np.zeros_like(V_star)
    for L_exact, *numbers, alpha in path.T:
        parts = [sts.loss_and_grads(W, V, X, y, e, **model) for e in ([E] if inside else E)]
        L, dW, dV = (sum(part) / len(parts) for part in zip(*parts))
        assert math.isclose(L, L_exact, rel_tol=1e-12)
        np.testing.assert_allclose(W, sum(x * D for x, D in zip(numbers, directions)), atol=1e-12)
        np.testing.assert_allclose(V, alpha * V_star, atol=1e-12)
        W, V = W - lr * dW, V - lr * dV
    assert path[0, -1] < 0.7 * path[0, 0] and path[1, -1] > 0.3      # it has learnt


def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path = theory.descend(lambda *numbers: theory.onehot_slopes(*numbers, T, d, q),
                          lr, 100, T - 1, d)
    follow(path, np.eye(T)[None], d, q, lr, [sts.ground_truth(d, T, T)[0]])


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers(inside):
    T, d_e, d, q, lr = 3, 3, 2, 2, 3.0
    path = theory.descend(lambda *numbers: theory.onehot_slopes(*numbers, T, d, q), lr, 15, d_e, d)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           inside)


def on_lattice(scores, d_e, q):
    """Scores (draws, T), the selected ones first, in the form of width.sample_scores."""
    gaps = np.rint((scores.max(axis=1, keepdims=True) - scores) * d_e / 2).astype(int)
    counts = np.array([np.bincount(row, minlength=gaps.max() + 1) for row in gaps])
    return -2 / d_e * np.arange(gaps.max() + 1), gaps[:, :q], counts.astype(float)


@pytest.mark.parametrize("K", (1, math.inf))
def test_rademacher_descent_is_two_numbers(K):
    """With the scores of all encodings for a sample; K = inf is the expectation inside the loss."""
    T, d_e, d, q, lr = 3, 2, 2, 2, 3.0
    E = all_encodings("rademacher", T, d_e)
    scores = on_lattice((E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0], d_e, q)
    path = theory.descend(lambda *numbers: width.stochastic_slopes(*numbers, scores, d, q, K),
                          lr, 15, d_e, d)
    follow(path, E, d, q, lr, [sts.ground_truth(d, d_e)[0]], inside=K > 1)


@both_queries
@pytest.mark.parametrize("q", (1, 2))
def test_full_model_descent_is_two_numbers(query, q):
    T, d_e, d, lr = 3, 3, 2, 3.0
    path = theory.descend(lambda *numbers: theory.full_model_slopes(*numbers, T, d, q, query),
                          lr, 22, d_e, d)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           attend_to_query=True, query=query)


@both_queries
def test_full_model_descent_with_one_hot_encodings_is_three_numbers(query):
    T, d, q, lr = 5, 2, 2, 1.0
    path = theory.descend(
        lambda *numbers: theory.onehot_full_model_slopes(*numbers, T, d, q, query),
        lr, 60, T - 1, 1, d)
    W_star, _ = sts.ground_truth(d, T, T)
    follow(path, np.eye(T)[None], d, q, lr, [W_star, np.pad(np.full((T, T), 1 / T), (d, 0))],
           attend_to_query=True, query=query)
    assert (path[2, -1] < -0.05) if query == "sum" else (abs(path[2]) < 1e-12).all()


def test_on_fixed_sequences_redrawn_encodings_leave_1_plus_d_squared_numbers():
    """W = a W*, V = [V_x, 0]: what figure data says of full-batch descent with stochastic PE."""
    rng, T, d_e, d, q = np.random.default_rng(0), 3, 4, 2, 2
    (X, y), (W, V) = sts.sample_sts(rng, 4, T, d, q), map(np.zeros_like, sts.ground_truth(d, d_e))
    E = all_encodings("orthonormal", T, d_e)
    for _ in range(5):
        _, dW, dV = (sum(part) / len(E) for part in zip(*[
            sts.loss_and_grads(W, V, X, y, e) for e in E]))
        W, V = W - 4 * dW, V - 4 * dV
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


@both_queries
@pytest.mark.parametrize("slopes, numbers", (
    (lambda *x: theory.onehot_slopes(*x[:2], *x[2:5]), (2.0, 1.3)),
    (theory.full_model_slopes, (2.0, 1.3)), (theory.full_model_slopes, (-1.0, -0.4)),
    (theory.onehot_full_model_slopes, (2.0, -0.7, 1.3)),
    (theory.onehot_full_model_slopes, (-1.0, 3.0, 0.5))))
def test_slopes_are_the_derivatives_of_the_loss(slopes, numbers, query):
    h, (_, *grads) = 1e-5, slopes(*numbers, 20, 5, 3, query)
    for i, grad in enumerate(grads):
        up, down = ([x + sign * h * (i == j) for j, x in enumerate(numbers)] for sign in (1, -1))
        slope = (slopes(*up, 20, 5, 3, query)[0] - slopes(*down, 20, 5, 3, query)[0]) / (2 * h)
        assert math.isclose(slope, grad, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("slopes", (theory.full_model_slopes, theory.onehot_full_model_slopes))
def test_an_unknown_query_is_refused(slopes):
    with pytest.raises(ValueError, match="query must be sum or mean, got 'max'"):
        slopes(*[0.5] * (2 if slopes is theory.full_model_slopes else 3), 6, 2, 2, "max")


# Rates and costs


@pytest.mark.parametrize("norm2", (49, 100))
def test_the_inverse_loss_grows_by_its_asymptotic_slope(norm2):
    L, _, _ = theory.descend(lambda *numbers: theory.onehot_slopes(*numbers, 50, 5, 3),
                             3.0, 20_000, norm2, 5)
    assert math.isclose((1 / L[-1] - 1 / L[10_000]) / 10_000, 4 * 3 / norm2, rel_tol=0.01)


@pytest.mark.parametrize("T, d, q, share, lr, norm2", (
    (200, 5, 3, 0.01, 3, None), (400, 5, 3, 0.01, 5, None), (200, 5, 10, 0.1, 1, 400),
    (200, 1, 3, 0.01, 5, None), (100, 5, 40, 0.05, 1, None)))
def test_the_number_of_steps_in_closed_form(T, d, q, share, lr, norm2):
    """It is that of small steps: a few per cent, which come from alpha, are missing."""
    counted = theory.count_steps(share, T, d, q, lr, norm2)
    assert math.isclose(theory.predict_steps(share, T, d, q, lr, norm2), counted, rel_tol=0.07)
    L, _, _ = theory.descend(lambda *numbers: theory.onehot_slopes(*numbers, T, d, q), lr, counted,
                             norm2 or T - 1, d)
    assert L[-1] <= share * d / (2 * q) < L[-2]


def with_best_alpha(a, T, d, q):
    """a, and the alpha where dL/dalpha, which is linear in alpha, is 0."""
    slope = theory.onehot_slopes(a, 0.0, T, d, q)[2]
    return a, slope / (slope - theory.onehot_slopes(a, 1.0, T, d, q)[2])


@pytest.mark.parametrize("share, T, d, q", ((0.01, 200, 5, 3), (0.3, 10, 2, 4), (0.5, 8, 1, 1)))
def test_the_closed_form_is_the_integral_of_the_flow(share, T, d, q):
    """da / (-dL/da) with the best alpha for each a, by Simpson's rule."""
    a = np.linspace(0, math.log((T - q) * (1 / share - 1) / q) / 2, 401)
    L, da, _ = np.transpose([theory.onehot_slopes(*with_best_alpha(value, T, d, q), T, d, q)
                             for value in a])
    assert math.isclose(L[-1], share * d / (2 * q), rel_tol=1e-9)
    pace = -(T - 1) / da
    integral = (a[1] - a[0]) / 3 * (pace[0] + 4 * pace[1:-1:2].sum() + 2 * pace[2:-1:2].sum()
                                    + pace[-1])
    assert math.isclose(theory.predict_steps(share, T, d, q), integral, rel_tol=1e-6)


def test_the_plateau_costs_T_squared():
    assert math.isclose(theory.predict_steps(0.5, 1e6, 5, 3), 1e12 / 10, rel_tol=0.001)


@pytest.mark.parametrize("q", (2, 3, 5))
def test_the_full_model_with_the_sum_has_rate_one_over_q(q):
    """Of L / law the logarithm, and the slope of log L against log t, go to 0 and to -1/q."""
    L, _, _ = theory.descend(
        lambda *numbers: theory.full_model_slopes(*numbers, 10, 5, q, "sum"), 1.0, 20_000, 20, 5)
    ratios = [L[t] / theory.full_model_law(t, 10, 5, q, "sum", 1.0) for t in (200, 20_000)]
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1) and abs(ratios[1] - 1) < 0.1
    slope = math.log(L[20_000] / L[10_000]) / math.log(2)
    assert math.isclose(slope, -1 / q, rel_tol=0.1)


@pytest.mark.parametrize("onehot", (False, True))
@pytest.mark.parametrize("q", (1, 2, 3))
def test_the_full_model_with_the_mean_has_rate_one_over_t(q, onehot):
    d_e, lr, T = 20, 3.0, 10
    slopes, norms2 = ((theory.onehot_full_model_slopes, (T - 1, 1, 5)) if onehot
                      else (theory.full_model_slopes, (d_e, 5)))
    L = theory.descend(lambda *numbers: slopes(*numbers, T, 5, q, "mean"), lr, 8000, *norms2)[0]
    law = 1 / theory.full_model_law(1.0, T, 5, q, "mean", lr, d_e, onehot)
    assert math.isclose(law, 4 * lr / (q * q * norms2[0]), rel_tol=1e-12)
    assert math.isclose((1 / L[-1] - 1 / L[4000]) / 4000, law, rel_tol=0.03)


@pytest.mark.parametrize("T, q", ((10, 3), (20, 2)))
def test_the_full_model_with_the_sum_and_one_hot_encodings_has_rate_one_over_t(T, q):
    """1/L grows by 4 lr/N with N of a moving m; N tends to the norm of I - 11^T/q on W."""
    d, lr = 5, 1.0
    L, a, b, alpha = theory.descend(
        lambda *numbers: theory.onehot_full_model_slopes(*numbers, T, d, q, "sum"),
        lr, 30_000, T - 1, 1, d)
    m = a[-1] + q * (b[-1] - a[-1]) / T
    assert math.isclose(alpha[-1], (q + math.exp((q - 1) * m)) / q, rel_tol=0.01)
    norm2 = np.linalg.norm(np.eye(T) - 1 / q) ** 2
    assert math.isclose(4 * lr * theory.full_model_law(1, T, d, q, "sum", lr, None, True), norm2)
    slope = (q - 1) * math.exp((q - 1) * m) / q
    N = norm2 - (T / q) ** 2 * (T / q - 1) ** 2 / ((T / q) ** 2 + d * slope ** 2)
    growth = (1 / L[-1] - 1 / L[-3000]) / 2999
    assert math.isclose(growth, 4 * lr / N, rel_tol=0.02) and N < 0.97 * norm2
    assert (b[-1] - a[-1]) / T < -0.5


def test_with_one_selected_token_sum_and_mean_are_the_same():
    for function in (lambda query: theory.full_model_slopes(2.0, 1.3, 9, 4, 1, query),
                     lambda query: theory.onehot_full_model_slopes(2.0, 0.4, 1.3, 9, 4, 1, query),
                     lambda query: theory.full_model_law(7, 9, 4, 1, query, 2.0, 30)):
        np.testing.assert_allclose(function("sum"), function("mean"), rtol=1e-14)


def test_where_all_positions_are_selected_the_loss_can_be_zero():
    assert theory.onehot_slopes(1.0, 1.0, 3, 5, 3)[:2] == (0.0, 0.0)


# Other lengths


@pytest.mark.parametrize("a", (1.5, 4.0, 7.0))
@pytest.mark.parametrize("T_test", (10, 30, 400))
def test_the_length_law_is_a_sum_over_positions(a, T_test):
    T, d, q = 30, 5, 3
    _, alpha = with_best_alpha(a, T, d, q)
    L = theory.onehot_slopes(a, alpha, T, d, q)[0]
    P = np.exp(a * (np.arange(T_test) < q))
    r = alpha * P / P.sum() - (np.arange(T_test) < q) / q
    assert math.isclose(theory.length_loss(L, T, T_test, d, q), d / 2 * (r @ r), rel_tol=1e-10)
    assert math.isclose(theory.length_loss(L, T, T, d, q), L, rel_tol=1e-10)


def test_the_length_law_holds_in_the_recursion():
    """There alpha lags behind its best value.  For large A the law is its leading term."""
    T, d, q = 100, 5, 3
    L, a, alpha = theory.descend(lambda *numbers: theory.onehot_slopes(*numbers, T, d, q),
                                 5.0, 30_000, T - 1, d)
    for t in 1000, 3000, 30_000:
        for T_test in 200, 1000:
            exact = theory.onehot_slopes(a[t], alpha[t], T_test, d, q)[0]
            assert math.isclose(theory.length_loss(L[t], T, T_test, d, q), exact, rel_tol=0.02)
    for T_test in 150, 200:
        factor = theory.length_loss(1e-9, T, T_test, d, q) / 1e-9
        assert math.isclose(factor, (T_test - q + (T_test - T) ** 2 / q) / (T - q), rel_tol=0.001)


@pytest.mark.parametrize("share", (0.2, 0.5, 0.9))
def test_the_reach_is_the_length_where_the_law_has_the_share(share):
    T, d, q = 200, 5, 3
    for L in 0.05, 0.0005, 1e-7:
        length = theory.reach(L, T, d, q, share)
        assert length > T
        assert math.isclose(theory.length_loss(L, T, length, d, q), share * d / (2 * q),
                            rel_tol=1e-8)
    A = math.sqrt(d * (T - q) / (2 * q * q * 1e-7))
    leading = (1 + math.sqrt(2)) * q * A + (2 + math.sqrt(2)) * (T - q)
    assert math.isclose(theory.reach(1e-7, T, d, q), leading, rel_tol=0.001)


# Against training of train.py on sampled sequences


def check_training(slopes, norms2, T, d, q, pe_dim, lr, steps, **settings):
    """W, V and the last losses of a run on fresh batches are within a few per cent of descend."""
    run = train.train(T=T, d=d, q=q, pe_dim=pe_dim, lr=lr, steps=steps, fresh=True, evaluations=1,
                      eval_sequences=2, T_test=[T], q_test=[q], **settings)
    L, a, alpha = theory.descend(slopes, lr, steps, *norms2)
    assert L[-1] < 0.5 * L[0]
    truth = sts.ground_truth(d, pe_dim, T if "pe" in settings else None)
    for name, star, exact in zip("WV", truth, (a[-1], alpha[-1])):
        multiple = (run[name] * star).sum() / (star ** 2).sum()
        assert math.isclose(multiple, exact, rel_tol=0.05)
    assert math.isclose(run["loss"][-100:].mean(), L[-100:].mean(), rel_tol=0.1)


@pytest.mark.parametrize("settings", ({"pe": "onehot"}, {"pe_family": "orthonormal"},
                                      {"draws": 1}, {"draws": 4}))
def test_the_recursions_predict_sampled_training(settings):
    T, d, q = 8, 3, 3
    d_e, norm2, lr, steps = (8, 7, 0.5, 500) if "pe" in settings else (16, 16, 1.0, 250)
    scores = width.sample_scores(np.random.default_rng(0), T, d_e, q, 800)

    def slopes(*numbers):
        if "draws" in settings:
            return width.stochastic_slopes(*numbers, scores, d, q, settings["draws"])
        return theory.onehot_slopes(*numbers, T, d, q)
    check_training(slopes, (norm2, d), T, d, q, d_e, lr, steps, **settings)


@both_queries
def test_the_recursion_of_the_full_model_predicts_sampled_training(query):
    T, d, q, d_e = 10, 3, 2, 20
    check_training(lambda *numbers: theory.full_model_slopes(*numbers, T, d, q, query), (d_e, d),
                   T, d, q, d_e, 1.0, 450, pe_family="orthonormal", attend_to_query=True,
                   query=query)


def test_theory_stands_alone_and_prints_its_tables(tmp_path):
    shutil.copy(HERE / "theory.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "theory.py"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("10000  0.01106   4.247   1.915   0.955", "W = V = 0  4847", "V = V*     4650",
                "W = W*     1018", "353007 steps", "1000    139608    1.36e+05",
                "100000   0.01892    1.0000     0.30912    1.0000     2991"):
        assert row in done.stdout
