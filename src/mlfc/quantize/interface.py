"""Integer inputs and outputs of a model with QuantizeLinear and DequantizeLinear, in place of float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlfc.errors import InputError

if TYPE_CHECKING:
    import onnx

FLOAT = "float32"
_STEP = "Leave the node to the quantizer, or use float32"


def set_integer_inputs(model: onnx.ModelProto, dtype: str, place: str) -> None:
    """Remove the quantization of float inputs, which then have the dtype of activations; in place.

    Raises InputError for an input that a node reads as float.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name in weights or not _is_float(value):
            continue
        readers = [node for node in _nodes(graph) if value.name in node.input]
        for node in readers:
            if node.op_type != "QuantizeLinear" or node not in graph.node:
                cause = f"the input '{value.name}' is read as float by {node.op_type} '{node.name}'"
                raise InputError(cause, place=place, next_step=_STEP)
        for node in readers:
            _rename(graph, node.output[0], value.name)
            graph.node.remove(node)
        _set_dtype(value, dtype)


def set_integer_outputs(model: onnx.ModelProto, dtype: str, place: str) -> None:
    """Remove the dequantization of float outputs, which then have the dtype of activations; in place.

    Raises InputError for an output that a node computes as float.
    """
    graph = model.graph
    fixed = {item.name for item in (*graph.input, *graph.initializer)}
    for value in graph.output:
        if not _is_float(value):
            continue
        name = value.name
        maker = next((node for node in graph.node if name in node.output), None)
        if maker is None or maker.op_type != "DequantizeLinear" or maker.input[0] in fixed:
            kind = f"computed as float by {maker.op_type} '{maker.name}'" if maker else "an input"
            raise InputError(f"the output '{name}' is {kind}", place=place, next_step=_STEP)
        if any(name in node.input for node in _nodes(graph)):
            _rename(graph, name, f"{name}_dequantized")
        else:
            graph.node.remove(maker)
        _rename(graph, maker.input[0], name)
        fixed.add(name)
        _set_dtype(value, dtype)


def _is_float(value: onnx.ValueInfoProto) -> bool:
    from onnx import TensorProto

    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT)


def _set_dtype(value: onnx.ValueInfoProto, dtype: str) -> None:
    from onnx import TensorProto

    value.type.tensor_type.elem_type = getattr(TensorProto, dtype.upper())


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, and of the branches and loops in it."""
    from mlfc.byoc.onnx_graphs import inner_graphs

    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from _nodes(inner)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Rename a tensor in all nodes; its declared type is dropped."""
    for node in _nodes(graph):
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in [item for item in graph.value_info if item.name in (old, new)]:
        graph.value_info.remove(value)
