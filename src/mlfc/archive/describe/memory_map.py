"""The memory of a compiled model: an object at a prompt or in a notebook, and an SVG of its tensors over time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mlfc.archive.describe.inspect import inspect
from mlfc.errors import ArchiveError
from mlfc.memory.plan import SCRATCH_NAME
from mlfc.runtime.modules.module import pick_module
from mlfc.support.atomic import write_bytes
from mlfc.support.text import Displayed, shortened

_LEFT, _TOP, _BOTTOM, _RIGHT = 80, 56, 40, 16
_WIDTH = 1200
_HEIGHT = 480
_CALL_WIDTH = (2.0, 96.0)
_CHARACTER = 6.2  # approximate character width at this font size, for what fits
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#ff9da7")
_SCRATCH_COLOUR = "#bab0ac"
_PEAK_COLOUR = "#c00"


@dataclass(frozen=True, repr=False)
class MemoryMap(Displayed):
    """Memory of a module: its purpose, and the tensors that are live in each call.

    Attributes
    ----------
    name : str
    described : mapping
        Result of `mlfc.inspect` for the module: ``memory``, ``operators``, ``peak``, ...
    """

    name: str
    described: Mapping[str, Any]

    def _facts(self) -> Mapping[str, object]:
        known = {name.removesuffix("_bytes").replace("_", " "): size for name, size in self.described["memory"].items()}
        sizes = {name: f"{size:,} bytes" for name, size in known.items() if size is not None}
        if (vm := self.described.get("vm")) and vm["arena_bytes"] is None:
            sizes = {"workspace": "no bound", **sizes}
        peak = self.described["peak"] or {}
        if peak.get("call") is None:
            return {"name": self.name, **sizes}
        told = f"{peak['live_bytes']:,} bytes in call {peak['call']}: {_label(peak)}"
        return {"name": self.name, **sizes, "peak": told}

    def _repr_html_(self) -> str:
        table = super()._repr_html_()
        try:
            return f"{table}\n{self.svg()}"
        except ArchiveError:
            return table

    def svg(self) -> str:
        """Return the picture: a rectangle for each tensor; raise ArchiveError if lifetimes are unknown."""
        return memory_picture(self.described, self.name)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture as an SVG file."""
        write_bytes(Path(path), self.svg().encode())
        return Path(path)


def memory_map(path: str | os.PathLike[str], module: str | None = None) -> MemoryMap:
    """Return the memory of a module of an archive. No code of it is executed.

    Parameters
    ----------
    path : path
        An archive of any version.
    module : str, optional
        Name of the module, required if the archive contains several.

    Raises
    ------
    ArchiveError
        As for `inspect`.
    OptionError
        If the module does not exist, or `module` is missing and there are several.

    Examples
    --------
    >>> mlfc.memory_map("kws.tar").save("memory.svg")      # doctest: +SKIP
    """
    modules = inspect(path)["modules"]
    name = pick_module(modules, module, str(path))
    return MemoryMap(name, modules[name])


def memory_picture(module: Mapping[str, Any], name: str, width: int = _WIDTH) -> str:
    """Return the SVG of one module's memory; raise ArchiveError if the archive does not record tensor lifetimes.

    With many calls it is wider than `width`.
    """
    operators = module["operators"]
    vm = module.get("vm")
    if vm and vm["arena_bytes"] is None:
        open_extents = ", ".join(item["name"] for item in vm["symbols"] if item["high"] is None)
        raise ArchiveError(
            f"module '{name}' allocates its memory at run time, as its sizes have no bound: {open_extents or 'lists'}",
            next_step="Compile it with bounds, for example: --shape INPUT=batch:1..8,3",
        )
    if not operators or any(operator["tensors"] is None for operator in operators):
        raise ArchiveError(
            f"module '{name}' has no tensor lifetimes to draw", next_step="Compile the model with: mlfc compile MODEL"
        )
    rectangles = _rectangles(operators)
    top = max((item.offset + item.nbytes for item in rectangles), default=0)
    across = min(max(width / len(operators), _CALL_WIDTH[0]), _CALL_WIDTH[1])
    frame = _PlotArea(across, _HEIGHT / max(top, 1))
    whole = max(_LEFT + across * len(operators) + _RIGHT, 640)
    height = _TOP + _HEIGHT + _BOTTOM
    peak = module["peak"]
    title = f"{name}: {top:,} bytes over {len(operators):,} calls"
    size, box = f'width="{_number(whole)}" height="{height}"', f'viewBox="0 0 {_number(whole)} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="sans-serif" font-size="11">',
        f"<title>{_text(title)}</title>",
        f'<rect {size} fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="13">{_text(title)}</text>',
        *_axes(frame, top, len(operators)),
    ]
    lines += [line for index, item in enumerate(rectangles) for line in _drawn(frame, item, index)]
    lines += _pools(frame, module.get("pools") or (), len(operators))
    if peak and peak["call"] is not None:
        lines += _marked(frame, peak, int((whole - _LEFT) / _CHARACTER))
    return "\n".join([*lines, "</svg>", ""])


@dataclass(frozen=True)
class _PlotArea:
    """Coordinates of calls and bytes: time to the right, addresses upwards."""

    across: float
    scale: float

    def x(self, call: int) -> float:
        return _LEFT + self.across * call

    def y(self, offset: int) -> float:
        return _TOP + _HEIGHT - self.scale * offset


@dataclass(frozen=True, order=True)
class _Rectangle:
    """A block of memory over calls `first` to `last`."""

    first: int
    offset: int
    last: int
    name: str
    nbytes: int


def _rectangles(operators: list[dict[str, Any]]) -> list[_Rectangle]:
    """Return the blocks of all calls, each once, by time and position. Scratch without an address is on top."""
    above = max((item["offset"] + item["bytes"] for call in operators for item in call["tensors"]
                 if item["offset"] is not None), default=0)  # fmt: skip
    open_blocks: dict[tuple[str, int, int], int] = {}
    found = []
    for index, operator in enumerate([*operators, {"tensors": ()}]):
        present = {
            (item["name"], above if item["offset"] is None else item["offset"], item["bytes"])
            for item in operator["tensors"]
        }
        for key in [key for key in open_blocks if key not in present or key[0] == SCRATCH_NAME]:
            block, offset, nbytes = key
            found.append(_Rectangle(open_blocks.pop(key), offset, index - 1, block, nbytes))
        for key in present:
            open_blocks.setdefault(key, index)
    return sorted(found)


def _axes(frame: _PlotArea, top: int, num_calls: int) -> Iterator[str]:
    right = frame.x(num_calls)
    for part in range(5):
        offset = top * part // 4
        y = _number(frame.y(offset))
        yield f'<line x1="{_LEFT}" y1="{y}" x2="{_number(right)}" y2="{y}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{offset:,}</text>'
    step = max(1, num_calls // 10)
    for call in range(0, num_calls, step):
        x = _number(frame.x(call) + frame.across / 2)
        yield f'<text x="{x}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{call}</text>'
    yield f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 34}">call</text>'
    yield f'<text x="{_LEFT - 6}" y="{_TOP - 12}" text-anchor="end">byte</text>'


def _pools(frame: _PlotArea, pools: Sequence[Mapping[str, Any]], num_calls: int) -> Iterator[str]:
    """Yield the start of each of several memory pools, and its name."""
    right = _number(frame.x(num_calls))
    for pool in pools if len(pools) > 1 else ():
        y = _number(frame.y(pool["base"]))
        yield f'<line class="pool" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="#555" stroke-width="2"/>'
        told = f"{pool['name']}: {pool['bytes']:,} bytes from {pool['base']:,}"
        yield f'<text x="{right}" y="{_number(frame.y(pool["base"]) - 5)}" text-anchor="end">{_text(told)}</text>'


def _marked(frame: _PlotArea, peak: Mapping[str, Any], room: int) -> Iterator[str]:
    """Yield the outline of the call with most live bytes, and its label."""
    x, width = _number(frame.x(peak["call"])), _number(frame.across)
    told = f"peak of {peak['live_bytes']:,} live bytes in call {peak['call']}: {_label(peak)}"
    yield (
        f'<rect x="{x}" y="{_TOP}" width="{width}" height="{_HEIGHT}" fill="none" stroke="{_PEAK_COLOUR}" '
        f'stroke-width="2" stroke-dasharray="6 3"><title>{_text(told)}</title></rect>'
    )
    yield f'<text x="{_LEFT}" y="36" fill="{_PEAK_COLOUR}">{_text(shortened(told, room))}</text>'


def _drawn(frame: _PlotArea, item: _Rectangle, index: int) -> Iterator[str]:
    x, y = frame.x(item.first), frame.y(item.offset + item.nbytes)
    width, height = frame.across * (item.last - item.first + 1), frame.scale * item.nbytes
    colour = _SCRATCH_COLOUR if item.name == SCRATCH_NAME else _COLOURS[index % len(_COLOURS)]
    calls = f"call {item.first}" if item.first == item.last else f"calls {item.first} to {item.last}"
    told = f"{item.name}: {item.nbytes:,} bytes at {item.offset:,}, {calls}"
    yield (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}" '
        f'fill="{colour}" fill-opacity="0.8" stroke="white"><title>{_text(told)}</title></rect>'
    )
    room = int((width - 6) / _CHARACTER)
    if height >= 13 and room >= 6 and item.name != SCRATCH_NAME:
        yield f'<text x="{_number(x + 3)}" y="{_number(y + 11)}">{_text(shortened(item.name, room))}</text>'


def _label(peak: Mapping[str, Any]) -> str:
    return ", ".join(peak["nodes"] or ()) or str(peak["function"])


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    """Return text for XML, without control characters and unpaired surrogates, which XML forbids."""
    return escape("".join(char if char.isprintable() else "?" for char in text))
