"""Modules of device kernels, and the entries and descriptions that libraries of modules contain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from mlfc.codegen import DeviceCode
from mlfc.codegen.abi import library_files
from mlfc.codegen.dialect import DIALECTS
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.launch import launch_extents
from mlfc.codegen.unit import Unit
from mlfc.library.build import Beside
from mlfc.runtime.devices.kernel_launch import HANDLE, FunctionInfo
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL
from mlfc.runtime.modules.device_module import device_module_class
from mlfc.runtime.modules.module import Module
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface
from mlfc.target.target import Target

_FILE = "src/mlfc_description.c"


def device_module(code: DeviceCode, target: Target) -> Module:
    """Return the module of a device's kernels, compiled ahead of time if the kind of device has a compiler here."""
    found = device_module_class(code.kind)
    form, data = found.compiled(code.source, DIALECTS.get(code.kind).suffix, target.options)
    return found(form, function_table(code), data)


def function_table(code: DeviceCode) -> Mapping[str, FunctionInfo]:
    """Return how each kernel is called: handles of tensors, then open extents, then those of the launch."""
    return {
        kernel.name: FunctionInfo(
            kernel.name,
            (HANDLE,) * len(kernel.arguments) + ("int32",) * len(kernel.symbols),
            tuple(launch_extents(kernel)),
        )
        for kernel in code.kernels
    }


def beside_code(
    units: Sequence[Unit], codes: Callable[[], Sequence[GeneratedCode]], descriptions: Mapping[str, ModuleInterface]
) -> Beside:
    """Return what `HostLibrary` asks for files beside the code of modules, which `codes` returns when it is asked.

    `descriptions` are by module name.
    """

    def beside(abi: Sequence[str], files: Mapping[str, Data]) -> Mapping[str, Data]:
        return {**library_files(units, codes(), abi, files), _FILE: _description(descriptions)}

    return beside


def _description(modules: Mapping[str, ModuleInterface]) -> bytes:
    text = json.dumps({"modules": {name: item.to_json() for name, item in modules.items()}}, sort_keys=True).encode()
    # numbers, because C promises string literals of no more than 4,095 characters
    numbers = ",".join(map(str, (*text, 0)))
    return (
        f"extern const char {DESCRIPTION_SYMBOL}[{len(text) + 1}];\n"
        f"const char {DESCRIPTION_SYMBOL}[{len(text) + 1}] = {{{numbers}}};\n"
    ).encode()
