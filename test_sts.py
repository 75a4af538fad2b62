"""Tests:  python -m pytest test_sts.py;  with -k gradients they check a `backward` of your own.

Each test states a fact.  Statistical tests have a fixed seed and allow 5 standard errors.
"""

import train            # before NumPy, since it sets the number of threads

import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fcn
import sts

HERE = Path(__file__).resolve().parent
allclose = np.testing.assert_allclose


# The task and the two models

@pytest.mark.parametrize("q", (1, 3))
def test_subsets_are_uniform_and_tokens_standard_normal(q):
    n, T = 50_000, 6
    X, y = sts.sample_sts(np.random.default_rng(0), n, T, 2, q)
    subsets, counts = np.unique(np.sort(y, axis=1), axis=0, return_counts=True)
    p, x = 1 / math.comb(T, q), X.reshape(n, 2 * T)
    assert subsets.tolist() == [list(s) for s in itertools.combinations(range(T), q)]
    assert abs(counts / n - p).max() < 5 * math.sqrt(p * (1 - p) / n)
    assert abs(x.T @ x / n - np.eye(2 * T)).max() < 5 * math.sqrt(2 / n)


@pytest.mark.parametrize("law", sts.LAWS)
def test_random_encodings_are_unit_vectors_with_random_signs(law):
    """`square` is the mean of (e_i . e_j)^2.  Entries have mean 0 and are uncorrelated."""
    n, d_e, square = 4000, 8, 0 if law == "orthonormal" else 1 / 8
    E = sts.positional_encoding(law, 3, d_e, np.random.default_rng(0), n)
    allclose((E ** 2).sum(axis=2), 1, rtol=1e-6)
    assert abs(E.mean(axis=0)).max() < 5 / math.sqrt(d_e * n)
    inner, flat = (E[:, 1] * E[:, 2]).sum(axis=1), E.reshape(n, 3 * d_e)
    assert abs((inner ** 2).mean() - square) <= 5 * square * math.sqrt(2 / n)
    assert abs(flat.T @ flat / n - np.eye(3 * d_e) / d_e).max() < 5 / math.sqrt(d_e * n)


def example(law="rademacher", draws=None):
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 4, 5, 2, 3)              # n, T, d, q; and d_e = 6
    E = sts.positional_encoding(law, 5, 6, rng, draws)
    return rng.standard_normal((8, 8)), rng.standard_normal((2, 8)), X, y, E


@pytest.mark.parametrize("query, c", [("sum", 1), ("mean", 1 / 3)])
@pytest.mark.parametrize("attend_to_query", (False, True))
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
    batch = X, y.tolist(), E, attend_to_query, query                    # a list is accepted, too
    allclose(sts.output(W, V, *batch), f.mean(axis=0), rtol=1e-12)
    allclose([sts.loss(W, V, *batch), sts.loss_and_grads(W, V, *batch)[0]], L, rtol=1e-12)
    allclose(sts.softmax(np.array([[0.0, 1000], [-1000, -1000]])), [[0, 1], [0.5, 0.5]], rtol=1e-12)


def net_example(sizes=(12, 6, 5, 2)):
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 9, 4, 2, 2)              # n, T, d, q
    return [(w, rng.standard_normal(b.shape)) for w, b in fcn.init_fcn(rng, sizes)], X, y


def test_net_is_its_definition():
    params, X, y = net_example()
    f, _ = fcn.forward(params, fcn.encode(X, y.tolist()))
    for b in range(len(X)):
        h = np.concatenate([X[b].reshape(-1), [i in y[b] for i in range(4)]])
        for weight, bias in params:
            a = weight.T @ h + bias
            h = np.where(a > 0, a, 0)
        allclose(f[b], a, rtol=1e-12)
    L = 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum(axis=1).mean()
    allclose([fcn.loss(params, X, y), fcn.loss_and_grads(params, X, y)[0]], L, rtol=1e-12)
    for (w, b), gain in zip(fcn.init_fcn(np.random.default_rng(0), [400, 300, 200]), (2, 1)):
        assert abs(w.var() * len(w) / gain - 1) < 5 * math.sqrt(2 / w.size) and not b.any()


# Gradients.  A case is (law, draws, attend_to_query, query), or the sizes of a net.

ATTENTION = [("rademacher", None, False, "sum"), ("orthonormal", 3, False, "mean"),
             ("onehot", None, True, "sum"), ("rademacher", 3, True, "mean")]
NETS = [(12, 2), (12, 6, 2), (12, 3, 4, 5, 2)]


def agree(grad, exact, tolerance=1e-12):
    return grad.shape == exact.shape and abs(grad - exact).max() <= tolerance * abs(exact).max()


def slopes(loss, weights, i, h):
    """The slope of the loss by each entry of weights[i], from L(w + h) - L(w - h)."""
    found = np.empty(weights[i].shape, type(h))
    for entry in np.ndindex(found.shape):
        step = np.zeros_like(found)
        step[entry] = h
        above, below = [loss(*weights[:i], w, *weights[i + 1:])
                        for w in (weights[i] + step, weights[i] - step)]
        found[entry] = (above - below) / (2 * h)
    return found.real


@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
@pytest.mark.parametrize("where", ("zero", "random", "trained"))
def test_gradients_are_exact(where, case):
    """They agree with complex steps through the loss, which lose no digits to cancellation."""
    if case in ATTENTION:
        (*weights, X, y, E), how, names = example(*case[:2]), case[2:], "WV"
        loss = lambda *w: sts.loss(*w, X, y, E, *how)
        grads = lambda *w: sts.loss_and_grads(*w, X, y, E, *how)[1:]
    else:
        params, *batch = net_example(case)
        weights, layers = list(sum(params, ())), lambda w: list(zip(w[::2], w[1::2]))
        names = [f"{kind}_{i}" for i in range(1, len(case)) for kind in ("weight", "bias")]
        loss = lambda *w: fcn.loss(layers(w), *batch)
        grads = lambda *w: sum(fcn.loss_and_grads(layers(w), *batch)[1], ())
    if where == "zero":         # biases stay: with all of them 0, units would be at their kinks
        weights = [0 * w if w.ndim == 2 else w for w in weights]
    for _ in range(10 if where == "trained" else 0):
        weights = [w - 0.1 * g for w, g in zip(weights, grads(*weights))]
    for i, (name, grad) in enumerate(zip(names, grads(*weights), strict=True)):
        exact = slopes(loss, weights, i, 1e-30j)
        if not agree(grad, exact) and agree(grad, slopes(loss, weights, i, 1e-5), 1e-6):
            pytest.fail(f"dL/d{name} is right, by central differences; but complex steps need a "
                        "loss without abs, norm, conj, and without float arrays that it fills")
        assert agree(grad, exact), f"dL/d{name}\nyours\n{grad}\n\nby complex step\n{exact}"


def test_ground_truth():
    (W, V), (W_T, _) = sts.ground_truth(2, 4), sts.ground_truth(2, 4, T=3)      # d = 2, d_e = 4
    assert (W == np.diag([0, 0, 1, 1, 1, 1])).all() and (V == np.eye(2, 6)).all()
    allclose(W_T[2:5, 2:5], np.eye(3) - np.ones((3, 3)) / 3)
    assert np.count_nonzero(W_T) == 9
    allclose([sts.cosine(W, -3 * W), sts.cosine(W, 0 * W)], [-1, 0], atol=1e-12)


@pytest.mark.parametrize("T, d, q", [(5, 2, 2), (4, 3, 1), (4, 1, 3), (3, 2, 3), (1, 2, 1)])
def test_bound_is_a_sum_of_eigenvalues(T, d, q):
    A = np.array([np.kron([i in y for i in range(T)], np.eye(d)) / q    # the target is A vec(X)
                  for y in itertools.combinations(range(T), q)])
    S = np.mean(A.transpose(0, 2, 1) @ A, axis=0)
    top = np.cumsum([0, *np.linalg.eigvalsh(S)[::-1]])                  # of m = 0, ..., T d
    bound = fcn.width_lower_bound(np.arange(T * d + 3), T, d, q)
    allclose(bound, (d / q - np.append(top, [top[-1]] * 2)) / 2, atol=1e-14)


def test_the_constructed_net_has_width_T_d_and_is_exact_while_tokens_are_at_most_B():
    T, d, q = 6, 2, 3
    X, y = sts.sample_sts(np.random.default_rng(0), 100, T, d, q)
    params, B = fcn.constructed_fcn(T, d, q, abs(X).max()), abs(X).max()
    assert [w.shape for w, _ in params] == [(T * d + T, T * d), (T * d, d)]
    assert fcn.loss(params, X, y) < 1e-25 < fcn.loss(fcn.constructed_fcn(T, d, q, 0.5 * B), X, y)


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_each_file_runs_alone_and_its_tour_trains(name, tmp_path):
    """Alone in a folder, so that it can be copied."""
    path = shutil.copy(HERE / name, tmp_path)
    out = subprocess.check_output([sys.executable, path], text=True, cwd=tmp_path,
                                  env=os.environ | {"PYTHONPATH": ""})
    numbers = lambda pattern: np.array(re.findall(pattern, out), float)
    if name == "sts.py":
        assert numbers(r"relative difference (\S+)") < 1e-13
        assert numbers(r"a = .* loss (\S+)")[-1] < 1e-10           # of 16 W*, V*
        assert numbers(r"T = 12: loss (\S+)") < 0.05               # after training
    else:
        L, bound = numbers(r"width +\d+ +loss (\S+) +bound (\S+)").T
        assert ((bound - 0.005 < L) & (L < bound + 0.02)).all()


# Training.  A new setting or choice of train.py needs a row in RUNS, which tests how it trains; a
# new setting also its name in each `refused` of runs that do not read it.

SMALL = {"T": 8, "d": 2, "q": 2, "d_e": 16, "batch": 16, "steps": 11, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 8}
NET = {name: SMALL[name] for name in SMALL if name != "d_e"} | {"model": "fcn", "lr": 0.02}
RUNS = {
    "stochastic": SMALL, "fixed": SMALL | {"pe": "fixed"}, "one-hot": SMALL | {"pe": "onehot"},
    "fresh": SMALL | {"fresh": True, "lr": np.float64(0.5), "T_test": np.array([9, 5])},
    "full model": SMALL | {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5,
                           "eval_draws": 5},
    "Adam": SMALL | {"optimizer": "adam", "schedule": "cosine", "law": "rademacher"},
    "net": NET | {"hidden": [7, 9], "optimizer": "adam"}, "linear net": NET | {"hidden": []}}


@pytest.mark.parametrize("name", ("model", "pe", "law", "query", "optimizer", "schedule"))
def test_each_choice_has_a_row_in_runs(name):
    used = {vars(train.Settings(**row))[name] for row in RUNS.values()}
    assert used == {*train.SETTINGS[name][0]}


def loss(run, X, y, E):
    return 0.5 * ((train.output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum() / len(X)


def batch_of(run, t):
    c = run["config"]
    E = train.encodings(run, c.T, c.draws, train.stream(c, "encodings", t))
    return (*train.batch(c, t if c.fresh else 0), E)


@pytest.mark.parametrize("name", RUNS)
def test_training_is_gradient_descent_or_adam_in_float32(name):
    """The loop written out, on the batches and encodings that the run draws."""
    run = train.start(c := train.Settings(**RUNS[name]))
    weights = {key: run[key] for key in run if re.match("[WV]$|weight|bias", key)}
    losses, m, v = [], dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    for t in range(11):
        batch = batch_of(run, t)
        _, grads = train.loss_and_grads(run | weights, *batch)
        losses.append(loss(run | weights, *batch))
        lr = c.lr * (1 + math.cos(math.pi * t / 11)) / 2 if c.schedule == "cosine" else c.lr
        for key, g in grads.items():
            if c.optimizer == "adam":           # Kingma and Ba, Algorithm 1
                m[key], v[key] = 0.9 * m[key] + 0.1 * g, 0.999 * v[key] + 0.001 * g ** 2
                m_hat, v_hat = m[key] / (1 - 0.9 ** (t + 1)), v[key] / (1 - 0.999 ** (t + 1))
                g = m_hat / (np.sqrt(v_hat) + 1e-8)
            weights[key] = weights[key] - lr * g
    train.descend(run)
    for key, expected in (weights | {"loss": losses, "eval_step": [0, 2, 5, 8, 11]}).items():
        allclose(run[key], expected, rtol=1e-4, atol=1e-5)
    assert {run[key].dtype for key in weights} == {np.dtype("float32")}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_drawn_is_new_at_every_step_or_stays(name):
    run = train.start(c := train.Settings(**RUNS[name]))
    X, y, E = zip(*[batch_of(run, t) for t in range(11)])
    assert len({x.tobytes() for x in X}) == len({s.tobytes() for s in y}) == (11 if c.fresh else 1)
    if c.model == "attention":
        drawn = {E_k.tobytes() for E_t in E for E_k in E_t}
        assert len(drawn) == (11 * c.draws if c.pe == "stochastic" else 1)
        assert all(abs(run[w].std() - c.init_std) <= 0.3 * c.init_std for w in "WV")
    assert c.pe != "onehot" or np.array_equal(run["E"], np.eye(16))


@pytest.mark.parametrize("name", RUNS)
def test_what_is_measured_at_the_start_and_at_the_end(name):
    """Errors are losses over those of f = 0 on the same sequences, new ones or those of a step."""
    net = "net" in name
    settings = RUNS[name] | ({} if net else {"T_test": [8, 6, 12], "q_test": [2, 1]})
    first, run = train.start(train.Settings(**settings)), train.train(**settings)
    c, tests = run["config"], [[8, 2], [6, 2], [12, 2], [8, 1]][:1 if net else 4]
    assert run["tests"].tolist() == tests
    for i, now in (0, first), (-1, run):
        X, y, E = batch_of(run, run["eval_step"][i])
        zero = 0.5 * (sts.sts_target(X, y) ** 2).sum() / len(X)
        allclose(run["training"][i], loss(now, X, y, E) / zero, rtol=1e-5)
        for k, (T, q) in enumerate(tests):
            X, y, E = train.held_out(run, k, c.eval_draws)
            assert X.shape == (8, T, 2) and y.shape == (8, q)
            assert net or E.shape == (c.eval_draws if c.pe == "stochastic" else 1, T, 16)
            assert "E" not in run or np.array_equal(E[0], run["E"][:T])
            L = np.array([loss(now, X[[b]], y[[b]], E) for b in range(8)])
            z = 0.5 * (sts.sts_target(X, y) ** 2).sum(axis=1)
            allclose(run["error"][i, k], R := L.mean() / z.mean(), rtol=1e-5)
            allclose(run["se"][i, k], np.std(L - R * z, ddof=1) / math.sqrt(8) / z.mean(),
                     1e-4, 1e-7)
            if k == 0 and not net:
                P = sts.attention(now["W"], X, y, E, c.attend_to_query, c.query)
                selected = np.take_along_axis(P, y[None], 2).sum(axis=2).mean()
                W, V = sts.ground_truth(2, 16, 8 if name == "one-hot" else None)
                allclose([run[key][i] for key in ("on_selected", "cos_W", "cos_V")],
                         [selected, sts.cosine(now["W"], W), sts.cosine(now["V"], V)], rtol=1e-5)
    if not net and c.init_std == 0:                         # f = 0
        assert run["training"][0] == 1 and (run["error"][0] == 1).all() and not run["se"][0].any()


def test_the_standard_error_is_the_spread_of_errors():
    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        X, y = sts.sample_sts(rng, 200, 4, 5, 2)
        f = 0.7 * sts.sts_target(X, y) + 0.3 * rng.standard_normal((200, 5))
        found.append(train.error_and_se(f, X, y))
    errors, se = np.transpose(found)
    assert abs(errors.std() / se.mean() - 1) < 5 / math.sqrt(2 * 1000)


# Settings

@pytest.mark.parametrize("given, derived", [
    ({}, {"T": 50, "d_e": 100, "batch": 1024, "lr": 2, "eval_draws": 1, "T_test": [75, 100]}),
    ({}, {"init_std": 0, "draws": 1, "query": "sum", "schedule": "constant", "fresh": False}),
    ({}, {"attend_to_query": False, "steps": 2000, "evaluations": 10, "seed": 0}),
    ({"T": 200}, {"lr": 2}),
    ({"law": "rademacher", "T": 200}, {"d_e": 170, "T_test": [300, 400]}),
    ({"T": 7}, {"d_e": 14, "T_test": [10, 14], "q_test": [2, 3, 4, 5]}),
    ({"pe": "onehot", "d_e": 80}, {"T_test": [75]}),
    ({"optimizer": "adam"}, {"lr": 0.01, "d_e": 100}),
    ({"model": "fcn"}, {"hidden": [105], "lr": 0.02}),
    ({"model": "fcn", "hidden": [300, 500]}, {"lr": 0.005, "eval_sequences": 10_000})], ids=str)
def test_defaults(given, derived):
    c = vars(train.Settings(**given))
    assert {name: c[name] for name in derived} == derived


def test_the_default_rate_comes_from_the_curvatures_of_the_loss():
    """W's, along the mean query, where it is largest and at the end; and V's."""
    def curvature(T, d, q, s):                  # at a W* and the best alpha V*, attention s on y
        X, y = sts.sample_sts(np.random.default_rng(0), 2000, T, d, q)
        W, V = sts.ground_truth(d, T)
        a, alpha = math.log(s / (1 - s) * (T - q) / q), 1 / (s + (1 - s) ** 2 / s * q / (T - q))
        step = 1e-3 * np.outer(np.eye(d + T)[0], [*[0] * d, *[T ** -0.5] * T])  # of norm 1e-3
        L = [sts.loss(a * W + k * step, alpha * V, X, y, np.eye(T)) for k in (-1, 0, 1)]
        return (L[0] - 2 * L[1] + L[2]) / 1e-6

    peak = max(curvature(50, 5, 8, s) for s in np.linspace(0.3, 0.5, 11))
    assert train.Settings(T=50, d=5, q=8).lr == pytest.approx(4 / peak, rel=0.1)
    end = curvature(20, 5, 8, 1 - 1e-9)
    assert train.Settings(T=20, d=5, q=8).lr == pytest.approx(1.7 / end, rel=0.1)
    target = sts.sts_target(*sts.sample_sts(np.random.default_rng(0), 256, 50, 50, 1))
    largest = np.linalg.eigvalsh(target.T @ target / 256)[-1]
    assert train.Settings(d=50, batch=256, q=1).lr == pytest.approx(1.7 / largest, rel=0.1)


@pytest.mark.parametrize("given, refused", [
    (SMALL, "hidden"), (SMALL | {"pe": "fixed"}, "hidden draws eval_draws"),
    (SMALL | {"pe": "onehot"}, "hidden draws eval_draws law"),
    (NET, "pe law d_e attend_to_query query init_std draws eval_draws T_test q_test")], ids=str)
def test_a_setting_changes_the_run_or_is_refused_by_its_flag(given, refused):
    run = train.train(**given)
    for name, (default, *_) in train.SETTINGS.items():
        value, flag = vars(run["config"])[name], "--" + name.replace("_", "-")
        other = ([*default][-1] if type(default) in (tuple, dict) else
                 [5] if type(value) is list else
                 value / 2 + 0.03 if type(value) is float else value + 1)
        if name in refused.split():
            with pytest.raises(ValueError, match=f"^{flag} is only for "):
                train.Settings(**given | {name: other})
        elif name not in ("model", "pe"):
            changed = train.train(**given | {name: other})
            assert not all(np.array_equal(run[key], changed[key]) for key in {*run} - {"config"})
        for wrong in None, "x", ["x"], -1, math.inf, math.nan:
            with pytest.raises(ValueError, match=f"^{flag} "):
                train.Settings(**given | {name: wrong})
    pytest.raises(ValueError, train.Settings, no_such=1)


def test_laws_and_optimizers_may_be_added_after_the_import(monkeypatch):
    monkeypatch.setitem(sts.LAWS, "ones", lambda rng, T, d_e: np.ones((T, d_e)))
    monkeypatch.setitem(train.OPTIMIZERS, "rest", ("rest", lambda run, grads, lr: 0, lambda c: 7.0))
    c = train.Settings(T=8, batch=9, steps=3, law="ones", optimizer="rest")
    run = train.descend(train.start(c))
    assert c.lr == 7 and (train.held_out(run, 0, 1)[2] == 1).all() and not run["W"].any()


def test_each_step_and_each_purpose_has_a_stream_of_its_own(monkeypatch):
    keys, stream = [], train.stream
    monkeypatch.setattr(train, "stream", lambda c, *key: keys.append(key) or stream(c, *key))
    run = train.train(**SMALL | {"pe": "fixed", "init_std": 1, "fresh": True, "steps": 102})
    numbers = {key: stream(run["config"], *key).random() for key in keys}
    assert len({*numbers.values()}) == len(numbers) > 200
    assert keys.count(("encodings",)) == 1
    assert keys.count(("tests", 1, 0)) == keys.count(("tests", 1, 1)) == 5


def test_wrong_positions_and_shapes_are_refused():
    W, V, X, y, E = example()
    indicator = np.array([[j in row for j in range(5)] for row in y], int)
    for wrong in y + 5 - y.max(), y - 1 - y.min(), indicator, np.array([[2, 0, 2]] * 4), y[:3]:
        pytest.raises(ValueError, sts.sts_target, X, wrong)
        pytest.raises(ValueError, sts.forward, W, V, X, wrong, E)
        pytest.raises(ValueError, fcn.encode, X, wrong)
    pytest.raises(ValueError, fcn.width_lower_bound, 1, 5, 2, 6)
    pytest.raises(ValueError, sts.loss, W, V[:1], X, y, E)
    for loss in fcn.loss, fcn.loss_and_grads:
        pytest.raises(ValueError, loss, fcn.init_fcn(np.random.default_rng(0), [15, 1]), X, y)
    for rows in (4,), (7,), (3, 5):
        pytest.raises(ValueError, sts.forward, W, V, X, y, np.ones((*rows, 6))).match(r"E\[:5\]")
    pytest.raises(ValueError, sts.output, W, V, X, y, E, "mean").match("True or False")
