"""What a training step costs, part by part, and how it grows:  python beyond/benchmark.py"""

import os
import sys
import timeit
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: one core computes, as in train.py
    for library in "OPENBLAS", "MKL", "OMP":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train


def parts(repeats, **settings):
    """The milliseconds of each part of a step of train.py: the least of five means."""
    c = train.configuration(init_std=0.02, eval_sequences=2, **settings)
    run = train.start(c)
    X, y = train.batch(c, 0)
    E = train.encodings(run, c.T, c.draws, "encodings", 0)
    calls = {"X and y, if fresh": lambda: train.batch(c, 0),
             "encodings": lambda: train.encodings(run, c.T, c.draws, "encodings", 0),
             "gradient": lambda: train.loss_and_grads(run, X, y, E)}
    return {name: min(timeit.repeat(call, number=repeats)) / repeats * 1000
            for name, call in calls.items()}


def main(repeats=20, **settings):
    """Print a row for the default task, or for these settings, and for larger ones."""
    c = train.configuration(**settings)
    print(f"Milliseconds on one core.  T = {c.T}, d = {c.d}, q = {c.q}, d_e = {c.pe_dim}, batch "
          f"{c.batch}, draws {c.draws}\n")
    larger = [{name: 2 * getattr(c, name)} for name in ("T", "batch", "pe_dim", "draws")]
    for change in {}, *larger, {"draws": 8}:
        row = parts(repeats, **settings | change)
        name = ", ".join(f"{name} {value}" for name, value in change.items()) or "these"
        print(f"{name:12}" + "".join(f"   {part} {value:6.2f}" for part, value in row.items()))


if __name__ == "__main__":
    main()
