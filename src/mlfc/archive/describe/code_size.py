"""How large an archive's code is once compiled: what no metadata can say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mlfc.archive.read.layout import CODE, HEADERS
from mlfc.archive.read.opening import Archive
from mlfc.crt import crt_files
from mlfc.errors import ToolchainError
from mlfc.library.toolchain import compile_objects
from mlfc.objfile.elf import ALLOCATED, EXECUTABLE, NO_BITS, WRITABLE, read_elf
from mlfc.support.temporary import TemporaryFolder

_INCLUDES = (HEADERS, "runtime/include", "runtime/host")  # as the archive's own Makefile has them


def code_sizes(archive: Archive) -> dict[str, int]:
    """Compile an archive's C for this machine and return what its objects have, in bytes.

    Returns ``code_bytes`` (instructions), ``readonly_bytes`` (constants among them), ``data_bytes`` and
    ``zeroed_bytes`` (static workspaces among them).
    Raises ToolchainError if there is no compiler, it refuses the code, or its objects are no ELF files.
    """
    files = {
        name: archive.tar.read(name, size) for name, size in archive.tar.sizes.items() if name.startswith(f"{CODE}/")
    }
    # code that TVM wrote includes the headers of its runtime
    headers = {f"runtime/{name}": data for name, data in crt_files().items() if name.endswith(".h")}
    total: Counter[str] = Counter(code_bytes=0, readonly_bytes=0, data_bytes=0, zeroed_bytes=0)
    with TemporaryFolder() as folder:
        for path in compile_objects({**headers, **files}, Path(folder), includes=_INCLUDES):
            total.update(object_sizes(path.read_bytes(), path.name))
    return dict(total)


def object_sizes(data: bytes, place: str) -> dict[str, int]:
    """Return the bytes of an ELF object's sections by kind, as `code_sizes` names them."""
    try:
        sections = read_elf(data).sections
    except ValueError as error:
        raise ToolchainError(
            f"expected an ELF object from the compiler: {error}",
            place=place,
            next_step="Set CC to a compiler for ELF, such as gcc on Linux or arm-none-eabi-gcc",
        ) from None
    found: Counter[str] = Counter(code_bytes=0, readonly_bytes=0, data_bytes=0, zeroed_bytes=0)
    for section in sections:
        if not section.flags & ALLOCATED:
            continue
        if section.kind == NO_BITS:
            found["zeroed_bytes"] += section.nbytes
        elif section.flags & WRITABLE:
            found["data_bytes"] += section.nbytes
        else:
            found["code_bytes" if section.flags & EXECUTABLE else "readonly_bytes"] += section.nbytes
    return dict(found)
