"""The workspace of real models: proven, and near the largest sum of live bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mlfc
from mlfc import memory, transform
from mlfc.errors import InternalError
from mlfc.target.target import parse_target


@pytest.mark.parametrize(
    "file",
    [
        "ad01_int8", "hello_world_int8", "kws_ref_model", "kws_ref_model_float32", "pretrainedResnet",
        "pretrainedResnet_quant", "vww_96_int8", "mobilenet_v2_quantized_1x3x224x224",
    ],
)  # fmt: skip
def test_workspace_is_at_most_three_percent_above_its_lower_bound(models: Path, file: str) -> None:
    module, params = mlfc.import_model(models / f"{file}.tflite")
    program = transform.lower(transform.run(module, dict(params)), parse_target("c", "speed").features)
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.lower_bound <= plan.size <= 1.03 * plan.lower_bound
    assert max(plan.live) == plan.lower_bound
    peak = memory.live_tensors(program, plan, plan.peak_call or 0)
    assert sum(nbytes for _, nbytes in peak) >= plan.lower_bound


@pytest.mark.parametrize(
    ("file", "cpu", "largest"),
    [
        # the largest output of a layer, plus the overlap distance of its kernel
        ("kws_ref_model", "cortex-m4", 8_000),
        ("kws_ref_model", "cortex-m55", 10_560),
        ("vww_96_int8", "cortex-m4", 36_864),
        ("vww_96_int8", "cortex-m55", 38_064),
        ("pretrainedResnet_quant", "cortex-m4", 32_768),
        ("ad01_int8", "cortex-m4", 256),
    ],
)
def test_outputs_reach_into_their_inputs_on_microcontrollers(models: Path, file: str, cpu: str, largest: int) -> None:
    module, params = mlfc.import_model(models / f"{file}.tflite")
    program = transform.lower(transform.run(module, dict(params)), parse_target(f"c -mcpu={cpu}").features)
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.size <= largest
    for call, roots in zip(program.calls, plan.aliased_inputs, strict=True):
        for root in roots:
            closer = {**plan.offsets, call.output.root: plan.offsets[root] + 16}
            with pytest.raises(InternalError):
                memory.prove(program, replace(plan, offsets=closer, size=plan.size + (1 << 20)))


# pairwise combinations
@pytest.mark.parametrize(
    ("cpu", "optimize", "workspace_io"),
    [
        ("cortex-m4", "speed", False), ("cortex-m4", "size", True), ("cortex-m55", "speed", True),
        ("cortex-m55", "size", False), ("generic-rv32", "speed", False), ("generic-rv32", "size", True),
    ],
)  # fmt: skip
def test_every_way_to_compile_for_a_microcontroller_is_proved(
    models: Path, cpu: str, optimize: str, workspace_io: bool
) -> None:
    module, params = mlfc.import_model(models / "vww_96_int8.tflite")
    # building proves the plan
    factory = mlfc.build(module, f"c -mcpu={cpu}", params, optimize=optimize, workspace_io=workspace_io)
    largest = max(call.output.nbytes for call in factory.program.calls)
    assert largest <= factory.plan.size <= largest + (largest // 3 if workspace_io else 4_096)
