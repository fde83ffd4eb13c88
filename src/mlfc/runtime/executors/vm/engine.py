"""The main function of a dynamic model, called from Python."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import DeviceError, InputError, MlfcError, OptionError
from mlfc.runtime.devices.device import Device, device_of_code, set_device
from mlfc.runtime.executors.vm.failures import run_error
from mlfc.runtime.executors.vm.native import (
    CPU,
    NUMPY_DTYPES,
    PACKED,
    RELEASE,
    RUN,
    DeviceCallbacks,
    ErrorStruct,
    HasSymbols,
    HostStruct,
    TensorStruct,
    aligned_like,
    heap,
    number_of,
    pointer_to,
)
from mlfc.runtime.modules.module import Function as PackedFunction
from mlfc.runtime.tensor.arrays import address_of
from mlfc.runtime.tensor.ndarray import NDArray
from mlfc.support.dtypes import bits, is_numpys_own, to_numpy
from mlfc.support.executable import ALIGNMENT, DTYPES, MAX_RANK, Executable, RunCode, release_symbol, run_symbol
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.tensor_info import Array

Find = Callable[[str], PackedFunction]
"""Look up a packed function of the library by name."""


@dataclass(frozen=True)
class Limits:
    """Limits of a run; 0 means unlimited."""

    memory: int = 0  # peak bytes
    turns: int = 0  # iterations of all loops


class Engine:
    """The native code of a model and its host functions; raises OptionError if the main function is missing."""

    def __init__(self, executable: Executable, code: HasSymbols, find: Find, devices: dict[int, Device]) -> None:
        self.executable = executable
        self.devices = devices  # by DLPack device type
        self._keep = code
        self._find = find
        address = code.address(run_symbol(executable.name))
        if address is None:
            raise OptionError(
                f"the code does not export '{run_symbol(executable.name)}'",
                place=executable.name,
                next_step="Load the library built from this model",
            )
        self.call = RUN(address)
        release = code.address(release_symbol(executable.name))
        self._release = None if release is None else RELEASE(release)
        allocate, free, self.free = heap()
        self._packed = PACKED(self._call_packed)
        self._memory = DeviceCallbacks(devices) if executable.devices else None
        self._host = (pointer_to(allocate), pointer_to(free), pointer_to(self._packed))
        self._failed = threading.local()
        self._idle: list[tuple[Limits, PreparedCall]] = []
        self.trace: int = 0  # address of the callback that is called for each kernel

    def host(self, limits: Limits, state: int) -> HostStruct:
        """Return the host structure that is passed to a run."""
        devices = 0 if self._memory is None else ctypes.addressof(self._memory.struct)
        return HostStruct(*self._host, self.trace, devices, 0, 0, state, limits.memory, limits.turns)

    def run(self, inputs: Sequence[Array | NDArray], limits: Limits, state: int = 0) -> list[Any]:
        """Run on contiguous arrays and device tensors; return results where they are; raise MlfcError on failure."""
        call = self._take(limits)
        read = [call.set_input(number, array) for number, array in enumerate(inputs)]
        call(state)
        del read
        results = call.results()
        self._idle.append((limits, call))
        return results

    def _take(self, limits: Limits) -> PreparedCall:
        """Return the call object of an earlier run that has ended, or a new one; several may be active at once."""
        try:
            under, call = self._idle.pop()
        except IndexError:
            return PreparedCall(self, limits)
        return call if under is limits else PreparedCall(self, limits)

    def failure(self, error: ErrorStruct) -> MlfcError:
        """Return the error of a run."""
        text = None if error.text is None else error.text.decode(errors="replace")
        cause, self._failed.cause = getattr(self._failed, "cause", None), None
        made = run_error(self.executable, error.code, tuple(error.values), text, cause)
        made.__cause__ = cause
        return made

    def release(self, tensor: TensorStruct) -> None:
        """Free an output on a device."""
        if self._release is not None:
            host = self.host(Limits(), 0)
            self._release(ctypes.byref(host), ctypes.byref(tensor), 1)

    def _call_packed(self, _context: Any, name: bytes, tensors: Any, count: int) -> int:
        try:
            self._find(name.decode())(*(_view(tensors[index]) for index in range(count)))
        except MlfcError as error:
            self._failed.cause = error
            return -1
        return 0


class PreparedCall:
    """Reusable arguments of runs; results go to `targets`, if any: contiguous, writeable arrays."""

    def __init__(self, engine: Engine, limits: Limits, targets: Sequence[Array] | None = None) -> None:
        executable = engine.executable
        self._engine = engine
        self._targets = targets
        count = len(executable.inputs)
        self._inputs = (TensorStruct * count)()
        self._outputs = (TensorStruct * len(executable.outputs))()
        # for each input, the array described last, and the target of its copy
        self._described: list[object] = [None] * count
        self._copies: list[tuple[Array | None, int]] = [(None, 0)] * count
        self._error = ErrorStruct()
        self._needed = ctypes.c_int64.from_buffer(self._error, ErrorStruct.values.offset)
        self._host = engine.host(limits, 0)
        if targets is not None:
            self._into = (TensorStruct * len(targets))()
            for tensor, array in zip(self._into, targets, strict=True):
                _describe(tensor, address_of(array), array.shape, number_of(array.dtype), CPU)
            self._host.targets = ctypes.addressof(self._into)
        self._work = _work_area(executable, limits)
        self._small_runs = 0  # runs that needed less than half of it
        self._prepare()

    def _prepare(self) -> None:
        pointers = [ctypes.c_void_p(ctypes.addressof(item)) for item in (self._host, self._inputs, self._outputs)]
        work = self._work.nbytes
        # the work area is kept while runs need bytes in this range; that of bounded models always fits
        is_bounded = self._engine.executable.is_bounded
        self._least, self._most = (0, _MOST_BYTES) if is_bounded else (max(0, work - _KEPT_BYTES) // 2, work)
        place = ctypes.c_void_p(address_of(self._work) if work else None)
        error = ctypes.c_void_p(ctypes.addressof(self._error))
        self._run = partial(self._engine.call, *pointers, place, ctypes.c_int64(work), error)

    def set_input(self, number: int, array: Array | NDArray) -> Any:
        """Set an input to a contiguous array, or to a copy if it is not aligned; return the array that runs read.

        The returned array must stay alive. A small copy is reused for later inputs of the same shape and dtype.
        """
        tensor = self._inputs[number]
        if isinstance(array, NDArray):
            self._described[number] = None
            _describe(tensor, array.handle, array.shape, number_of(to_numpy(array.dtype)), array.device.type_code)
            return array
        address, kind = address_of(array), (array.shape, array.dtype)
        is_known = self._described[number] == kind
        if address % ALIGNMENT and array.nbytes:
            copied, place = self._copies[number] if is_known else (None, 0)
            if copied is None:
                copied = aligned_like(array)
                place = address_of(copied)
                self._copies[number] = (copied, place) if copied.nbytes <= _KEPT_BYTES else (None, 0)
            copied[...] = array
            array, address = copied, place
        elif not is_known:
            self._copies[number] = (None, 0)
        if not is_known:
            dtype = number_of(array.dtype)
            if dtype is None:
                raise run_error(self._engine.executable, RunCode.BAD_INPUT, (number, -1, _NO_DTYPE), None)
            _describe(tensor, address, array.shape, dtype, CPU)
            self._described[number] = kind
        # arrays without elements may have any address
        tensor.data = address if array.nbytes else None
        return array

    def __call__(self, state: int = 0) -> None:
        """Run the model; raise as `Engine.run`, or InputError for a target that does not fit its result."""
        engine, error = self._engine, self._error
        for device in engine.devices.values():
            if device.type_code != CPU:
                set_device(device.type_code, device.index)
        if state or engine.trace:
            self._host.state, self._host.trace = state, engine.trace
        if self._run():
            if self._targets is not None and error.code == RunCode.BAD_OUTPUT and error.text is None:
                result, target = self._outputs[error.values[0]], self._targets[error.values[0]]
                name = engine.executable.outputs[error.values[0]].name
                raise output_misfit(name, NUMPY_DTYPES[result.dtype], result.extents[: result.rank], target)
            raise engine.failure(error)
        if not self._least <= self._needed.value <= self._most:
            self._adapt(self._needed.value)

    def _adapt(self, needed: int) -> None:
        """Keep a work area about as large as runs need: new memory from the system costs a page fault per page."""
        self._small_runs = 0 if needed > self._most else self._small_runs + 1
        if needed > self._most or self._small_runs >= _SMALL_RUNS:
            self._small_runs = 0
            with suppress(MemoryError):  # a smaller work area is enough
                self._work = np.empty(needed, np.uint8)
            self._prepare()

    def results(self) -> list[Any]:
        """Return the results of the last run, in their own memory; call it only once per run."""
        engine = self._engine
        found: list[Array | NDArray] = []
        for number, (data, block, *extents, device, dtype, rank) in enumerate(_TENSOR.iter_unpack(self._outputs)):
            shape = tuple(extents[:rank])
            if device != CPU:
                place, owner = engine.devices[device], _DeviceOwner(engine, self._outputs[number])
                tensor = NDArray.at(data, shape, DTYPES[dtype], place, owner)
                found.append(tensor if block else tensor.copyto(place))
                continue
            array = _Owner(engine if block else None, block, data, shape, dtype).array()
            # a result without a block is in the work area, which the next run overwrites
            found.append(array if block else array.copy())
        return found


def output_misfit(name: str, dtype: np.dtype[Any], shape: Sequence[object], target: Array) -> InputError:
    """Return the error of an array that cannot receive an output of this dtype and shape."""
    expected = f"{dtype}[{', '.join(map(str, shape))}]"
    return InputError(f"expected an output of {expected}, got {target.dtype}{list(target.shape)}", place=name)


def _work_area(executable: Executable, limits: Limits) -> Array:
    """Return the memory of a bounded model; empty if it exceeds the limit, which the run then reports."""
    needed = executable.arena_bytes or 0
    if not needed or 0 < limits.memory < needed:
        return np.empty(0, np.uint8)
    try:
        return np.empty(needed + ALIGNMENT, np.uint8)
    except MemoryError:
        raise run_error(executable, RunCode.ALLOCATE, (needed, 0, 0), None) from None


class _Owner:
    """A result exported to numpy: its memory is freed when the last array on it is deleted."""

    __slots__ = ("__array_interface__", "_block", "_engine", "_number")

    def __init__(self, engine: Engine | None, block: int, data: int, shape: tuple[int, ...], number: int) -> None:
        self._engine = engine
        self._block = block
        self._number = number
        self.__array_interface__: dict[str, Any] = {
            "version": 3, "typestr": _TYPES[number], "shape": shape, "data": (data, False),
        }  # fmt: skip

    def array(self) -> Array:
        shape = self.__array_interface__["shape"]
        if 0 in shape:
            return np.empty(shape, NUMPY_DTYPES[self._number])
        array = np.asarray(self)
        return array if self._number in _NAMED else array.view(NUMPY_DTYPES[self._number])

    def __del__(self) -> None:
        if self._engine is not None:
            self._engine.free(self._block)


class _DeviceOwner:
    """Device memory of a result."""

    def __init__(self, engine: Engine, tensor: TensorStruct) -> None:
        self._engine = engine
        self._tensor = TensorStruct.from_buffer_copy(tensor)

    def __del__(self) -> None:
        self._engine.release(self._tensor)


def _view(tensor: TensorStruct) -> Array:
    """Return a host tensor as an array on the same memory."""
    shape = tuple(tensor.extents[: tensor.rank])
    return _Owner(None, 0, tensor.data or 0, shape, tensor.dtype).array()


def _describe(tensor: TensorStruct, data: int, shape: Sequence[int], dtype: int | None, device: int) -> None:
    tensor.data, tensor.block, tensor.device = data, None, device
    tensor.dtype, tensor.rank = _NO_DTYPE if dtype is None else dtype, len(shape)
    if len(shape) <= MAX_RANK:
        tensor.extents[: len(shape)] = shape


def devices_of(executable: Executable, given: Sequence[Device]) -> dict[int, Device]:
    """Return the devices of a model by DLPack device type: the given ones, otherwise the first of each kind."""
    found = {}
    for kind in executable.devices:
        if kind not in TYPE_CODES:
            raise DeviceError(f"unknown device '{kind}'", place=executable.name)
        found[TYPE_CODES[kind]] = device_of_code(TYPE_CODES[kind])
    return {**found, **{device.type_code: device for device in given if device.type_code != CPU}} if found else {}


_TENSOR = struct.Struct(f"@PP{MAX_RANK}qiBB0q")  # a `TensorStruct`: cheaper to unpack at once than by field
_NO_DTYPE = 255
# Copies of inputs above this size are not reused: allocation is cheap in comparison, and the model would keep memory.
_KEPT_BYTES = 1 << 16
_SMALL_RUNS = 16
_MOST_BYTES = (1 << 63) - 1
# dtypes that numpy lacks have no name there: their elements are passed as unsigned integers of the same size
_NAMED = frozenset(number for number, name in enumerate(DTYPES) if is_numpys_own(name))
_TYPES = tuple(to_numpy(name).str if is_numpys_own(name) else f"=u{-(-bits(name) // 8)}" for name in DTYPES)
