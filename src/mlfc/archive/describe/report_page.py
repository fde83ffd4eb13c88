"""HTML page of a compiled model or a library: interface, memory, operators with their C, and boards.

The table of operators also lists the graph's edges; pictures show their cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mlfc.archive.describe import measured
from mlfc.archive.describe.graph_picture import (
    SourceNode,
    contract_of,
    graph_picture,
    kernel_sources,
    result_type,
    source_nodes,
)
from mlfc.archive.describe.inspect import describe
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.archive.describe.measured import INSTRUCTIONS, NOTHING, Costs, ModuleMeasurements, TensorDifference
from mlfc.archive.describe.memory_map import memory_picture
from mlfc.archive.describe.pages import (
    CALL_NUMBERS,
    Cell,
    filled_page,
    html_of,
    known,
    memory_title,
    name_cell,
    number,
    script,
    sortable,
)
from mlfc.archive.read.opening import Archive
from mlfc.errors import ArchiveError
from mlfc.relay.op import kernel_operators
from mlfc.support import dtypes
from mlfc.support.dtypes import is_integer
from mlfc.support.text import shortened

MOST_ROWS = 2_000
"""Rows of a table: the operators with the most multiply-accumulates; larger pages are slow to display."""
_TEXTS = {"operator", "function", "reads", "gives", "bound", "verdict", "contract"}
_NAMES = 3  # of the nodes of an operator
_INPUT = 28  # characters of a name
MOST_DRAWN = 4_000
"""Maximum calls whose memory is drawn."""
_NAME = 200
_FULL, _TIGHT = 100, 90  # percent of a memory
_UNKNOWN = "unknown before the run"
_UNBOUNDED = 1 << 62  # sort key of dimensions without a bound
_MOST_FUNCTIONS = 2_000
_FIRST = 10  # rows of long tables that are shown at first
_CONVENTIONS = {"c": "C interface", "classic": "packed functions of TVM", "ffi": "functions of tvm-ffi"}


@dataclass(frozen=True)
class OperatorTable:
    """A module's calls."""

    module: str
    operators: Sequence[Mapping[str, Any]]  # as returned by `module_operators`
    inputs: Sequence[str]  # names of the model's inputs, then of states
    sources: Mapping[str, SourceNode]  # nodes of the original model
    kernels: Mapping[str, str]  # the C of functions by name
    measured: ModuleMeasurements

    @property
    def costs(self) -> Costs | None:
        """Measured costs of the calls, if there is one for each call."""
        costs = self.measured.costs
        return costs if costs is not None and len(costs.calls) == len(self.operators) else None

    def html(self) -> Iterator[str]:
        """Yield the table."""
        listed = sorted(enumerate(self.operators), key=lambda item: -known(item[1]["macs"]))[:MOST_ROWS]
        if len(listed) < len(self.operators):
            yield f"<p>The {len(listed):,} of {len(self.operators):,} with the most multiply-accumulates.</p>"
        yield "<p>In the order of their calls; a click on a heading sorts, one on a function shows its C.</p>"
        columns = dict(self._columns(sorted(index for index, _ in listed)))
        yield sortable(tuple(columns), _TEXTS & columns.keys(), zip(*columns.values(), strict=True))

    def _columns(self, shown: Sequence[int]) -> Iterator[tuple[str, Sequence[object]]]:
        """Yield the title of each column and its cells."""
        operators, costs = [self.operators[index] for index in shown], self.costs
        yield "call", [Cell(index, html=f'<span id="{self._row(index)}">{index}</span>') for index in shown]
        yield "operator", [name_cell("; ".join(nodes), _some(nodes)) for nodes in map(self._nodes, shown)]
        yield "function", [self._function(operator["function"]) for operator in operators]
        if self.operators[0]["reads"] is not None:
            yield "reads", list(map(self._reads, shown))
        if self.operators[0]["types"]:
            yield "gives", [result_type(operator, self.sources) for operator in operators]
        for title, key in CALL_NUMBERS:
            most = max((known(operator[key]) for operator in self.operators), default=0)
            yield title, [amount(operator[key], most) for operator in operators]
        if costs is not None:
            largest, total = max(costs.calls, default=0.0), costs.total or 1.0
            form = "{:,.0f}" if costs.unit == INSTRUCTIONS else "{:,.2f}"
            taken = [costs.calls[index] for index in shown]
            yield costs.unit, [number(cost, largest, form.format(cost)) for cost in taken]
            yield "share", [number(cost / total, None, f"{cost / total:.1%}") for cost in taken]
            if costs.peaks is not None:
                limits = [costs.limit(index) for index in shown]
                yield "bound", [limit.bound if limit else "" for limit in limits]
                yield "of peak", [number(limit.share, 1.0, f"{limit.share:.1%}") if limit else None for limit in limits]
        if self.measured.differences:
            found = [self.difference(index) for index in shown]
            yield "difference", [item.largest if item else None for item in found]
            yield "allowed", [item.allowed if item else None for item in found]
            kinds = {True: "good", False: "bad"}
            cells = [Cell(item.verdict, kind=kinds[item.is_within]) if item else "not compared" for item in found]
            yield "verdict", cells
        contracts = [self.contract(index) or "" for index in shown]
        if any(contracts):
            yield "contract", contracts

    def pictures(self) -> Iterator[str]:
        """Yield pictures of the calls' costs."""
        costs = self.costs
        if costs is None:
            return
        yield f"<h2>{'Instructions' if costs.unit == INSTRUCTIONS else 'Time'}</h2>"
        if len(costs.calls) > measured.MOST_BARS:
            yield f"<p>More than {measured.MOST_BARS:,} calls are not drawn.</p>"
            return
        yield f'<div class="map chart">{measured.cost_bars(self.operators, costs)}</div>'
        if (picture := measured.roofline(self.operators, costs)) is not None:
            yield f"<h2>{'Roofline' if costs.peaks else 'Speed'}</h2>"
            yield f'<div class="map chart">{picture}</div>'
            limits = " The peaks of this board are unknown."
            if costs.peaks:
                limits = "".join(f" Shares {text}." for text in costs.peaks.explanations(costs.operators))
            yield (
                "<p>A point is a call: how many multiply-accumulates (MACs) it does for each byte that it moves, and"
                f" how fast. Those that took most are large and have their number.{limits}</p>"
            )

    def facts(self) -> dict[int, list[tuple[str, str]]]:
        """Return measurements of calls, and their contracts, as (title, text) pairs."""
        found: dict[int, list[tuple[str, str]]] = {}
        costs = self.costs
        for index in range(len(self.operators)):
            told = [("took", costs.text(costs.calls[index]))] if costs else []
            item = self.difference(index)
            if item is not None:
                told.append(("largest difference", f"{item.largest:.4g} of {item.allowed:.4g}: {item.verdict}"))
            contract = self.contract(index)
            found[index] = [*told, *([("contract", contract)] if contract else [])]
        return found

    def difference(self, index: int) -> TensorDifference | None:
        """Return the worst difference of the tensors that a call computes."""
        sources = [self.sources[node] for node in self._nodes(index) if node in self.sources]
        return self.measured.difference([tensor for source in sources for tensor in source.tensors])

    def marks(self) -> dict[int, str]:
        """Return the CSS class of each call that differs from its reference."""
        found = {index: self.difference(index) for index in range(len(self.operators))}
        return {index: "removed" for index, item in found.items() if item is not None and not item.is_within}

    def contract(self, index: int) -> str | None:
        """Return the numeric contract of a call; None if its operators are unknown."""
        types = self.operators[index]["types"] or ("",)
        ends = (text.partition("[")[0] for text in (types[0], types[-1]))
        return contract_of(kernel_operators(self.operators[index]["function"]), integers=all(map(is_integer, ends)))

    def _nodes(self, index: int) -> Sequence[str]:
        return self.operators[index]["nodes"] or ()

    def _row(self, index: int) -> str:
        return html_of(f"{self.module}.call{index}").replace(" ", "_")

    def _reads(self, index: int) -> Cell:
        sources, shown = self.operators[index]["reads"], []
        for source in sources[: _NAMES * 4]:
            if source >= 0:
                shown.append(f'<a href="#{self._row(source)}">{source}</a>')
            else:
                name = self.inputs[-1 - source] if -1 - source < len(self.inputs) else "an input"
                shown.append(html_of(shortened(name, _INPUT)))
        more = f" and {len(sources) - _NAMES * 4} more" if len(sources) > _NAMES * 4 else ""
        return Cell(sources[0] if sources else -1, html=", ".join(shown) + more)

    def _function(self, name: str) -> Cell:
        shown = html_of(name.removeprefix(f"tvmgen_{self.module}_"))
        if name not in self.kernels:
            return Cell(name, html=shown)
        return Cell(name, html=f'<a href="#{anchor(self.module, name)}" title="{html_of(name)}">{shown}</a>')


def anchor(module: str, function: str) -> str:
    """Return the HTML id of a function's C on the page."""
    return html_of(f"{module}.{function}").replace(" ", "_")


def amount(value: object, largest: int | None = None) -> Cell:
    """Return the cell of a number, or of an expression if the number is known only at run time."""
    return number(value, largest) if isinstance(value, int) or value is None else Cell(str(value))


def _some(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMES
    return "; ".join(map(shortened, nodes[:_NAMES])) + (f"; and {more} more" if more > 0 else "")


def report_page(
    archive: Archive,
    title: str,
    budget: Mapping[str, Any] | None = None,
    measured: Mapping[str, ModuleMeasurements] | None = None,
) -> str:
    """Return the HTML page of an open archive; all names may be hostile.

    `title`: the name of the model or the archive. `measured`: measurements of each module's calls, by name.
    `budget`: memory use on boards, `BudgetTable.as_json`; or the reason why no board can run it, as ``refusal``.
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
    yield _module_cards(module, measured)
    yield "<h2>Inputs and outputs</h2>"
    yield _tensor_table(module)
    if module["vm"] is not None:
        yield from _open_extents(module["vm"])
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
    yield from boards
    if kernels:
        yield "<h2>Kernels</h2>"
    for function in dict.fromkeys(operator["function"] for operator in operators):
        if function in kernels:
            summary = f"<summary>{html_of(shortened(function, _NAME))}</summary>"
            yield f'<details id="{anchor(name, function)}">{summary}<pre>{html_of(kernels[function])}</pre></details>'


def _module_cards(module: Mapping[str, Any], measured: ModuleMeasurements) -> str:
    memory, operators, costs = module["memory"], module["operators"] or (), measured.costs
    macs = [operator["macs"] for operator in operators if isinstance(operator["macs"], int)]
    facts = {
        "workspace": _byte_text(memory["workspace_bytes"]),
        "work area": _byte_text(module["vm"]["work_bytes"]) if module["vm"] else None,
        "constants": _byte_text(memory["constants_bytes"]),
        "inputs and outputs": _byte_text(memory["io_bytes"]),
        "state": _byte_text(memory["state_bytes"]) if memory["state_bytes"] else None,
        "multiply-accumulates": f"{sum(macs):,}" if len(macs) == len(operators) > 0 else None,
        "calls": f"{len(operators):,}" if operators else None,
        "all calls": costs and f"{costs.total:,.0f} {costs.unit}",
        "executor": module["executor"],
        "target": ", ".join(module["target"] or ()) or None,
    }
    if not measured.differences:
        return _cards(facts)
    wrong = sum(not item.is_within for item in measured.differences.values())
    count = len(measured.differences)
    verdict = f"{wrong:,} of {count:,} tensors differ" if wrong else f"{count:,} tensors are equal"
    against = html_of(f"against {measured.reference}")
    return _cards(facts, f'<div class="{"bad" if wrong else "good"}"><b>{verdict}</b>{against}</div>')


def _cards(facts: Mapping[str, object], *more: str) -> str:
    """Return the boxes at the top of a page, for facts that are known, and `more` boxes as HTML."""
    boxes = [f"<div><b>{html_of(fact)}</b>{html_of(name)}</div>" for name, fact in facts.items() if fact is not None]
    return f'<div class="cards">{"".join([*boxes, *more])}</div>'


def _fact_list(facts: Mapping[str, object]) -> str:
    """Return a list of titles and texts, for facts that are known."""
    told = (f"<dt>{html_of(key)}</dt><dd>{html_of(fact)}</dd>" for key, fact in facts.items() if fact is not None)
    return f"<dl>{''.join(told)}</dl>"


def _byte_text(count: int | None) -> str | None:
    """Return a number of bytes as text; None if unknown."""
    return None if count is None else f"{count:,} bytes"


def _shape_text(extents: Sequence[object] | None) -> str:
    """Return a shape in the syntax of Python's tuples."""
    return "" if extents is None else f"({', '.join(map(str, extents))})"


def _tensor_table(module: Mapping[str, Any]) -> str:
    """Return the table of a module's inputs, outputs and states, and one of its sequences and optionals, if any."""
    numbers = ("bytes", "scale", "zero_point")
    rows = [
        (kind, tensor["name"], _shape_text(tensor["shape"]), tensor["dtype"] or "", *map(tensor.get, numbers))
        for kind in ("inputs", "outputs", "states")
        for tensor in module[kind] or ()
    ]
    columns = ("kind", "name", "shape", "dtype", "bytes", "scale", "zero point")
    table = sortable(columns, columns[:4], rows)
    if not module["vm"] or not module["vm"]["containers"]:
        return table
    titles = ("sequence or optional", "name", "type", "as tensors")
    types = (f"{item['kind']} of {item['dtype']} {_shape_text(item['shape'])}" for item in module["vm"]["containers"])
    containers = [
        (item["binding"], item["name"], kind, ", ".join(item["tensors"]))
        for item, kind in zip(module["vm"]["containers"], types, strict=True)
    ]
    return table + sortable(titles, titles, containers)


def _open_extents(vm: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dynamic dimensions of a module of the virtual machine, and its maximum memory."""
    if vm["symbols"]:
        yield "<h2>Dynamic dimensions</h2>"
        unbounded = Cell(_UNBOUNDED, "no bound")
        highs = [unbounded if item["high"] is None else item["high"] for item in vm["symbols"]]
        rows = [(item["name"], item["low"], high) for item, high in zip(vm["symbols"], highs, strict=True)]
        yield sortable(("dynamic dimension", "from", "to"), ("dynamic dimension",), rows)
    yield "<h2>Virtual machine</h2>"
    yield _fact_list(
        {
            "tensors in the worst case": _byte_text(vm["arena_bytes"]) or f"{_UNKNOWN}: a dimension has no bound",
            "work area": _byte_text(vm["work_bytes"]) or _UNKNOWN,
            "kernels": vm["kernels"],
        }
    )


def _memory(name: str, module: Mapping[str, Any]) -> Iterator[str]:
    sizes = {key: size for key, size in module["memory"].items() if size}
    largest = max(sizes.values(), default=0)
    rows = [(memory_title(key), number(size, largest)) for key, size in sizes.items()]
    yield sortable(("memory", "bytes"), ("memory",), rows)
    if module["pools"]:
        asked = {item["name"]: item["bytes"] for item in (module["build"] or {}).get("pools") or ()}
        pools = [
            (pool["name"], number(pool["bytes"], most), most, pool["base"], pool["lower_bound_bytes"])
            for pool in module["pools"]
            for most in [asked.get(pool["name"])]
        ]
        yield sortable(("pool", "bytes", "of", "begins at", "lower bound"), ("pool",), pools)
    peak = module["peak"]
    if peak:
        nodes = ", ".join(peak["nodes"] or ()) or peak["function"]
        call = "" if peak.get("call") is None else f" in call {peak['call']}"
        live = f"{peak['live_bytes']:,}"
        yield f"<p>The peak is {live} live bytes{call}: {html_of(shortened(nodes))}. The live tensors are:</p>"
        listed, most = (peak["tensors"] or ())[:MOST_ROWS], peak["live_bytes"]
        tensors = [(name_cell(item["name"]), number(item["bytes"], most)) for item in listed]
        yield sortable(("tensor", "bytes"), ("tensor",), tensors)
    if len(module["operators"] or ()) > MOST_DRAWN:
        yield f"<p>The memory of more than {MOST_DRAWN:,} calls is not drawn.</p>"
        return
    try:
        picture = memory_picture(module, name)
    except ArchiveError as error:
        yield f"<p>{html_of(error)}</p>"
        return
    yield f'<div class="map">{picture}</div>'
    yield "<p>A rectangle is a tensor: its place in memory, and the calls during which it is live. Point at one.</p>"


def _constants(constants: Sequence[Mapping[str, Any]]) -> str:
    largest = max(item["bytes"] for item in constants)
    rows = [
        (item["name"], item["dtype"], _shape_text(item["shape"]), number(item["bytes"], largest))
        for item in sorted(constants, key=lambda item: -item["bytes"])[:MOST_ROWS]
    ]
    told = "" if len(constants) <= MOST_ROWS else f"<p>The {MOST_ROWS:,} largest of {len(constants):,}.</p>"
    return told + sortable(("name", "dtype", "shape", "bytes"), ("name", "dtype", "shape"), rows, _FIRST)


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
        for item in budget["advice"]:
            sizes = {"RAM": item["ram_bytes"], "flash": item["flash_bytes"]}
            saved = " and ".join(f"{size:,} bytes of {kind}" for kind, size in sizes.items() if size)
            yield f"<li>{html_of(item['text'])}{f': saves about {saved}' if saved else ''}</li>"
        yield "</ul>"
    columns = ("board", "chip", "fits", "RAM", "RAM %", "flash", "flash %", "stack", "with", "why not")
    yield sortable(columns, ("board", "chip", "fits", "with", "why not"), [_board(row) for row in rows], _FIRST)


def _board(row: Mapping[str, Any]) -> tuple[object, ...]:
    fits = {True: "yes", None: "maybe", False: "no"}[row["fits"]]
    tight = max(row["ram_percent"] or 0, row["flash_percent"] or 0) > _TIGHT
    kind = {True: "unsure" if tight else "good", None: "unsure", False: "bad"}[row["fits"]]
    memories: list[object] = []
    for memory in ("ram", "flash"):
        percent = row[f"{memory}_percent"]
        text = None if percent is None else f"{percent:,.1f}"
        memories += [row[f"{memory}_bytes"], number(percent, _FULL, text, "bad" if (percent or 0) > _FULL else "")]
    problem = "" if row["fits"] else row["problem"] or ""
    return (
        row["board"],
        row["chip"] or "",
        Cell(fits, kind=kind),
        *memories,
        row["stack_bytes"],
        row["options"] or "",
        problem,
    )


def _shared(shared: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield resources that modules share; nothing if they share none."""
    if not shared:
        return
    told = {
        f"workspace of {', '.join(shared['workspace_modules'])}": _byte_text(shared["workspace_bytes"] or None),
        "constants": _byte_text(shared["constants_bytes"] or None),
        "kernels": ", ".join(shared["functions"]) or None,
    }
    if any(told.values()):
        yield f"<h2>Shared by modules</h2>\n{_fact_list(told)}"


def _origin(found: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Origin</h2>"
    facts: dict[str, object] = {
        "written by": found["writer"],
        "format": f"version {found['version']}, {found['style']}",
    }
    for name, module in found["modules"].items():
        of = f" of {name}" if len(found["modules"]) > 1 else ""
        facts |= {f"source {key}{of}": value for key, value in (module["source"] or {}).items()}
        facts |= {f"option {key.replace('_', ' ')}{of}": value for key, value in (module["build"] or {}).items()}
        facts |= {f"{key}{of}": value for key, value in (module["facts"] or {}).items()}
    yield _fact_list(facts)
    files = [(item["path"], item["bytes"], item.get("sha256") or "") for item in found["files"]]
    yield f"<details><summary>{len(files):,} files</summary>"
    yield sortable(("path", "bytes", "SHA-256"), ("path", "SHA-256"), files[:MOST_ROWS])
    yield "</details>"


def library_page(path: str | os.PathLike[str], title: str) -> str:
    """Return the HTML page of a shared or static library, an object or a tar of objects; all names may be hostile.

    Raises ArchiveError if it is not a library, or its content breaks its format; UnsupportedError for an unsupported
    format.
    """
    found = inspect_library(path)
    library = found["library"]
    facts = {
        "size": _byte_text(found["files"][0]["bytes"]),
        "form": library["form"],
        "machine": library["machine"],
        "interface of mlfc": None if library["interface"] is None else f"version {library['interface']}",
    }
    parts = [_cards(facts)]
    for name, module in found["modules"].items():
        parts += [f"<h2>Module {html_of(name)}</h2>", *_library_module(module)]
    if not found["modules"]:
        parts.append("<p>It does not describe any model.</p>")
    parts += [*_library_code(library), _fact_list({"SHA-256": found["files"][0]["sha256"]})]
    return filled_page("report_page.html", title=html_of(title), body="\n".join(parts), graph="")


def _library_module(module: Mapping[str, Any]) -> Iterator[str]:
    memory = module["memory"]
    yield _cards(
        {
            "workspace": _byte_text(memory["workspace_bytes"]),
            "constants": _byte_text(memory["constants_bytes"]),
            "inputs and outputs": _byte_text(memory["io_bytes"]),
            "state": _byte_text(memory.get("state_bytes") or None),
            "executor": module["executor"],
            "entry": module["entry"],
            **module["facts"],
        }
    )
    yield "<h3>Inputs and outputs</h3>"
    tensors = {kind: [dict(tensor) for tensor in module[kind]] for kind in ("inputs", "outputs", "states")}
    for tensor in (tensor for listed in tensors.values() for tensor in listed):
        if all(isinstance(extent, int) for extent in tensor["shape"]):  # a fully static shape
            tensor["bytes"] = prod(tensor["shape"]) * dtypes.nbytes(tensor["dtype"])
    yield _tensor_table({**module, **tensors})
    if module["vm"] is not None:
        yield from _open_extents(module["vm"])


def _library_code(library: Mapping[str, Any]) -> Iterator[str]:
    """Yield the processor levels that a library has kernels for, its functions, and its module trees."""
    if levels := library["levels"]:
        yield "<h2>Levels of processors, of which one is chosen on loading</h2>"
        most = max(levels.values())
        yield sortable(("level", "bytes"), ("level",), [(name, number(size, most)) for name, size in levels.items()])
    functions = [(_CONVENTIONS[kind], name) for kind, names in library["functions"].items() for name in names]
    if functions:
        yield "<h2>Functions</h2>"
        yield sortable(("convention", "name"), ("convention", "name"), functions[:_MOST_FUNCTIONS])
    for generation, tree in library["trees"].items():
        yield f"<h2>Module tree, {html_of(generation)}</h2>"
        rows = [
            (Cell(place), item["type_key"], item["bytes"], ", ".join(map(str, item["imports"])))
            for place, item in enumerate(tree)
        ]
        yield sortable(("module", "kind", "bytes", "imports"), ("kind", "imports"), rows)
