"""Random graphs on edge values, compared bit for bit with ONNX Runtime; their kernels under the sanitizers.

The graphs contain only correctly rounded operators, so no error can grow and every bit must agree.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from fuzz.python_readers import Failure
from mlfc.support import dtypes
from mlfc.tir import interpreter
from mlfc.tir.program import KernelCall
from tests.edge_cases import edges
from tests.native.sanitized import Job, run_sanitized

Array = npt.NDArray[Any]

NAME = "random graphs"
_BATCH = 12
_FLOAT_UNARY = ("Abs", "Neg", "Relu", "Ceil", "Floor", "Round", "Sqrt", "Sign", "Reciprocal", "Identity")
_INTEGER_UNARY = ("Abs", "Neg", "Sign", "Identity")
_BINARY = ("Add", "Sub", "Mul", "Min", "Max")
_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass
class Graph:
    """A growing graph: every tensor so far with its numpy dtype."""

    rng: np.random.Generator
    inputs: dict[str, Array] = field(default_factory=dict)
    known: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def pick(self, options: Any) -> Any:
        """Return one of some options."""
        return options[int(self.rng.integers(len(options)))]

    def like(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return a tensor of a type: one of the graph's, a constant or a new input."""
        fitting = [name for name, kind in self.known.items() if kind == (shape, dtype)]
        if fitting and self.rng.random() < 0.7:
            return str(self.pick(fitting))
        name, values = f"x{len(self.known)}", edges(dtype)
        array = values[self.rng.integers(len(values), size=shape)]
        if self.rng.random() < 0.3:
            self.constants.append(numpy_helper.from_array(array, name))
        else:
            self.inputs[name] = array
        self.known[name] = (shape, dtype)
        return name

    def add(self, operator: str, inputs: list[str], shape: tuple[int, ...], dtype: str, **attrs: Any) -> None:
        """Add a node."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attrs))
        self.known[name] = (shape, dtype)

    def model(self) -> tuple[bytes, list[str]]:
        """Return the model, and the names of its outputs: the tensors that no node reads."""
        read = {name for node in self.nodes for name in node.input}
        outputs = [node.output[0] for node in self.nodes if node.output[0] not in read]
        infos = {
            name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
            for name, (shape, kind) in self.known.items()
        }
        graph = helper.make_graph(
            self.nodes, "random", [infos[name] for name in self.inputs], [infos[name] for name in outputs],
            self.constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 8
        return model.SerializeToString(), outputs


def _unary(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    operators = _FLOAT_UNARY if dtype.startswith("float") else _INTEGER_UNARY
    graph.add("Not" if dtype == "bool" else graph.pick(operators), [name], shape, dtype)


def _binary(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    if dtype == "bool":
        graph.add(graph.pick(("And", "Or", "Xor")), [name, graph.like(shape, dtype)], shape, dtype)
        return
    operator = graph.pick((*_BINARY, "Div") if dtype.startswith("float") else _BINARY)
    graph.add(operator, [name, graph.like(shape, dtype)], shape, dtype)


def _compare(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    if dtype != "bool":
        graph.add(graph.pick(_COMPARISONS), [name, graph.like(shape, dtype)], shape, "bool")


def _where(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    if dtype != "bool":
        graph.add("Where", [graph.like(shape, "bool"), name, graph.like(shape, dtype)], shape, dtype)


def _cast(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    to = graph.pick(_DTYPES)
    if dtype.startswith("float") and not to.startswith("float"):
        return  # for ONNX Runtime, values out of range depend on the processor
    graph.add("Cast", [name], shape, to, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def _extreme(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    if dtype != "bool":
        axes = f"x{len(graph.known)}"
        axis = int(graph.rng.integers(len(shape)))
        graph.constants.append(numpy_helper.from_array(np.asarray([axis]), axes))
        graph.known[axes] = ((1,), "int64")
        reduced = (*shape[:axis], 1, *shape[axis + 1 :])
        graph.add(graph.pick(("ReduceMax", "ReduceMin")), [name, axes], reduced, dtype, keepdims=1)


def _transpose(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    order = [int(axis) for axis in graph.rng.permutation(len(shape))]
    graph.add("Transpose", [name], tuple(shape[axis] for axis in order), dtype, perm=order)


def _concat(graph: Graph, name: str) -> None:
    shape, dtype = graph.known[name]
    if shape[0] < 8:
        graph.add("Concat", [name, graph.like(shape, dtype)], (2 * shape[0], *shape[1:]), dtype, axis=0)


_STEPS: tuple[Callable[[Graph, str], None], ...] = (
    _unary, _binary, _binary, _compare, _where, _cast, _extreme, _transpose, _concat,
)  # fmt: skip


def random_graph(seed: int) -> Graph:
    """Return the graph of a seed."""
    graph = Graph(np.random.default_rng(seed))
    shape = tuple(int(size) for size in graph.rng.integers(1, 7, size=int(graph.rng.integers(1, 4))))
    graph.known["x0"] = (shape, graph.pick(_DTYPES))
    values = edges(graph.known["x0"][1])
    graph.inputs["x0"] = values[graph.rng.integers(len(values), size=shape)]
    while len(graph.nodes) < 8:
        graph.pick(_STEPS)(graph, graph.pick(list(graph.known)[-3:]))
    return graph


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Return which elements are equal; NaN equals NaN."""
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return np.asarray((a == b) | both_nan)


def difference(graph: Graph) -> tuple[str, list[KernelCall]]:
    """Return how mlfc's results differ from ONNX Runtime's, if they do, and the kernels printed in C."""
    data, names = graph.model()
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(names, graph.inputs)
    module, params = mlfc.import_model(data)
    found = mlfc.build(module, target="llvm", params=params).runtime.run(graph.inputs)
    calls = mlfc.build(module, target="c -mcpu=cortex-m4", params=params).program.calls
    with np.errstate(all="ignore"):
        defined = ReferenceEvaluator(onnx.load_from_string(data)).run(names, graph.inputs)
    for name, *references in zip(names, expected, defined, strict=True):
        result = found[name]
        # with NaN, ONNX Runtime returns an extreme or NaN, depending on the axis
        if not np.all(_same(result, references[0]) | _same(result, references[1])):
            return f"{name} is {result.ravel()[:9]}, for ONNX Runtime {np.ravel(references[0])[:9]}", list(calls)
    return "", list(calls)


def _job(label: str, call: KernelCall, rng: np.random.Generator) -> Job:
    def filled(shape: tuple[int, ...], dtype: str) -> Array:
        values = edges(dtype)
        return values[rng.integers(len(values), size=shape)]

    constants = [np.asarray(value.data).reshape(buffer.shape) for value, buffer in
                 zip(call.constants, call.kernel.constants, strict=True)]  # fmt: skip
    runs = [[*(filled(buffer.shape, buffer.dtype) for buffer in call.kernel.inputs), *constants] for _ in range(3)]
    return Job(label, call.kernel, runs)


def _undefined(jobs: list[Job]) -> Iterator[str]:
    """Yield faults in the kernels' C, found by the sanitizers or by comparison with the kernels' meaning in NumPy."""
    with tempfile.TemporaryDirectory() as folder:
        results, said = run_sanitized(jobs, Path(folder), ["clang"])
    if said:
        yield said[:500]
    for job, outputs in zip(jobs, results, strict=True):
        count = len(job.prim.inputs)
        for arrays, output in zip(job.runs, outputs, strict=False):
            wanted = interpreter.run(job.prim, arrays[:count], arrays[count:])
            if not np.array_equal(output, wanted, equal_nan=dtypes.is_float(job.prim.output.dtype)):
                yield f"{job.label}: the C of {job.prim.name} computes something else than it means"
                break


def fuzz(seconds: float, seed: int, *, sanitized: bool, batch: int = _BATCH) -> list[Failure]:
    """Compare graphs until the time is over; return the failing models.

    Parameters
    ----------
    seconds : float
    seed : int
        Of the first graph; later graphs count up.
    sanitized : bool
        Whether to run the kernels' C under clang's sanitizers.
    batch : int
        Graphs whose kernels are compiled together.
    """
    end, failures = time.monotonic() + seconds, []
    while True:
        jobs: list[Job] = []
        for number in range(seed, seed + batch):
            graph = random_graph(number)
            cause, calls = difference(graph)
            if cause:
                failures.append(Failure(NAME, graph.model()[0], f"graph {number}: {cause}"))
            jobs += [_job(f"graph {number}", call, graph.rng) for call in calls if not call.is_copy]
        if sanitized:
            failures += [Failure(NAME, cause.encode(), cause) for cause in _undefined(jobs)]
        seed += batch
        if time.monotonic() >= end:
            return failures
