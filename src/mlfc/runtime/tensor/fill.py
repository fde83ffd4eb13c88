"""Inputs for trying a model out, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlfc.errors import OptionError, unknown
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

FILLS = ("random", "zeros", "ones")
# Wide integers that stand for no real numbers are mostly token numbers and indices, which must stay small.
_INDEX_END = 8


def fill(infos: Sequence[TensorInfo], kind: str = "random", seed: int = 0) -> dict[str, Array]:
    """Return an array for each of `infos`.

    Parameters
    ----------
    infos : sequence of TensorInfo
    kind : str
        ``random``: floats uniform in [-1, 1), integers of 8 and 16 bits (and quantized ones) over their whole range,
        other integers in [0, 8). ``zeros`` and ``ones``: these numbers in the tensor's own dtype.
    seed : int
        Of the random numbers; not below 0.
    """
    if kind not in FILLS:
        raise OptionError(unknown("fill", kind, FILLS))
    if seed < 0:
        raise OptionError(f"the seed {seed} is negative", next_step="Use 0 or more")
    if kind != "random":
        return {info.name: np.full(info.shape, kind == "ones", info.numpy_dtype) for info in infos}
    generator = np.random.default_rng(seed)
    return {info.name: _random(info, generator) for info in infos}


def _random(info: TensorInfo, generator: np.random.Generator) -> Array:
    dtype = info.numpy_dtype
    if dtype.kind == "b":
        return generator.integers(0, 2, info.shape).astype(dtype)
    if dtype.kind not in "iu":
        return generator.uniform(-1, 1, info.shape).astype(dtype)
    if dtype.itemsize > 2 and info.scale is None:
        return generator.integers(0, _INDEX_END, info.shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, info.shape, dtype, endpoint=True)
