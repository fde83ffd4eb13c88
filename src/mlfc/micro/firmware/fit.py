"""Whether a model fits into a board's memory, and what to look at where it does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mlfc.archive.write.budget import largest_text, peak_text
from mlfc.errors import BudgetError, ToolchainError
from mlfc.micro.board.board import Board, MemoryRegion
from mlfc.micro.memory.linked_memory import LinkedPart, read_map
from mlfc.micro.memory.memory_table import CONSTANTS, MemoryTable
from mlfc.support.module_info import ModuleInfo, ModuleInterface, NamedBytes

_OVERFLOW = re.compile(r"region [`'](\w+)' overflowed by (\d+) bytes?")
_NO_STACK = re.compile(r"data and stack do not fit into (\w+)")
_CONSTANT = re.compile(r"\.rodata\.(?:tvmgen_\w+?_)?constant_(\w+)")
_SMALLER = "Compile with --optimize size, for smaller code. "
_NEXT = "Make these smaller, quantize the model, or choose a larger board: mlfc fit MODEL"


def check_fit(table: MemoryTable, details: ModuleInterface | None, limits: Mapping[str, int] | None = None) -> None:
    """Raise BudgetError where the rows of a region that are known take more than it has.

    `details`: from a `ModuleInfo` the message names constants, the peak and the goal.
    `limits`: bytes by region, in place of the region's size.
    """
    for region in table.regions:
        limit = (limits or {}).get(region.name, region.nbytes)
        if region.used > limit:
            raise _too_large(table, region.name, region.used, limit, details)
    needed = table.stack.nbytes if table.stack else None
    if table.reserve is not None and needed is not None and needed > table.reserve:
        raise BudgetError(
            f"the stack of an inference, {needed:,} bytes, exceeds the reserve by {needed - table.reserve:,} bytes",
            place=table.board,
            next_step="Reserve more: stack_bytes of the board, or mlfc project build --option stack_bytes=BYTES",
        )


def _too_large(table: MemoryTable, region: str, used: int, limit: int, details: ModuleInterface | None) -> BudgetError:
    rows = sorted((row for row in table.rows_of(region) if row.nbytes), key=lambda row: -(row.nbytes or 0))
    cause = f"{used:,} bytes exceed the {limit:,} of '{region}' by {used - limit:,} bytes: "
    cause += ", ".join(f"{row.what} {row.nbytes:,}" for row in rows)
    has_constants = table.total(CONSTANTS, region) > used // 2
    info = details if isinstance(details, ModuleInfo) else None
    if has_constants and info and info.constants:
        cause += f"; {largest_text(info.constants)}"
    elif not has_constants and info and info.peak:
        cause += f"; {peak_text(info.peak)}"
    kind = next(item.kind for item in table.regions if item.name == region)
    is_code_too_much = kind == "flash" and table.total(CONSTANTS, region) <= limit
    can_shrink = is_code_too_much and info is not None and info.optimize == "speed"
    return BudgetError(cause, place=table.board, next_step=(_SMALLER if can_shrink else "") + _NEXT)


def overflow_error(said: str, map: Path, board: Board) -> BudgetError | None:  # noqa: A002  (the linker's word)
    """Return the error for a program that did not fit where its linker was to put it; None where it failed otherwise.

    `map`: the linker's map, which is written even on failure.
    """
    overflow, no_stack = _OVERFLOW.search(said), _NO_STACK.search(said)
    name = overflow[1] if overflow else no_stack[1] if no_stack else None
    region = next((item for item in board.memories if item.name == name), None)
    if region is None:
        return None
    if overflow:
        cause = f"the firmware exceeds the {region.nbytes:,} bytes of '{region.name}' by {int(overflow[2]):,} bytes"
    else:
        cause = (
            f"the firmware does not fit into '{region.name}' of {region.nbytes:,} bytes, with what the project "
            "reserves for its stack"
        )
    try:
        largest = _largest(read_map(map), region)
    except (OSError, ToolchainError):
        largest = []
    return BudgetError(f"{cause}; {largest_text(largest)}" if largest else cause, place=board.name, next_step=_NEXT)


def _largest(pieces: tuple[LinkedPart, ...], region: MemoryRegion) -> list[NamedBytes]:
    """Return the objects and constants in a region; what overflows it lies behind it, in front of the next."""
    found: Counter[str] = Counter()
    outputs = {piece.output for piece in pieces if region.origin <= piece.address < region.end}
    for piece in pieces:
        if piece.output in outputs and piece.file is not None:
            constant = _CONSTANT.fullmatch(piece.section)
            found[constant[1] if constant else Path(piece.file).name] += piece.nbytes
    return [NamedBytes(name, nbytes) for name, nbytes in found.items()]
