"""Tests of max_margin.py: `python -m pytest beyond/related/test_max_margin.py`."""

import re

import numpy as np
import pytest

import max_margin as m


def loss(p, K, G):
    """L by its definition; p may be complex."""
    s = np.exp(K @ p)
    return np.log(1 + np.exp(-(s @ G) / s.sum()))


def test_the_direction_is_that_of_steepest_descent_in_each_of_several_runs():
    normal = np.random.default_rng(0).standard_normal
    p, K, G = normal((3, 4)), normal((3, 5, 4)), normal((3, 5))
    slopes = [[loss(p[r] + h, K[r], G[r]).imag for h in 1e-30j * np.eye(4)] for r in range(3)]
    np.testing.assert_allclose(m.direction(p, K, G), -m.unit(slopes), rtol=1e-12)


@pytest.mark.parametrize("p", [[2000, 1900], [2000, -100]])             # token 1 or 2 is nearer
def test_the_direction_is_exact_far_out_and_equal_scores_do_not_pull(p):
    K, G = np.array([[1, 0], [0, 1], [0, 0]]), np.array([1, 0, 1])
    np.testing.assert_allclose(m.direction(np.array(p), K, G), m.unit([1, -1]), rtol=1e-12)


def test_p_takes_steps_of_length_eta_and_rests_where_nothing_pulls():
    path = m.descend(m.STARTS, m.KEYS, m.SCORES[0], steps=7, eta=0.3)
    assert path.shape == (8, 6, 2) and (path[0] == m.STARTS).all()
    np.testing.assert_allclose(np.linalg.norm(np.diff(path, axis=0), axis=-1), 0.3)
    assert (m.descend(m.STARTS, m.KEYS, np.ones(3), steps=2) == m.STARTS).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_svm_has_the_largest_margin_of_all_directions(seed):
    K = np.random.default_rng(seed).standard_normal((6, 2))
    phi = np.linspace(0, 2 * np.pi, 100_000)
    for t in range(6):
        D, p = K[t] - np.delete(K, t, axis=0), m.svm(K, t)
        margin = (D @ [np.cos(phi), np.sin(phi)]).min(axis=0).max().clip(0)
        assert abs(margin - (0 if p is None else 1 / np.linalg.norm(p))) < 3e-4
        assert p is None or (D @ p).min() == pytest.approx(1, abs=1e-8)


def test_svms_by_hand():
    np.testing.assert_allclose(m.svm(np.eye(3), 0), [2 / 3, -1 / 3, -1 / 3])
    np.testing.assert_allclose(m.svm(m.KEYS, 0), m.KEYS[0] / 1.01)      # support vector C
    assert m.svm(np.array([[1, 0], [1, 0], [0, 0]]), 0) is None         # equal keys


@pytest.mark.parametrize("G, expected", [([1, 0.9, 0], [1, 1, 0]), ([1, 0.9, 0.9], [1, 0, 0]),
                                         ([2, 0, 1], [1, 0, 0]), ([0, 0, 1], [0, 0, 1])])
def test_a_token_is_locally_optimal_if_it_beats_all_its_support_vectors(G, expected):
    assert m.locally_optimal(m.KEYS, np.array(G)).tolist() == expected


def test_the_headline(capsys):
    m.demo()
    three, random = capsys.readouterr().out.split("60 random samples")
    runs = re.findall(r"([ABC]) (\d\.\d\d)", three)
    assert "".join(token for token, _ in runs) == "AAAABB" + "AAAAAA" and " A and B " in three
    assert max(float(angle) for _, angle in runs) < 1.5
    grows, runs, _, hits, best, _, angle, worst, length, _, moved = map(
        float, re.findall(r"[\d.]*\d", random)[5:])
    assert runs == 240 and 200 < grows < 230 and grows - 2 <= hits <= grows and 80 < best < 150
    assert angle < 0.2 and worst < 3 and moved < 0.1 and 1 < length < 20
