"""Call the main functions of dynamic models as C programs do."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import MlfcError
from mlfc.factory import Factory
from mlfc.runtime.executors.vm.failures import run_error
from mlfc.runtime.executors.vm.native import (
    PACKED,
    RELEASE,
    RESET,
    RUN,
    ErrorStruct,
    HostStruct,
    TensorStruct,
    aligned_zeros,
    pointer_to,
)
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import (
    DTYPES,
    MAX_RANK,
    NUMBERED_DTYPES,
    RunCode,
    release_symbol,
    reset_symbol,
    run_symbol,
)

Array = npt.NDArray[Any]
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FRESH = 0xA5  # in fresh memory


@dataclass(frozen=True)
class Ended:
    """The result of a run: copies of its outputs, or the error."""

    code: RunCode | None
    values: tuple[int, ...]
    text: str | None
    outputs: tuple[Array, ...] = ()
    error: MlfcError | None = None


class Caller:
    """Caller of a model with a counting allocator; no memory may stay allocated after a run.

    Attributes
    ----------
    state : bytes of the model's states
    """

    def __init__(self, factory: Factory) -> None:
        executable = factory.unit.executable
        assert executable is not None
        self.executable = executable
        modules = factory.runtime.walk()
        symbol = run_symbol(executable.name)
        self._code: Any = next(item for item in modules if hasattr(item, "address") and item.address(symbol))
        self._run = RUN(self._code.address(symbol))
        self._blocks: dict[int, Any] = {}
        self._left = -1
        self._functions = (_ALLOCATE(self._allocate), _FREE(self._free))

    def address(self, symbol: str) -> int | None:
        """Return the address of a function."""
        found: int | None = self._code.address(symbol)
        return found

    def reset(self, state: Array) -> None:
        """Reset states to their initial values."""
        assert RESET(self.address(reset_symbol(self.executable.name)))(state.ctypes.data) == 0

    def _allocate(self, nbytes: int) -> int | None:
        if self._left == 0 or nbytes > 1 << 26:
            return None
        self._left -= self._left > 0
        block = ctypes.create_string_buffer(bytes([_FRESH]) * nbytes, nbytes)
        self._blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def _free(self, memory: int) -> None:
        del self._blocks[memory]

    def run(
        self,
        *inputs: Array,
        work: int | None = None,
        allocations: int = -1,
        has_heap: bool = True,
        skew: int = 0,
        targets: Sequence[Array] = (),
        packed: Any = None,
        state: Array | None = None,
        memory_limit: int = 0,
        turn_limit: int = 0,
    ) -> Ended:
        """Run the model.

        Parameters
        ----------
        work : int, optional
            Bytes of the work area, 0 for none; default: enough for bounded models, none for others.
        allocations : int
            Number of allocations that succeed; -1 for all.
        has_heap : bool
            Whether allocation functions are passed.
        skew : int
            Bytes from an aligned address to the inputs.
        """
        copies = [_placed(array, skew) for array in inputs]
        given = (TensorStruct * max(1, len(inputs)))(*map(_tensor, copies))
        into = (TensorStruct * max(1, len(targets)))(*map(_tensor, targets))
        outputs = (TensorStruct * len(self.executable.outputs))()
        ctypes.memset(outputs, _FRESH, ctypes.sizeof(outputs))
        allocate, free = map(pointer_to, self._functions) if has_heap else (None, None)
        callback = None if packed is None else PACKED(packed)
        host = HostStruct(allocate=allocate, release=free, memory_limit=memory_limit, turn_limit=turn_limit)
        host.packed = None if callback is None else pointer_to(callback)
        host.targets = ctypes.addressof(into) if targets else None
        host.state = None if state is None else state.ctypes.data
        nbytes = (self.executable.work_bytes or 0) if work is None else work
        area = np.full(nbytes + 1, _FRESH, np.uint8)
        error = ErrorStruct()
        self._left = allocations
        place = area.ctypes.data if nbytes else None
        arguments = (ctypes.addressof(host), ctypes.addressof(given), ctypes.addressof(outputs))
        status = self._run(*arguments, place, nbytes, ctypes.addressof(error))
        assert status == error.code
        assert area[-1] == _FRESH
        text = None if error.text is None else error.text.decode()
        if status:
            assert not self._blocks
            made = run_error(self.executable, status, tuple(error.values), text)
            return Ended(RunCode(status), tuple(error.values), text, error=made)
        results = tuple(map(_array, outputs))
        release = self.address(release_symbol(self.executable.name))
        assert (release is None) == self.executable.is_bounded
        if release is not None:
            assert RELEASE(release)(ctypes.addressof(host), ctypes.addressof(outputs), len(outputs)) == 0
        assert not self._blocks
        return Ended(None, tuple(error.values), text, results)


def _placed(array: Array, skew: int) -> Array:
    memory = aligned_zeros(array.nbytes + skew)[skew:].view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def _tensor(array: Array) -> TensorStruct:
    extents = (*array.shape, *(0,) * (MAX_RANK - array.ndim))[:MAX_RANK]
    data = array.ctypes.data if array.size else None
    return TensorStruct(data, None, extents, 1, NUMBERED_DTYPES[array.dtype.name], array.ndim)


def _array(tensor: TensorStruct) -> Array:
    shape, dtype = tuple(tensor.extents[: tensor.rank]), np.dtype(to_numpy(DTYPES[tensor.dtype]))
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(ctypes.string_at(tensor.data or 0, nbytes) if nbytes else b"", dtype).reshape(shape)
