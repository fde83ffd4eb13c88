"""Runs a compiled model and its reference on the same inputs and measures the differences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlforge.archive.load import artifact_kind, load, load_factory
from mlforge.compiler import Factory, build
from mlforge.errors import OptionError
from mlforge.frontend import import_model
from mlforge.micro.board import Board, find_board
from mlforge.micro.emulator import emulated_archive, emulated_factory
from mlforge.micro.trace import check_traces
from mlforge.runtime import TensorInfo
from mlforge.runtime.arrays import Array
from mlforge.runtime.fill import fill
from mlforge.runtime.runnable import Computes
from mlforge.verify.board_layers import BoardLayers
from mlforge.verify.layers import with_all_tensors

FLOAT_TOLERANCE = 1e-5
"""Allowed |difference| of floats, as a part of the largest |reference value| of the tensor."""

LITERT = "LiteRT"
QUANTUM_TOLERANCE = {LITERT: 0, "ONNX Runtime": 1}
"""Allowed |difference| of integers: LiteRT's reference kernels define the result, ONNX Runtime's round in their way."""


class Reference(Protocol):
    """What computes the results to compare with."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors by name."""
        ...


@dataclass(frozen=True)
class Difference:
    """How far one tensor is from its reference, over all samples.

    Attributes
    ----------
    tensor : str
    dtype : str
    largest : float
        Largest absolute difference; infinite where one has a NaN that the other has not.
    tolerance : float
        What is allowed in the sample that has the largest.
    sample : str
        Which sample that is.
    elements : int
        How many elements of that sample differ by more than is allowed.
    element : int
        Which one differs most, counted in C order.
    nodes : tuple of str
        The original nodes that compute it, where layers are looked at on a board.
    is_unlike_host : bool
        Whether a board computes another tensor than this machine does from the same C.
    """

    tensor: str
    dtype: str
    largest: float
    tolerance: float
    sample: str
    elements: int = 0
    element: int = 0
    nodes: tuple[str, ...] = ()
    is_unlike_host: bool = False

    @property
    def is_within(self) -> bool:
        """Whether the tensor counts as equal to its reference."""
        return self.largest <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """The result of `verify`.

    Attributes
    ----------
    reference : str
        ``LiteRT`` or ``ONNX Runtime``.
    samples : int
        How many sets of inputs were run.
    outputs : tuple of Difference
        Of the model's outputs.
    layers : tuple of Difference
        Of every layer in the order of computation, where that was asked for.
    """

    reference: str
    samples: int
    outputs: tuple[Difference, ...]
    layers: tuple[Difference, ...] = ()

    @property
    def is_within(self) -> bool:
        """Whether every tensor counts as equal to its reference."""
        return all(item.is_within for item in (*self.outputs, *self.layers))

    @property
    def first_differing(self) -> Difference | None:
        """The first layer (or output) that differs from its reference."""
        return next((item for item in (*self.layers, *self.outputs) if not item.is_within), None)


def verify(
    model: str | os.PathLike[str],
    artifact: str | os.PathLike[str] | None = None,
    *,
    module: str | None = None,
    samples: int = 10,
    seed: int = 0,
    layers: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: str = "c",
    optimize: str = "speed",
    numerics: str = "litert",
    board: str | None = None,
) -> Comparison:
    """Compare a model with its reference on seeded random inputs and on all-minimum, all-maximum and zero inputs.

    Parameters
    ----------
    model : path
        The original TFLite or ONNX model.
    artifact : path, optional
        What it was compiled to; compiled here where it is not given.
    module : str, optional
        Which module of the artifact.
    samples : int
        Random sets of inputs, besides the three special ones.
    seed : int
    layers : bool
        Compare every layer. The model is then compiled here with every tensor as an output; for a board it is compiled
        as it ships, and its operators are compared, by checksums (`board_layers`).
    shapes, target, optimize, numerics
        As for importing and building, where the model is compiled here. With ``tflm`` numerics the reference is
        LiteRT nevertheless: it shows how far TensorFlow Lite Micro's rounding is from LiteRT's.
    board : str, optional
        Compile for this board instead of `target`, and run as firmware under its emulator.

    Raises
    ------
    MlforgeError
        If the model cannot be compiled or the reference is not installed or refuses it.
    """
    if samples < 0:
        raise OptionError(f"{samples} samples are too few", next_step="Use 0 or more")
    if layers and artifact is not None:
        raise OptionError(
            "an artifact has no layers to look at", next_step="Leave out the artifact or --layers, and compare again"
        )
    title, reference = _reference(Path(model), layers)
    chosen = None if board is None else find_board(board)
    if artifact is not None:
        compiled: Computes = _loaded(artifact, module, chosen)
        outputs = [info.name for info in compiled.outputs]
    else:
        imported, params = import_model(Path(model), shapes=shapes, numerics=numerics)
        outputs = list(imported.output_names)
        factory = build(
            with_all_tensors(imported) if layers and chosen is None else imported,
            chosen.target if chosen else target,
            params,
            optimize=optimize,
            numerics=numerics,
            module_name="verified",
        )
        if chosen and layers:
            return _compared_layers(factory, chosen, reference, title, samples, seed)
        compiled = emulated_factory(factory, chosen) if chosen else load_factory(factory)
    sets = list(sample_inputs(compiled.inputs, samples, seed))
    found = _compare(compiled, reference, sets, title)
    return Comparison(
        title,
        len(sets),
        tuple(item for item in found if item.tensor in outputs),
        tuple(found) if layers else (),
    )


def _compared_layers(
    factory: Factory, board: Board, reference: Reference, title: str, samples: int, seed: int
) -> Comparison:
    """Compare every operator on a board."""
    check_traces(board)
    compiled = BoardLayers(factory, emulated_factory(factory, board, trace=True))
    outputs = [info.name for info in compiled.outputs]
    # tensors inside of an ONNX model are channels-first, and the operators' are channels-last
    known = None if title == LITERT else outputs
    sets = list(sample_inputs(compiled.inputs, samples, seed))
    found = _compare(compiled, _BesideHost(reference, compiled, known), sets, title)
    named = tuple(_with_nodes(item, compiled) for item in found)
    return Comparison(title, len(sets), tuple(item for item in named if item.tensor in outputs), named)


class _BesideHost:
    """A reference that takes from this machine what it does not have itself, and all but the tensors `known`."""

    def __init__(self, reference: Reference, compiled: BoardLayers, known: Sequence[str] | None) -> None:
        self._reference, self._compiled, self._known = reference, compiled, known

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        expected = self._reference.run(inputs)
        if self._known is not None:
            expected = {name: expected[name] for name in self._known}
        return {**self._compiled.on_host(inputs), **expected}


def _with_nodes(item: Difference, compiled: BoardLayers) -> Difference:
    layer = compiled.layers.get(item.tensor)
    nodes = layer.nodes if layer else ()
    return replace(item, nodes=nodes, is_unlike_host=item.tensor in compiled.unlike_host)


def _loaded(artifact: str | os.PathLike[str], module: str | None, board: Board | None) -> Computes:
    return load(artifact, module=module) if board is None else emulated_archive(artifact, board, module)


def sample_inputs(infos: Sequence[TensorInfo], samples: int, seed: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield named sets of inputs: `samples` random ones, then the corners of the value range."""
    for index in range(samples):
        yield f"random {index}", fill(infos, "random", seed + index)
    for title in ("minimum", "maximum", "zero point"):
        yield title, {info.name: np.full(info.shape, _corner(info, title), info.numpy_dtype) for info in infos}


def _corner(info: TensorInfo, title: str) -> int:
    if title == "zero point":
        return info.zero_point or 0
    kind = info.numpy_dtype.kind
    if kind not in "iu":
        return 1 if title == "maximum" else 0 if kind == "b" else -1
    if info.numpy_dtype.itemsize > 2 and info.scale is None:
        # indices: an extreme one would lie outside of what it points into
        return 1 if title == "maximum" else 0
    limits = np.iinfo(info.numpy_dtype)
    return int(limits.max if title == "maximum" else limits.min)


def _reference(path: Path, layers: bool) -> tuple[str, Reference]:
    if artifact_kind(path) != "model":
        raise OptionError(
            "this was compiled already; only the original model can be run by its reference",
            place=str(path),
            next_step="Write: mlforge verify MODEL ARTIFACT",
        )
    with path.open("rb") as file:
        start = file.read(8)
    if start[4:] == b"TFL3":
        from mlforge.verify.litert import Reference as LiteRT

        return LITERT, LiteRT(path)
    from mlforge.verify.onnxruntime import Reference as OnnxRuntime

    return "ONNX Runtime", OnnxRuntime(path, layers=layers)


def _compare(
    compiled: Computes, reference: Reference, sets: Sequence[tuple[str, dict[str, Array]]], title: str
) -> list[Difference]:
    worst: dict[str, Difference] = {}
    for sample, inputs in sets:
        expected = reference.run(inputs)
        for name, array in compiled.run(inputs).items():
            if name not in expected:
                continue
            item = _difference(name, array, expected[name], sample, QUANTUM_TOLERANCE[title])
            known = worst.get(name)
            if known is None or _badness(item) > _badness(known):
                worst[name] = item
    return list(worst.values())


def _badness(item: Difference) -> tuple[bool, float]:
    return not item.is_within, item.largest


def _difference(name: str, ours: Array, theirs: Array, sample: str, quanta: int) -> Difference:
    if ours.size != theirs.size:
        return Difference(name, ours.dtype.name, float("inf"), 0.0, sample, ours.size)
    wide: Any = np.int64 if ours.dtype.kind in "iub" else np.float64
    a, b = ours.astype(wide).ravel(), theirs.astype(wide).ravel()
    if wide is np.int64:
        return _difference_of(name, ours, np.abs(a - b).astype(np.float64), float(quanta), sample)
    with np.errstate(invalid="ignore"):
        # infinities of one sign are equal, though their difference is not a number
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    apart = np.where(np.isnan(apart), np.inf, apart)
    finite = np.abs(b[np.isfinite(b)])
    return _difference_of(name, ours, apart, FLOAT_TOLERANCE * float(finite.max(initial=0.0)), sample)


def _difference_of(name: str, ours: Array, apart: Array, tolerance: float, sample: str) -> Difference:
    element = int(apart.argmax()) if apart.size else 0
    largest = float(apart.max(initial=0.0))
    return Difference(name, ours.dtype.name, largest, tolerance, sample, int((apart > tolerance).sum()), element)
