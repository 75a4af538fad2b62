"""Scaled logits: one derived number repairs trained weights at other lengths and subset sizes.

    python beyond/scaled_logits.py        draws figures/scaled_logits.png, of the runs of plots.py

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
    """W times this number repairs a run at length T and q selected tokens.  Derived.

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


KINDS = {       # encodings, scaled logits, one draw or the mean of all; color, marker, fill
    "fixed": ("fixed", False, True, FIXED, "s", "full"),
    "fixed, scaled logits": ("fixed", True, True, FIXED, "D", "none"),
    "stochastic, one draw": ("stochastic", False, True, STOCHASTIC, "o", "none"),
    "stochastic, 16 draws": ("stochastic", False, False, STOCHASTIC, "o", "full"),
    "stochastic, 16 draws, scaled logits": ("stochastic", True, False, "black", "D", "full")}


def end_shares(runs, optimizer, kind, tests, n=128):
    """The errors of trained runs over d/(2q), for one of KINDS (seeds, tests)."""
    pe, scaled, one_draw, *_ = KINDS[kind]
    shares = []
    for run in runs[optimizer, pe]:
        for T, q in tests:
            f, target = end_outputs(run, T, q, scaled, n)
            f = f if one_draw else f.mean(axis=0)
            shares.append(((f - target) ** 2).sum(axis=-1).mean() * q / run["config"].d)
    return np.reshape(shares, (-1, len(tests)))


def scaled_logits(runs):
    """Nine tests with logits as they are, and scaled; and much longer sequences."""
    c, tests = runs["gd", "fixed"][0]["config"], runs["gd", "fixed"][0]["tests"].tolist()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 7), width_ratios=[1, 1, 1.3])
    for axis, optimizer in (left, "gd"), (middle, "adam"):
        for kind, (*_, color, marker, fill) in KINDS.items():
            shares = end_shares(runs, optimizer, kind, tests)
            axis.plot(shares.T, range(len(tests)), marker, color=color, fillstyle=fill,
                      markersize=10, label=[kind] + ["_"] * (len(shares) - 1))
        axis.axvline(1, color=THEORY, linestyle=":", linewidth=1.5)
        axis.set(title=train.OPTIMIZERS[optimizer], xscale="log",
                 xlabel="error over d/(2q)")
        axis.set_yticks(range(len(tests)), ["trained task"] + [
            f"$T_{{test}}$ = {T}" if q == c.q else f"$q_{{test}}$ = {q}" for T, q in tests[1:]])
        axis.invert_yaxis()
    middle.tick_params(labelleft=False)
    longer, same_q = c.T * np.array([1, 2, 5, 20, 80, 500]), [T for T, q in tests if q == c.q]
    for kind, T in (("fixed", same_q), ("stochastic, 16 draws", longer),
                    ("stochastic, 16 draws, scaled logits", longer)):
        shares = end_shares(runs, "gd", kind, [(x, c.q) for x in T], n=64)
        band(right, T, shares, KINDS[kind][3], marker=KINDS[kind][4], markersize=10)
    zero_line(right, 1)
    right.set(title="gradient descent, to 500 T", xscale="log", yscale="log", xlabel="$T_{test}$",
              ylabel="error over d/(2q)")
    right.set_xticks(longer[[0, 2, 3, 5]], [f"{T:,}" for T in longer[[0, 2, 3, 5]]])
    right.minorticks_off()
    for axis in left.xaxis, middle.xaxis, right.yaxis:
        axis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


FIGURES = {"scaled_logits": (scaled_logits, "With scaled logits stochastic encodings still work at "
                             "500 times the trained length", {"gd", "adam"})}


if __name__ == "__main__":
    plots.main(FIGURES, plots.arms, HERE / "figures", __doc__)
