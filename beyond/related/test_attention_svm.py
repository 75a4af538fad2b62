"""Tests of attention_svm.py: `python -m pytest beyond/related/test_attention_svm.py`."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest
from matplotlib.figure import Figure

import attention_svm as svm


def random_problem(seed, n=3, T=4, d=5, scale=1.0):
    """[K, Q] (d, d) each, X (n, T, d), Z (n, d), G (n, T), all Gaussian."""
    normal = np.random.default_rng(seed).standard_normal
    K, Q = np.sqrt(scale) * normal((2, d, d))
    return [K, Q], normal((n, T, d)), normal((n, d)), normal((n, T))


def loss(W, X, Z, G):
    """L by its definition; W may be complex."""
    s = np.exp(np.einsum("itd,de,ie->it", X, W, Z))
    f = (s * G).sum(axis=1) / s.sum(axis=1)
    return np.log(1 + np.exp(-f)).mean()


def complex_step(function, x, h=1e-30):
    """The gradient of function(x), entry by entry."""
    grad = np.zeros(x.shape)
    for entry in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[entry] += 1j * h
        grad[entry] = function(moved).imag / h
    return grad


def unit(x):
    return x / (np.linalg.norm(x) or 1)


def difference(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def some_constraints(seed):
    """A of a random instance and its best tokens."""
    X, Z, G = svm.random_instances(np.random.default_rng(seed), 1, n=4, T=4, d=5)
    return svm.constraints(X[0], Z[0], G[0].argmax(axis=1))


def frobenius_margin(A):
    w, a = svm.hard_margin(A.reshape(len(A), -1), np.ones(len(A)))
    return w.reshape(A.shape[1:]), a


def direction_of_W(seed, wrong=lambda u: u):
    """unit(-dL/dW) at W = K Q^T by the code, and by the complex step."""
    (K, Q), *data = random_problem(seed)
    check = complex_step(lambda W: loss(W, *data), K @ Q.T)
    return wrong(unit(svm.descent_direction(K @ Q.T, *data))), -unit(check)


def step_of_K_and_Q(seed, wrong_K=lambda u: u, wrong_Q=lambda u: u):
    """K Q^T after one step by the code, and by the complex steps of K and of Q."""
    (K, Q), *data = random_problem(seed)
    u_K = -unit(complex_step(lambda K: loss(K @ Q.T, *data), K))
    u_Q = -unit(complex_step(lambda Q: loss(K @ Q.T, *data), Q))
    moved, = svm.descend([K, Q], *data, [1], eta=5)
    return moved, (K + 5 * wrong_K(u_K)) @ (Q + 5 * wrong_Q(u_Q)).T


@pytest.mark.parametrize("pair", [direction_of_W, step_of_K_and_Q])
@pytest.mark.parametrize("seed", range(2))
def test_the_gradients_are_those_of_the_complex_step(seed, pair):
    assert difference(*pair(seed)) < 1e-12


@pytest.mark.parametrize("wrong", [np.zeros_like, np.negative, np.flipud, np.transpose,
                                   lambda u: u * (1 + 0.01 * (np.arange(5) == 2)[:, None])])
def test_wrong_gradients_are_rejected(wrong):
    assert difference(*direction_of_W(0, wrong)) > 1e-4
    assert difference(*step_of_K_and_Q(0, wrong_K=wrong)) > 1e-4
    assert difference(*step_of_K_and_Q(0, wrong_Q=wrong)) > 1e-4


def chain_rule(W, X, Z, G):
    """-n dL/dW as in a textbook, for arrays of Decimals."""
    total = 0 * W
    for x, z, g in zip(X, Z, G):
        s = np.array([logit.exp() for logit in x @ (W @ z)])
        s = s / s.sum()
        total = total + np.outer((s * (g - s @ g)) @ x, z) / (1 + (s @ g).exp())
    return total


@pytest.mark.parametrize("scale", [1, 30, 300])
def test_the_direction_is_exact_at_any_norm(scale):
    (K, Q), *data = random_problem(scale, n=2, T=3, d=2, scale=scale)
    with localcontext() as context:
        context.prec = 1000                           # enough digits for the textbook formula
        exact = chain_rule(*[np.vectorize(Decimal, otypes=[object])(x) for x in (K @ Q.T, *data)])
        exact = (exact / abs(exact).max()).astype(float)
    direction = svm.descent_direction(K @ Q.T, *data)
    assert difference(unit(direction), unit(exact)) < 1e-14 * scale


def test_runs_side_by_side_do_not_mix():
    weights, *data = zip(*[random_problem(seed, scale=30.0 ** seed) for seed in range(3)])
    together = svm.descend([np.stack(w) for w in zip(*weights)], *map(np.stack, data), [0, 7])
    for r in range(3):
        alone = svm.descend(weights[r], *[x[r] for x in data], [0, 7])
        assert together[:, r] == pytest.approx(alone, rel=1e-9)


def test_W_moves_by_eta_at_each_step_and_is_kept_at_the_steps_asked_for():
    (W, _), *data = random_problem(0)
    path = svm.descend([W], *data, [0, 1, 2])
    assert (path[0] == W).all() and (svm.descend([W], *data, [2]) == path[2:]).all()
    assert np.linalg.norm(np.diff(path, axis=0), axis=(1, 2)) == pytest.approx(0.1, rel=1e-12)


def test_starts_are_uniform():
    R, d = 4000, 3
    X, Z, G = svm.random_instances(np.random.default_rng(1), R, 1, 2, d)
    W, KQ = svm.descend_both(np.random.default_rng(0), R, X, Z, G, [0])
    assert 0.99 < abs(W).max() * np.sqrt(d) <= 1 and abs(W.mean()) < 5 / np.sqrt(3 * d * W.size)
    assert W.var() == pytest.approx(1 / (3 * d), rel=0.03)
    assert KQ.var() == pytest.approx(1 / (9 * d), rel=0.05)


def test_random_instances_are_on_spheres_and_scored_by_one_head():
    X, Z, G = svm.random_instances(np.random.default_rng(0), 50, d=4)
    assert (X.shape, Z.shape, G.shape) == ((50, 6, 8, 4), (50, 6, 4), (50, 6, 8))
    heads = (np.linalg.pinv(X) @ G[..., None])[..., 0]                       # Y_i v
    for x in X, Z, heads:
        assert np.linalg.norm(x, axis=-1) == pytest.approx(1, rel=1e-9)
    signs = (heads * heads[:, :1]).sum(axis=-1)                              # Y_i Y_1
    assert abs(signs) == pytest.approx(1, rel=1e-9) and abs(signs[:, 1:].mean()) < 0.3
    assert abs(X.mean(axis=(0, 1, 2))).max() < 5 / np.sqrt(4 * 2400)


@pytest.mark.parametrize("seed", range(2))
def test_the_frobenius_svm_satisfies_the_kkt_conditions(seed):
    A = some_constraints(seed)
    W, a = frobenius_margin(A)
    assert np.tensordot(A, W, 2).min() == pytest.approx(1, abs=1e-9) and (a >= 0).all()
    assert a * (np.tensordot(A, W, 2) - 1) == pytest.approx(0, abs=1e-9)
    assert W == pytest.approx(np.tensordot(a, A, 1), abs=1e-11)


@pytest.mark.parametrize("seed", range(2))
def test_the_nuclear_svm_is_certified(seed):
    A = some_constraints(seed)
    W, a = svm.nuclear_margin(A)
    assert np.tensordot(A, W, 2).min() == pytest.approx(1, abs=1e-9) and (a >= 0).all()
    assert np.linalg.norm(np.tensordot(a, A, 1), 2) == pytest.approx(1, abs=1e-12)
    assert a.sum() == pytest.approx(np.linalg.norm(W, "nuc"), rel=1.001e-8)
    assert np.linalg.norm(W, "nuc") < np.linalg.norm(frobenius_margin(A)[0], "nuc")


@pytest.mark.parametrize("seed", range(2))
def test_one_sample_of_two_tokens_has_one_svm_for_both_norms(seed):
    delta, z, other = np.random.default_rng(seed).standard_normal((3, 4))
    A = svm.constraints(np.stack([other, other + delta])[None], z[None], [1])
    expected = np.outer(delta, z) / (delta @ delta * (z @ z))
    assert frobenius_margin(A)[0] == pytest.approx(expected, abs=1e-12)
    assert svm.nuclear_margin(A)[0] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("degrees", [60, 120])
def test_the_svms_of_the_two_samples_are_as_derived(degrees):
    X, Z, G, W_F, W_nuc = svm.two_samples(np.radians(degrees))
    c = max(np.cos(np.radians(degrees / 2)), np.sin(np.radians(degrees / 2)))
    assert X[0, 0] @ X[1, 0] == pytest.approx(np.cos(np.radians(degrees)), abs=1e-12)
    A = svm.constraints(X, Z, G.argmax(axis=1))
    W, a = svm.nuclear_margin(A)
    assert frobenius_margin(A)[0] == pytest.approx(W_F, abs=1e-9)
    assert W == pytest.approx(W_nuc, abs=1e-6) and a == pytest.approx(np.sqrt(0.5) / c, abs=1e-6)
    assert np.linalg.norm(W_F) == pytest.approx(np.sqrt(2), rel=1e-12)
    assert np.linalg.norm(W_nuc, "nuc") == pytest.approx(np.sqrt(2) / c, rel=1e-12)
    assert svm.cosine(3 * W_F, 2 * W_nuc) == pytest.approx(c, rel=1e-12)


def test_without_its_first_singular_pair_a_product_stays_at_the_saddle():
    X, Z, G, _, W_nuc = svm.two_samples(np.radians(60))
    e = np.array([0.5, -np.sqrt(0.75)])                       # direction of delta_1 - delta_2
    K, Q = np.outer(e, [1, 0]), np.outer([1, -1], [1, 0])
    assert svm.logits(X, Z, K @ Q.T)[:, 0] == pytest.approx(0.5, rel=1e-12)   # it separates, too
    stays, = svm.descend([K, Q], X, Z, G, [100])
    assert svm.cosine(stays, K @ Q.T) == pytest.approx(1, abs=1e-12)
    early, late = svm.descend([K + 0.1, Q + 0.1], X, Z, G, [100, 1000])       # a little of it
    assert svm.cosine(early, W_nuc) < 0.4 and svm.cosine(late, W_nuc) > 0.9


@pytest.mark.parametrize("solver", [frobenius_margin, svm.nuclear_margin])
def test_infeasible_constraints_are_refused(solver):
    with pytest.raises(ValueError, match="infeasible"):
        solver(np.array([np.eye(2), -np.eye(2)]))


def test_the_file_works_alone(tmp_path):
    shutil.copy(svm.__file__, tmp_path)
    done = subprocess.run([sys.executable, "-I", "attention_svm.py", "--help"], cwd=tmp_path,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "picture" in done.stdout


@pytest.fixture(scope="module")
def printed():
    """What the headline prints for steps 200 and 1000, and its two tables (2, 2, 8)."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        svm.demo(steps=(200, 1000))
    rows = re.findall(r"^ +\d+" + 4 * r" +([\d.]+) \(([\d.]+)\)" + "$", out.getvalue(), re.M)
    return out.getvalue(), np.array(rows, float).reshape(2, 2, 8)


def test_the_headline_of_the_two_samples_is_as_predicted(printed):
    text, (table, _) = printed                        # average and least of each column
    assert "predicted 1.632993, solver 1.632993, proven to be at least 1.632993" in text
    assert table[1, 0] > 0.9999 and table[1, 1] > 0.999 and table[1, 6] > 0.998
    assert table[1, [2, 4]] == pytest.approx(np.cos(np.pi / 6), abs=0.005)
    counts = [int(n) for n in re.search(r"in (\d+), (\d+) of the 20", text).groups()]
    # of 1000 starts, 12.6 % are below 0.998 at step 1000; 4 standard errors of 20 are 0.30
    assert counts[1] / 20 == pytest.approx(0.874, abs=0.30) and counts[0] <= counts[1]


def test_the_headline_of_random_instances_is_typical(printed):
    text, (_, table) = printed
    # means and standard deviations over 16 draws of 20 instances; the tolerance is 5 of them
    for column, step, expected, deviation in [
            (0, 0, 0.876, 0.0155), (0, 1, 0.9865, 0.0073), (2, 1, 0.855, 0.0136),
            (4, 1, 0.845, 0.0091), (6, 0, 0.934, 0.0124), (6, 1, 0.977, 0.0053)]:
        assert table[step, column] == pytest.approx(expected, abs=5 * deviation)
    assert table[1, 1] > 0.87                         # least of 180 instances: .925
    ranks = re.search(r"W_F ([\d.]+), W_nuc ([\d.]+)\.\n", text).groups()
    assert float(ranks[0]) == 6 and float(ranks[1]) == pytest.approx(3.13, abs=0.5)


def test_large_dimensions_select_the_best_tokens():
    small, large = np.array([svm.best_selected(d, 200) for d in (3, 20)])
    assert 0 < small.min() and small.max() < 0.65 and large.min() > 0.55
    assert (large - small).min() > 0.1


LIMITS = np.random.default_rng(0).standard_normal((2, 20, 10, 10))


def picture(monkeypatch):
    """What `figure` draws, if W and K Q^T are their SVMs, LIMITS, and shares are d/100 and d/50."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda canvas, path: drawn.append(canvas))
    monkeypatch.setattr(svm, "svms", lambda X, Z, W: LIMITS)
    monkeypatch.setattr(svm, "descend_both", lambda rng, R, X, Z, G, steps:
                        [np.array([W[:, :X.shape[-1], :X.shape[-1]]] * len(steps)) for W in LIMITS])
    monkeypatch.setattr(svm, "best_selected", lambda d, step: [d / 100, d / 50])
    svm.figure("picture.png")
    return drawn[0]


def test_the_bars_are_standard_errors_over_the_instances_drawn(monkeypatch):
    *_, share = (canvas := picture(monkeypatch)).axes
    monkeypatch.undo()
    drawn, both = [], svm.descend_both
    monkeypatch.setattr(svm, "descend_both", lambda rng, R, *data: drawn.append(R) or both(
        rng, R, *data))
    svm.best_selected(3, 1)
    [R] = drawn
    assert f"of {R} instances; bars: one standard error" in canvas.get_supxlabel()
    drawn = np.outer((0.01, 0.02), (3, 5, 10, 20, 50))                       # two shares of each d
    for container, shares in zip(share.containers, drawn, strict=True):
        for p, ((_, low), (_, high)) in zip(shares, container.lines[2][0].get_segments()):
            error = (p * (1 - p) / R) ** 0.5
            assert (low, high) == pytest.approx((p - error, p + error))


def test_the_picture_compares_each_matrix_with_its_own_svm(monkeypatch):
    plane, angle, spectrum, share = picture(monkeypatch).axes
    for line in angle.lines:
        own = line.get_label() in ("$W$ to $W_F$", "$K Q^T$ to $W_{nuc}$")
        assert (abs(line.get_ydata()) < 1e-9).all() == own == (line.get_linestyle() == "-")
        assert (line.get_marker() == "s") == line.get_label().startswith("$K")
    for dashed, points, W in zip(spectrum.lines[::2], spectrum.lines[1::2], LIMITS):
        sigma = np.linalg.svd(W, compute_uv=False)
        assert points.get_ydata() == pytest.approx((sigma.T / sigma[:, 0]).mean(axis=1))
        assert dashed.get_ydata() == pytest.approx(points.get_ydata())
    for bars, last in zip(share.containers, (0.5, 1)):
        assert bars.lines[0].get_ydata()[-1] == last
