"""Devices by DLPack device type: memory and queues behind one interface for all kinds.

Each kind has a `Driver` in `drivers`. The drivers of mlfc, which may require packages, are imported on first use.
"""

from __future__ import annotations

import pkgutil
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlfc.errors import DeviceError, InputError, OptionError, unknown
from mlfc.registry import Registry
from mlfc.support.locks import ForkSafeLock
from mlfc.support.platforms import TYPE_CODES
from mlfc.support.tensor_info import Array
from mlfc.support.text import Displayed

_KIND_OF_CODE = {code: kind for kind, code in TYPE_CODES.items()}
# kinds in target strings that generate host code
_HOST_TARGETS = ("c", "llvm")
_current, _recorded = threading.local(), threading.local()
ALIGNMENT = 64
"""Alignment in bytes that generated code may assume for the start of a block."""


@dataclass(frozen=True)
class Device(Displayed):
    """A device.

    Attributes
    ----------
    kind : str
        A key of `support.platforms.TYPE_CODES`.
    type_code : int
        DLDeviceType: 1 is the CPU.
    index : int
        Index among the devices of this kind, from 0.
    """

    kind: str
    type_code: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.index})"

    @property
    def api(self) -> DeviceApi:
        """Memory and queue of the device, always the same object; raises DeviceError if the device is missing."""
        found = _opened.get(self)
        if found is not None:
            return found
        with _opening:
            if self not in _opened:
                driver = driver_of(self.kind)
                count = driver.count()
                if self.index >= count:
                    raise DeviceError(f"unknown device {self}: the driver has {count}")
                _opened[self] = driver.open(self)
            return _opened[self]

    @property
    def exists(self) -> bool:
        """True if the device and its driver exist."""
        try:
            return self.api is not None
        except DeviceError:
            return False

    @property
    def name(self) -> str:
        """Name of the device as reported by its driver."""
        return self.api.name

    def synchronize(self) -> None:
        """Wait until all work queued on the device is done; raise DeviceError if it failed."""
        self.api.synchronize()

    # TVM's names
    device_type = property(lambda self: self.type_code)
    device_id = property(lambda self: self.index)
    exist = exists
    sync = synchronize


class Recording(Protocol):
    """Recorded launches that a device runs as one unit."""

    def launch(self) -> None:
        """Put the launches into the device's queue."""

    def nanoseconds(self) -> list[int]:
        """Return the device time of each step of the latest launch once it is done; empty unless timed."""


class DeviceApi(Displayed, ABC):
    """One device: its memory and one in-order queue.

    A handle is the value of a DLTensor's ``data`` for memory of the device: an address for devices with addresses
    (CUDA, the CPU), a ``cl_mem``, which only offsets can index, for OpenCL.

    Attributes
    ----------
    device : Device
    name : str
        Name as reported by the driver.
    driver : str
        The driver and its version.
    memory_bytes : int
        Total memory of the device; 0 if unknown.
    """

    device: Device
    name: str
    driver: str
    memory_bytes: int
    # True if a handle plus an offset is an address that kernels accept
    has_addresses = True
    _shows = ("name", "driver", "memory_bytes")

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._blocks: dict[int, Any] = {}  # Python objects that keep memory alive, by handle

    @abstractmethod
    def _allocate(self, nbytes: int, alignment: int) -> int:
        """Return the handle of a new block of at least one byte."""

    def _free(self, handle: int) -> None:
        """Free a block of `_allocate`."""
        del self._blocks[handle]

    @abstractmethod
    def _copy_in(self, handle: int, offset: int, data: Array) -> None:
        """Copy bytes in; the source may change as soon as this returns."""

    @abstractmethod
    def _copy_out(self, handle: int, offset: int, data: Array) -> None:
        """Copy bytes out, after all earlier work; they are complete when this returns."""

    @abstractmethod
    def _copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        """Copy within the device, in the order of the queue."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done; raise DeviceError if any of it failed."""

    @abstractmethod
    def mark(self) -> Any:
        """Enqueue a time mark for `nanoseconds`."""

    @abstractmethod
    def nanoseconds(self, start: Any, end: Any) -> int:
        """Return the device time between two marks once both have passed."""

    def record(
        self,
        steps: Sequence[Callable[[], object]],  # noqa: ARG002  (devices that can override it)
        after: Sequence[Collection[int]] | None = None,  # noqa: ARG002
    ) -> Recording | None:
        """Record the launches of steps as one unit, without running them.

        Parameters
        ----------
        steps : sequence of callable
            Each launches loaded kernels of this device.
        after : sequence of collection of int, optional
            For each step the earlier steps that must finish before it starts. Default: sequential and timed.

        Returns
        -------
        Recording or None
            None if a step did anything but launch, the device accepts only single launches, or recording fails.
        """
        return None

    def allocate(self, nbytes: int, alignment: int = ALIGNMENT) -> int:
        """Return the handle of a new uninitialized block; raise DeviceError if memory is exhausted."""
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            raise InputError(f"invalid block: {nbytes} bytes aligned to {alignment}", place=str(self.device))
        handle = self._allocate(max(1, nbytes), alignment)
        self._sizes[handle] = nbytes
        return handle

    def free(self, handle: int) -> None:
        """Free a block; queued work may still use it."""
        if handle not in self._sizes:
            raise self._unknown(handle)
        del self._sizes[handle]
        self._free(handle)

    def owns(self, handle: int) -> bool:
        """Return whether a handle refers to a block allocated here and not yet freed."""
        return handle in self._sizes

    def copy_in(self, handle: int, offset: int, array: Array) -> None:
        """Copy an array to a block at byte `offset`.

        Raises InputError if it is not within a block allocated here, DeviceError if the driver fails.
        """
        self._require(handle, offset, array.nbytes)
        if array.nbytes:
            self._copy_in(handle, offset, _bytes_of(np.ascontiguousarray(array)))

    def copy_out(self, handle: int, offset: int, array: Array) -> None:
        """Copy from a block to an array, after all queued work; raise as `copy_in` does."""
        self._require(handle, offset, array.nbytes)
        if not array.nbytes:
            return
        whole = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        self._copy_out(handle, offset, _bytes_of(whole))
        if whole is not array:
            array[...] = whole

    def copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        """Copy between two blocks of this device, in the order of the queue; raise as `copy_in` does."""
        self._require(source, source_offset, nbytes)
        self._require(target, target_offset, nbytes)
        if nbytes:
            self._copy(source, source_offset, target, target_offset, nbytes)

    def _size_of(self, handle: int) -> int | None:
        """Return the size in bytes of a handle's memory; None if it is not memory of this device."""
        return self._sizes.get(handle)

    def _unknown(self, handle: int) -> InputError:
        return InputError(f"address {handle:#x} was not allocated on this device", place=str(self.device))

    def _require(self, handle: int, offset: int, nbytes: int) -> None:
        size = self._size_of(handle)
        if size is None:
            raise self._unknown(handle)
        if offset < 0 or nbytes < 0 or offset + nbytes > size:
            raise InputError(
                f"bytes {offset} to {offset + nbytes} exceed a block of {size:,} bytes", place=str(self.device)
            )


class DeviceBlock:
    """Memory of a device, freed with this object."""

    byte_offset = 0

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        api = device.api
        self.handle = api.allocate(nbytes)
        # at process exit the driver may already be gone, and has freed everything
        weakref.finalize(self, self._free, api, self.handle).atexit = False

    @staticmethod
    def _free(api: DeviceApi, handle: int) -> None:
        # a lost device has lost its memory too, and no caller handles an error here
        with suppress(DeviceError):
            api.free(handle)


class OnDevice(Protocol):
    """A compact, row-major tensor on a device, in memory of its `DeviceApi`."""

    device: Device
    handle: int
    byte_offset: int


def move(source: Any, target: Any, nbytes: int) -> None:
    """Copy a tensor to another of the same size: host arrays of one shape, or `OnDevice`."""
    if isinstance(source, np.ndarray):
        if isinstance(target, np.ndarray):
            target[...] = source
        else:
            target.device.api.copy_in(target.handle, target.byte_offset, source)
    elif isinstance(target, np.ndarray):
        source.device.api.copy_out(source.handle, source.byte_offset, target)
    elif source.device == target.device:
        target.device.api.copy(source.handle, source.byte_offset, target.handle, target.byte_offset, nbytes)
    else:
        between = np.empty(nbytes, np.uint8)
        move(source, between, nbytes)
        move(between, target, nbytes)


class Driver(Protocol):
    """A kind of device."""

    def count(self) -> int:
        """Return the number of devices; raise DeviceError with what to install if the driver is missing."""

    def open(self, device: Device) -> DeviceApi:
        """Open an existing device."""


drivers: Registry[Driver] = Registry("kind of device that can be used here")
"""Drivers by `Device.kind`."""

_DRIVER_FILES = "mlfc.runtime.drivers"
_opened: dict[Device, DeviceApi] = {}
_opening = ForkSafeLock(reentrant=True)


@cache
def driver_files() -> frozenset[str]:
    """Return the kinds of devices whose drivers come with mlfc."""
    folder = Path(__file__).parents[1] / "drivers"
    return frozenset(found.name for found in pkgutil.iter_modules([str(folder)]))


def import_driver(kind: str) -> None:
    """Import the driver of a kind of device, with its modules, if it comes with mlfc."""
    if kind in driver_files():
        import_module(f"{_DRIVER_FILES}.{kind}")


def known_kinds() -> tuple[str, ...]:
    """Return the kinds of devices that have a driver."""
    return tuple(sorted({*drivers, *driver_files()}))


def driver_of(kind: str) -> Driver:
    """Return the driver of a kind of device; raise DeviceError if it has none."""
    import_driver(kind)
    if kind not in drivers:
        raise DeviceError(
            f"devices of the kind '{kind}' cannot be used here", next_step=f"Kinds: {', '.join(known_kinds())}"
        )
    return drivers.get(kind)


def device(kind: str, index: int = 0) -> Device:
    """Return a device by its kind; it need not exist.

    Parameters
    ----------
    kind : str
        A key of `support.platforms.TYPE_CODES`; ``c`` and ``llvm``, as in target strings, are the CPU.
    index : int
        Index among the devices of this kind, from 0.

    Raises
    ------
    OptionError
        For an unknown kind or a negative index.

    Examples
    --------
    >>> mlfc.device("opencl", 1)
    Device(kind='opencl', type_code=4, index=1)
    """
    known = "cpu" if kind in _HOST_TARGETS else kind
    if known not in TYPE_CODES:
        raise OptionError(unknown("kind of device", kind, TYPE_CODES))
    if index < 0:
        raise OptionError(f"expected a device index from 0, got {known}({index})")
    return Device(known, TYPE_CODES[known], index)


def require_device(value: object) -> Device:
    """Return a device unchanged; raise InputError for anything else."""
    if isinstance(value, Device):
        return value
    raise InputError(
        f"expected a device, got {value!r}, a {type(value).__name__}",
        next_step="Give mlfc.cpu(0) or mlfc.device(kind, index)",
    )


def device_of_code(type_code: int, index: int = 0) -> Device:
    """Return a device by its DLDeviceType; raise OptionError for an unknown number."""
    if type_code not in _KIND_OF_CODE:
        raise OptionError(f"unknown device type {type_code}")
    return device(_KIND_OF_CODE[type_code], index)


def cpu(index: int = 0) -> Device:
    """Return the host's processor."""
    return Device("cpu", TYPE_CODES["cpu"], index)


def opencl(index: int = 0) -> Device:
    """Return an OpenCL device; indices count the devices of all platforms in the order of the OpenCL loader."""
    return device("opencl", index)


def cuda(index: int = 0) -> Device:
    """Return a GPU of the CUDA driver."""
    return device("cuda", index)


def devices_of(kind: str) -> tuple[DeviceApi, ...]:
    """Return the API of each device of a kind; raise DeviceError with what to install if none exists."""
    return tuple(device(kind, index).api for index in range(driver_of(kind).count()))


def set_device(type_code: int, index: int) -> None:
    """Set the device on which this thread's kernels of a kind run; host code calls it as ``__tvm_set_device``."""
    setattr(_current, device_of_code(type_code).kind, index)


def current_index(kind: str) -> int:
    """Return the device index set by `set_device` in this thread, by default 0."""
    index: int = getattr(_current, kind, 0)
    return index


@dataclass
class RecordedStep:
    """State of a step that is being recorded."""

    launches: list[Any] = field(default_factory=list)  # in order; their types are the driver's
    only_launches: bool = True  # as far as this process can observe


def recorded_step() -> RecordedStep | None:
    """Return the step that this thread is recording; None if launches run directly."""
    step: RecordedStep | None = getattr(_recorded, "step", None)
    return step


@contextmanager
def recording_step() -> Iterator[RecordedStep]:
    """Record what this thread launches."""
    _recorded.step = step = RecordedStep()
    try:
        yield step
    finally:
        _recorded.step = None


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
