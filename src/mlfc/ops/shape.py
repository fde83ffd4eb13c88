"""Operators that move elements: transpose, slice, split, concatenate, repeat; and views, which share storage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from mlfc.errors import TypeCheckError
from mlfc.ops import rules
from mlfc.ops.rules import (
    Element,
    at_most,
    declare,
    divided,
    normalized_axes,
    normalized_axis,
    replaced,
    same_extent,
    same_shape,
    tensors,
)
from mlfc.relay.ir import Attrs, TensorType, TupleType, Type
from mlfc.relay.op import OPERATORS, REQUIRED, Attr, Elements, Kind, Layout, Operator, Trait
from mlfc.support.dims import LARGEST, Dim, Extent, Shape, UndecidedError, is_static, maximum, minimum
from mlfc.tir import builder as tb
from mlfc.tir.context import Context, Output, Tensor, broadcast_read
from mlfc.tir.ir import Expr


def _ints(name: str, what: str, value: Any, low: int = 0) -> Shape:
    """Return a tuple of integers of at least `low` from an integer or a sequence."""
    given = (value,) if isinstance(value, (int, Dim)) else value
    if not isinstance(given, tuple) or any(not isinstance(item, (int, Dim)) or item < low for item in given):
        raise TypeCheckError(f"{name}: {what} {value} must be integers of at least {low}")
    return given


def _permutation(rank: int, attrs: Attrs) -> tuple[int, ...]:
    if attrs["axes"] is None:
        return tuple(reversed(range(rank)))
    axes = tuple(normalized_axis("transpose", axis, rank) for axis in attrs["axes"])
    if sorted(axes) != list(range(rank)):
        raise TypeCheckError(f"transpose: axes {attrs['axes']} are not a permutation of {rank} dimensions")
    return axes


def _infer_transpose(_: str, attrs: Attrs, data: TensorType) -> TensorType:
    return TensorType(tuple(data.shape[axis] for axis in _permutation(len(data.shape), attrs)), data.dtype)


def _transpose(of: Element, data: Tensor) -> Expr:
    axes = _permutation(len(data.shape), of.attrs)
    return data.read([of.at[axes.index(axis)] for axis in range(len(axes))])


def _infer_broadcast_to(name: str, attrs: Attrs, data: TensorType, *like: TensorType) -> TensorType:
    shape = like[0].shape if like else _ints(name, "shape", attrs["shape"])
    if rules.broadcast_shape(name, data.shape, shape) != tuple(shape):
        raise TypeCheckError(f"{name}: {data.shape} does not broadcast to {shape}")
    return TensorType(shape, data.dtype)


def _fields(name: str, types: Sequence[Type]) -> list[TensorType]:
    """Return the tensor types in the tuple argument of a joining operator; all have one dtype."""
    if len(types) != 1 or not isinstance(types[0], TupleType) or not types[0].fields:
        raise TypeCheckError(f"{name} takes one tuple of tensors")
    fields = tensors(name, types[0].fields)
    if len({item.dtype for item in fields}) > 1:
        raise TypeCheckError(f"{name}: the dtypes {', '.join(item.dtype for item in fields)} differ")
    return fields


def _infer_concatenate(types: Sequence[Type], attrs: Attrs) -> TensorType:
    fields = _fields("concatenate", types)
    first = fields[0].shape
    axis = normalized_axis("concatenate", attrs["axis"], len(first))
    rest = {replaced(item.shape, axis): item for item in fields}
    is_known = all(item.is_static for item in fields)
    if (is_known and len(rest) > 1) or len({len(item.shape) for item in fields}) > 1:
        raise TypeCheckError(f"concatenate: shapes {', '.join(str(item.shape) for item in fields)} differ")
    for other in rest:
        same_shape("concatenate", replaced(first, axis), other)
    total = sum(item.shape[axis] for item in fields)
    return TensorType(replaced(first, axis, total), fields[0].dtype)


def _join(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs, out: Output, *, stacks: bool) -> None:
    axis, start = attrs["axis"] % len(out.shape), 0
    for position, tensor in enumerate(inputs):
        if 0 not in tensor.shape:
            with ctx.loops(tensor.shape) as at:
                own, rest = (tb.const(position), at[axis:]) if stacks else (at[axis] + start, at[axis + 1 :])
                out.store((*at[:axis], own, *rest), tensor.read(at))
        start += 0 if stacks else tensor.shape[axis]


def _infer_stack(types: Sequence[Type], attrs: Attrs) -> TensorType:
    fields = _fields("stack", types)
    shape = fields[0].shape
    for item in fields:
        same_shape("stack", shape, item.shape)
    axis = normalized_axis("stack", attrs["axis"], len(shape) + 1)
    return TensorType((*shape[:axis], len(fields), *shape[axis:]), fields[0].dtype)


def split_points(extent: Extent, indices_or_sections: int | Sequence[Extent]) -> list[tuple[Any, Any]]:
    """Return (begin, end) of each part into which `split` cuts a dimension of `extent`."""
    if isinstance(indices_or_sections, int):
        sections = indices_or_sections
        if sections < 1 or (isinstance(extent, int) and extent % sections):
            raise TypeCheckError(f"split: {extent} does not divide into {indices_or_sections} equal parts")
        step = rules.divided("split", extent, sections, "elements")
        return [(index * step, (index + 1) * step) for index in range(indices_or_sections)]
    cuts: list[Any] = [0, *indices_or_sections, extent]
    if not all(at_most("split", a, b, "cut points") for a, b in pairwise(cuts)):
        raise TypeCheckError(f"split: cut points {tuple(indices_or_sections)} must ascend from 0 to {extent}")
    return list(pairwise(cuts))


def _infer_split(name: str, attrs: Attrs, data: TensorType) -> TupleType:
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    parts = split_points(data.shape[axis], attrs["indices_or_sections"])
    return TupleType(tuple(TensorType(replaced(data.shape, axis, end - begin), data.dtype) for begin, end in parts))


def _counted(place: Extent, extent: Extent) -> Any:
    """Normalize a position that counts from the end if it is negative."""
    if not isinstance(place, Dim) and abs(place) >= LARGEST:
        return extent if place > 0 else -1  # exceeds any extent, even if bounds do not prove it: 12 * n
    try:
        return place + extent if place < 0 else place
    except UndecidedError:  # a negative position would count from the end
        raise rules.TooSmallError("strided_slice", place, 0, "a place") from None


class KeptIndices(NamedTuple):
    """The indices that a slice keeps along one dimension, in order."""

    start: Any
    step: int
    count: Any


def slice_ranges(shape: Shape, attrs: Attrs) -> list[KeptIndices]:
    """Return the indices that `strided_slice` keeps in each dimension of data of `shape`, in order.

    ``begin``, ``end`` and ``strides`` have one entry per dimension (of ``axes``), or ``strides`` a single one.
    """
    name, begin, end = "strided_slice", attrs["begin"], attrs["end"]
    axes = attrs["axes"] if attrs["axes"] is not None else tuple(range(len(begin)))
    strides = attrs["strides"] if attrs["strides"] is not None else (1,)
    strides = strides * len(begin) if len(strides) == 1 else strides
    if not len(begin) == len(end) == len(axes) or len(strides) < len(begin):
        raise TypeCheckError(f"{name}: begin, end, strides and axes differ in length")
    if attrs["slice_mode"] not in ("end", "size"):
        raise TypeCheckError(f"{name}: slice_mode '{attrs['slice_mode']}' is neither 'end' nor 'size'")
    ranges = [KeptIndices(0, 1, extent) for extent in shape]
    for axis, first, last, stride in zip(axes, begin, end, strides, strict=False):
        where = normalized_axis(name, axis, len(shape))
        ranges[where] = _kept(shape[where], first, last, stride, sized=attrs["slice_mode"] == "size")
    return ranges


def _kept(extent: Any, first: Any, last: Any, stride: int, *, sized: bool) -> KeptIndices:
    """Return the indices that a slice keeps in one dimension; with `sized`, `last` is a size, and -1 means the rest."""
    if sized:
        first = first + extent if first < 0 else first
        last, stride = extent if last < 0 else first + last, 1
    if stride == 0:
        raise TypeCheckError("strided_slice: a stride is 0")
    if is_static((extent, first, last)):
        kept = range(extent)[first:last:stride]
        return KeptIndices(kept.start, kept.step, len(kept))
    # positions before the first and after the last index, in the direction of the stride
    low, high = (0, extent) if stride > 0 else (-1, extent - 1)
    start, end = (minimum(maximum(_counted(item, extent), low), high) for item in (first, last))
    room, size = (end - start, stride) if stride > 0 else (start - end, -stride)
    return KeptIndices(start, stride, maximum(0, (room + size - 1) // size))


def _strided_slice(of: Element, data: Tensor) -> Expr:
    ranges = slice_ranges(data.shape, of.attrs)
    return data.read([index * kept.step + kept.start for index, kept in zip(of.at, ranges, strict=True)])


def _infer_slice_like(name: str, attrs: Attrs, data: TensorType, like: TensorType) -> TensorType:
    axes = normalized_axes(name, attrs["axes"] or None, len(data.shape))
    fits = (axis < len(like.shape) and at_most(name, like.shape[axis], data.shape[axis]) for axis in axes)
    if not all(fits):
        raise TypeCheckError(f"{name}: {like.shape} is not inside {data.shape}")
    shape = tuple(like.shape[axis] if axis in axes else extent for axis, extent in enumerate(data.shape))
    return TensorType(shape, data.dtype)


def _infer_tile(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    reps = _ints(name, "reps", attrs["reps"])
    rank = max(len(reps), len(data.shape))
    shape = (1,) * (rank - len(data.shape)) + data.shape
    reps = (1,) * (rank - len(reps)) + reps
    return TensorType(tuple(extent * count for extent, count in zip(shape, reps, strict=True)), data.dtype)


def _tile(of: Element, data: Tensor) -> Expr:
    skip = len(of.out.shape) - len(data.shape)
    extents = zip(of.at[skip:], data.shape, of.out.shape[skip:], strict=True)
    return data.read([index if own == all_ else index % own for index, own, all_ in extents])


def _infer_repeat(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    (repeats,) = _ints(name, "repeats", attrs["repeats"])
    if attrs["axis"] is None:
        return TensorType((data.size * repeats,), data.dtype)
    axis = normalized_axis(name, attrs["axis"], len(data.shape))
    return TensorType(replaced(data.shape, axis, data.shape[axis] * repeats), data.dtype)


def unraveled(flat: Expr, shape: Sequence[Extent]) -> list[Expr]:
    """Convert the flat row-major index `flat` to indices into `shape`."""
    indices: list[Expr] = []
    for axis in reversed(range(len(shape))):
        indices.append(flat % shape[axis] if axis else flat)
        flat = flat // shape[axis]
    return indices[::-1]


def _repeat(of: Element, data: Tensor) -> Expr:
    at, axis, repeats = of.at, of.attrs["axis"], of.attrs["repeats"]
    if axis is None:
        return data.read(unraveled(at[0] // repeats, data.shape))
    axis %= len(data.shape)
    return data.read(replaced(at, axis, at[axis] // repeats))


def _infer_reverse(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    normalized_axes(name, attrs["axis"], len(data.shape))
    return data


def _reverse(of: Element, data: Tensor) -> Expr:
    axes = normalized_axes("reverse", of.attrs["axis"], len(data.shape))
    return data.read([data.shape[k] - 1 - index if k in axes else index for k, index in enumerate(of.at)])


def _infer_reverse_sequence(name: str, attrs: Attrs, data: TensorType, lengths: TensorType) -> TensorType:
    batch = normalized_axis(name, attrs["batch_axis"], len(data.shape))
    if normalized_axis(name, attrs["seq_axis"], len(data.shape)) == batch:
        raise TypeCheckError(f"{name}: seq_axis and batch_axis are the same")
    if len(lengths.shape) != 1 or lengths.dtype not in ("int32", "int64"):
        raise TypeCheckError(f"{name}: expected {data.shape[batch]} integers as lengths, got {lengths}")
    rules.same_extent(name, data.shape[batch], lengths.shape[0], "numbers of lengths")
    return data


def _reverse_sequence(of: Element, data: Tensor, lengths: Tensor) -> Expr:
    at, rank = of.at, len(data.shape)
    batch, axis = of.attrs["batch_axis"] % rank, of.attrs["seq_axis"] % rank
    length = tb.cast(tb.clamp(lengths(at[batch]), 0, data.shape[axis]), "int32")
    mirrored = tb.select(tb.binary("lt", at[axis], length), length - 1 - at[axis], at[axis])
    return data.read(replaced(at, axis, tb.clamp(mirrored, 0, data.shape[axis] - 1)))


def _infer_trilu(name: str, _: Attrs, data: TensorType, k: TensorType) -> TensorType:
    if len(data.shape) < 2 or k.size != 1 or k.dtype not in ("int32", "int64"):
        raise TypeCheckError(f"{name}: expected matrices and one integer, got {data} and {k}")
    return data


def _trilu(of: Element, data: Tensor, k: Tensor) -> Expr:
    span = sum(data.shape[-2:])
    diagonal = tb.cast(tb.clamp(rules.scalar(k), -span, span), "int32")
    kept = tb.binary("ge" if of.attrs["upper"] else "le", of.at[-1] - of.at[-2], diagonal)
    return tb.select(kept, data.read(of.at), tb.const(0, data.dtype))


for _name, _infer_joined, _layout, _doc in (
    ("concatenate", _infer_concatenate, Layout.CONCATENATE, "Joins tensors along a dimension"),
    ("stack", _infer_stack, None, "Joins tensors along a new dimension"),
):
    OPERATORS.add(_name, Operator(_name, 1, _infer_joined, Kind.REDUCE, (Attr("axis", 0),), layout=_layout,
                                  emit=partial(_join, stacks=_name == "stack"), traits=Trait.READS_ONCE,
                                  doc=_doc))  # fmt: skip
_INJECTIVE = Kind.INJECTIVE
declare("transpose", 1, _infer_transpose, _INJECTIVE, (Attr("axes"),), _transpose, takes_narrow=True,
        layout=Layout.TRANSPOSE, elements=Elements.MOVED,
        doc="Permutes dimensions; None reverses them")  # fmt: skip
declare("broadcast_to", 1, _infer_broadcast_to, Kind.BROADCAST, (Attr("shape"), Attr("dtype", None)),
        lambda of, data: broadcast_read(data, of.at), layout=Layout.BROADCAST, elements=Elements.MOVED,
        traits=Trait.NEUTRAL,
        doc="Repeats dimensions of extent 1 to a shape")  # fmt: skip
declare("broadcast_to_like", 2, _infer_broadcast_to, _INJECTIVE, (), lambda of, data, _: broadcast_read(data, of.at),
        elements=Elements.MOVED, traits=Trait.NEUTRAL,
        doc="Repeats dimensions of extent 1 to the second argument's shape")  # fmt: skip
declare("split", 1, _infer_split, Kind.OPAQUE, (Attr("indices_or_sections"), Attr("axis", 0)),
        doc="Cuts a dimension into equal parts or at given points")  # fmt: skip
declare("strided_slice", 1,
        lambda _, attrs, data: TensorType(tuple(kept.count for kept in slice_ranges(data.shape, attrs)), data.dtype),
        _INJECTIVE, (Attr("begin"), Attr("end"), Attr("strides"), Attr("slice_mode", "end"), Attr("axes")),
        _strided_slice, layout=Layout.SLICE, elements=Elements.MOVED,
        doc="Part of a tensor, as in Python's slices; with slice_mode 'size', ends are sizes")  # fmt: skip
declare("slice_like", 2, _infer_slice_like, _INJECTIVE, (Attr("axes"),), lambda of, data, _: data.read(of.at),
        elements=Elements.MOVED, traits=Trait.NEUTRAL,
        doc="The leading part of a tensor, with the shape of another")  # fmt: skip
declare("tile", 1, _infer_tile, _INJECTIVE, (Attr("reps"),), _tile, elements=Elements.MOVED, traits=Trait.NEUTRAL,
        doc="A tensor repeated as a whole")  # fmt: skip
declare("repeat", 1, _infer_repeat, _INJECTIVE, (Attr("repeats"), Attr("axis", None)), _repeat,
        layout=Layout.AXIS, elements=Elements.MOVED, doc="Each element repeated")  # fmt: skip
declare("reverse", 1, _infer_reverse, _INJECTIVE, (Attr("axis", None),), _reverse, layout=Layout.AXIS,
        elements=Elements.MOVED, doc="Dimensions reversed")  # fmt: skip
declare("reverse_sequence", 2, _infer_reverse_sequence, _INJECTIVE, (Attr("seq_axis", 1), Attr("batch_axis", 0)),
        _reverse_sequence, elements=Elements.MOVED,
        doc="The first elements of each sequence reversed")  # fmt: skip
declare("trilu", 2, _infer_trilu, _INJECTIVE, (Attr("upper", True),), _trilu,
        doc="Upper or lower triangle of matrices, zeros elsewhere")  # fmt: skip


def _reshaped(shape: Shape, newshape: Sequence[Any], *, allow_zero: bool) -> Shape:
    """Return the new shape; raise TypeCheckError if the number of elements differs."""
    entries, rest, size = list(newshape), list(shape), prod(shape)
    result: list[Any] = []

    def take() -> Any:
        if not rest:
            raise TypeCheckError(f"reshape: newshape copies more dimensions than {shape} has")
        return rest.pop(0)

    while entries:
        entry = entries.pop(0)
        if isinstance(entry, Dim) or entry > 0 or entry == -1 or (entry == 0 and allow_zero):
            result.append(entry)
            del rest[:1]
        elif entry == 0:
            result.append(take())
        elif entry == -2:
            result += rest
            rest.clear()
        elif entry == -3:
            result.append(take() * take())
        elif entry == -4:
            if len(entries) < 2:
                raise TypeCheckError("reshape: -4 in newshape needs two entries after it")
            result += _split(take(), entries.pop(0), entries.pop(0))
        else:
            raise TypeCheckError(f"reshape: expected an entry of newshape of at least -4, got {entry}")
    if result.count(-1) > 1:
        raise TypeCheckError("reshape: more than one entry of newshape is -1")
    if -1 in result:
        at, known = result.index(-1), -prod(result)
        result[at] = divided("reshape", size, known, "elements")
    if is_static((prod(result), size)) and prod(result) != size:
        raise TypeCheckError(f"reshape: {shape} has {size} elements, {tuple(result)} has another number of elements")
    same_extent("reshape", size, prod(result), "numbers of elements")
    return tuple(result)


def _split(whole: Any, first: Any, second: Any) -> list[Any]:
    if first == -1 and second > 0:
        first = divided("reshape", whole, second, "elements")
    elif second == -1 and first > 0:
        second = divided("reshape", whole, first, "elements")
    if first < 0 or second < 0 or first * second != whole:
        raise TypeCheckError(f"reshape: a dimension of {whole} does not split into {first} and {second}")
    return [first, second]


def _infer_reshape(_: str, attrs: Attrs, data: TensorType) -> TensorType:
    given = attrs["newshape"]
    newshape = (given,) if isinstance(given, (int, Dim)) else given
    return TensorType(_reshaped(data.shape, newshape, allow_zero=attrs["allowzero"]), data.dtype)


def _infer_reshape_like(name: str, attrs: Attrs, data: TensorType, like: TensorType) -> TensorType:
    if attrs["lhs_begin"] or attrs["rhs_begin"] or attrs["lhs_end"] is not None or attrs["rhs_end"] is not None:
        raise TypeCheckError(f"{name} takes whole shapes only", next_step="Use reshape")
    same_extent(name, data.size, like.size, "numbers of elements")
    return TensorType(like.shape, data.dtype)


def _infer_squeeze(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    if attrs["axis"] is None:
        return TensorType(tuple(extent for extent in data.shape if extent != 1), data.dtype)
    axes = normalized_axes(name, attrs["axis"], len(data.shape))
    wide = [axis for axis in axes if data.shape[axis] != 1]
    if any(isinstance(data.shape[axis], int) for axis in wide):
        raise TypeCheckError(f"{name}: axis {wide[0]} of {data.shape} is not 1")
    if wide:
        same_extent(name, data.shape[wide[0]], 1, f"extents of axis {wide[0]}")
    return TensorType(tuple(extent for axis, extent in enumerate(data.shape) if axis not in axes), data.dtype)


def _infer_expand_dims(name: str, attrs: Attrs, data: TensorType) -> TensorType:
    if not 0 <= attrs["num_newaxis"] <= 64:
        raise TypeCheckError(f"{name}: num_newaxis {attrs['num_newaxis']} must be from 0 to 64")
    axis = normalized_axis(name, attrs["axis"], len(data.shape) + 1)
    return TensorType(data.shape[:axis] + (1,) * attrs["num_newaxis"] + data.shape[axis:], data.dtype)


def _infer_batch_flatten(name: str, _: Attrs, data: TensorType) -> TensorType:
    if not data.shape:
        raise TypeCheckError(f"{name}: a scalar has no batch dimension")
    return TensorType((data.shape[0], prod(data.shape[1:])), data.dtype)


declare("reshape", 1, _infer_reshape, Kind.VIEW, (Attr("newshape"), Attr("allowzero", False)),
        elements=Elements.SAME,
        doc="Another shape; 0 copies a dimension, -1 is inferred, -2 copies the rest, -3 merges two, "
            "-4 splits one")  # fmt: skip
declare("reshape_like", 2, _infer_reshape_like, Kind.VIEW,
        (Attr("lhs_begin", 0), Attr("lhs_end", None), Attr("rhs_begin", 0), Attr("rhs_end", None)),
        elements=Elements.SAME,
        doc="The shape of the second argument")  # fmt: skip
declare("squeeze", 1, _infer_squeeze, Kind.VIEW, (Attr("axis", None),), elements=Elements.SAME,
        doc="Removes dimensions of size 1")  # fmt: skip
declare("expand_dims", 1, _infer_expand_dims, Kind.VIEW, (Attr("axis", REQUIRED), Attr("num_newaxis", 1)),
        elements=Elements.SAME,
        doc="Inserts dimensions of size 1")  # fmt: skip
declare("nn.batch_flatten", 1, _infer_batch_flatten, Kind.VIEW, elements=Elements.SAME,
        doc="Merges all dimensions except the first")  # fmt: skip
