"""Factories: a model's code, graph and parameters, from which executors are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from mlforge.errors import InputError
from mlforge.runtime.aot_executor import AotExecutor
from mlforge.runtime.arrays import Array
from mlforge.runtime.device import Device, cpu
from mlforge.runtime.graph_module import GraphModule
from mlforge.runtime.module import Function, Module
from mlforge.runtime.runnable import HasModel, Runnable

AOT, GRAPH = "AotExecutorFactory", "GraphExecutorFactory"


class FactoryModule(Module, HasModel):
    """A loaded model; unpacks as ``(graph_json, lib, params)``, and runs like what `mlforge.load` gives.

    Its functions are the module's name and ``default``: called with a device they return a new executor with the
    parameters set; and TVM's ``get_graph_json``, ``get_graph_params`` and ``list_module_names``.

    Parameters
    ----------
    name : str
        Of the module.
    lib : Module
        Its code.
    make : callable
        Returns a model that is ready to run.
    graph_json : str
        Empty for a model compiled ahead of time.
    params : mapping of str to ndarray
        What a graph executor loads.
    """

    def __init__(
        self,
        name: str,
        lib: Module,
        make: Callable[[], Runnable],
        *,
        graph_json: str = "",
        params: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__()
        self.type_key = GRAPH if graph_json else AOT
        self.name = name
        self.graph_json = graph_json
        self.params = dict(params or {})
        self._make = make
        self.import_module(lib)

    @property
    def is_runnable(self) -> bool:
        """Its functions make executors."""
        return True

    @property
    def lib(self) -> Module:
        """The code."""
        return self.imported_modules[0]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))

    def find_function(self, name: str) -> Function | None:
        """Return a function of the factory."""
        if name in ("default", self.name):
            return self.create
        return {
            "get_graph_json": lambda: self.graph_json,
            "get_graph_params": lambda: dict(self.params),
            "list_module_names": lambda: [self.name],
        }.get(name)

    def create(self, *devices: Device) -> Any:
        """Return a new executor: a `GraphExecutor` or an `AotExecutor`.

        Raises
        ------
        InputError
            Unless the devices are the CPU; without any, it is taken.
        """
        for device in devices:
            if device.type_code != cpu().type_code:
                raise InputError(f"this model runs on the CPU, not on {device}", next_step="Use mlforge.runtime.cpu(0)")
        model = self._make()
        return model.executor.fork() if isinstance(model, GraphModule) else AotExecutor(model)

    @cached_property
    def model(self) -> Runnable:
        """The model, ready to run; made when first asked for."""
        return self._make()
