"""The C of each of a module's operators, out of the sources in its archive."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mlfc.archive.read.opening import Archive

MOST_CHARACTERS = 4 << 20
"""Of a module's kernels together: pages of more are slow to show."""
_MOST_BYTES = 256 << 20  # of a file of C
_HEAD = re.compile(r"[A-Za-z_][\w \t*]*?\b([A-Za-z_]\w*)\(")


def kernel_sources(archive: Archive, module: str, functions: Iterable[str]) -> dict[str, str]:
    """Return the definitions of functions by name, with the comments before them.

    What has no C source in the archive is not there, nor are functions beyond `MOST_CHARACTERS`.
    """
    wanted, found, left = set(functions), dict[str, str](), MOST_CHARACTERS
    for path in archive.record.modules[module].files.sources:
        for name, text in _definitions(
            archive.tar.read(path, _MOST_BYTES).decode("utf-8", "replace").splitlines(), wanted
        ):
            if name not in found and len(text) <= left:
                found[name] = text
                left -= len(text)
    return found


def _definitions(lines: list[str], wanted: set[str]) -> Iterable[tuple[str, str]]:
    """Yield names and texts; a definition goes from its head to the first brace at the start of a line."""
    start = comment = 0
    name = ""
    for index, line in enumerate(lines):
        if name:
            if line.startswith("}"):
                yield name, "\n".join(lines[start : index + 1])
                name = ""
            elif line.endswith(";") and not line.startswith((" ", "\t")):
                name = ""  # the end of a prototype
            if not name:
                comment = index + 1
            continue
        if not line.startswith(("/*", " *", " ")):
            head = _HEAD.match(line)
            if head and head[1] in wanted and not line.endswith(";"):
                name, start = head[1], comment
                continue
            comment = index + 1
