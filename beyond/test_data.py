"""Tests of data.py:  python -m pytest beyond/test_data.py"""

import math

import numpy as np
import pytest

import data
from conftest import run_alone

import plots
import train


@pytest.mark.parametrize("a", (0, 5))
def test_d_sequences_are_fitted_by_any_attention_and_more_by_the_task_only(a):
    rng = np.random.default_rng(0)
    for N in 2, 3, 4, 40:
        left = np.mean([data.fit(rng, N, 10, 3, 2, a) for _ in range(50)])
        assert left < 1e-12 if N <= 3 else left > 1e-6
    exact = 8 / (2 * math.exp(2 * a) + 8)           # of many, with the best alpha: plateau.py
    assert data.fit(rng, 40_000, 10, 3, 2, a) == pytest.approx(exact, rel=0.03)


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


def test_the_file_runs_alone(tmp_path):
    out = run_alone(tmp_path, "data.py")
    rows = [line.split() for line in out.splitlines()[-5:]]
    assert [N for N, *left in rows if left == ["0.000"] * 3] == ["2", "3"]
