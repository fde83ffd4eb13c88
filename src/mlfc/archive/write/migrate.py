"""Migration of archives of any version and form to version 7."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlfc.archive.read.layout import METADATA, VERSION, ArchiveLayout, layout_of, moved, params_path
from mlfc.archive.read.model import FULL_MODEL
from mlfc.archive.read.module_parts import executable_of
from mlfc.archive.read.opening import Archive, export_seconds, open_archive
from mlfc.archive.read.params_forms import read_params
from mlfc.archive.write.older import manifest_of, relocated, with_manifest
from mlfc.errors import ArchiveError
from mlfc.support.atomic import atomic_file, check_writable
from mlfc.support.content import Data
from mlfc.support.params import params_content
from mlfc.support.tar import source_date, write_tar

# the count of functions is one character, in C syntax; since 0.9 a zero follows, in earlier versions a name
_ONE_BYTE_COUNT = re.compile(
    rb"TVMFuncRegistry\s+\w+\s*=\s*\{\s*\"(?:\\[0-7]{1,3}|\\x[0-9a-fA-F]{2}|\\[^0-7x]|[^\"\\])[A-Za-z_]"
)


@dataclass(frozen=True)
class Migration:
    """Result of a migration."""

    path: Path  # the new archive
    version: int  # of the old archive
    form: str  # of the old archive: `model.TVM` or `model.RFC`
    renamed: Mapping[str, str]  # new paths by old ones, if different
    # facts of version 7 that the old archive does not record, and the version that its code requires
    warnings: tuple[str, ...]


def migrate(old: str | os.PathLike[str], new: str | os.PathLike[str], timestamp: int | None = None) -> Migration:
    """Write an archive of any version and form as version 7.

    Every file is kept: known ones move to their path in version 7, all others keep theirs. The metadata are
    regenerated with a list of all files and their hashes. Migrating an archive of version 7 that mlfc wrote
    reproduces it byte for byte.

    Parameters
    ----------
    old, new : path
        The old and the new archive; may be the same file.
    timestamp : int, optional
        Seconds since 1970 for the times of the archive's members; default: the time of the export.

    Returns
    -------
    Migration

    Raises
    ------
    ArchiveError
        If the old archive breaks its format, or its files differ from its list.
    OutputError
        If the new one cannot be written.

    Examples
    --------
    >>> mlfc.migrate("digits.tar", "version7.tar").version
    7
    """
    target = Path(new)
    check_writable(target)
    with open_archive(old) as archive:
        for fault in archive.file_faults():
            raise ArchiveError(fault, place=archive.path, next_step="mlfc validate lists every fault")
        for module in archive.record.modules.values():
            if module.files.vm is not None:
                executable_of(archive, module.files.vm)  # raises for versions with bytecode
        tar = archive.tar
        files: dict[str, Data] = {path: tar.view(path) for path in tar.sizes if path != archive.metadata_path}
        made = {}  # version 7 always contains parameters in TVM's form
        for name, module in archive.record.modules.items():
            if module.files.params not in (None, params_path(name)):
                made[params_path(name)] = params_content(read_params(archive.tar, module.files.params))
        new_layout = layout_of(VERSION, style=archive.record.style)
        if archive.record.style == FULL_MODEL and archive.layout != new_layout:
            files, document = relocated({**files, **made}, archive.metadata, archive.layout, new_layout, VERSION)
        else:
            files |= made
            document = with_manifest(files, archive.metadata, manifest_of(archive.metadata))
        times = [export_seconds(module.export_datetime) for module in archive.record.modules.values()]
        # tar cannot represent times before 1970
        seconds = max(0, *times) if timestamp is None else source_date(timestamp)
        metadata = json.dumps(document, indent=2, sort_keys=True, allow_nan=False).encode()
        with atomic_file(target) as file:
            write_tar(file, {**files, METADATA: metadata}, seconds)
        record, renamed = archive.record, _renamed(archive, new_layout)
        return Migration(target, record.version, record.form, renamed, tuple(_warnings(archive, made)))


def _renamed(archive: Archive, new: ArchiveLayout) -> dict[str, str]:
    renamed = {} if archive.metadata_path == METADATA else {archive.metadata_path: METADATA}
    if archive.layout != new:
        (name,) = archive.record.modules
        for path in sorted(set(archive.tar.sizes) - {archive.metadata_path}):
            target = moved(path, name, archive.layout, new)
            if target != path:
                renamed[path] = target
    return renamed


def _warnings(archive: Archive, made: Mapping[str, Data]) -> Iterator[str]:
    for path in made:
        yield f"{path}: converted from the other form of the parameters"
    for name, module in archive.record.modules.items():
        if archive.record.style == FULL_MODEL:
            if not module.main:
                version = archive.record.version
                yield f"{name}: version {version} does not record the memory of the main function; the list is empty"
            if module.files.params is None:
                yield f"{name}: the archive has no parameters; {params_path(name)} is missing"
            if module.executor == "graph" and module.files.graph is None:
                yield f"{name}: the archive has no graph of this module"
        for path in module.files.sources:
            if path.endswith(".c") and _ONE_BYTE_COUNT.search(archive.tar.view(path)):
                yield (
                    f"{path}: stores its function count in one byte, as TVM 0.8 did; the C runtime of later releases "
                    "reads two, so the file needs the C runtime of TVM 0.8"
                )
