"""Tests of two_numbers.py:  python -m pytest beyond/test_two_numbers.py"""

import math
import re

import numpy as np
import pytest

from common import multiples
from conftest import all_encodings, follow, run_alone
from two_numbers import count_steps, descend

import sts
import train


def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path = descend(lr, 100, T - 1, T, d, q)
    follow(path, np.eye(T)[None], d, q, lr, [sts.ground_truth(d, T, T)[0]])


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers(inside):
    T, d_e, d, q, lr = 3, 4, 2, 2, 3.0
    path = descend(lr, 20, d_e, T, d, q)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           inside)


def test_on_fixed_sequences_stochastic_encodings_leave_1_plus_d_squared_numbers():
    """W = a W*, V = [V_x, 0]: so there is little that could memorize."""
    rng, T, d_e, d, q = np.random.default_rng(0), 3, 4, 2, 2
    (X, y), (W, V) = sts.sample_sts(rng, 4, T, d, q), map(np.zeros_like, sts.ground_truth(d, d_e))
    E = all_encodings("orthonormal", T, d_e)
    for _ in range(5):
        _, dW, dV = (sum(part) / len(E) for part in zip(*[
            sts.loss_and_grads(W, V, X, y, e) for e in E]))
        W, V = W - dW, V - dV
    np.testing.assert_allclose(W, W[d, d] * sts.ground_truth(d, d_e)[0], rtol=0, atol=1e-13)
    assert abs(V[:, d:]).max() < 1e-13 and abs(W[d, d]) > 1e-4 and abs(V[0, 1] - V[1, 0]) > 0.01


def test_steps_are_counted_to_the_first_loss_below():
    steps = count_steps(0.003, 20, 5, 3, 1.0, 19)           # more than the 1000 it tries at first
    L, _, _ = descend(1.0, steps, 19, 20, 5, 3)
    assert L[-1] <= 0.003 * 5 / 6 < L[-2] and steps > 1000


@pytest.mark.parametrize("lr, steps, settings", (
    (0.5, 500, {"pe": "onehot"}), (1.0, 250, {"law": "orthonormal", "d_e": 16})))
def test_train_py_follows_the_recursion(lr, steps, settings):
    """W, V and the last losses of a run on fresh batches are within a few per cent."""
    T, d, q = 8, 3, 3
    run = train.train(T=T, d=d, q=q, lr=lr, steps=steps, fresh=True, evaluations=1,
                      eval_sequences=2, T_test=[], q_test=[], **settings)
    L, *numbers = descend(lr, steps, settings.get("d_e", T - 1), T, d, q)
    assert L[-1] < 0.5 * L[0]
    np.testing.assert_allclose(multiples(run), [path[-1] for path in numbers], rtol=0.05)
    assert math.isclose(run["loss"][-100:].mean(), L[-100:].mean(), rel_tol=0.1)


def test_the_file_runs_alone_and_its_late_rate_tends_to_the_derived_one(tmp_path):
    out = run_alone(tmp_path, "two_numbers.py")
    rate = re.search(r"^ +100000 .* (\S+)$", out, re.MULTILINE)[1]
    assert math.isclose(float(rate), 1, abs_tol=0.01) and "353007 steps" in out
