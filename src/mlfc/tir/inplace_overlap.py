"""Permitted overlap of an output with an input that the same kernel reads for the last time.

Outer loops are followed iteration by iteration, vectorized in numpy; all iterations of deeper loops count as
simultaneous, in any order. Indices become intervals, so the result is valid regardless of conditions. The idea is that
of Blacker, Bridges and Hadfield, Diagonal Memory Optimisation (2019), who trace kernels as they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.visitor import below, own_exprs, own_nodes, walk, walk_expr

_Numbers: TypeAlias = "npt.NDArray[np.int64]"
# limit of individually followed iterations; deeper loops count as simultaneous
_MOST = 1 << 14
_OUTSIDE = -1
# C compilers may assume that pointers to different types do not alias, except pointers to bytes
_BYTES = ("int8", "uint8")
_cache: WeakKeyDictionary[PrimFunc, dict[int, OverlapDistance | None]] = WeakKeyDictionary()
# larger than any index, and far from the limit of int64
_WIDEST = 1 << 40


@dataclass(frozen=True)
class OverlapDistance:
    """Minimum distance from the start of an output to the start of the input that it overwrites."""

    nbytes: int  # minimum in bytes
    step: int = 1  # the distance must be a multiple of this number of bytes, or so large that the two do not overlap

    def allows(self, distance: int) -> bool:
        """Tell whether the output may start `distance` bytes before the input."""
        return distance >= self.nbytes and distance % self.step == 0


def overlap_distance(prim: PrimFunc, position: int) -> OverlapDistance | None:
    """Return how far before an input the output must start so that no byte is written before its last read.

    Returns None if overlap saves nothing: the output may as well end where the input starts.
    """
    cached = _cache.setdefault(prim, {})
    if position not in cached:
        cached[position] = _overlap_distance(prim, prim.inputs[position])
    return cached[position]


@dataclass(frozen=True, eq=False)
class _Accesses:
    """Reads or writes of one buffer: arrays with one element per access and iteration."""

    time: _Numbers  # accesses with equal times are unordered
    low: _Numbers  # bytes from the start of the buffer
    high: _Numbers  # end of the bytes, exclusive
    first: _Numbers  # index of the last axis
    last: _Numbers  # inclusive end of the same range
    owner: _Numbers  # iteration of an outermost loop to which it belongs, -1 for none

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Accesses:
        return _Accesses(*(values[chosen] for values in vars(self).values()))


def _joined(parts: Sequence[_Accesses]) -> _Accesses:
    return _Accesses(*(np.concatenate(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def _overlap_distance(prim: PrimFunc, buffer: Buffer) -> OverlapDistance | None:
    if prim.symbols:  # the memory plan that uses this result requires static sizes
        return None
    if buffer.dtype != prim.output.dtype and not {buffer.dtype, prim.output.dtype}.intersection(_BYTES):
        return None
    follower = _Follower(buffer, prim.output)
    follower.follow(prim.body)
    if not follower.reads or not follower.writes:
        return None
    read, written = _joined(follower.reads), _joined(follower.writes)
    found = OverlapDistance(_overtaken_bytes(read, written))
    if found.nbytes and _keeps_apart(buffer, prim.output, read, written):
        # bytes of different channels do not collide if the distance is a whole number of pixels
        pixel = buffer.shape[-1] * dtypes.nbytes(buffer.dtype)
        owners = np.unique(written.owner)
        most = max(_overtaken_bytes(read.where(read.owner == o), written.where(written.owner == o)) for o in owners)
        whole = -(-most // pixel) * pixel
        if whole < found.nbytes:
            found = OverlapDistance(whole, pixel)
    return found if found.nbytes < prim.output.nbytes else None


def _overtaken_bytes(read: _Accesses, written: _Accesses) -> int:
    """Return the maximum number of bytes by which writes pass the lowest byte that is still to be read."""
    order = np.argsort(read.time, kind="stable")
    still_to_read = np.minimum.accumulate(read.low[order][::-1])[::-1]
    following = np.searchsorted(read.time[order], written.time, side="left")
    relevant = following < len(order)
    if not relevant.any():
        return 0
    return max(0, int((written.high[relevant] - still_to_read[following[relevant]]).max()))


def _keeps_apart(source: Buffer, output: Buffer, read: _Accesses, written: _Accesses) -> bool:
    """Tell whether each iteration of the outermost loops has its own channels, the same in input and output."""
    if source.shape[-1:] != output.shape[-1:] or dtypes.nbytes(source.dtype) != dtypes.nbytes(output.dtype):
        return False
    owner = np.concatenate([read.owner, written.owner])
    if owner.min() == _OUTSIDE or owner.min() == owner.max():
        return False
    first, last = np.concatenate([read.first, written.first]), np.concatenate([read.last, written.last])
    count = int(owner.max()) + 1
    begins, ends = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(begins, owner, first)
    np.maximum.at(ends, owner, last)
    order = np.argsort(begins, kind="stable")
    return bool((ends[order][:-1] < begins[order][1:]).all())


@dataclass(frozen=True, eq=False)
class _Position:
    """State of the walk: variables, time and owning outermost iteration, for each followed iteration."""

    spans: IndexSpans
    time: _Numbers
    owner: _Numbers

    def later(self, moments: int) -> _Position:
        """Return the position advanced by `moments` time steps."""
        return replace(self, time=self.time + moments)

    def iterated(self, loop: ir.For, moments: int, first_owner: int) -> _Position:
        """Return the position inside a followed loop; iterations of an outermost loop become owners."""
        times = _times(loop)
        number = np.tile(np.arange(times), self.spans.count)
        owner = np.repeat(self.owner, times)
        if times > 1:
            owner = np.where(owner == _OUTSIDE, first_owner + number, owner)
        spans = self.spans.with_loop(loop.var, times, loop.step)
        return _Position(spans, np.repeat(self.time, times) + number * moments, owner)

    def inside(self, loop: ir.For) -> _Position:
        """Return the position inside a loop whose iterations count as simultaneous."""
        high = self.spans.of(loop.extent).high
        return replace(
            self, spans=self.spans.with_var(loop.var, IndexSpan(np.zeros_like(high), np.maximum(high - 1, 0)))
        )

    def bound(self, let: ir.Let) -> _Position:
        """Return the position inside a Let."""
        if not dtypes.is_integer(let.var.dtype):
            return self
        return replace(self, spans=self.spans.with_var(let.var, self.spans.of(let.value)))


def _times(loop: ir.For) -> int:
    """Return the iteration count of a loop of constant extent."""
    assert isinstance(loop.extent, ir.Const)
    return len(range(0, int(loop.extent.value), loop.step))


class _Follower:
    """Collects the accesses of two buffers."""

    def __init__(self, source: Buffer, output: Buffer) -> None:
        self.reads: list[_Accesses] = []
        self.writes: list[_Accesses] = []
        self._source, self._output = source, output
        self._owners = 0
        self._moments: dict[int, int] = {}

    def follow(self, body: Stmt) -> None:
        """Collect the accesses of a function's body."""
        self._count(body, 1)
        self._visit(body, _Position(IndexSpans(), np.zeros(1, np.int64), np.full(1, _OUTSIDE)))

    def _count(self, stmt: Stmt, iterations: int) -> int:
        """Record and return the time steps of a statement that runs `iterations` times; 0 without accesses."""
        if isinstance(stmt, ir.For) and isinstance(stmt.extent, ir.Const) and iterations * _times(stmt) <= _MOST:
            moments = _times(stmt) * self._count(stmt.body, iterations * _times(stmt))
        elif isinstance(stmt, ir.For):
            moments = int(any(self._accesses(item) for item in walk(stmt)))
        else:
            moments = sum(self._count(item, iterations) for item in below(stmt))
            if moments or self._accesses(stmt):
                moments += 2
        self._moments[id(stmt)] = moments
        return moments

    def _accesses(self, stmt: Stmt) -> bool:
        """Tell whether the statement itself, without those below it, accesses one of the buffers."""
        if isinstance(stmt, ir.Store) and stmt.buffer is self._output:
            return True
        return any(map(self._is_read, own_nodes(stmt)))

    def _is_read(self, node: Expr) -> bool:
        return isinstance(node, ir.Load) and node.buffer is self._source

    def _visit(self, stmt: Stmt, place: _Position, *, at_once: bool = False) -> None:
        """Collect the accesses of a statement and of those below it; `at_once` treats all as simultaneous."""
        if not at_once and not self._moments[id(stmt)]:
            return
        if isinstance(stmt, ir.For) and not at_once:
            if id(stmt.body) in self._moments:
                inside = place.iterated(stmt, self._moments[id(stmt.body)], self._owners)
                self._owners += _times(stmt)
                self._visit(stmt.body, inside)
                return
            at_once = True
        self._collect(own_exprs(stmt), place)
        # vectors are read and written in several sequential parts
        in_parts = isinstance(stmt, ir.Store) and dtypes.lanes(stmt.value.dtype) != dtypes.lanes(stmt.buffer.dtype)
        later = place if at_once else place.later(1)
        if isinstance(stmt, ir.Store) and stmt.buffer is self._output:
            at = place if in_parts else later
            self.writes.append(_accessed(self._output, stmt.indices, stmt.value.dtype, at))
        place = later
        if isinstance(stmt, ir.Let):
            place = place.bound(stmt)
        elif isinstance(stmt, ir.For):
            place = place.inside(stmt)
        for item in below(stmt):
            self._visit(item, place, at_once=at_once)
            place = place if at_once else place.later(self._moments[id(item)])

    def _collect(self, exprs: Iterable[Expr], place: _Position) -> None:
        for expr in exprs:
            for node in walk_expr(expr):
                if isinstance(node, ir.Load) and self._is_read(node):
                    self.reads.append(_accessed(self._source, node.indices, node.dtype, place))


def _accessed(buffer: Buffer, indices: Sequence[Expr], dtype: str, place: _Position) -> _Accesses:
    """Return the accesses of a load or store of one element, or of consecutive lanes starting at it."""
    # the bounds proof guarantees that accesses are inside the buffers
    spans = [place.spans.of(index).clipped(0, extent - 1) for index, extent in zip(indices, buffer.shape, strict=True)]
    low = high = np.zeros(place.spans.count, np.int64)
    for span, extent in zip(spans, buffer.shape, strict=True):
        low, high = low * extent + span.low, high * extent + span.high
    lanes = dtypes.lanes(dtype) // dtypes.lanes(buffer.dtype)
    size = dtypes.nbytes(buffer.dtype)
    channels, depth = (spans[-1], buffer.shape[-1]) if spans else (place.spans.constant(0, 0), 1)
    last = channels.high + lanes - 1
    first = np.where(last < depth, channels.low, 0)
    return _Accesses(place.time, low * size, (high + lanes) * size, first, last, place.owner)


@dataclass(frozen=True, eq=False)
class IndexSpan:
    """The ends of an interval, inclusive: arrays with one element per iteration."""

    low: _Numbers
    high: _Numbers

    def repeated(self, times: int) -> IndexSpan:
        """Return the span with each iteration expanded to `times` iterations."""
        return IndexSpan(np.repeat(self.low, times), np.repeat(self.high, times))

    def clipped(self, low: int, high: int) -> IndexSpan:
        """Return the part of the span between `low` and `high`, which must not be empty."""
        return IndexSpan(np.clip(self.low, low, high), np.clip(self.high, low, high))


class IndexSpans:
    """Spans of expressions, given those of the variables in scope."""

    def __init__(self, count: int = 1, known: dict[Var, IndexSpan] | None = None) -> None:
        self.count = count
        self._spans = known or {}

    def with_var(self, var: Var, span: IndexSpan) -> IndexSpans:
        """Return the spans with one more variable."""
        return IndexSpans(self.count, {**self._spans, var: span})

    def with_loop(self, var: Var, times: int, step: int) -> IndexSpans:
        """Return the spans inside a loop whose iterations are followed."""
        values = np.tile(np.arange(times, dtype=np.int64) * step, self.count)
        known = {name: span.repeated(times) for name, span in self._spans.items()}
        return IndexSpans(self.count * times, {**known, var: IndexSpan(values, values)})

    def constant(self, low: int, high: int) -> IndexSpan:
        """Return the same interval for all iterations."""
        return IndexSpan(np.full(self.count, low, np.int64), np.full(self.count, high, np.int64))

    def of(self, expr: Expr) -> IndexSpan:
        """Return the span of an integer expression; an unknown one has the range of its dtype."""
        if isinstance(expr, ir.Const):
            return self.constant(int(expr.value), int(expr.value))
        if isinstance(expr, Var):
            return self._spans.get(expr) or self._unknown(expr)
        if isinstance(expr, ir.Binary) and expr.op in _RULES:
            return _RULES[expr.op](self.of(expr.a), self.of(expr.b)) or self._unknown(expr)
        if isinstance(expr, ir.Select):
            then, otherwise = self.of(expr.then), self.of(expr.otherwise)
            return IndexSpan(np.minimum(then.low, otherwise.low), np.maximum(then.high, otherwise.high))
        return self._unknown(expr)

    def _unknown(self, expr: Expr) -> IndexSpan:
        if expr.dtype == "bool":
            return self.constant(0, 1)
        scalar = dtypes.element(expr.dtype)
        low, high = dtypes.limits(scalar) if dtypes.is_integer(scalar) else (-_WIDEST, _WIDEST)
        return self.constant(max(low, -_WIDEST), min(high, _WIDEST))


def _hull(ends: list[_Numbers]) -> IndexSpan:
    return IndexSpan(np.minimum.reduce(ends), np.maximum.reduce(ends))


def _product(a: IndexSpan, b: IndexSpan) -> IndexSpan | None:
    if max(np.abs(end).max(initial=0) for end in (a.low, a.high, b.low, b.high)) > 1 << 30:
        return None
    return _hull([x * y for x in (a.low, a.high) for y in (b.low, b.high)])


def _quotient(a: IndexSpan, b: IndexSpan) -> IndexSpan | None:
    if b.low.min(initial=1) <= 0:
        return None
    return _hull([x // y for x in (a.low, a.high) for y in (b.low, b.high)])


def _remainder(a: IndexSpan, b: IndexSpan) -> IndexSpan | None:
    if b.low.min(initial=1) <= 0 or (b.low != b.high).any():
        return None
    whole = a.low // b.low == a.high // b.low
    return IndexSpan(np.where(whole, a.low % b.low, 0), np.where(whole, a.high % b.low, b.low - 1))


_RULES: dict[str, Callable[[IndexSpan, IndexSpan], IndexSpan | None]] = {
    "add": lambda a, b: IndexSpan(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: IndexSpan(a.low - b.high, a.high - b.low),
    "mul": _product,
    "floordiv": _quotient,
    "floormod": _remainder,
    "min": lambda a, b: IndexSpan(np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    "max": lambda a, b: IndexSpan(np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
}
