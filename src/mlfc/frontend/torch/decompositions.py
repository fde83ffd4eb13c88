"""What PyTorch's exporter has no form of, in plain operators: LSTM layers that project their state, adaptive pooling.

ONNX's LSTM has no projection (``proj_size``), and the exporter takes its weights for those of another direction, so it
never sees such a layer. Adaptive pooling in windows of several sizes has no operator in ONNX; a window is the product
of its ranges along the dimensions, so each dimension is pooled alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp.decompositions import lstm_impl

_LAYER = torch.ops.aten.lstm.input
# with a projection there is one weight more than the input's, the recurrent one and perhaps both biases
_PER_LAYER = {True: 5, False: 3}
_ATEN = torch.ops.aten
_AVERAGES = (
    _ATEN.adaptive_avg_pool1d.default,
    _ATEN.adaptive_avg_pool2d.default,
    _ATEN._adaptive_avg_pool2d.default,
    _ATEN.adaptive_avg_pool3d.default,
    _ATEN._adaptive_avg_pool3d.default,
)
_MAXIMA = (
    _ATEN.adaptive_max_pool1d.default,
    _ATEN.adaptive_max_pool2d.default,
    _ATEN.adaptive_max_pool3d.default,
)
_INDICES = 1  # of the results of a maximum


def decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without the layers that this file knows; others stay as they are."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    found: dict[Any, Callable[..., Any]] = {}
    if any(_projects(*node.args) for node in nodes if node.target == _LAYER):
        found[_LAYER] = _steps
    found |= {node.target: _averages for node in nodes if node.target in _AVERAGES}
    maxima = [node for node in nodes if node.target in _MAXIMA]
    located = {node.target for node in maxima if any(user.args[1] == _INDICES and user.users for user in node.users)}
    found |= {node.target: _maxima for node in maxima if node.target not in located}
    return exported.run_decompositions(found) if found else exported


def _projects(_data: Any, _states: Any, weights: Any, has_biases: bool, layers: int, *rest: Any) -> bool:
    directions = 2 if rest[2] else 1
    return len(weights) == _PER_LAYER[has_biases] * layers * directions


def _steps(*args: Any) -> Any:
    return lstm_impl(*args) if _projects(*args) else NotImplemented


def _averages(data: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return _pooled(data, sizes, torch.mean)


def _maxima(data: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    values = _pooled(data, sizes, torch.amax)
    # nobody uses the places
    return values, torch.zeros_like(values, dtype=torch.int64)


def _pooled(data: torch.Tensor, sizes: Sequence[int], reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Return the last dimensions in so many windows each: window i of k out of n is from floor(i n / k) to its end.

    As in PyTorch it ends at ceil((i + 1) n / k), so that neighbours overlap unless k divides n.
    """
    for dim, count in zip(range(data.dim() - len(sizes), data.dim()), sizes, strict=True):
        extent = data.shape[dim]
        if count == 0:
            data = data.narrow(dim, 0, 0)
            continue
        if extent % count == 0:
            data = reduce(data.unflatten(dim, (count, extent // count)), dim + 1)
            continue
        ranges = [(index * extent // count, -(-(index + 1) * extent // count)) for index in range(count)]
        windows = [reduce(data.narrow(dim, start, end - start), dim, keepdim=True) for start, end in ranges]
        data = torch.cat(windows, dim)
    return data
