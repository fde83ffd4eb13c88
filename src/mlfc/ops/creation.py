"""Operators that make tensors from nothing but attributes and scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.elementwise import converted
from mlfc.ops.rules import tensors
from mlfc.relay.ir import TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Indices, Reader, Tensor
from mlfc.tir.ir import Expr

Attrs = Mapping[str, Any]


def _shaped(name: str, attrs: Attrs, dtype: str) -> TensorType:
    shape = attrs["shape"]
    if not isinstance(shape, tuple) or any(not isinstance(extent, int) or extent < 0 for extent in shape):
        raise TypeCheckError(f"{name}: shape {shape} must be integers of at least 0")
    dtypes.bits(attrs["dtype"] or dtype)
    return TensorType(shape, attrs["dtype"] or dtype)


def _infer_zeros(_: Sequence[Type], attrs: Attrs) -> TensorType:
    return _shaped("zeros", attrs, "float32")


def _infer_ones(_: Sequence[Type], attrs: Attrs) -> TensorType:
    return _shaped("ones", attrs, "float32")


def _infer_full(types: Sequence[Type], attrs: Attrs) -> TensorType:
    (value,) = tensors("full", types)
    if value.size != 1:
        raise TypeCheckError(f"full: the value must be a scalar, not {value}")
    return _shaped("full", attrs, value.dtype)


def _zeros(_: Context, __: Sequence[Tensor], ___: Attrs, out_type: TensorType) -> Reader:
    return lambda _: tb.const(0, out_type.dtype)


def _ones(_: Context, __: Sequence[Tensor], ___: Attrs, out_type: TensorType) -> Reader:
    return lambda _: tb.const(1, out_type.dtype)


def _full(_: Context, inputs: Sequence[Tensor], __: Attrs, out_type: TensorType) -> Reader:
    (value,) = inputs
    return lambda _: converted(value.read([tb.const(0)] * len(value.shape)), out_type.dtype)


def _infer_arange(types: Sequence[Type], attrs: Attrs) -> TensorType:
    tensors("arange", types)
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if not all(isinstance(item, (int, float)) and math.isfinite(item) for item in (start, stop, step)) or step == 0:
        raise TypeCheckError(f"arange: start {start}, stop {stop} and step {step} must be finite, step not 0")
    dtypes.bits(attrs["dtype"])
    return TensorType((max(0, math.ceil((stop - start) / step)),), attrs["dtype"])


def _arange(_: Context, __: Sequence[Tensor], attrs: Attrs, out_type: TensorType) -> Reader:
    # integers are computed as they are, so that a large start keeps all its digits
    dtype = out_type.dtype
    start, step = tb.const(attrs["start"], dtype), tb.const(attrs["step"], dtype)

    def read(indices: Indices) -> Expr:
        return tb.cast(indices[0], dtype) * step + start

    return read


for _operator in (
    Operator("zeros", 0, _infer_zeros, Kind.INJECTIVE, (Attr("shape"), Attr("dtype", None)), _zeros, doc="Zeros"),
    Operator("ones", 0, _infer_ones, Kind.INJECTIVE, (Attr("shape"), Attr("dtype", None)), _ones, doc="Ones"),
    Operator(
        "full", 1, _infer_full, Kind.INJECTIVE, (Attr("shape"), Attr("dtype", None)), _full, doc="One value everywhere"
    ),
    Operator(
        "arange", 3, _infer_arange, Kind.INJECTIVE, (Attr("start"), Attr("stop"), Attr("step"), Attr("dtype")), _arange,
        contract="start + i * step, two roundings",
        doc="Evenly spaced numbers; the attributes repeat the values of the three arguments",
    ),
):  # fmt: skip
    OPERATORS.add(_operator.name, _operator)
