"""Operators that take images apart into patches, or put patches together, by tables of positions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.conv import WindowAttributes, pool_window, pooled, window
from mlfc.frontend.onnx.node import Node, dtype_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost, dtypes

Ints = npt.NDArray[np.int64]

_SIZE_LIMIT = 1 << 30


def _positions(node: Node, image: Sequence[int], shape: WindowAttributes) -> Ints:
    """Return the position in the image of every tap of every window, -1 outside: shape (windows, taps)."""
    cost.require("constants", 16 * prod(shape.out) * prod(shape.kernel), node.name)
    found: Any = np.zeros((1, 1), np.int64)
    inside: Any = np.ones((1, 1), bool)
    for axis, extent in enumerate(image):
        starts = np.arange(shape.out[axis]) * shape.strides[axis] - shape.begin[axis]
        at = starts[:, None] + np.arange(shape.kernel[axis]) * shape.dilations[axis]
        windows, taps = len(found) * at.shape[0], found.shape[1] * at.shape[1]
        found = (found[:, None, :, None] * extent + at[None, :, None, :]).reshape(windows, taps)
        lies = (at >= 0) & (at < extent)
        inside = (inside[:, None, :, None] & lies[None, :, None, :]).reshape(windows, taps)
    return np.where(inside, found, -1)


def _places_of_maxima(node: Node, shape: WindowAttributes) -> Expr:
    """Return where in the tensor the largest element of each window lies, the first of equals.

    With `storage_order`, the first axis of an image counts fastest; images follow each other as they do without.
    """
    order = node.integer("storage_order", 0)
    if order not in (0, 1):
        node.wrong(f"expected storage_order 0 or 1, got {order}")
    x, (batch, channels, *image) = node.input(0), node.shape(0)
    table = _positions(node, image, shape)
    if (table < 0).all(axis=1).any() or 0 in (batch, channels):
        node.unsupported("with Indices of windows without elements is not supported")
    images = node.reshape(x, (batch * channels, prod(image)))
    # what lies outside repeats the first element inside, which then wins
    first = table[np.arange(len(table)), (table >= 0).argmax(axis=1)]
    read = node.constant(np.where(table < 0, first[:, None], table), "int32")
    patches = node.call("take", images, read, axis=1)
    tap = node.call("argmax", patches, axis=(2,), keepdims=False)
    row = node.constant(np.arange(len(table)) * table.shape[1], "int32")
    told = read if order == 0 else node.constant(_column_major(read.data, image), "int32")
    place = node.call("take", node.reshape(told, (table.size,)), node.call("add", tap, row), axis=0)
    start = node.constant(np.arange(batch * channels)[:, None] * prod(image), "int64")
    return node.reshape(node.call("add", node.cast(place, "int64"), start), (batch, channels, *shape.out))


def _column_major(places: Ints, image: Sequence[int]) -> Ints:
    """Return positions in an image whose axes lie the other way round."""
    found, step = np.zeros_like(places), prod(image)
    rest = 1
    for extent in image:
        step //= extent
        found += places // step % extent * rest
        rest *= extent
    return found


@importer("MaxPool")
def _max_pool(node: Node) -> Expr | list[Expr]:
    shape = pool_window(node)
    largest = pooled(node, node.input(0), "max", shape)
    node.attribute("storage_order")
    return [largest, _places_of_maxima(node, shape)] if node.wants(1) else largest


@importer("MaxUnpool")
def _max_unpool(node: Node) -> Expr:
    """Put the elements at their places; of several at one place the last stays."""
    x, rank, shape = node.input(0), node.rank(0) - 2, node.shape(0)
    kernel = node.integers("kernel_shape")
    strides, pads = node.integers("strides", (1,) * rank), node.integers("pads", (0,) * 2 * rank)
    if rank < 1 or (len(kernel), len(strides), len(pads)) != (rank, rank, 2 * rank) or node.shape(1) != shape:
        node.wrong(f"a kernel {kernel} and indices of shape {node.shape(1)} do not fit a tensor of shape {shape}")
    spatial = [
        (shape[2 + axis] - 1) * strides[axis] - pads[axis] - pads[rank + axis] + kernel[axis] for axis in range(rank)
    ]
    inner = (*shape[:2], *spatial)
    wanted = node.int_values(2, "output_shape") if node.has(2) else inner
    short = len(wanted) != rank + 2 or any(outer < own for outer, own in zip(wanted, inner, strict=True))
    if min(inner) < 1 or short or max(wanted) >= _SIZE_LIMIT:
        node.wrong(f"a tensor of shape {shape} cannot become {tuple(wanted)}")
    flat = node.call("zeros", shape=(prod(inner),), dtype=dtype_of(x))
    places, elements = (node.reshape(node.input(index), (prod(shape),)) for index in (1, 0))
    result = node.reshape(node.call("scatter_elements", flat, places, elements, axis=0, reduction="update"), inner)
    if inner == tuple(wanted):
        return result
    widths = tuple((0, outer - own) for outer, own in zip(wanted, inner, strict=True))
    return node.call("nn.pad", result, node.like(0, x), pad_width=widths, pad_mode="constant")


@importer("Col2Im")
def _col2im(node: Node) -> Expr:
    """Add up the elements of all columns that belong to one element of the image."""
    x, shape = node.input(0), node.shape(0)
    image, block = node.int_values(1, "image_shape"), node.int_values(2, "block_shape")
    if len(image) != len(block) or not image or min(image) < 1 or max(image) >= _SIZE_LIMIT:
        node.wrong(f"blocks of {block} are no parts of an image of {image}")
    taps = window(node, image, block)
    blocks, count = prod(taps.kernel), prod(taps.out)
    if len(shape) != 3 or shape[1] % blocks or shape[2] != count or 0 in shape:
        node.wrong(f"a tensor of shape {shape} does not hold {count} columns of blocks of {block}")
    if not dtypes.is_float(dtype_of(x)) and not dtypes.is_integer(dtype_of(x)):
        node.unsupported(f"of {dtype_of(x)} is not supported")
    table, size = _positions(node, image, taps), prod(image)
    # what lies outside is added up behind the image, and cut off
    places = node.constant(np.where(table < 0, size, table).T.reshape(1, -1), "int32")
    channels = shape[0] * shape[1] // blocks
    columns = node.transpose(node.reshape(x, (channels, blocks * count)), (1, 0))
    start = node.call("zeros", shape=(size + 1, channels), dtype=dtype_of(x))
    added = node.cut(node.call("scatter_nd", start, places, columns, mode="add"), 0, 0, size)
    return node.reshape(node.transpose(added, (1, 0)), (shape[0], channels // shape[0], *image))
