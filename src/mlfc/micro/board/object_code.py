"""Generated code that comes as objects: what the firmware around it must be compiled with to be linked with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mlfc.errors import OptionError
from mlfc.micro.board.board import Board
from mlfc.objfile.elf import read_elf
from mlfc.support.content import Data, chunks_of

SUFFIX = ".o"

_ATTRIBUTES = 0x7000_0003
_VENDOR = b"aeabi\0"
_WHOLE_FILE, _FLOAT_ARGUMENTS, _COMPATIBILITY = 1, 28, 32
_TEXTS = (4, 5, 67)  # tags below 32 have numbers but for these; from 32 on the odd ones have texts
_HARD, _SOFT = "-mfloat-abi=hard", "-mfloat-abi=softfp"
_MACHINE = slice(18, 20)
# longer objects hold constants alone, which say nothing
_LARGEST = 64 << 20


def object_paths(code: Mapping[str, Data]) -> tuple[str, ...]:
    """Return the paths of a module's objects, sorted."""
    return tuple(sorted(path for path in code if path.endswith(SUFFIX)))


def check_traceable(name: str, code: Mapping[str, Data]) -> None:
    """Raise OptionError for a module whose operators cannot be watched: the hook is in the C alone."""
    objects = object_paths(code)
    if objects:
        raise OptionError(
            f"the operators of module '{name}' cannot be told apart as they run: it comes as objects",
            place=objects[0],
            next_step="Compile the model with --target c for that",
        )


def core_flags(board: Board, code: Mapping[str, Data]) -> tuple[str, ...]:
    """Return the compiler's flags for a board's core.

    Where the objects of a module pass floats in the core's plain registers, everything must: libraries, too.
    """
    flags = board.toolchain.flags
    if _HARD in flags and any(_passes_floats_plainly(code[path]) for path in object_paths(code)):
        return tuple(_SOFT if flag == _HARD else flag for flag in flags)
    return tuple(flags)


def machine_of(data: Data) -> int | None:
    """Return ELF's number of the machine whose code an object is; None for what is no such object."""
    image = _image(data)
    try:
        order = read_elf(image).order
    except ValueError:
        return None
    return int.from_bytes(image[_MACHINE], "little" if order == "<" else "big")


def attributes_of(data: Data) -> dict[int, int]:
    """Return what an object of Arm code says of itself, by tags of Arm's build attributes; nothing where it is none."""
    image = _image(data)
    try:
        sections = [section for section in read_elf(image).sections if section.kind == _ATTRIBUTES]
        tags = [dict(_attributes(image[item.offset : item.offset + item.nbytes])) for item in sections]
    except (ValueError, IndexError):
        return {}
    return tags[0] if tags else {}


def _image(data: Data) -> bytes:
    chunks = list(chunks_of(data))
    return b"".join(chunks) if sum(map(len, chunks)) <= _LARGEST else b""


def _passes_floats_plainly(data: Data) -> bool:
    """Tell whether an object of Arm code says that it passes floats as soft code does."""
    said = attributes_of(data)
    return bool(said) and _FLOAT_ARGUMENTS not in said


def _attributes(section: bytes) -> Iterator[tuple[int, int]]:
    """Yield tags and numbers of what an object says of its whole file; raise IndexError where it is cut off."""
    place = section.find(_VENDOR)
    if place < 0:
        return
    place += len(_VENDOR)
    end = len(section)
    if section[place] != _WHOLE_FILE:
        return
    place += 5  # the tag, and the size of what follows
    while place < end:
        tag, place = _number(section, place)
        value = 0
        if (tag < _COMPATIBILITY and tag not in _TEXTS) or (tag > _COMPATIBILITY and tag % 2 == 0):
            value, place = _number(section, place)
        else:
            if tag == _COMPATIBILITY:
                _, place = _number(section, place)
            place = section.index(b"\0", place) + 1
        yield tag, value


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if byte < 0x80:
            return value, place
