"""How many instructions an inference takes on a core, counted by an emulator of any board with such a core."""

from __future__ import annotations

from dataclasses import replace

from mlfc.errors import MlfcError
from mlfc.micro.board.board import Board, boards
from mlfc.micro.board.object_code import core_flags
from mlfc.micro.board.programs import need
from mlfc.micro.firmware import kept_trials
from mlfc.micro.firmware.makefile import optimization_level
from mlfc.micro.fit.builds import Built
from mlfc.micro.run.count import Count
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.firmware_run import run_command
from mlfc.runtime.tensor.arrays import fill
from mlfc.target.features import CPUS

_SECONDS = 120.0


def counting_board(board: Board) -> Board | None:
    """Return the emulated board with the most RAM that runs the code of a board's core, set up for that code."""
    found = [other for other in map(boards().get, boards()) if other.emulator and _runs(other, board)]
    if not found:
        return None
    best = max(found, key=lambda other: (other.ram.nbytes, other.core == board.core))
    return replace(best, target=board.target, core=board.core, toolchain=board.toolchain)


def count(built: Built, board: Board) -> Count:
    """Return what an inference of a compiled model on random inputs takes on a board's core.

    Inputs are as large as the bounds of their open extents allow.
    """
    emulated = counting_board(board)
    if emulated is None:
        return Count(unknown=f"no emulator of mlfc runs the instructions of {board.core}")
    try:
        key = _key(built, emulated)
        kept = kept_trials.find(key)
        if kept is not None:
            return Count(**kept)
        firmware = emulated_factory(built.factory, emulated, timeout=_SECONDS)
        largest = {name: high for name, (_, high) in firmware.extents.items()}
        inputs = [info.at(largest) for info in firmware.inputs]
        if not all(info.is_static for info in inputs):
            return Count(unknown="extents of the inputs follow from one another")
        run = firmware.measure(fill(inputs))
    except MlfcError as error:
        return Count(unknown=str(error).partition("\n")[0])
    kept_trials.keep(key, {"instructions": run.instructions, "cycles": run.cycles})
    return Count(run.instructions, run.cycles)


def _key(built: Built, board: Board) -> str:
    """Return the key of a count: what builds the firmware, and what runs it."""
    code, tools = built.factory.code.built_files, board.toolchain
    emulator = kept_trials.emulator_identity(need(run_command(board)[0], tools.packages))
    said = (*tools.link_flags, optimization_level(built.details), *run_command(board), *emulator)
    core = core_flags(board, code)
    return kept_trials.key_of(need(f"{tools.prefix}gcc", tools.packages), core, said, code)


def _runs(emulated: Board, board: Board) -> bool:
    """Tell whether a core runs another's code; both have a floating-point unit if the code uses one."""
    if emulated.core == board.core:
        return True
    own, other = CPUS.get(emulated.core), CPUS.get(board.core)
    if emulated.arch != board.arch or not other.architecture:
        return False
    runs = other.architecture == own.architecture or other.architecture in own.runs
    return runs and set(board.features) <= set(emulated.features)
