"""Tests of converge.py, and of FIXED.md:  python -m pytest beyond/test_converge.py"""

import math

import numpy as np
import pytest

import converge
import fixed
from conftest import run_alone
from converge import STUCK, STUCK_2, flow
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


def test_the_curvature_of_L_is_below_the_bound_of_a_step():
    """In (B, sqrt(d) alpha), by differences; it is above a tenth of the bound somewhere."""
    rng, ratios = np.random.default_rng(0), []
    for _ in range(60):
        T, d = int(rng.integers(2, 5)), float(rng.choice([1, 3, 10]))
        q, E = int(rng.integers(1, T)), rng.standard_normal((T, T))
        E *= np.exp(rng.standard_normal((T, 1)))
        Y, scale = all_subsets(T, q), rng.choice([0.1, 1, 3]) / np.linalg.norm(E, 2) ** 2

        def slope(x):
            P = attention(E @ x[:-1].reshape(T, T) @ E.T, Y)
            _, dM, dalpha = fixed.slopes(P, x[-1] / math.sqrt(d), d, Y)
            return np.append(E.T @ dM @ E, dalpha / math.sqrt(d))
        x = np.append(rng.standard_normal(T * T) * scale, rng.uniform(0.5, 1.5) * math.sqrt(d))
        H = np.array([slope(x + e) - slope(x - e) for e in 1e-5 * np.eye(len(x))]) / 2e-5
        ratios.append(np.linalg.norm(H + H.T, 2) / 2 / converge.step_bound(E @ E.T, d, q))
    assert 0.1 < max(ratios) <= 1 and converge.step_bound(2 * np.eye(3), 1, 2) == 58


@pytest.mark.parametrize("q", (1, 2, 3))
def test_near_loss_0_the_proofs_hold_with_their_constants(q):
    """Section 4: Gamma >= 2 L (1 - K eta), and not with K/100; the rate, and that of a step."""
    rng, T, d, Y = np.random.default_rng(0), 5, 2.0, all_subsets(5, q)
    needed, rates, steps = [], [], []
    threshold, n, Lambda = converge.end_threshold(T, q, d), len(Y), ties(T, q)
    K, inverse = math.sqrt(d / 8 / n / threshold), np.linalg.pinv(Lambda, rcond=1e-9)
    for noise in np.append(np.zeros(100), 10 ** rng.uniform(-5, -0.5, 1000)):
        S = near_orthonormal(rng, T, 0.05)
        G, N = np.linalg.inv(S), late_norm(S)
        M = tied(rng.uniform(4, 14) + rng.standard_normal(T) / 10, rng.standard_normal(T), q)
        M += (q > 1) * noise * rng.standard_normal((T, T))
        P = attention(M, Y)
        alpha = (P * Y).sum() / (q * (P * P).sum()) + rng.choice([0, noise]) * rng.standard_normal()
        L, D, h = fixed.slopes(P, alpha, d, Y)
        eta, Z = math.sqrt(2 * n * L / d), (inverse @ Lambda @ M.ravel()).reshape(T, T)
        if L < 100 * threshold:
            gamma = (alpha - 1) * h - (D * (late_block(S)[1] - Z)).sum()
            needed.append((1 - gamma / (2 * L)) / eta)
        if L <= threshold:
            longest = (math.sqrt(N) + 1.2 * q * eta * np.linalg.norm(G, 2) * (q > 1)) ** 2
            rate = 4 * (1 - K * eta) ** 2 / (longest + 2 * T * L)
            rates.append(((D * (S @ D @ S)).sum() + h ** 2 / d) / L ** 2 / rate)
        if threshold / 100 < L <= threshold:                    # below, rounding is in the way
            lr = 1 / converge.step_bound(S, d, q)
            C, alpha = fixed.step(S, G @ M @ G, alpha, d, lr, Y)
            after = fixed.slopes(attention(S @ C @ S, Y), alpha, d, Y)[0]
            steps.append((1 / after - 1 / L) / (lr / 2 * rate))
    assert len(needed) > 500 and K / 100 < max(needed) <= K
    assert len(rates) > 100 and 1 <= min(rates) < 1.2
    assert len(steps) > 20 and 1 <= min(steps) < 3
    assert converge.end_threshold(4, 3, 1) == pytest.approx(1 / (32 * (3 + 9 + 14.4) ** 2))


def test_the_least_norm_is_that_of_a_block_and_needs_the_multipliers():
    """m . Phi m is the least over b, by least squares; N^ is N where no multiplier is negative."""
    rng, T, q, equal = np.random.default_rng(0), 5, 3, []
    for spread in (0.1, 0.2, 0.3) * 2 + (0.8,) * 20:
        S = near_orthonormal(rng, T, spread)
        mu, N, least = fixed.multipliers(S, q), late_norm(S), converge.least_norm(S, q)
        Phi = converge.lead_form(S, q)
        np.testing.assert_allclose(Phi.sum(axis=1), mu, atol=1e-9 * abs(mu).max())
        assert mu.sum() == pytest.approx(N)
        root = np.linalg.cholesky(np.linalg.inv(S))                     # |X|_S = |root^T X root|
        m = 1 + rng.exponential(1, T)
        units = np.array([(root.T @ tied(np.zeros(T), b, q) @ root).ravel() for b in np.eye(T)])
        own = (root.T @ tied(m, np.zeros(T), q) @ root).ravel()
        b = np.linalg.lstsq(units.T, -own, rcond=None)[0]
        assert m @ Phi @ m == pytest.approx(((own + b @ units) ** 2).sum())
        assert least <= min(N, m @ Phi @ m) * (1 + 1e-9)
        equal.append((mu.min() >= 0, math.isclose(least, N, rel_tol=1e-9)))
    assert all(a == b for a, b in equal) and {a for a, _ in equal} == {True, False}


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
    S, N = E @ E.T, late_norm(E @ E.T)
    least = converge.least_norm(S, q) if ratio else N
    assert not ratio or least / N == pytest.approx(ratio, abs=0.001)
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
    assert not any(converge.can_vanish(centred @ rng.standard_normal((T, T - 2)), q)
                   for _ in range(50))
    assert converge.flow_error(centred, 5, q, 1e5) < 1e-4
    for r, least in (T - 2, 0.10717), (T - 3, 0.20183), (1, 0.39999):
        E = rng.standard_normal((T, r))
        found = converge.least_error(E, q, starts=2, steps=1500)
        assert least < found < converge.flow_error(E, 5, q, 1e5) + 1e-3
        assert r >= T - q or found > converge.rank_bound(T, q, r) > 0
    assert converge.least_error(centred, q, starts=1) < 1e-3            # rank T - 1, allowed
    circle = np.array([[np.cos(x), np.sin(x)] for x in range(5)])       # q = 1 needs rank 2 only
    assert fixed.error(circle, 5, 50 * np.linalg.pinv(circle @ circle.T), 1.0,
                       all_subsets(5, 1)) < 1e-6
    assert converge.rank_bound(10 ** 9, 3, 5) == pytest.approx(1 / 7 / (27 * 36))  # does not fade
    assert converge.rank_bound(12, 3, 8) == pytest.approx(1 / 100 / (27 * 81))


def test_three_encodings_stick_at_a_quarter_though_their_loss_could_vanish():
    """Example 5, by gradient descent at two rates: the error, alpha, and both gaps."""
    E, q, d, Y = STUCK, 2, 5, all_subsets(3, 2)
    S, states = E @ E.T, []
    assert fixed.error(E, 3, 40 * late_block(S)[0], 1.0, Y) < 1e-20
    M, values = converge.least_block(S, Y[[0, 2]])
    gaps = converge.wrong_gaps(S, Y[[0, 2]], Y[1], 0)
    assert values.min() > 0 and gaps == pytest.approx([3.0, 3.6], abs=1e-6)
    for lr, steps in (0.01, 2000), (0.01, 10_000), (0.005, 20_000):
        *_, (_, C, alpha) = fixed.descend(E, 3, d, q, lr, steps)
        M = S @ C @ S
        leads = [M[y == 1] @ y - M[y == 0] @ y for y in Y[[0, 2]]]
        states.append(np.array([np.min(leads), *(M[0] - M[1:]) @ Y[1]]))
        assert abs(fixed.error(E, 3, C, alpha, Y) - 0.25) < 0.003 and abs(alpha - 0.75) < 0.003
    lead, *grown = states[1] - states[0]
    np.testing.assert_allclose(grown / lead, gaps, rtol=0.02)
    np.testing.assert_allclose(states[2], states[1], rtol=0.01)
    for q in 1, 2, 3:                                   # on all subsets it is the late block
        S = near_orthonormal(np.random.default_rng(q), 5, 0.1)
        M, _ = converge.least_block(S, all_subsets(5, q))
        np.testing.assert_allclose(M, late_block(S)[1], atol=1e-8)


def test_two_encodings_stay_wrong_from_some_starts_but_not_from_zero():
    """Proposition 6 and its constants; the wrong lead falls twice as fast as the other grows."""
    E, d, Y, k = STUCK_2, 5, all_subsets(2, 1), 6.1
    S, G = E @ E.T, np.linalg.inv(E @ E.T)
    assert 84 * math.exp(-k) * S[1, 1] < min(S[0, 0], S[0, 1] - S[0, 0])
    assert converge.wrong_gaps(S, Y[:1], Y[1], 0) == pytest.approx([S[0, 1] / S[0, 0]])
    for alpha in 0.25, 0.75:
        C, before = G @ np.array([[2.0, 2 + k], [0, 0]]) @ G, None
        for t in range(10_001):
            M = S @ C @ S
            x, z = M[0, 0] - M[1, 0], M[1, 1] - M[0, 1]
            assert x >= 2 - 1e-9 and x + z <= -k + 1e-9 and 0.25 <= alpha <= 0.75
            if t == 5000:
                before = x, z
            C, alpha = fixed.step(S, C, alpha, d, 0.02, Y)
        assert fixed.error(E, 2, C, alpha, Y) == pytest.approx(0.75, abs=0.005)
        assert (z - before[1]) / (x - before[0]) == pytest.approx(-2, rel=0.01)
    assert converge.flow_error(E, d, 1, 1000) < 0.002


def test_the_file_runs_beside_fixed(tmp_path):
    lines = [line.split() for line in run_alone(tmp_path, "converge.py", "fixed.py").splitlines()]
    ends = [line for line in lines if line and line[-1] == "1.000"]
    assert len(ends) == 6
    assert all((float(line[-2]) >= 0) == (line[-3] == "1.000") for line in ends)
    ranks = [line for line in lines if "yes" in line or "no" in line]
    left = [float(line[5]) for line in ranks]
    assert [line[2] for line in ranks] == ["no", "no", "yes"]
    assert 0.3 < left[0] < 0.4 and 0.2 < left[1] < 0.3 and left[2] < 0.01
    assert sum("0.2500," in line for line in lines) == 2


def test_the_picture_shows_where_flows_end(monkeypatch, capsys):
    """Three come to the dotted line, one sticks.  At the right are numbers of this test's own."""
    monkeypatch.setattr(converge, "least_error", lambda E, q: 0.1)
    monkeypatch.setattr(converge, "flow_error", lambda E, *_: len(E.T) / 100)
    left, right = converge.figure().axes
    *flows, stuck, dotted = [line.get_ydata()[-1] for line in left.lines]
    np.testing.assert_allclose(flows, dotted, rtol=0.06)
    assert stuck == pytest.approx(0.25, abs=0.001)
    ranks, ends = right.lines[0].get_data()
    np.testing.assert_allclose(ends, ranks / 100)
    assert ranks.tolist() == [1, 2, 3, 4, 5, 6] and right.lines[-1].get_ydata().max() == 0.06
    assert "rank 6, least error 0.0600: from zero" in capsys.readouterr().out
