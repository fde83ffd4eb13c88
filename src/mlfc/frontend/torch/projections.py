"""LSTM layers that project their hidden state (``proj_size``), which ONNX's LSTM does not: in steps of plain operators.

PyTorch's exporter takes the projection for the weights of another direction, so it never sees such a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import lstm_impl

_LAYER = torch.ops.aten.lstm.input
# with a projection there is one weight more than the input's, the recurrent one and perhaps both biases
_PER_LAYER = {True: 5, False: 3}


def without_projections(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without LSTM layers that project; others stay as they are."""
    layers = [node for node in exported.graph.nodes if node.op == "call_function" and node.target == _LAYER]
    if not any(_projects(*node.args) for node in layers):
        return exported
    return exported.run_decompositions({_LAYER: _steps})


def _projects(_data: Any, _states: Any, weights: Any, has_biases: bool, layers: int, *rest: Any) -> bool:
    directions = 2 if rest[2] else 1
    return len(weights) == _PER_LAYER[has_biases] * layers * directions


def _steps(*args: Any) -> Any:
    return lstm_impl(*args) if _projects(*args) else NotImplemented
