"""Inputs and outputs of a model: variables with static or symbolic shapes, and the parts of sequences and optionals.

`mlfc.support.tensor_info` describes the tensors that represent a sequence or optional in the compiled model: the list
of an input is built from them, and those of an output are extracted from a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any

import onnx

from mlfc.errors import ModelError, OptionError, Remedy, UnsupportedError, unknown
from mlfc.frontend.common import NoTensorError, Problems, Values, frozen_input
from mlfc.frontend.control import Joiner, coerced, is_optional
from mlfc.frontend.dynamic import NOTHING, Dynamic
from mlfc.frontend.onnx.inputs import SIZE_LIMIT, declared_extents, named_sizes
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.frontend.shapes import given_extent
from mlfc.relay import ir
from mlfc.relay.ir import Constant, Expr, ListType, Span, TensorType, Tuple, TupleType, Type, Var
from mlfc.support.dims import LARGEST, Dim, Extent, bounds
from mlfc.support.tensor_info import OPTIONAL, OPTIONAL_SEQUENCE, SEQUENCE, Container

_RANKS = (1, 2, 3, 4, 0, 5)  # guesses for the rank of elements, the likeliest first


def container_of(item: onnx.ValueInfoProto) -> Container | None:
    """Return the kind of an input or output that is not a tensor; None for tensors and unsupported types."""
    kind = _kind(item.type)
    if kind is None:
        return None
    return Container(item.name, kind, dtype_name(_tensor(item.type).elem_type, f"input '{item.name}'"))


def _kind(kind: onnx.TypeProto) -> str | None:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return SEQUENCE if kind.sequence_type.elem_type.WhichOneof("value") == "tensor_type" else None
    if which == "optional_type":
        inner = kind.optional_type.elem_type
        if inner.WhichOneof("value") == "tensor_type":
            return OPTIONAL
        return OPTIONAL_SEQUENCE if _kind(inner) == SEQUENCE else None
    return None


def _tensor(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor:
    while kind.WhichOneof("value") != "tensor_type":
        kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
    return kind.tensor_type


# Inputs


def input_parts(
    item: onnx.ValueInfoProto, container: Container, given: Sequence[Any] | None, dynamic: Dynamic
) -> list[Var]:
    """Return the parameters that represent an input; `given` is the user's shape of its tensors."""
    place = f"input '{item.name}'"
    extents = declared_extents(_tensor(item.type)) if given is None else list(given)
    if extents is None:
        cause = f"the rank of the tensors in {container.kind} '{item.name}' is unknown"
        step = f"Specify it: --shape {item.name}=?,? for two (in Python shapes={{'{item.name}': (None, None)}})"
        raise UnsupportedError(cause, place=place, next_step=step, remedies=(Remedy("--shape", f"{item.name}=..."),))
    shape = tuple(
        size if isinstance(size, int) and not isinstance(size, bool) else dynamic.varying(f"{item.name}_{axis}")
        for axis, size in enumerate(extents)
    )
    if any(isinstance(size, int) and not 0 <= size <= SIZE_LIMIT for size in shape):
        raise OptionError(f"the shape {tuple(extents)} is not possible", place=place)
    count, total = (dynamic.symbol(f"{item.name}_{part}").dim for part in ("length", "bytes"))
    kinds = [TensorType((count, len(shape)), "int64"), TensorType((total,), "uint8")]
    if container.kind == OPTIONAL_SEQUENCE:
        kinds.insert(0, TensorType((), "bool"))
    dynamic.element_shapes[item.name] = shape
    return [Var(name, kind) for name, kind in zip(container.parts, kinds, strict=True)]


def input_value(container: Container, parts: Sequence[Expr], dynamic: Dynamic) -> Expr:
    """Return the value that the parts of an input represent."""
    span = Span((), container.name)
    shape = dynamic.element_shapes[container.name]
    found = ir.call("list_from", parts[-2:], shape=shape, dtype=container.dtype, span=span)
    if container.kind == OPTIONAL:
        # checked at run time: an optional has at most one element
        some = ir.call("less", [ir.call("list_length", [found]), ir.const(2, "int64")])
        text = f"input '{container.name}': an optional has one tensor or none"
        return Tuple((ir.call("list_require", [found, some], message=text, span=span),))
    return found if container.kind == SEQUENCE else Tuple((parts[0], found))


def with_ranks(
    graph: onnx.GraphProto,
    shapes: Mapping[str, Sequence[Any]],
    imports: Callable[[Mapping[str, Sequence[Any]], bool], bool],
) -> Mapping[str, Sequence[Any]]:
    """Return shapes with a rank for inputs whose rank is dynamic, if exactly one rank can be imported.

    `imports` checks whether shapes can be imported; its second argument is True if sequences may mix ranks.
    """
    weights = {item.name for item in graph.initializer}
    unknown = {}  # True if rank 0 is declared, by which many exporters, and ONNX's own tests, mean any rank
    for item in graph.input:
        if item.name not in weights and item.name not in shapes and _kind(item.type) not in (None, OPTIONAL):
            extents = declared_extents(_tensor(item.type))
            if not extents:
                unknown[item.name] = extents is not None
    if not unknown:
        return shapes

    def of_rank(rank: int) -> dict[str, Sequence[Any]]:
        return {**shapes, **dict.fromkeys(unknown, (None,) * rank)}

    is_stated = all(unknown.values())
    if is_stated and imports(of_rank(0), False):
        return of_rank(0)
    fitting = [rank for rank in _RANKS if imports(of_rank(rank), False)]
    if not fitting and is_stated and imports(of_rank(0), True):
        return of_rank(0)
    return of_rank(fitting[0]) if len(fitting) == 1 else shapes


# Outputs


def output_parts(
    value: Expr, item: onnx.ValueInfoProto, title: str, dynamic: Dynamic
) -> Iterator[tuple[Container, str, Expr]]:
    """Yield the container, the name and the value of each part of an output."""
    kind = _kind(item.type)
    if kind is None:
        kind = SEQUENCE if not is_optional(value.type) else OPTIONAL_SEQUENCE
    optional = is_optional(value.type) and value is not NOTHING
    if kind == SEQUENCE and optional:
        assert isinstance(value, Tuple)
        if len(value.fields) != 2:
            raise ModelError("expected a sequence, got an optional tensor", place=f"output '{item.name}'")
        text = f"output '{item.name}': the optional has no value"
        value = ir.call("list_require", [value.fields[1], value.fields[0]], message=text)
    found = coerced(value, _wanted(value, kind, item, dynamic), Span((), item.name))
    fields = found.fields if isinstance(found, Tuple) else (found,)
    items = fields[-1].type
    assert isinstance(items, ListType)
    container = Container(title, kind, items.element.dtype, is_output=True, is_mixed=bool(items.others))
    count, total = (dynamic.symbol(f"{title}_{part}").dim for part in ("length", "bytes"))
    shape, span = (count, items.ranks[-1]), Span((), f"{title}.extents")
    extents = ir.call("list_extents", [fields[-1]], shape=shape, span=span)
    data = ir.call("list_bytes", [fields[-1]], shape=(total,), span=Span((), f"{title}.bytes"))
    dynamic.noted(extents, (count,))
    dynamic.noted(data, (total,))
    parts = [*fields[:-1], extents, data]
    yield from ((container, name, part) for name, part in zip(container.parts, parts, strict=True))


def _wanted(value: Expr, kind: str, item: onnx.ValueInfoProto, dynamic: Dynamic) -> Type:
    """Return the type of an output as a list or optional."""
    joiner = Joiner(dynamic, item.name, [])
    if is_optional(value.type) and value is not NOTHING:
        return value.type
    if kind == OPTIONAL:
        is_tensor = isinstance(value.type, TensorType)
        return TupleType((joiner.list_of([TupleType((value.type,))]) if is_tensor else ListType(_declared(item)),))
    is_empty = value is NOTHING or (isinstance(value, Tuple) and not value.fields)
    if isinstance(value.type, TensorType):
        raise ModelError(f"expected {kind}, got a tensor", place=f"output '{item.name}'")
    items = ListType(_declared(item)) if is_empty else joiner.list_of([value.type])
    return items if kind == SEQUENCE else TupleType((TensorType((), "bool"), items))


def _declared(item: onnx.ValueInfoProto) -> TensorType:
    """Return a placeholder type for the tensors of an output that is always empty."""
    tensor = _tensor(item.type)
    dtype = dtype_name(tensor.elem_type, f"output '{item.name}'")
    return TensorType(tuple(0 for _ in declared_extents(tensor) or ()), dtype)


_OF_KIND = {
    "sequence_type": ": an input for each element of the sequence",
    "optional_type": ": an input that is always given",
}
_NO_NAMES = ("", "?", "None", "none", "unk", "-1")


class OpenShapesError(Exception):
    """Inputs whose shapes are not static, and the others. The importer catches it and searches for suitable shapes."""

    def __init__(self, names: Sequence[str], found: dict[str, Var | Constant]) -> None:
        super().__init__(*names)
        self.names = tuple(names)
        self.found = found


def input_variables(
    graph: onnx.GraphProto,
    shapes: Mapping[str, Sequence[Any]],
    values: Values,
    weights: AbstractSet[str],
    problems: Problems,
    dynamic: Dynamic | None = None,
) -> dict[str, Var | Constant]:
    """Return every input of the model that is not a weight, in the model's order; as a constant if it has a value.

    `shapes` and `values` are the user's. `weights` are the names of initializers, which are inputs too before IR
    version 4. Problems with the inputs are added to `problems`. Without `dynamic`, all shapes must be static.
    """
    inputs = [item for item in graph.input if item.name not in weights]
    for what, names in (("shapes", shapes), ("values", values)):
        missing = sorted(set(names) - {item.name for item in inputs})
        if missing:
            raise OptionError(unknown("input", missing[0], (item.name for item in inputs)), place=what)
    sizes = named_sizes(inputs, shapes, values)
    named: dict[str, Extent] = {}
    if dynamic is not None:
        named = {name: given_extent(size) for name, size in sizes.items() if name not in _NO_NAMES}
        written = [given_extent(value) for shape in shapes.values() for value in shape if value is not None]
        _check_ranges([*named.values(), *written], dynamic)
    found: dict[str, Var | Constant] = {}
    without_shape = []
    for item in inputs:
        with problems.collecting():
            place, given, is_constant = f"input '{item.name}'", shapes.get(item.name), item.name in values
            shape: tuple[Any, ...] | None = None
            container = None if dynamic is None else container_of(item)
            if container is not None and dynamic is not None:
                if is_constant:
                    raise OptionError(f"{container.kind} cannot be set to a constant value", place=place)
                found.update((part.name, part) for part in input_parts(item, container, given, dynamic))
                continue
            dtype = _checked_dtype(item)
            known = _extents(item, {} if dynamic is not None else sizes)
            if dynamic is not None:
                shape = None if is_constant and given is None else _dynamic_shape(item, given, named, dynamic)
            elif given is not None:
                shape = _checked_shape(item, given, sizes)
            elif known is not None and None not in known:
                shape = tuple(known)
            if shape is not None and bounds(prod(shape))[0] > SIZE_LIMIT:
                raise ModelError(f"the shape {shape} is too large", place=place)
            if is_constant:
                extents = known if dynamic is not None else shape or known
                found[item.name] = Constant(frozen_input(values[item.name], item.name, dtype, extents), item.name)
            elif shape is None:
                without_shape.append(item.name)
            else:
                found[item.name] = Var(item.name, TensorType(shape, dtype))
    if without_shape:
        raise OpenShapesError(without_shape, found)
    return found


def _dynamic_shape(
    item: onnx.ValueInfoProto, given: Sequence[Any] | None, named: dict[str, Extent], dynamic: Dynamic
) -> tuple[Any, ...] | None:
    """Return the shape of an input, with symbols for dynamic dimensions; None if its rank is not known.

    A None in the user's shape selects the dimension that the model declares.
    """
    declared = declared_extents(item)
    if given is None and declared is None:
        return None
    asked = [None] * len(declared or ()) if given is None else given
    titles = declared if declared is not None and len(declared) == len(asked) else [""] * len(asked)
    shape: list[Extent] = []
    for axis, (value, title) in enumerate(zip(asked, titles, strict=True)):
        if value is not None or isinstance(title, int):
            shape.append(title if value is None and isinstance(title, int) else given_extent(value))
        elif title in _NO_NAMES:
            shape.append(dynamic.symbol(f"{item.name}_{axis}").dim)
        else:
            if title not in named:
                named[title] = dynamic.symbol(title).dim
            shape.append(named[title])
    return tuple(shape) if given is None else _checked_shape(item, shape, {})


def _checked_dtype(item: onnx.ValueInfoProto) -> str:
    """Return the dtype of an input; raise NoTensorError unless it is a tensor."""
    place = f"input '{item.name}'"
    kind = item.type.WhichOneof("value")
    if kind is None:
        raise ModelError("the input has no type", place=place)
    if kind != "tensor_type":
        cause = f"an input of type {kind.removesuffix('_type')} is not supported"
        step = f"Export the model with tensors alone{_OF_KIND.get(kind, '')}"
        raise NoTensorError(cause, place=place, next_step=step)
    return dtype_name(item.type.tensor_type.elem_type, place)


def _extents(item: onnx.ValueInfoProto, symbols: Mapping[str, int]) -> list[int | None] | None:
    """Return the dimension sizes of an input, None for dynamic ones; None if the rank is dynamic."""
    declared = declared_extents(item)
    if declared is None:
        return None
    return [symbols.get(size) if isinstance(size, str) else size for size in declared]


def _checked_shape(item: onnx.ValueInfoProto, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the user's shape; raise OptionError if it is invalid or contradicts the declared one."""
    shape, declared = tuple(given), declared_extents(item)
    if not all(isinstance(size, Dim) or (isinstance(size, int) and size > 0) for size in shape):
        raise OptionError(f"the shape {shape} given for the input '{item.name}' must be positive integers")
    if declared is None:
        return shape
    if len(shape) != len(declared):
        raise OptionError(
            f"the input '{item.name}' has {len(declared)} dimensions, the given shape {shape} has {len(shape)}"
        )
    for axis, (size, wanted) in enumerate(zip(shape, declared, strict=True)):
        fixed = named.get(wanted, size) if isinstance(wanted, str) else wanted
        if size != fixed:
            raise OptionError(
                f"dimension {axis} of the input '{item.name}' is {fixed}, the given shape {shape} has {size}"
            )
    return shape


def _check_ranges(extents: Sequence[Extent], dynamic: Dynamic) -> None:
    for extent in extents:
        for symbol in extent.symbols if isinstance(extent, Dim) else ():
            if not 0 <= symbol.low <= symbol.high <= LARGEST:
                cause = f"expected a range of dimension sizes, such as 1..8, got {symbol.low}..{symbol.high}"
                raise OptionError(cause, place="shapes")
            other = dynamic.user_bounds.setdefault(symbol.name, symbol)
            if other != symbol:
                raise OptionError(
                    f"'{symbol.name}' has the ranges {other.low}..{other.high} and {symbol.low}..{symbol.high}",
                    place="shapes",
                )
            dynamic.take(symbol)
