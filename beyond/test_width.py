"""Tests of width.py:  python -m pytest beyond/test_width.py

Statistical tests have a fixed seed, and allow 5 standard errors.
"""

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import sts
import width


# Scores


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
                            (P[:, 0] ** 2, first ** 2),
                            (P[:, 0] * (P * P).sum(axis=1), first * squares),
                            (single.max(axis=1) - single.mean(axis=1), -counts @ gaps / T),
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


# The loss, its slopes, its errors, its least value


SCORES = width.sample_scores(np.random.default_rng(0), 20, 30, 3, 60)


@pytest.mark.parametrize("K", (1, 4))
def test_the_stochastic_loss_is_that_of_the_model(K):
    """At 3 W*, 1.4 V*, with other encodings for each batch of 8 sequences."""
    rng, T, d, q, d_e = np.random.default_rng(0), 12, 2, 3, 20
    W, V = sts.ground_truth(d, d_e)
    losses = []
    for _ in range(300):
        X, y = sts.sample_sts(rng, 8, T, d, q)
        E = sts.positional_encoding("rademacher", T, d_e, rng, K)
        losses.append(sts.loss_and_grads(3 * W, 1.4 * V, X, y, E)[0])
    L, error = width.predict_loss(rng, 3, 1.4, T, d, q, d_e, K)
    assert error <= 0.005 * L
    assert abs(np.mean(losses) - L) < 5 * math.hypot(np.std(losses) / math.sqrt(300), error)


@pytest.mark.parametrize("K", (1, 16, math.inf))
def test_the_standard_error_is_the_deviation_of_repeated_predictions(K):
    """Of 60 predictions that stop after one portion of draws; their deviation is known to 9 %."""
    rng = np.random.default_rng(0)
    found = [width.predict_loss(rng, 3, 1.4, 30, 5, 3, 60, K, 1e9) for _ in range(60)]
    L, errors = np.transpose(found)
    assert 0.65 < errors.mean() / L.std(ddof=1) < 1.5


@pytest.mark.parametrize("K", (1, 4, 16))
def test_the_noise_floor_is_the_least_loss(K):
    L, a, alpha = width.noise_floor(SCORES, 5, 3, K)
    here, _, dalpha = width.stochastic_slopes(a, alpha, SCORES, 5, 3, K)
    assert math.isclose(here, L, rel_tol=1e-12) and abs(dalpha) < 1e-9
    for other_a in np.geomspace(0.1, 150, 60):
        for other_alpha in np.geomspace(0.5, 10, 12):
            other = width.stochastic_slopes(other_a, other_alpha, SCORES, 5, 3, K)[0]
            assert other >= L * (1 - 1e-3)


@pytest.mark.parametrize("d_e", (300, 640, 1200))
def test_the_lower_one_of_two_minima_is_found(d_e):
    """For large T the loss of one draw has two of them as a function of a."""
    scores = width.sample_scores(np.random.default_rng(0), 10 ** 9, d_e, 3, 100)
    grid = np.geomspace(5, 50, 200)
    length, S, _, _ = width.mean_attention(width.attention_moments(grid, scores), 10 ** 9, 3, 1)
    shares = 1 - S ** 2 / (3 * length)
    minima = np.flatnonzero((shares[1:-1] < shares[:-2]) & (shares[1:-1] < shares[2:])) + 1
    assert len(minima) == 2
    assert math.isclose(width.noise_floor(scores, 6, 3)[0], shares.min(), rel_tol=1e-3)


def test_averaging_lowers_the_noise_floor_and_definition_5_has_none():
    floors = [width.noise_floor(SCORES, 5, 3, K)[0] for K in (1, 4, 16, math.inf)]
    assert floors[0] > 2 * floors[1] > 4 * floors[2] > 0 and abs(floors[3]) < 1e-5


@pytest.mark.parametrize("q, has_one", ((1, False), (2, False), (3, True), (4, True)))
def test_one_draw_has_a_noise_floor_for_three_selected_tokens_or_more(q, has_one):
    scores = width.sample_scores(np.random.default_rng(0), 20, 170, q, 100)
    share = width.noise_floor(scores, 2 * q, q)[0]
    assert share > 0.03 if has_one else 0 <= share < 1e-4


# The width


@pytest.mark.parametrize("T, q, S", ((10, 3, 0.4), (1000, 1, 0.01), (50, 5, 0.9)))
def test_the_share_of_the_expectation_is_a_sum_over_positions(T, q, S):
    """P is S/q on y and even elsewhere; the best alpha solves a least-squares problem."""
    selected = np.arange(T) < q
    P = np.where(selected, S / q, (1 - S) / (T - q))
    alpha = np.linalg.lstsq(P[:, None], selected / q, rcond=None)[0]
    share = ((alpha * P - selected / q) ** 2).sum() * q
    assert math.isclose(width.expectation_share(S, T, q), share, rel_tol=1e-10)


@pytest.mark.parametrize("T, d_e, q", ((4, 2, 1), (5, 3, 1), (4, 3, 2), (6, 2, 2), (5, 2, 3),
                                       (5, 3, 3)))
def test_the_attention_in_the_limit_is_that_under_all_signs(T, d_e, q):
    signs = np.array(list(itertools.product((-1, 1), repeat=T * d_e))).reshape(-1, T, d_e)
    scores = (signs * signs[:, :q].sum(axis=1, keepdims=True)).sum(axis=-1)
    P = scores == scores.max(axis=1, keepdims=True)
    S = (P[:, :q].sum(axis=1) / P.sum(axis=1)).mean()
    assert math.isclose(width.top_attention(T, q, d_e), S, rel_tol=2e-5)


@pytest.mark.parametrize("T, d_e, q, K", ((30, 5, 1, 1), (30, 5, 1, 16), (30, 9, 2, 16),
                                          (30, 9, 2, math.inf)))
def test_the_birthday_share_is_that_of_sampled_scores_in_the_limit(T, d_e, q, K):
    rng = np.random.default_rng(0)
    L, error = width.predict_loss(rng, 20 * d_e, 1.0, T, 2 * q, q, d_e, K, 0.02)
    assert abs(width.birthday_share(T, q, d_e, K) - L) < 5 * error


def test_naming_one_position_takes_log2_T_dimensions_and_a_constant():
    for K, constant in (16, 0.42), (1, 2.2):
        widths = [width.birthday_width(T, 1, 0.1, K) - math.log2(T) for T in (10 ** 3, 10 ** 6)]
        np.testing.assert_allclose(widths, constant, atol=0.03)
    widths = [width.birthday_width(T, 2, 0.1, 16) for T in (10 ** 3, 10 ** 6, 10 ** 9)]
    assert (2 < np.diff(widths) / math.log2(1000)).all()
    assert (np.diff(widths) / math.log2(1000) < 2.2).all()


@pytest.mark.parametrize("T, q", ((20, 1), (10 ** 6, 1), (20, 2), (10 ** 6, 2)))
def test_the_needed_width_is_the_birthday_width(T, q):
    value, error = width.needed_width(T, q, 0.1, 16, np.random.default_rng(0), True, 8000)
    assert 0 < error < 0.02 * value
    assert abs(value - width.birthday_width(T, q, 0.1, 16)) < 5 * error


@pytest.mark.parametrize("T, q, K, trained", ((20, 3, 16, True), (100, 3, 1, False),
                                              (100, 4, 16, False)))
def test_the_needed_width_is_where_the_share_crosses(T, q, K, trained):
    """On either side of it, with (a, alpha) from other draws than the error."""
    rng = np.random.default_rng(0)
    value, error = width.needed_width(T, q, 0.1, K, rng, trained, 8000)
    assert 0 < error < 0.03 * value
    for d_e, sign in ((math.floor(0.9 * value), 1), (math.ceil(1.12 * value), -1)):
        _, a, alpha = width.noise_floor(width.sample_scores(rng, T, d_e, q, 2000), 1, q,
                                        1 if trained else K)
        share, deviation = width.predict_loss(rng, a, alpha, T, 2 * q, q, d_e, K, 0.02)
        assert sign * (share - 0.1) > 0 and abs(share - 0.1) < 0.06


def test_the_error_of_a_needed_width_is_the_deviation_of_repeated_ones():
    rng = np.random.default_rng(0)
    found = [width.needed_width(20, 2, 0.1, 16, rng, True, 1) for _ in range(10)]
    values, errors = np.transpose(found)
    assert 0.5 < errors.mean() / values.std(ddof=1) < 2


def test_the_expectation_needs_the_least_and_one_draw_the_most():
    rng = np.random.default_rng(0)
    exact, trained, many, one = (width.needed_width(100, 3, 0.1, K, rng, trained, 3000)[0]
                                 for K, trained in ((math.inf, False), (math.inf, True),
                                                    (16, False), (1, False)))
    assert 1.5 * exact < many < one / 3 and 1.5 * exact < trained
    low, high = (width.expectation_share(width.top_attention(100, 3, d_e), 100, 3)
                 for d_e in (math.floor(exact), math.ceil(exact)))
    assert high < 0.1 < low
    sampled = width.noise_floor(width.sample_scores(rng, 100, math.floor(exact), 3, 4000),
                                6, 3, math.inf)[0]
    assert math.isclose(sampled, low, rel_tol=0.2)      # so the best a is near its limit


def test_width_stands_alone(tmp_path):
    shutil.copy(HERE / "width.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "width.py"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
