"""Figures of what theory.py and width.py derive, beside training by train.py.

    python beyond/theory_plots.py                   all, into beyond/figures/, and their claims
    python beyond/theory_plots.py data --quick      one of them, on small tasks, into runs/quick/

Theory is grey and dashed, what is measured is coloured.  Flags, seeds and the keeping of runs are
those of plots.py.
"""

import functools
import math
import os
import sys
from pathlib import Path

if __name__ == "__main__":      # before NumPy loads: each process trains one run, in one thread
    for library in "OPENBLAS", "MKL", "OMP":
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import matplotlib.pyplot as plt
import numpy as np

import claims
import plots
import sts
import theory
import train
import width
from plots import FIXED, NET, SEEDS, STOCHASTIC, THEORY, zero_predictor

COLORS = STOCHASTIC, FIXED, NET
LAWS = {"one-hot": ({"pe": "onehot", "pe_dim": 50}, FIXED),
        "orthonormal": ({"pe_family": "orthonormal", "pe_dim": 100}, STOCHASTIC),
        "rademacher": ({"pe_dim": 64}, NET)}
STOPS = 150, 300, 600, 1200, 4000               # a and alpha are measured at the end of a run
COST_T = 50, 100, 200, 500, 1000
FLOOR_D_E = 16, 32, 64, 128                                     # predicted for each K, and trained:
FLOORS = [(16, 1), (32, 1), (64, 1), (128, 1), (16, 4), (32, 4), (64, 4), (16, 16), (32, 16)]
FULL = [(query, q) for query in ("sum", "mean") for q in (2, 3, 5)]
DATA = {"stochastic": (STOCHASTIC, "o-"), "one-hot": (FIXED, "s--"),
        "fixed": ("#CC79A7", "^-."), "net, 120 units": (NET, "D-"),
        "net, 20 units": ("#777777", "v:")}
DATA_N = [12, 16, 32, 64, 128, 256, 512]                        # for attention at T = 20
NET_N = [16, 64, 256, 1024, 4096]
NEEDED = {"stochastic": {T: [2, 4, 6, 8, 12, 16, 24, 32] for T in (10, 20, 40, 80)},
          "one-hot": {T: [k * T for k in (5, 8, 12)] for T in (10, 20, 40, 80)}}
DATA_RUNS = sorted({(arm, 20, N) for arm in DATA for N in (NET_N if "net" in arm else DATA_N)}
                   | {(arm, T, N) for arm in NEEDED for T, sizes in NEEDED[arm].items()
                      for N in sizes})
SMALL_Q = {1: {20: (4, 5, 6), 80: (6, 7, 8), 320: (8, 9, 10)},  # figure width: d_e for each T
           2: {20: (7, 9, 11), 80: (11, 13, 16), 320: (16, 18, 21)}}
TRAINED = {**SMALL_Q, 3: plots.WIDTHS}


def arms(quick):
    """The runs of the figures: the settings of train.py for each name, without the seed."""
    def attention(full, small, **given):
        how = {"d": 5, "q": 3, "fresh": True, "evaluations": 1, "eval_sequences": 2, "T_test": [],
               "q_test": [], "steps": small if quick else full}
        return how | given

    found = {}
    for law, (how, _) in LAWS.items():
        for steps in STOPS:
            found[f"{law}, {steps} steps"] = attention(steps, steps // 20, T=50, lr=1.0, **how)
    for d_e, K in FLOORS:
        found[f"floor, d_e = {d_e}, K = {K}"] = attention(
            2000, 20, T=20, lr=4.0, schedule="cosine", pe_dim=d_e, draws=K)
    found["length"] = attention(6000, 200, T=20 if quick else 100, lr=2.0, pe_dim=170)
    found["length, orthonormal"] = attention(
        1600, 160, T=20, lr=4.0, pe_family="orthonormal", pe_dim=160,
        T_test=[30, 40, 60, 80, 120, 160], evaluations=10, eval_sequences=500, eval_draws=4)
    full = {"T": 20, "lr": 1.0, "attend_to_query": True}
    for query, q in FULL:
        found[f"{query}, q = {q}"] = attention(2000, 200, **full, q=q, query=query, pe_dim=20,
                                               pe_family="orthonormal")
    found["sum, one-hot"] = attention(3000, 200, **full, pe="onehot")
    for arm, T, N in DATA_RUNS:
        task = {"T": T, "d": 3, "q": 2, "batch": min(N, 64) if quick else N, "fresh": False,
                "eval_sequences": 200 if quick else 2000}
        if "net" in arm:
            found[f"{arm}, T = {T}, N = {N}"] = {
                "model": "fcn", "hidden": [int(arm.split()[1])], "optimizer": "adam",
                "schedule": "cosine", "steps": 20 if quick else 600, "evaluations": 1} | task
        else:
            how = {"stochastic": {"pe_family": "orthonormal", "pe_dim": T},
                   "one-hot": {"pe": "onehot"}, "fixed": {"pe": "fixed", "pe_dim": 2 * T}}[arm]
            found[f"{arm}, T = {T}, N = {N}"] = attention(4000, 20, lr=T / 40, **task, **how)
    for q, lengths in TRAINED.items():
        for T, sizes in lengths.items():
            for d_e in sizes:
                found[plots.width_name(T, d_e, q)] = plots.width_arm(T, d_e, q,
                                                                     100 if quick else 1000)
    return found
