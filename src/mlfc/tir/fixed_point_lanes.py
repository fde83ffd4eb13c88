"""Writing loops over elements as loops over vectors of int32.

Compilers do not find these vectors by themselves where the arithmetic is fixed-point. A ``vectorized`` loop that only
binds names and stores one element is rewritten if everything it computes has a form for int32: narrow integers are
widened where they are loaded and narrowed where they are stored, so every value is the same as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlfc.support import dtypes
from mlfc.tir import builder as tb
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.ir import Expr, For, Stmt, Var
from mlfc.tir.unroll import substitute
from mlfc.tir.visitor import own_exprs, same_expr, walk, walk_expr

_NARROW = ("int8", "uint8", "int16", "uint16")
_ANY_WIDTH = frozenset({"min", "max"})  # narrow operands give the same results as int32
_OPERATORS = _ANY_WIDTH | {"add", "sub", "mul"}
_ONE_ROUNDING = frozenset({"requantize_single", "requantize_away"})  # four at once where they shift far to the right


@dataclass(frozen=True)
class Forms:
    """The vectors of a machine, and what it has for them."""

    lanes: int
    calls: frozenset[str]  # intrinsics
    least: frozenset[str] = frozenset()  # only loops with one of these are worth vectors, if there are any
    floats: bool = False  # float32 that hold integers become int32


QUARTET = Forms(4, frozenset({"requantize_down", "requantize_double", *(f"{name}_down" for name in _ONE_ROUNDING)}))
"""Vectors of 16 bytes."""
_DOWN = frozenset({"requantize_down"})
WIDE = {16: Forms(16, _DOWN, _DOWN, floats=True)}
"""By lanes: vectors of hosts, whose compilers write other loops better."""


class _NoVectorsError(Exception):
    """A loop has no form in vectors; it stays as it is."""


def vectorize(stmt: Stmt, forms: Forms) -> Stmt:
    """Return `stmt` with those of its vectorized loops in vectors that have such a form."""
    if isinstance(stmt, For):
        if stmt.kind == "vectorized":
            return _loop(stmt, forms)
        return replace(stmt, body=vectorize(stmt.body, forms))
    if isinstance(stmt, ir.Seq):
        return ir.Seq(tuple(vectorize(item, forms) for item in stmt.stmts))
    if isinstance(stmt, (ir.Let, ir.Allocate)):
        return replace(stmt, body=vectorize(stmt.body, forms))
    if isinstance(stmt, ir.If):
        otherwise = None if stmt.otherwise is None else vectorize(stmt.otherwise, forms)
        return ir.If(stmt.condition, vectorize(stmt.then, forms), otherwise)
    return stmt


def _loop(loop: For, forms: Forms) -> Stmt:
    if loop.step != 1 or not isinstance(loop.extent, ir.Const) or loop.extent.value < forms.lanes:
        return loop
    if forms.least and not any(_is_call_of(node, forms.least) for node in _exprs(loop.body)):
        return loop
    try:
        body = _Vectorizer(loop, forms).run()
    except _NoVectorsError:
        return loop
    extent = int(loop.extent.value)
    whole = extent // forms.lanes * forms.lanes
    vectors: Stmt = For(loop.var, tb.const(whole), body, "rolled", forms.lanes)
    if whole == forms.lanes:
        vectors = _at(body, loop.var, tb.const(0))
    if whole == extent:
        return vectors
    rest = Var(loop.var.name)
    tail = For(rest, tb.const(extent - whole), _at(loop.body, loop.var, rest + whole), "vectorized")
    return ir.Seq((vectors, tail))


def _exprs(body: Stmt) -> Iterator[Expr]:
    return (node for stmt in walk(body) for expr in own_exprs(stmt) for node in walk_expr(expr))


def _is_call_of(expr: Expr, names: frozenset[str]) -> bool:
    return isinstance(expr, ir.Call) and expr.name in names


def _at(stmt: Stmt, var: Var, value: Expr) -> Stmt:
    """Return a copy of a body, with variables of its own, for one value of the loop's variable."""
    return _copied(stmt, {var: value})


def _copied(stmt: Stmt, env: dict[Var, Expr]) -> Stmt:
    if isinstance(stmt, ir.Seq):
        return ir.Seq(tuple(_copied(item, env) for item in stmt.stmts))
    if isinstance(stmt, ir.Let):
        var = Var(stmt.var.name, stmt.var.dtype)
        return ir.Let(var, substitute(stmt.value, env), _copied(stmt.body, {**env, stmt.var: var}))
    if isinstance(stmt, ir.Store):
        indices = tuple(substitute(index, env) for index in stmt.indices)
        return ir.Store(stmt.buffer, indices, substitute(stmt.value, env))
    return stmt


class _Vectorizer:
    """The rewriting of the body of one loop."""

    def __init__(self, loop: For, forms: Forms) -> None:
        self._loop, self._forms, self._dtype = loop, forms, f"int32x{forms.lanes}"
        self._ranges = Ranges()
        self._ranges.enter_loop(loop)
        self._varying: set[int] = {id(loop.var)}  # variables that differ between iterations
        self._vectors: dict[int, Var] = {}  # vectors that replace variables

    def run(self) -> Stmt:
        return self._stmt(self._loop.body)

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
        for node in walk_expr(store.value):
            stored = isinstance(node, ir.Load) and node.buffer is store.buffer
            if isinstance(node, ir.Load) and stored and not all(map(same_expr, node.indices, store.indices)):
                raise _NoVectorsError
        value = self._vector(store.value)
        dtype = store.buffer.dtype
        return replace(
            store, value=value if dtype == "int32" else ir.Cast(value, dtypes.vector(dtype, self._forms.lanes))
        )

    def _moves(self, expr: Expr) -> bool:
        return any(id(node) in self._varying for node in walk_expr(expr) if isinstance(node, Var))

    def _require_row(self, buffer: ir.Buffer, indices: tuple[Expr, ...], *also: str) -> None:
        """Require that iterations access one element after another."""
        if buffer.dtype not in (*_NARROW, "int32", *also) or any(map(self._moves, indices[:-1])):
            raise _NoVectorsError
        table = self._ranges.table
        varying = {
            number: step for number, step in table.affine(indices[-1]).terms.items() if self._moves(table.exprs[number])
        }
        if varying != {table.number(self._loop.var): 1}:
            raise _NoVectorsError

    def _vector(self, expr: Expr) -> Expr:
        """Return the vector of the values of an integer expression, which is int32 or narrower."""
        if expr.dtype not in (*_NARROW, "int32"):
            raise _NoVectorsError
        if not self._moves(expr):
            return ir.Broadcast(tb.cast(expr, "int32"), self._dtype)
        if isinstance(expr, Var):
            return self._variable(expr)
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

    def _variable(self, var: Var) -> Expr:
        if id(var) not in self._vectors:  # the loop's own, as a number
            raise _NoVectorsError
        return self._vectors[id(var)]

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
        """Return the integers that floats in memory are, whose limit is known."""
        load, limit = expr.args if isinstance(expr, ir.Call) else (None, None)
        if not isinstance(load, ir.Load) or not isinstance(limit, ir.Const) or load.dtype != "float32":
            raise _NoVectorsError
        self._require_row(load.buffer, load.indices, "float32")
        dtype = dtypes.vector("float32", self._forms.lanes)
        return ir.Cast(ir.Call("within", (replace(load, dtype=dtype), limit), dtype), self._dtype)

    def _call(self, expr: ir.Call) -> Expr:
        name, args = expr.name, expr.args
        if name in _ONE_ROUNDING and isinstance(args[2], ir.Const) and args[2].value <= -2:
            name, args = f"{name}_down", (*args[:2], tb.const(-2 - int(args[2].value)))
        if name not in self._forms.calls:
            raise _NoVectorsError
        return ir.Call(name, tuple(map(self._vector, args)), self._dtype)
