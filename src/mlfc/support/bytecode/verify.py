"""What interpreters rely on, checked once in time linear in the size of the code.

Operands are in range, jumps go to instructions of their own function, arities agree, and every register is written
before it is read, on every path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from mlfc.errors import ArchiveError
from mlfc.support import dtypes
from mlfc.support.bytecode.executable import Executable, Function, OpenExtent, Value, container_of
from mlfc.support.bytecode.instructions import (
    ALIGNMENT,
    BY_OPCODE,
    CONSTANT_BIT,
    DTYPES,
    MAX_ARGUMENTS,
    MAX_RANK,
    MAX_REGISTERS,
    NO_OFFSET,
    NUMBERED_DTYPES,
    OPERATIONS,
    REGISTER_KINDS,
    STORAGE_BIT,
    Instruction,
    Operand,
    Tail,
)
from mlfc.support.containers import GIVEN

MAX_PASSES = 64
"""Over the blocks of a function until it is known what is written: nested loops need one each, and three."""
_BOUND = 2**63
_MOST_STATE = 2**31
"""Bytes of all states: they are allocated when a file is loaded."""
_READS = {
    Operand.INTEGER: "integer", Operand.TENSOR: "tensor", Operand.STORAGE: "storage", Operand.LIST: "list",
    Operand.TENSOR_REGISTER: "tensor",
}  # fmt: skip
_WRITES = {
    Operand.TO_INTEGER: "integer", Operand.TO_TENSOR: "tensor", Operand.TO_STORAGE: "storage", Operand.TO_LIST: "list",
}  # fmt: skip
_ENDS = {Operand.END_TENSOR: "tensor", Operand.END_STORAGE: "storage"}


def verify(executable: Executable, *, place: str = "bytecode") -> None:
    """Raise ArchiveError, with the function and instruction, unless interpreters may run an executable."""
    _Tables(executable, place).check()
    for function in executable.functions:
        _Code(executable, function, place).check()


def shown(text: str) -> str:
    """Return a name for a message: not too long."""
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Tables:
    """Checks everything but the code."""

    def __init__(self, executable: Executable, place: str) -> None:
        self._executable = executable
        self._place = place

    def _require(self, holds: bool, cause: str, where: str) -> None:
        if not holds:
            raise ArchiveError(cause, place=f"{self._place}, {where}", next_step="Compile the model again")

    def check(self) -> None:
        """Raise ArchiveError at the first fault."""
        executable = self._executable
        self._require(bool(executable.name), "the module has no name", "header")
        self._require(-1 <= executable.arena_bytes < _BOUND, "the size of the arena is not possible", "header")
        self._require(bool(executable.functions), "there is no function", "functions")
        for symbol in executable.symbols:
            fits = 0 <= symbol.low <= symbol.high < _BOUND
            self._require(fits, f"bounds {symbol.low} to {symbol.high}", f"symbol '{shown(symbol.name)}'")
        for values, kind in ((executable.inputs, "input"), (executable.outputs, "output")):
            for value in values:
                self._value(value, f"{kind} '{shown(value.name)}'")
            self._containers(values, kind)
        for constant in executable.constants:
            where = f"constant '{shown(constant.name)}'"
            self._value(Value(constant.name, constant.dtype, constant.shape), where)
            size = dtypes.nbytes(constant.dtype)
            for extent in constant.shape:
                self._require(extent >= 0, f"expected an extent, got {extent}", where)
                size *= extent
                self._require(size < _BOUND, "its size is not possible", where)
        for kernel in executable.kernels:
            fits = kernel.reads <= kernel.buffers <= MAX_ARGUMENTS and kernel.numbers <= MAX_ARGUMENTS
            cause = f"{kernel.buffers} buffers, {kernel.reads} of them read, and {kernel.numbers} numbers"
            self._require(fits, cause, f"kernel '{shown(kernel.name)}'")
        for number in executable.integers:
            self._require(-_BOUND <= number < _BOUND, f"{number} does not fit in 64 bits", "integers")
        main = executable.functions[0]
        agrees = (main.parameters, main.results) == (len(executable.inputs), len(executable.outputs))
        cause = (
            f"{main.parameters} parameters and {main.results} results, but the model has {len(executable.inputs)} "
            f"inputs and {len(executable.outputs)} outputs"
        )
        self._require(agrees, cause, f"function '{shown(main.name)}'")
        self._states()

    def _states(self) -> None:
        executable, count = self._executable, len(self._executable.states)
        fits = count <= min(len(executable.inputs), len(executable.outputs))
        self._require(fits, f"{count} states exceed the inputs or the outputs", "states")
        following = executable.outputs[len(executable.outputs) - count :]
        total = 0
        for value, after, first in zip(executable.kept, following, executable.states, strict=True):
            where, kind = f"state '{shown(value.name)}'", (value.dtype, value.extents)
            size = dtypes.nbytes(value.dtype)
            for extent in value.extents:
                self._require(isinstance(extent, int), "its shape is not fixed", where)
                size *= int(extent) if isinstance(extent, int) else 0
                self._require(size < _MOST_STATE, "its size is not possible", where)
            total += -(-size // ALIGNMENT) * ALIGNMENT
            self._require(total < _MOST_STATE, "the size of all states is not possible", where)
            self._require((after.dtype, after.extents) == kind, "its next value has another type", where)
            if first is not None:
                self._require(first < len(executable.constants), f"constant {first} is not known", where)
                constant = executable.constants[first]
                self._require((constant.dtype, constant.shape) == kind, "its first value has another type", where)

    def _containers(self, values: Sequence[Value], kind: str) -> None:
        """Check that the parts of sequences and optionals follow one another."""
        at = 0
        while at < len(values):
            part = values[at].part
            if part is None:
                at += 1
                continue
            where = f"{kind} '{shown(values[at].name)}'"
            found = values[at : at + (3 if part.name == GIVEN else 2)]
            container = container_of(found)
            self._require(container is not None, "parts of a sequence do not follow one another", where)
            at += len(found)

    def _value(self, value: Value, where: str) -> None:
        self._require(value.dtype in NUMBERED_DTYPES, f"unknown dtype '{value.dtype}'", where)
        self._require(len(value.extents) <= MAX_RANK, f"{len(value.extents)} dimensions exceed {MAX_RANK}", where)
        for extent in value.extents:
            if isinstance(extent, OpenExtent):
                known = 0 <= extent.symbol < len(self._executable.symbols)
                self._require(known, f"symbol {extent.symbol} is not known", where)
            else:
                self._require(extent is None or 0 <= extent < _BOUND, f"expected an extent, got {extent}", where)


class _Code:
    """Checks one function."""

    def __init__(self, executable: Executable, function: Function, place: str) -> None:
        self._executable = executable
        self._function = function
        self._place = place
        self._number = 0
        # one bit for each register, the kinds one behind the other
        counts = (function.tensors, function.integers, function.storages, function.lists)
        self._counts = dict(zip(REGISTER_KINDS, counts, strict=True))
        self._firsts = {kind: sum(counts[:number]) for number, kind in enumerate(REGISTER_KINDS)}
        self._effects: list[tuple[list[int], list[int], list[int]]] = []
        self._starts: list[int] = []
        self._targets: dict[int, int] = {}  # of jumps: from the number of an instruction to a label

    def _fail(self, cause: str, number: int | None = None) -> NoReturn:
        where = f"{self._place}, function '{shown(self._function.name)}'"
        if number is not None:
            where += f", instruction {number}"
        raise ArchiveError(cause, place=where, next_step="Compile the model again")

    def check(self) -> None:
        """Raise ArchiveError at the first fault."""
        function = self._function
        words = len(function.code)
        for kind, count in self._counts.items():
            # a register that nothing names would cost memory without a byte in the file
            if count > min(MAX_REGISTERS, words + function.parameters):
                self._fail(f"{count} {kind} registers exceed what {words} words of code can use")
        if function.parameters > function.tensors:
            self._fail(f"{function.parameters} parameters exceed {function.tensors} tensor registers")
        at = 0
        last: Instruction | None = None
        while at < words:
            last = self._instruction(at)
            at += function.code[at] >> 8
            self._number += 1
        if last is None or last.falls_through:
            self._fail("control passes the end of the code", max(0, self._number - 1))
        self._labels()
        self._written()

    def _labels(self) -> None:
        starts = set(self._starts)
        before = -1
        for number, offset in enumerate(self._function.labels):
            if offset <= before or offset not in starts:
                self._fail(f"label {number} is not at an instruction, or not behind the label before")
            before = offset

    def _instruction(self, at: int) -> Instruction:
        """Check the instruction at a word and note what it does to registers."""
        code = self._function.code
        length = code[at] >> 8
        instruction = BY_OPCODE.get(code[at] & 0xFF)
        if instruction is None:
            self._fail(f"opcode {code[at] & 0xFF} is unknown", self._number)
        fixed = 1 + len(instruction.operands)
        if length < fixed or length > len(code) - at or (instruction.tail is Tail.NONE and length != fixed):
            self._fail(f"'{instruction.name}' cannot have {length} words", self._number)
        self._starts.append(at)
        self._effects.append(([], [], []))
        for kind, word in zip(instruction.operands, code[at + 1 : at + fixed], strict=True):
            self._operand(kind, word)
        for kind, word in self._tail(instruction, code[at + 1 : at + fixed], code[at + fixed : at + length]):
            self._operand(kind, word)
        if instruction.name == "storage":
            self._place_in_arena(*code[at + 2 : at + 4])
        return instruction

    def _tail(
        self, instruction: Instruction, operands: Sequence[int], tail: Sequence[int]
    ) -> Iterator[tuple[Operand, int]]:
        """Return the operands of the tail with their kinds, after a check of how many there are."""
        kinds: list[Operand] = []
        if instruction.tail is Tail.EXTENTS:
            if len(tail) > MAX_RANK:
                self._fail(f"{len(tail)} dimensions exceed {MAX_RANK}", self._number)
            kinds = [Operand.INTEGER] * len(tail)
        elif instruction.tail is Tail.TENSORS:
            kinds = [Operand.TENSOR] * len(tail)
        elif instruction.tail is Tail.ARGUMENTS:
            kernel = self._executable.kernels[operands[0]]
            self._require_count(len(tail), kernel.buffers + kernel.numbers, f"kernel '{shown(kernel.name)}'")
            kinds = [Operand.BUFFER] * kernel.buffers + [Operand.INTEGER] * kernel.numbers
        elif instruction.tail is Tail.CALL:
            callee = self._executable.functions[operands[0]]
            self._require_count(len(tail), callee.parameters + callee.results, f"function '{shown(callee.name)}'")
            kinds = [Operand.TENSOR] * callee.parameters + [Operand.TO_TENSOR] * callee.results
        elif instruction.tail is Tail.RESULTS:
            self._require_count(len(tail), self._function.results, "the function")
            kinds = [Operand.TENSOR] * len(tail)
        return zip(kinds, tail, strict=True)

    def _require_count(self, given: int, expected: int, of: str) -> None:
        if given != expected:
            self._fail(f"{of} takes {expected} operands, got {given}", self._number)

    def _place_in_arena(self, nbytes: int, offset: int) -> None:
        if offset == NO_OFFSET:
            return
        start = self._executable.integers[offset & ~CONSTANT_BIT]
        arena = self._executable.arena_bytes
        known = self._executable.integers[nbytes & ~CONSTANT_BIT] if nbytes & CONSTANT_BIT else 0
        if start < 0 or start % ALIGNMENT or known < 0 or start + known > arena:
            self._fail(f"{known} bytes at {start} are not within the {arena} bytes of the arena", self._number)

    def _operand(self, kind: Operand, word: int) -> None:
        """Check an operand, and note a register that it reads, writes or ends."""
        if kind is Operand.BUFFER:
            kind = Operand.STORAGE if word & STORAGE_BIT and not word & CONSTANT_BIT else Operand.TENSOR
            word = word & ~STORAGE_BIT if kind is Operand.STORAGE else word
        tables = self._executable
        if kind is Operand.OFFSET and word == NO_OFFSET:
            return
        if kind is Operand.OFFSET and not word & CONSTANT_BIT:
            self._fail(f"expected an offset of the pool, got {word:#x}", self._number)
        if kind in (Operand.INTEGER, Operand.OFFSET) and word & CONSTANT_BIT:
            self._range("integer of the pool", word & ~CONSTANT_BIT, len(tables.integers))
        elif kind is Operand.TENSOR and word & CONSTANT_BIT:
            self._range("constant", word & ~CONSTANT_BIT, len(tables.constants))
        elif kind in _READS:
            self._effects[-1][0].append(self._register(_READS[kind], word))
        elif kind in _WRITES:
            self._effects[-1][1].append(self._register(_WRITES[kind], word))
        elif kind in _ENDS:
            self._effects[-1][2].append(self._register(_ENDS[kind], word))
        elif kind is Operand.LABEL:
            self._range("label", word, len(self._function.labels))
            self._targets[self._number] = word
        elif kind is Operand.DEVICE:
            if not 0 < word < CONSTANT_BIT:
                self._fail(f"device {word} is not possible", self._number)
        else:
            limits = {
                Operand.OPERATION: len(OPERATIONS), Operand.DTYPE: len(DTYPES), Operand.AXIS: MAX_RANK,
                Operand.STRING: len(tables.strings), Operand.KERNEL: len(tables.kernels),
                Operand.FUNCTION: len(tables.functions),
            }  # fmt: skip
            self._range(kind.value, word, limits[kind])

    def _range(self, what: str, number: int, count: int) -> None:
        if number >= count:
            self._fail(f"{what} {number} is out of range: there are {count}", self._number)

    def _register(self, kind: str, word: int) -> int:
        self._range(f"{kind} register", word, self._counts[kind])
        return self._firsts[kind] + word

    def _written(self) -> None:
        """Check that what is read was written, on every path: a dataflow analysis of basic blocks, in code order."""
        function = self._function
        number_at = {start: number for number, start in enumerate(self._starts)}
        count = len(self._starts)
        labels = [number_at[offset] for offset in function.labels]
        instructions = [BY_OPCODE[function.code[start] & 0xFF] for start in self._starts]
        leaders = sorted({0, *labels, *(number + 1 for number in self._targets if number + 1 < count)})
        leaders = sorted({*leaders, *(n + 1 for n, each in enumerate(instructions[:-1]) if not each.falls_through)})
        ends = [*leaders[1:], count]
        block_of = {leader: block for block, leader in enumerate(leaders)}
        keeps, makes = self._block_effects(leaders, ends)
        unreached = -1  # all bits: the neutral element of the intersection
        states = [unreached] * len(leaders)
        states[0] = (1 << function.parameters) - 1
        for _ in range(MAX_PASSES):
            changed = False
            for block, end in enumerate(ends):
                if states[block] == unreached:
                    continue
                after = states[block] & keeps[block] | makes[block]
                last = end - 1
                following = [block_of[labels[self._targets[last]]]] if last in self._targets else []
                if instructions[last].falls_through:
                    following.append(block_of[end])
                for other in following:
                    met = states[other] & after
                    if met != states[other]:
                        states[other] = met
                        changed = changed or other <= block
            if not changed:
                break
        else:
            self._fail(f"loops are nested too deeply, or entered in several places: {MAX_PASSES} passes do not do")
        for state, first, end in zip(states, leaders, ends, strict=True):
            if state != unreached:
                self._reads(state, first, end)

    def _block_effects(self, leaders: Sequence[int], ends: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return for each block which registers it does not end, and which are written behind it."""
        keeps, makes = [], []
        for first, end in zip(leaders, ends, strict=True):
            ended: set[int] = set()
            made: set[int] = set()
            for _, writes, stops in self._effects[first:end]:
                made.difference_update(stops)
                ended.update(stops)
                made.update(writes)
            keeps.append(~_bits(ended))
            makes.append(_bits(made))
        return keeps, makes

    def _reads(self, state: int, first: int, end: int) -> None:
        made: set[int] = set()
        ended: set[int] = set()
        for number in range(first, end):
            reads, writes, stops = self._effects[number]
            for register in reads:
                if register not in made and (register in ended or not state >> register & 1):
                    self._fail(f"{self._shown_register(register)} may be read before it is written", number)
            made.difference_update(stops)
            ended.update(stops)
            made.update(writes)

    def _shown_register(self, register: int) -> str:
        name = next(kind for kind in REGISTER_KINDS if register < self._firsts[kind] + self._counts[kind])
        return f"{name} register {register - self._firsts[name]}"


def _bits(registers: set[int]) -> int:
    """Return a number with the bits of these registers, in time linear in their number and size."""
    if not registers:
        return 0
    data = bytearray(max(registers) // 8 + 1)
    for register in registers:
        data[register // 8] |= 1 << register % 8
    return int.from_bytes(data, "little")
