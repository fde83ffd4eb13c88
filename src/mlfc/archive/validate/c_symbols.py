"""Which functions and arrays C code defines: enough of C to tell code from comments, strings and declarations.

No preprocessor runs: of branches that exclude each other both count. The code is read once from start to end, in place,
whatever is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mlfc.errors import ArchiveError

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
_QUOTE = ord('"')
_LONGEST = 4096  # tokens of one declaration; what is longer is no code that anyone calls
_NUMBER = re.compile(rb"(0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,17}|0)[uUlL]{0,3}")


@dataclass
class CSymbols:
    """What a file defines."""

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
                raise _too_long()
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
        raise _too_long()
    return len(code) if depth else position


def _too_long() -> ArchiveError:
    return ArchiveError(f"more than {MAX_TOKENS:,} words, signs, comments and strings of C code in the archive")


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
