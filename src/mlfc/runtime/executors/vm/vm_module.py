"""Dynamic models as modules, and with the API of TVM's virtual machine.

The stored form of the kind ``mlfc.vm`` is the description of the model. The module imports the library with the native
code, as a factory does; a module that is itself an import uses the code of its tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from mlfc.errors import InputError, OptionError, unknown
from mlfc.runtime.devices.device import Device, require_device
from mlfc.runtime.executors.vm.native import HasSymbols
from mlfc.runtime.executors.vm.vm_model import TURN_LIMIT, ProfiledVm, VmModel
from mlfc.runtime.modules.module import Function, Module, register_loader
from mlfc.runtime.modules.runnable import HasModel
from mlfc.runtime.tensor.ndarray import NDArray
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import Executable, decode, encode, run_symbol
from mlfc.support.module_info import OperatorInfo
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed

KIND = "mlfc.vm"
DEFAULT = "default"
_EXECUTABLE = "vm"
_MAIN = "main"
"""TVM's name of the model's function."""


class VmModule(Module, HasModel):
    """A dynamic model.

    Its functions ``vm``, ``default`` and that of the model's name take devices and return a `VirtualMachine`.

    Parameters
    ----------
    executable : Executable or bytes
        The description of the model, or its stored bytes.
    lib : Module, optional
        Its native code; during loading it is imported later.
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

    def model_with(self, tree: Module, **options: Any) -> VmModel:
        """Return the model with the native code of a tree of modules, and options of `VmModel`.

        Raises OptionError if the code is missing.
        """
        return VmModel(self.executable, self._code(tree), partial(tree.get_function, query_imports=True), **options)

    def profiled(self, operators: Sequence[OperatorInfo] = ()) -> ProfiledVm:
        """Return the model with timed kernels; `operators` as for `ProfiledVm`."""
        return ProfiledVm(self.executable, self._code(self), partial(self.get_function, query_imports=True), operators)

    def _code(self, tree: Module) -> HasSymbols:
        for module in (*self.walk(), *tree.walk()):
            address = getattr(module, "address", None)
            if callable(address) and address(run_symbol(self.name)) is not None:
                return cast("HasSymbols", module)
        raise OptionError(
            f"the native code of '{self.name}' is missing in the module tree",
            place=f"module '{KIND}'",
            next_step="Import the library built from this model: module.import_module(lib)",
        )


class VirtualMachine(Displayed):
    """Runs a dynamic model.

    Parameters
    ----------
    lib : Module
        A module of the kind ``mlfc.vm``, or one with such a module among its imports: a loaded library.
    device : Device or sequence of Device
        Devices that the model was compiled for.
    memory_limit : int, optional
        Limit of peak bytes in a run.
    turn_limit : int, optional
        Limit of iterations of all loops in a run; None for unlimited.
    device_outputs : bool
        Leave results that end on a device there, as `NDArray`, as TVM does; by default all results are host arrays.

    Attributes
    ----------
    module : Module
        The executable.
    model : VmModel
        The same model with `run` on inputs by name.
    """

    def __init__(
        self,
        lib: Module,
        device: Device | Sequence[Device],
        memory_limit: int | None = None,
        turn_limit: int | None = TURN_LIMIT,
        *,
        device_outputs: bool = False,
    ) -> None:
        devices = [device] if isinstance(device, Device) else list(device)
        if not isinstance(lib, Module):
            raise InputError(f"expected a module, got {lib!r}", next_step="Load it first: mlfc.load_module(path)")
        found = [module for module in lib.walk() if isinstance(module, VmModule)]
        if len(found) != 1:
            raise OptionError(
                f"expected one executable of the virtual machine, got {len(found)}",
                place=f"module '{lib.type_key}'",
                next_step="Give one of lib.imported_modules" if found else "Compile the model with executor='vm'",
            )
        (self.module,) = found
        self.model: VmModel = self.module.model_with(
            lib, devices=tuple(map(require_device, devices)), memory_limit=memory_limit, turn_limit=turn_limit
        )
        self._inputs: dict[int, Any] = {}
        self._results: list[Any] | None = None
        self._device_outputs = device_outputs

    def _facts(self) -> Mapping[str, object]:
        return {"functions": [_MAIN]}

    @property
    def executable(self) -> Executable:
        """The description of the model."""
        return self.model.executable

    def set_input(self, func_name: str, *args: Any, **kwargs: Any) -> None:
        """Set all arguments of a function: by position, by the names of the model's inputs, or both.

        A sequence is a list of arrays, an optional an array or a list, or None.
        """
        names = self._names(func_name)
        given: dict[int, Any] = dict(enumerate(args))
        for name, value in kwargs.items():
            number = _index(names, name)
            if number in given:
                raise InputError("the input is given twice", place=name)
            given[number] = value
        if sorted(given) != list(range(len(names))):
            raise InputError(
                f"expected {len(names)} inputs, got {len(given)}", place=func_name, next_step=f"They are: {names}"
            )
        self._inputs = given

    def set_one_input(self, func_name: str, *args: Any, **kwargs: Any) -> None:
        """Set one argument of a function: ``set_one_input("main", 0, x)``, ``("main", "x", x)`` or ``x=x``."""
        names = self._names(func_name)
        pairs = [*kwargs.items()] if kwargs else [args]
        if len(pairs) != 1 or len(pairs[0]) != 2 or (kwargs and args):
            raise InputError("expected one input, by name or number, and its value", place=func_name)
        ((tag, value),) = pairs
        self._inputs[_index(names, tag)] = value

    def invoke(self, func_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a function; return its result, or a list of several.

        Without arguments it runs on the arguments set before.
        """
        self.invoke_stateful(func_name, *args, **kwargs)
        results = self.get_outputs()
        return results[0] if len(results) == 1 else results

    def invoke_stateful(self, func_name: str, *args: Any, **kwargs: Any) -> None:
        """Run a function and keep its results for `get_outputs`."""
        names = self._names(func_name)
        if args or kwargs:
            self.set_input(func_name, *args, **kwargs)
        missing = [name for number, name in enumerate(names) if number not in self._inputs]
        if missing:
            cause = f"expected {len(names)} inputs, got {len(self._inputs)}"
            raise InputError(cause, place=func_name, next_step=f"Set: {missing}")
        call = self.model.call_on_device if self._device_outputs else self.model.call
        self._results = call([self._inputs[number] for number in range(len(names))])

    def invoke_with_outputs(self, func_name: str, input_args: Mapping[str, Any], output_args: Sequence[Array]) -> None:
        """Run a function and copy its results into arrays of their shapes."""
        self.invoke_stateful(func_name, **dict(input_args))
        results = self.get_outputs()
        if len(results) != len(output_args):
            raise InputError(f"expected {len(results)} outputs, got {len(output_args)}", place=func_name)
        for result, target in zip(results, output_args, strict=True):
            if not isinstance(result, (np.ndarray, NDArray)):
                raise InputError("an output that is a sequence cannot be copied", place=func_name)
            dtype = to_numpy(result.dtype) if isinstance(result, NDArray) else result.dtype
            if target.shape != result.shape or target.dtype != dtype:
                raise InputError(f"expected an output of {result.dtype}{list(result.shape)}", place=func_name)
            target[...] = result.numpy() if isinstance(result, NDArray) else result

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; as `invoke` with its function."""
        return self.invoke(_MAIN, *args, **kwargs)

    def get_outputs(self) -> list[Any]:
        """Return the results of the last run, a sequence as a list of arrays; raise InputError if there was none."""
        if self._results is None:
            raise InputError("nothing has been run", next_step="Call invoke_stateful first")
        return list(self._results)

    def get_input_index(self, input_name: str, func_name: str | None = None) -> int:
        """Return the index of an argument by its name, -1 if no argument has this name."""
        names = self._names(_MAIN if func_name is None else func_name)
        return names.index(input_name) if input_name in names else -1

    def _names(self, function: str) -> list[str]:
        """Return the names of a function's arguments; raise OptionError unless it is the model's."""
        if function != _MAIN:
            raise OptionError(unknown("function", str(function), [_MAIN]), place=self.executable.name)
        return [info.name for info in self.model.inputs]


def _index(names: Sequence[str], tag: str | int) -> int:
    if isinstance(tag, str) and tag in names:
        return names.index(tag)
    if isinstance(tag, int) and 0 <= tag < len(names):
        return tag
    raise InputError(unknown("input", str(tag), names))


@register_loader(KIND)
def _load(data: bytes | memoryview) -> Module:
    return VmModule(bytes(data))
