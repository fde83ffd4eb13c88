"""Which requantizations of a loop may be a line in float32, and that line; `mlfc.support.lines` says why and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.support.lines import Line, find_line
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Interval, Ranges
from mlfc.tir.ir import Buffer, Expr, Stmt, Var
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import nodes, same_expr

Array = npt.NDArray[Any]
_NAMES = ("slope", "rest", "above", "below")


class ConstantTables(Protocol):
    """The constants of a function, which may get more."""

    constants: list[tuple[Buffer, Array]]

    def constant(self, name: str, array: Array) -> Buffer:
        """Add a constant."""


@dataclass(frozen=True)
class Limited:
    """What becomes of a requantized number: a zero point is added, and the sum is limited."""

    zero_point: int
    low: int
    high: int


@dataclass(frozen=True)
class LineOf:
    """The operands of `requantize_line`: those of `requantize_down`, and the line in scalar floats."""

    args: tuple[Expr, ...]
    floats: tuple[Expr, ...]


class LineFinder:
    """Finds lines in one loop; `ranges` is what is known of its variables."""

    def __init__(self, tables: ConstantTables) -> None:
        self._tables = tables
        whole = [(buffer, array) for buffer, array in tables.constants if array.dtype.kind in "iu" and array.size]
        self.ranges = Ranges({id(buffer): Interval(int(array.min()), int(array.max())) for buffer, array in whole})

    def of(self, expr: Expr) -> tuple[LineOf, Limited] | None:
        """Return the line of an expression that requantizes, adds a zero point and limits; None if it is not one."""
        call, limited = self.limited(expr)
        if call is None or limited is None:
            return None
        value, *scale = call.args
        numbers = [array for part in scale if (array := self._numbers(part)) is not None]
        loads = [part for part in scale if isinstance(part, ir.Load)]
        if len(numbers) < len(scale) or not all(_same_place(load, loads[0]) for load in loads):
            return None
        ends = self.ranges.interval(value, 2)
        bounds = limited.low - limited.zero_point, limited.high - limited.zero_point
        channels = np.broadcast_arrays(*numbers)
        line = find_line(channels[0], channels[1], bounds, max(-ends.low, ends.high))
        return None if line is None else (LineOf(call.args, self._floats(line, loads, bounds[0])), limited)

    def limited(self, expr: Expr) -> tuple[ir.Call | None, Limited | None]:
        """Return the requantization inside an expression, and what becomes of it."""
        ends = low, high = dtypes.limits("int32")
        inner = expr
        while (step := self._step(inner)) is not None:
            op, number, inner = step
            end = min(max(number, low), high)
            low, high = (end if op == "max" else low), (end if op == "min" else high)
        call, zero_point = inner, 0
        if isinstance(inner, ir.Binary) and inner.op == "add" and isinstance(inner.b, ir.Const):
            call, zero_point = inner.a, int(inner.b.value)
        if not isinstance(call, ir.Call) or call.name != "requantize_down" or ends[0] == low or ends[1] == high:
            return None, None
        return call, Limited(zero_point, low, high)

    def _step(self, expr: Expr) -> tuple[str, int, Expr] | None:
        """Return the comparison with a literal that an expression is, and its operand; no comparison for a cast."""
        if isinstance(expr, ir.Cast) and self.ranges.is_within(expr.value, *dtypes.limits(expr.dtype)):
            return "", 0, expr.value
        if isinstance(expr, ir.Binary) and expr.op in ("min", "max") and isinstance(expr.b, ir.Const):
            return expr.op, int(expr.b.value), expr.a
        return None

    def _numbers(self, expr: Expr) -> Array | None:
        """Return the numbers that a multiplier or an exponent is for the channels; None if they are not known."""
        if isinstance(expr, ir.Const):
            return np.array([expr.value], np.int32)
        known = (
            array for buffer, array in self._tables.constants if isinstance(expr, ir.Load) and expr.buffer is buffer
        )
        found = next(known, None)
        return found if found is not None and found.ndim == 1 else None

    def _floats(self, line: Line, loads: list[ir.Load], low: int) -> tuple[Expr, ...]:
        """Return the line's numbers as literals, or as loads from where the multipliers are loaded.

        Where nothing below zero is left by the limits, the start below is not needed.
        """
        below = line.above if low >= 0 else line.below
        return tuple(
            ir.Load(self._tables.constant(name, array), loads[0].indices, "float32")
            if loads and (array != array.flat[0]).any()
            else tb.const(float(array.flat[0]), "float32")
            for name, array in zip(_NAMES, (line.slope, line.rest, line.above, below), strict=True)
        )


def _same_place(a: ir.Load, b: ir.Load) -> bool:
    return len(a.indices) == len(b.indices) and all(map(same_expr, a.indices, b.indices))


def with_single_uses(stmt: Stmt) -> Stmt:
    """Return the body of a loop with what is named but used once where it is used."""
    uses = Counter(id(node) for node in nodes(stmt) if isinstance(node, Var))

    def changed(item: Stmt, env: dict[Var, Expr]) -> Stmt:
        if isinstance(item, ir.Seq):
            return ir.Seq(tuple(changed(part, env) for part in item.stmts))
        if isinstance(item, ir.Let):
            value = substitute(item.value, env)
            if uses[id(item.var)] == 1:
                return changed(item.body, {**env, item.var: value})
            return replace(item, value=value, body=changed(item.body, env))
        if isinstance(item, ir.Store):
            return ir.Store(
                item.buffer, tuple(substitute(index, env) for index in item.indices), substitute(item.value, env)
            )
        return item

    return changed(stmt, {})
