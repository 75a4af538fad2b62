"""Scaled logits: trained weights times one derived number work at longer sequences.

    python beyond/scaled_logits.py        plots figures/scaled_logits.png, with the runs of plots.py

Flags are as in plots.py.  claims.py has what is measured, theory_plots.py what theory predicts.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))        # of plots.py, train.py and sts.py

import plots        # before NumPy loads, since it sets the number of threads

import math

import matplotlib.pyplot as plt
import numpy as np

import sts
import train
from plots import FIXED, STOCHASTIC, THEORY, band, zero_line


def length_factor(run, T, q):
    """The number by which W is multiplied at length T and q selected tokens.  Derived.

    With W = a W* and orthonormal encodings a selected token has the logit a, any other one 0.  So
    the selected tokens together get the attention s = q e^a / (q e^a + T - q).  V was fitted to the
    s of training, at T_0 and q_0.  s stays the same if e^a grows like (T - q)/q, so if a becomes
    a' = a + ln[(T - q) q_0 / (q (T_0 - q_0))].  The number is a'/a, and a is the mean of the
    diagonal of W's block on encodings.  Exact for orthonormal encodings, else to leading order.
    For keys Z, the sum as query, and longer sequences; for larger q it may make errors worse.
    """
    c = run["config"]
    a = np.diag(run["W"])[c.d:].mean()
    return 1 + math.log((T - q) * c.q / (q * (c.T - c.q))) / a


def end_outputs(run, T, q, scaled, n=128):
    """Outputs of a trained run, for each draw of encodings (draws, n, d), and the targets (n, d).

    On n new sequences of any q, and any T for which there are encodings.  One draw at a time, since
    it has T d_e numbers.
    """
    c = run["config"]
    X, y = sts.sample_sts(train.stream(c, "tests", T, q), n, T, c.d, q, np.float32)
    W = run["W"] * np.float32(length_factor(run, T, q) if scaled else 1)
    f = [sts.forward(W, run["V"], X, y, train.encodings(run, T, 1, "tests", T, q, k)[0])[0]
         for k in range(1 if "E" in run else c.eval_draws)]
    return np.array(f), sts.sts_target(X, y)


def end_shares(runs, tests, scaled, n=128):
    """The errors of trained runs over d/(2q) on new sequences, for tests (T, q) (seeds, tests)."""
    shares = []
    for run in runs:
        for T, q in tests:
            f, target = end_outputs(run, T, q, scaled, n)
            shares.append(((f.mean(axis=0) - target) ** 2).sum() / n * q / run["config"].d)
    return np.reshape(shares, (len(runs), len(tests)))


CURVES = [      # encodings, whether logits are scaled, label, color, marker
    ("fixed", False, "fixed", FIXED, "s"),
    ("stochastic", False, "stochastic, mean of 16 draws", STOCHASTIC, "o"),
    ("stochastic", True, "the same with scaled logits", "black", "D")]


def scaled_logits(runs):
    """Much longer sequences, and other subset sizes, with logits as they are, and scaled."""
    c, tests = runs["gd", "fixed"][0]["config"], runs["gd", "fixed"][0]["tests"].tolist()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6.5), width_ratios=[1.8, 1],
                                         sharey=True)
    longer, sizes = c.T * np.array([1, 2, 5, 20, 80, 500]), sorted({q for _, q in tests})
    for pe, scaled, label, color, marker in CURVES:
        lengths = [T for T, q in tests if q == c.q] if pe == "fixed" else longer
        found, style = runs["gd", pe], {"color": color, "marker": marker, "markersize": 10}
        band(left, lengths, end_shares(found, [(T, c.q) for T in lengths], scaled, n=64),
             label=label, **style)
        band(right, sizes, end_shares(found, [(c.T, q) for q in sizes], scaled), **style)
    for axis in left, right:
        zero_line(axis, 1, "zero predictor" if axis is left else "")
    left.set(title="longer sequences, to 500 T", xscale="log", yscale="log", xlabel="$T_{test}$",
             ylabel="error over d/(2q)")
    left.set_xticks(longer[[0, 2, 3, 5]], [f"{T:,}" for T in longer[[0, 2, 3, 5]]])
    left.minorticks_off()
    left.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    left.legend(loc=(0.35, 0.42))
    right.set(title="other subset sizes", xlabel="$q_{test}$", xticks=sizes)
    plots.caption(figure, "The runs of Figure 4, not trained again. Fixed encodings are kept for "
                  "at most 2 T positions.", c)
    return figure


FIGURES = {"scaled_logits": (scaled_logits, "With scaled logits stochastic encodings still work at "
                             "500 times the trained length", {"gd"})}


if __name__ == "__main__":
    plots.main(FIGURES, plots.arms, HERE / "figures", __doc__)
