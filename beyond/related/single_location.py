"""Does training solve a problem that is not convex?  Attention finds the token that decides.

It does from nearly all random starts, if the scale of the logits falls during training.

Companion to "Attention layers provably solve single-location regression" (Marion, Berthier, Biau,
Boyer, 2024, arXiv:2410.01537).  NumPy only.

    python beyond/related/single_location.py                    prints the headline
    python beyond/related/single_location.py picture.png        also plots the picture (a minute)

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
    R              the risk E (f - y)^2
    G              a standard Gaussian number

    x_J ~ N(D k*, gamma^2 I), the others ~ N(0, I), y = x_J.v*                    (task)
    f = sum_l f_l,  f_l = erf(lam x_l.k) (x_l.v)                                  (model)

The model is one head with a fixed query, and erf of each token takes the place of softmax.
All tokens have the same E|x|^2 = d.

Paper (abstract): the layer is asymptotically Bayes optimal, and training finds the structure
although the problem is not convex.
Official code (PierreMarion23/single-location-regression): task, model, R, algorithm, the starts
and their lam.  A start on M is made from k* and v*; a start anywhere is not.
Derived here: a shorter form of R, all gradients, the risks of the predictors.
Our choice: seeds, table, picture; no noise in y.  The paper's full text was not read.
"""

import argparse
import math

import numpy as np

G2 = 0.5
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2                   # Gauss-Legendre on [0, 1]
SETTINGS = {"d": 400, "L": 10, "lam": 0.1}                      # official code
PLACES = {"on M": (True, 0.1, 0), "anywhere": (False, 0.1, 0),  # on_M, lam, fall; official code
          "falling": (False, 1, 1e-4)}
FALL_STEPS = 120_000                                            # official code
erf = np.vectorize(math.erf, otypes=[float])                    # NumPy has none


def erf_slopes(x):
    """The first three derivatives of erf at x."""
    E1 = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    return E1, -2 * x * E1, (4 * x * x - 2) * E1


def sample_task(rng, n, d, L):
    """Sample X (n, L, d), y (n,) and the uniform positions J (n,).  Official code (there J = 0)."""
    X = rng.standard_normal((n, L, d))
    J = rng.integers(L, size=n)
    X[np.arange(n), J] *= math.sqrt(G2)
    X[np.arange(n), J, 0] += math.sqrt(d / 2)                   # D k*
    return X, X[np.arange(n), J, 1], J


def forward(k, v, X, lam):
    """The outputs f (n,).  Official code."""
    a = erf(lam * (X @ k))                                      # (n, L)
    return (a * (X @ v)).sum(axis=1)


def erf_moments(t, g):
    """E erf(t + g G) and E erf(t + g G)^2, each with its first three derivatives in t.  Derived.

    With s^2 = 1 + 2 g^2, c = 1 / sqrt(1 + 4 g^2), a = t / s, b = c t / s the first is erf(a), and
    the second is

        1 - (4/pi) int_0^c exp(-a^2 (1 + x^2)) / (1 + x^2) dx               (Owen's T function)

    whose derivative is (2/s) erf(b) E1(a), where E1 is the derivative of erf.
    """
    s, c = np.sqrt(1 + 2 * g * g), 1 / np.sqrt(1 + 4 * g * g)
    a, b = t / s, c * t / s
    x = np.expand_dims(c, -1) * NODES                           # (..., 16)
    integrand = np.exp(-np.expand_dims(a * a, -1) * (1 + x * x)) / (1 + x * x)
    A1, A2, A3 = erf_slopes(a)
    B0, (B1, B2, _) = erf(b), erf_slopes(b)
    return ((erf(a), A1 / s, A2 / s ** 2, A3 / s ** 3),
            (1 - 4 / math.pi * c * (integrand @ WEIGHTS),
             2 / s * B0 * A1,
             2 / s ** 2 * (c * B1 * A1 + B0 * A2),
             2 / s ** 3 * (c * c * B2 * A1 + 2 * c * B1 * A2 + B0 * A3)))


def risk_and_slopes(kappa, nu, theta, eta, rho, d, L, lam):
    """The exact risk R and its slopes in the five overlaps; these and lam are numbers or arrays.

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
    (A, A1, A2, A3), (Z, Z1, Z2, Z3) = erf_moments(t, g)
    # token 1, where t = 0 and g = lam: B1 is like A1, W like Z, W2 like Z2
    B1 = 2 / np.sqrt(math.pi * (1 + 2 * lam ** 2))
    W = 2 / math.pi * np.arcsin(2 * lam ** 2 / (1 + 2 * lam ** 2))
    W2 = 8 / (math.pi * (1 + 2 * lam ** 2) * np.sqrt(1 + 4 * lam ** 2))

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


def pgd(k, v, d, L, lam, fall, alpha, times):
    """Projected gradient descent on R: the overlaps (5, len(times), ...) at these steps, ascending.

    k and v are (..., p); lam and fall (...), or numbers.  Step t has lam / (1 + fall t).  Official
    code.  On M, with a and b in proportion to kappa, the step of nu is erf(a) and that of kappa is
    E1(a) (nu - erf(b)), up to positive factors; as k turns to k*, both E1(a) and nu - erf(b) fall.
    """
    path, wanted = [], set(times)
    for t in range(times[-1] + 1):
        if t in wanted:
            path.append(overlaps(k, v))
        dk, dv = risk_grads(k, v, d, L, lam / (1 + fall * t))
        k, v = projected_step(k, dk, alpha), projected_step(v, dv, alpha)
    return np.stack(path, axis=1)


def to_four(k, v):
    """k, v (..., d) in an orthonormal basis of span{k*, v*, k, v}: (..., 4).  Derived here.

    The gradients of R lie in this span, so pgd with p = 4 goes through the same overlaps.
    """
    vectors = np.stack(np.broadcast_arrays(*np.eye(2, k.shape[-1]), k, v), axis=-2)
    C = np.linalg.cholesky(vectors @ np.swapaxes(vectors, -1, -2))      # (..., 4, 4), C C^T = Gram
    return C[..., 2, :], C[..., 3, :]


def start(rng, d, on_M):
    """A random start k, v (d,): on M, or each uniform on the sphere.  Official code."""
    k, v = rng.standard_normal((2, d))
    if on_M:
        k[1] = v[0] = 0                                         # eta = theta = 0
        v[2:] -= (v[2:] @ k[2:]) / (k[2:] @ k[2:]) * k[2:]      # rho = 0
    return k / np.linalg.norm(k), v / np.linalg.norm(v)


def experiment(names, seeds, times, d=400, L=10, alpha=4e-3):
    """pgd from the starts of seeds 0, 1, ..., for each name in PLACES.  Official settings.

    Returns the overlaps (5, len(times), len(names), seeds).
    """
    starts = [[start(np.random.default_rng(seed), d, PLACES[name][0]) for seed in range(seeds)]
              for name in names]
    k, v = np.moveaxis(starts, 2, 0)                            # (names, seeds, d) each
    lam, fall = (np.array([[PLACES[name][i]] for name in names]) for i in (1, 2))
    return pgd(*to_four(k, v), d, L, lam, fall, alpha, times)


def swapped_point(d, lam):
    """The overlaps kappa, nu, theta, eta, rho of a stationary point with exchanged roles.  Derived.

    v selects the token and k copies it.  At small lam f_l is nearly a multiple of (x_l.k) (x_l.v),
    which stays the same if k and v change places.
    """
    (_, A1, _, _), (Z, _, _, _) = erf_moments(0.0, lam * math.sqrt(G2))
    theta = min(1.0, lam * G2 * A1 / (math.sqrt(d / 2) * Z))
    return 0.0, 0.0, theta, 1.0, 0.0


def at_truth(d, L, lam):
    """R of k = k*, v = v*, at least the (L - 1) E erf(lam G)^2 of the other tokens.  Derived."""
    return risk(1.0, 1.0, 0.0, 0.0, 0.0, d, L, lam)


def oracles(d, L, lam):
    """R of five predictors, by name.  Derived here.

    The last takes x_l.v* of the token with the largest x_l.k*.  A wrong token has a mean squared
    error of 1 + G2.  It is above the right one with probability P(sqrt(1 + G2) G > D), and there
    are L - 1 of them, so we return an upper bound.
    """
    return {"zero predictor": G2,
            "best linear": G2 - G2 ** 2 / (G2 + L - 1),
            "swapped point": risk(*swapped_point(d, lam), d, L, lam),
            "k = k*, v = v*": at_truth(d, L, lam),
            "argmax of x.k*": (1 + G2) * (L - 1) * math.erfc(math.sqrt(d / 4 / (1 + G2))) / 2}


def demo():
    """Print the risks of five predictors, two of them also on samples, and then training."""
    print("The risk R of five predictors; d = 400 dimensions, L = 10 tokens, lam = 0.1:\n")
    for name, R in oracles(**SETTINGS).items():
        print(f"    {name:15}  {R:.4f}")
    X, y, _ = sample_task(np.random.default_rng(0), 2000, 400, 10)
    k_star, v_star = np.eye(2, 400)
    chosen = (X @ k_star).argmax(axis=1)
    for name, f in (("k = k*, v = v*", forward(k_star, v_star, X, 0.1)),
                    ("argmax of x.k*", (X @ v_star)[np.arange(2000), chosen])):
        errors = (f - y) ** 2
        print(f"    {name}, on 2000 samples  {errors.mean():.4f}"
              f" +- {errors.std() / 2000 ** 0.5:.4f}")

    print("\nR of k = k*, v = v* at the best lam:", end="")
    for d in 400, 4000, 40_000:
        print(f"  {at_truth(d, 10, np.geomspace(1e-3, 1, 1000)).min():.4f} (d = {d:,})", end="")

    print("\n\nProjected gradient descent on R from 30 starts: on M (k.v* = v.k* = k.v = 0);")
    print("anywhere; and anywhere, with lam = 1 / (1 + t / 10,000). Found: k and v turn to k*, v*,")
    print("up to a common sign (kappa nu > 0.3). Swapped: k is near v* or -v* (|eta| > 0.8).\n")
    print("    start     step t     lam   median R    max R   R of k*, v*   found   swapped")
    times = 0, 1000, 2000, 5000, 20_000
    path = experiment(PLACES, 30, times)                        # (5, 5, 3, 30)
    for (name, (_, lam, fall)), runs in zip(PLACES.items(), np.moveaxis(path, 2, 0)):
        for t, (kappa, nu, theta, eta, rho) in zip(times, np.moveaxis(runs, 1, 0)):
            now = lam / (1 + fall * t)
            R = risk(kappa, nu, theta, eta, rho, 400, 10, now)
            print(f"    {name:8} {t:8}   {now:.3f}   {np.median(R):8.4f}   {R.max():.4f}"
                  f"   {at_truth(400, 10, now):11.4f}   {(kappa * nu > 0.3).sum():5}"
                  f"   {(abs(eta) > 0.8).sum():7}")


BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#444444"
STYLE = {"font.size": 14, "axes.titlesize": 15, "figure.labelsize": 14, "axes.grid": True,
         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False,
         "lines.linewidth": 2, "figure.constrained_layout.use": True, "savefig.dpi": 110}


def figure(path):
    """Plot the risk and its two phases on M, and starts anywhere with a fixed and a falling lam."""
    import matplotlib.pyplot as plt
    plt.rcParams.update(STYLE)
    canvas, ((risks, learnt), (fixed, falling)) = plt.subplots(2, 2, figsize=(10, 8))
    times = np.unique(np.geomspace(10, 20_000, 400).astype(int)).tolist()
    on_M, anywhere = experiment(["on M", "anywhere"], 30, times).transpose(2, 0, 1, 3)
    on_M = on_M[..., :6]                                                    # (5, times, 6)

    risks.semilogx(times, risk(*on_M, **SETTINGS), color=BLUE)
    R = oracles(**SETTINGS)
    for name, y in (("zero predictor", 0.51), ("best linear", 0.42), ("k = k*, v = v*", 0.125),
                    ("argmax of x.k*", 0.01)):
        risks.axhline(R[name], color=GREY, linestyle="--")
        risks.text(5, y, f"{name}: {R[name]:.4f}", color=GREY)
    risks.text(2000, 0.28, "on M:\nk.v* = 0,\nv.k* = 0,\nk.v = 0", va="center")
    risks.set(title="Six starts on M: all find k* and v*", xlabel="step", ylabel="risk R",
              xlim=(4, 3e4), ylim=(-0.03, 0.68))

    learnt.semilogx(times, abs(on_M[0]), color=BLUE)
    learnt.semilogx(times, abs(on_M[1]), color=VERMILLION, linestyle="--")
    learnt.text(4000, 0.6, "key,\n|k.k*|", color=BLUE)
    learnt.text(500, 0.7, "value,\n|v.v*|", color=VERMILLION, ha="right")
    learnt.set(title="The value is learnt first, then the key", xlabel="step",
               ylabel="overlap (1 is right)")

    times = np.unique(np.geomspace(10, FALL_STEPS, 400).astype(int)).tolist()
    down = experiment(["falling"], 30, times)[:, :, 0]                      # (5, times, 30)
    for axes, runs, words in ((fixed, anywhere, "λ stays at 0.1"),
                              (falling, down, "λ falls from 1")):
        swapped = abs(runs[3, -1]) > 0.8
        for runs_of, color, line in (swapped, VERMILLION, "--"), (~swapped, BLUE, "-"):
            kappa, _, _, eta, _ = abs(runs[..., runs_of])
            axes.plot(kappa, eta, line, color=color, marker="o", markevery=[-1], linewidth=1.5)
        axes.text(0.14, 0.9, f"{swapped.sum()} swapped: k finds v*", color=VERMILLION)
        axes.text(0.3, 0.5, f"{(~swapped).sum()}: k finds k*,\nv finds v*", color=BLUE)
        axes.set(title=f"30 starts anywhere: {words}", xlabel="|k.k*|", ylabel="|k.v*|",
                 xlim=(-0.05, 1.05))
    canvas.supxlabel(
        "The key k should find the hidden direction k*, and the value v should find v*.\n"
        "A start on M needs k* and v*, a start anywhere does not. λ scales the logits.")
    canvas.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="plot into this file")
    paths = parser.parse_args().pictures
    demo()
    for path in paths:
        figure(path)
