"""Floats of 8 and 4 bits and integers of 4 and 2: every code, and floats around every rounding boundary."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference.ops.op_cast import cast_to

from mlfc.errors import TypeCheckError
from mlfc.ops.evaluate import evaluate
from mlfc.relay import ir
from mlfc.support import dtypes
from mlfc.tir.intrinsics.conversions import ROUND_MODES

Array = npt.NDArray[Any]
SIGNED = tuple(dtype for dtype in dtypes.NARROW_FLOATS if dtype != "float8_e8m0fnu")
ONNX_TYPES = {
    "float8_e4m3fn": onnx.TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": onnx.TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": onnx.TensorProto.FLOAT8E5M2FNUZ,
    "float8_e8m0fnu": onnx.TensorProto.FLOAT8E8M0,
    "float4_e2m1fn": onnx.TensorProto.FLOAT4E2M1,
}


def codes(dtype: str) -> Array:
    return np.arange(1 << dtypes.bits(dtype), dtype=np.uint8).view(dtypes.to_numpy(dtype))


def converted(values: Array, dtype: str) -> Array:
    result = evaluate(ir.call("cast", [ir.const(values)], dtype=dtype))
    assert result is not None
    return result


def boundaries(dtype: str) -> Array:
    """Return numbers of the format, the midpoints between neighbours, and the adjacent floats of all of them."""
    with np.errstate(all="ignore"):
        numbers = np.unique(codes(dtype).astype(np.float32))
        numbers = numbers[np.isfinite(numbers)]
        middles = (numbers[1:] / 2 + numbers[:-1] / 2).astype(np.float32)
        step = numbers[-1] - numbers[-2]
        beyond = np.asarray([numbers[-1] + step / 2, numbers[-1] + step, numbers[-1] * 2, 3e38, np.inf], np.float32)
        small = np.asarray([0.0, 1e-45, 1e-40, 1.1754942e-38, 1.17549435e-38], np.float32)
        points = np.concatenate([numbers, middles, beyond, small])
        points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))])
    both = np.concatenate([points, -points, np.asarray([np.nan], np.float32)])
    return both.astype(np.float32)


def check_bits(found: Array, expected: Array, given: Array) -> None:
    differ = found.view(np.uint8) != expected.view(np.uint8)
    assert not differ.any(), (given[differ][:5], found[differ][:5], expected[differ][:5])


@pytest.mark.parametrize("dtype", dtypes.NARROW)
def test_every_code_is_the_number_that_it_should_be(dtype: str) -> None:
    found, expected = converted(codes(dtype), "float32"), codes(dtype).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    same_sign = np.signbit(found) == np.signbit(expected)
    assert np.all(same_sign | np.isnan(expected))


@pytest.mark.parametrize("dtype", dtypes.NARROW)
def test_every_number_comes_back(dtype: str) -> None:
    given = codes(dtype)
    # casts return one code of NaN and saturate infinity; ONNX rounds 2**-127, a subnormal float, up to 2**-126
    given = given[np.isfinite(given.astype(np.float32))][1 if dtype == "float8_e8m0fnu" else 0 :]
    check_bits(converted(converted(given, "float32"), dtype), given, given)


@pytest.mark.parametrize("dtype", dtypes.NARROW_INTEGERS)
def test_bits_beyond_a_number_do_not_count(dtype: str) -> None:
    dirty = np.arange(256, dtype=np.uint8).view(dtypes.to_numpy(dtype))
    np.testing.assert_array_equal(converted(dirty, "int32"), np.resize(codes(dtype).astype(np.int32), 256))


@pytest.mark.parametrize("dtype", SIGNED)
def test_floats_round_to_the_nearest_and_saturate(dtype: str) -> None:
    given = boundaries(dtype)
    check_bits(converted(given, dtype), cast_to(given, ONNX_TYPES[dtype], True), given)


@pytest.mark.parametrize("dtype", SIGNED)
def test_what_is_not_saturated_becomes_infinity_or_nan(dtype: str) -> None:
    given = boundaries(dtype)
    found = evaluate(ir.call("cast_narrow", [ir.const(given)], dtype=dtype, saturate=False))
    assert found is not None
    check_bits(found, given.astype(dtypes.to_numpy(dtype)), given)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ROUND_MODES)
def test_powers_of_two_round_as_asked(mode: str, saturate: bool) -> None:
    given = boundaries("float8_e8m0fnu")
    attrs = {"dtype": "float8_e8m0fnu", "saturate": saturate, "round_mode": mode}
    found = evaluate(ir.call("cast_narrow", [ir.const(given)], attrs))
    assert found is not None
    check_bits(found, cast_to(given, onnx.TensorProto.FLOAT8E8M0, saturate, mode), given)


@pytest.mark.parametrize("source", ["int8", "int32", "int64", "uint8", "float32", "float16"])
@pytest.mark.parametrize("dtype", dtypes.NARROW_INTEGERS)
def test_integers_keep_their_low_bits(dtype: str, source: str) -> None:
    given = np.arange(-20, 100).astype(source)
    check_bits(converted(given, dtype), given.astype(np.int32).astype(dtypes.to_numpy(dtype)), given)


@pytest.mark.parametrize("source", ["float16", "bfloat16", "int8", "bool"])
def test_other_dtypes_go_through_float32(source: str) -> None:
    given = np.arange(-100, 100).astype(dtypes.to_numpy(source))
    check_bits(converted(given, "float8_e5m2"), given.astype(np.float32).astype(ml_dtypes.float8_e5m2), given)


@pytest.mark.parametrize("dtype", dtypes.NARROW)
def test_nothing_computes_with_them(dtype: str) -> None:
    x = ir.Var("x", ir.TensorType((3,), dtype))
    with pytest.raises(TypeCheckError, match="Put a cast before it"):
        ir.call("add", [x, x])
    assert ir.call("reshape", [x], newshape=(3, 1)).type == ir.TensorType((3, 1), dtype)
