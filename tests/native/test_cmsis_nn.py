"""Code that calls CMSIS-NN compiles against its documented interface and computes the same as mlfc's own code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.errors import RunError, ToolchainError
from mlfc.factory import Factory
from mlfc.library.toolchain import compile_cached
from mlfc.runtime import AotModule
from mlfc.runtime.modules.module import ExternalCode
from tests.conftest import need

pytestmark = pytest.mark.usefixtures("quick_builds")

STAND_IN = Path(__file__).parent / "stand_ins" / "cmsis_nn"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


def built(factory: Factory) -> AotModule:
    """Return the module linked with the stand-in for CMSIS-NN."""
    files = dict(factory.code.files)
    for module in factory.lib.imported_modules:
        assert isinstance(module, ExternalCode)
        files.update(module.files)
    files.update({f"cmsis_nn/{path.name}": path.read_bytes() for path in STAND_IN.iterdir()})
    return AotModule(compile_cached(files, WARNINGS), factory.interface())


def compiled(model: Path, byoc: tuple[str, ...], cpu: str) -> Factory:
    module, params = mlfc.import_model(model, numerics="tflm", byoc=byoc)
    return mlfc.build(module, f"c -mcpu={cpu}", params, module_name="m")


@pytest.mark.parametrize("name", ["pretrainedResnet_quant", "kws_ref_model", "ad01_int8"])
def test_models_give_the_same_integers(models: Path, name: str) -> None:
    factory = compiled(models / f"{name}.tflite", ("cmsis_nn",), "cortex-m4")
    own = [kernel.name for kernel in factory.program.kernels if kernel.external is None]
    # all operators that the library has are offloaded: convolutions, dense layers and additions
    assert not any(re.search("conv|dense|add", kernel) for kernel in own)
    plain = compiled(models / f"{name}.tflite", (), "cortex-m4").runtime
    rng = np.random.default_rng(5)
    module = built(factory)
    for _ in range(2):
        inputs = {value.name: rng.integers(-128, 128, value.shape, np.int8) for value in factory.program.inputs}
        for output, expected in plain.run(inputs).items():
            np.testing.assert_array_equal(module.run(inputs)[output], expected)


def test_targets_with_vectors_keep_their_own_code(models: Path) -> None:
    module, params = mlfc.import_model(models / "ad01_int8.tflite", numerics="tflm", byoc=["cmsis_nn"])
    factory = mlfc.build(module, "c", params)
    assert all(kernel.external is None for kernel in factory.program.kernels)


def test_layers_that_round_once_keep_their_own_code(models: Path) -> None:
    """LiteRT's fully connected layers round once, the library rounds twice; the results must be the reference's."""
    module, params = mlfc.import_model(models / "ad01_int8.tflite", byoc=["cmsis_nn"])
    factory = mlfc.build(module, "c -mcpu=cortex-m4", params)
    assert all(kernel.external is None for kernel in factory.program.kernels)


def test_without_the_library_the_error_says_what_is_missing(models: Path) -> None:
    factory = compiled(models / "kws_ref_model.tflite", ("cmsis_nn",), "cortex-m4")
    with pytest.raises(ToolchainError, match=r"CMSIS-NN, whose arm_nnfunctions\.h the compiler must find"):
        factory.lib.loaded()


def test_a_library_that_wants_more_memory_than_planned_is_not_called(models: Path) -> None:
    """Plan for a Cortex-M0; the stand-in's depthwise convolution requires memory as with DSP instructions."""
    module = built(compiled(models / "kws_ref_model.tflite", ("cmsis_nn",), "cortex-m0"))
    with pytest.raises(RunError, match="-1"):
        module.run({info.name: np.zeros(info.shape, np.int8) for info in module.inputs})


def test_archives_hold_the_code_and_are_compiled_again_to_the_same(
    models: Path, tmp_path: Path, command: Callable[..., str]
) -> None:
    factory = compiled(models / "kws_ref_model.tflite", ("cmsis_nn",), "cortex-m4")
    first, second = tmp_path / "kws.tar", tmp_path / "again.tar"
    mlfc.export_model_library_format(factory, first)
    assert "good" in command("validate", first)
    command("compile", first, "-o", second)
    assert first.read_bytes() == second.read_bytes()
    (module,) = mlfc.load_module(first).lib.imported_modules
    assert (module.type_key, module.format) == ("cmsis_nn", "c")
    assert "arm_convolve_wrapper_s8(" in module.get_source()
    assert "codegen/cmsis_nn/m_mod0.c" in command("inspect", first, "--json")


def test_a_library_in_the_environment_is_linked(
    models: Path, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LIBS` names the library both for the estimate before the build and for projects built by CMake or make."""
    compiler = [need("arm-none-eabi-gcc", "a board's compiler"), "-mthumb", "-mcpu=cortex-m4", "-mfloat-abi=hard"]
    need("cmake", "cmake")
    library = tmp_path / "cmsis.o"
    source = STAND_IN / "arm_nnfunctions.c"
    subprocess.run([*compiler, "-mfpu=fpv4-sp-d16", "-O2", "-c", source, "-o", library], check=True)
    monkeypatch.setenv("CPATH", str(STAND_IN))
    monkeypatch.setenv("LIBS", str(library))
    archive, project = tmp_path / "ad.tar", tmp_path / "firmware"
    mlfc.export_model_library_format(compiled(models / "ad01_int8.tflite", ("cmsis_nn",), "cortex-m4"), archive)
    assert "unknown" not in command("inspect", archive, "--board", "mps2-an386")
    command("project", "create", archive, project, "--template", "cmake", "--board", "mps2-an386")
    command("project", "build", project)
    monkeypatch.delenv("LIBS")
    table = command("inspect", archive, "--board", "mps2-an386")
    assert "does not build for the board: " in table
    assert "undefined reference to `arm_convolve_wrapper_s8" in table


def test_an_archive_says_what_its_code_needs(models: Path, tmp_path: Path) -> None:
    archive = tmp_path / "kws.tar"
    factory = compiled(models / "kws_ref_model.tflite", ("cmsis_nn",), "cortex-m4")
    mlfc.export_model_library_format(factory, archive)
    script = f"import mlfc; mlfc.load({str(archive)!r}).run({{}})"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "It needs CMSIS-NN, whose arm_nnfunctions.h the compiler must find" in found.stderr
