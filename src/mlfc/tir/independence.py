"""Proofs that loop iterations access different elements and may run in any order, and detection of wrapping addresses.

LLVM 22 miscompiles the vectorization of some loops with wrapping addresses (`llvm/llvm-project` pull request 225086):
it treats ``i % 8`` as a 3-bit counter, and drops the overflow check although the counter is known to wrap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import NamedTuple

from mlfc.support import dtypes
from mlfc.support.dims import Extent
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.visitor import children, nodes, own_nodes, walk, walk_expr


def of_function(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> Independence:
    """Return the loop independence of a host function, for any permitted placement of output and inputs.

    `aliased`: positions of inputs that the output may overlap in addition to those of `PrimFunc.inplace`. The memory
    plan determines the distance, so no loop that stores results is independent.
    """
    same = {prim.inputs[position]: prim.output for position in prim.inplace}
    astray = frozenset({prim.output}) if aliased.difference(prim.inplace) else frozenset[Buffer]()
    return Independence(prim.body, same, astray)


class _Access(NamedTuple):
    """An access to consecutive elements of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    lanes: int


class _IndexStretch(NamedTuple):
    """An index: a multiple of a loop's variable, loop-invariant terms with their factors, and the range of the rest."""

    factor: int
    fixed: frozenset[tuple[int, int]]
    low: int
    high: int


class Independence:
    """Determines the loops in which no iteration accesses an element that another one writes.

    `same`: buffers that may share the memory of another of the same shape, element by element, and that other buffer.
    `astray`: buffers that may overlap others at an unknown distance: loops that write one are not independent.
    `local_is_own`: true if all iterations can access the function's local buffers. Work-items have their own, so a loop
    that writes one from outside cannot be split among them.
    """

    def __init__(
        self,
        body: Stmt,
        same: Mapping[Buffer, Buffer] | None = None,
        astray: frozenset[Buffer] = frozenset(),
        *,
        local_is_own: bool = True,
    ) -> None:
        self.ranges = Ranges()
        self._same = same or {}
        self._astray = astray
        self._local_is_own = local_is_own
        self._body = body
        self._cache: dict[tuple[int, frozenset[Buffer]], bool] = {}
        self.accesses = cache(_accesses)  # of statements, which are in several loops
        with self.ranges.scope():  # keep the ranges of variables, discard conditions
            for stmt in walk(body):
                self.ranges.enter(stmt)

    def holds(self, loop: ir.For, private: frozenset[Buffer] = frozenset()) -> bool:
        """Tell whether the iterations of a loop, each with its own `private` buffers, may run in any order."""
        key = id(loop), private
        if key not in self._cache:
            self._cache[key] = self._independent(loop, private)
        return self._cache[key]

    def are_apart(self, stmts: Sequence[Stmt], private: frozenset[Buffer] = frozenset()) -> bool:
        """Tell whether no statement accesses elements that another one writes, within an iteration of the outer loops.

        Each statement has its own copy of the `private` buffers.
        """
        reaches = [_StatementReach(self, stmt, self._same, private) for stmt in stmts]
        written = frozenset[Buffer]().union(*(reach.written for reach in reaches))
        if not self._astray.isdisjoint(written):
            return False
        return all(reach.is_apart_from(other) for place, reach in enumerate(reaches) for other in reaches[place + 1 :])

    def has_wrapping_address(self, loop: ir.For) -> bool:
        """Tell whether an index below a loop contains the low bits of a value that varies with the loop's variable."""
        return id(loop.var) in self._wrapping

    @cached_property
    def _wrapping(self) -> set[int]:
        return _wrapping(self._body)

    def _independent(self, loop: ir.For, private: frozenset[Buffer]) -> bool:
        stmts = list(walk(loop.body))
        if any(isinstance(stmt, ir.Launch) for stmt in stmts):
            return False
        own = {stmt.buffer for stmt in stmts if isinstance(stmt, ir.Allocate)} | private
        written = {stmt.buffer for stmt in stmts if isinstance(stmt, ir.Store)} - own
        if not self._astray.isdisjoint(written):
            return False
        if not self._local_is_own and any(buffer.scope == "local" for buffer in written):
            return False
        inner = {id(stmt.var) for stmt in stmts if isinstance(stmt, (ir.For, ir.Let))}
        accesses: dict[Buffer, list[_Access]] = {buffer: [] for buffer in written}
        for stmt in stmts:
            for access in self.accesses(stmt):
                buffer = self._same.get(access.buffer, access.buffer)
                if buffer in written:
                    accesses[buffer].append(access)
        return all(
            any(self._apart(loop, inner, found, axis) for axis in range(len(buffer.shape)))
            or any(self._apart(loop, inner, joined, axis) for axis, joined in self._joined(buffer, found))
            for buffer, found in accesses.items()
        )

    def _joined(self, buffer: Buffer, accesses: Sequence[_Access]) -> Iterator[tuple[int, list[_Access]]]:
        """Yield an axis, and accesses with it and the next one joined, if these are a quotient and its remainder."""
        for axis, width in enumerate(buffer.shape[1:]):
            numbers = [self._number(access.indices[axis], access.indices[axis + 1], width) for access in accesses]
            joined = [
                access._replace(indices=(*access.indices[:axis], number, *access.indices[axis + 2 :]))
                for access, number in zip(accesses, numbers, strict=True)
                if number is not None
            ]
            if len(joined) == len(accesses):
                yield axis, joined

    def _number(self, quotient: Expr, remainder: Expr, width: Extent) -> Expr | None:
        """Return the number whose quotient and remainder by a width are the two indices, or None."""
        table, numbers = self.ranges.table, []
        for index, op in ((quotient, "floordiv"), (remainder, "floormod")):
            total = table.affine(index)
            if total.constant or list(total.terms.values()) != [1]:
                return None
            term = table.exprs[next(iter(total.terms))]
            if not isinstance(term, ir.Binary) or term.op != op or not isinstance(term.b, ir.Const):
                return None
            if term.b.value != width:
                return None
            numbers.append(term.a)
        return numbers[0] if table.number(numbers[0]) == table.number(numbers[1]) else None

    def _apart(self, loop: ir.For, inner: set[int], accesses: Sequence[_Access], axis: int) -> bool:
        """Tell whether the index ranges of the iterations along an axis are disjoint, for all accesses together."""
        found = _hull([self.span(access, axis, inner, loop.var) for access in accesses])
        return found is not None and found.low + abs(found.factor) * loop.step > found.high

    def span(self, access: _Access, axis: int, inner: set[int], var: Var | None = None) -> _IndexStretch | None:
        """Return the span of an index as the `inner` variables vary; None if it is unknown."""
        total = self.ranges.table.affine(access.indices[axis])
        factor, fixed = 0, []
        low = high = total.constant
        for number, coefficient in total.terms.items():
            term = self.ranges.table.exprs[number]
            names = {id(node) for node in walk_expr(term) if isinstance(node, Var)}
            if term is var:
                factor = coefficient
            elif var is not None and id(var) in names:
                return None
            elif names & inner:
                span = self.ranges.term(term, 0)
                ends = (coefficient * span.low, coefficient * span.high)
                low, high = low + min(ends), high + max(ends)
            elif any(isinstance(node, ir.Load) for node in walk_expr(term)):
                return None
            else:
                fixed.append((number, coefficient))
        if axis == len(access.indices) - 1:
            high += access.lanes - 1
        return _IndexStretch(factor, frozenset(fixed), low, high)


def _hull(spans: Sequence[_IndexStretch | None]) -> _IndexStretch | None:
    """Return the span that covers all spans, or None if they differ in more than their ends."""
    known = [span for span in spans if span is not None]
    if len(known) < len(spans) or len({(span.factor, span.fixed) for span in known}) != 1:
        return None
    return known[0]._replace(low=min(span.low for span in known), high=max(span.high for span in known))


class _StatementReach:
    """The accesses of a statement to buffers from outside of it."""

    def __init__(
        self, owner: Independence, stmt: Stmt, same: Mapping[Buffer, Buffer], private: frozenset[Buffer]
    ) -> None:
        self._owner = owner
        stmts = list(walk(stmt))
        own = {item.buffer for item in stmts if isinstance(item, ir.Allocate)} | private
        self._inner = {id(item.var) for item in stmts if isinstance(item, (ir.For, ir.Let))}
        self._accesses: dict[Buffer, list[_Access]] = {}
        self.written: set[Buffer] = set()
        for item in stmts:
            if isinstance(item, ir.Store) and item.buffer not in own:
                self.written.add(same.get(item.buffer, item.buffer))
            for access in owner.accesses(item):
                if access.buffer not in own:
                    self._accesses.setdefault(same.get(access.buffer, access.buffer), []).append(access)

    def is_apart_from(self, other: _StatementReach) -> bool:
        """Tell whether neither of the statements writes elements that the other one accesses."""
        common = (self.written & other._accesses.keys()) | (other.written & self._accesses.keys())

        def are_disjoint(buffer: Buffer, axis: int) -> bool:
            a, b = self._along(buffer, axis), other._along(buffer, axis)
            return a is not None and b is not None and a.fixed == b.fixed and (a.high < b.low or b.high < a.low)

        return all(any(are_disjoint(buffer, axis) for axis in range(len(buffer.shape))) for buffer in common)

    def _along(self, buffer: Buffer, axis: int) -> _IndexStretch | None:
        """Return the range of indices along an axis, plus loop-invariant terms; None if it is unknown."""
        return _hull([self._owner.span(access, axis, self._inner) for access in self._accesses[buffer]])


def accessed(stmt: Stmt) -> Iterator[Buffer]:
    """Yield the buffer of each access of a statement itself, without those below it."""
    if isinstance(stmt, ir.Store):
        yield stmt.buffer
    yield from (node.buffer for node in own_nodes(stmt) if isinstance(node, ir.Load))


def _accesses(stmt: Stmt) -> list[_Access]:
    loads = [node for node in own_nodes(stmt) if isinstance(node, ir.Load)]
    found = [_Access(node.buffer, node.indices, dtypes.lanes(node.dtype)) for node in loads]
    if isinstance(stmt, ir.Store):
        found.insert(0, _Access(stmt.buffer, stmt.indices, dtypes.lanes(stmt.value.dtype)))
    return found


def _wrapping(body: Stmt) -> set[int]:
    """Return the ids of loop variables whose low bits are used in an index; loaded values are data."""
    stmts = list(walk(body))
    if not any(map(_keeps_lower_bits, nodes(body))):
        return set()
    indices = [index for stmt in stmts for access in _accesses(stmt) for index in access.indices]
    # most bindings are not used in indices
    read = {id(node) for index in indices for node in _computed(index)}
    for stmt in reversed(stmts):
        if isinstance(stmt, ir.Let) and id(stmt.var) in read:
            read.update(map(id, _computed(stmt.value)))
    # by variable: the loops that it varies with, and those of which it contains low bits
    varying: dict[int, frozenset[int]] = {}
    wrapping: dict[int, frozenset[int]] = {}
    for stmt in stmts:
        if isinstance(stmt, ir.For):
            varying[id(stmt.var)] = frozenset({id(stmt.var)})
        elif isinstance(stmt, ir.Let) and id(stmt.var) in read:
            varying[id(stmt.var)] = _mentioned(stmt.value, varying)
            if wrapped := _wrapped(stmt.value, varying, wrapping):
                wrapping[id(stmt.var)] = wrapped
    return set().union(*(_wrapped(index, varying, wrapping) for index in indices))


def _computed(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and its subexpressions, except loads and their operands."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if not isinstance(node, ir.Load):
            yield node
            stack.extend(children(node))


def _mentioned(expr: Expr, loops: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Return the loops of all variables in an expression."""
    return frozenset[int]().union(*(loops.get(id(node), ()) for node in _computed(expr) if isinstance(node, Var)))


def _wrapped(
    expr: Expr, varying: Mapping[int, frozenset[int]], wrapping: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    kept = (_mentioned(node, varying) for node in _computed(expr) if _keeps_lower_bits(node))
    return (_mentioned(expr, wrapping) if wrapping else frozenset[int]()).union(*kept)


def _keeps_lower_bits(node: Expr) -> bool:
    if isinstance(node, ir.Cast):
        return dtypes.is_integer(node.dtype) and dtypes.bits(node.dtype) < dtypes.bits(node.value.dtype)
    if not isinstance(node, ir.Binary) or node.op not in ("and", "floormod", "truncmod"):
        return False
    # a dynamic divisor may be a power of two
    return node.op == "and" or not isinstance(node.b, ir.Const) or abs(int(node.b.value)).bit_count() == 1
