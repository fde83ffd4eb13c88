"""The common part of modules of device kernels: the table of kernels and the stored form.

Stored form, as in TVM: the format as a string, a map from each kernel's name to its `FunctionInfo`, and the source or
binary as a string; strings and maps start with their length or count, a u64.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from mlfc.errors import ArchiveError, DeviceError, InputError
from mlfc.runtime.devices.cuda_api import CudaApi
from mlfc.runtime.devices.device import cuda, current_index, opencl
from mlfc.runtime.devices.kernel_launch import HANDLE, CallLayout, FunctionInfo, LoadedKernel
from mlfc.runtime.devices.nvrtc import compute_arch, require_nvrtc
from mlfc.runtime.devices.opencl_api import OpenClApi
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Function, Module
from mlfc.support import dtypes
from mlfc.support.locks import ForkSafeLock
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64

OPENCL_SOURCE, CUDA_SOURCE = "cl", "cu"
"""Formats of source."""
_TYPE = struct.Struct("<BBH")
_HANDLE_TYPE = (3, 64, 1)
# two strings and two lists, each of them its length at least
_SMALLEST_KERNEL = 32
_PTX = "ptx"
_CUDA_PLACE = "module of the kind 'cuda'"
_MARKER = "// Function: "
_OPENCL_PLACE = "module of the kind 'opencl'"


class DeviceModule(Module, ABC):
    """Kernels of one kind of device, by name in storage order; the driver compiles or loads them at their first call.

    `data` is their source or binary in a `format`: ``cl``, ``cu``, ``ptx``, ``cubin``, ...
    """

    is_binary_serializable = True
    is_runnable = True

    device_kind: ClassVar[str]
    text_formats: ClassVar[tuple[str, ...]]

    def __init__(self, format: str, functions: Mapping[str, FunctionInfo], data: str | bytes | memoryview) -> None:  # noqa: A002  (the stored form's word)
        super().__init__()
        self.format = format
        self.functions = dict(functions)
        self.data: bytes | memoryview = data.encode() if isinstance(data, str) else data
        self._layouts: dict[str, CallLayout] = {}
        self._loaded: dict[tuple[str, int], LoadedKernel] = {}

    @abstractmethod
    def _load(self, name: str, index: int) -> LoadedKernel:
        """Return a kernel of the table for device `index`; raise DeviceError if the driver rejects it."""

    def get_source(self) -> str:
        """Return the source, or the text that the driver compiles; empty for a binary."""
        return str(self.data, "utf-8", "replace") if self.format in self.text_formats else ""

    def find_function(self, name: str) -> Function | None:
        """Return a kernel, called with its arguments and an extent for each launch parameter."""
        return Kernel(self, name) if name in self.functions else None

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        parts: list[bytes | memoryview] = [encode_string(self.format), encode_u64(len(self.functions))]
        for name, info in self.functions.items():
            parts += [encode_string(name), encode_string(info.name), encode_u64(len(info.arg_types))]
            parts += [_encode_type(arg) for arg in info.arg_types]
            parts += [encode_strings(info.launch_param_tags)]
        return b"".join((*parts, encode_u64(len(self.data)), self.data))

    def launch(self, name: str, args: Sequence[Any]) -> None:
        """Launch a kernel on the device that this thread has chosen, without waiting for it."""
        key = (name, current_index(self.device_kind))
        # what nobody can call is no reason not to read and store the module
        layout = self._layouts.get(name)
        if layout is None:
            layout = self._layouts.setdefault(name, CallLayout(name, self.functions[name], self.device_kind))
        launch = layout.launch(args)
        kernel = self._loaded.get(key)
        if kernel is None:
            kernel = self._loaded.setdefault(key, self._load(*key))
        kernel.launch(launch)


class Kernel:
    """A kernel as a function: ``kernel(*arguments, *extents)``; it returns before the device is done.

    Arguments are tensors on the device (`NDArray`), handles of memory from `DeviceApi.allocate`, and numbers.
    """

    def __init__(self, module: DeviceModule, name: str) -> None:
        self.name = name
        self._module = module

    def __call__(self, *args: Any) -> None:
        """Launch the kernel; raise InputError if arguments do not fit, DeviceError if the device fails."""
        self._module.launch(self.name, args)


def whole_body(data: bytes | memoryview, place: str) -> tuple[str, dict[str, FunctionInfo], memoryview]:
    """Return the format, kernels and code of a device module's stored form; raise ArchiveError if it is broken."""
    take = Cursor(data, 0, place)
    form, functions, code = _take_body(take)
    take.end("the code")
    return form, functions, code


def body_extent(data: memoryview, place: str) -> int:
    """Return the bytes of the stored form that starts here; raise ArchiveError if it is broken."""
    take = Cursor(data, 0, place)
    _take_body(take)
    return take.offset


def _take_body(take: Cursor) -> tuple[str, dict[str, FunctionInfo], memoryview]:
    form = take.text("the format")
    functions: dict[str, FunctionInfo] = {}
    for _ in range(take.count("kernels", _SMALLEST_KERNEL)):
        start = take.offset
        name = take.text("the name of a kernel")
        if name in functions:
            raise take.fault(f"the kernel '{name}' is duplicated", start)
        inner = take.text("the name of a function")
        types = tuple(_take_type(take) for _ in range(take.count("types of arguments", _TYPE.size)))
        functions[name] = FunctionInfo(inner, types, tuple(take.texts("launch parameters")))
    return form, functions, take.string("the code")


def _encode_type(name: str) -> bytes:
    return _TYPE.pack(*(_HANDLE_TYPE if name == HANDLE else dtypes.to_dlpack(name)))


def _take_type(take: Cursor) -> str:
    start = take.offset
    code, bits, lanes = take.unpack(_TYPE, "the type of an argument")
    if (code, bits, lanes) == _HANDLE_TYPE:
        return HANDLE
    name = dtypes.from_dlpack(code, bits, lanes)
    # what is stored again must be the same bytes
    if name is None or dtypes.to_dlpack(name) != (code, bits, lanes):
        raise take.fault(f"unknown code {code} of a data type", start)
    return name


class CudaModule(DeviceModule):
    """Kernels for NVIDIA's GPUs.

    The format is ``cu`` for source, which NVRTC compiles for the GPU at hand, ``ptx`` for what the driver compiles,
    ``cubin`` or ``fatbin`` for machine code.
    """

    type_key = "cuda"
    device_kind = "cuda"
    text_formats = (CUDA_SOURCE, _PTX)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._images: dict[int, Any] = {}
        self._loading = ForkSafeLock()

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = cuda(index).api
        if not isinstance(api, CudaApi):
            raise InputError("CUDA kernels run on the CUDA driver that comes with mlfc", place=name)
        with self._loading:
            if index not in self._images:
                self._images[index] = api.load(self._image(api), ", ".join(self.functions))
        return api.kernel(self._images[index], name)

    def _image(self, api: CudaApi) -> bytes:
        if self.format != CUDA_SOURCE:
            # text must end with a NUL
            return bytes(self.data) + (b"\0" if self.format == _PTX else b"")
        compiler = require_nvrtc()
        number = 10 * api.capability[0] + api.capability[1]
        known = compiler.architectures()
        if number in known:
            return compiler.compile(self.get_source(), api.arch)
        older = [arch for arch in known if arch < number]
        if not older:
            raise DeviceError(
                f"NVRTC {compiler.version} compiles for compute capability {known[0] / 10} and later, not for "
                f"{number / 10}",
                place=f"{api.device} ({api.name})",
                next_step="Install an older NVRTC",
            )
        return compiler.compile(self.get_source(), compute_arch(f"sm_{older[-1]}")) + b"\0"


@register_loader("cuda", partial(body_extent, place=_CUDA_PLACE))
def _load_cuda(data: bytes | memoryview) -> Module:
    return CudaModule(*whole_body(data, _CUDA_PLACE))


class OpenClModule(DeviceModule):
    """Kernels for OpenCL.

    The format is ``cl`` for source, in which each kernel is a program by itself after a line ``// Function: <name>``;
    anything else is a binary of all kernels for the device's driver.
    """

    type_key = "opencl"
    device_kind = "opencl"
    text_formats = (OPENCL_SOURCE,)

    @cached_property
    def _programs(self) -> dict[str, str]:
        programs = cut_source(self.get_source())
        if len(programs) != len(self.functions):
            raise ArchiveError(
                f"the source has {len(programs)} kernels behind '{_MARKER}' lines, the table {len(self.functions)}",
                place=_OPENCL_PLACE,
            )
        return programs

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = opencl(index).api
        if not isinstance(api, OpenClApi):
            raise InputError("OpenCL kernels run on the OpenCL driver that comes with mlfc", place=name)
        if self.format != OPENCL_SOURCE:
            return api.load(bytes(self.data), name)
        if name not in self._programs:
            raise ArchiveError(f"the source has no kernel '{name}', the table has", place=_OPENCL_PLACE)
        return api.build(self._programs[name], name)


def cut_source(source: str) -> dict[str, str]:
    """Return each kernel's program by its name; text before the first marker is ignored."""
    programs = {}
    for part in source.split(_MARKER)[1:]:
        name, _, program = part.partition("\n")
        programs[name.strip()] = program
    return programs


@register_loader("opencl", partial(body_extent, place=_OPENCL_PLACE))
def _load_opencl(data: bytes | memoryview) -> Module:
    return OpenClModule(*whole_body(data, _OPENCL_PLACE))
