"""Orthonormal encodings at other lengths and subset sizes: why fixed ones fail at new positions.

    python beyond/lengths.py                     prints what is derived
    python beyond/lengths.py picture.png         also trains (two minutes), and plots both

Symbols are those of two_numbers.py.  T and q are those of training, T_test and q_test of a test.
"""

import math

import numpy as np

from two_numbers import descend, main, row


def group_loss(alpha, d, *groups):
    """d/2 sum_j (alpha P_j - target_j)^2 over groups of positions: (how many, logit, target)."""
    total = sum(number * np.exp(logit) for number, logit, _ in groups)
    return d / 2 * sum(number * (alpha * np.exp(logit) / total - target) ** 2
                       for number, logit, target in groups)


def stochastic_loss(a, alpha, T_test, d, q_test):
    """The loss of stochastic encodings: logits a where selected, else 0; a, alpha may be arrays."""
    return group_loss(alpha, d, (q_test, a, 1 / q_test), (T_test - q_test, 0, 0))


def fixed_loss(a, alpha, T, T_test, d, q_test):
    """The loss of fixed encodings; a and alpha may be arrays.

    From zero, W moves only in the span of e_0, ..., e_{T-1}, and an orthogonal map takes these to
    unit vectors.  So training at length T is that of one-hot encodings, whatever d_e is: the PE-PE
    block of W is a (sum_j e_j e_j^T - (1/T) sum_i sum_j e_i e_j^T), with sums over positions below
    T.  It knows nothing of positions from T on.  If k of the selected positions are below T, the
    logits are a (1 - k/T) for these k, -a k/T for other positions below T, and 0 from T on,
    selected or not.  The loss is the mean over k (math.comb is 0 where there are too few).
    """
    old, new, loss = min(T, T_test), max(T_test - T, 0), 0.0
    for k in range(min(q_test, old) + 1):
        chance = math.comb(old, k) * math.comb(new, q_test - k) / math.comb(T_test, q_test)
        loss = loss + chance * group_loss(
            alpha, d, (k, a * (1 - k / T), 1 / q_test), (old - k, -a * k / T, 0),
            (q_test - k, 0, 1 / q_test), (new - q_test + k, 0, 0))
    return loss


def output_scale(a, alpha, T_test, q_test):
    """alpha s, the output over the target; s is the attention on the selected positions together.

    For stochastic encodings at all lengths, and for fixed ones at length T.  The loss is
        d/(2 q_test) [(1 - alpha s)^2 + alpha^2 (1 - s)^2 q_test/(T_test - q_test)].
    While s is small at q, the best alpha is large.  A larger q_test has a larger s: there alpha s
    passes 1, where the loss dips.  It overshoots, and comes down to 1 again as a grows.
    """
    selected = q_test * np.exp(a)
    return alpha * selected / (selected + T_test - q_test)


def demo():
    """Print the least loss at longer lengths, for d and 2d, and the dip at a larger size."""
    T, d, q, lr, steps = 200, 5, 3, 5.0, 16_000
    print(f"The loss of fixed encodings in {steps} steps, {T = }, {d = }, {q = }, {lr = :g}.\n\n"
          "  T_test   least   at step   at the end   least / 2 with d = 10")
    _, *numbers = descend(lr, steps, T - 1, T, d, q)
    _, *twice = descend(lr, steps, T - 1, T, 2 * d, q)
    for T_test in 250, 300, 350, 400:
        L, half = fixed_loss(*numbers, T, T_test, d, q), fixed_loss(*twice, T, T_test, d, q)
        print(f"  {T_test:6}   {L.min():5.3f}   {L.argmin():7}   {L[-1]:10.3f}   {half.min():9.3f}")
    L, scale = stochastic_loss(*numbers, T, d, 8), output_scale(*numbers, T, 8)
    rising = np.flatnonzero(np.diff(L) > 0)
    print("\nAt T and q_test = 8 it dips where alpha s, output over target, is near 1.\n\n"
          "    step   loss over d/(2 q_test)   alpha s")
    for t in rising[0], rising[-1] + 1, steps:
        print(f"  {t:6}   {L[t] * 2 * 8 / d:22.3f}   {scale[t]:7.2f}")


# Training

ARMS = {f"lengths {pe}": {
    "T": 50, "d": 5, "q": 3, "d_e": 100, "law": "orthonormal", "pe": pe, "lr": 1.0, "steps": 4000,
    "fresh": True, "evaluations": 40, "eval_sequences": 1000, "T_test": [62, 75, 87, 100],
    "q_test": [2, 4, 5, 8]} for pe in ("stochastic", "fixed")}
ARMS["lengths stochastic"]["eval_draws"] = 1


def figure():
    """Train, and plot the errors on eight tests beside the exact ones; print their ratios."""
    import plots
    import matplotlib.pyplot as plt
    runs = plots.trained(ARMS)
    canvas, axes = plt.subplots(2, 4, figsize=(10, 7.5), sharex=True, sharey="row")
    for pe, color, marker in ("stochastic", plots.STOCHASTIC, "o"), ("fixed", plots.FIXED, "s"):
        found, ratios = runs[f"lengths {pe}"], []
        c, tests = found[0]["config"], found[0]["tests"].tolist()
        W_norm2 = c.d_e if pe == "stochastic" else c.T - 1
        _, *numbers = descend(c.lr, c.steps, W_norm2, c.T, c.d, c.q)
        for axis, (T, q) in zip(axes.flat, tests[1:]):
            exact = (stochastic_loss(*numbers, T, c.d, q) if pe == "stochastic" else
                     fixed_loss(*numbers, c.T, T, c.d, q)) * 2 * q / c.d
            measured = plots.shares(found, T, q)
            ratios.append(measured[:, -1] / exact[-1])
            axis.plot(found[0]["eval_step"], measured.T, marker, color=color, markersize=5,
                      fillstyle="none", label=[pe] + ["_"] * (len(found) - 1))
            axis.plot(exact, color=color)
            axis.set(title=f"$T_{{test}}$ = {T}" if T > c.T else f"$q_{{test}}$ = {q}")
            if pe == "fixed" and T > c.T:
                axis.plot(exact.argmin(), exact.min(), "v", color=plots.THEORY, markersize=9)
        row(f"{pe}, 4 lengths, 4 sizes: last error / exact", ratios)
    axes[0, 0].set(ylim=(0, None), ylabel="error over d/(2q)")
    axes[1, 0].set(yscale="log", ylabel="error over d/(2q)")
    plt.setp(axes[1], xlabel="step t", xticks=[0, c.steps // 2, c.steps])
    axes[0, 0].legend(loc="upper right", handlelength=1)
    canvas.suptitle("Fixed orthonormal encodings fail on longer sequences, not on subset sizes")
    plots.caption(canvas, f"Points: trained, {len(found)} seeds. Lines: exact. Triangles: "
                  "least errors of fixed encodings.", c)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
