"""Quantization with scales that are known only when the model runs, as TFLite's hybrid kernels do it.

Float data is brought to integers by its own largest values, multiplied with int8 weights exactly, and scaled
back. The symmetric form has codes in [-127, 127] and no zero point. The asymmetric form spreads the range of
the data over all 256 codes; as its zero point is not a constant, the codes are kept without it, in int16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlfc.errors import TypeCheckError
from mlfc.ops import qnn_in_tvm
from mlfc.ops.rules import Element, broadcast_shape, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor, broadcast_read
from mlfc.tir.ir import Expr

_LOWEST, _HIGHEST = -128, 127


def _float(value: float) -> Expr:
    return tb.const(value, "float32")


def _symmetric(data: Expr, magnitude: Expr) -> Expr:
    nearest = tb.intrinsic("round_away", data * (_float(127.0) / magnitude))
    code = tb.cast(tb.cast(tb.clamp(nearest, -127.0, 127.0), "int32"), "int8")
    return tb.select(tb.binary("eq", magnitude, 0.0), tb.const(0, "int8"), code)


def _asymmetric_scale(low: Expr, high: Expr) -> Expr:
    """Return the scale; 1 where the data is nothing but zeros."""
    scale = (high - low) / _float(_HIGHEST - _LOWEST)
    return tb.select(tb.binary("eq", low, high), _float(1.0), scale)


def _asymmetric_zero_point(low: Expr, high: Expr) -> Expr:
    """Return the zero point from that end of the range from which it is the more exact."""
    scale = _asymmetric_scale(low, high)
    below, above = low / scale, high / scale
    from_low, from_high = _float(_LOWEST) - below, _float(_HIGHEST) - above
    # the errors are |lowest| + |below| and |highest| + |above|; low is not above zero, high not below
    nearer_low = tb.binary("lt", _float(-_LOWEST) - below, _float(_HIGHEST) + above)
    place = tb.clamp(tb.select(nearer_low, from_low, from_high), float(_LOWEST), float(_HIGHEST))
    zero_point = tb.cast(tb.intrinsic("round_away", place), "int32")
    return tb.select(tb.binary("eq", low, high), tb.const(0), zero_point)


def _centred(data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    nearest = tb.intrinsic("round_away", tb.cast(zero_point, "float32") + data * (_float(1.0) / scale))
    code = tb.cast(tb.clamp(nearest, float(_LOWEST), float(_HIGHEST)), "int32")
    return tb.cast(code - zero_point, "int16")


def _infer(
    dtypes: tuple[str, ...], result: str, name: str, _: Attrs, data: TensorType, *more: TensorType
) -> TensorType:
    """Type rule of an operator whose later arguments broadcast to its first."""
    for kind, dtype in zip((data, *more), dtypes, strict=True):
        if kind.dtype != dtype:
            raise TypeCheckError(f"{name}: expected {dtype}, got {kind}")
        if broadcast_shape(name, data.shape, kind.shape) != data.shape:
            raise TypeCheckError(f"{name}: {kind} does not broadcast to {data}")
    return TensorType(data.shape, result)


def _declare(name: str, dtypes: tuple[str, ...], result: str, rule: Callable[..., Expr], doc: str) -> None:
    def element(of: Element, *inputs: Tensor) -> Expr:
        return rule(*(broadcast_read(tensor, of.at) for tensor in inputs))

    declare(name, len(dtypes), partial(_infer, dtypes, result), Kind.BROADCAST, element=element,
            rounding_sensitive=True, in_tvm=getattr(qnn_in_tvm, name.removeprefix("qnn.")),
            contract="bit-exact to TFLite's hybrid kernels", doc=doc)  # fmt: skip


_declare("qnn.symmetric_quantize", ("float32", "float32"), "int8", _symmetric,
         "Real numbers as codes of the scale magnitude / 127; arguments are data and magnitude.")  # fmt: skip
_declare("qnn.asymmetric_scale", ("float32", "float32"), "float32", _asymmetric_scale,
         "The scale that spreads the range from low (at most 0) to high (at least 0) over int8.")  # fmt: skip
_declare("qnn.asymmetric_zero_point", ("float32", "float32"), "int32", _asymmetric_zero_point,
         "The int8 code of zero in the range from low (at most 0) to high (at least 0).")  # fmt: skip
_declare("qnn.centred_quantize", ("float32", "float32", "int32"), "int16", _centred,
         "Real numbers as int8 codes minus their zero point; arguments are data, scale and zero point.")  # fmt: skip
