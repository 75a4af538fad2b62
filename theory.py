"""The exact dynamics of gradient descent on sparse token selection: two numbers instead of matrices.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python theory.py` prints some predictions.
All of it is derived here, none of it is quoted from the paper.

Throughout this file we have, as in sts.py:

    T, d, q      sequence length, token dimension, subset size
    d_e, K       dimension of a positional encoding (PE), number of PE draws that are averaged
    X, y         tokens x_j, i.i.d. N(0, I_d), and the q selected positions, a uniform subset
    E            positional encodings, row j is e_j                   (T, d_e)
    U            sum of e_i over the selected positions i in y       (n, d_e) for n subsets
    W, V         key-query and value matrix of attention with keys z_j = (x_j, e_j)
    P            attention weights, softmax over j of z_j^T W (0, U)
    f            the output V sum_j P_j z_j, which should be STS_q(X, y) = (1/q) sum_{i in y} x_i
    W*           I on the PE-PE block of W, for stochastic PE; I - 11^T/T for one-hot PE; else 0
    V*           I on the token block of V; else 0
    L            population loss E 1/2 ||f - STS_q(X, y)||^2;  an answer of 0 has L = d/(2q)

Positions 0..q-1 stand for y wherever all subsets are alike.

From W = 0, V = 0, gradient descent on L with learning rate lr keeps W = a W*, V = alpha V*: two numbers.
For there L does not change, and so its gradient keeps the same form,
- when all tokens are mapped by an orthogonal matrix, X -> -X among them: so the V_x of V = [V_x, V_e]
  stays a multiple of I, and the blocks of W and V that meet tokens an odd number of times stay 0;
- stochastic PE: when the coordinates of all PE are permuted, or change sign: what is left of the PE-PE
  block is a multiple of I;
- one-hot PE: when positions are permuted: what is left is x I + y 11^T.  And softmax ignores what is added
  to all logits, as by 11^T; so the gradient is orthogonal to 11^T, which leaves multiples of I - 11^T/T.
A step of gradient descent is therefore

    a     <- a     - lr / ||W*||^2 dL/da         ||W*||^2 = T - 1 (one-hot), d_e (stochastic)
    alpha <- alpha - lr / ||V*||^2 dL/dalpha     ||V*||^2 = d

As P does not depend on X then, the tokens integrate out:  f - STS_q = sum_j (alpha P_j - 1[j in y]/q) x_j,

    L = d/2 E sum_j (alpha P_j - 1[j in y]/q)^2
"""

import itertools
import math

import numpy as np


def onehot_slopes(a, alpha, T, d, q):
    """L, dL/da, dL/dalpha for one-hot PE, and for orthonormal PE, stochastic or not.

    With W = a W* selected positions have logits that are a higher than those of the others, so
    P_j = p_in = e^a / (q e^a + T - q) for j in y, and p_out = 1 / (q e^a + T - q) for the others.
    With r_j = alpha P_j - 1[j in y]/q:   L = d/2 (q r_in^2 + (T - q) r_out^2),  and by the derivative of
    softmax dL/da = q p_in (d alpha r_in - mean), mean = sum_j P_j d alpha r_j.
    """
    e = math.exp(-a)                    # of logits shifted by -a: no overflow for a > 0
    p_in, p_out = 1 / (q + (T - q) * e), e / (q + (T - q) * e)
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in * r_in + (T - q) * r_out * r_out)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    return L, q * p_in * (d * alpha * r_in - alpha * dalpha), dalpha


def descend(slopes, lr, steps, W_norm2, V_norm2, a=0.0, alpha=0.0):
    """Gradient descent on two numbers; returns the arrays L, a, alpha (steps + 1,), from start to end.

    slopes(a, alpha) gives L, dL/da, dL/dalpha; the norms are ||W*||^2 and ||V*||^2.
    """
    path = []
    for _ in range(steps + 1):
        L, da, dalpha = slopes(a, alpha)
        path.append((L, a, alpha))
        a, alpha = a - lr / W_norm2 * da, alpha - lr / V_norm2 * dalpha
    return np.array(path).T


def count_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """The steps after which L <= share d/(2q), counted by the recursion; arguments as predict_steps."""
    a, alpha, t, norm2 = 0.0, 0.0, 0, T - 1 if W_norm2 is None else W_norm2
    L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    while L > share * d / (2 * q):
        a, alpha, t = a - lr / norm2 * da, alpha - lr / d * dalpha, t + 1
        L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    return t


def predict_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """About how many steps take L from d/(2q) to share d/(2q); one-hot, or orthonormal with d_e.

    W_norm2 is T - 1 (one-hot, the default) or d_e (orthonormal).  Let alpha have its best value for the
    a of the moment, alpha = p_in / (q p_in^2 + (T - q) p_out^2), and put u = e^(2a).  Then
        L = d/(2q) (T - q) / (q u + T - q),   dL/da = -d (T - q) u / (q u + T - q)^2,
    and with steps so small that they are a flow, du/dt = -2 u lr/||W*||^2 dL/da.  That integrates to
        t = ||W*||^2 / (2 lr d (T - q)) [ q^2 (u - 1) + 2 q (T - q) ln u + (T - q)^2 (1 - 1/u) ].
    The last term is the plateau, about T^2 / (2 lr d) steps for one-hot PE; the first is the tail, where
    1/L grows by 4 lr / ||W*||^2 a step, whatever d and q are.  Needs 1 <= q < T and 0 < share < 1 - q/T.
    T may be an array.
    """
    norm2 = T - 1 if W_norm2 is None else W_norm2
    u = (T - q) * (1 / share - 1) / q
    terms = q * q * (u - 1) + 2 * q * (T - q) * np.log(u) + (T - q) ** 2 * (1 - 1 / u)
    return norm2 / (2 * lr * d * (T - q)) * terms


def sample_scores(rng, T, d_e, q, draws):
    """Draws of the scores s_j = e_j . sum_{i in y} e_i for random signs; (draws, T), y = 0..q-1.

    e_j = signs / sqrt(d_e).  Only the e_i of y are drawn.  Given them, the others need only binomial
    numbers: where |sum of signs| is k, in n_k coordinates, they add k/d_e (2 Bin(n_k, 1/2) - n_k).
    """
    signs = rng.integers(2, size=(draws, q, d_e)) * 2 - 1
    U = signs.sum(axis=1)                                               # (draws, d_e)
    scores = np.empty((draws, T))
    scores[:, :q] = (signs @ U[:, :, None])[:, :, 0] / d_e
    scores[:, q:] = 0
    for k in range(1, q + 1):
        n_k = (abs(U) == k).sum(axis=1)[:, None]                        # (draws, 1)
        if n_k.any():
            scores[:, q:] += k / d_e * (2 * rng.binomial(n_k, 0.5, (draws, T - q)) - n_k)
    return scores


def stochastic_slopes(a, alpha, scores, d, q, K=1):
    """L, dL/da, dL/dalpha for stochastic PE and W = a W*, when K draws of E are averaged.

    Logits are a s_j, so P = softmax(a s).  For K independent draws the mean P has
        E sum_j P_j^2 / K + (1 - 1/K) sum_j (E P_j)^2
    for its squared length, and the loss is, with E over the scores (draws, T) that are given,
        L = d/2 ( alpha^2 [that] - 2 alpha/q E sum_{j in y} P_j + 1/q ).
    K = 1 is the usual training step; K = math.inf is Definition 5, the expectation inside.  By symmetry
    E P_j is E P_in for all j in y, and E P_out for the others.
    Given the same scores at each step (common random numbers), L is a smooth function of a and alpha.
    """
    T = scores.shape[1]
    P = np.exp(a * scores - (a * scores).max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)                                   # (draws, T)
    dP = P * (scores - (P * scores).sum(axis=1, keepdims=True))         # dP/da
    length, dlength = (P * P).sum(axis=1).mean(), 2 * (P * dP).sum(axis=1).mean()
    S, dS = P[:, :q].sum(axis=1).mean(), dP[:, :q].sum(axis=1).mean()   # attention on y
    inside = S * S / q + (1 - S) ** 2 / max(T - q, 1)                   # sum_j (E P_j)^2
    dinside = 2 * dS * (S / q - (1 - S) / max(T - q, 1))
    length, dlength = length / K + (1 - 1 / K) * inside, dlength / K + (1 - 1 / K) * dinside
    L = d / 2 * (alpha * alpha * length - 2 * alpha / q * S + 1 / q)
    return (float(L), float(d / 2 * (alpha * alpha * dlength - 2 * alpha / q * dS)),
            float(d * (alpha * length - S / q)))


def noise_floor(scores, d, q, K=1):
    """The least loss over a and alpha, and where it is: L, a, alpha; arguments as above.

    Gradient descent from zero cannot go below it.  With K = math.inf and a large d_e it is almost 0, and
    lies at the end of the range of a: attention on y tends to 1 as a grows, but for the rare draws of E in
    which another position has a higher score.
    For given a, L is quadratic in alpha, and its least value lies at the root of dL/dalpha.
    Golden-section search over a in (0, 60).
    """
    def best(a):
        L_0, _, slope_0 = stochastic_slopes(a, 0.0, scores, d, q, K)
        _, _, slope_1 = stochastic_slopes(a, 1.0, scores, d, q, K)
        alpha = slope_0 / (slope_0 - slope_1)
        return L_0 + slope_0 * alpha / 2, a, alpha

    low, high, golden = 0.0, 60.0, (math.sqrt(5) - 1) / 2
    for _ in range(30):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if best(left) < best(right) else (left, high)
    return best((low + high) / 2)


def all_subsets(T, q):
    """All q-subsets of 0..T-1 as rows, (T choose q, q)."""
    return np.array(list(itertools.combinations(range(T), q)), dtype=np.intp)


def integrated_loss_and_grads(W_pe, V_x, E, y):
    """The loss with the tokens integrated out, L, dL/dW_pe, dL/dV_x; the mean over the subsets y (n, q).

    For W that is zero but for its PE-PE block W_pe (d_e, d_e), V = [V_x, 0] with V_x (d, d), and one
    E (T, d_e).  Since f - STS_q = sum_j (P_j V_x - 1[j in y]/q I) x_j,
        L = 1/2 mean_y sum_j ||P_j V_x - 1[j in y]/q I||_F^2.
    With y = all_subsets(T, q) this is the population loss, for fixed PE.  The gradients of the other
    blocks of W and V are then 0, as X and -X are equally likely.
    """
    n, q, (T, d_e), d = len(y), y.shape[1], E.shape, len(V_x)
    U = E[y].sum(axis=1)                                                # (n, d_e)
    A = U @ W_pe.T @ E.T                                                # (n, T)
    P = np.exp(A - A.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    selected = np.zeros((n, T))
    selected[np.arange(n)[:, None], y] = 1 / q
    squares, trace = (V_x ** 2).sum(), np.trace(V_x)
    L = ((P * P).sum() * squares - 2 * (P * selected).sum() * trace) / (2 * n) + d / (2 * q)
    dV_x = ((P * P).sum() * V_x - (P * selected).sum() * np.eye(d)) / n
    dP = (P * squares - selected * trace) / n
    dA = P * (dP - (P * dP).sum(axis=1, keepdims=True))
    return L, (dA @ E).T @ U, dV_x


def demo():
    """Print the exact dynamics at the paper's size, what training costs at others, and noise floors."""
    T, d, q, rng = 200, 5, 3, np.random.default_rng(0)
    print(f"One-hot PE, T = {T}, d = {d}, q = {q}: gradient descent on the population loss, lr 1.\n")
    print("    step       L       a   alpha   growth of 1/L a step, over 4 lr / (T - 1)")
    L, a, alpha = descend(lambda a, alpha: onehot_slopes(a, alpha, T, d, q), 1.0, 100_000, T - 1, d)
    for t in 0, 1000, 3000, 10_000, 30_000, 100_000:
        growth = f"{(1 / L[t] - 1 / L[t - 100]) / 100 / (4 / (T - 1)):.3f}" if t else ""
        print(f"  {t:6d}  {L[t]:.4f}  {a[t]:6.3f}  {alpha[t]:6.3f}   {growth}".rstrip())

    print("\nSteps until L = 0.01 d/(2q), lr 1: counted by the recursion, and predicted in closed form.\n")
    print("           T   counted   predicted")
    for length in 10, 100, 1000, 10_000, 100_000, 1_000_000:
        counted = count_steps(0.01, length, d, q) if length <= 1000 else ""
        print(f"  {length:10d}  {counted:>8}  {predict_steps(0.01, length, d, q):10.3g}")

    print(f"\nStochastic PE with random signs, T = {T}: the least loss when K draws are averaged.\n")
    print("     d_e    K = 1    K = 4   K = 16   K = inf")
    for d_e in 64, 170, 512:
        scores = sample_scores(rng, T, d_e, q, 1000)
        floors = [noise_floor(scores, d, q, K)[0] for K in (1, 4, 16, math.inf)]
        print(f"  {d_e:6d}  " + "  ".join(f"{floor:7.4f}" for floor in np.maximum(floors, 0)))


if __name__ == "__main__":
    demo()
