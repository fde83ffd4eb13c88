"""Parts that pages of archives and of libraries have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlfc.archive.describe.pages import Cell, html_of, number, sortable

_UNKNOWN = "unknown before the run"
_UNBOUNDED = 1 << 62  # how extents without a bound are sorted


def cards(facts: Mapping[str, object]) -> Iterator[str]:
    """Yield the boxes on top of a page, for facts that are known."""
    for name, fact in facts.items():
        if fact is not None:
            yield f"<div><b>{html_of(fact)}</b>{html_of(name)}</div>"


CALL_NUMBERS = (
    ("MACs", "macs"), ("bytes moved", "bytes"), ("live bytes", "live_bytes"), ("scratch", "workspace_bytes"),
)  # fmt: skip
"""Titles of the numbers of a call, and their keys in what `describe` returns."""


def byte_text(count: int | None) -> str | None:
    """Return a number of bytes in words; None if it is not known."""
    return None if count is None else f"{count:,} bytes"


def memory_title(key: str) -> str:
    """Return what memory is called, from its key in what `describe` returns."""
    return "inputs and outputs" if key == "io_bytes" else key.removesuffix("_bytes").replace("_", " ")


def tensor_table(module: Mapping[str, Any]) -> str:
    """Return the table of a module's inputs, outputs and states."""
    rows = [
        (
            Cell(kind),
            Cell(tensor["name"]),
            Cell(shape_text(tensor["shape"])),
            Cell(tensor["dtype"] or ""),
            number(tensor.get("bytes")),
            number(tensor.get("scale")),
            number(tensor.get("zero_point")),
        )
        for kind in ("inputs", "outputs", "states")
        for tensor in module[kind] or ()
    ]
    columns = ("kind", "name", "shape", "dtype", "bytes", "scale", "zero point")
    return sortable(columns, ("kind", "name", "shape", "dtype"), rows) + _containers(module)


def _containers(module: Mapping[str, Any]) -> str:
    """Return a table of the inputs and outputs that are sequences and optionals; nothing where there are none."""
    vm = module["vm"]
    if not vm or not vm["containers"]:
        return ""
    rows = [
        (
            Cell(item["binding"]),
            Cell(item["name"]),
            Cell(f"{item['kind']} of {item['dtype']} {shape_text(item['shape'])}"),
            Cell(", ".join(item["tensors"])),
        )
        for item in vm["containers"]
    ]
    columns = ("sequence or optional", "name", "type", "as tensors")
    return sortable(columns, columns, rows)


def shape_text(extents: Sequence[object] | None) -> str:
    """Return a shape as Python writes tuples."""
    return "" if extents is None else f"({', '.join(map(str, extents))})"


def open_extents(vm: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a module of the virtual machine leaves to the run, and what it takes at most."""
    if vm["symbols"]:
        yield "<h2>Open extents</h2>"
        rows = [
            (
                Cell(item["name"]),
                number(item["low"]),
                Cell(_UNBOUNDED, "no bound") if item["high"] is None else number(item["high"]),
            )
            for item in vm["symbols"]
        ]
        yield sortable(("open extent", "from", "to"), ("open extent",), rows)
    worst = {
        "tensors in the worst case": byte_text(vm["arena_bytes"]) or f"{_UNKNOWN}: a dimension has no bound",
        "work area": byte_text(vm["work_bytes"]) or _UNKNOWN,
        "kernels": vm["kernels"],
    }
    yield "<h2>Virtual machine</h2>"
    told = (f"<dt>{html_of(key)}</dt><dd>{html_of(value)}</dd>" for key, value in worst.items())
    yield f"<dl>{''.join(told)}</dl>"
