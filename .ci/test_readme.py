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
echo step loss >&2; printf "0 0.8\\n25 0.4\\n50 $x\\n"; bash -c "exit $status"
```
```text
step loss
0 0.8
...
50 0.50
```
"""
LECTURE = """
1. In a list, and in the same shell:
   ```python
   print("second", file=open("order", "a"))
   ```
   ```sh
   echo third >> order; echo "$x"; python beyond/claims.py     # a comment
   python beyond/theory_plots.py one
   ```
   ```text
   0.50
   ```
"""
PRINTED = ["step loss", "0 0.8", "25 0.4", "50 0.505"]
TABLE = """figure  claim             allowed  measured          verdict
1       L converges to 0  <= 0.25  0.008 (to 0.009)  seen
2       fixed levels off  >= 0.8   0.93 (to 0.95)    not seen

    levels off    the last third leaves at least 0.8
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder: the texts, programs that measure nothing, a test, and readme.py."""
    (tmp_path / "project/.ci").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    files = dict.fromkeys(readme.TEXTS, "") | dict.fromkeys(readme.CLAIMS.values(), TABLE) | {
        "README.md": README, "beyond/LECTURE.md": LECTURE, "beyond/theory_plots.py": "",
        "beyond/claims.py": f"open('figures/claims.txt', 'w').write('''{TABLE}''')",
        ".ci/test_readme.py": "def test():\n    print('its test', file=open('order', 'a'))\n"}
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    for name in ("run", "readme.py"):
        shutil.copy(Path(readme.__file__).with_name(name), ".ci")


@pytest.fixture
def outputs(project, tmp_path):
    """A folder with what the commands of these texts print, and with the committed claims."""
    for i, lines in enumerate(([], PRINTED, [], PRINTED + ["0.505"])):
        (tmp_path / str(i)).write_text("\n".join(lines))
    readme.kept(tmp_path, "figures/claims.txt").write_text(TABLE)
    return tmp_path


def run(tmp_path, status=0):
    """Run .ci/run here.  It leaves this folder, and the one for temporary files, as they are."""
    before, temporary = sorted(Path().rglob("*")), tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    new = {"PATH": path, "TMPDIR": str(temporary), "status": str(status)}
    done = subprocess.run(["bash", ".ci/run"], capture_output=True, text=True, env=os.environ | new)
    assert sorted(Path().rglob("*")) == before and not any(temporary.iterdir())
    return done


@pytest.mark.parametrize("shown, printed", [
    ("loss 0.500", "loss 0.510"),                   # 2 % more
    ("loss 0.500, 2.4%", "loss 0.490, 2.5%"),       # 2 % less, one unit of the last digit
    ("loss .050, 4.0e-07", "loss .051, 4.1e-07"),
    ("cosine 0.00", "cosine -0.01"),
    ("5 steps in 41 s, 2.5 minutes", "5 steps in 9.5 s, 13 minutes"),
    ("+1.3 standard errors", "-0.4 standard errors"),
])
def test_small_differences_and_times_pass(shown, printed):
    assert readme.alike(shown, printed)


@pytest.mark.parametrize("shown, printed", [
    ("loss 0.500", "loss 0.550"),                   # 10 % more
    ("loss 0.500", "loss 0.450"),
    ("loss 0.500", "loss 0.520"),                   # 4 %
    ("error 3.4%", "error 3.6%"),                   # two units of the last digit
    ("loss 4.0e-07", "loss 4.0e-06"),
    ("loss 0.100", "loss -0.100"),
    ("loss 0.100 0.200", "loss 0.100 0.400"),
    ("step 5000", "step 5001"),
    ("5000 steps", "5001 steps"),
    ("training loss 0.1", "test loss 0.1"),
    ("loss 0.1", "loss 0.1 and more"),
    ("loss 0.1", "loss 0.1 0.2"),
    ("loss 0.1 0.2", "loss 0.1"),
])
def test_other_numbers_and_other_words_fail(shown, printed):
    assert not readme.alike(shown, printed)


@pytest.mark.parametrize("printed", [
    PRINTED[1:],                                    # a line is missing, though another command
    PRINTED[:-1],                                   # prints it
    [PRINTED[i] for i in (1, 0, 2, 3)],             # another order
    [PRINTED[i] for i in (0, 3, 2, 1)],
    PRINTED[:-1] + ["50 0.6"],
])
def test_lines_that_are_not_printed_in_their_order_fail(outputs, printed):
    readme.check(outputs)
    (outputs / "1").write_text("\n".join(printed))
    with pytest.raises(SystemExit, match="README"):
        readme.check(outputs)


@pytest.mark.parametrize("old, new", [("0.93", "0.54"), (">= 0.8 ", ">= 0.75"), ("0.95)", "0.9) ")])
def test_other_measurements_and_limits_of_a_claim_pass(outputs, old, new):
    Path("figures/claims.txt").write_text(TABLE.replace(old, new))
    readme.check(outputs)


@pytest.mark.parametrize("old, new", [
    ("not seen", "seen"),
    ("  seen", "  seen in part"),
    ("fixed levels", "redrawn levels"),
    ("\n2 ", "\n3 "),                               # the figure
    (TABLE.splitlines()[1] + "\n", ""),             # a row less
    (TABLE[TABLE.index("\n    levels"):], ""),
    ("least 0.8\n", "least 0.8\n3  a claim  -  1  seen\n"),
])
def test_another_claim_or_verdict_fails(outputs, old, new):
    readme.check(outputs)
    Path("figures/claims.txt").write_text(TABLE.replace(old, new, 1))
    with pytest.raises(SystemExit, match="claims.txt"):
        readme.check(outputs)


def test_blocks_run_in_one_shell_in_order_and_pytest_last(project, tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for seen in ("\n".join(PRINTED), "4 lines", "figures/claims.txt"):
        assert seen in done.stdout
    assert done.stdout.splitlines()[-4:] == ["first", "second", "third", "its test"]


@pytest.mark.parametrize("end", ["", " && echo unseen", " | cat", "; echo unseen"])
def test_a_block_that_fails_ends_the_run_with_its_status_and_its_log(project, tmp_path, end):
    Path("README.md").write_text(README.replace('$status"', '$status"' + end))
    done = run(tmp_path, status=7)
    assert done.returncode == 7 and done.stdout.splitlines()[-4:] == PRINTED


@pytest.mark.parametrize("path, old, new", [
    ("README.md", "50 0.50", "50 0.60"),
    ("beyond/LECTURE.md", "   0.50", "   0.60"),
    ("beyond/LECTURE.md", "print(", "unknown("),
    ("beyond/claims.py", "not seen", "seen"),
    ("beyond/claims.py", "figures/", ""),           # it writes another file
    (".ci/test_readme.py", "print(", "unknown("),
])
def test_what_is_wrong_anywhere_ends_the_run_before_the_tests(project, tmp_path, path, old, new):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
    done = run(tmp_path)
    assert done.returncode == 1 and "third\nits test" not in done.stdout


@pytest.mark.parametrize("path", readme.TEXTS)
def test_a_missing_text_ends_the_run(project, tmp_path, path):
    Path(path).unlink()
    done = run(tmp_path)
    assert done.returncode == 1 and path in done.stderr and not done.stdout
