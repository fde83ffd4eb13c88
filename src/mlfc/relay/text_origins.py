"""What Relay text has no words for: comments with original names, which other readers skip.

``/* span="conv1" tensor="y" name="w:0" */`` behind an expression or a parameter gives its `Span` and its own name;
several nodes make a list. ``/* module={...} */`` before the first function gives the facts of the `IRModule`.
What TVM's operators cannot take is written as they take it, and ``exact=`` in such a comment says what it is: the
number behind a float32 scale, ``{"constant": 3}`` for a tensor in the metadata, values of attributes behind a call.
Values are JSON whose asterisks are escaped, so that no name can end a comment.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlfc.relay.ir import NO_SPAN, IRModule, Quantization, Span

_STRING = r'"(?:[^"\\]|\\.)*"'
_ORIGIN = re.compile(
    rf"\s*(?:exact=(?P<exact>\{{[^{{}}]*\}}|[-+.0-9eE]+)\s*)?"
    rf"(?:span=(?P<nodes>{_STRING}|\[{_STRING}(?:, {_STRING})*\])\s*)?"
    rf"(?:tensor=(?P<tensor>{_STRING})\s*)?(?:name=(?P<name>{_STRING})\s*)?"
)
_FACTS = "module="
_ZERO_POINT_LIMIT = 1 << 63


@dataclass(frozen=True)
class Origin:
    """Where an expression came from."""

    span: Span = NO_SPAN
    name: str | None = None  # the own name of a constant, or of a parameter that is printed under another one
    exact: float | dict[str, Any] | None = None  # what stands where TVM's form of it is printed


@dataclass(frozen=True)
class Facts:
    """What an `IRModule` holds besides functions."""

    output_names: tuple[str, ...] = ()
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)


def origin_text(origin: Origin) -> str:
    """Return the comment, with a space before it; nothing for what came from nowhere."""
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
    """Return what a comment's text says; None for any other comment."""
    found = _ORIGIN.fullmatch(comment)
    if found is None or not any(found.groups()):
        return None
    try:
        texts = found.group("nodes", "tensor", "name", "exact")
        nodes, tensor, name, exact = (None if value is None else json.loads(value) for value in texts)
    except ValueError:
        return None
    return Origin(Span((nodes,) if isinstance(nodes, str) else tuple(nodes or ()), tensor), name, exact)


def facts_text(module: IRModule) -> str:
    """Return the line with a module's facts; nothing where there are none."""
    facts = {
        "output_names": module.output_names,
        "quantization": {name: [float(q.scale), int(q.zero_point)] for name, q in module.quantization.items()},
        "source": dict(module.source),
    }
    known = {key: value for key, value in facts.items() if value}
    return f"/* module={_json(known)} */\n" if known else ""


def read_facts(comment: str) -> Facts | None:
    """Return the facts in a comment's text; None for any other comment.

    Raises ValueError if it starts as they do, but does not hold them.
    """
    text = comment.strip()
    if not text.startswith(_FACTS):
        return None
    try:
        document = json.loads(text.removeprefix(_FACTS), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict) or not document.keys() <= {"output_names", "quantization", "source"}:
        raise ValueError("expected an object with output_names, quantization and source")
    names, scales, source = (
        document.get("output_names", []),
        document.get("quantization", {}),
        document.get("source", {}),
    )
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("output_names must be a list of strings")
    if not isinstance(scales, dict) or not all(map(_is_quantization, scales.values())):
        raise ValueError("quantization must give a scale and a zero point by name")
    if not isinstance(source, dict) or not all(isinstance(value, str) for value in source.values()):
        raise ValueError("source must give strings by name")
    return Facts(tuple(names), {name: Quantization(float(pair[0]), pair[1]) for name, pair in scales.items()}, source)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False).replace("*", "\\u002a")


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _is_quantization(value: Any) -> bool:
    if not isinstance(value, list) or [type(item) for item in value] not in ([float, int], [int, int]):
        return False
    scale, zero_point = value
    return bool(abs(scale) <= sys.float_info.max and abs(zero_point) < _ZERO_POINT_LIMIT)
