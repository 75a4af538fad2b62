"""Tests of readings.py:  python -m pytest beyond/test_readings.py"""

import sys
from pathlib import Path
from unittest.mock import Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text

sys.path[:0] = map(str, [Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent])

import claims
import plots
import readings
import sts
import train


def made_up(optimizer, reading, pe):
    """A run whose errors fall from 1 to a level of its own."""
    c = train.configuration(**readings.arms(quick=True)[optimizer, reading, pe], seed=0)
    run, u = train.start(c), np.linspace(0, 1, c.evaluations + 1)[:, None]
    level = (list(readings.READINGS[optimizer]).index(reading) + 1) / 40
    level = 0.5 if pe == "fixed" else level
    return run | {"error": level ** u + np.arange(len(run["tests"])) / 1000}


@pytest.fixture(scope="module")
def runs():
    return {key: [made_up(*key)] for key in readings.arms(quick=True)}


@pytest.fixture
def found(runs, monkeypatch):
    monkeypatch.setattr(claims, "single_draw_errors", lambda run, tests: [0.3] * len(tests))
    return {optimizer: readings.cells(runs, optimizer) for optimizer in readings.READINGS}


def test_readings_are_what_their_names_say_and_those_of_plots_are_used(monkeypatch):
    arms, base = readings.arms(quick=False), plots.arms(quick=False)
    for (optimizer, reading, pe), arm in arms.items():
        c = vars(train.configuration(**arm))
        figures = vars(train.configuration(**base[optimizer, pe]))
        changed = {name for name in c if c[name] != figures[name]} - {"steps", "hidden"}
        name, *numbers = reading.replace(",", "").split()
        expected = {"Gaussian": {"law", "d_e"}, "orthonormal": {"law", "d_e"}, "signs": {"d_e"},
                    "d": {"d"}, "lr": {"lr", "d_e"}}[name]
        assert changed <= expected and (changed or reading == readings.FIGURES[optimizer])
        assert float(numbers[-1]) in (c["d_e"], c["d"], c["lr"])
    calls = []
    monkeypatch.setattr(plots, "trained", lambda arms, folder, jobs, seeds: calls.append(
        (set(arms), folder, seeds)) or {key: (key, folder) for key in arms})
    runs = readings.trained(arms, False, 2)
    shared = {("gd", "signs 400"): "gd", ("adam", "signs 500"): "adam"}
    assert calls == [
        ({(o, pe) for o in ("gd", "adam") for pe in ("stochastic", "fixed")}, None, [0]),
        ({key for key in arms if key[:2] not in shared}, train.RUNS / "readings", [0])]
    assert runs.keys() == arms.keys()
    for key in arms:
        assert runs[key][0] == ((key[0], key[2]) if key[:2] in shared else key)


def test_gaussian_encodings_have_length_1_and_random_directions():
    E = sts.positional_encoding("gaussian", 4000, 3, np.random.default_rng(0))
    np.testing.assert_allclose((E * E).sum(axis=1), 1)
    np.testing.assert_allclose([*E.mean(axis=0), *(E.T @ E / 4000 - np.eye(3) / 3).ravel()], 0,
                               atol=0.03)
    assert abs(np.quantile(E, 0.75) - 0.5) < 0.03           # a coordinate is uniform on a sphere


def test_cells_are_the_claims_of_the_runs_of_a_reading(runs, found):
    pair = {("gd", pe): runs["gd", "signs 500", pe] for pe in ("stochastic", "fixed")}
    assert found["gd"]["signs 500"] == [("2", row) for row in claims.claims_2(pair)] + [
        ("4", row) for row in claims.claims_4(pair)]
    verdicts = [row.holds for row in (cell[0][1] for cell in found["gd"].values())]
    assert verdicts == ["yes"] * 9 + ["-"]                  # over time one draw is not measured
    worst = [cell[0][1].worst for cell in found["gd"].values()]
    left = [(k / 40 + 0.004) / 1.004 for k in range(1, 10)]
    np.testing.assert_allclose(worst, [*left, 0.3 / 1.001], rtol=1e-3)


def test_table_and_picture_show_each_cell_and_count_what_holds(found, monkeypatch, tmp_path):
    monkeypatch.setattr(readings, "HERE", tmp_path)
    monkeypatch.setattr(readings, "trained", Mock())
    monkeypatch.setattr(readings, "cells", lambda runs, optimizer: found[optimizer])
    drawn = []
    monkeypatch.setattr(plots, "save_picture", lambda figure, path: drawn.append(figure) or
                        figure.draw_without_rendering())
    monkeypatch.setattr(sys, "argv", ["readings.py"])
    readings.main()
    blocks = (tmp_path / "figures" / "readings.txt").read_text().strip().split("\n\n")
    for axis, block, (optimizer, columns) in zip(drawn[0].axes, blocks, found.items(), strict=True):
        head, *lines = ([cell.strip() for cell in line.split("  ") if cell] for line in
                        block.splitlines())
        assert head == ["figure", optimizer, *columns, "holds in"]
        colors = {(round(p.get_x() + 0.5), round(p.get_y() + 0.5)): p.get_facecolor()
                  for p in axis.patches}
        texts = {text.get_position(): text.get_text() for text in axis.texts}
        for i, line in enumerate(lines):
            cells = [column[i] for column in columns.values()]
            judged = [row.holds for _, row in cells if row.holds != "-"]
            count = f"{judged.count('yes')} of {len(judged)}"
            assert line[:2] == [cells[0][0], cells[0][1].claim]
            assert line[-1] == texts[len(cells), i] == count
            for j, (_, row) in enumerate(cells):
                number = line[2 + j].removesuffix(row.holds).strip()
                assert number == "" if np.isnan(row.worst) else float(number) == pytest.approx(
                    row.worst, abs=0.0005 if row.worst < 1 else 0.005 if row.worst < 10 else 0.5)
                assert line[2 + j] == f"{number} {row.holds}".strip()
                assert texts[j, i] == f"{number} {readings.MARKS[row.holds]}"
                assert colors[j, i] == to_rgba(readings.COLORS[row.holds])
        bold = [tick.label2.get_text() for tick in axis.xaxis.get_major_ticks()
                if tick.label2.get_fontweight() == "bold"]
        assert bold == [readings.FIGURES[optimizer].replace(" ", "\n")]
    assert drawn[0]._supxlabel.get_text().count("\n") <= 1
    assert len(set(readings.MARKS.values())) == len(set(readings.COLORS.values())) == 4
    width, height = drawn[0].get_size_inches()
    box = drawn[0].get_tightbbox()
    assert min(box.x0, box.y0) > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01
    assert min(text.get_fontsize() for text in drawn[0].findobj(Text)) >= width == 14
    plt.close("all")
