"""Modules of device kernels, and files beside code: entries and descriptions of libraries, and shared loops."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from mlfc.codegen import DeviceCode, Unit
from mlfc.codegen.abi import library_files
from mlfc.codegen.c_parallel import scratch_bytes
from mlfc.codegen.device import DIALECTS
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.host.packed import launch_extents
from mlfc.codegen.templates import LICENCE
from mlfc.crt import crt_files
from mlfc.library.build import Beside
from mlfc.runtime.libraries.library_file import DESCRIPTION_SYMBOL
from mlfc.runtime.modules.device_module import HANDLE, FunctionInfo, device_module_class
from mlfc.runtime.modules.module import Module
from mlfc.support.c_names import HEADERS, PARALLEL_FOR, SOURCE
from mlfc.support.content import Data
from mlfc.support.dim_estimates import most
from mlfc.support.module_info import ModuleInterface
from mlfc.support.params import ParameterOffsets
from mlfc.target.target import Target

_FILE = "src/mlfc_description.c"


def device_module(code: DeviceCode, target: Target) -> Module:
    """Return the module of a device's kernels, compiled ahead of time if a compiler for the device is available."""
    found = device_module_class(code.kind)
    form, data = found.compiled(code.source, DIALECTS.get(code.kind).suffix, target.options)
    return found(form, function_table(code), data)


def function_table(code: DeviceCode) -> Mapping[str, FunctionInfo]:
    """Return the signature of each kernel: tensor handles, dynamic dimensions, then launch parameters."""
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
    """Return the `beside` function of `HostLibrary` for modules whose code `codes` returns when called.

    `descriptions` are by module name.
    """

    def beside(abi: Sequence[str], files: Mapping[str, Data], places: ParameterOffsets) -> Mapping[str, Data]:
        return {**library_files(units, codes(), abi, files, places), _FILE: _description(descriptions)}

    return beside


def _description(modules: Mapping[str, ModuleInterface]) -> bytes:
    text = json.dumps({"modules": {name: item.to_json() for name, item in modules.items()}}, sort_keys=True).encode()
    # numbers, as C guarantees only 4,095 characters in string literals
    numbers = ",".join(map(str, (*text, 0)))
    return (
        f"extern const char {DESCRIPTION_SYMBOL}[{len(text) + 1}];\n"
        f"const char {DESCRIPTION_SYMBOL}[{len(text) + 1}] = {{{numbers}}};\n"
    ).encode()


def parallel_files(units: Sequence[Unit]) -> dict[str, bytes]:
    """Return the parallel function that kernels call, its header, and the scratch size per thread; empty if unused."""
    shared = [unit for unit in units if unit.parallel == PARALLEL_FOR]
    if not shared:
        return {}
    known = [most(nbytes) for unit in shared for nbytes in scratch_bytes(unit)]
    sizes = [nbytes for nbytes in known if nbytes is not None]
    lines = [f"/* {LICENCE} */", "#ifndef MLFC_PARALLEL_SIZES_H_", "#define MLFC_PARALLEL_SIZES_H_", ""]
    if len(sizes) == len(known):
        lines += [
            "/*! \\brief Bytes of scratch, aligned to 64, that each thread needs beside the caller's */",
            f"#define MLFC_PARALLEL_SCRATCH_SIZE {max(sizes, default=0)}",
        ]
    else:
        lines.append("/* inputs without a bound decide how much scratch each thread needs beside the caller's */")
    lines += ["", "#endif /* MLFC_PARALLEL_SIZES_H_ */", ""]
    header = HEADERS[PARALLEL_FOR]
    return {
        f"src/{SOURCE}": crt_files("parallel_for")[f"parallel_for/{SOURCE}"],
        f"include/{header}": crt_files("parallel")[f"parallel/{header}"],
        "include/mlfc_parallel_sizes.h": "\n".join(lines).encode(),
    }
