"""Tests of readings.py:  python -m pytest beyond/test_readings.py"""

import readings     # first: it finds the other files

import numpy as np
import pytest

import plots
import train
import width
from common import end_error, multiples
from conftest import exact_rows, run_alone
from two_numbers import descend


def test_a_long_encoding_follows_the_recursion_of_two_numbers():
    """Scores are those of orthonormal encodings then, but for a few per cent."""
    T, d, q, d_e, lr, steps = 8, 3, 2, 20_000, 4.0, 30_000
    path = np.transpose(list(readings.stochastic(
        np.random.default_rng(0), T, d, q, d_e, lr, steps, 1, draws=50)))
    _, a, alpha = descend(lr, steps, d_e, T, d, q)
    assert path[0, -1] == steps and (np.diff(path[1]) <= 0.0201).all() and a[-1] > 0.5
    np.testing.assert_allclose(path[1:, -1], (a[-1], alpha[-1]), rtol=0.03)


@pytest.mark.parametrize("K", (1, 3))
def test_stochastic_runs_of_train_py_have_its_numbers_and_errors(K):
    """a, alpha, and the errors at twice the length with one draw in a test and with 16."""
    T, d, q, d_e = 10, 3, 3, 24
    run = train.train(T=T, d=d, q=q, d_e=d_e, lr=1.0, steps=1200, draws=K, batch=512, fresh=True,
                      evaluations=1, T_test=[20], q_test=[5])
    *_, (t, a, alpha) = readings.stochastic(np.random.default_rng(0), T, d, q, d_e, 1.0, 1200, K)
    assert t == 1200 and a > 1
    np.testing.assert_allclose(multiples(run), (a, alpha), rtol=0.06)
    for length, size in run["tests"].tolist():
        one, many = (width.predict_loss(np.random.default_rng(0), a, alpha, length, d, size, d_e,
                                        draws, 0.01)[0] * 2 * size / d for draws in (1, 16))
        single, mean = (end_error(run, length, size, draws) for draws in (1, 16))
        assert single == pytest.approx(one, rel=0.15) and mean == pytest.approx(many, rel=0.15)
        assert mean < 0.95 * single


def test_the_map_has_the_shape_of_the_captions(monkeypatch):
    """Fixed encodings fail on longer sequences, and on larger sizes the more the smaller d_e is."""
    monkeypatch.setattr(readings, "T", 30)
    monkeypatch.setattr(readings, "TESTS", {"length": (60, 3), "size": (30, 8)})
    monkeypatch.setattr(readings, "STEPS", 3000)
    short, long = (readings.errors(np.random.default_rng(0), d_e) for d_e in (20, 90))
    (length, size), (_, one), (stochastic, many) = short
    assert length > 3 * stochastic and size > 3 * many and one > 3 * many
    assert long[0, 0] > 5 * long[2, 0] and long[0, 1] < size / 2
    monkeypatch.setattr(readings, "LR", 1e-4)               # untrained: near 1, even attention
    np.testing.assert_allclose(readings.errors(np.random.default_rng(0), 20), 1, atol=0.3)


def test_the_runs_are_those_of_the_figures_but_for_d_e():
    assert plots.GD["gd fixed"]["d_e"] in readings.POINTS
    for pe in "fixed", "stochastic":
        for d_e, (name, arm) in zip(readings.POINTS, readings.arms(pe).items(), strict=True):
            c = train.Settings(**arm)
            assert (c.T, c.d, c.q, c.lr, c.steps, c.d_e, c.pe) == (
                readings.T, readings.D, readings.Q, readings.LR, readings.STEPS, d_e, pe)
            assert pe == "fixed" or c.draws == readings.K
            assert name == f"gd {pe}" if d_e == 500 else str(d_e) in name


def test_the_summary_names_the_sizes_and_its_errors(capsys):
    found = np.ones((10, 2, 3, 3))
    found[3, :, 0] = 9                                      # fixed encodings fail at one d_e
    found[:, 0, 2, 2], found[:, 1, 2, 2] = 0.9, 1.1         # 10 % deviation on q_test = 2
    readings.summary(found)
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split()[1:] == ["0.0%"] * 8 + ["10.0%"]
    ahead = [row.split()[-1] for row in rows if "16 draws are ahead" in row]
    assert ahead[0] == str(readings.SIZES[3]) and ahead[1] == f"({readings.SIZES[-1]})"
