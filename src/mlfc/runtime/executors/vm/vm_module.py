"""Dynamic models as modules.

The stored form of the kind ``mlfc.vm`` is the description of the model. The module imports the library with the native
code, as a factory does; one that is an import itself is run with the code of the tree that it is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

from mlfc.errors import OptionError
from mlfc.runtime.devices.device import Device, require_device
from mlfc.runtime.executors.vm.native import HasSymbols
from mlfc.runtime.executors.vm.profiled import ProfiledVm
from mlfc.runtime.executors.vm.virtual_machine import HoldsExecutable, VirtualMachine
from mlfc.runtime.executors.vm.vm_model import TURN_LIMIT, VmModel
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Function, Module
from mlfc.runtime.modules.runnable import HasModel
from mlfc.support.executable import Executable, decode, encode, run_symbol
from mlfc.support.module_info import OperatorInfo

KIND = "mlfc.vm"
DEFAULT = "default"
_EXECUTABLE = "vm"


class VmModule(HoldsExecutable, HasModel):
    """A dynamic model.

    Its functions ``vm``, ``default`` and that of the model's name take devices and return a `VirtualMachine`.

    Parameters
    ----------
    executable : Executable or bytes
        Or its file.
    lib : Module, optional
        Its native code; a module that is being loaded imports it later.
    """

    type_key = KIND
    format = "vm"
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, executable: Executable | bytes, lib: Module | None = None) -> None:
        super().__init__()
        self._data = encode(executable) if isinstance(executable, Executable) else executable
        self.executable = decode(self._data, place=f"module '{KIND}'")
        if lib is not None:
            self.import_module(lib)

    def _facts(self) -> Mapping[str, object]:
        return {**super()._facts(), "name": self.name}

    @property
    def name(self) -> str:
        """The model's name."""
        return self.executable.name

    def save_to_bytes(self) -> bytes:
        """Return the description of the model."""
        return self._data

    def get_source(self) -> str:
        """Return the description of the model, as JSON."""
        return self._data.decode()

    def find_function(self, name: str) -> Function | None:
        """Return a function of the module."""
        if name in (_EXECUTABLE, DEFAULT, self.name):
            return self.create
        return None

    def create(self, *devices: Device) -> VirtualMachine:
        """Return a new `VirtualMachine` on these devices."""
        return VirtualMachine(self, [require_device(device) for device in devices])

    @cached_property
    def model(self) -> VmModel:
        """The model, ready to run; made on first use."""
        return self.model_with(self)

    def model_with(
        self,
        tree: Module,
        *,
        devices: Sequence[Device] = (),
        memory_limit: int | None = None,
        turn_limit: int | None = TURN_LIMIT,
    ) -> VmModel:
        """Return the model with the native code in a tree of modules; raise OptionError if it is not there."""
        return VmModel(
            self.executable,
            self._code(tree),
            lambda name: _packed(tree, name),
            devices=devices,
            memory_limit=memory_limit,
            turn_limit=turn_limit,
        )

    def profiled(self, operators: Sequence[OperatorInfo] = ()) -> ProfiledVm:
        """Return the model with a clock around its kernels; `operators` as for `ProfiledVm`."""
        return ProfiledVm(self.executable, self._code(self), lambda name: _packed(self, name), operators)

    def _code(self, tree: Module) -> HasSymbols:
        for module in (*self.walk(), *tree.walk()):
            address = getattr(module, "address", None)
            if callable(address) and address(run_symbol(self.name)) is not None:
                return cast("HasSymbols", module)
        raise OptionError(
            f"there is no native code of '{self.name}' in the tree of modules",
            place=f"module '{KIND}'",
            next_step="Give the library that was built of this model: module.import_module(lib)",
        )


def _packed(tree: Module, name: str) -> Function:
    return tree.get_function(name, query_imports=True)


@register_loader(KIND)
def _load(data: bytes | memoryview) -> Module:
    return VmModule(bytes(data))
