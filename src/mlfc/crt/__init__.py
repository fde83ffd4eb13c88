"""The standalone C runtime: one source for archives, host builds and firmware.

The folder is the tree that archives carry under ``runtime/``: headers under the include names of microTVM's runtime,
sources in its folder names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

TRACE_HEADER = "mlfc_trace.h"
"""What code includes where it was compiled with ``-DMLFC_TRACE``."""

_ROOT = Path(__file__).resolve().parent


def crt_files(*parts: str) -> dict[str, bytes]:
    """Return files of the runtime's tree by path inside it, with ``/`` between folders, sorted.

    `parts` are folders to take, such as ``include``; by default the whole tree. Python's files and hidden ones are left
    out.
    """
    folders = tuple(f"{part}/" for part in parts)
    return {path: data for path, data in _tree().items() if not parts or path.startswith(folders)}


@cache
def _tree() -> Mapping[str, bytes]:
    """Return the whole tree, which is read once: every archive and every build of a library takes part of it."""
    files = {
        path.relative_to(_ROOT).as_posix(): path.read_bytes()
        for path in _ROOT.rglob("*")
        if path.suffix not in (".py", ".pyc") and not path.name.startswith(".") and path.is_file()
    }
    return MappingProxyType(dict(sorted(files.items())))


def trace_headers() -> dict[str, bytes]:
    """Return `TRACE_HEADER` and what it includes, by name."""
    return {TRACE_HEADER: (_ROOT / "include" / TRACE_HEADER).read_bytes(), **line_headers()}


def line_headers() -> dict[str, bytes]:
    """Return the headers that write the line of an operator, by name."""
    names = ("mlfc_trace_line.h", "mlfc_checksum.h")
    return {name: (_ROOT / "include" / name).read_bytes() for name in names}
