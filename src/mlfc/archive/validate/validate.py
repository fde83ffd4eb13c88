"""Validation of an archive that reports all faults, not only the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from mlfc.archive.read.opening import metadata_faults, read_archive
from mlfc.archive.validate.code import (
    code_faults,
    executable_faults,
    graph_faults,
    module_tree_faults,
    params_faults,
    relay_faults,
)
from mlfc.archive.validate.layout import consistency_faults, layout_faults, plan_faults
from mlfc.archive.validate.parsed_files import Faults, ParsedFiles
from mlfc.support.tar import open_tar

MAX_FAULTS = 1000
"""More are not useful, and a malicious archive can have any number."""


@dataclass(frozen=True)
class ArchiveFault:
    """A fault of an archive."""

    check: str  # the check that failed: ``metadata`` or a name in `CHECKS`
    place: str  # the file and the position in it
    cause: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}" if self.place else self.cause


CHECKS: tuple[tuple[str, Callable[[ParsedFiles], Faults]], ...] = (
    ("manifest", lambda parsed: map(_split, parsed.archive.file_faults())),
    ("layout", layout_faults),
    ("metadata", consistency_faults),
    ("plan", plan_faults),
    ("code", code_faults),
    ("graph", graph_faults),
    ("executable", executable_faults),
    ("parameters", params_faults),
    ("relay", relay_faults),
    ("modules", module_tree_faults),
)
"""Checks that run if the metadata match their schema, in this order."""


def _split(text: str) -> tuple[str, str]:
    """Return place and cause of a text ``place: cause``."""
    place, separator, cause = text.partition(": ")
    return (place, cause) if separator else ("", text)


def find_faults(path: str | os.PathLike[str]) -> list[ArchiveFault]:
    """Return every fault of an archive of any version, each with its place; an empty list for a valid one.

    No code of the archive runs, and nothing is written. Errors that TVM's own writer makes in every archive (the total
    size of inputs and outputs, sizes of storages, local time) are not faults in TVM's archives. At most
    `MAX_FAULTS` are returned. Raises ArchiveError if the file is not a readable tar.
    """
    with open_tar(path) as tar:
        texts = (text.removeprefix(f"{tar.path}: ") for text in metadata_faults(tar))
        found = [ArchiveFault("metadata", *_split(text)) for text in islice(texts, MAX_FAULTS)]
        if found:
            # inconsistent metadata cannot be compared with anything else
            return found
        parsed = ParsedFiles(read_archive(tar))
        return list(islice((ArchiveFault(name, *told) for name, check in CHECKS for told in check(parsed)), MAX_FAULTS))


def validate(path: str | os.PathLike[str]) -> list[str]:
    """Return every fault of an archive as text, ``place: what is wrong``; otherwise as `find_faults`.

    Examples
    --------
    >>> mlfc.validate("digits.tar")
    []
    """
    return [str(fault) for fault in find_faults(path)]
