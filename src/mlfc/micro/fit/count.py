"""How many instructions an inference takes on a core, counted by an emulator of any board with such a core."""

from __future__ import annotations

from dataclasses import replace

from mlfc.errors import MlfcError
from mlfc.micro.board.board import Board, boards
from mlfc.micro.fit.builds import Built
from mlfc.micro.run.count import Count
from mlfc.micro.run.emulator import emulated_factory
from mlfc.runtime.tensor.arrays import fill
from mlfc.target.features import CPUS

_SECONDS = 120.0


def counting_board(board: Board) -> Board | None:
    """Return the emulated board with the most RAM that runs the code of a board's core, set up for that code."""
    found = [other for other in map(boards().get, boards()) if other.emulator and _runs(other, board)]
    if not found:
        return None
    best = max(found, key=lambda other: (other.core == board.core, other.ram.nbytes))
    return replace(best, target=board.target, core=board.core, toolchain=board.toolchain)


def count(built: Built, board: Board) -> Count:
    """Return what an inference of a compiled model on random inputs takes on a board's core."""
    emulated = counting_board(board)
    if emulated is None:
        return Count(unknown=f"no emulator of mlfc runs the instructions of {board.core}")
    try:
        firmware = emulated_factory(built.factory, emulated, timeout=_SECONDS)
        run = firmware.measure(fill(firmware.inputs))
    except MlfcError as error:
        return Count(unknown=str(error).partition("\n")[0])
    return Count(run.instructions, run.cycles)


def _runs(emulated: Board, board: Board) -> bool:
    """Tell whether a core runs another's code; both have a floating-point unit if the code uses one."""
    if emulated.core == board.core:
        return True
    own, other = CPUS.get(emulated.core), CPUS.get(board.core)
    if emulated.arch != board.arch or not other.architecture:
        return False
    runs = other.architecture == own.architecture or other.architecture in own.runs
    return runs and set(board.features) <= set(emulated.features)
