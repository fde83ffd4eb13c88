"""The description of a dynamic model for its callers, a JSON file: inputs, outputs, dimensions and memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Annotated, TypeAlias

from mlfc.errors import ArchiveError
from mlfc.support.dtypes import nbytes
from mlfc.support.module_info import Bytes, SymbolInfo, VmInfo
from mlfc.support.records import Limits, Record, Says
from mlfc.support.tensor_info import BYTES, EXTENTS, GIVEN, KINDS, Container, Dtype, TensorInfo, Text, parts_of

MAX_RANK = 8
"""Largest rank of inputs, outputs and tensors in lists."""
ALIGNMENT = 64
"""Alignment of all tensor data, in bytes."""
MAX_BYTES = 1 << 26
"""Largest size of the file."""
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
    "int4", "uint4", "int2", "uint2",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
"""A dtype's index in this table is its number in `mlfc_vm_tensor`."""
NUMBERED_DTYPES = {dtype: number for number, dtype in enumerate(DTYPES)}
_OLD_MAGIC = b"MLFC-VM\n"
_INT32 = (1 << 31) - 1

Dimension: TypeAlias = (
    Annotated[int, Limits(minimum=0, maximum=_INT32)] | Annotated[str, Limits(max_length=65536)] | None
)
"""A static dimension, the name of a symbol, or None if unknown before the run."""
_SHOWN_EXTENTS = 8
_SHOWN_NAME = 60


class RunCode(IntEnum):
    """Error codes of runs: the values of C's ``MLFC_VM_`` constants."""

    STATE = 4
    BAD_INPUT = 5
    BAD_OUTPUT = 6
    WORK = 7
    OVERFLOW = 9
    DIVISION = 10
    ELEMENT = 12
    RANGE = 14
    EQUAL = 15
    NEGATIVE = 16
    SIZE = 17
    KERNEL = 22
    PACKED = 23
    DEVICE = 24
    MEMORY = 25
    ALLOCATE = 26
    TURNS = 27
    FAILED = 29
    INDEX = 30


@dataclass(frozen=True)
class PartInfo(Record):
    """The part of a sequence or optional that a tensor is; see `mlfc.support.tensor_info`."""

    name: Annotated[str, Limits(enum=(GIVEN, EXTENTS, BYTES))]
    detail: Annotated[str | None, Says("the container's kind for `extents`, its tensors' dtype for `bytes`")] = None
    is_mixed: Annotated[bool, Says("for `extents`, whether its tensors differ in rank")] = False


@dataclass(frozen=True)
class VmValue(Record):
    """An input, output or state."""

    name: Text
    dtype: Dtype
    extents: Annotated[tuple[Dimension, ...], Limits(max_items=MAX_RANK)]
    part: Annotated[PartInfo | None, Says(omitted=True)] = None


@dataclass(frozen=True)
class Executable(Record):
    """A dynamic model: inputs, outputs and memory of its main function."""

    name: Annotated[str, Limits(pattern="^[A-Za-z0-9_]{1,255}$"), Says("the module's: its code exports `run_symbol`")]
    inputs: Annotated[tuple[VmValue, ...], Limits(max_items=65536)]
    outputs: Annotated[tuple[VmValue, ...], Limits(max_items=65536)]
    symbols: Annotated[tuple[SymbolInfo, ...], Limits(max_items=65536), Says("the dynamic dimensions of inputs")] = ()
    states: Annotated[tuple[VmValue, ...], Limits(max_items=65536), Says("tensors that persist between runs")] = ()
    next_states: Annotated[tuple[Text, ...], Limits(max_items=65536), Says("names of their next values")] = ()
    arena_bytes: Annotated[Bytes | None, Says("that a run needs; null if that depends on its inputs")] = None
    kernels: Bytes = 0
    devices: Annotated[tuple[Text, ...], Limits(max_items=16), Says("kinds of devices that it uses")] = ()

    @property
    def is_bounded(self) -> bool:
        """True if a run uses only one work area of known size."""
        return self.arena_bytes is not None

    @property
    def work_bytes(self) -> int | None:
        """Bytes of a work area that suffices for every run, at any address; None if unbounded."""
        return None if self.arena_bytes is None else self.arena_bytes + ALIGNMENT


def run_symbol(name: str) -> str:
    """Return the name of the main function of a module."""
    return f"tvmgen_{name}_vm_run"


def reset_symbol(name: str) -> str:
    """Return the name of the function that resets the states of a module to their initial values."""
    return f"tvmgen_{name}_vm_state_reset"


def release_symbol(name: str) -> str:
    """Return the name of the function that frees outputs of a module whose memory is not bounded."""
    return f"tvmgen_{name}_vm_release"


def state_offsets(executable: Executable) -> tuple[int, ...]:
    """Return the offsets of the states in the caller's memory, and the end of the last one."""
    offsets, end = [], 0
    for value in executable.states:
        offsets.append(-(-end // ALIGNMENT) * ALIGNMENT)
        end = offsets[-1] + nbytes(value.dtype) * prod(item for item in value.extents if isinstance(item, int))
    return (*offsets, end)


def encode(executable: Executable) -> bytes:
    """Return the file content of an executable."""
    return (json.dumps(executable.to_json(), indent=1) + "\n").encode()


def decode(data: bytes, place: str) -> Executable:
    """Return the executable in an untrusted file; raise ArchiveError if it is invalid."""
    again = "Compile the model again, from an archive: mlfc compile OLD.tar -o NEW.tar"
    if data.startswith(_OLD_MAGIC):
        raise ArchiveError(
            "expected a dynamic model as code, got bytecode of an earlier version", place=place, next_step=again
        )
    if len(data) > MAX_BYTES:
        raise ArchiveError(f"expected at most {MAX_BYTES:,} bytes, got {len(data):,}", place=place, next_step=again)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"expected JSON: {error}", place=place, next_step=again) from None
    executable = Executable.read(found, place, again)
    fault = _fault(executable)
    if fault:
        raise ArchiveError(fault, place=place, next_step=again)
    return executable


def _fault(executable: Executable) -> str | None:
    """Return the first inconsistency in an executable; None if it has none."""
    names = {symbol.name for symbol in executable.symbols}
    if len(names) < len(executable.symbols):
        return "expected symbols with distinct names"
    for symbol in executable.symbols:
        if symbol.high is not None and symbol.high < symbol.low:
            return f"symbol '{symbol.name}': expected at least {symbol.low}, got {symbol.high}"
    for value in (*executable.inputs, *executable.outputs):
        for extent in value.extents:
            if isinstance(extent, str) and extent not in names:
                return f"'{value.name}': unknown symbol '{extent}'"
    for value in executable.states:
        if not all(isinstance(extent, int) for extent in value.extents):
            return f"state '{value.name}': expected a static shape"
    if len(executable.next_states) != len(executable.states):
        return f"expected {len(executable.states)} next states, got {len(executable.next_states)}"
    for values in (executable.inputs, executable.outputs):
        at = 0
        while at < len(values):
            count = parts_at(values, at)
            if count > 1 and container_of(values[at : at + count]) is None:
                return f"'{values[at].name}': expected the parts of a sequence or optional"
            at += count
    return None


def parts_at(values: Sequence[VmValue], at: int) -> int:
    """Return the number of values, from index `at` on, that represent one input or output: 1 for a tensor."""
    part = values[at].part
    return 1 if part is None else 3 if part.name == GIVEN else 2


def container_of(values: Sequence[VmValue]) -> Container | None:
    """Return the container whose parts are `values`; None if they do not form one."""
    *_, extents, data = (None, None, *values)
    if extents is None or extents.part is None or data is None or data.part is None:
        return None
    kind, dtype, (name, _, _) = extents.part.detail, data.part.detail, data.name.rpartition(".")
    if kind not in KINDS or dtype not in DTYPES:
        return None
    container = Container(name, kind, dtype, is_mixed=extents.part.is_mixed)
    forms = {GIVEN: ("bool", 0), EXTENTS: ("int64", 2), BYTES: ("uint8", 1)}
    fits = len(values) == len(parts_of(kind)) and all(
        value.part is not None and value.part.name == part and (value.dtype, len(value.extents)) == forms[part]
        for value, part in zip(values, parts_of(kind), strict=True)
    )
    fits = fits and tuple(value.name for value in values) == container.parts and isinstance(extents.extents[1], int)
    return container if fits else None


def vm_info(executable: Executable) -> VmInfo:
    """Return the memory sizes and symbols of a dynamic model."""
    return VmInfo(executable.arena_bytes, executable.work_bytes, executable.symbols)


def most_input_bytes(inputs: Sequence[TensorInfo], vm: VmInfo) -> int | None:
    """Return the bytes of all inputs in the worst case; None if unbounded.

    Metadata of older versions lack this number. It is then computed from the symbols' bounds, and None if a dimension
    is an expression.
    """
    if vm.input_bytes is not None:
        return vm.input_bytes
    highs = {symbol.name: symbol.high for symbol in vm.symbols if symbol.high is not None}
    largest = [tensor.at(highs) for tensor in inputs]
    return sum(tensor.nbytes for tensor in largest) if all(tensor.is_static for tensor in largest) else None


def bounding_option(inputs: Sequence[TensorInfo], symbols: Sequence[SymbolInfo]) -> str:
    """Return an example option that bounds an input's dimensions: ``--shape x=batch:1..8,3``."""
    lows = {symbol.name: symbol.low for symbol in symbols if symbol.high is None and symbol.name.isidentifier()}
    for tensor in inputs:
        extents = [str(extent) for extent in tensor.shape]
        plain = tensor.name.isprintable() and " " not in tensor.name and len(tensor.name) <= _SHOWN_NAME
        if plain and len(extents) <= _SHOWN_EXTENTS and any(extent in lows for extent in extents):
            bounded = (f"{name}:{lows[name]}..{max(8, lows[name])}" if name in lows else name for name in extents)
            return f"--shape {tensor.name}={','.join(bounded)}"
    return "--shape INPUT=batch:1..8"
