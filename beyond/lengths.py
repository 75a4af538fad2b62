"""Stochastic orthonormal encodings at other lengths and sizes: the loss from two numbers.

    python beyond/lengths.py                     prints what is derived

Symbols are those of two_numbers.py.  T and q are those of training, T_test and q_test of a test.
With W = a W* and V = alpha V* selected positions have the logit a and others 0, at every length up
to d_e.  So a and alpha give the loss on every test.  Fixed encodings are in fixed.py.
"""

from two_numbers import descend, main     # first: it gives NumPy one thread

import numpy as np


def output_scale(a, alpha, T_test, q_test):
    """alpha s, the output over the target; s is the attention on the selected positions together.

    Training brings it to 1 at T and q.  The best alpha there rises from 1 to (1 + sqrt(T/q))/2,
    while s is still small, and returns to 1 as s does.  At a larger q_test s is larger: there
    alpha s passes 1, overshoots, and comes down again.
    """
    selected = q_test * np.exp(a)
    return alpha * selected / (selected + T_test - q_test)


def stochastic_loss(a, alpha, T_test, d, q_test):
    """The loss d/2 sum_j r_j^2 at T_test and q_test; a and alpha may be arrays.

    It is d/(2 q_test) [(1 - alpha s)^2 + alpha^2 (1 - s)^2 q_test/(T_test - q_test)]: the scale,
    and what falls on tokens that are not selected.  Both go to 0 as s and alpha go to 1, so at
    every length up to d_e the loss goes to 0 if that of training does, as a grows.
    """
    scale = output_scale(a, alpha, T_test, q_test)
    rest = (alpha - scale) ** 2 * q_test / (T_test - q_test)
    return d / (2 * q_test) * ((1 - scale) ** 2 + rest)


def demo():
    """Print the errors at longer lengths over the steps, and the dip at a larger size."""
    T, d, q, d_e, lr, steps = 200, 5, 3, 400, 5.0, 100_000
    print(f"Gradient descent on the population loss, {T = }, {d = }, {q = }, {d_e = }, {lr = :g}:\n"
          "errors over d/(2 q_test), with stochastic orthonormal encodings.\n\n"
          "    step       a   alpha   T=200   T=300   T=400   q_test=8")
    _, a, alpha = descend(lr, steps, d_e, T, d, q)
    for t in 1000, 3000, 10_000, 30_000, 100_000:
        errors = [stochastic_loss(a[t], alpha[t], *test) * 2 * test[2] / d
                  for test in ((200, d, q), (300, d, q), (400, d, q), (T, d, 8))]
        print(f"  {t:6}  {a[t]:6.3f}  {alpha[t]:6.3f}" + "   {:.3f}   {:.3f}   {:.3f}      {:.3f}"
              .format(*errors))
    L, scale = stochastic_loss(a, alpha, T, d, 8), output_scale(a, alpha, T, 8)
    rising = np.flatnonzero(np.diff(L) > 0)
    print("\nAt q_test = 8 it dips where alpha s, output over target, is near 1.\n\n"
          "    step   error   alpha s")
    for t in rising[0], rising[-1] + 1, steps:
        print(f"  {t:6}   {L[t] * 2 * 8 / d:.3f}   {scale[t]:7.2f}")


if __name__ == "__main__":
    main(__doc__, demo)
