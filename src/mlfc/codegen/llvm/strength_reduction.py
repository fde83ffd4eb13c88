"""Strength reduction of addresses in innermost loops, for tiles whose accumulators occupy all registers.

LLVM would count in one register and derive the addresses in others, which the accumulators need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import INT32, FunctionContext, Value, memory_type
from mlfc.support.dims import is_static
from mlfc.tir import ir
from mlfc.tir.affine import Affine, ExprTable
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import children, nodes, own_exprs, walk, walk_expr


def flat_index(buffer: ir.Buffer, indices: Sequence[Expr]) -> tuple[ExprTable, Affine]:
    """Return a flat element index of a buffer of static shape as a sum of expressions of a table."""
    table, total = ExprTable(), Affine({}, 0)
    for extent, index in zip(buffer.shape, indices, strict=True):
        total = total.times(extent).plus(table.affine(index))
    return table, total


@dataclass(frozen=True, eq=False)
class AddressTerms:
    """The address of accesses, without the constant offset of each."""

    buffer: ir.Buffer
    terms: Mapping[ir.Var, int]  # coefficients of the flat index

    def same(self, other: AddressTerms) -> bool:
        """Return whether accesses at both addresses differ by a constant."""
        return self.buffer is other.buffer and self.terms == other.terms


def address_of(buffer: ir.Buffer, indices: Sequence[Expr]) -> tuple[AddressTerms, int] | None:
    """Return the address of an access and its constant offset; None if the index is not a sum of variables."""
    if not is_static(buffer.shape):
        return None
    table, total = flat_index(buffer, indices)
    terms: dict[ir.Var, int] = {}
    for number, coefficient in total.terms.items():
        var = table.exprs[number]
        if not isinstance(var, ir.Var):
            return None
        terms[var] = coefficient
    return AddressTerms(buffer, terms), total.constant


def reducible_addresses(loop: ir.For, fills_registers: Collection[str]) -> list[AddressTerms]:
    """Return the addresses that a loop increments, the best one for its end condition first; empty if it should count.

    Loops without one of the intrinsics whose accumulators fill the registers should count.
    """
    if not fills_registers or not isinstance(loop.extent, ir.Const) or loop.extent.value <= loop.step:
        return []
    inside = list(walk(loop.body))
    is_full = any(isinstance(node, ir.Call) and node.name in fills_registers for node in nodes(loop.body))
    if not is_full or any(isinstance(stmt, ir.For) for stmt in inside):
        return []
    made_inside = {stmt.var for stmt in inside if isinstance(stmt, ir.Let)}
    found: list[AddressTerms] = []
    for buffer, indices in _uses(loop):
        place = None if buffer is None else address_of(buffer, indices)
        if place is None or made_inside & set(place[0].terms):
            return []
        if not any(place[0].same(other) for other in found):
            found.append(place[0])
    # the end of arrays on the stack is known without a register
    return sorted(found, key=lambda place: place.buffer.scope != "local")


def _uses(loop: ir.For) -> Iterator[tuple[ir.Buffer | None, tuple[Expr, ...]]]:
    """Yield the accesses whose index depends on a loop's variable; the buffer is None for any other use."""

    def below(expr: Expr) -> Iterator[tuple[ir.Buffer | None, tuple[Expr, ...]]]:
        if expr is loop.var:
            yield None, ()
        elif isinstance(expr, ir.Load) and _has(expr.indices, loop.var):
            yield expr.buffer, expr.indices
        else:
            for child in children(expr):
                yield from below(child)

    for stmt in walk(loop.body):
        if isinstance(stmt, ir.Store) and _has(stmt.indices, loop.var):
            yield stmt.buffer, stmt.indices
            yield from below(stmt.value)
        else:
            for expr in own_exprs(stmt):
                yield from below(expr)


def _has(exprs: Sequence[Expr], var: ir.Var) -> bool:
    return any(node is var for expr in exprs for node in walk_expr(expr))


@dataclass(frozen=True, eq=False)
class ReducedAddress:
    """An address that one loop increments."""

    place: AddressTerms
    start: Value  # its address in the first iteration
    address: Value  # its address at the next instruction
    step: int  # increment per iteration in elements

    def at(self, context: FunctionContext, base: Value, elements: int) -> Value:
        """Return the address `elements` elements after `base`."""
        kind = memory_type(self.place.buffer.dtype)
        return context.builder.gep(base, [ll.Constant(INT32, elements)], inbounds=True, source_etype=kind)
