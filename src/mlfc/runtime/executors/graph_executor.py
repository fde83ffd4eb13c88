"""The graph executor: runs a graph's operators one after another on memory that is prepared once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mlfc.errors import InputError, OptionError, RunError
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.graph_json import COPY, NOP, Graph, GraphNode, numpy_dtype, parse_graph
from mlfc.runtime.executors.graph_memory import DeviceMemory, GraphMemory, HostMemory, array_shape, graph_devices
from mlfc.runtime.executors.schedule import Call, CallFailed, CallSchedule
from mlfc.runtime.ffi.native_code import NativeFunc
from mlfc.runtime.modules.module import Function, Module
from mlfc.runtime.modules.runnable import CHECK_VALUES
from mlfc.runtime.tensor import c_abi
from mlfc.runtime.tensor.arrays import counts, require_readable
from mlfc.runtime.tensor.ndarray import NDArray, from_dlpack
from mlfc.support import dtypes
from mlfc.support.arrays import Array
from mlfc.support.params import load_params
from mlfc.support.tensor_info import TensorInfo
from mlfc.support.text import Displayed

Key: TypeAlias = "str | int"


class GraphExecutor(Displayed):
    """A model whose operators are functions of a module.

    Parameters
    ----------
    graph_json : str, bytes or Graph
        The graph; text is checked.
    lib : Module
        Has the functions, itself or in its imports. If it has a method ``linked_params()``, a mapping from names to
        arrays, they are set at once.
    devices : Device or sequence of Device, optional
        What the graph runs on, in any order; the CPU may be left out. Default: the first device of each kind that the
        graph names. A session with a device elsewhere has a CPU with a method ``graph_memory(graph, lib)``.

    Raises
    ------
    OptionError
        If the graph is empty: the module was built for the AOT executor.
    ArchiveError
        If the graph breaks its format.
    RunError
        If `lib` lacks a function of the graph, the memory is not there, or the devices are not those of the graph.
    DeviceError
        If a device is not there.

    Notes
    -----
    Inputs are zeros until they are set. One run at a time; for more, `fork`.
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
        self._memory = self._new_memory()
        self._prepare()
        self._params: set[str] = set()
        linked = getattr(lib, "linked_params", None)
        if linked is not None:
            self.link_params(linked())

    def _facts(self) -> Mapping[str, object]:
        return {"devices": self.devices, "operators": len(self._functions), "inputs": list(self.get_input_info())}

    def _new_memory(self) -> GraphMemory:
        elsewhere = getattr(self.device, "graph_memory", None)
        if elsewhere is not None:
            memory: GraphMemory = elsewhere(self.graph, self.lib)
            return memory
        if len(self.devices) == 1:
            return HostMemory(self.graph, self.device)
        return DeviceMemory(self.graph, self.devices)

    def _prepare(self) -> None:
        """Give every operator its arguments."""
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
            call: Call = prepare([self._argument(entry, node) for entry in entries])
            return call

        def call_with_arrays() -> int:
            function(*(self._memory.view(entry) for entry in entries))  # type: ignore[misc]
            return 0

        return call_with_arrays

    def _argument(self, entry: int, node: GraphNode) -> c_abi.DLTensor:
        if not node.flatten:
            return self._tensors[entry]
        if entry not in self._flat:
            item, tensor = self.graph.entries[entry], self._tensors[entry]
            count = item.nbytes // max(1, self._dtypes[entry].itemsize)
            self._flat[entry] = c_abi.dl_tensor(tensor.data or 0, (count,), tensor.dtype, self._memory.device(entry))
        return self._flat[entry]

    def fork(self) -> GraphExecutor:
        """Return an executor of the same graph and functions with memory of its own; parameters in place are shared."""
        other = GraphExecutor(self.graph, self.lib, self.devices)
        other._params = set(self._params)
        for name in self._params:
            other._share(self._arguments[name], self, self._arguments[name])
        return other

    def _index(self, key: Key) -> int:
        """Return the entry of an argument."""
        names = list(self._arguments)
        if isinstance(key, str):
            if key not in self._arguments:
                raise InputError(
                    "the graph has no such input", place=key, next_step=f"It has: {', '.join(names) or 'none'}"
                )
            return self._arguments[key]
        if not counts(key, len(names)):
            raise InputError(f"input {key} is out of range: the graph has {len(names)}")
        return self._arguments[names[key]]

    def _name(self, key: Key) -> str:
        """Return the name of an argument."""
        return key if isinstance(key, str) else list(self._arguments)[key]

    def set_input(self, key: Key | None = None, value: Any = None, /, **params: Any) -> None:
        """Copy values into inputs or parameters.

        Parameters
        ----------
        key, value
            The name or number of one, and its array; may be left out.
        **params
            Further ones by name.

        Raises
        ------
        InputError
            If there is no such input, or the array does not fit it.
        """
        given: list[tuple[str | int, Any]] = [*params.items()]
        if key is not None:
            given.append((key, value))
        for name, array in given:
            entry = self._index(name)
            self._memory.write(entry, self._taken(array, entry, self._name(name)))
            if self._tensors[entry].data != self._memory.address(entry):
                self._update(entry)

    def set_input_zero_copy(self, key: Key, value: Any) -> None:
        """Make an input read the caller's own memory, from now on, instead of a copy.

        Raises
        ------
        InputError
            Unless the array is contiguous, aligned to its elements' size, and fits, and operators run on its device.
        """
        entry = self._index(key)
        array = self._taken(value, entry, self._name(key))
        fault = None
        if not isinstance(array, np.ndarray):
            if array.device != self._memory.device(entry):
                fault = f"operators on {self._memory.device(entry)} cannot read memory of {array.device}"
        elif not self._memory.is_here(entry):
            fault = f"operators on {self._memory.device(entry)} cannot read this machine's memory"
        elif not (array.flags.c_contiguous and array.flags.aligned):
            fault = "the array must be contiguous and aligned to be read in place"
        if fault is not None:
            raise InputError(fault, place=self._name(key), next_step="Use set_input, which copies")
        self._use(entry, array)

    def is_here(self, key: Key) -> bool:
        """Tell whether an input lies in memory of this process."""
        return self._memory.is_here(self._index(key))

    def get_input(self, key: Key, out: Any = None) -> Any:
        """Return a copy of an input, in `out` if that is given."""
        return self._copied(self._index(key), out)

    def get_output(self, index: int, out: Any = None) -> Any:
        """Return a copy of output `index`: a new array, or `out`, which may be an array of this process or a device."""
        if not counts(index, len(self.graph.heads)):
            raise InputError(f"output {index} is out of range: the graph has {len(self.graph.heads)}")
        return self._copied(self.graph.heads[index], out)

    def get_num_inputs(self) -> int:
        """Return how many inputs there are, parameters among them."""
        return len(self._arguments)

    def get_num_outputs(self) -> int:
        """Return how many outputs there are."""
        return len(self.graph.heads)

    def get_input_index(self, name: str) -> int:
        """Return the number of an input, -1 if there is none of this name."""
        names = list(self._arguments)
        return names.index(name) if name in self._arguments else -1

    def get_input_info(self) -> dict[str, TensorInfo]:
        """Return what each input is, without parameters."""
        return {name: self._info(name, entry) for name, entry in self._arguments.items() if name not in self._params}

    def keys_of_states(self, names: Sequence[str]) -> dict[str, str]:
        """Return the graph's names of what it keeps from one run to the next, by the model's own, given in order."""
        kept = [key for key, entry in self._arguments.items() if entry in self.graph.kept]
        if len(kept) != len(names):
            raise InputError(
                f"the graph keeps {len(kept)} tensors between runs; it is described as keeping {len(names)}"
            )
        return dict(zip(names, kept, strict=True))

    def get_output_info(self) -> dict[str, TensorInfo]:
        """Return what each output is, as ``<node>:<number of its output>``."""
        names = {}
        for node in self.graph.nodes:
            for number, entry in enumerate(node.outputs):
                names[entry] = f"{node.name}:{number}"
        return {names[head]: self._info(names[head], head) for head in self.graph.heads}

    def output_infos(self) -> tuple[TensorInfo, ...]:
        """Return what each output is, in order, under the names ``output0``, ``output1``, ..., or ``output``."""
        single = len(self.graph.heads) == 1
        return tuple(
            self._info("output" if single else f"output{index}", head) for index, head in enumerate(self.graph.heads)
        )

    def _info(self, name: str, entry: int) -> TensorInfo:
        item = self.graph.entries[entry]
        return TensorInfo(name, item.shape, item.dtype)

    def load_params(self, data: bytes | memoryview) -> None:
        """Copy the parameters of a parameter file in; unknown names are ignored.

        Raises ArchiveError if the bytes are not a parameter file, InputError if a parameter does not fit the graph.
        """
        for name, array in load_params(data).items():
            if name in self._arguments:
                self.set_input(name, array)
                self._params.add(name)

    def link_params(self, params: Mapping[str, Array]) -> None:
        """Use arrays as read-only parameters in place; those that code cannot read there are copied."""
        for name, array in params.items():
            if name in self._arguments:
                entry = self._arguments[name]
                self._use(entry, require_readable(self._checked(array, entry, name)))
                self._params.add(name)

    def share_params(self, other: GraphExecutor, data: bytes | memoryview) -> None:
        """Use another executor's parameters in place: those whose names are in a parameter file."""
        for name in load_params(data):
            if name in self._arguments and name in other._arguments:
                entry, source = self._arguments[name], other._arguments[name]
                self._require_fit(other._dtypes[source], array_shape(other.graph.entries[source]), entry, name)
                self._share(entry, other, source)
                self._params.add(name)

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, if there are any, and run every operator.

        Raises
        ------
        RunError
            If an operator fails; with its name and text.
        """
        if inputs:
            self.set_input(**inputs)
        try:
            self._schedule.run()
        except CallFailed as failed:
            raise self._failure(failed.node, failed.status) from None
        self._memory.synchronize()

    def try_calls(self) -> int:
        """Run every operator, without waiting for devices; return the status of one that fails, else 0."""
        try:
            self._schedule.run()
        except CallFailed as failed:
            return failed.status
        return 0

    def steps(self) -> Iterator[tuple[GraphNode, dict[str, Array]]]:
        """Run operator after operator, and yield each with copies of its outputs.

        A single output has the name of its node, several have ``<node>:<number>``.

        Raises
        ------
        RunError
            If an operator fails.
        """
        for node, call in self._schedule.calls:
            if status := call():
                raise self._failure(node, status)
            single = len(node.outputs) == 1
            yield (
                node,
                {
                    node.name if single else f"{node.name}:{number}": self._copied(entry, None)
                    for number, entry in enumerate(node.outputs)
                },
            )

    def calls(self) -> Iterator[tuple[GraphNode, Call]]:
        """Yield the operators in order with what runs each and returns its status."""
        yield from self._schedule.calls

    def run_individual(self, number: int = 10, repeat: int = 1) -> list[list[float]]:
        """Return the seconds of each operator, in order, averaged over `number` runs of the graph, `repeat` times."""
        if number < 1 or repeat < 1:
            raise InputError("number and repeat count from 1")
        times = [[0.0] * repeat for _ in self._schedule.calls]
        for iteration in range(repeat):
            for _ in range(number):
                for index, nanoseconds in enumerate(self.timed_run()):
                    times[index][iteration] += nanoseconds * 1e-9 / number
        return times

    def timed_run(self) -> list[int]:
        """Run, and return the nanoseconds of each operator; as `timed_calls`."""
        return [passed for _, passed in self.timed_calls()]

    def timed_calls(self) -> list[tuple[int, int]]:
        """Run, and return for each operator when it was called, by this process's clock, and its nanoseconds.

        Operators here are timed by this process's clock, the call from Python included; those on a device by its own.
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
        """Return a value that fits an entry, as an array of this process or, in graphs with devices, of one of them."""
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            return self._checked(value, entry, name)
        tensor = from_dlpack(value)
        if tensor.device.kind == "cpu" or not isinstance(self._memory, DeviceMemory):
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
        """Tell operators the new address of an argument and its views."""
        self._schedule.moved()
        address = self._memory.address(argument)
        for entry, root in enumerate(self._roots):
            if root == argument:
                self._tensors[entry].data = address
                if entry in self._flat:
                    self._flat[entry].data = address


def _functions(graph: Graph, lib: Module) -> list[Function | None]:
    """Look up each node's function, once; one error names every missing one."""
    found: dict[str, Function] = {}
    missing: list[str] = []
    functions: list[Function | None] = []
    for node in graph.nodes:
        name = node.function
        if name is None or name in (NOP, COPY):
            functions.append(None)
            continue
        if name not in found and name not in missing:
            if lib.implements_function(name, query_imports=True):
                found[name] = lib.get_function(name, query_imports=True)
            else:
                missing.append(name)
        functions.append(found.get(name))
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise RunError(f"the library lacks functions of the graph: {shown}", next_step="Load the library of this graph")
    return functions
