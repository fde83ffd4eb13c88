"""Arithmetic of extents: what a model computes of the shapes of its tensors is computed when it is imported.

Tensors of extents are arrays of objects, integers and `Dim`; those that a model casts to floats hold a `Quotient` each.
A rule gives None where the bounds of the extents do not decide what it gives: the run computes it then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import MlfcError
from mlfc.frontend.dynamic import Dynamic, as_tensor
from mlfc.frontend.onnx.node import Node
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Constant, Expr
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Symbol, UndecidedError, bounds, maximum, minimum, substituted

Array: TypeAlias = npt.NDArray[Any]
# takes a node and what is known of its inputs; None for one that is left out
Rule: TypeAlias = "Callable[[Node, list[Array | None]], Array | list[Array] | None]"

_RULES: dict[str, Rule] = {}
_SIZE_LIMIT = 4096
_DENOMINATOR_LIMIT = 1 << 12


@dataclass(frozen=True)
class Quotient:
    """A float that an extent over an integer is."""

    extent: Any
    by: int = 1


def evaluated(node: Node, dynamic: Dynamic) -> list[Expr] | None:
    """Return the outputs of a node that computes with extents alone; None where the run has to compute them."""
    rule = _RULES.get(node.operator)
    if rule is None:
        return None
    known = [None if expr is None or not _is_tensor(expr) else dynamic.known(expr) for expr in node.inputs]
    given = [_numbers(array, expr) for array, expr in zip(known, node.inputs, strict=True)]
    if not any(_is_open(array) for array in given if array is not None):
        return None
    if any(array is None and expr is not None for array, expr in zip(given, node.inputs, strict=True)):
        return None
    try:
        found = rule(node, given)
    except (UndecidedError, ArithmeticError, LookupError, TypeError, ValueError, MlfcError):
        extents = [item for array in given if array is not None for item in array.reshape(-1)]
        dynamic.exclude_empty(map(_extent_of, extents), lambda values: _decides(rule, node, given, values))
        return None  # what is wrong with the node is said by its importer
    if found is None:
        return None
    results = found if isinstance(found, list) else [found]
    if any(array.size > _SIZE_LIMIT or _is_real(array) for array in results):
        return None
    dtype = _dtype_of_result(node)
    return None if dtype is None else [as_tensor(array, dtype, node.span) for array in results]


def _extent_of(item: Any) -> Any:
    return item.extent if isinstance(item, Quotient) else item


def _decides(rule: Rule, node: Node, given: Sequence[Array | None], values: Mapping[Symbol, Extent]) -> bool:
    """Tell whether a rule gives a result for extents with other bounds."""

    def narrowed(item: Any) -> Any:
        extent = substituted(_extent_of(item), values)
        return Quotient(extent, item.by) if isinstance(item, Quotient) else extent

    try:
        found = rule(node, [
            None if array is None else _made([narrowed(item) for item in array.reshape(-1)], array.shape)
            for array in given
        ])  # fmt: skip
    except (UndecidedError, ArithmeticError, LookupError, TypeError, ValueError, MlfcError):
        return False
    return found is not None


def note_quotients(node: Node, results: Sequence[Expr], dynamic: Dynamic) -> None:
    """Note that the floats which a node gives are quotients of extents, if they are."""
    rule = _RULES.get(node.operator)
    tensors = [expr for expr in node.inputs if expr is not None]
    if rule is None or not results or not all(map(_is_tensor, (*tensors, results[0]))):
        return
    if not dtypes.is_float(results[0].type.dtype):  # type: ignore[union-attr]  # a tensor
        return
    known = [None if expr is None else dynamic.known(expr) for expr in node.inputs]
    given = [_numbers(array, expr) for array, expr in zip(known, node.inputs, strict=True)]
    if not any(_is_open(array) for array in given if array is not None):
        return
    if any(array is None and expr is not None for array, expr in zip(given, node.inputs, strict=True)):
        return
    try:
        found = rule(node, given)
    except (UndecidedError, ArithmeticError, LookupError, TypeError, ValueError, MlfcError):
        return
    if isinstance(found, np.ndarray) and _is_real(found) and found.size <= _SIZE_LIMIT:
        dynamic.note_numbers(results[0], found)


def _is_tensor(expr: Expr) -> bool:
    return hasattr(expr.type, "dtype")


def _is_open(array: Array) -> bool:
    return any(isinstance(item, (Dim, Quotient)) for item in array.reshape(-1))


def _is_real(array: Array) -> bool:
    return any(isinstance(item, Quotient) for item in array.reshape(-1))


def _numbers(array: Array | None, expr: Expr | None) -> Array | None:
    """Return what is known of an input; small constants of floats are quotients where they are simple."""
    if array is not None or not isinstance(expr, Constant) or not dtypes.is_float(expr.type.dtype):
        return array
    if expr.data.size > _SIZE_LIMIT or not np.isfinite(expr.data.astype(np.float64)).all():
        return None
    fractions = [Fraction(float(item)) for item in expr.data.reshape(-1)]
    if any(item.denominator > _DENOMINATOR_LIMIT for item in fractions):
        return None
    return _made([Quotient(item.numerator, item.denominator) for item in fractions], expr.data.shape)


def _dtype_of_result(node: Node) -> str | None:
    if node.operator in _COMPARISONS or node.operator in ("Not", "And", "Or"):
        return "bool"
    if node.operator in ("Shape", "Size"):
        return "int64"
    if node.operator == "Cast":
        dtype = dtype_name(node.attribute("to"), node.name)
        return dtype if dtypes.is_integer(dtype) else None
    dtype = node.dtype(1 if node.operator == "Where" else 0)
    return dtype if dtypes.is_integer(dtype) else None


def _made(items: Sequence[Any], shape: tuple[int, ...]) -> Array:
    found = np.empty(len(items), object)
    found[:] = items
    return found.reshape(shape)


def _rule(*operators: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def _elementwise(function: Callable[..., Any]) -> Rule:
    def rule(_node: Node, given: list[Array | None]) -> Array | None:
        arrays = np.broadcast_arrays(*[array for array in given if array is not None])
        if arrays[0].size > _SIZE_LIMIT:
            return None
        items = [function(*row) for row in zip(*(array.reshape(-1) for array in arrays), strict=True)]
        return _made(items, arrays[0].shape)

    return rule


# Arithmetic


def _is_number(*items: Any) -> bool:
    return not any(isinstance(item, Quotient) for item in items)


def _real(item: Any) -> Quotient:
    return item if isinstance(item, Quotient) else Quotient(item)


def _reduced(extent: Any, by: int) -> Quotient:
    return Quotient(extent // by) if by > 1 and extent % by == 0 else Quotient(extent, by)


def _add(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return a + b
    a, b = _real(a), _real(b)
    return _reduced(a.extent * b.by + b.extent * a.by, a.by * b.by)


def _subtract(a: Any, b: Any) -> Any:
    return _add(a, -b if _is_number(b) else Quotient(-b.extent, b.by))


def _multiply(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return a * b
    a, b = _real(a), _real(b)
    return _reduced(a.extent * b.extent, a.by * b.by)


def _divide(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return _truncated(a, b)
    a, b = _real(a), _real(b)
    if isinstance(b.extent, Dim):
        raise UndecidedError("a quotient of extents")
    sign = 1 if b.extent > 0 else -1
    return _reduced(sign * a.extent * b.by, a.by * abs(b.extent))


def _truncated(a: Any, b: Any) -> Any:
    """Divide as integers of ONNX are divided, towards zero."""
    (low, high), (least, most) = bounds(a), bounds(b)
    if least <= 0 <= most or (low < 0 < high):
        raise UndecidedError("a quotient of which the sign is not known")
    if most < 0:
        a, b = -a, -b
    low, high = bounds(a)
    return -(-a // b) if high < 0 else a // b


def _modulo(node: Node, given: list[Array | None]) -> Array | list[Array] | None:
    if node.integer("fmod", 0) and not all(
        bounds(item)[0] >= 0 for array in given if array is not None for item in array.reshape(-1)
    ):
        return None
    return _elementwise(lambda a, b: a % b)(node, given)


def _largest(*items: Any) -> Any:
    return reduce(maximum, items)


def _smallest(*items: Any) -> Any:
    return reduce(minimum, items)


_RULES.update({
    "Identity": _elementwise(lambda a: a),
    "Add": _elementwise(_add),
    "Sub": _elementwise(_subtract),
    "Mul": _elementwise(_multiply),
    "Div": _elementwise(_divide),
    "Mod": _modulo,
    "Neg": _elementwise(lambda a: _subtract(0, a)),
    "Abs": _elementwise(lambda a: maximum(a, -a)),
    "Min": _elementwise(_smallest),
    "Max": _elementwise(_largest),
    "Sum": _elementwise(lambda *items: reduce(_add, items)),
    "Sign": _elementwise(lambda a: 1 if a > 0 else -1 if a < 0 else 0),
    "Pow": _elementwise(lambda a, b: prod([a] * _exponent(b))),
    "Floor": _elementwise(lambda a: Quotient(_real(a).extent // _real(a).by)),
    "Ceil": _elementwise(lambda a: Quotient(-(-_real(a).extent // _real(a).by))),
    "Clip": _elementwise(lambda a, low, high: minimum(maximum(a, low), high)),
})  # fmt: skip


def _exponent(item: Any) -> int:
    if not isinstance(item, int) or not 0 <= item <= 8:
        raise UndecidedError("an exponent")
    return item


@_rule("Cast")
def _cast(node: Node, given: list[Array | None]) -> Array | list[Array] | None:
    dtype, x = dtype_name(node.attribute("to"), node.name), given[0]
    assert x is not None
    if dtypes.is_float(dtype):
        return _elementwise(_real)(node, given)
    if not dtypes.is_integer(dtype):
        return None
    items = [_whole(item) for item in x.reshape(-1)]
    bits = dtypes.bits(dtype)
    least = 0 if dtype.startswith("u") else -(1 << bits - 1)
    if dtype not in ("int32", "int64") and any(
        bounds(item)[0] < least or bounds(item)[1] >= least + (1 << bits) for item in items
    ):
        return None
    return _made(items, x.shape)


def _whole(item: Any) -> Any:
    if not isinstance(item, Quotient):
        return item
    return item.extent if item.by == 1 else _truncated(item.extent, item.by)


# Comparisons


def _is_equal(a: Any, b: Any) -> bool:
    low, high = bounds(a - b)
    if low <= 0 <= high and not low == high == 0:
        raise UndecidedError("whether extents are equal")
    return low == high == 0


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": _is_equal,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
}
_RULES.update({name: _elementwise(function) for name, function in _COMPARISONS.items()})


@_rule("Where")
def _where(node: Node, given: list[Array | None]) -> Array | list[Array] | None:
    return _elementwise(lambda condition, a, b: a if condition else b)(node, given)


# Arrangement


def _integers(array: Array | None) -> list[int]:
    items = [] if array is None else array.reshape(-1).tolist()
    if not all(isinstance(item, (int, np.integer)) for item in items):
        raise UndecidedError("a position")
    return [int(item) for item in items]


def _listed(node: Node, name: str, array: Array | None) -> list[int] | None:
    if node.given(name):
        return list(node.integers(name))
    return None if array is None else _integers(array)


@_rule("Gather")
def _gather(node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    assert given[1] is not None
    places = np.asarray(_integers(given[1]), np.int64).reshape(given[1].shape)
    return np.asarray(np.take(given[0], places, axis=node.integer("axis", 0)), object)


@_rule("Slice")
def _slice(node: Node, given: list[Array | None]) -> Array:
    x, starts, ends = given[0], given[1] if len(given) > 1 else None, given[2] if len(given) > 2 else None
    assert x is not None
    begin, end = _listed(node, "starts", starts) or [], _listed(node, "ends", ends) or []
    axes = _listed(node, "axes", given[3] if len(given) > 3 else None) or list(range(len(begin)))
    steps = _integers(given[4]) if len(given) > 4 and given[4] is not None else [1] * len(begin)
    cuts = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        cuts[axis] = slice(first, None if step < 0 and last < -x.shape[axis] else last, step)
    return np.asarray(x[tuple(cuts)], object)


@_rule("Concat")
def _concat(node: Node, given: list[Array | None]) -> Array:
    return np.concatenate([array for array in given if array is not None], axis=node.integer("axis"))


@_rule("Unsqueeze")
def _unsqueeze(node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    axes = _listed(node, "axes", given[1] if len(given) > 1 else None) or []
    return np.expand_dims(given[0], tuple(axes))


@_rule("Squeeze")
def _squeeze(node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    axes = _listed(node, "axes", given[1] if len(given) > 1 else None)
    return np.squeeze(given[0], None if axes is None else tuple(axes))


@_rule("Reshape")
def _reshape(_node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    return given[0].reshape(_integers(given[1]))


@_rule("Flatten")
def _flatten(node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    shape, axis = given[0].shape, node.integer("axis", 1)
    return given[0].reshape(prod(shape[:axis]), prod(shape[axis:]))


@_rule("Expand")
def _expand(_node: Node, given: list[Array | None]) -> Array | None:
    assert given[0] is not None
    shape = np.broadcast_shapes(given[0].shape, tuple(_integers(given[1])))
    return np.broadcast_to(given[0], shape) if prod(shape) <= _SIZE_LIMIT else None


@_rule("Tile")
def _tile(_node: Node, given: list[Array | None]) -> Array | None:
    assert given[0] is not None
    counts = _integers(given[1])
    return np.tile(given[0], counts) if given[0].size * prod(counts) <= _SIZE_LIMIT else None


@_rule("Transpose")
def _transpose(node: Node, given: list[Array | None]) -> Array:
    assert given[0] is not None
    return np.transpose(given[0], node.integers("perm", tuple(range(given[0].ndim))[::-1]))


@_rule("Split")
def _split(node: Node, given: list[Array | None]) -> list[Array] | None:
    assert given[0] is not None
    axis, count = node.integer("axis", 0), len(node.outputs)
    sizes = _listed(node, "split", given[1] if len(given) > 1 else None)
    if sizes is None:
        part = -(-given[0].shape[axis] // node.integer("num_outputs", count))
        sizes = [part] * (count - 1)
    else:
        sizes = sizes[:-1]
    return [np.asarray(part, object) for part in np.split(given[0], np.cumsum(sizes).astype(int), axis)]


@_rule("ScatterElements", "ScatterND")
def _scatter(node: Node, given: list[Array | None]) -> Array | None:
    x, places, updates = given
    assert x is not None
    assert updates is not None
    if x.ndim != 1 or node.string("reduction", "none") != "none":
        return None
    found = x.copy()
    for place, item in zip(_integers(places), updates.reshape(-1), strict=True):
        found[place] = item
    return found


# Reductions


def _reduction(function: Callable[[Sequence[Any]], Any]) -> Rule:
    def rule(node: Node, given: list[Array | None]) -> Array | None:
        assert given[0] is not None
        axes = _listed(node, "axes", given[1] if len(given) > 1 else None)
        keep = node.flag("keepdims", 1)
        if given[0].ndim > 1 or node.flag("noop_with_empty_axes") or (axes and {axis % 1 for axis in axes} != {0}):
            return None
        return _made([function(given[0].reshape(-1).tolist())], (1,) if keep and given[0].ndim else ())

    return rule


_RULES.update({
    "ReduceProd": _reduction(prod),
    "ReduceSum": _reduction(sum),
    "ReduceMax": _reduction(lambda items: reduce(maximum, items)),
    "ReduceMin": _reduction(lambda items: reduce(minimum, items)),
})  # fmt: skip


@_rule("CumSum")
def _cumulated(node: Node, given: list[Array | None]) -> Array | None:
    assert given[0] is not None
    if given[0].ndim != 1 or node.integer("exclusive", 0) or node.integer("reverse", 0):
        return None
    return _made([sum(given[0][: count + 1].tolist()) for count in range(given[0].size)], given[0].shape)
