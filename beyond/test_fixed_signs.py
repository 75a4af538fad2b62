"""Tests of fixed_signs.py:  python -m pytest beyond/test_fixed_signs.py"""

import itertools
import math

import numpy as np
import pytest

import fixed_signs
from fixed_signs import exact_block, new_position_share
from test_two_numbers import all_encodings, all_sequences, run_alone

import sts
import train


def random_signs(T, d_e):
    return sts.positional_encoding("rademacher", T, d_e, np.random.default_rng(0))


@pytest.mark.parametrize("T, d_e", ((3, 2), (2, 4)))
def test_the_first_step_gives_new_positions_their_share(T, d_e):
    """From W = 0, V = alpha V*: e . B e at a new position over trained ones, in the mean over E."""
    d, q, alpha, own = 2, 1, 0.7, []
    X, y = all_sequences(T, d, q)
    W, V = np.zeros((d + d_e, d + d_e)), alpha * np.eye(d, d + d_e)
    for E in all_encodings("rademacher", T + 1, d_e):
        B = -sts.loss_and_grads(W, V, X, y, E[:T])[1][d:, d:]
        own.append(np.einsum("ik,kl,il->i", E, B, E))
    *trained, new = np.mean(own, axis=0)
    assert math.isclose(new / np.mean(trained), new_position_share(T, d_e), rel_tol=1e-12)


def test_independent_encodings_have_a_block_with_exact_logits():
    T, E = 7, random_signs(7, 12)
    B = exact_block(E)
    for y in itertools.combinations(range(T), 3):
        logits = E @ B @ E[list(y)].sum(axis=0)
        np.testing.assert_allclose(logits, np.isin(range(T), y), atol=1e-12)
    span = np.linalg.pinv(E) @ E                # no part of the least one is outside it
    np.testing.assert_allclose(span @ B @ span, B, atol=1e-12)


def test_fixed_encodings_have_no_floor_if_they_are_independent():
    """With a = 20 and V = V* the loss is nearly 0; with d_e < T the same block leaves much."""
    T, d, q = 7, 2, 3
    X, y = all_sequences(T, d, q)
    for d_e, low, high in (12, 0, 1e-12), (5, 0.1, math.inf):
        E, W = random_signs(T, d_e), np.zeros((d + d_e, d + d_e))
        W[d:, d:] = 20 * exact_block(E)
        assert low <= sts.loss(W, np.eye(d, d + d_e), X, y, E) * 2 * q / d < high


def test_the_measured_ratios_are_those_of_new_positions_over_trained_ones():
    """With one-hot encodings, q = 1, and a logit of 3 at trained positions, of 1 at new ones."""
    run = train.start(train.Settings(T=4, d=2, q=1, pe="onehot", d_e=8, T_test=[8], q_test=[],
                                          steps=1, evaluations=1, eval_sequences=200))
    run["W"][2:, 2:] = np.diag([3.0] * 4 + [1.0] * 4)
    expected = math.e / (math.e + 7) / (math.e ** 3 / (math.e ** 3 + 7))
    assert math.isclose(fixed_signs.attention_ratio(run, 8), expected, rel_tol=1e-5)
    assert math.isclose(fixed_signs.measured_share(run), 1 / 3, rel_tol=1e-5)


def test_a_run_of_train_py_starts_with_this_share():
    """T = 50, d_e = 100, the mean of three seeds; stochastic encodings have 1."""
    arm = fixed_signs.ARMS["fixed_signs 100 60"]
    shares = [fixed_signs.measured_share(train.train(**arm, seed=seed)) for seed in range(3)]
    assert math.isclose(np.mean(shares), new_position_share(50, 100), rel_tol=0.05)
    stochastic = train.train(**arm | {"pe": "stochastic", "steps": 300, "T": 10, "d_e": 20})
    assert math.isclose(fixed_signs.measured_share(stochastic), 1, rel_tol=0.2)


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "fixed_signs.py", "two_numbers.py")
    assert out.splitlines()[-1].split()[:3] == ["200", "500", "0.29"]
