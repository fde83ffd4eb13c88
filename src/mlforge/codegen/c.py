"""Printing loop-level functions as C99 (with GNU vectors where the function uses vectors)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mlforge.codegen import dot4, mve, vectors
from mlforge.codegen.c_expr import ExprPrinter, Needs
from mlforge.codegen.c_types import HALF_FLOATS, scalar_type, value_type
from mlforge.codegen.kernel_values import KernelValues
from mlforge.codegen.prelude import helper_name, render
from mlforge.codegen.writer import Writer, comment_text
from mlforge.support import dtypes
from mlforge.support.c_names import sanitize
from mlforge.tir import ir
from mlforge.tir.bounds import Ranges
from mlforge.tir.ir import Buffer, Expr, PrimFunc, Stmt, Var
from mlforge.tir.unroll import Unroll
from mlforge.tir.visitor import own_exprs, same_expr, walk, walk_expr

_WORKSPACE = "workspace"
_VALUES = Var("values", "int32")
# what local names must not hide: parameters of every function, and names of the headers that are used
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
    needs: Needs


def print_function(prim: PrimFunc, name: str | None = None, reached: frozenset[int] = frozenset()) -> CFunction:
    """Print a function.

    Parameters
    ----------
    prim : PrimFunc
    name : str, optional
        The C name, if not the function's own.
    reached : frozenset of int
        Positions of inputs that the output may overlap beside those of `PrimFunc.inplace`; see `tir.overlap`.
    """
    return _FunctionPrinter(Unroll()(prim), name or sanitize(prim.name), reached).run()


def print_shared(values: KernelValues, reached: frozenset[int] = frozenset()) -> CFunction:
    """Print a function that several kernels share; behind the pointers it takes that to the numbers of one of them."""
    shared = values.shared
    unrolled = replace(shared, prim=Unroll()(shared.prim))
    return _FunctionPrinter(unrolled.prim, values.function, reached, replace(values, shared=unrolled)).run()


def signature(prim: PrimFunc, name: str, reached: frozenset[int] = frozenset()) -> str:
    """Return the head of the C function, as a definition and a prototype need it."""
    return _FunctionPrinter(prim, name, reached).head()


def print_file(functions: list[CFunction]) -> str:
    """Return a C file of its own with the functions and what they need."""
    needs = Needs()
    for function in functions:
        needs.merge(function.needs)
    return "\n".join([*preamble(needs), "", *(function.text for function in functions)])


def preamble(needs: Needs) -> list[str]:
    """Return includes, types, helpers and macros for functions with these needs."""
    lines = ["#include <math.h>"] if needs.math else []
    lines += ["#include <stdint.h>", "#include <string.h>"]
    body = render(needs.helpers, needs.vectors)
    if needs.independent_loops:
        lines += ["", *_INDEPENDENT]
    if needs.rolled_loops:
        lines += ["", *_ROLLED]
    if needs.fences:
        lines += ["", *_FENCE]
    return [*lines, "", *body] if body else lines


_INDEPENDENT = [
    "/* before loops over memory that may be both read and written: no iteration touches another's elements */",
    "#if defined(__clang__)",
    '#pragma clang diagnostic ignored "-Wpass-failed"',
    '#define MLF_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")',
    "#elif defined(__GNUC__)",
    '#define MLF_INDEPENDENT _Pragma("GCC ivdep")',
    "#else",
    "#define MLF_INDEPENDENT",
    "#endif",
]


_ROLLED = [
    "/* before loops that compilers would spell out, although their bodies fill the registers */",
    "#if defined(__clang__)",
    '#define MLF_ROLLED _Pragma("clang loop unroll(disable)")',
    "#elif defined(__GNUC__)",
    '#define MLF_ROLLED _Pragma("GCC unroll 1")',
    "#else",
    "#define MLF_ROLLED",
    "#endif",
]


_FENCE = [
    "/* what comes after is loaded from memory after what comes before, not kept in registers meanwhile */",
    "#if defined(__GNUC__)",
    '#define MLF_FENCE __asm__ volatile("" ::: "memory");',
    "#else",
    "#define MLF_FENCE",
    "#endif",
]


@dataclass(eq=False)
class _Names:
    """C names of variables and buffers; a name is free again when the C block that declared it closes."""

    chosen: dict[int, str] = field(default_factory=dict)
    blocks: list[set[str]] = field(default_factory=lambda: [set(_RESERVED)])

    def declare(self, node: Var | Buffer) -> str:
        base = sanitize(node.name)
        name, count = base, 0
        while any(name in block for block in self.blocks):
            count += 1
            name = f"{base}_{count}"
        self.blocks[-1].add(name)
        self.chosen[id(node)] = name
        return name

    def get(self, node: Var | Buffer) -> str:
        return self.chosen[id(node)]

    @contextmanager
    def block(self) -> Iterator[None]:
        self.blocks.append(set())
        try:
            yield
        finally:
            self.blocks.pop()


class _FunctionPrinter:
    def __init__(self, prim: PrimFunc, name: str, reached: frozenset[int], values: KernelValues | None = None) -> None:
        self._prim = prim
        self._aliased = reached.union(prim.inplace)
        self._name = name
        self._values = values
        self._names = _Names()
        self._ranges = Ranges()
        self._needs = Needs()
        self._exprs = ExprPrinter(self._names.get, self._needs, self._ranges)
        self._writer = Writer()
        self._used = _used_vars(prim.body)
        self._groups = dot4.group_vars(prim.body)

    def run(self) -> CFunction:
        with self._writer.block(self.head()):
            if self._values is not None:
                self._parameters(self._values)
            for buffer, offset in zip(self._prim.scratch, self._scratch_offsets(), strict=True):
                kind = scalar_type(buffer.dtype)
                place = _WORKSPACE if offset == "0" else f"({_WORKSPACE} + {offset})"
                self._writer.line(f"{kind} *restrict {self._names.declare(buffer)} = ({kind} *){place};")
            self._stmt(self._prim.body)
            self._writer.line("return 0;")
        return CFunction(self._writer.text(), self._needs)

    def head(self) -> str:
        """Return the function's head and give the parameters their names."""
        shared = [self._prim.inputs[position] for position in self._aliased]
        params = []
        for buffer in self._prim.params:
            is_output = buffer is self._prim.output
            aliased = bool(shared) if is_output else any(buffer is item for item in shared)
            qualifier = "" if aliased else "restrict "
            const = "" if is_output else "const "
            params.append(f"{const}{scalar_type(buffer.dtype)} *{qualifier}{self._names.declare(buffer)}")
        if self._prim.scratch:
            params.append(f"uint8_t *restrict {_WORKSPACE}")
        if self._values is not None:
            params.append(f"const {self._values.type_name} *{self._names.declare(_VALUES)}")
        return f"int32_t {self._name}({', '.join(params)})"

    def _parameters(self, values: KernelValues) -> None:
        """Print the numbers as variables: what is stored may alias their struct, as far as compilers know."""
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
            return list(map(str, self._prim.scratch_offsets))
        return [self._exprs.expr(offset) for offset in self._values.shared.scratch_offsets]

    # statements -----------------------------------------------------------------------------------------

    def _stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, ir.Seq):
            for item in stmt.stmts:
                self._stmt(item)
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
            self._stmt(stmt.body)
        elif isinstance(stmt, ir.Fence):
            self._needs.fences = True
            self._writer.line(f"MLF_FENCE /* {comment_text(stmt.text)} */")
        else:
            self._writer.line(f"/* {comment_text(stmt.text)} */")

    def _store(self, stmt: ir.Store) -> None:
        if self._helper_store(stmt):
            return
        value, added = stmt.value, _accumulated(stmt)
        if self._overtakes(stmt):
            kept = Var("kept", value.dtype)
            self._declare(kept, value)
            self._assign(self._exprs.element(stmt.buffer, stmt.indices, kept.dtype), kept)
            return
        place = self._exprs.element(stmt.buffer, stmt.indices, value.dtype)
        if added is not None and not self._ranges.may_overflow_on_data(value):
            self._assign(place, added, "+=")
        else:
            self._assign(place, value)

    def _helper_store(self, stmt: ir.Store) -> bool:
        """Print a store that a helper writes, of a run or of four narrow elements; tell whether it is one."""
        call, narrow = mve.run_call(stmt.value), mve.narrowed(stmt.value)
        to = f"&{self._names.get(stmt.buffer)}[{self._exprs.index(stmt.buffer, stmt.indices)}]"
        if call is not None:
            text, key = mve.run_statement(to, call, self._exprs.address, self._exprs.expr)
            self._writer.line(text)
        elif narrow is not None:
            key, wide = narrow
            self._writer.line(f"MLF_EACH(q) {helper_name(key)}({to}, {self._exprs.expr(wide)});")
        else:
            return False
        self._needs.helpers.add(key)
        return True

    def _assign(self, place: str, value: Expr, operator: str = "=") -> None:
        each = "MLF_EACH(q) " if dtypes.lanes(value.dtype) > 1 else ""
        self._writer.line(f"{each}{place} {operator} {self._exprs.expr(value)};")

    def _overtakes(self, stmt: ir.Store) -> bool:
        """Tell whether a store of parts, one after another, may write what a later part still reads."""
        if dtypes.lanes(stmt.value.dtype) == dtypes.lanes(stmt.buffer.dtype):
            return False
        buffers = {node.buffer for node in walk_expr(stmt.value) if isinstance(node, ir.Load)}
        shared = [self._prim.inputs[position] for position in self._prim.inplace]
        return stmt.buffer in buffers or (stmt.buffer is self._prim.output and not buffers.isdisjoint(shared))

    @contextmanager
    def _block(self, head: str, tail: str = "}") -> Iterator[None]:
        with self._writer.block(head, tail), self._names.block(), self._ranges.scope():
            yield

    def _loop(self, stmt: ir.For) -> None:
        extent = self._exprs.expr(stmt.extent, 9)
        with self._names.block(), self._ranges.scope():
            self._ranges.enter_loop(stmt)
            var = self._names.declare(stmt.var)
            step = f"++{var}" if stmt.step == 1 else f"{var} += {stmt.step}"
            if stmt.kind == "vectorized" and self._aliased:
                self._needs.independent_loops = True
                self._writer.line("MLF_INDEPENDENT")
            elif stmt.kind == "rolled":
                self._needs.rolled_loops = True
                self._writer.line("MLF_ROLLED")
            with self._block(f"for (int32_t {var} = 0; {var} < {extent}; {step})"):
                self._stmt(stmt.body)

    def _branch(self, stmt: ir.If) -> None:
        tail = "}" if stmt.otherwise is None else "} else {"
        condition = self._exprs.expr(stmt.condition)
        with self._block(f"if ({condition})", tail):
            self._ranges.assume(stmt.condition)
            self._stmt(stmt.then)
        if stmt.otherwise is not None:
            with self._writer.indented(), self._names.block(), self._ranges.scope():
                self._ranges.assume(stmt.condition, holds=False)
                self._stmt(stmt.otherwise)
            self._writer.line("}")

    def _let(self, stmt: ir.Let) -> None:
        if id(stmt.var) in self._used:
            self._declare(stmt.var, stmt.value)
            self._ranges.enter_let(stmt)
        self._stmt(stmt.body)

    def _declare(self, var: Var, value: Expr) -> None:
        if id(var) in self._groups:
            text = self._exprs.group(value)
            self._writer.line(f"const int32_t {self._names.declare(var)} = {text};")
        elif dtypes.lanes(var.dtype) == 1:
            text = self._exprs.expr(value)
            self._writer.line(f"const {value_type(var.dtype)} {self._names.declare(var)} = {text};")
        else:
            text = self._exprs.expr(value)
            self._writer.line(f"{value_type(var.dtype)} {self._names.declare(var)};")
            self._writer.line(f"MLF_EACH(q) {self._exprs.variable(var)} = {text};")

    def _allocate(self, buffer: Buffer) -> None:
        kind = value_type(buffer.dtype)
        if dtypes.lanes(buffer.dtype) > 1:
            self._needs.vectors.add(buffer.dtype)
        self._writer.line(f"{kind} {self._names.declare(buffer)}[{max(buffer.size, 1)}];")


def _accumulated(stmt: ir.Store) -> Expr | None:
    """Return what a store adds to the element it writes, in a dtype that C does not widen; else None."""
    value = stmt.value
    if not isinstance(value, ir.Binary) or value.op != "add" or not isinstance(value.a, ir.Load):
        return None
    dtype = value.dtype
    widens = dtypes.element(dtype) in HALF_FLOATS or (dtypes.bits(dtype) < 32 and dtypes.lanes(dtype) == 1)
    same = value.a.buffer is stmt.buffer and all(map(same_expr, value.a.indices, stmt.indices))
    return value.b if same and not widens else None


def _used_vars(body: Stmt) -> set[int]:
    """Return the ids of variables that are read, leaving out those read only for variables that are not."""
    values: dict[int, Expr] = {}
    pending: list[Expr] = []
    for stmt in walk(body):
        if isinstance(stmt, ir.Let):
            values[id(stmt.var)] = stmt.value
        else:
            pending.extend(own_exprs(stmt))
    used: set[int] = set()
    while pending:
        for node in walk_expr(pending.pop()):
            if isinstance(node, ir.Var) and id(node) not in used:
                used.add(id(node))
                if id(node) in values:
                    pending.append(values[id(node)])
    return used
