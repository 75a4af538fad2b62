"""The paper's Figures 1 to 5, our Figures 6 to 8 and a movie, and what we measure of their claims.

    python plots.py                   all figures, into figures/, and the table of claims
    python plots.py 2 4 --format pdf  two of them, for slides
    python plots.py --quick           all of them, on a small task, into runs/quick/

A training run is cached in runs/figures/, under a hash of its whole configuration: what is there is
not trained again, and a call that was interrupted goes on.  There are seeds 0, 1 and 2; lines are their
mean, and bands their range.  The two arms of Figures 2, 4 and 5 see, with one seed, the same sequences,
in training and in evaluation.
"""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path

import matplotlib

matplotlib.use("Agg")           # draws into files, no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.colors import SymLogNorm

import fcn
import sts
import theory
import train

CACHE = train.RUNS / "figures"
SEEDS = 0, 1, 2
STOCHASTIC, FIXED, THIRD = "#0072B2", "#D55E00", "#009E73"    # told apart by colour-blind readers too
OTHER = "#444444"
STYLE = {"font.size": 13, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}

# The runs, by the flags of train.py.  The two arms of Figures 2, 4 and 5 differ in --pe alone.
# Orthonormal encodings give all selected positions the same logit, and need no average over draws:
# there both arms are evaluated with one draw.  With random signs, stochastic PE is that of Definition 5.
ARMS = {
    "stochastic": "--pe stochastic --pe-family orthonormal --lr 5",
    "fixed": "--pe fixed --pe-family orthonormal --lr 5",
    "stochastic, signs": "--pe stochastic --pe-family rademacher --lr 2",
    "fixed, signs": "--pe fixed --pe-family rademacher --lr 2",
    "stochastic, Adam": "--pe stochastic --pe-family rademacher --optimizer adam --steps 4000",
    "fixed, Adam": "--pe fixed --pe-family rademacher --optimizer adam --steps 4000",
    "full model": "--pe stochastic --attend-to-query --init random --steps 6000",
}
# Figure 6: nets of WIDTHS at T = 10, and one of attention's width at T = 200.
WIDTHS, DEPTHS = (1, 5, 15, 25, 40, 50, 75), (1, 2)
NETS = {(m, depth): f"net, {m} units, {depth} hidden" for depth in DEPTHS for m in WIDTHS}
ARMS |= {arm: f"--model fcn --T 10 --d 5 --q 3 --width {m} --depth {depth} --steps 6000"
         for (m, depth), arm in NETS.items()}
ARMS["net"] = "--model fcn --steps 2000"
ARMS["attention, T = 10"] = "--T 10 --d 5 --q 3 --pe stochastic --pe-family orthonormal --lr 1 --steps 6000"

# Figure 7: a small T and a small learning rate, so that the noise of the gradient is small.
THEORY = {"one-hot": "--pe onehot", "orthonormal": "--pe stochastic --pe-family orthonormal",
          "random signs": "--pe stochastic --pe-family rademacher --pe-dim 64"}
ARMS |= {f"{name}, {how}": f"{flags} --T 50 --d 5 --q 3 --lr 1 --steps 4000{extra}"
         for name, flags in THEORY.items() for how, extra in (("sampled", ""), ("exact", " --population"))}
ARMS |= {f"orthonormal, lr 5, {how}": f"{THEORY['orthonormal']} --T 50 --d 5 --q 3 --lr 5 --steps 300{extra}"
         for how, extra in (("n = 256", ""), ("n = 2048", " --batch 2048"), ("exact", " --population"))}
ARMS |= {f"{arm}, exact": f"{ARMS[arm]} --population" for arm in ("stochastic", "stochastic, signs")}
COSTS = {"d": [(1, 3, 0.01), (5, 3, 0.01), (20, 3, 0.01)],      # (d, q, share of d/(2q)) of the lower row
         "q": [(5, 1, 0.01), (5, 3, 0.01), (5, 10, 0.01)],
         "L": [(5, 3, 0.1), (5, 3, 0.01), (5, 3, 0.001)]}
COUNTED_T = 50, 100, 200, 500, 1000

# Figure 8: a learning rate that falls to 0, so that the loss comes down to its floor.
FLOORS = {(d_e, K): f"floor, d_e = {d_e}, K = {K}"
          for d_e, K in ((16, 1), (64, 1), (128, 1), (16, 4), (64, 4))}
ARMS |= {arm: f"--T 20 --d 5 --q 3 --lr 4 --schedule cosine --steps 2500 --pe-dim {d_e} --draws {K}"
         for (d_e, K), arm in FLOORS.items()}
LENGTHS = 200, 400, 1000, 4000, 10_000, 20_000      # those measured; predicted to 10^5

# Of these no error is drawn but the last, so they are evaluated at the start and at the end only.
NO_CURVES = {"full model", "net", "attention, T = 10", *NETS.values(), *FLOORS.values()}


def configurations(arm, quick=False):
    """The train.py configurations of an arm, one for each seed; quick: with T = 20 for 200, few steps.

    On the population loss nothing but the sample of scores depends on the seed, and one is enough.
    """
    flags = ARMS[arm].split()
    if quick:       # the smaller d_e and T, the smaller a stable --lr of gradient descent
        flags += ["--quick", "--steps", "300" if "--T" in flags else "1500"]
        flags += ["--lr", "1"] if "--lr" in flags else []
    ours = {"evaluations": 1 if arm in NO_CURVES else 200 if "--population" in flags and "--T" in flags else 40}
    ours |= {"eval_draws": 1} if "orthonormal" in flags or "--population" in flags else {}
    seeds = SEEDS[:1] if "--population" in flags else SEEDS
    return [train.parse(flags + ["--seed", str(seed)])[0] | ours for seed in seeds]


def cache_file(config):
    """Where the run of a configuration is kept: a name that changes with each of its settings."""
    text = json.dumps(config, sort_keys=True)
    return CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def cached(config):
    """The finished run of a configuration from the cache, or None; says so if it is damaged."""
    path = cache_file(config)
    if not path.exists():
        return None
    try:
        run = train.load(path)
        if json.loads(run["config"]) == config and len(run["loss"]) == config["steps"]:
            return run
    except (ValueError, KeyError):
        pass
    print(f"{os.path.relpath(path)} is damaged: it is trained again")
    return None


def train_and_save(configs):
    """Train the runs of a group, in a process of its own, into the cache; returns their configurations."""
    def report(run):
        if len(run["step"]) == settings(run)["steps"]:
            train.save(run, cache_file(settings(run)))

    runs = [train.start(config) for config in configs]
    if "population" in configs[0]:
        train.train(runs[0], report)
    else:
        train.train_together(runs, report)
    return configs


def groups(configs):
    """Groups of runs that see the same sequences, of at most 4, so that no core has much more to do."""
    alike = {}
    for config in sorted(configs, key=cost, reverse=True):
        key = cache_file(config) if "population" in config else tuple(config[key] for key in train.BATCH)
        alike.setdefault(key, []).append(config)
    return [group[i:i + 4] for group in alike.values() for i in range(0, len(group), 4)]


@contextlib.contextmanager
def processes(jobs):
    """A pool of processes; after Ctrl-C, or a problem, they end at once."""
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ[threads] = "1"       # the processes are parallel, so the algebra of each is not
    with ProcessPoolExecutor(jobs, get_context("spawn"), signal.signal,
                             (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield pool
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def train_missing(pool, arms, quick):
    """Train the runs of these arms that are not in the cache, several at a time, the longest first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = {cache_file(config): config for arm in arms for config in configurations(arm, quick)}
    missing = [config for config in wanted.values() if not cached(config)]
    longest_first = sorted(groups(missing), key=lambda group: sum(map(cost, group)), reverse=True)
    tasks = [pool.submit(train_and_save, group) for group in longest_first]
    show_progress(as_completed(tasks), missing)


def cost(config):
    """The cost of a run in any unit, for the order of runs and the time left."""
    sizes = train.layer_sizes(config) if config["model"] == "fcn" else [config["T"], 200 + config["pe_dim"]]
    if "population" in config:
        return config["steps"] * 10 ** 6
    return config["steps"] * config["batch"] * (5000 + sum(a * b for a, b in zip(sizes, sizes[1:])))


def show_progress(finished, missing):
    """Say after each finished group how many runs there are, and how long the others will take."""
    begin, total, done, count, shown = time.time(), sum(map(cost, missing)), 0, 0, 0
    if missing:
        print(f"{len(missing)} runs to train", flush=True)
    for task in finished:
        done += sum(map(cost, task.result()))
        count += len(task.result())
        left = (time.time() - begin) * (total - done) / done
        last = count == len(missing)
        if sys.stdout.isatty() or last or count - shown >= len(missing) / 25:
            end, shown = "\r" if sys.stdout.isatty() and not last else "\n", count
            print(f"{count} of {len(missing)} runs, {left:4.0f} s left ", end=end, flush=True)


# What is drawn and measured of a run


def settings(run):
    """The configuration of a run."""
    return json.loads(run["config"])


def smooth_loss(run):
    """The training loss in 100 stretches: their middle steps, and the mean loss of each."""
    steps, losses = np.array_split(run["step"], 100), np.array_split(run["loss"], 100)
    return np.array([np.mean(part) for part in steps]), np.array([np.mean(part) for part in losses])


def loss_left(run):
    """The training loss at the end, as a share of d/(2q), the loss of the zero predictor."""
    c = settings(run)
    return smooth_loss(run)[1][-1] / (c["d"] / (2 * c["q"]))


def line_through(x, y):
    """Least-squares line y = slope x + offset; returns slope, offset, R^2."""
    slope, offset = np.polyfit(x, y, 1)
    return slope, offset, 1 - np.var(y - slope * x - offset) / np.var(y)


def second_half(x, y):
    """The points with x in the upper half of its range."""
    return x[x >= x.max() / 2], y[x >= x.max() / 2]


def change_at_the_end(run, errors):
    """The factor by which an error changes in the last third of a run, from a line through its log."""
    t = run["eval_step"]
    late = t >= t[-1] * 2 / 3
    slope = np.polyfit(t[late], np.log(errors[late]), 1)[0]
    return np.exp(slope * (t[-1] - t[late][0]))


def smooth(errors):
    """Errors (m, a) during a run, averaged over 5 evaluations each: (m - 4, a)."""
    return sum(errors[k:len(errors) - 4 + k] for k in range(5)) / 5


def blocks(run):
    """For W, then for V, with its block of the ground truth (PE-PE, token): the block's share of the
    squared norm, its cosine to the identity, and the norm of all entries but the block's diagonal."""
    d, measured = settings(run)["d"], []
    for matrix, block in (run["W"], run["W"][d:, d:]), (run["V"], run["V"][:, :d]):
        share = (block ** 2).sum() / (matrix ** 2).sum()
        rest = np.sqrt((matrix ** 2).sum() - (np.diag(block) ** 2).sum())
        measured.append((share, sts.cosine(block, np.eye(len(block))), rest))
    return measured


def one_draw(runs):
    """Errors (seeds, sizes) at T_test and q_test of the final weights, with one draw of E each."""
    errors = [train.evaluate([run["W"], run["V"]], settings(run) | {"eval_draws": 1}) for run in runs]
    return [np.array(test) for test in zip(*errors)]


def spread(values, form="{:.3f}"):
    """Mean, least and greatest of the values of the seeds, as text."""
    mean, least, greatest = (form.format(f(values)) for f in (np.mean, np.min, np.max))
    return f"{mean} ({least} to {greatest})"


def band(axis, x, curves, color, label=None, **style):
    """A line for the mean of the curves, and a band for their range."""
    curves = np.array(curves)
    axis.plot(x, curves.mean(axis=0), color=color, label=label, **style)
    axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.25, linewidth=0)


def caption(figure, runs, text):
    """A line under a figure: its text, and the settings of its runs."""
    c = settings(runs[0])
    optimizer = f"{'gradient descent' if c['optimizer'] == 'gd' else 'Adam'}, lr {c['lr']:g}"
    seeds = f"{len(runs)} seeds: mean and range" if len(runs) > 1 else f"seed {c['seed']}"
    figure.supxlabel(f"{text}  T = {c['T']}, q = {c['q']}, d = {c['d']}, n = {c['batch']}, "
                     f"$d_e$ = {c['pe_dim']}, {optimizer}, {seeds}.", fontsize=11)


def error_curves(stochastic, fixed, tests, text):
    """A figure with a row of panels for each of tests ("T_test", "q_test"), a curve for each arm."""
    figure, axes = plt.subplots(len(tests), 4, figsize=(13, 1.2 + 3.1 * len(tests)), sharey="row",
                                sharex=True, squeeze=False)
    for row, test in zip(axes, tests):
        sizes = list(stochastic[0][test])
        for axis, size in zip(row, sizes[-4:]):         # without T_test = T
            for runs, color in (fixed, FIXED), (stochastic, STOCHASTIC):
                band(axis, runs[0]["eval_step"],
                     [run[f"error_{test}"][:, sizes.index(size)] for run in runs], color)
            axis.set(title=f"${test[0]}_{{test}}$ = {size}", yscale="log")
        row[0].set_ylabel("error")
        for runs, color, name, up in (fixed, FIXED, "fixed", 1), (stochastic, STOCHASTIC, "stochastic", -1):
            last = [run[f"error_{test}"][-1, -1] for run in runs]
            row[-1].annotate(name, (runs[0]["eval_step"][-1], max(last) if up == 1 else min(last)),
                             xytext=(0, 5 * up), textcoords="offset points", color=color, weight="bold",
                             ha="right", va="bottom" if up == 1 else "top")
    for axis in axes[-1]:
        axis.set_xlabel("step t")
    caption(figure, stochastic, text)
    return figure


def claims_out_of_distribution(stochastic, fixed):
    """The claims of Figures 4 and 5, on longer sequences and on other subset sizes."""
    T_test, q_test, rows = stochastic[0]["T_test"][1:], stochastic[0]["q_test"], []
    arms = stochastic, fixed
    s_length, f_length = (np.array([run["error_T_test"][:, 1:] for run in arm]) for arm in arms)
    s_subset, f_subset = (np.array([run["error_q_test"] for run in arm]) for arm in arms)
    for i, T in enumerate(T_test):
        low, high = s_length[:, -1, i], f_length[:, -1, i]
        rows.append((f"T_test = {T}: stochastic ends under 0.05", spread(low), low.max() < 0.05))
        rows.append((f"T_test = {T}: fixed ends over 0.15", spread(high), high.min() > 0.15))
    for name, errors in ("stochastic", s_subset), ("fixed", f_subset):
        falls = errors[:, -1] / errors[:, 0]
        rows.append((f"every q_test: {name} goes down, end / start below 1", spread(falls),
                     falls.max() < 1))
    ratios = f_subset[:, -1] / s_subset[:, -1]
    rows.append(("every q_test: stochastic ends lower, fixed / stochastic above 1",
                 spread(ratios, "{:.2f}"), ratios.min() > 1))
    rows.append((f"fixed gets worse as q_test grows: {', '.join(map(str, q_test))}",
                 ", ".join(f"{end:.3f}" for end in f_subset[:, -1].mean(axis=0)),
                 (np.diff(f_subset[:, -1]) > 0).all()))
    for name, single, ends in zip(("T_test", "q_test"), one_draw(stochastic), (f_length, f_subset)):
        ratios = ends[:, -1] / single[:, -ends.shape[-1]:]
        rows.append((f"every {name}: so too with one draw, fixed / stochastic above 1 (ours)",
                     spread(ratios, "{:.2f}"), ratios.min() > 1))
    return rows


# The figures: the drawing of each, and the claims of its caption.


def figure_1(runs):
    """Global convergence: loss and 1/L; cosine similarity of W and V to the ground truth."""
    runs = runs["stochastic"]
    config = settings(runs[0])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    steps = smooth_loss(runs[0])[0]
    losses = np.array([smooth_loss(run)[1] for run in runs])
    band(left, steps, losses, STOCHASTIC)
    left.set(title="global convergence", xlabel="step t", ylim=(0, None))
    left.set_ylabel("training loss L", color=STOCHASTIC)
    inverse = left.twinx()
    band(inverse, steps, 1 / losses, OTHER)
    late_steps, late = second_half(steps, (1 / losses).mean(axis=0))
    predicted = 4 * config["lr"] / config["pe_dim"] * (late_steps - late_steps[-1])
    inverse.plot(late_steps, late[-1] + predicted, ":", color=OTHER)
    inverse.set(ylim=(0, None))
    inverse.set_ylabel("1/L", color=OTHER)
    inverse.grid(False)
    inverse.spines["right"].set_visible(True)
    left.text(0.03, 0.08, "dotted: through the end,\nwith slope 4 lr / $d_e$", transform=left.transAxes,
              color=OTHER, fontsize=12)
    for key, line, name in ("cos_W", "-", "cos(W, W*)"), ("cos_V", "--", "cos(V, V*)"):
        band(right, runs[0]["eval_step"], [run[key] for run in runs], STOCHASTIC, name, linestyle=line)
    right.set(title="direction of the weights", xlabel="step t", ylabel="cosine similarity",
              ylim=(0, 1.03))
    right.legend(loc="lower right", frameon=False)
    caption(figure, runs, "Stochastic PE, orthonormal.")
    return figure


def claims_1(runs):
    """1/L is linear in t, L becomes small, and both cosines tend to 1.

    The slope (derived): let W be C I on the PE-PE block, and V = [alpha I, 0] with the best alpha.
    Gradient descent on the population loss moves C by -(lr / d_e) dL/dC, and L falls like e^(-2 C)
    for large C.  So dC/dt = 2 lr L / d_e, and d(1/L)/dt = (2 / L) dC/dt = 4 lr / d_e.
    """
    runs = runs["stochastic"]
    c = settings(runs[0])
    lines = [line_through(*second_half(t, 1 / L)) for t, L in map(smooth_loss, runs)]
    squares = [R2 for _, _, R2 in lines]
    ratios = [slope / (4 * c["lr"] / c["pe_dim"]) for slope, _, _ in lines]
    final = [loss_left(run) for run in runs]
    rows = [("1/L is linear in t in the second half: R^2 at least 0.99", spread(squares, "{:.4f}"),
             min(squares) >= 0.99),
            ("its slope over 4 lr / d_e (derived): 0.8 to 1.2", spread(ratios),
             0.8 <= min(ratios) and max(ratios) <= 1.2),
            ("L falls under 2 % of d/(2q)", spread(final, "{:.2%}"), max(final) < 0.02)]
    for key, name in ("cos_W", "W to W*"), ("cos_V", "V to V*"):
        ends = [run[key][-1] for run in runs]
        rows.append((f"cosine of {name} ends above 0.99", spread(ends, "{:.4f}"), min(ends) > 0.99))
    return rows


def figure_2(runs):
    """Length generalization: error at longer test sequences during training."""
    return error_curves(runs["stochastic"], runs["fixed"], ["T_test"],
                        "Orthonormal PE, redrawn at every step or fixed.")


def claims_2(runs):
    """Stochastic PE ends lower at every length, and is still falling when fixed PE has levelled off."""
    stochastic, fixed = (np.array([run["error_T_test"][-1, 1:] for run in runs[arm]])
                         for arm in ("stochastic", "fixed"))
    rows = []
    for i, T in enumerate(runs["fixed"][0]["T_test"][1:]):
        factors = fixed[:, i] / stochastic[:, i]
        ends = f"{fixed[:, i].mean():.3f} / {stochastic[:, i].mean():.3f}"
        rows.append((f"T_test = {T}: fixed / stochastic ends at 2 or more, here {ends}",
                     spread(factors, "{:.1f}"), factors.min() >= 2))
    falls, levels = ([change_at_the_end(run, errors) for run in runs[arm]
                      for errors in run["error_T_test"].T[1:]] for arm in ("stochastic", "fixed"))
    rows.append(("every T_test: stochastic still falls, last third at most x0.9", spread(falls, "x{:.2f}"),
                 max(falls) <= 0.9))
    rows.append(("every T_test: fixed has levelled off, last third x0.9 to x1.1", spread(levels, "x{:.2f}"),
                 0.9 <= min(levels) and max(levels) <= 1.1))
    stochastic, fixed = (np.array([run["error_q_test"][-1] for run in runs[arm]]) for arm in ("stochastic", "fixed"))
    ratios = fixed / stochastic
    rows.append(("every q_test: stochastic ends lower, fixed / stochastic above 1 (ours)",
                 spread(ratios, "{:.2f}"), ratios.min() > 1))
    return rows


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model"][0]
    d, d_e, steps = (settings(run)[key] for key in ("d", "pe_dim", "steps"))
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 7.2), height_ratios=[5, 1])
    for (top, bottom), state, when in zip(axes.T, (train.start(settings(run)), run), ("before", "after")):
        for axis, name, block, values, (share, cosine, _) in zip(
                (top, bottom), "WV", ("PE-PE", "token"), (state["W"], state["V"][:, :6 * d]), blocks(state)):
            image = axis.imshow(values, cmap="RdBu_r", norm=SymLogNorm(0.1, vmin=-20, vmax=20),
                                aspect="auto", interpolation="nearest")
            axis.axvline(d - 0.5, color="k", linewidth=1)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.set_title(f"{name} {when} training: {share:.1%} of the squared norm\n"
                           f"in the {block} block, its cosine to $I$ {cosine:.2f}", fontsize=11)
        top.axhline(d - 0.5, color="k", linewidth=1)
        top.set_xlabel(f"query: {d} token, then {d_e} PE coordinates", fontsize=12)
        top.set_ylabel(f"key: {d} token, then {d_e} PE", fontsize=12)
        bottom.set_xlabel(f"{d} token, then the first {5 * d} PE coordinates", fontsize=12)
    figure.colorbar(image, ax=axes, shrink=0.6, label="entry (linear to 0.1, then logarithmic)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    caption(figure, [run], f"Full model, stochastic PE, {steps} steps.\n")
    return figure


def claims_3(runs):
    """After training only the PE-PE block of W and the token block of V are left, near the identity."""
    runs = runs["full model"]
    start, end = ([blocks(state) for state in states]
                  for states in ([train.start(settings(run)) for run in runs], runs))
    rows = []
    for matrix, name in enumerate(("PE-PE block of W", "token block of V")):
        (share_0, cosine_0, rest_0), (share, cosine, rest) = (
            zip(*[measured[matrix] for measured in state]) for state in (start, end))
        rows.append((f"{name}: share of the squared norm at the end, 95 % or more",
                     spread(share, "{:.1%}"), min(share) >= 0.95))
        rows.append((f"{name}: share at the start, under 95 %", spread(share_0, "{:.1%}"),
                     max(share_0) < 0.95))
        rows.append((f"{name}: cosine to the identity at the end, above 0.95", spread(cosine),
                     min(cosine) > 0.95))
        rows.append((f"{name}: cosine at the start, under 0.95", spread(cosine_0), max(cosine_0) < 0.95))
        growth = np.array(rest) / rest_0
        rows.append((f"{name[-1]}: norm of all but that block's diagonal falls, end / start", spread(growth, "{:.2f}"),
                     growth.max() < 1))
    final = [loss_left(run) for run in runs]
    rows.append(("the full model has learnt the task: L under 2 % of d/(2q) (ours)",
                 spread(final, "{:.1%}"), max(final) < 0.02))
    return rows


def figure_4(runs):
    """Out of distribution: longer sequences (top) and other subset sizes (bottom)."""
    return error_curves(runs["stochastic, signs"], runs["fixed, signs"], ["T_test", "q_test"],
                        "Random signs, redrawn (Definition 5, 16 draws) or fixed.")


def claims_4(runs):
    """On length stochastic PE goes to 0 and fixed PE stays; on subset sizes both go down."""
    return claims_out_of_distribution(runs["stochastic, signs"], runs["fixed, signs"])


def figure_5(runs):
    """The same with Adam."""
    return error_curves(runs["stochastic, Adam"], runs["fixed, Adam"], ["T_test", "q_test"],
                        "Random signs, redrawn (Definition 5, 16 draws) or fixed.")


def claims_5(runs):
    """As Figure 4; early stopping, for which stochastic PE is better; where fixed PE turns up again."""
    stochastic, fixed = runs["stochastic, Adam"], runs["fixed, Adam"]
    rows = claims_out_of_distribution(stochastic, fixed)
    s_length, f_length = ([smooth(run["error_T_test"][:, 1:]) for run in arm] for arm in (stochastic, fixed))
    s_subset, f_subset = ([smooth(run["error_q_test"]) for run in arm] for arm in (stochastic, fixed))
    for test, s_errors, f_errors in ("T_test", s_length, f_length), ("q_test", s_subset, f_subset):
        ratios = np.min(f_errors, axis=1) / np.min(s_errors, axis=1)      # (seeds, sizes)
        rows.append((f"every {test}: stopped at its best, fixed / stochastic above 1",
                     spread(ratios, "{:.2f}"), ratios.min() > 1))
    turns = np.array([errors[-1] / errors.min(axis=0) for errors in f_length])
    for i, T in enumerate(fixed[0]["T_test"][1:]):
        rows.append((f"T_test = {T}: fixed turns up again, end / least at least 1.1",
                     spread(turns[:, i], "{:.2f}"), turns[:, i].min() >= 1.1))
    return rows


def attention_error(runs):
    """The error of attention at the length of training, of each seed, on 2000 sequences."""
    return np.array([train.precise_error([run["W"], run["V"]], settings(run), 2000)[0] for run in runs])


def net_errors(runs):
    """Errors of nets on TEST_SEQUENCES sequences, one for each seed, and their standard errors."""
    return np.array([run["error"] for run in runs]), np.array([run["error_se"] for run in runs])


def figure_6(runs):
    """What nets cannot do: loss against first-layer width; the exact bound, trained nets, attention."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), sharey=True)
    large = {(settings(runs["net"][0])["width"], 1): "net"}
    for axis, nets, attention in (axes[0], NETS, "attention, T = 10"), (axes[1], large, "stochastic, signs"):
        c = settings(runs[attention][0])
        T, d, q, own = c["T"], c["d"], c["q"], c["d"] + c["pe_dim"]
        m = np.arange(2 * T * d + 1)
        axis.plot(m / (T * d), fcn.width_lower_bound(m, T, d, q), color=OTHER,
                  label="lower bound for every net")
        for depth, color, marker in zip(DEPTHS, (FIXED, THIRD), "ov"):
            points = [(width / (T * d), error) for (width, layers), arm in nets.items() if layers == depth
                      for error in net_errors(runs[arm])[0]]
            axis.plot(*zip(*points or [(np.nan, np.nan)]), marker, color=color, fillstyle="none",
                      label=f"trained nets, {depth} hidden layer{'s' * (depth > 1)}")
        constructed = [fcn.constructed_loss(T, d, q, 5, narrow) for narrow in (True, False)]
        axis.plot([1, 2], constructed, "D", color=OTHER, markersize=9, fillstyle="none", zorder=3,
                  label="constructed nets, B = 5")
        errors = attention_error(runs[attention])
        axis.plot([own / (T * d)] * len(errors), errors, "*", color=STOCHASTIC, markersize=14, zorder=3,
                  label="attention")
        side = ("left", -8) if own < 0.3 * T * d else ("right", 8)
        axis.annotate(f"attention\nof width {own}", (own / (T * d), errors.max()), xytext=(side[1], 12), ha=side[0],
                      textcoords="offset points", color=STOCHASTIC, weight="bold")
        axis.set(title=f"T = {T}: T d = {T * d}", xlabel="first-layer width m / (T d)")
    axes[0].set_ylabel("loss")
    axes[0].legend(loc="upper right", frameon=False)
    c = settings(runs["net"][0])
    figure.supxlabel(f"d = {d}, q = {q}. Nets: ReLU, Adam, lr {c['lr']:g} falling to 0 as a cosine, "
                     f"n = {c['batch']}; one point for each of {len(SEEDS)} seeds.", fontsize=11)
    return figure


def claims_6(runs):
    """No net is below the bound; at T = 10 training comes close to it; attention is far below it."""
    small, large = (settings(runs[arm][0]) for arm in ("attention, T = 10", "stochastic, signs"))
    rows, gaps = [], []

    def bound(c, m):
        return fcn.width_lower_bound(m, c["T"], c["d"], c["q"])

    for m in WIDTHS:
        least, zero = bound(small, m), bound(small, 0)
        errors, deviations = np.swapaxes([net_errors(runs[NETS[m, depth]]) for depth in DEPTHS], 0, 1)
        gaps.append((errors - least) / deviations)          # all are (depths, seeds)
        if least > 0:
            text, relative, most, form = f"loss / bound {least:.4f} at most 1.1", errors / least, 1.1, "{:.3f}"
        else:
            text, relative, most, form = "bound 0; loss under 2 % of d/(2q)", errors / zero, 0.02, "{:.1%}"
        rows.append((f"m = {m}, 1 and 2 hidden layers: {text}",
                     " and ".join(form.format(mean) for mean in relative.mean(axis=1)), relative.max() <= most))
    rows.append((f"none of the {np.size(gaps)} nets is more than 4 standard errors below the bound",
                 f"lowest {np.min(gaps):+.1f} s.e.", np.min(gaps) > -4))
    for arm, c in ("attention, T = 10", small), ("stochastic, signs", large):
        width = c["d"] + c["pe_dim"]
        ratios = attention_error(runs[arm]) / bound(c, width)
        rows.append((f"T = {c['T']}: attention of width {width} / bound {bound(c, width):.4f} for nets of that width, "
                     "under 0.1", spread(ratios), ratios.max() < 0.1))
    net = settings(runs["net"][0])
    errors, least, mean = net_errors(runs["net"])[0], bound(net, net["width"]), bound(net, net["d"])
    rows.append((f"T = {net['T']}: trained net of width {net['width']} / the same bound, at most 1.1",
                 spread(errors / least), errors.max() <= 1.1 * least))
    rows.append((f"T = {net['T']}: the same net / {mean:.4f}, the loss of the mean of all tokens, below 1",
                 spread(errors / mean), errors.max() < mean))
    return rows


def weight_norm(run):
    """||W*||^2 of one-hot or stochastic PE, which sets the pace of W."""
    c = settings(run)
    return c["T"] - 1 if c["pe"] == "onehot" else c["pe_dim"]


def halved(run):
    """The step at which the training loss has come down to half of d/(2q)."""
    c, (t, L) = settings(run), smooth_loss(run)
    return np.interp(-c["d"] / (4 * c["q"]), -np.minimum.accumulate(L), t)


@functools.cache
def counted_steps(d, q, share):
    """lr times the steps of the exact recursion until L = share d/(2q), for COUNTED_T; lr 2, one-hot PE."""
    return np.array([2 * theory.count_steps(share, T, d, q, 2) for T in COUNTED_T])


def figure_7(runs):
    """Theory and simulation: the exact dynamics over sampled training; what training costs elsewhere."""
    figure, axes = plt.subplots(2, 3, figsize=(14, 8))
    for arm, color in zip(THEORY, (FIXED, STOCHASTIC, THIRD)):
        sampled, exact = runs[f"{arm}, sampled"], runs[f"{arm}, exact"][0]
        losses, (t, L) = np.array([smooth_loss(run)[1] for run in sampled]), smooth_loss(exact)
        band(axes[0, 0], t, losses, color, arm)
        axes[0, 0].plot(t, L, "k--", linewidth=1)
        if arm != "random signs":       # which tend to a floor
            band(axes[0, 1], t, 1 / losses, color)
            axes[0, 1].plot(t, 1 / L, "k--", linewidth=1)
            late, _ = second_half(t, L)
            slope = 4 * settings(exact)["lr"] / weight_norm(exact)
            shift = 0.1 / losses[:, -1].max()       # down, to be seen
            axes[0, 1].plot(late, 1 / L[-1] - shift + slope * (late - t[-1]), "k:")
        for key, style in ("a", "-"), ("alpha", ":"):
            band(axes[0, 2], sampled[0]["eval_step"], [run[key] for run in sampled], color, linestyle=style)
            axes[0, 2].plot(exact["eval_step"], exact[key], "k--", linewidth=1)
    axes[0, 0].set(title="loss (dashed: exact)", xlabel="step t", ylabel="L", yscale="log")
    axes[0, 0].legend(frameon=False)
    axes[0, 1].set(title="1/L (dotted: slope 4 lr / $\\|W^*\\|^2$)", xlabel="step t", ylabel="1/L",
                   ylim=(0, None))
    axes[0, 2].set(title=r"a (solid), $\alpha$ (dotted)", xlabel="step t")
    T = np.geomspace(COUNTED_T[0], 10 ** 6, 50)
    for axis, (varied, sizes) in zip(axes[1], COSTS.items()):
        for shade, (d, q, share) in zip((0.85, 0.5, 0.1), sizes):
            color = plt.cm.viridis(shade)
            axis.plot(T, theory.predict_steps(share, T, d, q), color=color)
            value = {"d": f"{d}", "q": f"{q}", "L": f"{share:g} d/(2q)"}[varied]
            axis.plot(COUNTED_T, counted_steps(d, q, share), "o", color=color, label=f"{varied} = {value}")
        fixed = ", ".join(text for key, text in (("L", "L = 0.01 d/(2q)"), ("d", "d = 5"), ("q", "q = 3"))
                          if key != varied)
        axis.set(title=f"steps: {fixed}", xscale="log", yscale="log", xlabel="sequence length T",
                 ylabel="lr x steps, one-hot")
        axis.legend(frameon=False)
    caption(figure, runs["one-hot, sampled"], "Below: on the population loss; points are counted, lines are the "
            "closed form. Above: black dashes are exact,\n$d_e$ = 64 for random signs, dotted lines are shifted down "
            "to be seen. ")
    return figure


def claims_7(runs):
    """What theory.py predicts, and what sampled training does; what is left is noise of the gradient."""
    rows = []
    measures = {"step at which L has halved": (halved, 0.85, 1.15),
                "L at the end": (lambda run: smooth_loss(run)[1][-1], 0.9, 1.1),
                "a at the end": (lambda run: run["a"][-1], 0.95, 1.05),
                "alpha at the end": (lambda run: run["alpha"][-1], 0.95, 1.05)}

    def compare(text, name, sampled, exact):
        measure, low, high = measures[name]
        ratios = np.array([measure(run) for run in sampled]) / measure(exact[0])
        rows.append((f"{text}: {name}, sampled / exact {measure(exact[0]):.4g}, {low} to {high}",
                     spread(ratios), low <= ratios.min() and ratios.max() <= high))

    for arm in THEORY:
        sampled, exact = runs[f"{arm}, sampled"], runs[f"{arm}, exact"]
        for name in measures:
            compare(arm, name, sampled, exact)
        if arm != "random signs":
            unit = 4 * settings(exact[0])["lr"] / weight_norm(exact[0])
            slopes = [line_through(*second_half(t, 1 / L))[0] / unit
                      for t, L in map(smooth_loss, [exact[0], *sampled])]
            rows.append((f"{arm}: slope of 1/L / (4 lr / |W*|^2): exact {slopes[0]:.3f}, sampled 0.9 to 1.1",
                         spread(slopes[1:]), 0.9 <= min(slopes) and max(slopes) <= 1.1))
    for n in "n = 256", "n = 2048":
        compare(f"orthonormal, lr 5, {n}", "step at which L has halved", runs[f"orthonormal, lr 5, {n}"],
                runs["orthonormal, lr 5, exact"])
    for arm, text in ("stochastic", "orthonormal, lr 5"), ("stochastic, signs", "random signs, lr 2"):
        for name in "step at which L has halved", "L at the end":
            compare(f"T = {settings(runs[arm][0])['T']}, {text}", name, runs[arm], runs[f"{arm}, exact"])
    for d, q, share in sorted({size for sizes in COSTS.values() for size in sizes}):
        ratios = theory.predict_steps(share, np.array(COUNTED_T), d, q) / counted_steps(d, q, share)
        rows.append((f"steps to {share:g} d/(2q), d = {d}, q = {q}: closed form / recursion, T = {COUNTED_T[0]} "
                     f"to {COUNTED_T[-1]}, at the last 0.9 to 1.1", ", ".join(map("{:.3f}".format, ratios)),
                     0.9 <= ratios[-1] <= 1.1))
    return rows


@functools.cache
def scores(T, d_e, q, draws):
    """Scores of random signs, for the predictions of Figure 8."""
    return theory.sample_scores(np.random.default_rng(0), T, d_e, q, draws)


@functools.cache
def noise_floor(T, d_e, K, d, q):
    """The least loss of random signs with K draws, predicted; its own sampling error is about 2 %."""
    return theory.noise_floor(scores(T, d_e, q, 2000), d, q, K)[0]


def final_loss(run):
    """The training loss, mean over the last tenth of a run."""
    return smooth_loss(run)[1][-10:].mean()


def predicted_error(run, T, K=train.EVAL_DRAWS):
    """The error at length T of the weights a W*, alpha V* that are nearest to a run's, with K draws."""
    c = settings(run)
    sample = scores(T, c["pe_dim"], c["q"], max(20, 60_000 // T))
    return theory.stochastic_slopes(run["a"][-1], run["alpha"][-1], sample, c["d"], c["q"], K)[0]


def measured_error(run, T):
    """The error at length T on 128 sequences; the draws of E come one after another, which saves memory."""
    c = settings(run)
    rng = train.stream(c["seed"], "test")
    X, y = sts.sample_sts(rng, 128, T, c["d"], c["q"], c["dtype"])
    f = 0
    for _ in range(train.EVAL_DRAWS):
        E = sts.positional_encoding(c["pe_family"], T, c["pe_dim"], rng, 1, c["dtype"])
        f = f + sts.forward(run["W"], run["V"], X, y, E)[0] / train.EVAL_DRAWS
    return 0.5 * ((f - sts.sts_target(X, y)) ** 2).sum() / len(X)


def long_errors(run):
    """The errors at LENGTHS; they are kept in the run, as both the figure and its claims need them."""
    if "long_errors" not in run:
        run["long_errors"] = [measured_error(run, T) for T in LENGTHS]
    return run["long_errors"]


def figure_8(runs):
    """What the dimension of random signs buys: noise floor; and how far the trained model generalizes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
    c, own = settings(runs[FLOORS[16, 1]][0]), settings(runs["stochastic, signs"][0])
    dimensions = 12, 16, 24, 32, 48, 64, 96, 128, 192, 256
    for K, color, marker in (1, FIXED, "o"), (4, STOCHASTIC, "s"), (16, OTHER, ""):
        left.plot(dimensions, [noise_floor(c["T"], d_e, K, c["d"], c["q"]) for d_e in dimensions], color=color,
                  label=f"K = {K}")
        for d_e in [d_e for d_e, draws in FLOORS if draws == K]:
            losses = [final_loss(run) for run in runs[FLOORS[d_e, K]]]
            left.plot([d_e] * len(losses), losses, marker, color=color, fillstyle="none")
    left.set(title=f"noise floor with K draws, T = {c['T']}", xscale="log", yscale="log",
             xlabel="PE dimension $d_e$", ylabel="training loss")
    left.set_xticks(dimensions[1::2], dimensions[1::2])
    left.minorticks_off()
    left.legend(frameon=False, title="lines: predicted\npoints: trained")
    T = np.unique(np.geomspace(LENGTHS[0], 10 ** 5, 16).astype(int))
    for K, style, name in ((train.EVAL_DRAWS, "-", f"{train.EVAL_DRAWS} draws"),
                           (math.inf, "--", "expectation over E")):
        errors = [np.mean([predicted_error(run, length, K) for run in runs["stochastic, signs"]])
                  for length in T]
        right.plot(T, errors, style, color=OTHER, label=f"predicted, {name}")
    for i, run in enumerate(runs["stochastic, signs"]):
        right.plot(LENGTHS, long_errors(run), "o", color=STOCHASTIC,
                   fillstyle="none", label=None if i else f"measured, {train.EVAL_DRAWS} draws")
    right.axhline(own["d"] / (2 * own["q"]), color=OTHER, linewidth=1, linestyle=":")
    right.set(title=f"trained at T = {own['T']} (Figure 4)", xscale="log", yscale="log",
              xlabel="length $T_{test}$", ylabel="error")
    right.legend(frameon=False)
    figure.supxlabel(f"Random signs, d = {c['d']}, q = {c['q']}, n = {c['batch']}, one point for each of "
                     f"{len(SEEDS)} seeds. Left: lr {c['lr']:g} falling to 0 as a cosine.\nRight: "
                     f"$d_e$ = {own['pe_dim']}, 128 sequences at each length; dotted: d/(2q).", fontsize=11)
    return figure


def claims_8(runs):
    """Noise floors and errors on long sequences, measured over predicted."""
    rows = []
    for arm in [*FLOORS.values(), "stochastic, signs"]:
        c = settings(runs[arm][0])
        floor = noise_floor(c["T"], c["pe_dim"], c["draws"], c["d"], c["q"])
        ratios = np.array([final_loss(run) for run in runs[arm]]) / floor
        rows.append((f"T = {c['T']}, d_e = {c['pe_dim']}, K = {c['draws']}: training loss / floor {floor:.4f}, "
                     "0.95 to 1.3", spread(ratios), 0.95 <= ratios.min() and ratios.max() <= 1.3))
    for T, measured in zip(LENGTHS, np.transpose([long_errors(run) for run in runs["stochastic, signs"]])):
        predicted = np.array([predicted_error(run, T) for run in runs["stochastic, signs"]])
        ratios = measured / predicted
        rows.append((f"T_test = {T}: error / predicted {predicted.mean():.4f}, 0.8 to 1.25", spread(ratios),
                     0.8 <= ratios.min() and ratios.max() <= 1.25))
    return rows


def movie(path):
    """W, V and the loss while the classroom task is learnt, as a GIF."""
    config = train.parse("--quick --init random --steps 600".split())[0] | {"evaluations": 40}
    run, frames = train.start(config), []
    train.train(run, lambda run: frames.append((run["eval_step"][-1], run["W"], run["V"])))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.4), width_ratios=[1.1, 1, 1.1])
    limit, images = abs(run["W"]).max(), []
    for axis, name, value in (left, "W", run["W"]), (middle, "V", run["V"]):
        images.append(axis.imshow(value, cmap="RdBu_r", vmin=-limit, vmax=limit,
                                  interpolation="nearest"))
        axis.axvline(config["d"] - 0.5, color="k", linewidth=1)
        axis.set(title=name, xlabel="token | PE", xticks=[], yticks=[])
        axis.grid(False)
    left.axhline(config["d"] - 0.5, color="k", linewidth=1)
    figure.colorbar(images[0], ax=left, shrink=0.8)
    right.plot(run["step"], run["loss"], color=STOCHASTIC, linewidth=1)
    marker = right.axvline(0, color="k")
    right.set(xlabel="step t", ylabel="training loss", yscale="log")
    figure.suptitle(" ")
    figure.canvas.draw()
    figure.set_layout_engine("none")        # laid out once, not again for each frame
    writer = PillowWriter(fps=10)
    with writer.saving(figure, path, dpi=70):
        for t, W, V in frames:
            images[0].set_data(W)
            images[1].set_data(V)
            marker.set_xdata([t, t])
            figure.suptitle(f"T = {config['T']}, q = {config['q']}: step {t}")
            writer.grab_frame()


FIGURES = {     # name: drawing, claims, arms
    "1": (figure_1, claims_1, ["stochastic"]),
    "2": (figure_2, claims_2, ["stochastic", "fixed"]),
    "3": (figure_3, claims_3, ["full model"]),
    "4": (figure_4, claims_4, ["stochastic, signs", "fixed, signs"]),
    "5": (figure_5, claims_5, ["stochastic, Adam", "fixed, Adam"]),
    "6": (figure_6, claims_6, ["attention, T = 10", "stochastic, signs", "net", *NETS.values()]),
    "7": (figure_7, claims_7, [f"{arm}, {how}" for arm in THEORY for how in ("sampled", "exact")]
          + [f"orthonormal, lr 5, {how}" for how in ("n = 256", "n = 2048", "exact")]
          + ["stochastic", "stochastic, exact", "stochastic, signs", "stochastic, signs, exact"]),
    "8": (figure_8, claims_8, ["stochastic, signs", *FLOORS.values()]),
}


def make(name, quick, path):
    """Draw a figure or the movie, in a process of its own; returns the rows of its claims, for the table."""
    draw, claims, arms = FIGURES.get(name, (None, lambda runs: [], []))
    runs = {arm: [train.load(cache_file(config)) for config in configurations(arm, quick)] for arm in arms}
    with plt.rc_context(STYLE):
        if name == "movie":
            movie(path)
        else:
            draw(runs).savefig(path)
    plt.close("all")
    return [(name, *row) for row in claims(runs)]


def table(rows):
    """Rows (figure, claim, measured, holds) as text."""
    rows = [(figure, claim, measured, "yes" if holds else "NO") for figure, claim, measured, holds in rows]
    rows = [("figure", "claim", "measured: mean (least to greatest)", "holds"), *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def parse(argv):
    """Command line -> arguments.  Bad input: one line on standard error, exit status 2."""
    parser = argparse.ArgumentParser(prog="plots.py", allow_abbrev=False,
                                     description="Make the paper's figures, and measure their claims.")
    parser.error = lambda message: parser.exit(2, f"plots.py: error: {message}\n")
    names = [*FIGURES, "movie"]
    parser.add_argument("figures", nargs="*", metavar="FIGURE",
                        help=f"which of {', '.join(names)} (default: all)")
    parser.add_argument("--quick", action="store_true",
                        help="small tasks, T = 20 for 200, in a minute (default: the paper's task)")
    parser.add_argument("--jobs", type=train.whole(1), default=os.cpu_count(), metavar="N",
                        help="processes that train and draw (default: one for each core, here %(default)s)")
    parser.add_argument("--out", metavar="FOLDER",
                        help="where to put the figures (default: the folder figures beside plots.py, or "
                             "runs/quick with --quick)")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the figures; the movie is a GIF (default: %(default)s)")
    args = parser.parse_args(argv)
    for name in args.figures:
        if name not in names:
            parser.error(f"argument FIGURE: {name!r} is not one of {', '.join(names)}")
    args.figures = [name for name in names if name in args.figures] or names
    out = train.RUNS / "quick" if args.quick else Path(__file__).resolve().parent / "figures"
    given, args.out = args.out, out if args.out is None else Path(args.out)
    try:
        if given == "":
            raise FileNotFoundError(2, "no name")
        args.out.mkdir(parents=args.out == out, exist_ok=True)
        trial = args.out / f".{os.getpid()}.tmp"
        trial.touch()
        trial.unlink()
    except OSError as problem:
        parser.error(f"argument --out: {given!r} cannot be used: {problem.strerror}; allowed: "
                     "a folder that can be written, or a new one in such a folder")
    return args


def main():
    """Make the figures that the command line asks for, and print the table of claims."""
    args, begin, rows = parse(sys.argv[1:]), time.time(), []
    paths = [args.out / ("movie.gif" if name == "movie" else f"figure_{name}.{args.format}") for name in args.figures]
    numbered = [name for name in args.figures if name in FIGURES]
    try:
        with processes(args.jobs) as pool:
            train_missing(pool, {arm: None for name in numbered for arm in FIGURES[name][2]}, args.quick)
            for path, claims in zip(paths, pool.map(make, args.figures, itertools.repeat(args.quick), paths)):
                rows += claims
                print(os.path.relpath(path), flush=True)
        if rows:
            print("\n" + table(rows))
        if numbered == list(FIGURES):
            (args.out / "claims.txt").write_text(table(rows) + "\n")
        print(f"\nIn {time.time() - begin:.0f} s", flush=True)
        return 0
    except BrokenPipeError:         # as in: python plots.py | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 130
    except (FloatingPointError, OSError, BrokenProcessPool) as problem:
        print(f"plots.py: error: {problem}; the finished runs are kept", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("plots.py: error: interrupted; the finished runs are kept, the same command goes on",
              file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
