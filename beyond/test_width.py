"""Tests of width.py:  python -m pytest beyond/test_width.py

Statistical tests have a fixed seed, and allow 5 standard errors.
"""

import math

import numpy as np
import pytest

import width
from conftest import all_encodings, follow, run_alone
from two_numbers import descend

import plots
import sts
import train


@pytest.mark.parametrize("T, d_e, q", ((8, 15, 3), (30, 6, 2), (5, 4, 1), (12, 9, 5)))
def test_counts_have_the_moments_of_single_scores(T, d_e, q):
    """In each statistic of a draw, for two values of a, with encodings that are drawn in full."""
    rng, draws = np.random.default_rng(0), 6000
    gaps, selected, counts = width.sample_scores(rng, T, d_e, q, draws)
    assert (counts.sum(axis=1) == T).all() and (counts[:, 0] > 0).all()
    E = sts.positional_encoding("rademacher", T, d_e, rng, draws)
    single = (E * E[:, :q].sum(axis=1, keepdims=True)).sum(axis=-1)
    for a in 1.0, 5.0:
        P = sts.softmax(a * single)
        e = np.exp(a * gaps)
        first, squares = e[selected[:, 0]] / (counts @ e), counts @ e ** 2 / (counts @ e) ** 2
        for full, short in ((P[:, 0], first), ((P * P).sum(axis=1), squares),
                            (P[:, 0] * (P * P).sum(axis=1), first * squares),
                            (np.ptp(single[:, :q], axis=1), np.ptp(gaps[selected], axis=1))):
            error = math.sqrt((full.var() + short.var()) / draws)
            assert abs(full.mean() - short.mean()) <= 5 * error + 1e-12


def test_a_billion_positions_cost_what_a_thousand_do():
    gaps, selected, counts = width.sample_scores(np.random.default_rng(0), 10 ** 9, 600, 3, 100)
    assert (counts.sum(axis=1) == 10 ** 9).all() and counts.nbytes < 10 ** 6
    v = gaps * 600
    mean = counts @ v / 10 ** 9
    variance = (counts @ v ** 2 / 10 ** 9 - mean ** 2).mean()
    assert math.isclose(variance, 3 * 600, rel_tol=0.02)        # of d_e times a score, q d_e


@pytest.mark.parametrize("K", (1, 4))
def test_the_stochastic_loss_is_that_of_the_model(K):
    """At 3 W*, 1.4 V*, with other encodings for each batch of 8 sequences."""
    rng, T, d, q, d_e = np.random.default_rng(0), 12, 2, 3, 20
    W, V = sts.ground_truth(d, d_e)
    losses = []
    for _ in range(300):
        X, y = sts.sample_sts(rng, 8, T, d, q)
        E = sts.positional_encoding("rademacher", T, d_e, rng, K)
        losses.append(sts.loss(3 * W, 1.4 * V, X, y, E))
    L, error = width.predict_loss(rng, 3, 1.4, T, d, q, d_e, K)
    assert error <= 0.005 * L
    assert abs(np.mean(losses) - L) < 5 * math.hypot(np.std(losses) / math.sqrt(300), error)


@pytest.mark.parametrize("K", (1, math.inf))
def test_descent_with_random_signs_is_two_numbers(K):
    """With the scores of all encodings; K = inf is the expectation inside the loss."""
    T, d_e, d, q, lr = 3, 2, 2, 2, 3.0
    E = all_encodings("rademacher", T, d_e)
    v = np.rint(d_e * (E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0]).astype(int)
    below = (v.max(axis=1, keepdims=True) - v) // 2                     # steps on the lattice
    steps = np.arange(below.max() + 1)
    scores = -2 / d_e * steps, below[:, :q], (below[:, :, None] == steps).sum(axis=1)
    path = descend(lr, 15, d_e, T, d, q, slopes=lambda a, alpha, T, d, q: (
        width.stochastic_slopes(a, alpha, scores, d, q, K)))
    follow(path, E, d, q, lr, [sts.ground_truth(d, d_e)[0]], inside=K > 1)


def test_the_standard_error_is_the_deviation_of_repeated_predictions():
    """Of 60 predictions that stop after one portion of draws; their deviation is known to 9 %."""
    rng = np.random.default_rng(0)
    found = [width.predict_loss(rng, 3, 1.4, 30, 5, 3, 60, 16, 1e9) for _ in range(60)]
    L, errors = np.transpose(found)
    assert 0.65 < errors.mean() / L.std(ddof=1) < 1.5


@pytest.mark.parametrize("K", (1, 4, 16))
def test_the_noise_floor_is_the_least_loss(K):
    scores = width.sample_scores(np.random.default_rng(0), 20, 30, 3, 60)
    L, a, alpha = width.noise_floor(scores, 5, 3, K)
    here, _, dalpha = width.stochastic_slopes(a, alpha, scores, 5, 3, K)
    assert math.isclose(here, L, rel_tol=1e-12) and abs(dalpha) < 1e-9
    for other_a in np.geomspace(0.1, 150, 60):
        for other_alpha in np.geomspace(0.5, 10, 12):
            other = width.stochastic_slopes(other_a, other_alpha, scores, 5, 3, K)[0]
            assert other >= L * (1 - 1e-3)


@pytest.mark.parametrize("q, has_one", ((1, False), (2, False), (3, True), (4, True)))
def test_one_draw_has_a_noise_floor_for_three_selected_tokens_or_more(q, has_one):
    scores = width.sample_scores(np.random.default_rng(0), 20, 170, q, 100)
    share = width.noise_floor(scores, 2 * q, q)[0]
    assert share > 0.03 if has_one else 0 <= share < 1e-4


@pytest.mark.parametrize("T, q, K, trained", ((20, 3, 16, True), (100, 3, 1, False),
                                              (100, 4, 16, False)))
def test_the_needed_width_is_where_the_share_crosses(T, q, K, trained):
    """On either side of it, with (a, alpha) from other draws than the error."""
    rng = np.random.default_rng(0)
    value = width.needed_width(T, q, 0.1, K, rng, trained)
    for d_e, sign in (math.floor(0.88 * value), 1), (math.ceil(1.12 * value), -1):
        _, a, alpha = width.noise_floor(width.sample_scores(rng, T, d_e, q, 2000), 1, q,
                                        1 if trained else K)
        share, _ = width.predict_loss(rng, a, alpha, T, 2 * q, q, d_e, K, 0.02)
        assert sign * (share - 0.1) > 0 and abs(share - 0.1) < 0.06


@pytest.mark.parametrize("T", (1000, 10 ** 6))
def test_naming_one_position_takes_log2_T_dimensions_and_a_constant(T):
    """If C is Poisson with mean l, 1/(1 + C) has the mean (1 - e^-l)/l: 0.42 more for 10 %."""
    needed = width.needed_width(T, 1, 0.1, 16, np.random.default_rng(0), True)
    assert needed == math.ceil(math.log2(T) + 0.42)


def test_each_arm_is_what_its_name_says():
    for name, settings in width.ARMS.items():
        c, (T, size) = train.Settings(**settings), map(int, name.split()[-2:])
        assert c.T == T and (c.d_e == size if c.model == "attention" else c.hidden == [size])
        assert c.model == "fcn" or c.eval_draws == width.GROWTH[name[6:].rsplit(maxsplit=2)[0]][0]


def test_the_width_is_read_where_the_error_is_a_tenth(monkeypatch):
    """If errors are 0.1 at 100 units of a net, and 0.1 (52 / d_e)^2 for attention."""
    monkeypatch.setattr(plots, "trained", lambda arms: {
        name: [{"config": train.Settings(**arm)}] for name, arm in arms.items()})
    monkeypatch.setattr(width, "end_error", lambda run, T, q, n: (
        0.1 * (52 / run["config"].d_e) ** 2 if run["config"].model == "attention"
        else 0.1 + 0.002 * (95 - run["config"].hidden[0])))
    assert width.trained_widths("one draw")[10] == pytest.approx([52])
    assert width.trained_widths("net")[20] == pytest.approx([95])


def test_the_file_runs_alone(tmp_path):
    out = run_alone(tmp_path, "width.py")
    assert "q = 3, K =  1   0.1083" in out and "q = 2, K =  1   0.0000" in out
