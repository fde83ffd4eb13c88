"""Kernels for MVE in their portable form: whole groups with fused consumers against the plain templates."""

from __future__ import annotations

import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.codegen.c import print_function
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir import block_intrinsics, interpreter
from mlfc.transform.lower_group import lower_group
from tests.c_files import print_file
from tests.conftest import need
from tests.native.kernel_runner import UNOPTIMIZED, Kernels, build, group_of

Array = npt.NDArray[Any]

PLAIN = Features(vector_bytes=0, dot4=False)
MVE = Features(vector_bytes=0, dot4=False, instruction_sets=("mve",))

ARM_HEADERS = "/usr/lib/arm-none-eabi/include"
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]

# data (n, h, w, c), kernel, filters, strides, padding; depthwise if filters is 0
LAYERS = {
    "1x1": ((1, 5, 6, 16), (1, 1), 8, (1, 1), (0, 0, 0, 0)),
    "1x1_odd_plane": ((2, 5, 3, 24), (1, 1), 7, (1, 1), (0, 0, 0, 0)),
    "1x1_wide_odd_plane": ((1, 3, 5, 8), (1, 1), 130, (1, 1), (0, 0, 0, 0)),
    "1x1_stride": ((1, 6, 5, 40), (1, 1), 12, (2, 2), (0, 0, 0, 0)),
    "1x1_few_channels": ((1, 4, 4, 5), (1, 1), 9, (1, 1), (0, 0, 0, 0)),
    "3x3": ((1, 9, 16, 16), (3, 3), 16, (1, 1), (1, 1, 1, 1)),
    "3x3_large_column": ((1, 6, 8, 72), (3, 3), 5, (1, 1), (1, 1, 1, 1)),
    "3x3_stride": ((1, 11, 13, 3), (3, 3), 10, (2, 2), (1, 0, 1, 1)),
    "stride_beyond_kernel": ((1, 13, 11, 4), (2, 2), 3, (3, 4), (1, 1, 0, 1)),
    "10x4": ((1, 20, 10, 1), (10, 4), 64, (2, 2), (4, 1, 5, 1)),
    "one_channel": ((1, 4, 7, 1), (1, 1), 1, (1, 1), (0, 0, 0, 0)),
    "depthwise": ((1, 7, 9, 16), (3, 3), 0, (1, 1), (1, 1, 1, 1)),
    "depthwise_odd_channels": ((2, 6, 5, 21), (3, 3), 0, (2, 2), (0, 0, 1, 1)),
    "depthwise_lowest_weight": ((1, 5, 5, 18), (3, 3), 0, (1, 1), (1, 1, 1, 1)),
    "depthwise_one_tap": ((1, 5, 5, 16), (1, 1), 0, (1, 1), (0, 0, 0, 0)),
    "depthwise_few_channels": ((1, 5, 5, 3), (5, 2), 0, (1, 1), (2, 1, 2, 0)),
    "depthwise_large_kernel": ((1, 9, 8, 33), (7, 7), 0, (1, 1), (3, 3, 3, 3)),
}
SOME = ("1x1_odd_plane", "3x3_stride", "depthwise_odd_channels")

Scaling: TypeAlias = "tuple[int, str, float]"
# the zero point of the data, the rounding, the largest scale
SCALINGS: list[Scaling] = [(-128, "DOUBLE", 0.01), (127, "DOUBLE", 3.0), (3, "SINGLE", 0.01), (0, "TONEVEN", 1.0)]


def scalar(value: Any, dtype: str = "float32") -> ir.Expr:
    return ir.const(np.asarray(value, dtype))


def requantized(value: ir.Expr, scales: Array, rounding: str, zero: int = -5) -> ir.Expr:
    call = ir.call(
        "qnn.requantize", [value, ir.const(scales.astype(np.float32)), scalar(0, "int32"), scalar(1.0),
                           scalar(zero, "int32")],
        axis=-1, rounding=rounding, out_dtype="int8",
    )  # fmt: skip
    return ir.call("clip", [call], a_min=-100.0, a_max=127.0)


def layer(name: str, zero: int, rounding: str, largest_scale: float) -> tuple[ir.Function, list[Array]]:
    """Return a convolution, bias, requantization and residual sum, and random inputs that include extreme values."""
    rng = np.random.default_rng(len(name))
    shape, kernel, filters, strides, padding = LAYERS[name]
    groups = 1 if filters else shape[3]
    made = filters or shape[3]
    weights = rng.integers(-127, 128, (*kernel, shape[3] // groups, made)).astype(np.int8)
    weights[..., 0] = -128 if name.endswith("lowest_weight") else -127
    weights[..., -1] = 127
    x = ir.Var("x", ir.TensorType(shape, "int8"))
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), scalar(zero, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        strides=strides, padding=padding, groups=groups, data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
    bias = rng.integers(-(2**15), 2**15, made).astype(np.int32)
    sums = ir.call("nn.bias_add", [call, ir.const(bias)], axis=3)
    scales = np.linspace(0.0003, largest_scale, made)
    result = requantized(sums, scales, rounding)
    assert isinstance(result.type, ir.TensorType)
    residual = ir.Var("residual", ir.TensorType(result.type.shape, "int8"))
    body = ir.call(
        "qnn.add", [result, residual, scalar(0.3), scalar(-5, "int32"), scalar(0.2), scalar(7, "int32"), scalar(0.4),
                    scalar(1, "int32")],
    )  # fmt: skip
    inputs = [rng.integers(-128, 128, var.type.shape).astype(np.int8) for var in (x, residual)]
    inputs[0][:, ::2] = -128
    return group_of(body, [x, residual]), inputs


# each layer is combined with two scalings, so that each kind of layer is combined with all of them
PAIRS = [(name, SCALINGS[(at + turn) % 4]) for at, name in enumerate(LAYERS) for turn in (0, 1)]


@cache
def kernels() -> Kernels[tuple[str, Scaling, bool]]:
    """Return the layers for MVE and for the plain templates."""
    return Kernels(
        {
            (name, scaling, form is MVE): (layer(name, *scaling)[0], form)
            for name, scaling in PAIRS
            for form in (MVE, PLAIN)
        },
        UNOPTIMIZED,
    )


@pytest.mark.parametrize(("name", "scaling"), PAIRS)
def test_layers_are_what_plain_loops_compute(name: str, scaling: Scaling) -> None:
    _, inputs = layer(name, *scaling)
    kernel, plain = (kernels()[name, scaling, is_mve] for is_mve in (True, False))
    assert any(call in kernel.source for call in ("mlf_dots", "taps"))
    np.testing.assert_array_equal(kernel(*inputs), plain.run_in(plain.library, *inputs))


@pytest.mark.parametrize("name", SOME)
def test_the_interpreter_computes_the_same(name: str) -> None:
    group, inputs = layer(name, -128, "DOUBLE", 0.01)
    kernel = build(group, MVE)
    lowered = kernel.group
    expected = interpreter.run(lowered.prim, inputs, lowered.constants)
    np.testing.assert_array_equal(kernel(*inputs), expected)


DENSE = [(1, 640, 128), (3, 24, 5), (1, 13, 10), (2, 1, 1), (1, 8, 128)]


def dense(rows: int, size: int, units: int, rounding: str) -> ir.Function:
    x = ir.Var("x", ir.TensorType((rows, size), "int8"))
    weights = np.random.default_rng(size).integers(-128, 128, (units, size)).astype(np.int8)
    call = ir.call(
        "qnn.dense", [x, ir.const(weights), scalar(-128, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        units=units, out_dtype="int32",
    )  # fmt: skip
    return group_of(requantized(call, np.asarray([0.002]), rounding), [x])


@pytest.mark.parametrize("rounding", ["SINGLE", "DOUBLE"])
def test_dense_layers_are_what_plain_loops_compute(rounding: str) -> None:
    groups = {sizes: dense(*sizes, rounding) for sizes in DENSE}
    kernels = Kernels({(sizes, form): (groups[sizes], form) for sizes in DENSE for form in (MVE, PLAIN)})
    for sizes in DENSE:
        data = np.random.default_rng(7).integers(-128, 128, sizes[:2]).astype(np.int8)
        data[:, ::3] = -128
        plain = kernels[sizes, PLAIN]
        np.testing.assert_array_equal(kernels[sizes, MVE](data), plain.run_in(plain.library, data), err_msg=str(sizes))


@pytest.mark.parametrize(("filters", "size"), [(1, 8), (4, 16), (5, 24), (9, 40), (8, 64)])
def test_packed_weights_are_read_back_in_order(filters: int, size: int) -> None:
    rng = np.random.default_rng(filters)
    weights = rng.integers(-128, 128, (filters, size)).astype(np.int8)
    rows = rng.integers(-128, 128, (2, size)).astype(np.int8)
    fours = -(-filters // 4)
    start = rng.integers(-1000, 1000, 4 * fours).astype(np.int32)
    sums = block_intrinsics.matvec_s8(
        start, rows[0], rows[1], block_intrinsics.pack_weights(weights).reshape(-1)
    ).reshape(fours, 2, 4)
    expected = rows.astype(np.int64) @ weights.T.astype(np.int64) + start[:filters]
    np.testing.assert_array_equal(sums.swapaxes(0, 1).reshape(2, -1)[:, :filters], expected)


def test_what_the_instructions_do_not_take_is_left_to_plain_loops() -> None:
    x = ir.Var("x", ir.TensorType((1, 6, 6, 8), "int8"))
    weights = np.ones((3, 3, 8, 4), np.int8)
    call = ir.call(
        "qnn.conv2d", [x, ir.const(weights), scalar(1, "int32"), scalar(0, "int32"), scalar(0.5), scalar(0.25)],
        dilation=(2, 2), data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32",
    )  # fmt: skip
    lowered = lower_group(group_of(call, [x]), MVE)
    assert "mlf_dots" not in print_file([print_function(lowered.prim, "kernel")])


COMPILERS = ("gcc", "clang", "arm-none-eabi-gcc", "arm-none-eabi-gcc+nomve", "arm-clang")
# each form (instructions or plain C) with gcc and with clang at one level of optimization, and instructions at both
OPTIMIZED = {"gcc": "-O3", "clang": "-Os", "arm-none-eabi-gcc+nomve": "-Os", "arm-clang": "-O3"}
LEVELS = [("-O0", compiler) for compiler in COMPILERS]
LEVELS += [*((level, compiler) for compiler, level in OPTIMIZED.items())]
LEVELS += [("-O3", "arm-none-eabi-gcc"), ("-Os", "arm-none-eabi-gcc")]


@pytest.mark.parametrize(("level", "compiler"), LEVELS)
def test_both_forms_compile_without_a_warning(compiler: str, level: str, tmp_path: Path) -> None:
    command = [need(compiler, compiler)] if compiler in ("gcc", "clang") else []
    if compiler == "arm-clang":
        need("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
        if not Path(ARM_HEADERS).is_dir():
            pytest.skip("newlib's headers are not where Debian puts them")
        command = [need("clang", "clang"), "--target=arm-none-eabi", "-isystem", ARM_HEADERS]
    elif not command:
        command = [need("arm-none-eabi-gcc", "gcc-arm-none-eabi"), "-mthumb"]
    if "arm" in compiler:
        cpu = "cortex-m55+nomve" if compiler.endswith("+nomve") else "cortex-m55"
        command += [f"-mcpu={cpu}", "-mfloat-abi=hard"]
    scalings = [("DOUBLE", 0.01), ("DOUBLE", 3.0), ("SINGLE", 0.01)]
    # with optimization, each layer and each scaling is compiled once
    pairs = product(SOME, scalings) if level == "-O0" else zip(SOME, scalings, strict=True)
    groups = [layer(name, -128, rounding, scale)[0] for name, (rounding, scale) in pairs]
    printed = [print_function(lower_group(group, MVE).prim, f"kernel{at}") for at, group in enumerate(groups)]
    source = tmp_path / "kernels.c"
    source.write_text(print_file(printed))
    line = [*command, *WARNINGS, level, "-c", str(source), "-o", str(tmp_path / "kernels.o")]
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:2000]
