"""Tests of max_margin.py: pytest test_max_margin.py."""

import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest

import max_margin as mm


def problem(seed, n=3, T=4, d=5):
    """p, v (d,), X (n, T, d), Y (n,), and the scores G (n, T)."""
    rng = np.random.default_rng(seed)
    p, v = rng.standard_normal((2, d))
    X, Y = rng.standard_normal((n, T, d)), rng.choice([-1, 1], n)
    return p, v, X, Y, Y[:, None] * (X @ v)


def gradient(p, K, G, kind="logistic"):
    u, log_size = mm.descent_direction(p, K, G, kind)
    return -np.exp(log_size) * u


def complex_step(function, x, h=1e-30):
    """The gradient of function(x), entry by entry."""
    grad = np.zeros(x.shape)
    for entry in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[entry] += 1j * h
        grad[entry] = function(moved).imag / h
    return grad


def difference(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def naive_gradient(p, K, G, exp=np.exp):
    """dL/dp for l = -f by the chain rule, as in a textbook; K, G, p may hold Decimals."""
    s = np.array([[exp(a) for a in row] for row in K @ p])
    s = s / s.sum(axis=1, keepdims=True)
    f = (s * G).sum(axis=1, keepdims=True)
    return -((s * (G - f))[..., None] * K).sum(axis=(0, 1)) / len(K)


@pytest.mark.parametrize("seed", range(6))
def test_hard_margin_satisfies_the_kkt_conditions(seed):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((6, 4)) + 1.5, rng.uniform(-1, 2, 6)
    w, a = mm.hard_margin(A, b)
    assert (A @ w >= b - 1e-9).all() and (a >= 0).all() and a.any()
    assert a * (A @ w - b) == pytest.approx(0, abs=1e-9)
    assert difference(A.T @ a, w) < 1e-12


def test_infeasible_constraints_are_refused():
    with pytest.raises(ValueError, match="infeasible"):
        mm.hard_margin(np.array([[2.0, 1], [-2, -1], [0, 1]]), np.array([1, -0.9, 1]))


@pytest.mark.parametrize("K, alpha, expected", [
    (mm.THREE_KEYS, [0], [-0.1 / 1.01, 1 / 1.01]), (mm.THREE_KEYS, [1], [1, 0]),
    (mm.labelled(1.5)[0], [1, 1, 1], [5 / 4, 1 / 4]), (mm.two_samples(10)[0], [1, 1], [1, 0])])
def test_the_svms_of_tokens_are_as_derived(K, alpha, expected):
    p, a, D = mm.token_svm(K, alpha)
    assert p == pytest.approx(np.array(expected), abs=1e-9)
    assert difference(np.tensordot(a, D), p) < 1e-12 and not a[np.arange(len(K)), alpha].any()


@pytest.mark.parametrize("height, expected", [(1.0, [4 / 3, 1 / 3]), (1.5, [1, 0])])
def test_the_svms_of_joint_training_are_as_derived(height, expected):
    p, v = mm.joint_svm(*mm.labelled(height), [1, 1, 1])
    assert p == pytest.approx(np.array(expected), abs=1e-9)
    assert v == pytest.approx(np.array([0, 1]), abs=1e-9)


def test_local_optimality_is_judged_by_the_neighbours_in_every_sample():
    for G, expected in (mm.GLOBAL, [True, False, False]), (mm.LOCAL, [True, True, False]):
        assert [mm.locally_optimal(mm.THREE_KEYS, G, [t]) for t in range(3)] == expected
    for C, expected in (0.1, True), (-0.1, False):
        assert mm.locally_optimal(*mm.two_samples(C), [1, 1]) == expected


@pytest.mark.parametrize("kind", mm.LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_p_is_that_of_the_complex_step(seed, kind):
    p, _, K, _, G = problem(seed)
    check = complex_step(lambda q: mm.loss(q, K, G, kind), p)
    assert difference(gradient(p, K, G, kind), check) < 1e-12


def joint_check(seed):
    """The first joint steps of p and v, and what they are by the complex step."""
    p, v, X, Y, G = problem(seed)
    moved = mm.joint_descend(p, v, X, Y, eta=0.5, steps=1)
    dp = complex_step(lambda q: mm.loss(q, X, G), p)
    dv = complex_step(lambda u: mm.loss(p, X, Y[:, None] * (X @ u)), v)
    return (moved[0] - p, -0.5 * mm.unit(dp)), (moved[1] - v, -0.5 * mm.unit(dv))


@pytest.mark.parametrize("seed", range(3))
def test_a_joint_step_goes_along_both_gradients(seed):
    for step, check in joint_check(seed):
        assert difference(step, check) < 1e-12


def test_training_W_moves_its_product_with_p_by_p_squared():
    p, _, X, _, G = problem(0)
    W = np.random.default_rng(1).standard_normal((5, 5))
    check = complex_step(lambda w: mm.loss(p, X @ w, G), W)
    dW = np.outer(gradient(W @ p, X, G), p)
    assert difference(dW, check) < 1e-12 and difference(dW.T, check) > 0.1
    assert difference((W - dW) @ p, mm.descend(W @ p, X, G, p @ p, 1, normalized=False)[1]) < 1e-12


@pytest.mark.parametrize("wrong", [np.zeros_like, np.negative, np.flip, lambda g: 1.01 * g,
                                   lambda g: g * (1 + 0.01 * (np.arange(len(g)) == 2))])
def test_wrong_gradients_are_rejected(wrong):
    p, _, K, _, G = problem(0)
    pair = gradient(p, K, G), complex_step(lambda q: mm.loss(q, K, G), p)
    for right, check in pair, *joint_check(0):
        assert difference(wrong(right), check) > 1e-3


@pytest.mark.parametrize("scale, two_best", [(1, 0), (30, 0), (300, 0), (900, 1)])
def test_the_direction_is_exact_at_any_norm(scale, two_best):
    p, _, K, _, G = problem(scale, T=3, d=2)
    if two_best:
        p, K, G = np.array([1.0, 0]), np.array([[[1.0, 0], [1, 1], [0, 0]]]), np.array([[1, 1, 0]])
    p = scale * p
    with localcontext(prec=1000):                     # enough digits for the textbook formula
        decimals = [np.vectorize(Decimal, otypes=[object])(x) for x in (p, K, G)]
        exact = naive_gradient(*decimals, Decimal.exp)
        size = max(abs(exact))
        exact, log_size = np.array([float(g / size) for g in exact]), float(size.ln())
    u, log_u = mm.descent_direction(p, K, G, "linear")
    assert difference(mm.unit(u), -mm.unit(exact)) < 1e-15 * np.linalg.norm(p) + 1e-14
    assert log_u + np.log(abs(u).max()) == pytest.approx(log_size, rel=1e-12)


def test_a_joint_step_is_exact_at_any_norm():
    X, Y = np.array([[[1.0, 0], [0, 0]], [[1, -1], [0, 0]]]), np.array([1, -1])
    p, v = np.array([5000.0, 0]), np.array([5000.0, 10000])
    # both f are 5000 and attention selects both tokens: the pulls (1, 0) and (-1, 1) are equal
    assert mm.joint_descend(p, v, X, Y, steps=1)[1] - v == pytest.approx([0, 0.1], abs=1e-12)


def test_descent_rests_where_nothing_pulls():
    K, G = np.array([[[1.0, 0], [0, 0]], [[-1, 0], [0, 0]]]), np.array([[1.0, 0], [1, 0]])
    for scores, normalized in (G, True), (0 * G, True), (0 * G, False):
        assert not mm.descend(np.zeros(2), K, scores, steps=2, normalized=normalized).any()


@pytest.mark.parametrize("G, tokens, least", [(mm.GLOBAL, [0] * 6, 0.9995),
                                              (mm.LOCAL, [0, 0, 0, 0, 1, 1], 0.9999)])
def test_every_start_turns_to_a_locally_optimal_token(G, tokens, least):
    for y, token in zip(mm.STARTS, tokens):
        p = mm.descend(np.array([0.0, y]), mm.THREE_KEYS, G)[-1]
        assert mm.cosine(p, mm.token_svm(mm.THREE_KEYS, [token])[0]) > least


@pytest.mark.parametrize("seed", range(4))
def test_if_normalized_the_norm_grows_as_eta_t_and_one_minus_cosine_falls_as_its_square(seed):
    K, G = mm.clusters(np.random.default_rng(seed))
    p_mm, _, _ = mm.token_svm(K, [0, 0, 0])
    path = mm.descend(np.zeros(2), K, G, steps=2000)
    plain = mm.descend(np.zeros(2), K, G, eta=1.0, steps=200, normalized=False)
    assert 19.5 < np.linalg.norm(path[200]) <= 20 and 3.4 < np.linalg.norm(plain[-1]) < 3.9
    early, late = (1 - mm.cosine(path[t], p_mm) for t in (1000, 2000))
    assert 2e-4 < early < 3.8e-4 and 3.5 < early / late < 4.7


@pytest.mark.parametrize("kind", mm.LOSSES)
@pytest.mark.parametrize("seed", range(4))
def test_at_the_derived_offset_each_step_goes_along_the_ray(seed, kind):
    K, G = mm.clusters(np.random.default_rng(seed))
    G[:, 0] = [1, 2, 3]                               # so that samples pull with different weights
    p_mm, _, _ = mm.token_svm(K, [0, 0, 0])
    beside = mm.offset(K, G, [0, 0, 0], kind)
    u, _ = mm.descent_direction(3000 * p_mm + beside, K, G, kind)
    assert abs(beside @ p_mm) < 1e-12
    assert mm.unit(u) == pytest.approx(mm.unit(p_mm), abs=1e-9)


@pytest.mark.parametrize("kind, C, expected", [
    ("linear", 10, np.log(10) / 2), ("linear", 100, np.log(100) / 2), ("logistic", 1, 0),
    ("logistic", 10, -3.19209931), ("logistic", 100, -47.04078406)])
def test_the_offsets_of_experiment_d_are_as_derived(kind, C, expected):
    K, G = mm.two_samples(C)
    predicted = mm.offset(K, G, [1, 1], kind)
    assert predicted == pytest.approx(np.array([0, expected]), abs=1e-8)
    p = mm.descend(np.zeros(2), K, G, kind=kind)[-1]
    assert p[0] > 80 and p[1] == pytest.approx(predicted[1], abs=1e-9)


def test_the_textbook_gradient_agrees_at_first_and_then_follows_rounding_noise():
    K, G = mm.clusters(np.random.default_rng(2))
    p_mm, _, _ = mm.token_svm(K, [0, 0, 0])
    naive = [np.zeros(2)]
    for _ in range(1000):
        naive.append(naive[-1] - 0.1 * mm.unit(naive_gradient(naive[-1], K, G)))
    path = mm.descend(np.zeros(2), K, G, kind="linear")
    assert path[:100] == pytest.approx(np.array(naive[:100]), rel=1e-10, abs=1e-12)
    assert 1 - mm.cosine(naive[-1], p_mm) > 1e-2 and 1 - mm.cosine(path[-1], p_mm) < 5e-4


@pytest.mark.parametrize("height, other", [(1.0, [1, 0]), (1.5, [5, 1])])
def test_joint_descent_turns_to_both_svms(height, other):
    X, Y = mm.labelled(height)
    p, v = mm.joint_descend(np.array([0.0, -1]), np.array([-1.0, 0]), X, Y)
    p_mm, v_mm = mm.joint_svm(X, Y, [1, 1, 1])
    assert mm.cosine(p, p_mm) > 0.99999 and mm.cosine(v, v_mm) > 0.99999
    assert mm.cosine(p, np.array(other)) < 0.985


@pytest.mark.parametrize("call, match", [
    (lambda p, K, G: mm.descend(p, K, G[:, :2]), r"G.shape=\(3, 2\)"),
    (lambda p, K, G: mm.joint_descend(p[1:], p, K, G[:, 0]), r"p.shape=\(4,\)"),
    (lambda p, K, G: mm.token_svm(K, [0, 0]), r"shape \(3,1\)"),
    (lambda p, K, G: mm.token_svm(K[:, [0, 0]], [0, 0, 0]), "zero rows")])
def test_what_does_not_fit_is_named(call, match):
    p, _, K, _, G = problem(0)
    with pytest.raises(ValueError, match=match):
        call(p, K, G)


def test_the_file_runs_alone_in_an_empty_folder(tmp_path):
    (tmp_path / "alone.py").write_text(Path(mm.__file__).read_text())
    done = subprocess.run([sys.executable, "-I", "alone.py"], cwd=tmp_path, capture_output=True,
                          text=True, env={})
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("[1.  0.9 0. ]    A and B  A 0.99999  A 0.99999  A 1.00000  A 0.99999  B 0.99996",
                 "2            3.22e-04   8.02e-05   4.011              8.02e-05",
                 "logistic   100  -47.0407841  -47.0407841"):
        assert line in done.stdout


def test_an_unwritable_picture_is_one_message_before_the_work(tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "missing" / "a.png")
    monkeypatch.setattr(sys, "argv", ["max_margin.py", path])
    monkeypatch.setattr(mm, "descend", lambda *arguments, **options: pytest.fail("worked first"))
    with pytest.raises(SystemExit, match="^2$"):
        mm.main()
    out, err = capsys.readouterr()
    assert out == "" and err.count("error:") == 1 and f"{path!r} cannot be written" in err
