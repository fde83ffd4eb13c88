"""Merging of functions of the same structure into one: the differences become parameters.

The functions are walked in parallel. Buffers are seen as one-dimensional and index arithmetic as sums, so strides,
offsets and extents are plain numbers. Everything else must be equal, operator by operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir import builder as tb
from mlfc.tir.affine import Affine, ExprTable
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlfc.tir.parameters import Number, ParameterPool, SharedFunction
from mlfc.tir.visitor import children, nodes, rebuilt

Exprs: TypeAlias = "Sequence[Expr]"
Node = TypeVar("Node")
Kind = TypeVar("Kind")

_BITS = ("float16", "bfloat16")
# approximate code bytes of a node, of loading a parameter, and of a parameter's value
_NODE_BYTES, _LOAD_BYTES, _VALUE_BYTES = 2, 6, 2


class _DifferError(Exception):
    """The functions have no common form."""


def merge_kernels(functions: Sequence[PrimFunc]) -> SharedFunction | None:
    """Return a function of which all `functions` are specializations, or None if they differ in structure."""
    try:
        return _Merger(functions).run()
    except _DifferError:
        return None


class _MergedFunction:
    """State of one of the functions during the walk."""

    def __init__(self) -> None:
        self.table = ExprTable()
        self.buffers: dict[Buffer, Buffer] = {}
        self.vars: dict[Var, Var] = {}
        self._index_vars: set[Var] = set()

    def is_index(self, expr: Expr) -> bool:
        """Tell whether an expression only contains loop variables, so that its sums may be split and reordered."""
        if isinstance(expr, Var):
            return expr in self._index_vars
        if isinstance(expr, ir.Const):
            return expr.dtype == "int32"
        if isinstance(expr, ir.Binary):
            return expr.dtype == "int32" and self.is_index(expr.a) and self.is_index(expr.b)
        return False

    def bind(self, var: Var, shared: Var, *, index: bool) -> None:
        """Rename `var` to `shared` from now on."""
        self.vars[var] = shared
        if index:
            self._index_vars.add(var)

    def statements(self, stmt: Stmt) -> list[Stmt]:
        """Return a block as a list, without comments; bindings of plain sums are inlined."""
        if isinstance(stmt, ir.Seq):
            return [item for part in stmt.stmts for item in self.statements(part)]
        if isinstance(stmt, ir.Let) and self.is_index(stmt.value):
            terms = self.table.affine(stmt.value).terms
            if all(isinstance(self.table.exprs[number], Var) for number in terms):
                self._index_vars.add(stmt.var)
                self.table.define(stmt.var, stmt.value)
                return self.statements(stmt.body)
        if isinstance(stmt, ir.Comment) and not isinstance(stmt, (ir.Fence, ir.Require)):
            return []
        return [stmt]

    def flat(self, buffer: Buffer, indices: Sequence[Expr]) -> Affine:
        """Return the flat position of the element at `indices`."""
        total = Affine({}, 0)
        for extent, index in zip(buffer.shape, indices, strict=True):
            if not self.is_index(index):
                raise _DifferError
            total = total.times(extent).plus(self.table.affine(index))
        return total


class _Merger:
    def __init__(self, functions: Sequence[PrimFunc]) -> None:
        self._functions = functions
        self._members = [_MergedFunction() for _ in functions]
        self._pool = ParameterPool()
        self._sizes: dict[Buffer, tuple[int, ...]] = {}

    def run(self) -> SharedFunction:
        first = self._functions[0]
        if any(prim.symbols for prim in self._functions):  # buffers with dynamic sizes cannot be flattened
            raise _DifferError
        groups = [(prim.inputs, prim.constants, (prim.output,), prim.scratch) for prim in self._functions]
        inputs, constants, outputs, scratch = (self._declared(group) for group in zip(*groups, strict=True))
        offsets = self._same([list(prim.scratch_offsets) for prim in self._functions], len(scratch))
        places = tuple(self._pool.number(values, "int32", "scratch_offset") for values in offsets)
        body = self._block([prim.body for prim in self._functions])
        inplace = sorted({position for prim in self._functions for position in prim.inplace})
        prim = replace(
            first, inputs=inputs, constants=constants, output=outputs[0], scratch=scratch, body=body,
            inplace=tuple(inplace), macs=0,
        )  # fmt: skip
        return SharedFunction(prim, tuple(self._pool.parameters), tuple(self._functions), self._sizes, places)

    # equality requirements ------------------------------------------------------------------------------

    @staticmethod
    def _require(holds: bool) -> None:
        if not holds:
            raise _DifferError

    def _alike(self, nodes: Sequence[Node], *traits: str) -> Node:
        """Require nodes of one class with the same values of `traits`; return the first."""
        first = nodes[0]
        for node in nodes[1:]:
            self._require(type(node) is type(first))
            self._require(all(getattr(node, trait) == getattr(first, trait) for trait in traits))
        return first

    def _same(self, rows: Sequence[Sequence[int]], length: int) -> list[tuple[int, ...]]:
        self._require(all(len(row) == length for row in rows))
        return list(zip(*rows, strict=True))

    # declarations ---------------------------------------------------------------------------------------

    def _declared(self, groups: Sequence[Sequence[Buffer]]) -> tuple[Buffer, ...]:
        self._require(all(len(group) == len(groups[0]) for group in groups))
        return tuple(map(self._declare, zip(*groups, strict=True)))

    def _declare(self, buffers: Sequence[Buffer]) -> Buffer:
        first = buffers[0]
        kind = (first.dtype, first.scope, first.holds)
        self._require(all((buffer.dtype, buffer.scope, buffer.holds) == kind for buffer in buffers))
        sizes = tuple(buffer.size for buffer in buffers)
        shared = Buffer(first.name, (max(sizes),), *kind)
        self._sizes[shared] = sizes
        for member, buffer in zip(self._members, buffers, strict=True):
            member.buffers[buffer] = shared
        return shared

    def _bind(self, variables: Sequence[Var], *, index: bool) -> Var:
        first = variables[0]
        self._require(all(var.dtype == first.dtype for var in variables))
        shared = Var(first.name, first.dtype)
        for member, var in zip(self._members, variables, strict=True):
            member.bind(var, shared, index=index)
        return shared

    def _buffer(self, buffers: Sequence[Buffer]) -> Buffer:
        found = {member.buffers[buffer] for member, buffer in zip(self._members, buffers, strict=True)}
        self._require(len(found) == 1)
        return found.pop()

    # statements -----------------------------------------------------------------------------------------

    def _block(self, blocks: Sequence[Stmt]) -> Stmt:
        lists = [member.statements(block) for member, block in zip(self._members, blocks, strict=True)]
        self._require(all(len(items) == len(lists[0]) for items in lists))
        return ir.Seq(tuple(map(self._stmt, zip(*lists, strict=True))))

    def _stmt(self, stmts: Sequence[Stmt]) -> Stmt:
        first = stmts[0]
        if isinstance(first, ir.For):
            return self._loop(_all(stmts, ir.For))
        if isinstance(first, ir.Store):
            return self._store(_all(stmts, ir.Store))
        if isinstance(first, ir.Let):
            return self._let(_all(stmts, ir.Let))
        if isinstance(first, ir.If):
            return self._branch(_all(stmts, ir.If))
        if isinstance(first, ir.Allocate):
            allocations = _all(stmts, ir.Allocate)
            return ir.Allocate(
                self._declare([item.buffer for item in allocations]), self._block([item.body for item in allocations])
            )
        self._alike(stmts, "text")
        buffers = [stmt.buffer for stmt in stmts if isinstance(stmt, (ir.Fence, ir.Prefetch)) and stmt.buffer]
        if buffers and isinstance(first, (ir.Fence, ir.Prefetch)):
            self._require(len(buffers) == len(stmts))
            return replace(first, buffer=self._buffer(buffers))
        return first

    def _loop(self, loops: Sequence[ir.For]) -> Stmt:
        first = self._alike(loops, "kind", "step")
        extent = self._expr([loop.extent for loop in loops], f"{first.var.name}_count")
        # only loops of known length can be unrolled, and only then are elements known to be accessed once
        self._require(first.kind != "unrolled" or isinstance(extent, ir.Const))
        var = self._bind([loop.var for loop in loops], index=True)
        conditions = [loop.until for loop in loops if loop.until is not None]
        self._require(len(conditions) in (0, len(loops)))
        until = self._expr(conditions, "until") if conditions else None
        return ir.For(var, extent, self._block([loop.body for loop in loops]), first.kind, first.step, until)

    def _let(self, lets: Sequence[ir.Let]) -> Stmt:
        index = {member.is_index(let.value) for member, let in zip(self._members, lets, strict=True)}
        self._require(len(index) == 1)
        value = self._expr([let.value for let in lets], lets[0].var.name)
        var = self._bind([let.var for let in lets], index=index.pop())
        return ir.Let(var, value, self._block([let.body for let in lets]))

    def _branch(self, branches: Sequence[ir.If]) -> Stmt:
        condition = self._expr([branch.condition for branch in branches], "limit")
        then = self._block([branch.then for branch in branches])
        others = [branch.otherwise for branch in branches if branch.otherwise is not None]
        self._require(len(others) in (0, len(branches)))
        return ir.If(condition, then, self._block(others) if others else None)

    def _store(self, stores: Sequence[ir.Store]) -> Stmt:
        buffer = self._buffer([store.buffer for store in stores])
        flat = [member.flat(store.buffer, store.indices) for member, store in zip(self._members, stores, strict=True)]
        value = self._expr([store.value for store in stores], buffer.name)
        return ir.Store(buffer, (self._sum(flat, buffer.name),), value)

    # expressions ----------------------------------------------------------------------------------------

    def _expr(self, exprs: Exprs, hint: str = "number") -> Expr:
        """Return the common form; `hint` names differing numbers."""
        index = [member.is_index(expr) for member, expr in zip(self._members, exprs, strict=True)]
        if all(index):
            sums = [member.table.affine(expr) for member, expr in zip(self._members, exprs, strict=True)]
            return self._sum(sums, hint)
        self._require(not any(index))
        first = exprs[0]
        if isinstance(first, ir.Call) and first.name in block_intrinsics.NAMES:
            return self._run(_all(exprs, ir.Call))
        self._alike(exprs, "dtype")
        if isinstance(first, ir.Const):
            return self._literal(_all(exprs, ir.Const), hint)
        if isinstance(first, Var):
            found = {member.vars.get(var) for member, var in zip(self._members, _all(exprs, Var), strict=True)}
            self._require(len(found) == 1)
            return found.pop() or first
        if isinstance(first, ir.Load):
            return replace(self._element(_all(exprs, ir.Load)), dtype=first.dtype)
        return self._operation(exprs, hint)

    def _literal(self, literals: Sequence[ir.Const], hint: str) -> Expr:
        values = [literal.value for literal in literals]
        same = all(repr(value) == repr(values[0]) for value in values)
        # C writes 16-bit floats as bits, and non-finite values as macros of math.h
        self._require(same or (literals[0].dtype not in _BITS and all(map(math.isfinite, values))))
        return self._pool.number(values, literals[0].dtype, hint)

    def _operation(self, exprs: Exprs, hint: str) -> Expr:
        first = exprs[0]
        if isinstance(first, ir.Binary):
            self._alike(exprs, "op")
        elif isinstance(first, ir.Call):
            self._alike(exprs, "name")
        operands = [children(expr) for expr in exprs]
        self._require(all(len(row) == len(operands[0]) for row in operands))
        rows = zip(*operands, strict=True)
        return rebuilt(first, lambda _: self._expr(next(rows), hint))

    def _element(self, loads: Sequence[ir.Load]) -> ir.Load:
        """Return the load of the element at which the loads start."""
        buffer = self._buffer([load.buffer for load in loads])
        flat = [member.flat(load.buffer, load.indices) for member, load in zip(self._members, loads, strict=True)]
        return ir.Load(buffer, (self._sum(flat, buffer.name),), buffer.dtype)

    def _run(self, calls: Sequence[ir.Call]) -> Expr:
        """Return the call with the lengths of its runs as arguments if they differ."""
        first = self._alike(calls, "name")
        if isinstance(first.args[0], ir.Broadcast):
            fills = _all([call.args[0] for call in calls], ir.Broadcast)
            value = self._expr([fill.value for fill in fills], "blank")
            if len({fill.dtype for fill in fills}) == 1:
                return replace(first, args=(replace(fills[0], value=value),))
            size = self._pool.number([dtypes.lanes(fill.dtype) for fill in fills], "int32", "size")
            return ir.Call(block_intrinsics.COUNTED_FILL, (value, size), value.dtype)
        rows = [_all(call.args, ir.Load) for call in calls]
        starts = [self._element(loads) for loads in zip(*rows, strict=True)]
        if all([load.dtype for load in loads] == [load.dtype for load in rows[0]] for loads in rows):
            wide = zip(starts, rows[0], strict=True)
            return replace(first, args=tuple(replace(start, dtype=load.dtype) for start, load in wide))
        counts = [block_intrinsics.counts(first.name, [dtypes.lanes(load.dtype) for load in loads]) for loads in rows]
        numbers = [
            self._pool.number(values, "int32", name)
            for values, name in zip(zip(*counts, strict=True), block_intrinsics.COUNTS[first.name], strict=True)
        ]
        return ir.Call(block_intrinsics.counted(first.name), (*starts, *numbers), dtypes.element(first.dtype))

    # sums -----------------------------------------------------------------------------------------------

    def _sum(self, sums: Sequence[Affine], hint: str) -> Expr:
        """Return the sum with numbers as coefficients and constant."""
        coefficients: dict[Var, list[int]] = {}
        opaque: list[list[tuple[Expr, int]]] = []
        for position, (member, total) in enumerate(zip(self._members, sums, strict=True)):
            opaque.append([])
            for number, coefficient in total.terms.items():
                term = member.table.exprs[number]
                if isinstance(term, Var):
                    row = coefficients.setdefault(member.vars[term], [0] * len(sums))
                    row[position] = coefficient
                else:
                    opaque[position].append((term, coefficient))
        self._require(all(len(terms) == len(opaque[0]) for terms in opaque))
        result: Expr = tb.const(0)
        for terms in zip(*opaque, strict=True):
            # nonlinear operations on index arithmetic
            binaries = _all([term for term, _ in terms], ir.Binary)
            first = self._alike(binaries, "op", "dtype")
            a = self._expr([binary.a for binary in binaries], hint)
            common = tb.binary(first.op, a, self._expr([binary.b for binary in binaries], hint))
            result = result + self._scaled(common, [factor for _, factor in terms], hint)
        for var, factors in coefficients.items():
            result = result + self._scaled(var, factors, f"{hint}_{var.name}")
        return result + self._pool.number([total.constant for total in sums], "int32", hint)

    def _scaled(self, term: Expr, factors: Sequence[Number], hint: str) -> Expr:
        return term * self._pool.number(factors, "int32", hint)


def _all(nodes: Sequence[object], kind: type[Kind]) -> list[Kind]:
    """Return the nodes, all of which must be of one kind."""
    found = [node for node in nodes if isinstance(node, kind)]
    if len(found) != len(nodes):
        raise _DifferError
    return found


def merge_families(functions: Sequence[PrimFunc]) -> tuple[SharedFunction, ...]:
    """Return the shared functions that reduce code size, in the order of their first members.

    `functions` are all functions of one file; each is a member of at most one family.
    """
    families: list[list[PrimFunc]] = []
    for function in (item for item in functions if item.external is None):
        for family in families:
            if merge_kernels([family[0], function]) is not None:
                family.append(function)
                break
        else:
            families.append([function])
    found = (merge_kernels(family) for family in families if len(family) > 1)
    return tuple(shared for shared in found if shared is not None and _is_smaller(shared))


def _is_smaller(shared: SharedFunction) -> bool:
    """Tell whether one function and its numbers need fewer bytes than the functions that it replaces."""
    own = _NODE_BYTES * sum(1 for _ in nodes(shared.prim.body))
    count = len(shared.members)
    values = sum(
        _VALUE_BYTES if dtypes.is_integer(parameter.var.dtype) else dtypes.nbytes(parameter.var.dtype)
        for parameter in shared.parameters
    )
    return own + len(shared.parameters) * _LOAD_BYTES + count * values < count * own
