"""The workspace of real models: proved, and near the largest sum of live bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlforge
from mlforge import memory, transform
from mlforge.target.target import parse_target


@pytest.mark.parametrize(
    "file",
    [
        "ad01_int8", "hello_world_int8", "kws_ref_model", "kws_ref_model_float32", "pretrainedResnet",
        "pretrainedResnet_quant", "vww_96_int8", "mobilenet_v2_quantized_1x3x224x224",
    ],
)  # fmt: skip
def test_workspace_is_at_most_three_percent_above_its_lower_bound(models: Path, file: str) -> None:
    module, params = mlforge.import_model(models / f"{file}.tflite")
    program = transform.lower(transform.run(module, dict(params)), parse_target("c", "speed").features)
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.lower_bound <= plan.size <= 1.03 * plan.lower_bound
    rows = memory.report(program, plan)
    assert max(row.live_bytes for row in rows) == plan.lower_bound
    peak = rows[plan.peak_call or 0]
    assert sum(nbytes for _, nbytes in peak.tensors) >= plan.lower_bound
