"""Tests:  python -m pytest test_sts.py

Each test states a fact.  Statistical tests have a fixed seed and allow 5 standard errors.
A `backward` of your own is checked by  python -m pytest test_sts.py -k gradients
"""

import train        # first, since it sets the number of threads before NumPy loads

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fcn
import plots
import sts

HERE = Path(__file__).resolve().parent
allclose = np.testing.assert_allclose


@pytest.mark.parametrize("q", (1, 3))
def test_subsets_are_uniform_and_tokens_standard_normal(q):
    n, T = 50_000, 6
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, 2, q)
    subsets, counts = np.unique(np.sort(y, axis=1), axis=0, return_counts=True)
    p, x = 1 / math.comb(T, q), X.reshape(n, 2 * T)
    assert subsets.tolist() == [list(s) for s in itertools.combinations(range(T), q)]
    assert abs(counts / n - p).max() < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(x.T @ x / n - np.eye(2 * T)).max() < 5 * math.sqrt(2 / n)
    assert abs((x ** 4).mean() - 3) < 5 * math.sqrt(96 / x.size)        # the mean of x^4 is 3


@pytest.mark.parametrize("law, square", [("rademacher", 1 / 8), ("orthonormal", 0)])
def test_encodings_are_nearly_orthonormal(law, square):
    """`square` is the mean of (e_i . e_j)^2.  The entries of E are uncorrelated."""
    n, d_e, rng = 4000, 8, np.random.default_rng(0)
    E, one = (sts.positional_encoding(law, 3, d_e, rng, *how) for how in ((n,), (None, np.float32)))
    assert (E.shape, E.dtype, one.shape, one.dtype) == ((n, 3, 8), "float64", (3, 8), "float32")
    allclose((E ** 2).sum(axis=2), 1, rtol=1e-6)
    inner, flat = (E[:, 1] * E[:, 2]).sum(axis=1), E.reshape(n, 3 * d_e)
    assert abs((inner ** 2).mean() - square) <= 5 * square * math.sqrt(2 / n)
    assert abs(flat.T @ flat / n - np.eye(3 * d_e) / d_e).max() < 5 / math.sqrt(d_e * n)


def example(law="rademacher", draws=None):
    """Random W, V and a batch X, y, E with n = 4, T = 5, d = 2, q = 3, d_e = 6."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 4, 5, 2, 3)
    E = sts.positional_encoding(law, 5, 6, rng, draws)
    return rng.standard_normal((8, 8)), rng.standard_normal((2, 8)), X, y, E


@pytest.mark.parametrize("query, c, attend_to_query", [
    ("sum", 1, False), ("mean", 1 / 3, False), ("sum", 1, True), ("mean", 1 / 3, True)])
def test_attention_is_its_definition(query, c, attend_to_query):
    W, V, X, y, E = example(draws=3)
    P, f = sts.attention(W, X, y, E, attend_to_query, query), np.empty((3, 4, 2))
    for k, b in np.ndindex(3, 4):
        z_query = np.concatenate([[0, 0], c * sum(E[k, i] for i in y[b])])
        Z = np.concatenate([X[b], E[k]], axis=1).T
        Z = np.column_stack([Z, z_query]) if attend_to_query else Z
        S = np.exp(Z.T @ W @ z_query)
        f[k, b] = V @ Z @ S / S.sum()                                   # Definition 4
        allclose(P[k, b], S / S.sum(), rtol=1e-12)
    target = [sum(X[b, i] for i in y[b]) / 3 for b in range(4)]         # Definition 1
    L = 0.5 * ((f.mean(axis=0) - target) ** 2).sum(axis=1).mean()       # Definition 5
    batch = X, y, E, attend_to_query, query
    allclose([sts.loss(W, V, *batch), sts.loss_and_grads(W, V, *batch)[0]], L, rtol=1e-12)
    allclose(sts.forward(W, V, X, y, E[1], attend_to_query, query)[0], f[1], rtol=1e-12)


def net_example(sizes=(12, 6, 5, 2)):
    """Random params of a net, biases too, and a batch X, y with n = 9, T = 4, d = 2, q = 2."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 9, 4, 2, 2)
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
    allclose([fcn.loss(params, X, y), fcn.loss_and_grads(params, X, y)[0]], L, rtol=1e-12)


def test_initial_weights_of_a_net():
    layers = fcn.init_fcn(np.random.default_rng(0), [400, 300, 200, 100])
    for (weight, bias), variance in zip(layers, (2 / 400, 2 / 300, 1 / 200)):
        assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / weight.size) and not bias.any()


@pytest.mark.parametrize("narrow", (False, True))
def test_constructed_nets_have_their_width_and_their_loss(narrow):
    T, d, q, n = 6, 2, 2, 20_000
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, d, q)
    for B in 0, 1, 2, 3:
        params = fcn.constructed_fcn(T, d, q, B, narrow)
        assert params[0][0].shape == (T * d + T, T * d if narrow else 2 * T * d)
        f, _ = fcn.forward(params, fcn.encode(X, y))
        losses = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1)
        gap = losses.mean() - fcn.constructed_loss(T, d, q, B, narrow)
        assert abs(gap) < 5 * losses.std() / math.sqrt(n)
    assert fcn.loss(fcn.constructed_fcn(T, d, q, abs(X).max(), narrow), X, y) < 1e-25


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1)])
def test_bound_is_a_sum_of_eigenvalues(T, d, q):
    A = np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q    # the target is A vec(X)
                  for y in itertools.combinations(range(T), q)])
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    top = np.cumsum([0, *np.linalg.eigvalsh(S)[::-1]])                  # of m = 0, ..., T d
    bound = fcn.width_lower_bound(np.arange(T * d + 3), T, d, q)
    allclose(bound[:T * d + 1], (d / q - top) / 2, atol=1e-14)
    assert (bound[T * d:] == 0).all()


# A case for the gradients is (law, draws, attend_to_query, query), or the sizes of a net.
ATTENTION = [("rademacher", None, False, "sum"), ("orthonormal", 3, False, "mean"),
             ("onehot", None, True, "sum"), ("rademacher", 3, True, "mean")]
NETS = [(12, 2), (12, 6, 2), (12, 3, 4, 5, 2)]


def gradients(case, where="random"):
    """The gradients at some weights; and what they should be, by complex step through the loss."""
    if case in ATTENTION:
        (*weights, X, y, E), how = example(*case[:2]), case[2:]
        loss = lambda *w: sts.loss(*w, X, y, E, *how)
        grads = lambda *w: sts.loss_and_grads(*w, X, y, E, *how)[1:]
    else:
        params, *batch = net_example(case)
        weights = [*sum(params, ())]
        loss = lambda *w: fcn.loss([*zip(w[::2], w[1::2])], *batch)
        grads = lambda *w: sum(fcn.loss_and_grads([*zip(w[::2], w[1::2])], *batch)[1], ())
    if where == "zero":         # but for biases, as all units of a net would be at their kinks
        weights = [0 * w if w.ndim == 2 else w for w in weights]
    for _ in range(10 if where == "trained" else 0):
        weights = [w - 0.1 * g for w, g in zip(weights, grads(*weights))]
    exact = [np.empty(w.shape) for w in weights]
    for i, weight in enumerate(weights):
        for entry in np.ndindex(weight.shape):      # Im L(w + ih) / h, for one entry of a weight
            moved = weight.astype(complex)
            moved[entry] += 1e-30j
            exact[i][entry] = loss(*weights[:i], moved, *weights[i + 1:]).imag / 1e-30
    return grads(*weights), exact


def agree(grads, exact):
    """Whether each entry of each gradient is right, up to 1e-12 of the gradient's largest one."""
    return all(g.shape == e.shape and abs(g - e).max() <= 1e-12 * abs(e).max()
               for g, e in zip(grads, exact, strict=True))


@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
@pytest.mark.parametrize("where", ("zero", "random", "trained"))
def test_gradients_are_exact(where, case):
    grads, exact = gradients(case, where)
    for i, (g, e) in enumerate(zip(grads, exact, strict=True)):
        name = "WV"[i] if case in ATTENTION else f"{('weight', 'bias')[i % 2]}_{i // 2 + 1}"
        allclose(g, e, rtol=0, atol=1e-12 * abs(e).max(), err_msg=f"the gradient of {name}")
    for i, e in enumerate(exact if where == "random" else []):      # wrong ones would be noticed
        for wrong in 0 * e, 1.01 * e, e[::-1] if e.ndim == 1 else e.T.reshape(e.shape):
            assert not agree([*exact[:i], wrong, *exact[i + 1:]], exact)


@pytest.mark.parametrize("mistake", (None, "no gbar", "a factor", "a transpose"))
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_mistakes_in_a_backward_are_noticed(case, mistake, monkeypatch):
    """One in loops over sequences and keys passes; with a mistake it does not."""
    def loops(cache, df):
        V, z_query, (X, E, key), P, _ = cache
        dW, dV = np.zeros((V.shape[1], V.shape[1])), np.zeros(V.shape)
        for b, query in enumerate(z_query * (2 if mistake == "a factor" else 1)):
            Z = [np.append(x, e) for x, e in zip(X[b], E)] + [z_query[b]] * (key is not None)
            g = [df[b] @ V @ z_j for z_j in Z]
            for P_j, g_j, z_j in zip(P[b], g, Z, strict=True):
                dV += P_j * np.outer(df[b], z_j)
                dW += P_j * (g_j - (0 if mistake == "no gbar" else P[b] @ g)) * np.outer(z_j, query)
        return dW.T if mistake == "a transpose" else dW, dV

    monkeypatch.setattr(sts, "backward", loops)
    assert agree(*gradients(case, "random")) == agree(*gradients(case, "trained")) == (not mistake)
    assert mistake or agree(*gradients(case, "zero"))


def test_gradients_of_two_steps_at_the_board():
    """The example in sts.backward: T = 3, d = 1, q = 1, one-hot encodings."""
    W, V, E, v = np.zeros((4, 4)), np.zeros((1, 4)), np.eye(3), 0.6
    _, dW, dV = sts.loss_and_grads(W, V, np.array([[[1.0], [4], [-2]]]), np.array([[1]]), E)
    allclose(np.append(dW, dV), [*16 * [0], -4, -4 / 3, -4 / 3, -4 / 3])
    # Means over x and y are exact on these x, as their moments up to order 3 are those of N(0, I).
    x, (W_star, V_star) = math.sqrt(3) * np.concatenate([E, -E]), sts.ground_truth(1, 3, T=3)
    X, y = np.tile(x, (3, 1))[:, :, None], np.repeat(np.arange(3), 6)[:, None]
    _, dW, dV = sts.loss_and_grads(W, V, X, y, E)
    allclose(np.append(dW, dV), [*16 * [0], -1 / 3, 0, 0, 0], atol=1e-15)
    _, dW, _ = sts.loss_and_grads(W, v * np.eye(1, 4), X, y, E)
    allclose(dW, -v / 9 * np.pad(np.eye(3) - 1 / 3, ((1, 0), (1, 0))), atol=1e-15)
    allclose([sts.cosine(dW, W_star), sts.cosine(dV, V_star), sts.cosine(x, x)], [-1, -1, 1])


def numbers(pattern, text):
    """An array with a row for each match, of the numbers that take the place of # in a pattern."""
    pattern = pattern.replace(" ", r"\s+").replace("#", r"(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
    return np.array([match.groups() for match in re.finditer(pattern, text)], dtype=float)


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_a_tour_is_true_and_needs_no_other_file(name, tmp_path):
    shutil.copy(HERE / name, tmp_path)
    out = subprocess.run([sys.executable, "-I", name], cwd=tmp_path, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    assert numbers("relative difference #", out) < 1e-13
    if name == "sts.py":
        _, losses, inside, outside = numbers("step # loss # attention # and #", out).T
        assert (np.diff(losses) < 0).all() and (inside[1:] > outside[1:]).all() and len(losses) > 2
        c, losses = numbers(r"c = # f .*? loss #", out).T
        assert (np.diff(c) > 0).all() and (np.diff(losses) < 0).all() and losses[-1] < 1e-10
    else:
        m, bound, share = numbers(r" # # #%", out).T
        allclose([bound, share / 120], 2 * [fcn.width_lower_bound(m, 200, 5, 3)], atol=6e-4)
        m, losses, bound = numbers("width # loss # bound #", out).T
        allclose(bound, fcn.width_lower_bound(m, 5, 2, 2), atol=6e-4)
        assert (abs(losses - bound - 0.02) < 0.022).all()


def test_impossible_arguments_are_refused():
    W, V, X, y, E = example()
    for function, arguments, words in [
            (sts.forward, (W[1:], V, X, y, E), r"need X .*, got .* W \(7, 8\)"),
            (sts.forward, (W, V[1:], X, y, E), r"need V \(2, 8\), got \(1, 8\)"),
            (sts.loss, (W, V, X, y + 2, E), "from 0 to 4 in y, got .* to"),
            (sts.attention, (W, X, y - 2, E), "from 0 to 4 in y, got -"),
            (sts.loss, (W, V, X, y, E, False, "max"), "sum or mean, got 'max'"),
            (fcn.encode, (X, y[:, [0, 1, 0]]), "different positions from 0 to 4"),
            (fcn.forward, (net_example()[0], np.zeros((5, 9))), r"need inputs \(n, 12\)"),
            (fcn.width_lower_bound, (np.array([3, -1, 2]), 4, 2, 2), "need m >= 0")]:
        with pytest.raises(ValueError, match=words):
            function(*arguments)


SMALL = {"T": 8, "d": 2, "q": 2, "d_e": 16, "batch": 16, "steps": 12, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 8}
RUNS = {
    "stochastic": SMALL, "fixed": SMALL | {"pe": "fixed"}, "one-hot": SMALL | {"pe": "onehot"},
    "fresh": SMALL | {"fresh": np.bool_(True), "lr": np.float32(0.5), "seed": np.int64(3),
                      "T_test": np.array([9, 5])},      # values from NumPy are accepted
    "full model": SMALL | {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5},
    "Adam": SMALL | {"optimizer": "adam", "schedule": "cosine", "law": "orthonormal"},
    "net": {"model": "fcn", "T": 8, "d": 2, "q": 2, "hidden": [7, 9], "steps": 12,
            "eval_sequences": 8, "pe": "fixed", "query": "mean"}}       # without effect


def assert_same(one, two):
    assert one.keys() == two.keys() and one["config"] == two["config"]
    for key in one.keys() - {"config"}:
        np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize("name", ("stochastic", "fresh", "fixed", "one-hot", "full model", "Adam"))
def test_training_is_gradient_descent_or_adam(name):
    """The loop written out."""
    run = train.start(train.configuration(**RUNS[name]))
    c, weights, losses, m, v = run["config"], {key: run[key] for key in "WV"}, [], {}, {}
    assert run["W"].any() == run["V"].any() == (name == "full model")
    once = {"one-hot": np.eye(8, 16)[None],
            "fixed": sts.positional_encoding("rademacher", 16, 16, train.stream(c, "encodings"), 1)}
    for t in range(12):
        batch, anew = train.stream(c, "batches", t * c.fresh), train.stream(c, "encodings", t)
        X, y = sts.sample_sts(batch, 16, 8, 2, 2, np.float32)
        E = once.get(name, sts.positional_encoding(c.law, 8, 16, anew, c.draws))[:, :8]
        L, *grads = sts.loss_and_grads(*weights.values(), X, y, E, c.attend_to_query, c.query)
        losses.append(L)
        for key, g in zip("WV", grads):
            if name == "Adam":                  # Kingma and Ba, Algorithm 1, times the schedule
                m[key], v[key] = (b * old.get(key, 0) + (1 - b) * new
                                  for b, old, new in ((0.9, m, g), (0.999, v, g ** 2)))
                m_hat, v_hat = m[key] / (1 - 0.9 ** (t + 1)), v[key] / (1 - 0.999 ** (t + 1))
                g = m_hat / (np.sqrt(v_hat) + 1e-8) * (1 + math.cos(math.pi * t / 12)) / 2
            weights[key] = weights[key] - 0.5 * g
    train.descend(run)
    for key, expected in (weights | {"loss": losses, "eval_step": [0, 3, 6, 9, 12]}).items():
        allclose(run[key], expected, rtol=1e-4, atol=1e-5)


def test_random_streams_differ_by_seed_and_purpose_alone():
    keys = [("weights",), ("encodings",), *itertools.product(("encodings", "batches"), range(3)),
            *itertools.product(["tests"], range(3), range(2))]
    configs = [train.configuration(**SMALL, seed=seed) for seed in (0, 1)]
    assert len({train.stream(c, *key).random() for c in configs for key in keys}) == 2 * len(keys)
    E = [train.start(train.configuration(**SMALL, seed=seed, pe="fixed"))["E"] for seed in (0, 1)]
    full = train.start(train.configuration(**RUNS["full model"] | {"d_e": 98}))
    assert (E[0] != E[1]).any() and abs(full["W"].std() / 0.5 - 1) < 0.05
    assert abs(sts.cosine(full["V"], full["W"][:2])) < 5 / math.sqrt(200)
    for name in RUNS:                               # runs of one seed see the same sequences
        c = train.configuration(**RUNS[name] | {"d_e": 32, "batch": 16, "seed": 1})
        assert all(map(np.array_equal, train.batch(c, 5), train.batch(configs[1], 5)))


@pytest.mark.parametrize("name", ("stochastic", "fixed", "one-hot", "full model", "net"))
def test_errors_are_losses_on_the_same_new_sequences_at_every_evaluation(name):
    c = train.configuration(**RUNS[name] | {"T_test": [8, 6, 12], "q_test": [2, 1]})
    run, net, rng = train.start(c), name == "net", np.random.default_rng(0)
    run |= {} if net else {key: rng.standard_normal(run[key].shape) for key in "WV"}
    assert run["tests"].tolist() == [[8, 2], [6, 2], [12, 2], [8, 1]][:1 if net else 4]
    for run["t"] in run["eval_step"][[0, -1]]:
        train.evaluate(run)
    for (k, (T, q)), i in itertools.product(enumerate(run["tests"]), (0, -1)):
        X, y = sts.sample_sts(train.stream(c, "tests", k, 0), 8, T, 2, q, np.float32)
        how = train.encodings(run, T, 16, "tests", k, 1), c.attend_to_query, c.query
        L = [fcn.loss(train.layers(run), X[[b]], y[[b]]) if net else
             sts.loss(run["W"], run["V"], X[[b]], y[[b]], *how) for b in range(8)]
        found = run["error"][i, k], run["se"][i, k]
        allclose(found, [np.mean(L), np.std(L) / math.sqrt(8)], rtol=1e-5)
        if k == 0 and not net:
            P = sts.attention(run["W"], X, y, *how)
            star = sts.ground_truth(2, 16, 8 if name == "one-hot" else None)
            seen = [np.mean([P[:, b, y[b]].sum(axis=1) for b in range(8)]),
                    *(sts.cosine(run[key], other) for key, other in zip("WV", star))]
            allclose([run[key][i] for key in ("on_selected", "cos_W", "cos_V")], seen, rtol=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_and_resumes_bit_for_bit(name, tmp_path):
    run = train.train(lambda run: run["t"] == 6 and train.save(run, tmp_path / "6.npz"),
                      **RUNS[name])
    assert_same(train.train(**vars(run["config"])), run)
    assert_same(train.descend(train.load(tmp_path / "6.npz", run["config"])), run)
    weights = [run[key] for key in run if re.match("[WVE]$|[mv]_|weight|bias", key)]
    assert len(weights) > 1 and {array.dtype for array in weights} == {np.dtype("float32")}
    assert run["loss"][-1] < 0.9 * run["loss"][0] or name != "net"


DEFAULTS = {"T": 200, "d": 5, "q": 3, "model": "attention", "pe": "stochastic", "seed": 0,
            "law": "rademacher", "d_e": 170, "attend_to_query": False, "query": "sum", "lr": 4,
            "init_std": 0.0, "hidden": [175], "batch": 256, "fresh": False, "optimizer": "gd",
            "steps": 5000, "schedule": "constant", "evaluations": 10, "eval_sequences": 128,
            "draws": 1, "eval_draws": 16, "T_test": [250, 300, 350, 400], "q_test": [2, 3, 4, 5, 8]}


@pytest.mark.parametrize("given, others", [
    ({}, {}), ({"T": 4, "pe": "onehot"}, {"d_e": 8, "hidden": [13], "T_test": [5, 6, 7, 8],
                                          "q_test": [2, 3, 4]}),
    ({"law": "orthonormal", "d_e": 300}, {"hidden": [305], "T_test": [250, 300]}),
    ({"law": "orthonormal"}, {"d_e": 400, "hidden": [405]}), ({"model": "fcn"}, {"lr": 0.02}),
    ({"optimizer": "adam"}, {"lr": 0.01}),
    ({"model": "fcn", "optimizer": "adam"}, {"lr": 0.01}), ({"quick": True}, {
        "T": 50, "d_e": 100, "steps": 2000, "evaluations": 20, "lr": 2, "T_test": [62, 75, 87, 100],
        "hidden": [105]})])
def test_defaults_are_those_of_the_help(given, others):
    found = vars(train.configuration(**given))
    assert {"quick": True} | found == {"quick": True} | DEFAULTS | given | others
    text = " ".join(train.command_line().format_help().split("options:")[1].split())
    for name, value in DEFAULTS.items():
        shown = {"d_e": "(170, or ", "lr": "(4; 2 with --quick, 0.02 for a net, 0.01 for Adam)",
                 "hidden": "(one layer, d + d_e)", "T_test": "(5/4, 3/2, 7/4 and 2 T)",
                 "q_test": "(2, 3, 4, 5 and 8)"}.get(name, f"({value})")
        part = re.split(" --(?!quick,)", text.split(f" --{name.replace('_', '-')} ")[1])[0]
        assert shown in part or value is False


def test_a_new_law_is_one_entry_of_LAWS(monkeypatch):
    monkeypatch.setitem(sts.LAWS, "ones", (lambda rng, T, d_e: np.ones((T, d_e)), lambda T: 3 * T))
    run = train.train(T=8, law="ones", steps=1, lr=1e-3)
    assert (train.encodings(run, 8, 1, "encodings", 0) == np.ones((1, 8, 48))).all()
    assert "ones" in train.command_line().format_help()


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function from flags to what main returns, or its exit status, and to what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train, settings={}, **arguments):
        given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *given, *flags.split()])
        try:
            result = program.main(**arguments)
        except SystemExit as end:
            result = end.code
        return result, *capsys.readouterr()
    return call


@pytest.mark.parametrize("given, words", [
    ({"attend_to_query": "no"}, "--attend-to-query: .*'no'"), ({"quick": "no"}, "--quick: .*'no'"),
    ({"pe": "sinus"}, "--pe: invalid choice: 'sinus' .*stochastic.*fixed.*onehot"),
    ({"steps": "1e4"}, "--steps: need a whole number above 0, got '1e4'"),
    ({"T": 2.5}, "--T: need a whole number above 0, got '2.5'"),
    ({"seed": -1}, "--seed: need a whole number of at least 0, got '-1'"),
    ({"lr": math.inf}, "--lr: need a finite number above 0, got 'inf'"),
    ({"init_std": -1}, "--init-std: need a finite number of at least 0, got '-1'"),
    ({"q": 201}, "--q, --q-test: need at most the length, got 201 for length 200"),
    ({"law": "orthonormal", "d_e": 199}, "orthonormal .* 200 positions need d_e >= 200, got 199"),
    *(({name: None}, rf"--{name.replace('_', '-')}: .*None") for name in DEFAULTS),
    ({"q_test": 5, "T": 0}, "--q-test: need a list, got 5|--T: "), ({"hidden": []}, "--hidden: "),
    ("--model fcn --hidden 5 x", "--hidden: need a whole number above 0, got 'x'"),
    ("--q-test 2 201", "--q, --q-test: need at most the length, got 201 for length 200"),
    ("--pe onehot --T-test 401", "onehot encodings of 401 positions need d_e >= 401, got 400"),
    ("--full-batch", "unrecognized arguments: --full-batch"),
    ("--batch 1000000000000", "Unable to allocate"),
    ("--out /dev/null/new/run.npz", ".*Not a directory"),
    ("no-such-figure", ".*'no-such-figure' is not one of 1, 2, 3, 4, 5, widths"),
    ("1 --jobs 0", "argument --jobs: need a whole number above 0, got '0'"),
    ("1 --out /dev/null/figures", ".*Not a directory")], ids=str)
def test_what_is_impossible_is_refused_in_one_line_from_python_and_as_flags(given, words, command):
    flags, settings = (given, {}) if isinstance(given, str) else ("", given)
    if settings:
        with pytest.raises(ValueError, match=f"^({words})"):
            train.train(**settings)
    program = train if settings or flags.startswith("--") else plots
    status, out, err = command(flags, program, settings)
    *usage, line = err.splitlines()
    assert (status, os.listdir(), usage if program is train else []) == (2, [], [])
    assert program is plots or not usage
    assert re.match(f"{program.__name__}.py: error: ({words})", line) and out.count("\n") <= 1


def test_the_program_prints_what_its_file_holds(command, capsys):
    given = {"T": 20, "d": 3, "q": 2, "d_e": 40, "steps": 6, "evaluations": 3}
    status, out, err = command("", settings=given)
    path, = Path("runs").iterdir()                  # named after the flags
    run, lines = train.load(path), [line.split() for line in out.splitlines()]
    assert (status, err) == (None, "") and max(map(len, out.splitlines())) <= 80
    assert_same(run, train.train(train.progress, **given))
    assert str(path) in out and capsys.readouterr().out in out      # progress prints the table
    losses = run["loss"].reshape(3, 2).mean(axis=1)
    rows = [[2, 4, 6], losses, run["error"][1:, :5], run["on_selected"][1:]]
    rows = [[f"{row[0]:.0f}", *(f"{x:.4f}" for x in row[1:])] for row in np.column_stack(rows)]
    rows.append("step loss T=20 T=25 T=30 T=35 T=40 selected".split())
    assert all(row in lines for row in rows)
    for (T, q), *last in zip(train.tests(run["config"]), run["error"][-1], run["se"][-1]):
        shown = numbers(f"T = {T}, q = {q} # # #%", out)[0]
        allclose(shown / [1, 1, 100], [*last, last[0] * 2 * q / 3], atol=6e-4)
    allclose(numbers("training loss # #%", out), [[losses[-1], losses[-1] / 0.0075]], atol=0.06)
    _, out, _ = command("--model fcn --T 6 --d 2 --q 2 --hidden 5 9 --steps 9")
    bound = numbers("first layer of width 5 has an expected error below #", out)
    assert abs(bound - fcn.width_lower_bound(5, 6, 2, 2)) < 6e-5 and len(os.listdir("runs")) == 2


def test_a_stopped_run_resumes_in_its_file(command, monkeypatch):
    command("--lr 1 --out run.npz", settings=SMALL)     # a run of other settings, to be replaced
    rates = Mock(side_effect=[*16 * [0.5], KeyboardInterrupt, *99 * [0.5]])
    monkeypatch.setattr(train, "learning_rate", rates)
    status, _, err = command("--out run.npz", settings=SMALL)
    stopped = train.load("run.npz")
    assert status == 1 and "--resume continues it" in err
    assert (stopped["t"], stopped["config"].lr) == (6, 0.5)
    _, out, _ = command("--out run.npz --resume", settings=SMALL)
    assert numbers(r"\n #(?=\s+\d)", out)[:, 0].tolist() == [6, 9, 12]   # the steps in the table
    assert_same(train.load("run.npz"), train.train(**SMALL))


def test_a_file_is_replaced_as_a_whole_and_only_if_it_holds_a_run(command, monkeypatch):
    def write_half(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    run, words = train.train(**SMALL), {"other.npz": "holds a run with lr 0.5", "edited.npz":
                                        "holds a run with other code in sts.py, fcn.py or train.py"}
    train.save(run, "other.npz")
    train.save(train.train(**SMALL | {"lr": 1}) | {"code": "other"}, "edited.npz")
    train.save(run | {"object": np.array({})}, "pickle.npz")
    Path("notes.txt").write_text("not a run")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    monkeypatch.setattr(np, "savez", write_half)
    for path, resume in itertools.product(before, ("", "--resume")):
        _, _, err = command(f"--lr 1 --out {path} {resume}", settings=SMALL)
        problem = f"{path} {words.get(path.name, 'does not hold a run')}"
        problem = "no space left" if path.name in words and not resume else problem
        assert err == f"train.py: error: {problem}\n"
    with pytest.raises(OSError):
        plots.save_picture(Mock(savefig=write_half), Path("notes.txt"))
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.parametrize("name, old, new", [
    ("sts.py", "L = 0.5 *", "L = 0.25 *"), ("fcn.py", "[1.0]", "[2.0]"),
    ("train.py", "beta1=0.9", "beta1=0.8"), ("train.py", "abbrev=False", "abbrev=True")])
def test_comments_and_docstrings_are_no_other_code(name, old, new, monkeypatch, tmp_path):
    for file in "sts.py", "fcn.py", "train.py":
        text = Path(shutil.copy(HERE / file, tmp_path)).read_text(encoding="utf-8")
        if file == name:
            edits = [text, text.replace('"""\n', 'Edited"""  # edited\n'), text.replace(old, new)]
    monkeypatch.setattr(train, "HERE", tmp_path)
    one, same, other = ((tmp_path / name).write_text(edit) and train.code() for edit in edits)
    assert one == same != other and len({*edits}) == 3


@pytest.mark.parametrize("flags", (
    "--T 20 --q 20 --steps 50", "--T 1 --q 1 --steps 50", "--optimizer adam --lr 1e10 --T 20",
    "--T 20 --lr 300 --steps 60 --evaluations 1", "--T 20 --lr 1e30 --steps 1",
    "--model fcn --T 20 --lr 100 --steps 50"))
def test_a_diverging_run_ends_with_one_line(flags, command):
    status, out, err = command(f"--d-e 40 --batch 32 {flags} --out run.npz")
    assert status == 1 and re.fullmatch("train.py: error: the run diverges, with a loss of .+ at "
                                        r"step \d+: try a lower lr than .+\n", err)
    run = train.load("run.npz")
    assert run["t"] <= numbers("at step #", err) <= 60 and np.nanmax(run["error"]) < 100
    assert (numbers(r" #", out.split("predictor")[1]) < 100).all()      # no absurd number


@pytest.mark.parametrize("quick", (False, True))
def test_the_arms_are_what_headlines_and_captions_say(quick):
    arms = {key: vars(train.configuration(**arm)) for key, arm in plots.arms(quick).items()}
    common = {"model": "attention", "pe": "stochastic", "attend_to_query": False, "query": "sum"}
    full, small = {"law": "orthonormal", "optimizer": "gd"}, {"law": "rademacher", "eval_draws": 16}
    task = {"T": 10, "d": 5, "q": 3, "fresh": True}
    facts = {("full model",): common | full | {"attend_to_query": True, "query": "mean"},
             ("attention", 10): common | full | task}
    for how in "gd", "adam":
        facts[how, "stochastic"] = common | small | {"optimizer": how, "fresh": True, "init_std": 0}
        facts[how, "fixed"] = arms[how, "stochastic"] | {"pe": "fixed"}     # the only difference
    for m, hidden in plots.NETS:
        facts["net", m, hidden] = task | {"model": "fcn", "hidden": [m, max(m, 64)][:hidden]}
    for key in arms.keys() - facts.keys():
        facts[key] = common | small | {"T": key[2], "d": 5, "q": 3, "d_e": key[3], "fresh": False}
    assert {key: {name: arms[key][name] for name in facts[key]} for key in arms} == facts
    assert {arm["optimizer"] for key, arm in arms.items() if key[0] in ("net", "width")} == {"adam"}


def draw(name):
    """A figure of runs as if trained, with random losses, errors and cosines; and its runs."""
    rng, runs = np.random.default_rng(0), {}
    plt.close("all")
    function, _, needs = plots.FIGURES[name]
    arms = plots.arms(quick=True)
    for key, seed in itertools.product([key for key in arms if key[0] in needs], plots.SEEDS):
        settings = arms[key] | {"eval_sequences": 1, "seed": seed}
        run = train.start(train.configuration(**settings))
        for part in {"W", "V", "loss", "error", "cos_W", "cos_V"} & run.keys():
            run[part] = rng.uniform(0.01, 0.2, run[part].shape)
        runs.setdefault(key, []).append(run)
    return function(runs), runs


@pytest.mark.parametrize("name, titles, labels", [
    ("1", ["training loss L", "1/L", "cosine similarity"],
     ["derived slope,\n4 lr/($q^2 d_e$) a step", "cos(W, W*)", "cos(V, V*)"]),
    ("3", [f"{name} {when} training" for name in "WV" for when in ("before", "after")], []),
    ("widths", ["error at T = 10", "$d_e$ that attention needs for an error of 10% of d/(2q)"],
     ["bound for every net", "trained nets, 1 hidden layer", "trained nets, 2 hidden layers",
      "constructed nets (fcn.py)", "trained attention", "trained", "predicted"])])
def test_figures_1_3_and_widths(name, titles, labels):
    figure, _ = draw(name)
    axes = [axis for axis in figure.axes if axis.get_title()]
    lines = {line.get_label(): line.get_xydata().T for axis in axes for line in axis.lines}
    legends = [axis.get_legend().texts for axis in axes if axis.get_legend()]
    assert [text.get_text() for text in itertools.chain(*legends)] == labels
    assert [axis.get_title() for axis in axes] == titles
    dotted = [line.get_xydata()[0] for line in axes[0].lines if line.get_linestyle() == ":"]
    if name == "1":
        assert dotted[0][1] == 0.75 and axes[0].texts[0].get_text() == "zero predictor"
    elif name == "widths":
        assert dotted[0][0] == 50 and axes[0].texts[0].get_text() == "T d = 50"
        losses = [fcn.constructed_loss(10, 5, 3, 5, narrow) for narrow in (True, False)]
        allclose(lines["constructed nets (fcn.py)"], [[50, 100], losses])
        m, bound = lines["bound for every net"]
        allclose(bound, fcn.width_lower_bound(m, 10, 5, 3))


@pytest.mark.parametrize("name, how, subsets", [("2", "gd", []), ("4", "gd", [2, 4, 5, 8]),
                                                ("5", "adam", [2, 4, 5, 8])])
def test_figures_2_4_and_5(name, how, subsets):
    figure, runs = draw(name)
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_visible()}
    tests = {f"$T_{{test}}$ = {T}": (T, 3) for T in (62, 75, 87, 100)}
    tests |= {f"$q_{{test}}$ = {q}": (50, q) for q in subsets} | {"the trained task": (50, 3)}
    assert panels.keys() == tests.keys() and [*panels][0] == "the trained task"
    for title, (T, q) in tests.items():
        axis, ends = panels[title], {}
        assert axis.get_subplotspec().rowspan.start == ("q" in title)
        lines = {line.get_label(): line for line in axis.lines}
        for pe, color, style in ("stochastic", plots.STOCHASTIC, "-"), ("fixed", plots.FIXED, "--"):
            column = runs[how, pe][0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in runs[how, pe]])
            mean, band = curves.mean(axis=0), axis.collections[pe == "fixed"].get_paths()[0]
            assert {*curves.min(axis=0), *curves.max(axis=0)} == {*band.vertices[:, 1]}
            assert (lines[pe].get_color(), lines[pe].get_linestyle()) == (color, style)
            allclose(lines[pe].get_xydata().T, [runs[how, pe][0]["eval_step"], mean])
            ends[mean[-1]], = [text for text in axis.texts if text.get_text() == pe]
            assert ends[mean[-1]].get_color() == color and ends[mean[-1]].xy[1] == mean[-1]
        assert [ends[end].get_va() for end in sorted(ends)] == ["top", "bottom"]
        zero = [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":"]
        assert zero == [5 / (2 * q)]                                        # d/(2q)
        named = "zero predictor" in [text.get_text() for text in axis.texts]
        assert named == (title in ("the trained task", "$q_{test}$ = 2"))


@pytest.mark.parametrize("name", plots.FIGURES)
def test_no_text_leaves_a_picture(name):
    with plt.rc_context(plots.STYLE):
        figure, _ = draw(name)
        figure.suptitle(plots.FIGURES[name][1])
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.02 < box.x0 and box.x1 < width + 0.02 and -0.02 < box.y0 and box.y1 < height + 0.02
    assert figure.get_supxlabel().count("\n") <= 1            # a caption has two lines


def test_a_caption_names_what_all_runs_share(monkeypatch):
    monkeypatch.setitem(train.OPTIMIZERS, "other", train.gd)
    adam = [{"optimizer": "adam", "fresh": True, "batch": 7, "q": q, "d_e": 9 * q} for q in (2, 4)]
    for given, words in [
            (adam, "T = 200, d = 5, lr = 0.01, Adam, fresh batches of 7 sequences."),
            ([{}], "T = 200, q = 3, d = 5, $d_e$ = 170, lr = 4, gradient descent, one full batch "
             "of 256 sequences."),
            ([{"optimizer": "other", "T": T, "batch": T} for T in (8, 9)],
             "q = 3, d = 5, $d_e$ = 170, lr = 4, Other.")]:
        figure, runs = plt.figure(), [{"config": train.configuration(**arm)} for arm in given]
        plots.caption(figure, "A text.", *runs)
        assert " ".join(figure.get_supxlabel().split()) == f"A text. {words}"


def test_crossing_net_width_and_predicted_error():
    for errors, size in [((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.05, 0.05), math.nan),
                         ((0.05, 0.2, 0.05), math.sqrt(80 * 120)), ((0.01, 0.01, 0.2), math.nan),
                         ((math.nan, 0.2, 0.05), math.sqrt(80 * 120))]:
        allclose(plots.crossing([50, 80, 120], errors, 0.1), size)
    T, d, q, d_e, n, rng = 10, 5, 3, 16, 32_000, np.random.default_rng(0)
    allclose(fcn.width_lower_bound(plots.net_width(T, d, q), T, d, q), 0.1 * d / (2 * q))
    E, y, found = sts.positional_encoding("rademacher", T, d_e, rng, n), [4, 0, 7], []
    scores, target = E @ E[:, y].sum(axis=1)[:, :, None], np.isin(np.arange(T), y) / q
    for a in np.geomspace(1, 30, 40):                       # W = a W*, V = alpha V*
        P = sts.softmax(a * scores[:, :, 0])
        alpha = (P @ target).mean() / (P * P).sum(axis=1).mean()
        many = alpha * P.reshape(-1, 16, T).mean(axis=1)    # over x the loss is d/2 |P - target|^2
        found.append([d / 2 * ((f - target) ** 2).sum(axis=1) for f in (alpha * P, many)])
    losses = min(found, key=lambda pair: pair[0].mean())[1]
    gap = plots.predicted_error(T, d, q, d_e, rng, n) - losses.mean()
    assert abs(gap) < 5 * losses.std() / math.sqrt(n / 16)


def test_runs_are_trained_unless_kept(tmp_path):
    wanted = [train.train(**SMALL, seed=seed) for seed in range(3)]
    for seed, run in enumerate(wanted):
        train.save(run | {"loss": np.zeros(12)}, tmp_path / f"good seed {seed}.npz")
    (tmp_path / "bad seed 0.npz").write_bytes(b"damaged")
    train.save(wanted[1] | {"code": "other"}, tmp_path / "bad seed 1.npz")
    train.save(wanted[0], tmp_path / "bad seed 2.npz")
    arms = {("good",): SMALL, ("bad",): SMALL, ("diverging",): SMALL | {"lr": 1e6}}
    runs = plots.trained(arms, tmp_path, 1)
    for good, bad, diverging, run in zip(*runs.values(), wanted, strict=True):
        assert_same(good, run | {"loss": np.zeros(12)})
        assert_same(bad, run)
        assert np.isnan(diverging["error"][-1]).all() and not (diverging["error"] > 100).any()


@pytest.mark.parametrize("flags, folder, titles", [
    ("--out new", "new", ["A claim", ""]),
    ("--quick", "runs/quick", 2 * ["A small task (--quick)"])])
def test_plots_claims_something_at_full_size_only(flags, folder, titles, command):
    drawn, kept = [plt.figure(), plt.figure()], "quick" if "quick" in flags else "figures"
    arms = Mock(return_value={("one",): SMALL, ("not needed",): {}})
    figures = {"3": (lambda runs: drawn[0], "A claim", {"one"}),
               "not": (None, "", {"one"}), "mine": (lambda runs: drawn[1], None, set())}
    Path("runs", kept).mkdir(parents=True)
    for seed in plots.SEEDS:
        plots.train_into(Path("runs", kept, f"one seed {seed}.npz"), SMALL | {"seed": seed})
    _, out, err = command(f"3 mine {flags}", plots, arms=arms, figures=figures)
    paths = [f"{folder}/figure_3.png", f"{folder}/mine.png"]
    assert (err, out.splitlines()[:2]) == ("", paths) and all(map(os.path.exists, paths))
    assert [figure.get_suptitle() for figure in drawn] == titles
    arms.assert_called_with("quick" in flags)


def test_a_killed_process_ends_the_program_with_one_line(tmp_path):
    Path(tmp_path, "kill.py").write_text(f"""import os, pathlib, signal, sys
sys.path.insert(0, {str(HERE)!r})
import plots, train
if __name__ == "__main__":
    train.RUNS = pathlib.Path("runs")
    plots.main({{"1": (None, "", {{"one"}})}}, lambda quick: {{("one",): {{"T": 8}}}})
train.start = lambda c: os.kill(os.getpid(), signal.SIGKILL)        # in a process that trains""")
    end = subprocess.run([sys.executable, "kill.py", "--out", "new", "--jobs", "2"], cwd=tmp_path,
                         stderr=subprocess.PIPE, text=True, timeout=50)
    assert end.returncode == 1 and re.fullmatch("kill.py: error: .* was killed.*\n", end.stderr)
