"""The processor and memory of this machine as a device."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from contextlib import suppress
from pathlib import Path

from mlfc.errors import DeviceError
from mlfc.runtime.devices.device import Device, DeviceApi, drivers
from mlfc.runtime.tensor.arrays import aligned
from mlfc.support.tensor_info import Array


class HostApi(DeviceApi):
    """Memory of this process; a handle is an address."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.name = _processor()
        self.driver = f"{platform.system()} {platform.release()}"
        self.memory_bytes = 0
        with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf, others lack some names
            self.memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _allocate(self, nbytes: int, alignment: int) -> int:
        try:
            block = aligned(nbytes, alignment=alignment)
        except MemoryError:
            raise DeviceError(f"out of memory for a block of {nbytes:,} bytes", place=str(self.device)) from None
        handle = block.ctypes.data
        self._blocks[handle] = block
        return handle

    def _copy_in(self, handle: int, offset: int, data: Array) -> None:
        ctypes.memmove(handle + offset, data.ctypes.data, data.nbytes)

    def _copy_out(self, handle: int, offset: int, data: Array) -> None:
        ctypes.memmove(data.ctypes.data, handle + offset, data.nbytes)

    def _copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        ctypes.memmove(target + target_offset, source + source_offset, nbytes)

    def synchronize(self) -> None:
        """Return immediately: work on the CPU is synchronous."""

    def mark(self) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def nanoseconds(self, start: int, end: int) -> int:
        """Return the time between two marks."""
        return end - start


class HostDriver:
    """The one host."""

    def count(self) -> int:
        """Return 1."""
        return 1

    def open(self, device: Device) -> HostApi:
        """Open the host's memory."""
        return HostApi(device)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


drivers.add("cpu", HostDriver())
