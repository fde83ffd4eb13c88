"""Checks of untrusted shared library files, which find faults before any of their code runs."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from mlfc.errors import ArchiveError
from mlfc.objfile.digest import check_digest
from mlfc.objfile.elf import ElfImage
from mlfc.objfile.head import HEAD, LIBRARY, STATIC_MARK, misfit
from mlfc.runtime.modules.blob import SYMBOLS, load_tree
from mlfc.runtime.modules.module import Module
from mlfc.support import dtypes
from mlfc.support.former_name import former
from mlfc.support.json_text import parse_json
from mlfc.support.module_info import ModuleInterface
from mlfc.support.plain_file import open_plain

ABI_VERSION = 1
"""Supported value of ``mlfc_abi_version`` in libraries of mlfc: MLFC_ABI_VERSION of the runtime in them."""
VERSION_SYMBOL = "mlfc_abi_version"

_ELSEWHERE = "Load it on such a machine, or load one of this model that was exported for this machine"
_DAMAGED = "Copy it again, or export it again"
DESCRIPTION_SYMBOL = "mlfc_description"
"""Symbol of the JSON metadata of the models in a library."""
_MOST_BYTES = 1 << 48
_SHOWN = 60
_AGAIN = "The library is damaged: export it again"


@dataclass(frozen=True)
class LibraryFile:
    """Checked file of a shared library for this machine."""

    place: str  # its name in messages
    image: ElfImage | None  # None for other formats than ELF, of which the system's loader checks more
    # mlfc's description of its models; None for other formats, whose description is read after loading
    description: Mapping[str, ModuleInterface] | None

    def tree(self) -> Callable[[Module], Module] | None:
        """Load the modules besides the library itself, whose data stays in the file; see `load_tree`; None without any.

        Raises ArchiveError if the tree breaks its format, or contains a module of a kind that nothing here can read.
        """
        for abi, symbol in SYMBOLS.items():
            found = self.image.find(symbol) if self.image is not None else None
            if self.image is not None and found is not None:
                try:
                    # assembly may omit the size
                    view = self.image.rest(found[0], f"its {symbol}")[: found[1] or None]
                except ValueError as error:
                    raise _unsound(error, self.place) from error
                return load_tree(view, abi, place=self.place)
        return None


def open_library_file(path: str | os.PathLike[str], place: str) -> LibraryFile:
    """Return a library that can be loaded here; raise ArchiveError for any other file."""
    try:
        with open_plain(path) as file:
            head = file.read(HEAD)
            # the loader maps the file too, so the file must not be truncated anyway
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if head else memoryview(b"")
    except (OSError, ValueError) as error:
        raise ArchiveError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=place) from error
    if head.startswith(STATIC_MARK):
        raise ArchiveError(
            "this is a static library, which becomes part of a program when that is linked",
            place=place,
            next_step="Link it, and open what is in the program with mlfc.runtime.system_library(); or export a .so",
        )
    wrong = misfit(head, LIBRARY)
    if wrong:
        raise ArchiveError(f"this library cannot run here: {wrong}", place=place, next_step=_ELSEWHERE)
    if not head.startswith(b"\x7fELF"):
        return LibraryFile(place, None, None)
    try:
        image = ElfImage(view)
        check_digest(image)
        version, described = _version(image), _text(image, DESCRIPTION_SYMBOL)
    except ValueError as error:
        raise _unsound(error, place) from error
    check_version(version, place)
    return LibraryFile(place, image, {} if described is None else read_description(described, place))


def check_version(version: int | None, place: str) -> None:
    """Raise ArchiveError unless the interface version of a library is supported, or None."""
    if version not in (None, ABI_VERSION):
        raise ArchiveError(
            f"its {VERSION_SYMBOL} is {version}, and this mlfc loads libraries of version {ABI_VERSION}",
            place=place,
            next_step="Export the library again with this mlfc, or load it with the one that made it",
        )


def _unsound(error: ValueError, place: str) -> ArchiveError:
    return ArchiveError(f"the library is damaged or cut off: {error}", place=place, next_step=_DAMAGED)


def _version(image: ElfImage) -> int | None:
    found = image.find(VERSION_SYMBOL) or image.find(former(VERSION_SYMBOL))
    if found is None:
        return None
    (version,) = struct.unpack(f"{image.order}i", image.content(found[0], 4, f"its {VERSION_SYMBOL}"))
    return int(version)


def _text(image: ElfImage, name: str) -> bytes | None:
    """Return a text of the library without its terminating NUL; None if it does not exist."""
    found = image.find(name) or image.find(former(name))
    if found is None:
        return None
    text = bytes(image.content(*found, name))
    if b"\0" not in text:
        raise ValueError(f"its {name} is not terminated")
    return text[: text.index(b"\0")]


def read_description(text: bytes, place: str) -> Mapping[str, ModuleInterface]:
    """Return the description of each model by name; raise ArchiveError unless mlfc could have written it."""
    place = f"{place}: {DESCRIPTION_SYMBOL}"
    found = parse_json(text, place)
    modules = found.get("modules") if isinstance(found, dict) else None
    if not isinstance(modules, dict):
        raise ArchiveError("it has no modules", place=place, next_step=_AGAIN)
    return {name: _interface(name, module, place) for name, module in modules.items()}


def _interface(name: str, module: object, place: str) -> ModuleInterface:
    place = f"{place}: module '{name[:_SHOWN]}'"
    info = ModuleInterface.read(module, place, _AGAIN)
    if info.executor == "aot" and info.entry is None:
        raise ArchiveError("its entry has no name", place=place, next_step=_AGAIN)
    for tensors in (info.inputs, info.outputs):
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ArchiveError("two of its inputs or outputs have one name", place=place, next_step=_AGAIN)
        for tensor in tensors:
            if tensor.is_static and prod(tensor.shape) * dtypes.nbytes(tensor.dtype) > _MOST_BYTES:
                raise ArchiveError(f"'{tensor.name[:_SHOWN]}' is too large", place=place, next_step=_AGAIN)
    if any(pool.nbytes > _MOST_BYTES for pool in info.pools) or info.memory.workspace_bytes > _MOST_BYTES:
        raise ArchiveError("its memory is too large", place=place, next_step=_AGAIN)
    return info
