"""Operators that move elements without arithmetic: reshaping, slicing, joining and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from tflite import MirrorPadMode

from mlfc.errors import ModelError
from mlfc.frontend.tflite.arithmetic import activated, clipped
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
        raise ModelError(f"the new shape {tuple(shape)} is invalid")
    fits = bounds(known)[0] > 0 and size % known == 0 if -1 in shape else size == known
    if not fits:
        node.refuse(
            f"cannot reshape {node.shape(0)} to {tuple(shape)}, the shape in the file",
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
    widths = node.extents(1)
    if len(widths) != 2 * len(node.shape(0)) or any(bounds(width)[1] < 0 for width in widths):
        raise ModelError(f"the padding {widths} does not fit {len(node.shape(0))} dimensions")
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
            raise ModelError(f"expected one padding value, got {given.size}")
        value = given.reshape(()).item()
    return node.call("nn.pad", node.expr(0), const(value, dtype), pad_width=_pad_width(node))


def _padded_by(node: Node, value: Expr) -> Expr:
    """Return the data padded with a computed number."""
    if ir.tensor_type(value).size != 1:
        raise ModelError(f"expected one padding value, got {ir.tensor_type(value).size}")
    result, widths = node.expr(0), _pad_width(node)
    value = node.call("reshape", value, newshape=(1,) * len(widths))
    for axis, (low, high) in enumerate(widths):
        shape = ir.tensor_type(result).shape
        before, after = (
            [node.call("broadcast_to", value, shape=(*shape[:axis], width, *shape[axis + 1 :]))] if width else []
            for width in (low, high)
        )
        result = node.joined((*before, result, *after), axis) if before or after else result
    return result


@converts("DILATE")
def _dilate(node: Node) -> Expr:
    """Convert DILATE, which inserts copies of a number (input 2) between the elements of its data."""
    result, steps, value = node.expr(0), node.integers(1), node.value(2)
    if len(steps) != len(node.shape(0)) or min(steps, default=1) < 1 or value.size != 1:
        raise ModelError(f"dilations {steps} do not fit data of shape {node.shape(0)}")
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
        result = node.cut(apart, 0, end, axis)
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
    # for int16, LiteRT concatenates codes regardless of their scales
    if output.dtype == "int16" or all(same_quantization(tensor, output) for tensor in tensors):
        joined = node.joined(parts, axis)
    else:
        scales, zeros = zip(*map(node.quantization, tensors), strict=True)
        operands = (Tuple(tuple(parts)), Tuple(scales), Tuple(zeros), *node.quantization(output))
        joined = node.call("qnn.concatenate", *operands, axis=axis)
    return clipped(node, joined, function) if node.quantized else activated(node, joined, function)


@converts("PACK")
def _pack(node: Node) -> Expr:
    axis = normalized_axis("PACK", node.options("PackOptions").Axis(), len(node.shape(0)) + 1)
    return node.joined((node.call("expand_dims", part, axis=axis) for part in node.operands()), axis)


@converts("UNPACK")
def _unpack(node: Node) -> list[Expr]:
    options = node.options("UnpackOptions")
    axis = normalized_axis("UNPACK", options.Axis(), len(node.shape(0)))
    count = len(node.record.outputs)
    if node.shape(0)[axis] != count:
        raise ModelError(f"{count} outputs do not fit axis {axis} of {node.shape(0)}")
    parts = _parts(node, node.expr(0), axis, [1] * count)
    return [node.call("squeeze", part, axis=(axis,)) for part in parts]


def _parts(node: Node, data: Expr, axis: int, sizes: Sequence[int]) -> list[Expr]:
    """Return consecutive slices of given sizes along an axis."""
    return [node.cut(data, begin, end, axis) for begin, end in pairwise(accumulate(sizes, initial=0))]


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
    sizes, shape = node.extents(1), node.shape(0)
    if len(sizes) != len(node.record.outputs):
        raise ModelError(f"{len(sizes)} sizes do not fit {len(node.record.outputs)} outputs")
    axis = normalized_axis("SPLIT_V", node.integer(2), len(shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = shape[axis] - sum(size for size in sizes if size != -1)
    if any(bounds(size)[1] < 0 for size in sizes) or sum(sizes) != shape[axis]:
        raise ModelError(f"sizes {sizes} do not add up to axis {axis} of {shape}")
    return _parts(node, node.expr(0), axis, sizes)


@converts("SLICE")
def _slice(node: Node) -> Expr:
    begin, sizes, shape = node.extents(1), node.extents(2), node.shape(0)
    if not len(begin) == len(sizes) == len(shape):
        raise ModelError(f"{len(begin)} starts and {len(sizes)} sizes do not fit {len(shape)} dimensions")
    end = [extent if size == -1 else start + size for start, size, extent in zip(begin, sizes, shape, strict=True)]
    if any(not 0 <= a <= b <= c for a, b, c in zip(begin, end, shape, strict=True)):
        raise ModelError(f"the slice from {begin} of sizes {sizes} is out of range for {shape}")
    return node.call("strided_slice", node.expr(0), begin=begin, end=end, strides=(1,) * len(shape), axes=None)


@converts("STRIDED_SLICE")
def _strided_slice(node: Node) -> Expr:
    data, parts = _spelled_out(node)
    shape = ir.tensor_type(data).shape
    ranges = [_range_of(node, part, axis, shape) for axis, part in enumerate(parts)]
    begin, end, strides = zip(*ranges, strict=True) if ranges else ((), (), ())
    result = node.call("strided_slice", data, begin=begin, end=end, strides=strides, axes=tuple(range(len(shape))))
    shrunk = tuple(axis for axis, part in enumerate(parts) if part.shrinks)
    return node.call("squeeze", result, axis=shrunk) if shrunk else result


@dataclass(frozen=True)
class _AxisSlice:
    """The selected part of an axis in STRIDED_SLICE: everything by default, or one index if the axis `shrinks`."""

    begin: Any = 0
    end: Any = 0
    stride: int = 1
    from_start: bool = True
    to_end: bool = True
    shrinks: bool = False


def _range_of(node: Node, part: _AxisSlice, axis: int, shape: Sequence[Any]) -> tuple[Any, Any, int]:
    """Return begin, end and stride of a slice along an axis in Relay's convention."""
    extent, stride = shape[axis], part.stride
    if part.shrinks:
        place = 0 if part.from_start else part.begin + (extent if part.begin < 0 else 0)
        if stride < 0:
            node.refuse(f"one index of axis {axis} with the stride {stride} is not supported", "Use a positive stride")
        if not 0 <= place < extent:
            raise ModelError(f"index {part.begin} is outside axis {axis} of {shape}")
        return place, place + 1, 1
    if is_static((extent, part.begin, part.end)):
        ends = (None if part.from_start else part.begin, None if part.to_end else part.end)
        first, last, _ = slice(*ends, stride).indices(extent)
        # in Relay a negative end counts from the end; one before the first element is -extent - 1
        return first, last if stride > 0 or last >= 0 else -extent - 1, stride
    if stride < 0:
        node.refuse(f"a backward slice of an axis of {extent} is not supported", "Reverse it with REVERSE_V2")

    def inside(place: Any) -> Any:
        return minimum(place, extent) if place >= 0 else maximum(extent + place, 0)

    return 0 if part.from_start else inside(part.begin), extent if part.to_end else inside(part.end), stride


def _spelled_out(node: Node) -> tuple[Expr, list[_AxisSlice]]:
    """Return the data with its new axes, and the slice of every axis; an ellipsis is expanded."""
    options, data = node.options("StridedSliceOptions"), node.expr(0)
    begin, end, strides = node.extents(1), node.extents(2), node.integers(3)
    ellipsis, new = options.EllipsisMask(), options.NewAxisMask() & ~options.EllipsisMask()
    rank, count = len(node.shape(0)), len(begin)
    taken = sum(not (ellipsis | new) >> index & 1 for index in range(count))
    ellipses = sum(ellipsis >> index & 1 for index in range(count))
    if not count == len(end) == len(strides) or taken > rank or ellipses > 1 or 0 in strides:
        raise ModelError(f"a slice from {begin} to {end} by {strides} does not fit {node.shape(0)}")
    parts: list[_AxisSlice] = []
    for index in range(count):
        if ellipsis >> index & 1:
            parts += [_AxisSlice()] * (rank - taken)
        elif new >> index & 1:
            data = node.call("expand_dims", data, axis=len(parts))
            parts.append(_AxisSlice())
        else:
            last = end[index] + (begin[index] if options.Offset() else 0)
            masks = (options.BeginMask(), options.EndMask(), options.ShrinkAxisMask())
            flags = (bool(mask >> index & 1) for mask in masks)
            parts.append(_AxisSlice(begin[index], last, strides[index], *flags))
    return data, parts + [_AxisSlice()] * (len(ir.tensor_type(data).shape) - len(parts))


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
    """Convert DENSIFY; its input was expanded when the file was read."""
    return Constant(node.value(0), node.output().name, node.span)


@converts("FILL")
def _fill(node: Node) -> Expr:
    shape = tuple(node.extents(0))
    if any(bounds(extent)[1] < 0 for extent in shape) or (is_static(shape) and prod(shape) > _CONSTANT_LIMIT):
        raise ModelError(f"a constant of shape {shape} is not possible")
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
