"""Conversion of callers' values to arrays that generated code can read, and generated inputs for trying a model.

Real numbers are converted to the elements of quantized tensors, and back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mlfc.errors import ExchangeError, InputError, OptionError, ProblemsError, unknown
from mlfc.support.tensor_info import Array, ContainerInfo, TensorInfo

if TYPE_CHECKING:
    from mlfc.runtime.modules.runnable import Computes

Values: TypeAlias = "Mapping[str, Any] | Sequence[Any]"
"""Inputs or outputs, as a mapping by name or in order."""
FILLS = ("random", "zeros", "ones")
# Wide integers that are not quantized are mostly token ids and indices, which must be small.
_INDEX_END = 8
_INTEGERS, _NUMBERS = "iu", "fiu"  # kinds of dtypes
_CONTAINED = 3  # dynamic dimensions of tensors in generated sequences


_READABLE = 0x101
"""numpy's flags of C-contiguous and aligned arrays."""


def aligned(nbytes: int, new: Callable[..., Array] = np.empty, alignment: int = 64) -> Array:
    """Return bytes at a multiple of an alignment, made by numpy's ``empty`` or ``zeros``; raise MemoryError."""
    try:
        memory = new(nbytes + alignment, np.uint8)
    except ValueError as error:  # exceeds numpy's index type
        raise MemoryError from error
    start = -memory.ctypes.data % alignment
    return memory[start : start + nbytes]


def address_of(array: Array) -> int:
    """Return the address of a contiguous array."""
    # four times as fast as the array interface; arrays of other dtypes, such as bfloat16, do not export a buffer
    if array.flags.writeable and array.nbytes and array.dtype.isbuiltin == 1:
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return int(array.__array_interface__["data"][0])


def is_readable(value: Any) -> bool:
    """Return whether generated code can read a value in place, as a contiguous, aligned array."""
    return type(value) is np.ndarray and value.flags.num & _READABLE == _READABLE


def only(inputs: tuple[Any, ...]) -> Values:
    """Return the only argument if it is a mapping, otherwise the arguments in order."""
    if len(inputs) == 1:
        (first,) = inputs
        if type(first) is dict or isinstance(first, Mapping):  # isinstance takes a microsecond
            return first
    return inputs


@dataclass(frozen=True)
class Expected:
    """Names, dtypes and static shapes of tensors, prepared for the checks of each run."""

    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
    infos: Sequence[TensorInfo]

    @classmethod
    def of(cls, infos: Sequence[TensorInfo]) -> Expected:
        """Return the expectations for tensors of static shape."""
        return cls(tuple((info.name, info.numpy_dtype, tuple(info.shape)) for info in infos), infos)

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in order."""
        return [name for name, _, _ in self.tensors]

    def arrays(self, inputs: tuple[Any, ...]) -> list[Array]:
        """Return inputs, by name or in order, as arrays that code can read; raises the errors of `by_name`."""
        given = only(inputs)
        found = self.taken(given)
        if found is None:
            return [require_readable(array) for array in by_name(given, self.infos, "input").values()]
        return found

    def taken(self, values: Values) -> list[Array] | None:
        """Return the arrays in order if all match, otherwise None; `by_name` handles conversions and errors."""
        tensors = self.tensors
        if len(values) != len(tensors):
            return None
        given: list[Any]
        if type(values) is dict or isinstance(values, Mapping):
            given = [values.get(name) for name, _, _ in tensors]
        else:
            given = list(values)
        for value, (_, dtype, shape) in zip(given, tensors, strict=True):
            if not is_readable(value) or value.dtype != dtype or value.shape != shape:
                return None
        return given

    def new(self) -> dict[str, Array]:
        """Return fresh uninitialized arrays by name."""
        return {name: np.empty(shape, dtype) for name, dtype, shape in self.tensors}


def by_name(values: Values, infos: Sequence[TensorInfo], kind: str) -> dict[str, Array]:
    """Match `values`, by name or position, with `infos` and check them all, reporting every fault at once.

    Anything with ``__dlpack__`` on the CPU is used without a copy. `kind` is ``input`` or ``output``, for messages.
    Returns arrays in the order of `infos`, in the caller's memory; their layout is not checked. Raises InputError or
    ProblemsError for values that are missing, unknown, of another shape or dtype, or not arrays.
    """
    named = dict(values) if isinstance(values, Mapping) else _by_position(values, infos, kind)
    expected = {info.name: info for info in infos}
    problems: list[InputError] = []
    arrays: dict[str, Array] = {}
    for name in named:
        if name not in expected:
            known = ", ".join(str(info) for info in infos) or "none"
            problems.append(InputError(f"the model has no such {kind}", place=str(name), next_step=f"It has: {known}"))
    for info in infos:
        if info.name not in named:
            problems.append(InputError(f"the {kind} is missing", place=info.name, next_step=f"Give {info}"))
            continue
        try:
            arrays[info.name] = _checked(named[info.name], info, kind)
        except InputError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ProblemsError(problems)
    return arrays


def _by_position(values: Sequence[Any], infos: Sequence[TensorInfo], kind: str) -> dict[str, Any]:
    if len(values) != len(infos):
        known = ", ".join(str(info) for info in infos) or "none"
        raise InputError(f"the model has {len(infos)} {kind}s, not {len(values)}", next_step=f"It has: {known}")
    return {info.name: value for info, value in zip(infos, values, strict=True)}


def _checked(value: Any, info: TensorInfo, kind: str) -> Array:
    array = as_array(value, info, kind)
    faults = []
    if array.dtype != info.numpy_dtype:
        given = array.dtype.name if array.dtype.isnative else f"{array.dtype.name} of the other byte order"
        faults.append(f"its dtype is {given}, not {info.dtype}")
    if info.of_shape(array.shape) is None:
        faults.append(f"its shape is {array.shape}, not {info.shape}")
    if faults:
        is_unquantized = info.scale is not None and array.dtype.kind == "f"
        step = "Quantize it, or pass real numbers: run(..., real=True)" if is_unquantized else None
        raise InputError(f"the {kind} does not fit: {' and '.join(faults)}", place=info.name, next_step=step)
    return array


def as_array(value: Any, info: TensorInfo, kind: str) -> Array:
    """Return a value as an array, without a copy; raise InputError if it is none or on another device."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"the {kind} is a {type(value).__name__}, not an array",
            place=info.name,
            next_step=f"Give numpy.asarray(..., dtype='{info.dtype}') or an array of any DLPack library",
        )
    # imported here to avoid an import cycle
    from mlfc.runtime.tensor.ndarray import from_dlpack

    try:
        tensor = from_dlpack(value)
    except ExchangeError as error:
        raise InputError(
            f"the {kind} cannot be used: {error.cause}", place=info.name, next_step=error.next_step
        ) from error
    if not tensor.is_on_host:
        raise InputError(
            f"the {kind} is on {tensor.device}, and is needed on the CPU", place=info.name, next_step="Copy it there"
        )
    return tensor.numpy()


def counts(number: object, many: int) -> bool:
    """Return whether `number` is a valid index of `many` items."""
    return isinstance(number, (int, np.integer)) and 0 <= int(number) < many


def require_readable(array: Array) -> Array:
    """Return the array itself if generated code can read it in place, otherwise a copy."""
    if array.flags.c_contiguous and array.flags.aligned:  # fast path: numpy takes a microsecond for this check
        return array
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])


def bound(values: Values, infos: Sequence[TensorInfo], kind: str) -> dict[str, Array]:
    """Match `values` as `by_name` does; raise InputError unless every array can be used in place as a fixed buffer."""
    arrays = by_name(values, infos, kind)
    for name, array in arrays.items():
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned) or (kind == "output" and not flags.writeable):
            need = "contiguous, aligned and writeable" if kind == "output" else "contiguous and aligned"
            raise InputError(
                f"the {kind} cannot be bound: it must be {need}", place=name, next_step="Bind a copy of it"
            )
    return arrays


def fill(
    infos: Sequence[TensorInfo], kind: str = "random", seed: int = 0, ends: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Generate an array for each of `infos`: ``zeros``, ``ones`` or ``random``, in the tensor's own dtype.

    A sequence is a list of two tensors, an optional has a value.

    Random floats are uniform in [-1, 1), integers of 8 and 16 bits (and quantized ones) cover their whole range, other
    integers are in [0, 8), or in [0, end) with the end for their tensor in `ends`. The seed must not be negative.
    """
    if kind not in FILLS:
        raise OptionError(unknown("fill", kind, FILLS))
    if seed < 0:
        raise OptionError(f"the seed {seed} is negative", next_step="Use 0 or more")
    generator = np.random.default_rng(seed)

    def one(info: TensorInfo) -> Any:
        if isinstance(info, ContainerInfo):
            extents = tuple(extent if isinstance(extent, int) else _CONTAINED for extent in info.shape)
            element = TensorInfo(info.name, extents, info.dtype)
            return [one(element), one(element)] if info.is_sequence else one(element)
        if kind != "random":
            return np.full(info.shape, kind == "ones", info.numpy_dtype)
        return _random(info, generator, min(_INDEX_END, (ends or {}).get(info.name, _INDEX_END)))

    return {info.name: one(info) for info in infos}


def _random(info: TensorInfo, generator: np.random.Generator, end: int) -> Array:
    dtype = info.numpy_dtype
    if dtype.kind == "b":
        return generator.integers(0, 2, info.shape).astype(dtype)
    if dtype.kind not in "iu":
        return generator.uniform(-1, 1, info.shape).astype(dtype)
    if dtype.itemsize > 2 and info.scale is None:
        return generator.integers(0, end, info.shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, info.shape, dtype, endpoint=True)


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
