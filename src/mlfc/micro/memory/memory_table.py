"""Memory of a model on a board, as one table by region of the board.

`planned_memory` fills it before a build, `linked_table` after it; `differences` compares the two.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mlfc.errors import MlfcError, ToolchainError
from mlfc.memory.plan import STATE_SECTION
from mlfc.micro.board.board import Board, MemoryRegion
from mlfc.micro.memory.stack_bound import THROUGH_POINTERS, StackBound, stack_bound
from mlfc.objfile.elf import NOTYPE, OBJECT, read_symbols
from mlfc.support.c_names import unique
from mlfc.support.module_info import ConstantInfo, ModuleInfo, ModuleInterface
from mlfc.support.text import Displayed, html_table

MODEL, LIBRARIES, FIRMWARE = "model", "libraries", "start-up and main"
"""Owners of parts of a program."""

WORKSPACE, IO, CONSTANTS = "workspace", "inputs and outputs", "constants"
PROMISED = (WORKSPACE, IO, CONSTANTS)
"""Rows that a build must match to the byte."""

STATE, STACK, INTERRUPT = "state", "stack of an inference", "frame of an interrupt"
INITIAL, RESERVE, PADDING = "initial data", "stack reserve", "padding"
CODE = {MODEL: "code of the model", LIBRARIES: "code of libraries"}
REST = "start-up and main"
_START = "Linker script and memory map"
_NUMBER = r"0x[0-9a-f]+"
_OUTPUT = re.compile(rf"([.\w]\S*)(?:\s+({_NUMBER})\s+({_NUMBER})(?:\s+load address ({_NUMBER}))?)?")
_INPUT = re.compile(rf" ([.\w]\S*)(?:\s+({_NUMBER})\s+({_NUMBER})\s+(\S.*))?")
_NOT_LOADED = (".debug", ".comment", ".note", ".stab", ".gnu.", ".ARM.attributes", ".riscv.attributes")
_ZEROED = (".bss", ".sbss", ".noinit", ".scommon", "COMMON")
_LARGEST_MAP = 64 << 20
_RUN = re.compile(r"tvmgen_\w+_vm_run")
_CONSTANT = re.compile(r"(?:tvmgen_\w+?_)?(constant_\w+)")
_TENSOR, _WORKSPACE = re.compile(r"tensor_.*"), re.compile(r"workspace(\..*)?")
_POOL_SECTION, _IO_SECTION = ".bss.noinit.tvm", ".bss.noinit.io"
_CONSTANT_SECTION = ".rodata.tvm."
_READ_ONLY = "rodata"  # in .rodata, and in .srodata for small constants on RISC-V
_STACK_ENDS = ("linker_stack_top", "linker_stack_bottom")
_DATA = {MODEL: "data of the model", LIBRARIES: "data of libraries", FIRMWARE: "data of start-up and main"}
_CODE = {**CODE, FIRMWARE: REST}


@dataclass(frozen=True)
class MemoryRow:
    """A row of the table."""

    what: str
    region: str | None  # region of the board; None if the board lists no memories
    nbytes: int | None  # None if unknown
    note: str = ""  # how it was determined, or why it is unknown


@dataclass(frozen=True)
class RegionUse:
    """A memory of the board with the bytes used by the known rows."""

    name: str
    kind: str
    nbytes: int
    used: int

    @property
    def free(self) -> int:
        """Free bytes."""
        return max(0, self.nbytes - self.used)

    @property
    def percent(self) -> float:
        """Used percentage of the memory."""
        return 100 * self.used / self.nbytes

    @property
    def over(self) -> int:
        """Bytes in excess of the memory's size."""
        return max(0, self.used - self.nbytes)

    def as_json(self) -> dict[str, Any]:
        """Return the region as a JSON object."""
        sizes = {"bytes": self.nbytes, "used": self.used, "percent": round(self.percent, 2)}
        return {"name": self.name, "kind": self.kind, **sizes, "free": self.free, "over": self.over}


@dataclass(frozen=True, repr=False)
class MemoryTable(Displayed):
    """Memory use of a model on a board."""

    board: str
    is_built: bool  # whether the numbers come from the linker, not the plan
    rows: tuple[MemoryRow, ...]
    memories: tuple[MemoryRegion, ...]  # the board's
    stack: StackBound | None = None  # of an inference; None if not requested
    folded: tuple[tuple[str, int], ...] = ()  # constants, with their bytes, that the compiler folded into the code
    reserve: int | None = None  # bytes that firmware reserves for its stack; None if it uses the remaining RAM

    def _facts(self) -> Mapping[str, object]:
        used = [f"{item.name} {item.used:,} of {item.nbytes:,}" for item in self.regions if item.used]
        return {"board": self.board, "is_built": self.is_built, "used": used}

    def _repr_html_(self) -> str:
        rows = [(row.region or "", row.what, "?" if row.nbytes is None else f"{row.nbytes:,}", row.note)
                for row in self.rows if row.nbytes != 0 or row.note]  # fmt: skip
        left = [(item.name, "over" if item.over else "free", f"{item.over or item.free:,}", f"of {item.nbytes:,}")
                for item in self.regions if item.used]  # fmt: skip
        return html_table(f"Memory of {self.board}", ("region", "what", "bytes", "note"), [*rows, *left])

    def total(self, what: str, region: str | None = None) -> int:
        """Return the known bytes of all rows with a name, in all regions or in one."""
        return sum(row.nbytes or 0 for row in self.rows if row.what == what and region in (None, row.region))

    @property
    def regions(self) -> tuple[RegionUse, ...]:
        """Every region of the board with its used bytes."""
        return tuple(
            RegionUse(item.name, item.kind, item.nbytes, sum(row.nbytes or 0 for row in self.rows_of(item.name)))
            for item in self.memories
        )

    def rows_of(self, region: str | None) -> Iterator[MemoryRow]:
        """Yield the rows of a region."""
        return (row for row in self.rows if row.region == region)

    def as_json(self) -> dict[str, Any]:
        """Return the table as a JSON object."""
        return {
            "board": self.board,
            "built": self.is_built,
            "rows": [
                {"region": row.region, "what": row.what, "bytes": row.nbytes, "note": row.note} for row in self.rows
            ],
            "regions": [item.as_json() for item in self.regions],
            "stack": self.stack and self.stack.to_json(),
            "folded": [{"name": name, "bytes": nbytes} for name, nbytes in self.folded],
        }


@dataclass(frozen=True)
class MemoryDifference:
    """Difference between the planned and the linked bytes of a row."""

    what: str
    region: str | None
    promised: int
    found: int

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        return f"{self.what}{where}: {self.promised:,} bytes were promised, {self.found:,} are linked"


def differences(before: MemoryTable, after: MemoryTable) -> tuple[MemoryDifference, ...]:
    """Return the differences of a build from its plan: workspace, inputs and outputs in every region, and constants.

    Constants that the compiler folded into the code do not count as a difference.
    """
    places = {(row.what, row.region): None for row in (*before.rows, *after.rows) if row.what in (WORKSPACE, IO)}
    found = [MemoryDifference(*place, before.total(*place), after.total(*place)) for place in places]
    linked = after.total(CONSTANTS) + sum(nbytes for _, nbytes in after.folded)
    found.append(MemoryDifference(CONSTANTS, None, before.total(CONSTANTS), linked))
    return tuple(item for item in found if item.promised != item.found)


def region_name(board: Board, kind: str, name: str | None = None) -> str | None:
    """Return the board's region of a name, otherwise its default one of a kind; None if it lists no memories."""
    for item in board.memories:
        if item.name == name:
            return item.name
    if not board.memories:
        return None
    return (board.flash if kind == "flash" else board.ram).name


def by_region(rows: Sequence[MemoryRow], board: Board) -> tuple[MemoryRow, ...]:
    """Return rows in the order of the board's regions."""
    order = {item.name: place for place, item in enumerate(board.memories)}
    return tuple(sorted(rows, key=lambda row: order.get(row.region or "", len(order))))


@dataclass(frozen=True)
class LinkedPart:
    """A part of a program in memory."""

    # the section of the program, and that of the object file
    output: str
    section: str
    address: int
    nbytes: int
    file: str | None  # the object; None for bytes that the linker inserts between objects
    load: int | None = None  # address of its initial bytes in flash, if they are copied from there

    @property
    def end(self) -> int:
        """First address after the piece."""
        return self.address + self.nbytes

    @property
    def is_zeroed(self) -> bool:
        """True if it occupies memory at run time, but no bytes in the file."""
        return self.section.startswith(_ZEROED)

    def owner(self, model_sources: Collection[str]) -> str:
        """Return the owner: the model if the file is, or was compiled from, one of `model_sources`."""
        name = PurePosixPath((self.file or "").rpartition("(")[2].rstrip(")")).name
        if name in model_sources or any(name in (f"{source}.o", f"{source}.obj") for source in model_sources):
            return MODEL
        return LIBRARIES if (self.file or "").endswith(")") else FIRMWARE


def read_map(path: Path) -> tuple[LinkedPart, ...]:
    """Return the parts of a program that are in memory, in the map's order.

    Raises ToolchainError if it is not a map of GNU ld.
    """
    if path.stat().st_size > _LARGEST_MAP:
        raise ToolchainError("the linker map is too large", place=path.name)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if _START not in lines:
        step = "Link with -Wl,-Map=<file> and a linker of binutils"
        raise ToolchainError("expected a map file of GNU ld", place=path.name, next_step=step)
    return tuple(_pieces(lines[lines.index(_START) + 1 :]))


def _pieces(lines: Sequence[str]) -> Iterator[LinkedPart]:
    output, found = LinkedPart("", "", 0, 0, None), list[LinkedPart]()
    waiting: str | None = None
    for line in lines:
        # a long name is alone on its line, and its fields are on the next
        whole = line if waiting is None else f"{waiting} {line.lstrip()}"
        opened, item = _OUTPUT.fullmatch(whole), _INPUT.fullmatch(whole)
        waiting = None
        if opened and opened[2]:
            yield from _with_rest(output, found)
            load = None if opened[4] is None else int(opened[4], 16)
            address, nbytes = int(opened[2], 16), int(opened[3], 16)
            output, found = LinkedPart(opened[1], opened[1], address, nbytes, None, load), []
        elif item and item[2]:
            address, nbytes = int(item[2], 16), int(item[3], 16)
            if nbytes:
                found.append(_piece(output, item[1], address, nbytes, item[4]))
        elif opened or item:
            waiting = whole
    yield from _with_rest(output, found)


def _piece(output: LinkedPart, section: str, address: int, nbytes: int, file: str | None) -> LinkedPart:
    load = None if output.load is None else output.load + address - output.address
    return LinkedPart(output.output, section, address, nbytes, file, load)


def _with_rest(output: LinkedPart, found: Sequence[LinkedPart]) -> Iterator[LinkedPart]:
    """Yield the pieces of a section of the program, and one piece for all bytes inserted by the linker."""
    if output.output.startswith(_NOT_LOADED):
        return
    yield from found
    rest = output.nbytes - sum(piece.nbytes for piece in found)
    if rest > 0:
        section = found[-1].section if found else output.output
        yield _piece(output, section, output.address, rest, None)


class LinkedProgram:
    """A linked program: its parts in memory, and the symbols in them.

    `elf`, `map`: the program, and its linker map.
    `model_sources`: names of the files that the model's code consists of.

    Raises ToolchainError if the files are invalid.
    """

    def __init__(self, elf: Path, map: Path, model_sources: Collection[str]) -> None:  # noqa: A002  (the linker's word)
        self.pieces = read_map(map)
        self._sources = frozenset(model_sources)
        try:
            symbols = list(read_symbols(elf.read_bytes()))
        except ValueError as error:
            raise ToolchainError(f"expected an ELF file: {error}", place=elf.name) from None
        self.named: Mapping[str, int] = {item.name: item.value for item in symbols}
        self.elf = elf
        self._libraries = [
            (item.address, item.end) for item in self.pieces if item.file and item.owner(self._sources) == LIBRARIES
        ]
        self._data = sorted((item.address, item.end) for item in self.pieces if _READ_ONLY in item.section)
        self._beyond = max((item.end for item in self.pieces), default=0)
        objects = {item.value: item for item in symbols if item.kind in (NOTYPE, OBJECT) and item.nbytes}
        self._objects = sorted(objects.values(), key=lambda item: item.value)
        self._starts = [item.value for item in self._objects]

    def parts(self, piece: LinkedPart) -> Iterator[tuple[str, int]]:
        """Yield the table rows to which a piece of the program belongs, with bytes."""
        owner = piece.owner(self._sources)
        if piece.file is None:
            yield PADDING, piece.nbytes
        elif piece.section.startswith(_POOL_SECTION):
            yield WORKSPACE, piece.nbytes
        elif piece.section.startswith(STATE_SECTION):
            yield STATE, piece.nbytes
        elif piece.section.startswith(_IO_SECTION):
            yield from self._split(piece, {IO: _TENSOR, WORKSPACE: _WORKSPACE}, PADDING)
        elif owner != MODEL and piece.section.startswith(_CONSTANT_SECTION):
            yield CONSTANTS, piece.nbytes
        elif owner == MODEL and not piece.is_zeroed and _READ_ONLY in piece.section:
            yield from self._split(piece, {CONSTANTS: _CONSTANT}, CODE[MODEL])
        elif piece.is_zeroed or piece.load is not None:
            yield _DATA[owner], piece.nbytes
        else:
            yield _CODE[owner], piece.nbytes

    def is_data(self, address: int) -> bool:
        """Return whether an address contains constants, possibly within code."""
        at = bisect_right(self._data, (address, self._beyond)) - 1
        return at >= 0 and address < self._data[at][1]

    def is_library(self, address: int) -> bool:
        """Return whether an address belongs to a library."""
        return any(first <= address < end for first, end in self._libraries)

    def folded(self, constants: Sequence[ConstantInfo]) -> tuple[tuple[str, int], ...]:
        """Return name and bytes of each constant that the compiler folded into the code, so that it has no address.

        `constants`: all constants in the module's details.
        """
        present = {match[1] for match in map(_CONSTANT.fullmatch, self.named) if match}
        symbols = unique(f"constant_{item.name}" for item in constants)
        return tuple(
            (item.name, item.nbytes)
            for item, symbol in zip(constants, symbols, strict=True)
            if item.nbytes and symbol not in present
        )

    def _split(self, piece: LinkedPart, kinds: Mapping[str, re.Pattern[str]], rest: str) -> Iterator[tuple[str, int]]:
        """Yield the bytes of symbols of each kind, of other symbols, and of gaps between symbols."""
        inside = self._objects[bisect_left(self._starts, piece.address) : bisect_left(self._starts, piece.end)]
        found: Counter[str] = Counter()
        for item in inside:
            found[next((what for what, names in kinds.items() if names.fullmatch(item.name)), rest)] += item.nbytes
        # without symbols it is all strings or tables of the code; otherwise the rest is alignment padding
        found[PADDING if inside else rest] += piece.nbytes - sum(item.nbytes for item in inside)
        yield from found.items()


def linked_table(program: LinkedProgram, details: ModuleInterface, board: Board) -> MemoryTable:
    """Return the memory use of a linked program on a board."""
    found: Counter[tuple[str, str | None]] = Counter()
    for piece in program.pieces:
        region = _region(piece.address, board)
        for what, nbytes in program.parts(piece):
            found[what, region] += nbytes
        if piece.load is not None and not piece.is_zeroed:
            found[INITIAL, _region(piece.load, board)] += piece.nbytes
    ram = region_name(board, "ram")
    rows = [MemoryRow(what, region, nbytes) for (what, region), nbytes in found.items() if nbytes]
    if not any(what == STATE for what, _ in found):
        rows.append(MemoryRow(STATE, ram, 0))
    top, bottom = (program.named.get(name) for name in _STACK_ENDS)
    reserved = None if top is None or bottom is None else top - bottom
    # determined from the program's instructions
    entry = next((name for name in program.named if _RUN.fullmatch(name)), None) if details.vm else details.entry
    stack = StackBound(None, untold=(THROUGH_POINTERS,))
    try:
        if entry is not None:
            stack = stack_bound(program.elf, (entry,), board, program.is_library, is_data=program.is_data)
    except MlfcError as error:
        stack = StackBound(None, untold=(str(error).splitlines()[0],))
    bound = "" if stack.nbytes is None else f"an inference takes at most {stack.nbytes:,}"
    rows.append(
        MemoryRow(RESERVE, ram, reserved, bound if reserved is not None else f"what is left; {bound}".rstrip("; "))
    )
    order = (WORKSPACE, IO, STATE, CONSTANTS, *_CODE.values(), *_DATA.values(), INITIAL, RESERVE, PADDING)
    rows.sort(key=lambda row: order.index(row.what))
    # code for the graph executor takes its constants as arguments, so it defines none
    constants = details.constants if isinstance(details, ModuleInfo) else None
    folded = program.folded(constants or ()) if details.entry is not None else ()
    loaded = sum(pool.nbytes for pool in details.constant_pools if pool.file is not None)
    if loaded:
        # a file contains several, whose names are not listed
        rest = sum(nbytes for _, nbytes in folded) - loaded
        folded = (("constants outside of the files that are loaded", rest),) if rest else ()
    return MemoryTable(board.name, True, by_region(rows, board), board.memories, stack, folded, reserved)


def _region(address: int, board: Board) -> str | None:
    return next((item.name for item in board.memories if item.origin <= address < item.end), None)
