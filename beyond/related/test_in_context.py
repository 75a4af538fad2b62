"""Tests of in_context.py: `python -m pytest beyond/related/test_in_context.py`."""

import numpy as np
import pytest

import in_context as ic
from test_related import complex_step, headline

MODELS = {"attention": (ic.attention_loss, [(4, 4), (4,)]), "h3": (ic.h3_loss, [(3, 3), (4,)]),
          "low rank": (ic.low_rank_loss, [(3, 2), (3, 2), (3, 3)])}


def random_arrays(seed, shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def random_prompts(seed, B=6, n=4, d=3):
    return random_arrays(seed, [(B, n, d), (B, n), (B, d), (B,)])


def covariance(seed, d):
    G = np.random.default_rng(200 + seed).standard_normal((d, 3 * d))
    return G @ G.T / (3 * d)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed, steps", [(0, 0), (1, 0), (2, 30)])
def test_each_gradient_is_that_of_a_complex_step(name, seed, steps):
    (loss, shapes), prompts = MODELS[name], random_prompts(seed)
    start = random_arrays(100 + seed, shapes)
    params = ic.train(loss, start, (lambda rng, B: prompts,), None, 0.05, steps)
    _, *grads = loss(*params, *prompts)
    assert len(grads) == 2 and np.array_equal(params[2:], start[2:])
    for i, grad in enumerate(grads):
        before, after = params[:i], params[i + 1:]
        check = complex_step(lambda w: loss(*before, w, *after, *prompts)[0], params[i])
        np.testing.assert_allclose(grad, check, rtol=1e-9, atol=1e-12)


def test_attention_and_h3_are_their_formulas_prompt_by_prompt():
    A, h, W, omega = random_arrays(0, [(4, 4), (4,), (3, 3), (4,)])
    attention, h3, prompts = [], [], random_prompts(0)
    for X, y, x, t in zip(*prompts):
        Z = np.column_stack([X, y])
        attention.append((np.append(x, 0) @ A @ (Z.T @ Z / len(Z)) @ h - t) ** 2)
        h3.append((x @ W @ X.T @ (omega * y) / len(y) - t) ** 2)
    assert ic.attention_loss(A, h, *prompts)[0] == pytest.approx(np.mean(attention), rel=1e-12)
    assert ic.h3_loss(W, omega, *prompts)[0] == pytest.approx(np.mean(h3), rel=1e-12)


class Quadrature:
    """Stands in for a generator: Gauss-Hermite nodes instead of normals make means exact."""

    def __init__(self, orders):
        rules = [np.polynomial.hermite_e.hermegauss(m) for m in orders]
        index = np.indices(orders).reshape(len(orders), -1)
        self.columns = [x[i] for (x, _), i in zip(rules, index)]
        self.weights = np.prod([w[i] / w.sum() for (_, w), i in zip(rules, index)], axis=0)

    def standard_normal(self, shape):
        count = int(np.prod(shape[1:]))
        taken, self.columns = self.columns[:count], self.columns[count:]
        return np.stack(taken, axis=1).reshape(shape)


def exact_prompts(n, d, sample, *setting):
    """Prompts whose mean loss is the exact risk; the roots of the weights are put on y and t."""
    noise = [2 if setting[-1] > 0 else 1] * (n + 1)
    if sample is ic.sample_drift:
        rule = Quadrature([2] * (n + 1) * d + [3] * (n + 1) * d + noise)
    else:                               # degree 6 in the query under retrieval, else at most 4
        rule = Quadrature([3] * n * d + [4] * d + [2] * d + noise)
    X, y, x, t = sample(rule, len(rule.weights), *setting)
    assert X.shape[1:] == (n, d) and not rule.columns
    scale = np.sqrt(rule.weights * len(rule.weights))
    return X, scale[:, None] * y, x, scale * t


SIZES = [(1, 1, 0.0), (3, 1, 0.7), (1, 2, 1.3), (2, 2, 0.7), (1, 3, 0.0)]      # n, d, s2


@pytest.mark.parametrize("n, d, s2", SIZES)
def test_the_risk_of_any_W_is_exact_and_the_best_is_stationary_for_attention(n, d, s2):
    setting = n, covariance(0, d), covariance(1, d), s2
    prompts = exact_prompts(n, d, ic.sample_linear, *setting)
    A, (best, L) = np.zeros((d + 1, d + 1)), ic.best_map(*setting)
    for W in best, *np.random.default_rng(0).standard_normal((2, d, d)):
        assert ic.risk(W, *setting) == pytest.approx(ic.pgd_loss(W, *prompts)[0], rel=1e-11)
    A[:d, :d] = best
    loss, dA, dh = ic.attention_loss(A, np.eye(d + 1)[d], *prompts)
    assert loss == pytest.approx(L, rel=1e-11) and max(abs(dA).max(), abs(dh).max()) < 1e-12


@pytest.mark.parametrize("n, d, s2", SIZES)
@pytest.mark.parametrize("sample, best", [(ic.sample_rag, ic.best_rag),
                                          (ic.sample_aligned, ic.best_aligned)])
def test_retrieval_and_alignment_are_exact_and_optimal_among_all_W(sample, best, n, d, s2):
    prompts = exact_prompts(n, d, sample, n, d, 0.6, s2)
    c, L, variance = best(n, d, 0.6, s2)
    loss, dW, _ = ic.pgd_loss(c * np.eye(d), *prompts)
    assert (loss, np.mean(prompts[3] ** 2)) == pytest.approx((L, variance), rel=1e-11, abs=1e-12)
    assert abs(dW).max() < 1e-11 * variance


def correlation(n):
    return 0.8 * 0.6 ** abs(np.subtract.outer(range(n + 1), range(n + 1))) + 0.2 * np.eye(n + 1)


@pytest.mark.parametrize("n, d, s2", [(1, 1, 0.7), (3, 1, 0.7), (2, 2, 0.0), (1, 2, 1.3)])
def test_the_risk_under_drift_is_exact_and_least_at_the_best_weights(n, d, s2):
    R = correlation(n)
    prompts = exact_prompts(n, d, ic.sample_drift, R, d, s2)
    W, omega = random_arrays(0, [(d, d), (n,)])
    loss = ic.h3_loss(W, omega, *prompts)[0]
    assert ic.drift_risk(W, omega, R, s2) == pytest.approx(loss, rel=1e-11)
    equal, best = ic.best_weights(R, d, s2)
    _, dW, domega = ic.h3_loss(np.eye(d), best, *prompts)
    assert max(abs(dW).max(), abs(domega).max()) < 1e-12
    _, dW, domega = ic.h3_loss(np.eye(d), equal, *prompts)
    assert np.ptp(equal) == 0 and max(abs(dW).max(), abs(domega.sum())) < 1e-12


@pytest.mark.parametrize("rank", [1, 4, 10])
def test_low_rank_keeps_the_largest_of_the_diagonal(rank):
    l = np.diag(ic.HARMONIC)                                # in falling order
    w = 20 * l / (21 * l + 10.3)
    W, L = ic.best_map(20, ic.I10, ic.HARMONIC, 0.3, rank=rank)
    assert np.allclose(W, np.diag(w * (np.arange(10) < rank)), atol=1e-12)
    assert L == pytest.approx(10.3 - (l * w)[:rank].sum(), rel=1e-12)


@pytest.mark.parametrize("rank, W0", [(1, np.eye(3) / 2), (2, np.zeros((3, 3)))])
def test_descent_on_the_risk_at_a_fixed_rank_ends_at_the_closed_form(rank, W0):
    setting = 5, covariance(4, 3), covariance(5, 3), 0.3

    def loss(U, V, W0):
        dW = complex_step(lambda W: ic.risk(W, *setting), W0 + U @ V.T)
        return None, dW @ V, dW.T @ U

    start = 0.5 * np.random.default_rng(0).standard_normal((2, 3, rank))
    U, V, _ = ic.train(loss, [*start, W0], (lambda rng, B: (),), None, 0.1, 2000)
    best = ic.best_map(*setting, W0, rank)[1]
    assert best * (1 - 1e-12) < ic.risk(W0 + U @ V.T, *setting) < best * (1 + 1e-4)


def test_the_approximation_under_retrieval_is_the_limit_of_large_d():
    gaps = []
    for d in 10 ** 3, 10 ** 4:                              # n = 2 d, a^2 d = 1.5, s2 = d
        setting = 2 * d, d, (1.5 / d) ** 0.5, d
        gaps.append(ic.best_rag(*setting)[1] / ic.rag_approximation(*setting) - 1)
    assert abs(gaps[0]) < 5e-3 and gaps[1] == pytest.approx(gaps[0] / 10, rel=0.05)


def test_two_steps_of_adam_are_those_computed_by_hand():
    grads = iter([np.array([2.0]), np.array([-1.0])])
    p, = ic.train(lambda p: (0.0, next(grads)), [np.zeros(1)], (lambda rng, B: (),), None, 0.1, 2)
    m, v = 0.9 * 0.2 - 0.1, 0.999 * 0.004 + 0.001           # after two steps
    second = 0.05 * (m / (1 - 0.81)) / (v / (1 - 0.999 ** 2)) ** 0.5
    assert p == pytest.approx(-0.1 - second, rel=1e-6)


def test_excess_is_a_difference_of_risks_on_the_same_prompts():
    setting = 20, ic.I5, ic.I5, 0.5
    W, L = ic.best_map(*setting)
    more = ic.excess(ic.pgd_loss, [0.5 * W], W, (ic.sample_linear, *setting), 20)
    assert more == pytest.approx(ic.risk(0.5 * W, *setting) - L, rel=0.1)
    assert ic.excess(ic.pgd_loss, [W], W, (ic.sample_linear, *setting), 1) == 0


def test_the_headline():
    rows = [line for line in headline("in_context").splitlines() if line[:4] == "    "]
    zero, best, more, learned, off, equal, weighted = [float(row.split()[-1]) for row in rows[:7]]
    assert zero == 5 and best == pytest.approx(5 - 100 / 26, abs=1e-4)
    assert abs(more) < 0.01 and best < learned < best + 0.006 and 0 < off < 0.04
    assert equal > 4.35 and weighted == pytest.approx(3.468, abs=1e-3)
    few, some, many, wide = [[float(x) for x in row.split()[-7:-1]]
                             for row in rows if row[4:7] == "n ="]
    assert few == sorted(few)[::-1] and wide == sorted(wide)[::-1]
    assert min(some) == some[3] < some[-1] < some[0]
    assert 0.97 * many[0] < min(many) and many[0] < many[2] < many[-1]
    shift = [[float(x) for x in row.split()[-5:]] for row in rows if row[4:7] == "l ~"]
    assert 10 - shift[1][0] > 0.94 * (10 - shift[0][-1])            # what the old W alone gains
    assert shift[3][3] > shift[2][3]                                # plain low rank is better
