"""Tests of lengths.py:  python -m pytest beyond/test_lengths.py"""

import math

import numpy as np

from lengths import output_scale, stochastic_loss
from test_two_numbers import all_encodings, all_sequences, follow, run_alone
from two_numbers import descend

import sts


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


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "lengths.py", "two_numbers.py")
    rows = np.array([line.split() for line in out.splitlines()[4:9]], float)
    assert (np.diff(rows[:, 3:6], axis=0) < 0).all() and rows[-1, 5] < 0.02
