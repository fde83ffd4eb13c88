"""Emission of loop-level statements as LLVM IR, with intrinsics on blocks of bytes (`mlfc.tir.block_intrinsics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm.context import (
    INT1,
    INT8,
    INT16,
    INT32,
    POINTER,
    FunctionContext,
    Value,
    alignment,
    local_alignment,
    memory_type,
    resized,
)
from mlfc.codegen.llvm.expressions import ExprEmitter
from mlfc.codegen.llvm.parallel import Parts
from mlfc.codegen.llvm.strength_reduction import AddressTerms, ReducedAddress, reducible_addresses
from mlfc.codegen.statements import keeps_rolled
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir.forms import LLVM_FORMS, LlvmForm, RunWriter
from mlfc.tir.independence import Independence
from mlfc.tir.ir import Stmt

_VECTORIZABLE = 8
"""Minimum number of iterations of a loop that is worth vectorizing."""


class StmtEmitter:
    """Writes the instructions of statements at the context's builder."""

    def __init__(self, context: FunctionContext, independence: Independence, parts: Parts | None = None) -> None:
        self._context = context
        self._parts = parts
        self._independence = independence
        self._exprs = ExprEmitter(context)

    def run(self, stmt: Stmt) -> None:
        """Write a statement."""
        if isinstance(stmt, ir.Seq):
            for item in stmt.stmts:
                self.run(item)
        elif isinstance(stmt, ir.Store):
            self._store(stmt)
        elif isinstance(stmt, ir.For):
            self._loop(stmt)
        elif isinstance(stmt, ir.If):
            self._branch(stmt)
        elif isinstance(stmt, ir.Let):
            self._exprs.bind(stmt)
            self._context.ranges.enter_let(stmt)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Allocate):
            self._allocate(stmt.buffer)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Parallel) and self._parts is not None:
            self._parts.call(self._context, stmt)
        elif isinstance(stmt, ir.Fence):
            self._context.builder.fence("seq_cst", "singlethread")  # a compiler barrier that emits no instruction
        elif isinstance(stmt, ir.Require):
            builder = self._context.builder
            holds = builder.load(self._context.address(stmt.buffer, self._exprs.value(stmt.offset)), typ=INT8, align=1)
            with builder.if_then(builder.icmp_unsigned("==", holds, ll.Constant(INT8, 0)), likely=False):
                builder.ret(ll.Constant(INT32, -1))
        elif isinstance(stmt, ir.Prefetch):
            self._context.prefetch(self._context.address(stmt.buffer, self._exprs.value(stmt.offset)))
        elif not isinstance(stmt, ir.Comment):
            raise InternalError(f"LLVM code for hosts does not support '{type(stmt).__name__}'")

    def _store(self, stmt: ir.Store) -> None:
        context = self._context
        if isinstance(stmt.value, ir.Call) and stmt.value.name in block_intrinsics.NAMES:
            store_run(context, self._exprs, stmt)
            return
        value = self._exprs.value(stmt.value)
        place = self._exprs.place(stmt.buffer, stmt.indices)
        if dtypes.element(stmt.buffer.dtype) == "bool":
            value = context.builder.zext(value, resized(value.type, INT8))
        stored = context.builder.store(value, place, align=alignment(stmt.buffer, stmt.value.dtype))
        context.access(stored, stmt.buffer)

    def _allocate(self, buffer: ir.Buffer) -> None:
        """Allocate a buffer on the stack, in the entry block, where LLVM may promote it to registers."""
        context = self._context
        with context.builder.goto_entry_block():
            place = context.builder.alloca(ll.ArrayType(memory_type(buffer.dtype), max(buffer.size, 1)))
            place.align = local_alignment(buffer)
        place.type = POINTER  # llvmlite's pointer has the array as its pointee
        context.buffers[id(buffer)] = place

    def _branch(self, stmt: ir.If) -> None:
        context, builder = self._context, self._context.builder
        condition = self._exprs.value(stmt.condition)
        then, after = builder.append_basic_block(), builder.append_basic_block()
        otherwise = builder.append_basic_block() if stmt.otherwise is not None else after
        builder.cbranch(condition, then, otherwise)
        for block, body, holds in ((then, stmt.then, True), (otherwise, stmt.otherwise, False)):
            if body is not None:
                with context.block(block):
                    context.ranges.assume(stmt.condition, holds)
                    self.run(body)
                    builder.branch(after)
        builder.position_at_end(after)

    def _loop(self, stmt: ir.For) -> None:
        """Write a loop that tests at its end, and also before it if it may have no iterations."""
        context, builder = self._context, self._context.builder
        if stmt.until is not None:  # the condition that ends the loop, tested after each iteration
            body, after = builder.append_basic_block(stmt.var.name), builder.append_basic_block()
            builder.branch(body)
            with context.block(body):
                self.run(stmt.body)
                builder.cbranch(self._exprs.value(stmt.until), after, body)
            builder.position_at_end(after)
            return
        places = reducible_addresses(stmt, context.machine.fills_registers) if stmt.part is None else ()
        if places:
            self._reduced_loop(stmt, places)
            return
        start, extent = ll.Constant(INT32, 0), self._exprs.value(stmt.extent)
        if stmt.part is not None:
            start, extent = map(self._exprs.value, stmt.part)
        body, after = builder.append_basic_block(stmt.var.name), builder.append_basic_block()
        if stmt.part is None and isinstance(stmt.extent, ir.Const) and stmt.extent.value > 0:
            builder.branch(body)
        else:
            builder.cbranch(builder.icmp_signed("<", start, extent), body, after)
        before = builder.block
        apart = stmt.kind in ("vectorized", "parallel") and self._independence.holds(stmt)
        # an access group: its accesses are independent between iterations
        group = DistinctNode(context.module, [], begins_with_itself=False) if apart else None
        with context.block(body):
            counter = builder.phi(INT32)
            counter.add_incoming(start, before)
            context.variables[id(stmt.var)] = counter
            context.ranges.enter_loop(stmt)
            if group is not None:
                context.independent.append(group)
            self.run(stmt.body)
            if group is not None:
                context.independent.pop()
            following = builder.add(counter, ll.Constant(INT32, stmt.step), flags=["nsw"])
            again = builder.icmp_signed("<", following, extent)
            counter.add_incoming(following, builder.block)
            branch = builder.cbranch(again, body, after)
            rolled = stmt.kind == "rolled" or (context.compact and keeps_rolled(stmt))
            long = not isinstance(stmt.extent, ir.Const) or stmt.extent.value >= _VECTORIZABLE
            lanes = stmt.kind == "vectorized" and long and context.machine.vector_bytes > 0
            scalar = self._independence.has_wrapping_address(stmt)
            properties = loop_properties(context.module, rolled=rolled, lanes=lanes, scalar=scalar, group=group)
            if properties is not None:
                branch.set_metadata("llvm.loop", properties)
        builder.position_at_end(after)

    def _reduced_loop(self, stmt: ir.For, places: Sequence[AddressTerms]) -> None:
        """Write a loop of at least one iteration that ends when its first address reaches its end."""
        context, builder, exprs = self._context, self._context.builder, self._exprs
        assert isinstance(stmt.extent, ir.Const)
        count = -(-int(stmt.extent.value) // stmt.step)
        starts = [exprs.start_of(place, stmt.var) for place in places]
        before, body = builder.block, builder.append_basic_block(stmt.var.name)
        builder.branch(body)
        with context.block(body):
            for place, start in zip(places, starts, strict=True):
                address = builder.phi(POINTER)
                address.add_incoming(start, before)
                exprs.reduced.append(ReducedAddress(place, start, address, place.terms[stmt.var] * stmt.step))
            context.ranges.enter_loop(stmt)
            self.run(stmt.body)
            moved = [context.opaque(item.at(context, item.address, item.step)) for item in exprs.reduced]
            for reduced, following in zip(exprs.reduced, moved, strict=True):
                reduced.address.add_incoming(following, builder.block)
            first = exprs.reduced[0]
            end = first.at(context, first.start, first.step * count)
            after = builder.append_basic_block()
            builder.cbranch(builder.icmp_unsigned("!=", moved[0], end), body, after)
        exprs.reduced.clear()
        builder.position_at_end(after)


def store_run(context: FunctionContext, exprs: ExprEmitter, stmt: ir.Store) -> None:
    """Write a store of the result of a block intrinsic."""
    call = stmt.value
    assert isinstance(call, ir.Call)
    to = context.address(stmt.buffer, exprs.index(stmt.buffer, stmt.indices))
    if call.name == "run":
        _copy_or_fill(context, exprs, to, call)
        return
    loads = [arg for arg in call.args if isinstance(arg, ir.Load)]
    if len(loads) != len(call.args):
        raise InternalError(f"LLVM code requires the operands of '{call.name}' to be loaded from memory")
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
    """Return the writer of a block intrinsic in the machine's native instructions, if it has them."""
    return next((write for form in _forms(context) if (write := form.run(context, name, count)) is not None), None)


def _copy_or_fill(context: FunctionContext, exprs: ExprEmitter, to: Value, call: ir.Call) -> None:
    builder, source = context.builder, call.args[0]
    nbytes = dtypes.nbytes(call.dtype)
    write = _own_writer(context, call.name, nbytes)
    size, volatile, void = ll.Constant(INT32, nbytes), ll.Constant(INT1, 0), ll.VoidType()
    if isinstance(source, ir.Broadcast):
        if write is not None:
            chunk = context.splat(exprs.value(source.value), block_intrinsics.CHUNK)
            write(context, [to, chunk], nbytes, _counted)
            return
        fill = context.declared("llvm.memset.p0.i32", void, [POINTER, INT8, INT32, INT1])
        builder.call(fill, [to, exprs.value(source.value), size, volatile])
        return
    assert isinstance(source, ir.Load)
    if write is not None:
        write(context, [to, exprs.address(source)], nbytes, _counted)
        return
    copy = context.declared("llvm.memcpy.p0.p0.i32", void, [POINTER, POINTER, INT32, INT1])
    builder.call(copy, [to, exprs.address(source), size, volatile])


def _counted(
    context: FunctionContext, count: int, carried: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """Write ``for i in range(count)``; `body` maps the index and the values of an iteration to the next values."""
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
    """Write a loop; `body` maps the values of an iteration to the condition to continue, and the next values."""
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
    # its body uses all registers
    branch.set_metadata("llvm.loop", loop_properties(context.module, rolled=True))
    builder.position_at_end(after)
    return following


def _at(context: FunctionContext, base: Value, index: Value, kind: Value = INT8) -> Value:
    return context.builder.gep(base, [index], inbounds=True, source_etype=kind)


def _matvec(context: FunctionContext, to: Value, addresses: list[Value], numbers: tuple[int, ...]) -> None:
    """Write the sums of four filters at a time; the weights of each chunk are contiguous."""
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
    """Return the sums after `count` chunks, and the addresses after them, which control the loop."""
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
    """Return the sums plus the products of a chunk of each row with the weights of each filter."""
    *rows, weights = operands
    builder, forms = context.builder, list(_forms(context))
    values = [_loaded(context, row, size) for row in rows]
    following = list(sums)
    for position in range(block_intrinsics.FILTERS):
        factors = _loaded(context, _at(context, weights, ll.Constant(INT32, position * size)), size)
        for row, data in enumerate(values):
            place = row * block_intrinsics.FILTERS + position
            own = (form.products(context, following[place], data, factors) for form in forms)
            added = next((value for value in own if value is not None), None)
            if added is None:
                wide = ll.VectorType(INT32, data.type.count)
                products = builder.mul(builder.sext(data, wide), builder.sext(factors, wide))
                reduce = context.declared(f"llvm.vector.reduce.add.v{data.type.count}i32", INT32, [wide])
                added = builder.add(following[place], builder.call(reduce, [products]))
            following[place] = added
    return following


def _loaded(context: FunctionContext, address: Value, lanes: int) -> Value:
    """Load int8 elements; half a chunk is widened to int16, which fills a register of 16 bytes."""
    narrow = context.builder.load(address, typ=ll.VectorType(INT8, lanes), align=1)
    return narrow if lanes == block_intrinsics.CHUNK else context.builder.sext(narrow, ll.VectorType(INT16, lanes))


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


_UNROLL_DISABLE = "llvm.loop.unroll.disable"
_IS_VECTORIZED = "llvm.loop.isvectorized"
_OF_VECTORS = "llvm.loop.vectorize.followup_all"  # the properties of the loops that vectorization creates
_VECTORIZE = "llvm.loop.vectorize.enable"
_PARALLEL_ACCESSES = "llvm.loop.parallel_accesses"


class DistinctNode(ll.values.MDValue):  # type: ignore[misc]  # llvmlite has no types
    """A distinct metadata node, never merged with an equal one; it may refer to itself."""

    def __init__(self, module: Value, operands: Sequence[Value], *, begins_with_itself: bool = True) -> None:
        super().__init__(module, operands, name=str(len(module.metadata)))
        self.operands: tuple[Value, ...] = (self, *operands) if begins_with_itself else tuple(operands)

    def descr(self, buf: list[str]) -> None:
        """Append the node's text."""
        references = ", ".join(operand.get_reference() for operand in self.operands)
        buf += [f"distinct !{{ {references} }}", "\n"]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def loop_properties(
    module: Value, *, rolled: bool = False, lanes: bool = False, scalar: bool = False, group: Value | None = None
) -> Value | None:
    """Return the metadata of a loop, for the branch that closes it; None if it needs none.

    Parameters
    ----------
    module : llvmlite.ir.Module
    rolled : bool
        Do not unroll it.
    lanes : bool
        Do not unroll it before it is vectorized: vectors across copies of its body would have lanes that are not
        adjacent in memory.
    scalar : bool
        Do not vectorize it; `lanes` then has no effect.
    group : metadata or None
        The accesses that are independent between iterations.
    """
    properties = []
    if rolled or (lanes and not scalar):
        properties.append(module.add_metadata([_UNROLL_DISABLE]))
    if scalar:
        properties.append(module.add_metadata([_VECTORIZE, ll.Constant(ll.IntType(1), 0)]))
    elif lanes and not rolled:
        vectorized = module.add_metadata([_IS_VECTORIZED])
        properties.append(module.add_metadata([_OF_VECTORS, vectorized]))
    if group is not None:
        properties.append(module.add_metadata([_PARALLEL_ACCESSES, group]))
    return DistinctNode(module, properties) if properties else None


def separate_scopes(module: Value, count: int) -> list[tuple[Value, Value]]:
    """Return, for each of `count` memory regions, the list of its alias scope and the list of all others."""
    domain = DistinctNode(module, [])
    scopes = [DistinctNode(module, [domain]) for _ in range(count)]
    return [
        (module.add_metadata([scope]), module.add_metadata([other for other in scopes if other is not scope]))
        for scope in scopes
    ]
