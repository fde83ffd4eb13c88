"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough.

Names load on first use: a program that runs a model ahead of time compiled never loads the graph executor.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlforge.runtime.aot_executor import AotExecutor
    from mlforge.runtime.aot_module import AotModule, BoundCall
    from mlforge.runtime.device import Device, cpu
    from mlforge.runtime.factory import FactoryModule
    from mlforge.runtime.graph_executor import GraphExecutor
    from mlforge.runtime.graph_module import BoundGraph, GraphModule
    from mlforge.runtime.library_module import LibraryModule
    from mlforge.runtime.module import Module, OpaqueModule, load_from_bytes, loaders, register_loader
    from mlforge.runtime.onnxruntime_module import OnnxRuntimeModule
    from mlforge.runtime.packed_func import PackedFunc
    from mlforge.runtime.profile import OperatorTime, Profile
    from mlforge.runtime.profiled_module import ProfiledModule
    from mlforge.runtime.runnable import Runnable
    from mlforge.runtime.shared_library import SharedLibrary, load_shared_library
    from mlforge.runtime.tensor_info import TensorInfo

_HOMES = {
    "AotExecutor": "aot_executor",
    "AotModule": "aot_module",
    "BoundCall": "aot_module",
    "BoundGraph": "graph_module",
    "Device": "device",
    "FactoryModule": "factory",
    "GraphExecutor": "graph_executor",
    "GraphModule": "graph_module",
    "LibraryModule": "library_module",
    "Module": "module",
    "OnnxRuntimeModule": "onnxruntime_module",
    "OpaqueModule": "module",
    "OperatorTime": "profile",
    "PackedFunc": "packed_func",
    "Profile": "profile",
    "ProfiledModule": "profiled_module",
    "Runnable": "runnable",
    "SharedLibrary": "shared_library",
    "TensorInfo": "tensor_info",
    "cpu": "device",
    "load_from_bytes": "module",
    "load_shared_library": "shared_library",
    "loaders": "module",
    "register_loader": "module",
}

__all__ = [
    "AotExecutor",
    "AotModule",
    "BoundCall",
    "BoundGraph",
    "Device",
    "FactoryModule",
    "GraphExecutor",
    "GraphModule",
    "LibraryModule",
    "Module",
    "OnnxRuntimeModule",
    "OpaqueModule",
    "OperatorTime",
    "PackedFunc",
    "Profile",
    "ProfiledModule",
    "Runnable",
    "SharedLibrary",
    "TensorInfo",
    "cpu",
    "load_from_bytes",
    "load_shared_library",
    "loaders",
    "register_loader",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"mlforge.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mlforge.runtime' has no attribute '{name}'")
