"""Tests of readings.py:  python -m pytest beyond/test_readings.py"""

import readings     # first: it finds the other files

import numpy as np
import pytest

import plots
import sts
import train


def test_a_reading_changes_its_settings_and_fixed_encodings_have_no_draws():
    for reading, (first, change) in readings.READINGS.items():
        for pe, (name, settings) in zip(("stochastic", "fixed"), readings.pair(reading).items()):
            own, c = (plots.GD | plots.ADAM)[f"{first} {pe}"], train.Settings(**settings)
            changed = {key for key in settings if settings[key] != own.get(key)}
            assert c.pe == pe and (name in plots.GD | plots.ADAM) == (not changed)
            assert changed == set(change) - ({"draws"} if pe == "fixed" else set())


def test_gaussian_encodings_have_length_1_and_random_directions():
    E = sts.positional_encoding("gaussian", 4000, 3, np.random.default_rng(0))
    np.testing.assert_allclose((E * E).sum(axis=1), 1)
    # five standard errors: of a mean of 4000 coordinates, of variance 1/3, and of their products
    np.testing.assert_allclose(E.mean(axis=0), 0, atol=5 / np.sqrt(3 * 4000))
    np.testing.assert_allclose(E.T @ E / 4000, np.eye(3) / 3, atol=5 * 0.3 / np.sqrt(4000))
    assert abs(np.quantile(E, 0.75) - 0.5) < 0.03           # a coordinate is uniform on a sphere


def test_errors_with_one_draw_are_means_over_draws_on_the_sequences_of_the_figures():
    run = train.train(T=6, q=2, d_e=9, T_test=[9], q_test=[3], steps=30, lr=1, evaluations=1,
                      eval_sequences=8)
    rng = np.random.default_rng(0)
    for k, mean in enumerate(readings.single_draw_errors(run, 1000)):
        X, y, _ = train.held_out(run, k, 1)
        own = [sts.loss(run["W"], run["V"], X, y, E)
               for E in sts.positional_encoding("rademacher", X.shape[1], 9, rng, 1000)]
        assert mean == pytest.approx(np.mean(own), rel=0.05)
        assert run["error"][-1, k] < 0.95 * mean            # 16 draws are better
