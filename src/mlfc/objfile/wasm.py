"""What a module of WebAssembly exports. The file is untrusted.

Source of the format: the WebAssembly core specification, chapter "Binary Format".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlfc.errors import UnsupportedError

MAX_ENTRIES = 1_000_000
_HEADER_BYTES = 8
_IMPORTS, _GLOBALS, _EXPORTS, _DATA = 2, 6, 7, 11
_FUNCTION, _TABLE, _MEMORY, _GLOBAL, _TAG = range(5)
_I32_CONST, _END = 0x41, 0x0B
_ACTIVE, _PASSIVE, _ACTIVE_IN = range(3)
_WORD_BYTES = 5
_MAX_NAME = 4096
_NO_ENTRIES = memoryview(b"\0")


def wasm_exports(data: memoryview) -> Iterator[tuple[str, memoryview | None]]:
    """Yield the exported names: None for a function, for an address of a variable the rest of its data.

    Raises ValueError if the module breaks its format or uses what C linkers do not, UnsupportedError for an object.
    """
    sections = dict(_sections(data))
    if _EXPORTS not in sections:
        raise UnsupportedError("objects of WebAssembly are not read here", next_step="Give the .wasm that is linked")
    imported = _imported_globals(sections.get(_IMPORTS, _WasmReader(_NO_ENTRIES)))
    addresses = _addresses(sections.get(_GLOBALS, _WasmReader(_NO_ENTRIES)))
    segments = sorted(_segments(sections.get(_DATA, _WasmReader(_NO_ENTRIES))), key=lambda segment: segment[0])
    starts = [start for start, _ in segments]
    reader = sections[_EXPORTS]
    for _ in range(reader.count()):
        name, kind, index = reader.name(), reader.byte(), reader.number()
        if kind == _FUNCTION:
            yield name, None
        elif kind == _GLOBAL and imported <= index < imported + len(addresses):
            address = addresses[index - imported]
            before = bisect_right(starts, address)
            start, part = segments[before - 1] if before else (0, data[:0])
            yield name, part[address - start :]


@dataclass(eq=False)
class _WasmReader:
    data: memoryview
    at: int = 0

    def take(self, nbytes: int) -> memoryview:
        if nbytes > len(self.data) - self.at:
            raise ValueError("a section is cut off")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self, *, signed: bool = False) -> int:
        """Return a number of 32 bits, seven of them a byte, the lowest first."""
        value = 0
        for index in range(_WORD_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                negative = signed and byte & 0x40
                return (value - (1 << 7 * (index + 1)) if negative else value) & 0xFFFF_FFFF
        raise ValueError("a number of more than 32 bits")

    def count(self) -> int:
        found = self.number()
        if found > MAX_ENTRIES:
            raise ValueError(f"a section of {found:,} entries")
        return found

    def name(self) -> str:
        nbytes = self.number()
        if nbytes > _MAX_NAME:
            raise ValueError(f"a name of {nbytes:,} bytes")
        return bytes(self.take(nbytes)).decode("utf-8", "replace")

    def address(self) -> int:
        """Return the value of a constant expression; one that is no number is of nothing in memory."""
        if self.byte() != _I32_CONST:
            raise ValueError("an address that is not constant")
        value = self.number(signed=True)
        if self.byte() != _END:
            raise ValueError("an address that is not constant")
        return value


def _sections(data: memoryview) -> Iterator[tuple[int, _WasmReader]]:
    reader = _WasmReader(data, _HEADER_BYTES)
    while reader.at < len(data):
        kind = reader.byte()
        yield kind, _WasmReader(reader.take(reader.number()))


def _limits(reader: _WasmReader) -> None:
    has_most = reader.number() & 1
    for _ in range(1 + has_most):
        reader.number()


def _table(reader: _WasmReader) -> None:
    reader.byte()
    _limits(reader)


def _unknown(reader: _WasmReader) -> None:
    raise ValueError(f"an import of an unknown kind before byte {reader.at} of its section")


# readers of what follows the kind of an import
_SKIPS: dict[int, Callable[[_WasmReader], object]] = {
    _FUNCTION: _WasmReader.number,
    _TABLE: _table,
    _MEMORY: _limits,
    _GLOBAL: lambda reader: reader.take(2),
    _TAG: lambda reader: (reader.byte(), reader.number()),
}


def _imported_globals(reader: _WasmReader) -> int:
    found = 0
    for _ in range(reader.count()):
        reader.name()
        reader.name()
        kind = reader.byte()
        found += kind == _GLOBAL
        _SKIPS.get(kind, _unknown)(reader)
    return found


def _addresses(reader: _WasmReader) -> list[int]:
    found = []
    for _ in range(reader.count()):
        reader.take(2)  # its type, and whether it changes
        found.append(reader.address())
    return found


def _segments(reader: _WasmReader) -> list[tuple[int, memoryview]]:
    found = []
    for _ in range(reader.count()):
        kind = reader.number()
        if kind > _ACTIVE_IN:
            raise ValueError(f"unknown kind {kind} of data")
        if kind == _ACTIVE_IN:
            reader.number()
        start = None if kind == _PASSIVE else reader.address()
        content = reader.take(reader.number())
        if start is not None:
            found.append((start, content))
    return found
