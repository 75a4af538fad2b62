"""Run the blocks of the texts, and hold the texts to their word; .ci/run starts this in a copy.

All ```sh and ```python blocks run in order in one shell, as for somebody who pastes them; then a
figure from nothing, and last the blocks with pytest, and the tests of beyond/.  The ```text blocks
below a block show what it prints.  A shown line agrees with a printed one if it has the same words,
the same integers, and the same decimals to 3 % or one unit of the last digit.
Times and numbers of standard errors may differ.  Lines agree in their order; between them a command
may print others.  A line that begins with "..." is not compared.  What claims.py measures has to be
in beyond/claims.txt, to the same accuracy.  A formula has no backslash before punctuation, which
Markdown takes away; none is in the text of a link, or right after a letter, a digit, a quotation
mark, a hyphen, a slash, [ or {, since the pages' host then shows its source.
"""

import re
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path

TEXTS = ("README.md", "beyond/README.md", "beyond/CLAIMS.md", "beyond/teach/README.md",
         "beyond/teach/HANDOUT.md", "beyond/teach/EXERCISES.md", "beyond/related/README.md",
         "beyond/open_problem/README.md")
BLOCK = re.compile(r"^( *)```(sh|python|text)\n(.*?)^\1```", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])-?\d*\.?\d+(?:e[-+]\d+)?(?![\w.]*\w)")
MAY_DIFFER = re.compile(r"[-+]?[\d.]+ +(?=(s|seconds|minutes|standard errors)\b)")
MEASURED = re.compile(r"\d  .* \(.* to .*\)")                 # a line of claims.py
FORMULA = re.compile(r"""\[[^][]*\$[^][]*\]\(|[\w"'/{[-]?\$[^$]+\$|\$\$[^$]+\$\$""")
UNSET = re.compile(r"""[^$].*|.*\\[^\w\s].*""", re.S)         # of these, what is not set
FROM_NOTHING = "python plots.py 2 --quick\n"


def blocks():
    """[title, bash commands, shown lines] of each block, in the order in which they run."""
    found = []
    for path in TEXTS:
        for _, kind, text in BLOCK.findall(Path(path).read_text(encoding="utf-8")):
            text = textwrap.dedent(text)
            if kind == "text":
                found[-1][2].extend(line for line in text.splitlines()
                                    if line.strip() and not line.startswith("..."))
            else:
                command = f"python <<'END'\n{text}END\n" if kind == "python" else text
                found.append([f"{path}: {text.splitlines()[0]}", command, []])
    last = [block for block in found if "pytest" in block[1]]
    return [*(b for b in found if b not in last), ["from nothing", FROM_NOTHING, []], *last,
            ["beyond", "python -m pytest -q beyond\n", []]]


def alike(shown, printed):
    """Whether a line of a text and a printed line agree."""
    shown, printed = (MAY_DIFFER.sub("0 ", line) for line in (shown, printed))
    if [a.split() for a in NUMBER.split(shown)] != [b.split() for b in NUMBER.split(printed)]:
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed)):
        a, b = Decimal(a), Decimal(b)
        digit = a.as_tuple().exponent           # of the last digit: -1 for 3.4, 0 for an integer
        if abs(a - b) > (max(abs(a) * 3 / 100, Decimal(10) ** digit) if digit < 0 else 0):
            return False
    return True


def check(title, command, shown, printed):
    """Exit if a line is shown that is not printed, or measured that is not in claims.txt."""
    rest = iter(printed)
    for line in shown:
        if not any(alike(line, other) for other in rest):
            sys.exit(f"{title}\nis shown to print, but does not:\n{line}")
    if "claims.py" in command:
        known = Path("beyond/claims.txt").read_text(encoding="utf-8").splitlines()
        measured = [line for line in printed if MEASURED.match(line)]
        new = [line for line in measured if not any(alike(other, line) for other in known)]
        if new or not measured:
            sys.exit(f"{title}\nbeyond/claims.txt has not:\n" + "\n".join(new))


def main():
    """Run the blocks in one shell; each is checked when the next one begins."""
    found, at, printed = blocks(), -1, []
    for path in (*Path().glob("*.md"), *Path().glob("beyond/**/*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for formula in filter(UNSET.fullmatch, FORMULA.findall(text)):
            sys.exit(f"{path}: the page's host does not set {formula}")
    script = "".join(f"echo '--- block {i}'\n{command}(exit $?)\n"      # bash itself goes on if a
                     for i, (_, command, _) in enumerate(found))        # command before && fails
    Path(".ci/script").write_text(f"set -euo pipefail\n{script}echo '--- block {len(found)}'\n")
    shell = subprocess.Popen(["bash", ".ci/script"], text=True, encoding="utf-8",
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for line in shell.stdout:
        if line == f"--- block {at + 1}\n":
            if at >= 0:
                check(*found[at], printed)
            at, printed = at + 1, []
            line = f"--- {found[at][0]}\n" if at < len(found) else ""
        printed.append(line.rstrip("\n"))
        print(line, end="", flush=True)
    sys.exit(shell.wait())


if __name__ == "__main__":
    main()
