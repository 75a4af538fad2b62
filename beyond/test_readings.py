"""Tests of readings.py:  python -m pytest beyond/test_readings.py"""

import readings     # first: it finds the other files

import re
import sys

import numpy as np
import pytest

import claims
import plots
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
    """The cells of the table, where the error with one draw is 0.3 more than with 16."""
    monkeypatch.setattr(claims, "single_draw_errors", lambda run, tests: run["error"][-1] + 0.3)
    return {optimizer: readings.cells(runs, optimizer) for optimizer in readings.READINGS}


def test_readings_are_what_their_names_say(monkeypatch):
    base = plots.arms(quick=False)
    for (optimizer, reading, pe), arm in readings.arms(quick=False).items():
        c = vars(train.configuration(**arm))
        figures = vars(train.configuration(**base[optimizer, pe]))
        changed = {name for name in c if c[name] != figures[name]} - {"steps", "hidden"}
        word, = re.findall("[a-zA-Z]+", reading)
        number, = map(float, re.findall(r"[.\d]+", reading))
        own = {"Gaussian": {"law"}, "orthonormal": {"law", "d_e"}, "signs": {"d_e"}, "d": {"d"},
               "lr": {"lr"}, "draw": {"draws"}, "draws": {"draws"}}[word]
        if reading == readings.FIGURES or pe == "fixed" and own == {"draws"}:
            assert arm == base[optimizer, pe]
        else:
            assert changed == own
            assert c["law"] == {"Gaussian": "gaussian"}.get(word, word) or "law" not in own
        name, = own - {"law"} or {"d_e"}
        assert c[name] == number or pe == "fixed" and name == "draws" and c[name] == 1


def test_the_runs_of_the_figures_are_not_trained_again(monkeypatch):
    arms = readings.arms(quick=False)
    monkeypatch.setattr(plots, "trained", lambda arms, folder="figures", jobs=1, seeds=None: {
        key: (key, folder, seeds) for key in arms})
    runs = readings.trained(arms, False, 2)
    assert runs.keys() == arms.keys()
    for (optimizer, reading, pe), run in runs.items():
        shared = reading == readings.FIGURES or pe == "fixed" and "draw" in reading
        assert run == (((optimizer, pe), "figures", [0]) if shared else
                       ((optimizer, reading, pe), train.RUNS / "readings", [0]))
    small = readings.trained(readings.arms(quick=True), True, 2)
    assert {folder for _, folder, _ in small.values()} == {train.RUNS / "quick"}


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
    first = [cell[0][1] for cell in found["gd"].values()]
    assert [row.holds for row in first] == ["seen"] * 7 + ["-"]     # one draw has no curve
    left = [(k / 40 + 0.004) / 1.004 for k in range(1, 8)]
    np.testing.assert_allclose([row.worst for row in first],        # one draw: the figures' runs
                               [*left, (1 / 40 + 0.304) / 1.004], rtol=1e-3)


@pytest.mark.parametrize("flags, folder", [([], "figures"), (["--quick"], "runs/quick")])
def test_the_table_shows_each_cell_and_counts_the_other_readings(flags, folder, found, monkeypatch,
                                                                 tmp_path):
    for name in "figures", "runs/quick":
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(claims, "HERE", tmp_path)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(readings, "trained", lambda *arguments: None)
    monkeypatch.setattr(readings, "cells", lambda runs, optimizer: found[optimizer])
    monkeypatch.setattr(sys, "argv", ["readings.py", *flags])
    readings.main()
    written, = tmp_path.rglob("*.txt")
    assert written == tmp_path / folder / "readings.txt"
    blocks = written.read_text().strip().split("\n\n")
    for block, (optimizer, columns) in zip(blocks, found.items(), strict=True):
        head, *lines = ([cell.strip() for cell in line.split("  ") if cell] for line in
                        block.splitlines())
        assert head == ["figure", optimizer, *columns, "other readings"]
        for i, (figure, claim, *shown, count) in enumerate(lines):
            cells = [column[i] for column in columns.values()]
            assert (figure, claim) == (cells[0][0], cells[0][1].claim)
            judged = [text.split(maxsplit=1)[-1] for text in shown[1:-1]]   # without our own runs
            assert count == ", ".join(f"{verdict} in {judged.count(verdict)}" for verdict in (
                "seen", "undecided", "not seen")) + f" of {len(judged)}"
            for text, (_, row) in zip(shown, cells, strict=True):
                number = text.removesuffix(row.holds).strip()
                assert text == f"{number} {row.holds}".strip()
                assert number == "" if np.isnan(row.worst) else float(number) == pytest.approx(
                    row.worst, abs=0.0005 if row.worst < 1 else 0.005 if row.worst < 10 else 0.5)
