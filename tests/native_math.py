"""The arithmetic of the native core in NumPy, bit for bit."""

from __future__ import annotations

import numpy as np

__all__ = ["reference_exp"]

F = np.float32


def reference_exp(x: np.ndarray) -> np.ndarray:
    """float32 to float32, by the very steps of native/src/fmath.h; NaN stays."""
    q4, q3, q2, q1, q0 = map(F, (1.381314475e-03, 8.369419202e-03, 4.166845680e-02, 1.666651479e-01, 4.999999305e-01))
    x = np.clip(x, F(-104), F(89))
    n = (x * F(1.44269504) + F(12582912)) - F(12582912)
    r = (x - n * F(0.693359375)) - n * F(-2.12194440e-4)
    q = (((q4 * r + q3) * r + q2) * r + q1) * r + q0
    p = F(1) + (r + (r * r) * q)
    n = np.nan_to_num(n).astype(np.int32)
    half = n >> 1
    return np.asarray(np.ldexp(np.ldexp(p, half), n - half))
