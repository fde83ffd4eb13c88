"""Between which integers expressions lie, in many iterations of loops at once.

`bounds.Ranges` proves one interval with all that conditions say; this is the simpler question for thousands of
iterations: loop variables that are followed have one value an iteration, all others have an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Expr, Var

Numbers: TypeAlias = "npt.NDArray[np.int64]"
# wider than any index, and far from where int64 ends
_WIDEST = 1 << 40


@dataclass(frozen=True, eq=False)
class IndexSpan:
    """The ends of an interval, both included: arrays with an element an iteration."""

    low: Numbers
    high: Numbers

    def repeated(self, times: int) -> IndexSpan:
        """Return the span where each iteration has become `times` iterations."""
        return IndexSpan(np.repeat(self.low, times), np.repeat(self.high, times))

    def clipped(self, low: int, high: int) -> IndexSpan:
        """Return what of the span lies between `low` and `high`, of which something must."""
        return IndexSpan(np.clip(self.low, low, high), np.clip(self.high, low, high))


class IndexSpans:
    """Spans of expressions, given those of the variables in scope."""

    def __init__(self, count: int = 1, known: dict[Var, IndexSpan] | None = None) -> None:
        self.count = count
        self._spans = known or {}

    def with_var(self, var: Var, span: IndexSpan) -> IndexSpans:
        """Return the same with one more variable."""
        return IndexSpans(self.count, {**self._spans, var: span})

    def with_loop(self, var: Var, times: int, step: int) -> IndexSpans:
        """Return the same inside a loop of which every iteration is followed."""
        values = np.tile(np.arange(times, dtype=np.int64) * step, self.count)
        known = {name: span.repeated(times) for name, span in self._spans.items()}
        return IndexSpans(self.count * times, {**known, var: IndexSpan(values, values)})

    def constant(self, low: int, high: int) -> IndexSpan:
        """Return the same interval for all iterations."""
        return IndexSpan(np.full(self.count, low, np.int64), np.full(self.count, high, np.int64))

    def of(self, expr: Expr) -> IndexSpan:
        """Return the span of an integer expression; one that is not known is as wide as its dtype."""
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


def _hull(ends: list[Numbers]) -> IndexSpan:
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
