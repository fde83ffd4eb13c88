"""What the nodes of one graph, branch or function body see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mlfc.errors import ModelError, UnsupportedError
from mlfc.frontend.onnx.inputs import Shape
from mlfc.frontend.onnx.tensors import tensor_value
from mlfc.relay.ir import Constant, Expr, Span, Tuple, Var


@dataclass
class Scope:
    """What one graph, branch or function body sees."""

    values: dict[str, Expr | None]  # expression of every tensor; None where a problem left a tensor without one
    opsets: Mapping[str, int]  # version of every domain
    # attributes that a function's body refers to by name
    references: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    prefix: str = ""  # of the names of nodes: tells calls of one function apart
    depth: int = 0
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)  # types that the graph declares, by name
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # static shapes that follow from them


@contextmanager
def defining(tensors: Sequence[str], scope: Scope) -> Iterator[None]:
    """Give tensors without a value None at the end."""
    try:
        yield
    finally:
        for tensor in tensors:
            scope.values.setdefault(tensor, None)


def given_attributes(
    proto: onnx.NodeProto, references: Mapping[str, onnx.AttributeProto]
) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of a node by name; one that refers to a function's is that, or left out."""
    found = {item.name: references.get(item.ref_attr_name) if item.ref_attr_name else item for item in proto.attribute}
    return {name: item for name, item in found.items() if item is not None}


def decoded_attributes(
    proto: onnx.NodeProto, references: Mapping[str, onnx.AttributeProto], place: str, folder: Path | None
) -> dict[str, Any]:
    """Return the values of the attributes of a node; external data are read from files in `folder`."""
    return {
        name: _decoded(item, f"{place}, attribute '{name}'", folder)
        for name, item in given_attributes(proto, references).items()
    }


def _decoded(attribute: onnx.AttributeProto, place: str, folder: Path | None) -> Any:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return tensor_value(attribute.t, place, folder)
    fields = {kinds.INT: "i", kinds.FLOAT: "f", kinds.STRING: "s", kinds.GRAPH: "g", kinds.TYPE_PROTO: "tp"}
    lists = {kinds.INTS: "ints", kinds.FLOATS: "floats", kinds.STRINGS: "strings"}
    if attribute.type in fields:
        return getattr(attribute, fields[attribute.type])
    if attribute.type in lists:
        return tuple(getattr(attribute, lists[attribute.type]))
    raise UnsupportedError(f"attribute type {attribute.type} is not supported", place=place)


def check_captured(proto: onnx.NodeProto, captured: Mapping[str, Expr | None], scope: Scope, name: str) -> None:
    """Raise ModelError if a node reads a tensor in its graphs that nothing around it produces."""
    missing = next((tensor for tensor in captured if tensor not in scope.values), None)
    if missing is not None:
        raise ModelError(
            f"{proto.op_type} reads the tensor '{missing}', which nothing produces", place=f"node '{name}'"
        )


def renamed(result: Expr | None, tensor: str) -> Expr | None:
    """Return what a function or branch computed under the name that its caller gives it."""
    if result is None or isinstance(result, (Var, Constant, Tuple)) or result.span.tensor == tensor:
        return result
    return replace(result, span=Span(result.span.nodes, tensor))
