"""LLVM code of ``dot4_u8s8``: sums over groups of four products of uint8 and int8, exact on every machine.

See `mlfc.isa.dot4.c` for the choice of instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import INT8, INT16, INT32, FunctionContext, Value, words
from mlfc.tir.forms import LLVM_FORMS, LlvmForm

_MULTIPLY_PAIRS = {64: "llvm.x86.avx512.pmaddw.d.512", 32: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.sse2.pmadd.wd"}
_X86 = ("x86_64", "i386", "i686")


def _compute(context: FunctionContext, total: Value, unsigned: Value, signed: Value) -> Value:
    """Return the sums; `unsigned` may be one group of four bytes, the same for all sums."""
    builder = context.builder
    kind = total.type
    if not isinstance(kind, ll.VectorType):
        lane = _compute(context, context.splat(total, 1), unsigned, signed)
        return builder.extract_element(lane, ll.Constant(INT32, 0))
    a, b = _as_words(context, unsigned, kind.count), _as_words(context, signed, kind.count)
    held = context.machine.vector_bytes // 4  # lanes of a register
    size = held if held and kind.count % held == 0 else kind.count
    form = _form(context, size)
    if size == kind.count:
        return form(context, total, a, b)
    results = []
    for first in range(0, kind.count, size):
        positions = range(first, first + size)
        results.append(form(context, *(context.lanes(vector, positions) for vector in (total, a, b))))
    return context.joined(results)


def _as_words(context: FunctionContext, data: Value, lanes: int) -> Value:
    """Return groups of four bytes as int32, one per lane."""
    if data.type.count == 4 * lanes:
        return context.builder.bitcast(data, words(lanes))
    return context.splat(context.builder.bitcast(data, INT32), lanes)


def _form(context: FunctionContext, lanes: int) -> Callable[[FunctionContext, Value, Value, Value], Value]:
    machine, size = context.machine, 4 * lanes
    if machine.architecture in _X86 and size <= machine.vector_bytes and size in _MULTIPLY_PAIRS:
        return _vnni if machine.instruction("dot4") == "vpdpbusd" else _x86_pairs
    if machine.architecture == "aarch64" and size == 16:
        return {"usdot": _usdot, "sdot": _sdot}.get(machine.instruction("dot4"), _pairs)
    return _pairs


def _bytes(context: FunctionContext, value: Value) -> Value:
    return context.builder.bitcast(value, ll.VectorType(INT8, 4 * value.type.count))


def _vnni(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    factors = [_bytes(context, a), _bytes(context, b)]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}"
    function = context.declared(name, total.type, [total.type, *(factor.type for factor in factors)])
    return context.builder.call(function, [total, *factors])


def _halves(context: FunctionContext, value: Value, *, is_signed: bool) -> tuple[Value, Value]:
    """Return the even and the odd bytes as 16-bit lanes."""
    builder = context.builder
    lanes = builder.bitcast(value, ll.VectorType(INT16, 2 * value.type.count))
    eight = context.number(8, lanes)
    if is_signed:
        return builder.ashr(builder.shl(lanes, eight), eight), builder.ashr(lanes, eight)
    return builder.and_(lanes, context.number(255, lanes)), builder.lshr(lanes, eight)


def _x86_pairs(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    unsigned, signed = _halves(context, a, is_signed=False), _halves(context, b, is_signed=True)
    name = _MULTIPLY_PAIRS[4 * total.type.count]
    function = context.declared(name, total.type, [unsigned[0].type] * 2)
    for left, right in zip(unsigned, signed, strict=True):
        total = context.builder.add(total, context.builder.call(function, [left, right]))
    return total


def _pairs(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    """Multiply bytes in 32-bit lanes, which every machine supports."""
    builder = context.builder
    for byte in range(4):
        left = builder.and_(builder.lshr(a, context.number(8 * byte, a)), context.number(255, a))
        right = builder.ashr(builder.shl(b, context.number(24 - 8 * byte, b)), context.number(24, b))
        total = builder.add(total, builder.mul(left, right))
    return total


def _usdot(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    return _aarch64(context, "usdot", total, _bytes(context, a), _bytes(context, b))


def _sdot(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    """Subtract 128 from the unsigned factor and add 128 times the sum of the other one, in two steps of 64."""
    factor = _bytes(context, b)
    signed = _bytes(context, context.builder.xor(a, context.number(-0x7F7F7F80, a)))
    half = context.number(64, factor)
    rest = context.number(0, total)
    for _ in range(2):
        rest = _aarch64(context, "sdot", rest, half, factor)
    return _aarch64(context, "sdot", context.builder.add(total, rest), signed, factor)


def _aarch64(context: FunctionContext, name: str, total: Value, a: Value, b: Value) -> Value:
    function = context.declared(f"llvm.aarch64.neon.{name}.v4i32.v16i8", total.type, [total.type, a.type, b.type])
    return context.builder.call(function, [total, a, b])


def _call(context: FunctionContext, name: str, args: Sequence[Value]) -> Value | None:
    return _compute(context, *args) if name == "dot4_u8s8" else None


LLVM_FORMS.add("dot4", LlvmForm(_call))
