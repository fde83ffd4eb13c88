"""Image sampling at given coordinates and in regions, and selection of regions."""

from __future__ import annotations

from math import prod

import numpy as np

from mlfc.frontend.onnx.conv import WindowAttributes, conv_attributes, conv_window
from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, int64, shape_of
from mlfc.frontend.onnx.run_tables import allow, as_expr, count_of, counted, real
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Extent, bounds, is_static, maximum, minimum

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
    """Multiply the normalized coordinates of all positions, which depend on dimension sizes only, by the matrices."""
    theta, declared = node.shape(0), node.declared_shape
    # the grid does not depend on the number of channels
    wanted = None if declared is None or len(declared) < 4 else [declared[0], None, *declared[1:-1]]
    size = node.sizes(1, "size", wanted)
    is_size = len(size) in (4, 5) and all(bounds(extent)[1] >= 1 for extent in size)
    fits = is_size and len(theta) == 3 and node.has_shape(theta[1:], (len(size) - 2, len(size) - 1))
    if not fits or (is_static((theta[0], size[0])) and theta[0] != size[0]):
        node.wrong(f"matrices of shape {theta} do not fit the size {size}")
    if theta[0] != size[0]:
        is_equal = node.call("equal", int64(node, theta[0]), size[0])
        node.require(is_equal, f"whether the size of '{node.name}' is that of its matrices")
    places, dtype = size[2:], node.dtype(0)
    allow(node, *places, each=8 * (len(places) + 1))
    # normalized coordinates from -1 to 1: of pixel centres, or of the corner pixels with align_corners
    corners, grid = bool(node.integer("align_corners", 0)), []
    for steps, extent in zip(counted(node, *places), places, strict=True):
        last = real(node, maximum(extent - 1, 1) if corners else extent)
        grid.append((2 * steps + (1 - extent)).astype("float64") / last)
    spread = [
        np.broadcast_to(part[tuple(slice(None) if at == axis else None for at in range(len(places)))], places)
        for axis, part in enumerate(grid)
    ]
    ones = np.broadcast_to((grid[0] * 0.0 + 1.0).reshape(*(places[0], *[1] * (len(places) - 1))), places)
    # the first coordinate is that of the last axis
    columns = np.stack([*reversed(spread), ones], 0).reshape(len(places) + 1, prod(places))
    wide = dtype if dtype == "float64" else "float32"
    moved = matmul(node, node.cast(node.input(0), wide), as_expr(node, columns, wide))
    turned = node.transpose(moved, (0, 2, 1))
    return node.cast(node.reshape(turned, (theta[0], *places, shape_of(turned)[-1])), dtype)


@importer("DeformConv")
def _deform_conv(node: Node) -> Expr:
    """Sample the image once for each kernel tap, then apply a 1x1 convolution."""
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
    # image.grid_sample has coordinates from -1 to 1, the last axis first
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
    """Return the input coordinates of the taps without offsets, of shape (taps, 2, *out): row, then column."""
    cost.require("constants", 16 * prod(window.kernel) * prod(window.out), node.name)
    sides = zip(window.kernel, window.dilations, window.out, window.strides, window.begin, strict=True)
    rows, columns = (
        (np.arange(count) * dilation)[:, None] + np.arange(extent) * stride - before
        for count, dilation, extent, stride, before in sides
    )
    both = np.stack(np.broadcast_arrays(rows[:, None, :, None], columns[None, :, None, :]), 2)
    return node.constant(both.reshape(-1, 2, *window.out), dtype)


@importer("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Expr:
    """Select boxes. The number of result rows is the declared one, else the maximum possible.

    Unused rows are filled with -1; boxes beyond the last row are dropped.
    """
    boxes, scores = node.shape(0), node.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        node.wrong(f"expected batches, got boxes of shape {boxes} and scores of shape {scores}")
    if not node.has_shape(boxes, (scores[0], scores[2], 4)):
        node.wrong(f"boxes of shape {boxes} and scores of shape {scores} do not fit")
    declared = node.declared[0] if node.declared else None
    if declared is not None:
        if len(declared) != 2 or declared[1] != 3:
            node.wrong(f"the result is declared to be of shape {declared}, not rows of 3")
        rows = declared[0]
    elif node.has(2) and node.dynamic is not None:  # of the maximum number of rows, keep those that were selected
        if node.dynamic.known(node.input(2)) is not None:
            limit = minimum(maximum(node.extent(2, "max_output_boxes_per_class"), 0), scores[2])
        else:
            asked = node.call("minimum", node.reshape(node.input(2), ()), scores[2])
            limit = node.runtime_size(node.call("maximum", asked, 0), 0, scores[2])
        rows = prod(scores[:2]) * limit
        found = _select(node, rows)
        column = node.reshape(node.cut(found, 1, 0, 1), (rows,))
        return node.cut(found, 0, 0, node.runtime_size(count_of(node, node.call("greater_equal", column, 0)), 0, rows))
    elif node.has(2):
        (most,) = node.value(2, "max_output_boxes_per_class").reshape(-1).tolist()
        rows = prod(scores[:2]) * min(max(most, 0), scores[2])
    else:
        rows = 0
    return _select(node, rows)


def _select(node: Node, rows: Extent) -> Expr:
    defaults = ((2, 0, "int64"), (3, 0.0, "float32"), (4, float("-inf"), "float32"))
    limits = [node.optional(index) or node.constant(value, dtype) for index, value, dtype in defaults]
    centred = bool(node.integer("center_point_box", 0))
    return node.call("vision.select_boxes", node.input(0), node.input(1), *limits, rows=rows, center_point_box=centred)


@importer("RoiAlign")
def _roi_align(node: Node) -> Expr:
    """Prepend the image index to each region, as Relay's operator expects."""
    data, rois, images = node.shape(0), node.shape(1), node.shape(2)
    if len(data) != 4 or len(rois) != 2 or not node.has_shape((*rois, *images), (rois[0], 4, rois[0])):
        node.wrong(f"data of shape {data}, regions of {rois} and numbers of images of {images} do not fit")
    if bounds(data[0])[0] > 1 << 24:
        node.unsupported(f"of {data[0]} images is not supported: float32 does not count further")
    mode = node.string("coordinate_transformation_mode", "half_pixel") if node.opset >= 16 else "output_half_pixel"
    if mode not in ("half_pixel", "output_half_pixel"):
        node.wrong(f"expected coordinate_transformation_mode half_pixel or output_half_pixel, got '{mode}'")
    pooled = node.integer("output_height", 1), node.integer("output_width", 1)
    if min(pooled) < 1:
        node.wrong(f"a region cannot be pooled to {pooled}")
    edges = node.input(1) if node.dtype(1) == "float64" else node.cast(node.input(1), "float32")
    numbers = node.cast(node.reshape(node.input(2), (rois[0], 1)), dtype_of(edges))
    return node.call(
        "vision.roi_align", node.input(0), node.concatenate([numbers, edges], 1), pooled_size=pooled,
        spatial_scale=node.real("spatial_scale", 1.0), sample_ratio=node.integer("sampling_ratio", 0) or -1,
        layout="NCHW", mode=node.string("mode", "avg").lower(), aligned=mode == "half_pixel",
    )  # fmt: skip
