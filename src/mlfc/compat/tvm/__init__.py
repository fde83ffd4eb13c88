"""TVM's package for programs written for it, which change only their imports: ``import mlfc.compat.tvm as tvm``.

It has what compiles, exports, loads and runs a model. Submodules are mlfc's own modules where those have TVM's names.
"""

from __future__ import annotations

import sys

from numpy import testing

from mlfc import debug_executor, graph_executor, micro
from mlfc.compat.tvm import contrib, relay, runtime, target, transform
from mlfc.compat.tvm.relay import build_module, resnet
from mlfc.compat.tvm.runtime import Device, TVMError, cpu, cuda, device, get_global_func, opencl, register_func
from mlfc.relay.ir import IRModule
from mlfc.support.version import __version__

__all__ = [
    "Device", "IRModule", "TVMError", "__version__", "cl", "context", "contrib", "cpu", "cuda", "device",
    "get_global_func", "gpu", "micro", "nd", "opencl", "register_func", "relay", "runtime", "target", "testing",
    "transform",
]  # fmt: skip

nd, gpu, cl, context = runtime, cuda, opencl, device

# modules that programs import by TVM's names
_MODULES = {
    build_module: "relay.backend relay.vm",
    contrib: "contrib.debugger contrib.utils",
    debug_executor: "contrib.debugger.debug_executor contrib.debugger.debug_runtime",
    graph_executor: "contrib.graph_executor contrib.graph_runtime",
    micro: "micro",
    relay: "relay.testing",
    resnet: "relay.testing.resnet",
    runtime: "nd runtime.ndarray runtime.vm",
    target: "target.target",
    testing: "testing",
    transform: "relay.transform",
}
sys.modules.update({f"{__name__}.{name}": module for module, names in _MODULES.items() for name in names.split()})
