"""The states of a dynamic model: tensors that each run reads, and replaces when it succeeds."""

from __future__ import annotations

import numpy as np

from mlfc.errors import ToolchainError
from mlfc.runtime.executors.vm.memory import aligned_zeros
from mlfc.runtime.executors.vm.native import RESET, HasSymbols
from mlfc.support.arrays import Array
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import Executable, reset_symbol, state_offsets
from mlfc.support.locks import ForkSafeLock
from mlfc.support.module_info import StateInfo


class VmStates:
    """States of one loaded model, in memory of their own.

    Parameters
    ----------
    executable : Executable
    code : HasSymbols
        Has the function that sets them first.

    Attributes
    ----------
    infos : tuple of StateInfo
    address : int
        Of their memory; 0 without states.
    lock : ForkSafeLock
        Held by a run, and while states are read or set.
    """

    def __init__(self, executable: Executable, code: HasSymbols) -> None:
        self.infos = tuple(
            StateInfo(
                value.name, tuple(item for item in value.extents if isinstance(item, int)), value.dtype, next=after
            )
            for value, after in zip(executable.states, executable.next_states, strict=True)
        )
        *offsets, end = state_offsets(executable)
        self._memory: Array = aligned_zeros(end)
        self._arrays = [_placed(self._memory, offset, info) for offset, info in zip(offsets, self.infos, strict=True)]
        self.address = self._memory.ctypes.data if self.infos else 0
        self.lock = ForkSafeLock()
        self._keep = code
        if self.infos:
            symbol = reset_symbol(executable.name)
            address = code.address(symbol)
            if address is None:
                raise ToolchainError(f"the code does not export '{symbol}'", place=executable.name)
            self._reset = RESET(address)
            self._reset(self.address)

    def read(self, info: StateInfo) -> Array:
        """Return a copy of a state."""
        with self.lock:
            return self._arrays[self.infos.index(info)].copy()

    def write(self, info: StateInfo, array: Array) -> None:
        """Set a state."""
        with self.lock:
            np.copyto(self._arrays[self.infos.index(info)], array)

    def reset(self) -> None:
        """Set all states to what they begin with."""
        with self.lock:
            if self.infos:
                self._reset(self.address)


def _placed(memory: Array, offset: int, info: StateInfo) -> Array:
    part = memory[offset : offset + info.nbytes].view(to_numpy(info.dtype))
    placed: Array = part.reshape(tuple(map(int, info.shape)))
    return placed
