"""The nine architectures inside the onnx wheel, with seeded random weights, against ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import mlforge
from tests.harness import assert_close, compiled, seeded_inputs

SMALL = ("squeezenet", "shufflenet", "densenet121", "inception_v1", "inception_v2", "resnet50")
LARGE = ("bvlc_alexnet", "zfnet512", "vgg19")


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_architecture_agrees_with_onnx_runtime(name: str, shared: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, shared / "tools" / "onnx_zoo.py", tmp_path, name], check=True, capture_output=True)
    path = tmp_path / f"{name}.onnx"
    mod, params = mlforge.import_model(path)
    ours = compiled(mod, params, tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = seeded_inputs(ours.inputs, 0)
    (expected,) = session.run(None, {info.name: inputs[info.name] for info in ours.inputs})
    (value,) = ours.run(inputs).values()
    assert_close(value, expected, 1e-5, name)
    assert np.ptp(expected) > 0
    path.unlink()
