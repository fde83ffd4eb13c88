"""Lists of tensors: what sequences of ONNX are where the run decides their length.

A list is a value as any other: an operator that changes one gives another list. No loops compute them; the virtual
machine has instructions for lists, and changes one in place that nobody reads afterwards. Positions count from the
front; negative ones count from the end, and one outside of the list ends the run with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import checked_shape
from mlfc.relay.ir import Attrs, ListType, TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, bounds


def fits(kind: ListType, tensor: Type) -> bool:
    """Tell whether a tensor may be an element of a list: its extents are the list's, or within an open one of it."""
    return any(_fits(element, tensor) for element in kind.elements)


def _fits(element: TensorType, tensor: Type) -> bool:
    if not isinstance(tensor, TensorType) or tensor.dtype != element.dtype or len(tensor.shape) != len(element.shape):
        return False
    return all(_covers(wide, extent) for wide, extent in zip(element.shape, tensor.shape, strict=True))


def _covers(wide: int | Dim, extent: int | Dim) -> bool:
    if wide == extent:
        return True
    if not isinstance(wide, Dim) or wide.symbol is None:
        return False
    (low, high), (least, most) = bounds(wide), bounds(extent)
    return low <= least and most <= high


def _listed(name: str, kind: Type) -> ListType:
    if not isinstance(kind, ListType):
        raise TypeCheckError(f"{name}: expected a list, got {kind}")
    return kind


def _element(name: str, kind: Type) -> TensorType:
    """Return the type of the tensors of a list that all have as many dimensions."""
    items = _listed(name, kind)
    if items.others:
        raise TypeCheckError(f"{name}: expected tensors with as many dimensions, got {items}")
    return items.element


def _check_fits(name: str, kind: ListType, tensor: Type) -> None:
    if not fits(kind, tensor):
        raise TypeCheckError(f"{name}: {tensor} is no element of {kind}")


def _of_shapes(name: str, attrs: Attrs, dtype: str) -> ListType:
    """Return the type of a list with tensors of the shape that an operator has, and of others."""
    shapes = (attrs["shape"], *attrs["others"])
    element, *others = (TensorType(checked_shape(name, shape), dtype) for shape in shapes)
    return ListType(element, tuple(others))


def _check_index(name: str, kind: Type) -> None:
    if not isinstance(kind, TensorType) or kind.size != 1 or not dtypes.is_integer(kind.dtype):
        raise TypeCheckError(f"{name}: a position is one integer, not {kind}")


def _infer_new(_name: str, _types: Sequence[Type], attrs: Attrs) -> Type:
    dtypes.bits(attrs["dtype"])
    return _of_shapes("list_new", attrs, attrs["dtype"])


def _infer_append(name: str, types: Sequence[Type], _attrs: Attrs) -> Type:
    _check_fits(name, _listed(name, types[0]), types[1])
    return types[0]


def _infer_insert(name: str, types: Sequence[Type], _attrs: Attrs) -> Type:
    _check_index(name, types[1])
    _check_fits(name, _listed(name, types[0]), types[2])
    return types[0]


def _infer_erase(name: str, types: Sequence[Type], _attrs: Attrs) -> Type:
    _listed(name, types[0])
    _check_index(name, types[1])
    return types[0]


def _infer_get(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    items = _listed(name, types[0])
    _check_index(name, types[1])
    found = TensorType(checked_shape(name, attrs["shape"]), items.element.dtype)
    _check_fits(name, items, found)
    return found


def _infer_length(name: str, types: Sequence[Type], _attrs: Attrs) -> Type:
    _listed(name, types[0])
    return TensorType((), "int64")


def _infer_concat(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    element, shape, axis = _element(name, types[0]), checked_shape(name, attrs["shape"]), attrs["axis"]
    if not 0 <= axis < len(shape) or not _fits(
        TensorType(_without(element.shape, axis), element.dtype), TensorType(_without(shape, axis), element.dtype)
    ):
        raise TypeCheckError(f"{name}: elements {element} do not make a tensor of shape {shape} along axis {axis}")
    return TensorType(shape, element.dtype)


def _without(shape: Sequence[Extent], axis: int) -> tuple[Extent, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _infer_split(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    tensor, sizes, axis = types[0], types[1], attrs["axis"]
    if not isinstance(tensor, TensorType) or not 0 <= axis < len(tensor.shape):
        raise TypeCheckError(f"{name}: expected a tensor with axis {axis}, got {tensor}")
    if not isinstance(sizes, TensorType) or len(sizes.shape) != 1 or sizes.dtype != "int64":
        raise TypeCheckError(f"{name}: sizes are a list of int64, not {sizes}")
    element = TensorType(checked_shape(name, attrs["shape"]), tensor.dtype)
    others = _without(element.shape, axis) if attrs["keepdims"] else element.shape
    part = TensorType(_without(tensor.shape, axis), tensor.dtype)
    if len(element.shape) != len(tensor.shape) - (not attrs["keepdims"]) or not _fits(
        TensorType(others, tensor.dtype), part
    ):
        raise TypeCheckError(f"{name}: parts of {tensor} along axis {axis} are no {element}")
    return ListType(element)


def _infer_require(name: str, types: Sequence[Type], _attrs: Attrs) -> Type:
    _listed(name, types[0])
    flag = types[1]
    if not isinstance(flag, TensorType) or flag.size != 1 or flag.dtype != "bool":
        raise TypeCheckError(f"{name}: a condition is one bool, not {flag}")
    return types[0]


def _infer_as(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    items = _listed(name, types[0])
    found = _of_shapes(name, attrs, items.element.dtype)
    for element in items.elements:
        _check_fits(name, found, element)
    return found


def _infer_from(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    shape = checked_shape(name, attrs["shape"])
    dtypes.bits(attrs["dtype"])
    extents, data = types
    if not isinstance(extents, TensorType) or extents.dtype != "int64" or extents.shape[1:] != (len(shape),):
        raise TypeCheckError(f"{name}: extents of tensors of {len(shape)} dimensions are no {extents}")
    if not isinstance(data, TensorType) or data.dtype != "uint8" or len(data.shape) != 1:
        raise TypeCheckError(f"{name}: bytes are a list of uint8, not {data}")
    return ListType(TensorType(shape, attrs["dtype"]))


def _infer_extents(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    rank, shape = _listed(name, types[0]).ranks[-1], checked_shape(name, attrs["shape"])
    if shape[1:] != (rank,):
        raise TypeCheckError(f"{name}: extents of tensors of {rank} dimensions have no shape {shape}")
    return TensorType(shape, "int64")


def _infer_bytes(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    _listed(name, types[0])
    shape = checked_shape(name, attrs["shape"])
    if len(shape) != 1:
        raise TypeCheckError(f"{name}: bytes have one dimension, not {len(shape)}")
    return TensorType(shape, "uint8")


def _infer_stack(name: str, types: Sequence[Type], attrs: Attrs) -> Type:
    element, shape = _element(name, types[0]), checked_shape(name, attrs["shape"])
    if not shape or not _fits(element, TensorType(shape[1:], element.dtype)):
        raise TypeCheckError(f"{name}: elements {element} do not make a tensor of shape {shape}")
    return TensorType(shape, element.dtype)


def _declare(
    name: str,
    inputs: int,
    infer: Callable[[str, Sequence[Type], Attrs], Type],
    doc: str,
    *attrs: Attr,
    traits: Trait = Trait.NONE,
) -> None:
    def of_types(types: Sequence[Type], given: Attrs) -> Type:
        return infer(name, types, given)

    OPERATORS.add(name, Operator(name, inputs, of_types, Kind.LIST, attrs, traits=traits, doc=doc))


_SHAPE, _OTHERS = Attr("shape"), Attr("others", ())
_declare("list_new", 0, _infer_new, "An empty list of tensors of this shape, or of others with more dimensions", _SHAPE,
         Attr("dtype"), _OTHERS)  # fmt: skip
_declare("list_append", 2, _infer_append, "A list with a tensor more at its end")
_declare("list_insert", 3, _infer_insert, "A list with a tensor more in front of a position",
         traits=Trait.AT_POSITION)  # fmt: skip
_declare("list_erase", 2, _infer_erase, "A list without the tensor at a position", traits=Trait.AT_POSITION)
_declare("list_get", 2, _infer_get, "The tensor at a position; symbols that are new in its shape are read from it",
         _SHAPE, traits=Trait.AT_POSITION)  # fmt: skip
_declare("list_length", 1, _infer_length, "How many tensors a list has")
_declare("list_concat", 1, _infer_concat, "The tensors of a list one after the other along an axis", _SHAPE,
         Attr("axis", 0))  # fmt: skip
_declare("list_stack", 1, _infer_stack, "The tensors of a list along a new first axis", _SHAPE)
_declare("list_split", 2, _infer_split, "A list of the parts of a tensor along an axis, which have these sizes",
         _SHAPE, Attr("axis", 0), Attr("keepdims", True))  # fmt: skip
_declare("list_require", 2, _infer_require, "The same list; the run ends with the message where a bool is false",
         Attr("message"))  # fmt: skip
_declare("list_as", 1, _infer_as, "The same list, whose tensors may have more shapes", _SHAPE, _OTHERS)
_declare("list_from", 2, _infer_from, "A list of tensors by their extents, one row each, and their bytes, each from a "
         "multiple of 64 on", _SHAPE, Attr("dtype"))  # fmt: skip
_declare("list_extents", 1, _infer_extents, "The extents of the tensors of a list, one row each; -1 behind "
         "those of tensors with fewer dimensions than others", _SHAPE)  # fmt: skip
_declare("list_bytes", 1, _infer_bytes, "The bytes of the tensors of a list, each from a multiple of 64 on", _SHAPE)
