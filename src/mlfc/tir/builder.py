"""Expression constructors that fold constants, so that rules can use plain arithmetic, and a statement builder."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Dim, bounds, is_static
from mlfc.support.dims import maximum as largest
from mlfc.tir import ir
from mlfc.tir.bounds import float_range
from mlfc.tir.extents import as_index
from mlfc.tir.ir import Buffer, Expr, Stmt, Var

_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": min, "max": max, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift, "eq": operator.eq,
    "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "land": lambda a, b: bool(a and b), "lor": lambda a, b: bool(a or b),
}  # fmt: skip
_SHIFTS = ("shl", "shr")
_NEUTRAL = {"add": 0, "sub": 0, "shl": 0, "shr": 0, "mul": 1, "floordiv": 1}  # as the second operand
# results of comparing an integer with itself
_OF_ITSELF = {"eq": True, "le": True, "ge": True, "ne": False, "lt": False, "gt": False}


def const(value: float | Dim, dtype: str = "int32") -> Expr:
    """Return a literal, broadcast for a vector dtype; a dynamic extent becomes an expression of its symbols."""
    scalar = dtypes.element(dtype)
    if isinstance(value, Dim):
        return broadcast(cast(as_index(value), scalar), dtypes.lanes(dtype))
    number = float(value) if dtypes.is_float(scalar) else bool(value) if scalar == "bool" else int(value)
    literal = ir.Const(number, scalar)
    return literal if dtypes.lanes(dtype) == 1 else ir.Broadcast(literal, dtype)


def as_expr(value: Any, like: Any = None) -> Expr:
    """Return an expression unchanged, or a Python number as a literal of the dtype of `like` (default int32)."""
    if isinstance(value, ir.ExprOps):
        return value  # type: ignore[return-value]  # ExprOps is the base of exactly the nodes of Expr
    return const(value, like.dtype if isinstance(like, ir.ExprOps) else "int32")


def _is(value: Expr, number: int) -> bool:
    return isinstance(value, ir.Const) and value.value == number


def _wrapped(value: int, dtype: str) -> bool:
    low, high = dtypes.limits(dtype)
    return not low <= value <= high


def binary(op: str, a: Any, b: Any) -> Expr:
    """Return ``op(a, b)``; Python numbers get the other operand's dtype, a scalar is broadcast to a vector."""
    a, b = as_expr(a, b), as_expr(b, a)
    lanes = max(dtypes.lanes(a.dtype), dtypes.lanes(b.dtype))
    a, b = broadcast(a, lanes), broadcast(b, lanes)
    if a.dtype != b.dtype and op not in _SHIFTS:
        raise InternalError(f"tir '{op}' on {a.dtype} and {b.dtype}")
    result = dtypes.vector("bool", lanes) if op in ir.COMPARISONS else a.dtype
    if dtypes.is_float(a.dtype):
        return ir.Binary(op, a, b, result)
    if op in _OF_ITSELF and _is_same(a, b):  # compilers warn about such comparisons
        return broadcast(const(_OF_ITSELF[op], "bool"), lanes)
    return _folded(op, a, b, result) or _identity(op, a, b) or ir.Binary(op, a, b, result)


ir.ExprOps.build = binary


def _is_same(a: Expr, b: Expr) -> bool:
    """Tell whether two expressions are the same, or load the same element."""
    if isinstance(a, ir.Load) and isinstance(b, ir.Load):
        return a.buffer is b.buffer and a.dtype == b.dtype and all(map(_is_same, a.indices, b.indices))
    if isinstance(a, ir.Const) and isinstance(b, ir.Const):
        return (a.dtype, a.value) == (b.dtype, b.value)
    return a is b


def _folded(op: str, a: Expr, b: Expr, result: str) -> Expr | None:
    """Return the literal result of integer `op` on two literals, or None."""
    if not isinstance(a, ir.Const) or not isinstance(b, ir.Const) or op not in _FOLD:
        return None
    if op in ("floordiv", "floormod") and b.value == 0:
        return None
    value = _FOLD[op](a.value, b.value)
    return const(value, result) if result == "bool" or not _wrapped(value, result) else None


def _identity(op: str, a: Expr, b: Expr) -> Expr | None:
    """Return the operand that integer `op` leaves unchanged, or None."""
    if op in ("add", "mul") and _is(a, _NEUTRAL[op]):
        return b
    if op in _NEUTRAL and _is(b, _NEUTRAL[op]):
        return a
    if (op == "mul" and (_is(a, 0) or _is(b, 0))) or (op == "floormod" and _is(b, 1)):
        return const(0, a.dtype)
    if isinstance(b, ir.Const) and isinstance(a, ir.Binary) and isinstance(a.b, ir.Const) and a.op == op == "add":
        return binary("add", a.a, binary("add", a.b, b))
    if op == "land":
        if isinstance(a, ir.Const):
            return b if a.value else a
        if isinstance(b, ir.Const):
            return a if b.value else b
    return None


def broadcast(value: Expr, lanes: int) -> Expr:
    """Return `value` in every lane; a vector with that many lanes is returned unchanged."""
    have = dtypes.lanes(value.dtype)
    if have == lanes:
        return value
    if have != 1:
        raise InternalError(f"tir: {value.dtype} cannot become {lanes} lanes")
    return ir.Broadcast(value, dtypes.vector(value.dtype, lanes))


def minimum(a: Any, b: Any) -> Expr:
    """Return the smaller of two; for floats C's ``a < b ? a : b``."""
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Expr:
    """Return the larger of two; for floats C's ``a > b ? a : b``."""
    return binary("max", a, b)


def clamp(value: Expr, low: Any, high: Any) -> Expr:
    """Clamp `value` to [low, high]."""
    return minimum(maximum(value, low), high)


def land(*conditions: Expr) -> Expr:
    """Return the conjunction of all conditions; true for no conditions."""
    result: Expr = const(True, "bool")
    for condition in conditions:
        result = binary("land", result, condition)
    return result


def select(condition: Expr, then: Any, otherwise: Any) -> Expr:
    """Return ``then if condition else otherwise``, lazily evaluated."""
    taken, other = as_expr(then, otherwise), as_expr(otherwise, then)
    if taken.dtype != other.dtype:
        raise InternalError(f"tir select of {taken.dtype} and {other.dtype}")
    if isinstance(condition, ir.Const):
        return taken if condition.value else other
    return ir.Select(condition, taken, other, taken.dtype)


def cast(value: Expr, dtype: str) -> Expr:
    """Convert `value` to `dtype` (the element dtype changes, the lanes do not)."""
    dtype = dtypes.vector(dtypes.element(dtype), dtypes.lanes(value.dtype))
    if value.dtype == dtype:
        return value
    if isinstance(value, ir.Const) and dtypes.is_integer(dtype) and isinstance(value.value, int):
        return ir.Cast(value, dtype) if _wrapped(value.value, dtype) else const(value.value, dtype)
    return ir.Cast(value, dtype)


def truncated(x: Expr, dtype: str, rule: str = "to") -> Expr:
    """Convert a float to int32, int64 or uint64; `rule` selects the intrinsic for values out of range.

    `to` saturates and is only available for int32; `as` is the rule of the operator `cast`.
    """
    x = x if dtypes.element(x.dtype) == "float64" else cast(x, "float32")
    if float_range(x).fits(dtype):
        return cast(x, dtype)
    return intrinsic(f"{rule}_{dtype}", x, dtype=dtype)


def load(buffer: Buffer, indices: Sequence[Any], lanes: int = 1) -> Expr:
    """Read one element, or `lanes` consecutive ones along the last axis."""
    if len(indices) != len(buffer.shape):
        raise InternalError(f"tir: {len(indices)} indices into {buffer.name} of shape {buffer.shape}")
    dtype = buffer.dtype if lanes == 1 else dtypes.vector(buffer.dtype, lanes)
    return ir.Load(buffer, tuple(as_expr(index) for index in indices), dtype)


def intrinsic(name: str, *args: Expr, dtype: str | None = None) -> Expr:
    """Call an intrinsic; the result has the first argument's dtype unless `dtype` is given."""
    return ir.Call(name, args, dtype or args[0].dtype)


class StmtBuilder:
    """Collects statements; blocks open and close with ``with``; `single_trips` keeps loops of one iteration."""

    def __init__(self, *, single_trips: bool = False) -> None:
        self._single_trips = single_trips
        self._blocks: list[list[Stmt]] = [[]]
        self._names: dict[str, int] = {}
        self._fresh: list[Buffer] = []

    def unique(self, name: str) -> str:
        """Return `name`, numbered if it is already used in this function."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self.unique(f"{name}_{count}")

    def append(self, stmt: Stmt) -> None:
        """Add a statement to the open block."""
        self._blocks[-1].append(stmt)

    def store(self, buffer: Buffer, indices: Sequence[Any], value: Any) -> None:
        """Write `value` (a number gets the buffer's dtype)."""
        if not isinstance(value, ir.ExprOps):
            value = const(value, buffer.dtype)
        self.append(ir.Store(buffer, tuple(as_expr(index) for index in indices), value))

    def comment(self, text: str) -> None:
        """Add a comment to the generated code."""
        self.append(ir.Comment(text))

    def fence(self, text: str, buffer: Buffer | None = None) -> None:
        """Keep later loads after this point, and `buffer` in memory; `text` is the comment in the generated code."""
        self.append(ir.Fence(text, buffer))

    def prefetch(self, buffer: Buffer, offset: Expr, text: str) -> None:
        """Prefetch the element at a row-major position; `text` is the comment in the generated code."""
        self.append(ir.Prefetch(text, buffer, offset))

    def require(self, buffer: Buffer, text: str) -> None:
        """Return -1 unless the first element of a bool buffer is true; `text` is the comment in the generated code."""
        self.append(ir.Require(text, buffer, const(0)))

    @contextmanager
    def _block(self) -> Iterator[list[Stmt]]:
        self._blocks.append([])
        try:
            yield self._blocks[-1]
        finally:
            self._blocks.pop()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Open a block that limits the scope of bound names; shallower nesting makes walks shallower."""
        with self._block() as stmts:
            yield
        self.append(seq(stmts))

    @contextmanager
    def loop(self, extent: Any, name: str = "i", kind: str = "serial", step: int = 1) -> Iterator[Expr]:
        """Open ``for name in range(0, extent, step)``; usually yield the literal 0 for a loop of one iteration."""
        extent = as_expr(extent)
        if not self._single_trips and isinstance(extent, ir.Const) and 0 < extent.value <= step:
            yield const(0)
            return
        var, known = Var(self.unique(name)), len(self._fresh)
        with self._block() as stmts:
            yield var
        fresh = tuple(dict.fromkeys(self._fresh[known:]))
        self.append(ir.For(var, extent, seq(stmts), kind, step, fresh=fresh))

    @contextmanager
    def carrying_loop(self, extent: Any, name: str, carried: Buffer, fill: Callable[[Expr], None]) -> Iterator[Expr]:
        """Open a loop that carries scratch between iterations; `fill` writes its contents for any first iteration.

        This lets threads share the loop: each fills its own scratch for its first iteration.
        """
        self.refill(carried)
        with self.scope():
            begin = Var(self.unique("begin"))
            self.append(ir.Let(begin, const(0), ir.Seq(()), (carried,)))
            with self.scope():
                fill(begin)
            with self.loop(extent, name) as var:
                yield var

    @contextmanager
    def loop_until(self, condition: Expr, most: int, name: str = "i") -> Iterator[None]:
        """Open a loop that ends after `condition` becomes true, which must happen within `most` iterations."""
        with self._block() as stmts:
            yield
        self.append(ir.For(Var(self.unique(name)), const(most), seq(stmts), until=condition))

    @contextmanager
    def loops(self, shape: Sequence[int], prefix: str = "i") -> Iterator[tuple[Expr, ...]]:
        """Open one serial loop per axis; the last one is marked vectorized."""
        with ExitStack() as stack:
            kinds = [*["serial"] * (len(shape) - 1), "vectorized"]
            each = enumerate(zip(shape, kinds, strict=False))
            yield tuple(stack.enter_context(self.loop(size, f"{prefix}{axis}", kind)) for axis, (size, kind) in each)

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Open ``if (condition)``."""
        with self._block() as stmts:
            yield
        self.append(ir.If(condition, seq(stmts)))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Open the else branch of the last statement, a `when`."""
        last = self._blocks[-1].pop()
        if not isinstance(last, ir.If) or last.otherwise is not None:
            raise InternalError("tir: nothing to be done otherwise")
        with self._block() as stmts:
            yield
        self.append(ir.If(last.condition, last.then, seq(stmts)))

    def let(self, name: str, value: Any, dtype: str = "int32") -> Expr:
        """Bind a name to a value for the rest of the open block; a literal is returned unchanged."""
        value = value if isinstance(value, ir.ExprOps) else const(value, dtype)
        if isinstance(value, (ir.Const, ir.Var)):
            return value
        var = Var(self.unique(name), value.dtype)
        self.append(ir.Let(var, value, ir.Seq(())))  # `seq` moves the following statements into the body
        return var

    def local(self, name: str, shape: Sequence[int], dtype: str) -> Buffer:
        """Allocate a stack buffer for the rest of the open block; a vector dtype uses registers."""
        if not is_static(shape):
            raise TypeError(f"the stack buffer {name} requires a static shape, got {tuple(shape)}")
        buffer = Buffer(self.unique(name), tuple(shape), dtype, "local")
        self.append(ir.Allocate(buffer, ir.Seq(())))
        return buffer

    def filled(self, name: str, size: int, dtype: str, value: Any = 0) -> Buffer:
        """Allocate a `local` buffer of one dimension, and store a value in each of its elements."""
        buffer = self.local(name, (size,), dtype)
        for index in range(size):
            self.store(buffer, [index], value)
        return buffer

    def refill(self, *buffers: Buffer) -> None:
        """Declare the contents of scratch dead at this point: open loops do not carry it between iterations."""
        self._fresh += buffers

    @contextmanager
    def refilling(self, *buffers: Buffer) -> Iterator[None]:
        """Open a block outside of loops that fills scratch before it reads it."""
        with self._block() as stmts:
            yield
        self.append(ir.Let(Var(self.unique("once")), const(0), seq(stmts), fresh=buffers))

    def shared(self, name: str, shape: Sequence[int], dtype: str) -> Buffer:
        """Allocate a buffer shared by the work-items of a group, for the rest of the open block."""
        buffer = Buffer(self.unique(name), tuple(shape), dtype, "shared")
        self.append(ir.Allocate(buffer, ir.Seq(())))
        return buffer

    def barrier(self) -> None:
        """Synchronize the work-items of the group."""
        self.append(ir.Barrier())

    @contextmanager
    def launch(self, grid: Sequence[Any], block: Sequence[int]) -> Iterator[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
        """Open a launch; yield the indices of the group and of the work-item, along as many axes as were given.

        A grid that may exceed the device limit of groups along y or z is flattened to x.
        """
        groups, items = (tuple(Var(self.unique(f"{name}_{axis}")) for axis in "xyz") for name in ("group", "item"))
        whole = _three(grid)
        in_line = any(bounds(extent)[1] > ir.MOST_GROUPS_ACROSS for extent in whole[1:])
        with self._block() as stmts:
            places = self._unrolled_grid(groups[0], grid) if in_line else _places(groups, grid)
            yield places, _places(items, block)
        whole = (prod(whole), 1, 1) if in_line else whole
        self.append(ir.Launch(whole, _three(block), groups, items, seq(stmts)))  # type: ignore[arg-type]  # three of each

    def _unrolled_grid(self, number: Expr, grid: Sequence[Any]) -> tuple[Expr, ...]:
        """Return the indices along the axes of a flattened grid, with groups along x adjacent."""
        places = []
        for axis, extent in enumerate(grid):
            # avoids a division by zero for an empty grid, which runs no code
            place = number // largest(1, prod(grid[:axis]))
            inner = place if axis == len(grid) - 1 else place % largest(1, extent)
            places.append(const(0) if extent == 1 else self.let("group", inner))
        return tuple(places)

    def finish(self) -> Stmt:
        """Return everything as one statement."""
        if len(self._blocks) != 1:
            raise InternalError("tir: a block is still open")
        return seq(self._blocks[0])


def _three(extents: Sequence[Any]) -> tuple[Any, Any, Any]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _places(variables: Sequence[Var], extents: Sequence[int]) -> tuple[Expr, ...]:
    return tuple(const(0) if extent == 1 else var for var, extent in zip(variables, extents, strict=False))


def seq(stmts: Sequence[Stmt]) -> Stmt:
    """Return statements in order; an open Let or Allocate encloses the statements after it."""
    done: list[Stmt] = []
    for stmt in reversed(stmts):
        if isinstance(stmt, (ir.Let, ir.Allocate)) and _is_dynamic(stmt):
            body = ir.Seq(tuple(reversed(done)))
            done = [replace(stmt, body=body)]
        else:
            done.append(stmt)
    return done[0] if len(done) == 1 else ir.Seq(tuple(reversed(done)))


def _is_dynamic(stmt: ir.Let | ir.Allocate) -> bool:
    return isinstance(stmt.body, ir.Seq) and not stmt.body.stmts
