"""C forms of vectors of sixteen and eight int32: requantization, limits, and conversion of narrow elements in memory.

Every helper has a portable form besides those for AVX-512 and AVX2, with the same result.
"""

from __future__ import annotations

from string import Template

from mlfc.codegen.c_types import scalar_type, short_name
from mlfc.codegen.vectors import NARROW, narrowed, widened
from mlfc.codegen.writer import pieces_beside
from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import same_expr

_KINDS = {"int32x16", "int32x8"}
_PIECES = pieces_beside(__file__, "lanes.h")
_ABOVE, _PLANE = "requantize_line_above", "whole_of_plane"
_CALLS: dict[str, tuple[str, ...]] = {
    "min": (), "max": (), "requantize_down": ("requantize_down",), "requantize_line": ("requantize_down:$", "line"),
    _ABOVE: ("requantize_down:$", "line"), _PLANE: ("line",), "whole": (),
}  # fmt: skip
"""Operations with a form on these vectors, and the helpers that they call; ``$`` stands for the vectors' dtype."""
_PUSHES, _BYTES = ("push_byte", "push_flipped"), "uint8x64"


def _helper(key: str) -> Helper | None:
    name, _, dtype = key.partition(":")
    if key in _PUSHES or key == "line":
        return (), _PIECES[key]
    lanes = str(dtypes.lanes(dtype)) if dtype else ""
    if name in _CALLS and dtype in _KINDS:
        return tuple(call.replace("$", dtype) for call in _CALLS[name]), Template(_PIECES[name]).substitute(n=lanes)
    element = dtypes.element(dtype) if name in ("widen", "narrow", "saturate") else ""
    if element not in NARROW or f"int32x{lanes}" not in _KINDS:
        return None
    return (), Template(_PIECES[name]).substitute(_of_memory(dtype))


def _of_memory(dtype: str) -> dict[str, str]:
    """Return the substitutions for the pieces that load or store narrow elements."""
    element = dtypes.element(dtype)
    is_byte = dtypes.nbytes(element) == 1
    register = "_mm_%su_si128" if is_byte else "_mm256_%su_si256"
    half = "_mm_%sl_epi64" if is_byte else "_mm_%su_si128"
    positions = (0, 4, 8, 12) if is_byte else (0, 1, 4, 5, 8, 9, 12, 13)
    lowest = ", ".join(map(str, (*positions, *[-1] * (16 - len(positions)))))
    return {
        "n": str(dtypes.lanes(dtype)), "kind": scalar_type(dtype), "short": short_name(dtype),
        "bits": str(8 * dtypes.nbytes(element)), "letter": "u" if element.startswith("u") else "i",
        "load": register % "load", "store": register % "store",
        "load_half": half % "load", "store_half": half % "store",
        "lowest": f"_mm_setr_epi8({lowest})", "joined": f"_mm_unpacklo_epi{32 if is_byte else 64}",
    }  # fmt: skip


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if isinstance(expr, ir.Call) and expr.name in _PUSHES:
        return f"{printer.need(expr.name)}({', '.join(map(printer.expr, expr.args))})"
    if expr.dtype not in _KINDS:
        return None
    if isinstance(expr, ir.Call) and expr.name in _CALLS:
        name, args = expr.name, expr.args
        if name == "requantize_line" and same_expr(*args[-2:]):  # negative numbers are clamped to zero
            name, args = _ABOVE, args[:-1]
        return f"{printer.need(f'{name}:{expr.dtype}')}({', '.join(map(printer.expr, args))})"
    if not isinstance(expr, ir.Cast):
        return None
    whole = expr.value
    if isinstance(whole, ir.Call) and whole.name == "within" and dtypes.is_float(whole.dtype):
        return f"{printer.need(f'whole:{expr.dtype}')}({printer.expr(whole.args[0])})"
    load = widened(expr, expr.dtype)
    if load is None:
        return None
    return f"{printer.need(f'widen:{load.dtype}')}({printer.address(load.buffer, load.indices)})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    narrow = narrowed(stmt.value, f"int32x{dtypes.lanes(stmt.value.dtype)}")
    if narrow is None or narrow[1].dtype not in _KINDS:
        return None
    key, wide = narrow
    return f"MLF_EACH(q) {printer.need(key)}({printer.address(stmt.buffer, stmt.indices)}, {printer.expr(wide)});"


def _vectors(key: str) -> set[str]:
    if key in _PUSHES:
        return {_BYTES, "int32x16", "uint32x16"}
    if key == "line":
        return set()
    lanes = dtypes.lanes(key.partition(":")[2])
    return {f"int32x{lanes}", f"float32x{lanes}"} if key.startswith("whole:") else {f"int32x{lanes}"}


_INCLUDES = tuple(_PIECES["includes"].splitlines())
_FORM = CForm(
    _helper, _INCLUDES, _vectors, is_portable=lambda key: key not in _PUSHES, expression=_expression, store=_store
)
C_FORMS.add("avx512", _FORM)
