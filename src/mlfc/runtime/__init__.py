"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough.

Names load on first use: a program that runs a model ahead of time compiled never loads the graph executor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfc.runtime.aot_executor import AotExecutor
    from mlfc.runtime.aot_module import AotModule, BoundCall
    from mlfc.runtime.cuda_module import CudaModule
    from mlfc.runtime.device import Device, cpu, cuda, opencl
    from mlfc.runtime.device_api import DeviceApi, drivers
    from mlfc.runtime.factory import FactoryModule
    from mlfc.runtime.ffi_func import FfiFunc
    from mlfc.runtime.global_funcs import get_global_func, register_global_func
    from mlfc.runtime.graph_executor import GraphExecutor
    from mlfc.runtime.graph_module import BoundGraph, GraphModule
    from mlfc.runtime.kernel_launch import FunctionInfo
    from mlfc.runtime.library_module import LibraryModule
    from mlfc.runtime.loaders import load_from_bytes, loaders, register_loader
    from mlfc.runtime.module import Module, OpaqueModule
    from mlfc.runtime.ndarray import NDArray, array, empty, from_dlpack
    from mlfc.runtime.onnxruntime_module import OnnxRuntimeModule
    from mlfc.runtime.opencl_module import OpenClModule
    from mlfc.runtime.packed_func import PackedFunc
    from mlfc.runtime.profile import OperatorTime, Profile
    from mlfc.runtime.profiled_module import ProfiledModule
    from mlfc.runtime.runnable import Runnable
    from mlfc.runtime.shared_library import SharedLibrary, open_library
    from mlfc.runtime.system_lib import register_system_symbol, system_library
    from mlfc.runtime.tensor_info import TensorInfo

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
        return getattr(import_module(f"mlfc.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mlfc.runtime' has no attribute '{name}'")
