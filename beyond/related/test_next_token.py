"""Tests of next_token.py: `python -m pytest beyond/related/test_next_token.py`."""

import numpy as np
import pytest
from numpy.random import default_rng

import next_token as nt
from test_related import complex_step, headline


def random_samples(seed, n=7, T=5, K=4, d=3):
    """W, E, x, y with T > K, so that tokens repeat; the label may be the query."""
    rng = default_rng(seed)
    x = rng.integers(K, size=(n, T))
    return (rng.standard_normal((d, d)), rng.standard_normal((K, d)), x,
            x[np.arange(n), rng.integers(T, size=n)])


def instance(name):
    """E, x, y: made by hand, or random and large enough that W_fin is not 0."""
    return nt.hand_made() if name == "hand" else nt.random_instance(default_rng(name), n=12)[1:]


def parts(E, x, y):
    return (*nt.directional_part(E, x, y), nt.finite_part(E, x, y))


@pytest.mark.parametrize("name", ["hand", 0, 1])
def test_w_svm_satisfies_kkt_with_equalities(name):
    E, x, y = instance(name)
    W_svm, basis = nt.directional_part(E, x, y)
    _, same = nt.priority_graph(x, y, len(E))
    pairs = [(i, j, s[-1]) for s, i in zip(x, y) for j in s if j != i]
    rows = np.array([np.outer(E[i] - E[j], E[k]).ravel() for i, j, k in pairs])
    inside = np.array([same[k, i, j] for i, j, k in pairs])
    equal, above = rows[inside], rows[~inside]
    assert np.allclose(equal @ W_svm.ravel(), 0, atol=1e-9)
    assert (above @ W_svm.ravel() >= 1 - 1e-9).all()
    assert np.allclose(basis @ basis.T, np.eye(np.linalg.matrix_rank(equal)))
    assert np.allclose(nt.project(basis, equal), equal)
    off = above - above @ np.linalg.pinv(equal) @ equal            # (m, d * d), orthogonal to equal
    _, a = nt.hard_margin(off)
    assert np.allclose(off.T @ a, W_svm.ravel(), rtol=0, atol=1e-9) and (a >= 0).all()
    assert np.allclose(a * (above @ W_svm.ravel() - 1), 0, atol=1e-9)


@pytest.mark.parametrize("E, x, y", [
    ([[1, 0], [-1, 0], [0, 0], [0, 1]], [[0, 1, 3], [0, 1, 3], [0, 2, 3], [1, 2, 3]], [0, 1, 0, 1]),
    ([[1, 0], [0, 0], [-1, 0], [0, 1]], [[0, 1, 3], [1, 2, 3]], [1, 1])])
def test_contradictory_constraints_are_refused(E, x, y):
    with pytest.raises(ValueError):
        nt.directional_part(np.array(E, float), np.array(x), np.array(y))


@pytest.mark.parametrize("seed", range(3))
def test_components_are_those_of_paths(seed):
    _, E, x, y = random_samples(seed, n=9, T=3, K=6)
    edge, same = nt.priority_graph(x, y, 6)
    for k in range(6):
        pairs = {(i, j) for s, i in zip(x, y) if s[-1] == k for j in s if j != i}
        assert {tuple(p) for p in np.argwhere(edge[k])} == pairs
        paths = pairs | {(i, i) for i in range(6)}
        while more := {(i, m) for i, j in paths for l, m in paths if j == l} - paths:
            paths |= more
        both = {(i, j) for i, j in paths if (j, i) in paths}
        assert {tuple(p) for p in np.argwhere(same[k])} == both


def test_the_loss_sums_attention_over_copies_of_the_label():
    W, E, x, y = random_samples(0)
    losses = []
    for sequence, label in zip(x, y):
        e = [np.exp(E[token] @ W @ E[sequence[-1]]) for token in sequence]
        losses.append(-np.log(sum(e_t for e_t, t in zip(e, sequence) if t == label) / sum(e)))
    assert np.isclose(nt.loss_and_grad(W, E, x, y)[0], np.mean(losses), rtol=1e-13)


@pytest.mark.parametrize("where", ["zero", "random", "trained"])
def test_the_gradient_is_the_complex_step(where):
    W, E, x, y = random_samples(0)
    W = {"zero": 0 * W, "random": W, "trained": nt.train(W, E, x, y, [20], eta=0.1)[0]}[where]
    exact = complex_step(lambda W: nt.loss_and_grad(W, E, x, y)[0], W)
    np.testing.assert_allclose(nt.loss_and_grad(W, E, x, y)[1], exact, rtol=1e-10, atol=1e-13)


def test_both_parts_of_the_hand_made_instance_are_those_derived():
    W_svm, _, W_fin = parts(*nt.hand_made())
    half, query = np.log(3) / 2, np.eye(5)[0]
    assert np.allclose(W_svm, np.outer([-1, 1, 1, 0, -1], query), rtol=0, atol=1e-9)
    assert np.allclose(W_fin, np.outer([0, half, -half, 0, 0], query), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name, scale", [("hand", 1), (0, 1), (2, 4)])
def test_w_fin_is_stationary_in_s_fin(name, scale):
    E, x, y = instance(name)
    _, basis, W_fin = parts(scale * E, x, y)
    _, same = nt.priority_graph(x, y, len(E))

    def loss_in_scc(W):
        return sum(np.log(sum(np.exp(scale**2 * (E[j] - E[i]) @ W @ E[s[-1]])
                              for j in s if same[s[-1], i, j])) for s, i in zip(x, y))

    assert np.allclose(nt.project(basis, W_fin), W_fin, rtol=0, atol=1e-9)
    for V in basis.reshape(-1, *W_fin.shape):
        assert abs(loss_in_scc(W_fin + 1e-30j * V).imag / 1e-30) < 1e-10


def test_without_the_cycle_one_token_is_retrieved():
    E, x, y = nt.hand_made()
    x, y = np.delete(x, 3, axis=0), np.delete(y, 3)                   # [2, 1, 3, 0] -> 2 is row 3
    W_svm, basis, W_fin = parts(E, x, y)
    assert not len(basis) and not W_fin.any()
    assert np.allclose(W_svm[:, 0], [-1.2, 1.8, 0.8, -0.2, -1.2], rtol=0, atol=1e-9)
    W = nt.train(np.zeros((5, 5)), E, x, y, [1000])[0]
    assert nt.attention(W, E[x])[0, 0] > 0.99


def test_train_takes_gradient_steps_and_returns_those_asked_for():
    W, E, x, y = random_samples(0)
    path = [W]
    for _ in range(3):
        path.append(path[-1] - 0.2 * nt.loss_and_grad(path[-1], E, x, y)[1])
    assert np.allclose(nt.train(W, E, x, y, [1, 3], eta=0.2), path[1::2], rtol=1e-13)
    step = nt.train(W, E, x, y, [1], eta=0.2, normalized=True)[0] - W
    assert np.allclose(step, 0.2 * (path[1] - W) / np.linalg.norm(path[1] - W), rtol=1e-12)


def test_the_headline():
    rows = [line.split() for line in headline("next_token").splitlines()]
    (cos, off, distance, ratio, *attention), later = [
        [float(value) for value in row[1:]] for row in rows if row[:1] in (["1000"], ["10000"])]
    assert 0.995 < cos < later[0] < 0.999 and 0.999 < off < later[1]
    assert distance < 1e-3 and 9 < distance / later[2] < 11           # it falls as 1/t
    assert ratio == pytest.approx(3, abs=0.005)
    assert attention == pytest.approx([3 / 4, 1 / 4, 0, 0], abs=2e-3)
    least = [float(row[-3]) for row in rows[-5:-2]]                     # of 10 random instances
    assert min(least[:2]) > 0.97 and 0.004 < least[2] < 0.006
