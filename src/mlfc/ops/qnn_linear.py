"""Quantized convolutions, dense layers and matrix products: exact int32 or int64 sums of zero-centred products.

The scales among the arguments define the real values of the integers; the sums do not depend on them. As in TFLite's
hybrid kernels, float data may be quantized at run time by its own range. The symmetric form has codes in [-127, 127]
and no zero point. The asymmetric form has all 256 codes; its zero point is not a constant, so it is subtracted from the
codes, which are stored as int16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops import qnn_in_tvm
from mlfc.ops.conv import BATCH_ATTRS, Zeros, declare_conv, declare_product, dense_filters
from mlfc.ops.rules import Element, broadcast_shape, declare, optional_dtype
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Kind
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor, broadcast_read
from mlfc.tir.ir import Expr

# arguments after data and weights: name, dtype, whether each output channel may have its own
_NUMBERS = (
    ("zero point", "int32", False), ("zero point", "int32", True),
    ("scale", "float32", False), ("scale", "float32", True),
)  # fmt: skip


def _sum_dtype(name: str, attrs: Attrs, types: Sequence[TensorType], channels: int) -> str:
    """Check operands, zero points and scales; return the dtype of the sums."""
    for operand in types[:2]:
        if operand.dtype not in ("int8", "uint8", "int16"):
            raise TypeCheckError(f"{name}: expected operands of int8, uint8 or int16, got {operand.dtype}")
    for index, (kind, (what, dtype, per_channel)) in enumerate(zip(types[2:], _NUMBERS, strict=True), 2):
        allowed: tuple[tuple[int, ...], ...] = ((), (1,), (channels,)) if per_channel else ((), (1,))
        if kind.dtype != dtype or kind.shape not in allowed:
            raise TypeCheckError(f"{name}: argument {index}, a {what}, must be {dtype} of 1 element"
                                 f"{f' or {channels}' * per_channel}, not {kind}")  # fmt: skip
    dtype = optional_dtype(attrs["out_dtype"], "int32")
    if dtype not in ("int32", "int64"):
        raise TypeCheckError(f"{name}: expected out_dtype int32 or int64, got {dtype}")
    return dtype


def _zero_points(name: str, inputs: Sequence[Tensor]) -> Zeros:
    data, weight = inputs[2].value, inputs[3].value
    if data is None or weight is None:
        raise UnsupportedError(f"{name} needs zero points that are known at compile time")
    return int(data.reshape(())), int(weight.reshape(())) if weight.size == 1 else np.asarray(weight, np.int32)


for _name, _transposed, _doc in (
    ("qnn.conv2d", False, "Convolution of quantized data with quantized weights; int32 or int64 sums."),
    ("qnn.conv2d_transpose", True, "Transposed convolution of quantized data; int32 or int64 sums."),
):
    declare_conv(_name, 2, _doc, transposed=_transposed, num_inputs=6, check=_sum_dtype, zeros=_zero_points,
                 contract="exact", integer_of=_name.replace("qnn", "nn"))  # fmt: skip
declare_product("qnn.dense", "Dense layer of quantized data; int32 or int64 sums.", num_inputs=6, check=_sum_dtype,
                zeros=_zero_points, contract="exact", filters=dense_filters, integer_of="nn.dense")  # fmt: skip
declare_product("qnn.batch_matmul", "Matrix product of each pair of a batch of quantized matrices.",
                batched=True, num_inputs=6, attrs=BATCH_ATTRS, check=_sum_dtype, zeros=_zero_points,
                contract="exact", integer_of="nn.batch_matmul")  # fmt: skip


_LOWEST, _HIGHEST = -128, 127


def _float(value: float) -> Expr:
    return tb.const(value, "float32")


def symmetric(data: Expr, magnitude: Expr) -> Expr:
    """Quantize a number with the scale magnitude / 127."""
    nearest = tb.intrinsic("round_away", data * (_float(127.0) / magnitude))
    code = tb.cast(tb.cast(tb.clamp(nearest, -127.0, 127.0), "int32"), "int8")
    return tb.select(tb.binary("eq", magnitude, 0.0), tb.const(0, "int8"), code)


def asymmetric_scale(low: Expr, high: Expr) -> Expr:
    """Return the scale, or 1 if all data is zero."""
    scale = (high - low) / _float(_HIGHEST - _LOWEST)
    return tb.select(tb.binary("eq", low, high), _float(1.0), scale)


def asymmetric_zero_point(low: Expr, high: Expr) -> Expr:
    """Return the zero point, computed from the end of the range that gives the smaller rounding error."""
    scale = asymmetric_scale(low, high)
    below, above = low / scale, high / scale
    from_low, from_high = _float(_LOWEST) - below, _float(_HIGHEST) - above
    # the errors are |lowest| + |below| and |highest| + |above|; low <= 0 and high >= 0
    nearer_low = tb.binary("lt", _float(-_LOWEST) - below, _float(_HIGHEST) + above)
    place = tb.clamp(tb.select(nearer_low, from_low, from_high), float(_LOWEST), float(_HIGHEST))
    zero_point = tb.cast(tb.intrinsic("round_away", place), "int32")
    return tb.select(tb.binary("eq", low, high), tb.const(0), zero_point)


def centred(data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    """Quantize a number to int8 and subtract the zero point."""
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


_declare("qnn.symmetric_quantize", ("float32", "float32"), "int8", symmetric,
         "Real numbers as codes of the scale magnitude / 127; arguments are data and magnitude.")  # fmt: skip
_declare("qnn.asymmetric_scale", ("float32", "float32"), "float32", asymmetric_scale,
         "The scale that maps the range from low (at most 0) to high (at least 0) to int8.")  # fmt: skip
_declare("qnn.asymmetric_zero_point", ("float32", "float32"), "int32", asymmetric_zero_point,
         "The int8 code of zero in the range from low (at most 0) to high (at least 0).")  # fmt: skip
_declare("qnn.centred_quantize", ("float32", "float32", "int32"), "int16", centred,
         "Real numbers as int8 codes minus their zero point; arguments are data, scale and zero point.")  # fmt: skip
