"""Why runs of bytecode fail: the codes of the C interpreter (``mlfc_vm.h``), and their messages."""

from __future__ import annotations

from enum import IntEnum

from mlfc.errors import ArchiveError, DeviceError, InputError, LimitError, MlfcError, RunError
from mlfc.support.bytecode.executable import Executable
from mlfc.support.bytecode.instructions import DTYPES, OPEN
from mlfc.support.dims import LARGEST
from mlfc.support.text import printable, shortened


class Code(IntEnum):
    """The values of C's ``MLFC_VM_`` constants."""

    BAD_FILE = 1
    BAD_CODE = 2
    BAD_NATIVE = 3
    BAD_CALL = 4
    BAD_INPUT = 5
    BAD_OUTPUT = 6
    WORK = 7
    UNSET = 8
    OVERFLOW = 9
    DIVISION = 10
    AXIS = 11
    ELEMENT = 12
    DTYPE = 13
    RANGE = 14
    EQUAL = 15
    NEGATIVE = 16
    SIZE = 17
    OUTSIDE = 18
    MISALIGNED = 19
    READ_ONLY = 20
    SIZES = 21
    KERNEL = 22
    PACKED = 23
    DEVICE = 24
    MEMORY = 25
    ALLOCATE = 26
    TURNS = 27
    DEPTH = 28
    FAILED = 29
    INDEX = 30


# {0} to {2} are values, {text} what the instruction names
_MESSAGES = {
    Code.BAD_FILE: "the file is damaged at byte {0}",
    Code.BAD_CODE: "the instruction is damaged",
    Code.BAD_NATIVE: "the native code is that of another executable (kernel {0}, constant {1})",
    Code.BAD_CALL: "function {0} does not take {1} tensors and return {2}",
    Code.WORK: "the work area is too small",
    Code.UNSET: "a register is read before it is written",
    Code.OVERFLOW: "the result of an operation on {0} and {1} does not fit in an integer",
    Code.DIVISION: "{0} is divided by zero",
    Code.AXIS: "expected an axis of a tensor of {1} dimensions, got {0}",
    Code.ELEMENT: "expected one of {1} elements, got number {0}",
    Code.DTYPE: "expected a tensor of integers or bool, got {dtype}",
    Code.RANGE: "expected {1} to {2}, got {0}",
    Code.EQUAL: "expected two equal numbers, got {0} and {1}",
    Code.NEGATIVE: "expected an extent or size, got {0}",
    Code.SIZE: "the bytes of a tensor do not fit in 63 bits: its extent is {0}",
    Code.OUTSIDE: "{0:,} bytes exceed the {1:,} that its memory has",
    Code.MISALIGNED: "byte {0} is not a multiple of 64, where tensors begin",
    Code.READ_ONLY: "a tensor that is only to be read would be written",
    Code.SIZES: "{1:,} bytes cannot be copied into a tensor of {0:,}",
    Code.KERNEL: "the kernel refused its buffers or numbers with status {0}",
    Code.PACKED: "the packed function failed with status {0}",
    Code.DEVICE: "there is no device of type {0} for this run",
    Code.MEMORY: "{0:,} bytes more exceed the memory limit of {1:,} bytes",
    Code.ALLOCATE: "there is no memory for {0:,} bytes",
    Code.TURNS: "the run exceeds {0:,} backward jumps and calls",
    Code.DEPTH: "calls are nested more than {0:,} deep",
    Code.FAILED: "the model ended the run",
    Code.INDEX: "expected a position in a list of {1} tensors, got {0}",
}
_NEXT_STEPS = {
    Code.MEMORY: "Raise memory_limit (mlfc run: --memory-limit), or give smaller extents or bounds",
    Code.TURNS: "Raise turn_limit (mlfc run: --turn-limit) if the model is to run this long",
    Code.DEPTH: "Raise depth_limit if the model is to call this deep",
    Code.RANGE: "Check the shapes of the inputs, and the values that decide shapes",
    Code.EQUAL: "Check the shapes of the inputs, and the values that decide shapes",
    Code.NEGATIVE: "Check the shapes of the inputs, and the values that decide shapes",
}
_ERRORS: dict[Code, type[MlfcError]] = {
    Code.BAD_FILE: ArchiveError, Code.BAD_CODE: ArchiveError, Code.BAD_NATIVE: ArchiveError,
    Code.BAD_CALL: InputError, Code.BAD_INPUT: InputError, Code.RANGE: InputError, Code.EQUAL: InputError,
    Code.MEMORY: LimitError, Code.TURNS: LimitError, Code.DEPTH: LimitError, Code.DEVICE: DeviceError,
}  # fmt: skip
_AXIS_DTYPE, _AXIS_RANK, _AXIS_ALIGNMENT = -1, -2, -3
NO_VALUES = (0, 0, 0)
_SHOWN = 6  # bounds of an arena


class Fault(Exception):  # noqa: N818  (not an error of its own: the interpreter adds the place)
    """What is wrong with the current instruction."""

    def __init__(self, code: Code, *values: int, text: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.values = (*values, *NO_VALUES)[:3]
        self.text = text


def run_error(executable: Executable, fault: Fault, place: tuple[int, int] | None) -> MlfcError:
    """Return the error of a fault at a function and an instruction of it; None for a place outside the code.

    The error has `fault` and `place` as attributes, for callers that compare interpreters.
    """
    code = fault.code
    text = None if fault.text is None else printable(shortened(fault.text))
    if code in (Code.BAD_INPUT, Code.BAD_OUTPUT):
        cause = _value_cause(executable, fault)
    else:
        dtype = DTYPES[fault.values[0]] if code is Code.DTYPE else ""
        is_one = code is Code.RANGE and fault.values[1] == fault.values[2]
        cause = ("expected {1}, got {0}" if is_one else _MESSAGES[code]).format(*fault.values, dtype=dtype)
    cause = f"{text}: {cause}" if text and code in (Code.RANGE, Code.EQUAL, Code.FAILED) else cause
    where = text if text and code not in (Code.RANGE, Code.EQUAL, Code.FAILED) else None
    if place is None and code is Code.MEMORY:  # before the first instruction
        where = f"registers of function '{text}'" if text else _arena(executable)
    if place is not None and code not in (Code.BAD_INPUT, Code.BAD_CALL):
        name = printable(shortened(executable.functions[place[0]].name))
        where = f"function '{name}', instruction {place[1]}" + (f", '{where}'" if where else "")
    next_step = _NEXT_STEPS.get(code)
    if isinstance(fault.__cause__, MlfcError):  # of a function that is Python here
        cause, next_step = f"the packed function failed: {fault.__cause__.cause}", fault.__cause__.next_step
    error = _ERRORS.get(code, RunError)(cause, place=where, next_step=next_step)
    error.__dict__.update(fault=fault, where=place)
    return error


def _arena(executable: Executable) -> str:
    """Return what takes the memory of all storages at once, with the bounds that decide how much that is."""
    bounded = [f"{symbol.name} up to {symbol.high}" for symbol in executable.symbols if symbol.high < OPEN]
    shown = [printable(shortened(text)) for text in bounded[:_SHOWN]] + ["..."] * (len(bounded) > _SHOWN)
    name = printable(shortened(executable.name))
    return f"arena of module '{name}'" + (f" for {', '.join(shown)}" if shown else "")


def _value_cause(executable: Executable, fault: Fault) -> str:
    number, axis, has = fault.values
    kind, values = ("input", executable.inputs) if fault.code is Code.BAD_INPUT else ("output", executable.outputs)
    if axis == _AXIS_ALIGNMENT:
        return f"{kind} {number} does not begin at a multiple of 64 bytes"
    # of another function than the model
    if number >= len(values):
        return f"{kind} {number} has a dtype or an extent that is not possible: {has}"
    value = values[number]
    if axis == _AXIS_DTYPE:
        return f"expected {kind} of dtype {value.dtype}, got {DTYPES[has] if has < len(DTYPES) else has}"
    if axis == _AXIS_RANK:
        return f"expected {kind} of {len(value.extents)} dimensions, got {has}"
    if axis >= len(value.extents):
        return f"{kind} {number} has an extent that is not possible: {has}"
    extent = value.extents[axis]
    if isinstance(extent, int):
        return f"expected {kind} with extent {extent} on axis {axis}, got {has}"
    if extent is None:
        return f"expected {kind} with an extent of at least 0 on axis {axis}, got {has}"
    symbol = executable.symbols[extent.symbol]
    most = "or more" if symbol.high >= LARGEST else f"to {symbol.high}"
    named = f"'{printable(shortened(symbol.name))}' ({symbol.low} {most}, the same wherever it is)"
    return f"expected {kind} with extent {named} on axis {axis}, got {has}"
