"""Loop-level expressions as short text, for messages."""

from __future__ import annotations

from mlfc.tir import ir
from mlfc.tir.ir import Expr
from mlfc.tir.visitor import children

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%", "and": "&", "or": "|",
    "xor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "land": "and", "lor": "or",
}  # fmt: skip


def expr_text(expr: Expr) -> str:
    """Return an expression in a notation close to Python's."""
    if isinstance(expr, ir.Const):
        return str(expr.value)
    if isinstance(expr, ir.Var):
        return expr.name
    inner = [expr_text(child) for child in children(expr)]
    if isinstance(expr, ir.Binary) and expr.op in _SYMBOLS:
        return f"({inner[0]} {_SYMBOLS[expr.op]} {inner[1]})"
    if isinstance(expr, ir.Load):
        return f"{expr.buffer.name}[{', '.join(inner)}]"
    if isinstance(expr, ir.Select):
        return f"({inner[1]} if {inner[0]} else {inner[2]})"
    head = expr.op if isinstance(expr, ir.Binary) else expr.name if isinstance(expr, ir.Call) else expr.dtype
    return f"{head}({', '.join(inner)})"
