"""Support for the project's name before its first release: archives and libraries of that time still load."""

from __future__ import annotations

import re
from typing import Any

FORMER = "mlforge"
"""Former form of `mlfc` in metadata keys, exported symbols and module kinds."""


FORMER_TRACE = f"runtime/include/{FORMER}_trace.h"
"""The archive's header that such code includes."""


def former(name: str) -> str:
    """Return the former name of one of our keys, symbols or kinds."""
    return name.replace("mlfc", FORMER)


def current(symbol: str) -> str:
    """Return the current name of an exported symbol."""
    return "mlfc" + symbol[len(FORMER) :] if symbol.startswith(FORMER + "_") else symbol


def current_hooks(source: memoryview) -> bytes:
    """Return an archive's C source with the current names of the profiling hook."""
    words = {b"mlforge": b"mlfc", b"MLFORGE": b"MLFC"}
    return re.sub(rb"\b(MLFORGE|mlforge)(?=_(TRACE|trace))", lambda found: words[found[1]], bytes(source))


def current_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Return an archive's metadata with current keys; the document itself if it has no former ones."""
    document = _renamed(document)
    modules = document.get("modules")
    if isinstance(modules, dict) and any(isinstance(item, dict) and FORMER in item for item in modules.values()):
        renamed = {name: _renamed(item) if isinstance(item, dict) else item for name, item in modules.items()}
        return {**document, "modules": renamed}
    return document


def _renamed(item: dict[str, Any]) -> dict[str, Any]:
    if FORMER not in item:
        return item
    return {"mlfc" if key == FORMER else key: value for key, value in item.items()}
