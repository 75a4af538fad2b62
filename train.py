"""Train the attention model of sts.py, or a fully-connected net of fcn.py, by gradient descent.

    python train.py --pe stochastic                       attention; or --pe fixed
    python train.py --model fcn --hidden 25 --T 10 --fresh --optimizer adam --schedule cosine
    run = train.train(train.progress, pe="fixed")         in Python

It needs sts.py and fcn.py beside it.  Throughout this file we have:

    c              the settings of a run: c.T, c.lr, ..., see Settings
    X, y, E, L     tokens, selected positions, positional encodings, and the loss, as in sts.py
    error          a loss over that of the zero predictor, f = 0, on the same sequences
    run            a dict that holds everything about a run; its file is a .npz with the same names:
    config         c; in the file it is JSON text
    W, V           the weights of attention; a net has weight_1, bias_1, weight_2, ...   (float32)
    m_W, v_W, ...  with Adam: the running means of the gradients and of their squares
    E              fixed and one-hot encodings, up to the longest test          (longest T, d_e)
    t              the number of updates so far
    loss           L before each update                                                   (steps,)
    eval_step      the values of t at which the run is evaluated                          (evals,)
    training       the error on the batch of step t                                       (evals,)
    tests          the sequence length and the subset size (T, q) of each test              (k, 2)
    error, se      the error on new sequences in each test, and its standard error      (evals, k)
    on_selected    the attention on the q selected tokens together, on the first test     (evals,)
    cos_W, cos_V   the cosine similarities of W and W*, of V and V*                       (evals,)
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

for name in "OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM":     # before NumPy loads:
    os.environ.setdefault(f"{name}_THREADS", "1")                       # matrices are small

import numpy as np

import fcn
import sts


def descend(run, report=lambda run: None, path=None):
    """Train a run to its end; at eval_step it is evaluated, saved if there is a path, reported."""
    c = run["config"]
    _, update, _ = OPTIMIZERS[c.optimizer]
    X, y = batch(c, 0)
    for t in range(run["t"], c.steps + 1):
        if t in run["eval_step"]:
            evaluate(run)
            if path:
                save(run, path)
            report(run)
        if t == c.steps:
            return run
        if c.fresh:                         # new sequences, not one full batch
            X, y = batch(c, t)
        E = encodings(run, c.T, c.draws, stream(c, "encodings", t))     # stochastic: drawn anew
        lr = c.lr * (1 + math.cos(math.pi * t / c.steps)) / 2 if c.schedule == "cosine" else c.lr
        with np.errstate(all="ignore"):     # evaluate says so if a run diverges
            run["loss"][t], grads = loss_and_grads(run, X, y, E)
            update(run, grads, lr)
        run["t"] = t + 1


def gradient_descent(run, grads, lr):
    """A step; grads has the gradient of each weight by its name."""
    for name, grad in grads.items():
        run[name] = run[name] - lr * grad


def adam(run, grads, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    """A step of Adam (Kingma and Ba, 2015); the run holds its running means, too."""
    t = run["t"] + 1
    for name, grad in grads.items():
        m = beta1 * run.get(f"m_{name}", 0) + (1 - beta1) * grad
        v = beta2 * run.get(f"v_{name}", 0) + (1 - beta2) * grad ** 2
        step = m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)
        run |= {name: run[name] - lr * step, f"m_{name}": m, f"v_{name}": v}


def train(report=lambda run: None, path=None, **settings):
    """Train a run with these Settings; report=train.progress prints a line at each evaluation.

    With a path the run is kept in this file, for load, and goes on there if it is unfinished.
    Raises ValueError if the file holds anything but a run with these settings.
    """
    c = Settings(**settings)
    run = load(path) if path and os.path.exists(path) else start(c)
    if run["config"] != c:
        raise ValueError(f"{path} holds a run with other settings: delete it, or name another file")
    if run["t"] == c.steps:                 # a finished run is trained anew: till then it stays
        save(run := descend(start(c), report), path)
        return run
    for t in run["eval_step"][run["eval_step"] < run["t"]]:
        report(run | {"t": t})              # of an unfinished one, so that the table is whole
    return descend(run, report, path)


def loss_and_grads(run, X, y, E):
    """The loss on a batch, and its gradients by the names of the weights."""
    c = run["config"]
    if c.model == "fcn":
        L, grads = fcn.loss_and_grads(layers(run), X, y)
        return L, by_name(grads)
    L, dW, dV = sts.loss_and_grads(run["W"], run["V"], X, y, E, c.attend_to_query, c.query)
    return L, {"W": dW, "V": dV}


def output(run, X, y, E):
    """The output f (n, d) of the model; attention averages it over the draws E (K, T, d_e)."""
    c = run["config"]
    if c.model == "fcn":
        return fcn.forward(layers(run), fcn.encode(X, y))[0]
    return sts.output(run["W"], run["V"], X, y, E, c.attend_to_query, c.query)


def layers(run):
    """The layers of a net as fcn.py has them, [(weight_1, bias_1), ...]."""
    return [(run[f"weight_{i}"], run[f"bias_{i}"]) for i in range(1, len(run["config"].hidden) + 2)]


def by_name(layers):
    """Layers as fcn.py has them, [(weight, bias), ...], as a dict of weight_1, bias_1, ..."""
    return {f"{kind}_{i}": array for i, layer in enumerate(layers, 1)
            for kind, array in zip(("weight", "bias"), layer)}


@np.errstate(all="ignore")
def evaluate(run):
    """Measure the attention, how close the weights are to W*, V*, and the errors.

    Raises FloatingPointError if one is not finite, or training is above 20 max(1, its first value).
    """
    c, t, i = run["config"], run["t"], run["eval_step"].tolist().index(run["t"])
    if c.model == "attention":
        X, y, E = held_out(run, 0, c.eval_draws)
        P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)    # (draws, n, T or T + 1)
        run["on_selected"][i] = P[:, np.arange(len(y))[:, None], y].sum(axis=2).mean()
        truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
        for name, star in zip("WV", truth):
            run[f"cos_{name}"][i] = sts.cosine(run[name], star)
    for k in range(len(run["tests"])):
        X, y, E = held_out(run, k, c.eval_draws)
        run["error"][i, k], run["se"][i, k] = error_and_se(output(run, X, y, E), X, y)
    X, y = batch(c, t if c.fresh else 0)
    E = encodings(run, c.T, c.draws, stream(c, "encodings", t))
    run["training"][i], _ = error_and_se(output(run, X, y, E), X, y)
    limit = 20 * max(1, run["training"][0])
    if not (run["training"][i] < limit and np.isfinite(run["error"][i]).all()):     # or nan
        raise FloatingPointError(f"the run has diverged by step {t}: try --lr below {c.lr:g}")


def error_and_se(f, X, y):
    """The error of outputs f (n, d) on n sequences, and its standard error.

    With the losses l of f, and z of f = 0, on a sequence, the error is R = mean(l) / mean(z), and
    its standard error, to first order (delta method), that of the mean of l - R z, over mean(z).
    """
    target = sts.sts_target(X, y)
    l, z = 0.5 * ((f - target) ** 2).sum(axis=1), 0.5 * (target ** 2).sum(axis=1)       # (n,)
    n, R = len(z), l.mean() / z.mean()
    return R, np.sqrt(((l - R * z) ** 2).sum() / (n * (n - 1))) / z.mean()      # nan if n is 1


def batch(c, t):
    """The sequences X, y of batch t."""
    return sts.sample_sts(stream(c, "batches", t), c.batch, c.T, c.d, c.q, np.float32)


def encodings(run, T, draws, rng):
    """E (draws, T, d_e), drawn with rng; (1, T, d_e) if they are fixed; None for a net."""
    c = run["config"]
    if c.model == "fcn":
        return None
    if "E" in run:
        return run["E"][None, :T]
    law = "onehot" if c.pe == "onehot" else c.law
    return sts.positional_encoding(law, T, c.d_e, rng, draws, np.float32)


def held_out(run, k, draws):
    """The sequences and encodings X, y, E of test k: the same at every call."""
    c, (T, q) = run["config"], run["tests"][k].tolist()
    X, y = sts.sample_sts(stream(c, "tests", k, 0), c.eval_sequences, T, c.d, q, np.float32)
    return X, y, encodings(run, T, draws, stream(c, "tests", k, 1))


def stream(c, purpose, *part):
    """The random generator for a purpose, or for a part of it, such as step t; independent."""
    key = (("weights", "encodings", "batches", "tests").index(purpose), *part)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(c.seed, spawn_key=key)))


def start(c):
    """A new run: its initial weights, and room for what will be measured."""
    tests = [(c.T, c.q)]
    if c.model == "attention":              # a net has no test but the task that it learns
        tests += [(T, c.q) for T in c.T_test] + [(c.T, q) for q in c.q_test]
    if wrong := [f"{T = }, {q = }" for T, q in tests if q > T]:
        raise ValueError(f"--T, --q, --T-test, --q-test need q <= T in each test, got {wrong[0]}")
    run = {"config": c, "t": 0, "tests": np.array(list(dict.fromkeys(tests))),      # each once
           "eval_step": np.unique(np.linspace(0, c.steps, c.evaluations + 1).astype(int))}
    evals, k = len(run["eval_step"]), len(run["tests"])
    room = {"loss": c.steps, "training": evals, "error": (evals, k), "se": (evals, k)}
    rng, width = stream(c, "weights"), c.d + c.d_e
    if c.model == "fcn":
        run |= by_name(fcn.init_fcn(rng, [c.T * c.d + c.T, *c.hidden, c.d], np.float32))
    else:
        room |= {"on_selected": evals, "cos_W": evals, "cos_V": evals}
        run["W"] = c.init_std * rng.standard_normal((width, width), np.float32)
        run["V"] = c.init_std * rng.standard_normal((c.d, width), np.float32)
        if c.pe != "stochastic":
            run["E"] = encodings(run, run["tests"][:, 0].max(), 1, stream(c, "encodings"))[0]
    return run | {name: np.full(shape, np.nan) for name, shape in room.items()}


# Settings, printing, files and the command line.  A reader of the paper can stop here.

RUNS = Path(__file__).resolve().parent / "runs"


def gd_lr(c):
    """The default rate of gradient descent, which is stable below 2 / curvature; of nets, as tried.

    Derived for one-hot encodings and the sum.  V's curvature ends near (1 + sqrt(d/n))^2/q, on n
    sequences, and that of W's token-PE block at (q - 1)(q + d)/T, after a short peak, alpha^2 q^2/T
    (1 + (d + 1)/T) with alpha up to (1 + sqrt(T/q))/2.  No run of ours diverged at twice its rate.
    """
    if c.model == "fcn":
        return min(0.02, 4 / max(1, sum(c.hidden)))
    end = max((1 + math.sqrt(c.d / c.batch)) ** 2 / c.q, (c.q - 1) * (c.q + c.d) / c.T)
    peak = (1 + math.sqrt(c.T / c.q)) ** 2 / 4 * c.q ** 2 / c.T * (1 + (c.d + 1) / c.T)
    return min(2.0, 1.7 / end, 4 / peak)


OPTIMIZERS = {      # name: title, the function of a step, its default lr
    "gd": ("gradient descent", gradient_descent, gd_lr), "adam": ("Adam", adam, lambda c: 0.01)}

READERS = {         # the runs that read a setting
    "all": lambda c: True,
    "nets": lambda c: c.model == "fcn",
    "attention": lambda c: c.model == "attention",
    "encodings that are drawn": lambda c: c.model == "attention" and c.pe != "onehot",
    "stochastic encodings": lambda c: c.model == "attention" and c.pe == "stochastic"}
ORTHOGONAL = {"onehot", "orthonormal"}      # there are at most d_e such encodings

SETTINGS = {    # name: default (of choices the first; or a function of those above), READERS, help
    "T": (50, "all", "sequence length"),
    "d": (5, "all", "dimension of a token"),
    "q": (3, "all", "number of selected tokens"),
    "model": (("attention", "fcn"), "all", "one layer of attention, or a ReLU net"),
    "pe": (("stochastic", "fixed", "onehot"), "attention", "encodings; onehot: coordinate vectors"),
    "law": (sts.LAWS, "encodings that are drawn", "how encodings are drawn"),
    "d_e": (lambda c: 2 * c.T if {c.pe, c.law} & ORTHOGONAL else 170, "attention",
            "dimension of an encoding (2 T; 170 for random signs)"),
    "attend_to_query": ((False, True), "attention", "the full model: z_query is one more key"),
    "query": (("sum", "mean"), "attention", "how z_query adds encodings up"),
    "init_std": (0.0, "attention", "standard deviation of W and V at the start"),
    "hidden": ([105], "nets", "widths of a net's hidden layers"),
    "batch": (1024, "all", "number of sequences in the batch"),
    "fresh": ((False, True), "all", "draw new sequences at every step, not the same ones"),
    "draws": (1, "stochastic encodings", "draws averaged in a step, Definition 5"),
    "steps": (2000, "all", "number of updates"),
    "optimizer": (OPTIMIZERS, "all", "the rule of a step"),
    "lr": (lambda c: OPTIMIZERS[c.optimizer][2](c), "all", "learning rate, at most 2 (Adam: 0.01)"),
    "schedule": (("constant", "cosine"), "all", "of lr; a cosine falls to 0"),
    "seed": (0, "all", "seed of everything that is drawn at random"),
    "evaluations": (10, "all", "number of evaluations after the first one"),
    "eval_sequences": (lambda c: 10_000 if c.model == "fcn" else 128, "all",
                       "number of sequences in a test (128; of a net 10,000)"),
    "eval_draws": (1, "stochastic encodings", "draws averaged in a test"),
    "T_test": (lambda c: [T for T in (3 * c.T // 2, 2 * c.T)
                          if T <= c.d_e or not {c.pe, c.law} & ORTHOGONAL],
               "attention", "other lengths to test (3/2 T and 2 T)"),
    "q_test": (lambda c: [q for q in (2, 3, 4, 5, 8) if q <= c.T],
               "attention", "other subset sizes to test (2, 3, 4, 5 and 8)")}

KINDS = {       # what a setting must be, by the type of its default: in words, and as a test
    int: ("a whole number, 1 to 10^18, or the default", lambda x: type(x) is int and 0 < x <= 1e18),
    float: ("finite and above 0", lambda x: type(x) in (int, float) and 0 < x < math.inf),
    list: ("a list of whole numbers above 0",
           lambda x: type(x) is list and {*map(type, x)} <= {int} and min(x, default=1) > 0)}


class Settings(SimpleNamespace):
    """The settings c of a run.  Raises ValueError for one that is wrong, or that nothing reads."""

    def __init__(self, **given):
        if unknown := given.keys() - SETTINGS.keys():
            raise ValueError(f"there is no setting {', '.join(unknown)}")
        for name, (default, readers, _) in SETTINGS.items():
            flag = "--" + name.replace("_", "-")
            default = default(self) if callable(default) else default
            choices = [*default] if type(default) in (tuple, dict) else []
            wanted, fits = KINDS.get(type(default)) or (f"one of {choices}", choices.__contains__)
            default = choices[0] if choices else default
            value = np.asarray(given.get(name, default)).tolist()   # no float64: it spreads to W
            value = default if value == default else value          # 200 for 200.0
            if value not in (default, []) and not READERS[readers](self):
                raise ValueError(f"{flag} is only for {readers}, got {value}")
            if value != default and not fits(value):
                raise ValueError(f"{flag} must be {wanted}, got {value!r}")
            setattr(self, name, value)


def progress(run):
    """Print the last evaluation; the first one is printed with titles."""
    c, i = run["config"], run["eval_step"].tolist().index(run["t"])
    row = {"training": run["training"][i]}
    row |= {f"T={T}": error for (T, q), error in zip(run["tests"], run["error"][i]) if q == c.q}
    if c.model == "attention":
        row["selected"] = run["on_selected"][i]
    if i == 0:
        print(f"{c.steps} steps of {OPTIMIZERS[c.optimizer][0]}, lr {c.lr:g}; f = 0 has 100%.")
        if done := np.isfinite(run["loss"]).sum():      # t is that of an earlier evaluation
            print(f"The run in the file is unfinished: it goes on from step {done}.")
        print(f"{'step':>8}", *[f"{title:>9}" for title in row], sep="")
    print(f"{run['t']:8}", *[f"{value:9.1%}" for value in row.values()], sep="", flush=True)


def summary(run):
    """Print the last errors, and whether the run has learnt."""
    c, error, training = run["config"], run["error"][-1, 0], run["training"][-1]
    print(f"\n{'':16}   error  std. err.")
    for (T, q), *error_se in zip(run["tests"], run["error"][-1], run["se"][-1]):
        print("T = {:4}, q = {:2}  {:7.2%}     {:6.2%}".format(T, q, *error_se))
    if c.model == "fcn" and (m := len(run["bias_1"])) < c.T * c.d:
        bound = fcn.width_lower_bound(m, c.T, c.d, c.q) / (c.d / (2 * c.q))
        print(f"No net with a first layer of width {m} has an expected error below {bound:.2%}.")
    if not c.fresh and error > max(3 * training, 0.1):
        print(f"The run has memorized its {c.batch} sequences: --fresh draws new ones.")
    elif not error < 0.95:                                              # also if it is nan
        print("The run has learnt nothing so far: it does no better than the zero predictor.")


def save(run, path):
    """Write a run to its file, which is replaced as a whole; ValueError if load would refuse it."""
    arrays = run | {"config": json.dumps(vars(run["config"]))}
    if lost := [name for name, value in arrays.items() if np.asarray(value).dtype == object]:
        raise ValueError(f"a file holds numbers and text only, got other entries {lost} in a run")
    half = Path(f"{path}.{os.getpid()}.npz")
    half.parent.mkdir(parents=True, exist_ok=True)
    try:
        np.savez(half, **arrays)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)            # if writing has failed


def load(path):
    """Read a run from its file.  Raises OSError, or ValueError if the file holds no run."""
    with open(path, "rb") as file:
        try:
            run = dict(np.load(file))
            c = Settings(**json.loads(str(run["config"])))
            run |= {name: run[name] for name in start(c)}       # KeyError if a part is missing
        except Exception:                       # of many kinds: a file may hold anything
            raise ValueError(f"{path} holds no run of today's program: name another file") from None
    return run | {"config": c, "t": int(run["t"])}


def main():
    """Train as the command line says; the run is kept in its file."""
    parser = argparse.ArgumentParser(usage="%(prog)s [--FLAG VALUE ...]; --help lists the flags",
                                     allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file of the run (in runs, named after the flags)")
    groups = {readers: parser.add_argument_group(f"for {readers}") for readers in READERS}
    for name, value in vars(Settings()).items():
        default, readers, text = SETTINGS[name]
        how = {bool: {"action": "store_true"}, str: {"choices": default},
               list: {"type": int, "nargs": "*"}}.get(type(value), {"type": type(value)})
        text += f" ({value})" * (value is not False and not callable(default))
        spellings = sorted({"--" + name, "--" + name.replace("_", "-")})
        groups[readers].add_argument(*spellings, help=text, **how)
    given, name = vars(parser.parse_args()), "_".join(sys.argv[1:]).replace("--", "")
    path = given.pop("out", RUNS / f"{name[:200] or 'default'}.npz")
    try:
        summary(train(progress, path, **given))
        print(f"\nThe run is in {path}")
    except KeyboardInterrupt:
        parser.exit(1, "\ninterrupted; the same command goes on from what the file holds\n")
    except BrokenPipeError:                     # `| head` has stopped reading
        os._exit(1)
    except (ArithmeticError, ValueError, MemoryError, OSError) as problem:
        parser.error(problem)


if __name__ == "__main__":
    main()
