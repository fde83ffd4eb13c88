"""SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND, with which old converters express dilated convolutions.

A convolution between them reads every n-th pixel: it equals one with dilation n on the original data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Batched, Node, converts
from mlfc.ops.conv import pad_pairs
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Span, const
from mlfc.relay.op import POINTWISE, Layout, Operator, Trait

_LONGEST = 12  # operators


@converts("SPACE_TO_BATCH_ND")
def _space_to_batch(node: Node) -> Expr:
    shape, blocks, widths = node.shape(0), node.integers(1), _pairs(node)
    node.refuse_new_scale()
    zero = node.zero_point(node.input(0)) if node.quantized else 0
    node.batched[node.record.outputs[0]] = Batched(node.expr(0), blocks, widths, zero)
    kept = shape[1 + len(blocks) :]
    padded = [low + extent + high for extent, (low, high) in zip(shape[1:], widths, strict=False)]
    if any(extent % block for extent, block in zip(padded, blocks, strict=True)):
        raise ModelError(f"{tuple(padded)} does not divide into blocks of {tuple(blocks)}")
    data = node.expr(0)
    if any(map(any, widths)):
        value = const(zero, ir.tensor_type(data).dtype)
        around = ((0, 0), *widths, *((0, 0) for _ in kept))
        data = node.call("nn.pad", data, value, pad_width=around)
    split = [part for extent, block in zip(padded, blocks, strict=True) for part in (extent // block, block)]
    data = node.call("reshape", data, newshape=(shape[0], *split, *kept))
    count = len(blocks)
    order = [*range(2, 2 * count + 1, 2), 0, *range(1, 2 * count, 2), *range(2 * count + 1, 2 * count + 1 + len(kept))]
    data = node.call("transpose", data, axes=tuple(order))
    return node.call("reshape", data, newshape=(shape[0] * prod(blocks), *split[::2], *kept))


def _pairs(node: Node) -> list[tuple[int, int]]:
    """Return the paddings or crops of SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND, one pair per block."""
    blocks, flat, shape = node.integers(1), node.integers(2), node.shape(0)
    if len(flat) != 2 * len(blocks) or min(flat, default=0) < 0 or min(blocks, default=1) < 1:
        raise ModelError(f"paddings or crops {flat} do not fit blocks of {blocks}")
    if len(shape) <= len(blocks):
        raise ModelError(f"blocks of {blocks} do not fit data of shape {shape}")
    return list(zip(flat[::2], flat[1::2], strict=True))


@converts("BATCH_TO_SPACE_ND")
def _batch_to_space(node: Node) -> Expr:
    shape, blocks, crops = node.shape(0), node.integers(1), _pairs(node)
    node.refuse_new_scale()
    if (dilated := _dilated(node, blocks, crops)) is not None:
        return dilated
    batch, count = shape[0] // prod(blocks), len(blocks)
    if batch * prod(blocks) != shape[0]:
        raise ModelError(f"a batch of {shape[0]} does not divide into blocks of {tuple(blocks)}")
    space, kept = shape[1 : 1 + count], shape[1 + count :]
    data = node.call("reshape", node.expr(0), newshape=(*blocks, batch, *shape[1:]))
    pairs = [axis for k in range(count) for axis in (count + 1 + k, k)]
    data = node.call("transpose", data, axes=(count, *pairs, *range(2 * count + 1, 2 * count + 1 + len(kept))))
    whole = [extent * block for extent, block in zip(space, blocks, strict=True)]
    data = node.call("reshape", data, newshape=(batch, *whole, *kept))
    if not any(map(any, crops)):
        return data
    begin = [low for low, _ in crops]
    end = [extent - high for extent, (_, high) in zip(whole, crops, strict=True)]
    if any(first >= last for first, last in zip(begin, end, strict=True)):
        raise ModelError(f"crops {crops} leave no elements of {tuple(whole)}")
    axes = tuple(range(1, count + 1))
    return node.call("strided_slice", data, begin=tuple(begin), end=tuple(end), strides=(1,) * count, axes=axes)


def _dilated(node: Node, blocks: Sequence[int], crops: Sequence[tuple[int, int]]) -> Expr | None:
    """Return the enclosed convolution as a dilated one on the original data; None if that is not equivalent."""
    behind = _behind_convolution(node.expr(0))
    if behind is None:
        return None
    convolution, following = behind
    views, data = _views(convolution.args[0])
    split = next((item for index, item in node.batched.items() if node.exprs.get(index) is data), None)
    if split is None or [*split.blocks] != [*blocks]:
        return None
    axes = _axes_of(views, range(1, 1 + len(blocks)))
    if axes is None or _axes_of(following, axes) != [*range(1, 1 + len(blocks))]:
        return None
    attrs = _dilated_attrs(convolution, split, dict(zip(axes, zip(blocks, crops, strict=True), strict=True)), axes)
    if attrs is None:
        return None
    result, span = split.source, Span(node.span.nodes)
    for call in (*reversed(views), convolution, *reversed(following)):
        chosen = attrs if call is convolution else call.attrs
        result = ir.call(_name(call), [result, *call.args[1:]], chosen, span=span)
    return result


def _name(call: Call) -> str:
    assert isinstance(call.op, Operator)
    return call.op.name


def _behind_convolution(result: Expr) -> tuple[Call, list[Call]] | None:
    """Return the convolution that an expression depends on, and the calls in between, last first."""
    following: list[Call] = []
    while len(following) < _LONGEST and isinstance(result, Call) and isinstance(result.op, Operator):
        if result.op.layout is Layout.CONVOLUTION and not result.op.traits & Trait.TRANSPOSED:
            return result, following
        if not (_name(result) == "squeeze" or (result.op.kind in POINTWISE and _is_per_channel(result))):
            return None
        following.append(result)
        result = result.args[0]
    return None


def _is_per_channel(call: Call) -> bool:
    """Return whether a call preserves the shape, and its constants vary only along the last dimension."""
    data, result = (ir.tensor_type(expr).shape for expr in (call.args[0], call))
    sizes = [arg.data.shape if isinstance(arg, Constant) else data for arg in call.args[1:]]
    is_last = call.attrs.get("axis", -1) in (-1, len(data) - 1) or all(prod(shape) == 1 for shape in sizes)
    return data == result and "shape" not in call.attrs and is_last and all(prod(size[:-1]) == 1 for size in sizes)


def _views(data: Expr) -> tuple[list[Call], Expr]:
    """Return the calls that add dimensions of size 1 to data, last first, and the data."""
    views: list[Call] = []
    while isinstance(data, Call) and isinstance(data.op, Operator) and _name(data) == "expand_dims":
        views.append(data)
        data = data.args[0]
    return views, data


def _axes_of(calls: Sequence[Call], axes: Sequence[int]) -> list[int] | None:
    """Return the positions of dimensions after calls, given last first; None if a dimension is removed."""
    found = [*axes]
    for call in reversed(calls):
        before = len(ir.tensor_type(call.args[0]).shape)
        if _name(call) == "expand_dims":
            place = call.attrs["axis"] % (before + 1)
            found = [axis + (place <= axis) for axis in found]
        elif _name(call) == "squeeze":
            gone = {axis % before for axis in call.attrs["axis"]}
            if gone & {0, *found}:
                return None
            found = [axis - sum(place < axis for place in gone) for axis in found]
    return found


def _dilated_attrs(
    convolution: Call, split: Batched, steps: dict[int, tuple[int, tuple[int, int]]], axes: Sequence[int]
) -> dict[str, Any] | None:
    """Return the attributes of the convolution on the whole data; `steps` has block and crops per dimension."""
    attrs = dict(convolution.attrs)
    if attrs["data_layout"] != "NHWC" or not {*axes} <= {1, 2} or len(ir.tensor_type(convolution.args[0]).shape) != 4:
        return None
    if (called := ir.operator(convolution)) is not None and called.integer_of:
        zero = convolution.args[2]
        if not isinstance(zero, Constant) or int(zero.data) != split.zero:
            return None
    padding = [list(pair) for pair in pad_pairs(_name(convolution), attrs["padding"], 2)]
    strides, dilation = list(attrs["strides"]), list(attrs["dilation"])
    for axis, widths in zip(axes, split.widths, strict=True):
        (block, crops), place = steps[axis], axis - 1
        if strides[place] != 1:
            return None
        dilation[place] *= block
        padding[place] = [
            own * block + width - crop for own, width, crop in zip(padding[place], widths, crops, strict=True)
        ]
        if min(padding[place]) < 0:
            return None
    (top, bottom), (left, right) = padding
    return {**attrs, "dilation": tuple(dilation), "padding": (top, left, bottom, right)}
