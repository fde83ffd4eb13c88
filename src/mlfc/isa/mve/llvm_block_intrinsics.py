"""Runs of bytes in MVE's instructions: copies by 16 bytes, and sums over taps.

Products of bytes are 16-bit numbers, their sums four registers of int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import Context, words
from mlfc.codegen.llvm.llvm_types import INT8, INT16, INT32, POINTER, Value
from mlfc.tir import block_intrinsics
from mlfc.tir.forms import RunWriter

# (of a context, how many, values from the first iteration on, one iteration) -> values behind the last
Counted: TypeAlias = Callable[[Context, int, Sequence[Value], Callable[[Value, list[Value]], list[Value]]], list[Value]]

_WORDS = words(4)
_BYTES, _HALVES = ll.VectorType(INT8, block_intrinsics.CHANNELS), ll.VectorType(INT16, block_intrinsics.CHANNELS // 2)
_SPELLED_OUT = 4  # chunks that are copied without a loop
_REGISTERS = block_intrinsics.CHANNELS // 4


def writer(_: Context, name: str, count: int) -> RunWriter | None:
    """Return what writes a run in these instructions; None for a copy of less than 16 bytes."""
    if name == "run":
        return _copy_or_fill if count >= block_intrinsics.CHUNK else None
    return partial(_taps, pairs=name == "paired_taps")


def _copy_or_fill(context: Context, operands: Sequence[Value], nbytes: int, counted: Counted) -> None:
    """Write a copy, or a fill, whose source is 16 bytes instead of an address."""
    builder, (to, source) = context.builder, operands

    def chunk(place: Value) -> None:
        value = source
        if source.type == POINTER:
            value = builder.load(builder.gep(source, [place], inbounds=True, source_etype=INT8), typ=_BYTES, align=1)
        builder.store(value, builder.gep(to, [place], inbounds=True, source_etype=INT8), align=1)

    def numbered(number: Value, _: list[Value]) -> list[Value]:
        chunk(builder.mul(number, ll.Constant(INT32, block_intrinsics.CHUNK)))
        return []

    whole = nbytes // block_intrinsics.CHUNK
    if whole > _SPELLED_OUT:
        counted(context, whole, [], numbered)
    else:
        for number in range(whole):
            chunk(ll.Constant(INT32, number * block_intrinsics.CHUNK))
    if nbytes % block_intrinsics.CHUNK:
        chunk(ll.Constant(INT32, nbytes - block_intrinsics.CHUNK))  # once more what lies before the rest


def _taps(context: Context, addresses: Sequence[Value], count: int, counted: Counted, *, pairs: bool) -> None:
    """Write sums over `count` taps; the addresses are those of sums, what they start with, values and weights."""
    to, start, *operands = addresses
    # lane i of register j is channel 4 * i + j: so products of even and odd bytes need not be put in order
    sums = _read(context, start)
    if pairs:

        def pair(number: Value, before: list[Value]) -> list[Value]:
            first = context.builder.mul(number, ll.Constant(INT32, 2))
            second = context.builder.add(first, ll.Constant(INT32, 1))
            # the sum of two products fits into 16 bits, as no weight is -128
            both = zip(_products(context, operands, first), _products(context, operands, second), strict=True)
            return _added(context, before, [context.builder.add(*products) for products in both])

        sums = counted(context, count // 2, sums, pair)
        if count % 2:
            sums = _added(context, sums, _products(context, operands, ll.Constant(INT32, count - 1)))
    else:
        sums = counted(
            context, count, sums, lambda number, before: _added(context, before, _products(context, operands, number))
        )
    _write(context, to, sums)


def _products(context: Context, operands: Sequence[Value], tap: Value) -> list[Value]:
    """Return the products of the even channels, and of the odd ones, in 16 bits."""
    builder = context.builder
    place = builder.mul(tap, ll.Constant(INT32, block_intrinsics.CHANNELS))
    values, weights = (
        builder.load(builder.gep(base, [place], inbounds=True, source_etype=INT8), typ=_BYTES, align=1)
        for base in operands
    )
    function = context.declared("llvm.arm.mve.vmull.int.v8i16.v16i8", _HALVES, [_BYTES, _BYTES, INT32, INT32])
    signed = ll.Constant(INT32, 0)
    return [builder.call(function, [values, weights, signed, ll.Constant(INT32, top)]) for top in (0, 1)]


def _added(context: Context, sums: Sequence[Value], products: Sequence[Value]) -> list[Value]:
    """Return the sums with the products of their channels."""
    builder, sixteen = context.builder, ll.Constant(_WORDS, [16] * 4)
    even, odd = (builder.bitcast(half, _WORDS) for half in products)
    parts = [builder.ashr(builder.shl(even, sixteen), sixteen), builder.ashr(builder.shl(odd, sixteen), sixteen)]
    parts += [builder.ashr(even, sixteen), builder.ashr(odd, sixteen)]
    return [builder.add(total, part) for total, part in zip(sums, parts, strict=True)]


def _read(context: Context, address: Value) -> list[Value]:
    """Return 16 int32, every fourth of them in one register."""
    builder, kind = context.builder, ll.LiteralStructType([_WORDS] * _REGISTERS)
    loaded = builder.call(context.declared("llvm.arm.mve.vld4q.v4i32.p0", kind, [POINTER]), [address])
    return [builder.extract_value(loaded, register) for register in range(_REGISTERS)]


def _write(context: Context, address: Value, sums: Sequence[Value]) -> None:
    kinds = [POINTER, *[_WORDS] * _REGISTERS, INT32]
    function = context.declared("llvm.arm.mve.vst4q.p0.v4i32", ll.VoidType(), kinds)
    for part in range(_REGISTERS):
        context.builder.call(function, [address, *sums, ll.Constant(INT32, part)])
