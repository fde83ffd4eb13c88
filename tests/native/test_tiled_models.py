"""Models tiled by rows compute the same bits as without tiling, in C."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
import mlfc.ops
from mlfc.archive.read.load import load_factory
from mlfc.archive.validate.validate import validate
from mlfc.relay import ir
from tests.harness import edge_inputs, module_of, seeded_inputs

pytestmark = pytest.mark.usefixtures("unoptimized_builds")

Inputs: TypeAlias = "Mapping[str, npt.NDArray[Any]]"
CASES = [
    ("vww_96_int8", "c -mcpu=cortex-m4", 41_473, False),
    ("kws_ref_model", "c", 15_900, False),
    ("digits.onnx", "c -mcpu=cortex-m0plus", 1_700, False),
]
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def whole_runs(models: Path) -> Callable[[str, str], list[tuple[Inputs, Inputs]]]:
    """Return a cached function that returns inputs of a model and the outputs of the model without tiling."""

    @cache
    def runs(file: str, target: str) -> list[tuple[Inputs, Inputs]]:
        mod, params = imported(models, file)
        module = load_factory(mlfc.build(mod, target, params, module_name="whole"))
        edges = edge_inputs(module.inputs) if module.inputs[0].dtype == "int8" else []
        return [
            (given, module.run(given)) for given in [seeded_inputs(module.inputs, seed) for seed in range(3)] + edges
        ]

    return runs


def imported(models: Path, file: str) -> tuple[ir.IRModule, Inputs]:
    return mlfc.import_model(DIGITS if file == DIGITS.name else models / f"{file}.tflite")


@pytest.mark.parametrize(("file", "target", "ram", "workspace_io"), CASES)
def test_results_are_the_same(
    models: Path,
    whole_runs: Callable[[str, str], list[tuple[Inputs, Inputs]]],
    file: str,
    target: str,
    ram: int,
    workspace_io: bool,
) -> None:
    mod, params = imported(models, file)
    whole = mlfc.build(mod, target, params, module_name="whole", workspace_io=workspace_io, dry_run=True)
    tiled = mlfc.build(mod, target, params, module_name="tiled", workspace_io=workspace_io, ram=ram)
    assert tiled.program.tiling.count > 1
    assert tiled.plan.size < whole.plan.size
    if (target, workspace_io) == ("c -mcpu=cortex-m4", False):
        assert tiled.plan.size <= whole.plan.size // 2
    # recomputed rows would increase the sum
    assert sum(call.kernel.macs for call in tiled.program.calls) == sum(
        call.kernel.macs for call in whole.program.calls
    )
    module = load_factory(tiled)
    # integers are equal for all targets, so one library without tiling is enough
    for inputs, expected in whole_runs(file, target if file == DIGITS.name else "c"):
        got = module.run(inputs)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)


def convolved(data: ir.Expr, filters: int, kernel: tuple[int, int], **attrs: Any) -> ir.Expr:
    """Return an int8 convolution with random weights whose results cover the whole range."""
    shape = (*kernel, ir.tensor_type(data).shape[3], filters)
    weights = np.random.default_rng(filters).integers(-127, 128, shape).astype(np.int8)
    zero, scale = ir.const(np.int32(0)), ir.const(np.float32(0.5))
    fitting = ir.const(np.float32(0.007 / np.sqrt(np.prod(shape[:3]))))
    sums = ir.call(
        "qnn.conv2d", [data, ir.const(weights), zero, zero, scale, scale], channels=filters, kernel_size=kernel,
        data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32", **attrs,
    )  # fmt: skip
    return ir.call(
        "qnn.requantize", [sums, fitting, zero, ir.const(np.float32(1)), zero], axis=3,
        rounding="DOUBLE", out_dtype="int8",
    )  # fmt: skip


def more_padding_than_window(x: ir.Expr) -> ir.Expr:
    first = convolved(x, 16, (3, 3), padding=(1, 1, 1, 1))
    second = convolved(first, 4, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    return convolved(convolved(second, 3, (1, 1), padding=(3, 3, 3, 3)), 2, (15, 10))


def rows_that_several_tiles_carry(x: ir.Expr) -> ir.Expr:
    first = convolved(x, 16, (3, 3), padding=(1, 1, 1, 1))
    return convolved(convolved(first, 3, (5, 3), padding=(2, 1, 2, 1)), 2, (17, 8))


def sums_with_their_own_input(x: ir.Expr) -> ir.Expr:
    first = convolved(x, 16, (3, 3), padding=(1, 1, 1, 1))
    second = convolved(first, 4, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    third = ir.call("maximum", [convolved(second, 4, (3, 3), padding=(1, 1, 1, 1)), second])
    return convolved(third, 2, (9, 4))


def rows_with_constants_of_their_own(x: ir.Expr) -> ir.Expr:
    first = convolved(x, 16, (3, 3), padding=(1, 1, 1, 1))
    second = convolved(first, 4, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    third = convolved(second, 3, (3, 3), padding=(1, 1, 1, 1))
    return convolved(ir.call("nn.bias_add", [third, ir.const(np.arange(9, dtype=np.int8))], axis=1), 2, (9, 4))


ODD = [
    more_padding_than_window,
    rows_that_several_tiles_carry,
    sums_with_their_own_input,
    rows_with_constants_of_their_own,
]


@pytest.mark.parametrize("layers", ODD)
def test_odd_chains_give_what_they_give_whole(layers: Callable[[ir.Expr], ir.Expr], tmp_path: Path) -> None:
    plain, unrolled, vectors = "c -mcpu=generic-rv32", "c -mcpu=cortex-m4", "c -mcpu=cortex-m55"
    module = module_of({"x": np.zeros((1, 17, 8, 4), np.int8)}, {"y": lambda v: layers(v["x"])})
    whole = load_factory(mlfc.build(module, plain, module_name="whole"))
    inputs = seeded_inputs(whole.inputs, 0)
    expected = whole.run(inputs)["y"]
    assert np.ptp(expected) > 0
    tiled = {plain: 0, unrolled: 0, vectors: 0}
    for target, ram in ((plain, 900), (plain, 1900), (unrolled, 1300), (vectors, 1900)):
        factory = mlfc.build(module, target, module_name="tiled", ram=ram, workspace_io=target == vectors)
        tiled[target] += factory.program.tiling is not None
        path = mlfc.export_model_library_format(factory, tmp_path / "tiled.tar")
        assert [str(fault) for fault in validate(path)] == []
        np.testing.assert_array_equal(mlfc.load(path).run(inputs)["y"], expected)
    assert all(tiled.values())


def test_commands_tell_of_stripes(command: Callable[..., str], tmp_path: Path) -> None:
    archive = tmp_path / "digits.tar"
    options = ("--target", "c -mcpu=cortex-m7", "--module-name", "digits", "-o", archive, "--json")
    plain = json.loads(command("compile", DIGITS, *options))["modules"]["digits"]["memory"]["workspace_bytes"]
    tiled = json.loads(command("compile", DIGITS, *options, "--ram", 1_700))["modules"]["digits"]
    assert tiled["memory"]["workspace_bytes"] <= 1_700
    assert tiled["stripes"]["workspace_bytes_without"] == plain
    command("validate", archive)
    assert "within tolerance" in command("verify", DIGITS, archive, "--samples", 1)
