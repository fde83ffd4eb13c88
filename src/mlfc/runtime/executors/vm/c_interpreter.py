"""The C interpreter in a library: a whole run in one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import InputError, MlfcError
from mlfc.runtime.executors.vm.failures import Code, Fault, run_error
from mlfc.runtime.executors.vm.interpreter import Limits
from mlfc.runtime.executors.vm.memory import NUMPY_DTYPES, new_array, number_of
from mlfc.runtime.executors.vm.native_tables import HasSymbols, NativeTables
from mlfc.support.arrays import Array
from mlfc.support.bytecode.executable import Executable
from mlfc.support.bytecode.instructions import BY_NAME, CPU, MAX_RANK

OPEN, CALL, RELEASE, CLOSE = (f"mlfc_vm_host_{name}" for name in ("open", "call", "release", "close"))
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


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    OPEN: (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p),
    RELEASE: (ctypes.c_void_p, ctypes.c_void_p),
    CLOSE: (ctypes.c_void_p,),
}


def serves(executable: Executable, code: HasSymbols) -> bool:
    """Tell whether a library has the C interpreter, and an executable needs no devices or packed functions."""
    if any(code.address(symbol) is None for symbol in (OPEN, CALL, RELEASE, CLOSE)):
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
    result = ctypes.c_int32 if symbol in (OPEN, CALL) else None
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
        self.call = _function(code, CALL)
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
        for number, array in enumerate(inputs):
            call.set_input(number, array)
        call()
        results = call.results()
        self._idle.append((function, limits, call))
        return results

    def _take(self, function: int, limits: Limits) -> PreparedCall:
        """Return the call of an earlier run that has ended, or a new one; several may go on at once."""
        try:
            of, under, call = self._idle.pop()
        except IndexError:
            return PreparedCall(self, function, limits)
        return call if (of, under) == (function, limits) else PreparedCall(self, function, limits)

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
        self._each = list(self._outputs)
        self._error = _Error()
        into = None
        if targets is not None:
            into = (_Tensor * called.results)()
            for tensor, array in zip(into, targets, strict=True):
                # of a dtype that there is in no bytecode, it fits no result
                _describe(tensor, array, _NO_DTYPE if (dtype := number_of(array.dtype)) is None else dtype)
        self._call = partial(
            interpreter.call, interpreter.opened, ctypes.c_uint32(function),
            ctypes.byref(self._inputs), ctypes.c_uint32(called.parameters),
            ctypes.byref(self._outputs), ctypes.c_uint32(called.results),
            ctypes.c_void_p(None if into is None else ctypes.addressof(into)),
            ctypes.c_int64(limits.memory), ctypes.c_uint64(limits.turns), ctypes.byref(self._error),
        )  # fmt: skip
        self._into = into

    def set_input(self, number: int, array: Array) -> None:
        """Set an input to an array that is contiguous and aligned, and stays alive during runs."""
        dtype = number_of(array.dtype)
        if dtype is None:
            raise run_error(self._interpreter.executable, Fault(Code.BAD_INPUT, number, -1, 255), None)
        _describe(self._inputs[number], array, dtype)

    def __call__(self) -> None:
        """Run the function; raise as `Interpreter.run`, or InputError for a target that does not fit its result."""
        if not self._call():
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
        owners = [_Owner(interpreter, tensor) for tensor in self._each]
        try:
            return [owner.array() for owner in owners]
        except Fault as fault:
            raise run_error(interpreter.executable, fault, None) from None


class _Owner:
    """A result for numpy, whose array keeps it: when the last array is gone, its memory serves other runs."""

    __slots__ = ("__array_interface__", "_block", "_interpreter", "_number")

    def __init__(self, interpreter: CInterpreter, tensor: Any) -> None:
        self._interpreter = interpreter
        self._block = tensor.block
        self._number: int = tensor.dtype
        self.__array_interface__ = {
            "version": 3, "typestr": _TYPES[self._number], "shape": tuple(tensor.extents[: tensor.rank]),
            "data": (tensor.data, False),
        }  # fmt: skip

    def array(self) -> Array:
        shape = self.__array_interface__["shape"]
        if 0 in shape:
            return new_array(shape, self._number)
        array = np.asarray(self)
        return array if self._number in _NAMED else array.view(NUMPY_DTYPES[self._number])

    def __del__(self) -> None:
        self._interpreter.release(self._interpreter.opened, self._block)


_NO_DTYPE = 255
# dtypes that are not numpy's own have no name there: their elements come as unsigned ones of the size
_NAMED = frozenset(number for number, dtype in enumerate(NUMPY_DTYPES) if dtype.isbuiltin == 1)
_TYPES = tuple(dtype.str if number in _NAMED else f"=u{dtype.itemsize}" for number, dtype in enumerate(NUMPY_DTYPES))


def _describe(tensor: Any, array: Array, dtype: int) -> None:
    tensor.data, tensor.dtype, tensor.rank = array.__array_interface__["data"][0], dtype, array.ndim
    if array.ndim <= MAX_RANK:
        tensor.extents[: array.ndim] = array.shape
