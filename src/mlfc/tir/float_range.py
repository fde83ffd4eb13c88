"""Between which numbers a float expression lies, as far as its last operations say."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan

import numpy as np

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Expr

_ROUNDINGS = ("floor", "ceil", "trunc", "round_even", "round_away")


@dataclass(frozen=True)
class FloatRange:
    """All numbers from `low` to `high`, both included, and NaN if `nan`."""

    low: float
    high: float
    nan: bool

    def fits(self, dtype: str) -> bool:
        """Tell whether an integer dtype holds all that is left when digits behind the point are cut off."""
        low, high = dtypes.limits(dtypes.element(dtype))
        return not self.nan and low - 1 < self.low and self.high < high + 1


_ANYTHING = FloatRange(-inf, inf, nan=True)


def float_range(expr: Expr) -> FloatRange:
    """Return what a float expression may be."""
    if isinstance(expr, ir.Const):
        value = _rounded(expr.value, expr.dtype)
        return _ANYTHING if isnan(value) else FloatRange(value, value, nan=False)
    if isinstance(expr, ir.Cast):
        return _of_cast(expr)
    if isinstance(expr, ir.Call) and expr.name == "within" and isinstance(expr.args[1], ir.Const):
        return FloatRange(-float(expr.args[1].value), float(expr.args[1].value), nan=False)
    if isinstance(expr, ir.Call) and expr.name in _ROUNDINGS:
        known = float_range(expr.args[0])  # whole numbers stay themselves, so ends that are whole numbers hold
        low, high = (end if float(end).is_integer() else edge for end, edge in ((known.low, -inf), (known.high, inf)))
        return FloatRange(low, high, known.nan)
    if isinstance(expr, ir.Binary) and expr.op in ("min", "max"):
        return _of_extreme(expr)
    return _ANYTHING


def _of_cast(expr: ir.Cast) -> FloatRange:
    inner = expr.value.dtype
    if dtypes.is_float(inner):
        known = float_range(expr.value)
        low, high = (_rounded(end, expr.dtype) for end in (known.low, known.high))
        return FloatRange(low, high, known.nan)
    if dtypes.element(inner) == "bool":
        return FloatRange(0.0, 1.0, nan=False)
    low, high = dtypes.limits(dtypes.element(inner))
    return FloatRange(_rounded(low, expr.dtype), _rounded(high, expr.dtype), nan=False)


def _rounded(value: float, dtype: str) -> float:
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtypes.to_numpy(dtypes.element(dtype))))


def _of_extreme(expr: ir.Binary) -> FloatRange:
    """Return the range of ``a < b ? a : b`` or ``a > b ? a : b``, which is b where either is NaN."""
    a, b = float_range(expr.a), float_range(expr.b)
    low, high = (min(a.low, b.low), min(a.high, b.high)) if expr.op == "min" else (
        max(a.low, b.low), max(a.high, b.high)
    )  # fmt: skip
    if a.nan:  # then b may be the result as it is
        low, high = min(low, b.low), max(high, b.high)
    return FloatRange(low, high, b.nan)
