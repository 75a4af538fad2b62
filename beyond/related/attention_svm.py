"""What changes if the attention matrix W is trained as a product K Q^T?  It tends to low rank.

Companion to "Transformers as Support Vector Machines" (Tarzanagh, Li, Thrampoulidis, Oymak, 2023,
arXiv:2308.16898).  NumPy only.

    python beyond/related/attention_svm.py                  prints the headline
    python beyond/related/attention_svm.py picture.png      also plots the picture

Throughout this file we have:

    n, T, d      samples, tokens in a sample, dimension; "..." in a shape: runs side by side
    X, Z, G      tokens x_it, queries z_i, scores g_it      (..., n, T, d), (..., n, d), (..., n, T)
    W            the attention matrix, trained itself or as K Q^T                       (..., d, d)
    s            attention, s_i = softmax over t of x_it^T W z_i                       (..., n, T)
    f            the score that attention collects, f_i = sum_t s_it g_it                  (..., n)
    L            the loss, mean_i log(1 + e^-f_i) + mu (sum of squares of all trained weights)
    A            (x - x_it) z_i^T for all i and t, where x is the token of sample i that W selects
                 (its s is largest), and x_it is another one                              (m, d, d)
    W_F, W_nuc   the SVMs: the W of least |W|_F or least |W|_nuc (the sum of the singular values)
                 with A_j . W >= 1 for all j, where A_j . W is the sum of A_j * W            (d, d)

Why two SVMs?  A larger W selects more sharply, and only the penalty mu limits it.  As mu vanishes,
W grows, and takes the direction that separates the tokens at the least penalty.  For W this is
|W|_F^2.  For K and Q it is the least |K|_F^2 + |Q|_F^2 with K Q^T = W, which is 2 |W|_nuc.

Paper (abstract): as the penalty vanishes, K Q^T turns to W_nuc, and W to W_F.  Official code
(umich-sota/TF-as-SVM): random instances, starts, eta; mu = 2.2e-16 on K and Q only.  Derived here:
gradients.  Our choice: other mu, a penalty on W, solver.  The paper's full text was not read.
"""

import argparse
from functools import cache

import numpy as np

MU = (1e-4, 1e-8, 1e-16, 1e-32)
DUAL = {"fro": "fro", "nuc": 2}                         # both norms, and their dual norms


def attention(W, X, Z):
    """s (..., n, T).  Official code."""
    s = (X @ (Z @ W.swapaxes(-1, -2))[..., None])[..., 0]               # x_it^T W z_i
    s = np.exp(s - s.max(axis=-1, keepdims=True))
    return s / s.sum(axis=-1, keepdims=True)


def descent(W, X, Z, G):
    """-dL/dW (..., d, d), but for the penalty.  Derived here.

    It is mean_i sum_t c_it x_it z_i^T / (1 + e^f_i) with c_it = s_it (g_it - f_i).  For the
    selected token g_it - f_i drowns in rounding once s_it is nearly 1; but sum_t c_it = 0.
    """
    s = attention(W, X, Z)
    f = (s * G).sum(axis=-1, keepdims=True)                             # (..., n, 1)
    c = s * (G - f)                                                     # (..., n, T)
    others = s < s.max(axis=-1, keepdims=True)
    c = np.where(others, c, -(c * others).sum(axis=-1, keepdims=True))
    c /= (1 + np.exp(f)) * c.shape[-2]
    return (c[..., None, :] @ X)[..., 0, :].swapaxes(-1, -2) @ Z


def unit(M):
    """M (..., d, d), scaled to |M|_F = 1."""
    return M / np.linalg.norm(M, axis=(-2, -1), keepdims=True)


def train(K, Q, both, X, Z, G, mu, steps=4000, eta=0.1):
    """K, Q (..., d, d) after descent of K, or of both, by eta at each step.  Official code."""
    for _ in range(steps):
        U = descent(K @ Q.swapaxes(-1, -2), X, Z, G)
        dK, dQ = U @ Q - 2 * mu * K, U.swapaxes(-1, -2) @ K - 2 * mu * Q
        K = K + eta * unit(dK)
        Q = Q + eta * unit(dQ) if both else Q
    return K, Q


def constraints(W, X, Z):
    """A (m, d, d) of one instance: W (d, d), X (n, T, d), Z (n, d)."""
    s = attention(W, X, Z)
    selected = s == s.max(axis=1, keepdims=True)                        # (n, T)
    return ((X[selected][:, None] - X)[..., None] * Z[:, None, None])[~selected]


def svm(A, norm):
    """W_F (norm "fro") or W_nuc ("nuc").  Raises ValueError if it does not exist.

    y_j rises while A_j . W < 1; W follows sum_j y_j A_j, and shrinks (Chambolle and Pock, 2011).
    For sum_j y_j A_j of dual norm 1, sum(y) <= (sum_j y_j A_j) . W <= |W|: this certifies W.
    """
    M = A.reshape(len(A), -1)
    W, y, h = np.zeros((2, *A[0].shape)), np.zeros(len(A)), 0.99 / np.linalg.norm(M, 2)
    for step in range(20_000):
        y = np.maximum(y + h * (1 - M @ (2 * W[1] - W[0]).ravel()), 0)
        left, sigma, right = np.linalg.svd(W[1] + h * np.tensordot(y, A, 1))
        size = sigma if norm == "nuc" else np.linalg.norm(sigma)
        W = W[1], left * sigma * (1 - h / np.maximum(size, h)) @ right
        if step % 50 == 49 and (margin := (M @ W[1].ravel()).min()) > 0:
            bound = y.sum() / np.linalg.norm(np.tensordot(y, A, 1), DUAL[norm])
            if bound >= (1 - 1e-6) * np.linalg.norm(W[1], norm) / margin:
                return W[1] / margin
    raise ValueError("found no W with A_j . W >= 1 for all j")


def cosine(A, B):
    """Cosine of the angle between matrices A and B (..., d, d)."""
    return (unit(A) * unit(B)).sum(axis=(-2, -1))


@cache     # demo and figure share it
def experiment(R=20, n=6, T=8, d=10):
    """W (2, len(MU), R, d, d), trained itself (as K, with Q = I) and as K Q^T, its two SVMs
    (2, 2, len(MU), R, d, d), and |K|_F^2 + |Q|_F^2 (2, len(MU), R), on R random instances."""
    rng = np.random.default_rng(0)
    normal = [rng.standard_normal(shape) for shape in ((R, n, T, d), (R, n, d), (R, 1, d))]
    X, Z, v = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in normal]
    G = rng.choice([-1, 1], (R, n, 1)) * (X @ v[..., None])[..., 0]     # labels times x_it . v
    W, K, Q = rng.uniform(-1, 1, (3, len(MU), R, d, d)) / np.sqrt(d)
    trained = np.array([train(*run, X, Z, G, np.reshape(MU, (-1, 1, 1, 1)))
                        for run in ((W, np.eye(d) + 0 * W, False), (K, Q, True))])
    W = trained[:, 0] @ trained[:, 1].swapaxes(-1, -2)
    svms = [[[[svm(constraints(*one), norm) for one in zip(W_mu, X, Z)] for W_mu in both]
             for norm in DUAL] for both in W]
    return W, np.array(svms), (trained ** 2).sum(axis=(1, -2, -1))


def demo():
    """Print the cosines of W and K Q^T to both SVMs, and why they differ."""
    W, svms, squares = experiment()
    cosines = cosine(W[:, None], svms).reshape(4, len(MU), -1)
    print("Cosine to the SVMs of the tokens selected at the end: mean of 20 instances (least).\n")
    print("    mu       W to W_F         W to W_nuc       K Q^T to W_F     K Q^T to W_nuc")
    for row, mu in enumerate(MU):
        print(f"    {mu:5.0e}" + "".join(f"   {c[row].mean():.4f} ({c[row].min():.3f})"
                                         for c in cosines))
    ranks = np.linalg.matrix_rank(svms[1, :, -1], tol=1e-3).mean(axis=1)
    ratios = squares[1, -1] / np.linalg.svd(W[1, -1], compute_uv=False).sum(axis=-1)
    print("\nMean rank, for the tokens of K Q^T: W_F {:.2f}, W_nuc {:.2f}.".format(*ranks))
    print("(|K|_F^2 + |Q|_F^2) / |K Q^T|_nuc: "
          f"predicted 2, found {ratios.min():.4f} to {ratios.max():.4f}.")


def figure(path):
    """Plot how far W and K Q^T are from both SVMs, and their singular values."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4, "lines.markersize": 12})
    canvas, (near, rank) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    W, svms, _ = experiment()
    far = 1 - cosine(W[:, None], svms).mean(axis=-1)                    # (2, 2, len(MU))
    sigma = np.linalg.svd(W[:, -1], compute_uv=False)                   # (2, R, d)
    for i, color in enumerate(("#D55E00", "#0072B2")):
        near.semilogy(far[i, i], "o-", far[i, 1 - i], "s:", color=color)
        near.text((0, 1.1)[i], (2e-3, 0.015)[i], ("W", "K Qᵀ")[i] + " to its own SVM", color=color)
        rank.plot(range(1, 11), (sigma[i] / sigma[i, :, :1]).mean(axis=0), "o-", color=color)
        rank.text((4.6, 1.2)[i], (0.5, 0.1)[i], ("W", "K Qᵀ")[i], color=color)
    near.text(0.8, 0.22, "to the other's SVM")
    near.set(title="Each turns to its own SVM", xlabel="penalty μ", ylabel="1 - cosine",
             xticks=range(len(MU)), xticklabels=[f"{mu:.0e}" for mu in MU], ylim=(3e-4, 0.5))
    rank.set(title="The product tends to low rank", xlabel="k-th largest singular value",
             ylabel="ratio to the largest", xticks=range(1, 11))
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
