"""Tests of scaled_logits.py:  python -m pytest beyond/test_scaled_logits.py"""

import scaled_logits        # first: it finds the other files

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

import plots
import sts
import train
from test_sts import SMALL, allclose, shows


@pytest.mark.parametrize("T, q", [(20, 2), (40, 2), (400, 2), (20, 1), (20, 5), (300, 6)])
def test_scaled_logits_keep_the_attention_of_training(T, q):
    """Exactly, for orthonormal encodings and W = a W*.  The loss is that of this attention."""
    c = train.configuration(T=20, d=3, q=2, law="orthonormal", d_e=400, eval_draws=3)
    W, V = sts.ground_truth(3, 400)
    run, s = {"config": c, "W": 2.5 * W, "V": 1.2 * V}, 2 * math.exp(2.5) / (2 * math.exp(2.5) + 18)
    X, y, E = train.held_out(run | {"tests": np.array([[T, q]])}, 0, 1)
    P = sts.attention(run["W"] * scaled_logits.length_factor(run, T, q), X, y, E[0])
    allclose(np.take_along_axis(P, y, axis=1).sum(axis=1), s, rtol=1e-6)
    f, target = scaled_logits.end_outputs(run, T, q, True, n=4000)
    losses = ((f.mean(axis=0) - target) ** 2).sum(axis=1) / 2
    L = 3 / (2 * q) * ((1 - 1.2 * s) ** 2 + 1.2 ** 2 * (1 - s) ** 2 * q / (T - q))
    assert f.shape == (3, 4000, 3) and abs(losses.mean() - L) < 5 * losses.std() / math.sqrt(4000)


@pytest.mark.parametrize("pe, scaled", [("fixed", False), ("stochastic", False),
                                        ("stochastic", True)])
def test_shares_at_the_end_are_errors_over_those_of_the_zero_predictor(pe, scaled):
    run = train.train(**SMALL | {"pe": pe, "steps": 40})
    f, target = scaled_logits.end_outputs(run, 14, 3, scaled, n=8)
    error = 0.5 * ((f.mean(axis=0) - target) ** 2).sum(axis=1).mean()
    share, = scaled_logits.end_shares([run], [(14, 3)], scaled, n=8)[0]
    allclose(share, error / (2 / (2 * 3)), rtol=1e-5)
    assert len({f_k.tobytes() for f_k in f}) == (16 if pe == "stochastic" else 1)


def made_up_shares(runs, tests, scaled, n=128):
    """As end_shares returns them, but random."""
    rng = np.random.default_rng([len(runs), len(tests), scaled, n])
    return rng.uniform(0.01, 1, (3, len(tests)))


def test_the_figure_shows_long_sequences_and_subset_sizes(monkeypatch):
    monkeypatch.setattr(scaled_logits, "end_shares", made_up_shares)
    (plot, headline, _), = scaled_logits.FIGURES.values()
    run = train.start(train.configuration(**plots.arms(quick=True)["gd", "fixed"]))
    runs = {("gd", "fixed"): [run], ("gd", "stochastic"): [run, run]}
    with plt.rc_context(plots.STYLE):
        figure = plot(runs)
        figure.suptitle(headline)
        figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.02 < box.x0 and box.x1 < width + 0.02 and -0.02 < box.y0 and box.y1 < height + 0.02
    left, right = figure.axes
    longer, own, sizes = [50, 100, 250, 1000, 4000, 25000], [50, 62, 75, 87, 100], [2, 3, 4, 5, 8]
    for pe, scaled, T, label in (("fixed", False, own, "fixed"),
                                 ("stochastic", False, longer, "of 16 draws"),
                                 ("stochastic", True, longer, "scaled logits")):
        found = runs["gd", pe]
        assert shows(left, T, made_up_shares(found, T, scaled, 64).mean(axis=0), label)
        assert shows(right, sizes, made_up_shares(found, sizes, scaled).mean(axis=0))
    plt.close(figure)
