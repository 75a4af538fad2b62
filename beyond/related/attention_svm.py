"""What changes if the attention matrix is trained as a product?  Two different SVMs.

W turns to the SVM of least Frobenius norm.  K Q^T comes near to that of least nuclear norm.

Companion to "Transformers as Support Vector Machines" (Tarzanagh, Li, Thrampoulidis, Oymak, 2023,
arXiv:2308.16898).  NumPy only.

    python beyond/related/attention_svm.py                      prints the headline
    python beyond/related/attention_svm.py picture.png          also plots the picture

Throughout this file we have:

    n, T, d      samples, tokens in a sample, dimension
    R            runs side by side; "..." in a shape is R, or nothing
    X, Z         tokens x_it, and one query z_i for each sample       (..., n, T, d), (..., n, d)
    G            scores, g_it = Y_i v.x_it for labels Y_i = +-1 and a fixed head v  (..., n, T)
    W            the attention matrix; K Q^T if K and Q are trained                 (..., d, d)
    s            attention, s_i = softmax over t of x_it^T W z_i                    (..., n, T)
    f            the score that attention collects, f_i = sum_t s_it g_it           (..., n)
    L            the loss, mean_i log(1 + e^-f_i)                                   (...)
    alpha        the selected tokens, those of largest logit                        (..., n) ints
    A            A_j = (x_i,alpha_i - x_it) z_i^T, one for each i and t != alpha_i  (m, d, d)
    W_F, W_nuc   the SVMs: argmin of |W|_F, and of |W|_nuc (the sum of the singular values),
                 subject to A_j . W >= 1 for all j; A_j . W is the sum of A_j * W   (d, d)

What is the paper's, from its abstract: with vanishing regularization, training K and Q tends in
direction to W_nuc, and training W to W_F, possibly for tokens that are optimal only locally.
From the official code (umich-sota/TF-as-SVM): both SVMs, the random instances, the starts and
normalized descent with eta = 0.1.  Derived here: the gradients, the solver with its certificate,
and all about the two samples, which are our choice.  We did not read the full text.
"""

import argparse

import numpy as np


def logits(X, Z, W):
    """x_it^T W z_i, (..., n, T).  Paper (abstract)."""
    return (X @ (Z @ W.swapaxes(-1, -2))[..., None])[..., 0]


def descent_direction(W, X, Z, G):
    """-dL/dW (..., d, d), up to a positive factor in each run.  Derived here.

    The chain rule is -dL/dW = mean_i |l'(f_i)| sum_t s_it (g_it - f_i) x_it z_i^T.  Once all s_it
    of a sample but one are below 1e-16, g_it - f_i cancels and only rounding noise is left.  The
    same number as a sum over pairs of tokens does not cancel:

        s_it (g_it - f_i) = c_it = sum_r s_it s_ir (g_it - g_ir)

    With logarithms of the weights |l'| s s the direction is exact for W of any norm.
    """
    a = logits(X, Z, W)                                              # (..., n, T)
    a = a - a.max(axis=-1, keepdims=True)
    log_s = a - np.log(np.exp(a).sum(axis=-1, keepdims=True))        # (..., n, T)
    f = (np.exp(log_s) * G).sum(axis=-1)[..., None, None]            # (..., n, 1, 1)
    gain = G[..., :, None] - G[..., None, :]                         # (..., n, T, T)
    log_w = -np.logaddexp(0, f) + log_s[..., :, None] + log_s[..., None, :]
    log_w = np.where(gain == 0, -np.inf, log_w)                      # (..., n, T, T), ln(|l'| s s)
    w = np.exp(log_w - log_w.max(axis=(-3, -2, -1), keepdims=True))
    c = (w * gain).sum(axis=-1)                                      # (..., n, T)
    return (c[..., None, :] @ X)[..., 0, :].swapaxes(-1, -2) @ Z     # (..., d, d)


def descend(weights, X, Z, G, steps, eta=0.1):
    """Normalized gradient descent on [W], or on [K, Q]: W (len(steps), ..., d, d) at these steps.

    Each of the weights (..., d, d) moves by eta in Frobenius norm at each step; steps ascend.
    Source: official code; both gradients are derived here.
    """
    kept = []
    for t in range(steps[-1] + 1):
        W = weights[0] if len(weights) == 1 else weights[0] @ weights[1].swapaxes(-1, -2)
        if t in steps:
            kept.append(W)
        U = descent_direction(W, X, Z, G)
        directions = [U]
        if len(weights) == 2:
            directions = [U @ weights[1], U.swapaxes(-1, -2) @ weights[0]]
        weights = [w + eta * u / np.linalg.norm(u, axis=(-2, -1), keepdims=True)
                   for w, u in zip(weights, directions)]
    return np.array(kept)


def descend_both(rng, R, X, Z, G, steps):
    """descend for [W], then for [K, Q], from R starts with entries uniform on +-1/sqrt(d)."""
    d = X.shape[-1]
    W, K, Q = rng.uniform(-1, 1, (3, R, d, d)) / np.sqrt(d)
    return descend([W], X, Z, G, steps), descend([K, Q], X, Z, G, steps)


def constraints(X, Z, alpha):
    """A (m, d, d) of one instance X (n, T, d), Z (n, d) and its tokens alpha.  Official code."""
    n, T, _ = X.shape
    others = np.arange(T) != np.reshape(alpha, (n, 1))               # (n, T)
    D = X[np.arange(n), alpha][:, None] - X                          # (n, T, d)
    return (D[..., None] * Z[:, None, None])[others]


def margin(A, norm):
    """W_F (norm "fro") or W_nuc ("nuc") of A (m, d, d), and a certificate a (m,) >= 0.

    The dual norm of sum_j a_j A_j is 1; it is Frobenius again, or the largest singular value.  So
    from A_j . W >= 1 follows sum(a) <= (sum_j a_j A_j) . W <= |W|.  For the W that we return both
    ends agree to 1e-8.

    Found by ADMM on: min |U| subject to U = W, z = M w, z >= 1.  Here w and the rows of M are W and
    the A_j as vectors, and V and y are the scaled multipliers of the two equations.  Derived here.
    """
    m, d, _ = A.shape
    M = A.reshape(m, d * d)
    inverse = np.linalg.inv(np.eye(m) + M @ M.T)
    U, V, z, y = np.zeros((d, d)), np.zeros((d, d)), np.ones(m), np.zeros(m)
    for step in range(1, 5001):
        b = (U - V).ravel() + M.T @ (z - y)
        w = b - M.T @ (inverse @ (M @ b))                            # (I + M^T M)^-1 b
        W = w.reshape(d, d)
        if norm == "fro":
            U = (W + V) * (1 - 1 / max(np.linalg.norm(W + V), 1))    # the norm less by 1
        else:
            left, sigma, right = np.linalg.svd(W + V)
            U = left * np.maximum(sigma - 1, 0) @ right              # singular values less by 1
        z = np.maximum(M @ w + y, 1)
        V += W - U
        y += M @ w - z
        if step % 25 == 0:                                           # try to certify U / least
            a, least = np.maximum(-y, 0), (M @ U.ravel()).min()
            a /= np.linalg.norm((a @ M).reshape(d, d), {"fro": "fro", "nuc": 2}[norm]) or 1.0
            if least > 0 and a.sum() >= (1 - 1e-8) * np.linalg.norm(U, norm) / least:
                return U / least, a
    raise ValueError("infeasible: found no certified W with A_j . W >= 1")


def svms(X, Z, W):
    """W_F and W_nuc, (2, R, d, d), of the tokens that W (R, d, d) selects in R instances.  Ours."""
    A = [constraints(*instance) for instance in zip(X, Z, logits(X, Z, W).argmax(axis=-1))]
    return np.array([[margin(A_r, norm)[0] for A_r in A] for norm in ("fro", "nuc")])


def two_samples(phi):
    """X (2, 2, 2), Z, G, W_F and W_nuc (2, 2): the smallest case whose two SVMs differ.  Derived.

    Sample i has two tokens: delta_i with score 1, and 0 with score 0; z_i is the i-th unit vector.
    delta_1 and delta_2 are unit vectors at the angle phi (radians, below pi/2).  Let u be the
    direction of delta_1 + delta_2, and c = cos(phi/2).

        W_F   = [delta_1, delta_2] has the norm sqrt(2)
        W_nuc = u (1, 1) / c       has the norm sqrt(2)/c, certified by a_1 = a_2 = sqrt(1/2)/c

    c is also the cosine between W_F and W_nuc.  (delta_1 - delta_2) (1, -1) separates the tokens,
    too, but is a saddle: K Q^T stays there if K^T u = 0 and Q^T (1, 1) = 0, and else leaves it.
    """
    delta = np.array([[1, 0], [np.cos(phi), np.sin(phi)]])
    u = delta[0] + delta[1]
    X = np.stack([delta, 0 * delta], axis=1)
    G = np.array([[1.0, 0.0], [1.0, 0.0]])
    return X, np.eye(2), G, delta.T, np.outer(u, [1, 1]) / (u @ delta[0])


def random_instances(rng, R, n=6, T=8, d=10):
    """X (R, n, T, d), Z (R, n, d), G (R, n, T): x, z and v uniform on spheres.  Official code."""
    normal = [rng.standard_normal(shape) for shape in ((R, n, T, d), (R, n, d), (R, 1, d))]
    X, Z, v = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in normal]
    return X, Z, rng.choice([-1, 1], (R, n, 1)) * (X @ v[..., None])[..., 0]


def cosine(A, B):
    """Cosine of the angle between matrices A and B (..., d, d)."""
    norms = np.linalg.norm(A, axis=(-2, -1)) * np.linalg.norm(B, axis=(-2, -1))
    return (A * B).sum(axis=(-2, -1)) / norms


def table(steps, trained, targets, average):
    """Print average and least cosine of the trained W, then K Q^T, to their W_F and W_nuc."""
    print("    step    W to W_F          W to W_nuc        K Q^T to W_F      K Q^T to W_nuc")
    for row, t in enumerate(steps):
        cosines = [cosine(M[row], svm) for M, pair in zip(trained, targets) for svm in pair]
        print(f"    {t:5}" + "".join(f"   {average(c):.5f} ({c.min():.3f})" for c in cosines))


def demo(steps=(200, 1000, 4000)):
    """Print both experiments at these steps: what is claimed or predicted, and what is measured."""
    print("Normalized gradient descent, eta = 0.1, on W or on K and Q. Claim: W turns to W_F, the")
    print("SVM of least Frobenius norm, and K Q^T to W_nuc, the SVM of least nuclear norm.")
    phi = np.radians(60)
    X, Z, G, W_F, W_nuc = two_samples(phi)
    W, a = margin(constraints(X, Z, [0, 0]), "nuc")
    print("\n(a) Two samples, tokens delta_i and 0; the delta_i are unit vectors 60 degrees apart.")
    print(f"    |W_nuc|_nuc: predicted {np.sqrt(2) / np.cos(phi / 2):.6f}, solver "
          f"{np.linalg.norm(W, 'nuc'):.6f}, proven to be at least {a.sum():.6f}.")
    print("    Cosines, median of 20 starts (the least). Predicted to the other SVM: "
          f"{np.cos(phi / 2):.5f}.")
    trained = np.array(descend_both(np.random.default_rng(0), 20, X, Z, G, steps))
    table(steps, trained, 2 * [(W_F, W_nuc)], np.median)
    cosines, saddle = cosine(trained[1, -1], W_nuc), np.outer(W_F @ [1, -1], [1, -1])
    print(f"    At the end K Q^T is above 0.998 in {(cosines > 0.998).sum()} of the 20 starts; "
          f"one has {cosine(trained[1, -1, cosines.argmin()], saddle):.3f} to a saddle.")

    rng = np.random.default_rng(0)
    X, Z, G = random_instances(rng, 20)
    steps = *steps, 4 * steps[-1]
    trained = descend_both(rng, 20, X, Z, G, steps)
    targets = [svms(X, Z, M[-1]) for M in trained]
    print("\n(b) Random instances, n = 6, T = 8, d = 10, and the SVMs of the tokens selected at")
    print("    the end. Cosines, mean of 20 instances (the least).")
    table(steps, trained, targets, np.mean)
    falls = [np.divide(*(1 - cosine(M, target[own])).mean(axis=1)[-2:])
             for own, (M, target) in enumerate(zip(trained, targets))]
    print("    In the last {:,} steps 1 - cosine falls to 1/{:.1f} for W, 1/{:.1f} for K Q^T."
          .format(steps[-1] - steps[-2], *falls))
    ranks = np.linalg.matrix_rank(targets[1], tol=1e-9).mean(axis=1)
    print("    Mean rank of the SVMs for K Q^T: W_F {:.2f}, W_nuc {:.2f}.".format(*ranks))


BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot both limits of the two samples, cosines and singular values of random instances."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, axes = plt.subplot_mosaic("pa;ss", figsize=(10, 8), height_ratios=[3, 2])
    plane, angle, spectrum = [axes[name] for name in "pas"]
    names, colors = ("$W$", "$K Q^T$"), (VERMILLION, BLUE)
    limits = "$W_F$", "$W_{nuc}$"

    X, Z, G, W_F, W_nuc = two_samples(np.radians(60))
    for (x, y), name in zip([*W_F.T, W_nuc[:, 0]], ("$W_F$", "$W_F$", "$W_{nuc}$ (twice)")):
        plane.plot([0, 1.3 * x], [0, 1.3 * y], "--", color=GREY)
        plane.text(1.35 * x, 1.35 * y, name, color=GREY, va="center")
    trained = descend_both(np.random.default_rng(0), 20, X, Z, G, [4000])
    for (M,), color, width in zip(trained, colors, (0.012, 0.006)):
        x, y = (M / np.linalg.norm(M, axis=1, keepdims=True)).swapaxes(0, 1).reshape(2, 40)
        plane.quiver(0 * x, 0 * y, x, y, color=color, width=width, angles="xy",
                     scale_units="xy", scale=1, zorder=2)
    plane.text(0.35, -0.25, "$W$", color=VERMILLION)
    plane.text(0.95, 0.25, "$K Q^T$", color=BLUE)
    plane.text(0.65, -0.85, "$K Q^T$, at a saddle", color=BLUE)
    plane.set(title="$W$ has two directions, $K Q^T$ only one", aspect="equal",
              xlabel="first entry of a column", ylabel="second entry",
              xlim=(-0.9, 2.5), ylim=(-1, 1.3))

    rng, steps = np.random.default_rng(0), np.unique(np.geomspace(1, 16000, 50).astype(int))
    X, Z, G = random_instances(rng, 20)
    for own, M in enumerate(descend_both(rng, 20, X, Z, G, steps)):
        found = svms(X, Z, M[-1])
        for limit, line in (own, "-"), (1 - own, "-."):
            angle.loglog(steps, (1 - cosine(M, found[limit])).mean(axis=1), line,
                         marker=[None, "s"][own], markevery=6, color=colors[own],
                         label=f"{names[own]} to {limits[limit]}")
        for W, line, color, name in ((found[own], "--", GREY, None),
                                     (M[-1], "os"[own], colors[own], names[own])):
            sigma = np.linalg.svd(W, compute_uv=False)           # (20, 10)
            spectrum.plot(range(1, 11), (sigma / sigma[:, :1]).mean(axis=0), line,
                          color=color, label=name)
    angle.legend(labelspacing=0.2)
    angle.set(title="Each is nearer to its own SVM", xlabel="step", ylabel="1 - cosine")
    spectrum.text(4.2, 0.5, "$W_F$", color=GREY)
    spectrum.text(1.6, 0.15, "$W_{nuc}$", color=GREY)
    spectrum.legend()
    spectrum.set(title="The nuclear norm has a small rank", xticks=range(1, 11),
                 xlabel="k-th largest singular value", ylabel="ratio to the largest")

    canvas.supxlabel(
        "$W$ is trained, or $K$ and $Q$. Dashes: the SVMs of least Frobenius norm, $W_F$, and\n"
        "nuclear norm, $W_{nuc}$. Top left: their columns, on two samples. Else: random instances.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
