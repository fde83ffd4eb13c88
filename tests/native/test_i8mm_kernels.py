"""Kernels for AArch64's int8 matrix products: here in their portable form, and emulated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.ir as ll
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.llvm.code import emit_kernel
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import compile_object
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from mlfc.transform.lower_group import LoweredGroup, lower_group
from tests.native.foreign_programs import KernelRun, executed, linked, linked_c, results
from tests.native.kernel_runner import UNOPTIMIZED, Kernels, group_of
from tests.native.test_mve_kernels import PLAIN, layer, requantized, scalar

Array = npt.NDArray[Any]

I8MM = Features(instruction_sets=("i8mm",))
SERVED = ("1x1", "1x1_odd_plane", "1x1_wide_odd_plane", "1x1_stride", "3x3", "3x3_large_column")
NUMBERS = ((-128, "DOUBLE"), (127, "SINGLE"), (0, "TONEVEN"))
AARCH64 = "aarch64-linux-gnu"
TARGET = f"llvm -mtriple={AARCH64} -mattr=+i8mm"
C_FLAGS = {
    "c": ("-mcpu=generic+i8mm",),
    "c without": (),
    "c with dot products": ("-mcpu=generic+dotprod",),
    "c with sve": ("-mcpu=generic+i8mm+sve", "-msve-vector-bits=256"),
}


def large_layer() -> tuple[ir.Function, list[Array]]:
    """Return a 3x3 convolution from 32 to 32 channels, with its requantization."""
    rng = np.random.default_rng(5)
    x = ir.Var("x", ir.TensorType((1, 4, 8, 32), "int8"))
    weights = rng.integers(-127, 128, (3, 3, 32, 32)).astype(np.int8)
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), scalar(-128, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
    data = rng.integers(-128, 128, (1, 4, 8, 32)).astype(np.int8)
    return group_of(requantized(call, np.linspace(0.001, 0.01, 32), "DOUBLE"), [x]), [data]


def dense_layer(rows: int, size: int, units: int) -> tuple[ir.Function, list[Array]]:
    rng = np.random.default_rng(size)
    x = ir.Var("x", ir.TensorType((rows, size), "int8"))
    weights = rng.integers(-128, 128, (units, size)).astype(np.int8)
    call = ir.call(
        "qnn.dense", [x, ir.const(weights), scalar(-128, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        units=units, out_dtype="int32",
    )  # fmt: skip
    group = group_of(requantized(call, np.asarray([0.002]), "DOUBLE"), [x])
    return group, [rng.integers(-128, 128, (rows, size)).astype(np.int8)]


# padding is tested with every zero point; rounding follows the products and does not depend on the layer
LAYERS: dict[str, Callable[[], tuple[ir.Function, list[Array]]]] = {
    **{
        f"{name}-{zero}-{rounding}": partial(layer, name, zero, rounding, 0.01)
        for name, (zero, rounding) in [
            *((name, numbers) for name in ("3x3", "3x3_large_column") for numbers in NUMBERS),
            *((name, NUMBERS[place % len(NUMBERS)]) for place, name in enumerate(SERVED[:4])),
        ]
    },
    **{f"dense-{sizes}": partial(dense_layer, *sizes) for sizes in [(2, 8, 1), (3, 24, 5), (17, 64, 20), (8, 13, 10)]},
}


@cache
def made(name: str) -> tuple[ir.Function, list[Array]]:
    return LAYERS[name]()


@cache
def kernels() -> Kernels[tuple[str, str]]:
    targets = {"i8mm": I8MM, "plain": PLAIN}
    groups = {(name, key): (made(name)[0], features) for name in LAYERS for key, features in targets.items()}
    return Kernels(groups, UNOPTIMIZED)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_plain_loops_compute(name: str) -> None:
    _, inputs = made(name)
    kernel = kernels()[name, "i8mm"]
    assert ("mlf_mmla_s8" in kernel.source) == (inputs[0].shape[-1] >= 8)
    found = kernel(*inputs)
    np.testing.assert_array_equal(found, kernels()[name, "plain"](*inputs))
    np.testing.assert_array_equal(found, expected(kernel.group, inputs))


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


@cache
def lowered_layers() -> list[tuple[KernelRun, Array]]:
    """Return layers and their expected results."""
    layers = [layer(name, -128, "DOUBLE", 0.01) for name in SERVED[:4]]
    lowered = [(lower_group(group, I8MM), inputs) for group, inputs in layers]
    return [(KernelRun(one.prim, [*inputs, *one.constants]), expected(one, inputs)) for one, inputs in lowered]


@pytest.mark.parametrize("printer", [*C_FLAGS, "llvm"])
def test_emulated_processors_compute_the_same(printer: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install ziglang")
    runs = [run for run, _ in lowered_layers()]
    program, cpu = tmp_path / "program", "max"
    if printer == "llvm":
        linked(runs, TARGET, AARCH64, program)
    else:
        linked_c(runs, ["-O2", *C_FLAGS[printer]], AARCH64, program)
        cpu = "max,sve-default-vector-length=32" if "sve" in printer else cpu
    found = results(runs, program, AARCH64, cpu)
    for (_, wanted), output in zip(lowered_layers(), found, strict=True):
        np.testing.assert_array_equal(output, wanted)


def test_llvm_code_has_the_instruction() -> None:
    machine = machine_of(parse_target(TARGET))
    module = ll.Module("kernels")
    group, _ = large_layer()
    emit_kernel(module, lower_group(group, I8MM).prim, "kernel", machine=machine, contracts=False)
    words = np.frombuffer(compile_object(module, machine)[: -1 & ~3], "<u4")[: 1 << 14]
    assert np.count_nonzero(words & 0xFFE0FC00 == 0x4E80A400) >= 16  # the encoding of smmla


def counted(features: Features, target: str, place: Path) -> int:
    """Return the number of instructions that the kernel of the large layer executes under QEMU."""
    group, inputs = large_layer()
    lowered = lower_group(group, features)
    place.mkdir()
    run = KernelRun(lowered.prim, [*inputs, *lowered.constants])
    linked([run], target, AARCH64, place / "program")
    output, count = executed(run, place / "program", AARCH64, "max")
    np.testing.assert_array_equal(output, expected(lowered, inputs))
    return count


def test_the_instructions_save_instructions(tmp_path: Path) -> None:
    """Count instructions for 295 thousand multiply-accumulates; dot products take twice as many."""
    pytest.importorskip("ziglang", reason="pip install ziglang")
    ours = counted(I8MM, TARGET, tmp_path / "i8mm")
    dots = counted(Features(), TARGET.replace("=+", "=+dotprod,+"), tmp_path / "dots")
    assert 1.5 * ours < dots


def test_its_tile_saves_instructions_with_dot_products_too(tmp_path: Path) -> None:
    """Count dot products: signed bytes take one instruction, unsigned ones two."""
    group, inputs = large_layer()
    counts = []
    for name, features in (("tile", I8MM), ("dots", Features())):
        lowered = lower_group(group, features)
        run, place = KernelRun(lowered.prim, [*inputs, *lowered.constants]), tmp_path / name
        place.mkdir()
        linked_c([run], ["-O2", *C_FLAGS["c with dot products"]], AARCH64, place / "program")
        output, count = executed(run, place / "program", AARCH64, "cortex-a76")
        np.testing.assert_array_equal(output, expected(lowered, inputs))
        counts.append(count)
    assert 1.4 * counts[0] < counts[1], counts
