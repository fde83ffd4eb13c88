"""The descriptions of a compiled model's inputs and outputs: tensors, and sequences and optionals of them.

A sequence consists of the shapes of its elements, one row each, and their bytes, each aligned to 64 bytes. An optional
is a sequence of at most one element; an optional sequence has an additional leading bool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from mlfc.support.dtypes import SCALARS, to_numpy
from mlfc.support.records import Limits, Record
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    import numpy.typing as npt  # takes a tenth of the time of importing NumPy

Array: TypeAlias = "npt.NDArray[Any]"
_INT32 = (1 << 31) - 1

Text: TypeAlias = Annotated[str, Limits("text", max_length=65536)]
_Extent: TypeAlias = Annotated[int, Limits(minimum=0, maximum=_INT32)] | Annotated[str, Limits(max_length=4096)]
if TYPE_CHECKING:  # callers check `is_static` before they compute with dimensions
    Extents: TypeAlias = tuple[Any, ...]
else:
    Extents = Annotated[tuple[_Extent, ...], Limits("extents", max_items=32)]
Dtype: TypeAlias = Annotated[str, Limits("dtype", enum=SCALARS)]

SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = KINDS = ("sequence", "optional", "optional sequence")
GIVEN, EXTENTS, BYTES = PARTS = ("given", "extents", "bytes")
"""The parts of a container, in the order of the model's tensors; only an optional sequence has the first."""

ANY_RANK = ("...",)
"""The shape of tensors of different ranks."""


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


@dataclass(frozen=True)
class Container:
    """An input or output that is a sequence or optional."""

    name: str
    kind: str  # of KINDS
    dtype: str  # of its tensors
    is_output: bool = False
    is_mixed: bool = False  # whether its tensors differ in rank

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(f"{self.name}.{part}" for part in parts_of(self.kind))


def parts_of(kind: str) -> tuple[str, ...]:
    """Return the parts of a container of a kind."""
    return PARTS if kind == OPTIONAL_SEQUENCE else PARTS[1:]


@dataclass(frozen=True)
class ContainerInfo(TensorInfo):
    """Name and kind of a sequence or optional input or output; shape and dtype are those of its tensors.

    The shape is `ANY_RANK` if its tensors differ in rank.
    """

    kind: Text = SEQUENCE

    @property
    def is_static(self) -> bool:
        """False: the number of tensors is a runtime value."""
        return False

    @property
    def is_sequence(self) -> bool:
        """True if its value, when present, is a list of arrays."""
        return self.kind != OPTIONAL

    @property
    def may_be_none(self) -> bool:
        """True if its value may be None."""
        return self.kind != SEQUENCE

    def element(self, index: int | None = None) -> TensorInfo:
        """Return the description of one of its tensors."""
        name = self.name if index is None else f"{self.name}.{index}"
        return TensorInfo(name, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} of {self.dtype}[{', '.join(map(str, self.shape))}]"
