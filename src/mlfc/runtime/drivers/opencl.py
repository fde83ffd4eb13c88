"""OpenCL devices through pyopencl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

from mlfc.errors import ArchiveError, DeviceError, InputError
from mlfc.runtime.devices.device import Device, DeviceApi, device, drivers
from mlfc.runtime.modules.device_module import DeviceModule, KernelLaunch, LoadedKernel, register_device_module
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array
from mlfc.support.text import first_lines

_NO_PACKAGE = 'Run in a checkout of mlfc: pip install ".[opencl]"'
_NO_DRIVER = (
    "Install the driver of the device's vendor, or, for OpenCL on the processor: apt-get install pocl-opencl-icd"
)
_NO_ROOM = "The device is out of memory: free some, or run a smaller model"
_LOST = "The process has lost the device: restart the process"
_POCL = "Portable Computing Language"
_LINKER = "ld"
# a unique number, so that no cache has the kernel
_PROBE = """
import os
import pyopencl as cl
(device, *_) = (found for platform in cl.get_platforms() if platform.name == "{}" for found in platform.get_devices())
queue = cl.CommandQueue(cl.Context([device]))
text = f"__kernel void probe(__global int *x) {{{{ *x = {{os.getpid()}}; }}}}"
kernel = cl.Kernel(cl.Program(queue.context, text).build(), "probe")
kernel.set_args(cl.Buffer(queue.context, cl.mem_flags.WRITE_ONLY, 4))
cl.enqueue_nd_range_kernel(queue, kernel, (1,), None).wait()
"""
_NEXT_STEPS = {
    "MEM_OBJECT_ALLOCATION_FAILURE": _NO_ROOM,
    "INVALID_BUFFER_SIZE": _NO_ROOM,
    "OUT_OF_HOST_MEMORY": _NO_ROOM,
    # drivers also report these for kernels that crashed
    "OUT_OF_RESOURCES": f"{_NO_ROOM}. If it has free memory, restart the process",
    "DEVICE_NOT_AVAILABLE": _LOST,
    "INVALID_COMMAND_QUEUE": _LOST,
    "INVALID_CONTEXT": _LOST,
    "INVALID_WORK_GROUP_SIZE": "Its groups are not those that the kernel was compiled for, or have more than the "
    'device\'s {items} items; models get smaller ones by --target "opencl -max_num_threads={items}"',
}


@cache
def _package() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceError(f"OpenCL needs pyopencl, which does not load: {error}", next_step=_NO_PACKAGE) from error
    return pyopencl


@cache
def _devices() -> tuple[Any, ...]:
    """Return the devices of all platforms; drivers never remove devices."""
    package = _package()
    found: list[Any] = []
    fault: Exception | None = None
    step = _NO_DRIVER
    try:
        for platform in package.get_platforms():
            if platform.name == _POCL and not _survives_pocl():
                fault = package.Error(f"{_LINKER} is not on the PATH, without which PoCL aborts the process")
                step = "Install a linker; on Debian: apt-get install binutils"
                continue
            try:
                found += platform.get_devices()
            except package.Error as error:  # other platforms may still have devices
                fault = error
    except package.Error as error:
        fault = error
    if fault is not None and not found:
        raise DeviceError(f"OpenCL has no driver here: {_reason(fault)}", next_step=step) from fault
    return tuple(found)


@cache
def _survives_pocl() -> bool:
    """Return whether a process survives running a kernel: PoCL aborts it if no linker is installed."""
    if shutil.which(_LINKER):
        return True
    command = [sys.executable, "-c", _PROBE.format(_POCL)]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _reason(error: Any) -> str:
    """Return OpenCL's name of an error: the text after the function name in pyopencl's message."""
    return str(error).splitlines()[0].rpartition(": ")[2]


class OpenClDriver:
    """Driver of the devices that the OpenCL loader finds."""

    def count(self) -> int:
        """Return the number of devices of all platforms together."""
        count = len(_devices())
        if not count:
            raise DeviceError("no OpenCL device was found", next_step=_NO_DRIVER)
        return count

    def open(self, device: Device) -> OpenClApi:
        """Open a device."""
        return OpenClApi(device, _devices()[device.index])


class OpenClApi(DeviceApi):
    """A context and an in-order queue of one OpenCL device; a handle is a ``cl_mem``."""

    has_addresses = False  # only a whole ``cl_mem`` can be passed

    def __init__(self, device: Device, found: Any) -> None:
        super().__init__()
        self.device = device
        self.name = found.name.strip()
        # the text after the number repeats the device's name
        version = " ".join(found.version.split()[:2])
        self.driver = f"{found.platform.name} {found.driver_version}, {version}"
        self.memory_bytes = found.global_mem_size
        self._found = found
        self._cl = _package()
        with self._errors("opening the device"):
            self._context = self._cl.Context([found])
            timed = self._cl.command_queue_properties.PROFILING_ENABLE
            self._queue = self._cl.CommandQueue(self._context, properties=timed)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._cl.Error as error:
            reason = _reason(error)
            step = _NEXT_STEPS.get(reason.partition(" ")[0])
            raise DeviceError(
                f"OpenCL failed while {doing}: {reason}",
                place=f"{self.device} ({self.name})",
                next_step=step.format(items=self._found.max_work_group_size) if step else None,
            ) from error

    def _allocate(self, nbytes: int, alignment: int) -> int:
        offered = self._found.mem_base_addr_align // 8
        if alignment > offered:
            raise DeviceError(f"the device aligns blocks to {offered} bytes, got {alignment}", place=str(self.device))
        with self._errors(f"allocating {nbytes:,} bytes"):
            block = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, nbytes)
        # the driver keeps freed memory until the queued work is done
        self._blocks[block.int_ptr] = block
        return int(block.int_ptr)

    def _copy_in(self, handle: int, offset: int, data: Array) -> None:
        with self._errors(f"copying {data.nbytes:,} bytes in"):
            self._cl.enqueue_copy(self._queue, self._blocks[handle], data, dst_offset=offset, is_blocking=True)

    def _copy_out(self, handle: int, offset: int, data: Array) -> None:
        with self._errors(f"copying {data.nbytes:,} bytes out"):
            self._cl.enqueue_copy(self._queue, data, self._blocks[handle], src_offset=offset, is_blocking=True)

    def _copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        with self._errors(f"copying {nbytes:,} bytes"):
            sizes = {"byte_count": nbytes, "src_offset": source_offset, "dst_offset": target_offset}
            self._cl.enqueue_copy(self._queue, self._blocks[target], self._blocks[source], **sizes)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with self._errors("waiting for the device"):
            self._queue.finish()

    def mark(self) -> Any:
        """Enqueue a marker."""
        with self._errors("marking the queue"):
            return self._cl.enqueue_marker(self._queue)

    def nanoseconds(self, start: Any, end: Any) -> int:
        """Return the device time between two markers."""
        with self._errors("reading the device's clock"):
            end.wait()
            return int(end.profile.end - start.profile.end)

    def build(self, source: str, kernel: str) -> OpenClKernel:
        """Compile the program of one kernel; raise DeviceError, with the first lines of the log, if that fails."""
        # correctly rounded division and square root, if the device supports them
        exact = self._found.single_fp_config & self._cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if exact else []
        return self._kernel(self._cl.Program(self._context, source), kernel, options)

    def load(self, binary: bytes, kernel: str) -> OpenClKernel:
        """Load one kernel of a program compiled for this device; raise as `build` does."""
        with self._errors(f"loading the program of kernel {kernel}"):
            program = self._cl.Program(self._context, [self._found], [binary])
        return self._kernel(program, kernel, [])

    def _kernel(self, program: Any, kernel: str, options: list[str]) -> OpenClKernel:
        import warnings

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # compiler warnings for accepted programs
                program.build(options)
        except self._cl.Error as error:
            log = "\n".join(line for line in str(error).splitlines()[1:] if line.strip())
            raise DeviceError(
                f"the driver's compiler rejects kernel {kernel}:{first_lines(log)}",
                place=f"{self.device} ({self.name})",
            ) from error
        with self._errors(f"taking kernel {kernel} from its program"):
            return OpenClKernel(self, self._cl.Kernel(program, kernel), kernel)


class OpenClKernel:
    """A kernel compiled by the driver."""

    def __init__(self, api: OpenClApi, kernel: Any, name: str) -> None:
        self._api, self._kernel, self._name = api, kernel, name
        self._lock = ForkSafeLock()  # no other thread may set its arguments before it is queued

    def launch(self, launch: KernelLaunch) -> None:
        """Enqueue a launch; raise DeviceError if parameters or arguments do not fit, or the driver fails."""
        given = len(launch.arguments) + (1 if launch.shared_bytes else 0)
        if given != self._kernel.num_args:
            cause = f"the kernel has {self._kernel.num_args} parameters, its description {given}"
            raise DeviceError(cause, place=self._name)
        for index, value in enumerate(launch.arguments):
            if isinstance(value, int) and not self._api.owns(value):
                raise DeviceError(f"argument {index} is {value:#x}, not memory of {self._api.device}", place=self._name)
        api, kernel, count = self._api, self._kernel, launch.dimensions
        sizes = [groups * items for groups, items in zip(launch.grid, launch.block, strict=True)]
        doing = f"launching kernel {self._name} over groups {launch.grid} of {launch.block} items"
        with self._lock, api._errors(doing):
            for index, value in enumerate(launch.arguments):
                kernel.set_arg(index, api._blocks[value] if isinstance(value, int) else value)
            if launch.shared_bytes:
                kernel.set_arg(len(launch.arguments), api._cl.LocalMemory(launch.shared_bytes))
            api._cl.enqueue_nd_range_kernel(api._queue, kernel, sizes[:count], launch.block[:count])


_MARKER = "// Function: "


@register_device_module
class OpenClModule(DeviceModule):
    """Kernels for OpenCL.

    The format is ``cl`` for source, in which each kernel is a separate program after a line ``// Function: <name>``;
    anything else is a binary of all kernels for the device's driver.
    """

    type_key = "opencl"
    text_formats = ("cl",)

    @cached_property
    def _programs(self) -> dict[str, str]:
        # text before the first marker is ignored
        parts = (part.partition("\n") for part in self.get_source().split(_MARKER)[1:])
        programs = {name.strip(): program for name, _, program in parts}
        if len(programs) != len(self.functions):
            raise ArchiveError(
                f"the source has {len(programs)} kernels behind '{_MARKER}' lines, the table {len(self.functions)}",
                place="module of the kind 'opencl'",
            )
        return programs

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = device(self.type_key, index).api
        if not isinstance(api, OpenClApi):
            raise InputError("OpenCL kernels run on the OpenCL driver that comes with mlfc", place=name)
        if self.format not in self.text_formats:
            return api.load(bytes(self.data), name)
        if name not in self._programs:
            raise ArchiveError(f"the source has no kernel '{name}', the table has", place="module of the kind 'opencl'")
        return api.build(self._programs[name], name)


drivers.add("opencl", OpenClDriver())
