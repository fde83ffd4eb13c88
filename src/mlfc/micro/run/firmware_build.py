"""Building a project's firmware with its Makefile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mlfc.archive.describe.code_size import object_sizes
from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import need, run
from mlfc.micro.firmware.fit import overflow_error
from mlfc.micro.firmware.makefile import MAP
from mlfc.support.content import Data, write_data

_SECONDS = 600
_MESSAGE_LINES = 12


def write_files(folder: Path, files: Mapping[str, Data]) -> None:
    """Write a project's files into a folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)


def build(folder: Path, board: Board, *, trace: bool, cflags: str) -> None:
    """Run the project's Makefile.

    Raises BudgetError if what it links does not fit into the board's memory; ToolchainError if it fails otherwise, with
    the compiler's first lines.
    """
    need("make", ("make",))
    need(f"{board.toolchain.prefix}gcc", board.toolchain.packages)
    command = ["make", "-s", "-j2", f"CFLAGS={cflags}", *(["TRACE=1"] if trace else [])]
    result = run(command, folder, _SECONDS)
    if result.returncode != 0:
        too_large = overflow_error(result.stderr, folder / MAP, board)
        if too_large is not None:
            raise too_large
        lines = [line for line in result.stderr.splitlines() if line.strip()][:_MESSAGE_LINES]
        raise ToolchainError(
            f"the firmware for {board.name} does not build:\n  " + "\n  ".join(lines),
            place=f"{board.toolchain.prefix}gcc",
        )


def section_sizes(elf: Path) -> tuple[int, int]:
    """Return the bytes of flash and of RAM that a program takes, by the headers of its sections."""
    sizes = object_sizes(elf.read_bytes(), elf.name)
    flash = sizes["code_bytes"] + sizes["readonly_bytes"] + sizes["data_bytes"]
    return flash, sizes["data_bytes"] + sizes["zeroed_bytes"]
