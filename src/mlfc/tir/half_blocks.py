"""Convert blocks of float16 with vector instructions, which C compilers do not use in loops that also compute.

A ``vectorized`` loop that stores one element is cut into blocks: elements of float16 are widened into an array of
float32, the results are computed into another one, and that one is narrowed. Values, and the order of accesses to any
one element, stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.affine import ExprTable
from mlfc.tir.ir import Buffer, Expr, For, Stmt, Var
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import children, inside_lets, own_nodes, rebuilt, rebuilt_stmt, same_expr, walk_expr

LANES = 16
MOST_ELEMENTS = 256  # of a block, whose arrays should stay in the first-level cache beside everything else
_HALF = "float16"


def half_blocks(stmt: Stmt) -> Stmt:
    """Return a statement whose loops over float16 convert vectors. The target must have instructions for that."""
    if isinstance(stmt, For) and stmt.kind == "vectorized":
        return _HalfLoop(stmt).run() or stmt
    return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, half_blocks)


class _HalfLoop:
    def __init__(self, loop: For) -> None:
        self._loop = loop
        self._lets, self._store = inside_lets(loop.body)
        self._loads: list[ir.Load] = []  # elements that are widened by vectors
        self._bound = {id(let.var) for let in self._lets}

    def run(self) -> Stmt | None:
        """Return the blocks and the remainder loop; None if there is nothing to convert."""
        loop, store = self._loop, self._store
        if not isinstance(store, ir.Store) or loop.step != 1 or loop.until is not None or loop.part is not None:
            return None
        for let in self._lets:
            self._find(let.value)
        self._find(store.value)
        if not (self._loads or self._narrows(store)) or self._reads_stored(store):
            return None
        extent = loop.extent
        if self._is_copy(store):
            return self._copied(store, extent // LANES)
        if not isinstance(extent, ir.Const):
            whole = extent // (4 * LANES)
            parts = [self._blocks(tb.const(0), whole, 4 * LANES)]
            return ir.Seq((*parts, self._rest(whole * (4 * LANES), extent % (4 * LANES))))
        count = int(extent.value)
        blocks, rest = divmod(count, MOST_ELEMENTS)
        last = rest // LANES * LANES
        done = blocks * MOST_ELEMENTS
        parts = [self._blocks(tb.const(0), tb.const(blocks), MOST_ELEMENTS)] if blocks else []
        parts += [self._blocks(tb.const(done), tb.const(1), last)] if last else []
        parts += [self._rest(tb.const(done + last), tb.const(rest - last))] if rest > last else []
        return ir.Seq(tuple(parts)) if blocks or last else None

    def _find(self, expr: Expr) -> None:
        """Collect the loads that are widened unconditionally."""
        if isinstance(expr, ir.Cast) and isinstance(expr.value, ir.Load) and expr.value.dtype == _HALF:
            load = expr.value
            is_new = not any(same_expr(load, known) for known in self._loads)
            if is_new and expr.dtype == "float32" and self._is_row(load.indices):
                self._loads.append(load)
        elif isinstance(expr, ir.Select):
            self._find(expr.condition)
        else:
            for operand in children(expr):
                self._find(operand)

    def _is_row(self, indices: tuple[Expr, ...]) -> bool:
        """Tell whether iterations access one element after another."""
        nodes = [node for index in indices for node in walk_expr(index)]
        if any(isinstance(node, Var) and id(node) in self._bound for node in nodes):
            return False
        return not any(map(self._moves, indices[:-1])) and self._moves_by_one(indices[-1])

    def _moves(self, expr: Expr) -> bool:
        return any(node is self._loop.var for node in walk_expr(expr))

    def _moves_by_one(self, index: Expr) -> bool:
        table = ExprTable()
        terms = table.affine(index).terms
        return {number: step for number, step in terms.items() if self._moves(table.exprs[number])} == {
            table.number(self._loop.var): 1
        }

    def _narrows(self, store: ir.Store) -> bool:
        value = store.value
        narrows = isinstance(value, ir.Cast) and value.dtype == _HALF and value.value.dtype == "float32"
        return narrows and self._is_row(store.indices)

    def _is_copy(self, store: ir.Store) -> bool:
        """Tell whether the loop does nothing but convert from memory to memory."""
        value = store.value
        if not isinstance(value, ir.Cast) or not isinstance(value.value, ir.Load) or self._lets:
            return False
        is_known = {value.dtype, value.value.dtype} == {_HALF, "float32"}
        return is_known and self._is_row(value.value.indices) and self._is_row(store.indices)

    def _copied(self, store: ir.Store, count: Expr) -> Stmt | None:
        cast = store.value
        assert isinstance(cast, ir.Cast)
        assert isinstance(cast.value, ir.Load)
        load = cast.value

        def copy(at: Expr) -> Stmt:
            lanes = _lanes(load, self._at(load.indices, at))
            return ir.Store(store.buffer, self._at(store.indices, at), tb.cast(lanes, cast.dtype))

        if isinstance(count, ir.Const) and not count.value:
            return None
        rest = self._loop.extent - count * LANES
        whole = _vectors(count, copy)
        return (
            whole if isinstance(rest, ir.Const) and not rest.value else ir.Seq((whole, self._rest(count * LANES, rest)))
        )

    def _reads_stored(self, store: ir.Store) -> bool:
        """Tell whether an iteration reads an element that another one stores."""
        stmts: list[Stmt] = [*self._lets, store]
        reads = (load for stmt in stmts for load in own_nodes(stmt) if isinstance(load, ir.Load))
        stored = (load for load in reads if load.buffer is store.buffer)
        return not all(all(map(same_expr, read.indices, store.indices)) for read in stored)

    def _rest(self, start: Expr, extent: Expr) -> Stmt:
        return self._copy(start, extent, lambda expr, _: expr, self._store)

    def _copy(self, start: Expr, extent: Expr, change: Callable[[Expr, Expr], Expr], store: Stmt) -> Stmt:
        """Return the loop over `extent` iterations from `start` on, with `change` applied to its expressions."""
        assert isinstance(store, ir.Store)
        lane = Var(self._loop.var.name)
        env: dict[Var, Expr] = {self._loop.var: start + lane}

        def changed(expr: Expr) -> Expr:
            return substitute(change(expr, lane), env)

        lets = []
        for let in self._lets:
            var = Var(let.var.name, let.var.dtype)
            lets.append((var, changed(let.value)))
            env[let.var] = var
        body: Stmt = ir.Store(store.buffer, tuple(map(changed, store.indices)), changed(store.value))
        for var, value in reversed(lets):
            body = ir.Let(var, value, body)
        return For(lane, extent, body, "vectorized")

    def _blocks(self, first: Expr, count: Expr, size: int) -> Stmt:
        """Return the loop over blocks of `size` elements."""
        block, store = Var("block"), self._store
        assert isinstance(store, ir.Store)
        is_one = isinstance(count, ir.Const) and count.value == 1
        start = first if is_one else first + block * size
        arrays = [Buffer(f"wide_{load.buffer.name}", (size,), "float32", "local") for load in self._loads]

        def change(expr: Expr, lane: Expr) -> Expr:
            return self._widened(expr, arrays, lane)

        def widen(load: ir.Load, array: Buffer) -> Stmt:
            def store(at: Expr) -> Stmt:
                return ir.Store(array, (at,), tb.cast(_lanes(load, self._at(load.indices, start + at)), "float32"))

            return _vectors(tb.const(size // LANES), store)

        parts = [widen(load, array) for load, array in zip(self._loads, arrays, strict=True)]
        if self._narrows(store):
            results = Buffer("wide", (size,), "float32", "local")
            arrays.append(results)
            assert isinstance(store.value, ir.Cast)
            computed = ir.Store(results, (self._loop.var - start,), store.value.value)
            parts.append(self._copy(start, tb.const(size), change, computed))

            def narrow(at: Expr) -> Stmt:
                value = tb.cast(tb.load(results, [at], lanes=LANES), _HALF)
                return ir.Store(store.buffer, self._at(store.indices, start + at), value)

            parts.append(_vectors(tb.const(size // LANES), narrow))
        else:
            parts.append(self._copy(start, tb.const(size), change, store))
        body: Stmt = ir.Seq(tuple(parts))
        for array in arrays:
            body = ir.Allocate(array, body)
        return body if is_one else For(block, count, body)

    def _widened(self, expr: Expr, arrays: list[Buffer], lane: Expr) -> Expr:
        if isinstance(expr, ir.Cast) and isinstance(expr.value, ir.Load) and expr.dtype == "float32":
            for load, array in zip(self._loads, arrays, strict=False):
                if same_expr(load, expr.value):
                    return tb.load(array, [lane])
        return rebuilt(expr, lambda item: self._widened(item, arrays, lane))

    def _at(self, indices: tuple[Expr, ...], place: Expr) -> tuple[Expr, ...]:
        return tuple(substitute(index, {self._loop.var: place}) for index in indices)


def _vectors(count: Expr, store: Callable[[Expr], Stmt]) -> Stmt:
    """Return the loop over vectors; `store` returns the statement for the first element of one."""
    if isinstance(count, ir.Const) and count.value == 1:
        return store(tb.const(0))
    vector = Var("vector")
    return For(vector, count, store(vector * LANES))


def _lanes(load: ir.Load, indices: tuple[Expr, ...]) -> ir.Load:
    return replace(load, indices=indices, dtype=dtypes.vector(load.dtype, LANES))
