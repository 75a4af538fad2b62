"""Which token does gradient descent select?  Attention as a hard-margin SVM.

It selects a locally optimal token, and its query turns to the direction of that token's SVM.

Companion to "Max-Margin Token Selection in Attention Mechanism" (Tarzanagh, Li, Zhang, Oymak,
2023, arXiv:2306.13596).  NumPy only.

    python beyond/related/max_margin.py                   prints the headline
    python beyond/related/max_margin.py picture.png       also plots the picture

Throughout this file we have:

    n, T, d      samples, tokens in a sample, dimension
    K            keys, k_it is the key of token t in sample i                  (n, T, d)
    G            scores, G_it says how good it is to select token t            (n, T)
    p            the trained vector, a query or a tunable prompt               (d,)
    s            attention weights, s_i = softmax(K_i p)                       (n, T)
    f            outputs, f_i = sum_t s_it G_it                                (n,)
    L            loss, mean_i l(f_i), l(f) = log(1 + e^-f) (logistic) or -f (linear)
    alpha        the selected tokens, one in each sample                       (n,) ints
    D            differences of keys, D_it = k_i,alpha_i - k_it                (n, T, d)
    p_mm         the SVM of alpha: the shortest p with p.D_it >= 1 for t != alpha_i      (d,)

A token is locally optimal if it scores higher than its neighbours: the tokens t that are support
vectors of its SVM, p_mm.D_it = 1.

Paper (abstract): in the model (X v).softmax(X W p), gradient descent on p, or equivalently on W,
converges in direction to a max-margin solution that separates locally optimal tokens from the
others.  It also treats p and the head v trained together, which we leave out.
Official code (ucr-optml/max_margin_attention): experiments (a) to (c) and normalized steps.
Derived here: the gradient as a sum over pairs, `offset`, everything printed as predicted.
From memory, unverified: the definition of "locally optimal".
Our choice: the seeds.  The paper's full text was not read.
"""

import argparse

import numpy as np

LOG_SLOPE = {"logistic": lambda f: -np.logaddexp(0, f), "linear": lambda f: 0 * f}  # ln(-l'(f))


def hard_margin(A):
    """w (d,) = argmin |w| subject to A w >= 1, and its multipliers a (m,): w = A^T a, a >= 0.

    A is (m, d).  Hildreth's dual coordinate ascent (our choice): row by row, change a_i
    until that constraint holds with equality, or a_i is 0.  Raises ValueError if infeasible.
    """
    w, a, squares = np.zeros(A.shape[1]), np.zeros(len(A)), (A * A).sum(axis=1)
    for _ in range(5000):
        largest = 0.0
        for i in range(len(A)):
            change = max(-a[i], (1 - A[i] @ w) / squares[i])
            a[i] += change
            w += change * A[i]
            largest = max(largest, abs(change))
        if largest < 1e-13 * (1 + a.max()):
            return w, a
    if (A @ w).min() < 1 - 1e-6:
        raise ValueError("infeasible: found no w with A w >= 1")
    return w, a


def token_svm(K, alpha):
    """p_mm (d,) of the tokens alpha (n,), its multipliers a (n, T), 0 at alpha, and D (n, T, d)."""
    n, T, _ = K.shape
    others = np.arange(T) != np.reshape(alpha, (n, 1))               # (n, T)
    D = K[np.arange(n), alpha][:, None] - K                          # (n, T, d)
    a = np.zeros((n, T))
    p, a[others] = hard_margin(D[others])
    return p, a, D


def locally_optimal(K, G, alpha):
    """Whether each token alpha_i scores higher than its neighbours, where p_mm.D_it = 1."""
    p_mm, _, D = token_svm(K, alpha)
    best = G[np.arange(len(G)), alpha][:, None]                      # (n, 1)
    return (best > G)[abs(D @ p_mm - 1) < 1e-6].all()


def descent_direction(p, K, G, kind="logistic"):
    """u (d,) and log_size with -dL/dp = e^log_size u, exact to rounding however large p is.

    The chain rule gives -dL/dp = mean_i |l'(f_i)| sum_t s_it (G_it - f_i) k_it.  Once one s_it is
    1 to rounding, G_it - f_i cancels and the sum is rounding noise.  But it is a covariance of
    score and key under s_i, hence a sum over pairs of tokens, where nothing cancels (derived):

        -dL/dp = 1/2 mean_i |l'(f_i)| sum_{t, r} s_it s_ir (G_it - G_ir) (k_it - k_ir)

    The weights |l'| s s underflow, so we keep their logarithms.
    """
    a = K @ p                                                        # (n, T)
    a = a - a.max(axis=1, keepdims=True)
    log_s = a - np.log(np.exp(a).sum(axis=1, keepdims=True))         # (n, T)
    f = (np.exp(log_s) * G).sum(axis=1)                              # (n,)
    log_w = LOG_SLOPE[kind](f)[:, None, None] + log_s[:, :, None] + log_s[:, None]   # (n, T, T)
    gain = G[:, :, None] - G[:, None]                                # (n, T, T)
    largest = log_w[gain != 0].max(initial=-np.inf)                  # -inf: no gain, u = 0
    w = np.exp(np.minimum(log_w - largest, 0)) * gain                # (n, T, T)
    u = np.einsum("itr,itrd->d", w, K[:, :, None] - K[:, None])
    return u, largest - np.log(2 * len(K))


def unit(u):
    """u / |u|; zero stays zero, so that descent rests at a stationary point."""
    return u / (np.linalg.norm(u) or 1.0)


def cosine(x, y):
    """Cosine of the angle between x (d,) and y (d,)."""
    return unit(x) @ unit(y)


def descend(p, K, G, eta=0.1, steps=1000, kind="logistic", normalized=True):
    """Gradient descent from p (d,): the path (steps + 1, d).  Normalized steps have length eta.

    Training W at fixed p is the same thing: W p moves as p does on the keys X, with a larger eta:
    eta |p| if steps are normalized, else eta |p|^2 (derived here).  Official code.
    """
    path = [p]
    for _ in range(steps):
        u, log_size = descent_direction(p, K, G, kind)
        p = p + eta * (unit(u) if normalized else np.exp(log_size) * u)
        path.append(p)
    return np.array(path)


def offset(K, G, alpha, kind="logistic"):
    """The vector (d,), orthogonal to p_mm, from the ray of p_mm to where p runs.  Derived here.

    Far out, token t of sample i pulls p along D_it with the weight c_it e^(-p.D_it).  There f_i is
    the score of alpha_i, and c_it = |l'(f_i)| (f_i - G_it).  As p_mm = sum a_it D_it, the pulls of
    the support vectors add up to a step along the ray if p.D_it = ln(c_it / a_it) + const.  In
    directions that the support vectors do not span, the start and the other tokens decide; there we
    return 0.
    """
    p, a, D = token_svm(K, alpha)
    f = G[np.arange(len(G)), alpha]                                  # (n,)
    c = (np.exp(LOG_SLOPE[kind](f)) * (f - G.T)).T                   # (n, T)
    support = a > 1e-9                                               # (n, T)
    beside = np.linalg.pinv(D[support]) @ np.log(c[support] / a[support])
    return beside - (beside @ unit(p)) * unit(p)                     # const moves p along the ray


# Experiment (a): one sample of keys A, B, C; B is locally optimal under the scores LOCAL only.
STARTS = 1, 0.5, 0, -0.5, -1, -1.5
THREE_KEYS = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
GLOBAL, LOCAL = np.array([[1, 0.9, 0.9]]), np.array([[1, 0.9, 0]])


def clusters(rng):
    """Experiment (b): K, G; keys around (1, 0), the best token, (-1, 1) and (-0.5, -0.5)."""
    means = np.array([[1, 0]] + 3 * [[-1, 1]] + 3 * [[-0.5, -0.5]])
    return means + 0.2 * rng.standard_normal((3, 7, 2)), np.tile([1.0] + 6 * [0.5], (3, 1))


def two_samples(C):
    """Experiment (c): K, G; tokens 0 and (1, 1) of score C, and tokens 0 and (1, -1) of score 1."""
    return np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]]]), np.array([[0, C], [0, 1]])


def demo():
    """Print each experiment: what is claimed or predicted, and what is measured."""
    print("Normalized gradient descent on p, eta = 0.1, 1000 steps, and hard-margin SVMs.")
    print("\n(a) One sample, tokens A, B, C. Claim: p turns to the SVM of a locally optimal token.")
    print("    From p = (0, y): the token that p selects, and the cosine of p to its SVM.")
    print("    scores A, B, C   optimal" + "".join(f"{f'y = {y}':>11}" for y in STARTS))
    for G in GLOBAL, LOCAL:
        optimal = [name for t, name in enumerate("ABC") if locally_optimal(THREE_KEYS, G, [t])]
        row = f"    {str(G[0]):16} {' and '.join(optimal):7}"
        for y in STARTS:
            p = descend(np.array([0.0, y]), THREE_KEYS, G)[-1]
            t = (THREE_KEYS[0] @ p).argmax()
            row += f"  {'ABC'[t]} {cosine(p, token_svm(THREE_KEYS, [t])[0]):.5f}"
        print(row)
    print("\n(b) Three samples. Predicted: p runs at a fixed distance beside the ray of its SVM,")
    print("    so 1 - cos falls to a quarter when t doubles, in the end. The distance follows from")
    print("    the data if there are two support vectors.")
    print("    seed   1 - cos, t = 1000   t = 2000   ratio   predicted, t = 2000")
    for seed in range(4):
        K, G = clusters(np.random.default_rng(seed))
        p_mm, a, _ = token_svm(K, [0, 0, 0])
        path = descend(np.zeros(2), K, G, steps=2000)
        early, late = 1 - cosine(path[1000], p_mm), 1 - cosine(path[2000], p_mm)
        angle = np.linalg.norm(offset(K, G, [0, 0, 0])) / np.linalg.norm(path[2000])
        known = f"{angle ** 2 / 2:.2e}" if (a > 1e-9).sum() == 2 else "-"
        print(f"    {seed:4} {early:19.2e} {late:10.2e} {early / late:7.3f} {known:>21}")
    print("\n(c) Two samples. Predicted: p turns to (1, 0); its second entry tends to a constant,")
    print("    which the loss and the score C of the first sample decide.")
    print("    loss         C    predicted     measured")
    for kind, C in ("linear", 10), ("logistic", 10), ("logistic", 100):
        K, G = two_samples(C)
        predicted, measured = offset(K, G, [1, 1], kind), descend(np.zeros(2), K, G, kind=kind)[-1]
        print(f"    {kind:8} {C:5} {predicted[1]:12.7f} {measured[1]:12.7f}")


BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot angles of (a), how fast (b) converges, and the paths of (c)."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((left, right), (speed, beside)) = plt.subplots(2, 2, figsize=(10, 8))

    A, B = [token_svm(THREE_KEYS, [token])[0] for token in (0, 1)]
    between = np.degrees(np.arccos(cosine(A, B)))
    for ax, G, title in ((left, GLOBAL, "Only A is locally optimal: all turn to A"),
                         (right, LOCAL, "A and B are: the start decides")):
        for y in STARTS:
            p = descend(np.array([0.0, y]), THREE_KEYS, G)
            color, line = [(BLUE, "-"), (VERMILLION, "-.")][(THREE_KEYS[0] @ p[-1]).argmax()]
            angle = np.degrees(np.arccos([cosine(q, A) for q in p[1:]]))
            ax.semilogx(range(1, 1001), angle, line, color=color)
        for height, name in (0, "SVM of A"), (between, "SVM of B"):
            ax.axhline(height, linestyle="--", color=GREY)
            ax.text(1000, height - 5, name, color=GREY, ha="right", va="top")
        ax.set(title=title, xlabel="step t", ylabel="angle of p to the SVM of A",
               ylim=(-28, 190), yticks=[0, 90, 180], yticklabels=["0°", "90°", "180°"])

    t, later = np.arange(10_001), np.array([1e4, 1e5])
    for seed in range(4):
        K, G = clusters(np.random.default_rng(seed))
        p_mm, a, _ = token_svm(K, [0, 0, 0])
        fixed = descend(np.zeros(2), K, G, 0.1, 10_000)
        plain = descend(np.zeros(2), K, G, 1.0, 10_000, normalized=False)
        speed.loglog(t, [1 - cosine(p, p_mm) for p in fixed], color=BLUE)
        speed.loglog(t, [1 - cosine(p, p_mm) for p in plain], "-.", color=VERMILLION)
        if (a > 1e-9).sum() == 2:
            angle = np.linalg.norm(offset(K, G, [0, 0, 0])) / (0.1 * later)
            speed.loglog(later, angle ** 2 / 2, "--", color=GREY)
    speed.text(90, 1e-6, "steps of\nlength 0.1", color=BLUE)
    speed.text(200, 0.1, "plain gradient descent", color=VERMILLION)
    speed.text(1.4e5, 6e-6, "predicted", color=GREY, ha="right")
    speed.text(8, 4e-9, "p crosses its ray", color=GREY)
    speed.set(title="Fixed steps: 1 - cosine falls as 1/t²", xlabel="step t",
              ylabel="1 - cosine of p to its SVM", xlim=(1, 1.5e5), ylim=(1e-9, 1))

    for kind, color, line, place in (("linear", GREEN, "-.", 1.6), ("logistic", BLUE, "-", -3.75)):
        for C in range(1, 11):
            p = descend(np.zeros(2), *two_samples(C), kind=kind, steps=150)
            beside.plot(*p[p[:, 0] < 12].T, line, color=color, linewidth=1.5)
            _, end = offset(*two_samples(C), [1, 1], kind)
            beside.plot([12, 15], [end, end], "--", color=GREY)
        beside.text(0, place, f"{kind} loss, C = 1 (inner) to 10", color=color)
    beside.set(title="Loss and C set the distance to the ray", xlabel="$p_1$",
               ylabel="$p_2$ (0 is the ray)", ylim=(-4, 2.2))
    canvas.supxlabel(
        "Top: the trained query p from six starts. Bottom left: p on four random data sets.\n"
        "Right: paths of p = ($p_1$, $p_2$). C is the score of one token. Dashes: predicted.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
