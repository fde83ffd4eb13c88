"""Sequence operators of language models other than attention: positions, caches, gates and linear attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from mlfc.frontend.control import Loop, looped, stacked
from mlfc.frontend.onnx.attention import join_heads, per_batch, split_heads
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of, wide
from mlfc.frontend.onnx.table import MICROSOFT, importer
from mlfc.relay.ir import Constant, Expr
from mlfc.support.dims import Dim, Extent, bounds

# linear attention is unrolled up to this number of steps, unless the number is dynamic
_STEP_LIMIT = 64
_RULES = ("linear", "gated", "delta", "gated_delta")


@importer("RotaryEmbedding", domain=MICROSOFT, ignores=("scale",))
@importer("RotaryEmbedding", since=23)
def _rotary_embedding(node: Node) -> Expr:
    """Return input 0 rotated, in its own layout: by heads, or flat with the heads in the last axis."""
    x, shape, is_microsoft = node.input(0), node.shape(0), node.operator.startswith(MICROSOFT)
    if is_microsoft and node.integer("is_packed_batching", 0):
        node.unsupported("with is_packed_batching is not supported")
    cos, sin = (node.input(index + is_microsoft) for index in (1, 2))
    if len(shape) not in (3, 4) or 0 in shape:
        node.wrong(f"expected a tensor of 3 or 4 dimensions that is not empty, got {shape}")
    batch, count = shape[0], shape[-2]
    ids = node.input(1) if is_microsoft else node.optional(3)
    if is_microsoft and node.shape(1) in ((), (1,)):  # the position of the first token of the sequence
        steps = row(node, count, node.dtype(1))
        ids = node.broadcast(node.call("add", steps, node.reshape(node.input(1), (1, 1))), (batch, count))
    heads, width = node.integer("num_heads", 0), node.integer("rotary_embedding_dim", 0)
    if len(shape) == 4:
        wanted = (batch, 1, count)
    else:
        if not heads and (width or node.opset >= 23):
            node.wrong("the attribute num_heads is required for a tensor of 3 dimensions")
        # ONNX Runtime's operator derives the number of heads from the width of the tables
        heads = heads or shape[2] // max(1, 2 * shape_of(cos)[-1])
        if heads < 1 or shape[2] % heads:
            node.wrong(f"a tensor of shape {shape} has no {heads} heads of equal size")
        x = node.reshape(x, (batch, count, heads, shape[2] // heads))
        wanted = (batch, count, 1)
    width = width or shape_of(x)[3]
    tables = [angles(node, table, ids, (batch, count), width) for table in (cos, sin)]
    cos, sin = (node.reshape(table, (*wanted, width // 2)) for table in tables)
    return node.reshape(turned(node, x, cos, sin, interleaved=node.flag("interleaved")), shape)


def angles(node: Node, table: Expr, ids: Expr | None, steps: tuple[int, int], width: int) -> Expr:
    """Return the cosines or sines at each of (batch, count) steps, one for each pair of elements."""
    rank = 3 if ids is None else 2
    size = shape_of(table)[-1] if shape_of(table) else 0
    if len(shape_of(table)) != rank or not node.has_shape((width,), (2 * size,)):
        node.wrong(f"expected tables of {rank} dimensions with {width} / 2 columns, got {shape_of(table)}")
    if ids is not None and not node.has_shape(shape_of(ids), steps):
        node.wrong(f"expected position ids of shape {steps}, got {shape_of(ids)}")
    found = table if ids is None else node.call("take", table, ids, axis=0)
    if not node.has_shape(shape_of(found), (*steps, size)):
        node.wrong(f"expected tables of shape {(*steps, size)}, got {shape_of(found)}")
    return found


def turned(node: Node, x: Expr, cos: Expr, sin: Expr, *, interleaved: bool) -> Expr:
    """Return `x` with the first pairs of elements of its last axis rotated, one pair per angle."""
    shape = shape_of(x)
    half = shape_of(cos)[-1]
    if 2 * half > shape[-1]:
        node.wrong(f"{2 * half} elements cannot be rotated in heads of {shape[-1]}")
    rotated = node.cut(x, 3, 0, 2 * half)
    if interleaved:
        pairs = node.reshape(rotated, (*shape[:-1], half, 2))
        first, second = (node.reshape(node.cut(pairs, 4, at, at + 1), (*shape[:-1], half)) for at in range(2))
    else:
        first, second = node.cut(rotated, 3, 0, half), node.cut(rotated, 3, half, 2 * half)
    real = node.call("subtract", node.call("multiply", cos, first), node.call("multiply", sin, second))
    imaginary = node.call("add", node.call("multiply", sin, first), node.call("multiply", cos, second))
    if interleaved:
        columns = [node.reshape(part, (*shape[:-1], half, 1)) for part in (real, imaginary)]
        parts = [node.reshape(node.concatenate(columns, 4), (*shape[:-1], 2 * half))]
    else:
        parts = [real, imaginary]
    if 2 * half < shape[-1]:
        parts.append(node.cut(x, 3, 2 * half, shape[-1]))
    return node.concatenate(parts, 3)


@importer("SwiGLU")
def _swiglu(node: Node) -> Expr:
    a, b = node.input(0), node.input(1)
    if not node.has_shape(shape_of(a), shape_of(b)):
        node.wrong(f"expected tensors of one shape, got {shape_of(a)} and {shape_of(b)}")
    alpha = node.real("alpha", 1.0)
    argument = a if alpha == 1.0 else node.call("multiply", a, alpha)
    return node.call("multiply", node.call("multiply", a, node.call("sigmoid", argument)), b)


@importer("TensorScatter")
def _tensor_scatter(node: Node) -> Expr:
    past, update, shape = node.input(0), node.input(1), node.shape(0)
    axis = node.axis(node.integer("axis", -2), len(shape))
    mode = node.string("mode", "linear")
    if mode not in ("linear", "circular"):
        node.wrong(f"expected the mode linear or circular, got '{mode}'")
    count = shape_of(update)[axis] if len(shape_of(update)) == len(shape) else 0
    rest = (*shape[:axis], count, *shape[axis + 1 :])
    if axis == 0 or not node.has_shape(shape_of(update), rest) or not 0 < count <= shape[axis]:
        node.wrong(f"an update of shape {shape_of(update)} does not fit a cache of shape {shape}, axis {axis}")
    first = node.filled((shape[0], 1, 1, 1), 0, "int32")
    begin = per_batch(node, 2, shape[0], "write_indices") if node.has(2) else first
    return scattered(node, past, update, begin, axis, circular=mode == "circular")


def row(node: Node, count: Extent, dtype: str) -> Expr:
    """Return 0, 1, ... as a tensor of shape (1, `count`)."""
    numbers = node.counted(count, dtype)
    if isinstance(numbers, Constant):
        return node.constant(numbers.data.reshape(1, -1), dtype)
    return node.reshape(numbers, (1, count))


def scattered(node: Node, past: Expr, update: Expr, begin: Expr, axis: int, *, circular: bool = False) -> Expr:
    """Return a cache with an update written along `axis` from `begin` on, int32 of shape (batch, 1, 1, 1)."""
    # elements are selected rather than stored at their indices, so that the result can share the memory of the cache
    shape, count = shape_of(past), shape_of(update)[axis]
    extent, batch = shape[axis], shape[0]
    at = node.call("subtract", row(node, extent, "int32"), node.reshape(begin, (batch, 1)))
    if circular:
        at = node.call("floor_mod", at, extent)
    aligned = [batch, *(extent if index == axis else 1 for index in range(1, len(shape)))]
    inside = node.call("less", at, count)
    if not circular:
        inside = node.call("logical_and", inside, node.call("greater_equal", at, 0))
    picked = update
    if bounds(count)[1] > 1:
        # rows outside the update are clamped to it, and then not selected
        turn = (0, axis, *(index for index in range(1, len(shape)) if index != axis))
        picked = node.call("take", node.transpose(update, turn), at, axis=1, batch_dims=1)
        picked = node.transpose(picked, [turn.index(index) for index in range(len(shape))])
    return node.call("where", node.reshape(inside, aligned), picked, past)


@importer("CausalConvWithState")
def _causal_conv(node: Node) -> list[Expr]:
    x, weight, shape = node.input(0), node.input(1), node.shape(0)
    activation = node.string("activation", "none")
    if activation not in ("none", "silu", "swish"):
        node.wrong(f"expected the activation none, silu or swish, got '{activation}'")
    is_known = len(shape) == 3 and 0 not in shape and len(shape_of(weight)) == 3
    if not is_known or not node.has_shape(shape_of(weight)[:2], (shape[1], 1)):
        node.wrong(f"weights of shape {shape_of(weight)} do not fit channels of shape {shape}")
    batch, channels, length = shape
    taps = shape_of(weight)[2]
    past = node.input(3) if node.has(3) else node.filled((batch, channels, taps - 1), 0, dtype_of(x))
    if not node.has_shape(shape_of(past), (batch, channels, taps - 1)):
        node.wrong(f"expected a state of shape {(batch, channels, taps - 1)}, got {shape_of(past)}")
    whole = node.concatenate([past, x], 2) if taps > 1 else x
    image, kernel = (node.call("expand_dims", part, axis=2) for part in (whole, weight))
    result = node.call(
        "nn.conv2d", image, kernel, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=channels,
        channels=channels, kernel_size=(1, taps), data_layout="NCHW", kernel_layout="OIHW",
    )  # fmt: skip
    if node.has(2):
        result = node.call("nn.bias_add", result, node.input(2), axis=1)
    result = node.reshape(result, shape)
    if activation != "none":
        result = node.call("multiply", result, node.call("sigmoid", result))
    return [result, node.cut(whole, 2, length, length + taps - 1) if taps > 1 else past]


@importer("LinearAttention")
def _linear_attention(node: Node) -> list[Expr]:
    """Compute the recurrence step by step, each a few operators on the whole state: in a loop, or unrolled."""
    node.attribute("chunk_size")  # a hint
    rule = node.string("update_rule", "gated_delta")
    if rule not in _RULES:
        node.wrong(f"expected update_rule {', '.join(_RULES)}, got '{rule}'")
    steps = _Steps(node)
    gated, corrected = "gated" in rule, "delta" in rule
    for index, name, wanted in ((4, "decay", gated), (5, "beta", corrected)):
        if node.has(index) != wanted:
            node.wrong(f"update_rule '{rule}' {'requires' if wanted else 'forbids'} the input '{name}'")
    decay, beta = (steps.decay() if gated else None), (steps.beta() if corrected else None)

    def step(state: Expr, index: int | Expr) -> tuple[Expr, Expr]:
        """Return the next state and the result of the step's queries."""
        key, value = steps.column(steps.k, index), steps.row(steps.v, index)
        if decay is not None:
            state = node.call("multiply", state, steps.column(decay, index))
        if beta is not None:
            seen = node.call("sum", node.call("multiply", state, key), axis=(2,), keepdims=True)
            value = node.call("multiply", steps.row(beta, index), node.call("subtract", value, seen))
        state = node.call("add", state, node.call("multiply", key, value))
        return state, steps.read(state, index)

    if steps.is_long:
        state, result = steps.looped(step, [part for part in (decay, beta) if part is not None])
    else:
        state, rows = steps.initial(), []
        for index in range(steps.count):
            state, row = step(state, index)
            rows.append(row)
        result = node.concatenate(rows, 2)
    state = node.cast(state, node.dtype(3) if node.has(3) else node.dtype(0))
    return [join_heads(node, node.cast(result, node.dtype(0))), state]


class _Steps:
    """Inputs of linear attention by heads, and their slices per step; the state is float32 for 16-bit floats."""

    def __init__(self, node: Node) -> None:
        self.node = node
        shapes = [node.shape(index) for index in range(3)]
        if any(len(shape) != 3 or 0 in shape or not node.has_shape(shape[:2], shapes[0][:2]) for shape in shapes):
            node.wrong(f"expected query, key and value (batch, steps, ...), got {', '.join(map(str, shapes))}")
        self.batch, self.count = shapes[0][:2]
        queries, self.groups = node.integer("q_num_heads"), node.integer("kv_num_heads")
        if self.groups < 1 or queries < 1 or queries % self.groups:
            node.wrong(f"q_num_heads {queries} must be a multiple of kv_num_heads {self.groups}")
        self.is_long = isinstance(self.count, Dim) or self.count > _STEP_LIMIT
        if self.is_long and node.dynamic is None:
            node.unsupported(f"of {self.count} steps is not supported", f"Run at most {_STEP_LIMIT} steps at once")
        heads = zip(range(3), ("query", "key", "value"), (queries, self.groups, self.groups), strict=True)
        self.q, self.k, self.v = (
            wide(node, split_heads(node, node.input(index), count, name)) for index, name, count in heads
        )
        self.shared = queries // self.groups
        self.size, self.width = shape_of(self.k)[3], shape_of(self.v)[3]
        if not node.has_shape(shape_of(self.q)[3:], (self.size,)):
            node.wrong(f"query and key of shapes {shapes[0]} and {shapes[1]} have heads of different sizes")
        self.scale = node.real("scale", 0.0) or 1 / sqrt(self.size)

    def initial(self) -> Expr:
        """Return the initial state, (batch, heads, size, width)."""
        node, shape = self.node, (self.batch, self.groups, self.size, self.width)
        if not node.has(3):
            return node.filled(shape, 0, dtype_of(self.q))
        if not node.has_shape(node.shape(3), shape):
            node.wrong(f"expected past_state of shape {shape}, got {node.shape(3)}")
        return node.cast(node.input(3), dtype_of(self.q))

    def looped(self, step: Callable[[Expr, Expr], tuple[Expr, Expr]], others: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Return the final state, and the results of all steps, (batch, heads, steps, width), computed by a loop."""
        node, dynamic = self.node, self.node.dynamic
        assert dynamic is not None  # otherwise long recurrences are refused

        def turn(number: Expr, _go: Expr, states: list[Expr]) -> tuple[Expr | None, list[Expr], list[Expr]]:
            state, row = step(states[0], number)
            return None, [state], [row]

        outer = {part for part in (self.q, self.k, self.v, *others) if not isinstance(part, Constant)}
        limit = node.constant(self.count, "int64")
        (state,), (rows,), _ = looped(dynamic, Loop(node.name, [self.initial()], None, limit, turn, outer))
        found = stacked(dynamic, rows, self.count, node.name)
        shape = shape_of(found)  # steps, batch, heads, 1, width
        return state, node.transpose(node.reshape(found, (*shape[:3], shape[4])), (1, 2, 0, 3))

    def decay(self) -> Expr:
        """Return the decay factors of all steps, (batch, heads, steps, size or 1)."""
        node, shape = self.node, self.node.shape(4)
        self._check_of_steps(shape, "decay", [self.groups * size for size in (1, self.size)])
        return node.call("exp", wide(node, split_heads(node, node.input(4), self.groups, "decay")))

    def beta(self) -> Expr:
        """Return the update rates of all steps, (batch, heads or 1, steps, 1)."""
        node, shape = self.node, self.node.shape(5)
        self._check_of_steps(shape, "beta", [1, self.groups])
        return wide(node, split_heads(node, node.input(5), shape[2], "beta"))

    def _check_of_steps(self, shape: Sequence[Extent], what: str, widths: Sequence[int]) -> None:
        if len(shape) != 3 or shape[2] not in widths or not self.node.has_shape(shape[:2], (self.batch, self.count)):
            self.node.wrong(f"{what} of shape {shape} does not fit {self.groups} heads of {self.size}")

    def row(self, part: Expr, index: int | Expr) -> Expr:
        """Return one step of a tensor by heads, (batch, heads, 1, size)."""
        if isinstance(index, int):
            return self.node.cut(part, 2, index, index + 1)
        return self.node.call("expand_dims", self.node.call("take", part, index, axis=2), axis=2)

    def column(self, part: Expr, index: int | Expr) -> Expr:
        """Return one step of a tensor by heads, (batch, heads, size, 1)."""
        batch, heads, _, size = shape_of(part)
        return self.node.reshape(self.row(part, index), (batch, heads, size, 1))

    def read(self, state: Expr, index: int | Expr) -> Expr:
        """Return the result of a step's queries on the state, (batch, heads, 1, width)."""
        node = self.node
        query = node.call("multiply", self.row(self.q, index), self.scale)
        query = node.reshape(query, (self.batch * self.groups, self.shared, self.size))
        stack = node.reshape(state, (self.batch * self.groups, self.size, self.width))
        found = node.call("nn.batch_matmul", query, stack, transpose_a=False, transpose_b=False)
        return node.reshape(found, (self.batch, self.groups * self.shared, 1, self.width))
