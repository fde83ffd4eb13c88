"""Tables of numbers that follow from dimension sizes: constants where these are static, else computed at run time.

numpy's operators and functions work on both, as far as `RunTable` supports them; `counted` makes the first table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, is_static

Numbers: TypeAlias = Any
"""An array, or a `RunTable`, which the types of numpy's functions do not include."""

_OPERATORS: Mapping[np.ufunc, str] = {
    np.absolute: "abs", np.add: "add", np.bitwise_and: "logical_and", np.bitwise_or: "logical_or", np.ceil: "ceil",
    np.cos: "cos", np.divide: "divide", np.equal: "equal", np.floor: "floor", np.floor_divide: "floor_divide",
    np.greater_equal: "greater_equal", np.less: "less", np.multiply: "multiply", np.negative: "negative",
    np.remainder: "floor_mod", np.sin: "sin", np.subtract: "subtract",
}  # fmt: skip


class RunTable(NDArrayOperatorsMixin):
    """A table that is computed at run time. Numbers and arrays in an operation take its dtype."""

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
        """Its dimension sizes."""
        return shape_of(self.expr)

    def reshape(self, *shape: Extent) -> RunTable:
        """Return the same numbers in another shape."""
        return RunTable(self.node, self.node.reshape(self.expr, shape))

    def transpose(self, *axes: int) -> RunTable:
        """Return the table with its axes in another order."""
        return RunTable(self.node, self.node.transpose(self.expr, axes))

    def astype(self, dtype: str) -> RunTable:
        """Return the numbers in another dtype."""
        return RunTable(self.node, self.node.cast(self.expr, dtype))

    def min(self, axis: int) -> RunTable:
        """Return the smallest numbers along an axis."""
        return self._call("min", self.expr, axis=(axis,), keepdims=False)

    def sum(self, axis: int) -> RunTable:
        """Return the sums along an axis."""
        return self._call("sum", self.expr, axis=(axis,), keepdims=False)

    def any(self, axis: int) -> RunTable:
        """Return whether any element along an axis is true."""
        return self._call("any", self.expr, axis=(axis,), keepdims=False)

    def __getitem__(self, places: tuple[slice | None, ...]) -> RunTable:
        """Return the table with axes of one element where `places` has None; it has the whole of all others."""
        rest = iter(self.shape)
        return self.reshape(*(1 if place is None else next(rest) for place in places))

    def _call(self, operator: str, *args: Expr, **attrs: Any) -> RunTable:
        return RunTable(self.node, self.node.call(operator, *args, **attrs))


def _expr(node: Node, value: Any, dtype: str) -> Expr:
    return value.expr if isinstance(value, RunTable) else node.constant(value, dtype)


def _exprs(values: Sequence[Any]) -> tuple[Node, list[Expr]]:
    """Return values as tensors of the dtype of the first table among them, and the node that computes them."""
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


def _broadcast_to(table: RunTable, shape: Sequence[Extent]) -> RunTable:
    return RunTable(table.node, table.node.broadcast(table.expr, shape))


_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., RunTable]] = {
    np.broadcast_to: _broadcast_to, np.clip: _clip, np.stack: _stack, np.where: _where,
}  # fmt: skip


def counted(node: Node, *counts: Extent) -> list[Numbers]:
    """Return 0, 1, ... for each of some extents, all of them constants or all computed by the run."""
    if is_static(counts):
        return [np.arange(count) for count in counts]  # type: ignore[arg-type]  # all are numbers
    return [RunTable(node, _numbers(node, count)) for count in counts]


def _numbers(node: Node, count: Extent) -> Expr:
    return node.counted(count) if isinstance(count, Dim) else node.constant(np.arange(count), "int64")


def places_of(node: Node, *shape: Extent) -> Any:
    """Return 0, 1, ... for all elements of a tensor, the last axis first."""
    found, *others = counted(node, *shape)
    for steps in others:
        (count,), (extent,) = found.shape, steps.shape
        found = (found[:, None] * extent + steps[None, :]).reshape(count * extent)
    return found


def allow(node: Node, *extents: Extent, each: int) -> None:
    """Raise LimitError if constants of `each` bytes for all elements are too many for the file that states them."""
    if is_static(extents):
        cost.require("constants", each * prod(extents), node.name)


def real(node: Node, value: Extent) -> Any:
    """Return an extent as a number of float64."""
    return RunTable(node, node.constant(value, "float64")) if isinstance(value, Dim) else float(value)


def as_expr(node: Node, table: Numbers, dtype: str) -> Expr:
    """Return a table as a tensor."""
    if isinstance(table, RunTable):
        return node.cast(table.expr, dtype)
    return node.constant(np.ascontiguousarray(table), dtype)


def placed(node: Node, x: Expr, axis: int, begin: Extent | RunTable, size: Extent, fill: Expr) -> Expr:
    """Return `size` elements of an axis from position `begin`, which may be negative; `fill` outside the tensor."""
    shape = shape_of(x)
    at = RunTable(node, node.counted(size)) + begin
    column = node.reshape(as_expr(node, (at >= 0) & (at < shape[axis]), "bool"), (size, *[1] * (len(shape) - 1 - axis)))
    return node.call("where", column, node.call("take", x, at.expr, axis=axis), fill)
