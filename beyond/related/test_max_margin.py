"""Tests of max_margin.py: `python -m pytest beyond/related/test_max_margin.py`."""

import re
from decimal import Decimal, localcontext

import numpy as np
import pytest

import max_margin as mm
from test_related import complex_step, headline


def problem(seed, n=3, T=4, d=5):
    """p (d,), K (n, T, d), G (n, T), all Gaussian."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in (d, (n, T, d), (n, T))]


def loss(p, K, G, kind="logistic"):
    """L by its definition; p and G may be complex."""
    s = np.exp(K @ p)
    f = (s * G).sum(axis=1) / s.sum(axis=1)
    return (np.log(1 + np.exp(-f)) if kind == "logistic" else -f).mean()


def difference(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def chain_rule(p, K, G):
    """dL/dp for l = -f as in a textbook, for arrays of Decimals."""
    s = np.array([[a.exp() for a in row] for row in K @ p])
    s = s / s.sum(axis=1, keepdims=True)
    f = (s * G).sum(axis=1, keepdims=True)
    return -((s * (G - f))[..., None] * K).sum(axis=(0, 1)) / len(K)


@pytest.mark.parametrize("seed", range(3))
def test_hard_margin_satisfies_the_kkt_conditions(seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((6, 4)) + 1.5
    w, a = mm.hard_margin(A)
    assert (A @ w >= 1 - 1e-9).all() and (a >= 0).all()
    assert a * (A @ w - 1) == pytest.approx(0, abs=1e-9)
    assert difference(A.T @ a, w) < 1e-12


def test_infeasible_constraints_are_refused():
    with pytest.raises(ValueError, match="infeasible"):
        mm.hard_margin(np.array([[2.0, 1], [-2, -1], [0, 1]]))


@pytest.mark.parametrize("K, alpha, expected", [
    (mm.THREE_KEYS, [0], [-0.1 / 1.01, 1 / 1.01]), (mm.THREE_KEYS, [1], [1, 0]),
    (mm.two_samples(10)[0], [1, 1], [1, 0])])
def test_the_svm_of_given_tokens_is_as_derived(K, alpha, expected):
    p, a, D = mm.token_svm(K, alpha)
    assert p == pytest.approx(np.array(expected), abs=1e-9)
    assert difference(np.tensordot(a, D), p) < 1e-12 and not a[np.arange(len(K)), alpha].any()


def test_local_optimality_depends_on_the_neighbours_in_every_sample():
    for G, expected in (mm.GLOBAL, [True, False, False]), (mm.LOCAL, [True, True, False]):
        assert [mm.locally_optimal(mm.THREE_KEYS, G, [t]) for t in range(3)] == expected
    for C, expected in (0.1, True), (-0.1, False):
        assert mm.locally_optimal(*mm.two_samples(C), [1, 1]) == expected


@pytest.mark.parametrize("kind", mm.LOG_SLOPE)
def test_the_gradient_is_that_of_the_complex_step(kind):
    p, K, G = problem(0)
    u, log_size = mm.descent_direction(p, K, G, kind)
    exact = complex_step(lambda q: loss(q, K, G, kind), p)
    assert difference(-np.exp(log_size) * u, exact) < 1e-12


def test_training_W_moves_W_p_as_training_p_with_a_larger_step():
    p, X, G = problem(0)
    W = np.random.default_rng(1).standard_normal((5, 5))
    dW = complex_step(lambda w: loss(p, X @ w, G), W)
    assert difference((W - dW) @ p, mm.descend(W @ p, X, G, p @ p, 1, normalized=False)[1]) < 1e-12
    moved = (W - dW / np.linalg.norm(dW)) @ p
    assert difference(moved, mm.descend(W @ p, X, G, np.linalg.norm(p), 1)[1]) < 1e-12


@pytest.mark.parametrize("scale, two_best", [(1, False), (300, False), (900, True)])
def test_the_direction_is_exact_however_large_p_is(scale, two_best):
    p, K, G = problem(scale, T=3, d=2)
    if two_best:
        p, K, G = np.array([1.0, 0]), np.array([[[1.0, 0], [1, 1], [0, 0]]]), np.array([[1, 1, 0]])
    p = scale * p
    with localcontext() as context:
        context.prec = 1000                           # enough digits for the textbook formula
        decimals = [np.vectorize(Decimal, otypes=[object])(x) for x in (p, K, G)]
        exact = chain_rule(*decimals)
        size = max(abs(exact))
        exact, log_size = np.array([float(g / size) for g in exact]), float(size.ln())
    u, log_u = mm.descent_direction(p, K, G, "linear")
    assert difference(mm.unit(u), -mm.unit(exact)) < 1e-15 * np.linalg.norm(p) + 1e-14
    assert log_u + np.log(abs(u).max()) == pytest.approx(log_size, rel=1e-12)


def test_descent_rests_where_nothing_pulls():
    K, G = np.array([[[1.0, 0], [0, 0]], [[-1, 0], [0, 0]]]), np.array([[1.0, 0], [1, 0]])
    for scores in G, 0 * G:
        assert not mm.descend(np.zeros(2), K, scores, steps=2).any()


@pytest.mark.parametrize("kind", mm.LOG_SLOPE)
@pytest.mark.parametrize("seed", [0, 2])               # with one and with two support vectors
def test_at_the_derived_offset_a_step_goes_along_the_ray(seed, kind):
    K, G = mm.clusters(np.random.default_rng(seed))
    G[:, 0] = [1, 2, 3]                               # so that samples pull with different weights
    p_mm, _, _ = mm.token_svm(K, [0, 0, 0])
    beside = mm.offset(K, G, [0, 0, 0], kind)
    u, _ = mm.descent_direction(1e5 * p_mm + beside, K, G, kind)
    assert abs(beside @ p_mm) < 1e-12
    assert mm.unit(u) == pytest.approx(mm.unit(p_mm), abs=1e-9)


def test_the_headline():
    rows = [line.split() for line in headline("max_margin").splitlines() if line]
    only_A, A_and_B = [row[-12:] for row in rows if row[0].startswith("[1")]
    assert only_A[::2] == ["A"] * 6 and A_and_B[::2] == ["A"] * 4 + ["B"] * 2
    assert min(map(float, only_A[1::2])) > 0.9995 and min(map(float, A_and_B[1::2])) > 0.9999

    table = [row for row in rows if len(row) == 5 and row[0] in "0123"]
    early, late, ratio = np.array([row[1:4] for row in table], float).T
    assert len(table) == 4 and (2e-4 < early).all() and (early < 3.8e-4).all()
    assert (3.5 < ratio).all() and (ratio < 4.7).all()
    assert [row[4] for row in table[:2]] == ["-", "-"]         # one support vector
    assert late[2:] == pytest.approx([float(row[4]) for row in table[2:]], rel=0.01)


@pytest.mark.parametrize("kind, C, expected", [("linear", 10, np.log(10) / 2),
                                               ("logistic", 10, -3.19209931),
                                               ("logistic", 100, -47.04078406)])
def test_the_offsets_of_experiment_c_are_as_derived(kind, C, expected):
    assert mm.offset(*mm.two_samples(C), [1, 1], kind) == pytest.approx([0, expected], abs=1e-8)
    printed, = re.findall(rf"{kind} +{C} +(\S+) +(\S+)", headline("max_margin"))
    assert list(map(float, printed)) == pytest.approx([expected] * 2, abs=1e-7)
