"""Tests of scaled_logits.py:  python -m pytest beyond/test_scaled_logits.py"""

import scaled_logits        # first: it finds the other files

import math

import numpy as np
import pytest

import sts
import train
from test_sts import SMALL, allclose


def ideal(a, alpha, **settings):
    """A run with W = a W* and V = alpha V*."""
    c = train.Settings(T=20, d=3, q=2, **settings)
    W, V = sts.ground_truth(3, c.d_e)
    return {"config": c, "W": a * W, "V": alpha * V}


@pytest.mark.parametrize("T, q", [(20, 2), (40, 2), (400, 2), (20, 1), (20, 5), (300, 6)])
def test_scaled_logits_keep_the_attention_of_training(T, q):
    """Exactly, for orthonormal encodings and W = a W*.  The loss is that of this attention."""
    run = ideal(2.5, 1.2, law="orthonormal", d_e=400, eval_draws=3)
    s = 2 * math.exp(2.5) / (2 * math.exp(2.5) + 18)
    X, y, E = train.held_out(run | {"tests": np.array([[T, q]])}, 0, 1)
    P = sts.attention(run["W"] * scaled_logits.length_factor(run, T, q), X, y, E[0])
    allclose(np.take_along_axis(P, y, axis=1).sum(axis=1), s, rtol=1e-6)
    expected, exact_s = scaled_logits.share(scaled_logits.scaled(2.5, 20, 2, T, q), 1.2, T, q)
    as_it_is, errors = scaled_logits.end_errors(run, T, q, 4000)
    assert exact_s == pytest.approx(s, rel=1e-12)
    for found, share in (errors, expected), (as_it_is, scaled_logits.share(2.5, 1.2, T, q)[0]):
        assert abs(found.mean() - share) < 5 * found.std() / math.sqrt(4000)


def test_the_error_of_random_signs_is_predicted():
    run = ideal(3.0, 1.2, d_e=60)
    errors = scaled_logits.end_errors(run, 80, 2, 4000)[1]
    assert errors.mean() == pytest.approx(scaled_logits.predicted(run, 80), rel=0.1)


@pytest.mark.parametrize("pe", ["fixed", "stochastic"])
def test_outputs_are_means_over_the_draws_of_a_test(pe):
    run = train.train(**SMALL | {"pe": pe, "steps": 40})
    X, y = sts.sample_sts(train.stream(run["config"], "tests", 14, 2), 8, 14, 2, 2, np.float32)
    E = [train.encodings(run, 14, 1, train.stream(run["config"], "tests", 14, 2, k))[0]
         for k in range(16)]
    c, B = run["config"], run["W"][run["config"].d:, run["config"].d:]
    own = np.mean([e @ B @ e for e in run["E"][:c.T]]) if pe == "fixed" else np.diag(B).mean()
    assert scaled_logits.length_factor(run, 14, 2) == pytest.approx(
        scaled_logits.scaled(own, c.T, c.q, 14, 2) / own, rel=1e-5)
    found, target = scaled_logits.end_outputs(run, 14, 2, 8)
    for f, factor in zip(found, (1, scaled_logits.length_factor(run, 14, 2))):
        allclose(f, sts.output(run["W"] * factor, run["V"], X, y, np.array(E)), rtol=1e-4)
    losses, zero = ((found - sts.sts_target(X, y)) ** 2).sum(axis=2) / 2, 2 / (2 * 2)
    allclose(scaled_logits.end_errors(run, 14, 2, 8), losses / zero, rtol=1e-5)
    _, scale, rest = scaled_logits.scale_and_rest(run, 14, 2)
    assert scale + rest == pytest.approx(scaled_logits.end_errors(run, 14, 2)[0].mean(), rel=1e-4)
