"""Tests:  python -m pytest test_sts.py;  with -k gradients they check a `backward` of your own.

Each test states a fact.  Statistical tests have a fixed seed and allow 5 standard errors.
"""

import train        # first, since it sets the number of threads before NumPy loads

import itertools
import json
import math
import multiprocessing.dummy
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fcn
import plots
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
    """Random W, V and a batch X, y, E with n = 4, T = 5, d = 2, q = 3, d_e = 6."""
    rng = np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 4, 5, 2, 3)
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
    batch = X, y, E, attend_to_query, query
    allclose(sts.output(W, V, *batch), f.mean(axis=0), rtol=1e-12)
    allclose([sts.loss(W, V, *batch), sts.loss_and_grads(W, V, *batch)[0]], L, rtol=1e-12)


def test_softmax_is_right_where_logits_differ_by_1000():
    A = np.array([[0.0, 1000], [-1000, -1000]])
    allclose(sts.softmax(A), [[0, 1], [0.5, 0.5]], rtol=1e-12)


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
    for (w, b), gain in zip(fcn.init_fcn(np.random.default_rng(0), [400, 300, 200]), (2, 1)):
        assert abs(w.var() * len(w) / gain - 1) < 5 * math.sqrt(2 / w.size) and not b.any()


# Gradients.  A case is (law, draws, attend_to_query, query), or the sizes of a net.

ATTENTION = [("rademacher", None, False, "sum"), ("orthonormal", 3, False, "mean"),
             ("onehot", None, True, "sum"), ("rademacher", 3, True, "mean")]
NETS = [(12, 2), (12, 6, 2), (12, 3, 4, 5, 2)]


def agree(grad, exact):
    return grad.shape == exact.shape and abs(grad - exact).max() <= 1e-12 * abs(exact).max()


@pytest.mark.parametrize("case", ATTENTION + NETS, ids=str)
@pytest.mark.parametrize("where", ("zero", "random", "trained"))
def test_gradients_are_exact(where, case):
    """They agree with complex steps through the loss."""
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
    for i, (weight, grad) in enumerate(zip(weights, grads(*weights), strict=True)):
        exact = np.empty(weight.shape)
        for entry in np.ndindex(weight.shape):      # Im L(w + ih) / h, for one entry of a weight
            moved = weight.astype(complex)
            moved[entry] += 1e-30j
            exact[entry] = loss(*weights[:i], moved, *weights[i + 1:]).imag / 1e-30
        assert agree(grad, exact), f"\nyours\n{grad}\n\nby complex step\n{exact}"


# Theory: the ground truth, the bound, the constructed nets


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


def test_the_model_in_the_readme_is_this_one():
    block = re.search("```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)[1]
    exec(re.split("^for ", block, flags=re.MULTILINE)[0], mini := {})       # without its training
    (X, y, target), E = mini["sequences"](mini["n"], mini["T"]), mini["encodings"](mini["T"])
    rng, d, width = np.random.default_rng(0), X.shape[2], X.shape[2] + E.shape[1]
    W, V, r = (rng.standard_normal(shape) for shape in ((width, width), (d, width), target.shape))
    (f, mini_cache), (g, cache) = mini["forward"](W, V, X, y, E), sts.forward(W, V, X, y, E)
    for found, right in zip((target, f, *mini["backward"](mini_cache, r)),
                            (sts.sts_target(X, y), g, *sts.backward(cache, r)), strict=True):
        assert agree(found, right)


def numbers(pattern, text):
    return np.array(re.findall(pattern, text, re.MULTILINE), float)


@pytest.mark.parametrize("name", ("sts.py", "fcn.py"))
def test_each_file_runs_alone_and_its_tour_trains(name, tmp_path):
    """Alone in a folder, so that it can be copied."""
    path = shutil.copy(HERE / name, tmp_path)
    out = subprocess.check_output([sys.executable, "-I", path], cwd=tmp_path, text=True)
    assert numbers(r"relative difference (\S+)", out) < 1e-13
    if name == "sts.py":
        assert numbers(r"a = .* loss (\S+)", out)[-1] < 1e-10       # of 16 W*, V*
        assert numbers(r"loss (\S+) .*attention", out)[-1] < 0.01   # after training
    else:
        L, bound = numbers(r"width +\d+ +loss (\S+) +bound (\S+)", out).T
        assert ((bound - 0.005 < L) & (L < bound + 0.02)).all()


# Training

SMALL = {"T": 8, "d": 2, "q": 2, "d_e": 16, "batch": 16, "steps": 12, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 8}
RUNS = {
    "stochastic": SMALL, "fixed": SMALL | {"pe": "fixed"}, "one-hot": SMALL | {"pe": "onehot"},
    "fresh": SMALL | {"fresh": True, "seed": np.int64(3), "T_test": np.array([9, 5])},
    "full model": SMALL | {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5},
    "Adam": SMALL | {"optimizer": "adam", "schedule": "cosine", "law": "orthonormal"},
    "net": SMALL | {"model": "fcn", "hidden": [7, 9], "optimizer": "adam", "lr": 0.02}}


@pytest.mark.parametrize("name", RUNS)
def test_training_is_gradient_descent_or_adam(name):
    """The loop written out, on the batches and encodings that the run draws."""
    run = train.start(c := train.configuration(**RUNS[name]))
    weights = {key: run[key] for key in run if re.match("[WV]$|weight|bias", key)}
    losses, batches, drawn = [], set(), set()
    m, v = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    for t in range(12):
        X, y = train.batch(c, t if c.fresh else 0)
        E = train.encodings(run, c.T, c.draws, "encodings", t)
        if c.model == "fcn":
            L, grads = fcn.loss_and_grads(train.layers(run | weights), X, y)
            grads = sum(grads, ())
        else:
            L, *grads = sts.loss_and_grads(*weights.values(), X, y, E, c.attend_to_query, c.query)
        lr = c.lr * (1 + math.cos(math.pi * t / 12)) / 2 if c.schedule == "cosine" else c.lr
        for key, g in zip(weights, grads, strict=True):
            if c.optimizer == "adam":           # Kingma and Ba, Algorithm 1
                m[key], v[key] = 0.9 * m[key] + 0.1 * g, 0.999 * v[key] + 0.001 * g ** 2
                m_hat, v_hat = m[key] / (1 - 0.9 ** (t + 1)), v[key] / (1 - 0.999 ** (t + 1))
                g = m_hat / (np.sqrt(v_hat) + 1e-8)
            weights[key] = weights[key] - lr * g
        losses.append(L)
        batches.add(X.tobytes())
        drawn |= {E_k.tobytes() for E_k in E} if c.model == "attention" else set()
    train.descend(run)
    for key, expected in (weights | {"loss": losses, "eval_step": [0, 3, 6, 9, 12]}).items():
        allclose(run[key], expected, rtol=1e-4, atol=1e-5)
    assert len(batches) == (12 if c.fresh else 1)
    assert {run[key].dtype for key in weights} == {np.dtype("float32")}
    if c.model == "attention":
        assert E.dtype == np.float32 and len(drawn) == (12 * c.draws if "E" not in run else 1)
        assert ("E" in run) == (c.pe != "stochastic")
        truth = sts.ground_truth(2, 16, 8 if name == "one-hot" else None)
        cosines = [sts.cosine(*pair) for pair in zip(weights.values(), truth)]
        allclose([run["cos_W"][-1], run["cos_V"][-1]], cosines, rtol=1e-5)


@pytest.mark.parametrize("name", ("stochastic", "fixed", "one-hot", "full model", "net"))
def test_errors_are_losses_on_the_same_new_sequences_at_every_evaluation(name, monkeypatch):
    seen, output, net = [], train.output, name == "net"
    monkeypatch.setattr(train, "output", lambda run, *now: seen.append(now) or output(run, *now))
    run = train.train(**RUNS[name] | {"T_test": [8, 6, 12], "q_test": [2, 1]})
    tests = [[8, 2], [6, 2], [12, 2], [8, 1]][:1 if net else 4]
    assert run["tests"].tolist() == tests
    c, last = run["config"], seen[-len(tests):]
    for k, ((T, q), (X, y, E)) in enumerate(zip(tests, last)):
        assert all(map(np.array_equal, (X, y, E), seen[k]))     # those of the first evaluation
        assert X.shape == (8, T, 2) and y.shape == (8, q) and X[0, 0, 0] not in train.batch(c, 0)[0]
        assert net or E.shape == (16 if c.pe == "stochastic" else 1, T, 16)
        assert net or np.allclose((E ** 2).sum(axis=2), 1)
        assert net or c.pe == "stochastic" or np.array_equal(E[0], run["E"][:T])
        L = [fcn.loss(train.layers(run), X[[b]], y[[b]]) if net else
             sts.loss(run["W"], run["V"], X[[b]], y[[b]], E, c.attend_to_query, c.query)
             for b in range(8)]
        allclose(run["error"][-1, k], np.mean(L), rtol=1e-5)
        allclose(run["se"][-1, k], np.std(L) / math.sqrt(8), rtol=1e-5)
    if not net:
        assert c.pe != "stochastic" or not np.array_equal(last[0][2], last[3][2])
        X, y, E = last[0]
        P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)
        allclose(run["on_selected"][-1], np.mean([P[:, b, y[b]].sum(axis=1) for b in range(8)]),
                 rtol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_and_goes_on_from_its_file_bit_for_bit(name, tmp_path):
    run = train.train(lambda run: train.save(run, tmp_path / f"{run['t']}.npz"), **RUNS[name])
    again = train.train(**vars(run["config"]))
    resumed = train.descend(train.load(tmp_path / "6.npz"))
    assert run.keys() == again.keys() == resumed.keys()
    for key in run:
        np.testing.assert_array_equal(run[key], again[key])
        np.testing.assert_array_equal(run[key], resumed[key])


@pytest.mark.parametrize("pe", ("fixed", "stochastic"))
def test_each_seed_has_its_own_weights_encodings_batches_and_tests(pe):
    drawn = []
    for seed in 0, 1:
        run = train.start(train.configuration(**SMALL | {"init_std": 1.0, "seed": seed, "pe": pe}))
        drawn.append([run["W"], run["V"], train.encodings(run, 8, 1, "encodings", 3),
                      train.batch(run["config"], 3)[0], *train.held_out(run, 0, 1)[::2]])
    assert not any(map(np.array_equal, *drawn))


# Settings, and the two programs


@pytest.mark.parametrize("given", [
    {"T": 10, "model": "fcn", "hidden": [400]}, {"T": 10, "model": "fcn", "hidden": [200] * 4},
    {"T": 20, "pe": "fixed", "attend_to_query": True, "d_e": 60},
    {"T": 20, "pe": "onehot", "attend_to_query": True}], ids=str)
def test_runs_learn_with_the_default_learning_rate(given):
    c = {"fresh": True, "steps": 400, "evaluations": 4, "batch": 128, "T_test": [], "q_test": []}
    L = train.train(**c | given)["loss"]
    assert L[-40:].mean() < 0.95 * 5 / 6 and L[-40:].mean() < L[:40].mean()


@pytest.mark.parametrize("setting", [
    *({name: 0} for name in "T d q d_e batch draws steps evaluations eval_draws lr".split()),
    *({name: "x"} for name in "model pe law query optimizer schedule".split()),
    {"seed": -1}, {"init_std": -0.1}, {"lr": math.nan},
    {"hidden": [8]}, {"model": "fcn", "hidden": [0]}, {"q": 201}, {"T_test": [2]},
    {"model": "fcn", "pe": "fixed"}, {"model": "fcn", "law": "onehot"}, {"pe": "fixed", "draws": 8},
    {"pe": "onehot", "eval_draws": 1}, {"pe": "onehot", "law": "orthonormal"},
    {"q_test": [2, 201]}, {"law": "orthonormal", "d_e": 199}, {"law": "onehot", "d_e": 199}],
    ids=str)
def test_impossible_settings_are_refused(setting):
    with pytest.raises(ValueError, match="got"):        # it says which value was given
        train.train(**setting)


def test_wrong_positions_are_refused():
    W, V, X, y, E = example()
    indicator = np.array([[j in row for j in range(5)] for row in y], int)
    repeated = np.array([[2, 0, 2]] * 4)
    for wrong in y + 5 - y.max(), y - 1 - y.min(), indicator, repeated, y[:3]:
        pytest.raises(ValueError, sts.sts_target, X, wrong)
        pytest.raises(ValueError, sts.forward, W, V, X, wrong, E)
        pytest.raises(ValueError, fcn.encode, X, wrong)
    pytest.raises(ValueError, fcn.width_lower_bound, 1, 5, 2, 6)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function from flags to the exit status, and to what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(plots, "get_context", lambda _: multiprocessing.dummy)      # threads

    def call(flags, program=train):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        try:
            program.main()
            return 0, *capsys.readouterr()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
    return call


@pytest.mark.parametrize("program, flags, word", [
    (train, "--d-e 0", "--d-e"), (train, "--q 201", "201"), (train, "--step 1", "--step"),
    (train, "--steps 9 --out .", "."), (plots, "no-such", "no-such"), (train, "--pe x", "--pe"),
    (train, "--T 10000000 --batch 1000000", "allocate"), (plots, "--run no.npz", "no.npz"),
    (plots, "--run junk.npz", "junk.npz"), (plots, "--run bare.npz", "bare.npz"),
    (train, "--steps 9 --evaluations 1 --lr 1e30", "--lr"),
    (train, "--T 20 --batch 32 --steps 200 --evaluations 40 --d-e 40 --q 20 --lr 4", "--lr")])
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_done_ends_in_one_line(program, flags, word, command):
    np.savez("junk.npz", no=0, run=0)
    np.savez("bare.npz", config=json.dumps(vars(train.configuration())), t=0)       # no weights
    status, out, err = command(flags, program)
    error, = err[err.index("error:"):].splitlines()             # after argparse's usage
    assert status == 2 and word in error
    assert "step " not in out or "diverges" in err      # it ends before training


FLAGS = "--quick --T 20 --d 3 --q 2 --steps 6 --evaluations 3"


def test_the_program_prints_what_its_file_holds(command):
    status, out, _ = command(FLAGS)
    path, = Path("runs").iterdir()
    run, own = train.load(path), {"T": 20, "d": 3, "q": 2, "steps": 6, "evaluations": 3}
    assert status == 0 and str(path) in out
    assert run["config"] == train.configuration(**train.QUICK | own)
    for i in 1, 2, 3:
        shown = re.search(rf"^ +{2 * i} .*", out, re.MULTILINE)[0].split()
        held = [run["loss"][2 * i - 2:2 * i].mean(), *run["error"][i, run["tests"][:, 1] == 2],
                run["on_selected"][i]]
        assert shown[1:] == [f"{value:.4f}" for value in held]
    for (T, q), error, se in zip(run["tests"], run["error"][-1], run["se"][-1]):
        assert re.search(rf"{T}\D+{q} +{error:.4f} +{se:.4f} +{error * 2 * q / 3:.1%}", out)


@pytest.mark.parametrize("settings, error, loss, said", [
    ({}, 1.3, 0.9, "has memorized its 16 sequences"), ({}, 1.3, 1.1, "has learnt nothing"),
    ({"fresh": True}, 1.3, 0.1, "has learnt nothing"), ({}, 0.97, 0.1, "has learnt nothing"),
    ({}, math.nan, math.nan, "has learnt nothing"), ({}, 0.9, 0.1, ""),
    ({"model": "fcn", "hidden": [8]}, 1.3, 0.9, "has memorized"),
    ({"model": "fcn", "hidden": [8]}, 0.6, 0.6, "")])
def test_the_last_lines_say_what_a_run_is_worth(settings, error, loss, said, capsys):
    run = train.start(train.configuration(**SMALL | settings))
    run["error"][-1], run["se"][-1], run["loss"][9:] = error / 2, 0.1, loss / 2     # d/(2q) is 1/2
    train.summary(run)
    *_, last = (out := capsys.readouterr().out).splitlines()
    assert said in last and ("The run has" in out) == (said != "")
    bound = f"width 8 has a loss below {fcn.width_lower_bound(8, 8, 2, 2):.4f}."
    assert (bound in out) == ("model" in settings)


# The figures of plots.py


def test_an_arm_is_what_its_name_says():
    for name, arm in plots.ARMS.items():
        c, words = train.configuration(**arm), name.split()
        assert (c.model == "fcn") == (words[0] == "net") and words[0] in plots.QUICK
        assert (c.optimizer == "adam") == (words[0] in ("adam", "net"))
        assert c.attend_to_query == (name == "full model")
        if words[0] in ("gd", "adam"):
            assert c.pe == words[1] and c.law == "rademacher" and c.fresh
        if words[0] == "net":
            assert [c.hidden[0], len(c.hidden)] == [int(word) for word in words[1:]]


@pytest.fixture(scope="module")
def plotted(tmp_path_factory):
    """Each figure, made once, and its runs, which have a hundred steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "get_context", lambda _: multiprocessing.dummy)        # threads
        short = {"steps": 100, "evaluations": 4, "batch": 64, "eval_sequences": 4}
        arms = {name: arm | plots.QUICK[name.split()[0]] | short
                for name, arm in plots.ARMS.items()}
        runs = plots.trained(arms, tmp_path_factory.mktemp("kept"), seeds=(3, 4))
    figures = {}
    with plt.rc_context(plots.STYLE):
        for name, (function, headline, _) in plots.FIGURES.items():
            figures[name] = function(runs)
            figures[name].suptitle(headline)
            figures[name].draw_without_rendering()
    yield figures, runs
    plt.close("all")


def shows(axis, x, y, label=""):
    """Whether a line of an axis with this in its label has the points (x, y), and no others."""
    return any(np.shape(curve.get_xdata()) == np.shape(x) and label in curve.get_label()
               and np.allclose(curve.get_xydata().T, [x, y]) for curve in axis.lines)


@pytest.mark.parametrize("name", plots.FIGURES)
def test_no_text_leaves_a_picture(name, plotted):
    figure = plotted[0][name]
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.02 < box.x0 and box.x1 < width + 0.02 and -0.02 < box.y0 and box.y1 < height + 0.02


def test_figure_1_shows_the_loss_its_inverse_and_the_cosines(plotted):
    figures, runs = plotted
    left, middle, right = figures["1"].axes
    for run in runs["full model"]:
        assert shows(left, range(100), run["loss"]) and shows(middle, range(100), 1 / run["loss"])
        assert all(shows(right, run["eval_step"], run[f"cos_{name}"]) for name in "WV")
    assert shows(left, [0, 1], [3 / 4, 3 / 4])                              # d/(2q)
    (t, y), = [curve.get_data() for curve in middle.lines if curve.get_linestyle() == ":"]
    allclose(np.diff(y) / np.diff(t), 4 * 4.0 / (2 ** 2 * 40))              # 4 lr/(q^2 d_e)
    allclose([t[-1], y[-1]], [99, np.mean([1 / run["loss"][-1] for run in runs["full model"]])])


@pytest.mark.parametrize("name, how, sizes", [("2", "gd", []), ("4", "gd", [2, 4, 5, 8]),
                                              ("5", "adam", [2, 4, 5, 8])])
def test_figures_2_4_and_5_show_means_and_ranges_of_the_errors(name, how, sizes, plotted):
    figures, runs = plotted
    panels = [axis for axis in figures[name].axes if axis.axison]
    tests = [(T, 3) for T in (50, 62, 75, 87, 100)] + [(50, q) for q in sizes]
    for axis, (T, q) in zip(panels, tests, strict=True):
        assert axis.get_title().endswith(f"= {T if q == 3 else q}") or (T, q) == (50, 3)
        for pe, area in zip(("stochastic", "fixed"), axis.collections):
            arm = runs[f"{how} {pe}"]
            column = arm[0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in arm]) / (5 / (2 * q))
            assert shows(axis, arm[0]["eval_step"], curves.mean(axis=0), pe)
            height = area.get_paths()[0].vertices[:, 1]
            allclose(sorted({*height}), sorted({*curves.min(axis=0), *curves.max(axis=0)}))
        assert shows(axis, [0, 1], [1, 1])                                  # the zero predictor
        assert shows(axis, [0, 1], [0.15 * 6 / 5] * 2, "0.15") == (T > 50)
    legend, = [axis.get_legend() for axis in figures[name].axes if axis.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == [
        "stochastic,\nmean of\n16 draws", "fixed", "error 0.15,\nhere 0.18"]


def test_figure_3_shows_the_weights_before_and_after_training(plotted):
    figures, runs = plotted
    run = runs["full model"][0]                                 # d = 3 and 25 encoding coordinates
    panels = {axis.get_title(): axis for axis in figures["3"].axes if axis.images}
    assert len(panels) == 4
    for name, (when, weights) in itertools.product("WV", (("before", train.start(run["config"])),
                                                          ("after", run))):
        image = panels[f"{name} {when} training"].images[0]
        np.testing.assert_array_equal(image.get_array(), weights[name][:28, :28])


def test_widths_shows_nets_and_attention_at_their_widths(plotted):
    figures, runs = plotted
    axis, = figures["widths"].axes
    m = np.arange(101)
    assert shows(axis, m, fcn.width_lower_bound(m, 10, 5, 3) * 6 / 5, "bound")
    attention = np.mean([run["error"][-1, 0] for run in runs["attention"]]) * 6 / 5
    assert shows(axis, [0, 1], [attention] * 2, "attention, orthonormal, $d_e$ = 20")
    for hidden in 1, 2:
        nets = [run for m in (5, 15, 25, 40, 50) for run in runs[f"net {m} {hidden}"]]
        assert shows(axis, [run["config"].hidden[0] for run in nets],
                     [run["error"][-1, 0] * 6 / 5 for run in nets], f"{hidden} hidden layer")


@pytest.mark.parametrize("flags, pictures, arms", [
    ("3 widths --quick", ["runs/quick/figure_3.png", "runs/quick/widths.png"],
     ["full", "attention", "net"]),
    ("2 --out other --format svg", ["other/figure_2.svg"], ["gd"])])
def test_plots_makes_what_is_named(flags, pictures, arms, plotted, command, monkeypatch):
    made, quick = [], "quick" in flags
    monkeypatch.setattr(plots, "trained", lambda given, folder, jobs: plotted[1] if (
        {name.split()[0] for name in given} == {*arms}
        and (given == {name: plots.ARMS[name] for name in given}) != quick
        and folder == train.RUNS / ("quick" if quick else "figures")) else None)
    monkeypatch.setattr(plt, "close", made.append)
    assert command(flags, plots)[0] == 0
    assert sorted(map(str, Path().rglob("*.*g"))) == pictures
    headlines = {figure.get_suptitle() for figure in made}
    assert headlines == {"A small task (--quick)" if quick else plots.FIGURES["2"][1]}


@pytest.mark.parametrize("settings", [{"pe": "fixed"}, {"attend_to_query": True}, {"model": "fcn"}],
                         ids=str)
def test_plots_shows_a_run(settings, command, monkeypatch):
    run, figures = train.train(**SMALL | settings), []
    train.save(run, "2.npz")
    monkeypatch.setattr(plt, "close", figures.append)
    assert command("--run 2.npz", plots)[0] == 0 and Path("2.png").exists()
    name = "A net" if "model" in settings else f"{settings.get('pe', 'stochastic')} encodings"
    assert figures[0].get_suptitle() == f"{name.capitalize()} after 12 steps"
    loss, error, *attention = figures[0].axes
    assert shows(loss, np.arange(12), run["loss"])
    assert shows(error, run["eval_step"], run["error"][:, 0])
    assert shows(loss, [0, 1], [0.5, 0.5]) and shows(error, [0, 1], [0.5, 0.5])     # d/(2q)
    for axis in attention:
        X, y, E = train.held_out(run, 0, 1)
        P = sts.attention(run["W"], X, y, E, run["config"].attend_to_query)[0, 0]
        allclose([bar.get_height() for bar in axis.patches], P, rtol=1e-6)
        assert [j for j in range(8) if axis.patches[j].get_facecolor()[0] < 0.1] == sorted(y[0])


def test_a_kept_run_is_used_until_its_settings_change(command, monkeypatch, capsys):
    def trained(**changed):
        given = []
        monkeypatch.setattr(train, "train", lambda **settings: given.append(settings["seed"]) or
                            run | {"config": train.configuration(**settings)})
        found = plots.trained({"one": SMALL | changed}, Path("kept"), jobs=2)["one"]
        assert [run["config"].seed for run in found] == [3, 4, 5]
        return sorted(given), capsys.readouterr().out.split(" runs")[0]

    run = train.train(**SMALL)
    assert [trained(), trained(), trained(lr=0.25), trained(lr=0.25)] == [
        ([3, 4, 5], "3"), ([], "3"), ([3, 4, 5], "3"), ([], "3")]
    Path("kept/one seed 4.npz").unlink()
    assert trained(lr=0.25) == ([4], "2") and len([*Path("kept").iterdir()]) == 3
