"""Run launches of loop-level functions on a device, for tests of device kernels."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc import cuda
from mlfc.codegen.device import device_kernels, device_source
from mlfc.codegen.host.packed import launch_extents
from mlfc.runtime import CudaModule, FunctionInfo
from mlfc.runtime.devices.cuda_compilers import compile_cuda
from mlfc.support import dtypes
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.program import Program, Value
from tests.conftest import need_opencl
from tests.native.cuda_on_host import host_code
from tests.native.kernel_runner import aligned

Array = npt.NDArray[Any]
RunKernel: TypeAlias = Callable[..., Array]


@cache
def queue() -> Any:
    """Return an OpenCL queue of the first device found."""
    need_opencl()
    import pyopencl

    (device, *_) = (device for platform in pyopencl.get_platforms() for device in platform.get_devices())
    return pyopencl.CommandQueue(pyopencl.Context([device]))


def parts_of(source: str) -> list[str]:
    """Return the per-kernel programs of an OpenCL source."""
    return [part.partition("\n")[2] for part in source.split("// Function: ")[1:]]


class OnOpencl:
    """Kernels of functions for the OpenCL device, all built in one program without optimization.

    This takes a quarter of the time that separate or optimized programs would take.

    Parameters
    ----------
    prims : sequence of PrimFunc
    """

    def __init__(self, prims: Sequence[PrimFunc], *, contracts: bool = True) -> None:
        import pyopencl as cl

        self._kernels = {id(prim): device_kernels(prim, f"tested{number}") for number, prim in enumerate(prims)}
        every = [kernel for made in self._kernels.values() for kernel in made]
        source = device_source(every, "opencl", contracts=contracts)
        # each part contains the functions that it calls; functions of several parts appear once in the program
        blocks = dict.fromkeys(block.strip() for part in parts_of(source) for block in part.split("\n\n"))
        program = cl.Program(queue().context, "\n\n".join(blocks)).build(["-cl-opt-disable"]) if every else None
        self._compiled = {kernel.name: cl.Kernel(program, kernel.name) for kernel in every}

    def __call__(self, prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = ()) -> Array:
        """Return the output of one of the functions."""
        import pyopencl as cl

        memory: dict[int, Any] = {}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        for buffer, array in zip((*prim.inputs, *prim.constants), (*inputs, *constants), strict=True):
            memory[id(buffer)] = cl.Buffer(queue().context, flags, hostbuf=_bytes(array))
        for buffer in (*prim.scratch, prim.output):
            filled = np.full(max(buffer.nbytes, 1), 0x5A, np.uint8)
            memory[id(buffer)] = cl.Buffer(queue().context, flags, hostbuf=filled)
        for kernel in self._kernels[id(prim)]:
            extent = tuple(groups * items for groups, items in zip(kernel.grid, kernel.block, strict=True))
            compiled = self._compiled[kernel.name]
            compiled.set_args(*(memory[id(buffer)] for buffer in kernel.arguments))
            cl.enqueue_nd_range_kernel(queue(), compiled, extent, kernel.block)
        result = np.empty(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
        if result.size:
            cl.enqueue_copy(queue(), result.reshape(-1).view(np.uint8), memory[id(prim.output)])
        return result


def _bytes(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat if flat.size else np.zeros(1, np.uint8)


def run_program(program: Program, inputs: Mapping[str, Array], run: RunKernel) -> dict[str, Array]:
    """Return the outputs of a program whose kernels are run one after another by `run`."""
    known: dict[Value, Array] = {value: value.data for value in program.constants if value.data is not None}
    known.update((value, inputs[value.name]) for value in program.inputs)

    def content(value: Value, buffer: Buffer) -> Array:
        flat = np.ascontiguousarray(known[value.root]).reshape(-1).view(np.uint8)
        own = flat[value.root_start : value.root_start + value.nbytes]
        return own.view(dtypes.to_numpy(buffer.dtype)).reshape(buffer.shape)

    for call in program.calls:
        arguments = [content(*pair) for pair in zip(call.inputs, call.kernel.inputs, strict=True)]
        constants = [content(*pair) for pair in zip(call.constants, call.kernel.constants, strict=True)]
        known[call.output.root] = run(call.kernel, arguments, constants)
    return {
        value.name: np.ascontiguousarray(known[value.root])
        .reshape(-1)
        .view(np.uint8)[value.root_start : value.root_start + value.nbytes]
        .view(dtypes.to_numpy(value.dtype))
        .reshape(value.shape)
        for value in program.outputs
    }


class CudaOnHost:
    """Kernels of functions as CUDA C++, all compiled in one file for this processor and run there.

    Parameters
    ----------
    prims : sequence of PrimFunc
    """

    def __init__(self, prims: Sequence[PrimFunc], *, contracts: bool = True) -> None:
        self._kernels = {id(prim): device_kernels(prim, f"tested{number}") for number, prim in enumerate(prims)}
        self.source = device_source(
            [kernel for made in self._kernels.values() for kernel in made], "cuda", contracts=contracts
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels.so"
            path.write_bytes(host_code(self.source))
            self._library = ctypes.CDLL(str(path))

    def __call__(self, prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = ()) -> Array:
        """Return the output of one of the functions."""
        memory: dict[int, Array] = {}
        for buffer, array in zip((*prim.inputs, *prim.constants), (*inputs, *constants), strict=True):
            memory[id(buffer)] = aligned(array.shape, array.dtype)
            memory[id(buffer)][...] = array
        for buffer in (*prim.scratch, prim.output):
            memory[id(buffer)] = aligned(buffer.shape, dtypes.to_numpy(buffer.dtype))
            memory[id(buffer)].reshape(-1).view(np.uint8)[...] = 0x5A
        three = ctypes.c_uint * 3
        for kernel in self._kernels[id(prim)]:
            pointers = [ctypes.c_void_p(memory[id(buffer)].ctypes.data) for buffer in kernel.arguments]
            values = (ctypes.c_void_p * len(pointers))(*(ctypes.addressof(pointer) for pointer in pointers))
            call = getattr(self._library, f"on_host_call_{kernel.name}")
            assert self._library.on_host_run(call, three(*kernel.grid), three(*kernel.block), 0, values) == 0
        return memory[id(prim.output)]


class OnCuda:
    """Kernels of functions on the GPU, all compiled in one file.

    Parameters
    ----------
    prims : sequence of PrimFunc
    """

    def __init__(self, prims: Sequence[PrimFunc], *, contracts: bool = True) -> None:
        self._api: Any = cuda(0).api
        self._kernels = {id(prim): device_kernels(prim, f"tested{number}") for number, prim in enumerate(prims)}
        every = [kernel for made in self._kernels.values() for kernel in made]
        table = {
            kernel.name: FunctionInfo("", ("handle",) * len(kernel.arguments), tuple(launch_extents(kernel)))
            for kernel in every
        }
        code = compile_cuda(device_source(every, "cuda", contracts=contracts), self._api.arch)
        self._module = CudaModule(code.format, table, code.data)

    def __call__(self, prim: PrimFunc, inputs: Sequence[Array], constants: Sequence[Array] = ()) -> Array:
        """Return the output of one of the functions."""
        memory: dict[int, int] = {}

        def place(buffer: Buffer, array: Array) -> None:
            memory[id(buffer)] = self._api.allocate(array.nbytes)
            self._api.copy_in(memory[id(buffer)], 0, array)

        for buffer, array in zip((*prim.inputs, *prim.constants), (*inputs, *constants), strict=True):
            place(buffer, _bytes(array))
        for buffer in (*prim.scratch, prim.output):
            place(buffer, np.full(max(buffer.nbytes, 1), 0x5A, np.uint8))
        for kernel in self._kernels[id(prim)]:
            handles = [memory[id(buffer)] for buffer in kernel.arguments]
            self._module[kernel.name](*handles, *launch_extents(kernel).values())
        result = np.empty(prim.output.shape, dtypes.to_numpy(prim.output.dtype))
        if result.size:
            self._api.copy_out(memory[id(prim.output)], 0, result.reshape(-1).view(np.uint8))
        for handle in memory.values():
            self._api.free(handle)
        return result
