"""Tests of two_numbers.py:  python -m pytest beyond/test_two_numbers.py"""

import importlib
import itertools
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from two_numbers import count_steps, descend, multiples

import plots
import sts
import train

HERE = Path(__file__).resolve().parent


def all_sequences(T, d, q):
    """All subsets, each with X = +- sqrt(T d) times every unit matrix: X (n, T, d), y (n, q).

    Up to the third power their moments are those of i.i.d. N(0, 1) tokens.  Where logits do not
    depend on X and V_e = 0, f is linear in X.  So the means of L, dW and dV are exact.
    """
    units = math.sqrt(T * d) * np.eye(T * d).reshape(T * d, T, d)
    X, y = np.concatenate([units, -units]), np.array(list(itertools.combinations(range(T), q)))
    return np.tile(X, (len(y), 1, 1)), np.repeat(y, len(X), axis=0)


def all_encodings(law, T, d_e):
    """All E that a law of stochastic encodings can draw (number, T, d_e)."""
    if law == "rademacher":
        signs = np.array(list(itertools.product((-1, 1), repeat=T * d_e)))
        return signs.reshape(-1, T, d_e) / math.sqrt(d_e)
    return np.array([np.eye(d_e)[list(order)] * np.array(signs)[:, None]
                     for order in itertools.permutations(range(d_e), T)
                     for signs in itertools.product((-1, 1), repeat=T)])


def follow(path, E, d, q, lr, directions, inside=True, **model):
    """Gradient descent from zero on all entries of W and V has to go along path (L, numbers of W,
    alpha), where W is a sum of numbers times directions, and V = alpha V*.

    The mean over the encodings E (number, T, d_e) is inside or outside the loss.  Returns W, V at
    the end of the path.
    """
    X, y = all_sequences(E.shape[1], d, q)
    V_star = np.eye(d, d + E.shape[2])
    W, V = np.zeros_like(directions[0]), np.zeros_like(V_star)
    for t, (L_exact, *numbers, alpha) in enumerate(path.T):
        parts = [sts.loss_and_grads(W, V, X, y, e, **model) for e in ([E] if inside else E)]
        L, dW, dV = (sum(part) / len(parts) for part in zip(*parts))
        assert math.isclose(L, L_exact, rel_tol=1e-12)
        np.testing.assert_allclose(W, sum(x * D for x, D in zip(numbers, directions)), atol=1e-12)
        np.testing.assert_allclose(V, alpha * V_star, atol=1e-12)
        if t < path.shape[1] - 1:
            W, V = W - lr * dW, V - lr * dV
    assert path[0, -1] < 0.7 * path[0, 0] and path[1, -1] > 0.3      # it has learnt
    return W, V


def test_one_hot_descent_is_two_numbers():
    T, d, q, lr = 6, 2, 3, 0.5
    path = descend(lr, 100, T - 1, T, d, q)
    follow(path, np.eye(T)[None], d, q, lr, [sts.ground_truth(d, T, T)[0]])


@pytest.mark.parametrize("inside", (True, False))
def test_orthonormal_descent_is_two_numbers(inside):
    T, d_e, d, q, lr = 3, 4, 2, 2, 3.0
    path = descend(lr, 20, d_e, T, d, q)
    follow(path, all_encodings("orthonormal", T, d_e), d, q, lr, [sts.ground_truth(d, d_e)[0]],
           inside)


def test_on_fixed_sequences_stochastic_encodings_leave_1_plus_d_squared_numbers():
    """W = a W*, V = [V_x, 0]: so there is little that could memorize."""
    rng, T, d_e, d, q = np.random.default_rng(0), 3, 4, 2, 2
    (X, y), (W, V) = sts.sample_sts(rng, 4, T, d, q), map(np.zeros_like, sts.ground_truth(d, d_e))
    E = all_encodings("orthonormal", T, d_e)
    for _ in range(5):
        _, dW, dV = (sum(part) / len(E) for part in zip(*[
            sts.loss_and_grads(W, V, X, y, e) for e in E]))
        W, V = W - dW, V - dV
    np.testing.assert_allclose(W, W[d, d] * sts.ground_truth(d, d_e)[0], rtol=0, atol=1e-13)
    assert abs(V[:, d:]).max() < 1e-13 and abs(W[d, d]) > 1e-4 and abs(V[0, 1] - V[1, 0]) > 0.01


def test_steps_are_counted_to_the_first_loss_below():
    steps = count_steps(0.003, 20, 5, 3, 1.0, 19)           # more than the 1000 it tries at first
    L, _, _ = descend(1.0, steps, 19, 20, 5, 3)
    assert L[-1] <= 0.003 * 5 / 6 < L[-2] and steps > 1000


@pytest.mark.parametrize("lr, steps, settings", (
    (0.5, 500, {"pe": "onehot"}), (1.0, 250, {"law": "orthonormal", "d_e": 16})))
def test_train_py_follows_the_recursion(lr, steps, settings):
    """W, V and the last losses of a run on fresh batches are within a few per cent."""
    T, d, q = 8, 3, 3
    run = train.train(T=T, d=d, q=q, lr=lr, steps=steps, fresh=True, evaluations=1,
                      eval_sequences=2, T_test=[], q_test=[], **settings)
    L, *numbers = descend(lr, steps, settings.get("d_e", T - 1), T, d, q)
    assert L[-1] < 0.5 * L[0]
    np.testing.assert_allclose(multiples(run), [path[-1] for path in numbers], rtol=0.05)
    assert math.isclose(run["loss"][-100:].mean(), L[-100:].mean(), rel_tol=0.1)


def run_alone(folder, *names):
    """What the first of these files prints, copied into a folder where there is NumPy only."""
    for name in names:
        shutil.copy(HERE / name, folder)
    (folder / "matplotlib.py").write_text("raise ImportError")
    done = subprocess.run([sys.executable, "-Es", names[0]], cwd=folder, capture_output=True,
                          text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def exact_rows(file, monkeypatch, capsys, exact_run, change=lambda arm: arm):
    """What file.figure() prints, and its figure, if exact_run(settings) stands for training."""
    monkeypatch.setattr(plots, "trained", lambda arms, seeds=plots.SEEDS, **_: {
        name: [exact_run(train.Settings(**change(arm) | {"seed": seed})) for seed in seeds]
        for name, arm in arms.items()})
    canvas = file.figure()
    return capsys.readouterr().out.splitlines(), canvas


@pytest.mark.parametrize("file", ("two_numbers", "plateau", "fixed", "full_model", "data", "width"))
def test_the_flags_of_each_arm_give_back_its_settings(file, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(train, "start", lambda c: started.append(c) or sys.exit())
    for arm in importlib.import_module(file).ARMS.values():
        monkeypatch.setattr(sys, "argv", plots.command(tmp_path / "none.npz", arm))
        pytest.raises(SystemExit, train.main)
        assert started.pop() == train.Settings(**arm)


def test_the_file_runs_alone_and_its_late_rate_tends_to_the_derived_one(tmp_path):
    out = run_alone(tmp_path, "two_numbers.py")
    rate = re.search(r"^ +100000 .* (\S+)$", out, re.MULTILINE)[1]
    assert math.isclose(float(rate), 1, abs_tol=0.01) and "353007 steps" in out


@pytest.mark.parametrize("words", (["--picture"], ["a.png", "b.png"]))
def test_what_is_no_picture_and_a_second_picture_are_refused_in_one_line(words):
    done = subprocess.run([sys.executable, HERE / "two_numbers.py", *words], capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert words[-1] in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
