"""Kernels of devices from launches of loop-level functions, and their text in a device's language.

Vectors are only moved: loaded, chosen between, filled with one value, stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from mlfc.codegen.c_expr import ATOM, ExprPrinter, Requirements
from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.dialect import DIALECTS, Dialect
from mlfc.codegen.statements import StatementPrinter, accumulated
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Extent, Symbol
from mlfc.tir import ir
from mlfc.tir.extents import symbols_of, variable
from mlfc.tir.ir import Buffer, Expr, Launch, PrimFunc, Stmt, Var
from mlfc.tir.visitor import launches, loads, own_nodes, walk

MARKER = "// Function: "
"""Before the name of each kernel in a text of OpenCL: runtimes cut it there."""
_AXES = "xyz"

# words of the dialects that names of variables must not be, beside C's
_RESERVED = frozenset(
    {
        "memcpy", "NAN", "INFINITY", "kernel", "global", "local", "constant", "private", "half", "bool", "char",
        "uchar", "ushort", "uint", "ulong", "threadIdx", "blockIdx", "blockDim", "gridDim", "this", "new", "class",
        "template", "operator", "delete", "true", "false", "block", "image", "sampler", "event", "pipe", "step",
        "mix", "select", "max", "min", "exp", "log", "pow", "sign", "distance", "length", "dot", "cross", "clamp",
    }
)  # fmt: skip


@dataclass(eq=False)
class DeviceExprPrinter(ExprPrinter):
    """Prints expressions of one kernel: as C, except for vectors and the dialect's own names."""

    dialect: Dialect
    contracts: bool  # whether a float product and a sum may become one operation

    def vector_type(self, dtype: str) -> str:
        """Return the dialect's name of a vector type."""
        return self.dialect.vector_type(dtypes.element(dtype), dtypes.lanes(dtype))

    def variable(self, var: ir.Var) -> str:
        """Return the name of a variable."""
        return self.name_of(var)

    def _note_vector(self, dtype: str) -> None:
        """Do nothing: the dialects have their own vectors."""

    def _load(self, expr: ir.Load) -> tuple[str, int]:
        if dtypes.lanes(expr.dtype) == 1:
            return super()._load(expr)
        kind, lanes = self.vector_type(expr.dtype), dtypes.lanes(expr.dtype)
        address = self.address(expr.buffer, expr.indices)
        return self.dialect.vector_load.format(kind=kind, lanes=lanes, address=address), ATOM

    def _select(self, expr: ir.Select) -> tuple[str, int]:
        if dtypes.lanes(expr.condition.dtype) > 1:
            raise InternalError("kernels of devices have no vectors of conditions")
        return super()._select(expr)

    def _broadcast(self, expr: ir.Broadcast) -> tuple[str, int]:
        kind, value = self.vector_type(expr.dtype), self.expr(expr.value)
        values = ", ".join([value] * dtypes.lanes(expr.dtype))
        return self.dialect.splat.format(kind=kind, value=value, values=values), ATOM

    def _binary(self, expr: ir.Binary) -> tuple[str, int]:
        self._scalar(expr)
        product = self.dialect.product
        if expr.op == "mul" and product and not self.contracts and expr.dtype in ("float32", "float64"):
            letter = "d" if expr.dtype == "float64" else "f"
            return product.format(letter=letter, a=self.expr(expr.a), b=self.expr(expr.b)), ATOM
        return super()._binary(expr)

    def _cast(self, expr: ir.Cast) -> tuple[str, int]:
        self._scalar(expr)
        return super()._cast(expr)

    @staticmethod
    def _scalar(expr: Expr) -> None:
        if dtypes.lanes(expr.dtype) > 1:
            raise InternalError("kernels of devices do no arithmetic on vectors")

    def _call(self, expr: ir.Call) -> tuple[str, int]:
        if expr.name == "word":
            return self._word(expr.args[0])
        self._scalar(expr)
        return super()._call(expr)

    @property
    def _math_suffix(self) -> str:
        return self.dialect.math_suffix

    def _word(self, elements: Expr) -> tuple[str, int]:
        if not isinstance(elements, ir.Load):
            raise InternalError("a word is taken from memory only")
        return self.dialect.word.format(address=self.address(elements.buffer, elements.indices)), ATOM


@dataclass(frozen=True, eq=False)
class DeviceKernel:
    """One kernel."""

    name: str
    # the used parameters and scratch buffers of the function, in their order: pointers on the device
    arguments: tuple[Buffer, ...]
    # extents that the run decides and the kernel reads: each is an int32 behind the pointers
    symbols: tuple[Symbol, ...]
    grid: tuple[Extent, Extent, Extent]  # groups along x, y and z
    block: tuple[int, int, int]  # work-items of a group along x, y and z
    launch: Launch  # its code
    written: frozenset[Buffer]  # arguments that it writes
    aliased: frozenset[Buffer]  # arguments that may share memory with another one

    @property
    def shared_bytes(self) -> int:
        """Memory that a group's work-items have together."""
        allocated = (stmt.buffer for stmt in walk(self.launch.body) if isinstance(stmt, ir.Allocate))
        return sum(buffer.nbytes for buffer in allocated if buffer.scope == "shared")


def device_kernels(prim: PrimFunc, name: str) -> tuple[DeviceKernel, ...]:
    """Return the kernels of a function of launches: ``<name>_kernel``, ``<name>_kernel_1``, ..., in launch order."""
    aliased = [prim.inputs[position] for position in prim.inplace]
    kernels = []
    for number, launch in enumerate(launches(prim)):
        written, used = _touched(launch)
        arguments = tuple(buffer for buffer in (*prim.params, *prim.scratch) if buffer in used)
        shares = frozenset([*aliased, prim.output]) if aliased else frozenset()
        title = f"{name}_kernel" if number == 0 else f"{name}_kernel_{number}"
        symbols = symbols_of(arguments, launch.body)
        kernels.append(
            DeviceKernel(title, arguments, symbols, launch.grid, launch.block, launch, frozenset(written), shares)
        )
    return tuple(kernels)


def device_source(kernels: Sequence[DeviceKernel], dialect: str, *, contracts: bool = True) -> str:
    """Return one text with all kernels.

    In ``opencl`` each kernel is a program by itself behind a line ``// Function: <name>``. With `contracts` a float
    product and a sum may become one operation (`Program.contracts_floats`).
    """
    chosen = DIALECTS.get(dialect)
    printed = [_KernelPrinter(kernel, chosen, contracts).run() for kernel in kernels]
    if not chosen.shares_prelude:
        parts = zip(kernels, printed, strict=True)
        return "".join(f"{MARKER}{kernel.name}\n{_text([part], chosen, contracts)}" for kernel, part in parts)
    return _text(printed, chosen, contracts) if printed else ""


def _touched(launch: Launch) -> tuple[set[Buffer], set[Buffer]]:
    """Return the buffers that a launch writes, and all that it uses."""
    written = {stmt.buffer for stmt in walk(launch.body) if isinstance(stmt, ir.Store)}
    return written, written | {load.buffer for load in loads(launch.body)}


@dataclass(frozen=True)
class _PrintedKernels:
    text: str
    needs: Requirements
    dtypes: frozenset[str]


def _text(parts: Sequence[_PrintedKernels], dialect: Dialect, contracts: bool) -> str:
    helpers = {key for part in parts for key in part.needs.helpers}
    first = dialect.first_lines(frozenset().union(*(part.dtypes for part in parts)), contracts=contracts)
    return "\n\n".join([first, *dialect.helper_texts(helpers), *(part.text for part in parts)])


class _KernelPrinter(StatementPrinter):
    _exprs: DeviceExprPrinter

    def __init__(self, kernel: DeviceKernel, dialect: Dialect, contracts: bool) -> None:
        super().__init__(kernel.launch.body, _RESERVED, kernel.name)
        self._kernel = kernel
        self._dialect = dialect
        self._exprs = DeviceExprPrinter(self._names.get, self._needs, self._ranges, dialect, contracts)

    def run(self) -> _PrintedKernels:
        launch = self._kernel.launch
        numbers = [f"const int32_t {self._names.declare(variable(symbol))}" for symbol in self._kernel.symbols]
        parameters = ", ".join([*map(self._parameter, self._kernel.arguments), *numbers])
        extents = dict(zip(_AXES, self._kernel.block, strict=True), items=prod(self._kernel.block))
        head = self._dialect.kernel_head.format(name=self._kernel.name, parameters=parameters, **extents)
        self._ranges.enter_launch(launch)
        with self._writer.block(head):
            for variables, place in (
                (launch.groups, self._dialect.group_place),
                (launch.items, self._dialect.item_place),
            ):
                for axis, var in enumerate(variables):
                    if id(var) in self._used:
                        value = place.format(axis=axis, letter=_AXES[axis])
                        self._writer.line(f"const int32_t {self._names.declare(var)} = (int32_t){value};")
            for stmt in walk(launch.body):
                if isinstance(stmt, ir.Allocate) and stmt.buffer.scope == "shared":
                    self._array(stmt.buffer, self._dialect.shared_space)
            self._stmt(launch.body)
        return _PrintedKernels(self._writer.text(), self._needs, frozenset(self._dtypes()))

    def _dtypes(self) -> Iterator[str]:
        for stmt in walk(self._kernel.launch.body):
            if isinstance(stmt, ir.Allocate):
                yield dtypes.element(stmt.buffer.dtype)
            yield from (dtypes.element(node.dtype) for node in own_nodes(stmt))

    def _parameter(self, buffer: Buffer) -> str:
        const = "" if buffer in self._kernel.written else "const "
        restrict = "" if buffer in self._kernel.aliased else self._dialect.restrict
        kind = f"{self._dialect.parameter_space}{const}{scalar_type(buffer.dtype)}"
        return f"{kind} *{restrict}{self._names.declare(buffer)}"

    # statements -----------------------------------------------------------------------------------------

    def _special(self, stmt: Stmt) -> bool:
        if isinstance(stmt, ir.Barrier):
            self._writer.line(self._dialect.barrier)
            return True
        return False

    def _allocate(self, stmt: ir.Allocate) -> None:
        if stmt.buffer.scope == "local":
            self._array(stmt.buffer, self._dialect.private_space)

    def _array(self, buffer: Buffer, space: str) -> None:
        kind = scalar_type(buffer.dtype)
        self._writer.line(f"{space}{kind} {self._names.declare(buffer)}[{max(buffer.size, 1)}];")

    def _store(self, stmt: ir.Store) -> None:
        value, added = stmt.value, accumulated(stmt)
        if dtypes.lanes(value.dtype) > 1:
            form, place = self._dialect.vector_store, self._exprs.address(stmt.buffer, stmt.indices)
            kind, lanes = self._exprs.vector_type(value.dtype), dtypes.lanes(value.dtype)
            self._writer.line(form.format(kind=kind, lanes=lanes, address=place, value=self._exprs.expr(value)))
            return
        element = self._exprs.element(stmt.buffer, stmt.indices, value.dtype)
        if added is not None and not self._exprs.wraps(value):
            self._writer.line(f"{element} += {self._exprs.expr(added)};")
        else:
            self._writer.line(f"{element} = {self._exprs.expr(value)};")

    def _loop_hint(self, stmt: ir.For) -> str:
        if stmt.kind == "unrolled":
            return self._dialect.unroll
        return "#pragma unroll 1" if stmt.kind == "rolled" else ""

    def _declare(self, var: Var, value: Expr) -> None:
        wide = dtypes.lanes(var.dtype) > 1
        kind = self._exprs.vector_type(var.dtype) if wide else scalar_type(var.dtype)
        text = self._exprs.expr(value)
        self._writer.line(f"const {kind} {self._names.declare(var)} = {text};")
