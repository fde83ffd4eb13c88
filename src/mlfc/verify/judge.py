"""Tells rounding from a real difference, where a tensor is further from its reference than the tolerance.

Three witnesses: the model in float64, how far the reference itself is from it, and how far the reference moves when the
last bits of its weights and inputs change. Only the first has to do with our compiler, and it alone can excuse nothing:
where the reference is further from float64 than its own rounding explains, the difference is real.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from mlfc.errors import MlfcError
from mlfc.relay.ir import Expr, IRModule
from mlfc.runtime.modules.runnable import Runnable
from mlfc.runtime.tensor.npz import flattened
from mlfc.support.arrays import Array
from mlfc.verify.difference import FLOAT_TOLERANCE, Difference, Evidence, is_real, largest_difference
from mlfc.verify.float64 import float64_model
from mlfc.verify.nudged import OwnRounding
from mlfc.verify.provenance import Decision, decision_of, gaps, range_of, rounds_inside
from mlfc.verify.reference import LITERT

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


@dataclass(frozen=True, eq=False)
class Subject:
    """What is compared."""

    path: Path  # the model
    title: str  # its reference
    layers: bool  # whether all tensors are compared
    target: str  # of the compiled model
    # returns the model as the importer made it, with the outputs that are compared, and its weights
    imported: Callable[[], tuple[IRModule, Mapping[str, Array]]]


@dataclass(frozen=True, eq=False)
class _Witnesses:
    """The model in float64 and the rounding of the reference for one set of inputs; computed by the first call."""

    exact: Callable[[], dict[str, Array] | None]
    rounding: Callable[[], dict[str, float]]


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
        witnesses = _Witnesses(
            cache(lambda: self._exact_outputs(tensors, inputs)), cache(lambda: self._own_rounding(tensors, inputs))
        )
        return [self._judged(item, witnesses, ours, theirs) for item, ours, theirs in doubtful]

    def _judged(self, item: Difference, witnesses: _Witnesses, ours: Array, theirs: Array) -> Difference:
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
        by_tensor: dict[str, list[str]] = {}
        for (tensor, _), name in zip(scores, names, strict=True):
            by_tensor.setdefault(tensor, []).append(name)
        return model, dict(by_tensor)

    @cached_property
    def _rounding(self) -> OwnRounding:
        is_quantized = rounds_inside(list(self._tensors.values()))
        return OwnRounding(
            self._subject.path, self._subject.title, layers=self._subject.layers, is_quantized=is_quantized
        )

    def _exact_outputs(self, tensors: Collection[str], inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return tensors in float64, and the scores that decided them, if the model has that form."""
        if self._exact is None:
            return None
        model, scores = self._exact
        kept = {*tensors, *(name for tensor in tensors for name in scores.get(tensor, ()))}
        return {name: array for name, array in flattened(model.run(inputs)).items() if name in kept}

    def _own_rounding(self, tensors: Collection[str], inputs: Mapping[str, Array]) -> dict[str, float]:
        """Return how much of the reference's tensors is rounding."""
        return self._rounding.of(tensors, {**(self._imported[0].frozen if self._imported else {}), **inputs})

    def _by_rounding(
        self, item: Difference, limit: float, witnesses: _Witnesses, ours: Array, theirs: Array
    ) -> Difference:
        exact, rounding = witnesses.exact(), witnesses.rounding()[item.tensor]
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
        near = min(_AS_MUCH * reference_error, _NEAR * _largest(truth))
        excused = item.largest <= plausible or (
            reference_error <= max(plausible, _LAST_BITS * limit) and error <= max(plausible, near)
        )
        if steps and excused:
            excused = _few(ours, theirs, truth)
        return replace(item, excuse=ROUNDING if excused else "", evidence=evidence)

    def _by_scores(
        self, item: Difference, decision: Decision, witnesses: _Witnesses, ours: Array, theirs: Array
    ) -> Difference:
        exact = witnesses.exact()
        if exact is None or self._exact is None:
            return item
        scores = [exact[name] for name in self._exact[1][item.tensor]]
        found = gaps(decision, scores, ours, theirs)
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


def _largest(array: Array) -> float:
    sizes = np.abs(array.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _few(ours: Array, theirs: Array, truth: Array) -> bool:
    """Tell whether no more integers are off than where rounding went the other way now and then."""
    wrong, wrong_there = ((array.ravel() != truth.ravel()).sum() for array in (ours, theirs))
    return bool(wrong <= max(1.0, 4.0 * float(wrong_there), _STEPS * truth.size))
