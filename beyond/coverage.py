"""Which encodings W can compare: those in directions that training has shown, and shown alike.

    python beyond/coverage.py                     prints what is derived
    python beyond/coverage.py picture.png         also trains (minutes), and plots

README.md says why; symbols are those of fixed.py.  Only alpha and B move on the population loss,
for any law of E: B by -lr times the mean of E^T G E, with G = dL/dM at M = E B E^T.  A set in a new
order at every step trains as in one order, since G is reordered with it.  The laws of WAYS stay the
same if coordinates are permuted and change sign (J = I), or are permuted, or if the span is
rotated.  So B stays a multiple a J (softmax ignores 11^T), and a follows two_numbers.py with N = tr
J.
"""

from common import main, row     # first: NumPy gets one thread

import numpy as np

import plots
import sts
import two_numbers
import width
from fixed import attention, descend, error_of, new_over_trained, subsets

T, D, Q, LR = 50, 5, 3, 2.0             # orthonormal encodings, as on the first page; d_e = 2T
SHORT, D_E, STEPS = 64, 48, (2000, 8000, 32_000)        # sets of signs
I, HALF = np.eye(2 * T), np.diag([1, 0])
WAYS = {            # J, and a draw of n encodings: T in training, 2T in a test
    "new vectors at every step (stochastic)": (I, lambda rng, n: sts.orthonormal(rng, n, 2 * T)),
    "2 disjoint sets with new signs, one a step":
        (I, lambda rng, n: I[rng.integers(2 * T // n) * n:][:n] * rng.choice((-1, 1), (n, 1))),
    "100 fixed vectors, 50 a step": (I - 1 / (2 * T), lambda rng, n: I[rng.permutation(2 * T)[:n]]),
    "50 vectors, fixed or shuffled":
        (np.kron(HALF, np.eye(T) - 1 / T), lambda rng, n: I[np.r_[rng.permutation(T), T:n]]),
    "new vectors in half of the dimensions": (np.kron(HALF, np.eye(T)), lambda rng, n:
        np.kron(np.eye(2), np.linalg.qr(rng.standard_normal((T, T)))[0])[:n])}


def hadamard(rng, T, d_e):
    """T rows of d_e random columns, not the first, of Sylvester's matrix / sqrt(d_e); T = 2^k."""
    H = np.ones((1, 1))
    while len(H) < T:
        H = np.block([[H, H], [H, -H]])
    return H[:, 1 + rng.permutation(T - 1)[:d_e]] / d_e ** 0.5


def alike(E, turns=500):
    """A centred tight frame near E (T, d_e), d_e < T: sum_j e_j = 0, E^T E = T/d_e I, norms 1."""
    for _ in range(turns):
        u, _, v = np.linalg.svd(E - E.mean(axis=0), full_matrices=False)    # u v: centred, tight
        E = u @ v / np.linalg.norm(u, axis=1, keepdims=True)
    return E


def sets(rng, T=SHORT, d_e=D_E):
    """E (2T, d_e) by name: T trained encodings, then new ones.  None is for stochastic signs."""
    E = sts.rademacher(rng, 2 * T, d_e)
    return {"fixed random signs": E, "the same, new ones made alike": np.r_[E[:T], alike(E[T:])],
            "the same, trained ones made alike": np.r_[alike(E[:T]), E[T:]],
            "fixed Hadamard columns": np.r_[hadamard(rng, T, d_e), E[T:]], "stochastic signs": None,
            "16 tetrahedra": np.r_[np.kron(np.eye(T // 4), hadamard(rng, 4, 3)), E[T:]]}


def path(rng, E, q, steps=STEPS):
    """B and alpha at these steps, multiples of 16; for stochastic signs see width.py."""
    if E is None:
        scores = width.random_scores(rng, SHORT, D_E, q, draws=300)
        ends = [list(width.stochastic(scores, D, q, D_E, LR, t, 1))[-1] for t in steps]
        return [(a * np.eye(D_E), alpha) for _, a, alpha in ends]
    found = descend(E, SHORT, D, q, LR, steps[-1], rng, pace=16)
    return [(E[:SHORT].T @ C @ E[:SHORT], alpha) for t, C, alpha in found if t in steps]


def error_at(B, alpha, Y, *draws):
    """The error on subsets Y (n, T_test) of the mean output over these draws of encodings."""
    T = len(Y.T)
    return error_of(sum(attention(E[:T] @ B @ E[:T].T, Y) for E in draws) / len(draws), alpha, Y)


def demo():
    """Print errors: ways to draw orthonormal encodings, and sets of signs."""
    print(f"Orthonormal encodings, {T = }, q = {Q}, d_e = {2 * T}, step 2000: errors at T, at 2T\n")
    rng = np.random.default_rng(0)
    Y, long = (subsets(rng, 40_000, n, Q) for n in (T, 2 * T))
    for name, (J, _) in WAYS.items():
        a, alpha = two_numbers.descend(LR, 2000, J.trace(), T, D, Q)[1:, -1]
        print(*(f"{error_at(a * J, alpha, y, I):6.1%}  " for y in (Y, long)), name)
    print(f"{error_at(a * J, alpha, Y, I[::-1]):6.1%}{'':11}the same, at T in the other half\n\n"
          f"{SHORT} encodings, d_e = {D_E}; new ones are random signs.  Errors at 2T; in the end at"
          "\nT, at T on new positions alone, at 2T in the mean of 16 draws of all, with the best "
          "factor\non the logits; ratio of own logits, new over trained\n\n    step",
          "   ".join(f"{t:5}" for t in STEPS), "      T     new  16 draws ratio")
    drawn = [sts.rademacher(rng, 2 * SHORT, D_E) for _ in range(16)]
    for q in 3, 2:
        Y, long = (subsets(rng, 2000, n, q) for n in (SHORT, 2 * SHORT))
        for name, E in sets(np.random.default_rng(0)).items():
            own, ends = drawn[0] if E is None else E, path(rng, E, q)
            found, (B, alpha) = [error_at(*end, long, own) for end in ends], ends[-1]
            found += [error_at(B, alpha, Y, own), error_at(B, alpha, Y, own[SHORT:]),
                      min(error_at(c * B, alpha, long, *drawn) for c in (0.8, 1, 1.25, 1.5))]
            print(f"q = {q}", *(f"{x:7.1%}" for x in found),
                  f"{new_over_trained(own, SHORT, B):8.2f}  {name}", flush=True)


# Training

def errors(rng, draw, steps=(2000,), T=T, n=64):
    """Train, n sequences a step: errors at T and at 2T, in per cent, after these steps."""
    d_e, found = draw(rng, T).shape[1], []
    W, V = np.zeros((D + d_e, D + d_e), "f"), np.zeros((D, D + d_e), "f")
    for t in range(1, steps[-1] + 1):
        X, y = sts.sample_sts(rng, n, T, D, Q, "f")
        _, dW, dV = sts.loss_and_grads(W, V, X, y, draw(rng, T).astype("f"))
        W, V = W - LR * dW, V - LR * dV
        if t in steps:
            found.append([np.mean([sts.loss(W, V, *sts.sample_sts(rng, 64, m, D, Q), draw(rng, m))
                                   for _ in range(50)]) * 200 * Q / D for m in (T, 2 * T)])
    return np.transpose(found)


def figure():
    """Train, print the errors at 2T, and plot them; for sets of signs beside the recursion."""
    canvas = plots.plt.figure(figsize=(9, 9.5))
    above, below = (part.subplots() for part in canvas.subfigures(2, height_ratios=(2, 3)))
    for k, (name, (_, draw)) in enumerate(WAYS.items()):
        found = [errors(np.random.default_rng(seed), draw)[1, 0] for seed in plots.SEEDS]
        above.barh(name, np.mean(found), color=plots.STOCHASTIC if k < 3 else plots.FIXED)
        above.plot(found, [name] * 3, "k.")
        row(f"{name}: error at 2T in %", found)
    steps, line = (1008, 2000, 4000, 8000), [16 * round(t) for t in np.geomspace(40, 2000, 30)]
    for name, color in (("fixed random signs", plots.FIXED), ("fixed Hadamard columns", "#009E73"),
                        ("stochastic signs", plots.STOCHASTIC)):
        found = []
        for rng in map(np.random.default_rng, plots.SEEDS):
            E, long = sets(rng)[name], subsets(rng, 2000, 2 * SHORT, Q)
            draw = lambda rng, n: sts.rademacher(rng, n, D_E) if E is None else E[:n]
            below.plot(line, [100 * error_at(*end, long, draw(rng, 2 * SHORT))
                              for end in path(rng, E, Q, line)], color=color)
            found.append(errors(rng, draw, steps, SHORT, 256)[1])
        below.plot(steps, np.transpose(found), "o", color=color, label=[name, "_", "_"])
        row(f"{name}: error at 2T in %, step {steps[-1]}", np.array(found)[:, -1])
    above.set(title="orthonormal encodings: error at 2T in %", axisbelow=True, ylim=(4.5, -0.5))
    below.set(title="sets of signs: error at 2T in %", xscale="log", ylim=(0, 100), xlabel="step t")
    below.legend(title="64 encodings of 48 signs")
    canvas.suptitle("What counts: which directions training shows, and whether alike")
    plots.caption(canvas, "Dots: 3 seeds. Lines: recursion. At 2T half of the positions are new.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
