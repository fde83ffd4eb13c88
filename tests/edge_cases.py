"""Every operator as a single kernel on edge values of its dtypes, for each dtype that its type rule accepts.

The operators and their attributes come from the tables of cases; `edge_specs` has those that the tables leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import TypeCheckError
from mlfc.relay import ir
from mlfc.relay.op import OPERATORS, Kind
from mlfc.support import dtypes
from tests import edge_specs, image_cases, ml_cases, operator_cases, reduction_cases
from tests.edge_specs import Given
from tests.operator_cases import Case

Array = npt.NDArray[Any]

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64", "bool",
)  # fmt: skip
NO_KERNEL = (Kind.VIEW, Kind.OPAQUE, Kind.LIST, Kind.EXTERNAL)
_PLAIN = (Kind.ELEMENTWISE, Kind.BROADCAST)
_MOST_ELEMENTS = 1200
_FLOATS = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -1.5, 1e-45, -1e-42, 1e-38, 127.5, -128.5, 255.9,
    300.7, -300.7, 65504.0, 65536.5, -40000.0, 2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0, 4294967296.0,
    9.223372036854775e18, 9.223372036854776e18, -9.3e18, 1.8446744073709552e19, 3e38, -3e38, 88.8, -104.0, 1e300,
]  # fmt: skip


def edges(dtype: str) -> Array:
    """Return the values of a dtype at which arithmetic tends to fail."""
    kind = dtypes.to_numpy(dtype)
    if dtype == "bool":
        return np.asarray([False, True, True])
    if dtypes.is_float(dtype):
        with np.errstate(all="ignore"):
            return np.asarray(_FLOATS).astype(kind)
    low, high = dtypes.limits(dtype)
    bits = dtypes.bits(dtype)
    values = [low, high, 0, 1, 2, 3, high - 1, low + 1, high // 2 + 1, 7, bits - 1, bits, bits + 1, 46341, 1 << 20, 10]
    values += [-1, -2, -7, -bits, low // 2, -46341] if low < 0 else []
    return np.asarray([value for value in values if low <= value <= high], kind)


@dataclass(frozen=True, eq=False)
class EdgeCall:
    """One operator on variables, with constants only where it requires them."""

    label: str
    call: ir.Call
    params: tuple[ir.Var, ...]
    dtype: str  # the dtype that replaces the one in the tables
    is_own: bool  # whether `dtype` is the one in the tables

    def data(self) -> list[list[Array]]:
        """Return several sets of arrays for the variables: all combinations, mixtures, and one value everywhere."""
        kinds = [param.type for param in self.params]
        turns = 5 if self.call.op.kind in _PLAIN else 2
        if self.call.op.kind in _PLAIN and [kind.shape for kind in kinds] == [(len(edges(kinds[0].dtype)),)]:
            turns = 1  # it has all values; another order would be the same runs of one element
        sets = [[_filled(kind, place, turn) for place, kind in enumerate(kinds)] for turn in range(turns)]
        if len(kinds) == 2 and kinds[0].shape == kinds[1].shape == (_pairs(kinds[0].dtype, kinds[1].dtype),):
            first, second = edges(kinds[0].dtype), edges(kinds[1].dtype)
            sets = [[grid.ravel() for grid in np.meshgrid(first, second, indexing="ij")]]
        return sets


def _pairs(first: str, second: str) -> int:
    return len(edges(first)) * len(edges(second))


def _filled(kind: ir.TensorType, place: int, turn: int) -> Array:
    values = edges(kind.dtype)
    if turn == 1:
        return np.full(kind.shape, values[1 if dtypes.is_integer(kind.dtype) else 2], values.dtype)
    # vary the pairings of neighbouring elements and of the arguments of one element
    order = (np.arange(prod(kind.shape)) * (2 * place + 1) + (5 + turn) * place + turn) % len(values)
    return values[order].reshape(kind.shape)


def specs() -> Iterator[edge_specs.Spec]:
    """Yield calls of each operator, with each attribute that selects different code."""
    seen = set()
    tables = (
        operator_cases.all_cases(), reduction_cases.reduce_cases(), image_cases.block_cases(), _resizes(),
        ml_cases.ml_cases(),
    )  # fmt: skip
    for case in chain.from_iterable(tables):
        spec = edge_specs.Spec(case.operator, _given(case.args), dict(case.attrs), case.label)
        if max(map(np.size, _leaves(case.args)), default=1) > _MOST_ELEMENTS:
            continue
        key = repr((spec.operator, spec.args, sorted(spec.attrs.items())))
        if key not in seen:
            seen.add(key)
            yield spec
    yield from edge_specs.specs()


def _resizes() -> list[Case]:
    found: dict[Any, Case] = {}
    for case in image_cases.resize_cases():
        key = tuple(case.attrs.get(name) for name in ("method", "coordinate_transformation_mode", "layout"))
        found.setdefault((case.operator, *key), case)
    return list(found.values())


def _leaves(args: Sequence[Any]) -> list[Any]:
    return [leaf for arg in args for leaf in (_leaves(arg) if isinstance(arg, tuple) else [arg])]


def _given(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arrays as variables and numbers as constants."""
    return tuple(
        _given(arg) if isinstance(arg, tuple)
        else np.asarray(arg) if np.ndim(arg) == 0
        else Given(np.shape(arg), ir.dtypes.from_numpy(np.asarray(arg).dtype))
        for arg in args
    )  # fmt: skip


def edge_calls() -> Iterator[EdgeCall]:
    """Yield every operator with its attributes, and its first call in every dtype it accepts."""
    seen: set[str] = set()
    for spec in specs():
        leaves = [leaf for leaf in _leaves(spec.args) if isinstance(leaf, Given)]
        own = leaves[0].dtype if leaves else ""
        if OPERATORS.get(spec.operator).kind in NO_KERNEL or (spec.operator == "cast" and f"cast{own}" in seen):
            continue
        swaps = own and spec.operator not in seen and not spec.operator.startswith("qnn.")
        for dtype in (own, *(other for other in DTYPES if other != own)) if swaps else (own,):
            for target in DTYPES if spec.operator == "cast" else (None,):
                made = _made(spec, own, dtype, target, paired=True) or _made(spec, own, dtype, target, paired=False)
                if made is not None:
                    seen |= {spec.operator, f"{spec.operator}{own}"}
                    yield made


def _made(spec: edge_specs.Spec, own: str, dtype: str, target: str | None, *, paired: bool) -> EdgeCall | None:
    params: list[ir.Var] = []
    given = [leaf for leaf in _leaves(spec.args) if isinstance(leaf, Given)]
    plain = paired and OPERATORS.get(spec.operator).kind in _PLAIN and len(given) == len(spec.args) <= 2
    if paired and not plain:
        return None
    now = [dtype if leaf.dtype == own else leaf.dtype for leaf in given]
    count = prod(len(edges(kind)) for kind in now)

    def expression(arg: Any) -> ir.Expr:
        if isinstance(arg, tuple):
            return ir.Tuple(tuple(map(expression, arg)))
        if isinstance(arg, Given):
            shape = (count,) if plain else arg.shape
            params.append(ir.Var(f"x{len(params)}", ir.TensorType(shape, dtype if arg.dtype == own else arg.dtype)))
            return params[-1]
        swaps = ir.dtypes.from_numpy(arg.dtype) == own and dtype != own
        with np.errstate(all="ignore"):
            return ir.const(arg.astype(dtypes.to_numpy(dtype)) if swaps else arg)

    attrs = {**spec.attrs, "dtype": target} if target else spec.attrs
    try:
        call = ir.call(spec.operator, list(map(expression, spec.args)), attrs)
    except (TypeCheckError, ValueError, OverflowError):
        return None
    label = "-".join(filter(None, (spec.operator, spec.label, dtype, target)))
    return EdgeCall(label, call, tuple(params), dtype, dtype == own)
