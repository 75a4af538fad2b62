"""Sparse token selection by a fully-connected ReLU net, and a bound that none of its width beats.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024).  NumPy only.  `python fcn.py` prints a small table.

Throughout this file we have:

    n, T, d, q   batch size, sequence length, token dimension, subset size
    X, y         tokens, i.i.d. N(0, 1), and the q selected positions   (n, T, d), (n, q) ints
    m            width of the first layer
    inputs       vec(X), then the indicator of y: ones and zeros        (n, T d + T)
    h_l          hidden layer l, h_0 being the inputs                   (n, width of layer l)
    params       [(weight, bias)] of each layer                 [((inputs, outputs), (outputs,))]
    f            the output, h_l = relu(h_{l-1} weight + bias) but for the last layer    (n, d)

The task is STS_q(X, y) = (1/q) sum_{i in y} x_i (Definition 1), with y a uniform q-subset.  The
paper proves that a net needs a first layer of width Omega(T d).  `width_lower_bound` is an exact
average-case bound (derived here), and `constructed_fcn` gives nets of width 2 T d, and even T d,
that succeed.  The inputs of a net, the layers and their start are our choice.
"""

import math

import numpy as np


def init_fcn(rng, sizes, dtype=np.float64):
    """Random params of a net with the layers sizes = [inputs, hidden, ..., outputs].

    Weights are N(0, 2 / inputs) (He et al., 2015; the last layer N(0, 1 / inputs)), biases zero.
    `rng` is a numpy.random.Generator.  Raises ValueError unless sizes are 2 or more, all >= 1.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"need sizes [inputs, ..., outputs], each at least 1, got {sizes}")
    gains = [2.0] * (len(sizes) - 2) + [1.0]
    return [(rng.standard_normal((a, b), dtype=dtype) * np.asarray(math.sqrt(gain / a), dtype),
             np.zeros(b, dtype)) for a, b, gain in zip(sizes, sizes[1:], gains)]


def encode(X, y):
    """What the net sees of X (n, T, d), y (n, q): vec(X), then the indicator of y; (n, T d + T).

    vec(X) is x_0, ..., x_{T-1} one after another.  Raises ValueError if y holds anything but
    positions 0..T-1.
    """
    n, T, d = X.shape
    if y.min() < 0 or y.max() >= T:
        raise ValueError(f"need positions from 0 to {T - 1} in y, got {y.min()} to {y.max()}")
    inputs = np.zeros((n, T * d + T), dtype=X.dtype)
    inputs[:, :T * d] = X.reshape(n, T * d)
    inputs[np.arange(n)[:, None], T * d + y] = 1
    return inputs


def forward(params, inputs):
    """The output f (n, d) for inputs (n, T d + T), and a cache for backward.

    Raises ValueError if the inputs do not fit the first weight.
    """
    if inputs.shape[-1] != len(params[0][0]):
        raise ValueError(f"need inputs (n, {len(params[0][0])}), got {inputs.shape}")
    hidden = [inputs]                                       # h_0
    for weight, bias in params[:-1]:
        a = hidden[-1] @ weight + bias                      # (n, width)
        hidden.append(np.maximum(a, 0))                     # relu: h_1, h_2, ...
    weight, bias = params[-1]
    return hidden[-1] @ weight + bias, (params, hidden)


def backward(cache, df):
    """Gradients of a scalar loss, given df = dL/df (n, d) and the cache of forward.  Derived.

    Their structure is that of params.  Where a unit is at its kink, a = 0, its slope is taken as 0.
    """
    params, hidden = cache
    grads, da = [], df                                      # the last layer has no relu: a = f
    for layer in reversed(range(len(params))):
        # a = h weight + bias
        grads.append((hidden[layer].T @ da, da.sum(axis=0)))
        if layer > 0:       # h = relu(a of the layer before)
            da = (da @ params[layer][0].T) * (hidden[layer] > 0)
    return grads[::-1]


def loss_and_grads(params, X, y):
    """The loss L = 1/(2n) sum ||f - STS_q(X, y)||^2 over the batch, and its gradients.

    X is (n, T, d), y is (n, q); the gradients are [(dL/dweight, dL/dbias), ...] as in params.
    Errors as in encode and forward.  A net that always answers 0 has E[L] = d / (2q).
    """
    f, cache = forward(params, encode(X, y))
    r = f - X[np.arange(len(X))[:, None], y].mean(axis=1)   # (n, d), f - STS_q(X, y)
    return 0.5 * (r * r).sum() / len(X), backward(cache, r / len(X))


def width_lower_bound(m, T, d, q):
    """The loss which no net with a first layer of width m can beat; m is a number or an array.

        L >= 1/2 [ d/q - min(m, d)/T - max(min(m, T d) - d, 0) (T - q) / (q T (T - 1)) ]

    It holds for X i.i.d. N(0, 1), y uniform, and for anything at all after the first linear map:
    any depth, any nonlinearity.  It falls in m from d/(2q) at m = 0 to 0 at m = T d.

    Derived, as follows.  Write x = vec(X), in R^(T d), and the target as A x, with
    A = (1/q) (1_y^T (x) I_d), where 1_y is the indicator of y and (x) the Kronecker product.
    1. Give the net y for free.  Of x it then knows m numbers, linear in x; let P be the orthogonal
       projection, of rank m or less, onto what they span.  P x and (I - P) x are independent, as x
       is Gaussian.  So the best answer is E[A x | P x] = A P x, and it misses A (I - P) x:
       2 L >= E ||A (I - P) x||^2 = tr(A^T A (I - P)) for each y, hence 2 L >= tr(S) - tr(S P), with
       S = E_y[A^T A] = (M (x) I_d) / q^2 and M = E[1_y 1_y^T].
    2. tr(S P) is at most the sum of the m largest eigenvalues of S (Ky Fan).  M has q/T on its
       diagonal and q (q - 1) / (T (T - 1)) off it.  So the vector of ones has the eigenvalue q^2/T,
       and all that is orthogonal to it has q (T - q) / (T (T - 1)).  Divided by q^2, and d times
       each, S has d eigenvalues 1/T, then d (T - 1) no larger ones (T - q) / (q T (T - 1));
       tr(S) = d/q.
    3. No better bound holds for "anything after it", if m >= 1: let the first layer compute the m
       best numbers, and add to one of them a large multiple B of an integer that codes y.  Rounding
       gives y back, unless the number exceeds B/2, and the best answer A P x can then be computed.
    Raises ValueError unless m >= 0, T, d >= 1 and 1 <= q <= T.
    """
    if np.min(m) < 0 or min(T, d) < 1 or not 1 <= q <= T:
        raise ValueError(f"need m >= 0, T, d >= 1 and 1 <= q <= T, got {m=}, {T=}, {d=}, {q=}")
    mean_directions = np.minimum(m, d)                      # of the m: those of eigenvalue 1/T
    others = np.clip(m, d, T * d) - d
    return (d / q - mean_directions / T - others * (T - q) / (q * T * max(T - 1, 1))) / 2


def constructed_fcn(T, d, q, B, narrow=False):
    """Params of a net with one hidden layer, of width 2 T d, that solves the task as B grows.

        f = (1/q) sum_i [ relu(x_i + B (y_i - 1)) - relu(-x_i + B (y_i - 1)) ],   y_i = 1[i in y]

    (derived; coordinate by coordinate; in the code R repeats y_i for the d coordinates of x_i).
    For i in y the bracket is relu(x_i) - relu(-x_i) = x_i; for the others 0, as long as |x_i| <= B.
    constructed_loss has the rest.

    narrow: a net of width T d, the least that the bound allows; exact while all |x_i| <= B:

        f = (1/q) sum_i relu(x_i + B (2 y_i - 1)) - B    (x_i + B for the q in y, 0 for the others)
    """
    I, R = np.eye(T * d), np.repeat(np.eye(T), d, axis=1)   # (T d, T d), (T, T d)
    V = np.tile(np.eye(d), (T, 1)) / q                      # (T d, d)
    if narrow:
        return [(np.concatenate([I, 2 * B * R]), np.full(T * d, -float(B))),
                (V, np.full(d, -float(B)))]
    return [(np.block([[I, -I], [B * R, B * R]]), np.full(2 * T * d, -float(B))),
            (np.concatenate([V, -V]), np.zeros(d))]


def constructed_loss(T, d, q, B, narrow=False):
    """The expected loss of constructed_fcn.  Derived.

    Each coordinate of the T - q tokens that are not in y adds ((x - B)_+ - (-x - B)_+) / q, with
    mean 0 and second moment 2 s / q^2, where s = E (x - B)_+^2:   L = (d/q^2) (T - q) s.
    narrow: each coordinate of all T tokens adds (x - B)_+ / q (those in y with -x for x), of one
    sign and with mean mu / q:   L = d/(2 q^2) (T (s - mu^2) + T^2 mu^2).
    """
    Q, phi = math.erfc(B / math.sqrt(2)) / 2, math.exp(-B * B / 2) / math.sqrt(2 * math.pi)
    mu, s = phi - B * Q, (1 + B * B) * Q - B * phi
    if narrow:
        return d / (2 * q * q) * (T * (s - mu * mu) + (T * mu) ** 2)
    return d / (q * q) * (T - q) * s


def demo():
    """Print the bound at the paper's size, the constructed nets, and a check of backward."""
    rng = np.random.default_rng(0)
    T, d, q, d_e = 200, 5, 3, 170
    zero = d / (2 * q)

    print(f"The paper's size: T = {T}, d = {d}, q = {q}. No net whose first layer has m units,")
    print("whatever comes after it, has a loss below this bound:\n")
    print("    width m    bound   of d/(2q)")
    for m, note in ((0, "always answers 0"), (d, "d: the mean of all tokens"), (50, ""), (100, ""),
                    (d + d_e, "d + d_e, the width of attention"), (500, ""), (750, ""),
                    (T * d - 1, ""), (T * d, "T d")):
        L = width_lower_bound(m, T, d, q)
        print(f"    {m:7d}   {L:.4f}   {L / zero:9.1%}   {note}".rstrip())

    n = 500
    X = rng.standard_normal((n, T, d))
    y = rng.random((n, T)).argsort(axis=1)[:, :q]
    print(f"\nTwo nets that solve the task as B grows, of width 2 T d and T d; {n} sequences.")
    print(f"Their largest |x| is {abs(X).max():.2f}: for B beyond it only rounding is left, where")
    print("the formula counts rare tokens.\n")
    print(f"         width {2 * T * d:5d}           width {T * d:5d}")
    print("    B    formula  measured    formula  measured")
    for B in range(7):
        columns = [f"{constructed_loss(T, d, q, B, narrow):9.1e} "
                   f"{loss_and_grads(constructed_fcn(T, d, q, B, narrow), X, y)[0]:9.1e}"
                   for narrow in (False, True)]
        print(f"    {B}  " + "  ".join(columns))

    print("\nThe gradients by hand, against the complex step Im L(params + ih way) / h, for")
    T, h = 6, 1e-30
    X, y = X[:50, :T], rng.random((50, T)).argsort(axis=1)[:, :q]
    params = init_fcn(rng, [T * d + T, 20, 10, d])
    way = [[rng.standard_normal(w.shape) for w in layer] for layer in params]
    moved = [[w + 1j * h * v for w, v in zip(*layers)] for layers in zip(params, way)]
    _, grads = loss_and_grads(params, X, y)
    slope = sum((g * v).sum() for layers in zip(grads, way) for g, v in zip(*layers))
    check = loss_and_grads(moved, X, y)[0].imag / h
    print(f"a net with two hidden layers, in a random direction: relative difference "
          f"{abs(slope - check) / abs(check):.0e}")


if __name__ == "__main__":
    demo()
