"""Tells rounding from a real difference, where a tensor is further from its reference than the tolerance.

Witnesses are the model in float64, how far the reference is from it, and how far the reference moves when last bits of
its weights and inputs change. The first alone excuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mlfc.errors import MlfcError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, If, IRModule
from mlfc.relay.op import Elements, Operator, Trait
from mlfc.relay.visitor import post_order
from mlfc.runtime.modules.runnable import Runnable
from mlfc.runtime.tensor.npz import flattened
from mlfc.support import dtypes
from mlfc.support.arrays import Array
from mlfc.verify.difference import FLOAT_TOLERANCE, Difference, Evidence, is_real, largest_difference
from mlfc.verify.reference import LITERT
from mlfc.verify.witnesses import OwnRounding, float64_model

ROUNDING = "rounding"
TIE = "tie"
# rounding differs from one order of a sum to the next: how many times as much as was seen still counts as the same
_AS_MUCH = 8.0
# a function with results up to 1 may be wrong by a few last bits of 1, however small the result
_LAST_BITS = 2.0**-21
# and where the reference is no help for that reason, ours must be this near to float64, as a part of the largest
_NEAR = 1e-3
# QDQ models round to integers again and again: of so many elements one step may go the other way
_STEPS = 0.01
_SAME = (Elements.SAME, Elements.CONVERTED)
_WITHIN_RANGE = (Elements.MOVED, Elements.EXTREME, Elements.AVERAGED)


@dataclass(frozen=True, eq=False)
class Subject:
    """What is compared."""

    path: Path  # the model
    title: str  # its reference
    layers: bool  # whether all tensors are compared
    target: str  # of the compiled model
    # returns the model as the importer made it, with the outputs that are compared, and its weights
    imported: Callable[[], tuple[IRModule, Mapping[str, Array]]]


Witnesses: TypeAlias = tuple[Callable[[], dict[str, Array] | None], Callable[[], dict[str, float]]]
"""The model in float64 and the rounding of the reference for one set of inputs; computed by the first call."""


class Judge:
    """Looks at differences that are too large; what that takes is made when there is the first."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __call__(
        self, doubtful: Sequence[tuple[Difference, Array, Array]], inputs: Mapping[str, Array]
    ) -> list[Difference]:
        """Return the differences of one set of inputs with evidence and excuses.

        `doubtful`: differences beyond their tolerance, with the two tensors. Of the model in float64 and of the changed
            references no other tensor is kept.
        """
        tensors = {item.tensor for item, *_ in doubtful}
        given = {**(self._imported[0].frozen if self._imported else {}), **inputs}
        witnesses = (
            cache(lambda: self._exact_outputs(tensors, inputs)),
            cache(lambda: self._rounding.of(tensors, given)),
        )
        return [self._judged(item, witnesses, ours, theirs) for item, ours, theirs in doubtful]

    def _judged(self, item: Difference, witnesses: Witnesses, ours: Array, theirs: Array) -> Difference:
        if item.lone_nans or ours.size != theirs.size:
            return item
        expr = self._tensors.get(item.tensor)
        decision = None if expr is None else self._decisions.get(item.tensor)
        if decision is not None:
            return self._by_scores(item, decision, witnesses, ours, theirs)
        if not is_real(ours.dtype) and ours.dtype.itemsize > 2:
            return item  # a count, a place, a label whose scores nobody knows
        functions = self._imported[0].functions if self._imported else {}
        return self._by_rounding(item, 0.0 if expr is None else range_of(expr, functions), witnesses, ours, theirs)

    @cached_property
    def _imported(self) -> tuple[IRModule, Mapping[str, Array]] | None:
        try:
            return self._subject.imported()
        except MlfcError:  # an artifact may have been compiled with what is not known here
            return None

    @cached_property
    def _tensors(self) -> dict[str, Expr]:
        if self._imported is None:
            return {}
        module = self._imported[0]
        return dict(zip(module.output_names, module.outputs, strict=True))

    @cached_property
    def _decisions(self) -> dict[str, Decision]:
        found = {name: decision_of(expr) for name, expr in self._tensors.items()}
        return {name: decision for name, decision in found.items() if decision is not None}

    @cached_property
    def _exact(self) -> tuple[Runnable, dict[str, Sequence[str]]] | None:
        """The model in float64, and the names of its outputs with the scores of each decision."""
        if self._imported is None:
            return None
        module, params = self._imported
        scores = [(name, score) for name, decision in self._decisions.items() for score in decision.scores]
        try:
            model, names = float64_model(module, params, self._subject.target, [score for _, score in scores])
        except MlfcError:  # what external generators take has no float64
            return None
        by_tensor: dict[str, Sequence[str]] = {}
        for (tensor, _), name in zip(scores, names, strict=True):
            by_tensor[tensor] = (*by_tensor.get(tensor, ()), name)
        return model, by_tensor

    @cached_property
    def _rounding(self) -> OwnRounding:
        subject, is_quantized = self._subject, rounds_inside(list(self._tensors.values()))
        return OwnRounding(subject.path, subject.title, layers=subject.layers, is_quantized=is_quantized)

    def _exact_outputs(self, tensors: Collection[str], inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return tensors in float64, and the scores that decided them, if the model has that form."""
        if self._exact is None:
            return None
        model, scores = self._exact
        kept = {*tensors, *(name for tensor in tensors for name in scores.get(tensor, ()))}
        return {name: array for name, array in flattened(model.run(inputs)).items() if name in kept}

    def _by_rounding(self, item: Difference, limit: float, seen: Witnesses, ours: Array, theirs: Array) -> Difference:
        exact, rounding = seen[0](), seen[1]()[item.tensor]
        steps = not is_real(ours.dtype)
        # LiteRT's integer kernels define their results; ONNX defines most by floats, which round
        allowed = float(steps and self._subject.title != LITERT) or item.tolerance
        if exact is None or item.tensor not in exact:
            excused = item.largest <= max(allowed, _AS_MUCH * rounding)
            note = "this model has no float64 form to judge by"
            return replace(item, excuse=ROUNDING if excused and rounding else "", note=note)
        truth = exact[item.tensor]
        error, reference_error = largest_difference(ours, truth), largest_difference(theirs, truth)
        evidence = Evidence(error, reference_error, rounding)
        plausible = max(allowed, _AS_MUCH * rounding)
        sizes = np.abs(truth.astype(np.float64))
        near = min(_AS_MUCH * reference_error, _NEAR * float(sizes[np.isfinite(sizes)].max(initial=0.0)))
        excused = item.largest <= plausible or (
            reference_error <= max(plausible, _LAST_BITS * limit) and error <= max(plausible, near)
        )
        if steps and excused:  # no more integers may be off than where rounding goes the other way now and then
            wrong, wrong_there = ((array.ravel() != truth.ravel()).sum() for array in (ours, theirs))
            excused = bool(wrong <= max(1.0, 4.0 * float(wrong_there), _STEPS * truth.size))
        return replace(item, excuse=ROUNDING if excused else "", evidence=evidence)

    def _by_scores(self, item: Difference, chosen: Decision, seen: Witnesses, ours: Array, theirs: Array) -> Difference:
        exact = seen[0]()
        if exact is None or self._exact is None:
            return item
        scores = [exact[name] for name in self._exact[1][item.tensor]]
        found = gaps(chosen, scores, ours, theirs)
        if found is None or found[0].size != ours.size:
            return item
        apart, sizes = found
        one, other = ours.ravel(), theirs.ravel()
        differ = one != other
        worst = int(np.where(differ, apart, -1.0).argmax())
        tied = (apart <= FLOAT_TOLERANCE * sizes) | ~differ
        if not is_real(scores[0].dtype) and self._subject.title != LITERT:
            tied |= apart <= 1
        note = (
            f"element {worst}: {one[worst]}, and {other[worst]} by {self._subject.title}; in float64 the scores of the "
            f"two are {apart[worst]:.3g} apart, of {sizes[worst]:.6g} at most"
        )
        return replace(item, excuse=TIE if tied.all() else "", note=note, element=worst)


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
    """Return whether a model makes codes, which are integers of 8 bits, of floats that it computes."""
    for node in post_order(ir.Tuple(tuple(results))):
        if isinstance(node, Call) and isinstance(node.type, ir.TensorType):
            is_code = dtypes.is_integer(node.type.dtype) and dtypes.bits(node.type.dtype) <= 8
            computed = [arg.type for arg in node.args if isinstance(arg, Call)]
            if is_code and any(isinstance(kind, ir.TensorType) and dtypes.is_float(kind.dtype) for kind in computed):
                return True
    return False


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
        if expr.op.elements not in _SAME:
            break
        source, result = ir.tensor_type(expr.args[0]).dtype, ir.tensor_type(expr).dtype
        if dtypes.is_float(source) and not dtypes.is_float(result):  # rounded
            break
        expr = expr.args[0]
        found.append(expr)
    return found


def gaps(decision: Decision, scores: Sequence[Array], ours: Array, theirs: Array) -> tuple[Array, Array] | None:
    """Return how far apart the scores of two decisions are, for each element, and how large the scores are.

    Returns both of the shape ``(elements,)``; None where a label is in no table or beyond the scores.
    """
    if ir.has_trait(decision.call, Trait.COMPARISON):
        a, b = (np.asarray(score, np.float64) for score in scores)
        apart, sizes = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
        return np.broadcast_to(apart, apart.shape).ravel(), sizes.ravel()
    table, axis = np.asarray(scores[0], np.float64), decision.call.attrs["axis"]
    axes = tuple(range(table.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(one % table.ndim for one in axes)
    others = [one for one in range(table.ndim) if one not in axes]
    count = int(np.prod([table.shape[one] for one in others], dtype=np.int64))
    rows = table.transpose(*others, *axes).reshape(count, -1)  # one for each position that was looked for
    places = [_places(decision.table, array) for array in (ours, theirs)]
    if any(place is None or place.size != len(rows) or (place >= rows.shape[1]).any() for place in places):
        return None
    first, second = (rows[np.arange(len(rows)), place] for place in places if place is not None)
    return np.abs(first - second), np.abs(rows).max(axis=1, initial=0.0)


def _places(table: Array | None, labels: Array) -> Array | None:
    flat = labels.ravel().astype(np.int64)
    if table is not None:
        known = {int(label): place for place, label in reversed(list(enumerate(table.ravel())))}
        if any(int(label) not in known for label in flat):
            return None
        flat = np.asarray([known[int(label)] for label in flat], np.int64)
    return flat if not (flat < 0).any() else None
