"""The module ``tvm.contrib.debugger.debug_executor``: a graph executor with the outputs and times of each node.

>>> from mlfc import debug_executor                                      # doctest: +SKIP
>>> module = debug_executor.create(lib.graph_json, lib.lib, mlfc.cpu(0)) # doctest: +SKIP
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlfc.errors import InputError
from mlfc.graph_executor import Executor, GraphModule
from mlfc.runtime.devices.device import Device
from mlfc.runtime.executors.graph_executor import GraphExecutor
from mlfc.runtime.executors.graph_module import GraphModule as GraphModel
from mlfc.runtime.executors.profile import BenchmarkResult, Profile, evaluate
from mlfc.runtime.modules.module import Module
from mlfc.runtime.tensor.ndarray import from_dlpack
from mlfc.support.params import save_params

__all__ = ["GraphModuleDebug", "create"]


def create(
    graph_json_str: str,
    libmod: Module,
    device: Device | Sequence[Device],
    dump_root: str | os.PathLike[str] | None = None,
) -> GraphModuleDebug:
    """Return a debug executor of a graph.

    Parameters
    ----------
    graph_json_str : str
    libmod : Module
        Contains the functions of the graph.
    device : Device or sequence of Device
    dump_root : path, optional
        As for `GraphModuleDebug`.
    """
    return GraphModuleDebug(GraphExecutor(graph_json_str, libmod, device), device, graph_json_str, dump_root)


class GraphModuleDebug(GraphModule):
    """A graph executor with the methods of TVM's ``GraphModuleDebug``. Nodes include inputs and parameters.

    Parameters
    ----------
    module : GraphExecutor
        ``lib["debug_create"]("default", mlfc.cpu(0))``.
    device : Device or sequence of Device, optional
        Accepted for compatibility with TVM; the executor knows its devices.
    graph_json_str : str, optional
        Accepted for compatibility with TVM; the executor has its graph.
    dump_root : path, optional
        Folder in which `run` stores the outputs of all nodes. Default: outputs are not stored.
    """

    def __init__(
        self,
        module: Executor,
        device: Device | Sequence[Device] | None = None,
        graph_json_str: str | None = None,
        dump_root: str | os.PathLike[str] | None = None,
    ) -> None:
        del device, graph_json_str
        super().__init__(module)
        graph = self._graph()
        name = str(graph.device).upper().replace("(", "_").replace(")", "")
        self._dump_path = None if dump_root is None else Path(dump_root, f"_tvmdbg_device_{name}")

    def run(self, **input_dict: Any) -> None:
        """Set inputs, if there are any, and run.

        With `dump_root`, the parameter file ``output_tensors.params`` then contains the outputs of all nodes, with
        TVM's names: ``<node>____topo-index:<index>____output-num:<output>``.
        """
        super().run(**input_dict)
        if self._dump_path is not None:
            self._dump_path.mkdir(parents=True, exist_ok=True)
            (self._dump_path / "output_tensors.params").write_bytes(save_params(self._outputs()))

    def _outputs(self) -> dict[str, Any]:
        graph = self._graph()
        numbers = {node.outputs.start: number for number, node in enumerate(graph.graph.nodes)}
        found = {}
        for node, outputs in graph.steps():
            for number, array in enumerate(outputs.values()):
                found[f"{node.name}____topo-index:{numbers[node.outputs.start]}____output-num:{number}"] = array
        for index in graph.graph.arg_nodes:
            name = graph.graph.nodes[index].name
            found[f"{name}____topo-index:{index}____output-num:0"] = graph.get_input(name)
        return found

    def debug_get_output(self, node: int | str, out: Any = None) -> Any:
        """Run the graph up to a node, and return its first output.

        Parameters
        ----------
        node : int or str
            The index or the name of a node.
        out : array, optional
            Receives the output, and is returned.

        Raises
        ------
        InputError
            If the node does not exist, or `out` does not match.
        """
        found = self._graph().debug_get_output(node, out)
        return from_dlpack(found) if out is None else found

    def execute_node(self, index: int | str) -> None:
        """Run one node on the current contents of its inputs; inputs and reshapes compute nothing."""
        self._graph().run_node(index)

    def run_individual(
        self, number: int, repeat: int = 1, min_repeat_ms: float = 0, **cooling: Any
    ) -> list[list[float]]:
        """Return the seconds of each node, by node and repetition; zeros for inputs and reshapes.

        Parameters are as for `run_individual_node`.
        """
        nodes = range(len(self._graph().graph.nodes))
        return [[*self.run_individual_node(index, number, repeat, min_repeat_ms, **cooling).results] for index in nodes]

    def run_individual_node(
        self,
        index: int | str,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
    ) -> BenchmarkResult:
        """Return the time of one node, on the current contents of its inputs.

        Parameters
        ----------
        index : int or str
            The index or the name of a node.
        number, repeat, min_repeat_ms, cooldown_interval_ms, repeats_to_cooldown
            As for `mlfc.runtime.executors.profile.evaluate`.
        limit_zero_time_iterations : int
            Accepted for compatibility with TVM; host clocks have no zero times.
        """
        del limit_zero_time_iterations
        if number < 1 or repeat < 1:
            raise InputError("number and repeat must be at least 1")
        graph = self._graph()
        if not graph.is_call(index):
            return BenchmarkResult((0.0,) * repeat)
        return evaluate(
            lambda: graph.run_node(index),
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            cooldown_interval_ms=cooldown_interval_ms,
            repeats_to_cooldown=repeats_to_cooldown,
        )

    def profile(self, collectors: Any = None, **input_dict: Any) -> Profile:
        """Set inputs, if there are any, and return the time of each operator over 10 runs.

        `collectors` is accepted for compatibility with TVM and must be empty.
        """
        if collectors:
            raise InputError("expected no collectors, got some", next_step="Profile hardware counters with perf")
        self.set_input(**input_dict)
        graph = self._graph()
        return GraphModel(graph).profile({name: graph.get_input(name) for name in graph.get_input_info()})

    def exit(self) -> None:
        """Delete the folder that `run` wrote in `dump_root`."""
        if self._dump_path is not None:
            shutil.rmtree(self._dump_path, ignore_errors=True)
