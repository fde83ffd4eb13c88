"""Writing of loaded modules: a file is copied where it has the requested format, an archive is compiled again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlfc.archive.read.load import IN_MEMORY, artifact_kind, file_of
from mlfc.archive.write.options import ExportOptions
from mlfc.archive.write.rebuild import rebuild, recorded_options
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.runtime.modules.module import Module, pick_module
from mlfc.runtime.modules.runnable import LoadedOrigin
from mlfc.support.atomic import atomic_file, check_writable

_SHARED = (".so", ".dll", ".dylib", ".dso")


def write_library(origin: LoadedOrigin, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a loaded module as a library: a copy of a loaded library, or the model of an archive compiled again.

    Raises OptionError if a library is requested in another form, ArchiveError if an archive lacks its model.
    """
    target = Path(path)
    with _file(origin) as (source, place):
        kind = artifact_kind(source)
        if kind == "archive":
            factories = {factory.module_name: factory for factory in rebuild(source)}
            return factories[pick_module(factories, origin.arguments[0], place)].export_library(target, **options)
        if options or (target.suffix in _SHARED) != (kind == "library"):
            wanted = f"options {', '.join(options)}" if options else f"'{target.suffix}' file"
            raise OptionError(
                f"expected a copy of the loaded {kind}, got a request for {wanted}: it is machine code already",
                place=place,
                next_step="Load the model's archive, or compile the model again, and export that",
            )
        check_writable(target)
        data = source.read_bytes()
        with atomic_file(target) as file:
            file.write(data)
    return target


def rebuilt(module: Module) -> tuple[list[Factory], ExportOptions]:
    """Return the models of a loaded archive compiled again and its options; raise OptionError for other modules."""
    origin = module.origin
    if origin is not None:
        with _file(origin) as (source, place):
            if artifact_kind(source) == "archive":
                wanted = origin.arguments[0]
                factories = [factory for factory in rebuild(source) if wanted in (None, factory.module_name)]
                return factories, recorded_options(source)
        found = f"machine code ({place})"
    else:
        found = f"a module of the kind '{module.type_key}'"
    raise OptionError(
        f"expected the result of mlfc.build or a model loaded from an archive, got {found}",
        next_step="Load the model's archive, or compile the model again, and export that",
    )


@contextmanager
def _file(origin: LoadedOrigin) -> Iterator[tuple[Path, str]]:
    origin.check()
    if isinstance(origin.source, bytes):
        with file_of(origin.source) as path:
            yield path, IN_MEMORY
    else:
        yield Path(origin.source), origin.source
