"""Which loops may run in any order, for their iterations touch different elements, and in which addresses wrap.

LLVM 22 vectorizes some loops wrongly along which an address is taken modulo a power of two, as in copies that repeat
(`llvm/llvm-project` pull request 225086): it takes ``i % 8`` for a counter of three bits, asks whether that counter
wraps around, and drops the question where the answer is known to be yes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mlfc.support import dtypes
from mlfc.support.dims import Extent
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.visitor import children, own_nodes, walk, walk_expr


def of_function(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> Independence:
    """Return what tells the independent loops of a host's function, wherever its callers put output and inputs.

    `aliased`: positions of inputs that the output may overlap beside those of `PrimFunc.inplace`. By how many bytes
    is up to the memory plan, so no loop that stores results is independent.
    """
    same = {prim.inputs[position]: prim.output for position in prim.inplace}
    astray = frozenset({prim.output}) if aliased.difference(prim.inplace) else frozenset[Buffer]()
    return Independence(prim.body, same, astray)


@dataclass(frozen=True)
class _Access:
    buffer: Buffer
    indices: tuple[Expr, ...]
    lanes: int


class Independence:
    """Tells of which loops no iteration touches what another one writes.

    `same`: buffers that may lie where another of their shape lies, each element at the other's, and that other.
    `astray`: buffers that may overlap others somehow: loops that write one are not independent.
    `local_is_own`: whether all iterations reach what the function keeps in local buffers. Work-items have their own,
    so a loop that writes one from outside is not theirs.
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
        self._cache: dict[int, bool] = {}
        with self.ranges.scope():  # ranges of variables stay, conditions go
            for stmt in walk(body):
                if isinstance(stmt, ir.For):
                    self.ranges.enter_loop(stmt)
                elif isinstance(stmt, ir.Let):
                    self.ranges.enter_let(stmt)
                elif isinstance(stmt, ir.Launch):
                    self.ranges.enter_launch(stmt)

    def holds(self, loop: ir.For, private: frozenset[Buffer] = frozenset()) -> bool:
        """Tell whether the iterations of a loop may run in any order, where each has the `private` buffers alone."""
        if private:
            return self._independent(loop, private)
        if id(loop) not in self._cache:
            self._cache[id(loop)] = self._independent(loop)
        return self._cache[id(loop)]

    def are_apart(self, stmts: Sequence[Stmt], private: frozenset[Buffer] = frozenset()) -> bool:
        """Tell whether no statement touches what another one writes, in one iteration of the loops around them.

        Each statement has the `private` buffers alone.
        """
        reaches = [_StatementReach(self, stmt, self._same, private) for stmt in stmts]
        written = frozenset[Buffer]().union(*(reach.written for reach in reaches))
        if not self._astray.isdisjoint(written):
            return False
        return all(reach.is_apart_from(other) for place, reach in enumerate(reaches) for other in reaches[place + 1 :])

    def has_wrapping_address(self, loop: ir.For) -> bool:
        """Tell whether an index below a loop is made of the lower bits of what varies with its variable."""
        return id(loop.var) in self._wrapping

    @cached_property
    def _wrapping(self) -> set[int]:
        return _wrapping(self._body)

    def _independent(self, loop: ir.For, private: frozenset[Buffer] = frozenset()) -> bool:
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
            for access in _accesses(stmt):
                buffer = self._same.get(access.buffer, access.buffer)
                if buffer in written:
                    accesses[buffer].append(access)
        return all(
            any(self._apart(loop, inner, found, axis) for axis in range(len(buffer.shape)))
            or any(self._apart(loop, inner, joined, axis) for axis, joined in self._joined(buffer, found))
            for buffer, found in accesses.items()
        )

    def _joined(self, buffer: Buffer, accesses: Sequence[_Access]) -> Iterator[tuple[int, list[_Access]]]:
        """Yield accesses with one index for two neighbouring axes, and its axis, where the two are made of one number.

        They are its quotient and remainder, as a pixel's row and column are of its number.
        """
        for axis, width in enumerate(buffer.shape[1:]):
            numbers = [self._number(access.indices[axis], access.indices[axis + 1], width) for access in accesses]
            joined = [
                replace(access, indices=(*access.indices[:axis], number, *access.indices[axis + 2 :]))
                for access, number in zip(accesses, numbers, strict=True)
                if number is not None
            ]
            if len(joined) == len(accesses):
                yield axis, joined

    def _number(self, quotient: Expr, remainder: Expr, width: Extent) -> Expr | None:
        """Return of what one index is the quotient by a width, and the other one the remainder."""
        found = [self._only_term(index) for index in (quotient, remainder)]
        number: Expr | None = None
        for term, op in zip(found, ("floordiv", "floormod"), strict=True):
            if not isinstance(term, ir.Binary) or term.op != op or not isinstance(term.b, ir.Const):
                return None
            if term.b.value != width or (
                number is not None and self.ranges.table.number(number) != self.ranges.table.number(term.a)
            ):
                return None
            number = term.a
        return number

    def _only_term(self, index: Expr) -> Expr | None:
        total = self.ranges.table.affine(index)
        if total.constant or list(total.terms.values()) != [1]:
            return None
        return self.ranges.table.exprs[next(iter(total.terms))]

    def _apart(self, loop: ir.For, inner: set[int], accesses: Sequence[_Access], axis: int) -> bool:
        """Tell whether along an axis every iteration has a stretch of indices of its own, the same for all accesses."""
        known: tuple[int, frozenset[tuple[int, int]]] | None = None
        low = high = 0
        for position, access in enumerate(accesses):
            total = self.ranges.table.affine(access.indices[axis])
            own_factor = 0
            fixed: list[tuple[int, int]] = []
            start = end = total.constant
            for number, factor in total.terms.items():
                term = self.ranges.table.exprs[number]
                names = {id(node) for node in walk_expr(term) if isinstance(node, Var)}
                reads = any(isinstance(node, ir.Load) for node in walk_expr(term))
                if term is loop.var:
                    own_factor = factor
                elif id(loop.var) in names or (reads and not names & inner):
                    return False
                elif names & inner:
                    span = self.ranges.term(term, 0)
                    ends = (factor * span.low, factor * span.high)
                    start, end = start + min(ends), end + max(ends)
                else:
                    fixed.append((number, factor))
            if axis == len(access.indices) - 1:
                end += access.lanes - 1
            if not own_factor or known not in (None, (own_factor, frozenset(fixed))):
                return False
            known = own_factor, frozenset(fixed)
            low, high = (start, end) if position == 0 else (min(low, start), max(high, end))
        return known is not None and high - low < abs(known[0]) * loop.step


class _StatementReach:
    """What a statement touches of buffers from outside of it."""

    def __init__(
        self, owner: Independence, stmt: Stmt, same: Mapping[Buffer, Buffer], private: frozenset[Buffer]
    ) -> None:
        self._table, self._ranges = owner.ranges.table, owner.ranges
        stmts = list(walk(stmt))
        own = {item.buffer for item in stmts if isinstance(item, ir.Allocate)} | private
        self._inner = {id(item.var) for item in stmts if isinstance(item, (ir.For, ir.Let))}
        self._accesses: dict[Buffer, list[_Access]] = {}
        self.written: set[Buffer] = set()
        for item in stmts:
            if isinstance(item, ir.Store) and item.buffer not in own:
                self.written.add(same.get(item.buffer, item.buffer))
            for access in _accesses(item):
                if access.buffer not in own:
                    self._accesses.setdefault(same.get(access.buffer, access.buffer), []).append(access)

    def is_apart_from(self, other: _StatementReach) -> bool:
        """Tell whether none of both writes what the other one touches."""
        common = (self.written & other._accesses.keys()) | (other.written & self._accesses.keys())
        return all(
            any(
                _are_disjoint(self._along(buffer, axis), other._along(buffer, axis))
                for axis in range(len(buffer.shape))
            )
            for buffer in common
        )

    def _along(self, buffer: Buffer, axis: int) -> tuple[frozenset[tuple[int, int]], int, int] | None:
        """Return the range of indices along an axis, beside terms from outside; None where it is not known."""
        found: tuple[frozenset[tuple[int, int]], int, int] | None = None
        for access in self._accesses[buffer]:
            total = self._table.affine(access.indices[axis])
            start = end = total.constant
            fixed: list[tuple[int, int]] = []
            for number, factor in total.terms.items():
                term = self._table.exprs[number]
                names = {id(node) for node in walk_expr(term) if isinstance(node, Var)}
                if names & self._inner:
                    span = self._ranges.term(term, 0)
                    ends = (factor * span.low, factor * span.high)
                    start, end = start + min(ends), end + max(ends)
                elif any(isinstance(node, ir.Load) for node in walk_expr(term)):
                    return None
                else:
                    fixed.append((number, factor))
            if axis == len(access.indices) - 1:
                end += access.lanes - 1
            key = frozenset(fixed)
            if found is not None and found[0] != key:
                return None
            found = (key, start, end) if found is None else (key, min(found[1], start), max(found[2], end))
        return found


def _are_disjoint(
    a: tuple[frozenset[tuple[int, int]], int, int] | None, b: tuple[frozenset[tuple[int, int]], int, int] | None
) -> bool:
    return a is not None and b is not None and a[0] == b[0] and (a[2] < b[1] or b[2] < a[1])


def accessed(stmt: Stmt) -> Iterator[Buffer]:
    """Yield the buffer of each access of a statement itself."""
    for access in _accesses(stmt):
        yield access.buffer


def _accesses(stmt: Stmt) -> Iterator[_Access]:
    if isinstance(stmt, ir.Store):
        yield _Access(stmt.buffer, stmt.indices, dtypes.lanes(stmt.value.dtype))
    for node in own_nodes(stmt):
        if isinstance(node, ir.Load):
            yield _Access(node.buffer, node.indices, dtypes.lanes(node.dtype))


def _wrapping(body: Stmt) -> set[int]:
    """Return the ids of loop variables of whose lower bits an index is made.

    Indices that are loaded are data: no compiler knows how they vary.
    """
    stmts = list(walk(body))
    indices = [index for stmt in stmts for access in _accesses(stmt) for index in access.indices]
    # most of what is bound goes into no index
    read = {id(node) for index in indices for node in _computed(index)}
    for stmt in reversed(stmts):
        if isinstance(stmt, ir.Let) and id(stmt.var) in read:
            read.update(map(id, _computed(stmt.value)))
    # the loops that a variable varies with, and those of whose variables' lower bits it is made
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
    """Yield the expression and what is below it, but nothing that is loaded."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if not isinstance(node, ir.Load):
            yield node
            stack.extend(children(node))


def _mentioned(expr: Expr, loops: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Return the loops of all variables that an expression computes with."""
    return frozenset[int]().union(*(loops.get(id(node), ()) for node in _computed(expr) if isinstance(node, Var)))


def _wrapped(
    expr: Expr, varying: Mapping[int, frozenset[int]], wrapping: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    kept = (_mentioned(node, varying) for node in _computed(expr) if _keeps_lower_bits(node))
    return (_mentioned(expr, wrapping) if wrapping else frozenset[int]()).union(*kept)


def _keeps_lower_bits(node: Expr) -> bool:
    if isinstance(node, ir.Cast):
        return dtypes.is_integer(node.dtype) and dtypes.bits(node.dtype) < dtypes.bits(node.value.dtype)
    if not isinstance(node, ir.Binary):
        return False
    return node.op == "and" or (node.op in ("floormod", "truncmod") and _may_be_power_of_two(node.b))


def _may_be_power_of_two(divisor: Expr) -> bool:
    return not isinstance(divisor, ir.Const) or abs(int(divisor.value)).bit_count() == 1
