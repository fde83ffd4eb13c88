"""Parameters of a function that several functions of the same structure share: the numbers in which they differ.

`specialize` substitutes the numbers to recover the members of a family from their shared function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Symbol, substituted
from mlfc.tir import block_intrinsics, ir
from mlfc.tir import builder as tb
from mlfc.tir.extents import variable
from mlfc.tir.ir import Buffer, Expr, Launch, PrimFunc, Seq, Stmt, Var
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import rebuilt, rebuilt_stmt

Number: TypeAlias = "int | float"

_LARGEST_OFFSET = 256
_FACTORS = (2, 4, 8, 16, 32, 64)  # a power of two is a shift, which addressing modes include for free


@dataclass(frozen=True, eq=False)
class Parameter:
    """A number that differs between the members of a family, with its value in each."""

    var: Var
    values: tuple[Number, ...]


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """A function shared by a family of functions that only differ in numbers."""

    # its buffers have one dimension and the largest size of any member. Parameters are free variables.
    prim: PrimFunc
    parameters: tuple[Parameter, ...]
    members: tuple[PrimFunc, ...]  # the functions that it replaces, in the order of the parameters' values
    sizes: Mapping[Buffer, tuple[int, ...]]  # elements of each buffer in each member
    scratch_offsets: tuple[Expr, ...]  # offset of each scratch buffer in the member's own scratch

    def values(self, member: int) -> dict[Var, Number]:
        """Return the value of each parameter in one member."""
        return {parameter.var: parameter.values[member] for parameter in self.parameters}


@dataclass(eq=False)
class ParameterPool:
    """Allocates a parameter for each tuple of differing numbers; tuples derived from one another share one."""

    parameters: list[Parameter] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)

    def number(self, values: Sequence[Number], dtype: str, hint: str) -> Expr:
        """Return a number by its value in each member, a literal if all are equal; `hint` names a new parameter."""
        found = tuple(values)
        if len({repr(value) for value in found}) == 1:
            return tb.const(found[0], dtype)
        for parameter in self.parameters:
            known = self._derived(parameter, found, dtype)
            if known is not None:
                return known
        count = self._names.get(hint, 0)
        self._names[hint] = count + 1
        var = Var(hint if count == 0 else f"{hint}_{count}", dtype)
        self.parameters.append(Parameter(var, found))
        return var

    @staticmethod
    def _derived(parameter: Parameter, values: tuple[Number, ...], dtype: str) -> Expr | None:
        """Return `values` as an existing parameter, one plus a literal, or one times a power of two."""
        var = parameter.var
        if var.dtype != dtype:
            return None
        if not dtypes.is_integer(dtype):
            return var if list(map(repr, parameter.values)) == list(map(repr, values)) else None
        pairs = [(int(known), int(value)) for known, value in zip(parameter.values, values, strict=True)]
        differences = {value - known for known, value in pairs}
        if len(differences) == 1 and abs(offset := differences.pop()) <= (_LARGEST_OFFSET if dtype == "int32" else 0):
            return tb.binary("add", var, tb.const(offset, dtype)) if offset else var
        for factor in _FACTORS if dtype == "int32" else ():
            if all(value == factor * known for known, value in pairs):
                return tb.binary("mul", var, tb.const(factor))
        return None


def without_single_trips(body: Stmt) -> Stmt:
    """Replace loops of a single iteration by their bodies."""
    return _Specializer({}, {}).stmt(body)


def specialize(shared: SharedFunction, member: int) -> PrimFunc:
    """Return one member of a shared function, with its numbers substituted; its buffers have one dimension."""
    values = {var: tb.const(value, var.dtype) for var, value in shared.values(member).items()}
    own = shared.members[member]
    buffers = {buffer: replace(buffer, shape=(sizes[member],)) for buffer, sizes in shared.sizes.items()}
    placed = _placed(shared.prim, shared.prim.body, values, buffers)
    return PrimFunc(
        own.name, placed.inputs, placed.constants, placed.output, placed.scratch, placed.body, own.inplace, own.macs
    )


def _placed(prim: PrimFunc, body: Stmt, values: Mapping[Var, Expr], buffers: Mapping[Buffer, Buffer]) -> PrimFunc:
    """Return a function with variables replaced by literals, other buffers, and constants folded."""
    return replace(
        prim,
        inputs=tuple(buffers[buffer] for buffer in prim.inputs),
        constants=tuple(buffers[buffer] for buffer in prim.constants),
        output=buffers[prim.output],
        scratch=tuple(buffers[buffer] for buffer in prim.scratch),
        body=_Specializer(values, buffers).stmt(body),
    )


class _Specializer:
    def __init__(self, values: Mapping[Var, Expr], buffers: Mapping[Buffer, Buffer]) -> None:
        self._values: dict[Var, Expr] = dict(values)
        self._buffers = buffers

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.For):
            extent = self._expr(stmt.extent)
            if isinstance(extent, ir.Const) and 0 < extent.value <= stmt.step:
                self._values[stmt.var] = tb.const(0)
                return self.stmt(stmt.body)
        elif isinstance(stmt, ir.Let):
            value = self._expr(stmt.value)
            if isinstance(value, ir.Const):
                self._values[stmt.var] = value
                return self.stmt(stmt.body)
        elif isinstance(stmt, ir.If):
            condition = self._expr(stmt.condition)
            if isinstance(condition, ir.Const):
                taken = stmt.then if condition.value else stmt.otherwise
                return self.stmt(taken) if taken is not None else ir.Seq(())
        elif isinstance(stmt, (ir.Store, ir.Allocate, ir.Prefetch, ir.Fence)) and stmt.buffer:
            stmt = replace(stmt, buffer=self._buffer(stmt.buffer))
        return rebuilt_stmt(stmt, self.stmt, self._expr)

    def _buffer(self, buffer: Buffer) -> Buffer:
        return self._buffers.get(buffer, buffer)

    def _expr(self, expr: Expr) -> Expr:
        """Return an expression with numbers substituted and constants folded."""
        return self._placed(substitute(expr, self._values))

    def _placed(self, expr: Expr) -> Expr:
        """Return an expression on this member's buffers, with the lengths of runs in the types of their loads."""
        inner = rebuilt(expr, self._placed)
        if isinstance(inner, ir.Load):
            return replace(inner, buffer=self._buffer(inner.buffer))
        if isinstance(inner, ir.Call) and (
            inner.name == block_intrinsics.COUNTED_FILL or block_intrinsics.uncounted(inner.name)
        ):
            return _uncounted(inner)
        return inner


def _uncounted(call: ir.Call) -> Expr:
    if call.name == block_intrinsics.COUNTED_FILL:
        value, size = call.args
        assert isinstance(size, ir.Const)
        return tb.intrinsic("run", tb.broadcast(value, int(size.value)))
    name = block_intrinsics.uncounted(call.name) or ""
    numbers = [int(arg.value) for arg in call.args if isinstance(arg, ir.Const)]
    loads = [arg for arg in call.args if isinstance(arg, ir.Load)]
    sizes, result = block_intrinsics.sizes(name, numbers)
    wide = [
        replace(load, dtype=dtypes.vector(load.buffer.dtype, size)) for load, size in zip(loads, sizes, strict=True)
    ]
    return ir.Call(name, tuple(wide), dtypes.vector(call.dtype, result))


def with_numbers(prim: PrimFunc, numbers: Sequence[int]) -> PrimFunc:
    """Return a function with numbers substituted for its symbols, in order, and constants folded.

    Properties that cannot be proven for symbolic extents are proven for such functions, and the interpreter runs them.
    Raises InternalError for numbers outside the symbols' bounds.
    """
    values = dict(zip(prim.symbols, numbers, strict=True))
    for symbol, number in values.items():
        if not symbol.low <= number <= symbol.high:
            raise InternalError(f"{symbol} = {number} is outside [{symbol.low}, {symbol.high}]", place=prim.name)
    buffers = {
        buffer: replace(buffer, shape=tuple(_number(extent, values) for extent in buffer.shape))
        for buffer in (*prim.params, *prim.scratch)
    }
    literals = {variable(symbol): tb.const(number) for symbol, number in values.items()}
    placed = _placed(prim, _sized(prim.body, values), literals, buffers)
    return replace(placed, macs=_number(prim.macs, values), symbols=())


def _sized(body: Stmt, values: dict[Symbol, int]) -> Stmt:
    """Return a body with numbers for the extents of its launches."""
    if isinstance(body, Seq):
        return Seq(tuple(_sized(stmt, values) for stmt in body.stmts))
    if not isinstance(body, Launch):
        return body
    x, y, z = (_number(extent, values) for extent in body.grid)
    return replace(body, grid=(x, y, z))


def _number(extent: Any, values: dict[Symbol, int]) -> int:
    number = substituted(extent, values)
    if not isinstance(number, int) or number < 0:
        raise InternalError(f"an extent {extent} is {number}")
    return number
