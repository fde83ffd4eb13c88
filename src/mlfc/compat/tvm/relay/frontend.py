"""TVM's ``tvm.relay.frontend``: import of models, as modules and parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mlfc.errors import InputError
from mlfc.frontend import Model, import_for_run
from mlfc.options import ImportOptions
from mlfc.relay.ir import IRModule
from mlfc.runtime.tensor.ndarray import NDArray, array

Shapes: TypeAlias = "Mapping[str, Sequence[int]] | None"
Imported: TypeAlias = "tuple[IRModule, dict[str, NDArray]]"


def from_onnx(model: Model, shape: Shapes = None, dtype: Any = "float32", *others: Any, **options: Any) -> Imported:
    """Return the module and the weights of an ONNX model: an ``onnx.ModelProto``, a path or bytes.

    `shape` has shapes of inputs by name, by default those that the model declares. Other arguments are accepted for
    compatibility with TVM: the model declares dtypes and operator set, and weights are always parameters.
    """
    del dtype, others, options
    return _imported(model, shape)


def from_tflite(model: Any, shape_dict: Shapes = None, dtype_dict: Any = None, **options: Any) -> Imported:
    """Return the module and the weights of a TFLite model: of the package ``tflite``, a path or bytes."""
    del dtype_dict, options
    table = getattr(model, "_tab", None)
    return _imported(model if table is None else bytes(table.Bytes), shape_dict)


def _imported(model: Model, shape: Shapes) -> Imported:
    if shape is not None and not isinstance(shape, Mapping):
        step = 'Pass a mapping: {"x": (1, 3)}'
        raise InputError(f"expected shapes by input name, got {type(shape).__name__}", next_step=step)
    shapes = {name: tuple(map(int, extents)) for name, extents in (shape or {}).items()}
    module, params = import_for_run(model, ImportOptions(shapes=shapes or None))
    return module, {name: array(value) for name, value in params.items()}
