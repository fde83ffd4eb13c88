"""Dataclasses of intermediate representations, of which compiling a model creates hundreds of thousands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

__all__ = ["node"]

if TYPE_CHECKING:
    from dataclasses import dataclass as node
else:

    def node(*, frozen: bool, eq: bool) -> Any:
        """Declare nodes that are compared by identity: to type checkers, ``dataclass(frozen=True, eq=False)``.

        Python does not check that fields are not assigned, which would triple the time to create a node.
        """
        del frozen
        return dataclass(eq=eq)
