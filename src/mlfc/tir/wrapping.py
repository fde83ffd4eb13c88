"""Loops along which an address is taken modulo a power of two, as in copies that repeat.

LLVM 22 vectorizes some of them wrongly (`llvm/llvm-project` pull request 225086): it takes ``i % 8`` for a counter of
three bits, asks whether that counter wraps around, and drops the question where the answer is known to be yes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import children, own_exprs, walk, walk_expr


def has_wrapping_address(loop: ir.For) -> bool:
    """Tell whether an index below the loop is made of the lower bits of what varies with its variable.

    Indices that are loaded are data: no compiler knows how they vary.
    """
    # most loops have no such operation at all, which is soon seen
    if not any(
        _keeps_lower_bits(node) for stmt in walk(loop.body) for expr in own_exprs(stmt) for node in walk_expr(expr)
    ):
        return False
    varying, wrapping = {id(loop.var)}, set[int]()
    for stmt in walk(loop.body):
        if isinstance(stmt, ir.Let):
            if _mentions(stmt.value, varying):
                varying.add(id(stmt.var))
            if _wraps(stmt.value, varying, wrapping):
                wrapping.add(id(stmt.var))
        if any(_wraps(index, varying, wrapping) for index in _indices(stmt)):
            return True
    return False


def _indices(stmt: ir.Stmt) -> Iterator[Expr]:
    if isinstance(stmt, ir.Store):
        yield from stmt.indices
    for expr in own_exprs(stmt):
        for node in walk_expr(expr):
            if isinstance(node, ir.Load):
                yield from node.indices


def _computed(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and what is below it, but nothing that is loaded."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if not isinstance(node, ir.Load):
            yield node
            stack.extend(reversed(children(node)))


def _mentions(expr: Expr, variables: set[int]) -> bool:
    return any(id(node) in variables for node in _computed(expr))


def _wraps(expr: Expr, varying: set[int], wrapping: set[int]) -> bool:
    return any(
        id(node) in wrapping or (_keeps_lower_bits(node) and _mentions(node, varying)) for node in _computed(expr)
    )


def _keeps_lower_bits(node: Expr) -> bool:
    if isinstance(node, ir.Cast):
        return dtypes.is_integer(node.dtype) and dtypes.bits(node.dtype) < dtypes.bits(node.value.dtype)
    if not isinstance(node, ir.Binary):
        return False
    return node.op == "and" or (node.op in ("floormod", "truncmod") and _may_be_power_of_two(node.b))


def _may_be_power_of_two(divisor: Expr) -> bool:
    return not isinstance(divisor, ir.Const) or abs(int(divisor.value)).bit_count() == 1
