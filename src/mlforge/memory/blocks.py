"""A plan as a list that can be checked without the program: every block, where it lies and which calls need it."""

from __future__ import annotations

from dataclasses import dataclass

from mlforge.errors import InternalError
from mlforge.memory.liveness import live_ranges
from mlforge.memory.planner import SCRATCH_ALIGNMENT, Plan
from mlforge.memory.report import SCRATCH_NAME
from mlforge.memory.reuse import lead_of_call
from mlforge.tir.ir import KernelCall, Program, Value


@dataclass(frozen=True)
class Reached:
    """An input of which an output takes bytes that are read no more: it starts `lead` bytes before it at least."""

    block: int
    lead: int


@dataclass(frozen=True)
class Block:
    """A tensor, a part of one that a call of its own writes, or scratch.

    Blocks whose lives overlap never overlap in bytes, but for `reuses` and `reaches`: their lives meet in the one call.

    Attributes
    ----------
    name : str
    nbytes, offset : int
    first, last : int
        Calls, both included.
    reuses : int or None
        The block whose place it takes, element by element.
    reaches : tuple of Reached
    """

    name: str
    nbytes: int
    offset: int
    first: int
    last: int
    reuses: int | None
    reaches: tuple[Reached, ...]


@dataclass(frozen=True, eq=False)
class _Piece:
    value: Value | None
    nbytes: int
    offset: int
    first: int
    last: int


def blocks(program: Program, plan: Plan) -> tuple[Block, ...]:
    """Return the blocks of a plan by their first calls."""
    pieces = sorted(_pieces(program, plan), key=lambda item: (item.first, item.value is None, item.offset))
    of_root: dict[Value, list[int]] = {}
    for number, piece in enumerate(pieces):
        if piece.value is not None:
            of_root.setdefault(piece.value.root, []).append(number)
    return tuple(_block(program, plan, piece, of_root) for piece in pieces)


def _pieces(program: Program, plan: Plan) -> list[_Piece]:
    written: dict[Value, dict[int, tuple[Value, int]]] = {}
    for index, call in enumerate(program.calls):
        written.setdefault(call.output.root, {}).setdefault(call.output.root_start, (call.output, index))
    found = []
    for item in live_ranges(program, plan.alignment, SCRATCH_ALIGNMENT):
        if item.value is None:
            found.append(_Piece(None, item.nbytes, plan.scratch_offsets[item.first], item.first, item.last))
            continue
        for value, first in written[item.value].values():
            found.append(_Piece(value, value.nbytes, plan.offset(value), first, item.last))
    return found


def _block(program: Program, plan: Plan, piece: _Piece, of_root: dict[Value, list[int]]) -> Block:
    reuses, reaches = None, []
    if piece.value is not None:
        call, reused = program.calls[piece.first], plan.inplace[piece.first]
        reuses = of_root[reused][0] if reused is not None else None
        for root in plan.reached[piece.first]:
            reaches += [Reached(number, _lead(call, root)) for number in of_root[root]]
    name = piece.value.name if piece.value else SCRATCH_NAME
    return Block(name, piece.nbytes, piece.offset, piece.first, piece.last, reuses, tuple(reaches))


def _lead(call: KernelCall, root: Value) -> int:
    found = lead_of_call(call, root)
    if found is None:
        raise InternalError(f"the output of '{call.kernel.name}' reaches into '{root.name}', which it may not")
    return found.nbytes
