"""What a training step costs, part by part, and how it grows:  python beyond/benchmark.py"""

import os
import sys
import time
import tracemalloc
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: one core computes, as in train.py
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sts
import train


def milliseconds(call, repeats=20):
    """The milliseconds of a call: the least of five means of so many repeats."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - begin) / repeats * 1000)
    return min(times)


def parts(repeats=20, **settings):
    """The milliseconds of each part of a step of train.py and of the whole, and its peak MB."""
    run = train.start(train.configuration(init="random", **settings))
    c, weights = run["config"], [run["W"], run["V"]]
    arguments = c["attend_to_query"], c["query"]

    def step():
        train.step(run, *train.batch(c, len(run["loss"])))

    X, y = train.batch(c, 0)
    E = train.encodings(run, c["T"], c["draws"], "encodings", 0)
    f, cache = sts.forward(*weights, X, y, E[0], *arguments)
    _, grads = train.loss_and_grads(run, X, y, E)
    calls = {"X and y": lambda: train.batch(c, 0),
             "E": lambda: train.encodings(run, c["T"], c["draws"], "encodings", 0),
             "forward": lambda: [sts.forward(*weights, X, y, E_k, *arguments) for E_k in E],
             "backward": lambda: [sts.backward(cache, f) for _ in E],
             "update": lambda: [train.update(dict(run), *pair, 1) for pair in zip("WV", grads)],
             "step": step}
    times = {name: milliseconds(call, repeats) for name, call in calls.items()}
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return times | {"peak MB": peak}


def speed(steps=300, **settings):
    """The steps/s of train.train, where a second core draws the next batch; best of three."""
    run, rates = train.start(train.configuration(steps=steps, evaluations=1, **settings)), []
    for _ in range(3):
        copy, begin = dict(run), time.perf_counter()
        train.train_together([copy])
        rates.append(steps / (time.perf_counter() - begin))
    return max(rates)


def main(repeats=20, steps=300, **settings):
    """Print both tables; settings of train.py make it another task than the default one."""
    c = train.configuration(**settings)
    print("A step at " + ", ".join(f"{key} = {c[key]}" for key in ("T", "d", "q", "pe_dim", "batch",
                                                                  "draws")))
    print("milliseconds of its parts on one core, its peak memory, and the steps/s of training\n")
    columns = ["X and y", "E", "forward", "backward", "update", "step", "peak MB"]
    print(" " * 9 + "  ".join(f"{name:>8}" for name in columns) + "   steps/s")
    for dtype in "float32", "float64":
        row = parts(repeats, dtype=dtype, **settings)
        print(f"{dtype:9}" + "  ".join(f"{row[name]:8.2f}" for name in columns)
              + f"  {speed(steps, dtype=dtype, **settings):8.0f}")
    print("\nHow a step grows, in float32\n\n                step ms   ratio   peak MB   ratio")
    base = parts(repeats, **settings)
    for name, factor in (("T", 2), ("batch", 2), ("pe_dim", 2), ("draws", 2), ("draws", 8)):
        row = parts(repeats, **settings | {name: factor * c[name]})
        print(f"{name:>7} x {factor}   {row['step']:8.2f}  {row['step'] / base['step']:6.2f}  "
              f"{row['peak MB']:8.1f}  {row['peak MB'] / base['peak MB']:6.2f}")


if __name__ == "__main__":
    main()
