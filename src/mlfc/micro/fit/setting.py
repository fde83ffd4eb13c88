"""How a model is compiled to fit a board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Options of ``mlfc compile`` that decide what a model takes."""

    optimize: str = "speed"
    workspace_io: bool = False  # inputs and outputs are in the workspace
    ram: int | None = None  # layers are tiled by rows to keep workspace, inputs and outputs within so many bytes

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `build`."""
        return {"optimize": self.optimize, "workspace_io": self.workspace_io, "ram": self.ram}

    @property
    def options(self) -> str:
        """The options as users write them; empty for the defaults."""
        words = ["--optimize size"] if self.optimize == "size" else []
        words += ["--workspace-io"] if self.workspace_io else []
        words += [f"--ram {_short(self.ram)}"] if self.ram is not None else []
        return " ".join(words)


def _short(nbytes: int) -> str:
    return f"{nbytes >> 10}k" if nbytes and nbytes % 1024 == 0 else str(nbytes)
