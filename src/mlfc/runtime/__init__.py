"""Runtime for compiled models; requires only numpy and ctypes, and does not import the compiler.

Names are imported lazily: a program that runs a model compiled ahead of time does not import the graph executor.
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
    from mlfc.runtime.drivers.cuda import CudaModule as CudaModule
    from mlfc.runtime.drivers.opencl import OpenClModule as OpenClModule
    from mlfc.runtime.executors.aot_module import AotExecutor as AotExecutor
    from mlfc.runtime.executors.aot_module import AotModule as AotModule
    from mlfc.runtime.executors.aot_module import BoundCall as BoundCall
    from mlfc.runtime.executors.graph_executor import GraphExecutor as GraphExecutor
    from mlfc.runtime.executors.graph_module import BoundGraph as BoundGraph
    from mlfc.runtime.executors.graph_module import GraphModule as GraphModule
    from mlfc.runtime.executors.profile import OperatorTime as OperatorTime
    from mlfc.runtime.executors.profile import Profile as Profile
    from mlfc.runtime.executors.profile import ProfiledModule as ProfiledModule
    from mlfc.runtime.executors.vm.vm_model import VmModel as VmModel
    from mlfc.runtime.executors.vm.vm_module import VirtualMachine as VirtualMachine
    from mlfc.runtime.executors.vm.vm_module import VmModule as VmModule
    from mlfc.runtime.ffi.native_code import FfiFunc as FfiFunc
    from mlfc.runtime.ffi.native_code import PackedFunc as PackedFunc
    from mlfc.runtime.libraries.factory import FactoryModule as FactoryModule
    from mlfc.runtime.libraries.library_module import LibraryModule as LibraryModule
    from mlfc.runtime.libraries.shared_library import SharedLibrary as SharedLibrary
    from mlfc.runtime.libraries.shared_library import open_library as open_library
    from mlfc.runtime.libraries.shared_library import register_system_symbol as register_system_symbol
    from mlfc.runtime.libraries.shared_library import system_library as system_library
    from mlfc.runtime.modules.device_module import FunctionInfo as FunctionInfo
    from mlfc.runtime.modules.module import Module as Module
    from mlfc.runtime.modules.module import OpaqueModule as OpaqueModule
    from mlfc.runtime.modules.module import get_global_func as get_global_func
    from mlfc.runtime.modules.module import load_from_bytes as load_from_bytes
    from mlfc.runtime.modules.module import loaders as loaders
    from mlfc.runtime.modules.module import register_global_func as register_global_func
    from mlfc.runtime.modules.module import register_loader as register_loader
    from mlfc.runtime.modules.onnxruntime_module import OnnxRuntimeModule as OnnxRuntimeModule
    from mlfc.runtime.modules.runnable import Runnable as Runnable
    from mlfc.runtime.tensor.ndarray import NDArray as NDArray
    from mlfc.runtime.tensor.ndarray import array as array
    from mlfc.runtime.tensor.ndarray import empty as empty
    from mlfc.runtime.tensor.ndarray import from_dlpack as from_dlpack
    from mlfc.runtime.tensor.ndarray import load_param_dict as load_param_dict
    from mlfc.runtime.tensor.ndarray import save_param_dict as save_param_dict
    from mlfc.support.tensor_info import TensorInfo as TensorInfo

_NAMES = {
    "runtime.devices.device": "Device DeviceApi cpu cuda drivers opencl set_device",
    "runtime.modules.device_module": "FunctionInfo",
    "runtime.executors.aot_module": "AotExecutor AotModule BoundCall",
    "runtime.executors.graph_executor": "GraphExecutor",
    "runtime.executors.graph_module": "BoundGraph GraphModule",
    "runtime.executors.profile": "OperatorTime Profile ProfiledModule",
    "runtime.executors.vm.vm_model": "VmModel",
    "runtime.executors.vm.vm_module": "VirtualMachine VmModule",
    "runtime.ffi.native_code": "FfiFunc PackedFunc",
    "runtime.libraries.factory": "FactoryModule",
    "runtime.libraries.library_module": "LibraryModule",
    "runtime.libraries.shared_library": "SharedLibrary open_library register_system_symbol system_library",
    "runtime.drivers.cuda": "CudaModule",
    "runtime.drivers.opencl": "OpenClModule",
    "runtime.modules.module": (
        "Module OpaqueModule get_global_func load_from_bytes loaders register_global_func register_loader"
    ),
    "runtime.modules.onnxruntime_module": "OnnxRuntimeModule",
    "runtime.modules.runnable": "Runnable",
    "runtime.tensor.ndarray": "NDArray array empty from_dlpack load_param_dict save_param_dict",
    "support.tensor_info": "TensorInfo",
}
_HOMES = {name: f"mlfc.{home}" for home, names in _NAMES.items() for name in names.split()}

make_lazy(__name__)
