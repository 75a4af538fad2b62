"""Single-location regression: attention learns which of its tokens decides the output.

Companion to "Attention layers provably solve single-location regression" (Marion, Berthier, Biau,
Boyer, 2024, arXiv:2410.01537).  NumPy only.  `python beyond/related/single_location.py` prints the
headline; with the name of a file, such as picture.png, it also plots the picture.

Throughout this file we have:

    n, L, d        batch size, number of tokens, dimension of a token
    X, y, J        tokens, outputs, positions of the tokens that decide  (n, L, d), (n,), (n,) ints
    k*, v*         hidden orthogonal directions; e_1 and e_2 without loss of generality       (d,)
    k, v           key and value vectors of the model, both of length 1                       (d,)
    kappa, nu      k.k*, v.v*: overlaps that should become 1, or both -1
    theta, eta     v.k*, k.v*: overlaps with exchanged roles
    rho            k.v
    M              the manifold theta = eta = rho = 0; descent that starts on M stays on M
    lam            lambda, the scale inside erf
    D, G2          sqrt(d / 2) and gamma^2 = 1/2, mean and variance of the token that decides
    R              the risk E (f - y)^2, minus the variance of the noise in y
    G              a standard Gaussian number

    x_J ~ N(D k*, gamma^2 I), the others ~ N(0, I), y = x_J.v* + noise            (task)
    f = sum_l f_l,  f_l = erf(lam x_l.k) (x_l.v)                                  (model)

The model is one head with a fixed query, and erf of each token takes the place of softmax.
All tokens have E|x|^2 = d, so their norms do not tell which one decides.

Paper (abstract): the layer is asymptotically Bayes optimal, and training finds the structure
although the problem is not convex.
Official code (PierreMarion23/single-location-regression): task, model, R, algorithm, starts,
settings.
Derived here: a shorter form of R, all gradients, the recursion on M, the risks of the predictors.
Our choice: seeds, table, picture.  The paper's full text was not read.
"""

import argparse
import math

import numpy as np

G2 = 0.5
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2                   # Gauss-Legendre on [0, 1]
SETTINGS = {"d": 400, "L": 10, "lam": 0.1}                      # official code
erf = np.vectorize(math.erf, otypes=[float])                    # NumPy has none


def erf_slopes(x):
    """The first three derivatives of erf at x."""
    E1 = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return E1, -2 * x * E1, (4 * x * x - 2) * E1


def sample_task(rng, n, d, L, eps=0.0):
    """Sample X (n, L, d), y (n,) and the uniform positions J (n,).  Official code (there J = 0).

    eps is the standard deviation of the noise in y.
    """
    X = rng.standard_normal((n, L, d))
    J = rng.integers(L, size=n)
    X[np.arange(n), J] *= math.sqrt(G2)
    X[np.arange(n), J, 0] += math.sqrt(d / 2)                   # D k*
    return X, X[np.arange(n), J, 1] + eps * rng.standard_normal(n), J


def forward(k, v, X, lam):
    """The outputs f (n,).  Official code."""
    a = erf(lam * (X @ k))                                      # (n, L)
    return (a * (X @ v)).sum(axis=1)


def erf_mean(t, g):
    """E erf(t + g G) = erf(t / s), s^2 = 1 + 2 g^2, and its first three derivatives in t."""
    s = np.sqrt(1 + 2 * g * g)
    E1, E2, E3 = erf_slopes(t / s)
    return erf(t / s), E1 / s, E2 / s ** 2, E3 / s ** 3


def erf_square_mean(t, g):
    """E erf(t + g G)^2 and its first three derivatives in t.  Derived here.

    With s^2 = 1 + 2 g^2, c = 1 / sqrt(1 + 4 g^2), a = t / s, b = c t / s it is

        1 - (4/pi) int_0^c exp(-a^2 (1 + x^2)) / (1 + x^2) dx               (Owen's T function)

    and its derivative is (2/s) erf(b) E1(a), where E1 is the derivative of erf.
    """
    s, c = np.sqrt(1 + 2 * g * g), 1 / np.sqrt(1 + 4 * g * g)
    a, b = t / s, c * t / s
    x = c * NODES                                               # (20,)
    integrand = np.exp(-np.expand_dims(a * a, -1) * (1 + x * x)) / (1 + x * x)
    B1, B2, _ = erf_slopes(b)
    A1, A2, A3 = erf_slopes(a)
    return (1 - 4 / math.pi * c * (integrand @ WEIGHTS),
            2 / s * erf(b) * A1,
            2 / s ** 2 * (c * B1 * A1 + erf(b) * A2),
            2 / s ** 3 * (c * c * B2 * A1 + 2 * c * B1 * A2 + erf(b) * A3))


def risk_and_slopes(kappa, nu, theta, eta, rho, d, L, lam):
    """The exact risk R and its slopes in the five overlaps, which are numbers or arrays.

    R is the official code's; this form and the slopes are derived here.  Call the token that
    decides token 0, and one of the others token 1.  f_0 and f_1 are independent, so R needs only
    five moments of them.  Each is a mean of erf(t + g G) or of its square.  Stein's lemma,
    E G h(G) = E h'(G), turns the factors x.v and x.v* into derivatives in t = lam D kappa.
    """
    D, g = math.sqrt(d / 2), lam * math.sqrt(G2)
    t, m = lam * D * kappa, D * theta           # lam x_0.k ~ t + g G,  E x_0.v
    c, e = lam * G2 * rho, lam * G2 * eta       # Cov(lam x_0.k, x_0.v), Cov(lam x_0.k, y)
    r = lam * rho                               # Cov(lam x_1.k, x_1.v)
    # token 0: E erf(lam x_0.k), E erf(lam x_0.k)^2, and their derivatives in t
    A, A1, A2, A3 = erf_mean(t, g)
    Z, Z1, Z2, Z3 = erf_square_mean(t, g)
    # token 1, where t = 0 and g = lam: B1 is like A1, W like Z, W2 like Z2
    B1 = 2 / math.sqrt(math.pi * (1 + 2 * lam ** 2))
    W = 2 / math.pi * math.asin(2 * lam ** 2 / (1 + 2 * lam ** 2))
    W2 = 8 / (math.pi * (1 + 2 * lam ** 2) * math.sqrt(1 + 4 * lam ** 2))

    f0 = m * A + c * A1                                                     # E f_0
    f0_t = m * A1 + c * A2                                                  # its slope in t
    f0_y = G2 * nu * A + e * f0_t                                           # E f_0 y
    f0_f0 = (m * m + G2) * Z + 2 * m * c * Z1 + c * c * Z2                  # E f_0^2
    f1 = r * B1                                                             # E f_1
    f1_f1 = W + r * r * W2                                                  # E f_1^2
    R = G2 - 2 * f0_y + f0_f0 + (L - 1) * (2 * f0 * f1 + f1_f1 + (L - 2) * f1 * f1)

    # R, in reverse: its slopes in f0_y, f0_f0, f1_f1 are -2, 1, L - 1; in f0 and f1 they are
    df0 = 2 * (L - 1) * f1
    df1 = 2 * (L - 1) * (f0 + (L - 2) * f1)
    # the moments, in reverse; d/dt turns A into A1, A1 into A2, ...
    dt = (df0 * f0_t - 2 * (G2 * nu * A1 + e * (m * A2 + c * A3))
          + (m * m + G2) * Z1 + 2 * m * c * Z2 + c * c * Z3)
    dm = df0 * A - 2 * e * A1 + 2 * m * Z + 2 * c * Z1
    dc = df0 * A1 - 2 * e * A2 + 2 * m * Z1 + 2 * c * Z2
    dr = G2 * dc + df1 * B1 + 2 * (L - 1) * r * W2
    return R, (lam * D * dt, -2 * G2 * A, D * dm, -2 * lam * G2 * f0_t, lam * dr)


def risk(kappa, nu, theta, eta, rho, d, L, lam):
    """The exact risk R alone."""
    return risk_and_slopes(kappa, nu, theta, eta, rho, d, L, lam)[0]


def overlaps(k, v):
    """kappa, nu, theta, eta, rho (5, ...) of k, v (..., p); k* and v* are the first two axes."""
    return np.stack([k[..., 0], v[..., 1], v[..., 0], k[..., 1], (k * v).sum(axis=-1)])


def risk_grads(k, v, d, L, lam):
    """The gradients dk, dv (..., p) of R: the chain rule through overlaps.  Derived here."""
    k_star, v_star = np.eye(2, k.shape[-1])
    _, slopes = risk_and_slopes(*overlaps(k, v), d, L, lam)
    dkappa, dnu, dtheta, deta, drho = (slope[..., None] for slope in slopes)
    return dkappa * k_star + deta * v_star + drho * v, dnu * v_star + dtheta * k_star + drho * k


def projected_step(w, dw, alpha):
    """One step of projected gradient descent on unit vectors w (..., p).  Official code."""
    w = w - alpha * (dw - (w * dw).sum(axis=-1, keepdims=True) * w)         # along the sphere,
    return w / np.linalg.norm(w, axis=-1, keepdims=True)                    # then back onto it


def pgd(k, v, d, L, lam, alpha, steps):
    """Projected gradient descent on R from k, v (..., p): the overlaps (5, steps + 1, ...)."""
    path = [overlaps(k, v)]
    for _ in range(steps):
        dk, dv = risk_grads(k, v, d, L, lam)
        k, v = projected_step(k, dk, alpha), projected_step(v, dv, alpha)
        path.append(overlaps(k, v))
    return np.stack(path, axis=1)


def to_four(k, v):
    """k, v (..., d) in an orthonormal basis of span{k*, v*, k, v}: (..., 4).  Derived here.

    The gradients of R lie in this span, so pgd with p = 4 goes through the same overlaps.
    """
    vectors = np.stack(np.broadcast_arrays(*np.eye(2, k.shape[-1]), k, v), axis=-2)
    C = np.linalg.cholesky(vectors @ np.swapaxes(vectors, -1, -2))      # (..., 4, 4), C C^T = Gram
    return C[..., 2, :], C[..., 3, :]


def pgd_on_manifold(kappa, nu, d, lam, alpha, steps):
    """pgd from a start on M, as a recursion in kappa and nu: their path (2, steps + 1, ...).

    Derived here.  nu moves to the sign of kappa, and kappa to where erf(b) = nu.  kappa is slow,
    since E1(a) vanishes where erf saturates.  L does not matter: on M the other tokens add a
    constant to R.
    """
    slope = lam * math.sqrt(d / 2) / math.sqrt(1 + 2 * lam ** 2 * G2)
    w = np.array([kappa, nu])                                   # (2, ...)
    path = [w]
    for _ in range(steps):
        kappa, nu = w
        a = slope * kappa
        b = a / math.sqrt(1 + 4 * lam ** 2 * G2)
        E1, _, _ = erf_slopes(a)
        dw = np.array([2 * G2 * slope * E1 * (erf(b) - nu), -2 * G2 * erf(a)])
        # projected_step, written for each overlap
        w = (w - alpha * dw * (1 - w * w)) / np.sqrt(1 + alpha ** 2 * dw ** 2 * (1 - w * w))
        path.append(w)
    return np.stack(path, axis=1)


def start(rng, d, on_M):
    """A random start k, v (d,): on M, or each uniform on the sphere.  Official code."""
    k, v = rng.standard_normal((2, d))
    if on_M:
        k[1] = v[0] = 0                                         # eta = theta = 0
        v[2:] -= (v[2:] @ k[2:]) / (k[2:] @ k[2:]) * k[2:]      # rho = 0
    return k / np.linalg.norm(k), v / np.linalg.norm(v)


def experiment(seeds, on_M, d=400, L=10, lam=0.1, alpha=4e-3, steps=20_000):
    """The overlaps (5, steps + 1, seeds) from the starts of seeds 0, 1, ...  Official settings."""
    starts = [start(np.random.default_rng(seed), d, on_M) for seed in range(seeds)]
    k, v = np.swapaxes(starts, 0, 1)                            # (seeds, d) each
    if not on_M:
        return pgd(*to_four(k, v), d, L, lam, alpha, steps)
    path = np.zeros((5, steps + 1, seeds))
    path[:2] = pgd_on_manifold(k[:, 0], v[:, 1], d, lam, alpha, steps)
    return path


def swapped_point(d, lam):
    """The overlaps kappa, nu, theta, eta, rho of a stationary point with exchanged roles.  Derived.

    At small lam erf is nearly linear, so k and v play nearly the same part in f.  Then v may
    select the token and k copy it.
    """
    _, A1, _, _ = erf_mean(0.0, lam * math.sqrt(G2))
    Z, _, _, _ = erf_square_mean(0.0, lam * math.sqrt(G2))
    theta = min(1.0, lam * G2 * A1 / (math.sqrt(d / 2) * Z))
    return 0.0, 0.0, theta, 1.0, 0.0


def oracles(d, L, lam):
    """R of four predictors, by name.  Derived here."""
    return {"zero predictor": G2,
            "best linear": G2 - G2 ** 2 / (G2 + L - 1),
            "swapped point": risk(*swapped_point(d, lam), d, L, lam),
            "k = k*, v = v*": risk(1.0, 1.0, 0.0, 0.0, 0.0, d, L, lam)}


def demo():
    """Print the risks of four predictors, one of them also on samples, and then training."""
    print("The risk R of four predictors; d = 400 dimensions, L = 10 tokens, lam = 0.1:\n")
    for name, R in oracles(**SETTINGS).items():
        print(f"    {name:15}  {R:.4f}")
    X, y, _ = sample_task(np.random.default_rng(0), 2000, 400, 10)
    squares = (forward(*np.eye(2, 400), X, 0.1) - y) ** 2
    print(f"    on 2000 samples  {squares.mean():.4f} +- {squares.std() / math.sqrt(2000):.4f}")

    print("\nProjected gradient descent on R from 30 random starts, on M (k.v* = v.k* = k.v = 0)")
    print("and anywhere on the sphere. Found: k and v are near k* and v*, up to a common sign")
    print("(kappa nu > 0.8). Swapped: k is near v* or -v* (|eta| > 0.8).\n")
    print("    start    step   median R    max R   least |kappa|   least |nu|   found   swapped")
    for place, on_M, steps in (("on M", True, (0, 1000, 2000, 5000, 20_000)),
                               ("sphere", False, (0, 1000, 2000, 5000))):
        path = experiment(30, on_M, steps=steps[-1])
        for t in steps:
            R, (kappa, nu, _, eta, _) = risk(*path[:, t], **SETTINGS), path[:, t]
            print(f"    {place:6}  {t:5d}   {np.median(R):8.4f}   {R.max():.4f}"
                  f"   {np.abs(kappa).min():13.3f}   {np.abs(nu).min():10.3f}"
                  f"   {(kappa * nu > 0.8).sum():5d}   {(np.abs(eta) > 0.8).sum():7d}")


BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot the risk, its two phases, the landscape on M, and starts on the sphere."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((risks, learnt), (landscape, swaps)) = plt.subplots(2, 2, figsize=(10, 8))
    steps = np.arange(10, 20_001, 10)
    on_M = experiment(6, on_M=True)[:, steps]                               # (5, 2000, 6)
    sphere = experiment(10, on_M=False, steps=5000)                         # (5, 5001, 10)

    risks.semilogx(steps, risk(*on_M, **SETTINGS), color=BLUE)
    R = oracles(**SETTINGS)
    for name, y in ("zero predictor", 0.51), ("best linear", 0.42), ("k = k*, v = v*", 0.06):
        risks.axhline(R[name], color=GREY, linestyle="--")
        risks.text(5, y, f"{name}: {R[name]:.4f}", color=GREY)
    risks.text(2000, 0.28, "on M:\nk.v* = 0,\nv.k* = 0,\nk.v = 0", va="center")
    risks.set(title="Six starts on M: all find k* and v*", xlabel="step", ylabel="risk R",
              xlim=(4, 3e4), ylim=(0, 0.68))

    learnt.semilogx(steps, np.abs(on_M[0]), color=BLUE)
    learnt.semilogx(steps, np.abs(on_M[1]), color=VERMILLION, linestyle="--")
    learnt.text(4000, 0.6, "key,\n|k.k*|", color=BLUE)
    learnt.text(500, 0.7, "value,\n|v.v*|", color=VERMILLION, ha="right")
    learnt.set(title="The value is learnt first, then the key", xlabel="step",
               ylabel="overlap (1 is right)")

    kappa, nu = np.meshgrid(np.linspace(-1, 1, 101), np.linspace(-1, 1, 101))
    contours = landscape.contour(kappa, nu, risk(kappa, nu, 0, 0, 0, **SETTINGS),
                                 np.arange(0.3, 1.9, 0.3), colors=GREY, linewidths=1)
    landscape.clabel(contours)
    landscape.plot(on_M[0], on_M[1], color=BLUE, marker="o", markersize=5, markevery=[0])
    landscape.plot([-1, 1], [-1, 1], "*", color=BLUE, markersize=16)
    landscape.set(title="The six paths, and contours of R", xlabel="k.k*", ylabel="v.v*",
                  xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))

    for kappa, eta in np.abs(sphere[[0, 3]]).transpose(2, 0, 1):
        color, line = (VERMILLION, "--") if eta[-1] > 0.8 else (BLUE, "-")
        swaps.plot(kappa, eta, line, color=color, marker="o", markevery=[-1])
    swaps.text(0.35, 0.42, "k finds k*, v finds v*", color=BLUE)
    swaps.text(0.14, 0.9, "swapped: k finds v*", color=VERMILLION)
    swaps.set(title="Ten starts off M: some end swapped", xlabel="|k.k*|", ylabel="|k.v*|")
    canvas.supxlabel(
        "The key k should find the hidden direction k*, and the value v should find v*.\n"
        "Descent that starts on M stays there. Stars: the minima, (k, v) = ±(k*, v*).")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
