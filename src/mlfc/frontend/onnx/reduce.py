"""Reductions along axes, positions of extremes, running sums."""

from __future__ import annotations

from collections.abc import Callable

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.frontend.onnx.shape import axes_of
from mlfc.frontend.onnx.table import Convert, add_importer, importer
from mlfc.relay.ir import Expr


def reduced(node: Node, operator: str, x: Expr) -> Expr:
    """Return `x` reduced along the node's axes; on no axes at all it stays as it is."""
    axes = _axes(node, x)
    keep = bool(node.integer("keepdims", 1))
    return node.call(operator, x, axis=axes, keepdims=keep) if axes else x


def _axes(node: Node, x: Expr) -> tuple[int, ...]:
    """Return the axes to reduce, counted from the front; none where the tensor stays as it is."""
    rank = len(shape_of(x))
    given = axes_of(node)
    no_axes_is_all = not node.integer("noop_with_empty_axes", 0)
    if given:
        return tuple(sorted({node.axis(axis, rank) for axis in given}))
    return tuple(range(rank)) if no_axes_is_all else ()


def _plain(operator: str) -> Convert:
    return lambda node: reduced(node, operator, node.input(0))


def _of(before: Callable[[Node, Expr], Expr], after: str | None = None) -> Convert:
    """Return the importer of a sum of elements changed `before`; the sum is changed by `after`."""

    def convert(node: Node) -> Expr:
        total = reduced(node, "sum", before(node, node.input(0)))
        return node.call(after, total) if after else total

    return convert


def _squared(node: Node, x: Expr) -> Expr:
    return node.call("multiply", x, x)


def _magnitude(node: Node, x: Expr) -> Expr:
    return node.call("abs", x)


def _same(_: Node, x: Expr) -> Expr:
    return x


def _extreme(operator: str) -> Convert:
    def convert(node: Node) -> Expr:
        x = node.input(0)
        if dtype_of(x) == "bool":
            # the largest of truth values is whether any is true, the smallest whether all are
            return reduced(node, "any" if operator == "max" else "all", x)
        return reduced(node, operator, x)

    return convert


for _name, _convert in {
    "ReduceMax": _extreme("max"),
    "ReduceMin": _extreme("min"),
    "ReduceMean": _plain("mean"),
    "ReduceProd": _plain("prod"),
    "ReduceSum": _plain("sum"),
    "ReduceL1": _of(_magnitude),
    "ReduceL2": _of(_squared, "sqrt"),
    "ReduceSumSquare": _of(_squared),
    "ReduceLogSum": _of(_same, "log"),
}.items():
    add_importer(_name, _convert)


@importer("ReduceLogSumExp")
def _reduce_log_sum_exp(node: Node) -> Expr:
    """Take the largest element out of the sum, so that it does not overflow; an infinite one may stay in."""
    x = node.input(0)
    axes, keep = _axes(node, x), bool(node.integer("keepdims", 1))
    if not axes:
        return x
    largest = node.call("max", x, axis=axes, keepdims=True)
    largest = node.call("where", node.call("isinf", largest), node.call("zeros_like", largest), largest)
    total = node.call("sum", node.call("exp", node.call("subtract", x, largest)), axis=axes, keepdims=True)
    result = node.call("add", node.call("log", total), largest)
    if keep:
        return result
    return node.reshape(result, [extent for axis, extent in enumerate(shape_of(x)) if axis not in axes])


@importer("ArgMax")
def _arg_max(node: Node) -> Expr:
    return _position(node, "argmax")


@importer("ArgMin")
def _arg_min(node: Node) -> Expr:
    return _position(node, "argmin")


def _position(node: Node, operator: str) -> Expr:
    result = node.call(
        operator,
        node.input(0),
        axis=(node.axis(node.integer("axis", 0), node.rank(0)),),
        keepdims=bool(node.integer("keepdims", 1)),
        select_last_index=bool(node.integer("select_last_index", 0)),
    )
    return node.cast(result, "int64")


@importer("CumSum")
def _cum_sum(node: Node) -> Expr:
    return _running(node, "cumsum")


@importer("CumProd")
def _cum_prod(node: Node) -> Expr:
    return _running(node, "cumprod")


def _running(node: Node, operator: str) -> Expr:
    x = node.input(0)
    axis = node.axis(int(node.value(1, "axis").reshape(())), node.rank(0))
    backwards = bool(node.integer("reverse", 0))
    if backwards:
        x = node.call("reverse", x, axis=axis)
    x = node.call(operator, x, axis=axis, dtype=dtype_of(x), exclusive=bool(node.integer("exclusive", 0)))
    return node.call("reverse", x, axis=axis) if backwards else x
