"""Shapes that a model computes from open dimensions: SHAPE and arithmetic on it, on expressions of symbols.

What a subgraph of a few integers gives is known while importing, as a tensor of extents, so that RESHAPE and the others
take it as they take constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import MlfcError
from mlfc.frontend.tflite.node import Node, known_integers
from mlfc.relay import ir
from mlfc.relay.ir import Expr
from mlfc.support.dims import Dim, bounds, maximum, minimum

Array: TypeAlias = npt.NDArray[Any]
Rule: TypeAlias = "Callable[[Node, list[Array]], Any]"
_MOST = 256  # elements


def known_result(node: Node) -> Expr | None:
    """Return the result of an operator on integers that are known, some of them by symbols; None for any other."""
    rule = _RULES.get(node.record.code)
    if rule is None or len(node.record.outputs) != 1 or node.output().dtype not in ("int32", "int64"):
        return None
    given = [known_integers(node.expr(place)) for place in range(len(node.record.inputs)) if node.has(place)]
    if node.record.code == "SHAPE":
        if ir.tensor_type(node.expr(0)).is_static:
            return None
        given = [_array(node.shape(0))]
    arrays = [array for array in given if array is not None]
    if len(arrays) < len(given) or not any(isinstance(item, Dim) for array in arrays for item in array.reshape(-1)):
        return None
    try:
        found = np.asarray(rule(node, arrays), object)
    except (MlfcError, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # the run computes it
    if found.size > _MOST or found.ndim > 1:
        return None
    return extents(node, found)


def extents(node: Node, values: Array) -> Expr:
    """Return a tensor of extents, as a constant where all are numbers."""
    dtype = node.output().dtype
    flat = values.reshape(-1).tolist()
    if not any(isinstance(item, Dim) for item in flat):
        return ir.Constant(np.array(flat, dtype).reshape(values.shape), node.output().name, node.span)
    shown = tuple(item if isinstance(item, Dim) else int(item) for item in flat)
    return ir.call("extents", [], values=shown, dtype=dtype, shape=values.shape, span=node.span)


def _array(values: Sequence[Any]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _elementwise(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(_: Node, given: list[Array]) -> Array:
        left, right = np.broadcast_arrays(*given)
        items = [function(a, b) for a, b in zip(left.reshape(-1), right.reshape(-1), strict=True)]
        return _array(items).reshape(left.shape)

    return rule


def _divided(a: Any, b: Any) -> Any:
    """Divide towards zero, which is down where neither is negative."""
    if bounds(a)[0] < 0 or bounds(b)[0] < 1:
        raise ValueError
    return a // b


def _cut(node: Node, given: list[Array]) -> Array:
    data, options = given[0], node.options("StridedSliceOptions")
    begin, end, strides = (int(array.reshape(-1)[0]) for array in given[1:4])
    masks = (options.EllipsisMask(), options.NewAxisMask(), options.Offset())
    if data.ndim != 1 or given[1].size != 1 or any(masks):
        raise ValueError
    if options.ShrinkAxisMask() & 1:
        return np.asarray(data[begin], object)
    return data[slice(None if options.BeginMask() & 1 else begin, None if options.EndMask() & 1 else end, strides)]


def _picked(node: Node, given: list[Array]) -> Array:
    options = node.record.options("GatherOptions")
    if given[0].ndim != 1 or (options is not None and (options.Axis() not in (0, -1) or options.BatchDims())):
        raise ValueError
    return np.asarray(given[0][given[1].astype(np.int64)], object)


def _sliced(_: Node, given: list[Array]) -> Array:
    begin, size = (int(array.reshape(-1)[0]) for array in given[1:3])
    if given[0].ndim != 1 or begin < 0:
        raise ValueError
    return given[0][begin : None if size == -1 else begin + size]


def _packed(_: Node, given: list[Array]) -> Array:
    if any(array.ndim for array in given):
        raise ValueError
    return _array([array.item() for array in given])


def _folded(function: Callable[[Sequence[Any]], Any]) -> Rule:
    def rule(node: Node, given: list[Array]) -> Array:
        if given[0].ndim != 1 or [int(item) for item in given[1].reshape(-1)] not in ([0], [-1]):
            raise ValueError
        total = np.empty((), object)
        total[()] = function(given[0].tolist())
        return total.reshape((1,) if node.options("ReducerOptions").KeepDims() else ())

    return rule


def _broadcast(_: Node, given: list[Array]) -> Array:
    rank = max(array.size for array in given)
    left, right = ([1] * (rank - array.size) + array.tolist() for array in given)
    joined = []
    for a, b in zip(left, right, strict=True):
        if 1 not in (a, b) and a != b:
            raise ValueError
        joined.append(b if isinstance(a, int) and a == 1 else a)
    return _array(joined)


def _reshaped(_: Node, given: list[Array]) -> Array:
    return given[0].reshape([int(item) for item in given[1].reshape(-1)])


_RULES: Mapping[str, Rule] = {
    "SHAPE": lambda _, given: given[0],
    "CAST": lambda _, given: given[0],
    "STRIDED_SLICE": _cut,
    "SLICE": _sliced,
    "GATHER": _picked,
    "PACK": _packed,
    "CONCATENATION": lambda _, given: np.concatenate([np.atleast_1d(array) for array in given]),
    "RESHAPE": _reshaped,
    "SQUEEZE": lambda _, given: given[0].reshape(()),
    "EXPAND_DIMS": lambda _, given: given[0].reshape((1,)) if given[0].ndim == 0 else given[0],
    "ADD": _elementwise(lambda a, b: a + b),
    "SUB": _elementwise(lambda a, b: a - b),
    "MUL": _elementwise(lambda a, b: a * b),
    "DIV": _elementwise(_divided),
    "FLOOR_DIV": _elementwise(lambda a, b: a // b),
    "FLOOR_MOD": _elementwise(lambda a, b: a % b),
    "MAXIMUM": _elementwise(maximum),
    "MINIMUM": _elementwise(minimum),
    "REDUCE_PROD": _folded(prod),
    "SUM": _folded(sum),
    "REDUCE_MAX": _folded(lambda items: reduce(maximum, items)),
    "REDUCE_MIN": _folded(lambda items: reduce(minimum, items)),
    "BROADCAST_ARGS": _broadcast,
}
