"""How long the plateau is, and why small batches make it longer.

    python beyond/plateau.py                     prints what is derived
    python beyond/plateau.py picture.png         also trains, and plots both

Symbols are those of two_numbers.py, and n is the batch size, K the number of draws of encodings in
a step, N the squared norm ||W*||^2.  The plateau ends where L is half of d/(2q).  All is derived,
for gradient descent from W = V = 0, and one-hot or stochastic orthonormal encodings.
"""

from common import UNTESTED, main, row     # first: NumPy gets one thread

from functools import partial

import numpy as np

import plots
import train
from two_numbers import ENCODINGS, count_steps, delays, descend, held, slopes


def flow_steps(share, T, d, q, lr, N):
    """About how many steps take L from (T - q)/T d/(2q), at a = 0, to share d/(2q), without noise.

    It is the integral of the handout's du/dt, where u = e^(2a), and alpha always has its best value
    for a (teach/HANDOUT.md, section 3):
        t = N / (2 lr d (T - q)) [ q^2 (u - 1) + 2 q (T - q) ln u + (T - q)^2 (1 - 1/u) ].
    The last term is the plateau, the first the tail, where 1/L grows by 4 lr / N a step.
    """
    u = (T - q) * (1 / share - 1) / q
    terms = q * q * (u - 1) + 2 * q * (T - q) * np.log(u) + (T - q) ** 2 * (1 - 1 / u)
    return N / (2 * lr * d * (T - q)) * terms


def noise_delay(lr, T, n, K=1):
    """The factor by which batches of n sequences make W's plateau longer: 1 + lr T/(2 n K).

    To leading order in lr (d + q)/n, for q and d far below T, if W's token-PE block G relaxes, in
    some N/(lr q alpha^2) steps, sooner than the plateau ends.  The whole plateau is longer by about
    this factor if N is well above d ln(T/q), since noise does not slow V.  Derived in README.md.
    """
    return 1 + lr * T / (2 * n * K)


def plateau(T, d, q, lr, n, N, K=1):
    """About how many steps take L from d/(2q) to half of it, on n fresh sequences a step.

    For q <= T/10, lr (d + q)/n <= 1/8 and N >= 10 d; n = inf is the population loss.  The last term
    is V's time.  At the start alpha grows to 1 like 1 - e^(-lr t/T): this holds a back by T/lr
    steps.  Then alpha lags behind the best one for a, alpha*, by d alpha*' / (lr h) da/dt, with h
    the second derivative of L by alpha.  The mixed derivative is -h alpha*', so a moves as along
    alpha*, but with N + d alpha*'^2 for N.  With w = q u/(T - q), u as in flow_steps, this costs
    T/(2 lr) times the integral of (1 - w)^2/(w (1 + w)^2) from q/T to 1: for small q/T,
    T/lr (ln(T/q)/2 - 1) steps.
    """
    wait = flow_steps(0.5, T, d, q, lr, N) * noise_delay(lr, T, n, K)
    return wait + T / (2 * lr) * np.log(T / q)


def demo():
    """Print how long the plateau is, as it is, and without either cause of its sudden end."""
    def even(own, a, alpha, T, d, q):       # softmax's factor stays 1/T: that of even attention
        L, da, dalpha = own(a, alpha, T, d, q)
        return L, da * (q + (T - q) * np.exp(-a)) / T, dalpha

    T, d, q = 200, 5, 3
    print(f"{d = }, {q = }, T = N = 200, lr = 4: steps until 90%, 50% and 10% are left.\n")
    for name, own in (("as it is", slopes), ("V held at V*", held),
                      ("1/T held", partial(even, slopes)), ("both held", partial(even, held))):
        L = descend(4.0, 25_000, 200, T, d, q, own)[0] * 2 * q / d
        print(f"  {name:12}", *(f"{(L <= share).argmax():6}" for share in (0.9, 0.5, 0.1)))
    print("\n50% in closed form: {:.0f}; with the noise of fresh batches of 256: {:.0f}".format(
        *(plateau(T, d, q, 4.0, n, 200) for n in (np.inf, 256))))


# Training

CURVES = {      # settings of train.py, ||W*||^2, and (lr, n, K) of each point
    "one-hot": (*ENCODINGS["one-hot"][:2], [
        (1.0, 256, 1), (1.0, 64, 1), (1.0, 16, 1), (0.5, 64, 1), (0.5, 16, 1)]),
    "orthonormal": (*ENCODINGS["orthonormal"][:2], [
        (1.0, 128, 1), (1.0, 64, 1), (1.0, 32, 1), (1.0, 16, 1), (1.0, 32, 2), (1.0, 32, 4)])}
ARMS = {f"plateau {name} {lr} {n} {K}": UNTESTED | settings | {
    "lr": lr, "batch": n, "draws": K,
    "steps": int(2 * plateau(settings["T"], 5, 3, lr, n, N, K))}        # twice the plateau
    for name, (settings, N, points) in CURVES.items() for lr, n, K in points}


def trained(change, n=64, steps=1600, seed=0):
    """A run on batches of n sequences, "X and -X" with the same y in each, or with "V at V*"."""
    c = train.Settings(**UNTESTED | ENCODINGS["orthonormal"][0] | {
        "lr": 1.0, "batch": n, "steps": steps, "seed": seed})
    run = train.start(c)
    if change == "V at V*":
        run["V"][:] = np.eye(*run["V"].shape)
    for t in range(steps):
        X, y = train.batch(c, t)
        if change == "X and -X":
            X[n // 2:], y[n // 2:] = -X[:n // 2], y[:n // 2]
        E = train.encodings(run, c.T, 1, train.stream(c, "encodings", t))
        run["loss"][t], grads = train.loss_and_grads(run, X, y, E)
        if change == "V at V*":
            del grads["V"]
        train.gradient_descent(run, grads, c.lr)
    return run


def figure():
    """Train, plot how many times as long each plateau is, and print it over the formula."""
    runs, ratios = plots.trained(ARMS), {"at most 1/8": [], "above": []}
    canvas, axis = plots.plt.subplots(figsize=(10, 7))
    for name, (settings, N, points) in CURVES.items():
        for lr, n, K in points:
            measured = delays(runs[f"plateau {name} {lr} {n} {K}"], N)
            predicted = noise_delay(lr, settings["T"], n, K)
            noise = "at most 1/8" if lr * (5 + 3) / n <= 1 / 8 else "above"
            ratios[noise].extend(measured / predicted)
            axis.plot(predicted, measured.mean(), "o", color=plots.STOCHASTIC, markersize=11,
                      fillstyle="none" if noise == "above" else "full")
    axis.plot((1, 2.7), (1, 2.7), "--", color=plots.THEORY)
    axis.set(title="steps to half of d/(2q), over those without noise",
             xlabel="predicted: 1 + lr T/(2nK)", ylabel="measured")
    canvas.suptitle("Weak gradient noise makes the plateau 1 + lr T/(2nK) times as long")
    plots.caption(canvas, "Full: weak noise, lr (d + q)/n at most 1/8. Means of 3 seeds, fresh "
                  "batches of n sequences, K draws in a step. T = 50, one-hot and orthonormal "
                  "encodings. Dashed: measured = predicted.")
    for noise, values in ratios.items():
        row(f"lr (d + q)/n {noise}: delay of the plateau / formula", values)
    for change, own in ("as it is", slopes), ("X and -X", slopes), ("V at V*", held):
        exact = (descend(1.0, 1600, 100, 50, 5, 3, own)[0] <= 5 / 12).argmax()
        runs = [trained(change, seed=seed) for seed in plots.SEEDS]
        row(f"orthonormal, n = 64, {change}: delay of the plateau",
            delays(runs, 100) * count_steps(0.5, 50, 5, 3, 1.0, 100) / exact)
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
