"""Arrays as tensors of dynamic models, which begin at multiples of their alignment."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.arrays import Array
from mlfc.support.dtypes import is_numpys_own, to_numpy
from mlfc.support.executable import ALIGNMENT, DTYPES, NUMBERED_DTYPES


class _NumpyDtypes(dict[int, "np.dtype[Any]"]):
    """Dtypes by their numbers. What numpy lacks needs another package, which is imported for a model that has it."""

    def __missing__(self, number: int) -> np.dtype[Any]:
        found = self[number] = to_numpy(DTYPES[number])
        _NUMBERS[found] = number
        return found


NUMPY_DTYPES = _NumpyDtypes({number: to_numpy(name) for number, name in enumerate(DTYPES) if is_numpys_own(name)})
_NUMBERS = {dtype: number for number, dtype in NUMPY_DTYPES.items()}


def number_of(dtype: np.dtype[Any]) -> int | None:
    """Return the number of a dtype of numpy, or None."""
    number = _NUMBERS.get(dtype)
    if number is None:
        number = NUMBERED_DTYPES.get(dtype.name)
        return number if number is not None and NUMPY_DTYPES[number] == dtype else None
    return number


def aligned_zeros(nbytes: int) -> Array:
    """Return bytes of zeros at a multiple of the alignment of tensors."""
    return aligned(nbytes, np.zeros, ALIGNMENT)


def aligned_like(array: Array) -> Array:
    """Return an uninitialized array at a multiple of the alignment, of an array's shape and dtype."""
    return aligned(array.nbytes, alignment=ALIGNMENT).view(array.dtype).reshape(array.shape)
