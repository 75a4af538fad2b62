"""The full model, in which the query is one more key: sum or mean decides the rate.

    python beyond/full_model.py                     prints what is derived
    python beyond/full_model.py picture.png         also trains, and plots both

Symbols are those of two_numbers.py.  Encodings are stochastic and orthonormal, so ||W*||^2 = d_e.
U is the sum of the selected encodings, or their mean.  The maps of two_numbers.py map z_query as
they map the keys, so training has two numbers here, too.  All is derived here.
"""

from common import UNTESTED, main, row     # first: NumPy gets one thread

import math

import numpy as np

from two_numbers import descend


def slopes(a, alpha, T, d, q, query):
    """L, dL/da and dL/dalpha.  With W = a W* the logits of unselected positions are 0.

    U is scale times the sum of the selected encodings, so their logits are a scale, and that of the
    query is a scale^2 q.  The query has the value V z_query = 0: it takes attention and adds
    nothing to f.  The slopes by the logits are as in two_numbers.py, with g_query = 0.
    """
    scale = 1 if query == "sum" else 1 / q
    e_in, e_query = math.exp(a * scale), math.exp(a * scale ** 2 * q)
    p_out = 1 / (q * e_in + T - q + e_query)
    p_in, p_query = e_in * p_out, e_query * p_out
    r_in, r_out = alpha * p_in - 1 / q, alpha * p_out
    L = d / 2 * (q * r_in ** 2 + (T - q) * r_out ** 2)
    dalpha = d * (q * r_in * p_in + (T - q) * r_out * p_out)
    mean = alpha * dalpha
    da = scale * q * p_in * (d * alpha * r_in - mean) - scale ** 2 * q * p_query * mean
    return L, da, dalpha


def late_loss(t, T, d, q, query, lr, d_e):
    """What L tends to, to leading order, as the number of steps t grows; t may be an array.

    Mean: the query and the selected positions have the same logit, so alpha stays bounded and has
    its best value.  There L = d/(2q) (T - q) / (q e^(2a/q) + T - q), and dL/da = -(2/q) L at the
    end.  So da/dt = (lr/d_e) (2/q) L, and 1/L grows by 4 lr / (q^2 d_e) a step.

    Sum, q >= 2: the logit of the query is q times that of a selected position, so the query takes
    the attention: p_in = e^(-(q-1)a), p_out = e^(-qa), and alpha has to grow like e^((q-1)a) / q.
    Its slope, proportional to p_in, becomes small: alpha is slow, and a is the best one for alpha.
    There dL/da = 0, which means r_in = -(T - q) alpha p_out^2 / ((q-1) p_in), and alpha moves by
        dalpha/dt = -lr (q r_in p_in + (T - q) alpha p_out^2) = lr (T - q) alpha p_out^2 / (q-1).
    With dalpha/dt = (q-1) alpha da/dt this gives e^(2qa) = 2 q lr (T - q) t / (q-1)^2.  Hence, with
    L = d/2 (T - q) (alpha p_out)^2 = d (T - q) / (2 q^2) e^(-2a),
        L = d (T - q) / (2 q^2) [2 q lr (T - q) t / (q-1)^2]^(-1/q),   whatever d_e is.
    """
    if query == "mean" or q == 1:
        return q * q * d_e / (4 * lr * t)
    return d * (T - q) / (2 * q * q) * (2 * q * lr * (T - q) * t / (q - 1) ** 2) ** (-1 / q)


def exact_loss(steps, T, d, q, query, lr, d_e):
    """L before each step, and at the end, by the recursion on a and alpha (steps + 1,)."""
    return descend(lr, steps, d_e, T, d, q, slopes=lambda *given: slopes(*given, query))[0]


def demo():
    """Print L at three times, over what it tends to."""
    print("L over late_loss, T = 20, d = 5, q = 3, d_e = 20, lr 1.\n\n     step     sum    mean")
    t, settings = np.array([1000, 10_000, 100_000]), (1.0, 20)
    ratios = [exact_loss(t[-1], 20, 5, 3, query, *settings)[t]
              / late_loss(t, 20, 5, 3, query, *settings) for query in ("sum", "mean")]
    for line in zip(t, *ratios):
        print("  {:7d}  {:6.3f}  {:6.3f}".format(*line))


# Training

SIZES = {2: ("#08306B", "o"), 3: ("#0072B2", "s"), 5: ("#6A51A3", "^")}     # q: color, marker
QUERIES = {"sum": "$t^{-1/q}$", "mean": "1/t"}                              # and their rates
ARMS = {f"full_model {query} {q}": UNTESTED | {
    "T": 20, "q": q, "d_e": 20, "law": "orthonormal", "lr": 1.0, "steps": 4000,
    "attend_to_query": True, "query": query} for query in QUERIES for q in SIZES}


def figure():
    """Train, plot L against t for both queries, and print it over the recursion."""
    import matplotlib.pyplot as plt
    import plots
    runs, t = plots.trained(ARMS), np.unique(np.geomspace(10, 100_000, 200).astype(int))
    late, edges = t[t >= 1000], np.geomspace(10, 4000, 13).astype(int)
    canvas, axes = plt.subplots(1, 2, figsize=(10, 6), sharey=True)
    for axis, (query, rate) in zip(axes, QUERIES.items()):
        ends = []
        for q, (color, marker) in SIZES.items():
            found = runs[f"full_model {query} {q}"]
            L = exact_loss(t[-1], 20, 5, q, query, 1.0, 20)
            axis.plot(t, L[t], color=plots.THEORY, linewidth=1.5)
            tail = late_loss(late, 20, 5, q, query, 1.0, 20)
            axis.plot(late, tail, ":", color=plots.THEORY)
            means = [[run["loss"][i:j].mean() for run in found]
                     for i, j in zip(edges, edges[1:])]
            axis.plot(np.sqrt(edges[1:] * edges[:-1]), means, marker, color=color,
                      fillstyle="none", markersize=9, label=[f"q = {q}"] + ["_"] * (len(found) - 1))
            ends += [run["loss"][-400:].mean() / L[3600:4000].mean() for run in found]
        axis.set(title=f"{query}: {rate}", xscale="log", yscale="log", xlabel="step t")
        axis.legend(loc="lower left", handletextpad=0.1)
        row(f"{query}: loss at the end / recursion", ends)
    axes[0].set(ylabel="loss L")
    canvas.suptitle("The full model: the sum or the mean as query decides the rate")
    plots.caption(canvas, "Solid: exact. Dotted: at large t. Points: trained, 3 seeds. T = 20, "
                  "d = 5, $d_e$ = 20, lr = 1, fresh batches of 256 sequences.")
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
