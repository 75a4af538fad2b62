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
"""

from common import main, row     # first: NumPy gets one thread

import numpy as np

import plots
import sts
import two_numbers
from fixed import attention, descend, error_of, slopes, subsets

T, D, Q, LR, TIMES = 50, 5, 3, 2.0, (300, 2000, 20_000)     # of the first page; d_e = 2T


def demo():
    """Print the errors of five ways to draw orthonormal encodings, and of fixed random signs."""
    print(f"Orthonormal encodings, {T = }, q = {Q}, d_e = {2 * T}, lr = {LR:g}, population loss: "
          "errors after these steps.\n\n   300: T       2T  2000: T       2T  20000: T      2T")
    rng, one, centred = np.random.default_rng(0), np.diag([1, 0]), np.eye(T) - 1 / T
    Y, long = (subsets(rng, 40_000, n, Q) for n in (T, 2 * T))
    for name, J in (("new vectors at every step (stochastic)", np.eye(2 * T)),
                    ("100 fixed vectors, 50 of them a step", np.eye(2 * T) - 1 / (2 * T)),
                    ("2 disjoint fixed sets, one a step", np.kron(np.eye(2), centred)),
                    ("50 vectors, fixed or shuffled", np.kron(one, centred)),
                    ("new vectors in half of the dimensions", np.kron(one, np.eye(T))),
                    ("the same, at T in the other half", np.kron(np.diag([0, 1]), np.eye(T)))):
        _, a, alpha = two_numbers.descend(LR, TIMES[-1], J.trace(), T, D, Q)
        print(*(f"{error_of(attention(a[t] * J[:len(y.T), :len(y.T)], y), alpha[t], y):8.1%}"
                for t in TIMES for y in (Y, long)), name)
    print("\nOne fixed set of random signs, 6000 steps: errors at T on this set and on a new one;\n"
          "W's PE-PE block is free, or held at multiples of I.\n\n   d_e  free   new  held   new")
    for d_e in 40, 60, 100:
        E = rng.choice([-1, 1], (2 * T, d_e)) / d_e ** 0.5
        *_, (_, C, alpha) = descend(E, T, D, Q, LR, 6000, rng, pace=8)
        b, beta, S = 0.0, 0.0, E[:T] @ E[:T].T
        for y in (subsets(rng, 256, T, Q) for _ in range(6000)):
            _, dM, dalpha = slopes(attention(b * S, y), beta, D, y)
            b, beta = b - LR / d_e * (dM * S).sum(), beta - LR / D * dalpha
        print(f"  {d_e:4}", *(f"{error_of(attention(F @ B @ F.T, Y), x, Y):5.0%}" for B, x in (
            (E[:T].T @ C @ E[:T], alpha), (b * np.eye(d_e), beta)) for F in (E[:T], E[T:])))


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
            "2 disjoint sets, the first in 9 of 10 steps":
            lambda n: I[(rng.random() < 0.1) * (2 * T - n):][:n],
            "2 disjoint fixed sets, one a step": lambda n: I[rng.integers(2) * (2 * T - n):][:n],
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
    canvas, axis = plots.plt.subplots(figsize=(10, 6))
    rngs = [np.random.default_rng(seed) for seed in plots.SEEDS]
    ways, colors = [draws(rng) for rng in rngs], {"50%": plots.FIXED, "100%": plots.STOCHASTIC}
    shown = ["50%"] * 3 + ["100%, unevenly"] + ["100%"] * 3
    for k, name in enumerate(ways[0]):
        short, long = 100 * np.transpose([errors(rng, way[name]) for rng, way in zip(rngs, ways)])
        row(f"{name}: error in % at T", short)
        row(f"{name}: error in % at 2T", long)
        axis.barh(k, long.mean(), color=colors.get(shown[k], "#999999"))
        axis.plot(long, [k] * len(long), "k.")
        axis.text(long.max() + 2, k, shown[k], va="center")
    axis.set_yticks(range(len(shown)), ways[0])
    axis.set(title="error at twice the trained length, in %", xlim=(0, 75), axisbelow=True)
    canvas.suptitle("What counts is which directions training shows, not whether vectors are new")
    plots.caption(canvas, f"Orthonormal encodings, {T = }, q = {Q}; 2000 steps on 64 sequences. "
                  "Dots: seeds. Percentages: how many of the 100 directions training shows.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
