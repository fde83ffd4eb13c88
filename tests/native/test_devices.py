"""Models on an OpenCL device and the host: the host's results for any device placement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import mlfc
from mlfc.errors import DeviceError, OptionError, RunError
from mlfc.factory import Factory
from mlfc.frontend.onnx import import_onnx
from mlfc.runtime import GraphExecutor
from mlfc.transform import device_placement
from tests.conftest import need_opencl
from tests.harness import seeded_inputs
from tests.interop.test_onnxruntime_nodes import WHOLE, a_norm_between_compiled_layers, model, node
from tests.onnx_graphs import GraphMaker
from tests.unit.test_device_placement import refusing
from tests.unit.test_passes import image

pytestmark = pytest.mark.usefixtures("quick_builds", "quick_kernels")

# integers must be equal; a device may sum floats in another order
TOLERANCE = 1e-5
ROOT = Path(__file__).parents[2]
INTEGERS = ("kws_ref_model", "hello_world_int8")


@pytest.fixture(autouse=True)
def device() -> mlfc.runtime.Device:
    return need_opencl()


def network() -> bytes:
    """Return a model with two branches, one of which has a softmax in the middle."""
    g = GraphMaker(5)
    first = g.node("Relu", [g.conv("x", 4, 4, 3)])
    soft = g.node("Softmax", [first], axis=1)
    left, right = g.conv(soft, 4, 4, 1), g.node("MaxPool", [first], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    joined = str(g.node("Add", [left, right]))
    return g.model(joined, str(g.node("GlobalAveragePool", [joined])))


def built(data: bytes, target: str = "opencl", **options: Any) -> Factory:
    module, params = import_onnx(data, "network")
    return mlfc.build(module, target, params=params, module_name="network", **options)


@pytest.fixture(params=["c", "llvm"])
def divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Factory:
    """Return a model whose softmax runs on the host."""
    refusing(monkeypatch, (), ["softmax"])
    monkeypatch.setattr(device_placement, "SMALL_WORK", 1)
    return built(network(), target_host=request.param)


def assert_like(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    return list(built(network(), "c").runtime.run({"x": image()}).values())


def test_host_and_device_work_on_one_model(
    divided: Factory, expected: list[np.ndarray], device: mlfc.runtime.Device
) -> None:
    kinds = [call.kernel.device for call in divided.program.calls if not call.is_copy]
    assert set(kinds) == {"opencl", None}
    assert sum(call.is_copy for call in divided.program.calls) == 2
    executor = divided["default"](device)
    assert executor.devices == (device, mlfc.cpu(0))
    for sign in (1, -1, 1):
        executor.run(x=sign * image())
    for index, wanted in enumerate(expected):
        assert_like(executor.get_output(index), wanted)


def test_archives_and_libraries_carry_the_kernels(
    divided: Factory, expected: list[np.ndarray], device: mlfc.runtime.Device, tmp_path: Path
) -> None:
    mlfc.export_model_library_format(divided, tmp_path / "network.tar")
    divided.export_library(tmp_path / "network.so")
    for name in ("network.tar", "network.so"):
        loaded = mlfc.load_module(tmp_path / name)
        assert loaded.lib.imported_modules[0].type_key == "opencl"
        executor = loaded["network"](mlfc.cpu(0), device)
        executor.run(x=image())
        assert_like(executor.get_output(0), expected[0])
        outputs = mlfc.load(tmp_path / name).run({"x": image()})
        assert_like(next(iter(outputs.values())), expected[0])


def test_bound_buffers_are_read_at_each_call(divided: Factory, expected: list[np.ndarray]) -> None:
    x = np.zeros_like(image())
    call = divided.runtime.bind({"x": x})
    assert call() == 0
    x[...] = image()
    assert call() == 0
    assert_like(next(iter(call.outputs.values())), expected[0])


def test_every_operator_and_copy_is_timed(divided: Factory) -> None:
    profile = divided.runtime.model.profile({"x": image()}, repeat=2)
    assert len(profile.operators) == len(divided.program.calls)
    assert all(item.nanoseconds > 0 for item in profile.operators)


def test_executors_do_not_share_memory(divided: Factory, expected: list[np.ndarray]) -> None:
    first, second = divided["default"](), divided["default"]()
    first.run(x=image())
    second.run(x=-image())
    assert_like(first.get_output(0), expected[0])
    other = first.fork()
    other.run(x=np.zeros_like(image()))
    assert_like(first.get_output(0), expected[0])


def test_devices_that_are_not_the_models_are_refused(divided: Factory, device: mlfc.runtime.Device) -> None:
    graph_json, lib, _ = divided
    with pytest.raises(RunError, match=r"tensors on opencl, got only cpu\(0\)"):
        GraphExecutor(graph_json, lib, mlfc.cpu(0))
    with pytest.raises(RunError, match=r"runs on the CPU and opencl, not on cuda\(0\)"):
        GraphExecutor(graph_json, lib, [mlfc.cuda(0), mlfc.cpu(0)])
    with pytest.raises(RunError, match="one device per kind"):
        GraphExecutor(graph_json, lib, [device, mlfc.opencl(1)])
    with pytest.raises(DeviceError, match=r"unknown device opencl\(99\)"):
        divided["default"](mlfc.opencl(99))
    with pytest.raises(RunError, match=r"runs on the CPU, not on opencl\(0\)"):
        built(network(), "c", executor="graph")["default"](device)
    with pytest.raises(RunError, match=r"runs on the CPU, not on opencl\(0\)"):
        built(network(), "c")["default"](device)


def test_what_targets_of_devices_cannot_be_combined_with() -> None:
    with pytest.raises(OptionError, match="requires the graph executor or the virtual machine, got 'aot'"):
        built(network(), executor="aot")
    with pytest.raises(OptionError, match="expected a host target"):
        built(network(), target_host="opencl")
    targets = built(network(), target_host="c -mcpu=x86-64-v3").targets
    assert list(map(str, targets)) == ["opencl", "c -mcpu=x86-64-v3"]


SMALL_DEVICE = """
import json
from tests.native.test_devices import built, image, network
for target in ("opencl", "opencl -max_num_threads=64"):
    try:
        model = built(network(), target, target_host="llvm").runtime
        print(json.dumps([array.tolist() for array in model.run({"x": image()}).values()]))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.usefixtures("quick_kernels")
def test_devices_of_small_groups_get_kernels_that_suit_them(
    expected: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limit PoCL's work groups to emulate a device with small groups."""
    monkeypatch.setenv("POCL_MAX_WORK_GROUP_SIZE", "64")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", SMALL_DEVICE], capture_output=True, text=True, check=False, cwd=ROOT)
    refused, *found = done.stdout.splitlines()
    assert "INVALID_WORK_GROUP_SIZE" in refused, done.stderr
    assert '64 items; models get smaller ones by --target "opencl -max_num_threads=64"' in refused
    for array, wanted in zip(json.loads(*found), expected, strict=True):
        assert_like(np.array(array), wanted)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("opencl -max_num_threads=31", "at least 32, got -max_num_threads=31"),
        ("cuda -max_num_threads=", "at least 32, got -max_num_threads="),
        ("opencl -max_shared_memory_per_block=1k", "at least 4096, got -max_shared_memory_per_block=1k"),
        ("cuda -mcpu=sm_90", "is a device and does not support -mcpu, got 'sm_90'"),
        ("opencl -arch=sm_90", "unknown target option '-arch=sm_90'"),
    ],
)
def test_options_that_no_device_has(target: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        built(network(), target)


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("first.tar", "second.tar"):
        mlfc.export_model_library_format(built(network()), tmp_path / name)
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


@pytest.mark.parametrize("name", INTEGERS)
def test_quantized_models_give_the_hosts_bytes(name: str, models: Path) -> None:
    module, params = mlfc.import_model(models / f"{name}.tflite")
    on_host = mlfc.build(module, "c", params=params, module_name="m").runtime
    factory = mlfc.build(module, "opencl", params=params, module_name="m")
    assert {call.kernel.device for call in factory.program.calls} == {"opencl"}
    for seed in range(2):
        inputs = seeded_inputs(on_host.inputs, seed)
        wanted = on_host.run(inputs)
        for tensor, found in factory.runtime.run(inputs).items():
            np.testing.assert_array_equal(found, wanted[tensor])


def test_metadata_tell_the_bytes_of_each_device(divided: Factory, tmp_path: Path) -> None:
    from mlfc.archive.read.opening import open_archive

    path = tmp_path / "network.tar"
    mlfc.export_model_library_format(divided, path)
    with open_archive(path) as archive:
        record = archive.record.modules["network"]
        plan = divided.code.plan
        assert plan is not None
        assert record.targets == tuple(map(str, divided.targets))
        assert [entry.device for entry in record.main] == [1, 4]
        assert record.main[1].workspace_bytes == plan.bytes_on("opencl")
        assert record.main[0].workspace_bytes >= plan.bytes_on(None) > 0
        assert [tensor.name for tensor in record.main[1].inputs] == ["x"]
        assert [tensor.name for tensor in record.inputs] == ["x"]
        assert len(record.outputs) == 2


def test_a_model_without_work_for_the_device_says_so(tmp_path: Path, command: Callable[..., str]) -> None:
    path = tmp_path / "pool.onnx"
    path.write_bytes(
        model([node("Relu", "x", "r"), node("MaxRoiPool", "r whole", "y", pooled_shape=[1, 1])], {"y": 1}, WHOLE)
    )
    said = command("compile", path, "--byoc", "onnxruntime", "--target", "opencl", "-o", tmp_path / "pool.tar")
    assert re.search(r"no operator of \d runs on opencl", said)


def test_commands_say_what_runs_where(
    divided: Factory, expected: list[np.ndarray], tmp_path: Path, command: Callable[..., str]
) -> None:
    path, given, made = tmp_path / "network.tar", tmp_path / "in.npz", tmp_path / "out.npz"
    mlfc.export_model_library_format(divided, path)
    assert "operators run on opencl, with 2 copies between devices; on the host: Softmax" in command("inspect", path)
    told = json.loads(command("inspect", path, "--json"))["modules"]["network"]["operators"]
    assert {item["device"] for item in told} == {"cpu", "opencl"}
    assert [item["function"] for item in told].count("__copy") == 2
    command("validate", path)
    np.savez(given, x=image())
    command("run", path, "--device", "opencl:0", "--inputs", given, "--outputs", made)
    with np.load(made) as outputs:
        for array, wanted in zip(outputs.values(), expected, strict=True):
            assert_like(array, wanted)


def test_archives_for_devices_have_no_demo_that_could_not_run(divided: Factory, tmp_path: Path) -> None:
    from mlfc.archive import object_files, source_folder
    from mlfc.archive.read.opening import open_archive
    from mlfc.archive.write.options import ExportOptions

    mlfc.export_model_library_format(divided, tmp_path / "network.tar")
    with open_archive(tmp_path / "network.tar") as archive:
        assert not {"Makefile", "CMakeLists.txt", "demo/demo.c"} & set(archive.tar.sizes)
        assert b"mlfc run ARCHIVE --device opencl" in bytes(archive.tar.view("README.md"))
    with pytest.raises(OptionError, match="C runtime, which has no devices"):
        mlfc.export_model_library_format(divided, tmp_path / "tested.tar", options=ExportOptions(test_vectors=1))
    sources = [object_files([divided])]
    if divided.unit.target.kind == "c":
        sources.append(source_folder([divided]))
    for files in sources:
        assert bytes(files["src/network_kernels.cl"]).decode() == divided.lib.imported_modules[0].get_source()
        assert bytes(files["executor-config/graph/network.graph"]).decode() == divided.graph_json


def test_firmware_is_not_made_of_what_runs_on_a_device(divided: Factory, tmp_path: Path) -> None:
    from mlfc.micro.firmware.graph_source import graph_of_archive, graph_of_factory

    mlfc.export_model_library_format(divided, tmp_path / "network.tar")
    with pytest.raises(OptionError, match="parts of module 'network' require opencl, which firmware does not have"):
        graph_of_archive(tmp_path / "network.tar")
    with pytest.raises(OptionError, match="'network' require opencl"):
        graph_of_factory(divided)


def test_what_another_generator_takes_stays_on_the_host(
    device: mlfc.runtime.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device_placement, "SMALL_WORK", 1)
    data = a_norm_between_compiled_layers()
    x = np.random.default_rng(1).standard_normal((1, 4, 6, 6)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    module, params = mlfc.import_model(data, byoc=["onnxruntime"])
    factory = mlfc.build(module, "opencl", params=params, module_name="norm")
    assert {call.kernel.device for call in factory.program.calls} == {"opencl", None}
    factory.export_library(tmp_path / "norm.so")
    loaded = mlfc.load_module(tmp_path / "norm.so")
    assert {module.type_key for module in loaded.lib.imported_modules} == {"opencl", "onnxruntime"}
    for made in (factory, loaded):
        executor = made["default"](device)
        executor.run(x=x)
        for index, array in enumerate(wanted):
            np.testing.assert_allclose(executor.get_output(index), array, rtol=0, atol=1e-5)


def test_a_float_model_is_as_near_to_the_reference_as_the_hosts(models: Path, command: Callable[..., str]) -> None:
    model = models / "kws_ref_model_float32.tflite"
    told = json.loads(command("verify", model, "--target", "opencl", "--samples", 2, "--json"))
    assert told["is_within"]
    assert told["outputs"][0]["tolerance"] < 1e-4
