"""Tests of fixed.py:  python -m pytest beyond/test_fixed.py"""

import math

import numpy as np
import pytest

import fixed
from fixed import all_subsets
from conftest import all_encodings, all_sequences, exact_rows, run_alone
from two_numbers import descend

import plots
import sts
import train


@pytest.mark.parametrize("d_e, q", ((9, 3), (4, 2), (3, 1)))       # 6 trained encodings: S singular
def test_gradient_descent_on_all_weights_is_that_on_C_and_alpha(d_e, q):
    """With Gaussian encodings of any length, and all subsets.  At lr 0.7 rounding errors grow."""
    T, d, lr = 6, 2, 0.2
    E, (X, y) = np.random.default_rng(1).standard_normal((T, d_e)) * 0.7, all_sequences(T, d, q)
    W, V, C, alpha = np.zeros((d + d_e, d + d_e)), np.zeros((d, d + d_e)), np.zeros((T, T)), 0.0
    for _ in range(200):
        L, dW, dV = sts.loss_and_grads(W, V, X, y, E)
        W, V = W - lr * dW, V - lr * dV
        C, alpha = fixed.step(E @ E.T, C, alpha, d, lr, all_subsets(T, q))
    exact = np.pad(E.T @ C @ E, ((d, 0), (d, 0)))
    np.testing.assert_allclose(W, exact, rtol=0, atol=1e-12 * abs(exact).max())
    np.testing.assert_allclose(V, alpha * np.eye(d, d + d_e), rtol=0, atol=1e-12)
    assert L < 0.65 * d / (2 * q)                                   # it has learnt


def test_one_hot_encodings_have_two_numbers():
    T, d, q, lr = 7, 3, 3, 0.5
    *_, (t, C, alpha) = fixed.descend(np.eye(T), T, d, q, lr, 100)
    L, a, alpha_exact = descend(lr, 100, T - 1, T, d, q)[:, -1]
    np.testing.assert_allclose(C, a * (np.eye(T) - 1 / T), rtol=0, atol=1e-12)
    assert math.isclose(alpha, alpha_exact, rel_tol=1e-12) and a > 0.5 and t == 100
    Y = all_subsets(T, q)
    assert math.isclose(fixed.slopes(fixed.attention(C, Y), alpha, d, Y)[0], L, rel_tol=1e-12)


def test_a_pace_of_many_is_many_steps_of_alpha_and_one_long_step_of_C():
    rng, T, d, Y = np.random.default_rng(0), 7, 3, all_subsets(7, 2)
    S, C = rng.standard_normal((2, T, T))
    far, alpha_far = fixed.step(S, C, 0.4, d, 0.1, Y, pace=5)
    near, alpha = fixed.step(S, C, 0.4, d, 0.1, Y)
    np.testing.assert_allclose(far - C, 5 * (near - C), rtol=1e-12, atol=1e-15)
    for _ in range(4):
        _, alpha = fixed.step(S, C, alpha, d, 0.1, Y)
    assert math.isclose(alpha, alpha_far, rel_tol=1e-12)
    assert [t for t, _, _ in fixed.descend(np.eye(7), 7, d, 2, 0.1, 20, rng, pace=5)] == [5, 10,
                                                                                          15, 20]


@pytest.mark.parametrize("T, q", ((7, 3), (8, 2), (5, 5)))
def test_subsets_are_uniform_and_some_are_disjoint(T, q):
    Y, k = fixed.subsets(np.random.default_rng(0), 30_000, T, q), T // q
    assert (Y.sum(axis=1) == q).all() and 30_000 <= len(Y) < 30_000 + k
    assert Y.reshape(-1, k, T).sum(axis=1).max() == 1
    pairs, all_pairs = Y.T @ Y / len(Y), all_subsets(T, q).T @ all_subsets(T, q)
    np.testing.assert_allclose(pairs, all_pairs / math.comb(T, q),      # five standard errors
                               atol=5 * 0.5 / math.sqrt(30_000 / k))


def test_the_error_is_the_loss_of_the_model_at_other_lengths_and_sizes():
    """A random C; at a shorter length, and at longer ones, where positions are new."""
    rng, T, d, d_e, alpha = np.random.default_rng(0), 5, 2, 4, 1.3
    E, C = rng.standard_normal((7, d_e)), rng.standard_normal((T, T))
    W, V = np.pad(E[:T].T @ C @ E[:T], ((d, 0), (d, 0))), alpha * np.eye(d, d + d_e)
    for T_test, q_test in (4, 2), (5, 1), (6, 3), (7, 2):
        exact = sts.loss(W, V, *all_sequences(T_test, d, q_test), E[:T_test]) * 2 * q_test / d
        found = fixed.error(E, T, C, alpha, all_subsets(T_test, q_test))
        assert math.isclose(found, exact, rel_tol=1e-12)


@pytest.mark.parametrize("T, d_e", ((3, 2), (2, 4)))
def test_the_first_step_gives_new_positions_this_share_of_a_logit(T, d_e):
    """From C = 0, for all random signs; and trained ones (T + d_e - 1)/T of stochastic ones."""
    shares, blocks, Y = [], [], all_subsets(T, 1)
    for E in all_encodings("rademacher", T + 1, d_e):
        C, _ = fixed.step(E[:T] @ E[:T].T, np.zeros((T, T)), 1.0, 2, 1.0, Y)
        blocks.append(E[:T].T @ C @ E[:T])
        shares.append((E @ blocks[-1] * E).sum(axis=1))
    *trained, new = np.mean(shares, axis=0)
    share = fixed.new_position_share(T, d_e)
    assert math.isclose(new / np.mean(trained), share, rel_tol=1e-12)
    np.testing.assert_allclose(np.mean(blocks, axis=0), new * np.eye(d_e), atol=1e-12)   # e.e = 1


def test_the_late_block_is_the_least_and_its_multipliers_give_what_other_sizes_keep():
    """C* and N, for q = 3; and D at loss near 0, with the ties of kept_error, is along C*."""
    rng, T, q, Y = np.random.default_rng(0), 7, 3, all_subsets(7, 3)
    E = rng.choice([-1, 1], (T, 30)) / math.sqrt(30)
    S, (C, M) = E @ E.T, fixed.late_block(E @ E.T)
    np.testing.assert_allclose(S @ C @ S, M, atol=1e-12)
    np.testing.assert_allclose(M @ Y[5] - Y[5], (M @ Y[5] - Y[5])[0], atol=1e-12)    # lead 1
    assert fixed.late_norm(S) == pytest.approx(((E.T @ C @ E) ** 2).sum())
    np.testing.assert_allclose(C.sum(axis=0), 0, atol=1e-12)     # least: <C*, 1 v^T> = 0 for all v
    mu, x = fixed.multipliers(S, q), np.ones(T)
    assert mu.min() > 0 and mu.sum() == pytest.approx(fixed.late_norm(S))
    for _ in range(50):
        x = (x.mean() + np.sqrt(x.mean() ** 2 + 4 * T * mu)) / (2 * T)
    a, x = 12.0, x / x.max()
    M = np.diag(a - np.log(x)) + np.log(x)[:, None] / q         # leads a - ln x, equal if selected
    P = fixed.attention(M, Y)
    alpha = (P * Y).sum() / (q * (P * P).sum())
    _, D, _ = fixed.slopes(P, alpha, 1, Y)
    found = np.diag(D) - D.sum(axis=1) / q
    np.testing.assert_allclose(found / found.sum(), mu / mu.sum(), rtol=1e-3)
    kept = fixed.kept_error(S, q, all_subsets(T, 5))
    assert fixed.error(np.eye(T), T, M, alpha, all_subsets(T, 5)) == pytest.approx(kept, rel=1e-3)


def test_a_run_of_train_py_has_the_errors_of_the_recursion():
    """At its own length, at twice the length and at another size; and the new positions' logit."""
    run = train.train(T=12, d=3, q=2, d_e=16, pe="fixed", lr=1.0, steps=600, fresh=True, batch=512,
                      evaluations=1, eval_sequences=8000, T_test=[24], q_test=[4])
    rng, c, E = np.random.default_rng(0), run["config"], run["E"]
    *_, (t, C, alpha) = fixed.descend(E, c.T, c.d, c.q, c.lr, c.steps, rng)
    exact = [fixed.error(E, c.T, C, alpha, fixed.subsets(rng, 8000, *test))
             for test in run["tests"].tolist()]
    np.testing.assert_allclose(run["error"][-1] * 2 * run["tests"][:, 1] / c.d, exact, rtol=0.1)
    assert t == c.steps and exact[0] < 0.5
    B = E[:12].T @ C @ E[:12]
    ratio = fixed.new_over_trained(E, 12, B)
    assert fixed.new_over_trained(E, 12, run["W"][3:, 3:]) == pytest.approx(ratio, rel=0.05)


def test_the_attention_ratio_is_that_of_new_positions_over_trained_ones():
    """With one-hot encodings, q = 1, and a logit of 3 at trained positions, of 1 at new ones."""
    run = train.start(train.Settings(T=4, d=2, q=1, pe="onehot", d_e=8, T_test=[8], q_test=[],
                                     steps=1, evaluations=1, eval_sequences=200))
    run["W"][2:, 2:] = np.diag([3.0] * 4 + [1.0] * 4)
    expected = math.e / (math.e + 7) / (math.e ** 3 / (math.e ** 3 + 7))
    assert fixed.attention_ratio(run, 8) == pytest.approx(expected, rel=1e-5)
    assert fixed.new_over_trained(run["E"], 4, run["W"][2:, 2:]) == pytest.approx(1 / 3, rel=1e-5)


def test_runs_that_follow_the_recursion_lie_on_the_lines(monkeypatch, capsys):
    """Three times each, as for three seeds; Figure 2's, too, with 48 steps of pace 16."""
    def exact_run(c):
        rng, tests = np.random.default_rng(1), [(c.T, c.q)] + [(T, c.q) for T in c.T_test] + [
            (c.T, q) for q in c.q_test if q != c.q]
        E = sts.positional_encoding("rademacher", 2 * c.T, c.d_e, rng)
        n, pace = (1024, 16) if c.T == 200 else (256, 1)
        *_, (t, C, alpha) = fixed.descend(E, c.T, c.d, c.q, c.lr, c.steps, rng, n, pace)
        W, V = sts.ground_truth(c.d, c.d_e)
        W[c.d:, c.d:] = E[:c.T].T @ C @ E[:c.T]
        ends = [fixed.error(E, c.T, C, alpha, fixed.subsets(rng, 4000, T, q)) * c.d / (2 * q)
                for T, q in tests]
        return {"config": c, "E": E, "W": W, "V": alpha * V, "eval_step": np.array([0, t]),
                "tests": np.array(tests), "error": np.array([np.ones(len(ends)), ends])}
    quick = {"gd fixed": plots.GD["gd fixed"] | {"lr": 20.0, "steps": 768}}
    monkeypatch.setattr(plots, "GD", quick)
    rows, _ = exact_rows(fixed, monkeypatch, capsys, exact_run, lambda arm: arm | (
        {"steps": 100, "lr": 3.0} if arm.get("T") == 50 else {}))
    ratios = [text for text in rows if "/ the recursion's" in text]
    assert len(ratios) == 7
    for text in ratios:
        mean, low, _, high = text[66:].replace("(", " ").replace(")", " ").split()
        assert 0.9 < float(mean) < 1.1 and 0.8 < float(low) < float(high) < 1.2


def test_the_file_runs_alone(tmp_path):
    rows = [line.split() for line in run_alone(tmp_path, "fixed.py").splitlines()]
    at_2T = {line[0]: float(line[3]) for line in rows[4:7]}
    assert at_2T["250"] < 0.25 and 0.4 < at_2T["500"] < at_2T["1000"] < 0.6
    growth = [float(line[-1]) for line in rows[-4:-1]]
    assert 0.3 < growth[0] < 0.8 and growth == sorted(growth) and growth[-1] > 0.98
    ends = np.array(rows[-2:], dtype=object)[:, 2:4].astype(float)
    np.testing.assert_allclose(*ends, rtol=0.45)
