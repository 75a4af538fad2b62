"""Tests of single_location.py: `python -m pytest beyond/related/test_single_location.py`."""

import math
import re

import numpy as np
import pytest

import single_location as s

LAM = np.array([0.1, 0.4, 1.0])


def random_point(seed=0):
    """k, v (3, 4) with overlaps of all sizes."""
    return s.unit(np.random.default_rng(seed).standard_normal((2, 3, 4)))


def test_samples_have_the_risk():
    k, v = random_point()
    R, _ = s.risk(*s.overlaps(k, v), LAM)
    X, y = s.sample(np.random.default_rng(1), 100_000)
    for r, lam in enumerate(LAM):
        errors = (s.forward(k[r], v[r], X, lam) - y) ** 2
        assert abs(errors.mean() - R[r]) < 4 * errors.std() / 1e5 ** 0.5 < 0.05 * R[r]


def test_the_task_and_the_model_are_as_written():
    X, y = s.sample(np.random.default_rng(0), 100_000)
    assert (y == X[:, 0, 1]).all()
    np.testing.assert_allclose(X[:, 0].mean(axis=0), [math.sqrt(200), 0, 0, 0], atol=0.02)
    np.testing.assert_allclose(X[:, 1:].mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(X.var(axis=0), [[0.5] * 4] + [[1] * 4] * 9, atol=0.03)
    (k, *_), (v, *_) = random_point()
    f = sum(math.erf(0.4 * x @ k) * (x @ v) for x in X[0])
    assert s.forward(k, v, X[:1], 0.4) == pytest.approx([f], rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_the_slopes_of_the_risk(seed, monkeypatch):
    monkeypatch.setattr(s, "erf", np.vectorize(math.erf))               # smooth, not from a table
    w = random_point(seed)                                              # k and v, (2, 3, 4)
    for entry in np.ndindex(2, 4):
        h = np.zeros((2, 1, 4))
        h[entry[0], 0, entry[1]] = 1e-4
        up, down = (s.risk(*s.overlaps(*moved), LAM)[0] for moved in (w + h, w - h))
        slopes = s.gradients(*w, LAM)[entry[0]][:, entry[1]]
        np.testing.assert_allclose(slopes, (up - down) / 2e-4, rtol=1e-5, atol=1e-5)


def test_starts_are_uniform_on_the_sphere():
    k, v = s.start(np.random.default_rng(0), 100_000)
    np.testing.assert_allclose(s.overlaps(k, v).std(axis=1) * math.sqrt(s.D), 1, atol=0.008)


def test_the_first_step_is_projected(monkeypatch):
    monkeypatch.setattr(s, "STEPS", 0)
    w = np.stack(s.start(np.random.default_rng(0), 30))                 # k and v
    dw = np.stack(s.gradients(*w, np.ones(30)))
    along = dw - (w * dw).sum(axis=-1, keepdims=True) * w
    ends = [end[0] for end in s.experiment.__wrapped__()[1:]]           # lam falls, from 1
    np.testing.assert_allclose(ends, s.unit(w - 4e-3 * along), rtol=1e-12)


def test_the_headline(capsys):
    s.demo()
    rows = re.findall(r"(?:falls|stays).* +(\d+) +(\d+) +([\d.]+) +([\d.]+)$",
                      out := capsys.readouterr().out, re.M)
    (k_star, v_star, least, most), large, small = np.array(rows, float)
    assert k_star >= 27 and k_star + v_star == 30 and 0.92 < least <= most < 0.93
    assert (large[:2] == 0).all() and 0.27 < large[2] <= large[3] < 0.29
    assert 8 <= small[0] <= 22 and small[:2].sum() == 30
    for R, mean, error in np.array(re.findall(r"finds .\* +(\S+) +(\S+) .. (\S+)\n", out), float):
        assert abs(R - mean) < 4 * error < 0.005 and 0.113 < R < 0.116
