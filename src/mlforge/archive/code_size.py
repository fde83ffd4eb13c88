"""How large an archive's code is once compiled: what no metadata can say."""

from __future__ import annotations

import struct
import tempfile
from collections import Counter
from pathlib import Path

from mlforge.archive.layout import CODE, HEADERS
from mlforge.archive.read import Archive
from mlforge.crt import crt_files
from mlforge.errors import ToolchainError
from mlforge.library.toolchain import compile_objects

_INCLUDES = (HEADERS, "runtime/include", "runtime/host")  # as the archive's own Makefile has them
_MAGIC, _NOBITS = b"\x7fELF", 8
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4


def code_sizes(archive: Archive) -> dict[str, int]:
    """Compile an archive's C for this machine and return what its objects have, in bytes.

    Returns
    -------
    dict
        ``code_bytes`` (instructions), ``readonly_bytes`` (constants among them), ``data_bytes`` and
        ``zeroed_bytes`` (static workspaces among them).

    Raises
    ------
    ToolchainError
        If there is no compiler, it refuses the code, or its objects are no ELF files.
    """
    files = {
        name: archive.tar.read(name, size) for name, size in archive.tar.sizes.items() if name.startswith(f"{CODE}/")
    }
    # code that TVM wrote includes the headers of its runtime
    headers = {f"runtime/{name}": data for name, data in crt_files().items() if name.endswith(".h")}
    total: Counter[str] = Counter(code_bytes=0, readonly_bytes=0, data_bytes=0, zeroed_bytes=0)
    with tempfile.TemporaryDirectory(prefix="mlforge-sizes-") as folder:
        for path in compile_objects({**headers, **files}, Path(folder), includes=_INCLUDES):
            total.update(object_sizes(path.read_bytes(), path.name))
    return dict(total)


def object_sizes(data: bytes, place: str) -> dict[str, int]:
    """Return the bytes of an ELF object's sections by kind, as `code_sizes` names them."""
    try:
        return _object_sizes(data)
    except struct.error:
        raise ToolchainError("the compiler's object is cut off", place=place) from None


def _object_sizes(data: bytes) -> dict[str, int]:
    if data[:4] != _MAGIC or data[4] not in (1, 2) or data[5] not in (1, 2):
        raise ToolchainError(
            "the compiler's objects are no ELF files, whose sections could be measured",
            next_step="Set CC to a compiler for ELF, such as gcc on Linux or arm-none-eabi-gcc",
        )
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    if wide:
        offset, size, count = (*struct.unpack_from(f"{order}Q", data, 40), *struct.unpack_from(f"{order}HH", data, 58))
        section = struct.Struct(f"{order}4xI2Q8xQ")  # sh_type, sh_flags, (address,) sh_offset skipped, sh_size
    else:
        offset, size, count = (*struct.unpack_from(f"{order}I", data, 32), *struct.unpack_from(f"{order}HH", data, 46))
        section = struct.Struct(f"{order}4xI2I4xI")
    found: Counter[str] = Counter()
    for index in range(count):
        kind, flags, _address, nbytes = section.unpack_from(data, offset + index * size)
        if not flags & _ALLOC:
            continue
        if kind == _NOBITS:
            found["zeroed_bytes"] += nbytes
        elif flags & _WRITE:
            found["data_bytes"] += nbytes
        else:
            found["code_bytes" if flags & _EXECUTE else "readonly_bytes"] += nbytes
    return dict(found)
