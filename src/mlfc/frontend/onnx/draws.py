"""Random operators. Every run draws new numbers: the model counts its runs in a state, from which they follow.

A node with a seed draws by that, one without by its place among the random nodes of the model. The same model gives
the same numbers from its first run on, and after a reset of its states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Expr
from mlfc.support import dtypes

# the second word of the key of nodes that have a seed
_SEEDED = 0xFFFFFFFF


def _drawn(node: Node, kind: str, shape: tuple[int, ...], dtype: str, **attrs: Any) -> Expr:
    """Return random numbers of a float dtype; halves are rounded from float32."""
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


def _limits(node: Node, *names: tuple[str, float]) -> dict[str, float]:
    found = {name: node.real(name, default) for name, default in names}
    if not all(np.isfinite(value) for value in found.values()):
        node.wrong(f"expected finite numbers, got {found}")
    return found


@importer("RandomUniform", "RandomUniformLike")
def _random_uniform(node: Node) -> Expr:
    shape, dtype = _shaped(node)
    return _drawn(node, "uniform", shape, dtype, **_limits(node, ("low", 0.0), ("high", 1.0)))


@importer("RandomNormal", "RandomNormalLike")
def _random_normal(node: Node) -> Expr:
    shape, dtype = _shaped(node)
    return _drawn(node, "normal", shape, dtype, **_limits(node, ("mean", 0.0), ("scale", 1.0)))


def _shaped(node: Node) -> tuple[tuple[int, ...], str]:
    if node.operator.endswith("Like"):
        return node.shape(0), _kind(node, node.dtype(0))
    shape = node.integers("shape")
    if any(extent < 0 for extent in shape):
        node.wrong(f"{shape} is not a shape")
    return shape, _kind(node, "float32")


@importer("Bernoulli")
def _bernoulli(node: Node) -> Expr:
    likely = node.input(0)
    drawn = _drawn(node, "uniform", shape_of(likely), "float64" if dtype_of(likely) == "float64" else "float32")
    return node.cast(node.call("less", drawn, node.cast(likely, dtype_of(drawn))), _kind(node, dtype_of(likely)))


@importer("Multinomial")
def _multinomial(node: Node) -> Expr:
    """Count the classes that a random share of the sum of probabilities is beyond."""
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
    return node.cast(node.call("minimum", found, node.constant(shape[1] - 1, "int32")), dtype)


def dropped(node: Node, ratio: Expr | None, training: Expr | None) -> list[Expr]:
    """Return what training drops: elements, the rest of them scaled, and a mask of those that stay.

    `training` says when the model runs whether anything is dropped; without it, something is.
    """
    x = node.input(0)
    wide = "float64" if dtype_of(x) == "float64" else "float32"
    share = node.constant(0.5, wide) if ratio is None else node.cast(node.reshape(ratio, ()), wide)
    mask = node.call("greater_equal", _drawn(node, "uniform", shape_of(x), wide), share)
    zero, one = node.constant(0.0, wide), node.constant(1.0, wide)
    # where all is dropped, the scale is not needed
    rest = node.call("subtract", one, share)
    scale = node.call("where", node.call("equal", rest, zero), zero, node.call("divide", one, rest))
    kept = node.cast(node.call("where", mask, node.call("multiply", node.cast(x, wide), scale), zero), dtype_of(x))
    if training is None:
        return [kept, mask]
    flag = node.cast(node.reshape(training, ()), "bool")
    return [node.call("where", flag, kept, x), node.call("logical_or", mask, node.call("logical_not", flag))]
