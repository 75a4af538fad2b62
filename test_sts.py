"""Tests:  python -m pytest test_sts.py;  with -k gradients they check a `backward` of your own.

Each test states a fact.  Statistical tests have a fixed seed and allow 5 standard errors.
"""

import train        # first, since it sets the number of threads before NumPy loads

import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.colors
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
    """They agree with complex steps through the loss; and wrong ones do not."""
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
        wrong = [0 * grad, 1.01 * grad] + [grad.T] * (grad.ndim == 2)
        assert where == "zero" or not any(agree(w, exact) for w in wrong)


# Theory: the ground truth, the bound, the constructed nets and the plateau


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


def test_plateau_is_the_closed_form_in_its_domain(monkeypatch):    # test_theory.py has other cases
    wait = 170 / 10 * (1 + 4 * 200 / (2 * 256)) * (1 + 6 / 200 * math.log(200 / 3))
    steps = 200 / 4 * (wait + math.log(200 / 3) / 2)
    assert train.plateau(train.configuration()) == pytest.approx(steps)
    assert train.plateau(train.configuration(pe="fixed")) is None
    monkeypatch.setitem(sts.LAWS, "new", sts.LAWS["rademacher"])        # a law with overlaps
    fixed = {"pe": "fixed", "fresh": True, "T": 50, "d_e": 100}
    assert (train.plateau(train.configuration(law="new", **fixed))
            == train.plateau(train.configuration(**fixed)))


def test_the_model_in_the_readme_is_this_one():
    block = re.search("```python\n(.*?)```", (HERE / "README.md").read_text(), re.DOTALL)[1]
    exec(re.split("^for ", block, flags=re.MULTILINE)[0], mini := {})       # without its training
    (X, y, target), E = mini["sequences"](mini["n"], mini["T"]), mini["encodings"](mini["T"])
    rng, d, width = np.random.default_rng(0), X.shape[2], X.shape[2] + E.shape[1]
    W, V, r = (rng.standard_normal(shape) for shape in ((width, width), (d, width), target.shape))
    (f, mini_cache), (g, cache) = mini["forward"](W, V, X, y, E), sts.forward(W, V, X, y, E)
    for found, right in zip((target, f, *mini["backward"](V, r, *mini_cache)),
                            (sts.sts_target(X, y), g, *sts.backward(cache, r)), strict=True):
        assert agree(found, right)


def numbers(pattern, text):
    return np.array(re.findall(pattern, text, re.MULTILINE), float)


def alone(name, folder):
    """What a file prints in an empty folder."""
    path = shutil.copy(HERE / name, folder)
    out = subprocess.check_output([sys.executable, "-I", path], cwd=folder, text=True)
    assert numbers(r"relative difference (\S+)", out) < 1e-13
    return out


def test_tour_of_sts(tmp_path, monkeypatch):
    shown, attention = [], sts.attention
    monkeypatch.setattr(sts, "attention", lambda *now: shown.append(now) or attention(*now))
    sts.demo()
    rows = numbers(r"loss (\S+) .* (\S+) and (\S+) .* (\S+)$", alone("sts.py", tmp_path))
    for (L, *row), (W, X, y, E) in zip(rows, shown, strict=True):
        P, chosen = attention(W, X, y, E), (y[:, :, None] == np.arange(6)).any(axis=1)
        cosine = sts.cosine(W, sts.ground_truth(2, 16)[0])
        allclose(row, [P[chosen].mean(), P[~chosen].mean(), cosine], atol=6e-4)
    assert L < 0.01


def test_tour_of_fcn(tmp_path):
    out = alone("fcn.py", tmp_path)
    task, small = numbers(r"T = (\d+), d = (\d+), q = (\d+)", out).astype(int)
    m, L, share = numbers(r"^ +(\d+) +(0\.\d+) +(\S+)%", out).T
    allclose([L, share / 100], [fcn.width_lower_bound(m, *task), L / L[0]], atol=6e-4)
    m, L, bound = numbers(r"width +(\d+) +loss (\S+) +bound (\S+)", out).T
    allclose(bound, fcn.width_lower_bound(m, *small), atol=6e-4)
    assert ((bound - 0.005 < L) & (L < bound + 0.02)).all()


# Training

SMALL = {"T": 8, "d": 2, "q": 2, "d_e": 16, "batch": 16, "steps": 12, "lr": 0.5,
         "evaluations": 4, "eval_sequences": 8}
RUNS = {
    "stochastic": SMALL, "fixed": SMALL | {"pe": "fixed"}, "one-hot": SMALL | {"pe": "onehot"},
    "fresh": SMALL | {"fresh": True, "seed": np.int64(3), "T_test": [9, 5]},
    "full model": SMALL | {"attend_to_query": True, "query": "mean", "draws": 3, "init_std": 0.5},
    "Adam": SMALL | {"optimizer": "adam", "schedule": "cosine", "law": "orthonormal"},
    "net": SMALL | {"model": "fcn", "hidden": [7, 9], "optimizer": "adam", "lr": 0.02}}


@pytest.mark.parametrize("name", RUNS)
def test_training_is_gradient_descent_or_adam(name, monkeypatch):
    """The loop written out, on the batches and encodings that the run draws."""
    seen, inner = [], train.loss_and_grads
    monkeypatch.setattr(train, "loss_and_grads",
                        lambda run, *batch: seen.append(batch) or inner(run, *batch))
    run = train.start(c := train.configuration(**RUNS[name]))
    weights = {key: run[key] for key in run if re.match("[WV]$|weight|bias", key)}
    for w in weights.values() if c.model == "attention" else ():
        assert abs(w.std() - c.init_std) <= 5 * c.init_std / math.sqrt(2 * w.size)
    losses, m, v = [], dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    train.descend(run)
    for t, (X, y, E) in enumerate(seen):
        lr = c.lr * (1 + math.cos(math.pi * t / 12)) / 2 if c.schedule == "cosine" else c.lr
        if c.model == "fcn":
            L, grads = fcn.loss_and_grads(train.layers(run | weights), X, y)
            grads = sum(grads, ())
        else:
            L, *grads = sts.loss_and_grads(*weights.values(), X, y, E, c.attend_to_query, c.query)
        losses.append(L)
        for key, g in zip(weights, grads, strict=True):
            if c.optimizer == "adam":           # Kingma and Ba, Algorithm 1
                m[key], v[key] = 0.9 * m[key] + 0.1 * g, 0.999 * v[key] + 0.001 * g ** 2
                m_hat, v_hat = m[key] / (1 - 0.9 ** (t + 1)), v[key] / (1 - 0.999 ** (t + 1))
                g = m_hat / (np.sqrt(v_hat) + 1e-8)
            weights[key] = weights[key] - lr * g
    for key, expected in (weights | {"loss": losses, "eval_step": [0, 3, 6, 9, 12]}).items():
        allclose(run[key], expected, rtol=1e-4, atol=1e-5)
    assert X.shape == (16, 8, 2) and len({X.tobytes() for X, _, _ in seen}) == 1 + 11 * c.fresh
    if c.model == "attention":
        drawn = {E_k.tobytes() for _, _, E in seen for E_k in E}
        assert len(drawn) == (12 * c.draws if c.pe == "stochastic" else 1)
        assert E.shape == (c.draws, 8, 16) and (name != "one-hot" or (E == np.eye(8, 16)).all())


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
        L = [fcn.loss(train.layers(run), X[[b]], y[[b]]) if net else
             sts.loss(run["W"], run["V"], X[[b]], y[[b]], E, c.attend_to_query, c.query)
             for b in range(8)]
        allclose(run["error"][-1, k], np.mean(L), rtol=1e-5)
        allclose(run["se"][-1, k], np.std(L) / math.sqrt(8), rtol=1e-5)
    if not net:
        X, y, E = last[0]
        P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)
        W_star, V_star = sts.ground_truth(2, 16, 8 if name == "one-hot" else None)
        selected = np.mean([P[:, b, y[b]].sum(axis=1) for b in range(8)])
        allclose([run[key][-1] for key in ("on_selected", "cos_W", "cos_V")],
                 [selected, sts.cosine(run["W"], W_star), sts.cosine(run["V"], V_star)], rtol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_repeats_and_resumes_bit_for_bit(name, tmp_path):
    run = train.train(lambda run: train.save(run, tmp_path / f"{run['t']}.npz"), **RUNS[name])
    again = train.train(**vars(run["config"]))
    resumed = train.descend(train.load(tmp_path / "6.npz"))
    assert {path.stem for path in tmp_path.iterdir()} == {"0", "3", "6", "9", "12"}
    assert run.keys() == again.keys() == resumed.keys()
    for key in run:
        np.testing.assert_array_equal(run[key], again[key])
        np.testing.assert_array_equal(run[key], resumed[key])


# Settings, and the two programs


def test_defaults_fit_the_other_settings():
    rates = [({}, 4), ({"T": 99}, 2), ({"d": 11}, 2), ({"batch": 32}, 1), ({"T": 120, "q": 11}, 1),
             ({"model": "fcn"}, 0.02), ({"optimizer": "adam"}, 0.01)]
    for given, lr in rates:
        assert train.configuration(**given).lr == lr
    assert train.configuration(T=4, pe="onehot").T_test == [5, 6, 7, 8]


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function from flags to the exit status, and to what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(plots, "ProcessPoolExecutor", lambda jobs, *_: ThreadPoolExecutor(jobs))

    def call(flags, program=train, *given):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        try:
            return program.main(*given), *capsys.readouterr()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
    return call


@pytest.mark.parametrize("setting", [
    *({name: 0} for name in "T d q d_e batch draws steps evaluations eval_draws".split()),
    *({name: "x"} for name in train.CHOICES), {"pe": None}, {"T": "x"}, {"steps": 2.5},
    {"seed": -1}, {"init_std": -0.1}, {"lr": 0}, {"lr": math.nan}, {"lr": math.inf}, {"fresh": 3},
    {"hidden": [8]}, {"model": "fcn", "hidden": [0]}, {"q": 201}, {"T_test": [2]},
    {"q_test": [2, 201]}, {"law": "orthonormal", "d_e": 199}], ids=str)
def test_impossible_settings_are_refused(setting):
    with pytest.raises(ValueError, match="got"):        # it says which value was given
        train.train(**setting)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("program, flags, words", [
    (train, "--d-e 0", "--d-e above 0"), (train, "--q 201", "q T 201 200"),
    (train, "--hidden 8", "--hidden --model fcn"), (train, "--step 1", "--step"),
    (train, "--out run.txt", ".npz"), (train, "--out /dev/null/new/run.npz", "directory"),
    (train, "--resume --out junk.npz", "junk.npz"), (train, "--batch 1000000000000", "allocate"),
    (train, "--T 20 --batch 32 --steps 200 --evaluations 40 --d-e 40 --q 20 --lr 4", "--lr"),
    (train, "--T 20 --batch 32 --steps 200 --evaluations 40 --model fcn --lr 100", "--lr"),
    (plots, "diverges", "diverges --lr"), (plots, "1 --jobs 0", "--jobs 0"),
    (plots, "1 no-such", "diverges no-such"), (plots, "1 --out /dev/null/new", "directory")])
def test_what_cannot_be_done_ends_in_one_line(program, flags, words, command):
    """A run that diverges shows and keeps no absurd number."""
    Path("junk.npz").write_text("junk")
    given = ({"1": (None, "", set()), "diverges": (None, "", {"one"})},
             lambda quick: {("one",): SMALL | {"lr": 1e6}}, Path("new"))
    status, out, err = command(flags, program, *given if program is plots else ())
    assert status == 2 and err.count("\n") == 1 and all(word in err for word in words.split())
    kept = [train.load(path)["error"] for path in Path("runs").rglob("*.npz")]
    assert all(x < 100 for x in [*numbers(r"(\d+\.\d+\S*\d)", out), *map(np.nanmax, kept)])


def test_wrong_positions_are_refused():
    W, V, X, y, E = example()
    indicator = np.array([[j in row for j in range(5)] for row in y], int)
    for wrong in y + 5 - y.max(), y - 1 - y.min(), indicator, y[:3]:
        pytest.raises(ValueError, sts.sts_target, X, wrong)
        pytest.raises(ValueError, sts.forward, W, V, X, wrong, E)
        pytest.raises(ValueError, fcn.encode, X, wrong)


FLAGS = "--quick --T 20 --d 3 --q 2 --steps 6 --evaluations 3"


def test_the_program_prints_what_its_file_holds(command):
    status, out, _ = command(FLAGS)
    path, = Path("runs").iterdir()
    run, own = train.load(path), {"T": 20, "d": 3, "q": 2, "steps": 6, "evaluations": 3}
    assert run["config"] == train.configuration(**train.QUICK | own)
    for i in 1, 2, 3:
        shown = re.search(rf"^ +{2 * i} .*", out, re.MULTILINE)[0].split()
        held = [run["loss"][2 * i - 2:2 * i].mean(), run["on_selected"][i]]
        held += [*run["error"][i, run["tests"][:, 1] == 2]]         # at all lengths
        assert {f"{value:.4f}" for value in held} <= {*shown}
    for (T, q), error, se in zip(run["tests"], run["error"][-1], run["se"][-1]):
        assert re.search(rf"{T}\D+{q} +{error:.4f} +{se:.4f} +{error * 2 * q / 3:.1%}", out)
    assert status is None and str(path) in out and "--steps 6" in out       # its plateau is longer
    assert abs(numbers(r"after about (\d+)", out) / train.plateau(run["config"]) - 1) < 0.05
    assert "6 steps of gradient descent" in out
    out = command(f"{FLAGS} --model fcn --hidden 30 9")[1]
    assert f" {fcn.width_lower_bound(30, 20, 3, 2):.4f}" in out


@pytest.mark.parametrize("error, loss, memorized", [(2, 0.1, True), (0.8, 0.7, False),
                                                    (0.7, 0.1, False)])
def test_a_run_that_has_memorized_says_so(error, loss, memorized, capsys):
    run = train.start(train.configuration(**SMALL))             # d/(2q) is 0.5
    run["error"][-1, 0], run["loss"][-1] = error * 2 / 3, loss * 2 / 3
    train.summary(run)
    assert ("memorized its 16 sequences: --fresh" in capsys.readouterr()[0]) == memorized


def test_no_step_of_a_run_is_lost(command, monkeypatch):
    """By Ctrl-C, even as its file is written, or if --resume is forgotten."""
    def savez(file, **run):
        write(file, **run)
        if run["t"] == stop:
            Path(file).write_bytes(b"half a run")
            raise KeyboardInterrupt

    write = np.savez
    monkeypatch.setattr(np, "savez", savez)
    for stop, flags, word in (4, "", "--resume"), (2, "", "--resume"), (6, "--resume --lr 1", "lr"):
        status, _, err = command(f"{FLAGS} --out run.npz {flags}")
        assert status == (2 if "lr" in flags else 1) and word in err.splitlines()[-1]
        assert train.load("run.npz")["t"] == 2 and len([*Path().glob("*npz*")]) == 1
    stop = None
    out = command(f"{FLAGS} --out run.npz --resume")[1]
    assert numbers(r"^ +(\d+) +0", out).tolist() == [2, 4, 6]
    assert "--resume" in command(f"{FLAGS} --resume")[1]        # there is no such file, it says


# The figures of plots.py


@pytest.fixture(scope="module")
def drawn():
    """Each figure, drawn once, and the runs: as if trained, but with random numbers as results."""
    plt.close("all")                                    # of other test files
    runs, figures, rng = {}, {}, np.random.default_rng(0)
    for key, arm in plots.arms(quick=True).items():
        for seed in plots.SEEDS:
            run = train.start(train.configuration(**arm | {"eval_sequences": 1, "seed": seed}))
            for part in {"W", "V", "loss", "error", "cos_W", "cos_V"} & run.keys():
                run[part] = rng.uniform(0.01, 0.9, run[part].shape)
            runs.setdefault(key, []).append(run)
    with plt.rc_context(plots.STYLE):
        for name, (function, headline, needs) in plots.FIGURES.items():
            figures[name] = function({key: runs[key] for key in runs if key[0] in needs})
            figures[name].suptitle(headline)
            figures[name].draw_without_rendering()
    yield figures, runs
    plt.close("all")


def line(axis, x, y):
    """The line of an axis through the points (x, y), which must be there."""
    return next(line for line in axis.lines if len(x) == len(line.get_xydata())
                and np.allclose(line.get_xydata().T, [x, y]))


def test_figure_1_shows_the_loss_its_inverse_and_the_cosines(drawn):
    figures, runs = drawn
    left, middle, right = figures["1"].axes
    styles = {curve.get_label(): curve.get_linestyle() for curve in right.lines}
    for run in runs["full model",]:
        t, L = np.arange(9.5, 2000, 20), run["loss"].reshape(100, 20).mean(axis=1)
        assert line(left, t, L) and line(middle, t, 1 / L)
        for name in "WV":
            curve = line(right, run["eval_step"], run[f"cos_{name}"])
            assert curve.get_linestyle() == styles[f"cos({name}, {name}*)"]
    assert "loss" in left.get_title() and "1/L" in middle.get_title()
    assert line(left, [0, 1], [3 / 4, 3 / 4])                               # d/(2q)
    (t, y), = [curve.get_data() for curve in middle.lines if curve.get_linestyle() == ":"]
    allclose(np.diff(y) / np.diff(t), 4 * 4.0 / (2 ** 2 * 40))              # 4 lr/(q^2 d_e)


@pytest.mark.parametrize("name", plots.FIGURES)
def test_no_text_leaves_a_picture(name, drawn):
    figure = drawn[0][name]
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.02 < box.x0 and box.x1 < width + 0.02 and -0.02 < box.y0 and box.y1 < height + 0.02


@pytest.mark.parametrize("name, how, subsets", [("2", "gd", []), ("4", "gd", [2, 4, 5, 8]),
                                                ("5", "adam", [2, 4, 5, 8])])
def test_figures_2_4_and_5_show_means_and_ranges_of_the_errors(name, how, subsets, drawn):
    figures, runs = drawn
    redrawn, fixed = (vars(runs[how, pe][0]["config"]) for pe in ("stochastic", "fixed"))
    assert redrawn | {"pe": "fixed", "draws": 1} == fixed
    panels = {(50, 3), *((T, 3) for T in (62, 75, 87, 100)), *((50, q) for q in subsets)}
    for axis in filter(lambda axis: axis.get_visible(), figures[name].axes):
        shown = re.search(r"([Tq])_.*= (\d+)", axis.get_title()) or ["", "T", "50"]
        T, q = (int(shown[2]), 3) if shown[1] == "T" else (50, int(shown[2]))
        panels.remove((T, q))
        for pe, color, band in zip(("stochastic", "fixed"), (plots.STOCHASTIC, plots.FIXED),
                                   axis.collections):
            arm = runs[how, pe]
            column = arm[0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in arm])
            mean = line(axis, arm[0]["eval_step"], curves.mean(axis=0))
            assert mean.get_color() == color
            assert mean.get_label() == {"stochastic": "redrawn", "fixed": "fixed"}[pe]
            height = band.get_paths()[0].vertices[:, 1]
            assert {*height} == {*curves.min(axis=0), *curves.max(axis=0)}
        zero = np.mean([run["error"][0, column] for run in runs[how, "stochastic"]])
        assert line(axis, [0, 1], [zero, zero])
        if name != "2":         # one draw in a test; beyond/test_claims.py measures it otherwise
            redrawn = runs[how, "stochastic"]
            assert line(axis, [1.07 * redrawn[0]["eval_step"][-1]] * 3, [
                plots.single_draw_errors(run, [(T, q)])[0] for run in redrawn])
    assert not panels


def test_figure_3_shows_the_weights_before_and_after_training(drawn):
    figures, runs = drawn
    run = runs["full model",][0]                                # d = 3 and 25 encoding coordinates
    panels = [axis for axis in figures["3"].axes if axis.images]
    for axis in panels:
        name, when = axis.get_title().split()[:2]
        weights = {"before": train.start(run["config"]), "after": run}[when][name]
        np.testing.assert_array_equal(axis.images[0].get_array(), weights[:28, :28])
        assert ("query" if name == "W" else "key") in axis.get_xlabel()
    assert len(panels) == 4


def test_widths_shows_nets_and_attention_at_their_widths(drawn):
    figures, runs = drawn
    axis, = figures["widths"].axes
    assert "= 25 per token" in axis.texts[0].get_text()         # d + d_e
    expected = {"bound": [[m, fcn.width_lower_bound(m, 10, 5, 3)] for m in range(101)],
                "attention": [[5 + 20, run["error"][-1, 0]] for run in runs["attention",]]}
    for hidden in 1, 2:
        arms = [runs["net", m, hidden] for m in (5, 15, 25, 40, 50)]
        assert all(arm[0]["config"].schedule == "cosine" for arm in arms)
        expected[f"{hidden} hidden"] = [[run["config"].hidden[0], run["error"][-1, 0]]
                                        for arm in arms for run in arm]
    for label, points in expected.items():
        found, = [curve.get_xydata() for curve in axis.lines if label in curve.get_label()]
        allclose(sorted(found.tolist()), sorted(points))


def test_captions_say_what_the_runs_are(drawn):
    for name, key in {"1": "full model", "2": "gd", "4": "gd", "5": "adam"}.items():
        run = next(arm[0] for (first, *_), arm in drawn[1].items() if first == key)
        text, c = drawn[0][name].get_supxlabel(), run["config"]
        found = re.findall(r"\b(T|q|d|d_e|lr)\$?\s=\s(\d[\d.]*\d|\d)", text)
        assert len(found) == 5 and all(float(value) == vars(c)[label] for label, value in found)
        assert ("fresh" in text, "Adam" in text) == (c.fresh, c.optimizer == "adam")
        draws = re.findall(r"(\d+)\sdraws", plots.FIGURES[name][1] + text)
        assert {*draws} == ({str(c.draws), str(c.eval_draws)} if c.fresh else set())


@pytest.mark.parametrize("flags, expected", [
    ("", {"new/figure_3.png": "A claim", "new/mine.png": "Another"}),
    ("mine --format svg --out other", {"other/mine.svg": "Another"}),
    ("mine --quick", {"runs/quick/mine.png": "A small task (--quick)"})])
def test_plots_draws_what_is_named(flags, expected, command, monkeypatch):
    titles, draw = [], lambda runs: plt.figure()
    monkeypatch.setattr(plt, "close", lambda figure: titles.append(figure.get_suptitle()))
    figures = {"3": (draw, "A claim", {"one"}), "mine": (draw, "Another", {"two"})}
    arms = {("one",): SMALL, ("two",): SMALL, ("three",): None}
    (_, runs), *_ = command(flags, plots, figures, lambda quick: arms, Path("new"))
    assert titles == [*expected.values()]
    assert {str(path) for path in Path().rglob("*.*g")} == expected.keys()
    assert runs.keys() == ({("two",)} if flags else {("one",), ("two",)})


@pytest.mark.parametrize("settings, panels", [({"pe": "fixed"}, 3), ({"pe": "stochastic"}, 3),
                                              ({"attend_to_query": True}, 3),
                                              ({"model": "fcn", "pe": "stochastic"}, 2)])
def test_plots_draws_a_run(settings, panels, command, monkeypatch):
    run, figures = train.train(**SMALL | settings), []
    train.save(run, "mine.npz")
    monkeypatch.setattr(plt, "close", figures.append)
    (names, _), *_ = command("--run mine.npz --format svg --out new", plots)
    assert Path("new/mine.svg").exists() and len(figures) == 1 and names == []
    loss, error, *attention = figures[0].axes
    assert len(figures[0].axes) == panels and line(loss, np.arange(12), run["loss"])
    same_q = run["tests"][:, 1] == run["config"].q
    for (T, _), values in zip(run["tests"][same_q], run["error"].T[same_q]):
        assert line(error, run["eval_step"], values).get_label() == f"T = {T}"
    assert len(error.lines) == same_q.sum() + 1                     # and the zero predictor's
    for axis in attention:
        c = run["config"]
        X, y = sts.sample_sts(train.stream(c, "tests", 0, 0), 1, c.T, c.d, c.q, np.float32)
        E = train.encodings(run, c.T, c.eval_draws, "tests", 0, 1)[:1]
        cache = sts.forward(run["W"], run["V"], X, y, E[0], c.attend_to_query, c.query)[1]
        allclose([bar.get_height() for bar in axis.patches], cache[3][0], rtol=1e-6)
        blue = [j for j, bar in enumerate(axis.patches)
                if bar.get_facecolor() == matplotlib.colors.to_rgba(plots.STOCHASTIC)]
        assert blue == sorted(y[0])


def test_runs_are_trained_unless_kept(command, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "HERE", tmp_path)
    program, kept = [Path(name) for name in ("sts.py", "fcn.py", "train.py")], Path("kept")

    def losses(**changed):
        """The losses of three runs, which are kept with losses of 0 afterwards."""
        runs = plots.trained({("one",): SMALL | changed}, kept, 2)["one",]
        for path in kept.iterdir():
            train.save(runs[0] | {"loss": np.zeros(12)}, path)
        return np.array([run["loss"] for run in runs])

    for path in program:
        path.touch()
    allclose(losses(), [train.train(**SMALL, seed=seed)["loss"] for seed in (0, 1, 2)], rtol=0)
    assert not losses().any() and losses(lr=0.25).all() and losses(pe="onehot").all()
    for path in program:
        path.write_text("changed")
        assert losses().all() and not losses().any()


@pytest.mark.parametrize("to, how", [("child", signal.SIGKILL), ("group", signal.SIGINT)])
def test_a_stopped_program_ends_in_one_line_and_its_processes_with_it(to, how, tmp_path):
    Path(tmp_path, "stop.py").write_text("""import os, pathlib, time
import plots, train
def wait(c):                                        # instead of training
    pathlib.Path(f"{os.getpid()}.pid").touch()
    time.sleep(100)
train.start = wait
if __name__ == "__main__":
    train.RUNS = pathlib.Path("runs")
    plots.main({"1": (None, "", {"one"})}, lambda quick: {("one",): {}}, pathlib.Path("new"))""")
    program = subprocess.Popen([sys.executable, "stop.py", "--jobs", "1"], cwd=tmp_path, text=True,
                               stderr=subprocess.PIPE, start_new_session=True,
                               env=os.environ | {"PYTHONPATH": str(HERE)})
    while program.poll() is None and not list(tmp_path.glob("*.pid")):
        time.sleep(0.05)
    child, = tmp_path.glob("*.pid")
    os.kill(int(child.stem), how) if to == "child" else os.killpg(program.pid, how)
    err = program.communicate(timeout=20)[1]        # returns when no process has err open
    assert program.returncode == 1 and len(err.strip().splitlines()) == 1
