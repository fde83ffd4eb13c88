"""What modules of device kernels have in common: the table of kernels and the stored form.

Stored form, as TVM has it: the format as a string, a map from each kernel's name to its `FunctionInfo`, and the source
or binary as a string; strings and maps start with their length or count, a u64.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mlfc.runtime.devices.device import current_index
from mlfc.runtime.devices.kernel_launch import HANDLE, CallLayout, FunctionInfo, LoadedKernel
from mlfc.runtime.modules.module import Function, Module
from mlfc.support.stream import Cursor, encode_string, encode_strings, encode_u64

_TYPE = struct.Struct("<BBH")
_CODES = {"int": 0, "uint": 1, "float": 2, "handle": 3, "bfloat": 4}
_NAMES = {code: name for name, code in _CODES.items()}
# two strings and two lists, each of them its length at least
_SMALLEST_KERNEL = 32


class DeviceModule(Module, ABC):
    """Kernels of one kind of device. The driver compiles or loads them when they are first called.

    Parameters
    ----------
    format : str
        What `data` is: ``cl``, ``cu``, ``ptx``, ``cubin``, ...
    functions : mapping of str to FunctionInfo
        By the kernels' names, in the order in which they are stored.
    data : str or bytes-like
        Source or binary.
    """

    is_binary_serializable = True
    is_runnable = True

    device_kind: ClassVar[str]

    def __init__(self, format: str, functions: Mapping[str, FunctionInfo], data: str | bytes | memoryview) -> None:  # noqa: A002  (the stored form's word)
        super().__init__()
        self._format = format
        self.functions = dict(functions)
        self.data: bytes | memoryview = data.encode() if isinstance(data, str) else data
        self._layouts: dict[str, CallLayout] = {}
        self._loaded: dict[tuple[str, int], LoadedKernel] = {}

    @abstractmethod
    def _load(self, name: str, index: int) -> LoadedKernel:
        """Return a kernel of the table for device `index`; raise DeviceError where the driver refuses it."""

    @property
    def format(self) -> str:
        """What the kernels are stored as, which is also the suffix of their file."""
        return self._format

    def find_function(self, name: str) -> Function | None:
        """Return a kernel: it takes its arguments, then an extent for each launch parameter."""
        return Kernel(self, name) if name in self.functions else None

    def save_to_bytes(self) -> bytes:
        """Return the stored form."""
        parts: list[bytes | memoryview] = [encode_string(self._format), encode_u64(len(self.functions))]
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

    Arguments are tensors on the device (`NDArray`), handles of memory as `DeviceApi.allocate` gives them, and numbers.
    """

    def __init__(self, module: DeviceModule, name: str) -> None:
        self.name = name
        self._module = module

    def __call__(self, *args: Any) -> None:
        """Launch the kernel.

        Raises
        ------
        InputError
            For arguments of another count or kind than the kernel's.
        DeviceError
            If the device or its driver is not there, or refuses the kernel or the launch.
        """
        self._module.launch(self.name, args)


def whole_body(data: bytes | memoryview, place: str) -> tuple[str, dict[str, FunctionInfo], memoryview]:
    """Return what a device module's stored form holds: the format, the kernels and the code.

    Raises
    ------
    ArchiveError
        If the bytes break the form, or more of them follow.
    """
    take = Cursor(data, 0, place)
    form, functions, code = _take_body(take)
    take.end("the code")
    return form, functions, code


def body_extent(data: memoryview, place: str) -> int:
    """Return how many bytes the stored form has that starts here; raise ArchiveError where it breaks the form."""
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
            raise take.fault(f"the kernel '{name}' is there twice", start)
        inner = take.text("the name of a function")
        types = tuple(_take_type(take) for _ in range(take.count("types of arguments", _TYPE.size)))
        functions[name] = FunctionInfo(inner, types, tuple(take.texts("launch parameters")))
    return form, functions, take.string("the code")


def _encode_type(name: str) -> bytes:
    if name == HANDLE:
        return _TYPE.pack(_CODES[HANDLE], 64, 1)
    element, _, lanes = name.partition("x")
    kind = element.rstrip("0123456789")
    return _TYPE.pack(_CODES[kind], int(element[len(kind) :]), int(lanes or 1))


def _take_type(take: Cursor) -> str:
    start = take.offset
    code, bits, lanes = take.unpack(_TYPE, "the type of an argument")
    if (code, bits, lanes) == (_CODES[HANDLE], 64, 1):
        return HANDLE
    if code not in _NAMES:
        raise take.fault(f"{code} is no code of a data type", start)
    return f"{_NAMES[code]}{bits}" + (f"x{lanes}" if lanes != 1 else "")
