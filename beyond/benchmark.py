"""What a training step costs, part by part, and how it grows:  python beyond/benchmark.py"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import train        # first, since it sets the number of threads before NumPy loads

import argparse
import timeit


def parts(repeats, **settings):
    """The milliseconds of each part of a step of train.py: the least of five means."""
    c = train.configuration(**{"init_std": 0.02, "eval_sequences": 2} | settings)
    run = train.start(c)
    X, y = train.batch(c, 0)
    E = train.encodings(run, c.T, c.draws, "encodings", 0)
    calls = {"X and y, if fresh": lambda: train.batch(c, 0),
             "encodings": lambda: train.encodings(run, c.T, c.draws, "encodings", 0),
             "gradient": lambda: train.loss_and_grads(run, X, y, E)}
    return {name: 1000 * min(timeit.repeat(call, number=repeats)) / repeats
            for name, call in calls.items()}


def main(repeats=20, **settings):
    """Print a row for the default task, or for these settings, and for larger ones."""
    c = train.configuration(**settings)
    print(f"Milliseconds on one core.  T = {c.T}, d = {c.d}, q = {c.q}, d_e = {c.d_e}, batch "
          f"{c.batch}, draws {c.draws}\n")
    larger = [{name: 2 * getattr(c, name)} for name in ("T", "batch", "d_e", "draws")]
    for change in {}, *larger, {"draws": 8}:
        row = parts(repeats, **settings | change)
        name = ", ".join(f"{name} {value}" for name, value in change.items()) or "these"
        print(f"{name:12}" + "".join(f"   {part} {value:6.2f}" for part, value in row.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    main()
