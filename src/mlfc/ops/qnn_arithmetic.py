"""Quantized operators on several tensors: sum, difference, product, quotient, prelu and concatenation.

Each computes the same result as TFLite's reference kernel of the operator, from int8, uint8 or int16 to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.ops.qnn import check_bytes, check_codes, check_pairs, number, quantized, rescaled, saturate
from mlfc.ops.qnn_in_tvm import pair_in_reals, prelu, squared_difference
from mlfc.ops.rules import Element, broadcast_shape, declare, normalized_axis, replaced, same_shape, tensors
from mlfc.relay.ir import Attrs, TensorType, TupleType, Type, call
from mlfc.relay.op import OPERATORS, Attr, Kind, Layout, Operator
from mlfc.support.fixed_point import quantize_multiplier
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Reader, Tensor, broadcast_read
from mlfc.tir.ir import Expr

Combine = Callable[[Expr, Expr, "PairScales"], Expr]

# bits by which operands of a sum are scaled up, so that rounding them to the common scale loses little
_HEADROOM_BITS = {"int8": 20, "uint8": 20, "int16": 15}
_SQUARE_BITS = 7  # bits by which operands of a squared difference are scaled up
_POWER_TOLERANCE = np.float32(1e-3)  # tolerance of the logarithm of a power of two


class PairScales:
    """Scales of a binary operator, as float32 values."""

    def __init__(self, name: str, inputs: Sequence[Tensor], *, shifted: bool) -> None:
        self.lhs, self.rhs, self.out = (number(name, inputs[index]) for index in (2, 4, 6))
        self.lhs_zero, self.rhs_zero, self.out_zero = (int(number(name, inputs[index])) for index in (3, 5, 7))
        self.dtype, self.shifted = inputs[0].dtype, shifted

    def with_headroom(self, lhs: Expr, rhs: Expr, bits: int) -> tuple[Expr, Expr, float]:
        """Return codes less zero points, scaled up and to a common scale, which is twice the larger of theirs."""
        twice_larger = 2.0 * max(float(self.lhs), float(self.rhs))
        ratios = (float(scale) / twice_larger for scale in (self.lhs, self.rhs))
        left, right = (
            value * (1 << (bits - 1)) if ratio == 0.5 else rescaled(value * (1 << bits), ratio)
            for value, ratio in zip((lhs, rhs), ratios, strict=True)
        )
        return left, right, twice_larger


def _infer_pair(name: str, _: Attrs, lhs: TensorType, rhs: TensorType, *pairs: TensorType) -> TensorType:
    if name == "qnn.squared_difference":
        check_bytes(name, lhs)
    check_codes(name, lhs)
    expected = "int8" if name == "qnn.prelu" and lhs.dtype == "int16" else lhs.dtype
    if rhs.dtype != expected:
        raise TypeCheckError(f"{name}: expected {expected} beside {lhs.dtype}, got {rhs.dtype}")
    check_pairs(name, *pairs)
    return TensorType(broadcast_shape(name, lhs.shape, rhs.shape), lhs.dtype)


def _pair(name: str, combine: Combine, of: Element, *inputs: Tensor) -> Expr:
    scales = PairScales(name, inputs, shifted=of.attrs.get("shifted", False))
    lhs = tb.cast(broadcast_read(inputs[0], of.at), "int32") - scales.lhs_zero
    rhs = tb.cast(broadcast_read(inputs[1], of.at), "int32") - scales.rhs_zero
    return saturate(combine(lhs, rhs, scales) + scales.out_zero, of.out.dtype)


def _sum(lhs: Expr, rhs: Expr, scales: PairScales, *, subtract: bool = False) -> Expr:
    if not scales.shifted:
        bits = _HEADROOM_BITS[scales.dtype]
        left, right, twice_larger = scales.with_headroom(lhs, rhs, bits)
        return rescaled(left - right if subtract else left + right, twice_larger / ((1 << bits) * float(scales.out)))
    shifts = shifts_of([float(scales.lhs), float(scales.rhs), float(scales.out)])
    if shifts is None:
        raise TypeCheckError("a shifted sum requires scales that are powers of two, the larger being the result's")
    left, right = (
        tb.intrinsic("rounding_divide_by_pot", operand, tb.const(min(shift, 31))) if shift else operand
        for operand, shift in zip((lhs, rhs), shifts, strict=True)
    )
    return left - right if subtract else left + right


def power_of_two(scale: float) -> int | None:
    """Return the logarithm of a scale that TFLite treats as a power of two, else None."""
    exact = np.log(np.float32(scale), dtype=np.float32) * (np.float32(1) / np.log(np.float32(2)))
    return int(np.rint(exact)) if abs(exact - np.rint(exact)) < _POWER_TOLERANCE else None


def shifts_of(scales: Sequence[float]) -> tuple[int, int] | None:
    """Return the shifts that align the operands of a sum with the result, or None if shifts do not suffice.

    `scales`: of both operands and of the result. All must be powers of two, and one operand's must be the result's.
    """
    lhs, rhs, out = (power_of_two(scale) for scale in scales)
    if lhs is None or rhs is None or out is None or max(lhs, rhs) != out:
        return None
    return out - lhs, out - rhs


def _product(lhs: Expr, rhs: Expr, scales: PairScales) -> Expr:
    # the reference multiplies and divides the scales in float32
    factor = np.float32(np.float32(scales.lhs) * np.float32(scales.rhs)) / np.float32(scales.out)
    return rescaled(lhs * rhs, float(factor))


def _quotient(lhs: Expr, rhs: Expr, scales: PairScales) -> Expr:
    # the reference multiplies and divides the scales in float32
    factor = np.float32(scales.lhs) / np.float32(np.float32(scales.rhs) * np.float32(scales.out))
    multiplier, shift = quantize_multiplier(float(factor))
    return tb.intrinsic("requantize_quotient", lhs, rhs, tb.const(multiplier), tb.const(shift))


def _squared_difference(lhs: Expr, rhs: Expr, scales: PairScales) -> Expr:
    left, right, twice_larger = scales.with_headroom(lhs, rhs, _SQUARE_BITS)
    difference = left - right
    return rescaled(difference * difference, twice_larger**2 / float(np.float32(1 << 2 * _SQUARE_BITS) * scales.out))


def _leak(data: Expr, alpha: Expr, scales: PairScales) -> Expr:
    # the reference multiplies and divides the scales in float32
    lhs, rhs, out = (np.float32(scale) for scale in (scales.lhs, scales.rhs, scales.out))
    plain, leaking = float(lhs / out), float(lhs * rhs / out)
    return tb.select(tb.binary("ge", data, 0), rescaled(data, plain), rescaled(data * alpha, leaking))


def _infer_concatenate(types: list[Type], attrs: Attrs) -> TensorType:
    name = "qnn.concatenate"
    if len(types) != 5 or not all(isinstance(kind, TupleType) for kind in types[:3]):
        raise TypeCheckError(f"{name} takes tuples of data, scales and zero points, then a scale and a zero point")
    data, scales, zero_points = (tensors(name, kind.fields) for kind in types[:3] if isinstance(kind, TupleType))
    if not len(data) == len(scales) == len(zero_points) > 0:
        raise TypeCheckError(f"{name} needs one scale and one zero point for each tensor, and at least one tensor")
    for scale, zero_point in zip(scales, zero_points, strict=True):
        check_pairs(name, scale, zero_point)
    first, axis = data[0], normalized_axis(name, attrs["axis"], len(data[0].shape))
    check_bytes(name, first)
    for kind in data:
        alike = kind.dtype == first.dtype and len(kind.shape) == len(first.shape)
        pair = replaced(kind.shape, axis), replaced(first.shape, axis)
        if not alike or (kind.is_static and first.is_static and pair[0] != pair[1]):
            raise TypeCheckError(f"{name}: {kind} does not fit {first} along axis {axis}")
        same_shape(name, *pair)
    total = sum(kind.shape[axis] for kind in data)
    return TensorType(replaced(first.shape, axis, total), first.dtype)


def _compute_concatenate(_ctx: Context, inputs: list[Tensor], attrs: Attrs, out: TensorType) -> Reader:
    name, count = "qnn.concatenate", (len(inputs) - 2) // 3
    data, axis = inputs[:count], normalized_axis("qnn.concatenate", attrs["axis"], len(out.shape))
    scales = [np.float32(number(name, tensor)) for tensor in inputs[count : 2 * count]]
    zero_points = [int(number(name, tensor)) for tensor in inputs[2 * count : 3 * count]]
    out_scale, out_zero = np.float32(number(name, inputs[-2])), int(number(name, inputs[-1]))

    def part(which: int, indices: Indices, start: Any) -> Expr:
        own = [index - start if position == axis else index for position, index in enumerate(indices)]
        value = data[which].read(own)
        if scales[which] == out_scale and zero_points[which] == out_zero:
            return value
        factor = scales[which] * (np.float32(1) / out_scale)
        offset = np.float32(-zero_points[which]) * factor
        real = tb.cast(value, "float32") * float(factor) + float(offset)
        return quantized(real, tb.const(1.0, "float32"), tb.const(out_zero), out.dtype)

    def read(indices: Indices) -> Expr:
        starts: list[Any] = list(accumulate((tensor.shape[axis] for tensor in data), initial=0))
        result = part(count - 1, indices, starts[count - 1])
        for k in reversed(range(count - 1)):
            inside = tb.binary("lt", indices[axis], starts[k + 1])
            result = tb.select(inside, part(k, indices, starts[k]), result)
        return result

    return read


_PAIR_ATTRS = (Attr("lhs_axis", -1), Attr("rhs_axis", -1))
_SUM_ATTRS = (*_PAIR_ATTRS, Attr("shifted", False, in_tvm={}))
_CONTRACT = "bit-exact to TFLite's reference kernel"
for _name, _combine, _in_tvm, _attrs, _doc in (
    ("qnn.add", _sum, None, _SUM_ATTRS,
     "Sum of two quantized tensors, each with its own scale; `shifted` for powers of two."),
    ("qnn.subtract", partial(_sum, subtract=True), None, _SUM_ATTRS,
     "Difference of two quantized tensors, each with its own scale; `shifted` for powers of two."),
    ("qnn.mul", _product, None, _PAIR_ATTRS, "Product of two quantized tensors, each with its own scale."),
    ("qnn.div", _quotient, pair_in_reals(lambda lhs, rhs: call("divide", [lhs, rhs])), _PAIR_ATTRS,
     "Quotient of two quantized tensors, each with its own scale; the divisor must not be zero."),
    ("qnn.squared_difference", _squared_difference, pair_in_reals(squared_difference), _PAIR_ATTRS,
     "Squared difference of two quantized tensors of 8 bits, each with its own scale."),
    ("qnn.prelu", _leak, pair_in_reals(prelu), _PAIR_ATTRS,
     "Quantized data where it is not negative, else its product with quantized slopes."),
):  # fmt: skip
    declare(_name, 8, _infer_pair, Kind.BROADCAST, _attrs, partial(_pair, _name, _combine), contract=_CONTRACT,
            expensive=True, in_tvm=_in_tvm, doc=_doc)  # fmt: skip

OPERATORS.add("qnn.concatenate", Operator(
    "qnn.concatenate", 5, _infer_concatenate, Kind.INJECTIVE, (Attr("axis", 0),),
    compute=_compute_concatenate, contract=_CONTRACT, layout=Layout.CONCATENATE,
    doc="Quantized tensors joined, each rescaled to the result's scale.",
))  # fmt: skip
