"""How wide attention must be for sparse token selection, when encodings are random signs.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python width.py` prints a tour.
The paper says that a width of d + O~(q log T) is enough.  Everything in this file is derived here.

Throughout this file we have, as in sts.py:

    T, d, q      sequence length, token dimension, subset size
    d_e, K       dimension of a positional encoding (PE), number of PE draws that are averaged
    e_j          the PE of position j: independent random signs over sqrt(d_e) (rademacher)
    y            the q selected positions; 0..q-1 stand for them, as all subsets are alike
    a, alpha     W = a W* and V = alpha V*: gradient descent from zero on the population loss finds
                 weights of this form (theory.py), where W* and V* are the identity on a block
    s_j          the score e_j . sum_{i in y} e_i of position j; its logit is a s_j
    P            attention weights, P = softmax(a s)
    S            the attention on the selected positions, sum_{j in y} P_j: mean over the encodings
    L            population loss; the zero predictor has L = d/(2q)
    share        L over d/(2q)

The tokens integrate out.  With the mean P of K independent draws of the encodings,

    L = d/2 sum_j (alpha P_j - 1[j in y]/q)^2, the mean over these draws.

K = 1 is a training step with one draw.  K = math.inf is Definition 5, whose expectation over the
encodings is inside the loss.
"""

import functools
import math

import numpy as np


# Scores, for any T at the same cost


@functools.lru_cache(1000)
def coin_chances(n):
    """The probabilities of Bin(n, 1/2) = 0, 1, ..., n."""
    logs = np.concatenate([[0], np.cumsum(np.log(np.arange(1, n + 1)))])        # of the factorials
    return np.exp(logs[n] - logs - logs[::-1] - n * math.log(2))


@functools.lru_cache(1000)
def score_chances(numbers, least=1e-30):
    """The probabilities of an unselected position's score, given the encodings of y.

    numbers[k], of a tuple, says in how many of the d_e coordinates the q signs of the selected
    positions have a sum of absolute value k.  Such a coordinate adds k/d_e or -k/d_e to the score,
    with equal probability.  So the score is v/d_e, where v is a sum over k of independent variables
    k (2 Bin(numbers[k], 1/2) - numbers[k]), whose probabilities are a convolution of binomial ones.
    Returns those of v = m, m - 2, ..., -m as an array of m + 1 entries.  Binomial variables leave
    out values with a probability of least or less.
    """
    chances = np.ones(1)
    for k, n in enumerate(numbers):
        if k and n:
            coins = coin_chances(n)
            coins = coins[coins > least]
            spread = np.zeros(k * (len(coins) - 1) + 1)
            spread[::k] = coins                                 # steps of 2k, where v has 2
            chances = np.convolve(chances, spread)
    return chances / chances.sum()


def sample_scores(rng, T, d_e, q, draws):
    """Draws of the scores of all T positions, as counts on a lattice.

    Returns gaps (m,) = 0, -2/d_e, -4/d_e, ..., selected (draws, q) and counts (draws, m).  Softmax
    depends on the differences of the scores only.  So the scores of a draw are given by how far
    they are below the highest one: gaps[selected[k, i]] is that of the selected position i in draw
    k, and counts[k, c] of all T positions have gaps[c].  The encodings of y are drawn in full.  How
    many of the T - q other positions have each score is one multinomial draw, whatever T is.
    """
    signs = rng.integers(2, size=(draws, q, d_e), dtype=np.int8) * 2 - 1
    U = signs.sum(axis=1)                                               # (draws, d_e)
    v = (signs @ U[:, :, None])[:, :, 0]                                # (draws, q), d_e times s_i
    numbers = np.stack([(abs(U) == k).sum(axis=1) for k in range(q + 1)], axis=1)
    chances = [score_chances(tuple(row)) for row in numbers.tolist()]
    top = max(abs(v).max(), *(len(own) - 1 for own in chances))         # the lattice: top, top - 2,
    p = np.zeros((draws, top + 1))                                      # ..., -top
    for row, own in zip(p, chances):
        start = (top + 1 - len(own)) // 2
        row[start:start + len(own)] = own
    counts = np.zeros((draws, 2 * top + 2))
    counts[:, :top + 1] = rng.multinomial(T - q, p)
    selected = (top - v) // 2
    np.add.at(counts, (np.arange(draws)[:, None], selected), 1)
    first = (counts > 0).argmax(axis=1)[:, None]                        # of the highest score
    counts = np.take_along_axis(counts, first + np.arange(top + 1), axis=1)
    m = np.flatnonzero(counts.any(axis=0))[-1] + 1
    return -2 / d_e * np.arange(m), selected - first, counts[:, :m]


# The loss


def attention_moments(a, scores):
    """For each draw sum_j P_j^2, sum_{j in y} P_j, and their derivatives by a: (4, draws).

    If a is an array, these are (4, draws, a's length).
    """
    gaps, selected, counts = scores
    e = np.exp(np.multiply.outer(gaps, a))                              # (m,) or (m, length)
    de = (gaps * e.T).T
    Z, dZ = counts @ e, counts @ de
    single, dsingle = counts @ e ** 2 / Z ** 2, counts @ (2 * e * de) / Z ** 2
    inside, dinside = e[selected].sum(axis=1) / Z, de[selected].sum(axis=1) / Z
    return np.array([single, inside, dsingle - 2 * single * dZ / Z, dinside - inside * dZ / Z])


def mean_attention(moments, T, q, K):
    """The mean squared length of the mean P of K draws, and S; then their derivatives by a.

    With Pbar, the mean of P over the encodings,
        length = (mean of sum_j P_j^2) / K + (1 - 1/K) sum_j Pbar_j^2.
    By symmetry Pbar_j = S/q for j in y, and (1 - S)/(T - q) for the others.
    """
    single, S, dsingle, dS = moments.mean(axis=1)
    mean = S ** 2 / q + (1 - S) ** 2 / max(T - q, 1)
    dmean = 2 * (S / q - (1 - S) / max(T - q, 1)) * dS
    return single / K + (1 - 1 / K) * mean, S, dsingle / K + (1 - 1 / K) * dmean, dS


def stochastic_slopes(a, alpha, scores, d, q, K=1):
    """L, dL/da, dL/dalpha for stochastic PE, when K draws of E are averaged; keys Z.

    With the length and S of mean_attention, as means over the scores that are given,
        L = d/2 (alpha^2 length - 2 alpha/q S + 1/q).
    With the same scores at every step (common random numbers), L is a smooth function of a, alpha.
    """
    length, S, dlength, dS = mean_attention(attention_moments(a, scores), scores[2][0].sum(), q, K)
    L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
    return (float(L), float(d / 2 * (alpha ** 2 * dlength - 2 * alpha / q * dS)),
            float(d * (alpha * length - S / q)))


def predict_loss(rng, a, alpha, T, d, q, d_e, K=1, precision=0.005):
    """The loss of the weights a W*, alpha V* at any length T, and its standard error.

    Draws scores, 200 at a time, until the standard error is at most precision L, or at most 10^-6,
    but no more than 10^5 draws.  To first order L deviates from its mean by a mean over the draws,
    the part of L that is linear in them.  The deviation of that part gives the error.
    """
    moments, L, error = np.empty((4, 0)), 0, math.inf
    while error > max(precision * L, 1e-6) and moments.shape[1] < 10 ** 5:
        scores = sample_scores(rng, T, d_e, q, 200)
        moments = np.concatenate([moments, attention_moments(a, scores)], axis=1)
        length, S, _, _ = mean_attention(moments, T, q, K)
        L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
        slope = 2 * (1 - 1 / K) * (S / q - (1 - S) / max(T - q, 1))     # of the length by S
        linear = alpha ** 2 * (moments[0] / K + slope * moments[1]) - 2 * alpha / q * moments[1]
        error = d / 2 * linear.std(ddof=1) / math.sqrt(len(linear))
    return float(L), float(error)


def noise_floor(scores, d, q, K=1):
    """The least loss over all weights a W*, alpha V*, and where it is: L, a, alpha.

    Arguments as in stochastic_slopes.  For a given a the best alpha is S / (q length), and then
        L = d/2 (1/q - S^2 / (q^2 length)).
    For q >= 3 a draw gives the selected positions unequal scores.  Their differences from their
    mean have the variance (q - 1)(q - 2) / (q d_e), so one draw cannot select exactly, and training
    with one draw has a floor.  For q <= 2 the scores are equal.  No other position scores higher
    then, and the best a is the largest one.  a is searched from 0.1 to 5 d_e, where neighbours on
    the lattice have logits that differ by 10.  For large T there can be two minima.
    """
    T, limit = scores[2][0].sum(), 10 / -scores[0][1] if len(scores[0]) > 1 else 10
    grid = np.geomspace(0.1, limit, 64)
    for _ in range(3):
        length, S, _, _ = mean_attention(attention_moments(grid, scores), T, q, K)
        L = d / 2 * (1 / q - S ** 2 / (q ** 2 * length))
        i = L.argmin()
        least = max(0.0, float(L[i])), float(grid[i]), float(S[i] / (q * length[i]))
        grid = np.geomspace(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)], 8)
    return least


# The width


def expectation_share(S, T, q):
    """The share of d/(2q) that remains with Definition 5, K = math.inf, and the best alpha.

    By symmetry the mean of P_j is S/q for j in y, and (1 - S)/(T - q) for the others.  So
        L = d/2 [ q (alpha S/q - 1/q)^2 + (T - q) (alpha (1 - S)/(T - q))^2 ],
    which is least for alpha = S / (S^2 + q (1 - S)^2/(T - q)).  There
        L = d/(2q) / (1 + (T - q) S^2 / (q (1 - S)^2)).
    So L is a share eps of d/(2q) if S/(1 - S) = sqrt(q (1/eps - 1) / (T - q)).  A small S is enough
    when T is large: the attention on other positions averages out.  Needs q < T.
    """
    return q * (1 - S) ** 2 / (q * (1 - S) ** 2 + (T - q) * S ** 2)


def tied(m, at, up_to, N):
    """The mean of m/(m + C) for m selected positions with the highest score; else 0; exact.

    N unselected positions have, each independently, the score of the m with probability at, and at
    most that score with probability up_to.  C have the same score.  If one of the N scores higher,
    0 takes the place of m/(m + C).  With m/(m + C) = int_0^1 m x^(m-1) x^C dx,
        the mean = int_0^1 m x^(m-1) (up_to - at (1 - x))^N dx.
    With the power N + 1 of the bracket as the variable, 20 nodes of Gauss-Legendre quadrature give
    the integral, exactly for m = 1.  Arrays are allowed.
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    with np.errstate(divide="ignore"):                                  # at = up_to: log1p(-1)
        part = -np.expm1((N + 1) * np.log1p(-at / up_to))               # (patterns,)
    lost = np.log1p(-part * (nodes[:, None] + 1) / 2) / (N + 1)         # (20, patterns)
    x = 1 + up_to / at * np.expm1(lost)
    return m * up_to ** (N + 1) * part / ((N + 1) * at) * (weights / 2 @ x ** (m - 1))


@functools.cache
def top_attention(T, q, d_e):
    """S in the limit of a large a, for q = 1, 2, 3; exact.

    In the limit all positions with the highest score share the attention.  Let the encodings of y
    agree in n coordinates.
    q = 1: n = d_e.  The selected position and those with the same encoding have the highest score.
    q = 2: n is Bin(d_e, 1/2).  The two selected positions and those that agree with them in these n
        coordinates have the highest score.
    q = 3: let the encoding of i in y differ from the other two in o_i coordinates.  n and the o_i
        are multinomial with probabilities 1/4, and i scores 2 o_i/d_e less than the highest score
        that an unselected position can have.
    So S is a mean of `tied` over n, and for q = 3 over the o_i.
    """
    if q < 3:
        n = np.arange(d_e + 1)
        chance = coin_chances(d_e) if q == 2 else n == d_e
        return float(chance @ tied(q, 0.5 ** n, 1.0, T - q))
    logs, S = np.concatenate([[0], np.cumsum(np.log(np.arange(1, d_e + 1)))]), 0
    for n in range(d_e + 1):
        o = np.indices((d_e - n + 1,) * 2).reshape(2, -1)
        o = np.vstack([o, d_e - n - o.sum(axis=0)])
        o = o[:, o[2] >= 0]                                             # (3, patterns)
        chance = np.exp(logs[d_e] - logs[n] - logs[o].sum(axis=0) - d_e * math.log(4))
        scores, below = score_chances((0, d_e - n, 0, n), 0), o.min(axis=0)
        m = (o == below).sum(axis=0)
        S += chance @ tied(m, scores[below], scores[::-1].cumsum()[::-1][below], T - q)
    return float(S)


def birthday_share(T, q, d_e, K):
    """The share that remains for q = 1 or 2 with a in its limit and alpha = 1; exact.

    If C unselected positions have the highest score, sum_j P_j^2 = 1/(q + C), whose mean is S/q.
    So alpha = 1 is best for one draw, and training with one draw leads to this limit: the selected
    positions always have the highest score, so their attention grows with a.  With K draws the
    share is (1 - S)^2 + S (1 - S)/K, and a term of order 1/T.
    """
    S = top_attention(T, q, d_e)
    length = S / (q * K) + (1 - 1 / K) * (S ** 2 / q + (1 - S) ** 2 / (T - q))
    return 1 - 2 * S + q * length


def birthday_width(T, q, share, K):
    """The least d_e for birthday_share, interpolated between whole numbers.

    Like people who share a birthday, positions with equal encodings share the attention.
    q = 1: C is Poisson with mean l = T 2^(-d_e) for large T.  S, the mean of 1/(1 + C), is
        (1 - e^(-l))/l.  So d_e = log2 T - log2 l.  For 10 % of d/(2q) this is log2 T + .42 with
        K = 16, and log2 T + 2.2 with one draw.  To name a position takes log2 T bits: attention
        needs hardly more.
    q = 2: given n, C is Poisson with mean T 2^(-n), and n is about d_e/2.  Heuristic: so d_e is
        2 log2 T, and the fluctuations of n, of order sqrt(d_e), add to it.
    Exact for a in its limit; that training comes close to the limit is measured.
    """
    d_e, excess = 1, math.log(birthday_share(T, q, 1, K) / share)
    before = excess
    while excess > 0:
        d_e, before = d_e + 1, excess
        excess = math.log(birthday_share(T, q, d_e, K) / share)
    return d_e + excess / (before - excess) if d_e > 1 else 1.0


def remaining_shares(rng, T, q, d_e, K, trained, numbers, parts):
    """The share with the best weights, in each of some parts of equally many draws (parts,).

    Weights and arguments as in needed_width.
    """
    if K == math.inf and not trained and q <= 3 and q < T:
        return np.full(parts, expectation_share(top_attention(T, q, d_e), T, q))
    draws = min(2000, max(100, numbers // d_e)) * (8 if parts > 1 else 4)
    gaps, *scores = sample_scores(rng, T, d_e, q, draws)
    shares = []
    for part in range(parts):
        own = gaps, *(array[part::parts] for array in scores)
        L, a, alpha = noise_floor(own, 2 * q, q, 1 if trained else K)       # d = 2q: L is a share
        shares.append(stochastic_slopes(a, alpha, own, 2 * q, q, K)[0] if trained else L)
    return np.array(shares)


def needed_width(T, q, share, K, rng, trained=False, numbers=30_000):
    """The least d_e for an error of this share of d/(2q), and its standard error.

    The model averages K draws of encodings; K = math.inf is Definition 5.  Its weights are a W*,
    alpha V*.  They are the best ones for K draws, or, if trained, the best ones for one draw, which
    training with one draw in a step finds.  (From T of about 10^5 on, the loss of one draw has a
    second, local minimum at half of this a, with a large alpha.  Training may stay there.)  d does
    not matter, since L is proportional to it.

    Bisection finds the region.  There the share is measured at several d_e, in 8 independent parts
    with numbers/d_e draws each (but 100 to 2000).  A line through ln d_e against the logarithm of
    the mean shares gives the width, a real number, and the jackknife over the parts its error.
    For K = math.inf the best a is at its limit, or hardly better than that.  Rare draws decide
    there, so for q <= 3 top_attention gives S without error.  For q > 3 S comes from the draws, and
    the width is too high if S is not well above 1/draws.

    Heuristics for q >= 3.  With one draw a is about ln T, so that T unselected positions get little
    attention.  The logits of the selected positions then have the variance
    a^2 (q - 1)(q - 2)/(q d_e), see noise_floor, which is also the share.  So d_e grows as (ln T)^2.
    With the best weights for many draws it is enough if the highest unselected score, about
    sqrt(2 q ln T / d_e), is below the selected ones, about 1.  So d_e grows as ln T.

    Raises ValueError if d_e is above 10^4 or so.
    """
    def ratios(d_e, parts=1):
        """What remains, over the share that is asked for (parts,)."""
        return remaining_shares(rng, T, q, d_e, K, trained, numbers, parts) / share

    low = high = 1
    found = {1: ratios(1)}
    while found[high] > 1:
        if high > 10_000:
            raise ValueError(f"a share of {share:g} needs a d_e above {high}: too many for memory")
        low, high = high, 2 * high
        found[high] = ratios(high)
    if high == 1:
        return 1.0, 0.0
    while high - low > 1 and (high > 1.1 * low or found[low] > 1.3 * found[high]):
        middle = round(math.sqrt(low * high))
        found[middle] = ratios(middle)
        low, high = (middle, high) if found[middle] > 1 else (low, middle)

    sizes = math.sqrt(low * high) * np.geomspace(0.84, 1 / 0.84, 4)
    sizes = np.unique([low, high, *sizes.round().astype(int)])
    found = np.transpose([ratios(d_e, 8) for d_e in sizes])             # (8, sizes)
    near = abs(found.mean(axis=0) - 1) < 0.3
    near |= (sizes == low) | (sizes == high)

    def crossing(found):
        y = np.log(found[:, near].mean(axis=0))
        return math.exp(np.polyfit(y, np.log(sizes[near]), 1)[-1])

    without = [crossing(np.delete(found, part, axis=0)) for part in range(8)]
    return crossing(found), math.sqrt(7) * float(np.std(without))


def demo():
    """Print a tour: floors, errors at any length, and the width that is needed."""
    rng, T, d_e = np.random.default_rng(0), 200, 170
    print(f"Random signs, T = {T}, d_e = {d_e}: the least share of d/(2q) with K draws, +- its"
          "\nstandard error.  In one draw selected tokens have equal logits only for q <= 2.\n")
    for q, K in (3, 1), (3, 16), (2, 1):
        _, a, alpha = noise_floor(sample_scores(rng, T, d_e, q, 300), 2 * q, q, K)
        share, error = predict_loss(rng, a, alpha, T, 2 * q, q, d_e, K, 0.02)
        print(f"  q = {q}, K = {K:2d}   {share:.4f} +- {error:.4f}   {a = :.1f}, {alpha = :.2f}")

    q = 3
    print("\nThe share that remains with the weights 4.2 W*, 1.8 V*, by length; q = 3, K = 16.\n")
    for length in 200, 2000, 10 ** 9:
        share, error = predict_loss(rng, 4.2, 1.8, length, 2 * q, q, d_e, 16, 0.02)
        print(f"  T = {length:10d}   {share:.4f} +- {error:.4f}")

    print("\nThe least d_e for a share of 10 %, q = 3.  Trained: with the weights that are best for"
          "\none draw.  For one draw it grows as (ln T)^2, for the expectation as ln T.\n")
    print("           T   16 draws, trained      one draw           16 draws        expectation")
    for length in 100, 10_000:
        row = [needed_width(length, q, 0.1, K, rng, trained, 5000)
               for K, trained in ((16, True), (1, False), (16, False), (math.inf, False))]
        print(f"  {length:10d}" + "".join("   {:8.1f} +- {:4.1f}".format(*pair) for pair in row))


if __name__ == "__main__":
    demo()
