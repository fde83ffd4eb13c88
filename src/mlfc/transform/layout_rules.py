"""How each operator takes tensors whose axes are in another order.

A rule gets the forms and a call of the logical graph, and puts the call's form. Operators without a rule
get their arguments in the logical order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from mlfc.ops.conv_types import is_depthwise_hwoi
from mlfc.ops.rules import normalized_axes
from mlfc.relay.ir import Call, Constant, Expr, Tuple, op_name
from mlfc.relay.op import Kind, Operator
from mlfc.transform.layout_forms import Forms, apply, identity
from mlfc.transform.matching import matching_axes, reshaped, shape_of, transposed

LayoutRule: TypeAlias = Callable[[Forms, Call], None]


def convert_call(forms: Forms, call: Call) -> None:
    """Put the form of `call`."""
    rule = _RULES.get(op_name(call) or "")
    if rule is None and isinstance(call.op, Operator):
        if "layout" in call.attrs:
            rule = _layout
        elif call.op.kind in (Kind.ELEMENTWISE, Kind.BROADCAST):
            rule = _pointwise
    if rule is None:
        rule = _logical
    rule(forms, call)


def _logical(forms: Forms, call: Call) -> None:
    forms.put(call, apply(call, [forms.logical(arg) for arg in call.args]))


def _channels_last(layout: str) -> str:
    return "N" + "".join(letter for letter in layout if letter not in "NC") + "C"


def _convolution(forms: Forms, call: Call) -> None:
    attrs: dict[str, Any] = dict(call.attrs)
    given, made = attrs["data_layout"], attrs["out_layout"] or attrs["data_layout"]
    target = _channels_last(given)
    data = forms.ordered(call.args[0], [given.index(letter) for letter in target])
    weights, kernel_layout = forms.logical(call.args[1]), attrs["kernel_layout"]
    if "transpose" not in (op_name(call) or "") and isinstance(weights, Constant):
        channels = shape_of(call.args[0])[given.index("C")]
        weights, kernel_layout = _channels_last_kernel(weights, attrs, channels)
    result = apply(
        call,
        [data, weights, *(forms.logical(arg) for arg in call.args[2:])],
        data_layout=target,
        kernel_layout=kernel_layout,
        out_layout="",
    )
    forms.put(call, result, [made.index(letter) for letter in target])
    forms.bind(call)


def _channels_last_kernel(weights: Constant, attrs: dict[str, Any], channels: int) -> tuple[Expr, str]:
    """Return weights and their layout: HWIO, or for one group a channel HWOI with O the input channels."""
    layout: str = attrs["kernel_layout"]
    spatial = "".join(letter for letter in layout if letter not in "OI")
    if is_depthwise_hwoi(attrs, channels):
        return transposed(weights, [layout.index(letter) for letter in f"{spatial}OI"]), f"{spatial}OI"
    ordered = transposed(weights, [layout.index(letter) for letter in f"{spatial}IO"])
    if attrs["groups"] != channels or channels == 1:
        return ordered, f"{spatial}IO"
    shape = shape_of(ordered)
    return reshaped(ordered, (*shape[:-2], channels, shape[-1] // channels)), f"{spatial}OI"


def _layout(forms: Forms, call: Call) -> None:
    given = call.attrs["layout"]
    made = call.attrs.get("out_layout") or given
    if sorted(given) != sorted(_channels_last(given)) or len(given) != len(shape_of(call.args[0])):
        return _logical(forms, call)
    target = _channels_last(given)
    data = forms.ordered(call.args[0], [given.index(letter) for letter in target])
    changed = {"out_layout": ""} if "out_layout" in call.attrs else {}
    args = [data, *(forms.logical(arg) for arg in call.args[1:])]
    return forms.put(call, apply(call, args, layout=target, **changed), [made.index(letter) for letter in target])


def _pointwise(forms: Forms, call: Call) -> None:
    order = forms.common_order(call.args, len(shape_of(call)))
    forms.put(call, apply(call, [forms.broadcast(arg, order) for arg in call.args]), order)


def _broadcast_to(forms: Forms, call: Call) -> None:
    shape = shape_of(call)
    order = forms.common_order(call.args, len(shape))
    data = forms.broadcast(call.args[0], order)
    forms.put(call, apply(call, [data], shape=tuple(shape[axis] for axis in order)), order)


def _along_axis(forms: Forms, call: Call) -> None:
    """Convert an operator of one tensor with one or several axes by number, whose result has the same axes."""
    data, axis = call.args[0], call.attrs["axis"]
    order, rank = forms.order(data), len(shape_of(data))
    if axis is None or rank == 0:
        return _logical(forms, call)
    positions = tuple(order.index(item % rank) for item in ((axis,) if isinstance(axis, int) else axis))
    changed = positions[0] if isinstance(axis, int) else positions
    args = [forms.at_hand(data), *(forms.logical(arg) for arg in call.args[1:])]
    return forms.put(call, apply(call, args, axis=changed), order)


def _image_by_image(forms: Forms, call: Call) -> None:
    """Convert an operator whose first axis counts images, whatever the order of the others."""
    data = call.args[0]
    order = (0, *(axis for axis in forms.order(data) if axis != 0))
    axis = order.index(call.attrs["axis"] % len(order))
    args = [forms.ordered(data, order), *(forms.logical(arg) for arg in call.args[1:])]
    forms.put(call, apply(call, args, axis=axis), order)


def _quantized_pair(forms: Forms, call: Call) -> None:
    """Convert qnn.add and its kind, whose scales may belong to the positions of an axis of an operand."""
    rank = len(shape_of(call))
    order = forms.common_order(call.args[:2], rank)
    changed = {
        name: order.index(call.attrs[name] % rank) if rank and len(shape_of(operand)) == rank else call.attrs[name]
        for name, operand in zip(("lhs_axis", "rhs_axis"), call.args[:2], strict=True)
    }
    operands = [forms.broadcast(arg, order) for arg in call.args[:2]]
    forms.put(call, apply(call, [*operands, *call.args[2:]], **changed), order)


def _quantized_unary(forms: Forms, call: Call) -> None:
    order = forms.order(call.args[0])
    forms.put(call, apply(call, [forms.at_hand(call.args[0]), *call.args[1:]]), order)


def _concatenate(forms: Forms, call: Call) -> None:
    fields = call.args[0].fields if isinstance(call.args[0], Tuple) else ()
    rank = len(shape_of(call))
    order = forms.common_order(fields, rank)
    joined = Tuple(tuple(forms.ordered(item, order) for item in fields), call.args[0].span)
    axis = order.index(call.attrs["axis"] % rank)
    rest = [forms.logical(arg) for arg in call.args[1:]]
    forms.put(call, apply(call, [joined, *rest], axis=axis), order)


def _strided_slice(forms: Forms, call: Call) -> None:
    data, axes = call.args[0], call.attrs["axes"]
    order, rank = forms.order(data), len(shape_of(data))
    given = tuple(range(len(call.attrs["begin"]))) if axes is None else axes
    if order == identity(rank):
        return _logical(forms, call)
    positions = tuple(order.index(axis % rank) for axis in given)
    return forms.put(call, apply(call, [forms.at_hand(data)], axes=positions), order)


def _pad(forms: Forms, call: Call) -> None:
    data, widths = call.args[0], call.attrs["pad_width"]
    order = forms.order(data)
    args = [forms.at_hand(data), *call.args[1:]]
    forms.put(call, apply(call, args, pad_width=tuple(widths[axis] for axis in order)), order)


def _reduce(forms: Forms, call: Call) -> None:
    data, attrs = call.args[0], call.attrs
    order, rank = forms.order(data), len(shape_of(data))
    axes = normalized_axes(op_name(call) or "", attrs["axis"], rank, exclude=attrs["exclude"])
    if "select_last_index" in attrs and len(axes) != 1:  # the index counts in the logical order
        return _logical(forms, call)
    positions = tuple(sorted(order.index(axis) for axis in axes))
    result = apply(call, [forms.at_hand(data)], axis=positions, exclude=False)
    if attrs["keepdims"]:
        return forms.put(call, result, order)
    kept = [axis for axis in order if axis not in axes]
    return forms.put(call, result, [sorted(kept).index(axis) for axis in kept])


def _transpose(forms: Forms, call: Call) -> None:
    axes = call.attrs["axes"]
    rank = len(shape_of(call))
    source = tuple(reversed(range(rank))) if axes is None else tuple(axis % rank for axis in axes)
    order = [source.index(axis) for axis in forms.order(call.args[0])]
    forms.put(call, forms.at_hand(call.args[0]), order)


def _view(forms: Forms, call: Call) -> None:
    data = call.args[0]
    before, after = shape_of(data), shape_of(call)
    if 0 in before:
        return _logical(forms, call)
    pieces = matching_axes(before, after)
    order = [axis for axis in forms.order(data) if before[axis] != 1]
    # what is merged into one axis, or regrouped, must lie together and in the logical order
    first = sorted(pieces, key=lambda piece: min(order.index(axis) for axis in piece[0]))
    wanted = _with_units([axis for piece in first for axis in piece[0]], before)
    if _same_long_axes(wanted, order, before):
        source = forms.at_hand(data)
    else:
        first = first if forms.is_bound(data) else pieces
        source = forms.ordered(data, _with_units([axis for piece in first for axis in piece[0]], before))
    result = _with_units([axis for piece in first for axis in piece[1]], after)
    return forms.put(call, reshaped(source, [after[axis] for axis in result], call.span), result)


def _same_long_axes(a: list[int], b: list[int], shape: tuple[int, ...]) -> bool:
    return [axis for axis in a if shape[axis] != 1] == b


def _with_units(axes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Return `axes` with the axes of extent one put in at their own places."""
    result = list(axes)
    for axis, extent in enumerate(shape):
        if extent == 1:
            result.insert(axis, axis)
    return result


_RULES: dict[str, LayoutRule] = {
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d", "qnn.conv2d"), _convolution),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "qnn.conv2d_transpose"), _convolution),
    **dict.fromkeys(("image.grid_sample", "image.crop_and_resize"), _logical),
    **dict.fromkeys(
        (
            "nn.softmax", "nn.log_softmax", "qnn.softmax", "nn.lrn", "nn.l2_normalize", "nn.bias_add", "nn.prelu",
            "nn.layer_norm", "cumsum", "cumprod", "reverse", "repeat", "qnn.quantize", "qnn.dequantize",
            "qnn.requantize",
        ),
        _along_axis,
    ),
    **dict.fromkeys(("nn.instance_norm", "nn.group_norm"), _image_by_image),
    **dict.fromkeys(("qnn.add", "qnn.subtract", "qnn.mul"), _quantized_pair),
    **dict.fromkeys(
        (
            "qnn.sigmoid", "qnn.tanh", "qnn.exp", "qnn.log", "qnn.sqrt", "qnn.rsqrt", "qnn.erf", "qnn.abs",
            "qnn.hardswish", "qnn.leaky_relu",
        ),
        _quantized_unary,
    ),
    **dict.fromkeys(("concatenate", "qnn.concatenate"), _concatenate),
    **dict.fromkeys(("nn.pad", "nn.mirror_pad"), _pad),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "all", "any", "argmax", "argmin"), _reduce),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims", "nn.batch_flatten"), _view),
    "broadcast_to": _broadcast_to,
    "strided_slice": _strided_slice,
    "transpose": _transpose,
}  # fmt: skip
