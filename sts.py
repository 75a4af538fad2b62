"""Sparse token selection by one attention layer: the task, the model, its gradients.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024, arXiv:2406.06893).  NumPy only.
`python sts.py` gives a tour.  MIT licence, the contributors to "Sparse token selection in NumPy".

The task: given T tokens and a subset y of q positions, return the mean of the q tokens at these
positions.
Throughout this file we have:

    n, T, d, q   batch size, sequence length, token dimension, subset size
    d_e, K       dimension of a positional encoding (PE), number of draws of PEs to average over
    X            tokens x_j, i.i.d. N(0, I_d)                           (n, T, d)
    y            the q selected positions of each sequence              (n, q) ints
    E            positional encodings, row j is e_j                     (T, d_e)
    z_j          (x_j, e_j), what attention sees of position j; the paper's Z is [z_0 ... z_{T-1}]
    z_query      (0, U), what attention sees of the subset y
    U            the sum of e_i over i in y, or their mean              (n, d_e)
    W, V         key-query matrix and value matrix        (d + d_e, d + d_e), (d, d + d_e)
    A, P         logits A_j = z_j^T W z_query, attention weights P = softmax(A)
                                          (n, T), or (n, T + 1) if z_query is a key
    z            sum_j P_j z_j, what attention reads                    (n, d + d_e)
    f            V z, the output of the model                           (n, d)
    L            the loss, the mean over the batch of ||f - target||^2 / 2

Vectors of a batch are rows, so a product M v is written v @ M.T.  The first d rows and columns of
W, and the first d columns of V, belong to tokens; the last d_e belong to encodings.  So W has four
blocks, such as the token-PE block: rows of tokens, columns of encodings.
"""

import numpy as np


def sample_sts(rng, n, T, d, q, dtype=np.float64):
    """Draw n inputs of the task: tokens X (n, T, d) and subsets y (n, q).  Definition 1.

    X is i.i.d. N(0, 1).  Each row of y holds q different positions, and all q-subsets of 0..T-1
    are equally likely.  The order within a row is not uniform; nothing depends on it.
    `rng` is a numpy.random.Generator; dtype is float32 or float64.
    X is a view of an (n, d, T) array, which makes P X three times as fast.
    Raises ValueError unless n, T, d >= 1 and 1 <= q <= T.
    """
    if min(n, T, d) < 1:
        raise ValueError(f"need n, T, d >= 1, got {n = }, {T = }, {d = }")
    if not 1 <= q <= T:
        raise ValueError(f"need 1 <= q <= T, got {q = }, {T = }")
    X = rng.standard_normal((n, d, T), dtype=dtype).transpose(0, 2, 1)
    y = np.empty((n, q), dtype=np.intp)
    for r, last in enumerate(range(T - q, T)):      # Floyd's algorithm: O(n q^2), no (n, T)
        pick = rng.integers(last + 1, size=n)       # uniform on 0..last; if it is taken, then last
        taken = (y[:, :r] == pick[:, None]).any(axis=1)
        y[:, r] = np.where(taken, last, pick)
    return X, y


def check_positions(X, y):
    """Raise ValueError unless each row of y (n, q) holds q different positions of X (n, T, d)."""
    (n, T, _), y = X.shape, np.asarray(y)
    repeated = (np.diff(np.sort(y)) == 0).any()
    if y.shape[:-1] != (n,) or y.min() < 0 or y.max() >= T or repeated:
        raise ValueError(f"need y (n, q) with {n = }, and different positions from 0 to {T - 1} in "
                         f"each row, got y {y.shape} with positions from {y.min()} to {y.max()}")


def sts_target(X, y):
    """STS_q(X, y) = (1/q) sum_{i in y} x_i, the mean of the selected tokens (n, d).  Def. 1.

    Raises ValueError unless each row of y holds different positions.  To train another target,
    change fcn.sts_target, too; then d/(2q) and the bound of fcn.py no longer hold.
    """
    check_positions(X, y)
    return X[np.arange(len(X))[:, None], y].mean(axis=1)


# Laws (distributions) of positional encodings.  Each row e_j is a unit vector.

def onehot(rng, T, d_e):
    """E = I: e_j is the j-th coordinate vector; nothing is random.  Definition 2."""
    return np.eye(T, d_e)


def rademacher(rng, T, d_e):
    """Random signs / sqrt(d_e): nearly orthogonal, as in Definition 3.  The law is our choice."""
    return (rng.integers(2, size=(T, d_e), dtype=np.int8) * 2 - 1) / np.sqrt(d_e)


def orthonormal(rng, T, d_e):
    """Random signs times distinct random coordinate vectors: exactly orthogonal.  Our choice."""
    E = np.zeros((T, d_e))
    E[np.arange(T), rng.permutation(d_e)[:T]] = rng.integers(2, size=T) * 2 - 1
    return E


LAWS = {"orthonormal": orthonormal, "rademacher": rademacher}       # of encodings that are drawn


def positional_encoding(law, T, d_e, rng, draws=None, dtype=np.float64):
    """Encodings E (T, d_e), onehot or by a law of LAWS, or independent draws (draws, T, d_e).

    `rng` is a numpy.random.Generator.  Raises ValueError for an unknown law or too small a d_e.
    """
    laws = LAWS | {"onehot": onehot}
    if law not in laws:
        raise ValueError(f"law must be one of {', '.join(laws)}, got {law!r}")
    if law in ("onehot", "orthonormal") and d_e < T:
        raise ValueError(f"{law} encodings of {T} positions need d_e >= {T}, got {d_e}")
    if draws is None:
        return laws[law](rng, T, d_e).astype(dtype, copy=False)
    E = np.empty((draws, T, d_e), dtype)
    for k in range(draws):
        E[k] = laws[law](rng, T, d_e)
    return E


# The model.  All sequences of a batch share E, and the array of all z_j, with its n T (d + d_e)
# numbers, is never built (the README's short model builds it).  Z is a tuple of its parts,
# (X, E, last_key).  last_key is z_query in the full model, one more column of Z; else it is None.


def Z_transposed_times(Z, v):
    """Z^T v, the dot products of v (n, d + d_e) with the keys: (n, T), or (n, T + 1)."""
    X, E, last_key = Z
    d = X.shape[2]
    products = v[:, d:] @ E.T + (X @ v[:, :d, None])[:, :, 0]
    if last_key is None:
        return products
    return np.column_stack([products, (last_key * v).sum(axis=1)])


def Z_times(Z, P):
    """Z P = sum_j P_j z_j for P (n, T) or (n, T + 1): (n, d + d_e)."""
    X, E, last_key = Z
    T = X.shape[1]
    z = np.concatenate([(P[:, None, :T] @ X)[:, 0], P[:, :T] @ E], axis=1)
    return z if last_key is None else z + P[:, T:] * last_key


def softmax(A):
    """exp(A_j) / sum_i exp(A_i), over the last axis."""
    P = np.exp(A - A.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    return P


def query_and_keys(X, y, E, attend_to_query, query):
    """z_query = (0, U) (n, d + d_e), and the parts of Z.  Raises ValueError if y or E is wrong."""
    check_positions(X, y)
    T = X.shape[1]
    if E.shape[:-1] != (T,):
        raise ValueError(f"need E (T, d_e) with {T = }, got {E.shape}: of a longer E pass E[:{T}], "
                         "and several draws go to output, not to forward")
    if attend_to_query not in (False, True) or query not in ("sum", "mean"):
        raise ValueError("attend_to_query must be True or False, query must be sum or mean, got "
                         f"{attend_to_query!r} and {query!r}")
    U = E[y].sum(axis=1) if query == "sum" else E[y].mean(axis=1)
    z_query = np.concatenate([np.zeros((len(X), X.shape[2]), U.dtype), U], axis=1)
    return z_query, (X, E, z_query if attend_to_query else None)


def attention(W, X, y, E, attend_to_query=False, query="sum"):
    """The attention weights P (n, T), or (n, T + 1) if z_query is the last key.  Rows sum to 1.

    With K draws of encodings E (K, T, d_e), P is (K, n, T) or (K, n, T + 1).
    """
    if E.ndim == 3:
        return np.stack([attention(W, X, y, E_k, attend_to_query, query) for E_k in E])
    z_query, Z = query_and_keys(X, y, E, attend_to_query, query)
    return softmax(Z_transposed_times(Z, z_query @ W.T))


def forward(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The attention model for one draw of encodings; returns f (n, d) and a cache for backward.

        f = V Z softmax(Z^T W z_query)                                  (Definition 4)

    With attend_to_query the keys are [Z, z_query]: the full model of the paper's Figures 1 and 3.
    query is "sum" or "mean" (see U at the top); we do not know which one the authors used.
    """
    z_query, Z = query_and_keys(X, y, E, attend_to_query, query)
    A = Z_transposed_times(Z, z_query @ W.T)    # A = Z^T W z_query
    P = softmax(A)                              # (n, T), or (n, T + 1)
    z = Z_times(Z, P)                           # z = Z P       (n, d + d_e)
    f = z @ V.T                                 # f = V z       (n, d)
    return f, (V, z_query, Z, P, z)


def backward(cache, r):
    """Gradients dW, dV of a scalar loss L, from r = dL/df (n, d) and the cache of forward.

    Derived: the chain rule goes through the lines of forward from the last to the first.

        f = V z                   dL/dV = r z^T, and dL/dz = V^T r
        z = sum_j P_j z_j         dL/dP_j = z_j . V^T r, called g_j
        P = softmax(A)            dP_i/dA_j = P_i (1[i = j] - P_j), so
                                  dL/dA_j = sum_i g_i dP_i/dA_j = P_j (g_j - gbar)
                                  with gbar = sum_i P_i g_i
        A_j = z_j^T W z_query     dL/dW = sum_j dL/dA_j z_j z_query^T

    These are for one sequence; dW and dV are their sums over the batch.  Where g_j < gbar, dL/dA_j
    is negative: a higher logit, and so more attention to this key, would lower the loss.  z_query
    holds no weights, so no gradient goes through it, even where it is a key.
    """
    V, z_query, Z, P, z = cache
    dV = r.T @ z                                    # r z^T
    g = Z_transposed_times(Z, r @ V)                # Z^T V^T r
    gbar = (P * g).sum(axis=1, keepdims=True)       # sum_i P_i g_i     (n, 1)
    dA = P * (g - gbar)                             # P_j (g_j - gbar)
    dW = Z_times(Z, dA).T @ z_query                 # (Z dA) z_query^T
    return dW, dV


def output(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The mean of the outputs f (n, d) over K draws of encodings E (K, T, d_e); or E (T, d_e).

    With stochastic encodings the model is an expectation over E (Definition 5).  All sequences of
    the batch share each draw.
    """
    draws = E if E.ndim == 3 else E[None]
    return sum(forward(W, V, X, y, E_k, attend_to_query, query)[0] for E_k in draws) / len(draws)


def loss(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The loss L = 1/(2n) sum ||f - STS_q(X, y)||^2 over the batch, where f is the mean output.

    We average outputs, not losses: this is our reading of Definition 5.  The zero predictor, f = 0,
    has the expected loss d / (2q).
    """
    f = output(W, V, X, y, E, attend_to_query, query)
    residual = f - sts_target(X, y).reshape(f.shape)    # (n, d); raises if V has not d rows
    return 0.5 * (residual * residual).sum() / len(X)


def loss_and_grads(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The loss L, and its gradients dL/dW, dL/dV.  Arguments as in loss."""
    draws = E if E.ndim == 3 else E[None]
    outputs, caches = zip(*[forward(W, V, X, y, E_k, attend_to_query, query) for E_k in draws])
    residual = sum(outputs) / len(draws) - sts_target(X, y)     # (n, d)
    L = 0.5 * (residual * residual).sum() / len(X)
    r = residual / (len(X) * len(draws))                        # dL/df for each draw's output
    grads = [backward(cache, r) for cache in caches]
    return L, sum(dW for dW, _ in grads), sum(dV for _, dV in grads)


def ground_truth(d, d_e, T=None):
    """The directions W* (d + d_e, d + d_e) and V* (d, d + d_e) that gradient descent finds.

    Both are zero but for one block, which is the identity: the PE-PE block of W* (its last d_e rows
    and columns), and the token block of V* (its first d columns).  If encodings are orthonormal and
    the keys are Z, a W* and V* solve the task as a grows.
    With T, for one-hot encodings, the block of W* is I - 11^T/T on the T trained positions instead,
    where 1 is the vector of ones: gradient descent from zero grows it on the population loss, the
    mean over all X and y (derived in beyond/two_numbers.py).  The difference shifts all logits
    equally, which softmax ignores.
    """
    W, V = np.zeros((d + d_e, d + d_e)), np.eye(d, d + d_e)
    if T is None:
        W[d:, d:] = np.eye(d_e)
    else:
        W[d:d + T, d:d + T] = np.eye(T) - 1 / T
    return W, V


def cosine(A, B):
    """Cosine of the angle between two arrays of one shape, seen as vectors; 0 if one is zero."""
    norms = np.linalg.norm(A) * np.linalg.norm(B)
    return 0.0 if norms == 0 else float(np.vdot(A, B) / norms)


def demo():
    """Print a tour: the task, its solution, a check of the gradients, and training."""
    rng = np.random.default_rng(0)
    n, T, d, q, d_e = 64, 6, 2, 2, 16

    print(f"The task: given T = {T} tokens in R^{d}, return the mean of the q = {q} selected ones.")
    X, y = sample_sts(rng, n, T, d, q)
    for j in range(T):
        print(f"    x_{j} = ({X[0, j, 0]:5.2f}, {X[0, j, 1]:5.2f}){'   selected' * (j in y[0])}")
    print("    target ({:5.2f}, {:5.2f})".format(*sts_target(X, y)[0]))

    print("\nThe ground truth solves it: W* compares encodings with encodings, V* copies tokens.")
    print("With a W* and V*, attention to unselected tokens vanishes as a grows:")
    E = positional_encoding("orthonormal", T, d_e, rng)
    W_star, V_star = ground_truth(d, d_e)
    for a in 0, 2, 4, 8, 16:
        f, _ = forward(a * W_star, V_star, X, y, E)
        L = loss(a * W_star, V_star, X, y, E)
        print(f"    a = {a:2d}   f = ({f[0, 0]:5.2f}, {f[0, 1]:5.2f})   loss {L:.1e}")

    print("\nA check of the gradients at random W, V, in a random direction F, G.  The slope")
    print("sum(dW * F) + sum(dV * G) must be the complex step Im L(W + ihF, V + ihG) / h, h tiny:")
    E = positional_encoding("rademacher", T, d_e, rng, draws=3)
    W, V, F, G = (rng.standard_normal(w.shape) for w in (W_star, V_star, W_star, V_star))
    _, dW, dV = loss_and_grads(W, V, X, y, E)
    slope = (dW * F).sum() + (dV * G).sum()
    check = loss(W + 1e-30j * F, V + 1e-30j * G, X, y, E).imag / 1e-30
    print(f"    slope {slope:.6f}, relative difference {abs(slope - check) / abs(check):.0e}")

    print("\nGradient descent from zero with learning rate 1, on new tokens, subsets and encodings")
    print("at each step, and the mean attention to a selected and to an unselected token:")
    W, V = np.zeros_like(W_star), np.zeros_like(V_star)
    for t in range(2001):
        X, y = sample_sts(rng, n, T, d, q)
        E = positional_encoding("orthonormal", T, d_e, rng)
        L, dW, dV = loss_and_grads(W, V, X, y, E)
        if t % 500 == 0:
            P = attention(W, X, y, E)
            inside = P[np.arange(n)[:, None], y].mean()
            outside = (1 - q * inside) / (T - q)
            print(f"    step {t:4d}   loss {L:.4f}   attention {inside:.3f} and {outside:.3f}"
                  f"   cosine of W and W* {cosine(W, W_star):.3f}")
        W, V = W - dW, V - dV
    X, y = sample_sts(rng, 1000, 2 * T, d, q)
    E = positional_encoding("orthonormal", 2 * T, d_e, rng)
    L = loss(W, V, X, y, E)
    print(f"The same weights at T = 12: loss {L:.4f} (the zero predictor has {d / (2 * q):.4f})")


if __name__ == "__main__":
    demo()
