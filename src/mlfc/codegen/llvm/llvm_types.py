"""LLVM types of dtypes, and literals."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import llvmlite.ir as ll
import numpy as np

from mlfc.codegen.c_types import HALF_FLOATS
from mlfc.errors import InternalError
from mlfc.support import dtypes

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
