"""Whether modules for other devices form a tree and their files are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from mlfc.archive.read.layout import CODE, CODEGEN
from mlfc.archive.read.opening import Archive
from mlfc.archive.validate.fault import Fault, fault_of_error
from mlfc.archive.validate.parsed_files import ParsedFiles
from mlfc.errors import MlfcError
from mlfc.runtime.modules.loaders import load_from_bytes
from mlfc.support.module_info import ImportedModule


def module_tree_faults(parsed: ParsedFiles) -> Iterator[Fault]:
    """Yield entries of import trees that are wrong, and files of devices that belong to none."""
    archive = parsed.archive
    claimed: set[str] = set()
    for name, module in archive.record.modules.items():
        tree = module.details.module_tree if module.details else ()
        place = f"{archive.metadata_path}: {name}: module_tree"
        for index, cause in _tree_faults(tree, archive.tar.sizes):
            yield Fault("modules", f"{place}[{index}]", cause)
        for entry in tree[1:]:
            yield from (fault for path in entry.files for fault in _content_faults(archive, entry, path))
        claimed.update(path for entry in tree for path in entry.files)
    for path in archive.tar.sizes:
        if path.startswith(f"{CODEGEN}/") and not path.startswith(f"{CODE}/") and path not in claimed:
            yield Fault("modules", path, "no module_tree of the metadata has this file")


def _tree_faults(tree: Sequence[ImportedModule], present: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    for index, entry in enumerate(tree):
        parent = entry.parent
        if index == 0 and parent is not None:
            yield index, f"the first entry is the root; its parent must be null, not {parent}"
        # parents stand before their children, so there can be no cycle
        if index > 0 and not (parent is not None and 0 <= parent < index):
            yield index, f"its parent must be an entry before it, not {parent}"
        for path in entry.files:
            if path not in present:
                yield index, f"the archive has no file {path[:200]!r}"
            elif index > 0 and not path.startswith(f"{CODEGEN}/{entry.type_key}/"):
                yield index, f"a file of '{entry.type_key}' cannot be {path[:200]!r}"


def _content_faults(archive: Archive, entry: ImportedModule, path: str) -> Iterator[Fault]:
    """Yield what the loader of the kind says of a file; kinds without a loader here are kept as they are."""
    if path not in archive.tar.sizes:
        return
    try:
        load_from_bytes(entry.type_key, bytes(archive.tar.view(path)), PurePosixPath(path).suffix[1:])
    except MlfcError as error:
        yield fault_of_error("modules", path, error)
