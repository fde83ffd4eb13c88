"""Vectors of int32 whose elements are narrower in memory, for printers of C that have instructions for both ways."""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import Expr

NARROW = ("int8", "uint8", "int16", "uint16")


def widened(expr: ir.Cast, lanes: str) -> ir.Load | None:
    """Return the narrow elements that a cast takes from memory as int32, or None where it does not."""
    load = expr.value
    known = expr.dtype == lanes and isinstance(load, ir.Load) and dtypes.element(load.dtype) in NARROW
    return load if known and isinstance(load, ir.Load) else None


def narrowed(value: Expr, lanes: str) -> tuple[str, Expr] | None:
    """Return the helper and the int32 with which a store writes narrow elements, or None where it does not."""
    if not isinstance(value, ir.Cast) or value.value.dtype != lanes or dtypes.element(value.dtype) not in NARROW:
        return None
    unlimited = _unlimited(value.value, dtypes.limits("int8")) if dtypes.element(value.dtype) == "int8" else None
    return (f"narrow:{value.dtype}", value.value) if unlimited is None else (f"saturate:{value.dtype}", unlimited)


def _unlimited(value: Expr, limits: tuple[int, int]) -> Expr | None:
    """Return what to saturate at `limits` for a value that the upper one limits, and some number below; else None."""
    inner = _operand(value, "min", limits[1], limits[1])
    lowest = None if inner is None else _operand(inner, "max", *limits)
    if inner is None or lowest is None:
        return None
    return _operand(inner, "max", limits[0], limits[0]) or inner


def _operand(value: Expr, op: str, least: int, most: int) -> Expr | None:
    """Return what is compared with a literal from `least` to `most`; None if `value` is something else."""
    if not isinstance(value, ir.Binary) or value.op != op or not isinstance(value.b, ir.Broadcast):
        return None
    number = value.b.value
    return value.a if isinstance(number, ir.Const) and least <= number.value <= most else None
