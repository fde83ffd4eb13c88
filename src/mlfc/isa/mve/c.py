"""C forms for ARM's vector extension for microcontrollers (MVE, Helium).

Every helper has an MVE form, selected by ``__ARM_FEATURE_MVE``, and a portable one. Block intrinsics
(`tir.block_intrinsics`) are statements that take addresses; vectors of four int32 are values.
"""

from __future__ import annotations

from string import Template

from mlfc.codegen.c_types import scalar_type, short_name
from mlfc.codegen.vectors import narrowed, widened
from mlfc.codegen.writer import pieces_beside
from mlfc.errors import InternalError
from mlfc.support import dtypes
from mlfc.tir import block_intrinsics, ir
from mlfc.tir.forms import C_FORMS, CForm, CPrinter, Helper
from mlfc.tir.ir import Expr

_LANES = "int32x4"  # the only vector type of values
_RUNS, _MACROS = pieces_beside(__file__, "runs.h"), pieces_beside(__file__, "lanes.h")
_HALVES = pieces_beside(__file__, "halves.h")

_CALLS: dict[str, tuple[str, ...]] = {
    "min": (),
    "max": (),
    "requantize_down": ("requantize_down",),
    "requantize_double": ("requantize_double",),
    "requantize_single_down": ("requantize_single",),
    "requantize_away_down": ("requantize_away",),
}
"""Intrinsics on four int32, and the helpers that their portable forms call."""

_NARROW = {"int8": ("b", "s"), "uint8": ("b", "u"), "int16": ("h", "s"), "uint16": ("h", "u")}
"""The suffixes of the instructions that widen and narrow an element in memory, and of a lane's signedness."""

_RUN_HELPERS = {"run": "copy_run", **{name: name for name in block_intrinsics.NAMES if name != "run"}}
"""The helper of each block intrinsic; after the addresses, its arguments are those of `block_intrinsics.counts`."""


def _helper(key: str) -> Helper | None:
    if key in _HALVES:
        return (), _HALVES[key]
    if key in _RUNS:
        return ("assembler",) if key.startswith("dots") else (), _RUNS[key]
    name, _, dtype = key.partition(":")
    if name in ("widen", "narrow", "saturate") and dtypes.lanes(dtype) == dtypes.lanes(_LANES):
        width, sign = _NARROW[dtypes.element(dtype)]
        lanes = "int32x4_t" if sign == "s" else "uint32x4_t"
        values = {"width": width, "sign": sign, "lanes": lanes, "kind": scalar_type(dtype), "short": short_name(dtype)}
        return (), Template(_MACROS[name]).substitute(values)
    if name not in _CALLS or dtype != _LANES:
        return None
    return _CALLS[name], _MACROS[name]


def _block_statement(printer: CPrinter, to: str, call: ir.Call) -> str:
    """Return the statement that stores the result of a block intrinsic at the address `to`."""
    if call.name == block_intrinsics.COUNTED_FILL:
        key, args = "fill_run", list(map(printer.expr, call.args))
    elif call.name == "run" and isinstance(call.args[0], ir.Broadcast):
        key, args = "fill_run", [printer.expr(call.args[0].value), str(dtypes.lanes(call.dtype))]
    else:
        name = block_intrinsics.uncounted(call.name)
        operands = call.args[: len(call.args) - len(block_intrinsics.COUNTS[name])] if name else call.args
        loads = [arg for arg in operands if isinstance(arg, ir.Load)]
        if len(loads) != len(operands):
            raise InternalError(f"C requires the operands of '{call.name}' to be loaded from memory")
        if name:
            numbers = list(map(printer.expr, call.args[len(operands) :]))
        else:
            numbers = list(map(str, block_intrinsics.counts(call.name, [dtypes.lanes(load.dtype) for load in loads])))
        addresses = [printer.address(load.buffer, load.indices) for load in loads]
        key, args = _RUN_HELPERS[name or call.name], [*addresses, *numbers]
    return f"{printer.need(key)}({', '.join([to, *args])});"


def _dot(printer: CPrinter, expr: ir.Call) -> str:
    """Return the call that adds products of numbers in memory to a sum."""
    total, *operands = expr.args
    loads = [load for load in operands if isinstance(load, ir.Load)]
    if len(loads) != len(operands):
        raise InternalError("C requires the operands of '" + expr.name + "' to be loaded from memory")
    addresses = [printer.address(load.buffer, load.indices) for load in loads]
    return f"{printer.need(f'{expr.name}:{expr.dtype}')}({', '.join([printer.expr(total), *addresses])})"


def _expression(printer: CPrinter, expr: Expr) -> str | None:
    if isinstance(expr, ir.Call) and expr.name in ("dot8", "dot32"):
        return _dot(printer, expr)
    if isinstance(expr, ir.Call) and expr.dtype == _LANES and expr.name in _CALLS:
        return f"{printer.need(f'{expr.name}:{expr.dtype}')}({', '.join(map(printer.expr, expr.args))})"
    load = widened(expr, _LANES) if isinstance(expr, ir.Cast) else None
    if load is None:
        return None
    return f"{printer.need(f'widen:{load.dtype}')}({printer.address(load.buffer, load.indices)})"


def _store(printer: CPrinter, stmt: ir.Store) -> str | None:
    """Return the statement that stores the result of a block intrinsic, or four narrow elements."""
    call, narrow = stmt.value, narrowed(stmt.value, _LANES)
    if isinstance(call, ir.Call) and (
        call.name in (*block_intrinsics.NAMES, block_intrinsics.COUNTED_FILL)
        or block_intrinsics.uncounted(call.name) is not None
    ):
        return _block_statement(printer, printer.address(stmt.buffer, stmt.indices), call)
    if narrow is None:
        return None
    key, wide = narrow
    return f"MLF_EACH(q) {printer.need(key)}({printer.address(stmt.buffer, stmt.indices)}, {printer.expr(wide)});"


_INCLUDES = tuple(_MACROS["includes"].splitlines())
_PLAIN = {*_RUNS, *_HALVES}  # helpers without vector operands
_FORM = CForm(
    _helper, _INCLUDES, lambda key: set() if key in _PLAIN else {_LANES}, expression=_expression, store=_store
)
C_FORMS.add("mve", _FORM)
