"""Self-attention as a Markov chain whose transitions are reweighted by the context.

Companion to "From Self-Attention to Markov Models: Unveiling the Dynamics of Generative
Transformers" (Ildiz, Huang, Li, Rawat, Oymak, 2024, arXiv:2402.13512).  NumPy only.
`python markov_chain.py` prints a table; with the name of a file it also draws the picture.

Throughout this file we have:

    K, d, T      number of tokens 0..K-1, dimension of an embedding, length of a prompt
    E, W         embeddings, row j is e_j, and key-query matrix          (K, d), (d, d)
    x, b         a prompt, tokens 0..K-1, and a bias for each position   (T,), (T,)
    m, counts    how often each token is in a prompt                     (K,) or (n, K)
    i, last      the last token of a prompt                              () or (n,)
    P            base chain, P_ij ~ exp(e_j^T W e_i), rows sum to 1      (K, K)
    theta        ln P, but for a constant in each row                    (K, K)
    q            distribution of the next token, q_j ~ m_j P_ij          (K,) or (n, K)
    n, y         number of samples; the next token of each               (n,)
    t            number of tokens that a trajectory has appended

Paper (abstract), in words: one self-attention layer samples from a base Markov chain reweighted by
the context; positional encoding scales the transitions; coverage gives consistent learning; a
single trajectory collapses onto few tokens.  Secondary source: the rate K^2/n.  From memory,
unverified: co-occurrence identifies P; an exponent -(2 - 1/p) for K = 2.  Derived here: all
formulas.  Ours: chains and sizes.  No official code was found; the full text was not read.
"""

import argparse
import math

import numpy as np

STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}
BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
TWO_WINNERS = np.array([[0.7, 0.3], [0.4, 0.6]])        # a chain in which either token can win


def base_chain(E, W):
    """P (K, K), P_ij = exp(e_j^T W e_i) / sum_k exp(e_k^T W e_i).  Derived."""
    theta = E @ W.T @ E.T                                   # (K, K)   theta_ij = e_j^T W e_i
    P = np.exp(theta - theta.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def attention(E, W, x, b=0.0):
    """What the layer C X^T softmax(X W e_i + b) makes of the prompt x: (K,).  Derived.

    X = E[x] (T, d) are the tokens of the prompt, and C (K, d) reads tokens out: C E^T = I.
    Raises ValueError if E and W do not fit, or if the embeddings are linearly dependent.
    """
    K, d = E.shape
    if W.shape != (d, d) or np.linalg.matrix_rank(E) < K:
        raise ValueError(f"need E (K, d) of rank K and W (d, d), got E {E.shape}, W {W.shape}")
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

    It equals attention, as the abstract says in words: in the softmax the weights exp(e_j^T W e_i)
    of the m_j tokens j add up, and C reads off the sum.  Raises ValueError if shapes do not fit.
    """
    if np.shape(counts) != (*np.shape(last), len(P)):
        raise ValueError(f"need P (K, K), counts (n, K), last (n,), got P {P.shape}, "
                         f"counts {np.shape(counts)}, last {np.shape(last)}")
    w = counts * P[last]                                    # (K,) or (n, K)
    return w / w.sum(axis=-1, keepdims=True)


def draw(rng, q):
    """One token from each row of q (n, K): (n,), by one uniform number for each row."""
    return (np.cumsum(q, axis=1)[:, :-1] <= rng.random((len(q), 1))).sum(axis=1)


def sample_prompts(rng, P, n, T):
    """n prompts of T uniform tokens, and a next token for each: m (n, K), i (n,), y (n,).  Ours."""
    x = rng.integers(len(P), size=(n, T))
    counts, last = token_counts(x, len(P)), x[:, -1]
    return counts, last, draw(rng, next_token(P, counts, last))


def all_prompts(K, T):
    """Each of the K^T prompts of length T once: m (K^T, K), i (K^T,).  Ours."""
    x = np.indices((K,) * T).reshape(T, -1).T
    return token_counts(x, K), x[:, -1]


def loss_and_gradient(theta, counts, last, y):
    """L = -mean ln q_y, convex in theta, and dL/dtheta (K, K).  Derived."""
    n, K = counts.shape
    q = next_token(np.exp(theta), counts, last)             # (n, K)   softmax(theta_i + ln m)
    L = -np.log(q[np.arange(n), y]).mean()
    dlogits = (q - np.eye(K)[y]) / n                        # (n, K)
    return L, np.eye(K)[last].T @ dlogits                   # row i sums its own samples


def hessian(P, counts, last):
    """d^2 L / dtheta_i^2 at theta = ln P for each last token i: H (K, K, K).  Derived.

    H_i = mean of 1[last = i] (diag q - q q^T) over the prompts: the Laplacian of a graph that joins
    a and b with weight mean 1[last = i] q_a q_b, so its rank is K minus the number of components.
    As these prompts all hold i, P is identified iff each token occurs in one of them, for each i.
    """
    q = next_token(P, counts, last)                         # (n, K)
    groups = [q[last == i] for i in range(len(P))]
    return np.array([np.diag(g.sum(axis=0)) - g.T @ g for g in groups]) / len(q)


def fit_chain(counts, last, y):
    """The maximum-likelihood estimate of P (K, K) from n samples, by Newton's method.  Derived.

    The maximum exists and is unique iff for each last token i the graph with an edge a -> b,
    wherever b was chosen from a prompt that held a, is strongly connected.  Else ValueError.
    """
    K = counts.shape[1]
    for i in range(K):
        edges = (counts[last == i] > 0).T @ np.eye(K)[y[last == i]] > 0     # (K, K)
        if not np.linalg.matrix_power(np.eye(K) + edges, K).all():
            raise ValueError(f"no unique maximum: in the n = {len(y)} samples, after token {i}, "
                             "some tokens were never chosen against the others")
    theta, step = np.zeros((K, K)), np.ones((K, K))
    while np.abs(step).max() > 1e-10:
        gradient = loss_and_gradient(theta, counts, last, y)[1]
        # on vectors that sum to 0, as the gradient does, (H_i + 11^T)^-1 is H_i^+
        H = hessian(np.exp(theta), counts, last)                            # (K, K, K)
        step = np.linalg.solve(H + 1, gradient[:, :, None])[:, :, 0]        # (K, K)
        theta -= step / max(1, np.abs(step).max() / 2)      # no entry moves by more than 2
    return np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)


def asymptotic_error(P, counts, last):
    """The limit of n E|P_hat - P|_F^2 for prompts drawn uniformly from the given ones.  Derived.

    It is sum_i tr(J_i H_i^+ J_i) with J_i = diag P_i - P_i P_i^T, as the error of theta_i has
    covariance H_i^+ / n, and dP_i = J_i dtheta_i.  If P is uniform, all prompts of length 2 give
    4 (K - 1)^2, and ever longer ones K (K - 1).  Raises ValueError if they do not identify P.
    """
    K, H = len(P), hessian(P, counts, last)
    ranks = np.linalg.matrix_rank(H)                                        # (K,)
    if (ranks < K - 1).any():
        raise ValueError(f"P is not identified: need rank {K - 1} after each token, got {ranks}")
    J = P[:, :, None] * (np.eye(K) - P[:, None, :])                         # (K, K, K)
    return (J * np.linalg.solve(H + 1, J)).sum()            # J_i = J_i^T, so this is the trace


def error_law(P, T, n, fits):
    """n |P_hat - P|_F^2 of each fit to n fresh prompts of length T, seeds 0, 1, ...: (fits,)."""
    samples = (sample_prompts(np.random.default_rng(seed), P, n, T) for seed in range(fits))
    return np.array([n * ((fit_chain(*sample) - P) ** 2).sum() for sample in samples])


def trajectories(rng, P, counts, last, times):
    """Single trajectories: each sampled token joins its prompt.  The setting: paper (abstract).

    They start with counts (runs, K), all with last token i.  Returns the counts when t is in
    times, integers >= 1: (len(times), runs, K).
    """
    m, last, history = counts.astype(float), np.full(len(counts), last), []
    for t in range(1, max(times) + 1):
        last = draw(rng, next_token(P, m, last))            # (runs,)
        m[np.arange(len(m)), last] += 1
        if t in times:
            history.append(m.copy())
    return np.array(history)


def shares(P, counts, times):
    """K = 2: token 1's share at times, from counts (runs, 2), last token 0: (len(times), runs)."""
    m = trajectories(np.random.default_rng(0), P, counts, 0, times)
    return m[:, :, 1] / m.sum(axis=2)


def gamma_law(r, t):
    """Mean share at time t of a token that is r times as likely as the winner.  Derived.

    It tends to Gamma(1 - r) t^(r - 1), from one copy of each token, if all rows of P are equal.
    The next token is then j with probability ~ m_j p_j: the counts are independent Yule processes
    of rates p_j, seen when they jump.  At their own time s, m_j ~ A_j exp(p_j s), all A_j ~ Exp(1);
    t ~ A_win exp(p_win s) gives m_j ~ A_j (t / A_win)^r, and E[A_j] E[A_win^-r] = Gamma(1 - r).
    For K = 2 and p = max p_j, r - 1 = -(2 - 1/p).  Raises ValueError unless 0 <= r < 1.
    """
    if not 0 <= r < 1:
        raise ValueError(f"need 0 <= r < 1, a token less likely than the winner, got {r=}")
    return math.gamma(1 - r) * t ** (r - 1)


def exponents(P):
    """A (K, K), A_ji = P_ji / P_jj - 1: if j wins, the share of i falls as t^A_ji.  Derived.

    When nearly all tokens are j, then i comes at the rate m_i P_ji / (m_j P_jj) with m_j ~ t.  So j
    can win iff A_ji < 0 for all others i.
    """
    return P / np.diag(P)[:, None] - 1


def phase(P):
    """K = 2: the tokens that can win, a list, and the equilibrium x of token 1's share.  Derived.

    x / (1 - x) = P_10 (P_00 - P_01) / (P_01 (P_11 - P_10)), as the last token, a fast chain while x
    hardly moves, spends just the share x of its time in 1.  If both can win, x is unstable, and
    parts their basins; if none can, x is stable, and nothing collapses; if one wins, x is None.
    Raises ValueError unless P is (2, 2), with different numbers in each row.
    """
    if P.shape != (2, 2) or (P[:, 0] == P[:, 1]).any():
        raise ValueError(f"need P (2, 2) with different numbers in each row, got {P.tolist()}")
    winners = [j for j in (0, 1) if P[j, j] > P[j, 1 - j]]
    if len(winners) == 1:
        return winners, None
    odds = P[1, 0] * (P[0, 0] - P[0, 1]) / (P[0, 1] * (P[1, 1] - P[1, 0]))
    return winners, odds / (1 + odds)


def demo():
    """Print what the derived laws predict, and what is measured."""
    def row(what, predicted, measured):
        print(f"    {what:60s}{predicted:>9s}   {measured}")

    rng, times = np.random.default_rng(0), [1000, 10000]
    E, W = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8
    x, b, P = rng.integers(5, size=12), rng.standard_normal(12), base_chain(E, W)
    difference = attention(E, W, x, b) - next_token(P, token_counts(x, 5, b), x[-1])
    print("Attention samples from a Markov chain that is reweighted by the context")
    row("", "predicted", "measured")
    row("|attention - next_token|, K = 5, d = 8, T = 12, with biases", "0",
        f"{np.abs(difference).max():.0e}")

    print("\nLearning P from n = 4000 prompts of length T: n |P_hat - P|^2, mean of 50 fits")
    for K in 3, 5, 8:
        P = np.full((K, K), 1 / K)
        errors = error_law(P, 2, 4000, 50)
        row(f"K = {K}, uniform P, T = 2, 4 (K - 1)^2",
            f"{asymptotic_error(P, *all_prompts(K, 2)):.1f}",
            f"{errors.mean():.1f} +- {errors.std() / 50 ** 0.5:.1f}")

    print("\nA single trajectory from one copy of tokens 0 and 1, to t = 10^4")
    share = shares(np.array([[0.8, 0.2], [0.8, 0.2]]), np.ones((1000, 2)), [10000])
    row("rows (.8, .2), (.8, .2): mean share of token 1, Gamma law",
        f"{gamma_law(0.25, 10000):.5f}", f"{share.mean():.5f}")
    P = np.array([[0.8, 0.2], [0.6, 0.4]])
    share = shares(P, np.ones((200, 2)), times)
    row("rows (.8, .2), (.6, .4): runs in which token 0 leads", "most",
        f"{100 * (share[1] < 0.5).mean():.0f} %")
    row("    exponent of token 1's share from 10^3, median run", f"{exponents(P)[0, 1]:.2f}",
        f"{np.median(np.log10(share[1] / share[0])):.2f}")
    P = np.array([[0.3, 0.7], [0.6, 0.4]])
    share = shares(P, np.ones((200, 2)), times)[1]
    row("rows (.3, .7), (.6, .4): neither wins; share of token 1", f"{phase(P)[1]:.3f}",
        f"{share.mean():.3f} +- {share.std():.3f}")

    x = phase(TWO_WINNERS)[1]
    print(f"\nRows (.7, .3), (.4, .6): either can win; token 1 does if it gets away above {x:.3f}")
    starts = [[1, 1], [300, 700], [273, 727], [240, 760]]
    share = shares(TWO_WINNERS, np.repeat(starts, 400, axis=0), times)[1].reshape(4, 400)
    for start, predicted, end in zip(starts, ("some", "few", "half", "most"), share):
        row(f"from {start[0]} and {start[1]} copies, it is above in", predicted,
            f"{100 * (end > x).mean():.0f} % of 400 runs")


def figure(path):
    """Draw the picture into the file path."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    with rc_context(STYLE):
        canvas = Figure(figsize=(12, 8))
        canvas.savefig(path)                # a path that cannot be written is said before the work
        (a, b), (c, e) = canvas.subplots(2, 2)

        rng, j = np.random.default_rng(0), np.arange(5)
        E, W = rng.standard_normal((5, 8)), rng.standard_normal((8, 8)) / 8
        P = base_chain(E, W)
        a.bar(j - 0.27, P[2], 0.25, color="white", edgecolor=GREY, hatch="//", label="base chain")
        for x, at, colour in ([0, 0, 0, 1, 2], j, BLUE), ([3, 4, 4, 2, 2], j + 0.27, VERMILLION):
            a.bar(at, attention(E, W, x), 0.25, color=colour, label=f"attention, x = {x}")
            a.plot(at, next_token(P, token_counts(x, 5), 2), "D", color=GREY, markersize=5,
                   label="reweighted chain" if x[0] else None)
        a.set(title="Each prompt reweights the chain", xlabel="next token j",
              ylabel="probability after token 2", ylim=(0, 0.75))
        a.legend(fontsize=11, ncols=2, loc="upper center")

        sizes, P = [1000, 2000, 4000, 8000, 16000], np.full((5, 5), 0.2)
        for T, colour, marker in (2, VERMILLION, "s"), (4, BLUE, "o"):
            errors = np.array([error_law(P, T, n, 100) for n in sizes])
            b.errorbar(sizes, errors.mean(axis=1), errors.std(axis=1) / 10, color=colour,
                       fmt=marker, capsize=4)
            limit = asymptotic_error(P, *all_prompts(5, T))
            b.axhline(limit, color=GREY, linestyle="--", zorder=1)
            b.text(4000, limit + 4, f"T = {T}: limit {limit:.1f}", color=colour, ha="center")
        b.set(title="The error of the fit meets its constant", xlabel="number n of prompts",
              xscale="log", ylabel=r"$n\ |\hat{P} - P|^2$", ylim=(0, 85))

        times = np.unique(np.geomspace(1, 10000, 30).astype(int))
        for p, colour, marker in (0.7, GREEN, "^"), (0.8, VERMILLION, "s"), (0.9, BLUE, "o"):
            share = shares(np.array([[p, 1 - p], [p, 1 - p]]), np.ones((2000, 2)), times)
            c.loglog(times, share.mean(axis=1), marker, color=colour)
            c.loglog(times, gamma_law((1 - p) / p, times), "--", color=GREY)
            c.text(14000, share[-1].mean(), f"p = {p}", color=colour, va="center")
        c.set(title="The loser's share falls by the Gamma law", xlabel="time t",
              ylabel="mean share of token 1", xlim=(0.8, 80000))

        share, x = shares(TWO_WINNERS, np.ones((30, 2)), times), phase(TWO_WINNERS)[1]
        for token, colour, line in (0, VERMILLION, ":"), (1, BLUE, "-"):
            runs = (share[-1] > x) == token
            e.semilogx(times, share[:, runs], line, color=colour)
            e.text(14000, 0.08 + 0.84 * token, f"token {token}:\n{runs.sum()} runs", color=colour,
                   va="center")
        e.axhline(x, color=GREY, linestyle="--")
        e.text(14000, x - 0.02, "8/11", color=GREY, va="top")
        e.set(title="Either token can win", xlabel="time t", ylabel="share of token 1",
              xlim=(0.8, 150000), ylim=(0, 1))
        canvas.supxlabel(
            "Both prompts end in token 2. Fits: K = 5, uniform P, 100 a point, mean and standard "
            "error. Trajectories start from one copy of tokens 0 and 1:\n2000 runs with both rows "
            "(p, 1 - p), and 30 runs with rows (.7, .3), (.4, .6). Dashed: derived.", fontsize=11)
        canvas.savefig(path)


def main():
    """Print the headline; with the name of a file, also draw the picture into it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?",
                        help="also draw the picture into this file (.png, .pdf, .svg)")
    path = parser.parse_args().picture
    if path is not None:
        try:
            figure(path)
        except (OSError, ValueError) as problem:
            parser.error(f"argument picture: {path!r} cannot be written: {problem}")
    demo()


if __name__ == "__main__":
    main()
