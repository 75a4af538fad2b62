"""Tests of train.py and plots.py as programs: files, processes, command lines and pictures.

    python -m pytest beyond/test_programs.py
"""

import common       # first: it finds train.py, and gives NumPy one thread

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import same_color

import fcn
import plots
import sts
import train
from test_sts import NET, SMALL

allclose = np.testing.assert_allclose
plt.switch_backend("Agg")


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")

    def call(flags, program=train):
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *flags.split()])
        try:
            program.main()
            return 0, *capsys.readouterr()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
    return call


@pytest.mark.parametrize("program, flags, word", [
    (train, "--lr nan", "--lr"), (train, "--T 8.5", "--T"), (train, "--d_e=0", "--d-e"),
    (train, "--q 51", "--q"), (train, "--T-test 2", "--T-test"), (train, "--step 1", "--step"),
    (train, "--q-test 500", "--q-test"), (train, f"--steps {10 ** 30}", "--steps"),
    (train, "--pe onehot --d-e 49", "d_e >= 5"), (train, "--steps 9 --out .", "'.'"),
    (train, "--model fcn --hidden 9 0", "--hidden"),
    (train, "--T 9999999 --batch 99999", "allocate"),
    *((train, f"--out {name}.npz", name) for name in ("other", "junk", "cut")),
    (train, "--steps 9 --evaluations 1 --lr 1e30", "--lr"), (plots, "--run run.png", "--run"),
    (train, "--model fcn --T 10 --steps 3 --evaluations 3 --lr 0.3", "--lr"),
    (plots, "no-such", "no-such"), (plots, "2 --run other.npz", "--run"),
    *((plots, f"--run {name}.npz", name) for name in ("no", "junk", "cut"))])
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_done_ends_in_one_line(program, flags, word, command):
    run = train.train(path="other.npz", **SMALL)
    Path("cut.npz").write_bytes(Path("other.npz").read_bytes()[:-300])
    np.savez("junk.npz", no=0, run=0)
    shutil.copy("other.npz", "run.png")
    Path("folder").mkdir()
    pytest.raises(OSError, train.save, run, "folder")                       # leaves no half file
    assert not [*Path().glob("folder.*")]
    before = {path: path.read_bytes() for path in Path().glob("*.*")}       # hidden ones, too
    pytest.raises(ValueError, train.save, run | {"note": {"a": 1}}, "other.npz").match("note")
    status, out, err = command(flags, program)
    usage, error = err.splitlines()
    assert status == 2 and usage.startswith("usage:") and word in error
    assert "step " not in out or "diverged" in err      # it is refused before training
    assert before == {path: path.read_bytes() for path in Path().glob("*.*")}


@pytest.mark.parametrize("where, number, flags", [
    ("evaluate", 3, ""), ("save", 3, "--pe onehot --attend-to-query --query mean --init-std 0.5"),
    ("loss_and_grads", 4, "--optimizer adam --schedule cosine --law rademacher"),
    ("progress", 2, "--pe fixed --fresh"), ("error_and_se", 28, "")])       # the last evaluation
def test_the_same_command_goes_on_bit_for_bit(where, number, flags, command):
    flags += " --T 20 --d 3 --q 2 --steps 6 --evaluations 3 --batch 9 --out"
    def interrupted(where, number):
        effects = [mock.DEFAULT] * (number - 1) + [KeyboardInterrupt] + [mock.DEFAULT] * 99
        with mock.patch.object(train, where, wraps=getattr(train, where), side_effect=effects):
            return command(f"{flags} half.npz")

    _, whole, _ = command(f"{flags} whole.npz")
    status, _, err = interrupted(where, number)
    assert status == 1 and "goes on" in err and 0 < (t := train.load("half.npz")["t"]) < 6
    _, out, _ = command(f"{flags} half.npz")
    assert f"it goes on from step {t}." in out
    assert re.findall("^ .*%$", out, re.M) == re.findall("^ .*%$", whole, re.M)     # all rows
    run = train.load("whole.npz")
    row = run["training"][-1], *run["error"][-1][run["tests"][:, 1] == 2], run["on_selected"][-1]
    assert "".join(f"{value:9.1%}" for value in row) in whole
    np.testing.assert_equal(train.load("half.npz"), run)
    assert "nan" not in whole + out
    with pytest.raises(ValueError, match="other settings"):
        train.train(path="half.npz", **vars(run["config"]) | {"lr": 0.3})
    train.save(other := run | {"W": run["W"] + 1}, "half.npz")      # as of an edited program
    interrupted("loss_and_grads", 6)
    np.testing.assert_equal(train.load("half.npz"), other)          # it stays
    command(f"{flags} half.npz")
    np.testing.assert_equal(train.load("half.npz"), run)            # until a new one has ended


@pytest.mark.parametrize("program, work", [(train, "train"), (plots, "trained")])
def test_a_reader_who_has_read_enough_ends_the_program_in_silence(program, work, command):
    with (mock.patch.object(program, work, side_effect=BrokenPipeError),
          mock.patch.object(os, "_exit", sys.exit)):
        assert command("", program) == (1, "", "")


def test_a_run_is_named_after_its_flags(command):
    command("--T 9 --T-test 12 --steps 2 --lr 1e-3 --batch 8")
    assert [path.name for path in Path("runs").iterdir()] == [
        "T_9_T-test_12_steps_2_lr_1e-3_batch_8.npz"]


@pytest.mark.parametrize("settings, error, training, said", [
    (SMALL, 0.8, 0.28, ""), (SMALL | {"fresh": True}, 0.8, 0.2, ""),
    (SMALL, 0.96, 0.9, "learnt nothing"), (NET | {"hidden": [8, 30]}, 0.8, 0.26, "its 16 ")])
def test_the_last_lines_say_what_a_run_is_worth(settings, error, training, said, capsys):
    run = train.start(train.Settings(**settings))
    share = 0.9 ** np.arange(len(run["tests"]))
    run["error"][-1], run["se"][-1], run["training"][-1] = error * share, 0.1 * share, training
    train.summary(run)
    out = capsys.readouterr().out
    for (T, q), s in zip(run["tests"], share):
        assert f"T = {T:4}, q = {q:2}  {error * s:7.2%}     {0.1 * s:6.2%}\n" in out
    assert said in out and ("The run has" in out) == (said != "") and f" {error:.2%}" in out
    assert (" below 42.86%." in out) == ("model" in settings)           # (1 - 8/16) 6/7


# The figures of plots.py

@pytest.fixture(scope="module")
def plotted():
    """All figures, and their runs of 200 steps, with weights, losses and errors at random."""
    short = {"steps": 200, "evaluations": 4, "batch": 32, "eval_sequences": 4}
    arms, rng = plots.FULL | plots.GD | plots.ADAM, np.random.default_rng(0)
    runs = {name: [train.start(train.Settings(**arm | plots.QUICK[name] | short, seed=seed))
                   for seed in plots.SEEDS] for name, arm in arms.items()}
    for run in sum(runs.values(), []):
        run |= {key: rng.uniform(0.1, 1, run[key].shape)
                for key in ("W", "V", "loss", "error", "cos_W", "cos_V")}
    figures = {name: function({arm: runs[arm] for arm in arms})
               for name, (function, arms, _) in plots.FIGURES.items()}
    captions = {name: " ".join(figures[name].get_supxlabel().split()) for name in figures}
    return figures, captions, runs


def test_figures_1_and_3_show_the_loss_the_cosines_and_the_weights(plotted):
    figures, captions, runs = plotted
    runs, evals, middles = runs["full model"], [0, 50, 100, 150, 200], np.arange(0.5, 200, 2)
    left, middle, right = figures["1"].axes
    for i, run in enumerate(runs):
        L = run["loss"].reshape(100, 2).mean(axis=1)
        allclose(left.lines[i].get_data(), (middles, L))
        allclose(middle.lines[i].get_data(), (middles, 1 / L))
        allclose(right.lines[i].get_data(), (evals, run["cos_W"]))
        allclose(right.lines[i + 3].get_data(), (evals, run["cos_V"]))
    allclose(left.lines[3].get_ydata(), 3 / 4)                              # d/(2q)
    (t, y), = [curve.get_data() for curve in middle.lines if curve.get_linestyle() == ":"]
    allclose(np.diff(y) / np.diff(t), 4 * 4.0 / (2 ** 2 * 40))              # 4 lr/(q^2 d_e)
    allclose(y[-1], np.mean([1 / run["loss"][-2:].mean() for run in runs]))
    assert [text.get_text() for text in right.get_legend().texts] == ["cos(W, W*)", "cos(V, V*)"]
    assert [axis.get_title() for axis in (left, middle)] == ["training loss L", "1/L"]
    assert "q = 2, d = 3, $d_e$ = 40, gradient descent, lr = 4, fresh" in captions["1"]
    which = {"before": train.start(runs[0]["config"]), "after": runs[0]}
    for axis in figures["3"].axes[:4]:
        name, when, _ = axis.get_title().split()
        weights = which[when][name][:28, :28]                               # 25 of encodings
        np.testing.assert_array_equal(axis.images[0].get_array(), weights)
        assert axis.get_xlabel().endswith("query" if name == "W" else "key")
        assert axis.get_ylabel().endswith("key" if name == "W" else "output")
        words = ["token", "encoding"]
        assert [text.get_text() for text in axis.get_xticklabels()] == words
        assert name == "V" or [text.get_text() for text in axis.get_yticklabels()] == words
    assert "seed 3. Shown are the 3 token" in captions["3"]


def test_the_arms_are_what_the_texts_say():
    """The captions, the first page and CLAIMS.md: the runs take 90 minutes, so they are not run."""
    full = train.Settings(**plots.FULL["full model"])
    assert (full.pe, full.law, full.query, full.d_e) == ("stochastic", "orthonormal", "mean", 200)
    assert (full.attend_to_query, full.init_std, full.lr, full.steps) == (True, 0.02, 9, 16_000)
    arms = {name: train.Settings(**arm) for name, arm in (plots.GD | plots.ADAM).items()}
    for name, c in arms.items():
        assert (c.optimizer, c.pe) == tuple(name.split()) and c.T_test == [250, 300, 350, 400]
        assert (c.law, c.d_e, c.q_test) == ("rademacher", 500, [2, 3, 4, 5, 8])
        assert (c.lr, c.steps) == ((5, 24_000) if c.optimizer == "gd" else (0.004, 4000))
        assert (c.draws, c.eval_draws) == ((4, 16) if c.pe == "stochastic" else (1, 1))
    for c in full, *arms.values():
        assert (c.T, c.d, c.q, c.batch, c.fresh) == (200, 5, 3, 256, True)


@pytest.mark.parametrize("name, how, sizes", [("2", "gd", []), ("4", "gd", [2, 4, 5, 8]),
                                              ("5", "adam", [2, 4, 5, 8])])
def test_figures_2_4_and_5_show_means_and_ranges_of_the_errors(name, how, sizes, plotted):
    figures, captions, runs = plotted
    panels = [axis for axis in figures[name].axes if axis.axison]
    tests = [(T, 3) for T in (50, 62, 75, 87, 100)] + [(50, q) for q in sizes]
    for axis, (T, q) in zip(panels, tests, strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        areas = [area for area in axis.collections if isinstance(area, PolyCollection)]
        for pe, color, area in zip(("stochastic", "fixed"), ("#0072B2", "#D55E00"), areas):
            column = runs[f"{how} {pe}"][0]["tests"].tolist().index([T, q])
            curves = np.array([run["error"][:, column] for run in runs[f"{how} {pe}"]])
            allclose(lines[pe].get_data(), ([0, 50, 100, 150, 200], curves.mean(axis=0)))
            height = area.get_paths()[0].vertices[:, 1]
            allclose(sorted({*height}), sorted({*curves.min(axis=0), *curves.max(axis=0)}))
            assert lines[pe].get_color() == color
            assert same_color(area.get_facecolor(), (color, 0.25))
        assert axis.get_title() == ("the trained task" if (T, q) == (50, 3) else
                                    f"$T_{{test}}$ = {T}" if q == 3 else f"$q_{{test}}$ = {q}")
        allclose([line.get_ydata()[0] for line in axis.lines[2:]], [1, 0.18] if T > 50 else [1])
        assert axis.get_yscale() == ("linear" if name == "2" else "log")
        row = panels[5 * (q != 3)] if q != 3 else panels[0]
        assert [text.get_text() for text in axis.texts] == ["zero predictor" if axis is row else ""]
        assert axis.get_ylim() == row.get_ylim()
        assert axis.yaxis.get_major_formatter().xmax == 1 and axis.get_ylim()[0] <= curves.min()
    legend, = [axis.get_legend() for axis in figures[name].axes if axis.get_legend()]
    assert [text.get_text() for text in legend.texts] == ["stochastic", "fixed", "loss 0.15"]
    assert "3 seeds, 4 sequences in a test." in captions[name]
    optimizer = "Adam, lr = 0.004" if how == "adam" else "gradient descent, lr = 2"
    assert (f"4 draws in a step, 16 in a test. T = 50, q = 3, d = 5, $d_e$ = 100, {optimizer}, "
            "fresh batches of 32 ") in captions[name]


@pytest.mark.parametrize("settings", [SMALL | {"pe": "fixed", "query": "mean"},
                                      NET | {"hidden": [3]}])
def test_plots_shows_a_run_whatever_the_users_style(settings, command):
    run, shown = train.train(path="2.npz", **settings), []
    for style in {}, {"font.size": 30, "axes.facecolor": "k", "xtick.color": "w"}:
        with plt.rc_context(style):
            assert command("--run 2.npz", plots)[0] == 0
            figure = plots.one_run(run)                         # as in a notebook
            figure.savefig("3.png")
            shown.append([Path(name).read_bytes() for name in ("2.png", "3.png")])
    assert shown[0] == shown[1]
    loss, error, *attention = figure.axes
    allclose(loss.lines[0].get_ydata(), run["loss"] / 0.5)              # over d/(2q)
    allclose(error.lines[0].get_data(), (run["eval_step"], run["error"][:, 0]))
    assert [axis.get_title() for axis in (loss, error)] == ["training loss over d/(2q)", "error"]
    lines = [line for line in error.lines if "T =" in line.get_label()]
    curves, tests = {line.get_label(): line.get_ydata() for line in lines}, run["tests"].tolist()
    assert len({tuple(line.get_color()) for line in lines}) == len(curves)
    assert {*curves} == {f"T = {T}" for T, q in tests if q == 2}
    for label, ydata in curves.items():
        allclose(ydata, run["error"][:, tests.index([int(label[4:]), 2])])
    assert figure.get_suptitle().startswith("A net" if "model" in settings else "Fixed encodings")
    words = "hidden units: [3]" if "model" in settings else "Law: orthonormal. T = 8, q = 2"
    assert words in " ".join(figure.get_supxlabel().split())
    assert plots.one_run(run | {"t": 5}).get_suptitle().endswith("after 5 steps")
    levels = [line.get_ydata()[0] for line in error.lines if line.get_linestyle() != "-"]
    allclose(levels, [fcn.width_lower_bound(3, 8, 2, 2) / 0.5, 1] if "model" in settings else [1])
    for axis in attention:
        X, y, E = train.held_out(run, 0, 1)
        P = sts.attention(run["W"], X, y, E, query="mean")[0, 0]
        every, selected = [[tuple(segment[1]) for segment in lines.get_segments()]
                           for lines in axis.collections]
        allclose(every, [*enumerate(P)], rtol=1e-6)
        allclose(selected, [(j, P[j]) for j in y[0]], rtol=1e-6)
        allclose(axis.lines[0].get_ydata(), 1 / 2)                      # 1/q
        assert same_color(axis.collections[1].get_color(), "#0072B2")   # "blue: selected"


def test_the_command_plots_the_figures_that_it_names(command, monkeypatch, plotted):
    asked = {}
    def trained(arms, folder):
        asked[folder] = arms
        return plotted[2]
    monkeypatch.setattr(plots, "trained", trained)
    monkeypatch.setattr(plots, "HERE", Path())
    for flags, folder, out in ("3 5 --quick --format svg", "quick", Path("runs/quick")), (
            "3 5 --format svg", "figures", Path("figures")):
        assert command(flags, plots)[0] == 0
        pictures = {path.name: path.read_bytes() for path in out.iterdir()}
        assert pictures.keys() == {"figure_3.svg", "figure_5.svg"}
        assert (b"A small task" in pictures["figure_3.svg"]) == (folder == "quick")
        arms = asked.pop(train.RUNS / folder)
        assert arms.keys() == {"full model", "adam stochastic", "adam fixed"} and not asked
        assert arms["full model"]["steps"] == (2000 if folder == "quick" else 16000)
    assert command("3 5 --format svg", plots)[0] == 0
    assert pictures == {path.name: path.read_bytes() for path in out.iterdir()}     # same bytes


def test_a_run_that_another_program_has_replaced_is_not_shown(tmp_path, monkeypatch):
    for other in {"lr": 0.1}, {"steps": 99}:
        def train_all(jobs):
            for path, settings in jobs:
                train.train(path=path, **settings | other)
        monkeypatch.setattr(plots, "train_all", train_all)
        pytest.raises(ChildProcessError, plots.trained, {"a": SMALL}, tmp_path).match("replaced")


def test_runs_of_figures_are_kept_until_settings_change(tmp_path, capfd):
    def trained(seeds=(3, 4), **changed):
        found = plots.trained({"one": SMALL | changed}, tmp_path, seeds)["one"]
        for seed, run in zip(seeds, found, strict=True):
            np.testing.assert_equal(run, train.train(**SMALL | changed, seed=seed))
        return sorted(re.findall(r"one seed (\d) is done", capfd.readouterr().out))

    assert trained() == ["3", "4"] and trained() == []
    assert trained(fresh=True, T_test=[9, 5]) == ["3", "4"]
    path = tmp_path / "one seed 4.npz"
    path.unlink()
    with pytest.raises(ZeroDivisionError):
        train.train(lambda run: 1 / (5 - run["t"]), path, **SMALL, seed=4)
    np.savez(tmp_path / "one seed 3.npz", config="an older program's")
    assert trained() == ["3", "4"]                                      # unreadable, unfinished
    pytest.raises(ValueError, trained, [4], pe="no")                    # before anything is lost
    for wrong, words in ({"q": 9}, "q <= T"), ({"lr": 1e30}, "diverged"):
        pytest.raises(ChildProcessError, trained, [4], **wrong).match(f"^one seed 4: .*{words}")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ("SIGINT", "SIGTERM", "SIGKILL", "a process is killed"))
def test_all_processes_end_if_one_is_stopped(name, tmp_path):
    arms = {"short": SMALL, "long": SMALL | {"steps": 10 ** 6}}
    code = ("import pathlib, plots, signal as s; s.signal(s.SIGINT, s.default_int_handler); "
            f"plots.trained({arms}, pathlib.Path({str(tmp_path)!r}))")
    if name == "a process is killed":
        code = ("import multiprocessing as m, threading\n"
                "threading.Timer(3, lambda: m.active_children()[0].kill()).start()\n" + code)
    with subprocess.Popen([sys.executable, "-c", code], cwd=plots.HERE, text=True,
                          stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as main:
        for _ in range(1 + len(plots.SEEDS)):           # the short runs are done
            main.stdout.readline()
        time.sleep(0.5)
        if name in dir(signal):                         # Ctrl-C reaches all of them
            (os.killpg if name == "SIGINT" else os.kill)(main.pid, getattr(signal, name))
        try:
            _, err = main.communicate(timeout=20)       # it ends with the last process
        finally:
            with contextlib.suppress(OSError):
                os.killpg(main.pid, signal.SIGKILL)     # if not, none is left over
    assert main.returncode != 0 and len(list(tmp_path.glob("short*"))) == 3
    assert err.count("Traceback") == (name in ("SIGINT", "a process is killed"))
    assert name in dir(signal) or "ChildProcessError: long seed" in err
