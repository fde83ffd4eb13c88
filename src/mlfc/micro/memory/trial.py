"""What a model takes that was compiled and linked alone, for a board's core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlfc.micro.memory.stack_bound import StackBound


@dataclass(frozen=True)
class Trial:
    """Code and stack of a model as a compiler makes them; boards with the same compiler and flags share them."""

    sizes: Mapping[str, int]  # bytes by the names of the table's rows; empty where they are not known
    stack: StackBound
