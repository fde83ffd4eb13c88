"""Scaled dot-product attention: products, softmax and weighted sum of values for each query in one operator.

The kernels (`kernels.attention`) store only the scores of a tile of keys. Expanded into products, masks and a softmax,
all scores are in memory: this form is used for models that output their scores, on devices, and in the Relay text of
`nn.attention` for TVM. Masks by position compare vectors of positions, so no constant mask has the size of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import inf
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import TypeCheckError
from mlfc.kernels import templates
from mlfc.kernels.attention import FARTHEST, AttentionOperand, FusedAttention
from mlfc.ops.rules import accumulator, check_alike, check_choice, check_dtype, declare, same_extent
from mlfc.relay import ir
from mlfc.relay.ir import Attrs, Expr, TensorType, Tuple
from mlfc.relay.op import REQUIRED, Attr, Kind
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, bounds
from mlfc.tir.context import Context, Output, Tensor

ORDERS = ("BHND", "BNHD", "NBHD")
"""Orders of batch, heads, positions and elements in memory."""

Make: TypeAlias = Callable[..., Expr]
"""Callback ``(operator, *arguments, **attributes)`` that applies an operator."""

_TO_HEADS = {"BHND": (0, 1, 2, 3), "BNHD": (0, 2, 1, 3), "NBHD": (1, 2, 0, 3)}
_FROM_HEADS = {"BHND": (0, 1, 2, 3), "BNHD": (0, 2, 1, 3), "NBHD": (2, 0, 1, 3)}

EXTRAS = ("mask", "bias", "offset", "lengths", "sink")
_ONCE = ("offset", "lengths", "sink")


def _sizes(shape: Sequence[int], order: str) -> tuple[int, ...]:
    """Return (batch, heads, positions, elements)."""
    return tuple(shape[order.index(letter)] for letter in "BHND")


def _check_attrs(name: str, attrs: Attrs) -> None:
    orders = attrs["orders"]
    if not isinstance(orders, tuple) or len(orders) != 4:
        raise TypeCheckError(f"{name}: expected the orders of query, key, value and result, got {orders}")
    for order in orders:
        check_choice(name, "an order", order, ORDERS)
    for extra in attrs["extras"]:
        check_choice(name, "an extra argument", extra, EXTRAS)
    for extra in _ONCE:
        if attrs["extras"].count(extra) > 1:
            raise TypeCheckError(f"{name}: '{extra}' is given more than once")
    for limit in ("left", "right"):
        if not -1 <= attrs[limit] <= FARTHEST:
            raise TypeCheckError(f"{name}: expected {limit} from -1 to {FARTHEST}, got {attrs[limit]}")
    nearest, farthest = bounds(attrs["offset"])
    if nearest > FARTHEST or farthest < -FARTHEST:
        raise TypeCheckError(f"{name}: expected an offset within {FARTHEST}, got {attrs['offset']}")
    if attrs["softcap"] < 0:
        raise TypeCheckError(f"{name}: expected a softcap of 0 or more, got {attrs['softcap']}")


def _infer(name: str, attrs: Attrs, *types: TensorType) -> TensorType:
    """Check query, key, value and the tensors in `extras`; the result has the elements of the value."""
    _check_attrs(name, attrs)
    if len(types) != 3 + len(attrs["extras"]):
        raise TypeCheckError(f"{name}: expected query, key, value and extras: {', '.join(attrs['extras']) or 'none'}")
    query, key, value, *extras = types
    check_dtype(name, query.dtype, "float")
    check_alike(name, query, key)
    check_alike(name, query, value)
    if any(len(part.shape) != 4 or 0 in part.shape for part in types[:3]):
        raise TypeCheckError(f"{name}: expected query, key and value of 4 dimensions that are not empty")
    order = attrs["orders"]
    q, k, v = (_sizes(part.shape, own) for part, own in zip(types[:3], order[:3], strict=True))
    pairs = [(q[0], k[0]), (k[0], v[0]), (q[3], k[3]), *zip(k[1:3], v[1:3], strict=True)]
    for first, second in pairs:
        if isinstance(first, Dim) or isinstance(second, Dim):
            same_extent(name, first, second, "extents of query, key and value")
    if any(isinstance(extent, Dim) for extent in (q[1], k[1], q[3], v[3])):
        raise TypeCheckError(f"{name}: expected heads of a fixed number and size, got {query}, {key} and {value}")
    if any(first != second for first, second in pairs) or q[1] % k[1]:
        raise TypeCheckError(f"{name}: incompatible types {query}, {key} and {value}")
    if max(bounds(q[2])[0], bounds(k[2])[0]) > FARTHEST:
        raise TypeCheckError(f"{name}: more than {FARTHEST} positions")
    for extra, kind in zip(attrs["extras"], extras, strict=True):
        _check_extra(name, extra, kind, (q[0], q[1], q[2], k[2]))
    sizes = {"B": q[0], "H": q[1], "N": q[2], "D": v[3]}
    return TensorType(tuple(sizes[letter] for letter in order[3]), query.dtype)


def _check_extra(name: str, extra: str, kind: TensorType, scores: tuple[int, ...]) -> None:
    if extra in ("mask", "bias"):
        check_dtype(name, kind.dtype, "bool" if extra == "mask" else "float")
        if len(kind.shape) != 4 or any(own not in (1, size) for own, size in zip(kind.shape, scores, strict=True)):
            raise TypeCheckError(f"{name}: a {extra} of shape {kind.shape} does not fit scores of shape {scores}")
        return
    batch, heads = scores[:2]
    wanted = (heads,) if extra == "sink" else (batch,)
    if kind.shape != wanted:
        raise TypeCheckError(f"{name}: expected {extra} of shape {wanted}, got {kind.shape}")
    if extra == "sink":
        check_dtype(name, kind.dtype, "float")
    elif kind.dtype != "int32":
        raise TypeCheckError(f"{name}: expected {extra} of int32, got {kind.dtype}")


def _macs(types: Sequence[Any], attrs: Attrs, _: Any) -> int:
    """Return the multiply-accumulates if every query attends to every key."""
    q, v = _sizes(types[0].shape, attrs["orders"][0]), _sizes(types[2].shape, attrs["orders"][2])
    return q[0] * q[1] * q[2] * v[2] * (q[3] + v[3])


def _emit(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output) -> None:
    wide = [templates.in_float(ctx, tensor) for tensor in inputs[:3]]
    q, k, v = (AttentionOperand(order, tensor) for order, tensor in zip(attrs["orders"][:3], wide, strict=True))
    batch, heads, queries, size = _sizes(q.tensor.shape, q.order)
    _, groups, keys, value_size = _sizes(v.tensor.shape, v.order)
    found: dict[str, list[Tensor]] = {extra: [] for extra in EXTRAS}
    for extra, tensor in zip(attrs["extras"], inputs[3:], strict=True):
        found[extra].append(templates.in_float(ctx, tensor) if extra == "sink" else tensor)
    offsets, lengths, sink = (found[extra][0] if found[extra] else None for extra in _ONCE)
    dtype = accumulator(q.tensor.dtype)
    work = FusedAttention(
        q, k, v, attrs["orders"][3], batch, heads, groups, queries, keys, size, value_size, dtype, attrs["scale"],
        attrs["softcap"], attrs["left"], attrs["right"], attrs["offset"], offsets, lengths, tuple(found["mask"]),
        tuple(found["bias"]), sink, attrs["fill"], attrs["zero_rows"], attrs["zero_nan"],
    )  # fmt: skip
    templates.emit("attention", ctx, work, out)


class SpelledAttention:
    """The stages of a call of `nn.attention`; each has the shape (batch, heads, queries, keys) except the last."""

    def __init__(
        self, args: Sequence[Expr], attrs: Mapping[str, Any], make: Make | None = None, place: str = ""
    ) -> None:
        self._attrs, self._place = attrs, place
        self._make = make or (lambda operator, *given, **rest: ir.call(operator, given, rest))
        self.dtype = ir.tensor_type(args[0]).dtype
        orders = zip(args[:3], attrs["orders"][:3], strict=True)
        self.q, self.k, self.v = (
            self._cast(self._turned(part, _TO_HEADS[order]), accumulator(_dtype(part))) for part, order in orders
        )
        self.batch, self.heads, self.queries, self.size = _shape(self.q)
        _, self.groups, self.keys, _ = _shape(self.k)
        self._extras = list(zip(attrs["extras"], args[3:], strict=True))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    def scores(self) -> Expr:
        """Return the scaled products of queries and keys, in float32 for 16-bit inputs."""
        scale = self._attrs["scale"]
        q = self.q if scale == 1.0 else self._make("multiply", self.q, self._like(scale, self.q))
        # queries of one group share their keys, so they are rows of one product and the keys are not repeated
        q, k = self._joined(q), self._reshaped(self.k, (self.batch * self.groups, self.keys, self.size))
        product = self._make("nn.batch_matmul", q, k, transpose_a=False, transpose_b=True)
        return self._reshaped(product, self.shape)

    def capped(self, scores: Expr) -> Expr:
        """Limit the magnitude of the scores to the softcap."""
        cap = self._attrs["softcap"]
        if cap == 0.0:
            return scores
        inner = self._make("tanh", self._make("divide", scores, self._like(cap, scores)))
        return self._make("multiply", inner, self._like(cap, scores))

    def masked(self, scores: Expr) -> Expr:
        """Add the biases to the scores, and replace the scores of hidden keys."""
        hiding = self._by_position()
        for bias in self._given("bias"):
            scores = self._make("add", scores, self._cast(bias, _dtype(scores)))
        masks, fill = self._given("mask"), self._attrs["fill"]
        hidden = self._make("subtract", scores, self._like(inf, scores)) if fill is None else self._like(fill, scores)
        return self._selected(hiding, self._selected(masks, scores, hidden), self._like(-inf, scores))

    def _selected(self, allowed: Sequence[Expr], scores: Expr, hidden: Expr) -> Expr:
        if not allowed:
            return scores
        return self._make("where", self._all(allowed), scores, hidden)

    def _all(self, tests: Sequence[Expr]) -> Expr:
        return reduce(lambda left, right: self._make("logical_and", left, right), tests)

    def _by_position(self) -> list[Expr]:
        """Return the conditions under which a key is inside the window and the lengths."""
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
        """Return the softmax over the keys; fully masked rows are zero if the attributes require it."""
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
        attrs, biases = self._attrs, self._given("bias")
        first, last = attrs["offset"], attrs["offset"] + self.queries - 1
        before, behind = attrs["right"] >= 0 and first + attrs["right"] < 0, attrs["left"] >= 0
        is_unknown = set(attrs["extras"]) - {"bias"} or not all(
            isinstance(bias, ir.Constant) and np.isfinite(bias.data).all() for bias in biases
        )
        # true if a query may have no visible key
        may_be_empty = is_unknown or before or (behind and last - attrs["left"] >= self.keys)
        if not attrs["zero_rows"] or not may_be_empty:
            return found
        largest = self._make("max", scores, axis=(3,), keepdims=True)
        empty = self._make("equal", largest, self._like(-inf, scores))
        tests = [*self._by_position(), *self._given("mask")]
        tests += [self._make("not_equal", bias, self._like(-inf, bias)) for bias in self._given("bias")]
        if tests and self._attrs["fill"] is None:  # the scores of hidden keys may be NaN
            hidden = self._make("logical_not", self._make("any", self._all(tests), axis=(3,), keepdims=True))
            empty = self._make("logical_or", empty, hidden)
        return self._make("where", empty, self._like(0.0, found), found)

    def mixed(self, probabilities: Expr) -> Expr:
        """Return the weighted sums of the values, (batch, heads, queries, size of values)."""
        size, dtype = _shape(self.v)[3], _dtype(probabilities)
        values = self._reshaped(self._cast(self.v, dtype), (self.batch * self.groups, self.keys, size))
        product = self._make(
            "nn.batch_matmul", self._joined(probabilities), values, transpose_a=False, transpose_b=False
        )
        return self._cast(self._reshaped(product, (self.batch, self.heads, self.queries, size)), self.dtype)

    def result(self) -> Expr:
        """Return the result of the call."""
        mixed = self.mixed(self.probabilities(self.masked(self.capped(self.scores()))))
        return self._turned(mixed, _FROM_HEADS[self._attrs["orders"][3]])

    def _given(self, extra: str) -> list[Expr]:
        return [arg for name, arg in self._extras if name == extra]

    def _joined(self, rows: Expr) -> Expr:
        """Reshape the rows of the heads that share keys to rows of one matrix."""
        count = self.heads // self.groups * self.queries
        return self._reshaped(rows, (self.batch * self.groups, count, _shape(rows)[3]))

    def _positions(self, count: Extent, axis: int, first: Extent = 0) -> Expr:
        """Return `count` positions starting at `first` along one of four axes."""
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


def _integer(number: Extent) -> Expr:
    if isinstance(number, Dim):
        return ir.call("extents", [], values=(number,), dtype="int32")
    return ir.const(number, "int32")


def _shape(expr: Expr) -> tuple[int, ...]:
    return ir.tensor_type(expr).shape


def _dtype(expr: Expr) -> str:
    return ir.tensor_type(expr).dtype


declare(
    "nn.attention", None, _infer, Kind.ANCHOR,
    (Attr("scale", REQUIRED, True), Attr("softcap", 0.0, True), Attr("left", -1), Attr("right", -1),
     Attr("offset", 0), Attr("extras", ()), Attr("fill", None, True), Attr("zero_rows", True),
     Attr("zero_nan", False), Attr("orders", ("BHND",) * 4)),
    emit=_emit, macs=_macs, in_tvm=lambda args, attrs, _: SpelledAttention(args, attrs).result(),
    contract="within 2e-6 of the largest value of a head; keys outside of the window or the lengths are not read",
    doc="softmax(scale * q k^T, masked) v of each head, without the scores in memory",
)  # fmt: skip
