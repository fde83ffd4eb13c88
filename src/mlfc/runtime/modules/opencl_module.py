"""Modules of OpenCL kernels: type key ``opencl``, stored and launched as TVM's are."""

from __future__ import annotations

from functools import cached_property

from mlfc.errors import ArchiveError, InputError
from mlfc.runtime.devices.device import opencl
from mlfc.runtime.devices.kernel_launch import LoadedKernel
from mlfc.runtime.devices.opencl_api import OpenClApi
from mlfc.runtime.modules.device_module import DeviceModule, body_extent, whole_body
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Module

SOURCE = "cl"
MARKER = "// Function: "
_PLACE = "module of the kind 'opencl'"


class OpenClModule(DeviceModule):
    """Kernels for OpenCL.

    The format is ``cl`` for source, in which each kernel stands behind a line ``// Function: <name>`` and is a program
    by itself; anything else is a binary of all kernels that the device's driver takes.
    """

    type_key = "opencl"
    device_kind = "opencl"

    def get_source(self) -> str:
        """Return the source; empty for a binary."""
        return str(self.data, "utf-8", "replace") if self.format == SOURCE else ""

    @cached_property
    def _programs(self) -> dict[str, str]:
        programs = cut_source(self.get_source())
        if len(programs) != len(self.functions):
            raise ArchiveError(
                f"the source has {len(programs)} kernels behind '{MARKER}' lines, the table {len(self.functions)}",
                place=_PLACE,
            )
        return programs

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = opencl(index).api
        if not isinstance(api, OpenClApi):
            raise InputError("OpenCL kernels run on the OpenCL driver that comes with mlfc", place=name)
        if self.format != SOURCE:
            return api.load(bytes(self.data), name)
        if name not in self._programs:
            raise ArchiveError(f"the source has no kernel '{name}', the table has", place=_PLACE)
        return api.build(self._programs[name], name)


def cut_source(source: str) -> dict[str, str]:
    """Return each kernel's program by its name; what stands before the first marker belongs to none."""
    programs = {}
    for part in source.split(MARKER)[1:]:
        name, _, program = part.partition("\n")
        programs[name.strip()] = program
    return programs


def _extent(view: memoryview) -> int:
    return body_extent(view, _PLACE)


@register_loader("opencl", _extent)
def _load(data: bytes | memoryview) -> Module:
    return OpenClModule(*whole_body(data, _PLACE))
