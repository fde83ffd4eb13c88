"""Whole models on a GPU compared with the host, integers bit for bit; dynamic dimensions, states, and node tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.runtime import VirtualMachine
from mlfc.runtime.tensor.ndarray import NDArray, array
from tests.conftest import SHARED
from tests.harness import edge_inputs, seeded_inputs
from tests.interop.test_onnx_nodes import GROUPS, _differences, _merged, claimed
from tests.native import test_open_device_products as open_products
from tests.native import test_vm_on_devices as open_models
from tests.state_models import AVERAGES, moving_average

ROOT = Path(__file__).parents[2]
GPU = mlfc.cuda(0)
TFLITE = sorted((SHARED / "models").glob("*.tflite"))
MODELS = [*TFLITE, *sorted((ROOT / "examples" / "digits").glob("digits*.*"))]


@pytest.mark.parametrize("path", [path for path in MODELS if path.suffix in (".tflite", ".onnx")], ids=lambda p: p.stem)
def test_models_compute_what_they_compute_on_the_host(path: Path) -> None:
    module, params = mlfc.import_model(path)
    there, here = (
        mlfc.build(module, target, params=params, target_host=host).runtime
        for target, host in ((f"cuda -arch={GPU.api.arch}", "llvm"), ("llvm", None))
    )
    given = [seeded_inputs(here.inputs, seed) for seed in (0, 1)]
    if all(np.dtype(info.dtype).kind != "f" for info in here.inputs):
        given += edge_inputs(here.inputs)
    for inputs in given:
        for name, wanted in here.run(inputs).items():
            found = there.run(inputs)[name]
            exact = wanted.dtype.kind != "f"
            np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if exact else 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "make", [open_models.attention, open_models.images, open_models.loop, open_models.places], ids=lambda f: f.__name__
)
def test_open_models_compute_what_they_compute_on_the_host(make: Any, tmp_path: Path) -> None:
    proto, data = make()
    there, here = (open_models.built(proto, tmp_path / "model.onnx", target) for target in ("cuda", "llvm"))
    assert any(kernel.device for kernel in there.program.kernels)
    machine, host = VirtualMachine(there.runtime, GPU, device_outputs=True), here.runtime.model
    for inputs in data:
        wanted = list(host.run(inputs).values())
        for given in (inputs, {name: array(value, device=GPU) for name, value in inputs.items()}):
            machine.invoke_stateful("main", **given)
            for want, found in zip(wanted, machine.get_outputs(), strict=True):
                got = found.numpy() if isinstance(found, NDArray) else found
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(got, want, rtol=0, atol=0 if want.dtype.kind == "i" else 1e-5)


@pytest.mark.parametrize("make", open_products.CASES, ids=lambda f: f.__name__)
def test_tiles_of_open_extents_compute_what_onnxruntime_does(make: Callable[[], Any]) -> None:
    model, data = make()
    machine = VirtualMachine(open_products.built(model, "cuda").runtime, GPU)
    open_products.assert_like_onnxruntime(machine, model, data)


def test_a_gpu_keeps_states() -> None:
    factory = mlfc.compile(moving_average(), "cuda", states=AVERAGES).factory
    assert {state.before.device for state in factory.program.states} == {"cuda"}
    model = load_factory(factory, [GPU])
    buffer = np.ones((64, 1024), np.float32)
    found = [float(model.run({"x": buffer * step})["y"][0, 0]) for step in (1, 2, 3)]
    assert found == [0.5, 1.25, 2.125]


@pytest.mark.parametrize("group", range(GROUPS))
def test_node_tests_give_the_expected_outputs(group: int) -> None:
    module, params, places = _merged(list(claimed()[group::GROUPS]))
    factory = mlfc.build(module, f"cuda -arch={GPU.api.arch}", params=params, module_name="tested", target_host="llvm")
    assert sum(kernel.device == "cuda" for kernel in factory.program.kernels) > 40
    inputs = {name: value for case, _ in places for name, value in case.inputs.items()}
    results = list(factory.runtime.run(inputs).values())
    faults = [
        fault for case, first in places for fault in _differences(case, results[first : first + len(case.outputs)])
    ]
    assert not faults, "\n".join(faults)
