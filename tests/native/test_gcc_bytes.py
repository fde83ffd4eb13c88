"""Sums of bytes in generated C with the flags that ship; GCC 12 miscompiles simpler forms when it vectorizes them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import mlfc


def _inputs(**arrays: np.ndarray) -> list:
    return [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]


@pytest.mark.parametrize("target", ["c", "c -mcpu=cortex-m4"])
def test_wide_sums_and_products_of_bytes_are_exact(target: str) -> None:
    rng, nodes, fed, expected = np.random.default_rng(6), [], {}, {}
    for source, to in (("uint8", "int32"), ("int8", "int64"), ("int16", "int32")):
        name, info = f"{source}_{to}", np.iinfo(source)
        fed[name] = rng.integers(info.min, info.max, (3, 128), endpoint=True).astype(source)
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        nodes.append(helper.make_node("Cast", [name], [f"{name}/c"], to=dtype))
        nodes.append(helper.make_node("ReduceSum", [f"{name}/c", "axis"], [f"{name}/y"], keepdims=0))
        nodes.append(helper.make_node("ReduceProd", [f"{name}/c"], [f"{name}/p"], axes=[1], keepdims=0))
        with np.errstate(over="ignore"):
            fed[name] |= 1
            expected[f"{name}/y"] = fed[name].astype(to).sum(1)
            expected[f"{name}/p"] = fed[name].astype(to).prod(1, dtype=to)
    weights = rng.integers(-128, 128, (16, 16)).astype(np.int8)
    fed["x"] = rng.integers(0, 256, (5, 16)).astype(np.uint8)
    nodes.append(helper.make_node("MatMulInteger", ["x", "w", "z"], ["p"]))
    expected["p"] = (fed["x"].astype(np.int32) - 128) @ weights.astype(np.int32)
    constants = {"axis": np.array([1]), "w": weights, "z": np.array(128, np.uint8)}
    inits = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "bytes", _inputs(**fed), _inputs(**expected), inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = mlfc.compile(model, target).run(fed)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
