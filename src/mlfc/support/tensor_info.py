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
if TYPE_CHECKING:  # callers check `is_static` before they compute with dimensions
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
        The name in the model.
    shape : tuple of int or str
        Text is an expression of symbols, whose values are known at run time.
    dtype : str
    scale, zero_point : float and int, or None
        Quantization parameters: ``real = scale * (value - zero_point)``.
    """

    name: Text
    shape: Extents
    dtype: Dtype
    scale: float | None = None
    zero_point: Annotated[int, Limits(minimum=-(1 << 31), maximum=(1 << 32) - 1)] | None = None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return to_numpy(self.dtype)

    @property
    def is_static(self) -> bool:
        """True if all dimensions are static."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor; 0 if a dimension is dynamic."""
        return prod(self.shape) * self.numpy_dtype.itemsize if self.is_static else 0

    def of_shape(self, shape: Sequence[int]) -> TensorInfo | None:
        """Return the tensor with the shape of an array; None if the static dimensions do not match."""
        if len(shape) != len(self.shape):
            return None
        pairs = zip(self.shape, shape, strict=True)
        fits = all(isinstance(known, str) or known == extent for known, extent in pairs)
        return replace(self, shape=tuple(shape)) if fits else None

    def at(self, extents: Mapping[str, int]) -> TensorInfo:
        """Return the tensor with values for its dynamic dimensions."""
        shape = (extents.get(item, item) if isinstance(item, str) else item for item in self.shape)
        return replace(self, shape=tuple(shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"
