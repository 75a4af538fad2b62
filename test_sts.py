"""Tests:  python -m pytest

Each test states a fact about the task, the model or the program.  Statistical ones have a fixed seed,
and allow 5 standard errors or more.
"""

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
    os.environ.setdefault(threads, "1")     # before NumPy loads: for small matrices, threads only wait

import numpy as np
import pytest

import fcn
import plots
import sts
import theory
import train

HERE = Path(__file__).resolve().parent
KINDS = "onehot", "rademacher", "orthonormal"


def relative_difference(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


# The task and the samplers

def test_every_subset_is_equally_likely_and_without_repetition():
    n, T, q = 100_000, 6, 3
    _, y = sts.sample_sts(np.random.default_rng(0), n, T, 1, q)
    assert y.shape == (n, q) and y.min() == 0 and y.max() == T - 1
    assert all(len(set(row)) == q for row in y[:1000].tolist())
    subsets, counts = np.unique(np.sort(y, axis=1), axis=0, return_counts=True)
    p = 1 / math.comb(T, q)
    assert len(subsets) == math.comb(T, q)
    assert abs(counts / n - p).max() < 5 * math.sqrt(p * (1 - p) / n)


def test_a_subset_can_be_the_whole_sequence():
    X, y = sts.sample_sts(np.random.default_rng(0), 3, 5, 2, 5)
    assert (np.sort(y) == np.arange(5)).all()
    np.testing.assert_allclose(sts.sts_target(X, y), X.mean(axis=1))


def test_tokens_are_independent_standard_normal():
    X, _ = sts.sample_sts(np.random.default_rng(0), 20_000, 4, 3, 2)
    n, flat = len(X), X.reshape(-1, 12)
    assert X.shape == (20_000, 4, 3)
    assert abs(flat.mean(axis=0)).max() < 5 / math.sqrt(n)
    assert abs(flat.T @ flat / n - np.eye(12)).max() < 5 * math.sqrt(2 / n)
    for x in -1.5, -0.5, 0.0, 1.0, 2.0:
        below = 0.5 * (1 + math.erf(x / math.sqrt(2)))
        assert abs((flat < x).mean() - below) < 5 * math.sqrt(below * (1 - below) / flat.size)


def test_target_is_the_mean_of_the_selected_tokens():
    X, y = sts.sample_sts(np.random.default_rng(0), 4, 7, 2, 3)
    written_out = [sum(X[b, i] for i in y[b]) / 3 for b in range(4)]
    np.testing.assert_allclose(sts.sts_target(X, y), written_out)


@pytest.mark.parametrize("kind", KINDS)
def test_encodings_are_unit_vectors_of_the_asked_shape(kind):
    E = sts.positional_encoding(kind, 6, 9, np.random.default_rng(0), draws=4)
    assert E.shape == (4, 6, 9)
    np.testing.assert_allclose((E ** 2).sum(-1), 1)
    if kind != "rademacher":
        np.testing.assert_allclose(E @ E.transpose(0, 2, 1), np.broadcast_to(np.eye(6), (4, 6, 6)))
    assert (kind == "onehot") == (E[0] == E[1]).all()


@pytest.mark.parametrize("kind", ("rademacher", "orthonormal"))
def test_random_encodings_have_mean_zero_and_covariance_identity_over_d_e(kind):
    E = sts.positional_encoding(kind, 3, 8, np.random.default_rng(0), draws=20_000)[:, 1]
    assert abs(E.mean(axis=0)).max() < 5 * math.sqrt(1 / 8 / 20_000)
    assert abs(E.T @ E / 20_000 - np.eye(8) / 8).max() < 5 * math.sqrt(1 / 8 / 20_000)


def test_coherence_of_random_signs_shrinks_as_one_over_sqrt_d_e():
    rng, T = np.random.default_rng(0), 100
    for d_e in 16, 64, 256, 1024:
        E = sts.positional_encoding("rademacher", T, d_e, rng)[0]
        inner = (E @ E.T)[np.triu_indices(T, 1)]
        assert abs(math.sqrt((inner ** 2).mean() * d_e) - 1) < 5 * math.sqrt(1 / (2 * len(inner)))


@pytest.mark.parametrize("sizes", [(0, 5, 2, 1), (3, 0, 2, 1), (3, 5, 0, 1), (3, 5, 2, 0), (3, 5, 2, 6)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="1 <= q <= T"):
        sts.sample_sts(np.random.default_rng(0), *sizes)


@pytest.mark.parametrize("kind, T, d_e, draws", [
    ("sinusoidal", 4, 4, 1), ("onehot", 5, 4, 1), ("orthonormal", 5, 4, 1), ("rademacher", 0, 4, 1),
    ("rademacher", 4, 0, 1), ("rademacher", 4, 4, 0)])
def test_impossible_encodings_are_refused(kind, T, d_e, draws):
    with pytest.raises(ValueError, match="kind"):
        sts.positional_encoding(kind, T, d_e, np.random.default_rng(0), draws)


# The model

def example(kind="rademacher", K=1, n=4, T=6, d=2, q=3, d_e=7, scale=1.0, seed=0):
    """Inputs, encodings and random weights for one call of the model: W, V, X, y, E."""
    rng = np.random.default_rng(seed)
    X, y = sts.sample_sts(rng, n, T, d, q)
    E = sts.positional_encoding(kind, T, d_e, rng, K)
    W, V = scale * rng.standard_normal((d + d_e, d + d_e)), rng.standard_normal((d, d + d_e))
    return W, V, X, y, E


@pytest.mark.parametrize("attend_to_query", (False, True))
@pytest.mark.parametrize("kind, K", [("onehot", 1), ("rademacher", 3), ("orthonormal", 2)])
def test_forward_is_the_definition_written_out(kind, K, attend_to_query):
    W, V, X, y, E = example(kind, K)
    for b in range(len(X)):
        f = 0
        for e in E:                                                     # (T, d_e)
            Z = np.concatenate([X[b], e], axis=1).T                     # (d + d_e, T), as in the paper
            z_query = np.concatenate([np.zeros(2), e[y[b]].sum(axis=0)])
            if attend_to_query:
                Z = np.column_stack([Z, z_query])
            A = Z.T @ W @ z_query
            f = f + V @ Z @ np.exp(A) / np.exp(A).sum() / K
        np.testing.assert_allclose(sts.forward(W, V, X, y, E, attend_to_query)[0][b], f, rtol=1e-12)


def test_one_draw_may_come_without_the_leading_axis():
    W, V, X, y, E = example()
    np.testing.assert_array_equal(sts.forward(W, V, X, y, E[0])[0], sts.forward(W, V, X, y, E)[0])


def test_the_loss_is_half_the_mean_squared_distance_to_the_target():
    W, V, X, y, E = example()
    r = sts.forward(W, V, X, y, E)[0] - sts.sts_target(X, y)
    assert math.isclose(sts.loss_and_grads(W, V, X, y, E)[0], np.mean(np.sum(r ** 2, axis=1)) / 2)


@pytest.mark.parametrize("wrong", range(5))
def test_shapes_that_do_not_fit_are_refused(wrong):
    arguments = list(example())
    arguments[wrong] = arguments[wrong][:, 1:] if wrong == 4 else arguments[wrong][1:]
    with pytest.raises(ValueError, match=r"need X \(n, T, d\)"):
        sts.forward(*arguments)


@pytest.mark.parametrize("position", (-1, 6))
def test_positions_outside_the_sequence_are_refused(position):
    W, V, X, y, E = example()
    y[1, 1] = position
    with pytest.raises(ValueError, match="positions from 0 to 5"):
        sts.forward(W, V, X, y, E)


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_the_dtype_of_the_weights_decides(dtype):
    W, V, X, y, E = example(K=2)
    W, V = W.astype(dtype), V.astype(dtype)
    L, dW, dV = sts.loss_and_grads(W, V, X, y, E)
    assert L.dtype == dW.dtype == dV.dtype == dtype
    dW_df, dV_df = sts.backward(sts.forward(W, V, X, y, E)[1], np.ones((4, 2)))
    assert dW_df.dtype == dV_df.dtype == dtype
    W, V = W.astype(np.float64), V.astype(np.float64)
    for got, want in zip((L, dW, dV), sts.loss_and_grads(W, V, X, y, E)):
        assert relative_difference(got, want) < (1e-5 if dtype == np.float32 else 1e-15)


def test_huge_logits_do_not_overflow():
    W, V, X, y, E = example(scale=1e6)
    assert all(np.isfinite(a).all() for a in sts.loss_and_grads(W, V, X, y, E))


@pytest.mark.parametrize("attend_to_query", (False, True))
def test_no_array_of_all_concatenated_inputs_is_built(attend_to_query):
    n, T, d, d_e = 100, 200, 5, 300
    W, V, X, y, E = example(n=n, T=T, d=d, d_e=d_e)
    tracemalloc.start()
    sts.loss_and_grads(W, V, X, y, E, attend_to_query)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * T * (d + d_e) * 8 / 5


# The gradients

def numerical_gradients(W, V, *inputs):
    """dW and dV by complex step; inputs are X, y, E and perhaps attend_to_query."""
    return (sts.complex_step_gradient(lambda w: sts.loss_and_grads(w, V, *inputs)[0], W),
            sts.complex_step_gradient(lambda v: sts.loss_and_grads(W, v, *inputs)[0], V))


def accepted(grad, check):
    """The criterion of the gradient tests, relative to the size of the gradient."""
    return relative_difference(grad, check) < 1e-12


@pytest.mark.parametrize("attend_to_query", (False, True))
@pytest.mark.parametrize("K", (1, 3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ("zero", "random", "trained"))
def test_gradients_agree_with_complex_step(where, kind, K, attend_to_query):
    W, V, X, y, E = example(kind, K)
    if where != "random":
        W, V = np.zeros_like(W), np.zeros_like(V)
    for step in range(100 if where == "trained" else 0):
        _, _, *fresh = example(kind, K, seed=step + 1)
        _, dW, dV = sts.loss_and_grads(W, V, *fresh, attend_to_query)
        W, V = W - dW, V - dV
    _, dW, dV = sts.loss_and_grads(W, V, X, y, E, attend_to_query)
    dW_check, dV_check = numerical_gradients(W, V, X, y, E, attend_to_query)
    assert accepted(dV, dV_check)
    if where == "zero":         # V = 0: the output does not depend on W
        assert not dW.any() and not dW_check.any()
    else:
        assert accepted(dW, dW_check)
        assert not dW[:, :2].any()      # the token half of z_query is zero


@pytest.mark.parametrize("block", ("x e", "e e", "V_x", "V_e"))
def test_wrong_gradients_are_rejected(block):
    W, V, X, y, E = example(d_e=6, d=6)
    grads, checks = sts.loss_and_grads(W, V, X, y, E)[1:], numerical_gradients(W, V, X, y, E)
    which, rows, columns = {"x e": (0, slice(6), slice(6, 12)), "e e": (0, slice(6, 12), slice(6, 12)),
                            "V_x": (1, slice(6), slice(6)), "V_e": (1, slice(6), slice(6, 12))}[block]
    assert accepted(grads[which], checks[which])
    for spoil in (np.zeros_like, np.transpose, lambda g: 1.01 * g, np.negative):
        wrong = grads[which].copy()
        wrong[rows, columns] = spoil(wrong[rows, columns])
        assert not accepted(wrong, checks[which])


def test_gradients_agree_with_central_differences_of_the_real_loss():
    W, V, X, y, E = example(K=2)
    _, dW, dV = sts.loss_and_grads(W, V, X, y, E, True)
    rng, h = np.random.default_rng(1), 1e-5
    for _ in range(5):
        w, v = rng.standard_normal(W.shape), rng.standard_normal(V.shape)
        up, down = (sts.loss_and_grads(W + s * h * w, V + s * h * v, X, y, E, True)[0] for s in (1, -1))
        slope = (dW * w).sum() + (dV * v).sum()
        assert abs((up - down) / (2 * h) - slope) < 1e-7 * abs(slope)


def test_backward_takes_any_upstream_gradient():
    W, V, X, y, E = example()
    df = np.random.default_rng(1).standard_normal((len(X), 2))
    dW, dV = sts.backward(sts.forward(W, V, X, y, E)[1], df)

    def product(W, V):
        return (sts.forward(W, V, X, y, E)[0] * df).sum()

    assert accepted(dW, sts.complex_step_gradient(lambda w: product(w, V), W))
    assert accepted(dV, sts.complex_step_gradient(lambda v: product(W, v), V))


# What the model can and cannot do

@pytest.mark.parametrize("kind", ("onehot", "orthonormal"))
def test_the_ground_truth_solves_the_task(kind):
    _, _, X, y, E = example(kind, T=20, d_e=30)
    W_star, V_star = sts.ground_truth(2, 30, 20 if kind == "onehot" else None)
    losses = [sts.loss_and_grads(c * W_star, V_star, X, y, E)[0] for c in (1, 5, 10, 40)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-25


def test_the_ground_truth_nearly_solves_the_task_with_nearly_orthogonal_encodings():
    """With one draw of E logits are off by about c sqrt(q / d_e): the loss falls like 1 / d_e."""
    losses = []
    for d_e in 128, 1024:
        _, _, X, y, E = example("rademacher", n=200, T=20, d_e=d_e)
        W_star, V_star = sts.ground_truth(2, d_e)
        losses.append(sts.loss_and_grads(5 * W_star, V_star, X, y, E)[0])
    assert losses[1] < losses[0] / 4 and losses[1] < 0.03 * 2 / (2 * 3)


def test_the_zero_predictor_has_loss_d_over_2q():
    n, d, q = 20_000, 3, 4
    W, V, X, y, E = example(n=n, T=9, d=d, q=q)
    half_squares = 0.5 * (sts.sts_target(X, y) ** 2).sum(axis=1)
    L = sts.loss_and_grads(0 * W, 0 * V, X, y, E)[0]
    assert math.isclose(L, half_squares.mean())
    assert abs(L - d / (2 * q)) < 5 * half_squares.std() / math.sqrt(n)


@pytest.mark.parametrize("attend_to_query", (False, True))
def test_permuting_positions_changes_nothing(attend_to_query):
    W, V, X, y, E = example(K=2)
    order = np.random.default_rng(1).permutation(6)
    rank = np.argsort(order)            # position i has moved to rank[i]
    for got, want in zip(sts.loss_and_grads(W, V, X[:, order], rank[y], E[:, order], attend_to_query),
                         sts.loss_and_grads(W, V, X, y, E, attend_to_query)):
        assert relative_difference(got, want) < 1e-12


def test_without_distinct_encodings_no_weights_can_select():
    """If all e_i are equal, f does not depend on y, so its loss over all subsets y of given tokens is
    at least that of their mean: half the variance of STS_q(X, y) over y."""
    T, q, d, rng = 6, 3, 2, np.random.default_rng(0)
    y = np.array(list(itertools.combinations(range(T), q)))             # all subsets
    X = np.broadcast_to(rng.standard_normal((T, d)), (len(y), T, d))
    least = 0.5 * sts.sts_target(X, y).var(axis=0).sum()
    for scale in 0, 1, 10, 100:
        W, V = scale * rng.standard_normal((d + 5, d + 5)), rng.standard_normal((d, d + 5))
        E = np.broadcast_to(rng.standard_normal(5), (T, 5))
        f, _ = sts.forward(W, V, X, y, E)
        np.testing.assert_allclose(f, np.broadcast_to(f[0], f.shape), rtol=1e-9, atol=1e-9)
        assert sts.loss_and_grads(W, V, X, y, E)[0] >= least * (1 - 1e-9)
    assert least > 0.05
    W, V = sts.ground_truth(d, T)                                       # with encodings it can
    assert sts.loss_and_grads(40 * W, V, X, y, np.eye(T))[0] < 1e-25


def test_one_hot_ground_truth_is_what_gradient_descent_grows():
    """Gradient descent from zero over all subsets, with one-hot PE: the PE-PE block is a multiple of
    I - 11^T/T and V a multiple of [I, 0], up to the sampling error of the tokens."""
    T, q, d, rng = 5, 2, 1, np.random.default_rng(0)
    y = np.repeat(list(itertools.combinations(range(T), q)), 2000, axis=0)
    W, V, E = np.zeros((d + T, d + T)), np.zeros((d, d + T)), np.eye(T)
    for _ in range(200):
        X = rng.standard_normal((len(y), T, d))
        _, dW, dV = sts.loss_and_grads(W, V, X, y, E)
        W, V = W - dW, V - dV
    W_star, V_star = sts.ground_truth(d, T, T)
    assert sts.cosine(W, W_star) > 0.999 and sts.cosine(V, V_star) > 0.999
    assert sts.cosine(W, sts.ground_truth(d, T)[0]) < 0.95              # and not of I


def test_cosine_of_matrices():
    a, b = np.array([[1.0, 0], [0, 1]]), np.array([[1.0, 1], [0, 0]])
    assert math.isclose(sts.cosine(a, -3 * a), -1) and math.isclose(sts.cosine(a, b), 0.5)
    assert sts.cosine(a, np.zeros((2, 2))) == 0.0


# The fully-connected net

def net_example(sizes=(12, 6, 5, 2), n=9, seed=0, trained_for=0):
    """Random params of a net, biases too, and a batch of its sizes: params, X, y."""
    rng, d = np.random.default_rng(seed), sizes[-1]
    T = sizes[0] // (d + 1)
    X, y = sts.sample_sts(rng, n, T, d, 2)
    params = [(weight, rng.standard_normal(bias.shape)) for weight, bias in fcn.init_fcn(rng, sizes)]
    for _ in range(trained_for):
        _, grads = fcn.loss_and_grads(params, *sts.sample_sts(rng, n, T, d, 2))
        params = [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, grads)]
    return params, X, y


def test_the_net_is_its_definition_written_out():
    params, X, y = net_example((12, 6, 5, 2))
    for b in range(len(X)):
        h = np.array([*X[b].reshape(-1), *(1.0 * (i in y[b]) for i in range(4))])
        for layer, (weight, bias) in enumerate(params):
            h = np.array([sum(h[i] * weight[i, j] for i in range(len(h))) + bias[j] for j in range(len(bias))])
            h = h if layer == 2 else np.where(h > 0, h, 0)
        np.testing.assert_allclose(fcn.forward(params, fcn.encode(X, y))[0][b], h, rtol=1e-12)
    r = fcn.forward(params, fcn.encode(X, y))[0] - sts.sts_target(X, y)
    assert math.isclose(fcn.loss_and_grads(params, X, y)[0], np.mean(np.sum(r ** 2, axis=1)) / 2)


def test_initial_weights_of_a_net_are_those_of_he():
    params = fcn.init_fcn(np.random.default_rng(0), [400, 300, 200, 100])
    for (weight, bias), variance in zip(params, (2 / 400, 2 / 300, 1 / 200)):
        assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / weight.size) and not bias.any()


@pytest.mark.parametrize("sizes", [(12, 2), (12, 6, 2), (12, 6, 5, 2), (12, 3, 4, 5, 2)])
@pytest.mark.parametrize("steps", (0, 100))
def test_gradients_of_a_net_agree_with_complex_step(sizes, steps):
    params, X, y = net_example(sizes, trained_for=steps)
    hidden = fcn.forward(params, fcn.encode(X, y))[1][1][1:]
    assert all(abs(h[h > 0]).min() > 1e-9 and (h == 0).any() for h in hidden)   # no kink, some units are off
    _, grads = fcn.loss_and_grads(params, X, y)
    for layer in range(len(params)):
        for part in 0, 1:
            def loss(w):
                moved = [list(p) for p in params]
                moved[layer][part] = w
                return fcn.loss_and_grads(moved, X, y)[0]

            check = sts.complex_step_gradient(loss, params[layer][part])
            assert accepted(grads[layer][part], check)
            for spoil in (np.zeros_like, lambda g: 1.01 * g, np.negative, lambda g: g[::-1, ...]):
                assert not accepted(spoil(grads[layer][part]), check)


def test_a_transposed_gradient_of_a_net_is_rejected():
    params, X, y = net_example((12, 5, 5, 2))
    grad = fcn.loss_and_grads(params, X, y)[1][1][0]
    check = sts.complex_step_gradient(
        lambda w: fcn.loss_and_grads([params[0], (w, params[1][1]), params[2]], X, y)[0], params[1][0])
    assert accepted(grad, check) and not accepted(grad.T, check)


def test_gradients_of_a_net_agree_with_central_differences():
    params, X, y = net_example()
    rng, h = np.random.default_rng(1), 1e-6
    grads = fcn.loss_and_grads(params, X, y)[1]
    for _ in range(5):
        way = [(rng.standard_normal(w.shape), rng.standard_normal(b.shape)) for w, b in params]
        up, down = (fcn.loss_and_grads([(w + s * h * v, b + s * h * c) for (w, b), (v, c) in zip(params, way)],
                                       X, y)[0] for s in (1, -1))
        slope = sum((g * v).sum() for grad, part in zip(grads, way) for g, v in zip(grad, part))
        assert abs((up - down) / (2 * h) - slope) < 1e-7 * abs(slope)


def test_what_does_not_fit_a_net_is_refused():
    params, X, y = net_example((12, 6, 2))
    with pytest.raises(ValueError, match=r"need inputs \(n, 12\)"):
        fcn.forward(params, fcn.encode(X[:, :3], y % 3))
    for position in -1, 4:
        with pytest.raises(ValueError, match="positions from 0 to 3"):
            fcn.encode(X, np.full_like(y, position))
    for sizes in [5], [5, 0, 2]:
        with pytest.raises(ValueError, match="each at least 1"):
            fcn.init_fcn(np.random.default_rng(0), sizes)
    for sizes in (-1, 4, 2, 2), (1, 0, 2, 1), (1, 4, 0, 2), (1, 4, 2, 0), (1, 4, 2, 5):
        with pytest.raises(ValueError, match="1 <= q <= T"):
            fcn.width_lower_bound(*sizes)


def selectors(T, d, q):
    """The matrices A of the target A vec(X), for all q-subsets: (subsets, d, T d)."""
    return np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q
                     for y in itertools.combinations(range(T), q)])


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1), (7, 1, 2)])
def test_the_bound_is_what_the_top_eigenvalues_leave(T, d, q):
    A = selectors(T, d, q)
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    left = np.trace(S) - np.concatenate([[0], np.cumsum(np.linalg.eigvalsh(S)[::-1])])
    m = np.arange(T * d + 1)
    np.testing.assert_allclose(fcn.width_lower_bound(m, T, d, q), left / 2, atol=1e-14)
    assert math.isclose(fcn.width_lower_bound(0, T, d, q), d / (2 * q))
    assert abs(fcn.width_lower_bound(np.array([T * d, T * d + 1, 10 ** 9]), T, d, q)).max() < 1e-14
    if q < T:
        assert (np.diff(fcn.width_lower_bound(m, T, d, q)) < 0).all()


def test_the_bound_is_the_error_of_the_best_answer_to_the_best_projection():
    """The conditional expectation of the target, given a projection of vec(X) and y, by least squares on
    samples; the bound is attained by the top eigenvectors of E[A^T A], and by no random projection."""
    T, d, q, n, rng = 4, 2, 2, 20_000, np.random.default_rng(0)
    A, x = selectors(T, d, q), rng.standard_normal((n, T * d))
    top = np.linalg.eigh(np.mean(A.transpose(0, 2, 1) @ A, axis=0))[1][:, ::-1]
    for m in 1, 2, 3, 5, 7:
        for best, projection in ((True, top[:, :m]), (False, rng.standard_normal((T * d, m)))):
            seen, losses = x @ projection, 0
            for selector in A:
                target = x @ selector.T
                best_answer = seen @ np.linalg.lstsq(seen, target, rcond=None)[0]
                losses += 0.5 * ((best_answer - target) ** 2).sum(axis=1) / len(A)
            gap = losses.mean() - fcn.width_lower_bound(m, T, d, q)
            standard_error = losses.std() / math.sqrt(n)
            assert abs(gap) < 5 * standard_error if best else gap > 5 * standard_error


@pytest.mark.parametrize("narrow", (False, True))
def test_the_constructed_nets_solve_the_task_with_the_loss_that_is_said(narrow):
    T, d, q, n = 6, 2, 2, 50_000
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, d, q)
    formula = [fcn.constructed_loss(T, d, q, B, narrow) for B in range(7)]
    assert formula == sorted(formula, reverse=True) and formula[6] < 1e-9
    for B in 0, 1, 2, 3:
        params = fcn.constructed_fcn(T, d, q, B, narrow)
        assert [weight.shape for weight, _ in params] == [(18, 12 if narrow else 24), (12 if narrow else 24, d)]
        losses = 0.5 * ((fcn.forward(params, fcn.encode(X, y))[0] - sts.sts_target(X, y)) ** 2).sum(axis=1)
        assert abs(losses.mean() - formula[B]) < 5 * losses.std() / math.sqrt(n)
    B = abs(X).max()
    assert fcn.loss_and_grads(fcn.constructed_fcn(T, d, q, B, narrow), X, y)[0] < 1e-25


@pytest.mark.parametrize("depth", (1, 2))
def test_a_net_trained_briefly_comes_close_to_the_bound_and_does_not_beat_it(depth):
    T, d, q = 6, 2, 2
    for m in 2, 6:
        run = trained(*f"--model fcn --T 6 --batch 128 --dtype float32 --steps 3000 --depth {depth} --width {m}".split())
        least = fcn.width_lower_bound(m, T, d, q)
        assert least - 4 * run["error_se"] < run["error"] < 1.1 * least


def test_the_precise_error_and_its_standard_error():
    """A net of zeros has losses |target|^2 / 2: d/(2q) times a chi-square over d, of variance 2 / d."""
    config = train.parse("--model fcn --T 9 --d 4 --q 3 --seed 1".split())[0]
    weights = [0 * weight for weight in train.initial_weights(config)]
    error, standard_error = train.precise_error(weights, config, 20_000)
    assert math.isclose(standard_error, 4 / 6 * math.sqrt(2 / 4) / math.sqrt(20_000), rel_tol=0.05)
    assert 0 < abs(error - 4 / 6) < 5 * standard_error
    assert train.precise_error(weights, config | {"seed": 2}, 20_000)[0] != error


# Theory

def exact_gradients(W, V, E, q):
    """The gradients of the population loss when the logits do not depend on X, averaged over all the draws
    E (K, T, d_e) inside the loss: all subsets, and for X all unit matrices, which have the same second
    moments as i.i.d. N(0, 1) tokens but for a factor T d.  Exact for the PE-PE block of W, and for V_x."""
    d, T = len(V), E.shape[1]
    y = theory.all_subsets(T, q)
    X = np.eye(T * d).reshape(T * d, T, d)
    L, dW, dV = sts.loss_and_grads(W, V, np.tile(X, (len(y), 1, 1)), np.repeat(y, T * d, axis=0), E)
    return T * d * L, T * d * dW[d:, d:], T * d * dV[:, :d]


def signed(T, d_e, injective):
    """All E with entries +-1/sqrt(d_e), or all signed injections of positions into coordinates."""
    if not injective:
        return np.array(list(itertools.product((-1, 1), repeat=T * d_e))).reshape(-1, T, d_e) / math.sqrt(d_e)
    return np.array([np.eye(d_e)[list(order)] * np.array(signs)[:, None]
                     for order in itertools.permutations(range(d_e), T)
                     for signs in itertools.product((-1, 1), repeat=T)])


def test_one_hot_gradient_descent_is_exactly_two_numbers():
    """Against gradient descent on all entries of the PE-PE block and of V_x, over all subsets."""
    T, d, q, lr, steps = 7, 2, 3, 1.0, 400
    W_pe, V_x, y = np.zeros((T, T)), np.zeros((d, d)), theory.all_subsets(T, q)
    path = theory.descend(lambda a, alpha: theory.onehot_slopes(a, alpha, T, d, q), lr, steps, T - 1, d)
    for t in range(steps + 1):
        L, dW, dV = theory.integrated_loss_and_grads(W_pe, V_x, np.eye(T), y)
        if t % 50 == 0:
            L_exact, a, alpha = path[:, t]
            assert abs(L - L_exact) < 1e-12
            np.testing.assert_allclose(W_pe, a * (np.eye(T) - 1 / T), atol=1e-12)
            np.testing.assert_allclose(V_x, alpha * np.eye(d), atol=1e-12)
        W_pe, V_x = W_pe - lr * dW, V_x - lr * dV
    assert path[0, -1] < 0.05 * path[0, 0]      # it has learnt the task


@pytest.mark.parametrize("K", (1, math.inf))
@pytest.mark.parametrize("kind", ("rademacher", "orthonormal"))
def test_stochastic_gradient_descent_is_exactly_two_numbers(kind, K):
    """The same over all encodings; with the expectation over them inside the loss, or one at a time."""
    T, d_e, d, q, lr = 3, 3, 2, 2, 2.0
    E = signed(T, d_e, kind == "orthonormal")
    scores = (E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0]
    a = alpha = 0.0
    W, V = np.zeros((d + d_e, d + d_e)), np.zeros((d, d + d_e))
    for t in range(21):
        slopes = (theory.onehot_slopes(a, alpha, T, d, q) if kind == "orthonormal"
                  else theory.stochastic_slopes(a, alpha, scores, d, q, K))
        if K == 1:
            parts = [theory.integrated_loss_and_grads(W[d:, d:], V[:, :d], e, theory.all_subsets(T, q)) for e in E]
            L, dW, dV = (np.mean(part, axis=0) for part in zip(*parts))
        else:
            L, dW, dV = exact_gradients(W, V, E, q)
        assert math.isclose(L, slopes[0], rel_tol=1e-12)
        np.testing.assert_allclose(dW, slopes[1] / d_e * np.eye(d_e), atol=1e-12)
        np.testing.assert_allclose(dV, slopes[2] / d * np.eye(d), atol=1e-12)
        W[d:, d:], V[:, :d] = W[d:, d:] - lr * dW, V[:, :d] - lr * dV
        a, alpha = a - lr / d_e * slopes[1], alpha - lr / d * slopes[2]
    assert a > 0.2 and alpha > 0.5


def test_the_enumerated_gradient_has_the_symmetry_of_the_task():
    """At W*, V*, one-hot: all diagonal entries alike, all others alike, rows and columns sum to 0;
    V_x a multiple of I; and the blocks which meet a token once vanish for X together with -X."""
    T, d, q = 6, 3, 2
    W, V = sts.ground_truth(d, T, T)
    _, dW, dV = exact_gradients(W, V, np.eye(T)[None], q)
    off = dW[~np.eye(T, dtype=bool)]
    assert np.ptp(np.diag(dW)) < 1e-15 > np.ptp(off) and abs(off.mean()) > 1e-3
    assert abs(dW.sum(axis=0)).max() < 1e-15 > abs(dW.sum(axis=1)).max()
    np.testing.assert_allclose(dV, dV[0, 0] * np.eye(d), atol=1e-15)
    X, y = sts.sample_sts(np.random.default_rng(0), 5, T, d, q)
    _, dW, dV = sts.loss_and_grads(W, V, np.concatenate([X, -X]), np.tile(y, (2, 1)), np.eye(T))
    assert abs(dW[:d]).max() < 1e-15 > abs(dV[:, d:]).max() and abs(dW[d:, d:]).max() > 1e-3


def test_the_integrated_loss_is_the_mean_over_the_tokens():
    rng, T, d, q, d_e, n = np.random.default_rng(0), 5, 2, 2, 4, 40_000
    E, W_pe, V_x = rng.standard_normal((T, d_e)), rng.standard_normal((d_e, d_e)), rng.standard_normal((d, d))
    y = theory.all_subsets(T, q)
    L, dW, dV = theory.integrated_loss_and_grads(W_pe, V_x, E, y)
    assert accepted(dW, sts.complex_step_gradient(
        lambda w: theory.integrated_loss_and_grads(w, V_x, E, y)[0], W_pe))
    assert accepted(dV, sts.complex_step_gradient(
        lambda v: theory.integrated_loss_and_grads(W_pe, v, E, y)[0], V_x))
    X, _ = sts.sample_sts(rng, n, T, d, q)
    f, _ = sts.forward(np.pad(W_pe, (d, 0)), np.pad(V_x, ((0, 0), (0, d_e))), X, np.tile(y, (n // len(y), 1)), E)
    losses = 0.5 * ((f - sts.sts_target(X, np.tile(y, (n // len(y), 1)))) ** 2).sum(axis=1)
    assert abs(losses.mean() - L) < 5 * losses.std() / math.sqrt(n)


def test_slopes_are_the_derivatives_of_the_loss():
    scores, h = theory.sample_scores(np.random.default_rng(0), 20, 30, 3, 50), 1e-5
    for slopes in [lambda a, alpha: theory.onehot_slopes(a, alpha, 20, 5, 3),
                   *(lambda a, alpha, K=K: theory.stochastic_slopes(a, alpha, scores, 5, 3, K)
                     for K in (1, 4, math.inf))]:
        for a, alpha in (0, 0.5), (2, 1.3), (8, 0.9):
            _, da, dalpha = slopes(a, alpha)
            assert math.isclose((slopes(a + h, alpha)[0] - slopes(a - h, alpha)[0]) / (2 * h), da, rel_tol=1e-6)
            assert math.isclose((slopes(a, alpha + h)[0] - slopes(a, alpha - h)[0]) / (2 * h), dalpha, rel_tol=1e-6)


@pytest.mark.parametrize("K", (1, 4))
def test_the_stochastic_loss_is_that_of_the_model(K):
    """At a W*, alpha V*, with fresh encodings for each batch of 8 sequences."""
    rng, T, d, q, d_e = np.random.default_rng(0), 12, 2, 3, 20
    W, V = sts.ground_truth(d, d_e)
    losses = []
    for _ in range(2000):
        X, y = sts.sample_sts(rng, 8, T, d, q)
        E = sts.positional_encoding("rademacher", T, d_e, rng, K)
        losses.append(sts.loss_and_grads(3 * W, 1.4 * V, X, y, E)[0])
    predicted = [theory.stochastic_slopes(3, 1.4, theory.sample_scores(rng, T, d_e, q, 1000), d, q, K)[0]
                 for _ in range(20)]
    error = math.hypot(np.std(losses) / math.sqrt(len(losses)), np.std(predicted) / math.sqrt(len(predicted)))
    assert abs(np.mean(losses) - np.mean(predicted)) < 5 * error < 0.1 * np.mean(losses)


def test_scores_have_the_law_of_random_signs():
    """Each statistic of a draw has the same mean as with E drawn in full."""
    rng, T, d_e, q, draws = np.random.default_rng(0), 8, 15, 3, 20_000
    E = sts.positional_encoding("rademacher", T, d_e, rng, draws)
    full = (E @ E[:, :q].sum(axis=1)[:, :, None])[:, :, 0]
    short = theory.sample_scores(rng, T, d_e, q, draws)
    assert full.shape == short.shape
    for statistic in (lambda s: s[:, 0], lambda s: s[:, 0] * s[:, 1], lambda s: s[:, q], lambda s: s[:, q] ** 2,
                      lambda s: s[:, q] ** 4, lambda s: s[:, q] ** 2 * s[:, q + 1] ** 2, lambda s: s[:, 0] * s[:, q] ** 2,
                      lambda s: np.exp(3 * s[:, 0]) / np.exp(3 * s).sum(axis=1)):
        one, two = statistic(full), statistic(short)
        assert abs(one.mean() - two.mean()) < 5 * math.sqrt((one.var() + two.var()) / draws)


def test_the_noise_floor_is_the_least_loss():
    scores = theory.sample_scores(np.random.default_rng(0), 20, 30, 3, 100)
    floors = []
    for K in 1, 4, 16:
        L, a, alpha = theory.noise_floor(scores, 5, 3, K)
        _, da, dalpha = theory.stochastic_slopes(a, alpha, scores, 5, 3, K)
        assert abs(da) < 1e-3 and abs(dalpha) < 1e-9
        for other_a in np.linspace(0, 30, 61):
            for other_alpha in np.linspace(0.5, 3, 26):
                assert theory.stochastic_slopes(other_a, other_alpha, scores, 5, 3, K)[0] >= L
        floors.append(L)
    assert floors == sorted(floors, reverse=True)
    assert abs(theory.noise_floor(scores, 5, 3, math.inf)[0]) < 1e-5     # Definition 5 solves the task


def test_the_asymptotic_slope_of_the_inverse_loss():
    L, _, _ = theory.descend(lambda a, alpha: theory.onehot_slopes(a, alpha, 200, 5, 3), 1.0, 40_000, 199, 5)
    assert math.isclose(L[10_000], 0.0111, abs_tol=5e-5)
    assert abs((1 / L[40_000] - 1 / L[20_000]) / 20_000 / (4 / 199) - 1) < 0.02


def test_the_number_of_steps_in_closed_form():
    for T, d, q, share, lr, norm2 in ((200, 5, 3, 0.01, 1, None), (1000, 5, 3, 0.01, 5, None), (200, 5, 10, 0.1, 1, 400),
                                      (200, 1, 3, 0.001, 2, None)):
        counted = theory.count_steps(share, T, d, q, lr, norm2)
        assert abs(theory.predict_steps(share, T, d, q, lr, norm2) / counted - 1) < 0.1
        L, _, _ = theory.descend(lambda a, alpha: theory.onehot_slopes(a, alpha, T, d, q), lr, counted,
                                 norm2 or T - 1, d)
        assert L[-1] <= share * d / (2 * q) < L[-2]
    assert abs(theory.predict_steps(0.5, 1e6, 5, 3) / (1e12 / 10) - 1) < 0.001      # the plateau: T^2 / (2 lr d)


@pytest.mark.parametrize("flags", ("--pe onehot", "--pe stochastic --pe-dim 32"))
def test_the_recursions_foretell_sampled_training(flags):
    """Within 5 %, at a small learning rate."""
    flags = f"{flags} --T 12 --d 3 --q 2 --lr 0.5 --steps 1500 --seed 0".split()
    sampled, exact = (train.start(train.parse([*flags, *more])[0])
                      for more in (["--dtype", "float64", "--batch", "256"], ["--population"]))
    for run in sampled, exact:
        train.train(run)
    for key in "a", "alpha":
        np.testing.assert_allclose(sampled[key][-5:], exact[key][-5:], rtol=0.05)
    assert math.isclose(np.mean(sampled["loss"][-100:]), np.mean(exact["loss"][-100:]), rel_tol=0.1)
    assert exact["loss"][-1] < 0.3 * exact["loss"][0]


def test_population_runs_are_the_recursions():
    flags = "--population --T 6 --d 2 --q 2 --lr 1 --steps 300 --pe".split()
    onehot, fixed, orthonormal = (train.start(train.parse([*flags, *pe.split()])[0]) for pe in (
        "onehot", "fixed --pe-family orthonormal", "stochastic --pe-family orthonormal --pe-dim 20"))
    for run, norm2 in (onehot, 5), (fixed, 5), (orthonormal, 20):
        train.train(run)
        L, a, alpha = theory.descend(lambda a, alpha: theory.onehot_slopes(a, alpha, 6, 2, 2), 1.0, 300, norm2, 2)
        np.testing.assert_allclose(run["loss"], L[:-1], rtol=1e-10)
        assert run["step"] == list(range(300)) and run["eval_step"] == [i * 15 for i in range(21)]
        np.testing.assert_allclose(run["V"], np.eye(2, 2 + len(run["W"]) - 2) * alpha[-1], atol=1e-12)
        if run is not fixed:
            np.testing.assert_allclose(run["a"], a[::15], atol=1e-12)
            T = 6 if run is onehot else None
            np.testing.assert_allclose(run["W"], a[-1] * sts.ground_truth(2, len(run["W"]) - 2, T)[0], atol=1e-12)
    with pytest.raises(FloatingPointError, match="not finite between steps"):
        train.train(train.start(train.parse([*flags, "onehot", "--lr", "1e9"])[0]))


# Training

TINY = "--T 8 --d 2 --q 2 --batch 16 --dtype float64 --pe-dim 16".split()


def trained(*flags):
    """A run trained in this process."""
    run = train.start(train.parse([*(TINY[:-2] if "fcn" in flags else TINY), *flags])[0])
    train.train(run)
    return run


def test_golden_trajectory():
    """Ten losses, as first computed; they change if the model, its gradients, the order of the random
    draws or NumPy's generators do."""
    run = trained("--steps", "10", "--draws", "2", "--init", "random", "--lr", "4")
    np.testing.assert_allclose(run["loss"], GOLDEN, rtol=1e-6)


GOLDEN = [0.628033128, 0.223209849, 0.236342103, 0.321623796, 0.376871638, 0.213821482,
          0.334678831, 0.346986858, 0.549263659, 0.477805012]


@pytest.mark.parametrize("flags", ("--pe onehot", "--pe fixed", "--pe stochastic --draws 3",
                                   "--model fcn --width 7 --depth 2",
                                   "--optimizer adam --init random --attend-to-query --dtype float32"))
def test_same_seed_same_run_bit_for_bit(flags):
    flags = [*flags.split(), "--steps", "30"]
    one, two, other = trained(*flags), trained(*flags), trained(*flags, "--seed", "1")
    assert_same(one, two)
    assert one["loss"] != other["loss"]
    assert all((a != b).any() for a, b in zip(train.weights_of(one), train.weights_of(other)))


def test_stochastic_encodings_change_at_each_draw_and_fixed_ones_never():
    for pe, same in ("stochastic", False), ("fixed", True), ("onehot", True):
        encode = train.encoder(train.parse(["--pe", pe])[0])
        rng = np.random.default_rng(0)
        first, second = encode(5, 1, rng), encode(5, 1, rng)
        assert (first == second).all() == same
        if same:            # a longer sequence extends a shorter one
            np.testing.assert_array_equal(encode(400, 1, rng)[:, :5], first)
            other = train.encoder(train.parse(["--pe", pe, "--seed", "1"])[0])(5, 1, rng)
            assert (other == first).all() == (pe == "onehot")


def test_the_family_and_the_dimension_of_encodings_are_those_asked_for():
    rng = np.random.default_rng(0)
    for pe in "stochastic", "fixed":
        flags = ["--pe", pe, "--pe-family", "orthonormal", "--pe-dim", "500"]
        E = train.encoder(train.parse(flags)[0])(5, 1, rng)
        assert E.shape == (1, 5, 500) and np.count_nonzero(E) == 5
    assert train.encoder(train.parse([])[0])(5, 3, rng).shape == (3, 5, 170)


def test_purposes_have_random_streams_of_their_own():
    draws = [train.stream(seed, purpose).random() for seed in (0, 1) for purpose in train.PURPOSES]
    assert len(set(draws)) == 2 * len(train.PURPOSES)


def test_the_sequences_of_a_step_depend_on_the_seed_the_step_and_the_sizes_alone():
    one = train.batch(train.parse([*TINY])[0], 3)
    for flags in ("--pe onehot", "--lr 7", "--optimizer adam", "--attend-to-query", "--init random", "--steps 5"):
        for a, b in zip(one, train.batch(train.parse([*TINY, *flags.split()])[0], 3)):
            np.testing.assert_array_equal(a, b)
    net = train.parse([*TINY[:-2], "--model", "fcn"])[0]
    np.testing.assert_array_equal(one[0], train.batch(net, 3)[0])
    others = [train.batch(net, 4), train.batch(net | {"seed": 1}, 3), train.batch(net | {"seed": 2 ** 32}, 3)]
    tokens = [set(X.ravel()) for X, _ in (one, *others)]
    assert len(set().union(*tokens)) == 4 * one[0].size


def test_evaluation_sequences_do_not_depend_on_the_encodings():
    """Models that answer 0 have the same errors; those that answer with the mean of all tokens too."""
    configs = [train.parse([*TINY, *flags.split()])[0] for flags in ("", "--pe fixed", "--pe onehot")]
    configs.append(configs[0] | {"eval_draws": 1})
    for scale in 0, 1:
        errors = []
        for config in configs:
            W, V = sts.ground_truth(2, config["pe_dim"])
            errors.append(train.evaluate([0 * W, scale * V], config))
        for other in errors[1:]:
            np.testing.assert_allclose(other[0] + other[1], errors[0][0] + errors[0][1], rtol=1e-12)
        assert len(set(errors[0][0])) == 5


def test_runs_on_other_sequences_are_not_trained_together():
    runs = [new_run("--steps 3"), new_run("--steps 3 --seed 1")]
    with pytest.raises(ValueError, match="differ in one of seed"):
        train.train_together(runs)


def test_runs_that_are_trained_together_are_those_trained_alone_bit_for_bit():
    flags = "--steps 30", "--pe fixed --steps 50", "--optimizer adam --draws 2 --steps 21", "--model fcn --width 7 --steps 40"
    together, alone = ([new_run(line.replace("--steps", "--schedule constant --steps")) for line in flags] for _ in range(2))
    train.train_together(together)
    for one, two in zip(together, alone):
        train.train(two, ahead=True)
        assert_same(one, two)
    assert [len(run["loss"]) for run in together] == [30, 50, 21, 40]


def test_validation_sequences_are_not_those_of_training(monkeypatch):
    seen, sample = [], sts.sample_sts

    def watch(*arguments):
        seen.append(sample(*arguments))
        return seen[-1]

    monkeypatch.setattr(sts, "sample_sts", watch)
    run = trained("--steps", "5")
    tokens = {(X.shape[:2], float(X[0, 0, 0])) for X, _ in seen}
    evaluations = len(run["T_test"]) + len(run["q_test"])
    assert len(tokens) == len(seen) - 5 * evaluations   # 6 evaluations, each on the same sequences
    assert sum(shape == (128, 8) for shape, _ in tokens) == 1 + len(run["q_test"])
    assert len({value for _, value in tokens}) == len(tokens)


def test_errors_belong_to_their_lengths_and_subset_sizes():
    """With attention spread evenly (W = 0, V = V*), f is the mean of all tokens, and the error is half
    of d times the variance of the difference of two means: d/2 (1/q - 1/T)."""
    config = train.parse(["--T", "40", "--d", "50", "--q", "3", "--pe-dim", "4"])[0]
    _, V = sts.ground_truth(50, 4)
    errors = train.evaluate([np.zeros((54, 54)), V], config)
    lengths, subset_sizes = train.evaluation_sizes(config)
    for error, T, q in ([(e, T, 3) for e, T in zip(errors[0], lengths)]
                        + [(e, 40, q) for e, q in zip(errors[1], subset_sizes)]):
        expected = 25 * (1 / q - 1 / T)
        assert abs(error / expected - 1) < 5 * math.sqrt(2 / 50 / config["eval_sequences"])


def test_attend_to_query_reaches_training_and_evaluation():
    plain, full = trained("--steps", "5"), trained("--steps", "5", "--attend-to-query")
    assert plain["loss"][0] == full["loss"][0] and plain["loss"][3] != full["loss"][3]
    config = json.loads(full["config"])
    at_the_end = train.evaluate([full["W"], full["V"]], config)
    assert at_the_end[0] == full["error_T_test"][-1] and at_the_end[1] == full["error_q_test"][-1]
    assert at_the_end != train.evaluate([full["W"], full["V"]], config | {"attend_to_query": False})


@pytest.mark.parametrize("pe", ("stochastic", "onehot"))
def test_cosines_are_those_of_the_weights_to_the_ground_truth(pe):
    run = trained("--steps", "40", "--pe", pe)
    W_star, V_star = sts.ground_truth(2, 16, 8 if pe == "onehot" else None)
    assert run["cos_W"][-1] == sts.cosine(run["W"], W_star)
    assert run["cos_V"][-1] == sts.cosine(run["V"], V_star)
    assert run["cos_W"][0] == 0 < run["cos_W"][-1] < 1


def test_evaluations_are_spread_over_the_run_and_include_both_ends():
    assert trained("--steps", "39")["eval_step"] == [i * 39 // 20 for i in range(21)]
    assert trained("--steps", "3")["eval_step"] == [0, 1, 2, 3]


def test_evaluation_of_stochastic_encodings_averages_the_output_not_the_loss():
    """Definition 5 puts the expectation inside: its loss is below the mean loss of single draws."""
    config = train.parse([*TINY])[0]
    W, V = sts.ground_truth(2, 16)
    averaged = train.evaluate([20 * W, V], config)[0][0]
    X, y = sts.sample_sts(np.random.default_rng(0), 2000, 8, 2, 2)
    E = sts.positional_encoding("rademacher", 8, 16, np.random.default_rng(0), 200)
    inside = sts.loss_and_grads(20 * W, V, X, y, E)[0]
    outside = np.mean([sts.loss_and_grads(20 * W, V, X, y, e)[0] for e in E])
    assert inside < 0.05 * outside
    assert inside < averaged < 0.3 * outside      # the mean over 16 draws, not over 200


def test_the_default_is_the_paper_setting_and_what_the_readme_says():
    config, out = train.parse([])
    assert config == dict(
        model="attention", pe="stochastic", pe_family="rademacher", pe_dim=170, draws=1, T=200, d=5, q=3,
        batch=256, steps=10000, lr=2, optimizer="gd", schedule="constant", init="zero",
        attend_to_query=False, dtype="float32", seed=0, format=train.FORMAT, evaluations=20, eval_sequences=128, eval_draws=16)
    assert out == HERE / "runs" / "stochastic.npz"
    assert train.evaluation_sizes(config) == ([200, 250, 300, 350, 400], [2, 4, 5, 8])
    assert train.parse(["--optimizer", "adam"])[0]["lr"] == 0.01
    assert train.parse(["--pe", "onehot"])[0]["pe_dim"] == 400
    net, out = train.parse(["--model", "fcn"])
    assert net["width"] == 175 and net["depth"] == 1 and out == HERE / "runs" / "fcn.npz"
    assert (net["optimizer"], net["lr"], net["schedule"]) == ("adam", 0.01, "cosine")


@pytest.mark.parametrize("flags, name", [
    ("--lr 2 --pe-dim 170", "stochastic"), ("--quick", "stochastic-quick"),
    ("--pe onehot", "onehot"), ("--pe fixed --seed 3", "fixed-seed=3"),
    ("--optimizer adam --attend-to-query", "stochastic-lr=0.01-optimizer=adam-attend-to-query")])
def test_a_run_file_is_named_after_what_is_not_default(flags, name):
    assert sorted(train.parse(flags.split())[1].stem.split("-")) == sorted(name.split("-"))


def test_random_weights_have_the_stated_size():
    run = train.start(train.parse(["--init", "random"])[0])
    assert abs(run["W"].std() / 0.02 - 1) < 0.02 and abs(run["V"].std() / 0.02 - 1) < 0.1


def test_the_learning_rate_is_constant_or_half_a_cosine(monkeypatch):
    constant, cosine = (train.parse(["--schedule", name, "--lr", "3", "--steps", "100"])[0]
                        for name in ("constant", "cosine"))
    assert [train.learning_rate(constant, t) for t in (0, 50, 99)] == [3, 3, 3]
    np.testing.assert_allclose([train.learning_rate(cosine, t) for t in (0, 25, 50, 100)],
                               [3, 1.5 * (1 + math.sqrt(0.5)), 1.5, 0], atol=1e-12)
    seen = []
    monkeypatch.setattr(train, "gd", lambda weight, grad, state, lr, t: (seen.append(lr), (weight, state))[1])
    run = trained("--steps", "4", "--schedule", "cosine")
    assert seen[::2] == [train.learning_rate(json.loads(run["config"]), t) for t in range(4)]


def test_adam_follows_its_published_recursion():
    rng = np.random.default_rng(0)
    w, state, m, v = rng.standard_normal(3), (0.0, 0.0), 0, 0
    want = w.copy()
    for t in range(1, 6):
        g = rng.standard_normal(3)
        w, state = train.adam(w, g, state, 0.1, t)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        want -= 0.1 * (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
    np.testing.assert_allclose(w, want, rtol=1e-12)


def test_the_first_step_of_adam_moves_every_weight_by_the_learning_rate():
    """Its bias correction starts at t = 1: the first step is lr times the sign of the gradient."""
    run = trained("--optimizer", "adam", "--init", "random", "--steps", "1", "--lr", "0.5")
    before = train.weights_of(train.start(json.loads(run["config"])))
    for old, new in zip(before, train.weights_of(run)):
        moved = abs(new - old)[abs(new - old) > 0]      # less only where the gradient is as small as eps
        assert len(moved) > 20 and moved.max() < 0.5 + 1e-6 and np.median(moved) > 0.499


# The command line, as a user meets it

def command(*arguments, cwd=HERE):
    """Run a command line with this Python; returns its exit status, stdout and stderr."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_sts_stands_alone_and_teaches(tmp_path):
    shutil.copy(HERE / "sts.py", tmp_path)
    status, out, err = command("-I", "sts.py", cwd=tmp_path)
    assert (status, err) == (0, "")
    losses = [float(line.split()[-1]) for line in out.splitlines() if " c = " in line]
    assert losses[0] > 0.1 and losses[-1] < 1e-10 and losses == sorted(losses, reverse=True)
    differences = [float(line.split()[-1]) for line in out.splitlines() if "relative difference" in line]
    assert len(differences) == 2 and max(differences) < 1e-12


def test_fcn_stands_alone_and_prints_its_table(tmp_path):
    shutil.copy(HERE / "fcn.py", tmp_path)
    status, out, err = command("-I", "fcn.py", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert "175   0.6806" in out and "1000   0.0000" in out
    assert float(out.splitlines()[-1].split()[-1]) < 1e-12


def test_theory_stands_alone_and_prints_its_tables(tmp_path):
    shutil.copy(HERE / "theory.py", tmp_path)
    status, out, err = command("-I", "theory.py", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert "10000  0.0111" in out and "170   0.08" in out


def test_a_population_run_is_reported_and_saved_as_any_other(tmp_path):
    path = tmp_path / "run.npz"
    status, out, err = command("train.py", *"--population --quick --pe onehot --steps 100000 --out".split(), str(path))
    assert (status, err) == (0, "")
    run = train.load(path)
    assert len(run["loss"]) == 100_000 and f"nearest multiple {run['a'][-1]:.4f} W*" in out
    assert f"{np.mean(run['loss'][-5000:]):.4f}" in out and "population loss" in out
    assert json.loads(run["config"])["population"] is True and "batch" not in json.loads(run["config"])


def test_a_net_is_trained_saved_and_compared_with_its_bound(tmp_path):
    path = tmp_path / "net.npz"
    status, out, err = command("train.py", *"--model fcn --quick --steps 300 --width 30 --depth 2 --out".split(), str(path))
    assert (status, err) == (0, "")
    run, least = train.load(path), fcn.width_lower_bound(30, 20, 3, 2)
    sizes = [80, 30, 64, 3]
    assert [run[f"weight_{i}"].shape for i in (1, 2, 3)] == list(zip(sizes, sizes[1:]))
    assert [run[f"bias_{i}"].shape for i in (1, 2, 3)] == [(30,), (64,), (3,)]
    assert run["T_test"].tolist() == [20] and run["q_test"].tolist() == [3, 4, 5, 8]
    assert run["error_T_test"].shape == (21, 1) and run["loss"].shape == (300,) and "cos_W" not in run
    config = json.loads(run["config"])
    error, standard_error = train.precise_error(train.weights_of(run), config)
    assert math.isclose(error, run["error"], rel_tol=1e-5) and 0 < standard_error < 0.01 * error
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert f"standard error {standard_error:.4f}" in lines["error on 100000 more sequences"]
    assert f"{error:.4f}" in lines["error on 100000 more sequences"]
    assert f"{least:.4f}" in lines["lower bound for first-layer width 30"]
    assert f"{error / least:.4f}" in lines["error / lower bound"]
    assert f"is {(error - least) / standard_error:.1f} standard errors" in lines["error / lower bound"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A classroom run of each kind of PE: {pe: (stdout, run file)}."""
    folder, runs = tmp_path_factory.mktemp("quick"), {}
    for pe in "stochastic", "fixed", "onehot":
        path = folder / f"{pe}.npz"
        status, out, err = command("train.py", "--pe", pe, "--quick", "--out", str(path))
        assert (status, err) == (0, "")
        runs[pe] = out, path
    return runs


def test_quick_learns_and_only_stochastic_encodings_generalize_in_length(quick):
    error = {}
    for pe, (_, path) in quick.items():
        with np.load(path, allow_pickle=False) as run:
            zero = 3 / (2 * 2)
            assert run["T_test"].tolist() == [20, 25, 30, 35, 40]
            assert run["error_T_test"][-1, 0] < 0.02 * zero
            error[pe] = run["error_T_test"][-1, -1]
    assert error["stochastic"] < 0.05 * zero
    assert min(error["fixed"], error["onehot"]) > 0.25 * zero


def test_the_run_file_holds_what_train_py_says(quick):
    path = quick["stochastic"][1]
    with np.load(path, allow_pickle=False) as file:
        run = dict(file)
    m, steps = len(run["eval_step"]), 3000
    assert {key: run[key].shape for key in run} == dict(a=(m,), alpha=(m,),
        config=(), W=(35, 35), V=(3, 35), step=(steps,), loss=(steps,), eval_step=(m,), T_test=(5,),
        error_T_test=(m, 5), q_test=(4,), error_q_test=(m, 4), cos_W=(m,), cos_V=(m,))
    assert run["eval_step"][0] == 0 and run["eval_step"][-1] == steps
    config = json.loads(str(run["config"]))
    assert config["T"] == 20 and config["pe_family"] == "rademacher" and config["lr"] == 2
    again = train.evaluate([run["W"], run["V"]], config)
    np.testing.assert_allclose(again[0], run["error_T_test"][-1], rtol=1e-5)


def test_the_summary_says_what_the_run_file_holds(quick):
    out, path = quick["stochastic"]
    run = train.load(path)
    for T, error in zip(run["T_test"], run["error_T_test"][-1]):
        assert any(f"T_test = {T} " in line and f"{error:.4f}" in line for line in out.splitlines())
    assert f"training loss, last 150 steps              {np.mean(run['loss'][-150:]):.4f}   0.7500" in out
    assert f"cosine similarity of W to W*               {run['cos_W'][-1]:.4f}" in out
    assert "3000 of 3000 steps" in out and path.name in out
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["1500"]]
    assert rows[0][1] == f"{np.mean(run['loss'][1350:1500]):.4f}"


def test_help_fits_two_screens_and_gives_every_default(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = command("train.py", "--help")
    assert status == 0 and len(out.splitlines()) < 80
    for flag in out.split("options:")[1].split("\n  --")[1:]:
        assert "default" in flag, flag


BAD = """
--q 0            | --q | '0' | at least 1
--q 21           | --q | 21 | 1 to 20
--q 2.5          | --q | '2.5' | whole number
--T 0            | --T | '0' | at least 1
--d -3           | --d | '-3' | at least 1
--batch 0        | --batch | '0' | at least 1
--steps 1e3      | --steps | '1e3' | whole number
--draws 0        | --draws | '0' | at least 1
--pe-dim 0       | --pe-dim | '0' | at least 1
--seed -1        | --seed | '-1' | at least 0
--lr 0           | --lr | '0' | above 0
--lr -1          | --lr | '-1' | above 0
--lr nan         | --lr | 'nan' | finite
--lr inf         | --lr | 'inf' | finite
--lr fast        | --lr | 'fast' | finite
--pe sinusoidal  | --pe | 'sinusoidal' | stochastic
--pe-family haar | --pe-family | 'haar' | orthonormal
--optimizer sgd  | --optimizer | 'sgd' | adam
--init xavier    | --init | 'xavier' | random
--dtype float16  | --dtype | 'float16' | float32
--pe onehot --pe-dim 39                           | --pe-dim | 39 | at least 40
--pe onehot --T 1 --q 1                           | --T | 1 | at least 2
--pe fixed --pe-family orthonormal --pe-dim 20    | --pe-dim | 20 | at least 40
--pe onehot --pe-family rademacher                | --pe-family | rademacher | --pe fixed
--pe fixed --draws 2                              | --draws | 2 | --pe stochastic
--T 1000000000000                                 | --T | 1000000000000 | GB
--pe-dim 99999999999999999999                     | --pe-dim | 99999999999999999999 | GB
--model fcn --depth 1000000000000                 | --depth | 1000000000000 | GB
--model fcn --width 99999999999999999999          | --width | 99999999999999999999 | GB
--model fcn --width 0                             | --width | '0' | at least 1
--model fcn --pe fixed                            | --pe | fixed | --model attention
--model fcn --pe-dim 32                           | --pe-dim | 32 | --model attention
--model fcn --attend-to-query                     | --attend-to-query | no meaning | --model attention
--model fcn --init zero                           | --init | zero | --model attention
--width 5        | --width | 5 | --model fcn
--schedule linear | --schedule | 'linear' | cosine
--population --batch 3                            | --batch | 3 | --population
--population --dtype float32                      | --dtype | float32 | --population
--population --optimizer adam                     | --optimizer | adam | --population
--population --model fcn                          | --model | fcn | attention
--population --pe fixed --T 500 --q 3             | --T | 500 | 10000000
--momentum 0.9   | --momentum | 0.9 | unrecognized
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_bad_flags_get_one_line_and_status_2(case, tmp_path, capsys, monkeypatch):
    flags, *words = (part.strip() for part in case.split("|"))
    out = str(tmp_path / "run.npz")
    monkeypatch.setattr(sys, "argv", ["train.py", "--quick", "--out", out, *flags.split()])
    assert train.main() == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not list(tmp_path.iterdir())


def test_bad_input_from_the_shell():
    status, out, err = command("train.py", "--q", "201")
    assert (status, out) == (2, "")
    assert err == "train.py: error: argument --q: 201 is more than --T 200; allowed: 1 to 200\n"


def test_a_bad_out_is_found_before_training_and_nothing_is_overwritten(tmp_path):
    notes, other = tmp_path / "notes.npz", tmp_path / "other.npz"
    notes.write_text("not a run")
    assert command("train.py", "--quick", "--steps", "5", "--out", str(other))[0] == 0
    before = other.read_bytes()
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    for out in tmp_path / "nowhere" / "run.npz", folder, notes, notes / "run.npz", other, "run", "":
        status, stdout, err = command("train.py", "--quick", "--lr", "1", "--out", str(out))
        assert (status, stdout, err.count("\n")) == (2, "", 1)
        assert f"--out: {str(out)!r}" in err and "allowed" in err
    assert notes.read_text() == "not a run" and other.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.npz", "notes.npz", "other.npz"]
    assert command("train.py", "--quick", "--steps", "5", "--out", str(other))[0] == 0
    assert other.read_bytes() == before     # the same flags: the same file


def test_a_diverging_run_keeps_the_weights_of_its_last_finite_loss(monkeypatch):
    run = train.start(train.parse([*TINY, "--lr", "1e5"])[0])
    with pytest.raises(FloatingPointError, match="not finite"):
        train.train(run)
    updates = len(run["step"])
    assert updates % 500 != 0 and len(run["loss"]) == updates      # not a moment of evaluation
    monkeypatch.setattr(train, "evaluate", lambda *_: ([0.0], [0.0]))     # it would not be finite
    again = trained("--lr", "1e5", "--steps", str(updates))
    np.testing.assert_array_equal(run["W"], again["W"])
    np.testing.assert_array_equal(run["V"], again["V"])


def test_a_diverging_run_stops_and_keeps_the_last_good_weights(tmp_path):
    path = tmp_path / "run.npz"
    status, out, err = command("train.py", "--quick", "--lr", "1e4", "--out", str(path))
    assert status == 1 and err.count("\n") == 1
    run = train.load(path)
    assert f"at step {len(run['step']) + 1}:" in err and "lower --lr" in err
    assert f"{len(run['step'])} of 3000 steps" in out
    assert all(np.isfinite(run[key]).all() for key in ("W", "V", "loss", "error_T_test"))


def interrupt(run):
    """A report for train.train that acts like Ctrl-C in the middle of a run."""
    if run["eval_step"][-1] == 1500:
        raise KeyboardInterrupt


def test_ctrl_c_saves_what_there_is_but_never_over_a_longer_run(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.npz"
    monkeypatch.setattr(sys, "argv", ["train.py", "--quick", "--out", str(path)])
    monkeypatch.setattr(train, "progress", lambda config, done: interrupt)
    assert train.main() == 130
    assert len(train.load(path)["step"]) == 1500 and "saved in" in capsys.readouterr().out
    monkeypatch.setattr(train, "progress", lambda config, done: lambda run: None)
    assert train.main() == 0
    finished = path.read_bytes()
    monkeypatch.setattr(train, "progress", lambda config, done: interrupt)
    assert train.main() == 130
    assert path.read_bytes() == finished and "nothing is written" in capsys.readouterr().out


def test_too_little_memory_is_one_line(tmp_path, monkeypatch, capsys):
    def train_nothing(run, report, ahead, stop):
        raise MemoryError("Unable to allocate 1 TiB")

    monkeypatch.setattr(train, "train", train_nothing)
    monkeypatch.setattr(sys, "argv", ["train.py", "--quick", "--out", str(tmp_path / "run.npz")])
    assert train.main() == 1
    err = capsys.readouterr().err
    assert "1 TiB. Try a smaller --T" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_closed_pipe_ends_the_run_without_a_traceback(tmp_path):
    reader = subprocess.Popen(
        [sys.executable, "train.py", "--quick", "--out", str(tmp_path / "run.npz")], cwd=HERE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reader.stdout.readline()
    reader.stdout.close()
    err = reader.stderr.read()
    reader.stderr.close()
    assert reader.wait() == 130 and err == "train.py: error: interrupted\n"


# A run that took minutes is never lost

KINDS_OF_RUNS = ["--pe stochastic --draws 3", "--pe onehot --optimizer adam --init random", "--pe fixed --dtype float32",
                 "--model fcn --width 7 --depth 2", "--pe stochastic --population", "--pe onehot --population",
                 "--pe fixed --population"]


def new_run(flags, *more):
    """A small new run."""
    tiny = ["--T", "8", "--d", "2", "--q", "2"] if "population" in flags else TINY[:-2]
    return train.start(train.parse([*tiny, *([] if "fcn" in flags else TINY[-2:]), *flags.split(), *more])[0])


def test_a_schedule_to_0_makes_a_longer_run_another_run(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.npz"
    for steps, schedule, expected in ("40", "cosine", 0), ("60", "cosine", 2), ("40", "cosine", 0):
        monkeypatch.setattr(sys, "argv", ["train.py", *TINY, "--steps", steps, "--schedule", schedule, "--out", str(path)])
        assert train.main() == expected
        assert len(train.load(path)["step"]) == 40
    assert "it holds a run with other settings" in capsys.readouterr().err
    path.unlink()
    for steps, expected in ("40", 0), ("60", 0), ("50", 2):     # a constant learning rate: one is part of the other
        monkeypatch.setattr(sys, "argv", ["train.py", *TINY, "--steps", steps, "--out", str(path)])
        assert train.main() == expected
    assert "it has 60 steps already" in capsys.readouterr().err and len(train.load(path)["step"]) == 60


def test_a_finished_net_has_its_error_and_no_other_run_has(tmp_path):
    net = new_run("--model fcn --width 3", "--steps", "20")
    train.train(net)
    train.save({key: value for key, value in net.items() if key != "error"}, tmp_path / "run.npz")
    with pytest.raises(ValueError, match="missing: error"):
        train.load(tmp_path / "run.npz")


def stop_after(calls):
    """A function that is true from the given call on."""
    left = iter([False] * calls)
    return lambda: next(left, True)


def assert_same(one, two):
    """Two runs are equal bit for bit."""
    assert one.keys() == two.keys()
    for key in one:
        np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(two[key]), strict=key not in train.LOGS)


@pytest.mark.parametrize("flags", KINDS_OF_RUNS)
def test_a_resumed_run_is_that_without_interruption_bit_for_bit(flags, tmp_path):
    whole, parts = (new_run(flags, "--steps", "45") for _ in range(2))
    train.train(whole)
    for calls in 0, 3, 1, 8:
        with pytest.raises(KeyboardInterrupt):
            train.train(parts, ahead=calls % 2 == 1, stop=stop_after(calls))
        before = len(parts["step"])
        train.save(parts, tmp_path / "run.npz")
        parts = train.load(tmp_path / "run.npz")
        assert len(parts["step"]) == before < 45
    train.train(parts)
    assert_same(whole, parts)
    train.save(parts, tmp_path / "run.npz")
    assert_same(whole, train.load(tmp_path / "run.npz"))


@pytest.mark.parametrize("flags", ["--pe stochastic", "--optimizer adam --init random", "--pe onehot --population"])
def test_more_steps_continue_a_finished_run(flags, tmp_path, monkeypatch):
    path, longer = tmp_path / "run.npz", new_run(flags, "--steps", "60")
    train.train(longer)
    run = new_run(flags, "--steps", "40")
    train.train(run)
    train.save(run, path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", str(path), "--steps", "60"])
    assert train.main() == 0
    run = train.load(path)
    for key in "W", "V", "loss", "step":
        np.testing.assert_array_equal(run[key], longer[key])
    assert json.loads(run["config"])["steps"] == 60 == run["eval_step"][-1]


def test_a_run_file_is_replaced_and_never_written_into(tmp_path):
    """The old file is another file on the disk, and is whole as long as somebody reads it."""
    path, run = tmp_path / "run.npz", new_run("--pe stochastic", "--steps", "20")
    train.train(run)
    train.save(run, path)
    first = path.read_bytes()
    with open(path, "rb") as old:
        train.save(run | {"loss": [0.0] * 20}, path)
        assert old.read() == first != path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize("number, expected", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(number, expected, tmp_path, quick):
    path = tmp_path / "run.npz"
    process = subprocess.Popen([sys.executable, "train.py", "--quick", "--out", str(path)], cwd=HERE, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not process.stdout.readline().startswith("    600"):
        pass
    process.send_signal(number)
    process.send_signal(number)         # twice, as impatient users do
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (expected, "train.py: error: interrupted\n")
    done = len(train.load(path)["step"])
    assert 600 <= done < 3000 and f"{done} of 3000 steps" in out and "To go on: python train.py --resume" in out
    status, out, err = command("train.py", "--resume", str(path))
    assert (status, err) == (0, "") and "3000 of 3000 steps" in out
    assert_same(train.load(path), train.load(quick["stochastic"][1]))


def test_a_run_killed_twenty_times_is_whole_and_ends_the_same(tmp_path):
    """SIGKILL at random moments, most of them while it trains and saves; then it is resumed."""
    flags = "--T 8 --d 2 --q 2 --batch 16 --pe-dim 64 --steps 6000 --optimizer adam".split()
    path, whole, rng, lengths = tmp_path / "run.npz", tmp_path / "whole.npz", np.random.default_rng(0), []

    def lives(arguments, longest):
        """Seconds that a process lives after it has loaded, and is killed if these are more than longest."""
        process = subprocess.Popen([sys.executable, "train.py", *arguments], cwd=HERE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        begin = time.perf_counter()
        try:
            process.wait(longest)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        return time.perf_counter() - begin

    longest = lives([*flags, "--out", str(whole)], 600)
    for _ in range(20):
        lives(["--resume", str(path)] if path.exists() else [*flags, "--out", str(path)], rng.uniform(0, longest / 8))
        if path.exists():
            lengths.append(len(train.load(path)["step"]))
    assert lengths == sorted(lengths) and len(set(lengths)) > 5
    assert command("train.py", "--resume", str(path))[0] == 0
    assert_same(train.load(path), train.load(whole))


def test_a_full_disk_is_one_line_and_the_previous_file_survives(tmp_path, quick):
    """A limit on the size of files stands for the full disk: the first checkpoints fit, later ones do not."""
    resource = pytest.importorskip("resource")
    path = tmp_path / "run.npz"
    done = subprocess.run([sys.executable, "train.py", "--quick", "--out", str(path)], cwd=HERE, text=True,
                          capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000,) * 2))
    steps = len(train.load(path)["step"])
    assert done.returncode == 1 and 0 < steps < 3000
    assert done.stderr == (f"train.py: error: {os.path.relpath(path, HERE)} cannot be written, File too large; "
                           f"it has {steps} steps of this run\n")
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    assert command("train.py", "--resume", str(path))[0] == 0
    assert_same(train.load(path), train.load(quick["stochastic"][1]))


def damage(path):
    """Damaged versions of a run file, by name: the bytes of each."""
    content = path.read_bytes()
    versions = {f"cut to {share:.2f}": content[:int(share * len(content))] for share in (0, 0.01, 0.3, 0.7, 0.99)}
    flags = content.index(b"PK\x01\x02") + 8       # of the first member of the zip: encrypted, patched
    versions |= {f"flag {bit}": content[:flags] + bytes([content[flags] | bit]) + content[flags + 1:] for bit in (1, 32)}
    versions |= {"text": b"not a run", "flipped": content[:900] + bytes([content[900] ^ 255]) + content[901:]}
    run = train.load(path)
    config = json.loads(run["config"])

    def edited(**changes):
        new = {key: value for key, value in (run | changes).items() if value is not None}
        train.save(new, path.with_name("edited.npz"))
        edited_file = path.with_name("edited.npz")
        try:
            return edited_file.read_bytes()
        finally:
            edited_file.unlink()

    changes = {"NaN": dict(W=run["W"] * np.nan), "infinite loss": dict(loss=run["loss"] + np.inf),
               "shape": dict(W=run["W"][1:]), "no V": dict(V=None), "extra": dict(extra=np.zeros(3)), "short log": dict(loss=run["loss"][1:]),
               "order": dict(step=run["step"][::-1]), "type": dict(W=run["W"].astype(int)),
               "precision": dict(W=run["W"].astype(np.float64)), "lengths": dict(T_test=run["T_test"] + 1),
               "text for numbers": dict(loss=run["loss"].astype(str)),
               "nested": dict(config="[" * 100_000), "error": dict(error=np.float64(1), error_se=np.float64(1)),
               "longer": dict(config=json.dumps(config | {"steps": 5})), "not JSON": dict(config="{"),
               "a list": dict(config="[1]")}
    for key, value in dict(T=9, q=20, lr=-1, lr_=3, optimizer="sgd", pe="onehot", help=True, format=1, steps=1e9,
                           draws=[1], seed=None, eval_draws=0, evaluations="20", eval_sequences=10 ** 12, batch=True,
                           pe_dim=10 ** 12).items():
        changes[f"config {key}"] = dict(config=json.dumps(config | {key: value}))
    versions |= {name: edited(**change) for name, change in changes.items()}
    objects = path.with_name("objects.npz")
    np.savez(objects, config=np.array({"a": 1}, dtype=object))
    versions["pickled"] = objects.read_bytes()
    np.savez(objects, a=np.zeros(3))
    versions["foreign"] = objects.read_bytes()
    objects.unlink()
    return versions


def test_damaged_run_files_are_refused_in_one_line_and_never_overwritten(tmp_path, monkeypatch, capsys):
    path, whole = tmp_path / "run.npz", tmp_path / "whole.npz"
    run = new_run("--dtype float32", "--steps", "30")
    with pytest.raises(KeyboardInterrupt):
        train.train(run, stop=stop_after(12))
    train.save(run, whole)
    flags = [*TINY, "--dtype", "float32", "--steps", "30", "--out", str(path)]
    versions = damage(whole)
    assert len(versions) == len(set(versions.values())) > 35
    for name, content in versions.items():
        path.write_bytes(content)
        for argv in ["--resume", str(path)], flags:
            monkeypatch.setattr(sys, "argv", ["train.py", *argv])
            assert train.main() == 2, name
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and "run.npz" in err and "allowed" in err, (name, err)
            assert path.read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.npz", "whole.npz"]
    assert set(train.load(whole)) == set(run)


@pytest.mark.parametrize("flags, words", [
    ("--resume nowhere.npz", "--resume: 'nowhere.npz' cannot be read: No such file"), ("--resume=", "--resume: '' cannot be read"),
    ("--resume {path} --lr 3", "--lr: has no meaning with --resume"), ("--resume {path} --quick", "--quick: has no"),
    ("--resume {path} --steps 29", "--steps: 29 is less than"), ("--resume {path} --steps 3", "at least 30"), ("--resume {path} --steps x", "'x' is not a whole"),
    ("--resume {net} --steps 31", "--steps: 31 is not the number"), ("--resume {path} --benchmark", "--benchmark: stands"),
    ("--benchmark --lr 3", "--benchmark: stands alone")])
def test_what_cannot_be_resumed(flags, words, tmp_path, monkeypatch, capsys):
    path, net = tmp_path / "run.npz", tmp_path / "net.npz"
    for kind, file in ("--pe stochastic", path), ("--model fcn --width 3", net):
        run = new_run(kind, "--steps", "30")
        train.train(run)
        train.save(run, file)
    monkeypatch.setattr(sys, "argv", ["train.py", *flags.format(path=path, net=net).split()])
    before = path.read_bytes()
    assert train.main() == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and words in err and path.read_bytes() == before


VALUES = ["", " ", "nan", "inf", "-inf", "-1", "0", "1e400", "1e-400", "1e3", "9" * 25, "9" * 40, "0x10", "1_000", "True",
          "\u0663", "\u00e9", "--", "1;ls", "1 2", "None", "[3]", "\n"]


def test_hostile_values_of_every_flag(tmp_path, monkeypatch, capsys):
    """Refused in one line that names the flag, or, if the value happens to be allowed, trained."""
    parser, tried, allowed = train.command_line(), 0, []
    flags = [action.option_strings[0] for action in parser._actions if action.nargs != 0 and action.dest != "out"]
    assert len(flags) == 19
    for flag in flags:
        for value in VALUES:
            monkeypatch.setattr(sys, "argv", ["train.py", *TINY[:-2], "--steps", "2", f"{flag}={value}",
                                              "--out", str(tmp_path / "run.npz")])
            status, (out, err) = train.main(), capsys.readouterr()
            tried += 1
            if status != 2:
                allowed.append((flag, value))
                (tmp_path / "run.npz").unlink(missing_ok=True)
                continue
            assert out == "" and err.count("\n") == 1 and flag in err.split(": ", 2)[2], (flag, value, err)
            assert not list(tmp_path.iterdir())
    assert tried == 19 * 23
    assert allowed == [("--lr", "1e3"), ("--lr", "9" * 25), ("--lr", "9" * 40), ("--seed", "0"), ("--seed", "9" * 25)]


def test_random_combinations_of_flags_train_or_are_refused(tmp_path, monkeypatch, capsys):
    rng, path = np.random.default_rng(0), tmp_path / "run.npz"
    choices = {"--model": ["fcn", "attention"], "--pe": ["onehot", "fixed", "stochastic"],
               "--pe-family": ["rademacher", "orthonormal"], "--pe-dim": [1, 2, 9, 20], "--draws": [1, 2, 3],
               "--attend-to-query": [None], "--population": [None], "--width": [1, 3], "--depth": [1, 2, 3],
               "--T": [1, 2, 3, 7], "--d": [1, 2], "--q": [1, 2, 7, 8], "--batch": [1, 2, 5], "--steps": [1, 2, 3],
               "--optimizer": ["gd", "adam"], "--lr": [0.1, 1e-300, 1e30, 1e300], "--schedule": ["constant", "cosine"],
               "--init": ["zero", "random"], "--dtype": ["float32", "float64"], "--seed": [0, 10 ** 20]}
    monkeypatch.setattr(train, "SCORES", 500)
    monkeypatch.setitem(train.EVALUATION, "eval_sequences", 4)
    monkeypatch.setattr(train, "precise_error", lambda weights, config: (0.1, 0.1))
    outcomes = {0: 0, 1: 0, 2: 0}
    for _ in range(300):
        argv = ["--T", "3", "--d", "2", "--q", "1", "--steps", "2"]
        for flag in rng.choice(list(choices), size=rng.integers(7), replace=False):
            value = choices[flag][rng.integers(len(choices[flag]))]
            argv += [flag] if value is None else [flag, str(value)]
        monkeypatch.setattr(sys, "argv", ["train.py", *argv, "--out", str(path)])
        status, (out, err) = train.main(), capsys.readouterr()
        outcomes[status] += 1
        assert err.count("\n") == (status != 0), (argv, err)
        if status == 0:
            run = train.load(path)
            assert len(run["step"]) == len(run["loss"]) == json.loads(run["config"])["steps"]
        elif status == 1:
            assert "diverged" in err, argv
        path.unlink(missing_ok=True)
        assert not list(tmp_path.iterdir()), argv
    assert min(outcomes.values()) > 5 and outcomes[0] > 100, outcomes


@pytest.mark.parametrize("attend_to_query", (False, True))
@pytest.mark.parametrize("sizes", [dict(T=1, q=1), dict(q=6), dict(d=1), dict(d_e=1), dict(n=1), dict(T=1, q=1, d=1, d_e=1, n=1)])
def test_the_smallest_sizes_and_the_largest_logits(sizes, attend_to_query):
    for scale in 0, 1, 1e4, 1e8:        # at 0 all logits are equal
        for dtype in np.float32, np.float64:
            W, V, *inputs = example(**sizes, scale=scale)
            L, dW, dV = sts.loss_and_grads(W.astype(dtype), V.astype(dtype), *inputs, attend_to_query)
            assert np.isfinite(L) and np.isfinite(dW).all() and np.isfinite(dV).all()
            assert dtype == np.float32 or scale > 1 or (scale == 0 and sizes.get("T") == 1) or accepted(
                dV, numerical_gradients(W, V, *inputs, attend_to_query)[1])


def test_the_benchmark_measures_both_dtypes_and_each_size(monkeypatch, capsys):
    monkeypatch.setattr(train, "PAPER", dict(train.PAPER, T=60, batch=128))
    monkeypatch.setattr(sys, "argv", ["train.py", "--benchmark"])
    assert train.main() == 0
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: [float(x) for x in line[13:].split()]
            for line in out.splitlines() if line[:2] in ("fl", "as", "--")}
    assert {"float32", "float64", "as above", "--T 120", "--batch 256", "--pe-dim 340", "--draws 8"} <= set(rows)
    assert rows["as above"][1] == rows["as above"][3] == 1
    assert 1.3 < rows["--batch 256"][3] < 2.1 and rows["float64"][-2] > 1.5 * rows["float32"][-2]


# Figures

FILES = "sts.py", "fcn.py", "theory.py", "train.py", "plots.py"


@pytest.fixture(scope="module")
def quick_plots(tmp_path_factory):
    """A copy of the program, with one seed and fewer sizes, and what it prints: (folder, stdout)."""
    folder = tmp_path_factory.mktemp("plots")
    for name in FILES:
        shutil.copy(HERE / name, folder)
    source = (folder / "plots.py").read_text()
    for old, new in (("SEEDS = 0, 1, 2\n", "SEEDS = 0,\n"), ("COUNTED_T = 50, 100, 200, 500, 1000\n", "COUNTED_T = 50, 100\n"),
                     ("LENGTHS = 200, 400, 1000, 4000, 10_000, 20_000 ", "LENGTHS = 200, 1000 ")):
        assert source.count(old) == 1
        source = source.replace(old, new)
    (folder / "plots.py").write_text(source)
    status, out, err = command("plots.py", "--quick", cwd=folder)
    assert (status, err) == (0, "")
    return folder, out


def test_plots_quick_from_nothing_then_from_the_cache(quick_plots):
    folder, first = quick_plots
    names = [f"figure_{i}.png" for i in range(1, 9)] + ["movie.gif"]
    assert [line for line in first.splitlines() if line.startswith("runs")] == [f"runs/quick/{name}" for name in names]
    made = folder / "runs" / "quick"
    assert sorted(path.name for path in made.iterdir()) == sorted([*names, "claims.txt"])
    assert (made / "claims.txt").read_text() in first
    for name in names:
        content = (made / name).read_bytes()
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"GIF89a") and len(content) > 20_000
    rows = [line for line in first.splitlines() if line.endswith(("yes", "NO"))]
    assert "37 of 37 runs" in first and {row[0] for row in rows} == set("12345678")
    for claim in "1/L is linear", "L falls under 2 %", "stochastic still falls", "PE-PE block of W: share":
        assert any(claim in row and row.endswith("yes") for row in rows), claim

    cache = folder / "runs" / "figures"
    runs = sorted(path.name for path in cache.iterdir())
    damaged = cache / plots.cache_file(plots.configurations("fixed", quick=True)[0]).name
    damaged.write_bytes(damaged.read_bytes()[:1000])
    status, again, err = command("plots.py", "2", "--quick", "--format", "svg", "--out", "svg", cwd=folder)
    assert (status, err) == (0, "")
    assert f"{damaged.name} is damaged: it is trained again" in again and "1 of 1 runs" in again
    assert ([line.split() for line in again.splitlines() if line.endswith(("yes", "NO"))]
            == [row.split() for row in rows if row[0] == "2"])
    assert [path.name for path in (folder / "svg").iterdir()] == ["figure_2.svg"]
    assert (folder / "svg" / "figure_2.svg").read_text().startswith("<?xml")
    assert sorted(path.name for path in cache.iterdir()) == runs


def test_a_pipe_closed_before_the_table_gives_no_traceback(quick_plots):
    folder, _ = quick_plots
    reader = subprocess.Popen([sys.executable, "plots.py", "1", "--quick"], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reader.stdout.close()
    assert (reader.stderr.read(), reader.wait()) == ("", 130)
    reader.stderr.close()


def test_an_interrupted_call_stops_at_once_and_the_next_one_goes_on(tmp_path):
    for name in FILES:
        shutil.copy(HERE / name, tmp_path)
    arguments = [sys.executable, "plots.py", "1", "--quick", "--jobs", "1"]
    first = subprocess.Popen(arguments, cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    while not first.stdout.readline().startswith("1 of 3 runs"):
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=30)
    assert first.returncode == 130
    assert err.startswith("plots.py: error: interrupted") and err.count("\n") == 1
    finished = len(list((tmp_path / "runs" / "figures").glob("*.npz")))
    assert 1 <= finished < 3
    status, out, err = command("plots.py", "1", "--quick", cwd=tmp_path)
    assert status == 0 and f"{3 - finished} runs to train" in out


def test_the_cache_key_changes_with_each_setting():
    config = plots.configurations("stochastic")[0]
    names = {plots.cache_file(config)}
    for key, value in config.items():
        names.add(plots.cache_file(config | {key: f"{value} changed"}))
    assert len(names) == len(config) + 1
    assert {"format", "seed", "lr", "eval_draws", "evaluations", "dtype"} <= set(config)
    assert plots.cache_file(dict(reversed(config.items()))) in names


def test_a_run_is_taken_from_the_cache_only_if_it_is_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots, "CACHE", tmp_path)
    config = train.parse([*TINY, "--steps", "4"])[0]
    assert plots.cached(config) is None and capsys.readouterr().out == ""
    path = plots.cache_file(config)
    plots.train_and_save([config])
    assert len(plots.cached(config)["loss"]) == 4
    other = train.start(config | {"seed": 1})
    train.train(other)
    partial = train.load(path)
    partial["loss"] = partial["loss"][:3]
    for run in other, partial, {"a": np.zeros(3)}:
        train.save(run, path)
        assert plots.cached(config) is None and "is damaged" in capsys.readouterr().out
    path.write_text("nothing")
    assert plots.cached(config) is None and "is damaged" in capsys.readouterr().out


def test_groups_are_of_runs_that_see_the_same_sequences():
    configs = [config for arm in plots.ARMS for config in plots.configurations(arm)]
    groups = plots.groups(configs)
    assert sorted(map(id, itertools.chain(*groups))) == sorted(map(id, configs))
    assert max(map(len, groups)) == 4
    for group in groups:
        if "population" in group[0]:
            assert len(group) == 1
        else:
            (X, y), *others = (train.batch(config, 7) for config in group)
            assert all(np.array_equal(X, X_2) and np.array_equal(y, y_2) for X_2, y_2 in others)
            assert len({X.dtype, *(X_2.dtype for X_2, _ in others)}) == 1


def test_compared_arms_differ_in_pe_alone():
    for pair in (plots.FIGURES[figure][2] for figure in "245"):
        for quick in False, True:
            for one, two in zip(*(plots.configurations(arm, quick) for arm in pair)):
                assert {key for key in one if one[key] != two[key]} == {"pe"}
    assert [config["seed"] for config in plots.configurations("stochastic")] == [0, 1, 2]


def made_up(loss=lambda t: 1.0 + t, length=0.01, subset=(0.1, 0.2), cos=0.999):
    """A run of 2000 steps, lr 1 and d_e = 40: its loss and its error at T_test = 40 as functions of t (or
    numbers), its last errors at q_test = 3, 5 (the first are 1), and its last cosines."""
    config = train.parse("--quick --pe-family orthonormal --lr 1".split())[0]
    t, moments = np.arange(2000), np.arange(0, 2001, 100)
    errors = np.stack([np.ones(21), length(moments) if callable(length) else np.full(21, length)], axis=1)
    return dict(config=json.dumps(config), step=t, loss=loss(t), eval_step=moments, T_test=[20, 40],
                error_T_test=errors, q_test=[3, 5], cos_W=[0, cos], cos_V=[0, cos],
                error_q_test=np.concatenate([np.ones((10, 2)), np.tile(subset, (11, 1))]))


def held(rows):
    """The claims as {text: holds}."""
    texts = {text: bool(holds) for text, _, holds in rows}
    assert len(texts) == len(rows)
    return texts


def test_claims_of_figure_1_on_made_up_runs():
    good = made_up(lambda t: 1 / (10 + 0.1 * t))            # slope 4 lr / d_e = 0.1
    rows = plots.claims_1({"stochastic": [good, good]})
    assert all(held(rows).values()) and len(rows) == 5
    assert rows[0][1].startswith("1.0000") and rows[1][1].startswith("1.000")
    steep = made_up(lambda t: 1 / (1 + 0.13 * t))
    assert list(held(plots.claims_1({"stochastic": [good, steep]})).values()) == [1, 0, 1, 1, 1]
    bad = made_up(lambda t: np.where(t < 1900, 1 / (1 + 0.01 * t), 1.0), cos=0.98)
    assert not any(held(plots.claims_1({"stochastic": [good, bad]})).values())


def test_claims_of_figure_2_on_made_up_runs():
    falling, level = made_up(length=lambda t: np.exp(-t / 1000)), made_up(length=0.4, subset=(0.3, 0.3))
    rising, slow = (made_up(length=lambda t, rate=rate: np.exp(rate * t / 1000), subset=subset)
                    for rate, subset in ((0.3, (0.3, 0.3)), (-0.1, (0.1, 0.2))))
    rows = plots.claims_2({"stochastic": [falling, falling], "fixed": [level, level]})
    assert rows[0] == ("T_test = 40: fixed / stochastic ends at 2 or more, here 0.400 / 0.135",
                       "3.0 (3.0 to 3.0)", True)
    assert rows[1][1].startswith("x0.55") and rows[2][1].startswith("x1.00")     # exp(-0.6)
    assert all(held(rows).values())
    for stochastic, fixed, expected in (([falling, level], [level, falling], [0, 0, 0, 0]),
                                        ([falling, slow], [level, rising], [1, 0, 0, 1]),
                                        ([falling, falling], [level, rising], [1, 1, 0, 1])):
        assert list(held(plots.claims_2({"stochastic": stochastic, "fixed": fixed})).values()) == expected


def test_claims_of_figure_3_on_made_up_runs(monkeypatch):
    config = train.parse(["--quick", "--init", "random"])[0]
    W, V = sts.ground_truth(3, 32)
    good = made_up(lambda t: 1 / (1 + t)) | dict(config=json.dumps(config), W=3 * W + 1e-4, V=V + 1e-4)
    rows = plots.claims_3({"full model": [good, good]})
    assert all(held(rows).values()) and rows[0][1] == "100.0% (100.0% to 100.0%)" and len(rows) == 11
    bad = made_up() | dict(config=json.dumps(config), W=np.ones((35, 35)), V=np.ones((3, 35)))
    for text, holds in held(plots.claims_3({"full model": [good, bad]})).items():
        assert holds == ("at the start" in text), text
    with monkeypatch.context() as patch:
        patch.setattr(train, "start", lambda config: good)      # nothing left to learn
        for text, holds in held(plots.claims_3({"full model": [good]})).items():
            assert holds == ("at the start" not in text and "falls, end / start" not in text), text
    (share, cosine, rest), _ = plots.blocks(
        dict(config='{"d": 1}', W=np.ones((4, 4)), V=np.ones((1, 4))))
    assert share == 9 / 16 and math.isclose(cosine, 1 / math.sqrt(3)) and math.isclose(rest, math.sqrt(13))


@pytest.mark.parametrize("figure", "45")
def test_claims_of_figures_4_and_5_on_made_up_runs(figure, monkeypatch):
    _, claims, arms = plots.FIGURES[figure]
    low = made_up(length=0.04, subset=(0.1, 0.1))
    high = made_up(length=lambda t: 0.2 + abs(t - 1000) / 4000, subset=(0.3, 0.4))
    worse = made_up(length=0.04, subset=(1.2, 0.05))    # goes up at one q_test, and falls with q_test
    single = [np.array([[1.0, 0.1], [1.0, 0.1]]), np.array([[0.2, 0.2], [0.2, 0.2]])]
    monkeypatch.setattr(plots, "one_draw", lambda runs: single)
    assert all(held(claims(dict(zip(arms, ([low, low], [high, high]))))).values())
    for stochastic, fixed in ([low, high], [high, low]), ([high, low], [low, high]):
        rows = held(claims(dict(zip(arms, (stochastic, fixed)))))
        assert {text for text, holds in rows.items() if holds} == {text for text in rows if "goes down" in text}
    rows = held(claims(dict(zip(arms, ([low, worse], [high, worse])))))
    assert not any(holds for text, holds in rows.items() if "goes down" in text or "gets worse" in text)
    single[0][1, 1] = single[1][1, 1] = 0.5
    rows = held(claims(dict(zip(arms, ([low, low], [high, high])))))
    assert {text for text, holds in rows.items() if not holds} == {text for text in rows if "one draw" in text}


def test_claims_of_figure_6_on_made_up_runs(monkeypatch):
    def made_up_nets(excess, deviation=0.001):
        """All arms of the figure, with nets that lie by a share of the bound above it."""
        runs = {arm: [train.start(config) for config in plots.configurations(arm)] for arm in plots.FIGURES["6"][2]}
        for arm in [*plots.NETS.values(), "net"]:
            for run in runs[arm]:
                least = train.bound(json.loads(run["config"]))
                run.update(error=least * (1 + excess) + 0.001 * (least == 0), error_se=deviation)
        return runs

    monkeypatch.setattr(plots, "attention_error", lambda runs: np.array([0.01, 0.02, 0.03]))
    rows = plots.claims_6(made_up_nets(0.05))
    assert all(held(rows).values())
    assert rows[3][0].startswith("m = 25,") and rows[3][1] == "1.050 and 1.050"
    failing = [text for text, holds in held(plots.claims_6(made_up_nets(0.25))).items() if not holds]
    assert len(failing) == 5 + 2 and all("1.1" in text or "mean of all" in text for text in failing)
    rows = plots.claims_6(made_up_nets(-0.05))
    assert [text for text, holds in held(rows).items() if not holds] == [
        "none of the 42 nets is more than 4 standard errors below the bound"]
    assert rows[7][1] == f"lowest {-0.05 * 0.78333 / 0.001:+.1f} s.e."
    monkeypatch.setattr(plots, "attention_error", lambda runs: np.array([0.01, 0.02, 0.3]))
    failing = [text for text, holds in held(plots.claims_6(made_up_nets(0.05))).items() if not holds]
    assert len(failing) == 2 and all("attention of width" in text for text in failing)


def test_claims_of_figure_7_on_made_up_runs(monkeypatch):
    monkeypatch.setattr(plots, "counted_steps", lambda d, q, share: theory.predict_steps(
        share, np.array(plots.COUNTED_T), d, q) * stretch)

    def runs_of(loss, a):
        run = made_up(loss) | dict(a=[0, a], alpha=[0, a])
        return [run | dict(config=json.dumps(json.loads(run["config"]) | {"T": 50}))] * 3

    exact = runs_of(lambda t: 1 / (1 + 0.1 * t), 2.0)        # the slope 4 lr / d_e, as d_e = 40
    stretch = 1.0
    runs = {arm: exact for arm in plots.FIGURES["7"][2]}
    rows = plots.claims_7(runs)
    assert all(held(rows).values()) and "exact 1.000, sampled" in rows[4][0] and rows[4][1].startswith("1.000")
    stretch = 1.2
    other = runs_of(lambda t: 1 / (1 + 0.2 * t), 2.2)
    rows = plots.claims_7(runs | {arm: other for arm in runs if "exact" not in arm})
    assert not any(held(rows).values()) and len(rows) == 4 * 3 + 2 + 2 + 4 + 7
    assert rows[2][1] == "1.100 (1.100 to 1.100)" and rows[-1][1] == ", ".join(["0.833"] * 5)


def test_claims_of_figure_8_on_made_up_runs(monkeypatch):
    run = made_up(lambda t: 0.1 + 0 * t)
    runs = {arm: [run, run] for arm in plots.FIGURES["8"][2]}
    monkeypatch.setattr(plots, "noise_floor", lambda *sizes: floor)
    monkeypatch.setattr(plots, "measured_error", lambda run, T: 0.2)
    monkeypatch.setattr(plots, "predicted_error", lambda run, T: predicted)
    for floor, predicted, expected in (0.1, 0.2, (1, 1)), (0.05, 0.2, (0, 1)), (0.1, 0.3, (1, 0)):
        holds = [holds for _, _, holds in plots.claims_8(runs)]
        assert holds == [expected[0]] * (len(plots.FLOORS) + 1) + [expected[1]] * len(plots.LENGTHS)


def test_errors_at_long_sequences_are_measured_and_predicted_alike():
    """For weights that are multiples of W*, V* exactly; the mean over 8 sets of sequences and encodings."""
    config = train.parse("--T 20 --d 4 --q 3 --pe-dim 64".split())[0]
    W, V = sts.ground_truth(4, 64)
    run = dict(config=json.dumps(config), W=(4 * W).astype("f"), V=(1.5 * V).astype("f"), a=[4.0], alpha=[1.5])
    for T in 20, 300:
        errors = [plots.measured_error(run | dict(config=json.dumps(config | {"seed": seed})), T) for seed in range(8)]
        assert abs(np.mean(errors) / plots.predicted_error(run, T) - 1) < 0.15


def test_one_draw_evaluates_with_one_draw():
    config = train.parse([*TINY])[0]
    W, V = sts.ground_truth(2, 16)
    lengths, subsets = plots.one_draw([dict(config=json.dumps(config), W=20 * W, V=V)] * 2)
    assert lengths.shape == (2, 5) and subsets.shape == (2, 4)
    assert lengths[0].tolist() == train.evaluate([20 * W, V], config | {"eval_draws": 1})[0]
    assert lengths[0, 0] > 2 * train.evaluate([20 * W, V], config)[0][0]


def test_smoothing_averages_five_evaluations():
    errors = np.arange(14.0).reshape(7, 2)
    np.testing.assert_allclose(plots.smooth(errors), [errors[k:k + 5].mean(axis=0) for k in range(3)])


def test_the_table_is_aligned_and_says_no():
    lines = plots.table([("1", "a claim", "0.5", True), ("2", "b", "0.25 (0.2 to 0.3)", False)]).splitlines()
    assert [line[line.index("holds") if i == 0 else -3:].strip() for i, line in enumerate(lines)] == [
        "holds", "yes", "NO"]
    assert len({line.index(word) for line, word in zip(lines, ("claim", "a claim", "b "))}) == 1


@pytest.mark.parametrize("flags, words", [
    ("9", "'9' is not one of 1, 2, 3, 4, 5, 6, 7, 8, movie"), ("--jobs 0", "--jobs: '0' is not a whole number"),
    ("--format bmp", "--format: invalid choice: 'bmp'"),
    ("--out README.md/figures", "'README.md/figures'"), ("--out=", "--out: ''")])
def test_bad_flags_of_plots(flags, words, capsys, monkeypatch):
    monkeypatch.chdir(HERE)
    with pytest.raises(SystemExit) as stop:
        plots.parse(flags.split())
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and words in err


def test_the_readme_shows_the_claims_as_last_printed():
    """The same claims and verdicts.  .ci/run compares the numbers, whose last digits depend on the processor."""
    claims, readme = ([" ".join(re.sub(r"[-+]?\d+\.\d+", "#", line).split()) for line in
                       (HERE / file).read_text().splitlines()] for file in ("figures/claims.txt", "README.md"))
    assert len(claims) > 80 and set(claims) <= set(readme)
