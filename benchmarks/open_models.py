"""Public models with dynamic dimensions, compiled once and run at several sizes, compared with ONNX Runtime."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from rich.table import Table

import mlfc
from benchmarks.public_models import MODELS, PublicModel, UnavailableError, collect
from mlfc.cli.options import parse_values
from mlfc.errors import MlfcError
from mlfc.frontend.shapes import parse_shapes

TOLERANCE, HALF_TOLERANCE = 1e-4, 4e-3
"""Relative to the largest value of the output: sums are added in another order."""
_TOKENS = 10  # upper bound of integer inputs
_CAUSE = 160

Arrays = dict[str, npt.NDArray[Any]]


def table(words: Sequence[str] = ()) -> Table:
    """Return a table of the dynamic models with one of these words in their names, or of all."""
    result = Table(title="Models from packages, compiled once with open dimensions, and ONNX Runtime")
    for title in ("model", "inputs", "sizes", "import, s", "verdict", "largest difference"):
        result.add_column(title)
    counts = [0, 0]
    for model in MODELS:
        if model.sizes and (not words or any(word in model.name or word in model.sha256 for word in words)):
            found = row(model)
            counts = [counts[0] + (found[3] == "equal"), counts[1] + 1]
            result.add_row(model.name, *found)
    result.caption = f"{counts[0]} of {counts[1]} are equal; differences are parts of the output's largest value"
    return result


def row(model: PublicModel) -> list[str]:
    """Return the dimensions of a model, and its result."""
    count = str(len(model.sizes))
    try:
        collect([model])
        start = time.process_time()
        module, _ = mlfc.import_model(model.path, dynamic=True)
        seconds = f"{time.process_time() - start:.1f}"
        del module
        compiled = mlfc.compile(model.path, "llvm")
    except (UnavailableError, MlfcError) as error:
        return ["", count, "", str(error).splitlines()[0][-_CAUSE:], ""]
    if all(isinstance(extent, int) for info in compiled.inputs for extent in info.shape):
        return ["", count, seconds, "compiled for fixed shapes", ""]
    shown = ", ".join(f"{info.name}: {'x'.join(map(str, info.shape))}" for info in compiled.inputs if info.shape)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    worst, is_equal, is_static = 0.0, True, True
    for index, size in enumerate(model.sizes):
        inputs = _inputs(session, size, index)
        try:
            found = compiled.run(inputs)
        except MlfcError as error:
            return [shown, count, seconds, f"{' '.join(size)}: {error}"[:_CAUSE], ""]
        wanted = session.run(None, inputs)
        parts = (_difference(found[name], one) for name, one in zip(_names(session), wanted, strict=True))
        for part, one in zip(parts, wanted, strict=True):
            is_equal &= part <= (HALF_TOLERANCE if one.dtype == np.float16 else TOLERANCE)
            worst = max(worst, part)
        if not is_equal and is_static:
            is_static = _equals_static(model, inputs, found)
    verdict = "equal" if is_equal else "as compiled for the shape" if is_static else "DIFFERS"
    return [shown, count, seconds, verdict, f"{worst:.1e}"]


def _equals_static(model: PublicModel, inputs: Arrays, found: Mapping[str, Any]) -> bool:
    """Return whether the model compiled for the shapes of these inputs gives the same bits."""
    fixed = mlfc.compile(model.path, "llvm", shapes={name: array.shape for name, array in inputs.items()})
    return all(
        found[name].shape == array.shape and found[name].tobytes() == array.tobytes()
        for name, array in fixed.run(inputs).items()
    )


def _names(session: Any) -> list[str]:
    return [output.name for output in session.get_outputs()]


def _inputs(session: Any, size: Sequence[str], seed: int) -> Arrays:
    """Return inputs for sizes: ``name=SHAPE`` gets random numbers, ``name=@VALUE`` that value."""
    rng = np.random.default_rng(seed)
    values = {text.partition("=")[0]: text for text in size}
    found: Arrays = {}
    for item in session.get_inputs():
        dtype = _DTYPES[re.sub(r"tensor\((.*)\)", r"\1", item.type)]
        given = values.get(item.name)
        if given is not None and given.partition("=")[2].startswith("@"):
            number = parse_values([given.replace("=@", "=")])[item.name]
            found[item.name] = np.asarray(number, dtype).reshape([1] * len(item.shape))
            continue
        shape = parse_shapes([given])[item.name] if given is not None else item.shape
        kind = np.dtype(dtype).kind
        drawn = rng.normal(size=shape) if kind == "f" else rng.integers(0, 2 if kind == "b" else _TOKENS, shape)
        found[item.name] = np.asarray(drawn, dtype)
    return found


_DTYPES: Mapping[str, Any] = {
    "float": np.float32, "float16": np.float16, "double": np.float64, "bool": np.bool_, "int64": np.int64,
    "int32": np.int32, "int16": np.int16, "uint8": np.uint8, "int8": np.int8, "uint32": np.uint32,
}  # fmt: skip


def _difference(found: npt.NDArray[Any], wanted: Any) -> float:
    """Return the largest difference relative to the largest value; infinite for different shapes."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if not wanted.size or np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f"):
        return 0.0
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    kept = np.isfinite(other)
    return float(np.abs(one - other)[kept].max() / max(np.abs(other[kept]).max(), 1e-30))
