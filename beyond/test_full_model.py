"""Tests of full_model.py:  python -m pytest beyond/test_full_model.py"""

import math

import numpy as np
import pytest

import full_model
from full_model import exact_loss, late_loss, slopes
from conftest import all_encodings, follow, run_alone
from two_numbers import descend

import plots
import sts
import train


@pytest.mark.parametrize("query", ("sum", "mean"))
@pytest.mark.parametrize("q", (1, 2))
def test_descent_is_two_numbers(query, q):
    T, d_e, d, lr = 3, 3, 2, 3.0
    path = descend(lr, 22, d_e, T, d, q, slopes=lambda *given: slopes(*given, query))
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           attend_to_query=True, query=query)


@pytest.mark.parametrize("q", (2, 3, 5))
def test_the_sum_has_rate_one_over_q(q):
    """L over late_loss goes to 1, and the slope of log L against log t to -1/q."""
    L = exact_loss(20_000, 10, 5, q, "sum", 1.0, 20)
    ratios = [L[t] / late_loss(t, 10, 5, q, "sum", 1.0, 20) for t in (200, 20_000)]
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1) and abs(ratios[1] - 1) < 0.1
    slope = math.log(L[20_000] / L[10_000]) / math.log(2)
    assert math.isclose(slope, -1 / q, rel_tol=0.1)


@pytest.mark.parametrize("q", (1, 2, 3))
def test_the_mean_has_rate_one_over_t(q):
    query = "sum" if q == 1 else "mean"                     # the same for one selected token
    L = exact_loss(8000, 10, 5, q, query, 3.0, 20)
    growth = 1 / late_loss(1.0, 10, 5, q, query, 3.0, 20)
    assert math.isclose((1 / L[-1] - 1 / L[4000]) / 4000, growth, rel_tol=0.03)


def test_exact_runs_end_at_the_recursion(monkeypatch, capsys):
    def exact_run(c):
        return {"loss": exact_loss(c.steps, c.T, c.d, c.q, c.query, c.lr, c.d_e)[:-1]}
    monkeypatch.setattr(plots, "trained", lambda arms: {
        name: [exact_run(train.Settings(**arm))] * 3 for name, arm in arms.items()})
    full_model.figure()
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 and all(text.endswith("  1 (1 to 1)") for text in rows)


def test_the_file_runs_beside_two_numbers_and_what_it_compares_tends_to_1(tmp_path):
    *_, last = run_alone(tmp_path, "full_model.py", "two_numbers.py").splitlines()
    np.testing.assert_allclose([float(word) for word in last.split()], [100_000, 1, 1], atol=0.02)
