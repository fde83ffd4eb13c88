"""The C of ``dot4_u8s8``: sums over groups of four products of uint8 and int8, exact on every machine.

It is one instruction with VNNI or the int8 dot products of ARM. Other machines widen bytes to 16 bits and multiply them
in pairs, as their instruction that multiplies bytes saturates.
"""

from __future__ import annotations

from string import Template

from mlfc.codegen.c_types import part_type, short_name
from mlfc.codegen.writer import pieces_beside
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.visitor import nodes

_PREFIX = "dot4_u8s8x"

_SCALABLE = "sve"
_BODIES = pieces_beside(__file__, "sums.h")
_INCLUDES = tuple(_BODIES["includes"].splitlines())


def _takes_group(call: ir.Call) -> bool:
    """Return whether a call multiplies one group of four bytes, the same for all sums."""
    return call.name == "dot4_u8s8" and dtypes.lanes(call.args[1].dtype) == 4 < 4 * dtypes.lanes(call.dtype)


def _words(body: ir.Stmt) -> set[int]:
    """Return the ids of variables for groups of four bytes: in C, these are int32 bits instead of vectors."""
    return {
        id(node.args[1])
        for node in nodes(body)
        if isinstance(node, ir.Call) and _takes_group(node) and isinstance(node.args[1], ir.Var)
    }


def _sums_dtype(text: str) -> str:
    """Return the dtype of the sums; the factors are passed as lanes of the same dtype."""
    if ":" in text:
        return text.partition(":")[2]
    return f"int32x{text.removeprefix(_PREFIX)}"


def _helper(text: str) -> Helper | None:
    """Return the macro of a key: ``dot4_u8s8x16`` computes 16 sums, over all parts."""
    name, _, dtype = text.partition(":")
    if name == "spread":
        return (f"splat:{dtype}",), Template(_BODIES[name]).substitute(short=short_name(dtype))
    if not text.startswith(_PREFIX):
        return None
    size = 4 * int(text.removeprefix(_PREFIX))
    lines = ["#if !MLF_VECTORS", Template(_BODIES["scalars"]).substitute(name=text)]
    for form, body in _BODIES.items():
        width, _, condition = form.partition(" ")
        if condition and (width == _SCALABLE or size % int(width) == 0):
            parts = f"* __ARM_FEATURE_SVE_BITS == {8 * size}" if width == _SCALABLE else f"== {size // int(width)}"
            guard = f"{condition} && MLF_PARTS {parts}"
            lines += [f"#elif {guard}", _macro(text, body)]
    return (), "\n".join([*lines, "#else", _macro(text, _BODIES["anywhere"]), "#endif"])


def _macro(text: str, body: str) -> str:
    part = part_type(_sums_dtype(text))
    lines = [
        f"#define mlf_{text}(sum, a, b) __extension__({{",
        f"  {part} mlf_sum = (sum);",
        f"  const {part} mlf_a = ({part})(a), mlf_b = ({part})(b);",
        *body.replace("$part", part).splitlines(),
        "  mlf_sum; })",
    ]
    return " \\\n".join(lines)


def _expression(printer: CPrinter, expr: ir.Expr) -> str | None:
    if not isinstance(expr, ir.Call) or expr.name != "dot4_u8s8":
        return None
    total, unsigned, signed = expr.args
    lanes = dtypes.lanes(expr.dtype)
    if lanes == 1:
        raise InternalError("C has no 'dot4_u8s8' of one sum")
    name = printer.need(f"{_PREFIX}{lanes}")
    if _takes_group(expr):
        factor = f"{printer.need(f'spread:{expr.dtype}')}({printer.group(unsigned)})"
    else:
        factor = printer.expr(unsigned)
    return f"{name}({printer.expr(total)}, {factor}, {printer.expr(signed)})"


_FORM = CForm(
    _helper, _INCLUDES, lambda key: {_sums_dtype(key)}, is_portable=lambda _: True, expression=_expression, words=_words
)
C_FORMS.add("dot4", _FORM)
