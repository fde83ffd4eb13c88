"""TFLite_Detection_PostProcess: decoding of boxes relative to anchors, and non-maximum suppression."""

from __future__ import annotations

import numpy as np

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node, converts, is_quantized, option, real
from mlfc.relay import ir
from mlfc.relay.ir import Expr, const
from mlfc.support import cost

_USUAL_PER_CLASS = 100


@converts("CUSTOM TFLite_Detection_PostProcess")
def _post_process(node: Node) -> list[Expr]:
    """Convert the operator; unused rows of the result are zeros."""
    most, labels = option(node, "max_detections", 1), option(node, "max_classes_per_detection", 1)
    classes = option(node, "num_classes", 1)
    cost.require("constants", 64 * most * labels, node.label)
    count, offset = _checked(node, classes)
    scores = _real(node, 1)
    if offset:
        scores = node.cut(scores, offset, offset + classes, 2)
    boxes = _decoded(node, count)
    by_class = bool(option(node, "use_regular_nms", default=0))
    labels_found = 1 if by_class else min(labels, classes)
    rows_of = _by_class if by_class else _by_box
    found, places, kinds, values = rows_of(node, boxes, scores, most, labels_found)
    corners = node.call("take", node.call("reshape", boxes, newshape=(count, 4)), places, axis=0)
    corners = node.call("broadcast_to", node.call("expand_dims", corners, axis=1), shape=(most, labels_found, 4))
    known = node.call("reshape", found, newshape=(most, 1))
    kept = [node.call("where", node.call("reshape", known, newshape=(most, 1, 1)), corners, const(0.0))]
    kept += [node.call("where", known, node.call("cast", x, dtype="float32"), const(0.0)) for x in (kinds, values)]
    # each box has room for max_classes_per_detection classes
    room = labels - labels_found
    if by_class:
        kept = [node.call("reshape", x, newshape=(1, most, *ir.tensor_type(x).shape[2:])) for x in kept]
        room *= most
    if room:
        around = ((0, 0), (0, room), (0, 0))
        kept = [node.call("nn.pad", x, const(0.0), pad_width=around[: len(ir.tensor_type(x).shape)]) for x in kept]
    rows = most * labels
    shapes = ((1, rows, 4), (1, rows), (1, rows))
    results = [node.call("reshape", x, newshape=shape) for x, shape in zip(kept, shapes, strict=True)]
    number = node.call("sum", node.call("cast", found, dtype="float32"), axis=(0,), keepdims=True)
    return [*results, number]


def _checked(node: Node, classes: int) -> tuple[int, int]:
    """Return the number of boxes, and the index of the first class: 1 after a background class, else 0."""
    boxes, scores, anchors = (node.shape(position) for position in range(3))
    fits = len(boxes) == len(scores) == 3 and boxes[0] == scores[0] == 1 and boxes[1] == scores[1]
    if not fits or boxes[2] < 4 or anchors != (boxes[1], 4) or scores[2] - classes not in (0, 1):
        raise ModelError(f"boxes {boxes}, scores {scores} and anchors {anchors} do not fit {classes} classes")
    return boxes[1], scores[2] - classes


def _real(node: Node, position: int) -> Expr:
    """Return an input as real numbers."""
    tensor = node.input(position)
    if tensor.dtype == "float32":
        return node.expr(position)
    if not is_quantized(tensor):
        node.refuse(f"{node.record.code} of {tensor.type_name} is not supported", "Give it float32, uint8 or int8")
    return node.call("qnn.dequantize", node.expr(position), *node.quantization(tensor), out_dtype="float32")


def _decoded(node: Node, count: int) -> Expr:
    """Return the corners of boxes given by centres and sizes relative to anchors."""
    given = node.cut(_real(node, 0), 0, 4, 2)
    anchors = node.call("reshape", _real(node, 2), newshape=(1, count, 4))
    scales = [real(node, f"{axis}_scale") for axis in "yxhw"]
    if not all(scales):
        raise ModelError(f"expected box scales other than 0, got {scales}")

    shares = node.call("divide", given, const(np.array(scales, np.float32)))
    sizes = node.cut(anchors, 2, 4, 2)
    middles = node.call("add", node.call("multiply", node.cut(shares, 0, 2, 2), sizes), node.cut(anchors, 0, 2, 2))
    reach = node.call("multiply", node.call("multiply", node.call("exp", node.cut(shares, 2, 4, 2)), const(0.5)), sizes)
    return node.joined((node.call("subtract", middles, reach), node.call("add", middles, reach)), 2)


def _selected(node: Node, boxes: Expr, scores: Expr, most: int, rows: int) -> tuple[Expr, Expr, Expr]:
    """Return the mask of valid rows, and the class and index of each box; `scores` are (1, classes, boxes)."""
    # the reference accepts scores >= the threshold, the operator scores > it
    threshold = np.nextafter(np.float32(real(node, "nms_score_threshold")), np.float32(-np.inf))
    limits = (const(most, "int64"), const(real(node, "nms_iou_threshold"), "float32"), const(threshold, "float32"))
    chosen = node.call("vision.select_boxes", boxes, scores, *limits, rows=rows)
    columns = (node.call("squeeze", node.cut(chosen, k, k + 1, 1), axis=(1,)) for k in (1, 2))
    label, place = (node.call("cast", column, dtype="int32") for column in columns)
    return node.call("greater_equal", place, const(0)), label, node.call("maximum", place, const(0))


def _by_box(node: Node, boxes: Expr, scores: Expr, most: int, labels: int) -> tuple[Expr, Expr, Expr, Expr]:
    """Return validity, indices, classes and scores of boxes, each box once with its best classes."""
    _, count, classes = ir.tensor_type(scores).shape
    flat = node.call("reshape", scores, newshape=(count, classes))
    kinds = node.call("topk", flat, k=labels, axis=1, ret_type="indices", is_ascend=False, dtype="int32")
    best = node.call("reshape", node.call("max", flat, axis=(1,), keepdims=False), newshape=(1, 1, count))
    found, _, places = _selected(node, boxes, best, most, most)
    kinds = node.call("take", kinds, places, axis=0)
    values = node.call("gather", node.call("take", flat, places, axis=0), kinds, axis=1)
    return found, places, kinds, values


def _by_class(node: Node, boxes: Expr, scores: Expr, most: int, labels: int) -> tuple[Expr, Expr, Expr, Expr]:
    """Return validity, indices, classes and scores: the best boxes of each class, and the best of all these."""
    _, count, classes = ir.tensor_type(scores).shape
    per_class = min(option(node, "detections_per_class", 1, default=_USUAL_PER_CLASS), most)
    rows = max(classes * min(per_class, count), most)
    cost.require("constants", 24 * rows, node.label)
    turned = node.call("transpose", scores, axes=(0, 2, 1))
    found, kinds, places = _selected(node, boxes, turned, per_class, rows)
    flat = node.call("reshape", turned, newshape=(classes * count,))
    at = node.call("add", node.call("multiply", node.call("maximum", kinds, const(0)), const(count)), places)
    lowest = const(np.finfo(np.float32).min, "float32")
    values = node.call("where", found, node.call("take", flat, at, axis=0), lowest)
    order = node.call("topk", values, k=most, axis=0, ret_type="indices", is_ascend=False, dtype="int32")
    found, places, kinds, values = (node.call("take", x, order, axis=0) for x in (found, places, kinds, values))
    kinds, values = (node.call("reshape", x, newshape=(most, labels)) for x in (kinds, values))
    return found, places, kinds, values
