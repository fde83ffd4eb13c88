"""Printing loop-level functions as C99 (with GNU vectors where the function uses vectors)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import Template
from types import MappingProxyType

from mlfc.codegen import vectors
from mlfc.codegen.c_expr import ATOM, ExprPrinter, Requirements
from mlfc.codegen.c_parallel import ParallelPart, part_of, pointer_type, struct_text, task_text
from mlfc.codegen.c_types import scalar_type, value_type
from mlfc.codegen.kernel_values import KernelValues
from mlfc.codegen.long_bodies import keeps_rolled
from mlfc.codegen.prelude import render
from mlfc.codegen.statements import StatementPrinter, accumulated
from mlfc.codegen.writer import PIECES, Writer, comment_text
from mlfc.support import dtypes
from mlfc.support.c_names import sanitize
from mlfc.support.dims import Dim
from mlfc.support.parallel_functions import HEADERS
from mlfc.tir import ir
from mlfc.tir.extents import as_index, variable
from mlfc.tir.forms import C_FORMS
from mlfc.tir.independence import of_function
from mlfc.tir.ir import Expr, PrimFunc, Stmt, Var
from mlfc.tir.name_extents import bind_names, named_extents
from mlfc.tir.parallel import parallelize
from mlfc.tir.unroll import Unroll
from mlfc.tir.visitor import loads, walk, walk_expr

_WORKSPACE = "workspace"
_VALUES = Var("values", "int32")
_PIECES = (
    "rounds_even", "doubles", "independent_loops", "scalar_loops", "rolled_loops", "fences", "wide_vectors",
    "prefetches",
)  # fmt: skip
# of so many steps that gcc is asked for the widest vectors; loops of few steps are better off with its own choice
_LONG_HELPERS = frozenset({"exp_f32", "exp_below_f32", "tanh_f32", "erf_f32"})
# not for local names: parameters of every function, and names of the headers that are used
_RESERVED = frozenset(
    {
        _WORKSPACE, vectors.PART, "memcpy", "NAN", "INFINITY", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t",
        "uint16_t", "uint32_t", "uint64_t",
    }
)  # fmt: skip


@dataclass(frozen=True)
class CFunction:
    """A printed function: its text and what its file must provide."""

    text: str
    needs: Requirements
    parts: tuple[str, ...] = ()  # the text of its parallel parts, which is before it


def print_function(
    prim: PrimFunc,
    name: str | None = None,
    aliased: frozenset[int] = frozenset(),
    *,
    parallel: str = "",
    mark: str = "",
    compact: bool = False,
) -> CFunction:
    """Print a function, under the C name `name` if that is not its own.

    `aliased` are positions of inputs that the output may overlap beside those of `PrimFunc.inplace`; see
    `tir.inplace_overlap`. `parallel` is the function by which it shares its work among threads, if it does, and `mark`
    a macro before the functions of its parts. A `compact` one has loops of long bodies that compilers keep.
    """
    prim = Unroll(keeps_begins=bool(parallel))(prim)
    title = name or sanitize(prim.name)
    if parallel:  # whose parts are functions of their own
        return _FunctionPrinter(parallelize(prim, aliased), title, aliased, None, mark, parallel, compact).run()
    unread: set[str] = set()
    while True:
        named = named_extents(prim, unread)
        printer = _FunctionPrinter(bind_names(prim, named), title, aliased, None, mark, "", compact, named)
        printed = printer.run()
        # what the order of sums in indices leaves nothing of
        if not (found := {var.name for var, _ in named.values() if not printer.reads(var)}):
            return printed
        unread |= found


def print_shared(values: KernelValues, aliased: frozenset[int] = frozenset()) -> CFunction:
    """Print a function that several kernels share; its last parameter points to the numbers of one of them."""
    shared = values.shared
    unrolled = replace(shared, prim=Unroll()(shared.prim))
    return _FunctionPrinter(unrolled.prim, values.function, aliased, replace(values, shared=unrolled)).run()


def signature(prim: PrimFunc, name: str, aliased: frozenset[int] = frozenset()) -> str:
    """Return the head of the C function, as a definition and a prototype need it."""
    return _FunctionPrinter(prim, name, aliased).head()


def arguments(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> list[str]:
    """Return the names of the parameters of the C function, in order."""
    return _FunctionPrinter(prim, prim.name, aliased).parameter_names()


def preamble(needs: Requirements) -> list[str]:
    """Return includes, types, helpers and macros for functions with these needs."""
    lines = ["#include <math.h>"] if needs.math else []
    lines += ["#include <stdint.h>", "#include <string.h>"]
    lines += [f"#include <{HEADERS[name]}>" for name in sorted(needs.parallel)]
    body = render(needs.helpers, needs.vectors)
    for need in _PIECES:
        if getattr(needs, need):
            lines += ["", PIECES[need]]
    return [*lines, "", *body] if body else lines


def _accessed(prim: PrimFunc) -> set[int]:
    """Return the ids of the buffers that the body reads or writes; all of an external generator's."""
    if prim.external is not None:
        return {id(buffer) for buffer in (*prim.params, *prim.scratch)}
    stored = {id(stmt.buffer) for stmt in walk(prim.body) if isinstance(stmt, ir.Store)}
    return stored | {id(load.buffer) for load in loads(prim.body)}


class _FunctionPrinter(StatementPrinter):
    def __init__(
        self,
        prim: PrimFunc,
        name: str,
        aliased: frozenset[int],
        values: KernelValues | None = None,
        mark: str = "",
        parallel: str = "",
        compact: bool = False,
        named: Mapping[Dim, tuple[Var, Expr]] = MappingProxyType({}),
    ) -> None:
        super().__init__(prim.body, _RESERVED, prim.name)
        self._prim = prim
        self._aliased = aliased.union(prim.inplace)
        self._independence = of_function(prim, aliased)
        self._name = name
        self._values = values
        self._read: set[int] = set()
        self._exprs = ExprPrinter(self._read_name, self._needs, self._ranges, named=named)
        self._ranges.know_buffers((*prim.params, *prim.scratch))
        self._words = {var for name in C_FORMS for var in C_FORMS.get(name).words(prim.body)}
        self._parts: list[str] = []
        self._mark, self._parallel_for, self._compact = mark, parallel, compact

    def run(self) -> CFunction:
        with self._writer.block(self.head()):
            if self._values is not None:
                self._parameters(self._values)
            used = _accessed(self._prim)
            for buffer, offset in zip(self._prim.scratch, self._scratch_offsets(), strict=True):
                if id(buffer) not in used:
                    continue
                kind = scalar_type(buffer.dtype)
                place = _WORKSPACE if offset == "0" else f"({_WORKSPACE} + {offset})"
                self._writer.line(f"{kind} *restrict {self._names.declare(buffer)} = ({kind} *){place};")
            self._stmt(self._prim.body)
            # what other levels of processors alone need
            unused = [self._names.get(buffer) for buffer in self._prim.constants if id(buffer) not in used]
            if self._prim.scratch and not any(id(buffer) in used for buffer in self._prim.scratch):
                unused.append(_WORKSPACE)
            self._writer.lines([f"(void){name};" for name in unused])
            self._end()
        return CFunction(self._widened(self._writer.text()), self._needs, tuple(self._parts))

    def _end(self) -> None:
        for var in map(variable, self._prim.symbols):
            if id(var) not in self._read:
                self._writer.line(f"(void){self._names.get(var)};")
        self._writer.line("return 0;")

    def _widened(self, text: str) -> str:
        """Return the text of a function, which asks for the widest vectors if it computes exponentials and the like."""
        if self._needs.helpers.isdisjoint(_LONG_HELPERS):
            return text
        self._needs.wide_vectors = True
        return f"MLF_WIDE {text}"

    def reads(self, var: Var) -> bool:
        """Tell whether the function that was printed reads a variable."""
        return id(var) in self._read

    def _read_name(self, node: Var | ir.Buffer) -> str:
        self._read.add(id(node))
        return self._names.get(node)

    def parameter_names(self) -> list[str]:
        """Return the names of the parameters."""
        self.head()
        workspace = [_WORKSPACE] if self._prim.scratch else []
        symbols = [self._names.get(variable(symbol)) for symbol in self._prim.symbols]
        return [*(self._names.get(buffer) for buffer in self._prim.params), *workspace, *symbols]

    def head(self) -> str:
        """Return the function's head and give the parameters their names."""
        shared = [self._prim.inputs[position] for position in self._aliased]
        params = []
        for buffer in self._prim.params:
            is_output = buffer is self._prim.output
            aliased = bool(shared) if is_output else any(buffer is item for item in shared)
            qualifier = "" if aliased else "restrict "
            params.append(f"{pointer_type(buffer, self._prim.output)}{qualifier}{self._names.declare(buffer)}")
        if self._prim.scratch:
            params.append(f"uint8_t *restrict {_WORKSPACE}")
        params += [f"int32_t {self._names.declare(variable(symbol))}" for symbol in self._prim.symbols]
        if self._values is not None:
            params.append(f"const {self._values.type_name} *{self._names.declare(_VALUES)}")
        return f"int32_t {self._name}({', '.join(params)})"

    def _parameters(self, values: KernelValues) -> None:
        """Print the numbers as variables: compilers must assume that stores alias their struct."""
        used = self._used | {
            id(node) for offset in values.shared.scratch_offsets for node in walk_expr(offset) if isinstance(node, Var)
        }
        place = self._names.get(_VALUES)
        for item in values.fields():
            var = item.parameter.var
            self._ranges.know(var, item.parameter.values)
            if id(var) in used:
                name = self._names.declare(var)
                self._writer.line(f"const {value_type(var.dtype)} {name} = {place}->{item.name};")

    def _scratch_offsets(self) -> list[str]:
        if self._values is None:
            offsets = self._prim.scratch_offsets
            return [str(item) if isinstance(item, int) else self._offset(item) for item in offsets]
        return [self._exprs.expr(offset) for offset in self._values.shared.scratch_offsets]

    def _offset(self, offset: Dim) -> str:
        """Print an offset in bytes: what int32 counts are elements."""
        return self._exprs.expr(as_index(offset, "int64"), ATOM)

    # statements -----------------------------------------------------------------------------------------

    def _special(self, stmt: Stmt) -> bool:
        if isinstance(stmt, ir.External):
            self._external(stmt)
        elif isinstance(stmt, ir.Fence):
            self._needs.fences = True
            memory = self._read_name(stmt.buffer) if stmt.buffer else "0"
            self._writer.line(f"MLF_FENCE({memory}) /* {comment_text(stmt.text)} */")
        elif isinstance(stmt, ir.Require):
            with self._block(f"if (!{self._read_name(stmt.buffer)}[{self._exprs.expr(stmt.offset)}])"):
                self._writer.line(f"return -1; /* {comment_text(stmt.text)} */")
        elif isinstance(stmt, ir.Prefetch):
            self._needs.prefetches = True
            place = f"&{self._read_name(stmt.buffer)}[{self._exprs.expr(stmt.offset)}]"
            self._writer.line(f"MLF_PREFETCH({place}); /* {comment_text(stmt.text)} */")
        elif isinstance(stmt, ir.Parallel):
            self._parallel(stmt)
        else:
            return False
        return True

    def _parallel(self, stmt: ir.Parallel) -> None:
        """Print a parallel part as a function of its own, and the call that shares its pieces out."""
        part = part_of(self._prim, stmt, f"{self._name}_parallel{len(self._parts)}")
        needs, texts = _PartPrinter(self, part).texts()
        self._needs.merge(needs)
        self._needs.parallel.add(self._parallel_for)
        self._parts.append("\n".join(texts))
        given = [*map(self._read_name, part.buffers), *map(self._read_name, part.variables)]
        given += [f"(uint64_t){self._offset(at)}" for _, at in part.open_offsets]
        nbytes = part.private_bytes
        text = str(nbytes) if isinstance(nbytes, int) else f"(uint64_t){self._offset(nbytes)}"
        count, most = self._exprs.expr(stmt.count), self._exprs.expr(part.most_tasks)
        with self._block("", "}"):
            self._writer.line(f"const struct {part.name} task = {{{', '.join(given)}}};")
            call = f"{self._parallel_for}({part.name}_task, &task, {count}, {most}, {text})"
            with self._writer.block(f"if ({call} != 0)"):
                self._writer.line("return -1;")

    def _external(self, stmt: ir.External) -> None:
        buffers = (*self._prim.params, *self._prim.scratch)
        names = {buffer.name: self._names.get(buffer) for buffer in buffers}
        names |= {name: self._exprs.expr(value, ATOM) for name, value in stmt.extents}
        for line in Template(stmt.text).substitute(names).splitlines():
            self._writer.line(line)

    def _store(self, stmt: ir.Store) -> None:
        own = next((text for name in C_FORMS if (text := C_FORMS.get(name).store(self._exprs, stmt)) is not None), None)
        if own is not None:
            self._writer.line(own)
            return
        value, added = stmt.value, accumulated(stmt)
        if self._has_store_hazard(stmt):
            kept = Var("kept", value.dtype)
            self._declare(kept, value)
            self._assign(self._exprs.element(stmt.buffer, stmt.indices, kept.dtype), kept)
            return
        place = self._exprs.element(stmt.buffer, stmt.indices, value.dtype)
        if added is not None and not self._exprs.wraps(value):
            self._assign(place, added, "+=")
        else:
            self._assign(place, value)

    def _assign(self, place: str, value: Expr, operator: str = "=") -> None:
        each = "MLF_EACH(q) " if dtypes.lanes(value.dtype) > 1 else ""
        self._writer.line(f"{each}{place} {operator} {self._exprs.expr(value)};")

    def _has_store_hazard(self, stmt: ir.Store) -> bool:
        """Tell whether a store of parts, one after another, may write what a later part still reads."""
        if dtypes.lanes(stmt.value.dtype) == dtypes.lanes(stmt.buffer.dtype):
            return False
        buffers = {node.buffer for node in walk_expr(stmt.value) if isinstance(node, ir.Load)}
        shared = [self._prim.inputs[position] for position in self._prim.inplace]
        return stmt.buffer in buffers or (stmt.buffer is self._prim.output and not buffers.isdisjoint(shared))

    def _loop_hint(self, stmt: ir.For) -> str:
        hints = []
        if self._independence.has_wrapping_address(stmt):
            self._needs.scalar_loops = True
            hints.append("MLF_SCALAR")
        elif stmt.kind == "vectorized" and self._may_overlap(stmt) and self._independence.holds(stmt):
            self._needs.independent_loops = True
            hints.append("MLF_INDEPENDENT")
        if stmt.kind == "rolled" or (self._compact and keeps_rolled(stmt)):
            self._needs.rolled_loops = True
            hints.append("MLF_ROLLED")
        return " ".join(hints)

    def _may_overlap(self, loop: ir.For) -> bool:
        """Tell whether compilers may think so of buffers of a loop: gcc keeps no ``restrict`` of scratch apart."""
        stored = {stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, ir.Store)}
        read = {load.buffer for load in loads(loop.body)}
        scratch = {buffer for buffer in stored | read if buffer.scope == "scratch"}
        return bool(self._aliased) or (len(scratch) > 1 and not scratch.isdisjoint(stored))

    def _declare(self, var: Var, value: Expr) -> None:
        if id(var) in self._words:
            text = self._exprs.group(value)
            self._writer.line(f"const int32_t {self._names.declare(var)} = {text};")
        elif dtypes.lanes(var.dtype) == 1:
            text = self._exprs.expr(value)
            self._writer.line(f"const {value_type(var.dtype)} {self._names.declare(var)} = {text};")
        else:
            text = self._exprs.expr(value)
            self._writer.line(f"{value_type(var.dtype)} {self._names.declare(var)};")
            self._writer.line(f"MLF_EACH(q) {self._exprs.variable(var)} = {text};")

    def _allocate(self, stmt: ir.Allocate) -> None:
        buffer = stmt.buffer
        kind = value_type(buffer.dtype)
        if dtypes.lanes(buffer.dtype) > 1:
            self._needs.vectors.add(buffer.dtype)
        self._writer.line(f"{kind} {self._names.declare(buffer)}[{max(buffer.size, 1)}];")


class _PartPrinter(_FunctionPrinter):
    """Prints a parallel part of a function: what it takes are its parameters, then its first and last piece."""

    def __init__(self, whole: _FunctionPrinter, part: ParallelPart) -> None:
        prim = replace(whole._prim, body=part.stmt.body)
        super().__init__(prim, part.name, frozenset(), None)
        self._part, self._whole, self._compact = part, whole, whole._compact
        self._aliased, self._independence, self._words = whole._aliased, whole._independence, whole._words
        self._ranges = whole._ranges
        self._exprs = ExprPrinter(self._read_name, self._needs, self._ranges)

    def texts(self) -> tuple[Requirements, list[str]]:
        """Return the part and what calls it."""
        part, output = self._part, self._prim.output
        writer, self._writer = self._writer, Writer()
        head = self.head()
        names = [*map(self._names.get, part.buffers), *map(self._names.get, part.variables)]
        with self._ranges.scope(), self._writer.block(head):
            count = self._ranges.interval(part.stmt.count).high
            for var in (part.stmt.first, part.stmt.last):
                self._ranges.know(var, (0, max(count, 0)))
            self._stmt(part.stmt.body)
            self._end()
        body, self._writer = self._widened(self._writer.text()), writer
        task = task_text(part, names, output)
        first = f"static {self._whole._mark} {body}" if self._whole._mark else f"static {body}"
        return self._needs, [struct_text(part, names, output), first, task]

    def head(self) -> str:
        """Return the head of the part's function and give the parameters their names."""
        shared = {self._prim.inputs[position] for position in self._aliased}
        aliased = shared | ({self._prim.output} if shared else set())
        params = []
        for buffer in self._part.buffers:
            qualifier = "" if buffer in aliased else "restrict "
            params.append(f"{pointer_type(buffer, self._prim.output)}{qualifier}{self._names.declare(buffer)}")
        stmt = self._part.stmt
        for var in (*self._part.variables, stmt.first, stmt.last):
            params.append(f"{value_type(var.dtype)} {self._names.declare(var)}")
        return f"int32_t {self._name}({', '.join(params)})"
