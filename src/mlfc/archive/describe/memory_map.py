"""The memory of a compiled model as an object: numbers at a prompt, a picture in notebooks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.picture import memory_picture
from mlfc.errors import ArchiveError
from mlfc.runtime.modules.module import pick_module
from mlfc.support.atomic import write_bytes
from mlfc.support.text import Displayed


@dataclass(frozen=True, repr=False)
class MemoryMap(Displayed):
    """What a module's memory is for, and which tensors are where during which call.

    Attributes
    ----------
    name : str
    described : mapping
        What `mlfc.inspect` says of the module: ``memory``, ``operators``, ``peak``, ...
    """

    name: str
    described: Mapping[str, Any]

    def _facts(self) -> Mapping[str, object]:
        known = {name.removesuffix("_bytes").replace("_", " "): size for name, size in self.described["memory"].items()}
        sizes = {name: f"{size:,} bytes" for name, size in known.items() if size is not None}
        peak = self.described["peak"] or {}
        if peak.get("call") is None:
            return {"name": self.name, **sizes}
        nodes = ", ".join(peak["nodes"] or ()) or peak["function"]
        return {"name": self.name, **sizes, "peak": f"{peak['live_bytes']:,} bytes in call {peak['call']}: {nodes}"}

    def _repr_html_(self) -> str:
        table = super()._repr_html_()
        try:
            return f"{table}\n{self.svg()}"
        except ArchiveError:
            return table

    def svg(self) -> str:
        """Return the picture: a rectangle for each tensor; raise ArchiveError if its lifetimes are not known."""
        return memory_picture(self.described, self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture as an SVG file."""
        write_bytes(Path(path), self.svg().encode())
        return Path(path)


def memory_map(path: str | os.PathLike[str], module: str | None = None) -> MemoryMap:
    """Return the memory of a module of an archive. Nothing of it is run.

    Parameters
    ----------
    path : path
        An archive of any version.
    module : str, optional
        Which module, where the archive holds several.

    Raises
    ------
    ArchiveError
        As `inspect`.
    OptionError
        If there is no such module, or several and none is named.

    Examples
    --------
    >>> mlfc.memory_map("kws.tar").save("memory.svg")      # doctest: +SKIP
    """
    modules = inspect(path)["modules"]
    name = pick_module(modules, module, str(path))
    return MemoryMap(name, modules[name])
