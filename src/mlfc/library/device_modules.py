"""Modules of the kernels that a compiled module launches on its device."""

from __future__ import annotations

from collections.abc import Mapping

from mlfc.codegen import DeviceCode
from mlfc.codegen.host.launch import launch_extents
from mlfc.errors import InternalError
from mlfc.runtime.devices.kernel_launch import HANDLE, FunctionInfo
from mlfc.runtime.modules.module import Module
from mlfc.target.target import Target

KERNEL_SUFFIXES = {"cuda": "cu", "opencl": "cl"}
"""Of files with the source of kernels, by the kind of device."""


def device_module(code: DeviceCode, target: Target) -> Module:
    """Return the module of a device's kernels, compiled ahead of time where the kind of device has a compiler here.

    Parameters
    ----------
    code : DeviceCode
    target : Target
        The device's.
    """
    functions = function_table(code)
    if code.kind == "opencl":
        from mlfc.runtime.modules.opencl_module import SOURCE, OpenClModule

        return OpenClModule(SOURCE, functions, code.source)
    if code.kind == "cuda":
        from mlfc.library.cuda_compiler import compile_cuda
        from mlfc.runtime.modules.cuda_module import CudaModule

        compiled = compile_cuda(code.source, target.options.get("-arch"))
        return CudaModule(compiled.format, functions, compiled.data)
    raise InternalError(f"there are no modules for '{target}'")


def function_table(code: DeviceCode) -> Mapping[str, FunctionInfo]:
    """Return how each kernel is called: handles of tensors, then the extents of the launch."""
    return {
        kernel.name: FunctionInfo(kernel.name, (HANDLE,) * len(kernel.arguments), tuple(launch_extents(kernel)))
        for kernel in code.kernels
    }
