"""Operators that gather, scatter or order elements by index."""

from __future__ import annotations

from math import prod

import numpy as np

from mlfc.errors import ModelError
from mlfc.frontend.tflite.node import Node, converts
from mlfc.ops.rules import normalized_axis
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, const
from mlfc.support import cost, dtypes
from mlfc.support.dims import bounds, is_static, maximum


@converts("GATHER")
def _gather(node: Node) -> Expr:
    options = node.record.options("GatherOptions")
    axis, batch = (options.Axis(), options.BatchDims()) if options is not None else (0, 0)
    axis = normalized_axis("GATHER", axis, len(node.shape(0)))
    _check_indices(node, node.expr(1), axis)
    return node.call("take", node.expr(0), node.expr(1), axis=axis, batch_dims=batch, mode="clip")


def _check_indices(node: Node, indices: Expr, axis: int, data: int = 0) -> None:
    """Raise ModelError if constant indices are out of range for an axis of an input."""
    if isinstance(indices, Constant):
        values, extent = indices.data, node.shape(data)[axis]
        if values.size and not (values.min() >= 0 and values.max() < extent):
            raise ModelError(f"an index is outside axis {axis} of {node.shape(data)}")


def _tuples_first(node: Node, position: int) -> Expr:
    """Return indices with the axis of index tuples moved from the end to the front, as in Relay."""
    rank = len(node.shape(position))
    if rank == 0:
        raise ModelError(f"input {position}, the index tuples, must have at least one dimension")
    indices = node.expr(position)
    if isinstance(indices, Constant):
        return Constant(np.moveaxis(indices.data, -1, 0), None, node.span)
    return node.call("transpose", indices, axes=(rank - 1, *range(rank - 1)))


@converts("GATHER_ND")
def _gather_nd(node: Node) -> Expr:
    indices = _tuples_first(node, 1)
    for axis in range(min(node.shape(1)[-1], len(node.shape(0)))):
        if isinstance(indices, Constant):
            _check_indices(node, const(indices.data[axis]), axis)
    return node.call("gather_nd", node.expr(0), indices)


@converts("SCATTER_ND")
def _scatter_nd(node: Node) -> Expr:
    """Convert SCATTER_ND, which adds updates (input 1) at index tuples (input 0) to zeros of a shape (input 2)."""
    shape, dtype = tuple(node.extents(2)), ir.tensor_type(node.expr(1)).dtype
    if any(bounds(extent)[1] < 0 for extent in shape):
        raise ModelError(f"the shape {shape} has a negative extent")
    start = node.call("broadcast_to", const(0, dtype), shape=shape)
    mode = "update" if dtype == "bool" else "add"
    return node.call("scatter_nd", start, _tuples_first(node, 0), node.expr(1), mode=mode)


@converts("WHERE")
def _where(node: Node) -> Expr:
    """Convert WHERE: return the indices of nonzero elements as rows, whose number is a runtime value."""
    data, shape = node.expr(0), node.shape(0)
    if isinstance(data, Constant):
        return Constant(np.argwhere(data.data).astype(np.int64), node.output().name, node.span)
    if node.dynamic is None or not shape:
        node.refuse(
            "the number of nonzero elements is only known at run time" if shape else "WHERE of a scalar",
            "Replace it with SELECT, whose result has the shape of the data",
        )
    dtype, size = ir.tensor_type(data).dtype, prod(shape)
    flags = data if dtype == "bool" else node.call("not_equal", data, const(0, dtype))
    flags = node.call("reshape", flags, newshape=(size,))
    total = node.call("sum", node.call("cast", flags, dtype="int64"), axis=(0,))
    count = node.dynamic.defined(total, node.output().name, 0, bounds(size)[1])
    # topk's k must not exceed a dynamic size: sort all elements, and take the first `count`
    most = count if isinstance(size, int) else size
    places = node.call("topk", node.call("cast", flags, dtype="int8"), k=most, axis=0, ret_type="indices",
                       is_ascend=False, dtype="int32")  # fmt: skip
    if not isinstance(size, int):
        places = node.call("take", places, node.counted(count), axis=0, mode="clip")
    places = node.call("cast", places, dtype="int64")
    columns, step = [], size
    for extent in shape:
        step //= extent
        column = node.call("floor_divide", places, node.number(step, "int64"))
        column = node.call("floor_mod", column, node.number(extent, "int64"))
        columns.append(node.call("reshape", column, newshape=(count, 1)))
    return node.joined(columns, 1)


@converts("REVERSE_V2")
def _reverse(node: Node) -> Expr:
    result = node.expr(0)
    for axis in {normalized_axis("REVERSE_V2", axis, len(node.shape(0))): None for axis in node.integers(1)}:
        result = node.call("reverse", result, axis=axis)
    return result


@converts("REVERSE_SEQUENCE")
def _reverse_sequence(node: Node) -> Expr:
    options, lengths = node.options("ReverseSequenceOptions"), node.expr(1)
    extent = node.shape(0)[normalized_axis("REVERSE_SEQUENCE", options.SeqDim(), len(node.shape(0)))]
    most = bounds(extent)[1]
    if isinstance(lengths, Constant) and not np.all((lengths.data >= 0) & (lengths.data <= most)):
        raise ModelError(f"lengths {lengths.data.tolist()} exceed the extent {extent}")
    return node.call(
        "reverse_sequence", node.expr(0), node.expr(1), seq_axis=options.SeqDim(), batch_axis=options.BatchDim()
    )


@converts("DYNAMIC_UPDATE_SLICE")
def _dynamic_update_slice(node: Node) -> Expr:
    """Convert DYNAMIC_UPDATE_SLICE: write input 1 over input 0 at the indices in input 2, clamped to the tensor.

    Elements are selected rather than stored at their indices, so that the result can share the memory of the old
    tensor.
    """
    data, update, shape, size = node.expr(0), node.expr(1), node.shape(0), node.shape(1)
    rank = len(shape)
    fits = len(size) == rank and all(0 < part <= whole for part, whole in zip(size, shape, strict=True))
    if not fits or node.shape(2) != (rank,):
        raise ModelError(f"an update of shape {size} at indices of shape {node.shape(2)} does not fit {shape}")
    inside: Expr | None = None
    for axis in (axis for axis in range(rank) if size[axis] < shape[axis]):
        begin = node.cut(node.expr(2), axis, axis + 1)
        dtype = ir.tensor_type(begin).dtype
        begin = node.call("maximum", begin, const(0, dtype))
        begin = node.call("minimum", begin, node.number(shape[axis] - size[axis], dtype))
        if dtype != "int32":
            begin = node.call("cast", begin, dtype="int32")
        at = node.call("subtract", node.counted(shape[axis]), begin)
        here = node.call(
            "logical_and", node.call("greater_equal", at, const(0, "int32")),
            node.call("less", at, node.number(size[axis])),
        )  # fmt: skip
        aligned = tuple(shape[axis] if other == axis else 1 for other in range(rank))
        here = node.call("reshape", here, newshape=aligned)
        inside = here if inside is None else node.call("logical_and", inside, here)
        # positions outside the slice are clamped to it, and then not selected
        update = node.call("take", update, at, axis=axis, mode="clip")
    return update if inside is None else node.call("where", inside, update, data)


@converts("EMBEDDING_LOOKUP")
def _embedding_lookup(node: Node) -> Expr:
    """Convert EMBEDDING_LOOKUP: gather rows of input 1 by the indices in input 0; int8 tables are dequantized."""
    table, output = node.input(1), node.output()
    if len(node.shape(0)) != 1 or len(node.shape(1)) < 2:
        raise ModelError(f"indices of shape {node.shape(0)} do not fit a table of shape {node.shape(1)}")
    _check_indices(node, node.expr(0), 0, data=1)
    rows = node.call("take", node.expr(1), node.expr(0), axis=0, mode="clip")
    if output.dtype != "float32" or table.dtype == "float32":
        return rows
    if table.quantization is None or table.dtype != "int8" or np.any(table.quantization.zero_points != 0):
        node.refuse(
            f"EMBEDDING_LOOKUP from {table.type_name} to FLOAT32 is not supported", "Use a symmetric int8 table"
        )
    scales: Expr = const(table.quantization.scales, "float32")
    if table.quantization.scales.size > 1:
        if table.quantization.axis != 0:
            raise ModelError(f"the table has scales for dimension {table.quantization.axis}, not 0")
        scales = node.call("take", scales, node.expr(0), axis=0, mode="clip")
        scales = node.call("reshape", scales, newshape=(-1, *(1,) * (len(node.shape(1)) - 1)))
    return node.call("multiply", node.call("cast", rows, dtype="float32"), scales)


@converts("TOPK_V2")
def _top_k(node: Node) -> list[Expr]:
    count, axis = node.extent(1), len(node.shape(0)) - 1
    if axis < 0 or not 0 <= count <= node.shape(0)[axis]:
        raise ModelError(f"cannot select {count} elements of {node.shape(0)}")
    dtype = node.output(1).dtype
    places = node.call("topk", node.expr(0), k=count, axis=axis, ret_type="indices", is_ascend=False, dtype=dtype)
    return [node.call("gather", node.expr(0), places, axis=axis), places]


@converts("ONE_HOT")
def _one_hot(node: Node) -> Expr:
    depth, rank = node.extent(1), len(node.shape(0))
    if bounds(depth)[0] < 0 or (is_static((depth,)) and depth >= 1 << 31):
        raise ModelError(f"invalid depth {depth}")
    axis = normalized_axis("ONE_HOT", node.options("OneHotOptions").Axis(), rank + 1)
    return node.call("one_hot", node.expr(0), node.expr(2), node.expr(3), depth=depth, axis=axis,
                     dtype=ir.tensor_type(node.expr(2)).dtype)  # fmt: skip


@converts("CUMSUM")
def _cumsum(node: Node) -> Expr:
    options, data = node.options("CumsumOptions"), node.expr(0)
    axis = normalized_axis("CUMSUM", node.integer(1), len(node.shape(0)))
    if options.Reverse():
        data = node.call("reverse", data, axis=axis)
    dtype = ir.tensor_type(data).dtype
    result = node.call("cumsum", data, axis=axis, dtype=dtype, exclusive=bool(options.Exclusive()))
    return node.call("reverse", result, axis=axis) if options.Reverse() else result


@converts("RANGE")
def _range(node: Node) -> Expr:
    dtype = node.output().dtype or ""
    numbers = node.value if dtypes.is_float(dtype) else node.extents
    ends = [np.reshape(numbers(position), -1) for position in range(3)]
    if any(end.size != 1 for end in ends) or ends[2][0] == 0:
        raise ModelError("a range requires one start, one limit and one nonzero step")
    (start,), (limit,), (step,) = ends
    if not is_static((start, limit, step)):
        places = node.counted(maximum(-((start - limit) // step), 0), dtype)
        return node.call("add", node.call("multiply", places, node.number(step, dtype)), node.number(start, dtype))
    span, length = float(limit) - float(start), float(step)
    if not np.isfinite(span / length):
        raise ModelError(f"invalid range from {start} to {limit} by {step}")
    count = max(0, -int(-span // length))
    cost.require("constants", count * 8, node.label)
    values = start + np.arange(count).astype(dtype) * step
    return Constant(values.astype(dtype), node.output().name, node.span)


@converts("BROADCAST_ARGS")
def _broadcast_args(node: Node) -> Expr:
    shapes = [tuple(node.extents(position)) for position in (0, 1)]
    if any(bounds(extent)[0] < 0 for shape in shapes for extent in shape):
        raise ModelError(f"the shapes {shapes[0]} and {shapes[1]} have a negative extent")
    rank = max(map(len, shapes))
    first, second = ((1,) * (rank - len(shape)) + shape for shape in shapes)
    if any(1 not in pair and pair[0] != pair[1] for pair in zip(first, second, strict=True)):
        raise ModelError(f"the shapes {shapes[0]} and {shapes[1]} do not broadcast")
    return node.sizes([b if a == 1 else a for a, b in zip(first, second, strict=True)])


_DIAGONALS = ("float32", "int8", "uint8", "int16", "int32", "int64")


def _diagonal(node: Node, rows: int, columns: int) -> Expr:
    """Return the mask of a matrix's diagonal; the reference kernel writes no result for other dtypes."""
    if node.output().dtype not in _DIAGONALS:
        node.refuse(
            f"{node.record.code} of {node.output().type_name} is not supported", "Use float32 or a signed integer"
        )
    across = node.call("reshape", node.counted(rows), newshape=(rows, 1))
    return node.call("equal", across, node.call("reshape", node.counted(columns), newshape=(1, columns)))


@converts("MATRIX_DIAG")
def _matrix_diag(node: Node) -> Expr:
    shape = node.shape(0)
    if not shape:
        raise ModelError("a diagonal must have at least one dimension")
    data = node.call("reshape", node.expr(0), newshape=(*shape, 1))
    return node.call("where", _diagonal(node, shape[-1], shape[-1]), data, const(0, ir.tensor_type(data).dtype))


@converts("MATRIX_SET_DIAG")
def _matrix_set_diag(node: Node) -> Expr:
    shape, given = node.shape(0), node.shape(1)
    if len(shape) < 2 or given != (*shape[:-2], min(shape[-2:])):
        raise ModelError(f"a diagonal of shape {given} does not fit matrices of shape {shape}")
    new = (*given[:-1], 1, given[-1]) if shape[-2] > shape[-1] else (*given, 1)
    diagonal = node.call("reshape", node.expr(1), newshape=new)
    return node.call("where", _diagonal(node, *shape[-2:]), diagonal, node.expr(0))


@converts("SPARSE_TO_DENSE")
def _sparse_to_dense(node: Node) -> Expr:
    """Convert SPARSE_TO_DENSE: values (input 2) at index tuples (input 0), and a default (input 3) elsewhere."""
    shape, tuples, dtype = tuple(node.extents(1)), node.shape(0), ir.tensor_type(node.expr(2)).dtype
    if any(bounds(extent)[1] < 0 for extent in shape):
        raise ModelError(f"the shape {shape} has a negative extent")
    count = tuples[0] if tuples else 1
    if len(tuples) > 2 or (tuples[1] if len(tuples) == 2 else 1) != len(shape) or node.shape(2) not in ((), (count,)):
        raise ModelError(f"values of shape {node.shape(2)} at indices of shape {tuples} do not fit {shape}")
    start = node.call("broadcast_to", node.call("reshape", node.expr(3), newshape=()), shape=shape)
    places = node.call("transpose", node.call("reshape", node.expr(0), newshape=(count, len(shape))), axes=(1, 0))
    values = node.call("broadcast_to", node.expr(2), shape=(count,))
    if ir.tensor_type(start).dtype != dtype:
        raise ModelError(f"values of {dtype} do not fit a default of {ir.tensor_type(start).dtype}")
    return node.call("scatter_nd", start, places, values, mode="update")


_SEGMENTS = {"SEGMENT_SUM": "add", "UNSORTED_SEGMENT_SUM": "add", "UNSORTED_SEGMENT_PROD": "mul",
             "UNSORTED_SEGMENT_MAX": "max", "UNSORTED_SEGMENT_MIN": "min"}  # fmt: skip


@converts(*_SEGMENTS)
def _segments(node: Node) -> Expr:
    """Convert segment reductions: slices (input 0) with equal segment numbers (input 1) are reduced."""
    mode, numbers, shape = _SEGMENTS[node.record.code], node.value(1), node.shape(0)
    dtype = ir.tensor_type(node.expr(0)).dtype
    most = int(numbers.max(initial=-1)) + 1 if node.record.code == "SEGMENT_SUM" else node.integer(2)
    if numbers.size == 0 or numbers.min() < 0 or int(numbers.max()) >= most or shape[: numbers.ndim] != numbers.shape:
        raise ModelError(f"slices of {shape} do not fit segment numbers {numbers.shape} from 0 to {most - 1}")
    if dtype == "bool":
        node.refuse(f"{node.record.code} of booleans is not supported", "Cast them to int32")
    # for floats, too, the reference starts with the largest finite number
    facts = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    first = {"add": 0, "mul": 1, "max": facts.min, "min": facts.max}[mode]
    start = node.call("broadcast_to", const(first, dtype), shape=(most, *shape[numbers.ndim :]))
    return node.call("scatter_nd", start, const(numbers[None], str(numbers.dtype)), node.expr(0), mode=mode)
