"""Programs written for ONNX Runtime that change only their import, compared with ONNX Runtime itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.compat import onnxruntime as ours
from mlfc.errors import InputError, OptionError
from mlfc.library import cache
from tests.conftest import need_opencl

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
IMAGE = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
# float32, one softmax
TOLERANCE = 1e-6
CPU = "CPUExecutionProvider"


def steps_model() -> onnx.ModelProto:
    """Return a model of a scaled and shifted matrix, with metadata: float, int64 and bool inputs, two outputs."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["scaled"]),
            helper.make_node("Cast", ["count"], ["amount"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["scaled", "amount"], ["y"]),
            helper.make_node("Not", ["flag"], ["other"]),
        ],
        "steps",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("count", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, [1]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("other", TensorProto.BOOL, [1]),
        ],
        doc_string="of a test",
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pytest", model_version=3
    )
    model.domain, model.doc_string = "example", "scales and shifts"
    helper.set_model_props(model, {"task": "none"})
    return model


STEPS = steps_model().SerializeToString()
FEED = {
    "x": np.array([[1, 2], [3, 4]], np.float32), "scale": np.float32(0.5), "count": np.array([7]),
    "flag": np.array([True]),
}  # fmt: skip
WANTED = np.array([[7.5, 8], [8.5, 9]], np.float32)


@pytest.fixture(scope="module")
def session() -> Any:
    return ours.InferenceSession(STEPS, providers=[CPU])


def classify(ort: ModuleType) -> np.ndarray:
    """Run a model as most scripts do."""
    ort.set_default_logger_severity(3)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert CPU in ort.get_available_providers()
    assert set(ort.get_available_providers()) <= set(ort.get_all_providers())
    session = ort.InferenceSession(str(DIGITS / "digits.onnx"), sess_options=options, providers=[(CPU, {})])
    session.disable_fallback()
    assert session.get_provider_options()[CPU] == {}
    assert session.get_session_options().inter_op_num_threads == 1
    name = session.get_inputs()[0].name
    run_options = ort.RunOptions()
    run_options.log_severity_level = 3
    (scores,) = session.run([session.get_outputs()[0].name], {name: IMAGE}, run_options)
    return scores


def bind(ort: ModuleType) -> list[np.ndarray]:
    """Bind inputs and outputs in each form, and return all results."""
    session = ort.InferenceSession(STEPS, providers=[CPU])
    binding = session.io_binding()
    memory = FEED["x"].copy()
    x = ort.OrtValue.ortvalue_from_numpy(memory, "cpu", 0)
    y = ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32, "cpu", 0)
    assert (x.shape(), x.data_type(), x.device_name(), x.is_tensor()) == ([2, 2], "tensor(float)", "cpu", True)
    binding.bind_ortvalue_input("x", x)
    binding.bind_cpu_input("scale", np.array(0.5, np.float32))
    count = FEED["count"]
    binding.bind_input("count", "cpu", 0, np.int64, count.shape, count.ctypes.data)
    binding.bind_cpu_input("flag", FEED["flag"])
    binding.bind_output("other")
    binding.bind_ortvalue_output("y", y)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    found = [*binding.copy_outputs_to_cpu(), binding.get_outputs()[1].numpy(), y.numpy()]
    target = np.zeros((2, 2), np.float32)
    binding.clear_binding_outputs()
    binding.bind_output("y", "cpu", 0, np.float32, target.shape, target.ctypes.data)
    x.update_inplace(FEED["x"] + 1)
    memory[0, 0] = 9
    session.run_with_iobinding(binding, ort.RunOptions())
    values = {name: ort.OrtValue.ortvalue_from_numpy(np.asarray(value)) for name, value in FEED.items()}
    return [*found, target, *(value.numpy() for value in session.run_with_ort_values(["y"], values))]


@pytest.mark.parametrize("program", [classify, bind])
def test_a_program_has_the_results_of_onnxruntime(program: Any) -> None:
    for found, wanted in zip(program(ours), program(onnxruntime), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_buffers_of_a_device_are_bound() -> None:
    need_opencl()
    session = ours.InferenceSession(STEPS, providers=[("OpenCLExecutionProvider", {"device_id": "0"}), CPU])
    assert session.get_providers() == ["OpenCLExecutionProvider", CPU]
    binding, y = session.io_binding(), ours.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32, "opencl")
    for name, value in FEED.items():
        binding.bind_ortvalue_input(name, ours.OrtValue.ortvalue_from_numpy(np.asarray(value), "opencl", 0))
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), WANTED)
    assert binding.get_outputs()[0].device_name() == "opencl"


@pytest.mark.parametrize("source", ["bytes", "path", "proto"])
def test_metadata_is_that_of_the_model(source: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.onnx"
    path.write_bytes(STEPS)
    model: Any = {"bytes": STEPS, "path": path, "proto": onnx.load_from_string(STEPS)}[source]
    found, wanted = ours.InferenceSession(model).get_modelmeta(), onnxruntime.InferenceSession(STEPS).get_modelmeta()
    names = ["producer_name", "graph_name", "domain", "description", "graph_description", "version"]
    assert [getattr(found, name) for name in names] == [getattr(wanted, name) for name in names]
    assert found.custom_metadata_map == wanted.custom_metadata_map


@pytest.mark.parametrize(
    ("name", "value"),
    [("x", [[1, 2], [3, 4]]), ("x", ((1.0, 2.0), (3.0, 4.0))), ("scale", 0.5), ("count", [7]), ("flag", [True])],
)
def test_lists_and_numbers_are_inputs(session: Any, name: str, value: object) -> None:
    np.testing.assert_array_equal(session.run(["y"], {**FEED, name: value})[0], WANTED)


@pytest.mark.parametrize(("name", "value"), [("count", [1.5]), ("flag", [2]), ("scale", np.float64(0.5))])
def test_values_that_do_not_fit_are_refused(session: Any, name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name}: the input does not fit"):
        session.run(["y"], {**FEED, name: value})


@pytest.mark.parametrize("library", [ours, onnxruntime])
def test_one_warning_names_all_settings_without_effect(library: ModuleType) -> None:
    options = library.SessionOptions()
    options.inter_op_num_threads = 2
    options.enable_profiling = True
    options.execution_mode = library.ExecutionMode.ORT_PARALLEL
    text = "no effect in mlfc: enable_profiling=True, execution_mode=ORT_PARALLEL, inter_op_num_threads=2"
    providers = [(CPU, {"arena": "small", "device_id": 0})]
    if library is ours:
        options.nonsense = 1
        text += ", nonsense=1"
    with pytest.warns(UserWarning, match="^no effect in mlfc") as caught:
        ours.InferenceSession(STEPS, options, providers)
    assert [str(item.message) for item in caught] == [f"{text}, {CPU} arena=small"]
    assert caught[0].filename == __file__


def test_what_cannot_be_accepted_is_refused(session: Any) -> None:
    options = ours.SessionOptions()
    for call, kind, reason in (
        (lambda: options.register_custom_ops_library("ops.so"), OptionError, "custom operators are not supported"),
        (lambda: options.get_session_config_entry("a"), OptionError, "unknown entry 'a'"),
        (lambda: session.io_binding().bind_cpu_input("z", 1), InputError, "unknown input 'z'"),
        (lambda: session.io_binding().bind_output("z"), InputError, "unknown output 'z'"),
        (lambda: ours.OrtValue.ortvalue_from_shape_and_type([1], 99), InputError, "unknown element type 99"),
    ):
        with pytest.raises(kind, match=reason):
            call()
    assert ours.OrtValue.ortvalue_from_shape_and_type([1], TensorProto.INT8).element_type() == TensorProto.INT8
    assert ours.get_device() in ("CPU", "GPU")
    assert mlfc.SessionOptions is ours.SessionOptions


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that grows with each model that is compiled."""
    from mlfc import compiler

    built: list[object] = []
    build = compiler.build_module
    monkeypatch.setattr(compiler, "build_module", lambda *arguments: built.append(arguments) or build(*arguments))
    return built


def test_a_model_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    built = count_builds(monkeypatch)
    data = steps_model()
    data.graph.initializer.append(numpy_helper.from_array(np.array([3], np.int64), "count"))
    del data.graph.input[2]
    path = tmp_path / "net.onnx"
    onnx.save(data, path, save_as_external_data=True, location="net.data", size_threshold=0)
    feed = {name: value for name, value in FEED.items() if name != "count"}
    first = ours.InferenceSession(path)
    again = ours.InferenceSession(path)
    assert len(built) == 1
    for session in (first, again):
        np.testing.assert_array_equal(session.run(["y"], feed)[0], WANTED - 4)
    assert again.inputs == first.inputs
    # other options, other weights, and files that were damaged
    ours.InferenceSession(path, intra_op_num_threads=1)
    assert len(built) == 2
    weights = path.with_name("net.data").read_bytes()
    path.with_name("net.data").write_bytes(b"\5" + weights[1:])
    np.testing.assert_array_equal(ours.InferenceSession(path).run(["y"], feed)[0], WANTED - 2)
    assert len(built) == 3
    for entry in cache.cache_folder().glob("*.so"):
        entry.unlink()  # the process has loaded it
        entry.write_bytes(b"damaged")
    np.testing.assert_array_equal(ours.InferenceSession(path).run(["y"], feed)[0], WANTED - 2)
    assert len(built) == 4


def test_a_session_has_the_bits_of_compiled_models() -> None:
    (wanted,) = mlfc.compile(DIGITS / "digits.onnx").run(IMAGE).values()
    for threads in (None, 1):
        session = ours.InferenceSession(DIGITS / "digits.onnx", intra_op_num_threads=threads)
        np.testing.assert_array_equal(session.run(None, {"image": IMAGE})[0], wanted)


def test_a_session_starts_without_a_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("mlfc.library.toolchain.has_zig", lambda: False)
    np.testing.assert_array_equal(ours.InferenceSession(STEPS).run(["y"], FEED)[0], WANTED)
    assert not [*tmp_path.rglob("*.so")]


def test_a_cached_model_is_loaded_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "steps.onnx"
    path.write_bytes(STEPS)
    ours.InferenceSession(path)
    script = (
        "import sys, mlfc; mlfc.InferenceSession(sys.argv[1]); "
        "print([name for name in ('llvmlite', 'onnx', 'mlfc.compiler', 'mlfc.relay.ir') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_sessions_of_one_model_run_at_the_same_time(session: Any) -> None:
    other = ours.InferenceSession(STEPS, providers=[CPU])
    faults: list[float] = []

    def run(one: Any, shift: int) -> None:
        for number in range(200):
            (found,) = one.run(["y"], {**FEED, "count": np.array([number + shift])})
            faults.extend(np.abs(found - (WANTED - 7 + number + shift)).max(initial=0, keepdims=True).ravel())

    threads = [threading.Thread(target=run, args=(one, shift)) for one, shift in ((session, 0), (other, 5), (other, 9))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(faults) == 0
