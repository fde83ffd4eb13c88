"""How large an archive's code is once compiled: what no metadata can say."""

from __future__ import annotations

from pathlib import Path

from mlfc.archive.read.layout import CODE, HEADERS
from mlfc.archive.read.opening import Archive
from mlfc.crt import crt_files
from mlfc.errors import ToolchainError
from mlfc.library.toolchain import compile_objects
from mlfc.objfile.elf import ALLOCATED, EXECUTABLE, NO_BITS, WRITABLE, read_elf
from mlfc.support.temporary import TemporaryFolder

_INCLUDES = (HEADERS, "runtime/include", "runtime/host")  # as the archive's own Makefile has them
_KINDS = ("code_bytes", "readonly_bytes", "data_bytes", "zeroed_bytes")


def code_sizes(archive: Archive) -> dict[str, int]:
    """Compile an archive's C for this machine and return what its objects have, in bytes.

    Returns ``code_bytes`` (instructions), ``readonly_bytes`` (constants among them), ``data_bytes`` and
    ``zeroed_bytes`` (static workspaces among them).
    Raises ToolchainError if there is no compiler, it refuses the code, or its objects are no ELF files.
    """
    tar = archive.tar
    files = {name: tar.read(name, size) for name, size in tar.sizes.items() if name.startswith(f"{CODE}/")}
    # code that TVM wrote includes the headers of its runtime
    headers = {f"runtime/{name}": data for name, data in crt_files().items() if name.endswith(".h")}
    with TemporaryFolder() as folder:
        built = compile_objects({**headers, **files}, Path(folder), includes=_INCLUDES)
        sizes = [object_sizes(path.read_bytes(), path.name) for path in built]
    return {kind: sum(item[kind] for item in sizes) for kind in _KINDS}


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
    found = dict.fromkeys(_KINDS, 0)
    for section in sections:
        if section.flags & ALLOCATED:
            code, readonly, writable, zeroed = _KINDS
            fixed = writable if section.flags & WRITABLE else code if section.flags & EXECUTABLE else readonly
            found[zeroed if section.kind == NO_BITS else fixed] += section.nbytes
    return found
