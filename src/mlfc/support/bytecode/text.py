"""Bytecode as text, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlfc.support.bytecode.executable import Executable, Extent, Function, OpenExtent
from mlfc.support.bytecode.instructions import (
    CONSTANT_BIT,
    CPU,
    DTYPES,
    NO_OFFSET,
    OPEN,
    OPERATIONS,
    STORAGE_BIT,
    Instruction,
    Operand,
    Tail,
)

_LETTERS = {
    Operand.STORAGE: "s", Operand.TO_STORAGE: "s", Operand.END_STORAGE: "s",
    Operand.LIST: "l", Operand.TO_LIST: "l", Operand.TO_INTEGER: "i",
    Operand.TENSOR_REGISTER: "t", Operand.TO_TENSOR: "t", Operand.END_TENSOR: "t",
}  # fmt: skip


def disassemble(executable: Executable) -> str:
    """Return verified bytecode as text: tables, then each function with its labels and instructions.

    Registers are ``i0`` (integers), ``t0`` (tensors), ``s0`` (storages) and ``l0`` (lists).
    """
    return (
        "\n".join(
            [*_tables(executable), *(line for each in executable.functions for line in _function(executable, each))]
        )
        + "\n"
    )


def _tables(executable: Executable) -> Iterator[str]:
    arena = f", arena of {executable.arena_bytes} bytes" if executable.is_bounded else ""
    yield f"module {executable.name}{arena}"
    for symbol in executable.symbols:
        high = "open" if symbol.high == OPEN else symbol.high
        yield f"symbol {symbol.name}: {symbol.low} to {high}"
    for kind, values in (("input", executable.inputs), ("output", executable.outputs)):
        for value in values:
            yield f"{kind} {value.name}: {value.dtype}{_shape(executable, value.extents)}"
    for value, first in zip(executable.kept, executable.states, strict=True):
        begin = "zeros" if first is None else executable.constants[first].name
        yield f"state {value.name}: begins as {begin}"
    for constant in executable.constants:
        yield f"constant {constant.name}: {constant.dtype}{_shape(executable, constant.shape)}"
    for kernel in executable.kernels:
        written = kernel.buffers - kernel.reads
        yield f"kernel {kernel.name}: reads {kernel.reads}, writes {written}, numbers {kernel.numbers}"


def _shape(executable: Executable, extents: Sequence[Extent]) -> str:
    return "[" + ", ".join(_extent(executable, extent) for extent in extents) + "]"


def _extent(executable: Executable, extent: Extent) -> str:
    if isinstance(extent, OpenExtent):
        return executable.symbols[extent.symbol].name
    return "?" if extent is None else str(extent)


def _function(executable: Executable, function: Function) -> Iterator[str]:
    parameters = ", ".join(f"t{number}" for number in range(function.parameters))
    yield ""
    yield f"function {function.name}({parameters}) -> {function.results}"
    labels = {offset: number for number, offset in enumerate(function.labels)}
    for number, (at, instruction, operands) in enumerate(function.instructions()):
        if at in labels:
            yield f" L{labels[at]}:"
        yield f"  {number:4}  {_instruction(executable, instruction, operands)}"


def _instruction(executable: Executable, instruction: Instruction, words: Sequence[int]) -> str:
    fixed = len(instruction.operands)
    kinds = [*instruction.operands, *_tail_kinds(executable, instruction, words, len(words) - fixed)]
    shown = [_operand(executable, kind, word) for kind, word in zip(kinds, words, strict=True)]
    if instruction.tail is Tail.EXTENTS:
        shown = [*shown[:fixed], "[" + ", ".join(shown[fixed:]) + "]"]
    return f"{instruction.name} {', '.join(shown)}".rstrip()


def _tail_kinds(executable: Executable, instruction: Instruction, words: Sequence[int], count: int) -> list[Operand]:
    if instruction.tail is Tail.EXTENTS:
        return [Operand.INTEGER] * count
    if instruction.tail is Tail.ARGUMENTS:
        kernel = executable.kernels[words[0]]
        return [Operand.BUFFER] * kernel.buffers + [Operand.INTEGER] * kernel.numbers
    if instruction.tail is Tail.CALL:
        callee = executable.functions[words[0]]
        return [Operand.TENSOR] * callee.parameters + [Operand.TO_TENSOR] * callee.results
    return [Operand.TENSOR] * count


def _operand(executable: Executable, kind: Operand, word: int) -> str:
    constant = word & ~CONSTANT_BIT
    if kind in _LETTERS:
        return f"{_LETTERS[kind]}{word}"
    if kind is Operand.INTEGER:
        return str(executable.integers[constant]) if word & CONSTANT_BIT else f"i{word}"
    if kind in (Operand.TENSOR, Operand.BUFFER):
        if word & CONSTANT_BIT:
            return executable.constants[constant].name
        return f"s{word & ~STORAGE_BIT}" if word & STORAGE_BIT else f"t{word}"
    if kind is Operand.OFFSET:
        return "allocated" if word == NO_OFFSET else f"at {executable.integers[constant]}"
    if kind is Operand.DEVICE:
        return "cpu" if word == CPU else f"device {word}"
    names = {
        Operand.OPERATION: OPERATIONS,
        Operand.DTYPE: DTYPES,
        Operand.KERNEL: tuple(kernel.name for kernel in executable.kernels),
        Operand.FUNCTION: tuple(function.name for function in executable.functions),
    }
    if kind in names:
        return names[kind][word]
    return (
        repr(executable.strings[word]) if kind is Operand.STRING else f"L{word}" if kind is Operand.LABEL else str(word)
    )
