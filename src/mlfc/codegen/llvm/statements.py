"""Statements of loop-level code as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ll

from mlfc.codegen.llvm import block_intrinsics
from mlfc.codegen.llvm.context import FunctionContext, alignment, local_alignment
from mlfc.codegen.llvm.expressions import ExprEmitter
from mlfc.codegen.llvm.llvm_types import INT8, INT32, POINTER, Value, memory_type, resized
from mlfc.codegen.llvm.metadata import access_group, loop_properties
from mlfc.codegen.llvm.parallel import Parts
from mlfc.codegen.llvm.strength_reduction import AddressTerms, ReducedAddress, reducible_addresses
from mlfc.codegen.long_bodies import keeps_rolled
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.independence import Independence
from mlfc.tir.ir import Stmt

_VECTORIZABLE = 8
"""Fewer iterations are not worth vectors."""


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
            self._let(stmt)
        elif isinstance(stmt, ir.Allocate):
            self._allocate(stmt.buffer)
            self.run(stmt.body)
        elif isinstance(stmt, ir.Parallel) and self._parts is not None:
            self._parts.call(self._context, stmt)
        elif isinstance(stmt, ir.Fence):
            self._context.builder.fence("seq_cst", "singlethread")  # orders the compiler, not the processor
        elif isinstance(stmt, ir.Require):
            self._require(stmt)
        elif isinstance(stmt, ir.Prefetch):
            self._context.prefetch(self._context.address(stmt.buffer, self._exprs.value(stmt.offset)))
        elif not isinstance(stmt, ir.Comment):
            raise InternalError(f"LLVM code of a host has no '{type(stmt).__name__}'")

    def _store(self, stmt: ir.Store) -> None:
        context = self._context
        if block_intrinsics.is_block_intrinsic(stmt.value):
            block_intrinsics.store(context, self._exprs, stmt)
            return
        value = self._exprs.value(stmt.value)
        place = self._exprs.place(stmt.buffer, stmt.indices)
        if dtypes.element(stmt.buffer.dtype) == "bool":
            value = context.builder.zext(value, resized(value.type, INT8))
        stored = context.builder.store(value, place, align=alignment(stmt.buffer, stmt.value.dtype))
        context.access(stored, stmt.buffer)

    def _require(self, stmt: ir.Require) -> None:
        builder = self._context.builder
        holds = builder.load(self._context.address(stmt.buffer, self._exprs.value(stmt.offset)), typ=INT8, align=1)
        with builder.if_then(builder.icmp_unsigned("==", holds, ll.Constant(INT8, 0)), likely=False):
            builder.ret(ll.Constant(INT32, -1))

    def _let(self, stmt: ir.Let) -> None:
        self._context.variables[id(stmt.var)] = self._exprs.value(stmt.value)
        self._context.ranges.enter_let(stmt)
        self.run(stmt.body)

    def _allocate(self, buffer: ir.Buffer) -> None:
        """Allocate a buffer on the stack, in the first block, where LLVM may turn it into registers."""
        context = self._context
        with context.builder.goto_entry_block():
            place = context.builder.alloca(ll.ArrayType(memory_type(buffer.dtype), max(buffer.size, 1)))
            place.align = local_alignment(buffer)
        place.type = POINTER  # llvmlite's is a pointer to the array
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
        """Write a loop that tests at its end, and before it where it may have no iteration."""
        context, builder = self._context, self._context.builder
        if stmt.until is not None:
            self._loop_until(stmt)
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
        group = access_group(context.module) if apart else None
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
            self._close(stmt, counter, extent, (body, after), group)
        builder.position_at_end(after)

    def _loop_until(self, stmt: ir.For) -> None:
        """Write a loop that asks after each iteration whether it ends."""
        assert stmt.until is not None
        context, builder = self._context, self._context.builder
        body, after = builder.append_basic_block(stmt.var.name), builder.append_basic_block()
        builder.branch(body)
        with context.block(body):
            self.run(stmt.body)
            builder.cbranch(self._exprs.value(stmt.until), after, body)
        builder.position_at_end(after)

    def _reduced_loop(self, stmt: ir.For, places: Sequence[AddressTerms]) -> None:
        """Write a loop of at least one iteration that ends where the first of its addresses does."""
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
            moved = [reduced.moved_on(context) for reduced in exprs.reduced]
            for reduced, following in zip(exprs.reduced, moved, strict=True):
                reduced.address.add_incoming(following, builder.block)
            first = exprs.reduced[0]
            end = first.at(context, first.start, first.step * count)
            after = builder.append_basic_block()
            builder.cbranch(builder.icmp_unsigned("!=", moved[0], end), body, after)
        exprs.reduced.clear()
        builder.position_at_end(after)

    def _close(
        self, stmt: ir.For, counter: Value, extent: Value, blocks: tuple[Value, Value], group: Value | None
    ) -> None:
        """Count, and go back to the first of `blocks` or on to the second."""
        builder = self._context.builder
        following = builder.add(counter, ll.Constant(INT32, stmt.step), flags=["nsw"])
        again = builder.icmp_signed("<", following, extent)
        counter.add_incoming(following, builder.block)
        branch = builder.cbranch(again, *blocks)
        rolled = stmt.kind == "rolled" or (self._context.compact and keeps_rolled(stmt))
        lanes = self._becomes_vectors(stmt)
        scalar = self._independence.has_wrapping_address(stmt)
        properties = loop_properties(self._context.module, rolled=rolled, lanes=lanes, scalar=scalar, group=group)
        if properties is not None:
            branch.set_metadata("llvm.loop", properties)

    def _becomes_vectors(self, stmt: ir.For) -> bool:
        long = not isinstance(stmt.extent, ir.Const) or stmt.extent.value >= _VECTORIZABLE
        return stmt.kind == "vectorized" and long and self._context.machine.vector_bytes > 0
