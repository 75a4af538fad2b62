"""What does a trained attention layer generate?  Texts of a Markov chain that the prompt reweights.

The layer multiplies the base chain by the tokens' counts in the prompt, and normalizes.

Companion to "From Self-Attention to Markov Models: Unveiling the Dynamics of Generative
Transformers" (Ildiz, Huang, Li, Rawat, Oymak, 2024, arXiv:2402.13512).  NumPy only.

    python beyond/related/markov_chain.py                   prints a table
    python beyond/related/markov_chain.py picture.png       also plots the picture

Throughout this file we have:

    K, d, T      number of tokens (0..K-1), dimension of an embedding, length of a prompt
    E, W         embeddings (row j is e_j), key-query matrix             (K, d), (d, d)
    x, b         a prompt, a bias for each of its positions              (T,), (T,)
    m, counts    how often each token occurs in a prompt                 (K,) or (n, K)
    i, last      the last token of a prompt                              () or (n,)
    P            base chain, P_ij proportional to exp(e_j^T W e_i)       (K, K), rows sum to 1
    theta        ln P, up to a constant in each row                      (K, K)
    q            chances of the next token, proportional to m_j P_ij     (K,) or (n, K)
    n, y         number of prompts, the next token of each               (n,)
    t            number of tokens appended to a trajectory so far

What is the paper's, from its abstract: a self-attention layer samples from a base Markov chain that
the context reweights; positional encodings scale the transitions; the chain can be learnt if the
prompts cover it; a single trajectory collapses onto few tokens.  A secondary source states the rate
K^2/n.  From memory, not verified: P is identified by which tokens occur together, and for K = 2 the
exponent is -(2 - 1/p).  C E^T = I (see attention) is the paper's.  All other formulas are derived
here.  The chains and sizes are our choice.  We found no official code and did not read the full
text.
"""

import argparse
import math

import numpy as np

TWO_WINNERS = np.array([[0.7, 0.3], [0.4, 0.6]])        # a chain in which either token can win


def base_chain(E, W):
    """P (K, K), P_ij = exp(e_j^T W e_i) / sum_k exp(e_k^T W e_i).  Derived."""
    theta = E @ W.T @ E.T                                   # (K, K)   theta_ij = e_j^T W e_i
    P = np.exp(theta - theta.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def attention(E, W, x, b=0.0):
    """The layer's output C X^T softmax(X W e_i + b) on the prompt x: (K,).  Derived.

    X = E[x] (T, d) holds the tokens of the prompt.  C (K, d) reads tokens out: C E^T = I, which
    needs linearly independent embeddings.
    """
    X = E[x]                                                # (T, d)
    a = X @ W @ X[-1] + b                                   # (T,)     a_t = x_t^T W e_i + b_t
    s = np.exp(a - a.max())
    s /= s.sum()                                            # (T,)     softmax
    C = np.linalg.pinv(E).T                                 # (K, d)
    return C @ (X.T @ s)                                    # (K,)


def token_counts(x, K, b=0.0):
    """Counts (..., K) of prompts x (..., T); the token at position t counts exp(b_t).  Derived."""
    return np.exp(b + np.zeros(np.shape(x)[-1])) @ np.eye(K)[x]


def next_token(P, counts, last):
    """The reweighted chain, q_j = m_j P_ij / sum_k m_k P_ik: (K,) or (n, K).  Derived.

    It equals attention, as the abstract says: all m_j copies of token j have the same weight
    exp(e_j^T W e_i) in the softmax, and C adds them up.
    """
    w = counts * P[last]                                    # (K,) or (n, K)
    return w / w.sum(axis=-1, keepdims=True)


def draw(rng, weights):
    """One token (n,) for each row of weights (n, K), with probability in proportion to them."""
    c = np.cumsum(weights, axis=1)                          # (n, K)
    return (c[:, :-1] <= c[:, -1:] * rng.random((len(c), 1))).sum(axis=1)


def sample_prompts(rng, P, n, T):
    """n prompts of T uniform tokens, each with a next token: m (n, K), i (n,), y (n,).  Ours."""
    x = rng.integers(len(P), size=(n, T))
    counts, last = token_counts(x, len(P)), x[:, -1]
    return counts, last, draw(rng, counts * P[last])


def all_prompts(K, T):
    """Each of the K^T prompts of length T once: m (K^T, K), i (K^T,).  Ours."""
    x = np.indices((K,) * T).reshape(T, -1).T
    return token_counts(x, K), x[:, -1]


def loss_and_gradient(theta, counts, last, y):
    """L = -mean ln q_y, which is convex in theta, and dL/dtheta (K, K).  Derived."""
    n, K = counts.shape
    q = next_token(np.exp(theta), counts, last)             # (n, K)   softmax(theta_i + ln m)
    L = -np.log(q[np.arange(n), y]).mean()
    dlogits = (q - np.eye(K)[y]) / n                        # (n, K)
    return L, np.eye(K)[last].T @ dlogits                   # row i sums over prompts that end in i


def hessian(P, counts, last):
    """H (K, K, K), where H_i = d^2 L / dtheta_i^2 at theta = ln P.  Derived.

    H_i is the mean over all prompts of 1[last = i] (diag q - q q^T).  This is the Laplacian of a
    graph that joins tokens a and b with the weight mean 1[last = i] q_a q_b.  Its rank is therefore
    K minus the number of connected components.  Prompts that end in i all contain i, so they
    identify row i of P exactly if each token occurs in at least one of them.
    """
    q = next_token(P, counts, last)                         # (n, K)
    groups = [q[last == i] for i in range(len(P))]
    return np.array([np.diag(g.sum(axis=0)) - g.T @ g for g in groups]) / len(q)


def fit_chain(counts, last, y):
    """The maximum-likelihood estimate of P (K, K) from n prompts, by Newton's method.  Derived.

    For each last token i, a -> b is an edge if b was chosen from a prompt that contains a.
    The maximum exists and is unique exactly if each of these graphs is strongly connected.
    Otherwise ValueError.
    """
    K = counts.shape[1]
    for i in range(K):
        edges = (counts[last == i] > 0).T @ np.eye(K)[y[last == i]] > 0     # (K, K)
        if not np.linalg.matrix_power(np.eye(K) + edges, K).all():
            raise ValueError(f"after token {i} some tokens were never chosen against the others")
    theta, step = np.zeros((K, K)), np.ones((K, K))
    while np.abs(step).max() > 1e-10:
        gradient = loss_and_gradient(theta, counts, last, y)[1]
        H = hessian(np.exp(theta), counts, last)                            # (K, K, K)
        # The gradient sums to 0 in each row.  On such vectors (H_i + 1 1^T)^-1 inverts H_i.
        step = np.linalg.solve(H + 1, gradient[:, :, None])[:, :, 0]        # (K, K)
        theta -= step / max(1, np.abs(step).max() / 2)      # no entry moves by more than 2
    return np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)


def asymptotic_error(P, counts, last):
    """The limit of n E|P_hat - P|_F^2 for prompts sampled uniformly from the given.  Derived.

    The error of theta_i has covariance H_i^+ / n, and dP_i = J_i dtheta_i with
    J_i = diag P_i - P_i P_i^T, so the limit is sum_i tr(J_i H_i^+ J_i).  For uniform P it is
    4 (K - 1)^2 if all prompts have length 2, and tends to K (K - 1) as they get longer.
    """
    J = P[:, :, None] * (np.eye(len(P)) - P[:, None, :])                    # (K, K, K)
    H = hessian(P, counts, last)                                            # (K, K, K)
    return (J * np.linalg.solve(H + 1, J)).sum()            # the trace, as J_i is symmetric


def error_law(P, T, n, fits):
    """n |P_hat - P|_F^2 of each fit to n fresh prompts of length T, seeds 0, 1, ...: (fits,)."""
    samples = (sample_prompts(np.random.default_rng(seed), P, n, T) for seed in range(fits))
    return np.array([n * ((fit_chain(*sample) - P) ** 2).sum() for sample in samples])


def trajectories(rng, P, counts, last, times):
    """Single trajectories: each sampled token joins its prompt.  The setting is the paper's.

    All runs have the last token `last` at first; counts (runs, K) may differ.  Returns the counts
    after t = times[0] < times[1] < ... tokens, (len(times), runs, K).
    """
    m, one_hot, history = counts.astype(float), np.eye(len(P)), []
    last = np.full(len(counts), last)
    for t in range(1, times[-1] + 1):
        last = draw(rng, m * np.take(P, last, axis=0))      # (runs,)
        m += np.take(one_hot, last, axis=0)
        if t in times:
            history.append(m.copy())
    return np.array(history)


def shares(P, counts, times):
    """K = 2: the share of token 1 at times, (len(times), runs); the last token is 0 at first."""
    m = trajectories(np.random.default_rng(0), P, counts, 0, times)
    return m[:, :, 1] / m.sum(axis=2)


def gamma_law(r, t):
    """The loser's mean share at time t, Gamma(1 - r) t^(r - 1) for large t.  Derived.

    It holds if all rows of P are equal and each token starts with one copy.  The loser is r times
    as likely as the most likely token, 0 <= r < 1.  For K = 2 and p = max p_j, r - 1 = -(2 - 1/p).

    The next token is j with probability in proportion to m_j p_j.  So the counts behave like
    independent Yule processes (each copy of j splits at rate p_j), observed when one of them jumps.
    At their own time s, m_j is about A_j exp(p_j s), where all A_j are exponential with mean 1.
    Then t is about A_win exp(p_win s), hence m_j is about A_j (t / A_win)^r.  The mean of
    A_j A_win^-r is Gamma(1 - r).
    """
    return math.gamma(1 - r) * t ** (r - 1)


def phase(P):
    """K = 2: a list of the tokens that can win, and the equilibrium x of token 1's share.  Derived.

    When nearly all tokens are j, the other token i comes at the rate m_i P_ji / (m_j P_jj), where
    m_j is about t.  So its share falls as t^(P_ji / P_jj - 1): j can win exactly if P_jj > P_ji.

    x / (1 - x) = P_10 (P_00 - P_01) / (P_01 (P_11 - P_10)).  While the share hardly moves, the last
    token is a fast chain, and at the equilibrium it spends just the share x of its time in 1.
    If both tokens can win, x is unstable and separates their basins.  If none can, x is stable and
    nothing collapses.  If only one can win, x is None.  The numbers within a row of P must differ.
    """
    winners = [j for j in (0, 1) if P[j, j] > P[j, 1 - j]]
    if len(winners) == 1:
        return winners, None
    odds = P[1, 0] * (P[0, 0] - P[0, 1]) / (P[0, 1] * (P[1, 1] - P[1, 0]))
    return winners, odds / (1 + odds)


def demo():
    """Print what the derived formulas predict, and what is measured."""
    def row(what, predicted, measured):
        print(f"    {what:60s}{predicted:>9s}   {measured}")

    rng = np.random.default_rng(0)
    E, W = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8
    x, b, P = rng.integers(5, size=12), rng.standard_normal(12), base_chain(E, W)
    difference = attention(E, W, x, b) - next_token(P, token_counts(x, 5, b), x[-1])
    print("Attention samples from a Markov chain that the prompt reweights")
    row("", "predicted", "measured")
    row("|attention - next_token|, K = 5, d = 8, T = 12, with biases", "0",
        f"{np.abs(difference).max():.0e}")

    print("\nLearning P from n = 4000 prompts of length 2: n |P_hat - P|^2, mean of 50 fits")
    for K in 3, 5, 8:
        P = np.full((K, K), 1 / K)
        errors = error_law(P, 2, 4000, 50)
        row(f"K = {K}, uniform P, predicted 4 (K - 1)^2",
            f"{asymptotic_error(P, *all_prompts(K, 2)):.1f}",
            f"{errors.mean():.1f} +- {errors.std() / 50 ** 0.5:.1f}")

    print("\nA single trajectory that starts with one copy of tokens 0 and 1, until t = 10,000")
    share = shares(np.array([[0.8, 0.2], [0.8, 0.2]]), np.ones((1000, 2)), [10000])
    row("rows (0.8, 0.2), (0.8, 0.2): mean share of 1, gamma_law",
        f"{gamma_law(0.25, 10000):.5f}", f"{share.mean():.5f}")
    P = np.array([[0.3, 0.7], [0.6, 0.4]])
    share = shares(P, np.ones((200, 2)), [10000])
    row("rows (0.3, 0.7), (0.6, 0.4): no token wins; mean share of 1", f"{phase(P)[1]:.3f}",
        f"{share.mean():.3f} +- {share.std() / 200 ** 0.5:.3f}")

    x = phase(TWO_WINNERS)[1]
    print("\nRows (0.7, 0.3), (0.4, 0.6): either token can win. Predicted: above the share")
    print(f"{x:.3f} token 1 wins, if the text is long. In a short one the share may cross it.")
    print("Of 400 runs end above it:")
    starts = [[1, 1], [1, 3], [20, 60], [100, 300], [300, 700]]
    share = shares(TWO_WINNERS, np.repeat(starts, 400, axis=0), [10000]).reshape(5, 400)
    for (zeros, ones), end in zip(starts, share):
        row(f"from {ones} of {zeros + ones} copies", f"{ones / (zeros + ones):.3f}",
            f"{100 * (end > x).mean():.0f} %")


BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot the picture into the file path: what is derived (grey) and measured (colour)."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((bars, fits), (decay, basins)) = plt.subplots(2, 2, figsize=(10, 8))

    rng, j = np.random.default_rng(0), np.arange(5)
    E, W = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8
    P = base_chain(E, W)
    bars.bar(j - 0.27, P[2], 0.25, color="white", edgecolor=GREY, hatch="//",
             label="base chain P, no prompt")
    for x, at, colour, hatch in (([0, 0, 0, 1, 2], j, BLUE, None),
                                 ([3, 4, 4, 2, 2], j + 0.27, VERMILLION, "..")):
        bars.bar(at, attention(E, W, x), 0.25, color=colour, hatch=hatch, edgecolor="white",
                 label=f"prompt {x}")
        bars.plot(at, next_token(P, token_counts(x, 5), 2), "D", color=GREY, markersize=5,
                  label="predicted: count × P" if x[0] else None)
    bars.set(title="A prompt reweights the transitions", xlabel="next token",
             ylabel="probability after token 2", ylim=(0, 1.2), yticks=[0, 0.2, 0.4, 0.6])
    bars.legend(loc="upper center")

    sizes, P = np.array([1000, 2000, 4000, 8000, 16000]), np.full((5, 5), 0.2)
    for T, colour, marker, x, y in ((2, VERMILLION, "s", 3000, 0.03), (4, BLUE, "o", 1000, 0.004)):
        errors = np.array([error_law(P, T, n, 100) / n for n in sizes])     # (5, 100)
        fits.errorbar(sizes, errors.mean(axis=1), errors.std(axis=1) / 10, color=colour,
                      fmt=marker, capsize=4)
        limit = asymptotic_error(P, *all_prompts(5, T))
        fits.plot(sizes, limit / sizes, "--", color=GREY, zorder=1)
        fits.text(x, y, f"prompts of {T}\ntokens: {limit:.3g}/n", color=colour)
    fits.set(title="The fitted chain's error falls as 1/n", xlabel="number n of prompts",
             ylabel=r"squared error of $\hat P$", xscale="log", yscale="log", ylim=(1e-3, 0.1))
    fits.minorticks_off()

    times = np.unique(np.geomspace(1, 10000, 30).astype(int))
    late = times[times >= 10]
    for p, colour, marker in (0.7, GREEN, "^"), (0.8, VERMILLION, "s"), (0.9, BLUE, "o"):
        share = shares(np.array([[p, 1 - p], [p, 1 - p]]), np.ones((2000, 2)), times)
        decay.loglog(times, share.mean(axis=1), marker, color=colour)
        decay.loglog(late, gamma_law((1 - p) / p, late), "--", color=GREY)
        decay.text(14000, share[-1].mean(), f"p = {p}", color=colour, va="center")
    decay.text(1, 6e-4, "dashed:\n$\\Gamma(1-r)\\ t^{\\,r-1}$\nwith r = (1 - p)/p", color=GREY)
    decay.set(title="Token 0 wins: token 1's share decays", ylabel="mean share of token 1",
              xlabel="time t (tokens sampled)", xlim=(0.8, 80000))

    share, x = shares(TWO_WINNERS, np.ones((30, 2)), times), phase(TWO_WINNERS)[1]
    for token, colour, line in (0, VERMILLION, ":"), (1, BLUE, "-"):
        runs = (share[-1] > x) == token
        basins.semilogx(times, share[:, runs], line, color=colour)
        basins.text(14000, 0.08 + 0.84 * token, f"token {token} wins\n{runs.sum()} runs",
                    color=colour, va="center")
    basins.axhline(x, color=GREY, linestyle="--")
    basins.text(14000, x - 0.02, "boundary\n8/11", color=GREY, va="top")
    basins.set(title="Either token can win", xlabel="time t (tokens sampled)",
               ylabel="share of token 1", xlim=(0.8, 1e6), ylim=(0, 1))
    canvas.supxlabel(
        "Dashes: predicted. Top right: uniform P, 100 fits. Below: sampled tokens join the prompt."
        "\nLeft: P moves to 0 with probability p. Right: P stays at 0 with 0.7, at 1 with 0.6.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
