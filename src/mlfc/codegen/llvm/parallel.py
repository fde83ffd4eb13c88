"""Parallel parts of functions as LLVM IR: each becomes a separate function, as in `codegen.c_parallel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import llvmlite.ir as ll

from mlfc.codegen.c_parallel import ParallelPart, part_of
from mlfc.codegen.llvm.context import INT8, INT32, INT64, POINTER, FunctionContext, Value
from mlfc.codegen.llvm.expressions import ExprEmitter
from mlfc.support.dims import Extent
from mlfc.tir import ir
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Buffer, PrimFunc, Var

_TASK = ll.FunctionType(INT32, [POINTER, INT32, INT32, POINTER])


def describe_pointer(argument: Value, name: str, nbytes: Extent, *, is_alone: bool) -> None:
    """Name a pointer, and declare its known properties: its size, and whether it overlaps another pointer."""
    argument.name = name
    argument.add_attribute("captures(none)")
    if is_alone:
        argument.add_attribute("noalias")
    if isinstance(nbytes, int) and nbytes:
        argument.add_attribute("nonnull")
        argument.attributes.dereferenceable = nbytes


@dataclass(eq=False)
class Parts:
    """Writes the parallel parts of one function; `write` writes the body of a part in a separate context."""

    prim: PrimFunc
    name: str
    runner: str  # the function that distributes pieces over threads
    overlapped: frozenset[Buffer]  # by the memory plan
    write: Callable[[FunctionContext, ir.Stmt], None]
    count: int = 0

    def call(self, context: FunctionContext, stmt: ir.Parallel) -> None:
        """Write a part, and the call that distributes its pieces over threads."""
        part = part_of(self.prim, stmt, f"{self.name}_parallel{self.count}")
        self.count += 1
        exprs, builder = ExprEmitter(context), context.builder
        given = [context.buffers[id(buffer)] for buffer in part.buffers]
        given += [context.variables[id(var)] for var in part.variables]
        given += [self._bytes(exprs, at) for _, at in part.open_offsets]
        function = self._function(context, part, [value.type for value in given])
        struct = ll.LiteralStructType([value.type for value in given])
        with builder.goto_entry_block():
            place = builder.alloca(struct)
        place.type = POINTER
        for number, value in enumerate(given):
            builder.store(value, self._field(builder, place, struct, number))
        arguments = [self._task(context, part, function, struct), place, exprs.value(stmt.count)]
        arguments += [exprs.value(part.most_tasks), self._bytes(exprs, part.private_bytes)]
        runner = context.declared(self.runner, INT32, [POINTER, POINTER, INT32, INT32, INT64])
        status = builder.call(runner, arguments)
        failed, after = builder.append_basic_block(), builder.append_basic_block()
        builder.cbranch(builder.icmp_signed("!=", status, ll.Constant(INT32, 0)), failed, after)
        builder.position_at_end(failed)
        builder.ret(ll.Constant(INT32, -1))
        builder.position_at_end(after)

    def _bytes(self, exprs: ExprEmitter, extent: Extent) -> Value:
        return ll.Constant(INT64, extent) if isinstance(extent, int) else exprs.value(as_index(extent, "int64"))

    def _field(self, builder: Value, place: Value, struct: Value, number: int) -> Value:
        indices = [ll.Constant(INT32, 0), ll.Constant(INT32, number)]
        return builder.gep(place, indices, inbounds=True, source_etype=struct)

    def _function(self, outer: FunctionContext, part: ParallelPart, types: list[Value]) -> Value:
        """Define the function of a part; its parameters are the captured values, then the first and last piece."""
        taken = len(part.buffers) + len(part.variables)
        kind = ll.FunctionType(INT32, [*types[:taken], INT32, INT32])
        function = ll.Function(outer.module, kind, part.name)
        function.linkage = "internal"
        # inlining would lose the attributes of its arguments
        for attribute in ("nounwind", "nobuiltin", "noinline"):
            function.attributes.add(attribute)
        builder = ll.IRBuilder(function.append_basic_block("entry"))
        context = replace(outer, builder=builder, variables={}, buffers={}, scopes=outer.scopes, independent=[])
        for buffer, argument in zip(part.buffers, function.args, strict=False):
            context.buffers[id(buffer)] = argument
            describe_pointer(argument, buffer.name, buffer.nbytes, is_alone=buffer not in self.overlapped)
        variables: tuple[Var, ...] = (*part.variables, part.stmt.first, part.stmt.last)
        for var, argument in zip(variables, function.args[len(part.buffers) :], strict=True):
            context.variables[id(var)] = argument
            argument.name = var.name
        body = builder.append_basic_block("body")
        builder.position_at_end(body)
        with context.ranges.scope():
            most = max(0, context.ranges.interval(part.stmt.count).high)
            for var in (part.stmt.first, part.stmt.last):
                context.ranges.know(var, (0, most))
            self.write(context, part.stmt.body)
        builder.ret(ll.Constant(INT32, 0))
        with builder.goto_block(function.entry_basic_block):
            builder.branch(body)
        return function

    def _task(self, context: FunctionContext, part: ParallelPart, function: Value, struct: Value) -> Value:
        """Define the function that unpacks the captured values of a part from the struct."""
        task = ll.Function(context.module, _TASK, f"{part.name}_task")
        task.linkage = "internal"
        place, first, last, scratch = task.args
        builder = ll.IRBuilder(task.append_basic_block("entry"))
        offsets, opened = part.private_offsets, [buffer for buffer, _ in part.open_offsets]
        taken = len(part.buffers) + len(part.variables)

        def load(number: int) -> Value:
            return builder.load(self._field(builder, place, struct, number), typ=struct.elements[number])

        given = [load(number) for number in range(taken)]
        has_own = builder.icmp_unsigned("!=", scratch, ll.Constant(POINTER, None))
        for number, buffer in enumerate(part.buffers):
            if buffer in offsets:
                at = offsets[buffer]
                start = ll.Constant(INT64, at) if isinstance(at, int) else load(taken + opened.index(buffer))
                given[number] = builder.select(has_own, builder.gep(scratch, [start], source_etype=INT8), given[number])
        builder.ret(builder.call(function, [*given, first, last]))
        return task
