"""What a module that is computed in stripes pays and saves, in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlfc.support.text import shortened


def stripes_line(stripes: Mapping[str, Any], calls: int) -> str:
    """Return the line for a module's ``stripes``, whose operators are called so often."""
    nodes = stripes["nodes"]
    first, last = (shortened(", ".join(names[:1])) for names in (nodes[0], nodes[-1]))
    layers = f"{len(nodes)} layers, {first} to {last}, run" if len(nodes) > 1 else f"the layer {first} runs"
    return (
        f"{layers} in {stripes['count']} stripes, {calls} calls instead of {stripes['calls_without']}, no row twice; "
        f"without, the workspace would have {stripes['workspace_bytes_without']:,} bytes"
    )
