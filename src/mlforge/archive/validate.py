"""Every fault of an archive, not the first alone."""

from __future__ import annotations

import os

from mlforge.archive.layout import METADATA, params_path, relay_path
from mlforge.archive.read import MAX_METADATA, Archive, missing_code, module_faults, parse_json
from mlforge.archive.schema import faults, load_schema
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
        if METADATA not in tar.sizes:
            return [f"{METADATA}: the file is missing"]
        try:
            document = parse_json(tar.read(METADATA, MAX_METADATA), METADATA)
        except ArchiveError as error:
            return [str(error)]
        found = [f"{METADATA}: {fault}" for fault in faults(load_schema("metadata-7"), document)]
        if found:
            return found
        found += [f"{METADATA}: {fault}" for fault in module_faults(document)]
        archive = Archive(tar, document)
        found += archive.file_faults()
        for name, module in archive.modules.items():
            found += _member_faults(tar, name)
            if "aot" in module["executors"]:
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
