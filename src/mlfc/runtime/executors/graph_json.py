"""Parser of the graph executor's JSON into checked data structures.

The result of `parse_graph` can be run without further checks: ids are in range, nodes follow their inputs, sizes are
bounded, and no block of memory is overwritten while a tensor in it is still to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np

from mlfc.errors import ArchiveError, UnsupportedError
from mlfc.support import dtypes
from mlfc.support.json_text import parse_json

MAX_TEXT = 8 << 20  # the parsed Python lists take twenty times the bytes of the text
MAX_TENSOR = 1 << 40
MAX_DIMENSIONS = 32
NOP, COPY = "__nop", "__copy"

_KEYS = ("nodes", "arg_nodes", "heads", "attrs", "node_row_ptr")
_NODE_KEYS = {"op", "name", "inputs", "attrs", "attr", "control_deps"}
_OP_ATTRS = ("func_name", "num_inputs", "num_outputs", "flatten_data")
_STATES = "mlfc_states"  # the attribute with the nodes of states, which other executors skip
_TAGS = {
    "dltype": "list_str",
    "shape": "list_shape",
    "storage_id": "list_int",
    "device_index": "list_int",
    "storage_scope": "list_str",
}
_REQUIRED = ("dltype", "shape", "storage_id")
_SKIPPED_TAGS = ("list_int", "size_t")
_DTYPE = re.compile(r"(int|uint|float|bfloat)([0-9]{1,3})(?:x([0-9]{1,4}))?")
_COUNT = re.compile(r"[0-9]{1,6}")
_MAX_ID = (1 << 31) - 1
_MAX_FUNCTION_NAME = 1024
_CPU = 1
_TYPES: dict[type, str] = {list: "a list", str: "a string", dict: "an object"}
T = TypeVar("T")


@dataclass(frozen=True)
class TensorEntry:
    """A tensor, which is an output of a node."""

    shape: tuple[int, ...]
    dtype: str  # as written: ``int8``, ``bool``, ``float32x4``
    nbytes: int
    storage_id: int  # its block of memory
    device_type: int = _CPU  # DLDeviceType of the block
    scope: str = ""  # of the memory; empty for ordinary memory


@dataclass(frozen=True)
class GraphNode:
    """A node of the graph."""

    name: str
    function: str | None  # None for an input or a parameter
    inputs: tuple[int, ...]  # the entries that it reads, in the order of the call
    outputs: range  # the entries that it makes
    flatten: bool  # whether tensors are passed with one dimension
    attrs: Mapping[str, str]  # other attributes of the function: layouts, hash


@dataclass(frozen=True)
class Graph:
    """A checked graph."""

    nodes: tuple[GraphNode, ...]  # in the order of execution
    arg_nodes: tuple[int, ...]  # the nodes of inputs and parameters
    heads: tuple[int, ...]  # the entries of the model's outputs
    entries: tuple[TensorEntry, ...]
    # the entries of arguments that nodes also write: the states of the model
    kept: frozenset[int] = frozenset()

    @property
    def arguments(self) -> dict[str, int]:
        """The entry of each input and parameter by name, in order."""
        return {self.nodes[index].name: self.nodes[index].outputs.start for index in self.arg_nodes}

    @property
    def functions(self) -> list[str]:
        """The functions that nodes call, sorted, each once."""
        return sorted({node.function for node in self.nodes if node.function not in (None, NOP, COPY)})

    @property
    def storage_bytes(self) -> dict[int, int]:
        """The bytes of each block: those of its largest tensor."""
        sizes: dict[int, int] = {}
        for entry in self.entries:
            sizes[entry.storage_id] = max(sizes.get(entry.storage_id, 0), entry.nbytes)
        return sizes

    def places(self) -> list[int]:
        """Return, for each entry, the owner of its memory: as `roots`, but updated states share the state's memory."""
        kept = {self.entries[entry].storage_id: entry for entry in self.kept}
        return [kept.get(self.entries[root].storage_id, root) for root in self.roots()]

    def roots(self) -> list[int]:
        """Return, for each entry, the entry whose bytes it shares through nodes that only reshape."""
        roots = list(range(len(self.entries)))
        for node in self.nodes:
            if node.function == NOP:
                roots[node.outputs.start] = roots[node.inputs[0]]
        return roots


def parse_graph(text: str | bytes, place: str = "graph JSON") -> Graph:
    """Read and check an untrusted graph; raise ArchiveError with its first fault."""
    if len(text) > MAX_TEXT:
        raise ArchiveError(f"a graph of {len(text):,} bytes; up to {MAX_TEXT:,} are read", place=place)
    try:
        data = text if isinstance(text, bytes) else text.encode("utf-8")
    except UnicodeEncodeError:
        raise ArchiveError("its text contains unpaired surrogates", place=place) from None
    return _GraphReader(place).graph(parse_json(data, place))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype of an entry's elements; raise ArchiveError if it has none."""
    try:
        return dtypes.to_numpy(dtype)
    except UnsupportedError:
        raise ArchiveError(f"numpy has no dtype {dtype}", next_step="Use the C runtime for this graph") from None


@dataclass(frozen=True)
class _GraphReader:
    """Parser of one document; every fault names its location."""

    place: str

    def fault(self, where: str, cause: str) -> ArchiveError:
        return ArchiveError(
            cause, place=f"{self.place}: {where}", next_step="The graph is damaged or of another executor"
        )

    def integer(self, value: object, where: str, most: int = _MAX_ID) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.fault(where, f"expected an integer from 0 to {most:,}, found {_shown(value)}")
        return value

    def of(self, kind: type[T], value: object, where: str) -> T:
        if not isinstance(value, kind):
            raise self.fault(where, f"expected {_TYPES[kind]}, found {_shown(value)}")
        return value

    def require(self, value: object, expected: list[int], where: str, what: str) -> None:
        """Raise the fault unless a value is a list of exactly these integers."""
        items = self.of(list, value, where)
        if items != expected or any(type(item) is not int for item in items):
            raise self.fault(where, f"expected {what}")

    def graph(self, document: object) -> Graph:
        keys = self.of(dict, document, "$")
        for key in _KEYS:
            if key not in keys:
                raise self.fault("$", f"the key '{key}' is missing")
        for key in keys:
            # old graphs of NNVM have a 'metadata' entry that no executor reads
            if key not in _KEYS and key != "metadata":
                raise self.fault("$", f"unknown key {_shown(key)} of a graph")
        nodes = self._nodes(self.of(list, keys["nodes"], "nodes"))
        rows = [0, *(node.outputs.stop for node in nodes)]
        self.require(keys["node_row_ptr"], rows, "node_row_ptr", "the cumulative output counts of the nodes")
        count = nodes[-1].outputs.stop if nodes else 0
        entries = self._entries(self.of(dict, keys["attrs"], "attrs"), count)
        for index, node in enumerate(nodes):
            if node.function in (NOP, COPY):
                self._check_same_bytes(node, entries, f"nodes[{index}]")
        arguments = [index for index, node in enumerate(nodes) if node.function is None]
        self.require(keys["arg_nodes"], arguments, "arg_nodes", "the nodes with the op 'null', in order")
        heads = tuple(
            self._reference(head, f"heads[{index}]", nodes)
            for index, head in enumerate(self.of(list, keys["heads"], "heads"))
        )
        kept = self._kept(keys["attrs"].get(_STATES), arguments, nodes)
        graph = Graph(nodes, tuple(arguments), heads, entries, kept)
        for fault in storage_faults(graph):
            raise self.fault("attrs.storage_id", fault)
        return graph

    def _nodes(self, items: list[Any]) -> tuple[GraphNode, ...]:
        nodes: list[GraphNode] = []
        names: set[str] = set()
        for index, item in enumerate(items):
            node = self._node(self.of(dict, item, f"nodes[{index}]"), f"nodes[{index}]", nodes)
            if node.function is None:
                if node.name in names:
                    raise self.fault(f"nodes[{index}]", f"two inputs have the name '{node.name[:80]}'")
                names.add(node.name)
            nodes.append(node)
        return tuple(nodes)

    def _node(self, item: dict[str, Any], where: str, before: list[GraphNode]) -> GraphNode:
        for key in item:
            if key not in _NODE_KEYS:
                raise self.fault(where, f"unknown key {_shown(key)} of a node")
        op = self.of(str, item.get("op"), f"{where}.op")
        name = self.of(str, item.get("name"), f"{where}.name")
        references = self.of(list, item.get("inputs"), f"{where}.inputs")
        inputs = tuple(
            self._reference(reference, f"{where}.inputs[{index}]", before) for index, reference in enumerate(references)
        )
        start = before[-1].outputs.stop if before else 0
        written = self.of(dict, item.get("attrs", item.get("attr", {})), f"{where}.attrs")
        if op == "null":
            if inputs:
                raise self.fault(f"{where}.inputs", "an input of the model cannot have inputs")
            return GraphNode(name, None, (), range(start, start + 1), False, {})
        if op != "tvm_op":
            raise self.fault(f"{where}.op", f"unknown operation {_shown(op)}; expected 'null' or 'tvm_op'")
        attrs = {key: self.of(str, value, f"{where}.attrs.{key[:40]}") for key, value in written.items()}
        for key in _OP_ATTRS:
            if key not in attrs:
                raise self.fault(f"{where}.attrs", f"the key '{key}' is missing")
        if attrs["num_inputs"] != str(len(inputs)):
            raise self.fault(f"{where}.attrs.num_inputs", f"{_shown(attrs['num_inputs'])}, but it has {len(inputs)}")
        outputs = attrs["num_outputs"]
        if not _COUNT.fullmatch(outputs):
            cause = f"expected a decimal number of at most six digits, found {_shown(outputs)}"
            raise self.fault(f"{where}.attrs.num_outputs", cause)
        if attrs["flatten_data"] not in ("0", "1"):
            raise self.fault(f"{where}.attrs.flatten_data", "it must be '0' or '1'")
        if len(attrs["func_name"]) > _MAX_FUNCTION_NAME:
            raise self.fault(f"{where}.attrs.func_name", f"no function has a name like {_shown(attrs['func_name'])}")
        others = {key: value for key, value in attrs.items() if key not in _OP_ATTRS}
        flatten = attrs["flatten_data"] == "1"
        return GraphNode(name, attrs["func_name"], inputs, range(start, start + int(outputs)), flatten, others)

    def _reference(self, value: object, where: str, nodes: Any) -> int:
        items = self.of(list, value, where)
        if len(items) not in (2, 3):
            raise self.fault(where, "expected a list [node, output, version]")
        node, output, *_ = [self.integer(item, where) for item in items]
        if node >= len(nodes):
            raise self.fault(
                where, f"node {node} does not precede it: the graph has a cycle, or the node does not exist"
            )
        if output >= len(nodes[node].outputs):
            raise self.fault(where, f"node {node} has {len(nodes[node].outputs)} outputs, got number {output}")
        return int(nodes[node].outputs[output])

    def _entries(self, attrs: dict[str, Any], count: int) -> tuple[TensorEntry, ...]:
        columns: dict[str, list[Any]] = {}
        for key, pair in attrs.items():
            where = f"attrs.{key[:40]}"
            items = self.of(list, pair, where)
            if len(items) != 2 or not isinstance(items[0], str):
                raise self.fault(where, "expected a list [tag, values]")
            if key not in _TAGS:
                if items[0] not in _SKIPPED_TAGS:
                    raise self.fault(where, f"an unknown attribute with the tag {_shown(items[0])}")
                continue
            if items[0] != _TAGS[key]:
                raise self.fault(where, f"its tag must be '{_TAGS[key]}', not {_shown(items[0])}")
            columns[key] = self.of(list, items[1], where)
            if len(columns[key]) != count:
                raise self.fault(where, f"{len(columns[key])} values for {count} outputs of nodes")
        for key in _REQUIRED:
            if key not in columns:
                raise self.fault("attrs", f"the key '{key}' is missing")
        columns = {"device_index": [_CPU] * count, "storage_scope": [""] * count, **columns}
        return tuple(self._entry(index, columns) for index in range(count))

    def _kept(self, attribute: Any, arguments: list[int], nodes: tuple[GraphNode, ...]) -> frozenset[int]:
        """Return the entries of the states, which an attribute lists by node index."""
        where = f"attrs.{_STATES}"
        numbers = [] if attribute is None else self.of(list, attribute[1], where)
        for number in numbers:
            if self.integer(number, where) not in arguments:
                raise self.fault(where, f"node {number} is not one with the op 'null'")
        return frozenset(nodes[number].outputs.start for number in numbers)

    def _entry(self, index: int, columns: Mapping[str, list[Any]]) -> TensorEntry:
        where = f"attrs.shape[1][{index}]"
        extents = self.of(list, columns["shape"][index], where)
        if len(extents) > MAX_DIMENSIONS:
            raise self.fault(where, f"a tensor of {len(extents)} dimensions; at most {MAX_DIMENSIONS} are allowed")
        shape = tuple(self.integer(extent, where, MAX_TENSOR) for extent in extents)
        dtype = self.of(str, columns["dltype"][index], f"attrs.dltype[1][{index}]")
        element = _element_bytes(dtype)
        if element is None:
            raise self.fault(f"attrs.dltype[1][{index}]", f"unknown dtype {_shown(dtype)}")
        # a dimension of size zero must not hide others that exceed the limit
        if prod(max(extent, 1) for extent in shape) * element > MAX_TENSOR:
            raise self.fault(where, f"the shape {_shown(list(shape))} is not possible")
        storage = self.integer(columns["storage_id"][index], f"attrs.storage_id[1][{index}]")
        device = self.integer(columns["device_index"][index], f"attrs.device_index[1][{index}]")
        scope = self.of(str, columns["storage_scope"][index], f"attrs.storage_scope[1][{index}]")
        return TensorEntry(shape, dtype, prod(shape) * element, storage, device, scope)

    def _check_same_bytes(self, node: GraphNode, entries: tuple[TensorEntry, ...], where: str) -> None:
        if len(node.inputs) != 1 or len(node.outputs) != 1:
            raise self.fault(where, f"'{node.function}' must have one input and one output")
        source, target = entries[node.inputs[0]], entries[node.outputs.start]
        if source.nbytes != target.nbytes:
            raise self.fault(where, f"'{node.function}' of {source.nbytes:,} bytes cannot return {target.nbytes:,}")
        if node.function == NOP and source.storage_id != target.storage_id:
            raise self.fault(where, f"'{NOP}' returns its input, so both must have the same storage id")


def _element_bytes(dtype: str) -> int | None:
    if dtype == "bool":
        return 1
    if dtypes.is_narrow(dtype):
        return dtypes.nbytes(dtype)
    match = _DTYPE.fullmatch(dtype)
    if match is None or int(match[2]) == 0:
        return None
    bits = int(match[2]) * int(match[3] or 1)
    return -(-bits // 8) if bits % 8 == 0 or bits in (1, 4) else None


def storage_faults(graph: Graph) -> Iterator[str]:
    """Yield each place where a block is reused while a tensor in it is still needed, or has two devices."""
    roots = graph.roots()
    last: dict[int, int] = {}
    sharing: dict[int, set[int]] = {}
    device: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for entry in node.inputs:
            last[roots[entry]] = index
        for entry in node.outputs:
            item = graph.entries[entry]
            sharing.setdefault(item.storage_id, set()).add(roots[entry])
            if device.setdefault(item.storage_id, item.device_type) != item.device_type:
                yield f"storage id {item.storage_id} has two device types"
    for name, entry in graph.arguments.items():
        storage = graph.entries[entry].storage_id
        others = [graph.entries[other] for other in sharing[storage]]
        if entry in graph.kept and any(
            (other.nbytes, other.dtype) != (graph.entries[entry].nbytes, graph.entries[entry].dtype) for other in others
        ):
            yield f"storage id {storage}: the state '{name[:80]}' shares it with tensors of another type"
        if len(others) > 1 and entry not in graph.kept:
            yield f"storage id {storage}: another tensor would be written over the input '{name[:80]}'"
    outputs = {roots[head] for head in graph.heads}
    owner: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        for entry in node.outputs:
            storage = graph.entries[entry].storage_id
            before = owner.get(storage)
            if roots[entry] != entry:
                continue
            # a node may overwrite its own inputs: generated code may work in place
            if before is not None and (before in outputs or last.get(before, -1) > index or before in node.outputs):
                yield f"storage id {storage}: entry {entry} would be written over entry {before}, still in use"
            owner[storage] = entry


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if len(value) > 8 else str(value)[:80]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
