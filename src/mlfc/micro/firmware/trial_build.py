"""A model compiled and linked alone, with a board's compiler: what is known before any project is built."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.object_code import core_flags, object_paths
from mlfc.micro.board.programs import need, run
from mlfc.micro.firmware.linker_script import lays_out
from mlfc.micro.firmware.makefile import COMPILE_FLAGS
from mlfc.support.content import Data, write_data

_SECONDS = 300
_MESSAGE_LINES = 12
_SOURCES = (".c", ".S")
_ELF, _MAP, _SCRIPT = "trial.elf", "trial.map", "trial.ld"
# without regions, so that everything fits
_LAYOUT = """\
SECTIONS {
  .text 0x10000 : { *(.text .text.*) }
  .rodata : { *(.rodata .rodata.* .srodata .srodata.*) }
  .data : { *(.data .data.* .sdata .sdata.*) }
  .bss : { *(.bss .bss.* .sbss .sbss.* COMMON) }
}
"""


@dataclass(frozen=True)
class TrialBuild:
    """Where the parts of a linked model lie."""

    folder: Path  # with ``.o`` and, of each C file, ``.su`` files beside the sources
    # the program, and what the linker says of it
    elf: Path
    map: Path


@contextmanager
def trial_build(code: Mapping[str, Data], entry: str, board: Board, cflags: Sequence[str]) -> Iterator[TrialBuild]:
    """Compile and link a model with nothing but the libraries that it calls; the files live as long as the context.

    `code`: the generated code of an AOT module: ``src/...``, ``include/...`` and ``lib/...``.
    `entry`: the function from which everything is reached.
    `cflags`: flags beside the board's.

    Raises ToolchainError if the compiler is missing, or refuses the code.
    """
    compiler = f"{board.toolchain.prefix}gcc"
    need(compiler, board.toolchain.packages)
    command = [compiler, *core_flags(board, code)]
    with tempfile.TemporaryDirectory(prefix="mlfc-trial-") as name:
        folder = Path(name)
        for path, data in code.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_data(folder / path, data)
        flags = [*COMPILE_FLAGS, "-fstack-usage", "-Iinclude", *cflags]
        objects = []
        for path in sorted(path for path in code if PurePosixPath(path).suffix in _SOURCES):
            objects.append(f"./{path}.o")
            _run([*command, *flags, "-c", f"./{path}", "-o", objects[-1]], folder)
        objects += [f"./{path}" for path in object_paths(code)]
        wanted = ["-nostartfiles", "-Wl,--gc-sections", f"-Wl,-e,{entry}", f"-Wl,-Map={_MAP}"]
        if lays_out(board):
            (folder / _SCRIPT).write_text(_LAYOUT, encoding="ascii")
            wanted += ["-T", _SCRIPT]
        _run([*command, *board.toolchain.link_flags, *wanted, "-o", _ELF, *objects, *_libraries(), "-lm"], folder)
        yield TrialBuild(folder, folder / _ELF, folder / _MAP)


def _libraries() -> list[str]:
    """Return the libraries that the code of external generators calls, as the Makefiles of projects take them."""
    try:
        return shlex.split(os.environ.get("LIBS", ""))
    except ValueError as error:
        raise ToolchainError(f"the environment variable LIBS is no list of words: {error}") from error


def _run(command: Sequence[str], folder: Path) -> None:
    result = run(command, folder, _SECONDS)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()][:_MESSAGE_LINES]
        raise ToolchainError(
            "the model's code does not build for the board:\n  " + "\n  ".join(lines),
            place=PurePosixPath(command[0]).name,
        )
