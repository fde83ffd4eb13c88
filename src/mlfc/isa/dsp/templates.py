"""Kernel templates for the DSP extension, and the pass that adapts finished kernels to it.

`requantize_down` accepts any int32. If its magnitude is below 2**30, the product may be doubled first. Its high word is
then the rounded result, and the zero point can be added in the last rounding: `requantize_narrow`. Saturation to a
signed byte is one instruction: `saturate_byte`.
"""

from __future__ import annotations

from dataclasses import replace

from mlfc.isa.dsp import convolution, depthwise  # noqa: F401  (they register themselves)
from mlfc.isa.dsp.weights import NARROW
from mlfc.kernels.templates import FITTING
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Interval, Ranges
from mlfc.tir.ir import Expr, Stmt
from mlfc.tir.visitor import rebuilt, rebuilt_stmt

_LARGEST_ZERO = 1 << 16
_BYTE = dtypes.limits("int8")


class _ScaledRanges(Ranges):
    """Range analysis that also bounds `requantize_down` by literals: at most the scaled range, rounded up."""

    def term(self, expr: Expr, depth: int) -> Interval:
        if not isinstance(expr, ir.Call) or expr.name != "requantize_down":
            return super().term(expr, depth)
        value, multiplier, exponent = expr.args
        if not isinstance(multiplier, ir.Const) or not isinstance(exponent, ir.Const):
            return super().term(expr, depth)
        inner, shift = self.interval(value, depth), 32 + int(exponent.value)
        low, high = (end * int(multiplier.value) >> shift for end in (inner.low, inner.high))
        return Interval(low - 1, high + 2)


class _Narrowing:
    """Rewrites statements to shorter forms with the same values."""

    def __init__(self) -> None:
        self._ranges = _ScaledRanges()

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.Store):
            return ir.Store(stmt.buffer, stmt.indices, self._expr(stmt.value))
        if isinstance(stmt, ir.Let):
            value = self._expr(stmt.value)
            self._ranges.enter_let(stmt)
            return replace(stmt, value=value, body=self.stmt(stmt.body))
        if isinstance(stmt, ir.For):
            with self._ranges.scope():
                self._ranges.enter_loop(stmt)
                return replace(stmt, body=self.stmt(stmt.body))
        if isinstance(stmt, ir.If):
            otherwise = None if stmt.otherwise is None else self._branch(stmt.otherwise, stmt.condition, holds=False)
            return ir.If(stmt.condition, self._branch(stmt.then, stmt.condition, holds=True), otherwise)
        return rebuilt_stmt(stmt, self.stmt)

    def _branch(self, body: Stmt, condition: Expr, *, holds: bool) -> Stmt:
        with self._ranges.scope():
            self._ranges.assume(condition, holds)
            return self.stmt(body)

    def _expr(self, expr: Expr) -> Expr:
        if isinstance(expr, ir.Binary):
            if expr.op == "add" and isinstance(expr.b, ir.Const) and abs(expr.b.value) < _LARGEST_ZERO:
                shorter = self._requantized(expr.a, expr.b)
            else:
                shorter = self._saturated(expr)
            if shorter is not None:
                return shorter
        return self._requantized(expr, tb.const(0)) or rebuilt(expr, self._expr)

    def _requantized(self, expr: Expr, zero_point: Expr) -> Expr | None:
        if not isinstance(expr, ir.Call) or expr.name != "requantize_down":
            return None
        if not self._ranges.is_within(expr.args[0], -NARROW, NARROW):
            return None
        return tb.intrinsic("requantize_narrow", *map(self._expr, expr.args), zero_point)

    def _saturated(self, expr: ir.Binary) -> Expr | None:
        """Return the intrinsic for ``min(max(x, -128), 127)``."""
        inner = expr.a
        if expr.op != "min" or not isinstance(inner, ir.Binary) or inner.op != "max" or expr.dtype != "int32":
            return None
        ends = tuple(end.value for end in (inner.b, expr.b) if isinstance(end, ir.Const))
        return tb.intrinsic("saturate_byte", self._expr(inner.a)) if ends == _BYTE else None


FITTING.add("dsp", lambda stmt: _Narrowing().stmt(stmt))
