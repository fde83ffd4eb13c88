"""Conversion between real numbers and integers: ``qnn.quantize``, ``qnn.dequantize``, ``qnn.requantize``.

An integer tensor represents ``scale * (value - zero_point)``. Scales and zero points are constants, as a scalar or a
vector with one number for each index of `axis`. A scale may be float64 if it is the product of two float32 scales: the
references compute multipliers from the unrounded product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.ops.rules import Element, check_choice, declare, normalized_axis, optional_dtype
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.fixed_point import quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Tensor
from mlfc.tir.intrinsics import conversions
from mlfc.tir.ir import Const, Expr

REQUANTIZE_ROUNDINGS = ("None", "UPWARD", "TONEAREST", "TONEVEN", "SINGLE", "DOUBLE", "REDUCED", "FLOAT64")
_OF_WIDE_SUMS = ("REDUCED", "FLOAT64")
_LARGEST_SHIFT = 7  # left shift of an int64 multiplier
QUANTIZE_ROUNDINGS = ("TONEAREST", "TONEVEN")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_STORED = (*_INTEGERS[:-1], *dtypes.NARROW_INTEGERS)


def check_pairs(name: str, *kinds: TensorType) -> None:
    """Check the types of alternating scales and zero points."""
    for scale, zero_point in zip(kinds[::2], kinds[1::2], strict=True):
        if scale.dtype not in ("float32", "float64") or len(scale.shape) > 1:
            raise TypeCheckError(f"{name}: expected a float32 scalar or vector as scale, got {scale}")
        if zero_point.dtype != "int32" or len(zero_point.shape) > 1:
            raise TypeCheckError(f"{name}: expected an int32 scalar or vector as zero point, got {zero_point}")


def check_bytes(name: str, kind: TensorType) -> None:
    """Refuse tensors that are not 8-bit."""
    check_choice(name, "data of", kind.dtype, ("int8", "uint8"))


def check_codes(name: str, kind: TensorType) -> None:
    """Refuse tensors that are not quantized to 8 or 16 bits."""
    check_choice(name, "data of", kind.dtype, ("int8", "uint8", "int16"))


def infer_of_bytes(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    """Infer the result type of an operator from 8-bit data to the same dtype, with scale and zero point of both."""
    check_bytes(name, data)
    return infer_of_codes(name, attrs, data, *pairs)


def infer_of_codes(name: str, _: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    """Infer the result type of an operator from 8-bit or 16-bit data to the same, with scale and zero point of both."""
    check_codes(name, data)
    check_pairs(name, *pairs)
    return data


def known(name: str, tensor: Tensor) -> npt.NDArray[Any]:
    """Return a constant scale or zero point as a vector of one or more numbers."""
    if tensor.value is None:
        raise UnsupportedError(
            f"{name} needs scales and zero points that are known at compile time",
            next_step="Quantize with constant scales",
        )
    return np.atleast_1d(tensor.value)


def number(name: str, tensor: Tensor) -> Any:
    """Return a per-tensor scale or zero point as a numpy scalar."""
    values = known(name, tensor)
    if values.size != 1:
        raise TypeCheckError(f"{name}: expected one scale and one zero point a tensor, got {values.size}")
    return values.reshape(())[()]


def scales_and_zeros(name: str, inputs: Sequence[Tensor]) -> tuple[float, int, float, int]:
    """Return scale and zero point of the input, then of the output, of a unary operator."""
    in_scale, in_zero, out_scale, out_zero = (number(name, tensor) for tensor in inputs[1:])
    return float(in_scale), int(in_zero), float(out_scale), int(out_zero)


def per_axis(ctx: Context, values: npt.NDArray[Any], label: str, indices: Indices, *, axis: int, dtype: str) -> Expr:
    """Return one of `values`: a literal if all are equal, else an element of a table indexed by `axis`."""
    array = values.astype(dtypes.to_numpy(dtype))
    if array.size <= 1 or np.all(array == array.flat[0]):  # the only element may be NaN
        return tb.const(array.flat[0].item() if array.size else 0, dtype)
    if ctx.small and dtype == "int32" and np.array_equal(array, array.astype(np.int8)):
        return tb.cast(tb.load(ctx.constant(label, array.astype(np.int8)), [indices[axis]]), dtype)
    return tb.load(ctx.constant(label, array), [indices[axis]])


def saturate(value: Expr, dtype: str) -> Expr:
    """Clamp an int32 value to the range of `dtype` and convert it."""
    if dtype == "int32":
        return value
    return tb.cast(tb.clamp(value, *dtypes.limits(dtype)), dtype)


def rescaled(value: Expr, real: float) -> Expr:
    """Multiply an int32 by a real number with the double rounding of TFLite's MultiplyByQuantizedMultiplier."""
    if real == 1.0:
        return value
    multiplier, shift = quantize_multiplier(real)
    if shift < 0:
        return tb.intrinsic("requantize_down", value, tb.const(multiplier), tb.const(-1 - shift))
    return tb.intrinsic("requantize_double", value, tb.const(multiplier), tb.const(shift))


def _axis(name: str, attrs: Attrs, rank: int) -> int:
    return normalized_axis(name, attrs["axis"], rank) if rank else 0


def _table_axis(name: str, attrs: Attrs, inputs: Sequence[Tensor]) -> int:
    """Return the axis of per-axis scales and zero points; if all are scalars, the data may have any rank."""
    if all(known(name, tensor).size == 1 for tensor in inputs[1:]):
        return 0
    return _axis(name, attrs, len(inputs[0].shape))


def _check_pairs(name: str, data: TensorType, attrs: Attrs, *kinds: TensorType) -> None:
    """Check the types of scales and zero points; vectors must have one element for each index of the axis."""
    check_pairs(name, *kinds)
    for kind in kinds:
        if kind.shape not in ((), (1,)):
            axis = _axis(name, attrs, len(data.shape))
            if not data.shape or kind.shape[0] != data.shape[axis]:
                raise TypeCheckError(f"{name}: {kind.shape[0]} scales or zero points do not fit axis {axis} of {data}")


def _out_dtype(name: str, attrs: Attrs, allowed: Sequence[str], default: str) -> str:
    dtype = optional_dtype(attrs["out_dtype"], default)
    check_choice(name, "out_dtype", dtype, allowed)
    return dtype


def _infer_quantize(name: str, attrs: Attrs, data: TensorType, *pair: TensorType) -> TensorType:
    check_choice(name, "data of", data.dtype, ("float32",))
    _check_pairs(name, data, attrs, *pair)
    check_choice(name, "rounding", attrs["rounding"], QUANTIZE_ROUNDINGS)
    return TensorType(data.shape, _out_dtype(name, attrs, _STORED, "int8"))


def quantized(value: Expr, scale: Expr, zero_point: Expr, dtype: str, rounding: str = "TONEAREST") -> Expr:
    """Quantize a float32 value to `dtype` with saturation; NaN becomes the lowest integer."""
    low, high = dtypes.limits(dtype)
    nearest = tb.intrinsic("round_even" if rounding == "TONEVEN" else "round_away", value / scale)
    offset = tb.cast(zero_point, "float32")
    if isinstance(zero_point, Const):
        shift = zero_point.value
        limited = tb.clamp(nearest, float(low - shift), float(high - shift))
    else:
        limited = tb.clamp(nearest, tb.const(float(low), "float32") - offset, tb.const(float(high), "float32") - offset)
    whole = tb.truncated(limited, "int32") + zero_point
    return conversions.narrowed(whole, dtype) if dtypes.is_narrow(dtype) else tb.cast(whole, dtype)


def _pair(of: Element, name: str, *inputs: Tensor) -> tuple[Expr, Expr]:
    """Return scale and zero point of an element of the data, which is the first of `inputs`."""
    axis = _table_axis(name, of.attrs, inputs)
    scales, zero_points = (known(name, tensor) for tensor in inputs[1:])
    scale = per_axis(of.ctx, scales, "scale", of.at, axis=axis, dtype="float32")
    return scale, per_axis(of.ctx, zero_points, "zero_point", of.at, axis=axis, dtype="int32")


def _quantize(of: Element, data: Tensor, *pair: Tensor) -> Expr:
    scale, zero_point = _pair(of, "qnn.quantize", data, *pair)
    return quantized(data.read(of.at), scale, zero_point, of.out.dtype, of.attrs["rounding"])


def _infer_dequantize(name: str, attrs: Attrs, data: TensorType, *pair: TensorType) -> TensorType:
    check_choice(name, "data of", data.dtype, (*_INTEGERS, *dtypes.NARROW_INTEGERS))
    _check_pairs(name, data, attrs, *pair)
    return TensorType(data.shape, _out_dtype(name, attrs, ("float32",), "float32"))


def _dequantize(of: Element, data: Tensor, *pair: Tensor) -> Expr:
    scale, zero_point = _pair(of, "qnn.dequantize", data, *pair)
    stored = data.read(of.at)
    whole = conversions.widened(stored, data.dtype) if dtypes.is_narrow(data.dtype) else tb.cast(stored, "int32")
    return tb.cast(whole - zero_point, "float32") * scale


def _infer_requantize(name: str, attrs: Attrs, data: TensorType, *pairs: TensorType) -> TensorType:
    check_choice(name, "data of", data.dtype, (*_INTEGERS, "int64"))
    _check_pairs(name, data, attrs, *pairs)
    check_choice(name, "rounding", attrs["rounding"], REQUANTIZE_ROUNDINGS)
    if data.dtype == "int64":
        check_choice(name, "rounding of int64", attrs["rounding"], _OF_WIDE_SUMS)
    return TensorType(data.shape, _out_dtype(name, attrs, _INTEGERS, "int8"))


def _requantize(of: Element, *inputs: Tensor) -> Expr:
    name, data, ctx, at = "qnn.requantize", inputs[0], of.ctx, of.at
    axis = _table_axis(name, of.attrs, inputs)
    in_scale, in_zero, out_scale, out_zero = (known(name, tensor) for tensor in inputs[1:])
    wide = "int64" if data.dtype == "int64" else "int32"
    centred = tb.cast(data.read(at), wide) - per_axis(ctx, in_zero, "in_zero", at, axis=axis, dtype=wide)
    zero_point = per_axis(ctx, out_zero, "out_zero", at, axis=axis, dtype="int32")
    scaled = _scaled(of, centred, in_scale, out_scale, axis)
    return saturate(scaled + zero_point, of.out.dtype)


def _scaled(of: Element, value: Expr, in_scale: npt.NDArray[Any], out_scale: npt.NDArray[Any], axis: int) -> Expr:
    """Return ``value * in_scale / out_scale`` of int32 or int64 as an int32."""
    rounding = of.attrs["rounding"]

    def own(label: str, values: npt.NDArray[Any], dtype: str = "int32") -> Expr:
        return per_axis(of.ctx, values, label, of.at, axis=axis, dtype=dtype)

    if rounding in ("TONEVEN", "FLOAT64"):
        kind, nearest = ("float32", "round_even") if rounding == "TONEVEN" else ("float64", "round_away")
        factors = in_scale.astype(dtypes.to_numpy(kind)) / out_scale.astype(dtypes.to_numpy(kind))
        product = tb.intrinsic(nearest, tb.cast(value, kind) * own("factor", np.atleast_1d(factors), kind))
        # beyond 2**24 every type except int32 saturates anyway; the clamp keeps the later sum from overflowing
        return tb.cast(tb.clamp(product, -(2.0**30), 2.0**30), "int32")
    ratios = np.atleast_1d(in_scale.astype(np.float64) / out_scale.astype(np.float64))
    make = reduced_multiplier if rounding == "REDUCED" else quantize_multiplier
    if rounding != "REDUCED" and np.all(ratios == 1.0):
        return value
    pairs = [make(float(ratio)) for ratio in ratios]
    multipliers, shifts = (np.array(numbers, np.int32) for numbers in zip(*pairs, strict=True))
    multiplier = own("multiplier", multipliers)
    if rounding == "DOUBLE" and bool(np.all(shifts < 0)):
        return tb.intrinsic("requantize_down", value, multiplier, own("exponent", -1 - shifts))
    shift = own("shift", shifts)
    if rounding == "REDUCED":
        return tb.intrinsic("requantize_reduced", tb.cast(value, "int64"), multiplier, shift, dtype="int32")
    if rounding in ("TONEAREST", "SINGLE"):
        if of.ctx.features.keeps("requantize_away"):
            return tb.intrinsic("requantize_away", value, multiplier, shift)
        # a single rounding, ties away from zero
        total = tb.const(31) - shift
        wide = tb.cast(value, "int64") * tb.cast(multiplier, "int64")
        half = tb.const(1, "int64") << (total - 1)
        return tb.cast((wide + tb.select(tb.binary("ge", wide, 0), half, half - 1)) >> total, "int32")
    return tb.intrinsic("requantize_double" if rounding == "DOUBLE" else "requantize_single", value, multiplier, shift)


def reduced_multiplier(real: float) -> tuple[int, int]:
    """Return TFLite's 16-bit multiplier of an int64 and its right shift."""
    multiplier, shift = quantize_multiplier(real)
    if shift > _LARGEST_SHIFT:
        raise UnsupportedError(
            f"qnn.requantize of int64: the multiplier {real:g} exceeds 2**{_LARGEST_SHIFT}",
            next_step="Quantize the result with a larger scale",
        )
    return min((multiplier + (1 << 15)) >> 16, 0x7FFF), 15 - shift


# each differs from TVM's rounding by at most one
_NEAREST_IN_TVM = dict.fromkeys(("TONEVEN", "SINGLE", "DOUBLE", *_OF_WIDE_SUMS), "TONEAREST")
_AXIS, _OUT_DTYPE = Attr("axis", -1), Attr("out_dtype", None)

declare("qnn.quantize", 3, _infer_quantize, Kind.ELEMENTWISE,
        (_OUT_DTYPE, _AXIS, Attr("rounding", "TONEAREST", in_tvm={})), _quantize, expensive=True, takes_narrow=True,
        traits=Trait.QUANTIZES,
        contract="exact in float32 arithmetic; saturates",
        doc="Real numbers to integers; ties away from zero (TFLite), or with rounding=\"TONEVEN\" to even (ONNX).",
        )  # fmt: skip
declare("qnn.dequantize", 3, _infer_dequantize, Kind.ELEMENTWISE, (_OUT_DTYPE, _AXIS), _dequantize, takes_narrow=True,
        traits=Trait.PRODUCT, contract="exact in float32 arithmetic",
        doc="Integers to the real numbers that they represent.")  # fmt: skip
declare("qnn.requantize", 5, _infer_requantize, Kind.ELEMENTWISE,
        (_AXIS, Attr("rounding", "None", in_tvm=_NEAREST_IN_TVM), Attr("compute_dtype", "None"), _OUT_DTYPE),
        _requantize, expensive=True, traits=Trait.CLOSING, contract="bit-exact to the named rounding rule",
        doc="Integers of one scale to integers of another; `rounding` selects the rule.")  # fmt: skip
