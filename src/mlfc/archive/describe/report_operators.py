"""Operators of a module for its page: a table, which also lists the graph's edges, and cost pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.describe import measured
from mlfc.archive.describe.graph_picture import SourceNode, contract_of, result_type
from mlfc.archive.describe.measured import INSTRUCTIONS, Costs, ModuleMeasurements, TensorDifference
from mlfc.archive.describe.pages import CALL_NUMBERS, Cell, html_of, known, name_cell, number, sortable
from mlfc.relay.op import kernel_operators
from mlfc.support.dtypes import is_integer
from mlfc.support.text import shortened

MOST_ROWS = 2_000
"""Rows of a table: the operators with the most multiply-accumulates; larger pages are slow to display."""
_TEXTS = {"operator", "function", "reads", "gives", "bound", "verdict", "contract"}
_NAMES = 3  # of the nodes of an operator
_INPUT = 28  # characters of a name


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
