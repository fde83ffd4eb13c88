"""How far every layer of an int8 model is from that of the float model it was made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.quantize.calibration import Sets
from mlfc.support.arrays import Array
from mlfc.verify.accuracy import Accuracy, Labels
from mlfc.verify.inputs import read_labels
from mlfc.verify.onnxruntime import OnnxRuntimeReference

_COMPARED = 16  # sets of inputs whose layers are compared
_DEQUANTIZED = ("_DequantizeLinear_Output", "_DequantizeLinear_Output_1")


@dataclass(frozen=True)
class LayerError:
    """One tensor in both models.

    Attributes
    ----------
    tensor, node, operator : str
        Its name, and the name and operator of the node that computes it.
    largest : float
        The largest magnitude in the float model.
    largest_error : float
        The largest difference.
    noise_db : float
        The ratio of signal to noise in decibels, ``10 log10(sum x^2 / sum (x - y)^2)``; infinite if they are equal.
    """

    tensor: str
    node: str
    operator: str
    largest: float
    largest_error: float
    noise_db: float


@dataclass
class _Sums:
    largest: float = 0.0
    error: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, ours: Array, exact: Array) -> None:
        x, y = exact.astype(np.float64), ours.astype(np.float64)
        if x.size:
            self.largest = max(self.largest, float(np.abs(x).max()))
            self.error = max(self.error, float(np.abs(x - y).max()))
            self.signal += float(np.square(x).sum())
            self.noise += float(np.square(x - y).sum())

    @property
    def noise_db(self) -> float:
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


def layer_errors(
    float_model: Path, int8_model: Path, sets: Sets, labels: Path | None
) -> tuple[tuple[LayerError, ...], tuple[LayerError, ...], Accuracy | None]:
    """Run both models, and return how all layers and the outputs differ, and the accuracy where there are labels."""
    import onnx

    graph = onnx.load(float_model, load_external_data=False).graph
    makers = {name: node for node in graph.node for name in node.output if name}
    outputs = [item.name for item in graph.output]
    sums: dict[str, _Sums] = {}
    exact, ours = (OnnxRuntimeReference(path, layers=True) for path in (float_model, int8_model))
    for given in sets[:_COMPARED]:
        wanted, found = exact.run(given), ours.run(given)
        for name, value in wanted.items():
            other = _dequantized(found, name)
            if other is not None and other.shape == value.shape and value.dtype.kind == "f":
                sums.setdefault(name, _Sums()).add(other, value)
    ordered = [name for name in makers if name in sums]
    layers = tuple(_error(name, makers[name], sums[name]) for name in ordered)
    accuracy = None if labels is None else _accuracy(float_model, int8_model, sets, labels, outputs)
    return layers, tuple(item for item in layers if item.tensor in outputs), accuracy


def _error(name: str, node: Any, sums: _Sums) -> LayerError:
    return LayerError(name, node.name, node.op_type, sums.largest, sums.error, sums.noise_db)


def _dequantized(found: Mapping[str, Array], name: str) -> Array | None:
    """Return a tensor as the layers behind it get it: after quantizing, where that is done."""
    return next((found[key] for key in (*(f"{name}{end}" for end in _DEQUANTIZED), name) if key in found), None)


def _accuracy(float_model: Path, int8_model: Path, sets: Sets, labels: Path, outputs: Sequence[str]) -> Accuracy:
    if not outputs:
        raise InputError("the model has no output that could be a class", place=str(labels))
    counted = Labels(read_labels(labels, len(sets)), outputs[0])
    exact, ours = OnnxRuntimeReference(float_model), OnnxRuntimeReference(int8_model)
    for given in sets:
        counted.count(ours.run(given), exact.run(given))
    return counted.accuracy
