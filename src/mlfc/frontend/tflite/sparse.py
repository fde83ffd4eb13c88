"""Sparse constants of TFLite files, laid out densely.

A sparse tensor is a tree: its levels are the dimensions in some order, then the dimensions of blocks, if it has any. A
dense level has every index below each node; a compressed one lists those that are there. The leaves are the values, in
order (TFLite's schema, SparsityParameters).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tflite

from mlfc.errors import ModelError, UnsupportedError
from mlfc.support import cost, dtypes

Array = npt.NDArray[Any]

_DENSE, _COMPRESSED = 0, 1
_VECTORS = {1: tflite.Int32Vector, 2: tflite.Uint16Vector, 3: tflite.Uint8Vector}
_POSITION_BYTES = 8
_MAX_RANK = 8


def dense_value(record: Any, contents: bytes, shape: tuple[int, ...], dtype: str) -> Array:
    """Return the dense value of a tensor whose buffer holds only the elements that SparsityParameters tell.

    Raises ModelError if the parameters contradict the shape, themselves or the buffer; LimitError if the tensor is out
    of proportion to the file.
    """
    if dtype == "bool":
        raise UnsupportedError("a sparse tensor of bool is not supported", next_step="Export dense weights")
    item = np.dtype(dtypes.to_numpy(dtype)).newbyteorder("<")
    cost.spend("constants", prod(shape) * item.itemsize)
    cost.require("constants", prod(shape) * _POSITION_BYTES)
    places = np.zeros(1, np.int64)
    for level, (extent, stride) in enumerate(_levels(record, shape)):
        places = _children(record.DimMetadata(level), places, extent, stride)
    if len(contents) != len(places) * item.itemsize:
        raise ModelError(
            f"{len(places)} elements of {dtype} have {len(places) * item.itemsize} bytes, the buffer {len(contents)}"
        )
    value = np.zeros(prod(shape), dtypes.to_numpy(dtype))
    value[places] = np.frombuffer(contents, item)
    return value.reshape(shape)


def _levels(record: Any, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return for each level how many indices it has and how many elements apart two of them are."""
    rank, count = len(shape), record.DimMetadataLength()
    order = _integers(record.TraversalOrderAsNumpy(), record.TraversalOrderLength())
    blocked = _integers(record.BlockMapAsNumpy(), record.BlockMapLength())
    if count > 2 * rank or sorted(order) != list(range(count)) or count != rank + len(blocked):
        raise ModelError(f"a sparse tensor of shape {shape} has the levels {order} with blocks of {blocked}")
    if len(set(blocked)) != len(blocked) or not all(0 <= axis < rank for axis in blocked):
        raise ModelError(f"a sparse tensor of {rank} dimensions has blocks of {blocked}")
    blocks = [1] * rank
    for level, dimension in enumerate(order):
        if dimension >= rank:
            axis, size = blocked[dimension - rank], record.DimMetadata(level).DenseSize()
            if size < 1 or shape[axis] % size:
                raise ModelError(f"axis {axis} of {shape} is not made up of blocks of {size}")
            blocks[axis] = size
    strides = [prod(shape[axis + 1 :]) for axis in range(rank)]
    return [
        (shape[dimension] // blocks[dimension], strides[dimension] * blocks[dimension])
        if dimension < rank
        else (blocks[blocked[dimension - rank]], strides[blocked[dimension - rank]])
        for dimension in order
    ]


def _children(metadata: Any, places: Array, extent: int, stride: int) -> Array:
    """Return where the nodes below those at `places` begin, in order."""
    if metadata.Format() == _DENSE:
        if metadata.DenseSize() != extent:
            raise ModelError(f"a dense level of {extent} has the size {metadata.DenseSize()}")
        return (places[:, None] + np.arange(extent) * stride).ravel()
    if metadata.Format() != _COMPRESSED:
        raise UnsupportedError(f"sparse format {metadata.Format()} is not supported", next_step="Export dense weights")
    ends = _vector(metadata.ArraySegmentsType(), metadata.ArraySegments())
    indices = _vector(metadata.ArrayIndicesType(), metadata.ArrayIndices())
    counts = np.diff(ends)
    if len(counts) != len(places) or ends[0] != 0 or ends[-1] != len(indices) or np.any(counts < 0):
        raise ModelError(f"{len(indices)} indices are not divided among {len(places)} nodes")
    if len(indices) and not 0 <= indices.min() <= indices.max() < extent:
        raise ModelError(f"an index is outside a level of {extent}")
    nodes = np.repeat(np.arange(len(places)), counts)
    if np.any((np.diff(indices) <= 0) & (np.diff(nodes) == 0)):
        raise ModelError("the indices of a node are not in ascending order")
    found: Array = np.repeat(places, counts) + indices * stride
    return found


def _vector(kind: int, table: Any) -> Array:
    if kind not in _VECTORS or table is None:
        raise ModelError("a compressed level has no indices")
    vector = _VECTORS[kind]()
    vector.Init(table.Bytes, table.Pos)
    if vector.ValuesLength() > len(table.Bytes):
        raise ModelError(f"a vector says it has {vector.ValuesLength()} values, the file has {len(table.Bytes)} bytes")
    if not vector.ValuesLength():
        return np.zeros(0, np.int64)
    values: Array = np.asarray(vector.ValuesAsNumpy(), np.int64)
    return values


def _integers(array: Any, count: int) -> list[int]:
    """Return a short vector's values; flatbuffers gives the number 0 in place of an absent one."""
    if not 0 <= count <= 2 * _MAX_RANK:
        raise ModelError(f"a sparse tensor has {count} levels")
    return [int(value) for value in array] if count else []
