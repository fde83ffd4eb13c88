"""Graphs with tensors on devices: copies at the edges, device tensors used in place, profiles by device clock."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as Type
from onnx import helper, numpy_helper

import mlfc
from mlfc.errors import InputError
from mlfc.factory import Factory
from mlfc.runtime import Device, FunctionInfo, GraphExecutor, Module, OpenClModule
from mlfc.runtime.tensor.c_abi import DLTensor
from mlfc.runtime.tensor.ndarray import array, empty
from tests.conftest import need_opencl

pytestmark = pytest.mark.usefixtures("quick_builds")

SHAPE = (1, 3, 8, 8)
# host -> device, a kernel there, device -> device, device -> host, an operator on the host
GRAPH = {
    "nodes": [
        {"op": "null", "name": "x", "inputs": []},
        *(
            {
                "op": "tvm_op",
                "name": f"node{number}",
                "attrs": {"func_name": name, "num_inputs": "1", "num_outputs": "1", "flatten_data": "0"},
                "inputs": [[number - 1, 0, 0]],
            }
            for number, name in enumerate(["__copy", "twice", "__nop", "__copy", "__copy", "plus_one"], 1)
        ),
    ],
    "arg_nodes": [0],
    "heads": [[6, 0, 0], [2, 0, 0]],
    "attrs": {
        "dltype": ["list_str", ["float32"] * 7],
        "device_index": ["list_int", [1, 4, 4, 4, 4, 1, 1]],
        "storage_id": ["list_int", [0, 1, 2, 2, 3, 4, 5]],
        "shape": ["list_shape", [[2, 3], [2, 3], [2, 3], [6], [6], [6], [6]]],
    },
    "node_row_ptr": list(range(8)),
}
TWICE = """// Function: twice
__kernel void twice(__global const float* x, __global float* out) {
  out[get_global_id(0)] = 2 * x[get_global_id(0)];
}
"""


SEVERAL = """
import sys
import numpy as np
import mlfc
from mlfc.runtime.tensor.ndarray import array

first, second = mlfc.opencl(0), mlfc.opencl(1)
assert first.name != second.name
assert not mlfc.opencl(2).exists
factory = mlfc.load_module(sys.argv[1])
image = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
results = []
for device, other in ((first, second), (second, first)):
    executor = factory["default"](device)
    executor.set_input("x", array(image, other))
    executor.run()
    results.append(executor.get_output(0, array(np.zeros((1, 4, 1, 1), np.float32), other)).numpy())
assert abs(results[0]).max() > 0
np.testing.assert_allclose(*results, rtol=1e-5)
print("equal")
"""


class Operators(Module):
    """The functions of `GRAPH`: one launches a kernel, one is written in Python."""

    def find_function(self, name: str) -> Any:
        if name == "plus_one":
            return lambda x, out: np.add(x, 1, out)
        return self if name == "twice" else None

    def prepare(self, tensors: list[DLTensor]) -> Any:
        kernel = OpenClModule("cl", {"twice": FunctionInfo("", ("handle",) * 2, ("threadIdx.x",))}, TWICE)["twice"]

        def call() -> int:
            assert [tensor.device.type for tensor in tensors] == [4, 4]
            kernel(*(tensor.data for tensor in tensors), 6)
            return 0

        return call


@pytest.fixture(scope="module")
def device() -> Device:
    return need_opencl()


@pytest.fixture(scope="module")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Factory:
    """Return a convolution and a pool, compiled for the device."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", Type.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", Type.FLOAT, (1, 4, 1, 1))],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    module, params = mlfc.import_model(path)
    return mlfc.build(module, target="opencl", params=params)


@pytest.fixture
def executor(device: Device, factory: Factory) -> GraphExecutor:
    made = factory["default"](device)
    assert isinstance(made, GraphExecutor)
    return made


def expected(factory: Factory, image: np.ndarray) -> np.ndarray:
    """Return the average of a convolution by its definition."""
    (weights,) = (value for value in factory.source_params.values())
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwrs,ocrs->no", windows, weights) / (SHAPE[2] * SHAPE[3])


def images(count: int) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.normal(size=SHAPE).astype(np.float32) for _ in range(count)]


def test_tensors_are_copied_where_the_graph_says_so(device: Device) -> None:
    executor = GraphExecutor(json.dumps(GRAPH), Operators(), [device, mlfc.cpu()])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for values in (x, x + 10):
        executor.run(x=values)
        assert executor.get_output(0).tolist() == (2 * values + 1).reshape(-1).tolist()
        assert executor.get_output(1).tolist() == (2 * values).tolist()
    again = executor.fork()
    again.run(x=-x)
    assert again.get_output(1).tolist() == (-2 * x).tolist()
    assert executor.get_output(1).tolist() == (2 * x + 20).tolist()


def test_arrays_of_this_process_come_and_go(executor: GraphExecutor, factory: Factory) -> None:
    for image in images(3):
        executor.set_input("x", image)
        executor.run()
        found = executor.get_output(0)
        np.testing.assert_allclose(found.reshape(1, 4), expected(factory, image), rtol=1e-4, atol=1e-5)
        assert executor.get_input("x").tolist() == image.tolist()


def test_tensors_of_the_device_are_used_in_place(executor: GraphExecutor, factory: Factory, device: Device) -> None:
    first, second = images(2)
    tensor, out = array(first, device), empty((1, 4, 1, 1), "float32", device)
    executor.set_input_zero_copy("x", tensor)
    for image in (first, second):
        tensor.copyfrom(image)  # without a call to the executor
        executor.run()
        assert executor.get_output(0, out) is out
        np.testing.assert_allclose(out.numpy().reshape(1, 4), expected(factory, image), rtol=1e-4, atol=1e-5)
    executor.set_input("x", array(first, device))  # copied; the executor uses its own memory again
    tensor.copyfrom(second)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0).reshape(1, 4), expected(factory, first), rtol=1e-4, atol=1e-5)


def test_tensors_that_do_not_fit_or_lie_elsewhere_are_refused(executor: GraphExecutor, device: Device) -> None:
    with pytest.raises(InputError, match=r"x: an array float32\[2\] does not fit float32\[1, 3, 8, 8\]"):
        executor.set_input("x", array(np.zeros(2, np.float32), device))
    with pytest.raises(InputError, match=r"x: operators on opencl\(0\) cannot read this machine's memory"):
        executor.set_input_zero_copy("x", images(1)[0])
    with pytest.raises(InputError, match=r"out: an array float32\[1\] does not fit"):
        executor.get_output(0, empty((1,), "float32", device))


def test_bound_buffers_are_read_at_each_call(device: Device, factory: Factory) -> None:
    image = images(1)[0].copy()
    call = factory.runtime.model.bind([image])
    for change in (0, 1, 2):
        image += change
        assert call() == 0
        (found,) = call.outputs.values()
        np.testing.assert_allclose(found.reshape(1, 4), expected(factory, image), rtol=1e-4, atol=1e-5)


def test_executors_run_at_the_same_time(device: Device, factory: Factory) -> None:
    first = factory["default"](device)

    def run(seed: int) -> bool:
        executor, generator = first.fork(), np.random.default_rng(seed)
        close = []
        for _ in range(10):
            image = generator.normal(size=SHAPE).astype(np.float32)
            executor.run(x=image)
            found = executor.get_output(0).reshape(1, 4)
            close.append(np.allclose(found, expected(factory, image), rtol=1e-4, atol=1e-5))
        return all(close)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def test_operators_are_timed_by_the_device(executor: GraphExecutor, device: Device) -> None:
    executor.set_input("x", images(1)[0])
    times = executor.timed_run()
    assert len(times) == len(list(executor.calls()))
    assert all(0 < time < 10**9 for time in times)


def test_memory_is_given_back(device: Device, factory: Factory) -> None:
    gc.collect()  # release executors of other tests
    before = len(device.api._sizes)
    made = factory["default"](device)
    assert len(device.api._sizes) > before
    del made
    gc.collect()
    assert len(device.api._sizes) == before


def test_a_machine_may_have_several_devices(device: Device, tmp_path: Path, factory: Factory) -> None:
    """Split the processor into two PoCL devices, and run the model on each with inputs from the other."""
    if "Portable Computing Language" not in device.api.driver:
        pytest.skip("only PoCL makes several devices of one; on Debian: apt-get install pocl-opencl-icd")
    mlfc.export_model_library_format(factory, tmp_path / "model.tar")
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, str(tmp_path / "model.tar")],
        capture_output=True, text=True, check=False, env={**os.environ, "POCL_DEVICES": "pthread basic"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal\n"
