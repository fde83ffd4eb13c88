"""The errors of runs of dynamic models."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import DeviceError, InputError, LimitError, MlfcError, RunError
from mlfc.support.dims import LARGEST
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import DTYPES, NUMBERED_DTYPES, Executable, RunCode
from mlfc.support.tensor_info import Array
from mlfc.support.text import printable, shortened

# {0} to {2} are the values in an error
_MESSAGES = {
    RunCode.STATE: "the model has {0:,} bytes of state, but got no memory for them",
    RunCode.WORK: "the work area is too small: it must have {0:,} bytes",
    RunCode.OVERFLOW: "the result of an operation on {0} and {1} does not fit in an integer",
    RunCode.DIVISION: "{0} is divided by zero",
    RunCode.ELEMENT: "{0:,} bytes exceed the {1:,} that the tensor has",
    RunCode.RANGE: "expected {1} to {2}, got {0}",
    RunCode.EQUAL: "expected two equal numbers, got {0} and {1}",
    RunCode.NEGATIVE: "expected a non-negative size, got {0}",
    RunCode.SIZE: "a tensor is too large: its size or one of its dimensions is {0}",
    RunCode.KERNEL: "the kernel rejected its buffers or sizes with status {0}",
    RunCode.PACKED: "the packed function failed with status {0}",
    RunCode.DEVICE: "this run requires a device of type {0}, but got none",
    RunCode.MEMORY: "{0:,} bytes more exceed the memory limit of {1:,} bytes",
    RunCode.ALLOCATE: "out of memory for {0:,} bytes",
    RunCode.TURNS: "the run exceeds {0:,} iterations",
    RunCode.FAILED: "the model ended the run",
    RunCode.INDEX: "expected an index into a list of {1} tensors, got {0}",
}
_CHECK_INPUTS = "Check the shapes of the inputs, and the values that determine shapes"
_NEXT_STEPS = {
    RunCode.MEMORY: "Raise memory_limit (mlfc run: --memory-limit), or use smaller dimension sizes or bounds",
    RunCode.TURNS: "Raise turn_limit (mlfc run: --turn-limit) if the model needs more iterations",
    RunCode.RANGE: _CHECK_INPUTS,
    RunCode.EQUAL: _CHECK_INPUTS,
    RunCode.NEGATIVE: _CHECK_INPUTS,
}
_ERRORS: dict[RunCode, type[MlfcError]] = {
    RunCode.BAD_INPUT: InputError, RunCode.RANGE: InputError, RunCode.EQUAL: InputError, RunCode.MEMORY: LimitError,
    RunCode.TURNS: LimitError, RunCode.DEVICE: DeviceError,
}  # fmt: skip
AXIS_DTYPE, AXIS_RANK, AXIS_ALIGNMENT = -1, -2, -3
_SHOWN = 6  # bounds of an arena
_PART_OF_CAUSE = (RunCode.RANGE, RunCode.EQUAL, RunCode.FAILED)


def run_error(
    executable: Executable, code: int, values: tuple[int, int, int], text: str | None, cause: MlfcError | None = None
) -> MlfcError:
    """Return the error of a run; `cause` is the exception of a Python packed function."""
    known = RunCode(code) if code in set(RunCode) else None
    if known is None:
        return RunError(f"the run failed with the unknown status {code}", place=executable.name)
    shown = None if text is None else printable(shortened(text))
    if known in (RunCode.BAD_INPUT, RunCode.BAD_OUTPUT):
        message = _value_cause(executable, known, values)
    else:
        is_one = known is RunCode.RANGE and values[1] == values[2]
        message = ("expected {1}, got {0}" if is_one else _MESSAGES[known]).format(*values)
    if shown and known in _PART_OF_CAUSE:
        message, shown = f"{shown}: {message}", None
    place = shown or (_arena(executable) if known is RunCode.MEMORY else None)
    next_step = _NEXT_STEPS.get(known)
    if cause is not None:
        message, next_step = f"the packed function failed: {cause.cause}", cause.next_step
    error = _ERRORS.get(known, RunError)(message, place=place, next_step=next_step)
    error.__dict__["code_of_run"] = known
    return error


def require_fitting(executable: Executable, arrays: Sequence[Array]) -> None:
    """Raise the error of a run unless the arrays match the model's inputs."""
    known: dict[str, int] = {}
    bounds = {symbol.name: (symbol.low, symbol.high or LARGEST) for symbol in executable.symbols}
    for number, (value, array) in enumerate(zip(executable.inputs, arrays, strict=True)):
        fault: tuple[int, int] | None = None
        if array.dtype != to_numpy(value.dtype):
            fault = (AXIS_DTYPE, NUMBERED_DTYPES.get(array.dtype.name, len(DTYPES)))
        elif array.ndim != len(value.extents):
            fault = (AXIS_RANK, array.ndim)
        else:
            for axis, (wanted, has) in enumerate(zip(value.extents, array.shape, strict=True)):
                low, high = bounds[wanted] if isinstance(wanted, str) else (0, LARGEST)
                same = known.setdefault(wanted, has) if isinstance(wanted, str) else has if wanted is None else wanted
                if same != has or not low <= has <= high:
                    fault = fault or (axis, has)
        if fault:
            raise run_error(executable, RunCode.BAD_INPUT, (number, *fault), value.name)


def _arena(executable: Executable) -> str:
    """Return the name of a model's arena for messages, with the bounds that determine its size."""
    bounded = [f"{symbol.name} up to {symbol.high}" for symbol in executable.symbols if symbol.high is not None]
    shown = [printable(shortened(text)) for text in bounded[:_SHOWN]] + ["..."] * (len(bounded) > _SHOWN)
    name = printable(shortened(executable.name))
    return f"arena of module '{name}'" + (f" for {', '.join(shown)}" if shown else "")


def _value_cause(executable: Executable, code: RunCode, fault: tuple[int, int, int]) -> str:
    number, axis, has = fault
    kind, values = ("input", executable.inputs) if code is RunCode.BAD_INPUT else ("output", executable.outputs)
    if axis == AXIS_ALIGNMENT:
        return f"{kind} {number} is not aligned to {has} bytes"
    value = values[number]
    if axis == AXIS_DTYPE:
        return f"expected {kind} of dtype {value.dtype}, got {DTYPES[has] if has < len(DTYPES) else has}"
    if axis == AXIS_RANK:
        return f"expected {kind} of {len(value.extents)} dimensions, got {has}"
    extent = value.extents[axis]
    if isinstance(extent, int):
        return f"expected {kind} with extent {extent} on axis {axis}, got {has}"
    symbol = next((item for item in executable.symbols if item.name == extent), None)
    if symbol is None:
        return f"expected {kind} with an extent of at least 0 on axis {axis}, got {has}"
    most = "or more" if symbol.high is None or symbol.high >= LARGEST else f"to {symbol.high}"
    named = f"'{printable(shortened(symbol.name))}' ({symbol.low} {most}, the same wherever it is)"
    return f"expected {kind} with extent {named} on axis {axis}, got {has}"
