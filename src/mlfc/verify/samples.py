"""The sets of inputs that models are compared on, and why each is among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlfc.runtime.tensor.arrays import fill
from mlfc.support.arrays import Array
from mlfc.support.tensor_info import TensorInfo

CORNERS = ("minimum", "maximum", "zero point")
_WHY = {
    "random": "seeded values over the whole range of the inputs",
    "minimum": "every element is the lowest: accumulators and saturation at their limits",
    "maximum": "every element is the highest: accumulators and saturation at their limits",
    "zero point": "every element stands for zero: sums and ranges vanish, which is where quotients go wrong",
}


def sample_inputs(infos: Sequence[TensorInfo], samples: int, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield named sets of inputs: `samples` random ones, then the corners of the value range."""
    for index in range(samples):
        yield f"random {index}", fill(infos, "random", seed + index)
    for title in CORNERS:
        yield title, {info.name: np.full(info.shape, _corner(info, title), info.numpy_dtype) for info in infos}


def why(sample: str) -> str | None:
    """Return what a set of `sample_inputs` is for; None for sets of a user's file."""
    return _WHY.get("random" if sample.startswith("random ") else sample)


def _corner(info: TensorInfo, title: str) -> int:
    if title == "zero point":
        return info.zero_point or 0
    kind = info.numpy_dtype.kind
    if kind not in "iu":
        return 1 if title == "maximum" else 0 if kind == "b" else -1
    if info.numpy_dtype.itemsize > 2 and info.scale is None:
        # indices: an extreme one would lie outside of what it points into
        return 1 if title == "maximum" else 0
    limits = np.iinfo(info.numpy_dtype)
    return int(limits.max if title == "maximum" else limits.min)
