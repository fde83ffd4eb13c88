"""The order of nodes and the soundness of names: what holds before any node is understood."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx

from mlfc.errors import ModelError


@dataclass(frozen=True)
class NodeProto:
    """A node and its place in the file."""

    proto: onnx.NodeProto
    index: int

    @property
    def label(self) -> str:
        """What messages call the node."""
        return self.proto.name or f"{self.proto.op_type} #{self.index}"


def check_names(graph: onnx.GraphProto, place: str) -> None:
    """Raise ModelError if two inputs, two initializers, or an input and a node's output share a name."""
    check_text(place, *(output.name for output in graph.output))
    for what, names in (
        ("input", [item.name for item in graph.input]),
        ("initializer", [item.name for item in graph.initializer]),
    ):
        check_text(place, *names)
        seen: set[str] = set()
        for name in names:
            if name in seen or not name:
                cause = f"two tensors among the {what}s are called '{name}'" if name else f"an {what} has no name"
                raise ModelError(cause, place=place)
            seen.add(name)


def check_text(place: str, *names: object) -> None:
    """Raise ModelError for a name that is not UTF-8, which protobuf hands over as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"the name {name!r} is not UTF-8", place=place)


def subgraph_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the branches of a node may read from around it."""
    graphs = [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
    while graphs:
        graph = graphs.pop()
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from inner.input
            graphs.extend(item.g for item in inner.attribute if item.type == onnx.AttributeProto.GRAPH)


def sorted_nodes(nodes: Sequence[onnx.NodeProto], known: AbstractSet[str], place: str) -> list[NodeProto]:
    """Return the nodes so that each comes after what it reads, otherwise in the order of the file.

    `known` are tensors that exist without these nodes; `place` is what messages call the graph. Raises ModelError if
    two nodes make one tensor, a node reads what nothing makes, or nodes wait for each other.
    """
    items = [NodeProto(proto, index) for index, proto in enumerate(nodes)]
    maker = _makers(items, known, place)
    waiting = [0] * len(items)
    readers: list[list[int]] = [[] for _ in items]
    for item in items:
        needs = {maker[name] for name in subgraph_reads(item.proto) if name in maker}
        for name in item.proto.input:
            if name in maker:
                needs.add(maker[name])
            elif name and name not in known:
                raise ModelError(f"node '{item.label}' reads the tensor '{name}', which nothing produces", place=place)
        for need in needs:
            readers[need].append(item.index)
        waiting[item.index] = len(needs)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(items[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) != len(items):
        stuck = [items[index].label for index, count in enumerate(waiting) if count]
        shown = ", ".join(f"'{label}'" for label in stuck[:5]) + (", ..." if len(stuck) > 5 else "")
        raise ModelError(f"the graph has a cycle: {shown} wait for each other's results", place=place)
    return order


def _makers(items: Sequence[NodeProto], known: AbstractSet[str], place: str) -> dict[str, int]:
    maker: dict[str, int] = {}
    for item in items:
        for name in item.proto.output:
            if name and (name in maker or name in known):
                raise ModelError(f"the tensor '{name}' is computed twice, again by node '{item.label}'", place=place)
            if name:
                maker[name] = item.index
    return maker


def needed_nodes(ordered: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """Return the nodes that `outputs` depend on, in order."""
    wanted = set(outputs)
    needed = []
    for item in reversed(ordered):
        if wanted.intersection(item.proto.output):
            needed.append(item)
            wanted.update(item.proto.input)
            wanted.update(subgraph_reads(item.proto))
    return needed[::-1]
