"""Kernels that share their work among threads: the same bits for any number of threads and any scheduler."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
import mlfc.crt
from mlfc.archive.read.load import load_factory
from mlfc.codegen import c_parallel
from mlfc.errors import OptionError
from mlfc.runtime import threads
from mlfc.runtime.threads import count_launches, thread_times, time_threads
from mlfc.tir import interpreter, ir, parallel
from mlfc.tir.parallel import parallelize
from mlfc.tir.unroll import Unroll
from mlfc.tir.visitor import walk
from tests import operator_cases
from tests.harness import seeded_inputs
from tests.native.test_operators_in_c import module_of

POOL = Path(mlfc.crt.__file__).with_name("parallel")
FAMILIES = {"nn": operator_cases.nn_cases, "pool": operator_cases.pool_cases, "indexing": operator_cases.indexing_cases}


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    yield
    mlfc.set_num_threads(0)


@pytest.fixture
def _any_work_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parallel, c_parallel):
        monkeypatch.setattr(module, "GRAIN", 1.0)


def _assert_same_bits(model: Any, inputs: Any) -> None:
    mlfc.set_num_threads(1)
    model.run(inputs)  # loads the pool, whose times start below
    before = count_launches()
    time_threads(True)
    expected = model.run(inputs)
    assert count_launches() == before, "one thread needs no other"
    assert thread_times()[0] > 0
    time_threads(False)
    for count in (2, 3, 7):
        mlfc.set_num_threads(count)
        assert mlfc.get_num_threads() == count
        for name, found in model.run(inputs).items():
            assert found.tobytes() == expected[name].tobytes(), f"{name} with {count} threads"
    assert count_launches() > before


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
@pytest.mark.parametrize(("family", "target"), [("nn", "c"), ("nn", "llvm"), ("indexing", "llvm"), ("pool", "c")])
def test_operators(family: str, target: str) -> None:
    module, inputs = module_of(FAMILIES[family]())
    _assert_same_bits(load_factory(mlfc.build(module, target, module_name="tested", parallel=True)), inputs)


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("kws_ref_model", "llvm"),
        ("vww_96_int8", "llvm"),
        ("trained_lstm_int8", "llvm"),
        ("pretrainedResnet", "llvm"),
        ("pretrainedResnet", "llvm -mcpu=native"),  # convolutions with Winograd transforms
    ],
)
def test_models(model: str, target: str, models: Path) -> None:
    module, params = mlfc.import_model(models / f"{model}.tflite")
    loaded = load_factory(mlfc.build(module, target, params, parallel=True))
    _assert_same_bits(loaded, seeded_inputs(loaded.inputs, 5))


def test_interpreted_ranges_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ranges in random order with private buffers undefined at the start of each range."""
    random = Random(1)

    def ranges(_: Any, count: int) -> list[tuple[int, int]]:
        ends = sorted({0, count, *(random.randrange(count + 1) for _ in range(3))})
        found = list(pairwise(ends))
        random.shuffle(found)
        return found

    monkeypatch.setattr(parallel, "GRAIN", 1.0)
    monkeypatch.setattr(interpreter._StatementMaker, "ranges", ranges)
    rng, shared, carried = np.random.default_rng(0), 0, 0
    for kernel, constants in _kernels():
        divided = parallelize(Unroll(keeps_begins=True)(kernel))
        parts = [stmt for stmt in walk(divided.body) if isinstance(stmt, ir.Parallel)]
        shared += bool(parts)
        carried += any(isinstance(stmt, ir.Let) and stmt.carried for part in parts for stmt in walk(part.body))
        inputs = [_random(rng, buffer) for buffer in kernel.inputs]
        expected = interpreter.run(kernel, inputs, constants)
        found = interpreter.run(divided, [array.copy() for array in inputs], constants)
        assert found.tobytes() == expected.tobytes(), kernel.name
    assert shared > 20
    assert carried == 2, "threads share the rows of a depthwise convolution, of any stride"


_TASK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, _TASK, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint64)


@_RUN
def _run_in_any_order(task: Any, arguments: int, count: int, _: int, scratch_bytes: int) -> int:
    """Run ranges in random order, each with its own scratch full of NaN."""
    ends = sorted({0, count, *(_random_order.randrange(count + 1) for _ in range(3))})
    found = list(pairwise(ends))
    _random_order.shuffle(found)
    for first, last in found:
        scratch = np.full(scratch_bytes + 64, 255, np.uint8)
        place = scratch.ctypes.data + -scratch.ctypes.data % 64 if scratch_bytes else None
        if task(arguments, first, last, place) != 0:
            return -1
    return 0


_random_order = Random(3)
# global, because libraries stay loaded and keep its address
_any_order = threads._ThreadPool(run=ctypes.cast(_run_in_any_order, ctypes.c_void_p).value)


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_bits_are_those_of_code_without_threads(target: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that outlined loops, run in any ranges, are contracted as in one function and share no scratch."""
    monkeypatch.setattr(threads._process, "pool", _any_order)
    module, params = mlfc.import_model(models / "pretrainedResnet.tflite")
    serial, shared = (
        load_factory(mlfc.build(module, f"{target} -mcpu=native", params, module_name=name, parallel=name == "shared"))
        for name in ("serial", "shared")
    )
    inputs = seeded_inputs(serial.inputs, 5)
    for name, expected in serial.run(inputs).items():
        for _ in range(3):
            assert shared.run(inputs)[name].tobytes() == expected.tobytes()


def _open_model() -> Any:
    """Return a model with a dynamic batch: a product and its softmax."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((64, 64), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["z"])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 64))]
    result = [helper.make_tensor_value_info("z", TensorProto.FLOAT, ("batch", 64))]
    graph = helper.make_graph(nodes, "open", given, result, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _open_images() -> Any:
    """Return two image convolutions with all dimensions dynamic, the first one depthwise with strides."""
    rng = np.random.default_rng(0)
    filters = {"d": (48, 1, 5, 5), "w": (24, 48, 3, 3)}
    weights = [numpy_helper.from_array(rng.standard_normal(shape, np.float32), n) for n, shape in filters.items()]
    wide = {"group": 48, "pads": [2] * 4, "strides": [2, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["y"], **wide),
        helper.make_node("Conv", ["y", "w"], ["z"], pads=[1] * 4),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", 48, "h", "w"))]
    result = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "images", given, result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_open_images(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the parallel loops by sizes at run time, without code for choices that cannot occur."""
    monkeypatch.setattr(threads._process, "pool", _any_order)
    serial, shared = (mlfc.compile(_open_images(), target, parallel=chosen) for chosen in (False, True))
    assert shared.factory is not None
    for kernel in map(Unroll(keeps_begins=True), shared.factory.unit.kernels_in_code):
        most = 1.2 if kernel.macs != 0 else 4  # convolutions have no second copy for images of few rows
        assert len(list(walk(parallelize(kernel).body))) < most * len(list(walk(kernel.body))), kernel.name
    rng = np.random.default_rng(1)
    for shape in [(1, 48, 1, 1), (1, 48, 12, 5), (2, 48, 7, 16), (3, 48, 33, 3), (1, 48, 18, 40)]:
        inputs = {"x": rng.standard_normal(shape, np.float32)}
        assert shared.run(inputs)["z"].tobytes() == serial.run(inputs)["z"].tobytes()


@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_libraries_of_the_virtual_machine(target: str, tmp_path: Path) -> None:
    inputs = {"x": np.random.default_rng(1).standard_normal((300, 64), np.float32)}
    expected = mlfc.compile(_open_model(), target).run(inputs)
    shared = mlfc.compile(_open_model(), target, parallel=True)
    shared.export_library(tmp_path / "open.so")
    for model in (shared, mlfc.load(tmp_path / "open.so")):
        _assert_same_bits(model, inputs)
        assert model.run(inputs)["z"].tobytes() == expected["z"].tobytes()


@pytest.mark.parametrize("name", ["kws_ref_model", "ad01_int8", "hello_world_int8"])
def test_small_models_have_the_code_of_one_thread(name: str, models: Path) -> None:
    factory = mlfc.compile(models / f"{name}.tflite").factory
    assert factory.host_code is factory.code


def _large_model() -> Any:
    """Return a model of 20 products, each with enough work for two threads."""
    rng = np.random.default_rng(0)
    nodes, names = [], ["x", *(f"h{layer}" for layer in range(20))]
    weights = [numpy_helper.from_array(rng.standard_normal((128, 128), np.float32) / 11, "w")]
    for before, after in pairwise(names):
        nodes.append(helper.make_node("MatMul", [before, "w"], [after]))
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (512, 128))]
    result = [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, (512, 128))]
    graph = helper.make_graph(nodes, "large", given, result, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize("target", ["c -mcpu=auto", "llvm -mcpu=native"])
def test_larger_models_have_threads_without_being_asked(target: str, tmp_path: Path) -> None:
    model = mlfc.compile(_large_model(), target, module_name="large")
    inputs = {"x": np.random.default_rng(1).standard_normal((512, 128), np.float32)}
    _assert_same_bits(model, inputs)
    expected = mlfc.compile(_large_model(), target, parallel=False).run(inputs)
    assert model.run(inputs)[model.outputs[0].name].tobytes() == next(iter(expected.values())).tobytes()
    library = model.export_library(tmp_path / "large.so")
    before = count_launches()
    mlfc.set_num_threads(2)
    mlfc.load(library).run(inputs)
    assert count_launches() > before


_CALLER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
arrays = [(ctypes.c_float * (512 * 128))() for _ in range(2)]
tensors = [(ctypes.c_void_p * 1)(ctypes.addressof(array)) for array in arrays]
for count in map(int, sys.argv[2:]):
    if count:
        library.mlfc_set_num_threads(count)
    assert library.tvmgen_large_run(*tensors) == 0
pool = (ctypes.c_void_p * 5).in_dll(library, "mlfc_own_pool")
print(ctypes.CFUNCTYPE(ctypes.c_uint64)(pool[4])())
"""


@pytest.mark.usefixtures("quick_build")
def test_programs_in_c_ask_for_threads(tmp_path: Path) -> None:
    unasking, asking = (
        mlfc.compile(_large_model(), "llvm -mcpu=native", module_name="large", parallel=parallel)
        for parallel in (None, True)
    )
    library = unasking.export_library(tmp_path / "large.so")
    unasked = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}

    def launches(path: Path, *counts: int, **variables: str) -> int:
        command = [sys.executable, "-c", _CALLER, str(path), *map(str, counts)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**unasked, **variables})
        return int(done.stdout)

    assert launches(library, 0) == 0
    assert launches(library, 0, 1) == 0
    assert launches(library, 0, 2) == 20
    assert launches(library, 0, TVM_NUM_THREADS="2") == 20
    path = asking.export_library(tmp_path / "asked.so")
    assert launches(path, 0, OMP_NUM_THREADS="2") == 20
    assert launches(path, 1, 2) == 20


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
def test_libraries_for_levels_of_processors(tmp_path: Path, models: Path) -> None:
    shared = mlfc.compile(models / "kws_ref_model.tflite", "c -mcpu=auto", parallel=True)
    shared.export_library(tmp_path / "kws.so")
    loaded = mlfc.load(tmp_path / "kws.so")
    _assert_same_bits(loaded, seeded_inputs(loaded.inputs, 5))


def _kernels() -> Iterator[tuple[Any, list[Any]]]:
    """Yield kernels of pools, of depthwise and other convolutions, and of an attention."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    nodes += [helper.make_node("Conv", ["y", "d"], ["z"], pads=[1, 1, 1, 1], group=70)]
    nodes += [helper.make_node("Conv", ["y", "d"], ["u"], pads=[1, 1, 1, 1], strides=[2, 2], group=70)]
    nodes += [
        helper.make_node("Reshape", ["z", "s"], ["r"]),
        helper.make_node("Split", ["r"], ["q", "k"], num_outputs=2),
    ]
    nodes += [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["m"]),
    ]
    nodes += [helper.make_node("Softmax", ["m"], ["f"], axis=-1), helper.make_node("MatMul", ["f", "k"], ["o"])]
    rng = np.random.default_rng(2)
    weights = {
        "w": rng.standard_normal((70, 3, 3, 3), np.float32),
        "d": rng.standard_normal((70, 1, 3, 3), np.float32),
        "s": np.array([2, 7, 16, 20]),
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))]
    result = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("o", "u")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", given, result, tensors), opset_imports=[helper.make_opsetid("", 18)]
    )
    for module, params in (mlfc.import_model(model), (module_of(operator_cases.pool_cases())[0], {})):
        for call in mlfc.build(module, "llvm", params, dry_run=True).program.calls:
            yield call.kernel, [value.array for value in call.constants]


def _random(rng: np.random.Generator, buffer: Any) -> Any:
    if buffer.dtype.startswith("float"):
        return rng.standard_normal(buffer.shape).astype(buffer.dtype)
    return rng.integers(-100, 100, buffer.shape).astype(buffer.dtype)


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
def test_two_models_at_once_and_in_a_child(models: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    first, second = (
        load_factory(mlfc.build(module, "llvm", params, module_name=name, parallel=True)) for name in ("one", "two")
    )
    inputs = seeded_inputs(first.inputs, 5)
    mlfc.set_num_threads(1)
    expected = first.run(inputs)
    wrong: list[str] = []

    def run(model: Any) -> None:
        for count in (2, 3, 1, 4) * 5:
            mlfc.set_num_threads(count)
            found = model.run(inputs)
            wrong.extend(name for name in expected if found[name].tobytes() != expected[name].tobytes())

    workers = [threading.Thread(target=run, args=(model,)) for model in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    child = os.fork()
    if child == 0:
        run(first)
        os._exit(1 if wrong else 0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", [-1, 1025, 1.5, True])
def test_numbers_of_threads_that_there_are_not(count: Any) -> None:
    with pytest.raises(OptionError, match="number of threads"):
        mlfc.set_num_threads(count)


@pytest.mark.usefixtures("_any_work_is_shared", "quick_build")
def test_the_command_line_asks_for_threads(tmp_path: Path, models: Path, command: Any) -> None:
    library, before = tmp_path / "kws.so", count_launches()
    command("compile", models / "kws_ref_model.tflite", "--parallel", "-o", library)
    command("run", library, "--fill", "random", "--threads", 2)
    assert count_launches() > before
    command("compile", models / "kws_ref_model.tflite", "--parallel", "--emit", "c", "-o", tmp_path / "kws")
    assert (tmp_path / "kws" / "src" / "mlfc_parallel_for.c").is_file()
    command("compile", models / "kws_ref_model.tflite", "--no-parallel", "-o", tmp_path / "single.so")
    with pytest.raises(OptionError, match="among threads with --optimize size"):
        command("compile", models / "kws_ref_model.tflite", "--parallel", "--optimize", "size", "-o", library)


def test_pool_has_no_race(tmp_path: Path) -> None:
    program = tmp_path / "pool"
    sources = [str(POOL / "pool.c"), str(POOL / "cores.c"), str(Path(__file__).with_name("pool_test.c"))]
    flags = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread", "-pthread", f"-I{POOL}"]
    subprocess.run(["gcc", *flags, *sources, "-o", str(program)], check=True)
    unasked = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, env=unasked)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_pool_compiles_for_windows(tmp_path: Path) -> None:
    for name in ("pool.c", "cores.c"):
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            "x86_64-windows-gnu",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]
        subprocess.run([*command, "-c", str(POOL / name), "-o", str(tmp_path / f"{name}.o")], check=True)
