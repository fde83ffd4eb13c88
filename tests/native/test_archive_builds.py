"""A firmware engineer's use of an archive: extract it, run make, run the demo."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.codegen.constants import BLOB_THRESHOLD
from mlfc.errors import ToolchainError
from mlfc.relay import ir
from mlfc.support.params import load_params
from tests.conftest import need
from tests.native.extracted import WARNINGS, extracted, imported, make, sum_factory

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
QUICK = "-DCMAKE_C_FLAGS_RELEASE=-O0"
# no optimization for sanitizers, which check the executed code; other tests build the same files with -O1 warnings
SANITIZED = WARNINGS.replace("-O1", "-O0")

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
VERDICT = "PASS 1 of 1, largest difference 0\n"
CORTEX_M4 = ("CC=arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb", "AR=arm-none-eabi-ar", f"CFLAGS={WARNINGS}")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    factory = imported(DIGITS / "digits_int8.tflite", "digits")
    return extracted(factory, tmp_path_factory.mktemp("digits"), test_vectors=2)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "tcc", "gcc -m32", "gcc -fsanitize=address,undefined"])
def test_make_test_passes_without_warnings(digits: Path, compiler: str) -> None:
    program = compiler.split(maxsplit=1)[0]
    need(program, program)
    make(digits, "clean")
    flags = SANITIZED if "sanitize" in compiler else WARNINGS
    printed = make(digits, "test", f"CC={compiler}", f"CFLAGS={flags}")
    assert printed.count("PASS digits, vector") == 2
    assert printed.endswith("PASS 2 of 2, largest difference 0\n")


def test_make_alone_gives_the_library_and_the_demo(digits: Path) -> None:
    make(digits, "clean")
    assert not (digits / "libdigits.a").exists()
    make(digits, "CFLAGS=-O0")
    assert (digits / "libdigits.a").is_file()
    again = make(digits, "CFLAGS=-O0")
    assert "-c" not in again.split(), "what is built is not built again"
    assert subprocess.run([digits / "demo" / "demo"], cwd=digits, check=False).returncode == 0


def test_what_is_extracted_over_another_archive_is_built(tmp_path: Path) -> None:
    x = ir.Var("x", ir.TensorType((2,), "float32"))
    printed = []
    for operator in ("exp", "sigmoid"):
        module = ir.IRModule({"main": ir.Function((x,), ir.call(operator, [x]))}, ("y",), {}, {"format": "test"})
        folder = extracted(mlfc.build(module, module_name="same"), tmp_path)
        printed.append(make(folder, "test"))
    assert "same, zeros, y: 1 1 checksum" in printed[0]
    assert "same, zeros, y: 0.5 0.5 checksum" in printed[1]


def test_the_vectors_are_what_litert_computes(digits: Path) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(DIGITS / "digits_int8.tflite"))
    interpreter.allocate_tensors()
    text = (digits / "demo" / "digits_vectors.c").read_text()
    arrays = [
        np.array([int(number) for number in body.split(",") if number.strip()], np.int8)
        for body in re.findall(r"\.\w+ = \{(.*?)\}", text, re.DOTALL)
    ]
    for vector, expected in zip(arrays[0::2], arrays[1::2], strict=True):
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], vector.reshape(1, 8, 8, 1))
        interpreter.invoke()
        output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_array_equal(output.reshape(-1), expected)


def test_the_demo_fails_where_one_output_differs(models: Path, tmp_path: Path) -> None:
    folder = extracted(imported(models / "hello_world_int8.tflite", "hello"), tmp_path, test_vectors=1)
    vectors = folder / "demo" / "hello_vectors.c"
    head, last, tail = re.split(r"(-?\d+)(?=,\n    \},\n  \},\n\};)", vectors.read_text())
    vectors.write_text(f"{head}{int(last) ^ 1}{tail}")
    printed = make(folder, "test", fails=True)
    assert "FAIL hello, vector 0" in printed
    assert "largest difference 1" in printed


def test_firmware_for_cortex_m_links_the_library(digits: Path) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    make(digits, "clean")
    make(digits, "library", *CORTEX_M4)
    symbols = subprocess.run(
        ["arm-none-eabi-nm", digits / "libdigits.a"], capture_output=True, text=True, check=True
    ).stdout
    make(digits, "clean")
    assert "T tvmgen_digits_run" in symbols


@pytest.mark.parametrize("vectors", [0, 1])
def test_cmake_builds_and_tests_it(models: Path, tmp_path: Path, vectors: int) -> None:
    cmake = need("cmake", "cmake")
    folder = extracted(imported(models / "hello_world_int8.tflite", "test"), tmp_path, test_vectors=vectors)
    build = tmp_path / "build"
    subprocess.run([cmake, "-S", folder, "-B", build, QUICK], check=True, capture_output=True)
    subprocess.run([cmake, "--build", build], check=True, capture_output=True)
    result = subprocess.run(["ctest", "--output-on-failure"], cwd=build, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "100% tests passed" in result.stdout


def test_a_project_of_cmake_takes_archives_as_folders(models: Path, tmp_path: Path) -> None:
    cmake = need("cmake", "cmake")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        extracted(imported(models / "hello_world_int8.tflite", name), tmp_path / name)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(firmware C)\n"
        "add_subdirectory(one/extracted)\nadd_subdirectory(two/extracted)\n"
        "add_executable(firmware main.c)\ntarget_link_libraries(firmware PRIVATE one two)\n"
    )
    (tmp_path / "main.c").write_text(
        '#include "tvmgen_one.h"\n#include "tvmgen_two.h"\n'
        "int main(void) { return tvmgen_one_run(0, 0) == -1 && tvmgen_two_run(0, 0) == -1 ? 0 : 1; }\n"
    )
    subprocess.run([cmake, "-S", tmp_path, "-B", tmp_path / "build", QUICK], check=True, capture_output=True)
    subprocess.run([cmake, "--build", tmp_path / "build"], check=True, capture_output=True)
    assert subprocess.run([tmp_path / "build" / "firmware"], check=False).returncode == 0
    assert not list((tmp_path / "build").rglob("*_demo")), "demos are for archives that are built alone"


ODD_NAMES = {
    "a b": ((2, 3), "float32"),
    "ünï/code*/??/": ((), "float32"),
    "int": ((3,), "float32"),
    "x" * 300: ((1,), "float32"),
}


ODD_MODULES = ("Model 7 ü", "int", "demo", "M" * 150)
OUTPUT = 'out "quoted" \\ %s'


def test_odd_names_compile_and_compute(tmp_path: Path) -> None:
    factories = [sum_factory(name, ODD_NAMES, OUTPUT) for name in ODD_MODULES]
    factories += [sum_factory(f"{name} graph", ODD_NAMES, OUTPUT, executor="graph") for name in ODD_MODULES]
    printed = make(extracted(factories, tmp_path, test_vectors=1), "test", f"CFLAGS={WARNINGS}")
    assert printed.endswith(f"PASS {len(factories)} of {len(factories)}, largest difference 0\n")


@pytest.mark.parametrize("name", ["demo", "all", "M" * 150])
def test_libraries_of_odd_names(name: str, tmp_path: Path) -> None:
    folder = extracted(sum_factory(name, ODD_NAMES, OUTPUT), tmp_path, test_vectors=1)
    assert make(folder, "selftest").endswith(VERDICT)
    make(folder, "clean")
    cmake = need("cmake", "cmake")
    subprocess.run([cmake, "-S", folder, "-B", tmp_path / "build", QUICK], check=True, capture_output=True)


DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16")


def test_every_dtype_is_compared(tmp_path: Path) -> None:
    factories = [sum_factory(f"{dtype}_aot", {"x": ((5,), dtype)}, "y") for dtype in DTYPES]
    factories.append(sum_factory("bfloat16_graph", {"x": ((5,), "bfloat16")}, "y", executor="graph"))
    folder = extracted(factories, tmp_path, test_vectors=2)
    printed = make(folder, "test", f"CFLAGS={WARNINGS}")
    for factory in factories:
        assert printed.count(f"PASS {factory.module_name}, vector") == 2
    vectors = folder / "demo" / "float16_aot_vectors.c"
    vectors.write_text(re.sub(r"(\.y = \{\s*)\d+", r"\g<1>15360", vectors.read_text()))  # the bits of 1.0
    printed = make(folder, "selftest", f"CFLAGS={WARNINGS}", fails=True)
    assert re.search(r"FAIL float16_aot, vector 0: largest difference \S+, \S+ allowed, in element 0 of y\n", printed)
    assert "FAIL 2 of 20, largest difference " in printed


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_models_without_extents(executor: str, tmp_path: Path) -> None:
    factories = [
        sum_factory("none", {}, "y", executor=executor),
        sum_factory("scalar", {"x": ((), "float32")}, "y", executor=executor),
    ]
    printed = make(extracted(factories, tmp_path), "test", f"CFLAGS={WARNINGS}")
    assert "none, zeros, y: 1 checksum" in printed
    assert "scalar, zeros, y: 1 checksum" in printed


def test_without_vectors_the_demo_prints_what_zeros_give(tmp_path: Path) -> None:
    printed = make(extracted(sum_factory("sums", {"x": ((2,), "float32")}, "y"), tmp_path), "test")
    # FNV-1a of the bytes 00 00 80 3f 00 00 80 3f
    checksum = 2166136261
    for byte in np.ones(2, "<f4").tobytes():
        checksum = (checksum ^ byte) * 16777619 % 2**32
    assert f"sums, zeros, y: 1 1 checksum {checksum:08x}" in printed
    assert printed.rstrip().endswith("done")


def test_large_constants_and_a_workspace_of_the_caller(tmp_path: Path) -> None:
    shape = (520, BLOB_THRESHOLD // 4 // 512)
    x = ir.Var("x", ir.TensorType((1, shape[1]), "float32"))
    weights = ir.Var("w", ir.TensorType(shape, "float32"))
    largest = ir.call("max", [ir.call("add", [x, weights])], axis=1)
    body = ir.call("cumsum", [largest], axis=0)
    module = ir.IRModule({"main": ir.Function((x, weights), body)}, ("y",), {}, {"format": "test"})
    params = {"w": np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 3}
    factory = mlfc.build(module, params=params, module_name="large", external_workspace=True)
    folder = extracted(factory, tmp_path, test_vectors=1)
    assert (folder / "codegen/host/src/large_lib2.S.bin").is_file()
    assert factory.code.external_workspace
    assert factory.plan.size
    sanitized = ("CC=gcc -fsanitize=address,undefined", f"CFLAGS={SANITIZED}")
    assert make(folder, "test", *sanitized).endswith(VERDICT)


def test_a_compiler_that_does_not_run_stops_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    factory = sum_factory("sums", {"x": ((2,), "float32")}, "y")
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        mlfc.export_model_library_format(factory, tmp_path / "a.tar", test_vectors=1)
    assert list(tmp_path.iterdir()) == []


def test_several_modules_of_both_executors_in_one_demo(models: Path, tmp_path: Path) -> None:
    model = models / "hello_world_int8.tflite"
    factories = [
        imported(model, "first"),
        imported(model, "second"),
        imported(model, "third", executor="graph"),
        imported(DIGITS / "digits_int8.tflite", "fourth", executor="graph"),
        imported(model, "fifth", external_workspace=True),
    ]
    folder = extracted(factories, tmp_path, test_vectors=2, share_workspace=True, share_weights=True)
    printed = make(folder, "test", f"CFLAGS={WARNINGS}")
    assert printed.count("PASS ") == 10 + 1
    for name in ("first", "second", "third", "fourth", "fifth"):
        assert f"PASS {name}, vector 1" in printed
    elsewhere = subprocess.run([folder / "demo" / "demo", folder], cwd=tmp_path, check=False)
    assert elsewhere.returncode == 0


@pytest.fixture(scope="module")
def graph(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    factory = imported(models / "hello_world_int8.tflite", "hello", executor="graph")
    return extracted(factory, tmp_path_factory.mktemp("graph"), test_vectors=2)


@pytest.mark.parametrize("compiler", ["gcc -m32", "clang -fsanitize=address,undefined", "tcc"])
def test_graphs_run_clean(graph: Path, compiler: str) -> None:
    program = compiler.split(maxsplit=1)[0]
    need(program, program)
    make(graph, "clean")
    flags = SANITIZED if "sanitize" in compiler else WARNINGS
    assert make(graph, "test", f"CC={compiler}", f"CFLAGS={flags}").count("PASS hello, vector") == 2


def test_graphs_build_for_cortex_m_and_with_cmake(graph: Path, tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    make(graph, "clean")
    make(graph, "library", *CORTEX_M4)
    make(graph, "clean")
    cmake = need("cmake", "cmake")
    subprocess.run([cmake, "-S", graph, "-B", tmp_path, QUICK], check=True, capture_output=True)
    subprocess.run([cmake, "--build", tmp_path], check=True, capture_output=True)
    assert subprocess.run(["ctest"], cwd=tmp_path, check=False, capture_output=True).returncode == 0


def test_graphs_take_little_memory_of_a_board_that_is_configured_as_the_readme_says(graph: Path) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    assert "CRT_CONFIG=board" in (graph / "README.md").read_text()
    (graph / "board").mkdir()
    (graph / "board" / "crt_config.h").write_text((graph / "templates" / "crt_config.h.template").read_text())
    taken = []
    for config in ("runtime/host", "board"):
        make(graph, "clean")
        make(graph, "library", *CORTEX_M4, f"CRT_CONFIG={config}")
        command = ["arm-none-eabi-size", "-t", next(graph.glob("lib*.a"))]
        totals = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        taken.append(int(totals.split()[2]))
    assert taken[0] > 66 * 1024
    assert taken[1] < 2048


def test_parameters_are_aligned_where_the_readme_says(models: Path, tmp_path: Path) -> None:
    folder = extracted(imported(models / "kws_ref_model.tflite", "kws", executor="graph"), tmp_path)
    found = re.search(r"starts (\d) bytes behind a multiple of 8", (folder / "README.md").read_text())
    assert found is not None
    data = (folder / "parameters" / "kws.params").read_bytes()
    in_place = {}
    for start in range(8):
        memory = np.zeros((len(data) + 15) // 8, np.int64)
        file = memory.view(np.uint8)[start : start + len(data)]
        file[:] = np.frombuffer(data, np.uint8)
        arrays = load_params(memoryview(file))
        in_place[start] = sum(np.shares_memory(array, memory) for array in arrays.values())
    assert in_place[int(found[1])] == len(arrays)
    assert min(in_place.values()) < len(arrays)


def test_a_graph_that_is_not_there_is_named(graph: Path, tmp_path: Path) -> None:
    make(graph, "clean")  # another test may have built it for another machine
    make(graph, "CC=gcc", f"CFLAGS={WARNINGS}")
    result = subprocess.run([graph / "demo" / "demo"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "./executor-config/graph/hello.graph: cannot be read" in result.stderr


@pytest.mark.parametrize("compiler", ["gcc -O3 -m32", "clang -O3 -march=native -ffast-math"])
def test_floats_agree_within_the_tolerance_that_the_demo_states(tmp_path: Path, compiler: str) -> None:
    folder = extracted(imported(DIGITS / "digits.onnx", "digits"), tmp_path, test_vectors=1)
    printed = make(folder, "test", f"CC={compiler}")
    (difference, allowed), *_ = re.findall(r"largest difference (\S+), (\S+) allowed", printed)
    assert 0 <= float(difference) <= float(allowed) < 1e-3


@pytest.mark.parametrize("executor", ["aot", "graph"])
@pytest.mark.parametrize(
    "options", [{"format_version": 5}, {"format_version": 6}, {"rfc": True}], ids=["5", "6", "rfc"]
)
def test_older_forms_build_too(models: Path, tmp_path: Path, options: dict[str, Any], executor: str) -> None:
    factory = imported(models / "hello_world_int8.tflite", "hello", executor=executor)
    folder = extracted(factory, tmp_path, test_vectors=1, **options)
    assert make(folder, "test", f"CFLAGS={WARNINGS}").endswith(VERDICT)
