"""Conversion between real numbers and the elements of quantized tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlfc.errors import InputError
from mlfc.runtime.tensor.arrays import as_array, only
from mlfc.support.arrays import Array
from mlfc.support.containers import ContainerInfo
from mlfc.support.tensor_info import TensorInfo

if TYPE_CHECKING:
    from mlfc.runtime.modules.runnable import Computes

_INTEGERS = "iu"
_NUMBERS = "fiu"


def run_real(model: Computes, inputs: tuple[Any, ...]) -> dict[str, Array]:
    """Run a model on real numbers: quantize its inputs, and dequantize its outputs.

    Raises InputError for float values of an integer input whose quantization is not recorded.
    """
    require_real(model)
    given, infos = only(inputs), model.inputs
    if isinstance(given, Mapping):
        known = {info.name: info for info in infos}
        named = {name: quantized(value, known[name]) if name in known else value for name, value in given.items()}
        return real_outputs(model.run(named), model.outputs)
    # the model reports missing inputs and further ones
    ordered = [quantized(value, info) for value, info in zip(given, infos, strict=False)]
    return real_outputs(model.run(*ordered, *given[len(infos) :]), model.outputs)


def require_real(model: Computes) -> None:
    """Raise InputError if no tensor of a model has real values."""
    infos = (*model.inputs, *model.outputs)
    if not any(info.scale is not None or info.numpy_dtype.kind not in "iub" for info in infos):
        raise _not_recorded(infos[0])


def takes_real(info: TensorInfo) -> bool:
    """Return whether an input accepts numbers of any dtype as real values."""
    return not isinstance(info, ContainerInfo) and (info.scale is not None or info.numpy_dtype.kind == "f")


def quantized(value: Any, info: TensorInfo) -> Any:
    """Return real numbers as elements of a tensor: rounded half to even, and saturated.

    Arrays for tensors without quantization have their dtype converted if it is a float.
    """
    if isinstance(info, ContainerInfo):
        return value
    array, dtype = as_array(value, info, "input"), info.numpy_dtype
    if array.dtype.kind not in _NUMBERS:
        return array
    if info.scale is None:
        if dtype.kind in _INTEGERS and array.dtype.kind == "f":
            raise _not_recorded(info, array)
        return array.astype(dtype, copy=False) if dtype.kind == "f" else array
    exact = np.asarray(array, np.float64)
    if np.isnan(exact).any():
        raise InputError("the input contains NaN, which cannot be quantized", place=info.name)
    limits = np.iinfo(dtype)
    elements = np.rint(exact / info.scale) + (info.zero_point or 0)
    return np.clip(elements, limits.min, limits.max).astype(dtype)


def real_outputs(outputs: Mapping[str, Any], infos: Sequence[TensorInfo]) -> dict[str, Any]:
    """Return outputs with quantized tensors dequantized to float32."""
    known = {info.name: info for info in infos}
    return {name: dequantized(value, known[name]) for name, value in outputs.items()}


def dequantized(array: Any, info: TensorInfo) -> Any:
    """Return the real numbers of a quantized tensor as float32; other values unchanged."""
    if info.scale is None:
        return array
    return ((array.astype(np.float64) - (info.zero_point or 0)) * info.scale).astype(np.float32)


def _not_recorded(info: TensorInfo, array: Array | None = None) -> InputError:
    given = "real numbers" if array is None else array.dtype.name
    return InputError(
        f"expected {info.dtype} values, got {given}: the quantization of the tensor is not recorded",
        place=info.name,
        next_step="Quantize the values yourself, or compile the quantized model with mlfc",
    )
