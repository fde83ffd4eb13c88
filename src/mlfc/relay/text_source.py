"""Preparation of Relay text for the parser: comments blanked out, sections split, positions shown in errors.

Comments contain facts that Relay text cannot express; other readers skip them.

``/* span="conv1" tensor="y" name="w:0" */`` behind an expression or a parameter contains its `Span` and its original
name; several nodes are a list. ``/* module={...} */`` before the first function contains the facts of the `IRModule`.
Values that TVM's operators do not support are printed in TVM's form, and ``exact=`` in such a comment contains the
exact value: the number behind a float32 scale, ``{"constant": 3}`` for a tensor in the metadata, values of attributes
behind a call. Values are JSON whose asterisks are escaped, so that no name can end a comment.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlfc.errors import TextError
from mlfc.relay.ir import NO_SPAN, IRModule, Quantization, Span
from mlfc.relay.text_literals import INTEGERS, SECTION, STATIC_TYPE
from mlfc.support.dtypes import SCALARS
from mlfc.support.tensor_info import KINDS, Container

VERSION = "0.0.5"
# Deeper than people and printers nest; code that recurses over the tree of the text relies on this limit.
MAX_NESTING = 64
# A token takes up to 20 microseconds and one kilobyte; DenseNet-121 has 19,000.
MAX_TOKENS = 60_000
# Characters before the metadata section; DenseNet-121 has 136,000.
MAX_CODE = 2 << 20
MAX_NAME = 65_536
# Bytes including the metadata section, for code that reads files.
MAX_TEXT = 16 << 20
_SHOWN_COLUMNS = 100

_VERSION_LINE = re.compile(r'\s*#\[\s*version\s*=\s*"(?P<version>[^"\n]*)"\s*\]')
_MARKS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*|[\[({]|[\])}]|' + re.escape(SECTION))
# no alternative has lookahead beyond its match, so counting is linear for any text
TOKEN = re.compile(
    rf'{re.escape(SECTION)}|//[^\n]*|/\*[^*]*|"(?:\\.|[^"\\\n]){{0,{MAX_NAME}}}"?|{INTEGERS}|{STATIC_TYPE}|[%@]?\w+|\S'
)
_COMMENT_MARKS = re.compile(r"/\*|\*/")
_STRING = r'"(?:[^"\\]|\\.)*"'
_ORIGIN = re.compile(
    rf"\s*(?:exact=(?P<exact>\{{[^{{}}]*\}}|[-+.0-9eE]+)\s*)?"
    rf"(?:span=(?P<nodes>{_STRING}|\[{_STRING}(?:, {_STRING})*\])\s*)?"
    rf"(?:tensor=(?P<tensor>{_STRING})\s*)?(?:name=(?P<name>{_STRING})\s*)?"
)
_FACTS = "module="
_ZERO_POINT_LIMIT = 1 << 63


@dataclass(frozen=True)
class Prepared:
    """A text in which everything outside the grammar is blanked by spaces, so that positions stay the same."""

    code: str  # version line and comments blanked out
    metadata_start: int  # start of the metadata section; the length of the text if it is missing
    origins: dict[int, Origin]  # by the end offset of the code that they belong to
    facts: Facts


@dataclass(frozen=True)
class Source:
    """A text and the name of its file."""

    text: str
    file: str

    def fault(self, cause: str, offset: int, length: int = 1, *, help_text: str | None = None) -> TextError:
        """Return an error that points at `length` characters from `offset` on."""
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
        """Check the version and separate comments and metadata section from the code."""
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
                raise self.fault(f"the text exceeds {MAX_CODE:,} characters", token.start())
            if count == MAX_TOKENS:
                raise self.fault(f"the text exceeds {MAX_TOKENS:,} words, numbers, signs and comments", token.start())
            if len(token.group()) > MAX_NAME and token.group()[0] not in "[/":
                raise self.fault(f"a word exceeds {MAX_NAME:,} characters", token.start())
        if len(self.text) > MAX_CODE:
            raise self.fault(f"the text exceeds {MAX_CODE:,} characters", MAX_CODE)

    def _without_comments(self, start: int) -> Prepared:
        kept = [_blank(self.text[:start])]
        origins: dict[int, Origin] = {}
        facts = Facts()
        position, nesting, metadata_start = start, 0, len(self.text)
        code_end = 0  # end of the code so far, without white space
        while (mark := _MARKS.search(self.text, position)) is not None:
            found, code = mark.group(), self.text[position : mark.start()]
            kept.append(code)
            if code.strip():
                code_end = position + len(code.rstrip())
            position = mark.end()
            if found == SECTION:
                metadata_start = mark.start()
                break
            if found == "/*":
                position = self._end_of_comment(mark.start())
                comment = self.text[mark.end() : position - 2]
                if not code_end:
                    facts = self._facts(comment, mark.start()) or facts
                elif (origin := read_origin(comment)) is not None:
                    origins[code_end] = origin
            if found.startswith(("//", "/*")):
                kept.append(_blank(self.text[mark.start() : position]))
                continue
            kept.append(found)
            code_end = position
            nesting += (found in "[({") - (found in "])}")
            if nesting > MAX_NESTING:
                raise self.fault(f"brackets nest deeper than {MAX_NESTING} levels", mark.start())
        else:
            kept.append(self.text[position:])
        return Prepared("".join(kept), metadata_start, origins, facts)

    def _facts(self, comment: str, start: int) -> Facts | None:
        try:
            return read_facts(comment)
        except ValueError as error:
            raise self.fault(f"invalid facts of a module in this comment: {error}", start, 2) from None

    def _end_of_comment(self, start: int) -> int:
        """Return the end of the comment that starts at `start`, including nested comments."""
        open_comments = 0
        for mark in _COMMENT_MARKS.finditer(self.text, start):
            open_comments += 1 if mark.group() == "/*" else -1
            if not open_comments:
                return mark.end()
        raise self.fault("this comment does not end", start, 2)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


@dataclass(frozen=True)
class Origin:
    """The origin of an expression."""

    span: Span = NO_SPAN
    name: str | None = None  # the original name of a constant, or of a parameter that is printed under another name
    exact: float | dict[str, Any] | None = None  # the exact value if TVM's form of it is printed


@dataclass(frozen=True)
class Facts:
    """The contents of an `IRModule` except its functions."""

    output_names: tuple[str, ...] = ()
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)  # state output -> the input that it becomes in the next run
    containers: tuple[Container, ...] = ()
    symbols: Mapping[str, str] = field(default_factory=dict)  # original names of symbols by those in the text


def origin_text(origin: Origin) -> str:
    """Return the comment with a leading space, or an empty string for an unknown origin."""
    nodes = origin.span.nodes
    values = {
        "exact": origin.exact,
        "span": nodes[0] if len(nodes) == 1 else nodes or None,
        "tensor": origin.span.tensor,
        "name": origin.name,
    }
    words = [f"{key}={_json(value)}" for key, value in values.items() if value is not None]
    return f" /* {' '.join(words)} */" if words else ""


def read_origin(comment: str) -> Origin | None:
    """Return the origin in a comment; None for any other comment."""
    found = _ORIGIN.fullmatch(comment)
    if found is None or not any(found.groups()):
        return None
    try:
        texts = found.group("nodes", "tensor", "name", "exact")
        nodes, tensor, name, exact = (None if value is None else json.loads(value) for value in texts)
    except ValueError:
        return None
    return Origin(Span((nodes,) if isinstance(nodes, str) else tuple(nodes or ()), tensor), name, exact)


def facts_text(module: IRModule, symbols: Mapping[str, str] | None = None) -> str:
    """Return the line with a module's facts; empty if it has none.

    `symbols`: original names of symbols by those in the text.
    """
    facts = {
        "output_names": module.output_names,
        "quantization": {name: [float(q.scale), int(q.zero_point)] for name, q in module.quantization.items()},
        "source": dict(module.source),
        "states": {state.input: state.output for state in module.states},
        "containers": [
            [item.name, item.kind, item.dtype, item.is_output, *([True] if item.is_mixed else [])]
            for item in module.containers
        ],
        "symbols": dict(symbols or {}),
    }
    known = {key: value for key, value in facts.items() if value}
    return f"/* module={_json(known)} */\n" if known else ""


def read_facts(comment: str) -> Facts | None:
    """Return the facts in a comment; None for any other comment, ValueError for broken facts."""
    text = comment.strip()
    if not text.startswith(_FACTS):
        return None
    try:
        document = json.loads(text.removeprefix(_FACTS), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    keys = list(_FORMS)
    if not isinstance(document, dict) or not document.keys() <= set(keys):
        raise ValueError(f"expected an object with {', '.join(keys[:-1])} and {keys[-1]}")
    for key, (kind, is_item, form) in _FORMS.items():
        value = document.setdefault(key, kind())
        items = value.values() if isinstance(value, dict) else value
        if not isinstance(value, kind) or not all(map(is_item, items)):
            raise ValueError(f"{key} must {form}")
    if len(set(document["symbols"].values())) < len(document["symbols"]):
        raise ValueError("two symbols have one name")
    pairs = document["quantization"].items()
    return Facts(
        tuple(document["output_names"]),
        {name: Quantization(float(scale), zero_point) for name, (scale, zero_point) in pairs},
        document["source"],
        document["states"],
        tuple(Container(*item) for item in document["containers"]),
        document["symbols"],
    )


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False).replace("*", "\\u002a")


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_container(value: Any) -> bool:
    kinds = [str, str, str, bool]
    if not isinstance(value, list) or [type(item) for item in value] not in (kinds, [*kinds, bool]):
        return False
    return value[1] in KINDS and value[2] in SCALARS


def _is_quantization(value: Any) -> bool:
    if not isinstance(value, list) or [type(item) for item in value] not in ([float, int], [int, int]):
        return False
    scale, zero_point = value
    return bool(abs(scale) <= sys.float_info.max and abs(zero_point) < _ZERO_POINT_LIMIT)


# for each kind of facts: list or mapping, predicate for each item, and its description in messages
_FORMS: Mapping[str, tuple[type[list[Any] | dict[str, Any]], Callable[[Any], bool], str]] = {
    "output_names": (list, _is_text, "be a list of strings"),
    "quantization": (dict, _is_quantization, "give a scale and a zero point by name"),
    "source": (dict, _is_text, "give strings by name"),
    "states": (dict, _is_text, "give outputs by inputs"),
    "containers": (list, _is_container, "give a name, a kind, a dtype and whether it is an output"),
    "symbols": (dict, _is_text, "give their own names by those in the text"),
}
