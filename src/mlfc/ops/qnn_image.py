"""Quantized images: ``qnn.resize_bilinear``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.ops import qnn_in_tvm
from mlfc.ops.qnn import check_codes
from mlfc.ops.rules import declare
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import Attr, Kind
from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor
from mlfc.tir.ir import Expr

Samples: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]

_ONE = 1 << 10  # coordinates have ten fraction bits
_LANES = 16
_FEW = 4  # channels after the last whole vector whose floats are computed one by one


def _infer(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    check_codes(name, data)
    size = attrs["size"]
    if len(data.shape) != 4 or len(size) != 2 or min(size) < 1 or min(data.shape[1:3]) < 1:
        raise TypeCheckError(f"{name}: {data} cannot be resized to {size}")
    return TensorType((data.shape[0], size[0], size[1], data.shape[3]), data.dtype)


def _samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return the two input indices that each output index interpolates, and the weight (of 1024) of the second."""
    scale = (_ONE * extent + count // 2) // count
    if attrs["align_corners"] and count > 1:
        scale = (_ONE * (extent - 1) + (count - 1) // 2) // (count - 1)
    places = np.arange(count, dtype=np.int64) * scale
    if attrs["half_pixel_centers"]:
        places += scale // 2 - _ONE // 2
    # C's integer division truncates, which only matters for the first positions of half-pixel centres
    first = np.maximum(np.trunc(places / _ONE).astype(np.int64), 0)
    second = np.minimum(np.trunc((places + _ONE - 1) / _ONE).astype(np.int64), extent - 1)
    first = np.minimum(first, extent - 1)
    weight = places - _ONE * first
    return first.astype(np.int32), np.maximum(second, 0).astype(np.int32), weight.astype(np.int32)


def _float_samples(extent: int, count: int, attrs: Attrs) -> Samples:
    """Return the samples of `_samples` in the reference's float32 arithmetic, used for every dtype but int8."""
    scale = np.float32(extent) / np.float32(count)
    if attrs["align_corners"] and count > 1:
        scale = np.float32(extent - 1) / np.float32(count - 1)
    places = np.arange(count, dtype=np.float32)
    places = (places + np.float32(0.5)) * scale - np.float32(0.5) if attrs["half_pixel_centers"] else places * scale
    first = np.maximum(np.floor(places), 0)
    second = np.minimum(np.ceil(places), extent - 1)
    first = np.minimum(first, extent - 1)
    return first.astype(np.int32), second.astype(np.int32), (places - first).astype(np.float32)


# by dtype: samples, dtype of the sums, and sum of the weights
_HOW: dict[str, tuple[Callable[[int, int, Attrs], Samples], str, int]] = {
    "int8": (_samples, "int32", _ONE), "int16": (_samples, "int64", _ONE), "uint8": (_float_samples, "float32", 1),
}  # fmt: skip


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    """Write the loops: an image row is interpolated from two rows once, then each pixel from two of its columns."""
    (data,), stmts, (batch, height, width, channels) = inputs, ctx.stmts, out.shape
    samples, kind, one = _HOW[out.dtype]
    weight_kind = "float32" if kind == "float32" else "int32"
    is_float, columns = kind == "float32", data.shape[2]

    def sampled(axis: int, letter: str, at: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Return both input positions of an output index, and their weights."""
        labels = (f"first_{letter}", f"second_{letter}", f"weight_{letter}")
        found = samples(data.shape[axis], out.shape[axis], attrs)
        *places, weight = (ctx.constant(label, table) for label, table in zip(labels, found, strict=True))
        # the clamps do not change values; they prove bounds without knowledge of the tables' contents
        limited = (tb.clamp(tb.load(table, [at]), 0, data.shape[axis] - 1) for table in places)
        first, second = (stmts.let(label, place) for label, place in zip(labels, limited, strict=False))
        second_weight = stmts.let(labels[2], tb.load(weight, [at]))
        return first, second, stmts.let(f"{labels[2]}_first", tb.const(one, weight_kind) - second_weight), second_weight

    # integer rows are added first, which is exact; float products are added in the reference's order
    is_kept = bool(ctx.features.vector_bytes) and not ctx.features.gpu and not ctx.small and columns <= 4 * width
    pads = is_kept and is_float and isinstance(channels, int) and channels % _LANES > _FEW
    padded = -(-channels // _LANES) * _LANES if pads else channels
    kept = ctx.scratch("rows", (1 + is_float, columns, padded), weight_kind) if is_kept else None
    with stmts.loop(batch, "i0") as n, stmts.loop(height, "i1") as y:
        *rows, upper, lower = sampled(1, "y", y)

        def mixed(x: Expr, c: Expr) -> list[Expr]:
            values = [tb.cast(data.read([n, row, x, c]), weight_kind) for row in rows]
            products = [value * weight for value, weight in zip(values, (upper, lower), strict=True)]
            return products if is_float else [products[0] + products[1]]

        def loaded(x: Expr, c: Expr) -> list[Expr]:
            assert kept is not None
            return [tb.load(kept, [number, x, c]) for number in range(1 + is_float)]

        if kept is not None:
            stmts.refill(kept)
            with stmts.loop(columns, "x") as x:
                with stmts.loop(channels, "c", "vectorized") as c:
                    for number, value in enumerate(mixed(x, c)):
                        stmts.store(kept, [number, x, c], value)
                with stmts.loop(padded - channels, "c", "vectorized") as c:
                    for number in range(1 + is_float):
                        stmts.store(kept, [number, x, c + channels], tb.const(0, weight_kind))
        with stmts.loop(width, "i2") as x:
            *places, left, right = sampled(2, "x", x)
            codes = stmts.local("codes", (padded,), out.dtype) if pads else None
            with stmts.loop(padded, "i3", "vectorized") as c:
                products = [
                    tb.cast(value, kind) * tb.cast(weight, kind)
                    for place, weight in zip(places, (left, right), strict=True)
                    for value in (loaded(place, c) if kept else mixed(place, c))
                ]
                code = _rounded(reduce(operator.add, products), kind, out.dtype)
                out.store([n, y, x, c], code) if codes is None else stmts.store(codes, [c], code)
            if codes is not None:
                with stmts.loop(channels, "i3", "vectorized") as c:
                    out.store([n, y, x, c], tb.load(codes, [c]))


def _rounded(total: Expr, kind: str, dtype: str) -> Expr:
    """Round a weighted sum to a code."""
    if kind == "float32":
        return tb.cast(tb.clamp(total + tb.const(0.5, kind), *map(float, dtypes.limits(dtype))), dtype)
    # halves are rounded away from zero
    nudged = total + _ONE * _ONE // 2 - tb.cast(tb.binary("le", total, 0), kind)
    return tb.cast(tb.binary("shr", nudged, 20), dtype)


declare(
    "qnn.resize_bilinear", 1, _infer, Kind.ANCHOR,
    (Attr("size"), Attr("align_corners", False), Attr("half_pixel_centers", False)), emit=_emit,
    rounding_sensitive=True, in_tvm=qnn_in_tvm.resize_bilinear, contract="bit-exact to TFLite's reference kernel",
    doc="NHWC images of another size by linear interpolation, with ten bits of weight; uint8 in float32.",
)  # fmt: skip
