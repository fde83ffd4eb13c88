"""Tables of numbers that depend on dimension sizes, and indices, axes and counts that are computed at run time.

Tables are constants if the sizes are static. numpy's operators and functions work on both kinds, as far as
`RunTable` supports them; `counted` creates the first table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from mlfc.frontend.onnx.node import Node, dtype_of, int64, shape_of
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, is_static

Numbers: TypeAlias = Any
"""An array or a `RunTable`; the types of numpy's functions do not include the latter."""

_OPERATORS: Mapping[np.ufunc, str] = {
    np.absolute: "abs", np.add: "add", np.bitwise_and: "logical_and", np.bitwise_or: "logical_or", np.ceil: "ceil",
    np.cos: "cos", np.divide: "divide", np.equal: "equal", np.floor: "floor", np.floor_divide: "floor_divide",
    np.greater_equal: "greater_equal", np.less: "less", np.multiply: "multiply", np.negative: "negative",
    np.remainder: "floor_mod", np.sin: "sin", np.subtract: "subtract",
}  # fmt: skip


class RunTable(NDArrayOperatorsMixin):
    """A table computed at run time. Numbers and arrays in an operation are converted to its dtype."""

    def __init__(self, node: Node, expr: Expr) -> None:
        self.node = node
        self.expr = expr

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Any:
        """Apply one of numpy's elementwise functions."""
        if ufunc not in _OPERATORS or method != "__call__":
            return NotImplemented
        return self._call(_OPERATORS[ufunc], *(_expr(self.node, item, dtype_of(self.expr)) for item in inputs))

    def __array_function__(
        self, function: Callable[..., Any], _types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Apply one of numpy's other functions."""
        return _FUNCTIONS[function](*args, **kwargs) if function in _FUNCTIONS else NotImplemented

    @property
    def shape(self) -> tuple[Any, ...]:
        """Dimension sizes of the table."""
        return shape_of(self.expr)

    def reshape(self, *shape: Extent) -> RunTable:
        """Return the table in another shape."""
        return RunTable(self.node, self.node.reshape(self.expr, shape))

    def transpose(self, *axes: int) -> RunTable:
        """Return the table with its axes in another order."""
        return RunTable(self.node, self.node.transpose(self.expr, axes))

    def astype(self, dtype: str) -> RunTable:
        """Return the table cast to another dtype."""
        return RunTable(self.node, self.node.cast(self.expr, dtype))

    def min(self, axis: int) -> RunTable:
        """Return the minimum along an axis."""
        return self._call("min", self.expr, axis=(axis,), keepdims=False)

    def sum(self, axis: int) -> RunTable:
        """Return the sum along an axis."""
        return self._call("sum", self.expr, axis=(axis,), keepdims=False)

    def any(self, axis: int) -> RunTable:
        """Return whether any element along an axis is true."""
        return self._call("any", self.expr, axis=(axis,), keepdims=False)

    def __getitem__(self, places: tuple[slice | None, ...]) -> RunTable:
        """Return the table with an axis of size 1 for each None in `places`; other items must be full slices."""
        rest = iter(self.shape)
        return self.reshape(*(1 if place is None else next(rest) for place in places))

    def _call(self, operator: str, *args: Expr, **attrs: Any) -> RunTable:
        return RunTable(self.node, self.node.call(operator, *args, **attrs))


def _expr(node: Node, value: Any, dtype: str) -> Expr:
    return value.expr if isinstance(value, RunTable) else node.constant(value, dtype)


def _exprs(values: Sequence[Any]) -> tuple[Node, list[Expr]]:
    """Return values as tensors of the dtype of the first table among them, and the node that owns it."""
    first = next(value for value in values if isinstance(value, RunTable))
    return first.node, [_expr(first.node, value, dtype_of(first.expr)) for value in values]


def _where(condition: Numbers, one: Any, other: Any) -> RunTable:
    node, exprs = _exprs((one, other))
    return RunTable(node, node.call("where", _expr(node, condition, "bool"), *exprs))


def _clip(numbers: RunTable, low: Any, high: Any) -> RunTable:
    node, (x, least, most) = _exprs((numbers, low, high))
    return RunTable(node, node.call("minimum", node.call("maximum", x, least), most))


def _stack(parts: Sequence[Numbers], axis: int) -> RunTable:
    node, exprs = _exprs(parts)
    return RunTable(node, node.concatenate([node.call("expand_dims", part, axis=axis) for part in exprs], axis))


_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., RunTable]] = {
    np.broadcast_to: lambda table, shape: RunTable(table.node, table.node.broadcast(table.expr, shape)),
    np.clip: _clip, np.stack: _stack, np.where: _where,
}  # fmt: skip


def counted(node: Node, *counts: Extent) -> list[Numbers]:
    """Return 0, 1, ... up to each count; all are constants, or all are computed at run time."""
    if is_static(counts):
        return [np.arange(count) for count in counts]  # type: ignore[arg-type]  # all are numbers
    numbers = (node.counted(count) if isinstance(count, Dim) else int64(node, np.arange(count)) for count in counts)
    return [RunTable(node, each) for each in numbers]


def places_of(node: Node, *shape: Extent) -> Any:
    """Return 0, 1, ... for all elements of a tensor in row-major order."""
    found, *others = counted(node, *shape)
    for steps in others:
        (count,), (extent,) = found.shape, steps.shape
        found = (found[:, None] * extent + steps[None, :]).reshape(count * extent)
    return found


def allow(node: Node, *extents: Extent, each: int) -> None:
    """Raise LimitError if constants of `each` bytes per element are too large for the size of the model file."""
    if is_static(extents):
        cost.require("constants", each * prod(extents), node.name)


def real(node: Node, value: Extent) -> Any:
    """Return a dimension size as a float64."""
    return RunTable(node, node.constant(value, "float64")) if isinstance(value, Dim) else float(value)


def as_expr(node: Node, table: Numbers, dtype: str) -> Expr:
    """Return a table as a tensor."""
    if isinstance(table, RunTable):
        return node.cast(table.expr, dtype)
    return node.constant(np.ascontiguousarray(table), dtype)


def placed(node: Node, x: Expr, axis: int, begin: Extent | RunTable, size: Extent, fill: Expr) -> Expr:
    """Return `size` elements of an axis from index `begin`, which may be negative; `fill` outside the tensor."""
    shape = shape_of(x)
    at = RunTable(node, node.counted(size)) + begin
    column = node.reshape(as_expr(node, (at >= 0) & (at < shape[axis]), "bool"), (size, *[1] * (len(shape) - 1 - axis)))
    return node.call("where", column, node.call("take", x, at.expr, axis=axis), fill)


def count_of(node: Node, flags: Expr) -> Expr:
    """Return the number of true flags."""
    return node.call("sum", node.cast(flags, "int64"), axis=(0,), keepdims=False)


def first_true(node: Node, flags: Expr, count: Extent) -> Expr:
    """Return the indices of the first `count` true flags in order; if there are fewer, the rest is unspecified."""
    if not isinstance(count, Dim):
        holds = node.cast(flags, "int8")
        return node.call("topk", holds, k=count, axis=0, ret_type="indices", is_ascend=False, dtype="int32")
    # each index is stored at the running count of true flags; false flags are stored in the extra last element
    number = node.call("subtract", node.call("cumsum", node.cast(flags, "int64"), axis=0), 1)
    target = node.call("minimum", node.call("where", flags, number, int64(node, count)), count)
    places, room = node.counted(shape_of(flags)[0]), node.filled((count + 1,), 0, "int64")
    return node.cut(node.call("scatter_elements", room, target, places, axis=0, reduction="update"), 0, 0, count)


def with_length(node: Node, what: str, length: int | None) -> Expr:
    """Return the integers of input 1 as a list; if its length is dynamic, require it to be `length` at run time."""
    size = prod(node.shape(1))
    values = node.reshape(node.input(1), (size,))
    if not isinstance(size, Dim):
        return values
    if length is None or length < 1:
        raise node.unknown(1, what)
    node.require(
        node.call("equal", int64(node, size), length), f"whether '{node.name}' has {length} numbers in '{what}'"
    )
    return node.call("take", values, within(node, node.counted(length), int64(node, size)), axis=0)


def named_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return a mask (axes, rank): whether an axis of the list is that dimension."""
    axes = wrapped(node, node.cast(node.reshape(axes, (prod(shape_of(axes)), 1)), "int64"), rank, low=False)
    return node.call("equal", axes, int64(node, np.arange(rank)))


def has_known_axes(node: Node) -> bool:
    """Return whether the axes of a node are an attribute, omitted, or an input with a known value."""
    return node.given("axes") or not node.has(1) or node.known_integers(1, "axes") is not None


def different_axes(node: Node, axes: Expr, rank: int) -> Expr:
    """Return a mask of the dimensions named by a list of axes; require the axes to be distinct at run time."""
    named = node.call("any", named_axes(node, axes, rank), axis=(0,), keepdims=False)
    count = prod(shape_of(axes))
    node.require(node.call("equal", count_of(node, named), count), f"whether '{node.name}' has {count} different axes")
    return named


def sizes_without(node: Node, named: Expr, count: int) -> Expr:
    """Return the sizes of the `count` dimensions of input 0 that are not in a mask."""
    if not count:
        return int64(node, np.zeros(0, np.int64))
    places = first_true(node, node.call("logical_not", named), count)
    return node.call("take", int64(node, node.shape(0)), places, axis=0)


def per_axis(node: Node, axes: Expr | None, count: Any) -> Callable[[Expr | None, int, Extent], Expr | None]:
    """Return a function of a list, an axis and a default that returns the list's element for the axis.

    It returns None for an axis that is known not to be among `axes`, and the default for an omitted list.
    """
    rank = node.rank(0)
    if axes is None and isinstance(count, Dim):
        axes = node.counted(count)
    known = np.arange(count) if axes is None else node.known(3)
    fixed = None if known is None else [node.axis(int(axis), rank) for axis in known.reshape(-1)]
    named = None if axes is None or fixed is not None else named_axes(node, axes, rank)

    def number(values: Expr | None, axis: int, default: Extent) -> Expr | None:
        if fixed is not None and axis not in fixed:
            return None
        if values is None:
            return int64(node, default)
        values = node.cast(values, "int64")
        if fixed is not None:
            index = fixed.index(axis)
            return node.reshape(node.cut(values, 0, index, index + 1), ())
        assert named is not None  # set unless `fixed` is
        column = node.reshape(node.cut(named, 1, axis, axis + 1), (count,))
        given = node.call("sum", node.call("where", column, values, int64(node, 0)), axis=(0,), keepdims=False)
        is_given = node.call("any", column, axis=(0,), keepdims=False)
        return node.call("where", is_given, given, int64(node, default))

    return number


def rounded_up(node: Node, dividend: Expr, divisor: Expr) -> Expr:
    """Return ``-(-dividend // divisor)``, the quotient rounded up."""
    return node.call("negative", node.call("floor_divide", node.call("negative", dividend), divisor))


def wrapped(node: Node, at: Expr, extent: Extent, *, low: bool = True) -> Expr:
    """Return indices with negative ones counted from the end, and clamped to 0 unless `low` is False."""
    at = node.call("where", node.call("less", at, 0), node.call("add", at, extent), at)
    return node.call("maximum", at, 0) if low else at


def clipped(node: Node, at: Expr, low: Expr | Extent, high: Expr | Extent) -> Expr:
    """Return indices clamped to `low` and then to `high`."""
    return node.call("minimum", node.call("maximum", at, low), high)


def within(node: Node, at: Expr, size: Expr) -> Expr:
    """Return indices clamped to the valid range of an axis."""
    return clipped(node, at, 0, node.call("subtract", size, 1))
