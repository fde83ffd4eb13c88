"""Programs written for TVM's Relay and microTVM that change only their imports."""

from __future__ import annotations

import importlib
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import tflite
from mlfc.compat.tvm.contrib.debugger import debug_executor
from mlfc.compat.tvm.micro import export_model_library_format
from mlfc.compat.tvm.relay.backend import Executor, Runtime
from mlfc.compat.tvm.runtime.vm import VirtualMachine
from onnx import TensorProto, helper

import mlfc
import mlfc.compat.tvm as tvm
from mlfc.compat.tvm import relay, transform
from mlfc.compat.tvm.contrib import graph_executor, graph_runtime, utils
from mlfc.compat.tvm.relay import testing
from mlfc.errors import InputError, OptionError

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
IMAGE = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    return next(iter(mlfc.compile(DIGITS / "digits.onnx", "llvm").run(IMAGE).values()))


@pytest.fixture
def few_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build residual networks of two stages, for short tests."""
    monkeypatch.setattr(testing.resnet, "_UNITS", {18: (1, 1), 50: (1, 1)})
    monkeypatch.setattr(testing.resnet, "_FILTERS", (4, 8))


@pytest.mark.usefixtures("few_units")
def test_the_example_of_module_serialization_runs() -> None:
    # all lines but the imports are those of TVM's page
    resnet18_mod, resnet18_params = relay.testing.resnet.get_workload(num_layers=18)
    with relay.build_config(opt_level=3):
        _, resnet18_lib, _ = relay.build_module.build(resnet18_mod, "cuda", params=resnet18_params)
    temp = utils.tempdir()
    file_name = "deploy.so"
    path_lib = temp.relpath(file_name)
    resnet18_lib.export_library(path_lib)
    loaded_lib = tvm.runtime.load_module(path_lib)
    assert loaded_lib.type_key == "library"
    assert loaded_lib.imported_modules[0].type_key == "cuda"
    assert temp.listdir() == ["deploy.so"]
    temp.remove()
    assert not Path(temp.path).exists()


@pytest.mark.usefixtures("few_units")
def test_residual_networks_compute_what_they_describe() -> None:
    mod, params = testing.resnet.get_workload(num_layers=50, num_classes=5, image_shape=(3, 34, 34))
    names = [param.name_hint for param in mod["main"].params]
    assert names[0] == "data"
    assert params.keys() == {*names[1:]}
    assert "stage2_unit1_sc_weight" in names
    run = relay.create_executor("graph", mod, tvm.cpu(), "llvm", params).evaluate()
    first, second = (run(np.full((1, 3, 34, 34), value, np.float32), **params).numpy() for value in (0.5, -2))
    np.testing.assert_allclose(first.sum(), 1, rtol=1e-5)
    assert np.abs(first - second).max() > 1e-4
    with pytest.raises(OptionError, match="at least 33 rows, got 20, NCHW, float32 and 32"):
        testing.resnet.get_workload(num_layers=20, image_shape=(3, 32, 32))


def test_a_model_is_imported_built_saved_and_run(tmp_path: Path, wanted: np.ndarray) -> None:
    model = onnx.load(DIGITS / "digits.onnx")
    input_name = model.graph.input[0].name
    mod, params = relay.frontend.from_onnx(model, {input_name: IMAGE.shape}, dtype="float32", freeze_params=True)
    passes = [relay.transform.InferType(), relay.transform.FoldConstant(), relay.transform.ConvertLayout({})]
    mod = tvm.transform.Sequential(passes)(mod)
    assert {v.name_hint: v.checked_type.dtype for v in mod["main"].params}[input_name] == "float32"
    target = tvm.target.Target("llvm -device=arm_cpu", host="llvm")
    with transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
        lib = relay.build(mod, target, params=params, mod_name="digits")
    dev = tvm.device(target.kind.name, 0)
    module = graph_executor.GraphModule(lib["default"](dev))
    module.set_input(input_name, tvm.nd.array(IMAGE, dev))
    module.run()
    found = module.get_output(0, tvm.nd.empty(wanted.shape, "float32"))
    np.testing.assert_array_equal(found.numpy(), wanted)
    # the three files of older programs
    graph, code, weights = lib.get_graph_json(), lib.get_lib(), lib.get_params()
    code.export_library(tmp_path / "net.so")
    (tmp_path / "net.params").write_bytes(relay.save_param_dict(weights))
    loaded = tvm.runtime.load_module(str(tmp_path / "net.so"))
    older = graph_runtime.create(graph, loaded, ctx=tvm.context("cpu", 0))
    older.load_params((tmp_path / "net.params").read_bytes())
    older.set_input(input_name, tvm.nd.array(IMAGE, ctx=tvm.cpu()))
    older.run()
    np.testing.assert_array_equal(older.get_output(0).asnumpy(), wanted)
    debugged = debug_executor.create(graph, loaded, dev, dump_root=str(tmp_path))
    debugged.load_params(tvm.runtime.save_param_dict(weights))
    debugged.run(image=IMAGE)
    tvm.testing.assert_allclose(debugged.get_output(0).numpy(), wanted, rtol=1e-5)
    assert (dev.device_type, dev.device_id, dev.exist) == (1, 0, True)
    dev.sync()


def test_microcontroller_archives_are_written(tmp_path: Path) -> None:
    path = DIGITS / "digits_int8.tflite"
    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    mod, params = relay.frontend.from_tflite(model, shape_dict={"image": (1, 8, 8, 1)}, dtype_dict={"image": "int8"})
    assert (
        params.keys()
        == relay.frontend.from_tflite(path)[1].keys()
        == relay.frontend.from_tflite(path.read_bytes())[1].keys()
    )
    runtime = Runtime("crt", {"system-lib": True})
    executor = Executor("aot", {"unpacked-api": True, "interface-api": "c", "workspace-byte-alignment": 8})
    config = {"tir.disable_vectorize": True, "tir.usmp.enable": True}
    with tvm.transform.PassContext(opt_level=3, config=config):
        target = tvm.target.target.micro("nrf52840")
        module = tvm.relay.build(mod, target, executor=executor, runtime=runtime, params=params, mod_name="digits")
    export_model_library_format(module, tmp_path / "digits.tar")
    with tarfile.open(tmp_path / "digits.tar") as tar:
        assert "./codegen/host/include/tvmgen_digits.h" in tar.getnames()
    assert mlfc.inspect(tmp_path / "digits.tar")["modules"]["digits"]["target"] == ["c -mcpu=cortex-m4"]


def test_objects_for_the_c_runtime_have_the_names_of_tvm(tmp_path: Path) -> None:
    mod, params = relay.frontend.from_tflite(DIGITS / "digits_int8.tflite")
    built = tvm.relay.build(mod, "c", runtime=Runtime("crt", {"system-lib": True}), params=params)
    _, lib, _ = built
    for module, path in ((built, tmp_path / "whole.tar"), (lib, tmp_path / "lib.tar")):
        module.export_library(path)
        with tarfile.open(path) as tar:
            assert {Path(item.name).name for item in tar if item.isfile()} == {"devc.o", "lib0.o", "lib1.o"}
    built.export_library(tmp_path / "shared.so")
    assert mlfc.load(tmp_path / "shared.so").run(np.zeros((1, 8, 8, 1), np.int8))
    tvm.relay.build(mod, "c", runtime=Runtime("crt"), params=params).export_library(tmp_path / "other.tar")
    with tarfile.open(tmp_path / "other.tar") as tar:
        assert len(tar.getnames()) > 3


def test_dynamic_models_run_in_the_virtual_machine() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    mod, params = relay.frontend.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    x = np.array([[-1, 2], [3, -4], [0, 1]], np.float32)
    with tvm.target.Target("llvm"):
        executable = relay.vm.compile(mod, params=params)
    machine = VirtualMachine(executable, tvm.cpu())
    np.testing.assert_array_equal(machine.run(x), np.maximum(x, 0))
    run = relay.create_executor("vm", mod, tvm.cpu(), "llvm").evaluate()
    np.testing.assert_array_equal(run(tvm.nd.array(x)).numpy(), np.maximum(x, 0))


@pytest.mark.parametrize(
    ("given", "text", "executor"),
    [
        ("llvm --runtime=c --system-lib", "llvm", None),
        ("c -keys=arm_cpu,cpu -mcpu=cortex-m7", "c -keys=arm_cpu,cpu -mcpu=cortex-m7", None),
        ("c --executor=aot --interface-api=c --unpacked-api=1 -link-params", "c", "aot"),
        ({"kind": "llvm", "mcpu": "native", "keys": ["cpu", "x"], "host": "c"}, "llvm -mcpu=native -keys=cpu,x", None),
    ],
)
def test_targets_are_those_of_tvm(given: str, text: str, executor: str | None) -> None:
    target = tvm.target.Target(given)
    assert (str(target), target.executor, target.kind.name) == (text, executor, text.partition(" ")[0])
    again = tvm.target.Target(target)
    assert (again.host, again.executor) == (target.host, executor)
    assert tvm.target.cuda(arch="sm_80") == "cuda"


def test_boards_are_targets() -> None:
    assert tvm.target.micro("stm32f746xx") == "c -mcpu=cortex-m7"
    assert tvm.target.micro("mps2-an386") == mlfc.compat.tvm.target.micro("mps2_an386")
    with pytest.raises(OptionError, match="unknown board 'nrf5284'"):
        tvm.target.micro("nrf5284")


def test_one_warning_names_all_settings_without_effect() -> None:
    with pytest.warns(UserWarning, match="no effect in mlfc: disabled_pass, a, relay.b$") as caught:
        context = tvm.transform.PassContext(2, disabled_pass=["x"], config={"relay.b": 1, "a": 2, "tir.usmp.enable": 1})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with context:
        assert tvm.transform.PassContext.current() is context
    assert tvm.transform.PassContext.current() is not context


def test_names_are_found_as_in_tvm() -> None:
    for name in ("contrib.debugger.debug_runtime", "contrib.utils", "nd", "relay.testing.resnet", "testing"):
        assert importlib.import_module(f"mlfc.compat.tvm.{name}") is eval(f"tvm.{name}", {"tvm": tvm})
    assert tvm.get_global_func("no such function", allow_missing=True) is None
    with pytest.raises(tvm.TVMError, match="unknown global function"):
        tvm.get_global_func("no such function")


def test_misuse_is_named() -> None:
    model = onnx.load(DIGITS / "digits.onnx")
    mod, params = relay.frontend.from_onnx(model)
    for call, kind, reason in (
        (lambda: relay.frontend.from_onnx(model, [("image", (1, 1))]), InputError, "shapes by input name, got list"),
        (lambda: relay.frontend.from_onnx(model, {"imag": IMAGE.shape}), OptionError, "unknown input 'imag'"),
        (lambda: relay.build(mod, params=params), OptionError, "expected a target, got none"),
        (lambda: relay.build(model, "llvm"), InputError, "expected an IRModule, got ModelProto"),
        (lambda: relay.build(mod, "llvm", executor="vm"), OptionError, "unknown executor 'vm'"),
        (lambda: relay.build(mod, "llvm", workspace_memory_pools=[1]), OptionError, r"use mlfc.build\(mod, pools"),
        (lambda: Executor("aot", {"unpaked-api": 1}), OptionError, "nearest: 'unpacked-api'"),
        (lambda: Runtime("c"), OptionError, "unknown runtime 'c'"),
    ):  # fmt: skip
        with pytest.raises(kind, match=f"(?i){reason}"):
            call()
    target = relay.build_module._target({"cpu": "llvm", "cuda": "cuda"})
    assert target == "cuda"
