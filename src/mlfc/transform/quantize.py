"""Canonicalize quantized models: replace dequantize -> float operator -> quantize by integer operators.

ONNX represents a quantized layer as dequantize -> float operator -> quantize. The operator becomes an integer operator,
and an int32 sum that is dequantized and quantized again becomes `qnn.requantize`, as ONNX defines QLinearConv. Float
operators without an integer form stay between dequantize and quantize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from mlfc.errors import InternalError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Tuple, op_name
from mlfc.relay.op import Elements, forms
from mlfc.support import dtypes
from mlfc.transform import matching
from mlfc.transform.matching import Array, dtype_of, flat_args, joined_span, match_call, scalar_of, shape_of, value_of

_INT32_MAX = float(np.iinfo(np.int32).max)


def _dequantized(expr: Expr) -> Call | None:
    """Return a dequantize with constant parameters and positive scales, else None."""
    call = match_call(expr, "qnn.dequantize")
    return call if call and matching.keeps_order(call.args[1]) and value_of(call.args[2]) is not None else None


def _byte_tensor(expr: Expr) -> Call | None:
    """Return a dequantize of an 8-bit tensor with one scale and one zero point, else None."""
    call = _dequantized(expr)
    if call is None or dtype_of(call.args[0]) not in ("int8", "uint8"):
        return None
    return call if scalar_of(call.args[1]) is not None and scalar_of(call.args[2]) is not None else None


def _weights(expr: Expr, axis: int) -> Call | None:
    """Return a dequantize of 8-bit weights, per tensor or per output channel along `axis`, else None."""
    call = _dequantized(expr)
    if call is None or dtype_of(call.args[0]) not in ("int8", "uint8") or scalar_of(call.args[2]) is None:
        return None
    whole = scalar_of(call.args[1]) is not None
    return call if whole or call.attrs["axis"] % len(shape_of(expr)) == axis else None


def _number(expr: Expr) -> float:
    value = scalar_of(expr)
    if value is None:
        raise InternalError("expected a scalar quantization parameter")
    return value


def _scalar(expr: Expr, dtype: str) -> Constant:
    return ir.const(_number(expr), dtype)


def _integer_product(call: Call, data: Call, weights: Call, channel_axis: int) -> Expr:
    """Return the dequantized integer form of a product of dequantized tensors."""
    scales = value_of(weights.args[1])
    if scales is None:
        raise InternalError("expected constant quantization parameters")
    weight_scale = ir.const(scales.reshape(()) if scales.size == 1 else scales, "float32")
    data_scale = _scalar(data.args[1], "float32")
    args = [
        data.args[0], weights.args[0], _scalar(data.args[2], "int32"), _scalar(weights.args[2], "int32"),
        data_scale, weight_scale,
    ]  # fmt: skip
    nodes = ir.Span(data.span.merged(weights.span).merged(call.span).nodes)
    sums = ir.call(forms("integer_of")[op_name(call) or ""], args, {**call.attrs, "out_dtype": "int32"}, span=nodes)
    return _dequantize_sums(sums, data_scale.data * weight_scale.data, channel_axis, call.span)


def _dequantize_sums(sums: Expr, scale: Array, axis: int, span: ir.Span) -> Call:
    args = [sums, Constant(np.asarray(scale, np.float32)), ir.const(0)]
    return ir.call("qnn.dequantize", args, out_dtype="float32", axis=axis, span=span)


def _product(call: Call) -> Expr | None:
    operator, types = ir.operator(call), [ir.tensor_type(arg) for arg in call.args]
    left = _byte_tensor(call.args[0])
    if operator is None or operator.filters is None:  # a product of two tensors
        axis, right = len(shape_of(call)) - 1, _byte_tensor(call.args[1])
    else:
        axis, axes = operator.filters(types, call.attrs)
        if not axes or any(types[1].shape[other] != 1 for other in axes[1:]):
            return None
        right = _weights(call.args[1], axes[0])
    return None if left is None or right is None else _integer_product(call, left, right, axis)


def _integer_sums(expr: Expr) -> Call | None:
    """Return a dequantize of int32 sums, the integer form of a float product, else None."""
    call = _dequantized(expr)
    is_sums = call is not None and dtype_of(call.args[0]) == "int32" and scalar_of(call.args[2]) == 0
    return call if is_sums else None


def _add(call: Call, *, rounds: bool = False) -> Expr | None:
    """Turn the addition of a per-channel constant into a bias of the integer sums.

    Without `rounds`, only if the constant is a multiple of their scale, since the result is not quantized again.
    """
    for data, other in (call.args, call.args[::-1]):
        sums = _integer_sums(data)
        if sums is not None and data.type == call.type:
            found = _with_bias(call, sums, other, rounds=rounds)
            if found is not None:
                return found
    return None


def _bias_add(call: Call, *, rounds: bool = False) -> Expr | None:
    sums = _integer_sums(call.args[0])
    rank = len(shape_of(call))
    if sums is None or call.attrs["axis"] % rank != sums.attrs["axis"] % rank:
        return None
    return _with_bias(call, sums, call.args[1], rounds=rounds)


def _with_bias(call: Call, sums: Call, bias: Expr, *, rounds: bool) -> Expr | None:
    axis = sums.attrs["axis"] % len(shape_of(call))
    scale = value_of(sums.args[1])
    steps = None if scale is None else _bias_steps(bias, scale, rounds=rounds)
    if scale is None or steps is None or not np.all(np.abs(steps) < _INT32_MAX):
        return None
    if match_call(call, "add"):
        wide = matching.per_channel(steps, shape_of(call), axis)
        if wide is None:
            return None
        steps = wide
    integers = Constant(steps.astype(np.int32), None, bias.span)
    nodes = ir.Span(sums.span.merged(call.span).nodes)
    biased = ir.call("nn.bias_add", [sums.args[0], integers], axis=axis, span=nodes)
    return _dequantize_sums(biased, scale, axis, call.span)


def _bias_steps(bias: Expr, scale: Array, *, rounds: bool) -> Array | None:
    """Return a constant bias in units of the sums' scale, in the shape of `bias`; None if rounding is not allowed."""
    call, value = _dequantized(bias), _constant_value(bias)
    if call is not None and isinstance(call.args[0], Constant) and scalar_of(call.args[2]) == 0:
        own = value_of(call.args[1])
        # the exporter's product of the scales differs from ours by rounding only: keep its integers
        if own is not None and own.size == scale.size and np.allclose(own.reshape(-1), scale.reshape(-1), rtol=1e-5):
            return call.args[0].data
    if value is None or (scale.size > 1 and value.size not in (1, scale.size)):
        return None
    units = scale.astype(np.float64).reshape(-1) if scale.size > 1 else float(scale.reshape(()))
    exact = value.astype(np.float64).reshape(-1) / units
    flat = np.rint(exact)
    if not rounds and not np.allclose(flat, exact, rtol=1e-6, atol=0):
        return None
    return flat.reshape(value.shape) if flat.size == value.size else flat


def _constant_value(expr: Expr) -> Array | None:
    """Return the value of a constant, or of a dequantized constant in float64."""
    call = _dequantized(expr)
    if call is None or not isinstance(call.args[0], Constant):
        return value_of(expr)
    scale, zero_point = value_of(call.args[1]), value_of(call.args[2])
    if scale is None or zero_point is None or (max(scale.size, zero_point.size) > 1 and len(shape_of(expr)) != 1):
        return None
    return (call.args[0].data.astype(np.float64) - zero_point) * scale.astype(np.float64)


def _quantize(call: Call) -> Expr | None:
    if isinstance(call.args[0], Constant):
        value = evaluate(call)
        return None if value is None else Constant(value, call.args[0].name, call.span)
    joined = match_call(call.args[0], "concatenate")
    if joined is None:
        return _requantize(call)
    # quantize the parts of a concatenation if some of them are already quantized
    parts = flat_args(joined)
    if scalar_of(call.args[1]) is None or not any(match_call(part, "qnn.dequantize") for part in parts):
        return None
    quantized = []
    for part in parts:
        inner = _byte_tensor(part)
        if (
            inner
            and dtype_of(inner.args[0]) == dtype_of(call)
            and matching.same_quantization(inner.args[1:], call.args[1:])
        ):
            quantized.append(inner.args[0])
            continue
        nodes = ir.Span(call.span.nodes)
        own = ir.call("qnn.quantize", [part, *call.args[1:]], call.attrs, span=nodes)
        quantized.append(_quantize(own) or own)
    return ir.call("concatenate", [Tuple(tuple(quantized))], joined.attrs, span=joined_span(joined, call))


def _requantize(call: Call) -> Expr | None:
    """Turn sums that are dequantized, optionally clipped, and quantized again into a requantize."""
    source, limits = call.args[0], []
    while (limited := match_call(source, "nn.relu", "clip")) is not None:
        limits.append(limited)
        source = limited.args[0]
    if match_call(source, "add", "nn.bias_add") and isinstance(source, Call):
        source = (_add if match_call(source, "add") else _bias_add)(source, rounds=True) or source
    sums = _integer_sums(source)
    if sums is None or scalar_of(call.args[1]) is None or scalar_of(call.args[2]) is None:
        return None
    if call.attrs["rounding"] != "TONEVEN":  # a TFLite model: its reference computes this in float arithmetic
        return None
    zero, zero_point = ir.const(0), _scalar(call.args[2], "int32")
    scales = sums.args[1], _scalar(call.args[1], "float32")
    span = joined_span(sums, *reversed(limits), call)
    result: Expr = ir.call(
        "qnn.requantize", [sums.args[0], scales[0], zero, scales[1], zero_point],
        axis=sums.attrs["axis"], rounding="TONEVEN", out_dtype=dtype_of(call), span=span,
    )  # fmt: skip
    for limited in reversed(limits):
        result = _limited(result, limited, call)
    return result


def _limited(result: Expr, limited: Call, quantize: Call) -> Expr:
    """Clip integers to the quantized limits of `limited`; quantization is monotonic."""
    infinity = float(np.inf)
    is_relu = match_call(limited, "nn.relu") is not None
    bounds = (0.0, infinity) if is_relu else (limited.attrs["a_min"], limited.attrs["a_max"])
    steps = (np.rint(np.float32(bound) / np.float32(_number(quantize.args[1]))) for bound in bounds)
    limits = dtypes.limits(dtype_of(quantize))
    low, high = (float(np.clip(step + _number(quantize.args[2]), *limits)) for step in steps)
    if (low, high) == tuple(map(float, dtypes.limits(dtype_of(result)))):
        return result
    return ir.call("clip", [result], a_min=low, a_max=high, span=result.span)


def _on_codes(inner: Call, call: Call, args: Sequence[Expr], **changed: object) -> Expr:
    """Return the dequantized result of `call`'s operator applied to the codes that `inner` dequantizes."""
    name, attrs = changed.pop("name", matching.operator_of(call).name), {**call.attrs, **changed}
    moved = ir.call(str(name), args, attrs, span=ir.Span(call.span.nodes))
    scales = [_scalar(inner.args[1], "float32"), _scalar(inner.args[2], "int32")]
    return ir.call("qnn.dequantize", [moved, *scales], {**inner.attrs, "axis": -1}, span=call.span)


def _movement(call: Call) -> Expr | None:
    """Apply a data movement to the integer codes instead of the dequantized values."""
    inner = _byte_tensor(call.args[0])
    if inner is None or 0 in shape_of(call.args[0]):
        return None
    if any(not isinstance(arg, Constant) and arg is not call.args[0] for arg in call.args):
        return None
    return _on_codes(inner, call, [inner.args[0], *call.args[1:]])


def _weights_movement(call: Call) -> Expr | None:
    """Transpose the codes of weights that are quantized along an axis."""
    inner = _dequantized(call.args[0])
    if inner is None or scalar_of(inner.args[1]) is not None or call.attrs["axes"] is None:
        return _movement(call)
    rank = len(shape_of(call))
    axes = [axis % rank for axis in call.attrs["axes"]]
    moved = ir.call("transpose", [inner.args[0]], axes=axes, span=ir.Span(call.span.nodes))
    attrs = {**inner.attrs, "axis": axes.index(inner.attrs["axis"] % rank)}
    return ir.call("qnn.dequantize", [moved, *inner.args[1:]], attrs, span=call.span)


def _relu(call: Call) -> Expr | None:
    inner = _byte_tensor(call.args[0])
    if inner is None:
        return None
    most = dtypes.limits(dtype_of(inner.args[0]))[1]
    return _on_codes(inner, call, [inner.args[0]], name="clip", a_min=_number(inner.args[2]), a_max=most)


def _pad(call: Call) -> Expr | None:
    inner, fill = _byte_tensor(call.args[0]), scalar_of(call.args[1])
    if inner is None or (call.attrs["pad_mode"] == "constant" and fill != 0):
        return None
    return _on_codes(inner, call, [inner.args[0], _scalar(inner.args[2], dtype_of(inner.args[0]))])


def _concatenate(call: Call) -> Expr | None:
    parts = [_byte_tensor(arg) for arg in flat_args(call)]
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts):
        return None
    first = found[0]
    same_dtype = {dtype_of(part.args[0]) for part in found} == {dtype_of(first.args[0])}
    if not same_dtype or not all(matching.same_quantization(part.args[1:], first.args[1:]) for part in found):
        return None
    return _on_codes(first, call, [Tuple(tuple(part.args[0] for part in found))])


_MOVEMENTS = (Elements.SAME, Elements.MOVED, Elements.EXTREME)


class CanonicalizeQuantized(matching.RulePass):
    """Rewrite dequantize -> operator -> quantize to integer operators."""

    _RULES: ClassVar[dict[str, matching.Rule]] = {
        **dict.fromkeys(forms("integer_of"), _product),
        **dict.fromkeys(matching.names_of(lambda operator: operator.elements in _MOVEMENTS), _movement),
        "add": _add,
        "nn.bias_add": _bias_add,
        "qnn.quantize": _quantize,
        "transpose": _weights_movement,
        "nn.relu": _relu,
        "nn.pad": _pad,
        "concatenate": _concatenate,
    }
