"""Operators that change the shape of the same bytes: they generate no code and share storage."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import declare, divided, normalized_axes, normalized_axis, same_extent
from mlfc.relay.ir import Attrs, TensorType
from mlfc.relay.op import REQUIRED, Attr, Elements, Kind
from mlfc.support.dims import Dim, Shape, is_static


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
