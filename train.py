"""Train the attention model of sts.py, or a fully-connected net of fcn.py, by gradient descent.

    python train.py --pe stochastic                       attention with redrawn encodings
    python train.py --model fcn --hidden 100 50           a net with two hidden layers
    run = train.train(train.progress, pe="fixed", T=20)   from Python, showing progress

Throughout this file we have:

    c              the settings of a run: c.T, c.lr, ..., see command_line
    t              the number of updates so far
    X, y, E        the tokens, the selected positions and the positional encodings, as in sts.py
    L              the loss on a batch
    run            a dict that holds everything about a run (weights in float32):

    config         c; in the file it is JSON text
    W, V           the weights of attention; a net has weight_1, bias_1, weight_2, ...
    m_W, v_W, ...  with Adam: the running means of the gradients and of their squares
    E              fixed and one-hot encodings, up to the longest test          (longest T, d_e)
    t              the number of updates so far
    loss           L before each update                                                   (steps,)
    eval_step      the values of t at which the run is evaluated                              (m,)
    tests          the sequence length and the subset size (T, q) of each test              (k, 2)
    error, se      the error on each test, and its standard error                           (m, k)
    on_selected    the attention on the q selected tokens together, mean over the first test  (m,)
    cos_W, cos_V   the cosine similarity of W and W*, and of V and V*                         (m,)
    code           a hash of the program that made the run

The error is the loss on new sequences.  With stochastic encodings the model is a mean over draws of
E (Definition 5).  A test takes `eval_draws` draws for it, and a training step takes `draws`.
A run's file is a .npz with the same names.
"""

import os

for library in "OPENBLAS", "MKL", "OMP":    # before NumPy loads: threads slow small matrices down
    os.environ[f"{library}_NUM_THREADS"] = "1"

import argparse
import ast
import contextlib
import hashlib
import json
import math
import re
import signal
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

import fcn
import sts

# Gradient descent


def descend(run, report=lambda run: None):
    """Train a run from where it is to its last step; report(run) is called at each evaluation.

    Raises FloatingPointError if the run diverges.
    """
    c = run["config"]
    X, y = batch(c, 0)
    for t in range(run["t"], c.steps):
        if c.fresh:                                         # new sequences, not one full batch
            X, y = batch(c, t)
        E = encodings(run, c.T, c.draws, "encodings", t)    # stochastic encodings are drawn anew
        L, grads = loss_and_grads(run, X, y, E)
        check(run, t, L)
        for name, grad in grads.items():
            step = OPTIMIZERS[c.optimizer](run, name, grad, t + 1)
            run[name] = run[name] - learning_rate(c, t) * step
        run["loss"][t], run["t"] = L, t + 1
        if t + 1 in run["eval_step"]:
            evaluate(run)
            report(run)
    return run


def train(report=lambda run: None, **settings):
    """Train a model with these settings, see command_line, and return the run.

    report(run) is called at each evaluation: report=train.progress prints a line.
    """
    run = start(configuration(**settings))
    report(run)
    return descend(run, report)


def learning_rate(c, t):
    """The learning rate of the update after t updates."""
    return c.lr * (1 + math.cos(math.pi * t / c.steps)) / 2 if c.schedule == "cosine" else c.lr


def gd(run, name, grad, t):
    """What gradient descent subtracts from a weight, over the learning rate."""
    return grad


def adam(run, name, grad, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """What Adam subtracts at update t = 1, 2, ..., over the learning rate (Kingma and Ba, 2015)."""
    m = run[f"m_{name}"] = beta1 * run.get(f"m_{name}", 0) + (1 - beta1) * grad
    v = run[f"v_{name}"] = beta2 * run.get(f"v_{name}", 0) + (1 - beta2) * grad ** 2
    return m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)


OPTIMIZERS = {"gd": gd, "adam": adam}       # their state is in arrays of the run, named as m_W is


def check(run, t, L):
    """Raise FloatingPointError if a loss L after t updates is far above the first, or is nan."""
    c = run["config"]
    limit = 100 * max(c.d / (2 * c.q), run["loss"][0]) if t else math.inf
    if not L < limit:
        raise FloatingPointError(f"the run diverges, with a loss of {L:.2g} at step {t}: try a "
                                 f"lower lr than {c.lr:g}")


def evaluate(run):
    """Measure the error on each test, the attention, and how close the weights are to W*, V*.

    Each test has its own sequences and draws of encodings, the same at every evaluation.
    """
    c, i = run["config"], np.searchsorted(run["eval_step"], run["t"])
    for k, (T, q) in enumerate(run["tests"].tolist()):
        X, y = sts.sample_sts(stream(c, "tests", k, 0), c.eval_sequences, T, c.d, q, np.float32)
        E = encodings(run, T, c.eval_draws, "tests", k, 1)
        losses = 0.5 * ((output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum(axis=1)
        check(run, run["t"], losses.mean())
        run["error"][i, k] = losses.mean()
        run["se"][i, k] = losses.std() / math.sqrt(len(losses))
        if k == 0 and c.model == "attention":
            P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)    # (draws, n, T)
            run["on_selected"][i] = P[:, np.arange(len(y))[:, None], y].sum(axis=2).mean()
    if c.model == "attention":
        W_star, V_star = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
        run["cos_W"][i] = sts.cosine(run["W"], W_star)
        run["cos_V"][i] = sts.cosine(run["V"], V_star)


# What a run draws at random.  Each purpose and each step has a random stream of its own.  So runs
# with one seed and one task see the same sequences, and a resumed run continues bit for bit.


def stream(c, purpose, *part):
    """The random generator for one purpose, or for a part of it, such as step t."""
    key = (("weights", "encodings", "batches", "tests").index(purpose), *part)   # add at the end
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(c.seed, spawn_key=key)))


def batch(c, t):
    """The sequences X, y of batch t."""
    return sts.sample_sts(stream(c, "batches", t), c.batch, c.T, c.d, c.q, np.float32)


def encodings(run, T, draws, *purpose):
    """E (draws, T, d_e), drawn for this purpose; (1, T, d_e) if they are fixed; None for a net."""
    c = run["config"]
    if c.model == "fcn":
        return None
    if "E" in run:
        return run["E"][None, :T]
    return sts.positional_encoding(law(c), T, c.d_e, stream(c, *purpose), draws, np.float32)


def law(c):
    """The distribution of the encodings: its name in sts.LAWS."""
    return "onehot" if c.pe == "onehot" else c.law


def tests(c):
    """The length T and the subset size q of each test; a net has only that of its own task."""
    if c.model == "fcn":
        return [(c.T, c.q)]
    longer = [(T, c.q) for T in c.T_test if T != c.T]
    return [(c.T, c.q), *longer, *[(c.T, q) for q in c.q_test if q != c.q]]


# The two models


def start(c):
    """A new run: its initial weights, room for what will be measured, and a first evaluation."""
    run = {"config": c, "code": code(), "t": 0, "loss": np.full(c.steps, np.nan)}
    run["eval_step"] = np.unique(np.linspace(0, c.steps, c.evaluations + 1).astype(int))
    run["tests"] = np.array(tests(c))
    run["error"], run["se"] = np.full((2, len(run["eval_step"]), len(run["tests"])), np.nan)
    rng, width = stream(c, "weights"), c.d + c.d_e
    if c.model == "fcn":
        run |= by_name(fcn.init_fcn(rng, [c.T * c.d + c.T, *c.hidden, c.d], np.float32))
    else:
        run["W"] = c.init_std * rng.standard_normal((width, width), np.float32)
        run["V"] = c.init_std * rng.standard_normal((c.d, width), np.float32)
        for name in "on_selected", "cos_W", "cos_V":
            run[name] = np.full(len(run["eval_step"]), np.nan)
        if c.pe != "stochastic":
            run["E"] = encodings(run, run["tests"][:, 0].max(), 1, "encodings")[0]
    evaluate(run)
    return run


def by_name(layers):
    """Layers as fcn.py has them, [(weight, bias), ...], as a dict of weight_1, bias_1, ..."""
    return {f"{kind}_{i}": array for i, layer in enumerate(layers, 1)
            for kind, array in zip(("weight", "bias"), layer)}


def layers(run):
    """The layers of a net as fcn.py has them, [(weight_1, bias_1), ...]."""
    count = len(run["config"].hidden) + 1
    return [(run[f"weight_{i}"], run[f"bias_{i}"]) for i in range(1, count + 1)]


def output(run, X, y, E):
    """The output f (n, d) of the model; attention averages it over the draws E (K, T, d_e)."""
    c = run["config"]
    if c.model == "fcn":
        return fcn.forward(layers(run), fcn.encode(X, y))[0]
    return sum(sts.forward(run["W"], run["V"], X, y, E_k, c.attend_to_query, c.query)[0]
               for E_k in E) / len(E)


def loss_and_grads(run, X, y, E):
    """The loss on a batch, and its gradients by the names of the weights."""
    c = run["config"]
    if c.model == "fcn":
        L, grads = fcn.loss_and_grads(layers(run), X, y)
        return L, by_name(grads)
    L, dW, dV = sts.loss_and_grads(run["W"], run["V"], X, y, E, c.attend_to_query, c.query)
    return L, {"W": dW, "V": dV}


# Settings


def number(kind, least=None):
    """The argparse type of finite ints or floats above 0, or of at least `least`."""
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if 0 < value < math.inf or value == least:
            return value
        raise argparse.ArgumentTypeError(
            f"need a {'whole' if kind is int else 'finite'} number "
            f"{'above 0' if least is None else f'of at least {least}'}, got {text!r}")
    return {"type": parse, "metavar": "N" if kind is int else "X"}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, for flags and for settings from Python alike."""

    def error(self, message):
        raise ValueError(message.removeprefix("argument "))


def command_line():
    """The parser.  Each setting has a line here, and is called the same in Python, with _ for -."""
    switch, whole, real = {"action": "store_true"}, number(int), number(float)
    several = whole | {"nargs": "*"}                        # lengths or sizes; none is allowed
    laws, optimizers = [law for law in sts.LAWS if law != "onehot"], [*OPTIMIZERS]
    settings = {
        "task": [
            ("T", 200, whole, "sequence length"),
            ("d", 5, whole, "dimension of a token"),
            ("q", 3, whole, "number of selected tokens"),
            ("quick", False, switch, "a task that trains in seconds: " + " ".join(QUICK)),
        ],
        "model": [
            ("model", "attention", ["attention", "fcn"], "one layer of attention, or a ReLU net"),
            ("pe", "stochastic", ["stochastic", "fixed", "onehot"],
             "positional encodings: redrawn at every step, drawn once, or one-hot"),
            ("law", "rademacher", laws,
             "distribution of stochastic and fixed encodings; rademacher: random signs"),
            ("d_e", None, whole, "dimension of an encoding (170, or what one-hot and orthonormal "
             "encodings need for length 2 T)"),
            ("attend_to_query", False, switch, "the full model: z_query is one more key"),
            ("query", "sum", ["sum", "mean"], "z_query is that of the selected encodings"),
            ("init_std", 0.0, number(float, 0), "standard deviation of W and V at the start"),
            ("hidden", None, whole | {"nargs": "+"},
             "widths of a net's hidden layers (one layer, d + d_e)"),
        ],
        "training": [
            ("batch", 256, whole, "number of sequences in the batch"),
            ("fresh", False, switch, "draw new sequences at every step, not the same ones"),
            ("draws", 1, whole, "draws of stochastic encodings averaged in a training step"),
            ("steps", 5000, whole, "number of updates"),
            ("optimizer", "gd", optimizers, "gradient descent, or Adam"),
            ("lr", None, real, "learning rate (4; 2 with --quick, 0.02 for a net, 0.01 for Adam)"),
            ("schedule", "constant", ["constant", "cosine"],
             "the learning rate is constant, or falls to 0 as a cosine"),
            ("seed", 0, number(int, 0), "seed of everything that is drawn at random"),
        ],
        "evaluation": [
            ("evaluations", 10, whole, "number of evaluations after the first one"),
            ("eval_sequences", 128, whole, "number of sequences in a test"),
            ("eval_draws", 16, whole, "draws of stochastic encodings averaged in a test"),
            ("T_test", None, several, "other sequence lengths to test (5/4, 3/2, 7/4 and 2 T)"),
            ("q_test", None, several, "other subset sizes to test (2, 3, 4, 5 and 8)"),
        ],
    }
    parser = Parser(prog="train.py", usage="python train.py [--FLAG VALUE ...]",
                    description=__doc__.split("\n\nThroughout")[0], allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    for title, lines in settings.items():
        group = parser.add_argument_group(title)
        for name, default, kind, text in lines:
            how = {"choices": kind} if isinstance(kind, list) else kind
            shown = "" if default is None or default is False else " (%(default)s)"
            group.add_argument(flag(name), default=default, help=text + shown, **how)
    return parser


def flag(name):
    """The flag of a setting: --d-e for d_e."""
    return "--" + name.replace("_", "-")


QUICK = ["--T=50", "--d-e=100", "--steps=2000", "--evaluations=20"]


def settings(parser, flags):
    """The settings c of these flags, with defaults for the others.  Raises ValueError."""
    c = parser.parse_args(QUICK * ("--quick" in flags) + flags)
    least = sts.LAWS[law(c)][1]                 # an encoding of T positions has d_e >= least(T)
    if c.d_e is None:
        c.d_e = least(2 * c.T) if least(2 * c.T) > least(1) else 170
    if c.lr is None:
        c.lr = {"attention": 2.0 if c.quick else 4.0, "fcn": 0.02}[c.model]
        c.lr = 0.01 if c.optimizer == "adam" else c.lr
    if c.hidden is None:
        c.hidden = [c.d + c.d_e]
    if c.T_test is None:
        c.T_test = sorted({c.T * k // 4 for k in (5, 6, 7, 8) if least(c.T * k // 4) <= c.d_e})
    if c.q_test is None:
        c.q_test = [q for q in (2, 3, 4, 5, 8) if q <= c.T]
    for T, q in tests(c):
        if q > T:
            raise ValueError(f"--q, --q-test: need at most the length, got {q} for length {T}")
    del c.quick
    return c


def configuration(**given):
    """The settings c for settings from Python, which are read like flags.  Raises ValueError."""
    parser, flags = command_line(), []
    for name, value in given.items():
        if name in ("hidden", "T_test", "q_test"):
            if np.ndim(value) != 1:
                raise ValueError(f"{flag(name)}: need a list, got {value!r}")
            flags += [flag(name), *map(str, value)]
        elif parser.get_default(name) is False:         # a switch
            if value not in (False, True):
                raise ValueError(f"{flag(name)}: need True or False, got {value!r}")
            flags += [flag(name)] * bool(value)
        else:
            flags.append(f"{flag(name)}={value}")
    return settings(parser, flags)


# The file of a run

HERE = Path(__file__).resolve().parent
RUNS = HERE / "runs"


def code():
    """A hash of the program that a run depends on, without its comments and docstrings."""
    digest = hashlib.sha256()
    for name in "sts.py", "fcn.py", "train.py":
        tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = None
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path):
    """An open file that becomes `path` at the end, as a whole or not at all."""
    temporary = Path(f"{path}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(run, path):
    """Write a run to its file."""
    with replacing(path) as file:
        np.savez(file, **run | {"config": json.dumps(vars(run["config"]))})


def load(path, c=None):
    """Read a run from its file.  If c is given, it must have these settings, and be of this code.

    Raises ValueError if the file holds no run, or another one.
    """
    try:
        with np.load(path) as file:
            run = dict(file)
        config = argparse.Namespace(**json.loads(str(run["config"])))
        run |= {"config": config, "code": str(run["code"]), "t": int(run["t"])}
    except Exception:       # NumPy raises many kinds, depending on what the file holds instead
        raise ValueError(f"{path} does not hold a run") from None
    if c:
        old = vars(config)
        differences = [f"{name} {old.get(name)}" for name, value in vars(c).items()
                       if old.get(name) != value]
        if run["code"] != code():
            differences.append("other code in sts.py, fcn.py or train.py")
        if differences:
            raise ValueError(f"{path} holds a run with {', '.join(differences)}")
    return run


# The command line


def progress(run, titles=False):
    """Print the last evaluation as a line; the loss is the mean since the evaluation before."""
    c, t, i = run["config"], run["t"], np.searchsorted(run["eval_step"], run["t"])
    columns = {f"T={T}": error for (T, q), error in zip(tests(c), run["error"][i]) if q == c.q}
    if c.model == "attention":
        columns["selected"] = run["on_selected"][i]
    if t == 0 or titles:
        print(f"The zero predictor, which always outputs 0, has the error d/(2q) = "
              f"{c.d / (2 * c.q):.4f}.\n\n{'step':>8}{'loss':>9}"
              + "".join(f"{title:>9}" for title in columns))
    loss = f"{run['loss'][run['eval_step'][i - 1]:t].mean():.4f}" if t else ""
    print(f"{t:8}{loss:>9}" + "".join(f"{value:9.4f}" for value in columns.values()), flush=True)


def summary(run):
    """Print the last losses and errors, also as shares of d/(2q), the zero predictor's error."""
    c, last = run["config"], run["loss"][run["eval_step"][-2]:].mean()
    print(f"\n{'':16}  error  std. err.  of d/(2q)")
    for (T, q), error, se in zip(tests(c), run["error"][-1], run["se"][-1]):
        print(f"T = {T:4}, q = {q:2}  {error:6.4f}     {se:6.4f}  {error / (c.d / (2 * q)):8.1%}")
    print(f"training loss   {last:7.4f}             {last / (c.d / (2 * c.q)):8.1%}")
    if c.model == "fcn":
        bound = fcn.width_lower_bound(c.hidden[0], c.T, c.d, c.q)
        print(f"No net with a first layer of width {c.hidden[0]} has an expected error below "
              f"{bound:.4f}.")


@np.errstate(over="ignore", invalid="ignore")       # a diverging run says so once
def main():
    """Do what the command line says."""
    parser, begin = command_line(), time.time()
    group = parser.add_argument_group("file")
    group.add_argument("--out", type=Path, metavar="RUN.npz",
                       help="file of the run (in the folder runs, named after the flags)")
    group.add_argument("--resume", action="store_true",
                       help="continue the run in this file (give the same flags)")

    def report(run):
        save(run, path)
        progress(run, titles=run["t"] == first)

    try:
        c, flags = settings(parser, sys.argv[1:]), [f for f in sys.argv[1:] if f != "--resume"]
        out, resume = vars(c).pop("out"), vars(c).pop("resume")
        name = re.sub(r"[^\w.]+", "-", " ".join(flags)).strip("-") or "default"
        path = out or RUNS / f"{name}.npz"
        kept = load(path, c if resume else None) if path.exists() else None
        print(textwrap.fill(" ".join(["python train.py", *flags]), 80), flush=True)
        run = kept if resume and kept else start(c)
        batch(c, 0)                                 # fails before anything is written, if too large
        path.parent.mkdir(parents=True, exist_ok=True)
        first = run["t"]
        report(run)
        descend(run, report)
        summary(run)
        print(f"\n{c.steps} steps in {time.time() - begin:.0f} s, saved in {os.path.relpath(path)}",
              flush=True)
    except KeyboardInterrupt:
        parser.exit(1, "\ntrain.py: interrupted; the same command with --resume continues it\n")
    except FloatingPointError as problem:
        parser.exit(1, f"train.py: error: {problem}\n")
    except (ValueError, MemoryError, OSError) as problem:
        parser.exit(2, f"train.py: error: {problem}\n")


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):                  # as in: python train.py | head
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
