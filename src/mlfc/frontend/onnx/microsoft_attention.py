"""Attention operators that ONNX Runtime's optimizer and its tools for language models emit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from mlfc.frontend.onnx.attention import (
    Attention,
    Masks,
    add_mask,
    join_heads,
    padded,
    per_batch,
    split_heads,
    with_past,
)
from mlfc.frontend.onnx.linear import matmul
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.sequences import angles, row, scattered, turned
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dim_estimates import typical
from mlfc.support.dims import Dim, Extent, bounds, maximum


def _attended(node: Node, core: Attention, mask: Expr | None, bias: int, shown: int | None) -> list[Expr]:
    """Return the result by heads and, if output `shown` is used, the masked scores; input `bias` is added to them."""
    masks = Masks()
    if node.flag("unidirectional"):
        core.window(masks, core.keys - core.queries, -1, 0)
    if node.has(bias):
        add_mask(core, masks, node.input(bias))
    if mask is not None:
        masks.biases.append(mask)
    scale = node.real("scale", 0.0) or None  # 0 also means the default
    if shown is None or not node.wants(shown):
        return [core.attended(masks, scale)]
    stages = core.spelled(masks, scale)
    scores = stages.masked(stages.scores())
    result = stages.mixed(stages.probabilities(scores))
    return [node.cast(part, core.dtype) for part in (result, scores)]


def _filled(node: Node, index: int, core: Attention) -> Expr | None:
    """Return an integer mask as an additive bias: `mask_filter_value` where the mask is not positive.

    A vector of one integer per batch row is the number of keys, one of two per row has the ends and then the starts.
    """
    filler = node.real("mask_filter_value", -10000.0)
    if not node.has(index):
        return None
    mask, shape, rank = node.cast(node.input(index), "int32"), node.shape(index), node.rank(index)
    batch, keys, past, has_begins = core.batch, core.keys, core.keys - core.queries, shape == (2 * core.batch,)
    if rank == 1 and (has_begins or node.has_shape(shape, (batch,))):
        at = node.reshape(node.counted(keys, "int32"), (1, 1, 1, keys))
        seen = node.call("less", at, node.reshape(node.cut(mask, 0, 0, batch), (batch, 1, 1, 1)))
        if has_begins:
            begins = node.reshape(node.cut(mask, 0, batch, 2 * batch), (batch, 1, 1, 1))
            seen = node.call("logical_and", seen, node.call("greater_equal", at, begins))
    else:
        if rank == 4 and node.has_shape(shape[:2], (batch, 1)) and shape[2] == shape[3] >= keys and past >= 0:
            mask = node.cut(node.cut(mask, 2, past, keys), 3, 0, keys)
        elif rank == 2 and node.has_shape(shape, (batch, keys)):
            mask = node.reshape(mask, (batch, 1, 1, keys))
        elif rank == 3 and node.has_shape(shape, (batch, core.queries, keys)):
            mask = node.reshape(mask, (batch, 1, core.queries, keys))
        else:
            node.unsupported(f"with a mask of shape {shape} for scores of shape {core.shape} is not supported")
        seen = node.call("greater", mask, 0)
    return node.call("where", seen, 0.0, node.constant(filler, "float32"))


# MultiHeadAttention


@importer("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(node: Node) -> list[Expr]:
    for index, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if node.has(index):
            node.unsupported(f"with the input '{name}' is not supported", "Export with keys and values of the past")
    q, k, v = _projections(node, node.integer("num_heads"))
    k, v = with_past(node, k, 6, "past_key"), with_past(node, v, 7, "past_value")
    core = Attention(node, q, k, v)
    result, *scores = _attended(node, core, _filled(node, 4, core), 5, 3)
    return [join_heads(node, result), k, v, *scores]


def _projections(node: Node, heads: int) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values by heads, from one, two or three tensors."""
    ranks = tuple(node.rank(index) if node.has(index) else 0 for index in range(3))
    forms = ((5, 0, 0), (3, 5, 0), (3, 4, 4), (3, 3, 3))
    if ranks not in forms or (5 in ranks and node.has(3)):
        found = ", ".join(str(node.shape(index)) for index in range(3) if node.has(index))
        node.unsupported(f"of tensors of shapes {found} is not supported", "Pass query, key and value separately")
    if ranks == (5, 0, 0):
        q, k, v = (_unpacked(node, node.input(0), heads, part, 3) for part in range(3))
        return q, k, v
    biases: list[Expr | None] = [None] * 3
    if node.has(3):
        width, shape = node.shape(0)[2], node.shape(3)
        if len(shape) != 1 or shape[0] <= 2 * width:
            node.wrong(f"a bias of shape {shape} does not fit queries of {width} elements")
        biases = [node.cut(node.input(3), 0, *ends) for ends in pairwise((0, width, 2 * width, shape[0]))]
    q = _biased(node, 0, biases[0], heads, "query")
    if ranks[1] == 5:
        return q, _unpacked(node, node.input(1), heads, 0, 2), _unpacked(node, node.input(1), heads, 1, 2)
    if ranks[1] == 4:  # keys and values of the other sequence, computed before
        return q, node.input(1), node.input(2)
    return q, _biased(node, 1, biases[1], heads, "key"), _biased(node, 2, biases[2], heads, "value")


def _unpacked(node: Node, packed: Expr, heads: int, part: int, parts: int) -> Expr:
    shape = shape_of(packed)
    if shape[2] != heads or shape[3] != parts:
        node.wrong(f"expected {parts} tensors of {heads} heads in one, got the shape {shape}")
    own = node.reshape(node.cut(packed, 3, part, part + 1), (*shape[:3], shape[4]))
    return node.transpose(own, (0, 2, 1, 3))


def _biased(node: Node, index: int, bias: Expr | None, heads: int, what: str) -> Expr:
    x = node.input(index)
    if bias is not None and shape_of(bias)[0] != shape_of(x)[2]:
        node.wrong(f"a bias of {shape_of(bias)[0]} elements does not fit a {what} of shape {shape_of(x)}")
    return split_heads(node, x if bias is None else node.call("add", x, bias), heads, what)


# Attention


@importer("Attention", domain=MICROSOFT)
def _attention(node: Node) -> list[Expr]:
    if node.flag("do_rotary") or node.integer("past_present_share_buffer", 0) or node.has(6):
        node.unsupported("with do_rotary or a shared buffer of the past is not supported")
    heads = node.integer("num_heads")
    sizes = node.integers("qkv_hidden_sizes", ())
    if node.rank(0) != 3 or node.rank(1) != 2 or node.shape(1)[0] != node.shape(0)[2]:
        node.wrong(f"weights of shape {node.shape(1)} do not fit an input of shape {node.shape(0)}")
    columns = node.shape(1)[1]
    sizes = sizes or (columns // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != columns or min(sizes) < 1:
        node.wrong(f"{columns} columns of weights are not those of Q, K and V of sizes {sizes}")
    every = matmul(node, node.input(0), node.input(1))
    every = node.call("add", every, node.input(2)) if node.has(2) else every
    q, k, v = (
        split_heads(node, node.cut(every, 2, end - size, end), heads, what)
        for size, end, what in zip(sizes, accumulate(sizes), ("query", "key", "value"), strict=True)
    )
    if node.has(4):  # past keys and values in one tensor
        past, (batch, _, _, size) = node.shape(4), shape_of(k)
        fits = len(past) == 5 and node.has_shape((*past[:3], past[4]), (2, batch, heads, size))
        if shape_of(v) != shape_of(k) or not fits:
            node.wrong(f"expected a past of shape (2, {batch}, {heads}, ..., {size}), got {past}")
        old = [node.reshape(node.cut(node.input(4), 0, index, index + 1), past[1:]) for index in range(2)]
        if past[3] != 0:
            k, v = node.concatenate([old[0], k], 2), node.concatenate([old[1], v], 2)
    core = Attention(node, q, k, v)
    (result,) = _attended(node, core, _filled(node, 3, core), 5, None)
    results = [join_heads(node, result)]
    if node.wants(1):
        results.append(node.concatenate([node.reshape(part, (1, *shape_of(part))) for part in (k, v)], 0))
    return results


# GroupQueryAttention

_NOT_SUPPORTED = ("k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")  # inputs from index 12 on


@importer("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(node: Node) -> list[Expr]:
    for index, name in enumerate(_NOT_SUPPORTED, 12):
        if node.has(index):
            node.unsupported(f"with the input '{name}' is not supported")
    for name in ("k_quant_type", "v_quant_type"):
        if node.string(name, "NONE") != "NONE":
            node.unsupported(f"with {name} is not supported", "Keep keys and values as floating-point numbers")
    cache = _Cache(node)
    q, k, v = _groups(node)
    if node.flag("do_rotary"):
        q, k = cache.turned(q), cache.turned(k)
    k, v = cache.updated(k, 3, 1, "past_key"), cache.updated(v, 4, 2, "past_value")
    core = Attention(node, q, k, v)
    masks = Masks()
    window = node.integer("local_window_size", -1)
    if node.integer("causal", 1):
        core.window(masks, cache.offset, window - 1 if window > 0 else -1, 0)
    else:
        masks.lengths = cache.lengths
    if node.has(10):
        add_mask(core, masks, padded(node, node.input(10), core.keys))
    if node.has(11):
        masks.sink = node.cast(node.reshape(node.input(11), (core.heads,)), core.wide_dtype)
    elif node.flag("smooth_softmax"):  # 0 is the score of a virtual key without a value
        masks.sink = node.constant(np.zeros(core.heads), core.wide_dtype)
    result = core.attended(masks, node.real("scale", 0.0) or None, node.real("softcap", 0.0))
    return [join_heads(node, result), k, v]


def _groups(node: Node) -> tuple[Expr, Expr, Expr]:
    """Return queries, keys and values by heads, from one or three tensors."""
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    if node.rank(0) != 3 or heads < 1 or groups < 1:
        node.wrong(f"expected a query of 3 dimensions and numbers of heads, got {node.shape(0)}, {heads}, {groups}")
    if node.has(1) != node.has(2):
        node.wrong("key and value are given together")
    if node.has(1):
        if node.rank(1) != 3 or node.rank(2) != 3:
            node.wrong(f"expected key and value of 3 dimensions, got {node.shape(1)} and {node.shape(2)}")
        parts = [node.input(index) for index in range(3)]
    else:
        size = node.shape(0)[2] // (heads + 2 * groups)
        ends = (0, heads * size, (heads + groups) * size, node.shape(0)[2])
        parts = [node.cut(node.input(0), 2, begin, end) for begin, end in pairwise(ends)]
    q, k, v = (
        split_heads(node, part, count, what)
        for part, count, what in zip(parts, (heads, groups, groups), ("query", "key", "value"), strict=True)
    )
    return q, k, v


@dataclass(eq=False)
class _Cache:
    """Positions of new keys and values in the cache: after the past ones of each batch row."""

    node: Node

    def __post_init__(self) -> None:
        node = self.node
        if node.rank(0) != 3:
            node.wrong(f"expected a query of 3 dimensions, got {node.shape(0)}")
        self.batch, self.count = node.shape(0)[:2]
        self.capacity: Extent = node.shape(3)[2] if node.has(3) and node.rank(3) == 4 else 0
        self.lengths = node.call("add", per_batch(node, 5, self.batch, "seqlens_k"), 1)
        # prompts of a batch may be shorter than the longest
        self.begin = node.call("maximum", node.call("subtract", self.lengths, self.count), 0)
        self.offset: Expr | int = 0 if self.capacity == 0 else self.begin
        self.rotation: tuple[Expr, Expr] | None = None

    def turned(self, x: Expr) -> Expr:
        """Return queries or keys rotated by their positions."""
        node = self.node
        if self.rotation is None:
            ids = node.call("add", row(node, self.count, "int32"), node.reshape(self.begin, (self.batch, 1)))
            ids = node.cast(node.input(9), "int32") if node.has(9) else ids
            tables = [
                angles(node, node.input(index), ids, (self.batch, self.count), 2 * node.shape(index)[-1])
                for index in (7, 8)
            ]
            cos, sin = (node.reshape(found, (self.batch, 1, *shape_of(found)[1:])) for found in tables)
            self.rotation = cos, sin
        return turned(node, x, *self.rotation, interleaved=node.flag("rotary_interleaved"))

    def updated(self, new: Expr, index: int, output: int, what: str) -> Expr:
        """Return the past keys or values, input `index`, extended by the new ones."""
        node = self.node
        if self.capacity == 0:
            return new
        past, (batch, heads, _, size) = node.shape(index), shape_of(new)
        if not node.has_shape(past, (batch, heads, self.capacity, size)) or node.dtype(index) != dtype_of(new):
            node.wrong(
                f"expected {what} of shape ({batch}, {heads}, {self.capacity}, {size}), "
                f"got {node.dtype(index)} of shape {past}"
            )
        total, old = self._total(output), node.input(index)
        missing = bounds(self.count - total)
        if missing[0] > 0:
            node.wrong(f"expected at least {self.count} keys in all, which are the new ones; got {total}")
        if missing[1] > 0:
            fits = node.call("less_equal", node.constant(self.count, "int64"), total)
            node.require(fits, f"whether the keys of '{node.name}' include the new ones")
        if total != self.capacity:
            room = (batch, heads, total - self.capacity, size)
            cost.require("constants", 8 * prod(map(typical, room)), node.name)
            old = node.concatenate([old, node.filled(room, 0, dtype_of(new))], 2)
        return scattered(node, old, new, self.begin, 2)

    def _total(self, output: int) -> Extent:
        """Return the number of keys in the output: the capacity of the cache, or more if it grows."""
        node, capacity, what = self.node, self.capacity, "total_sequence_length"
        declared = node.declared[output] if output < len(node.declared) else None
        size = declared[2] if declared is not None and len(declared) == 4 else None
        if node.known(6) is not None or isinstance(capacity, Dim) or (size is not None and size < capacity):
            size = None
        if size != capacity:
            grown: Extent = maximum(capacity, node.extent(6, what, size))
            return grown
        node.require_declared(node.call("less_equal", node.input(6), capacity))
        return capacity
