"""What a module that is tiled by rows pays and saves, in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.support.text import shortened


def tiling_line(tiling: Mapping[str, Any], calls: int) -> str:
    """Return the line for a module's ``tiling``, whose operators are called so often."""
    nodes = tiling["nodes"]
    first, last = (shortened(", ".join(names[:1])) for names in (nodes[0], nodes[-1]))
    layers = f"{len(nodes)} layers, {first} to {last}, run" if len(nodes) > 1 else f"the layer {first} runs"
    return (
        f"{layers} in {tiling['count']} row tiles, {calls} calls instead of {tiling['calls_without']}, no row twice; "
        f"without, the workspace would have {tiling['workspace_bytes_without']:,} bytes"
    )
