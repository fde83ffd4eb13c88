"""What a tensor of a model is: a label by some scores, a decision by a comparison, a number of a known range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, If
from mlfc.relay.op import Elements, Operator, Trait
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.support.arrays import Array

_SAME = (Elements.SAME, Elements.CONVERTED)
_WITHIN_RANGE = (Elements.MOVED, Elements.EXTREME, Elements.AVERAGED)


@dataclass(frozen=True, eq=False)
class Decision:
    """What chose the elements of a tensor."""

    call: Call  # of ``argmax``, ``argmin`` or a comparison
    table: Array | None = None  # what the position is looked up in: the classes' own labels

    @property
    def scores(self) -> tuple[Expr, ...]:
        """What it was chosen by: the scores, or the two sides of the comparison."""
        return self.call.args


def decision_of(expr: Expr) -> Decision | None:
    """Return what chose a tensor's elements, one decision for each element; None where that is not so."""
    table = None
    for node in _same_elements(expr):
        if not isinstance(node, Call):
            continue
        if ir.has_trait(node, Trait.POSITION | Trait.COMPARISON):
            return Decision(node, table)
        if ir.has_trait(node, Trait.PICK) and table is None and isinstance(node.args[0], Constant):
            table = node.args[0].data
            if table.ndim == 1:
                found = decision_of(node.args[1])
                return Decision(found.call, table) if found and found.table is None else None
    return None


def rounds_inside(results: Sequence[Expr]) -> bool:
    """Tell whether a model makes codes, which are integers of 8 bits, of floats that it computes."""
    return any(
        isinstance(node, Call)
        and _is(node, lambda dtype: dtypes.is_integer(dtype) and dtypes.bits(dtype) <= 8)
        and any(isinstance(arg, Call) and _is(arg, dtypes.is_float) for arg in node.args)
        for node in post_order(ir.Tuple(tuple(results)))
    )


def _is(expr: Expr, holds: Callable[[str], bool]) -> bool:
    return isinstance(expr.type, ir.TensorType) and holds(expr.type.dtype)


def range_of(
    expr: Expr, functions: Mapping[str, Function] | None = None, given: Mapping[Expr, Expr] | None = None
) -> float:
    """Return the largest magnitude that a tensor can have by the operator that computes it; 0 if it has no such.

    `functions`: of the module, for what branches give.
    `given`: the arguments of branches, by their parameters.
    """
    functions, given = functions or {}, given or {}
    last = _same_elements(expr)[-1]
    operator = ir.operator(last)
    sources: list[Expr] = []
    if isinstance(last, Call) and operator is not None and operator.elements in _WITHIN_RANGE:
        sources = [last.args[0]]
    elif isinstance(last, Call) and ir.has_trait(last, Trait.SELECTION):
        sources = list(last.args[1:])
    elif last in given:
        sources = [given[last]]
    elif isinstance(last, If) and {last.then.name, last.otherwise.name} <= functions.keys():
        for branch in (functions[last.then.name], functions[last.otherwise.name]):
            sources.append(branch.body)
            given = {**given, **dict(zip(branch.params, last.args, strict=True))}
        # a loop is a branch that runs itself again
        functions = {known: it for known, it in functions.items() if known not in (last.then.name, last.otherwise.name)}
    if sources:
        ranges = [range_of(source, functions, given) for source in sources]
        return max(ranges) if all(ranges) else 0.0
    return 0.0 if operator is None else operator.magnitude


def _same_elements(expr: Expr) -> list[Expr]:
    """Return a tensor, and the tensors before it that have its elements in its order."""
    found = [expr]
    while isinstance(expr, Call) and isinstance(expr.op, Operator):
        if expr.op.elements not in _SAME or _is_rounded(expr):
            break
        expr = expr.args[0]
        found.append(expr)
    return found


def _is_rounded(cast: Call) -> bool:
    source, result = ir.tensor_type(cast.args[0]), ir.tensor_type(cast)
    return dtypes.is_float(source.dtype) and not dtypes.is_float(result.dtype)


def gaps(decision: Decision, scores: Sequence[Array], ours: Array, theirs: Array) -> tuple[Array, Array] | None:
    """Return how far apart the scores of two decisions are, for each element, and how large the scores are.

    Returns both of the shape ``(elements,)``; None where a label is in no table or beyond the scores.
    """
    if ir.has_trait(decision.call, Trait.COMPARISON):
        a, b = (np.asarray(score, np.float64) for score in scores)
        apart, sizes = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
        return np.broadcast_to(apart, apart.shape).ravel(), sizes.ravel()
    rows = _rows(decision, np.asarray(scores[0], np.float64))
    places = [_places(decision.table, array) for array in (ours, theirs)]
    if any(place is None or place.size != len(rows) or (place >= rows.shape[1]).any() for place in places):
        return None
    first, second = (rows[np.arange(len(rows)), place] for place in places if place is not None)
    return np.abs(first - second), np.abs(rows).max(axis=1, initial=0.0)


def _rows(decision: Decision, scores: Array) -> Array:
    """Return scores as a matrix: a row for each position that was looked for."""
    axis = decision.call.attrs["axis"]
    axes = tuple(range(scores.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(one % scores.ndim for one in axes)
    others = [one for one in range(scores.ndim) if one not in axes]
    ordered = scores.transpose(*others, *axes)
    return ordered.reshape(int(np.prod([scores.shape[one] for one in others], dtype=np.int64)), -1)


def _places(table: Array | None, labels: Array) -> Array | None:
    flat = labels.ravel().astype(np.int64)
    if table is not None:
        known = {int(label): place for place, label in reversed(list(enumerate(table.ravel())))}
        if any(int(label) not in known for label in flat):
            return None
        flat = np.asarray([known[int(label)] for label in flat], np.int64)
    return flat if not (flat < 0).any() else None
