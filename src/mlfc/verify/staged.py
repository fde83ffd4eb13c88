"""Reference of ONNX models with custom operators: ONNX Runtime for parts of the graph, NumPy functions between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from mlfc.byoc.onnx_graphs import captured_names, inner_graphs
from mlfc.errors import OptionError
from mlfc.frontend.onnx.custom import CustomOperator, declared


class StagedSession:
    """A session with the methods of ``onnxruntime.InferenceSession`` that references call.

    Functions of the model are inlined. `opened` opens a session for a serialized model. Raises OptionError if a custom
    operator has no reference, or is inside a branch or loop.
    """

    def __init__(self, model: onnx.ModelProto, opened: Callable[[bytes], Any]) -> None:
        self._model, self._opened = inliner.inline_local_functions(model), opened
        graph = self._model.graph
        self._constants = {item.name: item for item in graph.initializer}
        self._stages: list[tuple[list[onnx.NodeProto], CustomOperator | None]] = [([], None)]
        for node in graph.node:
            operator = _checked(node)
            if operator is None:
                self._stages[-1][0].append(node)
            else:
                self._stages += [([node], operator), ([], None)]
        self._sessions: dict[int, tuple[Any, list[str], list[str]]] = {}

    def get_inputs(self) -> list[Any]:
        """Return the inputs, which have names."""
        return [item for item in self._model.graph.input if item.name not in self._constants]

    def get_outputs(self) -> list[Any]:
        """Return the outputs, which have names and types."""
        return [SimpleNamespace(name=item.name, type="") for item in self._model.graph.output]

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """Return the values of outputs."""
        known = dict(inputs)
        for index, (nodes, operator) in enumerate(self._stages):
            if operator is not None:
                constants = (self._constants[name] for name in nodes[0].input if name in self._constants)
                known |= {item.name: numpy_helper.to_array(item) for item in constants}
                known |= _computed(operator, nodes[0], known)
            elif nodes:
                if index not in self._sessions:
                    self._sessions[index] = self._session(index, known)
                session, reads, writes = self._sessions[index]
                known |= zip(writes, session.run(writes, {name: known[name] for name in reads}), strict=True)
        return [known[name] for name in names]

    def _session(self, index: int, known: Mapping[str, Any]) -> tuple[Any, list[str], list[str]]:
        """Open a session for a stage, with its inputs and outputs; the types of inputs are those of `known`."""
        nodes = self._stages[index][0]
        later = {name for nodes, _ in self._stages[index + 1 :] for node in nodes for name in _reads(node)}
        later.update(item.name for item in self._model.graph.output)
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        outer = [name for name in dict.fromkeys(name for node in nodes for name in _reads(node)) if name not in made]
        reads, writes = [name for name in outer if name in known], [name for name in made if name in later]
        if lists := [name for name in reads if not isinstance(known[name], np.ndarray)]:
            raise OptionError(f"expected tensors between custom operators, got the sequence '{lists[0]}'")
        if not writes:
            return SimpleNamespace(run=lambda *_: []), [], []
        kinds = [(name, helper.np_dtype_to_tensor_dtype(known[name].dtype), known[name].ndim) for name in reads]
        inputs = [helper.make_tensor_value_info(name, kind, [None] * rank) for name, kind, rank in kinds]
        constants = [self._constants[name] for name in outer if name not in reads]
        outputs = [onnx.ValueInfoProto(name=name) for name in writes]
        graph = helper.make_graph(nodes, "stage", inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        model.ir_version = self._model.ir_version
        return self._opened(model.SerializeToString()), reads, writes


def staged(model: str | bytes, opened: Callable[[bytes], Any]) -> StagedSession | None:
    """Return a session for a file or serialized model with custom operators; None for another model."""
    loaded = onnx.load(model) if isinstance(model, str) else onnx.ModelProto.FromString(model)
    waiting = [*loaded.graph.node, *(node for function in loaded.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        if declared(node.domain, node.op_type) is not None:
            return StagedSession(loaded, opened)
        waiting += [inner for graph in inner_graphs(node) for inner in graph.node]
    return None


def _reads(node: onnx.NodeProto) -> list[str]:
    return [name for name in (*node.input, *captured_names(node)) if name]


def _checked(node: onnx.NodeProto) -> CustomOperator | None:
    """Return the custom operator of a node, or None."""
    for graph in inner_graphs(node):
        if any(map(_checked, graph.node)):
            raise OptionError("a custom operator in a branch or loop has no reference", place=f"node '{node.name}'")
    operator = declared(node.domain, node.op_type)
    if operator is not None and operator.reference is None:
        raise OptionError(
            f"the operator {operator.title} has no reference, so its results cannot be compared",
            place=operator.origin or None,
            next_step="Declare it with reference=..., a function in NumPy",
        )
    return operator


def _computed(operator: CustomOperator, node: onnx.NodeProto, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a node by its operator's reference."""
    assert operator.reference is not None
    attrs = operator.values({item.name: helper.get_attribute_value(item) for item in node.attribute})
    arrays = [known[name] if name else None for name in node.input]
    found = operator.run("reference", operator.reference, arrays, attrs)
    results = [np.asarray(item) for item in (found if isinstance(found, (list, tuple)) else [found])]
    if len(results) < len(node.output):
        cause = f"expected {len(node.output)} results from the reference of {operator.title}, got {len(results)}"
        raise OptionError(cause, place=f"node '{node.name}'")
    given = [array.dtype for array in arrays if array is not None]
    if given and np.float64 not in given:  # NumPy may have widened a result
        results = [item.astype(given[0]) if item.dtype == np.float64 else item for item in results]
    return dict(zip(node.output, results, strict=False))
