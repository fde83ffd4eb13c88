"""How a model is compiled to fit a board."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlfc.memory import Pool


@dataclass(frozen=True)
class Setting:
    """Options of ``mlfc compile`` that decide what a model takes."""

    optimize: str = "speed"
    workspace_io: bool = False  # inputs and outputs are in the workspace
    ram: int | None = None  # layers are tiled by rows to keep workspace, inputs and outputs within so many bytes
    pools: tuple[Pool, ...] = ()  # the memories of a board, over which the workspace is spread

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `build`."""
        return {"optimize": self.optimize, "workspace_io": self.workspace_io, "ram": self.ram, "pools": self.pools}

    @property
    def options(self) -> str:
        """The options as users write them; empty for the defaults."""
        words = ["--optimize size"] if self.optimize == "size" else []
        words += ["--workspace-io"] if self.workspace_io else []
        words += [f"--ram {_short(self.ram)}"] if self.ram is not None else []
        words += ["--board-pools"] if self.pools else []
        return " ".join(words)


def _short(nbytes: int) -> str:
    return f"{nbytes >> 10}k" if nbytes and nbytes % 1024 == 0 else str(nbytes)
