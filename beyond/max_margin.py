"""Attention trained by gradient descent selects tokens as a hard-margin SVM would.

Companion to "Max-Margin Token Selection in Attention Mechanism" (Tarzanagh, Li, Zhang, Oymak,
2023, arXiv:2306.13596).  NumPy only.  `python max_margin.py` prints the headline, and
`python max_margin.py max_margin.png` also draws the picture.

Throughout this file we have:

    n, T, d      samples, tokens in a sample, dimension
    K            keys, k_it is token t of sample i; K = X W for tokens X   (n, T, d)
    G            scores, G_it is how good it is to select token t          (n, T)
    p            the trained vector, a query or a tunable prompt           (d,)
    s            attention, s_i = softmax(K_i p)                           (n, T)
    f            what attention collects, f_i = sum_t s_it G_it            (n,)
    L            mean_i l(f_i), l(f) = log(1 + e^-f) (logistic) or -f (linear)
    alpha        the selected tokens, one of each sample                   (n,) ints
    D            selected minus other keys, D_it = k_i,alpha_i - k_it      (n, T, d)
    p_mm         argmin |p| subject to p.D_it >= 1 for all t != alpha_i    (d,)
    X, Y, v      joint training: tokens, labels +-1, head; G_it = Y_i v.x_it   (n, T, d), (n,), (d,)

Paper (abstract): in the model (X v).softmax(X W p), gradient descent on p, or equivalently on W,
converges in direction to a max-margin solution that separates locally optimal tokens from the
others; for p and v together, under conditions, the regularization paths tend to such solutions.
Official code (ucr-optml/max_margin_attention): the experiments (a) to (d).  Derived here: the
gradient as a sum over pairs, `offset`, what is printed as predicted.  From memory, unverified:
what "locally optimal" means.  Our choice: the seeds.  The paper's full text was not read.
"""

import argparse

import numpy as np

LOSSES = {"logistic": (lambda f: np.log(1 + np.exp(-f)), lambda f: -np.logaddexp(0, f)),
          "linear": (lambda f: -f, lambda f: 0 * f)}                 # name: l(f), ln(-l'(f))


def hard_margin(A, b):
    """w (d,) = argmin |w| subject to A w >= b, and its multipliers a (m,): w = A^T a, a >= 0.

    By Hildreth's dual coordinate ascent (our choice): row by row, change a_i until that constraint
    holds with equality, or a_i is 0.  Raises ValueError if A (m, d) and b (m,) do not fit, a row of
    A is zero, or the constraints are infeasible (then a grows for ever).
    """
    if A.ndim != 2 or b.shape != A.shape[:1] or not A.any(axis=1).all():
        raise ValueError(f"need A (m, d) without zero rows and b (m,), got {A.shape=}, {b.shape=}")
    w, a, squares = np.zeros(A.shape[1]), np.zeros(len(A)), (A * A).sum(axis=1)
    for _ in range(5000):
        largest = 0.0
        for i in range(len(A)):
            change = max(-a[i], (b[i] - A[i] @ w) / squares[i])
            a[i] += change
            w += change * A[i]
            largest = max(largest, abs(change))
        if largest < 1e-13 * (1 + a.max()):
            return w, a
    if (A @ w - b).min() < -1e-6:
        raise ValueError(f"infeasible: found no w with A w >= b, {A.shape=}")
    return w, a


def token_svm(K, alpha, margin=1.0):
    """p_mm (d,) of the tokens alpha (n,), its multipliers a (n, T), 0 at alpha, and D (n, T, d).

    margin (n, 1) replaces the 1 in p.D_it >= 1.  Official code.  Raises ValueError as hard_margin.
    """
    n, T, _ = K.shape
    others = np.arange(T) != np.reshape(alpha, (n, 1))               # (n, T)
    D = K[np.arange(n), alpha][:, None] - K                          # (n, T, d)
    a, b = np.zeros((n, T)), margin * np.ones((n, T))
    p, a[others] = hard_margin(D[others], b[others])
    return p, a, D


def locally_optimal(K, G, alpha):
    """Whether each alpha_i outscores its neighbours, p_mm.D_it = 1.  From memory, unverified."""
    p_mm, _, D = token_svm(K, alpha)
    best = G[np.arange(len(G)), alpha][:, None]                      # (n, 1)
    return (best > G)[abs(D @ p_mm - 1) < 1e-6].all()


def loss(p, K, G, kind="logistic"):
    """L, which may be complex, for a check of the gradients.  Source: official code."""
    s = np.exp(K @ p)                                                # (n, T)
    f = (s * G).sum(axis=1) / s.sum(axis=1)                          # (n,)
    return LOSSES[kind][0](f).mean()


def descent_direction(p, K, G, kind="logistic"):
    """u (d,) and log_size with -dL/dp = e^log_size u: exact to rounding, however large p is.

    The chain rule, -dL/dp = mean_i |l'(f_i)| sum_t s_it (G_it - f_i) k_it, is rounding noise once
    all s_i but one are below 1e-16, as G_it - f_i cancels.  But its sum over t is a covariance of
    score and key, so a sum over pairs, where nothing cancels.  Derived here:

        -dL/dp = mean_i |l'(f_i)| sum_{t < r} s_it s_ir (G_it - G_ir) (k_it - k_ir)

    The weights |l'| s s are kept as logarithms.  Raises ValueError if shapes do not fit.
    """
    if (p.shape, G.shape) != (K.shape[2:], K.shape[:2]):
        raise ValueError(f"shapes do not fit: {p.shape=}, {K.shape=}, {G.shape=}")
    t, r = np.triu_indices(K.shape[1], 1)                            # all pairs t < r
    a = K @ p                                                        # (n, T)
    a = a - a.max(axis=1, keepdims=True)
    log_s = a - np.log(np.exp(a).sum(axis=1, keepdims=True))         # (n, T)
    f = (np.exp(log_s) * G).sum(axis=1, keepdims=True)               # (n, 1)
    log_w = LOSSES[kind][1](f) + log_s[:, t] + log_s[:, r]           # (n, pairs)
    gain = G[:, t] - G[:, r]                                         # (n, pairs)
    largest = log_w[gain != 0].max(initial=-np.inf)                  # -inf: no gain, u = 0
    w = np.exp(np.minimum(log_w - largest, 0)) * gain                # (n, pairs)
    return np.tensordot(w, K[:, t] - K[:, r]), largest - np.log(len(K))


def unit(u):
    """u / |u|; zero stays zero, so that descent rests at a stationary point."""
    return u / (np.linalg.norm(u) or 1.0)


def cosine(x, y):
    """Cosine of the angle between x (d,) and y (d,)."""
    return unit(x) @ unit(y)


def descend(p, K, G, eta=0.1, steps=1000, kind="logistic", normalized=True):
    """Gradient descent from p (d,): the path (steps + 1, d).  Normalized: each step is eta long.

    To train W at fixed p is the same: W p moves as p does on the keys X, with eta |p|^2 for eta
    (derived here).  Source: official code.  Raises ValueError if shapes do not fit.
    """
    path = [p]
    for _ in range(steps):
        u, log_size = descent_direction(p, K, G, kind)
        p = p + eta * (unit(u) if normalized else np.exp(log_size) * u)
        path.append(p)
    return np.array(path)


def joint_descend(p, v, X, Y, eta=0.1, steps=1000):
    """Normalized descent on p and v at once, W = I, logistic loss: the last p (d,) and v (d,).

    -dL/dv = mean_i |l'(f_i)| Y_i sum_t s_it x_it, derived here; |l'| is kept as logarithm, too.
    Source: official code.  Raises ValueError if shapes do not fit.
    """
    for _ in range(steps):
        G = Y[:, None] * (X @ v)                                     # (n, T)
        u_p, _ = descent_direction(p, X, G)
        s = np.exp(X @ p - (X @ p).max(axis=1, keepdims=True))       # (n, T)
        s /= s.sum(axis=1, keepdims=True)
        log_w = LOSSES["logistic"][1]((s * G).sum(axis=1))           # (n,)
        w = np.exp(log_w - log_w.max()) * Y                          # (n,)
        u_v = np.tensordot(w[:, None] * s, X)
        p, v = p + eta * unit(u_p), v + eta * unit(u_v)
    return p, v


def joint_svm(X, Y, alpha):
    """p (d,) and v (d,) of the SVMs for joint_descend.  Derived here.

    v separates the labels of the selected tokens.  A sample that is no support vector of v has an
    exponentially smaller |l'|: p needs no margin to select its token, and 1 becomes 0.
    """
    A = Y[:, None] * X[np.arange(len(X)), alpha]                     # (n, d)
    v, _ = hard_margin(A, np.ones(len(A)))
    p, _, _ = token_svm(X, alpha, margin=(A @ v < 1 + 1e-6)[:, None])
    return p, v


def offset(K, G, alpha, kind="logistic"):
    """The vector (d,), orthogonal to p_mm, at which p ends up beside the ray of p_mm.

    Far out, token t of sample i pulls p along D_it with the weight c_it e^(-p.D_it), where f_i is
    the score of alpha_i and c_it = |l'(f_i)| (f_i - G_it).  As p_mm = sum a_it D_it, the pulls of
    the support vectors add up to a step along the ray if p.D_it = ln(c_it / a_it) + const.  In
    directions that they do not span, p0 decides, and 0 is returned.  Derived here.
    """
    p, a, D = token_svm(K, alpha)
    f = G[np.arange(len(G)), alpha][:, None]                         # (n, 1)
    c = np.exp(LOSSES[kind][1](f)) * (f - G)                         # (n, T)
    support = a > 1e-9                                               # (n, T)
    beside = np.linalg.pinv(D[support]) @ np.log(c[support] / a[support])
    return beside - (beside @ unit(p)) * unit(p)                     # const moves p along the ray


# Experiment (a): one sample of keys A, B, C; B is locally optimal under the scores LOCAL only.
STARTS = 1, 0.5, 0, -0.5, -1, -1.5
THREE_KEYS = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
GLOBAL, LOCAL = np.array([[1, 0.9, 0.9]]), np.array([[1, 0.9, 0]])


def clusters(rng):
    """Experiment (b): K, G; keys around (1, 0), the best token, (-1, 1) and (-.5, -.5)."""
    means = np.array([[1, 0]] + 3 * [[-1, 1]] + 3 * [[-0.5, -0.5]])
    return means + 0.2 * rng.standard_normal((3, 7, 2)), np.tile([1.0] + 6 * [0.5], (3, 1))


def labelled(height):
    """Experiment (c): X, Y; tokens 0 and x_i.  x_3 supports the SVM of v at height 1, not 1.5."""
    x = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, height]])
    return np.stack([0 * x, x], axis=1), np.array([1, -1, 1])


def two_samples(C):
    """Experiment (d): K, G; tokens 0 and (1, 1) of score C, and tokens 0 and (1, -1) of score 1."""
    return np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]]]), np.array([[0, C], [0, 1]])


def demo():
    """Print each experiment: what is claimed or predicted, and what is measured."""
    print("Normalized gradient descent, eta = 0.1, 1000 steps, against hard-margin SVMs.")
    print("\n(a) One sample. Claim: p turns to the SVM of a locally optimal token. Which, and cos:")
    print("    scores A, B, C   optimal" + "".join(f"{f'y = {y}':>11}" for y in STARTS))
    for G in GLOBAL, LOCAL:
        optimal = [name for t, name in enumerate("ABC") if locally_optimal(THREE_KEYS, G, [t])]
        row = f"    {str(G[0]):16} {' and '.join(optimal):7}"
        for y in STARTS:
            p = descend(np.array([0.0, y]), THREE_KEYS, G)[-1]
            t = (THREE_KEYS[0] @ p).argmax()
            row += f"  {'ABC'[t]} {cosine(p, token_svm(THREE_KEYS, [t])[0]):.5f}"
        print(row)
    print("\n(b) Three samples. Predicted: p keeps an offset beside p_mm, so 1 - cos falls to a")
    print("    fourth when t doubles. With two support vectors the offset is known.")
    print("    seed   1 - cos, t = 1000   t = 2000   ratio   predicted, t = 2000")
    for seed in range(4):
        K, G = clusters(np.random.default_rng(seed))
        p_mm, a, _ = token_svm(K, [0, 0, 0])
        path = descend(np.zeros(2), K, G, steps=2000)
        early, late = 1 - cosine(path[1000], p_mm), 1 - cosine(path[2000], p_mm)
        angle = np.linalg.norm(offset(K, G, [0, 0, 0])) / np.linalg.norm(path[2000])
        known = f"{angle ** 2 / 2:.2e}" if (a > 1e-9).sum() == 2 else "-"
        print(f"    {seed:4} {early:19.2e} {late:10.2e} {early / late:7.3f} {known:>21}")
    print("\n(c) p and v at once. If x_3 is no support vector of v, p.x_3 >= 1 relaxes to 0.")
    print("    height of x_3   cos of v   cos of p   SVM of p")
    for height in 1.0, 1.5:
        X, Y = labelled(height)
        p_mm, v_mm = joint_svm(X, Y, [1, 1, 1])
        p, v = joint_descend(np.array([0.0, -1.0]), np.array([-1.0, 0.0]), X, Y)
        print(f"    {height:13} {cosine(v, v_mm):10.6f} {cosine(p, p_mm):10.6f}   {p_mm.round(3)}")
    print("\n(d) Two samples. Predicted: the direction is (1, 0); loss and C only set the offset.")
    print("    loss         C    predicted     measured")
    for kind, C in ("linear", 10), ("logistic", 10), ("logistic", 100):
        K, G = two_samples(C)
        predicted, measured = offset(K, G, [1, 1], kind), descend(np.zeros(2), K, G, kind=kind)[-1]
        print(f"    {kind:8} {C:5} {predicted[1]:12.7f} {measured[1]:12.7f}")


BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#444444"
STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}


def figure(path):
    """Draw the paths of (a), how fast (b) converges, and the paths of (d)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    with rc_context(STYLE):
        canvas = Figure(figsize=(12, 8))
        canvas.savefig(path)            # a path that cannot be written is said before the work
        (left, right), (speed, beside) = canvas.subplots(2, 2)

        for ax, G, title in ((left, GLOBAL, "Only A is locally optimal: all paths turn to A"),
                             (right, LOCAL, "A and B are locally optimal: p0 decides")):
            for token, *place in (0, -1, 13.2), (1, 7.3, 0.8):
                ax.plot(*np.outer(token_svm(THREE_KEYS, [token])[0], [0, 14]), "--", color=GREY)
                ax.text(*place, f"SVM of {'AB'[token]}", color=GREY)
            for y in STARTS:
                p = descend(np.array([0.0, y]), THREE_KEYS, G, steps=130)
                color, line = (BLUE, "o-") if p[-1, 1] > 5 else (VERMILLION, "o-.")
                ax.plot(*p.T, line, color=color, markersize=5, markevery=len(p))
            ax.set(title=title, xlabel="$p_1$", ylabel="$p_2$", xlim=(-5, 11.5), ylim=(-2, 15))

        t, later = np.arange(10_001), np.array([1e4, 1e5])
        for seed in range(4):
            K, G = clusters(np.random.default_rng(seed))
            p_mm, a, _ = token_svm(K, [0, 0, 0])
            for normalized, eta, color in (True, 0.1, BLUE), (False, 1.0, VERMILLION):
                p = descend(np.zeros(2), K, G, eta, t[-1], normalized=normalized)
                speed.loglog(t, np.linalg.norm(p, axis=1), color=color)
                speed.loglog(t, [1 - cosine(q, p_mm) for q in p], "-.", color=color, linewidth=1.5)
            if (a > 1e-9).sum() == 2:
                angle = np.linalg.norm(offset(K, G, [0, 0, 0])) / (0.1 * later)
                speed.loglog(later, angle ** 2 / 2, "--", color=GREY)
        speed.loglog(later, 0.1 * later, "--", color=GREY)
        speed.text(8, 200, "|p|, normalized", color=BLUE)
        speed.text(700, 0.5, "|p|, plain", color=VERMILLION)
        speed.text(3000, 2e-4, "1 - cos, normalized", color=BLUE)
        speed.text(1.3e4, 2e-2, "1 - cos, plain", color=VERMILLION)
        speed.set(title="1 - cos falls as 1/t² if steps are normalized", xlabel="step t",
                  xlim=(1, 5e5), ylim=(1e-9, 1e5))

        for kind, color, place in ("linear", GREEN, 1.6), ("logistic", BLUE, -3.75):
            for C in range(1, 11):
                p = descend(np.zeros(2), *two_samples(C), kind=kind, steps=150)
                beside.plot(*p[p[:, 0] < 12].T, color=color, linewidth=1.5)
                _, end = offset(*two_samples(C), [1, 1], kind)
                beside.plot([12, 15], [end, end], "--", color=GREY)
            beside.text(1, place, f"{kind} loss, C = 1 (the innermost) to 10", color=color)
        beside.set(title="The loss decides the offset beside the ray", xlabel="$p_1$",
                   ylabel="$p_2$", ylim=(-4, 2.2))
        canvas.supxlabel("Above: (a), p0 = (0, y), the dots. Below: (b), seeds 0 to 3, and (d), "
                         "p0 = 0; dashes: as derived.\nNormalized descent, eta = 0.1 "
                         "(plain: eta = 1); logistic loss unless said.", fontsize=11)
        canvas.savefig(path)


def main():
    """Print the headline; with the name of a file, also draw the picture into it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?",
                        help="also draw the picture into this file (.png, .pdf, .svg)")
    path = parser.parse_args().picture
    if path is not None:
        try:
            figure(path)
        except (OSError, ValueError) as problem:
            parser.error(f"argument picture: {path!r} cannot be written: {problem}")
    demo()


if __name__ == "__main__":
    main()
