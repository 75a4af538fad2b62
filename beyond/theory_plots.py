"""Figures of what theory.py and width.py derive, beside training by train.py.

    python beyond/theory_plots.py                   all, into beyond/figures/, and their claims
    python beyond/theory_plots.py data --quick      one of them, on small tasks, into runs/quick/

Theory is grey and dashed, what is measured is coloured.  Flags, seeds and kept runs are as in
plots.py.
"""

import functools
import math
import os
import sys
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: each process trains one run, in one thread
    for library in "OPENBLAS", "MKL", "OMP":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

import claims
import plots
import sts
import theory
import train
import width
from plots import FIXED, NET, SEEDS, STOCHASTIC, THEORY, zero_predictor

COLORS = STOCHASTIC, FIXED, NET
LAWS = {"one-hot": ({"pe": "onehot", "pe_dim": 50}, FIXED),
        "orthonormal": ({"pe_family": "orthonormal", "pe_dim": 100}, STOCHASTIC),
        "rademacher": ({"pe_dim": 64}, NET)}
STOPS = 150, 300, 600, 1200, 4000               # a and alpha are measured at the end of a run
COST_T = 50, 100, 200, 500, 1000
FLOOR_D_E = 16, 32, 64, 128                                     # predicted for each K, and trained:
FLOORS = [(16, 1), (32, 1), (64, 1), (128, 1), (16, 4), (32, 4), (64, 4), (16, 16), (32, 16)]
FULL = [(query, q) for query in ("sum", "mean") for q in (2, 3, 5)]
DATA = {"stochastic": (STOCHASTIC, "o-"), "one-hot": (FIXED, "s--"),
        "fixed": ("#CC79A7", "^-."), "net, 120 units": (NET, "D-"),
        "net, 20 units": ("#777777", "v:")}
DATA_N = [12, 16, 32, 64, 128, 256, 512]                        # for attention at T = 20
NET_N = [16, 64, 256, 1024, 4096]
NEEDED = {"stochastic": {T: [2, 4, 6, 8, 12, 16, 24, 32] for T in (10, 20, 40, 80)},
          "one-hot": {T: [k * T for k in (5, 8, 12)] for T in (10, 20, 40, 80)}}
DATA_RUNS = sorted({(arm, 20, N) for arm in DATA for N in (NET_N if "net" in arm else DATA_N)}
                   | {(arm, T, N) for arm in NEEDED for T, sizes in NEEDED[arm].items()
                      for N in sizes})
SMALL_Q = {1: {20: (4, 5, 6), 80: (6, 7, 8), 320: (8, 9, 10)},  # figure width: d_e for each T
           2: {20: (7, 9, 11), 80: (11, 13, 16), 320: (16, 18, 21)}}
TRAINED = {**SMALL_Q, 3: plots.WIDTHS}


def arms(quick):
    """The runs of the figures: the settings of train.py for each name, without the seed."""
    def attention(full, small, **given):
        how = {"d": 5, "q": 3, "fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [],
               "q_test": [], "steps": small if quick else full}
        return how | given

    found = {}
    for law, (how, _) in LAWS.items():
        for steps in STOPS:
            found[f"{law}, {steps} steps"] = attention(steps, steps // 20, T=50, lr=1.0, **how)
    for d_e, K in FLOORS:
        found[f"floor, d_e = {d_e}, K = {K}"] = attention(
            2000, 20, T=20, lr=4.0, schedule="cosine", pe_dim=d_e, draws=K)
    found["length"] = attention(6000, 200, T=20 if quick else 100, lr=2.0, pe_dim=170)
    found["length, orthonormal"] = attention(
        3000, 200, T=20, lr=1.0, pe_family="orthonormal", pe_dim=160,
        T_test=[30, 40, 60, 80, 120, 160], evaluations=10, eval_sequences=500, eval_draws=4)
    full = {"T": 20, "lr": 1.0, "attend_to_query": True}
    for query, q in FULL:
        found[f"{query}, q = {q}"] = attention(2000, 200, **full, q=q, query=query, pe_dim=20,
                                               pe_family="orthonormal")
    found["sum, one-hot"] = attention(3000, 200, **full, pe="onehot")
    for arm, T, N in DATA_RUNS:
        task = {"T": T, "d": 3, "q": 2, "batch": min(N, 64) if quick else N, "fresh": False,
                "eval_sequences": 200 if quick else 2000}
        if "net" in arm:
            found[f"{arm}, T = {T}, N = {N}"] = {
                "model": "fcn", "hidden": [int(arm.split()[1])], "optimizer": "adam",
                "schedule": "cosine", "steps": 20 if quick else 600, "evaluations": 1} | task
        else:
            how = {"stochastic": {"pe_family": "orthonormal", "pe_dim": T},
                   "one-hot": {"pe": "onehot"}, "fixed": {"pe": "fixed", "pe_dim": 2 * T}}[arm]
            found[f"{arm}, T = {T}, N = {N}"] = attention(4000, 20, lr=T / 40, **task, **how)
    for q, lengths in TRAINED.items():
        for T, sizes in lengths.items():
            for d_e in sizes:
                found[plots.width_name(T, d_e, q)] = plots.width_arm(T, d_e, q,
                                                                     100 if quick else 1000)
    return found


# What is measured of runs


def numbers(run):
    """a and alpha: the multiples of W* and V* that are nearest to the weights of a run."""
    c = run["config"]
    truth = sts.ground_truth(c.d, c.pe_dim, c.T if c.pe == "onehot" else None)
    return [float((run[name] * star).sum() / (star ** 2).sum()) for name, star in zip("WV", truth)]


def last_loss(run):
    """The mean loss in the last tenth of a run."""
    return run["loss"][-len(run["loss"]) // 10:].mean()


# dynamics: training on samples, and the exact recursion


@functools.cache
def exact(law, T, d, q, lr, steps, d_e):
    """L, a, alpha of gradient descent on the population loss (3, steps + 1); the error of its end.

    For rademacher encodings it is the mean of 6 descents, each on its own sample of scores, and the
    standard error (3,) of this mean.
    """
    if law != "rademacher":
        norm2 = T - 1 if law == "one-hot" else d_e
        path = theory.descend(lambda *x: theory.onehot_slopes(*x, T, d, q), lr, steps, norm2, d)
        return path, np.zeros(3)
    rng, paths = np.random.default_rng(0), []
    for _ in range(6):
        scores = width.sample_scores(rng, T, d_e, q, 400)
        paths.append(theory.descend(lambda *x: width.stochastic_slopes(*x, scores, d, q),
                                    lr, steps, d_e, d))
    return np.mean(paths, axis=0), np.std(paths, axis=0, ddof=1)[:, -1] / math.sqrt(6)


def exact_of(runs, law):
    """The same with the settings of the longest runs of a law."""
    c = runs[f"{law}, {STOPS[-1]} steps"][0]["config"]
    return exact(law, c.T, c.d, c.q, c.lr, c.steps, c.pe_dim)


def derived_slope(c):
    """4 lr / ||W*||^2, the growth of 1/L in a step."""
    return 4 * c.lr / (c.T - 1 if c.pe == "onehot" else c.pe_dim)


def dynamics(runs):
    """Loss, 1/L, and the two numbers a and alpha: measured, and exact."""
    figure, axes = plt.subplot_mosaic([["L", "1/L", "a"], ["L", "1/L", "alpha"]], figsize=(14, 5.6))
    for law, (_, color) in LAWS.items():
        path, longest = exact_of(runs, law)[0], runs[f"{law}, {STOPS[-1]} steps"]
        c, (t, _) = longest[0]["config"], plots.smooth_loss(longest[0])
        losses = np.array([plots.smooth_loss(run)[1] for run in longest])
        plots.band(axes["L"], t, losses, color, linewidth=5, label=law)
        axes["L"].plot(path[0], "--", color=THEORY, linewidth=1.5)
        if law != "rademacher":         # which has a floor
            plots.band(axes["1/L"], t, 1 / losses, color, linewidth=5)
            axes["1/L"].plot(1 / path[0], "--", color=THEORY, linewidth=1.5)
        for name, exact_values, k in ("a", path[1], 0), ("alpha", path[2], 1):
            axes[name].plot(exact_values, "--", color=THEORY, linewidth=1.5)
            for steps in STOPS:
                axes[name].plot([steps] * len(SEEDS),
                                [numbers(run)[k] for run in runs[f"{law}, {steps} steps"]], "o",
                                color=color, fillstyle="none", markersize=8)
    axes["L"].set(title="loss L", xlabel="step t", yscale="log")
    axes["L"].legend(frameon=False, title="encodings")
    axes["1/L"].set(title="1/L grows by 4 lr/$\\|W^*\\|^2$ a step", xlabel="step t", ylim=(0, None))
    axes["a"].set(title="a, where W is nearly a W*", xticklabels=[])
    axes["alpha"].set(title="$\\alpha$, where V is nearly $\\alpha$ V*", xlabel="step t")
    plots.caption(figure, "Training on samples follows two numbers: W = a W* and V = $\\alpha$ V*",
                  f"Dashed: exact. Thick lines and circles: training on fresh batches of {c.batch},"
                  f" {len(SEEDS)} seeds. T = {c.T}, q = {c.q}, d = {c.d}, lr {c.lr:g},\n"
                  "$d_e$ = 50 (one-hot), 100 (orthonormal), 64 (rademacher). 1/L: one-hot and "
                  "orthonormal only, since rademacher has a floor.")
    return figure


def claims_dynamics(runs):
    """What is measured over what is exact, for all laws."""
    columns, slopes, sure = [], [], []
    for law in LAWS:
        (L, a, alpha), error = exact_of(runs, law)
        smooth = np.array([part.mean() for part in np.array_split(L[:-1], 100)])
        for run in runs[f"{law}, {STOPS[-1]} steps"]:
            t, losses = plots.smooth_loss(run)
            half = [np.interp(-L[0] / 2, -np.minimum.accumulate(values), t)
                    for values in (losses, smooth)]
            columns.append((half[0] / half[1], losses[-1] / smooth[-1], numbers(run)[0] / a[-1],
                            numbers(run)[1] / alpha[-1]))
            if law != "rademacher":
                slopes.append(claims.late_slope(run)[0] / derived_slope(run["config"]))
        sure.append(error[0] / L[-1])
    rows = zip(("step at which L has halved", "L at the end", "a at the end", "alpha at the end"),
               zip(*columns), ((0.9, 1.15), (0.9, 1.1), (0.95, 1.05), (0.95, 1.05)))
    return [(f"{name}, sampled / exact", values, *allowed) for name, values, allowed in rows] + [
        ("slope of 1/L / (4 lr/|W*|^2), not rademacher", slopes, 0.85, 1.05),
        ("standard error of the exact L / L", sure, None, 0.02)]


# cost: lr x steps, counted and in closed form

COSTS = {"q = 3, L = 0.01 d/(2q)": [(1, 3, 0.01), (5, 3, 0.01), (20, 3, 0.01)],
         "d = 5, L = 0.01 d/(2q)": [(5, 1, 0.01), (5, 3, 0.01), (5, 10, 0.01)],
         "d = 5, q = 3": [(5, 3, 0.1), (5, 3, 0.01), (5, 3, 0.001)]}     # d, q, L over d/(2q)


@functools.cache
def counted(d, q, share):
    """lr times the steps after which L <= share d/(2q), one-hot PE, lr 2, for the T of COST_T."""
    return np.array([2 * theory.count_steps(share, T, d, q, 2.0) for T in COST_T])


def cost(runs):
    """What gradient descent on the population loss costs, over T^2/(2d), against T; one-hot PE."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5.2), sharey=True)
    T, at = np.geomspace(COST_T[0], 10 ** 5, 50), np.array(COST_T)
    for axis, (fixed, sizes), varied in zip(axes, COSTS.items(), range(3)):
        for (d, q, share), color, marker in zip(sizes, COLORS, "os^"):
            axis.plot(T, theory.predict_steps(share, T, d, q) * 2 * d / T ** 2, "--", color=THEORY,
                      linewidth=1.5)
            axis.plot(at, counted(d, q, share) * 2 * d / at ** 2, marker, color=color,
                      markersize=10, fillstyle="none",
                      label=[f"d = {d}", f"q = {q}", f"L = {share:g} d/(2q)"][varied])
        axis.axhline(1, color=THEORY, linestyle=":")
        axis.set(title=fixed, xscale="log", yscale="log", xlabel="sequence length T")
        axis.legend(frameon=False, handletextpad=0.1)
    axes[0].set_ylabel("lr x steps, over $T^2/(2d)$")
    plots.caption(figure, "The closed form gives the steps of training; it tends to the plateau, "
                  "$T^2/(2d)$", "One-hot encodings, population loss. Steps until the loss is L, "
                  "times lr. Points: counted to T = 1000, at lr 2.\nDashed: closed form, for d "
                  "well below T, which does not depend on d here. Dotted: the plateau alone.")
    return figure


def claims_cost(runs):
    """The closed form over the count, for all sizes that are drawn."""
    sizes = sorted({size for sizes in COSTS.values() for size in sizes})
    ratios = {size: theory.predict_steps(size[2], np.array(COST_T), *size[:2]) / counted(*size)
              for size in sizes}
    plateau = [1e10 / (2 * d) / theory.predict_steps(share, 1e5, d, q) for d, q, share in sizes]
    return [(f"T = {COST_T[-1]}: closed form / counted", [r[-1] for r in ratios.values()], 0.85,
             1.1),
            (f"T = {COST_T[0]}, d = 1 or 5: the same",
             [r[0] for (d, _, _), r in ratios.items() if d < 20], 0.8, 1.1),
            (f"T = {COST_T[0]}, d = 20: the same", [ratios[20, 3, 0.01][0]], 0.5, 1),
            ("T = 10^5: T^2/(2d) / closed form", plateau, 0.9, 1.05)]


# length: the floor of the loss, and errors on longer sequences

TOKENS = 30_000                 # in a batch of sequences of any length, for measured errors


@functools.cache
def floor(T, d, q, d_e, K):
    """The least loss and its standard error, by draws that are not those which found the place."""
    rng = np.random.default_rng(0)
    _, a, alpha = width.noise_floor(width.sample_scores(rng, T, d_e, q, 500), d, q, K)
    return width.predict_loss(rng, a, alpha, T, d, q, d_e, K)


@functools.cache
def predicted(a, alpha, T, d, q, d_e, K):
    """The error of a W*, alpha V* at length T, and its standard error."""
    return width.predict_loss(np.random.default_rng(0), a, alpha, T, d, q, d_e, K, 0.008)


def measured(run, T):
    """The errors of a run at length T with 1 and with 16 draws, and standard errors: (2, 2).

    The mean of 8 batches, each with sequences and draws of its own.  From each loss a multiple of
    ||STS||^2 / 2 - d/(2q) is subtracted, which is 0 on average: the one that explains most of it.
    """
    c, rng, found = run["config"], np.random.default_rng((run["config"].seed, T)), []
    for _ in range(8):
        X, y = sts.sample_sts(rng, max(8, TOKENS // T), T, c.d, c.q, np.float32)
        outputs = np.array([sts.forward(run["W"], run["V"], X, y, E)[0] for E in (
            sts.positional_encoding("rademacher", T, c.pe_dim, rng, 1, np.float32)[0]
            for _ in range(16))])
        target = sts.sts_target(X, y)
        r = outputs - target
        found.append([0.5 * (r ** 2).sum(axis=2).mean(axis=0),
                      0.5 * (r.mean(axis=0) ** 2).sum(axis=1),
                      0.5 * (target ** 2).sum(axis=1) - zero_predictor(c)])
    one, many, control = np.transpose(found, (1, 0, 2)).astype(float)       # (8, sequences) each
    means = []
    for losses in one, many:
        multiple = (losses * control).mean() / (control ** 2).mean()
        means.append((losses - multiple * control).mean(axis=1))
    return np.array([np.mean(means, axis=1), np.std(means, axis=1, ddof=1) / math.sqrt(8)])


def tested(runs):
    """The lengths at which errors are measured; T = 20 is that of --quick."""
    T = runs["length"][0]["config"].T
    return [T, 2 * T, 4 * T] + ([1000, 4000, 20_000] if T == 100 else [])


def long_errors(run, lengths):
    """measured at these lengths (lengths, 2, 2); kept in the run for the picture and its claims."""
    if "long" not in run:
        run["long"] = np.array([measured(run, T) for T in lengths])
    return run["long"]


def late_errors(run):
    """Training losses (m,), means over 30 steps, and errors (m, tests), from 0.3 d/(2q) downwards.

    The steps are those up to an evaluation.
    """
    late = run["error"][:, 0] < 0.3 * zero_predictor(run["config"])
    losses = [run["loss"][t - 30:t].mean() for t in run["eval_step"][late]]
    return np.array(losses), run["error"][late]


def reaches(run):
    """The length where the error is half of d/(2q): training losses, measured, predicted (3, m).

    Measured lengths are those where a line through the errors against ln T_test has this value,
    between two tests.
    """
    c, found = run["config"], []
    for L, errors in zip(*late_errors(run)):
        half = zero_predictor(c) / 2
        if errors[0] < half < errors[-1]:
            found.append((L, np.exp(np.interp(half, errors, np.log([c.T, *c.T_test]))),
                          theory.reach(L, c.T, c.d, c.q)))
    return np.transpose(found) if found else np.empty((3, 0))


def length(runs):
    """The noise floor against d_e; errors at longer T_test, for random signs and orthonormal PE."""
    figure, ((left, middle), (right, last)) = plt.subplots(2, 2, figsize=(14, 10))
    c, own = runs["floor, d_e = 16, K = 1"][0]["config"], runs["length"][0]["config"]
    for K, color, marker in zip((1, 4, 16), COLORS, "os^"):
        left.plot(FLOOR_D_E, [floor(c.T, c.d, c.q, d_e, K)[0] for d_e in FLOOR_D_E], "--",
                  color=THEORY)
        points = [(d_e, last_loss(run)) for d_e, draws in FLOORS if draws == K
                  for run in runs[f"floor, d_e = {d_e}, K = {K}"]]
        left.plot(*np.transpose(points), marker, color=color, fillstyle="none", markersize=10,
                  label=f"K = {K}")
    left.set(title=f"random signs: a floor (T = {c.T})", xscale="log", yscale="log",
             xlabel="dimension $d_e$", ylabel="training loss at the end")
    left.set_xticks(FLOOR_D_E, FLOOR_D_E)
    left.minorticks_off()
    left.legend(frameon=False, title="K draws averaged", loc="upper right")
    lengths = tested(runs)
    T = np.unique(np.geomspace(lengths[0], 5 * lengths[-1], 12).astype(int)).tolist()
    a, alpha = np.mean([numbers(run) for run in runs["length"]], axis=0)
    for i, (K, color, marker, line) in enumerate(((1, STOCHASTIC, "o", "--"),
                                                  (16, NET, "^", "-."))):
        middle.plot(T, [predicted(a, alpha, n, own.d, own.q, own.pe_dim, K)[0] for n in T], line,
                    color=THEORY)
        for run in runs["length"]:
            middle.plot(lengths, long_errors(run, lengths)[:, 0, i], marker, color=color,
                        fillstyle="none", markersize=10,
                        label=f"K = {K}" if run is runs["length"][0] else None)
    plots.zero_line(middle, zero_predictor(own))
    middle.set(title=f"random signs: trained at T = {own.T}", xscale="log", yscale="log",
               xlabel="length $T_{test}$", ylabel="error")
    middle.legend(frameon=False, loc="lower right", title="K draws in the test")
    orthonormal = runs["length, orthonormal"]
    c = orthonormal[0]["config"]
    L = np.geomspace(0.005, 0.25, 50)
    for k, n in enumerate(c.T_test[1::2]):
        color, marker = COLORS[k], "os^"[k]
        right.plot(L, theory.length_loss(L, c.T, n, c.d, c.q), "--", color=THEORY)
        for run in orthonormal:
            losses, errors = late_errors(run)
            right.plot(losses, errors[:, 2 + 2 * k], marker, color=color, fillstyle="none",
                       markersize=9, label=f"$T_{{test}}$ = {n}" if run is orthonormal[0] else None)
    right.plot(L, L, ":", color=THEORY)
    right.text(0.02, 0.011, "error = L", color=THEORY, fontsize=11, ha="right")
    right.set(title=f"orthonormal: trained at T = {c.T}, tested", xscale="log", yscale="log",
              xlabel="training loss L (falls to the right)", ylabel="error")
    right.legend(frameon=False)
    last.plot(L, theory.reach(L, c.T, c.d, c.q), "--", color=THEORY)
    for run in orthonormal:
        last.plot(*reaches(run)[:2], "o", color=STOCHASTIC, fillstyle="none", markersize=9)
    last.set(title="orthonormal: $T_{test}$ with an error of d/(4q)", xscale="log",
             yscale="log", xlabel="training loss L (falls to the right)",
             ylabel="length $T_{test}$")
    last.set_yticks([50, 100, 200], [50, 100, 200])
    last.yaxis.set_minor_formatter(NullFormatter())
    for axis in right, last:
        axis.invert_xaxis()
    plots.caption(figure, "The error at longer lengths follows from the training; with random "
                  "signs the loss has a floor",
                  "Dashed: predicted. Points: training on fresh batches of "
                  f"256, {len(SEEDS)} seeds; d = 5, q = 3. Top left: lr 4 falling to 0. Top right: "
                  f"$d_e$ = {own.pe_dim}, lr {own.lr:g}.\nBottom: $d_e$ = {c.pe_dim}, lr {c.lr:g}; "
                  "predicted from the training loss alone.")
    return figure


def claims_length(runs):
    """Floors and errors, measured over predicted; and how sure both are.

    Training leaves noise in the token-PE block of W, which changes sign with E: it adds to the
    error of one draw, and averages out over 16.
    """
    lengths, short, long = tested(runs), {1: [], 16: []}, []
    ratios, bare, sure = [], [], []
    for d_e, K in FLOORS:
        trained = runs[f"floor, d_e = {d_e}, K = {K}"]
        c = trained[0]["config"]
        least, error = floor(c.T, c.d, c.q, d_e, K)
        ratios += [last_loss(run) / least for run in trained]
        sure.append(error / least)
    for run in runs["length"]:
        c = run["config"]
        for T, (values, errors) in zip(lengths, long_errors(run, lengths)):
            for K, value, error in zip((1, 16), values, errors):
                guess, deviation = predicted(*numbers(run), T, c.d, c.q, c.pe_dim, K)
                (short[K] if T <= lengths[2] else long).append(value / guess)
                sure += [error / value, deviation / guess]
        W = run["W"].copy()
        W[:c.d] = 0
        guess, _ = predicted(*numbers(run), lengths[0], c.d, c.q, c.pe_dim, 1)
        bare.append(measured(run | {"W": W}, lengths[0])[0, 0] / guess)
    laws, ratio = [], []
    for run in runs["length, orthonormal"]:
        c = run["config"]
        losses, errors = late_errors(run)
        laws.append(errors[:, 1:] / theory.length_loss(losses[:, None], c.T, np.array(c.T_test),
                                                       c.d, c.q))
        _, found, guess = reaches(run)
        ratio += list(found / guess)
        sure.append((run["se"] / run["error"]).max())
    return [("all d_e, K: training loss / floor", ratios, 0.95, 1.1),
            ("T to 4 T, K = 16: error / predicted", short[16], 0.95, 1.1),
            ("T to 4 T, K = 1: error / predicted", short[1], 0.95, 1.2),
            ("T, K = 1, token-PE block of W made 0: the same", bare, 0.97, 1.03),
            ("longer, both K: error / predicted", long or short[1], 0.95, 1.05),
            ("standard errors of all of these, relative", sure, None, 0.03),
            ("orthonormal, T_test: error / law of length", np.concatenate(laws), 0.8, 1.2),
            ("orthonormal: reach, measured / predicted", ratio, 0.85, 1.15)]


# full_model: keys [Z, z_query]


@functools.cache
def full_descent(T, d, q, query, lr, d_e, onehot=False):
    """L, a, ..., alpha of the full model, from step 0 to step 10^5."""
    if onehot:
        return theory.descend(lambda *x: theory.onehot_full_model_slopes(*x, T, d, q, query),
                              lr, 100_000, T - 1, 1, d)
    return theory.descend(lambda *x: theory.full_model_slopes(*x, T, d, q, query),
                          lr, 100_000, d_e, d)


def full_of(runs, arm):
    """The same with the settings of an arm, and the law that it tends to, as a function of t."""
    c = runs[arm][0]["config"]
    how = c.T, c.d, c.q, c.query, c.lr, c.pe_dim, c.pe == "onehot"
    return full_descent(*how), lambda t: theory.full_model_law(t, *how)


def full_model(runs):
    """L against t for both queries, and the attention of z_query to itself."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5.6))
    t = np.unique(np.geomspace(10, 100_000, 200).astype(int))
    sums = [(f"sum, q = {q}", f"q = {q}") for q in (2, 3, 5)]
    means = [(f"mean, q = {q}", f"mean, q = {q}") for q in (2, 3, 5)]
    for axis, arms in (axes[0], sums), (axes[1], [*means, ("sum, one-hot", "sum, q = 3, one-hot")]):
        for (arm, label), color, marker in zip(arms, (*COLORS, "#CC79A7"), "os^D"):
            c, (path, law) = runs[arm][0]["config"], full_of(runs, arm)
            axis.plot(t, path[0, t], color=color, linewidth=1.5)
            axis.plot(t[t >= 1000], law(t[t >= 1000]), "--", color=THEORY)
            edges = np.unique(np.geomspace(10, c.steps, 13).astype(int))
            for run in runs[arm]:
                means_of = [run["loss"][i:j].mean() for i, j in zip(edges, edges[1:])]
                axis.plot(np.sqrt(edges[1:] * edges[:-1]), means_of, marker, color=color,
                          fillstyle="none", markersize=8,
                          label=label if run is runs[arm][0] else None)
        axis.set(xscale="log", yscale="log", xlabel="step t", ylim=(1e-4, 2))
        axis.legend(frameon=False, loc="lower left", fontsize=12)
    for query, color in ("sum", FIXED), ("mean", STOCHASTIC):
        (_, a, _), scale = full_of(runs, f"{query}, q = 3")[0], 1 if query == "sum" else 1 / 3
        others = np.exp(-a[t] * scale * scale * 3)
        share = 1 / (1 + 3 * np.exp(a[t] * scale) * others + (c.T - 3) * others)
        axes[2].plot(t, share, color=color)
        axes[2].text(90_000, share[-1] - 0.03, query, color=color, weight="bold", ha="right",
                     va="top")
    axes[0].set(title="sum, orthonormal: L falls like $t^{-1/q}$", ylabel="loss L")
    axes[1].set(title="mean, or one-hot: L falls like 1/t")
    axes[2].set(title="attention on the query", xscale="log", xlabel="step t",
                xlim=(10, None), ylim=(0, 1.05))
    plots.caption(figure, "The full model: sum or mean decides the rate, unless encodings are "
                  "one-hot", f"Keys [Z, $z_{{query}}$], T = {c.T}, d = {c.d}, $d_e$ = 20 "
                  f"(one-hot 40), lr {c.lr:g}. Coloured lines: exact recursion. Dashed: what it "
                  "tends to.\nPoints: training on fresh batches of 256, "
                  f"{len(SEEDS)} seeds. Right: q = 3, orthonormal, by the recursion.")
    return figure


def claims_full_model(runs):
    """The laws over the recursion, and sampled training over the recursion."""
    rows, over = [], {}
    for query in "sum", "mean":
        paths = [full_of(runs, f"{query}, q = {q}") for q in (2, 3, 5)]
        L = paths[1][0][0]
        rows.append((f"{query}, q = 3: exponent of L at t = 10^5",
                     [-np.log(L[-1] / L[50_000]) / math.log(2)],
                     *((0.32, 0.345) if query == "sum" else (0.95, 1.05))))
        rows.append((f"{query}, q = 2, 3, 5: L / law at t = 10^5",
                     [path[0, -1] / law(100_000) for path, law in paths], 0.85, 1.1))
        over[query] = [f"{query}, q = {q}" for q in (2, 3, 5)]
    path, law = full_of(runs, "sum, one-hot")
    rows.append(("one-hot, sum: L / law at t = 10^5", [path[0, -1] / law(100_000)], 0.9, 1.1))
    for name, arms, most in (("sum", over["sum"], 1.3), ("mean", over["mean"], 1.05),
                             ("one-hot, sum", ["sum, one-hot"], 1.1)):
        ratios = []
        for arm in arms:
            steps, L = runs[arm][0]["config"].steps, full_of(runs, arm)[0][0]
            ratios += [last_loss(run) / L[steps - steps // 10:steps].mean() for run in runs[arm]]
        rows.append((f"{name}: sampled loss / recursion, at the end", ratios, 0.9, most))
    return rows


# data: full-batch gradient descent on N sequences


def final(runs, arm, T, N):
    """Test error and training loss over d/(2q) for each seed (2, seeds); nan if it diverged."""
    found = runs[f"{arm}, T = {T}, N = {N}"]
    return np.array([[run["error"][-1, 0] for run in found],
                     [run["loss"][-100:].mean() for run in found]]) / zero_predictor(
                         found[0]["config"])


def needed(runs, arm, T):
    """The least N with a test error under 10 %, for each seed, by plots.crossing."""
    sizes = NEEDED[arm][T]
    errors = np.array([final(runs, arm, T, N)[0] for N in sizes]).T
    return np.array([plots.crossing(sizes, np.where(np.isnan(seed), 10, seed), 0.1)
                     for seed in errors])


def data(runs):
    """How many sequences full-batch gradient descent needs, by encoding, and nets beside it.

    Derived, for stochastic orthonormal PE.  The sequences X, y are fixed, but the law of E is as
    before: the expected gradient keeps W = a W* and V = [V_x, 0], by the argument of theory.py for
    the PE-PE block, and by E -> -E for V_e and the token-PE block.  V_x is free, as fixed X have no
    symmetry.  So 1 + d^2 numbers are trained, whatever T is.  Heuristic: V_x begins as a regression
    of targets on means of all T tokens, where trace V_x / d = 1 +- sqrt(T / (q d N)).  Where it is
    negative a falls, attention goes to the other tokens, and training is stuck.  That has the
    probability Phi(-sqrt(q d N / T)), under 5 % for N above 2.7 T / (q d).

    Derived, for one-hot PE.  A column of W moves only if its position is in some y.  If no test
    position was ever selected, W z_query = 0, attention is uniform, and the loss at least
    (1 - q/T) d/(2q); which has the probability (1 - q/T)^(q N) or so.  So an error under 10 % of
    d/(2q) needs N above T/q^2 ln 10, on average.  Heuristic: W has T^2 entries, and each position
    is selected only m = q N / T times.  The first gradient gives the m-fold noise sqrt(m d/q) to
    the entry of a pair of positions, and the signal m d/q to the diagonal.  In the logits of a test
    sequence q entries add, and the largest of T noises is sqrt(2 ln T) deviations: signal above
    noise needs N above (2q/d) T ln T.  That growth in T is what is measured; the measured N is
    about twice that, and is not proportional to q/d.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 5.8))
    for arm, (color, style) in DATA.items():
        sizes = NET_N if "net" in arm else DATA_N
        values = np.array([final(runs, arm, 20, N) for N in sizes])         # (sizes, 2, seeds)
        for axis, part, top in (left, values[:, 0], 5), (middle, np.maximum(values[:, 1], 1e-4), 2):
            plots.band(axis, sizes, part.T, color, label=arm, marker=style[0],
                       linestyle=style[1:], fillstyle="none")
            lost = [N for N, row in zip(sizes, part) if np.isnan(row).any()]
            axis.plot(lost, [top] * len(lost), "x", color=color, markersize=12)
    for axis in left, middle:
        axis.set(xscale="log", yscale="log", xlabel="training sequences N")
        axis.set_xticks(NET_N, NET_N)
        axis.minorticks_off()
    left.axhline(0.1, color=THEORY, linewidth=1, linestyle=":")
    left.text(16, 0.075, "10 %", color=THEORY, fontsize=11, va="top")
    left.set(title="T = 20: test error over d/(2q)", ylim=(1e-3, 6))
    middle.set(title="T = 20: training loss over d/(2q)", ylim=(5e-5, 2.5))
    middle.legend(frameon=False, fontsize=12)
    for arm, tried in NEEDED.items():
        color, style = DATA[arm]
        for T, sizes in tried.items():
            least = needed(runs, arm, T)
            right.plot([T] * len(least), least, style[0], color=color, fillstyle="none",
                       markersize=10)
            lost = [N for N in sizes if np.isnan(final(runs, arm, T, N)).any()]
            right.plot([T] * len(lost), lost, "x", color=color, markersize=8)
    T = np.geomspace(10, 80, 20)
    for N, text in (4 / 3 * T * np.log(T), "(2q/d) T ln T"), (2.7 * T / 6, "2.7 T/(qd)"):
        right.plot(T, N, "--", color=THEORY)
        right.text(T[7], N[7] / 1.3, text, color=THEORY, fontsize=12, va="top")
    right.text(11, 120, "one-hot", color=FIXED, weight="bold")
    right.text(11, 13, "stochastic", color=STOCHASTIC, weight="bold")
    right.set(title="N for a test error under 10 %", xscale="log", yscale="log", xlabel="length T",
              ylim=(1.5, 2000))
    right.set_xticks(list(tried), list(tried))
    right.minorticks_off()
    plots.caption(figure, "At T = 20 stochastic encodings learn from 10 sequences, one-hot ones "
                  "need 160", "One full batch of N sequences, d = 3, q = 2. Attention: gradient "
                  f"descent, lr T/40, 4000 steps. Nets: Adam, 600 steps. {len(SEEDS)} seeds.\n"
                  "Crosses: some run diverged. Training losses below $10^{-4}$ are drawn there. "
                  "Right, dashed: heuristics (docstring of `data`).")
    return figure


def claims_data(runs):
    """How N grows with T, and who memorizes."""
    fixed = np.array([final(runs, arm, 20, N) for arm in ("one-hot", "fixed")
                      for N in (16, 32)])                                   # (4, 2, seeds)
    nets = [final(runs, arm, 20, N)[0] for arm in DATA if "net" in arm for N in NET_N]
    T = np.array(list(NEEDED["one-hot"]))
    found = {arm: np.array([needed(runs, arm, length) for length in T]) for arm in NEEDED}
    powers = np.polyfit(np.log(T), np.log(found["one-hot"]), 1)[0]
    return [("one-hot, all T: N needed / (T ln T)",
             np.ravel(found["one-hot"].T / (T * np.log(T))), 2, 3.5),
            ("one-hot: the power of T that N needed follows", powers, 1, 1.4),
            *[(f"stochastic, T = {length}: N needed", found["stochastic"][i], 2, 32)
              for i, length in enumerate(T)],
            ("T = 20, N = 16, 32, fixed: test error", fixed[:, 0], 1, None),
            ("the same: training loss", fixed[:, 1], None, 0.001),
            ("T = 20, nets, N up to 4096: test error", np.ravel(nets), 0.9, None)]


# width: the d_e that is needed, to T = 10^9

LONG_T = [10, 20, 40, 80, 160, 320, 10 ** 3, 10 ** 4, 10 ** 6, 10 ** 9]


@functools.cache
def predicted_widths(q, K, trained):
    """width.needed_width for an error of SHARE d/(2q) at all LONG_T, and standard errors."""
    rng = np.random.default_rng(0)
    return np.transpose([width.needed_width(T, q, plots.SHARE, K, rng, trained, 10_000)
                         for T in LONG_T])


GROWTH = [      # draws, weights as trained or the best ones, label, the power of ln T that fits
    (1, False, "one draw, best weights", 2), (16, True, "16 draws, weights as trained", 2),
    (16, False, "16 draws, best weights", 1), (math.inf, False, "expectation, best weights", 1)]


def fitted_widths(values, power):
    """The fit A + B (ln T)^power to the d_e needed at LONG_T, by least squares from T = 160 on."""
    x = np.log(LONG_T) ** power
    return np.polyval(np.polyfit(x[4:], values[4:], 1, w=1 / values[4:]), x)


def needed_d_e(runs):
    """The d_e that attention needs against T: trained, predicted, and for one draw or all."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6))
    for q, color, marker in zip((1, 2, 3), COLORS, "os^"):
        values, errors = predicted_widths(q, 16, True)
        left.errorbar(LONG_T, values, 2 * errors, color=color, linewidth=1.5, label=f"q = {q}")
        if q < 3:
            left.plot(LONG_T, [width.birthday_width(T, q, plots.SHARE, 16) for T in LONG_T], "--",
                      color=THEORY)
        for T in TRAINED[q]:
            left.plot([T] * len(SEEDS), plots.needed_widths(runs, T, q), marker, color=color,
                      fillstyle="none", markersize=9)
    T = np.array(LONG_T)
    left.plot(T, np.log2(T), ":", color=THEORY)
    left.text(2e4, 9, "dotted: $\\log_2 T$", color=THEORY)
    nets = [plots.net_width(n, 5, 3) for n in LONG_T[:6]]
    left.plot(LONG_T[:6], nets, "-.", color=THEORY)
    left.text(300, 600, "every net: 4.5 T or more", color=THEORY)
    left.set(title="weights as training finds them, 16 draws in the test", xscale="log",
             yscale="log", xlabel="length T", ylabel="$d_e$, or width of a net", ylim=(3, 1500))
    left.legend(frameon=False, loc="lower right")
    for (K, trained, text, power), color in zip(GROWTH, (FIXED, NET, STOCHASTIC, "#CC79A7")):
        values, errors = predicted_widths(3, K, trained)
        right.errorbar(T, values, 2 * errors, color=color, fmt="o", label=text)
        right.plot(T[4:], fitted_widths(values, power)[4:], "--", color=THEORY, linewidth=1.5)
        right.text(T[-1], values[-1] * 1.15, ("ln T", "$(\\ln T)^2$")[power - 1], color=color,
                   ha="right", va="bottom")
    right.set(title="q = 3: averaging decides how it grows", xscale="log", yscale="log",
              xlabel="length T", ylabel="$d_e$", ylim=(2, 5e4))
    right.legend(frameon=False, loc="upper left", fontsize=12)
    plots.caption(figure, "Attention needs a width like ln T or (ln T)², a net one of 4.5 T",
                  f"$d_e$ of random signs for an error of {plots.SHARE:.0%} of d/(2q). "
                  "Left, points: trained, 3 seeds; lines: predicted; dashed: birthday law.\n"
                  "Right: predicted, with two standard errors; dashed: fits of A + B ln T or A + "
                  "B $(\\ln T)^2$. Width is not all: the plateau of training takes $T^2$/(2 lr d) "
                  "steps.")
    return figure


def claims_width(runs):
    """Trained (the mean of the seeds) over predicted d_e, the birthday law, the powers of ln T."""
    rows = []
    for q, sizes in TRAINED.items():
        predicted_d_e = dict(zip(LONG_T, predicted_widths(q, 16, True)[0]))
        spread = [plots.needed_widths(runs, T, q).std(ddof=1) / math.sqrt(3) / predicted_d_e[T]
                  for T in sizes]
        rows.append((f"q = {q}: standard error of trained d_e / d_e", spread, None, 0.06))
        rows.append((f"q = {q}: trained d_e / predicted, all T",
                     [plots.needed_widths(runs, T, q).mean() / predicted_d_e[T] for T in sizes],
                     0.9, 1.1))
    for q in 1, 2:
        law = [width.birthday_width(T, q, plots.SHARE, 16) for T in LONG_T]
        rows.append((f"q = {q}: predicted / birthday law",
                     predicted_widths(q, 16, True)[0] / law, 0.97, 1.03))
    for K, trained, text, power in GROWTH:
        values, names = predicted_widths(3, K, trained)[0], ("ln T", "(ln T)^2")
        misfit = [abs(fitted_widths(values, p) / values - 1)[4:].max() for p in (power, 3 - power)]
        rows.append((f"q = 3, {text}: misfit of {names[power - 1]}", misfit[:1], None, 0.08))
        rows.append((f"q = 3, {text}: misfit of {names[2 - power]}", misfit[1:], 0.1, None))
    sure = [predicted_widths(q, 16, True)[1] / predicted_widths(q, 16, True)[0] for q in TRAINED]
    return [*rows, ("standard errors of predicted d_e, relative", sure, None, 0.03)]


FIGURES = {     # name: the drawing, and the arms that it needs
    "dynamics": (dynamics, [f"{law}, {steps} steps" for law in LAWS for steps in STOPS]),
    "cost": (cost, []),
    "length": (length, ["length", "length, orthonormal",
                        *[f"floor, d_e = {d_e}, K = {K}" for d_e, K in FLOORS]]),
    "full_model": (full_model, [*[f"{query}, q = {q}" for query, q in FULL], "sum, one-hot"]),
    "data": (data, [f"{arm}, T = {T}, N = {N}" for arm, T, N in DATA_RUNS]),
    "width": (needed_d_e, [plots.width_name(T, d_e, q) for q, lengths in TRAINED.items()
                           for T, sizes in lengths.items() for d_e in sizes]),
}
CLAIMS = {"dynamics": claims_dynamics, "cost": claims_cost, "length": claims_length,
          "full_model": claims_full_model, "data": claims_data, "width": claims_width}


def main():
    """Draw the figures that the command line names, and print the table of their claims."""
    drawn = plots.main(FIGURES, arms, HERE / "figures", __doc__)
    rows = [(name, *row) for name, runs in drawn.items() for row in CLAIMS[name](runs)]
    if rows:
        print(claims.table(rows))
    if list(drawn) == list(FIGURES):
        (HERE / "figures" / "claims.txt").write_text(claims.table(rows))


if __name__ == "__main__":
    main()
