"""Real multipliers as integers, in TFLite's sense."""

from __future__ import annotations

import math


def quantize_multiplier(real: float) -> tuple[int, int]:
    """Return ``(multiplier, shift)`` with ``real ~ multiplier * 2**(shift - 31)``.

    Parameters
    ----------
    real : float
        A finite number not below zero.

    Returns
    -------
    multiplier : int
        In [2**30, 2**31), or 0 for a real too small to matter.
    shift : int
        Positive shifts left. At least -31.

    Notes
    -----
    The rule of QuantizeMultiplier in TFLite (tensorflow/lite/kernels/internal/quantization_util.cc).
    """
    if real == 0.0:
        return 0, 0
    significand, shift = math.frexp(real)
    scaled = significand * (1 << 31)
    multiplier = math.floor(scaled + 0.5)  # round half away from zero; the value is positive
    if multiplier == 1 << 31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return (1 << 31) - 1, 30
    return multiplier, shift
