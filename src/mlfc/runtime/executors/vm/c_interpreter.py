"""The C interpreter in a library: a whole run in one call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from mlfc.errors import MlfcError
from mlfc.runtime.executors.vm.failures import Code, Fault, run_error
from mlfc.runtime.executors.vm.interpreter import Limits
from mlfc.runtime.executors.vm.memory import new_array, number_of
from mlfc.runtime.executors.vm.native_tables import HasSymbols, NativeTables
from mlfc.support.arrays import Array
from mlfc.support.bytecode.executable import Executable
from mlfc.support.bytecode.instructions import BY_NAME, CPU, MAX_RANK

OPEN, RUN, FINISH, CLOSE = (f"mlfc_vm_host_{name}" for name in ("open", "run", "finish", "close"))
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
    RUN: (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32,
        ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p,
    ),
    FINISH: (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p),
    CLOSE: (ctypes.c_void_p,),
}  # fmt: skip


def serves(executable: Executable, code: HasSymbols) -> bool:
    """Tell whether a library has the C interpreter, and an executable needs no devices or packed functions."""
    if any(code.address(symbol) is None for symbol in (OPEN, RUN, FINISH, CLOSE)):
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
    return ctypes.CFUNCTYPE(result, *_ARGUMENTS[symbol])(code.address(symbol) or 0)


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
        self._run = _function(code, RUN)
        self._finish = _function(code, FINISH)
        opened, error = ctypes.c_void_p(), _Error()
        status = _function(code, OPEN)(
            data, len(data), tables.address, depth, ctypes.byref(opened), ctypes.byref(error)
        )
        if status:
            raise self._failure(error)
        self._opened = opened
        weakref.finalize(self, _function(code, CLOSE), opened).atexit = False

    def run(self, function: int, inputs: Sequence[Array], limits: Limits) -> list[Array]:
        """Run a function; as `Interpreter.run`, but for the limit of depth, which is the machine's."""
        given = (_Tensor * len(inputs))()
        for number, (tensor, array) in enumerate(zip(given, inputs, strict=True)):
            dtype = number_of(array.dtype)
            if dtype is None:
                raise run_error(self.executable, Fault(Code.BAD_INPUT, number, -1, 255), None)
            tensor.data, tensor.dtype, tensor.rank = array.ctypes.data, dtype, array.ndim
            tensor.extents[: array.ndim] = array.shape
        count = self.executable.functions[function].results
        results = (_Tensor * count)()
        work, error = ctypes.c_void_p(), _Error()
        status = self._run(
            self._opened, function, given, len(given), results, count, limits.memory, limits.turns,
            ctypes.byref(work), ctypes.byref(error),
        )  # fmt: skip
        if status:
            raise self._failure(error)
        try:
            return [_copied(tensor) for tensor in results]
        except Fault as fault:
            raise run_error(self.executable, fault, None) from None
        finally:
            self._finish(self._opened, results, count, work)

    def _failure(self, error: Any) -> MlfcError:
        text = None if error.text is None else error.text.decode()
        fault = Fault(Code(error.code), *error.values, text=text)
        place = (error.function, error.instruction)
        outside = fault.code in (Code.BAD_FILE, Code.BAD_NATIVE) or place[0] >= len(self.executable.functions)
        return run_error(self.executable, fault, None if outside else place)


def _copied(tensor: Any) -> Array:
    array = new_array(tuple(tensor.extents[: tensor.rank]), tensor.dtype)
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, tensor.data, array.nbytes)
    return array
