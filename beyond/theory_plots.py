"""Figures of what theory.py and width.py derive, beside training by train.py.

    python beyond/theory_plots.py                   all, into beyond/figures/
    python beyond/theory_plots.py noise --quick     one of them, on small tasks, into runs/quick/

Each figure has a part of this file: its runs, its picture, and what is measured of the runs, mostly
over what theory says, so that it should be 1.  Theory is grey (in `tests` it is lines), what is
measured is coloured (there it is points).  Flags, seeds and kept runs are as in plots.py.

The key of an arm is the name of its figure, the name of its curve, and what tells the points of the
curve apart.  All settings are read from run["config"].
"""

import claims       # first: it finds the other files, and sets the number of threads

import functools

import matplotlib.pyplot as plt
import numpy as np

import plots
import scaled_logits
import sts
import theory
import train
import width
from claims import HERE, aligned, zero_predictor
from plots import FIXED, NET, STOCHASTIC, THEORY

ONEHOT, SIGNS = "#CC79A7", "#56B4E9"            # SIGNS: random signs, beside orthonormal encodings
BY_Q = {1: ("#41B6C4", "D"), 2: ("#08306B", "o"), 3: (STOCHASTIC, "s"), 5: ("#6A51A3", "^")}
MARKERS, DASHES = "os^D", ("--", "-.", ":")
ENCODINGS = {
    "one-hot": {"pe": "onehot"}, "orthonormal": {"law": "orthonormal"}, "random signs": {},
    "fixed orthonormal": {"pe": "fixed", "law": "orthonormal"}, "fixed signs": {"pe": "fixed"}}


def attention(steps, encodings, **given):
    """The settings of an arm: attention that is trained on fresh batches and hardly tested."""
    return {"d": 5, "q": 3, "fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [],
            "q_test": [], "steps": steps} | ENCODINGS[encodings] | given


def curve(runs, *name):
    """The runs of a curve: for each arm whose key begins with this name, a list over seeds."""
    return [found for key, found in runs.items() if key[:len(name)] == name]


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
    """The growth of 1/L in the last two thirds of a run; the noise of L is a share of L."""
    t, L = (values[33:] for values in plots.smooth_loss(run))
    return np.polyfit(t, 1 / L, 1, w=L)[0]


def W_norm2(c):
    """||W*||^2; for fixed random signs what takes its place on the plateau."""
    if c.pe == "stochastic":
        return c.d_e
    return theory.fixed_norm2(c.T, c.d_e) if c.law == "rademacher" else c.T - 1


descend = functools.cache(theory.descend)       # a picture and the table ask for the same paths


@functools.cache
def sign_slopes(T, d_e, q):
    """The slopes for stochastic random signs, on a sample of 2400 draws of the scores."""
    scores = width.sample_scores(np.random.default_rng(0), T, d_e, q, 2400)
    return lambda a, alpha, d: width.stochastic_slopes(a, alpha, scores, d, q)


def exact(run):
    """The run that the recursion makes with a run's settings: its loss, and a and alpha."""
    c = run["config"]
    slopes, sizes = ((sign_slopes(c.T, c.d_e, c.q), (c.d,)) if c.law == "rademacher" else
                     (theory.onehot_slopes, (c.T, c.d, c.q)))
    L, a, alpha = descend(slopes, c.lr, c.steps, (W_norm2(c), c.d), *sizes)
    return {"config": c, "loss": L[:-1], "a": a, "alpha": alpha}


def points(axis, x, y, marker, color, **style):
    """Open markers, for what is measured."""
    axis.plot(np.ravel(x), np.ravel(y), marker, color=color,
              **{"fillstyle": "none", "markersize": 9} | style)


# dynamics: training on samples, and the exact recursion

LAWS = {"one-hot": (50, ONEHOT), "orthonormal": (100, STOCHASTIC), "random signs": (64, SIGNS)}
DYNAMICS = {("dynamics", law, steps): attention(steps, law, T=50, lr=1.0, d_e=d_e)
            for law, (d_e, _) in LAWS.items() for steps in (150, 400, 1000, 4000)}


def dynamics(runs):
    """Loss, 1/L, and the two numbers a and alpha: measured, and exact."""
    figure, axes = plt.subplot_mosaic([["L", "1/L"], ["a", "alpha"]], figsize=(10, 8.5))
    for (law, (_, color)), marker, dash in zip(LAWS.items(), MARKERS, DASHES):
        *_, longest = curve(runs, "dynamics", law)
        path, (t, _) = exact(longest[0]), plots.smooth_loss(longest[0])
        L = np.array([plots.smooth_loss(run)[1] for run in longest])
        for name, measured, values in ("L", L, path["loss"]), ("1/L", 1 / L, 1 / path["loss"]):
            plots.band(axes[name], t, measured, color, linewidth=5, marker=marker,
                       markevery=(30, 20), markersize=11)
            axes[name].plot(values, dash, color=THEORY)
        for k, name in enumerate(("a", "alpha")):
            axes[name].plot(path[name], dash, color=color)
            points(axes[name], *np.transpose([
                (run["config"].steps, numbers(run)[k])
                for found in curve(runs, "dynamics", law) for run in found]), marker, color)
    c = longest[0]["config"]
    lines = axes["L"].lines                     # for each what is measured, and what is exact
    axes["L"].set(title="loss L", xlabel="step t", yscale="log")
    axes["1/L"].legend(list(zip(lines[::2], lines[1::2])), LAWS, title="encodings",
                       loc="upper left", handlelength=3)
    axes["1/L"].set(title="1/L", xlabel="step t", ylim=(0, None))
    axes["a"].set(title="a, with W near a W*", xlabel="step t")
    axes["alpha"].set(title="$\\alpha$, with V near $\\alpha$ V*", xlabel="step t")
    factor = theory.noise_delay(c.lr, c.T, c.batch)
    plots.caption(figure, "Grey, and lines below: exact, without noise. Noise keeps $\\alpha$ "
                  f"small on the plateau, which takes {factor:.2f} times as long by 1 + lr T/(2n). "
                  f"T = {c.T}, q = {c.q}, d = {c.d}, $d_e$ = 50, 100, 64, lr = {c.lr:g}, fresh "
                  f"batches of n = {c.batch}.")
    return figure


def measured_dynamics(runs):
    """What is measured over what is exact."""
    late = [curve(runs, "dynamics", law)[-1] for law in LAWS]
    return {
        "step at which L has halved / exact": [
            [half_step(run) / half_step(exact(run)) for run in found] for found in late],
        "L at the end / exact": [
            [last_loss(run) / last_loss(exact(run)) for run in found] for found in late],
        "growth of 1/L over 4 lr/|W*|^2, not random signs": [
            [growth(run) * W_norm2(run["config"]) / (4 * run["config"].lr) for run in found]
            for found in late[:2]]}


# noise: batches of n sequences, and K draws in a step, make the plateau longer

DELAYS = {      # curve: encodings, and T, d_e, d, q, lr, n, and K if it is not 1, for each point
    "one-hot": ("one-hot", [
        (50, 50, 5, 3, 1.0, 256), (50, 50, 5, 3, 1.0, 64), (50, 50, 5, 3, 1.0, 16),
        (50, 50, 5, 3, 0.5, 64), (50, 50, 5, 3, 0.5, 16),
        (50, 50, 10, 2, 1.0, 128), (50, 50, 10, 2, 1.0, 32)]),
    "orthonormal": ("orthonormal", [
        (50, 100, 5, 3, 1.0, 128), (50, 100, 5, 3, 1.0, 16),
        (20, 20, 5, 3, 0.5, 64), (20, 20, 5, 3, 0.5, 16), (20, 20, 5, 3, 0.5, 8)]),
    "orthonormal, K = 1, 2, 4": ("orthonormal", [
        (50, 100, 5, 3, 1.0, 32, K) for K in (1, 2, 4)])}
PLATEAUS = [    # encodings, the same, and the query if it is not the sum
    ("one-hot", 30, 30, 5, 3, 4.0, 256, 1, "mean"), ("orthonormal", 60, 120, 5, 3, 2.0, 128),
    ("orthonormal", 30, 40, 5, 2, 2.0, 128, 1, "mean"), ("random signs", 50, 100, 5, 3, 1.0, 256),
    ("random signs", 40, 80, 10, 2, 1.0, 128), ("random signs", 50, 80, 5, 2, 2.0, 112, 4),
    ("fixed orthonormal", 60, 120, 5, 3, 2.0, 128), ("fixed signs", 50, 100, 5, 3, 1.0, 256),
    ("fixed signs", 20, 60, 2, 1, 2.0, 128)]


def predicted_plateau(c):
    """The steps to half of d/(2q) that theory predicts."""
    return theory.plateau(c.T, c.d, c.q, c.lr, c.batch, W_norm2(c), c.draws, c.query)


def plateau_holds(c):
    """Whether a run is in the domain of theory.plateau."""
    return c.fresh and theory.plateau_holds(c.T, c.d, c.q, c.lr, c.batch, W_norm2(c)) and (
        c.law != "rademacher" or c.d_e >= 20 * c.q)


def plateau_arm(encodings, T, d_e, d, q, lr, n, K=1, query="sum"):
    """The settings of an arm that has twice as many steps as the plateau should take."""
    arm = attention(1, encodings, T=T, d_e=d_e, d=d, q=q, lr=lr, batch=n, draws=K, query=query)
    return arm | {"steps": int(2 * predicted_plateau(train.configuration(**arm)))}


NOISE = {
    **{("noise", "delay", name, *sizes): plateau_arm(encodings, *sizes)
       for name, (encodings, settings) in DELAYS.items() for sizes in settings},
    **{("noise", "delay", "random signs", lr): attention(4000, "random signs", T=200, lr=lr)
       for lr in (4.0, 2.0)},
    **{("noise", "plateau", *sizes): plateau_arm(*sizes) for sizes in PLATEAUS},
    ("noise", "full batch"): attention(4000, "random signs", T=200, lr=4.0, fresh=False)}


def delay(found):
    """lr (d + q)/n, and by which factor noise makes the plateau longer: predicted, and measured."""
    c = found[0]["config"]
    return (c.lr * (c.d + c.q) / c.batch, theory.noise_delay(c.lr, c.T, c.batch, c.draws),
            np.array([half_step(run) / half_step(exact(run)) for run in found]))


def noise(runs):
    """The delay of the plateau, measured against predicted."""
    figure, axis = plt.subplots(figsize=(10, 7))
    for name, color, marker in zip((*DELAYS, "random signs"),
                                   (ONEHOT, STOCHASTIC, STOCHASTIC, SIGNS), "osD^"):
        for i, found in enumerate(curve(runs, "noise", "delay", name)):
            size, predicted, measured = delay(found)
            axis.plot([predicted] * len(measured), measured, color=color)
            points(axis, predicted, measured.mean(), marker, color, label=None if i else name,
                   fillstyle="full" if size <= 1 / 8 else "none")
    axis.plot((1, 2.7), (1, 2.7), "--", color=THEORY, zorder=1, label="measured = predicted")
    axis.set(title="steps to half of d/(2q), over those without noise",
             xlabel="predicted: 1 + lr T/(2nK)", ylabel="measured")
    axis.legend(loc="upper left")
    plots.caption(figure, "Points: means of 3 seeds, and their range. Filled: lr (d + q)/n is at "
                  "most 1/8, small enough for the formula. Fresh batches of n, K draws in a step.")
    return figure


def measured_noise(runs):
    """Delay and plateau over their formulas; that of the delay is for small lr (d + q)/n."""
    delays = [delay(found) for found in curve(runs, "noise", "delay")]
    draws = [delay(found) for found in curve(runs, "noise", "delay", "orthonormal, K = 1, 2, 4")]
    default, batch = runs["noise", "delay", "random signs", 4.0], runs["noise", "full batch"]
    rows = {f"lr (d + q)/n {text}: delay of the plateau / formula": [
        measured / predicted for size, predicted, measured in delays if low < size <= high]
        for text, low, high in (
            ("at most 1/8", 0, 1 / 8), ("1/4 to 3/8", 1 / 8, 3 / 8), ("1/2", 3 / 8, 1 / 2))}
    return rows | {
        "n = 32, K = 1, 2, 4: delay of the plateau / formula": [
            measured / predicted for _, predicted, measured in draws],
        "theory.plateau: steps to half of d/(2q) / formula": [
            [half_step(run) / predicted_plateau(run["config"]) for run in found]
            for kind in ("delay", "plateau") for found in curve(runs, "noise", kind)
            if plateau_holds(found[0]["config"])],
        "default run, fresh: delay of the plateau": delay(default)[-1],
        "default run, one full batch: delay of the plateau": delay(batch)[-1]}


# length: errors on longer sequences, and the floor of the loss

LENGTH = {
    **{("length", "floor", d_e, K): attention(
        2000, "random signs", T=20, lr=4.0, d_e=d_e, draws=K, schedule="cosine")
       for d_e, K in ((16, 1), (32, 1), (64, 1), (128, 1), (16, 4), (64, 4), (16, 16))},
    ("length", "signs"): attention(4000, "random signs", T=100, lr=3.0, d_e=170,
                                   T_test=[200, 400, 1000, 4000], eval_sequences=500),
    ("length", "orthonormal"): attention(
        3000, "orthonormal", T=20, lr=1.0, d_e=160, T_test=[40, 80, 160], evaluations=10,
        eval_sequences=1000, eval_draws=4),
    ("gd", "stochastic"): plots.arms(quick=False)["gd", "stochastic"]}      # Figure 4's runs
LONGER = 2, 5, 20, 80, 500                      # times T, for scaled logits


def floor(c):
    """The least training loss for random signs."""
    scores = width.sample_scores(np.random.default_rng(0), c.T, c.d_e, c.q, 2000)
    return width.noise_floor(scores, c.d, c.q, c.draws)[0]


def predicted_errors(run, lengths):
    """The errors of a run at these lengths, by the a and alpha of its weights alone."""
    c, rng = run["config"], np.random.default_rng(0)
    return np.array([width.predict_loss(rng, *numbers(run), T, c.d, c.q, c.d_e, c.eval_draws,
                                        0.01)[0] for T in lengths])


def late_errors(runs):
    """Training losses (m,) and errors (m, tests) at evaluations with an error below 0.3 d/(2q)."""
    losses, errors = [], []
    for run in runs:
        for t, error in zip(run["eval_step"], run["error"]):
            if error[0] < 0.3 * zero_predictor(run["config"]):
                losses.append(run["loss"][t - 30:t].mean())
                errors.append(error)
    return np.array(losses), np.array(errors)


def length(runs):
    """Errors on longer sequences against 1/L, for orthonormal encodings."""
    figure, axis = plt.subplots(figsize=(10, 6))
    c = runs["length", "orthonormal"][0]["config"]
    losses, errors = late_errors(runs["length", "orthonormal"])
    L = np.geomspace(0.005, 0.25, 50)
    for T, measured, marker, dash in zip(c.T_test, errors.T[1:], MARKERS, DASHES):
        axis.plot(1 / L, theory.length_loss(L, c.T, T, c.d, c.q), dash, color=THEORY)
        points(axis, 1 / losses, measured, marker, STOCHASTIC, label=f"$T_{{test}}$ = {T}")
    axis.set(title=f"orthonormal, trained at T = {c.T}", xscale="log", yscale="log",
             xlabel="1/L, which grows during training", ylabel="error")
    axis.set_yticks([0.03, 0.1, 0.3], [0.03, 0.1, 0.3])
    axis.minorticks_off()
    axis.legend(loc="lower left")
    plots.caption(figure, "Grey: predicted from the training loss L. Points: training, 3 seeds. "
                  f"q = {c.q}, d = {c.d}, fresh batches of {c.batch} sequences.")
    return figure


def scaled_ratios(run, T, n=64):
    """The error with scaled logits at length T over the predicted one, and its standard error.

    The error of the ratio comes from n sequences, and from the draws of the prediction.
    """
    c, (a, alpha) = run["config"], numbers(run)
    f, target = scaled_logits.end_outputs(run, T, c.q, scaled=True, n=n)
    losses = ((f.mean(axis=0) - target) ** 2).sum(axis=1) / 2
    a *= scaled_logits.length_factor(run, T, c.q)
    L, se = width.predict_loss(np.random.default_rng(0), a, alpha, T, c.d, c.q, c.d_e,
                               c.eval_draws, 0.01)
    ratio = losses.mean() / L
    return ratio, ratio * np.hypot(losses.std() / losses.mean() / n ** 0.5, se / L)


def measured_length(runs):
    """Floors and errors over predicted ones; noise in all weights adds some to them."""
    floors, signs = curve(runs, "length", "floor"), runs["length", "signs"]
    c = runs["length", "orthonormal"][0]["config"]
    L, errors = late_errors(runs["length", "orthonormal"])
    predicted = theory.length_loss(L[:, None], c.T, np.array(c.T_test), c.d, c.q)
    drawn = runs["gd", "stochastic"]
    ratios, errors_of_ratios = np.transpose([[scaled_ratios(run, k * run["config"].T)
                                              for k in LONGER] for run in drawn])
    return {
        "random signs: training loss / floor": [
            np.divide([last_loss(run) for run in found], floor(found[0]["config"]))
            for found in floors],
        "random signs, T to 40 T: error / predicted": np.transpose([
            run["error"][-1] / predicted_errors(run, run["tests"][:, 0]) for run in signs]),
        "orthonormal, 2 T to 8 T: error / formula": np.ravel(errors[:, 1:] / predicted),
        **{f"scaled logits at {k} T: error / predicted": of_seeds
           for k, of_seeds in zip(LONGER, ratios)},
        "the same: standard error of a ratio": errors_of_ratios}


# tests: other lengths and subset sizes, with orthonormal encodings

TESTED = {"T": 50, "d_e": 100, "T_test": [62, 75, 87, 100]}
TESTS = {
    **{("tests", pe): attention(4000, encodings, **TESTED, lr=1.0, q_test=[2, 4, 5, 8],
                                evaluations=40, eval_sequences=1000, eval_draws=1)
       for pe, encodings in (("stochastic", "orthonormal"), ("fixed", "fixed orthonormal"))},
    **{("tests", "signs", pe): attention(2000, encodings, **TESTED, lr=2.0)
       for pe, encodings in (("stochastic", "random signs"), ("fixed", "fixed signs"))},
    **{("tests", "share", d_e): attention(60, "fixed signs", T=50, d_e=d_e, lr=1.0, T_test=[1000])
       for d_e in (25, 50, 100, 200, 400)}}


def error_path(run, T_test, q_test):
    """The share of d/(2q) on a test at each step, by the recursion; orthonormal encodings."""
    c, path = run["config"], exact(run)
    error = (theory.test_loss(path["a"], path["alpha"], T_test, c.d, q_test)
             if c.pe == "stochastic" else
             theory.fixed_test_loss(path["a"], path["alpha"], c.T, T_test, c.d, q_test))
    return error * 2 * q_test / c.d


def tests(runs):
    """Errors over training at other lengths and subset sizes, measured and derived."""
    figure, axes = plt.subplots(2, 4, figsize=(10, 7.5), sharex=True, sharey="row")
    for axis, (T, q) in zip(axes.flat, runs["tests", "fixed"][0]["tests"].tolist()[1:]):
        for pe, color, marker in ("stochastic", STOCHASTIC, "o"), ("fixed", FIXED, "s"):
            found = runs["tests", pe]
            c, path = found[0]["config"], error_path(found[0], T, q)
            points(axis, np.tile(found[0]["eval_step"], len(found)), plots.shares(found, T, q),
                   marker, color, markersize=5, label=pe)
            axis.plot(path, color=color)
        if T > c.T:
            axis.plot(path.argmin(), path.min(), "v", color=THEORY, markersize=9)
            axis.annotate(f"{path.min():.2f}", (path.argmin(), path.min()), (4, 12),
                          textcoords="offset points", color=THEORY)
        axis.set(title=f"$T_{{test}}$ = {T}" if T > c.T else f"$q_{{test}}$ = {q}")
    axes[0, 0].set(ylim=(0, None), ylabel="error over d/(2q)")
    axes[0, 0].legend(loc="upper right", handlelength=1)
    axes[1, 0].set(yscale="log", ylabel="error over d/(2q)")
    for axis in axes[1]:
        axis.set(xlabel="step t", xticks=[0, c.steps // 2, c.steps])
    plots.caption(figure, "Points: trained, late by noise. Lines: exact. Triangles: minima.", c)
    return figure


def new_over_trained(run):
    """The mean e_j . W e_j at new positions, over the mean at trained ones."""
    c = run["config"]
    E = run["E"] if "E" in run else sts.positional_encoding(c.law, 2 * c.T, c.d_e,
                                                            np.random.default_rng(c.seed))
    products = ((E @ run["W"][c.d:, c.d:]) * E).sum(axis=1)
    return products[c.T:].mean() / products[:c.T].mean()


def measured_tests(runs):
    """Errors at the end, least errors of fixed encodings; e . W e at new positions."""
    rows = {}
    for pe in "stochastic", "fixed":
        arm, signs = runs["tests", pe], runs["tests", "signs", pe]
        pairs = [(plots.shares(arm, T, q), error_path(arm[0], T, q))
                 for T, q in arm[0]["tests"].tolist()[1:]]
        rows[f"{pe}, 4 lengths, 4 sizes: last error / exact"] = [
            curves[:, -1] / path[-1] for curves, path in pairs]
        rows[f"random signs, {pe}: e.We, new over trained"] = [
            new_over_trained(run) for run in signs]
    rows["fixed, 4 lengths: least error / exact"] = [
        curves[:, curves.mean(axis=0).argmin()] / path.min() for curves, path in pairs[:4]]
    rows["fixed signs, d_e 25 to 400, step 60: e.We, new over trained / formula"] = [
        [new_over_trained(run) / theory.new_position_share(run["config"].T, run["config"].d_e)
         for run in found] for found in curve(runs, "tests", "share")]
    return rows


# full_model: keys [Z, z_query]

FULL = {        # curves: encodings, query, q
    "orthonormal, sum": ("orthonormal", "sum", (2, 3, 5)),
    "orthonormal, mean": ("orthonormal", "mean", (2, 3, 5)),
    "one-hot, sum": ("one-hot", "sum", (3,))}
FULL_MODEL = {("full_model", name, q): attention(
    4000, encodings, T=20, d_e=20, lr=1.0, query=query, q=q, attend_to_query=True)
    for name, (encodings, query, sizes) in FULL.items() for q in sizes}


def full_exact(c):
    """L of the full model to step 10^5 by the recursion, and what it tends to."""
    onehot, t = c.pe == "onehot", np.arange(100_001)
    slopes, norms2 = ((theory.onehot_full_model_slopes, (c.T - 1, 1, c.d)) if onehot else
                      (theory.full_model_slopes, (c.d_e, c.d)))
    return (descend(slopes, c.lr, t[-1], norms2, c.T, c.d, c.q, c.query)[0],
            theory.full_model_loss(np.maximum(t, 1), c.T, c.d, c.q, c.query, c.lr, c.d_e, onehot))


def full_model(runs):
    """L against t for both queries."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 6), sharey=True)
    t = np.unique(np.geomspace(10, 100_000, 200).astype(int))
    for name, axis in zip(FULL, (left, right, right)):
        for found in curve(runs, "full_model", name):
            c = found[0]["config"]
            (color, marker), (L, limit) = BY_Q[c.q], full_exact(c)
            color, text = (ONEHOT, ", one-hot") if c.pe == "onehot" else (color, "")
            axis.plot(t, L[t], color=THEORY, linewidth=1.5)
            axis.plot(t[t >= 1000], limit[t[t >= 1000]], ":", color=THEORY)
            edges = np.unique(np.geomspace(10, c.steps, 13).astype(int))
            L = [[run["loss"][i:j].mean() for i, j in zip(edges, edges[1:])] for run in found]
            points(axis, np.tile(np.sqrt(edges[1:] * edges[:-1]), len(L)), L, marker, color,
                   label=f"q = {c.q}{text}")
    for axis in left, right:
        axis.set(xscale="log", yscale="log", xlabel="step t", ylim=(1e-4, 2))
        axis.legend(loc="lower left", handletextpad=0.1)
    left.set(title="sum, orthonormal: $t^{-1/q}$", ylabel="loss L")
    right.set(title="mean, or one-hot with the sum: 1/t")
    plots.caption(figure, f"T = {c.T}, d = {c.d}, $d_e$ = {c.d_e}, lr = {c.lr:g}, fresh batches of "
                  f"{c.batch}. Solid: exact. Dotted: for large t. Points: trained, 3 seeds.")
    return figure


def measured_full_model(runs):
    """Training over the recursion, and the recursion over the formula at t = 10^5."""
    rows = {}
    for name in FULL:
        of_q = curve(runs, "full_model", name)
        paths = [full_exact(found[0]["config"]) for found in of_q]
        rows[f"{name}: recursion / formula at t = 10^5"] = [L[-1] / late[-1] for L, late in paths]
        rows[f"{name}: loss at the end / recursion"] = [
            [last_loss(run) / last_loss({"loss": L[:len(run["loss"])]}) for run in found]
            for found, (L, _) in zip(of_q, paths)]
    return rows


# data: full-batch gradient descent on N sequences

DATA_N, NET_N = [4, 8, 16, 32, 64, 128, 256], [16, 64, 256, 1024, 4096]
MODELS = {      # encodings, other settings, sizes N, color, style
    "stochastic orthonormal": ("orthonormal", {"d_e": 20}, DATA_N, STOCHASTIC, "o-"),
    "one-hot": ("one-hot", {}, DATA_N, ONEHOT, "s--"),
    "fixed orthonormal": ("fixed orthonormal", {"d_e": 20}, DATA_N, FIXED, "^-."),
    "net, 120 units": ("random signs", {"model": "fcn", "hidden": [120], "optimizer": "adam",
                                        "lr": 0.02, "schedule": "cosine", "steps": 600},
                       NET_N, NET, "D-")}
DATA = {("data", name, N): attention(
    4000, encodings, T=20, d=3, q=2, lr=0.5, fresh=False, eval_sequences=2000, batch=N) | how
    for name, (encodings, how, sizes, *_) in MODELS.items() for N in sizes}


def final(runs, name):
    """The test error and the training loss over d/(2q) for all N (2, sizes, seeds)."""
    of_N = curve(runs, "data", name)
    ends = [[(run["error"][-1, 0], run["loss"][-100:].mean()) for run in found] for found in of_N]
    return np.moveaxis(np.array(ends) / zero_predictor(of_N[0][0]["config"]), 2, 0)


def data(runs):
    """The test error and the training loss against the number of training sequences."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 6))
    for name, (_, _, sizes, color, style) in MODELS.items():
        for axis, part in zip((left, right), np.maximum(final(runs, name), 1e-4)):
            plots.band(axis, sizes, part.T, color, label=name, marker=style[0],
                       linestyle=style[1:], fillstyle="none", markersize=9)
    for axis in left, right:
        axis.set(xscale="log", yscale="log", xlabel="training sequences N")
        axis.set_xticks([4, *NET_N], [4, *NET_N])
        axis.minorticks_off()
    plots.zero_line(left, 0.1, "10%")
    left.set(title="test error", ylabel="error / (d/(2q))", ylim=(1e-3, 9))
    right.set(title="training loss", ylabel="loss / (d/(2q))", ylim=(5e-5, 30))
    right.legend(loc="upper right")
    plots.caption(figure, "One full batch of N sequences: T = $d_e$ = 20, d = 3, q = 2. 3 seeds: "
                  "mean and range. Fixed orthonormal encodings are one-hot ones, rotated, and have "
                  "the same errors. These peak near the largest N that training still fits. Losses "
                  "below $10^{-4}$ are shown there. The net is trained by Adam.")
    return figure


def measured_data(runs):
    """How many sequences are needed for a test error of 10%, and the errors of who memorizes."""
    errors = {name: final(runs, name)[0] for name in MODELS}
    return {f"{name}: N needed for a test error of 10%": [
        crossing(DATA_N, of_seed, 0.1) for of_seed in errors[name].T]
        for name in ("stochastic orthonormal", "one-hot")} | {
        "one-hot, fixed orthonormal, N = 16, 32: test error / (d/(2q))": np.concatenate(
            [errors["one-hot"][2:4], errors["fixed orthonormal"][2:4]]),
        "net, N up to 4096: test error / (d/(2q))": errors["net, 120 units"]}


# width: the d_e that is needed, to T = 10^9

SHARE = 0.1                                     # of d/(2q): the error to be reached
SIZES = {1: {20: (4, 5, 6), 80: (6, 7, 8), 320: (8, 9, 10)},        # trained d_e for each q and T
         2: {20: (7, 9, 11), 80: (11, 13, 16), 320: (16, 18, 21)},
         3: {10: (12, 16, 24), 20: (16, 24, 32), 40: (24, 32, 48), 80: (32, 48, 64),
             160: (32, 48, 64), 320: (48, 64, 96)}}
LONG_T = [10, 20, 40, 80, 160, 320, 640, 10 ** 4, 10 ** 6, 10 ** 9]
GROWTH = [      # draws, weights as trained or the best ones, label, the power of ln T that fits
    (1, False, "one draw", 2), (16, True, "16 draws, as trained", 2),
    (16, False, "16 draws", 1), (np.inf, False, "all draws", 1)]
POWERS = {1: "ln T", 2: "(ln T)²"}
WIDTH = {("width", q, T, d_e): attention(
    1000, "random signs", T=T, q=q, d_e=d_e, fresh=False, optimizer="adam", lr=0.03,
    schedule="cosine", eval_sequences=512) for q in SIZES for T in SIZES[q] for d_e in SIZES[q][T]}


def crossing(sizes, errors, level):
    """The size from which on errors stay below a level, between logarithms; nan if not between."""
    greatest = np.maximum.accumulate(errors[::-1])[::-1]            # of this size and larger ones
    return np.exp(np.interp(-np.log(level), -np.log(greatest), np.log(sizes), np.nan, np.nan))


def trained_widths(runs, q):
    """The d_e that an error of SHARE d/(2q) needs, between those that are trained (T, seeds)."""
    needed = []
    for T in SIZES[q]:
        of_T = curve(runs, "width", q, T)
        sizes = [found[0]["config"].d_e for found in of_T]
        ends = np.array([plots.shares(found, T, q)[:, -1] for found in of_T])
        needed.append([crossing(sizes, errors, SHARE) for errors in ends.T])
    return np.array(needed)


@functools.cache
def predicted_widths(q, K, trained):
    """width.needed_width for an error of SHARE d/(2q) at all LONG_T."""
    rng = np.random.default_rng(0)
    return np.array([width.needed_width(T, q, SHARE, K, rng, trained, 10_000)[0] for T in LONG_T])


def fitted_widths(values, power, T=LONG_T[4:]):
    """The fit A + B (ln T)^power to the d_e needed at LONG_T, by least squares from T = 160 on."""
    line = np.polyfit(np.log(LONG_T[4:]) ** power, values[4:], 1, w=1 / values[4:])
    return np.polyval(line, np.log(T) ** power)


def widths(runs):
    """The d_e that attention needs against T; its growth for one draw, and for many."""
    figure, axes = plt.subplot_mosaic([["left", 2], ["left", 1]], figsize=(10, 7))
    left, T = axes["left"], np.array(LONG_T[:7])
    for q in SIZES:
        (color, marker), trained = BY_Q[q], trained_widths(runs, q)
        left.plot(T, predicted_widths(q, 16, True)[:7], "--", color=THEORY)
        points(left, np.repeat(list(SIZES[q]), trained.shape[1]), trained, marker, color,
               label=f"q = {q}")
    left.set(title="trained; grey: predicted", xscale="log", xlabel="length T", ylabel="$d_e$",
             ylim=(0, None))
    left.set_xticks(T[::2], T[::2])
    left.minorticks_off()
    left.legend(loc="upper left")
    T = np.geomspace(LONG_T[4], LONG_T[-1], 50)
    for (K, as_trained, text, power), marker in zip(GROWTH, MARKERS):
        values = predicted_widths(3, K, as_trained)
        axes[power].plot(LONG_T, values, marker, color=BY_Q[3][0], label=text)
        axes[power].plot(T, fitted_widths(values, power, T), "--", color=THEORY)
    for power in 2, 1:
        axes[power].set(title=f"predicted, q = 3: like {POWERS[power]}", xlabel="length T",
                        ylabel="$d_e$", xscale="log", ylim=(0, None))
        axes[power].legend(loc="upper left")
    plots.caption(figure, f"For an error of {SHARE:.0%} of d/(2q); d = 5, stochastic random signs. "
                  "Left: mean of 16 draws in a test. Right: with the best weights or, as trained, "
                  "those for one draw; grey: fits.")
    return figure


def measured_width(runs):
    """Trained over predicted d_e, and the fits; for T = 10 and 320 d_e itself."""
    trained, rows = {q: trained_widths(runs, q) for q in SIZES}, {}
    for q in SIZES:
        predicted = predicted_widths(q, 16, True)[[LONG_T.index(T) for T in SIZES[q]]]
        rows[f"q = {q}: trained d_e / predicted"] = trained[q] / predicted[:, None]
    for K, as_trained, text, power in GROWTH:
        values = predicted_widths(3, K, as_trained)
        rows[f"q = 3, {text}: fit of {POWERS[power]} / predicted"] = (
            fitted_widths(values, power) / values[4:])
    return rows | {"q = 3, T = 10: d_e, trained": trained[3][0],
                   "q = 3, T = 320: d_e, trained": trained[3][-1]}


# separation: the width that is needed, with both sides trained

NET_SIZES = {10: (40, 50), 20: (89, 100), 40: (179, 200)}      # units that are trained for each T
NET_STEPS = {10: 6000, 20: 40_000, 40: 60_000}
SEPARATION = {("separation", T, m): {
    "T": T, "model": "fcn", "hidden": [m], "fresh": True, "optimizer": "adam", "schedule": "cosine",
    "steps": NET_STEPS[T], "evaluations": 1, "eval_sequences": 10_000}
    for T in NET_SIZES for m in NET_SIZES[T]} | {
    key: arm for key, arm in WIDTH.items() if key[1] == 3}


def net_bound(T):
    """The least width of a net for an error of SHARE d/(2q), as in fcn.py; d = 5, q = 3."""
    return 5 * T * (1 - SHARE * (T - 1) / (T - 3))


def net_widths(runs):
    """The width at which nets have an error of SHARE d/(2q): a line through two (T, seeds)."""
    needed = []
    for T, sizes in NET_SIZES.items():
        low, high = (plots.shares(runs["separation", T, m], T, 3)[:, -1] for m in sizes)
        needed.append(sizes[0] + (low - SHARE) / (low - high) * (sizes[1] - sizes[0]))
    return np.array(needed)


def separation(runs):
    """The width that nets and attention need against T."""
    figure, axis = plt.subplots(figsize=(10, 6))
    nets, attention, T = net_widths(runs), 5 + trained_widths(runs, 3), np.array(list(SIZES[3]))
    axis.plot(T, net_bound(T), "--", color=NET)
    points(axis, np.repeat(list(NET_SIZES), nets.shape[1]), nets, "D", NET)
    axis.plot(T, attention.mean(axis=1), color=STOCHASTIC)
    points(axis, np.repeat(T, attention.shape[1]), attention, "o", STOCHASTIC)
    axis.text(11, 250, "units of a net's first layer:\ntrained nets, and the bound\nfor all nets "
              "(dashed)", color=NET)
    axis.text(75, 24, "trained attention: d + $d_e$", color=STOCHASTIC)
    for length, net in (40, nets[-1].mean()), (320, net_bound(320)):
        own = attention[list(T).index(length)].mean()
        axis.plot([length] * 2, [own, net], ":", color=THEORY)
        axis.text(length * 0.95, np.sqrt(own * net), f"{net / own:.1f} times", color=THEORY,
                  ha="right", va="center")
    axis.set(xscale="log", yscale="log", xlabel="sequence length T", ylabel="width that is needed")
    axis.set_xticks(T, T)
    axis.set_yticks([20, 50, 100, 200, 500, 1000], [20, 50, 100, 200, 500, 1000])
    axis.minorticks_off()
    plots.caption(figure, f"For an error of {SHARE:.0%} of d/(2q), between trained widths: q = 3, "
                  f"d = 5, {len(nets[0])} seeds. Adam: nets with one hidden layer on fresh batches "
                  "of 256 sequences; attention with stochastic random signs on one batch of 256, "
                  "tested with the mean of 16 draws.")
    return figure


def measured_separation(runs):
    """The width that trained nets need, over the bound, and over what attention needs."""
    nets, attention = net_widths(runs), 5 + trained_widths(runs, 3)
    rows = {f"T = {T}: width that trained nets need / bound": needed / net_bound(T)
            for T, needed in zip(NET_SIZES, nets)}
    return rows | {"T = 40: width that nets need / attention": nets[-1] / attention[2],
                   "T = 320: bound for nets / width that attention needs":
                   net_bound(320) / attention[-1]}


PARTS = {       # name: the arms, the picture, what is measured, the headline
    "dynamics": (DYNAMICS, dynamics, measured_dynamics,
                 "Training follows two numbers, a and $\\alpha$; noise adds 10% to the plateau"),
    "noise": (NOISE, noise, measured_noise,
              "Gradient noise makes the plateau about 1 + lr T/(2nK) times as long"),
    "length": (LENGTH, length, measured_length,
               "How errors grow at longer lengths follows from theory"),
    "tests": (TESTS, tests, measured_tests,
              "Fixed orthonormal encodings fail on longer sequences, not on subset sizes"),
    "full_model": (FULL_MODEL, full_model, measured_full_model,
                   "The full model: with orthonormal encodings, sum or mean decides the rate"),
    "data": (DATA, data, measured_data,
             "Stochastic encodings learn from 16 sequences, which the others memorize"),
    "separation": (SEPARATION, separation, measured_separation,
                   "Nets need about T d units; the width of attention grows far more slowly"),
    "width": (WIDTH, widths, measured_width,
              "The width that attention needs should grow like ln T or $(\\ln T)^2$")}
FIGURES = {name: (draw, headline, {key[0] for key in own})
           for name, (own, draw, _, headline) in PARTS.items()}


def arms(quick):
    """The settings of each arm, by its key; with quick they have few steps and sequences."""
    found = {key: arm for own, *_ in PARTS.values() for key, arm in own.items()}
    return found if not quick else {
        key: arm | {"steps": max(100, arm["steps"] // 20), "batch": min(arm.get("batch", 64), 64),
                    "eval_sequences": min(arm.get("eval_sequences", 50), 50)}
        for key, arm in found.items()}


def table(runs):
    """What is measured, as text: over settings, with the mean over their seeds, or over seeds."""
    lines = [("figure", "what is measured", "mean (least to greatest)")]
    for name, (own, _, measure, _) in PARTS.items():
        if own.keys() <= runs.keys():
            for text, values in measure(runs).items():
                values = np.array(values)
                values = values.mean(axis=-1) if values.ndim > 1 else values
                lines.append((name, text, f"{values.mean():.4g} ({values.min():.4g} to "
                                          f"{values.max():.4g})"))
    return aligned(lines)


def main():
    """Draw the figures that the command line names, and print what is measured."""
    runs = plots.main(FIGURES, arms, HERE / "figures", __doc__)
    if runs:                                                    # none with --quick
        text = table(runs)
        print(text)
        if runs.keys() == arms(quick=False).keys():             # all figures
            (HERE / "figures" / "measured.txt").write_text(text)


if __name__ == "__main__":
    claims.in_one_line(main)
