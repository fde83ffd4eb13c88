"""TVM's ``tvm.relay``: import and compilation of models."""

from __future__ import annotations

import sys

from mlfc.compat.tvm import transform
from mlfc.compat.tvm.relay import build_module, frontend, resnet
from mlfc.compat.tvm.relay.build_module import build, build_config, create_executor
from mlfc.runtime.tensor.ndarray import load_param_dict, save_param_dict

__all__ = [
    "backend", "build", "build_config", "build_module", "create_executor", "frontend", "load_param_dict", "resnet",
    "save_param_dict", "testing", "transform", "vm",
]  # fmt: skip

backend = vm = build_module
testing = sys.modules[__name__]
