"""Quantized additions by a plane in float32, on all pairs of bytes: as C, portable C and LLVM code."""

from __future__ import annotations

import numpy as np
import pytest

from mlfc.relay import ir
from mlfc.support.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from mlfc.target.features import Features
from tests.native.kernel_runner import FUSING, build, group_of
from tests.native.test_wide_requantization import level_here

WIDE = Features(vector_registers=32, fixed_point_lanes=16, pushes_bytes=True)
OTHERS = tuple((f"-march={level}", "-O1", "-ffp-contract=off") for level in ("x86-64", "x86-64-v3"))
EXTRA = 13  # elements behind the last whole vector: a half vector of eight, and five single ones
PAIRS = {
    "residual": ((0.0235283, -128), (0.0911471, 4), (0.0934869, -128)),
    "coarse result": ((0.0513447, 3), (0.0222918, -7), (0.5019283, 11)),
    "fine result": ((0.0411873, -1), (0.0301726, 90), (0.0314281, 0)),
    "equal operands": ((0.0917263, 0), (0.0917263, -3), (0.2528174, 0)),
}
Scale = tuple[float, int]


def scaled(value: int, real: float) -> int:
    return multiply_by_quantized_multiplier(value, *quantize_multiplier(real))


def expected(lhs: Scale, rhs: Scale, out: Scale) -> np.ndarray:
    """Return TFLite's sums of all codes, by its reference kernel's arithmetic."""
    scales = [float(np.float32(scale)) for scale, _ in (lhs, rhs, out)]
    twice = 2 * max(scales[:2])
    parts = [
        [scaled((code - zero) << 20, scale / twice) for code in range(-128, 128)]
        for scale, (_, zero) in zip(scales, (lhs, rhs), strict=False)
    ]
    real = twice / ((1 << 20) * scales[2])
    sums = [[scaled(a + b, real) + out[1] for b in parts[1]] for a in parts[0]]
    return np.array(sums).clip(-128, 127).astype(np.int8)


def addition(lhs: Scale, rhs: Scale, out: Scale, *, subtract: bool = False) -> ir.Function:
    kind = ir.TensorType((256 * 256 + EXTRA,), "int8")
    a, b = ir.Var("a", kind), ir.Var("b", kind)
    numbers = [ir.const(number) for scale, zero in (lhs, rhs, out) for number in (np.float32(scale), zero)]
    return group_of(ir.call("qnn.subtract" if subtract else "qnn.add", [a, b, *numbers]), [a, b])


def all_pairs() -> tuple[np.ndarray, np.ndarray]:
    codes = np.arange(-128, 128, dtype=np.int8)
    a, b = (grid.ravel() for grid in np.meshgrid(codes, codes, indexing="ij"))
    return np.concatenate([a, a[:EXTRA]]), np.concatenate([b, b[:EXTRA]])


@pytest.mark.parametrize("name", PAIRS)
def test_sums_are_those_of_the_reference(name: str) -> None:
    if level_here() not in ("x86-64-v3", "x86-64-v4"):
        pytest.skip(f"requires a processor of x86-64-v3 or more, got {level_here()}")
    flags = (FUSING, *OTHERS) if name == "residual" else (FUSING,)
    for chosen in flags:
        kernel = build(addition(*PAIRS[name]), WIDE, chosen)
        assert "whole_of_plane_i32x16" in kernel.source
        assert "whole_of_plane_i32x8" in kernel.source
        a, b = all_pairs()
        result = kernel(a, b) if chosen == FUSING else kernel.run_in(kernel.library, a, b)
        wanted = expected(*PAIRS[name]).ravel()
        np.testing.assert_array_equal(result, np.concatenate([wanted, wanted[:EXTRA]]))


def test_what_has_no_plane_is_rounded_as_before() -> None:
    """Use scales for which no plane exists: ties fall on both sides of zero."""
    scales = (0.5, 0), (0.25, 0), (0.5, 0)
    kernel = build(addition(*scales), WIDE)
    assert "whole_of_plane" not in kernel.source
    assert "requantize_down_i32x16" in kernel.source
    wanted = expected(*scales).ravel()
    np.testing.assert_array_equal(kernel(*all_pairs()), np.concatenate([wanted, wanted[:EXTRA]]))


def test_differences() -> None:
    scales = PAIRS["residual"]
    kernel = build(addition(*scales, subtract=True), WIDE)
    assert "whole_of_plane_i32x16" in kernel.source
    a, b = all_pairs()
    plain = build(addition(*scales, subtract=True), Features())
    np.testing.assert_array_equal(kernel(a, b), plain(a, b))
