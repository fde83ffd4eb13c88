"""Kernels shared by layers with different zero points, in every executor and printer, against ONNX Runtime."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import mlfc

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

Array = npt.NDArray[Any]
ZEROS = (3, -7, 11, 5)  # zero points of the tensors between the layers
CHANNELS = 16


def chain() -> onnx.ModelProto:
    """Return quantized convolutions of equal shapes whose tensors differ in zero points and scales."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {}
    for layer, (before, after) in enumerate(pairwise(ZEROS)):
        constants |= {
            f"xs{layer}": np.float32(0.05), f"xz{layer}": np.int8(before),
            f"w{layer}": rng.integers(-127, 128, (CHANNELS, CHANNELS, 3, 3)).astype(np.int8),
            f"ws{layer}": rng.uniform(0.001, 0.002, CHANNELS).astype(np.float32), f"wz{layer}": np.int8(0),
            f"ys{layer}": np.float32(0.05), f"yz{layer}": np.int8(after),
            f"b{layer}": rng.integers(-500, 500, CHANNELS).astype(np.int32),
        }  # fmt: skip
        names = [f"{name}{layer}" for name in ("t", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b")]
        nodes.append(helper.make_node("QLinearConv", names, [f"t{layer + 1}"], f"layer{layer}", pads=[1, 1, 1, 1]))
    shape = [1, CHANNELS, 5, 7]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT8, shape) for name in ("t0", f"t{len(nodes)}")]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODEL = chain()
DATA = np.random.default_rng(1).integers(-128, 128, (1, CHANNELS, 5, 7)).astype(np.int8)


@pytest.fixture(scope="module")
def expected() -> Array:
    session = onnxruntime.InferenceSession(MODEL.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, {"t0": DATA})[0])
    assert np.unique(found).size > 40  # neither saturated nor constant
    return found


@pytest.mark.parametrize(
    ("target", "executor"), [("c", "aot"), ("c", "graph"), ("c", "vm"), ("c -mcpu=auto", "aot"), ("llvm", "aot")]
)
def test_shared_kernels_give_the_same_bits(target: str, executor: str, expected: Array) -> None:
    compiled = mlfc.compile(MODEL, target, executor=executor)
    layers = [call.kernel for call in compiled.factory.program.calls if call.kernel.macs]
    assert len(layers) == 3
    assert len(set(layers)) == 1
    (found,) = compiled.run({"t0": DATA}).values()
    np.testing.assert_array_equal(found, expected)


def test_a_comment_names_every_node_of_a_shared_kernel() -> None:
    module, params = mlfc.import_model(MODEL)
    factory = mlfc.build(module, "c -mcpu=cortex-m4", params, module_name="chain")
    text = bytes(factory.code.files["src/chain_lib1.c"]).decode()
    (comment,) = [part for part in text.split("/* ") if "multiply-accumulates" in part.split("*/")[0]]
    assert [f"layer{layer}" in comment for layer in range(3)] == [True] * 3
