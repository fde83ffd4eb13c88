"""Kernels for AArch64's products of matrices of bytes: here in their portable form, and emulated."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import llvmlite.ir as ll
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_file, print_function
from mlfc.codegen.llvm.kernels import emit_kernel
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import compile_object
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from mlfc.tir.ir import PrimFunc
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.foreign_programs import ZIG, KernelRun, emulator_of, input_bytes, link_program, linked, outputs
from tests.native.kernel_runner import build, group_of
from tests.native.test_mve_kernels import PLAIN, layer, requantized, scalar

Array = npt.NDArray[Any]

I8MM = Features(instruction_sets=("i8mm",))
SERVED = ("1x1", "1x1_odd_plane", "1x1_wide_odd_plane", "1x1_stride", "3x3", "3x3_large_column")
NUMBERS = ((-128, "DOUBLE"), (127, "SINGLE"), (0, "TONEVEN"))
TARGET = "llvm -mtriple=aarch64-linux-gnu -mattr=+i8mm"


def large_layer() -> tuple[ir.Function, list[Array]]:
    """Return a convolution of 3x3 from 32 to 32 channels, with its requantization."""
    rng = np.random.default_rng(5)
    x = ir.Var("x", ir.TensorType((1, 8, 8, 32), "int8"))
    weights = rng.integers(-127, 128, (3, 3, 32, 32)).astype(np.int8)
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), scalar(-128, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
    data = rng.integers(-128, 128, (1, 8, 8, 32)).astype(np.int8)
    return group_of(requantized(call, np.linspace(0.001, 0.01, 32), "DOUBLE"), [x]), [data]


# what is padded meets every zero point; the sums are rounded behind the products, whatever the layer
@pytest.mark.parametrize(
    ("name", "zero", "rounding"),
    [
        *((name, *numbers) for name in ("3x3", "3x3_large_column") for numbers in NUMBERS),
        *((name, *NUMBERS[place % len(NUMBERS)]) for place, name in enumerate(SERVED[:4])),
    ],
)
def test_layers_are_what_plain_loops_compute(name: str, zero: int, rounding: str) -> None:
    group, inputs = layer(name, zero, rounding, 0.01)
    kernel = build(group, I8MM)
    assert ("mlf_mmla_s8" in kernel.source) == (inputs[0].shape[3] >= 8)
    np.testing.assert_array_equal(kernel(*inputs), build(group, PLAIN)(*inputs))
    lowered = kernel.group
    np.testing.assert_array_equal(kernel(*inputs), interpreter.run(lowered.prim, inputs, lowered.constants))


@pytest.mark.parametrize(("rows", "size", "units"), [(2, 8, 1), (3, 24, 5), (17, 64, 20), (8, 13, 10)])
def test_dense_layers_are_what_plain_loops_compute(rows: int, size: int, units: int) -> None:
    rng = np.random.default_rng(size)
    x = ir.Var("x", ir.TensorType((rows, size), "int8"))
    weights = rng.integers(-128, 128, (units, size)).astype(np.int8)
    call = ir.call(
        "qnn.dense", [x, ir.const(weights), scalar(-128, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        units=units, out_dtype="int32",
    )  # fmt: skip
    group = group_of(requantized(call, np.asarray([0.002]), "DOUBLE"), [x])
    data = rng.integers(-128, 128, (rows, size)).astype(np.int8)
    kernel = build(group, I8MM)
    assert "mlf_mmla_s8" in kernel.source
    np.testing.assert_array_equal(kernel(data), build(group, PLAIN)(data))


def test_processors_with_the_instructions() -> None:
    for cpu in ("neoverse-v1", "neoverse-n2", "cortex-a510", "cortex-a710", "apple-m2"):
        assert parse_target(f"c -mcpu={cpu}").features.has("i8mm")
        found = machine_of(parse_target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}"))
        assert "i8mm" in found.instruction_sets
    assert parse_target(TARGET).features.has("i8mm")
    for text in ("c", "c -mcpu=neoverse-n1", "llvm -mtriple=aarch64-linux-gnu", "llvm -mcpu=x86-64-v4"):
        assert not parse_target(text).features.has("i8mm")


def expected(lowered: LoweredGroup, inputs: list[Array]) -> Array:
    return np.asarray(interpreter.run(lowered.prim, inputs, lowered.constants))


def lowered_layers() -> list[tuple[LoweredGroup, list[Array]]]:
    layers = [layer(name, -128, "DOUBLE", 0.01) for name in SERVED[:4]]
    return [(lower_group(group, I8MM), inputs) for group, inputs in layers]


def objects_of_c(prims: list[PrimFunc], flags: list[str], place: Path) -> None:
    functions = [print_function(prim, f"kernel{number}") for number, prim in enumerate(prims)]
    (place / "kernels.c").write_text(print_file(functions))
    command = [
        *ZIG,
        "-target",
        "aarch64-linux-gnu",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        *flags,
        "-c",
        "kernels.c",
        "-o",
        "kernels.o",
    ]
    subprocess.run(command, cwd=place, check=True)


@pytest.mark.parametrize("printer", ["c", "c without", "llvm"])
def test_emulated_processors_compute_the_same(printer: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    emulator = emulator_of("aarch64-linux-gnu")
    layers = lowered_layers()
    runs = [KernelRun(lowered.prim, [*inputs, *lowered.constants]) for lowered, inputs in layers]
    program = tmp_path / "program"
    linked(runs, TARGET, "aarch64-linux-gnu", program)
    if printer != "llvm":
        flags = ["-mcpu=generic+i8mm"] if printer == "c" else []
        objects_of_c([run.prim for run in runs], flags, tmp_path)
        link_program("aarch64-linux-gnu", "main.c", ["kernels.o"], program)
    command = [*emulator, "-cpu", "max", str(program)]
    found = outputs(runs, subprocess.run(command, input=input_bytes(runs), capture_output=True, check=True).stdout)
    for (lowered, inputs), output in zip(layers, found, strict=True):
        np.testing.assert_array_equal(output, expected(lowered, inputs))


def test_llvm_code_has_the_instruction() -> None:
    machine = machine_of(parse_target(TARGET))
    module = ll.Module("kernels")
    group, _ = large_layer()
    emit_kernel(module, lower_group(group, I8MM).prim, "kernel", machine=machine, contracts=False)
    words = np.frombuffer(compile_object(module, machine)[: -1 & ~3], "<u4")[: 1 << 14]
    assert np.count_nonzero(words & 0xFFE0FC00 == 0x4E80A400) >= 16  # smmla


def executed(features: Features, target: str, place: Path) -> int:
    """Return how many instructions the kernel of the large layer takes under QEMU."""
    group, inputs = large_layer()
    lowered = lower_group(group, features)
    place.mkdir()
    run = KernelRun(lowered.prim, [*inputs, *lowered.constants])
    linked([run], target, "aarch64-linux-gnu", place / "program")
    tracing = ["-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", str(place / "trace")]
    command = [*emulator_of("aarch64-linux-gnu"), *tracing, str(place / "program")]
    done = subprocess.run(command, input=input_bytes([run]), capture_output=True, check=True)
    np.testing.assert_array_equal(outputs([run], done.stdout)[0], expected(lowered, inputs))
    with (place / "trace").open() as lines:
        return sum("kernel0" in line for line in lines)


def test_the_instructions_save_instructions(tmp_path: Path) -> None:
    """590 thousand multiply-accumulates; the dot products of the same processor take twice as many instructions."""
    pytest.importorskip("ziglang")
    ours = executed(I8MM, TARGET, tmp_path / "i8mm")
    dots = executed(Features(), TARGET.replace("=+", "=+dotprod,+"), tmp_path / "dots")
    assert 1.5 * ours < dots
