"""The PyTorch frontend: torch.export captures a module, PyTorch's exporter writes what it found as ONNX in memory.

The way leads through ONNX, not through an importer of ATen graphs, because PyTorch keeps it up: its exporter knows over
six hundred ATen operators, writes recurrent layers and attention as one node each, and notes for each node the module
and the line that it comes from. The price is a second of work for each model. Nothing is written to a file.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_torch_model"]


def is_torch_model(model: Any) -> bool:
    """Tell whether an object is one of PyTorch's: a module, an exported program, or an ONNX program.

    PyTorch is not imported for that: whoever made such an object has imported it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "export"):
        return False
    return isinstance(model, (torch.nn.Module, torch.export.ExportedProgram, torch.onnx.ONNXProgram))
