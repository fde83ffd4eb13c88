"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough.

Names load on first use: a program that runs a model ahead of time compiled never loads the graph executor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlfc.runtime.devices.device import Device, cpu, cuda, opencl
    from mlfc.runtime.devices.device_api import DeviceApi, drivers
    from mlfc.runtime.devices.kernel_launch import FunctionInfo
    from mlfc.runtime.executors.aot_executor import AotExecutor
    from mlfc.runtime.executors.aot_module import AotModule, BoundCall
    from mlfc.runtime.executors.graph_executor import GraphExecutor
    from mlfc.runtime.executors.graph_module import BoundGraph, GraphModule
    from mlfc.runtime.executors.profile import OperatorTime, Profile
    from mlfc.runtime.executors.profiled_module import ProfiledModule
    from mlfc.runtime.ffi.ffi_func import FfiFunc
    from mlfc.runtime.ffi.packed_func import PackedFunc
    from mlfc.runtime.libraries.factory import FactoryModule
    from mlfc.runtime.libraries.library_module import LibraryModule
    from mlfc.runtime.libraries.shared_library import SharedLibrary, open_library
    from mlfc.runtime.libraries.system_lib import register_system_symbol, system_library
    from mlfc.runtime.modules.cuda_module import CudaModule
    from mlfc.runtime.modules.global_funcs import get_global_func, register_global_func
    from mlfc.runtime.modules.loaders import load_from_bytes, loaders, register_loader
    from mlfc.runtime.modules.module import Module, OpaqueModule
    from mlfc.runtime.modules.onnxruntime_module import OnnxRuntimeModule
    from mlfc.runtime.modules.opencl_module import OpenClModule
    from mlfc.runtime.modules.runnable import Runnable
    from mlfc.runtime.tensor.ndarray import NDArray, array, empty, from_dlpack
    from mlfc.support.tensor_info import TensorInfo

_HOMES = {
    "AotExecutor": "executors.aot_executor",
    "AotModule": "executors.aot_module",
    "BoundCall": "executors.aot_module",
    "BoundGraph": "executors.graph_module",
    "CudaModule": "modules.cuda_module",
    "Device": "devices.device",
    "DeviceApi": "devices.device_api",
    "FactoryModule": "libraries.factory",
    "FfiFunc": "ffi.ffi_func",
    "FunctionInfo": "devices.kernel_launch",
    "GraphExecutor": "executors.graph_executor",
    "GraphModule": "executors.graph_module",
    "LibraryModule": "libraries.library_module",
    "Module": "modules.module",
    "NDArray": "tensor.ndarray",
    "OnnxRuntimeModule": "modules.onnxruntime_module",
    "OpaqueModule": "modules.module",
    "OpenClModule": "modules.opencl_module",
    "OperatorTime": "executors.profile",
    "PackedFunc": "ffi.packed_func",
    "Profile": "executors.profile",
    "ProfiledModule": "executors.profiled_module",
    "Runnable": "modules.runnable",
    "SharedLibrary": "libraries.shared_library",
    "TensorInfo": ".support.tensor_info",
    "array": "tensor.ndarray",
    "cpu": "devices.device",
    "cuda": "devices.device",
    "drivers": "devices.device_api",
    "get_global_func": "modules.global_funcs",
    "empty": "tensor.ndarray",
    "from_dlpack": "tensor.ndarray",
    "load_from_bytes": "modules.loaders",
    "open_library": "libraries.shared_library",
    "loaders": "modules.loaders",
    "opencl": "devices.device",
    "register_global_func": "modules.global_funcs",
    "register_loader": "modules.loaders",
    "register_system_symbol": "libraries.system_lib",
    "system_library": "libraries.system_lib",
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
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'mlfc.runtime' has no attribute '{name}'")
