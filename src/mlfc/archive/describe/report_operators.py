"""The operators of a module on its page: a table, which has the graph for those without pictures, and their costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlfc.archive.describe.cost_pictures import MOST_BARS, cost_bars, roofline
from mlfc.archive.describe.graph_picture import result_type
from mlfc.archive.describe.measured import INSTRUCTIONS, Costs, ModuleMeasurements, TensorDifference
from mlfc.archive.describe.pages import Cell, html_of, name_cell, number, sortable
from mlfc.archive.describe.report_sections import CALL_NUMBERS
from mlfc.archive.describe.source_graph import SourceNode, contract_of
from mlfc.relay.op import kernel_operators
from mlfc.support.dtypes import is_integer
from mlfc.support.text import shortened

MOST_ROWS = 2_000
"""Of a table; pages of more are slow to show. Operators are those with the most multiply-accumulates."""
_NAMES = 3  # of the nodes of an operator
_INPUT = 28  # characters of a name


@dataclass(frozen=True)
class OperatorTable:
    """A module's calls.

    Attributes
    ----------
    module : str
    operators : sequence of mapping
        As `module_operators` gives them.
    inputs : sequence of str
        Names of the model's inputs, and of states behind them.
    sources : mapping of str to SourceNode
        Of the model that it was compiled from.
    kernels : mapping of str to str
        The C of functions.
    measured : Measured
    """

    module: str
    operators: Sequence[Mapping[str, Any]]
    inputs: Sequence[str]
    sources: Mapping[str, SourceNode]
    kernels: Mapping[str, str]
    measured: ModuleMeasurements

    @property
    def costs(self) -> Costs | None:
        """What the calls took, if that was measured of just these."""
        costs = self.measured.costs
        return costs if costs is not None and len(costs.calls) == len(self.operators) else None

    def html(self) -> Iterator[str]:
        """Yield the table."""
        listed = sorted(enumerate(self.operators), key=lambda item: -known(item[1]["macs"]))[:MOST_ROWS]
        if len(listed) < len(self.operators):
            yield f"<p>The {len(listed):,} of {len(self.operators):,} with the most multiply-accumulates.</p>"
        yield "<p>In the order of their calls; a click on a heading sorts, one on a function shows its C.</p>"
        shown = sorted(index for index, _ in listed)
        columns = list(self._columns(shown))
        texts = [column.title for column in columns if column.is_text]
        rows = zip(*(column.cells for column in columns), strict=True)
        yield sortable([column.title for column in columns], texts, rows)

    def _columns(self, shown: Sequence[int]) -> Iterator[_Column]:
        first = self.operators[0]
        links = [f'<span id="{self._row(index)}">{index}</span>' for index in shown]
        yield _Column("call", [Cell(index, html=link) for index, link in zip(shown, links, strict=True)])
        names = map(self._nodes, shown)
        yield _Column("operator", [name_cell("; ".join(nodes), _some(nodes)) for nodes in names], is_text=True)
        yield _Column("function", [self._function(self.operators[index]["function"]) for index in shown], is_text=True)
        if first["reads"] is not None:
            yield _Column("reads", list(map(self._reads, shown)), is_text=True)
        if first["types"]:
            types = [result_type(self.operators[index], self.sources) for index in shown]
            yield _Column("gives", list(map(Cell, types)), is_text=True)
        for title, key in CALL_NUMBERS:
            most = max((known(operator[key]) for operator in self.operators), default=0)
            yield _Column(title, [amount(self.operators[index][key], most) for index in shown])
        yield from self._cost_columns(shown)
        yield from self._difference_columns(shown)
        contracts = [self.contract(index) or "" for index in shown]
        if any(contracts):
            yield _Column("contract", list(map(Cell, contracts)), is_text=True)

    def pictures(self) -> Iterator[str]:
        """Yield what calls took, as pictures."""
        costs = self.costs
        if costs is None:
            return
        what = "Instructions" if costs.unit == INSTRUCTIONS else "Time"
        yield f"<h2>{what}</h2>"
        if len(costs.calls) > MOST_BARS:
            yield f"<p>More than {MOST_BARS:,} calls are not drawn.</p>"
            return
        yield f'<div class="map chart">{cost_bars(self.operators, costs)}</div>'
        if (picture := roofline(self.operators, costs)) is not None:
            yield f"<h2>{'Roofline' if costs.peaks else 'Speed'}</h2>"
            yield f'<div class="map chart">{picture}</div>'
            limits = "" if costs.peaks else " Nothing here knows the limits of this board."
            yield (
                "<p>A point is a call: how many multiply-accumulates (MACs) it does for each byte that it moves, and"
                f" how fast. Those that took most are large and have their number.{limits}</p>"
            )

    def facts(self) -> dict[int, list[tuple[str, str]]]:
        """Return what was measured of calls, and their contracts, as pairs of a title and a text."""
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
        tensors = [
            tensor for node in self._nodes(index) if node in self.sources for tensor in self.sources[node].tensors
        ]
        return self.measured.difference(tensors)

    def marks(self) -> dict[int, str]:
        """Return the calls that differ from their reference, with a class of the style."""
        found = {index: self.difference(index) for index in range(len(self.operators))}
        return {index: "removed" for index, item in found.items() if item is not None and not item.is_within}

    def contract(self, index: int) -> str | None:
        """Return the numeric contract of a call; None if its operators are not known."""
        types = self.operators[index]["types"] or ("",)
        ends = (text.partition("[")[0] for text in (types[0], types[-1]))
        return contract_of(kernel_operators(self.operators[index]["function"]), integers=all(map(is_integer, ends)))

    def _nodes(self, index: int) -> Sequence[str]:
        return self.operators[index]["nodes"] or ()

    def _row(self, index: int) -> str:
        return html_of(f"{self.module}.call{index}").replace(" ", "_")

    def _reads(self, index: int) -> Cell:
        sources = self.operators[index]["reads"]
        shown = ", ".join(
            f'<a href="#{self._row(source)}">{source}</a>'
            if source >= 0
            else html_of(shortened(self._input(source), _INPUT))
            for source in sources[: _NAMES * 4]
        )
        more = f" and {len(sources) - _NAMES * 4} more" if len(sources) > _NAMES * 4 else ""
        return Cell(sources[0] if sources else -1, html=shown + more)

    def _input(self, source: int) -> str:
        place = -1 - source
        return self.inputs[place] if place < len(self.inputs) else "an input"

    def _function(self, name: str) -> Cell:
        shown = html_of(name.removeprefix(f"tvmgen_{self.module}_"))
        if name not in self.kernels:
            return Cell(name, html=shown)
        return Cell(name, html=f'<a href="#{anchor(self.module, name)}" title="{html_of(name)}">{shown}</a>')

    def _cost_columns(self, shown: Sequence[int]) -> Iterator[_Column]:
        costs = self.costs
        if costs is None:
            return
        most, total = max(costs.calls, default=0.0), costs.total or 1.0
        form = "{:,.0f}" if costs.unit == INSTRUCTIONS else "{:,.2f}"
        taken = [costs.calls[index] for index in shown]
        yield _Column(costs.unit, [number(cost, most, form.format(cost)) for cost in taken])
        yield _Column("share", [number(cost / total, None, f"{cost / total:.1%}") for cost in taken])
        if costs.peaks is not None:
            limits = [costs.limit(index) for index in shown]
            yield _Column("bound", [Cell(limit.bound if limit else "") for limit in limits], is_text=True)
            yield _Column("of peak", [_of_peak(limit.share if limit else None) for limit in limits])

    def _difference_columns(self, shown: Sequence[int]) -> Iterator[_Column]:
        if self.measured.differences:
            found = [self.difference(index) for index in shown]
            yield _Column("difference", [number(item.largest if item else None) for item in found])
            yield _Column("allowed", [number(item.allowed if item else None) for item in found])
            yield _Column("verdict", list(map(_verdict, found)), is_text=True)


@dataclass(frozen=True)
class _Column:
    """A column of the table."""

    title: str
    cells: Sequence[Cell]
    is_text: bool = False


def anchor(module: str, function: str) -> str:
    """Return the id of a function's C on the page."""
    return html_of(f"{module}.{function}").replace(" ", "_")


def known(value: object) -> int:
    """Return a number; 0 for what is not known or depends on the run."""
    return value if isinstance(value, int) else 0


def _verdict(item: TensorDifference | None) -> Cell:
    if item is None:
        return Cell("not compared")
    return Cell(item.verdict, kind="good" if item.is_within else "bad")


def _of_peak(share: float | None) -> Cell:
    return number(None) if share is None else number(share, 1.0, f"{share:.1%}")


def amount(value: object, largest: int | None = None) -> Cell:
    """Return the cell of a number, or of the expression of one that depends on the run."""
    return number(value, largest) if isinstance(value, int) or value is None else Cell(str(value))


def _some(nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMES
    return "; ".join(nodes[:_NAMES]) + (f"; and {more} more" if more > 0 else "")
