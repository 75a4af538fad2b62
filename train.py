"""Train the attention model of sts.py, or a fully-connected net of fcn.py, by gradient descent.

    python train.py --pe stochastic                       attention with stochastic encodings
    python train.py --model fcn --hidden 25 --T 10 --fresh --optimizer adam --schedule cosine
    run = train.train(train.progress, pe="fixed")         the same in Python

Throughout this file we have:

    c              the settings of a run: c.T, c.lr, ..., see Settings
    X, y, E, L     tokens, selected positions, positional encodings, and the loss, as in sts.py
    run            a dict that holds everything about a run; its file is a .npz with the same names:
    config         c; in the file it is JSON text
    W, V           the weights of attention; a net has weight_1, bias_1, weight_2, ...   (float32)
    m_W, v_W, ...  with Adam: the running means of the gradients and of their squares
    E              fixed and one-hot encodings, up to the longest test          (longest T, d_e)
    t              the number of updates so far
    loss           L before each update                                                   (steps,)
    eval_step      the values of t at which the run is evaluated                          (evals,)
    tests          the sequence length and the subset size (T, q) of each test              (k, 2)
    error, se      the loss on new sequences in each test, and its standard error       (evals, k)
    on_selected    the attention on the q selected tokens together, on the first test     (evals,)
    cos_W, cos_V   the cosine similarity of W and W*, and of V and V*                     (evals,)
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


@np.errstate(all="ignore")                  # evaluate says so if a run diverges
def descend(run, report=lambda run: None):
    """Train a run, new or interrupted, to its end; it is evaluated and reported at eval_step.

    Raises FloatingPointError if it diverges.
    """
    c = run["config"]
    update = {"gd": gradient_descent, "adam": adam}[c.optimizer]
    X, y = batch(c, 0)
    for t in range(run["t"], c.steps + 1):
        if t in run["eval_step"]:
            evaluate(run)
            report(run)
        if t == c.steps:
            return run
        if c.fresh:                         # new sequences, not one full batch
            X, y = batch(c, t)
        E = encodings(run, c.T, c.draws, stream(c, "encodings", t))     # stochastic: drawn anew
        run["loss"][t], grads = loss_and_grads(run, X, y, E)
        lr = c.lr * (1 + math.cos(math.pi * t / c.steps)) / 2 if c.schedule == "cosine" else c.lr
        run |= update(run, grads, lr) | {"t": t + 1}        # at once: Ctrl-C finds a whole run


def gradient_descent(run, grads, lr):
    """The weights after a step; grads has the gradient of each weight by its name."""
    return {name: run[name] - lr * grad for name, grad in grads.items()}


def adam(run, grads, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    """The weights after a step of Adam, and its running means (Kingma and Ba, 2015)."""
    t, new = run["t"] + 1, {}
    for name, grad in grads.items():
        m = beta1 * run.get(f"m_{name}", 0) + (1 - beta1) * grad
        v = beta2 * run.get(f"v_{name}", 0) + (1 - beta2) * grad ** 2
        step = m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)
        new |= {name: run[name] - lr * step, f"m_{name}": m, f"v_{name}": v}
    return new


def train(report=lambda run: None, **settings):
    """Train a run with these Settings; report=train.progress prints a line at each evaluation."""
    return descend(start(Settings(**settings)), report)


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


def evaluate(run):
    """Measure the attention, how close the weights are to W*, V*, and the error on each test."""
    c, t, i = run["config"], run["t"], np.searchsorted(run["eval_step"], run["t"])
    if c.model == "attention":
        X, y, E = held_out(run, 0, c.eval_draws)
        P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)    # (draws, n, T or T + 1)
        run["on_selected"][i] = P[:, np.arange(len(y))[:, None], y].sum(axis=2).mean()
        truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
        for name, star in zip("WV", truth):
            run[f"cos_{name}"][i] = sts.cosine(run[name], star)
    for k in range(len(run["tests"])):
        X, y, E = held_out(run, k, c.eval_draws)
        losses = 0.5 * ((output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum(axis=1)
        run["error"][i, k] = losses.mean()
        run["se"][i, k] = losses.std() / math.sqrt(len(losses))
    limit = 20 * max(c.d / (2 * c.q), run["loss"][0])
    if t > 0 and not (run["loss"][t - 1] <= limit and np.isfinite(run["error"][i]).all()):  # or nan
        raise FloatingPointError(f"the run has diverged by step {t}: try --lr below {c.lr:g}")


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
    """The random generator for one purpose, or for a part of it, such as step t.

    Streams are independent, so that a stopped run continues exactly as it would have.
    """
    key = (("weights", "encodings", "batches", "tests").index(purpose), *part)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(c.seed, spawn_key=key)))


def start(c):
    """A new run: its initial weights, and room for what will be measured."""
    tests = ([(c.T, c.q)] + [(T, c.q) for T in c.T_test if T != c.T]
             + [(c.T, q) for q in c.q_test if q != c.q])
    run = {"config": c, "t": 0, "loss": np.full(c.steps, np.nan), "tests": np.array(tests)}
    run["eval_step"] = np.unique(np.linspace(0, c.steps, c.evaluations + 1).astype(int))
    run["error"], run["se"] = np.full((2, len(run["eval_step"]), len(tests)), np.nan)
    rng, width = stream(c, "weights"), c.d + c.d_e
    if c.model == "fcn":
        run |= by_name(fcn.init_fcn(rng, [c.T * c.d + c.T, *c.hidden, c.d], np.float32))
    else:
        run["W"] = c.init_std * rng.standard_normal((width, width), np.float32)
        run["V"] = c.init_std * rng.standard_normal((c.d, width), np.float32)
        run["on_selected"], run["cos_W"], run["cos_V"] = np.full((3, len(run["error"])), np.nan)
        if c.pe != "stochastic":
            run["E"] = encodings(run, run["tests"][:, 0].max(), 1, stream(c, "encodings"))[0]
    return run


# Settings, printing, files and the command line.  A reader of the paper can stop here.

OPTIMIZERS = {"gd": "gradient descent", "adam": "Adam"}
QUICK = {"T": 50, "d_e": 100, "steps": 2000, "evaluations": 20}     # trains in seconds
RUNS = Path(__file__).resolve().parent / "runs"
SETTINGS = {    # name: type or choices, default (None: see fill_in), which runs read it, help
    "T": (int, 200, "all", "sequence length"),
    "d": (int, 5, "all", "dimension of a token"),
    "q": (int, 3, "all", "number of selected tokens"),
    "model": (("attention", "fcn"), "attention", "all", "one layer of attention, or a ReLU net"),
    "pe": (("stochastic", "fixed", "onehot"), "stochastic", "attention", "kind of encoding"),
    "law": (tuple(sts.LAWS), "rademacher", "encodings that are drawn", "how encodings are drawn"),
    "d_e": (int, None, "all", "dimension of an encoding (170; 2 T if encodings are orthogonal)"),
    "attend_to_query": (bool, False, "attention", "the full model: z_query is one more key"),
    "query": (("sum", "mean"), "sum", "attention", "how z_query adds encodings up"),
    "init_std": (float, 0.0, "attention", "standard deviation of W and V at the start"),
    "hidden": (list, None, "nets", "widths of a net's hidden layers (one layer, d + d_e)"),
    "batch": (int, 256, "all", "number of sequences in the batch"),
    "fresh": (bool, False, "all", "draw new sequences at every step, not the same ones"),
    "draws": (int, 1, "stochastic encodings", "draws averaged in a step, Definition 5"),
    "steps": (int, 5000, "all", "number of updates"),
    "optimizer": (tuple(OPTIMIZERS), "gd", "all", "gradient descent, or Adam"),
    "lr": (float, None, "all", "learning rate (4 if T >= 100 and d <= 10, else 2; Adam: 0.01; "
                               "net: 4 / the sum of its hidden widths, at most 0.02)"),
    "schedule": (("constant", "cosine"), "constant", "all", "of lr; cosine: it falls to 0"),
    "seed": (int, 0, "all", "seed of everything that is drawn at random"),
    "evaluations": (int, 10, "all", "number of evaluations after the first one"),
    "eval_sequences": (int, None, "all", "number of sequences in a test (128; of a net 10,000)"),
    "eval_draws": (int, 16, "stochastic encodings", "draws averaged in a test"),
    "T_test": (list, None, "attention", "other lengths to test (5/4, 3/2, 7/4 and 2 T)"),
    "q_test": (list, None, "attention", "other subset sizes to test (2, 3, 4, 5 and 8)")}


class Settings(SimpleNamespace):
    """The settings c of a run.  Raises ValueError for one that is wrong, or that nothing reads."""

    def __init__(self, **given):
        super().__init__(**{name: default for name, (_, default, _, _) in SETTINGS.items()})
        for name, value in given.items():
            if name not in SETTINGS:
                raise ValueError(f"there is no setting {name}")
            setattr(self, name, np.asarray(value).tolist())     # a NumPy float64 would make all
        net = self.model == "fcn"                               # weights float64
        read = {"all": True, "nets": net, "attention": not net,
                "encodings that are drawn": not net and self.pe != "onehot",
                "stochastic encodings": not net and self.pe == "stochastic"}
        for name, (kind, default, readers, _) in SETTINGS.items():
            value, flag = getattr(self, name), "--" + name.replace("_", "-")
            if value in (default, []):          # is allowed, even where nothing reads it
                continue
            if not read[readers]:
                raise ValueError(f"{flag} is only for {readers}, got {value}")
            if isinstance(kind, tuple) and value not in kind:
                raise ValueError(f"{flag} must be one of {', '.join(kind)}, got {value}")
            if kind in (int, float) and not 0 < value < math.inf:
                raise ValueError(f"{flag} must be positive and finite, got {value}")
        fill_in(self)


def fill_in(c):
    """Give each setting that is None the value that its help names."""
    net, orthogonal = c.model == "fcn", c.pe == "onehot" or c.law == "orthonormal"
    c.d_e = c.d_e or (2 * c.T if orthogonal else 170)
    c.eval_sequences = c.eval_sequences or (10_000 if net else 128)
    if c.hidden is None and net:
        c.hidden = [c.d + c.d_e]
    if c.lr is None and c.optimizer == "adam":
        c.lr = 0.01
    elif c.lr is None and net:
        c.lr = min(0.02, 4 / max(1, sum(c.hidden)))
    elif c.lr is None:
        c.lr = 4.0 if c.T >= 100 and c.d <= 10 else 2.0
    if c.T_test is None:                        # a net has no test but the task that it learns
        longer = {c.T * k // 4 for k in (5, 6, 7, 8)}
        c.T_test = [] if net else sorted(T for T in longer if T <= c.d_e or not orthogonal)
    if c.q_test is None:
        c.q_test = [] if net else [q for q in (2, 3, 4, 5, 8) if q <= c.T]


def progress(run):
    """Print the last evaluation, with the mean loss since the one before; titles come first."""
    c, t, i = run["config"], run["t"], np.searchsorted(run["eval_step"], run["t"])
    columns = {f"T={T}": error for (T, q), error in zip(run["tests"], run["error"][i]) if q == c.q}
    if c.model == "attention":
        columns["selected"] = run["on_selected"][i]
    if t == 0:
        print(f"{c.steps} steps of {OPTIMIZERS[c.optimizer]}, with lr {c.lr:g}.")
        print(f"The zero predictor, f = 0, has the error d/(2q) = {c.d / (2 * c.q):.4f}.")
        if c.model == "attention" and c.pe == "stochastic":
            print(f"Draws of encodings: {c.draws} in a step, the mean of {c.eval_draws} in a test.")
        print(f"{'step':>8}{'loss':>9}" + "".join(f"{title:>9}" for title in columns))
    loss = f"{run['loss'][run['eval_step'][i - 1]:t].mean():.4f}" if t else ""
    print(f"{t:8}{loss:>9}" + "".join(f"{value:9.4f}" for value in columns.values()), flush=True)


def summary(run):
    """Print the last errors, also as shares of d/(2q), and whether the run has learnt."""
    c = run["config"]
    print(f"\n{'':16}  error  std. err.  of d/(2q)")
    for (T, q), error, se in zip(run["tests"], run["error"][-1], run["se"][-1]):
        print(f"T = {T:4}, q = {q:2}  {error:6.4f}     {se:6.4f}  {error * 2 * q / c.d:8.1%}")
    error, loss = run["error"][-1, 0], run["loss"][run["eval_step"][-2]:].mean()
    X, y, _ = held_out(run, 0, 1)
    zero = 0.5 * (sts.sts_target(X, y) ** 2).sum() / len(X)             # on the same sequences
    if c.model == "fcn":
        m = len(run["bias_1"])
        bound = fcn.width_lower_bound(m, c.T, c.d, c.q)
        print(f"No net with a first layer of width {m} has an expected loss below {bound:.4f}.")
    if not c.fresh and error > max(3 * loss, 0.1 * zero):
        print(f"The run has memorized its {c.batch} sequences: --fresh draws new ones.")
    elif not error < 0.95 * zero:                                       # also if it is nan
        print("The run has learnt nothing so far: it does no better than the zero predictor.")


def save(run, path):
    """Write a run to its file, which is replaced as a whole."""
    half = Path(f"{path}.{os.getpid()}.npz")
    half.parent.mkdir(parents=True, exist_ok=True)
    np.savez(half, **run | {"config": json.dumps(vars(run["config"]))})
    half.replace(path)


def load(path):
    """Read a run from its file.  Raises OSError, or ValueError if the file holds no run."""
    with open(path, "rb") as file:
        try:
            run = dict(np.load(file))
            c = Settings(**json.loads(str(run["config"])))
        except Exception:                       # of many kinds: a file may hold anything
            raise ValueError(f"{path} holds no run of this program") from None
    return run | {"config": c, "t": int(run["t"])}


def main():
    """Train as the command line says; the run is saved at each evaluation, and at Ctrl-C."""
    parser = argparse.ArgumentParser(usage="%(prog)s [--FLAG VALUE ...]; --help lists the flags",
                                     allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, (kind, default, _, text) in SETTINGS.items():
        how = {int: {"type": int}, float: {"type": float}, bool: {"action": "store_true"},
               list: {"type": int, "nargs": "*"}}.get(kind, {"choices": kind})
        spellings = dict.fromkeys(("--" + name.replace("_", "-"), "--" + name))
        parser.add_argument(*spellings, help=f"{text} ({default})" if default else text, **how)
    parser.add_argument("--quick", action="store_const", const=QUICK, default={}, help=str(QUICK))
    parser.add_argument("--out", type=Path, help="file of the run (in runs, named after the flags)")
    given, name = vars(parser.parse_args()), "_".join(sys.argv[1:]).replace("--", "")
    path = given.pop("out", RUNS / f"{name[:100] or 'default'}.npz")

    def report(run):
        save(run, path)
        progress(run)

    try:
        run = start(Settings(**given.pop("quick") | given))
        if path.exists() and load(path)["config"] != run["config"]:
            raise ValueError(f"{path} holds a run with other settings: delete it, or change --out")
        try:
            descend(run, report)
        except KeyboardInterrupt:
            save(run, path)
            parser.exit(1, f"\ninterrupted at step {run['t']}; to continue, import train and run\n"
                           f"run = train.load({str(path)!r})\n"
                           f"train.save(train.descend(run, train.progress), {str(path)!r})\n")
        summary(run)
        print(f"\nThe run is in {path}")
    except BrokenPipeError:                     # `| head` has stopped reading
        os._exit(1)
    except (FloatingPointError, ValueError, MemoryError, OSError) as problem:
        parser.error(problem)


if __name__ == "__main__":
    main()
