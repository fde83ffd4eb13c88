"""Templates for cores with ARM's DSP extension, in their portable C form, against numpy's integer sums."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest

from mlfc.isa.dsp import weights as dsp_weights
from mlfc.isa.dsp.depthwise import RESULTS, _RowWords
from mlfc.kernels.templates import Weights
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.target.target import parse_target
from mlfc.tir import interpreter
from tests.conftest import need
from tests.native.kernel_runner import UNOPTIMIZED, Kernels, build, group_of
from tests.native.test_kernels import CASES, Array, Case, attributes, random_integers, reference

DSP = Features(vector_bytes=0, vector_registers=0, dot4=False, instruction_sets=("dsp",))
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
MORE = {
    "deep": Case((1, 6, 5, 64), (3, 3), 12, padding=(1, 1, 1, 1)),
    "patch_in_the_workspace": Case((1, 4, 4, 100), (3, 3), 6, padding=(1, 1, 1, 1)),
    "one_filter": Case((1, 4, 4, 8), (1, 1), 1),
    "two_channels_stride_three": Case((2, 10, 13, 2), (5, 4), 7, strides=(3, 3), padding=(2, 1, 0, 2)),
    "depthwise_stride_three": Case((1, 14, 17, 5), (3, 5), 5, strides=(3, 3), padding=(1, 2, 1, 2), groups=5),
    "depthwise_even_kernel": Case((2, 9, 8, 6), (2, 4), 6, padding=(0, 1, 1, 2), groups=6),
    "depthwise_one_tap": Case((1, 5, 7, 4), (1, 1), 4, groups=4),
    "depthwise_column": Case((1, 12, 1, 4), (5, 1), 4, padding=(2, 0, 2, 0), groups=4),
    "depthwise_bands": Case((1, 70, 60, 3), (3, 3), 3, padding=(1, 1, 1, 1), groups=3),
    "depthwise_wide": Case((1, 9, 400, 2), (5, 3), 2, padding=(2, 1, 2, 1), groups=2),
    "depthwise_unseen_edges": Case((1, 8, 8, 3), (2, 2), 3, strides=(3, 3), groups=3),
    "depthwise_padding_beyond_kernel": Case((1, 2, 2, 3), (2, 2), 3, padding=(3, 3, 3, 3), groups=3),
}
ALL = {**CASES, **MORE}
# the plain templates handle group convolutions and dilation
DECLINED = {"groups", "groups_1x1", "depthwise_dilated"}


def small_weights(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


def summed(x: ir.Expr, case: Case, weights: Array, zero: int, bias: Array) -> ir.Expr:
    """Return the int32 sums of a convolution of `x`."""
    call = ir.call(
        "qnn.conv2d",
        [x, ir.const(weights), ir.const(zero), ir.const(0), ir.const(0.5), ir.const(0.25)],
        **attributes(case), out_dtype="int32",
    )  # fmt: skip
    return ir.call("nn.bias_add", [call, ir.const(bias)], axis=3)


def weights_of(case: Case, seed: int = 3) -> Array:
    return small_weights((*case.kernel, case.data[3] // case.groups, case.filters), seed)


def group(case: Case, weights: Array, zero: int, dtype: str = "int8") -> ir.Function:
    x = ir.Var("x", ir.TensorType(case.data, dtype))
    return group_of(summed(x, case, weights, zero, np.arange(case.filters, dtype=np.int32) - 5), [x])


def expected(case: Case, weights: Array, zero: int, data: Array) -> Array:
    """Return the expected sums of a group."""
    sums = reference(case, data.astype(np.int64) - zero, weights.astype(np.int64))
    return sums + np.arange(case.filters) - 5


Key: TypeAlias = "tuple[str, str, int, str]"  # case, dtype and zero point of the data, optimization goal
SIGNED: list[Key] = [
    (name, "int8", zero, optimize)
    for name in ALL
    for optimize in ("speed", "size")
    for zero in ((-128 if optimize == "speed" else 127) if name in ("3x3_same", "depthwise", "first_layer") else -7,)
]
UNSIGNED: list[Key] = [
    (name, "uint8", zero, "speed")
    for name in ("3x3_same", "depthwise", "first_layer", "1x1", "one_pixel")
    for zero in (0, 255)
]


@cache
def convolutions() -> Kernels[Key]:
    def made(name: str, dtype: str, zero: int, optimize: str) -> tuple[ir.Function, Features]:
        return group(ALL[name], weights_of(ALL[name]), zero, dtype), replace(DSP, optimize=optimize)

    return Kernels({key: made(*key) for key in (*SIGNED, *UNSIGNED)}, UNOPTIMIZED)


@pytest.mark.parametrize("key", SIGNED + UNSIGNED)
def test_convolution_is_exact(key: Key) -> None:
    name, dtype, zero, _ = key
    case, kernel = ALL[name], convolutions()[key]
    assert ("mlf_dot2" in kernel.source or "mlf_mac" in kernel.source) == (name not in DECLINED)
    data = random_integers(np.random.default_rng(2), dtype, case.data)
    np.testing.assert_array_equal(kernel(data), expected(case, weights_of(case), zero, data))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rows_without_bias_are_exact(dtype: str) -> None:
    weights = small_weights((6, 12), 7)
    x = ir.Var("x", ir.TensorType((1, 12), dtype))
    scales = [ir.const(9), ir.const(0), ir.const(0.5), ir.const(0.25)]
    call = ir.call("qnn.dense", [x, ir.const(weights), *scales], units=6, out_dtype="int32")
    kernel = build(group_of(call, [x]), DSP, UNOPTIMIZED)
    assert "mlf_dot2" in kernel.source
    data = random_integers(np.random.default_rng(8), dtype, (1, 12))
    np.testing.assert_array_equal(kernel(data), (data.astype(np.int64) - 9) @ weights.T.astype(np.int64))


@pytest.mark.parametrize(("data", "sign"), [(-128, 1), (-128, -1), (127, 1), (127, -1)])
def test_the_largest_sums_that_are_taken_are_exact(data: int, sign: int) -> None:
    case = Case((1, 1, 1, 514), (1, 1), 5)
    weights = np.full((1, 1, 514, 5), 127 * sign, np.int8)
    kernel = build(group(case, weights, 0), DSP, UNOPTIMIZED)
    assert "mlf_dot2" in kernel.source
    assert kernel(np.full(case.data, data, np.int8)).reshape(-1).tolist() == [
        514 * 127 * sign * data + start for start in range(-5, 0)
    ]


@pytest.mark.parametrize(
    ("weights", "fitting"),
    [
        (np.full((515, 2), 127, np.int8), False),  # 257 times the sum is beyond 32 bits
        (np.array([[-1, -128]], np.int8), False),  # -1 + 256 * -128 is beyond 16 bits
        (np.array([[0, -128]], np.int8), True),
        (np.array([[-128, 0], [-128, 127]], np.int8), True),
        (np.array([[200, 0]], np.uint8), False),
        (np.array([[1.0]], np.float32), False),
    ],
)
def test_weights_that_cannot_share_halves_are_declined(weights: Array, fitting: bool) -> None:
    assert dsp_weights.fits(Weights(weights)) is fitting


@pytest.mark.parametrize("name", ["3x3_same", "depthwise"])
def test_other_weights_and_data_are_exact_too(name: str) -> None:
    case = CASES[name]
    weights = weights_of(case)
    weights[..., ::2], weights[..., 1::2] = -128, -1
    data = random_integers(np.random.default_rng(5), "int8", case.data)
    result = build(group(case, weights, 3), DSP, UNOPTIMIZED)(data)
    np.testing.assert_array_equal(result, expected(case, weights, 3, data))


DENSE = [(1, 64, 10), (1, 640, 8), (1, 8, 128), (1, 7, 3), (3, 20, 9), (4, 5, 2), (1, 4, 1)]


def test_dense_is_exact() -> None:
    def made(rows: int, reduction: int, units: int) -> tuple[ir.Function, Features]:
        x = ir.Var("x", ir.TensorType((rows, reduction), "int8"))
        scales = [ir.const(9), ir.const(0), ir.const(0.5), ir.const(0.25)]
        weights = ir.const(small_weights((units, reduction), 7))
        call = ir.call("qnn.dense", [x, weights, *scales], units=units, out_dtype="int32")
        return group_of(ir.call("nn.bias_add", [call, ir.const(np.arange(units, dtype=np.int32) * 1000)]), [x]), DSP

    kernels = Kernels({sizes: made(*sizes) for sizes in DENSE}, UNOPTIMIZED)
    for rows, reduction, units in DENSE:
        kernel = kernels[rows, reduction, units]
        assert "mlf_dot2" in kernel.source
        data = random_integers(np.random.default_rng(8), "int8", (rows, reduction))
        weights, bias = small_weights((units, reduction), 7), np.arange(units) * 1000
        np.testing.assert_array_equal(
            kernel(data), (data.astype(np.int64) - 9) @ weights.T.astype(np.int64) + bias, str((rows, reduction, units))
        )


def requantized_sums(x: ir.Expr, case: Case, weights: Array, bias: Array, ratio: Any) -> ir.Expr:
    """Return a convolution of `x` requantized to int8."""
    scale = ir.const(np.asarray(ratio, np.float32))
    arguments = [summed(x, case, weights, -128, bias), scale, ir.const(0), ir.const(1.0), ir.const(-3)]
    return ir.call("qnn.requantize", arguments, axis=3, rounding="DOUBLE", out_dtype="int8")


def requantized(case: Case, weights: Array, bias: Array, ratio: Any) -> ir.Function:
    x = ir.Var("x", ir.TensorType(case.data, "int8"))
    return group_of(requantized_sums(x, case, weights, bias, ratio), [x])


BIASES = (0, (1 << 29) - (1 << 20), -(1 << 29), (1 << 31) - (1 << 21))


@pytest.mark.parametrize("name", ["1x1", "depthwise"])
def test_requantization_is_that_of_other_targets(name: str) -> None:
    """Include ties and negative values: scales with few significant bits produce many ties."""
    case = CASES[name]
    weights = weights_of(case)
    plain, groups = Features(vector_bytes=0, dot4=False), {}
    for bias in BIASES:
        ratio = 2.0 ** -np.arange(6, 6 + case.filters).clip(max=28)
        if bias:
            ratio = ratio.clip(2.0**-14) / (1 << 15)
        groups[bias] = requantized(case, weights, np.full(case.filters, bias, np.int32), ratio)
    kernels = Kernels({(bias, form): (groups[bias], form) for bias in BIASES for form in (DSP, plain)}, UNOPTIMIZED)
    data = random_integers(np.random.default_rng(9), "int8", case.data)
    for bias in BIASES:
        kernel = kernels[bias, DSP]
        assert ("mlf_requantize_narrow" in kernel.source) == (abs(bias) < 1 << 30), bias
        np.testing.assert_array_equal(kernel(data), kernels[bias, plain](data), f"with a bias of {bias}")


@pytest.mark.parametrize("name", ["1x1_tail_of_1", "depthwise_stride", "row_kernel", "one_pixel"])
def test_the_interpreter_agrees(name: str) -> None:
    case = CASES[name]
    group = requantized(case, weights_of(case), np.arange(case.filters, dtype=np.int32), 0.001)
    kernel = build(group, DSP, UNOPTIMIZED)
    data = random_integers(np.random.default_rng(11), "int8", case.data)
    lowered = kernel.group
    np.testing.assert_array_equal(interpreter.run(lowered.prim, [data], lowered.constants), kernel(data))


@pytest.mark.parametrize("taps", range(1, 8))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_tap_is_multiplied_once(taps: int, stride: int) -> None:
    row = _RowWords(taps, stride)
    for result, terms in enumerate(row.terms):
        found = []
        for term in terms:
            for data, weight in [(0, 0), (1, 1)] if not term.halves else [tuple(map("bt".index, term.halves))]:
                found.append((2 * term.data + data - result * stride, row.pairs[term.weight][weight]))
        assert found == [(tap, tap) for tap in range(taps)]
    assert len(row.terms) == RESULTS


def test_cores_with_the_extension() -> None:
    able = {
        name
        for name in ("m0", "m3", "m4", "m7", "m23", "m33")
        if parse_target(f"c -mcpu=cortex-{name}").features.has("dsp")
    }
    assert able == {"m4", "m7", "m33"}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_portable_form_compiles_without_warnings_and_in_any_byte_order(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(compiler, compiler)
    monkeypatch.setenv("CC", compiler)
    groups = {}
    for name in ("3x3_same", "depthwise", "first_layer"):
        case = ALL[name]
        groups[name] = requantized(case, weights_of(case), np.zeros(case.filters, np.int32), 0.002), DSP
    # without the macro, words are assembled byte by byte
    kernels, others = (Kernels(groups, ["-O1", *WARNINGS, *more]) for more in ([], ["-U__BYTE_ORDER__"]))
    for name in groups:
        data = random_integers(np.random.default_rng(12), "int8", ALL[name].data)
        np.testing.assert_array_equal(kernels[name](data), others[name](data), name)
