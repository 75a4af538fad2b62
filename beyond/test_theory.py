"""Tests of theory.py:  python -m pytest beyond/test_theory.py

The recursions and the losses are compared with gradient descent on all entries of W and V, over all
subsets and all encodings.
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

one_hot, full, one_hot_full = (theory.onehot_slopes, theory.full_model_slopes,
                               theory.onehot_full_model_slopes)
both_queries = pytest.mark.parametrize("query", ("sum", "mean"))


# Gradient descent on all entries of W and V


def all_sequences(T, d, q):
    """All subsets, each with X = +- sqrt(T d) times every unit matrix: X (n, T, d), y (n, q).

    Up to the third power their moments are those of i.i.d. N(0, 1) tokens.  Where logits do not
    depend on X and V_e = 0, f is linear in X.  So the means of L, dW and dV are exact.
    """
    units = math.sqrt(T * d) * np.eye(T * d).reshape(T * d, T, d)
    X, y = np.concatenate([units, -units]), np.array(list(itertools.combinations(range(T), q)))
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

    The mean over the encodings E (number, T, d_e) is inside or outside the loss.  Returns W, V at
    the end of the path.
    """
    X, y = all_sequences(E.shape[1], d, q)
    V_star = np.eye(d, d + E.shape[2])
    W, V = np.zeros_like(directions[0]), np.zeros_like(V_star)
    for t, (L_exact, *numbers, alpha) in enumerate(path.T):
        parts = [sts.loss_and_grads(W, V, X, y, e, **model) for e in ([E] if inside else E)]
        L, dW, dV = (sum(part) / len(parts) for part in zip(*parts))
        assert math.isclose(L, L_exact, rel_tol=1e-12)
        np.testing.assert_allclose(W, sum(x * D for x, D in zip(numbers, directions)), atol=1e-12)
        np.testing.assert_allclose(V, alpha * V_star, atol=1e-12)
        if t < path.shape[1] - 1:
            W, V = W - lr * dW, V - lr * dV
    assert path[0, -1] < 0.7 * path[0, 0] and path[1, -1] > 0.3      # it has learnt
    return W, V


def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path = theory.descend(one_hot, lr, 100, (T - 1, d), T, d, q)
    follow(path, np.eye(T)[None], d, q, lr, [sts.ground_truth(d, T, T)[0]])


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers_and_gives_the_loss_at_other_lengths(inside):
    T, d_e, d, q, lr = 3, 4, 2, 2, 3.0
    L, a, alpha = theory.descend(one_hot, lr, 20, (d_e, d), T, d, q)
    W, V = follow(np.array([L, a, alpha]), all_encodings("orthonormal", T, d_e), d, q, lr,
                  [sts.ground_truth(d, d_e)[0]], inside)
    for T_test, q_test in (2, 1), (3, 2), (3, 1), (4, 2), (4, 3):
        E = all_encodings("orthonormal", T_test, d_e)
        exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E)
        path = theory.test_loss(a, alpha, T_test, d, q_test)
        assert math.isclose(path[-1], exact, rel_tol=1e-12) and path.shape == a.shape


@pytest.mark.parametrize("law, d_e", (("onehot", 6), ("orthonormal", 9)))
def test_fixed_encodings_train_like_one_hot_ones_and_have_the_loss_at_other_lengths(law, d_e):
    T, longest, d, q, lr = 4, 6, 2, 2, 1.0
    E = sts.positional_encoding(law, longest, d_e, np.random.default_rng(0))
    L, a, alpha = theory.descend(one_hot, lr, 40, (T - 1, d), T, d, q)
    u = E[:T].sum(axis=0)
    W, V = follow(np.array([L, a, alpha]), E[None, :T], d, q, lr,
                  [np.pad(E[:T].T @ E[:T] - np.outer(u, u) / T, (d, 0))])
    for T_test, q_test in itertools.product(range(2, longest + 1), (1, 2, 3, 4)):
        if q_test <= T_test:
            exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E[:T_test])
            path = theory.fixed_test_loss(a, alpha, T, T_test, d, q_test)
            assert math.isclose(path[-1], exact, rel_tol=1e-12) and path.shape == a.shape
    assert exact > 2 * theory.test_loss(a[-1], alpha[-1], T_test, d, q_test)


def test_the_dip_at_another_size_is_where_the_output_first_has_the_right_scale():
    """alpha s passes 1 while alpha overshoots, so the error falls, rises, and falls again."""
    _, a, alpha = theory.descend(one_hot, 5.0, 8000, (300, 5), 200, 5, 3)
    error, selected = theory.test_loss(a, alpha, 200, 5, 8), 8 * np.exp(a)
    scale = alpha * selected / (selected + 192)
    rising = np.flatnonzero(np.diff(error) > 0)
    dip = rising[0]
    assert abs(scale[dip] - 1) < 0.06 and scale[rising[-1] + 1] > 1.5
    assert error[rising[-1] + 1] > 1.5 * error[dip] > 5 * error[-1]


def test_nothing_overflows_where_the_query_has_all_attention():
    assert math.isclose(full(800.0, 1.0, 30, 5, 3, "sum")[0], 5 / (2 * 3))


def test_at_other_lengths_fixed_encodings_do_not_come_below_a_least_loss():
    """Then it rises again.  It is proportional to d, and 0.15 or more in Figure 2, where d = 5."""
    least = []
    for d in 4, 5:
        _, a, alpha = theory.descend(one_hot, 5.0, 12_000, (199, d), 200, d, 3)
        for T_test in 250, 300, 350, 400:
            path = theory.fixed_test_loss(a, alpha, 200, T_test, d, 3)
            assert path[-1] > 1.01 * path.min()
            least.append(path.min() / d)
    np.testing.assert_allclose(least[:4], least[4:], rtol=0.01)
    assert 0.15 < 5 * least[4] and (np.diff(least[4:]) > 0).all()


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
    path = theory.descend(width.stochastic_slopes, lr, 15, (d_e, d), scores, d, q, K)
    follow(path, E, d, q, lr, [sts.ground_truth(d, d_e)[0]], inside=K > 1)


@both_queries
@pytest.mark.parametrize("q", (1, 2))
def test_full_model_descent_is_two_numbers(query, q):
    T, d_e, d, lr = 3, 3, 2, 3.0
    path = theory.descend(full, lr, 22, (d_e, d), T, d, q, query)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           attend_to_query=True, query=query)


@both_queries
def test_full_model_descent_with_one_hot_encodings_is_three_numbers(query):
    T, d, q, lr = 5, 3, 2, 0.5
    path = theory.descend(one_hot_full, lr, 90, (T - 1, 1, d), T, d, q, query)
    W_star, _ = sts.ground_truth(d, T, T)
    follow(path, np.eye(T)[None], d, q, lr, [W_star, np.pad(np.full((T, T), 1 / T), (d, 0))],
           attend_to_query=True, query=query)
    assert (path[2, -1] < -0.05) if query == "sum" else (abs(path[2]) < 1e-12).all()


def test_on_fixed_sequences_stochastic_encodings_leave_1_plus_d_squared_numbers():
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


# Fixed random signs


def test_the_first_step_of_fixed_random_signs():
    """From W = 0, V = alpha V*, in the mean over all E: the gap of the logits at trained positions,
    and e^T B e at a new position over trained ones."""
    T, d_e, d, q, lr, alpha = 3, 2, 2, 2, 0.1, 0.7
    X, y = all_sequences(T, d, q)
    gaps, own = [], []
    for E in all_encodings("rademacher", T + 1, d_e):
        W, V = np.zeros((d + d_e, d + d_e)), alpha * np.eye(d, d + d_e)
        B = -lr * sts.loss_and_grads(W, V, X, y, E[:T])[1][d:, d:]
        for subset in itertools.combinations(range(T), q):
            logits = E[:T] @ B @ E[list(subset)].sum(axis=0)
            selected = logits[list(subset)].mean()
            gaps.append(selected - (T * logits.mean() - q * selected) / (T - q))
        own.append(np.einsum("ik,kl,il->i", E, B, E))
    step = lr * d * alpha * (T - q) / T ** 2 / theory.fixed_norm2(T, d_e)
    assert math.isclose(np.mean(gaps), step, rel_tol=1e-12)
    *trained, new = np.mean(own, axis=0)
    assert math.isclose(new / np.mean(trained), theory.new_position_share(T, d_e), rel_tol=1e-12)


def random_signs(T, d_e):
    return sts.positional_encoding("rademacher", T, d_e, np.random.default_rng(0))


def test_independent_encodings_have_a_block_with_exact_logits():
    T, E = 7, random_signs(7, 12)
    B, inverse, rng = theory.exact_block(E), np.linalg.pinv(E), np.random.default_rng(0)
    for y in itertools.combinations(range(T), 3):
        logits = E @ B @ E[list(y)].sum(axis=0)
        np.testing.assert_allclose(logits, np.isin(range(T), y), atol=1e-12)
    K = np.linalg.inv(E @ E.T)
    best = -K.sum(axis=0) / K.sum()                     # all logits of y less the same number
    least, *norms2 = [np.linalg.norm(inverse @ (np.eye(T) + w) @ inverse.T) ** 2 for w in
                      (best, 0 * best, *(best + 0.1 * rng.standard_normal((9, T))))]
    assert math.isclose(least, theory.exact_block_norm2(E)) and least < min(norms2)
    assert math.isclose(theory.exact_block_norm2(np.eye(9)[:T]), T - 1)
    large = theory.exact_block_norm2(random_signs(300, 750))
    assert math.isclose(large, 299 / (1 - 300 / 750) ** 3, rel_tol=0.1)


@pytest.mark.parametrize("T, d_e, q", ((4, 3, 2), (4, 6, 3), (3, 5, 1)))
def test_descent_with_fixed_encodings_is_a_matrix_and_a_number(T, d_e, q):
    E, d, lr = random_signs(T, d_e), 2, 1.0
    (X, y), W, V = all_sequences(T, d, q), np.zeros((d + d_e, d + d_e)), np.zeros((d, d + d_e))
    losses = theory.fixed_descend(E, q, lr, 60, d)
    for exact in losses:
        L, dW, dV = sts.loss_and_grads(W, V, X, y, E)
        assert math.isclose(L, exact, rel_tol=1e-10)
        W, V = W - lr * dW, V - lr * dV
    assert losses[-1] < 0.8 * losses[0]


def test_fixed_encodings_converge_at_the_rate_of_their_block_if_they_are_independent():
    dependent, independent = (theory.fixed_descend(random_signs(8, d_e), 3, 2.0, 8000, 3)
                              for d_e in (6, 32))
    growth = (1 / independent[-1] - 1 / independent[-101]) / 100
    norm2 = theory.exact_block_norm2(random_signs(8, 32))
    assert math.isclose(growth, 4 * 2 / norm2, rel_tol=0.05)
    assert independent[-1] < 0.001 * 0.5 and dependent[-1] > 0.1 * 0.5         # d/(2q) is 0.5


# Rates and costs


@pytest.mark.parametrize("T, d, q, share, lr, norm2", (
    (200, 5, 3, 0.01, 3, None), (200, 5, 10, 0.1, 1, 400), (100, 1, 40, 0.05, 1, None)))
def test_the_number_of_steps_in_closed_form(T, d, q, share, lr, norm2):
    """It is that of small steps: a few per cent, which come from alpha, are missing."""
    counted = theory.count_steps(share, T, d, q, lr, norm2)
    assert math.isclose(theory.predict_steps(share, T, d, q, lr, norm2), counted, rel_tol=0.07)
    L, _, _ = theory.descend(one_hot, lr, counted, (norm2 or T - 1, d), T, d, q)
    assert L[-1] <= share * d / (2 * q) < L[-2]


def test_descent_can_start_anywhere():
    path = theory.descend(one_hot, 1.0, 50, (9, 5), 10, 5, 3)
    rest = theory.descend(one_hot, 1.0, 20, (9, 5), 10, 5, 3, start=path[1:, 30])
    np.testing.assert_allclose(rest, path[:, 30:])


def with_best_alpha(a, T, d, q):
    """a, and the alpha where dL/dalpha, which is linear in alpha, is 0."""
    slope = one_hot(a, 0.0, T, d, q)[2]
    return a, slope / (slope - one_hot(a, 1.0, T, d, q)[2])


@pytest.mark.parametrize("share, T, d, q", ((0.01, 200, 5, 3), (0.3, 10, 2, 4), (0.5, 8, 1, 1)))
def test_the_closed_form_is_the_integral_of_the_flow(share, T, d, q):
    """da / (-dL/da) with the best alpha for each a, by Simpson's rule."""
    a = np.linspace(0, math.log((T - q) * (1 / share - 1) / q) / 2, 401)
    L, da, _ = np.transpose([one_hot(*with_best_alpha(x, T, d, q), T, d, q) for x in a])
    assert math.isclose(L[-1], share * d / (2 * q), rel_tol=1e-9)
    pace = -(T - 1) / da
    integral = (a[1] - a[0]) / 3 * (pace[0] + 4 * pace[1:-1:2].sum() + 2 * pace[2:-1:2].sum()
                                    + pace[-1])
    assert math.isclose(theory.predict_steps(share, T, d, q), integral, rel_tol=1e-6)


@pytest.mark.parametrize("T, d, q, lr, norm2", (
    (200, 5, 3, 4, None), (200, 20, 8, 2, 400), (100, 1, 10, 0.5, None), (50, 5, 3, 1, 25)))
def test_the_plateau_in_closed_form_is_near_the_recursion(T, d, q, lr, norm2):
    counted = theory.count_steps(0.5, T, d, q, lr, norm2)
    closed = theory.plateau(T, d, q, lr, math.inf, norm2)
    assert math.isclose(counted, closed, rel_tol=0.09)
    assert theory.plateau_holds(T, d, q, lr, 8 * lr * (d + q), norm2)
    assert not theory.plateau_holds(T, d, q, lr, 7.9 * lr * (d + q), norm2)     # too much noise
    wait = T * (norm2 or T - 1) / (2 * lr * d)          # noise is in the way of W, not of V
    noisy = theory.plateau(T, d, q, lr, T * lr / 2, norm2)
    assert math.isclose(noisy - closed, wait * (1 + 2 * q / T * math.log(T / q)), rel_tol=1e-9)


@pytest.mark.parametrize("T, d, q, norm2", (
    (12, 2, 4, None), (1000, 50, 3, 300), (60, 20, 1, 60), (20, 1, 3, None)))
def test_outside_its_domain_the_closed_form_of_the_plateau_is_worse(T, d, q, norm2):
    counted = theory.count_steps(0.5, T, d, q, 1, norm2)
    assert abs(counted / theory.plateau(T, d, q, 1, math.inf, norm2) - 1) > 0.09
    assert not theory.plateau_holds(T, d, q, 1, math.inf, norm2)


def test_with_the_mean_as_query_W_learns_q_squared_times_more_slowly():
    """The recursion of the mean is that of W's logits a/q."""
    T, d, q, lr = 60, 3, 3, 2.0
    L = theory.descend(lambda a, alpha: np.divide(one_hot(a / q, alpha, T, d, q), (1, q, 1)), lr,
                       8000, (T - 1, d))[0]
    closed = theory.plateau(T, d, q, lr, math.inf, query="mean")
    assert math.isclose((L <= d / (4 * q)).argmax(), closed, rel_tol=0.09)


@pytest.mark.parametrize("q", (2, 3, 5))
def test_the_full_model_with_the_sum_has_rate_one_over_q(q):
    """L / full_model_loss goes to 1, and the slope of log L against log t to -1/q."""
    L, _, _ = theory.descend(full, 1.0, 20_000, (20, 5), 10, 5, q, "sum")
    ratios = [L[t] / theory.full_model_loss(t, 10, 5, q, "sum", 1.0) for t in (200, 20_000)]
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1) and abs(ratios[1] - 1) < 0.1
    slope = math.log(L[20_000] / L[10_000]) / math.log(2)
    assert math.isclose(slope, -1 / q, rel_tol=0.1)


@pytest.mark.parametrize("onehot", (False, True))
@pytest.mark.parametrize("q", (1, 2, 3))
def test_the_full_model_with_the_mean_has_rate_one_over_t(q, onehot):
    d_e, lr, T = 20, 3.0, 10
    query = "sum" if q == 1 else "mean"                     # the same for one selected token
    slopes, norms2 = (one_hot_full, (T - 1, 1, 5)) if onehot else (full, (d_e, 5))
    L = theory.descend(slopes, lr, 8000, norms2, T, 5, q, query)[0]
    growth = 1 / theory.full_model_loss(1.0, T, 5, q, query, lr, d_e, onehot)
    assert math.isclose((1 / L[-1] - 1 / L[4000]) / 4000, growth, rel_tol=0.03)


@pytest.mark.parametrize("T, q", ((10, 3), (20, 2)))
def test_the_full_model_with_the_sum_and_one_hot_encodings_has_rate_one_over_t(T, q):
    """1/L grows by 4 lr/N with N of a moving m; N tends to the norm of I - 11^T/q on W."""
    d, lr = 5, 1.0
    L, a, b, alpha = theory.descend(one_hot_full, lr, 30_000, (T - 1, 1, d), T, d, q, "sum")
    m = a[-1] + q * (b[-1] - a[-1]) / T
    assert math.isclose(alpha[-1], (q + math.exp((q - 1) * m)) / q, rel_tol=0.01)
    norm2 = np.linalg.norm(np.eye(T) - 1 / q) ** 2
    assert math.isclose(4 * lr * theory.full_model_loss(1, T, d, q, "sum", lr, None, True), norm2)
    slope = (q - 1) * math.exp((q - 1) * m) / q
    N = norm2 - (T / q) ** 2 * (T / q - 1) ** 2 / ((T / q) ** 2 + d * slope ** 2)
    growth = (1 / L[-1] - 1 / L[-3000]) / 2999
    assert math.isclose(growth, 4 * lr / N, rel_tol=0.02) and N < 0.97 * norm2
    assert (b[-1] - a[-1]) / T < -0.5


# Other lengths


@pytest.mark.parametrize("a", (1.5, 4.0, 7.0))
@pytest.mark.parametrize("T_test", (10, 30, 400))
def test_the_loss_at_other_lengths_is_that_with_the_best_alpha(a, T_test):
    T, d, q = 30, 5, 3
    _, alpha = with_best_alpha(a, T, d, q)
    L = one_hot(a, alpha, T, d, q)[0]
    exact = theory.test_loss(a, alpha, T_test, d, q)
    assert math.isclose(theory.length_loss(L, T, T_test, d, q), exact, rel_tol=1e-10)


# Training on samples


SCORES = width.sample_scores(np.random.default_rng(0), 8, 16, 3, 800)


@pytest.mark.parametrize("slopes, sizes, lr, steps, d_e, settings", (
    (one_hot, (8, 3, 3), 0.5, 500, 8, {"pe": "onehot"}),
    (one_hot, (8, 3, 3), 1.0, 250, 16, {"law": "orthonormal"}),
    (width.stochastic_slopes, (SCORES, 3, 3, 1), 1.0, 250, 16, {"draws": 1}),
    (width.stochastic_slopes, (SCORES, 3, 3, 4), 1.0, 250, 16, {"draws": 4}),
    *((full, (8, 3, 3, query), 0.25, 1600, 16,
       {"law": "orthonormal", "attend_to_query": True, "query": query})
      for query in ("sum", "mean"))))
def test_train_py_follows_the_recursions(slopes, sizes, lr, steps, d_e, settings):
    """W, V and the last losses of a run on fresh batches are within a few per cent."""
    T, d, q = 8, 3, 3
    run = train.train(T=T, d=d, q=q, d_e=d_e, lr=lr, steps=steps, fresh=True, evaluations=1,
                      eval_sequences=2, T_test=[T], q_test=[q], **settings)
    onehot = "pe" in settings
    L, a, alpha = theory.descend(slopes, lr, steps, (T - 1 if onehot else d_e, d), *sizes)
    assert L[-1] < 0.5 * L[0]
    truth = sts.ground_truth(d, d_e, T if onehot else None)
    for name, star, exact in zip("WV", truth, (a[-1], alpha[-1])):
        multiple = (run[name] * star).sum() / (star ** 2).sum()
        assert math.isclose(multiple, exact, rel_tol=0.05)
    assert math.isclose(run["loss"][-100:].mean(), L[-100:].mean(), rel_tol=0.1)


@pytest.mark.parametrize("n, draws", ((64, 1), (32, 2)))
def test_gradient_noise_makes_the_plateau_longer_by_the_derived_factor(n, draws):
    T, d, q, lr = 40, 3, 2, 1.0
    losses = np.mean([train.train(T=T, d=d, q=q, d_e=T, law="orthonormal", lr=lr, steps=600,
                                  batch=n, draws=draws, fresh=True, seed=seed, evaluations=1,
                                  T_test=[], q_test=[])["loss"] for seed in range(3)], axis=0)
    smooth = np.convolve(losses, np.ones(30) / 30, "valid")
    steps = 15 + (smooth <= d / (4 * q)).argmax()
    delay = theory.noise_delay(lr, T, n, draws)
    assert math.isclose(steps / theory.count_steps(0.5, T, d, q, lr, T), delay, rel_tol=0.04)
    assert math.isclose(steps, theory.plateau(T, d, q, lr, n, T, draws), rel_tol=0.04)


@pytest.mark.parametrize("T, d, q", ((20, 5, 3), (12, 2, 4), (30, 2, 2), (6, 1, 2)))
def test_curvature_is_the_largest_one_at_the_solution(T, d, q):
    """There the gradient at a small distance is the Hessian times it: power iteration."""
    rng, E, step = np.random.default_rng(0), np.eye(T), 1e-6
    W_star, V_star = sts.ground_truth(d, T)
    W, V = (rng.standard_normal(M.shape) for M in (W_star, V_star))
    curvatures = []
    for _ in range(40):
        size = math.hypot(np.linalg.norm(W), np.linalg.norm(V)) / step
        W, V = W / size, V / size
        X, y = sts.sample_sts(rng, 4000, T, d, q)
        _, dW, dV = sts.loss_and_grads(40 * W_star + W, V_star + V, X, y, E)
        curvatures.append(((W * dW).sum() + (V * dV).sum()) / step ** 2)
        W, V = dW, dV
    assert math.isclose(np.mean(curvatures[20:]), theory.curvature(T, d, q), rel_tol=0.04)


def test_theory_stands_alone_and_what_its_tour_compares_tends_to_1(tmp_path):
    shutil.copy(HERE / "theory.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "theory.py"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    growth, lengths, full_model = [[float(word) for word in row] for row in rows
                                   if row[:1] in (["100000"], ["50000"])]
    np.testing.assert_allclose([growth[-1], lengths[2], lengths[4]], 1, atol=0.01)
    np.testing.assert_allclose(full_model[1:], 1, atol=0.1)
