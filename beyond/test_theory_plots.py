"""Tests of theory_plots.py:  python -m pytest beyond/test_theory_plots.py

Figures and claims are given runs which are as theory expects.  What theory_plots.py itself
computes for them is held against known numbers.
"""

import theory_plots     # first: it finds the other files

import functools
import math
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.lines import Line2D

import claims
import plots
import sts
import theory
import train
import width
from test_pictures import assert_readable


@functools.cache
def fast_descent(law, T, d, q, lr, steps, norm2):
    """The descent of orthonormal encodings, also for random signs."""
    return theory.descend(theory.onehot_slopes, lr, steps, (norm2, d), T, d, q)


@pytest.fixture
def exact_signs(monkeypatch):
    """Random signs descend as orthonormal encodings do, which is fast."""
    monkeypatch.setattr(theory_plots, "descent", fast_descent)


# Ideal runs: theory.py and width.py make them, not theory_plots.py


def with_weights(c, a, alpha, **rest):
    """A run with the weights a W*, alpha V*."""
    W, V = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return {"config": c, "W": a * W, "V": alpha * V, **rest}


def recursion(c):
    """L, a, alpha at each step."""
    norm2 = c.d_e if c.pe == "stochastic" else c.T - 1
    return fast_descent("", c.T, c.d, c.q, c.lr, c.steps, norm2)


def ideal_dynamics(key, c):
    L, a, alpha = recursion(c)
    noise = 1 + c.lr * c.T / (2 * c.batch) if key[2] == 150 else 1
    return with_weights(c, a[-1], alpha[-1] / noise, loss=L[:-1])


def ideal_noise(key, c):
    """A loss that falls in a line, so that it is half when it should; or that of the recursion."""
    t, evaluations = np.arange(c.steps), np.linspace(0, c.steps, 41).astype(int)
    if key[1] == "plateau":
        return {"config": c, "loss": c.d / (2 * c.q) * (1 - t / (2 * train.plateau(c)))}
    L = recursion(c)[0][:-1]
    if key[1] == "excess":
        return {"config": c, "loss": L * (1 + c.lr * (c.d + c.q) / (2 * c.batch))}
    late = 1 + c.lr * c.T / (2 * c.batch * c.draws)
    return {"config": c, "loss": np.interp(t / late, t, L), "eval_step": evaluations,
            "cos_V": evaluations / 500}


def ideal_length(key, c):
    if key[1] == "floor":
        scores = width.sample_scores(np.random.default_rng(1), c.T, c.d_e, c.q, 2000)
        floor, *_ = width.noise_floor(scores, c.d, c.q, c.draws)
        return {"config": c, "loss": np.full(c.steps, floor)}
    lengths, rng = [c.T, *c.T_test], np.random.default_rng(1)
    last = [width.predict_loss(rng, 3, 1.3, T, c.d, c.q, c.d_e, 16, 0.01)[0] if key[1] == "signs"
            else theory.length_loss(0.03, c.T, T, c.d, c.q) for T in lengths]
    return with_weights(c, 3.0, 1.3, loss=np.full(c.steps, 0.03), eval_step=np.array([0, c.steps]),
                        error=np.array([[0.8] * len(last), last]),
                        tests=np.array([(T, c.q) for T in lengths]))


def ideal_tests(key, c):
    """In the end W on random signs is 3 on all of them, or on the span of the trained ones."""
    if len(key) == 2:
        t, (_, a, alpha) = np.linspace(0, c.steps, 41).astype(int), recursion(c)
        tests = [(T, 3) for T in (50, 62, 75, 87, 100)] + [(50, q) for q in (2, 4, 5, 8)]
        errors = [theory.test_loss(a[t], alpha[t], T, c.d, q) if c.pe == "stochastic" else
                  theory.fixed_test_loss(a[t], alpha[t], c.T, T, c.d, q) for T, q in tests]
        return {"config": c, "tests": np.array(tests), "eval_step": t,
                "error": np.transpose(errors)}
    if c.pe == "stochastic":
        return with_weights(c, 3.0, 1.3)
    E = sts.positional_encoding("rademacher", c.T_test[-1], c.d_e, np.random.default_rng(0))
    span = np.linalg.qr(E[:50].T)[0]
    W = 3 * span @ span.T if key[1] == "signs" else E[:50].T @ E[:50]
    return with_weights(c, 3.0, 1.3) | {"E": E, "W": np.pad(W, ((c.d, 0), (c.d, 0)))}


@functools.cache
def full_model_loss(pe, query, q):
    """L of the full model by the recursion."""
    slopes, norms2 = ((theory.onehot_full_model_slopes, (19, 1, 5)) if pe == "onehot" else
                      (theory.full_model_slopes, (20, 5)))
    return theory.descend(slopes, 1.0, 4000, norms2, 20, 5, q, query)[0][:-1]


def ideal_data(key, c):
    """Errors c/N: redrawn encodings need 8 sequences for 10 % of d/(2q), one-hot ones 160."""
    (_, arm, N), unit = key, 3 / 4
    share = {"redrawn orthonormal": 0.8 / N, "one-hot": 16 / N if N > 32 else 1.5}.get(arm, 1.5)
    return {"config": c, "error": np.array([[9.0], [share * unit]]),
            "loss": np.full(c.steps, 1e-5 * unit)}


IDEAL = {"dynamics": ideal_dynamics, "noise": ideal_noise, "length": ideal_length,
         "tests": ideal_tests,
         "full_model": lambda _, c: {"config": c, "loss": full_model_loss(c.pe, c.query, c.q)},
         "data": ideal_data}


def ideal_runs(name):
    """The runs of a figure, alike for all seeds."""
    return {key: [IDEAL[name](key, train.configuration(**arm))] * 3
            for key, arm in theory_plots.arms(False).items() if key[0] == name}


def rows_of(name, runs):
    """The claims of a figure, by their text; and the mean of each."""
    rows = theory_plots.PARTS[name][2](runs)
    return {row.claim: row for row in rows}, {
        row.claim: float(row.measured.split()[0]) for row in rows}


# The verdicts, whatever their words are: for a number within its limits, outside, without limits
SEEN, NOT_SEEN, NONE = (claims.within("", [1], *limits).holds for limits in ([0], [2], []))


@pytest.mark.parametrize("name", IDEAL)
def test_all_claims_are_seen_for_ideal_runs_and_the_figure_holds_its_text(name, exact_signs):
    runs = ideal_runs(name)
    rows, means = rows_of(name, runs)
    assert {row[-1] for row in rows.values()} <= {SEEN, NONE}
    for text, mean in means.items():
        if any(word in text for word in ("/ exact", "/ law", "/ floor", "/ predicted",
                                         "/ recursion")) and "10^5" not in text:
            assert mean == pytest.approx(1, abs=0.04), text
    with plt.rc_context(plots.STYLE):
        figure = theory_plots.PARTS[name][1](runs)
        figure.suptitle(theory_plots.PARTS[name][3])
        assert_readable(figure)
    for axis in figure.axes:
        assert axis.get_title() and axis.lines
    assert theory_plots.table([name], runs).count("\n") == len(rows) + 1
    committed = (theory_plots.HERE / "figures" / "claims.txt").read_text().splitlines()
    allowed = {line[1]: line[2] for line in (re.split("  +", line) for line in committed)}
    assert all(row.allowed == allowed.get(text, row.allowed) for text, row in rows.items())


@pytest.mark.parametrize("name, key, change, claim", (
    ("dynamics", ("dynamics", "one-hot", 4000), {"loss": 2.0}, "L at the end, sampled / exact"),
    ("noise", ("noise", "plateau", "random signs", 21, 139, 1, 1, 2.6, 206), {"loss": 1.9},
     "5 settings drawn at random: steps to half of d/(2q) / theory.plateau"),
    ("length", ("length", "floor", 32, 1), {"loss": 1.2}, "all d_e, K: training loss / floor"),
    ("tests", ("tests", "fixed"), {"error": 0.8}, "fixed, 4 lengths: least error / exact"),
    ("tests", ("tests", "share", 100), {"E": np.r_[np.ones(50), np.full(950, 1.1)][:, None]},
     "d_e = 100, fixed, step 60: e.We, new / trained / law, 0.336"),
    ("data", ("data", "fixed random signs", 16), {"error": 0.1},
     "N = 16, 32, fixed and one-hot: test error / (d/(2q))")))
def test_a_claim_is_not_seen_for_a_run_that_is_not_ideal(name, key, change, claim, exact_signs):
    runs = ideal_runs(name)
    runs[key] = [run | {part: factor * run[part] for part, factor in change.items()}
                 for run in runs[key]]
    assert rows_of(name, runs)[0][claim][-1] == NOT_SEEN


def test_a_run_that_never_leaves_the_plateau_counts_in_its_group(exact_signs):
    runs, text = ideal_runs("noise"), "delay of the plateau / law"
    for sizes, *groups in ((("one-hot", 50, 50, 5, 3, 1.0, 64), f"lr T/(2nK) <= 0.5: {text}"),
                           (("random signs", 200, 170, 5, 3, 4.0, 256), f"lr T/(2nK) > 1: {text}"),
                           (("orthonormal", 20, 20, 5, 3, 0.5, 8), f"n = 8: {text}"),
                           (("orthonormal", 50, 100, 5, 3, 1.0, 32, 1),
                            f"lr T/(2nK) from 0.5 to 1: {text}", f"n = 32, K = 1: {text}, 1.78")):
        key = "noise", "delay", *sizes
        rows, _ = rows_of("noise", runs | {key: [run | {"loss": 99 + run["loss"]}
                                                 for run in runs[key]]})
        assert [claim for claim, row in rows.items()
                if text in claim and row[-1] == NOT_SEEN] == groups


def test_numbers_of_the_claims_are_those_of_the_runs(exact_signs):
    means = rows_of("data", ideal_runs("data"))[1]
    assert means["redrawn: N needed for a test error of 10%"] == 8
    assert means["one-hot: N needed for a test error of 10%"] == 160
    means = rows_of("tests", ideal_runs("tests"))[1]
    assert means["random signs, redrawn: e.We at new positions"] == 3
    assert means["random signs, fixed: e.We at trained positions"] == 3
    assert means["random signs, fixed: e.We, new / trained"] == pytest.approx(0.5, abs=0.05)
    means = rows_of("noise", ideal_runs("noise"))[1]
    recursion = theory.count_steps(0.5, 200, 5, 3, 2.0, 170)
    steps, ratio = [value for text, value in means.items() if "run, lr 2, fresh" in text]
    assert ratio == pytest.approx(1.78, abs=0.01)
    assert steps == pytest.approx(1.78 * recursion, rel=0.01)
    cosine, = (value for text, value in means.items() if "step 300: cos V; law 0.66" in text)
    assert cosine == 0.6                                    # ideal runs have t/500
    for law in "K = 1: delay of the plateau / law, 1.78", "K = 4: delay of the plateau / law, 1.20":
        assert means[f"n = 32, {law}"] == pytest.approx(1, abs=0.01)
    assert min(value for text, value in means.items() if "theory.plateau" in text) > 0.95
    assert max(int(text.split()[0]) for text in means if "theory.plateau" in text) >= 20


def line(axis, label):
    """x and y of the curve, or of the points, with a label."""
    return next(line for line in axis.lines if line.get_label() == label).get_data()


def test_points_and_laws_of_noise_are_where_their_labels_say(exact_signs):
    left, right = theory_plots.noise(ideal_runs("noise")).axes
    for axis, more, label in ((left, 1, "one-hot, T = 50"), (left, 1, "orthonormal, T = 20"),
                              (left, 1, "random signs, T = 200"), (left, 1, "1 + lr T/(2nK)"),
                              (right, 0, "one-hot, T = 50"), (right, 0, "orthonormal, T = 20"),
                              (right, 0, "lr (d + q)/(2n)")):
        x, y = line(axis, label)
        np.testing.assert_allclose(y, np.add(x, more), rtol=0.02)
    assert {0.195, 0.391, 0.781} <= set(line(left, "orthonormal, T = 50")[0].round(3))


def test_curves_and_points_are_where_their_titles_and_labels_say(exact_signs):
    left, right = theory_plots.data(ideal_runs("data")).axes
    assert [axis.get_title() for axis in (left, right)] == ["test error", "training loss"]
    np.testing.assert_allclose(line(left, "redrawn orthonormal")[1],
                               0.8 / np.array(theory_plots.DATA_N))
    assert (line(right, "net, 120 units")[1] == 1e-4).all()             # the least that is drawn
    runs = ideal_runs("tests")
    axis = theory_plots.tests(runs).axes[3]
    assert axis.get_title() == "$T_{test}$ = 100"
    for pe in "redrawn", "fixed":
        x, y = line(axis, pe)
        np.testing.assert_allclose(x[:41], runs["tests", pe][0]["eval_step"])
        np.testing.assert_allclose(y[:41], plots.errors(runs["tests", pe], 100, 3)[0])
        np.testing.assert_allclose(line(axis, f"{pe}, exact")[1][::100], y[:41])
    x, y = axis.lines[-1].get_data()                                    # of fixed ones
    assert (x[0], y[0]) == (theory_plots.test_path(runs["tests", "fixed"][0], 100, 3).argmin(),
                            pytest.approx(0.42, abs=0.005))
    runs = ideal_runs("length")
    left, right = theory_plots.length(runs).axes
    x, y = left.lines[1].get_data()
    np.testing.assert_allclose(x[:5], [100, 200, 400, 1000, 4000])
    np.testing.assert_allclose(y[:5], runs["length", "signs"][0]["error"][-1])
    x, y = line(right, "$T_{test}$ = 80")
    np.testing.assert_allclose((x[0], y[0]), (1 / 0.03, theory.length_loss(0.03, 20, 80, 5, 3)))
    sums, others = theory_plots.full_model(ideal_runs("full_model")).axes
    assert "sum" in sums.get_title() and "others" in others.get_title()
    for axis, label, arm in ((sums, "orthonormal, sum, q = 5", ("stochastic", "sum", 5)),
                             (others, "one-hot, sum, q = 3", ("onehot", "sum", 3))):
        t, L = line(axis, label)
        np.testing.assert_allclose(L[-1], full_model_loss(*arm)[int(t[-1])], rtol=0.02)


def test_panels_of_dynamics_show_what_their_titles_say(exact_signs):
    axes = {axis.get_title(): axis for axis in theory_plots.dynamics(ideal_runs("dynamics")).axes}
    L, a, alpha = theory.descend(theory.onehot_slopes, 1.0, 4000, (49, 5), 50, 5, 3)
    for title, exact, noise in (("a, with W near a W*", a, 1),
                                ("$\\alpha$, with V near $\\alpha$ V*", alpha, 1.0977)):
        curve, measured = axes[title].lines[:2]
        np.testing.assert_allclose(curve.get_ydata(), exact)
        np.testing.assert_allclose(measured.get_data(), [
            np.repeat((150, 400, 1000, 4000), 3),
            np.repeat(exact[[150, 400, 1000, 4000]] / (noise, 1, 1, 1), 3)], rtol=1e-3)
    t, measured = axes["1/L"].lines[0].get_data()
    np.testing.assert_allclose(measured[50:], 1 / L[t[50:].astype(int)], rtol=0.01)
    keys = axes["1/L"].get_legend()
    assert [text.get_text() for text in keys.get_texts()] == list(theory_plots.LAWS)
    assert {"--", "-.", ":"} <= {key.get_linestyle() for key in keys.findobj(Line2D)}


# Known numbers


def test_measures_give_numbers_that_are_known():
    for pe, law, norm2 in (("onehot", "onehot", 49), ("stochastic", "orthonormal", 100),
                           ("stochastic", "rademacher", 100), ("fixed", "orthonormal", 49),
                           ("fixed", "rademacher", 33)):
        c = train.configuration(T=50, d_e=100, pe=pe, law=law)
        assert theory_plots.W_norm2(c) == pytest.approx(norm2, rel=0.01)
    falling = {"config": c, "loss": 5 / 6 * np.linspace(1, 0, 1000)}
    assert theory_plots.half_step(falling) == pytest.approx(500, abs=6)
    assert math.isnan(theory_plots.half_step({"config": c, "loss": np.full(1000, 0.42)}))
    assert theory_plots.last_loss({"loss": np.arange(1000.0)}) == 949.5
    rising = {"loss": 1 / np.r_[np.full(300, 7.0), 7 + 0.3 * np.arange(700)]}
    assert theory_plots.growth(rising) == pytest.approx(0.3, rel=0.001)
    row = theory_plots.seeds_row("", [[1, 2, 3], [4, 4, 4]], 2, 4)
    assert row.measured == "3 (2 to 4) +- 0.58" and row[-1] == SEEN


def test_the_exact_run_has_the_settings_of_a_run():
    c = train.configuration(T=20, d=4, q=2, lr=0.5, steps=70, d_e=64, law="orthonormal")
    L, a, alpha = theory.descend(theory.onehot_slopes, 0.5, 70, (64, 4), 20, 4, 2)
    path = theory_plots.exact({"config": c})
    np.testing.assert_allclose((path["loss"], path["a"][:-1], path["alpha"][:-1]),
                               (L[:-1], a[:-1], alpha[:-1]))


def test_random_signs_descend_as_the_mean_over_single_draws():
    L, a, alpha = theory_plots.descent("rademacher", 20, 5, 3, 1.0, 300, 64)
    E = sts.positional_encoding("rademacher", 20, 64, np.random.default_rng(0), 2000)
    P = sts.softmax(a[-1] * (E @ E[:, :3].sum(axis=1)[:, :, None])[:, :, 0])
    r = alpha[-1] * P - np.isin(np.arange(20), range(3)) / 3
    assert L[-1] < 0.3 and L[-1] == pytest.approx(2.5 * (r * r).sum(axis=1).mean(), rel=0.03)


def test_predictions_are_for_the_draws_of_a_test():
    arms = theory_plots.arms(False)
    assert theory_plots.floor(16, 4) < 0.5 * theory_plots.floor(16, 1)
    c = train.configuration(**arms["length", "signs"])
    (one, _), (many, _) = (width.predict_loss(np.random.default_rng(1), 6, 1.3, 200, 5, 3, 170, K)
                           for K in (1, 16))
    found = theory_plots.predicted(with_weights(c, 6, 1.3), [200])[0]
    assert abs(found / many - 1) < 0.05 < one / many - 1


# The width


def made_up_widths(q, K, trained):
    """Needed d_e which differ by q and K, with small errors."""
    power = 2 if K == 1 or trained else 1
    values = q + np.log(np.array(theory_plots.LONG_T)) ** power
    return np.array([values, 0.01 * values])


def needed(q, T):
    """The d_e that three made-up runs need: .9, 1 and 1.25 times the predicted one."""
    return np.array([0.9, 1, 1.25]) * made_up_widths(q, 16, True)[0][theory_plots.LONG_T.index(T)]


@pytest.fixture
def width_runs(monkeypatch):
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    monkeypatch.setattr(theory_plots, "SIZES", {q: {T: (1, 1000) for T in lengths} for q, lengths
                                                in theory_plots.SIZES.items()})
    return {("width", q, T, d_e): [
        {"config": train.configuration(T=T, q=q), "tests": np.array([[T, q]]),
         "error": np.array([[9.0], [0.1 * 5 / (2 * q) * least / d_e]])} for least in needed(q, T)]
        for q, lengths in theory_plots.SIZES.items() for T in lengths for d_e in (1, 1000)}


def test_a_crossing_is_where_errors_stay_below_a_level():
    for errors, size in [((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.05, 0.05), math.nan),
                         ((0.05, 0.2, 0.05), math.sqrt(80 * 120)), ((0.01, 0.01, 0.2), math.nan)]:
        assert theory_plots.crossing([50, 80, 120], errors, 0.1) == pytest.approx(size, nan_ok=True)


@pytest.mark.parametrize("power", (1, 2))
def test_a_fit_finds_its_own_growth_and_no_other(power):
    values = 7 + 2 * np.log(theory_plots.LONG_T) ** power
    np.testing.assert_allclose(theory_plots.fitted_widths(values, power), values[4:])
    misfit = theory_plots.fitted_widths(values, 3 - power) / values[4:] - 1
    assert abs(misfit).max() > 0.05
    assert (misfit / values[4:]).sum() == pytest.approx(0, abs=1e-9)    # relative least squares


def test_the_figure_of_the_width_shows_nets_attention_and_predictions(width_runs):
    with plt.rc_context(plots.STYLE):
        figure = theory_plots.widths(width_runs)
        figure.suptitle(theory_plots.PARTS["width"][3])
        assert_readable(figure)
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.lines}
    T, nets = lines["nets, q = 3: the bound"].get_data()
    np.testing.assert_allclose(nets, 5 * T * (1 - 0.1 * (T - 1) / (T - 3)))
    for q, lengths in theory_plots.SIZES.items():
        x, y = lines[f"attention, trained, q = {q}"].get_data()
        assert x.tolist() == np.repeat(list(lengths), 3).tolist()
        np.testing.assert_allclose(y, [5 + d_e for T in lengths for d_e in needed(q, T)])
    predicted = [line.get_ydata() for line in left.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(predicted, [5 + made_up_widths(q, 16, True)[0][:7]
                                           for q in theory_plots.SIZES])
    assert left.get_yscale() == "log" and right.get_xlim()[1] > 1e9
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        f"{text}: {theory_plots.POWERS[power]}" for _, _, text, power in theory_plots.GROWTH]


def test_the_claims_of_the_width_compare_seeds_with_predictions_and_nets_with_attention(width_runs):
    rows, means = rows_of("width", width_runs)
    error = np.std([0.9, 1, 1.25], ddof=1) / math.sqrt(3)
    for q in 1, 2, 3:
        assert rows[f"q = {q}: trained d_e / predicted, all T"].measured == (
            f"1.05 (1.05 to 1.05) +- {error:.2g}")
    predicted = made_up_widths(3, 16, True)[0][:7]
    mean, = (mean for claim, mean in means.items() if "more d_e when T doubles" in claim)
    assert mean == pytest.approx(np.diff(predicted).mean(), rel=0.001)
    misfits = [mean for text, mean in means.items() if "misfit" in text]
    assert max(misfits[::2]) < 1e-9 < 0.02 < min(misfits[1::2])
    d_e, net = needed(3, 320), 320 * 5 * (1 - 0.1 * 319 / 317)
    for text, values in {"d_e, trained": d_e, "width, nets / attention": net / (5 + d_e),
                         "parameters": net * 320 * 6 / ((5 + d_e) * (10 + d_e)),
                         "units": net / (320 * (5 + d_e))}.items():
        row, = (row for claim, row in rows.items() if f"T = 320: {text}" in claim)
        assert row.measured == claims.within("", values).measured


# Runs


def test_a_and_alpha_are_read_from_the_weights():
    c = train.configuration(T=6, d=2, q=2, pe="onehot", d_e=8, T_test=[], q_test=[])
    assert theory_plots.numbers(with_weights(c, 3, -1)) == pytest.approx([3, -1])
    c = train.configuration(T=6, d_e=20)
    assert theory_plots.numbers(with_weights(c, 2.5, 1.3)) == pytest.approx([2.5, 1.3])


def test_errors_during_the_plateau_are_left_out():
    key = "length", "orthonormal"
    run = ideal_length(key, train.configuration(**theory_plots.arms(False)[key]))
    run["loss"][:-30] = 9
    losses, errors = theory_plots.late_errors([run, run])
    assert losses == pytest.approx([0.03, 0.03]) and errors.shape == (2, 4)


def test_small_arms_are_those_of_the_figures_with_fewer_steps():
    full, small = theory_plots.arms(False), theory_plots.arms(True)
    assert full.keys() == small.keys()
    assert {key[0] for key in full} == set(theory_plots.FIGURES)
    for key in full:
        a, b = (vars(train.configuration(**arms[key])) for arms in (full, small))
        assert {name for name in a if a[name] != b[name]} <= {"steps", "batch", "eval_sequences"}
        assert 100 <= b["steps"] <= max(100, a["steps"] // 20)
    for fresh, key in ((True, ("delay", *theory_plots.DEFAULT[0])), (False, ("full batch",))):
        run = vars(train.configuration(**full[("noise", *key)]))
        default = vars(train.configuration(fresh=fresh))
        assert {name for name in run if run[name] != default[name]} == {
            "steps", "evaluations", "eval_sequences", "T_test", "q_test"}


@pytest.mark.parametrize("names, printed, written", [
    (["noise"], True, False), ([], False, False), (list(theory_plots.FIGURES), True, True)])
def test_claims_are_written_if_all_figures_are_drawn(names, printed, written, monkeypatch, tmp_path,
                                                     capsys):
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr(theory_plots, "HERE", tmp_path)
    monkeypatch.setattr(plots, "main", lambda *arguments: (names, {}))      # [] with --quick
    monkeypatch.setattr(theory_plots, "table", lambda names, runs: "claims\n")
    theory_plots.main()
    assert ("claims" in capsys.readouterr().out) == printed
    assert (tmp_path / "figures" / "claims.txt").exists() == written


def test_late_harm_is_known_for_orthonormal_encodings():
    """W knows 6 of 12 positions.  With e.We as large at the others it solves length 12."""
    T, d, q, a, alpha = 6, 2, 2, 4.0, 1.1
    c = train.configuration(T=T, d=d, q=q, d_e=12, law="orthonormal", pe="fixed")
    run = with_weights(c, a, alpha) | {"E": np.eye(12)}
    W = run["W"] = np.diag(np.where(np.arange(d + 12) < d + T, np.diag(run["W"]), 0))
    W[d + 1, d], W[d + 11, d] = 1e-6, 3e-6                      # overlaps, too small for any harm
    trained, new, as_it_is, larger, smaller, both = theory_plots.late_harm(run)
    assert new / trained == pytest.approx(3 * math.sqrt(30 / 102), rel=0.02)    # one in 30, in 102
    known = theory.test_loss(a, alpha, 2 * T, d, q) / (d / (2 * q))
    np.testing.assert_allclose([larger, both], known, rtol=1e-4)
    assert as_it_is == pytest.approx(smaller, rel=1e-4) and as_it_is > 2 * known
