"""Intrinsics without a body, defined by a numpy function: C library functions, and operations on words and runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.tir import block_intrinsics
from mlfc.tir.intrinsics.registry import add

Array = npt.NDArray[Any]


def _erf(x: Array) -> Array:
    flat = [math.erf(float(value)) for value in np.ravel(x)]
    return np.asarray(flat, dtype=np.asarray(x).dtype).reshape(np.shape(x))


for _name, _function in {
    "exp": np.exp, "log": np.log, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "fabs": np.abs,
    "isnan": np.isnan, "isinf": np.isinf,
}.items():  # fmt: skip
    add(_name, 1, _function, f"{_name} of math.h in the argument's precision")
add("erf", 1, _erf, "erf of math.h")
add("round_even", 1, np.rint, "nearest integer, ties to even (rint)")
add(
    "round_away", 1, lambda x: np.copysign(np.floor(np.abs(x) + np.asarray(0.5, x.dtype)), x).astype(x.dtype),
    "nearest integer, ties away from zero (round)",
)  # fmt: skip
add("pow", 2, np.power, "pow of math.h")
add("fmod", 2, np.fmod, "fmod of math.h")


add("bits_of_float", 1, lambda x: x.view(np.uint32), "the bits of a float32 as a uint32")
add("float_of_bits", 1, lambda x: x.view(np.float32), "the float32 of the bits in a uint32")


def _integer_power(base: Array, exponent: Array) -> Array:
    base, rest = np.broadcast_arrays(base, exponent)
    power, factor, left = np.ones_like(base), base.copy(), np.maximum(rest, 0)
    while np.any(left):
        power = np.where(left & 1, power * factor, power)
        factor = factor * factor
        left = left >> 1
    if base.dtype.kind == "u":
        return power
    of_one = np.where(base == 1, 1, np.where(base == -1, np.where(rest % 2, -1, 1), 0))
    return np.where(rest < 0, of_one, power).astype(base.dtype)


add("integer_power", 2, _integer_power,
     "integers of 32 or 64 bits to the power of another, which wraps; below zero 1 / power, towards zero")  # fmt: skip


def _dot4(accumulator: Array, a: Array, b: Array) -> Array:
    products = np.asarray(a, np.int32).reshape(-1, 4) * np.asarray(b, np.int32).reshape(-1, 4)
    total: Array = np.asarray(accumulator, np.int32) + products.sum(axis=1, dtype=np.int32)
    return total.astype(np.int32)


add("dot4_u8s8", 3, _dot4,
     "int32xN + sums over groups of four of uint8x4N (or uint8x4, the same for all lanes) * int8x4N")  # fmt: skip


def _push(lanes: Array, value: Array, flip: int) -> Array:
    new = np.asarray(value).reshape(-1, 1).astype(np.uint8) ^ np.uint8(flip)
    pushed: Array = np.concatenate([np.asarray(lanes, np.uint8).reshape(-1, 4)[:, 1:], new], axis=1).reshape(-1)
    return pushed


add("push_byte", 2, lambda lanes, value: _push(lanes, value, 0),
     "uint8x4N: every four bytes lose the first, and the low byte of a lane of int32xN is put behind")  # fmt: skip
add("push_flipped", 2, lambda lanes, value: _push(lanes, value, 128), "push_byte of the byte with its top bit flipped")


def _word(elements: Array) -> Array:
    """Return four bytes, or two int16, as one little-endian int32."""
    wide = np.ascontiguousarray(elements, elements.dtype.newbyteorder("<"))
    word: Array = wide.view("<i4")[..., 0].astype(np.int32)
    return word


def _within(value: Array, limit: Array) -> Array:
    if np.any(np.abs(value.astype(np.int64)) > limit):
        raise InternalError(f"tir: a value is beyond the {limit} that was promised")
    return value


def _requantize_line(x: Array, multiplier: Array, exponent: Array, *_: Array) -> Array:
    high = (np.asarray(x, np.int64) * multiplier + (1 << 30)) >> 31
    shifted = (high + (high >> 63)) >> exponent
    result: Array = ((shifted + 1) >> 1).astype(np.int32)
    return result


add("requantize_line", 7, _requantize_line,
    "requantize_down, of which a line in float32 (slope, rest, above, below) is known to have all steps within the"
    " limits that follow; beyond a limit it may be any other number there")  # fmt: skip


add("whole_of_plane", 6, lambda exact, *_: exact,
    "the first operand, of which a plane in float32 (of the next two, with two slopes and a start) is known to be the"
    " same within the limits that follow; beyond a limit it may be any other number there")  # fmt: skip


def _dot8(total: Array, a: Array, b: Array) -> Array:
    products = np.asarray(a, np.int64).reshape(-1, 8) * np.asarray(b, np.int64).reshape(-1, 8)
    result: Array = (np.asarray(total, np.int64).reshape(-1) + products.sum(axis=1)).astype(np.asarray(total).dtype)
    return result.reshape(np.shape(total))


def _dot32(total: Array, a: Array, b: Array) -> Array:
    both = np.asarray(b, np.int8).astype(np.int64).reshape(-1, 16)
    weights = np.concatenate([(both + 8) % 16 - 8, both >> 4], axis=1)
    products = 16 * weights * np.asarray(a, np.int64).reshape(-1, 32)
    result: Array = (np.asarray(total, np.int64).reshape(-1) + products.sum(axis=1)).astype(np.int32)
    return result.reshape(np.shape(total))


add("dot32", 3, _dot32,
    "int32 + 16 times the sum of the products of int8x32 and numbers of four bits, the low ones of 16 bytes first",
)  # fmt: skip
add("dot8", 3, _dot8, "int32 or int64 + the sum of the products of int16x8 and int8x8 in memory")
add("word", 1, _word, "int8x4 or int16x2 in memory as one int32, the first element lowest")
add("within", 2, _within, "an int32 whose magnitude its maker knows to be at most a literal, for the bounds proof")


add("run", 1, lambda values: values, "bytes in memory, or one byte many times, for a store of all of them")
add("dots1", 3, block_intrinsics.matvec_s8,
    "int32 sums of the products of a row of int8 with the weights of filters (see tir.block_intrinsics)")  # fmt: skip
add("dots2", 4, block_intrinsics.matvec_s8, "the same for two rows, which share the weights")
add("taps", 3, block_intrinsics.depthwise_mac,
    "int32 sums over taps of the products of 16 channels of int8 with their weights")  # fmt: skip
add("paired_taps", 3, block_intrinsics.depthwise_mac, "the same for weights of which none is -128")
