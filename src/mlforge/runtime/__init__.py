"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough.

Names load on first use: a program that runs a model ahead of time compiled never loads the graph executor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlforge.runtime.aot_executor import AotExecutor
    from mlforge.runtime.aot_module import AotModule, BoundCall
    from mlforge.runtime.cuda_module import CudaModule
    from mlforge.runtime.device import Device, cpu, cuda, opencl
    from mlforge.runtime.device_api import DeviceApi, drivers
    from mlforge.runtime.factory import FactoryModule
    from mlforge.runtime.ffi_func import FfiFunc
    from mlforge.runtime.global_funcs import get_global_func, register_global_func
    from mlforge.runtime.graph_executor import GraphExecutor
    from mlforge.runtime.graph_module import BoundGraph, GraphModule
    from mlforge.runtime.kernel_launch import FunctionInfo
    from mlforge.runtime.library_module import LibraryModule
    from mlforge.runtime.loaders import load_from_bytes, loaders, register_loader
    from mlforge.runtime.module import Module, OpaqueModule
    from mlforge.runtime.ndarray import NDArray, array, empty, from_dlpack
    from mlforge.runtime.onnxruntime_module import OnnxRuntimeModule
    from mlforge.runtime.opencl_module import OpenClModule
    from mlforge.runtime.packed_func import PackedFunc
    from mlforge.runtime.profile import OperatorTime, Profile
    from mlforge.runtime.profiled_module import ProfiledModule
    from mlforge.runtime.runnable import Runnable
    from mlforge.runtime.shared_library import SharedLibrary, open_library
    from mlforge.runtime.system_lib import register_system_symbol, system_library
    from mlforge.runtime.tensor_info import TensorInfo

_HOMES = {
    "AotExecutor": "aot_executor",
    "AotModule": "aot_module",
    "BoundCall": "aot_module",
    "BoundGraph": "graph_module",
    "CudaModule": "cuda_module",
    "Device": "device",
    "DeviceApi": "device_api",
    "FactoryModule": "factory",
    "FfiFunc": "ffi_func",
    "FunctionInfo": "kernel_launch",
    "GraphExecutor": "graph_executor",
    "GraphModule": "graph_module",
    "LibraryModule": "library_module",
    "Module": "module",
    "NDArray": "ndarray",
    "OnnxRuntimeModule": "onnxruntime_module",
    "OpaqueModule": "module",
    "OpenClModule": "opencl_module",
    "OperatorTime": "profile",
    "PackedFunc": "packed_func",
    "Profile": "profile",
    "ProfiledModule": "profiled_module",
    "Runnable": "runnable",
    "SharedLibrary": "shared_library",
    "TensorInfo": "tensor_info",
    "array": "ndarray",
    "cpu": "device",
    "cuda": "device",
    "drivers": "device_api",
    "get_global_func": "global_funcs",
    "empty": "ndarray",
    "from_dlpack": "ndarray",
    "load_from_bytes": "loaders",
    "open_library": "shared_library",
    "loaders": "loaders",
    "opencl": "device",
    "register_global_func": "global_funcs",
    "register_loader": "loaders",
    "register_system_symbol": "system_lib",
    "system_library": "system_lib",
}

__all__ = [
    "AotExecutor",
    "AotModule",
    "BoundCall",
    "BoundGraph",
    "CudaModule",
    "Device",
    "DeviceApi",
    "FactoryModule",
    "FfiFunc",
    "FunctionInfo",
    "GraphExecutor",
    "GraphModule",
    "LibraryModule",
    "Module",
    "NDArray",
    "OnnxRuntimeModule",
    "OpaqueModule",
    "OpenClModule",
    "OperatorTime",
    "PackedFunc",
    "Profile",
    "ProfiledModule",
    "Runnable",
    "SharedLibrary",
    "TensorInfo",
    "array",
    "cpu",
    "cuda",
    "drivers",
    "empty",
    "from_dlpack",
    "get_global_func",
    "load_from_bytes",
    "loaders",
    "open_library",
    "opencl",
    "register_global_func",
    "register_loader",
    "register_system_symbol",
    "system_library",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"mlforge.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mlforge.runtime' has no attribute '{name}'")
