"""Intrinsics with a body as C functions; dialects print the same text."""

from __future__ import annotations

from functools import cache
from math import frexp

from mlfc.codegen.c_expr import ATOM, ExprPrinter, Needs
from mlfc.codegen.c_types import helper_name, value_type
from mlfc.codegen.writer import Writer
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.intrinsics import Body
from mlfc.tir.ir import Expr, Var

_WIDTH = 110
_FEW = 16
_INT32_MAX = dtypes.limits("int32")[1]


class _BodyPrinter(ExprPrinter):
    """Prints the expressions of a body: large literals as readers of bits write them."""

    def _print(self, expr: Expr) -> tuple[str, int]:
        text = _bits(expr.value, expr.dtype) if isinstance(expr, ir.Const) else ""
        return (text, ATOM) if text else super()._print(expr)


def _bits(value: float, dtype: str) -> str:
    """Return a literal as a power of two or in hexadecimal digits; nothing where decimal ones are better."""
    if not isinstance(value, int):
        mantissa, exponent = frexp(value)
        text = f"{'-' if value < 0 else ''}0x1p{exponent - 1}{'f' if dtype == 'float32' else ''}"
        return "" if abs(mantissa) != 0.5 or abs(exponent) < _FEW else text if value > 0 else f"({text})"
    if value == _INT32_MAX and dtype != "uint32":
        return "INT32_MAX"
    if value <= 0xFF:
        return ""
    if dtypes.bits(dtype) == 64 and value.bit_count() == 1:
        return f"({dtype.upper()}_C(1) << {value.bit_length() - 1})"
    return f"0x{value:x}U" if dtype == "uint32" else ""


@cache
def function_source(body: Body, guard: str = "", instruction: str = "") -> tuple[tuple[str, ...], str]:
    """Return the keys of the helpers that an intrinsic's function calls, and its definition.

    Parameters
    ----------
    body : Body
    guard : str
        The macro that is not 0 where `instruction` takes the place of the body; empty for nothing of the kind.
    instruction : str
        A C expression in the parameters' names.
    """
    needs, ranges, writer = Needs(), Ranges(), Writer()
    printer = _BodyPrinter(lambda var: var.name, needs, ranges)
    params = ", ".join(f"{value_type(param.dtype)} {param.name}" for param in body.params)
    writer.line(f"/* {body.doc} */")
    with writer.block(f"static inline {value_type(body.result.dtype)} {helper_name(body.key)}({params})"):
        for param in body.params:
            _know(ranges, body, param)
        for step in body.steps:
            if step.note:
                writer.line(f"/* {step.note} */")
            head = f"const {value_type(step.var.dtype)} {step.var.name} ="
            writer.line(f"{head}{_value(printer, step.value, _WIDTH - len(head))};")
            if not _know(ranges, body, step.var):
                ranges.enter_let(ir.Let(step.var, step.value, ir.Seq(())))
        writer.line(f"return{_value(printer, body.result, _WIDTH)};")
    text = writer.text().rstrip("\n")
    if guard:
        head, brace, rest = text.partition("{\n")
        text = f"{head}{brace}#if {guard}\n  return {instruction};\n#else\n{rest.removesuffix('}')}#endif\n}}"
    return tuple(sorted(needs.helpers)), text


def _know(ranges: Ranges, body: Body, var: Var) -> bool:
    """Learn what the body says of a variable; tell whether it says anything."""
    if var in body.known:
        ranges.know(var, body.known[var])
    return var in body.known


def _value(printer: ExprPrinter, expr: Expr, room: int) -> str:
    """Return an expression, a choice that is too long for a line with one line for each arm."""
    text = printer.expr(expr)
    if len(text) <= room or not isinstance(expr, ir.Select):
        return f" {text}"
    lines = []
    rest: Expr = expr
    while isinstance(rest, ir.Select):
        lines.append(f"{printer.expr(rest.condition, 2)} ? {printer.expr(rest.then, 2)}")
        rest = rest.otherwise
    lines.append(printer.expr(rest))
    return "\n" + "\n".join(f"    {': ' if number else ''}{line}" for number, line in enumerate(lines))
