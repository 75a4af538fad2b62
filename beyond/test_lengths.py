"""Tests of lengths.py:  python -m pytest beyond/test_lengths.py"""

import itertools
import math

import numpy as np
import pytest

import lengths
from lengths import fixed_loss, output_scale, stochastic_loss
from test_two_numbers import all_encodings, all_sequences, follow, run_alone
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


@pytest.mark.parametrize("law, d_e", (("onehot", 6), ("orthonormal", 9)))
def test_fixed_encodings_train_like_one_hot_ones_and_have_fixed_loss(law, d_e):
    T, longest, d, q, lr = 4, 6, 2, 2, 1.0
    E = sts.positional_encoding(law, longest, d_e, np.random.default_rng(0))
    path, u = descend(lr, 40, T - 1, T, d, q), E[:T].sum(axis=0)
    W, V = follow(path, E[None, :T], d, q, lr,
                  [np.pad(E[:T].T @ E[:T] - np.outer(u, u) / T, (d, 0))])
    for T_test, q_test in itertools.product(range(2, longest + 1), (1, 2, 3, 4)):
        if q_test <= T_test:
            exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E[:T_test])
            L = fixed_loss(*path[1:], T, T_test, d, q_test)
            assert math.isclose(L[-1], exact, rel_tol=1e-12) and L.shape == path[1].shape
    assert exact > 2 * stochastic_loss(*path[1:, -1], T_test, d, q_test)


def test_at_other_lengths_fixed_encodings_do_not_come_below_a_least_loss():
    """Then it rises again.  It is nearly proportional to d, and above 0.15 for d = 5."""
    _, *four = descend(5.0, 12_000, 199, 200, 4, 3)
    _, *five = descend(5.0, 12_000, 199, 200, 5, 3)
    for T_test in 250, 300, 350, 400:
        L, other = fixed_loss(*five, 200, T_test, 5, 3), fixed_loss(*four, 200, T_test, 4, 3)
        assert 0.15 < L.min() < 0.99 * L[-1]
        assert math.isclose(L.min() / 5, other.min() / 4, rel_tol=0.01)


def test_the_dip_at_another_size_is_where_the_output_first_has_the_right_scale():
    """alpha s passes 1 while alpha overshoots, so the error falls, rises, and falls again."""
    _, a, alpha = descend(5.0, 8000, 300, 200, 5, 3)
    error, scale = stochastic_loss(a, alpha, 200, 5, 8), output_scale(a, alpha, 200, 8)
    rest = (alpha - scale) ** 2 * 8 / (200 - 8)         # alpha (1 - s) = alpha - alpha s
    np.testing.assert_allclose(error, 5 / (2 * 8) * ((1 - scale) ** 2 + rest), rtol=1e-12)
    rising = np.flatnonzero(np.diff(error) > 0)
    assert abs(scale[rising[0]] - 1) < 0.06 and scale[rising[-1] + 1] > 1.5
    assert error[rising[-1] + 1] > 1.5 * error[rising[0]] > 5 * error[-1]


@pytest.mark.parametrize("pe, W_norm2", (("stochastic", 16), ("fixed", 7)))
def test_a_run_of_train_py_has_these_errors(pe, W_norm2):
    """At twice the length and at two sizes, within 10 %."""
    run = train.train(**lengths.ARMS[f"lengths {pe}"] | {
        "T": 8, "d": 3, "q": 2, "d_e": 16, "steps": 500, "evaluations": 1,
        "eval_sequences": 4000, "T_test": [16], "q_test": [1, 4]})
    _, a, alpha = descend(1.0, 500, W_norm2, 8, 3, 2)[:, -1]
    exact = [stochastic_loss(a, alpha, *test) if pe == "stochastic" else
             fixed_loss(a, alpha, 8, *test) for test in ((16, 3, 2), (8, 3, 1), (8, 3, 4))]
    np.testing.assert_allclose(run["error"][-1, 1:], exact, rtol=0.1)


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "lengths.py", "two_numbers.py")
    assert out.splitlines()[3].split() == ["250", "0.181", "2780", "0.209", "0.181"]
