"""The root of a library of several models: each of them is an import."""

from __future__ import annotations

from mlfc.runtime.libraries.factory import FactoryModule
from mlfc.runtime.libraries.factory_body import DEFAULT_KEY
from mlfc.runtime.modules.choice import pick_module
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Function, Module
from mlfc.runtime.modules.runnable import HasModel, Runnable
from mlfc.support.former_name import former

KIND = "mlfc.ModuleSet"


class ModuleSet(Module, HasModel):
    """Several models that share code. Its functions are the models' names, which make executors.

    Parameters
    ----------
    factories : sequence of FactoryModule
        Of different names. Those of a set that is being loaded are imported later.
    """

    type_key = KIND
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, *factories: FactoryModule) -> None:
        super().__init__()
        for factory in factories:
            self.import_module(factory)

    def save_to_bytes(self) -> bytes:
        """Return no bytes."""
        return b""

    @property
    def modules(self) -> dict[str, FactoryModule]:
        """The models by name."""
        return {module.name: module for module in self.imported_modules if isinstance(module, FactoryModule)}

    def pick(self, name: str | None, place: str = KIND) -> FactoryModule:
        """Return a model by its name; raise OptionError if there is none, or several and none is named."""
        return self.modules[pick_module(self.modules, name, place)]

    @property
    def model(self) -> Runnable:
        """The model; raise OptionError where there are several."""
        return self.pick(None).model

    def find_function(self, name: str) -> Function | None:
        """Return what makes executors of a model; ``default`` is the only one, and fails where there are several."""
        factory = self.modules.get(name)
        if factory is None and name == DEFAULT_KEY:
            return lambda *devices: self.pick(None).create(*devices)
        return None if factory is None else factory.create


@register_loader(former(KIND), lambda _: 0)
@register_loader(KIND, lambda _: 0)
def _load(_: bytes | memoryview) -> Module:
    return ModuleSet()
