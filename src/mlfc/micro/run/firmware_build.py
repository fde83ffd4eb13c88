"""Building a project's firmware with its Makefile."""

from __future__ import annotations

from pathlib import Path

from mlfc.archive.describe.inspect import object_sizes
from mlfc.errors import ToolchainError
from mlfc.micro.board.board import Board
from mlfc.micro.board.programs import first_lines, need, run
from mlfc.micro.firmware.bare_metal import MAP
from mlfc.micro.firmware.planned_memory import overflow_error

_SECONDS = 600


def build(folder: Path, board: Board, *, trace: bool, cflags: str) -> None:
    """Run the project's Makefile.

    Raises BudgetError if the program does not fit into the board's memory; ToolchainError if it fails otherwise, with
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
        raise ToolchainError(
            f"the firmware for {board.name} does not build:{first_lines(result.stderr)}",
            place=f"{board.toolchain.prefix}gcc",
        )


def section_sizes(elf: Path) -> tuple[int, int]:
    """Return the bytes of flash and RAM that a program uses, from its section headers."""
    sizes = object_sizes(elf.read_bytes(), elf.name)
    flash = sizes["code_bytes"] + sizes["readonly_bytes"] + sizes["data_bytes"]
    return flash, sizes["data_bytes"] + sizes["zeroed_bytes"]
