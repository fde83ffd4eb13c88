"""Traversal of loop-level code, and a canonical text that equal functions share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.support.dims import Symbol
from mlfc.tir import ir
from mlfc.tir.ir import Buffer, Expr, PrimFunc, Stmt

# looked up for every node of every walk: tables are several times faster than chains of isinstance. Classes that are
# not in them have no operands, no statements below or no expressions.
_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    ir.Binary: attrgetter("a", "b"),
    ir.Select: attrgetter("condition", "then", "otherwise"),
    ir.Cast: lambda expr: (expr.value,),
    ir.Broadcast: lambda expr: (expr.value,),
    ir.Load: attrgetter("indices"),
    ir.Call: attrgetter("args"),
}
_BELOW: dict[type, Callable[[Any], tuple[Stmt, ...]]] = {
    ir.Seq: attrgetter("stmts"),
    ir.If: lambda stmt: (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise),
    **dict.fromkeys((ir.For, ir.Let, ir.Allocate, ir.Launch, ir.Parallel), lambda stmt: (stmt.body,)),
}
_OWN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    ir.For: lambda stmt: (stmt.extent, *(() if stmt.until is None else (stmt.until,)), *(stmt.part or ())),
    ir.Store: lambda stmt: (*stmt.indices, stmt.value),
    ir.If: lambda stmt: (stmt.condition,),
    ir.Let: lambda stmt: (stmt.value,),
    ir.Parallel: lambda stmt: (stmt.count,) if isinstance(stmt.work, float) else (stmt.count, stmt.work),
    ir.External: lambda stmt: tuple(value for _, value in stmt.extents),
    **dict.fromkeys((ir.Prefetch, ir.Require), lambda stmt: (stmt.offset,)),
}


def _none(_: object) -> tuple[()]:
    return ()


# fields that distinguish expressions of a class, in addition to their dtypes and operands
_LABELS: dict[type, str] = {ir.Binary: "op", ir.Call: "name", ir.Load: "buffer", ir.Const: "value"}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct operands of an expression."""
    return _CHILDREN.get(type(expr), _none)(expr)


def rebuilt(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with `change` applied to its direct operands."""
    if isinstance(expr, ir.Binary):
        return ir.Binary(expr.op, change(expr.a), change(expr.b), expr.dtype)
    if isinstance(expr, ir.Select):
        return ir.Select(change(expr.condition), change(expr.then), change(expr.otherwise), expr.dtype)
    if isinstance(expr, (ir.Cast, ir.Broadcast)):
        return type(expr)(change(expr.value), expr.dtype)
    if isinstance(expr, ir.Load):
        return ir.Load(expr.buffer, tuple(map(change, expr.indices)), expr.dtype)
    if isinstance(expr, ir.Call):
        return ir.Call(expr.name, tuple(map(change, expr.args)), expr.dtype)
    return expr


def _same(expr: Expr) -> Expr:
    return expr


def rebuilt_stmt(stmt: Stmt, change: Callable[[Stmt], Stmt], expr: Callable[[Expr], Expr] = _same) -> Stmt:
    """Return the statement with `change` applied to those directly below it, after `expr` to its own expressions."""
    if isinstance(stmt, ir.Seq):
        return ir.Seq(tuple(map(change, stmt.stmts)))
    if isinstance(stmt, ir.For):
        until = None if stmt.until is None else expr(stmt.until)
        part = None if stmt.part is None else (expr(stmt.part[0]), expr(stmt.part[1]))
        extent = expr(stmt.extent)
        return ir.For(stmt.var, extent, change(stmt.body), stmt.kind, stmt.step, until, stmt.fresh, part)
    if isinstance(stmt, ir.Let):
        return ir.Let(stmt.var, expr(stmt.value), change(stmt.body), stmt.carried, stmt.fresh)
    if isinstance(stmt, ir.Store):
        return ir.Store(stmt.buffer, tuple(map(expr, stmt.indices)), expr(stmt.value))
    if isinstance(stmt, ir.Prefetch):
        return replace(stmt, offset=expr(stmt.offset))
    if isinstance(stmt, ir.If):
        condition, then = expr(stmt.condition), change(stmt.then)
        return ir.If(condition, then, None if stmt.otherwise is None else change(stmt.otherwise))
    if isinstance(stmt, ir.Parallel):
        work = stmt.work if isinstance(stmt.work, float) else expr(stmt.work)
        return replace(stmt, count=expr(stmt.count), work=work, body=change(stmt.body))
    if isinstance(stmt, ir.External):
        return replace(stmt, extents=tuple((name, expr(value)) for name, value in stmt.extents))
    return replace(stmt, body=change(stmt.body)) if isinstance(stmt, (ir.Allocate, ir.Launch)) else stmt


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it."""
    stack, find = [expr], _CHILDREN.get
    while stack:
        node = stack.pop()
        yield node
        if (operands := find(type(node))) is not None:
            stack.extend(operands(node)[::-1])


def is_small(expr: Expr, limit: int = 16) -> bool:
    """Tell whether an expression, counted as a tree, has at most `limit` nodes and no calls."""
    return all(count < limit and not isinstance(node, ir.Call) for count, node in enumerate(walk_expr(expr)))


def only(stmt: Stmt) -> Stmt:
    """Return the statement in a sequence of one, else the statement itself."""
    return stmt.stmts[0] if isinstance(stmt, ir.Seq) and len(stmt.stmts) == 1 else stmt


def inside_lets(stmt: Stmt) -> tuple[list[ir.Let], Stmt]:
    """Return the bindings around a statement, the outermost first, and the statement."""
    lets: list[ir.Let] = []
    stmt = only(stmt)
    while isinstance(stmt, ir.Let):
        lets.append(stmt)
        stmt = only(stmt.body)
    return lets, stmt


def below(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements directly below a statement, in program order."""
    return _BELOW.get(type(stmt), _none)(stmt)


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield the statement and every statement below it, in program order."""
    stack, find = [stmt], _BELOW.get
    while stack:
        item = stack.pop()
        yield item
        if (inner := find(type(item))) is not None:
            stack.extend(inner(item)[::-1])


def own_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions of the statement itself, without those of statements below it."""
    return _OWN.get(type(stmt), _none)(stmt)


def own_nodes(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions of the statement itself, each followed by everything below it; they are kept in it."""
    known: tuple[Expr, ...] | None = vars(stmt).get("_nodes")
    if known is None:
        known = vars(stmt)["_nodes"] = tuple(chain.from_iterable(map(walk_expr, own_exprs(stmt))))
    return known


def nodes(stmt: Stmt) -> Iterator[Expr]:
    """Yield the expressions of the statement and of every statement below it, in program order."""
    return chain.from_iterable(map(own_nodes, walk(stmt)))


def loads(stmt: Stmt) -> Iterator[ir.Load]:
    """Yield the loads of the statement and of every statement below it."""
    return (node for node in nodes(stmt) if isinstance(node, ir.Load))


def mentions(prim: PrimFunc, dtype: str) -> bool:
    """Tell whether a function has a buffer or computes a value of a dtype."""
    if any(dtypes.element(buffer.dtype) == dtype for buffer in (*prim.params, *prim.scratch)):
        return True
    return any(dtypes.element(expr.dtype) == dtype for expr in nodes(prim.body))


class _CanonicalText:
    """Text of a function with variables and buffers numbered by first use, so that names do not matter."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def _number(self, node: object) -> int:
        return self._numbers.setdefault(id(node), len(self._numbers))

    def buffer(self, buffer: Buffer) -> str:
        return f"b{self._number(buffer)}"

    def symbol(self, symbol: Symbol) -> str:
        return f"symbol {symbol.name}"

    def declaration(self, buffer: Buffer) -> str:
        return f"{self.buffer(buffer)}:{buffer.holds or buffer.dtype}{list(buffer.shape)}{buffer.scope}"

    def expr(self, node: Expr) -> str:
        if isinstance(node, ir.Var):
            return self.symbol(node.symbol) if node.symbol is not None else f"v{self._number(node)}"
        if isinstance(node, ir.Const):
            return f"{node.value!r}:{node.dtype}"
        inner = ",".join(map(self.expr, children(node)))
        if isinstance(node, ir.Load):
            return f"{self.buffer(node.buffer)}[{inner}]:{node.dtype}"
        label = {ir.Binary: "op", ir.Call: "name"}.get(type(node))
        head = getattr(node, label) if label else type(node).__name__
        return f"{head}({inner}):{node.dtype}"

    def stmt(self, node: Stmt) -> str:
        exprs = ",".join(map(self.expr, own_exprs(node)))
        if isinstance(node, ir.Seq):
            return "".join(map(self.stmt, node.stmts))
        if isinstance(node, ir.Prefetch):
            return f"{type(node).__name__.lower()} {self.buffer(node.buffer)} {exprs};"
        if isinstance(node, ir.Comment):
            return ""
        if isinstance(node, ir.External):
            stored = [sha256(data).hexdigest() for data in (*node.objects, node.module or b"")]
            names = [name for name, _ in node.extents]
            return f"{node.generator}{{{node.text}}}{node.declarations}{stored}{names}{exprs}"
        if isinstance(node, ir.Barrier):
            return "barrier;"
        if isinstance(node, ir.Launch):
            variables = ",".join(self.expr(var) for var, _ in node.ranges)
            grid = ", ".join(map(str, node.grid))
            return f"launch ({grid}){node.block} {variables}{{{self.stmt(node.body)}}}"
        if isinstance(node, ir.Store):
            return f"{self.buffer(node.buffer)}<-{exprs}:{node.value.dtype};"
        if isinstance(node, ir.For):
            return f"for {self.expr(node.var)} {exprs} {node.kind} {node.step}{{{self.stmt(node.body)}}}"
        if isinstance(node, ir.Let):
            return f"let {self.expr(node.var)}={exprs};{self.stmt(node.body)}"
        if isinstance(node, ir.Allocate):
            return f"{self.declaration(node.buffer)};{self.stmt(node.body)}"
        if isinstance(node, ir.Parallel):
            raise InternalError("functions must be compared before they are parallelized")
        otherwise = self.stmt(node.otherwise) if node.otherwise is not None else ""
        return f"if {exprs}{{{self.stmt(node.then)}}}{{{otherwise}}}"


_signatures: WeakKeyDictionary[PrimFunc, str] = WeakKeyDictionary()


def signature(prim: PrimFunc) -> str:
    """Return a hash that is equal for functions that perform the same computation on arguments of the same types."""
    known = _signatures.get(prim)
    if known is None:
        known = _signatures[prim] = sha256(_canonical(prim).encode()).hexdigest()
    return known


def _canonical(prim: PrimFunc) -> str:
    spell = _CanonicalText()
    symbols = [f"{spell.symbol(symbol)}:{symbol.low}:{symbol.high}" for symbol in prim.symbols]
    declared = [spell.declaration(buffer) for buffer in (*prim.params, *prim.scratch)]
    counts = f"{len(prim.inputs)},{len(prim.constants)},{len(prim.scratch)}"
    variants = "".join(f";{level}:{signature(variant)}" for level, variant in prim.variants)
    return f"{counts};{';'.join([*symbols, *declared])};{prim.inplace};{spell.stmt(prim.body)}{variants}"


def same_expr(a: Expr, b: Expr) -> bool:
    """Tell whether two expressions are the same computation on the same variables and buffers."""
    if a is b:
        return True
    if type(a) is not type(b) or a.dtype != b.dtype or isinstance(a, ir.Var):
        return False
    label = _LABELS.get(type(a), "dtype")
    if getattr(a, label) != getattr(b, label):
        return False
    below_a, below_b = children(a), children(b)
    return len(below_a) == len(below_b) and all(map(same_expr, below_a, below_b))


def launches(prim: PrimFunc) -> tuple[ir.Launch, ...]:
    """Return the launches of a function in order; raise InternalError for other statements except comments."""
    stmts = prim.body.stmts if isinstance(prim.body, ir.Seq) else (prim.body,)
    found = tuple(stmt for stmt in stmts if not isinstance(stmt, ir.Comment))
    if not all(isinstance(stmt, ir.Launch) for stmt in found):
        raise InternalError("a statement is outside every launch", place=prim.name)
    return found  # type: ignore[return-value]  # checked just above
