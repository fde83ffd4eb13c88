"""What PyTorch's exporter has no form of, in plain operators: some LSTM layers, adaptive pooling, fused layers.

ONNX's LSTM has no projection (``proj_size``), and the exporter takes its weights for those of another direction, so it
never sees such a layer. Adaptive pooling in windows of several sizes has no operator in ONNX; a window is the product
of its ranges along the dimensions, so each dimension is pooled alone. What torch.compile captures of transformers has
the fused layers that PyTorch runs itself; torch.export captures their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._decomp.decompositions import lstm_impl
from torch.nn import functional as F  # noqa: N812  (its usual name)

from mlfc.errors import UnsupportedError
from mlfc.frontend.python_trace import line_in_trace

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
_DIVIDED = (_ATEN.avg_pool2d.default, _ATEN.avg_pool3d.default)
_DIVISOR_AT = 6  # among the arguments
# the exporter writes these by formulas that overflow where the operators do not
_OVERFLOWS = (_ATEN.special_erfcx.default, _ATEN.special_log_ndtr.default)
_INDICES = 1  # of the results of a maximum
_ENCODER_LAYER = _ATEN._transformer_encoder_layer_fwd.default
_ATTENTION = _ATEN._native_multi_head_attention.default


def decomposed(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without the layers that this file knows; others stay as they are."""
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    for node in nodes:
        if node.target in _OVERFLOWS:
            raise UnsupportedError(
                f"operator '{node.target}' has no form in ONNX that is right for all numbers",
                place=line_in_trace(node.meta.get("stack_trace") or ""),
                next_step="Replace the operator in forward by others",
            )
    found: dict[Any, Callable[..., Any]] = {}
    if any(_projects(*node.args) for node in nodes if node.target == _LAYER):
        found[_LAYER] = _steps
    fused = {_ENCODER_LAYER: _encoder_layer, _ATTENTION: _attention}
    found |= {node.target: fused[node.target] for node in nodes if node.target in fused}
    found |= {node.target: _averages for node in nodes if node.target in _AVERAGES}
    found |= {node.target: partial(_divided, node.target) for node in nodes if _has_divisor(node)}
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


def _has_divisor(node: torch.fx.Node) -> bool:
    return node.target in _DIVIDED and (len(node.args) > _DIVISOR_AT or "divisor_override" in node.kwargs)


def _divided(
    pool: Callable[..., torch.Tensor],
    data: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    counts_padding: bool = True,  # noqa: ARG001  (which changes no sum)
    divisor: int | None = None,
) -> Any:
    """Return averages with another divisor, which the exporter leaves out: of so many elements, times their number."""
    if divisor is None:
        return NotImplemented
    sizes = 3 if pool is _DIVIDED[1] else 2
    kernel, padding = ([*item] * (sizes // len(item)) for item in (kernel, padding))
    steps = [*stride] * (sizes // len(stride)) if stride else kernel
    averages = pool(data, kernel, steps, padding, ceil_mode, False, None)
    for axis in range(sizes):
        dim = data.dim() - sizes + axis
        extent, count = data.shape[dim], averages.shape[dim]
        starts = torch.arange(count) * steps[axis] - padding[axis]
        numbers = (starts + kernel[axis]).clamp(max=extent) - starts.clamp(min=0)
        averages = averages * numbers.to(data.dtype).reshape([-1] + [1] * (data.dim() - 1 - dim))
    return averages / divisor


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,  # noqa: ARG001  (of the mask)
) -> Any:
    if mask is not None:  # its meaning depends on the kind, and rows that it hides entirely are PyTorch's own affair
        return NotImplemented
    weights, biases = weight.split(width), bias.split(width)
    projected = [
        F.linear(data, *each).unflatten(-1, (heads, width // heads)).transpose(1, 2)
        for data, *each in zip((query, key, value), weights, biases, strict=True)
    ]
    scores = torch.matmul(projected[0], projected[1].transpose(-1, -2)) * (width // heads) ** -0.5
    scores = torch.softmax(scores, -1)
    mixed = torch.matmul(scores, projected[2]).transpose(1, 2).flatten(2)
    if not need_weights:
        scores = query.new_zeros(0)
    elif average_weights:
        scores = scores.mean(1)
    return F.linear(mixed, out_weight, out_bias), scores


def _encoder_layer(
    data: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Any:
    norms, ffn, mask = (rest[:2], rest[2:4]), (rest[4:6], rest[6:8]), rest[8:9]
    if mask and mask[0] is not None:
        return NotImplemented

    def feed_forward(given: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(given, *ffn[0])
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), *ffn[1])

    def attend(given: torch.Tensor) -> Any:
        return _attention(given, given, given, width, heads, weight, bias, out_weight, out_bias)[0]

    for part, norm in zip((attend, feed_forward), norms, strict=True):
        if norm_first:
            data = data + part(F.layer_norm(data, (width,), norm[0], norm[1], eps))
        else:
            data = F.layer_norm(data + part(data), (width,), norm[0], norm[1], eps)
    return data
