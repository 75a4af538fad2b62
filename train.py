"""Train the attention model of sts.py, or the net of fcn.py.

    python train.py --pe stochastic                                the main job
    run = train.train(pe="fixed", T=20, d=3, q=2, steps=2000)      from Python

A run is a dict of arrays, and run["config"] the dict of all its settings (see SETTINGS), so that
train.train(**run["config"]) repeats it.  Its file is a plain .npz, for train.load, or for
numpy.load with allow_pickle=False, where config is JSON text.

    W, V                   the weights: (d + d_e, d + d_e), (d, d + d_e); those of a net are
                           weight_1, bias_1, weight_2, ...: (inputs, outputs), (outputs,)
    m_W, v_W, ...          under Adam the running means of their gradients, and of the squares
    E                      fixed and one-hot encodings of all positions: (longest length, d_e)
    step, loss             t = 0, 1, ..., and the loss of the weights after t updates on the batch
                           of that moment, as the optimizer sees it: (steps,)
    eval_step              the numbers of updates after which errors were measured: (m,)
    T_test, error_T_test   sequence lengths, and the error at each, with subset size q: (a,), (m, a)
    q_test, error_q_test   other subset sizes, and the error at each, at length T: (b,), (m, b)
    se_T_test, se_q_test   the standard errors of these errors
    cos_W, cos_V           cosine similarity of W to W*, and of V to V*: (m,); fixed encodings have
                           no W* of their own, and are compared with that of stochastic ones
    a, alpha               the multiples of W* and V* that are nearest to W and V: (m,)

An error is the loss on sequences that stay the same during a run, and are not trained on.  With
stochastic encodings it is that of Definition 5, the mean over `eval_draws` draws of E standing for
the expectation; a training step averages over `draws`, by default one.  For q >= 3 one draw of
random signs gives the selected tokens unequal logits: then the loss ends above the error.
"""

import argparse
import json
import math
import os
import signal
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: one core computes, the other draws batches
    for threads in "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS":
        os.environ.setdefault(threads, "1")

import numpy as np

import fcn
import sts

RUNS = Path(__file__).resolve().parent / "runs"

# The settings of a run: one table, of which the command line, the configuration and the name of the
# file are made.


def whole(least):
    """The type of a flag: whole numbers from least on."""
    def whole_number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)
    return whole_number


def positive_number(text):
    """The type of a flag: finite numbers above 0."""
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above 0")
    return float(text)


def whole_numbers(text):
    """The type of a flag: whole numbers with commas between them."""
    return [whole(1)(size) for size in text.split(",")]


def law(c):
    """The name in sts.LAWS of the encodings with the settings c."""
    return "onehot" if c["pe"] == "onehot" else c["pe_family"]


def pe_dim(c):
    """2 T for laws that need as many dimensions as positions, 170 for others, 32 with --quick."""
    least = sts.LAWS[law(c)][1](2 * c["T"])
    return least if least > 1 else 32 if c["quick"] else 170


def test_lengths(c):
    """T to 2 T, for T = 200 the paper's lengths and T itself; those for which d_e is enough."""
    lengths = sorted({c["T"] * k // 4 for k in (4, 5, 6, 7, 8)})
    return [T for T in lengths if T == c["T"] or sts.LAWS[law(c)][1](T) <= c["pe_dim"]]


ATTENTION, NET = ("model", ["attention"]), ("model", ["fcn"])
RANDOM, FRESH = ("pe", ["fixed", "stochastic"]), ("pe", ["stochastic"])
SETTINGS = [
    # name; default, or a function of the settings above; choices, or type of the flag; help; the
    # setting, and its values, with which alone it has a meaning
    ("quick", False, bool, "a small task for the classroom", None),
    ("model", "attention", ["attention", "fcn"], "one-layer attention, or a net", None),
    ("T", 200, whole(1), "sequence length", None),
    ("d", 5, whole(1), "token dimension", None),
    ("q", 3, whole(1), "number of selected tokens", None),
    ("pe", "stochastic", ["onehot", "fixed", "stochastic"],
     "positional encoding: one-hot, random but fixed, or drawn afresh at each step", ATTENTION),
    ("pe_family", "rademacher", [name for name in sts.LAWS if name != "onehot"],
     "law of random encodings", RANDOM),
    ("pe_dim", pe_dim, whole(1), "dimension d_e of an encoding (default: 170, with --quick 32; 2 T "
     "for onehot and orthonormal)", ATTENTION),
    ("draws", 1, whole(1), "draws of the encodings that a training step averages", FRESH),
    ("attend_to_query", False, bool, "the full model: keys [Z, z_query] instead of Z", ATTENTION),
    ("query", "sum", ["sum", "mean"], "what z_query is of selected encodings", ATTENTION),
    ("init", "zero", ["zero", "random"], "attention weights at the start", ATTENTION),
    ("init_std", 0.02, positive_number, "standard deviation of random ones", ("init", ["random"])),
    ("width", lambda c: c["d"] + (32 if c["quick"] else 170), whole(1),
     "of a net's first hidden layer (default: that of attention, d + d_e)", NET),
    ("depth", 1, whole(1), "hidden layers of a net; from the second on of 64 units or more", NET),
    ("batch", 256, whole(1), "sequences in a step", None),
    ("full_batch", False, bool, "the same sequences at every step, not fresh ones", None),
    ("steps", 10000, whole(1), "training steps", None),
    ("optimizer", "gd", ["gd", "adam"], "gradient descent or Adam", None),
    ("lr", 2.0, positive_number, "learning rate", None),
    ("schedule", "constant", ["constant", "cosine"],
     "of the learning rate: constant, or falling to 0 as half a cosine", None),
    ("dtype", "float32", ["float32", "float64"], "arithmetic", None),
    ("seed", 0, whole(0), "of all the run's randomness", None),
    ("evaluations", 20, whole(1), "during the run, besides the one at its start", None),
    ("eval_sequences", 128, whole(2), "sequences for each error; the default is the paper's", None),
    ("eval_draws", 16, whole(1), "draws of the encodings that an evaluation averages", FRESH),
    ("T_test", test_lengths, whole_numbers,
     "test lengths (default: 1, 5/4, 3/2, 7/4 and 2 times T, as far as d_e allows)", ATTENTION),
    ("q_test", lambda c: [q for q in (2, 3, 4, 5, 8) if q != c["q"] and q <= c["T"]], whole_numbers,
     "test subset sizes (default: those of 2, 3, 4, 5, 8 that are not q)", ATTENTION),
]
OTHER_DEFAULTS = {      # where a setting above has this value
    ("quick", True): {"T": 20, "d": 3, "q": 2, "batch": 128, "steps": 3000},
    ("model", "fcn"): {"optimizer": "adam", "schedule": "cosine", "eval_sequences": 10000},
    ("optimizer", "adam"): {"lr": 0.01},
}


def configuration(**given):
    """All settings of a run: a dict of those that are given, and of defaults for the others.

    Raises ValueError for a name or a choice that does not exist, and for a setting that has no
    meaning together with the others.
    """
    config = {}
    for name, default, kind, _, meaningful in SETTINGS:
        flag, value = f"argument --{name.replace('_', '-')}:", given.pop(name, None)
        if meaningful and config.get(meaningful[0]) not in meaningful[1]:
            if value is not None:
                raise ValueError(f"{flag} {value!r} has no meaning here; allowed with "
                                 f"--{meaningful[0]} {' or '.join(meaningful[1])}")
            continue
        if value is None:
            value = default(config) if callable(default) else default
            for (other, where), values in OTHER_DEFAULTS.items():
                value = values.get(name, value) if config.get(other) == where else value
        if isinstance(kind, list) and value not in kind:
            raise ValueError(f"{flag} {value!r} is not one of {', '.join(kind)}")
        config[name] = value
    if given:
        raise ValueError(f"no setting is named {', '.join(given)}; allowed: see train.SETTINGS")
    return config


def file_name(c):
    """A name for the file of a run, after the settings that do not follow from earlier ones."""
    given = {key: c[key] for key in ("quick", "model", "pe") if key in c}
    name = [c.get("pe", "fcn")] + ["quick"] * c["quick"]
    for key, value in c.items():
        if value != configuration(**given).get(key):
            given[key] = value
            text = f"{value:g}" if isinstance(value, float) else str(value)
            text = "" if value is True else "=" + text.strip("[]").replace(" ", "")
            name.append(key.replace("_", "-") + text)
    return "-".join(name) + ".npz"


# What a run draws.  Each purpose has a random stream of its own, and each step of training too: so
# runs with one seed see the same sequences, and a run can go on at any step.


def stream(seed, purpose, *part):
    """The numpy.random.Generator of one purpose, or of a part of it, such as step t."""
    key = ("weights", "encodings", "training", "validation").index(purpose), *part
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=key)))


def batch(c, t):
    """The X and y of step t; with full_batch the same at all steps."""
    rng = stream(c["seed"], "training", 0 if c["full_batch"] else t)
    return sts.sample_sts(rng, c["batch"], c["T"], c["d"], c["q"], c["dtype"])


def batches(c, begin, end):
    """The batches of the steps from begin to end; a thread draws the next one meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(batch, c, begin)
        for t in range(begin, end):
            X, y = upcoming.result()
            upcoming = pool.submit(batch, c, t + 1)
            yield X, y


def encodings(run, T, draws, *purpose):
    """E (draws, T, d_e), drawn afresh for this purpose; or (1, T, d_e), if a run has fixed ones."""
    c = run["config"]
    if c["model"] == "fcn":
        return None
    if "E" in run:
        return run["E"][None, :T]
    rng = stream(c["seed"], *purpose)
    return sts.positional_encoding(law(c), T, c["pe_dim"], rng, draws, c["dtype"])


# The model of a run


def weight_names(c):
    """The names of the weights in a run, in the order of gradients."""
    if c["model"] == "attention":
        return ["W", "V"]
    return [f"{kind}_{layer}" for layer in range(1, c["depth"] + 2) for kind in ("weight", "bias")]


def net_params(run):
    """The weights of a net as fcn.py takes them, [(weight_1, bias_1), ...]."""
    arrays = [run[name] for name in weight_names(run["config"])]
    return list(zip(arrays[::2], arrays[1::2]))


def initial_weights(c):
    """The weights before training, in order."""
    rng = stream(c["seed"], "weights")
    if c["model"] == "fcn":
        later = [max(c["width"], 64)] * (c["depth"] - 1)
        layers = fcn.init_fcn(rng, [c["T"] * (c["d"] + 1), c["width"], *later, c["d"]], c["dtype"])
        return [array for layer in layers for array in layer]
    width, std = c["d"] + c["pe_dim"], c.get("init_std", 0.0)
    return [std * rng.standard_normal((rows, width), c["dtype"]) for rows in (width, c["d"])]


def output(run, X, y, E):
    """The output f (n, d); that of attention is the mean over the draws E (K, T, d_e)."""
    c = run["config"]
    if c["model"] == "fcn":
        return fcn.forward(net_params(run), fcn.encode(X, y))[0]
    return sum(sts.forward(run["W"], run["V"], X, y, E_k, c["attend_to_query"], c["query"])[0]
               for E_k in E) / len(E)


def loss_and_grads(run, X, y, E):
    """The loss on a batch, and the gradients of the weights, in order."""
    c = run["config"]
    if c["model"] == "fcn":
        L, grads = fcn.loss_and_grads(net_params(run), X, y)
        return L, [array for layer in grads for array in layer]
    L, *grads = sts.loss_and_grads(run["W"], run["V"], X, y, E, c["attend_to_query"], c["query"])
    return L, grads


# Training

LOGS = ("step", "loss", "eval_step", "error_T_test", "error_q_test", "se_T_test", "se_q_test",
        "cos_W", "cos_V", "a", "alpha")


def start(c):
    """A new run with the configuration c: its initial weights, and their errors."""
    weights = dict(zip(weight_names(c), initial_weights(c)))
    run = {"config": c, **weights, **{log: [] for log in LOGS}}
    run["T_test"] = np.array(c.get("T_test", [c["T"]]))         # a net takes no other length
    run["q_test"] = np.array(c.get("q_test", []), dtype=int)
    if c["optimizer"] == "adam":
        run |= {f"{mean}_{name}": 0 * array for name, array in weights.items() for mean in "mv"}
    if c.get("pe") in ("onehot", "fixed"):
        run["E"] = encodings(run, max(c["T"], *c["T_test"]), 1, "encodings")[0]
    evaluate(run)
    return run


def task_losses(run, T, q, *purpose):
    """The losses of a run on each of its eval_sequences, which are drawn for this purpose."""
    c = run["config"]
    rng = stream(c["seed"], *purpose, 0)
    X, y = sts.sample_sts(rng, c["eval_sequences"], T, c["d"], q, c["dtype"])
    E = encodings(run, T, c.get("eval_draws", 1), *purpose, 1)
    return 0.5 * ((output(run, X, y, E) - sts.sts_target(X, y)) ** 2).sum(axis=1).astype(float)


def diverged(c, t, losses):
    """Raises FloatingPointError if losses after t updates are not finite."""
    if not np.isfinite(losses).all():
        raise FloatingPointError(f"loss not finite at step {t}: try a lower --lr than {c['lr']:g}")


def evaluate(run):
    """Log the errors of the weights as they are, and how near they are to the ground truth."""
    c, lengths = run["config"], len(run["T_test"])
    tasks = [(T, c["q"]) for T in run["T_test"].tolist()]
    tasks += [(c["T"], q) for q in run["q_test"].tolist()]
    losses = np.array([task_losses(run, *task, "validation", i) for i, task in enumerate(tasks)])
    errors, deviations = losses.mean(axis=1), losses.std(axis=1) / math.sqrt(c["eval_sequences"])
    diverged(c, len(run["loss"]), errors)
    for log, values in ("error", errors), ("se", deviations):
        run[f"{log}_T_test"].append(values[:lengths])
        run[f"{log}_q_test"].append(values[lengths:])
    if c["model"] == "attention":
        truth = sts.ground_truth(c["d"], c["pe_dim"], c["T"] if c["pe"] == "onehot" else None)
        for name, multiple, star in zip("WV", ("a", "alpha"), truth):
            run[f"cos_{name}"].append(sts.cosine(run[name], star))
            run[multiple].append((run[name] * star).sum() / (star * star).sum())
    run["eval_step"].append(len(run["loss"]))


def learning_rate(c, t):
    """The learning rate after t updates."""
    decay = (1 + math.cos(math.pi * t / c["steps"])) / 2 if c["schedule"] == "cosine" else 1
    return c["lr"] * decay


def update(run, name, grad, t, beta1=0.9, beta2=0.999, eps=1e-8):
    """Step t = 1, 2, ... of gradient descent, or of Adam (Kingma and Ba, 2015), for one weight."""
    direction = grad
    if run["config"]["optimizer"] == "adam":
        m = run[f"m_{name}"] = beta1 * run[f"m_{name}"] + (1 - beta1) * grad
        v = run[f"v_{name}"] = beta2 * run[f"v_{name}"] + (1 - beta2) * grad ** 2
        direction = m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + eps)
    run[name] = run[name] - learning_rate(run["config"], t - 1) * direction


def step(run, X, y):
    """One step of training.  Raises FloatingPointError if the loss is not finite."""
    c, t = run["config"], len(run["loss"])
    E = encodings(run, c["T"], c.get("draws", 1), "encodings", t)
    L, grads = loss_and_grads(run, X, y, E)
    diverged(c, t, L)
    for name, grad in zip(weight_names(c), grads):
        update(run, name, grad, t + 1)
    run["step"].append(t)
    run["loss"].append(float(L))


def train_together(runs, report=lambda run: None):
    """Train runs of start or load to their ends, in place, each as it would be trained alone.

    They see the same batches, which are drawn once.  report(run) is called after each evaluation.
    Raises ValueError if their batches differ, and FloatingPointError if one of them diverges.
    """
    first = runs[0]["config"]
    for key in "seed", "T", "d", "q", "batch", "full_batch", "dtype":
        if any(run["config"][key] != first[key] for run in runs):
            raise ValueError(f"runs that are trained together need the same {key}")
    for run in runs:
        run |= {log: list(run[log]) for log in LOGS}
    begin, end = min(len(run["loss"]) for run in runs), max(run["config"]["steps"] for run in runs)
    with np.errstate(over="ignore", invalid="ignore"):      # a run that diverges says so once
        for t, (X, y) in enumerate(batches(first, begin, end), begin):
            for run in runs:
                steps, evaluations = run["config"]["steps"], run["config"]["evaluations"]
                if len(run["loss"]) == t < steps:
                    step(run, X, y)
                    if (t + 1) * evaluations // steps > t * evaluations // steps:
                        evaluate(run)
                        report(run)
    for run in runs:
        run |= {log: np.array(run[log]) for log in LOGS}


def train(report=lambda run: None, **settings):
    """Train one model with these settings, and the defaults of the others; returns the run.

    report(run) is called after each evaluation.  Errors as in configuration and train_together.
    """
    run = start(configuration(**settings))
    train_together([run], report)
    return run


def save(run, path):
    """Write a run to path, by way of a temporary file: an old file is replaced whole, or kept."""
    with open(f"{path}.tmp", "wb") as file:
        np.savez(file, **run | {"config": json.dumps(run["config"])})
    os.replace(f"{path}.tmp", path)


def load(path):
    """Read the file of a run.  Raises ValueError if it is not one."""
    try:
        with np.load(path, allow_pickle=False) as file:
            run = dict(file)
        return run | {"config": json.loads(str(run["config"]))}
    except Exception:       # whatever another file makes the readers do
        raise ValueError(f"argument --out: {str(path)!r} is not the file of a run") from None


# The command line


def command_line():
    """The argparse parser: a flag for each setting, and two for the file."""
    parser = argparse.ArgumentParser(
        description="Train a model to output the mean of the q tokens that y selects.",
        usage="%(prog)s [--pe {onehot,fixed,stochastic}] [--quick] [other flags, see --help]",
        argument_default=argparse.SUPPRESS, allow_abbrev=False)
    for name, default, kind, text, _ in SETTINGS:
        if not callable(default):
            text += f" (default: {'off' if kind is bool else default}"
            for (other, where), values in OTHER_DEFAULTS.items():
                if name in values:
                    text += f"; with --{other}{'' if where is True else ' ' + where} {values[name]}"
            text += ")"
        how = ({"action": "store_true"} if kind is bool else
               {"choices": kind} if isinstance(kind, list) else {"type": kind, "metavar": name})
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
    parser.add_argument("--out", metavar="RUN.npz", help="file for the run (default: in the folder "
                        "runs beside train.py, named after the settings that differ from the "
                        "defaults); an earlier run with the same settings is replaced")
    parser.add_argument("--resume", action="store_true", default=False,
                        help="go on with the earlier run of these settings, if there is one")
    return parser


def bound(c):
    """The loss that no net with a first layer of this width can beat."""
    return fcn.width_lower_bound(c["width"], c["T"], c["d"], c["q"])


def progress(run, begin, seconds):
    """Print the last evaluation as a line, seconds after that of step begin, which has the titles.

    The loss is the mean since the evaluation before.
    """
    c, t, errors = run["config"], run["eval_step"][-1], run["error_T_test"][-1]
    columns = {"   step": t, "    loss": "-", f"error T={run['T_test'][0]}": errors[0]}
    if c["model"] == "attention":
        columns |= {f"error T={run['T_test'][-1]}": errors[-1],
                    " cos W": run["cos_W"][-1], " cos V": run["cos_V"][-1]}
    else:
        columns |= {"  bound": bound(c)}
    columns |= {"steps/s": "-", "  left": "-"}
    if t == begin:
        print(*columns, sep="  ")
    else:
        rate = (t - begin) / seconds
        columns |= {"    loss": np.mean(run["loss"][run["eval_step"][-2]:]),
                    "steps/s": f"{rate:.0f}", "  left": f"{(c['steps'] - t) / rate:.0f} s"}
    texts = [f"{value:.4f}" if isinstance(value, float) else value for value in columns.values()]
    print(*[f"{text:>{len(title)}}" for title, text in zip(columns, texts)], sep="  ", flush=True)


def summary(run):
    """Print the end of a run, beside d/(2q), the expected loss of the zero predictor."""
    c, last = run["config"], run["eval_step"][-2]
    name = f"training loss, last {c['steps'] - last} steps"
    rows = [(name, np.mean(run["loss"][last:]), "", c["q"])]
    for test in "T_test", "q_test":
        for size, error, se in zip(run[test], run[f"error_{test}"][-1], run[f"se_{test}"][-1]):
            q = size if test == "q_test" else c["q"]
            rows.append((f"error at {test} = {size}", error, f"{se:.4f}", q))
    if c["model"] == "fcn":
        rows.append((f"lower bound for first-layer width {c['width']}", bound(c), "", c["q"]))
    print(f"\n{'':40}         std. err.  share of d/(2q)")
    for name, value, se, q in rows:
        zero = c["d"] / (2 * q)
        print(f"{name:40}  {value:6.4f}  {se:>8}  {value / zero:6.1%} of {zero:.4f}")
    for name, multiple in (("W", "a"), ("V", "alpha")) if c["model"] == "attention" else ():
        print(f"{f'cosine similarity of {name} to {name}*':40}  {run[f'cos_{name}'][-1]:6.4f}  "
              f"          nearest multiple {run[multiple][-1]:.4f} {name}*")


def main():
    """Do what the command line says."""
    parser, begin = command_line(), time.time()
    given = vars(parser.parse_args())
    out, resume = given.pop("out", None), given.pop("resume")

    def report(run):
        save(run, path)
        progress(run, first, time.time() - begin)

    try:        # before training, for what sts.py, NumPy or the disk refuse
        c = configuration(**given)
        path = RUNS / file_name(c) if out is None else Path(out)
        run = start(c)
        if path.exists():
            old = load(path)
            if old["config"] != c:
                raise ValueError(f"argument --out: {str(path)!r} holds a run with other settings")
            run = old if resume else run
        step(run | {"step": [], "loss": []}, *batch(c, 0))      # on a copy, which is thrown away
        if out is None:
            RUNS.mkdir(exist_ok=True)
        save(run, path)
    except (ValueError, MemoryError) as problem:
        parser.error(problem)
    except OSError as problem:
        parser.error(f"argument --out: {path} cannot be written: {problem.strerror}")
    settings = ", ".join(f"{key} = {value}" for key, value in c.items())
    print("Sparse token selection: the mean of the q tokens that y selects.\n"
          + textwrap.fill(settings, 98) + "\n")
    first, shown = len(run["loss"]), os.path.relpath(path)
    progress(run, first, 0)
    try:
        train_together([run], report)
    except KeyboardInterrupt:
        sys.exit(f"\ntrain.py: interrupted; {shown} has {run['eval_step'][-1]} steps; the same "
                 "command with --resume goes on from there")
    except (FloatingPointError, MemoryError, OSError) as problem:
        sys.exit(f"train.py: error: {problem}; {shown} has {run['eval_step'][-1]} steps")
    summary(run)
    print(f"\n{c['steps']} steps in {time.time() - begin:.0f} s, saved in {shown}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)       # as in: python train.py | head
    main()
