"""The parsed files of an archive under validation, and what its C code and objects define.

Of C just enough is read to tell code from comments, strings and declarations, once from start to end. No preprocessor
runs: of branches that exclude each other both count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeAlias

from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError, MlfcError
from mlfc.objfile.elf import FUNCTION, NOTYPE, read_symbols
from mlfc.runtime.executors.graph_json import MAX_TEXT, Graph, parse_graph
from mlfc.runtime.modules.loaders import load_from_bytes
from mlfc.runtime.modules.module import Module

Faults: TypeAlias = Iterator[tuple[str, str]]
"""Fault of an archive: the file, the place in it, and the cause."""
C_ENDINGS = (".c", ".cc", ".cpp")
OBJECT_ENDING = ".o"
_KINDS = (NOTYPE, FUNCTION)  # an assembler may leave the type of a function open

# each alternative takes what it begins to the end of the text at worst, so that no text is searched twice
_SKIPPED = (
    rb"""//(?:[^\n\\]|\\.)*"""
    rb"""|/\*.*?(?:\*/|\Z)"""
    rb"""|"(?:[^"\\\n]|\\.)*"?"""
    rb"""|'(?:[^'\\\n]|\\.)*'?"""
    rb"""|^[ \t]*\#(?:[^\n\\/"']|\\.|/(?!\*)|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"?|')*"""
)
_OUTSIDE = re.compile(_SKIPPED + rb"|(?P<token>[A-Za-z_]\w*|\d\w*|[(){}\[\];=,])", re.DOTALL | re.MULTILINE)
_INSIDE = re.compile(_SKIPPED + rb"|(?P<token>[{}])", re.DOTALL | re.MULTILINE)
_NAME = re.compile(rb"[A-Za-z_]\w*")
# Words and signs outside of functions, braces, comments and strings: each takes up to two microseconds. The code of
# DenseNet-121 has 20,000.
MAX_TOKENS = 500_000
_TOO_LONG = f"more than {MAX_TOKENS:,} words, signs, comments and strings of C code in the archive"
_QUOTE = ord('"')
_LONGEST = 4096  # tokens of one declaration; what is longer is no code that anyone calls
_NUMBER = re.compile(rb"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,17}|0)[uUlL]{0,3}")


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
                    found.append(loaded_module(self.archive, kind, path))
        return found

    @cached_property
    def c_code(self) -> dict[str, CSymbols]:
        """What each file of C code defines, by path in sorted order, up to the first that goes beyond the limit."""
        files = [module.files for module in self.archive.record.modules.values()]
        found: dict[str, CSymbols] = {}
        left = MAX_TOKENS
        for path in sorted({path for item in files for path in (*item.sources, *item.devices)}):
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
        files = [module.files for module in self.archive.record.modules.values()]
        found: dict[str, set[str]] = {}
        for path in sorted({path for item in files for path in (*item.objects, *item.devices)}):
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


def loaded_module(archive: Archive, kind: str, path: str) -> Module:
    """Return a module of an archive by the loader of its kind; kinds without a loader here are kept as they are."""
    return load_from_bytes(kind, bytes(archive.tar.view(path)), PurePosixPath(path).suffix[1:])


def told_by(error: MlfcError, place: str) -> tuple[str, str]:
    """Return place and cause of an error that a reader of the file `place` raised.

    The error may name the file, too, behind the path of the archive and before the very spot.
    """
    where = error.place or place
    start = where.find(place)
    return where[start:] if start >= 0 else f"{place}: {where}", error.cause


@dataclass
class CSymbols:
    """Definitions of a C file."""

    functions: dict[str, bool] = field(default_factory=dict)  # by name, whether other files can call it
    # elements of each array of one dimension whose size is a number
    arrays: dict[str, int] = field(default_factory=dict)
    tokens: int = 0  # how many were looked at, which is what reading the file took


def defined_symbols(code: bytes | memoryview, limit: int = MAX_TOKENS) -> CSymbols:
    """Return what C or C++ code defines outside of any function; ArchiveError if it has more than `limit` tokens."""
    found = CSymbols()
    declaration: list[bytes] = []
    position = 0
    while position < len(code):
        for match in _OUTSIDE.finditer(code, position):
            found.tokens += 1
            if found.tokens > limit:
                raise ArchiveError(_TOO_LONG)
            word = match["token"]
            if word is None:
                if code[match.start()] == _QUOTE:
                    declaration.append(b'"')
            elif word == b";":
                _note_array(declaration, found)
                declaration = []
            elif word == b"{":
                if declaration[-2:] == [b"extern", b'"']:
                    # the braces of extern "C" hold declarations like those outside
                    declaration = []
                    continue
                if _note_function(declaration, found):
                    declaration = []
                else:
                    declaration.append(word)
                position = _end_of_braces(code, match.end(), found, limit)
                break
            elif word == b"}":
                declaration = []
            else:
                declaration.append(word)
            if len(declaration) > _LONGEST:
                declaration = []
        else:
            break
    return found


def _end_of_braces(code: bytes | memoryview, position: int, found: CSymbols, limit: int) -> int:
    depth = 1
    while depth and found.tokens <= limit and (match := _INSIDE.search(code, position)):
        position = match.end()
        found.tokens += 1
        if match["token"]:
            depth += 1 if match["token"] == b"{" else -1
    if found.tokens > limit:
        raise ArchiveError(_TOO_LONG)
    return len(code) if depth else position


def _note_function(declaration: list[bytes], found: CSymbols) -> bool:
    """Note a function if these tokens are what stands before its body."""
    if declaration[-1:] != [b")"] or b"=" in declaration:
        return False
    depth = 0
    for index in range(len(declaration) - 1, 0, -1):
        depth += (declaration[index] == b")") - (declaration[index] == b"(")
        if depth == 0:
            name = declaration[index - 1]
            if _NAME.fullmatch(name):
                found.functions[name.decode()] = b"static" not in declaration[:index]
            break
    return True


def _note_array(declaration: list[bytes], found: CSymbols) -> None:
    """Note an array if these tokens define one: a name, a number in brackets, perhaps attributes or a value."""
    if b"extern" in declaration or b"typedef" in declaration:
        return
    for index in range(1, len(declaration) - 2):
        name, opening, number, closing = declaration[index - 1 : index + 3]
        if opening == b"[" and closing == b"]" and _NAME.fullmatch(name) and (size := _NUMBER.fullmatch(number)):
            found.arrays.setdefault(name.decode(), int(size[1], 0))  # a form without GNU extensions follows
            return
        if name == b"=":
            return
