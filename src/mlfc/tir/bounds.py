"""Intervals of integer expressions, refined by loops and conditions, and intervals of float expressions.

`Ranges` follows a walk through a function. It compares sums with conditions as sums, so a guard ``y * 2 + k - 1 < n``
bounds the index ``y * 2 + k - 1`` exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import inf, isnan, prod
from typing import Any, NamedTuple

import numpy as np

from mlfc.support import dtypes
from mlfc.support.dims import LARGEST, Dim, Extent, bounds, is_static
from mlfc.tir import ir
from mlfc.tir.affine import Affine, ExprTable
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Buffer, Expr, Stmt
from mlfc.tir.visitor import below, same_expr, walk, walk_expr

_MOST_SELECTS = 8
_NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_ROUNDINGS = ("floor", "ceil", "trunc", "round_even", "round_away")


class Interval(NamedTuple):
    """All integers from `low` to `high`, inclusive."""

    low: int
    high: int

    def within(self, low: int, high: int) -> bool:
        """Tell whether the interval lies inside ``[low, high]``."""
        return low <= self.low and self.high <= high

    def hull(self, other: Interval) -> Interval:
        """Return the smallest interval that contains both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


@cache
def _limits(dtype: str) -> Interval:
    scalar = dtypes.element(dtype)
    return Interval(*dtypes.limits("int64" if dtypes.is_float(scalar) else scalar))


def _combined(op: str, a: Interval, b: Interval) -> Interval:
    """Return the interval of the sums, differences or products of the elements of two intervals."""
    if op == "add":
        return Interval(a.low + b.low, a.high + b.high)
    if op == "sub":
        return Interval(a.low - b.high, a.high - b.low)
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def _least(factors: Sequence[Any]) -> int:
    """Return a lower bound of a product of extents; -1 if a factor may exceed the product, which may be zero."""
    low = min((factor.bounds[0] for factor in factors), default=1)
    return -1 if low == 0 and len(factors) > 1 else low


_CALLS = {
    "clz32": Interval(0, 32),
    # an int32 times a multiplier below 2**31, times 2**-32 at most
    "requantize_down": Interval(-(1 << 30), 1 << 30),
    "requantize_line": Interval(-(1 << 30), 1 << 30),
    "whole_of_plane": Interval(-(1 << 30) - (1 << 16), (1 << 30) + (1 << 16)),
    "saturate_byte": Interval(-128, 127),
}
"""Result intervals of intrinsics, if narrower than their dtype."""


class Ranges:
    """Known intervals and facts of the variables in scope.

    `held`: intervals of the elements of buffers, by the buffers' ids, if narrower than their dtypes; see `tir.held`.
    """

    def __init__(self, held: Mapping[int, Interval] | None = None) -> None:
        self.table = ExprTable()
        self._held = {} if held is None else held
        self._vars: dict[int, Interval] = {}
        self._values: dict[int, Expr] = {}
        self._facts: list[Affine] = []  # each is not negative
        self._sizes: dict[int, Interval] = {}  # intervals of sums and products within extents, by their numbers
        # intervals found with these facts, by an expression's number and the depth: nested selects repeat the same
        # query many times
        self._known: dict[tuple[int, int], Interval] = {}
        self._learned = 0
        self._selects = 0  # that enclose the current expression

    # assumptions ----------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Discard on exit all assumptions made inside."""
        count, known, learned = len(self._facts), self._known, self._learned
        try:
            yield
        finally:
            del self._facts[count:]
            self._known = known if learned == self._learned else {}

    def _learn(self, var: ir.Var, values: Interval) -> None:
        self._vars[id(var)] = values
        self._known, self._learned = {}, self._learned + 1

    def know(self, var: ir.Var, values: Sequence[int | float]) -> None:
        """Record all values that a variable may have."""
        if dtypes.is_integer(var.dtype):
            self._learn(var, Interval(int(min(values)), int(max(values))))

    def know_buffers(self, buffers: Iterable[ir.Buffer]) -> None:
        """Record that the extents and element counts of buffers fit in int32."""
        for buffer in buffers:
            for extent in buffer.shape:
                self._know_extent(extent)
            if not is_static(buffer.shape) and all(bounds(extent)[0] >= 1 for extent in buffer.shape):
                self._know_extent(buffer.size)

    def _know_extent(self, extent: Extent) -> None:
        if not isinstance(extent, Dim):
            return
        whole = as_index(extent)
        self._add_fact(Affine({}, LARGEST).plus(self.table.affine(whole), -1))
        if all(count > 0 and _least(factors) >= 0 for factors, count in extent.terms):
            self._know_parts(whole)

    def _know_parts(self, expr: Expr) -> None:
        """Record that sums and products within an extent do not exceed it."""
        if isinstance(expr, ir.Binary) and expr.op in ("add", "mul"):
            self._sizes[self.table.number(expr)] = Interval(0, LARGEST)
            self._know_parts(expr.a)
            self._know_parts(expr.b)

    def enter_loop(self, loop: ir.For) -> None:
        """Record the range of a loop's variable."""
        extent = self.interval(loop.extent, 1)
        last = max(extent.high - 1, 0)
        if isinstance(loop.extent, ir.Const):
            last -= last % loop.step
        else:
            self._assume_less(loop.var, loop.extent)
        self._learn(loop.var, Interval(0, last))

    def enter_launch(self, launch: ir.Launch) -> None:
        """Record the ranges of the indices of groups and work-items."""
        for var, count in launch.ranges:
            most = bounds(count)[1]
            if isinstance(count, Dim):
                self._assume_less(var, as_index(count))
                most = min(most, LARGEST // prod(launch.block))  # launchers refuse larger ones
            self._learn(var, Interval(0, max(most - 1, 0)))

    def enter_let(self, let: ir.Let) -> None:
        """Record the value of a variable."""
        if dtypes.is_integer(let.var.dtype) and dtypes.lanes(let.var.dtype) == 1:
            self._learn(let.var, self.interval(let.value, 1))
            self._values[id(let.var)] = let.value
            if not any(isinstance(node, ir.Load) for node in walk_expr(let.value)):
                self.table.define(let.var, let.value)

    def enter(self, stmt: ir.Stmt) -> None:
        """Record the values of the variables that a statement binds."""
        if isinstance(stmt, ir.For):
            self.enter_loop(stmt)
        elif isinstance(stmt, ir.Let):
            self.enter_let(stmt)
        elif isinstance(stmt, ir.Launch):
            self.enter_launch(stmt)

    @contextmanager
    def inside(self, stmt: ir.Stmt, item: ir.Stmt) -> Iterator[None]:
        """Record the conditions of a statement directly below another one, and discard them on exit."""
        with self.scope():
            if isinstance(stmt, ir.If):
                self.assume(stmt.condition, item is stmt.then)
            else:
                self.enter(stmt)
            yield

    def assume(self, condition: Expr, holds: bool = True) -> None:
        """Record that a condition is true, or false."""
        if not isinstance(condition, ir.Binary):
            return
        op, a, b = condition.op, condition.a, condition.b
        if op == ("land" if holds else "lor"):
            self.assume(a, holds)
            self.assume(b, holds)
            return
        if op in ("eq", "ne") and a.dtype == "bool" and isinstance(b, ir.Const):
            self.assume(a, (op == "eq") == (bool(b.value) == holds))
            return
        if op not in _NEGATED or not dtypes.is_integer(a.dtype):
            return
        op = op if holds else _NEGATED[op]
        if op == "lt":
            self._assume_less(a, b)
        elif op == "gt":
            self._assume_less(b, a)
        if op in ("le", "eq"):
            self._add_fact(self.table.affine(b).plus(self.table.affine(a), -1))
        if op in ("ge", "eq"):
            self._add_fact(self.table.affine(a).plus(self.table.affine(b), -1))

    def _assume_less(self, a: Expr, b: Expr) -> None:
        fact = self.table.affine(b).plus(self.table.affine(a), -1)
        self._add_fact(Affine(fact.terms, fact.constant - 1))

    def _add_fact(self, fact: Affine) -> None:
        """Record ``fact >= 0``, and the same for each operand of a min or max that only increases it."""
        self._facts.append(fact)
        self._known = {}
        for number, coefficient in fact.terms.items():
            expr = self.table.exprs[number]
            if isinstance(expr, ir.Binary) and expr.op == ("min" if coefficient > 0 else "max"):
                rest = fact.plus(Affine({number: 1}), -coefficient)
                for operand in (expr.a, expr.b):
                    self._add_fact(rest.plus(self.table.affine(operand), coefficient))

    def may_hold(self) -> bool:
        """Tell whether the assumptions are satisfiable; if not, the code is unreachable."""
        return all(self._sum_interval(fact, 0).high >= 0 for fact in self._facts)

    # queries --------------------------------------------------------------------------------------------

    def interval(self, expr: Expr, depth: int = 1) -> Interval:
        """Return an interval of an integer expression; up to `depth` conditions are combined to refine each end."""
        limits = _limits(expr.dtype)
        if not dtypes.is_integer(expr.dtype) or dtypes.lanes(expr.dtype) > 1:
            return limits
        found = self._sum_interval(self.table.affine(expr), depth)
        # a value outside the range of the dtype may wrap to any value
        return found if found.within(limits.low, limits.high) else limits

    def is_within(self, expr: Expr, low: int, high: int) -> bool:
        """Tell whether an expression is provably in ``[low, high]``."""
        return any(self.interval(expr, depth).within(low, high) for depth in (0, 1, 2))

    def is_index(self, expr: Expr, last: Extent) -> bool:
        """Tell whether an expression is provably in ``[0, last]``, where `last` may be dynamic."""
        if isinstance(last, int):
            return self.is_within(expr, 0, last)
        total = self.table.affine(expr)
        rest = self.table.affine(as_index(last)).plus(total, -1)
        return all(any(self._sum_interval(side, depth).low >= 0 for depth in (0, 1, 2)) for side in (total, rest))

    def result(self, expr: ir.Binary) -> Interval:
        """Return the interval of a sum, difference or product of integers before it wraps to its dtype.

        Operands that may be outside the dtype are assumed to wrap to any value: the query concerns each operation
        alone, as compilers see it, not the whole sum.
        """
        known = self._sizes.get(self.table.number(expr)) if self._sizes else None
        return known or _combined(expr.op, self.interval(expr.a), self.interval(expr.b))

    def added(self, store: ir.Store) -> Interval | None:
        """Return the interval of the values that a store adds to its element; None if it does not accumulate."""
        total = self.table.affine(store.value)
        for number, coefficient in total.terms.items():
            term = self.table.exprs[number]
            if not isinstance(term, ir.Load) or term.buffer is not store.buffer or coefficient != 1:
                continue
            if all(map(same_expr, term.indices, store.indices)):
                rest = Affine({key: value for key, value in total.terms.items() if key != number}, total.constant)
                return self._sum_interval(rest, 1)
        return None

    def _sum_interval(self, total: Affine, depth: int) -> Interval:
        low = high = total.constant
        for number, coefficient in total.terms.items():
            key = number, depth
            if (term := self._known.get(key)) is None:
                term = self._known[key] = self.term(self.table.exprs[number], depth)
            ends = (coefficient * term.low, coefficient * term.high)
            low, high = low + min(ends), high + max(ends)
        if depth and total.terms:
            plain: Interval | None = None
            for fact in self._facts:
                lower, upper = self._bounds_by(total, fact, depth)
                if lower is None or upper is None:
                    plain = plain or self._sum_interval(total, 0)
                    lower = plain.low if lower is None else lower
                    upper = plain.high if upper is None else upper
                low, high = max(low, lower), min(high, upper)
            for side in self._without_extrema(total):
                low, high = max(low, side.low), min(high, side.high)
        return Interval(low, max(low, high))

    def _without_extrema(self, total: Affine) -> Iterator[Interval]:
        """Yield the intervals of a sum implied by each operand of its min and max: ``max(x, 0) - x`` is at least 0."""
        limits = _limits("int64")
        for number, coefficient in total.terms.items():
            expr = self.table.exprs[number]
            if not isinstance(expr, ir.Binary) or expr.op not in ("min", "max"):
                continue
            rest = total.plus(Affine({number: 1}), -coefficient)
            for operand in (expr.a, expr.b):
                end = self._sum_interval(rest.plus(self.table.affine(operand), coefficient), 0)
                above = (expr.op == "max") == (coefficient > 0)
                yield Interval(end.low, limits.high) if above else Interval(limits.low, end.high)

    def _bounds_by(self, total: Affine, fact: Affine, depth: int) -> tuple[int | None, int | None]:
        """Return the ends of ``total`` implied by adding or subtracting ``fact >= 0``; None for an unbounded end."""
        low: int | None = None
        high: int | None = None
        for number, coefficient in fact.terms.items():
            own = total.terms.get(number, 0)
            if own == 0 or own % coefficient:
                continue
            # adding factor * fact cancels this term; the factor's sign determines the bounded end
            factor = -own // coefficient
            moved = self._sum_interval(total.plus(fact, factor), depth - 1)
            if factor > 0:
                high = moved.high if high is None else min(high, moved.high)
            else:
                low = moved.low if low is None else max(low, moved.low)
        return low, high

    def term(self, expr: Expr, depth: int) -> Interval:
        """Return the interval of an expression that is not a sum."""
        if isinstance(expr, ir.Var):
            if expr.symbol is not None:
                return Interval(expr.symbol.low, expr.symbol.high)
            return self._vars.get(id(expr), _limits(expr.dtype))
        if isinstance(expr, ir.Binary):
            return self._binary(expr, depth)
        if isinstance(expr, ir.Select):
            return self._select(expr, depth)
        if isinstance(expr, ir.Cast) and not dtypes.is_float(expr.value.dtype):
            inner = self.interval(expr.value, depth)
            limits = _limits(expr.dtype)
            return inner if inner.within(limits.low, limits.high) else limits
        if isinstance(expr, ir.Load):
            return self._held.get(id(expr.buffer), _limits(expr.dtype))
        if isinstance(expr, ir.Call) and expr.name == "within":
            known, limit = self.interval(expr.args[0], depth), expr.args[1]
            if not isinstance(limit, ir.Const):
                return known
            return Interval(max(-int(limit.value), known.low), min(int(limit.value), known.high))
        return _CALLS.get(expr.name, _limits(expr.dtype)) if isinstance(expr, ir.Call) else _limits(expr.dtype)

    def _select(self, expr: ir.Select, depth: int) -> Interval:
        arms = []
        self._selects += 1
        # facts with selects lead to other facts with selects, without end
        inner = max(depth, 1) if self._selects <= _MOST_SELECTS else depth
        for arm, holds in ((expr.then, True), (expr.otherwise, False)):
            with self.scope():
                self.assume(expr.condition, holds)
                arms.append(self.interval(arm, inner))
        self._selects -= 1
        return arms[0].hull(arms[1])

    def _binary(self, expr: ir.Binary, depth: int) -> Interval:
        if expr.op in ir.COMPARISONS:
            return Interval(0, 1)
        a, b = self.interval(expr.a, depth), self.interval(expr.b, depth)
        if expr.op == "min":
            return Interval(min(a.low, b.low), min(a.high, b.high))
        if expr.op == "max":
            return Interval(max(a.low, b.low), max(a.high, b.high))
        if expr.op == "mul":
            known = self._sizes.get(self.table.number(expr)) if self._sizes else None
            return known or _combined("mul", a, b)
        if expr.op in ("floordiv", "truncdiv") and b.low > 0 and (expr.op == "floordiv" or a.low >= 0):
            ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(ends), max(ends))
        if expr.op in ("floormod", "truncmod") and b.low > 0 and (expr.op == "floormod" or a.low >= 0):
            if a.low >= 0:
                return a if a.high < b.low else Interval(0, min(a.high, b.high - 1))
            return Interval(0, b.high - 1)
        if expr.op == "and" and (a.low >= 0 or b.low >= 0):
            return Interval(0, min(x.high for x in (a, b) if x.low >= 0))
        if expr.op == "shr" and b.within(0, 63):
            ends = [x >> y for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(ends), max(ends))
        if expr.op == "shl" and b.within(0, 63):
            ends = [x << y for x in (a.low, a.high) for y in (b.low, b.high)]
            if Interval(min(ends), max(ends)).within(*dtypes.limits(expr.dtype)):
                return Interval(min(ends), max(ends))
        return _limits(expr.dtype)


@dataclass(frozen=True)
class FloatRange:
    """All numbers from `low` to `high`, inclusive, and NaN if `nan`."""

    low: float
    high: float
    nan: bool

    def fits(self, dtype: str) -> bool:
        """Tell whether an integer dtype can represent all truncated numbers of the range."""
        low, high = dtypes.limits(dtypes.element(dtype))
        return not self.nan and low - 1 < self.low and self.high < high + 1


_ANYTHING = FloatRange(-inf, inf, nan=True)


def float_range(expr: Expr) -> FloatRange:
    """Return the range of a float expression."""
    if isinstance(expr, ir.Const):
        value = _rounded(expr.value, expr.dtype)
        return _ANYTHING if isnan(value) else FloatRange(value, value, nan=False)
    if isinstance(expr, ir.Cast):
        inner = dtypes.element(expr.value.dtype)
        if inner == "bool":
            return FloatRange(0.0, 1.0, nan=False)
        limits = FloatRange(*dtypes.limits(inner), nan=False) if dtypes.is_integer(inner) else float_range(expr.value)
        return FloatRange(_rounded(limits.low, expr.dtype), _rounded(limits.high, expr.dtype), limits.nan)
    if isinstance(expr, ir.Call) and expr.name == "within" and isinstance(expr.args[1], ir.Const):
        return FloatRange(-float(expr.args[1].value), float(expr.args[1].value), nan=False)
    if isinstance(expr, ir.Call) and expr.name in _ROUNDINGS:
        known = float_range(expr.args[0])  # rounding does not change integers, so integral ends remain valid
        low, high = (end if float(end).is_integer() else edge for end, edge in ((known.low, -inf), (known.high, inf)))
        return FloatRange(low, high, known.nan)
    if isinstance(expr, ir.Binary) and expr.op in ("min", "max"):
        # ``a < b ? a : b`` or ``a > b ? a : b`` is b if either is NaN
        a, b, pick = float_range(expr.a), float_range(expr.b), min if expr.op == "min" else max
        low, high = pick(a.low, b.low), pick(a.high, b.high)
        return FloatRange(min(low, b.low), max(high, b.high), b.nan) if a.nan else FloatRange(low, high, b.nan)
    return _ANYTHING


def _rounded(value: float, dtype: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtypes.to_numpy(dtypes.element(dtype))))


_ROUNDS = 3
"""Maximum rounds of propagation of intervals between buffers."""


def held_intervals(body: Stmt) -> dict[int, Interval]:
    """Return the intervals of the elements of a function's own buffers of wide integers, by the buffers' ids.

    An accumulator grows by a bounded amount in each iteration around its store. If the total and its start fit into the
    dtype, sums cannot overflow for any data; printers assume arbitrary elements in other buffers.
    """
    own = [stmt for stmt in walk(body) if isinstance(stmt, ir.Store) and _is_accumulator(stmt.buffer)]
    known: dict[int, Interval] = {}
    for _ in range(_ROUNDS if own else 0):
        survey = _Survey(known)
        survey.stmt(body)
        found = survey.intervals()
        if found == known:
            break
        known = found
    return known


def _is_accumulator(buffer: Buffer) -> bool:
    return buffer.scope != "param" and buffer.dtype in ("int32", "int64")


@dataclass(eq=False)
class _BufferContent:
    """Values stored in a buffer: those independent of its contents, and the total of the added ones."""

    dtype: str
    start: Interval | None = None
    low: int = 0
    high: int = 0

    def interval(self) -> Interval | None:
        """Return the interval of an element; None if it does not fit."""
        start = self.start or Interval(0, 0)
        found = Interval(start.low + self.low, start.high + self.high)
        return found if found.within(*dtypes.limits(self.dtype)) else None


@dataclass(eq=False)
class _Survey:
    """One walk over a function, with the results of the previous walk."""

    known: dict[int, Interval]
    contents: dict[int, _BufferContent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ranges = Ranges(self.known)
        self._loops: list[tuple[ir.Var, int]] = []
        self._outside: dict[int, int] = {}

    def intervals(self) -> dict[int, Interval]:
        """Return the intervals of the buffers whose interval is narrower than their dtype."""
        found = {key: content.interval() for key, content in self.contents.items()}
        return {key: interval for key, interval in found.items() if interval is not None}

    def stmt(self, stmt: Stmt) -> None:
        """Walk over a statement."""
        if isinstance(stmt, ir.Store) and _is_accumulator(stmt.buffer):
            self._store(stmt)
        elif isinstance(stmt, ir.For):
            self._loops.append((stmt.var, -(-max(self._ranges.interval(stmt.extent).high, 0) // stmt.step)))
        elif isinstance(stmt, ir.Allocate):
            self._outside[id(stmt.buffer)] = len(self._loops)
        for item in below(stmt):
            with self._ranges.inside(stmt, item):
                self.stmt(item)
        if isinstance(stmt, ir.For):
            self._loops.pop()

    def _store(self, stmt: ir.Store) -> None:
        content = self.contents.setdefault(id(stmt.buffer), _BufferContent(dtypes.element(stmt.buffer.dtype)))
        added = self._ranges.added(stmt)
        if added is None:
            value = self._ranges.interval(stmt.value)
            content.start = value if content.start is None else content.start.hull(value)
            return
        # maximum number of additions to the same element during the buffer's lifetime: some loops use one element per
        # iteration
        around = self._loops[self._outside.get(id(stmt.buffer), 0) :]
        times = prod(trips for var, trips in around if not any(index is var for index in stmt.indices))
        content.low += min(0, added.low) * times
        content.high += max(0, added.high) * times
