"""Tests:  python -m pytest

Each test states a fact: first about the task, the models, their gradients and the bound, then about
training, the command line and the figures.  Statistical tests have a fixed seed and allow 5
standard errors.
"""

import itertools
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

for library in "OPENBLAS", "MKL", "OMP":    # before NumPy loads: threads slow small matrices down
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

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
def test_subsets_are_uniform(q):
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


@pytest.mark.parametrize("kind, square", [("rademacher", 1 / 8), ("orthonormal", 0)])
def test_random_encodings_are_nearly_orthonormal(kind, square):
    """`square` is the mean of (e_i . e_j)^2.  The entries of E are uncorrelated, with mean 0."""
    n, d_e = 4000, 8
    E = sts.positional_encoding(kind, 3, d_e, np.random.default_rng(0), n)
    allclose((E ** 2).sum(axis=2), 1)
    inner, flat = (E[:, 1] * E[:, 2]).sum(axis=1), E.reshape(n, 3 * d_e)
    assert abs((inner ** 2).mean() - square) <= 5 * square * math.sqrt(2 / n)
    assert abs(flat.mean(axis=0)).max() < 5 / math.sqrt(d_e * n)
    assert abs(flat.T @ flat / n - np.eye(3 * d_e) / d_e).max() < 5 / math.sqrt(d_e * n)


# The attention model


def example(kind="rademacher", K=1):
    """Random W, V and a batch X, y, E with n = 4, T = 5, d = 2, q = 3, d_e = 6."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 4, 5, 2, 3)
    E = sts.positional_encoding(kind, 5, 6, rng, K)
    return rng.standard_normal((8, 8)), rng.standard_normal((2, 8)), X, y, E if K > 1 else E[0]


@pytest.mark.parametrize("attend_to_query", (False, True))
@pytest.mark.parametrize("query, c", [("sum", 1), ("mean", 1 / 3)])
def test_attention_is_its_definition(query, c, attend_to_query):
    W, V, X, y, E = example(K=3)
    P, f = sts.attention(W, X, y, E, attend_to_query, query), np.empty((3, 4, 2))
    for k, b in np.ndindex(3, 4):
        z_query = np.concatenate([[0, 0], c * sum(E[k, i] for i in y[b])])
        Z = np.concatenate([X[b], E[k]], axis=1).T
        if attend_to_query:
            Z = np.column_stack([Z, z_query])
        S = np.exp(Z.T @ W @ z_query)
        f[k, b] = V @ Z @ S / S.sum()                                   # Definition 4
        allclose(P[k, b], S / S.sum(), rtol=1e-12)
    target = [sum(X[b, i] for i in y[b]) / 3 for b in range(4)]         # Definition 1
    L = 0.5 * ((f.mean(axis=0) - target) ** 2).sum(axis=1).mean()       # Definition 5
    allclose(sts.forward(W, V, X, y, E[1], attend_to_query, query)[0], f[1], rtol=1e-12)
    allclose(sts.loss_and_grads(W, V, X, y, E, attend_to_query, query)[0], L, rtol=1e-12)


@pytest.mark.parametrize("kind, T", [("onehot", 5), ("orthonormal", None)])
def test_gradient_descent_from_zero_finds_the_ground_truth(kind, T):
    rng, (W_star, V_star) = np.random.default_rng(0), sts.ground_truth(2, 7, T)
    W, V = 0 * W_star, 0 * V_star
    for _ in range(300):
        X, y = sts.sample_sts(rng, 64, 5, 2, 2)
        E = sts.positional_encoding(kind, 5, 7, rng)
        _, dW, dV = sts.loss_and_grads(W, V, X, y, E)
        W, V = W - dW, V - dV
    assert sts.cosine(W, W_star) > 0.999 and sts.cosine(V, V_star) > 0.999
    losses = [sts.loss_and_grads(a * W_star, V_star, X, y, E)[0] for a in (1, 5, 10, 1e6)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-25


# Fully-connected nets and their bound


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
    allclose(fcn.loss_and_grads(params, X, y)[0], L, rtol=1e-12)


def test_initial_weights_of_a_net():
    layers = fcn.init_fcn(np.random.default_rng(0), [400, 300, 200, 100])
    for (weight, bias), variance in zip(layers, (2 / 400, 2 / 300, 1 / 200)):
        assert abs(weight.var() / variance - 1) < 5 * math.sqrt(2 / weight.size)
        assert not bias.any()


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1)])
def test_bound_is_a_sum_of_eigenvalues(T, d, q):
    A = np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q    # the target is A vec(X)
                  for y in itertools.combinations(range(T), q)])
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    top = np.cumsum([0, *np.linalg.eigvalsh(S)[::-1]])                  # of m = 0, ..., T d
    bound = fcn.width_lower_bound(np.arange(T * d + 3), T, d, q)
    allclose(bound[:T * d + 1], (d / q - top) / 2, atol=1e-14)
    assert (bound[T * d:] == 0).all()


@pytest.mark.parametrize("narrow", (False, True))
def test_constructed_nets_solve_the_task(narrow):
    T, d, q, n = 6, 2, 2, 20_000
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, d, q)
    for B in 0, 1, 2, 3:
        params = fcn.constructed_fcn(T, d, q, B, narrow)
        assert params[0][0].shape == (T * d + T, T * d if narrow else 2 * T * d)
        f, _ = fcn.forward(params, fcn.encode(X, y))
        losses = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1)
        gap = losses.mean() - fcn.constructed_loss(T, d, q, B, narrow)
        assert abs(gap) < 5 * losses.std() / math.sqrt(n)
    half = (T + T * (T - 1) / math.pi) / 4 if narrow else (T - q) / 2   # at B = 0, in closed form
    allclose(fcn.constructed_loss(T, d, q, 0, narrow), d / q ** 2 * half, rtol=1e-12)
    beyond = fcn.constructed_fcn(T, d, q, abs(X).max(), narrow)
    assert fcn.loss_and_grads(beyond, X, y)[0] < 1e-25


# The gradients.  A case is (kind, K, attend_to_query, query) for attention, or the sizes of a net.

ATTENTION = [("rademacher", 1, False, "sum"), ("orthonormal", 3, False, "mean"),
             ("onehot", 1, True, "sum"), ("rademacher", 3, True, "mean")]
NETS = [(12, 2), (12, 6, 2), (12, 3, 4, 5, 2)]


def problem(case):
    """Random weights, and the function from weights to the loss on a batch and its gradients."""
    if case in ATTENTION:
        W, V, *batch = example(*case[:2])
        return [W, V], lambda weights: sts.loss_and_grads(*weights, *batch, *case[2:])
    params, *batch = net_example(case)

    def loss_and_grads(weights):
        L, grads = fcn.loss_and_grads(list(zip(weights[::2], weights[1::2])), *batch)
        return L, *itertools.chain(*grads)
    return [*itertools.chain(*params)], loss_and_grads


@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
@pytest.mark.parametrize("where", ("zero", "random", "trained"))
def test_gradients_are_exact(where, case):
    weights, loss_and_grads = problem(case)
    if where == "zero":         # but for biases, as all units of a net would be at their kinks
        weights = [0 * w if w.ndim == 2 else w for w in weights]
    for _ in range(10 if where == "trained" else 0):
        weights = [w - 0.1 * g for w, g in zip(weights, loss_and_grads(weights)[1:])]
    for i, grad in enumerate(loss_and_grads(weights)[1:]):
        check = np.empty(grad.shape)
        for entry in np.ndindex(grad.shape):        # Im L(w + ih) / h, for one entry of a weight
            moved = weights[i].astype(complex)
            moved[entry] += 1e-30j
            L, *_ = loss_and_grads([*weights[:i], moved, *weights[i + 1:]])
            check[entry] = L.imag / 1e-30
        rounding = 1e-12 * abs(check).max()
        assert abs(grad - check).max() <= rounding
        if where == "random":                       # and a wrong gradient would be noticed
            turned = check[::-1] if check.ndim == 1 else check.T.reshape(check.shape)
            for wrong in 0 * check, 1.01 * check, turned:
                assert abs(wrong - check).max() > rounding


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_a_file_works_alone(name, tmp_path):
    shutil.copy(HERE / name, tmp_path)
    job = [sys.executable, "-I", "-c", f"import runpy; runpy.run_path('{name}')"]
    subprocess.run(job, cwd=tmp_path, check=True)


rng, (W, V, X, y, E) = np.random.default_rng(0), example()
above, below = y + 5 * (y == y[0, 0]), y - 5 * (y == y[0, 0])


@pytest.mark.parametrize("function, arguments, words", [
    (sts.sample_sts, (rng, 3, 5, 0, 1), "need n, T, d >= 1, got n = 3, T = 5, d = 0"),
    (sts.sample_sts, (rng, 128, 200, 5, 300), "need 1 <= q <= T, got q = 300, T = 200"),
    (sts.positional_encoding, ("sinus", 4, 4, rng), "got 'sinus'"),
    (sts.positional_encoding, ("orthonormal", 5, 4, rng), "d_e >= 5"),
    (sts.forward, (W[1:], V, X, y, E), "need X"),
    (sts.forward, (W, V[1:], X, y, E), "need V"),
    (sts.forward, (W, V, X, y, E[1:]), "need X"),
    (sts.forward, (W, V, X, above, E), "positions from 0 to 4"),
    (sts.forward, (W, V, X, below, E), "positions from 0 to 4"),
    (sts.forward, (W, V, X, y, E, False, "max"), "query must be sum or mean, got 'max'"),
    (fcn.encode, (X, y[0]), "need y"),
    (fcn.encode, (X, above), "positions from 0 to 4"),
    (fcn.encode, (X, y[:, [0, 1, 0]]), "different positions"),
    (fcn.init_fcn, (rng, [5, 0, 2]), "each at least 1"),
    (fcn.forward, ([(np.eye(12), np.ones(12))], np.zeros((5, 9))), r"need inputs \(n, 12\)"),
    (fcn.width_lower_bound, (np.array([3, -1, 2]), 4, 2, 2), "need m >= 0"),
    (fcn.width_lower_bound, (1, 4, 2, 5), "1 <= q <= T")])
def test_impossible_arguments_are_refused(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(*arguments)


# Training

SMALL = {"T": 8, "d": 2, "q": 2, "pe_dim": 16, "batch": 16, "steps": 12, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 8}
RUNS = {
    "stochastic": SMALL, "fixed": SMALL | {"pe": "fixed"}, "one-hot": SMALL | {"pe": "onehot"},
    "fresh": SMALL | {"fresh": np.bool_(True), "lr": np.float32(0.5), "seed": np.int64(3),
                      "T_test": np.array([9, 5])},      # values from NumPy are accepted
    "full model": SMALL | {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5},
    "Adam": SMALL | {"optimizer": "adam", "schedule": "cosine", "pe_family": "orthonormal"},
    "net": {"model": "fcn", "T": 6, "d": 2, "q": 2, "hidden": [7, 9], "steps": 12}}


def begin(name, **changes):
    """A run of RUNS before its first step, and its settings."""
    run = train.start(train.configuration(**RUNS[name] | changes))
    return run, run["config"]


def assert_same(one, two):
    """Two runs are equal bit for bit."""
    assert one.keys() == two.keys() and one["config"] == two["config"]
    for key in one.keys() - {"config"}:
        np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize("pe, fresh, learns, generalizes", [
    ("stochastic", False, True, True), ("fixed", False, False, False),
    ("fixed", True, True, False)])
def test_only_redrawn_encodings_generalize(pe, fresh, learns, generalizes):
    run = train.train(T=12, d=2, q=2, pe=pe, pe_family="orthonormal", batch=16, fresh=fresh,
                      steps=600, lr=1, evaluations=1, T_test=[24], q_test=[])
    error, longer = run["error"][-1]                    # the zero predictor has d/(2q) = 0.5
    assert run["loss"][-20:].mean() < (0.1 if learns else 0.01)
    assert error < 0.1 if learns else error > 0.5
    assert longer < 0.2 if generalizes else longer > 0.2


def test_a_net_memorizes_16_sequences():
    run = train.train(model="fcn", T=12, d=2, q=2, batch=16, steps=400, lr=0.05)
    assert run["loss"][-1] < 0.001 and run["error"][-1] > 0.5


def test_a_net_comes_close_to_the_bound():
    run = train.train(model="fcn", T=5, d=2, q=2, fresh=True, hidden=[5, 64], optimizer="adam",
                      schedule="cosine", batch=128, steps=1000, eval_sequences=5000)
    bound, (error,), (se,) = fcn.width_lower_bound(5, 5, 2, 2), run["error"][-1], run["se"][-1]
    assert bound - 5 * se < error < 1.15 * bound        # 1.15: training is not perfect


@pytest.mark.parametrize("name", ("stochastic", "fresh", "fixed", "one-hot", "full model", "Adam"))
def test_training_is_gradient_descent_or_adam(name):
    """The loop written out."""
    run, c = begin(name)
    weights, losses, m, v = {"W": run["W"], "V": run["V"]}, [], {}, {}
    once = {"one-hot": np.eye(8, 16)[None],
            "fixed": sts.positional_encoding("rademacher", 16, 16, train.stream(c, "encodings"))}
    for t in range(12):
        batch, anew = train.stream(c, "batches", t * c.fresh), train.stream(c, "encodings", t)
        X, y = sts.sample_sts(batch, 16, 8, 2, 2, np.float32)
        E = once.get(name, sts.positional_encoding(c.pe_family, 8, 16, anew, c.draws))[:, :8]
        L, *grads = sts.loss_and_grads(*weights.values(), X, y, E, c.attend_to_query, c.query)
        losses.append(L)
        for key, g in zip("WV", grads):
            if name == "Adam":                  # Kingma and Ba, Algorithm 1, times the schedule
                m[key] = 0.9 * m.get(key, 0) + 0.1 * g
                v[key] = 0.999 * v.get(key, 0) + 0.001 * g ** 2
                m_hat, v_hat = m[key] / (1 - 0.9 ** (t + 1)), v[key] / (1 - 0.999 ** (t + 1))
                g = m_hat / (np.sqrt(v_hat) + 1e-8) * (1 + math.cos(math.pi * t / 12)) / 2
            weights[key] = weights[key] - 0.5 * g
    train.descend(run)
    for key, expected in (weights | {"loss": losses}).items():
        allclose(run[key], expected, rtol=1e-4, atol=1e-5)
    assert run["eval_step"].tolist() == [0, 3, 6, 9, 12]


def test_random_streams_differ():
    keys = [("weights",), *itertools.product(("encodings", "batches"), range(3)),
            *itertools.product(["tests"], range(3), range(2))]
    configs = [train.configuration(**SMALL, seed=seed) for seed in (0, 1)]
    drawn = {train.stream(c, *key).random() for c in configs for key in keys}
    assert len(drawn) == 2 * len(keys)


@pytest.mark.parametrize("name", ("stochastic", "fixed", "one-hot", "full model"))
def test_errors_are_losses_on_new_sequences(name):
    run, c = begin(name, T_test=[8, 6, 12], q_test=[2, 1])
    rng = np.random.default_rng(0)
    run |= {"W": rng.standard_normal((18, 18)), "V": rng.standard_normal((2, 18))}
    train.evaluate(run)
    assert run["tests"].tolist() == [[8, 2], [6, 2], [12, 2], [8, 1]]
    for k, (T, q) in enumerate(run["tests"]):
        X, y = sts.sample_sts(train.stream(c, "tests", k, 0), 8, T, 2, q, np.float32)
        E = train.encodings(run, T, 16, "tests", k, 1)
        losses = [sts.loss_and_grads(run["W"], run["V"], X[[b]], y[[b]], E, c.attend_to_query,
                                     c.query)[0] for b in range(8)]
        allclose(run["error"][0, k], np.mean(losses))
        allclose(run["se"][0, k], np.std(losses) / math.sqrt(8))
    for key, star in zip("WV", sts.ground_truth(2, 16, 8 if name == "one-hot" else None)):
        norms = math.sqrt((run[key] ** 2).sum() * (star ** 2).sum())
        allclose(run[f"cos_{key}"][0], (run[key] * star).sum() / norms)


def test_weights_start_at_zero_or_at_random():
    run, _ = begin("stochastic")
    assert not run["W"].any() and not run["V"].any() and run["cos_W"][0] == 0
    run, _ = begin("full model", T=2, pe_dim=98)
    for name in "WV":
        assert abs(run[name].std() / 0.5 - 1) < 5 / math.sqrt(2 * run[name].size)
    assert abs(sts.cosine(run["V"], run["W"][:2])) < 5 / math.sqrt(200)         # independent


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_and_resumes_bit_for_bit(name, tmp_path):
    def report(run):
        if run["t"] == 6:
            train.save(run, tmp_path / "part.npz")

    run = train.descend(begin(name)[0], report)
    assert_same(train.train(**vars(run["config"])), run)
    assert_same(train.descend(train.load(tmp_path / "part.npz", run["config"])), run)
    weights = [run[key] for key in run if re.match("[WVE]$|[mv]_|weight|bias", key)]
    assert len(weights) > 1 and {array.dtype for array in weights} == {np.dtype("float32")}


@pytest.mark.parametrize("given, defaults", [
    ({}, {"pe": "stochastic", "pe_dim": 170, "lr": 2, "T_test": [250, 300, 350, 400],
          "q_test": [2, 4, 5, 8]}),
    ({"T": 4, "pe": "onehot"}, {"pe_dim": 8, "T_test": [5, 6, 7, 8], "q_test": [2, 4]}),
    ({"pe_family": "orthonormal", "pe_dim": 300}, {"lr": 2, "T_test": [250, 300]}),
    ({"optimizer": "adam"}, {"lr": 0.01}),
    ({"model": "fcn"}, {"hidden": [175], "lr": 0.02, "T_test": None, "q_test": None}),
    ({"quick": True, "q": 3}, {"T": 20, "q": 3, "T_test": [25, 30, 35, 40]})], ids=str)
def test_defaults(given, defaults):
    found = vars(train.configuration(**given))
    assert {name: found[name] for name in defaults} == defaults


@pytest.mark.parametrize("given, words", [
    ({"attend_to_query": "no"}, "attend_to_query must be one of False, True, got 'no'"),
    ({"pe": "sinus"}, "pe must be one of stochastic, fixed, onehot, got 'sinus'"),
    ({"steps": 0}, "steps must be a whole number above 0, got 0"),
    ({"T": 2.5}, "T must be a whole number above 0, got 2.5"),
    ({"T_test": 250}, "T_test must be whole numbers above 0, got 250"),
    ({"lr": math.inf}, "lr must be a finite number above 0, got inf"),
    ({"init_std": -1}, "init_std must be a finite number of at least 0, got -1"),
    ({"q_test": [201]}, "q and q_test must be at most T, .*: got q = 201 for T = 200"),
    ({"pe": "onehot", "T_test": [401]}, "pe_dim must be at least 401 for onehot .* got 400"),
    ({"hidden": [5]}, "hidden needs model fcn: leave it out, got"),
    ({"draws": 2, "pe": "fixed"}, "draws needs pe stochastic: leave it out, got 2"),
    ({"eval_draws": 2, "pe": "onehot"}, "eval_draws needs pe stochastic"),
    ({"pe_family": "orthonormal", "pe": "onehot"}, "pe_family needs pe stochastic or fixed"),
    *(({name: value, "model": "fcn"}, f"{name} needs model attention") for name, value in {
        "pe": "fixed", "attend_to_query": True, "query": "mean", "init_std": 1, "T_test": [9],
        "q_test": [1]}.items())], ids=str)
def test_impossible_settings_are_refused(given, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        train.configuration(**given)


def test_a_new_distribution_is_one_entry_of_LAWS(monkeypatch):
    monkeypatch.setitem(sts.LAWS, "ones", (lambda rng, T, d_e: np.ones((T, d_e)), lambda T: 3 * T))
    run = train.train(T=8, pe_family="ones", steps=1)
    assert (train.encodings(run, 8, 1, "encodings", 0) == np.ones((1, 8, 48))).all()
    assert "ones" in train.command_line().format_help()


# The command line and the file of a run

FLAGS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items())


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function from flags to what main returns, or its exit status, and to what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train, **arguments):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        try:
            result = program.main(**arguments)
        except SystemExit as end:
            result = end.code
        return result, *capsys.readouterr()
    return call


def test_the_program_prints_what_its_file_holds(command):
    status, out, err = command("--quick --steps 6 --evaluations 3 --T-test 30")
    path = Path("runs/stochastic-T_test=30-evaluations=3-quick-steps=6.npz")
    run, lines = train.load(path), [line.split() for line in out.splitlines()]
    assert (status, err, os.listdir("runs")) == (None, "", [path.name]) and str(path) in out
    assert_same(run, train.train(quick=True, steps=6, evaluations=3, T_test=[30]))
    last, error, se = run["loss"][4:].mean(), run["error"][-1], run["se"][-1]
    assert "step loss T=20 T=30 cos W cos V".split() in lines
    row = (last, *error[:2], run["cos_W"][-1], run["cos_V"][-1])
    assert ["6", *[f"{x:.4f}" for x in row]] in lines
    for (T, q), x, s in zip([(20, 2), (30, 2), (20, 3), (20, 4), (20, 5), (20, 8)], error, se):
        assert f"T = {T:4}, q = {q:2}  {x:.4f}     {s:.4f}  {x * 2 * q / 3:8.1%}" in out    # d = 3
    assert f"training loss    {last:.4f}             {last / 0.75:8.1%}" in out


def test_a_net_is_printed_with_its_bound(command):
    _, out, _ = command("--model fcn --T 6 --d 2 --q 2 --hidden 5 9 --steps 9")
    assert f"width 5 has an expected error below {fcn.width_lower_bound(5, 6, 2, 2):.4f}" in out
    assert train.load("runs/fcn-T=6-d=2-hidden=5,9-q=2-steps=9.npz")["weight_2"].shape == (5, 9)


def test_a_stopped_run_leaves_the_finished_one_and_resumes(command, monkeypatch):
    def stop(c, t):
        if t == 8:
            raise KeyboardInterrupt
        return c.lr

    command(f"{FLAGS} --out new/run.npz")
    finished = train.load("new/run.npz")
    with monkeypatch.context() as patch:
        patch.setattr(train, "learning_rate", stop)
        status, _, err = command(f"{FLAGS} --out new/run.npz")
    assert status == 1 and "--resume continues it" in err
    assert train.load("new/run.part.npz")["t"] == 6
    assert_same(train.load("new/run.npz"), finished)
    _, out, _ = command(f"{FLAGS} --out new/run.npz --resume")
    assert re.findall(r"^ +(\d+) ", out, re.M) == ["6", "9", "12"]      # the steps in the table
    assert_same(train.load("new/run.npz"), finished)
    assert os.listdir("new") == ["run.npz"]


@pytest.mark.parametrize("resume", ("", "--resume"))
def test_another_file_is_refused_and_kept(resume, command):
    run = train.train(**SMALL)
    train.save(run, "other.npz")
    train.save(run | {"object": np.array({})}, "pickle.npz")
    np.savez("arrays.npz", W=np.zeros(3))
    Path("notes.txt").write_text("not a run")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    for path in before:
        status, out, err = command(f"{FLAGS} --lr 1 --out {path} {resume}")
        words = "holds a run with lr 0.5" if path.name == "other.npz" else "does not hold a run"
        assert (status, out, err) == (2, "", f"train.py: error: {path} {words}\n")
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_run_of_other_code_is_not_resumed(tmp_path):
    files = [Path(shutil.copy(HERE / name, tmp_path)) for name in ("sts.py", "fcn.py", "train.py")]
    job = [sys.executable, "train.py", *FLAGS.split()]
    subprocess.run(job, cwd=tmp_path, check=True)
    for file in files:
        text = file.read_text()
        file.write_text(f"{text}# an edit\n")
        end = subprocess.run([*job, "--resume"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert end.returncode == 2 and "holds a run with other code" in end.stderr
        file.write_text(text)


def test_two_processes_can_save_one_file(tmp_path):
    run, _ = begin("stochastic")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(train.save, [(run, tmp_path / "run.npz")] * 100)
    assert_same(train.load(tmp_path / "run.npz"), run)
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("flags", ("--lr 300 --steps 60", "--lr 300 --steps 60 --evaluations 1",
                                   "--lr 1e30 --steps 1"))
def test_a_diverging_run_ends_at_once_and_keeps_its_finite_evaluations(flags, command):
    status, _, err = command(f"--quick {flags} --out run.npz")
    run = train.load("run.part.npz")
    step = int(re.match("train.py: error: loss not finite at step ([0-9]+): try", err)[1])
    assert (status, err.count("\n"), os.listdir()) == (1, 1, ["run.part.npz"])
    assert run["t"] <= step < 60 and run["error"][0, 0] > 0
    assert np.isfinite(run["error"][run["eval_step"] <= run["t"]]).all()


@pytest.mark.parametrize("program, flags, words", [
    (train, "--steps 1e4", "steps must be a whole number above 0, got '1e4'"),
    (train, "--model fcn --hidden 5 x", "hidden must be whole numbers above 0, got ['5', 'x']"),
    (train, "--pe sinus", "argument --pe: invalid choice: 'sinus'"),
    (train, "--full-batch", "unrecognized arguments: --full-batch"),
    (train, "--batch 1000000000000", "Unable to allocate"),
    (train, "--out /dev/null/new/run.npz", "Not a directory"),
    (plots, "7", "'7' is not one of 1, 2"),
    (plots, "1 --out /dev/null/figures", "Not a directory")])
def test_bad_flags_are_refused_in_one_line(program, flags, words, command):
    status, out, err = command(flags, program)
    assert (status, out, os.listdir()) == (2, "", []) and words in err.splitlines()[-1]


# The figures, read from their axes


def draw(number):
    """A figure of runs as if trained, with random losses, errors and cosines; its runs and axes."""
    rng, runs = np.random.default_rng(0), {}
    function, names = plots.FIGURES[number]
    for name, seed in itertools.product(names, plots.SEEDS):
        settings = plots.arms(quick=True)[name] | {"eval_sequences": 1, "seed": seed}
        run = train.start(train.configuration(**settings))
        for key in "W", "V", "loss", "error", "cos_W", "cos_V":
            if key in run:
                run[key] = rng.uniform(0.01, 0.2, run[key].shape)
        runs.setdefault(name, []).append(run)
    return runs, function(runs).axes


def lines(axis, color):
    """The x and y of each line of a colour."""
    return [line.get_xydata().T for line in axis.lines if line.get_color() == color]


def test_figure_1():
    runs, (left, middle, right) = draw("1")
    runs = runs["full model"]
    t = np.arange(2000).reshape(100, 20).mean(axis=1)
    losses = np.array([run["loss"].reshape(100, 20).mean(axis=1) for run in runs])
    allclose(lines(left, plots.STOCHASTIC), [[t, losses.mean(axis=0)]])
    allclose(lines(middle, plots.STOCHASTIC), [[t, (1 / losses).mean(axis=0)]])
    (late, dashed), = lines(middle, plots.THEORY)
    slope = (dashed[-1] - dashed[0]) / (late[-1] - late[0])     # 4 lr / (q^2 d_e)
    allclose([dashed[-1], slope], [(1 / losses)[:, -1].mean(), 4 * 4 / (2 ** 2 * 40)])
    for name, color in ("W", plots.STOCHASTIC), ("V", plots.NET):
        mean = np.mean([run[f"cos_{name}"] for run in runs], axis=0)
        allclose(lines(right, color)[0][1], mean)
    assert [text.get_text() for text in right.get_legend().texts] == ["cos(W, W*)", "cos(V, V*)"]


@pytest.mark.parametrize("number, q_tests", [("2", []), ("4", [3, 4, 5, 8]), ("5", [3, 4, 5, 8])])
def test_figures_2_4_and_5(number, q_tests):
    runs, axes = draw(number)
    one, two = (vars(arm[0]["config"]) for arm in runs.values())
    assert one | {"pe": "fixed"} == two and one["fresh"]            # the arms differ in pe alone
    tests = [(T, 2) for T in (25, 30, 35, 40)] + [(20, q) for q in q_tests]
    for axis, (T, q) in zip(axes, tests, strict=True):
        assert axis.get_title() == (f"$T_{{test}}$ = {T}" if T > 20 else f"$q_{{test}}$ = {q}")
        for pe, color, band in ("stochastic", plots.STOCHASTIC, 1), ("fixed", plots.FIXED, 0):
            arm, = [runs[name] for name in runs if name.startswith(pe)]
            column = arm[0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in arm])
            allclose(lines(axis, color), [[arm[0]["eval_step"], curves.mean(axis=0)]])
            edges = axis.collections[band].get_paths()[0].vertices[:, 1]
            assert {*curves.min(axis=0), *curves.max(axis=0)} == {*edges}
            labels = [text for text in axes[3].texts if text.get_text() == pe]
            assert [text.get_color() for text in labels] == [color]
        allclose(lines(axis, plots.THEORY)[0][1], 3 / (2 * q))      # the zero predictor, d/(2q)


def test_figure_3():
    runs, axes = draw("3")
    run = runs["full model"][0]
    first = train.start(run["config"])
    for axis, (name, when) in zip(axes, itertools.product("WV", ("before", "after"))):
        assert axis.get_title().startswith(f"{name} {when}")
        allclose(axis.images[0].get_array(), (first if when == "before" else run)[name][:28, :28])


def test_figure_6():
    runs, (left, right) = draw("6")
    errors = {name: [run["error"][-1, 0] for run in arm] for name, arm in runs.items()}
    bound, *points, constructed, star, _ = [line.get_xydata() for line in left.lines]
    allclose(bound[:, 1], fcn.width_lower_bound(np.arange(101), 10, 5, 3))
    for hidden, shown in zip((1, 2), points):
        allclose(shown, [(m, error) for m, layers in plots.NETS if layers == hidden
                         for error in errors[f"net, {m} units, {hidden} hidden"]])
    allclose(constructed, [(50, fcn.constructed_loss(10, 5, 3, 5, narrow=True)),
                           (100, fcn.constructed_loss(10, 5, 3, 5))])
    allclose(star, [(25, error) for error in errors["attention, T = 10"]])              # d + d_e
    level, (nets,) = 0.1 * 5 / 6, lines(right, plots.THEORY)
    for T, m, stars in zip(*nets, lines(right, plots.STOCHASTIC), strict=True):
        at_m, before = fcn.width_lower_bound(np.array([m, m - 1]), int(T), 5, 3)
        assert at_m <= level < before
        sizes = plots.WIDTHS[T]
        curves = np.transpose([errors[f"width, q = 3, T = {T:.0f}, d_e = {d_e}"] for d_e in sizes])
        needed = [plots.crossing(sizes, curve, level) for curve in curves]
        allclose(stars, [[T] * 3, 5 + np.array(needed)])


@pytest.mark.parametrize("errors, size", [
    ((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.2, 0.05), math.sqrt(80 * 120)),
    ((0.05, 0.05, 0.05), math.nan), ((0.01, 0.01, 0.2), math.nan),
    ((math.nan, 0.2, 0.05), math.sqrt(80 * 120))])
def test_crossing_is_the_last_one_on_logarithmic_axes(errors, size):
    allclose(plots.crossing([50, 80, 120], errors, 0.1), size)


def test_runs_are_trained_unless_kept(tmp_path):
    wanted = [train.train(**SMALL, seed=seed) for seed in range(3)]
    for seed, run in enumerate(wanted):
        train.save(run | {"loss": np.zeros(12)}, tmp_path / f"good, seed {seed}.npz")
    (tmp_path / "bad, seed 0.npz").write_bytes(b"damaged")
    train.save(wanted[1] | {"code": "other"}, tmp_path / "bad, seed 1.npz")
    train.save(wanted[0], tmp_path / "bad, seed 2.npz")
    arms = {"good": SMALL, "bad": SMALL, "diverging": SMALL | {"lr": 1e6}}
    runs = plots.trained(arms, tmp_path, 1)
    for seed in range(3):
        assert_same(runs["good"][seed], wanted[seed] | {"loss": np.zeros(12)})
        assert_same(runs["bad"][seed], wanted[seed])
        error = runs["diverging"][seed]["error"]
        assert np.isfinite(error[0]).all() and np.isnan(error[-1]).all()


@pytest.mark.parametrize("flags, folder, kept", [
    ("--out new", "new", "figures"), ("--quick", "runs/quick", "quick")])
def test_plots_draws_into_its_folder(flags, folder, kept, command, monkeypatch):
    arm = plots.arms(quick=True)["full model"] | {"steps": 2}
    monkeypatch.setattr(plots, "SEEDS", (0,))
    Path("runs", kept).mkdir(parents=True)
    plots.keep(Path("runs", kept, "full model, seed 0.npz"), arm | {"seed": 0})
    arms = Mock(return_value={"full model": arm})
    drawn, out, err = command(f"3 {flags} --format svg", plots, arms=arms)
    assert (err, out.splitlines()[0]) == ("", f"{folder}/figure_3.svg")
    assert Path(folder, "figure_3.svg").exists()
    arms.assert_called_with("--quick" in flags)
    assert [*drawn] == ([] if "--quick" in flags else ["3"])        # the runs of each figure
