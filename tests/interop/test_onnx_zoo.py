"""Architectures inside the onnx wheel, with seeded random weights, against ONNX Runtime.

Its other two, zfnet512 and vgg19, add no operator and a gigabyte of weights; the benchmarks compare them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import mlfc
from tests.harness import assert_close, compiled, seeded_inputs

SMALL = ("squeezenet", "shufflenet", "densenet121", "inception_v1", "inception_v2", "resnet50")
LARGE = ("bvlc_alexnet",)
PROBABILITY_BOUND = {"bvlc_alexnet": 1e-5}
"""Absolute bounds of the final softmax where 1e-6 is out of reach: with random weights these logits are near 36, where
one float32 step is 4e-6; ONNX Runtime's own probabilities lie 3e-6 from those of the same model in float64, and over
other inputs they and ours differ by up to 6.5e-6."""


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_architecture_agrees_with_onnx_runtime(name: str, shared: Path, tmp_path: Path) -> None:
    """Both what goes into the final softmax, which saturates, and what comes out of it."""
    subprocess.run([sys.executable, shared / "tools" / "onnx_zoo.py", tmp_path, name], check=True, capture_output=True)
    path = tmp_path / f"{name}.onnx"
    with_logits(path)
    mod, params = mlfc.import_model(path)
    ours = compiled(mod, params, tmp_path, by_llvm=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = seeded_inputs(ours.inputs, 0)
    expected = session.run(None, {info.name: inputs[info.name] for info in ours.inputs})
    path.unlink()
    values = ours.run(inputs)
    for info, reference in zip(session.get_outputs(), expected, strict=True):
        assert np.ptp(reference) > 0
        if len(expected) == 2 and reference is expected[0]:
            assert np.max(np.abs(values[info.name] - reference)) <= PROBABILITY_BOUND.get(name, 1e-6), name
        else:
            assert_close(values[info.name], reference, 1e-5, f"{name}, {info.name}")


def with_logits(path: Path) -> None:
    """Make the input of a final softmax a second output."""
    model = onnx.load(path)
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(last.input[0]))
        onnx.save(model, path)
