"""Operators that make tensors from nothing but attributes and scalars."""

from __future__ import annotations

import math

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import converted
from mlfc.ops.rules import Element, checked_shape, declare, optional_dtype, scalar
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.ir import Expr


def _infer_filled(name: str, attrs: Attrs, *value: TensorType) -> TensorType:
    if value and value[0].size != 1:
        raise TypeCheckError(f"{name}: expected a scalar, got {value[0]}")
    dtype = optional_dtype(attrs["dtype"], value[0].dtype if value else "float32")
    return TensorType(checked_shape(name, attrs["shape"]), dtype)


def _infer_arange(name: str, attrs: Attrs, *_: TensorType) -> TensorType:
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if not all(isinstance(item, (int, float)) and math.isfinite(item) for item in (start, stop, step)) or step == 0:
        raise TypeCheckError(f"{name}: start {start}, stop {stop} and step {step} must be finite, step not 0")
    dtypes.bits(attrs["dtype"])
    return TensorType((max(0, math.ceil((stop - start) / step)),), attrs["dtype"])


def _arange(of: Element, *_: Tensor) -> Expr:
    # integers are computed as they are, so that a large start keeps all its digits
    dtype = of.out.dtype
    return tb.cast(of.at[0], dtype) * tb.const(of.attrs["step"], dtype) + tb.const(of.attrs["start"], dtype)


_SHAPED = (Attr("shape"), Attr("dtype", None))
declare("zeros", 0, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of: tb.const(0, of.out.dtype), doc="Zeros")
declare("ones", 0, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of: tb.const(1, of.out.dtype), doc="Ones")
declare("full", 1, _infer_filled, Kind.INJECTIVE, _SHAPED, lambda of, value: converted(scalar(value), of.out.dtype),
        doc="One value everywhere")  # fmt: skip
declare("arange", 3, _infer_arange, Kind.INJECTIVE, (Attr("start"), Attr("stop"), Attr("step"), Attr("dtype")), _arange,
        contract="start + i * step, two roundings",
        doc="Evenly spaced numbers; the attributes repeat the values of the three arguments")  # fmt: skip
