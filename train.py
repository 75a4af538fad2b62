"""Train the attention model of sts.py.  `python train.py --pe stochastic` is the main job.

A run is a dict of arrays.  Its file is a plain .npz, which numpy.load reads with allow_pickle=False:

    config                 JSON text: every setting, enough to repeat the run
    W, V                   the weights: (d + d_e, d + d_e), (d, d + d_e)
    step, loss             t = 0, 1, ..., and the loss of the weights after t updates on the batch
                           of that moment, as the optimizer sees it: (steps,)
    eval_step              the numbers of updates after which errors were measured: (m,)
    T_test, error_T_test   sequence lengths, and the error at each, for subsets of size q: (a,), (m, a)
    q_test, error_q_test   subset sizes, and the error at each, for sequences of length T: (b,), (m, b)
    cos_W, cos_V           cosine similarity of W to W*, and of V to V*: (m,)

An error is 1/2 E ||f(X, y) - STS_q(X, y)||^2 on 128 sequences (the paper's number) that stay the same
during a run and are not trained on.  With stochastic PE its f is that of Definition 5, an average over
draws of E: 16 draws, which stay the same too.  The loss averages over the --draws of training, one at
first, and a single draw of nearly orthogonal E cannot select exactly: so the loss ends above the error.
"""

import argparse
import json
import math
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
    os.environ.setdefault(threads, "1")     # before NumPy loads; the other core draws the batches

import numpy as np

import sts

RUNS = Path(__file__).resolve().parent / "runs"
FORMAT = 1              # of run files
EVAL_SEQUENCES = 128    # for each length and each subset size (paper)
EVAL_DRAWS = 16         # of E, in place of the expectation in Definition 5
EVALUATIONS = 20        # during a run
INIT_STD = 0.02         # of the weights under --init random
QUICK = dict(T=20, d=3, q=2, batch=128, steps=3000)
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
        X, y = sts.sample_sts(rng, EVAL_SEQUENCES, T, c.d, q, c.dtype)
        f, _ = sts.forward(W, V, X, y, encode(T, EVAL_DRAWS, rng), c.attend_to_query)
        return 0.5 * float(((f - sts.sts_target(X, y)) ** 2).sum()) / EVAL_SEQUENCES

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
    which it was finite.
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
    for t in range(c.steps + 1):
        if t % math.ceil(c.steps / EVALUATIONS) == 0 or t == c.steps:
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
    with open(f"{path}.tmp", "wb") as file:
        np.savez(file, **run)
    os.replace(f"{path}.tmp", path)


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

    def add(flag, help, **options):
        parser.add_argument(flag, help=help + " (default: %(default)s)" * ("(default" not in help),
                            **options)

    add("--pe", "positional encoding: one-hot, random but fixed, or drawn afresh at each step",
        choices=["onehot", "fixed", "stochastic"], default="stochastic")
    add("--pe-family", "law of fixed and stochastic encodings: random signs, or signed coordinate "
        "vectors (default: rademacher)", choices=["rademacher", "orthonormal"])
    add("--pe-dim", "dimension of an encoding (default: 170 for rademacher, or 32 with --quick; else "
        "2 T, which is the longest test length)", type=whole(1), metavar="d_e")
    add("--draws", "stochastic encodings averaged in a training step", type=whole(1), default=1,
        metavar="K")
    add("--T", "sequence length", type=whole(1), default=200, metavar="T")
    add("--d", "token dimension", type=whole(1), default=5, metavar="d")
    add("--q", "number of selected tokens", type=whole(1), default=3, metavar="q")
    add("--batch", "fresh sequences in a step", type=whole(1), default=256, metavar="n")
    add("--steps", "training steps", type=whole(1), default=10000, metavar="STEPS")
    add("--lr", "learning rate (default: 2 for gd, 0.01 for adam)", type=positive, metavar="LR")
    add("--optimizer", "gradient descent or Adam", choices=["gd", "adam"], default="gd")
    add("--init", f"initial weights: zero, or normal with standard deviation {INIT_STD}",
        choices=["zero", "random"], default="zero")
    add("--attend-to-query", "the full model, with keys [Z, z_query] (default: keys Z)",
        action="store_true")
    add("--dtype", "arithmetic", choices=["float32", "float64"], default="float32")
    add("--seed", "of all the run's randomness", type=whole(0), default=0, metavar="SEED")
    add("--out", "file for the run (default: in the folder runs beside train.py, named after the "
        "flags that differ from their defaults)", metavar="RUN.npz")
    add("--quick", "classroom version, a few seconds (default: off). It changes these defaults: "
        + ", ".join(f"--{flag.replace('_', '-')} {value}" for flag, value in QUICK.items()),
        action="store_true")
    return parser


def parse(argv):
    """Command line -> config (a dict), path of the run file.  Bad flags: a line on stderr, exit 2."""
    parser = command_line()
    if parser.parse_args(argv).quick:
        parser.set_defaults(**QUICK)
    args, defaults = parser.parse_args(argv), vars(parser.parse_args([]))
    T_max = evaluation_sizes(args.T, args.q)[0][-1]
    if args.q > args.T:
        parser.error(f"argument --q: {args.q} is more than --T {args.T}; allowed: 1 to {args.T}")
    if args.pe == "onehot" and args.pe_family:
        parser.error(f"argument --pe-family: {args.pe_family} has no meaning with --pe onehot; "
                     "allowed with --pe fixed or --pe stochastic")
    if args.pe != "stochastic" and args.draws > 1:
        parser.error(f"argument --draws: {args.draws} has no meaning with --pe {args.pe}, which is "
                     "one draw; allowed with --pe stochastic")
    family = None if args.pe == "onehot" else args.pe_family or "rademacher"
    pe_dim = args.pe_dim or (T_max if family != "rademacher" else 32 if args.quick else 170)
    if family != "rademacher" and pe_dim < T_max:
        parser.error(f"argument --pe-dim: {pe_dim} is too small for {family or 'one-hot'} "
                     f"encodings; allowed: at least {T_max}, the longest test length (2 T)")
    lr = args.lr or {"gd": 2.0, "adam": 0.01}[args.optimizer]
    changed = [f"{flag.replace('_', '-')}={value}" for flag, value in vars(args).items()
               if value != defaults[flag] and flag not in ("pe", "quick", "out")]
    out = args.out
    if out is None:
        out = RUNS / ("-".join([args.pe] + ["quick"] * args.quick + changed) + ".npz")
    config = vars(args) | dict(format=FORMAT, pe_family=family, pe_dim=pe_dim, lr=lr)
    del config["out"], config["quick"]
    return config, Path(out)


def check_out(out, config):
    """Make sure, before training, that the run can be saved to out and overwrites no other run.

    Raises ValueError or OSError if not.
    """
    if out.parent == RUNS:
        RUNS.mkdir(exist_ok=True)
    if out.exists() and json.loads(load(out)["config"]) != config:
        raise ValueError(f"{out} holds a run with other flags")
    with open(f"{out}.tmp", "wb"):
        pass
    os.remove(f"{out}.tmp")


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
    """A report for train: a table, row after row; on a terminal each row overwrites the last."""
    begin, end = time.time(), "\r" if sys.stdout.isatty() else "\n"
    T, T_max = config["T"], evaluation_sizes(config["T"], config["q"])[0][-1]
    print(f"   step      loss  {f'error T={T}':>12}  {f'T={T_max}':>7}   cos W   cos V  steps/s    left")

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
    """The end of a finished run, as a table: each error beside that of the zero predictor, d/(2q)."""
    c, last = SimpleNamespace(**json.loads(run["config"])), run["eval_step"][-2]
    rows = [(f"training loss, last {c.steps - last} steps", np.mean(run["loss"][last:]), c.q)]
    rows += [(f"error at T_test = {T}" + " (as in training)" * (T == c.T), error, c.q)
             for T, error in zip(run["T_test"], run["error_T_test"][-1])]
    rows += [(f"error at q_test = {q}", error, q)
             for q, error in zip(run["q_test"], run["error_q_test"][-1])]
    lines = [f"{'':40}  {'loss':>7}   d/(2q), the zero predictor's loss"]
    for name, value, q in rows:
        zero = c.d / (2 * q)
        lines.append(f"{name:40}  {value:7.4f}  {zero:7.4f}  ({value / zero:.1%})")
    lines.append(f"{'cosine similarity of W to W*':40}  {run['cos_W'][-1]:7.4f}")
    lines.append(f"{'cosine similarity of V to V*':40}  {run['cos_V'][-1]:7.4f}")
    return "\n".join(lines)


def main():
    """Do what the command line says; returns the exit status."""
    config, out = parse(sys.argv[1:])
    shown, begin = os.path.relpath(out), time.time()

    def fail(message):
        print(f"train.py: error: {message}", file=sys.stderr)

    try:
        check_out(out, config)
    except (OSError, ValueError) as problem:
        fail(f"argument --out: {problem}; allowed: a new file in a folder that can be written, "
             "or a file that holds a run with these same flags")
        return 2
    print(describe(config))
    run, status, ending = start(config), 0, ""
    try:
        train(run, progress(config))
        print("\n" + summary(run))
    except FloatingPointError as problem:
        print()
        fail(f"{problem}: the run has diverged. Try a lower --lr than {config['lr']:g}. "
             f"The last good weights are in {shown}")
        status = 1
    except KeyboardInterrupt:
        print()
        fail(f"interrupted after {len(run['step'])} of {config['steps']} steps")
        status = 130
    save(run, out)
    print(f"\n{len(run['step'])} steps in {time.time() - begin:.0f} s. The run is saved in {shown}")
    return status


if __name__ == "__main__":
    sys.exit(main())
