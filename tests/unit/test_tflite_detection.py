"""TFLite_Detection_PostProcess against LiteRT: equal boxes, except for the rounding of their corners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import MlfcError
from mlfc.verify.litert import LiteRtReference
from tests.tflite_builder import Op, T, build

OUTPUTS = ("boxes", "classes", "scores", "number")
COUNT, CLASSES = 40, 3


def model(*, dtype: str = "float32", background: int = 1, is_shaped: bool = True, **changes: Any) -> bytes:
    """Return a model that contains only the operator."""
    options = {
        "max_detections": 9, "max_classes_per_detection": 2, "num_classes": CLASSES, "nms_score_threshold": 0.25,
        "nms_iou_threshold": 0.4, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
        "use_regular_nms": False, **changes,
    }  # fmt: skip
    rows = options["max_detections"] * options["max_classes_per_detection"]
    middles = np.random.default_rng(2).uniform(0.2, 0.8, (COUNT, 2))
    anchors = np.concatenate([middles, np.full((COUNT, 2), 0.3)], 1).astype(np.float32)
    shapes = (("given", (1, COUNT, 4), 0.2, 128), ("chances", (1, COUNT, CLASSES + background), 1 / 256, 0))
    scaled = dtype == "uint8"
    codes = [T(name, shape, dtype, None, scale if scaled else None, zero) for name, shape, scale, zero in shapes]
    if scaled:
        codes.append(T("anchors", anchors.shape, dtype, np.rint(anchors * 250).astype(np.uint8), 1 / 250, 0))
    else:
        codes.append(T("anchors", anchors.shape, dtype, anchors))
    results = [T("boxes", (1, rows, 4)), T("classes", (1, rows)), T("scores", (1, rows)), T("number", (1,))]
    results = [replace(result, shape=result.shape if is_shaped else ()) for result in results]
    op = Op("CUSTOM TFLite_Detection_PostProcess", ["given", "chances", "anchors"], OUTPUTS, custom=options)
    return build([*codes, *results], [op], ["given", "chances"], OUTPUTS)


@pytest.mark.parametrize(
    "changes",
    [{}, {"is_shaped": False}, {"max_classes_per_detection": 1, "background": 0}, {"dtype": "uint8"},
     {"max_classes_per_detection": 5},
     {"use_regular_nms": True, "max_classes_per_detection": 1, "detections_per_class": 4},
     {"use_regular_nms": True, "max_classes_per_detection": 1, "max_detections": 60, "nms_score_threshold": 0.8}],
)  # fmt: skip
def test_the_boxes_are_those_of_litert(changes: dict[str, Any]) -> None:
    data, rng = model(**changes), np.random.default_rng(4)
    classes = CLASSES + changes.get("background", 1)
    if changes.get("dtype") == "uint8":
        given, chances = rng.integers(60, 200, (1, COUNT, 4)), rng.integers(0, 256, (1, COUNT, classes))
        fed = {"given": given.astype(np.uint8), "chances": chances.astype(np.uint8)}
    else:
        given, chances = rng.normal(size=(1, COUNT, 4)), rng.uniform(size=(1, COUNT, classes))
        fed = {"given": given.astype(np.float32), "chances": chances.astype(np.float32)}
    ours, theirs = mlfc.compile(data, target="llvm").run(fed), LiteRtReference(data).run(fed)
    number = int(theirs["number"][0])
    assert 2 < number == int(ours["number"][0])
    each = 1 if changes.get("use_regular_nms") else changes.get("max_classes_per_detection", 2)
    # LiteRT does not initialize results after the last box, and after the last class of a box
    held = np.arange(number * each)
    held = held[held % each < CLASSES]
    np.testing.assert_array_equal(ours["classes"][0, held], theirs["classes"][0, held])
    for name in ("boxes", "scores"):
        np.testing.assert_allclose(ours[name][0, held], theirs[name][0, held], rtol=1e-5, atol=1e-6)
        assert not ours[name][0, number * each :].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 7}, "do not fit 7 classes"),
        ({"y_scale": 0.0}, "expected box scales"),
        ({"max_detections": 0}, "'max_detections' between 1"),
        ({"nms_iou_threshold": float("nan")}, "'nms_iou_threshold' is nan"),
        ({"dtype": "int32"}, "of INT32 is not supported"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model(**changes))
