"""The motivating example of module serialization: ResNet-18 for a device in one library, loaded back and run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import mlfc
from mlfc.factory import Factory
from tests.conftest import need_opencl

# the library's content and results are tested, not the driver's code
pytestmark = pytest.mark.usefixtures("unoptimized_builds", "quick_kernels")
EXAMPLES = Path(__file__).parents[2] / "examples" / "resnet18"
# a small image and half of the stages: a CPU that emulates the device compiles each shape separately
SIZE, STAGES = 64, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import write_model
    finally:
        sys.path.remove(str(EXAMPLES))
    path = tmp_path_factory.mktemp("resnet") / "resnet18.onnx"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(write_model, "STAGES", write_model.STAGES[:STAGES])
        onnx.save(write_model.resnet18(SIZE), path)
    return path


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(model: Path, image: np.ndarray) -> np.ndarray:
    (result,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"data": image})
    assert 2e-3 < result.max() < 0.999  # neither all classes nor one
    return result


@pytest.fixture(scope="module", params=["opencl", "cuda"])
def built(request: pytest.FixtureRequest, model: Path) -> tuple[str, Factory]:
    resnet18_mod, resnet18_params = mlfc.import_model(model)
    return request.param, mlfc.build(resnet18_mod, request.param, params=resnet18_params)


def runs_here(target: str) -> bool:
    """Return whether the device exists; CI has one for OpenCL."""
    return need_opencl().exists if target == "opencl" else mlfc.device(target, 0).exists


def assert_like(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * expected.max())


def test_the_library_is_loaded_back_with_its_device_module(
    built: tuple[str, Factory], tmp_path: Path, image: np.ndarray, expected: np.ndarray
) -> None:
    target, factory = built
    graph_json, resnet18_lib, params = factory
    path_lib = tmp_path / "deploy.so"
    resnet18_lib.export_library(path_lib)
    loaded_lib = mlfc.load_module(path_lib)
    assert loaded_lib.type_key == "library"
    assert loaded_lib.imported_modules[0].type_key == target
    assert loaded_lib.imported_modules[0].save_to_bytes() == resnet18_lib.imported_modules[0].save_to_bytes()
    if runs_here(target):
        executor = mlfc.runtime.GraphExecutor(graph_json, loaded_lib, [mlfc.device(target, 0)])
        executor.set_input(**params)
        executor.run(data=image)
        assert_like(executor.get_output(0), expected)


def test_the_factory_in_the_library_is_all_that_it_takes(
    built: tuple[str, Factory], tmp_path: Path, image: np.ndarray, expected: np.ndarray
) -> None:
    target, factory = built
    path = tmp_path / "resnet.so"
    factory.export_library(path)
    loaded = mlfc.load_module(path)
    assert [module.type_key for module in loaded.walk()] == ["GraphExecutorFactory", "library", target]
    if runs_here(target):
        executor = loaded["default"](mlfc.device(target, 0))
        executor.run(data=image)
        assert_like(executor.get_output(0), expected)


def test_all_of_it_runs_on_the_device(built: tuple[str, Factory]) -> None:
    target, factory = built
    assert {call.kernel.device for call in factory.program.calls} == {target}
    assert {value.device for value in (*factory.program.inputs, *factory.program.constants)} == {target}
