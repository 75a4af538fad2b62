"""For all tests: NumPy gets one thread, since more of them slow its small matrices down."""

import os

for name in "OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM":
    os.environ[f"{name}_THREADS"] = "1"
