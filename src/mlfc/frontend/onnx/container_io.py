"""Sequences and optionals as inputs and outputs of a model: of the tensors that it has in their place.

The compiled model takes and gives the parts that `mlfc.support.containers` describes; here a list is made of those of
an input, and those of an output are made of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx

from mlfc.errors import ModelError, OptionError, Remedy, UnsupportedError
from mlfc.frontend.control import Joiner, coerced, is_optional
from mlfc.frontend.dynamic import NOTHING, Dynamic
from mlfc.frontend.onnx.inputs import SIZE_LIMIT, tensor_extents
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay import ir
from mlfc.relay.ir import Expr, ListType, Span, TensorType, Tuple, TupleType, Type, Var
from mlfc.support.containers import OPTIONAL, OPTIONAL_SEQUENCE, SEQUENCE, Container

_RANKS = (1, 2, 3, 4, 0, 5)  # of elements, the likely ones first


def container_of(item: onnx.ValueInfoProto, *, is_output: bool = False) -> Container | None:
    """Return what an input or output is that is no tensor; None for a tensor, and for what is not supported."""
    kind = _kind(item.type)
    if kind is None:
        return None
    dtype = dtype_name(_tensor(item.type).elem_type, f"{'output' if is_output else 'input'} '{item.name}'")
    return Container(item.name, kind, dtype, is_output)


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
    """Return the parameters that an input of the model becomes; `given` is the shape of its tensors by the user."""
    place = f"input '{item.name}'"
    declared = tensor_extents(_tensor(item.type))
    extents = declared if given is None else list(given)
    if extents is None:
        raise UnsupportedError(
            f"nothing says how many dimensions the tensors of {container.kind} '{item.name}' have",
            place=place,
            next_step=f"Say it: --shape {item.name}=?,? for two (in Python shapes={{'{item.name}': (None, None)}})",
            remedies=(Remedy("--shape", f"{item.name}=..."),),
        )
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
    dynamic.note_elements(item.name, shape)
    return [Var(name, kind) for name, kind in zip(container.parts, kinds, strict=True)]


def input_value(container: Container, parts: Sequence[Expr], dynamic: Dynamic) -> Expr:
    """Return the value that the parts of an input are."""
    span = Span((), container.name)
    shape = dynamic.elements_of(container.name)
    found = ir.call("list_from", parts[-2:], shape=shape, dtype=container.dtype, span=span)
    if container.kind == OPTIONAL:
        # as a message says it: an optional has at most one
        some = ir.call("less", [ir.call("list_length", [found]), ir.const(2, "int64")])
        text = f"input '{container.name}': an optional has one tensor or none"
        return Tuple((ir.call("list_require", [found, some], message=text, span=span),))
    return found if container.kind == SEQUENCE else Tuple((parts[0], found))


def open_ranks(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[Any]]) -> dict[str, bool]:
    """Return the inputs whose tensors have any number of dimensions, and whether it is stated as 0.

    For many exporters that is how they say nothing, as they do in ONNX's own tests.
    """
    weights = {item.name for item in graph.initializer}
    found = {}
    for item in graph.input:
        if item.name in weights or item.name in shapes or _kind(item.type) in (None, OPTIONAL):
            continue
        extents = tensor_extents(_tensor(item.type))
        if not extents:
            found[item.name] = extents is not None
    return found


def with_ranks(
    graph: onnx.GraphProto,
    shapes: Mapping[str, Sequence[Any]],
    imports: Callable[[Mapping[str, Sequence[Any]], bool], bool],
) -> Mapping[str, Sequence[Any]]:
    """Return shapes with numbers of dimensions for inputs that leave them open, if one alone can be imported.

    `imports` tells whether shapes can be imported, and takes whether sequences may mix tensors of several ranks.
    """
    unknown = open_ranks(graph, shapes)
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
    """Yield what an output of the model becomes: of which container, under which name, and its value."""
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
    wanted = _wanted(value, kind, item, dynamic)
    found = coerced(value, wanted, Span((), item.name))
    fields = found.fields if isinstance(found, Tuple) else (found,)
    items = fields[-1].type
    assert isinstance(items, ListType)
    container = Container(title, kind, items.element.dtype, is_output=True, is_mixed=bool(items.others))
    parts = [*fields[:-1], *_described(fields[-1], items, title, dynamic)]
    yield from ((container, name, part) for name, part in zip(container.parts, parts, strict=True))


def _wanted(value: Expr, kind: str, item: onnx.ValueInfoProto, dynamic: Dynamic) -> Type:
    """Return the type of an output as a list, or an optional."""
    joiner = Joiner(dynamic, item.name, [])
    if kind == OPTIONAL:
        if isinstance(value.type, TensorType):
            return TupleType((joiner.list_of([TupleType((value.type,))]),))
        if is_optional(value.type) and value is not NOTHING:
            return value.type
        return TupleType((ListType(_declared(item)),))
    if is_optional(value.type) and value is not NOTHING:
        return value.type
    is_empty = value is NOTHING or (isinstance(value, Tuple) and not value.fields)
    if isinstance(value.type, TensorType):
        raise ModelError(f"expected {kind}, got a tensor", place=f"output '{item.name}'")
    items = ListType(_declared(item)) if is_empty else joiner.list_of([value.type])
    return items if kind == SEQUENCE else TupleType((TensorType((), "bool"), items))


def _declared(item: onnx.ValueInfoProto) -> TensorType:
    """Return a type for the tensors of an output that never has one."""
    tensor = _tensor(item.type)
    dtype = dtype_name(tensor.elem_type, f"output '{item.name}'")
    return TensorType(tuple(0 for _ in tensor_extents(tensor) or ()), dtype)


def _described(items: Expr, kind: ListType, name: str, dynamic: Dynamic) -> list[Expr]:
    count, total = (dynamic.symbol(f"{name}_{part}").dim for part in ("length", "bytes"))
    extents = ir.call("list_extents", [items], shape=(count, kind.ranks[-1]), span=Span((), f"{name}.extents"))
    data = ir.call("list_bytes", [items], shape=(total,), span=Span((), f"{name}.bytes"))
    dynamic.noted(extents, (count,))
    dynamic.noted(data, (total,))
    return [extents, data]
