"""Tables of numbers that follow from extents: constants where these are known, else computed by the run.

What is written of numpy's operators and of the functions here holds for both: `counted` begins one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.frontend.onnx.node import Node, dtype_of, shape_of
from mlfc.relay.ir import Expr
from mlfc.support import cost
from mlfc.support.dims import Dim, Extent, is_static

Numbers: TypeAlias = "npt.NDArray[Any] | RunTable"


def _operator(name: str) -> Callable[[RunTable, Any], RunTable]:
    def apply(table: RunTable, other: Any) -> RunTable:
        return table._with(name, other)

    return apply


class RunTable:
    """A table that the run computes."""

    __array_ufunc__ = None  # numpy's arrays leave operators to this class

    def __init__(self, node: Node, expr: Expr) -> None:
        self.node = node
        self.expr = expr

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its extents."""
        return shape_of(self.expr)

    def reshape(self, *shape: Extent) -> RunTable:
        """Return the same numbers in another shape, of which every extent is given."""
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
        """Return whether any along an axis holds."""
        return self._call("any", self.expr, axis=(axis,), keepdims=False)

    def __getitem__(self, places: tuple[slice | None, ...]) -> RunTable:
        """Return the table with axes of one element where `places` has None; it has the whole of all others."""
        rest = iter(self.shape)
        return self.reshape(*(1 if place is None else next(rest) for place in places))

    __add__ = __radd__ = _operator("add")
    __sub__ = _operator("subtract")
    __mul__ = __rmul__ = _operator("multiply")
    __truediv__ = _operator("divide")
    __floordiv__ = _operator("floor_divide")
    __mod__ = _operator("floor_mod")
    __and__ = __rand__ = _operator("logical_and")
    __or__ = _operator("logical_or")
    __lt__ = _operator("less")
    __ge__ = _operator("greater_equal")
    equals = _operator("equal")

    def __rtruediv__(self, other: Any) -> RunTable:
        return RunTable(self.node, _expr(self.node, other, dtype_of(self.expr)))._with("divide", self)

    def __neg__(self) -> RunTable:
        return self._call("negative", self.expr)

    def _call(self, operator: str, *args: Expr, **attrs: Any) -> RunTable:
        return RunTable(self.node, self.node.call(operator, *args, **attrs))

    def _with(self, operator: str, other: Any) -> RunTable:
        return self._call(operator, self.expr, _expr(self.node, other, dtype_of(self.expr)))


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


def cos(angles: Numbers) -> Any:
    """Return cosines."""
    return angles._call("cos", angles.expr) if isinstance(angles, RunTable) else np.cos(angles)


def sin(angles: Numbers) -> Any:
    """Return sines."""
    return angles._call("sin", angles.expr) if isinstance(angles, RunTable) else np.sin(angles)


def applied(function: str, numbers: Numbers) -> Any:
    """Return ``abs``, ``ceil`` or ``floor`` of numbers."""
    return numbers._call(function, numbers.expr) if isinstance(numbers, RunTable) else getattr(np, function)(numbers)


def limited(numbers: Numbers, low: Any, high: Any) -> Any:
    """Return numbers limited to a range."""
    if not isinstance(numbers, RunTable):
        return np.clip(numbers, low, high)
    return numbers._with("maximum", low)._with("minimum", high)


def where(holds: Numbers, one: Any, other: Any) -> Any:
    """Return `one` where something holds, else `other`; one of them is a table."""
    if not isinstance(holds, RunTable):
        return np.where(holds, one, other)
    dtype = next(dtype_of(item.expr) for item in (one, other) if isinstance(item, RunTable))
    node = holds.node
    return holds._call("where", holds.expr, _expr(node, one, dtype), _expr(node, other, dtype))


def equal(one: Numbers, other: Any) -> Any:
    """Return where two tables have the same numbers."""
    return one.equals(other) if isinstance(one, RunTable) else one == other


def stacked(parts: Sequence[Numbers], axis: int) -> Any:
    """Return tables of one shape along a new axis, which is not negative."""
    first = parts[0]
    if not isinstance(first, RunTable):
        return np.stack(parts, axis)  # type: ignore[arg-type]  # all are arrays
    node = first.node
    exprs = [node.call("expand_dims", _expr(node, part, dtype_of(first.expr)), axis=axis) for part in parts]
    return RunTable(node, node.concatenate(exprs, axis))


def broadcast(table: Numbers, shape: Sequence[Extent]) -> Any:
    """Return a table broadcast to a shape."""
    if isinstance(table, RunTable):
        return RunTable(table.node, table.node.broadcast(table.expr, shape))
    return np.broadcast_to(table, tuple(shape))  # type: ignore[arg-type]  # numbers, as those of the table


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


def _expr(node: Node, value: Any, dtype: str) -> Expr:
    return value.expr if isinstance(value, RunTable) else node.constant(value, dtype)
