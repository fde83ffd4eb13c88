"""Quantized images: ``qnn.resize_bilinear``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.ops import qnn_in_tvm
from mlfc.ops.qnn import check_codes
from mlfc.ops.rules import Element, declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Tensor
from mlfc.tir.ir import Expr

Samples: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]

_ONE = 1 << 10  # coordinates have ten fraction bits


def _infer(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_codes(name, data)
    size = attrs["size"]
    if len(data.shape) != 4 or len(size) != 2 or min(size) < 1 or min(data.shape[1:3]) < 1:
        raise TypeCheckError(f"{name}: {data} cannot be resized to {size}")
    return TensorType((data.shape[0], size[0], size[1], data.shape[3]), data.dtype)


def _samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return for each output index the two inputs that it mixes, and the weight (of 1024) of the second."""
    scale = (_ONE * extent + count // 2) // count
    if attrs["align_corners"] and count > 1:
        scale = (_ONE * (extent - 1) + (count - 1) // 2) // (count - 1)
    places = np.arange(count, dtype=np.int64) * scale
    if attrs["half_pixel_centers"]:
        places += scale // 2 - _ONE // 2
    # integer division of C truncates, which only matters for the first places of half-pixel centres
    first = np.maximum(np.trunc(places / _ONE).astype(np.int64), 0)
    second = np.minimum(np.trunc((places + _ONE - 1) / _ONE).astype(np.int64), extent - 1)
    first = np.minimum(first, extent - 1)
    weight = places - _ONE * first
    return first.astype(np.int32), np.maximum(second, 0).astype(np.int32), weight.astype(np.int32)


def _float_samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return the same as `_samples` in the reference's float32 arithmetic, which it has for every type but int8."""
    scale = np.float32(extent) / np.float32(count)
    if attrs["align_corners"] and count > 1:
        scale = np.float32(extent - 1) / np.float32(count - 1)
    places = np.arange(count, dtype=np.float32)
    places = (places + np.float32(0.5)) * scale - np.float32(0.5) if attrs["half_pixel_centers"] else places * scale
    first = np.maximum(np.floor(places), 0)
    second = np.minimum(np.ceil(places), extent - 1)
    first = np.minimum(first, extent - 1)
    return first.astype(np.int32), second.astype(np.int32), (places - first).astype(np.float32)


# by dtype: what is mixed, in which type, and what the weights add up to
_HOW: dict[str, tuple[Callable[[int, int, Attrs], Samples], str, int]] = {
    "int8": (_samples, "int32", _ONE), "int16": (_samples, "int64", _ONE), "uint8": (_float_samples, "float32", 1),
}  # fmt: skip


def _resize(of: Element, data: Tensor) -> Expr:
    out, (n, y, x, c) = of.out, of.at
    samples, kind, one = _HOW[out.dtype]

    def sampled(axis: int, letter: str, at: Expr) -> tuple[Expr, Expr, Expr]:
        """Return both positions that an output index mixes, and the weight of the second."""
        labels = (f"first_{letter}", f"second_{letter}", f"weight_{letter}")
        found = samples(data.shape[axis], out.shape[axis], of.attrs)
        *places, weight = (of.ctx.constant(label, table) for label, table in zip(labels, found, strict=True))
        # the limits change nothing; they let the bounds of what is read be proven without the tables
        first, second = (tb.clamp(tb.load(table, [at]), 0, data.shape[axis] - 1) for table in places)
        return first, second, tb.load(weight, [at])

    (y0, y1, wy), (x0, x1, wx) = sampled(1, "y", y), sampled(2, "x", x)
    weight_kind = "float32" if kind == "float32" else "int32"
    total: Expr = tb.const(0, kind)
    for column, column_weight in ((x0, tb.const(one, weight_kind) - wx), (x1, wx)):
        for row, row_weight in ((y0, tb.const(one, weight_kind) - wy), (y1, wy)):
            value = tb.cast(data.read([n, row, column, c]), kind)
            total = total + value * tb.cast(row_weight, kind) * tb.cast(column_weight, kind)
    if kind == "float32":
        return tb.cast(tb.clamp(total + tb.const(0.5, kind), *map(float, dtypes.limits(out.dtype))), out.dtype)
    half = _ONE * _ONE // 2
    nudged = tb.select(tb.binary("gt", total, 0), total + half, total - half)
    return tb.cast(tb.binary("truncdiv", nudged, _ONE * _ONE), out.dtype)


declare(
    "qnn.resize_bilinear", 1, _infer, Kind.INJECTIVE,
    (Attr("size"), Attr("align_corners", False), Attr("half_pixel_centers", False)), _resize,
    rounding_sensitive=True, in_tvm=qnn_in_tvm.resize_bilinear, contract="bit-exact to TFLite's reference kernel",
    doc="NHWC images of another size by linear interpolation, with ten bits of weight; uint8 in float32.",
)  # fmt: skip
