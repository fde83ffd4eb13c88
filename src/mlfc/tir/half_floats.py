"""Compute with 16-bit floats as float32, and convert only loads and stores.

A value passed between operators is a float32 that was rounded to 16 bits, so results have the same bits as with a
conversion after every operator. A minimum or maximum is rounded once, as rounding is monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.affine import ExprTable
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Buffer, Expr, For, Stmt, Var
from mlfc.tir.unroll import substitute, with_single_uses
from mlfc.tir.visitor import children, inside_lets, own_nodes, rebuilt, rebuilt_stmt, same_expr, walk_expr

_ORDERED = ("min", "max")


def widen_halves(stmt: Stmt) -> Stmt:
    """Return a statement that computes in float32 instead of 16-bit floats."""
    return _Widener().stmt(stmt)


def _is_half(expr: Expr) -> bool:
    return expr.dtype in dtypes.HALVES


class _Widener:
    def __init__(self) -> None:
        self._vars: dict[int, Var] = {}  # float32 variables by the id of the 16-bit variable
        self._buffers: dict[Buffer, Buffer] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        """Rewrite a statement."""
        if isinstance(stmt, ir.For) and stmt.kind == "vectorized":
            stmt = replace(stmt, body=_inlined(stmt.body))
        if isinstance(stmt, ir.Let) and _is_half(stmt.var) and self._computes(stmt.value):
            value, var = self._wide(stmt.value), Var(stmt.var.name, "float32")
            self._vars[id(stmt.var)] = var
            return replace(stmt, var=var, value=value, body=self.stmt(stmt.body))
        if isinstance(stmt, ir.Allocate) and stmt.buffer.dtype in dtypes.HALVES:
            wide = replace(stmt.buffer, dtype="float32")
            self._buffers[stmt.buffer] = wide
            return ir.Allocate(wide, self.stmt(stmt.body))
        if isinstance(stmt, ir.Store) and _is_half(stmt.value):
            indices, known = tuple(map(self._expr, stmt.indices)), self._buffers.get(stmt.buffer)
            if known is not None:
                return ir.Store(known, indices, self._wide(stmt.value))
            return ir.Store(stmt.buffer, indices, self._half(stmt.value))
        return rebuilt_stmt(stmt, self.stmt, self._expr)

    def _computes(self, expr: Expr) -> bool:
        """Tell whether a value is computed, not only loaded."""
        return any(
            self._is_computed(node) or id(node) in self._vars or self._is_wide_load(node) for node in walk_expr(expr)
        )

    @staticmethod
    def _is_computed(expr: Expr) -> bool:
        if not _is_half(expr) or not isinstance(expr, (ir.Binary, ir.Cast, ir.Call)):
            return False
        return not isinstance(expr, ir.Call) or _is_elementwise(expr)

    def _is_wide_load(self, expr: Expr) -> bool:
        return isinstance(expr, ir.Load) and expr.buffer in self._buffers

    def _half(self, expr: Expr) -> Expr:
        return ir.Cast(self._unrounded(expr), expr.dtype) if self._computes(expr) else self._expr(expr)

    def _expr(self, expr: Expr) -> Expr:
        if _is_half(expr) and (id(expr) in self._vars or self._is_computed(expr) or self._is_wide_load(expr)):
            return self._half(expr)
        if isinstance(expr, ir.Cast) and _is_half(expr.value):
            return tb.cast(self._wide(expr.value), expr.dtype)
        is_predicate = isinstance(expr, ir.Binary) or (isinstance(expr, ir.Call) and _is_elementwise(expr))
        if is_predicate and any(map(_is_half, _operands(expr))):
            return rebuilt(expr, self._wide)
        return rebuilt(expr, self._expr)

    def _wide(self, expr: Expr) -> Expr:
        """Return the value of a 16-bit float as a float32."""
        if isinstance(expr, ir.Const):
            return tb.const(expr.value, "float32")
        if isinstance(expr, Var):
            return self._vars.get(id(expr)) or ir.Cast(expr, "float32")
        if isinstance(expr, ir.Load):
            indices, known = tuple(map(self._expr, expr.indices)), self._buffers.get(expr.buffer)
            return tb.load(known, indices) if known else ir.Cast(replace(expr, indices=indices), "float32")
        if isinstance(expr, ir.Select):
            arms = self._wide(expr.then), self._wide(expr.otherwise)
            return ir.Select(self._expr(expr.condition), *arms, "float32")
        if isinstance(expr, ir.Binary) and expr.op in _ORDERED:
            return ir.Binary(expr.op, self._wide(expr.a), self._wide(expr.b), "float32")
        if (isinstance(expr, ir.Cast) and expr.value.dtype != "float32") or not self._is_computed(expr):
            return ir.Cast(rebuilt(expr, self._expr), "float32")
        return tb.intrinsic(f"round_{expr.dtype}", self._unrounded(expr), dtype="float32")

    def _unrounded(self, expr: Expr) -> Expr:
        """Return the float32 value before it is rounded to 16 bits."""
        if isinstance(expr, ir.Cast) and expr.value.dtype == "float32":
            return self._expr(expr.value)
        if isinstance(expr, ir.Select):
            arms = self._unrounded(expr.then), self._unrounded(expr.otherwise)
            return ir.Select(self._expr(expr.condition), *arms, "float32")
        if isinstance(expr, ir.Binary):
            change = self._unrounded if expr.op in _ORDERED else self._wide
            return ir.Binary(expr.op, change(expr.a), change(expr.b), "float32")
        if isinstance(expr, ir.Call) and _is_elementwise(expr):
            return ir.Call(expr.name, tuple(map(self._wide, expr.args)), "float32")
        return self._wide(expr)


def _inlined(body: Stmt) -> Stmt:
    """Return the body of a loop; if it stores one element, bindings with a single use are inlined."""
    _, last = inside_lets(body)
    is_half = isinstance(last, ir.Store) and _is_half(last.value)
    return with_single_uses(body) if is_half else body


def _operands(expr: Expr) -> tuple[Expr, ...]:
    return (expr.a, expr.b) if isinstance(expr, ir.Binary) else expr.args if isinstance(expr, ir.Call) else ()


def _is_elementwise(call: ir.Call) -> bool:
    """Tell whether printers compute a call on float32 because it has no body for 16-bit floats."""
    is_known = call.name in INTRINSICS and all(map(_is_half, call.args))
    return is_known and INTRINSICS.get(call.name).body(call.args[0].dtype) is None


LANES = 16
MOST_ELEMENTS = 256  # of a block, whose arrays should fit into the first-level cache along with other data
_HALF = "float16"


def half_blocks(stmt: Stmt) -> Stmt:
    """Return a statement whose loops over float16 convert vectors. The target must have instructions for that.

    C compilers do not use these instructions in loops that also compute. So a ``vectorized`` loop that stores one
    element is cut into blocks: elements are widened to an array of float32, results are computed into another array,
    which is narrowed. Values, and the order of accesses to any one element, stay the same.
    """
    if isinstance(stmt, For) and stmt.kind == "vectorized":
        return _HalfLoop(stmt).run() or stmt
    return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, half_blocks)


class _HalfLoop:
    def __init__(self, loop: For) -> None:
        self._loop = loop
        self._lets, self._store = inside_lets(loop.body)
        self._loads: list[ir.Load] = []  # elements that are widened as vectors
        self._bound = {id(let.var) for let in self._lets}

    def run(self) -> Stmt | None:
        """Return the blocks and the remainder loop; None if there is nothing to convert."""
        loop, store = self._loop, self._store
        if not isinstance(store, ir.Store) or loop.step != 1 or loop.until is not None or loop.part is not None:
            return None
        for let in self._lets:
            self._find(let.value)
        self._find(store.value)
        stmts: list[Stmt] = [*self._lets, store]
        reads = (node for stmt in stmts for node in own_nodes(stmt) if isinstance(node, ir.Load))
        # would read a value that another iteration stores
        reads_stored = any(
            load.buffer is store.buffer and not all(map(same_expr, load.indices, store.indices)) for load in reads
        )
        if not (self._loads or self._narrows(store)) or reads_stored:
            return None
        extent, value = loop.extent, store.value
        if isinstance(value, ir.Cast) and isinstance(value.value, ir.Load) and not self._lets:
            is_known = {value.dtype, value.value.dtype} == {_HALF, "float32"}
            if is_known and self._is_row(value.value.indices) and self._is_row(store.indices):
                return self._copied(store, value.value, value.dtype)
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
        """Tell whether iterations access consecutive elements."""
        nodes = [node for index in indices for node in walk_expr(index)]
        is_bound = any(isinstance(node, Var) and id(node) in self._bound for node in nodes)
        if is_bound or any(map(self._moves, indices[:-1])):
            return False
        table = ExprTable()
        terms = table.affine(indices[-1]).terms.items()
        varying = {number: step for number, step in terms if self._moves(table.exprs[number])}
        return varying == {table.number(self._loop.var): 1}

    def _moves(self, expr: Expr) -> bool:
        return any(node is self._loop.var for node in walk_expr(expr))

    def _narrows(self, store: ir.Store) -> bool:
        value = store.value
        narrows = isinstance(value, ir.Cast) and value.dtype == _HALF and value.value.dtype == "float32"
        return narrows and self._is_row(store.indices)

    def _copied(self, store: ir.Store, load: ir.Load, dtype: str) -> Stmt | None:
        """Return a loop that only converts from memory to memory, or None."""
        count = self._loop.extent // LANES
        if isinstance(count, ir.Const) and not count.value:
            return None
        rest = self._loop.extent - count * LANES
        whole = _vectors(
            count, load, store.buffer, dtype, lambda at: (self._at(load.indices, at), self._at(store.indices, at))
        )
        if isinstance(rest, ir.Const) and not rest.value:
            return whole
        return ir.Seq((whole, self._rest(count * LANES, rest)))

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
        block, store, whole = Var("block"), self._store, tb.const(size // LANES)
        assert isinstance(store, ir.Store)
        is_one = isinstance(count, ir.Const) and count.value == 1
        start = first if is_one else first + block * size
        arrays = [Buffer(f"wide_{load.buffer.name}", (size,), "float32", "local") for load in self._loads]

        def change(expr: Expr, lane: Expr) -> Expr:
            return self._widened(expr, arrays, lane)

        def widen(load: ir.Load, array: Buffer) -> Stmt:
            return _vectors(whole, load, array, "float32", lambda at: (self._at(load.indices, start + at), (at,)))

        parts = [widen(load, array) for load, array in zip(self._loads, arrays, strict=True)]
        if self._narrows(store):
            results = Buffer("wide", (size,), "float32", "local")
            arrays.append(results)
            assert isinstance(store.value, ir.Cast)
            computed = ir.Store(results, (self._loop.var - start,), store.value.value)
            parts.append(self._copy(start, tb.const(size), change, computed))
            load = ir.Load(results, (), "float32")
            narrowed = _vectors(
                whole, load, store.buffer, _HALF, lambda at: ((at,), self._at(store.indices, start + at))
            )
            parts.append(narrowed)
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


def _vectors(
    count: Expr, load: ir.Load, buffer: Buffer, dtype: str, places: Callable[[Expr], Sequence[tuple[Expr, ...]]]
) -> Stmt:
    """Return the loop that converts vectors to `dtype`; `places` returns a vector's source and target indices."""
    vector = Var("vector")
    is_one = isinstance(count, ir.Const) and count.value == 1
    indices, to = places(tb.const(0) if is_one else vector * LANES)
    wide = replace(load, indices=indices, dtype=dtypes.vector(load.dtype, LANES))
    store = ir.Store(buffer, to, tb.cast(wide, dtype))
    return store if is_one else For(vector, count, store)
