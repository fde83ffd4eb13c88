"""Models computed in stripes give what they give whole, bit for bit, in C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlforge
from mlforge.archive.load import load_factory
from tests.harness import edge_inputs, seeded_inputs

CASES = [
    ("vww_96_int8", "c -mcpu=cortex-m4", 41_473, False),
    ("vww_96_int8", "c -mcpu=cortex-m55", 41_473, False),
    ("vww_96_int8", "c -mcpu=cortex-m0plus", 50_000, False),
    ("vww_96_int8", "c -mcpu=cortex-m4", 32_257, True),
    ("vww_96_int8", "c", 60_000, False),
    ("digits.onnx", "c -mcpu=cortex-m7", 1_700, False),
]
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.mark.parametrize(("file", "target", "ram", "workspace_io"), CASES)
def test_results_are_the_same(models: Path, file: str, target: str, ram: int, workspace_io: bool) -> None:
    mod, params = mlforge.import_model(DIGITS if file == DIGITS.name else models / f"{file}.tflite")
    whole = mlforge.build(mod, target, params, module_name="whole", workspace_io=workspace_io)
    striped = mlforge.build(mod, target, params, module_name="striped", workspace_io=workspace_io, ram=ram)
    assert striped.program.meta["stripes"]["count"] > 1
    assert striped.plan.size < whole.plan.size
    # a row that is computed twice would show here
    assert sum(call.kernel.macs for call in striped.program.calls) == sum(
        call.kernel.macs for call in whole.program.calls
    )
    one, other = load_factory(whole), load_factory(striped)
    edges = edge_inputs(one.inputs) if one.inputs[0].dtype == "int8" else []
    for inputs in [seeded_inputs(one.inputs, seed) for seed in range(3)] + edges:
        expected, got = one.run(inputs), other.run(inputs)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
