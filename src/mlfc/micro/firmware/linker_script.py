"""The linker script of a bare-metal project, made from a board's memory regions.

Generated C says by sections what it wants where: ``.bss.noinit.tvm.<region>`` and ``.rodata.tvm.<region>`` go to the
region of that name, what names none of the board's to its default regions. What nobody uses takes no bytes, but for an
entry of twelve bytes in the table of copies for each RAM beside the default one.
"""

from __future__ import annotations

from mlfc.micro.board.board import Board
from mlfc.micro.render import render


def has_linker_script(board: Board) -> bool:
    """Tell whether firmware for the board is linked by a script of ours."""
    return lays_out(board) or board.arch == "avr"


def lays_out(board: Board) -> bool:
    """Tell whether our script places everything; else it adds to the compiler's own."""
    return board.arch in ("cortex-m", "riscv")


def linker_script(board: Board) -> bytes:
    """Return the script: start-up first, code and constants in flash, data and stack in RAM, pools in their regions."""
    return render("linker/firmware.ld" if lays_out(board) else "linker/added.ld", board=board)
