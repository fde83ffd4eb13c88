"""Code generation from loop-level functions to C99, with GNU vector types where the function uses vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from types import MappingProxyType

from mlfc.codegen import vectors
from mlfc.codegen.c_expr import ATOM, ExprPrinter, Requirements
from mlfc.codegen.c_parallel import ParallelPart, part_of, pointer_type, struct_text, task_text
from mlfc.codegen.c_types import literal, scalar_type, value_type
from mlfc.codegen.prelude import render
from mlfc.codegen.statements import StatementPrinter, accumulated, keeps_rolled
from mlfc.codegen.writer import PIECES, Writer, comment_text
from mlfc.support import dtypes
from mlfc.support.c_names import HEADERS, sanitize, unique
from mlfc.support.dims import Dim
from mlfc.tir import ir
from mlfc.tir.extents import as_index, bind_names, named_extents, variable
from mlfc.tir.forms import C_FORMS
from mlfc.tir.independence import of_function
from mlfc.tir.ir import Expr, PrimFunc, Stmt, Var
from mlfc.tir.parallel import parallelize
from mlfc.tir.parameters import Parameter, SharedFunction
from mlfc.tir.unroll import Unroll
from mlfc.tir.visitor import loads, walk, walk_expr

_WORKSPACE = "workspace"
_VALUES = Var("values", "int32")
_PIECES = (
    "rounds_even", "doubles", "independent_loops", "scalar_loops", "rolled_loops", "fences", "wide_vectors",
    "prefetches",
)  # fmt: skip
# their loops are so long that gcc gets a hint to use the widest vectors; short loops do better with its own choice
_LONG_HELPERS = frozenset({"exp_f32", "exp_below_f32", "tanh_f32", "erf_f32"})
# not available for local names: parameters of every function, and names from the included headers
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
    parts: tuple[str, ...] = ()  # the text of its parallel parts, which precedes it


def print_function(
    prim: PrimFunc,
    name: str | None = None,
    aliased: frozenset[int] = frozenset(),
    *,
    parallel: str = "",
    mark: str = "",
    compact: bool = False,
) -> CFunction:
    """Print a function, under the C name `name` if that differs from its own.

    `aliased` are the positions of inputs that the output may overlap, in addition to those of `PrimFunc.inplace`; see
    `tir.inplace_overlap`. `parallel` is the function that distributes its work over threads, if any, and `mark` a macro
    before the functions of its parts. In a `compact` function, compilers must not unroll loops with long bodies.
    """
    prim = Unroll(keeps_begins=bool(parallel))(prim)
    title = name or sanitize(prim.name)
    if parallel:  # each part becomes a separate function
        return _FunctionPrinter(parallelize(prim, aliased), title, aliased, None, mark, parallel, compact).run()
    unread: set[str] = set()
    while True:
        named = named_extents(prim, unread)
        printer = _FunctionPrinter(bind_names(prim, named), title, aliased, None, mark, "", compact, named)
        printed = printer.run()
        # variables that cancel out when the terms of indices are reordered
        if not (found := {var.name for var, _ in named.values() if not printer.reads(var)}):
            return printed
        unread |= found


def print_shared(values: KernelValues, aliased: frozenset[int] = frozenset()) -> CFunction:
    """Print a function that several kernels share; its last parameter points to the constants of one of them."""
    shared = values.shared
    unrolled = replace(shared, prim=Unroll()(shared.prim))
    return _FunctionPrinter(unrolled.prim, values.function, aliased, replace(values, shared=unrolled)).run()


def signature(prim: PrimFunc, name: str, aliased: frozenset[int] = frozenset()) -> str:
    """Return the head of the C function, for a definition or a prototype."""
    return _head_printer(prim, name, aliased).head()


def arguments(prim: PrimFunc, aliased: frozenset[int] = frozenset()) -> list[str]:
    """Return the names of the parameters of the C function, in order."""
    return _head_printer(prim, prim.name, aliased).parameter_names()


def _head_printer(prim: PrimFunc, name: str, aliased: frozenset[int]) -> _FunctionPrinter:
    return _FunctionPrinter(replace(prim, body=ir.Seq(())), name, aliased)  # the body is not part of the head


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
        whole: _FunctionPrinter | None = None,
    ) -> None:
        super().__init__(prim.body, _RESERVED, prim.name, None if whole is None else whole._ranges)
        self._prim = prim
        self._aliased = aliased.union(prim.inplace)
        self._name = name
        self._values = values
        self._read: set[int] = set()
        self._exprs = ExprPrinter(self._read_name, self._needs, self._ranges, named=named)
        if whole is None:
            self._independence = of_function(prim, aliased)
            self._words = {var for name in C_FORMS for var in C_FORMS.get(name).words(prim.body)}
            self._ranges.know_buffers((*prim.params, *prim.scratch))
        self._parts: list[str] = []
        self._mark, self._parallel_for, self._compact = mark, parallel, compact

    def run(self) -> CFunction:
        with self._writer.block(self.head()):
            if self._values is not None:
                self._parameters(self._values)
            # the code of an external generator accesses all buffers
            used = {id(buffer) for buffer in (*self._prim.params, *self._prim.scratch)}
            if self._prim.external is None:
                used = {id(stmt.buffer) for stmt in walk(self._prim.body) if isinstance(stmt, ir.Store)}
                used |= {id(load.buffer) for load in loads(self._prim.body)}
            if self._values is not None:
                offsets = list(map(self._exprs.expr, self._values.shared.scratch_offsets))
            else:
                offsets = [str(at) if isinstance(at, int) else self._offset(at) for at in self._prim.scratch_offsets]
            for buffer, offset in zip(self._prim.scratch, offsets, strict=True):
                if id(buffer) not in used:
                    continue
                kind = scalar_type(buffer.dtype)
                place = _WORKSPACE if offset == "0" else f"({_WORKSPACE} + {offset})"
                self._writer.line(f"{kind} *restrict {self._names.declare(buffer)} = ({kind} *){place};")
            self._stmt(self._prim.body)
            # constants that only the kernels of other processor levels read
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
        """Return the function's text, marked for the widest vectors if it computes exponentials and the like."""
        if self._needs.helpers.isdisjoint(_LONG_HELPERS):
            return text
        self._needs.wide_vectors = True
        return f"MLF_WIDE {text}"

    def reads(self, var: Var) -> bool:
        """Return whether the printed function reads a variable."""
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
        """Return the function's head and declare the names of the parameters."""
        params = self._pointers(self._prim.params)
        if self._prim.scratch:
            params.append(f"uint8_t *restrict {_WORKSPACE}")
        params += [f"int32_t {self._names.declare(variable(symbol))}" for symbol in self._prim.symbols]
        if self._values is not None:
            params.append(f"const {self._values.type_name} *{self._names.declare(_VALUES)}")
        return f"int32_t {self._name}({', '.join(params)})"

    def _pointers(self, buffers: Sequence[ir.Buffer]) -> list[str]:
        """Return the parameters for buffers, as ``restrict`` pointers unless they may overlap another buffer."""
        shared = {self._prim.inputs[position] for position in self._aliased}
        aliased = shared | ({self._prim.output} if shared else set())
        return [
            f"{pointer_type(buffer, self._prim.output)}{'' if buffer in aliased else 'restrict '}"
            f"{self._names.declare(buffer)}"
            for buffer in buffers
        ]

    def _parameters(self, values: KernelValues) -> None:
        """Print the fields as local variables: compilers must assume that stores alias their struct."""
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

    def _offset(self, offset: Dim) -> str:
        """Print a byte offset as int64: int32 is only wide enough to count elements."""
        return self._exprs.expr(as_index(offset, "int64"), ATOM)

    def _special(self, stmt: Stmt) -> bool:
        if isinstance(stmt, ir.External):
            buffers = (*self._prim.params, *self._prim.scratch)
            names = {buffer.name: self._names.get(buffer) for buffer in buffers}
            names |= {name: self._exprs.expr(value, ATOM) for name, value in stmt.extents}
            self._writer.lines(Template(stmt.text).substitute(names).splitlines())
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
        """Print a parallel part as a separate function, and the call that distributes its pieces over threads."""
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

    def _store(self, stmt: ir.Store) -> None:
        own = next((text for name in C_FORMS if (text := C_FORMS.get(name).store(self._exprs, stmt)) is not None), None)
        if own is not None:
            self._writer.line(own)
            return
        value, added = stmt.value, accumulated(stmt)
        if dtypes.lanes(value.dtype) != dtypes.lanes(stmt.buffer.dtype) and self._is_overwritten(stmt):
            kept = Var("kept", value.dtype)
            self._declare(kept, value)
            self._assign(self._exprs.element(stmt.buffer, stmt.indices, kept.dtype), kept)
            return
        place = self._exprs.element(stmt.buffer, stmt.indices, value.dtype)
        if added is not None and not self._exprs.wraps(value):
            self._assign(place, added, "+=")
        else:
            self._assign(place, value)

    def _is_overwritten(self, stmt: ir.Store) -> bool:
        """Return whether a store of parts, one after another, may overwrite elements that a later part reads."""
        read = {node.buffer for node in walk_expr(stmt.value) if isinstance(node, ir.Load)}
        is_shared = stmt.buffer is self._prim.output and any(self._prim.inputs[at] in read for at in self._prim.inplace)
        return stmt.buffer in read or is_shared

    def _assign(self, place: str, value: Expr, operator: str = "=") -> None:
        each = "MLF_EACH(q) " if dtypes.lanes(value.dtype) > 1 else ""
        self._writer.line(f"{each}{place} {operator} {self._exprs.expr(value)};")

    def _loop_hint(self, stmt: ir.For) -> str:
        hints = []
        may_overlap = bool(self._aliased)
        if stmt.kind == "vectorized" and not may_overlap:
            # gcc does not track ``restrict`` for scratch buffers, so compilers may assume that these overlap
            stored = {item.buffer for item in walk(stmt.body) if isinstance(item, ir.Store)}
            used = stored | {load.buffer for load in loads(stmt.body)}
            scratch = {buffer for buffer in used if buffer.scope == "scratch"}
            may_overlap = len(scratch) > 1 and not scratch.isdisjoint(stored)
        if self._independence.has_wrapping_address(stmt):
            self._needs.scalar_loops = True
            hints.append("MLF_SCALAR")
        elif stmt.kind == "vectorized" and may_overlap and self._independence.holds(stmt):
            self._needs.independent_loops = True
            hints.append("MLF_INDEPENDENT")
        if stmt.kind == "rolled" or (self._compact and keeps_rolled(stmt)):
            self._needs.rolled_loops = True
            hints.append("MLF_ROLLED")
        return " ".join(hints)

    def _declare(self, var: Var, value: Expr) -> None:
        is_word = id(var) in self._words
        text = self._exprs.group(value) if is_word else self._exprs.expr(value)
        if is_word or dtypes.lanes(var.dtype) == 1:
            kind = "int32_t" if is_word else value_type(var.dtype)
            self._writer.line(f"const {kind} {self._names.declare(var)} = {text};")
        else:
            self._writer.line(f"{value_type(var.dtype)} {self._names.declare(var)};")
            self._writer.line(f"MLF_EACH(q) {self._exprs.variable(var)} = {text};")

    def _allocate(self, stmt: ir.Allocate) -> None:
        buffer = stmt.buffer
        kind = value_type(buffer.dtype)
        if dtypes.lanes(buffer.dtype) > 1:
            self._needs.vectors.add(buffer.dtype)
        self._writer.line(f"{kind} {self._names.declare(buffer)}[{max(buffer.size, 1)}];")


class _PartPrinter(_FunctionPrinter):
    """Prints a parallel part of a function; its parameters are the captured values, then the first and last piece."""

    def __init__(self, whole: _FunctionPrinter, part: ParallelPart) -> None:
        prim = replace(whole._prim, body=part.stmt.body)
        super().__init__(prim, part.name, frozenset(), whole=whole)
        self._part, self._whole, self._compact = part, whole, whole._compact
        self._aliased, self._independence, self._words = whole._aliased, whole._independence, whole._words

    def texts(self) -> tuple[Requirements, list[str]]:
        """Return the requirements of the part, and the texts of its struct, its function and its task."""
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
        """Return the head of the part's function and declare the names of the parameters."""
        params = self._pointers(self._part.buffers)
        stmt = self._part.stmt
        for var in (*self._part.variables, stmt.first, stmt.last):
            params.append(f"{value_type(var.dtype)} {self._names.declare(var)}")
        return f"int32_t {self._name}({', '.join(params)})"


_NARROW = ("int8", "int16")


@dataclass(frozen=True, eq=False)
class ValuesField:
    """A field of the struct: its parameter, its name, and its dtype, which may be narrower than the parameter's."""

    parameter: Parameter
    name: str
    dtype: str


@dataclass(frozen=True, eq=False)
class KernelValues:
    """The struct of per-kernel constants that a shared function reads."""

    shared: SharedFunction
    function: str  # its C name

    @property
    def type_name(self) -> str:
        """The C type."""
        return f"struct {self.function}_values"

    def symbol(self, kernel: str) -> str:
        """Return the C name of the constant struct of the kernel with the C name `kernel`."""
        return f"{kernel}_values"

    def fields(self) -> tuple[ValuesField, ...]:
        """Return the fields, widest first, so that the struct has no padding between them."""
        parameters = self.shared.parameters
        names = unique(parameter.var.name for parameter in parameters)
        fields = []
        for parameter, name in zip(parameters, names, strict=True):
            low, high = min(parameter.values), max(parameter.values)
            narrow = (kind for kind in _NARROW if dtypes.limits(kind)[0] <= low and high <= dtypes.limits(kind)[1])
            dtype = parameter.var.dtype
            fields.append(ValuesField(parameter, name, next(narrow, dtype) if dtype == "int32" else dtype))
        return tuple(sorted(fields, key=lambda field: -dtypes.nbytes(field.dtype)))

    def declaration(self) -> str:
        """Return the definition of the struct."""
        writer = Writer()
        writer.line(f"/* the numbers in which the kernels of {comment_text(self.function)} differ */")
        with writer.block(self.type_name, "};"):
            writer.lines([f"{scalar_type(field.dtype)} {field.name};" for field in self.fields()])
        return writer.text()

    def definition(self, member: int, kernel: str, comment: Sequence[str]) -> str:
        """Return the struct constant of one kernel, preceded by a comment."""
        writer = Writer()
        writer.lines(list(comment))
        with writer.block(f"static const {self.type_name} {self.symbol(kernel)} =", "};"):
            for field in self.fields():
                value = field.parameter.values[member]
                text = value if field.dtype in _NARROW else literal(value, field.dtype)
                writer.line(f".{field.name} = {text},")
        return writer.text()
