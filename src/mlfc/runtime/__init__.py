"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough.

Names load on first use: a program that runs a model ahead of time compiled never loads the graph executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.support.lazy import make_lazy

if TYPE_CHECKING:
    from mlfc.runtime.devices.device import Device as Device
    from mlfc.runtime.devices.device import DeviceApi as DeviceApi
    from mlfc.runtime.devices.device import cpu as cpu
    from mlfc.runtime.devices.device import cuda as cuda
    from mlfc.runtime.devices.device import drivers as drivers
    from mlfc.runtime.devices.device import opencl as opencl
    from mlfc.runtime.devices.device import set_device as set_device
    from mlfc.runtime.devices.kernel_launch import FunctionInfo as FunctionInfo
    from mlfc.runtime.executors.aot_executor import AotExecutor as AotExecutor
    from mlfc.runtime.executors.aot_module import AotModule as AotModule
    from mlfc.runtime.executors.aot_module import BoundCall as BoundCall
    from mlfc.runtime.executors.graph_executor import GraphExecutor as GraphExecutor
    from mlfc.runtime.executors.graph_module import BoundGraph as BoundGraph
    from mlfc.runtime.executors.graph_module import GraphModule as GraphModule
    from mlfc.runtime.executors.profile import OperatorTime as OperatorTime
    from mlfc.runtime.executors.profile import Profile as Profile
    from mlfc.runtime.executors.profiled_module import ProfiledModule as ProfiledModule
    from mlfc.runtime.ffi.ffi_func import FfiFunc as FfiFunc
    from mlfc.runtime.ffi.packed_func import PackedFunc as PackedFunc
    from mlfc.runtime.libraries.factory import FactoryModule as FactoryModule
    from mlfc.runtime.libraries.library_module import LibraryModule as LibraryModule
    from mlfc.runtime.libraries.shared_library import SharedLibrary as SharedLibrary
    from mlfc.runtime.libraries.shared_library import open_library as open_library
    from mlfc.runtime.libraries.system_lib import register_system_symbol as register_system_symbol
    from mlfc.runtime.libraries.system_lib import system_library as system_library
    from mlfc.runtime.modules.cuda_module import CudaModule as CudaModule
    from mlfc.runtime.modules.global_funcs import get_global_func as get_global_func
    from mlfc.runtime.modules.global_funcs import register_global_func as register_global_func
    from mlfc.runtime.modules.loaders import load_from_bytes as load_from_bytes
    from mlfc.runtime.modules.loaders import loaders as loaders
    from mlfc.runtime.modules.loaders import register_loader as register_loader
    from mlfc.runtime.modules.module import Module as Module
    from mlfc.runtime.modules.module import OpaqueModule as OpaqueModule
    from mlfc.runtime.modules.onnxruntime_module import OnnxRuntimeModule as OnnxRuntimeModule
    from mlfc.runtime.modules.opencl_module import OpenClModule as OpenClModule
    from mlfc.runtime.modules.runnable import Runnable as Runnable
    from mlfc.runtime.tensor.ndarray import NDArray as NDArray
    from mlfc.runtime.tensor.ndarray import array as array
    from mlfc.runtime.tensor.ndarray import empty as empty
    from mlfc.runtime.tensor.ndarray import from_dlpack as from_dlpack
    from mlfc.support.tensor_info import TensorInfo as TensorInfo

_HOMES = {
    "AotExecutor": "mlfc.runtime.executors.aot_executor",
    "AotModule": "mlfc.runtime.executors.aot_module",
    "BoundCall": "mlfc.runtime.executors.aot_module",
    "BoundGraph": "mlfc.runtime.executors.graph_module",
    "CudaModule": "mlfc.runtime.modules.cuda_module",
    "Device": "mlfc.runtime.devices.device",
    "DeviceApi": "mlfc.runtime.devices.device",
    "FactoryModule": "mlfc.runtime.libraries.factory",
    "FfiFunc": "mlfc.runtime.ffi.ffi_func",
    "FunctionInfo": "mlfc.runtime.devices.kernel_launch",
    "GraphExecutor": "mlfc.runtime.executors.graph_executor",
    "GraphModule": "mlfc.runtime.executors.graph_module",
    "LibraryModule": "mlfc.runtime.libraries.library_module",
    "Module": "mlfc.runtime.modules.module",
    "NDArray": "mlfc.runtime.tensor.ndarray",
    "OnnxRuntimeModule": "mlfc.runtime.modules.onnxruntime_module",
    "OpaqueModule": "mlfc.runtime.modules.module",
    "OpenClModule": "mlfc.runtime.modules.opencl_module",
    "OperatorTime": "mlfc.runtime.executors.profile",
    "PackedFunc": "mlfc.runtime.ffi.packed_func",
    "Profile": "mlfc.runtime.executors.profile",
    "ProfiledModule": "mlfc.runtime.executors.profiled_module",
    "Runnable": "mlfc.runtime.modules.runnable",
    "SharedLibrary": "mlfc.runtime.libraries.shared_library",
    "TensorInfo": "mlfc.support.tensor_info",
    "array": "mlfc.runtime.tensor.ndarray",
    "cpu": "mlfc.runtime.devices.device",
    "cuda": "mlfc.runtime.devices.device",
    "drivers": "mlfc.runtime.devices.device",
    "set_device": "mlfc.runtime.devices.device",
    "get_global_func": "mlfc.runtime.modules.global_funcs",
    "empty": "mlfc.runtime.tensor.ndarray",
    "from_dlpack": "mlfc.runtime.tensor.ndarray",
    "load_from_bytes": "mlfc.runtime.modules.loaders",
    "open_library": "mlfc.runtime.libraries.shared_library",
    "loaders": "mlfc.runtime.modules.loaders",
    "opencl": "mlfc.runtime.devices.device",
    "register_global_func": "mlfc.runtime.modules.global_funcs",
    "register_loader": "mlfc.runtime.modules.loaders",
    "register_system_symbol": "mlfc.runtime.libraries.system_lib",
    "system_library": "mlfc.runtime.libraries.system_lib",
}

make_lazy(__name__)
