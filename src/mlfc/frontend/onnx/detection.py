"""Boxes of images: NonMaxSuppression, RoiAlign."""

from __future__ import annotations

from math import prod

from mlfc.frontend.onnx.node import Node, dtype_of
from mlfc.frontend.onnx.positions import count_of
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr
from mlfc.support.dims import Extent, bounds, maximum, minimum


@importer("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Expr:
    """Select boxes; how many rows the result has is what the model states, else the most that there can be.

    Rows for which there is no box hold -1; boxes for which there is no row are left out.
    """
    boxes, scores = node.shape(0), node.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        node.wrong(f"boxes of shape {boxes} and scores of shape {scores} are no batches")
    if not node.has_shape(boxes, (scores[0], scores[2], 4)):
        node.wrong(f"boxes of shape {boxes} and scores of shape {scores} do not fit")
    declared = node.declared[0] if node.declared else None
    if declared is not None:
        if len(declared) != 2 or declared[1] != 3:
            node.wrong(f"the result is declared to be of shape {declared}, not rows of 3")
        rows = declared[0]
    elif node.has(2) and node.dynamic is not None:
        return _selected(node)
    elif node.has(2):
        (most,) = node.value(2, "max_output_boxes_per_class").reshape(-1).tolist()
        rows = prod(scores[:2]) * min(max(most, 0), scores[2])
    else:
        rows = 0
    return _select(node, rows)


def _select(node: Node, rows: Extent) -> Expr:
    limits = [
        node.input(2) if node.has(2) else node.constant(0, "int64"),
        node.input(3) if node.has(3) else node.constant(0.0, "float32"),
        node.input(4) if node.has(4) else node.constant(float("-inf"), "float32"),
    ]
    centred = bool(node.integer("center_point_box", 0))
    return node.call("vision.select_boxes", node.input(0), node.input(1), *limits, rows=rows, center_point_box=centred)


def _selected(node: Node) -> Expr:
    """Return as many rows as there are boxes: those of the most that there can be which do not hold -1."""
    scores, most = node.shape(1), node.optional(2)
    assert most is not None
    assert node.dynamic is not None
    if node.dynamic.known(most) is not None:
        limit = minimum(maximum(node.extent(2, "max_output_boxes_per_class"), 0), scores[2])
    else:
        asked = node.call("minimum", node.reshape(most, ()), node.constant(scores[2], "int64"))
        limit = node.runtime_size(node.call("maximum", asked, node.constant(0, "int64")), 0, scores[2])
    rows = prod(scores[:2]) * limit
    found = _select(node, rows)
    column = node.reshape(node.cut(found, 1, 0, 1), (rows,))
    is_box = node.call("greater_equal", column, node.constant(0, "int64"))
    count = node.runtime_size(count_of(node, is_box), 0, rows)
    return node.cut(found, 0, 0, count)


@importer("RoiAlign")
def _roi_align(node: Node) -> Expr:
    """Put the number of its image in front of each region, as Relay has it."""
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
