"""How many samples does a softmax head need to find 3 of T bits?

About five more for each doubling of T.  Choosing the three bits of largest correlation grows alike.

Companion to "Inductive Biases and Variable Creation in Self-Attention Mechanisms" (Edelman, Goel,
Kakade, Zhang, 2022, arXiv:2110.10090).  NumPy only.

    python beyond/related/sparse_variables.py                   prints the headline
    python beyond/related/sparse_variables.py picture.png       also plots the picture

Throughout this file we have:

    R, m, T      trials (trained side by side), samples in a trial, context length
    S            the positions of the bits that matter, 0..SPARSITY-1 without loss of generality
    X            bits, i.i.d. Bernoulli(P_ONE)                            (R, m, T) of 0 and 1
    y            labels, the AND of the bits in S; P(y = 1) = 1/2         (R, m) of 0 and 1
    u            logits of the head, one for each position                (R, T)
    b, c         bias, and the factor of the head's output                (R, 1), (R, 1)
    a            attention weights, a = softmax(u)                        (R, T)
    h, f         h = sum_t a_t x_t, and the output f = b + c h            (R, m)
    r            residual dL/df = (sigmoid(f) - y) / m                    (R, m)
    m50          the number of samples with which half of the trials succeed

The head attends by position only, and its values are the bits.  The baseline is the same without
softmax and with c = 1: a = u, which is logistic regression f = b + x.u.  Both can represent the
AND.

Paper (abstract): bounded-norm heads represent sparse functions of the input, with a sample
complexity that is only logarithmic in T.
From memory, unverified: their experiment, with this AND.
Our choice: the model, which is simpler than their block, and whose norms we do not bound.  So only
the growth with T compares.  The paper's full text was not read, and we found no official code.

Derived here: the gradients, and a heuristic for choosing the three largest correlations instead of
training.  corr(y, x_t) is sqrt((1 - P_ONE) / P_ONE) on S and 0 elsewhere.  Estimates from m samples
have noise 1 / sqrt(m), and the largest noise of T bits is about sqrt(2 ln T / m).  So S stands out
once m is about 2 ln T P_ONE / (1 - P_ONE).
"""

import argparse

import numpy as np

SPARSITY = 3                                    # |S|
P_ONE = 0.5 ** (1 / SPARSITY)                   # the probability of a 1, for balanced labels
LENGTHS = (50, 100, 200, 400, 800)              # T
SIZES = np.arange(12, 60, 4)                    # m
TRIALS = 50                                     # R
HEURISTIC = 2 * np.log(LENGTHS) * P_ONE / (1 - P_ONE)      # samples, one for each T


def sample_and(rng, R, m, T):
    """Sample bits X (R, m, T) and labels y (R, m), both float32; rng is a numpy.random.Generator.

    Bits are Bernoulli(P_ONE), y is the AND of the first SPARSITY of them.  From memory, unverified.
    """
    X = (rng.random((R, m, T), dtype=np.float32) < P_ONE).astype(np.float32)
    return X, X[:, :, :SPARSITY].min(axis=2)


def softmax(u):
    """Attention weights a = softmax(u) along the last axis, in the dtype of u."""
    e = np.exp(u - u.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def forward(params, X, head=True):
    """Output f (R, m) and a cache for backward; params = [u, b, c], head=False is the baseline.

    X is (R, m, T), or (1, m, T) if all trials share it.
    """
    u, b, c = params
    a = softmax(u) if head else u                           # (R, T)
    h = (X @ a[:, :, None])[:, :, 0]                        # (R, m)
    return b + c * h, (params, X, head, a, h)               # f (R, m)


def backward(cache, df):
    """Gradients [du, db, dc], given df = dL/df (R, m).  dc is 0 for the baseline.  Derived here."""
    (_, _, c), X, head, a, h = cache
    # f = b + c h
    db = df.sum(axis=1, keepdims=True)                      # (R, 1)
    dc = (df * h).sum(axis=1, keepdims=True) * head         # (R, 1)
    dh = df * c                                             # (R, m)
    # h = X a, so da = X^T dh
    da = (dh[:, None] @ X)[:, 0]                            # (R, T)
    # a = softmax(u), so du_t = a_t (da_t - a.da)
    du = a * (da - (a * da).sum(axis=1, keepdims=True)) if head else da       # (R, T)
    return [du, db, dc]


def gradients(params, X, y, head=True):
    """Gradients of the logistic loss, the mean of ln(1 + e^f) - y f, for each trial.  Derived here.

    Shapes as in forward; y is (R, m).
    """
    f, cache = forward(params, X, head)
    r = (0.5 + 0.5 * np.tanh(f / 2) - y) / f.shape[1]       # sigmoid(f) = (1 + tanh(f / 2)) / 2
    return backward(cache, r)


def train(X, y, head=True, steps=300):
    """Full-batch Adam on R trials at once, from u = 0, b = 0, c = 1; returns [u, b, c].

    X is (R, m, T), y is (R, m); learning rate 0.1, decay rates 0.9 and 0.999 (our choice).
    """
    R, _, T = X.shape
    params = [np.zeros((R, T), X.dtype), np.zeros((R, 1), X.dtype), np.ones((R, 1), X.dtype)]
    first, second = ([np.zeros_like(w) for w in params] for _ in range(2))
    for t in range(1, steps + 1):
        for w, g, m1, m2 in zip(params, gradients(params, X, y, head), first, second):
            m1 += 0.1 * (g - m1)
            m2 += 0.001 * (g * g - m2)
            w -= 0.1 * (m1 / (1 - 0.9 ** t)) / (np.sqrt(m2 / (1 - 0.999 ** t)) + 1e-8)
    return params


def run_trials(T, m, seed, head=True, trials=TRIALS):
    """Train each trial on m samples of its own, and test all on the same 1000 fresh samples.

    Returns params and the share (trials,) of test samples on which f > 0 exactly if y = 1.
    """
    rng = np.random.default_rng([seed, T, m])
    X, y = sample_and(rng, trials, m, T)
    params = train(X, y, head)
    X_test, y_test = sample_and(rng, 1, 1000, T)
    f, _ = forward(params, X_test, head)                    # (trials, 1000)
    return params, ((f > 0) == (y_test == 1)).mean(axis=1)


def correlations_find(T, m, seed, trials=TRIALS):
    """Share of trials of run_trials whose three largest correlations with y are those of S."""
    X, y = sample_and(np.random.default_rng([seed, T, m]), trials, m, T)
    X, y = X - X.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    corr = (y[:, None] @ X)[:, 0] / (np.sqrt((X * X).sum(axis=1)) + 1e-9)       # times a constant
    return (corr[:, :SPARSITY].min(axis=1) > corr[:, SPARSITY:].max(axis=1)).mean()


def success_rates(lengths):
    """Success rates of the head, and of correlations: (2, len(lengths), len(SIZES)).

    A head succeeds if it gets all test samples right, correlations if they find S.
    """
    rates = np.zeros((2, len(lengths), len(SIZES)))
    for i, j in np.ndindex(len(lengths), len(SIZES)):
        _, right = run_trials(lengths[i], SIZES[j], 0)
        found = correlations_find(lengths[i], SIZES[j], 0)
        rates[:, i, j] = (right == 1).mean(), found
    return rates


def half_point(sizes, rates):
    """m50, from a line through ln(rate / (1 - rate)), where rates of 0 and 1 are left out.

    Each point has the weight 1 / variance.
    """
    use = (rates > 0) & (rates < 1)
    if use.sum() < 2:
        raise ValueError("need two rates between 0 and 1")
    m, rate = sizes[use], rates[use]
    slope, offset = np.polyfit(m, np.log(rate / (1 - rate)), 1, w=np.sqrt(rate * (1 - rate)))
    return -offset / slope


def growth(lengths, rates):
    """Fit m50 by a line in log2 T.

    rates is (len(lengths), len(SIZES)), each the mean of TRIALS.  Returns m50 and its errors
    (len(lengths),), the line (slope, intercept), and the slope's error.  Errors are standard
    deviations over 200 bootstrap samples, which take new rates from binomials.
    """
    rng = np.random.default_rng(0)
    resampled = [rng.binomial(TRIALS, rates) / TRIALS for _ in range(200)]
    points = np.array([[half_point(SIZES, row) for row in some] for some in [rates, *resampled]])
    lines = np.polyfit(np.log2(lengths), points.T, 1)       # (2, 201), the first from rates
    return points[0], points[1:].std(axis=0), lines[:, 0], lines[0, 1:].std()


def demo():
    """Print the samples needed against T, with fits and errors, and the head and the baseline."""
    print(f"The AND of {SPARSITY} of T bits.  Claimed (abstract): samples needed grow like log T.")
    print(f"m50: samples with which half of {TRIALS} trials succeed: a head gets 1000 test samples")
    print("right.  The three largest correlations must be on the right bits.\n")
    head, found = success_rates(LENGTHS)
    fits = [growth(LENGTHS, rates) for rates in (head, found)]
    print("                head, m50       correlations, m50   heuristic for them")
    for i, T in enumerate(LENGTHS):
        print(f"T = {T:3d}      " + "".join(f"   {points[i]:5.2f} +- {errors[i]:4.2f}"
                                            for points, errors, *_ in fits)
              + f"       {HEURISTIC[i]:5.2f}")
    print("per doubling " + "".join(f"   {line[0]:5.2f} +- {error:4.2f}"
                                    for _, _, line, error in fits)
          + f"       {HEURISTIC[1] - HEURISTIC[0]:5.2f}")
    print("\nWith 60 samples: mean accuracy\n                    logistic          head")
    for T in LENGTHS:
        right = [run_trials(T, 60, 0, head)[1] for head in (False, True)]
        print(f"accuracy, T = {T:3d} " + "".join(
            f"  {x.mean():.3f} +- {x.std() / TRIALS ** 0.5:.3f}" for x in right))


COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
BLUE, VERMILLION, GREEN, GREY = *COLORS[:3], "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot success rates, samples needed against T, head and baseline, and weights over steps."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, panels = plt.subplots(2, 2, figsize=(10, 8))
    (rate_panel, size_panel), (accuracy_panel, weight_panel) = panels
    lengths = np.array(LENGTHS)
    success, found = success_rates(lengths)
    lines = ["o-", "s--", "D-.", "^:", "v-"]
    for T, rates, line, color in zip(lengths, success, lines, COLORS):
        rate_panel.plot(SIZES, rates, line, markersize=5, color=color, label=f"T = {T}")
    rate_panel.legend(frameon=False)
    rate_panel.set(title="Twice the context: about 5 samples more", xlabel="training samples",
                   ylabel="share of trials that succeed", xlim=(11, 72))

    for rates, name, line, color in ((found, "correlations", "s-.", GREEN),
                                     (success, "softmax head", "o-", BLUE)):
        points, errors, fit, error = growth(lengths, rates)
        size_panel.errorbar(lengths, points, errors, fmt=line[0], color=color, capsize=3)
        size_panel.plot(lengths, np.polyval(fit, np.log2(lengths)), line, markersize=0,
                        color=color, label=f"{name}: slope {fit[0]:.2f} ± {error:.2f}")
    size_panel.semilogx(lengths, HEURISTIC, "--", base=2, color=GREY,
                        label="heuristic for correlations")
    size_panel.set(title="Samples for 50 % grow like log T", xlabel="context length T",
                   ylabel="training samples", ylim=(0, 66), xticks=lengths, xticklabels=lengths)
    size_panel.legend(loc="lower right", frameon=False)

    for head, line, color in (True, "o-", BLUE), (False, "s--", VERMILLION):
        means = [run_trials(T, 60, 0, head)[1].mean() for T in LENGTHS]
        accuracy_panel.semilogx(lengths, means, line, base=2, color=color)
    accuracy_panel.text(100, 0.92, "softmax head", color=BLUE)
    accuracy_panel.text(100, 0.75, "logistic regression,\nno penalty", color=VERMILLION)
    accuracy_panel.set(title="60 samples: only the head is right", xlabel="context length T",
                       ylabel="accuracy", ylim=(0.5, 1.03), xticks=lengths, xticklabels=lengths)

    X, y = sample_and(np.random.default_rng(0), 40, 60, 100)
    steps = np.arange(0, 301, 10)
    a = np.array([softmax(train(X, y, steps=n)[0]) for n in steps])         # (31, 40, T)
    least = a[..., :SPARSITY].min(axis=2)                                   # (31, 40)
    weight_panel.semilogy(steps, a[..., SPARSITY:].max(axis=2), color=GREY, linewidth=0.5)
    weight_panel.semilogy(steps, least, color=BLUE, linewidth=1)
    weight_panel.text(300, 0.6, "least of the three right bits", color=BLUE, ha="right")
    weight_panel.text(300, 1.5e-5, "largest of the other 97", color=GREY, ha="right")
    dips = (least.min(axis=0) < 0.5 / 100).sum()            # half of the weight at step 0
    weight_panel.set(title=f"In {dips} of 40 trials a right bit falls by half", xlabel="step",
                     ylabel="weight (1/100 at first)", ylim=(1e-5, 2))
    canvas.supxlabel(
        f"The label is the AND of {SPARSITY} of T random bits. A trial succeeds with 1000 "
        "right test labels,\nor if the three bits of largest correlation with the label are right. "
        "Slope: per doubling.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
