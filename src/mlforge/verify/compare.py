"""Runs a compiled model and its reference on the same inputs and measures the differences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from mlforge.verify.board_layers import BesideHost, BoardLayers
from mlforge.verify.difference import Difference, difference
from mlforge.verify.layers import with_all_tensors
from mlforge.verify.reference import LITERT, QUANTUM_TOLERANCE, Reference


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
    byoc: Sequence[str] = (),
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
    shapes, target, optimize, numerics, byoc
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
        imported, params = import_model(Path(model), shapes=shapes, numerics=numerics, byoc=byoc)
        outputs = list(imported.output_names)
        factory = build(
            with_all_tensors(imported) if layers and chosen is None else imported,
            chosen.target if chosen else target,
            params,
            optimize=optimize,
            numerics=numerics,
            module_name="verified",
            byoc=byoc,
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
    found = _compare(compiled, BesideHost(reference, compiled, known), sets, title)
    named = tuple(_with_nodes(item, compiled) for item in found)
    return Comparison(title, len(sets), tuple(item for item in named if item.tensor in outputs), named)


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
            item = difference(name, array, expected[name], sample, QUANTUM_TOLERANCE[title])
            known = worst.get(name)
            if known is None or _badness(item) > _badness(known):
                worst[name] = item
    return list(worst.values())


def _badness(item: Difference) -> tuple[bool, float]:
    return not item.is_within, item.largest
