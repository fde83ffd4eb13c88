"""Factories, a model's code, graph and parameters, from which executors are made; and sets of several models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from mlfc.errors import ArchiveError, OptionError, RunError
from mlfc.runtime.devices.device import Device, cpu, require_device
from mlfc.runtime.executors.aot_executor import AotExecutor
from mlfc.runtime.executors.graph_executor import GraphExecutor
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.vm.vm_module import VmModule
from mlfc.runtime.libraries.factory_body import (
    AOT,
    DEFAULT_KEY,
    GRAPH,
    GRAPH_BEFORE,
    FactoryBody,
    aot_extent,
    decode_factory,
    encode_factory,
    graph_extent,
)
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Function, Module, pick_module
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.runtime.modules.tvm_kinds import METADATA, MetadataModule
from mlfc.support.arrays import Array
from mlfc.support.content import Data, ViewContent, to_bytes
from mlfc.support.former_name import former

if TYPE_CHECKING:
    from mlfc.support.module_info import ModuleInterface

KIND = "mlfc.ModuleSet"


class FactoryModule(Module, HasModel):
    """A loaded model; unpacks as ``(graph_json, lib, params)``, and runs like the result of `mlfc.load`.

    Its functions are the module's name and ``default``: called with a device they return a new executor with the
    parameters set; and TVM's ``get_graph_json``, ``get_graph_params``, ``remove_params`` and ``list_module_names``.

    Parameters
    ----------
    name : str
        Of the module.
    lib : Module, optional
        Its code; a factory that is being loaded imports it later.
    make : callable, optional
        Takes devices, none for the graph's own, and returns a model ready to run; by default as the code describes it.
    graph_json : str
        Empty for a model compiled ahead of time.
    params : mapping of str to ndarray
        What a graph executor loads.
    key : str, optional
        The name of the function that makes executors in TVM's factories; default `name`.
    """

    is_binary_serializable = True
    is_runnable = True

    def __init__(
        self,
        name: str,
        lib: Module | None,
        make: Callable[[Sequence[Device]], Runnable] | None = None,
        *,
        graph_json: str = "",
        params: Mapping[str, Array] | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__()
        self.type_key = GRAPH if graph_json else AOT
        self._name = name
        self.key = key or name
        self.graph_json = graph_json
        self.params = dict(params or {})
        self._make = make or self._made_of_imports
        # what was loaded is stored as it was: others arrange parameters in other ways
        self._body: Data | None = None
        if lib is not None:
            # where TVM's runtime looks for the tables of code compiled ahead of time
            self.import_module(lib if graph_json else MetadataModule(lib))

    @classmethod
    def from_body(cls, data: bytes | memoryview, type_key: str) -> FactoryModule:
        """Return the factory that was stored as `data`, without its code; raise ArchiveError if that is damaged."""
        body = decode_factory(data, type_key)
        factory = cls(body.name, None, graph_json=body.graph_json or "", params=body.params)
        factory.type_key = type_key
        factory._body = data if isinstance(data, bytes) else ViewContent(data)
        return factory

    @property
    def name(self) -> str:
        """The module's name: from the code if the factory was stored under the common name."""
        if self._name == DEFAULT_KEY and self._body is not None:
            described = {name for module in self.walk() if module is not self for name in module.description()}
            return described.pop() if len(described) == 1 else self._name
        return self._name

    def stored(self) -> Data:
        """Return TVM's stored form; parameters are read from their arrays."""
        if self._body is not None:
            return self._body
        return encode_factory(FactoryBody(self.key, self.graph_json or None, self.params))

    def save_to_bytes(self) -> bytes:
        """Return TVM's stored form."""
        return to_bytes(self.stored())

    @property
    def lib(self) -> Module:
        """The code; raise ArchiveError if the factory has none."""
        found = next((module for module in self.walk() if module.type_key not in (self.type_key, METADATA)), None)
        if found is None:
            raise ArchiveError(
                "the factory has no code: it imports no module",
                place=self.name,
                next_step="Give it code with factory.import_module(lib)",
            )
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))

    def find_function(self, name: str) -> Function | None:
        """Return a function of the factory."""
        if name in (DEFAULT_KEY, self.key, self.name):
            return self.create
        return {
            "get_graph_json": lambda: self.graph_json,
            "get_graph_params": lambda: dict(self.params),
            "remove_params": self.without_params,
            "list_module_names": lambda: [self.name],
        }.get(name)

    def without_params(self) -> FactoryModule:
        """Return a factory of the same graph and code without parameters, which its executors must be given."""
        factory = FactoryModule(self.name, None, graph_json=self.graph_json, key=self.key)
        factory.type_key = self.type_key
        for module in self.imported_modules:
            factory.import_module(module)
        return factory

    def create(self, *devices: Device) -> Any:
        """Return a new executor: a `GraphExecutor` or an `AotExecutor`.

        The devices are those that the model was compiled for: the CPU, which may be left out, and one of each other
        kind in the graph. Raises InputError for anything but devices, RunError for others, DeviceError if one is
        missing.
        """
        model = self.model_on(devices)
        return model.executor if isinstance(model, GraphModule) else AotExecutor(model)

    @cached_property
    def model(self) -> Runnable:
        """The model, ready to run; made on first use."""
        return self._make(())

    def model_on(self, devices: Sequence[Device]) -> Runnable:
        """Return a new model that runs on these devices; raise as `create` does."""
        if not self.graph_json:
            for device in map(require_device, devices):
                if device.type_code != cpu().type_code:
                    raise RunError(
                        f"this model runs on the CPU, not on {device}",
                        next_step=f"Use mlfc.cpu(0), or compile it for {device.kind}",
                    )
        return self._make(devices)

    def _made_of_imports(self, devices: Sequence[Device]) -> Runnable:
        """Return the model of the code as the code describes it."""
        if self.graph_json:
            details = self._details()
            if details is not None:
                return GraphModule.described(self.graph_json, self.lib, details, devices=devices, params=self.params)
            executor = GraphExecutor(self.graph_json, self.lib, devices)
            executor.link_params(self.params)
            return GraphModule(executor)
        for module in self.lib.walk():
            found = module.find_model(self.name)
            if found is not None:
                return found
        raise OptionError(
            f"the library does not describe the model '{self.name}'",
            place=f"module '{self.type_key}'",
            next_step="Call the library's functions one by one: factory.lib[name]",
        )

    def _details(self) -> ModuleInterface | None:
        """Return the code's description of the model: its inputs, outputs and operators."""
        found = (module.description().get(self.name) for module in self.lib.walk())
        return next((details for details in found if details is not None), None)


for _kind, _extent in ((GRAPH, graph_extent), (GRAPH_BEFORE, graph_extent), (AOT, aot_extent)):
    register_loader(_kind, _extent)(partial(FactoryModule.from_body, type_key=_kind))


class ModuleSet(Module, HasModel):
    """Several models with different names that share code; its functions, the models' names, make executors."""

    type_key = KIND
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, *factories: FactoryModule | VmModule) -> None:
        super().__init__()
        for factory in factories:
            self.import_module(factory)

    def save_to_bytes(self) -> bytes:
        """Return no bytes."""
        return b""

    @property
    def modules(self) -> dict[str, FactoryModule | VmModule]:
        """The models by name."""
        kinds = (FactoryModule, VmModule)
        return {module.name: module for module in self.imported_modules if isinstance(module, kinds)}

    def pick(self, name: str | None, place: str = KIND) -> FactoryModule | VmModule:
        """Return a model by its name; raise OptionError if there is none, or several and none is named."""
        return self.modules[pick_module(self.modules, name, place)]

    @property
    def model(self) -> Runnable:
        """The model; raise OptionError where there are several."""
        return self.pick(None).model

    def find_function(self, name: str) -> Function | None:
        """Return what makes executors of a model; ``default`` is the only one, and fails if there are several."""
        factory = self.modules.get(name)
        if factory is None and name == DEFAULT_KEY:
            return lambda *devices: self.pick(None).create(*devices)
        return None if factory is None else factory.create


for _kind in (KIND, former(KIND)):
    register_loader(_kind, lambda _: 0)(lambda _: ModuleSet())
