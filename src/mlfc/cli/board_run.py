"""``mlfc run --board``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import compiled_model, is_compiled
from mlfc.cli.instruction_table import instruction_rows, print_instructions
from mlfc.cli.memory import memory_json, print_linked
from mlfc.cli.outputs_table import print_outputs, summaries
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import BudgetError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board
    from mlfc.micro.memory.memory_table import MemoryTable
    from mlfc.micro.run.emulator import BuiltFirmware, EmulatedModule
    from mlfc.support.arrays import Array


def built_firmware(
    artifact: Path, board: Board, module: str | None, shape: list[str] | None, *, profile: bool
) -> EmulatedModule:
    """Return an archive's module, or a model compiled for the board, as firmware for it."""
    from mlfc.micro.run.emulator import emulated_archive, emulated_factory

    with stage(f"building firmware of {artifact} for {board.name}"):
        if is_compiled(artifact, module, shape):
            return emulated_archive(artifact, board, module, profile=profile)
        return emulated_factory(compiled_model(artifact, shape, board.target), board, profile=profile)


def run_firmware(
    firmware: BuiltFirmware,
    given: Mapping[str, Array],
    outputs: Path | None,
    top: int,
    as_json: bool,
    *,
    memory: Callable[[], tuple[MemoryTable, MemoryTable]] | None = None,
    warnings: Mapping[str, list[str]] | None = None,
) -> None:
    """Run firmware once and print what it computed and took; `memory` tells what it takes of the board's regions.

    `warnings` are added to JSON.
    """
    from mlfc.runtime.tensor.npz import write_npz

    with stage(f"running under {firmware.program}"):
        run = firmware.measure(given)
    if outputs is not None:
        write_npz(outputs, run.outputs)
    tables = memory() if memory else None
    tensors = summaries(firmware.outputs, run.outputs, 0 if run.operators else top)
    rows = instruction_rows(firmware.operators, run.operators, top)
    sizes = {"flash_bytes": run.flash_bytes, "ram_bytes": run.ram_bytes, "stack_bytes": run.stack_bytes}
    counts = {"instructions": run.instructions, "startup_instructions": run.startup_instructions}
    if run.cycles is not None:
        counts["cycles"] = run.cycles
    if as_json:
        document: dict[str, Any] = {"outputs": tensors, **counts, **sizes, **(warnings or {})}
        if run.operators:
            document["operators"] = rows
        if tables:
            document["memory"] = memory_json(*tables)
        print_json(document)
        return
    print_outputs(tensors)
    names = {"startup_instructions": "to start up", "flash_bytes": "flash bytes", "ram_bytes": "RAM bytes",
             "stack_bytes": "of these stack"}  # fmt: skip
    shown = {names.get(name, name): value for name, value in {**counts, **sizes}.items() if value is not None}
    print_table("firmware", tuple(shown), [tuple(shown.values())])
    if rows:
        print_instructions(rows, len(run.operators))
    if tables:
        print_linked(*tables)


def check_vectors(
    artifact: Path, board: Board, name: str, module: str | None, as_json: bool, warnings: Mapping[str, list[str]]
) -> None:
    """Check an archive's test vectors on a board, `name` for the user; raise BudgetError where an output differs."""
    from mlfc.micro.run.selftest import run_selftest

    with stage(f"checking {artifact} on {board.name}"):
        run = run_selftest(artifact, board, module)
    if as_json:
        print_json({"board": board.name, "passed": run.passed, "lines": list(run.lines), **warnings})
    else:
        typer.echo("\n".join(run.lines))
    if not run.passed:
        raise BudgetError(
            "the board's results differ from those of the machine that made the test vectors",
            place=f"{artifact} on {board.name}",
            next_step=_search(board, name),
        )


def _search(board: Board, name: str) -> str:
    """Return how to find the operator that computes something else on a board."""
    from mlfc.micro.firmware.trace import traces

    if traces(board):
        return f"Look for the operator with: mlfc verify MODEL --layers --board {name}"
    return f'See whether the same C is right on this machine: mlfc verify MODEL --layers --target "{board.target}"'
