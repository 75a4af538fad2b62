"""Figures of what theory.py derives, over training by train.py; and of how much data is needed.

    python beyond/theory_plots.py                   all, into beyond/figures/, and their claims
    python beyond/theory_plots.py data --quick      one of them, on small tasks, into runs/quick/

Theory is grey and dashed, what is measured is coloured.  Flags, seeds and the keeping of runs are
those of plots.py.
"""

import functools
import math
import os
import sys
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: the processes are parallel, not their algebra
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

import plots
import sts
import theory
import train
from plots import FIXED, SEEDS, STOCHASTIC, THEORY, THIRD, zero

COLORS = STOCHASTIC, FIXED, THIRD
LAWS = {"one-hot": ("onehot", FIXED), "orthonormal": ("orthonormal", STOCHASTIC),
        "rademacher": ("rademacher", THIRD)}
COSTS = {"q = 3, L = 0.01 d/(2q)": [(1, 3, 0.01), (5, 3, 0.01), (20, 3, 0.01)],
         "d = 5, L = 0.01 d/(2q)": [(5, 1, 0.01), (5, 3, 0.01), (5, 10, 0.01)],
         "d = 5, q = 3": [(5, 3, 0.1), (5, 3, 0.01), (5, 3, 0.001)]}     # d, q, L over d/(2q)
COST_T = 50, 100, 200, 500, 1000
FLOOR_D_E = 16, 32, 64, 128                                     # predicted for each K, and trained:
FLOORS = [(16, 1), (32, 1), (64, 1), (128, 1), (16, 4), (32, 4), (64, 4), (16, 16), (32, 16)]
TOKENS = 30_000                 # in a batch of sequences of any length, for measured errors
DATA = {"stochastic": (STOCHASTIC, "o-"), "one-hot": (FIXED, "s--"),
        "fixed rademacher": (THIRD, "^-."), "net, 120 units": ("#CC79A7", "D-"),
        "net, 20 units": ("#777777", "v:")}
DATA_N = [12, 16, 32, 64, 128, 256, 512]                        # for attention at T = 20
NET_N = [16, 64, 256, 1024, 4096]
NEEDED = {"stochastic": {T: [4, 6, 8, 12, 16, 24, 32] for T in (10, 20, 40, 80)},
          "one-hot": {T: [k * T for k in (5, 8, 12)] for T in (10, 20, 40, 80)}}
DATA_RUNS = sorted({(arm, 20, N) for arm in DATA for N in (NET_N if "net" in arm else DATA_N)}
                   | {(arm, T, N) for arm in NEEDED for T, sizes in NEEDED[arm].items()
                      for N in sizes})


def arms(quick):
    """The runs of the figures: the settings of train.py for each name, without the seed."""
    def attention(full, small, **given):
        how = {"steps": small if quick else full, "evaluations": 1, "eval_sequences": 2,
               "T_test": [given["T"]], "q_test": []}
        return how | given

    found = {}
    for law, how in (("one-hot", {"pe": "onehot", "pe_dim": 50}), ("rademacher", {"pe_dim": 64}),
                     ("orthonormal", {"pe_family": "orthonormal", "pe_dim": 100})):
        found[law] = attention(4000, 200, T=50, d=5, q=3, lr=1.0, **how) | {"evaluations": 100}
    for d_e, K in FLOORS:
        found[f"floor {d_e} {K}"] = attention(2000, 20, T=20, d=5, q=3, lr=4.0, schedule="cosine",
                                              pe_dim=d_e, draws=K)
    found["length"] = attention(6000, 200, T=20 if quick else 100, d=5, q=3, lr=2.0, pe_dim=170)
    for query in "sum", "mean":
        for q in 2, 3, 5:
            found[f"{query} {q}"] = attention(
                2000, 200, T=20, d=5, q=q, lr=1.0, pe_family="orthonormal", pe_dim=20,
                attend_to_query=True, query=query) | {"evaluations": 100}
    for arm, T, N in DATA_RUNS:
        task = {"T": T, "d": 3, "q": 2, "batch": min(N, 64) if quick else N, "full_batch": True,
                "eval_sequences": 200 if quick else 2000}
        if "net" in arm:
            found[f"{arm} {T} {N}"] = {"model": "fcn", "width": int(arm.split()[1]), **task,
                                       "steps": 20 if quick else 600, "evaluations": 1}
        else:
            how = {"stochastic": {"pe_family": "orthonormal"}, "one-hot": {"pe": "onehot"},
                   "fixed rademacher": {"pe": "fixed"}}[arm]
            found[f"{arm} {T} {N}"] = attention(
                4000, 20, lr=T / 40, **task, **how,
                pe_dim=2 * T if arm == "fixed rademacher" else T)
    return found


train_fresh = plots.train_group


def train_group(configs):
    """As plots.train_group; those on N fixed sequences one by one, and kept if they diverge, too.

    A run that diverged has no evaluation at its end.
    """
    if not configs[0]["full_batch"]:
        return train_fresh(configs)
    for c in configs:
        run, (X, y) = train.start(c), train.batch(c, 0)
        with np.errstate(all="ignore"):
            try:
                for _ in range(c["steps"]):
                    train.step(run, X, y)
                train.evaluate(run)
            except FloatingPointError:
                pass
        train.save(run | {log: np.array(run[log]) for log in train.LOGS}, plots.kept(c))
    return len(configs)


def caption(figure, headline, text):
    """A headline, and a text below a figure."""
    figure.suptitle(headline, weight="bold")
    figure.supxlabel(text, fontsize=12)


# dynamics: training on samples, and the exact recursion


@functools.cache
def exact(law, T, d, q, lr, steps, d_e):
    """L, a, alpha of the population loss, and their standard errors; both (3, steps + 1)."""
    return theory.population_descent(law, T, d, q, lr, steps, d_e, rng=np.random.default_rng(0))


def exact_of(runs, arm):
    """The same with the settings of an arm."""
    c = runs[arm][0]["config"]
    return exact(LAWS[arm][0], c["T"], c["d"], c["q"], c["lr"], c["steps"], c["pe_dim"])


def derived_slope(c):
    """4 lr / ||W*||^2, the growth of 1/L in a step."""
    return 4 * c["lr"] / (c["T"] - 1 if c["pe"] == "onehot" else c["pe_dim"])


def dynamics(runs):
    """Loss, 1/L, and the two numbers a and alpha: measured, and exact."""
    figure, axes = plt.subplot_mosaic([["L", "1/L", "a"], ["L", "1/L", "alpha"]], figsize=(14, 5.2))
    for arm, (_, color) in LAWS.items():
        path, _ = exact_of(runs, arm)
        c, (t, _) = runs[arm][0]["config"], plots.smooth_loss(runs[arm][0])
        losses = np.array([plots.smooth_loss(run)[1] for run in runs[arm]])
        at, L = runs[arm][0]["eval_step"], path[0]
        curves = {"L": (t, losses, L)} | {
            name: (at, [run[name] for run in runs[arm]], values)
            for name, values in zip(("a", "alpha"), path[1:])}
        if arm != "rademacher":         # which has a floor
            curves["1/L"] = t, 1 / losses, 1 / L
            late = t[60:]
            axes["1/L"].plot(late, 0.8 / L[-1] + derived_slope(c) * (late - t[-1]), ":",
                             color=THEORY)
        for name, (x, sampled, values) in curves.items():
            plots.band(axes[name], x, sampled, color, linewidth=5, solid_capstyle="butt")
            axes[name].plot(values, "--", color=THEORY, linewidth=1.5)
        axes["L"].annotate(arm, (t[-1], L[-1]), (0, 30), ha="right", color=color, weight="bold",
                           textcoords="offset points")
    axes["L"].set(title="the loss L", xlabel="step t", yscale="log")
    axes["1/L"].set(title="1/L, one-hot and orthonormal", xlabel="step t", ylim=(0, None))
    axes["1/L"].text(0.03, 0.9, "dotted: slope 4 lr/$\\|W^*\\|^2$", color=THEORY,
                     transform=axes["1/L"].transAxes)
    axes["a"].set(title="a, of W = a W*", xticklabels=[])
    axes["alpha"].set(title="$\\alpha$, of V = $\\alpha$ V*", xlabel="step t")
    caption(figure, "Training on samples follows the two numbers that theory leaves of W and V",
            f"T = {c['T']}, q = {c['q']}, d = {c['d']}, n = {c['batch']}, lr {c['lr']:g}, $d_e$ = "
            f"50 (one-hot), 100 (orthonormal), 64 (rademacher). Dashed: exact. {len(SEEDS)} seeds.")
    return figure


def claims_dynamics(runs):
    """What is measured over what is exact, for all laws; noise of the gradient causes a delay."""
    columns, errors = [], exact_of(runs, "rademacher")
    for arm in LAWS:
        L, a, alpha = exact_of(runs, arm)[0]
        smooth = np.array([np.mean(part) for part in np.array_split(L[:-1], 100)])
        for run in runs[arm]:
            t, losses = plots.smooth_loss(run)
            half = [np.interp(-L[0] / 2, -np.minimum.accumulate(values), t)
                    for values in (losses, smooth)]
            columns.append((half[0] / half[1], losses[-1] / smooth[-1], run["a"][-1] / a[-1],
                            run["alpha"][-1] / alpha[-1]))
    slopes = [plots.late_slope(run)[0] / derived_slope(run["config"])
              for arm in ("one-hot", "orthonormal") for run in runs[arm]]
    rows = zip(("step at which L has halved", "L at the end", "a at the end", "alpha at the end"),
               zip(*columns), ((0.9, 1.15), (0.9, 1.1), (0.95, 1.05), (0.95, 1.05)))
    return [(f"{name}, sampled / exact", values, *allowed) for name, values, allowed in rows] + [
        ("slope of 1/L / (4 lr/|W*|^2), not rademacher", slopes, 0.85, 1.05),
        ("standard error of the exact L, rademacher, / L", errors[1][0] / errors[0][0], None, 0.01)]


# cost: lr x steps, counted and in closed form


@functools.cache
def counted(d, q, share):
    """lr times the steps after which L <= share d/(2q), one-hot PE, lr 2, for the T of COST_T."""
    return np.array([2 * theory.count_steps(share, T, d, q, 2.0) for T in COST_T])


def cost(runs):
    """What gradient descent on the population loss costs, against T; one-hot PE."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5.2), sharey=True)
    T = np.geomspace(COST_T[0], 10 ** 5, 50)
    for axis, (fixed, sizes) in zip(axes, COSTS.items()):
        for (d, q, share), color, marker in zip(sizes, COLORS, "os^"):
            names = [f"d = {d}", f"q = {q}", f"L = {share:g} d/(2q)"]
            axis.plot(T, theory.predict_steps(share, T, d, q), "--", color=THEORY, linewidth=1.5)
            axis.plot(COST_T, counted(d, q, share), marker, color=color, markersize=10,
                      label=names[list(axes).index(axis)])
        axis.set(title=fixed, xscale="log", yscale="log", xlabel="sequence length T")
        axis.legend(frameon=False, handletextpad=0.1)
    axes[0].set_ylabel("lr x steps")
    caption(figure, "What training costs on long sequences is the plateau, $T^2/(2d)$",
            "One-hot PE, population loss. Points: counted at lr 2; dashed: closed form, for d well "
            "below T.")
    return figure


def claims_cost(runs):
    """The closed form over the count, for all sizes that are drawn."""
    sizes = sorted({size for sizes in COSTS.values() for size in sizes})
    ratios = {(d, q, share): theory.predict_steps(share, np.array(COST_T), d, q)
              / counted(d, q, share) for d, q, share in sizes}
    plateau = [1e10 / (2 * d) / theory.predict_steps(share, 1e5, d, q) for d, q, share in sizes]
    return [("T = 1000: closed form / counted", [r[-1] for r in ratios.values()], 0.85, 1.1),
            ("T = 50, d = 1 or 5: the same",
             [r[0] for (d, _, _), r in ratios.items() if d < 20], 0.8, 1.1),
            ("T = 50, d = 20: the same", [ratios[20, 3, 0.01][0]], 0.5, 1),
            ("T = 10^5: T^2/(2d) / closed form", plateau, 0.9, 1.05)]


# length: what the dimension of rademacher PE buys


@functools.cache
def floor(T, d, q, d_e, K):
    """The least loss and its standard error, by draws that are not those which found the place."""
    rng = np.random.default_rng(0)
    _, a, alpha = theory.noise_floor(theory.sample_scores(rng, T, d_e, q, 500), d, q, K)
    return theory.predict_loss(rng, a, alpha, T, d, q, d_e, K)


@functools.cache
def predicted(a, alpha, T, d, q, d_e, K):
    """The error of a W*, alpha V* at length T, and its standard error."""
    return theory.predict_loss(np.random.default_rng(0), a, alpha, T, d, q, d_e, K, 0.008)


def predicted_of(run, T, K):
    """The same for the multiples of W* and V* that are nearest to the weights of a run."""
    c = run["config"]
    a, alpha = float(run["a"][-1]), float(run["alpha"][-1])
    return predicted(a, alpha, T, c["d"], c["q"], c["pe_dim"], K)


def measured(run, T):
    """The errors of a run at length T with 1 and with 16 draws, and standard errors: (2, 2).

    The mean of 8 batches, each with sequences and draws of its own.  From each loss a multiple of
    ||STS||^2 / 2 - d/(2q) is subtracted, which is 0 on average: the one that explains most of it.
    """
    c, rng, found = run["config"], np.random.default_rng((run["config"]["seed"], T)), []
    for _ in range(8):
        X, y = sts.sample_sts(rng, max(8, TOKENS // T), T, c["d"], c["q"], c["dtype"])
        E = (sts.positional_encoding("rademacher", T, c["pe_dim"], rng, 1, c["dtype"])[0]
             for _ in range(16))
        outputs = np.array([sts.forward(run["W"], run["V"], X, y, E_k)[0] for E_k in E])
        r, target = outputs - sts.sts_target(X, y), sts.sts_target(X, y)
        found.append([0.5 * (r ** 2).sum(axis=2).mean(axis=0),
                      0.5 * (r.mean(axis=0) ** 2).sum(axis=1),
                      0.5 * (target ** 2).sum(axis=1) - zero(c)])
    one, many, control = np.transpose(found, (1, 0, 2)).astype(float)       # (8, sequences) each
    means = []
    for losses in one, many:
        multiple = (losses * control).mean() / (control ** 2).mean()
        means.append((losses - multiple * control).mean(axis=1))
    return np.array([np.mean(means, axis=1), np.std(means, axis=1, ddof=1) / math.sqrt(8)])


def last_loss(run):
    """The mean loss in the last tenth of a run."""
    return run["loss"][-len(run["loss"]) // 10:].mean()


def tested(runs):
    """The lengths at which errors are measured; T = 20 is that of --quick."""
    T = runs["length"][0]["config"]["T"]
    return [T, 2 * T, 4 * T] + ([1000, 4000, 20_000] if T == 100 else [])


def long_errors(run, lengths):
    """measured at these lengths (lengths, 2, 2); kept in the run for the picture and its claims."""
    if "long" not in run:
        run["long"] = np.array([measured(run, T) for T in lengths])
    return run["long"]


def length(runs):
    """The noise floor against d_e; and how far a trained model goes on to longer sequences."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 5.4))
    c, own = runs["floor 16 1"][0]["config"], runs["length"][0]["config"]
    for K, color, marker in zip((1, 4, 16), COLORS, "os^"):
        least = [floor(c["T"], c["d"], c["q"], d_e, K)[0] for d_e in FLOOR_D_E]
        left.plot(FLOOR_D_E, least, "--", color=THEORY)
        points = [(d_e, last_loss(run)) for d_e, draws in FLOORS if draws == K
                  for run in runs[f"floor {d_e} {K}"]]
        left.plot(*np.transpose(points), marker, color=color, fillstyle="none", markersize=10,
                  label=f"K = {K}")
    left.set(title=f"the training loss ends at a floor (T = {c['T']})", xscale="log", yscale="log",
             xlabel="PE dimension $d_e$", ylabel="loss")
    left.set_xticks(FLOOR_D_E, FLOOR_D_E)
    left.minorticks_off()
    left.legend(frameon=False, title="K draws averaged")
    lengths = tested(runs)
    T = np.unique(np.geomspace(lengths[0], 5 * lengths[-1], 16).astype(int))
    a, alpha = (np.mean([run[key][-1] for run in runs["length"]]) for key in ("a", "alpha"))
    for i, (K, color, marker) in enumerate(((1, STOCHASTIC, "o"), (16, THIRD, "^"))):
        errors = [predicted(a, alpha, n, own["d"], own["q"], own["pe_dim"], K)[0] for n in T]
        right.plot(T, errors, "--", color=THEORY)
        for run in runs["length"]:
            right.plot(lengths, long_errors(run, lengths)[:, 0, i], marker, color=color,
                       fillstyle="none", markersize=10,
                       label=f"K = {K}" if run is runs["length"][0] else None)
    plots.answer_0(right, zero(own))
    right.set(title=f"trained at T = {own['T']}, then tested", xscale="log", yscale="log",
              xlabel="length $T_{test}$", ylabel="error")
    right.xaxis.set_minor_formatter(NullFormatter())
    right.legend(frameon=False, loc="lower right")
    caption(figure, "Rademacher encodings: the loss has a floor, the error rises with the length",
            f"Dashed: predicted. Points: {len(SEEDS)} seeds. d = {c['d']}, q = {c['q']}, n = "
            f"{c['batch']}. Left: lr {c['lr']:g} falling to 0. Right: $d_e$ = {own['pe_dim']}, "
            f"lr {own['lr']:g}.")
    return figure


def claims_length(runs):
    """Floors and errors, measured over predicted; and how sure both are.

    Training leaves noise in the token-PE block of W, which changes sign with E: it adds to the
    error of one draw, and averages out over 16.
    """
    lengths, short, long = tested(runs), {1: [], 16: []}, []
    ratios, bare, sure = [], [], []
    for d_e, K in FLOORS:
        trained = runs[f"floor {d_e} {K}"]
        c = trained[0]["config"]
        least, error = floor(c["T"], c["d"], c["q"], d_e, K)
        ratios += [last_loss(run) / least for run in trained]
        sure.append(error / least)
    for run in runs["length"]:
        for T, (values, errors) in zip(lengths, long_errors(run, lengths)):
            for K, value, error in zip((1, 16), values, errors):
                guess, deviation = predicted_of(run, T, K)
                (short[K] if T <= lengths[2] else long).append(value / guess)
                sure += [error / value, deviation / guess]
        W, d = run["W"].copy(), run["config"]["d"]
        W[:d] = 0
        guess, _ = predicted_of(run, lengths[0], 1)
        bare.append(measured(run | {"W": W}, lengths[0])[0, 0] / guess)
    return [("all d_e, K: training loss / floor", ratios, 0.95, 1.1),
            ("T to 4 T, K = 16: error / predicted", short[16], 0.95, 1.1),
            ("T to 4 T, K = 1: error / predicted", short[1], 0.95, 1.2),
            ("T, K = 1, token-PE block of W made 0: the same", bare, 0.97, 1.03),
            ("longer, both K: error / predicted", long or short[1], 0.95, 1.05),
            ("standard errors of all of these, relative", sure, None, 0.03)]


# full_model: keys [Z, z_query]


@functools.cache
def full_descent(T, d, q, query, lr, d_e):
    """L, a, alpha of the full model (3, 10^5 + 1)."""
    return theory.descend(lambda a, alpha: theory.full_model_slopes(a, alpha, T, d, q, query),
                          lr, 100_000, d_e, d)


def full_of(runs, arm):
    """The same with the settings of an arm."""
    c = runs[arm][0]["config"]
    return full_descent(c["T"], c["d"], c["q"], c["query"], c["lr"], c["pe_dim"])


def query_share(a, q, T, query):
    """The attention that z_query gives to itself."""
    c = 1 if query == "sum" else 1 / q
    others = np.exp(-a * c * c * q)
    return 1 / (1 + q * np.exp(a * c) * others + (T - q) * others)


def full_model(runs):
    """L against t for both queries, and the attention of z_query to itself."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 5.2))
    t = np.unique(np.geomspace(10, 100_000, 200).astype(int))
    for axis, query in zip(axes, ("sum", "mean")):
        for q, color, marker in zip((2, 3, 5), COLORS, "os^"):
            arm, late = f"{query} {q}", t[t >= 1000]
            c, path = runs[arm][0]["config"], full_of(runs, arm)
            axis.plot(t, path[0, t], color=color, linewidth=1.5)
            law = theory.full_model_law(late, c["T"], c["d"], q, query, c["lr"], c["pe_dim"])
            axis.plot(late, law, "--", color=THEORY)
            edges = np.unique(np.geomspace(10, c["steps"], 13).astype(int))
            for run in runs[arm]:
                means = [run["loss"][i:j].mean() for i, j in zip(edges, edges[1:])]
                axis.plot(np.sqrt(edges[1:] * edges[:-1]), means, marker, color=color,
                          fillstyle="none", markersize=8,
                          label=f"q = {q}" if run is runs[arm][0] else None)
            shown = path[1, t], run["eval_step"][1:], run["a"][1:]
            if q == 3:
                color = FIXED if query == "sum" else STOCHASTIC
                axes[2].plot(t, query_share(shown[0], q, c["T"], query), color=color, linewidth=1.5)
                axes[2].plot(shown[1], query_share(shown[2], q, c["T"], query), "o", color=color,
                             fillstyle="none", markevery=8, markersize=8)
                axes[2].text(90_000, query_share(shown[0][-1], q, c["T"], query) - 0.02, query,
                             color=color, weight="bold", ha="right", va="top")
        axis.set(xscale="log", yscale="log", xlabel="step t", ylim=(1e-4, 2))
    axes[0].set(title="query is the sum: $t^{-1/q}$", ylabel="loss L")
    axes[1].set(title="query is the mean: 1/t")
    axes[0].legend(frameon=False, loc="lower left")
    axes[2].set(title="attention on the query, q = 3", xscale="log", xlabel="step t",
                xlim=(10, None), ylim=(0, 1.05))
    caption(figure, "The full model: whether the query is a sum or a mean decides the rate",
            f"Keys [Z, $z_{{query}}$], T = {c['T']}, d = {c['d']}, $d_e$ = {c['pe_dim']}, "
            f"orthonormal, lr {c['lr']:g}. Lines: recursion; dashed: laws; points: sampled "
            f"training, n = {c['batch']}, {len(SEEDS)} seeds.")
    return figure


def claims_full_model(runs):
    """The laws over the recursion, and sampled training over the recursion."""
    rows, measured_over = [], []
    for query in "sum", "mean":
        ratios = []
        for q in 2, 3, 5:
            c, path = runs[f"{query} {q}"][0]["config"], full_of(runs, f"{query} {q}")
            law = theory.full_model_law(100_000, c["T"], c["d"], q, query, c["lr"], c["pe_dim"])
            ratios.append(path[0, -1] / law)
            end = path[0, c["steps"] - c["steps"] // 10:c["steps"]].mean()
            measured_over.append([last_loss(run) / end for run in runs[f"{query} {q}"]])
            if q == 3:
                slope = -np.log(path[0, -1] / path[0, 50_000]) / math.log(2)
                rows.append((f"{query}, q = 3: exponent of L at t = 10^5", [slope],
                             *((0.32, 0.345) if query == "sum" else (0.95, 1.05))))
        rows.append((f"{query}, q = 2, 3, 5: L / law at t = 10^5", ratios, 0.85, 1.1))
    return rows + [(f"{query}: sampled loss / recursion, at the end",
                    np.ravel(measured_over[i:i + 3]), 0.9, allowed)
                   for i, query, allowed in ((0, "sum", 1.3), (3, "mean", 1.05))]


# data: full-batch gradient descent on N sequences


def final(runs, arm, T, N):
    """Test error and training loss over d/(2q) for each seed (2, seeds); nan if it diverged."""
    found = []
    for run in runs[f"{arm} {T} {N}"]:
        c = run["config"]
        finished = run["eval_step"][-1] == c["steps"]
        found.append([value / zero(c) if finished else math.nan
                      for value in (run["error_T_test"][-1, 0], run["loss"][-100:].mean())])
    return np.transpose(found)


def needed(runs, arm, T):
    """The least N with a test error under 10 %, for each seed; nan if no N that was tried has it.

    The line through log error against log N crosses 10 % there, between the last N that is above,
    or diverged, and the next one.
    """
    sizes = NEEDED[arm][T]
    errors = np.log([final(runs, arm, T, N)[0] for N in sizes]) - math.log(0.1)
    least = []
    for seed in np.where(np.isnan(errors), 3, errors).T:
        above = max((i for i, error in enumerate(seed) if error >= 0), default=-1)
        if above in (-1, len(sizes) - 1):
            least.append(sizes[0] if above < 0 else math.nan)
        else:
            x = np.log(sizes[above:above + 2])
            least.append(math.exp(np.interp(0, -seed[above:above + 2], x)))
    return np.array(least)


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
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 5.6))
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
    left.set(title="test error over d/(2q)", ylim=(1e-3, 6))
    middle.set(title="training loss over d/(2q)", ylim=(5e-5, 2.5))
    middle.legend(frameon=False, fontsize=12)
    for arm, tried in NEEDED.items():
        color, style = DATA[arm]
        for T, sizes in tried.items():
            least = needed(runs, arm, T)
            right.plot([T] * len(least), least, style[0], color=color, fillstyle="none",
                       markersize=10)
            lost = [N for N in sizes if np.isnan(final(runs, arm, T, N)).any()]
            right.plot([T] * len(lost), lost, "x", color=color, markersize=8)
            if np.isnan(least).any():
                right.plot(T, 1.2 * sizes[-1], "^", color=color)
    T = np.geomspace(10, 80, 20)
    for N, text in (4 / 3 * T * np.log(T), "(2q/d) T ln T"), (2.7 * T / 6, "2.7 T/(qd)"):
        right.plot(T, N, "--", color=THEORY)
        right.text(T[7], N[7] / 1.3, text, color=THEORY, fontsize=12, va="top")
    right.set(title="N for an error under 10 %", xscale="log", yscale="log", xlabel="length T",
              ylim=(2, 2000))
    right.set_xticks(list(tried), list(tried))
    right.minorticks_off()
    caption(figure, "Redrawn encodings learn from some 20 sequences, one-hot ones need hundreds",
            "Full batch, d = 3, q = 2; left and middle T = 20. Gradient descent, lr T/40, 4000 "
            f"steps; nets: Adam, 600 steps. {len(SEEDS)} seeds.\nCrosses: some run diverged. Below "
            "$10^{-4}$ is drawn there. Right, dashed: heuristics (see the code).")
    return figure


def claims_data(runs):
    """How N grows with T, and who memorizes."""
    fixed = np.array([final(runs, arm, 20, N) for arm in ("one-hot", "fixed rademacher")
                      for N in (16, 32)])                                   # (4, 2, seeds)
    nets = [final(runs, arm, 20, N)[0] for arm in DATA if "net" in arm for N in NET_N]
    T = np.array(list(NEEDED["one-hot"]))
    found = {arm: np.array([needed(runs, arm, length) for length in T]) for arm in NEEDED}
    powers = np.polyfit(np.log(T), np.log(found["one-hot"]), 1)[0]
    return [("one-hot, all T: N needed / (T ln T)",
             np.ravel(found["one-hot"].T / (T * np.log(T))), 2, 3.5),
            ("one-hot: the power of T that N needed follows", powers, 1, 1.4),
            ("stochastic, all T: N needed", np.ravel(found["stochastic"]), 4, 32),
            ("T = 20, N = 16, 32, fixed: test error", fixed[:, 0], 1, None),
            ("the same: training loss", fixed[:, 1], None, 0.001),
            ("T = 20, nets, N up to 4096: test error", np.ravel(nets), 0.9, None)]


FIGURES = {     # name: the drawing, the claims, and the runs of each
    "dynamics": (dynamics, claims_dynamics, list(LAWS)),
    "cost": (cost, claims_cost, []),
    "length": (length, claims_length, ["length", *[f"floor {d_e} {K}" for d_e, K in FLOORS]]),
    "full_model": (full_model, claims_full_model,
                   [f"{query} {q}" for query in ("sum", "mean") for q in (2, 3, 5)]),
    "data": (data, claims_data, [f"{arm} {T} {N}" for arm, T, N in DATA_RUNS]),
}


def main():
    """Draw the figures that the command line names, and print the table of their claims."""
    plots.train_group = train_group
    plots.main(FIGURES, arms, HERE, __doc__)


if __name__ == "__main__":
    main()
