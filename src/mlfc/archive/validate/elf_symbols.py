"""Which functions an ELF object file defines, read from its symbol table. Nothing of the file is trusted."""

from __future__ import annotations

from mlfc.errors import ArchiveError
from mlfc.objfile.elf_symbols import FUNCTION, NOTYPE, read_symbols

_KINDS = (NOTYPE, FUNCTION)  # an assembler may leave the type of a function open


def defined_functions(data: bytes | memoryview, place: str) -> set[str]:
    """Return the names of the functions that an object file defines for others.

    Raises ArchiveError if it is not an ELF file, or its tables do not lie within it.
    """
    try:
        return {item.name for item in read_symbols(data) if not item.is_local and item.kind in _KINDS}
    except ValueError as error:
        raise ArchiveError(
            f"this is not a sound ELF object: {error}", place=place, next_step="Export the archive again"
        ) from None
