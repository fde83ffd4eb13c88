"""Firmware of modules that TVM compiled ahead of time: their C asks the runtime for its workspace."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

from mlfc.archive.read.module_parts import ModuleParts
from mlfc.archive.read.tvm_interface import c_interface
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.micro.firmware.bare_metal import Firmware
from mlfc.micro.firmware.standalone import standalone_main
from mlfc.support.content import Data
from mlfc.support.module_info import ModuleInterface

_LICENCE = "SPDX-License-Identifier: 0BSD"
_CRT_FILES = (
    "src/runtime/crt/memory/stack_allocator.c", "src/runtime/crt/common/error_text.c",
    "src/runtime/crt/common/error_text.h", "src/runtime/crt/common/context.h", "src/runtime/crt/common/config.h",
)  # fmt: skip
_ALIGNMENT = 16
_BLOCKS = 64
"""That an inference has at once, at most: each is rounded up to a multiple of the alignment."""


def aot_details(parts: ModuleParts) -> ModuleInterface:
    """Return what is known of a module that TVM compiled.

    Raises ArchiveError if header and metadata do not say enough; OptionError if there is no C interface, or its caller
    provides the workspace.
    """
    if parts.header is None:
        raise OptionError(
            f"module '{parts.record.name}' has no C interface, which firmware requires",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    found = c_interface(parts.record, parts.header, parts.relay, parts.place)
    if found.pools:
        raise OptionError(
            f"module '{parts.record.name}' requires TVM's workspace pools, which mlfc's firmware does not have",
            place=parts.place,
            next_step="Compile the model with: mlfc compile MODEL",
        )
    main = parts.record.main[0] if parts.record.main else None
    memory = replace(
        found.memory,
        workspace_bytes=found.memory.workspace_bytes + _ALIGNMENT * _BLOCKS,
        constants_bytes=main.constants_bytes if main else 0,
        io_bytes=sum(info.nbytes for info in (*found.inputs, *found.outputs)),
    )
    return replace(found, external_workspace=False, workspace_io=False, memory=memory)


def tvm_firmware(name: str, details: ModuleInterface) -> Firmware:
    """Return what a project takes beside the module's code and the board's own files.

    `details`: from `aot_details`.
    """
    crt = {**crt_files("include"), **crt_files("src/runtime/crt/memory"), **crt_files("src/runtime/crt/common")}
    made: dict[str, Data] = {
        f"crt/{path}": data for path, data in crt.items() if path.startswith("include/") or path in _CRT_FILES
    }
    made["tvm/workspace.c"] = files("mlfc.micro").joinpath("templates", "tvm", "workspace.c").read_bytes()
    made["tvm/crt_config.h"] = _config(details.memory.workspace_bytes).encode()
    return Firmware(standalone_main(name, details), made, ("tvm", "crt/include"))


def _config(nbytes: int) -> str:
    lines = [f"/* Limits of the C runtime for one model. {_LICENCE} */"]
    lines += ["#ifndef TVM_RUNTIME_CRT_CONFIG_H_", "#define TVM_RUNTIME_CRT_CONFIG_H_", ""]
    lines += [f"#define WORKSPACE_BYTES {nbytes}", "", "#endif /* TVM_RUNTIME_CRT_CONFIG_H_ */", ""]
    return "\n".join(lines)
