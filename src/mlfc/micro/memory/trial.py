"""What a model takes that was compiled and linked alone, for a board's core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlfc.micro.memory.stack_bound import StackBound, StackFrame


@dataclass(frozen=True)
class CodeTrial:
    """Code and stack of a model as a compiler makes them; boards with the same compiler and flags share them."""

    sizes: Mapping[str, int]  # bytes by the names of the table's rows; empty where they are not known
    stack: StackBound

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        frames = [(item.function, item.nbytes) for item in self.stack.path]
        stack = {"bytes": self.stack.nbytes, "path": frames, "untold": list(self.stack.untold)}
        return {"sizes": dict(self.sizes), "stack": stack}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> CodeTrial:
        """Return what `as_json` made an object of."""
        stack = document["stack"]
        frames = tuple(StackFrame(function, nbytes) for function, nbytes in stack["path"])
        return cls(document["sizes"], StackBound(stack["bytes"], frames, tuple(stack["untold"])))
