"""Tests of sparse_variables.py: `python -m pytest beyond/related/test_sparse_variables.py`."""

import re

import numpy as np
import pytest

import sparse_variables as sv
from test_related import complex_step, headline


def random_problem(seed=0, R=4, m=7, T=4):
    """Random params and a random sample in float64; R = T, so that a transposed du would fit."""
    rng = np.random.default_rng(seed)
    params = [rng.normal(size=(R, T)), rng.normal(size=(R, 1)), rng.normal(size=(R, 1))]
    X, y = sv.sample_and(rng, R, m, T)
    return params, X.astype(float), y.astype(float)


def test_labels_are_the_and_of_the_first_bits_and_balanced():
    X, y = sv.sample_and(np.random.default_rng(0), 50, 400, 6)
    assert np.array_equal(y == 1, (X[..., 0] == 1) & (X[..., 1] == 1) & (X[..., 2] == 1))
    assert abs(y.mean() - 0.5) < 4 * 0.5 / y.size ** 0.5
    assert np.abs(X.mean(axis=(0, 1)) - 0.5 ** (1 / 3)).max() < 5 * 0.41 / y.size ** 0.5


def test_correlations_with_the_label_and_the_heuristic_are_as_derived():
    X, y = (z.astype(float) for z in sv.sample_and(np.random.default_rng(0), 1, 50_000, 6))
    corr = np.corrcoef(np.column_stack([X[0], y[0]]).T)[-1, :-1]
    assert np.abs(corr[3:]).max() < 5 / 50_000 ** 0.5
    # m corr^2 = 2 ln T
    heuristic = 2 * np.log(sv.LENGTHS) / np.mean(corr[:3]) ** 2
    assert heuristic == pytest.approx(sv.HEURISTIC, rel=0.05)


def loss(params, X, y, head=True):
    """The logistic loss by its definition; params may be complex."""
    f, _ = sv.forward(params, X, head)
    return (np.log(1 + np.exp(f)) - y * f).mean(axis=1)


@pytest.mark.parametrize("head", [True, False])
def test_the_output_agrees_with_its_definition(head):
    (u, b, c), X, _ = random_problem()
    f, _ = sv.forward([u, b, c], X, head)
    for i in range(len(u)):
        weights = np.exp(u[i]) / np.exp(u[i]).sum() if head else u[i]
        expected = b[i] + c[i] * np.array([sample @ weights for sample in X[i]])
        assert f[i] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("head, which", [(True, 0), (True, 1), (True, 2), (False, 0), (False, 1)])
@pytest.mark.parametrize("point", ["start", "random", "trained"])
def test_each_gradient_equals_the_complex_step(head, which, point):
    params, X, y = random_problem()
    if point != "random":
        params = sv.train(X, y, head, steps=0 if point == "start" else 30)
    grads = sv.gradients(params, X, y, head)
    before, after = params[:which], params[which + 1:]
    check = complex_step(lambda w: loss([*before, w, *after], X, y, head).sum(), params[which])
    np.testing.assert_allclose(grads[which], check, atol=1e-12)
    assert head or not grads[2].any()                       # the baseline keeps its factor c


def test_correlations_are_those_of_the_samples_of_run_trials():
    found = 0
    rng = np.random.default_rng([3, 50, 30])
    for X, y in zip(*sv.sample_and(rng, 40, 30, 50)):
        vary = X.std(axis=0) > 0                            # a bit that is always 1 has none
        corr = np.zeros(50)
        corr[vary] = np.corrcoef(X[:, vary].T, y)[-1, :-1]
        found += set(np.argsort(corr)[-3:]) == {0, 1, 2}
    assert sv.correlations_find(50, 30, 3, trials=40) == found / 40 and 8 <= found <= 32


def test_two_steps_of_adam_are_as_computed_by_hand():
    X, y = np.zeros((1, 1, 1)), np.ones((1, 1))             # only b is trained: f = b
    g1, g2 = -0.5, 1 / (1 + np.exp(-0.1)) - 1
    m2 = (0.09 * g1 + 0.1 * g2) / 0.19
    v2 = (0.000999 * g1 ** 2 + 0.001 * g2 ** 2) / 0.001999
    assert sv.train(X, y, steps=1)[1][0, 0] == pytest.approx(0.1, rel=1e-7)
    assert sv.train(X, y, steps=2)[1][0, 0] == pytest.approx(0.1 - 0.1 * m2 / v2 ** 0.5, rel=1e-7)


def logistic(half):
    return 1 / (1 + np.exp(-(sv.SIZES - half) / 4))


def test_half_point_weights_by_the_inverse_variance_and_ignores_0_and_1():
    m, rates = np.array([12, 16, 20, 24]), np.array([0, 0.1, 0.3, 0.7])
    z, w = np.log(rates[1:] / (1 - rates[1:])), rates[1:] * (1 - rates[1:])
    m0, z0 = np.average(m[1:], weights=w), np.average(z, weights=w)     # the normal equations
    slope = (w * (m[1:] - m0) * z).sum() / (w * (m[1:] - m0) ** 2).sum()
    assert sv.half_point(m, rates) == pytest.approx(m0 - z0 / slope, rel=1e-9)


def test_growth_recovers_a_line_and_its_errors_are_the_scatter_of_new_trials(monkeypatch):
    monkeypatch.setattr(sv, "TRIALS", 100)
    lengths, rng = (50, 200), np.random.default_rng(1)
    rates = np.array([logistic(4 * np.log2(T)) for T in lengths])
    points, errors, line, error = sv.growth(lengths, rates)
    assert points == pytest.approx(4 * np.log2(lengths), rel=1e-9)
    assert line == pytest.approx([4, 0], abs=1e-9)
    new = np.array([[sv.half_point(sv.SIZES, rng.binomial(100, row) / 100) for row in rates]
                    for _ in range(200)])
    # each standard deviation has a relative error of 1 / sqrt(2 * 200)
    assert errors == pytest.approx(new.std(axis=0), rel=4 * 0.07)
    assert error == pytest.approx(((new[:, 1] - new[:, 0]) / 2).std(), rel=4 * 0.07)


def test_rates_of_1_alone_are_refused():
    with pytest.raises(ValueError):
        sv.half_point(sv.SIZES, np.ones(len(sv.SIZES)))


def numbers(start):
    """The numbers after `start` in the printed line that begins with it."""
    line, = [row for row in headline("sparse_variables").splitlines() if row.startswith(start)]
    return [float(x) for x in re.findall(r"\d+\.\d+|\d+", line.replace(start, ""))]


def test_the_headline():
    slopes = np.array(numbers("per doubling")[:4]).reshape(2, 2)
    assert (3 <= slopes[:, 0]).all() and (slopes[:, 0] <= 7.5).all()
    assert (0.2 < slopes[:, 1]).all() and (slopes[:, 1] < 1.5).all()
    rows = np.array([numbers(f"T = {T:3d}") for T in sv.LENGTHS])
    head, correlations, heuristic = rows[:, [0, 2, 4]].T
    assert (head + 3 < correlations).all()
    assert correlations == pytest.approx(heuristic, abs=3.5)
    rows = np.array([numbers(f"accuracy, T = {T:3d}") for T in sv.LENGTHS])
    baseline, error, head, head_error = rows.T
    assert (head > 0.98).all() and (baseline < 0.9).all() and (np.diff(baseline) < 0).all()
    assert (0.002 < error).all() and (error < 0.01).all() and (head_error < 0.01).all()
