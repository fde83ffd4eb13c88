"""Reductions and image operators, evaluated by their own loop-level rules, against numpy, ONNX Runtime and LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfc.errors import TypeCheckError
from mlfc.ops.evaluate import evaluate
from mlfc.ops.image import AxisResize, evaluated, nearest
from mlfc.relay import ir
from tests.image_cases import block_cases, resize_cases
from tests.operator_cases import Case
from tests.reduction_cases import reduce_cases


@pytest.mark.parametrize("case", [*reduce_cases(), *resize_cases(), *block_cases()], ids=str)
def test_against_reference(case: Case) -> None:
    call = ir.call(case.operator, [ir.const(arg) for arg in case.args], case.attrs)
    result = evaluate(call)
    assert result is not None
    assert ir.TensorType(result.shape, str(result.dtype)) == call.type
    case.check(result)


X = np.zeros((2, 6, 5, 4), np.float32)
BYTES = np.zeros((2, 6, 5, 4), np.int8)


@pytest.mark.parametrize(
    ("operator", "args", "attrs", "message"),
    [
        ("sum", [X], {"axis": 4}, "outside"),
        ("sum", [X > 0], {}, "does not take bool"),
        ("all", [X], {}, "does not take float32"),
        ("max", [X[:, :0]], {"axis": 1}, "undefined for an empty tensor"),
        ("argmax", [X[:0]], {"axis": 0}, "undefined for an empty tensor"),
        ("variance", [X, X], {"axis": 1}, "does not belong"),
        ("cumsum", [X], {"axis": -5}, "outside"),
        ("image.resize2d", [X], {}, "expected a size"),
        ("image.resize2d", [X], {"size": (0, 3)}, "cannot be resized"),
        ("image.resize2d", [X], {"size": (2**40, 3)}, "cannot be resized"),
        ("image.resize2d", [BYTES], {"size": (3, 3)}, "interpolates floats"),
        ("image.resize2d", [X[0]], {"size": (3, 3)}, "4 dimensions"),
        ("image.resize2d", [X], {"size": (3, 3), "layout": "NHCC"}, "layout"),
        ("image.resize2d", [X], {"size": (3, 3), "method": "lanczos"}, "method .*, got 'lanczos'"),
        ("image.resize2d", [X], {"size": (3, 3), "coordinate_transformation_mode": "x"}, "mode 'x'"),
        ("image.resize2d", [X], {"size": (3, 3), "method": "nearest_neighbor", "rounding_method": "x"}, "rounding"),
        ("nn.upsampling", [X], {"scale_h": float("inf"), "scale_w": 2}, "infinity"),
        ("nn.depth_to_space", [X], {"block_size": 4}, "do not fill"),
        ("nn.space_to_depth", [X], {"block_size": 2}, "does not divide"),
        ("nn.space_to_depth", [X], {"block_size": 0}, "block_size >= 1"),
    ],
)
def test_refuses(operator: str, args: Any, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeCheckError, match=message):
        ir.call(operator, [ir.const(arg) for arg in args], attrs)


def test_nearest_neighbour_without_a_rounding_is_what_litert_takes() -> None:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    from tests.tflite_builder import Op, T, build

    for extent, target in ((7, 21), (10, 30), (13, 5), (3, 100), (49, 7), (5, 1)):
        for mode in ("asymmetric", "half_pixel", "align_corners"):
            options = {"AlignCorners": mode == "align_corners", "HalfPixelCenters": mode == "half_pixel"}
            data = build(
                [T("x", (1, extent, 1, 1)), T("size", (2,), "int32", [target, 1]), T("y", (1, target, 1, 1))],
                [Op("RESIZE_NEAREST_NEIGHBOR", ["x", "size"], ["y"], "ResizeNearestNeighborOptions", options)],
                ["x"],
                ["y"],
            )
            runner = litert.Interpreter(
                model_content=data, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
            )
            runner.allocate_tensors()
            runner.set_tensor(
                runner.get_input_details()[0]["index"], np.arange(extent, dtype=np.float32).reshape(1, -1, 1, 1)
            )
            runner.invoke()
            expected = runner.get_tensor(runner.get_output_details()[0]["index"]).ravel()
            (places,), _, _ = evaluated(AxisResize(extent, target, mode), nearest(""))
            np.testing.assert_array_equal(places, expected, f"{extent} to {target} by {mode}")
