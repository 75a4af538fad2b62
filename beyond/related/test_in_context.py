"""Tests of in_context.py: `python -m pytest beyond/related/test_in_context.py`."""

import re

import numpy as np
import pytest

import in_context as ic

TINY = 1e-30j                                                           # for the complex step


def arrays():
    """A (3, 4, 4), h (3, 4) and prompts X (6, 5, 3), y (6, 5), x (6, 3), t (6,), all Gaussian."""
    normal = np.random.default_rng(0).standard_normal
    return [normal(shape) for shape in ((3, 4, 4), (3, 4), (6, 5, 3), (6, 5), (6, 3), 6)]


def loss(w, X, y, x, t):
    """L of one run by its definition; w is A and below it h."""
    Z, z = np.dstack([X, y]), np.column_stack([x, 0 * t])
    f = np.einsum("bi,ij,bnj,bnk,k->b", z, w[:-1], Z, Z, w[-1]) / y.shape[1]
    return ((f - t) ** 2).mean()


def test_training_follows_the_slopes_of_the_loss_and_the_last_run_keeps_its_A(monkeypatch):
    A, h, *prompts = arrays()
    w, dw = (np.concatenate([M, m[:, None]], axis=1)
             for M, m in ((A, h), ic.gradients(A, h, *prompts)))
    entries = TINY * np.eye(20).reshape(20, 5, 4)
    for r in range(3):
        slopes = [loss(w[r] + entry, *prompts).imag / 1e-30 for entry in entries]
        np.testing.assert_allclose(dw[r].ravel(), slopes, atol=1e-12)
    monkeypatch.setattr(ic, "sample", lambda *_: prompts)
    A_1, h_1 = ic.train(A, h, None, steps=1, eta=0.1)
    np.testing.assert_allclose(h_1 - h, -0.1 * np.sign(dw[:, -1]), atol=1e-6)   # Adam's first step
    np.testing.assert_allclose((A_1 - A)[:2], -0.1 * np.sign(dw[:2, :-1]), atol=1e-6)
    assert (A_1[2] == A[2]).all()


def test_attention_is_a_step_of_descent_and_a_rest_blind_to_the_sign_of_y():
    A, h, X, y, x, _ = arrays()
    W = ic.preconditioner(A, h)
    u = [-((X[0] @ b - y[0]) ** 2).mean().imag / 2e-30 for b in TINY * np.eye(3)]
    assert ic.step(W[1], X, y, x)[0] == pytest.approx(x[0] @ W[1] @ u, rel=1e-12)
    odd = (ic.attention(A, h, X, y, x)[0] - ic.attention(A, h, X, -y, x)[0]) / 2
    np.testing.assert_allclose(odd[:, 1], ic.step(W[1], X, y, x), atol=1e-12)


def test_the_risk_is_that_of_samples_with_one_task_in_each_and_least_for_the_best():
    W, move = np.random.default_rng(0).standard_normal((2, 5, 5)) / 3
    X, y, x, t = ic.sample(np.random.default_rng(1), 100_000)
    assert x[7] @ np.linalg.lstsq(X[7], y[7], rcond=None)[0] == pytest.approx(t[7], rel=1e-9)
    np.testing.assert_allclose(X.var(axis=(0, 1)), ic.LAM, rtol=0.01)
    errors = (ic.step(W, X, y, x) - t) ** 2
    assert abs(errors.mean() - ic.risk(W)) < 4 * errors.std() / 1e5 ** 0.5 < 0.03 * errors.mean()
    for W, move in ((ic.BEST, move), (ic.MULTIPLE, np.eye(5))):
        assert abs(ic.risk(W + TINY * move).imag) < 1e-43


def test_the_headline(capsys):
    ic.demo()
    out = capsys.readouterr().out
    (found, _, most, _), (stuck, least, _, e), _ = np.array(
        re.findall(r"(\d+) (?:trained|A).* (\S+) to (\S+) +(\S+) ", out), float)
    assert found + stuck == 20 and 5 <= found <= 15 and most < 0.003 and 2 < least and 1 < e < 1.2
    expected, multiple, error = map(float, *re.findall(r"be (\S+), and is (\S+) .. (\S+)\.\n", out))
    assert 0.82 < expected < 0.823 and abs(multiple - expected) < 4 * error < 0.06
    A, h = ic.experiment()
    share = A[:, 0, -1] * h[:, 0] / ic.preconditioner(A, h)[:, 0, 0]    # of a g^T in W_00
    *_, kinds = ic.measure(A, h, 200)
    assert share[kinds["trained"]].max() < 0.01 and share[kinds["trained, stuck"]].min() > 0.9
