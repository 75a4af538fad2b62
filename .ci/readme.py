"""Run the three READMEs, and hold them to their word; used by .ci/run.

    readme.py script FOLDER    print a bash script: all ```sh and ```python blocks, with the output
                               of each also in a file in FOLDER, then the check below, and at last
                               the tests
    readme.py check FOLDER     compare the ```text blocks with the output of the command above them:
                               the lines are there, in order ("..." is skipped), with the same
                               words, and the same numbers to 3 % or one unit of the last digit;
                               times, speeds and numbers of standard errors may differ.  And compare
                               the claims that are measured anew with the committed ones: their
                               words and their verdicts
"""

import re
import shlex
import sys
from pathlib import Path

TEXT = "".join(Path(folder, "README.md").read_text() for folder in ("", "beyond", "beyond/related"))
BLOCKS = re.findall(r"^```(sh|python|text)\n(.*?)^```", TEXT, re.M | re.S)
TESTS = [text for kind, text in BLOCKS if kind == "sh" and "pytest" in text]
BLOCKS = [(kind, text) for kind, text in BLOCKS if text not in TESTS]
CLAIMS = "figures/claims.txt"
MAY_DIFFER = re.compile(r"(\d+ +)?\d+ (?=s\b(?!\.))|[-+]?\d+\.\d+ (?=s\.e\.|standard errors)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")


def script(folder):
    """The bash script.  All blocks run in one shell, as for somebody who pastes them."""
    print(f"cp {CLAIMS} {folder}/claims.txt")
    for i, (kind, text) in enumerate(BLOCKS):
        if kind == "python":
            text = f"python <<'END'\n{text}END\n"
        if kind != "text":
            print(f"echo '--- README:' {shlex.quote(text.splitlines()[0])}\nlog={folder}/{i}\n"
                  f'{{\n{text}}} > "$log" 2>&1\ncat "$log"\nlog=/dev/null')
    print(f"python3 .ci/readme.py check {folder}")
    print("\n".join(TESTS))


def alike(shown, printed):
    """Whether a line of a README and a printed line agree."""
    shown, printed = (MAY_DIFFER.sub("0 ", line) for line in (shown, printed))
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed)):
        unit = 10.0 ** -len(a.partition(".")[2])
        if abs(float(a) - float(b)) > max(0.03 * abs(float(a)), 1.01 * unit) * ("." in a):
            return False
    return True


def verdicts(path):
    """The lines of a table of claims, without what is allowed and what is measured."""
    rows = [re.split("  +", line) for line in Path(path).read_text().splitlines()]
    return [row[:2] + row[-1:] for row in rows]


def check(folder):
    """Exit with status 1 at the first line that is shown and not printed, or at another verdict."""
    count = 0
    for i, (kind, text) in enumerate(BLOCKS):
        if kind != "text":
            printed = iter((Path(folder) / str(i)).read_text().splitlines())
            continue
        for shown in text.splitlines():
            if shown.strip() and not shown.startswith("..."):
                if not any(alike(shown, line) for line in printed):
                    sys.exit(f"a README shows a line that its command does not print: {shown}")
                count += 1
    print(f"--- {count} lines of output in the READMEs agree with what their commands print")
    for committed, anew in zip(verdicts(Path(folder, "claims.txt")), verdicts(CLAIMS), strict=True):
        if committed != anew:
            sys.exit(f"a claim that is measured anew has another verdict: {committed}, now {anew}")
    print(f"--- the verdicts of {CLAIMS} agree with those that are measured anew")


if __name__ == "__main__":
    {"script": script, "check": check}[sys.argv[1]](sys.argv[2])
