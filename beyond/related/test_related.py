"""Tests of all seven files: `python -m pytest beyond/related/test_related.py`."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[!t]*.py"))


@pytest.mark.parametrize("name", NAMES)
@rc_context()
def test_a_picture_is_drawn_and_its_words_can_be_read(name, monkeypatch):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda canvas, path, dpi: saved.append(canvas))
    import_module(name).figure("picture.png")
    saved[0].draw_without_rendering()
    (width, height), box = saved[0].get_size_inches(), saved[0].get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    for axes in saved[0].axes:
        assert all(text.get_fontsize() >= 20 for text in [*axes.texts, *axes.get_xticklabels()])
        for one, other in combinations([text.get_window_extent() for text in axes.texts], 2):
            assert not one.overlaps(other)


def test_the_readme_has_all_seven_files_and_they_need_numpy_only():
    readme = (FOLDER / "README.md").read_text("utf-8")
    for name in NAMES:
        assert f"\npython beyond/related/{name}.py\n" in readme and f"s/{name}.png)" in readme
        code = (FOLDER / f"{name}.py").read_text("utf-8")
        assert {"argparse", "functools", "itertools", "math", "numpy"}.issuperset(
            re.findall(r"^(?:import|from) (\w+)", code, re.M))
    assert len(NAMES) == 7


def test_a_file_runs_alone_in_a_folder_and_bad_input_gets_one_line(tmp_path):
    run = subprocess.run([sys.executable, shutil.copy(FOLDER / "next_token.py", tmp_path), "x/y"],
                         cwd=tmp_path, text=True, capture_output=True)
    assert run.returncode == 2 and "1.000" in run.stdout
    assert "next_token.py: error: [Errno 2] No such file" in run.stderr.splitlines()[-1]
