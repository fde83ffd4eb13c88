"""Libraries that call functions of TVM's runtime by name, as C that TVM wrote does, and not through variables.

The system's loader must find these functions when it loads such a library. They get no place that other libraries see,
where those of a real TVM that is loaded later would come second: the library is loaded as what another one needs,
and this other one, which is made here and holds nothing else, defines the names as addresses in this process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from mlfc.objfile.write.elf import elf_machine_of
from mlfc.runtime.ffi.library_names import is_in_memory, library_in_memory
from mlfc.runtime.libraries.library_context import process_functions

_HEAD, _PROGRAM, _SYMBOL, _DYNAMIC = (
    struct.Struct(f"<{form}") for form in ("HHIQQQIHHHHHH", "IIQQQQQQ", "IBBHQQ", "QQ")
)
_IDENT = b"\x7fELF\2\1\1" + bytes(9)
_SHARED, _LOAD, _DYNAMIC_PART, _STACK = 3, 1, 2, 0x6474_E551
_READ_WRITE, _PAGE = 6, 0x1_0000
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT = 1, 4, 5, 6, 10, 11
_GLOBAL_FUNCTION, _ABSOLUTE = 0x12, 0xFFF1
_HEAD_BYTES = 64


def lacks_functions(error: OSError) -> bool:
    """Tell whether a library did not load for want of functions that this process can give it."""
    words = str(error).replace(":", " ").replace(",", " ").split()
    return sys.platform == "linux" and not process_functions().keys().isdisjoint(words)


def bind_functions(path: str) -> None:
    """Load a library with the functions of this process; raise OSError if it does not load so.

    Loading it once more by its path then gives the same one.
    """
    full = path if is_in_memory(path) else str(Path(path).resolve())
    with Path(full).open("rb") as file:
        head = file.read(_HEAD_BYTES)
    with library_in_memory(_scope(os.fsencode(full), head, process_functions())) as name:
        ctypes.CDLL(name)


def _scope(needed: bytes, head: bytes, functions: Mapping[str, int]) -> bytes:
    """Return a shared library that needs another one, whose first bytes are `head`, and defines functions for it."""
    machine = elf_machine_of(head)
    if machine.bits != 64 or machine.order != "<":
        raise OSError("only 64-bit little-endian systems are given functions by name")
    texts = bytearray(b"\0")

    def text(value: bytes) -> int:
        texts.extend(value + b"\0")
        return len(texts) - len(value) - 1

    library = text(needed)
    symbols = bytes(_SYMBOL.size) + b"".join(
        _SYMBOL.pack(text(name.encode()), _GLOBAL_FUNCTION, 0, _ABSOLUTE, address, 0)
        for name, address in functions.items()
    )
    count = len(functions) + 1
    # one bucket, whose chain leads through all symbols to number 0
    chain = struct.pack(f"<{count + 3}I", 1, count, 1, 0, *((index + 1) % count for index in range(1, count)))
    at_symbols = _HEAD_BYTES + 3 * _PROGRAM.size
    at_chain = at_symbols + len(symbols)
    at_dynamic = -(-(at_chain + len(chain)) // 8) * 8
    entries = 7
    at_texts = at_dynamic + entries * _DYNAMIC.size
    dynamic = b"".join(
        _DYNAMIC.pack(*entry)
        for entry in (
            (_NEEDED, library),
            (_HASH, at_chain),
            (_STRTAB, at_texts),
            (_SYMTAB, at_symbols),
            (_STRSZ, len(texts)),
            (_SYMENT, _SYMBOL.size),
            (0, 0),
        )
    )
    size = at_texts + len(texts)
    header = _HEAD.pack(
        _SHARED, machine.number, 1, 0, _HEAD_BYTES, 0, machine.flags, _HEAD_BYTES, _PROGRAM.size, 3, _HEAD_BYTES, 0, 0
    )
    programs = (
        _PROGRAM.pack(_LOAD, _READ_WRITE, 0, 0, 0, size, size, _PAGE)
        + _PROGRAM.pack(_DYNAMIC_PART, _READ_WRITE, *(at_dynamic,) * 3, len(dynamic), len(dynamic), 8)
        + _PROGRAM.pack(_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16)
    )
    body = symbols + chain
    return _IDENT + header + programs + body.ljust(at_dynamic - at_symbols, b"\0") + dynamic + bytes(texts)
