"""Attention spelled out in products, masks and a softmax, with all scores in memory.

That is what a model gets that shows its scores, what devices run, and what Relay text says of `nn.attention` to TVM.
Masks by position compare vectors of positions: no mask of the size of the scores is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import inf
from typing import Any, TypeAlias

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Expr, TensorType, Tuple
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent

Make: TypeAlias = Callable[..., Expr]
"""``(operator, *arguments, **attributes)``: what applies an operator."""

HALVES = ("float16", "bfloat16")
_TO_HEADS = {"BHND": (0, 1, 2, 3), "BNHD": (0, 2, 1, 3), "NBHD": (1, 2, 0, 3)}
_FROM_HEADS = {"BHND": (0, 1, 2, 3), "BNHD": (0, 2, 1, 3), "NBHD": (2, 0, 1, 3)}


def plain_call(operator: str, *args: Expr, **attrs: Any) -> Expr:
    """Return the call of an operator."""
    return ir.call(operator, args, attrs)


class SpelledAttention:
    """The stages of a call of `nn.attention`, each (batch, heads, queries, keys) but the last."""

    def __init__(
        self, args: Sequence[Expr], attrs: Mapping[str, Any], make: Make = plain_call, place: str = ""
    ) -> None:
        self._make, self._attrs, self._place = make, attrs, place
        self.dtype = ir.tensor_type(args[0]).dtype
        orders = zip(args[:3], attrs["orders"][:3], strict=True)
        self.q, self.k, self.v = (self._wide(self._turned(part, _TO_HEADS[order])) for part, order in orders)
        (self.batch, self.heads, self.queries, self.size), (_, self.groups, self.keys, _) = map(
            _shape, (self.q, self.k)
        )
        self._extras = list(zip(attrs["extras"], args[3:], strict=True))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    def scores(self) -> Expr:
        """Return the scaled products of queries and keys, wide where the inputs are halves."""
        q = (
            self.q
            if self._attrs["scale"] == 1.0
            else self._make("multiply", self.q, self._like(self._attrs["scale"], self.q))
        )
        # queries of one group share their keys, so they are rows of one product: keys are not repeated
        q, k = self._joined(q), self._reshaped(self.k, (self.batch * self.groups, self.keys, self.size))
        product = self._make("nn.batch_matmul", q, k, transpose_a=False, transpose_b=True)
        return self._reshaped(product, self.shape)

    def capped(self, scores: Expr) -> Expr:
        """Return scores that do not exceed the cap, in either direction."""
        cap = self._attrs["softcap"]
        if cap == 0.0:
            return scores
        inner = self._make("tanh", self._make("divide", scores, self._like(cap, scores)))
        return self._make("multiply", inner, self._like(cap, scores))

    def masked(self, scores: Expr) -> Expr:
        """Return the scores plus the biases, and what hidden keys get."""
        hiding = self._by_position()
        for bias in self._given("bias"):
            scores = self._make("add", scores, self._cast(bias, _dtype(scores)))
        masks, fill = self._given("mask"), self._attrs["fill"]
        hidden = self._make("subtract", scores, self._like(inf, scores)) if fill is None else self._like(fill, scores)
        return self._selected(hiding, self._selected(masks, scores, hidden), self._like(-inf, scores))

    def _selected(self, allowed: Sequence[Expr], scores: Expr, hidden: Expr) -> Expr:
        if not allowed:
            return scores
        seen = reduce(lambda left, right: self._make("logical_and", left, right), allowed)
        return self._make("where", seen, scores, hidden)

    def _by_position(self) -> list[Expr]:
        """Return which keys the window and the lengths leave."""
        left, right, found = self._attrs["left"], self._attrs["right"], []
        for lengths in self._given("lengths"):
            ends = self._reshaped(lengths, (self.batch, 1, 1, 1))
            found.append(self._make("less", self._positions(self.keys, 3), ends))
        if left < 0 and right < 0:
            return found
        keys, first = self._positions(self.keys, 3), self._positions(self.queries, 2, self._attrs["offset"])
        for offset in self._given("offset"):
            first = self._make("add", first, self._reshaped(offset, (self.batch, 1, 1, 1)))
        if right >= 0:
            last = self._make("add", first, self._like(right, first)) if right else first
            found.append(self._make("less_equal", keys, last))
        if left >= 0:
            begin = self._make("subtract", first, self._like(left, first)) if left else first
            found.append(self._make("greater_equal", keys, begin))
        return found

    def probabilities(self, scores: Expr) -> Expr:
        """Return the softmax over the keys; where all are masked, zeros if the attributes say so."""
        dtype, sinks = _dtype(scores), self._given("sink")
        if sinks:
            beside = self._cast(self._reshaped(sinks[0], (1, self.heads, 1, 1)), dtype)
            beside = self._make("broadcast_to", beside, shape=(*self.shape[:3], 1))
            every = self._make("nn.softmax", self._make("concatenate", Tuple((scores, beside)), axis=3), axis=3)
            return self._make(
                "strided_slice", every, begin=(0, 0, 0, 0), end=self.shape, strides=(1, 1, 1, 1), axes=None
            )
        found = self._make("nn.softmax", scores, axis=3)
        if self._attrs["zero_nan"]:
            return self._make("where", self._make("isnan", found), self._like(0.0, found), found)
        if not self._attrs["zero_rows"] or not self._may_empty_rows():
            return found
        largest = self._make("max", scores, axis=(3,), keepdims=True)
        empty = self._make("equal", largest, self._like(-inf, scores))
        tests = [*self._by_position(), *self._given("mask")]
        tests += [self._make("not_equal", bias, self._like(-inf, bias)) for bias in self._given("bias")]
        if tests and self._attrs["fill"] is None:  # the scores of hidden keys may be NaN
            seen = reduce(lambda left, right: self._make("logical_and", left, right), tests)
            hidden = self._make("logical_not", self._make("any", seen, axis=(3,), keepdims=True))
            empty = self._make("logical_or", empty, hidden)
        return self._make("where", empty, self._like(0.0, found), found)

    def _may_empty_rows(self) -> bool:
        """Tell whether a query may see no key."""
        attrs = self._attrs
        if set(attrs["extras"]) - {"bias"}:
            return True
        if not all(isinstance(bias, ir.Constant) and np.isfinite(bias.data).all() for bias in self._given("bias")):
            return True
        first, last = attrs["offset"], attrs["offset"] + self.queries - 1
        before, behind = attrs["right"] >= 0 and first + attrs["right"] < 0, attrs["left"] >= 0
        return bool(before or (behind and last - attrs["left"] >= self.keys))

    def mixed(self, probabilities: Expr) -> Expr:
        """Return the values weighed by the probabilities, (batch, heads, queries, size of values)."""
        size, dtype = _shape(self.v)[3], _dtype(probabilities)
        values = self._reshaped(self._cast(self.v, dtype), (self.batch * self.groups, self.keys, size))
        product = self._make(
            "nn.batch_matmul", self._joined(probabilities), values, transpose_a=False, transpose_b=False
        )
        return self._cast(self._reshaped(product, (self.batch, self.heads, self.queries, size)), self.dtype)

    def result(self) -> Expr:
        """Return what the call gives."""
        mixed = self.mixed(self.probabilities(self.masked(self.capped(self.scores()))))
        return self._turned(mixed, _FROM_HEADS[self._attrs["orders"][3]])

    def _given(self, extra: str) -> list[Expr]:
        return [arg for name, arg in self._extras if name == extra]

    def _joined(self, rows: Expr) -> Expr:
        """Return the rows of the heads that share keys as those of one matrix."""
        count = self.heads // self.groups * self.queries
        return self._reshaped(rows, (self.batch * self.groups, count, _shape(rows)[3]))

    def _wide(self, expr: Expr) -> Expr:
        return self._cast(expr, "float32") if _dtype(expr) in HALVES else expr

    def _positions(self, count: Extent, axis: int, first: Extent = 0) -> Expr:
        """Return `count` positions from `first` on along one of four axes."""
        shape: list[Extent] = [1, 1, 1, 1]
        shape[axis] = count
        if not isinstance(count, Dim) and not isinstance(first, Dim):
            cost.require("constants", count * 8, self._place)
            return ir.const((np.arange(count) + first).reshape(shape), "int32")
        start, end, step = (_integer(number) for number in (0, count, 1))
        steps = self._make("arange", start, end, step, start=0, stop=count, step=1, dtype="int32")
        return self._reshaped(steps if first == 0 else self._make("add", steps, _integer(first)), shape)

    def _like(self, value: float, expr: Expr) -> Expr:
        return ir.const(value, _dtype(expr))

    def _cast(self, expr: Expr, dtype: str) -> Expr:
        return expr if _dtype(expr) == dtype else self._make("cast", expr, dtype=dtype)

    def _reshaped(self, expr: Expr, shape: Sequence[Extent]) -> Expr:
        return expr if _shape(expr) == tuple(shape) else self._make("reshape", expr, newshape=tuple(shape))

    def _turned(self, expr: Expr, axes: tuple[int, ...]) -> Expr:
        return expr if axes == (0, 1, 2, 3) else self._make("transpose", expr, axes=axes)


def spelled_out(args: Sequence[Expr], attrs: Mapping[str, Any], _: TensorType) -> Expr:
    """Return a call of `nn.attention` in operators of TVM."""
    return SpelledAttention(args, attrs).result()


def _integer(number: Extent) -> Expr:
    if isinstance(number, Dim):
        return ir.call("extents", [], values=(number,), dtype="int32")
    return ir.const(number, "int32")


def _shape(expr: Expr) -> tuple[int, ...]:
    return ir.tensor_type(expr).shape


def _dtype(expr: Expr) -> str:
    return ir.tensor_type(expr).dtype
