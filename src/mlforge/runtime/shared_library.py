"""Shared libraries that carry their own description, as ``mlforge compile --emit so`` makes them."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

from mlforge.errors import ArchiveError, OptionError
from mlforge.runtime.aot_module import AotModule

DESCRIPTION_SYMBOL = "mlforge_description"


def load_shared_library(path: str | os.PathLike[str], module: str | None = None) -> AotModule:
    """Load a model from a shared library.

    Parameters
    ----------
    path : path
    module : str, optional
        Which model, where the library holds several.

    Raises
    ------
    ArchiveError
        If it cannot be loaded or is not a library that mlforge made. Loading a library runs its code: load only
        what you trust.
    OptionError
        If it has no such module, or several and none is named.
    """
    place = str(path)
    try:
        # a bare file name would be searched for on the system's library path
        library = ctypes.CDLL(str(Path(path).resolve()))
    except OSError as error:
        raise ArchiveError(f"this is not a library that loads here: {error}", place=place) from error
    try:
        text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, DESCRIPTION_SYMBOL)))
        modules: dict[str, Any] = json.loads(text)["modules"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(
            "this is not a library that mlforge made",
            place=place,
            next_step="Make one with: mlforge compile MODEL --emit so",
        ) from error
    return AotModule(Path(path).resolve(), modules[pick_module(modules, module, place)])


def pick_module(modules: dict[str, Any], name: str | None, place: str) -> str:
    """Return the module that is meant; raise OptionError if that is not clear."""
    names = ", ".join(sorted(modules))
    if name is None and len(modules) != 1:
        raise OptionError(f"there are {len(modules)} modules", place=place, next_step=f"Name one of: {names}")
    chosen = next(iter(modules)) if name is None else name
    if chosen not in modules:
        raise OptionError(f"there is no module '{chosen}'", place=place, next_step=f"There is: {names}")
    return chosen
