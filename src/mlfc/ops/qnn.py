"""Moving between real numbers and integers: ``qnn.quantize``, ``qnn.dequantize``, ``qnn.requantize``.

An integer tensor stands for ``scale * (value - zero_point)``. Scales and zero points are constants; a scale of
one dimension holds one number for each index of `axis`. A scale may be float64 where it is the product of
two float32 scales: the references compute multipliers from the unrounded product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops.rules import normalized_axis, tensors
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes
from mlfc.support.fixed_point import quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Reader, Tensor
from mlfc.tir.ir import Const, Expr

Attrs = Mapping[str, Any]

REQUANTIZE_ROUNDINGS = ("None", "UPWARD", "TONEAREST", "TONEVEN", "SINGLE", "DOUBLE")
QUANTIZE_ROUNDINGS = ("TONEAREST", "TONEVEN")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def check_scale(name: str, kind: TensorType) -> None:
    """Refuse what is not a floating-point scalar or vector."""
    if kind.dtype not in ("float32", "float64") or len(kind.shape) > 1:
        raise TypeCheckError(f"{name}: a scale must be a float32 scalar or vector, not {kind}")


def check_zero_point(name: str, kind: TensorType) -> None:
    """Refuse what is not an int32 scalar or vector."""
    if kind.dtype != "int32" or len(kind.shape) > 1:
        raise TypeCheckError(f"{name}: a zero point must be an int32 scalar or vector, not {kind}")


def check_pair(name: str, scale: TensorType, zero_point: TensorType) -> None:
    """Check the types of a scale and its zero point."""
    check_scale(name, scale)
    check_zero_point(name, zero_point)


def known(name: str, tensor: Tensor) -> npt.NDArray[Any]:
    """Return a scale or zero point as a vector of one or more numbers; it must be a constant."""
    if tensor.value is None:
        raise UnsupportedError(
            f"{name} needs scales and zero points that are known at compile time",
            next_step="Quantize with constant scales",
        )
    return np.atleast_1d(tensor.value)


def per_axis(ctx: Context, values: npt.NDArray[Any], label: str, indices: Indices, *, axis: int, dtype: str) -> Expr:
    """Return one of `values`, as a literal where all are equal, else from a table by the index of `axis`."""
    array = values.astype(dtypes.to_numpy(dtype))
    if np.all(array == array.flat[0]):
        return tb.const(array.flat[0].item(), dtype)
    if ctx.small and dtype == "int32" and np.array_equal(array, array.astype(np.int8)):
        return tb.cast(tb.load(ctx.constant(label, array.astype(np.int8)), [indices[axis]]), dtype)
    return tb.load(ctx.constant(label, array), [indices[axis]])


def saturate(value: Expr, dtype: str) -> Expr:
    """Return an int32 value limited to the range of `dtype`, as `dtype`."""
    if dtype == "int32":
        return value
    return tb.cast(tb.clamp(value, *dtypes.limits(dtype)), dtype)


def rescaled(value: Expr, real: float) -> Expr:
    """Return an int32 value times a real number, as TFLite's MultiplyByQuantizedMultiplier rounds it (twice)."""
    if real == 1.0:
        return value
    multiplier, shift = quantize_multiplier(real)
    if shift < 0:
        return tb.intrinsic("requantize_down", value, tb.const(multiplier), tb.const(-1 - shift))
    return tb.intrinsic("requantize_double", value, tb.const(multiplier), tb.const(shift))


def _axis(name: str, attrs: Attrs, rank: int) -> int:
    return normalized_axis(name, attrs["axis"], rank) if rank else 0


def _table_axis(name: str, attrs: Attrs, inputs: list[Tensor]) -> int:
    """Return the axis that scales and zero points go along; where each is one number, the data may have any rank."""
    if all(known(name, tensor).size == 1 for tensor in inputs[1:]):
        return 0
    return _axis(name, attrs, len(inputs[0].shape))


def _check_axis(name: str, data: TensorType, attrs: Attrs, kinds: Sequence[TensorType]) -> None:
    for kind in kinds:
        if kind.shape not in ((), (1,)):
            axis = _axis(name, attrs, len(data.shape))
            if not data.shape or kind.shape[0] != data.shape[axis]:
                raise TypeCheckError(f"{name}: {kind.shape[0]} scales or zero points for axis {axis} of {data}")


def _out_dtype(name: str, attrs: Attrs, allowed: tuple[str, ...], default: str) -> str:
    dtype = default if attrs["out_dtype"] in (None, "", "void") else attrs["out_dtype"]
    if dtype not in allowed:
        raise TypeCheckError(f"{name}: out_dtype must be one of {', '.join(allowed)}, not {dtype}")
    return str(dtype)


def _check_rounding(name: str, attrs: Attrs, allowed: tuple[str, ...]) -> None:
    if attrs["rounding"] not in allowed:
        raise TypeCheckError(f"{name}: rounding must be one of {', '.join(allowed)}, not {attrs['rounding']}")


def _infer_quantize(types: list[Type], attrs: Attrs) -> TensorType:
    data, scale, zero_point = tensors("qnn.quantize", types)
    if data.dtype != "float32":
        raise TypeCheckError(f"qnn.quantize: data must be float32, not {data.dtype}")
    check_pair("qnn.quantize", scale, zero_point)
    _check_axis("qnn.quantize", data, attrs, (scale, zero_point))
    _check_rounding("qnn.quantize", attrs, QUANTIZE_ROUNDINGS)
    return TensorType(data.shape, _out_dtype("qnn.quantize", attrs, _INTEGERS[:-1], "int8"))


def quantized(value: Expr, scale: Expr, zero_point: Expr, dtype: str, rounding: str = "TONEAREST") -> Expr:
    """Return a float32 value as an integer of `dtype`, saturated; not-a-number gives the lowest integer."""
    low, high = dtypes.limits(dtype)
    nearest = tb.intrinsic("round_even" if rounding == "TONEVEN" else "round_away", value / scale)
    offset = tb.cast(zero_point, "float32")
    if isinstance(zero_point, Const):
        shift = zero_point.value
        limited = tb.clamp(nearest, float(low - shift), float(high - shift))
    else:
        limited = tb.clamp(nearest, tb.const(float(low), "float32") - offset, tb.const(float(high), "float32") - offset)
    return tb.cast(tb.truncated(limited, "int32") + zero_point, dtype)


def _compute_quantize(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: TensorType) -> Reader:
    data, axis = inputs[0], _table_axis("qnn.quantize", attrs, inputs)
    scales, zero_points = known("qnn.quantize", inputs[1]), known("qnn.quantize", inputs[2])

    def read(indices: Indices) -> Expr:
        scale = per_axis(ctx, scales, "scale", indices, axis=axis, dtype="float32")
        zero_point = per_axis(ctx, zero_points, "zero_point", indices, axis=axis, dtype="int32")
        return quantized(data.read(indices), scale, zero_point, out.dtype, attrs["rounding"])

    return read


def _infer_dequantize(types: list[Type], attrs: Attrs) -> TensorType:
    data, scale, zero_point = tensors("qnn.dequantize", types)
    if data.dtype not in _INTEGERS:
        raise TypeCheckError(f"qnn.dequantize: data must be one of {', '.join(_INTEGERS)}, not {data.dtype}")
    check_pair("qnn.dequantize", scale, zero_point)
    _check_axis("qnn.dequantize", data, attrs, (scale, zero_point))
    return TensorType(data.shape, _out_dtype("qnn.dequantize", attrs, ("float32",), "float32"))


def _compute_dequantize(ctx: Context, inputs: list[Tensor], attrs: Attrs, _: TensorType) -> Reader:
    data, axis = inputs[0], _table_axis("qnn.dequantize", attrs, inputs)
    scales, zero_points = known("qnn.dequantize", inputs[1]), known("qnn.dequantize", inputs[2])

    def read(indices: Indices) -> Expr:
        scale = per_axis(ctx, scales, "scale", indices, axis=axis, dtype="float32")
        zero_point = per_axis(ctx, zero_points, "zero_point", indices, axis=axis, dtype="int32")
        return tb.cast(tb.cast(data.read(indices), "int32") - zero_point, "float32") * scale

    return read


def _infer_requantize(types: list[Type], attrs: Attrs) -> TensorType:
    name = "qnn.requantize"
    data, *pairs = tensors(name, types)
    if data.dtype not in _INTEGERS:
        raise TypeCheckError(f"{name}: data must be one of {', '.join(_INTEGERS)}, not {data.dtype}")
    check_pair(name, pairs[0], pairs[1])
    check_pair(name, pairs[2], pairs[3])
    _check_axis(name, data, attrs, pairs)
    _check_rounding(name, attrs, REQUANTIZE_ROUNDINGS)
    return TensorType(data.shape, _out_dtype(name, attrs, _INTEGERS, "int8"))


def _compute_requantize(ctx: Context, inputs: list[Tensor], attrs: Attrs, out: TensorType) -> Reader:
    name, data = "qnn.requantize", inputs[0]
    axis = _table_axis(name, attrs, inputs)
    in_scale, in_zero, out_scale, out_zero = (known(name, tensor) for tensor in inputs[1:])
    scaled = _scaling(ctx, attrs["rounding"], in_scale, out_scale, axis)

    def read(indices: Indices) -> Expr:
        value = tb.cast(data.read(indices), "int32") - per_axis(
            ctx, in_zero, "in_zero", indices, axis=axis, dtype="int32"
        )
        zero_point = per_axis(ctx, out_zero, "out_zero", indices, axis=axis, dtype="int32")
        return saturate(scaled(value, indices) + zero_point, out.dtype)

    return read


def _scaling(ctx: Context, rounding: str, in_scale: npt.NDArray[Any], out_scale: npt.NDArray[Any], axis: int) -> Any:
    """Return ``(value, indices) -> value * in_scale / out_scale`` on int32."""
    if rounding == "TONEVEN":
        factors = in_scale.astype(np.float32) / out_scale.astype(np.float32)

        def scaled_float(value: Expr, indices: Indices) -> Expr:
            factor = per_axis(ctx, factors, "factor", indices, axis=axis, dtype="float32")
            product = tb.intrinsic("round_even", tb.cast(value, "float32") * factor)
            # beyond 2**24 every type but int32 saturates anyway, and so the later sum cannot overflow
            return tb.cast(tb.clamp(product, -(2.0**30), 2.0**30), "int32")

        return scaled_float
    ratios = np.atleast_1d(in_scale.astype(np.float64) / out_scale.astype(np.float64))
    if np.all(ratios == 1.0):
        return lambda value, _: value
    pairs = [quantize_multiplier(float(ratio)) for ratio in ratios]
    multipliers = np.array([pair[0] for pair in pairs], np.int32)
    shifts = np.array([pair[1] for pair in pairs], np.int32)

    down = rounding == "DOUBLE" and bool(np.all(shifts < 0))

    def scaled(value: Expr, indices: Indices) -> Expr:
        multiplier = per_axis(ctx, multipliers, "multiplier", indices, axis=axis, dtype="int32")
        if down:
            exponent = per_axis(ctx, -1 - shifts, "exponent", indices, axis=axis, dtype="int32")
            return tb.intrinsic("requantize_down", value, multiplier, exponent)
        shift = per_axis(ctx, shifts, "shift", indices, axis=axis, dtype="int32")
        if rounding in ("TONEAREST", "SINGLE"):
            if ctx.features.keeps("requantize_away"):
                return tb.intrinsic("requantize_away", value, multiplier, shift)
            return _away_from_zero(value, multiplier, shift)
        intrinsic = "requantize_double" if rounding == "DOUBLE" else "requantize_single"
        return tb.intrinsic(intrinsic, value, multiplier, shift)

    return scaled


def _away_from_zero(value: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Return ``value * multiplier * 2**(shift - 31)`` with one rounding, ties away from zero."""
    total = tb.const(31) - shift
    product = tb.cast(value, "int64") * tb.cast(multiplier, "int64")
    half = tb.const(1, "int64") << (total - 1)
    nudge = tb.select(tb.binary("ge", product, 0), half, half - 1)
    return tb.cast((product + nudge) >> total, "int32")


# each differs from TVM's by one at most
_NEAREST_IN_TVM = dict.fromkeys(("TONEVEN", "SINGLE", "DOUBLE"), "TONEAREST")
_AXIS, _OUT_DTYPE = Attr("axis", -1), Attr("out_dtype", None)

OPERATORS.add("qnn.quantize", Operator(
    "qnn.quantize", 3, _infer_quantize, Kind.ELEMENTWISE, (_OUT_DTYPE, _AXIS, Attr("rounding", "TONEAREST", in_tvm={})),
    compute=_compute_quantize, contract="exact in float32 arithmetic; saturates",
    doc="Real numbers to integers; ties away from zero (TFLite), or with rounding=\"TONEVEN\" to even (ONNX).",
))  # fmt: skip
OPERATORS.add("qnn.dequantize", Operator(
    "qnn.dequantize", 3, _infer_dequantize, Kind.ELEMENTWISE, (_OUT_DTYPE, _AXIS),
    compute=_compute_dequantize, contract="exact in float32 arithmetic",
    doc="Integers to the real numbers that they stand for.",
))  # fmt: skip
OPERATORS.add("qnn.requantize", Operator(
    "qnn.requantize", 5, _infer_requantize, Kind.ELEMENTWISE,
    (_AXIS, Attr("rounding", "None", in_tvm=_NEAREST_IN_TVM), Attr("compute_dtype", "None"), _OUT_DTYPE),
    compute=_compute_requantize, contract="bit-exact to the named rounding rule",
    doc="Integers of one scale to integers of another; `rounding` names whose rule.",
))  # fmt: skip
