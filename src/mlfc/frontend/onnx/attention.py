"""Scaled dot-product attention: the core that all variants share, and ONNX's own operators.

A node becomes a single operator, `nn.attention`, unless one of its outputs exposes the scores: then it is expanded into
elementary operators. 16-bit floats are computed in float32, as in ONNX Runtime. A row of scores in which every key is
masked yields zeros, as ONNX defines since opset 23, although the softmax of a row of minus infinities is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any

import numpy as np
from onnx import TensorProto

from mlfc.frontend.onnx.node import Node, dtype_of, is_float, shape_of, wide
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.kernels.attention import FARTHEST
from mlfc.ops.attention import SpelledAttention
from mlfc.relay.ir import Expr
from mlfc.relay.op import OPERATORS
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, bounds, is_static
from mlfc.support.dtypes import HALVES

PREVIEW = "ai.onnx.preview"
_LARGEST_LENGTH = 1 << 30  # sums and differences of two stay in int32
_PRECISIONS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}


@dataclass(eq=False)
class Masks:
    """Constraints on the keys that each query attends to, each broadcast to (batch, heads, queries, keys)."""

    allowed: list[Expr] = field(default_factory=list)  # bool: True where the query attends to the key
    biases: list[Expr] = field(default_factory=list)  # added to the scores; minus infinity masks
    left: int = -1  # number of visible keys before a query's position, and after it; -1 for all
    right: int = -1
    offset: Expr | int = 0  # position of the first query; a computed one is an int32 per batch row
    lengths: Expr | None = None  # number of keys per batch row
    sink: Expr | None = None  # per head, the score of a virtual key without a value


@dataclass(eq=False)
class Attention:
    """Queries, keys and values, each (batch, heads, positions, size)."""

    node: Node
    q: Expr
    k: Expr
    v: Expr

    def __post_init__(self) -> None:
        node, shapes = self.node, [shape_of(part) for part in (self.q, self.k, self.v)]
        if any(len(shape) != 4 for shape in shapes):
            node.wrong(f"expected Q, K and V of 4 dimensions, got {', '.join(map(str, shapes))}")
        q, k, v = shapes
        if not node.has_shape((*k, *v[:3]), (q[0], *k[1:3], q[3], q[0], *k[1:3])):
            node.wrong(f"Q, K and V of shapes {', '.join(map(str, shapes))} do not fit together")
        if 0 in (*q, *k, *v):
            node.unsupported(f"of tensors of shapes {q}, {k}, {v} is not supported", "None may be empty")
        # unknown numbers of heads are assumed equal
        if isinstance(q[1] % k[1], Dim):
            node.has_shape(k[1:2], q[1:2])
        if q[1] % k[1]:
            node.wrong(f"{q[1]} heads of queries are not a multiple of {k[1]} heads of keys")
        if not is_static((q[1], k[1], q[3], v[3])):
            step = "Specify these dimensions of the inputs, such as --shape Q=n,8,m,64"
            node.unsupported(f"with a dynamic number or size of heads, {q} and {v}, is not supported", step)
        self.batch, self.heads, self.queries, self.size = q
        self.groups, self.keys = k[1], k[2]
        # when attention is expanded, masks by position become constants of this size
        cost.require("constants", 8 * bounds(self.queries + self.keys)[0], node.name)
        self.dtype = dtype_of(self.q)
        self.wide_dtype = "float32" if self.dtype in HALVES else self.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys

    def window(self, masks: Masks, offset: Expr | Extent, left: int, right: int) -> None:
        """Mask all keys except from `left` before to `right` after each query; -1 means no limit.

        The position of the first query is `offset`: a dimension size, or an int per batch row.
        """
        if isinstance(offset, Dim):
            offset = self.node.broadcast(self.node.reshape(self.node.constant(offset, "int32"), (1,)), (self.batch,))
        left, right = min(left, FARTHEST), min(right, FARTHEST)  # larger limits exclude no key
        if isinstance(offset, int):
            last = offset + self.queries - 1
            # dynamic lengths may need the limit
            left = left if left >= 0 and bounds(last - left)[1] > 0 else -1
            right = right if right >= 0 and bounds(self.keys - 1 - offset - right)[1] > 0 else -1
        masks.left, masks.right, masks.offset = left, right, offset

    def attended(self, masks: Masks, scale: float | None, cap: float = 0.0) -> Expr:
        """Return the values weighted by the softmax of the scores, as a single operator."""
        args, attrs = self._call(masks, scale, cap)
        return self.node.cast(self.node.call("nn.attention", *args, **attrs), self.dtype)

    def spelled(self, masks: Masks, scale: float | None, cap: float = 0.0) -> SpelledAttention:
        """Return attention expanded into stages, each an expression."""
        args, attrs = self._call(masks, scale, cap)
        return SpelledAttention(args, OPERATORS.get("nn.attention").complete(attrs), self.node.call, self.node.name)

    def _call(self, masks: Masks, scale: float | None, cap: float) -> tuple[list[Expr], dict[str, Any]]:
        parts = [wide(self.node, part) for part in (self.q, self.k, self.v)]
        is_static_offset = isinstance(masks.offset, int)
        extras: list[tuple[str, Any]] = [("mask", mask) for mask in masks.allowed]
        extras += [("bias", self.node.cast(bias, dtype_of(parts[0]))) for bias in masks.biases]
        optional = (None if is_static_offset else masks.offset, masks.lengths, masks.sink)
        extras += [pair for pair in zip(("offset", "lengths", "sink"), optional, strict=True) if pair[1] is not None]
        attrs: dict[str, Any] = {"left": masks.left, "right": masks.right, "softcap": cap}
        attrs |= {"offset": masks.offset} if is_static_offset else {}
        attrs["scale"] = 1 / sqrt(self.size) if scale is None else scale
        attrs["extras"] = tuple(name for name, _ in extras)
        return [*parts, *(extra for _, extra in extras)], attrs


def per_batch(node: Node, index: int, batch: int, what: str) -> Expr:
    """Return an input with one integer per batch row as int32, (batch,)."""
    given = node.input(index)
    wanted = (batch, 1)[: max(len(shape_of(given)), 1)]
    if not node.has_shape(shape_of(given), wanted) or dtype_of(given) not in ("int32", "int64"):
        node.wrong(f"expected {batch} integers as {what}, got {dtype_of(given)} of shape {shape_of(given)}")
    if dtype_of(given) == "int64":  # values beyond every length remain so after clipping
        given = node.call("clip", given, a_min=float(-_LARGEST_LENGTH), a_max=float(_LARGEST_LENGTH))
    return node.reshape(node.cast(given, "int32"), (batch,))


def split_heads(node: Node, expr: Expr, heads: int, what: str) -> Expr:
    """Return (batch, positions, heads * size) as (batch, heads, positions, size)."""
    batch, count, width = shape_of(expr)
    if heads < 1 or width % heads:
        node.wrong(f"{what} of shape {shape_of(expr)} has no {heads} heads of equal size")
    return node.transpose(node.reshape(expr, (batch, count, heads, width // heads)), (0, 2, 1, 3))


def join_heads(node: Node, expr: Expr) -> Expr:
    """Return (batch, heads, positions, size) as (batch, positions, heads * size)."""
    batch, heads, count, size = shape_of(expr)
    return node.reshape(node.transpose(expr, (0, 2, 1, 3)), (batch, count, heads * size))


def with_past(node: Node, new: Expr, index: int, what: str) -> Expr:
    """Return keys or values appended to the past ones, which are input `index`."""
    if not node.has(index):
        return new
    past, (batch, heads, _, size) = node.shape(index), shape_of(new)
    fits = len(past) == 4 and node.has_shape((*past[:2], past[3]), (batch, heads, size))
    if not fits or node.dtype(index) != dtype_of(new):
        node.wrong(f"expected {what} ({batch}, {heads}, ..., {size}), got {node.dtype(index)} of shape {past}")
    return node.concatenate([node.input(index), new], 2) if past[2] else new


@importer("Attention", since=23)
def _attention(node: Node) -> list[Expr]:
    parts = [node.input(index) for index in range(3)]
    ranks = [len(shape_of(part)) for part in parts]
    if ranks not in ([3, 3, 3], [4, 4, 4]):
        shapes = ", ".join(str(shape_of(part)) for part in parts)
        node.wrong(f"expected Q, K and V of 3 or of 4 dimensions, got {shapes}")
    is_flat = ranks[0] == 3
    if is_flat:
        queries, keys = node.integer("q_num_heads"), node.integer("kv_num_heads")
        names = (("Q", queries), ("K", keys), ("V", keys))
        parts = [split_heads(node, part, heads, name) for part, (name, heads) in zip(parts, names, strict=True)]
    else:
        for name, shape in (("q_num_heads", node.shape(0)), ("kv_num_heads", node.shape(1))):
            if node.given(name) and node.integer(name) != shape[1]:
                node.wrong(f"{name} is {node.integer(name)}, but the tensor of shape {shape} has {shape[1]} heads")
    if node.has(4) != node.has(5):
        node.wrong("past_key and past_value are given together")
    if node.has(4) and node.has(6):
        node.wrong("nonpad_kv_seqlen cannot be combined with past_key and past_value")
    k, v = with_past(node, parts[1], 4, "past_key"), with_past(node, parts[2], 5, "past_value")
    result, shown = _attended(node, Attention(node, parts[0], k, v))
    results = [join_heads(node, result) if is_flat else result, k, v]
    return results if shown is None else [*results, shown]


def _attended(node: Node, core: Attention) -> tuple[Expr, Expr | None]:
    """Return the result by heads, and the exposed stage of the scores, if any."""
    mode = node.integer("qk_matmul_output_mode", 0)
    if mode not in range(4):
        node.wrong(f"expected a qk_matmul_output_mode from 0 to 3, got {mode}")
    scale = node.real("scale") if node.given("scale") else None
    cap = node.real("softcap", 0.0)
    if not (cap >= 0 and (scale is None or scale >= 0)):
        node.wrong(f"expected a scale and a softcap of 0 or more, got {scale} and {cap}")
    masks = _masks(node, core)
    precision = _precision(node, core)
    if not node.wants(3) and precision == core.wide_dtype:
        return core.attended(masks, scale, cap), None
    stages = core.spelled(masks, scale, cap)
    raw = stages.scores()
    capped = stages.capped(raw)
    biased = stages.masked(capped)
    chances = stages.probabilities(node.cast(biased, precision))
    result = stages.mixed(node.cast(chances, dtype_of(raw)))
    return node.cast(result, core.dtype), node.cast((raw, capped, biased, chances)[mode], core.dtype)


def _precision(node: Node, core: Attention) -> str:
    """Return the dtype of the softmax: that of the scores, or the requested one; float32 for 16-bit floats."""
    precision = node.integer("softmax_precision", 0)
    if precision == 0:
        return core.wide_dtype
    if precision not in _PRECISIONS:
        node.wrong(f"softmax_precision {precision} is not a floating-point type")
    wanted = dtype_name(precision, node.name)
    return "float32" if wanted in HALVES else wanted


def _masks(node: Node, core: Attention) -> Masks:
    masks = Masks()
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    if left < -1 or right < -1:
        node.wrong(f"expected window sizes of -1 or more, got {left} and {right}")
    if node.flag("is_causal"):
        right = 0
    if node.has(3):
        add_mask(core, masks, padded(node, node.input(3), core.keys))
    offset: Any = node.shape(4)[2] if node.has(4) else 0
    if node.has(6):
        lengths = per_batch(node, 6, core.batch, "nonpad_kv_seqlen")
        if right != 0:  # otherwise the last query already sees no key after itself
            masks.lengths = lengths
        offset = node.call("subtract", lengths, core.queries)
    if left >= 0 or right >= 0:
        core.window(masks, offset, left, right)
    return masks


def add_mask(core: Attention, masks: Masks, mask: Expr) -> None:
    """Add a mask that broadcasts to the scores: a bool mask of visible keys, or a bias that is added."""
    node, shape = core.node, shape_of(mask)
    aligned = (1,) * (4 - len(shape)) + shape
    pairs = zip(aligned, core.shape, strict=True) if len(shape) <= 4 else ()
    if len(shape) > 4 or not all(own == 1 or node.has_shape((own,), (size,)) for own, size in pairs):
        node.wrong(f"a mask of shape {shape} does not fit scores of shape {core.shape}")
    mask = node.reshape(mask, aligned)
    if dtype_of(mask) == "bool":
        masks.allowed.append(mask)
    elif is_float(mask):
        masks.biases.append(mask)
    else:
        node.wrong(f"expected a mask of bool or floating-point numbers, got {dtype_of(mask)}")


def padded(node: Node, mask: Expr, keys: int) -> Expr:
    """Return a mask padded at the end to the number of keys; no query sees the additional ones."""
    shape = shape_of(mask)
    if not shape:
        node.wrong("the mask is a scalar")
    missing = keys - shape[-1]
    if isinstance(missing, Dim):
        node.has_shape(shape[-1:], (keys,))
    if missing <= 0:
        return mask
    cost.require("constants", 8 * prod(shape[:-1]) * missing, node.name)
    outside = np.full((*shape[:-1], missing), False if dtype_of(mask) == "bool" else -np.inf)
    return node.concatenate([mask, node.constant(outside, dtype_of(mask))], len(shape) - 1)


@importer("FlexAttention", domain=PREVIEW)
def _flex_attention(node: Node) -> Expr:
    core = Attention(node, node.input(0), node.input(1), node.input(2))
    scale = node.real("scale") if node.given("scale") else None
    precision = _precision(node, core)
    if not node.given("score_mod") and not node.given("prob_mod") and precision == core.wide_dtype:
        return node.cast(core.attended(Masks(), scale), node.dtype(2))
    stages = core.spelled(Masks(), scale)
    scores = _modified(node, "score_mod", node.cast(stages.scores(), precision))
    return node.cast(stages.mixed(_modified(node, "prob_mod", stages.probabilities(scores))), node.dtype(2))


def _modified(node: Node, name: str, value: Expr) -> Expr:
    """Apply a graph attribute of the node to a tensor; the graph must preserve its type."""
    if not node.given(name):
        return value
    results = node.graph(name, [value])
    if len(results) != 1 or shape_of(results[0]) != shape_of(value) or dtype_of(results[0]) != dtype_of(value):
        node.wrong(f"{name} must return one {dtype_of(value)} tensor of shape {shape_of(value)}")
    return results[0]
