"""Tests of attention_svm.py: `python -m pytest beyond/related/test_attention_svm.py`."""

import re
from decimal import Decimal, localcontext

import numpy as np
import pytest

import attention_svm as svm
from test_related import complex_step, headline


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


def unit(x):
    return x / np.linalg.norm(x)


@pytest.mark.parametrize("seed", range(2))
def test_steps_go_against_the_gradients_of_the_complex_step(seed):
    (K, Q), *data = random_problem(seed)
    dW = complex_step(lambda W: loss(W, *data), K @ Q.T)
    dK = complex_step(lambda K: loss(K @ Q.T, *data), K)
    dQ = complex_step(lambda Q: loss(K @ Q.T, *data), Q)
    moved, = svm.descend([K @ Q.T], *data, [1], eta=5)
    np.testing.assert_allclose(moved, K @ Q.T - 5 * unit(dW), atol=1e-11)
    moved, = svm.descend([K, Q], *data, [1], eta=5)
    np.testing.assert_allclose(moved, (K - 5 * unit(dK)) @ (Q - 5 * unit(dQ)).T, atol=1e-11)


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
    np.testing.assert_allclose(unit(direction), unit(exact), atol=1e-14 * scale)


def test_runs_side_by_side_do_not_mix():
    weights, *data = zip(*[random_problem(seed, scale=30.0 ** seed) for seed in range(3)])
    together = svm.descend([np.stack(w) for w in zip(*weights)], *map(np.stack, data), [0, 7])
    for r in range(3):
        alone = svm.descend(weights[r], *[x[r] for x in data], [0, 7])
        np.testing.assert_allclose(together[:, r], alone, rtol=1e-9)


def test_random_instances_are_on_spheres_scored_by_one_head_and_start_within_1_over_root_d():
    rng = np.random.default_rng(0)
    X, Z, G = svm.random_instances(rng, 50, d=4)
    heads = (np.linalg.pinv(X) @ G[..., None])[..., 0]                       # Y_i v
    for x in X, Z, heads:
        np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1)
    np.testing.assert_allclose(abs((heads * heads[:, :1]).sum(axis=-1)), 1)  # Y_i Y_1
    W, _ = svm.descend_both(rng, 50, X, Z, G, [0])
    assert 0.48 < abs(W).max() <= 0.5


@pytest.mark.parametrize("norm, dual", [("fro", "fro"), ("nuc", 2)])
@pytest.mark.parametrize("seed", range(2))
def test_both_svms_are_certified(seed, norm, dual):
    X, Z, G = svm.random_instances(np.random.default_rng(seed), 1, n=4, T=4, d=5)
    A = svm.constraints(X[0], Z[0], G[0].argmax(axis=1))
    W, a = svm.margin(A, norm)
    assert np.tensordot(A, W, 2).min() == pytest.approx(1, abs=1e-9) and (a >= 0).all()
    assert np.linalg.norm(np.tensordot(a, A, 1), dual) == pytest.approx(1, abs=1e-12)
    assert a.sum() == pytest.approx(np.linalg.norm(W, norm), rel=1.001e-8)


@pytest.mark.parametrize("phi", [0.5, 1.0, 1.5])
def test_the_svms_of_the_two_samples_are_as_derived(phi):
    X, Z, G, W_F, W_nuc = svm.two_samples(phi)
    c = np.cos(phi / 2)
    A = svm.constraints(X, Z, G.argmax(axis=1))
    np.testing.assert_allclose(svm.margin(A, "fro")[0], W_F, atol=1e-4)
    np.testing.assert_allclose(svm.margin(A, "nuc")[0], W_nuc, atol=1e-4)
    assert np.linalg.norm(W_F) == pytest.approx(np.sqrt(2), rel=1e-12)
    assert np.linalg.norm(W_nuc, "nuc") == pytest.approx(np.sqrt(2) / c, rel=1e-12)
    assert svm.cosine(3 * W_F, 2 * W_nuc) == pytest.approx(c, rel=1e-12)


@pytest.mark.parametrize("norm", ["fro", "nuc"])
def test_infeasible_constraints_are_refused(norm):
    with pytest.raises(ValueError, match="infeasible"):
        svm.margin(np.array([np.eye(2), -np.eye(2)]), norm)


def test_without_its_first_singular_pair_a_product_stays_at_the_saddle():
    X, Z, G, _, W_nuc = svm.two_samples(np.radians(60))
    e = np.array([0.5, -np.sqrt(0.75)])                       # direction of delta_1 - delta_2
    K, Q = np.outer(e, [1, 0]), np.outer([1, -1], [1, 0])
    assert svm.logits(X, Z, K @ Q.T)[:, 0] == pytest.approx(0.5, rel=1e-12)   # it separates, too
    stays, = svm.descend([K, Q], X, Z, G, [100])
    assert svm.cosine(stays, K @ Q.T) == pytest.approx(1, abs=1e-12)
    early, late = svm.descend([K + 0.1, Q + 0.1], X, Z, G, [100, 1000])       # a little of it
    assert svm.cosine(early, W_nuc) < 0.4 and svm.cosine(late, W_nuc) > 0.9


def test_the_headline():
    out = headline("attention_svm")
    rows = re.findall(r"^ +\d+" + 4 * r" +([\d.]+) \(([\d.]+)\)" + "$", out, re.M)
    two, random = np.array(rows, float)[[2, 6]]       # average, least of each column at the end
    assert "predicted 1.632993, solver 1.632993, proven to be at least 1.632993" in out
    ranks = re.search(r"W_F (\S+), W_nuc (\S+)\.\n", out).groups()
    assert float(ranks[0]) > 5.5 and float(ranks[1]) < 4.5
    assert int(re.search(r"above 0.998 in (\d+) of the 20 starts", out)[1]) >= 17
    assert two[0] > 0.9999 and two[6] > 0.998         # W to W_F, K Q^T to W_nuc
    np.testing.assert_allclose(two[[2, 4]], np.cos(np.pi / 6), atol=0.005)
    assert random[0] > 0.999 and 0.98 < random[6] < 0.997 and random[[2, 4]].max() < 0.9
