"""Boards, each described by one TOML file that is checked against ``schema/board.json``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlfc.archive.read.schema import faults
from mlfc.errors import MlfcError, OptionError, ProblemsError, unknown
from mlfc.memory import Pool
from mlfc.registry import Registry
from mlfc.support.plain_file import parse_toml, read_toml
from mlfc.target.features import INSTRUCTION_SETS
from mlfc.target.target import parse_target

_SUFFIX = ".toml"
_STACK_BYTES, _DEFAULT_BAUD = 8192, 115200
_ADDRESSES = 1 << 32
_CHIP_FAMILY = re.compile(r"stm32[a-z]+[0-9]|[a-z]+[0-9]{1,2}")  # in the name of a chip: stm32f4, nrf52, rp23
_SHORTEST, _LISTED = 3, 8
_HARD_FLOAT = re.compile(r"-mfloat-abi=(hard|softfp)|-mabi=i?lp(32|64)[fd]")
# Options of compilers and emulators can name code to load, commands, or files to write. Options that only describe a
# core are listed here; all others, and programs given by path, require trust in the author of the board file.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_SPECS = "nano|nosys|rdimon|picolibc|picolibcpp"
_SWITCHES = (
    "common|builtin|short-enums|exceptions|unwind-tables|asynchronous-unwind-tables|stack-protector|strict-aliasing|"
    "function-sections|data-sections|signed-char|unsigned-char|omit-frame-pointer|inline|unroll-loops|jump-tables|"
    "tree-vectorize|single-precision-constant"
)
_COMPILER_FLAG = re.compile(
    r"-m[a-z0-9][a-z0-9-]*(=[A-Za-z0-9][A-Za-z0-9_.,+-]*)?"  # the core
    r"|-O[0-3sgz]?|-g[0-3]?|-W(no-)?[a-z][a-z0-9-]*(=[0-9]+)?"
    rf"|-f(no-)?({_SWITCHES})|-ffreestanding|--?specs=({_SPECS})\.specs"
)
_LINKER_FLAG = re.compile(
    r"-nostartfiles|-nostdlib|-nodefaultlibs|-static|-no-pie|-l[A-Za-z0-9_+-]+"
    r"|-Wl,--(no-)?(gc-sections|print-memory-usage|relax|warn-[a-z-]+)"
)
_QEMU = re.compile(r"qemu-system-[a-z0-9_]+")
_EMULATOR_OPTIONS = {
    "qemu": re.compile(r"-cpu [A-Za-z0-9][A-Za-z0-9_.-]*|-bios none|-m [0-9]+[KMG]?|-smp [0-9]+"),
    "simavr": re.compile(r"-f [0-9]+"),
}
_TRUST = "If you trust the author of the file, add --trust-board; in Python: find_board(PATH, trust=True)"


@dataclass(frozen=True)
class MemoryRegion:
    """A region of a board's memory."""

    name: str
    kind: str  # ``flash`` or ``ram``
    origin: int
    nbytes: int
    wait_cycles: int = 0  # cost of a read relative to the fastest memory of the board
    # default of its kind, for sections that name no region; if no region is marked, the first one is the default
    default: bool = False

    @property
    def end(self) -> int:
        """First address after the region."""
        return self.origin + self.nbytes


@dataclass(frozen=True)
class Emulator:
    """Emulator of a board."""

    # the emulator's program and its name for the board
    program: str
    machine: str
    packages: tuple[str, ...]  # Debian packages that contain it
    # unit of a tick of the counter that the firmware reads
    instructions_per_tick: float | None = None
    cycles_per_tick: float | None = None
    options: tuple[str, ...] = ()  # appended to its command line

    def command(self, elf: str, serial: str = "none") -> list[str]:
        """Return the command of the emulator that runs the program file `elf` on the emulated board, in virtual time.

        `serial`: QEMU's character device for the board's serial port.
        """
        if Path(self.program).name == "simavr":
            return [self.program, "-m", self.machine, *self.options, elf, "-ee", "inputs.hex"]
        return [
            self.program, "-M", self.machine, *self.options, "-nographic", "-monitor", "none", "-serial", serial,
            "-no-reboot", "-icount", "shift=0", "-semihosting-config", "enable=on,target=native", "-kernel", elf,
        ]  # fmt: skip


@dataclass(frozen=True)
class Toolchain:
    """C compiler of a board: ``<prefix>gcc``, its flags, linker flags, and the Debian packages that contain it."""

    prefix: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = field(default=(), kw_only=True)
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Uart:
    """Serial port driven by the firmware: the driver's name and the address of its registers."""

    driver: str
    base: int


@dataclass(frozen=True)
class Serial:
    """Serial port of a board as seen by a host: its speed and, if known, the IDs of the USB device."""

    baud: int
    vid: int | None = None
    pid: int | None = None


@dataclass(frozen=True)
class FlashTool:
    """Command that flashes firmware, with placeholders ``{elf}``, ``{hex}``, ``{bin}`` and ``{port}``."""

    command: tuple[str, ...]
    install: str


@dataclass(frozen=True)
class Board:
    """A board."""

    name: str
    description: str
    target: str  # target that models are compiled for
    arch: str  # selects start-up code and linker script: ``cortex-m``, ``riscv``, ``avr``, ``xtensa``, ``host``
    core: str
    clock_hz: int | None  # clock of the core after the start-up code
    bare_metal: bool  # whether generated firmware can start on it; otherwise it needs its vendor's build system
    stack_bytes: int  # default stack size of projects
    toolchain: Toolchain
    # the first region contains the start-up code; the host has none
    memories: tuple[MemoryRegion, ...]
    uart: Uart | None
    serial: Serial | None
    flash_tool: FlashTool | None
    vendor: Mapping[str, str]  # names in other build systems: ``zephyr``, ``arduino``, ``esp-idf``
    emulator: Emulator | None
    chip: str = ""  # vendor's name of the chip, if any
    max_clock_hz: int | None = None  # maximum clock of the chip, if start-up code sets a lower one
    source: str = ""  # sources of the numbers
    text: str = field(default="", compare=False, repr=False)  # the TOML that describes it
    trusted: bool = field(default=True, compare=False)  # whether any program named in its file may run

    @property
    def flash(self) -> MemoryRegion:
        """Default region of code and constants; the host has none."""
        return self._default("flash")

    @property
    def ram(self) -> MemoryRegion:
        """Default region of data, stack and workspaces; the host has none."""
        return self._default("ram")

    @property
    def baud(self) -> int:
        """Speed of the serial port in bits per second."""
        return self.serial.baud if self.serial is not None else _DEFAULT_BAUD

    @property
    def features(self) -> tuple[str, ...]:
        """Extensions of the core, from compiler flags and target: ``FPU``, ``DSP``, ``MVE``."""
        target = parse_target(self.target).features
        has_fpu = any(_HARD_FLOAT.fullmatch(flag) for flag in self.toolchain.flags)
        titles = (INSTRUCTION_SETS.get(name).title for name in target.instruction_sets)
        return (*(("FPU",) if has_fpu else ()), *filter(None, titles))

    @property
    def fastest_clock_hz(self) -> int | None:
        """Maximum clock of the core, as set by products that need speed."""
        return self.max_clock_hz or self.clock_hz

    def run_command(self, elf: str) -> list[str] | None:
        """Return the command that runs a program on this machine, natively or emulated; None without an emulator."""
        if self.arch == "host":
            return [f"./{elf}"]
        return self.emulator.command(elf) if self.emulator else None

    def _default(self, kind: str) -> MemoryRegion:
        regions = _of(self, kind)
        return next((item for item in regions if item.default), regions[0])


_TABLES: Mapping[str, Callable[..., Any]] = {
    "toolchain": Toolchain,
    "uart": Uart,
    "serial": Serial,
    "flash_tool": FlashTool,
    "emulator": Emulator,
}


@cache
def boards() -> Registry[Board]:
    """Return the boards that come with mlfc, by name."""
    found: Registry[Board] = Registry("board")
    for item in sorted(files("mlfc.micro").joinpath("boards").iterdir(), key=lambda item: item.name):
        if item.name.endswith(_SUFFIX):
            board = parse_board(item.read_text(encoding="utf-8"), item.name)
            found.add(board.name, board)
    return found


def find_board(name: str | Board, *, trust: bool = False) -> Board:
    """Return a board by its name, or by the path of a file that describes it.

    Parameters
    ----------
    name : str or Board
        A board is returned unchanged. Names are case-insensitive.
    trust : bool
        Whether a file may name any program and any option. Otherwise, compilers and emulators must be known ones, found
        on the PATH by their plain names, with options that load no code and write no file.

    Raises
    ------
    OptionError, ProblemsError
        If the board does not exist, the file does not describe a board, or requires trust that was not given.
    """
    if isinstance(name, Board):
        return name
    folded = name.lower()
    if folded.endswith(_SUFFIX):
        board = parse_board(read_toml(name, "the board file"), name)
        check_programs(board, name, trust=trust)
        return replace(board, trusted=trust)
    if folded in boards():
        return boards().get(folded)
    own = "Describe another in a file: NAME.toml"
    if family := _family(folded):
        listed = ", ".join(f"{item.name} ({item.chip})" if item.chip else item.name for item in family[:_LISTED])
        step = f"Boards like that: {listed}. {own}"
    else:
        step = f"List the known ones: mlfc boards. {own}"
    raise OptionError(unknown("board", name, boards()), next_step=step)


def _family(name: str) -> list[Board]:
    """Return boards that a text may refer to: with chips of the same family, or with the text in their description."""
    family = _CHIP_FAMILY.search(name)
    wanted = family[0] if family else name
    if len(wanted) < _SHORTEST:
        return []
    found = []
    for item in map(boards().get, boards()):
        # two letters and a digit would match too many descriptions
        words = (item.name, item.chip, *(() if family else (item.description, *item.vendor.values())))
        if wanted in " ".join(words).lower():
            found.append(item)
    return found


def parse_board(text: str, place: str) -> Board:
    """Return the board that a TOML text describes; raise an error that lists all faults."""
    document = parse_toml(text, place)
    found = list(faults("board", document))
    if not found:
        # the keys that the schema allows are the fields of the classes
        values: dict[str, Any] = {"clock_hz": None, "bare_metal": True, "stack_bytes": _STACK_BYTES, "vendor": {}}
        values |= {**document, **dict.fromkeys(_TABLES)}
        for key in _TABLES.keys() & document.keys():
            table = {name: tuple(value) if isinstance(value, list) else value for name, value in document[key].items()}
            values[key] = _TABLES[key](**table)
        values["memories"] = tuple(
            MemoryRegion(**{"nbytes" if key == "bytes" else key: value for key, value in item.items()})
            for item in values.pop("memory")
        )
        board = Board(**values, text=text)
        found = [] if board.arch == "host" and not board.memories else _impossible_regions(board)
        try:
            parse_target(board.target)
        except OptionError as error:
            found.append(f"target: {error}")
        if not found:
            return board
    problems = [OptionError(fault, place=place) for fault in found]
    raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=place)


def _impossible_regions(board: Board) -> list[str]:
    found = [f"memory: a region of the kind {kind} is missing" for kind in ("flash", "ram") if not _of(board, kind)]
    for index, one in enumerate(board.memories):
        if one.end > _ADDRESSES:
            found.append(f"memory: the region '{one.name}' exceeds 32-bit addresses")
        for other in board.memories[:index]:
            if one.name == other.name:
                found.append(f"memory: two regions have the name '{one.name}'")
            if one.origin < other.end and other.origin < one.end:
                found.append(f"memory: the regions '{other.name}' and '{one.name}' overlap")
    for kind in ("flash", "ram"):
        if sum(item.default for item in _of(board, kind)) > 1:
            found.append(f"memory: two regions of the kind {kind} are the default")
    if board.memories and board.memories[0].kind != "flash":
        found.append("memory: the first region must be of the kind flash, for the start-up code")
    if _of(board, "ram") and board.stack_bytes >= board.ram.nbytes:
        found.append(
            f"stack_bytes: a stack of {board.stack_bytes:,} bytes leaves nothing of the region '{board.ram.name}', "
            f"which has {board.ram.nbytes:,}"
        )
    return found


def _of(board: Board, kind: str) -> list[MemoryRegion]:
    return [item for item in board.memories if item.kind == kind]


def board_pools(board: Board) -> tuple[Pool, ...]:
    """Return a pool for each RAM of a board, ordered by speed, then by size, the largest first.

    The memory with the stack is reduced by the stack size that projects reserve.
    """
    memories = sorted(
        (item for item in board.memories if item.kind == "ram"), key=lambda item: (item.wait_cycles, -item.nbytes)
    )
    return tuple(
        Pool(item.name, max(1, item.nbytes - (board.stack_bytes if item is board.ram else 0))) for item in memories
    )


def check_programs(board: Board, place: str, *, trust: bool) -> None:
    """Raise an error for programs and options that a file may not use, or only with trust in its author.

    `trust`: whether the user allows any program and option.

    Raises OptionError or ProblemsError for programs given by a relative path, and, without trust, for programs given by
    any path, unknown emulators, and options not known to be harmless.
    """
    programs = [("toolchain.prefix", board.toolchain.prefix)]
    if board.emulator is not None:
        programs.append(("emulator.program", board.emulator.program))
    if trust:
        advice = "Give a program's name, or its path from the root"
        relative = [item for item in programs if "/" in item[1] and not Path(item[1]).is_absolute()]
        found = [f"{key}: '{program}' is relative to the current folder" for key, program in relative]
    else:
        advice, found = _TRUST, [*_untrusted(board, programs)]
    problems: list[MlfcError] = [OptionError(text, place=place, next_step=advice) for text in found]
    if problems:
        raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=place)


def _untrusted(board: Board, programs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for key, program in programs:
        if program and not _PLAIN_NAME.fullmatch(program):
            yield f"{key}: expected the plain name of a program on the PATH, got '{program}'"
    for key, flags, allowed in (
        ("toolchain.flags", board.toolchain.flags, (_COMPILER_FLAG,)),
        ("toolchain.link_flags", board.toolchain.link_flags, (_COMPILER_FLAG, _LINKER_FLAG)),
    ):
        for flag in flags:
            if not any(pattern.fullmatch(flag) for pattern in allowed):
                yield f"{key}: '{flag}' requires trust: it does more than describe the core"
    emulator = board.emulator
    if emulator is None:
        return
    kind = "qemu" if _QEMU.fullmatch(emulator.program) else emulator.program
    if kind not in _EMULATOR_OPTIONS:
        if _PLAIN_NAME.fullmatch(emulator.program):
            yield f"emulator.program: expected simavr or qemu-system-..., got '{emulator.program}'"
        return
    if not _PLAIN_NAME.fullmatch(emulator.machine):
        yield f"emulator.machine: '{emulator.machine}' reads as an option"
    words = emulator.options
    for index in range(0, len(words), 2):
        pair = " ".join(words[index : index + 2])
        if not _EMULATOR_OPTIONS[kind].fullmatch(pair):
            yield f"emulator.options: '{pair}' requires trust: it does more than describe the machine"
