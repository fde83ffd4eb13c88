"""Which sums of two quantized operands in a loop may be a plane in float32; `mlfc.support.planes` says why and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlfc.support import dtypes
from mlfc.support.planes import Plane, find_plane
from mlfc.tir import ir
from mlfc.tir.bounds import Interval
from mlfc.tir.ir import Expr, Var
from mlfc.tir.numpy_expr import evaluate_expr
from mlfc.tir.proven_lines import Limited, LineFinder
from mlfc.tir.visitor import children, rebuilt, same_expr

_MOST_VALUES = 256  # of an operand
_ARITHMETIC = frozenset({"add", "sub", "mul", "min", "max"})


@dataclass(frozen=True)
class PlaneOf:
    """The requantization that a plane takes the place of, and the operands."""

    call: ir.Call
    operands: tuple[Expr, Expr]
    plane: Plane


class Planes:
    """Finds planes in the loop of `lines`."""

    def __init__(self, lines: LineFinder) -> None:
        self._lines = lines

    def of(self, expr: Expr) -> tuple[PlaneOf, Limited] | None:
        """Return the plane of an expression that requantizes a sum, adds a zero point and limits; None without one."""
        call, limited = self._lines.limited(expr)
        if call is None or limited is None:
            return None
        _, multiplier, exponent = call.args
        if not isinstance(multiplier, ir.Const) or not isinstance(exponent, ir.Const):
            return None
        found: list[tuple[Expr, Var]] = []
        total = self._of_operands(call.args[0], found)
        if total is None or len(found) != 2:
            return None
        ends = [self._lines.ranges.interval(operand, 2) for operand, _ in found]
        call_of_total = ir.Call(call.name, (total, multiplier, exponent), call.dtype)
        scale = float(multiplier.value) * 2.0 ** (-32 - int(exponent.value))
        plane = _tried(call_of_total, scale, limited, [(var, end) for (_, var), end in zip(found, ends, strict=True)])
        return None if plane is None else (PlaneOf(call, (found[0][0], found[1][0]), plane), limited)

    def _of_operands(self, expr: Expr, found: list[tuple[Expr, Var]]) -> Expr | None:
        """Return an expression of variables that stand for its operands, which have few values; None without those."""
        if self._is_operand(expr):
            known = next((var for operand, var in found if same_expr(operand, expr)), None)
            if known is None:
                known = Var("abc"[min(len(found), 2)], expr.dtype)
                found.append((expr, known))
            return known
        scales = isinstance(expr, ir.Call) and expr.name in ("requantize_down", "requantize_double")
        adds = isinstance(expr, ir.Binary) and expr.op in _ARITHMETIC and expr.dtype == "int32"
        if not (scales or adds or isinstance(expr, (ir.Cast, ir.Const))):
            return None
        parts = [self._of_operands(part, found) for part in children(expr)]
        if any(part is None for part in parts) or len(found) > 2:
            return None
        remaining = iter(parts)
        return rebuilt(expr, lambda part: next(remaining) or part)

    def _is_operand(self, expr: Expr) -> bool:
        """Tell whether an expression is a byte that is loaded, named or limited."""
        if isinstance(expr, ir.Const):
            return False
        ends = self._lines.ranges.interval(expr, 2)
        few = ends.high - ends.low < _MOST_VALUES
        is_limited = isinstance(expr, ir.Binary) and expr.op in ("min", "max")
        is_byte = isinstance(expr, (ir.Load, Var)) and dtypes.element(expr.dtype) in ("int8", "uint8", "int32")
        return few and (is_limited or is_byte or (isinstance(expr, ir.Cast) and expr.dtype in ("int8", "uint8")))


def _tried(call: ir.Call, scale: float, limited: Limited, operands: Sequence[tuple[Var, Interval]]) -> Plane | None:
    """Return the plane of a requantized sum of two operands, after all pairs of values were tried."""
    a, b = (np.arange(ends.low, ends.high + 1, dtype=np.int32) for _, ends in operands)
    grids = np.meshgrid(a, b, indexing="ij")
    env = {var: grid.astype(dtypes.to_numpy(var.dtype)) for (var, _), grid in zip(operands, grids, strict=True)}
    real = evaluate_expr(call.args[0], env, {}).astype(np.float64) * scale + limited.zero_point
    exact = evaluate_expr(call, env, {}).astype(np.int64) + limited.zero_point
    return find_plane(exact, real, a, b, (limited.low, limited.high))
