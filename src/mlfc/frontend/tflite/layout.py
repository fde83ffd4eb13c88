"""Operators that move elements without computing: shapes, slices, joins, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from tflite import MirrorPadMode

from mlfc.errors import ModelError
from mlfc.frontend.tflite.activation import activated, clipped
from mlfc.frontend.tflite.node import Node, converts, same_quantization
from mlfc.ops.rules import normalized_axis
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, Tuple, const
from mlfc.support.dims import bounds, is_static, maximum, minimum

_CONSTANT_LIMIT = 1 << 20


@converts("RESHAPE")
def _reshape(node: Node) -> Expr:
    if node.has(1):
        shape: Sequence[Any] = node.extents(1)
    else:
        shape = [int(extent) for extent in node.options("ReshapeOptions").NewShapeAsNumpy()]
    size = prod(node.shape(0))
    known = prod(extent for extent in shape if extent != -1)
    if list(shape).count(-1) > 1 or any(bounds(extent)[1] < -1 for extent in shape):
        raise ModelError(f"the new shape {tuple(shape)} is not one")
    fits = bounds(known)[0] > 0 and size % known == 0 if -1 in shape else size == known
    if not fits:
        node.refuse(
            f"{node.shape(0)} cannot take the shape {tuple(shape)} that the file has",
            "A batch size that the file fixes cannot be changed",
        )
    return node.call("reshape", node.expr(0), newshape=tuple(size // known if e == -1 else e for e in shape))


@converts("SQUEEZE")
def _squeeze(node: Node) -> Expr:
    options = node.options("SqueezeOptions")
    axes = options.SqueezeDimsAsNumpy() if options.SqueezeDimsLength() else None
    if axes is None:
        axes = [axis for axis, extent in enumerate(node.shape(0)) if extent == 1]
    return node.call("squeeze", node.expr(0), axis=tuple(int(axis) for axis in axes))


@converts("EXPAND_DIMS")
def _expand_dims(node: Node) -> Expr:
    return node.call("expand_dims", node.expr(0), axis=node.integer(1))


@converts("TRANSPOSE")
def _transpose(node: Node) -> Expr:
    return node.call("transpose", node.expr(0), axes=tuple(node.integers(1)))


def _pad_width(node: Node) -> tuple[tuple[int, int], ...]:
    widths = node.integers(1)
    if len(widths) != 2 * len(node.shape(0)) or min(widths, default=0) < 0:
        raise ModelError(f"the padding {widths} for {len(node.shape(0))} dimensions")
    return tuple(zip(widths[::2], widths[1::2], strict=True))


@converts("PAD", "PADV2")
def _pad(node: Node) -> Expr:
    dtype = node.output().dtype
    node.refuse_new_scale()
    value: float = node.zero_point(node.input(0)) if node.quantized else 0
    if node.has(2):
        if not isinstance(node.expr(2), Constant):
            return _padded_by(node, node.expr(2))
        given = node.value(2)
        if given.size != 1:
            raise ModelError(f"{given.size} padding values where one belongs")
        value = given.reshape(()).item()
    return node.call("nn.pad", node.expr(0), const(value, dtype), pad_width=_pad_width(node))


def _padded_by(node: Node, value: Expr) -> Expr:
    """Return the data with a computed number around it."""
    if ir.tensor_type(value).size != 1:
        raise ModelError(f"{ir.tensor_type(value).size} padding values where one belongs")
    result, widths = node.expr(0), _pad_width(node)
    value = node.call("reshape", value, newshape=(1,) * len(widths))
    for axis, (low, high) in enumerate(widths):
        shape = list(ir.tensor_type(result).shape)
        parts = [result]
        for place, width in ((0, low), (len(parts) + (low > 0), high)):
            if width:
                shape[axis] = width
                parts.insert(place, node.call("broadcast_to", value, shape=tuple(shape)))
        result = node.call("concatenate", Tuple(tuple(parts)), axis=axis) if len(parts) > 1 else result
    return result


@converts("DILATE")
def _dilate(node: Node) -> Expr:
    """Convert DILATE, which puts copies of a number (input 2) between the elements of its data."""
    result, steps, value = node.expr(0), node.integers(1), node.value(2)
    if len(steps) != len(node.shape(0)) or min(steps, default=1) < 1 or value.size != 1:
        raise ModelError(f"steps of {steps} in {node.shape(0)}")
    fill = const(value.reshape(()).item(), ir.tensor_type(result).dtype)
    for axis, step in enumerate(steps):
        shape = ir.tensor_type(result).shape
        if step == 1:
            continue
        apart = node.call("expand_dims", result, axis=axis + 1)
        around = tuple((0, step - 1) if other == axis + 1 else (0, 0) for other in range(len(shape) + 1))
        apart = node.call("nn.pad", apart, fill, pad_width=around)
        whole = (*shape[:axis], shape[axis] * step, *shape[axis + 1 :])
        apart = node.call("reshape", apart, newshape=whole)
        end = (shape[axis] - 1) * step + 1
        result = node.call("strided_slice", apart, begin=(0,), end=(end,), strides=(1,), axes=(axis,))
    return result


@converts("RANK")
def _rank(node: Node) -> Expr:
    return Constant(np.array(len(node.shape(0)), np.int32), node.output().name, node.span)


@converts("MIRROR_PAD")
def _mirror_pad(node: Node) -> Expr:
    mode = node.options("MirrorPadOptions").Mode()
    name = "REFLECT" if mode == MirrorPadMode.REFLECT else "SYMMETRIC"
    return node.call("nn.mirror_pad", node.expr(0), mode=name, pad_width=_pad_width(node))


@converts("CONCATENATION")
def _concatenation(node: Node) -> Expr:
    options = node.options("ConcatenationOptions")
    parts = node.operands()
    axis, output, function = options.Axis(), node.output(), options.FusedActivationFunction()
    tensors = [node.input(position) for position in range(len(parts))]
    # of int16, LiteRT joins codes whatever their scales
    if output.dtype == "int16" or all(same_quantization(tensor, output) for tensor in tensors):
        joined = node.call("concatenate", Tuple(tuple(parts)), axis=axis)
    else:
        pairs = [node.quantization(tensor) for tensor in tensors]
        joined = node.call(
            "qnn.concatenate", Tuple(tuple(parts)), Tuple(tuple(pair[0] for pair in pairs)),
            Tuple(tuple(pair[1] for pair in pairs)), *node.quantization(output), axis=axis,
        )  # fmt: skip
    return clipped(node, joined, function) if node.quantized else activated(node, joined, function)


@converts("PACK")
def _pack(node: Node) -> Expr:
    axis = normalized_axis("PACK", node.options("PackOptions").Axis(), len(node.shape(0)) + 1)
    parts = [node.call("expand_dims", part, axis=axis) for part in node.operands()]
    return node.call("concatenate", Tuple(tuple(parts)), axis=axis)


@converts("UNPACK")
def _unpack(node: Node) -> list[Expr]:
    options = node.options("UnpackOptions")
    axis = normalized_axis("UNPACK", options.Axis(), len(node.shape(0)))
    count = len(node.record.outputs)
    if node.shape(0)[axis] != count:
        raise ModelError(f"{count} outputs from axis {axis} of {node.shape(0)}")
    parts = _parts(node, node.expr(0), axis, [1] * count)
    return [node.call("squeeze", part, axis=(axis,)) for part in parts]


def _parts(node: Node, data: Expr, axis: int, sizes: Sequence[int]) -> list[Expr]:
    """Return consecutive slices of given sizes along an axis."""
    edges = np.cumsum([0, *sizes]).tolist()
    return [
        node.call("strided_slice", data, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))
        for begin, end in pairwise(edges)
    ]


@converts("SPLIT")
def _split(node: Node) -> list[Expr]:
    """Convert SPLIT, whose data is input 1 and whose axis is input 0."""
    shape, count = node.shape(1), len(node.record.outputs)
    axis = normalized_axis("SPLIT", node.integer(0), len(shape))
    if count == 0 or shape[axis] % count:
        raise ModelError(f"axis {axis} of {shape} does not split into {count} equal parts")
    return _parts(node, node.expr(1), axis, [shape[axis] // count] * count)


@converts("SPLIT_V")
def _split_v(node: Node) -> list[Expr]:
    sizes, shape = node.integers(1), node.shape(0)
    if len(sizes) != len(node.record.outputs):
        raise ModelError(f"{len(sizes)} sizes for {len(node.record.outputs)} outputs")
    axis = normalized_axis("SPLIT_V", node.integer(2), len(shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(size for size in sizes if size != -1)
    if min(sizes) < 0 or sum(sizes) != shape[axis]:
        raise ModelError(f"sizes {sizes} do not make up axis {axis} of {shape}")
    return _parts(node, node.expr(0), axis, sizes)


@converts("SLICE")
def _slice(node: Node) -> Expr:
    begin, sizes, shape = node.extents(1), node.extents(2), node.shape(0)
    if not len(begin) == len(sizes) == len(shape):
        raise ModelError(f"{len(begin)} starts and {len(sizes)} sizes for {len(shape)} dimensions")
    end = [extent if size == -1 else start + size for start, size, extent in zip(begin, sizes, shape, strict=True)]
    if any(not 0 <= a <= b <= c for a, b, c in zip(begin, end, shape, strict=True)):
        raise ModelError(f"the slice from {begin} of {sizes} is outside {shape}")
    return node.call("strided_slice", node.expr(0), begin=begin, end=end, strides=(1,) * len(shape), axes=None)


@converts("STRIDED_SLICE")
def _strided_slice(node: Node) -> Expr:
    data, masks = _spelled_out(node)
    shape = ir.tensor_type(data).shape
    begin, end, strides = masks.begin, masks.end, masks.strides
    for axis, extent in enumerate(shape):
        forward = strides[axis] > 0
        if axis in masks.shrunk:
            place = begin[axis] + (extent if begin[axis] < 0 else 0)
            if axis in masks.from_start:
                place = 0
            if not forward:
                node.refuse(
                    f"one index of axis {axis} with the stride {strides[axis]} is not supported",
                    "Use a positive stride",
                )
            if not 0 <= place < extent:
                raise ModelError(f"index {begin[axis]} is outside axis {axis} of {shape}")
            begin[axis], end[axis], strides[axis] = place, place + 1, 1
            continue
        if not is_static((extent, begin[axis], end[axis])):
            _cut_open(node, masks, axis, extent)
            continue
        first, last, _ = slice(
            None if axis in masks.from_start else begin[axis], None if axis in masks.to_end else end[axis],
            strides[axis],
        ).indices(extent)  # fmt: skip
        # Relay reads a negative end as counted from the back; one below the first element is -extent - 1
        begin[axis], end[axis] = first, last if forward or last >= 0 else -extent - 1
    result = node.call(
        "strided_slice", data, begin=tuple(begin), end=tuple(end), strides=tuple(strides), axes=tuple(range(len(shape)))
    )
    return node.call("squeeze", result, axis=tuple(masks.shrunk)) if masks.shrunk else result


def _cut_open(node: Node, masks: _SliceMasks, axis: int, extent: Any) -> None:
    """Spell out what is taken of an axis whose extent the run decides."""
    if masks.strides[axis] < 0:
        node.refuse(f"a slice backwards along an axis of {extent}", "Reverse the whole axis with REVERSE_V2")

    def inside(place: Any) -> Any:
        return minimum(place, extent) if place >= 0 else maximum(extent + place, 0)

    masks.begin[axis] = 0 if axis in masks.from_start else inside(masks.begin[axis])
    masks.end[axis] = extent if axis in masks.to_end else inside(masks.end[axis])


@dataclass
class _SliceMasks:
    """What STRIDED_SLICE takes of each axis; some of the axes are new."""

    begin: list[Any] = field(default_factory=list)
    end: list[Any] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    from_start: list[int] = field(default_factory=list)
    to_end: list[int] = field(default_factory=list)
    shrunk: list[int] = field(default_factory=list)

    def add(self, begin: Any, end: Any, stride: int, *, from_start: bool, to_end: bool, shrinks: bool) -> None:
        """Append an axis."""
        axis = len(self.begin)
        for values, value in ((self.begin, begin), (self.end, end), (self.strides, stride)):
            values.append(value)
        for axes, holds in ((self.from_start, from_start), (self.to_end, to_end), (self.shrunk, shrinks)):
            if holds:
                axes.append(axis)

    def add_whole(self) -> None:
        """Append an axis that is taken whole."""
        self.add(0, 0, 1, from_start=True, to_end=True, shrinks=False)


def _spelled_out(node: Node) -> tuple[Expr, _SliceMasks]:
    """Return the data with its new axes, and what is taken of every axis: an ellipsis stands for as many as miss."""
    options, data = node.options("StridedSliceOptions"), node.expr(0)
    begin, end, strides = node.extents(1), node.extents(2), node.integers(3)
    ellipsis, new = options.EllipsisMask(), options.NewAxisMask() & ~options.EllipsisMask()
    rank, count = len(node.shape(0)), len(begin)
    taken = sum(not (ellipsis | new) >> index & 1 for index in range(count))
    ellipses = sum(ellipsis >> index & 1 for index in range(count))
    if not count == len(end) == len(strides) or taken > rank or ellipses > 1 or 0 in strides:
        raise ModelError(f"a slice from {begin} to {end} by {strides} of {node.shape(0)}")
    masks = _SliceMasks()
    for index in range(count):
        if ellipsis >> index & 1:
            for _ in range(rank - taken):
                masks.add_whole()
        elif new >> index & 1:
            data = node.call("expand_dims", data, axis=len(masks.begin))
            masks.add_whole()
        else:
            last = end[index] + (begin[index] if options.Offset() else 0)
            masks.add(
                begin[index], last, strides[index], from_start=bool(options.BeginMask() >> index & 1),
                to_end=bool(options.EndMask() >> index & 1), shrinks=bool(options.ShrinkAxisMask() >> index & 1),
            )  # fmt: skip
    for _ in range(len(ir.tensor_type(data).shape) - len(masks.begin)):
        masks.add_whole()
    return data, masks


@converts("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def _space_and_depth(node: Node) -> Expr:
    deeper = node.record.code == "SPACE_TO_DEPTH"
    block = node.options("SpaceToDepthOptions" if deeper else "DepthToSpaceOptions").BlockSize()
    name = "nn.space_to_depth" if deeper else "nn.depth_to_space"
    return node.call(name, node.expr(0), block_size=block, layout="NHWC")


@converts("SHAPE")
def _shape(node: Node) -> Expr:
    node.check_type("ShapeOptions", lambda options: options.OutType())
    return node.sizes(node.shape(0))


@converts("DENSIFY")
def _densify(node: Node) -> Expr:
    """Convert DENSIFY, whose input was laid out densely when the file was read."""
    return Constant(node.value(0), node.output().name, node.span)


@converts("FILL")
def _fill(node: Node) -> Expr:
    shape = tuple(node.extents(0))
    if any(bounds(extent)[1] < 0 for extent in shape) or (is_static(shape) and prod(shape) > _CONSTANT_LIMIT):
        raise ModelError(f"a constant of shape {shape}")
    return node.call("broadcast_to", node.expr(1), shape=shape)


@converts("ZEROS_LIKE")
def _zeros_like(node: Node) -> Expr:
    dtype = ir.tensor_type(node.expr(0)).dtype
    value = node.zero_point(node.output()) if node.quantized else 0
    return node.call("broadcast_to", const(value, dtype), shape=node.shape(0))


@converts("TILE")
def _tile(node: Node) -> Expr:
    return node.call("tile", node.expr(0), reps=tuple(node.extents(1)))


@converts("BROADCAST_TO")
def _broadcast_to(node: Node) -> Expr:
    return node.call("broadcast_to", node.expr(0), shape=tuple(node.extents(1)))
