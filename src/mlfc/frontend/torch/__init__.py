"""The PyTorch frontend: PyTorch's exporter writes what torch.export captured as ONNX in memory.

It knows over six hundred ATen operators, keeps layers such as LSTM whole, and notes the line that each node comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

__all__ = ["Captured", "is_torch_model"]


def is_torch_model(model: Any) -> bool:
    """Return whether an object is one of PyTorch's: a module, an exported program, or an ONNX program."""
    torch = sys.modules.get("torch")  # it is imported if such an object exists
    if torch is None or not hasattr(torch, "export"):
        return False
    return isinstance(model, (torch.nn.Module, torch.export.ExportedProgram, torch.onnx.ONNXProgram))


@dataclass(frozen=True)
class Captured:
    """A captured PyTorch model."""

    data: bytes  # an ONNX model
    name: str  # the module's class
    states: Mapping[str, str] = field(default_factory=dict)  # buffers that `forward` writes, and their next values
    state_init: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # those that do not begin with zeros
    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # of inputs with open dimensions
