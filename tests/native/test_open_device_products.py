"""Products with dynamic dimensions on devices: remainder tiles, results as with static shapes, and counted reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.codegen.device import device_kernels, device_source
from mlfc.factory import Factory
from mlfc.runtime import VirtualMachine
from mlfc.support.dims import Dim, substituted
from mlfc.tir import interpreter
from mlfc.tir.ir import Allocate, PrimFunc
from mlfc.tir.parameters import with_numbers
from mlfc.tir.visitor import walk
from tests.conftest import need_opencl
from tests.native.cuda_on_host import assert_nvrtc_takes
from tests.verify_tir import verify

pytestmark = pytest.mark.usefixtures("quick_builds")
Inputs = dict[str, np.ndarray]
FLOAT, BYTE = TensorProto.FLOAT, TensorProto.UINT8


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_of(nodes: list[Any], opened: dict[str, tuple[int, list[Any]]], held: Inputs) -> bytes:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in opened.items()]
    weights = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_empty_tensor_value_info("y")], weights)
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return data


def dense() -> tuple[bytes, list[Inputs]]:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Add", ["s", "b"], ["y"])]
    model = model_of(nodes, {"x": (FLOAT, ["b", "n", 40])}, {"w": floats(1, 40, 24), "b": floats(2, 24)})
    return model, [{"x": floats(count, *shape)} for count, shape in enumerate([(1, 1, 40), (2, 67, 40), (1, 128, 40)])]


def matrices() -> tuple[bytes, list[Inputs]]:
    nodes = [helper.make_node("MatMul", ["p", "q"], ["y"])]
    model = model_of(nodes, {"p": (FLOAT, ["b", "n", "k"]), "q": (FLOAT, ["b", "k", "m"])}, {})
    sizes = [(1, 1, 1, 1), (2, 33, 17, 40), (1, 64, 48, 64), (3, 5, 100, 2)]
    return model, [{"p": floats(n, b, n, k), "q": floats(m, b, k, m)} for b, n, k, m in sizes]


def turned() -> tuple[bytes, list[Inputs]]:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("MatMul", ["t", "x"], ["u"]),
        helper.make_node("ReduceSum", ["u"], ["r"], keepdims=1),
        helper.make_node("Add", ["s", "r"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["b", "n", 8])}, {})
    return model, [{"x": 0.1 * floats(n, b, n, 8)} for b, n in ((1, 1), (2, 45))]


def windows() -> tuple[bytes, list[Inputs]]:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 1], pads=[1, 1, 0, 1], dilations=[1, 2], group=2),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["b", 8, "h", "w"])}, {"w": floats(3, 12, 4, 3, 3)})
    return model, [{"x": floats(h, b, 8, h, w)} for b, h, w in ((1, 5, 6), (2, 13, 9), (1, 24, 31))]


def bytes_() -> tuple[bytes, list[Inputs]]:
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])]
    rng = np.random.default_rng(4)
    held = {"w": rng.integers(-128, 128, (32, 20)).astype(np.int8), "z": np.uint8(7).reshape(())}
    model = model_of(nodes, {"x": (BYTE, ["n", 32])}, held)
    return model, [{"x": rng.integers(0, 256, (count, 32)).astype(np.uint8)} for count in (1, 5, 130)]


CASES = (dense, matrices, turned, windows, bytes_)


def built(model: bytes, target: str) -> Factory:
    module, params = mlfc.import_model(model, dynamic=True)
    return mlfc.build(module, target, params, module_name="net")


def products(factory: Factory) -> list[PrimFunc]:
    return [kernel for kernel in factory.program.kernels if kernel.device and kernel.macs != 0 and kernel.symbols]


def assert_like_onnxruntime(machine: VirtualMachine, model: bytes, data: list[Inputs]) -> None:
    """Fail unless a model on a device computes the same as ONNX Runtime; integers must be equal."""
    session = onnxruntime.InferenceSession(model)
    for inputs in data:
        (expected,) = session.run(None, inputs)
        result = machine.invoke("main", *inputs.values())
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        largest = np.abs(expected).max()
        np.testing.assert_allclose(result, expected, rtol=0, atol=0 if expected.dtype.kind == "i" else 1e-5 * largest)


@pytest.mark.parametrize("make", CASES)
def test_tiles_of_open_extents_compute_what_onnxruntime_does(make: Callable[[], tuple[bytes, list[Inputs]]]) -> None:
    device = need_opencl()
    model, data = make()
    factory = built(model, "opencl")
    found = products(factory)
    assert found
    for kernel in found:
        shared = [stmt for stmt in walk(kernel.body) if isinstance(stmt, Allocate) and stmt.buffer.scope == "shared"]
        assert shared, f"{kernel.name} is not tiled"
    assert_like_onnxruntime(VirtualMachine(factory.runtime, device), model, data)


def test_cuda_takes_them() -> None:
    kernels = [
        item
        for make in CASES
        for prim in products(built(make()[0], "cuda"))
        for item in device_kernels(prim, f"{make.__name__}_{prim.name}")
    ]
    assert_nvrtc_takes(device_source(kernels, "cuda"))


@pytest.mark.parametrize(
    ("make", "number", "macs"),
    [(dense, 2, 128 * 40 * 24), (matrices, 2, 64 * 48 * 64), (windows, 2, 12 * 31 * 12 * 36)],
)
def test_each_element_is_read_for_a_whole_tile(
    make: Callable[[], tuple[bytes, list[Inputs]]], number: int, macs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count reads: work-items that do not share tiles would read two elements per product."""
    model, data = make()
    factory = built(model, "opencl")
    (kernel,) = products(factory)
    call = next(call for call in factory.program.calls if call.kernel is kernel)
    sizes = {
        extent.symbol: size
        for value in factory.program.inputs
        for extent, size in zip(value.shape, data[number][value.name].shape, strict=True)
        if isinstance(extent, Dim)
    }
    numbers = [int(substituted(extent, sizes)) for extent in call.numbers]
    fixed = with_numbers(kernel, numbers)
    verify(fixed)
    reads = 0

    def counted(memory: Any, buffer: Any, *rest: Any) -> Any:
        nonlocal reads
        value = plain(memory, buffer, *rest)
        reads += value.size if buffer in (*fixed.inputs, *fixed.constants) else 0
        return value

    plain = interpreter.read_elements
    monkeypatch.setattr(interpreter, "read_elements", counted)
    given = [floats(place, *map(int, buffer.shape)) for place, buffer in enumerate(fixed.inputs)]
    result = interpreter.run(fixed, given, [value.array for value in call.constants])
    assert np.isfinite(result).all()
    assert macs // 64 < reads < 2 * macs // 5
