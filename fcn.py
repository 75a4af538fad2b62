"""Sparse token selection by fully-connected ReLU nets, and a lower bound on their loss.

Companion to "Transformers Provably Learn Sparse Token Selection While Fully-Connected Nets
Cannot" (Wang, Wei, Hsu, Lee, ICML 2024, arXiv:2406.06893).  NumPy only.
`python fcn.py` gives a tour.  MIT licence, the contributors to "Sparse token selection in NumPy".

The task is STS_q(X, y) = (1/q) sum_{i in y} x_i (Definition 1), the mean of the q tokens whose
positions are in y.  Throughout this file we have:

    n, T, d, q   batch size, sequence length, token dimension, subset size
    X            tokens x_j, i.i.d. N(0, I_d)                           (n, T, d)
    y            the q selected positions, a uniform q-subset           (n, q) ints
    m            width of the first layer
    inputs       vec(X) = x_0, ..., x_{T-1} one after another, then the indicator of y,
                 which is 1 at selected positions and 0 elsewhere       (n, T d + T)
    h_l          hidden layer l, where h_0 is the inputs                (n, width of layer l)
    params       a list with (weight, bias) of each layer; their shapes are (inputs, outputs) and
                 (outputs,), where the outputs of a layer are the inputs of the next
    a_l          h_{l-1} weight_l + bias_l, and h_l = relu(a_l)         (n, width of layer l)
    f            the output, a_l of the last layer                      (n, d)

The paper proves that nets need a width of Omega(T d).  `width_lower_bound` is a bound of this
order with its constants, for Gaussian X and uniform y (derived here); `constructed_fcn` gives a net
of width T d that is exact for bounded tokens.  Inputs, layers and initial weights are our choice.
"""

import math

import numpy as np


def init_fcn(rng, sizes, dtype=np.float64):
    """Random params of a net; sizes = [inputs, hidden, ..., outputs] are the widths of its layers.

    Weights are N(0, 2 / inputs) (He et al., 2015), but N(0, 1 / inputs) in the last layer.
    Biases are 0.  `rng` is a numpy.random.Generator.
    Raises ValueError unless there are two or more sizes, each at least 1.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"need sizes [inputs, ..., outputs], each at least 1, got {sizes}")
    gains = [2.0] * (len(sizes) - 2) + [1.0]
    return [(rng.standard_normal((a, b), dtype) * math.sqrt(gain / a), np.zeros(b, dtype))
            for a, b, gain in zip(sizes, sizes[1:], gains)]


def encode(X, y):
    """The inputs of a net (n, T d + T): vec(X) for X (n, T, d), and the indicator of y (n, q).

    Raises ValueError unless each row of y holds q different positions from 0 to T-1.
    """
    (n, T, d), y = X.shape, np.asarray(y)
    repeated = (np.diff(np.sort(y)) == 0).any()
    if y.shape[:-1] != (n,) or y.min() < 0 or y.max() >= T or repeated:
        raise ValueError(f"need y (n, q) with {n = }, and different positions from 0 to {T - 1} in "
                         f"each row, got y {y.shape} with positions from {y.min()} to {y.max()}")
    indicator = np.zeros((n, T), X.dtype)
    np.put_along_axis(indicator, y, 1, axis=1)
    return np.concatenate([X.reshape(n, T * d), indicator], axis=1)


def sts_target(X, y):
    """STS_q(X, y) = (1/q) sum_{i in y} x_i, the mean of the selected tokens (n, d).  Def. 1."""
    return X[np.arange(len(X))[:, None], y].mean(axis=1)


def forward(params, inputs):
    """The output f (n, d) for inputs (n, T d + T), and a cache for backward."""
    hidden = [inputs]                                       # h_0
    for weight, bias in params[:-1]:
        a = hidden[-1] @ weight + bias                      # a_l       (n, width of layer l)
        hidden.append(np.maximum(a, 0))                     # h_l = relu(a_l)
    weight, bias = params[-1]
    return hidden[-1] @ weight + bias, (params, hidden)


def backward(cache, r):
    """Gradients of a scalar loss L, from r = dL/df (n, d) and the cache of forward.

    They have the structure of params.  Derived by the chain rule, from the last layer to the first.
    In the last layer a_l = f, so that dL/da_l = r.  Each line of forward gives:

        a_l = h_{l-1} weight_l + bias_l     dL/dweight_l = h_{l-1}^T dL/da_l
                                            dL/dbias_l = sum over the batch of dL/da_l
                                            dL/dh_{l-1} = dL/da_l weight_l^T
        h_{l-1} = relu(a_{l-1})             dL/da_{l-1} = dL/dh_{l-1} where h_{l-1} > 0, else 0
    """
    params, hidden = cache
    grads, da = [], r
    for layer in reversed(range(len(params))):
        weight, h = params[layer][0], hidden[layer]         # a = h weight + bias
        grads.append((h.T @ da, da.sum(axis=0)))
        if layer > 0:
            da = (da @ weight.T) * (h > 0)                  # of the layer before
    return grads[::-1]


def loss(params, X, y):
    """The loss L = 1/(2n) sum ||f - STS_q(X, y)||^2 over the batch, X (n, T, d) and y (n, q).

    The zero predictor, f = 0, has the expected loss d / (2q).
    """
    f, _ = forward(params, encode(X, y))
    return 0.5 * ((f - sts_target(X, y).reshape(f.shape)) ** 2).sum() / len(X)


def loss_and_grads(params, X, y):
    """The loss L, and its gradients [(dL/dweight, dL/dbias), ...].  Arguments as in loss."""
    f, cache = forward(params, encode(X, y))
    residual = f - sts_target(X, y).reshape(f.shape)        # raises if the net has not d outputs
    return 0.5 * (residual ** 2).sum() / len(X), backward(cache, residual / len(X))


def width_lower_bound(m, T, d, q):
    """A lower bound on the expected loss of nets with a first layer of width m, one or an array.

        L >= 1/2 [ max(d - m, 0) / T + max(T d - max(m, d), 0) (T - q) / (q T (T - 1)) ]

    It holds on average over X i.i.d. N(0, 1) and an independent uniform y (a batch can be
    memorized), and for any layers after the first, unless they read X again.  The first weights
    must not depend on y; random ones have the bound for each outcome.  It falls to 0 at m = T d.

    Derived as follows.  Let x = vec(X), in R^(T d).  The target is H x, with
    H = (1/q) kron(1_y^T, I_d), where 1_y is the indicator of y and kron the Kronecker product.
    1. Give the net y for free.  Then its output depends on x only through m linear functions, which
       are the same for every y.  Let Q be the orthogonal projection onto their span: the net sees
       Q x only.  Since x is Gaussian, Q x and (I - Q) x are independent.  So the best output is
       H Q x, and it misses the target by H (I - Q) x.  For each y, the mean over x of the square is
       tr(H^T H (I - Q)).  So 2 L >= tr(S (I - Q)), where S is the mean of H^T H over y.
    2. tr(S (I - Q)) is at least the sum of all but the m largest eigenvalues of S (Ky Fan).  Let M
       be the mean of 1_y 1_y^T, so that S = kron(M, I_d) / q^2.  M has q/T on its diagonal and
       q (q - 1) / (T (T - 1)) elsewhere.  Its eigenvalues are q^2/T, for the vector of ones, and
       q (T - q) / (T (T - 1)), for vectors orthogonal to it.  So S has d eigenvalues 1/T, and
       d (T - 1) eigenvalues (T - q) / (q T (T - 1)), which are not larger.  The bound is half the
       sum of those that are left: the best net spends its first d units on the mean of all tokens.
    3. So for q < T an error of eps d/(2q) or less needs m >= T d (1 - eps (T - 1) / (T - q)).
    Raises ValueError unless m >= 0, T, d >= 1 and 1 <= q <= T.
    """
    if np.min(m) < 0 or min(T, d) < 1 or not 1 <= q <= T:
        raise ValueError(f"need m >= 0, T, d >= 1 and 1 <= q <= T, got {m=}, {T=}, {d=}, {q=}")
    large = d - np.minimum(m, d)                            # eigenvalues 1/T that are left
    small = T * d - np.clip(m, d, T * d)                    # and the other ones
    return (large / T + small * (T - q) / (q * T * max(T - 1, 1))) / 2


def constructed_fcn(T, d, q, B):
    """Params of a net with one hidden layer, of width T d, that is exact while all |x_i| <= B.

        f = -B + (1/q) sum_i relu(x_i + B (2 s_i - 1)),   s_i = 1[i in y]

    for each coordinate of the tokens x_i.  Derived: relu gives x_i + B for the q positions in y,
    and 0 for the others, so the sum is the target plus B.  Width T d is enough.
    """
    B, I = float(B), np.eye(T * d)
    repeat = np.repeat(np.eye(T), d, axis=1)                # s_i for the d coordinates  (T, T d)
    mean = np.tile(np.eye(d), (T, 1)) / q                   # sums over i, divided by q  (T d, d)
    first = np.concatenate([I, 2 * B * repeat]), np.full(T * d, -B)
    return [first, (mean, np.full(d, -B))]


def demo():
    """Print a tour: the bound, the constructed nets, and training."""
    rng = np.random.default_rng(0)
    T, d, q, d_e = 50, 5, 3, 100                            # d_e: dimension of an encoding (sts.py)

    print(f"The bound at T = {T}, d = {d}, q = {q}.  No net with m units in its first layer has a")
    print("smaller expected loss, whatever its other layers are:\n")
    print("    width m    bound   of d/(2q)")
    for m, note in ((0, "the zero predictor"), (d, "d: the mean of all tokens"), (50, ""),
                    (d + d_e, "d + d_e, the width of attention"), (200, ""), (T * d - 1, ""),
                    (T * d, "T d")):
        L = width_lower_bound(m, T, d, q)
        print(f"    {m:7d}   {L:.4f}   {L / (d / (2 * q)):9.1%}   {note}".rstrip())

    T, d, q = 5, 2, 2

    def draw(n):
        return rng.standard_normal((n, T, d)), rng.random((n, T)).argsort(axis=1)[:, :q]

    X, y = draw(10_000)
    print(f"\nA constructed net of width T d = {T * d} at T = {T}, d = {d}, q = {q}.  It errs only")
    print(f"if some |x| > B.  Its loss on 10000 sequences, largest |x| {abs(X).max():.2f}:\n")
    for B in range(6):
        print(f"    B = {B}   {loss(constructed_fcn(T, d, q, B), X, y):8.1e}")

    print("\nNets with one hidden layer after 3000 steps of gradient descent on new sequences (the")
    print("learning rate falls from 0.5 to 0), and their loss on 200000 further sequences:")
    for m in d, T * d // 2, T * d:
        params = init_fcn(rng, [T * d + T, m, d])
        for t in range(3000):
            _, grads = loss_and_grads(params, *draw(128))
            lr = 0.5 * (1 - t / 3000)
            params = [(w - lr * dw, b - lr * db) for (w, b), (dw, db) in zip(params, grads)]
        L = loss(params, *draw(200_000))
        print(f"    width {m:2d}   loss {L:.3f}   bound {width_lower_bound(m, T, d, q):.3f}")
    print(f"The zero predictor has {d / (2 * q):.3f}.")


if __name__ == "__main__":
    demo()
