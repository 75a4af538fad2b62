"""Tests of data.py:  python -m pytest beyond/test_data.py"""

import numpy as np
import pytest

import data
from test_two_numbers import run_alone

import plots
import train


@pytest.mark.parametrize("name, settings", (
    ("fixed", {"pe": "fixed", "law": "orthonormal", "d_e": 5}),
    ("net", {"model": "fcn", "hidden": [7]})))
def test_moved_numbers_counts_the_weights_that_training_moves(name, settings):
    """For stochastic encodings test_two_numbers.py has the exact test."""
    given = data.TASK | settings | {"batch": 30, "lr": 0.1, "T": 5, "steps": 20}
    first, last = train.start(train.Settings(**given)), train.train(**given)
    weights = [key for key in last if key in ("W", "V") or key.startswith(("weight", "bias"))]
    moved = sum((first[key] != last[key]).sum() for key in weights)
    assert data.moved_numbers(5, 3, 7)[name] == moved


def test_the_figure_counts_the_seeds_that_learn(monkeypatch, capsys):
    """Made-up runs, with errors of 5 % of d/(2q) for even seeds, and 50 % for odd ones."""
    def trained(arms, seeds=(3, 4, 5)):
        return {name: [{"config": train.Settings(**settings), "loss": np.ones(200),
                        "tests": np.array([[20, 2]]),
                        "error": np.array([[0.375 if seed % 2 else 0.0375]])} for seed in seeds]
                for name, settings in arms.items()}

    monkeypatch.setattr(plots, "trained", trained)
    data.figure()
    printed = capsys.readouterr().out
    assert "stochastic, N = 16: 5 of 10 learn" in printed and "0.275 (0.05 to 0.5)" in printed
    assert "net, N = 16: 1 of 3 learn" in printed


def test_the_file_runs_beside_two_numbers(tmp_path):
    out = run_alone(tmp_path, "data.py", "two_numbers.py")
    assert [line.split()[1] for line in out.splitlines()[-3:]] == ["10", "529", "10083"]
