"""ONNX Runtime's package for programs written for it: ``import mlfc.compat.onnxruntime as onnxruntime``."""

from __future__ import annotations

from mlfc.compat.onnxruntime.options import (
    ExecutionMode,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    get_all_providers,
    get_available_providers,
    get_device,
    set_default_logger_severity,
)
from mlfc.compat.onnxruntime.session import InferenceSession, ModelMetadata
from mlfc.compat.onnxruntime.values import IOBinding, NodeArg, OrtValue
from mlfc.support.version import __version__

__all__ = [
    "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg", "OrtValue",
    "RunOptions", "SessionOptions", "__version__", "get_all_providers", "get_available_providers", "get_device",
    "set_default_logger_severity",
]  # fmt: skip
