"""How many samples does a head need to find 3 of T bits?  Doubling T costs 4 to 5 more samples.

Companion to "Inductive Biases and Variable Creation in Self-Attention Mechanisms" (Edelman, Goel,
Kakade, Zhang, 2022, arXiv:2110.10090).  NumPy only.

    python beyond/related/sparse_variables.py                   prints the headline
    python beyond/related/sparse_variables.py picture.png       also plots the picture

Throughout this file we have:

    R, m, T    trials (trained side by side), samples in a trial, context length
    X          bits, each is 1 with probability P_ONE, else 0                       (R, m, T)
    y          labels, the AND of the first three bits; half of them are 1          (R, m, 1)
    w, b       weights and bias; f = b + w.x > 0 says that bits x have label 1      (R, T or 1, 1)
    u, a, c    the head has w = c a, where a = softmax(u) is its attention          (R, T or 1, 1)
    L          the loss, the mean of log(1 + e^f) - y f over the samples            (R,)
    m50        the m with which half of the trials succeed: all of 1000 test labels are right

Why log T?  The weights of the head are positive, and their sum is c.  The correlation of a bit with
y is known up to a noise of about 1 / sqrt(m).  If c is bounded, only the largest noise of T bits
counts, about sqrt(2 ln T / m).  The three bits have the correlation sqrt((1 - P_ONE) / P_ONE),
which exceeds this noise if m > 2 ln T P_ONE / (1 - P_ONE).  It is a sketch, no proof: our c is
trained, and nothing bounds it.  In logistic regression the noise of all bits adds up, and the
number of samples it needs grows like T.  An L1 penalty, on the sum of all |w|, also bounds the sum.

Paper (abstract): a head of bounded norm can represent a sparse function of the input, with samples
that grow only like log T; experiments on sparse Boolean functions.  We found no official code.  Ng,
2004 (abstract): with an L1 penalty logistic regression needs samples like log T.  FISTA: Beck and
Teboulle, 2009.  Derived here: gradients, the sketch.  Our choice: task, sizes, training, an L1
penalty of 0.01, a head simpler than a Transformer.  The papers' full texts were not read.
"""

import argparse
from functools import cache

import numpy as np

P_ONE, TRIALS = 0.5 ** (1 / 3), 100                                     # TRIALS is R
LENGTHS = np.array([25, 50, 100, 200, 400])                             # T


def sample(rng, R, m, T):
    """Bits X (R, m, T) and labels y (R, m, 1)."""
    X = (rng.random((R, m, T), dtype=np.float32) < P_ONE).astype(np.float32)
    return X, X[:, :, :3].min(axis=2, keepdims=True)


def gradients(w, b, X, y):
    """dL/dw (R, T, 1) and dL/db (R, 1, 1).  Derived here."""
    r = (0.5 + 0.5 * np.tanh((b + X @ w) / 2) - y) / X.shape[1]         # (sigmoid(f) - y) / m
    return X.swapaxes(1, 2) @ r, r.sum(axis=1, keepdims=True)


def softmax(u):
    """a (R, T, 1)."""
    e = np.exp(u - u.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def head_gradients(u, b, c, X, y):
    """dL/du (R, T, 1), dL/db and dL/dc (R, 1, 1): the chain rule through w = c a.  Derived here."""
    a = softmax(u)
    dw, db = gradients(c * a, b, X, y)
    dc = (a * dw).sum(axis=1, keepdims=True)
    return c * a * (dw - dc), db, dc


def train_head(X, y, steps=300):
    """w and b of the head, by Adam with all samples, from u = 0, b = 0, c = 1."""
    u, b, c = params = [np.full((len(X), size, 1), start, X.dtype)
                        for size, start in ((X.shape[2], 0), (1, 0), (1, 1))]
    moments = [np.zeros((2, *p.shape), X.dtype) for p in params]
    for t in range(1, steps + 1):
        for p, g, (first, second) in zip(params, head_gradients(*params, X, y), moments):
            first += 0.1 * (g - first)
            second += 0.001 * (g * g - second)
            p -= 0.1 * first / (1 - 0.9 ** t) / (np.sqrt(second / (1 - 0.999 ** t)) + 1e-8)
    return c * softmax(u), b


def train_logistic(X, y, penalty=0.0, steps=200):
    """w and b after steps of FISTA from 0 on L + penalty |w|_1.  L alone may have no minimum."""
    R, m, T = X.shape
    X = np.concatenate([X - X.dtype.type(P_ONE), np.ones_like(X[:, :, :1])], axis=2)    # 1 for b
    # An estimate of the largest eigenvalue of the Hessian:
    curvature = (1 + P_ONE * (1 - P_ONE) * (1 + (T / m) ** 0.5) ** 2) / 4
    w = ahead = np.zeros((R, T + 1, 1), X.dtype)
    for t in range(steps):
        w, last = ahead - gradients(ahead, 0, X, y)[0] / curvature, w
        w[:, :T] = np.sign(w[:, :T]) * np.maximum(abs(w[:, :T]) - penalty / curvature, 0)
        ahead = w + t / (t + 3) * (w - last)
    return w[:, :T], w[:, T:] - P_ONE * w[:, :T].sum(axis=1, keepdims=True)     # bits not centred


def success(train, T, m, seed):
    """The share of trials that succeed, all on one test set (own ones give m50 the same spread)."""
    rng = np.random.default_rng([seed, T, m])
    w, b = train(*sample(rng, TRIALS, m, T))
    X, y = sample(rng, 1, 1000, T)
    return ((b + X @ w > 0) == (y == 1)).all(axis=1).mean()


def half_point(sizes, rates):
    """m50 and its error, from a line for the log odds, log(rate / (1 - rate)), against log m."""
    sizes, rates = sizes[use := (rates > 0) & (rates < 1)], rates[use]      # log odds are finite
    (slope, offset), cov = np.polyfit(np.log(sizes), np.log(rates / (1 - rates)), 1,
                                      w=np.sqrt(TRIALS * rates * (1 - rates)), cov="unscaled")
    x = -offset / slope                                             # log m50, where the line is 0
    return np.exp(x), np.exp(x) / slope * np.sqrt([x, 1] @ cov @ [x, 1])


@cache     # demo and figure share it
def experiment(seed=0):
    """m50 and its errors (2, lengths) of the head, with L1, and without (only three lengths)."""
    few, many = np.tile(np.arange(12, 55, 6), (5, 1)), np.outer(LENGTHS[:3], [4, 5, 6]) // 2
    results = []
    for train, sizes in ((train_head, few), (lambda X, y: train_logistic(X, y, 0.01), few),
                         (train_logistic, many)):
        rates = [[success(train, T, m, seed) for m in row] for T, row in zip(LENGTHS, sizes)]
        results.append(np.transpose([half_point(*one) for one in zip(sizes, np.array(rates))]))
    return results


def line(m50, errors):
    """(slope, offset) of a line for m50 against log2 T, and the standard error of the slope."""
    fit, cov = np.polyfit(np.log2(LENGTHS), m50, 1, cov="unscaled", w=1 / errors)
    return fit, cov[0, 0] ** 0.5


def demo():
    """Print m50 of all three, and how it grows."""
    print(f"m50: samples with which half of {TRIALS} trials get all 1000 test labels right\n")
    print("    T           ", *(f"{T:12}" for T in LENGTHS))
    results = experiment()
    for name, (m50, errors) in zip(("softmax head", "logistic, L1", "logistic"), results):
        print(f"    {name:12}", *(f"{x:5.1f} +- {error:.1f}" for x, error in zip(m50, errors)))
    head, l1 = (f"{fit[0]:.1f} +- {error:.1f}" for fit, error in (line(*r) for r in results[:2]))
    sketch = 2 * np.log(2) * P_ONE / (1 - P_ONE)
    print(f"\nMore samples if T doubles: {head} for the head, {l1} with L1 (sketch: {sketch:.1f}).")
    print("Logistic regression without L1 has m50 / T =", *np.round(results[2][0] / LENGTHS[:3], 1))


def figure(path):
    """Plot m50 against T of the head and logistic regression, and closer of the head and L1."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4, "lines.markersize": 12})
    canvas, (far, near) = plt.subplots(1, 2, figsize=(13, 6), layout="constrained")
    labels = (("softmax head", "#0072B2", 70, 13), ("L1 penalty", "#009E73", 27, 35),
              ("logistic regression", "#D55E00", 115, 215))
    for (m50, errors), (name, color, x, y) in zip(experiment(), labels):
        if name != "L1 penalty":
            far.errorbar(LENGTHS[:len(m50)], m50, errors, fmt="o-", color=color)
        if len(m50) == len(LENGTHS):
            fit, error = line(m50, errors)
            near.errorbar(LENGTHS, m50, errors, fmt="o", color=color, capsize=8)
            near.semilogx(LENGTHS, np.polyval(fit, np.log2(LENGTHS)), base=2, color=color)
            near.text(x, y, f"{name}: {fit[0]:.1f} ± {error:.1f}\nmore if T doubles", color=color)
    far.text(x, y, name, color=color)
    far.text(200, 50, "softmax head", color="#0072B2")
    far.set(title="Logistic regression: like T", ylabel="samples needed", ylim=(0, 270))
    near.set(title="Softmax or L1: like log T", ylim=(0, 45), xticks=LENGTHS, xticklabels=LENGTHS)
    canvas.supxlabel("context length T")
    canvas.savefig(path, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", help="also plot into this file")
    picture = parser.parse_args().picture
    try:
        demo()
        if picture:
            figure(picture)
    except (ImportError, OSError, ValueError) as problem:
        parser.error(problem)
