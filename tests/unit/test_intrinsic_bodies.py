"""The bodies of intrinsics against exact definitions, at the edges of their domains."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.interpreter import evaluate_expr
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Var
from tests import fixed_point16

LOW, HIGH = dtypes.limits("int32")
POWERS = {sign * ((1 << bit) + step) for bit in range(32) for step in (-1, 0, 1) for sign in (1, -1)}
NUMBERS = sorted({0, LOW, HIGH, 1518500249, -1664525, *(number for number in POWERS if LOW <= number <= HIGH)})
SHORTS = [-(1 << 15), *range(-(1 << 15) + 1, 1 << 15, 37), -1, 0, 1, (1 << 15) - 1]
FACTORS = (0, 1, 3, 1 << 30, (1 << 30) + 1, 1342177280, 1518500249, HIGH - 1, HIGH)
EXPONENTS = (0, 1, 2, 7, 14, 29, 30)
SHIFTS = (-31, -30, -8, -2, -1, 0, 1, 5, 30)


def ties_up(x: Fraction) -> int:
    return floor(x + Fraction(1, 2))


def ties_away(x: Fraction) -> int:
    return ties_up(x) if x >= 0 else -ties_up(-x)


def wrapped(x: int) -> int:
    return (x - LOW) % (1 << 32) + LOW


def high_mul(a: int, b: int) -> int:
    return min(ties_up(Fraction(a * b, 1 << 31)), HIGH)


def scaled(x: int, factor: int, shift: int) -> Fraction:
    return Fraction(x * factor) * Fraction(2) ** (shift - 31)


def double(x: int, factor: int, shift: int) -> int:
    return ties_away(Fraction(high_mul(wrapped(x << max(shift, 0)), factor), 1 << max(-shift, 0)))


def down(x: int, factor: int, exponent: int) -> int:
    return double(x, factor, -1 - exponent)


DEFINITIONS: dict[str, tuple[Callable[..., int], tuple[object, ...]]] = {
    "rounding_doubling_high_mul": (high_mul, (NUMBERS, NUMBERS)),
    "rounding_divide_by_pot": (lambda x, exponent: ties_away(Fraction(x, 1 << exponent)), (NUMBERS, range(32))),
    "requantize_double": (double, (NUMBERS, FACTORS, SHIFTS)),
    "requantize_down": (down, (NUMBERS, FACTORS, EXPONENTS)),
    "requantize_narrow": (
        lambda x, factor, exponent, zero: down(x, factor, exponent) + zero,
        ([x for x in NUMBERS if abs(x) < 1 << 30], FACTORS, EXPONENTS, (-65536, -128, 0, 1, 65536)),
    ),
    "requantize_single": (lambda *args: wrapped(ties_up(scaled(*args))), (NUMBERS, FACTORS, SHIFTS)),
    "requantize_away": (lambda *args: wrapped(ties_away(scaled(*args))), (NUMBERS, FACTORS, SHIFTS)),
    "requantize_single_down": (
        lambda x, factor, exponent: ties_up(scaled(x, factor, -2 - exponent)), (NUMBERS, FACTORS, range(30)),
    ),
    "requantize_away_down": (
        lambda x, factor, exponent: ties_away(scaled(x, factor, -2 - exponent)), (NUMBERS, FACTORS, range(30)),
    ),
    "saturate_byte": (lambda x: max(-128, min(x, 127)), (NUMBERS,)),
    "exp_below_zero_q15": (fixed_point16.exp_below_zero, ([x for x in SHORTS if x <= 0], range(8))),
    "twice_reciprocal_of_one_plus_q15": (fixed_point16.twice_reciprocal_of_one_plus, (range(0, 1 << 15, 5),)),
    "logistic_q15": (fixed_point16.logistic, (SHORTS, (0, 3, 7))),
    "tanh_q15": (fixed_point16.tanh, (SHORTS, range(7))),
    "clz32": (lambda x: 32 - x.bit_length(), ([x for x in POWERS if x >= 0] + [0, (1 << 32) - 1],)),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINITIONS)
def test_fixed_point_is_its_definition(name: str) -> None:
    definition, values = DEFINITIONS[name]
    body = INTRINSICS.get(name).body("int32")
    assert body is not None
    cases = list(product(*values))  # type: ignore[call-overload]  # all are iterables of int
    variables = [Var(param.name, param.dtype) for param in body.params]
    columns = [
        np.array(column, dtypes.to_numpy(variables[index].dtype)) for index, column in enumerate(np.transpose(cases))
    ]
    call = tb.intrinsic(name, *variables, dtype="int32")
    found = evaluate_expr(call, dict(zip(variables, columns, strict=True)), {})
    np.testing.assert_array_equal(found, [definition(*case) for case in cases])


# published by the authors of Philox: counter, key, words
PHILOX = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], [0xD16CFE09, 0x94FDCCEB]),
]


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_random_bits_are_those_that_are_published(counter: list[int], key: list[int], words: list[int]) -> None:
    values = [counter[0], counter[1], counter[2] | counter[3] << 32, key[0] | key[1] << 32]
    kinds = ["uint32", "uint32", "uint64", "uint64"]
    variables = [Var(f"v{index}", kind) for index, kind in enumerate(kinds)]
    given = [np.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    call = tb.intrinsic("philox", *variables, dtype="uint64")
    found = evaluate_expr(call, dict(zip(variables, given, strict=True)), {})
    assert int(found[0]) == words[0] | words[1] << 32


EDGES = np.concatenate([
    np.arange(0, 1 << 32, 20011, dtype=np.uint64).astype(np.uint32),
    # every bfloat16, and the floats before, at and behind the midpoint to the next one
    *((np.arange(1 << 16, dtype=np.uint32) << 16) + np.uint32(step) for step in (0, 0x7FFF, 0x8000, 0x8001)),
    *(np.arange(0x32FFF000, 0x47900000, 0x1000, dtype=np.uint32) + np.uint32(step) for step in (0, 1, 0xFFF)),
]).view(np.float32)  # fmt: skip


def evaluated(name: str, dtype: str, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    var = Var("x", dtypes.from_numpy(x.dtype))
    return evaluate_expr(tb.intrinsic(name, var, dtype=dtype), {var: x}, {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_those_of_numpy(dtype: str) -> None:
    kind = dtypes.to_numpy(dtype)
    stored = np.arange(1 << 16, dtype=np.uint16)
    values = evaluated(f"{dtype}_to_float", "float32", stored)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(values, stored.view(kind).astype(np.float32))
        rounded = EDGES.astype(kind)
    assert np.array_equal(np.signbit(values), stored >= 1 << 15)
    found = evaluated(f"{dtype}_from_float", "uint16", EDGES)
    numbers = ~np.isnan(EDGES)
    np.testing.assert_array_equal(found[numbers], rounded[numbers].view(np.uint16))
    assert np.all(np.isnan(found[~numbers].view(kind).astype(np.float32)))


def _integer_edges(source: str) -> npt.NDArray[Any]:
    ends = [float(sign * (1 << power)) for power in (0, 31, 32, 63, 64) for sign in (1, -1)]
    ends = [*ends, -0.5, 0.0, 1.5, -1.5, 2147483647.5, -2147483648.5, 3e9, 1e30, -1e30, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        return np.array([*ends, *np.nextafter(ends, -np.inf), *np.nextafter(ends, np.inf)], dtypes.to_numpy(source))


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_are_truncated_into_the_range_of_an_int32(source: str) -> None:
    x = _integer_edges(source)
    expected = [0 if np.isnan(v) else LOW if v < LOW else HIGH if v >= HIGH else int(v) for v in x]
    np.testing.assert_array_equal(evaluated("to_int32", "int32", x), np.array(expected, np.int32))


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("target", ["int32", "int64", "uint64"])
def test_casts_of_floats_are_those_of_x86_64(source: str, target: str) -> None:
    x, (low, high) = _integer_edges(source), dtypes.limits("int64" if target == "uint64" else target)

    def expected(v: float) -> int:
        if target == "uint64" and v >= 2**63:
            return int(v) if v < 2**64 else 0
        return (int(v) if np.isfinite(v) and low <= int(v) <= high else low) % (1 << dtypes.bits(target))

    numbers = np.array([expected(v) for v in x], "uint64").astype(dtypes.to_numpy(target))
    np.testing.assert_array_equal(evaluated(f"as_{target}", target, x), numbers)


def test_rounding_to_odd_first_rounds_once() -> None:
    halves = np.arange(1, 0x7F80, 7, dtype=np.uint16)
    bfloat = halves.view(dtypes.to_numpy("bfloat16")).astype(np.float64)
    middle = (bfloat + (halves + 1).astype(np.uint16).view(dtypes.to_numpy("bfloat16")).astype(np.float64)) / 2
    for factor, even in ((1 - 2.0**-50, halves), (1.0, halves + halves % 2), (1 + 2.0**-50, halves + 1)):
        for sign in (1, -1):
            odd = evaluated("float32_of_odd", "float32", sign * middle * factor)
            found = evaluated("bfloat16_from_float", "uint16", odd)
            np.testing.assert_array_equal(found, even.astype(np.uint16) | (0 if sign > 0 else 0x8000))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e300])
    found = evaluated("float32_of_odd", "float32", special)
    np.testing.assert_array_equal(found, np.array([*special[:4], np.finfo(np.float32).max], np.float32))
    numbers = [2**62 + 2**54 + step for step in (-1, 0, 1)] + [2**52 + 1, 5]
    assert evaluated("float64_of_odd", "float64", np.array(numbers)).tolist() == [
        2.0**62 + 2**54 - 2**11, 2.0**62 + 2**54, 2.0**62 + 2**54 + 2**11, 2**52 + 2**11, 5,
    ]  # fmt: skip
