"""Tests of single_location.py: `python -m pytest test_single_location.py`."""

import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import single_location as sl


def differences(function, x):
    """The slopes of function(x) in each entry of x by itself, by central differences."""
    steps = 1e-5 * np.eye(len(x))
    return np.array([(function(x + step) - function(x - step)) / 2e-5 for step in steps])


def agree(slopes, expected):
    return np.abs(slopes - expected).max() <= 1e-7 * np.abs(expected).max()


def standard_errors(values, expected):
    """How many standard errors the mean of values (n,) lies from what is expected."""
    return abs(values.mean() - expected) / values.std() * math.sqrt(len(values))


def risk_by_quadrature(kappa, nu, theta, eta, rho, d, L, lam):
    """R by its definition: x_l.k, x_l.v, x_l.v* are three Gaussians, the tokens independent."""
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
    """2e5 samples of the task with noise 0.3, d = 12, L = 4."""
    return sl.sample_task(np.random.default_rng(0), 200_000, 12, 4, eps=0.3)


@pytest.fixture(scope="module")
def on_M():
    return sl.experiment(30, on_M=True)


def test_norms_and_places_give_nothing_away(batch):
    X, _, J = batch
    for place in J, (J + 1) % 4:
        assert standard_errors((X[np.arange(len(X)), place] ** 2).sum(axis=1), 12) < 4
    assert np.abs(np.bincount(J) / 50_000 - 1).max() < 4 * math.sqrt(3 / len(X))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exact_risk_is_that_of_samples(batch, seed):
    X, y, _ = batch
    k, v = sl.start(np.random.default_rng(seed), 12, on_M=False)
    squares = (sl.forward(k, v, X, 0.6)[1] - y) ** 2
    assert standard_errors(squares, 0.09 + sl.risk(*sl.overlaps(k, v), 12, 4, 0.6)) < 4


@pytest.mark.parametrize("seed", range(10))
def test_the_exact_risk_is_that_of_its_definition_by_quadrature(seed):
    point, sizes = random_point(seed)
    assert sl.risk(*point, *sizes) == pytest.approx(risk_by_quadrature(*point, *sizes), rel=1e-11)


@pytest.mark.parametrize("g", [0.01, 0.1, 0.5, 1, 2, 10])
def test_the_mean_square_of_erf_at_zero_is_an_arcsine(g):
    expected = 2 / math.pi * math.asin(2 * g ** 2 / (1 + 2 * g ** 2))
    assert sl.erf_square_mean(0.0, g)[0] == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("seed", range(10))
def test_slopes_of_the_exact_risk_and_that_wrong_ones_are_rejected(seed):
    point, sizes = random_point(seed)
    for x in point, point * [1, 1, 0, 0, 0]:                                # the second is on M
        _, slopes = sl.risk_and_slopes(*x, *sizes)
        expected = differences(lambda x: sl.risk(*x, *sizes), x)
        tolerance = 1e-7 * np.maximum(np.abs(expected), 0.1)                # each slope by itself
        assert (np.abs(np.subtract(slopes, expected)) < tolerance).all()
        for factor in 0, -1, 1.01:
            rejected = np.abs(np.multiply(factor, slopes) - expected) > tolerance
            assert (rejected == (np.abs(expected) > 1e-5)).all()


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_exact_risk_in_k_and_v(seed):
    k, v = sl.start(np.random.default_rng(seed), 6, on_M=False)
    dk, dv = sl.risk_grads(k, v, 6, 4, 0.5)
    assert agree(dk, differences(lambda k: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), k))
    assert agree(dv, differences(lambda v: sl.risk(*sl.overlaps(k, v), 6, 4, 0.5), v))


@pytest.mark.parametrize("trained", [0, 20])
def test_sample_gradients_and_that_wrong_ones_are_rejected(trained):
    rng = np.random.default_rng(trained)
    k, v = sl.start(rng, 6, on_M=False)
    X, y, _ = sl.sample_task(rng, 7, 6, 3, eps=0.1)
    for _ in range(trained):
        _, dk, dv = sl.loss_and_grads(k, v, X, y, 0.8)
        k, v = sl.projected_step(k, dk, 0.02), sl.projected_step(v, dv, 0.02)
    loss, dk, dv = sl.loss_and_grads(k, v, X, y, 0.8)
    assert loss == pytest.approx(np.mean((sl.forward(k, v, X, 0.8)[1] - y) ** 2))
    dk_check = differences(lambda k: sl.loss_and_grads(k, v, X, y, 0.8)[0], k)
    dv_check = differences(lambda v: sl.loss_and_grads(k, v, X, y, 0.8)[0], v)
    assert agree(dk, dk_check) and agree(dv, dv_check)
    for good, check, other in (dk, dk_check, dv), (dv, dv_check, dk):
        one_entry = good * np.where(np.arange(6) == np.abs(good).argmax(), 1.01, 1)
        for wrong in 0 * good, -good, good[::-1], other, 1.01 * good, one_entry:
            assert not agree(wrong, check)


@pytest.mark.parametrize("on_M", [True, False])
def test_the_recursion_and_four_coordinates_are_descent_in_d_dimensions(on_M):
    path = sl.experiment(3, on_M, d=60, L=5, lam=0.4, alpha=0.02, steps=500)
    assert (np.abs(path[:, -1] - path[:, 0]).max(axis=0) > 0.3).all()
    for seed in range(3):
        k, v = sl.start(np.random.default_rng(seed), 60, on_M)
        assert k @ k == pytest.approx(1) and v @ v == pytest.approx(1)
        assert (np.abs(sl.overlaps(k, v)[2:]).max() < 1e-15) == on_M
        np.testing.assert_allclose(path[..., seed], sl.pgd(k, v, 60, 5, 0.4, 0.02, 500), atol=1e-12)


def test_the_best_linear_predictor_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    X, y, _ = sl.sample_task(rng, 200_000, 4, 3)
    inputs = X.reshape(len(X), -1)
    residual = y - inputs @ np.linalg.solve(inputs.T @ inputs, inputs.T @ y)
    R = sl.oracles(4, 3, 0.1)
    assert R["best linear"] == pytest.approx(0.4)
    assert standard_errors(residual ** 2, R["best linear"]) < 4
    assert standard_errors(y ** 2, R["always 0"]) < 4


def test_oracles_at_the_headline():
    R = sl.oracles(**sl.SETTINGS)
    assert R["best linear"] == pytest.approx(0.473684, abs=1e-6)
    assert R["k = k*, v = v*"] == pytest.approx(0.113498, abs=1e-6)
    assert R["swapped point"] == pytest.approx(0.11551, abs=1e-5)


@pytest.mark.parametrize("d, lam", [(400, 0.1), (400, 0.05), (30, 0.9)])
def test_the_swapped_point_is_stationary(d, lam):
    _, _, theta, _, _ = point = sl.swapped_point(d, lam)
    k, v = np.array([0, 1.0, 0]), np.array([theta, 0, math.sqrt(1 - theta ** 2)])
    np.testing.assert_allclose(sl.overlaps(k, v), point, atol=1e-15)
    for w, dw in zip((k, v), sl.risk_grads(k, v, d, 10, lam)):
        np.testing.assert_allclose(sl.projected_step(w, dw, 0.1), w, atol=1e-12)
    assert (theta == 1) == (lam == 0.05)


@pytest.mark.parametrize("lam, better", [(0.0905, True), (0.0909, False)])
def test_the_swapped_point_is_the_better_one_below_lam_0907(lam, better):
    R = sl.oracles(400, 10, lam)
    assert (R["swapped point"] < R["k = k*, v = v*"]) == better


def test_on_M_all_seeds_reach_the_oracle_up_to_a_common_sign(on_M):
    R, (kappa, nu, *rest) = sl.risk(*on_M[:, -1], **sl.SETTINGS), on_M[:, -1]
    oracle = sl.oracles(**sl.SETTINGS)["k = k*, v = v*"]
    assert (oracle < R).all() and (R < oracle + 5e-4).all()
    assert (np.abs(kappa) > 0.97).all() and (np.abs(nu) > 0.9999).all() and (kappa * nu > 0).all()
    assert not np.any(rest) and 5 < (nu > 0).sum() < 25


def test_on_M_the_value_is_learnt_first_from_worse_than_always_0(on_M):
    start = sl.risk(*on_M[:, 0], **sl.SETTINGS)
    assert 0.60 < start.min() and start.max() < 0.65
    first = (np.abs(on_M[:2]) > 0.9).argmax(axis=1)                         # first step above .9
    assert (first[1] < 3000).all() and (first[0] > 2 * first[1]).all()


def test_on_the_sphere_seeds_end_near_the_oracle_or_swapped():
    end = sl.experiment(8, on_M=False, steps=6000)[:, -1]
    kappa, nu, theta, eta, _ = np.abs(end)
    swapped = eta > 0.99
    assert 0 < swapped.sum() < 8 and (kappa[~swapped] * nu[~swapped] > 0.85).all()
    np.testing.assert_allclose(theta[swapped], 0.6298, atol=1e-4)
    np.testing.assert_allclose(sl.risk(*end, **sl.SETTINGS)[swapped], 0.115512, atol=1e-5)


@pytest.mark.parametrize("call, named", [
    (lambda rng: sl.sample_task(rng, 0, 4, 3), "n=0"),
    (lambda rng: sl.forward(np.ones(5), np.ones(4), np.ones((2, 3, 5)), 1), r"\(5,\), \(4,\)"),
    (lambda rng: sl.risk(0, 0, 0, 0, 0, 4, 0, 0.1), "L=0"),
    (lambda rng: sl.risk(0, 0, 0, 0, 0, 4, 3, 0.0), "lam=0.0")])
def test_what_does_not_fit_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call(np.random.default_rng(0))


def test_the_file_alone_prints_the_headline(tmp_path):
    shutil.copy(sl.__file__, tmp_path / "single_location.py")
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    done = subprocess.run([sys.executable, "-I", "single_location.py"], cwd=tmp_path,
                          env=environment, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == "" and ["best", "linear", "0.4737"] in rows
    [(mean, error)] = [(float(row[3]), float(row[5])) for row in rows if "samples" in row]
    assert abs(mean - 0.1135) < 4 * error < 0.03
    on_M, sphere = [[float(entry) for entry in row[-6:]] for row in rows if "20000" in row]
    assert abs(on_M[0] - 0.1137) < 3e-4 and on_M[2] > 0.97 and on_M[4:] == [30, 0]
    assert sum(sphere[4:]) == 30 and 5 < sphere[4] < 25


def test_a_picture_that_cannot_be_written_is_one_message_before_the_work(monkeypatch, capsys):
    path = os.path.join("no", "such", "folder", "picture.png")
    monkeypatch.setattr(sl, "experiment", None)
    monkeypatch.setattr(sys, "argv", ["single_location.py", path])
    with pytest.raises(SystemExit) as stop:
        sl.main()
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.out == ""
    assert printed.err.count("error:") == 1 and repr(path) in printed.err
