"""Subgraphs of ONNX nodes such as ``If`` and ``Loop``: their captured tensors, and renaming."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_INNER = "inner/"


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that are attributes of a node, without graphs nested in these."""
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def captured_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that the graphs of a node read but do not define."""
    for graph in inner_graphs(node):
        made = {*_given(graph), *(name for inner in graph.node for name in inner.output)}
        for inner in graph.node:
            for name in (*inner.input, *captured_names(inner)):
                if name and name not in made:
                    yield name
        yield from (value.name for value in graph.output if value.name not in made)


def refers_to_function(node: onnx.NodeProto) -> bool:
    """Return True if a node, or one inside it, refers to an attribute of the function that contains it."""
    inside = (inner for graph in inner_graphs(node) for inner in graph.node)
    return any(item.ref_attr_name for item in node.attribute) or any(map(refers_to_function, inside))


def isolate(node: onnx.NodeProto, outer: Mapping[str, str]) -> None:
    """Rename all tensors of a node's graphs, so that no name is also defined outside the node.

    `outer`: new names of captured tensors. Tensors that the graphs define get a prefix.
    """
    _rename(node, outer, ())


def rename_captured(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename the captured tensors of an isolated node in place."""
    _rename(node, names, (), prefix="")


def _given(graph: onnx.GraphProto) -> set[str]:
    return {
        *(value.name for value in (*graph.input, *graph.initializer)),
        *(sparse.values.name for sparse in graph.sparse_initializer),
    }


def _rename(node: onnx.NodeProto, outer: Mapping[str, str], around: Collection[str], prefix: str = _INNER) -> None:
    for graph in inner_graphs(node):
        made = {*around, *_given(graph), *(name for inner in graph.node for name in inner.output)}

        def new(name: str, made: Collection[str] = made) -> str:
            return f"{prefix}{name}" if name in made else outer.get(name, name)

        for inner in graph.node:
            _rename(inner, outer, made, prefix)
            inner.input[:] = [new(name) if name else "" for name in inner.input]
            inner.output[:] = [new(name) if name else "" for name in inner.output]
        del graph.quantization_annotation[:]
        values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        for value in (*values, *(sparse.values for sparse in graph.sparse_initializer)):
            value.name = new(value.name)
