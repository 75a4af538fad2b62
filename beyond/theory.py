"""Exact dynamics of gradient descent on sparse token selection: two numbers instead of matrices.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python theory.py` prints a tour.
All of it is derived here, none of it is quoted from the paper.

Throughout this file we have, as in sts.py:

    T, d, q      sequence length, token dimension, subset size
    d_e, K       dimension of a positional encoding (PE), number of PE draws that are averaged
    X, y         tokens x_j, i.i.d. N(0, I_d), and the q selected positions, a uniform subset
    E            positional encodings, row j is e_j                            (T, d_e)
    U            c sum of e_i over i in y, c = 1 ("sum", also where none is named) or 1/q ("mean")
    W, V         key-query and value matrices of attention; z_j = (x_j, e_j), z_query = (0, U)
    P            attention weights, softmax over the keys of z^T W z_query; the keys are the z_j,
                 and in the full model z_query as well
    f            the output V sum P z over the keys; the target is STS = (1/q) sum_{i in y} x_i
    W*           I on the PE-PE block of W for stochastic PE, I - 11^T/T for one-hot PE; else 0
    V*           I on the token block of V; else 0
    L            population loss E 1/2 ||f - STS||^2;  an answer of 0 has L = d/(2q)
    lr, t        learning rate, number of steps

Positions 0..q-1 stand for y wherever all subsets are alike.

From W = 0, V = 0, gradient descent on L keeps W = a W* and V = alpha V*.  For if L is the same at
two points that a linear map takes to each other, then so are their gradients.  Block by block:

    W, token columns     They meet the 0 of z_query: f does not depend on them, and the token-token
                         and the PE-token block stay 0.
    W, the token-PE      If both change sign, and X too, then P is the same, and f and STS change
    block, and V_e of    sign: L is even in the two together, its gradient is 0 where both are 0.
    V = [V_x, V_e]
    V_x                  All tokens may be mapped by an orthogonal O, if V_x goes to O V_x O^T: at a
                         multiple of I the gradient commutes with every O, and is one as well.
    W, PE-PE block,      The coordinates of all PE may be permuted and change sign; what commutes
    stochastic PE        with all these maps is a multiple of I.
    W, PE-PE block,      Positions may be permuted: what commutes is x I + y 11^T.  And softmax over
    one-hot PE, keys Z   the z_j ignores what 11^T adds to all logits, so that the gradient is
                         orthogonal to 11^T: a multiple of I - 11^T/T.

(A gradient of 0 is no minimum: at T = 6, d = 2, q = 3, one-hot, rounding errors in the blocks that
start at 0 grow if lr is 1, and not if it is 1/2.)  A step of gradient descent is therefore

    a     <- a     - lr / ||W*||^2 dL/da         ||W*||^2 = T - 1 (one-hot), d_e (stochastic)
    alpha <- alpha - lr / ||V*||^2 dL/dalpha     ||V*||^2 = d

P does not depend on X then, and the tokens integrate out:

    f - STS = sum_j (alpha P_j - 1[j in y]/q) x_j,     L = d/2 E sum_j (alpha P_j - 1[j in y]/q)^2
"""

import itertools
import math

import numpy as np


def onehot_slopes(a, alpha, T, d, q):
    """L, dL/da, dL/dalpha for one-hot PE, and for orthonormal PE, stochastic or not; keys Z.

    With W = a W* selected positions have logits that are a higher than those of the others, so
    P_j = p_in = e^a / (q e^a + T - q) for j in y, and p_out = 1 / (q e^a + T - q) for the others.
    With r_j = alpha P_j - 1[j in y]/q:   L = d/2 (q r_in^2 + (T - q) r_out^2),  and by the
    derivative of softmax dL/da = q p_in (d alpha r_in - mean), mean = sum_j P_j d alpha r_j.
    """
    e = math.exp(-a)                    # of logits shifted by -a: no overflow for a > 0
    p_in, p_out = 1 / (q + (T - q) * e), e / (q + (T - q) * e)
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    return L, q * p_in * (d * alpha * r_in - alpha * dalpha), dalpha


def descend(slopes, lr, steps, W_norm2, V_norm2, a=0.0, alpha=0.0):
    """Gradient descent on two numbers; returns L, a, alpha (3, steps + 1), from start to end.

    slopes(a, alpha) gives L, dL/da, dL/dalpha; the norms are ||W*||^2 and ||V*||^2.
    """
    path = []
    for _ in range(steps + 1):
        L, da, dalpha = slopes(a, alpha)
        path.append((L, a, alpha))
        a, alpha = a - lr / W_norm2 * da, alpha - lr / V_norm2 * dalpha
    return np.array(path).T


def population_descent(law, T, d, q, lr, steps, d_e=None, K=1, rng=None, draws=600, parts=8):
    """Gradient descent on the population loss, for a law of encodings by name; keys Z.

    Returns L, a, alpha (3, steps + 1) and their standard errors (3, steps + 1).  The law is onehot,
    or one of stochastic PE with d_e: orthonormal, or rademacher.  The first two are exact, and K is
    of no account, as all draws give the same P.  For rademacher L is estimated from draws of scores
    by the Generator rng; the mean and its error are those of parts samples, each of so many draws.
    Raises ValueError for another law.
    """
    if law not in ("onehot", "orthonormal", "rademacher"):
        raise ValueError(f"law must be onehot, orthonormal or rademacher, got {law!r}")
    if law == "rademacher":
        paths = []
        for _ in range(parts):
            scores = sample_scores(rng, T, d_e, q, draws)
            paths.append(descend(lambda a, alpha: stochastic_slopes(a, alpha, scores, d, q, K),
                                 lr, steps, d_e, d))
        return np.mean(paths, axis=0), np.std(paths, axis=0, ddof=1) / math.sqrt(parts)
    path = descend(lambda a, alpha: onehot_slopes(a, alpha, T, d, q),
                   lr, steps, T - 1 if law == "onehot" else d_e, d)
    return path, np.zeros_like(path)


def count_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """The steps after which L <= share d/(2q), by the recursion; arguments as in predict_steps."""
    a, alpha, t, norm2 = 0.0, 0.0, 0, T - 1 if W_norm2 is None else W_norm2
    L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    while L > share * d / (2 * q):
        a, alpha, t = a - lr / norm2 * da, alpha - lr / d * dalpha, t + 1
        L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    return t


def predict_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """About how many steps take L from d/(2q) to share d/(2q); one-hot, or orthonormal with d_e.

    W_norm2 is T - 1 (one-hot, the default) or d_e (orthonormal).  Let alpha have its best value for
    the a of the moment, alpha = p_in / (q p_in^2 + (T - q) p_out^2), and put u = e^(2a).  Then
        L = d/(2q) (T - q) / (q u + T - q),   dL/da = -d (T - q) u / (q u + T - q)^2,
    and in steps so small that they are a flow du/dt = -2 u lr/||W*||^2 dL/da.  That integrates to
        t = ||W*||^2 / (2 lr d (T - q))
            * [ q^2 (u - 1) + 2 q (T - q) ln u + (T - q)^2 (1 - 1/u) ].
    The last term is the plateau, about T^2 / (2 lr d) steps for one-hot PE; the first is the tail,
    where 1/L grows by 4 lr / ||W*||^2 a step, whatever d and q are.
    Needs 1 <= q < T and 0 < share < 1 - q/T, and a d well below T, as alpha takes some T/lr steps
    to its best value and a some T^2/(lr d) steps to move.  T may be an array.
    """
    norm2 = T - 1 if W_norm2 is None else W_norm2
    u = (T - q) * (1 / share - 1) / q
    terms = q * q * (u - 1) + 2 * q * (T - q) * np.log(u) + (T - q) ** 2 * (1 - 1 / u)
    return norm2 / (2 * lr * d * (T - q)) * terms


def sample_scores(rng, T, d_e, q, draws):
    """Draws of the scores s_j = e_j . sum_{i in y} e_i for rademacher PE (draws, T), y = 0..q-1.

    e_j = signs / sqrt(d_e).  Only the e_i of y are drawn.  Given them, the others need only
    binomial numbers: where |sum of signs| is k, in n_k coordinates, they add
    k/d_e (2 Bin(n_k, 1/2) - n_k).
    """
    signs = rng.integers(2, size=(draws, q, d_e), dtype=np.int8) * 2 - 1
    U = signs.sum(axis=1)                                               # (draws, d_e)
    scores = np.empty((draws, T))
    scores[:, :q] = (signs @ U[:, :, None])[:, :, 0] / d_e
    scores[:, q:] = 0
    for k in range(1, q + 1):
        n_k = (abs(U) == k).sum(axis=1)[:, None]                        # (draws, 1)
        if n_k.any():
            scores[:, q:] += k / d_e * (2 * rng.binomial(n_k, 0.5, (draws, T - q)) - n_k)
    return scores


def attention_moments(a, scores, q):
    """Of each draw of scores sum_j P_j^2, sum_{j in y} P_j, and their derivatives by a (4, draws).

    P = softmax(a s) is the attention for W = a W*.
    """
    P = np.exp(a * scores - (a * scores).max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)                                   # (draws, T)
    dP = P * (scores - (P * scores).sum(axis=1, keepdims=True))         # dP/da
    return np.array([(P * P).sum(axis=1), P[:, :q].sum(axis=1),
                     2 * (P * dP).sum(axis=1), dP[:, :q].sum(axis=1)])


def mean_attention(moments, T, q, K):
    """Of the mean P of K independent draws the expected squared length, and S = E sum_{j in y} P_j.

        length = E sum_j P_j^2 / K + (1 - 1/K) sum_j (E P_j)^2
    By symmetry E P_j = S/q for j in y, and (1 - S)/(T - q) for the others.  Returns length, S, and
    their derivatives by a; moments as attention_moments gives them.
    """
    single, S, dsingle, dS = moments.mean(axis=1)
    mean = S ** 2 / q + (1 - S) ** 2 / max(T - q, 1)
    dmean = 2 * (S / q - (1 - S) / max(T - q, 1)) * dS
    return single / K + (1 - 1 / K) * mean, S, dsingle / K + (1 - 1 / K) * dmean, dS


def stochastic_slopes(a, alpha, scores, d, q, K=1):
    """L, dL/da, dL/dalpha for stochastic PE and W = a W*, when K draws of E are averaged; keys Z.

    With the length and S of mean_attention, where E is over the scores (draws, T) that are given,
        L = d/2 (alpha^2 length - 2 alpha/q S + 1/q).
    K = 1 is the usual training step; K = math.inf is Definition 5, the expectation inside the loss.
    Given the same scores at each step (common random numbers), L is a smooth function of a, alpha.
    """
    moments = attention_moments(a, scores, q)
    length, S, dlength, dS = mean_attention(moments, scores.shape[1], q, K)
    L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
    return (float(L), float(d / 2 * (alpha ** 2 * dlength - 2 * alpha / q * dS)),
            float(d * (alpha * length - S / q)))


def predict_loss(rng, a, alpha, T, d, q, d_e, K=1, precision=0.005):
    """L of stochastic_slopes for rademacher PE, and its standard error.

    This is the error of the weights a W*, alpha V* at any T.  Scores are drawn by the Generator
    rng, about 10^5 numbers at a time, until there are 50 draws, and the standard error is at most
    precision L (or 10^-6).  For that, to first order L - E L is the mean over the draws of the part
    of L that is linear in them.
    """
    draws, moments, L, error = max(10, 10 ** 5 // max(T, q * d_e)), np.empty((4, 0)), 0, math.inf
    while moments.shape[1] < 50 or error > max(precision * L, 1e-6):
        portion = attention_moments(a, sample_scores(rng, T, d_e, q, draws), q)
        moments = np.concatenate([moments, portion], axis=1)
        length, S, _, _ = mean_attention(moments, T, q, K)
        L = d / 2 * (alpha ** 2 * length - 2 * alpha / q * S + 1 / q)
        slope = 2 * (1 - 1 / K) * (S / q - (1 - S) / max(T - q, 1))     # of the length by S
        linear = alpha ** 2 * (moments[0] / K + slope * moments[1]) - 2 * alpha / q * moments[1]
        error = d / 2 * linear.std(ddof=1) / math.sqrt(len(linear))
    return float(L), float(error)


def noise_floor(scores, d, q, K=1):
    """The least loss for rademacher PE, L, a, alpha; arguments as in stochastic_slopes.

    Gradient descent from zero cannot go below it.  For q >= 3 one draw of nearly orthogonal PE
    gives the selected tokens unequal logits, and cannot select exactly.  For q <= 2 they are equal
    (a for q = 1, a (1 + e_1 . e_2) for q = 2), and so they are on average for K = math.inf.  There
    the floor is almost 0 if d_e is large, and lies at the end of the range of a: attention on y
    tends to 1 as a grows, but for rare draws of E in which another position has a higher score.
    For given a the best alpha is S / (q length), with L = d/2 (1/q - S^2 / (q^2 length)).
    Golden-section search over a in (0, 60).  L is level at its least value: so predict_loss at the
    a and alpha of a few hundred draws has little error but its own, which it returns.
    """
    def best(a):
        length, S, _, _ = mean_attention(attention_moments(a, scores, q), scores.shape[1], q, K)
        alpha = S / (q * length)
        return float(d / 2 * (1 / q - alpha * S / q)), a, float(alpha)

    low, high, golden = 0.0, 60.0, (math.sqrt(5) - 1) / 2
    for _ in range(30):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if best(left) < best(right) else (left, high)
    return best((low + high) / 2)


def full_model_slopes(a, alpha, T, d, q, query="sum"):
    """L, dL/da, dL/dalpha of the full model, keys [Z, z_query]; stochastic orthonormal PE.

    With W = a I on PE, logits are a c for selected positions, 0 for others, and a |U|^2 = a c^2 q
    for the query itself, whose value V z_query is 0: it takes attention, and gives nothing.  So
        S = q e^(a c) + e^(a c^2 q) + T - q,   p_in = e^(a c) / S,   p_out = 1 / S,
        p_query = e^(a c^2 q) / S,
        L = d/2 (q r_in^2 + (T - q) r_out^2),   r_in = alpha p_in - 1/q,   r_out = alpha p_out.
    By P_j the slopes of L are g_in = d alpha r_in, g_out = d alpha r_out, g_query = 0; with their
    mean = q p_in g_in + (T - q) p_out g_out softmax turns them into p (g - mean) by each logit, and
        dL/da = c q p_in (g_in - mean) - c^2 q p_query mean.
    With q = 1 "sum" and "mean" are one.  Raises ValueError for another query.
    """
    if query not in ("sum", "mean"):
        raise ValueError(f"query must be sum or mean, got {query!r}")
    c = 1 if query == "sum" else 1 / q
    logits = a * c, 0, a * c * c * q                            # selected, others, query
    e_in, e_out, e_query = (math.exp(logit - max(logits)) for logit in logits)
    S = q * e_in + (T - q) * e_out + e_query
    p_in, p_out, p_query = e_in / S, e_out / S, e_query / S
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    mean = alpha * dalpha
    return L, c * q * p_in * (d * alpha * r_in - mean) - c * c * q * p_query * mean, dalpha


def full_model_law(t, T, d, q, query, lr=1.0, d_e=None):
    """What L of the full model tends to as the number of steps t grows; t may be an array.

    "mean": query and selected positions have the same logit, so alpha stays bounded, and has its
    best value.  There L = d/(2q) (T - q) / (q e^(2a/q) + T - q) and dL/da = -(2/q) L at the end,
    and da/dt = (lr/d_e) (2/q) L makes 1/L grow by 4 lr / (q^2 d_e) a step.
    alpha's own step needs lr < 2 (q + 1)^2 / q.

    "sum", q >= 2: the query's logit is q times that of a selected position, so it takes the
    attention: p_in = e^(-(q-1)a), p_out = e^(-qa).  alpha has to grow like e^((q-1)a) / q, and its
    slope, which is proportional to p_in, becomes small: now alpha is slow, and a is at its best for
    alpha.  With dL/da = 0, that is r_in = -(T - q) alpha p_out^2 / ((q-1) p_in), alpha moves by
        dalpha/dt = -lr (q r_in p_in + (T - q) alpha p_out^2) = lr (T - q) alpha p_out^2 / (q-1),
    and dalpha/dt = (q-1) alpha da/dt gives e^(2qa) = 2 q lr (T - q) t / (q-1)^2.  Hence, with
    L = d/2 (T - q) (alpha p_out)^2 = d (T - q) / (2 q^2) e^(-2a),
        L = d (T - q) / (2 q^2) [2 q lr (T - q) t / (q-1)^2]^(-1/q),   whatever d_e is.
    """
    if query == "mean" or q == 1:
        return q * q * d_e / (4 * lr * t)
    return d * (T - q) / (2 * q * q) * (2 * q * lr * (T - q) * t / (q - 1) ** 2) ** (-1 / q)


def all_subsets(T, q):
    """All q-subsets of 0..T-1 as rows, (T choose q, q)."""
    return np.array(list(itertools.combinations(range(T), q)), dtype=np.intp)


def integrated_loss_and_grads(W_pe, V_x, E, y):
    """The loss with the tokens integrated out, L, dL/dW_pe, dL/dV_x; mean over subsets y (n, q).

    For W that is zero but for its PE-PE block W_pe (d_e, d_e), V = [V_x, 0] with V_x (d, d), one
    E (T, d_e), and keys Z.  Since f - STS = sum_j (P_j V_x - 1[j in y]/q I) x_j,
        L = 1/2 mean_y sum_j ||P_j V_x - 1[j in y]/q I||_F^2.
    With y = all_subsets(T, q) this is the population loss, for fixed PE.  The gradients of the
    other blocks of W and V are 0, as said at the top.
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
    """Print a tour: what gradient descent does on the population loss, and what follows from it."""
    T, d, q, rng = 200, 5, 3, np.random.default_rng(0)
    print(f"Gradient descent on the population loss, d = {d}, q = {q}, lr 1.  One-hot, T = {T}:\n")
    print("     step        L       a   alpha   growth of 1/L a step, over 4 lr / (T - 1)")
    (L, a, alpha), _ = population_descent("onehot", T, d, q, 1.0, 100_000)
    for t in 1000, 3000, 10_000, 30_000, 100_000:
        growth = (1 / L[t] - 1 / L[t - 100]) / 100 / (4 / (T - 1))
        print(f"  {t:7d}  {L[t]:.5f}  {a[t]:6.3f}  {alpha[t]:6.3f}   {growth:.3f}")

    print("\nL by the law of the encodings, T = 10, d_e = 40.  For rademacher it is sampled, +- its"
          "\nstandard error, and tends to a floor, which is lower if K draws are averaged.\n")
    print("     step  onehot  orthonormal   rademacher, K = 1   rademacher, K = 4")
    found = [population_descent(law, 10, d, q, 1.0, 300, 40, K, rng) for law, K in (
        ("onehot", 1), ("orthonormal", 1), ("rademacher", 1), ("rademacher", 4))]
    for t in 50, 100, 200, 300:
        onehot, orthonormal, *sampled = [(path[0, t], error[0, t]) for path, error in found]
        print(f"  {t:7d}  {onehot[0]:.4f}       {orthonormal[0]:.4f}"
              + "".join(f"   {L:.4f} +- {error:.4f}" for L, error in sampled))

    print("\nSteps until L = 0.01 d/(2q), one-hot: counted by the recursion, and in closed form.\n")
    print("        T   counted   predicted")
    for length in 10, 100, 1000, 10_000, 100_000:
        counted = count_steps(0.01, length, d, q) if length <= 1000 else ""
        print(f"  {length:7d}  {counted:>8}  {predict_steps(0.01, length, d, q):10.3g}")

    print(f"\nThe least loss of rademacher PE at T = {T}, d_e = 170, when K draws are averaged.\n"
          "For q >= 3 one draw gives selected tokens unequal logits, for q = 2 equal ones.\n")
    for q_floor, K in (3, 1), (3, 4), (3, 16), (2, 1):
        scores = sample_scores(rng, T, 170, q_floor, 200)
        _, a, alpha = noise_floor(scores, d, q_floor, K)
        L, error = predict_loss(rng, a, alpha, T, d, q_floor, 170, K, 0.01)
        print(f"  q = {q_floor}, K = {K:2d}   {L:.5f} +- {error:.5f}")

    print("\nThe error of weights 4.2 W*, 1.8 V*, by length; rademacher, d_e = 170, K = 16.\n")
    for length in 500, 5000, 50_000:
        L, error = predict_loss(rng, 4.2, 1.8, length, d, q, 170, 16, 0.01)
        print(f"  T = {length:6d}   {L:.4f} +- {error:.4f}")

    print(f"\nThe full model, keys [Z, z_query], orthonormal PE, T = {T}, d_e = 400, lr 5.  L over"
          "\nwhat it tends to: like t^(-1/q) if the query is a sum, like 1/t if it is a mean.\n")
    print("           query: sum           query: mean          growth of 1/L a step,")
    print("     step        L  over law          L  over law    over 4 lr / (q^2 d_e)")
    full = {query: descend(lambda a, alpha: full_model_slopes(a, alpha, T, d, q, query),
                           5.0, 100_000, 400, d)[0] for query in ("sum", "mean")}
    for t in 1000, 10_000, 30_000, 100_000:
        columns = [f"{L[t]:.5f}     {L[t] / full_model_law(t, T, d, q, query, 5.0, 400):5.3g}"
                   for query, L in full.items()]
        growth = (1 / full["mean"][t] - 1 / full["mean"][t - 100]) / 100 / (4 * 5 / (q * q * 400))
        print(f"  {t:7d}  {'    '.join(columns)}    {growth:.3f}")


if __name__ == "__main__":
    demo()
