"""Tests of plateau.py:  python -m pytest beyond/test_plateau.py"""

import math

import numpy as np
import pytest

import plateau
from plateau import flow_steps, noise_delay
from common import half_step
from conftest import run_alone
from two_numbers import count_steps, slopes

import plots
import train


def with_best_alpha(a, T, d, q):
    """a, and the alpha where dL/dalpha, which is linear in alpha, is 0."""
    slope = slopes(a, 0.0, T, d, q)[2]
    return a, slope / (slope - slopes(a, 1.0, T, d, q)[2])


@pytest.mark.parametrize("share, T, d, q", ((0.01, 200, 5, 3), (0.3, 10, 2, 4), (0.5, 8, 1, 1)))
def test_the_closed_form_is_the_integral_of_the_flow(share, T, d, q):
    """da / (-dL/da) with the best alpha for each a, by Simpson's rule."""
    a = np.linspace(0, math.log((T - q) * (1 / share - 1) / q) / 2, 401)
    L, da, _ = np.transpose([slopes(*with_best_alpha(x, T, d, q), T, d, q) for x in a])
    assert math.isclose(L[-1], share * d / (2 * q), rel_tol=1e-9)
    pace = -(T - 1) / (2.0 * da)
    integral = (a[1] - a[0]) / 3 * (pace[0] + 4 * pace[1:-1:2].sum() + 2 * pace[2:-1:2].sum()
                                    + pace[-1])
    assert math.isclose(flow_steps(share, T, d, q, 2.0, T - 1), integral, rel_tol=1e-6)


@pytest.mark.parametrize("T, d, q, lr, N", (
    (200, 5, 3, 4, 170), (200, 5, 3, 1, 199), (200, 20, 8, 2, 400), (100, 1, 10, 0.5, 99),
    (50, 5, 3, 1, 49), (50, 5, 3, 1, 100), (100, 5, 3, 4, 150), (30, 2, 1, 1, 40),
    (60, 5, 2, 2, 120), (400, 10, 5, 3, 200), (100, 3, 5, 2, 60)))
def test_the_plateau_in_closed_form_is_near_the_recursion(T, d, q, lr, N):
    counted = count_steps(0.5, T, d, q, lr, N)
    closed = plateau.plateau(T, d, q, lr, math.inf, N)
    assert math.isclose(counted, closed, rel_tol=0.025)
    noisy = plateau.plateau(T, d, q, lr, T * lr / 2, N)         # noise is in the way of W, not of V
    assert math.isclose(noisy - closed, flow_steps(0.5, T, d, q, lr, N), rel_tol=1e-9)


@pytest.mark.parametrize("n, K", ((64, 1), (32, 2)))
def test_noise_makes_the_plateau_of_train_py_longer_by_the_derived_factor(n, K):
    T, d, q, lr = 40, 3, 2, 1.0
    losses = np.mean([train.train(T=T, d=d, q=q, d_e=T, law="orthonormal", lr=lr, steps=600,
                                  batch=n, draws=K, fresh=True, seed=seed, evaluations=1,
                                  T_test=[], q_test=[])["loss"] for seed in range(3)], axis=0)
    smooth = np.convolve(losses, np.ones(30) / 30, "valid")
    steps = 15 + (smooth <= d / (4 * q)).argmax()
    delay = noise_delay(lr, T, n, K)
    assert math.isclose(steps / count_steps(0.5, T, d, q, lr, T), delay, rel_tol=0.04)
    assert math.isclose(steps, plateau.plateau(T, d, q, lr, n, T, K), rel_tol=0.06)


@pytest.mark.parametrize("held, least, greatest", [(False, 1.7, 2.3), (True, 0.9, 1.1)])
def test_noise_in_the_token_PE_block_is_what_makes_the_plateau_longer(held, least, greatest):
    settings = {"T": 50, "d_e": 100, "law": "orthonormal", "lr": 1.0, "batch": 32, "steps": 1600,
                "T_test": [], "q_test": [], "eval_sequences": 2}
    run = plateau.without_noise(0, **settings) if held else train.train(**settings)
    steps = half_step(*plots.smooth_loss(run), run["config"])
    exact = count_steps(0.5, 50, 5, 3, 1.0, 100)
    assert least < steps / exact < greatest         # by the formula 1.78 and 1


def test_without_noise_holds_the_token_PE_block_at_0_and_no_other():
    run = plateau.without_noise(0, 20, T=8, d=2, q=2, d_e=10, lr=1.0)
    assert not run["W"][:2, 2:].any() and run["W"][2:, 2:].all() and run["V"].all()
    assert np.isfinite(run["loss"]).all()


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "plateau.py", "two_numbers.py")
    _, _, *default = out.splitlines()[-1].split()
    assert default == ["170", "1051", "1049", "2523"]
