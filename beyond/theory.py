"""Exact dynamics of gradient descent on sparse token selection: a few numbers instead of matrices.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python theory.py` prints a tour.
Everything in this file is derived here; nothing is quoted from the paper.

Throughout this file we have, as in sts.py:

    n, T, d, q   batch size, sequence length, token dimension, subset size
    d_e          dimension of a positional encoding (PE)
    X, y         tokens x_j, i.i.d. N(0, I_d), and the q selected positions, a uniform subset
    E            positional encodings, row j is e_j                    (T, d_e)
    U            c sum of e_i over i in y, c = 1 ("sum", the default) or 1/q ("mean")
    W, V         key-query and value matrices of attention; z_j = (x_j, e_j), z_query = (0, U)
    A, P         logits z^T W z_query of the keys z, and attention weights P = softmax(A); the keys
                 are the z_j, and in the full model z_query as well
    f            the output V sum P z over the keys; the target is STS = (1/q) sum_{i in y} x_i
    W*           the identity on the PE-PE block of W (stochastic PE) or I - 11^T/T (one-hot PE)
    V*           the identity on the token block of V
    L            population loss, the mean of 1/2 ||f - STS||^2; the zero predictor has d/(2q)
    lr, t        learning rate, number of steps

PE are stochastic (new at every step), fixed, or one-hot.  Stochastic and fixed PE are orthonormal
here: random signs times distinct coordinate vectors.  With W = a W* all draws of them give the same
P.  Where PE are random signs, we say so; see also width.py.

From W = 0, V = 0, gradient descent on L keeps W = a W* and V = alpha V*, with one-hot and with
stochastic PE.  The reason is symmetry.  Suppose an orthogonal map of the weights does not change
L.  Then gradients are mapped as weights are.  So where the map leaves the weights as they are, it
leaves the gradient as it is, and the next weights too.  Block by block:

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
    one-hot PE           a I + w 11^T.  With keys Z, softmax ignores what 11^T adds to all logits,
                         so the gradient is orthogonal to 11^T: a multiple of I - 11^T/T.

(This is exact arithmetic.  At T = 6, d = 2, q = 3 with one-hot PE, rounding errors in the
blocks that start at 0 grow with lr 1, but not with lr 1/2.)  A step of gradient descent is then

    a     <- a     - lr / ||W*||^2 dL/da         ||W*||^2 = T - 1 (one-hot), d_e (stochastic)
    alpha <- alpha - lr / ||V*||^2 dL/dalpha     ||V*||^2 = d

P does not depend on X, and the tokens integrate out.  With r = f - STS = dL/df of one sequence,

    r = sum_j r_j x_j,   r_j = alpha P_j - 1[j in y]/q,     L = d/2 sum_j r_j^2, the mean over y, E.
"""

import itertools
import math

import numpy as np


def query_scale(q, query):
    """c of U = c sum_{i in y} e_i.  Raises ValueError unless query is "sum" or "mean"."""
    if query not in ("sum", "mean"):
        raise ValueError(f"query must be sum or mean, got {query!r}")
    return 1 if query == "sum" else 1 / q


# Keys Z: two numbers


def slopes_by_logit(selected, others, query, alpha, T, d, q):
    """L, its slope by the logit of one selected position, one other one, the query, and by alpha.

    L = d/2 (q r_in^2 + (T - q) r_out^2), with r_in = alpha p_in - 1/q for j in y, and
    r_out = alpha p_out for the others.  The query, a key of the full model only, has the value
    V z_query = 0: it takes attention and adds nothing to f.  The slopes of L by P_j are
    g_j = d alpha r_j, and g_query = 0.  Softmax turns them into P_j (g_j - mean), where
    mean = sum_j P_j g_j.  Without the query as a key its logit is -infinity.
    """
    top = max(selected, others, query)                  # subtracted from all logits: no overflow
    e_in, e_out, e_query = math.exp(selected - top), math.exp(others - top), math.exp(query - top)
    total = q * e_in + (T - q) * e_out + e_query
    p_in, p_out, p_query = e_in / total, e_out / total, e_query / total
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    mean = alpha * dalpha
    return (L, p_in * (d * alpha * r_in - mean), p_out * (d * alpha * r_out - mean),
            -p_query * mean, dalpha)


def onehot_slopes(a, alpha, T, d, q):
    """L, dL/da, dL/dalpha for one-hot and for orthonormal PE, with keys Z and the sum as query.

    With W = a W* the logits of selected positions are higher by a than the others.
    """
    L, g_in, _, _, dalpha = slopes_by_logit(a, 0, -math.inf, alpha, T, d, q)
    return L, q * g_in, dalpha


def descend(slopes, lr, steps, norms2, *sizes, start=None):
    """Gradient descent on a few numbers: L and the k numbers, at each step (1 + k, steps + 1).

    slopes(*numbers, *sizes) gives L and its k derivatives.  Each number multiplies a direction,
    such as W* or V*.  The directions are orthogonal, and norms2 are their k squared norms.
    start holds the first values of the numbers, by default 0.  For one-hot PE:
        L, a, alpha = descend(onehot_slopes, lr, steps, (T - 1, d), T, d, q)
    """
    numbers, path = [0.0] * len(norms2) if start is None else start, []
    for _ in range(steps + 1):
        L, *grads = slopes(*numbers, *sizes)
        path.append((L, *numbers))
        numbers = [x - lr / norm2 * dx for x, norm2, dx in zip(numbers, norms2, grads)]
    return np.array(path).T


def count_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """The steps after which L <= share d/(2q), by the recursion; arguments as in predict_steps."""
    norm2, a, alpha = T - 1 if W_norm2 is None else W_norm2, 0.0, 0.0
    for t in itertools.count():
        L, da, dalpha = onehot_slopes(a, alpha, T, d, q)
        if L <= share * d / (2 * q):
            return t
        a, alpha = a - lr / norm2 * da, alpha - lr / d * dalpha


def predict_steps(share, T, d, q, lr=1.0, W_norm2=None):
    """About how many steps take L from d/(2q) to share d/(2q), in closed form.

    W_norm2 is T - 1 (one-hot, the default; fixed) or d_e (stochastic).  Let alpha always be best
    value for a, alpha = p_in / (q p_in^2 + (T - q) p_out^2), and put u = e^(2a).  Then
        L = d/(2q) (T - q) / (q u + T - q),   dL/da = -d (T - q) u / (q u + T - q)^2,
    where dL/dalpha = 0, so that this is also the slope at a fixed alpha.  With steps so small that
    they are a flow, du/dt = -2 u lr/||W*||^2 dL/da.  The integral is
        t = ||W*||^2 / (2 lr d (T - q))
            * [ q^2 (u - 1) + 2 q (T - q) ln u + (T - q)^2 (1 - 1/u) ].
    The last term is the plateau, about T^2 / (2 lr d) steps for one-hot PE: attention that is
    spread evenly gives W a small gradient.  The first term is the tail, where 1/L grows by
    4 lr / ||W*||^2 a step, whatever d and q are.
    Needs 1 <= q < T and 0 < share < 1 - q/T.  Good for d well below ||W*||^2: alpha takes some T/lr
    steps to reach its best value, and a about T ||W*||^2/(2 lr d) steps to move.  See plateau for
    what alpha adds, and for training on samples.  T may be an array.
    """
    norm2 = T - 1 if W_norm2 is None else W_norm2
    u = (T - q) * (1 / share - 1) / q
    terms = q * q * (u - 1) + 2 * q * (T - q) * np.log(u) + (T - q) ** 2 * (1 - 1 / u)
    return norm2 / (2 * lr * d * (T - q)) * terms


# Other lengths and subset sizes; here G = e^a, the attention of a selected token over another one's


def loss_by_group(alpha, d, *groups):
    """d/2 sum_j (alpha P_j - target_j)^2 over groups of positions: (how many, logit, target)."""
    total = sum(number * np.exp(logit) for number, logit, _ in groups)
    return d / 2 * sum(number * (alpha * np.exp(logit) / total - target) ** 2
                       for number, logit, target in groups)


def test_loss(a, alpha, T_test, d, q_test):
    """The loss of the weights a W*, alpha V* at any length and subset size; keys Z.

    For stochastic orthonormal PE: logits are a for selected positions and 0 for others, whatever
    the length.  a and alpha may be arrays, such as a path of descend.
    """
    return loss_by_group(alpha, d, (q_test, a, 1 / q_test), (T_test - q_test, 0, 0))


def fixed_test_loss(a, alpha, T, T_test, d, q_test):
    """The loss of fixed PE at any length and subset size: one orthonormal E for all, or one-hot PE.

    From zero, W moves only in the span of e_0, ..., e_{T-1}, and an orthogonal map takes these to
    unit vectors.  So training at length T is that of one-hot PE, whatever d_e is: the PE-PE block
    of W is a (sum_j e_j e_j^T - (1/T) sum_i sum_j e_i e_j^T), with sums over positions below T.  It
    knows nothing of positions from T on.  If s of the selected positions are below T, the logits
    are a (1 - s/T) for these s, -a s/T for other positions below T, and 0 from T on, selected or
    not.  The loss is the mean over s: q_test of T_test positions are drawn, of which min(T, T_test)
    are below T (hypergeometric).
    """
    old, new, loss = min(T, T_test), max(T_test - T, 0), 0.0
    for s in range(max(q_test - new, 0), min(q_test, old) + 1):
        chance = math.comb(old, s) * math.comb(new, q_test - s) / math.comb(T_test, q_test)
        loss = loss + chance * loss_by_group(
            alpha, d, (s, a * (1 - s / T), 1 / q_test), (old - s, -a * s / T, 0),
            (q_test - s, 0, 1 / q_test), (new - q_test + s, 0, 0))
    return loss


def length_loss(L, T, T_test, d, q):
    """The loss at length T_test of weights a W*, alpha V* that have the loss L at length T.

    For stochastic orthonormal PE and keys Z, if alpha is the best one for a.  Then
    L = d/(2q) (T - q) / (q G^2 + T - q) as in predict_steps, which gives G, and alpha is
    p_in / (q p_in^2 + (T - q) p_out^2), so R = q alpha = (q + (T - q)/G) / (1 + (T - q)/(q G^2)).
    At T_test the attention is p_in = 1/D on selected tokens and p_out = 1/(G D) on the others, with
    D = q + (T_test - q)/G.  Hence
        L(T_test) = d/2 (q (alpha/D - 1/q)^2 + (T_test - q) (alpha/(G D))^2)
                  = d/(2q) [ (D - R)^2 + (D - q) R^2/(q G) ] / D^2.
    The first term is there because alpha was made for T, the second is the attention on unselected
    tokens.  For large G this is d/(2 q^2 G^2) [T_test - q + (T_test - T)^2/q].  So at each length
    the loss falls like 1/t, and is (T_test - q + (T_test - T)^2/q) / (T - q) times the loss at T.
    In the recursion alpha lags a little.
    """
    G = np.sqrt((T - q) / q * (d / (2 * q * L) - 1))
    R = (q + (T - q) / G) / (1 + (T - q) / (q * G * G))
    D = q + (T_test - q) / G
    return d / (2 * q) * ((D - R) ** 2 + (D - q) * R ** 2 / (q * G)) / D ** 2


# Fixed random signs, while a is small.  Pi = I - 11^T/T.


def fixed_norm2(T, d_e):
    """N, which takes the place of ||W*||^2 for fixed random signs: about T d_e/(T + d_e).

    Let attention be even, and V = alpha V*.  Then dL/dA_j = -(d alpha/(q T)) (1[j in y] - q/T), and
    the indicator of y has the covariance q (T - q)/(T (T - 1)) Pi.  So the PE-PE block of W has the
    gradient -(d alpha (T - q)/(T^2 (T - 1))) E^T Pi E, and grows as b E^T Pi E.  Let a be the mean
    of the selected logits less the mean of the others.  The logits are b E E^T Pi E E^T times the
    indicator of y.  In the mean over y, a = b tr((Pi E E^T Pi)^2)/(T - 1).  A step adds
    lr d alpha (T - q)/(N T^2) to a, as in onehot_slopes at a = 0, with
        N = (T - 1)^2 / tr((Pi E E^T Pi)^2)         (T - 1 for orthonormal E).
    The trace is the sum of (s_k^T Pi s_l)^2 / d_e^2 over all k and l, where s_k are the d_e columns
    of signs.  The mean of (s_k^T Pi s_l)^2 is T - 1 for k != l, else (T - 1)(T - 1 + 2/T).  We put
    the mean of the trace, (T - 1)(T + d_e - 2 + 2/T)/d_e, into N.

    Stochastic signs have d_e for N.  So fixed ones leave W's plateau about 1 + d_e/T times as
    soon.  V's own steps are the same for both, see plateau, so in all it is less.
    """
    return (T - 1) * d_e / (T + d_e - 2 + 2 / T)


def new_position_share(T, d_e):
    """e^T B e at new positions over trained ones: T/(T + d_e - 1), fixed random signs.

    B is the PE-PE block of W.  While a is small, it is nearly a multiple of E^T Pi E, see
    fixed_norm2: sum_j e_j e_j^T over the trained positions, less a common part.  A trained e meets
    itself in sum_j (e_j . e)^2, which has the mean 1 + (T - 1)/d_e.  A new e meets only overlaps,
    and the mean is T/d_e.  The common part makes both 1 - 1/T times as large.  This is the ratio of
    the two means, about T/(T + d_e).  For stochastic PE it is 1, for fixed orthonormal PE 0.  Later
    W also learns to lower the overlaps that it knows, and the ratio is another one.
    """
    return T / (T + d_e - 1)


def exact_block(E):
    """W's block B (d_e, d_e) on encodings with E B E^T = I, for fixed encodings E (T, d_e).

    With a B the logits are a at selected positions and 0 at others, without any error.  B exists
    if the rows of E are linearly independent, as those of random signs mostly are for d_e >= T.
    For d_e < T none exists, since the rank of E B E^T is at most d_e.
    """
    return np.linalg.pinv(E) @ np.linalg.pinv(E).T


def exact_block_norm2(E):
    """The least squared norm of a block B with which logits differ as with exact_block.

    With S = E E^T and 1 the vector of ones it is tr(S^-2) - (1^T S^-3 1)/(1^T S^-1 1): softmax
    ignores what all logits of a query have in common.  It is T - 1 for orthonormal PE, and for
    random signs and large T near (T - 1)(1 - T/d_e)^-3.  In the end, for q >= 3, 1/L grows by
    nearly 4 lr over this a step, as with ||W*||^2 above (measured): all eigenvalues of S count, the
    least ones most.  They also make the wait for this rate long, since a step moves E B E^T by
    S (dL/dM) S, see fixed_descend.  For q = 1, and for q = 2 with d_e near T, attention needs less
    than equal logits, and 1/L grows faster.
    """
    inverse, ones = np.linalg.inv(E @ E.T), np.ones(len(E))
    common = inverse @ ones
    return np.trace(inverse @ inverse) - common @ inverse @ common / (ones @ common)


def fixed_descend(E, q, lr, steps, d):
    """L before each step (steps,) of gradient descent on the population loss; fixed E (T, d_e).

    B changes logits only through M = E B E^T, in which column i holds what position i in y adds.  B
    moves by -lr E^T (dL/dM) E, so M moves by -lr S (dL/dM) S.  V stays a multiple alpha of V*, and
    token blocks stay 0, as X may be rotated.  All subsets count: for small T.
    """
    T, L = len(E), []
    S, M, alpha = E @ E.T, np.zeros((T, T)), 0.0
    Y = np.array([[i in y for i in range(T)] for y in itertools.combinations(range(T), q)], float)
    for _ in range(steps):
        A = Y @ M.T
        P = np.exp(A - A.max(axis=1, keepdims=True))
        P /= P.sum(axis=1, keepdims=True)
        r = alpha * P - Y / q                               # L = d/2 times the mean of its squares
        L.append(d / 2 * (r * r).sum() / len(Y))
        dA = d * alpha * P * (r - (P * r).sum(axis=1, keepdims=True)) / len(Y)
        M, alpha = M - lr * S @ (dA.T @ Y) @ S, alpha - lr * (r * P).sum() / len(Y)
    return np.array(L)


# Training on samples with keys Z.  All of this part is to leading order in lr/n.


def noise_delay(lr, T, n, draws=1):
    """The factor by which n fresh sequences a step make W's plateau longer: 1 + lr T/(2 n K).

    K draws of stochastic PE are averaged in a step; K = 1 for fixed and one-hot ones.  The query is
    the sum.  Leading order in lr (d + q)/n, for T well above d.  Where this is not small the factor
    is larger: at d = 5, q = 3, lr 4, orthonormal PE and lr T/(2n) = 1.56 it was 2.5 in training for
    lr (d + q)/n = 1/8 (T = 200, n = 256), and 3.4 for 1/2 (T = 50, n = 64).
    So W's plateau takes c (1/lr + T/(2 n K)) steps, where c does not depend on lr, n, K.  From
    lr = 2 n K/T on, no larger learning rate saves more than half of them.

    On the plateau P_j = 1/T, and r is nearly -STS: a vector whose d entries have the variance 1/q.
    Let B be the token-PE block of W, and b = B U.  It makes P_j about (1 + x_j . b)/T, and the mean
    of all x_j x_j^T is nearly I.  So f = alpha (xbar + b), with xbar the mean of all tokens.
    (Noise in the other blocks does not tilt the attention towards tokens.)  Let K be 1 at first.

    Take a coordinate w of B v, for a unit eigenvector v of the mean of U U^T.  The mean of its
    gradient is h w, h = alpha^2 mean (v . U)^2: without noise it would stay 0.  A sequence adds
    noise of the variance h/q to the gradient, so a batch h/(qn).  Under w <- w - lr (h w + noise)
    the variance of w tends to lr/(2h) times that of the noise, for small lr h.  It takes some
    1/(lr h) steps, which are few beside the plateau.  So each entry of B gets the variance
    lr/(2qn).

    ||U||^2 has the mean q, so ||b||^2 has the mean lr d/(2n).  ||xbar||^2 and STS . xbar have the
    mean d/T.  So the best alpha is (d/T) / (d/T + lr d/(2n)), which is 1 over the factor.  Near
    a = 0, dL/da = -d alpha (T - q)/T^2: a takes longer by the factor.

    With K draws f has the mean of K vectors b = B U.  The mean of K vectors U has 1/K of the
    squared length.  This makes h and the noise 1/K as large, so B keeps its variance.  But ||b||^2
    is 1/K as large.
    Why lr (d + q)/n has to be small: P_j is linear in b only while ||b||^2 = lr d/(2n) is small,
    and b adds up to lr/(2n) to the variance 1/q of the entries of r.
    """
    return 1 + lr * T / (2 * n * draws)


def plateau(T, d, q, lr, n, W_norm2=None, draws=1, query="sum"):
    """About how many steps take L from d/(2q) to half of it, on n fresh sequences a step.

        t = T N/(2 lr d) noise_delay (1 + 2 (q/T) ln(T/q)) + T/(2 lr) ln(T/q)

    N = W_norm2 is T - 1 (one-hot, the default; fixed orthonormal), d_e (stochastic) or fixed_norm2.
    n = inf is the population loss.  For gradient descent with keys Z from W = V = 0, where
    plateau_holds, and with random signs for d_e >= 20 q, as their overlaps are left out.  There the
    recursion and training are within about 20 % of it.  On one full batch seeds differ more.

    The first term is predict_steps for share 1/2 and small q/T, made longer by noise.  The second
    is V's time.  Let alpha* be the best alpha for a, and h the second derivative of L by alpha.  As
    alpha has to keep up with alpha*, it lags behind by alpha* - alpha = d alpha*' / (lr h) da/dt.
    The mixed derivative of L is -h alpha*', so the lag adds (d/lr) alpha*'^2 da/dt to dL/da: a
    moves as along alpha*, but with N + d alpha*'^2 for N.  Put rho = q/(T - q), s = sqrt(rho) e^a:
        alpha* = (s^2 + s/sqrt(rho)) / (1 + s^2),   dL/da = -(d/q) s^2/(1 + s^2)^2 at alpha*,
    and L = d/(4q) at s = 1.  For small rho this costs T/lr times the integral of
    (1 - s^2)^2 / (s (1 + s^2)^2) from sqrt(rho) to 1, which is about ln(T/q)/2 - 1.  At the start
    alpha grows to 1 like 1 - e^(-lr t/T), which holds a back by T/lr steps: the 1 cancels.

    With the mean as query U is 1/q of the sum.  So a/q acts as a does with the sum, and W learns as
    with lr/q^2.
    """
    N, log = T - 1 if W_norm2 is None else W_norm2, np.log(T / q)
    lr_W = lr * query_scale(q, query) ** 2
    wait = T * N / (2 * lr_W * d) * noise_delay(lr_W, T, n, draws) * (1 + 2 * q / T * log)
    return wait + T / (2 * lr) * log


def plateau_holds(T, d, q, lr, n, W_norm2=None):
    """Whether these settings are in the domain of plateau.

    q <= T/10; noise is small, lr (d + q)/n <= 1/8; and V is far ahead of W, N >= 4 d up to T = 100
    and N >= 10 d above, as V's time is worked out for small d/N.
    """
    N = T - 1 if W_norm2 is None else W_norm2
    return 10 * q <= T and 8 * lr * (d + q) <= n and N >= (4 if T <= 100 else 10) * d


def curvature(T, d, q):
    """The largest curvature of L at the solution; gradient descent needs lr < 2 / curvature.

    For one-hot PE and fixed orthonormal PE, large a, without noise.  There f is the target, and the
    curvature along a direction is the mean of ||df||^2, where df is the derivative of f along it.
    Two parts of the weights decide:
        V_x     the mean of selected tokens has the covariance I/q: curvature 1/q.
        V_e and W's token-PE block, along u = sum of all e_j / sqrt(T).  The mean of selected PE has
                the component 1/sqrt(T), and U has q/sqrt(T).  A vector b = B U, where B is the
                token-PE block, adds X^T M X b to f, with X the selected tokens (q, d) and
                M = (I - 11^T/q)/q.  X^T M X has the mean tr(M) I = (q - 1)/q I, and its square
                has the mean (tr(M)^2 + (d + 1) tr(M^2)) I = (q - 1)(q + d)/q^2 I.  So the two have
                the joint curvature
                    [[1, q - 1], [q - 1, s]] / T,   s = (q - 1)(q + d),
                whose larger eigenvalue is between s/T and (s + 1)/T if s >= 1.
    With stochastic PE each step has its own u; the curvature of the mean over all draws is less.
    Then the bound is safer than it has to be.
    """
    s = (q - 1) * (q + d)
    return max(1 / q, (1 + s + math.sqrt((s - 1) ** 2 + 4 * (q - 1) ** 2)) / (2 * T))


# The full model: keys [Z, z_query]


def full_model_slopes(a, alpha, T, d, q, query="sum"):
    """L, dL/da, dL/dalpha of the full model with stochastic orthonormal PE.

    With W = a W* the logits are a c for selected positions, 0 for others, and a |U|^2 = a c^2 q for
    the query itself.  With q = 1 "sum" and "mean" are the same.
    """
    c = query_scale(q, query)
    L, g_in, _, g_query, dalpha = slopes_by_logit(a * c, 0, a * c * c * q, alpha, T, d, q)
    return L, c * q * g_in + c * c * q * g_query, dalpha


def onehot_full_model_slopes(a, b, alpha, T, d, q, query="sum"):
    """L, dL/da, dL/db, dL/dalpha of the full model with one-hot PE.

    One-hot PE have a common direction, the vector of ones.  So the PE-PE block of W is
    a I + w 11^T, see the top.  With w = (b - a)/T it is a (I - 11^T/T) + b 11^T/T: these two
    directions are orthogonal, with squared norms T - 1 and 1.  The logits are c (a + q w) for
    selected positions, c q w for others, and c^2 (q a + q^2 w) for the query.  As softmax has
    q g_in + (T - q) g_out + g_query = 0 for the slopes by the logits, the slopes by a, at a given
    w, and by w are c q g_in + c^2 q g_query and c q (c q - 1) g_query.
    With the mean c q = 1: b stays 0, and W = a W* as with keys Z.
    """
    c, w = query_scale(q, query), (b - a) / T
    L, g_in, _, g_query, dalpha = slopes_by_logit(c * (a + q * w), c * q * w,
                                                  c * c * q * (a + q * w), alpha, T, d, q)
    dw = c * q * (c * q - 1) * g_query
    return L, c * q * g_in + c * c * q * g_query - dw / T, dw / T, dalpha


def full_model_loss(t, T, d, q, query, lr=1.0, d_e=None, onehot=False):
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

    "sum", q >= 2, one-hot PE, with a and w of onehot_full_model_slopes: a negative w takes down the
    logit of the query.  Here L = d (T - q) / (2 q^2) e^(-2a), and alpha = (q + e^((q-1)m)) / q has
    its best value for m = a + q w, the logit of selected positions.  alpha depends on m so steeply
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


def demo():
    """Print a tour: what gradient descent does on the population loss, and what follows from it."""
    T, d, q = 200, 5, 3
    print(f"Gradient descent on the population loss, {d = }, {q = }, lr 1.  One-hot, {T = }:\n\n"
          "     step        L       a   alpha   growth of 1/L a step, over 4 lr / (T - 1)")
    L, a, alpha = descend(onehot_slopes, 1.0, 100_000, (T - 1, d), T, d, q)
    for t in 1000, 3000, 10_000, 30_000, 100_000:
        growth = (1 / L[t] - 1 / L[t - 100]) / 100 / (4 / (T - 1))
        print(f"  {t:7d}  {L[t]:.5f}  {a[t]:6.3f}  {alpha[t]:6.3f}   {growth:.3f}")

    print("\nThe plateau is W's: steps until L = d/(4q) from three starts.\n")
    for name, start in (("W = V = 0", (0, 0)), ("V = V*", (0, 1)), ("W = W*", (1, 0))):
        path = descend(onehot_slopes, 1.0, 6000, (T - 1, d), T, d, q, start=start)
        print(f"  {name:9}  {(path[0] <= d / (4 * q)).argmax()}")

    lr, n = 4.0, 256
    print(f"\nSteps until L = d/(4q) with lr {lr:g}: by the recursion, in closed form, and so with"
          f"\nfresh batches of {n}.  Their noise makes W's plateau "
          f"{noise_delay(lr, T, n):.2f} times as long.\n")
    for name, norm2 in (("one-hot", T - 1),
                        ("fixed random signs, d_e = 170, by fixed_norm2", fixed_norm2(T, 170)),
                        ("stochastic, d_e = 170, without overlaps of PE", 170)):
        print(f"  {name:>45}  {count_steps(0.5, T, d, q, lr, norm2):4}",
              *(f"  {plateau(T, d, q, lr, size, norm2):4.0f}" for size in (math.inf, n)))

    lr, eps = 1 / (20 * d * d), d * 20 / (100 * (20 - q) * q)
    print(f"\nUnder the conditions of Theorem 1 at T = 20, lr 1/(20 d^2) = {lr:g}:\n"
          f"  {count_steps(0.01, 20, d, q, lr)} steps until L = 0.01 d/(2q) = "
          f"{0.01 * d / (2 * q):.4f} < {eps:.4f} = d T/(100 (T - q) q), the largest eps")

    print(f"\nOrthonormal PE, d_e = {T - 1}, trained at T = {T} as above: L at other lengths, over"
          "\nlength_loss, which reads it off the training loss.\n"
          "\n     step    L(400)      over    L(2000)      over")
    for t in 10_000, 30_000, 100_000:
        near, far = (test_loss(a[t], alpha[t], length, d, q) for length in (400, 2000))
        print(f"  {t:7d}   {near:.5f}    {near / length_loss(L[t], T, 400, d, q):.4f}"
              f"     {far:.5f}    {far / length_loss(L[t], T, 2000, d, q):.4f}")

    print("\nThe least loss at other lengths in 16000 steps, lr 5; orthonormal PE.\n"
          "\n  T_test   stochastic, d_e = 400   fixed")
    stochastic = descend(onehot_slopes, 5.0, 16_000, (400, d), T, d, q)[1:]
    fixed = descend(onehot_slopes, 5.0, 16_000, (T - 1, d), T, d, q)[1:]
    for length in 250, 300, 350, 400:
        print(f"  {length:6d}                {test_loss(*stochastic, length, d, q).min():.3f}   "
              f"{fixed_test_loss(*fixed, T, length, d, q).min():.3f}")

    T, t, rng = 10, 6000, np.random.default_rng(0)
    print(f"\nFixed random signs, one draw, T = {T}, lr 2: what is left of d/(2q) after {t}"
          "\nsteps, and the growth of 1/L over 4 lr/exact_block_norm2(E).\n"
          "\n  d_e    left    growth    exact_block_norm2(E)/(T - 1)")
    for d_e in 8, 15, 20, 40:
        E = rng.choice([-1, 1], (T, d_e)) / np.sqrt(d_e)
        L = fixed_descend(E, q, 2.0, t, d)
        norm2 = exact_block_norm2(E) if d_e > T else np.nan
        growth = (1 / L[-1] - 1 / L[-1001]) / 1000 * norm2 / (4 * 2.0)
        print(f"  {d_e:3}  {L[-1] * 2 * q / d:6.2%}    {growth:6.3f}    {norm2 / (T - 1):6.2f}")

    T, lr, steps = 50, 3.0, np.array([5000, 15_000, 50_000])
    print(f"\nThe full model, keys [Z, z_query], T = {T}, lr {lr:g}: L over full_model_loss."
          "\nThis falls like t^(-1/q) for orthonormal PE (d_e = 100) and the sum, else like 1/t.\n"
          "\n                 orthonormal            one-hot"
          "\n     step       sum     mean       sum     mean")
    columns = []
    for onehot, slopes, norms2 in ((False, full_model_slopes, (100, d)),
                                   (True, onehot_full_model_slopes, (T - 1, 1, d))):
        for query in "sum", "mean":
            L = descend(slopes, lr, steps[-1], norms2, T, d, q, query)[0]
            columns.append(L[steps] / full_model_loss(steps, T, d, q, query, lr, 100, onehot))
    for t, ratios in zip(steps, np.transpose(columns)):
        print(f"  {t:7d}   " + "  ".join(f"{ratio:7.3f}" for ratio in ratios))


if __name__ == "__main__":
    import argparse
    argparse.ArgumentParser(description="Print a tour of this file.").parse_args()
    demo()
