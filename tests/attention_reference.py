"""Reference attention in float64 by NumPy, written from the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def attention(args: Sequence[Array], attrs: dict[str, Any]) -> Array:
    """Return the expected result of ``nn.attention`` for these arguments and attributes; tensors are split by head."""
    q, k, v = (part.astype(np.float64) for part in args[:3])
    share = q.shape[1] // k.shape[1]
    scores = np.einsum("bhnd,bhmd->bhnm", q, np.repeat(k, share, 1)) * attrs["scale"]
    if cap := attrs.get("softcap", 0.0):
        scores = np.tanh(scores / cap) * cap
    queries, keys = scores.shape[2:]
    hidden: list[Array] = []
    infinite: Array = np.zeros((1, 1, 1, 1), bool)
    position, key = attrs.get("offset", 0) + np.arange(queries)[:, None], np.arange(keys)
    sink, end = None, np.full((q.shape[0], 1, 1, 1), keys)
    for name, extra in zip(attrs.get("extras", ()), args[3:], strict=True):
        if name == "bias":
            scores = scores + extra
            infinite = infinite | np.isneginf(extra)
        elif name == "mask":
            hidden.append(~extra)
        elif name == "offset":
            position = position + extra.reshape(-1, 1, 1, 1)
        elif name == "lengths":
            end = extra.reshape(-1, 1, 1, 1)
        else:
            sink = extra.astype(np.float64).reshape(1, -1, 1, 1)
    for mask in hidden:
        scores = np.where(mask, attrs.get("fill", -np.inf), scores)
    left, right = attrs.get("left", -1), attrs.get("right", -1)
    seen = (key < end) & ((right < 0) | (key <= position + right)) & ((left < 0) | (key >= position - left))
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True) if sink is None else np.maximum(scores.max(-1, keepdims=True), sink)
    top = np.where(np.isinf(top), 0.0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - top))
    zeros = attrs.get("zero_rows", True)
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = weights @ np.repeat(v, share, 1) / total
    sees = (seen & ~infinite & ~np.any(np.broadcast_arrays(False, *hidden), axis=0)).any(-1, keepdims=True)
    if sink is None and "fill" not in attrs:
        total = np.where(sees, total, 0)
    return np.where(total == 0, 0.0, mixed) if zeros else mixed
