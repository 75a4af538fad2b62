"""For all tests: NumPy gets one thread, since more of them slow its small matrices down."""

import os

for library in "OPENBLAS", "MKL", "OMP":
    os.environ[f"{library}_NUM_THREADS"] = "1"
