"""Rewrite products with uint8 weights that exceed int8 when centered: kernels are fastest on bytes.

With weights w, their zero point z and a constant c, ``sum x (w - z) = sum x (w - z - c) + c sum x``, where x is the
data less its zero point. The sum of the data is one number per position, regardless of the number of output channels.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mlfc.ops.conv import pad_pairs
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Span, const
from mlfc.support import dtypes
from mlfc.transform.matching import Rule, RulePass, changed_constant, dtype_of, scalar_of, shape_of

_FEWEST = 8
"""Fewest channels of the result for which the sum of the data is cheap compared with the products."""


def _centred(call: Call, channels: int) -> tuple[Constant, int] | None:
    """Return the weights as int8, and the constant subtracted from them; None if this does not apply."""
    data, weights, data_zero, zero = call.args[:4]
    if not isinstance(weights, Constant) or weights.data.dtype != np.uint8 or channels < _FEWEST:
        return None
    point, is_known = scalar_of(zero), scalar_of(data_zero) is not None
    if point is None or not is_known or dtype_of(data) not in ("uint8", "int8") or not ir.tensor_type(data).is_static:
        return None
    wide = weights.data.astype(np.int32) - int(point)
    low, high = dtypes.limits("int8")
    short = max(int(wide.max()) - high, 0) + min(int(wide.min()) - low, 0)
    return (changed_constant(weights, (wide - short).astype(np.int8)), short) if short else None


def _completed(call: Call, weights: Constant, short: int, sums: Expr) -> Expr:
    """Return the product with the int8 weights, plus the subtracted constant times the sums of the data."""
    span = Span(call.span.nodes)
    args = [call.args[0], weights, call.args[2], const(0, "int32"), *call.args[4:]]
    product = ir.call(ir.op_name(call) or "", args, dict(call.attrs), span=span)
    dtype = dtype_of(product)
    scaled = ir.call("multiply", [ir.call("cast", [sums], dtype=dtype, span=span), const(short, dtype)], span=span)
    return ir.call("add", [product, scaled], span=call.span)


def _sums(call: Call, axis: int) -> Expr:
    """Return the sums of the data, less its zero point, along an axis."""
    span, data = Span(call.span.nodes), call.args[0]
    wide = ir.call("cast", [data], dtype="int32", span=span)
    total = ir.call("sum", [wide], axis=(axis,), keepdims=True, span=span)
    offset = int(scalar_of(call.args[2]) or 0) * shape_of(data)[axis]
    return ir.call("subtract", [total, const(offset, "int32")], span=span)


def _dense(call: Call) -> Expr | None:
    found = _centred(call, shape_of(call)[-1])
    return _completed(call, *found, _sums(call, len(shape_of(call.args[0])) - 1)) if found else None


def _conv(call: Call) -> Expr | None:
    attrs, layout = call.attrs, call.attrs["data_layout"]
    axis = layout.find("C")
    found = _centred(call, shape_of(call)[axis])
    if found is None or attrs["groups"] != 1 or sorted(layout) != sorted("NCHW"):
        return None
    sums, kernel = _sums(call, axis), tuple(attrs["kernel_size"])
    is_whole = not any(map(any, pad_pairs("qnn.conv2d", attrs["padding"], 2))) and {*attrs["strides"]} == {1}
    if kernel != (1, 1) or not is_whole:
        ones = const(np.ones((*kernel, 1, 1)), "int32")
        window = {key: attrs[key] for key in ("strides", "padding", "dilation", "data_layout")}
        sums = ir.call("nn.conv2d", [sums, ones], channels=1, kernel_size=kernel, kernel_layout="HWIO", **window,
                       span=Span(call.span.nodes))  # fmt: skip
    return _completed(call, *found, sums)


class CenterWeights(RulePass):
    """Replace uint8 weights of ``qnn.conv2d`` and ``qnn.dense`` by int8 weights without a zero point."""

    _RULES: ClassVar[dict[str, Rule]] = {"qnn.conv2d": _conv, "qnn.dense": _dense}
