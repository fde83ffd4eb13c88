"""What a board's file may ask for before anybody trusts whoever wrote it: nothing that runs a program of its choice.

A compiler's or an emulator's option can name code to load, a script of commands, or a file to write. So options are
known by a list of those that only say how a core works; all others, and programs by their paths, need trust.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlfc.errors import MlfcError, OptionError, ProblemsError

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board, Emulator, FlashTool

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_SPECS = "nano|nosys|rdimon|picolibc|picolibcpp"
_SWITCHES = (
    "common|builtin|short-enums|exceptions|unwind-tables|asynchronous-unwind-tables|stack-protector|strict-aliasing|"
    "function-sections|data-sections|signed-char|unsigned-char|omit-frame-pointer|inline|unroll-loops|jump-tables|"
    "tree-vectorize|single-precision-constant"
)
_COMPILER_FLAG = re.compile(
    r"-m[a-z0-9][a-z0-9-]*(=[A-Za-z0-9][A-Za-z0-9_.,+-]*)?"  # which core
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


def check_programs(board: Board, place: str, *, trust: bool) -> None:
    """Raise an error for all that a file may not have run, or only where its author is trusted.

    `trust`: whether the user allows any program and option.

    Raises OptionError or ProblemsError for programs by a path that depends on the folder in which it is read, and,
    without trust, for programs by any path, for other emulators than are known, and for options not known to be
    harmless.
    """
    found = list(_relative(board) if trust else _untrusted(board))
    if not found:
        return
    advice = "Give a program's name, or its path from the root" if trust else _TRUST
    problems: list[MlfcError] = [OptionError(text, place=place, next_step=advice) for text in found]
    raise problems[0] if len(problems) == 1 else ProblemsError(problems, place=place)


def check_flash_tool(board: Board, known: Sequence[FlashTool], place: str) -> None:
    """Raise OptionError for a flash tool's command that a file chose freely, unless its author is trusted."""
    tool = board.flash_tool
    if tool is None or board.trusted or any(tool.command == item.command for item in known):
        return
    raise OptionError(
        f"flash_tool: the project would run the file's own command '{' '.join(tool.command)}'"[:400],
        place=place,
        next_step="If you trust the author of the file, add --trust-board; in Python: trust_board=True",
    )


def _programs(board: Board) -> Iterator[tuple[str, str]]:
    yield "toolchain.prefix", board.toolchain.prefix
    if board.emulator is not None:
        yield "emulator.program", board.emulator.program


def _relative(board: Board) -> Iterator[str]:
    for key, program in _programs(board):
        if "/" in program and not Path(program).is_absolute():
            yield f"{key}: '{program}' is relative to the current folder"


def _untrusted(board: Board) -> Iterator[str]:
    for key, program in _programs(board):
        if program and not _PLAIN_NAME.fullmatch(program):
            yield f"{key}: expected the plain name of a program on the PATH, got '{program}'"
    for key, flags, allowed in (
        ("toolchain.flags", board.toolchain.flags, (_COMPILER_FLAG,)),
        ("toolchain.link_flags", board.toolchain.link_flags, (_COMPILER_FLAG, _LINKER_FLAG)),
    ):
        for flag in flags:
            if not any(pattern.fullmatch(flag) for pattern in allowed):
                yield f"{key}: '{flag}' requires trust: it does more than describe the core"
    if board.emulator is not None:
        yield from _odd_emulator(board.emulator)


def _odd_emulator(emulator: Emulator) -> Iterator[str]:
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
