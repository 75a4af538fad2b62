"""Tests of markov_chain.py: `python -m pytest beyond/related/test_markov_chain.py`."""

import numpy as np
import pytest

import markov_chain as mc
from test_related import complex_step, headline

ONE_WINNER, NO_WINNER = np.array([[[0.8, 0.2], [0.6, 0.4]], [[0.3, 0.7], [0.6, 0.4]]])
TWO_WINNERS = mc.TWO_WINNERS


def random_chain(K, seed):
    theta = np.random.default_rng(seed).standard_normal((K, K))
    return np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)


def exact_counts(P, start, last, steps):
    """K = 2: P(token 1 was appended k times) for k = 0..steps, summed over all trajectories."""
    chance, k = np.zeros((2, steps + 1)), np.arange(steps + 1)      # of last token i and k
    chance[last, 0] = 1
    for t in range(steps):
        m = np.array([start[0] + t - k[:t + 1], start[1] + k[:t + 1]])          # (2, t + 1)
        to_one = sum(chance[i, :t + 1] * m[1] * P[i, 1] / (P[i] @ m) for i in (0, 1))
        chance[0, :t + 1] = chance[:, :t + 1].sum(axis=0) - to_one
        chance[1, 1:t + 2], chance[1, 0] = to_one, 0
    return chance.sum(axis=0)


def exact_mean_share(P, start, last, steps):
    copies = exact_counts(P, start, last, steps) @ np.arange(steps + 1) + start[1]
    return copies / (sum(start) + steps)


@pytest.mark.parametrize("seed", range(5))
def test_attention_is_the_reweighted_chain(seed):
    rng = np.random.default_rng(seed)
    E, W, b = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)), rng.standard_normal(9)
    x, P = rng.integers(5, size=9), mc.base_chain(E, W)
    q = mc.next_token(P, mc.token_counts(x, 5, b), x[-1])
    np.testing.assert_allclose(mc.attention(E, W, x, b), q, atol=1e-13)
    np.testing.assert_allclose([*P.sum(axis=1), q.sum()], 1)
    assert (q[np.bincount(x, minlength=5) == 0] == 0).all()


@pytest.mark.parametrize("scale", [0, 1, 3])
def test_the_gradient_is_that_of_the_complex_step(scale):
    data = mc.sample_prompts(np.random.default_rng(1), random_chain(4, 1), 50, 3)
    theta = scale * np.random.default_rng(2).standard_normal((4, 4))
    check = complex_step(lambda theta: mc.loss_and_gradient(theta, *data)[0], theta)
    np.testing.assert_allclose(mc.loss_and_gradient(theta, *data)[1], check, atol=1e-13)


def test_the_hessian_is_the_derivative_of_the_gradient():
    counts, last, y = mc.sample_prompts(np.random.default_rng(0), random_chain(4, 0), 60, 3)
    theta = np.random.default_rng(3).standard_normal((4, 4))
    H = mc.hessian(np.exp(theta), counts, last)
    for i, j in np.ndindex(4, 4):
        shifted = theta.astype(complex)
        shifted[i, j] += 1e-30j
        column = mc.loss_and_gradient(shifted, counts, last, y)[1].imag / 1e-30
        np.testing.assert_allclose(column[i], H[i, j], atol=1e-14)
        assert abs(np.delete(column, i, axis=0)).max() == 0


def test_only_rows_whose_tokens_meet_are_identified():
    counts, last = mc.all_prompts(4, 3)
    met = ~((last == 2) & (counts[:, 3] > 0))       # no prompt that ends in 2 contains a 3
    ranks = np.linalg.matrix_rank(mc.hessian(random_chain(4, 0), counts[met], last[met]))
    assert ranks.tolist() == [3, 3, 2, 3]


@pytest.mark.parametrize("K", [2, 5, 8])
def test_uniform_prompts_of_length_2_give_4_times_K_minus_1_squared(K):
    constant = mc.asymptotic_error(np.full((K, K), 1 / K), *mc.all_prompts(K, 2))
    assert constant == pytest.approx(4 * (K - 1) ** 2, rel=1e-12)


def test_with_longer_prompts_the_error_falls_to_that_of_samples_from_the_chain_itself():
    P = random_chain(3, 0)
    limit = 3 * (1 - (P ** 2).sum(axis=1)).sum()    # K (K - 1) for a uniform P
    assert mc.asymptotic_error(P, np.ones((3, 3)), np.arange(3)) == pytest.approx(limit, rel=1e-12)
    two, four, eight = [mc.asymptotic_error(P, *mc.all_prompts(3, T)) for T in (2, 4, 8)]
    assert two > four > eight > limit and eight < 1.3 * limit


def test_the_fit_of_exact_frequencies_is_the_chain():
    P = np.array([[0.5, 0.3, 0.2], [0.1, 0.4, 0.5], [0.8, 0.1, 0.1]])
    y = np.repeat([0, 1, 2] * 3, (10 * P).round().astype(int).ravel())
    odds = P / [1, 2, 4]                            # prompts with these counts turn odds into P
    fit = mc.fit_chain(np.tile([1, 2, 4], (30, 1)), np.repeat([0, 1, 2], 10), y)
    np.testing.assert_allclose(fit, odds / odds.sum(axis=1, keepdims=True), rtol=1e-12)


def test_the_fit_exists_exactly_if_each_group_was_chosen_against_the_others():
    counts = np.tile([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1]], (3, 1))
    last, y = np.repeat([0, 1, 2], 6), np.tile([0, 1, 0, 2, 2, 1], 3)
    assert mc.fit_chain(counts, last, y).min() > 0.05
    beaten = np.where((counts[:, 2] > 0) & (last == 1), 2, y)       # after 1, token 2 always wins
    with pytest.raises(ValueError, match="after token 1"):
        mc.fit_chain(counts, last, beaten)


@pytest.mark.parametrize("P", [ONE_WINNER, TWO_WINNERS, NO_WINNER])
def test_trajectories_have_the_exact_chances(P):
    starts = np.tile([2, 5], (20000, 1))
    for t, m in zip([2, 20], mc.trajectories(np.random.default_rng(0), P, starts, 1, [2, 20])):
        chance = exact_counts(P, (2, 5), 1, t)
        seen = np.bincount((m[:, 1] - 5).astype(int), minlength=t + 1) / 20000
        assert (abs(seen - chance) <= 5 * np.sqrt(chance * (1 - chance) / 20000) + 1 / 20000).all()


@pytest.mark.parametrize("p, tolerance", [(0.9, 0.01), (0.7, 0.1)])
def test_the_mean_share_of_the_loser_is_the_gamma_formula(p, tolerance):
    P, r = np.array([[p, 1 - p], [p, 1 - p]]), (1 - p) / p
    early, late = (exact_mean_share(P, (1, 1), 0, t) for t in (100, 1000))
    assert late == pytest.approx(mc.gamma_law(r, 1000), rel=tolerance)
    assert abs(late / mc.gamma_law(r, 1000) - 1) < abs(early / mc.gamma_law(r, 100) - 1) / 2
    assert r - 1 == pytest.approx(-(2 - 1 / p))


@pytest.mark.parametrize("P, winner", [(ONE_WINNER, 0), (TWO_WINNERS, 0), (TWO_WINNERS, 1)])
def test_behind_a_winner_the_share_falls_by_its_exponent(P, winner):
    start = np.array([10 ** 6, 10 ** 6])
    start[1 - winner] = 1000
    share, t = start[1] / start.sum(), start.sum()
    loser = [abs(winner - s) for s in (share, exact_mean_share(P, start, winner, 500))]
    slope = np.log(loser[1] / loser[0]) / np.log((t + 500) / t)
    assert slope == pytest.approx(P[winner, 1 - winner] / P[winner, winner] - 1, rel=0.01)


@pytest.mark.parametrize("P, winners, x", [
    (ONE_WINNER, [0], None), (ONE_WINNER[::-1, ::-1], [1], None),
    (TWO_WINNERS, [0, 1], 8 / 11), (NO_WINNER, [], 12 / 19)])
def test_the_phase_of_a_chain(P, winners, x):
    assert mc.phase(P) == (winners, x if x is None else pytest.approx(x, rel=1e-12))


@pytest.mark.parametrize("copies, least, greatest",
                         [(700, 0.005, 0.1), (727, 0.44, 0.56), (760, 0.9, 1)])
def test_the_equilibrium_separates_the_basins(copies, least, greatest):
    above = np.arange(1001) + copies > 8 / 11 * 2000
    chance = exact_counts(TWO_WINNERS, (1000 - copies, copies), 0, 1000)
    assert least < chance[above].sum() < greatest


def test_the_headline():
    rows = [line for line in headline("markov_chain").splitlines() if line.startswith("    ")][1:]
    predicted = [row[64:73].strip() for row in rows]
    measured = [float(row[76:].split()[0]) for row in rows]
    assert measured[0] < 1e-14
    for k in 1, 2, 3, 5:                                     # with a standard error
        assert abs(measured[k] - float(predicted[k])) < 4 * float(rows[k].split("+-")[1])
    assert measured[4] == pytest.approx(float(predicted[4]), rel=0.15)
    starts = [(1, 1), (1, 3), (20, 60), (100, 300), (300, 700)]
    for start, share, ends in zip(starts, predicted[6:], measured[6:]):
        assert float(share) == pytest.approx(start[1] / sum(start), abs=5e-4)
        chance = exact_counts(TWO_WINNERS, start, 0, 3000)      # later few runs change sides
        above = chance[(np.arange(3001) + start[1]) / (sum(start) + 3000) > 8 / 11].sum()
        assert abs(ends / 100 - above) < 0.005 + 4 * np.sqrt(0.25 / 400)
