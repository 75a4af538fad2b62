"""Tests of pictures.py:  python -m pytest beyond/test_pictures.py"""

import pictures         # first: it finds the other files

from itertools import combinations
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.text import Text

import plots
import sts
import train


@pytest.fixture(scope="module")
def states():
    """The states of a short run at each evaluation, the last one with larger weights."""
    found = []
    train.train(lambda run: found.append(dict(run)),
                **pictures.TASK | {"steps": 6, "evaluations": 3})
    found[-1] |= {"W": 10 * found[-1]["W"], "V": found[-1]["V"] + np.eye(3, 63)}
    return found


def drawn(draw, *arguments):
    """The panels of a figure by their titles.  Its texts are large, and not on one another."""
    with plt.rc_context(plots.STYLE):
        figure = draw(*arguments)
        figure.draw_without_rendering()                     # makes the layout
        with patch.object(Text, "draw", autospec=True) as written:
            figure.draw_without_rendering()
    texts = {call.args[0] for call in written.mock_calls if call.args[0].get_text().strip()}
    assert figure.get_figwidth() == 10 and min(text.get_fontsize() for text in texts) >= 14
    boxes = [text.get_window_extent() for text in texts if text.get_visible()]
    assert all(figure.bbox.padded(1).containsx(x) for box in boxes for x in (box.x0, box.x1))
    assert not any(one.padded(-1).overlaps(two.padded(-1)) for one, two in combinations(boxes, 2))
    return {axis.get_title().split("\n")[-1].replace("$", ""): axis for axis in figure.axes}


def assert_bars(axis, expected):
    sizes = [bar.get_height() if bar.get_y() == 0 else bar.get_width() for bar in axis.patches]
    np.testing.assert_allclose(sizes, expected, rtol=1e-4, atol=1e-6)


def test_the_pictures_show_a_sequence_and_each_part_of_the_formula(states):
    run, (X, y, E, colors) = states[-1], pictures.example(states[-1]["config"])
    (f,), (_, (z_query,), _, (P,), (z,)) = sts.forward(run["W"], run["V"], X, y, E)
    target, axes = X[0, y[0]].mean(axis=0), drawn(pictures.task, run)
    assert_bars(axes["target"], target)
    assert_bars(axes["attention before training"], np.full(20, 1 / 20))
    assert_bars(axes["attention after 6 steps"], P)
    assert_bars(axes["output after 6 steps"], f)
    assert np.flatnonzero(np.array(colors) == pictures.SELECTED).tolist() == sorted(y[0])

    axes, Z = drawn(pictures.model, run), np.concatenate([X[0], E], axis=1).T
    Wz, scale = run["W"] @ z_query, np.array([1] * 3 + [60 ** 0.5] * 60)
    assert_bars(axes["A = Z^T W z_{query}"], Z.T @ Wz)
    assert_bars(axes["on selected tokens"], P)
    assert_bars(axes["output f = V z"], [*f, *target])
    for title, part in (("keys Z", (Z.T * scale).T), ("z_{query}", (z_query * scale)[:, None]),
                        ("encodings", run["W"]), ("W z_{query}", (Wz * scale)[:, None]),
                        ("tokens", run["V"]), ("z = Z P", (z * scale)[:, None])):
        image = axes[title].images[0].get_array()
        np.testing.assert_allclose(image, part[:15, :image.shape[1]], rtol=1e-4, atol=1e-6)


def test_each_frame_of_the_movie_shows_one_step(states):
    X, y, E, _ = pictures.example(states[0]["config"])
    for figure, state, t in zip(pictures.movie(states), states, (0, 2, 4, 6), strict=True):
        left, below, top, middle, bottom = figure.axes
        assert figure._suptitle.get_text().endswith(f"step {t}")
        assert_bars(top, sts.attention(state["W"], X, y, E)[0])
        np.testing.assert_allclose(middle.lines[0].get_ydata(),
                                   state["loss"][:t].reshape(-1, 2).mean(axis=1))
        np.testing.assert_array_equal(left.images[0].get_array(), state["W"][:15, :15])
        np.testing.assert_array_equal(below.images[0].get_array(), state["V"][:, :15])
    drawn(lambda: next(pictures.movie(states)))
