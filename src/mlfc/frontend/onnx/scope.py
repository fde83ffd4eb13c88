"""Values visible to the nodes of a graph, branch or function body, with stand-ins after a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mlfc.byoc.onnx_graphs import captured_names
from mlfc.errors import MlfcError, UnsupportedError
from mlfc.frontend.onnx.inputs import Shape, declared_extents
from mlfc.frontend.onnx.tensors import dtype_name, tensor_value
from mlfc.relay.ir import Constant, Expr, Span, TensorType, Tuple, Type, Var


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
    kinds = onnx.AttributeProto
    fields = {kinds.INT: "i", kinds.FLOAT: "f", kinds.STRING: "s", kinds.GRAPH: "g", kinds.TYPE_PROTO: "tp"}
    lists = {kinds.INTS: "ints", kinds.FLOATS: "floats", kinds.STRINGS: "strings"}
    found: dict[str, Any] = {}
    for name, item in given_attributes(proto, references).items():
        where = f"{place}, attribute '{name}'"
        if item.type == kinds.TENSOR:
            found[name] = tensor_value(item.t, where, folder)
        elif item.type in fields:
            found[name] = getattr(item, fields[item.type])
        elif item.type in lists:
            found[name] = tuple(getattr(item, lists[item.type]))
        else:
            raise UnsupportedError(f"attribute type {item.type} is not supported", place=where)
    return found


def renamed(result: Expr | None, tensor: str) -> Expr | None:
    """Return what a function or branch computed under the name that its caller gives it."""
    if result is None or isinstance(result, (Var, Constant, Tuple)) or result.span.tensor == tensor:
        return result
    return replace(result, span=Span(result.span.nodes, tensor))


class StandIns(set[Expr]):
    """The stand-ins of an import, and what was computed from them."""

    def of_inputs(
        self, graph: onnx.GraphProto, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, Var]:
        """Return variables of a guessed shape for inputs that leave theirs open."""
        found = {}
        for item in graph.input:
            if item.name in names and item.name in shapes:
                dtype = dtype_name(item.type.tensor_type.elem_type, f"input '{item.name}'")
                found[item.name] = Var(item.name, TensorType(tuple(shapes[item.name]), dtype))
        self.update(found.values())
        return found

    def feed(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> bool:
        """Return whether a node reads what was computed from a stand-in."""
        return bool(self) and any(values.get(tensor) in self for tensor in (*proto.input, *captured_names(proto)))

    def pass_on(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> None:
        """Note that what a node computes from a stand-in is no more certain than that."""
        if self.feed(proto, values):
            self.update(value for tensor in proto.output if (value := values.get(tensor)) is not None)

    def stand_for(
        self,
        proto: onnx.NodeProto,
        values: MutableMapping[str, Expr | None],
        declared: Mapping[str, onnx.ValueInfoProto],
        infer: Callable[[], Sequence[Expr | None]],
        likely: Sequence[Type],
    ) -> None:
        """Give each output of a node without a value a variable of the type that the model states, or ONNX infers.

        `declared` has what the model states by name; `infer` returns expressions of the types that ONNX infers; where
        neither says anything, there are the `likely` types of the outputs.
        """
        missing = [tensor for tensor in proto.output if tensor and values.get(tensor) is None]
        inferred: Sequence[Expr | None] = ()
        if any(_stated(declared.get(tensor)) is None for tensor in missing):
            with suppress(MlfcError):
                inferred = infer()
        kinds = dict(zip(proto.output, likely, strict=False))
        kinds |= {tensor: expr.type for tensor, expr in zip(proto.output, inferred, strict=False) if expr is not None}
        for tensor in missing:
            kind = _stated(declared.get(tensor)) or kinds.get(tensor)
            if isinstance(kind, TensorType):
                values[tensor] = stand_in = Var(tensor, kind)
                self.add(stand_in)


def _stated(value: onnx.ValueInfoProto | None) -> TensorType | None:
    """Return the type that a model states of a tensor, if all its extents are numbers."""
    extents = None if value is None else declared_extents(value)
    shape = tuple(extent for extent in extents or () if isinstance(extent, int))
    with suppress(MlfcError):
        if value is not None and extents is not None and len(shape) == len(extents):
            return TensorType(shape, dtype_name(value.type.tensor_type.elem_type, value.name))
    return None
