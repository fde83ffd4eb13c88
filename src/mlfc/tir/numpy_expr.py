"""The values of loop-level expressions in numpy, in exactly the dtypes that compiled code computes in.

A variable may stand for an array of values, and every node gives the array of its results. A vector value has its lanes
as the last axis. A single value is a scalar of numpy, never an array without axes: arithmetic on scalars takes a
thirtieth of the time, and most of what is interpreted is indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.ir import Buffer, Expr, Var

Array = npt.NDArray[Any]


def _truncdiv(a: Array, b: Array) -> Array:
    quotient: Array = a // b
    inexact = (a - quotient * b != 0) & ((a < 0) != (b < 0))
    result: Array = quotient + inexact.astype(quotient.dtype)
    return result


def _shift(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b if b.dtype is a.dtype else b.astype(a.dtype))


def _lesser(a: Array, b: Array) -> Array:
    return _chosen(a < b, a, b)


def _greater(a: Array, b: Array) -> Array:
    return _chosen(a > b, a, b)


def _chosen(condition: Array, a: Array, b: Array) -> Array:
    if condition.ndim == 0:
        return a if condition else b
    return np.where(condition, a, b)


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "floormod": operator.mod, "truncdiv": _truncdiv, "truncmod": np.fmod,
    "min": _lesser, "max": _greater, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": _shift(operator.lshift), "shr": _shift(operator.rshift), "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "land": operator.and_, "lor": operator.or_,
}  # fmt: skip


class Evaluator:
    """Evaluates expressions in one environment, each node once."""

    def __init__(self, env: Mapping[Var, Array], memory: Mapping[Buffer, Array]) -> None:
        self._env = env
        self._memory = memory
        self._values: dict[int, Array] = {}
        self._guarded: dict[int, Array] = {}

    def run(self, expr: Expr, guarded: bool = False) -> Array:
        """Return the value; `guarded` limits indices of loads, for a branch that is not always taken."""
        if type(expr) is ir.Const:  # most nodes are leaves, which are known already
            return self._const(expr, guarded)
        if type(expr) is ir.Var:
            return self._var(expr, guarded)
        known = self._guarded if guarded else self._values
        value = known.get(id(expr))
        if value is None:
            value = known[id(expr)] = _KINDS[type(expr)](self, expr, guarded)
        return value

    def _const(self, expr: ir.Const, _: bool) -> Array:
        return _number(expr.value, expr.dtype) if type(expr.value) is int else _array(expr.value, expr.dtype)

    def _var(self, expr: ir.Var, _: bool) -> Array:
        try:
            return self._env[expr]
        except KeyError:
            raise InternalError(f"tir: {expr.name} is read outside the statement that binds it") from None

    def _binary(self, expr: ir.Binary, guarded: bool) -> Array:
        value: Array = _BINARY[expr.op](self.run(expr.a, guarded), self.run(expr.b, guarded))
        return value

    def _cast(self, expr: ir.Cast, guarded: bool) -> Array:
        return _converted(self.run(expr.value, guarded), expr.dtype)

    def _broadcast(self, expr: ir.Broadcast, guarded: bool) -> Array:
        return self.run(expr.value, guarded)[..., None].repeat(dtypes.lanes(expr.dtype), -1)

    def _call(self, expr: ir.Call, guarded: bool) -> Array:
        return _called(expr.name, expr.dtype, [self.run(arg, guarded) for arg in expr.args])

    def _select(self, expr: ir.Select, guarded: bool) -> Array:
        condition = self.run(expr.condition, guarded)
        if condition.ndim == 0:
            return self.run(expr.then if condition else expr.otherwise, guarded)
        if dtypes.lanes(expr.condition.dtype) < dtypes.lanes(expr.dtype):
            condition = condition[..., None]
        return np.where(condition, self.run(expr.then, True), self.run(expr.otherwise, True))

    def _load(self, expr: ir.Load, guarded: bool) -> Array:
        array = self._memory[expr.buffer]
        indices = [self.run(index, guarded) for index in expr.indices]
        if guarded:
            # which elements are really read is decided above; the others only must not fail
            ends = [extent - 1 for extent in expr.buffer.shape]
            if ends:
                ends[-1] -= _lanes(expr.buffer, expr.dtype) - 1
            indices = [np.clip(index, 0, max(0, end)) for index, end in zip(indices, ends, strict=True)]
            if array.size == 0:
                shape = np.broadcast_shapes(*(index.shape for index in indices))
                return np.zeros(shape, array.dtype)
        else:
            check_bounds(expr.buffer, indices, expr.dtype)
        value: Array = array[access_key(expr.buffer, indices, expr.dtype)]
        return value if value.base is None else value.copy()  # what is stored later must not change it


_KINDS: dict[type, Callable[[Evaluator, Any, bool], Array]] = {
    ir.Const: Evaluator._const,
    ir.Var: Evaluator._var,
    ir.Binary: Evaluator._binary,
    ir.Select: Evaluator._select,
    ir.Cast: Evaluator._cast,
    ir.Load: lambda evaluator, expr, guarded: evaluator._load(expr, guarded),  # of subclasses, too
    ir.Broadcast: Evaluator._broadcast,
    ir.Call: Evaluator._call,
}


def _array(value: Any, dtype: str) -> Array:
    """Return a value in a dtype, in which it mostly is already."""
    array: Array = np.asarray(value).astype(dtypes.to_numpy(dtype), copy=False)[()]
    return array


@lru_cache(maxsize=1024)
def _number(value: int, dtype: str) -> Array:
    return _array(value, dtype)


def _called(name: str, dtype: str, args: Sequence[Array]) -> Array:
    """Return an intrinsic's value: what its body gives, lane by lane, or else its own function of numpy."""
    intrinsic = INTRINSICS.get(name)
    if intrinsic.evaluate is not None:
        return _array(intrinsic.evaluate(*map(np.asarray, args)), dtype)
    body = intrinsic.body(dtypes.from_numpy(args[0].dtype))
    if body is None:
        raise InternalError(f"tir: no body of '{name}' takes {args[0].dtype}")
    values: dict[Var, Array] = dict(zip(body.params, args, strict=True))
    evaluator = Evaluator(values, {})
    for step in body.steps:
        values[step.var] = evaluator.run(step.value)
    return evaluator.run(body.result)


def _converted(value: Array, dtype: str) -> Array:
    if dtypes.element(dtype) == "bool":
        nonzero: Array = value != 0
        return nonzero
    return value.astype(dtypes.to_numpy(dtype), copy=False)


# `array.min` and `array.max` are functions of Python that call them
_least, _most = np.minimum.reduce, np.maximum.reduce


def _lanes(buffer: Buffer, dtype: str) -> int:
    """Return how many elements of `buffer` one access of `dtype` touches."""
    return 1 if dtypes.lanes(buffer.dtype) > 1 else dtypes.lanes(dtype)


def check_bounds(buffer: Buffer, indices: Sequence[Array], dtype: str) -> None:
    """Raise InternalError where an access of `dtype` leaves the buffer."""
    lanes = _lanes(buffer, dtype)
    rest = len(buffer.shape)
    for index, extent in zip(indices, buffer.shape, strict=True):
        rest -= 1
        last = extent - 1 if rest else extent - lanes
        if index.ndim == 0:
            is_within = 0 <= index.item() <= last
        else:
            is_within = not index.size or bool(_least(index, None) >= 0 and _most(index, None) <= last)
        if not is_within:
            axis = len(buffer.shape) - rest - 1
            raise InternalError(f"tir: index {axis} of {buffer.name}{list(buffer.shape)} leaves its bounds")


def access_key(buffer: Buffer, indices: Sequence[Array], dtype: str) -> tuple[Array | slice, ...]:
    """Return the numpy index of an access; lanes over a scalar buffer run along its last axis."""
    lanes = _lanes(buffer, dtype)
    if lanes == 1:
        return tuple(indices)
    if not any(index.ndim for index in indices):
        return (*indices[:-1], slice(indices[-1], indices[-1] + lanes))
    wide = [index[..., None] for index in indices]
    wide[-1] = wide[-1] + np.arange(lanes, dtype=np.int32)
    return tuple(wide)


def evaluate_expr(expr: Expr, env: Mapping[Var, Any], memory: Mapping[Buffer, Array]) -> Array:
    """Return the value of an expression.

    `env`: arrays must broadcast against each other; the result has their common shape (or a smaller one, where the
    expression does not depend on all of them).
    `memory`: contents, in the buffers' shapes.
    Raises InternalError if a load that is not guarded by a Select leaves its buffer.
    """
    with np.errstate(all="ignore"):
        values = {var: _array(value, var.dtype) for var, value in env.items()}
        return Evaluator(values, memory).run(expr)


def undefined(buffer: Buffer) -> Array:
    """Return contents that a test cannot mistake for a result."""
    lanes, dtype = dtypes.lanes(buffer.dtype), dtypes.to_numpy(buffer.dtype)
    shape = (*buffer.shape, lanes) if lanes > 1 else buffer.shape
    return np.full(shape, np.nan if dtypes.is_float(buffer.dtype) else dtypes.limits(buffer.dtype)[1], dtype)
