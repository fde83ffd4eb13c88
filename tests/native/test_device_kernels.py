"""Device kernels: every operator on an OpenCL device, against its reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc import (
    ops,  # noqa: F401  (registers the operators)
    transform,
)
from mlfc.codegen.device import device_kernels
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir.program import Program
from mlfc.tir.visitor import launches
from tests import operator_cases
from tests.image_cases import block_cases, resize_cases
from tests.native.cuda_on_host import assert_nvrtc_takes
from tests.native.device_runner import CudaOnHost, OnOpencl, RunKernel, run_program
from tests.operator_cases import Case
from tests.reduction_cases import reduce_cases
from tests.tflite_cases import Case as TfliteCase
from tests.unit.test_tflite_ops import FLOAT, QUANTIZED, check, inputs_of, model_of
from tests.verify_tir import verify

DEVICE = Features(vector_bytes=0, dot4=False, gpu=True)
FAMILIES = {
    "unary": operator_cases.unary_cases,
    "binary": operator_cases.binary_cases,
    "shape": operator_cases.shape_cases,
    "indexing": operator_cases.indexing_cases,
    "nn": operator_cases.nn_cases,
    "pool": operator_cases.pool_cases,
    "reduce": reduce_cases,
    "image": lambda: [*resize_cases()[::5], *block_cases()],
}


def lowered(module: ir.IRModule, features: Features = DEVICE) -> Program:
    """Return a module's program for a device, with all accesses checked to be in bounds."""
    program = transform.lower(transform.run(module, {}), features)
    for kernel in program.kernels:
        verify(kernel)
    return program


def module_of(case: Case) -> tuple[ir.IRModule, dict[str, Any]]:
    """Return a module of one operator, and its inputs: arrays are inputs, scalars are constants."""
    inputs: dict[str, Any] = {}
    variables: list[ir.Var] = []

    def argument(name: str, value: Any) -> ir.Expr:
        if isinstance(value, tuple):
            return ir.Tuple(tuple(argument(f"{name}_{index}", item) for index, item in enumerate(value)))
        array = np.asarray(value)
        if array.ndim == 0:
            return ir.const(array)
        inputs[name] = array
        variables.append(ir.Var(name, ir.TensorType(array.shape, str(array.dtype))))
        return variables[-1]

    args = [argument(f"x{position}", arg) for position, arg in enumerate(case.args)]
    body = ir.call(case.operator, args, case.attrs)
    return ir.IRModule({"main": ir.Function(tuple(variables), body)}, ("y",)), inputs


def failures(cases: Sequence[Case], run_all: Callable[[Sequence[Program]], RunKernel]) -> list[str]:
    """Return the failures of the cases; `run_all` returns the function that runs the kernels of all programs."""
    modules = [module_of(case) for case in cases]
    programs = [lowered(module) for module, _ in modules]
    run = run_all(programs)
    found = []
    for case, (_, inputs), program in zip(cases, modules, programs, strict=True):
        try:
            case.check(run_program(program, inputs, run)["y"])
        except AssertionError as error:
            found.append(f"{case}: {error}")
    return found


def on_opencl(programs: Sequence[Program]) -> RunKernel:
    """Return a function that runs the kernels of programs on the OpenCL device."""
    assert all(program.contracts_floats for program in programs)
    return OnOpencl([kernel for program in programs for kernel in program.kernels])


@pytest.mark.parametrize(
    ("operator", "shape", "attrs", "blocks"),
    [
        ("mean", (1, 112, 112, 32), {"axis": (1, 2)}, [(32, 8, 1), (32, 8, 1)]),  # partial sums, then their sum
        ("nn.avg_pool2d", (1, 112, 112, 32), {"pool_size": (112, 112), "layout": "NHWC"}, [(32, 8, 1), (32, 8, 1)]),
        ("nn.max_pool2d", (1, 30, 11, 64), {"pool_size": (30, 11), "layout": "NHWC"}, [(32, 8, 1)]),
        ("nn.avg_pool2d", (1, 7, 7, 1280), {"pool_size": (7, 7), "layout": "NHWC"}, [(256, 1, 1)]),
        ("max", (3, 20000), {"axis": 1}, [(256, 1, 1), (32, 1, 1)]),
        ("sum", (20000, 64), {"axis": 1}, [(32, 4, 1)]),  # four rows per group
        ("sum", (64, 20000), {"axis": 0}, [(256, 1, 1)]),  # one column per item
        ("argmax", (1, 64, 64, 21), {"axis": 3}, [(1, 128, 1)]),
        ("argmax", (1, 21, 64, 64), {"axis": 1}, [(64, 1, 1)]),
    ],
)
def test_reductions_leave_no_device_idle(
    operator: str, shape: tuple[int, ...], attrs: dict[str, Any], blocks: list[tuple[int, int, int]]
) -> None:
    x = ir.Var("x", ir.TensorType(shape, "float32"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call(operator, [x], attrs))}, ("y",))
    (kernel,) = lowered(module).kernels
    assert [launch.block for launch in launches(kernel)] == blocks


@pytest.mark.parametrize(
    ("operator", "shape", "attrs", "items"),
    [
        ("qnn.avg_pool2d", (1, 7, 7, 160), {"pool_size": (7, 7), "layout": "NHWC"}, 160),
        ("qnn.softmax", (2, 1000), {"axis": 1}, 512),
    ],
)
def test_quantized_reductions_are_the_work_of_many(
    operator: str, shape: tuple[int, ...], attrs: dict[str, Any], items: int
) -> None:
    x = ir.Var("x", ir.TensorType(shape, "int8"))
    numbers = [
        ir.const(np.float32(0.5)),
        ir.const(np.int32(3)),
        ir.const(np.float32(1 / 256)),
        ir.const(np.int32(-128)),
    ]
    module = ir.IRModule({"main": ir.Function((x,), ir.call(operator, [x, *numbers], attrs))}, ("y",))
    (kernel,) = lowered(module).kernels
    (launch,) = launches(kernel)
    assert prod(launch.grid) * prod(launch.block) == items


def test_windows_that_are_the_whole_image() -> None:
    image = np.random.default_rng(3).standard_normal((2, 30, 11, 5)).astype(np.float32)
    attrs = {"pool_size": (30, 11), "layout": "NHWC"}
    wide = image.astype(np.float64)
    cases = [
        Case("nn.max_pool2d", [image], lambda: image.max((1, 2), keepdims=True), attrs),
        Case(
            "nn.avg_pool2d", [image], lambda: wide.mean((1, 2), keepdims=True).astype(np.float32), attrs, relative=1e-6
        ),
    ]
    assert not failures(cases, on_opencl)


def test_rows_side_by_side_in_a_group() -> None:
    rows = np.random.default_rng(3).integers(-100, 100, (16401, 35)).astype(np.int32)
    case = Case("sum", [rows], lambda: rows.sum(1, dtype=np.int32), {"axis": 1})
    assert not failures([case], on_opencl)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_for_small_devices_take_no_more_than_they_have(family: str) -> None:
    features = parse_target("opencl -max_num_threads=63 -max_shared_memory_per_block=4096").features
    for case in FAMILIES[family]():
        for prim in lowered(module_of(case)[0], features).kernels:
            for kernel in device_kernels(prim, "small"):
                assert prod(kernel.block) <= 32, case
                assert kernel.shared_bytes <= 4096, case


@pytest.mark.parametrize("family", FAMILIES)
def test_opencl(family: str) -> None:
    """Run every operator, and every other case; drivers compile slowly, and `test_cuda_text` runs all cases."""
    cases = FAMILIES[family]()
    firsts = {case.operator: place for place, case in reversed([*enumerate(cases)])}.values()
    assert not failures([cases[place] for place in sorted({*firsts, *range(0, len(cases), 2)})], on_opencl)


@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_text(family: str) -> None:
    def build(programs: Sequence[Program]) -> RunKernel:
        built = CudaOnHost([kernel for program in programs for kernel in program.kernels])
        assert_nvrtc_takes(built.source)
        return built

    assert not failures(FAMILIES[family](), build)


@pytest.mark.parametrize("cases", [QUANTIZED, FLOAT], ids=["quantized", "float"])
def test_cuda_text_of_tflite_operators(cases: list[TfliteCase]) -> None:
    """Compare with LiteRT's results; integers must be equal."""
    module, params = mlfc.import_model(model_of(cases))
    program = transform.lower(transform.run(module, params), DEVICE)
    inputs = inputs_of(cases, np.random.default_rng(6))
    outputs = run_program(program, inputs, CudaOnHost(program.kernels))
    for case in cases:
        check(case, [(inputs, outputs)])
