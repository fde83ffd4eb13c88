"""The source of Relay text as the parser sees it: comments blanked out, sections split, places shown."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlforge.errors import TextError
from mlforge.relay.text_metadata import SECTION

VERSION = "0.0.5"
# Deeper nesting than people and printers write; what follows the tree of the text by recursion relies on it.
MAX_NESTING = 64
_SHOWN_COLUMNS = 100

_VERSION_LINE = re.compile(r'\s*#\[\s*version\s*=\s*"(?P<version>[^"\n]*)"\s*\]')
_MARKS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*|[\[({]|[\])}]|' + re.escape(SECTION))
_COMMENT_MARKS = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Source:
    """A text and the name of its file.

    Attributes
    ----------
    text : str
    file : str
    """

    text: str
    file: str

    def fault(self, cause: str, offset: int, length: int = 1, *, help_text: str | None = None) -> TextError:
        """Return an error that points at `length` letters from `offset` on."""
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", start)
        source = self.text[start : end if end >= 0 else len(self.text)]
        row, column = self.text.count("\n", 0, offset) + 1, offset - start
        cut = max(0, column - _SHOWN_COLUMNS // 2)
        shown = source[cut : cut + _SHOWN_COLUMNS].replace("\t", " ")
        carets = "^" * max(1, min(length, len(shown) - (column - cut)))
        gutter = " " * len(str(row))
        lines = [cause, f"{gutter} |", f"{row} | {shown}", f"{gutter} | {' ' * (column - cut)}{carets}"]
        if help_text:
            lines.append(f"{gutter} = help: {help_text}")
        return TextError("\n".join(lines), place=f"{self.file}:{row}:{column + 1}")

    def prepared(self) -> tuple[str, int]:
        """Return the text with version line and comments blanked out, and where the metadata section starts.

        Places stay the same: every blanked letter becomes a space. Without a metadata section the second
        value is the length of the text.
        """
        version = _VERSION_LINE.match(self.text)
        if version is None:
            first = len(self.text) - len(self.text.lstrip())
            word = self.text[first:].split(maxsplit=1)
            raise self.fault(
                f"expected text format semantic version, found {'a `' + word[0][:40] + '`' if word else 'nothing'}",
                first,
                help_text=f'you can annotate it as #[version = "{VERSION}"]',
            )
        if version["version"] != VERSION:
            raise self.fault(
                f"invalid semantic version `{version['version']}`",
                version.start("version"),
                len(version["version"]),
                help_text=f"this is a reader of version {VERSION}",
            )
        return self._without_comments(version.end())

    def _without_comments(self, start: int) -> tuple[str, int]:
        kept = [_blank(self.text[:start])]
        position, nesting = start, 0
        while (mark := _MARKS.search(self.text, position)) is not None:
            found = mark.group()
            kept.append(self.text[position : mark.start()])
            position = mark.end()
            if found == SECTION:
                return "".join(kept), mark.start()
            if found == "/*":
                position = self._end_of_comment(mark.start())
            if found.startswith(("//", "/*")):
                kept.append(_blank(self.text[mark.start() : position]))
                continue
            kept.append(found)
            nesting += (found in "[({") - (found in "])}")
            if nesting > MAX_NESTING:
                raise self.fault(f"brackets nest deeper than {MAX_NESTING} levels", mark.start())
        kept.append(self.text[position:])
        return "".join(kept), len(self.text)

    def _end_of_comment(self, start: int) -> int:
        """Return where the comment that opens at `start` ends, other comments inside it included."""
        open_comments = 0
        for mark in _COMMENT_MARKS.finditer(self.text, start):
            open_comments += 1 if mark.group() == "/*" else -1
            if not open_comments:
                return mark.end()
        raise self.fault("this comment does not end", start, 2)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
