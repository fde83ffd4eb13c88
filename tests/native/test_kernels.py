"""Every kernel template against plain numpy sums in double precision or int64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.kernels import conv_tile
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.transform.lower_group import lower_group
from tests.native.kernel_runner import Kernels, group_of

Array = npt.NDArray[Any]

TARGETS = {
    "wide": Features(vector_bytes=64, vector_registers=32, dot4=True),
    "default": Features(),
    "compact": Features(packing_registers=32, fixed_point_lanes=8, compact=True),
    "no_dot4": Features(dot4=False),
    "plain": Features(vector_bytes=0, dot4=False),
    "mve": Features(vector_bytes=0, dot4=False, instruction_sets=("mve",)),
}


@dataclass(frozen=True)
class Case:
    """A convolution: data (n, h, w, c), kernel (h, w), filters, and optional parameters."""

    data: tuple[int, ...]
    kernel: tuple[int, ...]
    filters: int
    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1


CASES = {
    "1x1": Case((1, 7, 7, 20), (1, 1), 40),
    "1x1_deep": Case((1, 7, 7, 36), (1, 1), 40),
    "1x1_tail_of_1": Case((2, 5, 3, 3), (1, 1), 17),
    "1x1_stride": Case((1, 9, 8, 16), (1, 1), 32, strides=(2, 2)),
    "3x3_same": Case((1, 14, 14, 8), (3, 3), 48, padding=(1, 1, 1, 1)),
    "3x3_stride_asymmetric": Case((2, 9, 11, 5), (3, 3), 7, strides=(2, 2), padding=(0, 1, 1, 0)),
    "3x3_valid": Case((1, 6, 13, 18), (3, 3), 33),
    "dilated": Case((1, 11, 10, 4), (3, 2), 9, padding=(2, 1, 2, 1), dilation=(2, 3)),
    "first_layer": Case((1, 19, 23, 3), (7, 7), 24, strides=(2, 2), padding=(3, 3, 3, 3)),
    "row_kernel": Case((1, 1, 29, 2), (1, 5), 6, padding=(0, 2, 0, 2)),
    "one_pixel": Case((1, 1, 1, 37), (1, 1), 200),
    "padding_beyond_kernel": Case((1, 2, 2, 3), (2, 2), 5, padding=(3, 3, 3, 3)),
    "one_channel_one_filter": Case((1, 5, 5, 1), (3, 3), 1, padding=(1, 1, 1, 1)),
    "groups": Case((1, 6, 7, 12), (3, 3), 60, padding=(1, 1, 1, 1), groups=3),
    "groups_1x1": Case((2, 5, 5, 10), (1, 1), 26, groups=2),
    "depthwise": Case((1, 9, 13, 19), (3, 3), 19, padding=(1, 1, 1, 1), groups=19),
    "depthwise_whole_vectors": Case((2, 8, 8, 32), (3, 3), 32, groups=32),
    "depthwise_stride": Case((1, 15, 14, 33), (5, 3), 33, strides=(2, 2), padding=(1, 0, 2, 1), groups=33),
    "depthwise_multiplier": Case((1, 6, 6, 5), (3, 3), 15, padding=(1, 1, 1, 1), groups=5),
    "depthwise_dilated": Case((1, 10, 9, 16), (3, 3), 16, padding=(2, 2, 2, 2), dilation=(2, 2), groups=16),
    "tall_bands": Case((1, 96, 40, 24), (3, 3), 16, padding=(1, 1, 1, 1)),
}

# cases with remainder tiles of rows, columns and channels
COMPACT_NAMES = (
    "1x1", "1x1_deep", "3x3_stride_asymmetric", "groups_1x1", "depthwise_stride", "depthwise_multiplier", "one_pixel",
)  # fmt: skip

# kernels that other targets share with default and plain are not compiled again
PAIRS = [
    (name, target)
    for name in CASES
    for target in TARGETS
    if (target == "compact" and name in COMPACT_NAMES)
    or (target in ("default", "plain", "mve") and name != "1x1_deep")
    or (target in ("wide", "no_dot4") and name in ("1x1_tail_of_1", "3x3_same", "first_layer", "groups", "dilated"))
]


def reference(case: Case, data: Array, weights: Array) -> Array:
    """Return the convolution of zero-centred operands, in their dtype."""
    top, left, bottom, right = case.padding
    padded = np.pad(data, ((0, 0), (top, bottom), (left, right), (0, 0)))
    kernel_h, kernel_w = case.kernel
    (down, across), (step_y, step_x) = case.strides, case.dilation
    height = (padded.shape[1] - (kernel_h - 1) * step_y - 1) // down + 1
    width = (padded.shape[2] - (kernel_w - 1) * step_x - 1) // across + 1
    channels, filters = data.shape[3] // case.groups, case.filters // case.groups
    out = np.zeros((data.shape[0], height, width, case.filters), data.dtype)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            y, x = ky * step_y, kx * step_x
            seen = padded[:, y : y + (height - 1) * down + 1 : down, x : x + (width - 1) * across + 1 : across]
            for group in range(case.groups):
                inputs = seen[..., group * channels : (group + 1) * channels]
                taps = weights[ky, kx, :, group * filters : (group + 1) * filters]
                out[..., group * filters : (group + 1) * filters] += inputs @ taps
    return out


def attributes(case: Case) -> dict[str, Any]:
    return {
        "strides": case.strides, "padding": case.padding, "dilation": case.dilation, "groups": case.groups,
        "data_layout": "NHWC", "kernel_layout": "HWIO",
    }  # fmt: skip


def random_integers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantized(case: Case, dtypes: tuple[str, str], zeros: tuple[int, Any]) -> tuple[ir.Function, Array]:
    """Return a quantized convolution with a bias, and its weights."""
    rng = np.random.default_rng(3)
    weights = random_integers(rng, dtypes[1], (*case.kernel, case.data[3] // case.groups, case.filters))
    x = ir.Var("x", ir.TensorType(case.data, dtypes[0]))
    call = ir.call(
        "qnn.conv2d",
        [x, ir.const(weights), ir.const(zeros[0]), ir.const(np.asarray(zeros[1], np.int32)), ir.const(0.5),
         ir.const(0.25)],
        **attributes(case), out_dtype="int32",
    )  # fmt: skip
    biased = ir.call("nn.bias_add", [call, ir.const(np.arange(case.filters, dtype=np.int32) - 5)], axis=3)
    return group_of(biased, [x]), weights


def float_layer(case: Case) -> tuple[ir.Function, Array, Array]:
    """Return a convolution with a bias and a ReLU, its weights and the bias."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((*case.kernel, case.data[3] // case.groups, case.filters)).astype(np.float32)
    bias = rng.standard_normal(case.filters).astype(np.float32)
    x = ir.Var("x", ir.TensorType(case.data, "float32"))
    call = ir.call("nn.conv2d", [x, ir.const(weights)], **attributes(case))
    body = ir.call("nn.relu", [ir.call("nn.bias_add", [call, ir.const(bias)], axis=3)])
    return group_of(body, [x]), weights, bias


FLOAT_PAIRS = [pair for pair in PAIRS if pair[1] not in ("no_dot4", "compact") or pair == ("1x1_deep", "compact")]


@cache
def float_kernels() -> Kernels[tuple[str, str]]:
    return Kernels({(name, target): (float_layer(CASES[name])[0], TARGETS[target]) for name, target in FLOAT_PAIRS})


@pytest.mark.parametrize(("name", "target"), FLOAT_PAIRS)
def test_float_convolution_with_bias_and_relu(name: str, target: str) -> None:
    case = CASES[name]
    _, weights, bias = float_layer(case)
    data = np.random.default_rng(2).standard_normal(case.data).astype(np.float32)
    expected = np.maximum(reference(case, data.astype(np.float64), weights.astype(np.float64)) + bias, 0)
    np.testing.assert_allclose(float_kernels()[name, target](data), expected, rtol=1e-5, atol=2e-5)


# dtypes of data and weights, and their zero points
KINDS: dict[str, tuple[tuple[str, str], tuple[int, Any]]] = {
    "int8": (("int8", "int8"), (-7, 0)),
    "uint8_int8": (("uint8", "int8"), (255, 0)),
    "uint8_even": (("uint8", "uint8"), (3, 128)),
    "uint8": (("uint8", "uint8"), (200, 7)),
    "channels": (("int8", "int8"), (-128, "channel")),
    "int16": (("int16", "int8"), (0, 0)),
}
INTEGERS = (
    [(name, "int8", target) for name, target in PAIRS]
    + [("depthwise", "channels", "compact")]
    + [
        # every pair of a kind, a layer and a target
        (("3x3_stride_asymmetric", "depthwise", "groups")[(row + column) % 3], kind, target)
        for row, kind in enumerate(KINDS)
        for column, target in enumerate(("default", "plain", "mve"))
        # MVE has instructions for int16 data; tests/emulator/test_halves_on_boards.py runs them
        if kind != "int8" and (kind, target) != ("int16", "mve")
    ]
)


def integer_layer(name: str, kind: str) -> tuple[ir.Function, Array, int, Any]:
    """Return a convolution, its weights, and the zero points of data and weights."""
    case, (dtypes, (zero, weight_zero)) = CASES[name], KINDS[kind]
    if weight_zero == "channel":
        weight_zero = np.arange(case.filters) % 5 - 2
    return *quantized(case, dtypes, (zero, weight_zero)), zero, weight_zero


@cache
def integer_kernels() -> Kernels[tuple[str, str, str]]:
    return Kernels({key: (integer_layer(*key[:2])[0], TARGETS[key[2]]) for key in INTEGERS})


@pytest.mark.parametrize(("name", "kind", "target"), INTEGERS)
def test_quantized_operands_of_every_kind_are_exact(name: str, kind: str, target: str) -> None:
    case = CASES[name]
    _, weights, zero, weight_zero = integer_layer(name, kind)
    data = random_integers(np.random.default_rng(4), KINDS[kind][0][0], case.data)
    centered = reference(case, data.astype(np.int64) - zero, weights.astype(np.int64) - weight_zero)
    kernel = integer_kernels()[name, kind, target]
    np.testing.assert_array_equal(kernel(data), centered + np.arange(case.filters) - 5)


def test_scratch_of_small_integer_layers_is_small() -> None:
    shapes = {"depthwise": Case((1, 48, 48, 64), (3, 3), 64, padding=(1, 1, 1, 1), groups=64),
              "pointwise": Case((1, 48, 48, 64), (1, 1), 64),
              "deep": Case((1, 48, 48, 16), (3, 3), 16, padding=(1, 1, 1, 1))}  # fmt: skip
    for name, case in shapes.items():
        group, _ = quantized(case, ("int8", "int8"), (3, 0))
        elements = int(np.prod(case.data))
        assert lower_group(group, TARGETS["default"]).prim.scratch_bytes < elements / 7, name


LONG_SUMS = {
    "a kernel row a piece": Case((2, 7, 6, 160), (3, 3), 40, padding=(1, 1, 1, 1)),
    "a tap a piece": Case((1, 5, 7, 400), (3, 3), 36, padding=(1, 1, 1, 1), groups=2),
    "a part of a tap a piece": Case((1, 4, 9, 1100), (1, 1), 33),
}


def test_pieces_of_long_sums_in_the_caches_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for large in (0, 1 << 40):
        monkeypatch.setattr(conv_tile, "LARGE_WEIGHTS", large)
        kernels = Kernels(
            {
                (name, target): (float_layer(case)[0], TARGETS[target])
                for name, case in LONG_SUMS.items()
                for target in ("wide", "default")
            }
        )
        for name, case in LONG_SUMS.items():
            _, weights, bias = float_layer(case)
            data = np.random.default_rng(2).standard_normal(case.data).astype(np.float32)
            expected = np.maximum(reference(case, data.astype(np.float64), weights.astype(np.float64)) + bias, 0)
            for target in ("wide", "default"):
                results.append((large, name, kernels[name, target](data)))
                np.testing.assert_allclose(results[-1][2], expected, rtol=1e-5, atol=1e-5 * expected.max())
                totals = [buffer.name for buffer in kernels[name, target].group.prim.scratch if "totals" in buffer.name]
                assert bool(totals) == (large == 0), name
    half = len(results) // 2
    for (_, name, shared), (_, _, usual) in zip(results[:half], results[half:], strict=True):
        assert np.array_equal(shared, usual), name
