"""Sparse variable creation: a softmax head finds 3 of T bits from about log T samples.

Companion to "Inductive Biases and Variable Creation in Self-Attention Mechanisms" (Edelman, Goel,
Kakade, Zhang, 2022, arXiv:2110.10090).  NumPy only.  `python beyond/related/sparse_variables.py`
prints the headline; with the name of a file, such as picture.png, it also plots the picture.

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
    m50, m80     numbers of samples with which half, or 80 %, of the trials succeed

The head attends by position only, and its values are the bits.  The baseline is the same without
softmax and with c = 1: a = u, which is logistic regression f = b + x.u.  Both can represent the
AND.

Paper (abstract): "a single self-attention head can represent a sparse function of the input
sequence, with sample complexity scaling only logarithmically with the context length".
From memory, unverified: their experiment, with this AND and m80.
Our choice: the model, which is simpler than their block, so only the growth with T compares.
The paper's full text was not read, and no official code was found.  L1-penalized logistic
regression is known to need about log T samples too (not checked here).

Derived here: the gradients, the Lipschitz constant (see softmax), and a heuristic for the growth.
corr(y, x_t) is sqrt((1 - P_ONE) / P_ONE) on S and 0 elsewhere.  Estimates from m samples have
noise 1 / sqrt(m), and the largest noise of T bits is about sqrt(2 ln T / m).  So S stands out once
m (1 - P_ONE) / P_ONE exceeds 2 ln T: HEURISTIC_SLOPE samples more for each doubling of T.
"""

import argparse

import numpy as np

SPARSITY = 3                                    # |S|
P_ONE = 0.5 ** (1 / SPARSITY)                   # the probability of a 1, for balanced labels
HEURISTIC_SLOPE = 2 * np.log(2) * P_ONE / (1 - P_ONE)      # samples per doubling of T
LENGTHS = (50, 100, 200, 400, 800)              # T
SIZES = np.arange(12, 60, 4)                    # m
TRIALS = 50                                     # R


def sample_and(rng, R, m, T):
    """Sample bits X (R, m, T) and labels y (R, m), both float32; rng is a numpy.random.Generator.

    Bits are Bernoulli(P_ONE), y is the AND of the first SPARSITY of them.  From memory, unverified.
    """
    X = (rng.random((R, m, T), dtype=np.float32) < P_ONE).astype(np.float32)
    return X, X[:, :, :SPARSITY].min(axis=2)


def softmax(u):
    """Attention weights a = softmax(u) along the last axis, in the dtype of u.

    Why T hardly matters: |softmax(u) - softmax(v)|_1 <= |u - v|_inf for any T (derived), so h
    moves by no more than the largest change of a logit.  To see this, let J be the derivative of
    softmax at u, and let |d|_inf <= 1.  Then |J d|_1 = sum_t a_t |d_t - a.d| is the mean absolute
    deviation of d under a, which is at most its standard deviation, which is at most 1.  Two
    equal logits and d = (1, -1) reach 1.
    """
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
    # h = X a; da = X^T dh, written so that X is not transposed, which is slower
    da = (dh[:, None] @ X)[:, 0]                            # (R, T)
    # a = softmax(u), so du_t = a_t (da_t - a.da)
    du = a * (da - (a * da).sum(axis=1, keepdims=True)) if head else da       # (R, T)
    return [du, db, dc]


def loss_and_grads(params, X, y, head=True):
    """The logistic loss L (R,), the mean of ln(1 + e^f) - y f, and the gradients of each trial.

    Shapes as in forward; y is (R, m).  Derived here.
    """
    f, cache = forward(params, X, head)
    L = (np.log(1 + np.exp(f)) - y * f).mean(axis=1)
    r = (0.5 + 0.5 * np.tanh(f / 2) - y) / f.shape[1]       # sigmoid(f) = (1 + tanh(f / 2)) / 2
    return L, backward(cache, r)


def train(X, y, head=True, steps=300):
    """Full-batch Adam on R trials at once, from u = 0, b = 0, c = 1; returns [u, b, c].

    X is (R, m, T), y is (R, m); learning rate 0.1, decay rates 0.9 and 0.999 (our choice).
    """
    R, _, T = X.shape
    params = [np.zeros((R, T), X.dtype), np.zeros((R, 1), X.dtype), np.ones((R, 1), X.dtype)]
    first, second = ([np.zeros_like(w) for w in params] for _ in range(2))
    for t in range(1, steps + 1):
        _, grads = loss_and_grads(params, X, y, head)
        for w, g, m1, m2 in zip(params, grads, first, second):
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


def success_rates(lengths):
    """The head's share of successes and mean accuracy, (2, len(lengths), len(SIZES)).

    A trial succeeds if it gets all test samples right.
    """
    rates = np.zeros((2, len(lengths), len(SIZES)))
    for i, j in np.ndindex(len(lengths), len(SIZES)):
        _, right = run_trials(lengths[i], SIZES[j], 0)
        rates[:, i, j] = (right == 1).mean(), right.mean()
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


def crossing(sizes, rates, level=0.8):
    """Where rates first reach the level (m80: 0.8), interpolated."""
    i = int(np.argmax(rates >= level))
    if i == 0:
        raise ValueError("the first rate is too high, or the last too low")
    part = (level - rates[i - 1]) / (rates[i] - rates[i - 1])
    return sizes[i - 1] + part * (sizes[i] - sizes[i - 1])


def growth(point, lengths, rates):
    """Fit point(SIZES, rates of one T), half_point or crossing, by a line in log2 T.

    rates is (len(lengths), len(SIZES)), each the mean of TRIALS.  Returns points and their errors
    (len(lengths),), the line (slope, intercept), the slope's error, and R^2.  Errors are standard
    deviations over 200 bootstrap samples, which take new rates from binomials.
    """
    rng = np.random.default_rng(0)
    resampled = [rng.binomial(TRIALS, rates) / TRIALS for _ in range(200)]
    points = np.array([[point(SIZES, row) for row in some] for some in [rates, *resampled]])
    lines = np.polyfit(np.log2(lengths), points.T, 1)       # (2, 201), the first from rates
    R2 = np.corrcoef(np.log2(lengths), points[0])[0, 1] ** 2
    return points[0], points[1:].std(axis=0), lines[:, 0], lines[0, 1:].std(), R2


def demo():
    """Print the samples needed against T, with fits and errors, and the head and the baseline."""
    print(f"The AND of {SPARSITY} of T bits.  Claimed (abstract): samples needed grow like log T.")
    print(f"m50, m80: samples with which half, or 80 %, of {TRIALS} trials succeed: they get 1000")
    print("test samples right.  With 60 samples: mean accuracy of logistic regression and of")
    print("the head, and how many successful heads have their largest weights on the right bits.\n")
    success, _ = success_rates(LENGTHS)
    fits = [growth(point, LENGTHS, success) for point in (half_point, crossing)]
    print("               m50             m80             logistic        head          right bits")
    for i, T in enumerate(LENGTHS):
        (u, _, _), right = run_trials(T, 60, 0)
        _, linear = run_trials(T, 60, 0, head=False)
        u = u[right == 1]                                   # (successes, T)
        on_S = (u[:, :SPARSITY].min(axis=1) > u[:, SPARSITY:].max(axis=1)).sum()
        print(f"T = {T:3d}     " + "".join(f"   {points[i]:5.2f} +- {errors[i]:4.2f}"
                                           for points, errors, *_ in fits)
              + "".join(f"   {x.mean():.3f} +- {x.std() / TRIALS ** 0.5:.3f}"
                        for x in (linear, right)) + f"  {on_S} of {len(u)}")
    (_, _, line50, error50, R50), (_, _, line80, error80, R80) = fits
    print(f"per doubling    {line50[0]:.2f} +- {error50:.2f}    {line80[0]:.2f} +- {error80:.2f}")
    print(f"R^2 of the line {R50:.3f}           {R80:.3f}")
    print(f"heuristic       {HEURISTIC_SLOPE:.2f} per doubling")


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
    (rate_panel, size_panel), (need_panel, weight_panel) = panels
    lengths = np.array(LENGTHS)
    success, accuracy = success_rates(lengths)
    lines = ["o-", "s--", "D-.", "^:", "v-"]
    for T, rates, line, color in zip(lengths, success, lines, COLORS):
        rate_panel.plot(SIZES, rates, line, markersize=5, color=color, label=f"T = {T}")
    rate_panel.legend(frameon=False)
    rate_panel.set(title="Twice the context: about 5 samples more", xlabel="training samples",
                   ylabel="share of trials that succeed", xlim=(11, 72))

    for name, point, line, color in (("80 %", crossing, "s-.", VERMILLION),
                                     ("50 %", half_point, "o-", BLUE)):
        points, errors, fit, error, _ = growth(point, lengths, success)
        size_panel.errorbar(lengths, points, errors, fmt=line[0], color=color, capsize=3)
        size_panel.plot(lengths, np.polyval(fit, np.log2(lengths)), line, markersize=0,
                        color=color, label=f"{name} succeed: slope {fit[0]:.2f} ± {error:.2f}")
    size_panel.semilogx(lengths, 40 + HEURISTIC_SLOPE * np.log2(lengths / 50), "--", base=2,
                        color=GREY, label=f"heuristic slope {HEURISTIC_SLOPE:.2f}, any height")
    size_panel.set(title="The samples needed grow like log T", xlabel="context length T",
                   ylabel="training samples", ylim=(0, 66), xticks=lengths, xticklabels=lengths)
    size_panel.legend(loc="lower right", frameon=False)

    sizes = np.round(250 * 2 ** (np.arange(7) / 2)).astype(int)             # 250 to 2000
    linear = np.zeros((4, len(sizes)))                 # with T = 800, 2000 are not enough
    for i, j, seed in np.ndindex(4, len(sizes), 5):
        linear[i, j] += run_trials(LENGTHS[i], sizes[j], seed, False, 1)[1][0] / 5
    for Ts, ms, rates, line, color in ((lengths[:4], sizes, linear, "s--", VERMILLION),
                                       (lengths, SIZES, accuracy, "o-", BLUE)):
        need_panel.loglog(Ts, [crossing(ms, row, 0.99) for row in rates], line, color=color)
    need_panel.text(50, 120, "logistic regression, no penalty\n(T = 800: over 2000)",
                    color=VERMILLION)
    need_panel.text(150, 60, "softmax head", color=BLUE)
    need_panel.minorticks_off()
    need_panel.set(title="Logistic regression takes far more", xlabel="context length T",
                   ylabel="samples for accuracy 0.99", xticks=lengths, xticklabels=lengths)

    X, y = sample_and(np.random.default_rng(0), 1, 60, 100)
    steps = np.arange(0, 301, 10)
    a = np.array([softmax(train(X, y, steps=n)[0])[0] for n in steps])      # (31, T)
    weight_panel.semilogy(steps, a[:, SPARSITY:], color=GREY, linewidth=0.5)
    weight_panel.semilogy(steps, a[:, :SPARSITY], color=BLUE, linewidth=3)
    weight_panel.text(160, 0.04, "the three right bits", color=BLUE)
    weight_panel.text(150, 3e-7, "the other 97 bits", color=GREY)
    weight_panel.set(title="One trial: two right bits, then the third", xlabel="step",
                     ylabel="attention weight", ylim=(1e-7, 2))
    canvas.supxlabel(
        f"The label is the AND of {SPARSITY} of T random bits. A trial succeeds with 1000 "
        f"right test labels.\nAbove: {TRIALS} trials a point; slope: samples per doubling of T; "
        "bars, ±: one standard error.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
