"""Tests of beyond/ and beyond/teach/:  python -m pytest beyond/test_beyond.py

Each test states a fact.  What is derived is compared with sts.py, exactly where expectations can be
written out, or with short runs of train.py.  Statistical tests have a fixed seed.
"""

import common       # first: it finds plots.py, and gives NumPy one thread

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import claims
import coverage
import data
import fixed
import lengths
import plateau
import plots
import readings
import sts
import train
import width
from common import end_error, multiples
from fixed import all_subsets
from teach import explore
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
    runs = [plateau.trained(change) for change in ("as it is", "X and -X", "V at V*")]
    noisy, quiet, _ = plateau.delays(runs, 100)
    assert abs(runs[1]["W"][:5, 5:]).max() < 1e-6 < 0.01 < abs(runs[0]["W"][:5, 5:]).max()
    assert 1.3 < noisy < 1.6 and 0.9 < quiet < 1.1              # by the formula 1.39 and 1
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
    np.testing.assert_allclose(C.sum(axis=0), 0, atol=1e-12)     # least: <C*, 1 v^T> = 0 for all v
    mu, x = fixed.multipliers(S, q), np.ones(T)
    assert mu.min() > 0 and mu.sum() == pytest.approx(((E.T @ C @ E) ** 2).sum())
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
    run = train.train(T=12, d=3, q=2, law="rademacher", d_e=16, pe="fixed", lr=1.0, steps=600,
                      fresh=True, batch=512, evaluations=1, eval_sequences=8000, T_test=[24],
                      q_test=[4])
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
    (np.eye(6).reshape(2, 3, 6), np.kron(np.eye(2), np.eye(3) - 1 / 3)),            # two sets;
    # the same, with new signs
    (np.reshape([np.eye(6).reshape(2, 3, 6) * np.reshape(signs, (3, 1))
                 for signs in itertools.product((-1, 1), repeat=3)], (16, 3, 6)), np.eye(6)),
    (all_encodings("orthonormal", 3, 3) @ np.eye(3, 5), np.diag([1, 1, 1, 0, 0]))))     # in a span
def test_other_ways_to_draw_encodings_are_two_numbers(E, J):
    follow(descend(3.0, 22, J.trace(), 3, 2, 2), E, 2, 2, 3.0, inside=False, J=J)


def test_old_vectors_of_all_directions_serve_longer_sequences_and_new_ones_of_half_do_not():
    for name, low, high in (("new vectors in half of the dimensions", 45, 60),
                            ("100 fixed vectors, 50 a step", 0, 12)):
        own, longer = coverage.errors(np.random.default_rng(0), coverage.WAYS[name][1])[:, 0]
        assert own < 5 and low < longer < high


def block(E, q, steps=60, pace=1):
    """W's block on the encodings E after training on all subsets."""
    *_, (_, C, _) = fixed.descend(E, len(E), 3, q, 2.0, steps, pace=pace)
    return E.T @ C @ E


@pytest.mark.parametrize("T, d_e, q", ((8, 4, 1), (8, 3, 2), (8, 5, 2), (8, 7, 3), (16, 9, 3)))
def test_hadamard_columns_keep_the_block_diagonal_and_random_signs_do_not(T, d_e, q):
    """Theorem 9, 1 and 2: one logit for all sign vectors; for q <= 2 none is above the selected."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        E, signs = coverage.hadamard(rng, T, d_e), sts.rademacher(rng, 200, d_e)
        B = block(E, q)
        np.testing.assert_allclose((signs @ B * signs).sum(axis=1), B.trace() / d_e, rtol=1e-12)
        np.testing.assert_allclose(B, np.diag(np.diag(B)), atol=1e-13 * B.max())
        assert np.diag(B).min() > 0.01
        if q <= 2:
            A = signs @ B @ (signs[:50] + (q - 1) * signs[50:100]).T
            own = A[range(50), range(50)]
            assert (A < own + 1e-12).all()
            np.testing.assert_allclose(A[range(50 * (q - 1), 50 * q), range(50)], own, atol=1e-12)
        B = block(sts.rademacher(rng, T, d_e), q)
        assert np.linalg.norm(B - np.diag(np.diag(B))) > 0.01 * np.linalg.norm(B)


def test_plus_and_minus_an_orthonormal_basis_move_one_multiple_of_the_identity():
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    for q in 1, 2, 3:
        B = block(np.concatenate([turn, -turn]), q)
        np.testing.assert_allclose(B, B[0, 0] * np.eye(4), atol=1e-13 * B[0, 0])


@pytest.mark.parametrize("T, q, steps", ((8, 1, 4000), (8, 2, 4000), (16, 2, 60), (16, 3, 60)))
def test_columns_outside_a_subspace_move_one_multiple_of_the_identity(T, q, steps):
    """The corollary of Theorem 9: these T/4 tetrahedra; for q <= 2 the multiple goes on growing."""
    H = np.ones((1, 1))
    for _ in range(T.bit_length() - 1):
        H = np.block([[H, H], [H, -H]])
    E = H[:, T // 4:] / (3 * T / 4) ** 0.5
    S = np.where(E @ E.T > 0.9, 1, np.where(E @ E.T < -0.3, -1 / 3, 0))
    np.testing.assert_allclose(E @ E.T, S, atol=1e-12)
    assert ((S < 0).sum(axis=1) == 3).all()                         # the others of a tetrahedron
    B = block(E, q, steps)
    np.testing.assert_allclose(B, B[0, 0] * np.eye(len(B)), atol=1e-10 * B[0, 0])
    assert steps < 100 or B[0, 0] > 1.1 * block(E, q, steps // 4)[0, 0] > 3


def test_entries_of_the_block_need_not_all_grow_for_ever():
    """Columns c_0, c_k, c_0 + c_k (k = 1, 2, 3): rows that differ in c_0 have long leads anyway."""
    bits = 1 - 2 * (np.arange(16)[:, None] >> np.arange(4) & 1)
    E = np.c_[bits, bits[:, :1] * bits[:, 1:]] / 7 ** 0.5
    early, late = (np.diag(block(E, 1, steps, pace=8)) for steps in (4000, 32_000))
    assert late[0] < 1.01 * early[0] and (late[1:] > 1.2 * early[1:]).all()


def test_alike_gives_a_centred_tight_frame_of_unit_vectors():
    for T, d_e in (64, 48), (20, 18):
        E = coverage.alike(sts.rademacher(np.random.default_rng(0), T, d_e))
        np.testing.assert_allclose((E * E).sum(axis=1), 1)
        np.testing.assert_allclose(E.T @ E, T / d_e * np.eye(d_e), atol=1e-6)
        np.testing.assert_allclose(E.sum(axis=0), 0, atol=1e-6)


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
    run = train.train(T=T, d=d, q=q, law="rademacher", d_e=d_e, lr=1.0, steps=1200, draws=K,
                      batch=512, fresh=True, evaluations=1, T_test=[20], q_test=[5])
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
    tests = [(12, 3), (24, 3), (12, 2), (12, 5)]
    settings = {"T": 12, "d": 3, "law": "rademacher", "d_e": 24, "eval_draws": 16}
    run = train.train(**settings, draws=4, lr=2.0, fresh=True, batch=256, steps=1500,
                      evaluations=1, eval_sequences=2, T_test=[], q_test=[])
    errors = [end_error(run, *test) for test in tests]
    assert errors == pytest.approx(width.floors(run["config"], tests, 2000), rel=0.17)
    one = width.floors(train.Settings(**settings), tests, 2000)
    assert one != pytest.approx(errors, rel=0.17)


@pytest.mark.parametrize("settings", [
    {"d_e": 60, "eval_draws": 16}, {"d_e": 60, "pe": "fixed"}, {"model": "fcn"}], ids=str)
def test_the_end_error_is_the_error_on_new_sequences(settings):
    """At its own task it is that of many sequences, within five standard errors and 10 %."""
    run = train.train(T=8, d=2, q=2, steps=200, fresh=True, batch=256, evaluations=1,
                      eval_sequences=20_000, T_test=[], q_test=[], **settings)
    exact, error = run["error"][-1, 0], run["se"][-1, 0]
    assert abs(end_error(run, 8, 2) - exact) < 5 * error * np.sqrt(20_000 / 2048) + 0.1 * exact


# live.py, explore.py

def test_the_program_of_the_lecture_is_that_of_the_first_page():
    """The task, encodings, forward and backward, letter for letter."""
    folder = Path(__file__).parents[1]
    page, program = [path.read_text("utf-8")
                     for path in (folder / "README.md", folder / "beyond" / "teach" / "live.py")]
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
