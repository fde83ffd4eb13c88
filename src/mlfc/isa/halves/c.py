"""C forms of loads and stores of sixteen float16, converted to float32 in registers, with portable alternatives."""

from __future__ import annotations

from mlfc.codegen.writer import pieces_beside
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr

_PIECES = pieces_beside(__file__, "lanes.h")
_HALVES, _FLOATS = "float16x16", "float32x16"
_HELPERS: dict[str, Helper] = {
    "widen_halves": (("float16_to_float",), _PIECES["widen_halves"]),
    "narrow_halves": (("float16_from_float",), _PIECES["narrow_halves"]),
}


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    load = expr.value if isinstance(expr, ir.Cast) and expr.dtype == _FLOATS else None
    if not isinstance(load, ir.Load) or load.dtype != _HALVES:
        return None
    return f"{printer.need('widen_halves')}({printer.address(load.buffer, load.indices)})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    value = stmt.value
    if not isinstance(value, ir.Cast) or (value.dtype, value.value.dtype) != (_HALVES, _FLOATS):
        return None
    place, wide = printer.address(stmt.buffer, stmt.indices), printer.expr(value.value)
    return f"MLF_EACH(q) {printer.need('narrow_halves')}({place}, {wide});"


_VECTORS = {"uint16x16", _FLOATS, "uint32x16"}
_INCLUDES = tuple(_PIECES["includes"].splitlines())
_FORM = CForm(
    _HELPERS.get, _INCLUDES, lambda _: _VECTORS, is_portable=lambda _: True, expression=_expression, store=_store
)
C_FORMS.add("halves", _FORM)
