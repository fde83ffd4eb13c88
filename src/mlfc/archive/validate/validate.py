"""Every fault of an archive, not the first alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice

from mlfc.archive.read.opening import metadata_faults, read_archive
from mlfc.archive.validate.code import code_faults, module_tree_faults
from mlfc.archive.validate.contents import executable_faults, graph_faults, params_faults, relay_faults
from mlfc.archive.validate.layout import consistency_faults, layout_faults
from mlfc.archive.validate.parsed_files import ArchiveFault, ParsedFiles, fault_of_text
from mlfc.archive.validate.plan import plan_faults
from mlfc.support.tar import open_tar

MAX_FAULTS = 1000
"""More would help nobody, and an archive can be made to have any number of them."""


def _manifest_faults(parsed: ParsedFiles) -> Iterator[ArchiveFault]:
    return (fault_of_text("manifest", text) for text in parsed.archive.file_faults())


CHECKS: tuple[Callable[[ParsedFiles], Iterator[ArchiveFault]], ...] = (
    _manifest_faults,
    layout_faults,
    consistency_faults,
    plan_faults,
    code_faults,
    graph_faults,
    executable_faults,
    params_faults,
    relay_faults,
    module_tree_faults,
)
"""What is looked at once the metadata fit their schema, in this order."""


def find_faults(path: str | os.PathLike[str]) -> list[ArchiveFault]:
    """Return every fault of an archive of any version, each with its place; an empty list for a good one.

    Nothing of the archive runs, and nothing is written. What TVM's own writer got wrong in every archive (sizes of
    inputs and outputs together, sizes of storages, local time) is no fault in an archive of TVM's. There are at most
    `MAX_FAULTS`. Raises ArchiveError if the file is not a tar that can be read at all.
    """
    with open_tar(path) as tar:
        texts = (text.removeprefix(f"{tar.path}: ") for text in metadata_faults(tar))
        found = [fault_of_text("metadata", text) for text in islice(texts, MAX_FAULTS)]
        if found:
            # nothing else can be compared with metadata that are wrong themselves
            return found
        parsed = ParsedFiles(read_archive(tar))
        return list(islice((fault for check in CHECKS for fault in check(parsed)), MAX_FAULTS))


def validate(path: str | os.PathLike[str]) -> list[str]:
    """Return every fault of an archive as text, ``place: what is wrong``; as `find_faults` otherwise."""
    return [str(fault) for fault in find_faults(path)]
