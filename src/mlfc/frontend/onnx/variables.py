"""The inputs of a graph as variables: with static shapes, or a symbol for each dynamic dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any

import onnx

from mlfc.errors import ModelError, OptionError, unknown
from mlfc.frontend.common import NoTensorError, Problems, Values, frozen_input
from mlfc.frontend.dynamic import Dynamic, identifier
from mlfc.frontend.onnx.container_io import container_of, input_parts
from mlfc.frontend.onnx.inputs import SIZE_LIMIT, declared_extents, named_sizes
from mlfc.frontend.onnx.tensors import dtype_name
from mlfc.relay.ir import Constant, TensorType, Var
from mlfc.support.dims import LARGEST, Dim, Extent, Symbol, bounds

_OF_KIND = {
    "sequence_type": ": an input for each element of the sequence",
    "optional_type": ": an input that is always given",
}
_NO_NAMES = ("", "?", "None", "none", "unk", "-1")


class OpenShapesError(Exception):
    """Inputs whose shapes are not fixed, and the others; caught by the importer, which looks for shapes that fit."""

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
    version 4. `problems` receives what is wrong with the inputs. Without `dynamic`, all shapes must be static.
    """
    inputs = _named_inputs(graph, shapes, values, weights)
    sizes = named_sizes(inputs, shapes, values)
    named = {} if dynamic is None else _named_symbols(sizes, shapes, dynamic)
    found: dict[str, Var | Constant] = {}
    without_shape = []
    for item in inputs:
        with problems.collecting():
            place, given, is_constant = f"input '{item.name}'", shapes.get(item.name), item.name in values
            container = None if dynamic is None else container_of(item)
            if container is not None and dynamic is not None:
                if is_constant:
                    raise OptionError(f"{container.kind} cannot have a value for good", place=place)
                found.update((part.name, part) for part in input_parts(item, container, given, dynamic))
                continue
            dtype = _checked_dtype(item)
            if dynamic is None:
                shape: tuple[Any, ...] | None = _shape(item, given, sizes)
            else:
                shape = None if is_constant and given is None else _dynamic_shape(item, given, named, dynamic)
            if shape is not None and bounds(prod(shape))[0] > SIZE_LIMIT:
                raise ModelError(f"the shape {shape} is too large", place=place)
            if is_constant:
                extents = _extents(item, {}) if dynamic is not None else shape or _extents(item, sizes)
                found[item.name] = Constant(frozen_input(values[item.name], item.name, dtype, extents), item.name)
            elif shape is None:
                without_shape.append(item.name)
            else:
                found[item.name] = Var(item.name, TensorType(shape, dtype))
    if without_shape:
        raise OpenShapesError(without_shape, found)
    return found


def _named_symbols(
    sizes: Mapping[str, Any], shapes: Mapping[str, Sequence[Any]], dynamic: Dynamic
) -> dict[str, Extent]:
    """Return what the user provides for named dimensions."""
    named = {name: _extent(size) for name, size in sizes.items() if name not in _NO_NAMES}
    written = [_extent(value) for shape in shapes.values() for value in shape if value is not None]
    _check_ranges([*named.values(), *written], dynamic)
    return named


def _dynamic_shape(
    item: onnx.ValueInfoProto, given: Sequence[Any] | None, named: dict[str, Extent], dynamic: Dynamic
) -> tuple[Any, ...] | None:
    """Return the shape of an input, with symbols for dynamic dimensions; None if its rank is not known."""
    if given is not None:
        return _given(item, given, named, dynamic)
    declared = declared_extents(item)
    if declared is None:
        return None
    return tuple(
        size if isinstance(size, int) else _symbol(item.name, axis, size, named, dynamic)
        for axis, size in enumerate(declared)
    )


def _named_inputs(
    graph: onnx.GraphProto, shapes: Mapping[str, object], values: Values, weights: AbstractSet[str]
) -> list[onnx.ValueInfoProto]:
    """Return the inputs that are not weights; raise OptionError for a shape or value of an unknown one."""
    inputs = [item for item in graph.input if item.name not in weights]
    for what, names in (("shapes", shapes), ("values", values)):
        missing = sorted(set(names) - {item.name for item in inputs})
        if missing:
            raise OptionError(unknown("input", missing[0], (item.name for item in inputs)), place=what)
    return inputs


def _checked_dtype(item: onnx.ValueInfoProto) -> str:
    """Return the dtype of an input; raise NoTensorError unless it is a tensor."""
    place = f"input '{item.name}'"
    kind = item.type.WhichOneof("value")
    if kind is None:
        raise ModelError("the input has no type", place=place)
    if kind != "tensor_type":
        raise NoTensorError(
            f"an input of type {kind.removesuffix('_type')} is not supported",
            place=place,
            next_step=f"Export the model with tensors alone{_OF_KIND.get(kind, '')}",
        )
    return dtype_name(item.type.tensor_type.elem_type, place)


def _extents(item: onnx.ValueInfoProto, symbols: Mapping[str, int]) -> list[int | None] | None:
    """Return the extents of an input, None for one that is open; None if even the rank is."""
    declared = declared_extents(item)
    if declared is None:
        return None
    return [symbols.get(size) if isinstance(size, str) else size for size in declared]


def _shape(
    item: onnx.ValueInfoProto, given: Sequence[int] | None, symbols: Mapping[str, int]
) -> tuple[int, ...] | None:
    """Return the static shape of an input, None if it has dynamic dimensions."""
    if given is not None:
        return _checked_shape(item, given, symbols)
    sizes = _extents(item, symbols)
    return None if sizes is None or None in sizes else tuple(size for size in sizes if size is not None)


def _checked_shape(item: onnx.ValueInfoProto, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the shape that the user gives; raise OptionError if it is invalid, or if the model declares another."""
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
                f"dimension {axis} of the input '{item.name}' is {fixed}, the given shape {shape} says {size}"
            )
    return shape


def _given(
    item: onnx.ValueInfoProto,
    given: Sequence[Any],
    named: dict[str, Extent],
    dynamic: Dynamic,
) -> tuple[Extent, ...]:
    """Return the shape that the user provides, in which None is the dimension that the model declares."""
    declared = declared_extents(item)
    titles = declared if declared is not None and len(declared) == len(given) else [""] * len(given)
    return _checked_shape(
        item,
        [
            size if value is None and isinstance(size, int)
            else _symbol(item.name, axis, str(size), named, dynamic) if value is None
            else _extent(value)
            for axis, (value, size) in enumerate(zip(given, titles, strict=True))
        ],
        {},
    )  # fmt: skip


def _extent(value: Any) -> Extent:
    """Return the extent that the user gives: a number, a symbol, or (name, low, high)."""
    if isinstance(value, Symbol):
        return value.dim
    if isinstance(value, (tuple, list)) and len(value) == 3 and isinstance(value[0], str):
        return Symbol(identifier(value[0]), int(value[1]), int(value[2])).dim
    if isinstance(value, Dim) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise OptionError(
        f"expected an extent or a range of extents, got {value!r}",
        place="shapes",
        next_step="Write a number, or a name with its range: --shape x=batch:1..32,3,224,224",
    )


def _check_ranges(extents: Sequence[Extent], dynamic: Dynamic) -> None:
    ranges = dynamic.user_bounds
    for extent in extents:
        for symbol in extent.symbols if isinstance(extent, Dim) else ():
            if not 0 <= symbol.low <= symbol.high <= LARGEST:
                raise OptionError(
                    f"expected a range of dimension sizes, such as 1..8, got {symbol.low}..{symbol.high}",
                    place="shapes",
                )
            if ranges.setdefault(symbol.name, symbol) != symbol:
                other = ranges[symbol.name]
                raise OptionError(
                    f"'{symbol.name}' has the ranges {other.low}..{other.high} and {symbol.low}..{symbol.high}",
                    place="shapes",
                )
            dynamic.take(symbol)


def _symbol(name: str, axis: int, title: str, named: dict[str, Extent], dynamic: Dynamic) -> Extent:
    if title in _NO_NAMES:
        return dynamic.symbol(f"{name}_{axis}").dim
    if title not in named:
        named[title] = dynamic.symbol(title).dim
    return named[title]
