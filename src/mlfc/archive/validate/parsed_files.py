"""The parsed files of an archive under validation: each file is read once, whoever asks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from mlfc.archive.read.opening import Archive
from mlfc.archive.validate.c_symbols import MAX_TOKENS, CSymbols, defined_symbols
from mlfc.errors import ArchiveError, MlfcError
from mlfc.objfile.elf import FUNCTION, NOTYPE, read_symbols
from mlfc.runtime.executors.graph_json import MAX_TEXT, Graph, parse_graph
from mlfc.runtime.modules.loaders import load_from_bytes
from mlfc.runtime.modules.module import Module

C_ENDINGS = (".c", ".cc", ".cpp")
OBJECT_ENDING = ".o"
_KINDS = (NOTYPE, FUNCTION)  # an assembler may leave the type of a function open


class ParsedFiles:
    """Files of one archive, parsed when they are first asked for; `errors` has those that could not be, by path."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.errors: dict[str, ArchiveError] = {}

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The sound graphs of modules for the graph executor, by path."""
        graphs: dict[str, Graph] = {}
        for module in self.archive.record.modules.values():
            path = module.files.graph
            if path is None or module.executor != "graph":
                continue
            try:
                graphs[path] = parse_graph(self.archive.tar.read(path, MAX_TEXT), path)
            except ArchiveError as error:
                self.errors[path] = error
        return graphs

    @cached_property
    def imports(self) -> list[Module]:
        """The sound modules of other kinds, in the order of their files."""
        trees = [module.details.module_tree for module in self.archive.record.modules.values() if module.details]
        kinds = {path: entry.type_key for tree in trees for entry in tree[1:] for path in entry.files}
        found = []
        for path, kind in sorted(kinds.items()):
            if path in self.archive.tar.sizes:
                with suppress(MlfcError):  # module_tree_faults tells it
                    found.append(
                        load_from_bytes(kind, bytes(self.archive.tar.view(path)), PurePosixPath(path).suffix[1:])
                    )
        return found

    @cached_property
    def c_code(self) -> dict[str, CSymbols]:
        """What each file of C code defines, by path in sorted order, up to the first that goes beyond the limit."""
        modules = self.archive.record.modules.values()
        paths = {path for module in modules for path in (*module.files.sources, *module.files.devices)}
        found: dict[str, CSymbols] = {}
        left = MAX_TOKENS
        for path in sorted(paths):
            if path.endswith(C_ENDINGS):
                try:
                    found[path] = defined_symbols(self.archive.tar.view(path), left)
                except ArchiveError as error:
                    self.errors[path] = error
                    break
                left -= found[path].tokens
        return found

    @cached_property
    def objects(self) -> dict[str, set[str]]:
        """The functions that each sound object file defines, by path."""
        modules = self.archive.record.modules.values()
        paths = {path for module in modules for path in (*module.files.objects, *module.files.devices)}
        found: dict[str, set[str]] = {}
        for path in sorted(paths):
            if path.endswith(OBJECT_ENDING):
                try:
                    found[path] = defined_functions(self.archive.tar.view(path), path)
                except ArchiveError as error:
                    self.errors[path] = error
        return found


def defined_functions(data: bytes | memoryview, place: str) -> set[str]:
    """Return the names of the functions that an object file defines for others; ArchiveError unless it is sound ELF."""
    try:
        return {item.name for item in read_symbols(data) if not item.is_local and item.kind in _KINDS}
    except ValueError as error:
        raise ArchiveError(
            f"this is not a sound ELF object: {error}", place=place, next_step="Export the archive again"
        ) from None


@dataclass(frozen=True)
class ArchiveFault:
    """One thing that is wrong with an archive."""

    # what was looked at: ``metadata``, ``manifest``, ``layout``, ``code``, ``plan``, ``graph``, ``executable``,
    # ``parameters``, ``relay`` or ``modules``
    check: str
    place: str  # the file, and where in it
    cause: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}" if self.place else self.cause


def fault_of_text(check: str, text: str) -> ArchiveFault:
    """Return the fault that a text ``place: cause`` describes."""
    place, separator, cause = text.partition(": ")
    return ArchiveFault(check, place, cause) if separator else ArchiveFault(check, "", text)


def fault_of_error(check: str, place: str, error: MlfcError) -> ArchiveFault:
    """Return the fault that an error of a reader is.

    `place`: the file in the archive. The error may name it too, behind the path of the archive and before the very
    spot.
    """
    where = error.place or place
    start = where.find(place)
    return ArchiveFault(check, where[start:] if start >= 0 else f"{place}: {where}", error.cause)
