"""Sparse token selection by one attention layer: the task, the model, its gradients.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python sts.py` gives a short tour.

Throughout this file we have:

    n, T, d, q   batch size, sequence length, token dimension, subset size
    d_e, K       dimension of a positional encoding (PE), number of PE draws that are averaged
    X            tokens, i.i.d. N(0, 1)                              (n, T, d)
    y            the q selected positions of each sequence           (n, q) ints
    E            positional encodings, row i is e_i                  (K, T, d_e)
    U            sum of e_i over the selected positions i in y       (K, n, d_e)
    W, V         key-query matrix and value matrix         (d + d_e, d + d_e), (d, d + d_e)
    A, P         logits and attention weights, P = softmax(A)        (K, n, T)
    f            the output of the model                             (n, d)

Position i of a sequence enters as z_i = (x_i, e_i), and the subset y as z_query = (0, U).  So
rows and columns 0..d-1 of W (columns of V) belong to tokens, and the last d_e to encodings.
The z_i of a batch, n * T * (d + d_e) numbers, are never stored: W and V are applied block by
block, the token part to X and the encoding part to E, which all sequences of the batch share.
"""

import numpy as np


def sample_sts(rng, n, T, d, q, dtype=np.float64):
    """Draw n inputs of the task: tokens X (n, T, d) and subsets y (n, q).  Definition 1.

    X is i.i.d. N(0, 1).  Each row of y holds q different positions, every q-subset of
    0..T-1 being equally likely (the order within a row has no meaning, and is not uniform).
    `rng` is a numpy.random.Generator; dtype is float32 or float64.
    In memory X lies as (n, d, T): attention sums over positions, and these are then neighbours.
    Raises ValueError unless n, T, d >= 1 and 1 <= q <= T.
    """
    if min(n, T, d) < 1 or not 1 <= q <= T:
        raise ValueError(f"need n, T, d >= 1 and 1 <= q <= T, got {n=}, {T=}, {d=}, {q=}")
    X = rng.standard_normal((n, d, T), dtype=dtype).transpose(0, 2, 1)
    y = np.empty((n, q), dtype=np.intp)
    for r, last in enumerate(range(T - q, T)):      # Floyd's algorithm: no (n, T) array
        pick = rng.integers(last + 1, size=n)       # uniform on 0..last; if taken, use last
        taken = (y[:, :r] == pick[:, None]).any(axis=1)
        y[:, r] = np.where(taken, last, pick)
    return X, y


def sts_target(X, y):
    """STS_q(X, y) = (1/q) sum_{i in y} x_i, the mean of the selected tokens (n, d).  Definition 1."""
    return sum(X[np.arange(len(X)), y[:, r]] for r in range(y.shape[1])) / y.shape[1]


def positional_encoding(kind, T, d_e, rng, draws=1, dtype=np.float64):
    """Draw positional encodings E (draws, T, d_e); each row e_i is a unit vector.

    kind = "onehot":      e_i is the i-th unit vector, no randomness (Definition 2)
           "rademacher":  independent random signs / sqrt(d_e): nearly orthogonal (Definition 3;
                          this law is our choice)
           "orthonormal": different coordinate vectors in random order, with random signs: the
                          limit of no coherence (our choice)
    `rng` is a numpy.random.Generator.
    Raises ValueError for another kind, sizes below 1, or T > d_e where E cannot be orthonormal.
    """
    if kind not in ("onehot", "rademacher", "orthonormal"):
        raise ValueError(f"kind must be onehot, rademacher or orthonormal, got {kind!r}")
    if min(T, d_e, draws) < 1 or (kind != "rademacher" and T > d_e):
        raise ValueError(f"need T, d_e, draws >= 1, and T <= d_e unless rademacher, "
                         f"got {kind=}, {T=}, {d_e=}, {draws=}")
    if kind == "onehot":
        return np.tile(np.eye(T, d_e, dtype=dtype), (draws, 1, 1))
    if kind == "rademacher":
        signs = rng.integers(2, size=(draws, T, d_e), dtype=np.int8) * 2 - 1
        return signs.astype(dtype) * np.asarray(d_e ** -0.5, dtype)
    E = np.zeros((draws, T, d_e), dtype=dtype)
    coordinate = rng.random((draws, d_e)).argsort(axis=1)[:, :T]
    E[np.arange(draws)[:, None], np.arange(T), coordinate] = rng.integers(2, size=(draws, T)) * 2 - 1
    return E


def forward(W, V, X, y, E, attend_to_query=False):
    """The attention model with stochastic PE; returns f (n, d) and a cache for backward.

    f = (1/K) sum_k  V Z_k softmax(Z_k^T W z_query,k)      (Definition 5, its expectation over E
                                                            replaced by the mean of K draws)
    E is (K, T, d_e), or (T, d_e) for one draw.  With attend_to_query the keys and values are
    [Z, z_query] instead of Z (the model of the paper's Figures 1 and 3).
    All is computed in the dtype of W and V, complex included.
    Raises ValueError if the shapes do not fit, or if y holds anything but positions 0..T-1.
    """
    E = E[None] if E.ndim == 2 else E
    (n, T, d), (_, T_E, d_e) = X.shape, E.shape
    if (T_E, y.shape[:1], W.shape, V.shape) != (T, (n,), (d + d_e, d + d_e), (d, d + d_e)):
        raise ValueError("need X (n, T, d), y (n, q), E (K, T, d_e), W (d + d_e, d + d_e), V (d, d + d_e); "
                         f"got X {X.shape}, y {y.shape}, E {E.shape}, W {W.shape}, V {V.shape}")
    if y.min() < 0 or y.max() >= T:
        raise ValueError(f"need positions from 0 to {T - 1} in y, got {y.min()} to {y.max()}")
    dtype = np.result_type(W, V)
    X, E = X.astype(dtype, copy=False), E.astype(dtype, copy=False)
    X_t, E_t = X.transpose(0, 2, 1), E.transpose(0, 2, 1)     # (n, d, T), (K, d_e, T)
    V_x, V_e = V[:, :d], V[:, d:]

    U = sum(E[:, y[:, r]] for r in range(y.shape[1]))         # (K, n, d_e)
    Q = U @ W[:, d:].T                                        # (K, n, d + d_e)   W z_query
    Q_x, Q_e = Q[..., :d], Q[..., d:]
    # A_j = z_j^T W z_query = x_j . Q_x + e_j . Q_e
    A = (Q_x.transpose(1, 0, 2) @ X_t).transpose(1, 0, 2) + Q_e @ E_t         # (K, n, T)
    if attend_to_query:
        A = np.concatenate([A, (U * Q_e).sum(-1, keepdims=True)], axis=-1)    # (K, n, T + 1)
    P = np.exp(A - A.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    P_z, P_query = P[..., :T], P[..., T:]                     # (K, n, T), (K, n, 1 or 0)
    # f = V_x (sum_j P_j x_j) + sum_j P_j (V_e e_j), averaged over the draws
    C = (P_z.mean(0)[:, None] @ X)[:, 0]                      # (n, d)
    f = C @ V_x.T + (P_z @ (E @ V_e.T)).mean(0)               # (n, d)
    if attend_to_query:
        f += (P_query * (U @ V_e.T)).mean(0)
    return f, (W, V, X, E, U, P, C, attend_to_query)


def backward(cache, df):
    """Gradients dW, dV of a scalar loss, given df = dL/df (n, d) and the cache of forward.  Derived.

    Follows forward line by line, in reverse.  The first d columns of dW are zero: they meet the
    token half of z_query, which is zero.
    """
    W, V, X, E, U, P, C, attend_to_query = cache
    (n, T, d), K = X.shape, len(E)
    df = df.astype(P.dtype, copy=False)
    X_t, E_t = X.transpose(0, 2, 1), E.transpose(0, 2, 1)
    V_x, V_e = V[:, :d], V[:, d:]
    P_z, P_query = P[..., :T], P[..., T:]
    df_k = df / K                                             # what each of the K draws receives

    # f = C V_x^T + mean_k P_z E V_e^T, with C = mean_k P_z X
    dV_x = df.T @ C                                           # (d, d)
    dV_e = (df_k.T @ P_z @ E).sum(0)                          # (d, d_e)
    dP = (df_k @ V_x)[:, None] @ X_t                          # (n, 1, T)
    dP = dP[:, 0] + df_k @ (V_e @ E_t)                        # (K, n, T)
    if attend_to_query:                                       # f += mean_k P_query U V_e^T
        dV_e += (df_k.T @ (P_query * U)).sum(0)
        dP = np.concatenate([dP, (df_k @ V_e * U).sum(-1, keepdims=True)], axis=-1)
    # P = softmax(A), so dA_j = P_j (dP_j - sum_i P_i dP_i)
    dA = P * (dP - (P * dP).sum(-1, keepdims=True))
    dA_z, dA_query = dA[..., :T], dA[..., T:]
    # A_j = x_j . Q_x + e_j . Q_e
    dQ_x = (dA_z.transpose(1, 0, 2) @ X).transpose(1, 0, 2)   # (K, n, d)
    dQ_e = dA_z @ E                                           # (K, n, d_e)
    if attend_to_query:                                       # A_query = U . Q_e
        dQ_e += dA_query * U
    # Q = U W^T, without the first d columns of W
    dQ = np.concatenate([dQ_x, dQ_e], axis=-1)                # (K, n, d + d_e)
    dW = np.zeros_like(W, dtype=P.dtype)
    dW[:, d:] = (dQ.transpose(0, 2, 1) @ U).sum(0)
    return dW, np.concatenate([dV_x, dV_e], axis=1)


def loss_and_grads(W, V, X, y, E, attend_to_query=False):
    """The loss L = 1/(2n) sum ||f - STS_q(X, y)||^2 over the batch, and dL/dW, dL/dV.

    Shapes and errors as in forward.  A model that always answers 0 has E[L] = d / (2q).
    """
    f, cache = forward(W, V, X, y, E, attend_to_query)
    r = f - sts_target(X, y).astype(f.dtype, copy=False)      # (n, d)
    L = 0.5 * (r * r).sum() / len(X)
    return (L, *backward(cache, r / len(X)))


def ground_truth(d, d_e, T=None):
    """The directions W* (d + d_e, d + d_e) and V* (d, d + d_e) which gradient descent finds.

    W* is zero except for the PE-PE block, which is the identity; V* is zero except for the token
    block, which is the identity.  c W* and V* solve the task as c grows, if PEs are orthonormal.
    One-hot PE: give T.  On the population loss, from zero, gradient descent grows a block of zero
    row and column sums: I - 11^T / T on the T trained positions, zero elsewhere (derived).
    """
    W, V = np.zeros((d + d_e, d + d_e)), np.eye(d, d + d_e)
    W[d:, d:] = np.eye(d_e)
    if T is not None:
        W[d:, d:] = 0
        W[d:d + T, d:d + T] = np.eye(T) - 1 / T
    return W, V


def cosine(A, B):
    """Cosine of the angle between two arrays of one shape, as vectors; 0.0 if either is zero."""
    norms = np.linalg.norm(A) * np.linalg.norm(B)
    return float((A * B).sum() / norms) if norms > 0 else 0.0


def complex_step_gradient(loss, weight, h=1e-30):
    """The gradient of loss(weight), entry by entry: dL/dw = Im L(w + i h) / h, without backward.

    Exact to rounding, as nothing is subtracted; loss must accept a complex weight, as forward does.
    It costs one loss per entry: for checks only.
    """
    grad = np.zeros(weight.shape)
    for entry in np.ndindex(weight.shape):
        w = weight.astype(complex)
        w[entry] += 1j * h
        grad[entry] = loss(w).imag / h
    return grad


def demo():
    """Print a tour of this file: the task, its solution, a check of the gradients, and training."""
    rng = np.random.default_rng(0)
    n, T, d, q, d_e = 64, 6, 2, 2, 16

    print(f"The task: of T = {T} tokens in R^{d}, return the mean of the q = {q} that y names.")
    X, y = sample_sts(rng, n, T, d, q)
    for i in range(T):
        mark = "   <- in y" if i in y[0] else ""
        print(f"    x_{i} = ({X[0, i, 0]:5.2f}, {X[0, i, 1]:5.2f}){mark}")
    print("    target ({:5.2f}, {:5.2f})".format(*sts_target(X, y)[0]))

    print("\nThe ground truth solves it. W* compares encodings with encodings, V* copies tokens;")
    print("with weights c W* and V*, attention to the tokens that are not in y vanishes as c grows:")
    E = positional_encoding("orthonormal", T, d_e, rng)
    W_star, V_star = ground_truth(d, d_e)
    for c in 0, 2, 4, 8, 16:
        f, _ = forward(c * W_star, V_star, X, y, E)
        L, _, _ = loss_and_grads(c * W_star, V_star, X, y, E)
        print(f"    c = {c:2d}   f = ({f[0, 0]:5.2f}, {f[0, 1]:5.2f})   loss {L:.1e}")

    print("\nThe gradients by hand (backward), against those by complex step, dL/dw = Im L(w + ih) / h,")
    print("at random weights and with 3 draws of nearly orthogonal encodings:")
    E = positional_encoding("rademacher", T, d_e, rng, draws=3)
    W, V = rng.standard_normal((d + d_e, d + d_e)), rng.standard_normal((d, d + d_e))
    _, dW, dV = loss_and_grads(W, V, X, y, E)
    dW_check = complex_step_gradient(lambda w: loss_and_grads(w, V, X, y, E)[0], W)
    dV_check = complex_step_gradient(lambda v: loss_and_grads(W, v, X, y, E)[0], V)
    for name, grad, check in ("dW", dW, dW_check), ("dV", dV, dV_check):
        difference = np.linalg.norm(grad - check) / np.linalg.norm(check)
        print(f"    {name}: relative difference {difference:.0e}")

    print("\nGradient descent from zero, learning rate 1, with fresh tokens, subsets and encodings at")
    print("each step; and what the weights, trained at T = 6, then do at T = 12:")
    W, V = np.zeros_like(W), np.zeros_like(V)
    for t in range(2001):
        X, y = sample_sts(rng, n, T, d, q)
        E = positional_encoding("orthonormal", T, d_e, rng)
        L, dW, dV = loss_and_grads(W, V, X, y, E)
        if t % 500 == 0:
            print(f"    step {t:4d}   loss {L:.4f}   "
                  f"cosines {cosine(W, W_star):.3f} (W to W*), {cosine(V, V_star):.3f} (V to V*)")
        W, V = W - dW, V - dV
    X, y = sample_sts(rng, 1000, 2 * T, d, q)
    E = positional_encoding("orthonormal", 2 * T, d_e, rng)
    L, _, _ = loss_and_grads(W, V, X, y, E)
    print(f"    T = 12      loss {L:.4f}   (answering 0 has {d / (2 * q):.4f})")


if __name__ == "__main__":
    demo()
