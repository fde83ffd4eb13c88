"""Inputs and outputs as callers see them: lists of arrays for sequences, None for optionals without a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlfc.errors import InputError
from mlfc.runtime.executors.vm.native import aligned_zeros
from mlfc.support.dtypes import to_numpy
from mlfc.support.executable import ALIGNMENT, VmValue, container_of, parts_at
from mlfc.support.tensor_info import ANY_RANK, OPTIONAL_SEQUENCE, Array, ContainerInfo, TensorInfo


class Signature:
    """The inputs, or outputs, of a model; `infos` are as callers see them."""

    def __init__(self, values: Sequence[VmValue]) -> None:
        self.infos: tuple[TensorInfo, ...] = ()
        # symbols of the tensor and byte counts of sequences, which callers cannot set
        self.counts: set[str] = set()
        at = 0
        while at < len(values):
            count = parts_at(values, at)
            self.infos += (_info(values[at : at + count]),)
            if count > 1:
                shapes = [_shape(value) for value in values[at : at + count]]
                self.counts |= {extent for shape in shapes for extent in shape if isinstance(extent, str)}
            at += count
        self.has_containers = any(isinstance(info, ContainerInfo) for info in self.infos)

    def parts(self, values: Sequence[Any], as_array: Callable[[Any, str], Array]) -> list[Any]:
        """Return the values in order in the form that the model takes; `as_array` converts the tensors in sequences.

        Raises InputError for a value that is not a sequence or optional of the dtype and rank that the model takes.
        """
        found: list[Any] = []
        for info, value in zip(self.infos, values, strict=True):
            found += _packed(info, value, as_array) if isinstance(info, ContainerInfo) else [value]
        return found

    def values(self, parts: Sequence[Any]) -> list[Any]:
        """Return the results of the model as callers' values."""
        rest = iter(parts)
        return [_unpacked(info, rest) if isinstance(info, ContainerInfo) else next(rest) for info in self.infos]


def _shape(value: VmValue) -> tuple[int | str, ...]:
    return tuple("?" if extent is None else extent for extent in value.extents)


def _info(values: Sequence[VmValue]) -> TensorInfo:
    container = container_of(values) if len(values) > 1 else None
    if container is None:
        (value,) = values
        return TensorInfo(value.name, _shape(value), value.dtype)
    rank = values[-2].extents[1]
    assert isinstance(rank, int)
    shape = ANY_RANK if container.is_mixed else ("?",) * rank
    return ContainerInfo(container.name, shape, container.dtype, kind=container.kind)


def _packed(info: ContainerInfo, value: Any, as_array: Callable[[Any, str], Array]) -> list[Array]:
    if value is None and not info.may_be_none:
        raise InputError("expected a list of arrays, got None", place=info.name)
    items = [] if value is None else value if info.is_sequence else [value]
    if not isinstance(items, (list, tuple)):
        raise InputError(
            f"expected a list of arrays{' or None' if info.may_be_none else ''}, got {type(value).__name__}",
            place=info.name,
        )
    arrays = [_element(info, item, index, as_array) for index, item in enumerate(items)]
    extents = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(info.shape))
    starts = np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)])
    data = aligned_zeros(int(starts[-1]))[: int(starts[-1])]
    for array, start in zip(arrays, starts[:-1], strict=True):
        data[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    given = [np.asarray(value is not None)] if info.kind == OPTIONAL_SEQUENCE else []
    return [*given, extents, data]


def _element(info: ContainerInfo, item: Any, index: int, as_array: Callable[[Any, str], Array]) -> Array:
    place = f"{info.name}.{index}" if info.is_sequence else info.name
    array = as_array(item, place)
    wanted = to_numpy(info.dtype)
    if array.dtype != wanted or array.ndim != len(info.shape):
        raise InputError(
            f"expected {info.dtype} of {len(info.shape)} dimensions, got {array.dtype} of {array.ndim}", place=place
        )
    return array


def _unpacked(info: ContainerInfo, parts: Any) -> Any:
    is_given = bool(next(parts)) if info.kind == OPTIONAL_SEQUENCE else True
    extents, data = next(parts), next(parts)
    dtype, start, found = to_numpy(info.dtype), 0, []
    for row in extents.tolist():
        shape = [extent for extent in row if extent >= 0]  # -1 is past the last one
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found.append(data[start : start + size].view(dtype).reshape(shape))
        start += -(-size // ALIGNMENT) * ALIGNMENT
    if info.is_sequence:
        return found if is_given else None
    return found[0] if found else None
