"""Operators that extract patches from images, or combine patches into images, with index tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.conv import WindowAttributes, pool_window, pooled, window
from mlfc.frontend.onnx.node import Node, dtype_of, is_float
from mlfc.frontend.onnx.run_tables import allow, as_expr, counted, places_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import dtypes
from mlfc.support.dims import Extent, is_static

_SIZE_LIMIT = 1 << 30


def _positions(node: Node, image: Sequence[Extent], shape: WindowAttributes) -> tuple[Any, Any]:
    """Return the image index of each tap of each window, and whether it is inside the image, both (windows, taps)."""
    allow(node, *shape.out, each=16 * prod(shape.kernel))
    found: Any = np.zeros((1, 1), np.int64)
    inside: Any = np.ones((1, 1), bool)
    for axis, (steps, extent) in enumerate(zip(counted(node, *shape.out), image, strict=True)):
        starts = steps * shape.strides[axis] - shape.begin[axis]
        at = starts[:, None] + np.arange(shape.kernel[axis]) * shape.dilations[axis]
        windows, taps = found.shape[0] * at.shape[0], found.shape[1] * at.shape[1]
        found = (found[:, None, :, None] * extent + at[None, :, None, :]).reshape(windows, taps)
        lies = (at >= 0) & (at < extent)
        inside = (inside[:, None, :, None] & lies[None, :, None, :]).reshape(windows, taps)
    return found, inside


def _places_of_maxima(node: Node, shape: WindowAttributes) -> Expr:
    """Return the flat index of the maximum of each window; the first one of equal elements."""
    order = node.integer("storage_order", 0)
    if order not in (0, 1):
        node.wrong(f"expected storage_order 0 or 1, got {order}")
    x, (batch, channels, *image) = node.input(0), node.shape(0)
    table, inside = _positions(node, image, shape)
    _require_elements(node, inside, shape)
    if 0 in (batch, channels):
        node.unsupported("with Indices of windows without elements is not supported")
    images = node.reshape(x, (batch * channels, prod(image)))
    if is_float(images):  # the largest element is not NaN
        images = node.call("where", node.call("isnan", images), node.like(-np.inf, images), images)
    # indices outside the image are replaced by the smallest index inside, so that the first maximum is inside
    size, (windows, taps) = prod(image), table.shape
    places = np.where(inside, table, np.where(inside, table, size).min(axis=1)[:, None])
    # int32 indices suffice for static image sizes
    dtype = "int32" if isinstance(places, np.ndarray) else "int64"
    patches = node.call("take", images, as_expr(node, places, dtype), axis=1)
    tap = node.cast(node.call("argmax", patches, axis=(2,), keepdims=False), dtype)
    rows, starts = places_of(node, *shape.out), places_of(node, batch, channels)
    if order == 1:  # column-major indices: convert from row-major
        step, rest, given, places = size, 1, places, places * 0
        for extent in image:
            step //= extent
            places = places + given // step % extent * rest
            rest *= extent
    told = as_expr(node, places, dtype)
    chosen = node.call("add", tap, as_expr(node, rows * taps, dtype))
    place = node.call("take", node.reshape(told, (windows * taps,)), chosen, axis=0)
    start = as_expr(node, starts[:, None] * size, "int64")
    return node.reshape(node.call("add", node.cast(place, "int64"), start), (batch, channels, *shape.out))


def _require_elements(node: Node, inside: Any, shape: WindowAttributes) -> None:
    """Refuse windows that contain only padding; require this at run time for dynamic shapes."""
    if isinstance(inside, np.ndarray):
        if not inside.any(axis=1).all():
            node.unsupported("with Indices of windows without elements is not supported")
        return
    # dynamic padding comes from `auto_pad`, and is smaller than the kernel
    pads = zip(shape.begin, shape.end, shape.kernel, shape.dilations, strict=True)
    if all(gap == 1 and not (is_static(pad) and max(pad) >= taps) for *pad, taps, gap in pads):
        return
    flag = node.call("all", inside.any(axis=1).expr, axis=(0,), keepdims=False)
    node.require(flag, f"whether every window of '{node.name}' has an element")


@importer("MaxPool")
def _max_pool(node: Node) -> Expr | list[Expr]:
    shape = pool_window(node)
    largest = pooled(node, node.input(0), "max", shape)
    node.attribute("storage_order")
    return [largest, _places_of_maxima(node, shape)] if node.wants(1) else largest


@importer("MaxUnpool")
def _max_unpool(node: Node) -> Expr:
    """Scatter the elements to their indices; the last one of equal indices wins."""
    x, rank, shape = node.input(0), node.rank(0) - 2, node.shape(0)
    kernel = node.integers("kernel_shape")
    strides, pads = node.integers("strides", (1,) * rank), node.integers("pads", (0,) * 2 * rank)
    if rank < 1 or (len(kernel), len(strides), len(pads)) != (rank, rank, 2 * rank) or node.shape(1) != shape:
        node.wrong(f"a kernel {kernel} and indices of shape {node.shape(1)} do not fit a tensor of shape {shape}")
    sides = zip(shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True)
    inner = (*shape[:2], *((size - 1) * step - before - after + taps for size, step, before, after, taps in sides))
    wanted = node.sizes(2, "output_shape", node.declared_shape) if node.has(2) else inner
    short = len(wanted) != rank + 2 or any(outer < own for outer, own in zip(wanted, inner, strict=True))
    if min(inner) < 1 or short or max(wanted) >= _SIZE_LIMIT:
        node.wrong(f"a tensor of shape {shape} cannot become {tuple(wanted)}")
    flat = node.call("zeros", shape=(prod(inner),), dtype=dtype_of(x))
    places, elements = (node.reshape(node.input(index), (prod(shape),)) for index in (1, 0))
    result = node.reshape(node.call("scatter_elements", flat, places, elements, axis=0, reduction="update"), inner)
    if inner == tuple(wanted):
        return result
    widths = tuple((0, outer - own) for outer, own in zip(wanted, inner, strict=True))
    return node.call("nn.pad", result, 0, pad_width=widths, pad_mode="constant")


@importer("Col2Im")
def _col2im(node: Node) -> Expr:
    """Sum the elements of all columns that map to the same image element."""
    x, shape = node.input(0), node.shape(0)
    image, block = node.int_values(1, "image_shape"), node.int_values(2, "block_shape")
    if len(image) != len(block) or not image or min(image) < 1 or max(image) >= _SIZE_LIMIT:
        node.wrong(f"blocks of {block} do not fit an image of {image}")
    taps = window(node, image, block)
    blocks, count = prod(taps.kernel), prod(taps.out)
    if len(shape) != 3 or shape[1] % blocks or shape[2] != count or 0 in shape[1:]:
        node.wrong(f"a tensor of shape {shape} does not hold {count} columns of blocks of {block}")
    if not dtypes.is_float(dtype_of(x)) and not dtypes.is_integer(dtype_of(x)):
        node.unsupported(f"of {dtype_of(x)} is not supported")
    (table, inside), size = _positions(node, image, taps), prod(image)
    # elements outside the image are accumulated in an extra row, which is cut off
    places = node.constant(np.where(inside, table, size).T.reshape(1, -1), "int32")
    channels = shape[0] * shape[1] // blocks
    columns = node.transpose(node.reshape(x, (channels, blocks * count)), (1, 0))
    start = node.call("zeros", shape=(size + 1, channels), dtype=dtype_of(x))
    added = node.cut(node.call("scatter_nd", start, places, columns, mode="add"), 0, 0, size)
    return node.reshape(node.transpose(added, (1, 0)), (shape[0], shape[1] // blocks, *image))
