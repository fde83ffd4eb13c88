"""Pooling. One spatial dimension is computed as two with a first extent of 1."""

from __future__ import annotations

from typing import Any

from mlfc.frontend.onnx.conv import as_image
from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.table import importer
from mlfc.frontend.onnx.window import WindowAttributes, window
from mlfc.relay.ir import Expr


@importer("MaxPool", ignores=("storage_order",))
def _max_pool(node: Node) -> Expr:
    if node.wants(1):
        node.unsupported("with the output Indices is not supported")
    return _pooled(node, node.input(0), "max", pool_window(node))


@importer("AveragePool")
def _average_pool(node: Node) -> Expr:
    return average_pool(node, node.input(0))


def average_pool(node: Node, x: Expr) -> Expr:
    """Return the average pool of `x` that the attributes of the node describe."""
    shape = pool_window(node)
    counted = node.integer("count_include_pad", 0) != 0
    if counted and any(shape.overhang):
        # padding counts, what hangs over it does not: so the padding becomes part of the input
        widths = ((0, 0), (0, 0), *zip(shape.begin, shape.end, strict=True))
        x = node.call("nn.pad", x, node.like(0.0, x), pad_width=widths, pad_mode="constant")
        none = (0,) * len(shape.begin)
        shape = WindowAttributes(shape.kernel, shape.strides, shape.dilations, none, none, shape.overhang, shape.out)
        counted = False
    return _pooled(node, x, "avg", shape, count_include_pad=counted)


def pool_window(node: Node) -> WindowAttributes:
    """Return the window of a pool over input 0; refuse unsupported ranks."""
    if node.rank(0) not in (3, 4, 5):
        node.unsupported(
            f"of a tensor of {node.rank(0)} dimensions is not supported",
            "Pools over one, two and three spatial dimensions are supported",
        )
    shape = window(node, node.shape(0)[2:])
    if any(out < 1 for out in shape.out):
        node.wrong(f"the kernel {shape.kernel} does not fit into the input")
    return shape


def _pooled(node: Node, x: Expr, kind: str, shape: WindowAttributes, **attributes: Any) -> Expr:
    image = shape.as_image()
    rank = len(image.kernel)
    result = node.call(
        f"nn.{kind}_pool{rank}d",
        as_image(node, x),
        pool_size=image.kernel,
        strides=image.strides,
        dilation=image.dilations,
        padding=image.padding,
        layout="NC" + "DHW"[-rank:],
        **attributes,
    )
    return node.reshape(result, (*shape_of(result)[:2], *shape.out))


@importer("GlobalAveragePool")
def _global_average_pool(node: Node) -> Expr:
    return global_pool(node, node.input(0), "nn.global_avg_pool2d", "mean")


@importer("GlobalMaxPool")
def _global_max_pool(node: Node) -> Expr:
    return global_pool(node, node.input(0), "nn.global_max_pool2d", "max")


def global_pool(node: Node, x: Expr, operator: str, reduction: str) -> Expr:
    """Return `x` pooled over all its spatial dimensions, each of which keeps the extent 1."""
    rank = len(shape_of(x))
    if rank == 4:
        return node.call(operator, x, layout="NCHW")
    return node.call(reduction, x, axis=tuple(range(2, rank)), keepdims=True)


@importer("LpPool")
def _lp_pool(node: Node) -> Expr:
    power = node.integer("p", 2)
    x = node.input(0)
    shape = pool_window(node)
    size = 1
    for taps in shape.kernel:
        size *= taps
    magnitude = node.call("abs", x)
    raised = magnitude if power == 1 else node.call("power", magnitude, node.like(power, x))
    total = node.call("multiply", _pooled(node, raised, "avg", shape, count_include_pad=True), node.like(size, x))
    return total if power == 1 else node.call("power", total, node.constant(1.0 / power, dtype_of(x)))
