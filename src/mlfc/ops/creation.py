"""Operators that create tensors from attributes and scalars, or of random numbers.

A random number depends only on the run number, the key and the element index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import LIBM_CONTRACT, converted
from mlfc.ops.rules import Element, check_choice, check_dtype, checked_shape, declare, fixed, optional_dtype, scalar
from mlfc.relay import ir as relay
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, is_static, maximum
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.extents import as_index
from mlfc.tir.intrinsics.words import philox
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


_DTYPES = ("float32", "float64")


def _infer(name: str, attrs: Attrs, runs: TensorType) -> TensorType:
    if runs.size != 1 or runs.dtype != "int64":
        raise TypeCheckError(f"{name}: expected the number of the run, one int64, got {runs}")
    check_choice(name, "dtype", attrs["dtype"], _DTYPES)
    key = attrs["key"]
    if not isinstance(key, tuple) or len(key) != 2 or any(not isinstance(k, int) or not 0 <= k < 1 << 32 for k in key):
        raise TypeCheckError(f"{name}: expected a key of two numbers of 32 bits, got {key}")
    return TensorType(checked_shape(name, attrs["shape"]), attrs["dtype"])


def _bits(of: Element, runs: Tensor) -> Expr:
    """Return 64 random bits for an element."""
    place = tb.const(0)
    for extent, index in zip(of.out.shape, of.at, strict=True):
        place = place * extent + index
    low, high = of.attrs["key"]
    key = tb.const(low, "uint64") | tb.binary("shl", tb.const(high, "uint64"), tb.const(32))
    return philox(tb.cast(place, "uint32"), tb.const(0, "uint32"), tb.cast(scalar(runs), "uint64"), key)


def _share(bits: Expr, count: int, dtype: str, begin: int = 0) -> Expr:
    """Scale the highest `count` bits to a number in [0, 1), in steps of 2^-count; `begin` is added in these steps."""
    whole = tb.binary("shr", bits, tb.const(64 - count)) + tb.const(begin, "uint64")
    # signed, as every target converts signed integers natively
    return tb.cast(tb.cast(whole, "int64"), dtype) * tb.const(2.0**-count, dtype)


def _uniform(of: Element, runs: Tensor) -> Expr:
    dtype = of.out.dtype
    low, high = (tb.const(of.attrs[name], dtype) for name in ("low", "high"))
    return low + _share(_bits(of, runs), 53 if dtype == "float64" else 24, dtype) * (high - low)


def _normal(of: Element, runs: Tensor) -> Expr:
    """Return the first number of the Box-Muller pair; the second is not computed."""
    dtype, count = of.out.dtype, 32 if of.out.dtype == "float64" else 24
    bits = _bits(of, runs)
    lower = tb.binary("shl", bits, tb.const(32))
    radius = tb.intrinsic("sqrt", tb.const(-2.0, dtype) * tb.intrinsic("log", _share(bits, count, dtype, 1)))
    turn = tb.intrinsic("cos", tb.const(2 * math.pi, dtype) * _share(lower, count, dtype))
    return tb.const(of.attrs["mean"], dtype) + tb.const(of.attrs["scale"], dtype) * (radius * turn)


_DRAWN = (Attr("shape", REQUIRED), Attr("dtype", "float32"), Attr("key", (0, 0)))
_declare = partial(declare, num_inputs=1, infer=_infer, kind=Kind.INJECTIVE, expensive=True,
                   traits=Trait.NOT_IN_TVM)  # fmt: skip
_declare("random.philox_uniform", element=_uniform,
         attrs=(*_DRAWN, Attr("low", 0.0, is_float=True), Attr("high", 1.0, is_float=True)),
         contract="bits exact; low + u * (high - low) of u in [0, 1), each operation rounded",
         doc="Random numbers from low to high: Philox 4x32-10 of element, number of the run, and key")  # fmt: skip
_declare("random.philox_normal", element=_normal,
         attrs=(*_DRAWN, Attr("mean", 0.0, is_float=True), Attr("scale", 1.0, is_float=True)),
         contract=LIBM_CONTRACT,
         doc="Normally distributed random numbers, by Box and Muller from the bits of Philox 4x32-10")  # fmt: skip
