"""Images sampled at places that a tensor gives: GridSample, AffineGrid, DeformConv."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mlfc.frontend.onnx.conv import WindowAttributes, conv_attributes, conv_window
from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.run_tables import Numbers, allow, as_expr, counted, real
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Extent, bounds, is_static, maximum

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}
_LAYOUTS = {3: "NCW", 4: "NCHW", 5: "NCDHW"}


@importer("GridSample")
def _grid_sample(node: Node) -> Expr:
    rank, mode = node.rank(0), node.string("mode", "linear")
    if rank not in _LAYOUTS:
        node.unsupported(f"of a tensor of {rank} dimensions is not supported")
    if node.rank(1) != rank:
        node.wrong(f"a grid of shape {node.shape(1)} does not fit a tensor of shape {node.shape(0)}")
    grid = node.transpose(node.input(1), (0, rank - 1, *range(1, rank - 1)))
    return node.call(
        "image.grid_sample", node.input(0), grid, method=_METHODS.get(mode, mode), layout=_LAYOUTS[rank],
        padding_mode=node.string("padding_mode", "zeros"), align_corners=bool(node.integer("align_corners", 0)),
    )  # fmt: skip


@importer("AffineGrid")
def _affine_grid(node: Node) -> Expr:
    """Multiply the coordinates of all places, which follow from extents, by the matrices."""
    theta, declared = node.shape(0), node.declared_shape
    # the number of channels changes nothing in the grid
    wanted = None if declared is None or len(declared) < 4 else [declared[0], None, *declared[1:-1]]
    size = node.sizes(1, "size", wanted)
    is_size = len(size) in (4, 5) and all(bounds(extent)[1] >= 1 for extent in size)
    if not is_size or len(theta) != 3 or not node.has_shape(theta[1:], (len(size) - 2, len(size) - 1)):
        node.wrong(f"matrices of shape {theta} do not fit the size {size}")
    if is_static((theta[0], size[0])) and theta[0] != size[0]:
        node.wrong(f"matrices of shape {theta} do not fit the size {size}")
    if theta[0] != size[0]:
        batches = [node.constant(extent, "int64") for extent in (theta[0], size[0])]
        node.require(node.call("equal", *batches), f"whether the size of '{node.name}' is that of its matrices")
    places, dtype = size[2:], node.dtype(0)
    allow(node, *places, each=8 * (len(places) + 1))
    steps = counted(node, *places)
    corners = bool(node.integer("align_corners", 0))
    grid = [_coordinates(node, *pair, corners=corners) for pair in zip(steps, places, strict=True)]
    spread = [
        np.broadcast_to(part[tuple(slice(None) if at == axis else None for at in range(len(places)))], places)
        for axis, part in enumerate(grid)
    ]
    ones = np.broadcast_to((grid[0] * 0.0 + 1.0).reshape(*(places[0], *[1] * (len(places) - 1))), places)
    # the first coordinate counts along the last axis
    columns = np.stack([*reversed(spread), ones], 0).reshape(len(places) + 1, prod(places))
    wide = dtype if dtype == "float64" else "float32"
    moved = matmul(node, node.cast(node.input(0), wide), as_expr(node, columns, wide))
    turned = node.transpose(moved, (0, 2, 1))
    return node.cast(node.reshape(turned, (theta[0], *places, shape_of(turned)[-1])), dtype)


def _coordinates(node: Node, steps: Numbers, extent: Extent, *, corners: bool) -> Any:
    """Return where the elements of an axis lie from -1 to 1: their middles, or the first and the last at the ends."""
    last = maximum(extent - 1, 1) if corners else extent
    return (2 * steps + (1 - extent)).astype("float64") / real(node, last)


@importer("DeformConv")
def _deform_conv(node: Node) -> Expr:
    """Sample the image once for each tap of the kernel, then multiply as a convolution of one tap does."""
    x, weight = node.input(0), node.input(1)
    window = conv_window(node, weight, ranks=(2,))
    attributes = conv_attributes(node, weight, window)
    batch, channels, *extents = node.shape(0)
    taps, parts, out = prod(window.kernel), node.integer("offset_group", 1), window.out
    if parts < 1 or channels % parts or node.shape(2) != (batch, parts * taps * 2, *out):
        node.wrong(f"offsets of shape {node.shape(2)} do not fit {parts} groups of {channels} channels at {out}")
    if node.has(4) and node.shape(4) != (batch, parts * taps, *out):
        node.wrong(f"a mask of shape {node.shape(4)} does not fit {parts} groups of {taps} taps at {out}")
    moved = node.reshape(node.input(2), (batch * parts, taps, 2, *out))
    places = node.call("add", moved, _undeformed(node, window, dtype_of(x)))
    # image.grid_sample counts an axis from -1 to 1, the last axis first
    double = np.array([2.0 / extent for extent in extents]).reshape(2, 1, 1)
    first = np.array([1.0 / extent - 1.0 for extent in extents]).reshape(2, 1, 1)
    scaled = node.call("multiply", places, node.constant(double, dtype_of(x)))
    grid = node.transpose(node.call("add", scaled, node.constant(first, dtype_of(x))), (0, 2, 1, 3, 4))
    grid = node.call("take", grid, node.constant([1, 0], "int64"), axis=1, batch_dims=0, mode="clip")
    sampled = node.call(
        "image.grid_sample", node.reshape(x, (batch * parts, channels // parts, *extents)),
        node.reshape(grid, (batch * parts, 2, taps * out[0], out[1])), method="bilinear", layout="NCHW",
        padding_mode="zeros", align_corners=False,
    )  # fmt: skip
    if node.has(4):
        sampled = node.call("multiply", sampled, node.reshape(node.input(4), (batch * parts, 1, taps * out[0], out[1])))
    filters, depth = shape_of(weight)[:2]
    attributes |= {"kernel_size": (1, 1), "strides": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0)}
    result = node.call(
        "nn.conv2d", node.reshape(sampled, (batch, channels * taps, *out)),
        node.reshape(weight, (filters, depth * taps, 1, 1)), **attributes,
    )  # fmt: skip
    return node.call("nn.bias_add", result, node.input(3), axis=1) if node.has(3) else result


def _undeformed(node: Node, window: WindowAttributes, dtype: str) -> Expr:
    """Return where the taps of a convolution lie, of the shape (taps, 2, *out): the row, then the column."""
    cost.require("constants", 16 * prod(window.kernel) * prod(window.out), node.name)
    axes = [
        (np.arange(count) * dilation)[:, None] + np.arange(extent) * stride - before
        for count, dilation, extent, stride, before in zip(
            window.kernel, window.dilations, window.out, window.strides, window.begin, strict=True
        )
    ]
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    both = np.stack(np.broadcast_arrays(rows, columns), 2)
    return node.constant(both.reshape(-1, 2, *window.out), dtype)
