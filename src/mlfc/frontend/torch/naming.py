"""Names in programs of PyTorch's exporter: of inputs, outputs, weights, and the modules that nodes belong to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import onnx_ir
import torch
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from mlfc.frontend.common import numbered, unique_name
from mlfc.frontend.python_trace import TRACE, line_in_trace

WRAPPED = "module"
"""Name of the user's module inside the wrapper that makes its buffers inputs."""
_SCOPES = "pkg.torch.onnx.name_scopes"


def output_titles(exported: torch.export.ExportedProgram, states: Sequence[str] = ()) -> list[str]:
    """Return names for the tensors that `forward` returns: by key or field, else ``output`` or ``output_0``, ...

    The names of the next values of `states` follow.
    """
    signature = exported.graph_signature
    specs = [spec for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    tree = pytree.tree_unflatten(list(range(len(specs))), exported.call_spec.out_spec)
    paths, _ = pytree.tree_flatten_with_path(tree[0] if states else tree)
    titles = []
    for path, index in paths:
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
        if isinstance(specs[index].arg, TensorArgument):
            titles.append("_".join(parts if parts and not parts[0].isdigit() else ["output", *parts]))
    return [*titles, *(f"{state}.next" for state in states)]


def name_weights(graph: onnx_ir.Graph) -> None:
    """Name the weights as in the module's state_dict, and values derived from weights after the first of these."""
    inputs = {value.name for value in graph.inputs}
    origins: dict[int, str] = {}
    for name, value in list(graph.initializers.items()):
        del graph.initializers[name]
        if value.uses():
            value.name = unique_name(name.removeprefix(f"{WRAPPED}."), {*inputs, *graph.initializers})
            graph.initializers[value.name] = value
            origins[id(value)] = value.name
    taken = {str(value.name) for value in _values(graph)}
    for node in graph:
        operands = [value for value in node.inputs if value is not None]
        origin = next((origins[id(value)] for value in operands if id(value) in origins), None)
        makers = (value.producer() for value in operands if id(value) not in origins)
        if origin is None or any(maker is None or maker.op_type != "Constant" for maker in makers):
            continue
        for value in node.outputs:
            value.name = unique_name(f"{origin}.{'T' if node.op_type == 'Transpose' else 'folded'}", taken)
            taken.add(value.name)
            origins[id(value)] = origin


def name_outputs(graph: onnx_ir.Graph, titles: Sequence[str]) -> None:
    """Name the outputs; an output that is an input, a weight or another output becomes a copy with its own name."""
    inputs = {value.name for value in graph.inputs}
    seen: set[int] = set()
    free = numbered([unique_name(f"{title}_out", titles) if title in inputs else title for title in titles])
    for index, (value, title) in enumerate(zip(list(graph.outputs), free, strict=True)):
        if value.producer() is None or id(value) in seen:
            node = onnx_ir.node("Identity", [value])
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        seen.add(id(graph.outputs[index]))
        claim(graph, graph.outputs[index], title)


def claim(graph: onnx_ir.Graph, value: onnx_ir.Value, name: str) -> None:
    """Give a value a name, and rename another value with that name."""
    others = {str(other.name): other for other in _values(graph) if other is not value}
    other = others.get(name)
    if other is not None:
        renamed = unique_name(name, others)
        if graph.initializers.pop(name, None) is not None:
            other.name = renamed
            graph.initializers[renamed] = other
        other.name = renamed
    value.name = name


def _values(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def name_nodes(model: onnx_ir.Model) -> None:
    """Name each node after its module, as in ``blocks.0.attn/MatMul``, and reduce its metadata to the source line.

    Other metadata contain file paths, which differ between machines.
    """
    nodes, names = list(model.graph.all_nodes()), []
    for node in nodes:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
        # the last scope is the operator itself
        module = str(scopes[-2]) if len(scopes) > 1 else ""
        module = "" if module == WRAPPED else module.removeprefix(f"{WRAPPED}.")
        names.append(f"{module}/{node.op_type}" if module else node.op_type)
    for node, name in zip(nodes, numbered(names), strict=True):
        line = line_in_trace(node.metadata_props.get(TRACE, ""))
        node.name = name
        node.metadata_props.clear()
        if line is not None:
            file, _, number = line.partition(", line ")
            node.metadata_props[TRACE] = f'File "{file}", line {number}'
    for value in _values(model.graph):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
