"""Figures of what theory.py and width.py derive, beside training by train.py.

    python beyond/theory_plots.py                   all, into beyond/figures/, and their claims
    python beyond/theory_plots.py noise --quick     one of them, on small tasks, into runs/quick/

Each figure has a part of this file: its runs, its drawing, and its claims.  An arm's key begins
with the name of its figure.  Theory is grey, what is measured is coloured.  Flags, seeds and kept
runs are as in plots.py.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import train        # first, since it sets the number of threads before NumPy loads

import functools
import math

import matplotlib.pyplot as plt
import numpy as np

import claims
import plots
import sts
import theory
import width
from claims import within
from plots import FIXED, NET, ONEHOT, STOCHASTIC, THEORY, zero_predictor

SIGNS = "#56B4E9"                               # random signs, beside orthonormal encodings
SHADES = STOCHASTIC, SIGNS, "#08306B", "#6A51A3"            # of blue: all stochastic
MARKERS, DASHES = "os^D", ("--", "-.", ":")
ARMS = {}                                       # the settings of each arm, by its key


def attention(steps, **given):
    """The settings of an arm: attention that is trained on fresh batches and hardly tested."""
    return {"d": 5, "q": 3, "fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [],
            "q_test": [], "steps": steps} | given


def arms(quick):
    """ARMS; with quick they have few steps and sequences."""
    return ARMS if not quick else {
        key: arm | {"steps": max(100, arm["steps"] // 20), "batch": min(arm.get("batch", 64), 64),
                    "eval_sequences": min(arm["eval_sequences"], 50)} for key, arm in ARMS.items()}


# What is measured of runs


def numbers(run):
    """a and alpha: the multiples of W* and V* that are nearest to the weights of a run."""
    c = run["config"]
    truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return [float((run[name] * star).sum() / (star ** 2).sum()) for name, star in zip("WV", truth)]


def last_loss(run):
    """The mean loss in the last tenth of a run."""
    return run["loss"][-len(run["loss"]) // 10:].mean()


def half_step(run):
    """The step at which the smoothed loss has fallen to half of d/(2q); nan if it has not."""
    t, L = plots.smooth_loss(run)
    return np.interp(-zero_predictor(run["config"]) / 2, -np.minimum.accumulate(L), t, right=np.nan)


def growth(run):
    """The growth of 1/L in a step, in the last two thirds of a run.

    The line 1/L = A + B t is fitted with the weights L, as noise is a share of L.
    """
    t, L = (values[33:] for values in plots.smooth_loss(run))
    return np.polyfit(t, 1 / L, 1, w=L)[0]


def seeds_row(claim, values, least=None, greatest=None):
    """A claim about means over the seeds, the last axis; with the largest of their errors."""
    values = np.array(values)
    error = values.std(axis=-1, ddof=1).max() / math.sqrt(values.shape[-1])
    row = within(claim, values.mean(axis=-1), least, greatest)
    return row._replace(measured=f"{row.measured} +- {error:.2g}")


def W_norm2(c):
    """||W*||^2."""
    return c.T - 1 if c.pe == "onehot" else c.d_e


@functools.cache
def descent(law, T, d, q, lr, steps, norm2):
    """L, a, alpha of gradient descent on the population loss (3, steps + 1).

    For random signs on a sample of 2400 draws of the scores.
    """
    if law != "rademacher":
        return theory.descend(theory.onehot_slopes, lr, steps, (norm2, d), T, d, q)
    scores = width.sample_scores(np.random.default_rng(0), T, norm2, q, 2400)
    return theory.descend(width.stochastic_slopes, lr, steps, (norm2, d), scores, d, q)


def exact(run):
    """The path of the recursion in a run's own setting (3, steps + 1)."""
    c = run["config"]
    return descent(train.law(c), c.T, c.d, c.q, c.lr, c.steps, W_norm2(c))


def exact_run(run):
    """The run that the recursion would make."""
    return {"config": run["config"], "loss": exact(run)[0, :-1]}


def points(axis, x, y, marker, color, **style):
    """Open markers, for what is measured."""
    axis.plot(np.ravel(x), np.ravel(y), marker, color=color,
              **{"fillstyle": "none", "markersize": 9} | style)


# dynamics: training on samples, and the exact recursion

LAWS = {"one-hot": ({"pe": "onehot", "d_e": 50}, ONEHOT),
        "orthonormal": ({"law": "orthonormal", "d_e": 100}, STOCHASTIC),
        "random signs": ({"d_e": 64}, SIGNS)}
STOPS = 150, 400, 1000, 4000                    # a and alpha are measured at the end of a run


ARMS |= {("dynamics", law, steps): attention(steps, T=50, lr=1.0, **how)
         for law, (how, _) in LAWS.items() for steps in STOPS}


def dynamics(runs):
    """Loss, 1/L, and the two numbers a and alpha: measured, and exact."""
    figure, axes = plt.subplot_mosaic([["L", "1/L", "a"], ["L", "1/L", "alpha"]], figsize=(14, 6))
    for (law, (_, color)), marker, dash in zip(LAWS.items(), MARKERS, DASHES):
        longest = runs["dynamics", law, STOPS[-1]]
        path, (t, _) = exact(longest[0]), plots.smooth_loss(longest[0])
        L = np.array([plots.smooth_loss(run)[1] for run in longest])
        for name, measured, values in ("L", L, path[0]), ("1/L", 1 / L, 1 / path[0]):
            if (law, name) != ("random signs", "1/L"):              # which has a floor
                plots.band(axes[name], t, measured, color, linewidth=5, marker=marker,
                           markevery=(30, 20), markersize=11, label=law)
                axes[name].plot(values, dash, color=THEORY)
        for k, name in enumerate(("a", "alpha")):
            axes[name].plot(path[k + 1], dash, color=THEORY)
            points(axes[name], *np.transpose([
                (run["config"].steps, numbers(run)[k]) for steps in STOPS
                for run in runs["dynamics", law, steps]]), marker, color)
    c, shown = longest[0]["config"], [runs["dynamics", law, STOPS[-1]][0] for law in LAWS]
    axes["L"].set(title="loss L", xlabel="step t", yscale="log")
    axes["L"].legend(title="encodings", loc="upper right")
    axes["1/L"].set(title="1/L", xlabel="step t", ylim=(0, None))
    axes["a"].set(title="a, with W near a W*", xticklabels=[])
    axes["alpha"].set(title="$\\alpha$, with V near $\\alpha$ V*", xlabel="step t")
    plots.caption(figure, "Grey: exact, without noise. On the plateau noise divides $\\alpha$ by "
                  f"1 + lr T/(2n) = {theory.noise_delay(c.lr, c.T, c.batch):.2f}. $d_e$ = 50, 100 "
                  "and 64 (random signs have a floor, and no 1/L).", *shown)
    return figure


def claims_dynamics(runs):
    """What is measured over what is exact, for all laws."""
    early, *_, late = [[runs["dynamics", law, steps] for law in LAWS] for steps in STOPS]
    c = late[0][0]["config"]

    def row(text, f, of, least, greatest):
        return seeds_row(text, [[f(run) for run in found] for found in of], least, greatest)

    return [row("step at which L has halved, sampled / exact",
                lambda run: half_step(run) / half_step(exact_run(run)), late, 0.9, 1.15),
            row("L at the end, sampled / exact",
                lambda run: last_loss(run) / last_loss(exact_run(run)), late, 0.9, 1.1),
            row("a at the end, sampled / exact",
                lambda run: numbers(run)[0] / exact(run)[1, -1], late, 0.95, 1.05),
            row("alpha at the end, sampled / exact",
                lambda run: numbers(run)[1] / exact(run)[2, -1], late, 0.95, 1.05),
            row("growth of 1/L / (4 lr/|W*|^2), not random signs",
                lambda run: growth(run) * W_norm2(run["config"]) / (4 * c.lr), late[:2], 0.85,
                1.05),
            row(f"alpha at step {STOPS[0]}, sampled / exact x (1 + lr T/(2n))",
                lambda run: numbers(run)[1] / exact(run)[2, -1]
                * theory.noise_delay(c.lr, c.T, c.batch), early, 0.9, 1.1)]


# noise: what batches of n sequences change

DELAYS = [  # law, T, d, q, lr, n
    *[("onehot", 50, 5, 3, 1.0, n) for n in (256, 64, 16)],
    *[("onehot", 50, 5, 3, 0.5, n) for n in (64, 16)],
    *[("onehot", 50, 10, 2, 1.0, n) for n in (128, 32)],
    *[("orthonormal", 50, 5, 3, 1.0, n) for n in (128, 32, 16)],
    *[("orthonormal", 20, 5, 3, 0.5, n) for n in (64, 16, 8)]]
EXCESSES = [
    *[("orthonormal", 20, 5, 3, lr, n) for lr, n in (
        (0.25, 64), (0.5, 128), (1.0, 256), (0.5, 64), (0.5, 32), (1.0, 64), (1.0, 32))],
    ("orthonormal", 20, 8, 2, 0.5, 256),
    ("onehot", 20, 5, 3, 0.5, 128), ("onehot", 50, 5, 3, 1.0, 256)]
DEFAULT = {(4.0, True): 4000, (4.0, False): 4000, (2.0, True): 4500}    # (lr, fresh): steps
HOW = {True: "fresh", False: "one full batch"}


def noise_arm(kind, law, T, d, q, lr, n):
    """The settings of an arm; for the delay twice as many steps as the law says."""
    how = {"law": law, "d_e": {20: 20, 50: 100}[T]} if law == "orthonormal" else {
        "pe": "onehot", "d_e": T}
    steps = 2 * theory.noise_delay(lr, T, n) * theory.count_steps(0.5, T, d, q, lr, how["d_e"])
    return attention(int(steps) if kind == "delay" else 8000, T=T, d=d, q=q, lr=lr, batch=n, **how)


ARMS |= {("noise", kind, *sizes): noise_arm(kind, *sizes)
         for kind, lists in (("delay", DELAYS), ("excess", EXCESSES)) for sizes in lists}
ARMS |= {("noise", "default", lr, fresh): attention(steps, T=200, lr=lr, fresh=fresh)
         for (lr, fresh), steps in DEFAULT.items()}
ARMS |= {("noise", "plateau", lr, fresh): attention(int(1200 / lr), T=200, lr=lr, fresh=fresh)
         for lr in (4.0, 1.0) for fresh in HOW}


def delay(found):
    """lr T/(2n), and the steps to half of d/(2q) over the recursion's for each seed."""
    c = found[0]["config"]
    return (theory.noise_delay(c.lr, c.T, c.batch) - 1,
            np.array([half_step(run) / half_step(exact_run(run)) for run in found]))


def excess(found):
    """lr (d + q)/(2n), and by how much faster 1/L grows in the recursion, for each seed."""
    c = found[0]["config"]
    return (theory.noise_excess(c.lr, c.d, c.q, c.batch) - 1,
            np.array([growth(exact_run(run)) / growth(run) - 1 for run in found]))


def noise(runs):
    """The delay of the plateau, and the excess of the late loss, measured and by their laws."""
    figure, axes = plt.subplots(1, 2, figsize=(14, 6.4))
    groups = [("onehot", 50, ONEHOT, "o", "one-hot, T = 50"),
              ("onehot", 20, ONEHOT, "v", "one-hot, T = 20"),
              ("orthonormal", 50, STOCHASTIC, "s", "orthonormal, T = 50"),
              ("orthonormal", 20, STOCHASTIC, "D", "orthonormal, T = 20")]
    for axis, kind, measure in (axes[0], "delay", delay), (axes[1], "excess", excess):
        for law, T, color, marker, label in groups:
            found = [measure(runs[key]) for key in runs if key[1:4] == (kind, law, T)]
            if found:
                x, y = zip(*found)
                points(axis, np.repeat(x, np.shape(y)[1]), y, marker, color, label=label)
    labels = "default task, T = 200", "the same, one full batch", None
    for (lr, fresh), label in zip(DEFAULT, labels):
        x, y = delay(runs["noise", "default", lr, fresh])
        points(axes[0], [x] * len(y), y, "P" if fresh else "X", SIGNS, label=label, markersize=11,
               fillstyle="none" if fresh else "full")
    for axis, ends, label in (axes[0], (0, 1.7), "1 + lr T/(2n)"), (
            axes[1], (0.006, 0.15), "lr (d + q)/(2n)"):
        axis.plot(ends, np.array(ends) + (axis is axes[0]), "--", color=THEORY, label=label)
        axis.legend(loc="upper left")
    axes[0].set(title="steps to half of d/(2q), over the exact ones", xlabel="lr T/(2n)",
                ylim=(0.9, None))
    axes[1].set(title="late loss, by how much above the exact one", xlabel="lr (d + q)/(2n)",
                xscale="log", yscale="log")
    axes[1].set_xticks([0.01, 0.02, 0.05, 0.1], ["1%", "2%", "5%", "10%"])
    axes[1].set_yticks([0.01, 0.02, 0.05, 0.1, 0.5], ["1%", "2%", "5%", "10%", "50%"])
    axes[1].minorticks_off()
    plots.caption(figure, "Points: each of 3 seeds, fresh batches of n (filled: one full batch). "
                  "Left, at 0.62: n = 8. d = 5, 8, 10; q = 2, 3; lr 0.25 to 4. Dashed: the laws, "
                  "to leading order.")
    return figure


def claims_noise(runs):
    """The two laws; the plateau of the default run; alpha and cos V on it."""
    late = [excess(runs[key]) for key in runs if key[1] == "excess"]
    few, near, middle, far = [], [], [], []
    for key, found in runs.items():
        if key[1] == "delay" or key[1] == "default" and key[3]:
            (x, values), n = delay(found), found[0]["config"].batch
            (few if n < 16 else near if x <= 0.5 else middle if x <= 1 else far).append(
                values / (1 + x))
    rows = [seeds_row("lr T/(2n) <= 0.5: delay of the plateau / law", near, 0.9, 1.1),
            seeds_row("lr T/(2n) from 0.5 to 1: delay of the plateau / law", middle, 0.9, 1.15),
            seeds_row("lr T/(2n) > 1: delay of the plateau / law", far, 0.9, 1.4),
            seeds_row("n = 8: delay of the plateau / law", few, 0.9),
            seeds_row("law of excess < 0.02: excess of the late loss / law",
                      [values / x for x, values in late if x < 0.02], 0.8, 1.2),
            seeds_row("law of excess >= 0.02: excess of the late loss / law",
                      [values / x for x, values in late if x >= 0.02], 0.9)]
    for lr, fresh in DEFAULT:
        found = runs["noise", "default", lr, fresh]
        (x, values), text = delay(found), f"default run, lr {lr:g}, {HOW[fresh]}"
        steps, of = [half_step(run) for run in found], half_step(exact_run(found[0]))
        rows += [within(f"{text}: steps to half of d/(2q)", steps)._replace(
                     measured=f"{np.mean(steps):.0f} ({min(steps):.0f} to {max(steps):.0f})"),
                 within(f"{text}: steps of the recursion", of)._replace(measured=f"{of:.0f}"),
                 within(f"{text}: their ratio; law for fresh {1 + x:.2f}", values, 1)]
    for key in runs:
        if key[1] == "plateau":
            c, (_, _, lr, fresh) = runs[key][0]["config"], key
            text = f"plateau, lr {lr:g}, {HOW[fresh]}, step {c.steps}"
            law = 1 / theory.noise_delay(lr, c.T, c.batch)
            cosine = theory.plateau_cosine(c.T, c.d, c.q, c.batch)
            rows += [within(f"{text}: alpha; law for fresh {law:.2f}",
                            [numbers(run)[1] for run in runs[key]]),
                     within(f"{text}: cos V; law for a full batch {cosine:.2f}",
                            [run["cos_V"][-1] for run in runs[key]])]
    return rows


# length: the floor of the loss, and errors on longer sequences

FLOOR_D_E = 16, 32, 64, 128                                     # predicted for each K, and trained:
FLOORS = [(16, 1), (32, 1), (64, 1), (128, 1), (16, 4), (64, 4), (16, 16)]

ARMS |= {("length", "floor", d_e, K): attention(2000, T=20, lr=4.0, schedule="cosine", d_e=d_e,
                                                draws=K) for d_e, K in FLOORS}
ARMS["length", "signs"] = attention(4000, T=100, lr=3.0, d_e=170, T_test=[200, 400, 1000, 4000],
                                    eval_sequences=500)
ARMS["length", "orthonormal"] = attention(
    3000, T=20, lr=1.0, law="orthonormal", d_e=160, T_test=[40, 80, 160], evaluations=10,
    eval_sequences=1000, eval_draws=4)


@functools.cache
def floor(d_e, K, T=20, d=5, q=3):
    """The least loss when K draws are averaged."""
    scores = width.sample_scores(np.random.default_rng(0), T, d_e, q, 2000)
    return width.noise_floor(scores, d, q, K)[0]


def predicted(run, lengths):
    """The errors of a run at these lengths, by the a and alpha of its weights alone."""
    c, rng = run["config"], np.random.default_rng(0)
    return np.array([width.predict_loss(rng, *numbers(run), T, c.d, c.q, c.d_e, c.eval_draws,
                                        0.01)[0] for T in lengths])


def late_errors(run):
    """Training losses (m,), means over 30 steps, and errors (m, tests), from 0.3 d/(2q) downwards.

    The steps are those up to an evaluation.
    """
    late = run["error"][:, 0] < 0.3 * zero_predictor(run["config"])
    losses = [run["loss"][t - 30:t].mean() for t in run["eval_step"][late]]
    return np.array(losses), run["error"][late]


def length(runs):
    """The noise floor against d_e; errors at longer T_test, for random signs and orthonormal PE."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 6))
    signs, orthonormal = runs["length", "signs"], runs["length", "orthonormal"]
    for K, color, marker, dash in zip((1, 4, 16), SHADES, MARKERS, DASHES):
        left.plot(FLOOR_D_E, [floor(d_e, K) for d_e in FLOOR_D_E], dash, color=THEORY)
        points(left, *np.transpose([(d_e, last_loss(run)) for d_e, draws in FLOORS if draws == K
                                    for run in runs["length", "floor", d_e, K]]), marker, color,
               label=f"K = {K}")
    left.set(title="random signs: loss at the end", xscale="log", yscale="log",
             xlabel="dimension $d_e$", ylim=(3e-3, None))
    left.set_xticks(FLOOR_D_E, FLOOR_D_E)
    left.minorticks_off()
    left.legend(title="K draws in a step", loc="lower left")
    T = signs[0]["tests"][:, 0]
    many = np.geomspace(T[0], T[-1], 16).astype(int)
    middle.plot(many, predicted(signs[0], many), "--", color=THEORY)
    points(middle, np.tile(T, len(signs)), [run["error"][-1] for run in signs], "o", STOCHASTIC)
    plots.zero_line(middle, zero_predictor(signs[0]["config"]))
    middle.set(title=f"random signs: error, trained at {T[0]}", xscale="log", yscale="log",
               xlabel="length $T_{test}$")
    c, L = orthonormal[0]["config"], np.geomspace(0.005, 0.25, 50)
    for k, n in enumerate(c.T_test):
        right.plot(1 / L, theory.length_loss(L, c.T, n, c.d, c.q), DASHES[k], color=THEORY)
        late = [late_errors(run) for run in orthonormal]
        points(right, np.concatenate([1 / losses for losses, _ in late]),
               np.concatenate([errors[:, 1 + k] for _, errors in late]), MARKERS[k], SHADES[k],
               label=f"$T_{{test}}$ = {n}")
    right.set(title=f"orthonormal: error, trained at {c.T}", xscale="log", yscale="log",
              xlabel="1/L, which grows during training")
    right.set_yticks([0.03, 0.1, 0.3], [0.03, 0.1, 0.3])
    right.minorticks_off()
    right.legend(loc="lower left")
    plots.caption(figure, "Grey: predicted, in the middle from a and $\\alpha$, on the right from "
                  "the training loss L. Points: training, 3 seeds. T = 20 (sides), 100 (middle).",
                  *signs, *orthonormal)
    return figure


def claims_length(runs):
    """Floors and errors, measured over predicted; noise in all weights adds some to them."""
    c, late = runs["length", "orthonormal"][0]["config"], [
        late_errors(run) for run in runs["length", "orthonormal"]]
    signs = np.array([run["error"][-1] / predicted(run, run["tests"][:, 0])
                      for run in runs["length", "signs"]])
    laws = [errors[:, 1:] / theory.length_loss(L[:, None], c.T, np.array(c.T_test), c.d, c.q)
            for L, errors in late]
    return [seeds_row("all d_e, K: training loss / floor",
                      [[last_loss(run) / floor(d_e, K) for run in runs["length", "floor", d_e, K]]
                       for d_e, K in FLOORS], 0.95, 1.1),
            seeds_row("random signs, T to 40 T: error / predicted", signs.T, 0.9, 1.15),
            within("orthonormal, 2 T to 8 T: error / law of length", np.concatenate(laws), 0.8,
                   1.2)]


# tests: other lengths and subset sizes, with orthonormal encodings

LARGE = {"T": 200, "lr": 5.0, "steps": 12_000}          # drawn without training
FACTORS = {1.25: "5/4", 1.5: "3/2", 1.75: "7/4", 2: "2"}


TESTED = {"T": 50, "d_e": 100, "T_test": [62, 75, 87, 100]}
for pe in "stochastic", "fixed":
    ARMS["tests", pe] = attention(4000, **TESTED, pe=pe, law="orthonormal", lr=1.0,
                                  q_test=[2, 4, 5, 8], evaluations=40, eval_sequences=1000,
                                  eval_draws=1)
    ARMS["tests", "signs", pe] = attention(2000, **TESTED, pe=pe, lr=2.0)


def test_path(pe, T_test, q_test, T, lr, steps, d=5, q=3):
    """The error on a test at each step (steps + 1,), by the recursion; redrawn with d_e = 2 T."""
    _, a, alpha = descent("orthonormal", T, d, q, lr, steps, 2 * T if pe == "stochastic" else T - 1)
    if pe == "stochastic":
        return theory.test_loss(a, alpha, T_test, d, q_test)
    return theory.fixed_test_loss(a, alpha, T, T_test, d, q_test)


def tests(runs):
    """Errors over training at other lengths and subset sizes, measured and derived."""
    figure, axes = plt.subplots(2, 4, figsize=(14, 8.4), sharex=True, sharey="row")
    c = runs["tests", "fixed"][0]["config"]
    small = {"T": c.T, "lr": c.lr, "steps": c.steps}
    for axis, test, factor in zip(axes.flat, np.array(plots.tests_of(c)).reshape(-1, 2).tolist(),
                                  [*FACTORS, 1, 1, 1, 1]):
        for pe, color, marker in ("stochastic", STOCHASTIC, "o"), ("fixed", FIXED, "s"):
            found = runs["tests", pe]
            points(axis, np.tile(found[0]["eval_step"] * c.lr / c.T ** 2, len(found)),
                   plots.errors(found, *test), marker, color, markersize=5, label=pe)
            for task, dash in (small, "-"), (LARGE, ":"):
                path = test_path(pe, int(factor * task["T"]), test[1], **task)
                t = np.arange(len(path)) * task["lr"] / task["T"] ** 2
                axis.plot(t, path, dash, color=color,
                          label=f"exact, T = {task['T']}" if pe == "fixed" else None)
            if pe == "fixed" and factor > 1:
                axis.plot(t[path.argmin()], path.min(), "v", color=THEORY, markersize=9)
                axis.annotate(f"{path.min():.3f}", (t[path.argmin()], path.min()), (4, 12),
                              textcoords="offset points", color=THEORY)
        axis.set(title=f"$T_{{test}}$ = {FACTORS[factor]} T" if factor > 1
                 else f"$q_{{test}}$ = {test[1]}")
    axes[0, 0].set(ylim=(0, None), ylabel="error")
    axes[0, 0].legend(loc="upper right", handlelength=1)
    axes[1, 0].set(yscale="log", ylabel="error")
    for axis in axes[1]:
        axis.set(xlabel="lr t/T²", xlim=(-0.03, 1.65), xticks=[0, 0.5, 1, 1.5])
    plots.caption(figure, f"Orthonormal encodings. Points: trained, T = {c.T}, lr {c.lr:g}; noise "
                  f"makes them late. Dotted: exact, T = {LARGE['T']}, lr {LARGE['lr']:g}, and the "
                  "least errors. $d_e$ = 2 T, q = 3, d = 5.")
    return figure


def along_diagonal(run):
    """e_j . W e_j at trained positions and at new ones, on average."""
    c = run["config"]
    E = run["E"] if "E" in run else sts.positional_encoding(c.law, 2 * c.T, c.d_e,
                                                            np.random.default_rng(c.seed))
    products = ((E @ run["W"][c.d:, c.d:]) * E).sum(axis=1)
    return products[:c.T].mean(), products[c.T:].mean()


def claims_tests(runs):
    """Least errors of fixed encodings; errors at the end; e . W e at new positions."""
    rows, ends, least = [], {}, []
    for factor in FACTORS:
        T_test = int(factor * LARGE["T"])
        rows.append(within(f"T = {LARGE['T']}, fixed: least error at T_test = {T_test}, exact",
                           test_path("fixed", T_test, 3, **LARGE).min(), 0.15))
    for pe in "stochastic", "fixed":
        found = runs["tests", pe]
        c = found[0]["config"]
        for T, q in np.array(plots.tests_of(c)).reshape(-1, 2).tolist():
            curves, path = plots.errors(found, T, q), test_path(pe, T, q, c.T, c.lr, c.steps)
            ends.setdefault(pe, []).append(curves[:, -1] / path[-1])
            if pe == "fixed" and T > c.T:
                least.append(curves[:, curves.mean(axis=0).argmin()] / path.min())
    rows += [seeds_row(f"T = {c.T}, fixed, 4 lengths: least error / exact", least, 0.9, 1.1),
             *[seeds_row(f"T = {c.T}, {pe}, 4 lengths, 4 sizes: last error / exact", ratios, 0.9,
                         1.3) for pe, ratios in ends.items()]]
    for pe, limits in ("stochastic", (0.97, 1.03)), ("fixed", (None, 0.7)):
        old, new = np.transpose([along_diagonal(run) for run in runs["tests", "signs", pe]])
        rows += [within(f"random signs, {pe}: e.We at trained positions", old),
                 within(f"random signs, {pe}: e.We at new positions", new),
                 within(f"random signs, {pe}: new / trained", new / old, *limits)]
    return rows


# full_model: keys [Z, z_query]

FULL = [(query, "orthonormal", q) for query in ("sum", "mean") for q in (2, 3, 5)] + [
    ("sum", "onehot", 3)]


ARMS |= {("full_model", query, law, q): attention(
    4000, T=20, d_e=20, lr=1.0, attend_to_query=True, q=q, query=query,
    **({"pe": law} if law == "onehot" else {"law": law})) for query, law, q in FULL}


@functools.cache
def full_descent(query, law, q, lr=1.0, T=20, d=5):
    """L, a, ..., alpha of the full model, to step 10^5; d_e = T."""
    if law == "onehot":
        return theory.descend(theory.onehot_full_model_slopes, lr, 100_000, (T - 1, 1, d), T, d, q,
                              query)
    return theory.descend(theory.full_model_slopes, lr, 100_000, (T, d), T, d, q, query)


def full_model_law(t, query, law, q):
    """What L tends to."""
    return theory.full_model_law(t, 20, 5, q, query, 1.0, 20, law == "onehot")


def full_model(runs):
    """L against t for both queries, and the attention of z_query to itself."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 6))
    t = np.unique(np.geomspace(10, 100_000, 200).astype(int))
    for axis, arms in (axes[0], FULL[:3]), (axes[1], FULL[3:]):
        for arm, color, marker in zip(arms, (*SHADES[:3], ONEHOT), MARKERS):
            found, (query, law, q) = runs[("full_model", *arm)], arm
            axis.plot(t, full_descent(*arm)[0, t], color=THEORY, linewidth=1.5)
            axis.plot(t[t >= 1000], full_model_law(t[t >= 1000], *arm), ":", color=THEORY)
            edges = np.unique(np.geomspace(10, found[0]["config"].steps, 13).astype(int))
            L = [[run["loss"][i:j].mean() for i, j in zip(edges, edges[1:])] for run in found]
            points(axis, np.tile(np.sqrt(edges[1:] * edges[:-1]), len(L)), L, marker, color,
                   label=f"{'one-hot, ' * (law == 'onehot')}{query}, q = {q}")
        axis.set(xscale="log", yscale="log", xlabel="step t", ylim=(1e-4, 2))
        axis.legend(loc="lower left", handletextpad=0.1)
    for query, c, dash in ("sum", 1, "-"), ("mean", 1 / 3, "--"):
        a = full_descent(query, "orthonormal", 3)[1, t]
        share = np.exp(3 * c * c * a) / (np.exp(3 * c * c * a) + 3 * np.exp(c * a) + 17)
        axes[2].plot(t, share, dash, color=THEORY)
        axes[2].annotate(query, (t[-1], share[-1]), (0, -8), textcoords="offset points",
                         color=THEORY, ha="right", va="top")
    axes[0].set(title="loss L: sum, orthonormal, $t^{-1/q}$")
    axes[1].set(title="loss L: the others, 1/t")
    axes[2].set(title="attention on the query, exact", xscale="log", xlabel="step t",
                xlim=(10, None), ylim=(0, 1.05))
    plots.caption(figure, "Keys [Z, $z_{query}$]. Solid: exact. Dotted: what it tends to. Points: "
                  "training, 3 seeds. Right: q = 3, orthonormal.",
                  *(runs[("full_model", *arm)][0] for arm in FULL))
    return figure


def claims_full_model(runs):
    """The laws over the recursion, and sampled training over the recursion."""
    rows = []
    for text, arms, exponent, most in (
            ("sum", FULL[:3], (0.32, 0.345), 1.3), ("mean", FULL[3:6], (0.95, 1.05), 1.05),
            ("one-hot, sum", FULL[6:], (0.95, 1.05), 1.1)):
        L = {arm: full_descent(*arm)[0] for arm in arms}
        power = [math.log2(L[arm][50_000] / L[arm][-1]) for arm in arms if arm[2] == 3]
        rows += [within(f"{text}, q = 3: exponent of L at t = 10^5", power, *exponent),
                 within(f"{text}, all q: L / law at t = 10^5",
                        [L[arm][-1] / full_model_law(100_000, *arm) for arm in arms], 0.85, 1.1),
                 seeds_row(f"{text}, all q: sampled loss / recursion, at the end", [
                     [last_loss(run) / last_loss({"loss": L[arm][:len(run["loss"])]})
                      for run in runs[("full_model", *arm)]] for arm in arms], 0.9, most)]
    return rows


# data: full-batch gradient descent on N sequences

DATA = {"stochastic": (STOCHASTIC, "o-"), "one-hot": (ONEHOT, "s--"), "fixed": (FIXED, "^-."),
        "net, 120 units": (NET, "D-"), "net, 20 units": (NET, "v:")}
DATA_N, NET_N = [4, 8, 16, 32, 64, 128, 256], [16, 64, 256, 1024, 4096]


DATA_TASK = {"T": 20, "d": 3, "q": 2, "fresh": False, "eval_sequences": 2000}
ARMS |= {("data", arm, N): attention(4000, lr=0.5, batch=N, **DATA_TASK, **how) for arm, how in (
    ("stochastic", {"law": "orthonormal", "d_e": 20}), ("one-hot", {"pe": "onehot"}),
    ("fixed", {"pe": "fixed", "d_e": 40})) for N in DATA_N}
ARMS |= {("data", arm, N): DATA_TASK | {
    "model": "fcn", "hidden": [int(arm.split()[1])], "optimizer": "adam", "batch": N,
    "schedule": "cosine", "steps": 600, "evaluations": 1}
    for arm in DATA if "net" in arm for N in NET_N}


def final(runs, arm):
    """The sizes N, and the test error and training loss over d/(2q) (2, sizes, seeds)."""
    sizes = NET_N if "net" in arm else DATA_N
    ends = [[(run["error"][-1, 0], run["loss"][-100:].mean()) for run in runs["data", arm, N]]
            for N in sizes]
    c = runs["data", arm, sizes[0]][0]["config"]
    return sizes, np.moveaxis(np.array(ends) / zero_predictor(c), 2, 0)


def data(runs):
    """The test error and the training loss against the number of training sequences."""
    figure, axes = plt.subplots(1, 2, figsize=(14, 6.2))
    for arm, (color, style) in DATA.items():
        sizes, parts = final(runs, arm)
        for axis, part in zip(axes, np.maximum(parts, 1e-4)):
            plots.band(axis, sizes, part.T, color, label=arm, marker=style[0],
                       linestyle=style[1:], fillstyle="none", markersize=9)
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="training sequences N")
        axis.set_xticks([4, *NET_N], [4, *NET_N])
        axis.minorticks_off()
    plots.zero_line(axes[0], 0.1, "10%")
    axes[0].set(title="test error over d/(2q)", ylim=(1e-3, 9))
    axes[1].set(title="training loss over d/(2q)", ylim=(5e-5, 4))
    axes[0].legend(loc="lower right")
    plots.caption(figure, "One full batch of N sequences, T = 20, d = 3, q = 2. Stochastic: "
                  "orthonormal; fixed: random signs; nets by Adam. 3 seeds: mean and range. Losses "
                  "below $10^{-4}$ are drawn there.")
    return figure


def claims_data(runs):
    """How many sequences are needed, and who memorizes."""
    few, many = ([plots.crossing(DATA_N, errors, 0.1) for errors in final(runs, arm)[1][0].T]
                 for arm in ("stochastic", "one-hot"))
    fixed = np.array([final(runs, arm)[1][:, 2:4] for arm in ("one-hot", "fixed")])
    return [within("stochastic: N needed for a test error of 10%", few, 2, 32),
            within("one-hot: N needed for a test error of 10%", many, 100, 256),
            within("N = 16, 32, fixed and one-hot: test error / (d/(2q))", fixed[:, 0], 1),
            within("the same: training loss / (d/(2q))", fixed[:, 1], None, 0.001),
            within("nets, N up to 4096: test error / (d/(2q))",
                   [final(runs, arm)[1][0] for arm in DATA if "net" in arm], 0.9)]


# width: the d_e that is needed, to T = 10^9

SIZES = {1: {20: (4, 5, 6), 80: (6, 7, 8), 320: (8, 9, 10)},            # trained d_e for each T
         2: {20: (7, 9, 11), 80: (11, 13, 16), 320: (16, 18, 21)}, 3: plots.WIDTHS}
LONG_T = [10, 20, 40, 80, 160, 320, 640, 10 ** 4, 10 ** 6, 10 ** 9]
GROWTH = [      # draws, weights as trained or the best ones, label, the power of ln T that fits
    (1, False, "one draw, best weights", 2), (16, True, "16 draws, weights as trained", 2),
    (16, False, "16 draws, best weights", 1), (math.inf, False, "all draws, best weights", 1)]


ARMS |= {("width", q, T, d_e): plots.width_arm(q, T, d_e) for q, lengths in SIZES.items()
         for T, sizes in lengths.items() for d_e in sizes}


@functools.cache
def predicted_widths(q, K, trained):
    """width.needed_width for an error of SHARE d/(2q) at all LONG_T, and standard errors."""
    rng = np.random.default_rng(0)
    return np.transpose([width.needed_width(T, q, plots.SHARE, K, rng, trained, 10_000)
                         for T in LONG_T])


def fitted_widths(values, power, T=LONG_T[4:]):
    """The fit A + B (ln T)^power to the d_e needed at LONG_T, by least squares from T = 160 on."""
    line = np.polyfit(np.log(LONG_T[4:]) ** power, values[4:], 1, w=1 / values[4:])
    return np.polyval(line, np.log(T) ** power)


def needed_d_e(runs):
    """The d_e that attention needs against T: trained and predicted; and for one draw or all."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6.6))
    doubled = LONG_T[:7]
    for q, color, marker in zip(SIZES, SHADES, MARKERS):
        values, errors = predicted_widths(q, 16, True)[:, :7]
        left.errorbar(doubled, values, 2 * errors, color=THEORY, fmt=".", capsize=3,
                      label="predicted" if q == 1 else None)
        trained = [plots.needed_widths(runs, q, T) for T in SIZES[q]]
        points(left, np.repeat(list(SIZES[q]), np.shape(trained)[1]), trained, marker, color,
               markersize=11, label=f"trained, q = {q}")
    for T, value, more in zip(doubled[1:], values[1:], np.diff(values)):
        left.annotate(f"+{more:.0f}", (T, value), (-8, 12), textcoords="offset points", ha="right",
                      color=THEORY)
    left.set(title="trained with one draw, 16 in the test", xscale="log", xlabel="length T",
             ylabel="$d_e$", ylim=(0, None))
    left.set_xticks(doubled, doubled)
    left.minorticks_off()
    for (K, trained, text, power), color, marker in zip(GROWTH, SHADES, MARKERS):
        values, errors = predicted_widths(3, K, trained)
        right.errorbar(LONG_T, values, 2 * errors, color=color, fmt=marker, label=text)
        T = np.geomspace(LONG_T[4], LONG_T[-1], 50)
        right.plot(T, fitted_widths(values, power, T), DASHES[power - 1], color=THEORY)
        right.annotate(("ln T", "$(\\ln T)^2$")[power - 1], (LONG_T[-1], values[-1]), (0, 9),
                       textcoords="offset points", color=THEORY, ha="right")
    right.set(title="q = 3, predicted: averaging decides", xscale="log", yscale="log",
              xlabel="length T", ylabel="$d_e$", ylim=(2, 5e4))
    for axis in left, right:
        axis.legend(loc="upper left")
    plots.caption(figure, f"$d_e$ of random signs for an error of {plots.SHARE:.0%} of d/(2q), d = "
                  "5. Left: how much q = 3 needs more when T doubles; a net needs 0.9 T d units. "
                  "Bars: two standard errors. Lines: fits.")
    return figure


def claims_width(runs):
    """Trained over predicted d_e, the birthday law, the powers of ln T."""
    found = {q: predicted_widths(q, 16, True) for q in SIZES}
    rows = [seeds_row(f"q = {q}: trained d_e / predicted, all T",
                      [plots.needed_widths(runs, q, T) / found[q][0][LONG_T.index(T)]
                       for T in SIZES[q]], 0.9, 1.1) for q in SIZES]
    rows += [within(f"q = {q}: predicted / birthday law (positions with equal encodings)",
                    found[q][0] / [width.birthday_width(T, q, plots.SHARE, 16) for T in LONG_T],
                    0.97, 1.03) for q in (1, 2)]
    for K, trained, text, power in GROWTH:
        values = predicted_widths(3, K, trained)[0]
        for p, *allowed in (power, None, 0.08), (3 - power, 0.1):
            rows.append(within(f"q = 3, {text}: misfit of {'(ln T)^2' if p == 2 else 'ln T'}",
                               abs(fitted_widths(values, p) / values[4:] - 1).max(), *allowed))
    more = np.diff(found[3][0][:7])
    return [*rows, within("q = 3: more d_e when T doubles, T = 10 to 640", more, 5, 15),
            within("the same: the last / the first", more[-1] / more[0], 1.4),
            within("standard errors of predicted d_e, relative",
                   [errors / values for values, errors in found.values()], None, 0.03)]


PARTS = {       # name: the drawing, the claims, the headline
    "dynamics": (dynamics, claims_dynamics,
                 "Training on samples follows two numbers: W = a W* and V = $\\alpha$ V*"),
    "noise": (noise, claims_noise,
              "Gradient noise makes the plateau longer, and the late loss higher"),
    "length": (length, claims_length,
               "Floors of the loss, and errors at longer lengths, follow from theory"),
    "tests": (tests, claims_tests,
              "Orthonormal encodings: fixed ones fail on longer sequences, not on subset sizes"),
    "full_model": (full_model, claims_full_model,
                   "The full model: with orthonormal encodings, sum or mean decides the rate"),
    "data": (data, claims_data,
             "Stochastic encodings learn from 16 sequences, which the others memorize"),
    "width": (needed_d_e, claims_width,
              "The $d_e$ that attention needs grows like ln T or $(\\ln T)^2$"),
}
FIGURES = {name: (draw, headline, {name}) for name, (draw, _, headline) in PARTS.items()}


def table(names, runs):
    """The claims of these figures, as text."""
    lines = [("figure", "claim", "allowed", "mean (least to greatest) +- largest error", "holds")]
    for name in names:
        own = {key: found for key, found in runs.items() if key[0] == name}
        lines += [(name, row.claim, row.allowed, row.measured, row.holds)
                  for row in PARTS[name][1](own)]
    return claims.aligned(lines)


def main():
    """Draw the figures that the command line names, and print the table of their claims."""
    names, runs = plots.main(FIGURES, arms, HERE / "figures", __doc__)
    if names:
        print(table(names, runs))
    if names == list(FIGURES):
        with train.replacing(HERE / "figures" / "claims.txt") as file:
            file.write(table(names, runs).encode())


if __name__ == "__main__":
    main()
