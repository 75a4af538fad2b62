"""Train the attention model of sts.py, or the net of fcn.py.  `python train.py --pe stochastic` is the
main job.  With --population, gradient descent on the population loss, by theory.py.

A run is a dict of arrays.  Its file is a plain .npz, which numpy.load reads with allow_pickle=False:

    config                 JSON text of every setting, enough to repeat the run
    W, V                   the weights at the end: (d + d_e, d + d_e), (d, d + d_e)
    step, loss             t = 0, 1, ..., steps - 1, and the loss of the weights after t updates on
                           the batch of that moment, as the optimizer sees it: (steps,)
    eval_step              the numbers of updates after which errors were measured: (m,)
    T_test, error_T_test   sequence lengths, and the error at each, for subset size q: (a,), (m, a)
    q_test, error_q_test   other subset sizes, and the error at each, at length T: (b,), (m, b)
    cos_W, cos_V           cosine similarity of W to W*, and of V to V*: (m,); fixed PE has no W* of its
                           own, and is compared with that of stochastic PE, I on the PE-PE block
    a, alpha               the multiples of W* and V* that are nearest to W and V: (m,)

The weights are those after len(step) updates; if a run was stopped, that is less than config's steps.
What --resume needs besides is also there: for Adam the running means m_W, v_W, m_V, v_V.  The state of
the generator is not needed, as the batch of step t has a generator of its own, made from seed and t.

A fully-connected net has weight_1, bias_1, weight_2, ... (inputs, outputs), (outputs,) in place of W and
V, none of the last four, and as it takes one length only, T_test is [T].  At the end of a run it has besides

    error, error_se        the error at T on 100000 more sequences, and its standard error

An error is the loss on 128 sequences (the paper's number) that stay the same during a run and are not
trained on.  Fixed and one-hot PE: with the E of training.  Stochastic PE: f is that of Definition 5, an
average over draws of E, for which 16 draws stand, the same at each evaluation.  Training averages over
--draws, by default one.  One draw of nearly orthogonal E cannot select exactly, as it gives the selected
positions unequal logits: so with stochastic PE the loss ends above the error.
"""

import argparse
import functools
import io
import itertools
import json
import math
import os
import signal
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":      # before NumPy loads: one core computes, the other draws batches
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")

import numpy as np

import fcn
import sts
import theory

RUNS = Path(__file__).resolve().parent / "runs"
FORMAT = 4              # of run files
PAPER = dict(T=200, d=5, q=3, batch=256, steps=10000)       # the default sizes; the steps are ours
QUICK = dict(T=20, d=3, q=2, batch=128, steps=3000)         # and those of --quick
PE_DIM, QUICK_PE_DIM = 170, 32      # of random signs
EVALUATION = dict(
    evaluations=20,         # during a run, besides the one at its start
    eval_sequences=128)     # for each length and each subset size (paper)
EVAL_DRAWS = 16         # of E, in place of the expectation in Definition 5
TEST_SEQUENCES, TEST_CHUNK = 100_000, 1000      # at the end of a net's run, to compare it with its bound
INIT_STD = 0.02         # of the attention weights under --init random
LATER_WIDTH = 64        # least width of a net's hidden layers after the first
ONLY = dict(attention=("pe", "pe_family", "pe_dim", "draws", "attend_to_query", "init"),
            fcn=("width", "depth"))     # the settings that one model has and the other has not
LOGS = {"step", "loss", "eval_step", "error_T_test", "error_q_test", "cos_W", "cos_V", "a", "alpha"}
BATCH = "seed", "T", "d", "q", "batch", "dtype"     # the settings that a batch depends on
SAMPLED = "batch", "optimizer", "schedule", "init", "attend_to_query", "dtype"  # not with --population
SCORES = 100_000        # of random signs in all, for the expectations of --population
ENUMERATED = 10 ** 7    # at most so many attention weights in all, (T choose q) T
MACHINE_MEMORY = (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf")
                  else math.inf)    # bytes
PURPOSES = "weights", "encodings", "training", "validation", "test"


def stream(seed, purpose, *part):
    """The random Generator of a run for one of PURPOSES, or for a part of it, as step t; all independent."""
    key = PURPOSES.index(purpose), *part
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key)))


def evaluation_sizes(config):
    """Sequence lengths (T to 2 T; for T = 200 the paper's) and subset sizes at which to evaluate.

    A net has as many inputs as T has tokens, so its only length is T.
    """
    T, q = config["T"], config["q"]
    lengths = [T] if config["model"] == "fcn" else sorted({T * k // 4 for k in (4, 5, 6, 7, 8)})
    return lengths, [k for k in (2, 3, 4, 5, 8) if k != q and k <= T]


def encoder(config):
    """The function (T, draws, rng) -> E, which is (draws, T, d_e), or (1, T, d_e) if E never changes.

    Stochastic PE: fresh draws from rng at each call (Definition 5).  Fixed and one-hot PE: one draw,
    made from the seed for all positions up to the longest test length.  A net: E is None.
    """
    c = SimpleNamespace(**config)
    if c.model == "fcn":
        return lambda T, draws, rng: None
    if c.pe == "stochastic":
        return lambda T, draws, rng: sts.positional_encoding(
            c.pe_family, T, c.pe_dim, rng, draws, c.dtype)
    kind, longest = "onehot" if c.pe == "onehot" else c.pe_family, evaluation_sizes(config)[0][-1]
    E = sts.positional_encoding(kind, longest, c.pe_dim, stream(c.seed, "encodings"), 1, c.dtype)
    return lambda T, draws, rng: E[:, :T]


# The weights of a model are a list of arrays: [W, V], or [weight_1, bias_1, weight_2, ...].


def weight_names(config):
    """The names of the weights in a run, in order."""
    if config["model"] == "attention":
        return ["W", "V"]
    return [f"{kind}_{layer}" for layer in range(1, config["depth"] + 2) for kind in ("weight", "bias")]


def layer_sizes(config):
    """The sizes of a net's layers, from the inputs to the output.

    --width is that of the first hidden layer, which the bound is about; the others are not narrow.
    """
    c = SimpleNamespace(**config)
    return [c.T * c.d + c.T, c.width] + [max(c.width, LATER_WIDTH)] * (c.depth - 1) + [c.d]


def initial_weights(config):
    """The weights before training."""
    c, rng = SimpleNamespace(**config), stream(config["seed"], "weights")
    if c.model == "fcn":
        return [array for layer in fcn.init_fcn(rng, layer_sizes(config), c.dtype) for array in layer]
    width, std = c.d + c.pe_dim, INIT_STD if c.init == "random" else 0.0
    return [std * rng.standard_normal((rows, width), dtype=c.dtype) for rows in (width, c.d)]


def pairs(weights):
    """[weight_1, bias_1, weight_2, ...] as the params of fcn.py, [(weight_1, bias_1), ...]."""
    return list(zip(weights[::2], weights[1::2]))


def answer(weights, X, y, E, config):
    """The output f (n, d) of the model."""
    if config["model"] == "fcn":
        return fcn.forward(pairs(weights), fcn.encode(X, y))[0]
    return sts.forward(*weights, X, y, E, config["attend_to_query"])[0]


def loss_and_grads(weights, X, y, E, config):
    """The loss of the model on a batch, and a list of the gradients of the weights."""
    if config["model"] == "fcn":
        L, grads = fcn.loss_and_grads(pairs(weights), X, y)
        return L, [grad for layer in grads for grad in layer]
    L, dW, dV = sts.loss_and_grads(*weights, X, y, E, config["attend_to_query"])
    return L, [dW, dV]


def sequence_losses(weights, config, encode, T, q, n, purpose, i):
    """The losses (n,) of sequences of length T with subsets of size q, in set i for one of PURPOSES.

    X and y are the same for all encodings, as E has a generator of its own.
    """
    c = SimpleNamespace(**config)
    X, y = sts.sample_sts(stream(c.seed, purpose, i, 0), n, T, c.d, q, c.dtype)
    E = encode(T, config.get("eval_draws"), stream(c.seed, purpose, i, 1))
    return 0.5 * ((answer(weights, X, y, E, config) - sts.sts_target(X, y)) ** 2).sum(axis=1)


def evaluate(weights, config):
    """Errors at the lengths and at the subset sizes of evaluation_sizes: two lists of floats."""
    c, encode, (lengths, subset_sizes) = SimpleNamespace(**config), encoder(config), evaluation_sizes(config)
    sizes = [(T, c.q) for T in lengths] + [(c.T, q) for q in subset_sizes]
    errors = [float(sequence_losses(weights, config, encode, T, q, c.eval_sequences, "validation", i).mean())
              for i, (T, q) in enumerate(sizes)]
    return errors[:len(lengths)], errors[len(lengths):]


def precise_error(weights, config, sequences=TEST_SEQUENCES):
    """The error at T on many more sequences than evaluate takes, and its standard error."""
    c, encode = SimpleNamespace(**config), encoder(config)
    losses = np.concatenate([sequence_losses(weights, config, encode, c.T, c.q, TEST_CHUNK, "test", i)
                             for i in range(sequences // TEST_CHUNK)]).astype(float)
    return float(losses.mean()), float(losses.std() / math.sqrt(len(losses)))


def gd(weight, grad, state, lr, t):
    """A step of gradient descent.  Returns the new weight and the state, of which there is none."""
    return weight - lr * grad, state


def adam(weight, grad, state, lr, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """Step t = 1, 2, ... of Adam (Kingma and Ba, 2015).

    Returns the new weight and the new state: running means of the gradient and of its square, at first 0.
    """
    m, v = state
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad ** 2
    m_hat, v_hat = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
    return weight - lr * m_hat / (np.sqrt(v_hat) + eps), (m, v)


def learning_rate(config, t):
    """The learning rate after t updates: constant, or half a cosine from lr down to 0."""
    decay = (1 + math.cos(math.pi * t / config["steps"])) / 2 if config["schedule"] == "cosine" else 1
    return config["lr"] * decay


def start(config):
    """A new run: initial weights, and nothing logged yet."""
    T_test, q_test = evaluation_sizes(config)
    weights = dict(zip(weight_names(config), initial_weights(config)))
    logs = ["step", "loss", "eval_step", "error_T_test", "error_q_test"]
    logs += ["cos_W", "cos_V", "a", "alpha"] if config["model"] == "attention" else []
    run = dict(config=json.dumps(config), T_test=T_test, q_test=q_test, **{log: [] for log in logs}, **weights)
    if config["optimizer"] == "adam":
        run |= {f"{mean}_{name}": np.zeros_like(weight) for name, weight in weights.items() for mean in "mv"}
    return run


def weights_of(run):
    """The list of weights of a run."""
    return [run[name] for name in weight_names(json.loads(run["config"]))]


def keep_freed_memory():
    """Make glibc keep the memory that a step frees for the next one, and not return it to the system.

    It does so from then on if an array of this size is made and freed once; a step is 1.3 times as fast.
    """
    np.empty(31 << 20, np.uint8)


def batch(config, t):
    """The tokens X and subsets y of step t: the same for all models whose settings in BATCH are these."""
    c = SimpleNamespace(**config)
    return sts.sample_sts(stream(c.seed, "training", t), c.batch, c.T, c.d, c.q, c.dtype)


def prefetch(draw):
    """As draw, a function of t; a background thread makes draw(t + 1), also the last, while draw(t) is used."""
    pool, pending = ThreadPoolExecutor(1), {}

    def ready(t):
        now = pending.pop(t, None) or pool.submit(draw, t)
        pending[t + 1] = pool.submit(draw, t + 1)
        return now.result()
    return ready


def evaluation_steps(config):
    """The numbers of updates after which to evaluate."""
    return sorted({i * config["steps"] // config["evaluations"] for i in range(config["evaluations"] + 1)})


def log(run, weights):
    """Evaluate the weights after len(step) updates, and add what is found to the logs of the run."""
    config, t = json.loads(run["config"]), len(run["step"])
    c, (error_T_test, error_q_test) = SimpleNamespace(**config), evaluate(weights, config)
    new = dict(error_T_test=error_T_test, error_q_test=error_q_test, eval_step=t)
    if c.model == "attention":
        truth = sts.ground_truth(c.d, c.pe_dim, c.T if c.pe == "onehot" else None)
        for cos, multiple, weight, star in zip(("cos_W", "cos_V"), ("a", "alpha"), weights, truth):
            new[cos] = sts.cosine(weight, star)
            new[multiple] = float((weight * star).sum() / (star * star).sum())
    if not all(np.isfinite(value).all() for value in (*new.values(), *weights)):
        raise FloatingPointError(f"the weights or their errors are not finite after {t} steps")
    if c.model == "fcn" and t == c.steps:
        run["error"], run["error_se"] = precise_error(weights, config)
    for key, value in new.items():
        run[key].append(value)


@np.errstate(over="ignore", invalid="ignore")      # a run that diverges is reported, once
def train(run, report=lambda run: None, ahead=False, stop=lambda: False):
    """Train a run from start(config) or load(path), in place, to the end.

    report(run) is called after each evaluation; the run is then complete as far as it goes, and can be
    saved.  ahead: a background thread draws the next batch meanwhile, which pays if a core is idle.
    Raises KeyboardInterrupt as soon as stop() is true, asked before each step; the run can be saved.
    Raises FloatingPointError if the loss or an error is not finite; the run then ends with weights at which
    it was.
    """
    config = json.loads(run["config"])
    for key in LOGS & run.keys():           # arrays, if the run was loaded
        run[key] = np.asarray(run[key]).tolist()
    if "population" in config:
        return train_population(run, report, stop)
    draw = functools.partial(batch, config)
    for _ in training(run, prefetch(draw) if ahead else draw, report, stop):
        pass


@np.errstate(over="ignore", invalid="ignore")
def train_together(runs, report=lambda run: None):
    """Train new runs on the same batches (not --population), step by step, each as train does alone.

    A batch is drawn once for all of them; alone, that is more than half of the work.
    Raises ValueError if runs differ in settings of BATCH.  Raises FloatingPointError if one diverges; the
    others are then in the middle of a step, and of no use.
    """
    configs = [json.loads(run["config"]) for run in runs]
    if len({tuple(config[key] for key in BATCH) for config in configs}) != 1:
        raise ValueError(f"the runs differ in one of {', '.join(BATCH)}")
    draw = functools.lru_cache(1)(functools.partial(batch, configs[0]))
    for _ in itertools.zip_longest(*(training(run, draw, report) for run in runs)):
        pass


def training(run, draw, report, stop=lambda: False):
    """What train does, as a generator that pauses after each step; draw(t) returns the X and y of step t.

    The run changes in place.  Its weights are always those of its last finite loss or evaluation.
    """
    config = json.loads(run["config"])
    c, encode, evaluations = SimpleNamespace(**config), encoder(config), set(evaluation_steps(config))
    names, weights, update = weight_names(config), weights_of(run), {"gd": gd, "adam": adam}[c.optimizer]
    adam_means = [(f"m_{name}", f"v_{name}") for name in names] if c.optimizer == "adam" else []
    states = [tuple(run[mean] for mean in means) for means in adam_means] or [None] * len(names)

    def keep():
        run.update(zip(names, weights))
        for means, state in zip(adam_means, states):
            run.update(zip(means, state))
        return len(run["step"])

    keep_freed_memory()
    kept = keep()
    for t in range(kept, c.steps + 1):
        try:
            if t in evaluations and t not in run["eval_step"]:
                log(run, weights)
                kept = keep()
                report(run)
            if t == c.steps:
                return
            if stop():
                keep()
                raise KeyboardInterrupt
            X, y = draw(t)
            E = encode(c.T, config.get("draws"), stream(c.seed, "encodings", t))
            L, grads = loss_and_grads(weights, X, y, E, config)
            if not np.isfinite(L):
                raise FloatingPointError(f"the loss is not finite at step {t}")
        except FloatingPointError:
            del run["step"][kept:], run["loss"][kept:]      # as many as the weights in the run have updates
            raise
        kept = keep()
        run["step"].append(t)
        run["loss"].append(float(L))
        lr = learning_rate(config, t)
        for i, grad in enumerate(grads):
            weights[i], states[i] = update(weights[i], grad, states[i], lr, t + 1)
        yield


def train_population(run, report, stop):
    """As train, by gradient descent on the population loss; float64, and no batches.

    When stop() is true, asked now and then, the run is left as it was after the last evaluation.
    """
    config = json.loads(run["config"])
    c = SimpleNamespace(**config)
    if c.pe == "fixed":                 # all subsets, and the PE-PE block of W and the token block of V
        E, y = encoder(config)(c.T, 1, None)[0], theory.all_subsets(c.T, c.q)
        state = run["W"][c.d:, c.d:], run["V"][:, :c.d]

        def advance(state, steps):
            losses = []
            for _ in range(steps):
                if stop():
                    raise KeyboardInterrupt
                L, *grads = theory.integrated_loss_and_grads(*state, E, y)
                losses.append(float(L))
                state = [weight - c.lr * grad for weight, grad in zip(state, grads)]
            return losses, state

        def expand(state):
            return [np.pad(state[0], (c.d, 0)), np.pad(state[1], ((0, 0), (0, c.pe_dim)))]
    else:                               # two numbers, a and alpha
        W_star, V_star = sts.ground_truth(c.d, c.pe_dim, c.T if c.pe == "onehot" else None)
        state = [run[key][-1] if run[key] else 0.0 for key in ("a", "alpha")]
        slopes = lambda a, alpha: theory.onehot_slopes(a, alpha, c.T, c.d, c.q)
        if config.get("pe_family") == "rademacher":
            draws = max(20, SCORES // c.T)
            scores = theory.sample_scores(stream(c.seed, "encodings"), c.T, c.pe_dim, c.q, draws)
            slopes = lambda a, alpha: theory.stochastic_slopes(a, alpha, scores, c.d, c.q, c.draws)

        def advance(state, steps):
            losses = []
            while steps > 0:
                if stop():
                    raise KeyboardInterrupt
                L, a, alpha = theory.descend(slopes, c.lr, min(steps, 1000), (W_star ** 2).sum(), c.d, *state)
                losses, state, steps = losses + L[:-1].tolist(), [float(a[-1]), float(alpha[-1])], steps - 1000
            return losses, state

        def expand(state):
            return [state[0] * W_star, state[1] * V_star]

    for end in evaluation_steps(config):
        begin = len(run["step"])
        if end < begin or end in run["eval_step"]:
            continue
        try:
            losses, state = advance(state, end - begin)
        except OverflowError:
            losses = [math.nan]
        if not np.isfinite(losses).all():
            raise FloatingPointError(f"the loss is not finite between steps {begin} and {end}")
        run["step"] += range(begin, end)
        run["loss"] += losses
        try:
            log(run, expand(state))
        except FloatingPointError:
            del run["step"][begin:], run["loss"][begin:]
            raise
        run.update(zip("WV", expand(state)))
        if c.pe != "fixed":
            run["a"][-1], run["alpha"][-1] = state      # as they are, not as read off from W and V
        report(run)


def save(run, path):
    """Write a run to path, by way of a temporary file: an old file is replaced whole, or kept."""
    content, temporary = io.BytesIO(), f"{path}.{os.getpid()}.tmp"
    np.savez(content, **run)
    try:
        with open(temporary, "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load(path):
    """Read a run file: what train takes.  Raises ValueError, which names the file, if it is not whole."""
    try:
        with np.load(path, allow_pickle=False) as file:
            run = dict(file) | {"config": str(file["config"])}
        version = json.loads(run["config"])["format"]
    except OSError as problem:
        raise ValueError(f"{str(path)!r} cannot be read: {problem.strerror or problem}") from None
    except Exception:       # whatever a file that is no run file, or was damaged, makes the readers do
        raise ValueError(f"{str(path)!r} is not a run file of this train.py") from None
    if version != FORMAT:
        raise ValueError(f"{str(path)!r} is a run file of format {version!r}; this train.py reads format {FORMAT}")
    try:
        return check(run)
    except Exception as problem:
        raise ValueError(f"{str(path)!r} is a damaged run file: {problem}") from None


def check(run):
    """Raises an exception unless all of a run as read from a file fits together; returns the run."""
    config, flags = json.loads(run["config"]), []
    free = config.keys() & {*EVALUATION, "eval_draws", "format"}        # what no flag sets
    skip = free | set(SAMPLED if "population" in config else ())        # what the parser sets itself
    for key, value in config.items():
        if key not in free | vars(read([])).keys() - {"out", "resume", "quick", "benchmark"}:
            raise ValueError(f"{key} is not a setting")
        if key not in skip and value is not False:
            flags.append(f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}"))
    free = {key: config[key] for key in free}
    same = json.dumps(parse(flags)[0] | free, sort_keys=True) == json.dumps(config, sort_keys=True)
    if not same or not all(type(value) is int and 0 < value <= 10 ** 6 for value in free.values()):
        raise ValueError("its settings contradict each other")
    if memory(config) > MACHINE_MEMORY:
        raise ValueError("its settings need more memory than this machine has")
    template, n, m = start(config), len(run["step"]), len(run["eval_step"])
    errors = {"error", "error_se"} if config["model"] == "fcn" and n == config["steps"] else set()
    other = run.keys() ^ (template.keys() | errors)
    if other:
        raise ValueError(f"too much or missing: {', '.join(sorted(other))}")
    for key in sorted(run.keys() - {"config"}):
        value = template.get(key, 0.0)
        shape, kind = np.shape(value), np.asarray(value).dtype.kind
        if key in LOGS:
            shape, kind = (n if key in ("step", "loss") else m,), "i" if key in ("step", "eval_step") else "f"
            shape += np.shape(template[key[6:]]) if key.startswith("error_") else ()
        if run[key].shape != shape or run[key].size and run[key].dtype.kind != kind:
            raise ValueError(f"{key} has a wrong shape or type")
        if not np.isfinite(run[key]).all():
            raise ValueError(f"{key} is not finite")
    if any(run[key].tolist() != template[key] for key in ("T_test", "q_test")):
        raise ValueError("T_test or q_test do not belong to its settings")
    if any(run[name].dtype != template[name].dtype for name in weight_names(config)):
        raise ValueError("the weights do not have its dtype")
    evaluated = run["eval_step"].tolist()
    if n > config["steps"] or run["step"].tolist() != list(range(n)) or not m or evaluated[0] != 0 or (
            evaluated != sorted(set(evaluated)) or evaluated[-1] > n):
        raise ValueError("step or eval_step are not in order")
    return run


def whole(low):
    """An argparse type: whole numbers from low on."""
    def parse_whole(text):
        if not (text.isascii() and text.isdecimal() and len(text) <= 30 and int(text) >= low):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(text)
    return parse_whole


def positive(text):
    """An argparse type: finite numbers above 0."""
    try:
        if text.isascii() and "_" not in text and 0 < float(text) < math.inf:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0")


def command_line():
    """The flags, their help and their defaults, as an argparse parser that raises ValueError."""
    parser = argparse.ArgumentParser(
        prog="train.py", allow_abbrev=False,
        description="Train a model to output the mean of the q tokens that y selects.")
    def refuse(message):
        raise ValueError(message)

    parser.error = refuse

    def add(flag, text, default, **options):
        parser.add_argument(flag, help=f"{text} (default: {default})", **options)

    def size(flag, text):
        add(f"--{flag}", text, f"{PAPER[flag]}, or {QUICK[flag]} with --quick", type=whole(1),
            metavar="n" if flag == "batch" else flag)

    add("--model", "one-layer attention, or a fully-connected ReLU net", "attention",
        choices=["attention", "fcn"])
    add("--pe", "positional encoding: one-hot, random but fixed, or drawn afresh at each step",
        "stochastic", choices=["onehot", "fixed", "stochastic"])
    add("--pe-family", "law of fixed and stochastic encodings: random signs, or signed coordinate "
        "vectors", "rademacher", choices=["rademacher", "orthonormal"])
    add("--pe-dim", "dimension of an encoding", f"for rademacher {PE_DIM}, or {QUICK_PE_DIM} with "
        "--quick; else 2 T, which is the longest test length", type=whole(1), metavar="d_e")
    add("--draws", "stochastic encodings averaged in a training step", 1, type=whole(1), metavar="K")
    add("--attend-to-query", "the full model, with keys [Z, z_query]", "keys Z", action="store_true")
    add("--width", "of the first hidden layer of a net", "that of attention, d + d_e", type=whole(1),
        metavar="M")
    add("--depth", f"hidden layers of a net; after the first, of the same width but at least "
        f"{LATER_WIDTH}", 1, type=whole(1), metavar="L")
    add("--population", "gradient descent on the population loss: two numbers for one-hot and stochastic "
        "encodings, all subsets for fixed ones and a small T", "fresh batches",
        action="store_true")
    size("T", "sequence length")
    size("d", "token dimension")
    size("q", "number of selected tokens")
    size("batch", "fresh sequences in a step")
    size("steps", "training steps")
    add("--optimizer", "gradient descent or Adam", "gd; adam for fcn", choices=["gd", "adam"])
    add("--lr", "learning rate", "0.01 for adam; for gd 2, or 0.1 for fcn", type=positive, metavar="LR")
    add("--schedule", "of the learning rate: the same at all steps, or half a cosine from --lr to 0",
        "constant; cosine for fcn", choices=["constant", "cosine"])
    add("--init", f"attention weights at the start: zero, or normal with standard deviation {INIT_STD}",
        "zero", choices=["zero", "random"])
    add("--dtype", "arithmetic", "float32", choices=["float32", "float64"])
    add("--seed", "of all the run's randomness", 0, type=whole(0), metavar="SEED")
    add("--out", "file for the run", "in the folder runs beside train.py, named after the settings that "
        "differ from the default ones", metavar="RUN.npz")
    add("--resume", "continue the run in this file to its number of steps, with the settings that it holds; "
        "--steps raises that number, if the learning rate is constant", "a new run", metavar="RUN.npz")
    add("--quick", "classroom version, a few seconds", "off", action="store_true")
    add("--benchmark", "measure what a training step costs, and how that grows", "off", action="store_true")
    return parser


def read(argv):
    """The flags on a command line; those which are not there are None or False.  Raises ValueError."""
    args = command_line().parse_args(argv)
    for key, value in vars(args).items():
        if value == []:             # so argparse takes --flag=--
            raise ValueError(f"argument --{key.replace('_', '-')}: '--' is not a value that it can have")
    return args


def configuration(args):
    """The settings of a run: the flags that were given, and the others where the model has them."""
    given = {key: value for key, value in vars(args).items()
             if value not in (None, False) and key not in ("quick", "out", "resume", "benchmark")}
    config = dict(model="attention", **QUICK if args.quick else PAPER, dtype="float32", seed=0) | given
    pe_dim = QUICK_PE_DIM if args.quick else PE_DIM
    if config["model"] == "fcn":
        config = dict(width=config["d"] + pe_dim, depth=1, optimizer="adam", schedule="cosine") | config
        lr = {"gd": 0.1, "adam": 0.01}
    else:
        config = dict(pe="stochastic", draws=1, attend_to_query=False, init="zero", optimizer="gd",
                      schedule="constant", eval_draws=EVAL_DRAWS) | config
        if config["pe"] != "onehot":
            config = dict(pe_family="rademacher") | config
        if config.get("pe_family") != "rademacher":
            pe_dim = evaluation_sizes(config)[0][-1]
        config = dict(pe_dim=pe_dim) | config
        if args.population:
            config["dtype"] = "float64"
            del config["batch"]
        lr = {"gd": 2.0, "adam": 0.01}
    return dict(lr=lr[config["optimizer"]], format=FORMAT, **EVALUATION) | config


def memory(config):
    """Bytes that a run takes, roughly: weights, logs, and the arrays of a step or of an evaluation."""
    c, copies = SimpleNamespace(**config), 8 if config["optimizer"] == "adam" else 5
    logs = 100 * c.steps
    if c.model == "fcn":
        inputs, later, n = c.T * (c.d + 1), max(c.width, LATER_WIDTH), max(c.batch, TEST_CHUNK)
        numbers = (copies * (inputs + later + c.d) * c.width + copies * c.depth * later ** 2
                   + 3 * n * (inputs + c.depth * later))
        return numbers * np.dtype(c.dtype).itemsize + logs
    width, longest = c.d + c.pe_dim, evaluation_sizes(config)[0][-1]

    def arrays(n, T, K):
        return 2 * (n * T * c.d + K * T * c.pe_dim) + 6 * K * n * T + 4 * K * n * width

    numbers = copies * width * (width + c.d)
    numbers += max(arrays(config.get("batch", 1), c.T, c.draws),
                   arrays(c.eval_sequences, longest, c.eval_draws))
    return numbers * np.dtype(c.dtype).itemsize + logs


def parse(argv):
    """Command line -> config (a dict), file for the run.  Raises ValueError, with what is allowed."""
    args = read(argv)
    config = configuration(args)
    c, longest = SimpleNamespace(**config), evaluation_sizes(config)[0][-1]

    def refuse(key, why):
        value = "" if getattr(args, key) is True else f" {getattr(args, key) or config[key]}"
        raise ValueError(f"argument --{key.replace('_', '-')}:{value} {why}")

    other = "fcn" if c.model == "attention" else "attention"
    for key in ONLY[other]:
        if getattr(args, key):
            refuse(key, f"has no meaning with --model {c.model}; allowed with --model {other}")
    if args.population:
        for key in SAMPLED:
            if getattr(args, key):
                refuse(key, "has no meaning with --population; allowed without it")
        if c.model == "fcn":
            refuse("model", "has no --population; allowed with --model attention")
    if c.q > c.T:
        refuse("q", f"is more than --T {c.T}; allowed: 1 to {c.T}")
    if c.model == "attention":
        if c.pe == "onehot" and c.T == 1:
            refuse("T", "leaves --pe onehot nothing to select; allowed: at least 2")
        if c.pe == "onehot" and args.pe_family:
            refuse("pe_family", "has no meaning with --pe onehot; allowed with --pe fixed or --pe stochastic")
        if c.pe != "stochastic" and c.draws > 1:
            refuse("draws", f"has no meaning with --pe {c.pe}, which is one draw; allowed with --pe stochastic")
        family = config.get("pe_family", "one-hot")
        if family != "rademacher" and c.pe_dim < longest:
            refuse("pe_dim", f"is too small for {family} encodings; allowed: at least {longest}, the "
                   "longest test length (2 T)")
        if args.population and c.pe == "fixed" and math.lgamma(c.T + 1) - math.lgamma(c.q + 1) - math.lgamma(
                c.T - c.q + 1) + math.log(c.T) > math.log(ENUMERATED):
            refuse("T", f"has too many subsets of size {c.q} for --population --pe fixed; allowed: (T choose "
                   f"q) T up to {ENUMERATED}")
    need, have = memory(config) / 1e9, MACHINE_MEMORY / 1e9
    if need > have:
        sizes = "T", "d", "batch", "pe_dim", "draws", "width", "depth", "steps"
        given = " ".join(f"--{size.replace('_', '-')} {config[size]}" for size in sizes if size in config)
        raise ValueError(f"arguments {given}: too large, about {need:.3g} GB of memory; "
                         f"allowed: {have:.3g} GB, which this machine has")
    plain = ["--model", "fcn"] if c.model == "fcn" else ["--pe", c.pe] + ["--population"] * args.population
    usual = configuration(read(plain + ["--quick"] * args.quick))
    name = [plain[1]] + ["population"] * args.population + ["quick"] * args.quick
    name += [key.replace("_", "-") + ("" if value is True else f"={value}")
             for key, value in config.items() if value != usual[key]]
    return config, args.out if args.out is not None else RUNS / ("-".join(name) + ".npz")


def resume(args):
    """The run of --resume, with the number of steps raised to that of --steps, and its file.

    Raises ValueError, with what is allowed.
    """
    others = [key.replace("_", "-") for key, value in vars(args).items()
              if value not in (None, False) and key not in ("resume", "steps")]
    if others:
        raise ValueError(f"argument --{others[0]}: has no meaning with --resume, which takes the settings from "
                         "the file; allowed: --steps")
    try:
        run = load(args.resume)
    except ValueError as problem:
        raise ValueError(f"argument --resume: {problem}; allowed: a file that train.py has written") from None
    config, n = json.loads(run["config"]), args.steps
    if n not in (None, config["steps"]):
        if config["schedule"] != "constant":
            raise ValueError(f"argument --steps: {n} is not the number for which the learning rate of "
                             f"{args.resume!r} falls to 0; allowed: {config['steps']}")
        if n < config["steps"]:
            raise ValueError(f"argument --steps: {n} is less than {args.resume!r} is meant to have; allowed: at "
                             f"least {config['steps']}")
        run["config"] = json.dumps(config | {"steps": n})
        run = {key: value for key, value in run.items() if key not in ("error", "error_se")}    # of the end
    return run, Path(args.resume).resolve()


def check_out(flag, given, config):
    """The path to which a run can be saved, and the number of steps of the same run that is there.

    Raises ValueError if it cannot be written, or would overwrite something else.
    """
    try:
        if not str(given).endswith(".npz"):
            raise ValueError("its name does not end in .npz")
        path, there = Path(given).resolve(), -1
        if path.parent == RUNS:
            RUNS.mkdir(exist_ok=True)
        if path.exists():
            run = load(path)
            there = len(run["step"])
            free = {"steps": 0} if config["schedule"] == "constant" else {}
            if json.loads(run["config"]) | free != config | free:
                raise ValueError("it holds a run with other settings")
            if there > config["steps"]:
                raise ValueError(f"it has {there} steps already")
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "wb"):
            pass
        os.remove(temporary)
        return path, there
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ValueError(f"argument {flag}: {str(given)!r} cannot be used: {reason}; allowed: an .npz file in a "
                         "folder that can be written, a new one or one of a run with these same settings") from None


def describe(config):
    """What is going to be trained, in words."""
    c = SimpleNamespace(**config)
    if c.model == "fcn":
        model = (f"A fully-connected ReLU net with layers of {', '.join(map(str, layer_sizes(config)))}; "
                 "init He")
    else:
        family = f" {c.pe_family}" if "pe_family" in config else ""
        draws = f", {c.draws} draws a step" if c.draws > 1 else ""
        keys = "[Z, z_query]" if c.attend_to_query else "Z"
        model = f"Attention with keys {keys}; {c.pe}{family} PE, d_e = {c.pe_dim}{draws}; init {c.init}"
    decay = ", falling to 0 as a cosine" if c.schedule == "cosine" else ""
    how = f"{c.optimizer}, lr {c.lr:g}{decay}, "
    how += "on the population loss" if "population" in config else f"batches of {c.batch}"
    return (f"Sparse token selection: the mean of q = {c.q} out of T = {c.T} tokens, d = {c.d}.\n{model};\n"
            f"{how}, {c.dtype}, seed {c.seed}.\n")


def bound(config):
    """The loss that no net with the first layer of this one can beat."""
    return fcn.width_lower_bound(config["width"], config["T"], config["d"], config["q"])


def short(number):
    """A loss in a few characters, also while it diverges."""
    return f"{number:.4f}" if number < 1000 else f"{number:.1e}"


def progress(config, done=0):
    """A report for train, from done steps on: rows of a table, on a terminal each over the last.

    Its loss is the mean since the last row; cos W and cos V are the cosine similarities to W*, V*.
    """
    begin, end = time.time(), "\r" if sys.stdout.isatty() else "\n"
    T, longest = config["T"], evaluation_sizes(config)[0][-1]
    columns = f"{f'T={longest}':>7}   cos W   cos V" if config["model"] == "attention" else "  bound"
    print(f"   step      loss  {f'error T={T}':>12}  {columns}  steps/s    left")

    def report(run):
        t, error = run["eval_step"][-1], run["error_T_test"][-1]
        loss, rate, left = "-", "-", "-"
        if t > 0:
            loss = short(np.mean(run["loss"][run["eval_step"][-2]:]))
        if t > done:
            rate = (t - done) / (time.time() - begin)
            rate, left = f"{rate:.0f}", f"{(config['steps'] - t) / rate:.0f} s"
        if config["model"] == "attention":
            columns = f"{short(error[-1]):>7}  {run['cos_W'][-1]:6.3f}  {run['cos_V'][-1]:6.3f}"
        else:
            columns = f"{bound(config):7.4f}"
        print(f"{t:7d}  {loss:>8}  {short(error[0]):>12}  {columns}  {rate:>7}  {left:>6}",
              end="\n" if t == config["steps"] else end, flush=True)
    return report


def summary(run):
    """The end of a finished run as a table, with d/(2q), the expected loss of the zero predictor."""
    config, last = json.loads(run["config"]), run["eval_step"][-2]
    c = SimpleNamespace(**config)
    rows = [(f"training loss, last {c.steps - last} steps", np.mean(run["loss"][last:]), c.q)]
    rows += [(f"error at T_test = {T}{' (as in training)' if T == c.T else ''}", error, c.q)
             for T, error in zip(run["T_test"], run["error_T_test"][-1])]
    rows += [(f"error at q_test = {q}", error, q)
             for q, error in zip(run["q_test"], run["error_q_test"][-1])]
    if c.model == "fcn":
        rows += [(f"error on {TEST_SEQUENCES} more sequences", run["error"], c.q),
                 (f"lower bound for first-layer width {c.width}", bound(config), c.q)]
    lines = [f"{'':40}          d/(2q), the zero predictor's"]
    for name, value, q in rows:
        zero = c.d / (2 * q)
        lines.append(f"{name:40}  {value:7.4f}  {zero:7.4f}  ({value / zero:.1%})")
        if name.startswith("error on"):
            lines[-1] += f", standard error {run['error_se']:.4f}"
    if c.model == "attention":
        for name, multiple in ("W", "a"), ("V", "alpha"):
            lines.append(f"{f'cosine similarity of {name} to {name}*':40}  {run[f'cos_{name}'][-1]:7.4f}"
                         f"  nearest multiple {run[multiple][-1]:.4f} {name}*")
    elif bound(config) > 0:
        excess = (run["error"] - bound(config)) / run["error_se"]
        lines.append(f"{'error / lower bound':40}  {run['error'] / bound(config):7.4f}  (the difference is "
                     f"{excess:.1f} standard errors)")
    return "\n".join(lines)


def benchmark():
    """Print what the parts of a training step cost, and how the whole grows with each size."""
    def milliseconds(call):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - begin) / 20 * 1000)
        return min(times)

    def measure(*flags):
        """The parts of a step and all of it in milliseconds, and its peak memory in MB."""
        config = parse([*map(str, flags), "--init", "random"])[0]
        c, encode, weights = SimpleNamespace(**config), encoder(config), initial_weights(config)
        t = itertools.count()

        def sample():
            return batch(config, next(t))

        def draw_E():
            return encode(c.T, c.draws, stream(c.seed, "encodings", next(t)))

        def step():
            X, y = sample()
            _, *grads = sts.loss_and_grads(*weights, X, y, draw_E())
            return [weight - c.lr * grad for weight, grad in zip(weights, grads)]

        (X, y), E = sample(), draw_E()
        f, cache = sts.forward(*weights, X, y, E)
        grads = sts.backward(cache, f)
        parts = (sample, draw_E, lambda: sts.forward(*weights, X, y, E), lambda: sts.backward(cache, f),
                 lambda: [w - c.lr * g for w, g in zip(weights, grads)], step)
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        return [milliseconds(part) for part in parts], peak

    def speed(dtype):
        config, speeds = parse(["--dtype", dtype, "--steps", "300"])[0], []
        for _ in range(3):
            run, begin = start(config | {"evaluations": 1, "eval_sequences": 1}), time.perf_counter()
            train(run, ahead=True)
            speeds.append(300 / (time.perf_counter() - begin))
        return max(speeds)

    keep_freed_memory()
    c = SimpleNamespace(**parse([])[0])
    array = c.batch * c.T * c.pe_dim * 4 / 1e6
    print(f"A step at T = {c.T}, d = {c.d}, q = {c.q}, d_e = {c.pe_dim}, n = {c.batch}, K = {c.draws}: milliseconds "
          "of each part on one core,\nits peak memory, and the steps/s of training, where a second core draws the "
          "next batch.\n\n          X and y      E  forward  backward  update    step  peak MB  steps/s")
    for dtype in "float32", "float64":
        (sample, encode, forward, backward, update, step), peak = measure("--dtype", dtype)
        print(f"{dtype:9} {sample:7.2f}  {encode:5.2f}  {forward:7.2f}  {backward:8.2f}  {update:6.2f}  "
              f"{step:6.2f}  {peak:7.1f}  {speed(dtype):7.0f}")
    print(f"\nThere is no (n, T, d_e) array; it alone would have {array:.1f} MB in float32.  How a step grows, "
          "in float32:\n\n              step ms   ratio  peak MB   ratio")
    base = measure()
    for flag, value in (None, None), ("--T", 2 * c.T), ("--batch", 2 * c.batch), ("--pe-dim", 2 * c.pe_dim), (
            "--draws", 2), ("--draws", 4), ("--draws", 8):
        parts, peak = measure(flag, value) if flag else base
        name = f"{flag} {value}" if flag else "as above"
        print(f"{name:13} {parts[-1]:7.2f}  {parts[-1] / base[0][-1]:6.2f}  {peak:7.1f}  {peak / base[1]:6.2f}")


def main():
    """Do what the command line says; returns the exit status."""
    try:
        args = read(sys.argv[1:])
        if args.benchmark:
            if len(sys.argv) > 2:
                raise ValueError("argument --benchmark: stands alone; allowed: no other flag with it")
            benchmark()
            return 0
        if args.resume is None:
            config, given = parse(sys.argv[1:])
            out, there = check_out("--out", given, config)
            run = start(config)
        else:
            run, given = resume(args)
            out, there = check_out("--resume", given, json.loads(run["config"]))
        return train_and_save(run, out, there)
    except ValueError as problem:
        fail(problem)
        return 2
    except MemoryError as problem:
        fail(f"{problem}. Try a smaller --T, --d, --pe-dim, --width, --batch or --draws")
        return 1
    except KeyboardInterrupt:
        fail("interrupted")
        return 130
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):        # as in: python train.py | head
            return 130
        fail(f"standard output: {problem.strerror}")
        return 1


def fail(message):
    """Say on standard error, in one line, what is wrong."""
    print("train.py: error:", str(message).replace("\n", "\\n"), file=sys.stderr)


def train_and_save(run, out, there):
    """Train a run to the end or to a signal, and save it at each evaluation; returns the exit status.

    there is the number of steps of this run which the file out has already; it is never shortened.
    """
    config, signals, begin = json.loads(run["config"]), [], time.time()
    shown, before, status, failed = os.path.relpath(out), len(run["step"]), 0, False

    def note(number, frame):        # training ends at the next step that asks
        signals.append(number)

    def save_progress():
        nonlocal there, failed
        if len(run["step"]) > max(there, 0):
            try:
                save(run, out)
                there = len(run["step"])
            except OSError as problem:      # said once; it may work again later
                if not failed:
                    fail(f"{shown} cannot be written, {problem.strerror}; it has {max(there, 0)} steps of "
                         "this run")
                failed = True

    def report(run):
        save_progress()
        show(run)

    handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        print(describe(config))
        show = progress(config, before)
        train(run, report, ahead=True, stop=lambda: bool(signals))
        print("\n" + summary(run))
    except FloatingPointError as problem:
        print()
        fail(f"{problem}: the run has diverged. Try a lower --lr than {config['lr']:g}")
        status = 1
    except (KeyboardInterrupt, BrokenPipeError) as problem:
        if isinstance(problem, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print()
        fail("interrupted")
        status = 143 if signal.SIGTERM in signals else 130
    done = len(run["step"])
    save_progress()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if max(there, 0) < done:
        return status or 1
    if done < there or done == 0:
        print(f"\n{done} of {config['steps']} steps, nothing is written to {shown}")
    else:
        print(f"\n{done} of {config['steps']} steps in {time.time() - begin:.0f} s, saved in {shown}")
        if status in (130, 143):
            print(f"To go on: python train.py --resume {shown}")
    return status


if __name__ == "__main__":
    sys.exit(main())
