"""Tests:  python -m pytest test_sts.py;  with -k gradients they check a `backward` of your own.

Each test states a fact.  Statistical tests have a fixed seed and allow 5 standard errors.
"""

import train            # before NumPy, since it sets the number of threads

import contextlib
import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import same_color

import fcn
import plots
import sts

HERE = Path(__file__).resolve().parent
allclose = np.testing.assert_allclose
plt.switch_backend("Agg")


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


@pytest.mark.parametrize("law, square", [("rademacher", 1 / 8), ("orthonormal", 0)])
def test_random_encodings_are_unit_vectors_with_random_signs(law, square):
    """`square` is the mean of (e_i . e_j)^2.  Entries have mean 0 and are uncorrelated."""
    n, d_e = 4000, 8
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


# Training.  A new setting of train.py needs a row in RUNS, which tests how it trains, and its name
# in each `refused` of runs that do not read it.

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
            allclose(run["se"][i, k], np.std(L - R * z) / math.sqrt(8) / z.mean(), 1e-4, 1e-7)
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


# Settings, and the two programs

@pytest.mark.parametrize("given, derived", [
    ({}, {"T": 50, "d_e": 100, "batch": 1024, "lr": 2, "eval_draws": 1, "T_test": [75, 100]}),
    ({}, {"init_std": 0, "draws": 1, "query": "sum", "schedule": "constant", "fresh": False}),
    ({}, {"attend_to_query": False, "steps": 2000, "evaluations": 10, "seed": 0}),
    ({"q": 5}, {"lr": 2}), ({"q": 8}, {"lr": 1.25}),
    ({"law": "rademacher", "T": 200}, {"d_e": 170, "T_test": [300, 400]}),
    ({"T": 7}, {"d_e": 14, "T_test": [10, 14], "q_test": [2, 3, 4, 5]}),
    ({"pe": "onehot", "q": 1, "d_e": 80}, {"lr": 1.9, "T_test": [75]}),
    ({"optimizer": "adam"}, {"lr": 0.01, "d_e": 100}),
    ({"model": "fcn", "hidden": [300, 500]}, {"lr": 0.005, "eval_sequences": 10_000})], ids=str)
def test_defaults(given, derived):
    c = vars(train.Settings(**given))
    assert {name: c[name] for name in derived} == derived


@pytest.mark.parametrize("given, refused", [
    (SMALL, "hidden"), (SMALL | {"pe": "fixed"}, "hidden draws eval_draws"),
    (SMALL | {"pe": "onehot"}, "hidden draws eval_draws law"),
    (NET, "pe law d_e attend_to_query query init_std draws eval_draws T_test q_test")], ids=str)
def test_a_setting_changes_the_run_or_is_refused_by_its_flag(given, refused):
    run = train.train(**given)
    for name, (default, *_) in train.SETTINGS.items():
        value, flag = vars(run["config"])[name], "--" + name.replace("_", "-")
        other = ([*default][-1] if type(default) in (tuple, dict) else [5] if type(value) is list else
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


def test_each_step_and_each_purpose_has_a_stream_of_its_own(monkeypatch):
    keys, stream = [], train.stream
    monkeypatch.setattr(train, "stream", lambda c, *key: keys.append(key) or stream(c, *key))
    run = train.train(**SMALL | {"pe": "fixed", "init_std": 1, "fresh": True, "steps": 102})
    numbers = {key: stream(run["config"], *key).random() for key in keys}
    assert len({*numbers.values()}) == len(numbers) > 200
    assert keys.count(("encodings",)) == 1 and keys.count(("tests", 1, 0)) == keys.count(("tests", 1, 1)) == 5


def test_wrong_positions_and_shapes_are_refused():
    W, V, X, y, E = example()
    indicator = np.array([[j in row for j in range(5)] for row in y], int)
    for wrong in y + 5 - y.max(), y - 1 - y.min(), indicator, np.array([[2, 0, 2]] * 4), y[:3]:
        pytest.raises(ValueError, sts.sts_target, X, wrong)
        pytest.raises(ValueError, sts.forward, W, V, X, wrong, E)
        pytest.raises(ValueError, fcn.encode, X, wrong)
    pytest.raises(ValueError, fcn.width_lower_bound, 1, 5, 2, 6)
    pytest.raises(ValueError, sts.loss, W, V[:1], X, y, E)
    pytest.raises(ValueError, fcn.loss, fcn.init_fcn(np.random.default_rng(0), [15, 1]), X, y)
    for rows, words in ((4,), "need an"), ((7,), r"pass E\[:5\]"), ((3, 5), "call output"):
        pytest.raises(ValueError, sts.forward, W, V, X, y, np.ones((*rows, 6))).match(words)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        try:
            program.main()
            return 0, *capsys.readouterr()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
    return call


@pytest.mark.parametrize("program, flags, word", [
    (train, "--lr nan", "--lr"), (train, "--T 8.5", "--T"), (train, "--d_e=0", "--d-e"),
    (train, "--q 51", "q <= T"), (train, "--T-test 2", "T = 2"), (train, "--step 1", "--step"),
    (train, "--pe onehot --d-e 49", "d_e >= 5"), (train, "--steps 9 --out .", "'.'"),
    (train, "--model fcn --hidden 9 0", "--hidden"),
    (train, "--T 9999999 --batch 99999", "allocate"),
    *((train, f"--out {name}.npz", name) for name in ("other", "junk", "cut")),
    (train, "--steps 9 --evaluations 1 --lr 1e30", "--lr"), (plots, "--run run.png", "--run"),
    (train, "--model fcn --T 10 --steps 3 --evaluations 3 --lr 0.3", "--lr"),
    (plots, "no-such", "no-such"), (plots, "2 --run other.npz", "--run"),
    *((plots, f"--run {name}.npz", name) for name in ("no", "junk", "cut"))])
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_done_ends_in_one_line(program, flags, word, command):
    run = train.train(path="other.npz", **SMALL)
    Path("cut.npz").write_bytes(Path("other.npz").read_bytes()[:-300])
    np.savez("junk.npz", no=0, run=0)
    shutil.copy("other.npz", "run.png")
    Path("folder").mkdir()
    pytest.raises(OSError, train.save, run, "folder")                       # leaves no half file
    assert not [*Path().glob("folder.*")]
    before = {path: path.read_bytes() for path in Path().glob("*.*")}       # hidden ones, too
    pytest.raises(ValueError, train.save, run | {"note": {"a": 1}}, "other.npz").match("note")
    status, out, err = command(flags, program)
    usage, error = err.splitlines()
    assert status == 2 and usage.startswith("usage:") and word in error
    assert "step " not in out or "diverged" in err      # it is refused before training
    assert before == {path: path.read_bytes() for path in Path().glob("*.*")}


@pytest.mark.parametrize("where, number, flags", [
    ("evaluate", 3, ""), ("save", 3, "--pe onehot --attend-to-query --query mean --init-std 0.5"),
    ("loss_and_grads", 4, "--optimizer adam --schedule cosine --law rademacher"),
    ("progress", 2, "--pe fixed --fresh"), ("error_and_se", 28, "")])       # the last evaluation
def test_the_same_command_goes_on_bit_for_bit(where, number, flags, command):
    flags += " --T 20 --d 3 --q 2 --steps 6 --evaluations 3 --batch 9 --out"
    def interrupted(where, number):
        effects = [mock.DEFAULT] * (number - 1) + [KeyboardInterrupt] + [mock.DEFAULT] * 99
        with mock.patch.object(train, where, wraps=getattr(train, where), side_effect=effects):
            return command(f"{flags} half.npz")

    _, whole, _ = command(f"{flags} whole.npz")
    status, _, err = interrupted(where, number)
    assert status == 1 and "goes on" in err and 0 < (t := train.load("half.npz")["t"]) < 6
    _, out, _ = command(f"{flags} half.npz")
    assert f"it goes on from step {t}." in out
    assert re.findall("^ .*%$", out, re.M) == re.findall("^ .*%$", whole, re.M)     # all rows
    run = train.load("whole.npz")
    row = run["training"][-1], *run["error"][-1][run["tests"][:, 1] == 2], run["on_selected"][-1]
    assert "".join(f"{value:9.1%}" for value in row) in whole
    np.testing.assert_equal(train.load("half.npz"), run)
    assert "nan" not in whole + out
    with pytest.raises(ValueError, match="other settings"):
        train.train(path="half.npz", **vars(run["config"]) | {"lr": 0.3})
    train.save(other := run | {"W": run["W"] + 1}, "half.npz")      # as of an edited program
    interrupted("loss_and_grads", 6)
    np.testing.assert_equal(train.load("half.npz"), other)          # it stays
    command(f"{flags} half.npz")
    np.testing.assert_equal(train.load("half.npz"), run)            # until a new one has ended


def test_a_run_is_named_after_its_flags(command):
    command("--T 9 --T-test 12 --steps 2 --lr 1e-3 --batch 8")
    assert [path.name for path in Path("runs").iterdir()] == [
        "T_9_T-test_12_steps_2_lr_1e-3_batch_8.npz"]


@pytest.mark.parametrize("settings, error, training, said", [
    (SMALL, 0.8, 0.28, ""), (SMALL | {"fresh": True}, 0.8, 0.2, ""),
    (SMALL, 0.96, 0.9, "learnt nothing"), (NET | {"hidden": [8, 30]}, 0.8, 0.26, "its 16 ")])
def test_the_last_lines_say_what_a_run_is_worth(settings, error, training, said, capsys):
    run = train.start(train.Settings(**settings))
    share = 0.9 ** np.arange(len(run["tests"]))
    run["error"][-1], run["se"][-1], run["training"][-1] = error * share, 0.1 * share, training
    train.summary(run)
    out = capsys.readouterr().out
    for (T, q), s in zip(run["tests"], share):
        assert f"T = {T:4}, q = {q:2}  {error * s:7.2%}     {0.1 * s:6.2%}\n" in out
    assert said in out and ("The run has" in out) == (said != "") and f" {error:.2%}" in out
    assert (" below 42.86%." in out) == ("model" in settings)           # (1 - 8/16) 6/7


# The figures of plots.py

@pytest.fixture(scope="module")
def plotted():
    """All figures, and their runs of 200 steps, with weights, losses and errors at random."""
    short = {"steps": 200, "evaluations": 4, "batch": 32, "eval_sequences": 4}
    arms, rng = plots.FULL | plots.GD | plots.ADAM, np.random.default_rng(0)
    runs = {name: [train.start(train.Settings(**arm | plots.QUICK[name] | short, seed=seed))
                   for seed in plots.SEEDS] for name, arm in arms.items()}
    for run in sum(runs.values(), []):
        run |= {key: rng.uniform(0.1, 1, run[key].shape)
                for key in ("W", "V", "loss", "error", "cos_W", "cos_V")}
    figures = {name: function({arm: runs[arm] for arm in arms})
               for name, (function, arms, _) in plots.FIGURES.items()}
    captions = {name: " ".join(figures[name].get_supxlabel().split()) for name in figures}
    return figures, captions, runs


def test_figures_1_and_3_show_the_loss_the_cosines_and_the_weights(plotted):
    figures, captions, runs = plotted
    runs, evals, middles = runs["full model"], [0, 50, 100, 150, 200], np.arange(0.5, 200, 2)
    left, middle, right = figures["1"].axes
    for i, run in enumerate(runs):
        L = run["loss"].reshape(100, 2).mean(axis=1)
        allclose(left.lines[i].get_data(), (middles, L))
        allclose(middle.lines[i].get_data(), (middles, 1 / L))
        allclose(right.lines[i].get_data(), (evals, run["cos_W"]))
        allclose(right.lines[i + 3].get_data(), (evals, run["cos_V"]))
    allclose(left.lines[3].get_ydata(), 3 / 4)                              # d/(2q)
    (t, y), = [curve.get_data() for curve in middle.lines if curve.get_linestyle() == ":"]
    allclose(np.diff(y) / np.diff(t), 4 * 4.0 / (2 ** 2 * 40))              # 4 lr/(q^2 d_e)
    allclose(y[-1], np.mean([1 / run["loss"][-2:].mean() for run in runs]))
    assert [text.get_text() for text in right.get_legend().texts] == ["cos(W, W*)", "cos(V, V*)"]
    assert [axis.get_title() for axis in (left, middle)] == ["training loss L", "1/L"]
    assert "q = 2, d = 3, $d_e$ = 40, gradient descent, lr = 4, fresh" in captions["1"]
    which = {"before": train.start(runs[0]["config"]), "after": runs[0]}
    for axis in figures["3"].axes[:4]:
        name, when, _ = axis.get_title().split()
        weights = which[when][name][:28, :28]                               # 25 of encodings
        np.testing.assert_array_equal(axis.images[0].get_array(), weights)
        assert axis.get_xlabel().endswith("query" if name == "W" else "key")
        assert axis.get_ylabel().endswith("key" if name == "W" else "output")
        words = ["token", "encoding"]
        assert [text.get_text() for text in axis.get_xticklabels()] == words
        assert name == "V" or [text.get_text() for text in axis.get_yticklabels()] == words
    assert "seed 3. Shown are the 3 token" in captions["3"]


def test_the_arms_are_what_captions_say():
    full = train.Settings(**plots.FULL["full model"])
    assert full.attend_to_query and full.fresh and full.init_std == 0.02 and full.lr == 9
    assert (full.pe, full.law, full.query, full.d_e) == ("stochastic", "orthonormal", "mean", 200)
    for name, arm in (plots.GD | plots.ADAM).items():
        c = train.Settings(**arm)
        assert (c.optimizer, c.pe) == tuple(name.split()) and c.fresh and c.d_e == 500
        assert (c.law, c.lr) == ("rademacher", 5 if c.optimizer == "gd" else 0.004)


@pytest.mark.parametrize("name, how, sizes", [("2", "gd", []), ("4", "gd", [2, 4, 5, 8]),
                                              ("5", "adam", [2, 4, 5, 8])])
def test_figures_2_4_and_5_show_means_and_ranges_of_the_errors(name, how, sizes, plotted):
    figures, captions, runs = plotted
    panels = [axis for axis in figures[name].axes if axis.axison]
    tests = [(T, 3) for T in (50, 62, 75, 87, 100)] + [(50, q) for q in sizes]
    for axis, (T, q) in zip(panels, tests, strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        areas = [area for area in axis.collections if isinstance(area, PolyCollection)]
        for pe, color, area in zip(("stochastic", "fixed"), ("#0072B2", "#D55E00"), areas):
            column = runs[f"{how} {pe}"][0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in runs[f"{how} {pe}"]])
            allclose(lines[pe].get_data(), ([0, 50, 100, 150, 200], curves.mean(axis=0)))
            height = area.get_paths()[0].vertices[:, 1]
            allclose(sorted({*height}), sorted({*curves.min(axis=0), *curves.max(axis=0)}))
            assert lines[pe].get_color() == color
            assert same_color(area.get_facecolor(), (color, 0.25))
        assert axis.get_title() == ("the trained task" if (T, q) == (50, 3) else
                                    f"$T_{{test}}$ = {T}" if q == 3 else f"$q_{{test}}$ = {q}")
        allclose([line.get_ydata()[0] for line in axis.lines[2:]], [1, 0.18] if T > 50 else [1])
        assert axis.get_yscale() == ("linear" if name == "2" else "log")
        row = panels[5 * (q != 3)] if q != 3 else panels[0]
        assert [text.get_text() for text in axis.texts] == ["zero predictor" if axis is row else ""]
        assert axis.get_ylim() == row.get_ylim()
        assert axis.yaxis.get_major_formatter().xmax == 1 and axis.get_ylim()[0] <= curves.min()
    legend, = [axis.get_legend() for axis in figures[name].axes if axis.get_legend()]
    assert [text.get_text() for text in legend.texts] == ["stochastic", "fixed", "loss 0.15"]
    assert "3 seeds, 4 sequences in a test." in captions[name]
    optimizer = "Adam, lr = 0.004" if how == "adam" else "gradient descent, lr = 2"
    assert (f"4 draws in a step, 16 in a test. T = 50, q = 3, d = 5, $d_e$ = 100, {optimizer}, "
            "fresh batches of 32 ") in captions[name]


@pytest.mark.parametrize("settings", [SMALL | {"pe": "fixed", "query": "mean"},
                                      NET | {"hidden": [3]}])
def test_plots_shows_a_run_whatever_the_users_style(settings, command):
    run, shown = train.train(path="2.npz", **settings), []
    for style in {}, {"font.size": 30, "axes.facecolor": "k", "xtick.color": "w"}:
        with plt.rc_context(style):
            assert command("--run 2.npz", plots)[0] == 0
            figure = plots.one_run(run)                         # as in a notebook
            figure.savefig("3.png")
            shown.append([Path(name).read_bytes() for name in ("2.png", "3.png")])
    assert shown[0] == shown[1]
    loss, error, *attention = figure.axes
    allclose(loss.lines[0].get_ydata(), run["loss"] / 0.5)              # over d/(2q)
    allclose(error.lines[0].get_data(), (run["eval_step"], run["error"][:, 0]))
    assert [axis.get_title() for axis in (loss, error)] == ["training loss over d/(2q)", "error"]
    curves = {line.get_label(): line.get_ydata() for line in error.lines if "T =" in line.get_label()}
    tests = run["tests"].tolist()
    assert {*curves} == {f"T = {T}" for T, q in tests if q == 2}
    for label, ydata in curves.items():
        allclose(ydata, run["error"][:, tests.index([int(label[4:]), 2])])
    assert figure.get_suptitle().startswith("A net" if "model" in settings else "Fixed encodings")
    words = " ".join(figure.get_supxlabel().split())
    assert ("hidden units: [3]" if "model" in settings else "Law: orthonormal. T = 8, q = 2") in words
    assert plots.one_run(run | {"t": 5}).get_suptitle().endswith("after 5 steps")
    levels = [line.get_ydata()[0] for line in error.lines if line.get_linestyle() != "-"]
    allclose(levels, [fcn.width_lower_bound(3, 8, 2, 2) / 0.5, 1] if "model" in settings else [1])
    for axis in attention:
        X, y, E = train.held_out(run, 0, 1)
        P = sts.attention(run["W"], X, y, E, query="mean")[0, 0]
        every, selected = [[tuple(segment[1]) for segment in lines.get_segments()]
                           for lines in axis.collections]
        allclose(every, [*enumerate(P)], rtol=1e-6)
        allclose(selected, [(j, P[j]) for j in y[0]], rtol=1e-6)
        allclose(axis.lines[0].get_ydata(), 1 / 2)                      # 1/q
        assert same_color(axis.collections[1].get_color(), "#0072B2")   # "blue: selected"


def test_the_command_plots_the_figures_that_it_names(command, monkeypatch, plotted):
    asked = {}
    def trained(arms, folder):
        asked[folder] = arms
        return plotted[2]
    monkeypatch.setattr(plots, "trained", trained)
    monkeypatch.setattr(plots, "HERE", Path())
    for flags, folder, out in ("3 5 --quick --format svg", "quick", Path("runs/quick")), (
            "3 5 --format svg", "figures", Path("figures")):
        assert command(flags, plots)[0] == 0
        assert {path.name for path in out.iterdir()} == {"figure_3.svg", "figure_5.svg"}
        assert ("A small task" in (out / "figure_3.svg").read_text()) == (folder == "quick")
        arms = asked.pop(train.RUNS / folder)
        assert arms.keys() == {"full model", "adam stochastic", "adam fixed"} and not asked
        assert arms["full model"]["steps"] == (2000 if folder == "quick" else 16000)


def test_runs_of_figures_are_kept_until_settings_change(tmp_path, capfd):
    def trained(seeds=(3, 4), **changed):
        found = plots.trained({"one": SMALL | changed}, tmp_path, seeds)["one"]
        for seed, run in zip(seeds, found, strict=True):
            np.testing.assert_equal(run, train.train(**SMALL | changed, seed=seed))
        return sorted(re.findall(r"one seed (\d) is done", capfd.readouterr().out))

    assert trained() == ["3", "4"] and trained() == []
    assert trained(fresh=True, T_test=[9, 5]) == ["3", "4"]
    path = tmp_path / "one seed 4.npz"
    path.unlink()
    with pytest.raises(ZeroDivisionError):
        train.train(lambda run: 1 / (5 - run["t"]), path, **SMALL, seed=4)
    np.savez(tmp_path / "one seed 3.npz", config="an older program's")
    assert trained() == ["3", "4"]                                      # unreadable, unfinished
    pytest.raises(ValueError, trained, [4], pe="no")                    # before anything is lost
    for wrong, words in ({"q": 9}, "q <= T"), ({"lr": 1e30}, "diverged"):
        pytest.raises(ChildProcessError, trained, [4], **wrong).match(f"^one seed 4: .*{words}")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ("SIGINT", "SIGTERM", "SIGKILL", "a process is killed"))
def test_all_processes_end_if_one_is_stopped(name, tmp_path):
    arms = {"short": SMALL, "long": SMALL | {"steps": 10 ** 6}}
    code = ("import pathlib, plots, signal as s; s.signal(s.SIGINT, s.default_int_handler); "
            f"plots.trained({arms}, pathlib.Path({str(tmp_path)!r}))")
    if name == "a process is killed":
        code = ("import multiprocessing as m, threading\n"
                "threading.Timer(3, lambda: m.active_children()[0].kill()).start()\n" + code)
    with subprocess.Popen([sys.executable, "-c", code], cwd=HERE, text=True, stderr=subprocess.PIPE,
                          stdout=subprocess.PIPE, start_new_session=True) as main:
        for _ in range(1 + len(plots.SEEDS)):           # the short runs are done
            main.stdout.readline()
        time.sleep(0.5)
        if name in dir(signal):                         # Ctrl-C reaches all of them
            (os.killpg if name == "SIGINT" else os.kill)(main.pid, getattr(signal, name))
        try:
            _, err = main.communicate(timeout=20)       # it ends with the last process
        finally:
            with contextlib.suppress(OSError):
                os.killpg(main.pid, signal.SIGKILL)     # if not, none is left over
    assert main.returncode != 0 and len(list(tmp_path.glob("short*"))) == 3
    assert err.count("Traceback") == (name in ("SIGINT", "a process is killed"))
    assert name in dir(signal) or "ChildProcessError: long seed" in err
