"""From archives, libraries and compiled modules to something that runs.

Loading compiles the archive's C and runs it in this process: load only archives that you trust to run. Reading and
checking an archive (`inspect`, `validate`) runs nothing of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlforge.archive.layout import CODE
from mlforge.archive.read import Archive, missing_code, open_archive
from mlforge.errors import ArchiveError
from mlforge.library.toolchain import compile_cached
from mlforge.runtime import AotModule, load_shared_library
from mlforge.runtime.shared_library import pick_module

if TYPE_CHECKING:
    from mlforge.compiler import Factory

_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\x00")
_LIBRARIES = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_TAR_MAGIC = slice(257, 262)


def load(path: str | os.PathLike[str], module: str | None = None) -> AotModule:
    """Load a module of an archive; its C is compiled once and cached by content.

    Parameters
    ----------
    path : path
        An archive that mlforge wrote.
    module : str, optional
        Which module, where the archive holds several.

    Returns
    -------
    AotModule

    Raises
    ------
    ArchiveError
        If the archive is damaged, contradicts itself or was not written by mlforge.
    OptionError
        If there is no such module, or several and none is named.
    ToolchainError
        If there is no C compiler or it refuses the code.
    """
    code, details = code_and_details(path, module)
    return AotModule(compile_cached(code), details)


def code_and_details(path: str | os.PathLike[str], module: str | None) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return all C of an archive by path, and the checked ``mlforge`` object of one module; raise as `load` does."""
    with open_archive(path) as archive:
        name = pick_module(archive.modules, module, archive.path)
        details = archive.modules[name].get("mlforge")
        if details is None:
            raise ArchiveError(
                f"module '{name}' was not compiled by mlforge, which can describe but not run it",
                place=archive.path,
                next_step="Compile the model with: mlforge compile MODEL",
            )
        return _code(archive, name), details


def _code(archive: Archive, module: str) -> dict[str, bytes]:
    for fault in (*archive.file_faults(), *missing_code(archive, module)):
        raise ArchiveError(fault, place=archive.path, next_step="Export the archive again")
    folder = f"{CODE}/"
    return {
        name.removeprefix(folder): archive.tar.read(name, size)
        for name, size in archive.tar.sizes.items()
        if name.startswith(folder)
    }


def load_factory(factory: Factory) -> AotModule:
    """Return the module that `build` made, ready to run in this process."""
    from mlforge.archive.metadata import module_details

    return AotModule(compile_cached(factory.code.files), module_details(factory))


def load_module(path: str | os.PathLike[str], module: str | None = None) -> AotModule:
    """Load a module of an archive or of a shared library, told apart by content.

    Raises
    ------
    ArchiveError
        If it is neither; as `load` otherwise.
    """
    kind = artifact_kind(path)
    if kind == "library":
        return load_shared_library(path, module)
    if kind == "archive":
        return load(path, module)
    raise ArchiveError(
        "this is neither an archive nor a shared library",
        place=str(path),
        next_step="Compile a model first with: mlforge compile MODEL",
    )


def artifact_kind(path: str | os.PathLike[str]) -> str:
    """Tell by content whether a file is an ``archive``, a ``library``, or anything else: a ``model``."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(512)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArchiveError(f"cannot be read: {reason}", place=str(path)) from error
    if start.startswith(_COMPRESSED) or start[_TAR_MAGIC] == b"ustar":
        return "archive"
    return "library" if start.startswith(_LIBRARIES) else "model"
