"""Selected boxes and determinants, against ONNX's own evaluator; invalid rows and scores."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.archive import inspect
from mlfc.errors import MlfcError
from tests.relay_run import run_main

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)


def model(inputs: dict[str, Array], fixed: dict[str, Any], shape: Any = None, **attrs: Any) -> ModelProto:
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    node = helper.make_node("NonMaxSuppression", [*inputs, *fixed], ["y"], name="the_node", **attrs)
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in fixed.items()]
    out = helper.make_tensor_value_info("y", TensorProto.INT64, shape)
    graph = helper.make_graph([node], "g", given, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def run(source: ModelProto, inputs: dict[str, Array]) -> Array:
    module, params = mlfc.import_model(source.SerializeToString())
    (found,) = run_main(module, {**inputs, **params})
    return found


def boxes(batches: int = 2, classes: int = 2, count: int = 9) -> dict[str, Array]:
    corners = RNG.uniform(0, 4, (batches, count, 2, 2)).cumsum(axis=2).reshape(batches, count, 4)
    scores = RNG.integers(0, 5, (batches, classes, count)) / 4
    return {"boxes": corners.astype(np.float32), "scores": scores.astype(np.float32)}


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("most", [0, 2, 20])
def test_the_best_boxes_that_do_not_overlap_come_first_and_rows_without_one_hold_minus_one(
    centred: int, most: int
) -> None:
    inputs = boxes()
    fixed = {"most": np.array([most]), "overlap": np.array([0.2], np.float32), "lowest": np.array([0.1], np.float32)}
    source = model(inputs, fixed, center_point_box=centred)
    (expected,) = ReferenceEvaluator(source).run(None, inputs)
    found = run(source, inputs)
    assert found.shape == (2 * 2 * min(most, 9), 3)
    np.testing.assert_array_equal(found[: len(expected)], expected.reshape(-1, 3))
    assert (found[len(expected) :] == -1).all()


def test_boxes_beyond_the_stated_rows_are_left_out() -> None:
    inputs = boxes()
    late = {**inputs, "most": np.array([9]), "overlap": np.array([0.9], np.float32)}
    source = model(late, {}, (5, 3))
    (expected,) = ReferenceEvaluator(source).run(None, late)
    np.testing.assert_array_equal(run(source, late), expected[:5])
    assert (run(source, {**late, "most": np.array([-(1 << 62)])}) == -1).all()


def test_a_score_that_is_no_number_selects_nothing() -> None:
    inputs = boxes(1, 1, 3)
    inputs["scores"][...] = [np.nan, -np.inf, np.nan]
    assert run(model(inputs, {"most": np.array([3])}), inputs).tolist() == [[0, 0, 1], [-1] * 3, [-1] * 3]


def test_what_has_no_bound_is_refused() -> None:
    inputs = boxes()
    with pytest.raises(MlfcError, match="'max_output_boxes_per_class' that is not constant"):
        mlfc.import_model(model({**inputs, "most": np.array([9])}, {}).SerializeToString())
    with pytest.raises(MlfcError, match="not rows of 3"):
        mlfc.import_model(model(inputs, {"most": np.array([9])}, (3,)).SerializeToString())
    inputs["scores"] = inputs["scores"][:1]
    with pytest.raises(MlfcError, match=r"boxes .* and scores .* do not fit"):
        mlfc.import_model(model(inputs, {"most": np.array([9])}).SerializeToString())


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_determinants_of_batches(size: int) -> None:
    x = RNG.standard_normal((2, 3, size, size))
    if size:
        x[0, 0] = 0
        x[0, 1, 0, 0] = 0
    info = helper.make_tensor_value_info("x", TensorProto.DOUBLE, x.shape)
    out = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([helper.make_node("Det", ["x"], ["y"])], "g", [info], [out])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    np.testing.assert_allclose(run(source, {"x": x}), np.linalg.det(x), rtol=1e-10, atol=1e-12)


def test_the_header_states_that_rows_without_a_box_are_padding(tmp_path: Path) -> None:
    boxes, scores = np.zeros((1, 6, 4), np.float32), np.zeros((1, 1, 6), np.float32)
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["kept"])
    given = [helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("boxes", boxes), ("scores", scores))]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("kept", 7, (5, 3))])
    compiled = mlfc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), "c")
    compiled.export(tmp_path / "boxes.tar")
    with tarfile.open(tmp_path / "boxes.tar") as archive:
        (header,) = (item for item in archive.getmembers() if item.name.endswith(".h") and "/tvmgen_" in item.name)
        file = archive.extractfile(header)
        assert file is not None
        assert "kept: 5 x 3 int64; rows without a box are -1" in file.read().decode()
    (module,) = inspect(tmp_path / "boxes.tar")["modules"].values()
    assert "rows without a box are -1" in module["facts"]["outputs"]
