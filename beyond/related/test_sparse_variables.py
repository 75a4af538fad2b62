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


def test_correlations_with_the_label_and_the_heuristic_slope_are_as_derived():
    X, y = (z.astype(float) for z in sv.sample_and(np.random.default_rng(0), 1, 50_000, 6))
    corr = np.corrcoef(np.column_stack([X[0], y[0]]).T)[-1, :-1]
    assert np.abs(corr[3:]).max() < 5 / 50_000 ** 0.5
    # m corr^2 = 2 ln T: the change of m between T and 2 T
    assert 2 * np.log(2) / np.mean(corr[:3]) ** 2 == pytest.approx(sv.HEURISTIC_SLOPE, rel=0.02)


@pytest.mark.parametrize("head", [True, False])
def test_output_and_loss_agree_with_their_definitions(head):
    (u, b, c), X, y = random_problem()
    f, _ = sv.forward([u, b, c], X, head)
    L, _ = sv.loss_and_grads([u, b, c], X, y, head)
    for i in range(len(u)):
        weights = np.exp(u[i]) / np.exp(u[i]).sum() if head else u[i]
        expected = b[i] + c[i] * np.array([sample @ weights for sample in X[i]])
        assert f[i] == pytest.approx(expected, rel=1e-12)
        losses = np.logaddexp(0, (1 - 2 * y[i]) * expected)
        assert L[i] == pytest.approx(losses.mean(), rel=1e-12)


@pytest.mark.parametrize("head, which", [(True, 0), (True, 1), (True, 2), (False, 0), (False, 1)])
@pytest.mark.parametrize("point", ["start", "random", "trained"])
def test_each_gradient_equals_the_complex_step(head, which, point):
    params, X, y = random_problem()
    if point != "random":
        params = sv.train(X, y, head, steps=0 if point == "start" else 30)
    _, grads = sv.loss_and_grads(params, X, y, head)
    before, after = params[:which], params[which + 1:]
    check = complex_step(lambda w: sv.loss_and_grads([*before, w, *after], X, y, head)[0].sum(),
                         params[which])
    np.testing.assert_allclose(grads[which], check, atol=1e-12)
    assert head or not grads[2].any()                       # the baseline keeps its factor c


def test_softmax_moves_by_at_most_the_largest_change_of_a_logit():
    rng = np.random.default_rng(0)
    u, d = 3 * rng.normal(size=(1000, 100)), rng.choice([-1, 1], (1000, 100))
    u[0, 2:] = -60                                          # two logits are nearly all, equal,
    u[0, :2], d[0, :2] = 0, (1, -1)                         # and move apart: this is the bound
    moved = np.abs(sv.softmax(u + 1e-3 * d) - sv.softmax(u)).sum(axis=1)
    assert moved.max() == moved[0] == pytest.approx(1e-3, rel=1e-6)


def test_two_steps_of_adam_are_as_computed_by_hand():
    X, y = np.zeros((1, 1, 1)), np.ones((1, 1))             # only b is trained: f = b
    g1, g2 = -0.5, 1 / (1 + np.exp(-0.1)) - 1
    m2 = (0.09 * g1 + 0.1 * g2) / 0.19
    v2 = (0.000999 * g1 ** 2 + 0.001 * g2 ** 2) / 0.001999
    assert sv.train(X, y, steps=1)[1][0, 0] == pytest.approx(0.1, rel=1e-7)
    assert sv.train(X, y, steps=2)[1][0, 0] == pytest.approx(0.1 - 0.1 * m2 / v2 ** 0.5, rel=1e-7)


def test_training_fits_its_sample_and_stays_in_float32():
    X, y = sv.sample_and(np.random.default_rng(0), 5, 40, 50)
    params = sv.train(X, y)
    assert all(w.dtype == np.float32 for w in params)
    assert sv.loss_and_grads(params, X, y)[0].max() < 0.2


def test_seeds_differ():
    first, second = [sv.run_trials(50, 24, seed, trials=10)[1] for seed in (0, 1)]
    assert (first != second).any()


def logistic(half):
    return 1 / (1 + np.exp(-(sv.SIZES - half) / 4))


def test_half_point_weights_by_the_inverse_variance_and_ignores_0_and_1():
    m, rates = np.array([12, 16, 20, 24]), np.array([0, 0.1, 0.3, 0.7])
    z, w = np.log(rates[1:] / (1 - rates[1:])), rates[1:] * (1 - rates[1:])
    m0, z0 = np.average(m[1:], weights=w), np.average(z, weights=w)     # the normal equations
    slope = (w * (m[1:] - m0) * z).sum() / (w * (m[1:] - m0) ** 2).sum()
    assert sv.half_point(m, rates) == pytest.approx(m0 - z0 / slope, rel=1e-9)


@pytest.mark.parametrize("level, expected", [(0.8, 14.5), (0.5, 13), (0.85, 14.75), (0.95, 16)])
def test_crossing_is_the_first_and_interpolates(level, expected):
    sizes, rates = np.array([12, 14, 15, 16, 17]), np.array([0.3, 0.7, 0.9, 0.95, 0.2])
    assert sv.crossing(sizes, rates, level) == pytest.approx(expected)


def test_growth_recovers_a_line_and_its_errors_are_the_scatter_of_new_trials(monkeypatch):
    monkeypatch.setattr(sv, "TRIALS", 100)
    lengths, rng = (50, 200), np.random.default_rng(1)
    rates = np.array([logistic(4 * np.log2(T)) for T in lengths])
    points, errors, line, error, R2 = sv.growth(sv.half_point, lengths, rates)
    assert points == pytest.approx(4 * np.log2(lengths), rel=1e-9)
    assert [*line, R2] == pytest.approx([4, 0, 1], abs=1e-9)
    new = np.array([[sv.half_point(sv.SIZES, rng.binomial(100, row) / 100) for row in rates]
                    for _ in range(200)])
    # each standard deviation has a relative error of 1 / sqrt(2 * 200)
    assert errors == pytest.approx(new.std(axis=0), rel=4 * 0.07)
    assert error == pytest.approx(((new[:, 1] - new[:, 0]) / 2).std(), rel=4 * 0.07)


@pytest.mark.parametrize("point, rate", [(sv.half_point, 1), (sv.crossing, 0.5), (sv.crossing, 1)])
def test_rates_that_do_not_rise_are_refused(point, rate):
    with pytest.raises(ValueError):
        point(sv.SIZES, np.full(len(sv.SIZES), rate))


def numbers(start):
    """The numbers after `start` in the printed line that begins with it."""
    line, = [row for row in headline("sparse_variables").splitlines() if row.startswith(start)]
    return [float(x) for x in re.findall(r"\d+\.\d+|\d+", line.replace(start, ""))]


def test_the_headline():
    slope50, error50, slope80, error80 = numbers("per doubling")
    assert 3 <= slope50 <= 7.5 and 3 <= slope80 <= 7.5
    assert 0.2 < error50 < 1.5 and 0.2 < error80 < 1.5
    assert min(numbers("R^2 of the line")) > 0.9
    rows = np.array([numbers(f"T = {T:3d}") for T in sv.LENGTHS])
    baseline, _, head, _, on_S, successes = rows[:, 4:].T
    assert (head > 0.98).all() and (baseline < 0.9).all() and (np.diff(baseline) < 0).all()
    assert (on_S == successes).all() and (successes >= 40).all()
