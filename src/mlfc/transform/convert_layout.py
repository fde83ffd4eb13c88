"""Convert all convolutions, pools and image operators to channels-last layout (NHWC).

Rules, by `Operator.layout`, convert operators to operands with permuted axes: a rule receives the forms and a call of
the logical graph, and stores the form of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.errors import InternalError
from mlfc.ops.conv import is_depthwise_hwoi
from mlfc.ops.rules import normalized_axes
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule, TensorType, Tuple, TupleGetItem, has_trait, op_name
from mlfc.relay.op import Kind, Layout, Operator, Trait
from mlfc.relay.visitor import post_order, with_children
from mlfc.support.dim_estimates import typical
from mlfc.transform import matching
from mlfc.transform.matching import Rule, apply_rules, changed_constant, match_call, reshaped, shape_of, transposed


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor: axis ``i`` of `expr` is axis ``order[i]`` of the logical tensor."""

    expr: Expr
    order: tuple[int, ...]


def identity(rank: int) -> tuple[int, ...]:
    """Return the order of the logical tensor itself."""
    return tuple(range(rank))


class Forms:
    """The forms of all expressions of one graph."""

    def __init__(self) -> None:
        self.of: dict[Expr, Form] = {}
        self._ordered: dict[tuple[Expr, tuple[int, ...]], Expr] = {}
        # tensors whose axis order an operator dictates, and tensors computed from them
        self.bound: set[Expr] = set()

    def put(self, logical: Expr, expr: Expr, order: Sequence[int] | None = None) -> None:
        """Store that `expr` computes `logical` with its axes in `order`."""
        rank = len(logical.type.shape) if isinstance(logical.type, TensorType) else 0
        self.of[logical] = Form(expr, identity(rank) if order is None or rank == 0 else tuple(order))
        if isinstance(logical, Call) and any(arg in self.bound for arg in matching.flat_args(logical)):
            self.bound.add(logical)

    def apply(self, call: Call, order: Sequence[int], made: Sequence[int] | None = None, **changed: object) -> None:
        """Apply `call` to its first argument in `order`, the others in logical order; the result is in `made`."""
        args = [self.ordered(call.args[0], order), *map(self.logical, call.args[1:])]
        self.put(call, apply(call, args, **changed), order if made is None else made)

    def ordered(self, logical: Expr, order: Sequence[int]) -> Expr:
        """Return a tensor with its axes in `order`, transposed if necessary."""
        form, wanted = self.of[logical], tuple(order)
        if form.order == wanted:
            return form.expr
        key = (logical, wanted)
        if key not in self._ordered:
            dequantize = match_call(logical, "qnn.dequantize")
            if dequantize is not None:  # the integers are smaller, and may exist in this order already
                axis = wanted.index(dequantize.attrs["axis"] % len(wanted))
                args = [self.ordered(dequantize.args[0], wanted), *dequantize.args[1:]]
                self._ordered[key] = apply(dequantize, args, axis=axis)
            else:
                tensor = logical.span.tensor if wanted == identity(len(wanted)) else None
                span = ir.Span(logical.span.nodes, tensor)
                self._ordered[key] = transposed(form.expr, [form.order.index(axis) for axis in wanted], span)
        return self._ordered[key]

    def logical(self, expr: Expr) -> Expr:
        """Return an argument in the logical axis order; tuples field by field."""
        if isinstance(expr, Tuple):
            return Tuple(tuple(self.logical(item) for item in expr.fields), expr.span)
        if not isinstance(expr.type, TensorType):
            return self.of[expr].expr
        return self.ordered(expr, identity(len(expr.type.shape)))

    def broadcast(self, expr: Expr, order: Sequence[int]) -> Expr:
        """Return an operand that broadcasts, by NumPy's rules, to results with axes in `order`."""
        shape, rank = shape_of(expr), len(order)
        if isinstance(expr, Constant) and expr.data.size == 1:
            return expr
        if len(shape) == rank:
            return self.ordered(expr, order)
        wide = reshaped(self.logical(expr), (1,) * (rank - len(shape)) + shape)
        return transposed(wide, order)

    def common_order(self, operands: Sequence[Expr], rank: int) -> tuple[int, ...]:
        """Return the order of most operand bytes; ties prefer an order that an operator dictates."""
        sizes: dict[tuple[int, ...], int] = {}
        bound: set[tuple[int, ...]] = set()
        for operand in operands:
            if isinstance(operand, Constant) or len(shape_of(operand)) != rank:
                continue
            order = self.of[operand].order
            sizes[order] = sizes.get(order, 0) + typical(ir.tensor_type(operand).nbytes)
            if operand in self.bound:
                bound.add(order)
        plain = identity(rank)
        return max(sizes, key=lambda order: (sizes[order], order in bound, order != plain), default=plain)


def apply(call: Call, args: Sequence[Expr], **changed: object) -> Call:
    """Return `call` with other arguments and some attributes changed."""
    if not isinstance(call.op, Operator):
        raise InternalError("layouts are converted before fusion")
    return ir.call(call.op.name, args, {**call.attrs, **changed}, span=call.span)


def _logical(forms: Forms, call: Call) -> None:
    forms.put(call, apply(call, [forms.logical(arg) for arg in call.args]))


def _channels_last(layout: str) -> str:
    return "N" + "".join(letter for letter in layout if letter not in "NC") + "C"


def _convolution(forms: Forms, call: Call) -> None:
    """Convert weights to HWIO; for one group per channel, to HWOI with O the input channels."""
    attrs: dict[str, Any] = dict(call.attrs)
    given, made = attrs["data_layout"], attrs["out_layout"] or attrs["data_layout"]
    target = _channels_last(given)
    data = forms.ordered(call.args[0], [given.index(letter) for letter in target])
    weights, layout = forms.logical(call.args[1]), attrs["kernel_layout"]
    if not has_trait(call, Trait.TRANSPOSED) and isinstance(weights, Constant):
        channels = shape_of(call.args[0])[given.index("C")]
        spatial = "".join(letter for letter in layout if letter not in "OI")
        is_hwoi = is_depthwise_hwoi(attrs, channels)
        wanted = f"{spatial}OI" if is_hwoi else f"{spatial}IO"
        weights, layout = transposed(weights, [layout.index(letter) for letter in wanted]), wanted
        if not is_hwoi and attrs["groups"] == channels != 1:
            *window, _, outputs = shape_of(weights)
            weights, layout = reshaped(weights, (*window, channels, outputs // channels)), f"{spatial}OI"
    args = [data, weights, *map(forms.logical, call.args[2:])]
    result = apply(call, args, data_layout=target, kernel_layout=layout, out_layout="")
    forms.put(call, result, [made.index(letter) for letter in target])
    forms.bound.add(call)


def _layout(forms: Forms, call: Call) -> None:
    given = call.attrs["layout"]
    made = call.attrs.get("out_layout") or given
    target = _channels_last(given)
    if sorted(given) != sorted(target) or len(given) != len(shape_of(call.args[0])):
        return _logical(forms, call)
    changed = {"out_layout": ""} if "out_layout" in call.attrs else {}
    order, result = ([layout.index(letter) for letter in target] for layout in (given, made))
    return forms.apply(call, order, result, layout=target, **changed)


def _pointwise(forms: Forms, call: Call) -> None:
    order = forms.common_order(call.args, len(shape_of(call)))
    forms.put(call, apply(call, [forms.broadcast(arg, order) for arg in call.args]), order)


def _broadcast_to(forms: Forms, call: Call) -> None:
    shape = shape_of(call)
    order = forms.common_order(call.args, len(shape))
    data = forms.broadcast(call.args[0], order)
    forms.put(call, apply(call, [data], shape=tuple(shape[axis] for axis in order)), order)


def _along_axis(forms: Forms, call: Call) -> None:
    """Convert an operator of one tensor with an axis attribute, whose result has the same axes."""
    axis, order = call.attrs["axis"], forms.of[call.args[0]].order
    if axis is None or not order:
        return _logical(forms, call)
    positions = tuple(order.index(item % len(order)) for item in ((axis,) if isinstance(axis, int) else axis))
    return forms.apply(call, order, axis=positions[0] if isinstance(axis, int) else positions)


def _image_by_image(forms: Forms, call: Call) -> None:
    """Convert an operator whose first axis counts images, for any order of the other axes."""
    order = (0, *(axis for axis in forms.of[call.args[0]].order if axis != 0))
    forms.apply(call, order, axis=order.index(call.attrs["axis"] % len(order)))


def _quantized_pair(forms: Forms, call: Call) -> None:
    """Convert qnn.add and similar operators, whose scales may be per channel along an axis of an operand."""
    rank = len(shape_of(call))
    order = forms.common_order(call.args[:2], rank)
    changed = {
        name: order.index(call.attrs[name] % rank) if rank and len(shape_of(operand)) == rank else call.attrs[name]
        for name, operand in zip(("lhs_axis", "rhs_axis"), call.args[:2], strict=True)
    }
    operands = [forms.broadcast(arg, order) for arg in call.args[:2]]
    forms.put(call, apply(call, [*operands, *map(forms.logical, call.args[2:])], **changed), order)


def _concatenate(forms: Forms, call: Call) -> None:
    fields = call.args[0].fields if isinstance(call.args[0], Tuple) else ()
    rank = len(shape_of(call))
    order = forms.common_order(fields, rank)
    joined = Tuple(tuple(forms.ordered(item, order) for item in fields), call.args[0].span)
    axis = order.index(call.attrs["axis"] % rank)
    forms.put(call, apply(call, [joined, *map(forms.logical, call.args[1:])], axis=axis), order)


def _strided_slice(forms: Forms, call: Call) -> None:
    axes, order = call.attrs["axes"], forms.of[call.args[0]].order
    if order == identity(len(order)):
        return _logical(forms, call)
    given = range(len(call.attrs["begin"])) if axes is None else axes
    return forms.apply(call, order, axes=tuple(order.index(axis % len(order)) for axis in given))


def _pad(forms: Forms, call: Call) -> None:
    order = forms.of[call.args[0]].order
    forms.apply(call, order, pad_width=tuple(call.attrs["pad_width"][axis] for axis in order))


def _reduce(forms: Forms, call: Call) -> None:
    data, attrs = call.args[0], call.attrs
    order = forms.of[data].order
    rank = len(order)
    axes = normalized_axes(op_name(call) or "", attrs["axis"], rank, exclude=attrs["exclude"])
    if "select_last_index" in attrs and len(axes) != 1:  # the index refers to the logical order
        return _logical(forms, call)
    positions = tuple(sorted(order.index(axis) for axis in axes))
    # operands other than the data have the same rank, or are scalars
    others = [forms.ordered(arg, order) if len(shape_of(arg)) == rank else forms.logical(arg) for arg in call.args[1:]]
    args = [forms.of[data].expr, *others]
    result = apply(call, args, axis=positions, exclude=False)
    if attrs["keepdims"]:
        return forms.put(call, result, order)
    kept = [axis for axis in order if axis not in axes]
    return forms.put(call, result, [sorted(kept).index(axis) for axis in kept])


def _transpose(forms: Forms, call: Call) -> None:
    source, form = matching.transpose_axes(call), forms.of[call.args[0]]
    forms.put(call, form.expr, [source.index(axis) for axis in form.order])


def _view(forms: Forms, call: Call) -> None:
    data = call.args[0]
    before, after = shape_of(data), shape_of(call)
    if 0 in before:
        return _logical(forms, call)
    pieces = matching.matching_axes(before, after)
    order = [axis for axis in forms.of[data].order if before[axis] != 1]
    # axes that are merged or regrouped must be adjacent and in the logical order
    first = sorted(pieces, key=lambda piece: min(order.index(axis) for axis in piece[0]))
    wanted = _with_units([axis for piece in first for axis in piece[0]], before)
    if [axis for axis in wanted if before[axis] != 1] == order:
        source = forms.of[data].expr
    else:
        first = first if data in forms.bound else pieces
        source = forms.ordered(data, _with_units([axis for piece in first for axis in piece[0]], before))
    result = _with_units([axis for piece in first for axis in piece[1]], after)
    return forms.put(call, reshaped(source, [after[axis] for axis in result], call.span), result)


def _with_units(axes: list[int], shape: tuple[int, ...]) -> list[int]:
    """Return `axes` with the axes of size 1 inserted at their logical positions."""
    result = list(axes)
    for axis, extent in enumerate(shape):
        if extent == 1:
            result.insert(axis, axis)
    return result


_LAYOUTS: dict[Layout, Callable[[Forms, Call], None]] = {
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


@dataclass(frozen=True)
class ConvertLayout:
    """Turn channels-first operators to channels last, weights to HWIO (depthwise: HWOI).

    Transposes remain only where a model's input or output has both channels and spatial dimensions, and where an
    operator requires another order. The weight columns of dense layers after a flattened image are permuted to
    channels-last order.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the converted module."""
        forms = Forms()
        for node in post_order(module.main.body):
            if isinstance(node, Call):
                layout = node.op.layout if isinstance(node.op, Operator) else None
                _LAYOUTS[layout or Layout.LOGICAL](forms, node)
            elif isinstance(node, TupleGetItem):
                forms.put(node, with_children(node, [forms.logical(node.value)]))
            elif not isinstance(node, Tuple):
                forms.put(node, node)
        return apply_rules(module.with_body(forms.logical(module.main.body)), _RULES)


def _flattened_dense(call: Call) -> Expr | None:
    """Make a dense layer read a flattened tensor in memory order, by permuting its weights instead."""
    if call.attrs.get("block_size"):  # blocks of columns share a scale
        return None
    weights, chain, data = matching.value_of(call.args[1]), _pointwise_chain(call.args[0]), call.args[0]
    if chain:
        data = chain[-1].args[0]
    view = match_call(data, "reshape")
    turned = match_call(view.args[0], "transpose") if view else None
    if weights is None or view is None or turned is None or len(shape_of(view)) != 2:
        return None
    axes, shape = turned.attrs["axes"], shape_of(turned)
    if axes is None or axes[0] != 0 or shape[0] != shape_of(view)[0]:
        return None
    result = reshaped(turned.args[0], shape_of(view), view.span)
    for step in reversed(chain):
        result = with_children(step, [result, *step.args[1:]])
    # columns in the order from before the transpose
    wide = weights.reshape(weights.shape[0], *shape[1:]).transpose([axes.index(axis) for axis in range(len(axes))])
    packed = changed_constant(call.args[1], wide.reshape(weights.shape))
    return with_children(call, [result, packed, *call.args[2:]])


def _pointwise_chain(expr: Expr) -> list[Call]:
    """Return the elementwise operators that precede `expr`, last first, with scalar other operands."""
    chain: list[Call] = []
    while isinstance(expr, Call) and isinstance(expr.op, Operator) and expr.op.kind is Kind.ELEMENTWISE:
        first, *rest = expr.args
        if shape_of(first) != shape_of(expr) or any(matching.scalar_of(arg) is None for arg in rest):
            break
        chain.append(expr)
        expr = first
    return chain


_RULES: dict[str, Rule] = dict.fromkeys(
    matching.names_of(lambda operator: operator.filters is not None and operator.layout is Layout.LOGICAL),
    _flattened_dense,
)
