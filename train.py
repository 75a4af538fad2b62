"""Train the attention model of sts.py, or a fully-connected net of fcn.py, by gradient descent.

    python train.py --pe stochastic                       attention with stochastic encodings
    python train.py --model fcn --hidden 25 --T 10 --fresh --optimizer adam --schedule cosine
    python train.py --resume runs/NAME.npz                continues a stopped run, bit for bit
    run = train.start(train.Settings(pe="fixed"))         in a notebook,
    train.descend(run, train.progress)                    again after an interrupt

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
import dataclasses
import json
import math
import os
import signal
import sys
from pathlib import Path

for name in "OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM":     # before NumPy loads:
    os.environ.setdefault(f"{name}_THREADS", "1")                       # matrices are small

import numpy as np

import fcn
import sts


@np.errstate(all="ignore")                                  # a run that diverges says so once
def descend(run, report=lambda run: None):
    """Train a run to its end; evaluate it, and report(run), at the steps in eval_step.

    An interrupted run is whole, and can go on.  Raises FloatingPointError if it diverges.
    """
    c = run["config"]
    X, y = batch(c, 0)
    for t in range(run["t"], c.steps + 1):
        if t in run["eval_step"]:
            limit = 20 * max(c.d / (2 * c.q), run["loss"][0])
            if t > 0 and not run["loss"][t - 1] <= limit:   # also if it is nan
                raise FloatingPointError(f"the run diverges at step {t}: try --lr below {c.lr:g}")
            evaluate(run)
            report(run)
        if t == c.steps:
            return run
        if c.fresh:                                         # new sequences, not one full batch
            X, y = batch(c, t)
        lr = c.lr * (1 + math.cos(math.pi * t / c.steps)) / 2 if c.schedule == "cosine" else c.lr
        E = encodings(run, c.T, c.draws, stream(c, "encodings", t))     # stochastic: drawn anew
        L, grads = loss_and_grads(run, X, y, E)
        after = dict(run)                                   # so that each step is taken as a whole
        for name, grad in grads.items():
            step = adam(after, name, grad, t + 1) if c.optimizer == "adam" else grad
            after[name] = run[name] - lr * step
        run["loss"][t], after["t"] = L, t + 1
        run.update(after)


def train(report=lambda run: None, **settings):
    """A trained run with these Settings; report=train.progress prints a line at each evaluation."""
    return descend(start(Settings(**settings)), report)


def adam(run, name, grad, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """Adam's step at update t = 1, 2, ..., without the learning rate (Kingma and Ba, 2015)."""
    m = run[f"m_{name}"] = beta1 * run.get(f"m_{name}", 0) + (1 - beta1) * grad
    v = run[f"v_{name}"] = beta2 * run.get(f"v_{name}", 0) + (1 - beta2) * grad ** 2
    return m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)


def evaluate(run):
    """Measure the attention, how close the weights are to W*, V*, and the error on each test."""
    c, i = run["config"], np.searchsorted(run["eval_step"], run["t"])
    if c.model == "attention":
        X, y, E = held_out(run, 0, c.eval_draws)
        P = sts.attention(run["W"], X, y, E, c.attend_to_query, c.query)        # (draws, n, T)
        run["on_selected"][i] = P[:, np.arange(len(y))[:, None], y].sum(axis=2).mean()
        truth = sts.ground_truth(c.d, c.d_e, c.T if c.pe == "onehot" else None)
        for name, star in zip("WV", truth):
            run[f"cos_{name}"][i] = sts.cosine(run[name], star)
    for k in range(len(run["tests"])):
        X, y, E = held_out(run, k, c.eval_draws)
        losses = 0.5 * ((output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum(axis=1)
        run["se"][i, k] = losses.std() / math.sqrt(len(losses))
        run["error"][i, k] = losses.mean()              # last: a run with all errors is whole


def stream(c, purpose, *part):
    """The random generator for one purpose, or for a part of it, such as step t.

    Streams are independent, so that a stopped run continues exactly as it would have.
    """
    key = (("weights", "encodings", "batches", "tests").index(purpose), *part)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(c.seed, spawn_key=key)))


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


def by_name(layers):
    """Layers as fcn.py has them, [(weight, bias), ...], as a dict of weight_1, bias_1, ..."""
    return {f"{kind}_{i}": array for i, layer in enumerate(layers, 1)
            for kind, array in zip(("weight", "bias"), layer)}


def layers(run):
    """The layers of a net as fcn.py has them, [(weight_1, bias_1), ...]."""
    return [(run[f"weight_{i}"], run[f"bias_{i}"]) for i in range(1, len(run["config"].hidden) + 2)]


def output(run, X, y, E):
    """The output f (n, d) of the model; attention averages it over the draws E (K, T, d_e)."""
    c = run["config"]
    if c.model == "fcn":
        return fcn.forward(layers(run), fcn.encode(X, y))[0]
    return sts.output(run["W"], run["V"], X, y, E, c.attend_to_query, c.query)


def loss_and_grads(run, X, y, E):
    """The loss on a batch, and its gradients by the names of the weights."""
    c = run["config"]
    if c.model == "fcn":
        L, grads = fcn.loss_and_grads(layers(run), X, y)
        return L, by_name(grads)
    L, dW, dV = sts.loss_and_grads(run["W"], run["V"], X, y, E, c.attend_to_query, c.query)
    return L, {"W": dW, "V": dV}


OPTIMIZERS = {"gd": "gradient descent", "adam": "Adam"}
QUICK = {"T": 50, "d_e": 100, "steps": 2000, "evaluations": 20}     # trains in seconds
RUNS = Path(__file__).resolve().parent / "runs"


def flag(default, text, choices=None, of=None):
    """A setting; `of` says which models read it.  fill_in replaces a default of None."""
    text += "" if default is None or default is False else f" ({default})"
    return dataclasses.field(default=default, metadata={"help": text, "choices": choices, "of": of})


@dataclasses.dataclass
class Settings:
    """The flags of the command line (--d-e for d_e), and arguments of train.  Raises ValueError."""
    T: int = flag(200, "sequence length")
    d: int = flag(5, "dimension of a token")
    q: int = flag(3, "number of selected tokens")
    model: str = flag("attention", "one layer of attention, or a ReLU net", ["attention", "fcn"])
    pe: str = flag("stochastic", "kind of encoding", ["stochastic", "fixed", "onehot"], "attention")
    law: str = flag("rademacher", "how encodings are drawn", sts.LAWS, "encodings that are drawn")
    d_e: int = flag(None, "dimension of an encoding (170; 2 T if encodings are orthogonal)")
    attend_to_query: bool = flag(False, "the full model: z_query is one more key", of="attention")
    query: str = flag("sum", "how z_query adds encodings up", ["sum", "mean"], "attention")
    init_std: float = flag(0.0, "standard deviation of W and V at the start", of="attention")
    hidden: list = flag(None, "widths of a net's hidden layers (one layer, d + d_e)", of="nets")
    batch: int = flag(256, "number of sequences in the batch")
    fresh: bool = flag(False, "draw new sequences at every step, not the same ones")
    draws: int = flag(1, "draws averaged in a step, Definition 5", of="stochastic encodings")
    steps: int = flag(5000, "number of updates")
    optimizer: str = flag("gd", "gradient descent, or Adam", OPTIMIZERS)
    lr: float = flag(None, "learning rate (4 if T >= 100 and d <= 10, else 2; net: 4 / the sum of "
                     "its hidden widths, at most 0.02; Adam: 0.01)")
    schedule: str = flag("constant", "of the learning rate; cosine: it falls to 0",
                         ["constant", "cosine"])
    seed: int = flag(0, "seed of everything that is drawn at random")
    evaluations: int = flag(10, "number of evaluations after the first one")
    eval_sequences: int = flag(None, "number of sequences in a test (128; of a net 10,000)")
    eval_draws: int = flag(16, "draws averaged in a test", of="stochastic encodings")
    T_test: list = flag(None, "other lengths to test (5/4, 3/2, 7/4 and 2 T)", of="attention")
    q_test: list = flag(None, "other subset sizes to test (2, 3, 4, 5 and 8)", of="attention")

    def __post_init__(self):
        check(self)
        fill_in(self)


def check(c):
    """Raise ValueError for a setting that is wrong, or that nothing would read."""
    net = c.model == "fcn"
    reads = {None: True, "nets": net, "attention": not net,
             "encodings that are drawn": not net and c.pe != "onehot",
             "stochastic encodings": not net and c.pe == "stochastic"}
    for setting in dataclasses.fields(c):
        value, how = np.asarray(getattr(c, setting.name)).tolist(), setting.metadata
        setattr(c, setting.name, value)         # NumPy's float64 would make the weights float64
        title = "--" + setting.name.replace("_", "-")
        if value == setting.default:
            continue
        if not reads[how["of"]] and value != []:
            raise ValueError(f"{title} is only for {how['of']}, got {value}")
        if how["choices"] and value not in how["choices"]:
            raise ValueError(f"{title} must be one of {', '.join(how['choices'])}, got {value}")
        if setting.type in (int, float) and not 0 < value < math.inf:
            or_0 = ", or 0" * (setting.default == 0)
            raise ValueError(f"{title} must be positive and finite{or_0}, got {value}")


def fill_in(c):
    """Give each setting that is None the value that its help names."""
    net, orthogonal = c.model == "fcn", c.pe == "onehot" or c.law == "orthonormal"
    if c.d_e is None:
        c.d_e = 2 * c.T if orthogonal else 170
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
    if c.eval_sequences is None:
        c.eval_sequences = 10_000 if net else 128


def save(run, path):
    """Write a run to its file, which is replaced as a whole."""
    half, config = Path(f"{path}.{os.getpid()}.npz"), vars(run["config"])
    half.parent.mkdir(parents=True, exist_ok=True)
    try:
        np.savez(half, **run | {"config": json.dumps(config)})
        half.replace(path)
    finally:                                    # if the disk is full, or at Ctrl-C
        half.unlink(missing_ok=True)


def load(path):
    """Read a run from its file.  Raises ValueError if it holds none, or not all of it."""
    try:
        with open(path, "rb") as file:
            run = dict(np.load(file))
        c = Settings(**json.loads(str(run["config"])))
        for name, new in start(c).items():
            if isinstance(new, np.ndarray):
                run[name] = run[name].astype(new.dtype).reshape(new.shape)
        return run | {"config": c, "t": int(run["t"])}
    except (MemoryError, PermissionError):
        raise
    except Exception:                           # of many kinds: a file may hold anything
        raise ValueError(f"{path} is missing, or holds no whole run of this program") from None


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
    """Print the last errors, also as shares of d/(2q), and what they say of the run."""
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
    if not c.fresh and error > 3 * loss:
        print(f"The run has memorized its {c.batch} sequences: --fresh draws new ones.")
    elif not error < 0.95 * zero:                                       # also if it is nan
        print("The run has learnt nothing so far: the zero predictor is about as good, or better.")


def as_program():
    """Prepare a process for one of our programs.  A notebook must not call this."""
    os.environ["MPLBACKEND"] = "Agg"                    # pictures go into files
    signal.signal(signal.SIGTERM, signal.default_int_handler)       # kill is Ctrl-C
    if hasattr(sys.stdout, "reconfigure"):              # not in IDLE
        sys.stdout.reconfigure(errors="replace")        # a terminal may lack a path's letters


def main():
    """Train as the command line says; the run is saved at each evaluation, and at Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        usage="%(prog)s [--FLAG VALUE ...]; --help lists the flags, with their defaults")
    for setting in dataclasses.fields(Settings):
        how = {bool: {"action": "store_true"}, list: {"type": int, "nargs": "*"}}.get(
            setting.type, {"type": setting.type, "choices": setting.metadata["choices"]})
        parser.add_argument("--" + setting.name.replace("_", "-"), help=setting.metadata["help"],
                            **how)
    parser.add_argument("--quick", action="store_const", const=QUICK, default={}, help=str(QUICK))
    parser.add_argument("--out", type=Path, help="file of the run (in runs, named after the flags)")
    parser.add_argument("--resume", type=Path, help="go on with the run in this file")
    words = [w.replace("_", "-") if w[2:] in vars(Settings) else w for w in sys.argv[1:]]   # --d_e
    given, name = vars(parser.parse_args(words)), "_".join(words).replace("--", "")
    quick, resume = given.pop("quick"), given.pop("resume", None)
    path = resume or given.pop("out", RUNS / f"{name or 'default'}.npz")
    if resume and (quick or given):
        parser.error("--resume takes all settings from its file: give no other flag")

    def report(run):
        save(run, path)
        progress(run)

    run = {"t": 0}
    try:
        run = load(path) if resume else start(Settings(**quick | given))
        if path.exists() and load(path)["config"] != run["config"]:
            raise ValueError(f"{path} holds a run with other settings: delete it, or change --out")
        for t in run["eval_step"][run["eval_step"] < run["t"]]:
            progress(run | {"t": t})            # the rows above, of a run that goes on
        summary(descend(run, report))
        print(f"\nThe run is in {path}")
    except KeyboardInterrupt:
        if run["t"] > 0:
            save(run, path)
        goes_on = f'; to go on: python "{sys.argv[0]}" --resume "{path}"' if path.exists() else ""
        parser.exit(1, f"\ninterrupted{goes_on}\n")
    except BrokenPipeError:                             # `| head` has read enough
        os._exit(1)
    except (FloatingPointError, ValueError, MemoryError, OSError) as problem:
        parser.error(problem)


if __name__ == "__main__":
    as_program()
    main()
