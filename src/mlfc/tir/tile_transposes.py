"""Tiled transposes: a few elements from each of several rows at a time, which touch fewer cache lines.

Compilers unroll short transposes and shuffle vectors; longer ones, and those of dynamic extents, are tiled here to
permit the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.extents import as_extent
from mlfc.tir.ir import Expr, For, Stmt, Store, Var
from mlfc.tir.unroll import with_values
from mlfc.tir.visitor import only, rebuilt_stmt, walk_expr

TILE = 4
"""Elements of a row that are written at once: as many as the narrowest vectors have."""
ROWS = 4
"""Rows of a tile: compilers hold a square tile in registers and shuffle it."""
FEWEST = 8
"""Minimum rows for tiling."""
LONG = 16
"""Elements beyond which compilers do not unroll a loop."""


def tile_transposes(stmt: Stmt) -> Stmt:
    """Return a statement with its transposes tiled; stored values stay the same."""
    if isinstance(stmt, For):
        found = _nest(stmt)
        if found is not None:
            return _tiled(*found)
    return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, tile_transposes)


def _nest(loop: For) -> tuple[list[For], Var, Store] | None:
    """Return the loops of a transpose, the variable along which its loads are contiguous, and its store, or None."""
    loops: list[For] = []
    stmt: Stmt = loop
    while isinstance(stmt, For) and stmt.step == 1 and stmt.until is None and stmt.part is None and not stmt.fresh:
        loops.append(stmt)
        stmt = only(stmt.body)
    if len(loops) < 2 or not isinstance(stmt, Store) or not stmt.indices or _is_at_most(loops[-1].extent, LONG):
        return None
    if any(as_extent(item.extent) is None for item in loops):  # a partial range: its remainder is too small
        return None
    last = loops[-1].var
    if stmt.indices[-1] is not last or any(_reads(index, last) for index in stmt.indices[:-1]):
        return None
    outer = {id(item.var) for item in loops[:-1] if not _is_at_most(item.extent, FEWEST - 1)}
    loads = [node for node in walk_expr(stmt.value) if isinstance(node, ir.Load)]
    if any(load.buffer is stmt.buffer for load in loads):
        return None
    along = (
        load.indices[-1]
        for load in loads
        if load.indices and id(load.indices[-1]) in outer and any(_reads(index, last) for index in load.indices[:-1])
    )
    found = next(along, None)
    return (loops, found, stmt) if isinstance(found, Var) else None


def _is_at_most(extent: Expr, limit: int) -> bool:
    return isinstance(extent, ir.Const) and extent.value <= limit


def _reads(expr: Expr, var: Var) -> bool:
    return any(node is var for node in walk_expr(expr))


def _tiled(loops: list[For], along: Var, store: Store) -> Stmt:
    """Return the nest with loops over tiles: several rows, and within them a few elements of each."""
    last = loops[-1]
    inner = next(item for item in loops if item.var is along)
    body: Stmt = ir.Seq(tuple(part for row in _cut(inner, ROWS) for part in _tiles(row, inner, last, store)))
    for item in reversed([item for item in loops[:-1] if item is not inner]):
        body = replace(item, body=body)
    return body


class _RangePart(NamedTuple):
    """A part of a loop's range: blocks of `size` from `start` on, or the remainder as one smaller block."""

    start: Expr
    blocks: Expr
    size: Expr


def _cut(loop: For, size: int) -> list[_RangePart]:
    whole, rest = loop.extent // size, loop.extent % size
    parts = [_RangePart(tb.const(0), whole, tb.const(size)), _RangePart(whole * size, tb.const(1), rest)]
    return [part for part in parts if not any(isinstance(n, ir.Const) and n.value == 0 for n in part[1:])]


def _tiles(rows: _RangePart, inner: For, last: For, store: Store) -> list[Stmt]:
    """Return the loops over a part of the rows, one for each part of the row elements."""
    found: list[Stmt] = []
    for elements in _cut(last, TILE):
        stmts = tb.StmtBuilder()
        with stmts.loop(rows.blocks, "rows") as block, stmts.loop(elements.blocks, "tile") as tile:
            with stmts.loop(rows.size, inner.var.name, "vectorized") as row:
                with stmts.loop(elements.size, last.var.name) as offset:
                    row_at, at = rows.start + block * ROWS + row, elements.start + tile * TILE + offset
                    stmts.append(with_values(store, {inner.var: row_at, last.var: at}))
        found.append(stmts.finish())
    return found
