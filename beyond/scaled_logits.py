"""Scaled logits: stochastic encodings work on much longer sequences, without new training.

    python beyond/scaled_logits.py                   prints what is derived
    python beyond/scaled_logits.py picture.png       also plots the runs of Figure 4 (a minute)

Symbols are those of two_numbers.py; T_0 and q_0 are those of training, T and q of a test, and

    s            the attention on the q selected tokens together

With W = a W* and orthonormal encodings a selected token has the logit a, any other one 0, so
s = q e^a / (q e^a + T - q).  V = alpha V* copies tokens, so the output is alpha s times the target,
and the other tokens share the attention 1 - s equally.  The loss is

    L = d/(2q) [(1 - alpha s)^2 + alpha^2 (1 - s)^2 q / (T - q)]

The first part is a matter of scale: V was fitted to the s of training, and on longer sequences s
falls.  But s stays as it was in training if e^a grows like (T - q)/q, so if a becomes

    a' = a + ln[(T - q) q_0 / (q (T_0 - q_0))]

At a longer T the first part is then that of training, and the second one is smaller.
"""

from two_numbers import descend, main, multiples, row     # first: it gives NumPy one thread

import math

import numpy as np


def share(a, alpha, T, q):
    """The loss over d/(2q), and s, for orthonormal encodings.  Derived (above)."""
    s = q * math.exp(a) / (q * math.exp(a) + T - q)
    return (1 - alpha * s) ** 2 + alpha ** 2 * (1 - s) ** 2 * q / (T - q), s


def scaled(a, T_0, q_0, T, q):
    """The a' that has at T and q the attention s that a has at T_0 and q_0.  Derived (above)."""
    return a + math.log((T - q) * q_0 / (q * (T_0 - q_0)))


def length_factor(run, T, q):
    """The number a'/a by which W is multiplied at length T and q selected tokens.

    a is the logit that a trained position adds to itself: the mean of e_j . B e_j, with B the block
    of W on encodings.  For W = a W* and unit vectors it is a.  Exact for orthonormal encodings; for
    random signs to leading order in q a'^2/(2 d_e), the spread of unselected logits.
    """
    c, B = run["config"], run["W"][run["config"].d:, run["config"].d:]
    a = (run["E"][:c.T] @ B * run["E"][:c.T]).sum() / c.T if "E" in run else np.trace(B) / c.d_e
    return scaled(a, c.T, c.q, T, q) / a


def demo():
    """Print the factor, and the exact errors with it and without."""
    T, d, q, d_e = 50, 5, 3, 5000
    _, a, alpha = descend(5.0, 40_000, d_e, T, d, q)[:, -1]
    print(f"Orthonormal encodings, trained at {T = }, {d = }, {q = }, {d_e = }: {a = :.2f}, "
          f"{alpha = :.2f}.\nErrors are over d/(2q), s is the attention on the selected tokens.\n\n"
          "            as they are      logits scaled\n"
          "     T       error    s    factor   error    s")
    for longer in T, 2 * T, 5 * T, 20 * T, 100 * T:
        more = scaled(a, T, q, longer, q)
        print("  {:4d}     {:6.2%}  {:.2f}   {:.3f}   {:6.3%}  {:.2f}".format(
            longer, *share(a, alpha, longer, q), more / a, *share(more, alpha, longer, q)))


# Training


def end_outputs(run, T, q, n=128):
    """Outputs of a trained run: (2, n, d), as it is and with scaled logits; and targets (n, d).

    On n new sequences of any q, and any T for which there are encodings.  Outputs are means over
    the draws of a test.  One draw at a time, since it has T d_e numbers.
    """
    import sts
    import train
    c = run["config"]
    X, y = sts.sample_sts(train.stream(c, "tests", T, q), n, T, c.d, q, np.float32)
    weights = [run["W"] * np.float32(factor) for factor in (1, length_factor(run, T, q))]
    f, draws = 0, 1 if "E" in run else c.eval_draws
    for k in range(draws):
        E, = train.encodings(run, T, 1, train.stream(c, "tests", T, q, k))
        f = f + np.array([sts.forward(W, run["V"], X, y, E)[0] for W in weights]) / draws
    return f, sts.sts_target(X, y)


def end_errors(run, T, q, n=128):
    """The errors over d/(2q) of n new sequences (2, n): as they are, and with scaled logits."""
    f, target = end_outputs(run, T, q, n)
    return ((f - target) ** 2).sum(axis=2) * q / run["config"].d


def scale_and_rest(run, T, q):
    """The slope of the output over the target, and two parts of the error over d/(2q).

    Let f = slope * target + rest by least squares.  Then the error is (1 - slope)^2 times that of
    the zero predictor, plus the rest's.  The slope is alpha s.
    """
    (f, _), target = end_outputs(run, T, q)
    slope, zero = np.vdot(f, target) / np.vdot(target, target), len(f) * run["config"].d / q
    return (slope, (1 - slope) ** 2 * (target ** 2).sum() / zero,
            ((f - slope * target) ** 2).sum() / zero)


def predicted(run, T):
    """The error over d/(2q) with scaled logits at length T, from a and alpha; random signs."""
    from width import predict_loss
    c, (a, alpha) = run["config"], multiples(run)
    a = scaled(a, c.T, c.q, T, c.q)
    L, _ = predict_loss(np.random.default_rng(0), a, alpha, T, c.d, c.q, c.d_e, c.eval_draws, 0.01)
    return L * 2 * c.q / c.d


def figure():
    """Plot the errors of Figure 4's runs, as they are and scaled; print them and their parts."""
    import plots
    import matplotlib.pyplot as plt
    runs = plots.trained(plots.GD)
    stochastic, fixed = runs["gd stochastic"], runs["gd fixed"]
    c, tests = fixed[0]["config"], fixed[0]["tests"].tolist()
    own, sizes = [T for T, q in tests if q == c.q], sorted({q for _, q in tests})
    longer = c.T * np.array([1, 2, 5, 20, 80, 500])

    parts = np.array([[scale_and_rest(run, T, c.q) for T in (c.T, 2 * c.T)] for run in stochastic])
    slope, scale, rest = parts.transpose(2, 1, 0)                       # (2, seeds) each
    row("stochastic at 2 T: output over target", slope[1])
    row("stochastic at 2 T: part of the error that is this scale", (scale / (scale + rest))[1])
    row("stochastic at 2 T: the other part over the error at T", rest[1] / (scale + rest)[0])

    figure, axes = plt.subplots(1, 2, figsize=(10, 6.5), width_ratios=[1.7, 1], sharey=True)
    for pe, found, lengths, color in (("fixed", fixed, own, plots.FIXED),
                                      ("stochastic", stochastic, longer, plots.STOCHASTIC)):
        errors = np.array([[end_errors(run, T, c.q, 64) for T in lengths] for run in found])
        of_sizes = np.array([[end_errors(run, c.T, q) for q in sizes] for run in found])
        for k, (how, line, marker) in enumerate((("", "--", "s"), (", scaled", "-", "o"))):
            for axis, x, measured, name in ((axes[0], lengths, errors, "T"),
                                            (axes[1], sizes, of_sizes, "q")):
                shares = measured[:, :, k].mean(axis=2)             # (seeds, tests)
                plots.band(axis, x, shares, color, linestyle=line, marker=marker,
                           markersize=8, label=f"{pe}{how}")
                for value, column in zip(x, shares.T):
                    row(f"{pe}{how}: error over d/(2q) at {name} = {value}", column)
    repaired = errors[:, 1:, 1]                                     # (seeds, lengths, n)
    ratios = repaired.mean(axis=2) / [[predicted(run, T) for T in longer[1:]] for run in found]
    for T, column in zip(longer[1:], ratios.T):
        row(f"stochastic, scaled: error at T = {T} over the predicted one", column)

    for axis, text in zip(axes, ("", "zero predictor")):
        plots.dotted_line(axis, 1, text)
    axes[0].set(title="longer sequences, to 500 T", xlabel="$T_{test}$", xscale="log",
                yscale="log", ylabel="error over d/(2q)")
    axes[0].set_xticks(longer[[0, 2, 3, 5]], [f"{T:,}" for T in longer[[0, 2, 3, 5]]])
    axes[0].minorticks_off()
    axes[0].yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes[0].legend(loc=(0.4, 0.4))
    axes[1].set(title="other subset sizes", xlabel="$q_{test}$", xticks=sizes)
    figure.suptitle("With scaled logits stochastic encodings work at 500 times the trained "
                    "length;\nfixed ones get worse on longer sequences")
    plots.caption(figure, "Figure 4's runs. Stochastic encodings have 16 draws in a test; "
                  "fixed ones end at 2 T.", c)
    return figure


if __name__ == "__main__":
    main(__doc__, demo, figure)
