"""Neural network operators that access each element once: biases, activations, padding, dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import converted, declare_unary
from mlfc.ops.rules import Element, TooSmallError, check_choice, check_dtype, declare, normalized_axis, scalar
from mlfc.relay.ir import Attrs, TensorType, TupleType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind, Trait
from mlfc.support.dims import Dim, bounds
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.ir import Expr


def _infer_channelwise(name: str, attrs: Attrs, data: TensorType, channel: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "number")
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    if channel.shape not in ((data.shape[axis],), (1,)) or channel.dtype != data.dtype:
        raise TypeCheckError(f"{name}: {channel} does not fit axis {axis} of {data}")
    return data


def _channelwise(rule: Callable[[Expr, Expr], Expr], of: Element, data: Tensor, channel: Tensor) -> Expr:
    # lowering may flatten tensors of equal shape, where the axis does not matter
    at = tb.const(0) if channel.shape in ((), (1,)) else of.at[of.attrs["axis"] if len(of.at) > 1 else 0]
    return rule(data.read(of.at), channel.read([at] * len(channel.shape)))


def _scaled_below_zero(x: Expr, slope: Expr) -> Expr:
    return tb.select(tb.binary("ge", x, 0), x, x * slope)


def _infer_float(name: str, _: Attrs, data: TensorType) -> TensorType:
    check_dtype(name, data.dtype, "float")
    return data


def _padded_shape(name: str, data: TensorType, attrs: Attrs, reach: int | None) -> TensorType:
    """Return the type after padding; `reach`: pads may read extent - reach elements from the data."""
    widths = attrs["pad_width"]
    if len(widths) != len(data.shape) or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
        raise TypeCheckError(f"{name}: pad_width {widths} must have two integers of at least 0 for each dimension")
    if reach is not None:
        for extent, pair in zip(data.shape, widths, strict=True):
            least = max(pair) + reach
            if isinstance(extent, Dim) and isinstance(least, int) and bounds(extent)[0] < least > reach:
                raise TooSmallError(name, extent, least, "a dimension")
            if max(pair) > max(extent - reach, 0):
                raise TypeCheckError(f"{name}: a pad of {max(pair)} is too wide for a dimension of {extent}")
    shape = (extent + sum(pair) for extent, pair in zip(data.shape, widths, strict=True))
    return TensorType(tuple(shape), data.dtype)


_PAD_REACH = {"constant": None, "edge": None, "reflect": 1}
_MIRROR_REACH = {"SYMMETRIC": 0, "REFLECT": 1}


def _infer_pad(name: str, attrs: Attrs, data: TensorType, value: TensorType) -> TensorType:
    check_choice(name, "pad_mode", attrs["pad_mode"], _PAD_REACH)
    if value.size != 1:
        raise TypeCheckError(f"{name}: expected a scalar as pad value, got {value}")
    padded = _padded_shape(name, data, attrs, _PAD_REACH[attrs["pad_mode"]])
    for extent, pair in zip(data.shape, attrs["pad_width"], strict=True):
        if attrs["pad_mode"] == "edge" and pair != (0, 0) and bounds(extent)[0] < 1:
            if extent == 0:
                raise TypeCheckError(f"{name}: {data.shape} has no edge to repeat")
            raise TooSmallError(name, extent, 1, "a dimension")
    return padded


def _infer_mirror_pad(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_choice(name, "mode", attrs["mode"], _MIRROR_REACH)
    return _padded_shape(name, data, attrs, _MIRROR_REACH[attrs["mode"]])


def _pad(of: Element, data: Tensor, value: Tensor) -> Expr:
    widths = of.attrs["pad_width"]
    if of.attrs["pad_mode"] == "reflect":
        return _mirrored(data, widths, 1, of.at)
    zipped = list(zip(of.at, widths, data.shape, strict=True))
    if of.attrs["pad_mode"] == "edge":
        return data.read([tb.clamp(index - before, 0, extent - 1) for index, (before, _), extent in zipped])
    inside, own = [], []
    for index, (before, after), extent in zipped:
        place = index - before
        own.append(place)
        if before != 0:  # not `if before`: it may be a runtime value
            inside.append(tb.binary("ge", place, 0))
        if after != 0:
            inside.append(tb.binary("lt", place, extent))
    outside = converted(scalar(value), data.dtype)
    return tb.select(tb.land(*inside), data.read(own), outside)


def _mirrored(data: Tensor, widths: Sequence[tuple[int, int]], reach: int, indices: Sequence[Expr]) -> Expr:
    """Read the mirrored element, with `reach` 0 (edges repeat) or 1 (edges do not)."""
    own: list[Expr] = []
    for index, (before, after), extent in zip(indices, widths, data.shape, strict=True):
        place = index - before
        if before:
            place = tb.select(tb.binary("lt", place, 0), reach - 1 - place, place)
        if after:
            place = tb.select(tb.binary("ge", place, extent), 2 * extent - 1 - reach - place, place)
        own.append(place)
    return data.read(own)


# with zero first, C's (a > b ? a : b) returns b if b is NaN
declare_unary("nn.relu", lambda x: tb.maximum(tb.const(0, x.dtype), x), "The value, or 0 below zero", takes="number")
for _name, _rule, _traits, _doc in (
    ("nn.bias_add", lambda x, bias: x + bias, Trait.SUM | Trait.BIAS | Trait.CLOSING,
     "Adds a vector along one dimension"),
    ("nn.prelu", _scaled_below_zero, Trait.NONE,
     "The value, or below zero its product with a slope for each index of one dimension"),
):  # fmt: skip
    declare(_name, 2, _infer_channelwise, Kind.BROADCAST, (Attr("axis", 1),), partial(_channelwise, _rule),
            traits=_traits, contract="correctly rounded", doc=_doc)  # fmt: skip
declare("nn.leaky_relu", 1, _infer_float, Kind.ELEMENTWISE, (Attr("alpha", 0.25, True),),
        lambda of, data: _scaled_below_zero(data.read(of.at), tb.const(of.attrs["alpha"], data.dtype)),
        contract="correctly rounded", doc="The value, or alpha times it below zero")  # fmt: skip
declare("nn.dropout", 1, lambda _, __, data: TupleType((data, data)), Kind.OPAQUE, (Attr("rate", 0.5, True),),
        doc="The identity at inference; the second result is a mask that is never read")  # fmt: skip
declare("nn.pad", 2, _infer_pad, Kind.INJECTIVE, (Attr("pad_width", REQUIRED), Attr("pad_mode", "constant")), _pad,
        doc="Surrounds a tensor with a value, its edge, or its reflection")  # fmt: skip
declare("nn.mirror_pad", 1, _infer_mirror_pad, Kind.INJECTIVE,
        (Attr("mode", "SYMMETRIC"), Attr("pad_width", REQUIRED)),
        lambda of, data: _mirrored(data, of.attrs["pad_width"], _MIRROR_REACH[of.attrs["mode"]], of.at),
        elements=Elements.MOVED,
        doc="Surrounds a tensor with its reflection, edges repeated (SYMMETRIC) or not (REFLECT)")  # fmt: skip
