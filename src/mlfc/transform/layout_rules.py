"""Rules that convert operators to operands whose axes are in another order, by `Operator.layout`.

A rule gets the forms and a call of the logical graph, and puts the call's form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlfc.errors import InternalError
from mlfc.ops.conv import is_depthwise_hwoi
from mlfc.ops.rules import normalized_axes
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, TensorType, Tuple, has_trait, op_name
from mlfc.relay.op import Layout, Operator, Trait
from mlfc.support.dim_estimates import typical
from mlfc.transform.matching import flat_args, match_call, matching_axes, reshaped, shape_of, transposed


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor: axis ``i`` of `expr` is axis ``order[i]`` of the logical tensor."""

    expr: Expr
    order: tuple[int, ...]


def identity(rank: int) -> tuple[int, ...]:
    """Return the order of the logical tensor itself."""
    return tuple(range(rank))


class Forms:
    """The forms of the expressions of one graph."""

    def __init__(self) -> None:
        self._forms: dict[Expr, Form] = {}
        self._ordered: dict[tuple[Expr, tuple[int, ...]], Expr] = {}
        self._bound: set[Expr] = set()

    def put(self, logical: Expr, expr: Expr, order: Sequence[int] | None = None) -> None:
        """Note that `expr` computes `logical`, with its axes in `order`."""
        if isinstance(logical.type, TensorType):
            rank = len(logical.type.shape)
            self._forms[logical] = Form(expr, identity(rank) if order is None else tuple(order))
        else:
            self._forms[logical] = Form(expr, ())
        if isinstance(logical, Call) and any(arg in self._bound for arg in flat_args(logical)):
            self._bound.add(logical)

    def bind(self, logical: Expr) -> None:
        """Note that an operator dictates the order of a tensor, and so of what is computed from it."""
        self._bound.add(logical)

    def is_bound(self, logical: Expr) -> bool:
        """Tell whether an operator dictates the order of a tensor or of what it is computed from."""
        return logical in self._bound

    def order(self, logical: Expr) -> tuple[int, ...]:
        """Return the order in which a tensor is at hand."""
        return self._forms[logical].order

    def at_hand(self, logical: Expr) -> Expr:
        """Return what computes a tensor in that order."""
        return self._forms[logical].expr

    def ordered(self, logical: Expr, order: Sequence[int]) -> Expr:
        """Return a tensor with its axes in `order`, transposed if there is no other way."""
        form, wanted = self._forms[logical], tuple(order)
        if form.order == wanted:
            return form.expr
        key = (logical, wanted)
        if key not in self._ordered:
            self._ordered[key] = self._turned(logical, form, wanted)
        return self._ordered[key]

    def _turned(self, logical: Expr, form: Form, wanted: tuple[int, ...]) -> Expr:
        dequantize = match_call(logical, "qnn.dequantize")
        if dequantize is not None:  # the integers are smaller to move, and perhaps are at hand in this order
            axis = wanted.index(dequantize.attrs["axis"] % len(wanted))
            return apply(dequantize, [self.ordered(dequantize.args[0], wanted), *dequantize.args[1:]], axis=axis)
        tensor = logical.span.tensor if wanted == identity(len(wanted)) else None
        span = ir.Span(logical.span.nodes, tensor)
        return transposed(form.expr, [form.order.index(axis) for axis in wanted], span)

    def logical(self, expr: Expr) -> Expr:
        """Return an argument of the logical graph as it is there; tuples field by field."""
        if isinstance(expr, Tuple):
            return Tuple(tuple(self.logical(item) for item in expr.fields), expr.span)
        if not isinstance(expr.type, TensorType):
            return self._forms[expr].expr
        return self.ordered(expr, identity(len(expr.type.shape)))

    def broadcast(self, expr: Expr, order: Sequence[int]) -> Expr:
        """Return an operand of numpy's broadcasting for results with axes in `order`."""
        shape, rank = shape_of(expr), len(order)
        if isinstance(expr, Constant) and expr.data.size == 1:
            return expr
        if len(shape) == rank:
            return self.ordered(expr, order)
        wide = reshaped(self.logical(expr), (1,) * (rank - len(shape)) + shape)
        return transposed(wide, order)

    def common_order(self, operands: Sequence[Expr], rank: int) -> tuple[int, ...]:
        """Return the order of most bytes of the operands; between equals, of one that an operator dictates."""
        sizes: dict[tuple[int, ...], int] = {}
        bound: set[tuple[int, ...]] = set()
        for operand in operands:
            if isinstance(operand, Constant) or len(shape_of(operand)) != rank:
                continue
            order = self.order(operand)
            sizes[order] = sizes.get(order, 0) + typical(ir.tensor_type(operand).nbytes)
            if operand in self._bound:
                bound.add(order)
        plain = identity(rank)
        return max(sizes, key=lambda order: (sizes[order], order in bound, order != plain), default=plain)


def apply(call: Call, args: Sequence[Expr], **changed: object) -> Call:
    """Return `call` on other arguments, with some attributes changed."""
    if not isinstance(call.op, Operator):
        raise InternalError("layouts are converted before fusion")
    return ir.call(call.op.name, args, {**call.attrs, **changed}, span=call.span)


LayoutRule: TypeAlias = Callable[[Forms, Call], None]


def convert_call(forms: Forms, call: Call) -> None:
    """Put the form of `call`."""
    layout = call.op.layout if isinstance(call.op, Operator) else None
    _RULES[layout or Layout.LOGICAL](forms, call)


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
    if not has_trait(call, Trait.TRANSPOSED) and isinstance(weights, Constant):
        channels = shape_of(call.args[0])[given.index("C")]
        weights, kernel_layout = _channels_last_kernel(weights, attrs, channels)
    args = [data, weights, *(forms.logical(arg) for arg in call.args[2:])]
    result = apply(call, args, data_layout=target, kernel_layout=kernel_layout, out_layout="")
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
    forms.put(call, apply(call, [*operands, *(forms.logical(arg) for arg in call.args[2:])], **changed), order)


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
    args = [forms.at_hand(data), *(forms.logical(arg) for arg in call.args[1:])]
    forms.put(call, apply(call, args, pad_width=tuple(widths[axis] for axis in order)), order)


def _reduce(forms: Forms, call: Call) -> None:
    data, attrs = call.args[0], call.attrs
    order, rank = forms.order(data), len(shape_of(data))
    axes = normalized_axes(op_name(call) or "", attrs["axis"], rank, exclude=attrs["exclude"])
    if "select_last_index" in attrs and len(axes) != 1:  # the index counts in the logical order
        return _logical(forms, call)
    positions = tuple(sorted(order.index(axis) for axis in axes))
    args = [forms.at_hand(data), *(_beside(forms, arg, order) for arg in call.args[1:])]
    result = apply(call, args, axis=positions, exclude=False)
    if attrs["keepdims"]:
        return forms.put(call, result, order)
    kept = [axis for axis in order if axis not in axes]
    return forms.put(call, result, [sorted(kept).index(axis) for axis in kept])


def _beside(forms: Forms, arg: Expr, order: Sequence[int]) -> Expr:
    """Return an operand of a reduction beside its data: of the same rank, or numbers."""
    return forms.ordered(arg, order) if len(shape_of(arg)) == len(order) else forms.logical(arg)


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
    if [axis for axis in wanted if before[axis] != 1] == order:
        source = forms.at_hand(data)
    else:
        first = first if forms.is_bound(data) else pieces
        source = forms.ordered(data, _with_units([axis for piece in first for axis in piece[0]], before))
    result = _with_units([axis for piece in first for axis in piece[1]], after)
    return forms.put(call, reshaped(source, [after[axis] for axis in result], call.span), result)


def _with_units(axes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Return `axes` with the axes of extent one put in at their own places."""
    result = list(axes)
    for axis, extent in enumerate(shape):
        if extent == 1:
            result.insert(axis, axis)
    return result


_RULES: dict[Layout, LayoutRule] = {
    Layout.LOGICAL: _logical,
    Layout.POINTWISE: _pointwise,
    Layout.CHANNELS_LAST: _layout,
    Layout.CONVOLUTION: _convolution,
    Layout.AXIS: _along_axis,
    Layout.IMAGES: _image_by_image,
    Layout.OPERAND_AXES: _quantized_pair,
    Layout.REDUCE: _reduce,
    Layout.BROADCAST: _broadcast_to,
    Layout.CONCATENATE: _concatenate,
    Layout.SLICE: _strided_slice,
    Layout.PAD: _pad,
    Layout.TRANSPOSE: _transpose,
    Layout.VIEW: _view,
}
