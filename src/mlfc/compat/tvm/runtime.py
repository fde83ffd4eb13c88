"""TVM's ``tvm.runtime`` and ``tvm.nd``: modules, tensors and devices."""

from __future__ import annotations

import sys
from typing import Any

from mlfc.archive import loading
from mlfc.errors import MlfcError as TVMError
from mlfc.runtime.devices.device import Device, cpu, cuda, device, opencl
from mlfc.runtime.executors.vm.vm_module import VirtualMachine
from mlfc.runtime.modules import module as modules
from mlfc.runtime.modules.module import Function, Module, find_global_func
from mlfc.runtime.tensor import ndarray as tensors
from mlfc.runtime.tensor.ndarray import NDArray, from_dlpack, load_param_dict, save_param_dict

__all__ = [
    "Device", "Module", "NDArray", "TVMError", "VirtualMachine", "array", "cpu", "cuda", "device",
    "empty", "from_dlpack", "get_global_func", "load_module", "load_param_dict", "ndarray", "opencl",
    "register_func", "save_param_dict", "vm",
]  # fmt: skip

register_func = modules.register_global_func
ndarray = vm = sys.modules[__name__]


def array(
    arr: Any, device: Device | None = None, mem_scope: str | None = None, *, ctx: Device | None = None
) -> NDArray:
    """Return a new tensor with a copy of an array; `ctx` is the older name of `device`."""
    del mem_scope
    return tensors.array(arr, device or ctx)


def empty(
    shape: tuple[int, ...], dtype: str = "float32", device: Device | None = None, *, ctx: Device | None = None
) -> NDArray:
    """Return a new uninitialized tensor; `ctx` is the older name of `device`."""
    return tensors.empty(shape, dtype, device or ctx)


def load_module(path: Any, fmt: str = "") -> Any:
    """Load a library, an archive or objects; as `mlfc.load_module`."""
    return loading.load_module(path, fmt=fmt)


def get_global_func(name: str, allow_missing: bool = False) -> Function | None:
    """Return a global function; if it does not exist, None or, unless `allow_missing`, raise OptionError."""
    return find_global_func(name) if allow_missing else modules.get_global_func(name)
