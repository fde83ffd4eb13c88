"""Kernels for the DSP extension on emulated Cortex-M4 and M7, compared with the portable form on the host."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mlfc
import mlfc.ops
from mlfc.codegen.c import print_function
from mlfc.factory import Factory
from mlfc.micro.board.board import find_board
from mlfc.micro.run.emulator import emulated_factory
from mlfc.relay import ir
from mlfc.transform.lower_group import lower_group
from tests.c_files import print_file
from tests.emulator.conftest import CMSIS_NN
from tests.harness import built, module_of, seeded_inputs
from tests.native.kernel_runner import group_of
from tests.native.test_dsp_kernels import ALL, DSP, WARNINGS, requantized_sums, weights_of
from tests.native.test_kernels import random_integers

pytestmark = pytest.mark.usefixtures("_arm", "unoptimized_builds")

C = "c -mcpu=cortex-m4"
LLVM = "llvm -mcpu=cortex-m4"

# one layer per code path of the kernels
FEW = (
    "1x1_stride", "1x1_tail_of_1", "dilated", "3x3_stride_asymmetric", "first_layer", "row_kernel", "one_pixel",
    "padding_beyond_kernel", "groups", "depthwise_stride", "depthwise_multiplier", "depthwise_dilated",
    "depthwise_one_tap", "depthwise_bands", "depthwise_stride_three", "depthwise_even_kernel", "depthwise_column",
    "two_channels_stride_three", "patch_in_the_workspace", "one_filter",
)  # fmt: skip


@cache
def layers(target: str, names: Iterable[str]) -> tuple[Factory, dict[str, np.ndarray]]:
    """Return a module of layers, and its inputs."""
    inputs, bodies = {}, {}
    for name in names:
        case = ALL[name]
        inputs[name] = random_integers(np.random.default_rng(list(ALL).index(name)), "int8", case.data)

        def body(variables, name=name, case=case):
            biases = np.arange(case.filters, dtype=np.int32) * 7
            return requantized_sums(variables[name], case, weights_of(case), biases, 0.002)

        bodies[f"{name}_out"] = body
    return mlfc.build(module_of(inputs, bodies), target, module_name="model"), inputs


@cache
def on_this_machine() -> dict[str, np.ndarray]:
    factory, inputs = layers(C, tuple(ALL))
    return factory.runtime.run(inputs)


@pytest.mark.parametrize(
    ("target", "board", "cflags", "names"),
    [
        (C, "mps2-an386", "-O0", tuple(ALL)),
        # compilers treat kernels of one kind alike, regardless of sizes
        (C, "mps2-an386", "-O3", FEW),
        (LLVM, "mps2-an386", "-O3", FEW[::2]),
        ("c -mcpu=cortex-m7", "mps2-an500", "-Os", FEW[1::2]),
    ],
    ids=lambda value: f"{len(value)}_layers" if isinstance(value, tuple) else None,
)
def test_layers_are_what_the_host_computes(target: str, board: str, cflags: str, names: tuple[str, ...]) -> None:
    factory, inputs = layers(target, names)
    for name, output in emulated_factory(factory, find_board(board), cflags=cflags).run(inputs).items():
        np.testing.assert_array_equal(output, on_this_machine()[name], err_msg=name)


@cache
def kernels_in_c() -> str:
    """Return a kernel of each kind."""
    printed = []
    for name in ("3x3_same", "1x1", "depthwise", "first_layer"):
        case = ALL[name]
        x = ir.Var("x", ir.TensorType(case.data, "int8"))
        body = requantized_sums(x, case, weights_of(case), np.zeros(case.filters, np.int32), 0.002)
        printed.append(print_function(lower_group(group_of(body, [x]), DSP).prim, f"kernel_{name}"))
    return print_file(printed)


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m7", "cortex-m33", "cortex-m3"])
def test_cores_compile_their_form_without_warnings(cpu: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(kernels_in_c())
    command = ["arm-none-eabi-gcc", "-O1", "-mthumb", f"-mcpu={cpu}", "-S", *WARNINGS, "kernels.c"]
    # the prototypes of kernels are in the module's header
    subprocess.run(command, cwd=tmp_path, check=True)
    _, *functions = re.split(r"^kernel_\w+:$", (tmp_path / "kernels.s").read_text(), flags=re.MULTILINE)
    assert ["\tsmlad\t" in function for function in functions] == [cpu != "cortex-m3"] * 4


# test_memory_truth.py asserts this for C kernels where it measures their memory, test_mve_on_boards.py for MVE kernels,
# and test_llvm_firmware.py for a model with all other kinds of layers on both cores where it compares outputs
def test_objects_take_two_thirds_of_the_instructions_of_the_best_other(models: Path) -> None:
    name, board = "ad01_int8", find_board("mps2-an386")
    made = emulated_factory(built(models / f"{name}.tflite", LLVM), board)
    run = made.measure(seeded_inputs(made.inputs, 1))
    assert run.instructions < 0.66 * CMSIS_NN[name, board.name]
    assert run.stack_bytes < 1536
