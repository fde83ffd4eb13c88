"""Values visible to the nodes of a graph, branch or function body, and stand-ins for values of refused nodes."""

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
    """Values, types and opsets that one graph, branch or function body can see."""

    values: dict[str, Expr | None]  # expression of every tensor; None after a problem
    opsets: Mapping[str, int]  # opset version of every domain
    # attributes that a function's body refers to by name
    references: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    prefix: str = ""  # of node names, which distinguishes the calls of one function
    depth: int = 0
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)  # types that the graph declares, by name
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # static shapes derived from them


def given_attributes(
    proto: onnx.NodeProto, references: Mapping[str, onnx.AttributeProto]
) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of a node by name, with references to function attributes resolved or dropped."""
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
    """Return the result of a function or branch with the tensor name that its caller uses."""
    if result is None or isinstance(result, (Var, Constant, Tuple)) or result.span.tensor == tensor:
        return result
    return replace(result, span=Span(result.span.nodes, tensor))


class StandIns(set[Expr]):
    """Placeholder expressions of an import, and everything computed from them."""

    def of_inputs(
        self, graph: onnx.GraphProto, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> dict[str, Var]:
        """Return variables with guessed shapes for inputs with dynamic shapes."""
        found = {}
        for item in graph.input:
            if item.name in names and item.name in shapes:
                dtype = dtype_name(item.type.tensor_type.elem_type, f"input '{item.name}'")
                found[item.name] = Var(item.name, TensorType(tuple(shapes[item.name]), dtype))
        self.update(found.values())
        return found

    def feed(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> bool:
        """Return whether a node depends on a stand-in."""
        return bool(self) and any(values.get(tensor) in self for tensor in (*proto.input, *captured_names(proto)))

    def pass_on(self, proto: onnx.NodeProto, values: Mapping[str, Expr | None]) -> None:
        """Mark the results of a node that depends on a stand-in as stand-ins."""
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
        """Add a stand-in variable for each output without a value, if its type is known.

        The type is the declared one from `declared`, else the one that ONNX's inference yields in `infer`, else the one
        from `likely`.
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
    """Return the declared type of a tensor if its shape is static."""
    extents = None if value is None else declared_extents(value)
    shape = tuple(extent for extent in extents or () if isinstance(extent, int))
    with suppress(MlfcError):
        if value is not None and extents is not None and len(shape) == len(extents):
            return TensorType(shape, dtype_name(value.type.tensor_type.elem_type, value.name))
    return None
