"""Explicit vectorization of fixed-point loops over int32, which compilers do not vectorize themselves.

A ``vectorized`` loop that only binds names and stores one element is rewritten if all its operations have an int32
form: narrow integers are widened when loaded and narrowed when stored, so values do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.support import dtypes
from mlfc.support.lines import Line, Plane, find_line, find_plane
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Interval, Ranges
from mlfc.tir.context import Context
from mlfc.tir.independence import Independence
from mlfc.tir.ir import Expr, For, Stmt, Var
from mlfc.tir.numpy_expr import evaluate_expr
from mlfc.tir.unroll import with_single_uses, with_values
from mlfc.tir.visitor import children, nodes, only, rebuilt, rebuilt_stmt, same_expr, walk_expr

Array = npt.NDArray[Any]
_MOST_VALUES = 256  # of an operand
_ARITHMETIC = frozenset({"add", "sub", "mul", "min", "max"})
_NAMES = ("slope", "rest", "above", "below")


@dataclass(frozen=True)
class Limited:
    """Post-processing of a requantized number: add a zero point, then clamp."""

    zero_point: int
    low: int
    high: int


@dataclass(frozen=True)
class LineOf:
    """The operands of `requantize_line`: those of `requantize_down`, and the line in scalar floats."""

    args: tuple[Expr, ...]
    floats: tuple[Expr, ...]


@dataclass(frozen=True)
class PlaneOf:
    """The requantization that a plane replaces, and the operands."""

    call: ir.Call
    operands: tuple[Expr, Expr]
    plane: Plane


class LineFinder:
    """Finds lines and planes in one loop; `ranges` has the intervals of its variables."""

    def __init__(self, tables: Context) -> None:
        self._tables = tables
        whole = [(buffer, array) for buffer, array in tables.constants if array.dtype.kind in "iu" and array.size]
        self.ranges = Ranges({id(buffer): Interval(int(array.min()), int(array.max())) for buffer, array in whole})

    def line(self, expr: Expr) -> tuple[LineOf, Limited] | None:
        """Return the line of an expression that requantizes, adds a zero point and clamps, or None."""
        call, limited = self.limited(expr)
        if call is None or limited is None:
            return None
        value, *scale = call.args
        numbers = [array for part in scale if (array := self._numbers(part)) is not None]
        loads = [part for part in scale if isinstance(part, ir.Load)]
        places = [load.indices for load in loads]
        is_one = all(len(place) == len(places[0]) and all(map(same_expr, place, places[0])) for place in places)
        if len(numbers) < len(scale) or not is_one:
            return None
        ends = self.ranges.interval(value, 2)
        bounds = limited.low - limited.zero_point, limited.high - limited.zero_point
        channels = np.broadcast_arrays(*numbers)
        line = find_line(channels[0], channels[1], bounds, max(-ends.low, ends.high))
        return None if line is None else (LineOf(call.args, self._floats(line, loads, bounds[0])), limited)

    def limited(self, expr: Expr) -> tuple[ir.Call | None, Limited | None]:
        """Return the requantization inside an expression, and its post-processing."""
        ends = low, high = dtypes.limits("int32")
        inner = expr
        while (step := self._step(inner)) is not None:
            op, number, inner = step
            end = min(max(number, low), high)
            low, high = (end if op == "max" else low), (end if op == "min" else high)
        call, zero_point = inner, 0
        if isinstance(inner, ir.Binary) and inner.op == "add" and isinstance(inner.b, ir.Const):
            call, zero_point = inner.a, int(inner.b.value)
        if not isinstance(call, ir.Call) or call.name != "requantize_down" or ends[0] == low or ends[1] == high:
            return None, None
        return call, Limited(zero_point, low, high)

    def _step(self, expr: Expr) -> tuple[str, int, Expr] | None:
        """Return operator, literal and operand of a min or max; the operator is empty for a lossless cast."""
        if isinstance(expr, ir.Cast) and self.ranges.is_within(expr.value, *dtypes.limits(expr.dtype)):
            return "", 0, expr.value
        if isinstance(expr, ir.Binary) and expr.op in ("min", "max") and isinstance(expr.b, ir.Const):
            return expr.op, int(expr.b.value), expr.a
        return None

    def _numbers(self, expr: Expr) -> Array | None:
        """Return the per-channel values of a multiplier or an exponent; None if they are unknown."""
        if isinstance(expr, ir.Const):
            return np.array([expr.value], np.int32)
        buffer = expr.buffer if isinstance(expr, ir.Load) else None
        return next((array for known, array in self._tables.constants if known is buffer and array.ndim == 1), None)

    def _floats(self, line: Line, loads: list[ir.Load], low: int) -> tuple[Expr, ...]:
        """Return the line's numbers as literals, or as loads at the indices of the multipliers."""
        below = line.above if low >= 0 else line.below  # unused if the clamp excludes negative values
        return tuple(
            ir.Load(self._tables.constant(name, array), loads[0].indices, "float32")
            if loads and (array != array.flat[0]).any()
            else tb.const(float(array.flat[0]), "float32")
            for name, array in zip(_NAMES, (line.slope, line.rest, line.above, below), strict=True)
        )

    def plane(self, expr: Expr) -> tuple[PlaneOf, Limited] | None:
        """Return the plane of an expression that requantizes a sum, adds a zero point and clamps, or None."""
        call, limited = self.limited(expr)
        if call is None or limited is None:
            return None
        _, multiplier, exponent = call.args
        if not isinstance(multiplier, ir.Const) or not isinstance(exponent, ir.Const):
            return None
        found: list[tuple[Expr, Var]] = []
        total = self._of_operands(call.args[0], found)
        if total is None or len(found) != 2:
            return None
        ends = [self.ranges.interval(operand, 2) for operand, _ in found]
        call_of_total = ir.Call(call.name, (total, multiplier, exponent), call.dtype)
        scale = float(multiplier.value) * 2.0 ** (-32 - int(exponent.value))
        plane = _tried(call_of_total, scale, limited, [(var, end) for (_, var), end in zip(found, ends, strict=True)])
        return None if plane is None else (PlaneOf(call, (found[0][0], found[1][0]), plane), limited)

    def _of_operands(self, expr: Expr, found: list[tuple[Expr, Var]]) -> Expr | None:
        """Return an expression with variables for its operands if these have few values, else None."""
        if self._is_operand(expr):
            known = next((var for operand, var in found if same_expr(operand, expr)), None)
            if known is None:
                known = Var("abc"[min(len(found), 2)], expr.dtype)
                found.append((expr, known))
            return known
        scales = isinstance(expr, ir.Call) and expr.name in ("requantize_down", "requantize_double")
        adds = isinstance(expr, ir.Binary) and expr.op in _ARITHMETIC and expr.dtype == "int32"
        if not (scales or adds or isinstance(expr, (ir.Cast, ir.Const))):
            return None
        parts = [self._of_operands(part, found) for part in children(expr)]
        if any(part is None for part in parts) or len(found) > 2:
            return None
        remaining = iter(parts)
        return rebuilt(expr, lambda part: next(remaining) or part)

    def _is_operand(self, expr: Expr) -> bool:
        """Tell whether an expression is a byte that is loaded, named or clamped."""
        if isinstance(expr, ir.Const):
            return False
        ends = self.ranges.interval(expr, 2)
        few = ends.high - ends.low < _MOST_VALUES
        is_limited = isinstance(expr, ir.Binary) and expr.op in ("min", "max")
        is_byte = isinstance(expr, (ir.Load, Var)) and dtypes.element(expr.dtype) in ("int8", "uint8", "int32")
        return few and (is_limited or is_byte or (isinstance(expr, ir.Cast) and expr.dtype in ("int8", "uint8")))


def _tried(call: ir.Call, scale: float, limited: Limited, operands: Sequence[tuple[Var, Interval]]) -> Plane | None:
    """Return the plane of a requantized sum of two operands, verified for all pairs of values, or None."""
    a, b = (np.arange(ends.low, ends.high + 1, dtype=np.int32) for _, ends in operands)
    grids = np.meshgrid(a, b, indexing="ij")
    env = {var: grid.astype(dtypes.to_numpy(var.dtype)) for (var, _), grid in zip(operands, grids, strict=True)}
    real = evaluate_expr(call.args[0], env, {}).astype(np.float64) * scale + limited.zero_point
    exact = evaluate_expr(call, env, {}).astype(np.int64) + limited.zero_point
    return find_plane(exact, real, a, b, (limited.low, limited.high))


_NARROW = ("int8", "uint8", "int16", "uint16")
_ANY_WIDTH = frozenset({"min", "max"})  # narrow operands give the same results as int32
_OPERATORS = _ANY_WIDTH | {"add", "sub", "mul"}
_ONE_ROUNDING = frozenset({"requantize_single", "requantize_away"})  # four at once if they shift far to the right


@dataclass(frozen=True)
class VectorForms:
    """The vectors of a machine, and its operations on them."""

    lanes: int
    calls: frozenset[str]  # intrinsics
    least: frozenset[str] = frozenset()  # loops must contain one of these to be worth vectors, if any are listed
    floats: bool = False  # float32 values that are integers become int32
    lines: bool = False  # clamped results may be `requantize_line` or `whole_of_plane`
    shorter: VectorForms | None = None  # forms with fewer lanes for the remainder of a loop


QUARTET = VectorForms(
    4, frozenset({"requantize_down", "requantize_double", *(f"{name}_down" for name in _ONE_ROUNDING)})
)
"""Vectors of 16 bytes."""
_DOWN = frozenset({"requantize_down"})
_EIGHT = VectorForms(8, _DOWN, _DOWN, floats=True, lines=True)
WIDE = {
    16: VectorForms(16, _DOWN, _DOWN, floats=True, lines=True, shorter=_EIGHT),
    8: VectorForms(16, _DOWN, _DOWN, floats=True),
}
"""Vectors of hosts, whose compilers vectorize other loops better, by the number of int32 per register.

Instructions that round down in float32 require registers of sixteen. Vectors of templates always have sixteen lanes.
"""


class _NoVectorsError(Exception):
    """Raised for a loop without a vector form; the loop is kept."""


def vectorize(stmt: Stmt, forms: VectorForms, tables: Context | None = None) -> Stmt:
    """Return `stmt` with its vectorized loops replaced by vectors if they have such a form.

    `tables`: constants, for forms that depend on their values.
    """
    if isinstance(stmt, For):
        if stmt.kind == "vectorized":
            parts = _loop(stmt, forms, tables)
            return stmt if parts is None else tb.seq(parts)
        return _nest(stmt, forms, tables) or replace(stmt, body=vectorize(stmt.body, forms, tables))
    if isinstance(stmt, (ir.Launch, ir.Parallel)):
        return stmt
    return rebuilt_stmt(stmt, lambda item: vectorize(item, forms, tables))


def _nest(outer: For, forms: VectorForms, tables: Context | None) -> Stmt | None:
    """Return vector loops outside the loops around them, so that constants are loaded once; None to keep the nest."""
    loops: list[For] = []
    stmt: Stmt = outer
    while isinstance(stmt, For) and stmt.kind == "serial" and stmt.step == 1 and isinstance(stmt.extent, ir.Const):
        loops.append(stmt)
        stmt = only(stmt.body)
    if tables is None or not loops or not isinstance(stmt, For) or stmt.kind != "vectorized":
        return None
    proof = Independence(outer)
    parts = _loop(stmt, forms, tables) if all(map(proof.holds, (*loops, stmt))) else None
    if parts is None:
        return None
    return tb.seq([
        replace(part, body=_around(loops, part.body))
        if isinstance(part, For) and part.kind == "rolled"
        else _around(loops, part)
        for part in parts
    ])  # fmt: skip


def _around(loops: Sequence[For], body: Stmt) -> Stmt:
    """Return a copy of a body in loops like these, with new variables."""
    own = {loop.var: Var(loop.var.name) for loop in loops}
    result = with_values(body, own)
    for loop in reversed(loops):
        result = For(own[loop.var], loop.extent, result, loop.kind)
    return result


def _loop(loop: For, forms: VectorForms, tables: Context | None) -> list[Stmt] | None:
    """Return the vectors and the remainder that replace a loop, or None if it has no vector form."""
    if loop.step != 1 or not isinstance(loop.extent, ir.Const):
        return None
    if forms.least and not any(_is_call_of(node, forms.least) for node in nodes(loop.body)):
        return None
    parts: list[Stmt] = []
    done, extent = 0, int(loop.extent.value)
    shorter: VectorForms | None = forms
    while shorter is not None:
        count = (extent - done) // shorter.lanes * shorter.lanes
        if count:
            part = loop if done == 0 else _rest(loop, done, count)
            try:
                body = _Vectorizer(part, shorter, tables).run()
            except _NoVectorsError:
                return None
            one = count == shorter.lanes
            parts.append(with_values(body, {part.var: tb.const(0)}) if one else
                         For(part.var, tb.const(count), body, "rolled", shorter.lanes))  # fmt: skip
            done += count
        shorter = shorter.shorter
    if not parts:
        return None
    return parts if done == extent else [*parts, _rest(loop, done, extent - done)]


def _rest(loop: For, done: int, count: int) -> For:
    """Return the loop over the iterations after the first `done` ones."""
    rest = Var(loop.var.name)
    return For(rest, tb.const(count), with_values(loop.body, {loop.var: rest + done}), "vectorized")


def _is_call_of(expr: Expr, names: frozenset[str]) -> bool:
    return isinstance(expr, ir.Call) and expr.name in names


class _Vectorizer:
    """Rewriter of the body of one loop."""

    def __init__(self, loop: For, forms: VectorForms, tables: Context | None) -> None:
        self._loop, self._forms, self._dtype = loop, forms, f"int32x{forms.lanes}"
        self._lines = LineFinder(tables) if tables is not None and forms.lines else None
        self._ranges = self._lines.ranges if self._lines else Ranges()
        self._ranges.enter_loop(loop)
        self._varying: set[int] = {id(loop.var)}  # variables that differ between iterations
        self._vectors: dict[int, Var] = {}  # vectors that replace variables

    def run(self) -> Stmt:
        return self._stmt(with_single_uses(self._loop.body) if self._lines else self._loop.body)

    def _stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, ir.Seq) and len(stmt.stmts) == 1:
            return self._stmt(stmt.stmts[0])
        if isinstance(stmt, ir.Let):
            return self._let(stmt)
        if isinstance(stmt, ir.Store):
            return self._store(stmt)
        raise _NoVectorsError

    def _let(self, let: ir.Let) -> Stmt:
        self._ranges.enter_let(let)
        if not self._moves(let.value):
            return replace(let, body=self._stmt(let.body))
        value = self._vector(let.value)
        var = Var(let.var.name, self._dtype)
        self._vectors[id(let.var)] = var
        self._varying.add(id(let.var))
        return ir.Let(var, value, self._stmt(let.body))

    def _store(self, store: ir.Store) -> Stmt:
        self._require_row(store.buffer, store.indices)
        stored = (node for node in walk_expr(store.value) if isinstance(node, ir.Load) and node.buffer is store.buffer)
        if not all(all(map(same_expr, load.indices, store.indices)) for load in stored):
            raise _NoVectorsError
        value, dtype = self._vector(store.value), store.buffer.dtype
        narrow = value if dtype == "int32" else ir.Cast(value, dtypes.vector(dtype, self._forms.lanes))
        return replace(store, value=narrow)

    def _moves(self, expr: Expr) -> bool:
        return any(id(node) in self._varying for node in walk_expr(expr) if isinstance(node, Var))

    def _require_row(self, buffer: ir.Buffer, indices: tuple[Expr, ...], *also: str) -> None:
        """Require that iterations access consecutive elements."""
        if buffer.dtype not in (*_NARROW, "int32", *also) or any(map(self._moves, indices[:-1])):
            raise _NoVectorsError
        table = self._ranges.table
        terms = table.affine(indices[-1]).terms.items()
        varying = {number: step for number, step in terms if self._moves(table.exprs[number])}
        if varying != {table.number(self._loop.var): 1}:
            raise _NoVectorsError

    def _vector(self, expr: Expr) -> Expr:
        """Return the vector of the values of an integer expression of int32 or a narrower dtype."""
        if expr.dtype not in (*_NARROW, "int32"):
            raise _NoVectorsError
        if not self._moves(expr):
            return ir.Broadcast(tb.cast(expr, "int32"), self._dtype)
        if self._lines and (line := self._lines.line(expr)) is not None:
            return self._line(*line)
        if self._lines and (plane := self._lines.plane(expr)) is not None:
            return self._plane(*plane)
        if id(expr) in self._vectors:  # variables other than the loop's own
            return self._vectors[id(expr)]
        if isinstance(expr, ir.Load):
            self._require_row(expr.buffer, expr.indices)
            load = replace(expr, dtype=dtypes.vector(expr.dtype, self._forms.lanes))
            return load if expr.dtype == "int32" else ir.Cast(load, self._dtype)
        if isinstance(expr, ir.Binary):
            return self._binary(expr)
        if isinstance(expr, ir.Cast):
            return self._cast(expr)
        if isinstance(expr, ir.Call):
            return self._call(expr)
        raise _NoVectorsError

    def _binary(self, expr: ir.Binary) -> Expr:
        if expr.op not in (_OPERATORS if expr.dtype == "int32" else _ANY_WIDTH):
            raise _NoVectorsError
        return ir.Binary(expr.op, self._vector(expr.a), self._vector(expr.b), self._dtype)

    def _cast(self, expr: ir.Cast) -> Expr:
        if self._forms.floats and expr.dtype == "int32" and _is_call_of(expr.value, frozenset({"within"})):
            return self._whole(expr.value)
        if not self._ranges.is_within(expr.value, *dtypes.limits(expr.dtype)):
            raise _NoVectorsError
        return self._vector(expr.value)

    def _whole(self, expr: Expr) -> Expr:
        """Return as integers the floats in memory that have a known limit."""
        load, limit = expr.args if isinstance(expr, ir.Call) else (None, None)
        if not isinstance(load, ir.Load) or not isinstance(limit, ir.Const) or load.dtype != "float32":
            raise _NoVectorsError
        self._require_row(load.buffer, load.indices, "float32")
        dtype = dtypes.vector("float32", self._forms.lanes)
        return ir.Cast(ir.Call("within", (replace(load, dtype=dtype), limit), dtype), self._dtype)

    def _line(self, line: LineOf, limited: Limited) -> Expr:
        """Return a clamped requantization computed by a line."""
        floats = [self._float(part) for part in line.floats]
        args = (*map(self._vector, line.args), *floats)
        value = self._added(ir.Call("requantize_line", args, self._dtype), limited)
        return self._clamped(value, limited)

    def _plane(self, plane: PlaneOf, limited: Limited) -> Expr:
        """Return a clamped requantized sum computed by a plane."""
        numbers = (plane.plane.first, plane.plane.second, plane.plane.start)
        floats = [self._float(tb.const(number, "float32")) for number in numbers]
        exact = self._added(self._call(plane.call), limited)
        value = ir.Call("whole_of_plane", (exact, *map(self._vector, plane.operands), *floats), self._dtype)
        return self._clamped(value, limited)

    def _added(self, value: Expr, limited: Limited) -> Expr:
        return self._combined("add", value, limited.zero_point) if limited.zero_point else value

    def _clamped(self, value: Expr, limited: Limited) -> Expr:
        return self._combined("min", self._combined("max", value, limited.low), limited.high)

    def _combined(self, op: str, value: Expr, number: int) -> Expr:
        return ir.Binary(op, value, ir.Broadcast(tb.const(number), self._dtype), self._dtype)

    def _float(self, expr: Expr) -> Expr:
        dtype = dtypes.vector("float32", self._forms.lanes)
        return replace(expr, dtype=dtype) if isinstance(expr, ir.Load) else ir.Broadcast(expr, dtype)

    def _call(self, expr: ir.Call) -> Expr:
        name, args = expr.name, expr.args
        if name == "within" and self._lines:
            return self._vector(args[0])
        if name in _ONE_ROUNDING and isinstance(args[2], ir.Const) and args[2].value <= -2:
            name, args = f"{name}_down", (*args[:2], tb.const(-2 - int(args[2].value)))
        if name not in self._forms.calls:
            raise _NoVectorsError
        return ir.Call(name, tuple(map(self._vector, args)), self._dtype)
