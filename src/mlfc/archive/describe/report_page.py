"""A compiled model as one page: what it takes, where its memory goes, its operators with their C, and the boards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlfc.archive.describe.graph_picture import graph_picture
from mlfc.archive.describe.inspect import describe
from mlfc.archive.describe.kernel_sources import kernel_sources
from mlfc.archive.describe.measured import NOTHING, ModuleMeasurements
from mlfc.archive.describe.pages import Cell, filled_page, html_of, name_cell, number, script, sortable
from mlfc.archive.describe.picture import memory_picture
from mlfc.archive.describe.report_operators import MOST_ROWS, OperatorTable, anchor
from mlfc.archive.describe.report_sections import byte_text, cards, memory_title, open_extents, shape_text, tensor_table
from mlfc.archive.describe.source_graph import source_nodes
from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError
from mlfc.support.text import shortened

MOST_DRAWN = 4_000
"""Calls of which the memory is drawn."""
_NAME = 200
_FULL, _TIGHT = 100, 90  # percent of a memory


def report_page(
    archive: Archive,
    title: str,
    budget: Mapping[str, Any] | None = None,
    measured: Mapping[str, ModuleMeasurements] | None = None,
) -> str:
    """Return the page of an open archive; all names may be hostile.

    Parameters
    ----------
    archive : Archive
    title : str
        What the page is of: the name of the model or the archive.
    budget : mapping, optional
        What the model takes of boards: `BudgetTable.as_json`; or why no board can have it, as ``refusal``.
    measured : mapping of str to Measured, optional
        By module, what was measured of its calls.
    """
    found = describe(archive)
    modules = found["modules"]
    boards = [] if budget is None else list(_boards(budget))
    parts = []
    for name, module in modules.items():
        parts += [f"<h2>Module {html_of(name)}</h2>"] if len(modules) > 1 else []
        known = (measured or {}).get(name, NOTHING)
        parts += _module(archive, name, module, known, boards if len(modules) == 1 else ())
    parts += [*boards, *_shared(found["shared"])] if len(modules) > 1 else ()
    parts += _origin(found)
    return filled_page("report_page.html", title=html_of(title), body="\n".join(parts), graph=script("graph.js"))


def _module(
    archive: Archive, name: str, module: Mapping[str, Any], measured: ModuleMeasurements, boards: Iterable[str]
) -> Iterator[str]:
    operators = module["operators"] or ()
    kernels = kernel_sources(archive, name, [operator["function"] for operator in operators])
    sources = source_nodes(archive, name)
    inputs = [tensor["name"] for tensor in (*(module["inputs"] or ()), *(module["states"] or ()))]
    table = OperatorTable(name, operators, inputs, sources, kernels, measured)
    yield _cards(module, measured)
    yield "<h2>Inputs and outputs</h2>"
    yield tensor_table(module)
    if module["vm"] is not None:
        yield from open_extents(module["vm"])
    yield from boards
    picture = graph_picture(name, module, sources, table.facts(), table.marks())
    if picture is not None:
        yield f'<h2 class="scripted" hidden>Graph</h2>\n{picture}'
    yield "<h2>Memory</h2>"
    yield from _memory(name, module)
    if operators:
        yield from table.pictures()
        yield "<h2>Operators</h2>"
        yield from table.html()
    if module["constants"]:
        yield "<h2>Constants</h2>"
        yield _constants(module["constants"])
    if kernels:
        yield "<h2>Kernels</h2>"
    for function in dict.fromkeys(operator["function"] for operator in operators):
        if function in kernels:
            summary = f"<summary>{html_of(shortened(function, _NAME))}</summary>"
            yield f'<details id="{anchor(name, function)}">{summary}<pre>{html_of(kernels[function])}</pre></details>'


def _cards(module: Mapping[str, Any], measured: ModuleMeasurements) -> str:
    memory, operators, costs = module["memory"], module["operators"] or (), measured.costs
    macs = [operator["macs"] for operator in operators if isinstance(operator["macs"], int)]
    facts = {
        "workspace": byte_text(memory["workspace_bytes"]),
        "work area": byte_text(module["vm"]["work_bytes"]) if module["vm"] else None,
        "constants": byte_text(memory["constants_bytes"]),
        "inputs and outputs": byte_text(memory["io_bytes"]),
        "state": byte_text(memory["state_bytes"]) if memory["state_bytes"] else None,
        "multiply-accumulates": f"{sum(macs):,}" if len(macs) == len(operators) > 0 else None,
        "calls": f"{len(operators):,}" if operators else None,
        "all calls": costs and f"{costs.total:,.0f} {costs.unit}",
        "executor": module["executor"],
        "target": ", ".join(module["target"] or ()) or None,
    }
    told = list(cards(facts))
    if measured.differences:
        wrong = sum(not item.is_within for item in measured.differences.values())
        count = len(measured.differences)
        verdict = f"{wrong:,} of {count:,} tensors differ" if wrong else f"{count:,} tensors are equal"
        against = html_of(f"against {measured.reference}")
        told.append(f'<div class="{"bad" if wrong else "good"}"><b>{verdict}</b>{against}</div>')
    return f'<div class="cards">{"".join(told)}</div>'


def _memory(name: str, module: Mapping[str, Any]) -> Iterator[str]:
    sizes = {key: size for key, size in module["memory"].items() if size}
    largest = max(sizes.values(), default=0)
    rows = [(Cell(memory_title(key)), number(size, largest)) for key, size in sizes.items()]
    yield sortable(("memory", "bytes"), ("memory",), rows)
    if module["pools"]:
        yield _pools(module)
    peak = module["peak"]
    if peak:
        nodes = ", ".join(peak["nodes"] or ()) or peak["function"]
        call = "" if peak.get("call") is None else f" in call {peak['call']}"
        live = f"{peak['live_bytes']:,}"
        yield f"<p>Most is live{call}, {live} bytes: {html_of(shortened(nodes, _NAME))}. At that time are there:</p>"
        tensors = [
            (name_cell(item["name"]), number(item["bytes"], peak["live_bytes"])) for item in peak["tensors"] or ()
        ]
        yield sortable(("tensor", "bytes"), ("tensor",), tensors[:MOST_ROWS])
    if len(module["operators"] or ()) > MOST_DRAWN:
        yield f"<p>The memory of more than {MOST_DRAWN:,} calls is not drawn.</p>"
        return
    try:
        picture = memory_picture(module, name)
    except ArchiveError as error:
        yield f"<p>{html_of(error)}</p>"
        return
    yield f'<div class="map">{picture}</div>'
    yield "<p>A rectangle is a tensor: its place in memory, and the calls during which it is there. Point at one.</p>"


def _pools(module: Mapping[str, Any]) -> str:
    asked = {item["name"]: item["bytes"] for item in (module["build"] or {}).get("pools") or ()}
    rows = [
        (Cell(pool["name"]), number(pool["bytes"], asked.get(pool["name"])), number(asked.get(pool["name"])),
         number(pool["base"]), number(pool["lower_bound_bytes"]))
        for pool in module["pools"]
    ]  # fmt: skip
    return sortable(("pool", "bytes", "of", "begins at", "lower bound"), ("pool",), rows)


def _constants(constants: Sequence[Mapping[str, Any]]) -> str:
    largest = max(item["bytes"] for item in constants)
    rows = [
        (
            Cell(item["name"]),
            Cell(item["dtype"]),
            Cell(shape_text(item["shape"])),
            number(item["bytes"], largest),
        )
        for item in sorted(constants, key=lambda item: -item["bytes"])[:MOST_ROWS]
    ]
    told = "" if len(constants) <= MOST_ROWS else f"<p>The {MOST_ROWS:,} largest of {len(constants):,}.</p>"
    return told + sortable(("name", "dtype", "shape", "bytes"), ("name", "dtype", "shape"), rows)


def _boards(budget: Mapping[str, Any]) -> Iterator[str]:
    if "refusal" in budget:
        yield f"<h2>Boards</h2><p>Not for boards as it is: {html_of(budget['refusal'])}</p>"
        return
    rows = budget["boards"]
    fitting = sum(row["fits"] is True for row in rows)
    yield "<h2>Boards</h2>"
    unsure = sum(row["fits"] is None for row in rows)
    yield f"<p>The model fits {fitting} of {len(rows)} boards{f', and maybe {unsure}' if unsure else ''}.</p>"
    if budget["advice"]:
        yield "<p>What would make it fit more:</p><ul>"
        yield from (f"<li>{html_of(_advice(item))}</li>" for item in budget["advice"])
        yield "</ul>"
    columns = ("board", "chip", "fits", "RAM", "RAM %", "flash", "flash %", "stack", "with", "why not")
    yield sortable(columns, ("board", "chip", "fits", "with", "why not"), [_board(row) for row in rows])


def _advice(item: Mapping[str, Any]) -> str:
    sizes = {"RAM": item["ram_bytes"], "flash": item["flash_bytes"]}
    saved = " and ".join(f"{size:,} bytes of {kind}" for kind, size in sizes.items() if size)
    return f"{item['text']}: saves about {saved}" if saved else str(item["text"])


def _board(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    fits = {True: "yes", None: "maybe", False: "no"}[row["fits"]]
    tight = max(row["ram_percent"] or 0, row["flash_percent"] or 0) > _TIGHT
    kind = {True: "unsure" if tight else "good", None: "unsure", False: "bad"}[row["fits"]]
    return (
        Cell(row["board"]),
        Cell(row["chip"] or ""),
        Cell(fits, kind=kind),
        *(cell for memory in ("ram", "flash") for cell in (number(row[f"{memory}_bytes"]), _percent(row, memory))),
        number(row["stack_bytes"]),
        Cell(row["options"] or ""),
        Cell("" if row["fits"] else row["problem"] or ""),
    )


def _percent(row: Mapping[str, Any], memory: str) -> Cell:
    value = row[f"{memory}_percent"]
    if value is None:
        return number(None)
    cell = number(value, _FULL, f"{value:,.1f}")
    return Cell(cell.value, cell.text, share=cell.share, kind="bad" if value > _FULL else "")


def _shared(shared: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what several modules have together; nothing where that is nothing."""
    if not shared:
        return
    told = {
        f"workspace of {', '.join(shared['workspace_modules'])}": byte_text(shared["workspace_bytes"] or None),
        "constants": byte_text(shared["constants_bytes"] or None),
        "kernels": ", ".join(shared["functions"]) or None,
    }
    known = {key: value for key, value in told.items() if value is not None}
    if known:
        yield "<h2>Shared by modules</h2>"
        yield f"<dl>{''.join(f'<dt>{html_of(key)}</dt><dd>{html_of(value)}</dd>' for key, value in known.items())}</dl>"


def _origin(found: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Where it is from</h2>"
    facts: dict[str, object] = {
        "written by": found["writer"],
        "format": f"version {found['version']}, {found['style']}",
    }
    for name, module in found["modules"].items():
        of = f" of {name}" if len(found["modules"]) > 1 else ""
        facts |= {f"source {key}{of}": value for key, value in (module["source"] or {}).items()}
        facts |= {f"option {key.replace('_', ' ')}{of}": value for key, value in (module["build"] or {}).items()}
        facts |= {f"{key}{of}": value for key, value in (module["facts"] or {}).items()}
    told = (f"<dt>{html_of(key)}</dt><dd>{html_of(value)}</dd>" for key, value in facts.items() if value is not None)
    yield f"<dl>{''.join(told)}</dl>"
    files = [(Cell(item["path"]), number(item["bytes"]), Cell(item.get("sha256") or "")) for item in found["files"]]
    yield f"<details><summary>{len(files):,} files</summary>"
    yield sortable(("path", "bytes", "SHA-256"), ("path", "SHA-256"), files[:MOST_ROWS])
    yield "</details>"
