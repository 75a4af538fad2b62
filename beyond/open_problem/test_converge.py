"""Tests of the theorems and of converge.py:  python -m pytest beyond/open_problem

Each test states a fact.  What is proved is checked on small cases, exactly where it can be.
"""

import converge     # first: it finds common.py, which gives NumPy one thread

import math
import re

import numpy as np
import pytest

import fixed
from converge import STUCK, curvature, flow
from fixed import all_subsets, attention, late_block, late_norm


def ties(T, q):
    """Lambda, as a matrix on entries of X: selected logits minus their mean, in every subset."""
    return np.array([np.outer(np.eye(T)[j] - y / q, y).ravel()
                     for y in all_subsets(T, q) for j in np.flatnonzero(y)])


def tied(m, b, q):
    """The M of Lemma T, with ties and leads m."""
    return np.diag(m) - m[:, None] / q + b


def near_orthonormal(rng, T, spread):
    E = np.eye(T) + spread * rng.standard_normal((T, T))
    return E @ E.T


@pytest.mark.parametrize("T, q", ((3, 2), (6, 2), (4, 3), (6, 3), (7, 5), (7, 6), (8, 4)))
def test_ties_leave_2_T_numbers_and_a_least_singular_value(T, q):
    """Lemma T, (i) for q >= 3: the kernel is M's form; and (ii)."""
    squares = np.linalg.eigvalsh(ties(T, q).T @ ties(T, q))
    zero = squares < 1e-9 * squares[-1]
    assert zero.sum() == (2 * T if q > 2 else T * (T + 1) // 2)
    least = (T - 1) * math.comb(T - 4, q - 3) / q if q > 2 else 1.0
    assert squares[~zero][0] == pytest.approx(least) and least >= 1
    if q > 2:
        rng, Y = np.random.default_rng(0), all_subsets(T, q)
        X = tied(m := rng.standard_normal(T), rng.standard_normal(T), q)
        assert abs(ties(T, q) @ X.ravel()).max() < 1e-12
        lead = (Y * (Y @ X.T)).sum(axis=1)[:, None] / q - Y @ X.T
        np.testing.assert_allclose(lead[Y == 0], np.broadcast_to(m, Y.shape)[Y == 0], atol=1e-12)


def test_the_least_norm_is_that_of_a_block_and_needs_the_multipliers():
    """m . Phi m is the least over b; N^ is the least over m >= 1, and N if no multiplier is < 0."""
    rng, T, q, equal = np.random.default_rng(0), 5, 3, []
    for spread in (0.1, 0.2, 0.3) * 2 + (0.8,) * 20:
        S = near_orthonormal(rng, T, spread)
        G, F = np.linalg.inv(S), np.eye(T) - 1 / q
        mu, N, Y = fixed.multipliers(S, q), late_norm(S), all_subsets(T, q)
        Phi = (G - np.outer(G.sum(axis=0), G.sum(axis=0)) / G.sum()) * (F @ G @ F)
        np.testing.assert_allclose(Phi.sum(axis=1), mu, atol=1e-9 * abs(mu).max())
        assert mu.sum() == pytest.approx(N)
        root = np.linalg.cholesky(G)                                    # |X|_S = |root^T X root|
        m = 1 + rng.exponential(1, T)
        units = np.array([(root.T @ tied(np.zeros(T), b, q) @ root).ravel() for b in np.eye(T)])
        own = (root.T @ tied(m, np.zeros(T), q) @ root).ravel()
        b = np.linalg.lstsq(units.T, -own, rcond=None)[0]
        assert m @ Phi @ m == pytest.approx(((own + b @ units) ** 2).sum())
        for k in list(range(T)) * 3000:
            m[k] = max(1.0, m[k] - Phi[k] @ m / Phi[k, k])
        bad, least = converge.margin(Y / q, 1.0, S, Y)
        assert len(bad) == 0 and least == pytest.approx(m @ Phi @ m, rel=1e-6)
        equal.append((mu.min() >= 0, math.isclose(least, N, rel_tol=1e-6)))
    assert all(a == b for a, b in equal) and {a for a, _ in equal} == {True, False}


def test_the_curvature_is_the_change_of_the_slopes():
    rng, T, d, Y = np.random.default_rng(0), 4, 3.0, all_subsets(4, 2)

    def slope(x):
        _, dM, dalpha = fixed.slopes(attention(x[:-1].reshape(T, T), Y), x[-1], d, Y)
        return np.append(dM, dalpha)
    x = np.append(rng.standard_normal(T * T), 0.7)
    H = np.array([slope(x + e) - slope(x - e) for e in 1e-5 * np.eye(len(x))]) / 2e-5
    exact = curvature(attention(x[:-1].reshape(T, T), Y), x[-1], d, Y)
    np.testing.assert_allclose(exact, H, atol=1e-9)


def test_the_flow_is_that_of_small_steps():
    """At three times, to a few parts in ten thousand; q = 2."""
    T, q, d, lr, S = 4, 2, 3.0, 0.002, near_orthonormal(np.random.default_rng(0), 4, 0.3)
    for end in 1, 4, 20:
        *_, (t, M, alpha, L) = flow(S, d, q, end)
        *_, (_, C, beta) = fixed.descend(np.linalg.cholesky(S), T, d, q, lr, round(end / lr))
        assert t == end
        np.testing.assert_allclose(M, S @ C @ S, atol=0.003 * abs(M).max())
        assert alpha == pytest.approx(beta, rel=0.003)
        exact = fixed.slopes(attention(M, all_subsets(T, q)), alpha, d, all_subsets(T, q))[0]
        assert exact == pytest.approx(L) and L < d / (2 * q)
    assert L < 0.2 * d / (2 * q)


@pytest.mark.parametrize("E, q, ratio", (
    (np.random.default_rng(16).standard_normal((5, 5)), 3, 0.464),
    (np.linalg.cholesky(1.5 * np.eye(5) + 2), 2, None), (np.diag([1, 1.1, 1.2, 1.3]), 1, None)))
def test_t_L_tends_to_a_quarter_of_the_least_norm(E, q, ratio):
    """From zero; the least norm is N itself in the last two cases, near x I + z 1 1^T."""
    S, N, Y = E @ E.T, late_norm(E @ E.T), all_subsets(len(E), q)
    least = converge.margin(Y / q, 1.0, S, Y)[1]
    assert least / N == pytest.approx(ratio or 1, abs=0.001)
    *_, (t, M, alpha, L) = flow(S, 5, q, 1e6 * N, tolerance=1e-3)
    assert 4 * t * L == pytest.approx(least, rel=0.005) and alpha == pytest.approx(1, abs=0.001)


def test_at_rank_T_minus_1_the_normal_vector_decides():
    """Where it allows it, the proof's M is of the form E B E^T, and 40 M has no error."""
    rng, T, q, answers, Y = np.random.default_rng(0), 6, 3, [], all_subsets(6, 3)
    for _ in range(40):
        nu = rng.uniform(-0.2, 1, T) * rng.choice([-1, 1])
        E = np.linalg.svd(nu[None])[2][1:].T @ rng.standard_normal((T - 1, T - 1))
        up = nu * np.sign(nu.sum())
        m = 1 / (up.sum() / q - up)
        X, inverse = tied(m, (m @ up / q - m * up) / up.sum(), q), np.linalg.pinv(E)
        np.testing.assert_allclose(E @ inverse @ X @ inverse.T @ E.T, X, atol=1e-8 * abs(X).max())
        answers.append(converge.can_vanish(E, q))
        assert (m.min() > 0) == answers[-1]
        if answers[-1]:
            assert abs(attention(X * 40 / m.min(), Y) - Y / q).max() < 1e-6
    assert set(answers) == {True, False}


def test_rank_T_can_vanish_and_lower_ranks_keep_an_error():
    """0.10717, 0.20183 and 0.4 are the least known, over all M of such a rank."""
    rng, T, q = np.random.default_rng(0), 6, 3
    assert converge.can_vanish(rng.standard_normal((T, T)), q)
    assert not converge.can_vanish(np.eye(T)[:, 1:], q)                 # one encoding is 0
    assert converge.can_vanish(centred := np.eye(T) - 1 / T, q)         # nu = 1
    assert not converge.can_vanish(centred @ rng.standard_normal((T, T - 2)), q)
    assert converge.flow_end(centred, 5, q, 1e5)[0] < 1e-4
    for r, least in (T - 2, 0.10717), (T - 3, 0.20183), (1, 0.39999):
        assert converge.flow_end(rng.standard_normal((T, r)), 5, q, 1e5)[0] > least


@pytest.mark.parametrize("k, wrong, error, alpha, P, margin", (
    (0, 1, 1 / 4, 3 / 4, (1, 0, 0), 3),
    (1, 1, 11 / 102, 16 / 17, (0, 5 / 32, 11 / 16, 5 / 32), 28 / 15),
    (2, 0, 5 / 9, 2 / 3, (0, 1, 0), 1.90099),
    (3, 2, 1 / 11, 10 / 11, (1, 0, 0, 0, 0), 7 / 3),
    (4, 2, 0.08726, 0.95517, (0.4642, 0.4507, 0.0284, 0.0284, 0, 0.0284), 1.85652),
    (5, 1, 13 / 45, 8 / 9, (0, 0, 1 / 2, 1 / 2, 0), 2.08160)))
def test_where_the_examples_stick_though_their_loss_could_vanish(k, wrong, error, alpha, P, margin):
    """Attention on the worst subset.  In Example 5 residuals are not equal."""
    (E, q), T = STUCK[k], len(STUCK[k][0])
    S, Y = E @ E.T, all_subsets(T, q)
    assert fixed.error(E, T, 40 * late_block(S)[0], 1.0, Y) < 1e-20
    *_, (_, M, found, L) = flow(S, 5, q, 1e8, 0.003)
    assert L * 2 * q / 5 == pytest.approx(error, abs=1e-5) and abs(found - alpha) < 1e-4
    np.testing.assert_allclose(attention(M, Y)[wrong], P, atol=1e-3)
    assert converge.end_margin(E, q, attention(M, Y), found) == pytest.approx(margin, rel=1e-5)


def test_half_of_the_examples_stick_even_if_they_are_short():
    """Short encodings train as at a small d: alpha is then at its best for M at any time."""
    for d, stick in (5e3, {0, 1, 2, 3, 4, 5}), (5e-4, {1, 4, 5}), (5e-8, {1, 4, 5}):
        assert stick == {k for k, (E, q) in enumerate(STUCK)
                         if converge.flow_end(E, d, q, 1e7 / d)[0] > 0.08}


def test_flows_leave_an_end_with_bad_leads_on_both_sides_of_1():
    """That of Example 1, with another third encoding; starts are near it."""
    rng, S, Y = np.random.default_rng(0), STUCK[0][0] @ STUCK[0][0].T, all_subsets(3, 2)
    E = np.array([*STUCK[0][0][:2], (1, 1, 1)])
    bad, _ = converge.margin(np.array([[1, 1, 0], [2, 0, 0], [0, 1, 1]]) / 2, 0.75, E @ E.T, Y)
    assert bad == pytest.approx([7 / 9, 14 / 9])
    for end in 10, 10, 20, 20, 30, 30:
        *_, (_, M, alpha, _) = flow(S, 5, 2, end)
        start = M + rng.normal(0, 1, (3, 3)), alpha
        assert attention(start[0], Y)[1, 0] > 0.99
        assert converge.flow_end(E, 5, 2, 1e12, start)[0] < 0.23


def test_what_sticks_is_at_a_margin_above_1_and_the_rest_is_counted_apart(capsys, monkeypatch):
    """57 of 400 take a minute.  A flow that still falls is slow, not stuck."""
    converge.count_stuck("Gaussian", 4)
    for before, margin in (0.11, 2), (0.1, math.nan), (0.1, 1), (0.1, 2):
        monkeypatch.setattr(converge, "flow_end", lambda *flow: (0.1, before, None, None))
        monkeypatch.setattr(converge, "end_margin", lambda *end: margin)
        converge.count_stuck("random signs", 1)
    counts = re.findall(r"(\d) of . stick .(\d) unclear", capsys.readouterr().out)
    assert counts == [("2", "0"), ("0", "0"), ("0", "1"), ("0", "1"), ("1", "0")]


def test_the_margin_of_two_positions_is_a_ratio_and_size_does_not_change_it():
    for E in np.random.default_rng(0).standard_normal((20, 2, 2)):
        S, K = E @ E.T, np.array([[1.0, 0], [1, 0]])
        for size in 1, 3:
            assert converge.end_margin(size * E, 1, K, 0.5) == pytest.approx(S[0, 1] / S[0, 0])


def test_only_a_minimum_has_a_margin():
    """At q = 1.  A plateau is stationary, too: attention is nowhere on y, and alpha = 0."""
    P = np.array([[0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]])                 # here alpha = 0.8 is best
    assert converge.end_margin(np.eye(3), 1, P, 0.8) == pytest.approx(0)
    assert math.isnan(converge.end_margin(np.eye(3), 1, P, 0.9))
    P = (1 - np.eye(3)) / 2
    assert not np.any(np.append(*fixed.slopes(P, 0.0, 1, np.eye(3))[1:]))
    assert math.isnan(converge.end_margin(np.eye(3), 1, P, 0.0))


@pytest.mark.parametrize("k, error", ((0, 1 / 4), (2, 5 / 9)))
def test_at_an_end_t_Delta_tends_to_the_squared_norm(k, error):
    """Theorem 7.1, Delta being L minus its limit; from zero, in Examples 1 and 3."""
    (E, q), Y = STUCK[k], all_subsets(3, STUCK[k][1])
    *_, (t, M, alpha, L) = flow(E @ E.T, 5, q, 1e6, 0.003)
    P = attention(M, Y).round(3)
    least = converge.margin(P, alpha, E @ E.T, Y)[1]
    assert t * (L - error * 5 / (2 * q)) == pytest.approx(least, rel=0.005)


@pytest.mark.parametrize("theta", (12, 20))
def test_an_end_attracts_where_its_margin_is_above_1(theta):
    """Theorem 7: from M = theta X, at encodings whose margin is 1.5 or 0.6, and a little beside."""
    rng, K = np.random.default_rng(0), np.array([[1.0, 0], [1, 0]])
    for S_01 in 1.5, 0.6:
        S = np.array([[1.0, S_01], [S_01, 4]])
        X = np.outer(S @ (1, -1), S[0]) / (S[0, 0] - 2 * S_01 + 4)
        bad, _ = converge.margin(K, 0.5, S, np.eye(2))
        assert bad == pytest.approx((X[0] - X[1])[1])
        start = theta * X + rng.normal(0, 0.01, (2, 2)), 0.51
        E = np.linalg.cholesky(S)
        error = converge.flow_end(E, 5, 1, math.exp(2 * theta), start)[0]
        assert abs(error - 0.75) < 1e-3 if S_01 > 1 else error < 0.03


def test_orthogonal_encodings_end_right_from_every_start():
    """Theorem 8.1; q = 1, T = 3.  If only e_0 is orthogonal, only {0} has to end right."""
    rng = np.random.default_rng(0)
    for full in (True, False) * 8:
        E = rng.standard_normal((3, 3))
        E = np.diag([1, 0.5, 0.8]) if full else E * [[0], [1], [1]] @ np.diag([0, 1, 1]) + 0
        E[0, 0] = 0.7
        start = 3 * rng.standard_normal((3, 3)), rng.uniform(-0.5, 1.5)
        error, _, P, _ = converge.flow_end(E, 5, 1, 1e12, start)
        assert P[0, 0] > 0.8 and (error < 0.03 or not full)


def test_size_and_dimension_matter_only_together():
    """The flow of c E and d at time t is that of E at c^4 t, and of c^4 d where alpha is slower."""
    E, q, c = np.random.default_rng(0).standard_normal((3, 3)), 2, 1.5
    *_, (_, M, alpha, L) = flow(c * c * E @ E.T, 2.0, q, 10.0)
    *_, (_, other, beta, other_L) = flow(E @ E.T, 2 * c ** 4, q, 10.0)
    np.testing.assert_allclose(M, other, rtol=0.01)
    assert alpha == pytest.approx(beta, rel=0.01) and L * c ** 4 == pytest.approx(other_L, rel=0.01)


@pytest.mark.parametrize("T, q, least", ((2, 1, 3 / 4), (3, 1, 7 / 15), (3, 2, 2 / 9), (4, 3, 0)))
def test_from_bad_starts_the_flow_ends_on_the_list(T, q, least):
    """Theorem 6, with its threshold; some ends are 0, and for q = T - 1 some are not."""
    rng, listed, found = np.random.default_rng(0), np.array(converge.ends(T, q)), []
    assert listed[0] == 0 and listed[1] >= 1 / (q * T) and listed[-1] < 1
    assert not least or listed[1] == pytest.approx(least)
    for _ in range(12):
        E, start = rng.standard_normal((T, T)), 6 * rng.standard_normal((T, T))
        error = converge.flow_end(E, 5, q, 1e9, (start, rng.uniform(-0.5, 1.5)))[0]
        found.append(listed[abs(listed - error).argmin()])
        assert abs(error - found[-1]) < (1e-4 if found[-1] else 1 / (2 * q * T))
    assert 0 in found and (max(found) > 0 or q < T - 1)
