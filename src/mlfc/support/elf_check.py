"""Whether the system's loader may be given a shared library: what ends the process there is found before.

What is code is not looked at: only that what is called and written to is where the file says code and variables are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support.elf_image import (
    ABSOLUTE,
    DYNAMIC,
    EXECUTE,
    FUNCTION,
    INDIRECT,
    RELRO,
    STRSZ,
    STRTAB,
    SYMENT,
    SYMTAB,
    TLS,
    TLS_SYMBOL,
    WRITE,
    ElfImage,
)

_PAGE = 4096
_MAX_TLS = 64 << 20
_PLTRELSZ, _RELA, _RELASZ, _RELAENT, _INIT, _FINI, _SONAME, _RPATH = 2, 7, 8, 9, 12, 13, 14, 15
_REL, _RELSZ, _RELENT, _PLTREL, _TEXTREL, _JMPREL = 17, 18, 19, 20, 22, 23
_INIT_ARRAY, _FINI_ARRAY, _INIT_ARRAYSZ, _FINI_ARRAYSZ, _RUNPATH, _FLAGS = 25, 26, 27, 28, 29, 30
_RELRSZ, _RELR, _RELRENT = 35, 36, 37
_CALLED = ((_INIT_ARRAY, _INIT_ARRAYSZ), (_FINI_ARRAY, _FINI_ARRAYSZ))
# tags that make sense together alone
_TOGETHER = (
    (STRTAB, STRSZ),
    (SYMTAB, SYMENT),
    (_RELA, _RELASZ, _RELAENT),
    (_REL, _RELSZ, _RELENT),
    (_RELR, _RELRSZ, _RELRENT),
    (_JMPREL, _PLTRELSZ, _PLTREL),
    *_CALLED,
)
_ELSEWHERE = -1  # a function of another library
_VERSYM, _RELACOUNT, _RELCOUNT, _VERDEF, _VERNEED = 0x6FFF_FFF0, 0x6FFF_FFF9, 0x6FFF_FFFA, 0x6FFF_FFFC, 0x6FFF_FFFE
_AUXILIARY, _FILTER = 0x7FFF_FFFD, 0x7FFF_FFFF
_TEXTREL_FLAG = 4
# by machine of ELF: relocations that add where the library lies, that call a function for the address, that copy
_RELOCATIONS = {
    3: (8, 42, 5),
    62: (8, 37, 5),
    40: (23, 160, 20),
    183: (1027, 1032, 1024),
    243: (3, 58, 4),
    21: (22, 248, 19),
    22: (12, 61, 9),
    258: (3, 12, 4),
}
_UNKNOWN = (-1, -1, -1)
_MAX_VERSIONS = 0x7FFF
# the fields of tables of versions; which of them lead on is said where they are read
_NEEDED_FORM = ("u2", "u2", "u4", "u4", "u4")
_NAMES_FORM = ("u4", "u2", "u2", "u4", "u4")
_DEFINED_FORM = ("u2", "u2", "u2", "u2", "u4", "u4", "u4")
_DEFINED_NAMES_FORM = ("u4", "u4")


def check_image(image: ElfImage, machine: int) -> None:
    """Raise ValueError unless a library can be given to the loader; `machine` is the number that its header has."""
    _check_segments(image)
    for tags in _TOGETHER:
        if len({tag in image.dynamic for tag in tags}) == 2:
            raise ValueError("its dynamic table lacks an entry")
    _check_names(image)
    _check_symbols(image)
    _check_versions(image)
    _check_code(image, *_relocations(image, machine))


def _check_segments(image: ElfImage) -> None:
    end = 0
    if not image.loads:
        raise ValueError("nothing of it is placed in memory")
    for load in image.loads:
        if load.nbytes > load.memory:
            raise ValueError("a segment has more bytes in the file than in memory")
        if (load.address - load.offset) % _PAGE:
            raise ValueError("a segment does not lie in the file as in memory")
        if load.address < end:
            raise ValueError("its segments lie over each other")
        end = load.end
    for segment in image.segments:
        if segment.kind == DYNAMIC and not image.has(segment.address, segment.memory, segment.flags & WRITE):
            raise ValueError("its dynamic table cannot be written to")
        # linkers put it first among variables, some up to the end of the page: elsewhere it would lock others
        if segment.kind == RELRO and not any(
            load.flags & WRITE and load.address == segment.address and segment.end <= load.end + -load.end % _PAGE
            for load in image.loads
        ):
            raise ValueError("what is to be locked after loading is no variables")
        if segment.kind == TLS:
            if segment.memory > _MAX_TLS or segment.nbytes > segment.memory:
                raise ValueError(f"variables of a thread of {segment.memory:,} bytes")
            if segment.alignment & (segment.alignment - 1) or segment.alignment > _PAGE:
                raise ValueError(f"variables of a thread at multiples of {segment.alignment:,}")
            image.content(segment.address, segment.nbytes, "variables of a thread")


def _check_names(image: ElfImage) -> None:
    for start in image.needed:
        if not image.name(start, "a library that it needs"):
            raise ValueError("a library that it needs has no name")
    for tag in (_SONAME, _RPATH, _RUNPATH, _AUXILIARY, _FILTER):
        if tag in image.dynamic:
            image.name(image.dynamic[tag], "a name of its dynamic table")


def _check_symbols(image: ElfImage) -> None:
    """Raise ValueError if a symbol that others find is of nothing that can be called or read."""
    rows = image.symbols
    defined = rows[(rows["section"] != 0) & (rows["section"] != ABSOLUTE) & (rows["info"] >> 4 != 0)]
    kinds = defined["info"] & 15
    in_thread = kinds == TLS_SYMBOL
    is_code = (kinds == FUNCTION) | (kinds == INDIRECT)
    for rights, chosen in ((EXECUTE, defined[is_code]), (0, defined[~is_code & ~in_thread])):
        # labels at the end of something have its last address plus one
        wrong = chosen[~_within(image, chosen["value"], 0 if not rights else 1, rights)]
        if len(wrong):
            name = image.name(int(wrong["name"][0]), "a symbol").decode("utf-8", "replace")
            raise ValueError(f"the symbol {name[:80]} is of nothing in it")
    room = max((segment.memory for segment in image.segments if segment.kind == TLS), default=-1)
    if in_thread.any() and int(defined["value"][in_thread].max()) > room:
        raise ValueError("a symbol is of no variable of a thread")


def _within(image: ElfImage, addresses: npt.NDArray[Any], nbytes: int, rights: int) -> npt.NDArray[np.bool_]:
    """Tell for each address whether memory with these rights is there."""
    given = addresses.astype(np.uint64)
    found = np.zeros(len(given), np.bool_)
    for load in image.loads:
        if load.flags & rights == rights and load.memory >= nbytes:
            found |= (given >= load.address) & (given <= load.end - nbytes)
    return found


def _relocations(image: ElfImage, machine: int) -> tuple[dict[int, int], bool]:
    """Check what the loader writes into the library.

    Returns
    -------
    dict of int to int
        By place the address in the library, or `_ELSEWHERE`, that it writes to lists of what is called.
    bool
        Whether others are written that only memory says.
    """
    dynamic, written, partly = image.dynamic, {}, False
    relative, indirect, copy = _RELOCATIONS.get(machine, _UNKNOWN)
    tables = [(_RELA, _RELASZ, True, _RELACOUNT), (_REL, _RELSZ, False, _RELCOUNT)]
    if _JMPREL in dynamic:
        if dynamic.get(_PLTREL) not in (_RELA, _REL):
            raise ValueError("its addresses of functions are of no known form")
        tables.append((_JMPREL, _PLTRELSZ, dynamic[_PLTREL] == _RELA, 0))
    for tag, size, has_addend, relatives in tables:
        if tag not in dynamic:
            continue
        rows = _relocation_table(image, tag, size, has_addend=has_addend)
        kinds, symbols = _split(rows["info"], image.word)
        if dynamic.get(relatives, 0) > len(rows) or (kinds[: dynamic.get(relatives, 0)] != relative).any():
            raise ValueError("its relocations are not in order")
        _check_places(image, rows["place"][kinds != 0])
        image.require_symbol(int(symbols.max(initial=0)))
        if (kinds == copy).any():
            raise ValueError("a relocation copies a variable, as only programs do")
        partly |= not has_addend
        if has_addend:
            if not _within(image, rows["addend"][kinds == indirect], 1, EXECUTE).all():
                raise ValueError("a relocation calls what is no code")
            if not _within(image, rows["addend"][kinds == relative], 0, 0).all():
                raise ValueError("a relocation is of nothing in it")
        for row, kind in zip(rows[called := _listed(image, rows["place"])], kinds[called], strict=True):
            if kind not in (relative, indirect):
                written[int(row["place"])] = _ELSEWHERE
            elif has_addend:
                written[int(row["place"])] = int(row["addend"])
    if _RELR in dynamic:
        partly = True
        _check_places(image, _packed_places(image))
    return written, partly


def _listed(image: ElfImage, places: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell of each place whether it is in a list of what is called when the library comes and goes."""
    found = np.zeros(len(places), np.bool_)
    for tag, size in _CALLED:
        start, nbytes = image.dynamic.get(tag, 0), image.dynamic.get(size, 0)
        found |= (places >= start) & (places - start < nbytes)
    return found


def _relocation_table(image: ElfImage, tag: int, size: int, *, has_addend: bool) -> npt.NDArray[Any]:
    dynamic, entry = image.dynamic, (3 if has_addend else 2) * image.word
    if size not in dynamic or dynamic[size] % entry:
        raise ValueError("its table of relocations is of another size")
    if tag != _JMPREL and dynamic.get(_RELAENT if has_addend else _RELENT) != entry:
        raise ValueError("its relocations are of another size")
    fields = [("place", "u"), ("info", "u"), *([("addend", "u")] if has_addend else [])]
    return image.table(dynamic[tag], dynamic[size], fields, "its table of relocations")


def _split(info: npt.NDArray[Any], word: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return kinds and numbers of symbols."""
    bits = 32 if word == 8 else 8
    return info & ((1 << bits) - 1), info >> bits


def _check_places(image: ElfImage, places: npt.NDArray[Any]) -> None:
    # code that is written to is still loaded by some systems
    has_text = _TEXTREL in image.dynamic or image.dynamic.get(_FLAGS, 0) & _TEXTREL_FLAG
    if not _within(image, places, image.word, 0 if has_text else WRITE).all():
        raise ValueError("a relocation is not of a variable")


def _packed_places(image: ElfImage) -> npt.NDArray[Any]:
    """Return the places of packed relocations, of each run the first and the last that there can be."""
    if image.dynamic.get(_RELRENT) != image.word:
        raise ValueError("its packed relocations are of another size")
    rows = image.table(image.dynamic[_RELR], image.dynamic.get(_RELRSZ, 0), [("row", "u")], "its packed relocations")
    places, at, bits = [], -1, 8 * image.word - 1
    for row in rows["row"].tolist():
        if row & 1:
            if at < 0:
                raise ValueError("its packed relocations start nowhere")
            places.append(at + image.word * max(0, (row >> 1).bit_length() - 1))
            at += bits * image.word
        else:
            places.append(row)
            at = row + image.word
    return np.array(places, np.uint64)


def _check_code(image: ElfImage, written: dict[int, int], partly: bool) -> None:
    """Raise ValueError if what is called when the library comes and goes is no code of its."""
    dynamic = image.dynamic
    for tag in (_INIT, _FINI):
        if tag in dynamic and not image.is_code(dynamic[tag]):
            raise ValueError("what is called when it is loaded is no code")
    for tag, size in _CALLED:
        if tag not in dynamic:
            continue
        if dynamic[tag] % image.word:
            raise ValueError("its list of what is called when it is loaded is broken")
        listed = image.table(dynamic[tag], dynamic.get(size, 0), [("row", "u")], "what is called when it is loaded")
        for index, stored in enumerate(listed["row"].tolist()):
            found = written.get(dynamic[tag] + index * image.word, stored if partly else None)
            if found is None or (found != _ELSEWHERE and not image.is_code(found)):
                raise ValueError("what is called when it is loaded is no code")


def _check_versions(image: ElfImage) -> None:
    dynamic, highest = image.dynamic, 0
    needed = {image.name(start, "a library that it needs") for start in image.needed}
    if _VERNEED in dynamic:
        for at, entry in _chain(image, dynamic[_VERNEED], _NEEDED_FORM, 4):
            if image.name(int(entry["f2"]), "a library that it needs") not in needed:
                raise ValueError("it wants a version of a library that it does not need")
            for _, name in _chain(image, at + int(entry["f3"]), _NAMES_FORM, 4):
                image.name(int(name["f3"]), "a version")
                highest = max(highest, int(name["f2"]) & _MAX_VERSIONS)
    if _VERDEF in dynamic:
        for at, entry in _chain(image, dynamic[_VERDEF], _DEFINED_FORM, 6):
            for _, name in _chain(image, at + int(entry["f5"]), _DEFINED_NAMES_FORM, 1):
                image.name(int(name["f0"]), "a version")
            highest = max(highest, int(entry["f2"]) & _MAX_VERSIONS)
    if (_VERSYM in dynamic) != (highest > 0):
        raise ValueError("it has versions of its symbols without a table of versions, or the table alone")
    if not highest:
        return
    numbers = image.table(dynamic[_VERSYM], 2 * len(image.symbols), [("n", "u2")], "versions of its symbols")["n"]
    if len(numbers) and int((numbers & _MAX_VERSIONS).max()) > max(1, highest):
        raise ValueError("a symbol is of a version that there is not")


def _chain(image: ElfImage, address: int, form: tuple[str, ...], way: int) -> list[tuple[int, Any]]:
    """Return the entries of a chain with their addresses; field `way` says how far the next one is, 0 for none."""
    found: list[tuple[int, Any]] = []
    nbytes = np.dtype(",".join(form)).itemsize
    while True:
        fields = [(f"f{index}", kind) for index, kind in enumerate(form)]
        entry = image.table(address, nbytes, fields, "its table of versions")[0]
        found.append((address, entry))
        if len(found) > _MAX_VERSIONS:
            raise ValueError("its table of versions does not end")
        # ways lead forwards, so every chain ends, at the latest with its segment
        if not entry[f"f{way}"]:
            return found
        address += int(entry[f"f{way}"])
