"""The common part of modules of device kernels: the table of kernels and the stored form.

Stored form, as in TVM: the format as a string, a map from each kernel's name to its `FunctionInfo`, and the source or
binary as a string; strings and maps start with their length or count, a u64.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from mlfc.registry import Registry
from mlfc.runtime.devices.device import current_index, import_driver
from mlfc.runtime.devices.kernel_launch import HANDLE, CallLayout, FunctionInfo, LoadedKernel
from mlfc.runtime.modules.loaders import register_loader
from mlfc.runtime.modules.module import Function, Module
from mlfc.support import dtypes
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64

_TYPE = struct.Struct("<BBH")
_HANDLE_TYPE = (3, 64, 1)
# two strings and two lists, each of them its length at least
_SMALLEST_KERNEL = 32


class DeviceModule(Module, ABC):
    """Kernels of one kind of device, by name in storage order; the driver compiles or loads them at their first call.

    `data` is their source or binary in a `format`: ``cl``, ``cu``, ``ptx``, ``cubin``, ...
    The type key is the kind of device.
    """

    is_binary_serializable = True
    is_runnable = True

    text_formats: ClassVar[tuple[str, ...]]

    def __init__(self, format: str, functions: Mapping[str, FunctionInfo], data: str | bytes | memoryview) -> None:  # noqa: A002  (the stored form's word)
        super().__init__()
        self.format = format
        self.functions = dict(functions)
        self.data: bytes | memoryview = data.encode() if isinstance(data, str) else data
        self._layouts: dict[str, CallLayout] = {}
        self._loaded: dict[tuple[str, int], LoadedKernel] = {}

    @staticmethod
    def compiled(source: str, form: str, options: Mapping[str, str]) -> tuple[str, bytes]:  # noqa: ARG004 (every kind of device takes these)
        """Return format and data of kernels in source of a format, compiled if there is a compiler here.

        `options` are those of the target.
        """
        return form, source.encode()

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
        key = (name, current_index(self.type_key))
        # what nobody can call is no reason not to read and store the module
        layout = self._layouts.get(name)
        if layout is None:
            layout = self._layouts.setdefault(name, CallLayout(name, self.functions[name], self.type_key))
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


_M = TypeVar("_M", bound=type[DeviceModule])
_module_classes: Registry[type[DeviceModule]] = Registry("kind of device with modules")


def register_device_module(found: _M) -> _M:
    """Make a class the module of its kind of device, with the loader of its stored form."""
    place = f"module of the kind '{found.type_key}'"

    def load(data: bytes | memoryview) -> Module:
        return found(*_whole_body(data, place))

    register_loader(found.type_key, partial(_body_extent, place=place))(load)
    _module_classes.add(found.type_key, found)
    return found


def device_module_class(kind: str) -> type[DeviceModule]:
    """Return the class of modules for a kind of device; raise OptionError if there is none."""
    import_driver(kind)
    return _module_classes.get(kind)


def _whole_body(data: bytes | memoryview, place: str) -> tuple[str, dict[str, FunctionInfo], memoryview]:
    """Return the format, kernels and code of a device module's stored form; raise ArchiveError if it is broken."""
    take = Cursor(data, 0, place)
    form, functions, code = _take_body(take)
    take.end("the code")
    return form, functions, code


def _body_extent(data: memoryview, place: str) -> int:
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
