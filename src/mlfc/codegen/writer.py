"""Generated text: lines with indentation, and pieces of code from files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path


class Writer:
    """Collects lines; blocks indent what is written inside them."""

    def __init__(self, indent: str = "  ") -> None:
        self._lines: list[str] = []
        self._unit = indent
        self._depth = 0

    @property
    def column(self) -> int:
        """The current indentation in columns."""
        return len(self._unit) * self._depth

    def line(self, text: str = "") -> None:
        """Add one line, or several separated by newlines."""
        for part in text.split("\n"):
            self._lines.append(self._unit * self._depth + part if part else "")

    def lines(self, texts: list[str]) -> None:
        """Add lines."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Write ``head {``, indent the block's lines, and close it with `tail`."""
        self.line(f"{head} {{")
        with self.indented():
            yield
        self.line(tail)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent what follows."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def text(self) -> str:
        """Return everything, with a final newline."""
        return "\n".join(self._lines) + "\n"


def comment_text(text: str) -> str:
    """Return `text`, which may come from an untrusted model, as one line that is safe inside a C comment."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text)
    for unsafe, safe in (("*/", "* /"), ("/*", "/ *"), ("??", "? ?")):
        while unsafe in plain:
            plain = plain.replace(unsafe, safe)
    return plain.replace("\\", "/") if plain.endswith("\\") else plain


def c_string(text: str, limit: int = 200) -> str:
    """Return a C string literal of a name of any characters, those beyond ASCII in UTF-8."""
    parts = []
    for byte in text[:limit].encode("utf-8", "replace"):
        char = chr(byte)
        # octal escapes end after three digits; question marks could make a trigraph
        parts.append(char if " " <= char <= "~" and char not in '"\\?' else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'


def packed_head(name: str) -> str:
    """Return the head of the packed function `name`."""
    return (
        f"int {name}(TVMValue *args, int *type_codes, int num_args, TVMValue *out_ret_value, int *out_ret_tcode,\n"
        "           void *resource_handle)"
    )


@cache
def text_beside(module: str, name: str) -> str:
    """Return the text of the file `name` beside the file `module`, without its last line's end."""
    return Path(module).with_name(name).read_text(encoding="utf-8").removesuffix("\n")


@cache
def pieces_beside(module: str, name: str) -> Mapping[str, str]:
    """Return the pieces of a file of code beside the file `module`, by the key in the line ``//: key`` above each."""
    parts = re.split(r"^//: (.*)\n", text_beside(module, name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2]), strict=True))


PIECES = pieces_beside(__file__, "pieces.h")
"""Text that is the same in every file that has it."""
