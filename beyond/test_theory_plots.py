"""Tests of theory_plots.py:  python -m pytest beyond/test_theory_plots.py

Each figure is given runs which are as theory expects: what is measured of them must be 1.  What
theory_plots.py itself computes is held against known numbers.
"""

import theory_plots     # first: it finds the other files

import functools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

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
            "cos_V": np.full(41, theory.plateau_cosine(c.T, c.d, c.q, c.batch))}


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


def ideal_width(key, c):
    """The error falls through 10 % of d/(2q) at the d_e that is predicted."""
    _, q, T, d_e = key
    values, _ = theory_plots.predicted_widths(q, 16, True)
    needed = values[theory_plots.LONG_T.index(T)]
    return {"config": c, "tests": np.array([[T, q]]),
            "error": np.array([[9.0], [0.1 * 5 / (2 * q) * needed / d_e]])}


def made_up_widths(q, K, trained):
    """Needed d_e which differ by q and K, and their errors."""
    values = 20 * q + np.log(theory_plots.LONG_T) ** (2 if K == 1 or trained else 1)
    return np.array([values, 0.01 * values])


IDEAL = {"dynamics": ideal_dynamics, "noise": ideal_noise, "length": ideal_length,
         "tests": ideal_tests, "width": ideal_width,
         "full_model": lambda _, c: {"config": c, "loss": full_model_loss(c.pe, c.query, c.q)},
         "data": ideal_data}


@pytest.fixture
def ideal_runs(monkeypatch):
    """A function from the name of a figure to its runs, alike for all seeds."""
    monkeypatch.setattr(theory_plots, "descent", fast_descent)      # of random signs, too
    monkeypatch.setattr(theory_plots, "predicted_widths", made_up_widths)
    monkeypatch.setattr(theory_plots, "SIZES", {q: {T: (1, 1000) for T in lengths} for q, lengths
                                                in theory_plots.SIZES.items()})
    arms = theory_plots.arms(False) | {
        ("width", q, T, d_e): {"T": T, "q": q} for q, lengths in theory_plots.SIZES.items()
        for T in lengths for d_e in (1, 1000)}
    return lambda name: {key: [IDEAL[name](key, train.configuration(**arm))] * 3
                         for key, arm in arms.items() if key[0] == name}


@pytest.mark.parametrize("name", IDEAL)
def test_ideal_runs_are_as_theory_says_and_their_figure_can_be_read(name, ideal_runs):
    runs = ideal_runs(name)
    _, draw, measure, headline = theory_plots.PARTS[name]
    for text, values in measure(runs).items():
        if text.endswith(("/ exact", "/ law", "/ floor", "/ predicted", "/ recursion")):
            assert np.mean(values) == pytest.approx(1, abs=0.06), text
    with plt.rc_context(plots.STYLE):
        figure = draw(runs)
        figure.suptitle(headline)
        assert_readable(figure)
    assert all(axis.get_title() and axis.lines for axis in figure.axes)


def line(axis, label):
    """x and y of the curve, or of the points, with a label."""
    return next(line for line in axis.lines if line.get_label() == label).get_data()


def test_points_and_laws_of_noise_are_where_their_labels_say(ideal_runs):
    left, right = theory_plots.noise(ideal_runs("noise")).axes
    for axis, more, label in ((left, 1, "one-hot, T = 50"), (left, 1, "orthonormal, T = 20"),
                              (left, 1, "random signs, T = 200"), (left, 1, "1 + lr T/(2nK)"),
                              (right, 0, "one-hot, T = 50"), (right, 0, "orthonormal, T = 20"),
                              (right, 0, "lr (d + q)/(2n)")):
        x, y = line(axis, label)
        np.testing.assert_allclose(y, np.add(x, more), rtol=0.02)
    assert {0.195, 0.391, 0.781} <= set(line(left, "orthonormal, T = 50")[0].round(3))


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
