"""Run the blocks of the READMEs, and hold the READMEs to their word; used by .ci/run.

    readme.py script        print a bash script: all ```sh and ```python blocks in order, the output
                            of each in a file in $work; the check; test_readme.py; at last the
                            blocks with pytest
    readme.py check FOLDER  compare the ```text blocks with the output of the block above them, and
                            the claims that were measured anew, and their verdicts, with the
                            committed ones

A line agrees if it has the same words, the same integers, and the same decimals to 3 % or one unit
of the last digit.  Times and numbers of standard errors may differ.  Lines agree in their order;
between them a command may print others.  A line that begins with "..." is not compared.
"""

import re
import shlex
import sys
import textwrap
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path

TEXTS = ("README.md", "beyond/README.md", "beyond/CLAIMS.md", "beyond/LECTURE.md",
         "beyond/related/README.md")
CLAIMS = {"python beyond/claims.py": "figures/claims.txt"}
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


def measured():
    """The tables of claims that a block measures: its command has no argument."""
    return [path for command, path in CLAIMS.items()
            if any(re.search(rf"{command}(?! *[\w-])", text) for _, text, _ in blocks())]


def kept(folder, path):
    """Where the committed table of claims is, while it is measured anew."""
    return Path(folder, path.replace("/", "_"))


def script():
    """Print the script.  All blocks run in one shell, as for somebody who pastes them."""
    for path in measured():
        print(f'mv {path} "{kept("$work", path)}"')
    for i, (title, text, _) in enumerate(blocks()):
        if "pytest" not in text:
            print(f"echo {shlex.quote('--- ' + title)}", f'log="$work/{i}"',
                  f'{{\n{text}}} > "$log" 2>&1',
                  "(exit $?)",          # bash itself goes on if a command before && has failed
                  'cat "$log"', "log=/dev/null", sep="\n")
    print('python .ci/readme.py check "$work"\npython -m pytest -q .ci/test_readme.py')
    print("\n".join(text for _, text, _ in blocks() if "pytest" in text))


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


def verdicts(path):
    """The lines of a table of claims, without the columns between the claim and its verdict."""
    rows = [re.split("  +", line.strip()) for line in Path(path).read_text().splitlines()]
    return [row[:2] + row[-1:] for row in rows]


def check(folder):
    """Exit with status 1 at the first line that is shown and not printed, or at another verdict."""
    for i, (title, _, shown) in enumerate(blocks()):
        printed = iter(Path(folder, str(i)).read_text().splitlines() if shown else [])
        for line in shown:
            if not any(alike(line, other) for other in printed):
                sys.exit(f"{title}\nis shown to print, but does not:\n{line}")
    count = sum(len(shown) for _, _, shown in blocks())
    print(f"--- {count} lines of output in the READMEs agree with what their commands print")
    for path in measured():
        for old, new in zip_longest(verdicts(kept(folder, path)), verdicts(path)):
            if old != new:
                sys.exit(f"{path}: a claim or its verdict differs.\n{old}, now {new}")
        print(f"--- the claims and verdicts of {path} agree with those measured anew")


if __name__ == "__main__":
    {"script": script, "check": check}[sys.argv[1]](*sys.argv[2:])
