"""What does trained attention retrieve, and what does it mix?  Tokens of the highest priority.

Companion to "Mechanics of Next Token Prediction with Self-Attention" (Li, Huang, Ildiz, Rawat,
Oymak, 2024, arXiv:2403.08081).  NumPy only.

    python beyond/related/next_token.py                     prints the headline
    python beyond/related/next_token.py picture.png         also plots the picture

Throughout this file we have:

    n, T, K      samples, tokens in a sequence, tokens in the vocabulary
    x            sequences; the last token is the query, and also a key               (n, T) ints
    y            labels, the next tokens; each occurs in its sequence                   (n,) ints
    W            the attention matrix: W[i, k] is the logit of token i if k is last        (K, K)
    s            attention, s_t = softmax over t of W[x_t, x_T]                            (n, T)
    P            probability of the label, the sum of s_t over all t with x_t = y          (n, 1)
    L            the loss, the mean of -ln P over the samples
    i beats j    after k: some sequence that ends in k contains j, and its label is i, not j
    graph of k   the arrows i -> j for all i that beat j after k
    component    tokens from each of which arrows lead to all others (strongly connected); it has
                 priority over the other tokens to which its arrows lead
    W_svm        the SVM: the W of least norm for which W[i, k] - W[j, k], for all i that beat j
                 after k, is 0 if i and j share a component, and otherwise at least 1      (K, K)

Why hard and soft?  Each sample pushes the logit of its label above the others.  If i beats j, and
no arrows lead back, nothing stops this: the gap grows for ever, and attention to j vanishes.  Along
a cycle the gaps add up to 0, so not all can grow.  They stop where the pushes balance: if a beats b
three times and b beats a once, at attention 3/4 and 1/4.  These gaps vanish beside |W|, and of the
others the smallest matters most.  For a given |W| it is largest in the direction of W_svm.

Paper (abstract): for the last token, attention selects the component of highest priority in the
context (hard retrieval) and mixes its tokens (soft composition); W has a directional and a finite
part.  Official code (yixiao-huang/next-token-prediction): L, one graph for each last token, W_svm;
random samples, embeddings and starts.  Derived here: gradient, 3/4.  Our choice: samples, start 0,
plain gradient descent, solver, one-hot embeddings (other independent ones would change W_svm, but
not 3/4).  The paper's full text was not read.
"""

import argparse
from functools import cache

import numpy as np

VOCABULARY = "abcdpq"
SAMPLES = ["abp a", "abp a", "abp a", "abp b", "bcp b", "cdp c", "abq b", "bcq c", "cdq d"]
NEW = ["abcdp", "abcdq"]                                # sequences that are not among the SAMPLES
STEPS = 10_000


def tokens(words):
    """The words, all of one length T, as ints (n, T)."""
    return np.array([[VOCABULARY.index(letter) for letter in word] for word in words])


def read(samples):
    """x (n, T) and y (n,) of samples such as "abp b": the sequence abp has the label b."""
    sequences, labels = zip(*(sample.split() for sample in samples))
    return tokens(sequences), tokens(labels)[:, 0]


def attention(W, x):
    """s (n, T).  Official code."""
    s = W[x, x[:, -1:]]
    s = np.exp(s - s.max(axis=1, keepdims=True))
    return s / s.sum(axis=1, keepdims=True)


def gradient(W, x, y):
    """dL/dW (K, K).  Derived here.

    P is (the sum of e^logit over the label) / (the sum over all tokens).  So the slope of -ln P in
    the logit of token t is s_t for all tokens, minus s_t / P for the label.
    """
    s, hit = attention(W, x), x == y[:, None]                           # (n, T)
    P = (s * hit).sum(axis=1, keepdims=True)                            # (n, 1)
    dW = np.zeros(W.shape)
    np.add.at(dW, (x, x[:, -1:]), (s - s * hit / P) / len(x))
    return dW


def train(x, y, eta=4):
    """W (STEPS + 1, K, K) at each step of gradient descent from 0."""
    W = np.zeros((STEPS + 1, len(VOCABULARY), len(VOCABULARY)))
    for t in range(STEPS):
        W[t + 1] = W[t] - eta * gradient(W[t], x, y)
    return W


def graphs(x, y):
    """beats[k, i, j]: after k, i beats j.  cycle[k, i, j]: arrows lead back, too.  Official."""
    beats = np.zeros((len(VOCABULARY),) * 3, dtype=bool)
    beats[x[:, -1:], y[:, None], x] = True                  # also i -> i, whose gap is always 0
    path = beats | np.eye(len(VOCABULARY), dtype=bool)
    for _ in VOCABULARY:
        path = path @ path                                  # paths of up to 2, 4, 8, ... arrows
    return beats, beats & path.transpose(0, 2, 1)


def svm(x, y, sweeps=1000):
    """W_svm (K, K).  Hildreth's method, our choice.

    Arrow by arrow, and over again, each gap is set to its goal, 0 or 1.  m sums up the changes.  It
    is the arrow's multiplier, so it must stay >= 0 where the gap may exceed 1.
    """
    W, (beats, cycle) = np.zeros((len(VOCABULARY),) * 2), graphs(x, y)
    m = np.zeros(beats.shape)
    for k, i, j in np.tile(np.argwhere(beats), (sweeps, 1)):
        goal, least = (0, -np.inf) if cycle[k, i, j] else (1, -m[k, i, j])
        change = max((goal + W[j, k] - W[i, k]) / 2, least)
        m[k, i, j] += change
        W[i, k] += change
        W[j, k] -= change
    return W


@cache     # demo and figure share it
def experiment():
    """W (2, STEPS + 1, K, K) and W_svm (2, K, K): for all SAMPLES, and without "abp b"."""
    data = [read(SAMPLES), read([sample for sample in SAMPLES if sample != "abp b"])]
    return np.array([train(*d) for d in data]), np.array([svm(*d) for d in data])


def demo():
    """Print attention in the NEW sequences, and the cosines of W to both SVMs."""
    print("Samples, each a sequence and its label:", ", ".join(SAMPLES))
    print("After p a and b beat each other, and {a, b} > c > d.  After q d > c > b > a.\n")
    print("Attention in the new sequences abcdp and abcdq, and the cosine of W to W_svm, its own\n"
          "and that of the other run:\n")
    print("    samples           step  p: a     b     c     d  q: a     b     c     d"
          "      own   other")
    W, W_svm = experiment()
    for run, name in enumerate(("all", 'without "abp b"')):
        for t in (100, 1000, STEPS):
            s = attention(W[run, t], tokens(NEW))[:, :4].ravel()
            own, other = (np.vdot(W[run, t], V) / np.linalg.norm(W[run, t]) / np.linalg.norm(V)
                          for V in (W_svm[run], W_svm[1 - run]))
            print(f"    {name:15}{t:7}", *[f"{a:5.3f}" for a in s], f"  {own:.4f}   {other:.4f}")


def figure(path):
    """Plot attention in the NEW sequences at each step."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4})
    canvas, (mixed, hard) = plt.subplots(1, 2, figsize=(13, 6.5), sharey=True, layout="constrained")
    blue, orange, grey = "#0072B2", "#D55E00", "#555555"
    times = np.unique(np.geomspace(1, STEPS, 200).astype(int))
    s, without = [np.array([attention(W[t], tokens(NEW)) for t in times]) for W in experiment()[0]]
    for i, color in enumerate((blue, orange, grey, "black")):
        mixed.semilogx(times, s[:, 0, i], color=color)
        hard.semilogx(times, s[:, 1, i], color=color)
    mixed.semilogx(times, without[:, 0, 0], ":", color=blue)
    for panel, x, y, color, words in (
            (mixed, 50, 0.9, blue, "a, if b never beats a"), (mixed, 1500, 0.67, blue, "a: 3/4"),
            (mixed, 1500, 0.28, orange, "b: 1/4"), (mixed, 1500, 0.03, grey, "c, d: 0"),
            (hard, 1500, 0.92, "black", "d: 1"), (hard, 1500, 0.03, grey, "a, b, c: 0"),
            (hard, 1, 0.92, grey, "d → c:\nd beats c")):
        panel.text(x, y, words, color=color)
    canvas.suptitle("The last token decides: p mixes a and b, q selects d", fontsize=24)
    mixed.set(title="After p: a ⇄ b → c → d", xlabel="step", ylabel="attention in abcdp")
    hard.set(title="After q: d → c → b → a", xlabel="step", ylabel="attention in abcdq")
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
