"""``mlfc run --board`` and ``mlfc run --host-driven``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import compiled_model, core_warnings, input_sizes, is_compiled
from mlfc.cli.memory import memory_json, print_linked
from mlfc.cli.options import Inputs, chosen_board
from mlfc.cli.run_data import DataOptions, Sets
from mlfc.cli.run_tables import as_rows, instruction_rows, print_instructions, print_profile
from mlfc.cli.tables import print_json, print_table
from mlfc.errors import BudgetError, OptionError
from mlfc.support.progress import stage

if TYPE_CHECKING:
    from mlfc.cli.run_model import RunOptions
    from mlfc.micro.board.board import Board
    from mlfc.micro.memory.memory_table import MemoryTable
    from mlfc.micro.run.emulator import BuiltFirmware

_VERIFY = "mlfc verify MODEL --layers"


def run_elsewhere(artifact: Path, options: RunOptions, fixed: Inputs) -> None:
    """Run as firmware, or a graph with its operators on a device; or check test vectors."""
    board = chosen_board(options.board_name, options.trust_board)
    assert board is not None  # has a name
    warnings = core_warnings(artifact, board, options.board_name, options.module)
    if options.selftest:
        if options.inputs or options.outputs or options.repeat is not None or options.is_profiled or fixed != Inputs():
            raise OptionError(
                "option --selftest uses the inputs and outputs in the archive",
                place="--selftest",
                next_step="Remove --inputs, --outputs, --repeat, --profile, --shape, --value, --state and --state-init",
            )
        _check_vectors(artifact, board, options, warnings)
        return
    options.check_run()
    if options.host_driven:
        _run_driven(artifact, board, options, fixed, warnings)
        return
    if options.repeat is not None:
        raise OptionError("option --repeat has no effect under an emulator: every run executes the same instructions")
    from mlfc.micro.run.emulator import emulated_archive, emulated_factory

    with stage(f"building firmware of {artifact} for {board.name}"):
        if is_compiled(artifact, options.module, fixed, takes_shapes=True):
            firmware = emulated_archive(artifact, board, options.module, profile=options.is_profiled)
        else:
            factory = compiled_model(artifact, fixed, board.target, tuned=options.tuned)
            firmware = emulated_factory(factory, board, profile=options.is_profiled)
    sizes = input_sizes(firmware, artifact, fixed)
    from mlfc.verify.inputs import naming_inputs

    with naming_inputs(artifact, firmware.inputs, is_generated=options.inputs is None):
        run_firmware(
            firmware,
            [("", options.only_set(firmware, *sizes))] if options.is_profiled else options.sets(firmware, *sizes),
            options,
            options.as_json,
            memory=firmware.memory if options.memory else None,
            warnings=warnings,
        )


def run_firmware(
    firmware: BuiltFirmware,
    sets: Sets,
    options: DataOptions,
    as_json: bool,
    *,
    memory: Callable[[], tuple[MemoryTable, MemoryTable]] | None = None,
    warnings: Mapping[str, list[str]] | None = None,
) -> None:
    """Run firmware on sets of inputs and print its results and costs; `memory` maps usage of the board's memory.

    `warnings` are added to JSON.
    """
    from mlfc.micro.fit.boards import Count

    with stage(f"running under {firmware.program}"):
        run = firmware.measure_steps([given for _, given in sets])
    results = options.results(firmware, sets, run.steps, keeps_state=bool(firmware.states))
    tables = None
    if memory:
        with stage("adding up memory"):
            tables = memory()
    found = results.document(with_top=not run.operators)
    rows = instruction_rows(firmware.operators_of(run), run.operators, options.top)
    sizes = {"flash_bytes": run.flash_bytes, "ram_bytes": run.ram_bytes, "stack_bytes": run.stack_bytes}
    counts = {"instructions": run.instructions, "startup_instructions": run.startup_instructions}
    if run.cycles is not None:
        counts["cycles"] = run.cycles
    clock = firmware.board.fastest_clock_hz
    milliseconds = Count(run.instructions, run.cycles).milliseconds(clock)
    if as_json:
        time = {} if milliseconds is None else {"clock_hz": clock, "milliseconds": milliseconds}
        document: dict[str, Any] = {**found, **counts, **time, **sizes, **(warnings or {})}
        if run.operators:
            document["operators"] = rows
        if tables:
            document["memory"] = memory_json(*tables)
        print_json(document)
        return
    results.print(found)
    names = {"startup_instructions": "to start up", "flash_bytes": "flash bytes", "ram_bytes": "RAM bytes",
             "stack_bytes": "of these stack"}  # fmt: skip
    # cores take a cycle for most instructions, more for some, and wait for memories
    time = {} if milliseconds is None or not clock else {f"ms at {clock / 1e6:g} MHz": float(f"{milliseconds:.3g}")}
    shown = {names.get(name, name): value for name, value in {**counts, **time, **sizes}.items() if value is not None}
    print_table("firmware", tuple(shown), [tuple(shown.values())])
    if rows:
        print_instructions(rows, len(run.operators))
    if tables:
        print_linked(*tables)


def _check_vectors(artifact: Path, board: Board, options: RunOptions, warnings: Mapping[str, list[str]]) -> None:
    """Check an archive's test vectors on a board; raise BudgetError if an output differs."""
    from mlfc.micro.run.firmware_run import traces
    from mlfc.micro.run.project_run import run_selftest

    with stage(f"checking {artifact} on {board.name}"):
        run = run_selftest(artifact, board, options.module)
    if options.as_json:
        print_json({"board": board.name, "passed": run.passed, "lines": list(run.lines), **warnings})
    else:
        typer.echo("\n".join(run.lines))
    if not run.passed:
        verify = "mlfc verify MODEL --layers"
        search = f'Check whether the same C is correct on this machine: {verify} --target "{board.target}"'
        if traces(board):
            search = f"Find the operator with: {verify} --board {options.board_name}"
        raise BudgetError(
            "the board's results differ from the test vectors",
            place=f"{artifact} on {board.name}",
            next_step=search,
        )


def _run_driven(
    artifact: Path, board: Board, options: RunOptions, inputs: Inputs, warnings: Mapping[str, list[str]]
) -> None:
    """Run a graph on this machine with every operator on a device, and print the results."""
    from mlfc.micro.firmware.graph_source import graph_of_archive, graph_of_factory
    from mlfc.micro.run.project_run import driven_model
    from mlfc.runtime.tensor.npz import write_npz

    if options.repeat not in (None, 1) and not options.is_profiled:
        raise OptionError("option --repeat requires --profile; without it, times would measure the serial line")
    if is_compiled(artifact, options.module, inputs):
        source = graph_of_archive(artifact, options.module)
    else:
        source = graph_of_factory(compiled_model(artifact, inputs, board.target, "graph"))
    with (
        stage(f"running {artifact} on {board.name}"),
        driven_model(source, board, options.port, lambda line: typer.echo(f"device: {line}", err=True)) as model,
    ):
        is_single = options.is_profiled or options.tensors is not None
        sets = [("", options.only_set(model))] if is_single else options.sets(model)
        measured = model.profile(sets[0][1], options.repeat or 1) if options.is_profiled else None
        runs = [measured.outputs] if measured else [model.run(given) for _, given in sets]
        intermediate = model.tensors(sets[0][1]) if options.tensors is not None else {}
        results = options.results(model, sets, runs, keeps_state=len(model.state) > 0)
    if options.tensors is not None:
        write_npz(options.tensors, intermediate)
    document: dict[str, Any] = {**results.document(with_top=measured is None), **warnings}
    if not options.as_json:
        results.print(document)
    if measured is not None and (options.port is not None or board.emulator is None):
        document["operators"] = as_rows(measured.operators, options.top)
        if not options.as_json:
            print_profile(measured.operators, options.top)
    elif measured is not None:
        # an emulated instruction counts as a nanosecond
        counts = [round(item.nanoseconds) for item in measured.operators]
        document["operators"] = instruction_rows(measured.operators, counts, options.top)
        if not options.as_json:
            print_instructions(document["operators"], len(counts))
    if options.as_json:
        print_json(document)
