"""exp, tanh and erf as the target computes them."""

from __future__ import annotations

from mlfc.tir import builder as tb
from mlfc.tir.context import Context
from mlfc.tir.ir import Expr


def transcendental(ctx: Context, name: str, x: Expr) -> Expr:
    """Return exp, tanh or erf of `x`, in vectorizable arithmetic where the target has vectors, else by math.h.

    Devices take that arithmetic too: the precision of their own functions is each maker's.
    """
    if not (ctx.features.vector_bytes or ctx.features.gpu) or x.dtype == "float64":
        return tb.intrinsic(name, x)
    return tb.cast(tb.intrinsic(f"{name}_f32", tb.cast(x, "float32")), x.dtype)


def exp_below(ctx: Context, x: Expr) -> Expr:
    """Return exp of `x`, which is not above zero or NaN: cheaper, with 0 for results less than 2**-126."""
    if not (ctx.features.vector_bytes or ctx.features.gpu) or x.dtype == "float64":
        return tb.intrinsic("exp", x)
    return tb.cast(tb.intrinsic("exp_below_f32", tb.cast(x, "float32")), x.dtype)
