"""Softmax of 16 bits, as TFLite computes it: with tables of exp(x) and 1 / (1 + x) between which it interpolates."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from mlfc.errors import UnsupportedError
from mlfc.kernels.folding import Fold
from mlfc.kernels.rows import Rows
from mlfc.ops.qnn import rescaled
from mlfc.ops.qnn_unary16 import interpolated, interpolation_table
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Output, Tensor
from mlfc.tir.ir import Expr

_LOW, _HIGH = dtypes.limits("int16")
_RANGE = _HIGH - _LOW
_REACH = 10.0  # the tables' exp ends at exp(-10)
_LONGEST = 1 << 16  # a longer row could have a sum beyond 31 bits


@cache
def _tables() -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """Return exp from -10 to 0, and 1 / (1 + x) from 0 to 1, in 1/32768."""
    exponentials = interpolation_table(np.exp, np.float64, (_REACH / _RANGE, _HIGH, 2.0 / _RANGE, 0))
    return exponentials, interpolation_table(
        lambda x: 1.0 / (1.0 + x), np.float64, (1.0 / _RANGE, _LOW, 2.0 / _RANGE, 0)
    )


def emit(ctx: Context, data: Tensor, axis: int, in_scale: float, out: Output, rows: Rows) -> None:
    """Write softmax along an axis of a tensor; `in_scale` is the scale of its codes."""
    stmts, length = ctx.stmts, out.shape[axis]
    if bounds(length)[1] > _LONGEST:
        raise UnsupportedError(f"qnn.softmax of int16 over {length} elements, at most {_LONGEST} are supported")
    exponentials, reciprocals = _tables()
    with rows.over((*out.shape[:axis], *out.shape[axis + 1 :])) as others:

        def at(index: Expr) -> list[Expr]:
            return [*others[:axis], index, *others[axis:]]

        def element(index: Indices) -> Expr:
            return tb.cast(data.read(at(index[0])), "int32")

        largest = rows.folded("largest", (length,), element, Fold("int32", _LOW, tb.maximum, lambda found: found))
        largest = stmts.let("largest", largest)

        def exponential(index: Indices) -> Expr:
            scaled = rescaled(element(index) - largest, in_scale / (_REACH / _RANGE))
            code = stmts.let("code", tb.clamp(scaled + _HIGH, _LOW, _HIGH))
            return interpolated(ctx, code, exponentials, "exponentials")

        add = Fold("int32", 0, lambda a, b: a + b, lambda total: total)
        total = stmts.let("total", rows.folded("total", (length,), exponential, add))
        headroom = stmts.let("headroom", tb.intrinsic("clz32", tb.cast(total, "uint32"), dtype="int32"))
        # the row has an exponential of 1, and the sum is below 2**31: from 1 to 17
        room = stmts.let("room", tb.clamp(headroom - 1, 0, 31))
        normal = ((tb.cast(total, "uint32") << tb.cast(room, "uint32")) + (1 << 13)) >> 14
        fraction = tb.clamp(tb.cast(normal, "int32") - ((1 << 15) + (1 << 16)), _LOW, _HIGH)
        reciprocal = interpolated(ctx, stmts.let("fraction", fraction), reciprocals, "reciprocals")
        reciprocal = stmts.let("reciprocal", reciprocal)
        shift = stmts.let("shift", tb.clamp(tb.const(30) - room, 1, 30))
        half = stmts.let("half", tb.const(1) << (shift - 1))
        with rows.elements((length,), "k") as row:
            product = (exponential(row) * reciprocal + half) >> shift
            out.store(at(row[0]), tb.cast(tb.clamp(product, 0, _HIGH), "int16"))
