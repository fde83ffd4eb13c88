"""Archives whose AOT modules are also in the C runtime's function table."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.validate.validate import validate
from mlfc.archive.write.rebuild import rebuild, recorded_options
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.project.model import project_source
from tests.conftest import need
from tests.harness import seeded_inputs

pytestmark = pytest.mark.usefixtures("quick_builds")

MODEL = "hello_world_int8.tflite"
REGISTRY = "codegen/host/src/mlfc_shared_registry.c"
HEADER = "codegen/host/src/tvmgen_hello.h"


@pytest.fixture(scope="module")
def factory(models: Path) -> Factory:
    module, params = mlfc.import_model(models / MODEL)
    return mlfc.build(module, params=params, module_name="hello")


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {item.name.removeprefix("./"): tar.extractfile(item).read() for item in tar if item.isfile()}  # type: ignore[union-attr]


def test_the_table_is_beside_code_that_stays_as_it_is(factory: Factory, tmp_path: Path) -> None:
    plain = members(mlfc.export_model_library_format(factory, tmp_path / "plain.tar"))
    archive = mlfc.export_model_library_format(factory, tmp_path / "hello.tar", system_lib=True)
    found = members(archive)
    assert validate(archive) == []
    assert {path for path in found if path.startswith("codegen/")} - set(plain) == {REGISTRY, HEADER}
    assert all(found[path] == plain[path] for path in plain if path.startswith("codegen/"))
    assert found[HEADER] == found["codegen/host/include/tvmgen_hello.h"]
    (inputs,) = [seeded_inputs(mlfc.load(archive).inputs, 0)]
    for name, output in mlfc.load(archive).run(inputs).items():
        np.testing.assert_array_equal(output, mlfc.load(tmp_path / "plain.tar").run(inputs)[name])
    # firmware without a host does not need it
    with project_source(archive, find_board("host"), "standalone") as source:
        assert not any("registry" in path for path in source.code)


def test_compiling_again_keeps_it(factory: Factory, tmp_path: Path) -> None:
    archive = mlfc.export_model_library_format(factory, tmp_path / "hello.tar", system_lib=True)
    options = recorded_options(archive)
    assert options.system_lib
    again = mlfc.export_model_library_format(rebuild(archive), tmp_path / "again.tar", options=options)
    assert members(again)[REGISTRY] == members(archive)[REGISTRY]
    plain = mlfc.export_model_library_format(factory, tmp_path / "plain.tar")
    assert not recorded_options(plain).system_lib


@pytest.mark.parametrize("runtime", [True, False])
def test_the_makefile_builds_it_where_the_runtime_is(factory: Factory, tmp_path: Path, runtime: bool) -> None:
    need("make", "make")
    need("gcc", "gcc")
    archive = mlfc.export_model_library_format(
        factory, tmp_path / "hello.tar", system_lib=True, runtime=runtime, test_vectors=1
    )
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "made", filter="data")
    strict = "CFLAGS=-std=c99 -O1 -Wall -Wextra -Wpedantic -Werror"
    result = subprocess.run(
        ["make", "-C", str(tmp_path / "made"), "selftest", strict], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    symbols = subprocess.run(["nm", str(tmp_path / "made" / "libhello.a")], capture_output=True, text=True, check=True)
    assert ("TVMSystemLibEntryPoint" in symbols.stdout) is runtime
