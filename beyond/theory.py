"""Exact dynamics of gradient descent on sparse token selection: a few numbers instead of matrices.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python theory.py` prints a tour.
Everything in this file is derived here; nothing is quoted from the paper.

Throughout this file we have, as in sts.py:

    T, d, q      sequence length, token dimension, subset size
    d_e          dimension of a positional encoding (PE)
    X, y         tokens x_j, i.i.d. N(0, I_d), and the q selected positions, a uniform subset
    E            positional encodings, row j is e_j                            (T, d_e)
    U            c sum of e_i over i in y, c = 1 ("sum", the default) or 1/q ("mean")
    W, V         key-query and value matrices of attention; z_j = (x_j, e_j), z_query = (0, U)
    P            attention weights, softmax over the keys of z^T W z_query; the keys are the z_j,
                 and in the full model z_query as well
    f            the output V sum P z over the keys; the target is STS = (1/q) sum_{i in y} x_i
    W*           the identity on the PE-PE block of W (stochastic PE) or I - 11^T/T (one-hot PE)
    V*           the identity on the token block of V
    L            population loss E 1/2 ||f - STS||^2; the zero predictor has L = d/(2q)
    lr, t        learning rate, number of steps

PE are one-hot, or stochastic and orthonormal: random signs times distinct coordinate vectors.  With
orthonormal PE all draws give the same P.  width.py has stochastic PE of random signs.

From W = 0, V = 0, gradient descent on L keeps W = a W* and V = alpha V*.  The reason is symmetry:
if an orthogonal map of the weights does not change L, it takes the gradient at a point to the
gradient at the image of this point.  Block by block:

    W, token columns     They are multiplied by the 0 in z_query.  f does not depend on them, so the
                         token-token and the PE-token block stay 0.
    W, the token-PE      Change the sign of both, and of X.  P stays the same, and f and STS change
    block, and V_e of    sign.  So L is even in the two together, and where both are 0, so is the
    V = [V_x, V_e]       gradient.
    V_x                  Map all tokens by an orthogonal O, and V_x to O V_x O^T: L stays the same.
                         At a multiple of I the gradient commutes with every O, so it is one, too.
    W, PE-PE block,      The coordinates of all PE may be permuted and change sign.  A matrix that
    stochastic PE        commutes with all these maps is a multiple of I.
    W, PE-PE block,      Positions may be permuted.  A matrix that commutes with permutations is
    one-hot PE           x I + y 11^T.  With keys Z, softmax ignores what 11^T adds to all logits,
                         so the gradient is orthogonal to 11^T: a multiple of I - 11^T/T.

(A gradient of 0 is no minimum.  At T = 6, d = 2, q = 3 with one-hot PE, rounding errors in the
blocks that start at 0 grow with lr 1, but not with lr 1/2.)  A step of gradient descent is then

    a     <- a     - lr / ||W*||^2 dL/da         ||W*||^2 = T - 1 (one-hot), d_e (stochastic)
    alpha <- alpha - lr / ||V*||^2 dL/dalpha     ||V*||^2 = d

P does not depend on X, and the tokens integrate out:

    f - STS = sum_j (alpha P_j - 1[j in y]/q) x_j,     L = d/2 E sum_j (alpha P_j - 1[j in y]/q)^2
"""

import itertools
import math

import numpy as np


# Keys Z: two numbers


def onehot_slopes(a, alpha, T, d, q):
    """L, dL/da, dL/dalpha for one-hot PE and for orthonormal PE, with keys Z.

    With W = a W* the logits of selected positions are higher by a than the others, so
    P_j = p_in = e^a / (q e^a + T - q) for j in y, and p_out = 1 / (q e^a + T - q) for the others.
    With r_j = alpha P_j - 1[j in y]/q:   L = d/2 (q r_in^2 + (T - q) r_out^2),  and by the
    derivative of softmax dL/da = q p_in (d alpha r_in - mean), mean = sum_j P_j d alpha r_j.
    """
    e = math.exp(-a)                    # all logits are shifted by -a: no overflow for a > 0
    p_in, p_out = 1 / (q + (T - q) * e), e / (q + (T - q) * e)
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    return L, q * p_in * (d * alpha * r_in - alpha * dalpha), dalpha


def descend(slopes, lr, steps, *norms2, start=None):
    """Gradient descent on a few numbers; returns L and the numbers, (1 + k, steps + 1).

    slopes(*numbers) gives L and its k derivatives.  Each number multiplies a direction, such as W*
    or V*, and the directions are orthogonal.  norms2 are their squared norms.  start holds the first
    values of the numbers, by default 0.
    """
    numbers, path = start or [0.0] * len(norms2), []
    for _ in range(steps + 1):
        L, *grads = slopes(*numbers)
        path.append((L, *numbers))
        numbers = [x - lr / norm2 * dx for x, norm2, dx in zip(numbers, norms2, grads)]
    return np.array(path).T


def count_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """The steps after which L <= share d/(2q), by the recursion; arguments as in predict_steps."""
    a, alpha, t, norm2 = 0.0, 0.0, 0, T - 1 if W_norm2 is None else W_norm2
    L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    while L > share * d / (2 * q):
        a, alpha, t = a - lr / norm2 * da, alpha - lr / d * dalpha, t + 1
        L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
    return t


def predict_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """About how many steps take L from d/(2q) to share d/(2q), in closed form.

    W_norm2 is T - 1 (one-hot, the default) or d_e (orthonormal).  Let alpha always have its best
    value for a, alpha = p_in / (q p_in^2 + (T - q) p_out^2), and put u = e^(2a).  Then
        L = d/(2q) (T - q) / (q u + T - q),   dL/da = -d (T - q) u / (q u + T - q)^2,
    and with steps so small that they are a flow, du/dt = -2 u lr/||W*||^2 dL/da.  The integral is
        t = ||W*||^2 / (2 lr d (T - q))
            * [ q^2 (u - 1) + 2 q (T - q) ln u + (T - q)^2 (1 - 1/u) ].
    The last term is the plateau, about T^2 / (2 lr d) steps for one-hot PE: attention that is
    spread evenly gives W a small gradient.  The first term is the tail, where 1/L grows by
    4 lr / ||W*||^2 a step, whatever d and q are.
    Needs 1 <= q < T and 0 < share < 1 - q/T.  Good for d well below T: alpha takes about T/lr steps
    to reach its best value, and a about T^2/(lr d) steps to move.  T may be an array.
    """
    norm2 = T - 1 if W_norm2 is None else W_norm2
    u = (T - q) * (1 / share - 1) / q
    terms = q * q * (u - 1) + 2 * q * (T - q) * np.log(u) + (T - q) ** 2 * (1 - 1 / u)
    return norm2 / (2 * lr * d * (T - q)) * terms


# Longer sequences


def length_numbers(L, T, d, q):
    """A = e^a and R = q alpha of weights with the loss L at T, if alpha is the best one for a.

    L = d/(2q) (T - q) / (q A^2 + T - q) as in predict_steps, which gives A.  The best alpha is
    p_in / (q p_in^2 + (T - q) p_out^2), so R = (q + (T - q)/A) / (1 + (T - q)/(q A^2)).
    """
    A = np.sqrt((T - q) / q * (d / (2 * q * L) - 1))
    return A, (q + (T - q) / A) / (1 + (T - q) / (q * A * A))


def length_loss(L, T, T_test, d, q):
    """The loss at length T_test of weights a W*, alpha V* that have the loss L at length T.

    For stochastic orthonormal PE and keys Z.  At T_test the attention is p_in = 1/Q on selected
    tokens and p_out = 1/(A Q) on the others, A = e^a, Q = q + (T_test - q)/A.  With R = q alpha
        L(T_test) = d/2 (q (alpha/Q - 1/q)^2 + (T_test - q) (alpha/(A Q))^2)
                  = d/(2q) [ (Q - R)^2 + (Q - q) R^2/(q A) ] / Q^2.
    The first term is there because alpha was made for T, the second is the attention on unselected
    tokens.  For large A this is d/(2 q^2 A^2) [T_test - q + (T_test - T)^2/q].  So at each length
    the loss falls like 1/t, and is (T_test - q + (T_test - T)^2/q) / (T - q) times the loss at T.
    The law reads A and R off L, see length_numbers.  In the recursion alpha lags a little.
    """
    A, R = length_numbers(L, T, d, q)
    Q = q + (T_test - q) / A
    return d / (2 * q) * ((Q - R) ** 2 + (Q - q) * R ** 2 / (q * A)) / Q ** 2


def reach(L, T, d, q, share=0.5):
    """The length at which weights with the loss L at length T have the loss share d/(2q).

    It follows from the larger solution Q of length_loss = share d/(2q), a quadratic equation.  For
    large A and share 1/2 the length is about (1 + sqrt(2)) q A + (2 + sqrt(2)) (T - q).  The first
    term is 1.7 sqrt(d (T - q)/L): the reach can be read off the training loss, and grows like
    sqrt(t).  Needs a share above that at T.
    """
    A, R = length_numbers(L, T, d, q)
    half = R - R ** 2 / (2 * q * A)
    Q = (half + np.sqrt(half ** 2 - (1 - share) * R ** 2 * (1 - 1 / A))) / (1 - share)
    return q + A * (Q - q)


# The full model: keys [Z, z_query]


def slopes_by_logit(selected, others, query, alpha, T, d, q):
    """L, its slope by the logit of one selected position, one other one, the query, and by alpha.

    The query has the value V z_query = 0: it takes attention and adds nothing to the output.
    By P_j the slopes of L are g_j = d alpha r_j with r_in = alpha p_in - 1/q, r_out = alpha p_out,
    and g_query = 0.  Softmax turns them into P_j (g_j - mean), where mean = sum_j P_j g_j.
    """
    top = max(selected, others, query)
    e_in, e_out, e_query = math.exp(selected - top), math.exp(others - top), math.exp(query - top)
    S = q * e_in + (T - q) * e_out + e_query
    p_in, p_out, p_query = e_in / S, e_out / S, e_query / S
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    mean = alpha * dalpha
    return (L, p_in * (d * alpha * r_in - mean), p_out * (d * alpha * r_out - mean),
            -p_query * mean, dalpha)


def query_scale(q, query):
    """c of U = c sum_{i in y} e_i.  Raises ValueError unless query is "sum" or "mean"."""
    if query not in ("sum", "mean"):
        raise ValueError(f"query must be sum or mean, got {query!r}")
    return 1 if query == "sum" else 1 / q


def full_model_slopes(a, alpha, T, d, q, query="sum"):
    """L, dL/da, dL/dalpha of the full model with stochastic orthonormal PE.

    With W = a W* the logits are a c for selected positions, 0 for others, and a |U|^2 = a c^2 q for
    the query itself.  With q = 1 "sum" and "mean" are the same.
    Raises ValueError unless query is "sum" or "mean".
    """
    c = query_scale(q, query)
    L, g_in, _, g_query, dalpha = slopes_by_logit(a * c, 0, a * c * c * q, alpha, T, d, q)
    return L, c * q * g_in + c * c * q * g_query, dalpha


def onehot_full_model_slopes(a, b, alpha, T, d, q, query="sum"):
    """L, dL/da, dL/db, dL/dalpha of the full model with one-hot PE.

    One-hot PE have a common direction, the vector of ones.  So the PE-PE block of W is
    x I + y 11^T, see the top.  Here it is a (I - 11^T/T) + b 11^T/T, that is x = a, y = (b - a)/T:
    these two directions are orthogonal, with squared norms T - 1 and 1.  The logits are c (x + q y)
    for selected positions, c q y for others, and c^2 (q x + q^2 y) for the query.  As softmax has
    q g_in + (T - q) g_out + g_query = 0 for the slopes by the logits,
        dL/dx = c q g_in + c^2 q g_query,   dL/dy = c q (c q - 1) g_query.
    With the mean c q = 1: b stays 0, and W = a W* as with keys Z.
    Raises ValueError unless query is "sum" or "mean".
    """
    c, y = query_scale(q, query), (b - a) / T
    L, g_in, _, g_query, dalpha = slopes_by_logit(c * (a + q * y), c * q * y,
                                                  c * c * q * (a + q * y), alpha, T, d, q)
    dy = c * q * (c * q - 1) * g_query
    return L, c * q * g_in + c * c * q * g_query - dy / T, dy / T, dalpha


def full_model_law(t, T, d, q, query, lr=1.0, d_e=None, onehot=False):
    """What L of the full model tends to as the number of steps t grows; t may be an array.

    "mean": the query and the selected positions have the same logit, so alpha stays bounded and has
    its best value.  There L = d/(2q) (T - q) / (q e^(2a/q) + T - q), and dL/da = -(2/q) L at the
    end.  So da/dt = (lr/||W*||^2) (2/q) L, and 1/L grows by 4 lr / (q^2 ||W*||^2) a step, where
    ||W*||^2 is d_e, or T - 1 (onehot).  alpha's own step needs lr < 2 (q + 1)^2 / q.

    "sum", q >= 2, stochastic orthonormal PE: the logit of the query is q times that of a selected
    position.  So the query takes the attention: p_in = e^(-(q-1)a), p_out = e^(-qa).  alpha has to
    grow like e^((q-1)a) / q.  Its slope, which is proportional to p_in, becomes small: now alpha is
    slow, and a is the best one for alpha.  There dL/da = 0, which means
    r_in = -(T - q) alpha p_out^2 / ((q-1) p_in), and alpha moves by
        dalpha/dt = -lr (q r_in p_in + (T - q) alpha p_out^2) = lr (T - q) alpha p_out^2 / (q-1).
    With dalpha/dt = (q-1) alpha da/dt this gives e^(2qa) = 2 q lr (T - q) t / (q-1)^2.  Hence, with
    L = d/2 (T - q) (alpha p_out)^2 = d (T - q) / (2 q^2) e^(-2a),
        L = d (T - q) / (2 q^2) [2 q lr (T - q) t / (q-1)^2]^(-1/q),   whatever d_e is.

    "sum", q >= 2, one-hot PE, with x and y of onehot_full_model_slopes: a negative y takes down the
    logit of the query.  Here L = d (T - q) / (2 q^2) e^(-2x), and alpha = (q + e^((q-1)m)) / q has
    its best value for m = x + q y, the logit of selected positions.  alpha depends on m so steeply
    that m nearly stops, and W moves along I - 11^T/q, whose squared norm is
    N = T^2/q^2 + T (1 - 2/q).  So 1/L grows by 4 lr/N a step: L falls like 1/t.
    More exactly, m creeps upwards.  With alpha' = dalpha/dm, a flow along these alpha has
        N - (T/q)^2 (T/q - 1)^2 / (T^2/q^2 + d alpha'^2)
    instead of N, which tends to N as m grows.
    """
    if query == "mean" or q == 1:
        return q * q * (T - 1 if onehot else d_e) / (4 * lr * t)
    if onehot:
        return (T * T / (q * q) + T * (1 - 2 / q)) / (4 * lr * t)
    return d * (T - q) / (2 * q * q) * (2 * q * lr * (T - q) * t / (q - 1) ** 2) ** (-1 / q)


# All entries of W and V


def all_subsets(T, q):
    """All q-subsets of 0..T-1 as rows, (T choose q, q)."""
    return np.array(list(itertools.combinations(range(T), q)), dtype=np.intp)


def integrated_loss_and_grads(W_pe, V_x, E, y):
    """The loss with the tokens integrated out, L, dL/dW_pe, dL/dV_x; mean over subsets y (n, q).

    For W that is zero but for its PE-PE block W_pe (d_e, d_e), V = [V_x, 0] with V_x (d, d), one
    E (T, d_e), and keys Z.  Since f - STS = sum_j (P_j V_x - 1[j in y]/q I) x_j,
        L = 1/2 mean_y sum_j ||P_j V_x - 1[j in y]/q I||_F^2.
    With y = all_subsets(T, q) this is the population loss, for fixed PE.  The gradients of the
    other blocks of W and V are 0, see the top.
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
    T, d, q = 200, 5, 3
    print(f"Gradient descent on the population loss, d = {d}, q = {q}, lr 1.  One-hot, T = {T}:\n")
    print("     step        L       a   alpha   growth of 1/L a step, over 4 lr / (T - 1)")
    L, a, alpha = descend(lambda *numbers: onehot_slopes(*numbers, T, d, q), 1.0, 100_000, T - 1, d)
    for t in 1000, 3000, 10_000, 30_000, 100_000:
        growth = (1 / L[t] - 1 / L[t - 100]) / 100 / (4 / (T - 1))
        print(f"  {t:7d}  {L[t]:.5f}  {a[t]:6.3f}  {alpha[t]:6.3f}   {growth:.3f}")

    print("\nThe plateau is W's: steps until L = d/(4q) from three starts.\n")
    for name, start in (("W = V = 0", (0, 0)), ("V = V*", (0, 1)), ("W = W*", (1, 0))):
        path = descend(lambda *numbers: onehot_slopes(*numbers, T, d, q), 1.0, 6000, T - 1, d,
                       start=start)
        print(f"  {name:9}  {(path[0] <= d / (4 * q)).argmax()}")

    lr = 1 / (20 * d * d)
    print(f"\nUnder the conditions of Theorem 1 at T = 20, lr 1/(20 d^2) = {lr:g}:"
          f"\n  {count_steps(0.01, 20, d, q, lr)} steps until L = 0.01 d/(2q)")

    print("\nSteps until L = 0.01 d/(2q), one-hot: counted by the recursion, and in closed form.\n")
    print("        T   counted   predicted")
    for length in 10, 100, 1000, 10_000, 100_000:
        counted = count_steps(0.01, length, d, q) if length <= 1000 else ""
        print(f"  {length:7d}  {counted:>8}  {predict_steps(0.01, length, d, q):10.3g}")

    print(f"\nOrthonormal PE, d_e = {T - 1}, trained at T = {T} as above: L at other lengths, over"
          "\nthe law that reads it off the training loss; the length where L is half of d/(2q).\n")
    print("     step    L(400)  over law    L(2000)  over law    reach   its largest term")
    for t in 10_000, 30_000, 100_000:
        losses = [(length, onehot_slopes(a[t], alpha[t], length, d, q)[0])
                  for length in (400, 2000)]
        print(f"  {t:7d}   " + "     ".join(
            f"{loss:.5f}    {loss / length_loss(L[t], T, length, d, q):.4f}"
            for length, loss in losses)
            + f"   {reach(L[t], T, d, q):6.0f}   {1.707 * math.sqrt(d * (T - q) / L[t]):6.0f}")

    T, lr = 50, 3.0
    print(f"\nThe full model, keys [Z, z_query], T = {T}, lr {lr:g}: L over what it tends to.  That"
          "\nfalls like t^(-1/q) with orthonormal PE (d_e = 100) and the sum, else like 1/t.\n")
    print("                 orthonormal            one-hot")
    print("     step       sum     mean       sum     mean")
    losses = [descend(lambda *numbers: slopes(*numbers, T, d, q, query), lr, 50_000, *norms2)[0]
              for slopes, norms2 in ((full_model_slopes, (100, d)),
                                     (onehot_full_model_slopes, (T - 1, 1, d)))
              for query in ("sum", "mean")]
    for t in 5000, 15_000, 50_000:
        laws = [full_model_law(t, T, d, q, query, lr, 100, onehot)
                for onehot in (False, True) for query in ("sum", "mean")]
        print(f"  {t:7d}   " + "  ".join(f"{L[t] / law:7.3f}" for L, law in zip(losses, laws)))


if __name__ == "__main__":
    demo()
