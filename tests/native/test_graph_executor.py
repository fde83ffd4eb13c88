"""The graph executor in Python, on C operators simple enough for numpy to compute the expected results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlfc import debug_executor
from mlfc.errors import ArchiveError, InputError, RunError
from mlfc.library.host import HostLibrary
from mlfc.runtime import Device, GraphExecutor, GraphModule, Module, TensorInfo, cpu
from mlfc.support.params import load_params, save_params

pytestmark = pytest.mark.usefixtures("quick_builds")

SOURCE = rb"""
#include <tvm/runtime/c_backend_api.h>
#include <tvm/runtime/c_runtime_api.h>
#define OPERATOR(name) \
  TVM_DLL int name(TVMValue *args, int *codes, int count, TVMValue *ret, int *ret_code, void *handle)
#define TENSOR(i) ((const DLTensor *)args[i].v_handle)
#define DATA(i) ((float *)TENSOR(i)->data)
#define UNUSED (void)args; (void)codes; (void)count; (void)ret; (void)ret_code; (void)handle

static int64_t length(const DLTensor *tensor) {
  int64_t product = 1;
  for (int i = 0; i < tensor->ndim; ++i) product *= tensor->shape[i];
  return product;
}
OPERATOR(add) {
  UNUSED;
  for (int64_t i = 0; i < length(TENSOR(2)); ++i) DATA(2)[i] = DATA(0)[i] + DATA(1)[i];
  return 0;
}
/* the sum and, by a second output, the largest element; with enough scratch that it must come from the runtime */
OPERATOR(sum_and_max) {
  float *scratch = TVMBackendAllocWorkspace(1, 0, 4096, 2, 32);
  UNUSED;
  if (scratch == NULL) return -1;
  scratch[0] = 0;
  scratch[1] = DATA(0)[0];
  for (int64_t i = 0; i < length(TENSOR(0)); ++i) {
    scratch[0] += DATA(0)[i];
    if (DATA(0)[i] > scratch[1]) scratch[1] = DATA(0)[i];
  }
  DATA(1)[0] = scratch[0];
  DATA(2)[0] = scratch[1];
  return TVMBackendFreeWorkspace(1, 0, scratch);
}
OPERATOR(dimensions) {
  UNUSED;
  DATA(1)[0] = (float)TENSOR(0)->ndim;
  DATA(1)[1] = (float)TENSOR(0)->shape[0];
  return 0;
}
OPERATOR(refuse) {
  UNUSED;
  TVMAPISetLastError("no bread");
  return -1;
}
"""
SHAPE = [2, 3]


class Builder:
    """A writer of graph JSON, node by node; each entry has its own storage unless given one."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {
            "nodes": [],
            "arg_nodes": [],
            "heads": [],
            "attrs": {"dltype": ["list_str", []], "shape": ["list_shape", []], "storage_id": ["list_int", []]},
            "node_row_ptr": [0],
        }

    def _entry(self, shape: list[int], dtype: str, storage: int | None) -> None:
        attrs = self.document["attrs"]
        attrs["dltype"][1].append(dtype)
        attrs["shape"][1].append(shape)
        attrs["storage_id"][1].append(100 + len(attrs["shape"][1]) if storage is None else storage)

    def _node(self, node: dict[str, Any], shapes: list[list[int]], dtype: str, storage: int | None) -> int:
        self.document["nodes"].append(node)
        for shape in shapes:
            self._entry(shape, dtype, storage)
        self.document["node_row_ptr"].append(self.document["node_row_ptr"][-1] + len(shapes))
        return len(self.document["nodes"]) - 1

    def argument(self, name: str, shape: list[int], dtype: str = "float32", storage: int | None = None) -> list[int]:
        index = self._node({"op": "null", "name": name, "inputs": []}, [shape], dtype, storage)
        self.document["arg_nodes"].append(index)
        return [index, 0, 0]

    def call(
        self, function: str, inputs: list[list[int]], *shapes: list[int], storage: int | None = None, flat: str = "0"
    ) -> list[int]:
        counts = {"num_inputs": str(len(inputs)), "num_outputs": str(len(shapes)), "flatten_data": flat}
        name = f"node{len(self.document['nodes'])}"
        node = {"op": "tvm_op", "name": name, "inputs": inputs, "attrs": {"func_name": function, **counts}}
        return [self._node(node, list(shapes), "float32", storage), 0, 0]

    def text(self, *heads: list[int]) -> str:
        self.document["heads"] = list(heads)
        return json.dumps(self.document)


@pytest.fixture(scope="module")
def lib() -> HostLibrary:
    return HostLibrary({"src/operators.c": SOURCE})


def everything() -> str:
    """Return ``t = x + p; u = reshape(t); v = copy(u); outputs: t + v-shaped x, sum and max of v, dims of v``."""
    graph = Builder()
    x, p = graph.argument("x", SHAPE), graph.argument("p", SHAPE)
    t = graph.call("add", [x, p], SHAPE, storage=7)
    u = graph.call("__nop", [t], [6], storage=7)
    v = graph.call("__copy", [u], [6])
    both = graph.call("sum_and_max", [v], [], [1])
    dims = graph.call("dimensions", [t], [2])
    flat = graph.call("dimensions", [t], [2], flat="1")
    return graph.text(v, both, [both[0], 1, 0], dims, flat)


X = np.arange(6, dtype=np.float32).reshape(SHAPE)
P = np.array([[5, -1, 0.5], [2, 2, -8]], np.float32)


def outputs(executor: GraphExecutor) -> list[Any]:
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


def check(executor: GraphExecutor, x: Any, p: Any) -> None:
    copy, total, largest, dims, flat = outputs(executor)
    np.testing.assert_array_equal(copy, (x + p).reshape(6))
    assert (total.shape, float(total)) == ((), float((x + p).sum()))
    np.testing.assert_array_equal(largest, [(x + p).max()])
    np.testing.assert_array_equal([dims, flat], [[2, 2], [1, 6]])


def test_views_copies_scalars_and_several_outputs(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    executor.set_input("x", X)
    executor.set_input(1, P)
    executor.run()
    check(executor, X, P)
    executor.run(x=P, p=P)
    check(executor, P, P)
    executor.run(x=P, p=X)
    check(executor, P, X)
    np.testing.assert_array_equal(executor.get_input("p"), X)
    out = np.empty(6, np.float32)
    assert executor.get_output(0, out) is out
    np.testing.assert_array_equal(out, (P + X).reshape(6))


def test_inputs_are_zeros_until_they_are_set(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    executor.run(p=P)
    check(executor, np.zeros_like(X), P)


def test_facts_are_told_by_name(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    assert (executor.get_num_inputs(), executor.get_num_outputs()) == (2, 5)
    assert [executor.get_input_index(name) for name in ("x", "p", "z")] == [0, 1, -1]
    assert executor.get_input_info()["p"] == TensorInfo("p", (2, 3), "float32")
    assert list(executor.get_output_info()) == ["node4:0", "node5:0", "node5:1", "node6:0", "node7:0"]
    executor.load_params(save_params({"p": P, "of another graph": X}))
    assert list(executor.get_input_info()) == ["x"]
    executor.run(x=X)
    check(executor, X, P)


def test_an_input_in_place_is_read_anew_at_each_run(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    memory = X.copy()
    executor.set_input_zero_copy("x", memory)
    executor.set_input("p", P)
    for value in (1, 9):
        memory[...] = value
        executor.run()
        check(executor, memory, P)
    executor.set_input("x", X)
    executor.run()
    check(executor, X, P)
    assert memory[0, 0] == 9
    with pytest.raises(InputError, match="contiguous and aligned"):
        executor.set_input_zero_copy("x", np.zeros((2, 6), np.float32)[:, ::2])


def test_outputs_are_written_to_memory_of_the_caller(lib: HostLibrary) -> None:
    graph = Builder()
    x, p = graph.argument("x", SHAPE), graph.argument("p", SHAPE)
    total = graph.call("add", [x, p], SHAPE)
    flat = graph.call("__nop", [total], [6], storage=103)
    executor = GraphExecutor(graph.text(flat, graph.call("add", [total, x], SHAPE), x), lib)
    flat_out, total_out = np.zeros(6, np.float32), np.zeros(SHAPE, np.float32)
    executor.set_output_zero_copy(0, flat_out)
    executor.set_output_zero_copy("node4:0", total_out)
    executor.run(x=X, p=P)
    np.testing.assert_array_equal(flat_out, (X + P).reshape(6))
    np.testing.assert_array_equal(total_out, X + P + X)
    np.testing.assert_array_equal(executor.get_output(0), flat_out)
    executor.fork().run(x=P)
    np.testing.assert_array_equal(total_out, X + P + X)
    fixed = X.copy()
    fixed.flags.writeable = False
    for key, value, message in (
        (1, fixed, "expected a writable array"),
        (2, X.copy(), "expected a computed output, got an input"),
        (3, X, "output 3 is out of range"),
        ("node5:0", X, "unknown output 'node5:0'; nearest: 'node4:0'"),
        (1, np.zeros((2, 6), np.float32)[:, ::2], "contiguous and aligned"),
    ):
        with pytest.raises(InputError, match=message):
            executor.set_output_zero_copy(key, value)


def test_nodes_run_one_by_one(lib: HostLibrary, tmp_path: Path) -> None:
    module = debug_executor.create(everything(), lib, cpu(0), dump_root=tmp_path)
    module.set_input(x=X, p=P)
    np.testing.assert_array_equal(module.debug_get_output("node2").numpy(), X + P)
    np.testing.assert_array_equal(module.debug_get_output(3).numpy(), (X + P).reshape(6))
    np.testing.assert_array_equal(module.debug_get_output("p").numpy(), P)
    out = np.empty(6, np.float32)
    assert module.debug_get_output("node4", out) is out
    assert float(module.get_output(1).numpy()) == 0  # later nodes have not run
    module.run()
    check(module.executor, X, P)
    (stored,) = tmp_path.rglob("output_tensors.params")
    outputs = load_params(stored.read_bytes())
    np.testing.assert_array_equal(outputs["node5____topo-index:5____output-num:1"], [(X + P).max()])
    np.testing.assert_array_equal(outputs["x____topo-index:0____output-num:0"], X)
    module.exit()
    assert not stored.parent.exists()
    times = module.run_individual(2, repeat=3)
    assert [any(row) for row in times] == [False, False, True, False, True, True, True, True]
    assert len(module.run_individual_node("node2", repeat=3).results) == len(times[0]) == 3
    assert [item.nodes for item in module.profile(x=X).operators][:2] == [("node2",), ("node4",)]
    with pytest.raises(InputError, match=r"unknown node 'nod2'; nearest: 'node2'"):
        module.debug_get_output("nod2")
    with pytest.raises(InputError, match="node 8 is out of range: the graph has 8"):
        module.run_individual_node(8)


def test_parameters_are_linked_shared_and_forked_without_copies(lib: HostLibrary) -> None:
    fixed = P.copy()
    fixed.flags.writeable = False
    first = GraphExecutor(everything(), HostLibrary({"src/operators.c": SOURCE}, params={"p": fixed}))
    assert list(first.get_input_info()) == ["x"]
    second = GraphExecutor(everything(), lib)
    second.share_params(first, save_params({"p": X}))
    third = first.fork()
    for executor in (first, second, third):
        executor.run(x=X)
    fixed.flags.writeable = True
    fixed[...] = 3
    for executor in (first, second, third):
        check(executor, X, P)
        executor.run()
        check(executor, X, fixed)


def test_forks_have_memory_of_their_own(lib: HostLibrary) -> None:
    first = GraphExecutor(everything(), lib)
    first.load_params(save_params({"p": P}))
    second = first.fork()
    first.run(x=X)
    second.run(x=P)
    check(first, X, P)
    check(second, P, P)


def test_operators_are_timed(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    times = executor.run_individual(number=3, repeat=2)
    assert [len(row) for row in times] == [2] * 5
    assert all(0 < time < 1 for row in times for time in row)
    assert [node.function for node, _ in executor.calls()] == ["add", "__copy", "sum_and_max", *["dimensions"] * 2]


class Python(Module):
    """Operators in Python, as an example of another kind of module."""

    type_key = "python"

    def find_function(self, name: str) -> Any:
        return self.square if name == "square" else None

    @staticmethod
    def square(source: Any, target: Any) -> None:
        target[...] = source * source


def test_functions_of_imported_modules_are_operators_too() -> None:
    library = HostLibrary({"src/operators.c": SOURCE})
    library.import_module(Python())
    graph = Builder()
    x = graph.argument("x", SHAPE)
    executor = GraphExecutor(graph.text(graph.call("add", [graph.call("square", [x], SHAPE), x], SHAPE)), library)
    executor.run(x=X)
    np.testing.assert_array_equal(executor.get_output(0), X * X + X)


def test_faults_are_named(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    for key, message in (("z", "z: the graph has no such input. It has: x, p"), (2, "input 2 is out of range")):
        with pytest.raises(InputError, match=message):
            executor.set_input(key, X)
    with pytest.raises(InputError, match=r"x: an array float64\[2, 3\] does not fit float32\[2, 3\]"):
        executor.set_input("x", X.astype(np.float64))
    with pytest.raises(InputError, match="output 5 is out of range"):
        executor.get_output(5)
    with pytest.raises(InputError, match="out: an array"):
        executor.get_output(0, np.empty(5, np.float32))
    with pytest.raises(ArchiveError, match="parameter file"):
        executor.load_params(b"x" * 40)
    with pytest.raises(RunError, match="on the CPU, not on opencl"):
        GraphExecutor(everything(), lib, Device("opencl", 4))


def test_missing_and_failing_functions_are_named(lib: HostLibrary) -> None:
    graph = Builder()
    x = graph.argument("x", SHAPE)
    missing = graph.text(graph.call("nowhere", [graph.call("lost", [x], SHAPE)], SHAPE))
    with pytest.raises(RunError, match="lacks functions of the graph: lost, nowhere"):
        GraphExecutor(missing, lib)
    graph = Builder()
    failing = GraphExecutor(graph.text(graph.call("refuse", [graph.argument("x", SHAPE)], SHAPE)), lib)
    with pytest.raises(RunError, match="refuse: it failed with status -1: no bread"):
        failing.run()
    assert GraphModule(failing).bind([X])() == -1


def test_memory_that_is_not_there_is_an_error(lib: HostLibrary) -> None:
    graph = Builder()
    huge = graph.argument("x", [1 << 20, 1 << 18])
    for number in range(300):
        graph.argument(f"x{number}", [1 << 20, 1 << 18])
    with pytest.raises(RunError, match="out of memory for a block of 1,099,511,627,776 bytes"):
        GraphExecutor(graph.text(huge), lib)


def test_the_module_has_the_face_of_others(lib: HostLibrary) -> None:
    executor = GraphExecutor(everything(), lib)
    executor.load_params(save_params({"p": P}))
    module = GraphModule(executor, [TensorInfo("the model's x", (2, 3), "float32")])
    assert [info.name for info in module.outputs] == [f"output{index}" for index in range(5)]
    found = module.run({"the model's x": X})
    np.testing.assert_array_equal(found["output0"], (X + P).reshape(6))
    x = X.copy()
    calls = [module.bind([x]), module.bind([P])]
    assert [call() for call in calls] == [0, 0]
    np.testing.assert_array_equal(calls[0].outputs["output0"], (X + P).reshape(6))
    np.testing.assert_array_equal(calls[1].outputs["output0"], (P + P).reshape(6))
    profile = module.profile([X], repeat=2)
    assert [item.function for item in profile.operators][:2] == ["add", "__copy"]
    with pytest.raises(InputError, match=r"the graph has inputs x: .*its description lists inputs x"):
        GraphModule(executor, [TensorInfo("x", (6,), "float32")])
