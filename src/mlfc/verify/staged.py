"""Reference of ONNX models with custom operators: ONNX Runtime for parts of the graph, NumPy functions between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from mlfc.byoc.onnx_graphs import captured_names, inner_graphs
from mlfc.errors import OptionError
from mlfc.frontend.onnx.custom import CustomOperator, declared

ONNX_RUNTIME, NUMPY = "ONNX Runtime", "NumPy"
Computes: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Compute a node's outputs from the known tensors, all by name."""


class StagedSession:
    """A session with the methods of ``onnxruntime.InferenceSession`` that references call.

    Functions of the model are inlined. `opened` opens a session for a serialized model. `title` names what computes the
    results. Raises OptionError if a custom operator has no reference.
    """

    def __init__(self, model: onnx.ModelProto, opened: Callable[[bytes], Any]) -> None:
        self._model, self._opened = inliner.inline_local_functions(model), opened
        graph = self._model.graph
        self._constants = {item.name: item for item in graph.initializer}
        self._stages: list[tuple[list[onnx.NodeProto], Computes | None]] = [([], None)]
        for node in graph.node:
            operator = _checked(node)
            if operator is None and not _has_custom(node):
                self._stages[-1][0].append(node)
            else:
                compute = partial(_computed, operator, node) if operator else _Control(node, self._model, opened)
                self._stages += [([node], compute), ([], None)]
        titles = [
            getattr(compute, "title", NUMPY) if compute else ONNX_RUNTIME for nodes, compute in self._stages if nodes
        ]
        self.title = NUMPY if {*titles} == {NUMPY} else f"{ONNX_RUNTIME} and {NUMPY}"
        self._sessions: dict[int, tuple[Any, list[str], list[str]]] = {}

    def get_inputs(self) -> list[Any]:
        """Return the inputs, which have names."""
        return [item for item in self._model.graph.input if item.name not in self._constants]

    def get_outputs(self) -> list[Any]:
        """Return the outputs, which have names and types."""
        return [SimpleNamespace(name=item.name, type="") for item in self._model.graph.output]

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the values of outputs, of all for None."""
        names = [item.name for item in self._model.graph.output] if names is None else names
        known = dict(inputs)
        for index, (nodes, compute) in enumerate(self._stages):
            if compute is not None:
                constants = (self._constants[name] for name in _reads(nodes[0]) if name in self._constants)
                known |= {item.name: numpy_helper.to_array(item) for item in constants}
                known |= compute(known)
            elif nodes:
                if index not in self._sessions:
                    self._sessions[index] = self._session(index, known)
                session, reads, writes = self._sessions[index]
                known |= zip(writes, session.run(writes, {name: known[name] for name in reads}), strict=True)
        return [known[name] if name in known else numpy_helper.to_array(self._constants[name]) for name in names]

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
    return StagedSession(loaded, opened) if has_custom(loaded) else None


def has_custom(model: onnx.ModelProto) -> bool:
    """Return whether a model contains a custom operator."""
    nodes = chain(model.graph.node, *(function.node for function in model.functions))
    return any(map(_is_custom, nodes))


def node_session(
    model: onnx.ModelProto, tensor: str, known: Collection[str], opened: Callable[[bytes], Any]
) -> tuple[StagedSession, Sequence[str]]:
    """Return a session for the nodes between known tensors and `tensor`, and the known ones that it reads."""
    makers = {name: node for node in model.graph.node for name in node.output if name == tensor or name not in known}
    needed, waiting = dict[str, None](), [tensor]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = None
            waiting += _reads(makers[name]) if name in makers else []
    made = needed.keys() & makers.keys()
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    part.graph.node.extend(node for node in model.graph.node if made.intersection(node.output))
    part.graph.initializer.extend(item for item in model.graph.initializer if item.name in needed)
    part.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return StagedSession(part, opened), [name for name in needed if name in known and name != tensor]


def _is_custom(node: onnx.NodeProto) -> bool:
    return declared(node.domain, node.op_type) is not None or _has_custom(node)


def _has_custom(node: onnx.NodeProto) -> bool:
    """Return whether a branch or loop body of a node contains a custom operator."""
    return any(_is_custom(inner) for graph in inner_graphs(node) for inner in graph.node)


def _reads(node: onnx.NodeProto) -> list[str]:
    return [name for name in (*node.input, *captured_names(node)) if name]


def _checked(node: onnx.NodeProto) -> CustomOperator | None:
    """Return the custom operator of a node, or None."""
    operator = declared(node.domain, node.op_type)
    if operator is not None and operator.reference is None:
        raise OptionError(
            f"the operator {operator.title} has no reference, so its results cannot be compared",
            place=operator.origin or None,
            next_step="Declare it with reference=..., a function in NumPy",
        )
    return operator


class _Control:
    """A node with branches or a loop whose graphs contain custom operators."""

    def __init__(self, node: onnx.NodeProto, model: onnx.ModelProto, opened: Callable[[bytes], Any]) -> None:
        if node.op_type not in ("If", "Loop", "Scan"):
            raise OptionError(f"a custom operator inside {node.op_type} has no reference", place=f"node '{node.name}'")
        self._node, self._outer = node, [*dict.fromkeys(captured_names(node))]
        self._attrs = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        self._sessions = {}
        for name, graph in self._attrs.items():
            if isinstance(graph, onnx.GraphProto):
                inner = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
                inner.graph.input.extend(onnx.ValueInfoProto(name=item) for item in self._outer)
                self._sessions[name] = StagedSession(inner, opened)
        self.title = max((session.title for session in self._sessions.values()), key=len)

    def __call__(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""
        arrays = [known.get(name) for name in self._node.input]
        if self._node.op_type == "If":
            results = self._run("then_branch" if np.all(arrays[0]) else "else_branch", known, [])
        else:
            results = self._iterated(known, arrays)
        return {name: result for name, result in zip(self._node.output, results, strict=False) if name}

    def _run(self, name: str, known: Mapping[str, Any], arrays: Sequence[Any]) -> list[Any]:
        inputs, outputs = (
            [item.name for item in group] for group in (self._attrs[name].input, self._attrs[name].output)
        )
        outer = {item: known[item] for item in self._outer}
        return self._sessions[name].run(outputs, outer | dict(zip(inputs, arrays, strict=True)))

    def _iterated(self, known: Mapping[str, Any], arrays: Sequence[Any]) -> list[Any]:
        """Return the results of a loop, or of a scan, which has no condition and reads a part of some inputs."""
        is_loop, first = self._node.op_type == "Loop", len(arrays) - self._attrs.get("num_scan_inputs", 0)
        columns, rows = self._moved(arrays[first:], "input"), list[list[Any]]()
        limit, go, *state = arrays if is_loop else (len(columns[0]), None, *arrays[:first])
        while (go is None or np.all(go)) and (limit is None or len(rows) < np.max(limit)):
            begin = [np.array(len(rows)), np.array(True)] if is_loop else []
            found = self._run("body", known, [*begin, *state, *(column[len(rows)] for column in columns)])
            go, *found = found if is_loop else (None, *found)
            state, row = found[: len(state)], found[len(state) :]
            rows.append(row)
        kinds = [item.type.tensor_type for item in self._attrs["body"].output[is_loop + len(state) :]]
        dtypes = (helper.tensor_dtype_to_np_dtype(kind.elem_type) for kind in kinds)
        empty = [
            np.zeros((0, *(dim.dim_value for dim in kind.shape.dim)), dtype)
            for kind, dtype in zip(kinds, dtypes, strict=True)
        ]
        stacked = list(map(np.stack, zip(*rows, strict=True))) if rows else empty
        return [*state, *self._moved(stacked, "output")]

    def _moved(self, arrays: Sequence[Any], of: str) -> list[Any]:
        """Return scanned inputs with the scanned axis first, or outputs with it where it belongs."""
        axes, directions = (
            self._attrs.get(f"scan_{of}_{name}") or [0] * len(arrays) for name in ("axes", "directions")
        )
        ends = [(axis, 0) if of == "input" else (0, axis) for axis in axes]
        moved = [np.moveaxis(array, *pair) for array, pair in zip(arrays, ends, strict=True)]
        return [
            np.flip(item, pair[1]) if back else item for item, pair, back in zip(moved, ends, directions, strict=True)
        ]


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
