"""Kernels for MVE on an emulated Cortex-M55: the results of the portable form on the host, in few instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlfc
import mlfc.ops
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.relay import ir
from tests.emulator.conftest import CMSIS_NN
from tests.harness import built, module_of, seeded_inputs
from tests.native.test_mve_kernels import LAYERS, layer, scalar

pytestmark = pytest.mark.usefixtures("_arm", "unoptimized_builds")

BOARD = "mps3-an547"
LLVM = "llvm -mcpu=cortex-m55 -mfloat-abi=hard"


def check(module: ir.IRModule, inputs: dict[str, np.ndarray], cflags: str = "-O3") -> None:
    """Compare every output on the emulated core with the host's."""
    factory = mlfc.build(module, find_board(BOARD).target, module_name="model")
    expected = factory.runtime.run(inputs)
    # compiler flags do not affect LLVM's objects
    by_llvm = [mlfc.build(module, LLVM, module_name="model")] if cflags == "-O3" else []
    for made in (factory, *by_llvm):
        for name, output in emulated_factory(made, find_board(BOARD), cflags=cflags).run(inputs).items():
            np.testing.assert_array_equal(output, expected[name], err_msg=name)


# one layer per code path of the kernels
FEW = (
    "1x1_odd_plane", "1x1_stride", "1x1_few_channels", "3x3", "3x3_stride", "10x4", "one_channel",
    "depthwise_odd_channels", "depthwise_lowest_weight", "depthwise_one_tap", "depthwise_large_kernel",
)  # fmt: skip


@pytest.mark.parametrize(
    ("zero", "rounding", "scale", "cflags", "names"),
    [
        (-128, "DOUBLE", 0.01, "-O3", tuple(LAYERS)),
        # compilers and roundings treat kernels of one kind alike, regardless of sizes
        (127, "DOUBLE", 3.0, "-Os", FEW),
        (3, "SINGLE", 0.01, "-O0", FEW),
    ],
    ids=["O3", "Os", "O0"],
)
def test_layers_are_what_the_host_computes(
    zero: int, rounding: str, scale: float, cflags: str, names: tuple[str, ...]
) -> None:
    inputs, bodies = {}, {}
    for number, name in enumerate(names):
        group, arrays = layer(name, zero, rounding, scale)
        given = {f"{var.name}_{number}": array for var, array in zip(group.params, arrays, strict=True)}
        inputs.update(given)

        def body(v, group=group, given=given):
            replaced = {id(var): v[key] for var, key in zip(group.params, given, strict=True)}
            return rebuilt(group.body, replaced)

        bodies[name] = body
    check(module_of(inputs, bodies), inputs, cflags)


def rebuilt(expr: ir.Expr, replaced: dict[int, ir.Expr]) -> ir.Expr:
    """Return the expression with replaced variables."""
    if id(expr) not in replaced and isinstance(expr, ir.Call):
        arguments = [rebuilt(arg, replaced) for arg in expr.args]
        replaced[id(expr)] = ir.call(expr.op.name, arguments, **expr.attrs)
    return replaced.get(id(expr), expr)


@pytest.mark.parametrize("rounding", ["DOUBLE", "SINGLE"])
def test_every_rounding_of_ties_and_extremes(rounding: str) -> None:
    """Use channels with shifts from far left to far right, and multiples of half a unit as values."""
    scales = np.asarray([2.0**-power for power in range(-3, 29)], np.float32) * np.float32(0.75)
    rng = np.random.default_rng(0)
    halves = np.arange(-300, 300)[:, None] / (2 * scales.astype(np.float64))
    ties = np.clip(np.rint(halves), -(2**27), 2**27)
    rows = [ties + offset for offset in (-1, 0, 1)]
    extremes = np.asarray([[2**31 - 1], [-(2**31)], [0]]) // np.maximum(1, np.ceil(scales))
    rows += [extremes, rng.integers(-(2**27), 2**27, (64, scales.size))]
    x = np.concatenate(rows).astype(np.int32)

    def body(one: np.ndarray):
        def make(v):
            arguments = [v["x"], ir.const(one), scalar(0, "int32"), scalar(1.0), scalar(-3, "int32")]
            return ir.call("qnn.requantize", arguments, axis=-1, rounding=rounding, out_dtype="int8")

        return make

    bodies = {"all": body(scales)}
    bodies |= {f"right_{index}": body(scales[index : index + 1]) for index in (3, 4, 5, 9, 31)}
    bodies["rights"] = body(np.maximum.accumulate(scales[::-1])[::-1] / np.float32(8.0))
    check(module_of({"x": x}, bodies), {"x": x})


# test_memory_truth.py asserts this for C kernels where it measures their memory, and test_llvm_firmware.py for a model
# with all other kinds of layers where it compares outputs
def test_objects_take_two_thirds_of_the_instructions_of_the_best_other(models: Path) -> None:
    name = "pretrainedResnet_quant"
    made = emulated_factory(built(models / f"{name}.tflite", LLVM), find_board(BOARD))
    run = made.measure(seeded_inputs(made.inputs, 1))
    assert run.instructions < 0.65 * CMSIS_NN[name, BOARD]
    assert run.stack_bytes < 1536
