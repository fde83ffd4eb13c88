"""What a bytecode file holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mlfc.support.bytecode.instructions import BY_OPCODE, OPEN, Instruction
from mlfc.support.containers import BYTES, EXTENTS, GIVEN, Container, parts_of


@dataclass(frozen=True)
class OpenExtent:
    """An extent that is the value of a symbol, by its index."""

    symbol: int


Extent: TypeAlias = "int | OpenExtent | None"
"""A number, a symbol, or None where nothing is known before the run."""


@dataclass(frozen=True)
class Symbol:
    """An open dimension and its bounds, both included; `high` is `OPEN` where there is none."""

    name: str
    low: int = 1
    high: int = OPEN


@dataclass(frozen=True)
class Value:
    """An input or output of the model."""

    name: str
    dtype: str
    extents: tuple[Extent, ...]
    part: Part | None = None  # where it is a part of a sequence or optional


@dataclass(frozen=True)
class Part:
    """Which part of a sequence or optional an input or output is: see `mlfc.support.containers`."""

    name: str  # of PARTS
    detail: str | None = None  # of the extents the kind of the container, of the bytes the dtype of its tensors
    is_mixed: bool = False  # of the extents whether its tensors differ in how many dimensions they have


def container_of(values: Sequence[Value]) -> Container | None:
    """Return the sequence or optional of which values are the parts; None if they are not."""
    *_, extents, data = (None, None, *values)
    if extents is None or extents.part is None or data is None or data.part is None:
        return None
    kind, dtype, (name, _, _) = extents.part.detail, data.part.detail, data.name.rpartition(".")
    if kind is None or dtype is None:
        return None
    container = Container(name, kind, dtype, is_mixed=extents.part.is_mixed)
    forms = {GIVEN: ("bool", 0), EXTENTS: ("int64", 2), BYTES: ("uint8", 1)}
    fits = all(
        value.part is not None and value.part.name == part and (value.dtype, len(value.extents)) == forms[part]
        for value, part in zip(values, parts_of(kind), strict=False)
    )
    fits = fits and tuple(value.name for value in values) == container.parts and isinstance(extents.extents[1], int)
    return container if fits else None


@dataclass(frozen=True)
class Kernel:
    """A function of the native code: `buffers` memories, the first `reads` of which it only reads, and `numbers`."""

    name: str
    buffers: int
    reads: int
    numbers: int


@dataclass(frozen=True)
class Constant:
    """A tensor whose bytes are in the native code."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Function:
    """A function: its parameters are its first tensor registers.

    Attributes
    ----------
    name : str
    parameters, results : int
    tensors, integers, storages, lists : int
        Registers by kind.
    labels : tuple of int
        Where jumps go, as offsets in `code`, ascending.
    code : tuple of int
        Words of 32 bits.
    """

    name: str
    parameters: int
    results: int
    tensors: int
    integers: int
    storages: int
    lists: int
    labels: tuple[int, ...]
    code: tuple[int, ...]

    def instructions(self) -> Iterator[tuple[int, Instruction, tuple[int, ...]]]:
        """Yield each instruction of verified code: its offset in words, its kind, its operands."""
        at = 0
        while at < len(self.code):
            word = self.code[at]
            yield at, BY_OPCODE[word & 0xFF], self.code[at + 1 : at + (word >> 8)]
            at += word >> 8


@dataclass(frozen=True)
class Executable:
    """A model as bytecode. Its first function is the model; the others are called by it.

    Attributes
    ----------
    name : str
        Of the module: its native code exports ``tvmgen_<name>_vm_code``.
    arena_bytes : int
        What all storages with an offset need together; -1 where storages are allocated while it runs.
    states : tuple of int or None
        Of each tensor that is kept from one run to the next, the constant with its first value, None for zeros. They
        are the last inputs, in this order, and the last outputs are their next values.
    """

    name: str
    functions: tuple[Function, ...]
    strings: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    constants: tuple[Constant, ...] = ()
    integers: tuple[int, ...] = field(default=(), repr=False)
    arena_bytes: int = -1
    states: tuple[int | None, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether all storage has a place in one arena, so that nothing is allocated while it runs."""
        return self.arena_bytes >= 0

    @property
    def given(self) -> tuple[Value, ...]:
        """The inputs without states: what a caller gives."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def returned(self) -> tuple[Value, ...]:
        """The outputs without the next values of states: what a caller gets."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def kept(self) -> tuple[Value, ...]:
        """The inputs that are states."""
        return self.inputs[len(self.inputs) - len(self.states) :]
