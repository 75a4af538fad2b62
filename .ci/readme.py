"""Run the blocks of the READMEs, and hold the READMEs to their word; used by .ci/run.

    readme.py script        print a bash script: all ```sh and ```python blocks in order, the output
                            of each in a file in $work; the check; a figure from nothing;
                            test_readme.py and the tests of beyond/; at last the blocks with pytest
    readme.py check FOLDER  compare the ```text blocks with the output of the block above them, and
                            the verdicts that claims.py prints with those in figures/claims.txt

A line agrees if it has the same words, the same integers, and the same decimals to 3 % or one unit
of the last digit.  Times and numbers of standard errors may differ.  Lines agree in their order;
between them a command may print others.  A line that begins with "..." is not compared.
"""

import re
import shlex
import sys
import textwrap
from decimal import Decimal
from pathlib import Path

TEXTS = ("README.md", "beyond/README.md", "beyond/CLAIMS.md", "beyond/LECTURE.md",
         "beyond/HANDOUT.md", "beyond/SOLUTIONS.md", "beyond/related/README.md")
CLAIMS = Path("figures/claims.txt")
BLOCK = re.compile(r"^( *)```(sh|python|text)\n(.*?)^\1```", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])-?\d*\.?\d+(?:e[-+]\d+)?(?![\w.]*\w)")
MAY_DIFFER = re.compile(r"[-+]?[\d.]+ +(?=(s|seconds|minutes|standard errors)\b)")


def blocks():
    """The blocks that are run: for each its title, its text for bash, the lines shown below it."""
    found = []
    for path in TEXTS:
        for _, kind, text in BLOCK.findall(Path(path).read_text()):
            text = textwrap.dedent(text)
            if kind == "text":
                found[-1][2].extend(line for line in text.splitlines()
                                    if line.strip() and not line.startswith("..."))
            else:
                title = f"{path}: {text.splitlines()[0]}"
                text = f"python <<'END'\n{text}END\n" if kind == "python" else text
                found.append((title, text, []))
    return found


def script():
    """Print the script.  All blocks run in one shell, as for somebody who pastes them."""
    found = blocks()
    for i, (title, text, _) in enumerate(found):
        if "pytest" not in text:
            print(f"echo {shlex.quote('--- ' + title)}", f'log="$work/{i}"',
                  f'{{\n{text}}} > "$log" 2>&1',
                  "(exit $?)",          # bash itself goes on if a command before && has failed
                  'cat "$log"', "log=/dev/null", sep="\n")
    print('python .ci/readme.py check "$work"\npython plots.py 2 --quick')
    print("python -m pytest -q .ci/test_readme.py beyond")
    print("\n".join(text for _, text, _ in found if "pytest" in text))


def alike(shown, printed):
    """Whether a line of a README and a printed line agree."""
    shown, printed = (MAY_DIFFER.sub("0 ", line) for line in (shown, printed))
    if [a.split() for a in NUMBER.split(shown)] != [b.split() for b in NUMBER.split(printed)]:
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed)):
        a, b = Decimal(a), Decimal(b)
        digit = a.as_tuple().exponent           # of the last digit: -1 for 3.4, 0 for an integer
        if abs(a - b) > (max(abs(a) * 3 / 100, Decimal(10) ** digit) if digit < 0 else 0):
            return False
    return True


def verdicts(text):
    """The figure, the claim and the verdict of each row of a table of claims."""
    rows = [re.split("  +", line.strip()) for line in text.splitlines()]
    return {(*row[:2], row[-1]) for row in rows if row[-1] in ("seen", "not seen")}


def check(folder):
    """Exit with status 1 if a line is shown that is not printed, or if a verdict is another one."""
    found = blocks()
    for i, (title, _, shown) in enumerate(found):
        printed = iter(Path(folder, str(i)).read_text().splitlines() if shown else [])
        for line in shown:
            if not any(alike(line, other) for other in printed):
                sys.exit(f"{title}\nis shown to print, but does not:\n{line}")
    measured = set().union(*(verdicts(Path(folder, str(i)).read_text())
                             for i, (_, text, _) in enumerate(found) if "claims.py" in text))
    if not measured or measured - verdicts(CLAIMS.read_text()):
        sys.exit(f"{CLAIMS} has not: {measured - verdicts(CLAIMS.read_text())}")
    print(f"--- {sum(len(shown) for _, _, shown in found)} lines of output in the READMEs agree "
          f"with what their commands print, and {len(measured)} verdicts with {CLAIMS}")


if __name__ == "__main__":
    {"script": script, "check": check}[sys.argv[1]](*sys.argv[2:])
