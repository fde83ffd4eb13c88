"""How kernels of devices are called: their arguments, and how many work items they run over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlfc.errors import InputError
from mlfc.support.text import Displayed

DYNAMIC_SHARED = "tir.use_dyn_shared_memory"
HANDLE = "handle"

_AXES = tuple(f"{kind}Idx.{axis}" for kind in ("block", "thread") for axis in "xyz")
_SCALARS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_LARGEST_EXTENT = (1 << 32) - 1


@dataclass(frozen=True)
class FunctionInfo(Displayed):
    """How a kernel is called.

    Attributes
    ----------
    name : str
        As stored; often empty, for the table of kernels has the name.
    arg_types : tuple of str
        ``handle`` for memory of the device, ``int32``, ``float32``, ... for numbers.
    launch_param_tags : tuple of str
        What follows the arguments, an integer each: extents along ``blockIdx.x``, ``threadIdx.y``, ..., in any order
        and more than once (the last one counts), and, at the end, ``tir.use_dyn_shared_memory`` in bytes.
    """

    name: str
    arg_types: tuple[str, ...]
    launch_param_tags: tuple[str, ...]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel."""

    arguments: tuple[Any, ...]  # integers for handles, numpy scalars of the right width for numbers
    grid: tuple[int, int, int]  # groups along x, y and z
    block: tuple[int, int, int]  # items of a group along x, y and z
    dimensions: int  # how many of x, y and z the kernel uses
    shared_bytes: int  # beyond what the kernel declares


class LoadedKernel(Protocol):
    """A kernel that a driver has compiled for one device."""

    def launch(self, launch: KernelLaunch) -> None:
        """Put a launch into the device's queue."""


class CallLayout:
    """The positions of a kernel's arguments and extents in a call; tensors on `device_kind` may replace handles.

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
        """Return the launch that a call's arguments request; raise InputError if they do not fit."""
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
        # slots of 64 bits are narrowed as C does it
        narrow = value & ((1 << 8 * dtype.itemsize) - 1)
        return np.array(narrow, f"u{dtype.itemsize}").view(dtype)[()]

    def _handle_of(self, value: Any) -> int | None:
        """Return the handle of an `NDArray`; None if it is not on the device, or starts where no handle can point."""
        if getattr(getattr(value, "device", None), "kind", None) != self._device_kind:
            return None
        if value.byte_offset and not value.device.api.has_addresses:
            return None
        handle: int = value.handle + value.byte_offset
        return handle

    def _misfit(self, index: int, value: Any, expected: str) -> InputError:
        return InputError(f"argument {index} is {value!r}, not {expected}", place=self._name)
