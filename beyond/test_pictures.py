"""Tests of pictures.py:  python -m pytest beyond/test_pictures.py"""

import claims       # first: it finds the other files

import sys
from itertools import combinations
from unittest.mock import Mock, patch

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from PIL import Image

import pictures
import plots
import sts
import train


@pytest.fixture(scope="module")
def small():
    """A run of a few steps, its weights at each evaluation, and a sequence."""
    run, states = pictures.trained(steps=6, evaluations=6)
    return run, states, pictures.example(run["config"])[:3]


@pytest.fixture(autouse=True)
def style():
    """The style of the pictures; figures are closed afterwards."""
    with plt.rc_context(plots.STYLE):
        yield
    plt.close("all")


def assert_readable(figure):
    """No text leaves the picture or overlaps another one, and all are of 14 points or more."""
    figure.draw_without_rendering()                     # makes the layout
    with patch.object(Text, "draw", autospec=True) as draw:
        figure.draw_without_rendering()
    texts = [text for text in {call.args[0] for call in draw.mock_calls}
             if text.get_visible() and text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for text, box in boxes:
        assert figure.bbox.x0 - 1 < box.x0 and box.x1 < figure.bbox.x1 + 1, text
        assert figure.bbox.y0 - 1 < box.y0 and box.y1 < figure.bbox.y1 + 1, text
    for (one, box), (other, second) in combinations(boxes, 2):
        assert not box.padded(-1).overlaps(second.padded(-1)), (one, other)
    assert min(text.get_fontsize() for text in texts) >= 14


def assert_bars(bars, heights, y):
    """Bars have these heights, and only the bars of selected positions are blue."""
    np.testing.assert_allclose([bar.get_height() for bar in bars], heights, rtol=1e-6)
    blue = [bar.get_facecolor() == to_rgba(pictures.SELECTED) for bar in bars]
    assert np.flatnonzero(blue).tolist() == sorted(y[0])


def by_title(figure):
    """The axes of a figure by the last line of their titles, without $."""
    return {axis.get_title().split("\n")[-1].replace("$", ""): axis for axis in figure.axes}


def test_the_task_shows_the_target_and_attention_before_and_after(small):
    run, states, (X, y, E) = small
    figure = pictures.task(run, states)
    assert_readable(figure)
    axes = by_title(figure)
    tokens = next(axes[title] for title in axes if "tokens" in title)
    assert [frame.get_x() + 0.5 for frame in tokens.patches] == y[0].tolist()
    lengths = {"target": X[0, y[0]].mean(axis=0)}
    for when, model in ("before training", train.start(run["config"])), ("after 6 steps", run):
        axis = axes[f"attention {when}"]
        assert_bars(axis.patches, sts.attention(model["W"], X, y, E)[0], y)
        assert axis.lines[0].get_ydata() == [1 / 2, 1 / 2] and axis.get_ylim()[1] > 1 / 2
        lengths[f"output {when}"] = sts.forward(model["W"], model["V"], X, y, E)[0][0]
    for title, vector in lengths.items():
        np.testing.assert_allclose([bar.get_width() for bar in axes[title].patches], vector)
    assert f"{np.trace(run['V'][:, :3]) / 3:.2f} times" in figure._supxlabel.get_text()
    assert f"{run['on_selected'][-1]:.2f} of the" in figure._supxlabel.get_text()


def test_the_model_shows_each_part_with_its_shape_and_its_numbers(small):
    run, _, (X, y, E) = small
    W, V = 10 * run["W"], run["V"] + np.eye(3, 63)
    figure = pictures.model(run | {"W": W, "V": V})
    assert_readable(figure)
    Z = np.concatenate([X[0], E], axis=1).T                         # column j is z_j
    z_query = np.concatenate([np.zeros(3), E[y[0]].sum(axis=0)])
    A = Z.T @ W @ z_query
    P = np.exp(A) / np.exp(A).sum()
    unit = np.array([1] * 3 + [60 ** 0.5] * 60)
    parts = [Z * unit[:, None], (z_query * unit)[:, None], W, (W @ z_query * unit)[:, None], A, V,
             (Z @ P * unit)[:, None], P]
    shapes = ["63 × 20", "63", "63 × 63", "63", "20", "3 × 63", "63", "20"]
    *axes, result, values, read, attention = figure.axes
    for axis, part, shape in zip([*axes, values, read, attention], parts, shapes, strict=True):
        assert shape == " × ".join(map(str, part.shape)).removesuffix(" × 1")
        assert f"= {shape}" in axis.get_xlabel()
        if part.ndim == 1:
            assert_bars(axis.patches, part, y)
        else:
            rows, columns = min(15, len(part)), 20 if part.shape[1] == 20 else 15
            np.testing.assert_allclose(axis.images[0].get_array(), part[:rows, :columns], rtol=1e-5,
                                       atol=1e-7)
    keys = figure.axes[0]
    assert sorted(frame.get_x() + 0.5 for frame in keys.patches) == sorted(y[0])
    assert {frame.get_edgecolor() for frame in keys.patches} == {to_rgba(pictures.SELECTED)}
    assert f"{W.diagonal()[3:].mean():.2f}" in figure.axes[2].get_title()
    assert f"{V.diagonal().mean():.2f}" in values.get_title()
    heights = [bar.get_height() for bar in result.patches]
    np.testing.assert_allclose(heights, [*V @ Z @ P, *X[0, y[0]].mean(axis=0)], rtol=1e-5)
    colors = [bar.get_facecolor() for bar in result.patches]
    assert len({colors[0], colors[3], to_rgba(pictures.SELECTED)}) == 3


def test_each_frame_of_the_movie_shows_one_step(small):
    run, states, (X, y, E) = small
    target = sts.sts_target(*train.batch(run["config"], 0))
    for figure, (t, W, V) in zip(pictures.movie(run, states), states, strict=True):
        axes, (top, middle, bottom) = by_title(figure), figure.axes[2:]
        assert figure._suptitle.get_text().endswith(f"step {t}")
        assert_bars(top.patches, sts.attention(W, X, y, E)[0], y)
        np.testing.assert_array_equal(middle.lines[0].get_ydata(), run["loss"][:t])
        np.testing.assert_allclose(middle.lines[1].get_ydata(), (target ** 2).sum() / 256 / 2)
        for line, mean in zip(bottom.lines, (W.diagonal()[3:].mean(), V.diagonal().mean())):
            assert line.get_xdata()[-1] == t and line.get_ydata()[-1] == pytest.approx(mean)
        for place, (name, matrix) in enumerate((("W", W), ("V", V)), 1):
            image, = axes[f"{name}: tokens | encodings"].images
            np.testing.assert_array_equal(image.get_array(), matrix[:15, :15])
            assert image.get_clim()[1] == max(abs(state[place][:15, :15]).max() for state in states)
    assert_readable(figure)


def test_what_the_pictures_say_of_the_run_is_so():
    run, states = pictures.trained()
    c, (X, y, E, _) = run["config"], pictures.example(run["config"])
    assert abs(sts.forward(run["W"], run["V"], X, y, E)[0] / sts.sts_target(X, y) - 1).max() < 0.15
    factor = np.trace(run["V"][:, :3]) / 3
    X, y = sts.sample_sts(np.random.default_rng(1), 128, c.T, c.d, c.q)
    P = np.stack([sts.attention(run["W"], X, y, sts.rademacher(np.random.default_rng(k), c.T, 60))
                  for k in range(16)])
    inside = P[:, np.arange(128)[:, None], y].sum(axis=2).mean() / c.q
    best = inside / (P ** 2).sum(axis=2).mean()                     # V's factor of the least loss
    assert factor == pytest.approx(best, rel=0.05)
    V = [np.trace(V[:, :3]) / 3 for _, _, V in states]
    early = states[pictures.FRAMES][0]
    assert run["loss"][150] > 0.75 * run["loss"][0] and run["loss"][early] < 0.1    # the plateau
    assert max(V[:pictures.FRAMES]) > 1.2 * V[pictures.FRAMES]                      # V's overshoot


def test_the_movie_can_be_followed():
    path, durations = plots.HERE / "figures/movie.gif", []
    with Image.open(path) as film:
        for k in range(film.n_frames):
            film.seek(k)
            durations.append(film.info["duration"])
    assert len(durations) <= 60 and sum(durations) >= 5000
    assert durations[0] >= 1000 and durations[-1] >= 2000 and path.stat().st_size < 2e6


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_pictures_for_slides_are_drawn_without_the_movie(suffix, monkeypatch, tmp_path):
    for name in "task", "model":
        monkeypatch.setattr(pictures, name, lambda *run: plt.figure())
    monkeypatch.setattr(pictures, "trained", lambda: ({}, []))
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--format", suffix])
    pictures.main()
    assert {path.name for path in tmp_path.iterdir()} == {f"task.{suffix}", f"model.{suffix}"}


def test_the_help_trains_nothing(monkeypatch):
    monkeypatch.setattr(pictures, "trained", Mock(side_effect=AssertionError))
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        pictures.main()
