"""Sparse token selection by one attention layer: the task, the model, its gradients.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python sts.py` gives a short tour.

The task: given T tokens and a subset y of q positions, return the mean of the q tokens at these
positions.  Attention by position is learnt, not assumed: no block of W or V is held fixed.
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
blocks, such as the token-PE block: rows of tokens, columns of encodings.  All sequences of a batch
share E.  So the array of all z_j, with its n T (d + d_e) numbers, is never built.
"""

import numpy as np


def sample_sts(rng, n, T, d, q, dtype=np.float64):
    """Draw n inputs of the task: tokens X (n, T, d) and subsets y (n, q).  Definition 1.

    X is i.i.d. N(0, 1).  Each row of y holds q different positions, and all q-subsets of 0..T-1
    are equally likely.  The order within a row is not uniform; nothing depends on it.
    `rng` is a numpy.random.Generator; dtype is float32 or float64.
    X is a view of an (n, d, T) array, for speed.
    Raises ValueError unless n, T, d >= 1 and 1 <= q <= T.
    """
    if min(n, T, d) < 1:
        raise ValueError(f"need n, T, d >= 1, got {n = }, {T = }, {d = }")
    if not 1 <= q <= T:
        raise ValueError(f"need 1 <= q <= T, got {q = }, {T = }")
    X = rng.standard_normal((n, d, T), dtype=dtype).transpose(0, 2, 1)
    y = np.empty((n, q), dtype=np.intp)
    for r, last in enumerate(range(T - q, T)):      # Floyd's algorithm: no (n, T) array
        pick = rng.integers(last + 1, size=n)       # uniform on 0..last; a taken one becomes last
        taken = (y[:, :r] == pick[:, None]).any(axis=1)
        y[:, r] = np.where(taken, last, pick)
    return X, y


def sts_target(X, y):
    """STS_q(X, y) = (1/q) sum_{i in y} x_i, the mean of the selected tokens (n, d).  Def. 1."""
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


LAWS = {        # name: (a function that draws E, the least d_e for T positions)
    "onehot": (onehot, lambda T: T),
    "rademacher": (rademacher, lambda T: 1),
    "orthonormal": (orthonormal, lambda T: T),
}


def positional_encoding(law, T, d_e, rng, draws=None, dtype=np.float64):
    """Encodings E (T, d_e) by a law of LAWS, or independent draws of them (draws, T, d_e).

    `rng` is a numpy.random.Generator.  Raises ValueError for an unknown law or too small a d_e.
    """
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}")
    draw, least = LAWS[law]
    if d_e < least(T):
        raise ValueError(f"{law} encodings of {T} positions need d_e >= {least(T)}, got {d_e}")
    if draws is None:
        return draw(rng, T, d_e).astype(dtype, copy=False)
    return np.stack([draw(rng, T, d_e) for _ in range(draws)]).astype(dtype, copy=False)


# The model.  The keys of attention are all z_j and, in the full model, z_query as well.  In code
# they are a tuple (X, E, z_query), where z_query is None if it is not a key.


def query_and_keys(W, X, y, E, attend_to_query, query):
    """z_query (n, d + d_e) and the keys (X, E, z_query or None).  Errors as in forward."""
    (n, T, d), d_e = X.shape, E.shape[-1]
    if (E.shape, y.shape, W.shape) != ((T, d_e), (n, y.shape[-1]), (d + d_e, d + d_e)):
        raise ValueError("need X (n, T, d), y (n, q), E (T, d_e), W (d + d_e, d + d_e), "
                         f"got X {X.shape}, y {y.shape}, E {E.shape}, W {W.shape}")
    if y.min() < 0 or y.max() >= T:
        raise ValueError(f"need positions from 0 to {T - 1} in y, got {y.min()} to {y.max()}")
    if query not in ("sum", "mean"):
        raise ValueError(f"query must be sum or mean, got {query!r}")
    U = E[y].sum(axis=1) if query == "sum" else E[y].mean(axis=1)
    z_query = np.concatenate([np.zeros((n, d), U.dtype), U], axis=1)
    return z_query, (X, E, z_query if attend_to_query else None)


def dots(keys, r):
    """z_j . r for each key j: r (n, d + d_e) -> (n, T), or (n, T + 1) with z_query."""
    X, E, z_query = keys
    d = X.shape[2]
    A = r[:, d:] @ E.T
    A += (X @ r[:, :d, None])[:, :, 0]
    return A if z_query is None else np.column_stack([A, (z_query * r).sum(axis=1)])


def mix(keys, P):
    """sum_j P_j z_j over the keys: P (n, T) or (n, T + 1) -> (n, d + d_e)."""
    X, E, z_query = keys
    T = X.shape[1]
    z = np.concatenate([(P[:, None, :T] @ X)[:, 0], P[:, :T] @ E], axis=1)
    return z if z_query is None else z + P[:, T:] * z_query


def softmax(A):
    """exp(A_j) / sum_i exp(A_i), over the last axis."""
    P = np.exp(A - A.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    return P


def attention(W, X, y, E, attend_to_query=False, query="sum"):
    """The attention weights P (n, T), or (n, T + 1) if z_query is the last key.  Rows sum to 1.

    With K draws of encodings E (K, T, d_e), P is (K, n, T) or (K, n, T + 1).  Errors as in forward.
    """
    if E.ndim == 3:
        return np.stack([attention(W, X, y, E_k, attend_to_query, query) for E_k in E])
    z_query, keys = query_and_keys(W, X, y, E, attend_to_query, query)
    return softmax(dots(keys, z_query @ W.T))


def forward(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The attention model for one draw of encodings; returns f (n, d) and a cache for backward.

        f = V Z softmax(Z^T W z_query)                                  (Definition 4)

    With attend_to_query the keys are [Z, z_query]: the full model of the paper's Figures 1 and 3.
    query is "sum" or "mean" (see U at the top); we do not know which one the authors used.  With
    keys Z, "mean" with W is the same as "sum" with W/q.  In the full model the choice decides the
    rate of training (beyond/README.md).
    A position that is repeated in a row of y counts each time, here and in sts_target.
    Raises ValueError if the shapes do not fit, or if y has other values than 0..T-1.
    """
    z_query, keys = query_and_keys(W, X, y, E, attend_to_query, query)
    if V.shape != (X.shape[2], len(W)):
        raise ValueError(f"need V {(X.shape[2], len(W))}, got {V.shape}")
    A = dots(keys, z_query @ W.T)               # A_j = z_j^T W z_query     (n, T or T + 1)
    P = softmax(A)
    z = mix(keys, P)                            # z = sum_j P_j z_j         (n, d + d_e)
    f = z @ V.T                                 # f = V z                   (n, d)
    return f, (V, z_query, keys, P, z)


def backward(cache, df):
    """Gradients dW, dV of a scalar loss L, from r = df = dL/df (n, d) and the cache of forward.

    The cache holds V, z_query, the keys (X, E, z_query or None), P and z.
    With gbar = sum_j P_j g_j for each sequence,

        dL/dV = sum over the batch of r z^T
        dL/dW = sum over the batch of sum_j P_j (g_j - gbar) z_j z_query^T,     g_j = r^T V z_j

    Derived: the chain rule goes through the lines of forward from the last to the first.

        f = V z                   dL/dV = r z^T, and dL/dz = V^T r
        z = sum_j P_j z_j         dL/dP_j = z_j . V^T r = g_j
        P = softmax(A)            dP_i/dA_j = P_i (1[i = j] - P_j), so
                                  dL/dA_j = sum_i g_i dP_i/dA_j = P_j (g_j - gbar)
        A_j = z_j^T W z_query     dL/dW = sum_j dL/dA_j z_j z_query^T

    So gradient descent raises the logits where g_j < gbar: attention to these keys lowers the loss.
    The first d columns of dL/dW are 0, since z_query starts with d zeros.

    Two steps at the board: T = 3, d = 1, q = 1, one-hot encodings, from W = V = 0.
    Step 1.  One sequence: let x = (1, 4, -2) and y = {1}.  All P_j are 1/3, so z is the mean of all
        z_j, (1, 1/3, 1/3, 1/3).  As f = 0, r is minus the target: r = -4.  So
        dL/dV = -4 (1, 1/3, 1/3, 1/3), and dL/dW = 0 since V = 0.  Only V moves.
        From here on, means over all x and y: that of dL/dV is -(1/3, 0, 0, 0).  So V moves to
        (v, 0, 0, 0) with v > 0.
    Step 2.  At this V, r = v xbar - x_y, where xbar is the mean of the tokens, and g_j = r v x_j.
        The mean over x of r x_j is v/3 - 1[j in y].  So that of g_j is v (v/3 - 1[j in y]), that of
        gbar is v (v/3 - 1/3), and that of dL/dA_j = (g_j - gbar)/3 is -2v/9 for the selected
        position, and v/9 for the other two.  The outer product with z_query puts
        these numbers into column y of W's encoding block, and the mean over y is
        dL/dW = -(v/9) (I - 11^T/3).  (W's token rows hold products of three x, with mean 0.)
        W moves in the direction I - 11^T/3: the selected logit rises, and the others fall.
    """
    V, z_query, keys, P, z = cache
    dV = df.T @ z                                               # r z^T
    g = dots(keys, df @ V)                                      # g_j = z_j . V^T r
    dA = P * (g - np.vecdot(P, g)[:, None])                     # P_j (g_j - gbar)
    dW = mix(keys, dA).T @ z_query                              # sum_j dA_j z_j z_query^T
    return dW, dV


def loss(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The loss L = 1/(2n) sum ||f - STS_q(X, y)||^2 over the batch.

    With stochastic encodings f is an expectation over E (Definition 5).  We average outputs, not
    losses (our reading): for K draws E (K, T, d_e), f is the mean of K outputs.  E (T, d_e) is one
    draw.  Other shapes and errors as in forward.  The zero predictor, f = 0, has expected loss
    d / (2q).
    """
    draws = E if E.ndim == 3 else E[None]
    f = sum(forward(W, V, X, y, E_k, attend_to_query, query)[0] for E_k in draws) / len(draws)
    error = f - sts_target(X, y)                            # (n, d)
    return 0.5 * (error * error).sum() / len(X)


def loss_and_grads(W, V, X, y, E, attend_to_query=False, query="sum"):
    """The loss L, and its gradients dL/dW, dL/dV.  Arguments and errors as in loss."""
    draws = E if E.ndim == 3 else E[None]
    outputs, caches = zip(*[forward(W, V, X, y, E_k, attend_to_query, query) for E_k in draws])
    error = sum(outputs) / len(draws) - sts_target(X, y)    # (n, d)
    L = 0.5 * (error * error).sum() / len(X)
    df = error / (len(X) * len(draws))                      # dL/df for the output of each draw
    grads = [backward(cache, df) for cache in caches]
    return L, sum(dW for dW, _ in grads), sum(dV for _, dV in grads)


def ground_truth(d, d_e, T=None):
    """The directions W* (d + d_e, d + d_e) and V* (d, d + d_e) that gradient descent finds.

    Both are zero but for one block, which is the identity: the PE-PE block of W* (its last d_e rows
    and columns), and the token block of V* (its first d columns).  If encodings are orthonormal and
    the keys are Z, c W* and V* solve the task as c grows.
    With T, for one-hot encodings, the block of W* is I - 11^T/T on the T trained positions instead,
    where 1 is the vector of ones: gradient descent from zero on the population loss grows it
    (derived in beyond/theory.py).
    """
    W, V = np.zeros((d + d_e, d + d_e)), np.eye(d, d + d_e)
    W[d:, d:] = np.eye(d_e)
    if T is not None:
        W[d:, d:] = 0
        W[d:d + T, d:d + T] = np.eye(T) - 1 / T
    return W, V


def cosine(A, B):
    """Cosine of the angle between two arrays of one shape, seen as vectors; 0 if one is zero."""
    norms = np.linalg.norm(A) * np.linalg.norm(B)
    return 0.0 if norms == 0 else float((A * B).sum() / norms)


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
    print("With c W* and V*, attention to unselected tokens vanishes as c grows:")
    E = positional_encoding("orthonormal", T, d_e, rng)
    W_star, V_star = ground_truth(d, d_e)
    for c in 0, 2, 4, 8, 16:
        f, _ = forward(c * W_star, V_star, X, y, E)
        L = loss(c * W_star, V_star, X, y, E)
        print(f"    c = {c:2d}   f = ({f[0, 0]:5.2f}, {f[0, 1]:5.2f})   loss {L:.1e}")

    print("\nA check of the gradients at random weights, in a random direction (A, B): their slope")
    print("sum(dL/dW * A) + sum(dL/dV * B) is the complex step Im L(W + ihA, V + ihB) / h, h tiny:")
    E = positional_encoding("rademacher", T, d_e, rng, draws=3)
    W, V, A, B = (rng.standard_normal(w.shape) for w in (W_star, V_star, W_star, V_star))
    _, dW, dV = loss_and_grads(W, V, X, y, E)
    slope = (dW * A).sum() + (dV * B).sum()
    check = loss(W + 1e-30j * A, V + 1e-30j * B, X, y, E).imag / 1e-30
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
    import argparse
    argparse.ArgumentParser(description="Print a tour of this file.").parse_args()
    demo()
