"""What the tests of beyond/ share.  NumPy gets one thread in all of them: matrices are small."""

import os

for name in "OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM":
    os.environ[f"{name}_THREADS"] = "1"

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import common       # it finds the files of the folder above
import matplotlib.pyplot as plt
import numpy as np
import pytest

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


def run_alone(folder, *names):
    """What the first of these files prints, copied into a folder where there is NumPy only."""
    for name in ("common.py", *names):
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


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    """Figures that a test has made are closed after it."""
    yield
    plt.close("all")
