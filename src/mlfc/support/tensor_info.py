"""The description of a compiled model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from mlfc.support.dtypes import SCALARS, to_numpy
from mlfc.support.records import Limits, Record
from mlfc.support.text import Displayed

_INT32 = (1 << 31) - 1

Text: TypeAlias = Annotated[str, Limits("text", max_length=65536)]
_Extent: TypeAlias = Annotated[int, Limits(minimum=0, maximum=_INT32)] | Annotated[str, Limits(max_length=4096)]
if TYPE_CHECKING:  # those who meet expressions ask `is_static` first
    Extents: TypeAlias = tuple[Any, ...]
else:
    Extents = Annotated[tuple[_Extent, ...], Limits("extents", max_items=32)]
Dtype: TypeAlias = Annotated[str, Limits("dtype", enum=SCALARS)]


@dataclass(frozen=True)
class TensorInfo(Displayed, Record):
    """Name, shape and dtype of an input or output.

    Attributes
    ----------
    name : str
        The model's own name.
    shape : tuple of int or str
        Text is an expression of symbols, whose values are known when the model runs.
    dtype : str
    scale, zero_point : float and int, or None
        Where the integers stand for real numbers: ``real = scale * (value - zero_point)``.
    """

    name: Text
    shape: Extents
    dtype: Dtype
    scale: float | None = None
    zero_point: Annotated[int, Limits(minimum=-(1 << 31), maximum=(1 << 32) - 1)] | None = None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The elements' dtype in numpy."""
        return to_numpy(self.dtype)

    @property
    def is_static(self) -> bool:
        """Whether all extents are known before the model runs."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor; 0 where an extent is open."""
        return prod(self.shape) * self.numpy_dtype.itemsize if self.is_static else 0

    def of_shape(self, shape: Sequence[int]) -> TensorInfo | None:
        """Return the tensor with the extents of an array, None where the array does not have those that are known."""
        if len(shape) != len(self.shape):
            return None
        pairs = zip(self.shape, shape, strict=True)
        fits = all(isinstance(known, str) or known == extent for known, extent in pairs)
        return replace(self, shape=tuple(shape)) if fits else None

    def at(self, extents: Mapping[str, int]) -> TensorInfo:
        """Return the tensor where open extents have these values."""
        shape = (extents.get(item, item) if isinstance(item, str) else item for item in self.shape)
        return replace(self, shape=tuple(shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
