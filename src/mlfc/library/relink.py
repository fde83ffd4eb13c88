"""Libraries of objects that were exported as they are: linked when they are loaded, once for each content."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from mlfc.errors import ArchiveError
from mlfc.library.build import buildable, fitting_code, needs_runtime
from mlfc.library.toolchain import NATIVE, OBJECT_SUFFIX, SOURCES, compile_cached
from mlfc.objfile.head import HEAD, OBJECT, read_head
from mlfc.support.content import Data, FileContent, ViewContent
from mlfc.support.plain_file import open_plain
from mlfc.support.tar import open_tar

_LINKED = (OBJECT_SUFFIX, *SOURCES)


def linked_library(path: str | os.PathLike[str]) -> Path:
    """Return the shared library of an object, or of a tar of objects, from the cache where it is there.

    Raises
    ------
    ArchiveError
        If the file cannot be read.
    ToolchainError
        If objects are for another machine, or no compiler is there that links them.
    """
    with open_plain(path) as file:
        head = read_head(file.read(HEAD))
    files: dict[str, Data] = {}
    if head is not None and head.kind == OBJECT:
        files[f"object{OBJECT_SUFFIX}"] = FileContent(Path(path))
    else:
        with open_tar(path) as tar:
            others = [name for name in tar.sizes if PurePosixPath(name).suffix not in _LINKED]
            if others:
                raise ArchiveError(
                    "this is neither an object nor C, in a tar of objects",
                    place=f"{path}: {others[0]}",
                    next_step="Link all of its files to a shared library with the compiler they are for, and load that",
                )
            files = {name: ViewContent(tar.view(name)) for name in tar.sizes}
    # objects come with the runtime that they call, or are given its functions where they are loaded; C that includes
    # TVM's headers was exported by TVM, which has both elsewhere
    sources = {name: data for name, data in fitting_code(files).items() if PurePosixPath(name).suffix in SOURCES}
    if not needs_runtime(sources):
        return compile_cached(fitting_code(files), (NATIVE,))
    code = buildable(files)
    return compile_cached(code.files, (NATIVE,), includes=code.includes)
