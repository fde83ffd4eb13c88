"""Operators of neural networks that touch each element once: biases, activations, padding, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import check_dtype, converted, declare_unary
from mlfc.ops.rules import normalized_axis, tensors
from mlfc.relay.ir import TensorType, TupleType, Type
from mlfc.relay.op import OPERATORS, REQUIRED, Attr, Kind, Operator
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Reader, Tensor
from mlfc.tir.ir import Expr

Attrs = Mapping[str, Any]


def _infer_channelwise(name: str, types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, channel = tensors(name, types)
    check_dtype(name, data.dtype, "number")
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    if channel.shape not in ((data.shape[axis],), (1,)) or channel.dtype != data.dtype:
        raise TypeCheckError(f"{name}: {channel} does not fit axis {axis} of {data}")
    return data


def _channelwise(rule: Callable[[Expr, Expr], Expr]) -> Callable[..., Reader]:
    def compute(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
        data, channel = inputs

        def read(indices: Indices) -> Expr:
            # lowering may flatten tensors of equal shape, where the axis no longer counts
            at = tb.const(0) if channel.shape in ((), (1,)) else indices[attrs["axis"] if len(indices) > 1 else 0]
            return rule(data.read(indices), channel.read([at] * len(channel.shape)))

        return read

    return compute


def _scaled_below_zero(x: Expr, slope: Expr) -> Expr:
    return tb.select(tb.binary("gt", x, 0), x, x * slope)


def _infer_float(name: str, types: Sequence[Type], _: Attrs) -> TensorType:
    (data,) = tensors(name, types)
    check_dtype(name, data.dtype, "float")
    return data


def _leaky_relu(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    (data,) = inputs
    slope = tb.const(attrs["alpha"], data.dtype)
    return lambda indices: _scaled_below_zero(data.read(indices), slope)


def _infer_dropout(types: Sequence[Type], _: Attrs) -> TupleType:
    (data,) = tensors("nn.dropout", types)
    return TupleType((data, data))


def _padded_shape(name: str, data: TensorType, attrs: Attrs, reach: int | None) -> TensorType:
    """Return the type after padding; `reach`: pads may take extent - reach elements from the data."""
    widths = attrs["pad_width"]
    if len(widths) != len(data.shape) or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
        raise TypeCheckError(f"{name}: pad_width {widths} must have two integers of at least 0 for each dimension")
    if reach is not None:
        for extent, pair in zip(data.shape, widths, strict=True):
            if max(pair) > max(extent - reach, 0):
                raise TypeCheckError(f"{name}: a pad of {max(pair)} is too wide for a dimension of {extent}")
    shape = (extent + sum(pair) for extent, pair in zip(data.shape, widths, strict=True))
    return TensorType(tuple(shape), data.dtype)


_PAD_REACH = {"constant": None, "edge": None, "reflect": 1}
_MIRROR_REACH = {"SYMMETRIC": 0, "REFLECT": 1}


def _infer_pad(types: Sequence[Type], attrs: Attrs) -> TensorType:
    data, value = tensors("nn.pad", types)
    if attrs["pad_mode"] not in _PAD_REACH:
        raise TypeCheckError(f"nn.pad: pad_mode '{attrs['pad_mode']}' is not one of {', '.join(_PAD_REACH)}")
    if value.size != 1:
        raise TypeCheckError(f"nn.pad: the pad value must be a scalar, not {value}")
    if attrs["pad_mode"] == "edge" and 0 in data.shape:
        raise TypeCheckError(f"nn.pad: {data.shape} has no edge to repeat")
    return _padded_shape("nn.pad", data, attrs, _PAD_REACH[attrs["pad_mode"]])


def _infer_mirror_pad(types: Sequence[Type], attrs: Attrs) -> TensorType:
    (data,) = tensors("nn.mirror_pad", types)
    if attrs["mode"] not in _MIRROR_REACH:
        raise TypeCheckError(f"nn.mirror_pad: mode '{attrs['mode']}' is not one of {', '.join(_MIRROR_REACH)}")
    return _padded_shape("nn.mirror_pad", data, attrs, _MIRROR_REACH[attrs["mode"]])


def _pad(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    data, value = inputs
    if attrs["pad_mode"] == "constant":
        return partial(_pad_constant, data, value, attrs["pad_width"])
    if attrs["pad_mode"] == "reflect":
        return partial(_pad_mirrored, data, attrs["pad_width"], 1)

    def read(indices: Indices) -> Expr:
        zipped = zip(indices, attrs["pad_width"], data.shape, strict=True)
        return data.read([tb.clamp(index - pair[0], 0, extent - 1) for index, pair, extent in zipped])

    return read


def _pad_constant(data: Tensor, value: Tensor, widths: Sequence[tuple[int, int]], indices: Indices) -> Expr:
    inside, own = [], []
    for index, (before, after), extent in zip(indices, widths, data.shape, strict=True):
        place = index - before
        own.append(place)
        if before:
            inside.append(tb.binary("ge", place, 0))
        if after:
            inside.append(tb.binary("lt", place, extent))
    outside = converted(value.read([tb.const(0)] * len(value.shape)), data.dtype)
    return tb.select(tb.land(*inside), data.read(own), outside)


def _pad_mirrored(data: Tensor, widths: Sequence[tuple[int, int]], reach: int, indices: Indices) -> Expr:
    """Read the element that `reach` 0 (edges repeat) or 1 (edges do not) reflects to."""
    own: list[Expr] = []
    for index, (before, after), extent in zip(indices, widths, data.shape, strict=True):
        place = index - before
        if before:
            place = tb.select(tb.binary("lt", place, 0), reach - 1 - place, place)
        if after:
            place = tb.select(tb.binary("ge", place, extent), 2 * extent - 1 - reach - place, place)
        own.append(place)
    return data.read(own)


def _mirror_pad(_: Context, inputs: Sequence[Tensor], attrs: Attrs, __: TensorType) -> Reader:
    return partial(_pad_mirrored, inputs[0], attrs["pad_width"], _MIRROR_REACH[attrs["mode"]])


# with zero first, C's (a > b ? a : b) hands on a NaN
declare_unary("nn.relu", lambda x: tb.maximum(tb.const(0, x.dtype), x), "The value, or 0 below zero", takes="number")
for _operator in (
    Operator(
        "nn.bias_add", 2, partial(_infer_channelwise, "nn.bias_add"), Kind.BROADCAST, (Attr("axis", 1),),
        compute=_channelwise(lambda x, bias: x + bias), contract="correctly rounded",
        doc="Adds a vector along one dimension",
    ),
    Operator(
        "nn.prelu", 2, partial(_infer_channelwise, "nn.prelu"), Kind.BROADCAST, (Attr("axis", 1),),
        compute=_channelwise(_scaled_below_zero), contract="correctly rounded",
        doc="The value, or below zero its product with a slope for each index of one dimension",
    ),
    Operator(
        "nn.leaky_relu", 1, partial(_infer_float, "nn.leaky_relu"), Kind.ELEMENTWISE, (Attr("alpha", 0.25, True),),
        compute=_leaky_relu, contract="correctly rounded", doc="The value, or alpha times it below zero",
    ),
    Operator(
        "nn.dropout", 1, _infer_dropout, Kind.OPAQUE, (Attr("rate", 0.5, True),),
        doc="Nothing, when a trained model runs; the second result is a mask that nothing reads",
    ),
    Operator(
        "nn.pad", 2, _infer_pad, Kind.INJECTIVE, (Attr("pad_width", REQUIRED), Attr("pad_mode", "constant")), _pad,
        doc="Surrounds a tensor with a value, its edge, or its reflection",
    ),
    Operator(
        "nn.mirror_pad", 1, _infer_mirror_pad, Kind.INJECTIVE, (Attr("mode", "SYMMETRIC"), Attr("pad_width", REQUIRED)),
        _mirror_pad, doc="Surrounds a tensor with its reflection, edges repeated (SYMMETRIC) or not (REFLECT)",
    ),
):  # fmt: skip
    OPERATORS.add(_operator.name, _operator)
