"""Golden files of device kernels: update them by ``pytest tests/golden --update-golden``, and review the change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlfc.codegen.device import device_kernels, device_source
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.transform.lower_group import lower_group

FOLDER = Path(__file__).parent / "device"
DEVICE = Features(vector_bytes=0, dot4=False, gpu=True)
SUFFIXES = {"opencl": "cl", "cuda": "cu"}


def groups() -> dict[str, ir.Function]:
    x = ir.Var("x", ir.TensorType((1, 6, 6, 16), "float32"))
    weights = ir.Constant(np.ones((3, 3, 16, 20), np.float32))
    attrs = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1, 1, 1)}
    bodies = {
        "convolution": ir.call("nn.relu", [ir.call("nn.conv2d", [x, weights], attrs)]),
        "softmax": ir.call("nn.softmax", [x]),
        "mean": ir.call("mean", [x], {"axis": (1, 2)}),
    }
    return {name: ir.Function((x,), body, {"Primitive": 1}) for name, body in bodies.items()}


def texts() -> dict[str, str]:
    return {
        f"{name}.{suffix}": device_source(device_kernels(lower_group(group, DEVICE).prim, name), dialect)
        for name, group in groups().items()
        for dialect, suffix in SUFFIXES.items()
    }


def test_golden_kernels(request: pytest.FixtureRequest) -> None:
    found = texts()
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        for name, text in found.items():
            (FOLDER / name).write_text(text)
    expected = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert found == expected, "read the difference; if it is meant, run: pytest tests/golden --update-golden"
