"""Longer sequences: why stochastic encodings work on them, and what scaled logits mend.

    python beyond/lengths.py                     prints what is derived
    python beyond/lengths.py picture.png         also plots the runs of Figure 4 (a minute)

Symbols are those of two_numbers.py; T and q are those of training, T_test and q_test of a test.

With W = a W* and orthonormal encodings a selected token has the logit a, and any other one 0, at
every length up to d_e.  So the selected tokens together have the attention
s = q_test e^a / (q_test e^a + T_test - q_test).  V = alpha V* copies tokens, so the output is
alpha s times the target, and alpha (1 - s) times the mean of the other tokens.  The loss is

    L = d/(2 q_test) [(1 - alpha s)^2 + alpha^2 (1 - s)^2 q_test/(T_test - q_test)]

Both parts go to 0 as s and alpha go to 1.  So if the loss of training goes to 0, as a grows, then
so does the loss at every length up to d_e.  README.md has the a' that keeps s.
"""

from common import end_error, main, row     # first: NumPy gets one thread

import numpy as np

import plots
import two_numbers
import width


def stochastic_loss(a, alpha, T_test, d, q_test):
    """The loss L at T_test and q_test, for stochastic orthonormal encodings.  Derived (above).

    The output is alpha s times the target.  Training brings this to 1 at T and q, where the best
    alpha rises from 1 to (1 + sqrt(T/q))/2, while s is still small, and returns to 1 as s does.  At
    a larger q_test alpha s passes 1, overshoots, and comes down again: there the error dips.
    """
    selected = q_test * np.exp(a)
    scale = alpha * selected / (selected + T_test - q_test)
    rest = (alpha - scale) ** 2 * q_test / (T_test - q_test)
    return d / (2 * q_test) * ((1 - scale) ** 2 + rest)


def scaled(a, T, q, T_test, q_test):
    """The a' that has at T_test and q_test the attention s of a at T and q.  Derived (above)."""
    return a + np.log((T_test - q_test) * q / (q_test * (T - q)))


def length_factor(run, T_test, q_test):
    """The number a'/a by which W is multiplied at length T_test and q_test selected tokens.

    a is the logit that a trained position adds to itself: the mean of e_j . B e_j, with B the block
    of W on encodings.  For W = a W* and unit vectors it is a.  Exact for orthonormal encodings; for
    random signs to leading order in q a'^2/(2 d_e), the spread of unselected logits.
    """
    c, B = run["config"], run["W"][run["config"].d:, run["config"].d:]
    a = (run["E"][:c.T] @ B * run["E"][:c.T]).sum() / c.T if "E" in run else np.trace(B) / c.d_e
    return scaled(a, c.T, c.q, T_test, q_test) / a


def demo():
    """Print errors at longer lengths as they are, and with scaled logits."""
    T, d, q, d_e, steps = 200, 5, 3, 400, 10_000
    a, alpha = two_numbers.descend(5.0, steps, d_e, T, d, q)[1:, -1]
    print(f"Stochastic orthonormal encodings, {T = }, {q = }, {d_e = }, lr 5, step {steps}:\n"
          f"errors on longer sequences as they are, and with scaled logits, {a = :.2f}.\n\n"
          "  T_test    error   factor   scaled")
    for T_test in T, 300, d_e:
        more = scaled(a, T, q, T_test, q)
        print("  {:6d}   {:6.2%}   {:.3f}   {:6.2%}".format(
            T_test, stochastic_loss(a, alpha, T_test, d, q) * 2 * q / d, more / a,
            stochastic_loss(more, alpha, T_test, d, q) * 2 * q / d))
    print("\nRandom signs, the best weights for one draw at T = 200.  Errors at T = 20,000 as\n"
          "they are, with 16 draws; with scaled logits; and over all draws, the others at 0.\n\n"
          "   d_e  error  scaled: 1 draw  16 draws   all  others 0")
    rng = np.random.default_rng(0)
    for d_e in 60, 170, 500:
        a, alpha = width.best_weights(width.random_scores(rng, T, d_e, q), q, 1)
        scores, more = width.random_scores(rng, 20_000, d_e, q, 400), scaled(a, T, q, 20_000, q)
        errors = [width.signs_error(b, alpha, own, q, K) for b, own, K in (
            (a, scores, 16), (more, scores, 1), (more, scores, 16), (more, scores, np.inf),
            (more, scores * (np.arange(20_000) < q), np.inf))]
        print("  {:4} {:6.1%} {:15.1%} {:9.1%} {:6.1%} {:8.1%}".format(d_e, *errors), flush=True)


# Training

def end_errors(run, T_test):
    """The errors at length T_test of a run's last weights, and with scaled logits."""
    q = run["config"].q
    factors = np.float32([1, length_factor(run, T_test, q)])
    return [end_error(run | {"W": factor * run["W"]}, T_test, q, n=max(64, 800_000 // T_test))
            for factor in factors]


def figure():
    """Plot and print the errors of Figure 4's runs on longer sequences, as they are and scaled."""
    runs = plots.trained(plots.GD)
    c = runs["gd fixed"][0]["config"]
    ticks = c.T * np.array([1, 2, 5, 20, 80, 500])
    canvas, axis = plots.plt.subplots(figsize=(10, 6.5))
    for pe, lengths, color in (("fixed", [c.T, *c.T_test], plots.FIXED),
                               ("stochastic", ticks, plots.STOCHASTIC)):
        errors = np.array([[end_errors(run, T) for T in lengths] for run in runs[f"gd {pe}"]])
        for k, (line, name) in enumerate((("s--", pe), ("o-", f"{pe}, scaled logits"))):
            axis.plot(lengths, errors[:, :, k].mean(axis=0), line, color=color, label=name)
            for T, column in zip(lengths, errors[:, :, k].T):
                row(f"{name}: error at T = {T}", column)
    plots.dotted_line(axis, 1, "")
    axis.text(c.T, 1.05, "zero predictor")
    axis.set(xlabel="$T_{test}$", xscale="log", yscale="log", ylabel="error")
    axis.set_xticks(ticks, [f"{T:,}" for T in ticks])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda error, _: f"{100 * error:g}%")
    axis.legend(loc=(0.45, 0.35))
    canvas.suptitle("With scaled logits stochastic encodings work at 500 times the trained length")
    plots.caption(canvas, "Means of Figure 4's runs, random signs, 16 draws in a test. Fixed "
                  "encodings were drawn up to 2T, and scaled logits do not help them.", c)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
