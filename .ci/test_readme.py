"""Tests of readme.py, with small texts of their own; .ci/run starts them."""

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


@pytest.mark.parametrize("shown, printed, same", [
    ("loss 0.500", "loss 0.510", True), ("loss 0.500", "loss 0.520", False),        # 2 %, 4 %
    ("error 3.4%", "error 3.5%", True), ("error 3.4%", "error 3.6%", False),        # units
    ("loss .050, 4.0e-07", "loss .051, 4.1e-07", True), ("cosine 0.00", "cosine -0.01", True),
    ("loss 0.100", "loss -0.100", False), ("5000 steps", "5001 steps", False),
    ("41 s, +1.3 standard errors", "9.5 s, -0.4 standard errors", True),
    ("training loss 0.1", "test loss 0.1", False), ("loss 0.1", "loss 0.1 0.2", False)])
def test_a_line_may_differ_in_the_last_digits_and_in_times(shown, printed, same):
    assert readme.alike(shown, printed) == same


@pytest.mark.parametrize("path, old, new, status", [
    ("beyond/claims.py", "0.93", "0.95", 0),                                # the same verdict
    ("README.md", "50 0.50", "50 0.60", 1),
    ("README.md", "0 0.8\n...\n50 0.50", "50 0.50\n0 0.8", 1),
    ("README.md", "print(", "prin(", 1), ("README.md", "status:-0", "status:-7", 7),
    ("beyond/claims.py", "not seen", "seen", 1), ("beyond/claims.py", "levels off", "stays", 1),
    ("beyond/claims.py", "print", "str", 1), (".ci/test_readme.py", "print(", "prin(", 1)])
def test_blocks_run_in_one_shell_in_order_and_what_is_wrong_ends_the_run(path, old, new, status,
                                                                        monkeypatch, tmp_path):
    files = dict.fromkeys(readme.TEXTS, "") | {
        "README.md": README, "figures/claims.txt": TABLE, "plots.py": "", ".ci/picture.py": "",
        "beyond/claims.py": f"print('''{TABLE}''')",
        ".ci/test_readme.py": "def test():\n    print('its test', file=open('order', 'a'))\n"}
    shutil.copytree(Path(readme.__file__).parent, tmp_path / ".ci")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace(old, new) if name == path else text)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    done = subprocess.run([sys.executable, ".ci/readme.py"], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert "0 0.8\n25 0.4\n50 0.505" in done.stdout                         # what was printed
    assert ("first\nsecond\nthird\nits test" in done.stdout) == (status == 0)
