"""Why can a long generated text collapse?  Each token that is sampled makes itself more likely.

Companion to "From Self-Attention to Markov Models: Unveiling the Dynamics of Generative
Transformers" (Ildiz, Huang, Li, Rawat, Oymak, 2024, arXiv:2402.13512).  NumPy only.

    python beyond/related/markov_chain.py                   prints the headline
    python beyond/related/markov_chain.py picture.png       also plots the picture

Throughout this file we have:

    K, T, d      number of tokens (0 to K-1), length of a prompt, dimension of an embedding
    E, W         embeddings (row j is e_j), key-query matrix                        (K, d), (d, d)
    x, i         a prompt, its last token                                               (T,), ()
    P            base chain, P_ij proportional to exp(e_j^T W e_i); rows sum to 1         (K, K)
    m            counts: m_j is how often token j occurs in the prompt             (K,) or (K, n)
    q            chances of the next token, q_j proportional to m_j P_ij           (K,) or (K, n)
    n, t         number of texts that are sampled side by side, tokens sampled so far

Why a chain?  In the softmax each copy of token j has a weight proportional to exp(e_j^T W e_i),
hence to P_ij.  There are m_j copies, and C adds them up.

Why a collapse?  Say nearly all of the text is token j.  Then m_j is about t, and another token k
comes at the rate m_k P_jk / (t P_jj).  So m_k grows as t^(P_jk / P_jj).  If P_jj is the largest
of row j, the share of k vanishes: j can win.  Of two tokens that prefer each other, none can.

Paper (abstract): attention samples from a base chain that the prompt reweights.  A single text
collapses onto few tokens; no condition is stated.  From a summary of the paper: outputs are read
out by C, where C E^T = I.  Derived here: all formulas.  Our choice: chains, prompts, sizes.  Left
out: learning of the chain, positional encodings.  No official code found, full text not read.
"""

import argparse
import math
from functools import cache

import numpy as np

TIMES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
WINNER = np.array([[0.8, 0.2], [0.8, 0.2]])             # two base chains: token 0 wins, or
NO_WINNER = np.array([[0.1, 0.9], [0.9, 0.1]])          # each token prefers the other


def attention(E, W, x):
    """Chances of the next token (K,) after the prompt x (T,): C X^T softmax(X W e_i)."""
    X = E[x]                                            # (T, d), its last row is e_i
    s = np.exp(X @ W @ X[-1])
    s /= s.sum()                                        # (T,)
    C = np.linalg.pinv(E).T                             # (K, d), C E^T = I if rows of E allow it
    return C @ (X.T @ s)


def base_chain(E, W):
    """P (K, K)."""
    P = np.exp(E @ W.T @ E.T)
    return P / P.sum(axis=1, keepdims=True)


def next_token(P, m, i):
    """q, the chances of the next token by the reweighted chain.  Derived here."""
    q = m * P.T[:, i]
    return q / q.sum(axis=0)


def generate(rng, P, n, joins=True):
    """The shares of all tokens in n texts, prompt included, at TIMES (len(TIMES), K, n).

    The prompt is one copy of each token, token 0 last.  If joins is false, sampled tokens do not
    join it: the chain is always reweighted by the first prompt.
    """
    text, last, shares = np.ones((len(P), n)), np.zeros(n, int), []
    prompt = text if joins else text.copy()             # both are counts m; text grows below
    for t in range(1, TIMES[-1] + 1):
        c = next_token(P, prompt, last).cumsum(axis=0)
        last = (c[:-1] <= rng.random(n)).sum(axis=0)    # (n,)
        text[last, np.arange(n)] += 1
        if t in TIMES:
            shares.append(text / text.sum(axis=0))
    return np.array(shares)


def loser(P, t):
    """The mean share of token 1 for large t, if 0 wins and the rows of P are equal.  Derived here.

    Let each copy of token j split in two at the rate P_0j.  Then the next to split is a copy of j
    with chance q_j, as in the text.  At time s, m_j is about A_j exp(P_0j s): this is a Yule
    process, and A_0 and A_1 are exponential of mean 1.  So t is about A_0 exp(P_00 s), and m_1 is
    about A_1 (t / A_0)^r with r = P_01 / P_00.  The mean of A_1 A_0^-r is Gamma(1 - r).
    """
    r = P[0, 1] / P[0, 0]
    return math.gamma(1 - r) * t ** (r - 1)


def example():
    """Embeddings E (4, 6), W (6, 6) and a prompt x (5,)."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((4, 6)), rng.standard_normal((6, 6)) / 6, np.array([0, 0, 0, 1, 2])


@cache     # demo and figure share it
def experiment(n=4000, seed=0):
    """Shares of token 1 (len(TIMES), n) if 0 wins, if samples do not join, and if none wins."""
    rng = np.random.default_rng(seed)
    runs = (WINNER, n), (WINNER, n, False), (NO_WINNER, n)
    return [generate(rng, *run)[:, 1] for run in runs]


def demo():
    """Print attention beside the reweighted chain, and shares beside their predictions."""
    E, W, x = example()
    P, m = base_chain(E, W), np.bincount(x, minlength=4)
    rows = P[x[-1]], attention(E, W, x), next_token(P, m, x[-1])
    print("Chances of the tokens 0 to 3 after the prompt 0 0 0 1 2.\n")
    for name, row in zip(("base chain P", "attention", "count * P, normalized"), rows):
        print(f"    {name:30}" + "".join(f"{abs(chance):10.4f}" for chance in row))
    print(f"\nThe last two rows differ by {abs(rows[1] - rows[2]).max():.0e}.")
    print("\nMean share of token 1 in 4000 texts, if P gives it the chance 0.2 after each token.\n")
    print("    tokens sampled t   predicted (large t)               found   if samples do not join")
    wins, stays, none = experiment()
    for t in (100, 1000, 10_000):
        shares = wins[TIMES.index(t)], stays[TIMES.index(t)]
        found, control = (f"{s.mean():.5f} +- {s.std() / len(s) ** 0.5:.5f}" for s in shares)
        print(f"    {t:16,}{loser(WINNER, t):22.5f}{found:>20}{control:>25}")
    print(f"\nAll texts end at {wins[-1].max():.3f} or less.  If each token prefers the other "
          "(with 0.9), none\nwins.  By symmetry their shares tend to 1/2.  All texts end between "
          f"{none[-1].min():.3f} and {none[-1].max():.3f}.")


def figure(path):
    """Plot attention on a prompt, and the share of token 1 in long texts."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4, "lines.markersize": 10})
    canvas, (bars, decay) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    E, W, x = example()
    P, m, j = base_chain(E, W), np.bincount(x, minlength=4), np.arange(4)
    bars.bar(j - 0.2, P[2], 0.4, color="#BBBBBB", label="base chain P")
    bars.bar(j + 0.2, attention(E, W, x), 0.4, color="#0072B2", label="attention")
    bars.plot(j + 0.2, next_token(P, m, 2), "kD", label="proportional to count × P")
    bars.set(title="A prompt reweights the chain", xlabel="next token after 0 0 0 1 2",
             ylabel="chance", xticks=j, ylim=(0, 1))
    bars.legend(frameon=False)
    runs = experiment()
    for shares, color, line in zip(runs, ("#0072B2", "#D55E00", "#009E73"), ("o", "s-", "^-")):
        decay.loglog(TIMES, shares.mean(axis=1), line, color=color)
    decay.loglog(TIMES, runs[0][:, :5], color="#0072B2", linewidth=1)
    decay.loglog(TIMES[3:], [loser(WINNER, t) for t in TIMES[3:]], "k--", linewidth=2)
    decay.text(1e4, 0.68, "if each prefers the other", color="#009E73", ha="right")
    decay.text(1e4, 0.28, "if samples do not join", color="#D55E00", ha="right")
    decay.text(1, 2e-4, "token 0 wins:\nthin: single texts\ndots: mean\ndashed: predicted",
               color="#0072B2")
    decay.set(title="A long text can collapse", xlabel="tokens sampled", ylabel="share of token 1",
              ylim=(1e-4, 1.3))
    canvas.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", help="also plot into this file")
    picture = parser.parse_args().picture
    try:
        demo()
        if picture:
            figure(picture)
    except (ImportError, OSError, ValueError) as problem:
        parser.error(problem)
