"""Every operator's kernels on a GPU, compared with the references of its rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import mlfc
from mlfc import transform
from mlfc.tir import interpreter
from mlfc.tir.program import Program
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.device_runner import OnCuda, RunKernel, run_program
from tests.native.test_device_kernels import DEVICE, FAMILIES, failures
from tests.native.test_device_products import CASES, LABELS, PLACES, UNFUSED
from tests.tflite_cases import Case as TfliteCase
from tests.unit.test_tflite_ops import FLOAT, QUANTIZED, check, inputs_of, model_of


def on_cuda(programs: Sequence[Program]) -> RunKernel:
    """Return a function that runs the kernels of programs on the GPU."""
    return OnCuda([kernel for program in programs for kernel in program.kernels])


@pytest.mark.parametrize("family", FAMILIES)
def test_operators(family: str) -> None:
    assert not failures(FAMILIES[family](), on_cuda)


@pytest.mark.parametrize("cases", [QUANTIZED, FLOAT], ids=["quantized", "float"])
def test_tflite_operators(cases: list[TfliteCase]) -> None:
    """Compare with LiteRT's results, integers bit for bit."""
    module, params = mlfc.import_model(model_of(cases))
    program = transform.lower(transform.run(module, params), DEVICE)
    inputs = inputs_of(cases, np.random.default_rng(6))
    outputs = run_program(program, inputs, OnCuda(program.kernels))
    for case in cases:
        check(case, [(inputs, outputs)])


@pytest.fixture(scope="module")
def groups() -> list[LoweredGroup]:
    return [lower_group(case.group, DEVICE) for case in CASES]


@pytest.fixture(scope="module")
def products(groups: list[LoweredGroup]) -> OnCuda:
    return OnCuda([group.prim for group in groups])


@pytest.mark.parametrize("place", PLACES, ids=LABELS)
def test_products(place: int, groups: list[LoweredGroup], products: OnCuda) -> None:
    case = CASES[place]
    case.check(products(groups[place].prim, case.inputs, groups[place].constants))


@pytest.mark.parametrize("place", PLACES[:UNFUSED], ids=LABELS[:UNFUSED])
def test_sums_without_fused_multiply_adds_are_those_of_the_interpreter(place: int, groups: list[LoweredGroup]) -> None:
    case, group = CASES[place], groups[place]
    run = OnCuda([group.prim], contracts=False)
    expected = interpreter.run(group.prim, case.inputs, group.constants)
    np.testing.assert_array_equal(run(group.prim, case.inputs, group.constants), expected)
