"""Printing of a model's use of a board's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mlfc.cli.artifacts import compiled_model, is_compiled
from mlfc.cli.tables import Styled, print_table
from mlfc.errors import OptionError
from mlfc.support.progress import stage
from mlfc.support.text import printable

if TYPE_CHECKING:
    from mlfc.archive.write.options import ExportOptions
    from mlfc.cli.options import Inputs
    from mlfc.factory import Factory
    from mlfc.micro.board.board import Board
    from mlfc.micro.memory.memory_table import MemoryTable
    from mlfc.support.content import Data
    from mlfc.support.module_info import ModuleInfo

_COLUMNS = ("region", "what", "bytes", "how it is known")


def print_memory(table: MemoryTable) -> None:
    """Print the table by region, with the free bytes of each region that is used."""
    rows: list[Sequence[object]] = []
    for region in table.regions:
        lines = [row for row in table.rows_of(region.name) if row.nbytes != 0 or row.note]
        if region.used or lines:
            rows += [(row.region, row.what, row.nbytes, row.note) for row in lines]
            rows.append(
                (region.name, "used", region.used, f"{region.percent:.1f} % of {region.nbytes:,} of {region.kind}")
            )
            rest = ("over", region.over) if region.over else ("free", region.free)
            rows.append((region.name, *(Styled(cell, "red" if region.over else "green") for cell in rest), ""))
    rows += [(row.region, row.what, row.nbytes, row.note) for row in table.rows_of(None)]
    when = "as linked" if table.is_built else "before the build"
    print_table(f"memory of {table.board}, {when}", _COLUMNS, rows)
    if table.folded:
        names = ", ".join(name for name, _ in table.folded)
        total = sum(nbytes for _, nbytes in table.folded)
        typer.echo(printable(f"  {total:,} bytes of constants became part of the code: {names}"))
    for reason in table.stack.untold if table.stack else ():
        typer.echo(printable(f"  the stack bound of an inference is unknown: {reason}"))


def print_linked(before: MemoryTable, after: MemoryTable) -> None:
    """Print the memory of the linked program, and differences from the values promised before the build."""
    from mlfc.micro.memory.memory_table import PROMISED, differences

    print_memory(after)
    broken = differences(before, after)
    for item in broken:
        typer.echo(printable(f"  {item}"))
    if not broken:
        typer.echo(f"  {', '.join(PROMISED)}: as promised before the build")


def memory_json(before: MemoryTable, after: MemoryTable) -> dict[str, Any]:
    """Return both tables and their differences as a JSON object."""
    from mlfc.micro.memory.memory_table import differences

    broken = [
        {"what": item.what, "region": item.region, "promised": item.promised, "linked": item.found}
        for item in differences(before, after)
    ]
    return {"before": before.as_json(), "linked": after.as_json(), "differences": broken}


def planned_memory(artifact: Path, board: Board, module: str | None, inputs: Inputs) -> tuple[MemoryTable, ModuleInfo]:
    """Return the planned memory of an archive's module, or of a model compiled for the board, and its details."""
    from mlfc.archive.details import full_module_info
    from mlfc.archive.read.module_parts import read_parts
    from mlfc.micro.board.object_code import check_objects

    if not is_compiled(artifact, module, inputs):
        factory = compiled_model(artifact, inputs, board.target)
        details = full_module_info(factory)
        return _measured(factory.module_name, factory.code.built_files, details, board), details
    parts = read_parts(artifact, module)
    if parts.record.details is None:
        raise OptionError(
            f"module '{parts.record.name}' was not compiled by mlfc and lacks memory metadata",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    check_objects(parts.code, board)
    return _measured(parts.record.name, parts.code, parts.record.details, board), parts.record.details


def _measured(name: str, code: Mapping[str, Data], details: ModuleInfo, board: Board) -> MemoryTable:
    from mlfc.micro.firmware.planned_memory import planned_table

    with stage(f"compiling {name} alone for {board.name}"):
        return planned_table(name, code, details, board)


def fitting_memory(
    factories: Sequence[Factory], board: Board | None, ram: int | None, flash: int | None, options: ExportOptions
) -> MemoryTable | None:
    """Raise BudgetError if compiled modules exceed a limit, or the board's memory.

    `ram`, `flash`: limits in bytes; None for everything that the board has.

    Returns the table of a single module; None for several, whose plans alone are compared with the board's default
    regions.
    """
    from mlfc.archive.details import full_module_info
    from mlfc.archive.write.budget import check_budget
    from mlfc.micro.firmware.graph_source import require_code_alone
    from mlfc.micro.firmware.planned_memory import check_fit, plan_table
    from mlfc.micro.memory.memory_table import region_name

    if board is not None:
        for factory in factories:
            require_code_alone(factory.module_name, factory.lib.imported_modules)
    if board is not None and board.memories and len(factories) > 1:
        ram = board.ram.nbytes if ram is None else ram
        flash = board.flash.nbytes if flash is None else flash
    # without a board, memory for callers' inputs and outputs is not part of the budget
    check_budget(factories, ram=ram, flash=flash, options=options, lent=board is not None)
    if board is None or len(factories) > 1:
        return None
    places = {region_name(board, "ram"): ram, region_name(board, "flash"): flash}
    limits = {place: limit for place, limit in places.items() if place and limit is not None}
    factory, details = factories[0], full_module_info(factories[0])
    # if the plan alone exceeds a limit, compiling is unnecessary
    check_fit(plan_table(details, board), details, limits)
    table = _measured(factory.module_name, factory.code.built_files, details, board)
    check_fit(table, details, limits)
    return table
