"""Quantized models in canonical form: integer operators where floats were only written around them.

ONNX writes a quantized layer as dequantize -> float operator -> quantize. Here the integers move inwards: a
convolution of dequantized tensors is the dequantized integer convolution, data movement and maxima of
dequantized tensors are those of the integers, and what is left, a dequantized int32 sum quantized again, is
`qnn.requantize`, as ONNX defines QLinearConv. Other float operators stay between their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlfc.errors import InternalError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule, Tuple, op_name
from mlfc.relay.op import Elements, Operator, forms
from mlfc.support import dtypes
from mlfc.transform.matching import (
    Array,
    Rule,
    apply_rules,
    dtype_of,
    flat_args,
    joined_span,
    keeps_order,
    match_call,
    names_of,
    per_channel,
    same_quantization,
    scalar_of,
    shape_of,
    value_of,
)

_INT32_MAX = float(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class CanonicalizeQuantized:
    """Rewrite dequantize -> operator -> quantize to integer operators."""

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module in canonical form."""
        return apply_rules(module, _RULES)


def _dequantized(expr: Expr) -> Call | None:
    """Return a dequantize whose parameters are constants, with positive scales."""
    call = match_call(expr, "qnn.dequantize")
    return call if call and keeps_order(call.args[1]) and value_of(call.args[2]) is not None else None


def _byte_tensor(expr: Expr) -> Call | None:
    """Return a dequantize of an 8-bit tensor with one scale and one zero point."""
    call = _dequantized(expr)
    if call is None or dtype_of(call.args[0]) not in ("int8", "uint8"):
        return None
    return call if scalar_of(call.args[1]) is not None and scalar_of(call.args[2]) is not None else None


def _weights(expr: Expr, axis: int) -> Call | None:
    """Return a dequantize of 8-bit weights, quantized as a whole or along the output channels `axis`."""
    call = _dequantized(expr)
    if call is None or dtype_of(call.args[0]) not in ("int8", "uint8") or scalar_of(call.args[2]) is None:
        return None
    whole = scalar_of(call.args[1]) is not None
    return call if whole or call.attrs["axis"] % len(shape_of(expr)) == axis else None


def _number(expr: Expr) -> float:
    value = scalar_of(expr)
    if value is None:
        raise InternalError("a quantization parameter was expected to be one number")
    return value


def _scalar(expr: Expr, dtype: str) -> Constant:
    return ir.const(_number(expr), dtype)


def _integer_product(call: Call, data: Call, weights: Call, channel_axis: int) -> Expr:
    """Return the dequantized integer form of a product of dequantized tensors."""
    data_scale, weight_scale = _scalar(data.args[1], "float32"), _vector_or_scalar(weights.args[1])
    args = [
        data.args[0], weights.args[0], _scalar(data.args[2], "int32"), _scalar(weights.args[2], "int32"),
        data_scale, weight_scale,
    ]  # fmt: skip
    nodes = ir.Span(data.span.merged(weights.span).merged(call.span).nodes)
    sums = ir.call(forms("integer_of")[op_name(call) or ""], args, {**call.attrs, "out_dtype": "int32"}, span=nodes)
    return _dequantize_sums(sums, data_scale.data * weight_scale.data, channel_axis, call.span)


def _vector_or_scalar(expr: Expr) -> Constant:
    value = value_of(expr)
    if value is None:
        raise InternalError("quantization parameters were expected to be constants")
    return ir.const(value.reshape(()) if value.size == 1 else value, "float32")


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
    """Return a dequantize of int32 sums: what stands for a float product here."""
    call = _dequantized(expr)
    if call is None or dtype_of(call.args[0]) != "int32" or scalar_of(call.args[2]) != 0:
        return None
    return call


def _add(call: Call, *, rounds: bool = False) -> Expr | None:
    """Turn the addition of a per-channel constant into a bias of the integer sums.

    Without `rounds`, only if it is a whole number of their steps: what is not quantized again keeps its precision.
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
        wide = per_channel(steps, shape_of(call), axis)
        if wide is None:
            return None
        steps = wide
    integers = Constant(steps.astype(np.int32), None, bias.span)
    nodes = ir.Span(sums.span.merged(call.span).nodes)
    biased = ir.call("nn.bias_add", [sums.args[0], integers], axis=axis, span=nodes)
    return _dequantize_sums(biased, scale, axis, call.span)


def _bias_steps(bias: Expr, scale: Array, *, rounds: bool) -> Array | None:
    """Return a constant bias in units of the sums' scale, of the shape of `bias`; None if it must not be rounded."""
    call, value = _dequantized(bias), _constant_value(bias)
    if call is not None and isinstance(call.args[0], Constant) and scalar_of(call.args[2]) == 0:
        own = value_of(call.args[1])
        # the exporter's product of the scales differs from ours by rounding; the integers are meant
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
    """Return the value of a constant, or of a dequantized one in float64."""
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
    if match_call(call.args[0], "concatenate"):
        return _quantize_parts(call)
    return _requantize(call)


def _requantize(call: Call) -> Expr | None:
    """Turn sums that are dequantized, perhaps limited, and quantized again into a requantization."""
    source, limits = call.args[0], []
    while (limited := match_call(source, "nn.relu", "clip")) is not None:
        limits.append(limited)
        source = limited.args[0]
    if match_call(source, "add", "nn.bias_add") and isinstance(source, Call):
        source = (_add if match_call(source, "add") else _bias_add)(source, rounds=True) or source
    sums = _integer_sums(source)
    if sums is None or scalar_of(call.args[1]) is None or scalar_of(call.args[2]) is None:
        return None
    if call.attrs["rounding"] != "TONEVEN":  # a TFLite model: its reference does these in float arithmetic
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
    """Limit integers to what the limits of the real numbers quantize to: quantization keeps order."""
    infinity = float(np.inf)
    is_relu = match_call(limited, "nn.relu") is not None
    bounds = (0.0, infinity) if is_relu else (limited.attrs["a_min"], limited.attrs["a_max"])
    low, high = (_quantized_bound(bound, quantize) for bound in bounds)
    if (low, high) == tuple(map(float, dtypes.limits(dtype_of(result)))):
        return result
    return ir.call("clip", [result], a_min=low, a_max=high, span=result.span)


def _quantized_bound(bound: float, quantize: Call) -> float:
    low, high = dtypes.limits(dtype_of(quantize))
    steps = np.rint(np.float32(bound) / np.float32(_number(quantize.args[1])))
    return float(np.clip(steps + _number(quantize.args[2]), low, high))


def _quantize_parts(call: Call) -> Expr | None:
    """Quantize the parts of a concatenation if some of them are integers already."""
    joined = match_call(call.args[0], "concatenate")
    if joined is None or not isinstance(joined.args[0], Tuple) or not isinstance(call.op, Operator):
        return None
    parts = joined.args[0].fields
    if scalar_of(call.args[1]) is None or not any(match_call(part, "qnn.dequantize") for part in parts):
        return None
    quantized = [_quantized_part(part, call) for part in parts]
    return ir.call("concatenate", [Tuple(tuple(quantized))], joined.attrs, span=joined_span(joined, call))


def _quantized_part(part: Expr, quantize: Call) -> Expr:
    inner = _byte_tensor(part)
    if inner and dtype_of(inner.args[0]) == dtype_of(quantize) and same_quantization(inner.args[1:], quantize.args[1:]):
        return inner.args[0]
    nodes = ir.Span(quantize.span.nodes)
    call = ir.call("qnn.quantize", [part, *quantize.args[1:]], quantize.attrs, span=nodes)
    return _quantize(call) or call


def _movement(call: Call) -> Expr | None:
    """Move integers instead of the real numbers that they stand for."""
    inner = _byte_tensor(call.args[0])
    if inner is None or not isinstance(call.op, Operator) or 0 in shape_of(call.args[0]):
        return None
    if any(not isinstance(arg, Constant) and arg is not call.args[0] for arg in call.args):
        return None
    moved = ir.call(call.op.name, [inner.args[0], *call.args[1:]], call.attrs, span=ir.Span(call.span.nodes))
    return _dequantize_like(moved, inner, call)


def _dequantize_like(moved: Expr, inner: Call, call: Call) -> Expr:
    attrs = {**inner.attrs, "axis": -1}
    args = [moved, _scalar(inner.args[1], "float32"), _scalar(inner.args[2], "int32")]
    return ir.call("qnn.dequantize", args, attrs, span=call.span)


def _weights_movement(call: Call) -> Expr | None:
    """Transpose the integers of weights that are quantized along an axis."""
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
    kind = dtype_of(inner.args[0])
    limits = {"a_min": _number(inner.args[2]), "a_max": dtypes.limits(kind)[1]}
    limited = ir.call("clip", [inner.args[0]], limits, span=ir.Span(call.span.nodes))
    return _dequantize_like(limited, inner, call)


def _pad(call: Call) -> Expr | None:
    inner, fill = _byte_tensor(call.args[0]), scalar_of(call.args[1])
    if inner is None or (call.attrs["pad_mode"] == "constant" and fill != 0):
        return None
    kind = dtype_of(inner.args[0])
    value = _scalar(inner.args[2], kind)
    padded = ir.call("nn.pad", [inner.args[0], value], call.attrs, span=ir.Span(call.span.nodes))
    return _dequantize_like(padded, inner, call)


def _concatenate(call: Call) -> Expr | None:
    parts = [_byte_tensor(arg) for arg in flat_args(call)]
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts):
        return None
    first = found[0]
    same_dtype = {dtype_of(part.args[0]) for part in found} == {dtype_of(first.args[0])}
    if not same_dtype or not all(same_quantization(part.args[1:], first.args[1:]) for part in found):
        return None
    joined = Tuple(tuple(part.args[0] for part in found))
    moved = ir.call("concatenate", [joined], call.attrs, span=ir.Span(call.span.nodes))
    return _dequantize_like(moved, first, call)


_MOVEMENTS = (Elements.SAME, Elements.MOVED, Elements.EXTREME)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(forms("integer_of"), _product),
    **dict.fromkeys(names_of(lambda operator: operator.elements in _MOVEMENTS), _movement),
    "add": _add,
    "nn.bias_add": _bias_add,
    "qnn.quantize": _quantize,
    "transpose": _weights_movement,
    "nn.relu": _relu,
    "nn.pad": _pad,
    "concatenate": _concatenate,
}
