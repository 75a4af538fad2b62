"""Draws one picture of beyond/ from nothing, with short runs; .ci/run starts it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "beyond"))

import plateau
import plots

for arm in plateau.ARMS.values():
    arm["steps"] = 100
plots.picture(plateau.figure, plots.HERE / "runs" / "noise.png")
