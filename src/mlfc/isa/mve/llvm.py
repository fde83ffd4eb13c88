"""LLVM forms for ARM's vector extension for microcontrollers (MVE, Helium).

Arithmetic uses vectors of four int32. Blocks of bytes are copied in chunks of 16 bytes, and summed over taps: products
of bytes have 16 bits, and their sums are in four registers of int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import INT8, INT16, INT32, POINTER, FunctionContext, Value, words
from mlfc.tir import block_intrinsics
from mlfc.tir.forms import LLVM_FORMS, LlvmForm, RunWriter

# (context, count, values of the first iteration, iteration body) -> values after the last
Counted: TypeAlias = Callable[
    [FunctionContext, int, Sequence[Value], Callable[[Value, list[Value]], list[Value]]], list[Value]
]

_LANES = words(4)
_BYTES, _HALVES = ll.VectorType(INT8, block_intrinsics.CHANNELS), ll.VectorType(INT16, block_intrinsics.CHANNELS // 2)
_INDICES = ll.VectorType(INT32, 16)
_SPELLED_OUT = 4  # maximum number of chunks that are copied by unrolled code
_REGISTERS = block_intrinsics.CHANNELS // 4


def writer(_: FunctionContext, name: str, count: int) -> RunWriter | None:
    """Return the writer of a block intrinsic; None for a copy of less than 16 bytes."""
    if name == "run":
        return _copy_or_fill if count >= block_intrinsics.CHUNK else None
    return partial(_taps, pairs=name == "paired_taps")


def _copy_or_fill(context: FunctionContext, operands: Sequence[Value], nbytes: int, counted: Counted) -> None:
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
        chunk(ll.Constant(INT32, nbytes - block_intrinsics.CHUNK))  # overlaps the previous chunk


def _taps(context: FunctionContext, addresses: Sequence[Value], count: int, counted: Counted, *, pairs: bool) -> None:
    """Write sums over `count` taps; the addresses are those of the sums, their initial values, values and weights."""
    to, start, *operands = addresses
    # lane i of register j is channel 4 * i + j, so products of even and odd bytes need not be reordered
    builder, kind = context.builder, ll.LiteralStructType([_LANES] * _REGISTERS)
    loaded = builder.call(context.declared("llvm.arm.mve.vld4q.v4i32.p0", kind, [POINTER]), [start])
    sums = [builder.extract_value(loaded, register) for register in range(_REGISTERS)]
    if pairs:

        def pair(number: Value, before: list[Value]) -> list[Value]:
            first = context.builder.mul(number, ll.Constant(INT32, 2))
            second = context.builder.add(first, ll.Constant(INT32, 1))
            # the sum of two products fits in 16 bits, as no weight is -128
            both = [_channel_products(context, operands, place) for place in (first, second)]
            return _added(context, before, [context.builder.add(*pair) for pair in zip(*both, strict=True)])

        sums = counted(context, count // 2, sums, pair)
        if count % 2:
            sums = _added(context, sums, _channel_products(context, operands, ll.Constant(INT32, count - 1)))
    else:

        def single(number: Value, before: list[Value]) -> list[Value]:
            return _added(context, before, _channel_products(context, operands, number))

        sums = counted(context, count, sums, single)
    kinds = [POINTER, *[_LANES] * _REGISTERS, INT32]
    function = context.declared("llvm.arm.mve.vst4q.p0.v4i32", ll.VoidType(), kinds)
    for part in range(_REGISTERS):
        builder.call(function, [to, *sums, ll.Constant(INT32, part)])


def _channel_products(context: FunctionContext, operands: Sequence[Value], tap: Value) -> list[Value]:
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


def _added(context: FunctionContext, sums: Sequence[Value], products: Sequence[Value]) -> list[Value]:
    """Return the sums plus the products of their channels."""
    builder, sixteen = context.builder, ll.Constant(_LANES, [16] * 4)
    even, odd = (builder.bitcast(half, _LANES) for half in products)
    parts = [builder.ashr(builder.shl(even, sixteen), sixteen), builder.ashr(builder.shl(odd, sixteen), sixteen)]
    parts += [builder.ashr(even, sixteen), builder.ashr(odd, sixteen)]
    return [builder.add(total, part) for total, part in zip(sums, parts, strict=True)]


def _call(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    """Write an intrinsic on four int32, or on eight int16, if the machine has instructions for it."""
    if not context.machine.instruction("mve") or name not in _CALLS:
        return None
    fits = name in ("dot8", "dot32") or args[0].type == _LANES
    return _CALLS[name](context, *args) if fits else None


def _dot8(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    builder = context.builder
    wide = builder.sext(b, a.type)
    if total.type == INT32:
        return _products(context, total, a, wide)
    kinds, zero = ll.LiteralStructType([INT32, INT32]), ll.Constant(INT32, 0)
    function = context.declared("llvm.arm.mve.vmlldava.v8i16", kinds, [INT32] * 5 + [a.type] * 2)
    high = builder.trunc(builder.lshr(total, ll.Constant(total.type, 32)), INT32)
    pair = builder.call(function, [zero, zero, zero, builder.trunc(total, INT32), high, a, wide])
    low, upper = (builder.zext(builder.extract_value(pair, part), total.type) for part in (0, 1))
    return builder.or_(low, builder.shl(upper, ll.Constant(total.type, 32)))


def _dot32(context: FunctionContext, total: Value, a: Value, both: Value) -> Value:
    builder = context.builder
    low, high = (
        builder.shuffle_vector(a, a, ll.Constant(_INDICES, list(range(first, first + 16)))) for first in (0, 16)
    )
    weights = (builder.shl(both, ll.Constant(_BYTES, [4] * 16)), builder.and_(both, ll.Constant(_BYTES, [-16] * 16)))
    return _products(context, _products(context, total, low, weights[0]), high, weights[1])


def _products(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    """Add the products of all lanes."""
    name = f"llvm.arm.mve.vmldava.v{a.type.count}i{a.type.element.width}"
    zero = ll.Constant(INT32, 0)  # flags: signed, no subtraction, no exchange
    function = context.declared(name, INT32, [INT32] * 4 + [a.type] * 2)
    return context.builder.call(function, [zero, zero, zero, total, a, b])


def _instruction(context: FunctionContext, name: str, args: Sequence[Value], *flags: int) -> Value:
    """Call an instruction; the flags are numbers after its operands."""
    types = [arg.type for arg in args] + [INT32] * len(flags)
    function = context.declared(f"llvm.arm.mve.{name}", _LANES, types)
    return context.builder.call(function, [*args, *(ll.Constant(INT32, flag) for flag in flags)])


def _high_of_doubled(context: FunctionContext, x: Value, multiplier: Value) -> Value:
    return _instruction(context, "vqrdmulh.v4i32", [x, multiplier])


def _high(context: FunctionContext, x: Value, multiplier: Value) -> Value:
    return _instruction(context, "vmulh.v4i32", [x, multiplier], 0)


def _shifted(context: FunctionContext, value: Value, amounts: Value, *, rounds: bool) -> Value:
    """Return values shifted left, or right by negative amounts; `rounds` rounds ties up."""
    return _instruction(context, "vshl.vector.v4i32.v4i32", [value, amounts], 0, int(rounds), 0)


def _sign(context: FunctionContext, value: Value) -> Value:
    return context.builder.ashr(value, context.number(31, value))


def _rounded_down(context: FunctionContext, value: Value, exponent: Value) -> Value:
    """Return value / 2**(1 + exponent), ties up."""
    return _shifted(context, value, context.builder.not_(exponent), rounds=True)


def _requantize_down(context: FunctionContext, x: Value, multiplier: Value, exponent: Value) -> Value:
    high = _high_of_doubled(context, x, multiplier)
    # the instruction rounds ties up: subtracting one below zero makes that away from zero
    return _rounded_down(context, context.builder.add(high, _sign(context, high)), exponent)


def _requantize_double(context: FunctionContext, x: Value, multiplier: Value, shift: Value) -> Value:
    builder, zero = context.builder, context.number(0, shift)
    right, left = context.intrinsic("smin", [shift, zero]), context.intrinsic("smax", [shift, zero])
    high = _high_of_doubled(context, _shifted(context, x, left, rounds=False), multiplier)
    less = _sign(context, builder.and_(high, right))  # only for right shifts
    return _shifted(context, builder.add(high, less), right, rounds=True)


def _away_down(context: FunctionContext, x: Value, multiplier: Value, exponent: Value) -> Value:
    builder, high = context.builder, _high(context, x, multiplier)
    # below zero, ties round down: subtract one from the high half if the low half is zero
    low = builder.mul(x, multiplier)
    is_exact = builder.sext(builder.icmp_signed("==", low, context.number(0, low)), _LANES)
    less = builder.and_(_sign(context, high), is_exact)
    return _rounded_down(context, builder.add(high, less), exponent)


_CALLS: dict[str, Callable[..., Value]] = {
    "dot8": _dot8,
    "dot32": _dot32,
    "requantize_down": _requantize_down,
    "requantize_double": _requantize_double,
    "requantize_single_down": lambda context, x, multiplier, exponent: _rounded_down(
        context, _high(context, x, multiplier), exponent
    ),
    "requantize_away_down": _away_down,
}
# two rows need all even registers for their sums, and LLVM's loops use one of them as a counter
LLVM_FORMS.add("mve", LlvmForm(_call, writer, _products, lambda _, sums: sums > block_intrinsics.FILTERS))
