"""What Relay text says of quantized operators that TVM does not have: the same in real numbers, of TVM's operators.

TVM's results may differ from ours by one: it is the text for other readers, and mlfc reads its own operators back.
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
    """Return what an operator on data, scale, zero point, and those of the result is in real numbers."""

    def in_tvm(args: Args, attrs: Attrs, out: TensorType) -> Expr:
        return _quantized(rule(_real(*args[:3]), attrs), out, *args[3:])

    return in_tvm


def _real(data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    return call("qnn.dequantize", [data, scale, zero_point], out_dtype="float32")


def _quantized(value: Expr, out: TensorType, scale: Expr, zero_point: Expr) -> Expr:
    return call("qnn.quantize", [value, scale, zero_point], out_dtype=out.dtype)


def _number(value: float) -> Expr:
    return const(value, "float32")


def mean(data: Expr, attrs: Attrs) -> Expr:
    """Return the mean."""
    return call("mean", [data], attrs)


def log_softmax(data: Expr, _: Attrs) -> Expr:
    """Return the logarithm of softmax along the last axis."""
    return call("nn.log_softmax", [data], {"axis": -1})


def l2_normalize(data: Expr, _: Attrs) -> Expr:
    """Return rows along the last axis divided by their magnitude."""
    squares = call("sum", [call("multiply", [data, data])], {"axis": (-1,), "keepdims": True})
    return call("divide", [data, call("maximum", [call("sqrt", [squares]), _number(1e-6)])])


def softmax(args: Args, attrs: Attrs, out: TensorType) -> Expr | None:
    """Return it for uint8, which TVM's operator does not take."""
    in_tvm = in_reals(lambda data, _: call("nn.softmax", [data], {"axis": attrs["axis"]}))
    return None if out.dtype == "int8" else in_tvm(args, attrs, out)


def elu(data: Expr, _: Attrs) -> Expr:
    """Return exp(x) - 1 below zero."""
    below = call("nn.relu", [call("subtract", [_number(1.0), call("exp", [data])])])
    return call("subtract", [call("nn.relu", [data]), below])


def gelu(data: Expr, attrs: Attrs) -> Expr:
    """Return x * (1 + erf(x / sqrt(2))) / 2, or its form with tanh."""
    if attrs["approximate"]:
        cube = call("multiply", [call("multiply", [data, data]), data])
        inner = call("add", [data, call("multiply", [cube, _number(_TANH_CUBE)])])
        bent = call("tanh", [call("multiply", [inner, _number(_TANH_SLOPE)])])
    else:
        bent = call("erf", [call("multiply", [data, _number(_HALF_ROOT)])])
    return call("multiply", [call("multiply", [data, _number(0.5)]), call("add", [bent, _number(1.0)])])


def quotient(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return the quotient."""
    lhs, rhs = _real(args[0], *args[2:4]), _real(args[1], *args[4:6])
    return _quantized(call("divide", [lhs, rhs]), out, *args[6:])


def squared_difference(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return the squared difference."""
    difference = call("subtract", [_real(args[0], *args[2:4]), _real(args[1], *args[4:6])])
    return _quantized(call("multiply", [difference, difference]), out, *args[6:])


def prelu(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return x above zero, x * slope below."""
    data, slope = _real(args[0], *args[2:4]), _real(args[1], *args[4:6])
    below = call("multiply", [call("minimum", [data, _number(0.0)]), slope])
    return _quantized(call("add", [call("nn.relu", [data]), below]), out, *args[6:])


def resize_bilinear(args: Args, attrs: Attrs, out: TensorType) -> Expr:
    """Return the resized numbers, rounded."""
    modes = {(True, False): "align_corners", (False, True): "half_pixel"}
    resized = call(
        "image.resize2d",
        [call("cast", args, dtype="float32")],
        size=attrs["size"],
        roi=(0.0, 0.0, 0.0, 0.0),
        layout="NHWC",
        coordinate_transformation_mode=modes.get((attrs["align_corners"], attrs["half_pixel_centers"]), "asymmetric"),
    )
    return call("cast", [call("round", [resized])], dtype=out.dtype)


def symmetric_quantize(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return data * 127 / magnitude as integers."""
    factor = call("divide", [_number(_HIGHEST), call("maximum", [args[1], _number(_SMALLEST)])])
    codes = call("clip", [call("round", [call("multiply", [args[0], factor])])], a_min=-_HIGHEST, a_max=_HIGHEST)
    return call("cast", [codes], dtype=out.dtype)


def asymmetric_scale(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return (high - low) / 255; 1 where they are equal."""
    low, high = args
    spread = call("divide", [call("subtract", [high, low]), _number(_HIGHEST - _LOWEST)])
    ones = call("ones", [], shape=tensor_type(spread).shape, dtype=out.dtype)
    return call("where", [call("equal", [low, high]), ones, spread])


def asymmetric_zero_point(args: Args, attrs: Attrs, out: TensorType) -> Expr:
    """Return the code of zero."""
    scale = asymmetric_scale(args, attrs, TensorType(out.shape, "float32"))
    place = call("subtract", [_number(_LOWEST), call("divide", [args[0], scale])])
    limited = call("clip", [call("round", [place])], a_min=_LOWEST, a_max=_HIGHEST)
    return call("cast", [limited], dtype=out.dtype)


def centred_quantize(args: Args, _: Attrs, out: TensorType) -> Expr:
    """Return int8 codes without their zero point."""
    data, scale, zero_point = args
    offset = call("cast", [zero_point], dtype="float32")
    codes = call("round", [call("add", [call("divide", [data, scale]), offset])])
    limited = call("clip", [codes], a_min=_LOWEST, a_max=_HIGHEST)
    return call("cast", [call("subtract", [limited, offset])], dtype=out.dtype)
