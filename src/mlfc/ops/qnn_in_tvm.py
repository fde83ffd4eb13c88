"""Relay text of quantized operators that TVM does not have, written in real numbers with TVM's operators.

TVM's results may differ from mlfc's by one, those of ``qnn.prod`` by more. The text is for other readers; mlfc reads
its own operators back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mlfc.relay.ir import Expr, TensorType, call, const, tensor_type

Args: TypeAlias = Sequence[Expr]
Attrs: TypeAlias = Mapping[str, Any]
InTvm: TypeAlias = Callable[[Args, Attrs, TensorType], "Expr | None"]

_HALF_ROOT, _TANH_SLOPE, _TANH_CUBE = 0.7071067811865476, 0.7978845608028654, 0.044715
_LOWEST, _HIGHEST = -128.0, 127.0
_SMALLEST = 1e-30


def in_reals(rule: Callable[[Expr, Attrs], Expr]) -> InTvm:
    """Adapt a rule in real numbers to an operator on data, scale and zero point, and those of the result."""
    return lambda args, attrs, out: _quantized(rule(_real(*args[:3]), attrs), out, *args[3:])


def pair_in_reals(rule: Callable[[Expr, Expr], Expr]) -> InTvm:
    """Adapt a rule in real numbers to an operator on two tensors, their scales and zero points, and the result's."""
    return lambda args, _, out: _quantized(rule(_real(args[0], *args[2:4]), _real(args[1], *args[4:6])), out, *args[6:])


def _of(operator: str, *args: Expr | float, **attrs: Any) -> Expr:
    """Return a call of `operator`; numbers become float32 constants."""
    return call(operator, [const(arg, "float32") if isinstance(arg, float) else arg for arg in args], attrs)


def _real(data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    return _of("qnn.dequantize", data, scale, zero_point, out_dtype="float32")


def _quantized(value: Expr, out: TensorType, scale: Expr, zero_point: Expr) -> Expr:
    return _of("qnn.quantize", value, scale, zero_point, out_dtype=out.dtype)


def _limited(value: Expr, low: float = _LOWEST) -> Expr:
    return _of("clip", _of("round", value), a_min=low, a_max=_HIGHEST)


def l2_normalize(data: Expr, _: Attrs) -> Expr:
    """Return rows along the last axis divided by their magnitude."""
    squares = _of("sum", _of("multiply", data, data), axis=(-1,), keepdims=True)
    return _of("divide", data, _of("maximum", _of("sqrt", squares), 1e-6))


def softmax(args: Args, attrs: Attrs, out: TensorType) -> Expr | None:
    """Return the softmax for uint8, which TVM's operator does not support."""
    in_tvm = in_reals(lambda data, _: _of("nn.softmax", data, axis=attrs["axis"]))
    return None if out.dtype == "int8" else in_tvm(args, attrs, out)


def elu(data: Expr, _: Attrs) -> Expr:
    """Return x, or exp(x) - 1 below zero."""
    below = _of("nn.relu", _of("subtract", 1.0, _of("exp", data)))
    return _of("subtract", _of("nn.relu", data), below)


def gelu(data: Expr, attrs: Attrs) -> Expr:
    """Return x * (1 + erf(x / sqrt(2))) / 2, or its tanh approximation."""
    if attrs["approximate"]:
        inner = _of("add", data, _of("multiply", _of("multiply", _of("multiply", data, data), data), _TANH_CUBE))
        bent = _of("tanh", _of("multiply", inner, _TANH_SLOPE))
    else:
        bent = _of("erf", _of("multiply", data, _HALF_ROOT))
    return _of("multiply", _of("multiply", data, 0.5), _of("add", bent, 1.0))


def squared_difference(lhs: Expr, rhs: Expr) -> Expr:
    """Return (lhs - rhs) ** 2."""
    difference = _of("subtract", lhs, rhs)
    return _of("multiply", difference, difference)


def prelu(data: Expr, slope: Expr) -> Expr:
    """Return x above zero, x * slope below."""
    return _of("add", _of("nn.relu", data), _of("multiply", _of("minimum", data, 0.0), slope))


def resize_bilinear(args: Args, attrs: Attrs, out: TensorType) -> Expr:
    """Return the resized values, rounded."""
    modes = {(True, False): "align_corners", (False, True): "half_pixel"}
    mode = modes.get((attrs["align_corners"], attrs["half_pixel_centers"]), "asymmetric")
    resized = _of("image.resize2d", _of("cast", *args, dtype="float32"), size=attrs["size"], roi=(0.0,) * 4,
                  layout="NHWC", coordinate_transformation_mode=mode)  # fmt: skip
    return _of("cast", _of("round", resized), dtype=out.dtype)


def symmetric_quantize(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return data * 127 / magnitude as integers."""
    factor = _of("divide", _HIGHEST, _of("maximum", args[1], _SMALLEST))
    return _of("cast", _limited(_of("multiply", args[0], factor), -_HIGHEST), dtype=out.dtype)


def asymmetric_scale(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return (high - low) / 255, or 1 if they are equal."""
    low, high = args
    spread = _of("divide", _of("subtract", high, low), _HIGHEST - _LOWEST)
    return _of("where", _of("equal", low, high), _of("ones", shape=tensor_type(spread).shape, dtype=out.dtype), spread)


def asymmetric_zero_point(args: Args, attrs: Attrs, out: TensorType) -> Expr:
    """Return the code of zero."""
    scale = asymmetric_scale(args, attrs, TensorType(out.shape, "float32"))
    return _of("cast", _limited(_of("subtract", _LOWEST, _of("divide", args[0], scale))), dtype=out.dtype)


def centred_quantize(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return int8 codes without their zero point."""
    data, scale, zero_point = args
    offset = _of("cast", zero_point, dtype="float32")
    codes = _limited(_of("add", _of("divide", data, scale), offset))
    return _of("cast", _of("subtract", codes, offset), dtype=out.dtype)
