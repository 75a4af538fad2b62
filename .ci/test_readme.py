"""Tests of readme.py and run, with small texts of their own; .ci/run starts them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import readme

README = """
```sh
python -m pytest --version && cat order
```
```sh
echo first > order; x=0.505
echo "0 0.8" >&2; printf "25 0.4\\n50 $x\\n"; bash -c "exit ${status:-0}" && true
```
```text
0 0.8
...
50 0.50
```
1. In a list, and in the same shell:
   ```python
   print("second", file=open("order", "a"))
   ```
   ```sh
   echo third >> order; echo "$x"; python beyond/claims.py
   ```
   ```text
   0.50
   ```
"""
TABLE = "1  L falls  <= 0.25  0.008  seen\n2  levels off  >= 0.8  0.93  not seen\n"


def run(monkeypatch, tmp_path, path="README.md", old="", new=""):
    """What .ci/run does with these texts, a program that measures claims, and one replacement."""
    files = dict.fromkeys(readme.TEXTS, "") | {
        "README.md": README, "figures/claims.txt": TABLE, "plots.py": "",
        "beyond/claims.py": f"print('''{TABLE}''')",
        ".ci/test_readme.py": "def test():\n    print('its test', file=open('order', 'a'))\n"}
    shutil.copytree(Path(readme.__file__).parent, tmp_path / ".ci")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace(old, new) if name == path else text)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    return subprocess.run(["bash", tmp_path / ".ci/run"], capture_output=True, text=True)


@pytest.mark.parametrize("shown, printed, same", [
    ("loss 0.500", "loss 0.510", True), ("loss 0.500", "loss 0.520", False),        # 2 %, 4 %
    ("error 3.4%", "error 3.5%", True), ("error 3.4%", "error 3.6%", False),        # units
    ("loss .050, 4.0e-07", "loss .051, 4.1e-07", True), ("cosine 0.00", "cosine -0.01", True),
    ("loss 0.100", "loss -0.100", False), ("5000 steps", "5001 steps", False),
    ("41 s, +1.3 standard errors", "9.5 s, -0.4 standard errors", True),
    ("training loss 0.1", "test loss 0.1", False), ("loss 0.1", "loss 0.1 0.2", False)])
def test_a_line_may_differ_in_the_last_digits_and_in_times(shown, printed, same):
    assert readme.alike(shown, printed) == same


def test_blocks_run_in_one_shell_in_order_and_pytest_last(monkeypatch, tmp_path):
    done = run(monkeypatch, tmp_path, "beyond/claims.py", "0.93", "0.95")   # the same verdict
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-4:] == ["first", "second", "third", "its test"]
    assert not (tmp_path / "order").exists()                                # it was a copy


@pytest.mark.parametrize("path, old, new", [
    ("README.md", "50 0.50", "50 0.60"), ("README.md", "0 0.8\n...\n50 0.50", "50 0.50\n0 0.8"),
    ("README.md", "print(", "prin("), ("README.md", "status:-0", "status:-7"),
    ("beyond/claims.py", "not seen", "seen"), ("beyond/claims.py", "levels off", "stays"),
    ("beyond/claims.py", "print", "str"), (".ci/test_readme.py", "print(", "prin(")])
def test_what_is_wrong_anywhere_ends_the_run(monkeypatch, tmp_path, path, old, new):
    done = run(monkeypatch, tmp_path, path, old, new)
    assert done.returncode == (7 if "-7" in new else 1) and "third\nits test" not in done.stdout
    assert "0 0.8\n25 0.4\n50 0.505" in done.stdout                         # what was printed
