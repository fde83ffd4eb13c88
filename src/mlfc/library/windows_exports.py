"""What a library for Windows shows to others: all that its objects define, as on other systems.

Linkers for Windows show what is marked in the code and, once something is marked, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlfc.objfile.head import OBJECT, read_head
from mlfc.objfile.pe import coff_exports

_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def write_exports(objects: Iterable[Path], place: Path) -> Path:
    """Write the module-definition file that shows the functions and variables of objects; return `place`."""
    names = sorted({name for path in objects for name in _defined(path.read_bytes())})
    place.write_text("".join(["EXPORTS\n", *(f"  {name}\n" for name in names)]), encoding="ascii")
    return place


def _defined(data: bytes) -> Iterator[str]:
    """Yield the symbols that an object defines for others, as C calls them; nothing of a file of another kind."""
    head = read_head(data)
    if head is not None and (head.kind, head.system) == (OBJECT, "windows"):
        yield from (name for name, _ in coff_exports(memoryview(data)) if _C_NAME.fullmatch(name))
