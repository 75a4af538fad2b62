"""What does a trained attention layer retrieve, and what does it mix?

It retrieves the component of highest priority, and mixes the tokens of this component.

Companion to "Mechanics of Next Token Prediction with Self-Attention" (Li, Huang, Ildiz, Rawat,
Oymak, 2024, arXiv:2403.08081).  NumPy only.

    python beyond/related/next_token.py                     prints the headline
    python beyond/related/next_token.py picture.png         also plots the picture

Throughout this file we have:

    n, T, K, d    samples, tokens in a sequence, tokens in the vocabulary, dimension
    E, X          embeddings, row j is e_j; embedded sequences X = E[x]   (K, d), (n, T, d)
    x             sequences; the last token is the query, and also a key        (n, T) ints
    y             labels (next tokens), each of which occurs in its sequence       (n,) ints
    W             the weights of attention, keys by query                            (d, d)
    a, s          logits a_t = e_{x_t}^T W e_{x_T}, attention s = softmax(a)         (n, T)
    P             probability of the label, the sum of s_t over x_t = y              (n, 1)
    graph of k    i -> j if a sequence that ends in k and contains j has the label i != j
    SCC           strongly connected component of such a graph: paths lead from each to each
    edge, same    for each k: the edges of its graph; who shares an SCC       (K, K, K) bools
    S_fin         span of (e_i - e_j) e_k^T for all i, j in one SCC of the graph of k
    basis         an orthonormal basis of S_fin, matrices as rows                 (r, d * d)
    W_svm, W_fin  the direction in which W grows; the limit of its part in S_fin     (d, d)

What is the paper's, from its abstract: attention retrieves (hard) the tokens of the SCC of highest
priority and composes (soft) the tokens within it; W has a directional and a finite part.  From
memory, not verified: the part of W in S_fin tends to W_fin, and W/|W| to W_svm/|W_svm|.  The rest
is from the official code (yixiao-huang/next-token-prediction) or derived here, as each function
says.  We did not read the full text.
"""

import argparse

import numpy as np


def hard_margin(A):         # as in max_margin.py; each file is copied alone
    """w (d,) = argmin |w| subject to A w >= 1, and its multipliers a (m,): w = A^T a, a >= 0.

    A is (m, d).  Hildreth's dual coordinate ascent (our choice): row by row, change a_i
    until that constraint holds with equality, or a_i is 0.  Raises ValueError if infeasible.
    """
    w, a, squares = np.zeros(A.shape[1]), np.zeros(len(A)), (A * A).sum(axis=1)
    for _ in range(5000):
        largest = 0.0
        for i in range(len(A)):
            change = max(-a[i], (1 - A[i] @ w) / squares[i])
            a[i] += change
            w += change * A[i]
            largest = max(largest, abs(change))
        if largest < 1e-13 * (1 + a.max(initial=0)):
            return w, a
    if (A @ w).min() < 1 - 1e-6:
        raise ValueError("infeasible: found no w with A w >= 1")
    return w, a


def attention(W, X, keep=True):
    """Attention s (n, T) of the last token to all; keep (n, T) bools drops some.  Official code."""
    query = X[:, -1]                                          # (n, d)
    a = (X @ (query @ W.T)[:, :, None])[:, :, 0]              # (n, T)
    s = np.exp(a) * keep                                      # (n, T)
    return s / s.sum(axis=1, keepdims=True)


def loss_and_grad(W, E, x, y, keep=True):
    """The loss, mean of -ln P (official code), and its gradient dW (d, d) (derived).

    Each label must be in its sequence.  keep is as in attention.  The loss is convex in W, because
    equal tokens share a logit (derived).
    """
    n, X, hit = len(x), E[x], x == y[:, None]                 # (n, T, d), (n, T)
    s = attention(W, X, keep)                                 # (n, T)
    P = (s * hit).sum(axis=1, keepdims=True)                  # (n, 1)
    loss = -np.log(P).sum() / n
    # P is (sum of e^a over x_t = y) / (sum of e^a), so the slope of -ln P in a is s - s hit / P
    da = (s - s * hit / P) / n                                # (n, T)
    dW = (da[:, None] @ X)[:, 0].T @ X[:, -1]                 # (d, d)
    return loss, dW


def priority_graph(x, y, K):
    """The token-priority graphs `edge` and their components `same`, both (K, K, K).  Official code.

    edge[k, i, j]: the graph of k has the edge i -> j.
    same[k, i, j]: in the graph of k, i and j share an SCC, or i = j.
    """
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
                               (e_i - e_j)^T W e_k >= 1 for all other edges

    We solve it on the complement of S_fin, where the equalities always hold (derived).
    Raises ValueError if it is infeasible, which is possible if K > d.
    """
    edge, same = priority_graph(x, y, len(E))
    k, i, j = np.nonzero(edge)
    rows = ((E[i] - E[j])[:, :, None] * E[k][:, None]).reshape(len(k), -1)     # (edges, d * d)
    inside = same[k, i, j]
    _, size, basis = np.linalg.svd(rows[inside], full_matrices=False)
    basis = basis[size > 1e-9]
    rows = rows[~inside] - project(basis, rows[~inside])
    if (np.abs(rows).max(axis=1) < 1e-9).any():
        raise ValueError("infeasible: an inequality contradicts the equalities")
    w, _ = hard_margin(rows)
    return w.reshape(E.shape[1], -1), basis


def finite_part(E, x, y):
    """W_fin (d, d): it minimizes, over S_fin, the loss of samples that keep only the label's SCC.

    Found by gradient descent from 0, which stays in S_fin (official code).  The learning rate 1/L
    is ours; the Hessian is at most L = max |e_j|^4 (derived).  Raises ValueError if that is slow.
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
    raise ValueError("W_fin needs more than 100000 steps")


def train(W, E, x, y, steps, eta=1.0, normalized=False):
    """W at the given steps, ascending, of gradient descent (the official code's is normalized)."""
    found = []
    for t in range(1, steps[-1] + 1):
        dW = loss_and_grad(W, E, x, y)[1]
        W = W - eta * (dW / np.linalg.norm(dW) if normalized else dW)
        if t in steps:
            found.append(W)
    return np.array(found)                                    # (len(steps), d, d)


def hand_made():
    """E (5, 5), x (8, 4), y (8,) with SCCs {1, 2} > {3} > {4}, {0}; 1 beats 2 in 3 of 4.  Ours."""
    x = [[1, 2, 3, 0]] * 3 + [[2, 1, 3, 0], [3, 4, 1, 0], [4, 3, 2, 0], [3, 4, 4, 0], [3, 4, 3, 0]]
    return np.eye(5), np.array(x), np.array([1, 1, 1, 2, 1, 2, 3, 3])


def random_instance(rng, n=6):
    """A start W with entries uniform on +-1/sqrt(d), and E, x, y.  Official code.

    Embeddings are random unit vectors.  No token occurs twice in a sequence, and the label is one
    of them.  x and y are sampled until some SCC has two tokens.
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
    """cos(W, W_svm), the same without W's part in S_fin, and |W's part in S_fin - W_fin|."""
    finite = project(basis, W)
    cos = [np.vdot(V, W_svm) / (np.linalg.norm(V) * np.linalg.norm(W_svm)) for V in (W, W - finite)]
    return *cos, np.linalg.norm(finite - W_fin)


def demo():
    """Print the claim on the hand-made instance, and on 10 random instances."""
    def row(name, values):
        print(f"  {name:<24}" + "".join(f"{v:9.4f}" for v in values))

    E, x, y = hand_made()
    (W_svm, basis), W_fin = directional_part(E, x, y), finite_part(E, x, y)
    steps = [100, 1000, 10000]
    Ws = train(np.zeros((5, 5)), E, x, y, steps)
    R = np.vdot(Ws[-1], W_svm) / np.vdot(W_svm, W_svm)
    print("Hand-made: SCCs {1, 2} > {3} > {4}, {0}. On the sequences of 1, 2, 3, 0 the labels are")
    print("1, 1, 1, 2, so attention to 1 and 2 should tend to 3/4 and 1/4.")
    print("  logits for query 0      " + "".join(f"  token {j}" for j in range(5)))
    row("W_svm, direction", W_svm[:, 0])
    row("W_fin, finite part", W_fin[:, 0])
    row(f"{R:.3f} W_svm + W_fin", (R * W_svm + W_fin)[:, 0])
    row(f"W after {steps[-1]} steps", Ws[-1][:, 0])
    print("\nP_fin is the projection on S_fin; 'off S_fin' is cos(W - P_fin W, W_svm).")
    print("    steps  cos(W, W_svm)  off S_fin  |P_fin W - W_fin|  exp(W_10 - W_20)  "
          "attention on [1 2 3 0]")
    for t, W in zip(steps, Ws):
        cos, cos_off, distance = compare(W, W_svm, W_fin, basis)
        s = attention(W, E[x])[0]
        print(f"  {t:7}{cos:15.4f}{cos_off:11.5f}{distance:19.1e}{np.exp(W[1, 0] - W[2, 0]):18.4f}"
              "  ", *[f"{s_t:.3f}" for s_t in s])
    print(f"  limit  {1:15}{1:11}{0:19}{3:18}   0.750 0.250 0     0")

    found = []
    for seed in range(10):
        W, E, x, y = random_instance(np.random.default_rng(seed))
        W_svm, basis = directional_part(E, x, y)
        W = train(W, E, x, y, [4000], eta=0.01, normalized=True)[0]
        W_fin = finite_part(E, x, y)
        found.append([*compare(W, W_svm, W_fin, basis), np.linalg.norm(W_fin)])
    print("\n10 random instances, 4000 normalized steps of 0.01: least, mean, most")
    for name, values in zip(("cos(W, W_svm)", "off S_fin", "|P_fin W - W_fin|", "|W_fin|"),
                            np.array(found).T):
        row(name, [values.min(), values.mean(), values.max()])
    print(f"W_fin is 0 in {(values < 1e-9).sum()} of them. Half a step is {0.01 / 2}.")


BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot the graph, the logits, the attention and the convergence into the file path."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((graph, logits), (choice, convergence)) = plt.subplots(2, 2, figsize=(10, 8))
    E, x, y = hand_made()
    (W_svm, basis), W_fin = directional_part(E, x, y), finite_part(E, x, y)
    edge, same = priority_graph(x, y, len(E))
    steps = sorted({round(t) for t in np.geomspace(1, 100000, 61)})
    Ws = train(np.zeros((5, 5)), E, x, y, steps)

    spots = list(zip([0, 0, 1, 2, 1], W_svm[:, 0]))
    for i, j in np.argwhere(edge[0]):
        color, curve = (BLUE, "arc3,rad=0.25") if same[0, i, j] else (VERMILLION, "arc3")
        graph.annotate("", spots[j], spots[i], arrowprops=dict(
            arrowstyle="-|>", color=color, lw=2, shrinkB=15, connectionstyle=curve))
    for token, spot in enumerate(spots):
        graph.text(*spot, token, ha="center", va="center", bbox=dict(boxstyle="circle", fc="w"))
    for height, color, words in ((1.2, GREY, "arrow i → j:\nlabel i beat j"),
                                 (0.5, BLUE, "one component:\nequal logits"),
                                 (-0.2, VERMILLION, "one way:\n1 apart or more"),
                                 (-1.1, GREY, "$W_{svm}$: the\nsmallest such $W$")):
        graph.text(2.5, height, words, color=color, va="center")
    graph.set(title="The winners get the larger logits", xlim=(-0.3, 4.6), ylim=(-1.5, 1.6),
              ylabel="logit of token in $W_{svm}$", xticks=[], yticks=[-1, 0, 1])

    for r, (t, marker) in enumerate(zip([100, 1000, 10000, 100000], "os^D")):
        W, at = Ws[steps.index(t)], np.arange(5) + 0.2 * (r - 1.5)
        R = np.vdot(W, W_svm) / np.vdot(W_svm, W_svm)
        logits.plot(at, W[:, 0], marker, color=BLUE, alpha=0.4 + 0.2 * r, label=f"t = {t:,}")
        logits.hlines((R * W_svm + W_fin)[:, 0], at - 0.13, at + 0.13, color=GREY, ls="--")
    logits.set(title="Logits grow; 1 and 2 stay ln 3 apart", xlabel="token",
               ylabel="logit in $W$ after t steps", ylim=(-11.5, 14))
    logits.legend(loc="upper right", handlelength=0.8, labelspacing=0.2)

    s = np.array([attention(W, E[x]) for W in Ws])                       # (times, n, T)
    limit = attention(W_fin, E[x], same[x[:, -1:], y[:, None], x])       # (n, T)
    for i, t, color, style in [(4, 2, VERMILLION, "-."), (0, 0, BLUE, "-"), (0, 1, GREEN, ":")]:
        choice.axhline(limit[i, t], color=GREY, ls="--", lw=1.5)
        choice.semilogx(steps, s[:, i, t], style, color=color)
        choice.text(100, limit[i, t] - 0.1, f"token {x[i, t]} in {x[i].tolist()}", color=color)
    choice.set(title="Hard between components, soft within", xlabel="step t",
               ylabel="attention to a token", ylim=(0, 1.05))

    cos = np.array([compare(W, W_svm, W_fin, basis)[0] for W in Ws])
    convergence.loglog(steps, 1 - cos, "-.", color=VERMILLION)
    convergence.loglog(steps, abs(Ws[:, 1, 0] - Ws[:, 2, 0] - np.log(3)), color=BLUE)
    convergence.loglog([1e2, 1e5], [2e-3, 2e-6], "--", color=GREY)
    convergence.text(1e5, 7e-3, "1 - cos($W$, $W_{svm}$)", color=VERMILLION, ha="right")
    convergence.text(8, 0.2, "|gap of 1 and 2 - ln 3|", color=BLUE)
    convergence.text(1e3, 1e-5, "1/t", color=GREY)
    convergence.set(title="The gap of 1 and 2 converges as 1/t", xlabel="step t",
                    ylabel="distance from the limit")
    canvas.supxlabel(
        "Where 1 and 2 compete, 1 is the label three times, 2 once: so a gap of ln 3 stays.\n"
        "Dashes are predicted; above, a multiple of $W_{svm}$ plus this gap.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
