"""Operator calls with symbolic dimensions, and sizes at which these calls are valid.

The calls are those of the tables of cases. A dimension becomes a symbol if the same call has a type at several other
sizes: what an operator accepts with static shapes it should also accept with symbolic ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError, UnsupportedError
from mlfc.relay import ir
from mlfc.support.dims import Symbol
from tests.edge_cases import edges, specs
from tests.edge_specs import Given, Spec

Array = npt.NDArray[Any]
SIZES = (1, 2, 3, 7, 16, 33)
_LARGEST = 4096  # elements of a variable


@dataclass(frozen=True, eq=False)
class DynamicCall:
    """A call whose variables have symbols in place of some dimension sizes."""

    spec: Spec
    symbols: Mapping[int, Symbol]  # by the size that a symbol replaces
    sizes: tuple[Mapping[int, int], ...]  # values of each replaced size

    @property
    def label(self) -> str:
        """The operator, its variant and the dynamic sizes."""
        open_ones = "".join(f"[{extent}]" for extent in self.symbols)
        return "-".join(filter(None, (self.spec.operator, self.spec.label, open_ones)))

    @cached_property
    def function(self) -> ir.Function:
        """The call as a fused group; errors of the type rule propagate."""
        return group(self.spec, {extent: symbol.dim for extent, symbol in self.symbols.items()})

    def alone(self) -> Iterator[DynamicCall]:
        """Yield the call with one size dynamic and the others static."""
        for extent, symbol in self.symbols.items():
            sizes = [{extent: size} for size in SIZES if size >= symbol.low and fits(self.spec, {extent: size})]
            yield DynamicCall(self.spec, {extent: symbol}, tuple(sizes[:: max(1, len(sizes) // 2)]))

    def numbers(self, symbols: Sequence[Symbol], size: Mapping[int, int]) -> list[int]:
        """Return the values of a kernel's symbols at a size."""
        own = {symbol: size[extent] for extent, symbol in self.symbols.items()}
        return [own[symbol] for symbol in symbols]


def dynamic_calls(most_of_one: int = 1000) -> Iterator[DynamicCall]:
    """Yield calls of all operators with all possible sizes dynamic, at most `most_of_one` per operator."""
    counts: dict[str, int] = {}
    for spec in chain(specs(), open_specs()):
        if counts.get(spec.operator, 0) >= most_of_one:
            continue
        for call in _calls(spec):
            counts[spec.operator] = counts.get(spec.operator, 0) + 1
            yield call


@dataclass(frozen=True)
class Open:
    """An attribute value ``factor * extent + offset``, in which ``extent`` becomes dynamic."""

    extent: int
    factor: int = 1
    offset: int = 0


def opened(values: Iterable[Any]) -> Iterator[int]:
    """Yield the sizes that attributes make dynamic."""
    for value in values:
        if isinstance(value, Open):
            yield value.extent
        elif isinstance(value, tuple):
            yield from opened(value)


def _placed(value: Any, extents: Mapping[int, Any]) -> Any:
    if isinstance(value, Open):
        return value.factor * extents.get(value.extent, value.extent) + value.offset
    return tuple(_placed(item, extents) for item in value) if isinstance(value, tuple) else value


def open_specs() -> Iterator[Spec]:
    """Yield calls whose attributes also contain dynamic sizes."""
    n, data = Open(6), Given((6, 4))
    sliced: dict[str, Any] = {"axes": (0,), "strides": (1,)}
    yield Spec("reshape", (data,), {"newshape": (2, n, 2)}, "open")
    yield Spec("broadcast_to", (Given((1, 4)),), {"shape": (3, n, 4)}, "open")
    yield Spec("zeros", (), {"shape": (n, 2), "dtype": "int8"}, "open")
    yield Spec("ones", (), {"shape": (2, n)}, "open")
    yield Spec("full", (np.float32(2.5),), {"shape": (n,)}, "open")
    yield Spec("extents", (), {"values": (n, 3, Open(6, -2, 1)), "dtype": "int64", "shape": (3,)}, "open")
    yield Spec("extents", (), {"values": (Open(6, 5),), "dtype": "int32"}, "open")
    for dtype in ("int64", "float32"):
        for label, (start, stop, step) in {
            "up": (0, n, 1), "from": (n, 40, 3), "down": (Open(6, 2), 0, -2), "none": (n, 1, 1),
        }.items():  # fmt: skip
            numbers = [np.asarray(0, dtype)] * 3
            attrs = {"start": start, "stop": stop, "step": step, "dtype": dtype}
            yield Spec("arange", tuple(numbers), attrs, f"{label}-{dtype}")
    for label, begin, end, stride in (
        ("first", 0, Open(6, 1, -1), 1), ("last", Open(6, 1, -1), n, 1), ("all", 0, (1 << 63) - 1, 2),
        ("end", -3, (1 << 31) - 1, 1), ("back", -1, -100, -2), ("middle", 2, -2, 1), ("beyond", 1, Open(6, 3), 3),
    ):  # fmt: skip
        yield Spec("strided_slice", (data,), {**sliced, "begin": (begin,), "end": (end,), "strides": (stride,)}, label)
    yield Spec("strided_slice", (data,), {**sliced, "begin": (1,), "end": (-1,), "slice_mode": "size"}, "rest")
    yield Spec("tile", (Given((2, 3)),), {"reps": (n, 1)}, "open")
    yield Spec("repeat", (Given((2, 3)),), {"repeats": n, "axis": 1}, "open")
    yield Spec("one_hot", (Given((5,), "int64"), np.float32(1), np.float32(0)), {"depth": n}, "open")
    yield Spec("topk", (data,), {"k": n, "axis": 0, "ret_type": "indices", "dtype": "int64"}, "open")
    yield Spec("image.resize2d", (Given((1, 6, 4, 2)),),
               {"size": (Open(6, 2), Open(4, 2, 1)), "layout": "NHWC", "method": "linear"}, "open")  # fmt: skip
    cropped = {"roi": (0.1, 0.0, 0.8, 1.3), "extrapolation_value": 7.5, "layout": "NHWC"}
    for method in ("nearest_neighbor", "linear", "cubic"):
        yield Spec("image.resize2d", (Given((1, 6, 4, 2)),),
                   {"size": (Open(6, 2), Open(4, 2, 1)), "method": method, **cropped,
                    "coordinate_transformation_mode": "tf_crop_and_resize"}, f"crop-{method}")  # fmt: skip


def _calls(spec: Spec) -> Iterator[DynamicCall]:
    found = (extent for leaf in leaves(spec.args) for extent in leaf.shape)
    extents = list(dict.fromkeys(chain(found, opened(spec.attrs.values()))))
    valid = {extent: [size for size in SIZES if fits(spec, {extent: size})] for extent in extents}
    names = iter("nmkhwdabc")
    symbols = {
        extent: Symbol(next(names), low=min(sizes)) for extent, sizes in valid.items() if len({*sizes, extent}) > 1
    }
    if not symbols:
        return
    turns = [
        {extent: valid[extent][(turn * (place + 1)) % len(valid[extent])] for place, extent in enumerate(symbols)}
        for turn in range(len(SIZES))
    ]
    together = [turn for turn in _unlike(turns) if fits(spec, turn)]
    if len(together) >= 3:
        yield DynamicCall(spec, symbols, tuple(together[:3]))
        return
    yield from DynamicCall(spec, symbols, ()).alone()


def _unlike(turns: Sequence[dict[int, int]]) -> list[dict[int, int]]:
    return [turn for place, turn in enumerate(turns) if turn not in turns[:place]]


def leaves(args: Sequence[Any]) -> list[Given]:
    """Return the variables of arguments."""
    nested = [leaves(arg) if isinstance(arg, tuple) else [arg] for arg in args]
    return [leaf for part in nested for leaf in part if isinstance(leaf, Given)]


def fits(spec: Spec, extents: Mapping[int, int]) -> bool:
    """Return whether a call has a type with other sizes."""
    try:
        function = group(spec, extents)
    except (TypeCheckError, UnsupportedError, ValueError, OverflowError):
        return False
    return all(0 < ir.tensor_type(param).size <= _LARGEST for param in function.params) and _size(function) > 0


def _size(function: ir.Function) -> int:
    kind = function.body.type
    return int(kind.size) if isinstance(kind, ir.TensorType) else 0


def group(spec: Spec, extents: Mapping[int, Any]) -> ir.Function:
    """Return a call with other sizes as a fused group."""
    params: list[ir.Var] = []

    def expression(arg: Any) -> ir.Expr:
        if isinstance(arg, tuple):
            return ir.Tuple(tuple(map(expression, arg)))
        if not isinstance(arg, Given):
            return ir.const(arg)
        shape = tuple(extents.get(extent, extent) for extent in arg.shape)
        params.append(ir.Var(f"x{len(params)}", ir.TensorType(shape, arg.dtype)))
        return params[-1]

    attrs = {name: _placed(value, extents) for name, value in spec.attrs.items()}
    call = ir.call(spec.operator, [expression(arg) for arg in spec.args], attrs)
    return ir.Function(tuple(params), call, {"Primitive": 1})


def filled(kind: ir.TensorType, place: int) -> Array:
    """Return data of a type: a mixture of edge values of its dtype."""
    values = edges(kind.dtype)
    order = (np.arange(kind.size) * (2 * place + 1) + 5 * place) % len(values)
    return values[order].reshape(kind.shape)
