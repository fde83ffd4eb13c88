"""Modules for target llvm have the same results, functions and messages as those in C, without a C compiler."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.profile import load_profiled, profiled_factory
from mlfc.archive.read.load import load_factory
from mlfc.archive.validate.validate import validate
from mlfc.archive.write.options import ExportOptions
from mlfc.archive.write.rebuild import recorded_options
from mlfc.errors import OptionError, RunError, ToolchainError
from mlfc.factory import Factory, library_root, link
from mlfc.library.export import export_library
from mlfc.library.host import HostLibrary
from mlfc.library.toolchain import _find, compile_objects, find_compiler
from mlfc.memory import ConstantPool, Pool
from mlfc.relay import ir
from mlfc.runtime import AotModule
from mlfc.runtime.modules.module import Module
from mlfc.support.content import sha256_of, to_bytes
from tests.conftest import need
from tests.harness import module_of, seeded_inputs
from tests.native import counting_clocks
from tests.native.counting_clocks import passed
from tests.native.extracted import extracted, make
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("quick_builds")

EXECUTORS = ("aot", "graph")
TWO = [Pool("fast", 500), Pool("slow")]
HOT = ConstantPool("tcm", 2048)
CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "external": {"external_workspace": True},
    "io": {"workspace_io": True},
    "io-external": {"workspace_io": True, "external_workspace": True},
    "pools": {"pools": TWO},
    "pools-io": {"pools": TWO, "workspace_io": True},
    "constants": {"constants": [HOT, ConstantPool("flash")]},
    "loaded": {"constants": [HOT, ConstantPool("xip", external=True)]},
    "size": {"optimize": "size"},
    "stripes": {"ram": 1300},
    "all": {
        "pools": TWO,
        "workspace_io": True,
        "external_workspace": True,
        "constants": [HOT, ConstantPool("xip", 4000, external=True), ConstantPool("sd", external=True)],
    },
}


@pytest.fixture(scope="module")
def digits() -> Path:
    """Return a small convolutional model, for tests that do not depend on its size."""
    return Path(__file__).parents[2] / "examples" / "digits" / "digits_int8.tflite"


@pytest.fixture(scope="module")
def sine(models: Path) -> Path:
    """Return the smallest model, for tests that do not depend on its operators."""
    return models / "hello_world_int8.tflite"


OUTPUT = "StatefulPartitionedCall:0"  # of the smallest model


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every C compiler."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    _find.cache_clear()


def built(path: Path, target: str = "llvm", **options: Any) -> Factory:
    module, params = mlfc.import_model(path)
    return mlfc.build(module, target, params, module_name="model", **options)


@pytest.fixture(scope="module")
def plain_in_c(digits: Path) -> AotModule:
    """Return the C of the model with default options; other tests check C with each option."""
    return built(digits, "c").runtime


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_memory_lies_where_it_is_asked_to_and_results_stay(
    digits: Path, plain_in_c: AotModule, choice: dict[str, Any]
) -> None:
    ours = load_factory(built(digits, **choice))
    for seed in range(3):  # the second run sees the memory that the first one wrote
        inputs = seeded_inputs(ours.inputs, seed)
        expected = plain_in_c.run(inputs)
        for name, output in ours.run(inputs).items():
            np.testing.assert_array_equal(output, expected[name])


@pytest.mark.parametrize(("name", "executor"), [("hello_world_int8", "graph"), ("kws_ref_model_float32", "aot")])
def test_models_give_the_bits_of_the_c(models: Path, name: str, executor: str) -> None:
    same_bits(models / f"{name}.tflite", "", executor=executor)


@pytest.mark.parametrize("name", ["kws_ref_model", "pretrainedResnet"])
def test_models_give_the_bits_of_the_c_for_this_processor(models: Path, name: str) -> None:
    same_bits(models / f"{name}.tflite", " -mcpu=native")


def same_bits(path: Path, options: str, **choice: Any) -> None:
    """Compare the results of a model's LLVM and C code."""
    ours, theirs = (built(path, f"{kind}{options}", **choice).runtime for kind in ("llvm", "c"))
    for seed in range(3):
        inputs = seeded_inputs(ours.inputs, seed)
        expected = theirs.run(inputs)
        for tensor, output in ours.run(inputs).items():
            np.testing.assert_array_equal(output.view(np.uint8), expected[tensor].view(np.uint8))


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_everything_runs_without_a_compiler(sine: Path, executor: str) -> None:
    factory = built(sine, executor=executor)
    inputs = seeded_inputs(factory.runtime.inputs, 0)
    expected = factory.runtime.run(inputs)[OUTPUT]
    assert expected.any()
    assert factory.lib.type_key == factory.imported_modules[0].type_key == "llvm"
    bound = factory.runtime.bind(inputs)
    assert bound() == 0
    np.testing.assert_array_equal(bound.outputs[OUTPUT], expected)
    made = factory["default"](mlfc.cpu(0))
    made.set_input(0, next(iter(inputs.values())))
    made.run()
    np.testing.assert_array_equal(made.get_output(0), expected)
    with pytest.raises(ToolchainError, match="no C compiler found"):
        built(sine, "c").runtime.run(inputs)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_archives_of_objects_run_without_a_compiler(sine: Path, tmp_path: Path, executor: str) -> None:
    factory = built(sine, executor=executor)
    path = mlfc.export_model_library_format(factory, tmp_path / "sine.tar")
    inputs = seeded_inputs(factory.runtime.inputs, 1)
    np.testing.assert_array_equal(mlfc.load(path).run(inputs)[OUTPUT], factory.runtime.run(inputs)[OUTPUT])


def called(function: Any, *arguments: Any) -> str:
    """Return the error message of a packed function for invalid arguments."""
    with pytest.raises(RunError) as caught:
        function(*arguments)
    return str(caught.value)


def shifted(array: np.ndarray) -> np.ndarray:
    """Return a copy that is misaligned by one byte."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    copy = memory[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_packed_functions_refuse_what_the_c_refuses_in_the_same_words(digits: Path) -> None:
    ours, theirs = (built(digits, target, executor="graph") for target in ("llvm", "c"))
    graph = json.loads(ours.graph_json)
    node = next(item for item in graph["nodes"] if item["op"] == "tvm_op")
    entries = [graph["node_row_ptr"][source[0]] + source[1] for source in node["inputs"]]
    entries.append(graph["node_row_ptr"][graph["nodes"].index(node)])
    shapes, dtypes = graph["attrs"]["shape"][1], graph["attrs"]["dltype"][1]
    good = [np.ones(shapes[entry], dtypes[entry]) for entry in entries]
    name = node["attrs"]["func_name"]
    wrong: list[list[Any]] = [
        [],
        good[:-1],
        [3, *good[1:]],
        [None, *good[1:]],
        [*good[:-1], good[-1].astype(np.float64)],
        [*good[:-1], good[-1].astype(np.uint8)],
        [good[0], good[1].reshape(-1)[1:], *good[2:]],
        [np.repeat(good[0], 2, axis=1)[:, ::2], *good[1:]],
        [shifted(item) for item in good],
    ]
    for arguments in wrong:
        said = called(ours.lib[name], *arguments)
        assert said == called(theirs.lib[name], *arguments)
        assert name in said
    ours.lib[name](*good)
    result = good[-1].copy()
    theirs.lib[name](*good)
    np.testing.assert_array_equal(result, good[-1])


def symbols(files: Any, folder: Path) -> dict[str, set[str]]:
    """Return the external symbols of a module's code by nm's symbol type; C is compiled first."""
    found: dict[str, set[str]] = {}
    for path in compile_objects(files, folder):
        listed = subprocess.run(
            [need("nm", "binutils"), "--extern-only", "--defined-only", path],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        for line in listed.stdout.splitlines():
            _, kind, symbol = line.split()
            found.setdefault(kind, set()).add(symbol)
    return found


@pytest.mark.parametrize("executor", EXECUTORS)
def test_objects_define_what_the_c_does(sine: Path, tmp_path: Path, executor: str) -> None:
    ours, theirs = (built(sine, target, executor=executor).code for target in ("llvm", "c"))
    assert symbols(ours.files, tmp_path / "llvm") == symbols(
        {**theirs.files, **_runtime_headers(executor)}, tmp_path / "c"
    )
    for path in ours.files:
        assert not path.startswith("include/") or ours.files[path] == theirs.files[path]


def _runtime_headers(executor: str) -> dict[str, Any]:
    from mlfc.library.build import runtime_files

    return {name: data for name, data in runtime_files().items() if name.endswith(".h")} if executor == "graph" else {}


def sections(path: Path) -> str:
    return subprocess.run([need("readelf", "binutils"), "-SW", path], capture_output=True, text=True, check=True).stdout


def test_memories_have_sections_of_their_own(digits: Path, tmp_path: Path) -> None:
    choice: dict[str, Any] = {"pools": TWO, "constants": [HOT, ConstantPool("flash")]}
    factory = built(digits, "llvm -mcpu=cortex-m4", **choice)
    (tmp_path / "entry.o").write_bytes(to_bytes(factory.code.files["lib/model_lib0.o"]))
    (tmp_path / "operators.o").write_bytes(to_bytes(factory.code.files["lib/model_lib1.o"]))
    entry, operators = sections(tmp_path / "entry.o"), sections(tmp_path / "operators.o")
    for name in ("fast", "slow"):
        line = next(line for line in entry.splitlines() if f".bss.noinit.tvm.{name}" in line)
        assert "NOBITS" in line
        assert line.split()[-1] == "64"
    for name in ("tcm", "flash"):
        line = next(line for line in operators.splitlines() if f".rodata.tvm.{name}" in line)
        assert "PROGBITS" in line
        assert line.split()[-1] == "64"


def large_network() -> ir.IRModule:
    """Return two dense layers with two megabytes of weights."""
    rng = np.random.default_rng(0)
    weights = [ir.Constant(rng.standard_normal(shape).astype(np.float32)) for shape in ((1024, 256), (256, 1024))]

    def body(v: Any) -> Any:
        hidden = ir.call("nn.relu", [ir.call("nn.dense", [v["x"], weights[0]], units=1024)])
        return ir.call("nn.dense", [hidden, weights[1]], units=256)

    return module_of({"x": np.zeros((1, 256), np.float32)}, {"y": body})


def test_large_constants_lie_in_an_object_of_their_own(tmp_path: Path) -> None:
    ours, theirs = (mlfc.build(large_network(), target, module_name="large") for target in ("llvm", "c"))
    inputs = seeded_inputs(ours.runtime.inputs, 0)
    expected = theirs.runtime.run(inputs)["y"]
    assert "lib/large_lib2.o" in ours.code.files
    path = mlfc.export_model_library_format(ours, tmp_path / "large.tar")
    native = mlfc.build(large_network(), "llvm -mcpu=native", module_name="large")
    linked = AotModule(compile_shared(native.code.files, tmp_path / "large.so"), native.interface())
    for model in (ours.runtime, native.runtime, linked):
        np.testing.assert_array_equal(model.run(inputs)["y"].view(np.uint8), expected.view(np.uint8))
    np.testing.assert_allclose(mlfc.load(path).run(inputs)["y"], expected, rtol=1e-4)


def test_operators_are_timed_without_a_compiler(
    sine: Path, tmp_path: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting_clocks.install(monkeypatch)
    factory = built(sine)
    path = mlfc.export_model_library_format(factory, tmp_path / "sine.tar")
    for model in (profiled_factory(factory), load_profiled(path)):
        inputs = seeded_inputs(model.inputs, 0)
        profile = model.profile(inputs, repeat=2)
        assert len(profile.operators) == len(factory.program.calls)
        number = len(profile.operators)
        times = [[passed(run * number + i) for i in range(number)] for run in (1, 2)]
        assert [operator.nanoseconds for operator in profile.operators] == np.median(times, axis=0).tolist()
        output = model.operator_outputs(inputs)[-1]
        np.testing.assert_array_equal(np.frombuffer(output, np.int8), profile.outputs[OUTPUT].reshape(-1))


PRINT_HASHES = """
import sys
from tests.native.test_llvm_modules import hashes
print(*hashes(sys.argv[1]), sep="\\n")
"""


def hashes(path: str) -> list[dict[str, str]]:
    """Return the hashes of a model's objects for several targets."""
    module, params = mlfc.import_model(path)
    targets = ("llvm", "llvm -mcpu=cortex-m4", "llvm -mtriple=wasm32-unknown-unknown")
    codes = [mlfc.build(module, target, params, module_name="model").code for target in targets]
    return [{name: sha256_of(data) for name, data in sorted(code.files.items())} for code in codes]


def test_objects_are_the_same_in_every_process(sine: Path) -> None:
    command = [sys.executable, "-c", PRINT_HASHES, str(sine)]
    made = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        made.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert made[0] == made[1]
    assert len(set(made[0].splitlines())) == 3


def test_source_is_llvms_and_the_processors(digits: Path) -> None:
    lib = built(digits, "llvm -mcpu=cortex-m4").lib
    assert 'define signext i32 @"tvmgen_model_run"' in lib.get_source()
    assert 'target triple = "thumbv7em-none-eabi"' in lib.get_source("ll")
    assert "smlad" in lib.get_source("asm")
    with pytest.raises(OptionError, match="unknown source 'bc'"):
        lib.get_source("bc")


def test_kernels_are_there_once(digits: Path) -> None:
    factory = built(digits, "llvm -mcpu=cortex-m55")
    called = re.findall(r"\bbl\s+tvmgen_model_(fused\w+)", factory.lib.get_source("asm"))
    assert len(called) == len(factory.program.calls)


def test_archives_hold_together(sine: Path, tmp_path: Path) -> None:
    for target in ("llvm", "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4"):
        path = mlfc.export_model_library_format(built(sine, target), tmp_path / "sine.tar")
        assert [str(fault) for fault in validate(path)] == []
        again = mlfc.export_model_library_format(
            mlfc.rebuild(path), tmp_path / "again.tar", options=recorded_options(path)
        )
        assert again.read_bytes() == path.read_bytes()
    with pytest.raises(ToolchainError, match="cannot be linked: it is for Arm"):
        mlfc.load(path)


def test_demos_link_the_objects(sine: Path, tmp_path: Path) -> None:
    folder = extracted(built(sine), tmp_path, test_vectors=2)
    assert "PASS 2 of 2" in make(folder, "selftest")
    build = ["cmake", "-S", ".", "-B", "with-cmake", "-DCMAKE_C_FLAGS_RELEASE=-O0"]
    for command in (build, ["cmake", "--build", "with-cmake"]):
        need("cmake", "cmake")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    demo = subprocess.run([folder / "with-cmake" / "model_demo"], capture_output=True, text=True, check=True)
    assert "PASS 2 of 2" in demo.stdout


def test_libraries_for_this_machine_use_its_processor(sine: Path, tmp_path: Path) -> None:
    factory = built(sine)
    general = "-mcpu=baseline" if find_compiler().is_zig else "-mtune=generic"
    root = library_root([factory, mlfc.build(two_layers(1), "llvm", module_name="other")])
    for module, name in ((factory.runtime, "one.tar"), (root, "two.tar")):
        code = code_of(module)
        own, here = (to_bytes(files["lib/model_lib1.o"]) for files in (code.files, code.files_here()))
        assert own != here
        for options, expected in (((), here), ((general,), own)):
            path = export_library(module, tmp_path / name, options=options)
            with tarfile.open(path) as tar:
                # the main function is renamed to a name of the same length
                assert any(info.size == len(expected) for info in tar)


def code_of(root: Module) -> HostLibrary:
    return next(module for module in root.walk() if isinstance(module, HostLibrary))


def two_layers(second: int) -> ir.IRModule:
    """Return two dense layers; the first has the same weights in every model."""
    first = ir.Constant(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    weight = ir.Constant(np.random.default_rng(second).standard_normal((10, 16)).astype(np.float32))

    def body(v: Any) -> Any:
        hidden = ir.call("nn.relu", [ir.call("nn.dense", [v["x"], first], units=16)])
        return ir.call("nn.dense", [hidden, weight], units=10)

    return module_of({"x": np.zeros((1, 8), np.float32)}, {"y": body})


@pytest.mark.parametrize("executors", [("aot", "aot"), ("graph", "graph"), ("aot", "graph")], ids="-".join)
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_modules_share_code_weights_and_workspace(executors: tuple[str, str], target: str, tmp_path: Path) -> None:
    # shared code is C if one of the modules is C
    factories = [
        mlfc.build(two_layers(number), kind, module_name=name, executor=executor)
        for number, (name, kind, executor) in enumerate(
            zip(("one", "two"), ("llvm", target), executors, strict=True), start=1
        )
    ]
    linked = link(factories, share_workspace=True, share_weights=True)
    shared = [path for path in linked.files if "mlfc_shared" in path]
    assert all(path.endswith(".o" if target == "llvm" else (".c", ".S", ".bin")) for path in shared)
    if executors == ("aot", "aot"):
        assert linked.workspace_modules == ("one", "two")
        assert linked.constants_bytes == 4 * 16 * 8
    assert bool(linked.functions) == (target == "llvm")
    options = ExportOptions(share_workspace=True, share_weights=True)
    path = mlfc.export_model_library_format(factories, tmp_path / "both.tar", options=options)
    assert [str(fault) for fault in validate(path)] == []
    x = {"x": np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)}
    for factory in factories:
        alone = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / "alone.tar")).run(x)["y"]
        np.testing.assert_allclose(mlfc.load(path, factory.module_name).run(x)["y"], alone, rtol=1e-5)
