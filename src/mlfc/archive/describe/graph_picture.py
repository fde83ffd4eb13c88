"""A module's graph for a page: what the script draws of it, its nodes and their places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.archive.describe.graph_layout import layered
from mlfc.archive.describe.pages import html_of
from mlfc.archive.describe.report_sections import CALL_NUMBERS
from mlfc.archive.describe.source_graph import SourceNode, main_operators, short_operators
from mlfc.relay.op import kernel_operators
from mlfc.support.text import printable, shortened

MOST_NODES = 20_000
"""Of a graph that is drawn."""
_MOST_PARTS = 200  # of a call: source nodes
_NAME = 200
_KEYS = "Arrows go from node to node, Enter shows one, Space unfolds it, + and - zoom, 0 shows the whole graph."
_BUTTONS = (
    ("+", "zoom in", "+"),
    ("-", "zoom out", "\N{MINUS SIGN}"),
    ("0", "the whole graph", "whole"),
    ("1", "the beginning", "start"),
    ("f", "unfold or fold all", "unfold all"),
)


def graph_picture(
    name: str,
    module: Mapping[str, Any],
    sources: Mapping[str, SourceNode],
    facts: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    marks: Mapping[int, str] | None = None,
    prefix: str = "",
) -> str | None:
    """Return the picture of a described module's graph as HTML, hidden where there is no script; None without edges.

    Parameters
    ----------
    name : str
        Of the module.
    module : mapping
        As `describe` gives it.
    sources : mapping of str to SourceNode
        The nodes of the original model, into which calls unfold.
    facts : mapping of int to list of pairs, optional
        What is known of a call beyond what the module says, each a title and a text.
    marks : mapping of int to str, optional
        Classes of the style for calls.
    prefix : str
        Of the module's name in the anchors of the C.
    """
    operators = module["operators"] or ()
    if not operators or operators[0]["reads"] is None:
        return None
    nodes = graph_nodes(module, sources, facts or {}, marks or {})
    if len(nodes) > MOST_NODES:
        return f"<p>The graph has {len(nodes):,} nodes; more than {MOST_NODES:,} are not drawn.</p>"
    # the anchors of the C, as `report_page` makes them
    data = {"anchor": f"{printable(prefix + name)}.".replace(" ", "_"), "nodes": nodes}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    buttons = "".join(
        f'<button type="button" data-key="{key}" title="{title}">{label}</button>' for key, title, label in _BUTTONS
    )
    label = html_of(f"Graph of {name}: {len(operators):,} calls. {_KEYS}")
    return (
        f'<div class="graph" hidden><div class="tools">{buttons}<span>{_KEYS}</span></div>'
        f'<div class="view"><svg tabindex="0" role="application" aria-label="{label}"></svg>'
        f"<aside hidden></aside></div>"
        f'<p class="spoken" aria-live="polite"></p><script type="application/json">{text}</script></div>'
    )


def graph_nodes(
    module: Mapping[str, Any],
    sources: Mapping[str, SourceNode],
    facts: Mapping[int, Sequence[tuple[str, str]]],
    marks: Mapping[int, str],
) -> list[dict[str, Any]]:
    """Return the nodes with their places: inputs and states, calls in order, then what the model gives."""
    given = [*module["inputs"], *(module["states"] or ())]
    results = [*module["outputs"], *({**state, "name": state["next"]} for state in module["states"] or ())]
    operators = module["operators"]
    reads: list[list[int]] = [[] for _ in given]
    reads += [[source + len(given) if source >= 0 else -1 - source for source in call["reads"]] for call in operators]
    writers = {place: index for index, call in enumerate(operators) for place in call["outputs"] or ()}
    reads += [[len(given) + writers[place]] if place in writers else [] for place in range(len(results))]
    largest = max((_macs(call) for call in operators), default=0)
    nodes = [_end("input" if place < len(module["inputs"]) else "state", item) for place, item in enumerate(given)]
    nodes += [
        _call(index, call, sources, largest, facts.get(index, ()), marks.get(index, ""))
        for index, call in enumerate(operators)
    ]
    nodes += [_end("output" if place < len(module["outputs"]) else "state", item) for place, item in enumerate(results)]
    reads = [[source for source in listed if 0 <= source < len(nodes)] for listed in reads]
    places = layered(reads)
    return [
        {**node, "reads": listed, "layer": layer, "column": column, "lane": lane}
        for node, listed, layer, column, lane in zip(
            nodes, reads, places.layers, places.columns, places.lanes, strict=True
        )
    ]


def _end(kind: str, tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape = tensor["shape"]
    kind_of = f"{tensor['dtype']}[{'?' if shape is None else ','.join(map(str, shape))}]"
    return {"kind": kind, "call": None, "title": kind, "name": _text(tensor["name"]), "type": _text(kind_of),
            "function": None, "share": 0, "facts": [], "parts": [], "mark": ""}  # fmt: skip


def _call(
    index: int,
    call: Mapping[str, Any],
    sources: Mapping[str, SourceNode],
    largest: int,
    facts: Sequence[tuple[str, str]],
    mark: str,
) -> dict[str, Any]:
    names = (call["nodes"] or ())[:_MOST_PARTS]
    places = {name: place for place, name in enumerate(names)}
    parts = [
        {
            "name": _text(name),
            "operators": short_operators(known.operators),
            "type": _text(known.type),
            "reads": sorted(places[other] for other in known.reads if places.get(other, len(names)) < place),
        }
        for place, name in enumerate(names)
        for known in [sources.get(name, _UNKNOWN)]
    ]
    operators = kernel_operators(call["function"])
    told = [(title, f"{call[key]:,}") for title, key in CALL_NUMBERS if isinstance(call.get(key), int)]
    return {
        "kind": "call",
        "call": index,
        "title": _text(main_operators(operators) or call["function"]),
        "name": _text(names[0] + (f" and {len(call['nodes']) - 1} more" if len(names) > 1 else "") if names else ""),
        "type": _text(result_type(call, sources)),
        "function": printable(call["function"]),
        "share": round(_macs(call) / largest, 4) if largest else 0,
        "facts": [
            *([("operators", short_operators(operators))] if operators else []),
            *told,
            *((title, _text(text)) for title, text in facts),
        ],
        "parts": parts,
        "mark": mark,
    }


_UNKNOWN = SourceNode((), "", ())


def _macs(call: Mapping[str, Any]) -> int:
    return call["macs"] if isinstance(call["macs"], int) else 0


def result_type(call: Mapping[str, Any], sources: Mapping[str, SourceNode]) -> str:
    """Return what a call gives; what the run decides has the name that the model gives it, else a question mark."""
    if not call["types"]:
        return ""
    if call.get("shapes"):
        return str(call["shapes"][-1])
    dtype, _, extents = call["types"][-1].rstrip("]").partition("[")
    listed = extents.split(",") if extents else []
    if all(extent.isdecimal() for extent in listed):
        return f"{dtype}[{extents}]"
    known = (
        sources.get(call["nodes"][-1], _UNKNOWN).type.rstrip("]").partition("[")[2].split(",") if call["nodes"] else []
    )
    same = len(known) == len(listed)
    shown = (item if item.isdecimal() else known[place] if same else "?" for place, item in enumerate(listed))
    return f"{dtype}[{','.join(shown)}]"


def _text(text: str) -> str:
    return printable(shortened(text, _NAME))
