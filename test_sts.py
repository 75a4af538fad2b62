"""Tests:  python -m pytest

Each test states a fact about the task, the models, the bound or the programs.  Statistical ones
have a fixed seed, and allow 5 standard errors.
"""

import importlib.util
import itertools
import math
import os
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


# The task and the encodings


@pytest.mark.parametrize("q", (1, 3))
def test_every_subset_is_equally_likely_and_without_repetition(q):
    n, T = 100_000, 6
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
    assert abs((flat ** 4).mean() - 3) < 5 * math.sqrt(96 / flat.size)         # the normal one


@pytest.mark.parametrize("kind, square", [("onehot", 0), ("rademacher", 1 / 8), ("orthonormal", 0)])
def test_encodings_are_unit_vectors_random_ones_without_preference(kind, square):
    """Random ones have covariance I / d_e; the inner product of two has its mean square."""
    n, d_e = 4000, 8
    E = sts.positional_encoding(kind, 3, d_e, np.random.default_rng(0), n)
    np.testing.assert_allclose((E ** 2).sum(axis=2), 1)
    inner = (E[:, 1] * E[:, 2]).sum(axis=1)
    assert abs((inner ** 2).mean() - square) <= 5 * square * math.sqrt(2 / n)
    if kind == "onehot":
        assert (E == np.eye(3, d_e)).all()
    else:
        assert abs(E.mean(axis=0)).max() < 5 / math.sqrt(d_e * n)
        assert abs(E[:, 1].T @ E[:, 1] / n - np.eye(d_e) / d_e).max() < 5 / math.sqrt(d_e * n)
        assert abs(E[:, 1].T @ E[:, 2] / n).max() < 5 / math.sqrt(d_e * n)


# The attention model


def example(kind="rademacher", K=1, n=4, T=5, d=2, q=3, d_e=6, seed=0):
    """Weights, inputs and encodings for one call of the model: W, V, X, y, E (T, d_e), or K > 1."""
    rng = np.random.default_rng(seed)
    X, y = sts.sample_sts(rng, n, T, d, q)
    E = sts.positional_encoding(kind, T, d_e, rng, K)
    W, V = rng.standard_normal((d + d_e, d + d_e)), rng.standard_normal((d, d + d_e))
    return W, V, X, y, E if K > 1 else E[0]


@pytest.mark.parametrize("query", ("sum", "mean"))
@pytest.mark.parametrize("attend_to_query", (False, True))
@pytest.mark.parametrize("kind", sts.LAWS)
def test_the_model_and_its_loss_are_their_definitions_written_out(kind, attend_to_query, query):
    W, V, X, y, E = example(kind, K=3)
    P, f = sts.attention(W, X, y, E, attend_to_query, query), np.empty((3, 4, 2))
    for k, b in itertools.product(range(3), range(4)):
        Z = np.concatenate([X[b], E[k]], axis=1).T                  # (d + d_e, T), as in the paper
        U = E[k, y[b]].sum(axis=0) / (1 if query == "sum" else 3)
        z_query = np.concatenate([np.zeros(2), U])
        if attend_to_query:
            Z = np.column_stack([Z, z_query])
        S = np.exp(Z.T @ W @ z_query)
        f[k, b] = V @ Z @ S / S.sum()
        np.testing.assert_allclose(P[k, b], S / S.sum(), rtol=1e-12)
    target = np.array([sum(X[b, i] for i in y[b]) / 3 for b in range(4)])
    L = (0.5 * (f.mean(axis=0) - target) ** 2).sum(axis=1).mean()       # Definition 5
    answer, _ = sts.forward(W, V, X, y, E[2], attend_to_query, query)
    np.testing.assert_allclose(answer, f[2], rtol=1e-12)
    np.testing.assert_allclose(sts.loss_and_grads(W, V, X, y, E, attend_to_query, query)[0], L)


@pytest.mark.parametrize("kind, T", [("onehot", 20), ("orthonormal", None)])
def test_the_ground_truth_solves_the_task_however_large_its_logits(kind, T):
    _, _, X, y, E = example(kind, T=20, d_e=30)
    W_star, V_star = sts.ground_truth(2, 30, T)
    losses = [sts.loss_and_grads(c * W_star, V_star, X, y, E)[0] for c in (1, 5, 10, 1e6)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-25


def test_one_hot_ground_truth_is_what_gradient_descent_grows():
    run = train.train(pe="onehot", T=5, d=1, q=2, pe_dim=7, batch=2000, steps=100, lr=1.0)
    assert run["cos_W"][-1] > 0.998 and run["cos_V"][-1] > 0.998


# The fully-connected net


def net_example(sizes=(12, 6, 5, 2), n=9, seed=0):
    """Random params of a net, biases too, and a batch of its sizes: params, X, y."""
    rng, d = np.random.default_rng(seed), sizes[-1]
    X, y = sts.sample_sts(rng, n, sizes[0] // (d + 1), d, 2)
    return [(w, rng.standard_normal(b.shape)) for w, b in fcn.init_fcn(rng, sizes)], X, y


def test_the_net_is_its_definition_written_out():
    params, X, y = net_example()
    f, _ = fcn.forward(params, fcn.encode(X, y))
    for b in range(len(X)):
        h = np.array([*X[b].reshape(-1), *(1.0 * (i in y[b]) for i in range(4))])
        for layer, (weight, bias) in enumerate(params):
            h = np.array([sum(h * weight[:, j]) + bias[j] for j in range(len(bias))])
            h = h if layer == 2 else np.where(h > 0, h, 0)
        np.testing.assert_allclose(f[b], h, rtol=1e-12)
    L = (0.5 * (f - sts.sts_target(X, y)) ** 2).sum(axis=1).mean()
    assert math.isclose(fcn.loss_and_grads(params, X, y)[0], L, rel_tol=1e-12)


def test_initial_weights_have_the_variances_that_are_said():
    layers = fcn.init_fcn(np.random.default_rng(0), [400, 300, 200, 100])
    attention = train.initial_weights(train.configuration(init="random", init_std=0.5))
    weights, variances = [w for w, _ in layers] + attention, (2 / 400, 2 / 300, 1 / 200, 0.25, 0.25)
    for weight, variance in zip(weights, variances):
        assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / weight.size)
    assert not any(bias.any() for _, bias in layers)


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1)])
def test_the_bound_is_what_the_top_eigenvalues_leave(T, d, q):
    A = np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q    # the target is A vec(X)
                  for y in itertools.combinations(range(T), q)])
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    top = np.cumsum([0, *np.linalg.eigvalsh(S)[::-1], 0, 0])            # there are T d
    bound = fcn.width_lower_bound(np.arange(T * d + 3), T, d, q)
    np.testing.assert_allclose(bound, (d / q - top) / 2, atol=1e-14)


@pytest.mark.parametrize("narrow", (False, True))
def test_the_constructed_nets_solve_the_task_with_the_loss_that_is_said(narrow):
    T, d, q, n = 6, 2, 2, 50_000
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


# The gradients.  A case is (kind, K, attend_to_query, query) for attention, or the sizes of a net.

ATTENTION = list(itertools.product(sts.LAWS, (1, 3), (False, True), ("sum", "mean")))
CASES = ATTENTION + [(12, 2), (12, 6, 2), (12, 6, 5, 2), (12, 3, 4, 5, 2)]
SPOILED = [np.zeros_like, np.negative, lambda g: 1.01 * g,
           lambda g: (g.T if g.ndim == 2 else g[::-1]).reshape(g.shape)]


def problem(case, seed=0):
    """Random weights, and the function from weights to the loss on a batch and to its gradients."""
    if case in ATTENTION:
        W, V, *inputs = example(*case[:2], seed=seed)
        return [W, V], lambda weights: sts.loss_and_grads(*weights, *inputs, *case[2:])
    params, *batch = net_example(case, seed=seed)

    def loss_and_grads(weights):
        L, grads = fcn.loss_and_grads(list(zip(weights[::2], weights[1::2])), *batch)
        return L, *itertools.chain(*grads)
    return [*itertools.chain(*params)], loss_and_grads


def blocks(case, grads, d=2):
    """A gradient in parts: W's blocks token-PE and PE-PE, and its zeros; V's; or those of a net."""
    if case in ATTENTION:
        dW, dV = grads
        return [dW[:d, d:], dW[d:, d:], dW[:, :d], dV[:, :d], dV[:, d:]]
    return grads


def accepted(grad, check):
    """The criterion of the gradient test, relative to the size of the gradient."""
    return np.linalg.norm(grad - check) <= 1e-12 * np.linalg.norm(check)


@pytest.mark.parametrize("where", ("zero", "random", "trained"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_agree_with_the_complex_step_and_wrong_ones_do_not(case, where):
    weights, loss_and_grads = problem(case)
    if where == "zero":         # but for biases, as all units of a net would be at their kinks
        weights = [0 * w if w.ndim == 2 else w for w in weights]
    for t in range(30 if where == "trained" else 0):
        _, *grads = problem(case, seed=t + 1)[1](weights)
        weights = [w - 0.1 * g for w, g in zip(weights, grads)]
    _, *grads = loss_and_grads(weights)
    checks = [np.empty(w.shape) for w in weights]
    for i, w in enumerate(weights):
        for entry in np.ndindex(w.shape):           # each by itself: Im L(w + ih) / h
            moved = w.astype(complex)
            moved[entry] += 1e-30j
            L, *_ = loss_and_grads([*weights[:i], moved, *weights[i + 1:]])
            checks[i][entry] = L.imag / 1e-30
    for grad, check in zip(blocks(case, grads), blocks(case, checks)):
        assert accepted(grad, check)
        if where == "random" and check.any():
            assert not any(accepted(spoil(grad), check) for spoil in SPOILED)
    zeros = sum(not check.any() for check in blocks(case, checks))
    assert where == "zero" or zeros == (case in ATTENTION)      # a block of dW


# What is impossible

RNG, (W, V, X, y, E) = np.random.default_rng(0), example()


def test_backward_takes_any_upstream_gradient_and_agrees_with_central_differences():
    W, V, X, y, E = example()
    rng, h = np.random.default_rng(1), 1e-5
    df, A, B = (rng.standard_normal(shape) for shape in ((len(X), 2), W.shape, V.shape))
    dW, dV = sts.backward(sts.forward(W, V, X, y, E, True, "mean")[1], df)
    up, down = ((sts.forward(W + s * A, V + s * B, X, y, E, True, "mean")[0] * df).sum()
                for s in (h, -h))
    slope = (dW * A).sum() + (dV * B).sum()
    assert abs((up - down) / (2 * h) - slope) < 1e-7 * abs(slope)


def test_no_array_of_all_keys_is_built():
    n, T, d, d_e = 100, 200, 5, 300
    W, V, X, y, E = example(n=n, T=T, d=d, d_e=d_e)
    tracemalloc.start()
    sts.loss_and_grads(W, V, X, y, E)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * T * (d + d_e) * 8 / 5


def test_a_new_law_of_encodings_is_one_function_and_one_entry(monkeypatch):
    monkeypatch.setitem(sts.LAWS, "sphere", (unit_rows, lambda T: 1))
    monkeypatch.setitem(sys.modules, "train", importlib.util.module_from_spec(train.__spec__))
    train.__spec__.loader.exec_module(sys.modules["train"])
    run = sys.modules["train"].train(quick=True, pe_family="sphere", steps=300)
    assert run["config"]["pe_dim"] == 32 and run["loss"][-50:].mean() < 0.5 * run["loss"][0]


def unit_rows(rng, T, d_e):
    E = rng.standard_normal((T, d_e))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


@pytest.mark.parametrize("function, arguments, words", [
    *((sts.sample_sts, (RNG, *sizes), "1 <= q <= T") for sizes in (
        (0, 5, 2, 1), (3, 0, 2, 1), (3, 5, 0, 1), (3, 5, 2, 0), (3, 5, 2, 6))),
    *((sts.positional_encoding, (*sizes, 4, RNG), words) for *sizes, words in (
        ("sinus", 4, "got 'sinus'"), ("onehot", 5, "d_e >= 5"), ("rademacher", 0, "T=0"))),
    *((sts.forward, arguments, "need X|need V") for arguments in (
        (W[1:], V, X, y, E), (W, V[1:], X, y, E), (W, V, X[1:], y, E), (W, V, X, y, E[1:]))),
    (sts.forward, (W, V, X, y, E, False, "max"), "query must be sum or mean, got 'max'"),
    *((sts.forward, (W, V, X, y + shift, E), "positions from 0 to 4") for shift in (-5, 5)),
    *((fcn.encode, (X, y + shift), "positions from 0 to 4") for shift in (-5, 5)),
    (fcn.init_fcn, (RNG, [5, 0, 2]), "each at least 1"),
    (fcn.forward, ([(np.eye(12), np.ones(12))], np.zeros((5, 9))), r"need inputs \(n, 12\)"),
    *((fcn.width_lower_bound, sizes, "1 <= q <= T") for sizes in (
        (-1, 4, 2, 2), (1, 4, 0, 2), (1, 4, 2, 0), (1, 4, 2, 5))),
    (lambda: train.train(momentum=0.9), (), "no setting is named momentum"),
    (lambda: train.train(pe="sinus"), (), "'sinus' is not one of"),
    *((lambda key=key: train.train_together([started(), started(**{key: 3})]), (),
       f"need the same {key}") for key in ("seed", "T", "d", "q", "batch", "full_batch"))])
def test_what_is_impossible_is_refused(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(*arguments)


# Training


def small(**changes):
    """The settings of a small run."""
    plain = dict(T=8, d=2, q=2, batch=16, steps=12, dtype="float64", evaluations=5,
                 eval_sequences=32)
    return plain | ({} if "model" in changes else {"pe_dim": 16}) | changes


def started(**changes):
    """A small run before its training."""
    return train.start(train.configuration(**small(**changes)))


def assert_same(one, two):
    """Two runs are equal bit for bit."""
    assert one.keys() == two.keys() and one["config"] == two["config"]
    for key in one.keys() - {"config"}:
        np.testing.assert_array_equal(one[key], two[key], strict=True)


@pytest.fixture
def calls(monkeypatch):
    """What sts.py is asked, and what it answers: {name: [(arguments, answer), ...]}."""
    seen = {name: [] for name in ("sample_sts", "positional_encoding", "loss_and_grads")}
    for name, calls in seen.items():
        def spy(*arguments, original=getattr(sts, name), calls=calls):
            calls.append((arguments, original(*arguments)))
            return calls[-1][1]
        monkeypatch.setattr(sts, name, spy)
    return seen


@pytest.mark.parametrize("given, expected", [
    ({}, dict(
        quick=False, model="attention", T=200, d=5, q=3, pe="stochastic", pe_family="rademacher",
        pe_dim=170, draws=1, attend_to_query=False, query="sum", init="zero", batch=256,
        full_batch=False, steps=10000, optimizer="gd", lr=2.0, schedule="constant", dtype="float32",
        seed=0, evaluations=20, eval_sequences=128, eval_draws=16, T_test=[200, 250, 300, 350, 400],
        q_test=[2, 4, 5, 8])),
    (dict(quick=True), dict(T=20, d=3, q=2, batch=128, steps=3000, pe_dim=32, q_test=[3, 4, 5, 8])),
    (dict(T=7, pe="onehot"), dict(pe_dim=14, T_test=[7, 8, 10, 12, 14], q_test=[2, 4, 5])),
    (dict(T=10, pe="fixed", pe_family="orthonormal", pe_dim=16), dict(T_test=[10, 12, 15])),
    (dict(init="random", optimizer="adam"), dict(init_std=0.02, lr=0.01, schedule="constant")),
    (dict(model="fcn"), dict(width=175, depth=1, optimizer="adam", lr=0.01, schedule="cosine",
                             eval_sequences=10000)),
    (dict(model="fcn", quick=True, optimizer="gd"), dict(width=35, lr=2.0))])
def test_defaults_are_those_of_the_paper_or_follow_from_other_settings(given, expected):
    config = train.configuration(**given)
    assert {key: config[key] for key in expected} == expected
    assert given or config == expected


@pytest.mark.parametrize("changes", [
    {}, dict(draws=3, attend_to_query=True), dict(pe="fixed", query="mean", T_test=[6, 12]),
    dict(pe="onehot", full_batch=True), dict(init="random"),
    dict(pe_family="orthonormal", query="mean", attend_to_query=True, dtype="float32")], ids=str)
def test_training_is_gradient_descent_on_the_loss_of_definition_5(calls, changes):
    run = train.train(**small(lr=0.7, **changes))
    c, steps = run["config"], calls["loss_and_grads"]
    later = [(W, V) for (W, V, *_), _ in steps[1:]] + [(run["W"], run["V"])]
    for ((W, V, X, y, E, full, query), (L, dW, dV)), (W_later, V_later) in zip(steps, later):
        assert (X.shape, y.shape, E.shape) == ((16, 8, 2), (16, 2), (c.get("draws", 1), 8, 16))
        assert (full, query) == (c["attend_to_query"], c["query"])
        assert {a.dtype for a in (W, V, X, E, dW, dV)} == {np.dtype(c["dtype"])}
        assert np.count_nonzero(E[0]) == (8 * 16 if c.get("pe_family") == "rademacher" else 8)
        assert "E" not in run or (E[0] == run["E"][:8]).all()
        np.testing.assert_array_equal(W_later, W - 0.7 * dW)
        np.testing.assert_array_equal(V_later, V - 0.7 * dV)
    assert [*zip(run["step"], run["loss"])] == [(t, L) for t, (_, (L, *_)) in enumerate(steps)]
    assert len({X[0, 0, 0] for (_, _, X, *_), _ in steps}) == (1 if c["full_batch"] else 12)


def test_each_draw_is_new_but_for_evaluations_and_runs_with_one_seed(calls, monkeypatch):
    first_numbers, stream, steps = [], train.stream, 150
    monkeypatch.setattr(
        train, "stream", lambda *key: first_numbers.append(stream(*key).random()) or stream(*key))
    for changes in dict(seed=0), dict(seed=1), dict(pe="fixed"):
        train.train(**small(steps=steps, evaluations=2, init="random", q_test=[3], **changes))
    once = 1 + steps + (steps + 1)          # weights, encodings, and batches with one drawn ahead
    errors = 6 * 2                          # X and E of each, at three evaluations
    fixed = 1 + 1 + (steps + 1) + 3 * 6     # of these only E is new
    assert len(first_numbers) == 2 * (once + 3 * errors) + fixed
    assert len(set(first_numbers)) == 2 * (once + errors) + 1
    for array, count in (2, 2 * steps), (4, 2 * steps + 1):     # X, E
        assert len({seen[array].tobytes() for seen, _ in calls["loss_and_grads"]}) == count


@pytest.mark.parametrize("changes", [
    dict(eval_draws=5), dict(attend_to_query=True, query="mean"), dict(pe="fixed", T_test=[6, 7]),
    dict(pe="onehot", T_test=[5, 11]), dict(query="mean", q_test=[1, 8])], ids=str)
def test_errors_are_the_losses_of_definition_5_at_their_lengths_and_subset_sizes(calls, changes):
    run = started(init="random", init_std=1.0, **changes)
    c, fixed = run["config"], [run["E"][None]] * 9 if "E" in run else []
    encodings = fixed or [E for _, E in calls["positional_encoding"]]
    tasks = [(T, 2) for T in run["T_test"]] + [(8, q) for q in run["q_test"]]
    errors, deviations = ([*run[f"{log}_T_test"][0], *run[f"{log}_q_test"][0]]
                          for log in ("error", "se"))
    assert len(tasks) == len(errors) == len(deviations) == len(calls["sample_sts"])
    for i, ((T, q), (_, (X, y)), E) in enumerate(zip(tasks, calls["sample_sts"], encodings)):
        assert (X.shape, y.shape) == ((32, T, 2), (32, q))
        assert fixed or E.shape == (c["eval_draws"], T, 16)
        losses = [sts.loss_and_grads(run["W"], run["V"], X[[b]], y[[b]], E[:, :T],
                                     c["attend_to_query"], c["query"])[0] for b in range(32)]
        assert math.isclose(errors[i], np.mean(losses), rel_tol=1e-12)
        assert math.isclose(deviations[i], np.std(losses) / math.sqrt(32), rel_tol=1e-12)


@pytest.mark.parametrize("pe, T", [("stochastic", None), ("onehot", 8), ("fixed", None)])
def test_cosines_and_nearest_multiples_are_projections_on_the_ground_truth(pe, T):
    run, noise = started(pe=pe), np.ones((18, 18))
    W_star, V_star = sts.ground_truth(2, 16, T)
    noise[2:, 2:] = 0                                   # orthogonal to W*
    run |= {"W": -3 * W_star + noise, "V": 2 * V_star + np.eye(2)[::-1] @ V_star}
    train.evaluate(run)
    cos_W = -1 / math.sqrt(1 + (noise ** 2).sum() / (9 * (W_star ** 2).sum()))
    np.testing.assert_allclose([run["a"], run["cos_W"]], [(0, -3), (0, cos_W)], rtol=1e-12)
    np.testing.assert_allclose([run["alpha"], run["cos_V"]], [(0, 2), (0, 2 / math.sqrt(5))])


@pytest.mark.parametrize("width, later", [(6, 64), (70, 70)])
def test_a_net_of_the_sizes_asked_for_comes_close_to_the_bound_and_does_not_beat_it(width, later):
    run = train.train(model="fcn", T=6, d=2, q=2, batch=128, steps=1000, depth=2, width=width,
                      evaluations=1)
    shapes = [run[name].shape for name in ("weight_1", "weight_2", "weight_3", "bias_3")]
    assert shapes == [(18, width), (width, later), (later, 2), (2,)]
    least, error = fcn.width_lower_bound(width, 6, 2, 2), run["error_T_test"][-1]
    assert least - 5 * run["se_T_test"][-1] < error < 1.1 * least + 0.01


@pytest.mark.parametrize("schedule", ("constant", "cosine"))
@pytest.mark.parametrize("optimizer", ("gd", "adam"))
def test_updates_follow_the_published_formulas(optimizer, schedule, monkeypatch):
    """Several steps on made-up gradients; Adam as in Kingma and Ba, Algorithm 1."""
    run = started(optimizer=optimizer, schedule=schedule, steps=6, lr=0.3)
    grads = np.random.default_rng(0).standard_normal((6, 18, 18))
    feed = iter(grads)
    monkeypatch.setattr(train, "loss_and_grads", lambda run, *_: (1.0, [next(feed), run["V"]]))
    train.train_together([run])
    w = m = v = 0
    for t in range(1, 7):
        share = (1 + math.cos(math.pi * (t - 1) / 6)) / 2 if schedule == "cosine" else 1
        step = g = grads[t - 1]
        if optimizer == "adam":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g ** 2
            step = m / (1 - 0.9 ** t) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
        w = w - 0.3 * share * step
    np.testing.assert_allclose(run["W"], w, rtol=1e-10)


def test_runs_trained_together_are_those_trained_alone_bit_for_bit():
    many = [small(**changes) for changes in (
        dict(steps=30), dict(pe="fixed", steps=50, evaluations=1),
        dict(optimizer="adam", draws=2, steps=21), dict(model="fcn", width=7, steps=40))]
    together = [train.start(train.configuration(**settings)) for settings in many]
    for X, y in train.batches(together[1]["config"], 0, 10):
        train.step(together[1], X, y)               # one of them is ahead of the others
    train.train_together(together)
    for run, settings in zip(together, many):
        assert_same(run, train.train(**settings))


@pytest.mark.parametrize("changes", [
    dict(draws=3), dict(model="fcn", width=7, depth=2),
    dict(pe="onehot", init="random", schedule="cosine"),
    dict(pe="fixed", full_batch=True, T_test=[6, 7]),
    dict(optimizer="adam", attend_to_query=True, query="mean", dtype="float32")], ids=str)
def test_a_run_resumed_from_its_file_is_that_without_interruption_bit_for_bit(changes, tmp_path):
    run = train.train(lambda run: train.save(run, tmp_path / f"{run['eval_step'][-1]}.npz"),
                      **small(steps=46, **changes))
    assert run["eval_step"].tolist() == [0, 10, 19, 28, 37, 46]
    resumed = train.load(tmp_path / "19.npz")
    train.train_together([resumed])
    assert_same(resumed, run)


# The command lines, as a user meets them


@pytest.fixture
def main(monkeypatch, capsys, tmp_path):
    """A function from flags to the status, stdout and stderr of train.py, or of plots.py."""
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train, **arguments):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        status, message = 0, ""
        try:
            program.main(**arguments)
        except SystemExit as end:       # with a text Python prints it, and ends with status 1
            status, message = (end.code, "") if isinstance(end.code, int) else (1, f"{end.code}\n")
        printed = capsys.readouterr()
        return status, printed.out, printed.err + message
    return call


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_a_file_stands_alone_and_its_tour_finds_its_gradients_right(name, tmp_path):
    shutil.copy(HERE / name, tmp_path)
    out = subprocess.check_output([sys.executable, "-I", name], cwd=tmp_path, text=True)
    difference, = [line.split()[-1] for line in out.splitlines() if "relative difference" in line]
    assert float(difference) < 1e-12


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The main job on the classroom's task: (stdout, run file)."""
    path = tmp_path_factory.mktemp("quick") / "run.npz"
    job = [sys.executable, "train.py", "--quick", "--out", str(path)]
    return subprocess.check_output(job, cwd=HERE, text=True), path


def test_only_stochastic_encodings_generalize_in_length(quick):
    stochastic, fixed = train.load(quick[1]), train.train(quick=True, pe="fixed", steps=2000)
    assert max(stochastic["error_T_test"][-1, 0], fixed["error_T_test"][-1, 0]) < 0.015
    assert stochastic["error_T_test"][-1].max() < 0.04              # where d/(2q) = 0.75
    assert fixed["error_T_test"][-1, -1] > 0.19


def test_what_is_printed_is_what_the_run_file_holds(quick):
    out, run = quick[0], train.load(quick[1])
    lines = {line[:40].strip(): line[40:].split() for line in out.splitlines()}
    for test, i, zero in ("T_test", 4, 3 / 4), ("q_test", 1, 3 / 8):
        error, se = run[f"error_{test}"][-1, i], run[f"se_{test}"][-1, i]
        assert lines[f"error at {test} = {run[test][i]}"] == [
            f"{error:.4f}", f"{se:.4f}", f"{error / zero:.1%}", "of", f"{zero:.4f}"]
    assert lines["training loss, last 150 steps"][0] == f"{run['loss'][-150:].mean():.4f}"
    errors, cosines = run["error_T_test"][10], (run["cos_W"][10], run["cos_V"][10])
    values = run["loss"][1350:1500].mean(), errors[0], errors[-1], *cosines
    assert ["1500", *(f"{x:.4f}" for x in values)] in [s.split()[:6] for s in out.splitlines()]


def test_a_killed_run_goes_on_with_resume_bit_for_bit(main, quick, tmp_path):
    path = tmp_path / "run.npz"
    with subprocess.Popen([sys.executable, "train.py", "--quick", "--out", str(path)], cwd=HERE,
                          stdout=subprocess.PIPE, text=True) as run:
        assert any(line.split()[:1] == ["1200"] for line in run.stdout)
        run.kill()
    assert 1200 <= len(train.load(path)["loss"]) < 3000
    status, out, err = main(f"--quick --resume --out {path}")
    assert (status, err) == (0, "")
    assert_same(train.load(path), train.load(quick[1]))
    assert out.splitlines()[-14:-3] == quick[0].splitlines()[-14:-3]        # the summary


BAD = [
    *(f"--{flag} 0 | --{flag}: '0' is not a whole number of at least 1" for flag in (
        "T d q pe-dim draws batch steps evaluations eval-draws T-test q-test width depth").split()),
    *(f"--{flag} {value} | --{flag}: '{value}' is not a finite number above 0"
      for flag in ("lr", "init-std") for value in ("0", "-1", "nan", "inf")),
    *(f"--{flag} x | --{flag}: invalid choice: 'x'" for flag in (
        "model pe pe-family query init optimizer schedule dtype").split()),
    *"""--seed -1 | --seed: '-1' is not a whole number of at least 0
--eval-sequences 1 | --eval-sequences: '1' is not a whole number of at least 2
--q-test 2,x | --q-test: invalid whole_numbers value: '2,x'
--mom 0.9 | unrecognized arguments: --mom
--q-test 3,21 | 1 <= q <= T, got n=128, T=20, d=3, q=21
--batch 1000000000000 | Unable to allocate
--batch 99999999999999999999 | Maximum allowed dimension exceeded
--pe-family orthonormal --pe-dim 30 --T-test 40 | d_e >= 40 for orthonormal encodings
--pe onehot --pe-family rademacher | allowed with --pe fixed or stochastic
--pe fixed --draws 2 | --draws: 2 has no meaning here; allowed with --pe stochastic
--model fcn --T-test 30 | --T-test: [30] has no meaning here""".splitlines()]
BAD_OF_PLOTS = f"""9 | '9' is not one of task, 1,
--jobs 0 | --jobs: '0' is not a whole number of at least 1
--format bmp | --format: invalid choice: 'bmp'
--out {HERE}/train.py/new | train.py/new' cannot be made: Not a directory""".splitlines()


@pytest.mark.parametrize("program, case", [*((train, case) for case in BAD),
                                           *((plots, case) for case in BAD_OF_PLOTS)])
def test_a_bad_flag_is_named_and_nothing_is_written(program, case, main, tmp_path):
    flags, words = case.split(" | ")
    status, out, err = main("--quick " + flags, program)
    assert (status, out) == (2, "") and err.startswith("usage: ") and err.count(".py: error: ") == 1
    assert words in err.splitlines()[-1] and not list(tmp_path.iterdir())


def test_help_has_a_flag_with_its_defaults_for_every_setting(main, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    status, out, _ = main("--help")
    helps = {text.split()[0]: text for text in out.split("\n  --")[1:]}
    assert status == 0 and {flag for flag, text in helps.items() if "(default: " in text} == {
        "out", *(name.replace("_", "-") for name, *_ in train.SETTINGS)}
    assert "(default: 10000; with --quick 3000)" in helps["steps"]
    assert "(default: 2.0; with --optimizer adam 0.01)" in helps["lr"]


@pytest.mark.parametrize("flag, steps, problem, words", [
    ("", 0, MemoryError("no memory"), "train.py: error: no memory; "),
    ("--resume", 9, KeyboardInterrupt(), "\ntrain.py: interrupted; ")])
def test_a_run_that_ends_early_says_what_its_file_holds_anew_or_with_resume(
        flag, steps, problem, words, main, tmp_path, monkeypatch):
    flags, settings = "--quick --steps 9 --full-batch --T-test 8,9", dict(full_batch=True, steps=9)
    path = tmp_path / "runs" / "stochastic-quick-full-batch-steps=9-T-test=8,9.npz"
    assert main(flags)[0] == 0
    assert_same(train.load(path), train.train(quick=True, T_test=[8, 9], **settings))
    monkeypatch.setattr(train, "train_together", Mock(side_effect=problem))
    status, _, err = main(f"{flags} {flag}")
    assert status == 1 and err.startswith(words) and f"{path.name} has {steps} steps" in err
    assert len(train.load(path)["loss"]) == steps and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("flags", ("--steps 60 --lr 300", "--steps 60 --lr 300 --evaluations 1",
                                   "--steps 5 --lr 1e30 --evaluations 5"))
def test_a_diverging_run_ends_with_one_line_and_its_last_finite_evaluation(flags, main, tmp_path):
    status, _, err = main(f"--quick {flags} --out {tmp_path}/run.npz")
    run = train.load(tmp_path / "run.npz")
    steps, saved = run["config"]["steps"], len(run["loss"])
    assert status == 1 and err.startswith("train.py: error: loss not finite at step ")
    assert err.count("\n") == 1 and err.endswith(f"run.npz has {saved} steps\n")
    assert saved < int(err.split("step ")[1].split(":")[0]) < steps
    assert (saved > 0) == (flags == "--steps 60 --lr 300") and np.isfinite(run["W"]).all()
    assert run["cos_V"][-1] == sts.cosine(run["V"], sts.ground_truth(3, 32)[1])


def test_what_is_not_this_run_or_cannot_be_written_is_named_and_kept(main, tmp_path, monkeypatch):
    assert main(f"--quick --steps 3 --out {tmp_path}/other.npz")[0] == 0
    (tmp_path / "runs").write_text("no folder")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:3000])
    np.savez(tmp_path / "arrays.npz", W=np.zeros(3))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    usual = f"{tmp_path}/runs/stochastic-quick-lr=1.npz cannot be written"
    paths = [*before, tmp_path, tmp_path / "nowhere" / "run.npz", tmp_path / "runs" / "run.npz"]
    for out, words in [("", usual), *((f"--out {path}", path.name) for path in paths)]:
        status, printed, err = main(f"--quick --resume --lr 1 {out}")
        assert (status, printed) == (2, "") and words in err.splitlines()[-1], out
        assert ("holds a run with other settings" in err) == ("other.npz" in out)
    del before[tmp_path / "runs"]
    (tmp_path / "runs").unlink()
    monkeypatch.setattr(np, "savez", Mock(side_effect=OSError(28, "disk full")))
    status, _, err = main(f"--quick --steps 3 --out {tmp_path}/other.npz")
    assert status == 2 and "other.npz cannot be written: disk full" in err
    assert {path: path.read_bytes() for path in before} == before


# Figures


def test_compared_arms_differ_in_pe_alone():
    for quick, figure in itertools.product((True, False), "245"):
        arms = [plots.arms(quick)[arm] for arm in plots.FIGURES[figure][2]]
        assert [arm.pop("pe") for arm in arms] == ["stochastic", "fixed"] and arms[0] == arms[1]


NETS = [*plots.NETS.values()]
FALLING, LEVEL, RISING = (          # errors, as functions of time from 0 to 1
    lambda u: np.exp(-6 * u), lambda u: 0.4 + 0.3 * np.exp(-9 * u), lambda u: 0.4 + (u - 0.5) ** 2)


def made_up(arm, length=None, subset=None, inverse=lambda u: 10 + 200 * u, net=1.05, **others):
    """A run of an arm, as if it had gone so: the errors at T_test and at q_test, and 1 / loss, are
    functions of its time from 0 to 1, and the error of a net is a multiple of its bound."""
    c, u = train.configuration(**plots.arms(quick=True)[arm]), np.linspace(0, 1, 41)
    if c["model"] == "fcn":
        error = np.array([[net * train.bound(c) + 0.001]])
        return {"config": c, "error_T_test": error, "se_T_test": np.array([[0.001]])} | others
    usual = {"fixed": LEVEL, "fixed, Adam": RISING}.get(arm, FALLING)
    W, V = sts.ground_truth(c["d"], c["pe_dim"])
    return {"config": c, "eval_step": u * c["steps"], "step": np.arange(c["steps"]),
            "loss": 1 / inverse(np.linspace(0, 1, c["steps"])), "W": 3 * W + 1e-4, "V": V + 1e-4,
            "error_T_test": np.outer((length or usual)(u), [0.3, 1, 1, 1, 1]),
            "error_q_test": np.outer((subset or usual)(u), [1, 1.1, 1.2, 1.3]),
            "se_T_test": np.eye(1), "cos_W": [0, 0.999], "cos_V": [0, 0.999]} | others


@pytest.mark.parametrize("figure, arms, changes, failing", [
    *((figure, [], {}, []) for figure in "123456"),
    ("1", ["full model"], dict(inverse=lambda u: 10 + 200 * u + 9 * np.sin(30 * u)), [0]),
    ("1", ["full model"], dict(inverse=lambda u: 10 + 260 * u, cos_W=[0.999, 0.98]), [1, 3]),
    ("1", ["full model"], dict(inverse=lambda u: 1 + 20 * u, cos_V=[0.999, 0.98]), [1, 2, 4]),
    ("2", ["stochastic"], dict(length=LEVEL), [0, 2]),
    ("2", ["fixed"], dict(length=FALLING), [0, 1, 3]),
    ("3", ["full model"], dict(W=np.ones((43, 43))), [0, 1, 2]),
    ("3", ["full model"], dict(V=np.ones((3, 43))), [3, 4, 5]),
    ("4", ["stochastic"], dict(length=RISING, subset=lambda u: 0.05 + 0.05 * u), [0, 2]),
    ("4", ["fixed"], dict(length=FALLING, subset=lambda u: 0.3 + 0.1 * u), [1, 2]),
    ("4", ["fixed"], dict(error_q_test=np.full((41, 4), [0.4, 0.3, 0.2, 0.3])), [4]),
    ("4", ["fixed"], dict(subset=FALLING), [5]),
    ("4", ["stochastic"], dict(subset=lambda u: 1.1 * LEVEL(u)), [3]),
    ("5", ["fixed, Adam"], dict(length=LEVEL, subset=lambda u: np.exp(-7 * u)), [2, 3, 4]),
    ("5", ["fixed, Adam"], dict(length=lambda u: np.exp(-7 * u)), [0, 1, 2]),
    ("5", ["stochastic, Adam"], dict(subset=lambda u: 0.1 + 9 * (u - 0.5) ** 2), [3]),
    ("6", NETS, dict(net=0.95), [0]), ("6", NETS[:1], dict(net=1.25), [1]),
    ("6", [plots.NETS[50, 1]], dict(error_T_test=np.array([[0.1]])), [2]),
    ("6", ["attention, T = 10"], dict(length=RISING), [3]),
    ("6", ["full model"], dict(length=RISING), [4]), ("6", ["net"], dict(net=1.25), [5])])
def test_claims_hold_and_fail_where_they_should(figure, arms, changes, failing, monkeypatch):
    """With two seeds, of which one is made up so that all claims hold."""
    monkeypatch.setattr(plots, "one_draw", lambda runs: np.full((2, 4), 0.1))
    _, claims, names = plots.FIGURES[figure]
    rows = claims({name: [made_up(name), made_up(name, **changes if name in arms else {})]
                   for name in names})
    verdicts = plots.table([(figure, *row) for row in rows]).splitlines()[1:]
    assert [i for i, line in enumerate(verdicts) if line.split()[-1] == "NO"] == failing


def test_the_table_shows_what_is_allowed_the_mean_and_the_range():
    bounds = (0.5, None), (1.5, None), (None, 6), (1, 5.5)
    _, *rows = plots.table([("1", "text", [1.0, 2.0, 6.0], *pair) for pair in bounds]).splitlines()
    assert [" ".join(row.split()) for row in rows] == [
        f"1 text {allowed} 3 (1 to 6) {holds}" for allowed, holds in (
            (">= 0.5", "yes"), (">= 1.5", "NO"), ("<= 6", "yes"), (">= 1, <= 5.5", "NO"))]


def test_one_draw_evaluates_the_weights_with_a_single_draw():
    weights = dict(zip("WV", sts.ground_truth(2, 16)))
    run, single = started() | weights, started(eval_draws=1) | weights
    train.evaluate(single)
    np.testing.assert_array_equal(plots.one_draw([run]), single["error_q_test"][1:])


def test_runs_of_a_group_see_the_same_sequences_and_no_run_is_left_out():
    arms = [*plots.arms(quick=True).values(), dict(quick=True, batch=9),
            dict(quick=True, full_batch=True), dict(quick=True, dtype="float64")]
    configs = [train.configuration(seed=seed, **arm) for arm in arms for seed in plots.SEEDS]
    groups = plots.groups(configs)
    assert sorted(map(id, itertools.chain(*groups))) == sorted(map(id, configs))
    assert max(map(len, groups)) == 3
    for group in groups:
        assert len({tuple(a.tobytes() for a in train.batch(c, 7)) for c in group}) == 1


def test_a_run_is_kept_under_its_settings_and_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "code", plots.code.__wrapped__)      # read at each call
    monkeypatch.setattr(plots, "HERE", tmp_path)
    config, files = train.configuration(), ("sts.py", "fcn.py", "train.py")
    for name in files:
        shutil.copy(HERE / name, tmp_path)
    names = {plots.kept(config | {key: "changed"}) for key in config} | {plots.kept(config)}
    for name in files:
        (tmp_path / name).write_text("changed")
        names.add(plots.kept(config))
    assert len(names) == len(config) + 1 + len(files)


def test_all_figures_and_claims_are_made_of_runs_that_are_trained_once(main, monkeypatch, tmp_path):
    """On tiny runs, in this process, and without a style, which takes most of the time."""
    tiny = {arm: settings | dict(steps=100, lr=0.1, batch=8, eval_sequences=8, evaluations=6)
            for arm, settings in plots.arms(True).items()}
    monkeypatch.setattr(plots, "SEEDS", (0,))
    monkeypatch.setattr(plots, "STYLE", {"savefig.dpi": 20})
    monkeypatch.setattr(plots, "get_context", lambda _: Mock(Pool=lambda *_: ThreadPool(1)))
    status, out, err = main("", plots, arms=lambda quick: tiny, folder=tmp_path)
    made, rows = tmp_path / "figures", [s for s in out.splitlines() if s.endswith(("yes", "NO"))]
    assert (status, err) == (0, "") and {path.name for path in made.iterdir()} == {
        "claims.txt", *(f"figure_{i}.png" for i in range(1, 7)), "movie.gif", "task.png"}
    assert (made / "claims.txt").read_text() in out and {row[0] for row in rows} == set("123456")
    _, out, _ = main(f"2 --out {tmp_path}", plots, arms=lambda quick: tiny)
    assert "runs are trained" not in out and out.count("\n2  ") == 4
    assert (tmp_path / "figure_2.png").exists() and not (tmp_path / "claims.txt").exists()


def test_plots_quick_draws_from_nothing_and_judges_no_claim(tmp_path):
    for name in "sts.py", "fcn.py", "train.py", "plots.py":
        text = (HERE / name).read_text().replace("(0, 1, 2)", "(0,)")       # one seed will do
        (tmp_path / name).write_text(text)
    job = [sys.executable, *"plots.py 2 --quick --jobs 1 --out new".split()]
    out = subprocess.check_output(job, cwd=tmp_path, text=True)
    assert "2 of 2 runs are trained" in out and "claim" not in out
    assert (tmp_path / "new" / "figure_2.png").read_bytes().startswith(b"\x89PNG")
