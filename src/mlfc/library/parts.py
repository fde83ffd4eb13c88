"""What a library is made from: the code of the members of a tree, the runtime that it calls, and blobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlfc.library.build import Beside, Buildable, fitting_code, needs_runtime, runtime_code
from mlfc.library.module_tree import PackedTree
from mlfc.library.toolchain import OBJECT_SUFFIX
from mlfc.objfile.write.blob_object import blob_source, object_with_blob
from mlfc.runtime.modules.blob import SYMBOLS
from mlfc.runtime.modules.module import Module
from mlfc.support.content import Data, write_data
from mlfc.support.platforms import Platform

_NAMES = {SYMBOLS["classic"]: "devc", SYMBOLS["ffi"]: "devc_ffi"}


@dataclass(frozen=True)
class Part:
    """Files that are compiled in the same way.

    Attributes
    ----------
    files : mapping of str to Data
        Sources, what they include, and objects, by path; the paths of several parts differ.
    includes : tuple of str
        Folders, of this part's files and others', to search for headers.
    cpu : str
        The processor that they are for.
    """

    files: Mapping[str, Data]
    includes: tuple[str, ...]
    cpu: str = "generic"


def parts_of(tree: PackedTree, abi: Sequence[str], machine: Platform | None, *, is_native: bool = False) -> list[Part]:
    """Return the parts of a library, in the order in which TVM's exporter numbers their files.

    Parameters
    ----------
    tree : PackedTree
    abi : sequence of str
        Calling conventions.
    machine : Platform, optional
        What the library is for; default this machine.
    is_native : bool
        It is for this very processor.

    Raises
    ------
    ToolchainError
        If a module has no code for the machine.
    """
    code = [fitting_code(_files_of(module, abi, is_native), machine) for module in tree.code]
    runtime = runtime_code() if any(map(needs_runtime, code)) else Buildable({}, ())
    headers = {name: data for name, data in runtime.files.items() if name.endswith(".h")}
    parts = []
    for index, (module, files) in enumerate(zip(tree.code, code, strict=True)):
        # modules may have files of one name, which then lie side by side
        placed = {f"module{index}/{name}": data for name, data in files.items()}
        folders = sorted({str(PurePosixPath(name).parent) for name in placed})
        cpu = getattr(module, "cpu", "generic")
        parts.append(Part(placed | headers, (*folders, *runtime.includes), cpu))
    return [*parts, Part(runtime.files, runtime.includes)] if runtime.files else parts


def _files_of(module: Module, abi: Sequence[str], is_native: bool) -> dict[str, Data]:
    """Return the files of a module that is code: its own, and what it has beside them for libraries."""
    files: Mapping[str, Data] = getattr(module, "files")  # noqa: B009  (what modules that are code have)
    files_here: Callable[[], Mapping[str, Data]] | None = getattr(module, "files_here", None)
    if is_native and files_here:
        files = files_here()
    beside: Beside | None = getattr(module, "library_files", None)
    return {**files, **(beside(abi, files) if beside else {})}


def blob_name(tree: PackedTree) -> str:
    """Return the name, without a suffix, of the file with a tree's blob: ``devc`` as TVM's exporter calls it."""
    return _NAMES[tree.symbol]


def write_blob(tree: PackedTree, folder: Path, machine: Platform) -> Path:
    """Write a tree's blob as an object for a machine, with no compiler; return its place."""
    place = folder / f"{blob_name(tree)}{OBJECT_SUFFIX}"
    write_data(place, object_with_blob(tree.content, tree.symbol, machine.triple))
    return place


def write_blob_source(tree: PackedTree, folder: Path) -> Path:
    """Write a tree's blob as C, which any compiler makes an object of; return its place."""
    place = folder / f"{blob_name(tree)}.c"
    write_data(place, blob_source(tree.content, tree.symbol))
    return place
