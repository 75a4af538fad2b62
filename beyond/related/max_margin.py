"""Which token does a growing query select?  One that scores higher than its closest rivals.

The query turns to the SVM of that token.  If several such tokens exist, the start decides.

Companion to "Max-Margin Token Selection in Attention Mechanism" (Tarzanagh, Li, Zhang, Oymak,
2023, arXiv:2306.13596).  NumPy only.

    python beyond/related/max_margin.py                     prints the headline
    python beyond/related/max_margin.py picture.png         also plots the picture

Throughout this file we have:

    T, d    tokens in the one sample, dimension; "..." in a shape: runs side by side
    K, G    keys k_t (X W of the paper) and scores g_t of the tokens        (..., T, d), (..., T)
    p       the query, which is trained                                                  (..., d)
    s       attention, s = softmax(K p); the selected token is that of largest s         (..., T)
    f       the score that attention collects, f = sum_t s_t g_t                            (...)
    L       the loss, log(1 + e^-f)                                                         (...)
    D       k_selected - k_t for all other t; D_t.p is how far p puts token t behind   (T - 1, d)
    SVM     of a token: the shortest p with D p >= 1 if that token is the selected one       (d,)

The support vectors of an SVM p are the tokens with D_t.p = 1.  A token is locally optimal if it
scores higher than the support vectors of its SVM.  B is locally optimal although A scores higher,
because its only support vector is C, which scores lower.  If C scores as high as B, only A is left.

Why the SVM?  Far out s_t is about e^(-D_t.p), so only the nearest tokens count, those least far
behind.  As long as they score lower, each step moves p along their D_t, which puts them farther
behind.  So p turns to the direction in which the nearest are as far behind as possible: the SVM,
whose nearest are its support vectors.  If one of them scores higher, p moves against its D_t, and
leaves this token.  If it scores the same, it does not pull, and tokens farther behind decide.  But
p need not go far out: f may have a maximum at finite p, and then p steps to and fro beside it.

Paper (abstract): gradient descent on p, or on W (logits X W p), converges in direction to a
max-margin solution that separates locally optimal tokens from the others.
Official code (ucr-optml/max_margin_attention): tokens A, B, C, starts, L, steps of length 0.1.  It
uses float32 and adds 1e-9 to |dL/dp|, which here slows p down from |p| = 20 or so; we do neither.
Derived here: the gradient as a sum over pairs.  Our choice: random samples, SVM solver.  From
memory, unverified: the definition of locally optimal.  The paper's full text was not read.
"""

import argparse
from itertools import combinations

import numpy as np

KEYS = np.array([[-0.1, 1], [1, 0], [0, 0]])                    # tokens A, B, C
SCORES = np.array([[1, 0.9, 0], [1, 0.9, 0.9]])                 # C scores below B, or as B
STARTS = np.array([[0, y] for y in (1, 0.5, 0, -0.5, -1, -1.5)])


def logits(p, K):
    """K p (..., T)."""
    return (K @ p[..., None])[..., 0]


def unit(u):
    """u (..., d), scaled to length 1; zero stays zero."""
    return u / np.maximum(np.linalg.norm(u, axis=-1, keepdims=True), 1e-300)


def direction(p, K, G):
    """The direction (..., d) of -dL/dp.  Derived here.

    As L falls with f, it is that of df/dp = sum_t s_t (g_t - f) k_t.  If s_t is nearly 1, g_t - f
    drowns in rounding.  But it is sum_r s_r (g_t - g_r), so all we need are the s_t s_r, up to a
    common factor: w, in which the largest that counts is 1.  If all gains are 0, all log_w are
    -inf; then `initial` makes w = 0, and not inf - inf.
    """
    a, gain = logits(p, K), G[..., :, None] - G[..., None, :]       # gain (..., T, T)
    log_w = np.where(gain == 0, -np.inf, a[..., :, None] + a[..., None, :])
    w = np.exp(log_w - log_w.max(axis=(-2, -1), keepdims=True, initial=-1e300))
    return unit(((w * gain).sum(axis=-1)[..., None, :] @ K)[..., 0, :])


def descend(p, K, G, steps=1000, eta=0.1):
    """The path of p (steps + 1, ..., d) by normalized gradient descent: each step is eta long."""
    path = [p]
    for _ in range(steps):
        p = p + eta * direction(p, K, G)
        path.append(p)
    return np.array(path)


def svm(K, t):
    """The SVM (d,) of token t with keys K (T, d), or None if no p has D p >= 1."""
    D, found = K[t] - np.delete(K, t, axis=0), []
    for size in range(1, K.shape[1] + 1):           # at most d support vectors fix it: we try all
        for rows in combinations(D, size):
            p = np.linalg.pinv(np.array(rows)) @ np.ones(size)
            if (D @ p > 1 - 1e-9).all():
                found.append(p)
    return min(found, key=np.linalg.norm, default=None)


def locally_optimal(K, G):
    """Which tokens with keys K (T, d) and scores G (T,) are locally optimal: (T,) bools."""
    svms = enumerate(svm(K, t) for t in range(len(K)))
    return np.array([p is not None and (G[t] > G[abs((K[t] - K) @ p - 1) < 1e-6]).all()
                     for t, p in svms])


def angle(p, q):
    """The angle (...) between p (..., d) and q (d,) in degrees."""
    return np.degrees(np.arccos(np.clip(unit(p) @ unit(q), -1, 1)))


def random_samples(seed=0, R=60, steps=5000):
    """R samples, 4 starts each: K (R, 6, 2), G (R, 6), p halfway and at the end (2, R, 4, 2)."""
    normal = np.random.default_rng(seed).standard_normal
    K, G = normal((R, 6, 2)), normal((R, 6))
    starts = np.tile([[10, 0], [0, 10], [-10, 0], [0, -10]], (R, 1, 1))
    return K, G, descend(starts, K[:, None], G[:, None], steps)[[steps // 2, -1]]


def demo(seed=0):
    """Print which tokens are selected, and the angles to their SVMs."""
    print("After 1000 steps from p = (0, y): the selected token, and degrees from p to its SVM.\n")
    print("    scores A, B, C   locally optimal", *(f"{f'y = {y}':>9}" for _, y in STARTS))
    for G in SCORES:
        names = " and ".join(np.array(list("ABC"))[locally_optimal(KEYS, G)])
        ends = [(logits(p, KEYS).argmax(), p) for p in descend(STARTS, KEYS, G)[-1]]
        print(f"    {str(G):16} {names:15}"
              + "".join(f"    {'ABC'[t]} {angle(p, svm(KEYS, t)):.2f}" for t, p in ends))

    K, G, (half, end) = random_samples(seed)
    length, moved = np.linalg.norm(end, axis=-1), np.linalg.norm(end - half, axis=-1)   # (R, 4)
    grows = length - np.linalg.norm(half, axis=-1) > 1              # 2500 steps of 0.1: at most 250
    selected = logits(end, K[:, None]).argmax(axis=-1)              # (R, 4)
    optimal = np.array([locally_optimal(*sample) for sample in zip(K, G)])
    hits = grows & np.take_along_axis(optimal, selected, axis=1)
    best = grows & (selected == G.argmax(axis=1)[:, None])
    angles = [angle(end[r, i], svm(K[r], selected[r, i])) for r, i in np.argwhere(hits)]
    print(f"\n{len(K)} random samples of 6 tokens, 4 starts each, 5000 steps. In the last 2500 |p| "
          f"grows\nby more than 1 in {grows.sum()} of {grows.size} runs ({grows.mean():.0%}). In "
          f"these\n    p selects a locally optimal token in {hits.sum()}, that of highest score in "
          f"{best.sum()} ({best.sum() / grows.sum():.0%}).\n    The angle to its SVM has the "
          f"median {np.median(angles):.2f} and the maximum {max(angles):.2f} degrees.\nIn the "
          f"others p steps to and fro, at a median |p| of {np.median(length[~grows]):.1f}: the "
          f"last 2500\nsteps have moved it by {moved[~grows].max():.3f} at most.")


def figure(path):
    """Plot the angle between p and the SVM of A, from each start."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 4})
    canvas, panels = plt.subplots(1, 2, figsize=(13, 6), sharey=True, layout="constrained")
    A, B = svm(KEYS, 0), svm(KEYS, 1)
    for panel, G in zip(panels, SCORES):
        for run in descend(STARTS, KEYS, G)[1:].swapaxes(0, 1):
            color = ("#0072B2", "#D55E00")[logits(run[-1], KEYS).argmax()]
            panel.semilogx(range(1, 1001), angle(run, A), color=color)
        for name, height in ("A", 0), ("B", angle(B, A)):
            panel.axhline(height, linestyle="--", color="#444444", linewidth=3)
            panel.text(1, height - 17, f"SVM of {name}", color="#444444")
        panel.text(130, 30, "ends at A", color="#0072B2")
        panel.set(xlabel="step (scores: A {:g}, B {:g}, C {:g})".format(*G))
    panels[0].text(130, 115, "ends at B", color="#D55E00")
    panels[0].set(title="A and B locally optimal:\nthe start decides", ylim=(-25, 185),
                  ylabel="degrees from the SVM of A", yticks=range(0, 181, 45))
    panels[1].set(title="Only A locally optimal:\nall starts turn to A")
    canvas.suptitle("The query p turns to the SVM of a locally optimal token", fontsize=24)
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
