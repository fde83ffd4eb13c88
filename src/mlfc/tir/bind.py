"""Binding of loops to work-items: conversion of plain loops to launches.

Independent loops become the grid, the rest of the nest is the work of an item. Statements in sequence within such a
loop become a sequence of launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from mlfc.errors import UnsupportedError
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Dim, Extent, bounds, maximum
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.extents import as_extent, as_index
from mlfc.tir.independence import Independence
from mlfc.tir.ir import Expr, Stmt, Var
from mlfc.tir.unroll import with_values
from mlfc.tir.visitor import own_nodes, walk

ITEMS = 256  # per group
WARP = 32  # items that run together on most devices
_FEW_ITEMS = 32
_MOST_STEPS = 1 << 16  # limit for a work-item if there are few of them

Frame: TypeAlias = "tuple[ir.For | ir.Let | ir.If, ...]"


def bind(body: Stmt, items: int = ITEMS) -> Stmt:
    """Return the body of a function as launches.

    `body`: plain loops, launches, or both in sequence.
    `items` is the maximum number of work-items per group.
    Raises UnsupportedError if much of the work must run sequentially: then a host is faster.
    """
    binder = _Binder(body, items)
    # skips launches that are empty for all values of the symbols
    launches = [binder.launch(nest) for nest in binder.nests(body, ()) if bounds(nest.count)[1]]
    return launches[0] if len(launches) == 1 else ir.Seq(tuple(launches))


@dataclass(frozen=True, eq=False)
class _LaunchNest:
    """The loops, bindings and conditions of one launch from the outside in, and the body of a work-item."""

    frame: Frame
    body: Stmt

    @property
    def loops(self) -> list[ir.For]:
        """The independent loops."""
        return [item for item in self.frame if isinstance(item, ir.For)]

    @property
    def trips(self) -> list[Extent]:
        """Iteration count of each loop."""
        extents = [as_extent(loop.extent) for loop in self.loops]
        return [
            maximum(0, -(-extent // loop.step))
            for extent, loop in zip(extents, self.loops, strict=True) if extent is not None
        ]  # fmt: skip

    @property
    def count(self) -> Any:
        """Number of work-items."""
        return prod(self.trips)


class _Binder:
    def __init__(self, body: Stmt, items: int) -> None:
        self._items = items
        self._independence = Independence(body, local_is_own=False)
        self._written = {stmt.buffer for stmt in walk(body) if isinstance(stmt, ir.Store)}

    # splitting loops ------------------------------------------------------------------------------------

    def nests(self, stmt: Stmt, frame: Frame) -> Iterator[_LaunchNest]:
        """Yield the nests of a statement inside independent loops."""
        if isinstance(stmt, ir.Seq) and any(map(self._opens, stmt.stmts)):
            for item in self._parts(stmt.stmts):
                yield from self.nests(item, frame)
        elif isinstance(stmt, (ir.Let, ir.If, ir.For)) and self._is_frame(stmt):
            yield from self.nests(stmt.then if isinstance(stmt, ir.If) else stmt.body, (*frame, stmt))
        elif any(isinstance(item, (ir.Store, ir.Launch)) for item in walk(stmt)):
            yield _LaunchNest(frame, stmt)

    def _parts(self, stmts: Sequence[Stmt]) -> Iterator[Stmt]:
        """Yield statements that are bound separately; neighbours without independent loops stay together."""
        together: list[Stmt] = []
        for stmt in stmts:
            if self._opens(stmt):
                if together:
                    yield tb.seq(together)
                together = []
                yield stmt
            else:
                together.append(stmt)
        if together:
            yield tb.seq(together)

    def _opens(self, stmt: Stmt) -> bool:
        """Tell whether a statement is a launch, or starts with an independent loop."""
        if isinstance(stmt, ir.Launch):
            return True
        if isinstance(stmt, (ir.Let, ir.If)) and self._is_frame(stmt):
            return self._opens(stmt.then if isinstance(stmt, ir.If) else stmt.body)
        if isinstance(stmt, ir.Seq):
            return any(map(self._opens, stmt.stmts))
        return isinstance(stmt, ir.For) and self._is_frame(stmt)

    def _is_frame(self, stmt: ir.For | ir.Let | ir.If) -> bool:
        if isinstance(stmt, ir.For):
            return as_extent(stmt.extent) is not None and stmt.until is None and self._independence.holds(stmt)
        if isinstance(stmt, ir.If) and stmt.otherwise is not None:
            return False
        read = (node for node in own_nodes(stmt) if isinstance(node, ir.Load))
        return all(load.buffer not in self._written for load in read)

    # building launches ----------------------------------------------------------------------------------

    def launch(self, nest: _LaunchNest) -> Stmt:
        """Return the launch that runs a nest."""
        if isinstance(nest.body, ir.Launch):
            return nest.body
        total, steps = nest.count, _steps(nest.body, self._independence.ranges)
        if typical(total) < _FEW_ITEMS and steps > _MOST_STEPS:
            raise UnsupportedError(
                f"some {steps:,} steps depend on each other, and a device would run {total} of them at a time",
                next_step="Leave this operator on the host",
            )
        if isinstance(total, Dim):
            return self._dynamic_launch(nest, total)
        stmts = tb.StmtBuilder()
        block = min(self._items, -(-total // WARP) * WARP) if total > 1 else 1
        groups = -(-total // block)
        with stmts.launch((groups,), (block,)) as ((group,), (item,)):
            number = stmts.let("number", group * block + item)
            env: dict[Var, Expr] = {}
            inner: Any = total
            for count, loop in zip(nest.trips, nest.loops, strict=True):  # the innermost varies fastest
                inner //= count
                index = number // inner
                env[loop.var] = (index if loop is nest.loops[0] else index % count) * loop.step
            body = _framed(nest.frame, nest.body, env)
            stmts.append(body if groups * block == total else ir.If(tb.binary("lt", number, total), body))
        return stmts.finish()

    def _dynamic_launch(self, nest: _LaunchNest, total: Dim) -> Stmt:
        """Return a launch with a runtime number of groups, at least one, as devices reject an empty grid."""
        stmts = tb.StmtBuilder()
        groups = maximum(1, -(-total // self._items))
        with stmts.launch((groups,), (self._items,)) as ((group,), (item,)):
            number = stmts.let("number", group * self._items + item)
            inner = tb.StmtBuilder()
            env: dict[Var, Expr] = {}
            rest: Expr = number
            # from the innermost loop outwards; the guards below prove that indices are within their loops
            for loop, count in reversed(list(zip(nest.loops, nest.trips, strict=True))):
                trips = as_index(maximum(1, count))
                is_outermost = loop is nest.loops[0]
                place = rest if is_outermost else tb.binary("floormod", rest, trips)
                env[loop.var] = inner.let("place", place) * loop.step
                rest = rest if is_outermost else tb.binary("floordiv", rest, trips)
            with ExitStack() as guards:
                for loop in nest.loops if len(nest.loops) > 1 else ():
                    guards.enter_context(inner.when(tb.binary("lt", env[loop.var], loop.extent)))
                inner.append(_framed(nest.frame, nest.body, env))
            stmts.append(ir.If(tb.binary("lt", number, as_index(total)), inner.finish()))
        return stmts.finish()


def _framed(frame: Frame, body: Stmt, env: dict[Var, Expr]) -> Stmt:
    """Return the body within the bindings and conditions of a frame, with new variables."""
    stmts = tb.StmtBuilder()
    for var, value in env.items():
        stmts.append(ir.Let(var, value, ir.Seq(())))
    inside = body
    for item in reversed(frame):
        if isinstance(item, ir.Let):
            inside = ir.Let(item.var, item.value, inside)
        elif isinstance(item, ir.If):
            inside = ir.If(item.condition, inside)
    stmts.append(inside)
    return with_values(stmts.finish(), {})


def _steps(stmt: Stmt, ranges: Ranges) -> int:
    """Return the maximum number of stores that a statement executes."""
    if isinstance(stmt, ir.Store):
        return 1
    if isinstance(stmt, ir.For):
        return max(0, ranges.interval(stmt.extent, 0).high) * _steps(stmt.body, ranges)
    if isinstance(stmt, ir.If):
        return max(_steps(item, ranges) for item in (stmt.then, stmt.otherwise or ir.Seq(())))
    if isinstance(stmt, ir.Seq):
        return sum(_steps(item, ranges) for item in stmt.stmts)
    return _steps(stmt.body, ranges) if isinstance(stmt, (ir.Let, ir.Allocate)) else 0
