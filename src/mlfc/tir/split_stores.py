"""Splitting of loops that compute in 32 bits and store bytes.

C compilers choose the width of all vectors in a loop by its narrowest type. A short loop is therefore cut into loops of
one width each: bytes are loaded into an array of int32, results are computed into another array, which is narrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Buffer, Expr, For, Stmt, Var
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import inside_lets, only, rebuilt, rebuilt_stmt, same_expr, walk_expr

# fewer results do not pay for three loops; from 32 bytes on nothing is gained, and the registers of a cut loop may be
# missing in the loop around it
LEAST_BYTES, MOST_BYTES = 8, 31
MOST_ELEMENTS = 1024  # of a nest: each of its arrays needs four bytes of stack per element

_BYTES = ("int8", "uint8")


def split_stores(stmt: Stmt) -> Stmt:
    """Return `stmt` with its short vectorized loops that store a byte cut by width.

    A whole nest of constant loops is cut at once if it has few elements, because reloading a value within a few cycles
    of its store stalls. Values, and the order of accesses to any one element, stay the same.
    """
    if isinstance(stmt, ir.For):
        parts = _nest(stmt)
        cut = _NestCut(*parts).run() if parts else None
        if cut:
            return cut
    return stmt if isinstance(stmt, ir.Launch) else rebuilt_stmt(stmt, split_stores)


def _nest(loop: For) -> tuple[list[For], list[ir.Let], ir.Store] | None:
    """Return the loops, bindings and store of a perfect nest that is worth cutting, or None."""
    loops: list[For] = []
    stmt: Stmt = loop
    while isinstance(stmt, For) and stmt.step == 1 and isinstance(stmt.extent, ir.Const):
        loops.append(stmt)
        stmt = only(stmt.body)
    lets, stmt = inside_lets(stmt)
    if not loops or loops[-1].kind != "vectorized" or not isinstance(stmt, ir.Store):
        return None
    extents = _extents(loops)
    short = LEAST_BYTES <= extents[-1] <= MOST_BYTES and prod(extents) <= MOST_ELEMENTS
    return (loops, lets, stmt) if short and stmt.value.dtype in _BYTES else None


def _extents(loops: Sequence[For]) -> tuple[int, ...]:
    return tuple(int(loop.extent.value) for loop in loops if isinstance(loop.extent, ir.Const))


class _NestCut:
    """Rewriter of one nest."""

    def __init__(self, loops: list[For], lets: list[ir.Let], store: ir.Store) -> None:
        self._loops, self._lets, self._store = loops, lets, store
        self._exprs = [store.value, *(let.value for let in lets)]
        self._place = [loop.var for loop in loops]
        self._copies: list[tuple[ir.Load, Buffer]] = []  # bytes that are first loaded into an array of int32
        self._narrow: dict[int, Expr] = {}  # replacements of variables that were bytes
        self._ranges = Ranges()
        self._in_arm = False

    def run(self) -> Stmt | None:
        """Return the loops that replace the nest, or None if all operations are on bytes or the value may not fit."""
        if not any(_narrows(node) for expr in self._exprs for node in walk_expr(expr)):
            return None
        bindings = [self._binding(let) for let in self._lets]
        value = self._widened(self._store.value)
        # the position of a store must not depend on computed values, and iterations must not read stored elements
        lets = {id(let.var) for let in self._lets}
        depends = any(id(node) in lets for index in self._store.indices for node in walk_expr(index))
        loads = (node for expr in self._exprs for node in walk_expr(expr) if isinstance(node, ir.Load))
        if value is None or depends or any(load.buffer is self._store.buffer for load in loads):
            return None
        results = self._array("wide")
        place = tuple(self._place)
        body: Stmt = ir.Store(results, place, value)
        for var, term in reversed(bindings):
            body = ir.Let(var, term, body)
        nests = [self._copy_of(ir.Store(buffer, place, tb.cast(load, "int32"))) for load, buffer in self._copies]
        nests.append(_around(self._loops, self._place, body))
        narrowed = tb.cast(tb.load(results, self._place), self._store.value.dtype)
        nests.append(self._copy_of(ir.Store(self._store.buffer, self._store.indices, narrowed)))
        whole: Stmt = ir.Seq(tuple(nests))
        for buffer in (results, *(buffer for _, buffer in self._copies)):
            whole = ir.Allocate(buffer, whole)
        return whole

    def _array(self, name: str) -> Buffer:
        return Buffer(name, _extents(self._loops), "int32", "local")

    def _copy_of(self, store: ir.Store) -> Stmt:
        """Return the loops around `store`, with their own variables."""
        place = [Var(var.name) for var in self._place]
        env = dict(zip(self._place, place, strict=True))
        indices = tuple(substitute(index, env) for index in store.indices)
        return _around(self._loops, place, ir.Store(store.buffer, indices, substitute(store.value, env)))

    def _binding(self, let: ir.Let) -> tuple[Var, Expr]:
        """Return the replacement of a binding; a byte becomes an int32 of the same value."""
        wide = self._widened(let.value) if let.var.dtype in _BYTES else None
        self._ranges.enter_let(let)
        if wide is None:
            return let.var, self._rewritten(let.value)
        var = Var(let.var.name, "int32")
        self._narrow[id(let.var)] = ir.Cast(var, let.var.dtype)
        self._ranges.enter_let(ir.Let(var, wide, ir.Seq(())))
        return var, wide

    def _rewritten(self, expr: Expr) -> Expr:
        """Return `expr` with bytes that are loaded only to be widened loaded as int32."""
        if isinstance(expr, Var):
            return self._narrow.get(id(expr), expr)
        if isinstance(expr, ir.Cast) and expr.dtype == "int32" and expr.value.dtype in _BYTES:
            wide = self._widened(expr.value)
            return ir.Cast(self._rewritten(expr.value), "int32") if wide is None else wide
        if isinstance(expr, ir.Select):  # a load in a branch may be in bounds only if that branch is taken
            condition, before = self._rewritten(expr.condition), self._in_arm
            self._in_arm = True
            then, otherwise = self._rewritten(expr.then), self._rewritten(expr.otherwise)
            self._in_arm = before
            return ir.Select(condition, then, otherwise, expr.dtype)
        return rebuilt(expr, self._rewritten)

    def _widened(self, expr: Expr) -> Expr | None:
        """Return the int32 expression with the same value as a byte expression, or None."""
        if isinstance(expr, ir.Const):
            return tb.const(expr.value)
        if isinstance(expr, Var) and id(expr) in self._narrow:
            return self._widened(self._narrow[id(expr)])
        if isinstance(expr, ir.Cast) and expr.value.dtype == "int32":
            fits = self._ranges.is_within(expr.value, *dtypes.limits(expr.dtype))
            return self._rewritten(expr.value) if fits else None
        if isinstance(expr, ir.Binary) and expr.op in ("min", "max"):
            a, b = self._widened(expr.a), self._widened(expr.b)
            return None if a is None or b is None else tb.binary(expr.op, a, b)
        if isinstance(expr, ir.Load) and not self._in_arm:
            return self._copied(expr)
        return None

    def _copied(self, load: ir.Load) -> Expr | None:
        """Return the element of the int32 array for `load`, or None if its index is computed."""
        own = {id(var) for var in self._place}
        bound = {id(let.var) for let in self._lets}
        used = {id(node) for index in load.indices for node in walk_expr(index) if isinstance(node, Var)}
        if used & bound or not used & own:
            return None
        for known, buffer in self._copies:
            if same_expr(known, load):
                return tb.load(buffer, self._place)
        buffer = self._array(f"wide_{load.buffer.name}")
        self._copies.append((load, buffer))
        return tb.load(buffer, self._place)


def _narrows(expr: Expr) -> bool:
    return isinstance(expr, ir.Cast) and expr.dtype in _BYTES and expr.value.dtype not in _BYTES


def _around(loops: Sequence[For], place: Sequence[Var], body: Stmt) -> Stmt:
    """Return `body` in loops like `loops` over the variables `place`."""
    for loop, var in reversed(list(zip(loops, place, strict=True))):
        body = For(var, loop.extent, body, loop.kind)
    return body
