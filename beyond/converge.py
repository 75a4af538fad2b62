"""When the loss of fixed encodings goes to 0, and how fast; when it cannot, and when it sticks.

    python beyond/converge.py                    prints what is derived, and computed
    python beyond/converge.py picture.png        also plots it (a minute)

FIXED.md has theorems and their ideas, FIXED_PROOFS.md the proofs.  Symbols are those of fixed.py,
all subsets y count the same, and

    G       is the inverse of S = E E^T, for linearly independent encodings
    ties    M has ties if selected logits are equal, in every subset y
    lead    the lead of a position k is a selected logit minus that of k, where k is not in y

The loss L goes to 0 if and only if alpha goes to 1, M gets ties, and leads grow without a bound.
This takes a rank (can_vanish).  And training has to find it: with STUCK it does not.
"""

from common import main, row     # first: NumPy gets one thread

import math

import numpy as np

from fixed import all_subsets, attention, descend, error, late_block, late_norm, multipliers, slopes


def flow(S, d, q, end, tolerance=3e-4):
    """The flow from zero up to time `end`: yields t, M (T, T), alpha and L after each step.

    dM/dt = -S dL/dM S and dalpha/dt = -1/d dL/dalpha.  Leads grow for ever, but ties and alpha
    react within a time of order 1, so explicit steps would have to stay short.  This is the
    implicit method of Rosenbrock of order 2.  One of order 1 may be off by `tolerance` in a step.
    """
    T, Y = len(S), all_subsets(len(S), q)

    def velocity(x):
        M, alpha = x[:-1].reshape(T, T), x[-1]
        _, dM, dalpha = slopes(attention(M, Y), alpha, d, Y)
        return -np.append(S @ dM @ S, dalpha / d)

    t, dt, x, I = 0.0, 1e-3, np.zeros(T * T + 1), np.eye(T * T + 1)
    while t < end:
        dt = min(dt, end - t)
        J = np.transpose([velocity(x + e) - velocity(x - e) for e in 1e-5 * I]) / 2e-5
        A = np.linalg.inv(I - (1 - math.sqrt(0.5)) * dt * J)
        first = A @ velocity(x)
        second = A @ (velocity(x + dt * first) - 2 * first)
        off = abs(first + second).max() * dt / 2
        if off <= tolerance:
            t, x = t + dt, x + dt / 2 * (3 * first + second)
            M, alpha = x[:-1].reshape(T, T), x[-1]
            yield t, M, alpha, slopes(attention(M, Y), alpha, d, Y)[0]
        dt *= 0.9 * math.sqrt(tolerance / np.clip(off, tolerance / 5, tolerance * 20))


def flow_error(E, d, q, end, tolerance=0.01):
    """The error over d/(2q) of the flow from zero at time `end`."""
    *_, (_, _, _, L) = flow(E @ E.T, d, q, end, tolerance)
    return L * 2 * q / d


# How fast L goes to 0, for linearly independent encodings


def lead_form(S, q):
    """Phi (T, T): m . Phi m is the least squared norm of a block with ties and leads m, for q >= 3.

    With ties M is diag(m) - m 1^T/q + 1 b^T, and k has the lead m_k in every subset without it.
    The best b projects 1 out on the left.  This leaves a product, entry by entry, of two matrices.
    """
    G, F = np.linalg.inv(S), np.eye(len(S)) - 1 / q
    return (G - np.outer(G.sum(axis=0), G.sum(axis=0)) / G.sum()) * (F @ G @ F)


def least_norm(S, q, sweeps=20_000):
    """N^, the least squared norm of a block with ties and leads of at least 1, for q >= 3.

    The least m . Phi m over m >= 1, coordinate by coordinate.  It is N if no multiplier is
    negative: these are Phi 1, half the slopes at m = 1.
    """
    Phi = lead_form(S, q)
    m = np.ones(len(Phi))
    for _ in range(sweeps):
        before = m.copy()
        for k in range(len(m)):
            m[k] = max(1.0, m[k] - Phi[k] @ m / Phi[k, k])
        if abs(m - before).max() < 1e-12:
            break
    return m @ Phi @ m


# Rank: for which encodings L can be near 0 at all


def can_vanish(E, q):
    """Whether some blocks B and some alpha bring L as near to 0 as one likes, for 3 <= q < T.

    Rank T: yes.  Rank T - 1: if and only if the normal vector nu of the columns of E, or -nu, has
    all nu_j below sum(nu)/q.  Rank T - 2 or less: no.  (Theorem 4)
    """
    T, rank, nu = len(E), np.linalg.matrix_rank(E), np.linalg.svd(E)[0][:, -1]
    nu = nu * np.sign(nu.sum())
    return bool(rank == T or rank == T - 1 and q * nu.max() < nu.sum() * (1 - 1e-9))


def rank_bound(T, q, rank):
    """A share of d/(2q) that L exceeds for every B and alpha, for q >= 3 and 1 <= rank < T - q.

    For long sequences it depends on q and the rank alone (Theorem 4).  It is small: a share of the
    subsets is bad, by Turan's theorem, and a bad one has an error of 1/(9 q (rank + 1)^2) or more.
    """
    return (T - q - rank) / ((rank + 2) * (T - q + 1)) / (9 * q * (rank + 1) ** 2)


STUCK = np.array([[2.0, -3, 2], [-2, -1, 0], [1, 1, 0]])    # q = 2: L could go to 0, but does not


# What is printed, and plotted


def signs(T, d_e, seed=0):
    """Random signs (T, d_e), divided by sqrt(d_e)."""
    return np.random.default_rng(seed).choice([-1, 1], (T, d_e)) / math.sqrt(d_e)


def perturbed(T, spread):
    """Orthonormal encodings (T, T), and `spread` times a Gaussian matrix."""
    return np.eye(T) + spread * np.random.default_rng(0).standard_normal((T, T))


def demo_end():
    """Print N, N^ and the least multiplier of some encodings, and where the flow from zero ends."""
    T, q, d = 5, 3, 5
    print(f"How fast: {T = }, {q = }, {d = }, the flow from zero.\n\n"
          "                                       least multiplier   4 t L/N^ at\n"
          "  encodings                N    N^/N   over their mean    t = 1e7 N")
    encodings = {"orthonormal": np.eye(T)}
    encodings |= {f"random signs, d_e = {d_e}": signs(T, d_e) for d_e in (20, 8)}
    encodings |= {f"I + {spread:g} Gaussian": perturbed(T, spread) for spread in (0.2, 0.3, 0.5)}
    for name, E in encodings.items():
        S = E @ E.T
        mu, N, least = multipliers(S, q), late_norm(S), least_norm(S, q)
        *_, (t, _, _, L) = flow(S, d, q, 1e7 * N)
        print(f"  {name:22} {N:6.2f}   {least / N:.3f}   {mu.min() / mu.mean():14.2f}   "
              f"{4 * t * L / least:10.3f}", flush=True)
    print(f"\nRandom signs, T = 200, {q = }: how many of 5 draws have a negative multiplier.\n")
    for d_e in 250, 500, 1000:
        draws = [signs(200, d_e, seed) for seed in range(5)]
        print(f"  {d_e = :4}   {sum(multipliers(E @ E.T, q).min() < 0 for E in draws)}")


def demo_rank():
    """Print where random signs get from zero, by their width, and whether L could go to 0."""
    T, q, d, lr, times = 12, 3, 5, 2.0, (100, 1000, 3000)
    print(f"\nRank: {T = }, {q = }, {d = }, random signs, {lr = :g}: errors over d/(2q).\n\n"
          "   d_e   rank   can L go to 0?   step 100     1000     3000   always above")
    for d_e in 6, 8, 24:
        E, Y = signs(T, d_e), all_subsets(T, q)
        rank, can = np.linalg.matrix_rank(E), "yes" if can_vanish(E, q) else "no"
        errors = [error(E, T, C, alpha, Y) for t, C, alpha in descend(E, T, d, q, lr, times[-1])
                  if t in times]
        bound = f"{rank_bound(T, q, rank):.0e}" if rank < T - q else "0"
        print(f"  {d_e:4}   {rank:4}   {can:14}   {{:8.4f}}   {{:.4f}}   {{:.4f}}   {bound}".format(
            *errors))


def demo_stuck():
    """Print how three encodings stick at a quarter of d/(2q), though a block has no error."""
    q, d, lr, Y = 2, 5, 0.01, all_subsets(3, 2)
    S, good = STUCK @ STUCK.T, late_block(STUCK @ STUCK.T)[0]
    print(f"\nStuck: S = {S.astype(int).tolist()}, {q = }, {d = }, {lr = :g}: errors over d/(2q)."
          f"\n\n  the block 10 M*, with alpha = 1   {error(STUCK, 3, 10 * good, 1.0, Y):.0e}")
    for t, C, alpha in descend(STUCK, 3, d, q, lr, 10_000):
        if t in (100, 1000, 10_000):
            print(f"  gradient descent, step {t:6}     {error(STUCK, 3, C, alpha, Y):.4f}")
    *_, (t, M, alpha, L) = flow(S, d, q, 1e8)
    wrong = (M @ Y[1]).round(1)
    print(f"  the flow, time {t:.0e}              {L * 2 * q / d:.4f}, {alpha = :.4f},"
          f" logits on {{0, 2}} {wrong - wrong.max()}")


def demo():
    """Print all three."""
    for part in demo_end, demo_rank, demo_stuck:
        part()


def figure():
    """Plot errors along flows from zero, and what is left at each rank; print the latter."""
    import matplotlib.pyplot as plt
    import plots
    canvas, (left, right) = plt.subplots(1, 2, figsize=(11, 6.5), width_ratios=[6, 5])
    T, d, last = 5, 5, 2000
    for name, E, q, color in (("orthonormal", np.eye(T), 3, plots.STOCHASTIC),
                              ("orthonormal, perturbed", perturbed(T, 0.2), 3, plots.NET),
                              ("random signs, $d_e$ = 8", signs(T, 8), 3, "#CC79A7"),
                              (None, STUCK, 2, plots.FIXED)):
        N = late_norm(E @ E.T)
        t, L = np.array([(t, L) for t, _, _, L in flow(E @ E.T, d, q, last * N)]).T
        left.plot(t / N, L * 2 * q / d, color=color, label=name)
    left.text(last, 0.28, "three encodings stick at 1/4", color=color, ha="right", va="bottom")
    derived = 6 / d / (4 * np.array([5, last]))
    left.plot([5, last], derived, ":", color=plots.THEORY, linewidth=4, label="L = N/(4t)")
    left.set(xscale="log", yscale="log", xlim=(0.1, last), ylim=(1e-4, 1.5),
             title="training from zero", xlabel="time t over N", ylabel="error over d/(2q)")
    left.legend(loc="lower left")
    T, q, ranks = 6, 3, np.arange(1, 7)
    rotations = np.linalg.qr(np.random.default_rng(0).standard_normal((5, T, T)))[0]
    ends = [[flow_error(Q[:, :rank], d, q, 1e6) for Q in rotations] for rank in ranks]
    right.axvspan(0.5, T - 1.5, color=plots.THEORY, alpha=0.15, linewidth=0)
    right.text(0.6, 0.02, "0 is impossible (proved)")
    right.plot(ranks, ends, "o", color=plots.THEORY, fillstyle="none", markersize=11,
               markeredgewidth=2)
    right.set(xlim=(0.5, T + 0.5), ylim=(-0.015, 0.5), title="five of each rank, from zero",
              xlabel=f"rank of E, for {T = } and {q = }")
    for rank, values in zip(ranks, ends):
        row(f"{T = }, {q = }, rank {rank}: error from zero", values)
    forbidden = sum(not can_vanish(Q[:, :T - 1], q) for Q in rotations)
    ends = [flow_error(E, d, q, 1000 * late_norm(E @ E.T)) for T in (4, 5, 6) for q in (1, 2, 3)
            for E in (signs(T, T + 2, seed) for seed in range(14)) if np.linalg.matrix_rank(E) == T]
    row(f"{len(ends)} draws of random signs, T = 4 to 6, q = 1 to 3: at t = 1000 N", ends)
    canvas.suptitle("Fixed encodings: the error goes to 0, or it sticks, or the rank forbids it")
    plots.caption(canvas, "Left: T = 5, q = 3 (orange: T = 3, q = 2). Right: columns of random "
                  f"orthogonal matrices; at rank 5 an inequality forbids 0 for {forbidden} of 5.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
