"""Tests of common.py, and of all runs and pictures:  python -m pytest beyond/test_common.py"""

import importlib
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from common import end_error, half_step
from conftest import HERE

import plots
import readings
import sts
import train

ARMS = {name: importlib.import_module(name).ARMS
        for name in ("two_numbers", "plateau", "fixed", "full_model", "data", "width")}
ARMS["readings"] = readings.arms("fixed") | readings.arms("stochastic") | readings.other_arms()


@pytest.mark.parametrize("name", ARMS)
def test_the_flags_of_each_arm_give_back_its_settings(name, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(train, "start", lambda c: started.append(c) or sys.exit())
    for arm in ARMS[name].values():
        monkeypatch.setattr(sys, "argv", plots.command(tmp_path / "none.npz", arm))
        pytest.raises(SystemExit, train.main)
        assert started.pop() == train.Settings(**arm)


@pytest.mark.parametrize("settings", [{}, {"pe": "fixed"}, {"model": "fcn"}], ids=str)
def test_the_end_error_is_the_mean_loss_on_new_sequences(settings):
    """At its own task it is that of many sequences and draws, within five standard errors."""
    run = train.train(T=8, d=2, q=2, d_e=60, steps=200, fresh=True, evaluations=1,
                      eval_sequences=20_000, T_test=[], q_test=[], **settings)
    exact, error = run["error"][-1, 0] * 2, run["se"][-1, 0] * 2        # over d/(2q), which is 1/2
    assert abs(end_error(run, 8, 2) - exact) < 5 * error * np.sqrt(20_000 / 2048) + 0.1 * exact
    if not settings:
        X, y = sts.sample_sts(np.random.default_rng(0), 4000, 11, 2, 3)
        E = sts.positional_encoding("rademacher", 11, 60, np.random.default_rng(1), 400)
        single = np.mean([sts.loss(run["W"], run["V"], X, y, e) for e in E]) * 3
        assert end_error(run, 11, 3, draws=1) == pytest.approx(single, rel=0.1)
        assert end_error(run, 11, 3) < 0.9 * single


def test_half_of_the_zero_predictor_is_found_between_evaluations():
    c, t = train.Settings(d=4, q=1), np.array([0, 10, 20, 30])          # d/(2q) is 2
    assert half_step(t, np.array([2, 1.5, 0.5, 1.8]), c) == 15
    assert np.isnan(half_step(t, np.array([2, 1.5, 1.1, 1.8]), c))


def made_up(arms, seeds=(3,)):
    """Runs of these arms, with made-up losses, errors and cosines."""
    found = {}
    for name, arm in arms.items():
        run = train.start(train.Settings(**arm | {"eval_sequences": 1}))
        run["loss"][:] = np.geomspace(0.8, 0.01, len(run["loss"]))
        run["error"][:] = np.geomspace(0.8, 0.01, len(run["error"]))[:, None]
        found[name] = [run for _ in seeds]
    return found


@pytest.mark.parametrize("name, figure", [
    ("two_numbers", "figure"), ("plateau", "figure"), ("full_model", "figure"), ("data", "figure"),
    ("lengths", "figure"), ("readings", "figure"), ("width", "figure"), ("width", "separation")])
def test_no_text_leaves_a_picture(name, figure, monkeypatch):
    """What takes long is made up."""
    module, (curves, sizes) = importlib.import_module(name), (3, len(readings.SIZES))
    for quick, value in {
            "without_noise": lambda seed: {"config": train.Settings(), "loss": np.ones(3200)},
            "end_errors": lambda *given: np.array([0.5, 0.01]), "predicted": lambda *given: 0.01,
            "chart": lambda: np.full((sizes, 2, curves, 3), 0.1),
            "stochastic": lambda *given: [(0, 1.0, 1.0)], "needed_width": lambda *given: 30,
            "end_error": lambda run, *given, **how: 5 / (run["config"].hidden or [
                run["config"].d_e])[0]}.items():
        if hasattr(module, quick):
            monkeypatch.setattr(module, quick, value)
    monkeypatch.setattr(plots, "SEEDS", (3,))
    monkeypatch.setattr(plots, "trained", made_up)
    with plt.rc_context(plots.STYLE):
        canvas = getattr(module, figure)()
        canvas.draw_without_rendering()
        box, (width, height) = canvas.get_tightbbox(), canvas.get_size_inches()
    plt.close(canvas)
    assert -0.02 < box.x0 and box.x1 < width + 0.02 and -0.02 < box.y0 and box.y1 < height + 0.02


@pytest.mark.parametrize("words", (["--picture"], ["a.png", "b.png"], ["a.pgn"]))
def test_what_is_no_picture_and_a_second_picture_are_refused_in_one_line(words):
    done = subprocess.run([sys.executable, HERE / "two_numbers.py", *words], capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert words[-1] in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
