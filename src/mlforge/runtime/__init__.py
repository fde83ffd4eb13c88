"""Runs compiled models. Imports nothing of the compiler: numpy and ctypes are enough."""

from mlforge.runtime.aot_module import AotModule, BoundCall
from mlforge.runtime.device import Device, cpu
from mlforge.runtime.profiled_module import OperatorTime, Profile, ProfiledModule
from mlforge.runtime.shared_library import load_shared_library
from mlforge.runtime.tensor_info import TensorInfo

__all__ = [
    "AotModule",
    "BoundCall",
    "Device",
    "OperatorTime",
    "Profile",
    "ProfiledModule",
    "TensorInfo",
    "cpu",
    "load_shared_library",
]
