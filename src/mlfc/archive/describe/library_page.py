"""A library as one page: its machine, the models in it, and the functions that programs call. Nothing of it is run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.archive.describe.pages import Cell, filled_page, html_of, number, sortable
from mlfc.archive.describe.report_sections import byte_text, cards, open_extents, tensor_table
from mlfc.support import dtypes

_MOST_FUNCTIONS = 2_000
_CONVENTIONS = {"c": "C interface", "classic": "packed functions of TVM", "ffi": "functions of tvm-ffi"}


def library_page(path: str | os.PathLike[str], title: str) -> str:
    """Return the page of a shared or static library, an object or a tar of objects; all names may be hostile.

    Raises
    ------
    ArchiveError
        If it is no library, or what it carries breaks its format.
    UnsupportedError
        If it is of a format that is not read.
    """
    found = inspect_library(path)
    library, modules = found["library"], found["modules"]
    facts = {
        "size": byte_text(found["files"][0]["bytes"]),
        "form": library["form"],
        "machine": library["machine"],
        "interface of mlfc": None if library["interface"] is None else f"version {library['interface']}",
    }
    parts = [f'<div class="cards">{"".join(cards(facts))}</div>']
    for name, module in modules.items():
        parts += [f"<h2>Module {html_of(name)}</h2>", *_module(module)]
    if not modules:
        parts.append("<p>It does not describe any model.</p>")
    parts += [*_levels(library["levels"]), *_functions(library["functions"]), *_trees(library["trees"])]
    parts.append(f"<dl><dt>SHA-256</dt><dd>{html_of(found['files'][0]['sha256'])}</dd></dl>")
    return filled_page("report_page.html", title=html_of(title), body="\n".join(parts), graph="")


def _module(module: Mapping[str, Any]) -> Iterator[str]:
    memory = module["memory"]
    facts = {
        "workspace": byte_text(memory["workspace_bytes"]),
        "constants": byte_text(memory["constants_bytes"]),
        "inputs and outputs": byte_text(memory["io_bytes"]),
        "state": byte_text(memory.get("state_bytes") or None),
        "executor": module["executor"],
        "entry": module["entry"],
        **module["facts"],
    }
    yield f'<div class="cards">{"".join(cards(facts))}</div>'
    yield "<h3>Inputs and outputs</h3>"
    yield tensor_table(
        {**module, **{kind: list(map(_sized, module[kind])) for kind in ("inputs", "outputs", "states")}}
    )
    if module["vm"] is not None:
        yield from open_extents(module["vm"])


def _sized(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tensor with its bytes, if the run decides none of its extents."""
    known = all(isinstance(extent, int) for extent in tensor["shape"])
    return {**tensor, "bytes": prod(tensor["shape"]) * dtypes.nbytes(tensor["dtype"]) if known else None}


def _levels(levels: Mapping[str, int]) -> Iterator[str]:
    if levels:
        yield "<h2>Levels of processors, of which one is chosen on loading</h2>"
        most = max(levels.values())
        yield sortable(
            ("level", "bytes"), ("level",), [(Cell(name), number(size, most)) for name, size in levels.items()]
        )


def _functions(functions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    rows = [(Cell(_CONVENTIONS[kind]), Cell(name)) for kind, names in functions.items() for name in names]
    if rows:
        yield "<h2>Functions</h2>"
        yield sortable(("convention", "name"), ("convention", "name"), rows[:_MOST_FUNCTIONS])


def _trees(trees: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    for generation, tree in trees.items():
        yield f"<h2>Module tree, {html_of(generation)}</h2>"
        rows = [
            (Cell(place), Cell(item["type_key"]), number(item["bytes"]), Cell(", ".join(map(str, item["imports"]))))
            for place, item in enumerate(tree)
        ]
        yield sortable(("module", "kind", "bytes", "imports"), ("kind", "imports"), rows)
