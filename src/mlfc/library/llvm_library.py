"""Objects of a module that LLVM compiled, ready to run on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlfc.codegen import Unit, generate
from mlfc.codegen.llvm.code import generate_llvm, native_unit
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import CompiledObject, compile_object
from mlfc.codegen.unit import NOTHING_SHARED
from mlfc.errors import OptionError, ToolchainError
from mlfc.library.build import fitting_code
from mlfc.library.host import HostLibrary
from mlfc.library.jit import LinkedObjects
from mlfc.library.toolchain import NATIVE, compile_objects
from mlfc.runtime.ffi.native_code import PackedFunc
from mlfc.runtime.libraries.library_context import fill_context, take_error
from mlfc.runtime.modules.device_module import DeviceModule
from mlfc.runtime.modules.module import Function
from mlfc.support.content import Data
from mlfc.support.temporary import TemporaryFolder
from mlfc.target.features import level_here, levels_of_host

_RECORD = "operator_record.ll"
_SOURCES: Mapping[str, Callable[[CompiledObject], str]] = {
    "ll": lambda code: code.text,
    "asm": lambda code: code.assembly,
}


def llvm_library(unit: Unit, files: Mapping[str, Data], **options: Any) -> LlvmLibrary:
    """Return the code of a unit as a module; options are those of `HostLibrary`."""
    here = native_unit(unit)
    if here is None:
        return LlvmLibrary(files, **options)
    return LlvmLibrary(files, native=lambda: generate(here).files, **options)


def traced_code(unit: Unit) -> LinkedObjects:
    """Return the code of a unit in this process with the operator timing that `ProfiledModule` needs.

    Raises ToolchainError if the unit is for another machine, or code cannot read a clock here.
    """
    if not hasattr(time, "CLOCK_MONOTONIC"):
        raise ToolchainError("compiled code has no clock to read on this system", next_step="Use the target 'c'")
    chosen = unit.at_level(_level_here()) if unit.levels else native_unit(unit) or unit
    text = files("mlfc.library").joinpath(_RECORD).read_text(encoding="utf-8")
    machine = machine_of(chosen.target, chosen.only_level)
    record = compile_object(text.replace("CLOCK_MONOTONIC", str(int(time.CLOCK_MONOTONIC))), machine)
    code = fitting_code(generate_llvm(chosen, NOTHING_SHARED, traced=True).files)
    return LinkedObjects({**code, "lib/operator_record.o": record})


def _level_here() -> str | None:
    """Return the level for whose processors alone the code in this process is; None where there are none."""
    levels = levels_of_host()
    return None if levels is None else level_here(levels)[0].name


class LlvmLibrary(HostLibrary):
    """A module as LLVM's objects, linked into this process when a function is first used; as `HostLibrary`."""

    type_key = "llvm"
    format = "o"

    def get_source(self, fmt: str = "ll") -> str:
        """Return the code as text: ``ll``, LLVM's language before optimization, or ``asm``, the assembly after it."""
        if fmt not in _SOURCES:
            raise OptionError(f"unknown source '{fmt}'", next_step=f"Use {' or '.join(_SOURCES)}")
        objects = (data for _, data in sorted(self.files.items()) if isinstance(data, CompiledObject))
        return "\n".join(map(_SOURCES[fmt], objects))

    @cached_property
    def linked(self) -> LinkedObjects:
        """The code in this process; raise ToolchainError if it is for another machine, or cannot be linked."""
        with self._told_what_it_needs():
            files = self.files_at(_level_here()) if self.levels else self.files_here()
            linked = LinkedObjects({**fitting_code(files), **self._external_objects()})
        if any(isinstance(module, DeviceModule) for module in self.imported_modules):
            fill_context(linked.address, self, linked)  # code that launches kernels looks for them
        return linked

    def _external_objects(self) -> dict[str, Data]:
        """Return the code of external generators as objects; their C needs a compiler."""
        files = self._external_files()
        if not files:
            return {}
        with TemporaryFolder() as folder:
            built = compile_objects(files, Path(folder), (NATIVE,))
            return {f"external/{path.name}": path.read_bytes() for path in built}

    def executable(self) -> LinkedObjects:
        """Return the code in this process."""
        return self.linked

    def address(self, symbol: str) -> int | None:
        """Return where a symbol of the code is in this process, None if it has none of that name."""
        return self.linked.address(symbol)

    def find_function(self, name: str) -> Function | None:
        """Return a packed function."""
        address = self.linked.address(name)
        return None if address is None else PackedFunc(address, name, last_error=take_error, owner=self.linked)
