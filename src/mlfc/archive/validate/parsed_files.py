"""Parsed files of an archive under validation, and the definitions in its C code and objects.

C is scanned once, just closely enough to distinguish code from comments, strings and declarations. The preprocessor
does not run: mutually exclusive branches both count.
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
from mlfc.runtime.modules.module import Module, load_from_bytes

Faults: TypeAlias = Iterator[tuple[str, str]]
"""Fault of an archive: the file and position, and the cause."""
C_ENDINGS = (".c", ".cc", ".cpp")
OBJECT_ENDING = ".o"
_KINDS = (NOTYPE, FUNCTION)  # an assembler may leave the type of a function unspecified

# an unterminated alternative matches to the end of the text, so no text is scanned twice
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
_LONGEST = 4096  # tokens of one declaration; longer ones are not callable code
_NUMBER = re.compile(rb"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,17}|0)[uUlL]{0,3}")


class ParsedFiles:
    """Files of one archive, parsed on first use; `errors` contains the files that could not be parsed, by path."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.errors: dict[str, ArchiveError] = {}

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """Valid graphs of modules for the graph executor, by path."""
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
        """Valid modules of other kinds, in file order."""
        trees = [module.details.module_tree for module in self.archive.record.modules.values() if module.details]
        kinds = {path: entry.type_key for tree in trees for entry in tree[1:] for path in entry.files}
        found = []
        for path, kind in sorted(kinds.items()):
            if path in self.archive.tar.sizes:
                with suppress(MlfcError):  # module_tree_faults reports it
                    found.append(loaded_module(self.archive, kind, path))
        return found

    @cached_property
    def c_code(self) -> dict[str, CSymbols]:
        """Definitions of each C file, by path in sorted order, up to the first file that exceeds the limit."""
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
        """Functions that each valid object file defines, by path."""
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
    """Return the names of the functions that an object file exports; raise ArchiveError unless it is valid ELF."""
    try:
        return {item.name for item in read_symbols(data) if not item.is_local and item.kind in _KINDS}
    except ValueError as error:
        raise ArchiveError(
            f"the ELF object is damaged: {error}", place=place, next_step="Export the archive again"
        ) from None


def loaded_module(archive: Archive, kind: str, path: str) -> Module:
    """Return a module of an archive from the loader of its kind; modules without a loader are kept as bytes."""
    return load_from_bytes(kind, bytes(archive.tar.view(path)), PurePosixPath(path).suffix[1:])


def told_by(error: MlfcError, place: str) -> tuple[str, str]:
    """Return place and cause of an error raised by a reader of the file `place`.

    The error may name the file as well, between the path of the archive and the position.
    """
    where = error.place or place
    start = where.find(place)
    return where[start:] if start >= 0 else f"{place}: {where}", error.cause


@dataclass
class CSymbols:
    """Definitions of a C file."""

    functions: dict[str, bool] = field(default_factory=dict)  # by name; True if other files can call it
    # number of elements of each one-dimensional array of constant size
    arrays: dict[str, int] = field(default_factory=dict)
    tokens: int = 0  # number scanned: the cost of reading the file


def defined_symbols(code: bytes | memoryview, limit: int = MAX_TOKENS) -> CSymbols:
    """Return the definitions of C or C++ code outside of functions; raise ArchiveError beyond `limit` tokens."""
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
                    # the braces of extern "C" contain declarations at file scope
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
    """Record a function if these tokens are the start of a function definition."""
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
    """Record an array if these tokens define one: a name, a number in brackets, perhaps attributes or a value."""
    if b"extern" in declaration or b"typedef" in declaration:
        return
    for index in range(1, len(declaration) - 2):
        name, opening, number, closing = declaration[index - 1 : index + 3]
        if opening == b"[" and closing == b"]" and _NAME.fullmatch(name) and (size := _NUMBER.fullmatch(number)):
            found.arrays.setdefault(name.decode(), int(size[1], 0))  # the form without GNU extensions follows
            return
        if name == b"=":
            return
