"""NVIDIA GPUs through the CUDA driver API (cuda-python), with CUDA graphs of launches."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from mlfc.errors import DeviceError, InputError
from mlfc.runtime.devices.cuda_compilers import compile_cuda, compute_arch, require_nvrtc
from mlfc.runtime.devices.device import Device, DeviceApi, device, drivers, recorded_step, recording_step
from mlfc.runtime.modules.device_module import DeviceModule, KernelLaunch, LoadedKernel, register_device_module
from mlfc.support.locks import ForkSafeLock
from mlfc.support.tensor_info import Array
from mlfc.support.text import first_lines

_NO_PACKAGE = 'Run in a checkout of mlfc: pip install ".[cuda]"'
_NO_DRIVER = "Install NVIDIA's driver for the GPU; nvidia-smi must then list it"
_LOST = "The process has lost the device: restart the process"
_COMPILE = "Compile for this GPU: {target}"
_UPDATE = "Update NVIDIA's driver, or compile for this GPU, so that the driver need not compile: {target}"
_NEXT_STEPS = {
    "CUDA_ERROR_NO_DEVICE": _NO_DRIVER,
    "CUDA_ERROR_STUB_LIBRARY": _NO_DRIVER,
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "Reboot the machine: its kernel still uses the driver from before an update",
    "CUDA_ERROR_SYSTEM_NOT_READY": "Start NVIDIA's services: nvidia-persistenced, with NVSwitch nvidia-fabricmanager",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "Another process has exclusive use of the device: end it, or use another device",
    "CUDA_ERROR_OUT_OF_MEMORY": "The device is out of memory: free some, or run a smaller model",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": _UPDATE,
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": _UPDATE,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": _COMPILE,
    "CUDA_ERROR_INVALID_IMAGE": _COMPILE,
    "CUDA_ERROR_INVALID_PTX": _COMPILE,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "Its thread blocks are too large for the GPU: compile for it with {target}",
}
_FATAL = ("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION", "LAUNCH_FAILED", "LAUNCH_TIMEOUT")
_NEXT_STEPS |= {f"CUDA_ERROR_{name}": _LOST for name in (*_FATAL, "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE")}
# shared memory that a kernel may use without opting in to more
_PLAIN_SHARED_BYTES = 48 << 10
_LOG_BYTES = 8192


@cache
def _bindings() -> Any:
    """Return cuda-python's driver module with the driver initialized."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(f"CUDA needs cuda-python, which does not load: {error}", next_step=_NO_PACKAGE) from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # raised by cuda-python if the driver's library is missing
        raise DeviceError("CUDA has no driver here: its library cannot be loaded", next_step=_NO_DRIVER) from error
    if status.value:
        raise DeviceError(f"CUDA does not start: {status.name}", next_step=_NEXT_STEPS.get(status.name, _NO_DRIVER))
    return driver


class CudaDriver:
    """Driver of NVIDIA GPUs."""

    def count(self) -> int:
        """Return the number of GPUs."""
        status, count = _bindings().cuDeviceGetCount()
        if status.value or not count:
            raise DeviceError("no CUDA device was found", next_step=_NO_DRIVER)
        return int(count)

    def open(self, device: Device) -> CudaApi:
        """Open a GPU."""
        return CudaApi(device)


class CudaApi(DeviceApi):
    """The primary context of a GPU and its default stream, which other libraries in the process share.

    A handle is an address; addresses of other libraries' memory are accepted too.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.name = "GPU"
        self.capability = (0, 0)
        self.bindings = cu = _bindings()
        # the default stream keeps the order with work of PyTorch and other libraries
        self.stream = cu.CUstream(0)
        number = self._call("finding the device", cu.cuDeviceGet, device.index)
        self.name = self._call("reading its name", cu.cuDeviceGetName, 256, number).split(b"\0")[0].decode()
        names = (f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}" for part in ("MAJOR", "MINOR"))
        attributes = [getattr(cu.CUdevice_attribute, name) for name in names]
        ask = partial(self._call, "reading its compute capability", cu.cuDeviceGetAttribute)
        major, minor = (ask(attribute, number) for attribute in attributes)
        self.capability = (int(major), int(minor))
        self.memory_bytes = int(self._call("reading its memory size", cu.cuDeviceTotalMem, number))
        version = self._call("reading the driver's version", cu.cuDriverGetVersion)
        self.driver = f"CUDA {version // 1000}.{version % 1000 // 10}, compute capability {major}.{minor}"
        self._context = self._call("opening the device", cu.cuDevicePrimaryCtxRetain, number)
        self._number = int(self._context)

    @property
    def arch(self) -> str:
        """Compute capability as a compiler option: ``sm_90``."""
        return "sm_{}{}".format(*self.capability)

    def _fault(self, doing: str, status: Any, log: str = "") -> DeviceError:
        step = _NEXT_STEPS.get(status.name)
        return DeviceError(
            f"CUDA failed while {doing}: {status.name}{log}",
            place=f"{self.device} ({self.name})",
            next_step=step.format(target=f'--target "cuda -arch={self.arch}"') if step else None,
        )

    def _call(self, doing: str, function: Any, *args: Any) -> Any:
        """Call the driver; return its result, None for a function without one."""
        status, *results = function(*args)
        if status.value:
            raise self._fault(doing, status)
        return results[0] if results else None

    def run(self, doing: str, function: Any, *args: Any) -> Any:
        """Call the driver in the device's context, and restore the thread's own afterwards."""
        current = int(self._call("taking the device", self.bindings.cuCtxGetCurrent))
        if not current:
            self._call("taking the device", self.bindings.cuCtxSetCurrent, self._context)
        if current in (0, self._number):
            return self._call(doing, function, *args)
        self._call("taking the device", self.bindings.cuCtxPushCurrent, self._context)
        try:
            return self._call(doing, function, *args)
        finally:
            self.bindings.cuCtxPopCurrent()

    def _allocate(self, nbytes: int, alignment: int) -> int:
        # the driver aligns to 256 bytes at least
        if alignment > 256:
            raise DeviceError(f"CUDA aligns blocks to 256 bytes, got {alignment}", place=str(self.device))
        return int(self.run(f"allocating {nbytes:,} bytes", self.bindings.cuMemAlloc, nbytes))

    def _free(self, handle: int) -> None:
        # waits for the work that still uses it
        self.run("freeing memory", self.bindings.cuMemFree, handle)

    def _size_of(self, handle: int) -> int | None:
        own = super()._size_of(handle)
        if own is not None or handle <= 0:
            return own

        def left() -> tuple[Any, int | None]:
            """Return success, and the bytes up to the end of the memory; None if the handle is unknown."""
            status, base, size = self.bindings.cuMemGetAddressRange(handle)
            return self.bindings.CUresult.CUDA_SUCCESS, None if status.value else int(base) + int(size) - handle

        found: int | None = self.run("looking for memory", left)
        return found

    def _copy_in(self, handle: int, offset: int, data: Array) -> None:
        what = f"copying {data.nbytes:,} bytes in"
        self.run(what, self.bindings.cuMemcpyHtoDAsync, handle + offset, data.ctypes.data, data.nbytes, self.stream)
        self.run(what, self.bindings.cuStreamSynchronize, self.stream)

    def _copy_out(self, handle: int, offset: int, data: Array) -> None:
        what = f"copying {data.nbytes:,} bytes out"
        self.run(what, self.bindings.cuMemcpyDtoHAsync, data.ctypes.data, handle + offset, data.nbytes, self.stream)
        self.run(what, self.bindings.cuStreamSynchronize, self.stream)

    def _copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        to, at = target + target_offset, source + source_offset
        self.run(f"copying {nbytes:,} bytes", self.bindings.cuMemcpyDtoDAsync, to, at, nbytes, self.stream)

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self.run("waiting for the device", self.bindings.cuStreamSynchronize, self.stream)

    def new_mark(self) -> CudaMark:
        """Return an event that is not in the stream yet."""
        return CudaMark(self.run("marking the stream", self.bindings.cuEventCreate, 0), self.bindings.cuEventDestroy)

    def mark(self) -> CudaMark:
        """Record an event in the stream."""
        mark = self.new_mark()
        self.run("marking the stream", self.bindings.cuEventRecord, mark.event, self.stream)
        return mark

    def nanoseconds(self, start: CudaMark, end: CudaMark) -> int:
        """Return the device time between two events."""
        self.run("waiting for a mark", self.bindings.cuEventSynchronize, end.event)
        events = (start.event, end.event)
        milliseconds: float = self.run("reading the device's clock", self.bindings.cuEventElapsedTime, *events)
        return round(1e6 * milliseconds)

    def load(self, image: bytes, names: str) -> CudaImage:
        """Load PTX, which the driver compiles, or a binary; raise DeviceError with the compiler's log on failure."""
        cu = self.bindings
        log = bytearray(_LOG_BYTES)
        options = (cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)

        def load() -> Any:
            status, module = cu.cuModuleLoadDataEx(image, len(options), options, (log, _LOG_BYTES))
            if status.value:
                text = bytes(log).split(b"\0")[0].decode(errors="replace")
                raise self._fault(f"loading the kernels {names}", status, first_lines(text))
            return status, module

        return CudaImage(self, self.run(f"loading the kernels {names}", load))

    def drop(self, doing: str, destroy: Any, thing: Any) -> None:
        """Destroy an object of the driver once no work uses it."""
        # a lost device has lost this object too, and no caller handles an error here
        with suppress(DeviceError):
            self.synchronize()
            self.run(doing, destroy, thing)

    def enqueue(self, work: CudaLaunch) -> None:
        """Enqueue a launch in the stream."""
        sizes = (*work.launch.grid, *work.launch.block, work.launch.shared_bytes)
        self.run(work.doing, self.bindings.cuLaunchKernel, work.function, *sizes, self.stream, work.parameters, 0)

    def record(
        self, steps: Sequence[Callable[[], object]], after: Sequence[Collection[int]] | None = None
    ) -> CudaRecording | None:
        """Return the launches of steps as a CUDA graph; as `DeviceApi.record`."""
        recorded = []
        for step in steps:
            with recording_step() as done:
                step()
            if not done.only_launches:
                return None
            recorded.append(done.launches)
        try:
            return CudaRecording(self, recorded, after)
        except DeviceError:  # for example out of memory: launched one by one they may run, or report their own error
            return None


class CudaMark:
    """An event in the stream, destroyed with this object."""

    def __init__(self, event: Any, destroy: Callable[[Any], Any]) -> None:
        self.event = event
        weakref.finalize(self, destroy, event).atexit = False


@dataclass(frozen=True)
class CudaLaunch:
    """A launch in the form of the driver API."""

    function: Any
    name: str
    launch: KernelLaunch
    parameters: int  # the address of the addresses of its arguments
    kept: tuple[object, ...]  # what is there

    @property
    def doing(self) -> str:
        """Description for error messages."""
        return f"launching kernel {self.name} over groups {self.launch.grid} of {self.launch.block} items"


class CudaRecording:
    """A CUDA graph of launches, submitted at once; independent launches run in parallel.

    The launches of each of `steps` are sequential; `after` is as for `DeviceApi.record`.
    """

    def __init__(
        self, api: CudaApi, steps: Sequence[Sequence[CudaLaunch]], after: Sequence[Collection[int]] | None
    ) -> None:
        self._api = api
        self._steps = steps
        self._marks: list[CudaMark] = []
        cu = api.bindings
        self._graph = graph = api.run("making a graph", cu.cuGraphCreate, 0)
        try:
            if after is None:  # sequential, with an event before and after each
                ends = self._add_mark([])
                for launches in steps:
                    ends = self._add_mark(self._add_launches(launches, ends))
            else:
                ends_of: list[list[Any]] = []
                for launches, earlier in zip(steps, after, strict=True):
                    nodes = {int(node): node for step in sorted(earlier) for node in ends_of[step]}
                    ends_of.append(self._add_launches(launches, list(nodes.values())))
            self._executable = api.run("making a graph", cu.cuGraphInstantiate, graph, 0)
        finally:
            api.drop("making a graph", cu.cuGraphDestroy, graph)
        weakref.finalize(self, api.drop, "dropping a graph", cu.cuGraphExecDestroy, self._executable).atexit = False

    def _add_launches(self, launches: Sequence[CudaLaunch], ends: list[Any]) -> list[Any]:
        """Add launches that depend on nodes; return the nodes that the next step depends on."""
        cu = self._api.bindings
        for work in launches:
            node = cu.CUDA_KERNEL_NODE_PARAMS()
            node.func = work.function
            node.gridDimX, node.gridDimY, node.gridDimZ = work.launch.grid
            node.blockDimX, node.blockDimY, node.blockDimZ = work.launch.block
            node.sharedMemBytes = work.launch.shared_bytes
            node.kernelParams = work.parameters
            ends = [self._api.run(work.doing, cu.cuGraphAddKernelNode, self._graph, ends, len(ends), node)]
        return ends

    def _add_mark(self, ends: list[Any]) -> list[Any]:
        mark, add = self._api.new_mark(), self._api.bindings.cuGraphAddEventRecordNode
        self._marks.append(mark)
        return [self._api.run("marking a graph", add, self._graph, ends, len(ends), mark.event)]

    def launch(self) -> None:
        """Launch the graph in the device's stream; raise DeviceError if the driver fails."""
        self._api.run("launching a graph", self._api.bindings.cuGraphLaunch, self._executable, self._api.stream)

    def nanoseconds(self) -> list[int]:
        """Return the device time of each step of the latest launch once it is done; empty unless timed."""
        return [self._api.nanoseconds(start, end) for start, end in pairwise(self._marks)]


class CudaImage:
    """A module loaded by the driver, unloaded with this object."""

    def __init__(self, api: CudaApi, module: Any) -> None:
        self.module = module
        # at process exit the driver may already be gone, and has freed everything
        destroy = api.bindings.cuModuleUnload
        weakref.finalize(self, api.drop, "unloading kernels", destroy, module).atexit = False


class CudaKernel:
    """A kernel of an image; raises DeviceError if the image lacks it."""

    def __init__(self, api: CudaApi, image: CudaImage, name: str) -> None:
        self._api, self._image, self._name = api, image, name
        find = api.bindings.cuModuleGetFunction
        self._function = api.run(f"looking for kernel {name}", find, image.module, name.encode())
        self._shared = _PLAIN_SHARED_BYTES
        self._lock = ForkSafeLock()

    def launch(self, launch: KernelLaunch) -> None:
        """Enqueue a launch in the device's stream; raise DeviceError if the driver fails."""
        count = len(launch.arguments)
        values, places = (ctypes.c_uint64 * max(1, count))(), (ctypes.c_void_p * max(1, count))()
        start = ctypes.addressof(values)
        for index, value in enumerate(launch.arguments):
            # a parameter is the first bytes of its 8-byte slot: GPUs and their hosts are little-endian
            values[index] = value if isinstance(value, int) else int.from_bytes(np.asarray(value).tobytes(), "little")
            places[index] = start + 8 * index
        if launch.shared_bytes > self._shared:
            with self._lock:
                cu, nbytes = self._api.bindings, launch.shared_bytes
                attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                doing = f"giving kernel {self._name} {nbytes:,} bytes of shared memory"
                self._api.run(doing, cu.cuFuncSetAttribute, self._function, attribute, nbytes)
                self._shared = nbytes
        parameters = ctypes.addressof(places)
        work = CudaLaunch(self._function, self._name, launch, parameters, (values, places, self._image))
        step = recorded_step()
        if step is None:
            self._api.enqueue(work)
        else:
            step.launches.append(work)


_SOURCE, _PTX = "cu", "ptx"


@register_device_module
class CudaModule(DeviceModule):
    """Kernels for NVIDIA GPUs.

    The format is ``cu`` for source, which NVRTC compiles for the current GPU, ``ptx`` for PTX, which the driver
    compiles, ``cubin`` or ``fatbin`` for machine code.
    """

    type_key = "cuda"
    text_formats = (_SOURCE, _PTX)

    @staticmethod
    def compiled(source: str, form: str, options: Mapping[str, str]) -> tuple[str, bytes]:  # noqa: ARG004 (every kind of device takes these)
        """Return the format and data of kernels, compiled for the target option ``-arch``."""
        return compile_cuda(source, options.get("-arch"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._images: dict[int, Any] = {}
        self._loading = ForkSafeLock()

    def _load(self, name: str, index: int) -> LoadedKernel:
        api = device("cuda", index).api
        if not isinstance(api, CudaApi):
            raise InputError("CUDA kernels run on the CUDA driver that comes with mlfc", place=name)
        with self._loading:
            if index not in self._images:
                self._images[index] = api.load(self._image(api), ", ".join(self.functions))
        return CudaKernel(api, self._images[index], name)

    def _image(self, api: CudaApi) -> bytes:
        if self.format != _SOURCE:
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


drivers.add("cuda", CudaDriver())
