"""Lists of tensors: sequences of ONNX whose length is only known at run time.

An operator that changes a list returns a new one; the virtual machine updates a list in place if it is not read later.
Positions count from the front, negative ones from the end; a position outside the list is a runtime error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfc.errors import TypeCheckError
from mlfc.ops.rules import checked_shape, replaced
from mlfc.relay.ir import Attrs, ListType, TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds


def fits(kind: ListType, tensor: Type) -> bool:
    """Tell whether a tensor may be an element of a list: extents equal the list's, or are within its dynamic bounds."""
    return any(_fits(element, tensor) for element in kind.elements)


def _fits(element: TensorType, tensor: Type) -> bool:
    if not isinstance(tensor, TensorType) or tensor.dtype != element.dtype or len(tensor.shape) != len(element.shape):
        return False
    for wide, extent in zip(element.shape, tensor.shape, strict=True):
        (low, high), (least, most) = bounds(wide), bounds(extent)
        is_within = isinstance(wide, Dim) and wide.symbol is not None and low <= least and most <= high
        if wide != extent and not is_within:
            return False
    return True


def _listed(name: str, kind: Type) -> ListType:
    if not isinstance(kind, ListType):
        raise TypeCheckError(f"{name}: expected a list, got {kind}")
    return kind


def _element(name: str, kind: Type) -> TensorType:
    """Return the element type of a list whose tensors all have the same number of dimensions."""
    items = _listed(name, kind)
    if items.others:
        raise TypeCheckError(f"{name}: expected tensors with equal numbers of dimensions, got {items}")
    return items.element


def _check(name: str, what: str, kind: Type, items: Type) -> None:
    """Check an argument of an operator on a list."""
    if what == "list":
        _listed(name, kind)
    elif what == "element":
        if not fits(_listed(name, items), kind):
            raise TypeCheckError(f"{name}: {kind} is not an element of {items}")
    elif what == "position":
        if not isinstance(kind, TensorType) or kind.size != 1 or not dtypes.is_integer(kind.dtype):
            raise TypeCheckError(f"{name}: expected one integer as position, got {kind}")
    elif what == "condition" and (not isinstance(kind, TensorType) or kind.size != 1 or kind.dtype != "bool"):
        raise TypeCheckError(f"{name}: expected one bool as condition, got {kind}")


def _of_shapes(name: str, attrs: Attrs, dtype: str) -> ListType:
    """Return the type of a list of tensors with the shape, or the other shapes, in an operator's attributes."""
    shapes = (attrs["shape"], *attrs["others"])
    element, *others = (TensorType(checked_shape(name, shape), dtype) for shape in shapes)
    return ListType(element, tuple(others))


def _infer_new(_name: str, attrs: Attrs) -> Type:
    dtypes.bits(attrs["dtype"])
    return _of_shapes("list_new", attrs, attrs["dtype"])


def _infer_get(name: str, attrs: Attrs, items: Type, _: Type) -> Type:
    found = TensorType(checked_shape(name, attrs["shape"]), _listed(name, items).element.dtype)
    _check(name, "element", found, items)
    return found


def _infer_concat(name: str, attrs: Attrs, kind: Type) -> Type:
    element, shape, axis = _element(name, kind), checked_shape(name, attrs["shape"]), attrs["axis"]
    kinds = (TensorType(replaced(extents, axis), element.dtype) for extents in (element.shape, shape))
    if not 0 <= axis < len(shape) or not _fits(*kinds):
        raise TypeCheckError(f"{name}: elements {element} do not make a tensor of shape {shape} along axis {axis}")
    return TensorType(shape, element.dtype)


def _infer_split(name: str, attrs: Attrs, tensor: Type, sizes: Type) -> Type:
    axis = attrs["axis"]
    if not isinstance(tensor, TensorType) or not 0 <= axis < len(tensor.shape):
        raise TypeCheckError(f"{name}: expected a tensor with axis {axis}, got {tensor}")
    if not isinstance(sizes, TensorType) or len(sizes.shape) != 1 or sizes.dtype != "int64":
        raise TypeCheckError(f"{name}: expected a vector of int64 as sizes, got {sizes}")
    element = TensorType(checked_shape(name, attrs["shape"]), tensor.dtype)
    others = replaced(element.shape, axis) if attrs["keepdims"] else element.shape
    kinds = (TensorType(extents, tensor.dtype) for extents in (others, replaced(tensor.shape, axis)))
    if len(element.shape) != len(tensor.shape) - (not attrs["keepdims"]) or not _fits(*kinds):
        raise TypeCheckError(f"{name}: parts of {tensor} along axis {axis} do not match {element}")
    return ListType(element)


def _infer_as(name: str, attrs: Attrs, kind: Type) -> Type:
    items = _listed(name, kind)
    found = _of_shapes(name, attrs, items.element.dtype)
    for element in items.elements:
        _check(name, "element", element, found)
    return found


def _infer_from(name: str, attrs: Attrs, extents: Type, data: Type) -> Type:
    shape = checked_shape(name, attrs["shape"])
    dtypes.bits(attrs["dtype"])
    if not isinstance(extents, TensorType) or extents.dtype != "int64" or extents.shape[1:] != (len(shape),):
        raise TypeCheckError(f"{name}: expected int64 extents (n, {len(shape)}), got {extents}")
    if not isinstance(data, TensorType) or data.dtype != "uint8" or len(data.shape) != 1:
        raise TypeCheckError(f"{name}: expected a vector of uint8 as bytes, got {data}")
    return ListType(TensorType(shape, attrs["dtype"]))


def _infer_extents(name: str, attrs: Attrs, kind: Type) -> Type:
    rank, shape = _listed(name, kind).ranks[-1], checked_shape(name, attrs["shape"])
    if shape[1:] != (rank,):
        raise TypeCheckError(f"{name}: expected a shape (n, {rank}) of the extents, got {shape}")
    return TensorType(shape, "int64")


def _infer_bytes(name: str, attrs: Attrs, _: Type) -> Type:
    shape = checked_shape(name, attrs["shape"])
    if len(shape) != 1:
        raise TypeCheckError(f"{name}: expected one dimension of the bytes, got {len(shape)}")
    return TensorType(shape, "uint8")


def _infer_stack(name: str, attrs: Attrs, kind: Type) -> Type:
    element, shape = _element(name, kind), checked_shape(name, attrs["shape"])
    if not shape or not _fits(element, TensorType(shape[1:], element.dtype)):
        raise TypeCheckError(f"{name}: elements {element} do not make a tensor of shape {shape}")
    return TensorType(shape, element.dtype)


def _same(_name: str, _attrs: Attrs, items: Type, *_: Type) -> Type:
    return items


def _declare(name: str, takes: tuple[str, ...], infer: Callable[..., Type], doc: str, *attrs: Attr) -> None:
    """Register an operator; `takes` are its arguments, as names that `_check` accepts."""

    def of_types(types: Sequence[Type], given: Attrs) -> Type:
        for kind, what in zip(types, takes, strict=True):
            _check(name, what, kind, types[0])
        return infer(name, given, *types)

    traits = Trait.NOT_IN_TVM | (Trait.AT_POSITION if "position" in takes else Trait.NONE)
    OPERATORS.add(name, Operator(name, len(takes), of_types, Kind.LIST, attrs, traits=traits, doc=doc))


_SHAPE, _OTHERS = Attr("shape"), Attr("others", ())
_declare("list_new", (), _infer_new, "An empty list of tensors of this shape, or of others with more dimensions",
         _SHAPE, Attr("dtype"), _OTHERS)  # fmt: skip
_declare("list_append", ("list", "element"), _same, "A list with a tensor appended")
_declare("list_insert", ("list", "position", "element"), _same, "A list with a tensor inserted before a position")
_declare("list_erase", ("list", "position"), _same, "A list without the tensor at a position")
_declare("list_get", ("list", "position"), _infer_get,
         "The tensor at a position; symbols that are new in its shape are read from it", _SHAPE)  # fmt: skip
_declare("list_length", ("list",), lambda *_: TensorType((), "int64"), "Number of tensors in a list")
_declare("list_concat", ("list",), _infer_concat, "The tensors of a list one after the other along an axis", _SHAPE,
         Attr("axis", 0))  # fmt: skip
_declare("list_stack", ("list",), _infer_stack, "The tensors of a list along a new first axis", _SHAPE)
_declare("list_split", ("tensor", "sizes"), _infer_split,
         "A list of the parts of a tensor along an axis, which have these sizes", _SHAPE, Attr("axis", 0),
         Attr("keepdims", True))  # fmt: skip
_declare("list_require", ("list", "condition"), _same,
         "The same list; execution fails with the message if a bool is false", Attr("message"))  # fmt: skip
_declare("list_as", ("list",), _infer_as, "The same list, whose tensors may have more shapes", _SHAPE, _OTHERS)
_declare("list_from", ("extents", "bytes"), _infer_from, "A list of tensors by their extents, one row each, and their "
         "bytes, each from a multiple of 64 on", _SHAPE, Attr("dtype"))  # fmt: skip
_declare("list_extents", ("list",), _infer_extents, "The extents of the tensors of a list, one row each; -1 behind "
         "those of tensors with fewer dimensions than others", _SHAPE)  # fmt: skip
_declare("list_bytes", ("list",), _infer_bytes,
         "The bytes of the tensors of a list, each from a multiple of 64 on", _SHAPE)  # fmt: skip
