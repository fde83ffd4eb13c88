"""Where the nodes of a graph are drawn: in layers from top to bottom, with lanes for what goes past several layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NEAR = 48  # columns on either side that are tried before a new one


@dataclass(frozen=True)
class GraphLayout:
    """The place of each node."""

    layers: tuple[int, ...]
    columns: tuple[int, ...]
    # the column in which what a node gives goes down to nodes beyond the next layer; None where none is there
    lanes: tuple[int | None, ...]


def layered(reads: Sequence[Iterable[int]]) -> GraphLayout:
    """Return the places of nodes that read what other ones give; the time is linear in nodes and edges.

    `reads`: by node the nodes that it reads, in an order in which all but loops go forwards. What goes backwards, or
    from a node to itself, has no influence on places.
    A chain is a column. Where it forks, the longest branch goes on in it, and others take the nearest free column. A
    tensor that is read further down has one lane, however many read it, so as many lanes are side by side as tensors
    are waiting.
    """
    sources = [sorted({source for source in given if source < node}) for node, given in enumerate(reads)]
    readers: list[list[int]] = [[] for _ in sources]
    for node, given in enumerate(sources):
        for source in given:
            readers[source].append(node)
    layers = _layers(sources, readers)
    members: list[list[int]] = [[] for _ in range(1 + max(layers, default=-1))]
    for node, layer in enumerate(layers):
        members[layer].append(node)
    return _LayerColumns(sources, readers, layers).filled(members)


def _layers(sources: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]) -> list[int]:
    """Return each node's longest way from the top; what reads nothing is right above its first reader."""
    layers: list[int] = []
    for given in sources:
        layers.append(1 + max((layers[source] for source in given), default=-1))
    for node, given in enumerate(sources):
        if not given and readers[node]:
            layers[node] = min(layers[reader] for reader in readers[node]) - 1
    return layers


def _below(readers: Sequence[Sequence[int]], layers: Sequence[int]) -> list[int]:
    """Return how many layers are below each node on the longest way down."""
    found = [0] * len(layers)
    for node in sorted(range(len(layers)), key=lambda node: -layers[node]):
        found[node] = max((1 + found[reader] for reader in readers[node]), default=0)
    return found


class _LayerColumns:
    def __init__(
        self, sources: Sequence[Sequence[int]], readers: Sequence[Sequence[int]], layers: Sequence[int]
    ) -> None:
        self._sources, self._readers, self._layers = sources, readers, layers
        self._below = _below(readers, layers)
        self._columns = [0] * len(layers)
        self._lanes: list[int | None] = [None] * len(layers)
        self._free: list[int] = []  # by column the first layer at which it is free

    def filled(self, members: Sequence[Sequence[int]]) -> GraphLayout:
        heirs: dict[int, int] = {}  # by node the one above it whose column it goes on with
        for layer, nodes in enumerate(members):
            for node in sorted(nodes, key=lambda node: self._wish(node, heirs)):
                self._columns[node] = self._take(self._wish(node, heirs)[1], layer, layer + 1, frozenset())
            heirs = self._heirs(nodes, layer)
            kept = frozenset(self._columns[node] for node in heirs.values())
            for node in nodes:
                last = max((self._layers[reader] for reader in self._readers[node]), default=layer)
                if last > layer + 1:
                    self._lanes[node] = self._take(self._columns[node], layer + 1, last, kept)
        return GraphLayout(tuple(self._layers), tuple(self._columns), tuple(self._lanes))

    def _wish(self, node: int, heirs: dict[int, int]) -> tuple[int, int, int]:
        """Return who chooses first, which column a node wants, and its own place."""
        if node in heirs:
            return 0, self._columns[heirs[node]], node
        ways = [self._lanes[source] for source in self._sources[node]]
        wished = [
            self._columns[source] if way is None else way for source, way in zip(self._sources[node], ways, strict=True)
        ]
        return 1, min(wished, default=0), node

    def _heirs(self, nodes: Iterable[int], layer: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for node in sorted(nodes, key=lambda node: self._columns[node]):
            heirs = [item for item in self._readers[node] if self._layers[item] == layer + 1 and item not in found]
            if heirs:
                found[max(heirs, key=lambda item: self._below[item])] = node
        return found

    def _take(self, wished: int, first: int, end: int, reserved: frozenset[int]) -> int:
        """Return the free column that is nearest, and occupy it from one layer on, up to before another one."""
        near = (column for step in range(_NEAR) for column in ((wished + step, wished - step) if step else (wished,)))
        for column in near:
            if 0 <= column < len(self._free) and self._free[column] <= first and column not in reserved:
                self._free[column] = end
                return column
            if column == len(self._free):
                break
        self._free.append(end)
        return len(self._free) - 1
