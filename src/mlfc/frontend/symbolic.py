"""Symbolic evaluation of operators on dimension sizes, which makes the shapes that a model computes known at import.

Elements are integers, `Dim` or `Quotient`. Results that the bounds of the symbols do not determine are computed at run
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import MlfcError
from mlfc.ops.evaluate import evaluate
from mlfc.ops.rules import normalized_axes
from mlfc.relay import ir
from mlfc.relay.ir import Call, Constant, Expr, TensorType, Tuple
from mlfc.relay.op import Elements, Kind, Trait
from mlfc.support import dtypes
from mlfc.support.dims import Dim, Extent, Symbol, UndecidedError, bounds, maximum, minimum, substituted

Array: TypeAlias = npt.NDArray[Any]
Noted: TypeAlias = "dict[int, tuple[Expr, Array]]"
"""Elements of float expressions, keyed by the identity of the expression, which is stored to keep it alive."""
Rule: TypeAlias = "Callable[[Call, list[Array]], Array]"

_SIZE_LIMIT = 4096  # elements of an operand
_RESULT_LIMIT = 64  # elements of a result: larger tensors are data, not shapes
_DENOMINATOR_LIMIT = 1 << 12
_COMBINING = ("add", "mul", "max", "min")


@dataclass(frozen=True)
class Quotient:
    """A float that equals an integer or dimension size divided by a positive integer."""

    extent: Any
    by: int = 1


def known(expr: Expr, noted: Noted | None = None) -> Array | None:
    """Return the elements of a small tensor of integers that are known, or symbolic; None for other tensors."""
    if isinstance(expr, Constant):
        is_small = expr.data.size <= _SIZE_LIMIT and expr.data.dtype.kind in "iub"
        return expr.data.astype(object) if is_small else None
    if noted and id(expr) in noted:
        return noted[id(expr)][1]
    called = ir.operator(expr)
    if called is None or not isinstance(expr, Call):
        return None
    if called.traits & Trait.SHAPE:
        return objects(expr.attrs["values"], ir.tensor_type(expr).shape)
    if called.kind is Kind.VIEW and called.elements is Elements.SAME:
        is_value = isinstance(expr.args[0], Constant) or ir.has_trait(expr.args[0], Trait.SHAPE)
        inner = known(expr.args[0]) if is_value else None
        return None if inner is None else inner.reshape(ir.tensor_type(expr).shape)
    return None


def folded(call: Call, noted: Noted) -> Expr:
    """Return the result of a call on symbolic dimension sizes as a tensor; the call itself if it cannot be evaluated.

    A call with a float result is returned unchanged, and its elements are added to `noted`.
    """
    found = elements(call, noted)
    if found is None:
        return call
    if not dtypes.is_float(ir.tensor_type(call).dtype):
        return as_tensor(found, ir.tensor_type(call).dtype, call.span)
    noted[id(call)] = call, found
    return call


def elements(call: Call, noted: Noted, values: Mapping[Symbol, Extent] | None = None) -> Array | None:
    """Return the elements of the result of a call on symbolic dimension sizes, with values substituted for symbols.

    Return None if they are not determined, or if no operand is symbolic.
    """
    arrays = symbolic_operands(call, noted)
    if arrays is None:
        return None
    if values:
        arrays = [objects([_substituted(item, values) for item in array.reshape(-1)], array.shape) for array in arrays]
    try:
        found = np.asarray(_RULES[ir.op_name(call) or ""](call, arrays), object).reshape(ir.tensor_type(call).shape)
    except (UndecidedError, ArithmeticError, LookupError, TypeError, ValueError, MlfcError):
        return None
    is_real = any(isinstance(item, Quotient) for item in found.reshape(-1))
    return found if is_real == dtypes.is_float(ir.tensor_type(call).dtype) else None


def _substituted(item: Any, values: Mapping[Symbol, Extent]) -> Any:
    if isinstance(item, Quotient):
        return Quotient(substituted(item.extent, values), item.by)
    return substituted(item, values)


def symbolic_operands(call: Call, noted: Noted) -> list[Array] | None:
    """Return the elements of all operands of a call that can be evaluated; None unless some are symbolic."""
    if ir.op_name(call) not in _RULES or not isinstance(call.type, TensorType) or not call.type.is_static:
        return None
    arrays = _operands(call, noted) if call.type.size <= _RESULT_LIMIT else None
    if arrays is None or not any(isinstance(item, (Dim, Quotient)) for array in arrays for item in array.reshape(-1)):
        return None
    return arrays


def as_tensor(numbers: Array, dtype: str, span: ir.Span, name: str | None = None) -> Expr:
    """Return a tensor of dimension sizes; it is a constant, named `name`, if all are integers."""
    flat = numbers.reshape(-1)
    if not any(isinstance(item, Dim) for item in flat):
        return Constant(numbers.astype(dtypes.to_numpy(dtype)), name, span)
    values = tuple(item if isinstance(item, Dim) else int(item) for item in flat)
    shape = numbers.shape if numbers.ndim <= 1 else (numbers.size,)
    found: Expr = ir.call("extents", [], values=values, dtype=dtype, shape=shape, span=span)
    return found if numbers.ndim <= 1 else ir.call("reshape", [found], newshape=numbers.shape, span=span)


def objects(items: Sequence[Any], shape: Sequence[int]) -> Array:
    """Return an object array of the given shape."""
    found = np.empty(len(items), object)
    found[:] = items
    return found.reshape(tuple(shape))


def _operands(call: Call, noted: Noted) -> list[Array] | None:
    """Return the elements of all operands, with tuples flattened; None if some are unknown."""
    arrays = []
    for arg in call.args:
        for expr in arg.fields if isinstance(arg, Tuple) else (arg,):
            array = known(expr, noted)
            if array is None and noted and isinstance(expr, Constant):
                array = _quotients(expr)
            if array is None:
                return None
            arrays.append(array)
    return arrays


def _quotients(constant: Constant) -> Array | None:
    """Return the elements of a small float constant if all are simple fractions."""
    if constant.data.size > _SIZE_LIMIT or not dtypes.is_float(constant.type.dtype):
        return None
    values = constant.data.astype(np.float64)
    if not np.isfinite(values).all():
        return None
    fractions = [Fraction(item) for item in values.reshape(-1).tolist()]
    if any(item.denominator > _DENOMINATOR_LIMIT for item in fractions):
        return None
    return objects([Quotient(item.numerator, item.denominator) for item in fractions], values.shape)


# Operators that move elements


def _moved(*data: int) -> Rule:
    """Return the rule of an operator that copies elements of the operands `data`: evaluate it on element numbers."""

    def rule(call: Call, arrays: list[Array]) -> Array:
        if not {call.attrs.get("mode"), call.attrs.get("reduction")}.isdisjoint(_COMBINING):
            raise UndecidedError("elements that are combined")
        numbers, items = count(), []
        args: list[Constant] = []
        for place, array in enumerate(arrays):
            if data and place not in data:
                args.append(Constant(array.astype(np.int64)))
                continue
            items += array.reshape(-1).tolist()
            taken = [next(numbers) for _ in range(array.size)]
            args.append(Constant(np.array(taken, np.int64).reshape(array.shape)))
        operands = (Tuple(tuple(args)),) if isinstance(call.args[0], Tuple) else tuple(args)
        kind = TensorType(ir.tensor_type(call).shape, "int64")
        found = evaluate(replace(call, args=operands, type=kind))
        if found is None:
            raise UndecidedError("positions of elements")
        return objects([items[number] for number in found.reshape(-1)], found.shape)

    return rule


# Arithmetic


def _elementwise(function: Callable[..., Any]) -> Rule:
    def rule(_: Call, arrays: list[Array]) -> Array:
        given = np.broadcast_arrays(*arrays)
        rows = zip(*(array.reshape(-1) for array in given), strict=True)
        return objects([function(*row) for row in rows], given[0].shape)

    return rule


def _is_number(*items: Any) -> bool:
    return not any(isinstance(item, Quotient) for item in items)


def _real(item: Any) -> Quotient:
    return item if isinstance(item, Quotient) else Quotient(item)


def _simplified(extent: Any, by: int) -> Quotient:
    return Quotient(extent // by) if by > 1 and extent % by == 0 else Quotient(extent, by)


def _add(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return a + b
    a, b = _real(a), _real(b)
    return _simplified(a.extent * b.by + b.extent * a.by, a.by * b.by)


def _subtract(a: Any, b: Any) -> Any:
    return _add(a, -b if _is_number(b) else Quotient(-b.extent, b.by))


def _multiply(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return a * b
    a, b = _real(a), _real(b)
    return _simplified(a.extent * b.extent, a.by * b.by)


def _divide(a: Any, b: Any) -> Any:
    if _is_number(a, b):
        return _truncated(a, b)
    a, b = _real(a), _real(b)
    if isinstance(b.extent, Dim):
        raise UndecidedError("a quotient of dimension sizes")
    sign = 1 if b.extent > 0 else -1
    return _simplified(sign * a.extent * b.by, a.by * abs(b.extent))


def _truncated(a: Any, b: Any) -> Any:
    """Divide, rounding toward zero."""
    (low, high), (least, most) = bounds(a), bounds(b)
    if least <= 0 <= most or (low < 0 < high):
        raise UndecidedError("a quotient with an unknown sign")
    if most < 0:
        a, b = -a, -b
    low, high = bounds(a)
    return -(-a // b) if high < 0 else a // b


def _remainder_toward_zero(a: Any, b: Any) -> Any:
    if bounds(a)[0] < 0 or bounds(b)[0] < 0:
        raise UndecidedError("a remainder with an unknown sign")
    return a % b


def _power(a: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or not 0 <= exponent <= 8:
        raise UndecidedError("an exponent")
    return reduce(_multiply, [a] * exponent, 1)


def _cast(call: Call, arrays: list[Array]) -> Array:
    dtype = ir.tensor_type(call).dtype
    if dtypes.is_float(dtype):
        return objects([_real(item) for item in arrays[0].reshape(-1)], arrays[0].shape)
    items = [_whole(item) for item in arrays[0].reshape(-1)]
    if not dtypes.is_integer(dtype):
        raise UndecidedError("a bool")
    least, most = dtypes.limits(dtype)
    if dtype not in ("int32", "int64") and any(bounds(item)[0] < least or bounds(item)[1] > most for item in items):
        raise UndecidedError("an overflow")
    return objects(items, arrays[0].shape)


def _whole(item: Any) -> Any:
    if not isinstance(item, Quotient):
        return item
    return item.extent if item.by == 1 else _truncated(item.extent, item.by)


def _is_equal(a: Any, b: Any) -> bool:
    low, high = bounds(a - b)
    if low <= 0 <= high and not low == high == 0:
        raise UndecidedError("whether dimension sizes are equal")
    return low == high == 0


# Reductions


def _reduction(function: Callable[[Any, Any], Any]) -> Rule:
    ufunc = np.frompyfunc(function, 2, 1)

    def rule(call: Call, arrays: list[Array]) -> Array:
        (found,), attrs = arrays, call.attrs
        axes = normalized_axes("reduce", attrs["axis"], found.ndim, exclude=bool(attrs["exclude"]))
        for axis in sorted(axes, reverse=True):
            found = np.asarray(ufunc.reduce(found, axis=axis), object)
        return found

    return rule


def _running_sum(call: Call, arrays: list[Array]) -> Array:
    (x,) = arrays
    if x.ndim != 1 or call.attrs["exclusive"]:
        raise UndecidedError("a sum along an axis")
    return np.add.accumulate(x)


_SCALARS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda a: maximum(a, -a),
    "add": _add,
    "ceil": lambda a: Quotient(-(-_real(a).extent // _real(a).by)),
    "divide": _divide,
    "equal": _is_equal,
    "floor": lambda a: Quotient(_real(a).extent // _real(a).by),
    "floor_divide": lambda a, b: a // b,
    "floor_mod": lambda a, b: a % b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "maximum": maximum,
    "minimum": minimum,
    "multiply": _multiply,
    "negative": lambda a: _subtract(0, a),
    "power": _power,
    "sign": lambda a: 1 if a > 0 else -1 if a < 0 else 0,
    "subtract": _subtract,
    "trunc_divide": _divide,
    "trunc_mod": _remainder_toward_zero,
    "where": lambda condition, a, b: a if condition else b,
}
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("broadcast_to", "concatenate", "expand_dims", "reshape", "reverse", "squeeze", "strided_slice", "tile",
         "transpose"), _moved(),
    ),
    **dict.fromkeys(("gather", "gather_nd", "take"), _moved(0)),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _moved(0, 2)),
    **{name: _elementwise(function) for name, function in _SCALARS.items()},
    "cast": _cast,
    "cumsum": _running_sum,
    "max": _reduction(maximum),
    "min": _reduction(minimum),
    "prod": _reduction(_multiply),
    "sum": _reduction(_add),
}  # fmt: skip
