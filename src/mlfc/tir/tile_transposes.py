"""Transposes of extents that the run decides, in tiles: a few elements of a row at a time, for all rows.

A loop that reads with a stride and writes without one touches a line of memory for each element. Where compilers know
the extent they cut such loops themselves; here they are cut so that four rows that are read become four columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.ir import Expr, For, Stmt, Store, Var
from mlfc.tir.unroll import with_values
from mlfc.tir.visitor import rebuilt_stmt, walk_expr

TILE = 4
"""Elements of a row that is written: as many as the narrowest vectors hold."""


def tile_transposes(stmt: Stmt) -> Stmt:
    """Return a statement whose transposes of open extents are cut into tiles; what is stored stays the same."""
    if isinstance(stmt, For):
        found = _nest(stmt)
        if found is not None:
            return _tiled(*found)
    return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, tile_transposes)


def _nest(loop: For) -> tuple[list[For], Var, Store] | None:
    """Return the loops of a nest that is a transpose, the variable along which it reads without gaps, and its store."""
    loops: list[For] = []
    stmt: Stmt = loop
    while isinstance(stmt, For) and stmt.step == 1 and stmt.until is None and stmt.part is None and not stmt.fresh:
        loops.append(stmt)
        stmt = stmt.body.stmts[0] if isinstance(stmt.body, ir.Seq) and len(stmt.body.stmts) == 1 else stmt.body
    if len(loops) < 2 or not isinstance(stmt, Store) or isinstance(loops[-1].extent, ir.Const) or not stmt.indices:
        return None
    last = loops[-1].var
    if stmt.indices[-1] is not last or any(_reads(index, last) for index in stmt.indices[:-1]):
        return None
    outer = {id(item.var) for item in loops[:-1]}
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


def _reads(expr: Expr, var: Var) -> bool:
    return any(node is var for node in walk_expr(expr))


def _tiled(loops: list[For], along: Var, store: Store) -> Stmt:
    """Return the nest with the loop over `along` inside, around a few elements of the last loop."""
    last = loops[-1]
    inner = next(item for item in loops if item.var is along)
    tile, offset = Var("tile"), Var(last.var.name)
    whole = last.extent // TILE

    def rows(extent: Expr, place: Mapping[Var, Expr]) -> Stmt:
        element = For(offset, extent, with_values(store, place))
        return replace(inner, body=element, kind="vectorized")

    body: Stmt = ir.Seq(
        (
            For(tile, whole, rows(tb.const(TILE), {last.var: tile * TILE + offset})),
            with_values(rows(last.extent % TILE, {last.var: whole * TILE + offset}), {}),
        )
    )
    for item in reversed([item for item in loops[:-1] if item is not inner]):
        body = replace(item, body=body)
    return body
