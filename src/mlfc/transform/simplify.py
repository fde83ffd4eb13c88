"""Remove operators without effect, merge chains of data movement, and replace shape changes by `reshape`."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr
from mlfc.relay.op import OPERATORS, Elements, Kind, Operator, Trait
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.transform import matching
from mlfc.transform.matching import dtype_of, flat_args, match_call, shape_of, transpose_axes, typed_like, value_of


def _merge_view(call: Call) -> Expr | None:
    source = call.args[0]
    while isinstance(source, Call) and _is_view(source.op):
        source = source.args[0]
    shape = shape_of(call)
    if shape == shape_of(source):
        return source
    if source is call.args[0] and call.op is OPERATORS.get("reshape") and call.attrs["newshape"] == shape:
        return None
    return matching.reshaped(source, shape, call.span)


def _is_view(called: object) -> bool:
    """Return whether a callee only changes the shape of its first argument."""
    return isinstance(called, Operator) and called.kind is Kind.VIEW and called.elements is Elements.SAME


def _merge_transpose(call: Call) -> Expr | None:
    source, axes = call.args[0], transpose_axes(call)
    inner = match_call(source, "transpose")
    if inner is not None:
        first = transpose_axes(inner)
        return matching.transposed(inner.args[0], [first[axis] for axis in axes], call.span)
    if isinstance(source, Constant) or matching.moves_nothing(shape_of(source), axes):
        return matching.transposed(source, axes, call.span)
    return None


def _absorb_transpose(call: Call) -> Expr | None:
    """Absorb the transposes of a matrix product's operands into its transpose attributes."""
    args, changed = list(call.args), dict(call.attrs)
    for index, name in enumerate(("transpose_a", "transpose_b")):
        turned = match_call(args[index], "transpose")
        if turned is not None and transpose_axes(turned) == (0, 2, 1):
            args[index], changed[name] = turned.args[0], not changed[name]
    if changed == call.attrs or not isinstance(call.op, Operator):
        return None
    return ir.call(call.op.name, args, changed, span=call.span)


def _drop_same_type(call: Call) -> Expr | None:
    """Drop an operator that cannot change values and did not change the type."""
    return call.args[0] if typed_like(call.args[0], call) else None


def _slice_for_take(call: Call) -> Expr | None:
    """Replace a `take` of one position by a slice, which layout conversion and fusion support."""
    data, position = call.args[0], value_of(call.args[1])
    axis = call.attrs["axis"]
    if axis is None or call.attrs["batch_dims"] or position is None or position.size != 1:
        return None
    shape = shape_of(data)
    axis %= len(shape)
    begin = int(position.reshape(()))
    if not 0 <= begin < bounds(shape[axis])[0]:
        return None
    cut = {"begin": (begin,), "end": (begin + 1,), "strides": (1,), "axes": (axis,)}
    part = ir.call("strided_slice", [data], cut, span=ir.Span(call.span.nodes))
    return matching.reshaped(part, shape_of(call), call.span)


def _drop_zero(call: Call) -> Expr | None:
    """Drop ``x - 0``, ``x + 0`` and ``0 + x``; for float sums only if the zero is -0.0, because -0.0 + +0.0 is +0.0."""
    is_sum = match_call(call, "add") is not None
    is_negative = is_sum and dtypes.is_float(dtype_of(call))
    zero = value_of(call.args[1] if isinstance(call.args[1], Constant) else call.args[0])
    if zero is None or not np.all(np.signbit(zero.astype(np.float64)) == is_negative):
        return None
    return _drop_neutral(call, [(0, 1), (1, 0)] if is_sum else [(0, 1)], 0)


def _drop_one(call: Call) -> Expr | None:
    """Drop ``x * 1``, ``1 * x`` and ``x / 1``; replace division by a power of two by multiplication, which is exact."""
    orders = [(0, 1), (1, 0)] if match_call(call, "multiply") else [(0, 1)]
    kept = _drop_neutral(call, orders, 1)
    divisor = value_of(call.args[1])
    if kept is None and divisor is not None and match_call(call, "divide") and divisor.size == 1:
        mantissa, exponent = math.frexp(float(divisor.reshape(())))
        is_exact = divisor.dtype in (np.float32, np.float64) and abs(mantissa) == 0.5 and abs(exponent) < 100
        return ir.call("multiply", [call.args[0], Constant(1 / divisor)], span=call.span) if is_exact else None
    return kept


def _drop_neutral(call: Call, orders: list[tuple[int, int]], neutral: float) -> Expr | None:
    for kept, other in orders:
        if matching.scalar_of(call.args[other]) == neutral and typed_like(call.args[kept], call):
            return call.args[kept]
    return None


def _drop_quantize(call: Call) -> Expr | None:
    """Drop quantize(dequantize(x)) with equal parameters: float32 restores integers of up to 16 bits exactly."""
    inner = match_call(call.args[0], "qnn.dequantize")
    if inner is None or not typed_like(inner.args[0], call) or dtypes.bits(dtype_of(call)) > 16:
        return None
    if call.attrs["axis"] != inner.attrs["axis"] and shape_of(call.args[1]):
        return None
    if not matching.keeps_order(call.args[1]):  # the scale is out of range, or NaN
        return None
    return inner.args[0] if matching.same_quantization(call.args[1:], inner.args[1:]) else None


class Simplify(matching.RulePass):
    """Remove operators without effect and merge chains of reshapes and transposes.

    A quantize followed by a dequantize stays, because it rounds.
    """

    _RULES: ClassVar[dict[str, matching.Rule]] = {
        **dict.fromkeys(matching.names_of(_is_view), _merge_view),
        "transpose": _merge_transpose,
        **dict.fromkeys(matching.names_of(lambda operator: bool(operator.traits & Trait.NEUTRAL)), _drop_same_type),
        **dict.fromkeys(("nn.batch_matmul", "qnn.batch_matmul"), _absorb_transpose),
        "nn.pad": lambda call: (
            call.args[0] if all(pad == 0 for pair in call.attrs["pad_width"] for pad in pair) else None
        ),
        "strided_slice": lambda call: (
            None if any(step <= 0 for step in call.attrs["strides"] or ()) else _drop_same_type(call)
        ),
        "take": _slice_for_take,
        "concatenate": lambda call: flat_args(call)[0] if len(flat_args(call)) == 1 else None,
        "add": _drop_zero,
        "subtract": _drop_zero,
        "multiply": _drop_one,
        "divide": _drop_one,
        "qnn.quantize": _drop_quantize,
    }
