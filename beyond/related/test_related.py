"""What the tests of the seven files share: `python -m pytest beyond/related/test_related.py`."""

import functools
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!t]*.py"))


def complex_step(function, x, h=1e-30):
    """The gradient of function(x), entry by entry."""
    grad = np.zeros(x.shape)
    for entry in np.ndindex(x.shape):
        moved = x.astype(complex)
        moved[entry] += 1j * h
        grad[entry] = function(moved).imag / h
    return grad


@functools.cache
def headline(name):
    """What a file prints, alone in a folder and without matplotlib."""
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(FOLDER / f"{name}.py", folder)
        Path(folder, "matplotlib.py").write_text("raise ImportError")
        return subprocess.check_output([sys.executable, "-Es", path], cwd=folder, text=True)


@pytest.mark.parametrize("name", ["max_margin", "single_location"])      # the others take longer
def test_all_words_of_a_picture_can_be_read(name, monkeypatch):
    saved, module = [], import_module(name)
    monkeypatch.setattr(Figure, "savefig", lambda canvas, path: saved.append(canvas))
    monkeypatch.setattr(module, "FALL_STEPS", 5000, raising=False)          # of single_location.py
    with rc_context():
        module.figure("picture.png")
        canvas, = saved
        canvas.draw_without_rendering()
        for text in canvas.findobj(Text):
            assert text.get_fontsize() >= 1.4 * canvas.get_figwidth(), text     # 14 at 10 inches
        (width, height), box = canvas.get_size_inches(), canvas.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        for one, other in combinations([axes.get_tightbbox() for axes in canvas.axes], 2):
            assert not one.overlaps(other)
    if name == "single_location":                               # words say which curve is which
        learnt = canvas.axes[1]
        words = {text.get_color(): text.get_text()[:3] for text in learnt.texts}
        end = {word: [line.get_ydata()[-1] for line in learnt.lines
                      if words[line.get_color()] == word] for word in ("val", "key")}
        assert min(end["val"]) > max(end["key"])


def test_these_are_the_seven_files_of_the_readme():
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert len(NAMES) == 7
    for name in NAMES:
        assert f"\npython beyond/related/{name}.py\n" in readme
        assert f"](figures/{name}.png)" in readme and (FOLDER / f"figures/{name}.png").exists()
