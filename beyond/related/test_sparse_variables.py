"""Tests of sparse_variables.py: `python -m pytest beyond/related/test_sparse_variables.py`."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

import sparse_variables as sv
from test_related import complex_step, headline

H = 1e-30                                                   # the complex step


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
    assert X.shape == (50, 400, 6) and X.dtype == y.dtype == np.float32
    assert np.abs(X.mean(axis=(0, 1)) - 0.5 ** (1 / 3)).max() < 5 * 0.41 / y.size ** 0.5


def test_correlations_with_the_label_and_the_heuristic_slope_are_as_derived():
    X, y = (z.astype(float) for z in sv.sample_and(np.random.default_rng(0), 1, 50_000, 6))
    corr = np.corrcoef(np.column_stack([X[0], y[0]]).T)[-1, :-1]
    expected = np.array([0.5098, 0.5098, 0.5098, 0, 0, 0])
    assert np.abs(corr - expected).max() < 5 / 50_000 ** 0.5
    # m corr^2 = 2 ln T: the change of m between T and 2 T
    assert 2 * np.log(2) / np.mean(corr[:3]) ** 2 == pytest.approx(sv.HEURISTIC_SLOPE, rel=0.02)
    assert sv.HEURISTIC_SLOPE == pytest.approx(5.33, abs=0.01)


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


def test_the_baseline_keeps_its_factor():
    params, X, y = random_problem()
    assert not sv.loss_and_grads(params, X, y, head=False)[1][2].any()
    assert (sv.train(X, y, head=False, steps=50)[2] == 1).all()


@pytest.mark.parametrize("T", [2, 100])
def test_softmax_moves_by_at_most_the_largest_change_of_a_logit(T):
    rng = np.random.default_rng(0)
    u = 3 * rng.normal(size=(1000, T))
    d = np.where(rng.random((1000, T)) < 0.5, 1, -1)
    for size in 1e-3, 1, 10:
        moved = np.abs(sv.softmax(u + size * d) - sv.softmax(u)).sum(axis=1)
        assert moved.max() <= size * (1 + 1e-9)


@pytest.mark.parametrize("T", [2, 100])
def test_two_equal_logits_reach_this_bound(T):
    u, d = np.full(T, -60.0), np.zeros(T)
    u[:2], d[:2] = 1000, (1, -1)
    assert np.abs(np.imag(sv.softmax(u + 1j * H * d)) / H).sum() == pytest.approx(1, rel=1e-12)


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


def test_in_successful_trials_the_largest_weights_are_on_S():
    (u, _, _), right = sv.run_trials(50, 24, 0)
    top = np.sort(np.argsort(u[right == 1], axis=1)[:, -3:], axis=1)
    assert 10 < len(top) < sv.TRIALS and (top == [0, 1, 2]).all()


@pytest.mark.parametrize("b, share", [(-2.75, 1), (-3.1, 0.5)])
def test_a_sample_is_labelled_1_if_f_is_positive(monkeypatch, b, share):
    # with equal weights on S, f = b + the number of ones on S
    params = [np.tile([0, 0, 0, -99.0], (5, 1)), np.full((5, 1), b), np.full((5, 1), 3.0)]
    monkeypatch.setattr(sv, "train", lambda X, y, head: params)
    right = sv.run_trials(4, 10, 0, trials=5)[1]
    assert np.ptp(right) == 0 and right[0] == pytest.approx(share, abs=5 * 0.5 / 1000 ** 0.5)


def test_no_test_sample_is_a_training_sample(monkeypatch):
    seen = []
    monkeypatch.setattr(sv, "train", lambda X, y, head: seen.append(X) or [
        np.zeros((len(X), 50)), np.zeros((len(X), 1)), np.ones((len(X), 1))])
    forward = sv.forward
    monkeypatch.setattr(sv, "forward", lambda params, X, head: seen.append(X) or forward(
        params, X, head))
    sv.run_trials(50, 24, 0)
    trained, tested = ({tuple(row) for row in X.reshape(-1, 50)} for X in seen)
    assert seen[1].shape == (1, 1000, 50)
    assert len(trained) == 24 * sv.TRIALS and len(tested) == 1000 and not trained & tested


def test_runs_repeat_and_seeds_differ():
    right = [sv.run_trials(50, 24, seed, trials=10)[1] for seed in (0, 0, 1)]
    assert np.array_equal(right[0], right[1]) and not np.array_equal(right[0], right[2])


def logistic(half, width=4.0):
    return 1 / (1 + np.exp(-(sv.SIZES - half) / width))


def test_half_point_weights_by_the_inverse_variance_and_ignores_0_and_1():
    rates = logistic(29.0)
    rates[0], rates[-1] = 0, 0.9
    m, z, w = sv.SIZES[1:], np.log(rates[1:] / (1 - rates[1:])), rates[1:] * (1 - rates[1:])
    m0, z0 = np.average(m, weights=w), np.average(z, weights=w)         # the normal equations
    slope = (w * (m - m0) * z).sum() / (w * (m - m0) ** 2).sum()
    assert sv.half_point(sv.SIZES, rates) == pytest.approx(m0 - z0 / slope, rel=1e-9)


@pytest.mark.parametrize("level, expected", [(0.8, 14.5), (0.5, 13), (0.85, 14.75), (0.95, 16)])
def test_crossing_is_the_first_and_interpolates(level, expected):
    sizes, rates = np.array([12, 14, 15, 16, 17]), np.array([0.3, 0.7, 0.9, 0.95, 0.2])
    assert sv.crossing(sizes, rates, level) == pytest.approx(expected)


def test_growth_recovers_a_line_and_its_errors_are_the_scatter_of_new_trials(monkeypatch):
    monkeypatch.setattr(sv, "TRIALS", 100)
    lengths, rng = (50, 200), np.random.default_rng(1)
    rates = np.array([logistic(4 * np.log2(T)) for T in lengths])
    points, errors, line, error, _ = sv.growth(sv.half_point, lengths, rates)
    assert points == pytest.approx(4 * np.log2(lengths), rel=1e-9)
    assert line == pytest.approx([4, 0], abs=1e-9)
    new = np.array([[sv.half_point(sv.SIZES, rng.binomial(100, row) / 100) for row in rates]
                    for _ in range(200)])
    # each standard deviation has a relative error of 1 / sqrt(2 * 200)
    assert errors == pytest.approx(new.std(axis=0), rel=4 * 0.07)
    assert error == pytest.approx(((new[:, 1] - new[:, 0]) / 2).std(), rel=4 * 0.07)


def test_R2_is_the_share_of_the_variance_on_the_line():
    rates = np.array([logistic(half) for half in (20, 30, 31)])
    assert sv.growth(sv.half_point, (50, 100, 200), rates)[4] == pytest.approx(1 - 13.5 / 74)


@pytest.mark.parametrize("point, rates, words", [
    (sv.half_point, 1.0, "between 0 and 1"), (sv.crossing, 0.5, "level=0.8"),
    (sv.crossing, 0.9, "rise")])
def test_rates_that_do_not_rise_are_refused(point, rates, words):
    with pytest.raises(ValueError, match=words):
        point(sv.SIZES, np.full(len(sv.SIZES), rates))


# what the file prints


@pytest.fixture
def printed():
    return headline("sparse_variables")


def numbers(text, start):
    """The numbers after `start` in the printed line that begins with it."""
    line, = [line for line in text.splitlines() if line.startswith(start)]
    return [float(x) for x in re.findall(r"\d+\.\d+|\d+", line.replace(start, ""))]


def test_samples_grow_like_log_T(printed):
    first, last = numbers(printed, "T =  50"), numbers(printed, "T = 800")
    assert last[0] / first[0] < 2.2 and last[2] / first[2] < 2.2
    slope50, error50, slope80, error80 = numbers(printed, "per doubling")
    assert 3 <= slope50 <= 7.5 and 3 <= slope80 <= 7.5
    assert 0.2 < error50 < 1.5 and 0.2 < error80 < 1.5
    assert first[0] == pytest.approx(23.1, abs=4 * first[1])
    assert last[0] == pytest.approx(42.3, abs=4 * last[1])


@pytest.mark.parametrize("T, linear", [(50, 0.82), (100, 0.73), (200, 0.66), (400, 0.61),
                                       (800, 0.57)])
def test_at_60_samples_the_head_is_right_and_the_baseline_is_not(printed, T, linear):
    baseline, error, head, _, on_S, successes = numbers(printed, f"T = {T:3d}")[4:]
    assert baseline == pytest.approx(linear, abs=0.04) and head > 0.98
    _, right = sv.run_trials(T, 60, 0, head=False)
    assert error == pytest.approx((right.var() / sv.TRIALS) ** 0.5, abs=6e-4)
    assert on_S == successes >= 40


def picture(monkeypatch):
    """What `figure` draws, with rates that are known, at more sizes, and simple weights."""
    def fake_rates(lengths):
        return np.array([[logistic(5 * np.log2(T), 2.5) for T in lengths]] * 2)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda canvas, path: drawn.append(canvas))
    monkeypatch.setattr(sv, "success_rates", fake_rates)
    monkeypatch.setattr(sv, "run_trials", lambda T, m, seed, head, trials:
                        (None, np.full(trials, min(1, 0.8 + m / 8000))))
    monkeypatch.setattr(sv, "SIZES", np.arange(12, 84, 4))
    monkeypatch.setattr(sv, "train", lambda X, y, steps: [np.linspace(0, steps / 100, 100)[None]])
    sv.figure("picture.png")
    return drawn[0]


def test_the_picture_shows_the_lengths_and_the_fits_of_the_printed_table(monkeypatch):
    rates, sizes, _, _ = picture(monkeypatch).axes
    assert [line.get_label() for line in rates.lines] == [f"T = {T}" for T in sv.LENGTHS]
    for line, T in zip(rates.lines, sv.LENGTHS):
        assert line.get_ydata() == pytest.approx(logistic(5 * np.log2(T), 2.5))
    labels = [text.get_text() for text in sizes.get_legend().get_texts()]
    success, _ = sv.success_rates(sv.LENGTHS)
    _, _, line, error, _ = sv.growth(sv.half_point, sv.LENGTHS, success)
    assert f"50 % succeed: slope {line[0]:.2f} ± {error:.2f}" in labels
    assert line == pytest.approx([5, 0], abs=1e-9)
