"""The C interpreter in a library: a whole run in one call."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError
from mlfc.runtime.executors.vm.failures import Code, Fault, run_error
from mlfc.runtime.executors.vm.interpreter import Limits
from mlfc.runtime.executors.vm.memory import NUMPY_DTYPES, aligned_like, new_array, number_of
from mlfc.runtime.executors.vm.native_tables import HasSymbols, NativeTables, devices_symbol_of
from mlfc.runtime.tensor.arrays import address_of
from mlfc.support.arrays import Array
from mlfc.support.bytecode.executable import Executable
from mlfc.support.bytecode.instructions import ALIGNMENT, BY_NAME, CPU, DTYPES, MAX_RANK
from mlfc.support.dtypes import bits, is_numpys_own, to_numpy

OPEN, RUN, RELEASE, CLOSE = (f"mlfc_vm_host_{name}" for name in ("open", "run", "release", "close"))
"""What a library with the C interpreter exports (``mlfc_vm_host.h``)."""


class _Error(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int32),
        ("function", ctypes.c_uint32),
        ("instruction", ctypes.c_uint32),
        ("text", ctypes.c_char_p),
        ("values", ctypes.c_int64 * 3),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("block", ctypes.c_void_p),
        ("extents", ctypes.c_int64 * MAX_RANK),
        ("dtype", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("opened", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("memory_limit", ctypes.c_int64),
        ("turn_limit", ctypes.c_uint64),
        ("function", ctypes.c_uint32),
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
    )


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    OPEN: (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p),
    RUN: (ctypes.c_void_p,),
    RELEASE: (ctypes.c_void_p, ctypes.c_void_p),
    CLOSE: (ctypes.c_void_p,),
}


def serves(executable: Executable, code: HasSymbols) -> bool:
    """Tell whether a library has the C interpreter, and an executable needs no devices or packed functions."""
    if any(code.address(symbol) is None for symbol in (OPEN, RUN, RELEASE, CLOSE)):
        return False
    if code.address(devices_symbol_of(executable.name)) is not None:
        return False
    packed, storage, to_device = (BY_NAME[name].opcode for name in ("invoke_packed", "storage", "to_device"))
    for function in executable.functions:
        for _, instruction, operands in function.instructions():
            if instruction.opcode == packed:
                return False
            if instruction.opcode in (storage, to_device) and operands[-1] != CPU:
                return False
    return True


def _function(code: HasSymbols, symbol: str) -> Any:
    result = ctypes.c_int32 if symbol in (OPEN, RUN) else None
    return ctypes.CFUNCTYPE(result, *_ARGUMENTS.get(symbol, ()))(code.address(symbol) or 0)


class CInterpreter:
    """An executable ready to run in C.

    Parameters
    ----------
    executable : Executable
    data : bytes
        Its file.
    tables : NativeTables
    code : HasSymbols
        The library with the interpreter.
    depth : int
        The limit of calls within calls.

    Raises
    ------
    ArchiveError
        If the interpreter refuses the file.
    """

    def __init__(
        self, executable: Executable, data: bytes, tables: NativeTables, code: HasSymbols, depth: int = 0
    ) -> None:
        self.executable = executable
        self._keep = (data, tables, code)
        self.call = _function(code, RUN)
        self.release = _function(code, RELEASE)
        opened, error = ctypes.c_void_p(), _Error()
        status = _function(code, OPEN)(
            data, len(data), tables.address, depth, ctypes.byref(opened), ctypes.byref(error)
        )
        if status:
            raise self.failure(error)
        self.opened = opened
        self._idle: list[tuple[int, Limits, PreparedCall]] = []
        weakref.finalize(self, _function(code, CLOSE), opened).atexit = False

    def run(self, function: int, inputs: Sequence[Array], limits: Limits) -> list[Array]:
        """Run a function; as `Interpreter.run`, but for the limit of depth, which is the machine's."""
        call = self._take(function, limits)
        read = [call.set_input(number, array) for number, array in enumerate(inputs)]
        call()
        del read
        results = call.results()
        self._idle.append((function, limits, call))
        return results

    def _take(self, function: int, limits: Limits) -> PreparedCall:
        """Return the call of an earlier run that has ended, or a new one; several may go on at once."""
        try:
            of, under, call = self._idle.pop()
        except IndexError:
            return PreparedCall(self, function, limits)
        return call if of == function and under is limits else PreparedCall(self, function, limits)

    def failure(self, error: Any) -> MlfcError:
        """Return the error of opening or of a run."""
        text = None if error.text is None else error.text.decode()
        fault = Fault(Code(error.code), *error.values, text=text)
        place = (error.function, error.instruction)
        outside = fault.code in (Code.BAD_FILE, Code.BAD_NATIVE) or place[0] >= len(self.executable.functions)
        return run_error(self.executable, fault, None if outside else place)


class PreparedCall:
    """The arguments of a run in C, for runs of one function one after another.

    Parameters
    ----------
    interpreter : CInterpreter
    function : int
    limits : Limits
    targets : sequence of ndarray, optional
        Where results go instead: contiguous and writeable arrays, which stay alive.
    """

    def __init__(
        self, interpreter: CInterpreter, function: int, limits: Limits, targets: Sequence[Array] | None = None
    ) -> None:
        self._interpreter = interpreter
        self._targets = targets
        called = interpreter.executable.functions[function]
        self._inputs = (_Tensor * called.parameters)()
        self._outputs = (_Tensor * called.results)()
        # of each input, what was described last, and where it is copied to
        self._described: list[object] = [None] * called.parameters
        self._copies: list[tuple[Array | None, int]] = [(None, 0)] * called.parameters
        self._error = _Error()
        self._into = None if targets is None else (_Tensor * called.results)()
        for tensor, array in zip(self._into or (), targets or (), strict=True):
            # of a dtype that there is in no bytecode, it fits no result
            _describe(tensor, array, _NO_DTYPE if (dtype := number_of(array.dtype)) is None else dtype)
        self._arguments = _Call(
            interpreter.opened, *map(_address, (self._inputs, self._outputs, self._into, self._error)),
            limits.memory, limits.turns, function, called.parameters, called.results,
        )  # fmt: skip
        self._run = partial(interpreter.call, ctypes.byref(self._arguments))

    def set_input(self, number: int, array: Array) -> Array:
        """Set an input to a contiguous array, or to a copy if it is not aligned; return what runs read.

        That has to stay alive. A small copy serves later inputs, too, while their shape and dtype are its own.
        """
        tensor, address, kind = self._inputs[number], address_of(array), (array.shape, array.dtype)
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
                raise run_error(self._interpreter.executable, Fault(Code.BAD_INPUT, number, -1, 255), None)
            _describe(tensor, array, dtype)
            self._described[number] = kind
        tensor.data = address
        return array

    def __call__(self) -> None:
        """Run the function; raise as `Interpreter.run`, or InputError for a target that does not fit its result."""
        if not self._run():
            return
        error = self._error
        if self._targets is not None and error.code == Code.BAD_OUTPUT and error.text is None:
            number = error.values[0]
            got, target = self._outputs[number], self._targets[number]
            shape = list(got.extents[: got.rank])
            raise InputError(
                f"expected an output of {NUMPY_DTYPES[got.dtype]}{shape}, got {target.dtype}{list(target.shape)}",
                place=self._interpreter.executable.outputs[number].name,
            )
        raise self._interpreter.failure(error)

    def results(self) -> list[Array]:
        """Return the results of the last run, which nobody else has, in memory that they free; only once for a run."""
        interpreter = self._interpreter
        owners = [_Owner(interpreter, *fields) for fields in _TENSOR.iter_unpack(self._outputs)]
        try:
            return [owner.array() for owner in owners]
        except Fault as fault:
            raise run_error(interpreter.executable, fault, None) from None


class _Owner:
    """A result for numpy, whose array keeps it: when the last array is gone, its memory serves other runs."""

    __slots__ = ("__array_interface__", "_block", "_interpreter", "_number")

    def __init__(self, interpreter: CInterpreter, data: int, block: int, *extents: int) -> None:
        self._interpreter = interpreter
        self._block = block
        *_, self._number, rank = extents
        self.__array_interface__: dict[str, Any] = {
            "version": 3, "typestr": _TYPES[self._number], "shape": extents[:rank], "data": (data, False),
        }  # fmt: skip

    def array(self) -> Array:
        shape = self.__array_interface__["shape"]
        if 0 in shape:
            return new_array(shape, self._number)
        array = np.asarray(self)
        return array if self._number in _NAMED else array.view(NUMPY_DTYPES[self._number])

    def __del__(self) -> None:
        self._interpreter.release(self._interpreter.opened, self._block)


def _address(structure: Any) -> int | None:
    return None if structure is None else ctypes.addressof(structure)


_TENSOR = struct.Struct(f"@PP{MAX_RANK}qBB0q")  # a `_Tensor`: reading it at once is cheaper than by its fields
_NO_DTYPE = 255
# Copies of inputs above this are made anew: that costs little of their time, and memory would stay with the model.
_KEPT_BYTES = 1 << 16
# dtypes that are not numpy's own have no name there: their elements come as unsigned ones of the size
_NAMED = frozenset(number for number, name in enumerate(DTYPES) if is_numpys_own(name))
_TYPES = tuple(to_numpy(name).str if is_numpys_own(name) else f"=u{-(-bits(name) // 8)}" for name in DTYPES)


def _describe(tensor: Any, array: Array, dtype: int) -> None:
    tensor.data, tensor.dtype, tensor.rank = address_of(array), dtype, array.ndim
    if array.ndim <= MAX_RANK:
        tensor.extents[: array.ndim] = array.shape
