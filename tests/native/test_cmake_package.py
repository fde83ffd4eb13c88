"""``find_package(mlfc)`` and ``mlfc_add_model``: CMake projects that compile models in their builds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from tests.conftest import need

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(firmware C)
find_package(mlfc {version} REQUIRED)
mlfc_add_model(digits MODEL model.tflite {arguments})
add_library(user STATIC main.c)
target_link_libraries(user PRIVATE digits)
if(NOT CMAKE_CROSSCOMPILING)
  add_executable(main main.c)
  target_link_libraries(main PRIVATE digits)
endif()
"""
MAIN = """#include <stdio.h>
#include "tvmgen_digits.h"
int main(void) {
  static int8_t image[TVMGEN_DIGITS_IMAGE_SIZE], scores[TVMGEN_DIGITS_PROBABILITIES_SIZE];
  struct tvmgen_digits_inputs inputs = {image};
  struct tvmgen_digits_outputs outputs = {scores};
  if (tvmgen_digits_run(&inputs, &outputs)) {
    return 1;
  }
  for (int i = 0; i < TVMGEN_DIGITS_PROBABILITIES_SIZE; ++i) {
    printf("%d ", scores[i]);
  }
  return 0;
}
"""
ARM = """set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_C_FLAGS_INIT "{flags}")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the mlfc program of this checkout, even if another one is installed."""
    path = tmp_path / "prefix" / "bin" / "mlfc"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -m mlfc "$@"\n')
    path.chmod(0o755)
    return path


def project(folder: Path, arguments: str = "", version: str = "") -> Path:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(PROJECT.format(arguments=arguments, version=version))
    (folder / "main.c").write_text(MAIN)
    shutil.copy(DIGITS, folder / "model.tflite")
    return folder


def configure(folder: Path, program: Path, *options: str) -> subprocess.CompletedProcess[str]:
    need("ninja", "ninja-build")
    found = CliRunner().invoke(app, ["--cmake-dir"]).stdout.strip()
    where = (f"-Dmlfc_DIR={found}", f"-DMLFC_EXECUTABLE={program}", "-DCMAKE_C_FLAGS=-O0")
    return subprocess.run(
        [need("cmake", "cmake"), "-G", "Ninja", "-B", "build", *(options or where)],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [need("cmake", "cmake"), "--build", "build"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def built(folder: Path) -> str:
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_is_built_with_the_project_and_again_when_it_changes(tmp_path: Path, program: Path) -> None:
    folder = project(tmp_path / "project")
    done = configure(folder, program)
    assert done.returncode == 0, done.stderr
    assert "Compiling the model model.tflite for c\n" in built(folder)
    printed = subprocess.run([folder / "build" / "main"], check=True, capture_output=True, text=True).stdout
    model = mlfc.compile(DIGITS)
    scores = model.run(np.zeros((1, 8, 8, 1), np.int8))["probabilities"]
    assert [int(word) for word in printed.split()] == scores.reshape(-1).tolist()
    assert "no work to do" in built(folder)
    (folder / "model.tflite").write_bytes(b"not a model")
    done = build(folder)
    assert done.returncode != 0
    assert "model.tflite: " in done.stdout + done.stderr
    shutil.copy(DIGITS, folder / "model.tflite")
    assert "Compiling the model" in built(folder)


def test_large_constants_come_and_go_with_the_model(tmp_path: Path, program: Path) -> None:
    folder = project(tmp_path / "project", "OPTIMIZE size NAME digits DEPENDS note.txt")
    (folder / "note.txt").write_text("")
    (folder / "CMakeLists.txt").write_text(
        (folder / "CMakeLists.txt").read_text().replace("model.tflite", "model.onnx").partition("add_library")[0]
    )
    for rows, has_file in ((2000, True), (4, False)):
        weights = np.ones((rows, 600), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
            [helper.make_tensor_value_info("x", 1, [1, rows])], [helper.make_tensor_value_info("y", 1, [1, 600])],
            [numpy_helper.from_array(weights * np.arange(600, dtype=np.float32), "w")],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx")
        if not (folder / "build").exists():
            assert configure(folder, program).returncode == 0
        built(folder)
        constants = folder / "build" / "digits_mlfc" / "src" / "digits_lib2.S.bin"
        assert (constants.stat().st_size > 0) is has_file


@pytest.mark.parametrize(
    ("processor", "flags", "arguments", "expected"),
    [
        ("cortex-m4", "-mcpu=cortex-m4 -mthumb", "", "c -mcpu=cortex-m4"),
        ("arm", "-mcpu=cortex-m0plus -mthumb", "", "c -mcpu=cortex-m0plus"),
    ],
)
def test_a_cross_build_is_for_its_core(
    tmp_path: Path, program: Path, processor: str, flags: str, arguments: str, expected: str
) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    folder = project(tmp_path / "project", arguments)
    (folder / "arm.cmake").write_text(ARM.format(processor=processor, flags=flags))
    found = Path(mlfc.__file__).parent / "cmake"
    done = configure(
        folder, program, "-DCMAKE_TOOLCHAIN_FILE=arm.cmake", f"-Dmlfc_DIR={found}", f"-DMLFC_EXECUTABLE={program}"
    )
    assert done.returncode == 0, done.stderr
    assert f"Compiling the model model.tflite for {expected}\n" in built(folder)
    assert {path.name for path in (folder / "build").glob("*.a")} == {"libdigits.a", "libuser.a"}


def test_an_installation_is_found_by_its_prefix(tmp_path: Path, program: Path) -> None:
    """Install as a wheel does: share/cmake/mlfc, and the program in bin."""
    prefix = program.parents[1]
    shutil.copytree(Path(mlfc.__file__).parent / "cmake", prefix / "share" / "cmake" / "mlfc")
    folder = project(tmp_path / "project", version="0.1")
    done = configure(folder, program, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert done.returncode == 0, done.stderr
    cache = (folder / "build" / "CMakeCache.txt").read_text()
    found = re.search(r"^MLFC_EXECUTABLE:FILEPATH=(.*)$", cache, re.MULTILINE)
    assert found is not None
    assert Path(found[1]) == program


@pytest.mark.parametrize(
    ("arguments", "version", "message"),
    [
        ("EXTRA x", "", "unknown arguments: EXTRA;x"),
        ("NAME a-b", "", "expected a C identifier as NAME, got a-b"),
        ("", "0.2", 'compatible with requested version "0.2"'),
        ("", "1", 'compatible with requested version "1"'),
    ],
)
def test_mistakes_are_named(tmp_path: Path, program: Path, arguments: str, version: str, message: str) -> None:
    folder = project(tmp_path / "project", arguments, version)
    done = configure(folder, program)
    assert done.returncode != 0
    assert message in " ".join(done.stderr.split())


def test_code_in_several_forms_is_refused(tmp_path: Path, program: Path) -> None:
    folder = project(tmp_path / "project", "OPTIONS --executor graph")
    assert configure(folder, program).returncode == 0
    done = build(folder)
    assert done.returncode != 0
    assert "takes no model whose code is in several forms" in " ".join((done.stdout + done.stderr).split())


def test_the_version_is_that_of_mlfc() -> None:
    text = (Path(mlfc.__file__).parent / "cmake" / "mlfcConfigVersion.cmake").read_text()
    major, minor, _ = mlfc.__version__.split(".")
    assert f'PACKAGE_VERSION "{mlfc.__version__}"' in text
    assert f"MAJOR EQUAL {major} AND PACKAGE_FIND_VERSION_MINOR EQUAL {minor}\n" in text
