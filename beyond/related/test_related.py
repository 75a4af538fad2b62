"""Tests of what the seven files share: `python -m pytest beyond/related/test_related.py`."""

import os
import signal
import subprocess
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib import rc_context
from matplotlib.text import Text

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!t]*.py"))


def test_these_are_the_seven_files_of_the_readme():
    readme = (FOLDER / "README.md").read_text()
    assert len(NAMES) == 7
    for name in NAMES:
        assert f"\npython beyond/related/{name}.py\n" in readme
        assert f"](figures/{name}.png)" in readme and (FOLDER / f"figures/{name}.png").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="Windows")
@pytest.mark.parametrize("name", NAMES)
def test_a_closed_pipe_ends_the_tour_without_a_traceback(name):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-u", FOLDER / f"{name}.py"], stdout=writer,
                          stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_that_cannot_be_written_is_one_message(name, tmp_path, monkeypatch, capsys):
    module, path = import_module(name), tmp_path / "missing" / "a.png"
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(path)])
    monkeypatch.setattr(module, "demo", lambda: None)
    monkeypatch.setattr(module, "figure", lambda path: open(path, "w"))
    with pytest.raises(SystemExit, match="^2$"):
        module.main()
    error = capsys.readouterr().err
    assert error.count("error: argument picture:") == 1 and repr(str(path)) in error


@pytest.mark.parametrize("name", NAMES)
def test_all_words_in_the_pictures_can_be_read(name, monkeypatch):
    canvas = import_module(f"test_{name}").picture(monkeypatch)
    assert canvas.get_supxlabel().count("\n") < 2
    with rc_context(import_module(name).STYLE):                 # also for ticks made only now
        canvas.draw_without_rendering()
        for text in canvas.findobj(Text):
            assert text.get_fontsize() >= canvas.get_figwidth(), text       # 14 points at 14 inches
        (width, height), box = canvas.get_size_inches(), canvas.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        for one, other in combinations([axes.get_tightbbox() for axes in canvas.axes], 2):
            assert not one.overlaps(other)
