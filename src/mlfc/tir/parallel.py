"""Parallel parts of host functions, as `Parallel` statements, and a rough cost model that decides if threads pay.

The innermost independent iterations of a part, the *pieces*, are numbered in the order of sequential execution, so
results have the same bits for any distribution over threads: no sum is split. Scratch that every iteration fills before
it reads it (`For.fresh`) is private to a thread. Scratch passed between iterations (`Let.carried`) is private too: each
range of iterations starts by filling it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any, TypeAlias

from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.extents import as_extent
from mlfc.tir.independence import Independence, accessed, of_function
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.unroll import Unroll, with_values
from mlfc.tir.visitor import below, children, own_exprs, own_nodes, rebuilt_stmt, walk, walk_expr

Work: TypeAlias = "float | Expr"
"""Number of scalar instructions, approximately; a float32 expression for dynamic extents."""
GRAIN = 20_000.0
"""Minimum work of a thread, about five microseconds, which is the time to wake one."""
LEAST_OF_MODEL = 2e7
"""Work of a model from which on its kernels use threads by default: half a millisecond or more.

Below that, waking a thread for each run costs as much as it saves.
"""
_LANES = 8  # elements per iteration of a vectorized loop
_VECTOR = 16  # vector elements per instruction
_VECTOR_COST = 0.5  # processors issue two such instructions at a time
_CALL = 12  # of a scalar function, such as the exponential
_UNKNOWN = 16  # iterations of a loop whose extent depends on those around it
_MOST = 1e30


def as_number(work: Work) -> float:
    """Return work as a number; a runtime value counts as large."""
    return work if isinstance(work, (int, float)) else _MOST


def work_of(stmt: Stmt) -> Work:
    """Return the work of a statement; an expression only has variables that are bound outside of it."""
    bound = {item.var for item in walk(stmt) if isinstance(item, (ir.For, ir.Let))}
    return _work(stmt, bound, 1.0)


def _work(stmt: Stmt, bound: Set[Var], lanes: float) -> Work:
    if isinstance(stmt, ir.For):
        inner = _work(stmt.body, bound, _LANES if stmt.kind == "vectorized" else lanes)
        return trips(stmt, bound) * (inner + 2.0 / lanes)
    total: Work = 1.0 / lanes
    if isinstance(stmt, ir.Store):
        total = _of_expr(stmt.value, lanes)
    elif isinstance(stmt, (ir.Let, ir.If)):
        total = sum(_of_expr(expr, lanes) for expr in own_exprs(stmt))
    if isinstance(stmt, ir.Seq):
        return sum((_work(item, bound, lanes) for item in stmt.stmts), total)
    if isinstance(stmt, ir.If):
        then = _work(stmt.then, bound, lanes)
        other = 0.0 if stmt.otherwise is None else _work(stmt.otherwise, bound, lanes)
        # the branch is not known at compile time
        chosen = max(then, other) if isinstance(then, float) and isinstance(other, float) else then + other
        return total + chosen
    if isinstance(stmt, (ir.Let, ir.Allocate)):
        return total + _work(stmt.body, bound, lanes)
    return total


def _of_expr(expr: Expr, lanes: float) -> float:
    """Return the work of a value; address computations are free, as compilers hoist them."""
    if isinstance(expr, (ir.Const, ir.Var)):
        return 0.0
    below = 0.0 if isinstance(expr, ir.Load) else sum(_of_expr(item, lanes) for item in children(expr))
    wide = dtypes.lanes(expr.dtype)
    if wide > 1:
        return below + (0.0 if isinstance(expr, ir.Broadcast) else _VECTOR_COST * -(-wide // _VECTOR))
    return below + (_CALL if isinstance(expr, ir.Call) else 1) / lanes


def trips(loop: ir.For, bound: Set[Var] = frozenset()) -> Work:
    """Return the iteration count of a loop; `bound` are variables whose values are not known outside of it."""
    if isinstance(loop.extent, ir.Const):
        return float(-(-int(loop.extent.value) // loop.step))
    if any(isinstance(node, ir.Load) or node in bound for node in walk_expr(loop.extent)):
        return float(_UNKNOWN)
    return tb.cast(loop.extent, "float32")


def traffic(prim: PrimFunc) -> Mapping[Buffer, int]:
    """Return the maximum number of bytes that one call loads from and stores to each buffer.

    Both branches of a condition count, and a loop counts its maximum iterations. This separates hot from cold buffers
    and does not measure time.
    """
    counter = _Counter()
    counter.count(prim.body, 1)
    return counter.moved


class _Counter:
    def __init__(self) -> None:
        self.moved: Counter[Buffer] = Counter()
        self._ranges = Ranges()

    def count(self, stmt: Stmt, times: int) -> None:
        for node in own_nodes(stmt):
            if isinstance(node, ir.Load):
                self.moved[node.buffer] += times * dtypes.nbytes(node.dtype)
        if isinstance(stmt, ir.Store):
            self.moved[stmt.buffer] += times * dtypes.nbytes(stmt.value.dtype)
        elif isinstance(stmt, ir.For):
            times *= -(-max(0, self._ranges.interval(stmt.extent).high) // stmt.step)
        elif isinstance(stmt, ir.Launch):
            times *= prod(bounds(extent)[1] for extent in stmt.grid) * prod(stmt.block)
        with self._ranges.scope():
            self._ranges.enter(stmt)
            for item in below(stmt):
                self.count(item, times)


PIECES = 64
"""Sufficient number of pieces: more only add cost."""
FEW_PIECES = 7
"""Below this number, pieces balance badly; inner parts may do better, although they share data between threads."""
MOST_COPIED = 64
"""Maximum statements that are duplicated for the case of few pieces, if no part has a static number of pieces.

An image with few rows also has few columns, but not few blocks of channels.
"""
_INNER_SHARE = 0.7
_RESTART_SHARE = 0.25
"""Maximum cost of filling carried scratch, relative to the smallest range that starts with it."""
_AT_ONCE = 8
"""Iterations per piece of loops with carried scratch if a cost is only known at run time."""
_STRIP = 4096
"""Iterations of a long vectorized loop that stay together."""


def parallelize(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> PrimFunc:
    """Return a host function with its parallel parts; `aliased` as in `independence.of_function`.

    Parts that are too small for a second thread are unchanged.
    """
    if prim.external is not None or prim.device is not None:
        return prim
    prim = replace(prim, body=_stripped(prim.body))
    found = _Finder(prim, of_function(prim, aliased)).found(prim.body)
    return Unroll()(replace(prim, body=_without_unused(found)))  # removes constants that no part needs


@dataclass(frozen=True, eq=False)
class _Nest:
    """A statement as numbered pieces: their count, and the statement that runs a range of them."""

    count: Any  # int or Expr
    stmt: Stmt
    inner: tuple[_Nest, ...] = ()  # the body of a loop, or the statements of a sequence
    is_whole: bool = False  # a single piece, regardless of the statement
    each: int = 1  # iterations per piece of a loop with carried scratch
    source: Stmt | None = None  # the original statement, of which `stmt` may be another form

    def sources(self) -> Iterator[Stmt]:
        """Yield the statements of the function that these pieces run."""
        if self.source is not None:
            yield self.source
        for nest in self.inner:
            yield from nest.sources()


class _Finder:
    def __init__(self, prim: PrimFunc, independence: Independence) -> None:
        self._prim, self._independence = prim, independence
        self._users = _users(prim.body)
        self._in_few: set[Stmt] = set()  # the statements of parts with few pieces, which have few pieces too
        # scratch that every statement using it fills first
        self._refilled: set[Buffer] = set()
        for stmt in walk(prim.body):
            if isinstance(stmt, ir.Seq) and (refilled := _refilled(stmt)):
                users = _users(stmt)
                self._refilled |= {buffer for buffer in refilled if users.get(buffer) == self._users.get(buffer)}

    def found(self, stmt: Stmt) -> Stmt:
        """Return a statement with its parallel parts."""
        work = work_of(stmt)
        if isinstance(work, float) and work < 2 * GRAIN:
            return stmt
        is_shareable = isinstance(stmt, (ir.For, ir.Seq)) or _is_carrying(stmt)
        nest = self._nest(stmt, frozenset()) if is_shareable else None
        part = None if nest is None else self._part(nest, work)
        if nest is None or part is None:
            return self._below(stmt)
        count = as_extent(part.count)
        if count is not None and bounds(count)[0] >= FEW_PIECES:
            return part
        is_few = stmt in self._in_few
        self._in_few.update(nest.sources())
        inner = self._below(stmt)
        if isinstance(part.count, ir.Const):
            return inner if _shared_work(inner) >= _INNER_SHARE * as_number(work) else part
        inside = [item for item in walk(inner) if isinstance(item, ir.Parallel)]
        if not inside:
            return part
        is_large = sum(1 for _ in walk(inner)) > MOST_COPIED
        if is_large and not is_few and not any(isinstance(item.count, ir.Const) for item in inside):
            return part
        return inner if is_few else ir.If(tb.binary("ge", part.count, FEW_PIECES), part, inner)

    def _below(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.For) and (stmt.until is not None or stmt.kind == "vectorized"):
            return stmt
        return rebuilt_stmt(stmt, self.found)

    def _part(self, nest: _Nest, work: Work) -> ir.Parallel | None:
        """Return pieces as one part, or None for a single piece or captured values that threads cannot share."""
        if nest.count == 1:
            return None
        own = self._private(nest.stmt)
        if own is None:
            return None
        private, on_stack = own
        first, last = Var("first"), Var("last")
        body = _numbered(nest, first, last)
        for buffer in on_stack:
            body = ir.Allocate(buffer, body)
        part = ir.Parallel(tb.as_expr(nest.count), first, last, body, private, work)
        return part if all(dtypes.lanes(var.dtype) == 1 for var in captured(part)) else None

    def _private(self, stmt: Stmt) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]] | None:
        """Return the scratch and stack buffers private to each thread; None if a part reads what another one left."""
        inside = list(walk(stmt))
        own = {item.buffer for item in inside if isinstance(item, ir.Allocate)}
        uses = _users(stmt)
        filled = dict.fromkeys(buffer for item in inside for buffer in _filled(item))
        if any(buffer.scope == "local" and buffer not in own and buffer not in filled for buffer in uses):
            return None
        private = tuple(buffer for buffer in filled if buffer in uses and buffer not in own)
        if any(uses[buffer] != self._users[buffer] and buffer not in self._refilled for buffer in private):
            return None  # a later statement reads the result of the last iteration
        on_stack = tuple(buffer for buffer in private if buffer.scope == "local")
        return tuple(buffer for buffer in private if buffer not in on_stack), on_stack

    def _nest(self, stmt: Stmt, bound: frozenset[Var]) -> _Nest | None:
        """Return a statement as pieces, or None if it has none; `bound` are variables of the loops around it."""
        nest: _Nest | None = None
        if isinstance(stmt, ir.Let) and stmt.carried:
            nest = self._carrying(stmt, bound)
        elif isinstance(stmt, ir.Let):
            inner = self._nest(stmt.body, bound | {stmt.var})
            nest = inner and _Nest(inner.count, stmt, (inner,))
        elif isinstance(stmt, ir.For):
            nest = self._loop(stmt, bound)
        elif isinstance(stmt, ir.Seq):
            nest = self._sequence(stmt, bound)
        return nest and replace(nest, source=stmt)

    def _loop(self, stmt: ir.For, bound: frozenset[Var]) -> _Nest | None:
        if stmt.until is not None or stmt.step != 1 or stmt.kind in ("vectorized", "unrolled"):
            return None
        if _depends(stmt.extent, bound) or not self._independence.holds(stmt, private=frozenset(stmt.fresh)):
            return None
        count = int(stmt.extent.value) if isinstance(stmt.extent, ir.Const) else stmt.extent
        if count == 0:
            return None
        is_enough = isinstance(count, int) and count >= PIECES
        is_small = as_number(work_of(stmt.body)) < GRAIN / 4
        inner = None if is_enough or is_small else self._nest(stmt.body, bound | {stmt.var})
        if inner is None:
            return _Nest(count, stmt)
        return _Nest(count * inner.count, stmt, (inner,))

    def _carrying(self, stmt: ir.Let, bound: frozenset[Var]) -> _Nest | None:
        """Return the loop that ends a statement as pieces of several iterations, each after a fill of the scratch."""
        *fill, loop = _in_order(stmt.body)
        if not isinstance(loop, ir.For) or loop.step != 1 or loop.until is not None:
            return None
        private = frozenset((*loop.fresh, *stmt.carried))
        if _depends(loop.extent, bound) or not self._independence.holds(loop, private=private):
            return None
        filling, body = work_of(ir.Seq(tuple(fill))), work_of(loop.body)
        each = _AT_ONCE
        if isinstance(filling, float) and isinstance(body, float):
            each = ceil(filling / (body * _RESTART_SHARE))
        extent = int(loop.extent.value) if isinstance(loop.extent, ir.Const) else loop.extent
        count = (extent + (each - 1)) // each
        return _Nest(count, replace(stmt, body=ir.Seq((*fill, loop))), each=each)

    def _sequence(self, stmt: ir.Seq, bound: frozenset[Var]) -> _Nest | None:
        """Return the pieces of all statements in a sequence whose statements access different elements."""
        if not any(isinstance(item, ir.For) or _is_carrying(item) for item in stmt.stmts):
            return None
        items = [item for item in stmt.stmts if not isinstance(item, ir.Comment)]
        if not self._independence.are_apart(items, private=_refilled(stmt)):
            return None
        parts = [self._nest(item, bound) or _Nest(1, item, is_whole=True) for item in items]
        total = sum((part.count for part in parts[1:]), parts[0].count)
        return _Nest(total, ir.Seq(tuple(items)), tuple(parts))


def _users(stmt: Stmt) -> dict[Buffer, int]:
    """Return the number of accesses of each buffer."""
    return Counter(buffer for item in walk(stmt) for buffer in accessed(item))


def _is_carrying(stmt: Stmt) -> bool:
    return isinstance(stmt, ir.Let) and bool(stmt.carried)


def _in_order(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements of nested sequences, without comments."""
    if isinstance(stmt, ir.Seq):
        return tuple(item for part in stmt.stmts for item in _in_order(part))
    return () if isinstance(stmt, ir.Comment) else (stmt,)


def _filled(stmt: Stmt) -> tuple[Buffer, ...]:
    """Return the scratch that a statement's own attributes declare as filled before it is read."""
    if isinstance(stmt, ir.For):
        return stmt.fresh
    return (*stmt.carried, *stmt.fresh) if isinstance(stmt, ir.Let) else ()


def _refilled(stmt: Stmt) -> frozenset[Buffer]:
    """Return the scratch whose previous contents a statement does not read."""
    known = frozenset(_filled(stmt))
    if isinstance(stmt, ir.Let):
        return known | _refilled(stmt.body)
    if not isinstance(stmt, ir.Seq):
        return known
    fills = [_refilled(item) for item in stmt.stmts]
    found = frozenset[Buffer]().union(*fills)
    if not found:  # the common case; collecting accesses is slow
        return found
    used = [{buffer for part in walk(item) for buffer in accessed(part)} for item in stmt.stmts]
    return frozenset(
        buffer
        for buffer in found
        if all(buffer in own or buffer not in seen for own, seen in zip(fills, used, strict=True))
    )


def _shared_work(stmt: Stmt) -> float:
    """Return the work inside parallel parts."""
    if isinstance(stmt, ir.Parallel):
        return as_number(stmt.work)
    total = sum(map(_shared_work, below(stmt)), 0.0)
    return total * as_number(trips(stmt)) if isinstance(stmt, ir.For) and total else total


def _depends(expr: Expr, bound: frozenset[Var]) -> bool:
    return any(isinstance(node, ir.Load) or node in bound for node in walk_expr(expr))


def captured(part: ir.Parallel) -> tuple[Var, ...]:
    """Return the variables that a part captures from outside, in the order of their first use."""
    bound = {part.first, part.last}
    used: dict[Var, None] = {}
    for stmt in walk(part.body):
        if isinstance(stmt, (ir.For, ir.Let)):
            bound.add(stmt.var)
        used.update(dict.fromkeys(node for node in own_nodes(stmt) if isinstance(node, Var)))
    return tuple(var for var in used if var not in bound)


def _numbered(nest: _Nest, low: Expr, high: Expr) -> Stmt:
    """Return the statement that runs the pieces of a nest from `low`, at least 0, up to `high`, exclusive."""
    stmt = nest.stmt
    if nest.is_whole:
        return ir.If(tb.binary("lt", low, high), stmt)
    if isinstance(stmt, ir.Let) and stmt.carried:
        *fill, loop = _in_order(stmt.body)
        assert isinstance(loop, ir.For)
        end = Var("end")
        limit = _let(end, tb.minimum(high * nest.each, loop.extent))
        body = tb.seq([*fill, limit, replace(loop, part=(stmt.var, end))])
        return ir.If(tb.binary("lt", low, high), replace(stmt, value=low * nest.each, body=body))
    if isinstance(stmt, ir.Let):
        return replace(stmt, body=_numbered(nest.inner[0], low, high))
    if isinstance(stmt, ir.For):
        if not nest.inner:
            return replace(stmt, part=(low, high))
        each = nest.inner[0].count
        body = _part_of(nest.inner[0], stmt.var * each, low, high)
        # if `high` is negative, the loop is empty for any rounding of the quotient
        return replace(stmt, body=body, part=(low // each, tb.binary("truncdiv", high + (each - 1), each)))
    stmts: list[Stmt] = []
    start: Any = 0
    for item in nest.inner:
        stmts.append(_part_of(item, start, low, high))
        start = item.count + start
    return ir.Seq(tuple(stmts))


def _part_of(nest: _Nest, start: Any, low: Expr, high: Expr) -> Stmt:
    """Return the statement that runs the pieces within a range of a nest whose pieces are numbered from `start` on."""
    begin, end = Var("begin"), Var("end")
    return tb.seq([
        _let(begin, tb.maximum(low - start, 0)),
        _let(end, tb.minimum(high - start, nest.count)),
        _numbered(nest, begin, end),
    ])  # fmt: skip


def _without_unused(stmt: Stmt) -> Stmt:
    """Return a statement without stack buffers that only its parts use, which have their own."""
    stmt = rebuilt_stmt(stmt, _without_unused)
    if isinstance(stmt, ir.Allocate) and not _uses(stmt.body, stmt.buffer):
        return stmt.body
    return stmt


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, ir.Allocate) and stmt.buffer is buffer:
        return False
    return any(found is buffer for found in accessed(stmt)) or any(_uses(item, buffer) for item in below(stmt))


def _let(var: Var, value: Expr) -> Stmt:
    return ir.Let(var, value, ir.Seq(()))  # `seq` moves the following statements into the body


def _stripped(stmt: Stmt) -> Stmt:
    """Return a statement with its long vectorized outermost loops replaced by loops over strips."""
    if isinstance(stmt, ir.For):
        if stmt.kind != "vectorized" or stmt.step != 1 or not isinstance(stmt.extent, ir.Const):
            return stmt
        total = int(stmt.extent.value)
        if total < 2 * _STRIP:
            return stmt
        strip, inner = Var("strip"), Var(stmt.var.name)
        env: Mapping[Var, Expr] = {stmt.var: strip * _STRIP + inner}
        left = tb.const(_STRIP) if total % _STRIP == 0 else tb.minimum(_STRIP, total - strip * _STRIP)
        loop = ir.For(inner, left, with_values(stmt.body, env), "vectorized")
        return ir.For(strip, tb.const(-(-total // _STRIP)), loop)
    return rebuilt_stmt(stmt, _stripped) if isinstance(stmt, (ir.Seq, ir.Let, ir.If)) else stmt
