"""Helper functions and vector types of printed code; a file gets only those that it uses.

Helpers avoid undefined behaviour and branches, so that compilers can vectorize the loops around them. A helper is named
by a key such as ``min:float32``. Intrinsics with a body are C functions; dialects print the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import frexp
from string import Template

from mlfc.codegen import vectors
from mlfc.codegen.c_expr import ATOM, OF_BITS, ExprPrinter, Requirements
from mlfc.codegen.c_types import GROUP, helper_name, mask_dtype, scalar_type, short_name, value_type
from mlfc.codegen.writer import PIECES, Writer
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.bounds import Ranges
from mlfc.tir.forms import C_FORMS
from mlfc.tir.intrinsics import INTRINSICS, IntrinsicBody
from mlfc.tir.ir import Expr, Var

_WIDTH = 110
_FEW = 16
_INT32_MAX = dtypes.limits("int32")[1]


# overflow wraps instead of being undefined
_WRAPPING = {"wrap_add": "+", "wrap_sub": "-", "wrap_mul": "*"}

_DIVISIONS = {
    "floordiv": "a / b - ((a % b != 0) & ((a % b < 0) != (b < 0)))",
    "floormod": "a % b + (((a % b != 0) & ((a % b < 0) != (b < 0))) ? b : 0)",
    "truncdiv": "a / b",
    "truncmod": "a % b",
}


class _BodyPrinter(ExprPrinter):
    """Prints the expressions of a body, with large literals as powers of two or in hexadecimal."""

    def _print(self, expr: Expr) -> tuple[str, int]:
        text = _bits(expr.value, expr.dtype) if isinstance(expr, ir.Const) else ""
        return (text, ATOM) if text else super()._print(expr)


def _bits(value: float, dtype: str) -> str:
    """Return a literal as a power of two or in hexadecimal; empty if decimal is better."""
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
def function_source(body: IntrinsicBody, guard: str = "", instruction: str = "") -> tuple[tuple[str, ...], str]:
    """Return the keys of the helpers that an intrinsic's function calls, and its definition.

    If the macro `guard` is not 0, the C expression `instruction` in the parameters' names replaces the body.
    """
    needs, ranges, writer = Requirements(), Ranges(), Writer()
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


def _know(ranges: Ranges, body: IntrinsicBody, var: Var) -> bool:
    """Add the range that the body declares for a variable; return whether it declares one."""
    if var in body.known:
        ranges.know(var, body.known[var])
    return var in body.known


def _value(printer: ExprPrinter, expr: Expr, room: int) -> str:
    """Return an expression; a select that is too long for a line has one line per arm."""
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


def _scalar_helper(name: str, dtype: str) -> str:
    kind, signed = scalar_type(dtype), not dtype.startswith("u")
    head = f"static inline {kind} {helper_name(f'{name}:{dtype}')}({kind} a, {kind} b)"
    if name in ("min", "max"):
        return f"{head} {{\n  return a {'<' if name == 'min' else '>'} b ? a : b;\n}}"
    if name in _WRAPPING:
        return f"{head} {{\n  return ({kind})((u{kind})a {_WRAPPING[name]} (u{kind})b);\n}}"
    if name == "integer_power":
        text = PIECES["integer_power:signed" if signed else "integer_power:unsigned"]
        return Template(text).substitute(kind=kind, unsigned=f"u{kind}", short=short_name(dtype))
    if name not in _DIVISIONS:
        raise InternalError(f"C has no helper {name}:{dtype}")
    guards = "  if (b == 0) {\n    return 0;\n  }\n"
    if signed:  # the one quotient that overflows is INT_MIN / -1
        minus = "0" if name.endswith("mod") else f"({kind})(0U - (u{kind})a)"
        guards += f"  if (b == -1) {{\n    return {minus};\n  }}\n"
    body = _DIVISIONS[name] if signed else _DIVISIONS[name.replace("floor", "trunc")]
    return f"{head} {{\n{guards}  return ({kind})({body});\n}}"


def helper_source(key: str) -> tuple[tuple[str, ...], str]:
    """Return the keys of the helpers that the helper `key` calls, and its text."""
    if key in (*OF_BITS, GROUP):
        return (), PIECES[key]
    for form in map(C_FORMS.get, C_FORMS):
        found = form.helper(key)
        if found is not None:
            return found
    if vectors.is_key(key):
        return (), vectors.macro(key)
    name, _, dtype = key.partition(":")
    if name in INTRINSICS and (body := INTRINSICS.get(name).body(dtype)):
        own = next((form for form in map(C_FORMS.get, C_FORMS) if key in form.instructions), None)
        return function_source(body) if own is None else function_source(body, own.guard, own.instructions[key])
    if not dtype:
        raise InternalError(f"C has no helper {key}")
    return (), _scalar_helper(name, dtype)


def render(keys: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """Return the definitions of the helpers `keys`, of their dependencies, and of vector types, including `kinds`."""
    ordered: list[str] = []

    def visit(key: str) -> None:
        if key not in ordered:
            for used in helper_source(key)[0]:
                visit(used)
            ordered.append(key)

    for key in sorted(set(keys)):
        visit(key)
    needed = set(kinds)
    for key in ordered:
        if vectors.is_key(key):
            dtype = key.partition(":")[2]
            needed |= {dtype, mask_dtype(dtype)}
    lines: list[str] = []
    is_portable = True
    for form in map(C_FORMS.get, C_FORMS):
        own = [key for key in ordered if key in form.instructions or form.helper(key) is not None]
        vectors_of_form = set().union(*map(form.vectors, own))
        if own:
            lines += ["#if MLF_VECTORS", *form.includes, "#endif"] if vectors_of_form else form.includes
        needed |= vectors_of_form
        is_portable = is_portable and all(map(form.is_portable, filter(form.vectors, own)))
    if needed:
        lines = [vectors.GNU, "", *lines, *vectors.declarations(needed, is_portable=is_portable)]
    for key in ordered:
        lines += ["", helper_source(key)[1]]
    return lines
