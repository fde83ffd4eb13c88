"""Factories (a model's code, graph and parameters), which create executors, and sets of several models.

The stored form of factories is TVM's:

| field | encoding |
|---|---|
| graph JSON | string; only graph factories have it |
| number of parameters | u64 |
| their names | list of strings |
| their values | the binary form of a tensor each |
| key of its executors | string |

Metadata without a field in TVM's form, such as the model's own name and the names and scales of outputs, is in the code
that the factory imports: readers of these bytes would not skip it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import ArchiveError, OptionError, RunError, unknown
from mlfc.runtime.devices.device import Device, cpu, require_device
from mlfc.runtime.executors.aot_module import AotExecutor
from mlfc.runtime.executors.graph_executor import GraphExecutor
from mlfc.runtime.executors.graph_module import GraphModule
from mlfc.runtime.executors.vm.vm_module import VmModule
from mlfc.runtime.modules.module import Function, Module, pick_module, register_loader
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.runtime.modules.tvm_kinds import METADATA, MetadataModule
from mlfc.support.content import Data, Joined, nbytes_of
from mlfc.support.former_name import former
from mlfc.support.params import MAX_TENSORS, decode_ndarray, ndarray_content, ndarray_end
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64
from mlfc.support.tensor_info import Array

if TYPE_CHECKING:
    pass

KIND = "mlfc.ModuleSet"
AOT, GRAPH = "AotExecutorFactory", "GraphExecutorFactory"
GRAPH_BEFORE = "GraphRuntimeFactory"
"""Type key of graph factories before TVM 0.8."""
DEFAULT_KEY = "default"
"""Function that programs call: ``lib["default"](device)``. TVM's factories find executors by a single name, so a
library with one model uses this one, regardless of the model's own name.
"""

_WORD = 8
_MAX_JSON = 64 << 20
_MAX_NAME = 4096
_SHOWN = 60


class FactoryModule(Module, HasModel):
    """A loaded model, which unpacks as ``(graph_json, lib, params)`` and runs like the result of `mlfc.load`.

    Its functions are the module's name and ``default``, which take devices and return a new executor with the
    parameters set, and TVM's ``debug_create``, ``get_graph_json``, ``get_graph_params``, ``remove_params`` and
    ``list_module_names``.

    Parameters
    ----------
    name : str
        The module's name.
    lib : Module, optional
        Its code; during loading it is imported later.
    make : callable, optional
        Takes devices, none for the graph's own, and returns a model ready to run; the default creates it from the
        code's description.
    graph_json : str
        Empty for a model compiled ahead of time.
    params : mapping of str to ndarray
        Parameters that a graph executor loads.
    key : str, optional
        The name of the function that creates executors in TVM's factories; default `name`.
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
        # a loaded factory is stored unchanged: other writers order parameters differently
        self._body: Data | None = None
        if lib is not None:
            # TVM's runtime looks here for the tables of code compiled ahead of time
            self.import_module(lib if graph_json else MetadataModule(lib))

    @classmethod
    def from_body(cls, data: bytes | memoryview, type_key: str) -> FactoryModule:
        """Return the factory that was stored as `data`, without its code; raise ArchiveError if it is damaged."""
        place = f"module of the kind '{type_key}'"
        take = Cursor(data, 0, place)
        text = ""
        if type_key != AOT:
            text = take.text("the graph JSON", _MAX_JSON)
            if not text.strip():
                raise take.fault("the graph JSON is empty", 0)
        params: dict[str, Array] = {}
        for name in _names(take):
            params[name], take.offset = decode_ndarray(data, take.offset, place=f"{place}, tensor '{name[:_SHOWN]}'")
        key = take.text("the name of the module", _MAX_NAME)
        take.end("the name of the module")
        factory = cls(key, None, graph_json=text.rstrip(" "), params=params)
        factory.type_key = type_key
        factory._body = data
        return factory

    @property
    def name(self) -> str:
        """Name of the module, from the code if the factory was stored as ``default``."""
        if self._name == DEFAULT_KEY and self._body is not None:
            described = {name for module in self.walk() if module is not self for name in module.description()}
            return described.pop() if len(described) == 1 else self._name
        return self._name

    def stored(self) -> Data:
        """Return TVM's stored form; parameters are read from their arrays."""
        return self.stored_at(len(GRAPH))[0]

    def stored_at(self, start: int) -> tuple[Data, Mapping[str, int]]:
        """Return the stored form for a blob in which it starts at `start`, and the offset of each parameter's elements.

        The offsets are those in the blob; a factory that is stored unchanged has none.
        """
        if self._body is not None:
            return self._body, {}
        return _encoded(self.key, self.graph_json or None, self.params, start)

    @property
    def lib(self) -> Module:
        """The code; raise ArchiveError if the factory has none."""
        found = next((module for module in self.walk() if module.type_key not in (self.type_key, METADATA)), None)
        if found is None:
            raise ArchiveError(
                "the factory has no code: it imports no module",
                place=self.name,
                next_step="Import its code: factory.import_module(lib)",
            )
        return found

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self.lib, self.params))

    def find_function(self, name: str) -> Function | None:
        """Return a function of the factory."""
        if name in (DEFAULT_KEY, self.key, self.name):
            return self.create
        functions: dict[str, Function] = {
            "debug_create": self.debug_create,
            "get_graph_json": lambda: self.graph_json,
            "get_graph_params": lambda: dict(self.params),
            "remove_params": self.without_params,
            "list_module_names": lambda: [self.name],
        }
        return functions.get(name)

    def without_params(self) -> FactoryModule:
        """Return a factory of the same graph and code without parameters; callers must set them in each executor."""
        factory = FactoryModule(self.name, None, graph_json=self.graph_json, key=self.key)
        factory.type_key = self.type_key
        for module in self.imported_modules:
            factory.import_module(module)
        return factory

    def create(self, *devices: Device) -> Any:
        """Return a new executor: a `GraphExecutor` or an `AotExecutor`.

        The devices are those that the model was compiled for: the CPU, which may be omitted, and one of each other kind
        in the graph. Raises InputError for anything but devices, RunError for other devices, DeviceError if one does
        not exist.
        """
        model = self.model_on(devices)
        return model.executor if isinstance(model, GraphModule) else AotExecutor(model)

    def debug_create(self, module_name: str, *devices: Device) -> GraphExecutor:
        """Return a new executor for `mlfc.debug_executor.GraphModuleDebug`.

        Raises OptionError for another module's name or a model compiled ahead of time, and the errors of `create`.
        """
        names = (DEFAULT_KEY, self.key, self.name)
        if module_name not in names:
            raise OptionError(unknown("module", module_name, dict.fromkeys(names)))
        if not self.graph_json:
            raise OptionError(
                "expected a model with a graph, got one compiled ahead of time",
                place="debug_create",
                next_step="Compile it with executor='graph'",
            )
        executor: GraphExecutor = self.create(*devices)
        return executor

    @cached_property
    def model(self) -> Runnable:
        """The model, ready to run; made on first use."""
        return self._make(())

    def model_on(self, devices: Sequence[Device]) -> Runnable:
        """Return a new model that runs on these devices; raises the errors of `create`."""
        if not self.graph_json:
            for device in map(require_device, devices):
                if device.type_code != cpu().type_code:
                    raise RunError(
                        f"this model runs on the CPU, not on {device}",
                        next_step=f"Use mlfc.cpu(0), or compile it for {device.kind}",
                    )
        return self._make(devices)

    def _made_of_imports(self, devices: Sequence[Device]) -> Runnable:
        """Return the model that the code's description defines."""
        if self.graph_json:
            described = (module.description().get(self.name) for module in self.lib.walk())
            details = next((item for item in described if item is not None), None)
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


def _encoded(
    key: str, graph_json: str | None, params: Mapping[str, Array], start: int
) -> tuple[Joined, Mapping[str, int]]:
    """Return the stored form and the offsets of parameters, as `FactoryModule.stored_at`; arrays are not copied.

    Parameters are sorted by descending element size, and blanks after the JSON align the first one to eight bytes in a
    blob. All of them can therefore be used in place when the library is mapped.
    """
    params = dict(sorted(params.items(), key=lambda item: -item[1].itemsize))
    names = encode_u64(len(params)) + encode_strings(list(params))
    arrays = tuple(ndarray_content(np.asarray(array)) for array in params.values())
    head = b""
    if graph_json is not None:
        text = graph_json.encode()
        head = encode_string(text + b" " * (-(start + len(text) + len(names)) % _WORD))
    ends = accumulate(map(nbytes_of, arrays), initial=start + len(head) + len(names))
    places = {
        name: end - array.nbytes for (name, array), end in zip(params.items(), islice(ends, 1, None), strict=True)
    }
    return Joined((head, names, *arrays, encode_string(key))), places


def _names(take: Cursor) -> list[str]:
    at = take.offset
    count = take.count("parameters", _WORD, MAX_TENSORS)
    names = take.texts("names of parameters", MAX_TENSORS)
    if len(names) != count:
        raise take.fault(f"{count} parameters, but {len(names)} names", at)
    return names


def _extent(data: memoryview, type_key: str) -> int:
    """Return the size in bytes of the stored form that starts here."""
    take = Cursor(data, 0, "its body")
    if type_key != AOT:
        take.string("the graph JSON")
    for name in _names(take):
        take.bytes(ndarray_end(take.peek(), place=f"tensor '{name[:_SHOWN]}'"), "a tensor")
    take.string("the name of the module")
    return take.offset


for _kind in (GRAPH, GRAPH_BEFORE, AOT):
    register_loader(_kind, partial(_extent, type_key=_kind))(partial(FactoryModule.from_body, type_key=_kind))


class ModuleSet(Module, HasModel):
    """Several named models that share code; the function with a model's name creates its executor."""

    type_key = KIND
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, *factories: FactoryModule | VmModule) -> None:
        super().__init__()
        for factory in factories:
            self.import_module(factory)

    def save_to_bytes(self) -> bytes:
        """Return an empty stored form."""
        return b""

    @property
    def modules(self) -> dict[str, FactoryModule | VmModule]:
        """The models by name."""
        kinds = (FactoryModule, VmModule)
        return {module.name: module for module in self.imported_modules if isinstance(module, kinds)}

    def pick(self, name: str | None, place: str = KIND) -> FactoryModule | VmModule:
        """Return a model by its name; raise OptionError if it is unknown, or no name is given for several models."""
        return self.modules[pick_module(self.modules, name, place)]

    @property
    def model(self) -> Runnable:
        """The only model; raises OptionError if there are several."""
        return self.pick(None).model

    def find_function(self, name: str) -> Function | None:
        """Return the function that creates executors of a model; ``default`` fails if there are several models."""
        factory = self.modules.get(name)
        if factory is None and name == DEFAULT_KEY:
            return lambda *devices: self.pick(None).create(*devices)
        return None if factory is None else factory.create


for _kind in (KIND, former(KIND)):
    register_loader(_kind, lambda _: 0)(lambda _: ModuleSet())
