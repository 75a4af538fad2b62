"""What the files of this folder share.  Import it before NumPy, which gets one thread here."""

import argparse
import os
import sys
from pathlib import Path

for name in "OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM":     # before NumPy loads:
    os.environ.setdefault(f"{name}_THREADS", "1")                       # matrices are small
sys.path.append(str(Path(__file__).resolve().parents[1]))       # of plots.py, sts.py and train.py

import numpy as np

UNTESTED = {"fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [], "q_test": []}


def multiples(run):
    """a and alpha: the multiples of W* and V* that are nearest to the weights of a run."""
    import sts
    c = run["config"]
    truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
    return [float((run[name] * star).sum() / (star ** 2).sum()) for name, star in zip("WV", truth)]


def end_error(run, T, q, draws=None, n=2048):
    """The error over d/(2q) of a run's last weights at length T and subset size q.

    On n new sequences in batches of 128, and with new draws of encodings in each batch, as many as
    in the run's own tests if `draws` is not given.
    """
    import sts
    import train
    c, losses = run["config"], []
    for part in range(n // 128):
        X, y = sts.sample_sts(train.stream(c, "tests", T, q, part), 128, T, c.d, q, np.float32)
        rng = train.stream(c, "tests", T, q, part, 1)
        E = train.encodings(run, T, draws or c.eval_draws, rng)
        losses.append(((train.output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum() / 256)
    return np.mean(losses) * 2 * q / c.d


def half_step(t, L, c):
    """The step at which L, the loss at steps t, has fallen to half of d/(2q); nan if it has not."""
    return np.interp(-c.d / (4 * c.q), -np.minimum.accumulate(L), t, right=np.nan)


def row(text, values):
    """Print what is measured: its mean over all values, which are of seeds, and their range."""
    print(f"{text:66}  {np.mean(values):.4g} ({np.min(values):.4g} to {np.max(values):.4g})")


def main(doc, demo, *figures):
    """Print what is derived; then train, and draw the figures, one for each picture named."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help="train, and plot into it")
    pictures = parser.parse_args().pictures
    demo()
    for figure, path in zip(figures, pictures):
        import plots
        plots.picture(figure, Path(path))
