"""``mlfc run --host-driven``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import compiled_model, is_compiled
from mlfc.cli.instruction_table import instruction_rows, print_instructions
from mlfc.cli.outputs_table import print_outputs, summaries
from mlfc.cli.profile_table import as_rows, print_profile
from mlfc.cli.tables import print_json
from mlfc.errors import OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.micro.board.board import Board
    from mlfc.micro.firmware.graph_source import GraphSource
    from mlfc.runtime import Profile, TensorInfo
    from mlfc.support.arrays import Array


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
    shape: list[str] | None,
    fill: Callable[[tuple[TensorInfo, ...]], Mapping[str, Array]],
    wanted: DrivenRun,
) -> None:
    """Run a graph on this machine with every operator on a device, and print what came out."""
    from mlfc.micro.run.driven_model import driven_model
    from mlfc.runtime.tensor.npz import write_npz

    if wanted.repeat != 1 and not wanted.profile:
        raise OptionError("option --repeat requires --profile; without it, times would measure the serial line")
    source = _source(artifact, module, shape, board.target)
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


def _source(artifact: Path, module: str | None, shape: list[str] | None, target: str) -> GraphSource:
    from mlfc.micro.firmware.graph_source import graph_of_archive, graph_of_factory

    if is_compiled(artifact, module, shape):
        return graph_of_archive(artifact, module)
    return graph_of_factory(compiled_model(artifact, shape, target, "graph"))


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
