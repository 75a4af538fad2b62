"""The paper's Figures 1 to 5, our Figure 6 and two pictures, and what we measure of their claims.

    python plots.py                   all of them, into figures/, and the table of claims
    python plots.py 2 4 --format pdf  two of them, for slides
    python plots.py --quick           all of them on small tasks, into runs/quick/

There are seeds 0, 1 and 2: lines are their mean, and bands their range.  With one seed the two arms
of Figures 2, 4 and 5 see the same sequences, in training and in evaluation.  A run is kept in
runs/figures/, under a hash of its settings and of the text of sts.py, fcn.py and train.py.
"""

import argparse
import functools
import hashlib
import json
import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: the processes are parallel, not their algebra
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")

import matplotlib

matplotlib.use("Agg")           # draws into files, no display is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import NullFormatter

import fcn
import sts
import train

HERE, SEEDS = Path(__file__).resolve().parent, (0, 1, 2)
STOCHASTIC, FIXED, THIRD, THEORY, OTHER = "#0072B2", "#D55E00", "#009E73", "#444444", "#BBBBBB"
STYLE = {"font.size": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.3, "lines.linewidth": 2, "figure.constrained_layout.use": True,
         "savefig.dpi": 100}
NETS = {(m, depth): f"net, {m} units, {depth} hidden"           # of Figure 6 at T = 10
        for depth in (1, 2) for m in (5, 15, 25, 40, 50)}


def arms(quick):
    """The runs of the figures: the settings of train.py for each name, without the seed."""
    small = {"quick": True} if quick else {}

    def pick(paper, classroom):
        return classroom if quick else paper

    full = {"attend_to_query": True, "query": "mean", "pe_family": "orthonormal", "init": "random",
            "pe_dim": pick(200, 40), "lr": pick(9.0, 4.0), "steps": pick(16000, 2000)}
    signs = {"pe_dim": pick(320, 64), "lr": pick(5.0, 2.0), "steps": pick(8000, 1500)}
    adam = {"pe_dim": pick(170, 32), "optimizer": "adam", "steps": pick(4000, 600)}
    tiny = {"T": 10, "d": 5, "q": 3, "steps": pick(6000, 600), "evaluations": 1}
    runs = {
        "classroom": {"quick": True, "init": "random", "steps": 1200, "evaluations": 60},
        "full model": {**full, "evaluations": 30, "eval_draws": 1, "q_test": [], **small},
        "stochastic": {"pe": "stochastic", **signs, "evaluations": 30, **small},
        "fixed": {"pe": "fixed", **signs, "evaluations": 30, **small},
        "stochastic, Adam": {"pe": "stochastic", **adam, "evaluations": 30, **small},
        "fixed, Adam": {"pe": "fixed", **adam, "evaluations": 30, **small},
        "attention, T = 10": {"pe_family": "orthonormal", "lr": 1.0, "eval_sequences": 2000,
                              **tiny},
        "net": {"model": "fcn", "width": pick(205, 43), "steps": pick(1000, 600), "evaluations": 1,
                **small},
    }
    for (m, depth), name in NETS.items():
        runs[name] = {"model": "fcn", "width": m, "depth": depth, "eval_sequences": 50000, **tiny}
    return runs


# Training, several runs at a time


@functools.cache
def code():
    """The text of the files that a run depends on."""
    return "".join((HERE / name).read_text() for name in ("sts.py", "fcn.py", "train.py"))


def kept(config):
    """The file in which the run of a configuration is kept."""
    text = json.dumps(config, sort_keys=True) + code()
    return train.RUNS / "figures" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def train_group(configs):
    """Train runs that see the same sequences, and keep them; returns their number."""
    runs = [train.start(c) for c in configs]
    train.train_together(runs)
    for run in runs:
        train.save(run, kept(run["config"]))
    return len(runs)


def groups(configs):
    """Up to three runs that see the same sequences, which are drawn once; the longest first."""
    def cost(c):        # of a run, in any unit
        width = c["width"] if c["model"] == "fcn" else c["pe_dim"]
        return c["steps"] * c["batch"] * (2000 + c["T"] * (c["d"] + 1) * width / 4)

    alike = {}
    for c in sorted(configs, key=cost, reverse=True):
        key = tuple(c[key] for key in ("seed", "T", "d", "q", "batch", "full_batch", "dtype"))
        alike.setdefault(key, []).append(c)
    parts = [group[i:i + 3] for group in alike.values() for i in range(0, len(group), 3)]
    return sorted(parts, key=lambda part: sum(map(cost, part)), reverse=True)


def train_missing(pool, settings):
    """Train the runs with these settings, and all seeds, that are not kept; says how far it is."""
    configs = [train.configuration(seed=seed, **arm) for arm in settings for seed in SEEDS]
    missing, done = {kept(c): c for c in configs if not kept(c).exists()}, 0
    for count in pool.imap_unordered(train_group, groups(missing.values())):
        done += count
        print(f"{done} of {len(missing)} runs are trained", flush=True)


# What is measured of runs


def config(runs):
    """The configuration of the first of some runs."""
    return runs[0]["config"]


def zero(c):
    """d/(2q), the expected loss of the answer 0."""
    return c["d"] / (2 * c["q"])


def smooth_loss(run):
    """The training loss in 100 stretches: their middle steps, and the mean loss of each."""
    return tuple(np.array([np.mean(part) for part in np.array_split(run[log], 100)])
                 for log in ("step", "loss"))


def late_slope(run):
    """The slope of 1/L in the second half of a run, by least squares, and the R^2 of that line."""
    t, L = (values[50:] for values in smooth_loss(run))
    slope, offset = np.polyfit(t, 1 / L, 1)
    return slope, 1 - np.var(1 / L - slope * t - offset) / np.var(1 / L)


def predicted_slope(c):
    """The growth of 1/L in a step, with orthonormal encodings; derived in beyond/theory.py."""
    return 4 * c["lr"] / c["pe_dim"] / (c["q"] ** 2 if c["query"] == "mean" else 1)


def late_change(run):
    """The factors by which the errors at T_test change in the last third, by a line through ln."""
    t = run["eval_step"]
    late = t >= t[-1] * 2 / 3
    slopes = np.polyfit(t[late], np.log(run["error_T_test"][late]), 1)[0]
    return np.exp(slopes * np.ptp(t[late]))[1:]


def block(run, name):
    """Of W, or V, with the block of its ground truth: the block's share of the squared norm, its
    cosine to the identity, and the norm of all entries but the block's diagonal."""
    d, matrix = run["config"]["d"], run[name]
    part = matrix[d:, d:] if name == "W" else matrix[:, :d]
    squares = (matrix ** 2).sum()
    return ((part ** 2).sum() / squares, sts.cosine(part, np.eye(len(part))),
            np.sqrt(squares - (np.diag(part) ** 2).sum()))


def errors(runs, test):
    """The errors of a test during training (seeds, evaluations, sizes); without T_test = T."""
    return np.array([run[f"error_{test}"] for run in runs])[:, :, test == "T_test":]


def one_draw(runs):
    """The errors at q_test of the final weights, when a single draw of E is evaluated."""
    singles = [run | {log: [] for log in train.LOGS} | {"config": run["config"] | {"eval_draws": 1}}
               for run in runs]
    for run in singles:
        train.evaluate(run)
    return errors(singles, "q_test")[:, -1]


# The figures, and the claims of their captions: (text, a value for each seed, least, greatest)


def band(axis, x, curves, color, **style):
    """A line for the mean of the curves of all seeds, and a band for their range."""
    curves = np.array(curves)
    axis.plot(x, curves.mean(axis=0), color=color, **style)
    low, high = curves.min(axis=0), curves.max(axis=0)
    axis.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)


def caption(figure, headline, runs, text):
    """A headline, and below the figure a text and the settings of its runs."""
    c = config(runs)
    how = "gradient descent" if c["optimizer"] == "gd" else "Adam"
    seeds = f"{len(runs)} seeds: mean and range" if len(runs) > 1 else f"seed {c['seed']}"
    figure.suptitle(headline, weight="bold")
    figure.supxlabel(f"{text} T = {c['T']}, q = {c['q']}, d = {c['d']}, $d_e$ = {c['pe_dim']}, "
                     f"n = {c['batch']}, {how}, lr {c['lr']:g}; {seeds}.", fontsize=12)


def answer_0(axis, level, named=True):
    """A line at d/(2q)."""
    axis.axhline(level, color=THEORY, linestyle=":", linewidth=1.5)
    axis.text(0.98, level, "d/(2q): answer 0" * named, transform=axis.get_yaxis_transform(),
              color=THEORY, fontsize=11, ha="right", va="bottom")


def lecture(run):
    """One sequence and one draw of encodings: X, y, E, and a colour for each position."""
    c, rng = run["config"], np.random.default_rng(0)
    X, y = sts.sample_sts(rng, 1, c["T"], c["d"], c["q"])
    E = sts.positional_encoding(c["pe_family"], c["T"], c["pe_dim"], rng)[0]
    return X, y, E, [STOCHASTIC if j in y[0] else OTHER for j in range(c["T"])]


def task(runs):
    """The task and its solution: a sequence, attention before and after training, the output."""
    run = runs["classroom"][0]
    c, (X, y, E, colors) = run["config"], lecture(run)
    figure = plt.figure(figsize=(12, 6.5))
    grid = figure.add_gridspec(3, 2, width_ratios=[4, 1])
    tokens = figure.add_subplot(grid[0, 0])
    tokens.imshow(X[0].T, cmap="PuOr", vmin=-2.5, vmax=2.5, aspect="auto")
    for j in y[0]:
        frame = plt.Rectangle((j - 0.5, -0.5), 1, c["d"], fill=False, color=STOCHASTIC, linewidth=4)
        tokens.add_patch(frame)
    tokens.set(title=f"T = {c['T']} tokens in $R^{c['d']}$; y names q = {c['q']} of them (framed)",
               xticks=[], yticks=[], ylabel="tokens")
    tokens.grid(False)
    outputs = [("target", sts.sts_target(X, y)[0], THEORY)]
    for row, state in (1, train.start(c)), (2, run):
        when = "before training" if row == 1 else f"after {c['steps']} steps"
        axis = figure.add_subplot(grid[row, 0])
        axis.bar(range(c["T"]), sts.attention(state["W"], X, y, E)[0], color=colors)
        axis.axhline(1 / c["q"], color=THEORY, linestyle=":")
        axis.set(title=f"attention {when}", xlim=(-0.5, c["T"] - 0.5), ylim=(0, 0.6),
                 ylabel="weight $P_j$", xticks=range(c["T"]))
        f, _ = sts.forward(state["W"], state["V"], X, y, E)
        outputs.append((f"output {when}", f[0], STOCHASTIC))
    axis.set_xlabel("position j (dotted: 1/q)")
    for row, (name, vector, color) in enumerate(outputs):
        axis = figure.add_subplot(grid[row, 1])
        axis.barh(range(c["d"]), vector, color=color)
        axis.set_title(name, fontsize=12)
        axis.set(xlim=1.3 * abs(outputs[0][1]).max() * np.array([-1, 1]), yticks=[])
        axis.invert_yaxis()
    figure.suptitle("Sparse token selection: the mean of the tokens that y names", weight="bold")
    return figure


def figure_1(runs):
    """Global convergence of the full model: loss, 1/L, and the directions of W and V."""
    runs = runs["full model"]
    c, t, evaluated = config(runs), smooth_loss(runs[0])[0], runs[0]["eval_step"]
    losses = np.array([smooth_loss(run)[1] for run in runs])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.8))
    band(left, t, losses, STOCHASTIC)
    answer_0(left, zero(c))
    left.set(title="the loss goes to 0", xlabel="step t", ylabel="training loss L", ylim=(0, None))
    band(middle, t, 1 / losses, STOCHASTIC)
    late, end = t[50:], (1 / losses).mean(axis=0)[-1]
    middle.plot(late, end + predicted_slope(c) * (late - t[-1]), "--", color=THEORY)
    middle.text(0.05, 0.9, "dashed: slope 4 lr/($q^2 d_e$)", color=THEORY,
                transform=middle.transAxes)
    middle.set(title="its inverse grows linearly", xlabel="step t", ylabel="1/L", ylim=(0, None))
    for name, line, color, height in ("W", "-", STOCHASTIC, 0.75), ("V", "--", THIRD, 0.6):
        band(right, evaluated, [run[f"cos_{name}"] for run in runs], color, linestyle=line)
        right.text(0.97, height, f"cos({name}, {name}*)", transform=right.transAxes, color=color,
                   ha="right")
    right.set(title="W and V find their directions", xlabel="step t", ylabel="cosine similarity")
    caption(figure, "The full model learns the task at rate 1/t", runs,
            "Keys [Z, $z_{query}$], mean query, stochastic orthonormal PE, random start.")
    return figure


def claims_1(runs):
    """What the caption of Figure 1 says."""
    runs = runs["full model"]
    c, (slopes, R2) = config(runs), np.transpose([late_slope(run) for run in runs])
    shares = [smooth_loss(run)[1][-1] / zero(c) for run in runs]
    return [("R^2 of 1/L against t, second half", R2, 0.99, None),
            ("its slope / the derived one", slopes / predicted_slope(c), 0.85, 1.15),
            ("L at the end / (d/(2q))", shares, None, 0.02),
            ("cosine of W to W* at the end", [run["cos_W"][-1] for run in runs], 0.99, None),
            ("cosine of V to V* at the end", [run["cos_V"][-1] for run in runs], 0.99, None)]


def error_curves(stochastic, fixed, tests, scale):
    """A figure with a row of panels for each test, "T_test" or "q_test"; a curve for each arm."""
    figure, axes = plt.subplots(len(tests), 4, figsize=(14, 1.8 + 3.1 * len(tests)), sharex=True,
                                sharey="row", squeeze=False)
    c, t = config(stochastic), stochastic[0]["eval_step"]
    for row, test in zip(axes, tests):
        for i, (axis, size) in enumerate(zip(row, stochastic[0][test][-4:].tolist())):
            for runs, color, line in (fixed, FIXED, "--"), (stochastic, STOCHASTIC, "-"):
                band(axis, t, errors(runs, test)[:, :, i], color, linestyle=line)
            answer_0(axis, c["d"] / (2 * (size if test == "q_test" else c["q"])), named=i == 0)
            axis.set(title=f"${test[0]}_{{test}}$ = {size}", yscale=scale)
            axis.yaxis.set_minor_formatter(NullFormatter())
        what = "longer sequences" if test == "T_test" else "other subset sizes"
        row[0].set_ylabel(f"error, {what}")
    for runs, color, name in (fixed, FIXED, "fixed"), (stochastic, STOCHASTIC, "stochastic"):
        end = t[-1], errors(runs, "T_test")[:, -1, -1].mean()
        axes[0, -1].annotate(name, end, (8, 0), textcoords="offset points", color=color,
                             weight="bold", va="center", annotation_clip=False)
    for axis in axes[-1]:
        axis.set_xlabel("step t")
    return figure


def figure_2(runs):
    """Length generalization: error at longer test sequences during training."""
    figure = error_curves(runs["stochastic"], runs["fixed"], ["T_test"], "linear")
    caption(figure, "Encodings that are redrawn at each step select on longer sequences too",
            runs["stochastic"], "Random signs, redrawn (Definition 5, 16 draws) or fixed.")
    return figure


def claims_2(runs):
    """What the caption of Figure 2 says, each row for the worst of the four lengths."""
    stochastic, fixed = (errors(runs[arm], "T_test") for arm in ("stochastic", "fixed"))
    falls, levels = ([late_change(run) for run in runs[arm]] for arm in ("stochastic", "fixed"))
    ratios = (fixed / stochastic)[:, -1].min(axis=1)
    return [("all T_test: fixed / stochastic, at the end", ratios, 2, None),
            ("all T_test: least error of fixed at any time", fixed.min(axis=(1, 2)), 0.15, None),
            ("all T_test: stochastic, change in the last third", np.max(falls, axis=1), None, 0.9),
            ("all T_test: fixed, change in the last third", np.min(levels, axis=1), 0.9, None)]


def figure_3(runs):
    """Interpretable training: W and V of the full model, at random initialization and after."""
    run = runs["full model"][0]
    first, d = train.start(run["config"]), run["config"]["d"]
    size = d + 25
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), height_ratios=[5, 1])
    pieces = [(f"W before: its first {size} rows", first["W"][:size, :size]),
              ("after: the identity on encodings", run["W"][:size, :size]),
              ("after, all of W", run["W"]),
              ("V before", first["V"][:, :size]),
              ("V after: copies tokens", run["V"][:, :size])]
    for axis, (title, matrix) in zip(axes.flat, pieces):
        image = axis.imshow(matrix, cmap="RdBu_r", norm=SymLogNorm(0.1, vmin=-10, vmax=10),
                            interpolation="nearest")
        axis.axvline(d - 0.5, color="k", linewidth=1)
        if len(matrix) > d:
            axis.axhline(d - 0.5, color="k", linewidth=1)
        axis.set_title(title, fontsize=14)
        axis.set(xlabel=f"{d} token | {matrix.shape[1] - d} PE coordinates", xticks=[], yticks=[])
        axis.grid(False)
    axes[1, 2].axis("off")
    figure.colorbar(image, ax=axes, shrink=0.7, label="entry (logarithmic beyond 0.1)",
                    ticks=[-10, -1, -0.1, 0, 0.1, 1, 10], format="%g")
    caption(figure, "After training the identity stands out: of encodings in W, of tokens in V",
            [run], "Full model, mean query, stochastic orthonormal PE, random start.")
    return figure


def claims_3(runs):
    """What the caption of Figure 3 says; of "all other entries" their share, and their norm."""
    runs, rows = runs["full model"], []
    for name, part in ("W", "PE-PE block"), ("V", "token block"):
        shares, cosines, rest = np.transpose([block(run, name) for run in runs])
        rest_before = np.array([block(train.start(run["config"]), name)[2] for run in runs])
        rows += [(f"{name}: share of the {part} in the squared norm", shares, 0.95, None),
                 (f"{name}: cosine of the {part} to the identity", cosines, 0.99, None),
                 (f"{name}: norm of all other entries, end / start", rest / rest_before, None, 1)]
    return rows


def figure_4(runs):
    """Out of distribution: longer sequences (top) and other subset sizes (bottom)."""
    figure = error_curves(runs["stochastic"], runs["fixed"], ["T_test", "q_test"], "log")
    caption(figure, "Stochastic encodings end lower on all eight tests, and far lower on length",
            runs["stochastic"], "Random signs, redrawn (Definition 5, 16 draws) or fixed.")
    return figure


def claims_4(runs):
    """What the caption of Figure 4 says; the last row (ours): what the average over draws does."""
    length, subset = ([errors(runs[arm], test) for arm in ("stochastic", "fixed")]
                      for test in ("T_test", "q_test"))
    falls = [(curves[:, -1] / curves[:, 0]).max(axis=1) for curves in subset]
    ends = [curves[:, -1] for curves in (*length, *subset)]
    ratios = (ends[3] / ends[2]).min(axis=1)
    single = (ends[3] / one_draw(runs["stochastic"])).min(axis=1)
    return [("all T_test: stochastic, at the end", ends[0].max(axis=1), None, 0.15),
            ("all T_test: fixed, at the end", ends[1].min(axis=1), 0.15, None),
            ("all q_test: both arms, end / start", np.max(falls, axis=0), None, 1),
            ("all q_test: fixed / stochastic, at the end", ratios, 1, None),
            ("fixed: least rise from a q_test to the next", np.diff(ends[3]).min(axis=1), 0, None),
            ("all q_test: fixed / stochastic with one draw (ours)", single, 1, None)]


def figure_5(runs):
    """The same with Adam."""
    figure = error_curves(*(runs[f"{arm}, Adam"] for arm in ("stochastic", "fixed")),
                          ["T_test", "q_test"], "log")
    caption(figure, "With Adam the length error of fixed encodings falls, and rises again",
            runs["stochastic, Adam"], "Random signs, redrawn (Definition 5, 16 draws) or fixed.")
    return figure


def claims_5(runs):
    """What the caption of Figure 5 says; errors are means of 5 evaluations."""
    rows = []
    for test in "T_test", "q_test":
        curves = [errors(runs[arm], test) for arm in ("stochastic, Adam", "fixed, Adam")]
        stochastic, fixed = (sum(c[:, k:c.shape[1] - 4 + k] for k in range(5)) / 5 for c in curves)
        best = (fixed.min(axis=1) / stochastic.min(axis=1)).min(axis=1)
        rows += [(f"all {test}: fixed / stochastic, at the end",
                  (fixed / stochastic)[:, -1].min(axis=1), 1, None),
                 (f"all {test}: the same, each stopped at its best", best, 1, None)]
        if test == "T_test":
            change = (fixed[:, -1] / fixed.min(axis=1)).min(axis=1)
            rows.append(("all T_test: fixed rises again, end / least", change, 1.1, None))
    return rows


def final_errors(runs):
    """The last errors at T, one for each seed, and their standard errors."""
    return np.transpose([(run["error_T_test"][-1, 0], run["se_T_test"][-1, 0]) for run in runs])


def figure_6(runs):
    """What nets cannot do: loss against first-layer width; the exact bound, nets, attention."""
    figure, axes = plt.subplots(1, 2, figsize=(14, 5.6), sharey=True)
    for axis, attention, nets in ((axes[0], "attention, T = 10", list(NETS.values())),
                                  (axes[1], "full model", ["net"])):
        c = config(runs[attention])
        T, d, q, own = c["T"], c["d"], c["q"], c["d"] + c["pe_dim"]
        m = np.arange(2 * T * d + 1)
        axis.plot(m, fcn.width_lower_bound(m, T, d, q), "--", color=THEORY,
                  label="bound for every net")
        for depth, color, marker in (1, FIXED, "o"), (2, THIRD, "^"):
            points = [(config(runs[arm])["width"], error) for arm in nets
                      if config(runs[arm])["depth"] == depth
                      for error in final_errors(runs[arm])[0]]
            axis.plot(*np.reshape(points, (-1, 2)).T, marker, color=color, fillstyle="none",
                      markersize=9, label=f"trained nets, {depth} hidden layer{'s' * (depth > 1)}")
        constructed = [fcn.constructed_loss(T, d, q, 5, narrow) for narrow in (True, False)]
        axis.plot([T * d, 2 * T * d], constructed, "D", color=THEORY, markersize=9,
                  label="constructed nets, B = 5")
        axis.plot([own] * len(SEEDS), final_errors(runs[attention])[0], "*", color=STOCHASTIC,
                  markersize=16, label="trained attention")
        axis.axvline(T * d, color=THEORY, linewidth=1, linestyle=":")
        axis.text(T * d, 0.55 * zero(c), f" T d = {T * d}", color=THEORY)
        axis.annotate(f"attention: {own}", (own, 0.02), (-4, 14), color=STOCHASTIC,
                      textcoords="offset points", ha="center", weight="bold")
        axis.set(title=f"T = {T}", xlabel="width: first-layer units m; of attention d + $d_e$",
                 xlim=(-0.15 * T * d, 2.1 * T * d))
    error = final_errors(runs["net"])[0].mean()
    axes[1].annotate("a net of this width,\nas trained here", (own, error), (10, -5), color=FIXED,
                     textcoords="offset points", va="top")
    axes[0].set_ylabel("error on fresh sequences")
    axes[0].legend(framealpha=1, edgecolor="none")
    net = config(runs["net"])
    figure.suptitle("To reach 0 a net needs a first layer of T d units, attention far fewer",
                    weight="bold")
    figure.supxlabel(f"d = {d}, q = {q}. Nets: ReLU, Adam, lr {net['lr']:g} falling to 0 as a "
                     f"cosine, n = {net['batch']}; a point for each of {len(SEEDS)} seeds.",
                     fontsize=12)
    return figure


def claims_6(runs):
    """No net is below the bound; at T = 10 training comes close; attention is far below it."""
    small, large = config(runs["attention, T = 10"]), config(runs["full model"])
    nets = [(config(runs[arm]), *final_errors(runs[arm])) for arm in NETS.values()]
    gaps = [(loss - train.bound(c)) / deviation for c, loss, deviation in nets]
    ratios = [loss / train.bound(c) for c, loss, _ in nets if c["width"] < c["T"] * c["d"]]
    left = [loss / zero(c) for c, loss, _ in nets if c["width"] >= c["T"] * c["d"]]
    rows = [("T = 10, all nets: (loss - bound) / standard error", np.min(gaps, axis=0), -4, None),
            ("T = 10, nets with m < T d: loss / bound", np.max(ratios, axis=0), None, 1.1),
            ("T = 10, nets with m >= T d: loss / (d/(2q))", np.max(left, axis=0), None, 0.02)]
    for arm, c in ("attention, T = 10", small), ("full model", large):
        least = fcn.width_lower_bound(c["d"] + c["pe_dim"], c["T"], c["d"], c["q"])
        rows.append((f"T = {c['T']}: attention / bound for nets of its width",
                     final_errors(runs[arm])[0] / least, None, 0.1))
    return [*rows, (f"T = {large['T']}: trained net of that width / the same bound",
                    final_errors(runs["net"])[0] / train.bound(config(runs["net"])), None, 1.1)]


def movie(runs):
    """Attention on one sequence, W, V and the loss while the classroom task is learnt."""
    c, frames = config(runs["classroom"]), []
    run = train.start(c)
    frames.append((run["W"], run["V"]))
    train.train_together([run], lambda run: frames.append((run["W"], run["V"])))
    X, y, E, colors = lecture(run)
    figure = plt.figure(figsize=(10, 6.4))
    grid = figure.add_gridspec(2, 3, width_ratios=[1, 1, 1.6])
    top, right = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 2])
    bars = top.bar(range(c["T"]), np.zeros(c["T"]), color=colors)
    top.axhline(1 / c["q"], color=THEORY, linestyle=":")
    top.set(xlabel=f"position j (blue: the q = {c['q']} that y names; dotted: 1/q)", ylim=(0, 0.6),
            ylabel="attention $P_j$", xticks=range(c["T"]))
    limit, images = abs(run["W"]).max(), []
    for place, name in enumerate("WV"):
        axis = figure.add_subplot(grid[1, place])
        images.append(axis.imshow(run[name], cmap="RdBu_r", vmin=-limit, vmax=limit,
                                  interpolation="nearest", aspect="auto"))
        axis.set(title=f"{name}: token | PE", xticks=[], yticks=[])
        axis.axvline(c["d"] - 0.5, color="k", linewidth=1)
        axis.grid(False)
    line, = right.plot([], [], color=STOCHASTIC)
    right.set(xlabel="step t", ylabel="training loss", xlim=(0, c["steps"]),
              ylim=(0, 1.1 * zero(c)))
    answer_0(right, zero(c))

    def draw(k):
        t = run["eval_step"][k]
        for bar, weight in zip(bars, sts.attention(frames[k][0], X, y, E)[0]):
            bar.set_height(weight)
        for image, matrix in zip(images, frames[k]):
            image.set_data(matrix)
        line.set_data(run["step"][:t], run["loss"][:t])
        figure.suptitle(f"Attention learns to select: step {t}", weight="bold")

    draw(0)
    figure.canvas.draw()
    figure.set_layout_engine("none")        # laid out once, not again for each frame
    return FuncAnimation(figure, draw, len(frames))


FIGURES = {     # name: the drawing, the claims or None, and the runs of each
    "task": (task, None, ["classroom"]),
    "1": (figure_1, claims_1, ["full model"]),
    "2": (figure_2, claims_2, ["stochastic", "fixed"]),
    "3": (figure_3, claims_3, ["full model"]),
    "4": (figure_4, claims_4, ["stochastic", "fixed"]),
    "5": (figure_5, claims_5, ["stochastic, Adam", "fixed, Adam"]),
    "6": (figure_6, claims_6, ["attention, T = 10", "full model", "net", *NETS.values()]),
    "movie": (movie, None, ["classroom"]),
}


# The command line, which beyond/theory_plots.py uses too


def make(name, figure, settings, path):
    """Draw a figure into a file, in a process of its own; returns its claims."""
    draw, claims, names = figure
    runs = {arm: [train.load(kept(train.configuration(seed=seed, **settings[arm])))
                  for seed in SEEDS] for arm in names}
    with plt.rc_context(STYLE):
        drawn = draw(runs)
        if isinstance(drawn, FuncAnimation):
            drawn.save(path, PillowWriter(fps=10), dpi=70)
        else:
            drawn.savefig(path)
    return [(name, *row) for row in claims(runs)] if claims else []


def table(rows):
    """Claims (figure, text, values, least, greatest), and whether all values are so, as text."""
    lines = [("figure", "claim", "allowed", "mean (least to greatest)", "holds")]
    for figure, text, values, least, greatest in rows:
        bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", least), ("<=", greatest))
                  if bound is not None]
        measured = f"{np.mean(values):.4g} ({np.min(values):.4g} to {np.max(values):.4g})"
        holds = ((least is None or np.min(values) >= least)
                 and (greatest is None or np.max(values) <= greatest))
        lines.append((figure, text, ", ".join(bounds), measured, "yes" if holds else "NO"))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main(figures=FIGURES, arms=arms, folder=HERE, description=__doc__):
    """Draw the figures that the command line names, and print the table of their claims."""
    def name_of_a_figure(text):
        if text not in figures:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(figures)}")
        return text

    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    parser.add_argument("names", nargs="*", type=name_of_a_figure, metavar="FIGURE",
                        help=f"which of {', '.join(figures)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small tasks; claims are not judged")
    parser.add_argument("--jobs", type=train.whole(1), default=os.cpu_count(), metavar="N",
                        help="processes that train and draw (default: %(default)s, the cores)")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="folder for the pictures (default: figures; runs/quick with --quick)")
    parser.add_argument("--format", choices=["png", "pdf", "svg"], default="png",
                        help="of the pictures; the movie is a GIF (default: %(default)s)")
    args, begin, rows = parser.parse_args(), time.time(), []
    names, settings = args.names or list(figures), arms(args.quick)
    out = args.out or (train.RUNS / "quick" if args.quick else folder / "figures")
    try:
        for place in out, train.RUNS / "figures":
            place.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        parser.error(f"argument --out: {str(out)!r} cannot be made: {problem.strerror}")
    files = [out / (f"{name}.gif" if name == "movie" else
                    f"{'figure_' * name.isdigit()}{name}.{args.format}") for name in names]
    needed = {arm: settings[arm] for name in names for arm in figures[name][2]}
    ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)        # by the pool, which is ended
    with get_context("spawn").Pool(args.jobs, *ignored) as pool:
        try:
            train_missing(pool, needed.values())
            tasks = [(name, figures[name], settings, path) for name, path in zip(names, files)]
            for path, claims in zip(files, pool.starmap(make, tasks, 1)):
                print(os.path.relpath(path))
                rows += claims
        except KeyboardInterrupt:
            sys.exit(f"\n{parser.prog}: interrupted; the same command goes on with the other runs")
        except (FloatingPointError, OSError) as problem:
            sys.exit(f"{parser.prog}: error: {problem}")
    if rows and not args.quick:
        print("\n" + table(rows))
        if names == list(figures):
            (out / "claims.txt").write_text(table(rows) + "\n")
    print(f"\nin {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
