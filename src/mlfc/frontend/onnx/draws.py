"""Random operators. Every run draws new numbers, which depend on a run counter that is a state of the model.

A node with a seed draws from that, others from their position among the random nodes of the model. The same model
yields the same numbers from its first run on, and again after a reset of its states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from mlfc.frontend.common import unique_name
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay import ir
from mlfc.relay.ir import Expr, TensorType, Tuple, Var
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes

# second word of the key of nodes with a seed
_SEEDED = 0xFFFFFFFF


class Runs:
    """Run counter of one model, and the number of nodes that read it."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        taken = {item.name for item in (*graph.input, *graph.output, *graph.initializer)}
        name = unique_name("random_runs", taken)
        self.number = Var(name, TensorType((1,), "int64"))
        self.next_name = unique_name(f"{name}_next", {*taken, name})
        self.readers = 0

    def draw(self) -> tuple[Expr, int]:
        """Return the run counter, and a number that is unique to the calling node."""
        self.readers += 1
        return self.number, self.readers

    def next_number(self, results: Sequence[Expr]) -> Expr | None:
        """Return the counter's next value, a state, if one of the results depends on the counter; else None."""
        if not self.readers or self.number not in post_order(Tuple(tuple(results))):
            return None
        return ir.call("add", [self.number, ir.const(1, "int64")])


def _drawn(node: Node, kind: str, shape: tuple[int, ...], dtype: str, **attrs: Any) -> Expr:
    """Return random numbers of a float dtype; 16-bit floats are rounded from float32."""
    if not dtypes.is_float(dtype):
        node.wrong(f"random numbers of {dtype} cannot be drawn")
    runs, number = node.draw()
    key = (number, 0)
    if node.given("seed"):
        seed = node.attribute("seed")
        if not isinstance(seed, (int, float)):
            node.wrong("attribute 'seed' must be a number")
        with np.errstate(over="ignore"):
            key = (int(np.float32(seed).view(np.uint32)), _SEEDED)
    wide = "float64" if dtype == "float64" else "float32"
    return node.cast(node.call(f"random.philox_{kind}", runs, shape=shape, dtype=wide, key=key, **attrs), dtype)


def _kind(node: Node, default: str) -> str:
    code = node.attribute("dtype")
    return default if code is None else dtype_name(code, node.name)


@importer("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def _random(node: Node) -> Expr:
    is_like, is_uniform = node.operator.endswith("Like"), "Uniform" in node.operator
    shape = node.shape(0) if is_like else node.integers("shape")
    if not is_like and any(extent < 0 for extent in shape):
        node.wrong(f"{shape} is not a shape")
    dtype = _kind(node, node.dtype(0) if is_like else "float32")
    names = ("low", "high") if is_uniform else ("mean", "scale")
    limits = {name: node.real(name, default) for name, default in zip(names, (0.0, 1.0), strict=True)}
    if not all(np.isfinite(value) for value in limits.values()):
        node.wrong(f"expected finite numbers, got {limits}")
    return _drawn(node, "uniform" if is_uniform else "normal", shape, dtype, **limits)


@importer("Bernoulli")
def _bernoulli(node: Node) -> Expr:
    likely = node.input(0)
    drawn = _drawn(node, "uniform", shape_of(likely), "float64" if dtype_of(likely) == "float64" else "float32")
    return node.cast(node.call("less", drawn, node.cast(likely, dtype_of(drawn))), _kind(node, dtype_of(likely)))


@importer("Multinomial")
def _multinomial(node: Node) -> Expr:
    """Sample by inverse transform: count the cumulative probabilities that do not exceed a uniform random number."""
    shape, count, dtype = node.shape(0), node.integer("sample_size", 1), _kind(node, "int32")
    if len(shape) != 2 or 0 in shape or count < 1 or not dtypes.is_integer(dtype):
        node.wrong(f"{count} samples of {dtype} cannot be drawn by logarithms of shape {shape}")
    wide = "float64" if node.dtype(0) == "float64" else "float32"
    likely = node.call("nn.softmax", node.cast(node.input(0), wide), axis=1)
    sums = node.reshape(node.call("cumsum", likely, axis=1), (shape[0], 1, shape[1]))
    whole = node.cut(sums, 2, shape[1] - 1, shape[1])
    drawn = node.call("multiply", _drawn(node, "uniform", (shape[0], count, 1), wide), whole)
    beyond = node.cast(node.call("less_equal", sums, drawn), "int32")
    found = node.call("sum", beyond, axis=(2,), keepdims=False)
    return node.cast(node.call("minimum", found, shape[1] - 1), dtype)


def dropped(node: Node, ratio: Expr | None, training: Expr | None) -> list[Expr]:
    """Return the result of dropout, elements dropped and the rest scaled, and the mask of kept elements.

    `training` is a runtime flag that enables dropout; without it, dropout is always applied.
    """
    x = node.input(0)
    wide = "float64" if dtype_of(x) == "float64" else "float32"
    share = node.constant(0.5, wide) if ratio is None else node.cast(node.reshape(ratio, ()), wide)
    mask = node.call("greater_equal", _drawn(node, "uniform", shape_of(x), wide), share)
    # if all elements are dropped, the scale is unused
    rest = node.call("subtract", 1.0, share)
    scale = node.call("where", node.call("equal", rest, 0.0), 0.0, node.call("divide", 1.0, rest))
    kept = node.cast(node.call("where", mask, node.call("multiply", node.cast(x, wide), scale), 0.0), dtype_of(x))
    if training is None:
        return [kept, mask]
    flag = node.cast(node.reshape(training, ()), "bool")
    return [node.call("where", flag, kept, x), node.call("logical_or", mask, node.call("logical_not", flag))]
