"""Tests of single_location.py: `python -m pytest beyond/related/test_single_location.py`."""

import math

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


@pytest.fixture(scope="module")
def batch():
    """Samples of the task with noise 0.3, d = 12, L = 4."""
    return sl.sample_task(np.random.default_rng(0), 100_000, 12, 4, eps=0.3)


def test_norms_and_positions_do_not_tell_which_token_decides(batch):
    X, _, J = batch
    for position in J, (J + 1) % 4:
        assert standard_errors((X[np.arange(len(X)), position] ** 2).sum(axis=1), 12) < 4
    assert np.abs(4 * np.bincount(J) / len(X) - 1).max() < 4 * math.sqrt(3 / len(X))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_exact_risk_is_that_of_samples(batch, seed):
    X, y, _ = batch
    k, v = sl.start(np.random.default_rng(seed), 12, on_M=False)
    squares = (sl.forward(k, v, X, 0.6) - y) ** 2
    assert standard_errors(squares, 0.09 + sl.risk(*sl.overlaps(k, v), 12, 4, 0.6)) < 4


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_risk_is_that_of_its_definition_by_quadrature(seed):
    point, sizes = random_point(seed)
    assert sl.risk(*point, *sizes) == pytest.approx(risk_by_quadrature(*point, *sizes), rel=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_exact_risk_in_k_and_v(seed):
    k, v = sl.start(np.random.default_rng(seed), 6, on_M=False)
    dk, dv = sl.risk_grads(k, v, 6, 4, 0.5)
    for grad, expected in ((dk, differences(lambda k: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), k)),
                           (dv, differences(lambda v: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), v))):
        np.testing.assert_allclose(grad, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("on_M", [True, False])
def test_the_recursion_and_four_coordinates_are_descent_in_d_dimensions(on_M):
    path = sl.experiment(2, on_M, d=60, L=5, lam=0.4, alpha=0.02, steps=300)
    assert (np.abs(path[:, -1] - path[:, 0]).max(axis=0) > 0.3).all()
    for seed in range(2):
        k, v = sl.start(np.random.default_rng(seed), 60, on_M)
        assert k @ k == pytest.approx(1) and v @ v == pytest.approx(1)
        assert (np.abs(sl.overlaps(k, v)[2:]).max() < 1e-15) == on_M
        np.testing.assert_allclose(path[..., seed], sl.pgd(k, v, 60, 5, 0.4, 0.02, 300), atol=1e-12)


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
    """Rows have a place, a step, median R, max R, least |kappa|, least |nu|, found, swapped."""
    rows = [line.split() for line in headline("single_location").splitlines()]
    [(mean, error)] = [(float(row[3]), float(row[5])) for row in rows if "samples" in row]
    assert abs(mean - sl.oracles(**sl.SETTINGS)["k = k*, v = v*"]) < 4 * error < 0.03
    table = {(row[-8], int(row[-7])): [float(entry) for entry in row[-6:]]
             for row in rows if len(row) in (8, 9) and row[-8] in ("M", "sphere")}
    median, largest, kappa, nu, *counts = table["M", 20_000]
    assert 0.1135 <= median <= largest < 0.114 and kappa > 0.97 and nu == 1 and counts == [30, 0]
    assert table["M", 2000][3] > 0.9 > 0.6 > table["M", 2000][2]        # the value comes first
    median, largest, *_, found, swapped = table["sphere", 5000]
    assert found + swapped == 30 and 5 < found < 25 and 0.1155 <= median <= largest < 0.117
