"""Random dynamic graphs: compiled once, run for several sizes, compared with ONNX Runtime and code for each size.

The results of a dynamic model must equal, bit for bit, those of the same model compiled for the static sizes. ONNX
Runtime computes each node separately: exactly where the numbers are small integers, otherwise within a tolerance.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import mlfc
from fuzz.python_readers import Failure
from mlfc.errors import InternalError, MlfcError

Array = npt.NDArray[Any]

NAME = "graphs of open extents"
SIZES = 3
"""Number of sets of sizes for which each graph is run."""
_NODES = 7
_OPSET = 18
_EXACT = 1 << 20  # float32 sums of a few products of smaller integers are exact
_LARGEST = 1e6
_TOLERANCE = 1e-4
_ELEMENTS = 20_000

onnxruntime.set_default_logger_severity(4)


class ImpossibleError(Exception):
    """A node that does not fit the tensors chosen for it."""


@dataclass
class Value:
    """A tensor: its arrays, one for each set of sizes."""

    name: str
    arrays: list[Array]
    is_exact: bool

    @property
    def dtype(self) -> str:
        """The dtype of all its arrays."""
        return self.arrays[0].dtype.name

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return self.arrays[0].ndim

    def least(self, axis: int) -> int:
        """Return the smallest size of an axis."""
        return min(array.shape[axis] for array in self.arrays)

    def extent(self, axis: int) -> int:
        """Return the size of an axis that is the same in all sets."""
        found = {array.shape[axis] for array in self.arrays}
        if len(found) > 1:
            raise ImpossibleError
        return found.pop()


@dataclass
class Graph:
    """A growing graph with dynamic dimensions."""

    rng: np.random.Generator
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return bool(self.rng.random() < share)

    def number(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of some options."""
        if not options:
            raise ImpossibleError
        return options[int(self.rng.integers(len(options)))]

    def value(self, fits: Callable[[Value], bool]) -> Value:
        """Return a tensor that fits, more likely one of the last three."""
        fitting = [value for value in self.values.values() if fits(value)]
        return self.pick(fitting[-3:] if self.chance(0.8) else fitting)  # type: ignore[no-any-return]

    def new_input(self, shape: tuple[int | str, ...], dtype: str = "float32") -> Value:
        """Return a new input with small integers in it."""
        name = f"x{len(self.inputs)}"
        arrays = []
        for index in range(SIZES):
            extents = [self.sizes[item][index] if isinstance(item, str) else item for item in shape]
            arrays.append(self.rng.integers(-4, 5, size=extents).astype(dtype))
        self.inputs[name] = shape
        self.values[name] = Value(name, arrays, True)
        return self.values[name]

    def constant(self, array: Any, dtype: str = "int64") -> str:
        """Return the name of a new constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def weights(self, *shape: int) -> str:
        """Return the name of a new constant of small integers."""
        return self.constant(self.rng.integers(-3, 4, size=shape), "float32")

    def add(
        self, operator: str, inputs: Sequence[str], *, outputs: int = 1, exact: bool = True, **attrs: Any
    ) -> list[Value]:
        """Add a node that ONNX Runtime computes for all sizes; return its results."""
        names = [f"t{len(self.values)}_{index}" for index in range(outputs)]
        node = helper.make_node(operator, inputs, names, **attrs)
        read = [name for name in dict.fromkeys([*inputs, *_captured(node)]) if name]
        results = []
        for index in range(SIZES):
            given = {
                name: self.constants[name] if name in self.constants else self.values[name].arrays[index]
                for name in read
            }
            results.append(_computed(node, given))
        if any(array.size > _ELEMENTS for found in results for array in found):
            raise ImpossibleError
        self.nodes.append(node)
        are_exact = exact and all(self.values[name].is_exact for name in read if name in self.values)
        found = []
        for position, name in enumerate(names):
            arrays = [result[position] for result in results]
            value = Value(name, arrays, are_exact and all(map(_is_exact, arrays)))
            if not all(np.isfinite(array).all() and (abs(array) < _LARGEST).all() for array in arrays):
                self.nodes.pop()
                raise ImpossibleError
            found.append(value)
        self.values.update({value.name: value for value in found})
        return found

    def model(self, sizes: int | None = None) -> bytes:
        """Return the model, with dynamic input shapes or those of a set of sizes."""
        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(self.values[name].arrays[0].dtype),
                shape if sizes is None else self.values[name].arrays[sizes].shape,
            )
            for name, shape in self.inputs.items()
        ]
        return _model(self.nodes, inputs, self.outputs(), self.constants)

    def outputs(self) -> list[Value]:
        """Return the tensors that no node reads."""
        read = {name for node in self.nodes for name in (*node.input, *_captured(node))}
        return [value for value in self.values.values() if value.name not in read and value.name not in self.inputs]


def _captured(node: onnx.NodeProto) -> list[str]:
    """Return the outer tensors that the subgraphs of a node read; names inside begin with an underscore."""
    graphs = [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
    return [name for graph in graphs for inner in graph.node for name in inner.input if not name.startswith("_")]


def _is_exact(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.all((array == np.round(array)) & (abs(array) < _EXACT)))


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: Sequence[Value | str],
    constants: dict[str, Array],
) -> bytes:
    infos = [
        onnx.ValueInfoProto(name=item)
        if isinstance(item, str)
        else helper.make_tensor_value_info(
            item.name, helper.np_dtype_to_tensor_dtype(item.arrays[0].dtype), [None] * item.rank
        )
        for item in outputs
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "open", inputs, infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    return bytes(model.SerializeToString())


def _computed(node: onnx.NodeProto, given: dict[str, Array]) -> list[Array]:
    """Return ONNX Runtime's results for one node."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = _model([node], inputs, list(node.output), {})
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(list(node.output), given)]
    except Exception as error:  # its own classes have no common base
        raise ImpossibleError from error


def random_graph(seed: int) -> Graph:
    """Return the graph of a seed."""
    from fuzz.open_operators import STEPS

    graph = Graph(np.random.default_rng(seed))
    for name in ("n", "m", "k")[: graph.number(1, 3)]:
        sizes = graph.rng.permutation(np.arange(2, 12))[:SIZES]
        if graph.chance(0.3):
            sizes[0] = 1
        graph.sizes[name] = tuple(int(size) for size in sizes)
    extents = [*graph.sizes, *graph.sizes, 1, 2, 3, 4]
    shape = tuple(graph.pick(extents) for _ in range(graph.number(1, 4)))
    graph.new_input(shape if graph.chance(0.7) else (graph.pick(extents), graph.number(1, 4), "n", graph.pick(extents)))
    wanted = graph.number(2, _NODES)
    for _ in range(20 * wanted):
        if len(graph.nodes) >= wanted:
            break
        before = len(graph.nodes), list(graph.values), list(graph.inputs), list(graph.constants)
        try:
            graph.pick(STEPS)(graph)
        except ImpossibleError:
            del graph.nodes[before[0] :]
            for table, names in zip((graph.values, graph.inputs, graph.constants), before[1:], strict=True):
                for name in set(table) - set(names):
                    del table[name]  # type: ignore[attr-defined]  # dictionaries all
    return graph


def difference(graph: Graph, refusals: Counter[str], target: str = "llvm") -> str:
    """Return how results differ, or what went wrong; an empty string for rejected graphs, which are counted."""
    try:
        opened = mlfc.compile(graph.model(), target)
    except MlfcError as error:
        if isinstance(error, InternalError):
            raise
        refusals[f"compile: {error.cause}"] += 1
        return ""
    refused = ""
    for index in range(SIZES):
        given = {name: graph.values[name].arrays[index] for name in graph.inputs}
        given = {info.name: given[info.name] for info in opened.inputs}
        try:
            found = opened.run(given)
        except MlfcError as error:
            if isinstance(error, InternalError):
                raise
            refused = f"run: {error.cause}"
            continue
        for value in graph.outputs():
            cause = _apart(found[value.name], value.arrays[index], value)
            if cause:
                return f"sizes {index}: {value.name} differs from ONNX Runtime: {cause}"
        try:
            fixed = mlfc.compile(graph.model(index), target).run(given)
        except MlfcError as error:
            if isinstance(error, InternalError):
                raise
            refused = f"fixed sizes: {error.cause}"
            continue
        for name, array in fixed.items():
            if array.shape != found[name].shape or array.tobytes() != found[name].tobytes():
                return f"sizes {index}: {name} is {found[name].ravel()[:6]}, with static sizes {array.ravel()[:6]}"
    if refused:
        refusals[refused] += 1
    return ""


def _apart(found: Array, expected: Array, value: Value) -> str:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if value.is_exact or expected.dtype.kind != "f":
        is_same = np.array_equal(found, expected)
    else:
        scale = max(1.0, float(abs(expected).max(initial=0)))
        is_same = bool(np.all(abs(found - expected) <= _TOLERANCE * scale))
    return "" if is_same else f"{found.ravel()[:6]}, not {expected.ravel()[:6]}"


def fuzz(seconds: float, seed: int, *, count: int = 1 << 60, refusals: Counter[str] | None = None) -> list[Failure]:
    """Compare graphs until the time is over; return those that fail.

    Parameters
    ----------
    seconds : float
    seed : int
        Of the first graph; later graphs count up.
    count : int
        Maximum number of graphs.
    refusals : Counter, optional
        Receives the reasons for rejected graphs.
    """
    end, failures = time.monotonic() + seconds, []
    refusals = Counter() if refusals is None else refusals
    for number in range(seed, seed + count):
        graph = random_graph(number)
        if graph.nodes:
            try:
                cause = difference(graph, refusals)
            except Exception as error:  # the fuzzer looks for these
                cause = f"{type(error).__name__}: {error}"
            if cause:
                failures.append(Failure(NAME, graph.model(), f"graph {number}: {cause}"))
        if time.monotonic() >= end:
            break
    return failures
