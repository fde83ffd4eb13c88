"""Networks in the style of PyTorch's exporters, for the opsets that they write, compared with ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import mlfc
from mlfc.transform import PASSES, pipeline
from mlfc.transform.bind_params import BindParams
from tests import pytorch_graphs
from tests.harness import assert_close, compiled
from tests.onnx_models import Array
from tests.relay_run import operators

# whole models; the operators' own tests compile with the flags of libraries, and also by LLVM
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
OPSETS = (11, 13, 17, 18)
BATCH = 2
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "transformer": {"ids": (BATCH, 12), "mask": (BATCH, 12)},
    "cnn": {"x": (BATCH, 3, 16, 16)},
    "mlp": {"x": (BATCH, 20)},
    "unet": {"x": (BATCH, 3, 16, 16)},
    "super_resolution": {"x": (BATCH, 3, 12, 10)},
}


def exported(name: str, opset: int) -> bytes:
    make: Callable[[int], bytes] = getattr(pytorch_graphs, name)
    return make(opset)


def inputs_of(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    if name == "transformer":
        lengths = np.array([[12], [7]])
        mask = (np.arange(12) < lengths).astype(np.int64)
        return {"ids": rng.integers(0, 50, SHAPES[name]["ids"]), "mask": mask}
    return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in SHAPES[name].items()}


def groups(name: str, opset: int) -> Counter[str]:
    module, params = mlfc.import_model(exported(name, opset), shapes=SHAPES[name])
    return Counter(operators(pipeline.run(module, params)))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", SHAPES)
def test_exported_network_agrees_with_onnx_runtime(name: str, opset: int, tmp_path: Path) -> None:
    data, inputs = exported(name, opset), inputs_of(name)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    mod, params = mlfc.import_model(data, shapes=SHAPES[name])
    (found,) = compiled(mod, params, tmp_path, by_llvm=False).run(inputs).values()
    assert np.ptp(expected) > 0
    assert_close(found, expected, 1e-5, name)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_transformer_layer_is_few_kernels(opset: int) -> None:
    counts = groups("transformer", opset)
    assert sum(count for key, count in counts.items() if "nn.layer_norm" in key) == 5
    assert not any(key in ("erf", "sqrt", "subtract", "nn.layer_norm+multiply") for key in counts)
    assert counts["nn.attention"] == 2
    assert not any("nn.batch_matmul" in key or "nn.softmax" in key for key in counts)
    assert sum(count for key, count in counts.items() if key.startswith("nn.dense") and "+erf+" in key) == 2
    # the queries, keys and values of each layer are slices of one tensor; no other data moves
    assert not any("transpose" in key for key in counts)
    assert sum(count for key, count in counts.items() if key == "strided_slice") == 2 * 3


@pytest.mark.parametrize(("name", "transposes"), [("unet", 2), ("super_resolution", 2), ("cnn", 1)])
def test_only_inputs_and_outputs_are_transposed(name: str, transposes: int) -> None:
    counts = groups(name, 17)
    assert (
        sum(count for key, count in counts.items() if "transpose" in key.replace("conv2d_transpose", "")) == transposes
    )


@pytest.mark.parametrize("name", SHAPES)
def test_passes_change_nothing_when_they_run_again(name: str) -> None:
    module, params = mlfc.import_model(exported(name, 13), shapes=SHAPES[name])
    module = BindParams(params)(module)
    for step in PASSES[:-1]:
        module = step(module)
    once = operators(module)
    for step in PASSES[:-1]:
        module = step(module)
    assert operators(module) == once
