"""What a C caller sees of a module: structs, functions and macros of its header, read without a compiler.

The headers are flat: includes, macros, structs of pointers and declarations of functions, whoever wrote them. What
else a header holds is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO

MAX_HEADER_BYTES = 4 << 20  # constants for pools of the caller's own are macros, byte by byte
_LONGEST = 1 << 20  # a struct of ten thousand tensors

_TOKEN = re.compile(r"[A-Za-z_]\w*|[^\s\w]|\w+")
_BOUNDARY = re.compile(r"[{};]")
_DEFINE = re.compile(r"\s*#\s*define\s+([A-Za-z_]\w*)(.*)")
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(\w*)")


@dataclass(frozen=True)
class StructField:
    """A field of a struct: its type in single-spaced tokens and its name."""

    type: str
    name: str


@dataclass(frozen=True)
class Prototype:
    """A declared function: the types of its result and parameters. Names of parameters mean nothing to a caller."""

    result: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.result} ({', '.join(self.parameters)})"


@dataclass
class Header:
    """The declarations of one header, each by name, in the order of the text."""

    structs: dict[str, tuple[StructField, ...]] = field(default_factory=dict)
    functions: dict[str, Prototype] = field(default_factory=dict)
    # with single spaces; the include guard, which has no value, is left out
    macros: dict[str, str] = field(default_factory=dict)

    def renamed(self, old: str, new: str) -> Header:
        """Return the header with the prefix `old` of every name, type and macro replaced by `new`."""
        word = re.compile(rf"\b(?:{re.escape(old)}|{re.escape(old.upper())})(?=_)")

        def change(text: str) -> str:
            return word.sub(lambda found: new if found[0] == old else new.upper(), text)

        return Header(
            {
                change(name): tuple(StructField(change(item.type), item.name) for item in fields)
                for name, fields in self.structs.items()
            },
            {
                change(name): Prototype(change(item.result), tuple(map(change, item.parameters)))
                for name, item in self.functions.items()
            },
            {change(name): value for name, value in self.macros.items()},
        )


def parse_header(text: str) -> Header:
    """Return the declarations of a header's text; what is not understood is left out, never an error."""
    header = Header()
    lines = []
    for line in _lines_for_c("".join(_without_comments(text)).replace("\\\n", " ")):
        define = _DEFINE.match(line) if "#" in line else None
        if define:
            name, value = define[1], " ".join(define[2].split())
            if value:
                header.macros.setdefault(name, value)
        elif not line.lstrip().startswith("#"):
            lines.append(line)
    for statement, body in _statements("".join(lines)):
        if len(statement) + len(body or "") <= _LONGEST:
            _declare(header, statement, body)
    return header


def _without_comments(text: str) -> Iterator[str]:
    """Yield the text between comments. `find` keeps it linear where a pattern would search to the end each time."""
    at = 0
    block, line = text.find("/*"), text.find("//")
    while block >= 0 or line >= 0:
        start, closing = (block, "*/") if line < 0 or 0 <= block < line else (line, "\n")
        yield text[at:start]
        yield " "
        end = text.find(closing, start + 2)
        if end < 0:
            return
        at = end + 2 if closing == "*/" else end
        block = block if block < 0 or block >= at else text.find("/*", at)
        line = line if line < 0 or line >= at else text.find("//", at)
    yield text[at:]


def _lines_for_c(text: str) -> Iterator[str]:
    """Yield the lines that a C compiler sees: not those between ``#ifdef __cplusplus`` and its end."""
    hidden = 0
    for line in StringIO(text):
        directive = _DIRECTIVE.match(line) if "#" in line else None
        word = directive[1] if directive else ""
        if hidden:
            hidden += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
        elif directive and word == "ifdef" and directive[2] == "__cplusplus":
            hidden = 1
        elif not line.isspace():
            yield line


def _statements(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each statement: the text before its braces or semicolon, and what is between braces."""
    start, opened, depth = 0, 0, 0
    head: str | None = None
    for mark in _BOUNDARY.finditer(text):
        symbol = mark[0]
        if symbol == "{":
            if depth == 0:
                head, opened = text[start : mark.start()], mark.end()
            depth += 1
        elif symbol == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if head is not None:
                    yield head, text[opened : mark.start()]
                head, start = None, mark.end()
        elif depth == 0:
            yield text[start : mark.start()], None
            start = mark.end()


def _declare(header: Header, statement: str, body: str | None) -> None:
    tokens = _TOKEN.findall(statement)
    if body is not None:
        if len(tokens) == 2 and tokens[0] == "struct":
            header.structs.setdefault(tokens[1], tuple(map(_field, filter(str.strip, body.split(";")))))
        return
    if tokens[-1:] != [")"] or "(" not in tokens:
        return
    opening = tokens.index("(")
    if opening < 2 or tokens.count("(") != 1:
        return
    result, name, inside = tokens[: opening - 1], tokens[opening - 1], tokens[opening + 1 : -1]
    parameters = [_field(text).type for text in " ".join(inside).split(",")] if inside not in ([], ["void"]) else []
    header.functions.setdefault(name, Prototype(" ".join(result), tuple(parameters)))


def _field(text: str) -> StructField:
    tokens = _TOKEN.findall(text)
    # a parameter may have a type alone
    if len(tokens) > 1 and (tokens[-1][0].isalpha() or tokens[-1][0] == "_") and tokens[-2] != "struct":
        return StructField(" ".join(tokens[:-1]), tokens[-1])
    return StructField(" ".join(tokens), "")
