"""Tests of single_location.py: `python -m pytest beyond/related/test_single_location.py`."""

import math
import re

import numpy as np
import pytest

import single_location as sl
from test_related import headline


def differences(function, x):
    """The slopes of function(x) in each entry of x by itself, by central differences."""
    steps = 1e-5 * np.eye(len(x))
    return np.array([(function(x + step) - function(x - step)) / 2e-5 for step in steps])


def standard_errors(values, expected):
    """The distance of the mean of values (n,) from what is expected, in standard errors."""
    return abs(values.mean() - expected) / values.std() * math.sqrt(len(values))


def risk_by_quadrature(kappa, nu, theta, eta, rho, d, L, lam):
    """R by its definition: x.k, x.v, x.v* are Gaussian, and the tokens are independent."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    G = np.stack(np.meshgrid(nodes, [-1, 1], [-1, 1])).reshape(3, -1)   # f - y is linear in two:
    weights = np.repeat(np.tile(weights, 2), 2) / 4                     # for them +-1 is exact
    G = np.linalg.cholesky([[1, rho, eta], [rho, 1, nu], [eta, nu, 1]]) @ G
    means = math.sqrt(d / 2) * np.array([[kappa], [theta], [0]])
    x_k, x_v, y = means + math.sqrt(0.5) * G                            # the token that decides
    f_0, f_1 = sl.erf(lam * x_k) * x_v, sl.erf(lam * G[0]) * G[1]
    others = (L - 1) * f_1 ** 2 @ weights + (L - 1) * (L - 2) * (f_1 @ weights) ** 2
    return (f_0 - y) ** 2 @ weights + 2 * (L - 1) * (f_0 @ weights) * (f_1 @ weights) + others


def random_point(seed):
    """Five overlaps of random k, v, and d, L, lam."""
    rng = np.random.default_rng(seed)
    d, L = int(rng.integers(3, 40)), int(rng.integers(1, 8))
    return sl.overlaps(*sl.start(rng, d, on_M=False)), (d, L, rng.uniform(0.1, 0.8))


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_risk_is_that_of_its_definition_by_quadrature(seed):
    point, sizes = random_point(seed)
    assert sl.risk(*point, *sizes) == pytest.approx(risk_by_quadrature(*point, *sizes), rel=1e-11)


def test_samples_have_the_exact_risk():
    k, v = sl.start(np.random.default_rng(1), 12, on_M=False)
    X, y, _ = sl.sample_task(np.random.default_rng(0), 100_000, 12, 4)
    squares = (sl.forward(k, v, X, 0.6) - y) ** 2
    assert standard_errors(squares, sl.risk(*sl.overlaps(k, v), 12, 4, 0.6)) < 4


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_exact_risk_in_k_and_v(seed):
    k, v = sl.start(np.random.default_rng(seed), 6, on_M=False)
    dk, dv = sl.risk_grads(k, v, 6, 4, 0.5)
    for grad, expected in ((dk, differences(lambda k: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), k)),
                           (dv, differences(lambda v: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), v))):
        np.testing.assert_allclose(grad, expected, rtol=1e-7, atol=1e-8)


def test_on_m_the_slopes_are_erf_and_its_derivative_times_a_residual():
    kappa, nu, lam = 0.3, 0.5, 0.4
    _, slopes = sl.risk_and_slopes(kappa, nu, 0, 0, 0, 50, 6, lam)
    s2 = 1 + 2 * lam ** 2 * sl.G2
    a = lam * 5 * kappa / math.sqrt(s2)
    b = a / math.sqrt(2 * s2 - 1)
    expected = [2 / math.sqrt(math.pi) * math.exp(-a * a) * (math.erf(b) - nu) * a / kappa,
                -math.erf(a), 0, 0, 0]
    assert list(slopes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", sl.PLACES)
def test_four_coordinates_are_descent_in_d_dimensions(name, monkeypatch):
    on_M, lam, fall = sl.PLACES[name][0], 0.4, 10 * sl.PLACES[name][2]
    monkeypatch.setitem(sl.PLACES, name, (on_M, lam, fall))
    path = sl.experiment(["falling", name], 2, [0, 299, 300], d=60, L=5, alpha=0.02)[:, :, 1]
    assert (abs(path[:, -1] - path[:, 0]).max(axis=0) > 0.3).all()
    assert (abs(path[2:]).max() < 1e-14) == on_M                    # what starts on M stays on M
    for seed in range(2):
        k, v = sl.start(np.random.default_rng(seed), 60, on_M)
        assert k @ k == pytest.approx(1) and v @ v == pytest.approx(1)
        for t in range(301):
            if t in (0, 299, 300):
                seen = path[:, [0, 299, 300].index(t), seed]
                np.testing.assert_allclose(seen, sl.overlaps(k, v), atol=1e-12)
            grads = sl.risk_grads(k, v, 60, 5, lam / (1 + fall * t))
            k, v = (sl.projected_step(w, dw, 0.02) for w, dw in zip((k, v), grads))


def test_argmax_nearly_has_its_bound_and_the_hidden_directions_leak():
    X, y, _ = sl.sample_task(np.random.default_rng(0), 100_000, 20, 5)
    chosen = X[..., 0].argmax(axis=1)
    R = ((X[np.arange(len(X)), chosen, 1] - y) ** 2).mean()
    assert 0.8 < R / sl.oracles(20, 5, 0.1)["argmax of x.k*"] < 1
    leak = 9 * 2 / math.pi * math.asin(0.02 / 1.02)                 # 9 E erf(0.1 G)^2
    assert sl.at_truth(400, 10, 0.1) > leak == pytest.approx(sl.at_truth(4e5, 10, 0.1), rel=1e-9)


def test_least_squares_reaches_the_risk_of_the_best_linear_predictor():
    rng = np.random.default_rng(0)
    X, y, _ = sl.sample_task(rng, 100_000, 4, 3)
    inputs = X.reshape(len(X), -1)
    residual = y - inputs @ np.linalg.solve(inputs.T @ inputs, inputs.T @ y)
    R = sl.oracles(4, 3, 0.1)
    assert R["best linear"] == pytest.approx(0.4)
    assert standard_errors(residual ** 2, R["best linear"]) < 4
    assert standard_errors(y ** 2, R["zero predictor"]) < 4


@pytest.mark.parametrize("d, lam", [(400, 0.1), (400, 0.05), (30, 0.9)])
def test_the_swapped_point_is_stationary(d, lam):
    _, _, theta, _, _ = point = sl.swapped_point(d, lam)
    k, v = np.array([0, 1.0, 0]), np.array([theta, 0, math.sqrt(1 - theta ** 2)])
    np.testing.assert_allclose(sl.overlaps(k, v), point, atol=1e-15)
    for w, dw in zip((k, v), sl.risk_grads(k, v, d, 10, lam)):
        np.testing.assert_allclose(sl.projected_step(w, dw, 0.1), w, atol=1e-12)
    assert (theta == 1) == (lam == 0.05)


def test_the_headline():
    """Rows have a start, a step, lam, median R, max R, R of k*, v*, found, swapped."""
    out = headline("single_location")
    [(mean, error)] = re.findall(r"v\*, on 2000 samples +(\S+) \+- (\S+)", out)
    assert abs(float(mean) - sl.at_truth(**sl.SETTINGS)) < 4 * float(error) < 0.03
    assert "argmax of x.k*, on 2000 samples  0.0000 +- 0.0000" in out
    found = re.findall(r"^    (on M|anywhere|falling) +(\d+)(.*)$", out, re.M)
    table = {(name, int(t)): [float(x) for x in row.split()] for name, t, row in found}
    _, median, largest, truth, *counts = table["on M", 20_000]
    assert truth == 0.1135 <= median <= largest < 0.114 and counts == [30, 0]
    _, median, largest, _, found, swapped = table["anywhere", 20_000]
    assert found + swapped == 30 and 5 < found < 25 and 0.1155 <= median <= largest < 0.117
    lam, median, _, truth, found, swapped = table["falling", 20_000]
    assert lam == 0.333 and median < truth + 0.001 and found + swapped == 30 and found > 24
