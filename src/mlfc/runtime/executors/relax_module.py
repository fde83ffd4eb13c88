"""Executables of TVM's Relax virtual machine, which an installed TVM runs."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

from mlfc.errors import ArchiveError, RunError
from mlfc.runtime.executors.aot_module import BoundCall
from mlfc.runtime.executors.states import LoadedModel
from mlfc.runtime.ffi.native_code import require_tvm
from mlfc.runtime.modules.module import RELAX, Function, Module, register_loader
from mlfc.runtime.modules.runnable import HasModel
from mlfc.runtime.tensor.arrays import Values, bound, by_name, only, run_real
from mlfc.support.dims import LARGEST
from mlfc.support.dtypes import SCALARS
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array, TensorInfo

# texts that the executable has for errors in arguments; each follows its length
_PARAMETER = re.compile(rb"(.{8})ErrorContext\(fn=main, loc=param\[", re.DOTALL)
_TYPE = re.compile(
    r"param=(?P<name>.*), annotation="
    r'R\.Tensor\((?:\((?P<shape>.*)\), )?dtype="(?P<dtype>\w+)"(?:, ndim=(?P<rank>\d\d?))?\)'
)
_INTEGER = re.compile(r"T\.int64\((-?\d+)\)")
_DIMENSION = re.compile(r"(?:[^,()]|\([^()]*\))+")
_LENGTH = struct.Struct("<Q")
_LONGEST = 4096


class RelaxModule(Module, HasModel):
    """An executable of TVM's Relax virtual machine.

    Its functions, by name, take arrays and return a list of arrays; they require TVM in this environment. `model` is
    ``main``.
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
        return RelaxModel(partial(self._call, "main"), tuple(_parameters(self._data)))

    @cached_property
    def _machine(self) -> Any:
        path = next((path for module in self.imported_modules if (path := getattr(module, "path", ""))), "")
        tvm = require_tvm(path or RELAX)
        try:
            return tvm.relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
        except Exception as error:  # its errors have no other common base class
            cause = f"TVM does not load the library: {error}"
            raise ArchiveError(cause, place=path or RELAX, next_step="Load it from a file") from error

    def _call(self, name: str, *arrays: Any) -> list[Array]:
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

    def __init__(self, call: Callable[..., list[Array]], inputs: tuple[TensorInfo, ...]) -> None:
        self.inputs = inputs
        self._call = call

    @property
    def extents(self) -> dict[str, tuple[int, int]]:
        """The bounds, minimum and maximum, of each dynamic dimension of the inputs."""
        names = (item for info in self.inputs for item in info.shape if isinstance(item, str) and item.isidentifier())
        return dict.fromkeys(names, (0, LARGEST))

    def run(self, *inputs: Any, real: bool = False) -> dict[str, Array]:
        """Run one inference, on a mapping by name or on arrays in order; return fresh arrays by output name."""
        if real:
            return run_real(self, inputs)
        results = self._call(*by_name(only(inputs), self.inputs, "input").values())
        found = {f"output{index}": result for index, result in enumerate(results)}
        self.outputs = tuple(TensorInfo(name, array.shape, array.dtype.name) for name, array in found.items())
        return found

    def bind(self, inputs: Values, outputs: Values | None = None) -> BoundCall:
        """Return a callable that runs on these inputs; results are copied into `outputs`, if given."""

        def run() -> int:
            results = self.run(call.inputs)
            targets = results if outputs is None else bound(outputs, self.outputs, "output")
            for name, result in results.items():
                targets[name][...] = result
            call.outputs.update(targets)
            return 0

        call = BoundCall(run)
        call.inputs, call.outputs = by_name(inputs, self.inputs, "input"), {}
        return call


def _parameters(data: bytes) -> Iterator[TensorInfo]:
    """Yield the parameters of main; raise ArchiveError for one that is not a tensor."""
    for found in _PARAMETER.finditer(data):
        start, (size,) = found.end(1), _LENGTH.unpack(found[1])
        text = data[start : start + min(size, _LONGEST)].decode(errors="replace")
        described = _TYPE.search(text)
        if described is None or described["dtype"] not in SCALARS:
            cause = f"expected tensors as parameters of main, got {text.strip()}"
            raise ArchiveError(cause, place=RELAX, next_step="Call the function: mlfc.load_module(path)['main']")
        known = _DIMENSION.findall(_INTEGER.sub(r"\1", described["shape"] or ""))
        shape = filter(None, map(str.strip, [*known, *["?"] * int(described["rank"] or 0)]))
        extents = tuple(int(item) if item.isdecimal() else item for item in shape)
        yield TensorInfo(described["name"], extents, described["dtype"])


def _arrays(results: Any) -> list[Array]:
    """Return the arrays of results, which may be nested tuples, in order."""
    nested = isinstance(results, tuple)
    return [array for result in results for array in _arrays(result)] if nested else [results.numpy()]


register_loader(RELAX)(RelaxModule)
