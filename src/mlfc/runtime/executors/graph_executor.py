"""The graph executor: runs a graph's operators in order, on preallocated memory.

Device operators are recorded and submitted as one unit once their launches stay the same from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import InputError, OptionError, RunError, unknown
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.graph_json import COPY, NOP, Graph, GraphNode, numpy_dtype, parse_graph
from mlfc.runtime.executors.graph_memory import GraphMemory, array_shape, graph_devices
from mlfc.runtime.executors.schedule import Call, CallFailed, CallSchedule
from mlfc.runtime.ffi.native_code import NativeFunc
from mlfc.runtime.modules.module import Function, Module
from mlfc.runtime.modules.runnable import CHECK_VALUES
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import counts, require_readable
from mlfc.runtime.tensor.ndarray import NDArray, from_dlpack
from mlfc.support import dtypes
from mlfc.support.params import load_params
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed

Key: TypeAlias = "str | int"


class GraphExecutor(Displayed):
    """A model whose operators are functions of a module.

    Parameters
    ----------
    graph_json : str, bytes or Graph
        The graph; text is checked.
    lib : Module
        Contains the functions, itself or in its imports. If it has a method ``linked_params()``, which returns a
        mapping from names to arrays, these parameters are set at once.
    devices : Device or sequence of Device, optional
        Devices of the graph, in any order; the CPU may be omitted. Default: the first device of each kind that the
        graph names. The CPU of a remote session has a method ``graph_memory(graph, lib)``.

    Raises
    ------
    OptionError
        If the graph is empty: the module was built for the AOT executor.
    ArchiveError
        If the graph breaks its format.
    RunError
        If `lib` lacks a function of the graph, memory is exhausted, or the devices are not those of the graph.
    DeviceError
        If a device does not exist.

    Notes
    -----
    Inputs are zeros until they are set. An executor runs once at a time; use `fork` for concurrent runs.
    """

    def __init__(
        self, graph_json: str | bytes | Graph, lib: Module, devices: Device | Sequence[Device] | None = None
    ) -> None:
        if not graph_json:
            raise OptionError(
                "this module was built for the AOT executor, so it has no graph",
                next_step="Build it with executor='graph', or run it with factory['default'](mlfc.cpu(0))",
            )
        self.graph = graph_json if isinstance(graph_json, Graph) else parse_graph(graph_json)
        self.lib = lib
        self.devices = graph_devices(self.graph, devices)
        self.device = self.devices[0]
        self._arguments = self.graph.arguments
        self._functions = _functions(self.graph, lib)
        self._roots = self.graph.places()
        self._dtypes = [numpy_dtype(entry.dtype) for entry in self.graph.entries]
        # of a remote session
        memory_of = getattr(self.device, "graph_memory", None)
        self._memory: GraphMemory = memory_of(self.graph, lib) if memory_of else GraphMemory(self.graph, self.devices)
        self._prepare()
        self._params: set[str] = set()
        linked = getattr(lib, "linked_params", None)
        if linked is not None:
            self.link_params(linked())

    def _facts(self) -> Mapping[str, object]:
        return {"devices": self.devices, "operators": len(self._functions), "inputs": list(self.get_input_info())}

    def _prepare(self) -> None:
        """Bind every operator to its arguments."""
        self._tensors = [
            c_abi.dl_tensor(
                self._memory.address(index), entry.shape, c_abi.entry_type(entry.dtype), self._memory.device(index)
            )
            for index, entry in enumerate(self.graph.entries)
        ]
        self._flat: dict[int, c_abi.DLTensor] = {}
        pairs = list(zip(self.graph.nodes, self._functions, strict=True))
        calls = [(node, self._call(node, function)) for node, function in pairs if node.function not in (None, NOP)]
        compiled = {node.function for node, function in pairs if isinstance(function, NativeFunc)}
        self._schedule = CallSchedule(self.graph, self._memory, calls, compiled)

    def _call(self, node: GraphNode, function: Function | None) -> Call:
        if node.function == COPY:
            return self._memory.copy(node.inputs[0], node.outputs.start)
        entries = (*node.inputs, *node.outputs)
        prepare = getattr(function, "prepare", None)
        if prepare is not None:
            call: Call = prepare(
                [self._flattened(entry) if node.flatten else self._tensors[entry] for entry in entries]
            )
            return call

        def call_with_arrays() -> int:
            function(*(self._memory.view(entry) for entry in entries))  # type: ignore[misc]
            return 0

        return call_with_arrays

    def _flattened(self, entry: int) -> c_abi.DLTensor:
        if entry not in self._flat:
            item, tensor = self.graph.entries[entry], self._tensors[entry]
            count = item.nbytes // max(1, self._dtypes[entry].itemsize)
            self._flat[entry] = c_abi.dl_tensor(tensor.data or 0, (count,), tensor.dtype, self._memory.device(entry))
        return self._flat[entry]

    def fork(self) -> GraphExecutor:
        """Return an executor of the same graph and functions with its own memory; shares parameters used in place."""
        other = GraphExecutor(self.graph, self.lib, self.devices)
        other._params = set(self._params)
        for name in self._params:
            other._share(self._arguments[name], self, self._arguments[name])
        return other

    def _find(self, key: Key) -> tuple[str, int]:
        """Return the name and the entry of an argument."""
        names = list(self._arguments)
        if isinstance(key, str) and key not in self._arguments:
            known = ", ".join(names) or "none"
            raise InputError("the graph has no such input", place=key, next_step=f"It has: {known}")
        if not isinstance(key, str) and not counts(key, len(names)):
            raise InputError(f"input {key} is out of range: the graph has {len(names)}")
        name = key if isinstance(key, str) else names[key]
        return name, self._arguments[name]

    def set_input(self, key: Key | None = None, value: Any = None, /, **params: Any) -> None:
        """Copy values into inputs or parameters.

        Parameters
        ----------
        key, value
            The name or index of an input, and its array; may be omitted.
        **params
            Further inputs by name.

        Raises
        ------
        InputError
            If the input does not exist, or the array does not match it.
        """
        given: list[tuple[Key, Any]] = [*params.items(), *([] if key is None else [(key, value)])]
        for tag, array in given:
            name, entry = self._find(tag)
            self._memory.write(entry, self._taken(array, entry, name))
            if self._tensors[entry].data != self._memory.address(entry):
                self._update(entry)

    def set_input_zero_copy(self, key: Key, value: Any) -> None:
        """Bind an input to the caller's memory instead of a copy.

        Raises
        ------
        InputError
            Unless the array matches, is contiguous and aligned to its element size, and operators run on its device.
        """
        name, entry = self._find(key)
        self._use(entry, self._in_place(value, entry, name, "Use set_input, which copies"))

    def set_output_zero_copy(self, key: Key, value: Any) -> None:
        """Bind an output to the caller's memory, which later runs write.

        Parameters
        ----------
        key : str or int
            The index of the output, or its name in `get_output_info`.
        value : array
            An array of this process, or a tensor of the output's device.

        Raises
        ------
        InputError
            If the output does not exist or is an input, or the array is read-only or breaks the rules of
            `set_input_zero_copy`.
        """
        names = list(self.get_output_info())
        index = names.index(key) if isinstance(key, str) and key in names else key
        if isinstance(index, str):
            raise InputError(unknown("output", index, names))
        self._require_output(index)
        head, copying = self.graph.heads[index], "Use get_output, which copies"
        if self._roots[head] in self._arguments.values():
            raise InputError("expected a computed output, got an input", place=names[index], next_step=copying)
        array = self._in_place(value, head, names[index], copying)
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise InputError("expected a writable array, got a read-only one", place=names[index])
        if not isinstance(array, np.ndarray) and array.byte_offset and not array.device.api.has_addresses:
            raise InputError("expected whole device memory, got a part of it", place=names[index], next_step=copying)
        self._use(self._roots[head], array)

    def _in_place(self, value: Any, entry: int, name: str, next_step: str) -> Array | NDArray:
        """Return an array checked for use as the memory of an entry."""
        array = self._taken(value, entry, name)
        fault = None
        if not isinstance(array, np.ndarray):
            if array.device != self._memory.device(entry):
                fault = f"operators on {self._memory.device(entry)} cannot read memory of {array.device}"
        elif not self._memory.is_here(entry):
            fault = f"operators on {self._memory.device(entry)} cannot read this machine's memory"
        elif not (array.flags.c_contiguous and array.flags.aligned):
            fault = "the array must be contiguous and aligned to be used in place"
        if fault is not None:
            raise InputError(fault, place=name, next_step=next_step)
        return array

    def is_here(self, key: Key) -> bool:
        """Return whether an input is in memory of this process."""
        return self._memory.is_here(self._find(key)[1])

    def get_input(self, key: Key, out: Any = None) -> Any:
        """Return a copy of an input, in `out` if that is given."""
        return self._copied(self._find(key)[1], out)

    def get_output(self, index: int, out: Any = None) -> Any:
        """Return a copy of output `index`: a new array, or `out`, an array of this process or of a device."""
        self._require_output(index)
        return self._copied(self.graph.heads[index], out)

    def _require_output(self, index: int) -> None:
        if not counts(index, len(self.graph.heads)):
            raise InputError(f"output {index} is out of range: the graph has {len(self.graph.heads)}")

    def get_num_inputs(self) -> int:
        """Return the number of inputs, including parameters."""
        return len(self._arguments)

    def get_num_outputs(self) -> int:
        """Return the number of outputs."""
        return len(self.graph.heads)

    def get_input_index(self, name: str) -> int:
        """Return the index of an input, -1 if no input has this name."""
        return list(self._arguments).index(name) if name in self._arguments else -1

    def get_input_info(self) -> dict[str, TensorInfo]:
        """Return the `TensorInfo` of each input by name, without parameters."""
        return {name: self._info(name, entry) for name, entry in self._arguments.items() if name not in self._params}

    def keys_of_states(self, names: Sequence[str]) -> dict[str, str]:
        """Return the graph's names of the states by the model's `names`, which are in the graph's order."""
        kept = [key for key, entry in self._arguments.items() if entry in self.graph.kept]
        if len(kept) != len(names):
            raise InputError(f"the graph has {len(kept)} states; its description lists {len(names)}")
        return dict(zip(names, kept, strict=True))

    def get_output_info(self) -> dict[str, TensorInfo]:
        """Return the `TensorInfo` of each output, named ``<node>:<output index>``."""
        nodes = self.graph.nodes
        names = {entry: f"{node.name}:{number}" for node in nodes for number, entry in enumerate(node.outputs)}
        return {names[head]: self._info(names[head], head) for head in self.graph.heads}

    def output_infos(self) -> tuple[TensorInfo, ...]:
        """Return the `TensorInfo` of each output in order, named ``output0``, ``output1``, ..., or ``output``."""
        heads = self.graph.heads
        names = ["output"] if len(heads) == 1 else [f"output{index}" for index in range(len(heads))]
        return tuple(map(self._info, names, heads))

    def _info(self, name: str, entry: int) -> TensorInfo:
        item = self.graph.entries[entry]
        return TensorInfo(name, item.shape, item.dtype)

    def load_params(self, data: bytes | memoryview) -> None:
        """Load the parameters of a parameter file; unknown names are ignored.

        Raises ArchiveError if the bytes are not a parameter file, InputError if a parameter does not match the graph.
        """
        for name, array in load_params(data).items():
            if name in self._arguments:
                self.set_input(name, array)
                self._params.add(name)

    def link_params(self, params: Mapping[str, Array]) -> None:
        """Use arrays as read-only parameters in place; arrays that code cannot read there are copied."""
        for name, array in params.items():
            if name in self._arguments:
                entry = self._arguments[name]
                self._use(entry, require_readable(self._checked(array, entry, name)))
                self._params.add(name)

    def share_params(self, other: GraphExecutor, data: bytes | memoryview) -> None:
        """Use another executor's parameters in place, for the names in a parameter file."""
        for name in load_params(data):
            if name in self._arguments and name in other._arguments:
                entry, source = self._arguments[name], other._arguments[name]
                self._require_fit(other._dtypes[source], array_shape(other.graph.entries[source]), entry, name)
                self._share(entry, other, source)
                self._params.add(name)

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, if any are given, and run every operator.

        Raises
        ------
        RunError
            If an operator fails; the message has the operator's name and error.
        """
        if inputs:
            self.set_input(**inputs)
        try:
            self._schedule.run()
        except CallFailed as failed:
            raise self._failure(failed.node, failed.status) from None
        self._memory.synchronize()

    def try_calls(self) -> int:
        """Run every operator, without waiting for devices; return the status of the failed operator, or 0."""
        try:
            self._schedule.run()
        except CallFailed as failed:
            return failed.status
        return 0

    def steps(self) -> Iterator[tuple[GraphNode, dict[str, Array]]]:
        """Run the operators one by one, and yield each with copies of its outputs.

        A single output has the name of its node; multiple outputs are named ``<node>:<index>``.

        Raises
        ------
        RunError
            If an operator fails.
        """
        for node, call in self._schedule.calls:
            self._call_now(node, call)
            names = [
                node.name if len(node.outputs) == 1 else f"{node.name}:{index}" for index in range(len(node.outputs))
            ]
            yield node, {name: self._copied(entry, None) for name, entry in zip(names, node.outputs, strict=True)}

    def debug_get_output(self, node: Key, out: Any = None) -> Any:
        """Run the operators up to a node, by its name or index, and return a copy of its first output.

        Raises
        ------
        InputError
            If the node does not exist, or `out` does not match.
        RunError
            If an operator fails.
        """
        wanted = self._node(node).outputs.start
        for step, call in self._schedule.calls:
            if step.outputs.start > wanted:
                break
            self._call_now(step, call)
        return self._copied(wanted, out)

    def is_call(self, node: Key) -> bool:
        """Return whether a node, by its name or index, computes: inputs and reshapes do not."""
        return self._node(node).function not in (None, NOP)

    def run_node(self, node: Key) -> None:
        """Run one node, by its name or index, on the current contents of its inputs, and wait for devices."""
        wanted = self._node(node)
        for step, call in self._schedule.calls:
            if step is wanted:
                self._call_now(step, call)
        self._memory.synchronize()

    def _call_now(self, node: GraphNode, call: Call) -> None:
        if status := call():
            raise self._failure(node, status)

    def _node(self, key: Key) -> GraphNode:
        nodes = self.graph.nodes
        if isinstance(key, str):
            found = next((node for node in nodes if node.name == key), None)
            if found is None:
                raise InputError(unknown("node", key, [node.name for node in nodes]))
            return found
        if not counts(key, len(nodes)):
            raise InputError(f"node {key} is out of range: the graph has {len(nodes)}")
        return nodes[key]

    def calls(self) -> Iterator[tuple[GraphNode, Call]]:
        """Yield the operators in order, each with the function that runs it and returns its status."""
        yield from self._schedule.calls

    def run_individual(self, number: int = 10, repeat: int = 1) -> list[list[float]]:
        """Return the seconds of each operator, in order, averaged over `number` runs of the graph, `repeat` times."""
        if number < 1 or repeat < 1:
            raise InputError("number and repeat must be at least 1")
        times = [[0.0] * repeat for _ in self._schedule.calls]
        for iteration in range(repeat):
            for _ in range(number):
                for index, nanoseconds in enumerate(self.timed_run()):
                    times[index][iteration] += nanoseconds * 1e-9 / number
        return times

    def timed_run(self) -> list[int]:
        """Run, and return the nanoseconds of each operator; see `timed_calls`."""
        return [passed for _, passed in self.timed_calls()]

    def timed_calls(self) -> list[tuple[int, int]]:
        """Run, and return the start, by this process's clock, and the nanoseconds of each operator.

        Host operators are timed by this process's clock, including the call from Python; device operators by the
        device's.
        """
        try:
            return self._schedule.timed()
        except CallFailed as failed:
            raise self._failure(failed.node, failed.status) from None

    def _failure(self, node: GraphNode, status: int) -> RunError:
        failure = getattr(self._functions[self.graph.nodes.index(node)], "failure", None)
        if failure is not None:
            error: RunError = failure(status)
            error.next_step = error.next_step or CHECK_VALUES
            return error
        return RunError(f"it failed with status {status}", place=node.name, next_step=CHECK_VALUES)

    def _taken(self, value: Any, entry: int, name: str) -> Array | NDArray:
        """Return a value checked against an entry, as a host array or, in graphs with devices, a device array."""
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return self._checked(value, entry, name)
        tensor = from_dlpack(value)
        if tensor.device.kind == "cpu" or len(self.devices) == 1:
            return self._checked(tensor.numpy(), entry, name)
        self._require_fit(dtypes.to_numpy(tensor.dtype), tensor.shape, entry, name)
        return tensor

    def _checked(self, value: Any, entry: int, name: str) -> Array:
        array: Array = np.asarray(value)
        self._require_fit(array.dtype, array.shape, entry, name)
        return array

    def _require_fit(self, dtype: Any, shape: tuple[int, ...], entry: int, name: str) -> None:
        item = self.graph.entries[entry]
        if dtype != self._dtypes[entry] or shape != array_shape(item):
            raise InputError(f"an array {dtype}{list(shape)} does not fit {item.dtype}{list(item.shape)}", place=name)

    def _copied(self, entry: int, out: Any) -> Any:
        if out is None:
            out = np.empty(array_shape(self.graph.entries[entry]), self._dtypes[entry])
        self._memory.read(entry, self._taken(out, entry, "out"))
        return out

    def _use(self, argument: int, array: Array | NDArray) -> None:
        self._memory.use(argument, array)
        self._update(argument)

    def _share(self, argument: int, other: GraphExecutor, source: int) -> None:
        self._memory.share(argument, other._memory, source)
        self._update(argument)

    def _update(self, argument: int) -> None:
        """Update the address of an argument and its views in all operators."""
        self._schedule.moved()
        address = self._memory.address(argument)
        for entry, root in enumerate(self._roots):
            if root == argument:
                self._tensors[entry].data = address
                if entry in self._flat:
                    self._flat[entry].data = address


def _functions(graph: Graph, lib: Module) -> list[Function | None]:
    """Look up each node's function once; raise one error that names all missing functions."""
    names = dict.fromkeys(node.function for node in graph.nodes if node.function and node.function not in (NOP, COPY))
    missing = [name for name in names if not lib.implements_function(name, query_imports=True)]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise RunError(f"the library lacks functions of the graph: {shown}", next_step="Load the library of this graph")
    found: dict[str | None, Function] = {name: lib.get_function(name, query_imports=True) for name in names}
    return [found.get(node.function) for node in graph.nodes]
