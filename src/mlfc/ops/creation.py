"""Operators that create tensors from attributes and scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import converted
from mlfc.ops.rules import Element, check_dtype, checked_shape, declare, fixed, optional_dtype, scalar
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, is_static, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Expr


def _infer_filled(name: str, attrs: Attrs, *value: TensorType) -> TensorType:
    if value and value[0].size != 1:
        raise TypeCheckError(f"{name}: expected a scalar, got {value[0]}")
    dtype = optional_dtype(attrs["dtype"], value[0].dtype if value else "float32")
    return TensorType(checked_shape(name, attrs["shape"]), dtype)


def _infer_arange(name: str, attrs: Attrs, *_: TensorType) -> TensorType:
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    dtypes.bits(attrs["dtype"])
    if not is_static((start, stop, step)):
        first, last, by = (_whole(name, item) for item in (start, stop, step))
        return TensorType((maximum(0, -((first - last) // fixed(name, by, "the step"))),), attrs["dtype"])
    if not all(isinstance(item, (int, float)) and math.isfinite(item) for item in (start, stop, step)) or step == 0:
        raise TypeCheckError(f"{name}: start {start}, stop {stop} and step {step} must be finite, step not 0")
    return TensorType((max(0, math.ceil((stop - start) / step)),), attrs["dtype"])


def _whole(name: str, value: Any) -> Any:
    """Convert a number in arithmetic with dynamic extents to an integer."""
    if isinstance(value, Dim):
        return value
    if not isinstance(value, (int, float)) or not float(value).is_integer():
        raise TypeCheckError(f"{name}: expected integers in arithmetic with dynamic extents, got {value}")
    return int(value)


def _infer_extents(name: str, attrs: Attrs) -> TensorType:
    values, shape, dtype = attrs["values"], checked_shape(name, attrs["shape"]), attrs["dtype"]
    if not isinstance(values, tuple) or not all(isinstance(value, (int, Dim)) for value in values):
        raise TypeCheckError(f"{name}: values {values} must be integers")
    if len(shape) > 1 or shape not in ((), (len(values),)) or (not shape and len(values) != 1):
        raise TypeCheckError(f"{name}: {len(values)} values do not make a tensor of shape {shape}")
    check_dtype(name, dtype, "integer")
    return TensorType(shape, dtype)


def _arange(of: Element, *_: Tensor) -> Expr:
    # integers are computed in their own dtype, so that a large start keeps all its digits
    start, dtype = of.attrs["start"], of.out.dtype
    first = tb.cast(as_index(start), dtype) if isinstance(start, Dim) else tb.const(start, dtype)
    return tb.cast(of.at[0], dtype) * tb.const(of.attrs["step"], dtype) + first


def _extents(of: Element) -> Expr:
    values = [as_index(value, of.out.dtype) for value in of.attrs["values"]]
    return _chosen(of.at[0], 0, values) if of.at else values[0]


def _extents_in_tvm(_: Sequence[relay.Expr], attrs: Attrs, out: TensorType) -> relay.Expr | None:
    """Return the integers; None if they are only known at run time, for which TVM has no operator."""
    values = attrs["values"]
    return relay.const(np.reshape(values, out.shape), out.dtype) if is_static(values) else None


def _infer_extent_of(name: str, attrs: Attrs, x: TensorType) -> TensorType:
    if not isinstance(attrs["axis"], int) or not 0 <= attrs["axis"] < len(x.shape):
        raise TypeCheckError(f"{name}: axis {attrs['axis']} is outside a tensor of {len(x.shape)} dimensions")
    return TensorType((), "int64")


def _chosen(index: Expr, first: int, values: Sequence[Expr]) -> Expr:
    """Select the value at an index that counts from `first`."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    low, high = _chosen(index, first, values[:half]), _chosen(index, first + half, values[half:])
    return tb.select(tb.binary("lt", index, first + half), low, high)


_SHAPED = (Attr("shape"), Attr("dtype", None))
declare("zeros", 0, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of: tb.const(0, of.out.dtype), doc="Zeros")
declare("ones", 0, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of: tb.const(1, of.out.dtype), doc="Ones")
declare("full", 1, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of, value: converted(scalar(value), of.out.dtype),
        doc="One value everywhere")  # fmt: skip
declare("extents", 0, _infer_extents, Kind.INJECTIVE, (Attr("values"), Attr("dtype"), Attr("shape", ())), _extents,
        in_tvm=_extents_in_tvm, traits=Trait.SHAPE | Trait.NOT_IN_TVM,
        doc="Integers that are extents of tensors, or computed from them")  # fmt: skip
declare("extent_of", 1, _infer_extent_of, Kind.INJECTIVE, (Attr("axis"),),
        lambda of, x: as_index(x.shape[of.attrs["axis"]], of.out.dtype),
        traits=Trait.SHAPE_OF | Trait.NOT_IN_TVM,
        doc="The extent of a tensor, whose elements are not read")  # fmt: skip
declare("arange", 3, _infer_arange, Kind.INJECTIVE, (Attr("start"), Attr("stop"), Attr("step"), Attr("dtype")), _arange,
        contract="start + i * step, two roundings",
        doc="Evenly spaced numbers; the attributes repeat the values of the three arguments")  # fmt: skip
