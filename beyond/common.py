"""What the files of this folder share.  Import it before NumPy, so that NumPy gets one thread."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))        # of plots.py, sts.py, train.py
if "IPython" not in sys.modules and "inline" in os.environ.get("MPLBACKEND", ""):
    os.environ["MPLBACKEND"] = "Agg"        # a notebook's cell has started this program

import train        # before NumPy, since it sets the number of threads

import numpy as np

import plots
import sts

UNTESTED = {"fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [], "q_test": []}


def multiples(run):
    """a and alpha: the multiples of W* and V* that are nearest to the weights of a run."""
    c = run["config"]
    truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return [float((run[name] * star).sum() / (star ** 2).sum()) for name, star in zip("WV", truth)]


def end_error(run, T, q, draws=None, n=2048):
    """The error of a run's last weights at length T and subset size q, on n new sequences.

    They come in batches of at most 128.  With stochastic encodings outputs are means over `draws`
    new draws in each batch, or as many as in the run's own tests.
    """
    c, size, found = run["config"], min(n, 128), []
    draws = (draws or c.eval_draws) if c.model == "attention" and "E" not in run else 1
    for part in range(n // size):
        X, y = sts.sample_sts(train.stream(c, "tests", T, q, part), size, T, c.d, q, np.float32)
        rng = train.stream(c, "tests", T, q, part, 1)
        f = sum(train.output(run, X, y, train.encodings(run, T, 1, rng)) for _ in range(draws))
        found.append((f / draws, X, y))
    return train.error_and_se(*map(np.concatenate, zip(*found)))[0]


def row(text, values):
    """Print what is measured: its mean over all values, which are of seeds, and their range."""
    print(f"{text:66}  {np.mean(values):.4g} ({np.min(values):.4g} to {np.max(values):.4g})")


def guarded(parser, work):
    """Do this work; an error, or Ctrl-C, ends the program in one line."""
    try:
        work()
    except KeyboardInterrupt:
        parser.exit(1, "\ninterrupted\n")
    except BrokenPipeError:                         # `| head` has read enough
        os._exit(1)
    except (ArithmeticError, OSError, ValueError) as problem:
        parser.error(problem)


def main(doc, demo, *figures):
    """Print what is derived; then train, and plot the figures, one for each picture named."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for figure in figures:
        parser.add_argument(figure.__name__, nargs="?", type=Path, help=figure.__doc__,
                            metavar=f"{figure.__name__}.png")
    paths = [path for path in vars(parser.parse_args()).values() if path]
    if wrong := [str(path) for path in paths if path.suffix not in (".png", ".pdf", ".svg")]:
        parser.error(f"the name of a picture ends in .png, .pdf or .svg, got {', '.join(wrong)}")

    @plots.in_style
    def work():
        demo()
        for figure, path in zip(figures, paths):
            plots.plt.switch_backend("Agg")         # no display is needed
            plots.save(figure(), path)

    guarded(parser, work)
