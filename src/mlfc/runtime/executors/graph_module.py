"""A model for the graph executor with the interface of a model compiled ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import InputError, OptionError
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.graph_executor import GraphExecutor
from mlfc.runtime.executors.graph_json import parse_graph
from mlfc.runtime.executors.profile import OperatorTime, Profile, Timeline, operator_times, thread_rows
from mlfc.runtime.executors.states import GraphStates, LoadedModel, ModelState
from mlfc.runtime.modules.module import Module
from mlfc.runtime.modules.runnable import require_success
from mlfc.runtime.tensor.arrays import Expected, Values, run_real
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.support.text import Displayed

if TYPE_CHECKING:
    from mlfc.support.module_info import ModuleInterface, OperatorInfo, StateInfo


class BoundGraph(Displayed):
    """A model bound to fixed buffers, `inputs` and `outputs` by name.

    ``call()`` runs it on the current contents of the input arrays, and returns 0 on success.
    """

    _shows = ("inputs", "outputs")

    def __init__(self, executor: GraphExecutor, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._executor = executor
        self._copied: list[tuple[str, Array]] = []
        for name, array in zip(executor.get_input_info(), inputs.values(), strict=True):
            if executor.is_here(name):
                executor.set_input_zero_copy(name, array)
            else:
                self._copied.append((name, array))
        self._calls = [call for _, call in executor.calls()]
        self._results = list(outputs.values())

    def __call__(self) -> int:
        """Run the model."""
        self._copy_inputs()
        status = self._executor.try_calls()
        if status != 0:
            return status
        for index, out in enumerate(self._results):
            self._executor.get_output(index, out)
        return 0

    def timed(self) -> list[tuple[int, int]]:
        """Run the model; return the result of `GraphExecutor.timed_calls`."""
        self._copy_inputs()
        times = self._executor.timed_calls()
        for index, out in enumerate(self._results):
            self._executor.get_output(index, out)
        return times

    def observed(self, seen: Callable[..., object]) -> None:
        """Run the operators; `seen` is called at the end of each with its index."""
        self._copy_inputs()
        for index, call in enumerate(self._calls):
            require_success(call())
            seen(index)

    def _copy_inputs(self) -> None:
        """Copy inputs to devices that cannot read them in place."""
        for name, array in self._copied:
            self._executor.set_input(name, array)


class GraphModule(LoadedModel):
    """A model that the graph executor runs.

    Parameters
    ----------
    executor : GraphExecutor
        With its parameters set.
    inputs, outputs : sequence of TensorInfo, optional
        In the graph's order; default: as in the graph, which lacks some of their metadata.
    operators : sequence of OperatorInfo, optional
        In order, for profiles.
    states : sequence of StateInfo, optional
        The states of the model, in the graph's order.

    Raises
    ------
    InputError
        If `inputs` or `outputs` contradict the graph.

    Notes
    -----
    `run` takes a lock. Each `bind` has its own memory for intermediates, so bound calls may run concurrently, except
    those of a model with states, which they share.
    """

    @classmethod
    def described(
        cls,
        graph_json: str,
        lib: Module,
        description: ModuleInterface,
        place: str = "graph JSON",
        devices: Device | Sequence[Device] | None = None,
        params: Mapping[str, Array] | None = None,
    ) -> GraphModule:
        """Return a model with the inputs, outputs and operators of mlfc's metadata.

        `devices` are as for `GraphExecutor`, `params` are parameters that are not linked into the code; `place` is the
        graph's file, for messages.
        """
        executor = GraphExecutor(parse_graph(graph_json, place), lib, devices)
        executor.link_params(params or {})
        return cls(executor, description.inputs, description.outputs, description.operators, description.states)

    def __init__(
        self,
        executor: GraphExecutor,
        inputs: Sequence[TensorInfo] | None = None,
        outputs: Sequence[TensorInfo] | None = None,
        operators: Sequence[OperatorInfo] | None = None,
        states: Sequence[StateInfo] = (),
    ) -> None:
        self.executor = executor
        self.device: Device = executor.device
        known = executor.get_input_info()
        self.inputs = tuple(known.values()) if inputs is None else tuple(inputs)
        self.outputs = executor.output_infos() if outputs is None else tuple(outputs)
        # by position, not by name: a node's name may be the model's name sanitized for C and JSON
        if not _fit(self.inputs, known.values()) or not _fit(self.outputs, executor.output_infos()):
            raise InputError(
                f"the graph has inputs {_shown(known.values())} and outputs {_shown(executor.output_infos())}; "
                f"its description lists inputs {_shown(self.inputs)} and outputs {_shown(self.outputs)}"
            )
        self._keys = tuple(known)
        self._taken = Expected.of(self.inputs)
        self._operators = operators
        self._lock = ForkSafeLock()
        if states:
            self._state = ModelState(states, GraphStates(executor, states, self._lock))

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference; as `AotModule.run`."""
        if real:
            return run_real(self, inputs)
        arrays = self._taken.arrays(inputs)
        with self._lock:
            for key, array in zip(self._keys, arrays, strict=True):
                self.executor.set_input(key, array)
            self.executor.run()
            return {info.name: self.executor.get_output(index) for index, info in enumerate(self.outputs)}

    def bind(self, inputs: Values, outputs: Values | None = None) -> BoundGraph:
        """Return a callable that runs on these buffers; as `AotModule.bind`.

        Inputs are read in place, or copied to the device that reads them; outputs are copied out of the executor's
        memory at the end of each call.
        """
        return BoundGraph(self.executor.fork(), *self._buffers(inputs, outputs))

    def profile(self, inputs: Values, repeat: int = 10) -> Profile:
        """Time every operator over `repeat` runs, after one warm-up run.

        The times include the call from Python, about a microsecond each.

        Raises
        ------
        InputError, ProblemsError
            If the inputs do not fit the model.
        RunError
            If an operator fails.
        """
        if repeat < 1:
            raise OptionError(f"{repeat} runs are too few", next_step="Use 1 or more")
        call = self.bind(inputs)
        rows, seconds = [], []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            times = call.timed()
            seconds.append(time.perf_counter() - start)
            rows.append(times)
        starts, passed = np.moveaxis(np.asarray(rows[1:], np.int64).reshape(repeat, -1, 2), 2, 0)
        worked = thread_rows(repeat, passed.shape[1], call.observed)
        operators = self.operator_times(passed, worked)
        timeline = Timeline.of_rows(starts, passed).with_threads([item.threads for item in operators])
        return Profile(operators, tuple(seconds[1:]), call.outputs, timeline)

    def operator_times(self, rows: Any, threads: Any = None) -> tuple[OperatorTime, ...]:
        """Return the median time of each operator; `rows` and `threads` have the nanoseconds of each run."""
        from mlfc.support.module_info import OperatorInfo

        called = [node for node, _ in self.executor.calls()]
        known = self._operators
        if known is None or len(known) != len(called):
            known = [OperatorInfo(node.function or "", (node.name,), 0) for node in called]
        entries = self.executor.graph.entries
        described = []
        for item, node in zip(known, called, strict=True):
            touched = [entries[index] for index in (*node.inputs, *node.outputs)]
            tensors = tuple(f"{entry.dtype}[{','.join(map(str, entry.shape))}]" for entry in touched)
            nbytes = sum(entry.nbytes for entry in touched)
            described.append(OperatorInfo(item.function, item.nodes, item.macs, nbytes, tensors))
        return operator_times(described, rows, threads)


def _fit(described: Iterable[TensorInfo], known: Iterable[TensorInfo]) -> bool:
    return [(info.shape, info.dtype) for info in described] == [(info.shape, info.dtype) for info in known]


def _shown(infos: Iterable[TensorInfo]) -> str:
    return ", ".join(map(str, infos)) or "nothing"
