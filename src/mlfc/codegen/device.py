"""Device kernels from the launches of loop-level functions, and their source code in OpenCL C 1.2 or CUDA C++.

Vectors support only loads, selects, splats and stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlfc.codegen.c_expr import ATOM, ExprPrinter, Requirements
from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.prelude import helper_source
from mlfc.codegen.statements import StatementPrinter, accumulated
from mlfc.codegen.writer import text_beside
from mlfc.errors import InternalError
from mlfc.registry import Registry
from mlfc.support import dtypes
from mlfc.support.dims import Extent, Symbol
from mlfc.tir import ir
from mlfc.tir.extents import symbols_of, variable
from mlfc.tir.ir import Buffer, Expr, Launch, PrimFunc, Stmt, Var
from mlfc.tir.visitor import launches, loads, own_nodes, walk

_NAMES = {
    "int8": "char", "int16": "short", "int32": "int", "uint8": "uchar", "uint16": "ushort", "uint32": "uint",
    "float32": "float", "float64": "double", "bool": "uchar",
}  # fmt: skip

_HELPERS = {
    "dot4_s8": """\
/* sum + the sum of the products of the signed bytes of two words */
static inline int32_t mlf_dot4_s8(int32_t sum, int32_t a, int32_t b)""",
    "clz32": "static inline int32_t mlf_clz32(uint32_t x)",
    "bits_of_float": "static inline uint32_t mlf_bits_of_float(float x)",
    "float_of_bits": "static inline float mlf_float_of_bits(uint32_t bits)",
}
"""Heads of the helpers that C does not provide."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """A kernel language close to C. Forms with fields in braces are templates for `str.format`."""

    name: str  # the kind of device
    suffix: str  # of source files
    function: str  # replaces C's ``static inline``
    kernel_head: str  # fields: name, parameters, group sizes x, y, z, and their product items
    parameter_space: str  # precedes the type of a pointer parameter
    shared_space: str  # precedes the type of an array shared by a group
    private_space: str  # precedes the type of an array private to a work-item
    restrict: str  # follows the ``*`` of a pointer without aliases
    group_place: str  # fields: axis (0, 1, 2) or letter (x, y, z); the index of the group in the grid
    item_place: str  # the index of the work-item in its group
    barrier: str
    int64: str  # in names of vector types
    vector_load: str  # fields: kind, lanes, address
    vector_store: str  # fields: kind, lanes, address, value
    splat: str  # fields: kind, value, and values: one for each lane
    word: str  # field: address; four bytes as one int32
    product: str  # fields: letter (f, d), a, b; an unfused product; empty if `separate_products` suffices
    separate_products: str  # the line that disables contraction of products and sums in a file
    unroll: str  # precedes a loop to unroll; empty if compilers unroll it anyway
    math_suffix: str  # follows the names of float functions
    bodies: Mapping[str, str]  # of `_HELPERS`
    prelude: str  # the file with the first lines
    doubles: str  # a line before the prelude if the file uses double
    shares_prelude: bool  # True if all kernels are one text with one prelude, False if each kernel is a separate text

    def vector_type(self, dtype: str, lanes: int) -> str:
        """Return the name of a vector type."""
        names = {**_NAMES, "int64": self.int64, "uint64": f"u{self.int64}"}
        return f"{names.get(dtype, 'ushort')}{lanes}"

    def first_lines(self, dtypes: frozenset[str], *, contracts: bool) -> str:
        """Return the first lines of a file that uses these dtypes; with `contracts`, products and sums may be fused."""
        before = [self.doubles] if self.doubles and "float64" in dtypes else []
        after = [self.separate_products] if self.separate_products and not contracts else []
        return "\n".join([*before, text_beside(__file__, self.prelude), *after])

    def helper_texts(self, keys: Iterable[str]) -> list[str]:
        """Return the definitions of helpers and of those they call, callees first."""
        ordered: dict[str, str] = {}

        def visit(key: str) -> None:
            if key in ordered:
                return
            used, text = ((), f"{_HELPERS[key]} {{\n{self.bodies[key]}\n}}") if key in _HELPERS else helper_source(key)
            for other in used:
                visit(other)
            ordered[key] = text.replace("static inline", self.function)

        for key in sorted(set(keys)):
            visit(key)
        return list(ordered.values())


# of OpenCL and of CUDA
_FORMS: dict[str, tuple[Any, Any]] = {
    "suffix": ("cl", "cu"),
    "function": ("static inline", "static __device__ __forceinline__"),
    "kernel_head": (
        "__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))\nvoid {name}({parameters})",
        'extern "C" __global__ void __launch_bounds__({items})\n{name}({parameters})',
    ),
    "parameter_space": ("__global ", ""),
    "shared_space": ("__local ", "__shared__ __align__(16) "),
    "private_space": ("", "__align__(16) "),
    "restrict": ("restrict ", "__restrict__ "),
    "group_place": ("get_group_id({axis})", "blockIdx.{letter}"),
    "item_place": ("get_local_id({axis})", "threadIdx.{letter}"),
    "barrier": ("barrier(CLK_LOCAL_MEM_FENCE);", "__syncthreads();"),
    "int64": ("long", "longlong"),
    "vector_load": ("vload{lanes}(0, {address})", "*(const {kind} *)({address})"),
    "vector_store": ("vstore{lanes}({value}, 0, {address});", "*({kind} *)({address}) = {value};"),
    "splat": ("({kind})({value})", "make_{kind}({values})"),
    "word": ("as_int(vload4(0, {address}))", "*(const int32_t *)({address})"),
    "product": ("", "__{letter}mul_rn({a}, {b})"),
    "separate_products": ("#pragma OPENCL FP_CONTRACT OFF", ""),
    # OpenCL compilers for GPUs unroll anyway; on CPUs, unrolling would prevent vectors across work-items
    "unroll": ("", "#pragma unroll"),
    "math_suffix": ("", "f"),
    "prelude": ("opencl_prelude.h", "cuda_prelude.h"),
    "doubles": ("#pragma OPENCL EXTENSION cl_khr_fp64 : enable", ""),
    "shares_prelude": (False, True),
}
_BODIES = {
    "dot4_s8": (
        """\
  const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return sum + ((products.x + products.y) + (products.z + products.w));""",
        "  return __dp4a(a, b, sum);",
    ),
    "clz32": ("  return (int32_t)clz(x);", "  return __clz((int32_t)x);"),
    "bits_of_float": ("  return as_uint(x);", "  return __float_as_uint(x);"),
    "float_of_bits": ("  return as_float(bits);", "  return __uint_as_float(bits);"),
}
"""Bodies of `_HELPERS` for OpenCL and CUDA."""
DIALECTS: Registry[Dialect] = Registry("language of devices")
for _place, _name in enumerate(("opencl", "cuda")):
    _bodies = {key: pair[_place] for key, pair in _BODIES.items()}
    _own = {key: pair[_place] for key, pair in _FORMS.items()}
    DIALECTS.add(_name, Dialect(_name, bodies=_bodies, **_own))


MARKER = "// Function: "
"""Precedes the name of each kernel in OpenCL source; runtimes split the source at this marker."""
_AXES = "xyz"

# words of the dialects that, in addition to C's, variables must not have as names
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
    """Prints the expressions of one kernel as C, except for vectors and the dialect's names."""

    dialect: Dialect
    contracts: bool  # whether a float product and a sum may be fused

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
            raise InternalError("device kernels do not support vectors of conditions")
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
            raise InternalError("device kernels do not support arithmetic on vectors")

    def _call(self, expr: ir.Call) -> tuple[str, int]:
        if expr.name == "word":
            elements = expr.args[0]
            if not isinstance(elements, ir.Load):
                raise InternalError("device kernels require a word to be loaded from memory")
            return self.dialect.word.format(address=self.address(elements.buffer, elements.indices)), ATOM
        self._scalar(expr)
        return super()._call(expr)

    @property
    def _math_suffix(self) -> str:
        return self.dialect.math_suffix


@dataclass(frozen=True, eq=False)
class DeviceKernel:
    """A kernel of a device."""

    name: str
    # the used parameters and scratch buffers of the function, in order: device pointers
    arguments: tuple[Buffer, ...]
    # dynamic dimensions that the kernel reads: each is an int32 parameter after the pointers
    symbols: tuple[Symbol, ...]
    grid: tuple[Extent, Extent, Extent]  # groups along x, y and z
    block: tuple[int, int, int]  # work-items of a group along x, y and z
    launch: Launch  # its code
    written: frozenset[Buffer]  # arguments that it writes
    aliased: frozenset[Buffer]  # arguments that may share memory with another one

    @property
    def shared_bytes(self) -> int:
        """The size in bytes of the memory that a group's work-items share."""
        allocated = (stmt.buffer for stmt in walk(self.launch.body) if isinstance(stmt, ir.Allocate))
        return sum(buffer.nbytes for buffer in allocated if buffer.scope == "shared")


def device_kernels(prim: PrimFunc, name: str) -> tuple[DeviceKernel, ...]:
    """Return the kernels of a function of launches: ``<name>_kernel``, ``<name>_kernel_1``, ..., in launch order."""
    aliased = [prim.inputs[position] for position in prim.inplace]
    kernels = []
    for number, launch in enumerate(launches(prim)):
        written = {stmt.buffer for stmt in walk(launch.body) if isinstance(stmt, ir.Store)}
        used = written | {load.buffer for load in loads(launch.body)}
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

    In ``opencl`` each kernel is a separate program after a line ``// Function: <name>``. With `contracts`, a float
    product and a sum may be fused (`Program.contracts_floats`).
    """
    chosen = DIALECTS.get(dialect)
    printed = [_KernelPrinter(kernel, chosen, contracts).run() for kernel in kernels]
    if not chosen.shares_prelude:
        parts = zip(kernels, printed, strict=True)
        return "".join(f"{MARKER}{kernel.name}\n{_text([part], chosen, contracts)}" for kernel, part in parts)
    return _text(printed, chosen, contracts) if printed else ""


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
        stmts = list(walk(launch.body))
        kinds = [node.dtype for stmt in stmts for node in own_nodes(stmt)]
        kinds += [stmt.buffer.dtype for stmt in stmts if isinstance(stmt, ir.Allocate)]
        return _PrintedKernels(self._writer.text(), self._needs, frozenset(map(dtypes.element, kinds)))

    def _parameter(self, buffer: Buffer) -> str:
        const = "" if buffer in self._kernel.written else "const "
        restrict = "" if buffer in self._kernel.aliased else self._dialect.restrict
        kind = f"{self._dialect.parameter_space}{const}{scalar_type(buffer.dtype)}"
        return f"{kind} *{restrict}{self._names.declare(buffer)}"

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
