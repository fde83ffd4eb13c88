"""The graph executor's JSON of a program, in the format that TVM's executors, its C runtime and Netron read."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlfc.memory import Plan, Storage
from mlfc.support.c_names import bounded
from mlfc.support.platforms import TYPE_CODES
from mlfc.tir.program import COPY, Program, Value

NOP = "__nop"
"""The function of a node that reinterprets its input as another dtype."""

# the C runtime stores names of nodes and functions in 120 bytes, those of parameters in 80
MAX_NODE_NAME = 119
_HASH = 17
_ONE_LINE = 10
_REFERENCES = ("inputs", "heads")
_STATES = "mlfc_states"  # the attribute that lists the nodes of states; other executors ignore it


@dataclass(frozen=True)
class GraphConfig:
    """The executor's configuration of a module."""

    text: str  # the JSON, as TVM writes it
    # the constants by node name: ``p0``, ``p1``, ..., preceded by the initial values of states
    params: Mapping[str, Value]
    bindings: Mapping[int, str]  # the nodes of inputs and constants by their storage ids


@dataclass(frozen=True)
class _ConfigEntry:
    shape: tuple[int, ...]
    dtype: str
    storage: int
    device_type: int


class _GraphBuilder:
    def __init__(self, program: Program, function_names: Mapping[str, str], plan: Plan) -> None:
        self._program = program
        self._function_names = function_names
        self._plan = plan
        self._storage_ids = {storage: number for number, storage in enumerate(plan.storages)}
        self.nodes: list[dict[str, Any]] = []
        self.entries: list[_ConfigEntry] = []
        self.params: dict[str, Value] = {}
        self.states: list[int] = []  # the indices of their nodes
        self.rows = [0]
        self.heads: list[int] = []
        self._ids: dict[Value, int] = {}
        self._reinterpreted: dict[tuple[Value, str], int] = {}
        self._names: set[str] = set()
        # a view that the model returns: its node has the shape that the caller expects
        self._shapes = {value.root: value.shape for value in program.outputs if value.dtype == value.root.dtype}

    def run(self) -> None:
        titles = input_names([value.name for value in self._program.inputs])
        for value, title in zip(self._program.inputs, titles, strict=True):
            self._add(value, {"op": "null", "name": self._unique(title), "inputs": []})
        titles = input_names([state.before.name for state in self._program.states])
        for state, title in zip(self._program.states, titles, strict=True):
            name = self._unique(title)
            self.params[name] = replace(state.before, data=state.begin)
            self.states.append(len(self.nodes))
            self._add(state.before, {"op": "null", "name": name, "inputs": []})
        for call in self._program.calls:
            sources = (*call.inputs, *call.constants)
            for value in sources:
                if value.root.kind == "constant" and value.root not in self._ids:
                    name = self._unique(f"p{len(self.params)}")
                    self.params[name] = value.root
                    self._add(value.root, {"op": "null", "name": name, "inputs": []})
            function = COPY if call.is_copy else self._function_names[call.kernel.name]
            inputs = [self._node_of(value) for value in sources]
            scratch = self._plan.scratch.get(call, ())
            self._add(call.output.root, self._operator(function, inputs, 1 + len(scratch)))
            for buffer, storage in zip(call.kernel.scratch, scratch, strict=False):
                self._entry(buffer.shape, buffer.dtype, storage)
            self.rows[-1] = len(self.entries)
        self.heads = [self._node_of(value) for value in self._program.outputs]

    def _operator(self, function: str, inputs: Sequence[int], outputs: int = 1) -> dict[str, Any]:
        attrs = {
            "num_outputs": str(outputs),
            "num_inputs": str(len(inputs)),
            "flatten_data": "0",
            "func_name": function,
        }
        name = self._unique(function)
        return {"op": "tvm_op", "name": name, "attrs": attrs, "inputs": [[node, 0, 0] for node in inputs]}

    def _node_of(self, value: Value) -> int:
        """Return the node of a view's root; of the view itself if its dtype differs from the root's."""
        source = self._ids[value.root]
        if value.dtype == value.root.dtype:
            return source
        key = value.root, value.dtype
        if key not in self._reinterpreted:
            self._reinterpreted[key] = len(self.nodes)
            self.nodes.append(self._operator(NOP, [source]))
            root = self.entries[self.rows[source]]
            self.entries.append(replace(root, shape=value.shape, dtype=value.dtype))
            self.rows.append(len(self.entries))
        return self._reinterpreted[key]

    def _add(self, value: Value, node: dict[str, Any]) -> None:
        self._ids[value] = len(self.nodes)
        self.nodes.append(node)
        self._entry(self._shapes.get(value, value.shape), value.dtype, self._plan.values[value])
        self.rows.append(len(self.entries))

    def _entry(self, shape: tuple[Any, ...], dtype: str, storage: Storage) -> None:
        self.entries.append(_ConfigEntry(shape, dtype, self._storage_ids[storage], TYPE_CODES[storage.device or "cpu"]))

    def _unique(self, name: str) -> str:
        candidate = _unused(name, self._names)
        self._names.add(candidate)
        return candidate

    def document(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            "arg_nodes": [index for index, node in enumerate(self.nodes) if node["op"] == "null"],
            "heads": [[node, 0, 0] for node in self.heads],
            "attrs": {
                "dltype": ["list_str", [entry.dtype for entry in self.entries]],
                "device_index": ["list_int", [entry.device_type for entry in self.entries]],
                "storage_id": ["list_int", [entry.storage for entry in self.entries]],
                "shape": ["list_shape", [list(entry.shape) for entry in self.entries]],
                **({_STATES: ["list_int", self.states]} if self.states else {}),
            },
            "node_row_ptr": self.rows,
        }


def build_graph(program: Program, function_names: Mapping[str, str], plan: Plan) -> GraphConfig:
    """Return the graph of a program.

    Inputs come first, in the model's order, then states. States are arguments that nodes overwrite in place, so they
    persist between runs in any executor, and loading the parameters resets them. A constant's node precedes its first
    use, as in TVM. A view does not have a node, as operators read its root and have the shape built in, unless its
    dtype differs from the root's: operators and callers check the dtype. A kernel on a device has its scratch as
    additional outputs. `function_names` maps kernels to symbols of at most `MAX_NODE_NAME` characters.
    """
    builder = _GraphBuilder(program, function_names, plan)
    builder.run()
    bindings = {
        builder.entries[row].storage: str(node["name"])
        for node, row in zip(builder.nodes, builder.rows, strict=False)
        if node["op"] == "null"
    }
    return GraphConfig(_format(builder.document(), "", ""), builder.params, bindings)


def _format(value: Any, indent: str, key: str) -> str:
    """Return JSON in TVM's layout: lists of at most ten numbers on one line, except for node entries."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)):
        return str(value)
    inner = f"{indent}  "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_format(item, inner, name)}" for name, item in value.items()]
        return f"{{\n{inner}" + f", \n{inner}".join(items) + f"\n{indent}}}" if items else "{}"
    items = [_format(item, inner, key) for item in value]
    numbers = all(isinstance(item, int) for item in value)
    if not items or (numbers and len(items) <= _ONE_LINE and key not in _REFERENCES):
        return f"[{', '.join(items)}]"
    return f"[\n{inner}" + f", \n{inner}".join(items) + f"\n{indent}]"


def input_names(names: Sequence[str]) -> list[str]:
    """Return a graph's input names: without control characters, of bounded length, all distinct."""
    taken: dict[str, None] = {}
    for name in names:
        # TVM's simple JSON readers support only the escapes of quotation marks and backslashes
        plain = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "_", name) or "unnamed"
        if len(plain.encode()) > MAX_NODE_NAME:  # the limit is in bytes: use single-byte characters
            plain = bounded(re.sub(r"[^ -~]", "_", plain))
        taken[_unused(plain, taken)] = None
    return list(taken)


def _unused(name: str, taken: Container[str]) -> str:
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{bounded(name, MAX_NODE_NAME - _HASH - len(str(count)) - 1)}_{count}"
    return candidate
