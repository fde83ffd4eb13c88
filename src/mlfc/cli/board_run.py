"""``mlfc run --board`` and ``mlfc run --host-driven``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import compiled_model, is_compiled
from mlfc.cli.memory import memory_json, print_linked
from mlfc.cli.run_tables import as_rows, instruction_rows, print_instructions, print_outputs, print_profile, summaries
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import BudgetError, OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.cli.options import Inputs
    from mlfc.micro.board.board import Board
    from mlfc.micro.firmware.graph_source import GraphSource
    from mlfc.micro.memory.memory_table import MemoryTable
    from mlfc.micro.run.emulator import BuiltFirmware, EmulatedModule
    from mlfc.runtime import Profile, TensorInfo
    from mlfc.support.arrays import Array


def built_firmware(
    artifact: Path, board: Board, module: str | None, inputs: Inputs, *, profile: bool, tuned: Path | None = None
) -> EmulatedModule:
    """Return an archive's module, or a model compiled for the board, as firmware for it."""
    from mlfc.micro.run.emulator import emulated_archive, emulated_factory

    with stage(f"building firmware of {artifact} for {board.name}"):
        if is_compiled(artifact, module, inputs, takes_shapes=True):
            return emulated_archive(artifact, board, module, profile=profile)
        return emulated_factory(compiled_model(artifact, inputs, board.target, tuned=tuned), board, profile=profile)


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
    from mlfc.micro.run.count import Count
    from mlfc.runtime.tensor.npz import write_npz

    with stage(f"running under {firmware.program}"):
        run = firmware.measure(given)
    if outputs is not None:
        write_npz(outputs, run.outputs)
    tables = None
    if memory:
        with stage("adding up memory"):
            tables = memory()
    found = [info.of_shape(run.outputs[info.name].shape) or info for info in firmware.outputs]
    tensors = summaries(found, run.outputs, 0 if run.operators else top)
    rows = instruction_rows(firmware.operators_of(run), run.operators, top)
    sizes = {"flash_bytes": run.flash_bytes, "ram_bytes": run.ram_bytes, "stack_bytes": run.stack_bytes}
    counts = {"instructions": run.instructions, "startup_instructions": run.startup_instructions}
    if run.cycles is not None:
        counts["cycles"] = run.cycles
    clock = firmware.board.fastest_clock_hz
    milliseconds = Count(run.instructions, run.cycles).milliseconds(clock)
    if as_json:
        time = {} if milliseconds is None else {"clock_hz": clock, "milliseconds": milliseconds}
        document: dict[str, Any] = {"outputs": tensors, **counts, **time, **sizes, **(warnings or {})}
        if run.operators:
            document["operators"] = rows
        if tables:
            document["memory"] = memory_json(*tables)
        print_json(document)
        return
    print_outputs(tensors)
    names = {"startup_instructions": "to start up", "flash_bytes": "flash bytes", "ram_bytes": "RAM bytes",
             "stack_bytes": "of these stack"}  # fmt: skip
    # a core takes a cycle for most instructions, more for some, and waits for memories
    time = {} if milliseconds is None or not clock else {f"ms at {clock / 1e6:g} MHz": float(f"{milliseconds:.3g}")}
    shown = {names.get(name, name): value for name, value in {**counts, **time, **sizes}.items() if value is not None}
    print_table("firmware", tuple(shown), [tuple(shown.values())])
    if rows:
        print_instructions(rows, len(run.operators))
    if tables:
        print_linked(*tables)


def check_vectors(
    artifact: Path, board: Board, name: str, module: str | None, as_json: bool, warnings: Mapping[str, list[str]]
) -> None:
    """Check an archive's test vectors on a board, `name` for the user; raise BudgetError where an output differs."""
    from mlfc.micro.run.project_run import run_selftest

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


@dataclass(frozen=True)
class DrivenRun:
    """What is wanted of a run: see the options of `run_model`."""

    port: str | None
    outputs: Path | None
    tensors: Path | None
    profile: bool
    repeat: int
    top: int
    as_json: bool
    warnings: Mapping[str, list[str]]


def run_driven(
    artifact: Path,
    board: Board,
    module: str | None,
    inputs: Inputs,
    fill: Callable[[tuple[TensorInfo, ...]], Mapping[str, Array]],
    wanted: DrivenRun,
) -> None:
    """Run a graph on this machine with every operator on a device, and print what came out."""
    from mlfc.micro.run.driven_model import driven_model
    from mlfc.runtime.tensor.npz import write_npz

    if wanted.repeat != 1 and not wanted.profile:
        raise OptionError("option --repeat requires --profile; without it, times would measure the serial line")
    source = _source(artifact, module, inputs, board.target)
    with (
        stage(f"running {artifact} on {board.name}"),
        driven_model(source, board, wanted.port, lambda line: typer.echo(f"device: {line}", err=True)) as model,
    ):
        given = fill(model.inputs)
        measured = model.profile(given, wanted.repeat) if wanted.profile else None
        results: Mapping[str, Array] = model.run(given) if measured is None else measured.outputs
        intermediate = model.tensors(given) if wanted.tensors is not None else {}
        infos = model.outputs
    if wanted.outputs is not None:
        write_npz(wanted.outputs, results)
    if wanted.tensors is not None:
        write_npz(wanted.tensors, intermediate)
    tensors = summaries(infos, results, 0 if measured else wanted.top)
    document: dict[str, Any] = {"outputs": tensors, **wanted.warnings}
    if not wanted.as_json:
        print_outputs(tensors)
    if measured is not None:
        counts_instructions = wanted.port is None and board.emulator is not None
        document["operators"] = _operators(measured, wanted, counts_instructions=counts_instructions)
    if wanted.as_json:
        print_json(document)


def _source(artifact: Path, module: str | None, inputs: Inputs, target: str) -> GraphSource:
    from mlfc.micro.firmware.graph_source import graph_of_archive, graph_of_factory

    if is_compiled(artifact, module, inputs):
        return graph_of_archive(artifact, module)
    return graph_of_factory(compiled_model(artifact, inputs, target, "graph"))


def _operators(measured: Profile, wanted: DrivenRun, *, counts_instructions: bool) -> list[dict[str, Any]]:
    """Print the operators, unless JSON is wanted, and return them for it."""
    if not counts_instructions:
        if not wanted.as_json:
            print_profile(measured.operators, wanted.top)
        return as_rows(measured.operators, wanted.top)
    # an emulated instruction takes a nanosecond
    counts = [round(item.nanoseconds) for item in measured.operators]
    rows = instruction_rows(measured.operators, counts, wanted.top)
    if not wanted.as_json:
        print_instructions(rows, len(counts))
    return rows
