"""Parallel parts of functions in C: each becomes a separate function, which the threads of a pool call.

The kernel packs the values that its part captures into a struct. A function of `support.c_names` calls the
part's task with that struct and ranges of pieces. The task unpacks the struct, so that the part has ``restrict``
pointers as parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.codegen.c_types import scalar_type, value_type
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer
from mlfc.support.dims import Dim, Extent
from mlfc.tir import ir
from mlfc.tir.builder import binary, cast, const
from mlfc.tir.extents import variable
from mlfc.tir.independence import accessed
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Var
from mlfc.tir.parallel import GRAIN, captured, parallelize
from mlfc.tir.unroll import Unroll
from mlfc.tir.visitor import walk

_MOST_TASKS = 1 << 20


@dataclass(frozen=True, eq=False)
class ParallelPart:
    """A parallel part of a function and the values that it captures."""

    name: str
    stmt: ir.Parallel
    buffers: tuple[Buffer, ...]
    variables: tuple[Var, ...]  # all but the first and last piece

    @property
    def private_offsets(self) -> dict[Buffer, Extent]:
        """The byte offset of each private buffer in a thread's scratch."""
        offsets: dict[Buffer, Extent] = {}
        end: Any = 0
        for buffer in self.stmt.private:
            offsets[buffer] = end
            end = end + (buffer.nbytes + 63) // 64 * 64
        return offsets

    @property
    def private_bytes(self) -> Extent:
        """The size of a thread's scratch in bytes; a `Dim` if it is known only at run time."""
        total: Extent = sum(((buffer.nbytes + 63) // 64 * 64 for buffer in self.stmt.private), 0)
        return total

    @property
    def open_offsets(self) -> tuple[tuple[Buffer, Dim], ...]:
        """The offsets that are known only at run time."""
        return tuple((buffer, at) for buffer, at in self.private_offsets.items() if isinstance(at, Dim))

    @property
    def most_tasks(self) -> Expr:
        """The maximum number of threads that the part's work justifies."""
        if isinstance(self.stmt.work, float):
            return const(max(1, min(_MOST_TASKS, int(self.stmt.work / GRAIN))))
        share = binary("mul", self.stmt.work, const(1 / GRAIN, "float32"))
        return cast(binary("min", share, const(float(_MOST_TASKS), "float32")), "int32")


def scratch_bytes(unit: Unit) -> list[Extent]:
    """Return the size of a thread's scratch for each parallel part of a module's kernels."""
    found: list[Extent] = []
    for kernel in unit.kernels_in_code:
        if kernel.device is None:
            shared = parallelize(Unroll(keeps_begins=True)(kernel), unit.aliased_inputs(kernel))
            parts = (stmt for stmt in walk(shared.body) if isinstance(stmt, ir.Parallel))
            found += [part_of(kernel, stmt, kernel.name).private_bytes for stmt in parts]
    return found


def part_of(prim: PrimFunc, stmt: ir.Parallel, name: str) -> ParallelPart:
    """Return a parallel part of a function under the name `name`."""
    used = {buffer for item in walk(stmt.body) for buffer in accessed(item)}
    buffers = tuple(buffer for buffer in (*prim.params, *prim.scratch) if buffer in used)
    symbols = tuple(map(variable, prim.symbols))
    others = tuple(var for var in captured(stmt) if var not in symbols)
    return ParallelPart(name, stmt, buffers, (*symbols, *others))


def struct_text(part: ParallelPart, names: Sequence[str], output: Buffer) -> str:
    """Return the struct of the values that a part captures; `names` are those of buffers, then of variables."""
    writer = Writer()
    with writer.block(f"struct {part.name}", "};"):
        for buffer, name in zip(part.buffers, names, strict=False):
            writer.line(f"{pointer_type(buffer, output)}{name};")
        for var, name in zip(part.variables, names[len(part.buffers) :], strict=True):
            writer.line(f"{value_type(var.dtype)} {name};")
        for buffer, _ in part.open_offsets:
            writer.line(f"uint64_t {names[part.buffers.index(buffer)]}_at;")
    return writer.text()


def task_text(part: ParallelPart, names: Sequence[str], output: Buffer) -> str:
    """Return the function that unpacks the struct and calls the part."""
    writer = Writer()
    offsets = part.private_offsets
    head = f"static int32_t {part.name}_task(const void *arguments, int32_t first, int32_t last, void *scratch)"
    with writer.block(head):
        writer.line(f"const struct {part.name} *const task = (const struct {part.name} *)arguments;")
        given = [f"task->{name}" for name in names]
        for place, buffer in enumerate(part.buffers):
            if buffer in offsets:
                kind = pointer_type(buffer, output)
                at = offsets[buffer] if isinstance(offsets[buffer], int) else f"task->{names[place]}_at"
                own = f"({kind})(void *)((uint8_t *)scratch + {at})"
                writer.line(f"{kind}const {names[place]} = scratch ? {own} : {given[place]};")
                given[place] = names[place]
        if not offsets:
            writer.line("(void)scratch;")
        writer.line(f"return {part.name}({', '.join([*given, 'first', 'last'])});")
    return writer.text()


def pointer_type(buffer: Buffer, output: Buffer) -> str:
    """Return the C type of a pointer to a buffer."""
    const_ = "" if buffer is output or buffer.scope != "param" else "const "
    return f"{const_}{scalar_type(buffer.dtype)} *"
