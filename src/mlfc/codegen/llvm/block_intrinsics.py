"""Intrinsics on runs of bytes (`mlfc.tir.block_intrinsics`): copies, fills, and loops over products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import FunctionContext
from mlfc.codegen.llvm.llvm_types import INT1, INT8, INT16, INT32, POINTER, Value
from mlfc.codegen.llvm.metadata import loop_properties
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir.forms import LLVM_FORMS, LlvmForm, RunWriter


class Addresses(Protocol):
    """What block intrinsics need of the printer of expressions."""

    def value(self, expr: ir.Expr) -> Value:
        """Return the value of an expression."""

    def address(self, load: ir.Load) -> Value:
        """Return the address of a load."""

    def index(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Value:
        """Return a flat index."""


def is_block_intrinsic(value: ir.Expr) -> bool:
    """Tell whether a stored value is a run."""
    return isinstance(value, ir.Call) and value.name in block_intrinsics.NAMES


def store(context: FunctionContext, exprs: Addresses, stmt: ir.Store) -> None:
    """Write the statement that stores a run."""
    call = stmt.value
    assert isinstance(call, ir.Call)
    to = context.address(stmt.buffer, exprs.index(stmt.buffer, stmt.indices))
    if call.name == "run":
        _copy_or_fill(context, exprs, to, call)
        return
    loads = [arg for arg in call.args if isinstance(arg, ir.Load)]
    if len(loads) != len(call.args):
        raise InternalError(f"LLVM code takes the runs of '{call.name}' from memory only")
    numbers = block_intrinsics.counts(call.name, [dtypes.lanes(load.dtype) for load in loads])
    addresses = list(map(exprs.address, loads))
    if call.name.startswith("dots"):
        _matvec(context, to, addresses, numbers)
        return
    write = _own_writer(context, call.name, numbers[0])
    if write is not None:
        write(context, [to, *addresses], numbers[0], _counted)
    else:
        _depthwise_mac(context, to, addresses, numbers[0])


def _forms(context: FunctionContext) -> Iterator[LlvmForm]:
    """Yield the forms of the machine's instruction sets."""
    for name in context.machine.instruction_sets:
        if name in LLVM_FORMS:
            yield LLVM_FORMS.get(name)


def _own_writer(context: FunctionContext, name: str, count: int) -> RunWriter | None:
    """Return the writer of a run in the machine's own instructions, if it has them."""
    return next((write for form in _forms(context) if (write := form.run(context, name, count)) is not None), None)


def _copy_or_fill(context: FunctionContext, exprs: Addresses, to: Value, call: ir.Call) -> None:
    builder, source = context.builder, call.args[0]
    nbytes = dtypes.nbytes(call.dtype)
    write = _own_writer(context, call.name, nbytes)
    if write is not None:
        write(context, [to, _copied(context, exprs, source)], nbytes, _counted)
        return
    size = ll.Constant(INT32, nbytes)
    volatile = ll.Constant(INT1, 0)
    void = ll.VoidType()
    if isinstance(source, ir.Broadcast):
        fill = context.declared("llvm.memset.p0.i32", void, [POINTER, INT8, INT32, INT1])
        builder.call(fill, [to, exprs.value(source.value), size, volatile])
        return
    assert isinstance(source, ir.Load)
    copy = context.declared("llvm.memcpy.p0.p0.i32", void, [POINTER, POINTER, INT32, INT1])
    builder.call(copy, [to, exprs.address(source), size, volatile])


def _copied(context: FunctionContext, exprs: Addresses, source: ir.Expr) -> Value:
    """Return the address of a copy's source, or a chunk of the value of a fill."""
    if isinstance(source, ir.Broadcast):
        return context.splat(exprs.value(source.value), block_intrinsics.CHUNK)
    assert isinstance(source, ir.Load)
    return exprs.address(source)


def _counted(
    context: FunctionContext, count: int, carried: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """Write ``for i in range(count)`` and return the values that its iterations hand on, from `carried` on.

    `body` writes one iteration: from its number and the values to those of the next iteration.
    """
    if not count:
        return list(carried)

    def numbered(values: list[Value]) -> tuple[Value, list[Value]]:
        builder, (number, *before) = context.builder, values
        after = body(number, before)
        following = builder.add(number, ll.Constant(INT32, 1), flags=["nsw"])
        return builder.icmp_signed("<", following, ll.Constant(INT32, count)), [following, *after]

    return _repeated(context, [ll.Constant(INT32, 0), *carried], numbered)[1:]


def _repeated(
    context: FunctionContext, carried: Sequence[Value], body: Callable[[list[Value]], tuple[Value, list[Value]]]
) -> list[Value]:
    """Write a loop and return the values that its iterations hand on, from `carried` on.

    `body` writes one iteration: from the values to whether there is another one, and its values.
    """
    builder = context.builder
    before, block, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(block)
    builder.position_at_end(block)
    values = [builder.phi(value.type) for value in carried]
    again, following = body(values)
    for phi, start, value in zip(values, carried, following, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, builder.block)
    branch = builder.cbranch(again, block, after)
    # its body fills the registers
    branch.set_metadata("llvm.loop", loop_properties(context.module, rolled=True))
    builder.position_at_end(after)
    return following


def _at(context: FunctionContext, base: Value, index: Value, kind: Value = INT8) -> Value:
    return context.builder.gep(base, [index], inbounds=True, source_etype=kind)


def _matvec(context: FunctionContext, to: Value, addresses: list[Value], numbers: tuple[int, ...]) -> None:
    """Write the sums of four filters at a time; of each chunk, their weights are one behind the other."""
    start, *rows, weights = addresses
    chunks, fours, half = numbers
    size = chunks * block_intrinsics.CHUNK + half * block_intrinsics.HALF_CHUNK
    builder = context.builder

    def four(number: Value, _: list[Value]) -> list[Value]:
        base = _at(context, weights, builder.mul(number, ll.Constant(INT32, block_intrinsics.FILTERS * size)))
        first = builder.mul(number, ll.Constant(INT32, block_intrinsics.FILTERS))
        ends = _at(context, to, builder.mul(first, ll.Constant(INT32, len(rows))), INT32)
        begins = [
            builder.load(_at(context, start, builder.add(first, ll.Constant(INT32, lane)), INT32), typ=INT32, align=4)
            for lane in range(block_intrinsics.FILTERS)
        ]
        operands, sums = _chunks(context, chunks, [*rows, base], begins * len(rows))
        if half:
            sums = _chunk(context, sums, operands, block_intrinsics.HALF_CHUNK)
        for position, value in enumerate(sums):
            builder.store(value, _at(context, ends, ll.Constant(INT32, position), INT32), align=4)
        return []

    _counted(context, fours, [], four)


def _chunks(
    context: FunctionContext, count: int, operands: list[Value], sums: list[Value]
) -> tuple[list[Value], list[Value]]:
    """Return the sums after a loop of `_chunk` over so many chunks, and the addresses behind them.

    The loop goes by its addresses, hidden where a machine has no register left to count in.
    """
    if not count:
        return operands, sums
    steps = [ll.Constant(INT32, block_intrinsics.CHUNK)] * (len(operands) - 1) + [
        ll.Constant(INT32, block_intrinsics.CHUNK * block_intrinsics.FILTERS)
    ]
    end = _at(context, operands[0], ll.Constant(INT32, block_intrinsics.CHUNK * count))

    def chunk(values: list[Value]) -> tuple[Value, list[Value]]:
        places, before = values[: len(operands)], values[len(operands) :]
        after = _chunk(context, before, places)
        moved = [_at(context, place, step) for place, step in zip(places, steps, strict=True)]
        if any(form.crowded(context, len(sums)) for form in _forms(context)):
            moved[0] = context.opaque(moved[0])
        return context.builder.icmp_unsigned("!=", moved[0], end), [*moved, *after]

    found = _repeated(context, [*operands, *sums], chunk)
    return found[: len(operands)], found[len(operands) :]


def _chunk(
    context: FunctionContext, sums: list[Value], operands: Sequence[Value], size: int = block_intrinsics.CHUNK
) -> list[Value]:
    """Return the sums with the products of a chunk of each row with the weights of each filter."""
    *rows, weights = operands
    values = [_loaded(context, row, size) for row in rows]
    following = list(sums)
    for position in range(block_intrinsics.FILTERS):
        factors = _loaded(context, _at(context, weights, ll.Constant(INT32, position * size)), size)
        for row, data in enumerate(values):
            place = row * block_intrinsics.FILTERS + position
            following[place] = _products_added(context, following[place], data, factors)
    return following


def _loaded(context: FunctionContext, address: Value, lanes: int) -> Value:
    """Return int8 in memory; of half a chunk as int16, which fill a register of 16 bytes."""
    narrow = context.builder.load(address, typ=ll.VectorType(INT8, lanes), align=1)
    return narrow if lanes == block_intrinsics.CHUNK else context.builder.sext(narrow, ll.VectorType(INT16, lanes))


def _products_added(context: FunctionContext, total: Value, a: Value, b: Value) -> Value:
    """Return `total` and the sum of the products of all lanes."""
    builder = context.builder
    for form in _forms(context):
        added = form.products(context, total, a, b)
        if added is not None:
            return added
    wide = ll.VectorType(INT32, a.type.count)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    reduce = context.declared(f"llvm.vector.reduce.add.v{a.type.count}i32", INT32, [wide])
    return builder.add(total, builder.call(reduce, [products]))


def _depthwise_mac(context: FunctionContext, to: Value, addresses: list[Value], taps: int) -> None:
    """Write the sums over taps of the products of 16 channels."""
    builder = context.builder
    start, values, weights = addresses
    kind = ll.VectorType(INT32, block_intrinsics.CHANNELS)

    def tap(number: Value, sums: list[Value]) -> list[Value]:
        place = builder.mul(number, ll.Constant(INT32, block_intrinsics.CHANNELS))
        factors = [
            builder.sext(_loaded(context, _at(context, base, place), block_intrinsics.CHANNELS), kind)
            for base in (values, weights)
        ]
        return [builder.add(sums[0], builder.mul(*factors))]

    begins = builder.load(start, typ=kind, align=4)
    builder.store(_counted(context, taps, [begins], tap)[0], to, align=4)
