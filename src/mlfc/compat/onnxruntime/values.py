"""Values of ONNX Runtime's interface: descriptions of inputs, tensors with a device, and bound buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfc.errors import InputError, unknown
from mlfc.runtime.devices.device import device as device_of
from mlfc.runtime.tensor.ndarray import NDArray, empty, from_dlpack
from mlfc.support.dtypes import from_numpy
from mlfc.support.tensor_info import ANY_RANK, Array, ContainerInfo, TensorInfo
from mlfc.support.text import Displayed

# ONNX's names of types that differ from numpy's
_TYPES = {
    "float32": "float", "float64": "double", "float8_e4m3fn": "float8e4m3fn", "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2", "float8_e5m2fnuz": "float8e5m2fnuz", "float8_e8m0fnu": "float8e8m0",
    "float4_e2m1fn": "float4e2m1",
}  # fmt: skip
# ONNX's numbers of element types
_NUMBERS = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


@dataclass(frozen=True)
class NodeArg(Displayed):
    """An input or output of a session.

    Attributes
    ----------
    name : str
    shape : list
        Numbers; names or None for dynamic dimensions.
    type : str
        In ONNX Runtime's notation: ``tensor(float)``.
    """

    name: str
    shape: list[int | str | None]
    type: str

    @classmethod
    def of(cls, info: TensorInfo) -> NodeArg:
        """Return the description of an input or output."""
        kind = type_text(info.dtype)
        if isinstance(info, ContainerInfo):
            kind = f"seq({kind})" if info.is_sequence else kind
            kind = f"optional({kind})" if info.may_be_none else kind
        if info.shape == ANY_RANK:
            return cls(info.name, [], kind)  # as in ONNX Runtime
        return cls(info.name, [None if extent == "?" else extent for extent in info.shape], kind)


def type_text(dtype: str) -> str:
    """Return a tensor's type in ONNX Runtime's notation."""
    return f"tensor({_TYPES.get(dtype, dtype)})"


def _dtype(element: Any) -> str:
    """Return the dtype of an ONNX number or of what numpy takes."""
    if isinstance(element, int):
        if element not in _NUMBERS:
            raise InputError(f"unknown element type {element}", next_step="Pass a numpy dtype")
        return _NUMBERS[element]
    return from_numpy(np.dtype(element))


class OrtValue(Displayed):
    """A tensor on a device, as ONNX Runtime's ``OrtValue``."""

    def __init__(self, tensor: NDArray) -> None:
        self._tensor = tensor

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Return an array as a tensor: on the host its own memory if it is contiguous, else a copy."""
        device = device_of(device_type, device_id)
        tensor = from_dlpack(np.asarray(numpy_obj, order="C"))
        return cls(tensor if device == tensor.device else tensor.copyto(device))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return an uninitialized tensor; the type is one of numpy's or an ONNX number."""
        return cls(empty(tuple(shape), _dtype(element_type), device_of(device_type, device_id)))

    def _facts(self) -> Mapping[str, object]:
        return {"type": self.data_type(), "shape": self.shape(), "device": self.device_name()}

    def numpy(self) -> Array:
        """Return the elements: the same memory on the host, else a copy."""
        return self._tensor.numpy()

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def data_type(self) -> str:
        """Return the type: ``tensor(float)``."""
        return type_text(self._tensor.dtype)

    def element_type(self) -> int:
        """Return ONNX's number of the element type; 0 if it has none here."""
        return next((number for number, name in _NUMBERS.items() if name == self._tensor.dtype), 0)

    def device_name(self) -> str:
        """Return the kind of device."""
        return self._tensor.device.kind

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._tensor.handle + self._tensor.byte_offset

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    has_value = is_tensor

    def update_inplace(self, np_arr: Any) -> None:
        """Copy an array of the same shape and type into the tensor."""
        self._tensor.copyfrom(np_arr)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._tensor.__array__(dtype, copy)


def on_host(value: Any) -> Any:
    """Return the elements of an `OrtValue` or `NDArray`, copied from devices; other values unchanged."""
    return value.numpy() if isinstance(value, (OrtValue, NDArray)) else value


class IOBinding(Displayed):
    """Buffers of inputs and outputs, for ``run_with_iobinding``."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._names = {"input": list(inputs), "output": list(outputs)}
        self.feeds: dict[str, Any] = {}
        # by name; None: allocated by the run
        self.targets: dict[str, NDArray | None] = {}
        self.results: dict[str, OrtValue] = {}

    def _facts(self) -> Mapping[str, object]:
        return {"inputs": list(self.feeds), "outputs": list(self.targets)}

    def _checked(self, kind: str, name: str) -> str:
        if name not in self._names[kind]:
            raise InputError(unknown(kind, name, self._names[kind]))
        return name

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array."""
        self.feeds[self._checked("input", name)] = arr_on_cpu

    bind_ortvalue_input = bind_cpu_input

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory of a device, which must exist until the run."""
        self.bind_cpu_input(name, _at(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Request an output: in memory that must exist until the run, else allocated by the run on the host."""
        place = None if buffer_ptr is None else _at(device_type, device_id, element_type, shape or (), buffer_ptr)
        self.targets[self._checked("output", name)] = place

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Request an output in the memory of a tensor."""
        self.targets[self._checked("output", name)] = ortvalue._tensor

    def clear_binding_inputs(self) -> None:
        """Remove all inputs."""
        self.feeds.clear()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs."""
        self.targets.clear()
        self.results.clear()

    def synchronize_inputs(self) -> None:
        """Return at once: copies are complete when they return."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run in the order in which they were bound."""
        return list(self.results.values())

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return copies of the outputs of the last run."""
        return [np.array(value.numpy()) for value in self.results.values()]


def _at(device_type: str, device_id: int, element_type: Any, shape: Sequence[int], pointer: int) -> NDArray:
    return NDArray.at(pointer, tuple(shape), _dtype(element_type), device_of(device_type, device_id), None)
