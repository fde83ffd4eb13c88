"""Text for users: names and numbers in messages, objects at a prompt and in notebooks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mlfc.errors import OptionError

_GAP = "..."
_NODE = re.compile(r"(.+) \((\w+ #\d+)\)", re.DOTALL)  # of TFLite
_MAX_TEXT = 300
_BYTES = re.compile(r"([0-9]{1,15}) ?(?:([kmg])?(?:i?b)?)?", re.IGNORECASE | re.ASCII)
_MODEL_SUFFIX = re.compile(r"(?<=.)\.(?:onnx|ort|tflite|lite|pt2|tar|tar\.gz|tgz|model-lib)$", re.IGNORECASE)


def shortest_digits(value: float | np.floating[Any]) -> str:
    """Return the shortest decimal form of a finite number that parses to the same number of its width.

    ``str`` of NumPy scalars switches to exponents at a magnitude that depends on NumPy's version; this does not.
    """
    if isinstance(value, float):
        return repr(float(value))
    if value == 0 or 1e-4 <= abs(float(value)) < 1e16:
        return np.format_float_positional(value, unique=True, trim="0")
    return np.format_float_scientific(value, unique=True, trim="-", exp_digits=2)


def model_title(path: str | os.PathLike[str]) -> str:
    """Return a model's file name without the suffix of its format: ``net.v1`` for ``models/net.v1.onnx``."""
    return _MODEL_SUFFIX.sub("", Path(path).name)


def shortened(text: str, limit: int = 64) -> str:
    """Return `text`, without its middle if it exceeds `limit` characters.

    Converters join the names of fused operators to names of hundreds of characters, which differ at their ends. The
    operators of TFLite nodes come first: ``CONV_2D #2 functional_1/...`` for ``functional_1/... (CONV_2D #2)``.
    """
    if len(text) <= limit:
        return text
    nodes = list(map(_NODE.fullmatch, text.split(", ")))
    if all(nodes):
        text = " ".join((", ".join(node[2] for node in nodes if node), nodes[0][1] if nodes[0] else ""))
        return text if len(text) <= limit else shortened(text, limit)
    kept = limit - len(_GAP)
    return text[: kept - kept // 2] + _GAP + text[-(kept // 2) :]


def byte_count(text: str | int) -> int:
    """Return a number of bytes from a text such as ``65536``, ``64k`` or ``1M``; units are powers of 1024.

    Raises
    ------
    OptionError
        If the text does not have this form.
    """
    match = _BYTES.fullmatch(str(text).strip())
    if match is None:
        raise OptionError(f"expected bytes such as 65536, 64k or 1M, got '{shortened(str(text))}'")
    return int(match[1]) << 10 * " kmg".index((match[2] or " ").lower())


def first_lines(text: str, count: int = 12) -> str:
    """Return the first lines of a tool's output, indented, as the end of a message."""
    return "".join(f"\n  {line}" for line in text.strip().splitlines()[:count])


def printable(text: str) -> str:
    """Return `text` with unprintable characters escaped, except line breaks.

    Names come from untrusted files, and terminals interpret some characters as commands.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def with_article(noun: str) -> str:
    """Return a noun with its article, ``a`` or ``an``."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


class Displayed:
    """Mixin that adds a short ``repr``, and a table in notebooks, of a class's facts."""

    __slots__ = ()
    _shows: ClassVar[tuple[str, ...] | None] = None  # names of attributes; default: the fields of a dataclass

    def _facts(self) -> Mapping[str, object]:
        """Return what to show, by label."""
        if self._shows is not None:
            values = {name: getattr(self, name) for name in self._shows}
            return {name: [*value] if isinstance(value, Mapping) else value for name, value in values.items()}
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    def __repr__(self) -> str:
        try:
            facts = [f"{label}={_shown(value, 100, '[{}]')}" for label, value in self._facts().items()]
        except AttributeError:  # not fully constructed, as in a debugger
            facts = []
        return f"<{' '.join([type(self).__name__, *facts])}>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return html_table(type(self).__name__, (), list(self._facts().items()))


def sets_of_inputs(count: int) -> str:
    """Return a number of sets of inputs in words."""
    return f"{count} {'set' if count == 1 else 'sets'} of inputs"


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML with all text escaped; an empty `header` omits the header row."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _shown(value: object, most: int = _MAX_TEXT, list_form: str = "{}") -> str:
    form, text = "{}", str(value)
    if isinstance(value, (list, tuple)):
        form, text = list_form, ", ".join(map(str, value))
    return form.format(text if len(text) <= most else f"{text[: most - 3]}...")
