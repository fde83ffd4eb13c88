"""Helpers shared by operator families: declaration of tensor operators, and checks for type rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.relay.ir import Attrs, TensorType, Type
from mlfc.relay.op import OPERATORS, Attr, Kind, Operator
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Shape, bounds, is_static
from mlfc.tir.context import Context, Indices, Reader, Tensor
from mlfc.tir.ir import Expr

DTYPE_CLASSES: dict[str, Callable[[str], bool]] = {
    "float": dtypes.is_float,
    "integer": dtypes.is_integer,
    "number": lambda dtype: dtypes.is_float(dtype) or dtypes.is_integer(dtype),
    "bool": lambda dtype: dtype == "bool",
    "bits": lambda dtype: dtypes.is_integer(dtype) or dtype == "bool",
    "any": lambda dtype: dtype in dtypes.SCALARS,
}


class UnequalDimsError(TypeCheckError):
    """Required equality of two dimension sizes that is only known at run time.

    `extents` are the two sizes: a caller that knows where their symbols come from may make them equal and retry.
    """

    def __init__(self, name: str, a: Extent, b: Extent, what: str = "extents") -> None:
        super().__init__(
            f"{name}: {what} {a} and {b} must be equal, which is only known at run time",
            next_step="Declare input shapes in which they are equal, as --shape NAME=n,64 with one name for both, or "
            "static shapes",
        )
        self.extents = a, b


class NotMultipleError(UnequalDimsError):
    """Required divisibility of a dimension size that is only known at run time.

    Its `extents` are the size and the largest multiple not above it; `by` is the number.
    """

    def __init__(self, name: str, extent: Extent, by: Extent, what: str) -> None:
        super().__init__(name, extent, extent // by * by)
        self.cause = f"{name}: expected a multiple of {by} {what}, got {extent}, which may not be one"
        self.by = by


class TooSmallError(UnsupportedError):
    """Required lower bound of a dimension size that is only known at run time.

    `extent` is the size and `least` the number: a caller that knows where its symbols come from may raise their bounds
    and retry.
    """

    def __init__(self, name: str, extent: Extent, least: int, what: str) -> None:
        super().__init__(
            f"{name}: expected {what} of at least {least}, got {extent}, which may be less",
            next_step="Declare input bounds that exclude this, as --shape NAME=n:16..,64, or static shapes",
        )
        self.extent, self.least = extent, least


class Element(NamedTuple):
    """The element that a rule computes: its indices, the call's attributes and result type, and the function."""

    at: Indices
    attrs: Attrs
    out: TensorType
    ctx: Context


def declare(
    name: str,
    num_inputs: int | None,
    infer: Callable[..., Type],
    kind: Kind,
    attrs: tuple[Attr, ...] = (),
    element: Callable[..., Expr] | None = None,
    **rest: Any,
) -> None:
    """Register an operator of tensors.

    `infer` is the type rule ``(name, attrs, *tensor types) -> Type``; arguments that are not tensors are refused before
    it is called. `element` is the rule ``(Element, *tensors) -> Expr`` of one element, for operators without their own
    loops. `rest` are other fields of `mlfc.relay.op.Operator`.
    """

    def of_types(types: Sequence[Type], given: Attrs) -> Type:
        return infer(name, given, *tensors(name, types))

    def compute(ctx: Context, inputs: Sequence[Tensor], given: Attrs, out: TensorType) -> Reader:
        assert element is not None
        rule = element
        return lambda at: rule(Element(at, given, out, ctx), *inputs)

    if element is not None:
        rest["compute"] = compute
    OPERATORS.add(name, Operator(name, num_inputs, of_types, kind, attrs, **rest))


def tensors(name: str, types: Sequence[Type]) -> list[TensorType]:
    """Return the types if all are tensors, else raise TypeCheckError."""
    for index, kind in enumerate(types):
        if not isinstance(kind, TensorType):
            raise TypeCheckError(f"{name}: argument {index} must be a tensor, not {kind}")
    return list(types)  # type: ignore[arg-type]  # checked just above


def check_dtype(name: str, dtype: str, takes: str) -> None:
    """Raise TypeCheckError unless `dtype` belongs to the class `takes` of DTYPE_CLASSES."""
    if not DTYPE_CLASSES[takes](dtype):
        wanted = {"bits": "integer or bool", "number": "integer or float"}.get(takes, takes)
        raise TypeCheckError(f"{name} takes {wanted} tensors, not {dtype}", next_step="Put a cast before it")


def check_alike(name: str, a: TensorType, b: TensorType) -> None:
    """Raise TypeCheckError unless two tensors have the same dtype."""
    if a.dtype != b.dtype:
        raise TypeCheckError(f"{name}: {a.dtype} and {b.dtype} do not mix", next_step="Cast one to the other's dtype")


def check_choice(name: str, what: str, value: str, allowed: Iterable[str]) -> None:
    """Raise TypeCheckError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise TypeCheckError(f"{name}: expected {what} {', '.join(allowed)}, got '{value}'")


def same_extent(name: str, a: Extent, b: Extent, what: str = "extents") -> Any:
    """Return the common extent; raise UnequalDimsError if only the run can compare them, TypeCheckError if unequal.

    `what` describes the two in the plural.
    """
    if a == b:
        return a
    low, high = bounds(a - b)
    if low <= 0 <= high:
        raise UnequalDimsError(name, a, b, what)
    raise TypeCheckError(f"{name}: {what} {a} and {b} differ")


def same_shape(name: str, a: Shape, b: Shape, what: str = "shapes") -> Shape:
    """Return the common shape of two; raise the errors of `same_extent`."""
    if len(a) != len(b) or (is_static((*a, *b)) and tuple(a) != tuple(b)):
        raise TypeCheckError(f"{name}: {what} {a} and {b} differ")
    return tuple(same_extent(name, left, right, f"extents of {what}") for left, right in zip(a, b, strict=True))


def same_types(name: str, given: TensorType, wanted: TensorType, what: str) -> None:
    """Raise TypeCheckError unless a tensor has the wanted type; `what` describes the two in the plural."""
    if given.dtype != wanted.dtype or len(given.shape) != len(wanted.shape):
        raise TypeCheckError(f"{name}: {what} {given} and {wanted} differ")
    same_shape(name, given.shape, wanted.shape, what)


def at_most(name: str, a: Extent, b: Extent, what: str = "extents") -> bool:
    """Tell whether an extent is at most another; raise UnequalDimsError if that is only known at run time."""
    low, high = bounds(b - a)
    if low < 0 <= high:
        raise UnequalDimsError(name, a, b, what)
    return low >= 0


def divided(name: str, extent: Extent, by: Extent, what: str) -> Any:
    """Return ``extent / by``; raise TypeCheckError unless it is a multiple, NotMultipleError if unknown until run time.

    `what` describes the counted items in the plural.
    """
    rest = 0 if by == 0 else extent % by
    if isinstance(rest, Dim):
        raise NotMultipleError(name, extent, by, what)
    if rest or by == 0:
        raise TypeCheckError(f"{name}: expected a multiple of {by} {what}, got {extent}")
    return extent // by


def fixed(name: str, extent: Extent, what: str) -> int:
    """Return an extent that must be static; raise UnsupportedError if it is dynamic."""
    if isinstance(extent, Dim):
        raise UnsupportedError(f"{name}: expected a static dimension for {what}, got {extent}",
                               next_step="Declare model inputs with a shape in which it is static")  # fmt: skip
    return extent


def checked_shape(name: str, shape: Any) -> Shape:
    """Return the shape in an attribute; raise TypeCheckError if it is not one."""
    if not isinstance(shape, tuple) or any(
        not isinstance(extent, (int, Dim)) or bounds(extent)[1] < 0 for extent in shape
    ):
        raise TypeCheckError(f"{name}: shape {shape} must be integers of at least 0")
    return shape


def optional_dtype(given: str | None, default: str) -> str:
    """Return the dtype of an attribute, or `default` if it is unset."""
    if given in (None, "", "void"):
        return default
    dtypes.bits(given)
    return given


def accumulator(dtype: str) -> str:
    """Return the dtype to accumulate in: the tensor's own, or float32 for 16-bit floats."""
    return "float32" if dtype in dtypes.HALVES else dtype


def replaced(sequence: Sequence[Any], axis: int, *items: Any) -> tuple[Any, ...]:
    """Return a shape, or indices, with the entry of `axis` replaced by `items`."""
    return (*sequence[:axis], *items, *sequence[axis + 1 :])


def scalar(tensor: Tensor) -> Expr:
    """Read the only element of a tensor of any rank."""
    return tensor(*[0] * len(tensor.shape))


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """Return the shape of numpy broadcasting; raise TypeCheckError if the shapes are incompatible.

    A literal 1 is broadcast, a `Dim` never: extents whose equality is only known at run time raise UnequalDimsError.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for extents in zip(*padded, strict=True):
        first, *others = list(dict.fromkeys(extent for extent in extents if extent != 1)) or [1]
        if others and is_static((first, *others)):
            raise TypeCheckError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast")
        for other in others:
            same_extent(name, first, other, f"extents of shapes {' and '.join(map(str, shapes))}")
        result.append(first)
    return tuple(result)


def normalized_axis(name: str, axis: int, rank: int) -> int:
    """Return `axis` counted from the front; raise TypeCheckError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise TypeCheckError(f"{name}: axis {axis} is outside a tensor of {rank} dimensions")
    return axis % rank


def normalized_axes(name: str, axis: Any, rank: int, *, exclude: bool = False) -> tuple[int, ...]:
    """Return sorted axes from None (all), an int or a sequence; `exclude` returns the other axes."""
    given = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = {normalized_axis(name, item, rank) for item in given}
    return tuple(index for index in range(rank) if (index in axes) != exclude)
