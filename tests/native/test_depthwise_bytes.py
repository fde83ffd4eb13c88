"""Depthwise layers with windows packed into the bytes of lanes, against int64 sums: as C and as LLVM code."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.support.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from mlfc.target.features import Features
from mlfc.tir.visitor import own_exprs, walk, walk_expr
from mlfc.transform.lower_group import lower_group
from tests.native.kernel_runner import Kernels, group_of
from tests.native.test_kernels import KINDS, Case, attributes, quantized, random_integers, reference

BYTES = Features(vector_registers=32, fixed_point_lanes=16, pushes_bytes=True)
CASES = {
    "same": Case((2, 9, 13, 16), (3, 3), 16, padding=(1, 1, 1, 1), groups=16),
    "valid": Case((1, 8, 8, 48), (3, 3), 48, groups=48),
    "stride": Case((1, 15, 14, 80), (3, 3), 80, strides=(2, 2), padding=(0, 1, 1, 0), groups=80),
    "two rows": Case((1, 7, 19, 16), (2, 3), 16, strides=(1, 2), padding=(1, 0, 0, 2), groups=16),
    "four rows": Case((1, 9, 4, 32), (4, 1), 32, strides=(2, 1), padding=(3, 0, 2, 0), groups=32),
    "rows that no window sees": Case((1, 9, 9, 16), (2, 2), 16, strides=(3, 3), groups=16),
    "dilated columns": Case((1, 6, 12, 16), (3, 3), 16, padding=(1, 2, 1, 2), dilation=(1, 2), groups=16),
    "padding beyond the kernel": Case((1, 2, 2, 16), (2, 2), 16, padding=(3, 3, 3, 3), groups=16),
}
DECLINED = {
    "one row": Case((1, 1, 29, 16), (1, 5), 16, padding=(0, 2, 0, 2), groups=16),
    "five rows": Case((1, 9, 9, 16), (5, 3), 16, groups=16),
    "dilated rows": Case((1, 9, 9, 16), (3, 3), 16, dilation=(2, 1), groups=16),
    "part of a vector": Case((1, 9, 9, 24), (3, 3), 24, groups=24),
    "multiplier": Case((1, 6, 6, 16), (3, 3), 32, groups=16),
}
PAIRS = [(name, "int8") for name in CASES] + [("same", kind) for kind in KINDS if kind != "int8"]


def layer(case: Case, kind: str) -> tuple[ir.Function, np.ndarray]:
    dtypes, (zero, weight_zero) = KINDS[kind]
    return quantized(case, dtypes, (zero, np.arange(case.filters) % 5 - 2 if weight_zero == "channel" else weight_zero))


@cache
def kernels() -> Kernels[tuple[str, str]]:
    return Kernels({(name, kind): (layer(CASES[name], kind)[0], BYTES) for name, kind in PAIRS})


def pushes(function: ir.Function) -> bool:
    body = lower_group(function, BYTES).prim.body
    exprs = (node for stmt in walk(body) for expr in own_exprs(stmt) for node in walk_expr(expr))
    return any(getattr(node, "name", "").startswith("push_") for node in exprs)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_sums_are_exact(name: str, kind: str) -> None:
    case, (dtypes, (zero, weight_zero)) = CASES[name], KINDS[kind]
    function, weights = layer(case, kind)
    assert pushes(function) == (kind != "int16"), "weights fit into two bytes"
    if weight_zero == "channel":
        weight_zero = np.arange(case.filters) % 5 - 2
    data = random_integers(np.random.default_rng(4), dtypes[0], case.data)
    centered = reference(case, data.astype(np.int64) - zero, weights.astype(np.int64) - weight_zero)
    np.testing.assert_array_equal(kernels()[name, kind](data), centered + np.arange(case.filters) - 5)


@pytest.mark.parametrize("name", DECLINED)
def test_other_windows_are_multiplied_as_floats(name: str) -> None:
    assert not pushes(layer(DECLINED[name], "int8")[0])


@pytest.mark.parametrize("name", ["same", "stride"])
def test_results_are_requantized(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(9)
    weights = random_integers(rng, "int8", (*case.kernel, 1, case.filters))
    scales = (rng.random(case.filters) * 0.02 + 1e-4).astype(np.float32)
    x = ir.Var("x", ir.TensorType(case.data, "int8"))
    call = ir.call("qnn.conv2d", [x, ir.const(weights), ir.const(5), ir.const(0), ir.const(1.0), ir.const(scales)],
                   **attributes(case), out_dtype="int32")  # fmt: skip
    result = ir.call("qnn.requantize", [call, ir.const(scales), ir.const(0), ir.const(1.0), ir.const(-5)],
                     axis=3, rounding="DOUBLE", out_dtype="int8")  # fmt: skip
    kernel = Kernels({name: (group_of(result, [x]), BYTES)})[name]
    assert "requantize_line_i32x16" in kernel.source
    data = random_integers(rng, "int8", case.data)
    sums = reference(case, data.astype(np.int64) - 5, weights.astype(np.int64))
    expected = np.empty(sums.shape, np.int64)
    for channel, scale in enumerate(scales.astype(np.float64)):
        pair = quantize_multiplier(float(scale))
        for at in np.ndindex(sums.shape[:-1]):
            expected[(*at, channel)] = multiply_by_quantized_multiplier(int(sums[(*at, channel)]), *pair) - 5
    np.testing.assert_array_equal(kernel(data), expected.clip(-128, 127))
