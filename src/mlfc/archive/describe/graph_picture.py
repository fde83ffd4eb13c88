"""Data of a module's graph view: nodes and their positions, nodes of the original model, and the C of operators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.describe.pages import CALL_NUMBERS, html_of, known
from mlfc.archive.read.opening import Archive
from mlfc.archive.read.source import read_source
from mlfc.errors import MlfcError
from mlfc.relay.ir import Call, Expr, TensorType
from mlfc.relay.op import OPERATORS, Operator, Trait, kernel_operators
from mlfc.relay.visitor import children, post_order
from mlfc.support.text import printable, shortened

MOST_NODES = 20_000
"""Maximum number of nodes of a drawn graph."""
_MOST_PARTS = 200  # maximum source nodes of a call
_NAME = 200
_NEAR = 48  # columns tried on either side before a new one is opened
_KEYS = "Arrows go from node to node, Enter shows one, Space unfolds it, + and - zoom, 0 shows the whole graph."
_BUTTONS = (
    ("+", "zoom in", "+"),
    ("-", "zoom out", "\N{MINUS SIGN}"),
    ("0", "the whole graph", "whole"),
    ("1", "the beginning", "start"),
    ("f", "unfold or fold all", "unfold all"),
)
_EXACT, _ROUNDED = "exact", "correctly rounded"
MOST_CHARACTERS = 4 << 20
"""Maximum characters of a module's kernel C in total: larger pages are slow to display."""
_MOST_BYTES = 256 << 20  # maximum size of a C file
_HEAD = re.compile(r"[A-Za-z_][\w \t*]*?\b([A-Za-z_]\w*)\(")


def graph_picture(
    name: str,
    module: Mapping[str, Any],
    sources: Mapping[str, SourceNode],
    facts: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    marks: Mapping[int, str] | None = None,
    prefix: str = "",
) -> str | None:
    """Return the graph of a described module as HTML, hidden without JavaScript; None if it has no edges.

    `module`: as returned by `describe`. `sources`: nodes of the original model, into which calls unfold.
    `facts`: additional facts about each call, as (title, text) pairs.
    `marks`: CSS classes of calls. `prefix`: of the module's name in the anchors of the C.
    """
    operators = module["operators"] or ()
    if not operators or operators[0]["reads"] is None:
        return None
    nodes = graph_nodes(module, sources, facts or {}, marks or {})
    if len(nodes) > MOST_NODES:
        return f"<p>The graph has {len(nodes):,} nodes; more than {MOST_NODES:,} are not drawn.</p>"
    # anchors of the C, as in `report_page`
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
    """Return the nodes with their positions: inputs and states, calls in order, then the model's outputs."""
    given = [*module["inputs"], *(module["states"] or ())]
    results = [*module["outputs"], *({**state, "name": state["next"]} for state in module["states"] or ())]
    operators = module["operators"]
    reads: list[list[int]] = [[] for _ in given]
    reads += [[source + len(given) if source >= 0 else -1 - source for source in call["reads"]] for call in operators]
    writers = {place: index for index, call in enumerate(operators) for place in call["outputs"] or ()}
    reads += [[len(given) + writers[place]] if place in writers else [] for place in range(len(results))]
    largest = max((known(call["macs"]) for call in operators), default=0)
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
        "share": round(known(call["macs"]) / largest, 4) if largest else 0,
        "facts": [
            *([("operators", short_operators(operators))] if operators else []),
            *told,
            *((title, _text(text)) for title, text in facts),
        ],
        "parts": parts,
        "mark": mark,
    }


def result_type(call: Mapping[str, Any], sources: Mapping[str, SourceNode]) -> str:
    """Return the type of a call's result; sizes known only at run time show the model's name for them, else "?"."""
    if not call["types"]:
        return ""
    if call.get("shapes"):
        return str(call["shapes"][-1])
    dtype, _, extents = call["types"][-1].rstrip("]").partition("[")
    listed = extents.split(",") if extents else []
    if all(extent.isdecimal() for extent in listed):
        return f"{dtype}[{extents}]"
    source = sources.get(call["nodes"][-1], _UNKNOWN).type if call["nodes"] else ""
    known = source.rstrip("]").partition("[")[2].split(",")
    same = len(known) == len(listed) and bool(call["nodes"])
    shown = (item if item.isdecimal() else known[place] if same else "?" for place, item in enumerate(listed))
    return f"{dtype}[{','.join(shown)}]"


def _text(text: str) -> str:
    return printable(shortened(text, _NAME))


@dataclass(frozen=True)
class GraphLayout:
    """Position of each node."""

    layers: tuple[int, ...]
    columns: tuple[int, ...]
    # column of a node's edge to readers beyond the next layer; None without such readers
    lanes: tuple[int | None, ...]


def layered(reads: Sequence[Iterable[int]]) -> GraphLayout:
    """Return a layered layout of nodes; the time is linear in nodes and edges.

    `reads`: for each node the nodes that it reads, in an order in which all edges but those of loops go forwards.
    Backward edges, and edges from a node to itself, do not affect positions.
    A chain is a column. At a fork, the longest branch continues the column, and others take the nearest free column. A
    tensor that is read further down has one lane, regardless of its number of readers, so the number of parallel lanes
    is the number of pending tensors.
    """
    return _Placing([sorted({source for source in given if source < node}) for node, given in enumerate(reads)]).done()


class _Placing:
    """Layout in progress: layers from top to bottom, then columns layer by layer."""

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self._sources = sources
        self._readers: list[list[int]] = [[] for _ in sources]
        for node, given in enumerate(sources):
            for source in given:
                self._readers[source].append(node)
        layers = self._layers = list[int]()  # longest path from the top
        for given in sources:
            layers.append(1 + max((layers[source] for source in given), default=-1))
        for node, given in enumerate(sources):
            if not given and self._readers[node]:  # a node that reads nothing is right above its first reader
                layers[node] = min(layers[reader] for reader in self._readers[node]) - 1
        self._below = [0] * len(layers)  # number of layers below a node on the longest path down
        for node in sorted(range(len(layers)), key=lambda node: -layers[node]):
            self._below[node] = max((1 + self._below[reader] for reader in self._readers[node]), default=0)
        self._columns = [0] * len(layers)
        self._lanes: list[int | None] = [None] * len(layers)
        self._free: list[int] = []  # for each column the first layer at which it is free

    def done(self) -> GraphLayout:
        members: list[list[int]] = [[] for _ in range(1 + max(self._layers, default=-1))]
        for node, layer in enumerate(self._layers):
            members[layer].append(node)
        heirs: dict[int, int] = {}  # for each node the one above whose column it continues
        for layer, nodes in enumerate(members):
            for node in sorted(nodes, key=lambda node: self._wish(node, heirs)):
                self._columns[node] = self._take(self._wish(node, heirs)[1], layer, layer + 1, frozenset())
            heirs = {}
            for node in sorted(nodes, key=lambda node: self._columns[node]):
                below = [item for item in self._readers[node] if self._layers[item] == layer + 1 and item not in heirs]
                if below:
                    heirs[max(below, key=lambda item: self._below[item])] = node
            kept = frozenset(self._columns[node] for node in heirs.values())
            for node in nodes:
                last = max((self._layers[reader] for reader in self._readers[node]), default=layer)
                if last > layer + 1:
                    self._lanes[node] = self._take(self._columns[node], layer + 1, last, kept)
        return GraphLayout(tuple(self._layers), tuple(self._columns), tuple(self._lanes))

    def _wish(self, node: int, heirs: dict[int, int]) -> tuple[int, int, int]:
        """Return the sort key of a node, its preferred column, and its index."""
        if node in heirs:
            return 0, self._columns[heirs[node]], node
        ways = ((self._lanes[source], self._columns[source]) for source in self._sources[node])
        return 1, min((column if lane is None else lane for lane, column in ways), default=0), node

    def _take(self, wished: int, first: int, end: int, reserved: frozenset[int]) -> int:
        """Occupy the nearest free column from layer `first` up to before layer `end`, and return it."""
        near = (column for step in range(_NEAR) for column in ((wished + step, wished - step) if step else (wished,)))
        for column in near:
            if 0 <= column < len(self._free) and self._free[column] <= first and column not in reserved:
                self._free[column] = end
                return column
            if column == len(self._free):
                break
        self._free.append(end)
        return len(self._free) - 1


@dataclass(frozen=True)
class SourceNode:
    """A node of the original model."""

    operators: tuple[str, ...]  # Relay operators, in order
    type: str  # of its result
    reads: tuple[str, ...]  # names of other nodes
    tensors: tuple[str, ...] = ()  # names in the original model


_UNKNOWN = SourceNode((), "", ())


def source_nodes(archive: Archive, module: str) -> dict[str, SourceNode]:
    """Return the nodes of the original model by name, as recorded in the archive's Relay text.

    The result is empty if the archive has no Relay text, or none that can be parsed.
    """
    try:
        source, _ = read_source(archive, module)
    except MlfcError:
        return {}
    operators: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    reads: dict[str, dict[str, None]] = {}
    tensors: dict[str, dict[str, None]] = {}
    for function in source.functions.values():
        for expr in post_order(function.body):
            for name in expr.span.nodes if expr.span.tensor is not None else ():
                tensors.setdefault(name, {})[str(expr.span.tensor)] = None
            if not isinstance(expr, Call) or not isinstance(expr.op, Operator):
                continue
            above = [name for child in children(expr) for name in _nodes(child)]
            for name in expr.span.nodes:
                operators.setdefault(name, []).append(expr.op.name)
                reads.setdefault(name, {}).update(dict.fromkeys(other for other in above if other != name))
                if isinstance(expr.type, TensorType):
                    types[name] = f"{expr.type.dtype}[{','.join(map(str, expr.type.shape))}]"
    return {
        name: SourceNode(tuple(listed), types.get(name, ""), tuple(reads[name]), tuple(tensors.get(name, ())))
        for name, listed in operators.items()
    }


def _nodes(expr: Expr) -> Iterator[str]:
    """Yield the nodes that compute a tuple's or call's values."""
    remaining = [expr]
    while remaining:
        item = remaining.pop()
        if isinstance(item, Call) and item.span.nodes:
            yield from item.span.nodes
        elif not isinstance(item, Call):
            remaining += children(item)


def contract_of(operators: Sequence[str], *, integers: bool) -> str | None:
    """Return the numeric contract of fused operators: the inexact ones, by operator; None if unknown.

    `integers`: they compute with integers, whose sums and products are exact.
    """
    if not operators:
        return None
    exact = (_EXACT, _ROUNDED) if integers else (_EXACT,)
    told = {name: OPERATORS.get(name).contract for name in operators}
    loose = {name: contract for name, contract in told.items() if contract not in exact}
    if len({*loose.values()}) == 1:
        return next(iter(loose.values()))
    return "; ".join(f"{name}: {contract}" for name, contract in loose.items()) or _EXACT


def short_operators(operators: Sequence[str]) -> str:
    """Return operators for titles, without dialect names."""
    return ", ".join(name.rpartition(".")[2] for name in dict.fromkeys(operators))


def main_operators(operators: Sequence[str]) -> str:
    """Return `short_operators` without operators that accompany others: bias, rounding and clipping."""
    main = [name for name in operators if not OPERATORS.get(name).traits & Trait.CLOSING]
    return short_operators(main or operators)


def kernel_sources(archive: Archive, module: str, functions: Iterable[str]) -> dict[str, str]:
    """Return the definitions of functions by name, with the comments before them.

    Functions without C source in the archive are left out, as are those beyond `MOST_CHARACTERS`.
    """
    wanted, found, left = set(functions), dict[str, str](), MOST_CHARACTERS
    for path in archive.record.modules[module].files.sources:
        lines = archive.tar.read(path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
        for name, text in _definitions(lines, wanted):
            if name not in found and len(text) <= left:
                found[name] = text
                left -= len(text)
    return found


def _definitions(lines: list[str], wanted: set[str]) -> Iterable[tuple[str, str]]:
    """Yield names and texts; a definition goes from its signature to the first brace at the start of a line."""
    start = comment = 0
    name = ""
    for index, line in enumerate(lines):
        if name:
            if line.startswith("}"):
                yield name, "\n".join(lines[start : index + 1])
                name = ""
            elif line.endswith(";") and not line.startswith((" ", "\t")):
                name = ""  # end of a prototype
            if not name:
                comment = index + 1
            continue
        if not line.startswith(("/*", " *", " ")):
            head = _HEAD.match(line)
            if head and head[1] in wanted and not line.endswith(";"):
                name, start = head[1], comment
                continue
            comment = index + 1
