"""How wide attention must be when encodings are random signs, and how wide a net.

    python beyond/width.py                           prints what is derived
    python beyond/width.py width.png separation.png  also trains, a quarter of an hour; plots both

The paper says that d + O~(q log T) is enough for attention, and that nets need the order T d.  All
in this file is derived; NumPy only.  As in sts.py, we have T, d, q, d_e, the population loss L, and

    K            number of draws of encodings whose mean is taken (Definition 5)
    e_j          the encoding of position j: independent random signs over sqrt(d_e)
    y            the q selected positions: 0..q-1, as all subsets are alike
    a, alpha     W = a W* and V = alpha V*, which training finds (two_numbers.py)
    s_j          the score e_j . sum_{i in y} e_i of position j; its logit is a s_j
    P            attention weights, P = softmax(a s)
    S            the attention on the selected positions, sum_{j in y} P_j: mean over the encodings
    share        L over d/(2q), the loss of the zero predictor

The tokens integrate out.  With the mean P of K independent draws of the encodings,

    L = d/2 sum_j (alpha P_j - 1[j in y]/q)^2, the mean over these draws.

Why a d_e of order q ln T is enough.  The score of an unselected position is a sum of q d_e
independent signs, over d_e.  It is above 1/2 with a probability of at most exp(-d_e/(8q))
(Hoeffding).  A selected score is 1 plus such a sum of (q - 1) d_e signs.  So for d_e = 8q ln(T/p)
all T scores are on their side of 1/2 with a probability of at least 1 - p (union bound).  Then a
large a puts all attention on y.  The mean over all draws, which is the paper's model, spreads it
evenly: positions have one law.  The mean of K draws leaves about (q - 1)/K of d/(2q) more.
"""

from common import end_error, main, row     # first: NumPy gets one thread

import functools
import math

import numpy as np


@functools.lru_cache(1000)
def coin_chances(n):
    """The probabilities of Bin(n, 1/2) = 0, 1, ..., n."""
    logs = np.concatenate([[0], np.cumsum(np.log(np.arange(1, n + 1)))])        # of the factorials
    return np.exp(logs[n] - logs - logs[::-1] - n * math.log(2))


@functools.lru_cache(1000)
def score_chances(numbers):
    """The probabilities of an unselected position's score, given the encodings of y.

    numbers[k], of a tuple, says in how many of the d_e coordinates the q signs of the selected
    positions have a sum of absolute value k.  Such a coordinate adds k/d_e or -k/d_e to the score,
    with equal probability.  So the score is v/d_e, with v a sum over k of independent variables
    k (2 Bin(numbers[k], 1/2) - numbers[k]).  Returns the probabilities of v = m, m - 2, ..., -m
    (m + 1,), a convolution of binomial ones.
    """
    chances = np.ones(1)
    for k, n in enumerate(numbers):
        if k and n:
            coins = coin_chances(n)
            coins = coins[coins > 1e-30]                        # rarer values are left out
            spread = np.zeros(k * (len(coins) - 1) + 1)
            spread[::k] = coins                                 # steps of 2k, where v has 2
            chances = np.convolve(chances, spread)
    return chances / chances.sum()


def sample_scores(rng, T, d_e, q, draws):
    """Draws of the scores of all T positions, as counts on a lattice, at the same cost for all T.

    Returns gaps (m,) = 0, -2/d_e, -4/d_e, ..., selected (draws, q) and counts (draws, m).  Softmax
    needs only how far scores are below the highest one of their draw: gaps[selected[k, i]] is that
    of the selected position i in draw k, and counts[k, c] of all T positions have gaps[c].  How
    many of the T - q positions that are not selected have each score is one multinomial draw.
    """
    signs = rng.integers(2, size=(draws, q, d_e), dtype=np.int8) * 2 - 1
    U = signs.sum(axis=1)                                               # (draws, d_e)
    v = (signs @ U[:, :, None])[:, :, 0]                                # (draws, q), d_e times s_i
    numbers = np.stack([(abs(U) == k).sum(axis=1) for k in range(q + 1)], axis=1)
    chances = [score_chances(tuple(own)) for own in numbers.tolist()]
    top = max(abs(v).max(), *(len(own) - 1 for own in chances))         # the lattice: top, top - 2,
    p = np.array([np.pad(own, (top + 1 - len(own)) // 2) for own in chances])       # ..., -top
    counts = np.zeros((draws, 2 * top + 2))
    counts[:, :top + 1] = rng.multinomial(T - q, p)
    selected = (top - v) // 2
    np.add.at(counts, (np.arange(draws)[:, None], selected), 1)
    first = (counts > 0).argmax(axis=1)[:, None]                        # of the highest score
    counts = np.take_along_axis(counts, first + np.arange(top + 1), axis=1)
    m = np.flatnonzero(counts.any(axis=0))[-1] + 1
    return -2 / d_e * np.arange(m), selected - first, counts[:, :m]


def attention_moments(a, scores):
    """For each draw sum_j P_j^2 and sum_{j in y} P_j: (2, draws); (2, draws, k) for k values a."""
    gaps, selected, counts = scores
    e = np.exp(np.multiply.outer(gaps, a))                              # (m,) or (m, k)
    Z = counts @ e
    return np.array([counts @ e ** 2 / Z ** 2, e[selected].sum(axis=1) / Z])


def mean_attention(moments, T, q, K):
    """The mean squared length of the mean P of K draws, and S.

    By symmetry the mean of P_j over the encodings is S/q for j in y, else (1 - S)/(T - q).
    """
    single, S = moments.mean(axis=1)
    return single / K + (1 - 1 / K) * (S ** 2 / q + (1 - S) ** 2 / max(T - q, 1)), S


def stochastic_slopes(a, alpha, scores, d, q, K=1):
    """L, dL/da, dL/dalpha for stochastic encodings, when K draws are averaged; keys Z.

    L is that of the scores that are given, with which it is smooth: d/2 (alpha^2 length
    - 2 alpha/q S + 1/q), see mean_attention.  dL/da is Im L(a + ih)/h for a tiny h.
    """
    length, S = mean_attention(attention_moments(a + 1e-30j, scores), scores[2][0].sum(), q, K)
    L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
    return float(L.real), float(L.imag / 1e-30), float(d * (alpha * length - S / q).real)


def predict_loss(rng, a, alpha, T, d, q, d_e, K=1, precision=0.005):
    """The loss of the weights a W*, alpha V* at any length T, and its standard error.

    Draws scores, 200 at a time, until the standard error is at most precision L, or at most 10^-6,
    but no more than 10^5.  It is that of the part of L that is linear in the draws' moments.
    """
    moments, L, error = np.empty((2, 0)), 0, math.inf
    while error > max(precision * L, 1e-6) and moments.shape[1] < 10 ** 5:
        scores = sample_scores(rng, T, d_e, q, 200)
        moments = np.concatenate([moments, attention_moments(a, scores)], axis=1)
        length, S = mean_attention(moments, T, q, K)
        L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
        slope = 2 * (1 - 1 / K) * (S / q - (1 - S) / max(T - q, 1))     # of the length by S
        linear = alpha ** 2 * (moments[0] / K + slope * moments[1]) - 2 * alpha / q * moments[1]
        error = d / 2 * linear.std(ddof=1) / math.sqrt(len(linear))
    return float(L), float(error)


def noise_floor(scores, d, q, K=1):
    """The least loss over all weights a W*, alpha V*, and where it is: L, a, alpha.

    For a given a the best alpha is S / (q length), and then L = d/2 (1/q - S^2 / (q^2 length)).
    For q >= 3 a draw gives the selected positions unequal scores.  Their differences from their
    mean have the variance (q - 1)(q - 2) / (q d_e), so training with one draw has a floor.  For
    q <= 2 they are equal, and the largest a is best: 5 d_e, where neighbours on the lattice have
    logits that differ by 10.  For large T there can be two minima.
    """
    T, limit = scores[2][0].sum(), 10 / -scores[0][1] if len(scores[0]) > 1 else 10
    grid = np.geomspace(0.1, limit, 64)
    for _ in range(3):
        length, S = mean_attention(attention_moments(grid, scores), T, q, K)
        L = d / 2 * (1 / q - S ** 2 / (q ** 2 * length))
        i = L.argmin()
        least = max(0.0, float(L[i])), float(grid[i]), float(S[i] / (q * length[i]))
        grid = np.geomspace(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)], 8)
    return least


SHARE = 0.1     # of d/(2q): the error to be reached
GROWTH = {      # for q = 3: K, weights as trained or the best ones, the power of ln T that is drawn
    "one draw": (1, True, 2), "16 draws, as trained": (16, True, 2),
    "16 draws, best weights": (16, False, 1)}


def needed_width(T, q, share, K, rng, trained=False):
    """The least d_e for an error of this share of d/(2q), to a few per cent; d does not matter.

    The model takes the mean of K draws of encodings.  Its weights are the best ones for K draws or,
    if trained, those for one draw, which training with one draw in a step finds.  Heuristics:
    q = 1: a is large, and positions with equal encodings share the attention.  Some T 2^(-d_e) have
    that of the selected position.  So d_e is log2 T and a constant.
    q >= 3, one draw: a is about ln T, so that T unselected positions get little attention.  The
    logits of selected positions then have the variance a^2 (q - 1)(q - 2)/(q d_e), see noise_floor,
    which is about the share.  So d_e grows like (ln T)^2, and with these weights also for K = 16.
    q >= 3, the best weights for K draws: a large a leaves each draw about one selected token, and
    with the best alpha (q - 1)/(K + q - 1) of the error.  If the share asked for is above this, the
    highest unselected score, about sqrt(2 q ln T / d_e), only has to stay below 1, about that of
    the selected ones: d_e grows like ln T.  Else a must stay near ln T: (ln T)^2 in the end.  q = 3
    and K = 16 have 11 %, next to the 10 % of SHARE.
    """
    def is_enough(d_e):
        scores = sample_scores(rng, T, d_e, q, draws=3000)
        _, a, alpha = noise_floor(scores, 2 * q, q, 1 if trained else K)    # d = 2q: L is a share
        return stochastic_slopes(a, alpha, scores, 2 * q, q, K)[0] <= share

    low, high = 0, 1
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > max(1, 0.02 * low):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def demo():
    """Print what one draw and 16 draws leave at their best weights, and the d_e that is needed."""
    rng, T, d_e = np.random.default_rng(0), 200, 170
    print(f"Random signs, T = {T}, d_e = {d_e}: the least share of d/(2q) with K draws, +- its"
          "\nstandard error.  In one draw selected tokens have equal logits only for q <= 2.\n")
    for q, K in (3, 1), (3, 16), (2, 1):
        _, a, alpha = noise_floor(sample_scores(rng, T, d_e, q, 300), 2 * q, q, K)
        share, error = predict_loss(rng, a, alpha, T, 2 * q, q, d_e, K, 0.02)
        print(f"  q = {q}, K = {K:2d}   {share:.4f} +- {error:.4f}   {a = :.1f}, {alpha = :.2f}")
    print("\nThe least d_e for 10% of d/(2q); q = 3.  As trained: the best weights for one draw.\n")
    print(" " * 12 + "".join(f"{name:>24}" for name in GROWTH))
    for T in 100, 1000, 10_000:
        widths = [needed_width(T, 3, SHARE, K, rng, trained) for K, trained, _ in GROWTH.values()]
        print(f"  T = {T:6d}  " + "".join(f"{d_e:24d}" for d_e in widths))


# Training

ADAM = {"d": 5, "q": 3, "optimizer": "adam", "schedule": "cosine", "evaluations": 1}
SIGNS = ADAM | {"T_test": [], "q_test": []}
CURVES = {      # settings, and the widths that are trained at each T: d_e, or units of a net
    "one draw": (SIGNS | {"lr": 0.005, "steps": 6000, "eval_draws": 1},         # less noise in W
                 {10: (48, 64), 40: (96, 128), 320: (192, 256)}),
    "16 draws, as trained": (SIGNS | {"lr": 0.03, "steps": 1000},
                             {10: (12, 16, 24), 20: (16, 24, 32), 40: (24, 32, 48),
                              80: (32, 48, 64), 160: (32, 48, 64), 320: (48, 64, 96)}),
    "net": (ADAM | {"model": "fcn", "fresh": True, "lr": 0.01, "eval_sequences": 2},
            {10: (40, 50), 20: (89, 100), 40: (179, 200)})}
NET_STEPS = {10: 6000, 20: 40_000, 40: 60_000}
ARMS = {f"width {name} {T} {m}": settings | {"T": T} | (
            {"hidden": [m], "steps": NET_STEPS[T]} if name == "net" else {"d_e": m})
        for name, (settings, sizes) in CURVES.items() for T in sizes for m in sizes[T]}


def trained_widths(name):
    """Train a curve; {T: the width for SHARE of each seed}.

    It is read from a line through the errors, and for attention in logarithms.
    """
    import plots
    runs, needed = plots.trained({arm: ARMS[arm] for arm in ARMS if name in arm}), {}
    scale, back, n = (np.array, np.array, 20_480) if name == "net" else (np.log, np.exp, 2048)
    for T, sizes in CURVES[name][1].items():
        shares = [[end_error(run, T, ADAM["q"], n=n) for run in runs[f"width {name} {T} {m}"]]
                  for m in sizes]
        needed[T] = back([np.interp(-scale(SHARE), -scale(ends), scale(sizes), np.nan, np.nan)
                          for ends in np.transpose(shares)])
    return needed


def figure():
    """Train, and plot the d_e that attention needs beside the computed one, to T = 10^9."""
    import matplotlib.pyplot as plt
    import plots
    rng, lengths = np.random.default_rng(0), 10 ** np.arange(1, 10)
    canvas, axis = plt.subplots(figsize=(10, 6.5))
    for (name, (K, as_trained, power)), marker in zip(GROWTH.items(), "s^D"):
        computed = [needed_width(T, 3, SHARE, K, rng, as_trained) for T in lengths]
        line = np.polyfit(np.log(lengths) ** power, computed, 1, w=1 / np.array(computed))
        axis.plot(lengths, np.polyval(line, np.log(lengths) ** power), "--", color=plots.THEORY)
        axis.plot(lengths, computed, marker, color=plots.STOCHASTIC, label=name)
        if name in CURVES:
            needed = trained_widths(name)
            axis.plot(list(needed), [d_e.mean() for d_e in needed.values()], "o", markersize=12,
                      color=plots.FIXED, fillstyle="none")
            row(f"{name}: trained d_e / computed",
                [d_e / needed_width(T, 3, SHARE, K, rng, as_trained)
                 for T, d_e in needed.items()])
            for T in 10, 320:
                row(f"{name}, T = {T}: d_e, trained", needed[T])
    axis.set(xlabel="length T", ylabel="$d_e$ for an error of 10%", xscale="log", yscale="log",
             ylim=(5, 20_000))
    axis.plot([], "o", color=plots.FIXED, fillstyle="none", markersize=12, label="trained")
    axis.legend(loc="upper left")
    canvas.suptitle("The $d_e$ that attention needs grows like $(\\ln T)^2$, at best like ln T")
    plots.caption(canvas, "Random signs, q = 3. Squares, triangles, diamonds: computed. Dashed: "
                  "lines in (ln T)², the lowest one in ln T. As trained: with the best weights "
                  "for one draw.")
    return canvas


def separation():
    """Train, and plot the width of nets, and of attention with one draw in a test and with 16."""
    import matplotlib.pyplot as plt
    import plots
    d, q = ADAM["d"], ADAM["q"]
    nets = trained_widths("net")
    one, many = ({T: d + d_e for T, d_e in trained_widths(name).items()}
                 for name in ("one draw", "16 draws, as trained"))
    bound = {T: T * d * (1 - SHARE * (T - 1) / (T - q)) for T in many}      # see fcn.py
    canvas, axis = plt.subplots(figsize=(10, 7))
    axis.plot(list(bound), list(bound.values()), "--", color=plots.NET,
              label="bound for all nets: units of the first layer")
    for name, widths, color, marker in (
            ("trained nets", nets, plots.NET, "D"),
            ("attention, one draw in a test: d + $d_e$", one, "#56B4E9", "s"),
            ("attention, mean of 16 draws: d + $d_e$", many, plots.STOCHASTIC, "o")):
        plots.band(axis, list(widths), np.transpose(list(widths.values())), color,
                   marker=marker, markersize=9, label=name)
    for name, widths, color in ("16 draws", many, plots.STOCHASTIC), ("one draw", one, "#56B4E9"):
        times = bound[320] / widths[320]
        axis.text(340, 1.25 * widths[320].mean(), f"{times.mean():.1f} times", color=color)
        row(f"T = 320, {name}: bound for nets / width of attention", times)
    axis.vlines([320], [many[320].mean()], [bound[320]], color=plots.THEORY, linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="sequence length T", xlim=(9, 600),
             ylim=(18, 2500), ylabel="width for an error of 10%")
    axis.set_xticks(list(bound), list(bound))
    axis.set_yticks([20, 50, 100, 200, 500, 1000], [20, 50, 100, 200, 500, 1000])
    axis.legend(loc="upper left")
    canvas.suptitle("Nets need about T d units; the width of attention grows far more slowly")
    plots.caption(canvas, f"10% of d/(2q), q = {q}, d = {d}. Dotted: how many times narrower "
                  "attention is. Adam, 3 seeds: nets with one hidden layer on fresh batches of "
                  "256, attention with stochastic random signs on one batch of 256.")
    for T, units in nets.items():
        row(f"T = {T}: width that trained nets need / bound", units / bound[T])
    for T, widths in one.items():
        row(f"T = {T}, one draw: d + d_e, trained", widths)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure, separation)
