"""C forms of vectors of sixteen int32: requantization, limits, and elements that are narrower in memory.

Every helper has a portable form beside AVX-512's that computes the same.
"""

from __future__ import annotations

from string import Template

from mlfc.codegen.c_types import scalar_type, short_name
from mlfc.codegen.lanes import NARROW, narrowed, widened
from mlfc.codegen.writer import pieces_beside
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import same_expr

_LANES, _FLOATS = "int32x16", "float32x16"
_PIECES = pieces_beside(__file__, "lanes.h")
_ABOVE = "requantize_line_above"
_CALLS: dict[str, tuple[str, ...]] = {
    "min": (), "max": (), "requantize_down": ("requantize_down",), "requantize_line": ("requantize_down",),
    _ABOVE: ("requantize_down",),
}  # fmt: skip
"""What has a form on such vectors, and the helpers that its portable form calls."""
_WHOLE = f"whole:{_LANES}"
_PUSHES, _BYTES = ("push_byte", "push_flipped"), "uint8x64"


def _helper(key: str) -> Helper | None:
    name, _, dtype = key.partition(":")
    if key in _PUSHES:
        return (), _PIECES[key]
    if key == _WHOLE or (name in _CALLS and dtype == _LANES):
        return _CALLS.get(name, ()), _PIECES[name]
    element = dtypes.element(dtype) if name in ("widen", "narrow", "saturate") else ""
    if element not in NARROW or dtypes.lanes(dtype) != dtypes.lanes(_LANES):
        return None
    bits = 8 * dtypes.nbytes(element)
    register = "_mm_%su_si128" if bits == 8 else "_mm256_%su_si256"
    values = {
        "kind": scalar_type(dtype), "short": short_name(dtype), "bits": str(bits),
        "letter": "u" if element.startswith("u") else "i", "load": register % "load", "store": register % "store",
    }  # fmt: skip
    return (), Template(_PIECES[name]).substitute(values)


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if isinstance(expr, ir.Call) and expr.name in _PUSHES:
        return f"{printer.need(expr.name)}({', '.join(map(printer.expr, expr.args))})"
    if expr.dtype != _LANES:
        return None
    if isinstance(expr, ir.Call) and expr.name in _CALLS:
        name, args = expr.name, expr.args
        if name == "requantize_line" and same_expr(*args[-2:]):  # numbers below zero are limited to zero
            name, args = _ABOVE, args[:-1]
        return f"{printer.need(f'{name}:{expr.dtype}')}({', '.join(map(printer.expr, args))})"
    if not isinstance(expr, ir.Cast):
        return None
    whole = expr.value
    if isinstance(whole, ir.Call) and whole.name == "within" and whole.dtype == _FLOATS:
        return f"{printer.need(_WHOLE)}({printer.expr(whole.args[0])})"
    load = widened(expr, _LANES)
    if load is None:
        return None
    return f"{printer.need(f'widen:{load.dtype}')}({printer.address(load.buffer, load.indices)})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    narrow = narrowed(stmt.value, _LANES)
    if narrow is None:
        return None
    key, wide = narrow
    return f"MLF_EACH(q) {printer.need(key)}({printer.address(stmt.buffer, stmt.indices)}, {printer.expr(wide)});"


def _vectors(key: str) -> set[str]:
    if key in _PUSHES:
        return {_BYTES, _LANES, "uint32x16"}
    return {_LANES, _FLOATS} if key == _WHOLE else {_LANES}


_INCLUDES = tuple(_PIECES["includes"].splitlines())
C_FORMS.add("avx512", CForm(_helper, _INCLUDES, _vectors, expression=_expression, store=_store))
