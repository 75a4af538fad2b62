"""Train the attention model of sts.py.  `python train.py --pe stochastic` is the main job.

A run is a dict of arrays.  Its file is a plain .npz, which numpy.load reads with allow_pickle=False:

    config                 JSON text of every setting, enough to repeat the run
    W, V                   the weights at the end: (d + d_e, d + d_e), (d, d + d_e)
    step, loss             t = 0, 1, ..., steps - 1, and the loss of the weights after t updates on
                           the batch of that moment, as the optimizer sees it: (steps,)
    eval_step              the numbers of updates after which errors were measured: (m,)
    T_test, error_T_test   sequence lengths, and the error at each, for subset size q: (a,), (m, a)
    q_test, error_q_test   other subset sizes, and the error at each, at length T: (b,), (m, b)
    cos_W, cos_V           cosine similarity of W to W*, and of V to V*: (m,)

If a run was stopped, step is shorter than config's steps, and W, V are the weights of the last loss.

An error is the loss on 128 sequences (the paper's number) that stay the same during a run and are not
trained on.  Fixed and one-hot PE: with the E of training.  Stochastic PE: f is that of Definition 5, an
average over draws of E, for which 16 draws stand, the same at each evaluation.  Training averages over
--draws, by default one.  One draw of nearly orthogonal E cannot select exactly, as it gives the selected
positions unequal logits: so with stochastic PE the loss ends above the error.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":      # before NumPy loads: one core computes, the other draws batches
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")

import numpy as np

import sts

RUNS = Path(__file__).resolve().parent / "runs"
FORMAT = 1              # of run files
EVALUATION = dict(
    evaluations=20,         # during a run, besides the one at its start
    eval_sequences=128,     # for each length and each subset size (paper)
    eval_draws=16)          # of E, in place of the expectation in Definition 5
INIT_STD = 0.02         # of the weights under --init random
QUICK = dict(T=20, d=3, q=2, batch=128, steps=3000)
MACHINE_MEMORY = (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf")
                  else math.inf)    # bytes
PURPOSES = "weights", "encodings", "training", "validation"


def stream(seed, purpose):
    """The random Generator of a run for one of PURPOSES; they are independent of each other."""
    return np.random.Generator(np.random.SFC64([seed, PURPOSES.index(purpose)]))


def evaluation_sizes(T, q):
    """Sequence lengths (T to 2 T; for T = 200 the paper's) and subset sizes at which to evaluate."""
    lengths = sorted({T * k // 4 for k in (4, 5, 6, 7, 8)})
    return lengths, [k for k in (2, 3, 4, 5, 8) if k != q and k <= T]


def encoder(config):
    """The function (T, draws, rng) -> E, which is (draws, T, d_e), or (1, T, d_e) if E never changes.

    Stochastic PE: fresh draws from rng at each call (Definition 5).  Fixed and one-hot PE: one draw,
    made from the seed for all positions up to the longest test length.
    """
    c = SimpleNamespace(**config)
    if c.pe == "stochastic":
        return lambda T, draws, rng: sts.positional_encoding(
            c.pe_family, T, c.pe_dim, rng, draws, c.dtype)
    kind = "onehot" if c.pe == "onehot" else c.pe_family
    T_max = evaluation_sizes(c.T, c.q)[0][-1]
    E = sts.positional_encoding(kind, T_max, c.pe_dim, stream(c.seed, "encodings"), 1, c.dtype)
    return lambda T, draws, rng: E[:, :T]


def evaluate(W, V, config):
    """Errors at the lengths and at the subset sizes of evaluation_sizes: two lists of floats."""
    c, encode = SimpleNamespace(**config), encoder(config)
    rng = stream(c.seed, "validation")

    def error(T, q):
        X, y = sts.sample_sts(rng, c.eval_sequences, T, c.d, q, c.dtype)
        f, _ = sts.forward(W, V, X, y, encode(T, c.eval_draws, rng), c.attend_to_query)
        return 0.5 * float(((f - sts.sts_target(X, y)) ** 2).sum()) / len(X)

    lengths, subset_sizes = evaluation_sizes(c.T, c.q)
    return [error(T, c.q) for T in lengths], [error(c.T, q) for q in subset_sizes]


def gd(weight, grad, state, lr, t):
    """A step of gradient descent.  Returns the new weight and the state, of which there is none."""
    return weight - lr * grad, state


def adam(weight, grad, state, lr, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """Step t = 1, 2, ... of Adam (Kingma and Ba, 2015); state is None at first.

    Returns the new weight and the new state: running means of the gradient and of its square.
    """
    m, v = state or (0.0, 0.0)
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad ** 2
    m_hat, v_hat = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
    return weight - lr * m_hat / (np.sqrt(v_hat) + eps), (m, v)


def start(config):
    """A new run: zero or random weights, and nothing logged yet."""
    c = SimpleNamespace(**config)
    rng, std = stream(c.seed, "weights"), INIT_STD if c.init == "random" else 0.0
    W = std * rng.standard_normal((c.d + c.pe_dim, c.d + c.pe_dim), dtype=c.dtype)
    V = std * rng.standard_normal((c.d, c.d + c.pe_dim), dtype=c.dtype)
    T_test, q_test = evaluation_sizes(c.T, c.q)
    logs = "step", "loss", "eval_step", "error_T_test", "error_q_test", "cos_W", "cos_V"
    return dict(config=json.dumps(config), W=W, V=V, T_test=T_test, q_test=q_test,
                **{log: [] for log in logs})


def prefetch(draw):
    """Yields draw() for ever; a background thread makes the next while the caller uses the last."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(draw)
        while True:
            ready, pending = pending.result(), pool.submit(draw)
            yield ready


@np.errstate(over="ignore", invalid="ignore")      # a run that diverges is reported, once, below
def train(run, report=lambda run: None):
    """Train a run from start(config), in place; report(run) is called after each evaluation.

    Raises FloatingPointError if the loss is not finite.  The run then holds the last weights at
    which it was.
    """
    config = json.loads(run["config"])
    c, encode, rng = SimpleNamespace(**config), encoder(config), stream(config["seed"], "training")

    def draw():
        X, y = sts.sample_sts(rng, c.batch, c.T, c.d, c.q, c.dtype)
        return X, y, encode(c.T, c.draws, rng)

    batches = prefetch(draw)
    update, state_W, state_V = {"gd": gd, "adam": adam}[c.optimizer], None, None
    W_star, V_star = sts.ground_truth(c.d, c.pe_dim, c.T if c.pe == "onehot" else None)
    W, V = run["W"], run["V"]
    moments = {i * c.steps // c.evaluations for i in range(c.evaluations + 1)}
    for t in range(c.steps + 1):
        if t in moments:
            error_T_test, error_q_test = evaluate(W, V, config)
            if not np.isfinite(error_T_test + error_q_test).all():
                raise FloatingPointError(f"the error is not finite after {t} steps")
            run["eval_step"].append(t)
            run["error_T_test"].append(error_T_test)
            run["error_q_test"].append(error_q_test)
            run["cos_W"].append(sts.cosine(W, W_star))
            run["cos_V"].append(sts.cosine(V, V_star))
            run.update(W=W, V=V)
            report(run)
        if t == c.steps:
            return
        X, y, E = next(batches)
        L, dW, dV = sts.loss_and_grads(W, V, X, y, E, c.attend_to_query)
        if not np.isfinite(L):
            raise FloatingPointError(f"the loss is not finite at step {t}")
        run.update(W=W, V=V)
        run["step"].append(t)
        run["loss"].append(float(L))
        W, state_W = update(W, dW, state_W, c.lr, t + 1)
        V, state_V = update(V, dV, state_V, c.lr, t + 1)


def save(run, path):
    """Write a run to path, by way of a temporary file: an old file is replaced whole, or kept."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        np.savez(file, **run)
    os.replace(temporary, path)


def load(path):
    """Read a run file: a dict of arrays, but config is text.  Raises ValueError if it is no run."""
    try:
        with np.load(path, allow_pickle=False) as file:
            run = dict(file) | {"config": str(file["config"])}
        if json.loads(run["config"])["format"] == FORMAT:
            return run
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        pass
    raise ValueError(f"{path} is not a run file of this train.py")


def whole(low):
    """An argparse type: whole numbers from low on."""
    def parse_whole(text):
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(text)
    return parse_whole


def positive(text):
    """An argparse type: finite numbers above 0."""
    try:
        if 0 < float(text) < math.inf:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0")


def command_line():
    """The flags, their help and their defaults, as an argparse parser with one-line errors."""
    parser = argparse.ArgumentParser(
        prog="train.py", allow_abbrev=False,
        description="Train one-layer attention to output the mean of the q tokens that y selects.")
    parser.error = lambda message: parser.exit(2, f"train.py: error: {message}\n")

    def add(flag, text, default=None, **options):
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(flag, default=default, help=text + shown, **options)

    add("--pe", "positional encoding: one-hot, random but fixed, or drawn afresh at each step",
        "stochastic", choices=["onehot", "fixed", "stochastic"])
    add("--pe-family", "law of fixed and stochastic encodings: random signs, or signed coordinate "
        "vectors (default: rademacher)", choices=["rademacher", "orthonormal"])
    add("--pe-dim", "dimension of an encoding (default: 170 for rademacher, or 32 with --quick; else "
        "2 T, which is the longest test length)", type=whole(1), metavar="d_e")
    add("--draws", "stochastic encodings averaged in a training step", 1, type=whole(1), metavar="K")
    add("--T", "sequence length", 200, type=whole(1), metavar="T")
    add("--d", "token dimension", 5, type=whole(1), metavar="d")
    add("--q", "number of selected tokens", 3, type=whole(1), metavar="q")
    add("--batch", "fresh sequences in a step", 256, type=whole(1), metavar="n")
    add("--steps", "training steps", 10000, type=whole(1), metavar="STEPS")
    add("--lr", "learning rate (default: 2 for gd, 0.01 for adam)", type=positive, metavar="LR")
    add("--optimizer", "gradient descent or Adam", "gd", choices=["gd", "adam"])
    add("--init", f"initial weights: zero, or normal with standard deviation {INIT_STD}", "zero",
        choices=["zero", "random"])
    parser.add_argument("--attend-to-query", action="store_true",
                        help="the full model, with keys [Z, z_query] (default: keys Z)")
    add("--dtype", "arithmetic", "float32", choices=["float32", "float64"])
    add("--seed", "of all the run's randomness", 0, type=whole(0), metavar="SEED")
    add("--out", "file for the run (default: in the folder runs beside train.py, named after the "
        "settings that differ from the default ones)", metavar="RUN.npz")
    quick = ", ".join(f"--{flag} {value}" for flag, value in QUICK.items())
    parser.add_argument("--quick", action="store_true",
                        help=f"classroom version, a few seconds (default: off): {quick}")
    return parser


def configuration(args):
    """The settings of a run: the parsed flags, with those filled in that depend on others."""
    family = None if args.pe == "onehot" else args.pe_family or "rademacher"
    longest = evaluation_sizes(args.T, args.q)[0][-1]
    pe_dim = args.pe_dim or (longest if family != "rademacher" else 32 if args.quick else 170)
    lr = args.lr or {"gd": 2.0, "adam": 0.01}[args.optimizer]
    config = vars(args) | dict(pe_family=family, pe_dim=pe_dim, lr=lr, format=FORMAT, **EVALUATION)
    return {key: value for key, value in config.items() if key not in ("quick", "out")}


def memory(config):
    """Bytes that a run takes, roughly: weights, and the arrays of a step or of an evaluation."""
    c = SimpleNamespace(**config)
    width, longest = c.d + c.pe_dim, evaluation_sizes(c.T, c.q)[0][-1]

    def arrays(n, T, K):
        return 2 * (n * T * c.d + K * T * c.pe_dim) + 6 * K * n * T + 4 * K * n * width

    weights = (8 if c.optimizer == "adam" else 5) * width * (width + c.d)
    numbers = weights + max(arrays(c.batch, c.T, c.draws), arrays(c.eval_sequences, longest, c.eval_draws))
    return numbers * np.dtype(c.dtype).itemsize


def parse(argv):
    """Command line -> config (a dict), file for the run.  Bad flags: a line on stderr, exit 2."""
    parser = command_line()
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(quick=True, **QUICK)
        args = parser.parse_args(argv)
    if args.q > args.T:
        parser.error(f"argument --q: {args.q} is more than --T {args.T}; allowed: 1 to {args.T}")
    if args.pe == "onehot" and args.pe_family:
        parser.error(f"argument --pe-family: {args.pe_family} has no meaning with --pe onehot; "
                     "allowed with --pe fixed or --pe stochastic")
    if args.pe != "stochastic" and args.draws > 1:
        parser.error(f"argument --draws: {args.draws} has no meaning with --pe {args.pe}, which is "
                     "one draw; allowed with --pe stochastic")
    config, longest = configuration(args), evaluation_sizes(args.T, args.q)[0][-1]
    if config["pe_family"] != "rademacher" and config["pe_dim"] < longest:
        parser.error(f"argument --pe-dim: {args.pe_dim} is too small for "
                     f"{config['pe_family'] or 'one-hot'} encodings; allowed: at least {longest}, "
                     "the longest test length (2 T)")
    need, have = memory(config) / 1e9, MACHINE_MEMORY / 1e9
    if need > have:
        sizes = "T", "d", "pe_dim", "batch", "draws"
        given = " ".join(f"--{size.replace('_', '-')} {config[size]}" for size in sizes)
        parser.error(f"arguments {given}: too large, about {need:.3g} GB of memory; "
                     f"allowed: {have:.3g} GB, which this machine has")
    name, plain = [args.pe], configuration(parser.parse_args(["--pe", args.pe]))
    name += ["quick"] if args.quick else []
    name += [key.replace("_", "-") + ("" if value is True else f"={value}")
             for key, value in config.items() if value != plain[key]]
    return config, args.out if args.out is not None else RUNS / ("-".join(name) + ".npz")


def check_out(out, config):
    """The path to which a run can be saved, which overwrites no other run; called before training.

    Raises ValueError or OSError if there is none.
    """
    if not str(out).endswith(".npz"):
        raise ValueError("its name does not end in .npz")
    path = Path(out).resolve()
    if path.parent == RUNS:
        RUNS.mkdir(exist_ok=True)
    if path.exists() and json.loads(load(path)["config"]) != config:
        raise ValueError("it holds a run with other settings")
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb"):
        pass
    os.remove(temporary)
    return path


def describe(config):
    """What is going to be trained, in words."""
    c = SimpleNamespace(**config)
    family = "" if c.pe == "onehot" else f" {c.pe_family}"
    draws = f", {c.draws} draws a step" if c.draws > 1 else ""
    keys = "[Z, z_query]" if c.attend_to_query else "Z"
    return (f"Sparse token selection: the mean of q = {c.q} out of T = {c.T} tokens, d = {c.d}.\n"
            f"Attention with keys {keys}; {c.pe}{family} PE, d_e = {c.pe_dim}{draws}; init {c.init};\n"
            f"{c.optimizer}, lr {c.lr:g}, batches of {c.batch}, {c.dtype}, seed {c.seed}.\n")


def progress(config):
    """A report for train: rows of a table, on a terminal each over the last.

    Its loss is the mean since the last row; cos W and cos V are the cosine similarities to W*, V*.
    """
    begin, end = time.time(), "\r" if sys.stdout.isatty() else "\n"
    T, longest = config["T"], evaluation_sizes(config["T"], config["q"])[0][-1]
    print(f"   step      loss  {f'error T={T}':>12}  {f'T={longest}':>7}   cos W   cos V  steps/s"
          "    left")

    def report(run):
        t, error = run["eval_step"][-1], run["error_T_test"][-1]
        if t == 0:
            loss, rate, left = "-", "-", "-"
        else:
            loss = f"{np.mean(run['loss'][run['eval_step'][-2]:]):.4f}"
            rate = t / (time.time() - begin)
            rate, left = f"{rate:.0f}", f"{(config['steps'] - t) / rate:.0f} s"
        print(f"{t:7d}  {loss:>8}  {error[0]:12.4f}  {error[-1]:7.4f}  {run['cos_W'][-1]:6.3f}"
              f"  {run['cos_V'][-1]:6.3f}  {rate:>7}  {left:>6}",
              end="\n" if t == config["steps"] else end, flush=True)
    return report


def summary(run):
    """The end of a finished run as a table, with d/(2q), the expected loss of the zero predictor."""
    c, last = SimpleNamespace(**json.loads(run["config"])), run["eval_step"][-2]
    rows = [(f"training loss, last {c.steps - last} steps", np.mean(run["loss"][last:]), c.q)]
    rows += [(f"error at T_test = {T}{' (as in training)' if T == c.T else ''}", error, c.q)
             for T, error in zip(run["T_test"], run["error_T_test"][-1])]
    rows += [(f"error at q_test = {q}", error, q)
             for q, error in zip(run["q_test"], run["error_q_test"][-1])]
    lines = [f"{'':40}          d/(2q), the zero predictor's"]
    for name, value, q in rows:
        zero = c.d / (2 * q)
        lines.append(f"{name:40}  {value:7.4f}  {zero:7.4f}  ({value / zero:.1%})")
    lines.append(f"{'cosine similarity of W to W*':40}  {run['cos_W'][-1]:7.4f}")
    lines.append(f"{'cosine similarity of V to V*':40}  {run['cos_V'][-1]:7.4f}")
    return "\n".join(lines)


def main():
    """Do what the command line says; returns the exit status."""
    config, given = parse(sys.argv[1:])

    def fail(message):
        print(f"train.py: error: {message}", file=sys.stderr)

    try:
        out = check_out(given, config)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        fail(f"argument --out: {str(given)!r} cannot be used: {reason}; allowed: an .npz file in a "
             "folder that can be written, a new one or one of a run with these same settings")
        return 2
    begin, shown, status = time.time(), os.path.relpath(out), 0
    run = start(config)
    try:
        print(describe(config))
        train(run, progress(config))
        print("\n" + summary(run))
    except FloatingPointError as problem:
        print()
        fail(f"{problem}: the run has diverged. Try a lower --lr than {config['lr']:g}")
        status = 1
    except MemoryError as problem:
        print()
        fail(f"{problem}. Try a smaller --T, --d, --pe-dim, --batch or --draws")
        return 1
    except (KeyboardInterrupt, BrokenPipeError) as problem:
        signal.signal(signal.SIGINT, signal.SIG_IGN)    # until the run is saved
        if isinstance(problem, BrokenPipeError):        # as in: python train.py | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print()
        fail("interrupted")
        status = 130
    done = len(run["step"])
    if status and (done == 0 or out.exists() and len(load(out)["step"]) >= done):
        print(f"\n{done} of {config['steps']} steps, nothing is written to {shown}")
        return status
    try:
        save(run, out)
    except OSError as problem:
        fail(f"{shown} cannot be written, {problem.strerror}: the run is lost")
        return 1
    print(f"\n{done} of {config['steps']} steps in {time.time() - begin:.0f} s, saved in {shown}")
    return status


if __name__ == "__main__":
    sys.exit(main())
