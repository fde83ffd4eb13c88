"""Kernels for the DSP extension on emulated Cortex-M4 and M7: what the portable form computes on the host."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mlfc
import mlfc.ops
from mlfc.codegen.c import print_file, print_function
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.relay import ir
from mlfc.transform.lower_group import lower_group
from tests.harness import built, module_of, seeded_inputs
from tests.native.kernel_runner import group_of
from tests.native.test_dsp_kernels import ALL, DSP, WARNINGS, requantized_sums, weights_of
from tests.native.test_kernels import random_integers

pytestmark = pytest.mark.usefixtures("_arm")

C = "c -mcpu=cortex-m4"
LLVM = "llvm -mcpu=cortex-m4"

# TensorFlow Lite Micro with CMSIS-NN takes these on a Cortex-M4 of the same emulator
BAR = {
    "pretrainedResnet_quant": 28_505_512,
    "kws_ref_model": 7_228_269,
    "vww_96_int8": 22_608_979,
    "ad01_int8": 573_204,
}


@cache
def layers(target: str) -> tuple[Factory, dict[str, np.ndarray]]:
    """Return all layers as one module, and inputs."""
    inputs, bodies = {}, {}
    for number, (name, case) in enumerate(ALL.items()):
        inputs[name] = random_integers(np.random.default_rng(number), "int8", case.data)

        def body(variables, name=name, case=case):
            biases = np.arange(case.filters, dtype=np.int32) * 7
            return requantized_sums(variables[name], case, weights_of(case), biases, 0.002)

        bodies[f"{name}_out"] = body
    return mlfc.build(module_of(inputs, bodies), target, module_name="model"), inputs


@cache
def on_this_machine() -> dict[str, np.ndarray]:
    factory, inputs = layers(C)
    return factory.runtime.run(inputs)


@pytest.mark.parametrize(
    ("target", "board", "cflags"),
    [
        (C, "mps2-an386", "-O3"),
        (LLVM, "mps2-an386", "-O3"),
        (C, "mps2-an386", "-O0"),
        ("c -mcpu=cortex-m7", "mps2-an500", "-Os"),
    ],
)
def test_layers_are_what_the_host_computes(target: str, board: str, cflags: str) -> None:
    factory, inputs = layers(target)
    for name, output in emulated_factory(factory, find_board(board), cflags=cflags).run(inputs).items():
        np.testing.assert_array_equal(output, on_this_machine()[name], err_msg=name)


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m7", "cortex-m33", "cortex-m3"])
def test_cores_compile_their_form_without_warnings(cpu: str, tmp_path: Path) -> None:
    for name in ("3x3_same", "1x1", "depthwise", "first_layer"):
        case = ALL[name]
        x = ir.Var("x", ir.TensorType(case.data, "int8"))
        body = requantized_sums(x, case, weights_of(case), np.zeros(case.filters, np.int32), 0.002)
        prim = lower_group(group_of(body, [x]), DSP).prim
        (tmp_path / "kernel.c").write_text(print_file([print_function(prim, "kernel")]))
        command = ["arm-none-eabi-gcc", "-O3", "-mthumb", f"-mcpu={cpu}", "-S", *WARNINGS, "kernel.c"]
        # a prototype of the kernel stands in a module's header
        subprocess.run(command, cwd=tmp_path, check=True)
        assert ("\tsmlad\t" in (tmp_path / "kernel.s").read_text()) == (cpu != "cortex-m3")


@pytest.mark.parametrize(
    ("name", "target", "share"),
    [*((name, "c", 0.65) for name in BAR), *((name, LLVM, 0.66 if name == "ad01_int8" else 0.6) for name in BAR)],
)
def test_models_take_two_thirds_of_the_instructions_of_the_best_other(
    name: str, target: str, share: float, models: Path
) -> None:
    board = find_board("mps2-an386")
    made = emulated_factory(built(models / f"{name}.tflite", LLVM if target == LLVM else board.target), board)
    run = made.measure(seeded_inputs(made.inputs, 1))
    assert run.instructions < share * BAR[name]
    assert run.stack_bytes < 1536
