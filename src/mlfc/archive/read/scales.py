"""Recovery of the scales of requantized tensors from the integers by which compiled code multiplies.

TVM computes multipliers and shifts from the quotients of float32 scales, of which its text has six digits. The 31 bits
of each multiplier leave few pairs of scales, all with the same results; those of several channels leave one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlfc.archive.read.text_expressions import Array, prints_alike
from mlfc.support.fixed_point import quantize_multiplier

_MOST_NEIGHBOURS = 200  # float32 numbers on each side that may have the same six digits


def recovered_scales(factors: Sequence[Array], printed: Array | None, printed_to: Array) -> tuple[Array, Array] | None:
    """Return the scales of both tensors from a multiplier, a left and a right shift, None if there are none.

    `printed` is the first scale in the text; without it, it is a vector.
    """
    multipliers, lefts, rights = (np.atleast_1d(array).astype(np.int64) for array in factors)
    lengths = {len(multipliers), len(lefts), len(rights)} - {1}
    shifts = np.concatenate((lefts, rights))
    if len(lengths) > (printed is None) or multipliers.min() <= 0 or shifts.min() < 0 or shifts.max() > 30:
        return None
    shifts = lefts - rights + 0 * multipliers
    for to_scale in _alike(printed_to):
        scales = (multipliers * 2.0 ** (shifts - 31) * float(to_scale)).astype(np.float32)
        if printed is None or prints_alike(scales[0], printed):
            pairs = zip(scales, multipliers, shifts, strict=True)
            if all(quantize_multiplier(float(scale) / float(to_scale)) == (a, b) for scale, a, b in pairs):
                return (scales if printed is None else scales[0].reshape(())), np.asarray(to_scale)
    return None


def _alike(printed: Array) -> Iterator[Array]:
    """Yield the float32 numbers that TVM prints alike, the nearest first."""
    yield printed
    below = above = printed
    for _ in range(_MOST_NEIGHBOURS):
        below, above = np.nextafter(below, np.float32(0)), np.nextafter(above, np.float32(np.inf))
        yield from (value for value in (below, above) if prints_alike(value, printed))
