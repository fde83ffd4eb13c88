"""Printing of host functions as C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlfc.codegen.host.tvm import PACKED_PARAMETERS
from mlfc.codegen.writer import Writer, c_string, comment_text, packed_head
from mlfc.errors import InternalError
from mlfc.tir import host
from mlfc.tir.host import Expr, Function, Stmt, Type

WIDTH = 120
"""Line width of functions that are identical in all modules; lines of other functions grow with the model's names."""

_LOR, _LAND, _EQUAL, _LESS, _ADD, _MUL, _UNARY, _ATOM = range(2, 10)
_CHOICE = 1
_PRECEDENCE = {
    "||": _LOR, "&&": _LAND, "==": _EQUAL, "!=": _EQUAL, "<": _LESS, ">": _LESS, ">=": _LESS,
    "+": _ADD, "-": _ADD, "*": _MUL, "/": _MUL, "%": _MUL,
}  # fmt: skip
# markers in the text of a line: the column that continuation lines align to, and the points where it may break
_ALIGN, _BREAK = "\f", "\v"


def c_function(function: Function, width: int = 0) -> str:
    """Return the text of a function; with a width, break lines that exceed it where possible."""
    writer = Writer()
    if function.comment:
        writer.line(f"/* {function.comment} */")
    printer = _Printer(writer, width)
    with writer.block(printer.broken(f"{head(function)} {{").removesuffix(" {")):
        printer.block(function.body or ())
    return writer.text()


def head(function: Function, *, named: bool = True) -> str:
    """Return the head of a function, for a definition or (without parameter names) a prototype."""
    if function.parameters is PACKED_PARAMETERS:
        return packed_head(function.name)
    kinds = [item.type.declared(item.name if named else "") for item in function.parameters]
    static = "static " if function.is_static else ""
    parameters = f",{_BREAK} ".join(kinds) or "void"
    return f"{static}{function.result.declared(function.name)}({_ALIGN}{parameters})"


def prototype(function: Function) -> str:
    """Return the declaration of a function."""
    return plain(f"{head(function, named=False)};")


def struct_definition(struct: Type) -> str:
    """Return the definition of a struct."""
    writer = Writer()
    with writer.block(struct.name, "};"):
        writer.lines([f"{kind.declared(name)};" for name, kind in struct.fields])
    return writer.text()


def plain(text: str) -> str:
    """Return a line without its markers."""
    return text.replace(_ALIGN, "").replace(_BREAK, "")


def c_expression(expr: Expr) -> str:
    """Return the text of an expression."""
    return plain(_text(expr))


class _Printer:
    def __init__(self, writer: Writer, width: int) -> None:
        self._writer = writer
        self._width = width

    def block(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            self._stmt(stmt)

    def broken(self, text: str) -> str:
        """Return a line, broken if it is too long."""
        width = self._width - self._writer.column
        if not self._width or len(plain(text)) <= width:
            return plain(text)
        start = len(text.split(_ALIGN, maxsplit=1)[0])
        lines = [""]
        for part in text.replace(_ALIGN, "").split(_BREAK):
            if lines != [""] and len(lines[-1] + part) > width:
                lines.append(" " * start + part.lstrip())
            else:
                lines[-1] += part
        return "\n".join(lines)

    def _line(self, text: str) -> None:
        self._writer.line(self.broken(text))

    def _stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, host.Declare):
            kind, name = stmt.var.type, stmt.var.name
            if stmt.count:
                assert kind.to is not None
                self._line(f"{kind.to.declared(name)}[{stmt.count}];")
            else:
                value = "" if stmt.value is None else f" = {_text(stmt.value)}"
                self._line(f"{kind.declared(name)}{value};")
        elif isinstance(stmt, host.Table):
            self._table(stmt)
        elif isinstance(stmt, host.Assign):
            is_step = stmt.op and isinstance(stmt.value, host.Number) and stmt.value.value == 1
            place = _text(stmt.place)
            self._line(f"{stmt.op * 2}{place};" if is_step else f"{place} {stmt.op}= {_text(stmt.value)};")
        elif isinstance(stmt, host.Evaluate):
            self._line(f"{_text(stmt.call)};")
        elif isinstance(stmt, host.Return):
            self._line(f"return {_text(stmt.value)};")
        elif isinstance(stmt, host.Jump):
            self._line(f"goto {stmt.label.name};")
        elif isinstance(stmt, host.LabelPlace):
            self._writer.line(f"{stmt.label.name}:;")
        elif isinstance(stmt, host.Unused):
            self._line(f"(void){stmt.var.name};")
        elif isinstance(stmt, host.Comment):
            self._writer.line(f"/* {comment_text(stmt.text)} */")
        else:
            self._nested(stmt)

    def _nested(self, stmt: Stmt) -> None:
        if isinstance(stmt, host.If):
            opening = f"if ({_text(stmt.condition)})"
        elif isinstance(stmt, host.For):
            step = "++" if stmt.step > 0 else "--"
            start = f"{stmt.var.type.declared(stmt.var.name)} = {c_expression(stmt.start)}"
            opening = f"for ({start}; {c_expression(stmt.condition)}; {step}{stmt.var.name})"
        elif isinstance(stmt, host.DoWhile):
            opening = "do"
        else:
            raise InternalError(f"C has no form of {type(stmt).__name__}")
        closing = f"}} while ({c_expression(stmt.condition)});" if isinstance(stmt, host.DoWhile) else "}"
        with self._writer.block(self.broken(f"{opening} {{").removesuffix(" {"), closing):
            self.block(stmt.body)

    def _table(self, stmt: host.Table) -> None:
        kind = stmt.var.type.to
        assert kind is not None
        const = "const " if stmt.rows else ""
        declared = f"static {const}{kind.declared(stmt.var.name)}[{stmt.count}]"
        if not stmt.rows:
            self._line(f"{declared};")
        elif isinstance(stmt.rows[0], tuple):
            with self._writer.block(f"{declared} =", "};"):
                rows = (", ".join(map(c_expression, row)) for row in stmt.rows if isinstance(row, tuple))
                self._writer.lines([f"{{{row}}}," for row in rows])
        else:
            numbers = ", ".join(c_expression(row) for row in stmt.rows if isinstance(row, Expr))
            self._line(f"{declared} = {{{numbers}}};")


def _text(expr: Expr) -> str:
    return _print(expr)[0]


def _print(expr: Expr) -> tuple[str, int]:
    """Return an expression and the precedence of its outermost operator."""
    if isinstance(expr, host.Name):
        return expr.name, _ATOM
    if isinstance(expr, host.Number):
        return expr.text or str(expr.value), _ATOM if expr.value >= 0 else _UNARY
    if isinstance(expr, host.Text):
        return c_string(expr.text, len(expr.text)), _ATOM
    if isinstance(expr, host.Field):
        return f"{_within(expr.of, _ATOM)}{'.' if expr.of.type.to is None else '->'}{expr.name}", _ATOM
    if isinstance(expr, host.Element):
        is_first = isinstance(expr.index, host.Number) and expr.index.value == 0
        if expr.type.bits and is_first and isinstance(expr.of, host.Name) and not expr.of.is_array:
            return f"*{_within(expr.of, _UNARY)}", _UNARY
        return f"{_within(expr.of, _ATOM)}[{c_expression(expr.index)}]", _ATOM
    if isinstance(expr, host.Address):
        return f"&{_within(expr.of, _UNARY)}", _UNARY
    if isinstance(expr, host.Cast):
        return f"({expr.type.declared()}){_within(expr.of, _UNARY)}", _UNARY
    if isinstance(expr, host.Call):
        arguments = f",{_BREAK} ".join(map(c_expression, expr.arguments))
        called = expr.function.name if expr.pointer is None else _within(expr.pointer, _ATOM)
        return f"{called}({_ALIGN}{arguments})", _ATOM
    if isinstance(expr, host.Choice):
        parts = (expr.condition, expr.then, expr.otherwise)
        condition, then, otherwise = (_within(part, _CHOICE + 1) for part in parts)
        return f"{condition} ? {then} : {otherwise}", _CHOICE
    if isinstance(expr, host.Operation):
        level = _PRECEDENCE[expr.op]
        if expr.op in host.CONNECTIVES:
            return _ALIGN + f" {expr.op}{_BREAK} ".join(_connected(expr, expr.op)), level
        # a call may break even if its result is compared
        left = _text(expr.a) if isinstance(expr.a, host.Call) else _within(expr.a, level)
        return f"{left} {expr.op} {_within(expr.b, level + 1)}", level
    raise InternalError(f"C has no form of {type(expr).__name__}")


def _connected(expr: Expr, op: str) -> Iterator[str]:
    """Yield the operands of a chain of one connective; compilers warn of unparenthesized other connectives in it."""
    if isinstance(expr, host.Operation) and expr.op == op:
        yield from _connected(expr.a, op)
        yield from _connected(expr.b, op)
    elif isinstance(expr, host.Operation) and expr.op in host.CONNECTIVES:
        yield f"({c_expression(expr)})"
    else:
        yield _within(expr, _LAND + 1)


def _within(expr: Expr, level: int) -> str:
    text, own = _print(expr)
    return plain(text) if own >= level else f"({plain(text)})"
