"""Tests of theory_plots.py and benchmark.py:  python -m pytest beyond/test_theory_plots.py

Figures are drawn from tiny runs and made-up ones, and are read from their axes.
"""

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import benchmark
import claims
import plots
import sts
import theory
import theory_plots
import train
import width

C = train.configuration(T=20, d=5, q=3, pe_family="orthonormal", pe_dim=160, steps=400,
                        T_test=[30, 60, 120, 160], q_test=[])


def ideal_run(L):
    """A run whose training losses are all L, with the errors of the law of length."""
    errors = theory.length_loss(L, C.T, np.array([C.T, *C.T_test]), C.d, C.q)
    return {"config": C, "loss": np.full(C.steps, L), "eval_step": np.array([0, C.steps]),
            "error": np.array([np.full(5, 0.8), errors]), "se": np.full((2, 5), 0.01),
            "tests": np.array([(T, C.q) for T in (C.T, *C.T_test)])}


@pytest.fixture(autouse=True)
def close_figures():
    """No figure stays open."""
    yield
    plt.close("all")


def test_a_and_alpha_are_read_from_the_weights():
    run = {"config": C}
    run["W"], run["V"] = (x * star for x, star in zip((2.5, 1.3), sts.ground_truth(5, 160)))
    assert theory_plots.numbers(run) == pytest.approx([2.5, 1.3])
    c = train.configuration(T=6, d=2, q=2, pe="onehot", pe_dim=8, T_test=[], q_test=[])
    W, V = sts.ground_truth(2, 8, 6)
    assert theory_plots.numbers({"config": c, "W": 3 * W, "V": -V}) == pytest.approx([3, -1])


def test_an_ideal_run_has_the_reach_of_the_theory():
    L, found, guess = theory_plots.reaches(ideal_run(0.03))
    assert L == pytest.approx([0.03])
    assert C.T_test[1] < guess[0] < C.T_test[-1]
    np.testing.assert_allclose(found, guess, rtol=0.03)         # between tests a line joins errors
    assert theory_plots.reaches(ideal_run(0.001)).shape == (3, 0)       # beyond the longest test


def test_errors_during_the_plateau_are_left_out():
    losses, errors = theory_plots.late_errors(ideal_run(0.03))
    assert losses == pytest.approx([0.03])
    assert errors.shape == (1, 5)


@pytest.mark.parametrize("errors, least", (
    ((0.2, 0.05, 0.01), math.sqrt(50 * 80)), ((0.05, 0.2, 0.05), math.sqrt(80 * 120)),
    ((0.05, 0.05, 0.05), math.nan), ((0.01, 0.01, 0.2), math.nan),
    ((1, math.nan, 0.001), math.sqrt(80 * 120))))
def test_the_needed_n_is_where_the_error_stays_under_a_tenth(errors, least, monkeypatch):
    monkeypatch.setitem(theory_plots.NEEDED["one-hot"], 10, [50, 80, 120])
    config = train.configuration(T=10, d=6, q=3, pe="onehot", pe_dim=10, T_test=[], q_test=[])
    runs = {f"one-hot, T = 10, N = {N}": [{"config": config, "error": np.array([[5.0], [error]]),
                                           "loss": np.full(3, 0.5)}]     # d/(2q) is 1
            for N, error in zip((50, 80, 120), errors)}
    np.testing.assert_allclose(theory_plots.final(runs, "one-hot", 10, 50), [[errors[0]], [0.5]])
    found = theory_plots.needed(runs, "one-hot", 10)
    np.testing.assert_allclose(found, [least], rtol=0.5 if math.nan in errors else 0.04)


def test_errors_are_measured_with_their_number_of_draws_and_their_standard_error(monkeypatch):
    monkeypatch.setattr(theory_plots, "TOKENS", 4000)
    c = train.configuration(T=12, d=2, q=3, pe_dim=20, T_test=[], q_test=[])
    W, V = (star.astype(np.float32) for star in sts.ground_truth(2, 20))
    values, errors = theory_plots.measured({"config": c, "W": 3 * W, "V": np.float32(1.4) * V}, 12)
    for K, value, error in zip((1, 16), values, errors):
        L, deviation = width.predict_loss(np.random.default_rng(0), 3, 1.4, 12, 2, 3, 20, K)
        assert 0.003 * L < error < 0.1 * L
        assert abs(value - L) < 5 * math.hypot(error, deviation)


@pytest.mark.parametrize("power", (1, 2))
def test_a_fit_finds_its_own_growth_and_no_other(power):
    values = 7 + 2 * np.log(theory_plots.LONG_T) ** power
    np.testing.assert_allclose(theory_plots.fitted_widths(values, power), values)
    assert abs(theory_plots.fitted_widths(values, 3 - power) / values - 1)[4:].max() > 0.05


def made_up_widths(q, K, trained):
    """Needed d_e which differ by q and K, with small errors."""
    power = 2 if K == 1 or trained else 1
    values = q + np.log(np.array(theory_plots.LONG_T)) ** power
    return np.array([values, 0.01 * values])


def test_the_figure_of_the_width_shows_points_predictions_and_nets(monkeypatch):
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    monkeypatch.setattr(plots, "needed_widths", lambda runs, T, q: T + q + np.arange(3) / 10)
    left, right = theory_plots.needed_d_e({}).axes
    points = {line.get_marker(): [] for line in left.lines}
    for line in left.lines:
        points[line.get_marker()] += zip(*line.get_data())
    for q, marker in zip((1, 2, 3), "os^"):
        assert sorted(points[marker]) == [(T, pytest.approx(T + q + k / 10))
                                          for T in theory_plots.TRAINED[q] for k in range(3)]
    assert any(np.array_equal(line.get_ydata(), np.log2(theory_plots.LONG_T))
               for line in left.lines)
    assert left.get_xlim()[1] > 1e9 < right.get_xlim()[1]
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        text for _, _, text, _ in theory_plots.GROWTH]


def test_the_claims_of_the_width_compare_seeds_with_predictions(monkeypatch):
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    predicted = {(T, q): value for q in (1, 2, 3)
                 for T, value in zip(theory_plots.LONG_T, made_up_widths(q, 16, True)[0])}
    monkeypatch.setattr(plots, "needed_widths",
                        lambda runs, T, q: predicted[T, q] * np.array([0.9, 1, 1.25]))
    rows = {text: values for text, values, *_ in theory_plots.claims_width({})}
    for q in 1, 2, 3:
        np.testing.assert_allclose(rows[f"q = {q}: trained d_e / predicted, all T"], 1.05)
        np.testing.assert_allclose(rows[f"q = {q}: standard error of trained d_e / d_e"],
                                   np.std([0.9, 1, 1.25], ddof=1) / math.sqrt(3))
    np.testing.assert_allclose(rows["standard errors of predicted d_e, relative"], 0.01)
    misfits = [values[0] for text, values in rows.items() if "misfit" in text]
    assert max(misfits[::2]) < 1e-9 < 0.02 < min(misfits[1::2])


@pytest.fixture
def tiny_runs(monkeypatch):
    """A function that gives the runs of a figure: few steps, small batches, one run for all seeds.

    Predictions, which have tests of their own, are replaced by constants.
    """
    for name, value in (
            ("COST_T", (20, 30)), ("TOKENS", 100),
            ("full_descent", lambda *sizes: np.full((4 if sizes[-1] else 3, 100_001), 0.5)),
            ("floor", lambda *sizes: (0.1, 0.001)),
            ("predicted", lambda *sizes: (0.5, 0.001)),
            ("exact", lambda *sizes: (np.full((3, 201), 0.5), np.full(3, 0.01)))):
        monkeypatch.setattr(theory_plots, name, value)
    small = {"batch": 4, "eval_sequences": 2, "lr": 0.1, "steps": 100, "evaluations": 2}
    settings = theory_plots.arms(quick=True)

    def runs_of(figure):
        steps = {} if figure in ("dynamics", "full_model") else {"steps": 12}
        return {name: [train.train(**settings[name] | small | steps)] * 3
                for name in theory_plots.FIGURES[figure][1]}

    return runs_of


@pytest.mark.parametrize("name", ("dynamics", "cost", "full_model"))
def test_a_figure_is_drawn_and_has_its_claims(name, tiny_runs, tmp_path):
    runs = tiny_runs(name)
    figure = theory_plots.FIGURES[name][0](runs)
    figure.savefig(tmp_path / "figure.png")
    assert all(axis.get_title() and (axis.lines or axis.collections) for axis in figure.axes)
    rows = theory_plots.CLAIMS[name](runs)
    assert len(rows) >= 4
    assert claims.table([(name, *row) for row in rows]).count("\n") == len(rows) + 1


def test_the_length_claims_of_an_ideal_run_are_one(tiny_runs):
    runs = tiny_runs("length") | {"length, orthonormal": [ideal_run(0.03), ideal_run(0.05)]}
    *_, last = theory_plots.length(runs).axes
    assert [line.get_xdata()[0] for line in last.lines[1:]] == pytest.approx([0.03, 0.05])
    rows = {text: values for text, values, *_ in theory_plots.claims_length(runs)}
    np.testing.assert_allclose(rows["orthonormal, T_test: error / law of length"], 1)
    np.testing.assert_allclose(rows["orthonormal: reach, measured / predicted"], 1, atol=0.03)


def test_data_shows_test_errors_training_losses_and_crosses_for_lost_runs():
    attention = train.configuration(T=20, d=3, q=2, pe="onehot", pe_dim=20, T_test=[], q_test=[])
    runs = {}
    for arm, T, N in theory_plots.DATA_RUNS:        # 8 sequences are needed for 10 % of d/(2q)
        lost = (arm, T, N) == ("one-hot", 20, 12)
        runs[f"{arm}, T = {T}, N = {N}"] = [{
            "config": attention, "loss": np.full(5, 0.02 * 0.75),
            "error": np.array([[9.0], [math.nan if lost else 0.1 * (8 / N) * 0.75]])}] * 3
    left, middle, right = theory_plots.data(runs).axes
    lines = {line.get_label(): line for line in left.lines}
    np.testing.assert_allclose(lines["stochastic"].get_ydata(), 0.8 / np.array(theory_plots.DATA_N))
    crosses = [N for line in left.lines if line.get_marker() == "x" for N in line.get_xdata()]
    assert crosses == [12]
    assert all((line.get_ydata() == 0.02).all() for line in middle.lines[:1])
    circles = [line for line in right.lines if line.get_marker() == "o"]
    np.testing.assert_allclose([line.get_ydata() for line in circles], 8)


def test_the_benchmark_prints_a_row_for_each_size(capsys):
    benchmark.main(repeats=1, T=8, pe_dim=8, batch=4)
    lines = capsys.readouterr().out.splitlines()
    assert "T = 8, d = 5, q = 3, d_e = 8, batch 4, draws 1" in lines[0]
    assert [line[:12].strip() for line in lines[2:]] == [
        "these", "T 16", "batch 8", "pe_dim 16", "draws 2", "draws 8"]
    assert all(line.count("gradient") == 1 for line in lines[2:])
