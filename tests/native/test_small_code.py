"""``--optimize size``: the same results from less code, by both executors and in linked modules."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.describe.inspect import object_sizes
from mlfc.archive.details import module_info
from mlfc.archive.validate.validate import validate
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.bare_metal import project_files
from mlfc.micro.project.cmake import toolchain_files
from mlfc.support.content import to_bytes
from mlfc.verify.litert import LiteRtReference
from tests.conftest import need
from tests.harness import edge_inputs, seeded_inputs

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

# the first model covers convolutions, depthwise ones and dense layers for each kind of processor; the others cover
# additions, shared functions with both executors, and the largest number of shared functions
PAIRS = [
    *(("kws_ref_model", cpu) for cpu in ("generic", "cortex-m4", "cortex-m55", "cortex-m3")),
    ("pretrainedResnet_quant", "cortex-m3"),
    ("ad01_int8", "cortex-m4"),
    ("vww_96_int8", "cortex-m4"),
]


@pytest.fixture(scope="module")
def imported(models: Path) -> Callable[..., Factory]:
    """Return a cached function that compiles a model of the shared folder."""

    @cache
    def build(name: str, cpu: str, **options: str) -> Factory:
        module, params = mlfc.import_model(models / f"{name}.tflite")
        chosen = {"optimize": "size", "module_name": name, **options}
        return mlfc.build(module, f"c -mcpu={cpu}", params, **chosen)

    return build


@pytest.mark.parametrize(("name", "cpu"), PAIRS)
def test_small_code_gives_what_the_reference_gives(
    name: str, cpu: str, imported: Callable[..., Factory], models: Path, tmp_path: Path
) -> None:
    reference = LiteRtReference(models / f"{name}.tflite")
    choices: list[dict[str, str]] = [{}, {"executor": "graph"}] if name == "ad01_int8" else [{}]
    for number, options in enumerate(choices):
        factory = imported(name, cpu, **options)
        archive = mlfc.export_model_library_format(factory, tmp_path / f"{number}.tar")
        assert not validate(archive)
        module = mlfc.load(archive)
        for inputs in (seeded_inputs(module.inputs, 3), edge_inputs(module.inputs)[1]):
            expected = reference.run(inputs)
            for tensor, output in module.run(inputs).items():
                np.testing.assert_array_equal(output, expected[tensor])


def test_linked_modules_of_small_code_run(imported: Callable[..., Factory], models: Path, tmp_path: Path) -> None:
    names = ("ad01_int8", "kws_ref_model")
    archive = mlfc.export_model_library_format([imported(name, "cortex-m4") for name in names], tmp_path / "both.tar")
    assert not validate(archive)
    for name in names:
        module = mlfc.load(archive, name)
        inputs = seeded_inputs(module.inputs, 5)
        expected = LiteRtReference(models / f"{name}.tflite").run(inputs)
        for tensor, output in module.run(inputs).items():
            np.testing.assert_array_equal(output, expected[tensor])


def test_archives_list_shared_functions_once(imported: Callable[..., Factory], tmp_path: Path) -> None:
    factory = imported("vww_96_int8", "cortex-m4")
    archive = mlfc.export_model_library_format(factory, tmp_path / "vww.tar")
    operators = mlfc.inspect(archive)["modules"]["vww_96_int8"]["operators"]
    functions = [operator["function"] for operator in operators]
    # 22 kernels, of which 18 share 5 functions
    assert len(functions) == 30
    assert len(set(functions)) == len(set(factory.code.function_names.values())) == 22 - 18 + 5
    assert not validate(archive)
    same = mlfc.diff(archive, archive)
    assert not any(a != b for a, b in same["totals"].values())


def code_bytes(factory: Factory, folder: Path) -> int:
    """Return the code size of a module's operators alone, compiled for a Cortex-M4."""
    source = folder / "operators.c"
    source.write_bytes(to_bytes(factory.code.files[f"src/{factory.module_name}_lib1.c"]))
    core = ("-mthumb", "-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
    command = ("arm-none-eabi-gcc", *core, "-O2", "-c", source, "-o", folder / "operators.o")
    subprocess.run(command, check=True, cwd=folder)
    return object_sizes((folder / "operators.o").read_bytes(), "operators.o")["code_bytes"]


def test_shared_kernels_are_a_fraction_of_the_code(imported: Callable[..., Factory], tmp_path: Path) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    speed, size = (
        code_bytes(imported("pretrainedResnet_quant", "cortex-m4", optimize=goal), tmp_path)
        for goal in ("speed", "size")
    )
    assert size < speed / 2


def test_projects_compile_for_what_the_model_was(imported: Callable[..., Factory]) -> None:
    board = find_board("mps2-an386")
    for goal, level in (("speed", "-O3"), ("size", "-O2")):
        factory = imported("hello_world_int8", "cortex-m4", optimize=goal)
        details = module_info(factory)
        made = project_files(factory.module_name, factory.code.files, details, board)
        assert f"CFLAGS ?= {level}\n".encode() in to_bytes(made["Makefile"])
        assert f'"{level}"'.encode() in to_bytes(toolchain_files(board, factory.code.files, details)["toolchain.cmake"])


def test_constants_lie_close_where_no_vectors_read_them(imported: Callable[..., Factory]) -> None:
    texts = {
        (cpu, goal): to_bytes(imported("kws_ref_model", cpu, optimize=goal).code.files["src/kws_ref_model_lib1.c"])
        for cpu in ("generic", "cortex-m4")
        for goal in ("speed", "size")
    }
    close = {key: b"] MLF_ALIGNED(4) = {" in text for key, text in texts.items()}
    assert close == {key: key == ("cortex-m4", "size") for key in texts}
    assert all((b"] MLF_ALIGNED(64) = {" in text) is not close[key] for key, text in texts.items())
