"""The index of what a matrix made: for programs as JSON, for people as HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mlfc.matrix.rows import MatrixRow
from mlfc.support.version import __version__

_STYLE = (
    "body{font:14px sans-serif;margin:2em}td,th{padding:3px 10px;text-align:left;vertical-align:top}"
    ".n{text-align:right}.bad{color:#b00}"
)
_MEMORY = ("workspace_bytes", "constants_bytes", "io_bytes")
_TITLES = ("row", "file", "bytes", "workspace", "constants", "inputs and outputs", "board: RAM", "board: flash", "note")


def entry(row: MatrixRow, files: Mapping[str, int], report: Mapping[str, Any], error: str | None) -> dict[str, Any]:
    """Return what the index says of a row; `files` have their sizes."""
    found: dict[str, Any] = {
        "row": row.name,
        "model": row.model,
        "target": row.target,
        "option": row.option,
        "options": dict(row.options),
        "status": "ok" if error is None else "failed",
    }
    if error is not None:
        return {**found, "error": error}
    return {**found, "files": [{"path": path, "bytes": files[path]} for path in sorted(files)], **report}


def as_json(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the index for programs."""
    return json.dumps({"mlfc": __version__, "rows": list(entries)}, indent=2) + "\n"


def memory_of(item: Mapping[str, Any]) -> list[int | None]:
    """Return the bytes of workspace, constants, and inputs and outputs; None where there is no such number."""
    modules = item.get("modules", {}).values()
    memories = [module.get("memory", {}) for module in modules]
    return [sum(memory.get(name) or 0 for memory in memories) if memories else None for name in _MEMORY]


def board_memory(item: Mapping[str, Any]) -> list[int | None]:
    """Return the bytes of RAM and flash on a board; None without one."""
    regions = (item.get("board") or {}).get("regions", [])
    kinds = {region["kind"] for region in regions}
    return [
        sum(region["used"] for region in regions if region["kind"] == kind) if kind in kinds else None
        for kind in ("ram", "flash")
    ]


def as_html(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the index for people."""
    failed = sum(item["status"] != "ok" for item in entries)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Compiled models</title>',
        f"<style>{_STYLE}</style></head><body><h1>Compiled models</h1>",
        f"<p>{len(entries)} rows, {failed} failed; mlfc {escape(__version__)}</p>",
        f"<table><tr>{''.join(f'<th>{title}</th>' for title in _TITLES)}</tr>",
    ]
    for item in entries:
        files = item.get("files", [])
        links = "<br>".join(f'<a href="{escape(one["path"])}">{escape(one["path"])}</a>' for one in files[:_MOST_LINKS])
        more = f"<br>and {len(files) - _MOST_LINKS} more" if len(files) > _MOST_LINKS else ""
        numbers = [sum(one["bytes"] for one in files) if files else None, *memory_of(item), *board_memory(item)]
        cells = "".join(f'<td class="n">{"" if number is None else f"{number:,}"}</td>' for number in numbers)
        note = escape(item.get("error") or "; ".join(item.get("warnings", [])))
        kind = ' class="bad"' if item["status"] != "ok" else ""
        lines.append(
            f"<tr><td{kind}>{escape(item['row'])}</td><td>{links}{more}</td>{cells}<td{kind}><pre>{note}</pre></td></tr>"
        )
    return "\n".join((*lines, "</table></body></html>", ""))


_MOST_LINKS = 8
