"""Does it hang on our choices?  Figures 1, 4 and 5 under other readings of the paper.

    python beyond/readings.py                prints what each reading changes
    python beyond/readings.py picture.png    also trains (ten minutes after plots.py), and plots

What we have read of the paper leaves open how encodings are drawn, how long they are, and how many
draws a training step or a test averages.  All runs have one seed, the first of the figures.
"""

import two_numbers      # first: it finds plots.py
import plots

import matplotlib.pyplot as plt
import numpy as np

import sts
import train


def gaussian(rng, T, d_e):
    """Gaussian vectors over their norms: independent directions, uniform on the sphere."""
    E = rng.standard_normal((T, d_e))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


sts.LAWS["gaussian"] = gaussian     # here, so that each process that trains has it

READINGS = {    # the first word of an arm of plots.py, and what is changed in its settings
    "as in Figure 4": ("gd", {}),
    "one draw in a step": ("gd", {"draws": 1}),
    "orthonormal": ("gd", {"law": "orthonormal", "d_e": 400, "steps": 12000}),
    "as in Figure 5 (Adam)": ("adam", {}),
    "Adam, Gaussian": ("adam", {"law": "gaussian"}),
    "Adam, d_e 170": ("adam", {"d_e": 170})}


def pair(reading):
    """The stochastic and the fixed run, {name: settings}; unchanged ones are those of plots.py."""
    first, change = READINGS[reading]
    found = {}
    for pe in "stochastic", "fixed":
        own = {} if pe == "fixed" and "draws" in change else change     # fixed: no draws
        name = f"readings {reading} {pe}" if own else f"{first} {pe}"
        found[name] = (plots.GD | plots.ADAM)[f"{first} {pe}"] | own
    return found


FULL = {"full model": plots.FULL["full model"],     # Figure 1
        "readings full model, random signs": plots.FULL["full model"] | {"law": "rademacher"}}
ARMS = FULL | {name: settings for reading in READINGS for name, settings in pair(reading).items()}


def demo():
    """Print what each reading changes in the settings of the figures."""
    c = train.Settings(**plots.GD["gd stochastic"])
    print(f"Figures 4 and 5 have random signs, d_e = {c.d_e}, and {c.draws} draws in a step.\n")
    for reading, (_, change) in READINGS.items():
        text = ", ".join(f"{name} = {value}" for name, value in change.items())
        print(f"  {reading:22} {text or '-'}")


# Training


def single_draw_errors(run, draws=24):
    """The errors at the end with one draw in a test, means over many draws (tests,)."""
    found = []
    for k in range(len(run["tests"])):
        X, y, _ = train.held_out(run, k, 1)
        E = train.encodings(run, X.shape[1], draws, "tests", k, 2)      # train.evaluate has others
        found.append(np.mean([sts.loss(run["W"], run["V"], X, y, E_k) for E_k in E]))
    return np.array(found)


def figure():
    """Train, and plot the errors at the end; print them, and 1/L of the full model."""
    runs = {name: found[0] for name, found in plots.trained(ARMS, seeds=plots.SEEDS[:1]).items()}
    T, q = runs["gd fixed"]["tests"].T
    zero = runs["gd fixed"]["config"].d / (2 * q)
    names = [f"T {T}" for T in T[:5]] + [f"q {q}" for q in q[5:]]
    print(f"\n{'errors over d/(2q)':50}", *[f"{name:>6}" for name in names])
    figure, axes = plt.subplots(2, 3, figsize=(10, 8.5), sharex=True, sharey=True)
    for axis, reading in zip(axes.flat, READINGS):
        stochastic, fixed = [runs[name] for name in pair(reading)]
        for label, errors, style in (
                ("stochastic, mean of 16 draws", stochastic["error"][-1], "o-"),
                ("stochastic, one draw", single_draw_errors(stochastic), "x:"),
                ("fixed", fixed["error"][-1], "s--")):
            shares = errors / zero
            color = plots.FIXED if label == "fixed" else plots.STOCHASTIC
            print(f"{reading:22}{label:28}", *[f"{share:.4f}" for share in shares])
            axis.plot(range(1, 5), shares[1:5], style, color=color, label=label)    # lengths
            axis.plot(range(5, 9), shares[5:], style, color=color)                  # sizes
        axis.set(title=reading.replace("d_e", "$d_e$ ="), yscale="log")
        axis.set_xticks(range(1, 9), names[1:], rotation=90)
        axis.axvline(4.5, color=plots.THEORY, linewidth=1)
    figure.supylabel("error over d/(2q)", fontsize=14)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle("Stochastic encodings lead on lengths in all readings, on sizes in some")
    for name in FULL:
        inverse = 1 / plots.smooth_loss(runs[name])[1]
        print(f"full model, {runs[name]['config'].law}: 1/L is {inverse[74]:.1f} after 3/4 of the "
              f"steps, {inverse[-1]:.1f} at the end")
    return figure


if __name__ == "__main__":
    two_numbers.main(__doc__, demo, figure)
