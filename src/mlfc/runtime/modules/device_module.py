"""Base of modules of device kernels: the kernel table, kernel calls, and the stored form.

Stored form, as in TVM: the format as a string, a map from each kernel's name to its `FunctionInfo`, and the source or
binary as a string; strings and maps start with their length or count, a u64.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from mlfc.errors import InputError
from mlfc.registry import Registry
from mlfc.runtime.devices.device import current_index, import_driver
from mlfc.runtime.modules.module import Function, Module, register_loader
from mlfc.support import dtypes
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64
from mlfc.support.text import Displayed

_TYPE = struct.Struct("<BBH")
_HANDLE_TYPE = (3, 64, 1)
# two strings and two lists, each at least a length
_SMALLEST_KERNEL = 32
DYNAMIC_SHARED = "tir.use_dyn_shared_memory"
HANDLE = "handle"

_AXES = tuple(f"{kind}Idx.{axis}" for kind in ("block", "thread") for axis in "xyz")
_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_LARGEST_EXTENT = (1 << 32) - 1


@dataclass(frozen=True)
class FunctionInfo(Displayed):
    """Calling convention of a kernel.

    Attributes
    ----------
    name : str
        As stored; often empty, because the kernel table has the name.
    arg_types : tuple of str
        ``handle`` for memory of the device, ``int32``, ``float32``, ... for numbers.
    launch_param_tags : tuple of str
        Launch parameters after the arguments, one integer each: extents along ``blockIdx.x``, ``threadIdx.y``, ..., in
        any order, where the last duplicate wins, and, at the end, ``tir.use_dyn_shared_memory`` in bytes.
    """

    name: str
    arg_types: tuple[str, ...]
    launch_param_tags: tuple[str, ...]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel."""

    arguments: tuple[Any, ...]  # integers for handles, numpy scalars of the parameter's dtype for numbers
    grid: tuple[int, int, int]  # groups along x, y and z
    block: tuple[int, int, int]  # items of a group along x, y and z
    dimensions: int  # how many of x, y and z the kernel uses
    shared_bytes: int  # beyond what the kernel declares


class LoadedKernel(Protocol):
    """A kernel compiled by a driver for one device."""

    def launch(self, launch: KernelLaunch) -> None:
        """Enqueue a launch."""


class CallLayout:
    """Positions of a kernel's arguments and extents in a call; tensors on `device_kind` may replace handles.

    Raises InputError for unsupported argument types or launch parameters.
    """

    def __init__(self, name: str, info: FunctionInfo, device_kind: str) -> None:
        self._name = name
        self._device_kind = device_kind
        self._types = info.arg_types
        tags = info.launch_param_tags
        for place, tag in enumerate(tags):
            if tag not in _AXES and (tag != DYNAMIC_SHARED or place != len(tags) - 1):
                raise InputError(f"launch parameter {place} is '{tag}', which is not allowed there", place=name)
        for arg in info.arg_types:
            if arg != HANDLE and arg not in _SCALARS:
                raise InputError(f"kernels take no arguments of the type {arg}", place=name)
        self._slots = tuple(_AXES.index(tag) if tag in _AXES else None for tag in tags)
        self._dimensions = 1 + max((slot % 3 for slot in self._slots if slot is not None), default=0)

    def launch(self, args: Sequence[Any]) -> KernelLaunch:
        """Return the launch that a call's arguments request; raise InputError if they do not match."""
        count = len(self._types)
        if len(args) != count + len(self._slots):
            expected = f"{count} arguments and {len(self._slots)} launch parameters"
            raise InputError(f"it takes {expected}, not {len(args)} values", place=self._name)
        extents, shared = [1] * 6, 0
        for slot, value in zip(self._slots, args[count:], strict=True):
            if not isinstance(value, int) or not 0 <= value <= _LARGEST_EXTENT:
                raise InputError(f"expected a launch extent, got {value!r}", place=self._name)
            if slot is None:
                shared = value
            else:
                extents[slot] = value or 1
        return KernelLaunch(
            tuple(map(self._argument, range(count), args)),
            (extents[0], extents[1], extents[2]),
            (extents[3], extents[4], extents[5]),
            self._dimensions,
            shared,
        )

    def _argument(self, index: int, value: Any) -> Any:
        if self._types[index] == HANDLE:
            handle = value if isinstance(value, int) else self._handle_of(value)
            if handle is None or not 0 < handle < 1 << 64:
                raise self._misfit(index, value, "a tensor on the device, or a handle of its memory")
            return handle
        dtype = np.dtype(self._types[index])
        if dtype.kind == "f":
            if not isinstance(value, (int, float)):
                raise self._misfit(index, value, "a number")
            return dtype.type(value)
        if not isinstance(value, int):
            raise self._misfit(index, value, "an integer")
        # 64-bit slots are narrowed as in C
        narrow = value & ((1 << 8 * dtype.itemsize) - 1)
        return np.array(narrow, f"u{dtype.itemsize}").view(dtype)[()]

    def _handle_of(self, value: Any) -> int | None:
        """Return the handle of an `NDArray`; None if it is on another device, or a handle cannot represent it."""
        if getattr(getattr(value, "device", None), "kind", None) != self._device_kind:
            return None
        if value.byte_offset and not value.device.api.has_addresses:
            return None
        handle: int = value.handle + value.byte_offset
        return handle

    def _misfit(self, index: int, value: Any, expected: str) -> InputError:
        return InputError(f"argument {index} is {value!r}, not {expected}", place=self._name)


class DeviceModule(Module, ABC):
    """Kernels of one kind of device, by name in storage order; the driver compiles or loads each at its first call.

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
        """Return the format and data of kernels, compiled if a compiler is available; `options` are the target's."""
        return form, source.encode()

    @abstractmethod
    def _load(self, name: str, index: int) -> LoadedKernel:
        """Return a kernel of the table for device `index`; raise DeviceError if the driver rejects it."""

    def get_source(self) -> str:
        """Return the text that the driver compiles; empty for a binary."""
        return str(self.data, "utf-8", "replace") if self.format in self.text_formats else ""

    def find_function(self, name: str) -> Function | None:
        """Return a kernel, called with its arguments and an extent for each launch parameter."""
        return Kernel(self, name) if name in self.functions else None

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        parts: list[bytes | memoryview] = [encode_string(self.format), encode_u64(len(self.functions))]
        for name, info in self.functions.items():
            parts += [encode_string(name), encode_string(info.name), encode_u64(len(info.arg_types))]
            parts += [_TYPE.pack(*(_HANDLE_TYPE if arg == HANDLE else dtypes.to_dlpack(arg))) for arg in info.arg_types]
            parts += [encode_strings(info.launch_param_tags)]
        return b"".join((*parts, encode_u64(len(self.data)), self.data))

    def launch(self, name: str, args: Sequence[Any]) -> None:
        """Launch a kernel on this thread's current device, without waiting for it."""
        key = (name, current_index(self.type_key))
        # a module with a kernel that cannot be called can still be read and stored
        layout = self._layouts.get(name)
        if layout is None:
            layout = self._layouts.setdefault(name, CallLayout(name, self.functions[name], self.type_key))
        launch = layout.launch(args)
        kernel = self._loaded.get(key)
        if kernel is None:
            kernel = self._loaded.setdefault(key, self._load(*key))
        kernel.launch(launch)


class Kernel:
    """A kernel as a function, ``kernel(*arguments, *extents)``, which returns before the device is done.

    Arguments are tensors on the device (`NDArray`), handles of memory from `DeviceApi.allocate`, and numbers.
    """

    def __init__(self, module: DeviceModule, name: str) -> None:
        self.name = name
        self._module = module

    def __call__(self, *args: Any) -> None:
        """Launch the kernel; raise InputError if arguments do not match, DeviceError if the device fails."""
        self._module.launch(self.name, args)


_M = TypeVar("_M", bound=type[DeviceModule])
_module_classes: Registry[type[DeviceModule]] = Registry("kind of device with modules")


def register_device_module(found: _M) -> _M:
    """Register a class as the module of its kind of device, with the loader of its stored form."""
    place = f"module of the kind '{found.type_key}'"

    def load(data: bytes | memoryview) -> Module:
        take = Cursor(data, 0, place)
        body = _take_body(take)
        take.end("the code")
        return found(*body)

    def extent(data: memoryview) -> int:
        take = Cursor(data, 0, place)
        _take_body(take)
        return take.offset

    register_loader(found.type_key, extent)(load)
    _module_classes.add(found.type_key, found)
    return found


def device_module_class(kind: str) -> type[DeviceModule]:
    """Return the class of modules for a kind of device; raise OptionError if it has none."""
    import_driver(kind)
    return _module_classes.get(kind)


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


def _take_type(take: Cursor) -> str:
    start = take.offset
    code, bits, lanes = take.unpack(_TYPE, "the type of an argument")
    if (code, bits, lanes) == _HANDLE_TYPE:
        return HANDLE
    name = dtypes.from_dlpack(code, bits, lanes)
    # storing it again must produce the same bytes
    if name is None or dtypes.to_dlpack(name) != (code, bits, lanes):
        raise take.fault(f"unknown code {code} of a data type", start)
    return name
