"""Boxes of images: NonMaxSuppression."""

from __future__ import annotations

from math import prod

from mlfc.frontend.onnx.node import Node
from mlfc.frontend.onnx.table import importer
from mlfc.relay.ir import Expr


@importer("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Expr:
    """Select boxes; how many rows the result has is what the model states, else the most that there can be.

    Rows for which there is no box hold -1; boxes for which there is no row are left out.
    """
    boxes, scores = node.shape(0), node.shape(1)
    if len(boxes) != 3 or len(scores) != 3:
        node.wrong(f"boxes of shape {boxes} and scores of shape {scores} are no batches")
    stated = node.stated[0] if node.stated else None
    if stated is not None:
        if len(stated) != 2 or stated[1] != 3:
            node.wrong(f"the result is stated to be of shape {stated}, not rows of 3")
        rows = stated[0]
    elif node.has(2):
        (most,) = node.value(2, "max_output_boxes_per_class").reshape(-1).tolist()
        rows = prod(scores[:2]) * min(max(most, 0), scores[2])
    else:
        rows = 0
    limits = [
        node.input(2) if node.has(2) else node.constant(0, "int64"),
        node.input(3) if node.has(3) else node.constant(0.0, "float32"),
        node.input(4) if node.has(4) else node.constant(float("-inf"), "float32"),
    ]
    centred = bool(node.integer("center_point_box", 0))
    return node.call("vision.select_boxes", node.input(0), node.input(1), *limits, rows=rows, center_point_box=centred)
