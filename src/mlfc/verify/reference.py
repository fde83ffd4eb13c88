"""What a reference implementation is, and which one a model has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mlfc.archive.read.load import artifact_kind
from mlfc.errors import OptionError
from mlfc.support.arrays import Array

LITERT = "LiteRT"
ONNX_RUNTIME = "ONNX Runtime"


class Reference(Protocol):
    """What computes the results to compare with."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return tensors by name."""
        ...


def open_reference(path: Path, *, layers: bool) -> tuple[str, Reference]:
    """Return the name of a model's reference, and the model opened by it.

    `path`: a TFLite or ONNX model.
    `layers`: whether all tensors are wanted, not the model's outputs alone.

    Raises OptionError if it is no model but compiled; ToolchainError if the reference is not installed; ModelError if
    it refuses the model.
    """
    if artifact_kind(path) != "model":
        raise OptionError(
            "this was compiled already; only the original model can be run by its reference",
            place=str(path),
            next_step="Write: mlfc verify MODEL ARTIFACT",
        )
    with path.open("rb") as file:
        start = file.read(8)
    if start[4:] == b"TFL3":
        from mlfc.verify.litert import Reference as LiteRT

        return LITERT, LiteRT(path)
    from mlfc.verify.onnxruntime import Reference as OnnxRuntime

    return ONNX_RUNTIME, OnnxRuntime(path, layers=layers)
