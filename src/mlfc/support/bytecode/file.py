"""The bytecode file: a header with the size of every section, then the sections, each padded to 8 bytes.

The bytes read are untrusted: each count is compared with the bytes that its section has before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from mlfc.errors import ArchiveError
from mlfc.support.bytecode.executable import (
    Constant,
    Executable,
    Extent,
    Function,
    Kernel,
    OpenExtent,
    Part,
    Symbol,
    Value,
)
from mlfc.support.bytecode.instructions import DTYPES, MAX_RANK, NUMBERED_DTYPES, VERSIONS
from mlfc.support.bytecode.verify import verify
from mlfc.support.containers import BYTES, EXTENTS, GIVEN, KINDS, PARTS

MAGIC = b"MLFC-VM\n"
SECTIONS = (
    "strings", "symbols", "inputs", "outputs", "kernels", "constants", "integers", "functions", "labels", "code",
    "states",
)  # fmt: skip
MAX_BYTES = 2**31 - 1
"""Of a file: offsets in it fit in 32 bits, and in an int of C."""

HEADER = struct.Struct("<8sIIq" + "II" * len(SECTIONS))
SYMBOL = struct.Struct("<IIqq")
VALUE = struct.Struct(f"<IBBH{MAX_RANK}q")
KERNEL = struct.Struct("<4I")
INTEGER = struct.Struct("<q")
FUNCTION = struct.Struct("<12I")
WORD = struct.Struct("<I")
UNKNOWN = -1
NO_CONSTANT = 0xFFFFFFFF
"""Of a state that begins as zeros."""
FIRST_SYMBOL = -2
"""An extent of -2 is the symbol 0, of -3 the symbol 1, and so on."""

_DETAILS: dict[str, tuple[tuple[str, bool], ...]] = {
    GIVEN: (("", False),),
    EXTENTS: tuple((kind, is_mixed) for is_mixed in (False, True) for kind in KINDS),
    BYTES: tuple((dtype, False) for dtype in DTYPES),
}
"""What the detail of each part of a container is a number of, and whether its tensors differ in their dimensions."""

T = TypeVar("T")
_SIZES = {
    "symbols": SYMBOL.size, "inputs": VALUE.size, "outputs": VALUE.size, "kernels": KERNEL.size,
    "constants": VALUE.size, "integers": INTEGER.size, "functions": FUNCTION.size, "labels": 4, "code": 4,
    "states": 4,
}  # fmt: skip


def encode(executable: Executable) -> bytes:
    """Return the file of an executable; raise ArchiveError if it does not verify."""
    verify(executable)
    strings = _Strings(executable.strings)
    functions = []
    labels = code = 0
    for function in executable.functions:
        numbers = (
            strings.index(function.name), function.parameters, function.results, function.tensors, function.integers,
            function.storages, function.lists, labels, len(function.labels), code, len(function.code), 0,
        )  # fmt: skip
        functions.append(FUNCTION.pack(*numbers))
        labels += len(function.labels)
        code += len(function.code)
    bodies = {
        "symbols": [SYMBOL.pack(strings.index(each.name), 0, each.low, each.high) for each in executable.symbols],
        "inputs": [_value(strings, each.name, each.dtype, each.extents, each.part) for each in executable.inputs],
        "outputs": [_value(strings, each.name, each.dtype, each.extents, each.part) for each in executable.outputs],
        "kernels": [
            KERNEL.pack(strings.index(each.name), each.buffers, each.reads, each.numbers) for each in executable.kernels
        ],
        "constants": [_value(strings, each.name, each.dtype, each.shape) for each in executable.constants],
        "integers": [INTEGER.pack(value) for value in executable.integers],
        "functions": functions,
        "labels": [_words(function.labels) for function in executable.functions],
        "code": [_words(function.code) for function in executable.functions],
        "states": [WORD.pack(NO_CONSTANT if state is None else state) for state in executable.states],
    }
    name = strings.index(executable.name)
    counts = {
        "strings": len(strings.texts),
        **{section: len(parts) for section, parts in bodies.items()},
        "labels": labels,
        "code": code,
    }
    data = {"strings": strings.encoded(), **{section: _padded(b"".join(parts)) for section, parts in bodies.items()}}
    sizes = [number for section in SECTIONS for number in (counts[section], len(data[section]))]
    total = HEADER.size + sum(map(len, data.values()))
    if total > MAX_BYTES:
        raise ArchiveError(f"{total:,} bytes of bytecode exceed {MAX_BYTES:,}", place=executable.name)
    header = HEADER.pack(MAGIC, _version(executable), name, executable.arena_bytes, *sizes)
    return header + b"".join(data[section] for section in SECTIONS)


def decode(data: bytes | memoryview, *, place: str = "bytecode") -> Executable:
    """Return the verified executable of a file; raise ArchiveError with byte, function or instruction if it is broken.

    `place` names the file in messages.
    """
    executable = _Reader(data, place).executable()
    verify(executable, place=place)
    return executable


def _version(executable: Executable) -> int:
    """Return the oldest version that has what an executable uses."""
    used = {item for function in executable.functions for _, item, _ in function.instructions()}
    values = (*executable.inputs, *executable.outputs)
    is_mixed = any(value.part is not None and value.part.is_mixed for value in values)
    return max([1 + is_mixed, *(item.since for item in used)])


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _value(strings: _Strings, name: str, dtype: str, extents: Iterable[Extent], part: Part | None = None) -> bytes:
    numbers = [
        UNKNOWN if extent is None else FIRST_SYMBOL - extent.symbol if isinstance(extent, OpenExtent) else extent
        for extent in extents
    ]
    filled = numbers + [0] * (MAX_RANK - len(numbers))
    return VALUE.pack(strings.index(name), NUMBERED_DTYPES[dtype], len(numbers), _part_word(part), *filled)


def _part_word(part: Part | None) -> int:
    """Return which part of a container a value is: its number from 1 on, and in the high byte its detail's."""
    if part is None:
        return 0
    return 1 + PARTS.index(part.name) | (_DETAILS[part.name].index((part.detail or "", part.is_mixed)) << 8)


class _Strings:
    """The strings of a file: those that instructions name by number, and names behind them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._numbers: dict[str, int] = {}
        for number, text in enumerate(texts):
            self._numbers.setdefault(text, number)

    def index(self, text: str) -> int:
        """Return the number of a string, which is added if it is new."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]

    def encoded(self) -> bytes:
        """Return the section: where each string begins and the last one ends, then the strings, each with a NUL."""
        offsets = [0]
        encoded = [text.encode() + b"\0" for text in self.texts]
        for text in encoded:
            offsets.append(offsets[-1] + len(text))
        return _padded(_words(offsets) + b"".join(encoded))


class _Reader:
    """Reads the tables of one file."""

    def __init__(self, data: bytes | memoryview, place: str) -> None:
        self._data = memoryview(data).cast("B")
        self._place = place
        size = len(self._data)
        if size < HEADER.size:
            self._fail(f"expected at least {HEADER.size} bytes, got {size}", size)
        magic, version, self._name, self._arena_bytes, *sizes = HEADER.unpack_from(self._data)
        if magic != MAGIC:
            self._fail("expected bytecode of mlfc, got something else", 0)
        if version not in VERSIONS:
            self._fail(f"expected version {VERSIONS[0]} to {VERSIONS[-1]} of the bytecode, got {version}", 8)
        if size > MAX_BYTES:
            self._fail(f"{size:,} bytes exceed {MAX_BYTES:,}", 0)
        self._counts = dict(zip(SECTIONS, sizes[::2], strict=True))
        self._starts: dict[str, int] = {}
        at = HEADER.size
        for number, (section, nbytes) in enumerate(zip(SECTIONS, sizes[1::2], strict=True)):
            self._starts[section] = at
            if nbytes > size - at:
                self._fail(f"{nbytes} bytes of {section} exceed the {size - at} that are left", 24 + 8 * number)
            expected = -(-self._counts[section] * _SIZES.get(section, 0) // 8) * 8
            if section != "strings" and nbytes != expected:
                self._fail(f"expected {expected} bytes of {section}, got {nbytes}", 24 + 8 * number)
            at += nbytes
        if at != size:
            self._fail(f"{size - at} bytes follow the last section", at)
        self._strings = self._read_strings(self._starts["symbols"])

    def executable(self) -> Executable:
        """Return what the file holds; its code is not verified."""
        return Executable(
            name=self._text(self._name, 12),
            functions=self._functions(),
            strings=self._strings,
            symbols=self._each("symbols", SYMBOL, self._symbol),
            inputs=self._each("inputs", VALUE, self._value),
            outputs=self._each("outputs", VALUE, self._value),
            kernels=self._each("kernels", KERNEL, self._kernel),
            constants=self._each("constants", VALUE, self._constant),
            integers=self._each("integers", INTEGER, lambda _, value: int(value)),
            arena_bytes=self._arena_bytes,
            states=self._each("states", WORD, lambda _, word: None if word == NO_CONSTANT else int(word)),
        )

    def _fail(self, cause: str, at: int) -> NoReturn:
        raise ArchiveError(
            cause, place=f"{self._place}, byte {at}", next_step="The file is damaged or of another format"
        )

    def _each(self, section: str, layout: struct.Struct, make: Callable[..., T]) -> tuple[T, ...]:
        """Return what `make` makes of each record of a section, given its place and its fields."""
        start = self._starts[section]
        end = start + self._counts[section] * layout.size
        self._require_zeros(section, end)
        fields = layout.iter_unpack(self._data[start:end])
        return tuple(make(start + number * layout.size, *each) for number, each in enumerate(fields))

    def _require_zeros(self, section: str, start: int) -> None:
        """Check the padding behind a section that ends at `start`: less than 8 bytes of zeros."""
        padding = self._data[start : start + -(start - self._starts[section]) % 8]
        if any(padding):
            self._fail(f"expected zeros behind the {section}", start)

    def _read_strings(self, end: int) -> tuple[str, ...]:
        start, count = self._starts["strings"], self._counts["strings"]
        texts = start + 4 * (count + 1)
        if texts > end:
            self._fail(f"{count} strings exceed the {end - start} bytes of their section", start)
        offsets = [offset for (offset,) in WORD.iter_unpack(self._data[start:texts])]
        if offsets[0] != 0 or -(-(texts - start + offsets[-1]) // 8) * 8 != end - start:
            self._fail("the strings do not fill their section", start)
        found = []
        for number, (begin, stop) in enumerate(pairwise(offsets)):
            at = start + 4 * number
            if not begin < stop <= end - texts:
                self._fail(f"string {number} does not end behind its start", at)
            raw = bytes(self._data[texts + begin : texts + stop])
            if raw.find(b"\0") != len(raw) - 1:
                self._fail(f"string {number} does not end with its only NUL", texts + begin)
            try:
                found.append(raw[:-1].decode())
            except UnicodeDecodeError as error:
                self._fail(f"string {number} is not UTF-8 ({error.reason})", texts + begin)
        self._require_zeros("strings", texts + offsets[-1])
        return tuple(found)

    def _text(self, number: int, at: int) -> str:
        if number >= len(self._strings):
            self._fail(f"expected one of {len(self._strings)} strings, got number {number}", at)
        return self._strings[number]

    def _symbol(self, at: int, name: int, zero: int, low: int, high: int) -> Symbol:
        if zero:
            self._fail("a reserved word is not zero", at + 4)
        return Symbol(self._text(name, at), low, high)

    def _part(self, at: int, word: int) -> Part | None:
        if not word:
            return None
        number, detail = word & 0xFF, word >> 8
        if not 1 <= number <= len(PARTS) or detail >= len(_DETAILS[PARTS[number - 1]]):
            self._fail(f"part {number} of kind {detail} of a sequence is unknown", at + 6)
        name = PARTS[number - 1]
        found, is_mixed = _DETAILS[name][detail]
        return Part(name, found or None, is_mixed)

    def _typed(self, at: int, name: int, dtype: int, rank: int, zero: int, extents: Any) -> tuple[str, str]:
        if dtype >= len(DTYPES):
            self._fail(f"dtype {dtype} is unknown", at + 4)
        if rank > MAX_RANK:
            self._fail(f"expected at most {MAX_RANK} dimensions, got {rank}", at + 5)
        if zero or any(extents[rank:]):
            self._fail("reserved bytes are not zero", at + 6)
        return self._text(name, at), DTYPES[dtype]

    def _value(self, at: int, name: int, dtype: int, rank: int, part: int, *extents: int) -> Value:
        text, kind = self._typed(at, name, dtype, rank, 0, extents)
        shape = tuple(
            extent if extent >= 0 else None if extent == UNKNOWN else OpenExtent(FIRST_SYMBOL - extent)
            for extent in extents[:rank]
        )
        return Value(text, kind, shape, self._part(at, part))

    def _constant(self, at: int, name: int, dtype: int, rank: int, zero: int, *extents: int) -> Constant:
        text, kind = self._typed(at, name, dtype, rank, zero, extents)
        return Constant(text, kind, extents[:rank])

    def _kernel(self, at: int, name: int, buffers: int, reads: int, numbers: int) -> Kernel:
        return Kernel(self._text(name, at), buffers, reads, numbers)

    def _functions(self) -> tuple[Function, ...]:
        """Return the functions; each has the labels and the code behind those of the one before."""
        labels = self._each("labels", WORD, lambda _, word: int(word))
        code = self._each("code", WORD, lambda _, word: int(word))
        found: list[Function] = []
        first_label = first_word = 0

        def read(at: int, *numbers: int) -> None:
            nonlocal first_label, first_word
            name, parameters, results, tensors, integers, storages, lists, *rest = numbers
            label_start, label_count, code_start, code_count, zero = rest
            if (label_start, code_start, zero) != (first_label, first_word, 0):
                self._fail("labels or code do not follow those of the function before, or a word is not zero", at)
            if label_count > len(labels) - label_start or code_count > len(code) - code_start:
                self._fail(f"{label_count} labels and {code_count} words of code exceed those of the file", at)
            first_label += label_count
            first_word += code_count
            counts = (parameters, results, tensors, integers, storages, lists)
            parts = (labels[label_start:first_label], code[code_start:first_word])
            found.append(Function(self._text(name, at), *counts, *parts))

        self._each("functions", FUNCTION, read)
        if first_label != len(labels) or first_word != len(code):
            self._fail("labels or code belong to no function", self._starts["labels"])
        return tuple(found)
