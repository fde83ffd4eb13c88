"""Distinguish rounding from real differences that exceed the tolerance.

The evidence is the model in float64, the reference's distance from it, and the change of the reference's results when
its weights and inputs are perturbed by ulps. The float64 model alone does not excuse a difference, except of a layer
where the reference confirms it: there, the layer's node alone computes the same from the float64 model's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import MlfcError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, Function, If, IRModule
from mlfc.relay.op import Elements, Operator, Trait
from mlfc.relay.visitor import post_order
from mlfc.runtime.modules.runnable import Runnable
from mlfc.runtime.tensor.npz import flattened
from mlfc.support import dtypes
from mlfc.support.tensor_info import Array
from mlfc.verify.difference import FLOAT_TOLERANCE, Difference, Evidence, is_real, largest_difference
from mlfc.verify.reference import LITERT
from mlfc.verify.witnesses import OwnRounding, float64_model, nudged

ROUNDING = "rounding"
TIE = "tie"
CONFIRMED = "confirmed"
# rounding depends on the order of sums: this multiple of the observed rounding is still plausible
_AS_MUCH = 8.0
# a function with results up to 1 may be wrong by a few ulps of 1, even for small results
_LAST_BITS = 2.0**-21
# in this case, our result must be this close to float64, relative to the largest element
_NEAR = 1e-3
# QDQ models round to integers repeatedly: this fraction of the elements may be off by one step
_STEPS = 0.01
_SAME = (Elements.SAME, Elements.CONVERTED)
_WITHIN_RANGE = (Elements.MOVED, Elements.EXTREME, Elements.AVERAGED)


@dataclass(frozen=True, eq=False)
class Subject:
    """The subject of a comparison."""

    path: Path  # the model
    title: str  # the name of its reference
    layers: bool  # whether all tensors are compared
    target: str  # of the compiled model
    # returns the imported model, with the compared outputs, and its weights
    imported: Callable[[], tuple[IRModule, Mapping[str, Array]]]
    node: Any = None  # `OnnxRuntimeReference.node`


Witnesses: TypeAlias = tuple[Callable[[], dict[str, Array] | None], Callable[[], dict[str, float]], Mapping[str, Array]]
"""The float64 model's tensors and the reference's rounding for an input set, computed on first use, and the set."""


class Judge:
    """Judge of differences beyond the tolerance; the evidence is created when first needed."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._node = cache(self._opened)

    def __call__(
        self, doubtful: Sequence[tuple[Difference, Array, Array]], inputs: Mapping[str, Array]
    ) -> list[Difference]:
        """Return the differences of one input set with evidence and excuses.

        `doubtful`: differences beyond their tolerance, with both tensors. Other tensors of the float64 model and of the
            perturbed references are released.
        """
        tensors = {item.tensor for item, *_ in doubtful}
        given = {**(self._imported[0].frozen if self._imported else {}), **inputs}
        witnesses = (
            cache(lambda: self._exact_outputs(tensors, inputs)),
            cache(lambda: self._rounding.of(tensors, given)),
            given,
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
            return item  # a count, an index, or a label with unknown scores
        functions = self._imported[0].functions if self._imported else {}
        return self._by_rounding(item, 0.0 if expr is None else range_of(expr, functions), witnesses, ours, theirs)

    @cached_property
    def _imported(self) -> tuple[IRModule, Mapping[str, Array]] | None:
        try:
            return self._subject.imported()
        except MlfcError:  # the import options of an artifact may be unknown
            return None

    @cached_property
    def _tensors(self) -> dict[str, Expr]:
        if self._imported is None:
            return {}
        module = self._imported[0]
        return dict(zip(module.output_names, module.outputs, strict=True))

    @cached_property
    def _known(self) -> frozenset[str]:
        """The names of the tensors and inputs of the float64 model."""
        params = self._imported[0].main.params if self._imported else ()
        return frozenset((*self._tensors, *(param.name for param in params)))

    @cached_property
    def _decisions(self) -> dict[str, Decision]:
        found = {name: decision_of(expr) for name, expr in self._tensors.items()}
        return {name: decision for name, decision in found.items() if decision is not None}

    @cached_property
    def _exact(self) -> tuple[Runnable, dict[str, Sequence[str]]] | None:
        """The float64 model, and the names of its outputs with the scores of each decision."""
        if self._imported is None:
            return None
        module, params = self._imported
        scores = [(name, score) for name, decision in self._decisions.items() for score in decision.scores]
        try:
            model, names = float64_model(module, params, self._subject.target, [score for _, score in scores])
        except MlfcError:  # external generators do not support float64
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
        """Return tensors in float64, and the scores of their decisions; None if the model has no float64 form."""
        if self._exact is None:
            return None
        model, scores = self._exact
        kept = {*tensors, *(name for tensor in tensors for name in scores.get(tensor, ()))}
        kept.update(name for tensor in tensors for name in self._node(tensor)[1])
        return {name: array for name, array in flattened(model.run(inputs)).items() if name in kept}

    def _by_rounding(self, item: Difference, limit: float, seen: Witnesses, ours: Array, theirs: Array) -> Difference:
        exact, rounding = seen[0](), seen[1]()[item.tensor]
        steps = not is_real(ours.dtype)
        # LiteRT's integer kernels are exact definitions; ONNX defines most operators by floats, which round
        allowed = float(steps and self._subject.title != LITERT) or item.tolerance
        if exact is None or item.tensor not in exact:
            excused = item.largest <= max(allowed, _AS_MUCH * rounding)
            note = "the model has no float64 form for a judgement"
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
        kind = ROUNDING
        if not excused and error <= reference_error and self._is_confirmed(item, truth, {**seen[2], **exact}):
            kind, excused = CONFIRMED, True
        if steps and excused:  # only as many integers may be off as occasional rounding explains
            wrong, wrong_there = ((array.ravel() != truth.ravel()).sum() for array in (ours, theirs))
            excused = bool(wrong <= max(1.0, 4.0 * float(wrong_there), _STEPS * truth.size))
        return replace(item, excuse=kind if excused else "", evidence=evidence)

    def _opened(self, tensor: str) -> tuple[Any, Sequence[str]]:
        """Return a session for a layer's node alone, and what it reads; None and nothing for an output."""
        if not self._subject.layers or self._subject.node is None:
            return None, ()
        found: tuple[Any, Sequence[str]] = self._subject.node(tensor, self._known)
        return found

    def _is_confirmed(self, item: Difference, truth: Array, known: Mapping[str, Array]) -> bool:
        """Return whether a layer's node alone, in the reference, computes `truth` from the float64 model's tensors.

        They are rounded to their own dtypes; the difference must not exceed what ulps of them change.
        """
        session, names = self._node(item.tensor)
        if session is None:
            return False
        given, results = dict[str, Array](), list[Array]()
        for name in known.keys() & names:
            kind = ir.tensor_type(self._tensors[name]).dtype if name in self._tensors else None
            given[name] = known[name].astype(dtypes.to_numpy(kind)) if kind else known[name]
        try:
            for change in (np.asarray, partial(nudged, random=np.random.default_rng(0))):
                results += session.run([item.tensor], {name: change(array) for name, array in given.items()})
        except Exception:  # those of ONNX Runtime have no common class
            return False
        off, moved = largest_difference(results[0], truth), largest_difference(*results)
        return bool(np.isfinite(off)) and off <= max(item.tolerance, _AS_MUCH * moved)

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
            f"element {worst}: {one[worst]}, but {other[worst]} in {self._subject.title}; in float64 the scores of the "
            f"two differ by {apart[worst]:.3g}, with magnitudes up to {sizes[worst]:.6g}"
        )
        return replace(item, excuse=TIE if tied.all() else "", note=note, element=worst)


@dataclass(frozen=True, eq=False)
class Decision:
    """The operator that chose the elements of a tensor."""

    call: Call  # of ``argmax``, ``argmin`` or a comparison
    table: Array | None = None  # the labels of the classes, indexed by the position

    @property
    def scores(self) -> tuple[Expr, ...]:
        """The scores of the choice, or the two operands of the comparison."""
        return self.call.args


def decision_of(expr: Expr) -> Decision | None:
    """Return the decision that chose each element of a tensor; None if it is not the result of decisions."""
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
    """Return whether a model quantizes computed floats to codes, which are integers of at most 8 bits."""
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
    """Return the largest magnitude of a tensor that its operator allows; 0 if unbounded.

    `functions`: of the module, to look up branches.
    `given`: the arguments of branches, by parameter.
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
        # a loop is a branch that calls itself
        functions = {known: it for known, it in functions.items() if known not in (last.then.name, last.otherwise.name)}
    if sources:
        ranges = [range_of(source, functions, given) for source in sources]
        return max(ranges) if all(ranges) else 0.0
    return 0.0 if operator is None else operator.magnitude


def _same_elements(expr: Expr) -> list[Expr]:
    """Return a tensor, and the tensors before it with the same elements in the same order."""
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
    """Return for each element the difference of two decisions' scores, and the magnitude of the scores.

    Both have the shape ``(elements,)``. Returns None if a label is not in the table or beyond the scores.
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
    rows = table.transpose(*others, *axes).reshape(count, -1)  # one per chosen position
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
