"""Move reshapes out of the way of fusion, so that a change of shape alone does not end a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, IRModule, Span
from mlfc.relay.op import POINTWISE, Kind, Operator
from mlfc.relay.visitor import rewrite
from mlfc.support.dims import is_static
from mlfc.transform.matching import match_call, matching_axes, reshaped, shape_of


@dataclass(frozen=True)
class MoveViews:
    """Move reshapes after arithmetic with scalars, and before slices.

    The arithmetic then fuses with the preceding product or convolution, and the slice with the following transpose.
    Both patterns are common between the matrix products of attention.
    """

    def __call__(self, module: IRModule) -> IRModule:
        """Return the module with these reshapes moved."""

        def moved(node: Expr) -> Expr:
            found = _before_slice(node) if match_call(node, "reshape") else _behind_pointwise(node)
            return node if found is None else found

        return module.with_body(rewrite(module.main.body, moved))


def _behind_pointwise(call: Expr) -> Expr | None:
    """Return ``reshape(op(x))`` for ``op(reshape(x))``, where the other operands are single numbers."""
    if (
        not isinstance(call, Call)
        or not isinstance(call.op, Operator)
        or call.op.kind not in POINTWISE
        or "axis" in call.attrs
    ):
        return None
    views = [arg for arg in call.args if match_call(arg, "reshape")]
    others = [arg for arg in call.args if arg not in views]
    if len(views) != 1 or shape_of(views[0]) != shape_of(call):
        return None
    if not all(isinstance(arg, Constant) and arg.data.size == 1 for arg in others):
        return None
    view = match_call(views[0], "reshape")
    if view is None:
        return None
    # the viewed value must come from an anchor operator, optionally followed by pointwise operators
    product, called = view.args[0], ir.operator(view.args[0])
    while isinstance(product, Call) and called is not None and called.kind in POINTWISE:
        product = product.args[0]
        called = ir.operator(product)
    if called is None or called.kind is not Kind.ANCHOR:
        return None
    args = [view.args[0] if arg is view else reshaped(arg, ()) for arg in call.args]
    moved = ir.call(call.op.name, args, call.attrs, span=Span(call.span.nodes))
    return reshaped(moved, shape_of(call), call.span)


def _before_slice(call: Expr) -> Expr | None:
    """Return ``slice(reshape(x))`` for ``reshape(slice(x))`` that splits the sliced axis into whole pieces."""
    assert isinstance(call, Call)
    part = match_call(call.args[0], "strided_slice")
    if part is None or 0 in shape_of(part) or not is_static((*shape_of(part), *shape_of(part.args[0]))):
        return None
    if any(step != 1 for step in part.attrs["strides"] or ()):
        return None
    before, sliced, after = shape_of(part.args[0]), shape_of(part), shape_of(call)
    cut = [axis for axis, (whole, kept) in enumerate(zip(before, sliced, strict=True)) if whole != kept]
    if len(cut) != 1:
        return None
    (axis,) = cut
    piece = next((theirs for mine, theirs in matching_axes(sliced, after) if mine == [axis]), None)
    if piece is None or len(piece) < 2:
        return None
    axes, begins = part.attrs["axes"], part.attrs["begin"]
    given = range(len(begins)) if axes is None else [item % len(sliced) for item in axes]
    begin: int = begins[list(given).index(axis)]
    begin = min(max(begin + before[axis] if begin < 0 else begin, 0), before[axis])
    size = prod(after[item] for item in piece[1:])
    if begin % size or before[axis] % size:
        return None
    first, count = piece[0], after[piece[0]]
    shape = (*after[:first], before[axis] // size, *after[first + 1 :])
    cuts = {"begin": (begin // size,), "end": (begin // size + count,), "strides": (1,), "axes": (first,)}
    return ir.call("strided_slice", [reshaped(part.args[0], shape)], cuts, span=call.span)
