"""ONNX models of classical machine learning, and ONNX Runtime's results for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

import mlfc
from tests.relay_run import run_main

Array = npt.NDArray[Any]


def ml_model(
    op: str, attrs: Mapping[str, Any], inputs: Mapping[str, Array], outputs: int = 1, version: int = 1
) -> onnx.ModelProto:
    """Return a model of one node of the domain ai.onnx.ml, named after its operator, for a version of the domain."""
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, list(inputs), names, domain="ai.onnx.ml", name=op.lower(), **attrs)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(data.dtype), data.shape)
        for name, data in inputs.items()
    ]
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compare(model: onnx.ModelProto, inputs: Mapping[str, Array], rtol: float = 1e-5) -> None:
    """Fail unless the results of mlfc's rules equal ONNX Runtime's; floats within `rtol` of the largest."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, dict(inputs))
    module, params = mlfc.import_model(model, shapes={name: data.shape for name, data in inputs.items()})
    for found, wanted in zip(run_main(module, {**inputs, **params}), expected, strict=True):
        wanted = np.asarray(wanted)  # noqa: PLW2901
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * max(1.0, np.abs(wanted).max()))
        else:
            np.testing.assert_array_equal(found, wanted)
