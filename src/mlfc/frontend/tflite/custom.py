"""The options of custom operators, which are a map of FlexBuffers."""

from __future__ import annotations

import math
from typing import Any

from flatbuffers import flexbuffers

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node

_MOST_OPTIONS = 64


def _found(node: Node, name: str) -> Any:
    """Return an option as FlexBuffers have it, None if it is missing."""
    options = flexbuffers.GetRoot(node.record.custom) if node.record.custom else None
    if options is None or not options.IsMap or len(options.AsMap) > _MOST_OPTIONS:
        raise ModelError(f"expected a map of options, with '{name}' among them")
    entries = options.AsMap
    for key, value in zip(entries.Keys, entries.Values, strict=True):
        if key.AsKey == name:
            return value
    return None


def option(node: Node, name: str, default: int | None = None) -> int:
    """Return an option of a custom operator that is a whole number or a flag."""
    value = _found(node, name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ModelError(f"its option '{name}' is missing")
    if not value.IsInt and not value.IsBool:
        raise ModelError(f"expected a number as its option '{name}'")
    return int(value.AsInt) if value.IsInt else int(value.AsBool)


def ranged(node: Node, name: str, low: int, high: int = (1 << 31) - 1, default: int | None = None) -> int:
    """Return an option that must be in [low, high]."""
    value = option(node, name, default)
    if not low <= value <= high:
        raise ModelError(f"expected its option '{name}' between {low} and {high}, got {value}")
    return value


def real(node: Node, name: str) -> float:
    """Return an option of a custom operator that is a finite number."""
    value = _found(node, name)
    if value is None or not (value.IsFloat or value.IsInt):
        raise ModelError(f"expected a number as its option '{name}'")
    number = float(value.AsFloat) if value.IsFloat else float(value.AsInt)
    if not math.isfinite(number):
        raise ModelError(f"its option '{name}' is {number}")
    return number
