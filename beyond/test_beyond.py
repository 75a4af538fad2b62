"""Tests of beyond/:  python -m pytest beyond/test_beyond.py

Each test states a fact.  What is derived is compared with sts.py, exactly where expectations can be
written out, or with short runs of train.py.  Statistical tests have a fixed seed.
"""

import common       # first: it finds plots.py, and gives NumPy one thread

import itertools
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import claims
import converge
import coverage
import data
import explore
import fixed
import lengths
import plateau
import plots
import readings
import sts
import train
import width
from common import end_error, multiples
from converge import STUCK, flow
from fixed import all_subsets, attention, curvature, late_block, late_norm
from two_numbers import count_steps, descend, held, late_loss, slopes


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


def follow(path, E, d, q, lr, inside=True, J=None, **model):
    """Gradient descent from zero on all entries of W and V has to go along path (L, a, alpha).

    The mean over the encodings E (number, T, d_e) is inside or outside the loss; J (d_e, d_e) takes
    the place of the identity in W*.  Returns W, V at the end of the path.
    """
    X, y = all_sequences(E.shape[1], d, q)
    W_star, V_star = sts.ground_truth(d, E.shape[2])
    W_star[d:, d:] = np.eye(E.shape[2]) if J is None else J
    W, V = np.zeros_like(W_star), np.zeros_like(V_star)
    for t, (L_exact, a, alpha) in enumerate(path.T):
        parts = [sts.loss_and_grads(W, V, X, y, e, **model) for e in ([E] if inside else E)]
        L, dW, dV = (sum(part) / len(parts) for part in zip(*parts))
        assert math.isclose(L, L_exact, rel_tol=1e-12)
        np.testing.assert_allclose(W, a * W_star, atol=1e-12)
        np.testing.assert_allclose(V, alpha * V_star, atol=1e-12)
        if t < path.shape[1] - 1:
            W, V = W - lr * dW, V - lr * dV
    assert path[0, -1] < 0.7 * path[0, 0] and path[1, -1] > 0.3      # it has learnt
    return W, V


# two_numbers.py

def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path = descend(lr, 100, T - 1, T, d, q)
    W, V = follow(path, np.eye(T)[None], d, q, lr, J=np.eye(T) - 1 / T)
    c = train.Settings(T=T, d=d, q=q, d_e=T, pe="onehot")
    assert multiples({"config": c, "W": W, "V": V}) == pytest.approx(path[1:, -1])


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers_and_gives_the_loss_on_other_tests(inside):
    T, d_e, d, q, lr = 3, 4, 2, 2, 3.0
    path = descend(lr, 20, d_e, T, d, q)
    W, V = follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, inside)
    for T_test, q_test in (2, 1), (3, 2), (3, 1), (4, 2), (4, 3):
        E = all_encodings("orthonormal", T_test, d_e)
        exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E)
        L = lengths.stochastic_loss(*path[1:], T_test, d, q_test)
        assert math.isclose(L[-1], exact, rel_tol=1e-12) and L.shape == path[1].shape


@pytest.mark.parametrize("query", ("sum", "mean"))
@pytest.mark.parametrize("q", (1, 2))
def test_descent_of_the_full_model_is_two_numbers(query, q):
    T, d_e, d, lr = 3, 3, 2, 3.0
    path = descend(lr, 22, d_e, T, d, q, partial(slopes, query=query))
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, attend_to_query=True, query=query)


@pytest.mark.parametrize("query, q, power", (
    ("sum", 1, 1), ("sum", 2, 1 / 2), ("sum", 3, 1 / 3), ("mean", 2, 1), ("mean", 3, 1)))
def test_the_late_loss_of_the_full_model_and_its_power(query, q, power):
    """L over late_loss goes to 1, and the slope of log L against log t to -power."""
    L = descend(3.0, 20_000, 20, 10, 5, q, partial(slopes, query=query))[0]
    off = [abs(L[t] / late_loss(t, 10, 5, q, query, 3.0, 20) - 1) for t in (200, 20_000)]
    assert off[1] < off[0] and off[1] < 0.05
    assert math.isclose(math.log(L[10_000] / L[20_000]) / math.log(2), power, rel_tol=0.05)


def test_on_fixed_sequences_stochastic_encodings_leave_1_plus_d_squared_numbers():
    """W = a W*, V = [V_x, 0]: so there is little that could memorize."""
    rng, T, d_e, d, q = np.random.default_rng(0), 3, 4, 2, 2
    (X, y), (W, V) = sts.sample_sts(rng, 4, T, d, q), map(np.zeros_like, sts.ground_truth(d, d_e))
    E = all_encodings("orthonormal", T, d_e)
    for _ in range(5):
        _, dW, dV = (sum(part) / len(E) for part in zip(*[
            sts.loss_and_grads(W, V, X, y, e) for e in E]))
        W, V = W - dW, V - dV
    S = sts.sts_target(X, y)[None] * q
    (a,), (V_x,), (error,) = data.descend(S, X.sum(axis=1) - S, T, q, 1.0, 5, d_e)
    np.testing.assert_allclose(W, a * sts.ground_truth(d, d_e)[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(V, np.pad(V_x, ((0, 0), (0, d_e))), rtol=0, atol=1e-13)
    assert abs(a) > 1e-4 and abs(V[0, 1] - V[1, 0]) > 0.01
    assert error == pytest.approx(sts.loss(W, V, *all_sequences(T, d, q), E[0]) * 2 * q / d)


# plateau.py

@pytest.mark.parametrize("a, T, d, q", ((2.5, 200, 5, 3), (0.4, 10, 2, 4), (0.1, 8, 1, 1)))
def test_the_closed_form_is_that_of_the_flow_with_the_best_alpha(a, T, d, q):
    """From a = 0, and dt/da is N over -lr dL/da."""
    def at(a):
        slope = slopes(a, 0.0, T, d, q)[2]              # dL/dalpha is linear in alpha
        return slopes(a, slope / (slope - slopes(a, 1.0, T, d, q)[2]), T, d, q)

    t = [plateau.flow_steps(at(x)[0] * 2 * q / d, T, d, q, 2.0, T - 1)
         for x in (0, a - 1e-4, a + 1e-4)]
    assert abs(t[0]) < 1e-9
    assert math.isclose((t[2] - t[1]) / 2e-4, -(T - 1) / (2.0 * at(a)[1]), rel_tol=1e-6)


@pytest.mark.parametrize("T, d, q, lr, N", (
    (200, 5, 3, 4, 170), (200, 20, 8, 2, 400), (100, 1, 10, 0.5, 99), (50, 5, 3, 1, 49),
    (30, 2, 1, 1, 40), (400, 10, 5, 3, 200)))
def test_the_plateau_in_closed_form_is_near_the_recursion(T, d, q, lr, N):
    closed = plateau.plateau(T, d, q, lr, math.inf, N)
    assert math.isclose(count_steps(0.5, T, d, q, lr, N), closed, rel_tol=0.025)
    noisy = plateau.plateau(T, d, q, lr, T * lr / 2, N)         # noise is in the way of W, not of V
    assert math.isclose(noisy - closed, plateau.flow_steps(0.5, T, d, q, lr, N), rel_tol=1e-9)


@pytest.mark.parametrize("n, K, N, settings", (
    (64, 1, 39, {"pe": "onehot"}), (64, 1, 40, {"law": "orthonormal", "d_e": 40}),
    (32, 2, 40, {"law": "orthonormal", "d_e": 40, "draws": 2})))
def test_noise_makes_the_plateau_of_train_py_longer_by_the_derived_factor(n, K, N, settings):
    settings |= common.UNTESTED | {"T": 40, "d": 3, "q": 2, "lr": 1.0, "steps": 600, "batch": n}
    runs = [train.train(**settings, seed=seed) for seed in range(3)]
    delay = plateau.noise_delay(1.0, 40, n, K)
    assert math.isclose(plateau.delays(runs, N).mean(), delay, rel_tol=0.05)


def test_noise_in_the_token_PE_block_is_what_makes_the_plateau_longer_and_acts_through_V():
    runs = [plateau.trained_held(block, batch=32) for block in ("nothing", "token-PE", "V")]
    noisy, quiet, _ = plateau.delays(runs, 100)
    assert 1.7 < noisy < 2.3 and 0.9 < quiet < 1.1              # by the formula 1.78 and 1
    np.testing.assert_allclose(*[run["loss"][:2] for run in runs[:2]])      # W is 0 in these steps
    exact = descend(1.0, 1600, 100, 50, 5, 3, held)[1, -1]
    assert multiples(runs[2])[0] == pytest.approx(exact, rel=0.03)


# lengths.py, data.py

@pytest.mark.parametrize("T, q", [(20, 2), (400, 2), (20, 5), (300, 6)])
def test_scaled_logits_keep_the_attention_of_training(T, q):
    a, s = lengths.scaled(2.5, 20, 2, T, q), 2 * math.exp(2.5) / (2 * math.exp(2.5) + 18)
    assert q * math.exp(a) / (q * math.exp(a) + T - q) == pytest.approx(s)
    c = train.Settings(T=20, d=3, q=2, law="orthonormal", d_e=400)
    run = {"config": c, "W": 2.5 * sts.ground_truth(3, 400)[0]}
    assert lengths.length_factor(run, T, q) == pytest.approx(a / 2.5)


def test_fixed_encodings_learn_from_16_sequences_if_only_the_numbers_of_stochastic_ones_move():
    settings = data.ARMS["data fixed 16"] | dict(steps=2000, evaluations=2000, eval_sequences=2)
    for hold, low, high in (lambda run: None, 0.9, 9), (data.tied, 0, 0.1):
        assert low < end_error(train.train(hold, **settings), 20, 2) < high


# fixed.py

@pytest.mark.parametrize("d_e, q", ((9, 3), (4, 2), (3, 1)))       # 6 trained encodings: S singular
def test_gradient_descent_on_all_weights_is_that_on_C_and_alpha(d_e, q):
    """With Gaussian encodings of any length, and all subsets.  At lr 0.7 rounding errors grow."""
    T, d, lr = 6, 2, 0.2
    E, (X, y) = np.random.default_rng(1).standard_normal((T, d_e)) * 0.7, all_sequences(T, d, q)
    W, V, C, alpha = np.zeros((d + d_e, d + d_e)), np.zeros((d, d + d_e)), np.zeros((T, T)), 0.0
    for _ in range(200):
        L, dW, dV = sts.loss_and_grads(W, V, X, y, E)
        W, V = W - lr * dW, V - lr * dV
        C, alpha = fixed.step(E @ E.T, C, alpha, d, lr, all_subsets(T, q))
    exact = np.pad(E.T @ C @ E, ((d, 0), (d, 0)))
    np.testing.assert_allclose(W, exact, rtol=0, atol=1e-12 * abs(exact).max())
    np.testing.assert_allclose(V, alpha * np.eye(d, d + d_e), rtol=0, atol=1e-12)
    assert L < 0.65 * d / (2 * q)                                   # it has learnt


@pytest.mark.parametrize("T, T_test, q", ((5, 8, 3), (5, 7, 3), (4, 7, 3)))
def test_the_error_of_one_hot_encodings_on_longer_sequences(T, T_test, q):
    """Each subset of a longer sequence counts its k trained positions; and q/k - 1 is the limit."""
    for a, alpha in (0.0, 1.3), (2.0, 0.9), (60.0, 1.0):
        exact = fixed.error(np.eye(T_test), T, a * (np.eye(T) - 1 / T), alpha,
                            all_subsets(T_test, q))
        assert fixed.one_hot_error(a, alpha, T, T_test, q) == pytest.approx(exact)
    errors = [error for _, error in fixed.one_hot_errors(60.0, 1.0, T, T_test, q)]
    limits = [q / k - 1 if k else 1 - q / T_test for k in range(max(0, q - T_test + T), q + 1)]
    np.testing.assert_allclose(errors, limits, atol=1e-12)


def test_a_pace_of_many_is_many_steps_of_alpha_and_one_long_step_of_C():
    rng, T, d, Y = np.random.default_rng(0), 7, 3, all_subsets(7, 2)
    S, C = rng.standard_normal((2, T, T))
    far, alpha_far = fixed.step(S, C, 0.4, d, 0.1, Y, pace=5)
    near, alpha = fixed.step(S, C, 0.4, d, 0.1, Y)
    np.testing.assert_allclose(far - C, 5 * (near - C), rtol=1e-12, atol=1e-15)
    for _ in range(4):
        _, alpha = fixed.step(S, C, alpha, d, 0.1, Y)
    assert math.isclose(alpha, alpha_far, rel_tol=1e-12)
    path = fixed.descend(np.eye(7), 7, d, 2, 0.1, 20, rng, pace=5)
    assert [t for t, _, _ in path] == [5, 10, 15, 20]


@pytest.mark.parametrize("T, q", ((7, 3), (8, 2), (5, 5)))
def test_subsets_are_uniform_and_some_are_disjoint(T, q):
    Y, k = fixed.subsets(np.random.default_rng(0), 30_000, T, q), T // q
    assert (Y.sum(axis=1) == q).all() and 30_000 <= len(Y) < 30_000 + k
    assert Y.reshape(-1, k, T).sum(axis=1).max() == 1
    pairs, all_pairs = Y.T @ Y / len(Y), all_subsets(T, q).T @ all_subsets(T, q)
    np.testing.assert_allclose(pairs, all_pairs / math.comb(T, q),      # five standard errors
                               atol=5 * 0.5 / math.sqrt(30_000 / k))


def test_the_error_is_the_loss_of_the_model_at_other_lengths_and_sizes():
    """A random C; at a shorter length, and at longer ones, where positions are new."""
    rng, T, d, d_e, alpha = np.random.default_rng(0), 5, 2, 4, 1.3
    E, C = rng.standard_normal((7, d_e)), rng.standard_normal((T, T))
    W, V = np.pad(E[:T].T @ C @ E[:T], ((d, 0), (d, 0))), alpha * np.eye(d, d + d_e)
    for T_test, q_test in (4, 2), (5, 1), (6, 3), (7, 2):
        exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E[:T_test]) * 2 * q_test / d
        found = fixed.error(E, T, C, alpha, all_subsets(T_test, q_test))
        assert math.isclose(found, exact, rel_tol=1e-12)


@pytest.mark.parametrize("T, d_e", ((3, 2), (2, 4)))
def test_the_first_step_gives_new_positions_this_share_of_a_logit(T, d_e):
    """From C = 0, for all random signs; and trained ones (T + d_e - 1)/T of stochastic ones."""
    shares, blocks, Y = [], [], all_subsets(T, 1)
    for E in all_encodings("rademacher", T + 1, d_e):
        C, _ = fixed.step(E[:T] @ E[:T].T, np.zeros((T, T)), 1.0, 2, 1.0, Y)
        blocks.append(E[:T].T @ C @ E[:T])
        shares.append((E @ blocks[-1] * E).sum(axis=1))
    *trained, new = np.mean(shares, axis=0)
    share = fixed.new_position_share(T, d_e)
    assert math.isclose(new / np.mean(trained), share, rel_tol=1e-12)
    np.testing.assert_allclose(np.mean(blocks, axis=0), new * np.eye(d_e), atol=1e-12)   # e.e = 1


def test_the_late_block_is_the_least_and_its_multipliers_give_what_other_sizes_keep():
    """C* and N, for q = 3; and D at loss near 0, with the ties of kept_error, is along C*."""
    rng, T, q, Y = np.random.default_rng(0), 7, 3, all_subsets(7, 3)
    E = rng.choice([-1, 1], (T, 30)) / math.sqrt(30)
    S, (C, M) = E @ E.T, fixed.late_block(E @ E.T)
    np.testing.assert_allclose(S @ C @ S, M, atol=1e-12)
    np.testing.assert_allclose(M @ Y[5] - Y[5], (M @ Y[5] - Y[5])[0], atol=1e-12)    # lead 1
    assert fixed.late_norm(S) == pytest.approx(((E.T @ C @ E) ** 2).sum())
    np.testing.assert_allclose(C.sum(axis=0), 0, atol=1e-12)     # least: <C*, 1 v^T> = 0 for all v
    mu, x = fixed.multipliers(S, q), np.ones(T)
    assert mu.min() > 0 and mu.sum() == pytest.approx(fixed.late_norm(S))
    for _ in range(50):
        x = (x.mean() + np.sqrt(x.mean() ** 2 + 4 * T * mu)) / (2 * T)
    a, x = 12.0, x / x.max()
    M = np.diag(a - np.log(x)) + np.log(x)[:, None] / q         # leads a - ln x, equal if selected
    P = fixed.attention(M, Y)
    alpha = (P * Y).sum() / (q * (P * P).sum())
    _, D, _ = fixed.slopes(P, alpha, 1, Y)
    found = np.diag(D) - D.sum(axis=1) / q
    np.testing.assert_allclose(found / found.sum(), mu / mu.sum(), rtol=1e-3)
    kept = fixed.kept_error(S, q, all_subsets(T, 5))
    assert fixed.error(np.eye(T), T, M, alpha, all_subsets(T, 5)) == pytest.approx(kept, rel=1e-3)


def test_a_run_of_train_py_has_the_errors_of_the_recursion():
    """At its own length, at twice the length and at another size; and the new positions' logit."""
    run = train.train(T=12, d=3, q=2, d_e=16, pe="fixed", lr=1.0, steps=600, fresh=True, batch=512,
                      evaluations=1, eval_sequences=8000, T_test=[24], q_test=[4])
    rng, c, E = np.random.default_rng(0), run["config"], run["E"]
    *_, (t, C, alpha) = fixed.descend(E, c.T, c.d, c.q, c.lr, c.steps, rng)
    exact = [fixed.error(E, c.T, C, alpha, fixed.subsets(rng, 8000, *test))
             for test in run["tests"].tolist()]
    np.testing.assert_allclose(run["error"][-1], exact, rtol=0.1)
    assert t == c.steps and exact[0] < 0.5
    ratio = fixed.new_over_trained(E, 12, E[:12].T @ C @ E[:12])
    assert fixed.new_over_trained(E, 12, run["W"][3:, 3:]) == pytest.approx(ratio, rel=0.05)


# coverage.py

@pytest.mark.parametrize("update", (train.gradient_descent, train.adam))
def test_only_the_span_of_the_encodings_of_training_is_seen(update):
    """By gradient descent, though W's token-PE block and V_e move, too; Adam leaves the span."""
    rng, run = np.random.default_rng(0), {"W": np.zeros((7, 7)), "V": np.zeros((2, 7)), "t": 0}
    span, (X, y) = rng.standard_normal((3, 5)), sts.sample_sts(rng, 4, 6, 2, 2)
    for t in range(30):
        E = rng.standard_normal((6, 3)) @ span
        _, dW, dV = sts.loss_and_grads(run["W"], run["V"], X, y, E)
        update(run, {"W": dW, "V": dV}, 0.1)
        run["t"] = t + 1
    E, (X, y) = rng.standard_normal((8, 5)), sts.sample_sts(rng, 9, 8, 2, 2)
    f, of_span = (sts.output(run["W"], run["V"], X, y, E @ Q)
                  for Q in (np.eye(5), np.linalg.pinv(span) @ span))
    assert np.allclose(f, of_span, rtol=0, atol=1e-13) == (update is train.gradient_descent)
    assert min(abs(block).max() for block in (f, run["W"][:2, 2:], run["V"][:, 2:])) > 0.01


@pytest.mark.parametrize("E, J", (
    (np.eye(5)[list(itertools.permutations(range(5), 3))], np.eye(5) - 1 / 5),      # 3 of 5 a step
    (np.eye(3)[list(itertools.permutations(range(3)))], np.eye(3) - 1 / 3),         # shuffled
    (np.eye(6).reshape(2, 3, 6), np.kron(np.eye(2), np.eye(3) - 1 / 3)),            # two sets
    (all_encodings("orthonormal", 3, 3) @ np.eye(3, 5), np.diag([1, 1, 1, 0, 0]))))     # in a span
def test_other_ways_to_draw_encodings_are_two_numbers(E, J):
    follow(descend(3.0, 22, J.trace(), 3, 2, 2), E, 2, 2, 3.0, inside=False, J=J)


def test_old_vectors_of_all_directions_serve_longer_sequences_and_new_ones_of_half_do_not():
    *_, half, hundred, _ = coverage.draws(rng := np.random.default_rng(0), T=20).values()
    for draw, low, high in (half, 0.5, 0.7), (hundred, 0, 0.15):
        own, longer = coverage.errors(rng, draw, steps=1000, T=20)
        assert own < 0.1 and low < longer < high


def test_sines_are_unit_vectors_that_show_all_directions_equally():
    E = coverage.sines(np.random.default_rng(0), 50, 22)
    np.testing.assert_allclose((E * E).sum(axis=1), 1)
    np.testing.assert_allclose(E.T @ E, 50 / 22 * np.eye(22), atol=1e-12)


# converge.py, FIXED.md and its proofs

def ties(T, q):
    """Lambda, as a matrix on entries of X: selected logits minus their mean, in every subset."""
    return np.array([np.outer(np.eye(T)[j] - y / q, y).ravel()
                     for y in all_subsets(T, q) for j in np.flatnonzero(y)])


def tied(m, b, q):
    """The M of Lemma T, with ties and leads m."""
    return np.diag(m) - m[:, None] / q + b


def near_orthonormal(rng, T, spread):
    E = np.eye(T) + spread * rng.standard_normal((T, T))
    return E @ E.T


@pytest.mark.parametrize("T, q", ((3, 2), (6, 2), (4, 3), (6, 3), (7, 5), (7, 6), (8, 4)))
def test_ties_leave_2_T_numbers_and_a_least_singular_value(T, q):
    """Lemma T, (i) for q >= 3: the kernel is M's form; and (ii)."""
    squares = np.linalg.eigvalsh(ties(T, q).T @ ties(T, q))
    zero = squares < 1e-9 * squares[-1]
    assert zero.sum() == (2 * T if q > 2 else T * (T + 1) // 2)
    least = (T - 1) * math.comb(T - 4, q - 3) / q if q > 2 else 1.0
    assert squares[~zero][0] == pytest.approx(least) and least >= 1
    if q > 2:
        rng, Y = np.random.default_rng(0), all_subsets(T, q)
        X = tied(m := rng.standard_normal(T), rng.standard_normal(T), q)
        assert abs(ties(T, q) @ X.ravel()).max() < 1e-12
        lead = (Y * (Y @ X.T)).sum(axis=1)[:, None] / q - Y @ X.T
        np.testing.assert_allclose(lead[Y == 0], np.broadcast_to(m, Y.shape)[Y == 0], atol=1e-12)


def test_the_least_norm_is_that_of_a_block_and_needs_the_multipliers():
    """m . Phi m is the least over b; N^ is the least over m >= 1, and N if no multiplier is < 0."""
    rng, T, q, equal = np.random.default_rng(0), 5, 3, []
    for spread in (0.1, 0.2, 0.3) * 2 + (0.8,) * 20:
        S = near_orthonormal(rng, T, spread)
        G, F = np.linalg.inv(S), np.eye(T) - 1 / q
        mu, N, Y = fixed.multipliers(S, q), late_norm(S), all_subsets(T, q)
        Phi = (G - np.outer(G.sum(axis=0), G.sum(axis=0)) / G.sum()) * (F @ G @ F)
        np.testing.assert_allclose(Phi.sum(axis=1), mu, atol=1e-9 * abs(mu).max())
        assert mu.sum() == pytest.approx(N)
        root = np.linalg.cholesky(G)                                    # |X|_S = |root^T X root|
        m = 1 + rng.exponential(1, T)
        units = np.array([(root.T @ tied(np.zeros(T), b, q) @ root).ravel() for b in np.eye(T)])
        own = (root.T @ tied(m, np.zeros(T), q) @ root).ravel()
        b = np.linalg.lstsq(units.T, -own, rcond=None)[0]
        assert m @ Phi @ m == pytest.approx(((own + b @ units) ** 2).sum())
        for k in list(range(T)) * 3000:
            m[k] = max(1.0, m[k] - Phi[k] @ m / Phi[k, k])
        bad, least = converge.margin(Y / q, 1.0, S, Y)
        assert len(bad) == 0 and least == pytest.approx(m @ Phi @ m, rel=1e-6)
        equal.append((mu.min() >= 0, math.isclose(least, N, rel_tol=1e-6)))
    assert all(a == b for a, b in equal) and {a for a, _ in equal} == {True, False}


def test_the_curvature_is_the_change_of_the_slopes():
    rng, T, d, Y = np.random.default_rng(0), 4, 3.0, all_subsets(4, 2)

    def slope(x):
        _, dM, dalpha = fixed.slopes(attention(x[:-1].reshape(T, T), Y), x[-1], d, Y)
        return np.append(dM, dalpha)
    x = np.append(rng.standard_normal(T * T), 0.7)
    H = np.array([slope(x + e) - slope(x - e) for e in 1e-5 * np.eye(len(x))]) / 2e-5
    exact = curvature(attention(x[:-1].reshape(T, T), Y), x[-1], d, Y)
    np.testing.assert_allclose(exact, H, atol=1e-9)


def test_the_flow_is_that_of_small_steps():
    """At three times, to a few parts in ten thousand; q = 2."""
    T, q, d, lr, S = 4, 2, 3.0, 0.002, near_orthonormal(np.random.default_rng(0), 4, 0.3)
    for end in 1, 4, 20:
        *_, (t, M, alpha, L) = flow(S, d, q, end)
        *_, (_, C, beta) = fixed.descend(np.linalg.cholesky(S), T, d, q, lr, round(end / lr))
        assert t == end
        np.testing.assert_allclose(M, S @ C @ S, atol=0.003 * abs(M).max())
        assert alpha == pytest.approx(beta, rel=0.003)
        exact = fixed.slopes(attention(M, all_subsets(T, q)), alpha, d, all_subsets(T, q))[0]
        assert exact == pytest.approx(L) and L < d / (2 * q)
    assert L < 0.2 * d / (2 * q)


@pytest.mark.parametrize("E, q, ratio", (
    (np.random.default_rng(16).standard_normal((5, 5)), 3, 0.464),
    (np.linalg.cholesky(1.5 * np.eye(5) + 2), 2, None), (np.diag([1, 1.1, 1.2, 1.3]), 1, None)))
def test_t_L_tends_to_a_quarter_of_the_least_norm(E, q, ratio):
    """From zero; the least norm is N itself in the last two cases, near x I + z 1 1^T."""
    S, N, Y = E @ E.T, late_norm(E @ E.T), all_subsets(len(E), q)
    least = converge.margin(Y / q, 1.0, S, Y)[1]
    assert least / N == pytest.approx(ratio or 1, abs=0.001)
    *_, (t, M, alpha, L) = flow(S, 5, q, 1e6 * N, tolerance=1e-3)
    assert 4 * t * L == pytest.approx(least, rel=0.005) and alpha == pytest.approx(1, abs=0.001)


def test_at_rank_T_minus_1_the_normal_vector_decides():
    """Where it allows it, the proof's M is of the form E B E^T, and 40 M has no error."""
    rng, T, q, answers, Y = np.random.default_rng(0), 6, 3, [], all_subsets(6, 3)
    for _ in range(40):
        nu = rng.uniform(-0.2, 1, T) * rng.choice([-1, 1])
        E = np.linalg.svd(nu[None])[2][1:].T @ rng.standard_normal((T - 1, T - 1))
        up = nu * np.sign(nu.sum())
        m = 1 / (up.sum() / q - up)
        X, inverse = tied(m, (m @ up / q - m * up) / up.sum(), q), np.linalg.pinv(E)
        np.testing.assert_allclose(E @ inverse @ X @ inverse.T @ E.T, X, atol=1e-8 * abs(X).max())
        answers.append(converge.can_vanish(E, q))
        assert (m.min() > 0) == answers[-1]
        if answers[-1]:
            assert abs(attention(X * 40 / m.min(), Y) - Y / q).max() < 1e-6
    assert set(answers) == {True, False}


def test_rank_T_can_vanish_and_lower_ranks_keep_an_error():
    """0.10717, 0.20183 and 0.4 are the least known, over all M of such a rank."""
    rng, T, q = np.random.default_rng(0), 6, 3
    assert converge.can_vanish(rng.standard_normal((T, T)), q)
    assert not converge.can_vanish(np.eye(T)[:, 1:], q)                 # one encoding is 0
    assert converge.can_vanish(centred := np.eye(T) - 1 / T, q)         # nu = 1
    assert not converge.can_vanish(centred @ rng.standard_normal((T, T - 2)), q)
    assert converge.flow_end(centred, 5, q, 1e5)[0] < 1e-4
    for r, least in (T - 2, 0.10717), (T - 3, 0.20183), (1, 0.39999):
        assert converge.flow_end(rng.standard_normal((T, r)), 5, q, 1e5)[0] > least


@pytest.mark.parametrize("k, wrong, error, alpha, P, margin", (
    (0, 1, 1 / 4, 3 / 4, (1, 0, 0), 3),
    (1, 1, 11 / 102, 16 / 17, (0, 5 / 32, 11 / 16, 5 / 32), 28 / 15),
    (2, 0, 5 / 9, 2 / 3, (0, 1, 0), 1.90099),
    (3, 2, 1 / 11, 10 / 11, (1, 0, 0, 0, 0), 7 / 3),
    (4, 2, 0.08726, 0.95517, (0.4642, 0.4507, 0.0284, 0.0284, 0, 0.0284), 1.85652),
    (5, 1, 13 / 45, 8 / 9, (0, 0, 1 / 2, 1 / 2, 0), 2.08160)))
def test_where_the_examples_stick_though_their_loss_could_vanish(k, wrong, error, alpha, P, margin):
    """Attention on the worst subset.  In Example 12 residuals are not equal."""
    (E, q), T = STUCK[k], len(STUCK[k][0])
    S, Y = E @ E.T, all_subsets(T, q)
    assert fixed.error(E, T, 40 * late_block(S)[0], 1.0, Y) < 1e-20
    *_, (_, M, found, L) = flow(S, 5, q, 1e8, 0.003)
    assert L * 2 * q / 5 == pytest.approx(error, abs=1e-5) and abs(found - alpha) < 1e-4
    np.testing.assert_allclose(attention(M, Y)[wrong], P, atol=1e-3)
    assert converge.end_margin(E, q, attention(M, Y), found) == pytest.approx(margin, rel=1e-5)


def test_half_of_the_examples_stick_even_if_they_are_short():
    """Short encodings train as at a small d: alpha is then at its best for M at any time."""
    for d, stick in (5e3, {0, 1, 2, 3, 4, 5}), (5e-4, {1, 4, 5}), (5e-8, {1, 4, 5}):
        assert stick == {k for k, (E, q) in enumerate(STUCK)
                         if converge.flow_end(E, d, q, 1e7 / d)[0] > 0.08}


def test_flows_leave_an_end_with_bad_leads_on_both_sides_of_1():
    """That of Example 8, with another third encoding; starts are near it."""
    rng, S, Y = np.random.default_rng(0), STUCK[0][0] @ STUCK[0][0].T, all_subsets(3, 2)
    E = np.array([*STUCK[0][0][:2], (1, 1, 1)])
    bad, _ = converge.margin(np.array([[1, 1, 0], [2, 0, 0], [0, 1, 1]]) / 2, 0.75, E @ E.T, Y)
    assert bad == pytest.approx([7 / 9, 14 / 9])
    for end in 10, 10, 20, 20, 30, 30:
        *_, (_, M, alpha, _) = flow(S, 5, 2, end)
        start = M + rng.normal(0, 1, (3, 3)), alpha
        assert attention(start[0], Y)[1, 0] > 0.99
        assert converge.flow_end(E, 5, 2, 1e12, start)[0] < 0.23


def test_what_sticks_is_at_a_margin_above_1_and_the_rest_is_counted_apart(capsys, monkeypatch):
    """57 of 400 take a minute.  A flow that still falls is slow, not stuck."""
    converge.count_stuck("Gaussian", 4)
    for before, margin in (0.11, 2), (0.1, math.nan), (0.1, 1), (0.1, 2):
        monkeypatch.setattr(converge, "flow_end", lambda *flow: (0.1, before, None, None))
        monkeypatch.setattr(converge, "end_margin", lambda *end: margin)
        converge.count_stuck("random signs", 1)
    counts = re.findall(r"(\d) of . stick .(\d) unclear", capsys.readouterr().out)
    assert counts == [("2", "0"), ("0", "0"), ("0", "1"), ("0", "1"), ("1", "0")]


def test_the_margin_of_two_positions_is_a_ratio_and_size_does_not_change_it():
    for E in np.random.default_rng(0).standard_normal((20, 2, 2)):
        S, K = E @ E.T, np.array([[1.0, 0], [1, 0]])
        for size in 1, 3:
            assert converge.end_margin(size * E, 1, K, 0.5) == pytest.approx(S[0, 1] / S[0, 0])


def test_only_a_minimum_has_a_margin():
    """At q = 1.  A plateau is stationary, too: attention is nowhere on y, and alpha = 0."""
    P = np.array([[0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]])                 # here alpha = 0.8 is best
    assert converge.end_margin(np.eye(3), 1, P, 0.8) == pytest.approx(0)
    assert math.isnan(converge.end_margin(np.eye(3), 1, P, 0.9))
    P = (1 - np.eye(3)) / 2
    assert not np.any(np.append(*fixed.slopes(P, 0.0, 1, np.eye(3))[1:]))
    assert math.isnan(converge.end_margin(np.eye(3), 1, P, 0.0))


@pytest.mark.parametrize("k, error", ((0, 1 / 4), (2, 5 / 9)))
def test_at_an_end_t_Delta_tends_to_the_squared_norm(k, error):
    """Theorem 7.1, Delta being L minus its limit; from zero, in Examples 8 and 10."""
    (E, q), Y = STUCK[k], all_subsets(3, STUCK[k][1])
    *_, (t, M, alpha, L) = flow(E @ E.T, 5, q, 1e6, 0.003)
    P = attention(M, Y).round(3)
    least = converge.margin(P, alpha, E @ E.T, Y)[1]
    assert t * (L - error * 5 / (2 * q)) == pytest.approx(least, rel=0.005)


@pytest.mark.parametrize("theta", (12, 20))
def test_an_end_attracts_where_its_margin_is_above_1(theta):
    """Theorem 7: from M = theta X, at encodings whose margin is 1.5 or 0.6, and a little beside."""
    rng, K = np.random.default_rng(0), np.array([[1.0, 0], [1, 0]])
    for S_01 in 1.5, 0.6:
        S = np.array([[1.0, S_01], [S_01, 4]])
        X = np.outer(S @ (1, -1), S[0]) / (S[0, 0] - 2 * S_01 + 4)
        bad, _ = converge.margin(K, 0.5, S, np.eye(2))
        assert bad == pytest.approx((X[0] - X[1])[1])
        start = theta * X + rng.normal(0, 0.01, (2, 2)), 0.51
        E = np.linalg.cholesky(S)
        error = converge.flow_end(E, 5, 1, math.exp(2 * theta), start)[0]
        assert abs(error - 0.75) < 1e-3 if S_01 > 1 else error < 0.03


def test_orthogonal_encodings_end_right_from_every_start():
    """Theorem 14.1; q = 1, T = 3.  If only e_0 is orthogonal, only {0} has to end right."""
    rng = np.random.default_rng(0)
    for full in (True, False) * 8:
        E = rng.standard_normal((3, 3))
        E = np.diag([1, 0.5, 0.8]) if full else E * [[0], [1], [1]] @ np.diag([0, 1, 1]) + 0
        E[0, 0] = 0.7
        start = 3 * rng.standard_normal((3, 3)), rng.uniform(-0.5, 1.5)
        error, _, P, _ = converge.flow_end(E, 5, 1, 1e12, start)
        assert P[0, 0] > 0.8 and (error < 0.03 or not full)


def test_size_and_dimension_matter_only_together():
    """The flow of c E and d at time t is that of E at c^4 t, and of c^4 d where alpha is slower."""
    E, q, c = np.random.default_rng(0).standard_normal((3, 3)), 2, 1.5
    *_, (_, M, alpha, L) = flow(c * c * E @ E.T, 2.0, q, 10.0)
    *_, (_, other, beta, other_L) = flow(E @ E.T, 2 * c ** 4, q, 10.0)
    np.testing.assert_allclose(M, other, rtol=0.01)
    assert alpha == pytest.approx(beta, rel=0.01) and L * c ** 4 == pytest.approx(other_L, rel=0.01)


@pytest.mark.parametrize("T, q, least", ((2, 1, 3 / 4), (3, 1, 7 / 15), (3, 2, 2 / 9), (4, 3, 0)))
def test_from_bad_starts_the_flow_ends_on_the_list(T, q, least):
    """Theorem 6, with its threshold; some ends are 0, and for q = T - 1 some are not."""
    rng, listed, found = np.random.default_rng(0), np.array(converge.ends(T, q)), []
    assert listed[0] == 0 and listed[1] >= 1 / (q * T) and listed[-1] < 1
    assert not least or listed[1] == pytest.approx(least)
    for _ in range(12):
        E, start = rng.standard_normal((T, T)), 6 * rng.standard_normal((T, T))
        error = converge.flow_end(E, 5, q, 1e9, (start, rng.uniform(-0.5, 1.5)))[0]
        found.append(listed[abs(listed - error).argmin()])
        assert abs(error - found[-1]) < (1e-4 if found[-1] else 1 / (2 * q * T))
    assert 0 in found and (max(found) > 0 or q < T - 1)


# width.py, readings.py

@pytest.mark.parametrize("K", (1, 4))
def test_the_error_for_random_signs_is_that_of_the_model(K):
    """At 3 W*, 1.4 V*, with other encodings for each batch of 8 sequences; 5 standard errors."""
    rng, T, d, q, d_e = np.random.default_rng(0), 12, 2, 3, 20
    W, V = sts.ground_truth(d, d_e)
    losses = []
    for _ in range(300):
        X, y = sts.sample_sts(rng, 8, T, d, q)
        E = sts.positional_encoding("rademacher", T, d_e, rng, K)
        losses.append(sts.loss(3 * W, 1.4 * V, X, y, E) * 2 * q / d)
    error = width.signs_error(3, 1.4, width.random_scores(rng, T, d_e, q, 20_000), q, K)
    assert abs(np.mean(losses) - error) < 5 * np.std(losses) / math.sqrt(300)


@pytest.mark.parametrize("K", (1, math.inf))
def test_descent_with_random_signs_is_two_numbers(K):
    """With the scores of all encodings; K = inf is the expectation inside the loss."""
    T, d_e, d, q, lr = 3, 2, 2, 2, 3.0
    E = all_encodings("rademacher", T, d_e)
    scores = (E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0]

    def slopes(a, alpha, T, d, q):
        L, da, dalpha = (d / (2 * q) * width.signs_error(*point, scores, q, K) for point in (
            (a, alpha), (a + 1e-30j, alpha), (a, alpha + 1e-30j)))
        return L, da.imag / 1e-30, dalpha.imag / 1e-30

    path = descend(lr, 15, d_e, T, d, q, slopes)
    follow(path, E, d, q, lr, inside=K > 1)


@pytest.mark.parametrize("q, K, equal", ((3, 1, 0), (3, 4, 0), (3, 16, 0), (2, 1, 0), (3, 1, 1)))
def test_the_best_weights_have_the_least_error_which_is_a_floor_if_logits_are_unequal(q, K, equal):
    scores = width.random_scores(np.random.default_rng(0), 20, 80, q, 100, equal)
    a, alpha = width.best_weights(scores, q, K)
    least = width.signs_error(a, alpha, scores, q, K)
    for other in itertools.product(np.geomspace(0.5, 60, 40), np.geomspace(0.5, 10, 12)):
        assert width.signs_error(*other, scores, q, K) > 0.99 * least
    assert least < 1e-4 if q == 2 or equal else least > 0.002


@pytest.mark.parametrize("T, q, K", ((20, 3, 16), (100, 3, 1)))
def test_the_needed_width_is_where_the_error_crosses(T, q, K):
    """On either side of it, with (a, alpha) from other draws than the error."""
    rng = np.random.default_rng(0)
    value = width.needed_width(T, q, 0.1, K, rng)
    for d_e, sign in (math.floor(0.88 * value), 1), (math.ceil(1.12 * value), -1):
        weights = width.best_weights(width.random_scores(rng, T, d_e, q), q, 1)
        error = width.signs_error(*weights, width.random_scores(rng, T, d_e, q), q, K)
        assert sign * (error - 0.1) > 0 and abs(error - 0.1) < 0.06


@pytest.mark.parametrize("K", (1, 3))
def test_stochastic_runs_of_train_py_have_the_numbers_and_errors_of_readings_py(K):
    """a, alpha, and the errors at twice the length with one draw in a test and with 16."""
    T, d, q, d_e, rng = 10, 3, 3, 24, np.random.default_rng(0)
    run = train.train(T=T, d=d, q=q, d_e=d_e, lr=1.0, steps=1200, draws=K, batch=512, fresh=True,
                      evaluations=1, T_test=[20], q_test=[5])
    scores = width.random_scores(rng, T, d_e, q, 300)
    path = np.transpose(list(readings.stochastic(scores, d, q, d_e, 1.0, 1200, K)))
    t, a, alpha = path[:, -1]
    assert t == 1200 and a > 1 and np.diff(path[1]).max() < 0.0201
    np.testing.assert_allclose(multiples(run), (a, alpha), rtol=0.06)
    for length, size in run["tests"].tolist():
        scores = width.random_scores(rng, length, d_e, size, 3000)
        for draws in 1, 16:
            exact = width.signs_error(a, alpha, scores, size, draws)
            assert end_error(run, length, size, draws) == pytest.approx(exact, rel=0.15)


# claims.py, common.py

@pytest.mark.parametrize("factor", (1.0, 0.6))
def test_the_factor_of_the_second_half_is_that_of_the_curve(factor):
    """Whatever happens in the first half."""
    t = np.arange(41) * 100
    curves = np.array([[0.01], [0.5]])[..., None] * factor ** (t / 2000 - 2)
    curves[..., :20] = 7
    assert claims.second_half(curves, t) == pytest.approx(np.full((2, 1), factor))


def test_block_measures_the_block_where_the_ground_truth_is_the_identity():
    u, v = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 7, 1, 8, 2])         # d = 2, d_e = 3
    run = {"config": train.Settings(d=2, d_e=3), "W": np.outer(u, v), "V": np.outer(u[:2], v)}
    assert claims.block(run, "W") == pytest.approx((50 * 69 / (55 * 122),
                                                    np.sqrt(55 * 122 - 50 * 69)))
    assert claims.block(run, "V") == pytest.approx((53 / 122, np.sqrt(5 * 122 - 5 * 53)))


def test_training_ends_at_the_floors():
    """On longer sequences and other sizes, too; with one draw in a step floors are others."""
    tests, settings = [(12, 3), (24, 3), (12, 2), (12, 5)], {"T": 12, "d": 3, "d_e": 24}
    run = train.train(**settings, draws=4, lr=2.0, fresh=True, steps=1500, evaluations=1,
                      eval_sequences=2, T_test=[], q_test=[])
    errors = [end_error(run, *test) for test in tests]
    assert errors == pytest.approx(width.floors(run["config"], tests, 2000), rel=0.17)
    one = width.floors(train.Settings(**settings), tests, 2000)
    assert one != pytest.approx(errors, rel=0.17)


@pytest.mark.parametrize("settings", [{"d_e": 60}, {"d_e": 60, "pe": "fixed"}, {"model": "fcn"}],
                         ids=str)
def test_the_end_error_is_the_error_on_new_sequences(settings):
    """At its own task it is that of many sequences, within five standard errors and 10 %."""
    run = train.train(T=8, d=2, q=2, steps=200, fresh=True, evaluations=1,
                      eval_sequences=20_000, T_test=[], q_test=[], **settings)
    exact, error = run["error"][-1, 0], run["se"][-1, 0]
    assert abs(end_error(run, 8, 2) - exact) < 5 * error * np.sqrt(20_000 / 2048) + 0.1 * exact


# live.py, explore.py

def test_the_program_of_the_lecture_is_that_of_the_first_page():
    """The task, encodings, forward and backward, letter for letter."""
    folder = Path(__file__).parent
    page, program = [path.read_text("utf-8")
                     for path in (folder.parent / "README.md", folder / "live.py")]
    same = page[page.index("def sequences(n, T)"):page.index("for pe in")].strip()
    assert same in program and same.count("def ") == 4


def test_sliders_draw_what_the_recursion_says():
    window = explore.figure()
    (T, times, q, d_e, lr, t), boxes, curves, line, bars, border = window.parts
    assert times.val == 1 and not border.get_visible()      # the board's case comes first
    for slider, value in (T, 20), (q, 2), (d_e, 200), (times, 1.8), (lr, 1.5), (t, 1500):
        slider.set_val(value)
    boxes.set_active(0)                                     # scaled logits
    L, a, alpha = descend(1.5, explore.STEPS, 200, 20, explore.D, 2)
    a = lengths.scaled(a, 20, 2, 36, 2)
    for curve, loss in zip(curves, (L, lengths.stochastic_loss(a, alpha, 36, explore.D, 2))):
        np.testing.assert_allclose(curve.get_ydata(), loss * 2 * 2 / explore.D)
    assert line.get_xdata()[0] == count_steps(0.5, 20, explore.D, 2, 1.5, 200)
    share = 2 / (2 + 34 * math.exp(-a[1500]))
    assert bars[1].get_data().values.sum() == pytest.approx(2 * share)
    boxes.set_active(0)
    boxes.set_active(1)                                     # fixed
    _, a, alpha = descend(1.5, explore.STEPS, 19, 20, explore.D, 2)
    np.testing.assert_allclose(curves[1].get_ydata(), fixed.one_hot_error(a, alpha, 20, 36, 2))
    assert border.get_visible() and border.get_xdata()[0] == 20 / 36
    heights, ends = bars[1].get_data().values.max(), window.axes[1].get_ylim()
    t.set_val(100)                                          # bars move, their axis does not
    assert bars[1].get_data().values.max() < 0.5 * heights and window.axes[1].get_ylim() == ends
    plots.plt.close(window)
