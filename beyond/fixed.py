"""Fixed encodings: training follows T x T numbers, whatever the encodings are.

    python beyond/fixed.py                     prints what is derived
    python beyond/fixed.py picture.png         also trains (minutes), and plots both

The runs of Figures 2 and 4 are measured, too, and trained if plots.py has not (half an hour).  The
paper leaves open how training goes with fixed encodings.  FIXED.md has theorems and their ideas,
FIXED_PROOFS.md the proofs.  When the loss goes to 0, and how fast, is in converge.py.

Symbols are those of two_numbers.py, and U is the sum of the selected encodings.  Row j of E is e_j,
any vector.  The T trained rows come first, then those of new positions.  B is W's block on
encodings, so position j has the logit A_j = sum_{i in y} M_ji with M_ji = e_j . B e_i.

From W = V = 0, gradient descent on L, the mean over all X and y, keeps V = alpha V*, and W = 0 but
for B = E^T C E, where E has its T trained rows, and C is (T, T) (Proposition 1).  The reason, block
by block:

    all but B   As in two_numbers.py.  Its maps change the signs of tokens, or rotate them.  They do
                not touch E, so L stays the same for each E, and not only in the mean over E.
    B           Its gradient is the mean of sum_j dL/dA_j e_j U^T.  This is E^T D E, where D_ji is
                the mean of 1[i in y] dL/dA_j.  And D is dL/dM.

So a step of gradient descent is, with the products S = E E^T (T, T), of any rank,

    C     <- C     - lr D(M),   M = E B E^T = S C S
    alpha <- alpha - lr/d dL/dalpha

L knows E only through M.  For one-hot encodings S = I, and M is B itself.  **So fixed encodings
train as one-hot ones do, seen through S**: a step moves M by -lr S D S, not by -lr D.  At new
positions E has more rows, and C stays: it gives the error at every length and subset size.
"""

from common import end_error, main, row     # first: NumPy gets one thread

import itertools
import math

import numpy as np


def all_subsets(T, q):
    """All q-subsets of T positions, as rows of zeros and ones."""
    return np.array([np.isin(range(T), y) for y in itertools.combinations(range(T), q)], float)


def subsets(rng, n, T, q):
    """About n uniform q-subsets, as rows of zeros and ones; T // q come out of one random order."""
    order = rng.random((math.ceil(n / (T // q)), 1, T)).argsort(axis=2)
    return (order // q == np.arange(T // q)[:, None]).reshape(-1, T).astype(np.float32)


def attention(M, Y):
    """P (n, T), the softmax of the logits A_j = sum_{i in y} M_ji, for subsets Y (n, T)."""
    A = Y @ M.T
    P = np.exp(A - A.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def slopes(P, alpha, d, Y):
    """L, dL/dM (T, T) and dL/dalpha, of the mean over subsets Y (n, T), at the attention P (n, T).

    Tokens integrate out: L = d/2 sum_j r_j^2 with r_j = alpha P_j - 1[j in y]/q.
    """
    r = alpha * P - Y / Y[0].sum()
    dP = d * alpha * r
    dA = P * (dP - (P * dP).sum(axis=1, keepdims=True))
    return d / 2 * (r * r).sum() / len(Y), dA.T @ Y / len(Y), d * (r * P).sum() / len(Y)


def step(S, C, alpha, d, lr, Y, pace=1):
    """C and alpha after a step of gradient descent on the mean over subsets Y (n, T).

    A step can stand for `pace` steps, all at this C.  The second derivative of L by alpha is then
    constant, d h.  So each of them multiplies the distance of alpha from the best one by 1 - lr h.
    """
    P = attention(S @ C @ S, Y)
    _, dM, dalpha = slopes(P, alpha, d, Y)
    h = (P * P).sum() / len(Y)
    covered = 1 - (1 - lr * h) ** pace                              # of this distance, dalpha/(d h)
    return C - lr * pace * dM, alpha - covered * dalpha / (d * h)


def descend(E, T, d, q, lr, steps, rng=None, n=256, pace=1):
    """Gradient descent from zero: yields the step, C and alpha.

    It takes all subsets, or, with an rng, about n new ones a step, in single precision.  Sampling
    adds noise to C.  At pace 16 and n = 256 the demo's errors at T and q_test = 8 are up to a tenth
    too high, those at 2 T less than a hundredth (beside pace 8 and n = 1024).
    """
    kind = np.float32 if rng else float
    S, C, alpha = (E[:T] @ E[:T].T).astype(kind), np.zeros((T, T), kind), 0.0
    Y = None if rng else all_subsets(T, q)
    for t in range(pace, steps + 1, pace):
        C, alpha = step(S, C, alpha, d, lr, subsets(rng, n, T, q) if rng else Y, pace)
        yield t, C, alpha


def error(E, T, C, alpha, Y):
    """The error over d/(2 q_test) on subsets Y (n, T_test), with the C (T, T) of training.

    E (T_test or more, d_e) begins with the T trained encodings.
    """
    q_test, products = Y[0].sum(), (E[:Y.shape[1]] @ E[:T].T).astype(Y.dtype)
    r = alpha * attention(products @ C @ products.T, Y) - Y / q_test
    return q_test * (r * r).sum() / len(Y)


def new_over_trained(E, T, B):
    """The mean of e . B e, a position's own logit, at new positions over that at trained ones."""
    own = (E @ B * E).sum(axis=1)
    return own[T:].mean() / own[:T].mean()


def new_position_share(T, d_e):
    """new_over_trained at first, for random signs, as a ratio of means over E: T/(T + d_e - 1).

    At M = 0 attention is even, and dL/dA_j = -(d alpha/T) (1[j in y]/q - 1/T).  So C moves by a
    multiple of I - 11^T/T, and B by that of sum_j e_j e_j^T - u u^T/T, with u = sum_j e_j, over
    trained positions.  A trained e meets itself in sum_j (e_j . e)^2: its mean is 1 + (T - 1)/d_e.
    A new e meets only overlaps: T/d_e.  (u . e)^2 has the same two means, so e . B e has 1 - 1/T
    times these.  For stochastic encodings B moves by its mean over E: e . B e is (1 - 1/T) T/d_e at
    each position.  So at first a trained position's logit grows (T + d_e - 1)/T times as fast with
    fixed encodings as with stochastic ones, at the same alpha.
    """
    return T / (T + d_e - 1)


def late_block(S):
    """C* (T, T) and M* = S C* S = I - 1 w^T, w = S^-1 1/(1^T S^-1 1), for an invertible S.

    Every selected logit is above all others by 1.  FIXED.md says where B tends to E^T C* E.
    """
    G = np.linalg.inv(S)
    M = np.eye(len(S)) - G.sum(axis=0) / G.sum()
    return G @ M @ G, M


def late_norm(S):
    """N, the squared norm of E^T C* E.  It takes the place of ||W*||^2.

    Late 1/L grows by 4 lr/N a step, if L tends to 0, and no multiplier is negative (Theorem 2).
    Random signs have an N of about T/(1 - T/d_e)^3, for large T and d_e > 2 T.
    """
    C, M = late_block(S)
    return (C * M).sum()


def multipliers(S, q):
    """mu (T), those of the late block, for q >= 3; their sum is N.

    Of all blocks that put selected logits at one height, and all others at least 1 below them, the
    late block has the least norm if and only if no multiplier is negative (Theorem 2).
    """
    C, _ = late_block(S)
    return np.diag(C) - C.sum(axis=1) / q


def kept_error(S, q, Y):
    """What another size keeps of d/(2 q_test) as L tends to 0, on subsets Y (n, T); for q >= 3.

    To leading order, for positive multipliers mu_k, if B tends to the direction of the late block.
    Near the end M is diag(m) + u 1^T with m_j + q u_j the same for all j: selected logits are
    equal, and k lies m_k below them.  With x_k = e^(-m_k) and the best alpha, L is proportional to
        sum_k x_k^2 + sum_k (x_k - mean x)^2 / (T - 1).
    C moves by -lr dL/dM, and has to grow along C*.  So x_k (T x_k - mean x) is proportional to
    mu_k.  At q_test the logits of a subset differ by (q_test - q)(u_j - u_k), where u_j = ln(x_j)/q
    and a constant.  So P_j is proportional to x_j^((q_test - q)/q) on y, and 0 elsewhere.
    """
    T, q_test, mu, x = len(S), Y[0].sum(), multipliers(S, q), np.ones(len(S))
    for _ in range(50):
        x = (x.mean() + np.sqrt(x.mean() ** 2 + 4 * T * mu)) / (2 * T)
    P = Y * x ** ((q_test - q) / q)
    return q_test * ((P / P.sum(axis=1, keepdims=True) - Y / q_test) ** 2).sum() / len(Y)


def demo():
    """Print the errors of Figure 2's fixed runs, without training, and the end of a small task."""
    rng, T, d, q, lr, steps = np.random.default_rng(0), 200, 5, 3, 5.0, 24_000
    tests = [subsets(rng, 2000, *test) for test in ((T, q), (250, q), (400, q), (T, 8), (T, 2))]
    print(f"Random signs, {T = }, {q = }, {lr = :g}, {steps} steps, one E: errors over d/(2q),\n"
          "and the logit of a new position over that of a trained one, at first and at the end.\n\n"
          "   d_e   T=200   T=250   T=400   q_test=8   q_test=2    first    end")
    for d_e in 250, 500, 1000:
        E = rng.choice([-1, 1], (2 * T, d_e)) / math.sqrt(d_e)
        for _, C, alpha in descend(E, T, d, q, lr, steps, rng, pace=16):
            pass                                                    # to the last step
        errors = [error(E, T, C, alpha, Y) for Y in tests]
        ratio = new_over_trained(E, T, E[:T].T @ C @ E[:T])
        line = "  {:4}   {:.3f}   {:.3f}   {:.3f}      {:.3f}      {:.3f}     {:.2f}   {:.2f}"
        print(line.format(d_e, *errors, new_position_share(T, d_e), ratio), flush=True)

    T, d, d_e, lr, found = 8, 5, 24, 2.0, {}
    E = rng.choice([-1, 1], (T, d_e)) / math.sqrt(d_e)
    S, sizes = E @ E.T, [all_subsets(T, size) for size in (q, 2, 5)]
    kept, N = [0.0] + [kept_error(S, q, Y) for Y in sizes[1:]], late_norm(S)
    for t, C, alpha in descend(E, T, d, q, lr, 10_000):
        if t in (99, 100, 999, 1000, 9999, 10_000):
            found[t] = [error(E, T, C, alpha, Y) for Y in sizes]
    print(f"\nThe end: {T = }, {q = }, {d_e = }, {lr = :g}, all subsets, {N = :.2f}.\n\n"
          "    step    error   q_test=2   q_test=5   growth of 1/L a step, over 4 lr/N")
    for t in 100, 1000, 10_000:
        growth = 2 * q / d * (1 / found[t][0] - 1 / found[t - 1][0]) / (4 * lr / N)
        print(f"  {t:6}   {{:.4f}}     {{:.4f}}     {{:.4f}}   {growth:.3f}".format(*found[t]))
    print("     end   {:.4f}     {:.4f}     {:.4f}   1".format(*kept))


# Training

SIZES = {25: "#F0A060", 62: "#D55E00", 100: "#803000", 400: "#222222"}
ARMS = {f"fixed {d_e}": {"T": 50, "d_e": d_e, "pe": "fixed", "lr": 1.0, "steps": 4000,
                         "fresh": True, "batch": 1024, "evaluations": 20, "eval_sequences": 2000,
                         "T_test": [62, 100], "q_test": [8]} for d_e in SIZES}


def attention_ratio(run, T_test):
    """The mean attention of new selected positions over that of trained ones, at a length."""
    import sts
    import train
    c = run["config"]
    X, y, E = train.held_out(run, run["tests"].tolist().index([T_test, c.q]), draws=1)
    selected = np.take_along_axis(sts.attention(run["W"], X, y, E[0]), y, axis=1)
    return selected[y >= c.T].mean() / selected[y < c.T].mean()


def figure_2(runs):
    """Print the last errors of Figure 2's and 4's fixed runs over those of the recursion."""
    rng, c, ratios = np.random.default_rng(0), runs[0]["config"], []
    for run in runs:
        E = run["E"]
        for _, C, alpha in descend(E, c.T, c.d, c.q, c.lr, c.steps, rng, n=1024, pace=16):
            pass                                                    # to the last step
        ratios += [end_error(run, *test) / error(E, c.T, C, alpha, subsets(rng, 8000, *test))
                   for test in ((c.T, c.q), (c.T, 8), (c.T, 2), (250, c.q), (400, c.q))]
    row("gd fixed, five tests: error / the recursion's", ratios)
    row("gd fixed: logit of a new position over that of a trained one",
        [new_over_trained(run["E"], c.T, run["W"][c.d:, c.d:]) for run in runs])
    row("gd fixed, T = 400: attention on selected, new over trained",
        [attention_ratio(run, 400) for run in runs])


def figure():
    """Train, and plot the errors on four tests beside the recursion's; print their ratios."""
    import plots
    import matplotlib.pyplot as plt
    rng, ratios = np.random.default_rng(0), []
    runs = plots.trained(ARMS | {"gd fixed": plots.GD["gd fixed"]})
    figure_2(runs.pop("gd fixed"))
    canvas, axes = plt.subplots(1, 4, figsize=(11, 5.5), sharey=True)
    for run in sum(runs.values(), []):
        c, t, E = run["config"], run["eval_step"], run["E"]
        tests = [subsets(rng, 2000, *test) for test in run["tests"].tolist()]
        found = descend(E, c.T, c.d, c.q, c.lr, c.steps, rng)
        exact = [[1] * 4] + [[error(E, c.T, C, alpha, Y) for Y in tests]
                             for k, C, alpha in found if k in t]
        for axis, (T, q), line in zip(axes, run["tests"], np.transpose(exact)):
            y, color = plots.shares([run], T, q)[0], SIZES[c.d_e]
            axis.plot(t, line, color=color)
            axis.plot(t, y, "o", color=color, fillstyle="none", markersize=5)
            axis.set(title=f"$T_{{test}}$ = {T}" if q == c.q else f"$q_{{test}}$ = {q}",
                     yscale="log", xlabel="step t", xticks=[0, c.steps // 2, c.steps])
            ratios.append(y[-1] / line[-1])
    axes[0].set(title="the trained task", ylabel="error over d/(2q)")
    axes[0].legend(axes[0].lines[::2 * len(plots.SEEDS)], [f"$d_e$ = {d_e}" for d_e in SIZES])
    canvas.suptitle("Fixed random signs: T x T numbers give the error on every test")
    plots.caption(canvas, "Lines: the recursion, with the encodings of each run. Circles: trained, "
                  f"{len(plots.SEEDS)} seeds. T = {c.T}, q = {c.q}, lr = {c.lr:g}.")
    row("T = 50, four d_e, four tests: last error / the recursion's", ratios)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
