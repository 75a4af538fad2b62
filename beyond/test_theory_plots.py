"""Tests of theory_plots.py and benchmark.py:  python -m pytest beyond/test_theory_plots.py

The claims and the figures are made from ideal runs, which do exactly what the theory says.
"""

import functools
import math
import sys
import timeit
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import benchmark
import plots
import sts
import theory
import theory_plots
import train
import width


def outside(figure):
    """The texts of a figure that leave it, and captions of more than two lines."""
    figure.canvas.draw()
    renderer, (right, top) = figure.canvas.get_renderer(), figure.bbox.size
    found = list(figure.texts)
    for axis in figure.axes:
        if axis.get_visible():
            found += [axis.title, *axis.texts, axis.xaxis, axis.yaxis]
            found += [axis.get_legend()] if axis.get_legend() else []
    boxes = [(thing, thing.get_tightbbox(renderer)) for thing in found]
    return [str(thing) for thing, box in boxes if box is not None and box.width > 0
            and not (-1 <= box.x0 and box.x1 <= right + 1 and -1 <= box.y0 and box.y1 <= top + 1)
            ] + [figure.get_supxlabel()] * (figure.get_supxlabel().count("\n") > 1)


@pytest.fixture(autouse=True)
def close_figures():
    """No figure stays open."""
    yield
    plt.close("all")


@functools.cache
def fast_descent(law, T, d, q, lr, steps, norm2):
    """The descent of orthonormal encodings, also for random signs."""
    return theory.descend(theory.onehot_slopes, lr, steps, (norm2, d), T, d, q)


@pytest.fixture
def exact_signs(monkeypatch):
    """Random signs descend as orthonormal encodings do, which is fast."""
    monkeypatch.setattr(theory_plots, "descent", fast_descent)


def with_weights(c, a, alpha, **rest):
    """A run with the weights a W*, alpha V*."""
    W, V = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return {"config": c, "W": a * W, "V": alpha * V, "cos_V": np.array([0.0, 0.66]), **rest}


def ideal_dynamics(key, c):
    run = {"config": c}
    L, a, alpha = theory_plots.exact(run)
    if key[2] == theory_plots.STOPS[0]:
        alpha = alpha / theory.noise_delay(c.lr, c.T, c.batch)
    return with_weights(c, a[-1], alpha[-1], loss=L[:-1])


def ideal_noise(key, c):
    L, t = theory_plots.exact({"config": c})[0], np.arange(c.steps)
    if key[1] == "excess":
        loss = L[:-1] * theory.noise_excess(c.lr, c.d, c.q, c.batch)
    else:
        loss = np.interp(t / theory.noise_delay(c.lr, c.T, c.batch), t, L[:-1])
    return with_weights(c, 0.1, 1 / theory.noise_delay(c.lr, c.T, c.batch), loss=loss)


def ideal_length(key, c):
    if key[1] == "floor":
        return {"config": c, "loss": np.full(c.steps, theory_plots.floor(*key[2:]))}
    tests = np.array(train.tests(c))
    run = with_weights(c, 3.0, 1.3, loss=np.full(c.steps, 0.03), tests=tests,
                       eval_step=np.array([0, c.steps]))
    last = theory_plots.predicted(run, tests[:, 0]) if key[1] == "signs" else theory.length_loss(
        0.03, c.T, tests[:, 0], c.d, c.q)
    return run | {"error": np.array([np.full(len(tests), 0.8), last])}


def ideal_tests(key, c):
    if key[1] == "signs":
        E = sts.positional_encoding("rademacher", 100, 100, np.random.default_rng(0))
        span = np.linalg.qr(E[:50].T)[0]
        return with_weights(c, 3.0, 1.3) if c.pe == "stochastic" else {
            "config": c, "E": E, "W": np.pad(3 * span @ span.T, ((c.d, 0), (c.d, 0)))}
    run = {"config": c, "tests": np.array(train.tests(c)),
           "eval_step": np.linspace(0, c.steps, 41).astype(int)}
    paths = [theory_plots.test_path(c.pe, T, q, c.T, c.lr, c.steps)[run["eval_step"]]
             for T, q in run["tests"].tolist()]
    return run | {"error": np.transpose(paths)}


def ideal_full_model(key, c):
    return {"config": c, "loss": theory_plots.full_descent(*key[1:])[0, :c.steps]}


def ideal_data(key, c):
    """Errors c/N: stochastic encodings need 8 sequences for 10 % of d/(2q), one-hot ones 160."""
    (_, arm, N), unit = key, plots.zero_predictor(c)
    share = {"stochastic": 0.8 / N, "one-hot": 16 / N if N > 32 else 1.5}.get(arm, 1.5)
    return {"config": c, "error": np.array([[9.0], [share * unit]]),
            "loss": np.full(c.steps, 1e-5 * unit)}


IDEAL = {"dynamics": ideal_dynamics, "noise": ideal_noise, "length": ideal_length,
         "tests": ideal_tests, "full_model": ideal_full_model, "data": ideal_data}


def ideal_runs(name):
    """The runs of a figure, alike for all seeds."""
    return {key: [IDEAL[name](key, train.configuration(**arm))] * 3
            for key, arm in theory_plots.arms(False).items() if key[0] == name}


def rows_of(name, runs):
    """The claims of a figure, by their text; and the mean of each."""
    rows = theory_plots.PARTS[name][1](runs)
    return {row.claim: row for row in rows}, {
        row.claim: float(row.measured.split()[0]) for row in rows}


@pytest.mark.parametrize("name", IDEAL)
def test_all_claims_hold_for_ideal_runs_and_the_figure_holds_its_text(name, exact_signs):
    runs = ideal_runs(name)
    rows, means = rows_of(name, runs)
    assert {row.holds for row in rows.values()} <= {"yes", "-"}
    for text, mean in means.items():
        if any(word in text for word in ("/ exact", "/ law", "/ floor", "/ predicted",
                                         "/ recursion")) and "10^5" not in text:
            assert mean == pytest.approx(1, abs=0.03), text
    with plt.rc_context(plots.STYLE):
        figure = theory_plots.PARTS[name][0](runs)
        figure.suptitle(theory_plots.PARTS[name][2])
        assert not outside(figure)
    assert all(axis.get_title() and axis.lines for axis in figure.axes)
    assert theory_plots.table([name], runs).count("\n") == len(rows) + 1


def test_a_text_that_leaves_its_figure_is_found():
    figure, axis = plt.subplots()
    assert not outside(figure)
    axis.text(0.9, 0.5, "much too long for this place")
    assert len(outside(figure)) == 1


@pytest.mark.parametrize("name, key, change, claim", (
    ("dynamics", ("dynamics", "one-hot", 4000), {"loss": 2.0}, "L at the end, sampled / exact"),
    ("dynamics", ("dynamics", "orthonormal", 4000), {"W": 0.9}, "a at the end, sampled / exact"),
    ("noise", ("noise", "delay", "onehot", 50, 5, 3, 1.0, 256), {"loss": 1.9},
     "lr T/(2n) <= 0.5: delay of the plateau / law"),
    ("length", ("length", "floor", 32, 1), {"loss": 1.2}, "all d_e, K: training loss / floor"),
    ("tests", ("tests", "fixed"), {"error": 0.8},
     "T = 50, fixed, 4 lengths: least error / exact"),
    ("full_model", ("full_model", "mean", "orthonormal", 2), {"loss": 1.3},
     "mean, all q: sampled loss / recursion, at the end"),
    ("data", ("data", "fixed", 16), {"error": 0.1},
     "N = 16, 32, fixed and one-hot: test error / (d/(2q))")))
def test_a_claim_fails_for_a_run_that_is_not_ideal(name, key, change, claim, exact_signs):
    runs = ideal_runs(name)
    runs[key] = [run | {part: factor * run[part] for part, factor in change.items()}
                 for run in runs[key]]
    assert rows_of(name, runs)[0][claim].holds == "NO"


def test_numbers_of_the_claims_are_those_of_the_runs(exact_signs):
    means = rows_of("data", ideal_runs("data"))[1]
    assert means["stochastic: N needed for a test error of 10%"] == 8
    assert means["one-hot: N needed for a test error of 10%"] == 160
    rows, means = rows_of("tests", ideal_runs("tests"))
    assert [means[f"T = 200, fixed: least error at T_test = {T}, exact"]
            for T in (250, 300, 350, 400)] == pytest.approx([0.181, 0.291, 0.369, 0.427], abs=1e-3)
    assert means["random signs, stochastic: e.We at new positions"] == 3
    assert means["random signs, fixed: e.We at trained positions"] == 3
    assert means["random signs, fixed: new / trained"] == pytest.approx(0.5, abs=0.05)
    rows, means = rows_of("noise", ideal_runs("noise"))
    steps, of, ratio = [value for text, value in means.items() if "run, lr 2, fresh" in text]
    assert ratio == pytest.approx(1.78, abs=0.01) and steps / of == pytest.approx(1.78, abs=0.01)
    assert means["plateau, lr 4, fresh, step 300: alpha; law for fresh 0.39"
                 ] == pytest.approx(0.39, abs=0.01)
    assert means["plateau, lr 1, one full batch, step 1200: cos V; law for a full batch 0.66"
                 ] == pytest.approx(0.66)


def test_curves_and_points_are_where_their_labels_say(exact_signs):
    def line(axis, label):
        return next(line for line in axis.lines if line.get_label() == label)

    left, right = theory_plots.noise(ideal_runs("noise")).axes
    for label in "one-hot, T = 50", "orthonormal, T = 20", "default task, T = 200":
        x, y = line(left, label).get_data()
        np.testing.assert_allclose(y, 1 + x, rtol=0.02)
    for label in "one-hot, T = 50", "orthonormal, T = 20":
        x, y = line(right, label).get_data()
        np.testing.assert_allclose(y, x, rtol=0.02)
    left, right = theory_plots.data(ideal_runs("data")).axes
    np.testing.assert_allclose(line(left, "stochastic").get_ydata(),
                               0.8 / np.array(theory_plots.DATA_N))
    assert (line(right, "net, 20 units").get_ydata() == 1e-4).all()     # the least that is drawn
    runs = ideal_runs("tests")
    axis = theory_plots.tests(runs).axes[3]
    assert axis.get_title() == "$T_{test}$ = 2 T"
    for pe in "stochastic", "fixed":
        x, y = line(axis, pe).get_data()
        np.testing.assert_allclose(x[:41], runs["tests", pe][0]["eval_step"] / 2500)
        np.testing.assert_allclose(y[:41], plots.errors(runs["tests", pe], 100, 3)[0])


# The width


def made_up_widths(q, K, trained):
    """Needed d_e which differ by q and K, with small errors."""
    power = 2 if K == 1 or trained else 1
    values = q + np.log(np.array(theory_plots.LONG_T)) ** power
    return np.array([values, 0.01 * values])


@pytest.mark.parametrize("power", (1, 2))
def test_a_fit_finds_its_own_growth_and_no_other(power):
    values = 7 + 2 * np.log(theory_plots.LONG_T) ** power
    np.testing.assert_allclose(theory_plots.fitted_widths(values, power), values[4:])
    assert abs(theory_plots.fitted_widths(values, 3 - power) / values[4:] - 1).max() > 0.05


def test_the_figure_of_the_width_shows_points_and_predictions(monkeypatch):
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    monkeypatch.setattr(plots, "needed_widths", lambda runs, q, T: T + q + np.arange(3) / 10)
    with plt.rc_context(plots.STYLE):
        figure = theory_plots.needed_d_e({})
        figure.suptitle(theory_plots.PARTS["width"][2])
        assert not outside(figure)
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.lines}
    for q in 1, 2, 3:
        assert sorted(zip(*lines[f"trained, q = {q}"].get_data())) == [
            (T, pytest.approx(T + q + k / 10)) for T in theory_plots.SIZES[q] for k in range(3)]
    assert left.get_yscale() == "linear" and right.get_xlim()[1] > 1e9
    more = np.diff(made_up_widths(3, 16, True)[0][:7])
    assert [text.get_text() for text in left.texts] == [f"+{value:.0f}" for value in more]
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        text for _, _, text, _ in theory_plots.GROWTH]


def test_the_claims_of_the_width_compare_seeds_with_predictions(monkeypatch):
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    predicted = {(q, T): value for q in (1, 2, 3)
                 for T, value in zip(theory_plots.LONG_T, made_up_widths(q, 16, True)[0])}
    monkeypatch.setattr(plots, "needed_widths",
                        lambda runs, q, T: predicted[q, T] * np.array([0.9, 1, 1.25]))
    rows, means = rows_of("width", {})
    error = np.std([0.9, 1, 1.25], ddof=1) / math.sqrt(3)
    for q in 1, 2, 3:
        assert rows[f"q = {q}: trained d_e / predicted, all T"].measured == (
            f"1.05 (1.05 to 1.05) +- {error:.2g}")
    more = np.diff([predicted[3, T] for T in theory_plots.LONG_T[:7]])
    assert means["q = 3: more d_e when T doubles, T = 10 to 640"] == pytest.approx(more.mean(),
                                                                                   abs=0.01)
    misfits = [mean for text, mean in means.items() if "misfit" in text]
    assert max(misfits[::2]) < 1e-9 < 0.02 < min(misfits[1::2])


# Runs


def test_a_and_alpha_are_read_from_the_weights():
    c = train.configuration(T=6, d=2, q=2, pe="onehot", d_e=8, T_test=[], q_test=[])
    assert theory_plots.numbers(with_weights(c, 3, -1)) == pytest.approx([3, -1])
    c = train.configuration(T=6, d_e=20)
    assert theory_plots.numbers(with_weights(c, 2.5, 1.3)) == pytest.approx([2.5, 1.3])


def test_errors_during_the_plateau_are_left_out():
    key = "length", "orthonormal"
    run = ideal_length(key, train.configuration(**theory_plots.arms(False)[key]))
    losses, errors = theory_plots.late_errors(run)
    assert losses == pytest.approx([0.03]) and errors.shape == (1, 4)


def test_small_arms_are_those_of_the_figures_with_fewer_steps():
    full, small = theory_plots.arms(False), theory_plots.arms(True)
    assert full.keys() == small.keys()
    assert {key[0] for key in full} == set(theory_plots.FIGURES)
    for key in full:
        a, b = (vars(train.configuration(**arms[key])) for arms in (full, small))
        assert {name for name in a if a[name] != b[name]} <= {"steps", "batch", "eval_sequences"}
        assert 100 <= b["steps"] <= max(100, a["steps"] // 20)
    for fresh in True, False:
        run = vars(train.configuration(**full["noise", "default", 4.0, fresh]))
        default = vars(train.configuration(fresh=fresh))
        assert {name for name in run if run[name] != default[name]} == {
            "steps", "evaluations", "eval_sequences", "T_test", "q_test"}


@pytest.mark.parametrize("names, written", ((["noise"], False), ([], False),
                                            (list(theory_plots.FIGURES), True)))
def test_claims_are_written_if_all_figures_are_drawn(names, written, monkeypatch, tmp_path):
    (tmp_path / "figures").mkdir()
    monkeypatch.setattr(theory_plots, "HERE", tmp_path)
    monkeypatch.setattr(plots, "main", lambda *arguments: (names, {}))
    monkeypatch.setattr(theory_plots, "table", lambda names, runs: "claims\n")
    theory_plots.main()
    assert (tmp_path / "figures" / "claims.txt").exists() == written


# benchmark.py


def test_the_benchmark_prints_a_row_for_each_size(capsys):
    benchmark.main(repeats=1, T=8, d_e=8, batch=4)
    lines = capsys.readouterr().out.splitlines()
    assert "T = 8, d = 5, q = 3, d_e = 8, batch 4, draws 1" in lines[0]
    assert [line[:12].strip() for line in lines[2:]] == [
        "these", "T 16", "batch 8", "d_e 16", "draws 2", "draws 8"]
    assert all(line.count("gradient") == 1 for line in lines[2:])


def test_the_benchmark_counts_milliseconds(monkeypatch):
    """20 calls that take 0.04 s are 2 ms each."""
    monkeypatch.setattr(timeit, "repeat", lambda call, number: [0.06, 0.04])
    assert set(benchmark.parts(20, T=8, d_e=8).values()) == {2.0}
