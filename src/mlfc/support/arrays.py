"""The type of arrays in annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt  # costs a tenth of the whole import of numpy

Array: TypeAlias = "npt.NDArray[Any]"
