"""mlfc compiles trained models to code that runs anywhere. This package has the public names.

Names are loaded on first use, so that a program that only runs models does not import the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.support.lazy import make_lazy
from mlfc.support.version import __version__ as __version__

if TYPE_CHECKING:
    from mlfc import debug_executor as debug_executor
    from mlfc import errors as errors
    from mlfc import examples as examples
    from mlfc import graph_executor as graph_executor
    from mlfc import onnx_backend as onnx_backend
    from mlfc import operators as operators
    from mlfc import runtime as runtime
    from mlfc.archive.compare.diff import diff as diff
    from mlfc.archive.describe.inspect import inspect as inspect
    from mlfc.archive.describe.memory_map import memory_map as memory_map
    from mlfc.archive.describe.profile import load_profiled as load_profiled
    from mlfc.archive.loading import load as load
    from mlfc.archive.loading import load_module as load_module
    from mlfc.archive.validate.validate import validate as validate
    from mlfc.archive.write.export import export_model_library_format as export_model_library_format
    from mlfc.archive.write.older import migrate as migrate
    from mlfc.archive.write.rebuild import rebuild as rebuild
    from mlfc.compat.onnxruntime import InferenceSession as InferenceSession
    from mlfc.compat.onnxruntime import SessionOptions as SessionOptions
    from mlfc.compat.onnxruntime import get_available_providers as get_available_providers
    from mlfc.compiled_model import CompiledModel as CompiledModel
    from mlfc.compiled_model import compile as compile  # noqa: A004
    from mlfc.compiler import build as build
    from mlfc.frontend import import_model as import_model
    from mlfc.frontend.shapes import Dim as Dim
    from mlfc.matrix.compile_matrix import compile_matrix as compile_matrix
    from mlfc.memory import ConstantPool as ConstantPool
    from mlfc.memory import Pool as Pool
    from mlfc.problems import check as check
    from mlfc.problems import examine as examine
    from mlfc.quantize.quantize import quantize as quantize
    from mlfc.runtime.devices.device import cpu as cpu
    from mlfc.runtime.devices.device import cuda as cuda
    from mlfc.runtime.devices.device import device as device
    from mlfc.runtime.devices.device import opencl as opencl
    from mlfc.runtime.tensor.ndarray import load_param_dict as load_param_dict
    from mlfc.runtime.tensor.ndarray import save_param_dict as save_param_dict
    from mlfc.runtime.threads import get_num_threads as get_num_threads
    from mlfc.runtime.threads import set_num_threads as set_num_threads
    from mlfc.tuning.tune import tune as tune
    from mlfc.verify.compare import verify as verify


_HOMES = {
    "debug_executor": "mlfc.debug_executor",
    "errors": "mlfc.errors",
    "examples": "mlfc.examples",
    "graph_executor": "mlfc.graph_executor",
    "onnx_backend": "mlfc.onnx_backend",
    "operators": "mlfc.operators",
    "runtime": "mlfc.runtime",
    "import_model": "mlfc.frontend",
    "Dim": "mlfc.frontend.shapes",
    "check": "mlfc.problems",
    "examine": "mlfc.problems",
    "compile": "mlfc.compiled_model",
    "CompiledModel": "mlfc.compiled_model",
    "InferenceSession": "mlfc.compat.onnxruntime",
    "SessionOptions": "mlfc.compat.onnxruntime",
    "get_available_providers": "mlfc.compat.onnxruntime",
    "verify": "mlfc.verify.compare",
    "validate": "mlfc.archive",
    "load_profiled": "mlfc.archive",
    "cpu": "mlfc.runtime.devices.device",
    "cuda": "mlfc.runtime.devices.device",
    "device": "mlfc.runtime.devices.device",
    "opencl": "mlfc.runtime.devices.device",
    "build": "mlfc.compiler",
    "export_model_library_format": "mlfc.archive",
    "load": "mlfc.archive",
    "load_module": "mlfc.archive",
    "inspect": "mlfc.archive",
    "diff": "mlfc.archive",
    "memory_map": "mlfc.archive",
    "migrate": "mlfc.archive",
    "rebuild": "mlfc.archive",
    "compile_matrix": "mlfc.matrix.compile_matrix",
    "tune": "mlfc.tuning.tune",
    "quantize": "mlfc.quantize.quantize",
    "load_param_dict": "mlfc.runtime.tensor.ndarray",
    "save_param_dict": "mlfc.runtime.tensor.ndarray",
    "set_num_threads": "mlfc.runtime.threads",
    "get_num_threads": "mlfc.runtime.threads",
    "Pool": "mlfc.memory",
    "ConstantPool": "mlfc.memory",
}

make_lazy(__name__)
