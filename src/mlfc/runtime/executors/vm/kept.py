"""The states of a model as bytecode: tensors that each run reads, and replaces when it succeeds."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from mlfc.runtime.executors.vm.memory import aligned_zeros
from mlfc.runtime.executors.vm.native_tables import NativeTables
from mlfc.support.arrays import Array
from mlfc.support.bytecode.executable import Executable
from mlfc.support.dtypes import to_numpy
from mlfc.support.locks import ForkSafeLock
from mlfc.support.module_info import StateInfo


class VmStates:
    """States of one loaded model, in memory of their own.

    Parameters
    ----------
    executable : Executable
    tables : NativeTables
        Has what states begin with.

    Attributes
    ----------
    infos : tuple of StateInfo
    arrays : list of ndarray
        The states, which runs take as their last inputs.
    lock : ForkSafeLock
        Held by a run, and by whoever reads or sets states meanwhile.
    """

    def __init__(self, executable: Executable, tables: NativeTables) -> None:
        following = executable.outputs[len(executable.returned) :]
        self.infos = tuple(
            StateInfo(value.name, tuple(extent for extent in value.extents if isinstance(extent, int)), value.dtype,
                      next=after.name)
            for value, after in zip(executable.kept, following, strict=True)
        )  # fmt: skip
        self._first = [None if number is None else tables.constants[number] for number in executable.states]
        self.arrays = [_aligned(info) for info in self.infos]
        self.lock = ForkSafeLock()
        self._set_first(is_new=True)

    def replace(self, following: Sequence[Array]) -> None:
        """Set all states to the next values that a run returned."""
        for array, value in zip(self.arrays, following, strict=True):
            np.copyto(array, value)

    def read(self, info: StateInfo) -> Array:
        """Return a copy of a state."""
        with self.lock:
            return self.arrays[self.infos.index(info)].copy()

    def write(self, info: StateInfo, array: Array) -> None:
        """Set a state."""
        with self.lock:
            np.copyto(self.arrays[self.infos.index(info)], array)

    def reset(self) -> None:
        """Set all states to what they begin with."""
        with self.lock:
            self._set_first(is_new=False)

    def _set_first(self, *, is_new: bool) -> None:
        for array, first in zip(self.arrays, self._first, strict=True):
            if first is None and not is_new:  # new memory is zeros
                array[...] = np.zeros((), array.dtype)
            elif first is not None and array.nbytes:
                address, nbytes = first
                ctypes.memmove(array.ctypes.data, address, nbytes)


def _aligned(info: StateInfo) -> Array:
    dtype = to_numpy(info.dtype)
    array: Array = aligned_zeros(info.nbytes).view(dtype).reshape(tuple(map(int, info.shape)))
    return array
