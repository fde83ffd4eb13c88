"""Dataclasses of intermediate representations, of which compiling a model creates hundreds of thousands."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["node"]

if TYPE_CHECKING:
    from dataclasses import dataclass as node
else:

    def node(*, frozen: bool, eq: bool) -> Any:
        """Declare nodes that are compared by identity, as ``@dataclass(frozen=True, eq=False)``.

        Type checkers report assignments to fields. Python does not: checks at run time triple the time to create a
        node, and the methods that would perform them take most of the time to import a file of nodes.
        """
        assert frozen
        assert not eq

        def declared(cls: type) -> type:
            if "__repr__" not in vars(cls):
                cls.__repr__ = _shown
            return dataclasses.dataclass(eq=False, repr=False)(cls)

        return declared


def _shown(self: Any) -> str:
    values = (f"{entry.name}={getattr(self, entry.name)!r}" for entry in dataclasses.fields(self) if entry.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"
