"""Next-token prediction by one attention layer: hard retrieval by priority, soft composition.

Companion to "Mechanics of Next Token Prediction with Self-Attention" (Li, Huang, Ildiz, Rawat,
Oymak, 2024, arXiv:2403.08081).  NumPy only.  `python next_token.py` prints the headline, and
`python next_token.py next_token.png` also draws the picture.

Throughout this file we have:

    n, T, K, d    samples, tokens in a sequence, tokens in the vocabulary, dimension
    E             embeddings, row j is e_j                                           (K, d)
    x             sequences; the last token is the query, and also a key        (n, T) ints
    y             labels (next tokens), each of which occurs in its sequence       (n,) ints
    W             the weights of attention, keys by query                            (d, d)
    a, s          logits a_t = e_{x_t}^T W e_{x_T}, attention s = softmax(a)         (n, T)
    P             probability of the label, the sum of s_t over x_t = y              (n, 1)
    SCC           strongly connected component of the graph of a last token k
    edge, same    for each k: its graph, and who shares an SCC                (K, K, K) bools
    S_fin         span of the (e_y - e_j) e_k^T of all samples with y and j in one SCC of k
    basis         its orthonormal basis, matrices as rows                         (r, d * d)
    W_svm, W_fin  the directional part of W, and the finite part, within S_fin       (d, d)

Paper (abstract): self-attention retrieves (hard) the tokens of the highest-priority SCC and
composes (soft) inside it; its weights are a directional plus a finite part.  From memory,
unverified: the projection of W on S_fin tends to W_fin, and W/|W| to W_svm/|W_svm|.  The rest is
from the official code (yixiao-huang/next-token-prediction) or derived here, as each function says.
The paper's full text was not read.
"""

import argparse

import numpy as np

BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}


def hard_margin(A, b):      # as in max_margin.py; each file is copied alone
    """w (d,) = argmin |w| subject to A w >= b, and its multipliers a (m,): w = A^T a, a >= 0.

    A is (m, d), b (m,).  Hildreth's dual coordinate ascent (our choice): row by row, change a_i
    until that constraint holds with equality, or a_i is 0.  Raises ValueError if infeasible.
    """
    w, a, squares = np.zeros(A.shape[1]), np.zeros(len(A)), (A * A).sum(axis=1)
    for _ in range(5000):
        largest = 0.0
        for i in range(len(A)):
            change = max(-a[i], (b[i] - A[i] @ w) / squares[i])
            a[i] += change
            w += change * A[i]
            largest = max(largest, abs(change))
        if largest < 1e-13 * (1 + a.max(initial=0)):
            return w, a
    if (A @ w - b).min() < -1e-6:
        raise ValueError(f"infeasible: found no w with A w >= b, {A.shape=}")
    return w, a


def attention(W, E, x, keep=True):
    """Attention s (n, T) of the last token; keep (n, T) bools drops tokens.  Official code."""
    query = E[x[:, -1]]                                       # (n, d)
    a = (E[x] @ (query @ W.T)[:, :, None])[:, :, 0]           # (n, T)
    s = np.exp(a) * keep                                      # (n, T)
    return s / s.sum(axis=1, keepdims=True)


def loss_and_grad(W, E, x, y, keep=True):
    """The loss, mean of -ln P (official code), and its gradient dW (d, d) (derived); keep as above.

    It is convex in W, as equal tokens share a logit (derived).  Raises ValueError if x and y do
    not fit or a label is not in its sequence.
    """
    if y.shape != x.shape[:1] or not (x == y[:, None]).any(axis=1).all():
        raise ValueError(f"need x (n, T), y (n,), labels in their sequences, got {x=}, {y=}")
    s = attention(W, E, x, keep)                              # (n, T)
    hit = x == y[:, None]                                     # (n, T)
    P = (s * hit).sum(axis=1, keepdims=True)                  # (n, 1)
    loss = -np.log(P).mean()
    # P = (sum of e^a over x_t = y) / (sum of e^a), so -ln P has the slope s - s hit / P in a
    da = (s - s * hit / P) / len(x)                           # (n, T)
    dW = (da[:, None] @ E[x])[:, 0].T @ E[x[:, -1]]           # (d, d)
    return loss, dW


def priority_graph(x, y, K):
    """The token-priority graphs `edge` and their components `same`, both (K, K, K).  Official code.

    edge[k, i, j]: some sequence that ends in k and holds j has the label i, and i != j.
    same[k, i, j]: i and j reach each other in the graph of k: they are in one SCC, or i = j.
    Raises ValueError if x and y do not fit or a token is not in 0..K-1.
    """
    if y.shape != x.shape[:1] or min(x.min(), y.min()) < 0 or max(x.max(), y.max()) >= K:
        raise ValueError(f"need x (n, T) and y (n,) of tokens in 0..{K - 1}, got {x=}, {y=}")
    edge = np.zeros((K, K, K), dtype=bool)
    edge[x[:, -1:], y[:, None], x] = True
    edge &= ~np.eye(K, dtype=bool)
    reach = edge | np.eye(K, dtype=bool)
    for _ in range(K.bit_length()):     # paths of at most 2, 4, 8, ... > K edges
        reach = reach @ reach
    return edge, reach & reach.transpose(0, 2, 1)


def project(basis, W):
    """The projection of W (or of rows, matrices flattened) on the span of basis; shaped as W."""
    return (W.reshape(-1, basis.shape[1]) @ basis.T @ basis).reshape(W.shape)


def directional_part(E, x, y):
    """W_svm (d, d) and the basis (r, d * d) of S_fin.  The problem is the official code's:

        min |W|   subject to   (e_i - e_j)^T W e_k = 0 for the edges i -> j of k inside an SCC,
                               (e_i - e_j)^T W e_k >= 1 for the others

    Solved (derived) on the complement of S_fin, where the equalities hold by themselves.
    Raises ValueError if it is infeasible, which can be if K > d.
    """
    edge, same = priority_graph(x, y, len(E))
    k, i, j = np.nonzero(edge)
    rows = ((E[i] - E[j])[:, :, None] * E[k][:, None]).reshape(len(k), -1)     # (edges, d * d)
    inside = same[k, i, j]
    _, size, basis = np.linalg.svd(rows[inside], full_matrices=False)
    basis = basis[size > 1e-9]
    rows = rows[~inside] - project(basis, rows[~inside])
    if (np.abs(rows).max(axis=1) < 1e-9).any():
        raise ValueError(f"infeasible: an inequality contradicts the equalities, {E.shape=}")
    w, _ = hard_margin(rows, np.ones(len(rows)))
    return w.reshape(E.shape[1], -1), basis


def finite_part(E, x, y):
    """W_fin (d, d): the minimizer over S_fin of the loss if samples keep only their label's SCC.

    Gradient descent from 0, which stays in S_fin (official code).  The step 1/L is ours: the
    Hessian is at most L = max |e_j|^4 (derived).  Raises ValueError if that takes too long.
    """
    _, same = priority_graph(x, y, len(E))
    keep = same[x[:, -1:], y[:, None], x]                     # (n, T)
    eta = 1 / (E * E).sum(axis=1).max() ** 2
    W = np.zeros((E.shape[1],) * 2)
    for _ in range(100000):
        dW = loss_and_grad(W, E, x, y, keep)[1]
        if np.linalg.norm(dW) < 1e-12:
            return W
        W -= eta * dW
    raise ValueError(f"W_fin needs more than 100000 steps of {eta}")


def train(W, E, x, y, steps, eta=1.0, normalized=False):
    """The W at the given steps, ascending, of gradient descent (official code: normalized)."""
    found = []
    for t in range(1, steps[-1] + 1):
        dW = loss_and_grad(W, E, x, y)[1]
        W = W - eta * (dW / np.linalg.norm(dW) if normalized else dW)
        if t in steps:
            found.append(W)
    return np.array(found)                                    # (len(steps), d, d)


def hand_made():
    """E (5, 5), x (8, 4), y (8,): SCCs {1, 2} > {3} > {4}, {0}; 1 beats 2, 3 to 1.  Derived."""
    x = [[1, 2, 3, 0]] * 3 + [[2, 1, 3, 0], [3, 4, 1, 0], [4, 3, 2, 0], [3, 4, 4, 0], [3, 4, 3, 0]]
    return np.eye(5), np.array(x), np.array([1, 1, 1, 2, 1, 2, 3, 3])


def random_instance(rng, n=6):
    """A start W uniform on +-1/sqrt(d), E, x, y; rng is a numpy.random.Generator.  Official code.

    Embeddings are random unit vectors, no token is twice in a sequence, the label is one of them,
    and x, y are redrawn until some SCC has two tokens.
    """
    T, K, d = 4, 6, 8
    W = rng.uniform(-1, 1, (d, d)) / np.sqrt(d)
    E = rng.standard_normal((K, d))
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    while True:
        x = rng.permuted(np.tile(np.arange(K), (n, 1)), axis=1)[:, :T]
        y = x[np.arange(n), rng.integers(T, size=n)]
        if (priority_graph(x, y, K)[1] != np.eye(K, dtype=bool)).any():
            return W, E, x, y


def compare(W, W_svm, W_fin, basis):
    """cos(W, W_svm), the same for the part of W off S_fin, and |projection on S_fin - W_fin|."""
    finite = project(basis, W)
    cos = [np.vdot(V, W_svm) / (np.linalg.norm(V) * np.linalg.norm(W_svm)) for V in (W, W - finite)]
    return *cos, np.linalg.norm(finite - W_fin)


def demo():
    """Print the claim on the hand-made instance, and on 10 random ones."""
    def row(name, values):
        print(f"  {name:<24}" + "".join(f"{v:9.4f}" for v in values))

    E, x, y = hand_made()
    (W_svm, basis), W_fin = directional_part(E, x, y), finite_part(E, x, y)
    steps = [100, 1000, 10000]
    Ws = train(np.zeros((5, 5)), E, x, y, steps)
    R = np.vdot(Ws[-1], W_svm) / np.vdot(W_svm, W_svm)
    print("Hand-made: SCCs {1, 2} > {3} > {4}, {0}; where 1 meets 2, the label is 1, 1, 1, 2.")
    print("  logits for query 0      " + "".join(f"  token {j}" for j in range(5)))
    row("W_svm, directional", W_svm[:, 0])
    row("W_fin, finite", W_fin[:, 0])
    row(f"{R:.3f} W_svm + W_fin", (R * W_svm + W_fin)[:, 0])
    row(f"W after {steps[-1]} steps", Ws[-1][:, 0])
    print("\n    steps  cos(W, W_svm)  off S_fin  |proj W - W_fin|  exp(W_10 - W_20)  "
          "attention on [1 2 3 0]")
    for t, W in zip(steps, Ws):
        cos, cos_off, distance = compare(W, W_svm, W_fin, basis)
        s = attention(W, E, x)[0]
        print(f"  {t:7}{cos:15.4f}{cos_off:11.5f}{distance:18.1e}{np.exp(W[1, 0] - W[2, 0]):18.4f}"
              "  ", *[f"{s_t:.3f}" for s_t in s])
    print(f"  limit  {1:15}{1:11}{0:18}{3:18}   0.750 0.250 0     0")

    found = []
    for seed in range(10):
        W, E, x, y = random_instance(np.random.default_rng(seed))
        W_svm, basis = directional_part(E, x, y)
        W = train(W, E, x, y, [4000], eta=0.01, normalized=True)[0]
        found.append(compare(W, W_svm, finite_part(E, x, y), basis))
    print("\n10 random instances, 4000 normalized steps of .01: least, mean, most")
    for name, values in zip(("cos(W, W_svm)", "off S_fin", "|proj W - W_fin|"), np.array(found).T):
        row(name, [values.min(), values.mean(), values.max()])


def figure(path):
    """Draw the graph, the logits, the attention and the convergence into path."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    with rc_context(STYLE):
        canvas = Figure(figsize=(12, 8))
        canvas.savefig(path)            # a path that cannot be written is said before the work
        (ax1, ax2), (ax3, ax4) = canvas.subplots(2, 2)
        E, x, y = hand_made()
        (W_svm, basis), W_fin = directional_part(E, x, y), finite_part(E, x, y)
        edge, same = priority_graph(x, y, len(E))
        steps = sorted({round(t) for t in np.geomspace(1, 100000, 61)})
        Ws = train(np.zeros((5, 5)), E, x, y, steps)

        spots = list(zip([0, 0, 1, 2, 1], W_svm[:, 0]))
        for i, j in np.argwhere(edge[0]):
            color, curve = (BLUE, "arc3,rad=0.25") if same[0, i, j] else (VERMILLION, "arc3")
            ax1.annotate("", spots[j], spots[i], arrowprops=dict(
                arrowstyle="-|>", color=color, lw=2, shrinkB=15, connectionstyle=curve))
        for token, spot in enumerate(spots):
            ax1.text(*spot, token, ha="center", va="center", bbox=dict(boxstyle="circle", fc="w"))
        ax1.text(1.25, 0.9, "within an SCC:\nequal logits", color=BLUE)
        ax1.text(1.45, -1.25, "to a lower SCC:\n1 or more apart", color=VERMILLION)
        ax1.set(title="The label goes above the tokens beside it", ylabel="logit in W_svm",
                xlim=(-0.3, 2.8), ylim=(-1.45, 1.4), xticks=[], yticks=[-1, 0, 1])

        for r, (t, marker) in enumerate(zip([100, 1000, 10000, 100000], "os^D")):
            W, at = Ws[steps.index(t)], np.arange(5) + 0.2 * (r - 1.5)
            R = np.vdot(W, W_svm) / np.vdot(W_svm, W_svm)
            ax2.plot(at, W[:, 0], marker, color=BLUE, alpha=0.4 + 0.2 * r, label=f"{t:,} steps")
            ax2.hlines((R * W_svm + W_fin)[:, 0], at - 0.13, at + 0.13, color=GREY, ls="--")
        ax2.set(title="W grows along W_svm; W_fin stays", ylabel="logit in W",
                xlabel="token j;  dashes: R W_svm + W_fin")
        ax2.legend(fontsize=11)

        s = np.array([attention(W, E, x) for W in Ws])                       # (times, n, T)
        limit = attention(W_fin, E, x, same[x[:, -1:], y[:, None], x])       # (n, T)
        for i, t, color, style in [(4, 2, VERMILLION, "-."), (0, 0, BLUE, "-"), (0, 1, GREEN, ":")]:
            ax3.axhline(limit[i, t], color=GREY, ls="--", lw=1.5)
            ax3.semilogx(steps, s[:, i, t], style, color=color)
            ax3.text(1e3, limit[i, t] - 0.08, f"token {x[i, t]} in {x[i]}", color=color)
        ax3.set(title="Hard between SCCs, soft (3 : 1) within", xlabel="step t", ylabel="attention",
                ylim=(0, 1.05))

        cos, cos_off, distance = np.array([compare(W, W_svm, W_fin, basis) for W in Ws]).T
        ax4.loglog(steps, 1 - cos, "-.", color=VERMILLION, label="1 - cos(W, W_svm)")
        ax4.loglog(steps, 1 - cos_off, "-", color=BLUE, label="1 - cos, W off S_fin")
        ax4.loglog(steps, distance, ":", color=GREEN, label="|proj W - W_fin|")
        ax4.loglog([1e2, 1e5], [2e-3, 2e-6], "--", color=GREY, label="as 1/t")
        ax4.legend(fontsize=11, loc="lower left")
        ax4.set(title="The finite part closes as 1/t", xlabel="step t", ylabel="distance left")
        canvas.supxlabel("5 one-hot tokens, 8 sequences of 4 that end in token 0; descent from 0, "
                         "eta = 1.\nDashed: predicted, or the slope of 1/t.", fontsize=11)
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
