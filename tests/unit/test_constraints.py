"""Dimension sizes that an ONNX model requires to be equal, multiples or larger."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as oh

from mlfc.errors import ModelError
from mlfc.frontend.onnx import constraining, import_onnx, importer
from mlfc.ops.rules import UnequalDimsError
from mlfc.relay.ir import IRModule
from mlfc.relay.text import to_text
from tests.verify_relay import verify

KIND = TensorProto.FLOAT


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list[str | int]], constants: dict[str, list[int]]) -> bytes:
    given = [oh.make_tensor_value_info(name, KIND, shape) for name, shape in inputs.items()]
    weights = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    outputs = [oh.make_tensor_value_info("y", KIND, None)]
    graph = oh.make_graph(nodes, "g", given, outputs, weights)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)]).SerializeToString()


def imported_once(data: bytes) -> IRModule:
    """Import a model, and check that its nodes are not imported again."""
    with mock.patch.object(importer._Importer, "run", autospec=True, side_effect=importer._Importer.run) as run:
        module, _ = import_onnx(data, "m", dynamic=True)
    assert run.call_count == 1
    verify(module)
    return module


def test_equal_and_larger_sizes_are_substituted_in_what_is_imported() -> None:
    nodes = [
        oh.make_node("Relu", ["a"], ["r"]),
        oh.make_node("Shape", ["r"], ["size"]),
        oh.make_node("Add", ["r", "b"], ["s"]),  # requires equal shapes
        oh.make_node("Reshape", ["s", "pairs"], ["p"]),  # requires an even number of elements
        oh.make_node("AveragePool", ["p"], ["q"], kernel_shape=[3]),  # at least 2 columns; the result may be empty
        oh.make_node("Expand", ["q", "one"], ["e"]),
        oh.make_node("Cast", ["size"], ["c"], to=KIND),
        oh.make_node("ReduceSum", ["c"], ["total"], keepdims=0),
        oh.make_node("Mul", ["e", "total"], ["y"]),
    ]
    data = model(nodes, {"a": [1, 2, "n"], "b": [1, 2, "m"]}, {"pairs": [1, 4, -1], "one": [1, 1, 1]})
    module = imported_once(data)
    text = to_text(module)
    assert "%a: Tensor[(1, 2, 2 * m_by_2), float32], %b: Tensor[(1, 2, 2 * m_by_2), float32]" in text
    assert 'symbols="m_by_2=2..1073741823"' in text
    assert "extents(values=[1, 2, 2 * m_by_2]" in text
    assert str(module.main.body.type) == "Tensor[(1, 4, m_by_2 - 2), float32]"


def test_a_constraint_that_decides_an_earlier_check_removes_it() -> None:
    nodes = [
        oh.make_node("Split", ["x"], ["a", "b"], axis=1),  # requires equal parts, which is checked at run time
        oh.make_node("Mul", ["a", "b"], ["y"]),  # requires equal shapes
    ]
    module = imported_once(model(nodes, {"x": ["n", "m"]}, {}))
    assert "defines" not in to_text(module)
    assert str(module.main.body.type) == "Tensor[(n, m_by_2), float32]"


def test_a_size_that_no_bounds_allow_is_refused() -> None:
    nodes = [oh.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3])]
    data = model(nodes, {"x": [1, 2, "n"]}, {})
    shapes = {"x": (1, 2, ("n", 1, 2))}
    with pytest.raises(ModelError, match="does not fit into the input"):
        import_onnx(data, "m", shapes=shapes, dynamic=True)


def test_more_constraints_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [oh.make_node("Concat", ["a", "b"], ["c"], axis=0), oh.make_node("Concat", ["c", "d"], ["y"], axis=0)]
    data = model(nodes, {"a": ["i", "n"], "b": ["j", "m"], "d": ["k", "l"]}, {})
    module, _ = import_onnx(data, "m", dynamic=True)
    assert str(module.main.body.type) == "Tensor[(i + j + k, l), float32]"
    monkeypatch.setattr(constraining, "CONSTRAINT_LIMIT", 1)
    with pytest.raises(UnequalDimsError, match="must be equal"):
        import_onnx(data, "m", dynamic=True)
