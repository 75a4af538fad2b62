"""The first page's program in the setting of its first run, for the lecture.

    python beyond/teach/live.py                                       (NumPy only)

Prints the step, the error (the loss over that of f = 0), a, alpha, and a bar;
last, the errors on new sequences of lengths T and 2T.  Shapes: X (n, T, d),
E (T, d_e), Z (n, T, d + d_e), A, P (n, T).  A script: if imported, it trains.
MIT licence, the contributors to "Sparse token selection in NumPy"; arXiv:2406.06893.
"""
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"        # before NumPy: small matrices
import numpy as np

T, d, q, d_e, n, lr, steps = 50, 5, 3, 100, 1024, 2.0, 2000
rng = np.random.default_rng(0)

def sequences(n, T):                    # tokens, selected positions, target      (Definition 1)
    X = rng.standard_normal((n, T, d))
    y = rng.random((n, T)).argsort(axis=1)[:, :q]
    return X, y, np.take_along_axis(X, y[:, :, None], axis=1).mean(axis=1)

def encodings(T):                       # orthonormal; row j is e_j
    return rng.permutation(np.eye(d_e))[:T] * rng.choice([-1, 1], (T, 1))

def forward(W, V, X, y, E):             # f = V Z softmax(Z^T W z_query)           (Definition 4)
    Z = np.concatenate([X, np.broadcast_to(E, (len(X), *E.shape))], axis=2)     # row j is z_j
    z_query = np.concatenate([np.zeros((len(X), d)), E[y].sum(axis=1)], axis=1)
    A = (Z @ (z_query @ W.T)[:, :, None])[:, :, 0]              # A_j = z_j . W z_query
    P = np.exp(A - A.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)                           # softmax
    z = (P[:, None] @ Z)[:, 0]                                  # sum_j P_j z_j
    return z @ V.T, (V, z_query, Z, P, z)

def backward(V, z_query, Z, P, z, r):   # in reverse; r = dL/df
    g = (Z @ (r @ V)[:, :, None])[:, :, 0]                      # dL/dP_j = z_j . V^T r
    dA = P * (g - (P * g).sum(axis=1, keepdims=True))           # dL/dA_j, through softmax
    return (dA[:, None] @ Z)[:, 0].T @ z_query, r.T @ z         # dL/dW, dL/dV

def error(f, target):                   # the loss over that of f = 0
    return ((f - target) ** 2).sum() / (target ** 2).sum()

# Stochastic: new vectors at every step.  For fixed encodings write instead
#     fixed = encodings(2 * T); draw = lambda T: fixed[:T]
draw = encodings

X, y, target = sequences(n, T)                  # one full batch
W, V = np.zeros((d + d_e, d + d_e)), np.zeros((d, d + d_e))
for t in range(1, steps + 1):
    f, cache = forward(W, V, X, y, draw(T))
    dW, dV = backward(*cache, (f - target) / n)
    W, V = W - lr * dW, V - lr * dV
    if t % 100 == 0:
        left, bar = error(f, target), "#" * round(40 * error(f, target))
        a, alpha = W.diagonal()[d:].mean(), V.diagonal().mean()
        print(f"{t:6} {left:7.1%} {a:6.2f} {alpha:6.2f}", bar, flush=True)

for length in T, 2 * T:
    X, y, target = sequences(1000, length)
    f, _ = forward(W, V, X, y, draw(length))
    print(f"{length:4} tokens {error(f, target):7.1%}")
