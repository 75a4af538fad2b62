"""Does training find the one token that decides?  Mostly yes, if the scale of the logits falls.

Companion to "Attention layers provably solve single-location regression" (Marion, Berthier, Biau,
Boyer, 2024, arXiv:2410.01537).  NumPy only.

    python beyond/related/single_location.py                    prints the headline
    python beyond/related/single_location.py picture.png        also plots the picture

Throughout this file we have:

    x_l, y           L tokens of dimension d, output; x_0 decides, but the model does not know it
    k*, v*           hidden orthogonal directions, e_1 and e_2 without loss of generality     (d,)
    k, v             key and value of the model, both of length 1                             (d,)
    kappa, nu        k.k*, v.v*: overlaps that should become 1, or both -1                   (...)
    theta, eta, rho  v.k*, k.v*, k.v: overlaps that should become 0                          (...)
    lam              lambda, the scale of the logits; "..." are runs side by side            (...)
    R                the risk E (f - y)^2                                                    (...)

    x_0 ~ N(sqrt(d/2) k*, I/2), the others ~ N(0, I), y = x_0.v*                (task)
    f = sum_l erf(lam x_l.k) (x_l.v); erf takes the place of softmax            (model)

Why should lam fall?  At small lam f is nearly a multiple of sum_l (x_l.k) (x_l.v), in which k and v
can change places: k finds k*, or v* (swapped).  At large lam erf is nearly a sign, which tells them
apart.  But it is flat once sqrt(d/2) lam |kappa| is 3 or so: then k hardly moves.

Paper (abstract): training finds the hidden structure although the problem is not convex.
Official code (PierreMarion23/single-location-regression): task, model, descent, sizes, starts, and
three such schedules; its lam falls as 1 / (1 + 1e-4 t).  Our choice: lam falls 2.5 times as fast.
Derived here: R as sums over x.k, and its slopes.  The paper's full text was not read.
"""

import argparse
import math
from functools import cache

import numpy as np

L, D, STEPS = 10, 400, 36_000
SCHEDULES = {"falls from 1 to 0.1": (1, 2.5e-4, 4e-3), "stays at 0.9": (0.9, 0, 1e-3),
             "stays at 0.1": (0.1, 0, 4e-3)}    # (first, fall, lr): lam is first / (1 + fall * t)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)         # WEIGHTS @ h(NODES) is E h(N(0, 1))
NODES, WEIGHTS = NODES[:, None], WEIGHTS / WEIGHTS.sum()
TABLE = np.linspace(-6, 6, 40_001)
ERF = np.array([math.erf(x) for x in TABLE])


def erf(x):
    """erf (...,) of x (...,), to 1e-8.  NumPy has none."""
    return np.interp(x, TABLE, ERF)


def sample(rng, n):
    """The first 4 coordinates of tokens X (n, L, 4), and outputs y (n,).  Official code."""
    X = rng.standard_normal((n, L, 4))
    X[:, 0] *= math.sqrt(0.5)
    X[:, 0, 0] += math.sqrt(D / 2)
    return X, X[:, 0, 1]


def forward(k, v, X, lam):
    """Outputs f (n,) of the model k, v (4,).  Official code."""
    return (erf(lam * (X @ k)) * (X @ v)).sum(axis=1)


def risk(kappa, nu, theta, eta, rho, lam):
    """R and its slopes in the five overlaps, each (...,).  Derived here.

    The tokens are Gaussian: given x.k, the means of x.v and y are linear in it.  So sums over x.k
    are left, at the NODES.  Tokens that do not decide enter by their moments A, B, C.
    """
    N, m, g = NODES, math.sqrt(D / 2), math.sqrt(0.5)
    a = lam * (m * kappa + g * N)                                       # lam x_0.k, (20, ...)
    e, b, c = erf(a), m * theta + g * rho * N, g * eta * N              # erf; means of x_0.v and y
    bb, bc = b * b + (1 - rho ** 2) / 2, b * c + (nu - rho * eta) / 2   # of (x_0.v)^2 and x_0.v y
    other = erf(lam * N)
    A, B, C = WEIGHTS @ (other * N), WEIGHTS @ other ** 2, WEIGHTS @ (other * N) ** 2
    f_0, f_1, f_11 = WEIGHTS @ (e * b), rho * A, B + rho ** 2 * (C - B)     # E f_0, E f_1, E f_1^2
    rest = (L - 1) * f_1                                                # mean of all other tokens
    R = (0.5 + WEIGHTS @ (e * e * bb - 2 * e * bc) + 2 * rest * f_0
         + (L - 1) * (f_11 + (L - 2) * f_1 ** 2))
    de, db = 2 * (e * bb - bc + rest * b), 2 * e * (e * b - c + rest)   # at each node
    dkappa = WEIGHTS @ (de * 2 / math.sqrt(math.pi) * np.exp(-a * a)) * lam * m
    dnu, dtheta, deta = -WEIGHTS @ e, m * (WEIGHTS @ db), WEIGHTS @ (e * (rho - 2 * g * b * N))
    drho = (WEIGHTS @ (db * g * N + e * (eta - e * rho))
            + 2 * (L - 1) * (A * (f_0 + (L - 2) * f_1) + rho * (C - B)))
    return R, (dkappa, dnu, dtheta, deta, drho)


def overlaps(k, v):
    """kappa, nu, theta, eta, rho (5, ...) of k, v (..., 4)."""
    return np.stack([k[..., 0], v[..., 1], v[..., 0], k[..., 1], (k * v).sum(axis=-1)])


def gradients(k, v, lam):
    """dR/dk and dR/dv (..., 4): the chain rule through the overlaps.  Derived here."""
    k_star, v_star = np.eye(2, 4)
    dkappa, dnu, dtheta, deta, drho = (slope[..., None] for slope in risk(*overlaps(k, v), lam)[1])
    return dkappa * k_star + deta * v_star + drho * v, dnu * v_star + dtheta * k_star + drho * k


def unit(w):
    """w (..., 4), scaled to length 1."""
    return w / np.linalg.norm(w, axis=-1, keepdims=True)


def start(rng, runs):
    """k, v (runs, 4): uniform on the D-sphere, in a basis of span{k*, v*, k, v}.  Official code."""
    k, v = rng.standard_normal((2, runs, 4))
    k[:, 2], k[:, 3] = np.sqrt(rng.chisquare(D - 2, runs)), 0           # lengths of all the rest
    v[:, 3] = np.sqrt(rng.chisquare(D - 3, runs))
    return unit(k), unit(v)


@cache     # demo and figure share it
def experiment(runs=30, seed=0):
    """Overlaps at each 100th step of projected gradient descent on R (times, 5, 3, runs), and the
    last k, v (3, runs, 4).  The SCHEDULES have the same starts.  Official code."""
    first, fall, lr = np.repeat(list(SCHEDULES.values()), runs, axis=0).T
    k, v = np.tile(start(np.random.default_rng(seed), runs), (1, len(SCHEDULES), 1))
    path = []
    for t in range(STEPS + 1):
        if t % 100 == 0:
            path.append(overlaps(k, v).reshape(5, -1, runs))
        dk, dv = gradients(k, v, first / (1 + fall * t))
        k = unit(k - lr[:, None] * (dk - (k * dk).sum(axis=-1, keepdims=True) * k))
        v = unit(v - lr[:, None] * (dv - (v * dv).sum(axis=-1, keepdims=True) * v))
    return np.array(path), k.reshape(-1, runs, 4), v.reshape(-1, runs, 4)


def demo():
    """Print what k has found with each schedule, and R, once also on samples."""
    print(f"30 random starts, {STEPS:,} steps. k finds k* if |k.k*| > 0.5, v* if |k.v*| > 0.5.\n")
    path, k, v = experiment()
    print("    lambda                 k*    v*   median |k.k*|   largest")
    for i, name in enumerate(SCHEDULES):
        kappa, _, _, eta, _ = abs(path[-1, :, i])                       # (runs,) each
        print(f"    {name:20}{(kappa > 0.5).sum():5}{(eta > 0.5).sum():6}"
              f"{np.median(kappa):16.3f}{kappa.max():10.3f}")
    print("\nBoth ends of the last row are good. R (f = 0 has 0.5), and on 100,000 samples:\n")
    X, y = sample(np.random.default_rng(1), 100_000)
    for name, r in (("k*", kappa.argmax()), ("v*", eta.argmax())):
        errors = (forward(k[2, r], v[2, r], X, 0.1) - y) ** 2
        print(f"    k finds {name}   {risk(*path[-1, :, 2], 0.1)[0][r]:.4f}   "
              f"{errors.mean():.4f} +- {errors.std() / 1e5 ** 0.5:.4f}")


def figure(path):
    """Plot how |k.k*| moves if lam falls, and if it stays."""
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 20, "lines.linewidth": 3})
    canvas, panels = plt.subplots(1, 2, figsize=(13, 6), sharey=True, layout="constrained")
    kappa = abs(experiment()[0][:, 0])                               # (times, 3, runs)
    for i, panel in enumerate(panels[[0, 1, 1]]):
        found, thousands = kappa[-1, i] > 0.5, np.arange(len(kappa)) / 10
        panel.plot(thousands, kappa[:, i, found], color="#0072B2")
        panel.plot(thousands, kappa[:, i, ~found], color="#888888" if i == 1 else "#D55E00")
        if i != 1:
            panel.text(18, 0.45, f"{found.sum()}: k finds k*", color="#0072B2")
            panel.text(18, 0.05, f"{(~found).sum()}: k finds v*", color="#D55E00")
    panels[1].text(12, 0.32, "λ stays at 0.9: none", color="#555555")
    panels[0].set(title="λ falls from 1 to 0.1", xlabel="thousands of steps", ylabel="|k.k*|")
    panels[1].set(title="λ stays at 0.1", xlabel="thousands of steps", ylim=(-0.03, 1.03))
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
