"""The standalone C runtime: one source for archives, host builds and firmware.

Archives contain this folder as ``runtime/``. Headers and folders have the names of microTVM's runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

TRACE_HEADER = "mlfc_trace.h"
"""Header that code includes if it is compiled with ``-DMLFC_TRACE``."""

_ROOT = Path(__file__).resolve().parent


def crt_files(*parts: str) -> dict[str, bytes]:
    """Return files of the runtime's tree, sorted by their path in it, with ``/`` between folders.

    `parts` are folders to include, such as ``include``; default: the whole tree. Python files and hidden files are
    omitted.
    """
    folders = tuple(f"{part}/" for part in parts)
    return {path: data for path, data in _tree().items() if not parts or path.startswith(folders)}


@cache
def _tree() -> Mapping[str, bytes]:
    """Return the whole tree, which is read once, because all archives and library builds use parts of it."""
    files = {
        path.relative_to(_ROOT).as_posix(): path.read_bytes()
        for path in _ROOT.rglob("*")
        if path.suffix not in (".py", ".pyc") and not path.name.startswith(".") and path.is_file()
    }
    return MappingProxyType(dict(sorted(files.items())))


def trace_headers() -> dict[str, bytes]:
    """Return `TRACE_HEADER` and the headers that it includes, by name."""
    return {TRACE_HEADER: (_ROOT / "include" / TRACE_HEADER).read_bytes(), **line_headers()}


def line_headers() -> dict[str, bytes]:
    """Return the headers that write the trace line of an operator, by name."""
    names = ("mlfc_trace_line.h", "mlfc_checksum.h")
    return {name: (_ROOT / "include" / name).read_bytes() for name in names}
