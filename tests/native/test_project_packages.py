"""Projects that this machine's tools build: a CMake package for other projects, and firmware for the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.memory import ConstantPool, Pool
from mlfc.micro.project.generate import generate_project
from mlfc.micro.project_api import GeneratedProject
from tests.conftest import need
from tests.harness import seeded_inputs

pytestmark = pytest.mark.usefixtures("quick_builds")

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
STRICT = "-Wall -Wextra -Wpedantic -Werror"
CONSUMER = """\
cmake_minimum_required(VERSION 3.15)
project(consumer LANGUAGES C)
{finding}
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE digits::digits)
"""
# runs the model on numbers from standard input, and prints its results
PROGRAM = """\
#include <stdio.h>
#include "digits_model.h"

int main(void) {
  size_t i;
  if (fread(DIGITS_IN, sizeof DIGITS_IN, 1, stdin) != 1 || digits_run() != 0) {
    return 1;
  }
  for (i = 0; i < sizeof DIGITS_OUT / sizeof DIGITS_OUT[0]; ++i) {
    printf("%.9g\\n", (double)DIGITS_OUT[i]);
  }
  return 0;
}
"""


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("cmake", "cmake")
    need("make", "make")


def cmake(*arguments: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        ["cmake", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def consumer(folder: Path, package: Path, finding: str) -> None:
    """Write a project that uses the package."""
    folder.mkdir()
    header = (package / "module" / "digits_model.h").read_text()
    arrays = [line.split()[-1].partition("[")[0] for line in header.splitlines() if line.startswith("extern float ")]
    assert len(arrays) == 2, header
    (folder / "CMakeLists.txt").write_text(CONSUMER.format(finding=finding))
    (folder / "consumer.c").write_text(PROGRAM.replace("DIGITS_IN", arrays[0]).replace("DIGITS_OUT", arrays[1]))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package") / "digits"
    return generate_project("package", DIGITS, folder, {"project_type": "selftest", "version": "2.1"})


def computed(program: Path, package: Path) -> tuple[Any, Any]:
    """Return the results of a program that uses the package, and those of the archive."""
    model = mlfc.load(package / "model.tar")
    inputs = seeded_inputs(model.inputs, 5)
    data = b"".join(array.tobytes() for array in inputs.values())
    done = subprocess.run([program], input=data, capture_output=True, check=True)
    expected = next(iter(model.run(inputs).values()))
    return np.array([float(line) for line in done.stdout.split()], np.float32).reshape(expected.shape), expected


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_an_installed_package_is_found_and_computes_what_the_archive_does(
    package: Path, tmp_path: Path, compiler: str
) -> None:
    need(compiler, compiler)
    cmake("-S", package, "-B", "build", f"-DCMAKE_C_FLAGS={STRICT}", cwd=tmp_path, CC=compiler)
    cmake("--build", "build", "--parallel", "2", cwd=tmp_path)
    tested = subprocess.run(["ctest"], cwd=tmp_path / "build", capture_output=True, text=True, check=False)
    assert "100% tests passed, 0 tests failed out of 1" in tested.stdout
    cmake("--install", "build", "--prefix", tmp_path / "place", cwd=tmp_path)
    installed = {str(path.relative_to(tmp_path / "place")) for path in (tmp_path / "place").rglob("*.h")}
    assert installed == {"include/digits_model.h", "include/tvmgen_digits.h"}

    consumer(tmp_path / "app", package, "find_package(digits 2.0 REQUIRED)")
    cmake("-S", "app", "-B", "app/build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'place'}", cwd=tmp_path, CC=compiler)
    cmake("--build", "app/build", cwd=tmp_path)
    ours, expected = computed(tmp_path / "app" / "build" / "consumer", package)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_a_package_of_another_version_is_not_taken(package: Path, tmp_path: Path) -> None:
    cmake("-S", package, "-B", "build", cwd=tmp_path)
    consumer(tmp_path / "app", package, "find_package(digits 3.0 REQUIRED)")
    command = ["cmake", "-S", "app", "-B", "app/build", f"-Ddigits_DIR={tmp_path / 'build'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "version: 2.1" in done.stderr


def test_a_package_is_added_as_a_folder(package: Path, tmp_path: Path) -> None:
    consumer(tmp_path / "app", package, f"add_subdirectory({package} digits)")
    cmake("-S", "app", "-B", "app/build", "-DCMAKE_BUILD_TYPE=Release", cwd=tmp_path)
    cmake("--build", "app/build", "--parallel", "2", cwd=tmp_path)
    # as a subproject, the package does not build its example by default
    assert not list((tmp_path / "app" / "build").rglob("digits_example"))
    ours, expected = computed(tmp_path / "app" / "build" / "consumer", package)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("external", [False, True])
def test_a_package_of_a_module_whose_memory_was_placed(tmp_path: Path, external: bool) -> None:
    module, params = mlfc.import_model(DIGITS)
    factory = mlfc.build(
        module,
        params=params,
        module_name="digits",
        workspace_io=True,
        external_workspace=external,
        pools=[Pool("fast", 3000), Pool("slow")],
        constants=[ConstantPool("tcm", 2048), ConstantPool("xip", external=True)],
    )
    archive = mlfc.export_model_library_format(factory, tmp_path / "digits.tar", test_vectors=2)
    placed = generate_project("package", archive, tmp_path / "digits", {"project_type": "selftest"})
    cmake("-S", placed, "-B", "build", f"-DCMAKE_C_FLAGS={STRICT}", cwd=tmp_path)
    cmake("--build", "build", "--parallel", "2", cwd=tmp_path)
    tested = subprocess.run(["ctest"], cwd=tmp_path / "build", capture_output=True, text=True, check=False)
    assert "100% tests passed, 0 tests failed out of 1" in tested.stdout
    (tmp_path / "app").mkdir()
    header = (placed / "module" / "digits_model.h").read_text()
    names = [line.split()[1] for line in header.splitlines() if line.startswith("#define") and "_place())" in line]
    (tmp_path / "app" / "CMakeLists.txt").write_text(CONSUMER.format(finding=f"add_subdirectory({placed} digits)"))
    program = PROGRAM.replace("DIGITS_IN", names[0]).replace("DIGITS_OUT", names[1])
    (tmp_path / "app" / "consumer.c").write_text(program)
    cmake("-S", "app", "-B", "app/build", f"-DCMAKE_C_FLAGS={STRICT}", cwd=tmp_path)
    cmake("--build", "app/build", "--parallel", "2", cwd=tmp_path)
    ours, expected = computed(tmp_path / "app" / "build" / "consumer", placed)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("template", ["makefile", "cmake", "package"])
def test_projects_for_this_machine_are_built_by_their_server(tmp_path: Path, template: str) -> None:
    options = {"board": "host", "project_type": "standalone"}
    folder = generate_project(template, DIGITS, tmp_path / "made", options)
    with GeneratedProject(folder) as project:
        project.build()
        project.flash()
    record = (folder / "project.json").read_text()
    assert '"run"' in record


def test_a_cross_compiled_package_has_a_library_and_no_example(tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    options = {"board": "mps2-an386", "project_type": "standalone"}
    folder = generate_project("package", DIGITS, tmp_path / "made", options)
    with GeneratedProject(folder) as project:
        project.build()
    objects = subprocess.run(
        ["arm-none-eabi-objdump", "-f", "build/libdigits.a"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert "architecture: armv7e-m" in objects.stdout
    assert not list((folder / "build").glob("digits_example*"))


def test_a_reserved_name_gets_another_target(tmp_path: Path) -> None:
    mod, params = mlfc.import_model(DIGITS)
    path = mlfc.export_model_library_format(mlfc.build(mod, params=params, module_name="test"), tmp_path / "t.tar")
    folder = generate_project("package", path, tmp_path / "made", {"project_type": "standalone"})
    with GeneratedProject(folder) as project:
        project.build()
    assert (folder / "build" / "libtest_model.a").exists()
