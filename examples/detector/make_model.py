"""Write `detector.onnx`: it finds red, green and blue squares in pictures and contains non-maximum suppression.

It is not trained: the weights of its convolution are set by hand. In windows of 12 x 12 pixels, every 2 pixels, the
convolution measures the amount of each color, the position of its center, and the amount that touches the window's
border. A square of side s has s^2 pixels, so its side is a square root. The rest is like any detector: boxes, scores,
suppression, and a gather of the remaining boxes, whose number depends on the picture.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, WINDOW, STRIDE, BORDER = 32, 12, 2, 1
CELLS = (SIDE - WINDOW) // STRIDE + 1
COLORS = 3
MOST_PER_COLOR = 4
IOU_THRESHOLD, SCORE_THRESHOLD = 0.3, 0.5


def windows() -> np.ndarray:
    """Return the weights of the convolution: amount inside and on the border per color, then size, y and x."""
    kernel = np.zeros((COLORS + 3, COLORS, WINDOW, WINDOW), np.float32)
    offsets = np.arange(WINDOW) - (WINDOW - 1) / 2
    for color in range(COLORS):
        kernel[color, color] = -1
        kernel[color, color, BORDER:-BORDER, BORDER:-BORDER] = 0.25
    kernel[COLORS] = 1
    kernel[COLORS + 1] = offsets[:, None]
    kernel[COLORS + 2] = offsets[None, :]
    return kernel


def centers() -> np.ndarray:
    """Return the centers (y, x) of all windows."""
    grid = np.mgrid[:CELLS, :CELLS].reshape(2, -1).T
    return (grid * STRIDE + WINDOW / 2).astype(np.float32)


def detector() -> onnx.ModelProto:
    """Return the model."""
    constants = {
        "windows": windows(),
        "centers": centers(),
        "flat": np.array([0, COLORS + 3, CELLS * CELLS], np.int64),
        "parts": np.array([COLORS, 1, 2], np.int64),
        "least_score": np.float32(2),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "most": np.int64(MOST_PER_COLOR),
        "iou": np.float32(IOU_THRESHOLD),
        "threshold": np.float32(SCORE_THRESHOLD),
        "picture_and_box": np.array([0, 2], np.int64),
        "second": np.int64(1),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "windows"], ["measured"], name="windows", strides=[STRIDE, STRIDE]),
        node("Reshape", ["measured", "flat"], ["per_window"], name="flat"),
        node("Split", ["per_window", "parts"], ["contrast", "mass", "moments"], name="split", axis=1),
        # scores (picture, color, window)
        node("Sub", ["contrast", "least_score"], ["logits"], name="logits"),
        node("Sigmoid", ["logits"], ["all_scores"], name="scores"),
        # boxes (picture, window, 4): y and x of two corners
        node("Max", ["mass", "one"], ["least_mass"], name="least_mass"),
        node("Div", ["moments", "least_mass"], ["offsets"], name="offsets"),
        node("Transpose", ["offsets"], ["offsets_last"], name="offsets_last", perm=[0, 2, 1]),
        node("Add", ["centers", "offsets_last"], ["box_centers"], name="box_centers"),
        node("Sqrt", ["least_mass"], ["sides"], name="sides"),
        node("Mul", ["sides", "half"], ["halves"], name="halves"),
        node("Transpose", ["halves"], ["halves_last"], name="halves_last", perm=[0, 2, 1]),
        node("Sub", ["box_centers", "halves_last"], ["low_corners"], name="low_corners"),
        node("Add", ["box_centers", "halves_last"], ["high_corners"], name="high_corners"),
        node("Concat", ["low_corners", "high_corners"], ["all_boxes"], name="boxes", axis=2),
        node(
            "NonMaxSuppression",
            ["all_boxes", "all_scores", "most", "iou", "threshold"],
            ["selected"],  # (n, 3): picture, color, window
            name="suppression",
        ),
        node("Gather", ["selected", "picture_and_box"], ["box_places"], name="box_places", axis=1),
        node("GatherND", ["all_boxes", "box_places"], ["boxes"], name="selected_boxes"),
        node("GatherND", ["all_scores", "selected"], ["scores"], name="selected_scores"),
        node("Gather", ["selected", "second"], ["colors"], name="selected_colors", axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", COLORS, SIDE, SIDE])
    outputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["found", 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["found"]),
        helper.make_tensor_value_info("colors", TensorProto.INT64, ["found"]),
    ]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "detector", [image], outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    onnx.save(detector(), sys.argv[1] if len(sys.argv) > 1 else "detector.onnx")
