"""Tests for any CUDA device, a GPU or the stand-in. `test_cuda_module.py` runs this file on those that it finds."""

from __future__ import annotations

import ctypes
import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.errors import DeviceError, InputError
from mlfc.factory import Factory
from mlfc.runtime import CudaModule, FunctionInfo, load_from_bytes
from mlfc.runtime.devices.cuda_compilers import CudaCode, compile_cuda
from mlfc.runtime.drivers import cuda as cuda_driver
from mlfc.runtime.drivers.cuda import CudaApi, CudaRecording
from mlfc.runtime.libraries import library_context
from mlfc.runtime.modules.module import find_global_func, register_global_func
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.c_abi import Described, to_capsule
from mlfc.runtime.tensor.ndarray import array
from tests.native.cuda_on_host import host_code

pytestmark = pytest.mark.usefixtures("quick_builds")

IS_STAND_IN = "MLFC_CUDA_STAND_IN" in os.environ

# sums of the rows of a matrix, each by one group in a tree
SUMS = """
extern "C" __global__ void sums(const float *__restrict__ rows, float *__restrict__ out, int columns) {
  __shared__ float parts[64];
  float part = 0.0f;
  for (int column = threadIdx.x; column < columns; column += 64) {
    part += rows[blockIdx.x * columns + column];
  }
  parts[threadIdx.x] = part;
  __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      parts[threadIdx.x] += parts[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = parts[0];
  }
}

extern "C" __global__ void twice(float *values) {
  int place = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x;
  values[place] *= 2.0f;
}
"""
SUMS_TABLE = {
    "sums": FunctionInfo("", ("handle", "handle", "int32"), ("blockIdx.x", "threadIdx.x")),
    "twice": FunctionInfo("", ("handle",), ("threadIdx.x", "threadIdx.y", "blockIdx.x", "blockIdx.y")),
}

X, WEIGHTS = (np.random.default_rng(2).normal(size=size).astype(np.float32) for size in ((3, 70), (70, 30)))
_POWERS = np.exp(X.astype(np.float64) @ WEIGHTS)
EXPECTED = _POWERS / _POWERS.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def api() -> CudaApi:
    found = mlfc.cuda(0).api
    assert isinstance(found, CudaApi)
    return found


def module_of(api: CudaApi, source: str, table: dict[str, FunctionInfo]) -> CudaModule:
    """Return a module of compiled machine code."""
    data = host_code(source) if IS_STAND_IN else compile_cuda(source, api.arch).data
    return CudaModule("cubin", table, data)


def to_device(api: CudaApi, array: np.ndarray) -> int:
    handle = api.allocate(array.nbytes)
    api.copy_in(handle, 0, array)
    return handle


def from_device(api: CudaApi, handle: int, like: np.ndarray) -> np.ndarray:
    out = np.zeros_like(like)
    api.copy_out(handle, 0, out)
    return out


def test_the_device_says_what_it_is(api: CudaApi) -> None:
    device = mlfc.cuda(0)
    assert device.exists
    assert device.name == api.name != ""
    assert api.memory_bytes > 1 << 30
    assert api.driver.startswith("CUDA 1")
    assert api.arch == "sm_{}{}".format(*api.capability)
    assert not mlfc.device("cuda", 99).exists


def test_kernels_run_in_order_and_as_stored(api: CudaApi) -> None:
    module = load_from_bytes("cuda", module_of(api, SUMS, SUMS_TABLE).save_to_bytes())
    rows = np.random.default_rng(0).integers(-9, 9, (5, 200)).astype(np.float32)
    values, out = to_device(api, rows), api.allocate(20)
    module["twice"](values, 10, 5, 4, 5)
    module["sums"](values, out, 200, 5, 64)
    module["twice"](out, 5, 1, 1, 1)
    found = np.zeros(5, np.float32)
    api.copy_out(out, 0, found)
    assert found.tolist() == (4 * rows.sum(axis=1)).tolist()
    assert from_device(api, values, rows).tolist() == (2 * rows).tolist()


def test_numbers_are_narrowed_as_c_does_it(api: CudaApi) -> None:
    source = """
extern "C" __global__ void numbers(double *out, signed char a, unsigned short b, int c, unsigned long long d, float e,
                                   double f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
}
"""
    types = ("handle", "int8", "uint16", "int32", "uint64", "float32", "float64")
    handle = api.allocate(48)
    module = module_of(api, source, {"numbers": FunctionInfo("", types, ())})
    module["numbers"](handle, 0x1FF, -1, 1 << 31, -1, 0.1, 0.1)
    assert from_device(api, handle, np.zeros(6)).tolist() == [
        -1, 65535, -(2.0**31), 2.0**64, float(np.float32(0.1)), 0.1,
    ]  # fmt: skip


@pytest.mark.parametrize("nbytes", [256, 100 << 10])
def test_shared_memory_of_a_launch(api: CudaApi, nbytes: int) -> None:
    """Set the launch attribute that more than 48 KiB of shared memory requires."""
    source = """
extern "C" __global__ void turn(int *data, int last) {
  extern __shared__ int kept[];
  kept[last - threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = kept[last + 1 - blockDim.x + threadIdx.x];
}
"""
    table = {"turn": FunctionInfo("", ("handle", "int32"), ("threadIdx.x", "tir.use_dyn_shared_memory"))}
    numbers = np.arange(64, dtype=np.int32)
    handle = to_device(api, numbers)
    module_of(api, source, table)["turn"](handle, nbytes // 4 - 1, 64, nbytes)
    assert from_device(api, handle, numbers).tolist() == numbers[::-1].tolist()


def test_memory_is_copied_at_offsets_and_within_the_device(api: CudaApi) -> None:
    numbers = np.arange(100, dtype=np.int16)
    first, second = to_device(api, numbers), api.allocate(200)
    api.copy_in(first, 20, np.full(10, -1, np.int16))
    api.copy(first, 20, second, 0, 40)
    out = np.zeros(20, np.int16)
    api.copy_out(second, 0, out)
    assert out.tolist() == [-1] * 10 + list(range(20, 30))
    start = api.mark()
    api.copy(first, 0, second, 0, 200)
    assert api.nanoseconds(start, api.mark()) > 0


def test_addresses_within_memory_are_handles(api: CudaApi) -> None:
    """Accept addresses inside another library's allocation, which may be part of a larger block."""
    numbers = np.arange(64, dtype=np.float32)
    handle = to_device(api, numbers)
    module_of(api, SUMS, SUMS_TABLE)["twice"](handle + 128, 8, 1, 1, 1)
    numbers[32:40] *= 2
    out = np.zeros(16, np.float32)
    api.copy_out(handle + 128, 0, out)
    assert out.tolist() == numbers[32:48].tolist()
    with pytest.raises(InputError, match=r"cuda\(0\): bytes 0 to 64 exceed a block of 32 bytes"):
        api.copy_out(handle + 224, 0, out)
    for use in (lambda: api.copy_out(0x1000, 0, out), lambda: api.free(handle + 4)):
        with pytest.raises(InputError, match="was not allocated on this device"):
            use()
    api.free(handle)


def test_too_much_memory_says_how_much_and_where(api: CudaApi) -> None:
    message = r"cuda\(0\) \(.*\): CUDA failed while allocating 35,184,372,088,832 bytes: CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(DeviceError, match=message):
        api.allocate(1 << 45)


def test_code_that_the_driver_refuses(api: CudaApi) -> None:
    handle = api.allocate(4)
    missing = {"other": FunctionInfo("", ("handle",), ("threadIdx.x",))}
    with pytest.raises(DeviceError, match="looking for kernel other: CUDA_ERROR_NOT_FOUND"):
        module_of(api, SUMS, missing)["other"](handle, 1)
    text = ".version 8.0\n.target sm_75\n.address_size 64\nnothing of PTX\n"
    with pytest.raises(DeviceError, match="loading the kernels other: CUDA_ERROR_INVALID_PTX\n  ptxas") as caught:
        CudaModule("ptx", missing, text)["other"](handle, 1)
    assert f'--target "cuda -arch={api.arch}"' in str(caught.value)
    with pytest.raises(DeviceError, match=r"launching kernel twice over groups \(1, 1, 1\) of \(1025, 1, 1\) items"):
        module_of(api, SUMS, SUMS_TABLE)["twice"](handle, 1025, 1, 1, 1)


def test_modules_that_nobody_has_any_more_are_unloaded(api: CudaApi) -> None:
    numbers = np.ones(64, np.float32)
    handle = to_device(api, numbers)
    for _ in range(100):
        module_of(api, SUMS, SUMS_TABLE)["twice"](handle, 8, 1, 1, 1)
        api.copy_in(handle, 0, numbers)
    kernel = module_of(api, SUMS, SUMS_TABLE)["twice"]
    gc.collect()
    kernel(handle, 8, 8, 1, 1)
    assert from_device(api, handle, numbers).tolist() == [2] * 64


def test_source_is_compiled_for_the_device_at_hand(api: CudaApi) -> None:
    numbers = np.arange(4, dtype=np.float32)
    handle = to_device(api, numbers)
    kernel = CudaModule("cu", SUMS_TABLE, SUMS)["twice"]
    if IS_STAND_IN:
        # the stand-in loads a GPU's machine code and finds the kernel, but cannot run it
        with pytest.raises(DeviceError, match=r"launching kernel twice over .*: CUDA_ERROR_NOT_SUPPORTED"):
            kernel(handle, 4, 1, 1, 1)
    else:
        kernel(handle, 4, 1, 1, 1)
        assert from_device(api, handle, numbers).tolist() == [0, 2, 4, 6]


@pytest.fixture
def factory(api: CudaApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Factory:
    """Return a dense layer followed by a row softmax, compiled for the device."""
    if IS_STAND_IN:
        monkeypatch.setattr(cuda_driver, "compile_cuda", lambda text, _: CudaCode("cubin", host_code(text)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["d"]), helper.make_node("Softmax", ["d"], ["y"], axis=-1)],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, EXPECTED.shape)],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "dense.onnx")
    module, params = mlfc.import_model(tmp_path / "dense.onnx")
    return mlfc.build(module, target=f"cuda -arch={api.arch}", params=params)


def test_a_model_runs_and_takes_tensors_of_the_device(factory: Factory) -> None:
    executor = factory["default"](mlfc.cuda(0))
    executor.run(x=X)
    np.testing.assert_allclose(executor.get_output(0), EXPECTED, rtol=1e-4, atol=1e-6)
    # the tensor starts two rows behind the start of the memory
    lent = array(np.concatenate([np.zeros((2, 70), np.float32), X]), mlfc.cuda(0))
    executor.set_input("x", np.zeros_like(X))
    executor.set_input_zero_copy("x", Part(lent.handle + 2 * 70 * 4, X.shape, lent))
    executor.run()
    np.testing.assert_allclose(executor.get_output(0), EXPECTED, rtol=1e-4, atol=1e-6)
    assert len(executor.timed_run()) == len(list(executor.calls()))


def test_launches_are_recorded_and_given_to_the_device_at_once(factory: Factory) -> None:
    """Record from the second run on, until the address of an argument changes."""
    executor = factory["default"](mlfc.cuda(0))
    launched: list[str] = []
    api = mlfc.cuda(0).api
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(CudaApi, "enqueue", counted(CudaApi.enqueue, launched, "kernel"))
        monkeypatch.setattr(CudaRecording, "launch", counted(CudaRecording.launch, launched, "graph"))
        kernels = len(list(executor.calls()))
        assert kernels == 2
        for factor in (1, 2, 3):
            executor.run(x=factor * X)
            np.testing.assert_allclose(executor.get_output(0), softmax(factor * X), rtol=1e-4, atol=1e-6)
        assert launched == ["kernel"] * kernels + ["graph"] * 2
        lent = array(X, mlfc.cuda(0))
        executor.set_input_zero_copy("x", lent)
        launched.clear()
        for factor in (1, 2, 3):
            lent.copyfrom(factor * X)
            executor.run()
            np.testing.assert_allclose(executor.get_output(0), softmax(factor * X), rtol=1e-4, atol=1e-6)
        assert launched == ["kernel"] * kernels + ["graph"] * 2
        times = executor.timed_run()
        assert len(times) == kernels
        assert all(time > 0 for time in times)
        assert launched[-1] == "graph"
        bound = factory.runtime.model.bind({"x": X})
        launched.clear()
        for _ in range(2):
            assert bound() == 0
        np.testing.assert_allclose(next(iter(bound.outputs.values())), EXPECTED, rtol=1e-4, atol=1e-6)
        assert launched[-1] == "graph"
    assert api.record([lambda: find_global_func("__tvm_set_device")(2, 0)]) is not None  # an empty recording


def counted(method: Any, seen: list[str], word: str) -> Any:
    def call(*args: Any) -> Any:
        seen.append(word)
        return method(*args)

    return call


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) @ WEIGHTS)
    return powers / powers.sum(axis=1, keepdims=True)


def test_branches_of_a_recording_wait_for_what_they_need(api: CudaApi) -> None:
    """Check the dependencies of a graph: the device may start any launch whose dependencies have run."""
    data = np.arange(1, 9, dtype=np.float32)
    handles = [to_device(api, data) for _ in range(3)]
    module = module_of(api, SUMS, SUMS_TABLE)
    twice, sums = (module[name] for name in ("twice", "sums"))
    out = api.allocate(12)
    twice(handles[0], 8, 1, 1, 1)
    steps = [
        lambda: twice(handles[0], 8, 1, 1, 1),
        lambda: twice(handles[1], 8, 1, 1, 1),
        lambda: (twice(handles[2], 8, 1, 1, 1), twice(handles[2], 8, 1, 1, 1)),
        lambda: sums(handles[0], out, 8, 1, 64),
        lambda: sums(handles[1], out + 4, 8, 1, 64),
        lambda: sums(handles[2], out + 8, 8, 1, 64),
    ]
    recording = api.record(steps, [(), (), (), (0,), (1,), (2,)])
    assert recording is not None
    for turn in (1, 2):
        recording.launch()
        expected = [data.sum() * factor for factor in (2 * 2**turn, 2**turn, 4**turn)]
        assert from_device(api, out, np.zeros(3, np.float32)).tolist() == expected
    assert recording.nanoseconds() == []


def test_branches_of_a_model_run_in_any_order(api: CudaApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reuse memory of one branch in another, so the graph of the second run needs dependencies between branches."""
    if IS_STAND_IN:
        monkeypatch.setattr(cuda_driver, "compile_cuda", lambda text, _: CudaCode("cubin", host_code(text)))
    node, rng = helper.make_node, np.random.default_rng(5)
    nodes, weights, wanted = [], [], 0
    for branch in "abc":
        held = rng.normal(size=(70, 30)).astype(np.float32)
        weights.append(numpy_helper.from_array(held, f"w{branch}"))
        nodes.append(node("MatMul", ["x", f"w{branch}"], [f"d{branch}"]))
        nodes.append(node("Softmax", [f"d{branch}"], [f"s{branch}"], axis=-1))
        powers = np.exp(X.astype(np.float64) @ held)
        wanted = wanted + powers / powers.sum(axis=1, keepdims=True)
    nodes += [node("Add", ["sa", "sb"], ["t"]), node("Add", ["t", "sc"], ["y"])]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)], [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(nodes, "branches", *infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    module, params = mlfc.import_model(model.SerializeToString())
    executor = mlfc.build(module, target=f"cuda -arch={api.arch}", params=params)["default"](mlfc.cuda(0))
    assert len(list(executor.calls())) >= 6
    for _ in range(3):
        executor.run(x=X)
        np.testing.assert_allclose(executor.get_output(0), wanted, rtol=1e-4, atol=1e-6)


def test_what_the_driver_cannot_record_runs_one_by_one(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fall back to single launches, and do not run a recording that was made for other memory."""
    executor = factory["default"](mlfc.cuda(0))
    for _ in range(3):
        executor.run(x=X)
    executor.set_input_zero_copy("x", array(2 * X, mlfc.cuda(0)))

    def fail(*_: object) -> None:
        raise DeviceError("CUDA failed while making a graph: CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(CudaRecording, "__init__", fail)
    for _ in range(3):
        executor.run()
        np.testing.assert_allclose(executor.get_output(0), softmax(2 * X), rtol=1e-4, atol=1e-6)


def test_steps_that_do_more_than_launch_are_not_recorded(api: CudaApi) -> None:
    """A recording would leave out the work of a host function in later runs."""
    register_global_func("tests.other", lambda: None, override=True)
    handle, code = library_context._handle_of(0, "tests.other"), ctypes.c_int32()
    other = partial(library_context._func_call, handle, 0, 0, 0, 0, ctypes.addressof(code))
    assert api.record([other]) is None
    assert api.record([]) is not None


def test_libraries_carry_kernels_and_parameters(factory: Factory, tmp_path: Path) -> None:
    """Export the founding example as a library, then with the factory as its root."""
    factory.lib.export_library(tmp_path / "deploy.so")
    loaded = mlfc.load_module(tmp_path / "deploy.so")
    assert loaded.type_key == "library"
    assert loaded.imported_modules[0].type_key == "cuda"
    assert loaded.imported_modules[0].format == "cubin"
    factory.export_library(tmp_path / "whole.so")
    executor = mlfc.load_module(tmp_path / "whole.so")["default"](mlfc.cuda(0))
    executor.run(x=X)
    np.testing.assert_allclose(executor.get_output(0), EXPECTED, rtol=1e-4, atol=1e-6)


class Part:
    """A tensor at a device address, as another library would pass it."""

    def __init__(self, address: int, shape: tuple[int, ...], owner: object) -> None:
        code = c_abi.DLDevice(2, 0)
        self._described = Described(address, code, shape, c_abi.entry_type("float32"), None, 0, False, owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: object) -> object:
        return to_capsule(self._described, versioned=False)
