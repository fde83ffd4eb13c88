"""From archives and compiled modules to something that runs and times every operator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mlforge.archive.load import artifact_kind, code_and_details
from mlforge.archive.metadata import module_details
from mlforge.errors import OptionError
from mlforge.library.toolchain import NATIVE, compile_cached
from mlforge.runtime.profiled_module import TRACE_FLAG, ProfiledModule, trace_files

if TYPE_CHECKING:
    from mlforge.compiler import Factory


def load_profiled(path: str | os.PathLike[str], module: str | None = None) -> ProfiledModule:
    """Load a module of an archive for profiling; its C is compiled once more, with the hook for tracing turned on.

    Parameters
    ----------
    path : path
        An archive that mlforge wrote. A shared library has lost its C, so there is nothing to turn on.
    module : str, optional
        Which module, where the archive holds several.

    Returns
    -------
    ProfiledModule

    Raises
    ------
    OptionError
        For a shared library; otherwise as `mlforge.load`.

    Examples
    --------
    >>> profile = load_profiled("kws.tar").profile({"input_1": x}, repeat=100)   # doctest: +SKIP
    >>> max(profile.operators, key=lambda item: item.nanoseconds).nodes          # doctest: +SKIP
    ('functional_1/conv2d/Conv2D',)
    """
    if artifact_kind(path) == "library":
        raise OptionError(
            "a shared library cannot be profiled: it has no C that could be built with timers",
            place=str(path),
            next_step="Profile the archive, or the model that the library was made from",
        )
    code, details = code_and_details(path, module)
    return ProfiledModule(_library(code), details)


def profiled_factory(factory: Factory) -> ProfiledModule:
    """Return the module that `build` made, ready to be profiled in this process."""
    return ProfiledModule(_library(factory.code.files), module_details(factory))


def _library(code: Mapping[str, bytes]) -> Path:
    return compile_cached({**code, **trace_files()}, (NATIVE, TRACE_FLAG))
