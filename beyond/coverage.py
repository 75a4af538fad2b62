"""Which encodings W can compare: those in the directions that training has shown.

    python beyond/coverage.py                     prints what is derived
    python beyond/coverage.py picture.png         also trains (a minute), and plots

Symbols are those of fixed.py.  A *set* is the T rows of one E, and 1 is the vector of ones.
Every gradient of W is a sum of multiples of z_j z_query^T, and that of V of r z_j^T, over training.
So from zero gradient descent (not Adam) keeps their encoding parts in the span of encodings met: if
Q projects on it, **the output stays the same if each e_j of a test becomes Q e_j**, on all batches.

On the population loss V = alpha V*, and only B moves, for any law of E, as tokens may be rotated:
by -lr times the mean of E^T D E, with D = dL/dM at M = E B E^T.  A set in a new order at every step
trains as in one order, since D takes the new order, too.  For the laws below symmetry keeps B at
multiples a J, and a follows two_numbers.py with N = tr J, where J is

    I               if coordinates of encodings may be permuted and change sign
    Q               if the span may be rotated, as for new vectors in half of the dimensions
    I - 11^T/m      if each step draws T of m one-hot vectors (m = T: fixed; two sets: two blocks)

**Pairs of directions count, too.**  If two sets are never mixed, B does not compare vectors of one
with those of the other.  Where k selected positions are in a set they have the logit a (1 - k/T):
as a grows, those in the set with fewer take all attention.
"""

from common import main, row     # first: NumPy gets one thread

import numpy as np

import plots
import sts
import two_numbers
from fixed import attention, descend, error_of, slopes, subsets

T, D, Q, LR = 50, 5, 3, 2.0                             # of the first page; d_e = 2T


def sines(rng, n, d_e):
    """Sines and cosines of d_e/2 frequencies, turned: n unit vectors with E^T E = n/d_e I."""
    angles = np.outer(range(n), 2 * np.pi / n * (1 + rng.permutation((n - 1) // 2)[:d_e // 2]))
    turn = np.linalg.qr(rng.standard_normal((d_e, d_e)))[0]
    return np.hstack([np.cos(angles), np.sin(angles)]) @ turn * (2 / d_e) ** 0.5


def demo():
    """Print the errors of six ways to draw orthonormal encodings, and of sets that overlap."""
    print(f"Orthonormal encodings, {T = }, q = {Q}, d_e = {2 * T}, lr = {LR:g}, population loss: "
          "errors at\nstep 2000, and finally.\n\n   2000: T       2T     end: T      2T")
    rng, one, centred = np.random.default_rng(0), np.diag([1, 0]), np.eye(T) - 1 / T
    Y, long = (subsets(rng, 40_000, n, Q) for n in (T, 2 * T))
    for name, J in (("new vectors at every step (stochastic)", np.eye(2 * T)),
                    ("100 fixed vectors, 50 of them a step", np.eye(2 * T) - 1 / (2 * T)),
                    ("2 disjoint fixed sets, one a step", np.kron(np.eye(2), centred)),
                    ("50 vectors, fixed or shuffled", np.kron(one, centred)),
                    ("new vectors in half of the dimensions", np.kron(one, np.eye(T))),
                    ("the same, at T in the other half", np.kron(np.diag([0, 1]), np.eye(T)))):
        end = two_numbers.descend(LR, 2000, J.trace(), T, D, Q)[1:, -1]
        print(*(f"{error_of(attention(a * J[:len(y.T), :len(y.T)], y), alpha, y):9.1%}"
                for a, alpha in (end, (1e5, 1)) for y in (Y, long)), "", name)     # 1e5: the limit
    print("\nOne fixed set, 6000 steps: errors at T on this set, and on a new one of its kind.\n")
    for law, d_e in (sts.rademacher, 40), (sines, 22), (sines, 40):
        E, new = law(rng, T, d_e), law(rng, T, d_e)
        *_, (_, C, alpha) = descend(E, T, D, Q, LR, 6000, rng, pace=8)
        size = np.square(E @ E.T)[~np.eye(T, dtype=bool)].mean() ** 0.5
        print(*(f"{error_of(attention(F @ E.T @ C @ E @ F.T, Y), alpha, Y):6.0%}"
                for F in (E, new)), f"  {law.__name__}, {d_e = }, overlaps {size:.2f}", flush=True)


# Training

def draws(rng, T=T):
    """Ways to draw encodings, as functions of the length: T in training, and 2T in a test."""
    def half(n):                        # each half is turned: with the signs all turns are alike
        turn = np.linalg.qr(rng.standard_normal((T, T)))[0] * rng.choice((-1, 1), T)
        return np.kron(np.eye(2), turn)[:n]

    fixed, I = sts.orthonormal(rng, 2 * T, 2 * T), np.eye(2 * T)
    return {"50 fixed vectors": lambda n: fixed[:n],
            "50 vectors, shuffled at every step": lambda n: I[np.r_[rng.permutation(T), T:n]],
            "new vectors at every step, in 50 dimensions": half,
            "100 fixed vectors, 50 of them a step": lambda n: I[rng.permutation(2 * T)[:n]],
            "new vectors at every step (stochastic)": lambda n: sts.orthonormal(rng, n, 2 * T)}


def errors(rng, draw, steps=2000, T=T):
    """Train with draw(T), on 64 sequences a step: the errors with draw(T) and with draw(2T)."""
    W, V = np.zeros((D + 2 * T, D + 2 * T), "f"), np.zeros((D, D + 2 * T), "f")
    for _ in range(steps):
        X, y = sts.sample_sts(rng, 64, T, D, Q, "f")
        _, dW, dV = sts.loss_and_grads(W, V, X, y, draw(T).astype("f"))
        W, V = W - LR * dW, V - LR * dV
    return [np.mean([sts.loss(W, V, *sts.sample_sts(rng, 64, n, D, Q), draw(n)) for _ in range(50)])
            * 2 * Q / D for n in (T, 2 * T)]


def figure():
    """Train, print the errors, and plot those at 2T."""
    canvas, axis = plots.plt.subplots(figsize=(10, 5.5))
    rngs = [np.random.default_rng(seed) for seed in plots.SEEDS]
    ways, shown = [draws(rng) for rng in rngs], (50, 50, 50, 100, 100)
    for k, name in enumerate(ways[0]):
        short, long = 100 * np.transpose([errors(rng, way[name]) for rng, way in zip(rngs, ways)])
        row(f"{name}: error in % at T", short)
        row(f"{name}: error in % at 2T", long)
        axis.barh(k, long.mean(), color=plots.FIXED if shown[k] < 100 else plots.STOCHASTIC)
        axis.plot(long, [k] * len(long), "k.")
        axis.text(long.max() + 2, k, f"{shown[k]} directions", va="center")
    axis.set_yticks(range(len(shown)), ways[0])
    axis.set(title="error at twice the trained length, in %", xlim=(0, 78), axisbelow=True)
    canvas.suptitle("What counts is which directions training shows, not whether vectors are new")
    plots.caption(canvas, f"Orthonormal, {T = }, 2000 steps; tests use 100 dimensions. Dots: seeds")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
