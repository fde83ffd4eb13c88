"""Comparison of a compiled model with its reference on the same inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.archive.loading import load
from mlfc.archive.read.load import load_factory
from mlfc.archive.read.opening import open_archive
from mlfc.archive.read.source import read_source
from mlfc.compiler import build_module
from mlfc.errors import InputError, MlfcError, ModelError, OptionError, RunError
from mlfc.factory import Factory
from mlfc.frontend import Model, import_for_run, model_file, model_name, read_model
from mlfc.micro.board.board import Board, find_board
from mlfc.micro.run.emulator import EmulatedModule, emulated_archive, emulated_factory
from mlfc.micro.run.firmware_run import check_traces
from mlfc.options import BuildOptions
from mlfc.relay.ir import Call, GlobalVar, If, IRModule
from mlfc.relay.visitor import post_order
from mlfc.runtime.executors.states import ModelState
from mlfc.runtime.modules.module import pick_module
from mlfc.runtime.modules.runnable import Computes
from mlfc.support.keywords import with_keywords
from mlfc.support.module_info import StateInfo
from mlfc.support.progress import bar, reported
from mlfc.support.tensor_info import Array, ContainerInfo
from mlfc.support.text import Displayed, html_table
from mlfc.support.user_files import load_user_files
from mlfc.verify.board_layers import BesideHost, BoardLayers, WholeSequence, differing_groups, with_overlaps
from mlfc.verify.difference import Accuracy, Difference, Labels, Tolerance, difference
from mlfc.verify.inputs import (
    DRAWS,
    Asked,
    element_shapes,
    made_up_sets,
    naming_inputs,
    pairs,
    read_sets,
    sample_inputs,
    unlike,
)
from mlfc.verify.judge import Judge, Subject
from mlfc.verify.options import VerifyOptions
from mlfc.verify.reference import LITERT, Reference, Stepping, WithFrozen, open_reference, with_all_tensors

Sets = Sequence[tuple[str, dict[str, Any]]]
Imported = Callable[[], tuple[IRModule, Mapping[str, Array]]]
_NO_TENSOR = "it has no tensor in any input set"


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The result of `verify`.

    Attributes
    ----------
    reference : str
        ``LiteRT``, ``ONNX Runtime``, ``NumPy`` for own operators, or ``ONNX Runtime and NumPy``.
    samples : int
        Number of input sets that were run.
    refused : int
        Number of generated input sets that the reference rejected, which were not compared.
    outputs : tuple of Difference
        Differences of the model's outputs, computed by the normal build.
    layers : tuple of Difference
        Differences of all layers in the order of computation, with the option `layers`. On this machine each layer is
        compiled separately; on a board these are the operators of the normal build.
    groups : tuple of Difference
        Differences of fused groups of the normal build, with the option `layers` and if its outputs differ.
    unseen : tuple of str
        With the option `layers`, the nodes with branches and loops, whose inner nodes were not compared.
    accuracy : Accuracy or None
        The accuracy, if labels were provided.
    """

    reference: str
    samples: int
    outputs: tuple[Difference, ...]
    layers: tuple[Difference, ...] = ()
    groups: tuple[Difference, ...] = ()
    accuracy: Accuracy | None = None
    refused: int = 0
    unseen: tuple[str, ...] = ()

    def _facts(self) -> Mapping[str, object]:
        found = {"reference": self.reference, "samples": self.samples, "is_within": self.is_within}
        return {**found, "first_differing": first.tensor} if (first := self.first_differing) else found

    def _repr_html_(self) -> str:
        header = ("tensor", "dtype", "largest difference", "tolerance", "equal")
        rows = [
            (item.tensor, item.dtype, item.largest, item.tolerance, "yes" if item.is_within else "no")
            for item in (*self.layers, *self.groups, *self.outputs)
        ]
        return html_table(f"{self.samples} samples, {self.reference}", header, rows)

    @property
    def is_within(self) -> bool:
        """True if every tensor counts as equal to its reference."""
        return all(item.is_within for item in (*self.outputs, *self.layers))

    @property
    def first_differing(self) -> Difference | None:
        """The first differing layer, else fused group, else output; None if all are equal."""
        return next((item for item in (*self.layers, *self.groups, *self.outputs) if not item.is_within), None)


def _tolerance(options: VerifyOptions) -> Tolerance | None:
    """Return the tolerance that the options set, if any."""
    rtol, atol = options.rtol, options.atol
    return None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)


def _sets(options: VerifyOptions, compiled: Computes, reference: Reference, imported: Imported) -> tuple[Sets, int]:
    """Return the input sets, and the number of further sets that the reference rejects."""
    if options.inputs is not None:
        return read_sets(Path(options.inputs), compiled.inputs), 0
    # only dynamic models have bounds
    bounds: Mapping[str, tuple[int, int]] = getattr(compiled, "extents", {})
    try:
        module, params = imported()
    except MlfcError:  # the import options of an artifact may be unknown
        module, params = None, {}

    def accepts(inputs: Mapping[str, Any]) -> bool:
        try:
            reference.run(inputs)
        except ModelError:
            return False
        finally:
            reference.begin()
        return True

    if not any(isinstance(info, ContainerInfo) for info in compiled.inputs):
        best: Sets = []
        most = -1
        for draw in DRAWS:
            sets = list(sample_inputs(compiled.inputs, options.samples, options.seed, bounds, module, draw, params))
            if sets and accepts(sets[0][1]):
                return sets, 0
            accepted = sum(accepts(inputs) for _, inputs in sets)
            if accepted > most:
                best, most = sets, accepted
        return best, 0
    elements = element_shapes(module) if module else {}
    return made_up_sets(Asked(compiled.inputs, bounds, elements, options.samples, options.seed), accepts)


def _built(options: VerifyOptions, module: IRModule, params: Mapping[str, Array]) -> Factory:
    built = BuildOptions(options.target, module_name="verified", optimize=options.optimize)
    return build_module(module, params, replace(built, limit_factor=options.limit_factor))


@dataclass(eq=False)
class _Comparing:
    """The comparison of one compiled model with one reference."""

    compiled: Computes
    reference: Reference
    sets: Sets
    tolerance: Tolerance | None
    judge: Judge | None
    labels: Labels | None = None
    say: Any = lambda *_: None  # a `Say` function
    required: Sequence[str] = ()  # outputs that both must return; layers are compared if both return them
    worst: dict[str, Difference] = field(default_factory=dict)
    empty: dict[str, Difference] = field(default_factory=dict)  # outputs without tensors in any input set
    is_drawn: bool = False  # whether the inputs are random, so that they may be invalid for the model
    refused: int = 0  # number of input sets that the reference rejects

    def run(self) -> list[Difference]:
        """Return the worst difference of every tensor. For models with states, the input sets are consecutive steps.

        For a sequence or optional, this is the worst of its tensors.
        """
        refusals: list[MlfcError] = []
        for done, (sample, inputs) in enumerate(self.sets):
            self.say(done, len(self.sets), sample)
            if refusal := self._run_set(sample, inputs):
                refusals.append(refusal)
        self.say(len(self.sets), len(self.sets), "")
        if refusals and len(refusals) == len(self.sets):
            raise InputError(
                f"the generated inputs are invalid for the model: {refusals[0].cause}",
                place=refusals[0].place,
                next_step="Provide valid ones: --inputs FILE.npz",
            ) from refusals[0]
        self.refused = len(refusals)
        return list({**self.empty, **self.worst}.values())

    def _run_set(self, sample: str, inputs: Mapping[str, Any]) -> MlfcError | None:
        """Compare the results for one input set; return the error if the reference rejects the set."""
        held: Mapping[str, Array] = getattr(self.reference, "held", {})
        # endless loops fail here, because runs count iterations
        try:
            found = dict(self.compiled.run(inputs))
        except (InputError, RunError):
            if not self.is_drawn:
                raise
            try:
                self.reference.run(inputs)
            except ModelError as error:  # the reference also rejects them
                return error
            raise
        try:
            expected = dict(self.reference.run(inputs))
        except ModelError as refusal:
            if not self.is_drawn or isinstance(self.reference, Stepping):  # the states would differ afterwards
                raise
            return refusal
        # a missing output must not count as equal
        ours = ("the compiled model", found, (*self.required, *sorted(self.reference.output_names)))
        for who, results, names in (("the reference", expected, self.required), ours):
            missing = [name for name in names if name not in results]
            if missing:
                shown = ", ".join(f"'{name}'" for name in list(results)[:8]) or "none"
                raise InputError(
                    f"expected an output '{missing[0]}', got {shown} from {who}",
                    next_step="Compare an artifact with the model that it was compiled from",
                )
        if self.labels is not None:
            self.labels.count(found, expected)
        items, doubtful = self._differences(sample, found, expected)
        judged = self.judge([*doubtful.values()], {**inputs, **held}) if self.judge and doubtful else ()
        for place, item in zip(doubtful, judged, strict=False):
            items[place] = items[place][0], item
        for name, part in items:
            item = part
            if part.tensor != name:
                within = part.is_within and not part.excuse
                where = "" if within else f"in {part.tensor}" + (f"; {part.note}" if part.note else "")
                item = replace(part, tensor=name, note=where)
            known = self.worst.get(name, item)
            worst = max(known, item, key=lambda one: (not one.is_within, one.largest))
            self.worst[name] = replace(worst, nans=max(item.nans, known.nans))
        return None

    def _differences(
        self, sample: str, found: dict[str, Any], expected: dict[str, Any]
    ) -> tuple[list[tuple[str, Difference]], dict[int, tuple[Difference, Array, Array]]]:
        """Return the differences with their output names, and those to judge, by index, with their tensors."""
        dtypes = {info.name: info.dtype for info in self.compiled.outputs}
        items: list[tuple[str, Difference]] = []
        doubtful: dict[int, tuple[Difference, Array, Array]] = {}
        for name in [name for name in found if name in expected]:
            value, other = found.pop(name), expected.pop(name)  # releases each tensor after its comparison
            dtype = dtypes.get(name) or value.dtype.name  # operators on a board are not outputs
            self.empty.setdefault(name, Difference(name, dtype, 0.0, 0.0, sample, note=_NO_TENSOR))
            if apart := unlike(value, other):
                items.append((name, _of_another_form(name, dtype, sample, apart)))
                continue
            for part, ours, theirs in pairs(name, value, other):
                item, is_doubtful = self._difference(sample, name, part, ours, theirs)
                if is_doubtful:
                    doubtful[len(items)] = item, ours, theirs
                items.append((name, item))
        found.clear()
        expected.clear()
        return items, doubtful

    def _difference(self, sample: str, name: str, part: str, ours: Array, theirs: Array) -> tuple[Difference, bool]:
        """Return the difference of a tensor, which may belong to the sequence `name`, and whether to judge it."""
        if name in self.required and ours.shape != theirs.shape and ours.size == theirs.size:
            shapes = f"shape {list(ours.shape)} against {list(theirs.shape)}"
            return _of_another_form(part, ours.dtype.name, sample, shapes), False
        item = difference(part, ours, theirs, sample, self.tolerance)
        known = self.worst.get(name)
        # a larger difference without an excuse is already reported, so the judge is not necessary
        is_settled = known is not None and not known.is_within and known.largest >= item.largest
        return item, not item.is_within and not is_settled


@with_keywords(VerifyOptions)
def verify(model: Model, options: VerifyOptions) -> Comparison:
    """Compare a model with its reference, on given inputs or on random, all-minimum, all-maximum and zero inputs.

    For a model with ``states``, the input sets are consecutive steps of one sequence. With ``numerics="tflm"`` the
    reference is still LiteRT: the differences show how far TensorFlow Lite Micro's rounding is from LiteRT's.

    Parameters
    ----------
    model : str, Path, bytes or onnx.ModelProto
        The original TFLite or ONNX model.

    Returns
    -------
    Comparison

    Raises
    ------
    MlfcError
        If the model cannot be compiled, or the reference is not installed or rejects it.

    Examples
    --------
    >>> mlfc.verify("digits.tflite", samples=2).is_within
    True
    """
    return verify_model(model, options)


def verify_model(model: Model, options: VerifyOptions) -> Comparison:
    """Compare a model with its reference as `verify` does."""
    load_user_files(options.operators)
    with model_file(model) as path, reported(options.progress, partial(bar, f"comparing {model_name(model)}")) as say:
        chosen = None if options.board is None else find_board(options.board)
        options = replace(options, progress=say, target=chosen.target if chosen else options.target)
        as_it_is = replace(options, states=None, state_init=None)
        title, reference = open_reference(path, layers=options.layers, signature=options.signature)
        if options.artifact is not None:
            compiled = _loaded(options.artifact, options.module, chosen)
            kept, begin = _states_of(options.artifact, options.module, compiled)
            tied = [info for info in kept if info.name in reference.input_names]
            known = {info.name: info.shape for info in (*compiled.inputs, *tied) if info.is_static}
            as_it_is, asked = replace(as_it_is, shapes=known), replace(options, shapes=known, byoc=())
        else:
            asked = options
        imported = cache(lambda: import_for_run(path, asked))
        if options.values:
            reference = WithFrozen(reference, imported()[0].frozen)
        if options.artifact is None:
            factory = _built(options, *imported())
            begin = {state.before.name: state.begin for state in factory.program.states}
            kept = factory.interface().states
        reference = _stepping(reference, kept, begin, partial(read_model, path, as_it_is))
        if options.artifact is not None:
            return _compared(options, path, title, reference, compiled, imported)
        if chosen and options.layers:
            return _compared_on_board(options, path, title, reference, factory, chosen, imported)
        compiled = emulated_factory(factory, chosen) if chosen else load_factory(factory)
        result = _compared(options, path, title, reference, compiled, imported)
        return _with_layers(options, path, reference, factory, imported, result) if options.layers else result


def _stepping(
    reference: Reference,
    states: Sequence[StateInfo],
    initial: Mapping[str, Array],
    as_it_is: Imported,
) -> Reference:
    """Return a reference that keeps the states of the compiled model; raise OptionError if initial values differ."""
    if not states:
        return reference
    variables = [info for info in states if info.name not in reference.input_names]
    own = {state.input: state.initial for state in as_it_is()[0].states} if variables else {}
    for info in variables:
        first = own.get(info.name)
        if not np.array_equal(initial[info.name], np.zeros(info.shape, info.numpy_dtype) if first is None else first):
            raise OptionError(
                f"the initial value of '{info.name}' differs from the reference's, which is the model's own",
                next_step="Compile the model without --state-init to compare it",
            )
    return Stepping(reference, states, initial)


def _states_of(
    artifact: str | os.PathLike[str] | Computes, module: str | None, compiled: Computes
) -> tuple[Sequence[StateInfo], Mapping[str, Array]]:
    """Return the states of an artifact, and their initial values."""
    if not isinstance(compiled, EmulatedModule):
        state = getattr(compiled, "state", None)
        return (state.infos, dict(state)) if isinstance(state, ModelState) else ((), {})
    if not compiled.states or not isinstance(artifact, (str, os.PathLike)):
        return (), {}
    with open_archive(artifact) as archive:
        name = pick_module(archive.record.modules, module, archive.path)
        begin = {state.input: state.initial for state in read_source(archive, name)[0].states}
        zeros = {info.name: np.zeros(info.shape, info.numpy_dtype) for info in compiled.states}
        kept = {name: np.array(array) for name, array in begin.items() if array is not None}
        return compiled.states, {**zeros, **kept}


def _compared(
    asked: VerifyOptions, path: Path, title: str, reference: Reference, compiled: Computes, imported: Imported
) -> Comparison:
    """Compare the outputs of compiled code."""
    sets, refused = _sets(asked, compiled, reference, imported)
    judge = _judge(asked, Subject(path, title, False, asked.target, imported), reference)
    labels = None if asked.labels is None else Labels.read(Path(asked.labels), len(sets), compiled.outputs)
    names = [info.name for info in compiled.outputs]
    if isinstance(compiled, EmulatedModule) and compiled.states:
        compiled = WholeSequence(compiled, [given for _, given in sets])
    comparing = _Comparing(compiled, reference, sets, _tolerance(asked), judge, labels, asked.progress, names)
    comparing.is_drawn = asked.inputs is None
    with naming_inputs(path, compiled.inputs, is_generated=asked.inputs is None):
        found = comparing.run()
    count, refused = len(sets) - comparing.refused, refused + comparing.refused
    return Comparison(title, count, tuple(found), accuracy=labels.accuracy if labels else None, refused=refused)


def _with_layers(
    asked: VerifyOptions, path: Path, reference: Reference, factory: Factory, imported: Imported, result: Comparison
) -> Comparison:
    """Compare every layer, compiled separately, and the fused groups of the normal build if its outputs differ."""
    module, params = imported()
    every = with_all_tensors(module)
    compiled = load_factory(_built(asked, every, params))
    sets, _ = _sets(asked, compiled, reference, imported)
    if isinstance(reference, Stepping):
        reference.begin()
    subject = Subject(path, result.reference, True, asked.target, lambda: (every, params))
    judge = _judge(asked, subject, reference)
    comparing = _Comparing(compiled, reference, sets, _tolerance(asked), judge, say=asked.progress)
    comparing.is_drawn = asked.inputs is None
    layers = tuple(comparing.run())
    wrong = {item.sample for item in result.outputs if not item.is_within}
    if isinstance(reference, Stepping):
        wrong = set()  # a single step would have other states
    groups = differing_groups(factory, reference, [one for one in sets if one[0] in wrong]) if wrong else ()
    if not groups and all(item.is_within for item in layers):
        result = replace(result, outputs=with_overlaps(result.outputs, factory))
    unseen: dict[str, None] = {}  # nodes with branches and loops
    for expr in post_order(module.main.body):
        if isinstance(expr, If) or (isinstance(expr, Call) and isinstance(expr.op, GlobalVar)):
            unseen.update(dict.fromkeys(expr.span.nodes))
    return replace(result, layers=layers, groups=groups, unseen=tuple(unseen))


def _judge(asked: VerifyOptions, subject: Subject, reference: Reference) -> Judge | None:
    """Return the judge of differences; None if a tolerance is set, or the reference keeps variables itself."""
    if _tolerance(asked) or (isinstance(reference, Stepping) and not reference.knows_all):
        return None

    def untied() -> tuple[IRModule, Mapping[str, Array]]:
        module, params = subject.imported()
        return replace(module, states=()), params

    return Judge(replace(subject, imported=untied, node=getattr(reference, "node", None)))


def _compared_on_board(
    asked: VerifyOptions,
    path: Path,
    title: str,
    reference: Reference,
    factory: Factory,
    board: Board,
    imported: Imported,
) -> Comparison:
    """Compare every operator on a board."""
    check_traces(board)
    compiled = BoardLayers(factory, emulated_factory(factory, board, trace=True))
    outputs = [info.name for info in compiled.outputs]
    # inner tensors of an ONNX model are channels-first, those of the operators are channels-last
    known = None if title == LITERT else outputs
    sets, _ = _sets(asked, compiled, reference, imported)
    judge = _judge(asked, Subject(path, title, True, asked.target, imported), reference)
    if factory.program.states:
        compiled.prepare([given for _, given in sets])
    beside = BesideHost(reference, compiled, known)
    with naming_inputs(path, compiled.inputs, is_generated=asked.inputs is None):
        found = _Comparing(compiled, beside, sets, _tolerance(asked), judge, say=asked.progress).run()
    named = tuple(compiled.described(item) for item in found)
    return Comparison(title, len(sets), tuple(item for item in named if item.tensor in outputs), named)


def _loaded(artifact: str | os.PathLike[str] | Computes, module: str | None, board: Board | None) -> Computes:
    if not isinstance(artifact, (str, os.PathLike)):
        if board is not None:
            raise OptionError("expected an archive to run on a board, got a loaded model", next_step="Pass its path")
        if not hasattr(artifact, "run"):
            raise OptionError(f"expected a path or a loaded model, got {artifact!r}", place="artifact")
        factory = getattr(artifact, "factory", None)
        # load the compiled model's code again, with separate states
        return load_factory(factory) if isinstance(factory, Factory) else artifact
    return load(artifact, module=module) if board is None else emulated_archive(artifact, board, module)


def _of_another_form(name: str, dtype: str, sample: str, note: str) -> Difference:
    return Difference(name, dtype, math.inf, 0.0, sample, cosine=0.0, snr=-math.inf, note=note)
