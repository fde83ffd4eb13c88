"""Every fault of an archive, not the first alone."""

from __future__ import annotations

import os

from mlforge.archive.layout import VERSION, params_path, relay_path
from mlforge.archive.model import FULL_MODEL
from mlforge.archive.read import metadata_faults, missing_code, read_archive
from mlforge.errors import ArchiveError
from mlforge.support.params import load_params
from mlforge.support.tar import TarReader, open_tar

_MAX_PARAMS = 4 << 30


def validate(path: str | os.PathLike[str]) -> list[str]:
    """Return every fault of an archive, each with its place; an empty list for a good one.

    Parameters
    ----------
    path : path

    Raises
    ------
    ArchiveError
        If the file is not a tar that can be read at all.
    """
    with open_tar(path) as tar:
        found = list(metadata_faults(tar))
        if found:
            return found
        archive = read_archive(tar)
        found += archive.file_faults()
        for name, module in archive.record.modules.items():
            if archive.record.version == VERSION and archive.record.style == FULL_MODEL:
                found += _member_faults(tar, name)
            if module.executor == "aot" and module.files.headers:
                found += missing_code(archive, name)
        return found


def _member_faults(tar: TarReader, module: str) -> list[str]:
    if params_path(module) not in tar.sizes:
        return [f"{params_path(module)}: the file is missing"]
    found = [] if relay_path(module) in tar.sizes else [f"{relay_path(module)}: the file is missing"]
    try:
        load_params(tar.read(params_path(module), _MAX_PARAMS), place=params_path(module))
    except ArchiveError as error:
        found.append(str(error))
    return found
