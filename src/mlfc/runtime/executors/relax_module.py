"""Executables of TVM's Relax virtual machine, which an installed TVM runs."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

from mlfc.errors import ArchiveError, RunError
from mlfc.runtime.executors.states import LoadedModel
from mlfc.runtime.ffi.native_code import require_tvm
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import RELAX, Function, Module
from mlfc.runtime.modules.runnable import HasModel
from mlfc.runtime.tensor.arrays import Values, bound, by_name, only
from mlfc.support.arrays import Array
from mlfc.support.dims import LARGEST
from mlfc.support.dtypes import SCALARS
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import TensorInfo

_MAIN = "main"
# texts that the executable has for errors in arguments; each follows its length
_PARAMETER = re.compile(rb"ErrorContext\(fn=main, loc=param\[")
_TYPE = re.compile(
    r"param=(?P<name>.*), annotation="
    r'R\.Tensor\((?:\((?P<shape>.*)\), )?dtype="(?P<dtype>\w+)"(?:, ndim=(?P<rank>\d+))?\)'
)
_INTEGER = re.compile(r"T\.int64\((-?\d+)\)")
_DIMENSION = re.compile(r"(?:[^,()]|\([^()]*\))+")
_LENGTH = struct.Struct("<Q")


class RelaxModule(Module, HasModel):
    """An executable of TVM's Relax virtual machine.

    Its functions, by name, take and return arrays; they require TVM in this environment. `model` is ``main``.
    """

    type_key = RELAX
    is_binary_serializable = True
    is_runnable = True

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__()
        self._data = bytes(data)
        self._lock = ForkSafeLock()

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        return self._data

    def find_function(self, name: str) -> Function | None:
        """Return a function of the executable; raise ArchiveError without TVM, or if TVM does not load the file."""
        return partial(self._call, name) if self._machine.module.implements_function(name) else None

    @cached_property
    def model(self) -> RelaxModel:
        """The function ``main``; raises ArchiveError if its parameters are not tensors."""
        return RelaxModel(partial(self._call, _MAIN), tuple(_parameters(self._data)))

    @cached_property
    def _machine(self) -> Any:
        path = next((path for module in self.imported_modules if (path := getattr(module, "path", ""))), "")
        tvm = require_tvm(path or RELAX)
        try:
            return tvm.relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
        except Exception as error:  # its errors have no other common base class
            cause, advice = (
                f"TVM does not load the library: {error}",
                "Load it from a file: mlfc.load_module('model.so')",
            )
            raise ArchiveError(cause, place=path or RELAX, next_step=advice) from error

    def _call(self, name: str, *arrays: Any) -> Any:
        """Return the results of a function: an array, or a tuple of results."""
        machine = self._machine
        try:
            with self._lock:
                machine.set_input(name, *arrays)
                machine.invoke_stateful(name)
                return _arrays(machine.get_outputs(name))
        except Exception as error:  # its errors have no other common base class
            raise RunError(f"TVM failed: {error}", place=name) from error


class RelaxModel(LoadedModel):
    """A function of a Relax executable, which returns fresh arrays with the names ``output0``, ``output1``, ...

    Attributes
    ----------
    inputs : tuple of TensorInfo
        Dynamic dimensions are expressions of symbols, or ``?``.
    outputs : tuple of TensorInfo
        The results of the last run, as executables do not describe them; empty before the first run.
    """

    outputs: tuple[TensorInfo, ...] = ()

    def __init__(self, call: Callable[..., Any], inputs: tuple[TensorInfo, ...]) -> None:
        self.inputs = inputs
        self._call = call

    @property
    def extents(self) -> dict[str, tuple[int, int]]:
        """The bounds, minimum and maximum, of each dynamic dimension of the inputs."""
        names = (item for info in self.inputs for item in info.shape if isinstance(item, str) and item.isidentifier())
        return dict.fromkeys(names, (0, LARGEST))

    def run(self, *inputs: Any) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order; return fresh arrays by output name.

        Raises InputError or ProblemsError for inputs that do not match, RunError if TVM fails.
        """
        results = _flat(self._call(*by_name(only(inputs), self.inputs, "input").values()))
        found = {f"output{index}": result for index, result in enumerate(results)}
        self.outputs = tuple(TensorInfo(name, array.shape, array.dtype.name) for name, array in found.items())
        return found

    def bind(self, inputs: Values, outputs: Values | None = None) -> BoundRelax:
        """Return a callable that runs on these inputs; results are copied into `outputs`, if given."""
        return BoundRelax(self, by_name(inputs, self.inputs, "input"), outputs)


class BoundRelax:
    """A model bound to inputs; calling it runs the model and returns 0."""

    def __init__(self, model: RelaxModel, inputs: dict[str, Array], targets: Values | None) -> None:
        self._model, self._targets = model, targets
        self.inputs = inputs
        self.outputs: dict[str, Array] = {}

    def __call__(self) -> int:
        """Run the model on the current contents of the inputs."""
        self.outputs = results = self._model.run(self.inputs)
        if self._targets is not None:
            self.outputs = bound(self._targets, self._model.outputs, "output")
            for target, result in zip(self.outputs.values(), results.values(), strict=True):
                target[...] = result
        return 0


def _parameters(data: bytes) -> Iterator[TensorInfo]:
    """Yield the parameters of main; raise ArchiveError for one that is not a tensor."""
    for found in _PARAMETER.finditer(data):
        (size,) = _LENGTH.unpack_from(data, found.start() - _LENGTH.size)
        text = data[found.start() : found.start() + size].decode(errors="replace")
        described = _TYPE.search(text)
        if described is None or described["dtype"] not in SCALARS:
            raise ArchiveError(
                f"expected tensors as parameters of main, got {text.strip()}",
                place=RELAX,
                next_step="Call the function: mlfc.load_module(path)['main']",
            )
        shape = ["?"] * int(described["rank"] or 0)
        if described["shape"] is not None:
            shape = [item.strip() for item in _DIMENSION.findall(_INTEGER.sub(r"\1", described["shape"]))]
        extents = tuple(int(item) if item.isdecimal() else item for item in shape if item)
        yield TensorInfo(described["name"], extents, described["dtype"])


def _arrays(results: Any) -> Any:
    return tuple(map(_arrays, results)) if isinstance(results, (tuple, list)) else results.numpy()


def _flat(results: Any) -> Iterator[Array]:
    for result in results if isinstance(results, tuple) else (results,):
        yield from _flat(result) if isinstance(result, tuple) else (result,)


@register_loader(RELAX)
def _load_executable(data: bytes | memoryview) -> Module:
    return RelaxModule(data)
