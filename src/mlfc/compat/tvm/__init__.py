"""TVM's package for programs written for it, which change only their imports: ``import mlfc.compat.tvm as tvm``.

It has what compiles, exports, loads and runs a model. Submodules are mlfc's own modules where those have TVM's names.
"""

from __future__ import annotations

import sys

from numpy import testing

from mlfc import debug_executor, graph_executor, micro
from mlfc.compat.tvm import contrib, relay, runtime, target, transform
from mlfc.compat.tvm.relay import build_module, resnet
from mlfc.compat.tvm.runtime import (
    Device,
    TVMError,
    cl,
    context,
    cpu,
    cuda,
    device,
    get_global_func,
    gpu,
    opencl,
    register_func,
)
from mlfc.relay.ir import IRModule
from mlfc.support.version import __version__

__all__ = [
    "Device", "IRModule", "TVMError", "__version__", "cl", "context", "contrib", "cpu", "cuda", "device",
    "get_global_func", "gpu", "micro", "nd", "opencl", "register_func", "relay", "runtime", "target", "testing",
    "transform",
]  # fmt: skip

nd = runtime

# modules that programs import by TVM's names
_MODULES = {
    "contrib.debugger": contrib,
    "contrib.debugger.debug_executor": debug_executor,
    "contrib.debugger.debug_runtime": debug_executor,
    "contrib.graph_executor": graph_executor,
    "contrib.graph_runtime": graph_executor,
    "contrib.utils": contrib,
    "micro": micro,
    "nd": nd,
    "relay.backend": build_module,
    "relay.testing": relay,
    "relay.testing.resnet": resnet,
    "relay.transform": transform,
    "relay.vm": build_module,
    "runtime.ndarray": nd,
    "runtime.vm": runtime,
    "target.target": target,
    "testing": testing,
}
sys.modules.update({f"{__name__}.{name}": module for name, module in _MODULES.items()})
