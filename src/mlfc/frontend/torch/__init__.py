"""PyTorch frontend: torch.export captures a model, and PyTorch's exporter converts it to ONNX in memory.

The exporter supports over six hundred ATen operators, preserves layers such as LSTM, and records the source line of
each node.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

__all__ = ["Captured", "is_torch_model"]


def is_torch_model(model: Any) -> bool:
    """Return whether an object is a PyTorch module, an exported program, or an ONNX program."""
    torch = sys.modules.get("torch")  # already imported if such an object exists
    if torch is None or not hasattr(torch, "export"):
        return False
    return isinstance(model, (torch.nn.Module, torch.export.ExportedProgram, torch.onnx.ONNXProgram))


@dataclass(frozen=True)
class Captured:
    """A captured PyTorch model."""

    data: bytes  # a serialized ONNX model
    name: str  # the module's class name
    states: Mapping[str, str] = field(default_factory=dict)  # buffers that `forward` writes, and their next values
    state_init: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # initial values other than zeros
    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # of inputs with dynamic dimensions
