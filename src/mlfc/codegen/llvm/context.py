"""LLVM types and literals, and the state that the printers of one kernel's statements and expressions share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import llvmlite.ir as ll
import numpy as np

from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.codegen.llvm.machine import Machine
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges

Value: TypeAlias = Any
"""An `llvmlite.ir.Value`; the package has no type annotations."""

INT1, INT8, INT16, INT32, INT64 = (ll.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT, DOUBLE = ll.FloatType(), ll.DoubleType()
POINTER = ll.PointerType()

_SCALARS = {
    "bool": INT1, "float32": FLOAT, "float64": DOUBLE,
    **dict.fromkeys(HALF_FLOATS, INT16),
    **{dtype: ll.IntType(dtypes.bits(dtype)) for dtype in dtypes.INTEGERS},
}  # fmt: skip


def lanes_of(scalar: Value, lanes: int) -> Value:
    """Return the vector type with `lanes` lanes; the scalar type for one lane."""
    return scalar if lanes == 1 else ll.VectorType(scalar, lanes)


@cache
def value_type(dtype: str) -> Value:
    """Return the type of a value; a bool is one bit."""
    element = dtypes.element(dtype)
    if element not in _SCALARS:
        raise InternalError(f"LLVM has no type for {dtype}")
    return lanes_of(_SCALARS[element], dtypes.lanes(dtype))


@cache
def memory_type(dtype: str) -> Value:
    """Return the type of a value in memory; a bool is a byte."""
    if dtypes.element(dtype) == "bool":
        return lanes_of(INT8, dtypes.lanes(dtype))
    return value_type(dtype)


def is_signed(dtype: str) -> bool:
    """Return whether a dtype is a signed integer; bool is not."""
    return dtypes.element(dtype).startswith("int")


def constant(value: float, dtype: str) -> Value:
    """Return a literal of a scalar dtype, in every lane of a vector."""
    element = dtypes.element(dtype)
    literal = _literal(value, element)
    lanes = dtypes.lanes(dtype)
    return literal if lanes == 1 else ll.Constant(value_type(dtype), [literal] * lanes)


def _literal(value: float, element: str) -> Value:
    if element in HALF_FLOATS:
        return ll.Constant(INT16, int(np.asarray(value, dtypes.to_numpy(element)).view(np.uint16)))
    if element == "float32":
        return ll.Constant(FLOAT, float(np.float32(value)))
    if dtypes.is_float(element):
        return ll.Constant(DOUBLE, float(value))
    return ll.Constant(value_type(element), int(value))


def splat_constant(value: float, kind: Value) -> Value:
    """Return a literal of an LLVM type, in every lane of a vector."""
    if isinstance(kind, ll.VectorType):
        return ll.Constant(kind, [ll.Constant(kind.element, value)] * kind.count)
    return ll.Constant(kind, value)


def resized(kind: Value, scalar: Value) -> Value:
    """Return the type with the number of lanes of `kind` and another scalar type."""
    return ll.VectorType(scalar, kind.count) if isinstance(kind, ll.VectorType) else scalar


@dataclass(eq=False)
class FunctionContext:
    """The function that is being written."""

    module: Value
    builder: Value  # an llvmlite.ir.IRBuilder, at the next instruction
    machine: Machine
    contracts: bool  # whether a float product and a sum are contracted to a fused multiply-add if the machine has one
    compact: bool = False  # whether loops with long bodies are not unrolled
    ranges: Ranges = field(default_factory=Ranges)  # known intervals of variables at the next instruction
    variables: dict[int, Value] = field(default_factory=dict)  # by the id of the variable
    buffers: dict[int, Value] = field(default_factory=dict)  # pointers, by the id of the buffer
    # by the id of a buffer without overlaps: metadata of its accesses' alias scope, and of the other scopes
    scopes: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    # access groups of the enclosing loops: these accesses are independent between iterations
    independent: list[Value] = field(default_factory=list)

    def declared(self, name: str, result: Value, params: Sequence[Value], *, pure: bool = False) -> Value:
        """Return a function of another object; a `pure` one depends only on its arguments and has no side effects."""
        known = self.module.globals.get(name)
        if known is not None:
            return known
        function = ll.Function(self.module, ll.FunctionType(result, params), name)
        function.attributes.add("nounwind")
        if pure:
            function.attributes.add("readnone")
        return function

    def intrinsic(self, name: str, args: Sequence[Value], *, flag: bool | None = None) -> Value:
        """Call ``llvm.NAME``, overloaded on the type of its first argument, which is also the type of its result.

        `flag` is an optional last argument of type i1.
        """
        kind = args[0].type
        full = f"llvm.{name}.{_mangled(kind)}"
        types = [arg.type for arg in args]
        values = list(args)
        if flag is not None:
            types.append(ll.IntType(1))
            values.append(ll.Constant(ll.IntType(1), flag))
        return self.builder.call(self.declared(full, kind, types), values)

    def prefetch(self, address: Value) -> None:
        """Prefetch data for reading into the second-level cache."""
        values = [address, *(ll.Constant(INT32, number) for number in (0, 2, 1))]
        self.builder.call(self.declared("llvm.prefetch.p0", ll.VoidType(), [value.type for value in values]), values)

    def opaque(self, value: Value) -> Value:
        """Return an opaque copy of a value, which LLVM cannot fold or hoist."""
        kind = ll.FunctionType(value.type, [value.type])
        return self.builder.asm(kind, "", "=r,0", [value], side_effect=True)

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a scalar in every lane."""
        if isinstance(value, ll.Constant):
            return ll.Constant(ll.VectorType(value.type, lanes), [value] * lanes)
        kind = ll.VectorType(value.type, lanes)
        undefined = ll.Constant(kind, ll.Undefined)
        first = self.builder.insert_element(undefined, value, ll.Constant(INT32, 0))
        return self.builder.shuffle_vector(first, undefined, ll.Constant(ll.VectorType(INT32, lanes), None))

    def lanes(self, vector: Value, positions: Sequence[int]) -> Value:
        """Return the lanes of a vector at these positions."""
        mask = ll.Constant(ll.VectorType(INT32, len(positions)), list(positions))
        return self.builder.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), mask)

    def joined(self, vectors: Sequence[Value]) -> Value:
        """Return the concatenated lanes of vectors of one type; the number of vectors is a power of two."""
        parts = list(vectors)
        while len(parts) > 1:
            count = 2 * parts[0].type.count
            mask = ll.Constant(ll.VectorType(INT32, count), list(range(count)))
            parts = [
                self.builder.shuffle_vector(low, high, mask) for low, high in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def number(self, value: float, like: Value) -> Value:
        """Return a literal of the type of `like`."""
        return splat_constant(value, like.type)

    def address(self, buffer: ir.Buffer, index: Value) -> Value:
        """Return the address of the element of a buffer at a flat index."""
        kind = memory_type(buffer.dtype)
        return self.builder.gep(self.buffers[id(buffer)], [index], inbounds=True, source_etype=kind)

    def access(self, instruction: Value, buffer: ir.Buffer) -> Value:
        """Declare by metadata which memory a load or store accesses."""
        scope = self.scopes.get(id(buffer))
        if scope is not None:
            instruction.set_metadata("alias.scope", scope[0])
            instruction.set_metadata("noalias", scope[1])
        if self.independent:
            groups = self.independent[0] if len(self.independent) == 1 else self.module.add_metadata(self.independent)
            instruction.set_metadata("llvm.access.group", groups)
        return instruction

    @contextmanager
    def block(self, block: Value) -> Iterator[None]:
        """Write into a block; ranges learnt in it are dropped at its end."""
        self.builder.position_at_end(block)
        with self.ranges.scope():
            yield


def alignment(buffer: ir.Buffer, dtype: str) -> int:
    """Return the alignment that an access may rely on: an element's, or for local arrays that of the whole array."""
    if buffer.scope == "local" and dtype == buffer.dtype:
        return local_alignment(buffer)
    return dtypes.nbytes(dtypes.element(buffer.dtype))


def local_alignment(buffer: ir.Buffer) -> int:
    """Return the alignment of a buffer on the stack."""
    return min(dtypes.nbytes(buffer.dtype), 64)


def offset(value: int) -> Value:
    """Return a literal offset in bytes."""
    return ll.Constant(INT64, value)


def words(count: int) -> Value:
    """Return the type of `count` int32."""
    return lanes_of(INT32, count)


def _mangled(kind: Value) -> str:
    """Return the suffix of a type in the names of overloaded intrinsics."""
    if isinstance(kind, ll.VectorType):
        return f"v{kind.count}{_mangled(kind.element)}"
    if isinstance(kind, ll.IntType):
        return f"i{kind.width}"
    return "f32" if isinstance(kind, ll.FloatType) else "f64"
