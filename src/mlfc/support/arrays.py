"""Type alias of arrays for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt  # takes a tenth of the time of importing NumPy

Array: TypeAlias = "npt.NDArray[Any]"
