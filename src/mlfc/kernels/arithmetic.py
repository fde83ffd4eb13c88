"""Arithmetic of a register tile: in float32, in int32, or by dot products of four int8 values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.kernels.templates import Weights
from mlfc.kernels.tiling import LANES
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output
from mlfc.tir.ir import Buffer, Expr

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """One way to multiply and accumulate."""

    weights: Array  # in the layout of `Weights.values`, in the dtype that the tile loads
    accumulator: str
    step: int  # reduction elements that one multiply reads from the data and from each channel's weights
    staged_dtype: str  # dtype of a copy of the data
    must_stage: bool  # whether the tile can only read such a copy
    offset: int  # value added to the data, relative to the data less its zero point; `start` compensates for it
    pad_value: int
    to_staged: Callable[[Expr], Expr]
    accumulate: Callable[[Expr, Expr, Expr], Expr]

    @property
    def vector(self) -> str:
        """Dtype of one vector of accumulators."""
        return dtypes.vector(self.accumulator, LANES)

    def start(self, bias: Array | None) -> Array | None:
        """Return the initial value of each filter's accumulator, or None for zero.

        Floats start at zero and add the bias last, like the reference implementations: the order affects the last bit.
        """
        if self.accumulator == "float32":
            return None
        filters = self.weights.shape[-1]
        start = np.zeros(filters, self.accumulator) if bias is None else bias.astype(self.accumulator)
        if self.offset:
            sums = self.weights.reshape(-1, filters).astype(np.int64).sum(axis=0)
            start = (start.astype(np.int64) - self.offset * sums).astype(np.int32)
        return start if start.any() else None

    def largest(self, bias: Array | None) -> int | None:
        """Return the largest magnitude of a sum of integers; None if it overflows the accumulator."""
        if self.accumulator != "int32" or self.weights.size == 0:
            return None
        filters = self.weights.shape[-1]
        low, high = dtypes.limits(self.staged_dtype)
        sums = np.abs(self.weights.reshape(-1, filters).astype(np.int64)).sum(axis=0) * max(-low, high)
        start = self.start(bias)
        most = int((sums + (0 if start is None else np.abs(start.astype(np.int64)))).max())
        return most if most <= dtypes.limits("int32")[1] else None

    def end(self, bias: Array | None) -> Array | None:
        """Return the number to add to the finished sum of each filter, or None."""
        return bias if bias is not None and self.accumulator == "float32" and bias.any() else None


def add_products(
    stmts: tb.StmtBuilder,
    sums: Buffer,
    values: Sequence[Expr],
    vectors: Sequence[Expr],
    accumulate: Callable[[Expr, Expr, Expr], Expr],
) -> None:
    """Write one reduction step of a register tile: add the product of each value and each vector to its sum."""
    factors = [stmts.let("w", vector) for vector in vectors]
    for row, value in enumerate(values):
        factor = stmts.let("x", value)
        for column, vector in enumerate(factors):
            index = row * len(factors) + column
            stmts.store(sums, [index], accumulate(tb.load(sums, [index]), factor, vector))


def scaled_vector(total: Expr, value: Expr, vector: Expr) -> Expr:
    """Return the sum `total` plus `value` times a vector of floats."""
    return total + tb.broadcast(value, LANES) * vector


def choose(data_dtype: str, weights: Weights, features: Features) -> Arithmetic | None:
    """Return the arithmetic for these operands, or None if no vector form exists."""
    if weights.values.dtype == np.float32 and data_dtype in ("float32", *dtypes.HALVES):
        return float32(weights, data_dtype)
    if data_dtype not in ("int8", "uint8", "int16") or weights.values.dtype.kind not in "iu":
        return None
    centered = weights.centered()
    if features.dot4 and centered.dtype == np.int8 and data_dtype != "int16":
        return _dot4(data_dtype, weights.data_zero, centered)
    zero = weights.data_zero
    return Arithmetic(
        centered.astype(np.int32), "int32", 1, data_dtype, False, zero, zero, lambda value: value,
        lambda acc, value, weight: acc + tb.broadcast(tb.cast(value, "int32"), LANES) * weight,
    )  # fmt: skip


def accepts(ctx: Context, data: Buffer, weights: Weights, out: Output) -> bool:
    """Return whether an arithmetic exists for these operands whose sums have the result's dtype."""
    how = choose(data.dtype, weights, ctx.features)
    return how is not None and how.accumulator == out.dtype


def float32(weights: Weights, data_dtype: str = "float32") -> Arithmetic:
    """Return the arithmetic of float32, for weights of any dtype; 16-bit data is widened when it is copied."""
    return Arithmetic(
        weights.values, "float32", 1, "float32", data_dtype != "float32", 0, 0,
        lambda value: tb.cast(value, "float32"), scaled_vector,
    )  # fmt: skip


def _dot4(data_dtype: str, zero: int, centered: Array) -> Arithmetic:
    """Return the arithmetic of dot products of four uint8 data and four int8 weights.

    int8 data become uint8 by flipping the top bit, which adds 128; the zero point is raised by as much.
    """
    shift = 128 if data_dtype == "int8" else 0

    def to_staged(value: Expr) -> Expr:
        return tb.cast(value, "uint8") ^ 0x80 if shift else value

    return Arithmetic(
        centered, "int32", 4, "uint8", True, zero + shift, zero + shift, to_staged,
        lambda acc, value, weight: tb.intrinsic("dot4_u8s8", acc, value, weight),
    )  # fmt: skip
