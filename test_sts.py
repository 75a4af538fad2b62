"""Tests:  python -m pytest

Each test states a fact: first about the task, the models, their gradients and the bound, then about
the programs.  Statistical tests have a fixed seed and allow 5 standard errors.
"""

import itertools
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from multiprocessing.pool import ThreadPool
from pathlib import Path
from unittest.mock import Mock

for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
    os.environ.setdefault(threads, "1")     # before NumPy loads: threads slow small matrices down

import numpy as np
import pytest

import fcn
import plots
import sts
import train

HERE = Path(__file__).resolve().parent
allclose = np.testing.assert_allclose


# The task and the encodings


@pytest.mark.parametrize("q", (1, 3))
def test_every_subset_is_equally_likely(q):
    n, T = 50_000, 6
    _, y = sts.sample_sts(np.random.default_rng(0), n, T, 1, q)
    subsets, counts = np.unique(np.sort(y, axis=1), axis=0, return_counts=True)
    p = 1 / math.comb(T, q)
    assert subsets.tolist() == [list(s) for s in itertools.combinations(range(T), q)]
    assert abs(counts / n - p).max() < 5 * math.sqrt(p * (1 - p) / n)


def test_tokens_are_independent_standard_normal():
    X, _ = sts.sample_sts(np.random.default_rng(0), 20_000, 4, 3, 2)
    n, flat = len(X), X.reshape(-1, 12)
    assert abs(flat.mean(axis=0)).max() < 5 / math.sqrt(n)
    assert abs(flat.T @ flat / n - np.eye(12)).max() < 5 * math.sqrt(2 / n)
    assert abs((flat ** 4).mean() - 3) < 5 * math.sqrt(96 / flat.size)      # E x^4 = 3


def test_one_hot_encodings_are_the_identity():
    E = sts.positional_encoding("onehot", 3, 8, np.random.default_rng(0), 2)
    assert (E == np.eye(3, 8)).all()


@pytest.mark.parametrize("kind, square", [("rademacher", 1 / 8), ("orthonormal", 0)])
def test_random_encodings_are_nearly_orthonormal_without_a_preferred_direction(kind, square):
    """`square` is the mean of (e_i . e_j)^2; mean 0 and covariance I / d_e for all of E as one."""
    n, d_e = 4000, 8
    E = sts.positional_encoding(kind, 3, d_e, np.random.default_rng(0), n)
    allclose((E ** 2).sum(axis=2), 1)
    inner, flat = (E[:, 1] * E[:, 2]).sum(axis=1), E.reshape(n, 3 * d_e)
    assert abs((inner ** 2).mean() - square) <= 5 * square * math.sqrt(2 / n)
    assert abs(flat.mean(axis=0)).max() < 5 / math.sqrt(d_e * n)
    assert abs(flat.T @ flat / n - np.eye(3 * d_e) / d_e).max() < 5 / math.sqrt(d_e * n)


# The attention model


def example(kind="rademacher", K=1, n=4, T=5, d=2, q=3, d_e=6, seed=0):
    """Random weights and a batch: W, V, X, y, E (T, d_e), or E (K, T, d_e) if K > 1."""
    rng = np.random.default_rng(seed)
    X, y = sts.sample_sts(rng, n, T, d, q)
    E = sts.positional_encoding(kind, T, d_e, rng, K)
    W, V = rng.standard_normal((d + d_e, d + d_e)), rng.standard_normal((d, d + d_e))
    return W, V, X, y, E if K > 1 else E[0]


def columns(X, y, E, attend_to_query, query):
    """Z (d + d_e, number of keys) and z_query of each sequence, as in the paper."""
    for x, selected in zip(X, y):
        c = 1 if query == "sum" else 1 / len(selected)
        z_query = np.concatenate([0 * x[0], c * E[selected].sum(axis=0)])
        Z = np.concatenate([x, E], axis=1).T
        yield np.column_stack([Z, z_query]) if attend_to_query else Z, z_query


FORMS = list(itertools.product((False, True), ("sum", "mean")))         # attend_to_query, query


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_attention_is_its_definition(form):
    W, V, X, y, E = example(K=3)
    P, f = sts.attention(W, X, y, E, *form), np.empty((3, 4, 2))
    for k in range(3):
        for b, (Z, z_query) in enumerate(columns(X, y, E[k], *form)):
            S = np.exp(Z.T @ W @ z_query)
            f[k, b] = V @ Z @ S / S.sum()                               # Definition 4
            allclose(P[k, b], S / S.sum(), rtol=1e-12)
        allclose(sts.forward(W, V, X, y, E[k], *form)[0], f[k], rtol=1e-12)
    target = [sum(X[b, i] for i in y[b]) / 3 for b in range(4)]         # Definition 1
    L = 0.5 * ((f.mean(axis=0) - target) ** 2).sum(axis=1).mean()       # Definition 5
    allclose(sts.loss_and_grads(W, V, X, y, E, *form)[0], L, rtol=1e-12)


@pytest.mark.parametrize("full", (False, True))
def test_mean_query_is_sum_query_with_W_over_q_if_it_is_no_key(full):
    W, V, X, y, E = example()
    mean, _ = sts.forward(W, V, X, y, E, full, "mean")
    assert np.allclose(mean, sts.forward(W / 3, V, X, y, E, full, "sum")[0]) == (not full)


@pytest.mark.parametrize("kind, T", [("onehot", 20), ("orthonormal", None)])
def test_ground_truth_solves_the_task_as_its_logits_grow(kind, T):
    _, _, X, y, E = example(kind, T=20, d_e=30)
    W_star, V_star = sts.ground_truth(2, 30, T)
    losses = [sts.loss_and_grads(c * W_star, V_star, X, y, E)[0] for c in (1, 5, 10, 1e6)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-25


def test_cosine_is_1_and_minus_1_for_parallel_arrays_and_0_for_zero():
    A = np.arange(6.0).reshape(2, 3)
    allclose([sts.cosine(A, 2 * A), sts.cosine(A, -A), sts.cosine(A, 0 * A)], [1, -1, 0])


@pytest.mark.parametrize("kind, T", [("onehot", 5), ("orthonormal", None)])
def test_gradient_descent_from_zero_finds_the_ground_truth(kind, T):
    rng, (W_star, V_star) = np.random.default_rng(0), sts.ground_truth(2, 7, T)
    W, V = 0 * W_star, 0 * V_star
    for _ in range(300):
        E = sts.positional_encoding(kind, 5, 7, rng)
        _, dW, dV = sts.loss_and_grads(W, V, *sts.sample_sts(rng, 64, 5, 2, 2), E)
        W, V = W - dW, V - dV
    assert sts.cosine(W, W_star) > 0.999 and sts.cosine(V, V_star) > 0.999


# Fully-connected nets and their bound


def net_example(sizes=(12, 6, 5, 2), n=9, seed=0):
    """Random params of a net, biases too, and a batch for it: params, X, y."""
    rng, d = np.random.default_rng(seed), sizes[-1]
    X, y = sts.sample_sts(rng, n, sizes[0] // (d + 1), d, 2)
    return [(w, rng.standard_normal(b.shape)) for w, b in fcn.init_fcn(rng, sizes)], X, y


def test_net_is_its_definition():
    params, X, y = net_example()
    f, _ = fcn.forward(params, fcn.encode(X, y))
    for b in range(len(X)):
        h = np.concatenate([X[b].reshape(-1), [i in y[b] for i in range(4)]])
        for weight, bias in params:
            a = weight.T @ h + bias
            h = np.where(a > 0, a, 0)
        allclose(f[b], a, rtol=1e-12)
    L = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1).mean()
    allclose(fcn.loss_and_grads(params, X, y)[0], L, rtol=1e-12)


def test_initial_weights_of_a_net_have_their_variances():
    layers = fcn.init_fcn(np.random.default_rng(0), [400, 300, 200, 100])
    for (weight, bias), variance in zip(layers, (2 / 400, 2 / 300, 1 / 200)):
        assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / weight.size)
        assert not bias.any()


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1)])
def test_bound_is_what_the_top_m_eigenvalues_leave(T, d, q):
    A = np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q    # the target is A vec(X)
                  for y in itertools.combinations(range(T), q)])
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    top = np.cumsum([0, *np.linalg.eigvalsh(S)[::-1]])                  # of m = 0, ..., T d
    bound = fcn.width_lower_bound(np.arange(T * d + 3), T, d, q)
    allclose(bound[:T * d + 1], (d / q - top) / 2, atol=1e-14)
    assert (bound[T * d:] == 0).all()


@pytest.mark.parametrize("narrow", (False, True))
def test_constructed_nets_solve_the_task_as_B_grows(narrow):
    T, d, q, n = 6, 2, 2, 20_000
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, d, q)
    for B in 0, 1, 2, 3:
        params = fcn.constructed_fcn(T, d, q, B, narrow)
        assert params[0][0].shape == (T * d + T, T * d if narrow else 2 * T * d)
        f, _ = fcn.forward(params, fcn.encode(X, y))
        losses = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1)
        gap = losses.mean() - fcn.constructed_loss(T, d, q, B, narrow)
        assert abs(gap) < 5 * losses.std() / math.sqrt(n)
    beyond = fcn.constructed_fcn(T, d, q, abs(X).max(), narrow)
    assert fcn.loss_and_grads(beyond, X, y)[0] < 1e-25


def test_constructed_loss_is_accurate_at_large_B():
    """E relu(x - B)^2 is phi(B) times the sum below, up to 1e-15; the net has d = q = T - q = 1."""
    B = 30
    s = sum((-1) ** k * math.factorial(2 * k + 2) / (math.factorial(k) * 2 ** k * B ** (2 * k + 3))
            for k in range(15)) * math.exp(-B * B / 2) / math.sqrt(2 * math.pi)
    allclose(fcn.constructed_loss(2, 1, 1, B), s, rtol=1e-12)


# The gradients.  A case is (kind, K, attend_to_query, query) for attention, or the sizes of a net.

ATTENTION = [("rademacher", 1, False, "sum"), ("orthonormal", 3, False, "mean"),
             ("onehot", 1, True, "sum"), ("rademacher", 3, True, "mean")]
NETS = [(12, 2), (12, 6, 2), (12, 3, 4, 5, 2)]     # up to three hidden layers
WRONG = {"zeroed": np.zeros_like, "negated": np.negative, "1 % off": lambda g: 1.01 * g,
         "transposed": lambda g: (g.T if g.ndim == 2 else g[::-1]).reshape(g.shape)}


def problem(case, seed=0):
    """Random weights, and the function from weights to the loss on a batch and its gradients."""
    if case in ATTENTION:
        W, V, *batch = example(*case[:2], seed=seed)
        return [W, V], lambda weights: sts.loss_and_grads(*weights, *batch, *case[2:])
    params, *batch = net_example(case, seed=seed)

    def loss_and_grads(weights):
        L, grads = fcn.loss_and_grads(list(zip(weights[::2], weights[1::2])), *batch)
        return L, *itertools.chain(*grads)
    return [*itertools.chain(*params)], loss_and_grads


def accepted(grad, check):
    """Whether they agree entry by entry, up to rounding."""
    return np.allclose(grad, check, rtol=1e-10, atol=1e-13 * abs(check).max())


@pytest.mark.parametrize("where", ("zero", "random", "trained"))
@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
def test_gradients_agree_with_complex_steps(case, where):
    weights, loss_and_grads = problem(case)
    if where == "zero":         # but for biases, as all units of a net would be at their kinks
        weights = [0 * w if w.ndim == 2 else w for w in weights]
    for t in range(10 if where == "trained" else 0):
        _, *grads = problem(case, seed=t + 1)[1](weights)
        weights = [w - 0.1 * g for w, g in zip(weights, grads)]
    checks = [np.empty(w.shape) for w in weights]
    for i, w in enumerate(weights):
        for entry in np.ndindex(w.shape):           # Im L(w + ih) / h, for one entry of w
            moved = w.astype(complex)
            moved[entry] += 1e-30j
            L, *_ = loss_and_grads([*weights[:i], moved, *weights[i + 1:]])
            checks[i][entry] = L.imag / 1e-30
    _, *grads = loss_and_grads(weights)
    for grad, check in zip(grads, checks):
        assert accepted(grad, check) and (check.any() or where == "zero")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
def test_wrong_gradients_are_rejected(case, wrong):
    weights, loss_and_grads = problem(case)
    assert not any(accepted(WRONG[wrong](grad), grad) for grad in loss_and_grads(weights)[1:])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_backward_is_the_formulas_of_its_docstring(form):
    W, V, X, y, E = example()
    df, dW, dV = np.random.default_rng(1).standard_normal((4, 2)), 0, 0
    P = sts.attention(W, X, y, E, *form)
    for r, p, (Z, z_query) in zip(df, P, columns(X, y, E, *form)):
        g = r @ V @ Z                                               # g_j = r^T V z_j
        gbar = sum(p * g)
        dV = dV + np.outer(r, Z @ p)
        dW = dW + sum(p[j] * (g[j] - gbar) * np.outer(Z[:, j], z_query) for j in range(len(p)))
    for grad, formula in zip(sts.backward(sts.forward(W, V, X, y, E, *form)[1], df), (dW, dV)):
        allclose(grad, formula, rtol=1e-12, atol=1e-14)


# What the program promises


def test_no_array_of_all_keys_is_built():
    n, T, d, d_e = 100, 200, 5, 300
    W, V, X, y, E = example(n=n, T=T, d=d, d_e=d_e)
    tracemalloc.start()
    sts.loss_and_grads(W, V, X, y, E)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * T * (d + d_e) * 8 / 5


@pytest.mark.parametrize("kind", sts.LAWS)
def test_float32_stays_float32(kind):
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 3, 4, 2, 2, np.float32)
    E = sts.positional_encoding(kind, 4, 6, rng, 2, np.float32)
    W, V = np.ones((8, 8), np.float32), np.ones((2, 8), np.float32)
    net = fcn.init_fcn(rng, [12, 5, 2], np.float32)
    attention, (L, grads) = sts.loss_and_grads(W, V, X, y, E), fcn.loss_and_grads(net, X, y)
    arrays = [X, E, fcn.encode(X, y), *attention, L, *itertools.chain(*net, *grads)]
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


RNG, (W, V, X, y, E) = np.random.default_rng(0), example(T=5, q=3)
LAST, NEGATIVE = (np.where(y == y[0, 0], wrong, y) for wrong in (5, -1))
TWICE = np.column_stack([y, y[:, 0]])


@pytest.mark.parametrize("function, arguments, words", [
    (sts.sample_sts, (RNG, 3, 5, 0, 1), "need n, T, d >= 1, got n = 3, T = 5, d = 0"),
    (sts.sample_sts, (RNG, 128, 200, 5, 300), "need 1 <= q <= T, got q = 300, T = 200"),
    (sts.sample_sts, (RNG, 128, 200, 5, 0), "need 1 <= q <= T, got q = 0, T = 200"),
    (sts.positional_encoding, ("sinus", 4, 4, RNG), "got 'sinus'"),
    (sts.positional_encoding, ("onehot", 5, 4, RNG), "d_e >= 5"),
    (sts.positional_encoding, ("orthonormal", 5, 4, RNG), "d_e >= 5"),
    (sts.positional_encoding, ("rademacher", 3, 4, RNG, 0), "draws=0"),
    *((sts.forward, arguments, "need X|need V") for arguments in (
        (W[1:], V, X, y, E), (W, V[1:], X, y, E), (W, V, X[1:], y, E), (W, V, X, y, E[1:]),
        (W, V, X, np.arange(4), E))),
    (sts.forward, (W, V, X, y, E, False, "max"), "query must be sum or mean, got 'max'"),
    *((sts.forward, (W, V, X, wrong, E), "positions from 0 to 4") for wrong in (LAST, NEGATIVE)),
    *((fcn.encode, (X, wrong), "need y .* different positions from 0 to 4") for wrong in (
        LAST, NEGATIVE, TWICE, np.arange(4), y[1:])),
    (fcn.init_fcn, (RNG, [5, 0, 2]), "each at least 1"),
    (fcn.init_fcn, (RNG, [5]), "need sizes"),
    (fcn.forward, ([(np.eye(12), np.ones(12))], np.zeros((5, 9))), r"need inputs \(n, 12\)"),
    *((fcn.width_lower_bound, sizes, "need m >= 0, .* 1 <= q <= T") for sizes in (
        (np.array([3, -1, 2]), 4, 2, 2), (1, 4, 0, 2), (1, 4, 2, 0), (1, 4, 2, 5)))])
def test_what_is_impossible_is_refused(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(*arguments)


# Training


SMALL = {"T": 8, "d": 2, "q": 2, "pe_dim": 16, "batch": 16, "steps": 12, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 32}
RUNS = {name: SMALL | changes for name, changes in {
    "stochastic": {}, "fresh": {"fresh": True}, "fixed": {"pe": "fixed"}, "one-hot": {"pe": "onehot"},
    "full model": {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5},
    "adam": {"optimizer": "adam", "schedule": "cosine", "pe_family": "orthonormal"}}.items()}
RUNS["net"] = {"model": "fcn", "T": 6, "d": 2, "q": 2, "hidden": [7, 9], "batch": 16, "steps": 12}
all_runs = pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)


def assert_same(one, two):
    """Two runs are equal bit for bit."""
    assert one.keys() == two.keys() and one["config"] == two["config"]
    for key in one.keys() - {"config"}:
        np.testing.assert_array_equal(one[key], two[key])


LESSON = {"quick": True, "batch": 32, "steps": 1500}


@pytest.mark.parametrize("settings, learns", [
    ({"pe_family": "orthonormal", "lr": 1.0}, True), ({"pe": "fixed"}, False),
    ({"model": "fcn"}, False)], ids=str)
def test_on_a_few_sequences_only_redrawn_encodings_learn_and_the_others_memorize(settings, learns):
    run = train.train(**LESSON, **settings)
    zero = 3 / (2 * 2)                                              # d/(2q)
    assert run["loss"][-1] < (0.03 if learns else 0.001)
    assert run["error"][-1, 0] < 0.03 if learns else run["error"][-1, 0] > zero


def test_only_redrawn_encodings_generalize_in_length():
    stochastic, fixed = (train.train(quick=True, pe=pe, fresh=True, steps=1200)
                         for pe in ("stochastic", "fixed"))
    assert max(stochastic["error"][-1, 0], fixed["error"][-1, 0]) < 0.02        # T = 20
    assert stochastic["error"][-1].max() < 0.1 and fixed["error"][-1, 4] > 0.19     # T = 40


def test_a_net_comes_close_to_the_bound_and_not_below():
    run = train.train(model="fcn", T=6, d=2, q=2, fresh=True, hidden=[6, 64], optimizer="adam",
                      schedule="cosine", steps=1500, eval_sequences=5000)
    bound, (error,), (se,) = fcn.width_lower_bound(6, 6, 2, 2), run["error"][-1], run["se"][-1]
    assert bound - 5 * se < error < 1.1 * bound


@pytest.mark.parametrize("name", ("stochastic", "fresh", "fixed", "one-hot", "full model"))
def test_training_is_gradient_descent(name):
    """The loop written out.  Fixed encodings and the full batch are the same at every step."""
    c = train.configuration(**RUNS[name])
    run = train.start(c)
    W, V, losses = run["W"], run["V"], []
    for t in range(c.steps):
        X, y = train.batch(c, t if c.fresh else 0)
        E = train.encodings(run, c.T, c.draws, "encodings", t)
        L, dW, dV = sts.loss_and_grads(W, V, X, y, E, c.attend_to_query, c.query)
        W, V = W - 0.5 * dW, V - 0.5 * dV
        losses.append(L)
    train.descend(run)
    for found, expected in (run["W"], W), (run["V"], V), (run["loss"], np.array(losses)):
        np.testing.assert_array_equal(found, expected)
    assert {run[key].dtype for key in ("W", "V")} == {np.dtype("float32")}


def test_every_step_has_its_own_encodings_and_with_fresh_its_own_sequences():
    run = train.start(train.configuration(**SMALL))
    drawn = [train.encodings(run, 8, 2, "encodings", t).tobytes() for t in range(9)]
    batches = [train.batch(run["config"], t)[0].tobytes() for t in range(9)]
    assert len(set(drawn)) == len(set(batches)) == 9
    fixed = train.start(train.configuration(**RUNS["fixed"]))
    drawn = [train.encodings(fixed, 8, 1, "encodings", t) for t in (3, 4)]
    assert (drawn[0] == drawn[1]).all() and drawn[0].dtype == np.float32
    assert abs(drawn[0]).max() == abs(drawn[0]).min() == np.float32(1 / 4)      # random signs


@pytest.mark.parametrize("schedule", ("constant", "cosine"))
def test_adam_follows_its_published_formulas(schedule):
    c = train.configuration(**SMALL | {"optimizer": "adam", "schedule": schedule})
    run, w, m, v = train.start(c), 0, 0, 0
    gradients = np.random.default_rng(0).standard_normal((6, 18, 18))
    for t, g in enumerate(gradients, 1):                            # Algorithm 1, Kingma and Ba
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g ** 2
        step = m / (1 - 0.9 ** t) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
        rate = 0.5 * (1 if schedule == "constant" else (1 + math.cos(math.pi * (t - 1) / 12)) / 2)
        w = w - rate * step
        run["W"] = run["W"] - train.learning_rate(c, t - 1) * train.adam(run, "W", g, t)
    allclose(run["W"], w, rtol=1e-10)


@pytest.mark.parametrize("name", ("stochastic", "fixed", "full model"))
def test_errors_are_losses_on_new_sequences_of_each_length_and_subset_size(name):
    run = train.start(train.configuration(**RUNS[name] | {"T_test": [6, 12], "q_test": [1]}))
    c, rng = run["config"], np.random.default_rng(0)
    run |= {"W": rng.standard_normal((18, 18), np.float32), "V": run["V"] + np.float32(0.3)}
    train.evaluate(run)
    assert run["tests"].tolist() == [[8, 2], [6, 2], [12, 2], [8, 1]]
    for k, (T, q) in enumerate(run["tests"]):
        X, y = sts.sample_sts(train.stream(c, "tests", k, 0), 32, T, 2, q, np.float32)
        E = train.encodings(run, T, 16, "tests", k, 1)
        assert len(E) == (1 if name == "fixed" else 16)
        losses = [sts.loss_and_grads(run["W"], run["V"], X[[b]], y[[b]], E, c.attend_to_query,
                                     c.query)[0] for b in range(32)]
        allclose(run["error"][0, k], np.mean(losses), rtol=1e-5)
        allclose(run["se"][0, k], np.std(losses) / math.sqrt(32), rtol=1e-5)
    assert run["cos_V"][0] == sts.cosine(run["V"], sts.ground_truth(2, 16)[1])
    assert run["cos_W"][0] == sts.cosine(run["W"], sts.ground_truth(2, 16)[0])


def test_a_random_start_has_the_standard_deviation_asked_for():
    run = train.start(train.configuration(**RUNS["full model"] | {"T": 2, "pe_dim": 98}))
    for name in "WV":
        assert abs(run[name].std() / 0.5 - 1) < 5 / math.sqrt(2 * run[name].size)
    assert abs(sts.cosine(run["V"], run["W"][:2])) < 5 / math.sqrt(200)         # independent


@all_runs
def test_a_run_is_repeated_from_its_settings_and_resumed_bit_for_bit(settings, tmp_path):
    parts = []

    def report(run):
        parts.append(tmp_path / f"{run['t']}.npz")
        train.save(run, parts[-1])

    run = train.descend(train.start(train.configuration(**settings)), report)
    assert_same(train.train(**vars(run["config"])), run)
    assert_same(train.descend(train.load(parts[len(parts) // 2], run["config"])), run)
    weights = [run[key] for key in run if key in "WVE" or key.startswith(("weight", "bias", "m_"))]
    assert {array.dtype for array in weights} == {np.dtype("float32")}


def test_runs_with_one_seed_see_the_same_sequences_whatever_is_trained():
    configs = [train.configuration(**RUNS[name]) for name in ("stochastic", "fixed", "adam")]
    for t in 0, 5:
        assert len({train.batch(c, t)[0].tobytes() for c in configs}) == 1
    assert (train.batch(train.configuration(**SMALL, seed=1), 0)[0] != train.batch(
        configs[0], 0)[0]).all()


def test_values_from_numpy_are_accepted():
    plain = train.train(**SMALL, seed=3, T_test=[9, 5])
    arrays = {"T": np.int64(8), "lr": np.float32(0.5), "seed": np.array(3), "T_test": np.array([9, 5]),
              "attend_to_query": np.bool_(False), "q_test": (3, 4, 5, 8)}
    assert_same(train.train(**SMALL | arrays), plain)


def test_a_new_distribution_of_encodings_is_one_entry_of_a_table(monkeypatch):
    def sphere(rng, T, d_e):
        E = rng.standard_normal((T, d_e))
        return E / np.linalg.norm(E, axis=1, keepdims=True)

    monkeypatch.setitem(sts.LAWS, "sphere", (sphere, lambda T: 1))
    run = train.train(quick=True, pe_family="sphere", steps=300)
    assert run["loss"][-50:].mean() < 0.5 * run["loss"][0]
    assert "sphere" in train.command_line().format_help()


# The command line, as a user meets it


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function from flags to the status, the output and the errors of `python train.py`."""
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train, **arguments):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        status = 0
        try:
            program.main(**arguments)
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()
    return call


QUICK = "--quick --steps 60 --evaluations 3"


def test_the_command_line_trains_the_same_run_and_prints_what_its_file_holds(command, tmp_path):
    status, out, err = command(f"{QUICK} --T-test 30")
    run = train.load(tmp_path / "runs" / "stochastic-T_test=30-evaluations=3-quick-steps=60.npz")
    assert (status, err) == (0, "")
    assert_same(run, train.train(quick=True, steps=60, evaluations=3, T_test=[30]))
    error, se, words = run["error"][-1], run["se"][-1], [line.split() for line in out.splitlines()]
    row = [60, run["loss"][40:].mean(), *error[:2], run["cos_W"][-1], run["cos_V"][-1]]
    assert [f"{x:.4f}" if x is not row[0] else "60" for x in row] in words
    assert f"T =   30, q =  2  {error[1]:.4f}     {se[1]:.4f}  {error[1] / 0.75:8.1%}" in out
    assert f"T =   20, q =  5  {error[4]:.4f}     {se[4]:.4f}  {error[4] / 0.3:8.1%}" in out
    assert f"training loss    {run['loss'][40:].mean():.4f} " in out
    assert os.listdir(tmp_path / "runs") == ["stochastic-T_test=30-evaluations=3-quick-steps=60.npz"]


def test_a_net_is_printed_beside_its_bound(command, tmp_path):
    _, out, _ = command(f"--model fcn --T 6 --d 2 --q 2 --hidden 5 9 --steps 9 --out {tmp_path}/a")
    assert f"first layer of width 5 has an error below {fcn.width_lower_bound(5, 6, 2, 2):.4f}" in out
    assert train.load(tmp_path / "a")["weight_2"].shape == (5, 9)


def test_a_killed_run_is_resumed_bit_for_bit(tmp_path):
    path = tmp_path / "new folder" / "run.npz"
    flags = "--T 8 --q 2 --pe-dim 16 --batch 16 --steps 6000 --evaluations 60 --eval-draws 1"
    job = [sys.executable, HERE / "train.py", *flags.split(), "--out", path]
    with subprocess.Popen(job, stdout=subprocess.PIPE, text=True) as process:
        assert any(line.split()[:1] == ["400"] for line in process.stdout)
        process.kill()
    assert os.listdir(path.parent) == ["run.part.npz"]
    part = train.load(path.with_suffix(".part.npz"))
    assert 400 <= part["t"] < 6000
    subprocess.run([*job, "--resume"], check=True, capture_output=True)
    assert_same(train.load(path), train.train(**vars(part["config"])))
    assert os.listdir(path.parent) == ["run.npz"]


def test_a_finished_run_is_replaced_by_a_finished_one_only(command, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    command(f"{QUICK} --out {path}")
    before = path.read_bytes()
    monkeypatch.setattr(train, "learning_rate", lambda c, t: 1 / (t < 50))      # fails on the way
    with pytest.raises(ZeroDivisionError):
        command(f"{QUICK} --out {path}")
    assert path.read_bytes() == before and train.load(tmp_path / "run.part.npz")["t"] == 40


def test_what_is_not_this_run_is_refused_with_its_difference_and_kept(command, tmp_path, monkeypatch):
    command(f"{QUICK} --out {tmp_path}/other.npz")
    np.savez(tmp_path / "arrays.npz", W=np.zeros(3))
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "folder").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for flags in f"{QUICK} --lr 1", f"{QUICK} --lr 1 --resume":
        status, out, err = command(f"{flags} --out {tmp_path}/other.npz")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "other.npz holds a run with lr 2.0" in err
        for name in "arrays.npz", "notes.txt", "folder":
            status, out, err = command(f"{flags} --out {tmp_path}/{name}")
            assert (status, out) == (2, "") and f"{name} does not hold a run" in err
    monkeypatch.setattr(train, "code", lambda: "edited")
    status, _, err = command(f"{QUICK} --resume --out {tmp_path}/other.npz")
    assert status == 2 and "other.npz holds a run with other code" in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_two_processes_can_save_one_file(tmp_path):
    run = train.start(train.configuration(**SMALL))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(train.save, [(run, tmp_path / "run.npz")] * 100)
    assert_same(train.load(tmp_path / "run.npz"), run)
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("flags", ("--lr 300", "--lr 300 --evaluations 1", "--lr 1e30"))
def test_a_diverging_run_ends_with_one_line_and_keeps_its_last_finite_evaluation(
        flags, command, tmp_path):
    status, out, err = command(f"--quick --steps 60 {flags} --out {tmp_path}/run.npz")
    run = train.load(tmp_path / "run.part.npz")
    step = int(re.match("train.py: error: loss not finite at step ([0-9]+): try", err)[1])
    assert (status, err.count("\n")) == (1, 1) and run["t"] <= step <= 60
    assert np.isfinite(run["error"][run["eval_step"] <= run["t"]]).all() and run["error"][0, 0] > 0
    assert not (tmp_path / "run.npz").exists()


BAD = """--steps 1e4 | steps must be a whole number above 0, got '1e4'
--T 0 | T must be a whole number above 0, got '0'
--seed -1 | seed must be a whole number of at least 0, got '-1'
--lr nan | lr must be a finite number above 0, got 'nan'
--init-std inf | init_std must be a finite number of at least 0, got 'inf'
--hidden 5 x --model fcn | hidden must be whole numbers above 0, got ['5', 'x']
--pe sinus | argument --pe: invalid choice: 'sinus'
--full-batch | unrecognized arguments: --full-batch
--q 21 | q and q_test must be at most T, and q at most T_test: got q = 21 for T = 20
--q-test 21 | got q = 21 for T = 20
--T-test 1 | got q = 2 for T = 1
--pe onehot --pe-dim 30 --T-test 40 | pe_dim must be at least 40 for onehot encodings
--pe fixed --draws 2 | draws needs pe stochastic: leave it out, got 2
--pe onehot --pe-family orthonormal | pe_family needs pe stochastic or fixed
--hidden 5 | hidden needs model fcn
--model fcn --pe fixed | pe needs model attention
--model fcn --T-test 30 | T_test needs model attention: leave it out, got [30]
--batch 1000000000000 | Unable to allocate""".splitlines()


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_with_what_is_allowed_and_nothing_is_written(case, command, tmp_path):
    flags, words = case.split(" | ")
    status, out, err = command(f"--quick {flags}")
    assert (status, out) == (2, "") and words in err.splitlines()[-1]
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("name, value", [
    ("attend_to_query", "no"), ("lr", -1), ("steps", 0), ("T", 2.5), ("T_test", 8), ("q_test", [0]),
    ("pe", "sinus"), ("evaluations", None.__class__)])
def test_values_from_python_are_checked_too(name, value):
    with pytest.raises(ValueError, match=f"{name} must be "):
        train.train(**SMALL | {name: value})


def test_help_has_a_group_for_each_kind_of_flag(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = command("--help")
    groups = re.findall(r"^(\w+):\n(.*?)(?=^\w|\Z)", out, re.M | re.S)
    assert [title for title, _ in groups] == [
        "options", "task", "model", "training", "evaluation", "file"]
    for flag, group in ("--T N", 1), ("--pe {", 2), ("--fresh", 3), ("--T-test N", 4), ("--out", 5):
        assert flag in groups[group][1]
    assert out.count("python train.py --") >= 2


# Figures, read from their axes


def made_up(c, seed, error=lambda T, q, u: T / 100 + q + u):
    """A run with settings c, as if it had gone so; its numbers differ by seed, test and time."""
    u = np.linspace(0, 1, 11)
    tests, shift = np.array(train.tests(c)), 1 + seed / 10
    run = {"config": c, "eval_step": (u * c.steps).astype(int), "tests": tests,
           "loss": shift / (2 + np.arange(c.steps)), "cos_W": shift * u / 2, "cos_V": shift * u / 3,
           "error": shift * np.array([[error(T, q, x) for T, q in tests] for x in u])}
    return run | {"se": run["error"] / 100}


def arm(name, **changes):
    """The runs of an arm with three seeds, on small tasks."""
    settings = plots.arms(quick=True)[name] | changes
    return [made_up(train.configuration(**settings | {"seed": seed}), seed) for seed in range(3)]


def lines(axis, color):
    """The x and y of each line of a colour."""
    return [line.get_xydata().T for line in axis.lines if line.get_color() == color]


@pytest.mark.parametrize("draw, names", [
    (plots.figure_2, ["stochastic", "fixed"]), (plots.figure_4, ["stochastic", "fixed"]),
    (plots.figure_5, ["stochastic, Adam", "fixed, Adam"])])
def test_error_figures_show_the_mean_and_the_range_of_each_arm_on_its_test(draw, names):
    runs = {name: arm(name) for name in names}
    for run in runs[names[1]]:
        run["error"] = 3 * run["error"]
    axes, tests = draw(runs).axes, runs[names[0]][0]["tests"][1:]
    assert len(axes) == (4 if draw is plots.figure_2 else 8)
    for axis, (T, q) in zip(axes, tests):
        assert axis.get_title() == (f"$T_{{test}}$ = {T}" if q == 2 else f"$q_{{test}}$ = {q}")
        for name, color, band in zip(names, (plots.STOCHASTIC, plots.FIXED), (1, 0)):
            (t, mean), = lines(axis, color)
            curves = plots.errors(runs[name], T, q)
            allclose(mean, curves.mean(axis=0))
            assert (t == runs[name][0]["eval_step"]).all()
            edge = axis.collections[band].get_paths()[0].vertices[:, 1]
            allclose([edge.min(), edge.max()], [curves.min(), curves.max()])
        allclose(lines(axis, plots.THEORY)[0][1], 3 / (2 * q))
    assert {text.get_text() for text in axes[3].texts} >= {"fixed", "stochastic"}


def test_compared_arms_differ_in_their_encodings_alone():
    for quick, suffix in itertools.product((True, False), ("", ", Adam")):
        one, two = (plots.arms(quick)[f"{pe}{suffix}"] for pe in ("stochastic", "fixed"))
        assert one | {"pe": "fixed"} == two and one["pe"] == "stochastic" and one["fresh"]


def test_figure_1_shows_the_loss_its_inverse_and_both_cosines():
    runs = arm("full model")
    left, middle, right = plots.figure_1({"full model": runs}).axes
    t, losses = zip(*[plots.smooth_loss(run) for run in runs])
    (x, y), = lines(left, plots.STOCHASTIC)
    allclose([x, y], [t[0], np.mean(losses, axis=0)])
    (x, y), = lines(middle, plots.STOCHASTIC)
    allclose(y, (1 / np.array(losses)).mean(axis=0))
    (late, dashed), = lines(middle, plots.THEORY)
    allclose([dashed[-1], (dashed[-1] - dashed[0]) / (late[-1] - late[0])],
             [y[-1], 4 * 4 / (2 ** 2 * 40)])                    # 4 lr / (q^2 d_e)
    for name, color in ("W", plots.STOCHASTIC), ("V", plots.NET):
        allclose(lines(right, color)[0][1], np.mean([run[f"cos_{name}"] for run in runs], axis=0))
    assert [text.get_text() for text in right.get_legend().texts] == ["cos(W, W*)", "cos(V, V*)"]


def test_figure_3_shows_the_weights_before_and_after():
    run = train.train(**plots.arms(quick=True)["full model"] | {"steps": 3, "evaluations": 1})
    first = train.start(run["config"])
    axes = plots.figure_3({"full model": [run]}).axes
    shown = [first["W"][:28, :28], run["W"][:28, :28], first["V"][:, :28], run["V"][:, :28]]
    for axis, matrix, title in zip(axes, shown, ("W before", "W after", "V before", "V after")):
        allclose(axis.images[0].get_array(), matrix)
        assert axis.get_title().startswith(title)


def test_figure_6_shows_nets_over_the_bound_and_the_widths_that_are_needed():
    names = plots.FIGURES["6"][1]
    runs = {name: arm(name) for name in names}
    for T, sizes in plots.WIDTHS.items():           # 10 % of d/(2q) is reached at d_e = 2 T^(1/3)
        for d_e, run in ((d_e, run) for d_e in sizes for run in runs[plots.width_name(T, d_e)]):
            run["error"][-1] = 0.1 * 5 / 6 * np.sqrt(sizes[0] * sizes[1]) / d_e
    left, right = plots.figure_6(runs).axes
    bound, *points, constructed, star, _ = [line.get_xydata() for line in left.lines]
    allclose(bound[:, 1], fcn.width_lower_bound(np.arange(101), 10, 5, 3))
    for hidden, shown in zip((1, 2), points):
        expected = [(m, run["error"][-1, 0]) for m, layers in plots.NETS if layers == hidden
                    for run in runs[plots.net_name(m, hidden)]]
        allclose(shown, expected)
    allclose(constructed, [(50, fcn.constructed_loss(10, 5, 3, 5, narrow=True)),
                           (100, fcn.constructed_loss(10, 5, 3, 5))])
    allclose(star, [(25, run["error"][-1, 0]) for run in runs["attention, T = 10"]])    # d + d_e
    lengths, widths = lines(right, plots.THEORY)[0]
    assert lengths.tolist() == list(plots.WIDTHS) and widths.tolist() == [
        44, 89, 179, 359, 719, 1439]
    for (x, y), (T, sizes) in zip(lines(right, plots.STOCHASTIC), plots.WIDTHS.items()):
        allclose([x, y], [[T] * 3, [5 + np.sqrt(sizes[0] * sizes[1])] * 3])


def test_the_width_that_a_net_needs_is_the_first_that_the_bound_allows():
    for T in 10, 320:
        m, level = plots.net_width(T, 5, 3), plots.SHARE * 5 / 6
        assert fcn.width_lower_bound(m, T, 5, 3) <= level < fcn.width_lower_bound(m - 1, T, 5, 3)


@pytest.mark.parametrize("errors, size", [
    ((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.2, 0.05), math.sqrt(80 * 120)),
    ((0.05, 0.05, 0.05), math.nan), ((0.01, 0.01, 0.2), math.nan), ((math.nan, 0.2, 0.05), 97.98)])
def test_the_crossing_is_the_last_one_on_logarithmic_axes(errors, size):
    allclose(plots.crossing([50, 80, 120], errors, 0.1), size, rtol=1e-4)


def test_runs_are_kept_under_readable_names_and_trained_anew_when_they_do_not_fit(
        monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "get_context", lambda _: Mock(Pool=lambda *_: ThreadPool(1)))
    arms, folder = {"an arm": SMALL}, tmp_path / "kept"
    runs = plots.trained(arms, folder)["an arm"]
    assert sorted(os.listdir(folder)) == [f"an arm, seed {seed}.npz" for seed in range(3)]
    for seed, run in enumerate(runs):
        assert_same(run, train.train(**SMALL, seed=seed))
    times = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    (folder / "an arm, seed 1.npz").write_bytes(b"damaged")
    for seed, run in enumerate(plots.trained(arms, folder)["an arm"]):
        assert_same(run, runs[seed])
    again = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    assert [new > old for old, new in zip(times, again)] == [False, True, False]
    for changed in {"lr": 0.3}, {}:
        run = plots.trained({"an arm": SMALL | changed}, folder)["an arm"][2]
        assert run["config"].lr == changed.get("lr", 0.5)
    monkeypatch.setattr(train, "code", lambda: "edited")
    assert plots.trained(arms, folder)["an arm"][0]["code"] == "edited"


def test_a_diverged_run_is_kept_with_errors_that_are_nan(monkeypatch, tmp_path):
    plots.keep(tmp_path / "run.npz", SMALL | {"lr": 1e6})
    run = plots.kept(tmp_path / "run.npz", SMALL | {"lr": 1e6})
    assert np.isfinite(run["error"][0]).all() and np.isnan(run["error"][-1]).all()


def test_all_figures_are_drawn_from_nothing(command, monkeypatch, tmp_path):
    """On tiny runs, in this process, and without the style, which takes most of the time."""
    tiny = {name: settings | dict(steps=100, lr=0.1, batch=8, eval_sequences=8)
            for name, settings in plots.arms(True).items()}
    monkeypatch.setattr(plots, "SEEDS", (0,))
    monkeypatch.setattr(plots, "WIDTHS", {10: (12, 16)})
    monkeypatch.setattr(plots, "STYLE", {"savefig.dpi": 20})
    monkeypatch.setattr(plots, "get_context", lambda _: Mock(Pool=lambda *_: ThreadPool(1)))
    figures = plots.FIGURES | {"6": (plots.figure_6, [n for n in plots.FIGURES["6"][1]
                                                      if "width" not in n or "T = 10," in n])}
    status, out, err = command(f"1 2 3 4 5 6 --out {tmp_path}/new", plots, figures=figures,
                               arms=lambda quick: tiny)
    assert (status, err) == (0, "")
    assert sorted(os.listdir(tmp_path / "new")) == [f"figure_{i}.png" for i in range(1, 7)]


@pytest.mark.parametrize("flags, words", [
    ("9", "'9' is not one of 1, 2"), ("--jobs 0", "--jobs: invalid choice: 0"),
    ("--format bmp", "--format: invalid choice: 'bmp'"),
    ("1 --out file/new", "Not a directory")])
def test_bad_flags_of_plots_are_named(flags, words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    status, out, err = command(flags, plots)
    assert (status, out) == (2, "") and words in err.splitlines()[-1]


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_a_file_works_alone_and_its_tour_finds_its_gradients_right(name, tmp_path):
    shutil.copy(HERE / name, tmp_path)
    out = subprocess.check_output([sys.executable, "-I", name], cwd=tmp_path, text=True)
    difference, = [line.split()[-1] for line in out.splitlines() if "relative difference" in line]
    assert float(difference) < 1e-12
