"""Check that host functions are well-formed, as the printers assume."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import InternalError
from mlfc.tir import host
from mlfc.tir.host import Expr, Function, Stmt, Type


def verify_host(function: Function) -> None:
    """Raise InternalError unless a host function is well-formed, and those of its file that it calls are.

    Names are declared once, before their use. Pointers and integers are not mixed without a cast; calls match the arity
    of their function. A const variable is not assigned. Every path through the function ends in a return, and no
    statement follows a return.
    """
    _Verifier(function).run()


class _Verifier:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._known = {parameter.name: parameter for parameter in function.parameters}

    def run(self) -> None:
        body = self._function.body or ()
        self._block(body)
        self._require(bool(body) and isinstance(body[-1], host.Return), "the function may end without a return")

    def _require(self, holds: bool, cause: str) -> None:
        if not holds:
            raise InternalError(cause, place=self._function.name)

    def _block(self, stmts: Sequence[Stmt]) -> None:
        outside = dict(self._known)
        for stmt in stmts:
            self._stmt(stmt)
        ends = [isinstance(stmt, host.Return) for stmt in stmts[:-1]]
        self._require(not any(ends), "a statement stands behind a return")
        self._known = outside

    def _stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, (host.Declare, host.Table)):
            self._declare(stmt.var)
            rows = stmt.rows if isinstance(stmt, host.Table) else (stmt.value,)
            for row in rows:
                for value in row if isinstance(row, tuple) else (row,):
                    if value is not None:
                        self._expr(value)
            if isinstance(stmt, host.Declare) and stmt.value is not None:
                self._fits(stmt.value, stmt.var.type, stmt.var.name)
        elif isinstance(stmt, host.Assign):
            self._expr(stmt.place)
            self._expr(stmt.value)
            self._require(not stmt.place.type.is_const, "a constant is assigned to")
            if not stmt.op:
                self._fits(stmt.value, stmt.place.type, "a variable")
        elif isinstance(stmt, host.Evaluate):
            self._expr(stmt.call)
        elif isinstance(stmt, host.Return):
            self._expr(stmt.value)
            self._fits(stmt.value, self._function.result, "the result")
        elif isinstance(stmt, host.Unused):
            self._expr(stmt.var)
        elif not isinstance(stmt, host.Comment):
            self._nested(stmt)

    def _nested(self, stmt: host.If | host.For | host.DoWhile) -> None:
        outside = dict(self._known)
        if isinstance(stmt, host.For):
            self._expr(stmt.start)
            self._fits(stmt.start, stmt.var.type, stmt.var.name)
            self._declare(stmt.var)
        self._expr(stmt.condition)
        self._require(stmt.condition.type == host.BOOL, "a condition is no comparison")
        self._block(stmt.body)
        self._known = outside

    def _declare(self, var: host.Name) -> None:
        self._require(var.name not in self._known, f"'{var.name}' is declared twice")
        self._known[var.name] = var

    def _expr(self, expr: Expr) -> None:
        for item in host.walk(expr):
            if isinstance(item, host.Name) and not isinstance(item, host.Global):
                self._require(self._known.get(item.name) is item, f"'{item.name}' is used where it is not declared")
            elif isinstance(item, host.Call):
                self._call(item)

    def _call(self, call: host.Call) -> None:
        function = call.function
        taken, given = len(function.parameters), len(call.arguments)
        self._require(taken == given, f"expected {taken} arguments of {function.name}, got {given}")
        for argument, parameter in zip(call.arguments, function.parameters, strict=True):
            self._fits(argument, parameter.type, f"an argument of {function.name}")
        if function.body is not None and function is not self._function:
            verify_host(function)

    def _fits(self, value: Expr, kind: Type, what: str) -> None:
        same = (value.type.to is None) == (kind.to is None) and bool(value.type.fields) == bool(kind.fields)
        self._require(same, f"expected {kind.declared()} for {what}, got {value.type.declared()}")
