"""Shared libraries that carry their own description, as ``mlforge compile --emit so`` makes them."""

from __future__ import annotations

import ctypes
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from mlforge.errors import ArchiveError, ToolchainError
from mlforge.runtime.aot_module import AotModule
from mlforge.runtime.choice import pick_module
from mlforge.runtime.library_module import LibraryModule
from mlforge.runtime.runnable import HasModel

DESCRIPTION_SYMBOL = "mlforge_description"


class SharedLibrary(LibraryModule, HasModel):
    """A shared library as a module; where mlforge made it, also the model in it.

    Parameters
    ----------
    path : path
    module : str, optional
        Which model, where the library holds several.

    Raises
    ------
    ArchiveError
        If it does not load. Loading a library runs its code: load only what you trust.
    """

    def __init__(self, path: str | os.PathLike[str], module: str | None = None) -> None:
        self._place = str(path)
        self._module = module
        try:
            # a bare file name would be searched for on the system's library path
            super().__init__(Path(path).resolve())
        except ToolchainError as error:
            raise ArchiveError(
                f"this is not a library that loads here: {error.__cause__}",
                place=self._place,
                next_step="Make one on this machine with: mlforge compile MODEL --emit so",
            ) from error

    @cached_property
    def model(self) -> AotModule:
        """The model in the library.

        Raises
        ------
        ArchiveError
            If mlforge did not make the library, or all its models are for the graph executor.
        OptionError
            If it has no such module, or several and none is named.
        """
        try:
            text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self.library, DESCRIPTION_SYMBOL)))
            modules: dict[str, Any] = json.loads(text)["modules"]
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                "this is not a library that mlforge made",
                place=self._place,
                next_step="Make one with: mlforge compile MODEL --emit so",
            ) from error
        if not modules:
            raise ArchiveError(
                "the library has the operators of graph modules, whose graphs and parameters are not in it",
                place=self._place,
                next_step="Run the archive, or compile with: --executor aot",
            )
        return AotModule(self.path, modules[pick_module(modules, self._module, self._place)])


def load_shared_library(path: str | os.PathLike[str], module: str | None = None) -> AotModule:
    """Return the model in a shared library; raise as `SharedLibrary` and its `model` do."""
    return SharedLibrary(path, module).model
