"""Evaluation of loop-level expressions in numpy, in exactly the dtypes of compiled code.

A variable may be an array of values; lanes are the last axis. A single value is a numpy scalar, never a 0-d array:
scalar arithmetic takes a thirtieth of the time, and most interpreted values are indices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.intrinsics import INTRINSICS
from mlfc.tir.intrinsics.registry import IntrinsicBody
from mlfc.tir.ir import Buffer, Expr, Var
from mlfc.tir.visitor import children

Array = npt.NDArray[Any]


def _truncdiv(a: Array, b: Array) -> Any:
    quotient = a // b
    inexact = (a - quotient * b != 0) & ((a < 0) != (b < 0))
    return quotient + inexact.astype(quotient.dtype)


def _shift(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b if b.dtype is a.dtype else b.astype(a.dtype))


def _chosen(condition: Array, a: Array, b: Array) -> Array:
    if condition.ndim == 0:
        return a if condition else b
    return np.where(condition, a, b)


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "floormod": operator.mod, "truncdiv": _truncdiv, "truncmod": np.fmod,
    "min": lambda a, b: _chosen(a < b, a, b), "max": lambda a, b: _chosen(a > b, a, b),
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": _shift(operator.lshift), "shr": _shift(operator.rshift), "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "land": operator.and_, "lor": operator.or_,
}  # fmt: skip


class EvalFrame:
    """Evaluation environment: values of variables and contents of buffers."""

    __slots__ = ("env", "known", "memory")

    def __init__(self, env: Mapping[Var, Array], memory: Mapping[Buffer, Array]) -> None:
        self.env = env
        self.memory = memory
        self.known: dict[tuple[int, bool], Array] = {}  # values of nodes that occur several times in an expression


Code: TypeAlias = Callable[[EvalFrame], Array]
Read: TypeAlias = Callable[[EvalFrame, ir.Load, list[Array], bool], Array]


def read(frame: EvalFrame, load: ir.Load, indices: list[Array], guarded: bool) -> Array:
    """Return the elements that a load reads; `guarded` clamps indices, for a branch that may not be taken."""
    return read_elements(frame.memory[load.buffer], load.buffer, indices, load.dtype, guarded)


def compiled(exprs: Sequence[Expr], read: Read = read) -> Callable[[EvalFrame], list[Array]]:
    """Return a Python function that computes some expressions, each node once.

    Walking the nodes for each element of a tensor would take several times as long.
    """
    compiler = _ExprCompiler(exprs, read)
    codes = [compiler.code(expr, False) for expr in exprs]
    if not compiler.shares:
        return lambda frame: [code(frame) for code in codes]

    def run(frame: EvalFrame) -> list[Array]:
        frame.known = {}
        return [code(frame) for code in codes]

    return run


class _ExprCompiler:
    """Compiles expressions that are evaluated together to functions."""

    def __init__(self, exprs: Sequence[Expr], read: Read) -> None:
        self._read = read
        self._codes: dict[tuple[int, bool], Code] = {}
        self._shared: set[int] = set()
        seen: set[int] = set()
        stack = list(exprs)
        while stack:
            expr = stack.pop()
            if id(expr) in seen:
                self._shared.add(id(expr))
                continue
            operands = children(expr)
            if operands:  # leaves are not cached
                seen.add(id(expr))
                stack.extend(operands)
        self.shares = bool(self._shared)

    def code(self, expr: Expr, guarded: bool) -> Code:
        """Return the function for a node; `guarded` clamps indices of loads."""
        key = id(expr), guarded
        code = self._codes.get(key)
        if code is None:
            code = _KINDS[type(expr)](self, expr, guarded)
            self._codes[key] = code = self._once(code, key) if key[0] in self._shared else code
        return code

    @staticmethod
    def _once(code: Code, key: tuple[int, bool]) -> Code:
        def once(frame: EvalFrame) -> Array:
            value = frame.known.get(key)
            if value is None:
                value = frame.known[key] = code(frame)
            return value

        return once

    def const(self, expr: ir.Const, _: bool) -> Code:
        value = _array(expr.value, expr.dtype)
        return lambda _: value

    def var(self, expr: ir.Var, _: bool) -> Code:
        def var(frame: EvalFrame) -> Array:
            try:
                return frame.env[expr]
            except KeyError:
                raise InternalError(f"tir: {expr.name} is read outside the statement that binds it") from None

        return var

    def binary(self, expr: ir.Binary, guarded: bool) -> Code:
        compute, a, b = _BINARY[expr.op], self.code(expr.a, guarded), self.code(expr.b, guarded)
        if isinstance(expr.b, ir.Const):
            constant = _array(expr.b.value, expr.b.dtype)
            return lambda frame: compute(a(frame), constant)
        return lambda frame: compute(a(frame), b(frame))

    def cast(self, expr: ir.Cast, guarded: bool) -> Code:
        value = self.code(expr.value, guarded)
        if dtypes.element(expr.dtype) == "bool":
            return lambda frame: value(frame) != 0
        dtype = dtypes.to_numpy(expr.dtype)
        # for a numpy scalar, the constructor of its type takes half the time
        make = dtype.type if dtype.kind in "iuf" else None

        def cast(frame: EvalFrame) -> Array:
            found = value(frame)
            if make is None or found.ndim or found.dtype.kind not in "iufb":
                return found.astype(dtype, copy=False)
            result: Array = make(found)  # type: ignore[assignment]  # a scalar has what is used of an array
            return result

        return cast

    def broadcast(self, expr: ir.Broadcast, guarded: bool) -> Code:
        value, lanes = self.code(expr.value, guarded), dtypes.lanes(expr.dtype)
        return lambda frame: value(frame)[..., None].repeat(lanes, -1)

    def call(self, expr: ir.Call, guarded: bool) -> Code:
        args = [self.code(arg, guarded) for arg in expr.args]
        intrinsic, dtype = INTRINSICS.get(expr.name), expr.dtype
        evaluate = intrinsic.evaluate
        if evaluate is not None:
            return lambda frame: _array(evaluate(*[np.asarray(arg(frame)) for arg in args]), dtype)
        body = intrinsic.body(expr.args[0].dtype)
        if body is None:
            raise InternalError(f"tir: no body of '{expr.name}' takes {expr.args[0].dtype}")
        run = _of_body(body)
        return lambda frame: run([arg(frame) for arg in args])

    def select(self, expr: ir.Select, guarded: bool) -> Code:
        condition = self.code(expr.condition, guarded)
        then, otherwise = self.code(expr.then, guarded), self.code(expr.otherwise, guarded)
        is_wider = dtypes.lanes(expr.condition.dtype) < dtypes.lanes(expr.dtype)

        def select(frame: EvalFrame) -> Array:
            holds = condition(frame)
            if holds.ndim == 0:
                return then(frame) if holds else otherwise(frame)
            if is_wider:
                holds = holds[..., None]
            return np.where(holds, self.code(expr.then, True)(frame), self.code(expr.otherwise, True)(frame))

        return select

    def load(self, expr: ir.Load, guarded: bool) -> Code:
        indices = [self.code(index, guarded) for index in expr.indices]
        access = self._read
        if guarded or access is not read or dtypes.lanes(expr.dtype) > 1:
            return lambda frame: access(frame, expr, [index(frame) for index in indices], guarded)
        shape, buffer = expr.buffer.shape, expr.buffer

        def load(frame: EvalFrame) -> Array:
            """Read an element by the fast path of common loads; others use `read`."""
            places = [index(frame) for index in indices]
            for place, extent in zip(places, shape, strict=True):
                if place.ndim or not 0 <= int(place) < extent:
                    return read(frame, expr, places, False)
            return frame.memory[buffer][(*places,)]

        return load


_KINDS: dict[type, Callable[[_ExprCompiler, Any, bool], Code]] = {
    ir.Const: _ExprCompiler.const,
    ir.Var: _ExprCompiler.var,
    ir.Binary: _ExprCompiler.binary,
    ir.Select: _ExprCompiler.select,
    ir.Cast: _ExprCompiler.cast,
    ir.Load: _ExprCompiler.load,
    ir.Broadcast: _ExprCompiler.broadcast,
    ir.Call: _ExprCompiler.call,
}


def read_elements(array: Array, buffer: Buffer, indices: Sequence[Array], dtype: str, guarded: bool) -> Array:
    """Return the elements that an access of `dtype` reads from a buffer's contents."""
    if guarded:
        # the condition decides which elements are used; reading the others must not fail
        ends = [extent - 1 for extent in buffer.shape]
        if ends:
            ends[-1] -= _lanes(buffer, dtype) - 1
        indices = [np.clip(index, 0, max(0, end)) for index, end in zip(indices, ends, strict=True)]
        if array.size == 0:
            shape = np.broadcast_shapes(*(index.shape for index in indices))
            return np.zeros(shape, array.dtype)
    else:
        check_bounds(buffer, indices, dtype)
    value: Array = array[access_key(buffer, indices, dtype)]
    return value if value.base is None else value.copy()  # a copy, so that later stores do not change it


def _array(value: Any, dtype: str) -> Array:
    """Convert a value to a dtype, which it usually has already."""
    array: Array = np.asarray(value).astype(dtypes.to_numpy(dtype), copy=False)[()]
    return array


@cache
def _of_body(body: IntrinsicBody) -> Callable[[Sequence[Array]], Array]:
    """Return the function that computes an intrinsic's body from its arguments, lane by lane."""
    steps = [(step.var, compiled([step.value])) for step in body.steps]
    result = compiled([body.result])

    def run(args: Sequence[Array]) -> Array:
        values: dict[Var, Array] = dict(zip(body.params, args, strict=True))
        frame = EvalFrame(values, {})
        for var, code in steps:
            (values[var],) = code(frame)
        return result(frame)[0]

    return run


# `array.min` and `array.max` are Python functions that call these
_least, _most = np.minimum.reduce, np.maximum.reduce


def _lanes(buffer: Buffer, dtype: str) -> int:
    """Return the number of elements of `buffer` that one access of `dtype` touches."""
    return 1 if dtypes.lanes(buffer.dtype) > 1 else dtypes.lanes(dtype)


def check_bounds(buffer: Buffer, indices: Sequence[Array], dtype: str) -> None:
    """Raise InternalError if an access of `dtype` is outside the buffer."""
    lanes = _lanes(buffer, dtype)
    rest = len(buffer.shape)
    for index, extent in zip(indices, buffer.shape, strict=True):
        rest -= 1
        last = extent - 1 if rest else extent - lanes
        if index.ndim == 0:
            is_within = 0 <= int(index) <= last
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

    `env`: arrays must broadcast against each other; the result has their common shape (or a smaller one if the
    expression does not depend on all of them).
    `memory`: contents, in the buffers' shapes.
    Raises InternalError if a load that is not guarded by a Select is outside its buffer.
    """
    with np.errstate(all="ignore"):
        values = {var: _array(value, var.dtype) for var, value in env.items()}
        return compiled([expr])(EvalFrame(values, memory))[0]


def undefined(buffer: Buffer) -> Array:
    """Return contents that a test cannot mistake for a result."""
    lanes, dtype = dtypes.lanes(buffer.dtype), dtypes.to_numpy(buffer.dtype)
    shape = (*buffer.shape, lanes) if lanes > 1 else buffer.shape
    return np.full(shape, np.nan if dtypes.is_float(buffer.dtype) else dtypes.limits(buffer.dtype)[1], dtype)
