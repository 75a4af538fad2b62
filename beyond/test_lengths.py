"""Tests of lengths.py:  python -m pytest beyond/test_lengths.py"""

import math

import numpy as np
import pytest

import lengths
from conftest import all_encodings, all_sequences, follow, run_alone
from lengths import end_errors, length_factor, output_scale, stochastic_loss
from two_numbers import descend

import sts
import train


def test_stochastic_loss_is_the_loss_at_other_lengths_and_sizes():
    T, d_e, d, q, lr = 3, 4, 2, 2, 3.0
    path = descend(lr, 20, d_e, T, d, q)
    W, V = follow(path, all_encodings("orthonormal", T, d_e), d, q, lr,
                  [sts.ground_truth(d, d_e)[0]])
    for T_test, q_test in (2, 1), (3, 2), (3, 1), (4, 2), (4, 3):
        E = all_encodings("orthonormal", T_test, d_e)
        exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E)
        L = stochastic_loss(*path[1:], T_test, d, q_test)
        assert math.isclose(L[-1], exact, rel_tol=1e-12) and L.shape == path[1].shape


def test_the_dip_at_another_size_is_where_the_output_first_has_the_right_scale():
    """alpha s passes 1 while alpha overshoots, so the error falls, rises, and falls again."""
    _, a, alpha = descend(5.0, 8000, 300, 200, 5, 3)
    error, scale = stochastic_loss(a, alpha, 200, 5, 8), output_scale(a, alpha, 200, 8)
    rising = np.flatnonzero(np.diff(error) > 0)
    assert abs(scale[rising[0]] - 1) < 0.06 and scale[rising[-1] + 1] > 1.5
    assert error[rising[-1] + 1] > 1.5 * error[rising[0]] > 5 * error[-1]
    assert math.isclose(alpha.max(), (1 + math.sqrt(200 / 3)) / 2, rel_tol=0.03)
    s = scale[1:] / alpha[1:]                               # with the best scale there is no dip
    best = 1 - s ** 2 / (s ** 2 + (1 - s) ** 2 * 8 / 192)
    assert (np.diff(best) < 1e-12).all()


def ideal(a, alpha, **settings):
    """A run with W = a W* and V = alpha V*."""
    c = train.Settings(T=20, d=3, q=2, **settings)
    W, V = sts.ground_truth(3, c.d_e)
    return {"config": c, "W": a * W, "V": alpha * V}


@pytest.mark.parametrize("T, q", [(20, 2), (40, 2), (400, 2), (20, 1), (20, 5), (300, 6)])
def test_scaled_logits_keep_the_attention_of_training(T, q):
    """Exactly, for orthonormal encodings and W = a W*."""
    run = ideal(2.5, 1.2, law="orthonormal", d_e=400)
    X, y, E = train.held_out(run | {"tests": np.array([[T, q]])}, 0, 1)
    P = sts.attention(run["W"] * length_factor(run, T, q), X, y, E[0])
    s = 2 * math.exp(2.5) / (2 * math.exp(2.5) + 18)
    np.testing.assert_allclose(np.take_along_axis(P, y, axis=1).sum(axis=1), s, rtol=1e-6)
    assert output_scale(lengths.scaled(2.5, 20, 2, T, q), 1.2, T, q) == pytest.approx(1.2 * s)


def test_the_errors_are_those_of_the_weights_as_they_are_and_scaled():
    run = ideal(2.5, 1.2, law="orthonormal", d_e=100, eval_draws=3)
    for found, a in zip(end_errors(run, 60, 5000), (2.5, lengths.scaled(2.5, 20, 2, 60, 2))):
        exact = stochastic_loss(a, 1.2, 60, 3, 2) * 4 / 3
        assert found == pytest.approx(exact, rel=0.15) and exact > 0.001


def test_fixed_encodings_are_scaled_by_the_logit_that_trained_positions_have():
    run = train.train(T=8, d=2, q=2, d_e=16, lr=0.5, steps=40, pe="fixed")
    E, B = run["E"], run["W"][2:, 2:]
    own = np.mean([e @ B @ e for e in E[:8]])
    factor = length_factor(run, 14, 2)
    assert factor == pytest.approx(lengths.scaled(own, 8, 2, 14, 2) / own, rel=1e-5)
    X, y = sts.sample_sts(train.stream(run["config"], "tests", 14, 2), 50, 14, 2, 2, np.float32)
    np.testing.assert_allclose(end_errors(run, 14, 50), [
        sts.loss(W, run["V"], X, y, E[:14]) * 2 for W in (run["W"], factor * run["W"])], rtol=1e-4)


def test_the_error_of_random_signs_is_predicted():
    run = ideal(3.0, 1.2, d_e=60)
    assert end_errors(run, 80, 4000)[1] == pytest.approx(lengths.predicted(run, 80), rel=0.1)


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "lengths.py", "two_numbers.py")
    rows = np.array([line.split() for line in out.splitlines()[4:9]], float)
    assert (np.diff(rows[:, 3:6], axis=0) < 0).all() and rows[-1, 5] < 0.02
    rows = np.array([line.split() for line in out.splitlines()[-5:]], float)
    assert (np.diff(rows, axis=0)[:, [1, 3]] * [1, -1] > 0).all() and rows[-1, 0] == 100_000
