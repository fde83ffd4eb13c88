"""The source of Relay text as the parser sees it: comments blanked out, sections split, places shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mlfc.errors import TextError
from mlfc.relay.text_literals import INTEGERS, STATIC_TYPE
from mlfc.relay.text_metadata import SECTION
from mlfc.relay.text_origins import Facts, Origin, read_facts, read_origin

VERSION = "0.0.5"
# Deeper nesting than people and printers write; what follows the tree of the text by recursion relies on it.
MAX_NESTING = 64
# A token takes up to 20 microseconds and one kilobyte; DenseNet-121 has 19,000.
MAX_TOKENS = 60_000
# Characters before the metadata section; DenseNet-121 has 136,000.
MAX_CODE = 2 << 20
MAX_NAME = 65_536
# Bytes with the metadata section, for those who read files.
MAX_TEXT = 16 << 20
_SHOWN_COLUMNS = 100

_VERSION_LINE = re.compile(r'\s*#\[\s*version\s*=\s*"(?P<version>[^"\n]*)"\s*\]')
_MARKS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*|[\[({]|[\])}]|' + re.escape(SECTION))
# no alternative looks further than it takes, so counting is linear whatever the text
TOKEN = re.compile(
    rf'{re.escape(SECTION)}|//[^\n]*|/\*[^*]*|"(?:\\.|[^"\\\n]){{0,{MAX_NAME}}}"?|{INTEGERS}|{STATIC_TYPE}|[%@]?\w+|\S'
)
_COMMENT_MARKS = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Prepared:
    """A text without what the grammar does not know. Places stay the same: every blanked letter becomes a space."""

    code: str  # version line and comments blanked out
    metadata_start: int  # where the metadata section starts; the length of the text if there is none
    origins: dict[int, Origin]  # by the offset at which the code that they belong to ends
    facts: Facts


@dataclass(frozen=True)
class Source:
    """A text and the name of its file."""

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

    def prepared(self) -> Prepared:
        """Check the version and take out comments and metadata section."""
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
        self._check_tokens()
        return self._without_comments(version.end())

    def _check_tokens(self) -> None:
        for count, token in enumerate(TOKEN.finditer(self.text, 0, MAX_CODE + len(SECTION))):
            if token.group() == SECTION:
                return
            if token.end() > MAX_CODE:
                raise self.fault(f"a text of more than {MAX_CODE:,} characters", token.start())
            if count == MAX_TOKENS:
                raise self.fault(
                    f"a text of more than {MAX_TOKENS:,} words, numbers, signs and comments", token.start()
                )
            if len(token.group()) > MAX_NAME and token.group()[0] not in "[/":
                raise self.fault(f"a word of more than {MAX_NAME:,} characters", token.start())
        if len(self.text) > MAX_CODE:
            raise self.fault(f"a text of more than {MAX_CODE:,} characters", MAX_CODE)

    def _without_comments(self, start: int) -> Prepared:
        kept = [_blank(self.text[:start])]
        comments = _Comments(self)
        position, nesting, metadata_start = start, 0, len(self.text)
        while (mark := _MARKS.search(self.text, position)) is not None:
            found = mark.group()
            kept.append(self.text[position : mark.start()])
            comments.passed(position, kept[-1])
            position = mark.end()
            if found == SECTION:
                metadata_start = mark.start()
                break
            if found == "/*":
                position = self._end_of_comment(mark.start())
                comments.read(mark.start(), position)
            if found.startswith(("//", "/*")):
                kept.append(_blank(self.text[mark.start() : position]))
                continue
            kept.append(found)
            comments.passed(mark.start(), found)
            nesting += (found in "[({") - (found in "])}")
            if nesting > MAX_NESTING:
                raise self.fault(f"brackets nest deeper than {MAX_NESTING} levels", mark.start())
        else:
            kept.append(self.text[position:])
        return Prepared("".join(kept), metadata_start, comments.origins, comments.facts or Facts())

    def _end_of_comment(self, start: int) -> int:
        """Return where the comment that opens at `start` ends, other comments inside it included."""
        open_comments = 0
        for mark in _COMMENT_MARKS.finditer(self.text, start):
            open_comments += 1 if mark.group() == "/*" else -1
            if not open_comments:
                return mark.end()
        raise self.fault("this comment does not end", start, 2)


@dataclass(eq=False)
class _Comments:
    """Gathers what comments say about the code before them."""

    source: Source
    code_end: int = 0
    origins: dict[int, Origin] = field(default_factory=dict)
    facts: Facts | None = None

    def passed(self, start: int, code: str) -> None:
        """Remember where the code ended so far, white space left out."""
        if code.strip():
            self.code_end = start + len(code.rstrip())

    def read(self, start: int, end: int) -> None:
        """Take in the comment between two offsets, its marks included."""
        comment = self.source.text[start + 2 : end - 2]
        if self.code_end:
            origin = read_origin(comment)
            if origin is not None:
                self.origins[self.code_end] = origin
            return
        try:
            facts = read_facts(comment)
        except ValueError as error:
            raise self.source.fault(f"this comment does not tell the facts of a module: {error}", start, 2) from None
        self.facts = facts or self.facts


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
