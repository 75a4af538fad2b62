"""Train the attention model of sts.py, or a fully-connected net of fcn.py, by gradient descent.

    python train.py --pe stochastic                       attention with redrawn encodings
    python train.py --model fcn --hidden 100 50           a net with two hidden layers
    run = train.train(pe="fixed", T=20, d=3, q=2)         the same from Python

Throughout this file we have:

    c              the settings of a run: c.T, c.lr, ..., see Settings
    t              the number of updates so far; the run keeps it too
    X, y, E        the tokens, the selected positions and the positional encodings, as in sts.py
    L              the loss on a batch
    run            a dict that holds everything about a run (weights in float32); its file is a .npz
                   with the same names:

    config         c; in the file it is JSON text
    W, V           the weights of attention; a net has weight_1, bias_1, weight_2, ...
    m_W, v_W, ...  with Adam: the running means of the gradients and of their squares
    E              fixed and one-hot encodings, up to the longest test          (longest T, d_e)
    loss           L before each update                                                   (steps,)
    eval_step      the values of t at which the run is evaluated                              (m,)
    tests          the sequence length and the subset size (T, q) of each test              (k, 2)
    error, se      the error on each test, and its standard error                           (m, k)
    cos_W, cos_V   the cosine similarity of W and W*, and of V and V*                         (m,)
    code           a hash of the program that made the run

The error is the loss on new sequences.  With stochastic encodings the model is an expectation over
E (Definition 5), which a test estimates from `eval_draws` draws, and a training step from `draws`.
For q >= 3 one draw of random signs gives the selected tokens unequal logits, so the loss on it ends
above the error.
"""

import os

if __name__ == "__main__":      # before NumPy loads: the matrices are small, so threads cost time
    for library in "OPENBLAS", "MKL", "OMP":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import argparse
import hashlib
import inspect
import json
import math
import re
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

import fcn
import sts

# Gradient descent


def descend(run, report=lambda run: None):
    """Train a run from where it is to its last step; report(run) is called at each evaluation.

    Raises FloatingPointError if a loss or an error is not finite.
    """
    c = run["config"]
    X, y = batch(c, 0)
    for t in range(run["t"], c.steps):
        if c.fresh:                                         # new sequences, not one full batch
            X, y = batch(c, t)
        E = encodings(run, c.T, c.draws, "encodings", t)    # stochastic encodings are drawn anew
        L, grads = loss_and_grads(run, X, y, E)
        check_finite(c, t, L)
        for name, grad in grads.items():
            direction = OPTIMIZERS[c.optimizer](run, name, grad, t + 1)
            run[name] = run[name] - learning_rate(c, t) * direction
        run["loss"][t], run["t"] = L, t + 1
        if t + 1 in run["eval_step"]:
            evaluate(run)
            report(run)
    return run


def train(**settings):
    """Train a model with these settings, see Settings, and return the run."""
    return descend(start(configuration(**settings)))


def learning_rate(c, t):
    """The learning rate of the update after t updates."""
    return c.lr * (1 + math.cos(math.pi * t / c.steps)) / 2 if c.schedule == "cosine" else c.lr


def gd(run, name, grad, t):
    """The direction of gradient descent."""
    return grad


def adam(run, name, grad, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """The direction of Adam at update t = 1, 2, ... (Kingma and Ba, 2015)."""
    m = run[f"m_{name}"] = beta1 * run.get(f"m_{name}", 0) + (1 - beta1) * grad
    v = run[f"v_{name}"] = beta2 * run.get(f"v_{name}", 0) + (1 - beta2) * grad ** 2
    return m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)


OPTIMIZERS = {"gd": gd, "adam": adam}


def check_finite(c, t, values):
    """Raise FloatingPointError unless the losses after t updates are finite."""
    if not np.isfinite(values).all():
        raise FloatingPointError(f"loss not finite at step {t}: try a lower lr than {c.lr:g}")


def evaluate(run):
    """Measure the error on each test, and how close the weights are to the ground truth.

    Each test has its own sequences and draws of encodings, the same at every evaluation.
    """
    c, i = run["config"], np.searchsorted(run["eval_step"], run["t"])
    for k, (T, q) in enumerate(run["tests"].tolist()):
        X, y = sts.sample_sts(stream(c, "tests", k, 0), c.eval_sequences, T, c.d, q, np.float32)
        E = encodings(run, T, c.eval_draws, "tests", k, 1)
        losses = 0.5 * ((output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum(axis=1)
        check_finite(c, run["t"], losses)
        run["error"][i, k] = losses.mean()
        run["se"][i, k] = losses.std() / math.sqrt(len(losses))
    if c.model == "attention":
        W_star, V_star = sts.ground_truth(c.d, c.pe_dim, c.T if c.pe == "onehot" else None)
        run["cos_W"][i] = sts.cosine(run["W"], W_star)
        run["cos_V"][i] = sts.cosine(run["V"], V_star)


# What a run draws at random.  Each purpose and each step has a random stream of its own.  So runs
# with one seed and one task see the same sequences, and a resumed run continues bit for bit.


def stream(c, purpose, *part):
    """The random generator for one purpose, or for a part of it, such as step t."""
    key = (("weights", "encodings", "batches", "tests").index(purpose), *part)
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
    return sts.positional_encoding(law(c), T, c.pe_dim, stream(c, *purpose), draws, np.float32)


def law(c):
    """The distribution of the encodings: its name in sts.LAWS."""
    return "onehot" if c.pe == "onehot" else c.pe_family


def tests(c):
    """The length T and the subset size q of each test; the first test is the trained task."""
    longer = [(T, c.q) for T in c.T_test or [] if T != c.T]
    return [(c.T, c.q), *longer, *[(c.T, q) for q in c.q_test or [] if q != c.q]]


# The two models


def start(c):
    """A new run: its initial weights, room for what will be measured, and a first evaluation."""
    run = {"config": c, "code": code(), "t": 0, "loss": np.full(c.steps, np.nan)}
    run["eval_step"] = np.unique(np.linspace(0, c.steps, c.evaluations + 1).astype(int))
    run["tests"] = np.array(tests(c))
    run["error"], run["se"] = np.full((2, len(run["eval_step"]), len(run["tests"])), np.nan)
    rng, width = stream(c, "weights"), c.d + c.pe_dim
    if c.model == "fcn":
        run |= by_name(fcn.init_fcn(rng, [c.T * c.d + c.T, *c.hidden, c.d], np.float32))
    else:
        run["W"] = c.init_std * rng.standard_normal((width, width), np.float32)
        run["V"] = c.init_std * rng.standard_normal((c.d, width), np.float32)
        run["cos_W"], run["cos_V"] = np.full((2, len(run["eval_step"])), np.nan)
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


@dataclass
class Settings:
    """The settings of a run.  The command line has a flag for each; the comments are its help."""

    # task
    T: int = 200                    # sequence length
    d: int = 5                      # dimension of a token
    q: int = 3                      # number of selected tokens
    # model
    model: str = "attention"        # one-layer attention, or a fully-connected ReLU net
    pe: str = "stochastic"          # positional encodings: redrawn at every step, fixed, or one-hot
    pe_family: str = "rademacher"   # distribution of stochastic and fixed encodings
    pe_dim: int = None              # dimension d_e (170; 2 T for onehot and orthonormal)
    attend_to_query: bool = False   # the full model: z_query is one more key
    query: str = "sum"              # z_query holds the sum or the mean of the selected encodings
    init_std: float = 0.0           # standard deviation of W and V at the start
    hidden: list[int] = None        # widths of a net's hidden layers (one layer of width d + d_e)
    # training
    batch: int = 256                # number of sequences in the batch
    fresh: bool = False             # draw new sequences at every step, not the same ones
    draws: int = 1                  # draws of stochastic encodings that a training step averages
    steps: int = 10000              # number of updates
    optimizer: str = "gd"           # gradient descent, or Adam
    lr: float = None                # learning rate (2; for a net 0.02; for Adam 0.01)
    schedule: str = "constant"      # the learning rate is constant, or falls to 0 as a cosine
    seed: int = 0                   # seed of everything that is drawn at random
    # evaluation
    evaluations: int = 20           # number of evaluations after the first one
    eval_sequences: int = 128       # number of sequences in a test
    eval_draws: int = 16            # draws of stochastic encodings that a test averages
    T_test: list[int] = None        # other sequence lengths to test (5/4, 3/2, 7/4 and 2 times T)
    q_test: list[int] = None        # other subset sizes to test (2, 3, 4, 5 and 8)

    def __post_init__(self):
        """Check the given values, and fill in the defaults that depend on others."""
        for field in fields(self):                                  # the given values
            if getattr(self, field.name) is not None:
                value = checked(field.name, field.type, getattr(self, field.name))
                setattr(self, field.name, value)
        attention, least = self.model == "attention", sts.LAWS[law(self)][1]    # d_e >= least(T)
        if self.pe_dim is None:                                     # defaults
            self.pe_dim = least(2 * self.T) if least(2 * self.T) > 1 else 170
        if self.lr is None:
            self.lr = 0.01 if self.optimizer == "adam" else 2.0 if attention else 0.02
        if self.T_test is None and attention:
            lengths = sorted({self.T * k // 4 for k in (5, 6, 7, 8)} - {self.T})
            self.T_test = [T for T in lengths if least(T) <= self.pe_dim]
        if self.q_test is None and attention:
            self.q_test = [q for q in (2, 3, 4, 5, 8) if self.q != q <= self.T]
        for name, need in idle(self).items():                       # what does not fit together
            if getattr(self, name) != getattr(Settings, name):
                raise ValueError(f"{name} needs {need}: leave it out, got {getattr(self, name)}")
        if self.hidden is None and not attention:
            self.hidden = [self.d + self.pe_dim]
        for T, q in tests(self):
            if q > T:
                raise ValueError("q and q_test must be at most T, and q at most T_test: "
                                 f"got q = {q} for T = {T}")
            if attention and self.pe_dim < least(T):
                raise ValueError(f"pe_dim must be at least {least(T)} for {law(self)} encodings "
                                 f"of {T} positions, got {self.pe_dim}")


def idle(c):
    """The settings that have no effect in a run with the settings c, and what they would need."""
    attention = c.model == "attention"
    needs = [("model attention", attention, ["pe", "pe_family", "attend_to_query", "query",
                                             "init_std", "draws", "eval_draws", "T_test",
                                             "q_test"]),
             ("model fcn", not attention, ["hidden"]),
             ("pe stochastic or fixed", c.pe != "onehot", ["pe_family"]),
             ("pe stochastic", c.pe == "stochastic", ["draws", "eval_draws"])]
    return {name: need for need, fulfilled, names in needs if not fulfilled for name in names}


def choices(name):
    """The words that a setting can be, or None for a number."""
    return {"model": ["attention", "fcn"], "pe": ["stochastic", "fixed", "onehot"],
            "pe_family": [name for name in sts.LAWS if name != "onehot"],
            "query": ["sum", "mean"], "optimizer": list(OPTIMIZERS),
            "schedule": ["constant", "cosine"]}.get(name)


def checked(name, kind, value):
    """A setting, which may come from NumPy or be a flag's text, as plain Python; or ValueError."""
    words = [False, True] if kind is bool else choices(name)
    if words:
        if value in words:
            return words[words.index(value)]
        raise ValueError(f"{name} must be one of {', '.join(map(str, words))}, got {value!r}")
    numbers, many, zero = np.asarray(value), kind == list[int], name in ("seed", "init_std")
    allowed = "uiU" if numbers.size and kind is not float else "uifU"   # unsigned, int, float, text
    try:
        if numbers.ndim == many and numbers.dtype.kind in allowed:
            numbers = numbers.astype(float if kind is float else int)
            if np.isfinite(numbers).all() and ((numbers > 0).all() or zero and numbers == 0):
                return numbers.tolist()
    except (ValueError, OverflowError):         # a text that is no number
        pass
    what = "numbers" if many else "number"
    raise ValueError(f"{name} must be {'' if many else 'a '}"
                     f"{'finite' if kind is float else 'whole'} {what} "
                     f"{'of at least' if zero else 'above'} 0, got {value!r}")


QUICK = {"T": 20, "d": 3, "q": 2, "pe_dim": 40, "batch": 128, "steps": 3000}


def configuration(quick=False, **given):
    """The given settings, with defaults for the others; quick is a small task."""
    return Settings(**(QUICK if quick else {}) | given)


# The file of a run

RUNS = Path(__file__).resolve().parent / "runs"


def code():
    """A hash of the program that a run depends on."""
    files = [Path(__file__).parent / name for name in ("sts.py", "fcn.py", "train.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def save(run, path):
    """Write a run to a file, which is replaced as a whole or not at all."""
    temporary = f"{path}.{os.getpid()}.npz"
    try:
        np.savez(temporary, **run | {"config": json.dumps(asdict(run["config"]))})
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load(path, c=None, same_code=True):
    """Read a run from its file; if c is given, it must be a run with these settings and this code.

    Raises ValueError if the file holds no run, or another one.
    """
    try:
        with np.load(path) as file:
            run = dict(file)
        config = Settings(**json.loads(str(run["config"])))
        run |= {"config": config, "code": str(run["code"]), "t": int(run["t"])}
    except Exception:       # NumPy raises many kinds, depending on what the file holds instead
        raise ValueError(f"{path} does not hold a run") from None
    if c:
        old, new = asdict(config), asdict(c)
        differences = [f"{name} {old[name]}" for name in new if old[name] != new[name]]
        if same_code and run["code"] != code():
            differences.append("other code in sts.py, fcn.py or train.py")
        if differences:
            raise ValueError(f"{path} holds a run with {', '.join(differences)}")
    return run


# The command line


def command_line():
    """The argparse parser.  Groups, flags and help are read from the source of Settings."""
    parser = argparse.ArgumentParser(
        usage="python train.py [--FLAG VALUE ...]", description=__doc__.split("\n\nThroughout")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        argument_default=argparse.SUPPRESS)
    for line in inspect.getsource(Settings).splitlines():
        if title := re.fullmatch(r"    # (\w+)", line):
            group = parser.add_argument_group(title[1])
        if setting := re.fullmatch(r"    (\w+): (.*) = (.*?) +# (.*)", line):
            name, kind, default, text = setting.groups()
            how = {"action": "store_true"} if kind == "bool" else {
                "choices": choices(name),
                "metavar": None if choices(name) else "X" if kind == "float" else "N",
                "nargs": "+" if kind.startswith("list") else None}
            if default not in ("None", "False"):
                text += f" ({json.loads(default)})"
            group.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
        if line == "    # task":
            group.add_argument("--quick", action="store_true", help="a small task: "
                               + ", ".join(f"{name} {value}" for name, value in QUICK.items()))
    group = parser.add_argument_group("file")
    group.add_argument("--out", type=Path, metavar="RUN.npz", help="file of the run (in the folder "
                       "runs, named after the settings)")
    group.add_argument("--resume", action="store_true",
                       help="continue the run in this file (give the same flags)")
    return parser


def file_name(c, given):
    """A name for the file of a run, after the settings that are given."""
    words = [c.pe if c.model == "attention" else "fcn"]
    words += [name if value is True else f"{name}={value}"
              for name, value in sorted(given.items()) if name not in ("model", "pe")]
    return re.sub(r"[][' ]", "", "-".join(words)) + ".npz"


def progress(run, titles=False):
    """Print the last evaluation as a line; the loss is the mean since the evaluation before."""
    c, t, i = run["config"], run["t"], np.searchsorted(run["eval_step"], run["t"])
    loss = f"{run['loss'][run['eval_step'][i - 1]:t].mean():.4f}" if t else ""
    columns = {f"T={T}": error for (T, q), error in zip(tests(c), run["error"][i]) if q == c.q}
    if c.model == "attention":
        columns |= {"cos W": run["cos_W"][i], "cos V": run["cos_V"][i]}
    if titles:
        print(f"\n{'step':>8}{'loss':>9}" + "".join(f"{title:>9}" for title in columns))
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
    """Do what the command line says.  Until a run is finished, it is kept in NAME.part.npz."""
    parser, begin = command_line(), time.time()
    given = vars(parser.parse_args())
    out, resume = given.pop("out", None), given.pop("resume", False)

    def report(run):
        save(run, part)
        progress(run)

    try:
        c = configuration(**given)
        path = out or RUNS / file_name(c, given)
        part = path.with_suffix(".part.npz")
        if path.exists():
            load(path, c, same_code=False)          # never replaces a different run
        kept = [file for file in (part, path) if resume and file.exists()]
        run = load(kept[0], c) if kept else start(c)
        batch(c, 0)                                 # fails before anything is written, if too large
        path.parent.mkdir(parents=True, exist_ok=True)
        save(run, part)
        shown = {name: value for name, value in asdict(c).items() if name not in idle(c)}
        print(", ".join(f"{name} {value}" for name, value in shown.items()))
        progress(run, titles=True)
        descend(run, report)
        save(run, path)
        part.unlink(missing_ok=True)
        summary(run)
        print(f"\n{c.steps} steps in {time.time() - begin:.0f} s, saved in {os.path.relpath(path)}",
              flush=True)
    except KeyboardInterrupt:
        parser.exit(1, "\ntrain.py: interrupted; the same command with --resume continues it\n")
    except FloatingPointError as problem:
        keeps = f"; {part} keeps the last finite evaluation" if part.exists() else ""
        parser.exit(1, f"train.py: error: {problem}{keeps}\n")
    except (ValueError, MemoryError, OSError) as problem:
        parser.exit(2, f"train.py: error: {problem}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)       # as in: python train.py | head
    main()
