"""What fixed random signs learn: a new position gets a share of a trained one's logit.

    python beyond/fixed_signs.py                     prints what is derived
    python beyond/fixed_signs.py picture.png         also trains (two minutes), and plots both

The runs of Figure 2 are measured, too, and trained if plots.py has not (half an hour).  Symbols are
those of two_numbers.py.  E holds encodings of T trained positions, and of new ones after them: each
e_j has d_e random signs over sqrt(d_e), drawn once.  B is W's block on encodings, so e_j . B e_j is
what a selected position j adds to its own logit.
"""

import numpy as np

from two_numbers import main, row


def new_position_share(T, d_e):
    """e . B e at new positions over trained ones, on the plateau: T/(T + d_e - 1).

    There attention is even and V = alpha V*, so dL/dA_j = -(d alpha/(q T)) (1[j in y] - q/T).  In
    the mean over y the step of B is a multiple of sum_j e_j e_j^T - (1/T) u u^T, where sums are
    over trained positions, and u = sum_j e_j is their common part.  A trained e meets itself in
    sum_j (e_j . e)^2, which has the mean 1 + (T - 1)/d_e; a new e meets only overlaps, T/d_e.
    (u . e)^2 has the same two means.  So the common part makes both 1 - 1/T times as large, and
    their ratio stays.  Stochastic encodings have the share 1, fixed orthonormal ones 0.
    """
    return T / (T + d_e - 1)


def exact_block(E):
    """A block B (d_e, d_e) with E B E^T = I, for linearly independent encodings E (T, d_e).

    With a B the logits are a at selected positions and 0 at others, as if E were orthonormal.  So
    the loss has no floor.  For d_e < T there is no such block: the rank of E B E^T is at most d_e.
    This B is the least one.  It lies in the span of E, where gradient descent from zero stays.
    """
    inverse = np.linalg.pinv(E)
    return inverse @ inverse.T


def demo():
    """Print the share of new positions on the plateau, and where there is an exact block."""
    print("Fixed random signs; new / trained is the ratio of e . B e, on the plateau.\n\n"
          "    T   d_e   new / trained   largest |E B E^T - I| with B = exact_block(E)")
    for T, d_e in (50, 25), (50, 40), (50, 60), (50, 100), (50, 400), (200, 500):
        E = np.random.default_rng(0).choice([-1, 1], (T, d_e)) / np.sqrt(d_e)
        miss = abs(E @ exact_block(E) @ E.T - np.eye(T)).max()
        print(f"  {T:3}   {d_e:3}   {new_position_share(T, d_e):13.2f}   {miss:9.0e}")


# Training

STEPS, SIZES = (60, 250, 1000, 4000), {25: "o", 100: "s", 400: "D"}
ARMS = {f"fixed_signs {d_e} {steps}": {
    "T": 50, "d": 5, "q": 3, "d_e": d_e, "pe": "fixed", "lr": 1.0, "steps": steps, "fresh": True,
    "evaluations": 1, "eval_sequences": 2, "T_test": [1000], "q_test": []}
    for d_e in SIZES for steps in STEPS}


def measured_share(run):
    """The mean of e . B e over new positions, over that of trained ones; E is drawn if not kept."""
    import sts
    c = run["config"]
    E = run.get("E", sts.positional_encoding(c.law, 2 * c.T, c.d_e, np.random.default_rng(c.seed)))
    own = (E @ run["W"][c.d:, c.d:] * E).sum(axis=1)
    return own[c.T:].mean() / own[:c.T].mean()


def attention_ratio(run, T_test):
    """The mean attention of new selected positions over that of trained ones, at a length."""
    import sts
    import train
    c = run["config"]
    X, y, E = train.held_out(run, run["tests"].tolist().index([T_test, c.q]), draws=1)
    selected = np.take_along_axis(sts.attention(run["W"], X, y, E[0]), y, axis=1)
    return selected[y >= c.T].mean() / selected[y < c.T].mean()


def figure():
    """Train, and plot the share over the steps; print it, also for Figure 2's runs."""
    import plots
    import matplotlib.pyplot as plt
    figure_2 = ["gd fixed", "gd stochastic"]
    runs, first = plots.trained(ARMS | plots.GD), []
    canvas, axis = plt.subplots(figsize=(10, 6))
    for (d_e, marker), color in zip(SIZES.items(), ("#F0A060", plots.FIXED, "#803000")):
        shares = np.array([[measured_share(run) for run in runs[f"fixed_signs {d_e} {steps}"]]
                           for steps in STEPS])
        axis.plot(STEPS, shares.mean(axis=1), color=color)
        axis.plot(STEPS, shares, marker, color=color, markersize=9, fillstyle="none",
                  label=[f"$d_e$ = {d_e}"] + ["_"] * (shares.shape[1] - 1))
        axis.axhline(new_position_share(50, d_e), color=color, linestyle="--")
        first.append(shares[0] / new_position_share(50, d_e))
    axis.set(title="e$\\cdot$Be at new positions over trained ones", xlabel="step t",
             xscale="log", ylim=(0, 1.4), xticks=STEPS, xticklabels=STEPS)
    axis.minorticks_off()
    axis.legend(loc="upper left", title="T = 50")
    canvas.suptitle("At first a new position has T/(T + $d_e$ - 1) of a trained one's logit")
    plots.caption(canvas, "Fixed random signs, fresh batches, 3 seeds. Dashed: the formula.")
    row("T = 50, after 60 steps: share / formula", first)
    for name in figure_2:
        row(f"{name} (Figure 2): share of new positions at the end",
            [measured_share(run) for run in runs[name]])
    found = runs["gd fixed"]
    c = found[0]["config"]
    for T_test in c.T_test:
        row(f"gd fixed, T_test = {T_test}, {1 - c.T / T_test:.0%} are new: error over d/(2q)",
            plots.shares(found, T_test, c.q)[:, -1])
    row(f"gd fixed, T_test = {T_test}: attention on selected, new over trained",
        [attention_ratio(run, T_test) for run in found])
    return canvas


if __name__ == "__main__":
    main(__doc__, demo, figure)
