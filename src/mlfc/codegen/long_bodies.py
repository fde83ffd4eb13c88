"""Which loops C compilers should not spell out: the copies of a long body cost bytes and save next to nothing.

Results of integer layers are requantized in dozens of instructions each. With -O3, compilers spell out the loops over
the few pixels of a tile and over the registers that hold its channels, in every kind of tile that a layer has, which
was half of such a layer's code. Code of the highest level keeps that: its processors are chosen for speed, and their
wide vectors need the fewest instructions.
"""

from __future__ import annotations

from mlfc.support import dtypes
from mlfc.tir import ir
from mlfc.tir.ir import For, Stmt
from mlfc.tir.visitor import own_nodes, same_expr, walk_expr

FEWEST = 8
"""Iterations of a loop over single elements that may have a long body: fewer fill no register."""


def keeps_rolled(loop: For) -> bool:
    """Tell whether a loop should stay a loop: it requantizes in every iteration, or runs over rows of integers."""
    if not isinstance(loop.extent, ir.Const) or loop.until is not None or loop.kind not in ("serial", "vectorized"):
        return False
    loops, is_long, stmt = 0, False, loop.body
    while not isinstance(stmt, ir.Store):
        if isinstance(stmt, For) and isinstance(stmt.extent, ir.Const):
            loops += 1
        elif isinstance(stmt, ir.Let):
            is_long = is_long or _requantizes(stmt)
        elif not (isinstance(stmt, ir.Seq) and len(stmt.stmts) == 1):
            return False
        stmt = stmt.stmts[0] if isinstance(stmt, ir.Seq) else stmt.body
    if not dtypes.is_integer(dtypes.element(stmt.value.dtype)) or _accumulates(stmt):
        return False
    is_filled = dtypes.lanes(stmt.value.dtype) > 1 or int(loop.extent.value) >= FEWEST
    # with loops around those, gcc 12 spells out more than without
    return loops == 1 or (loops == 0 and is_filled and (is_long or _requantizes(stmt)))


def _requantizes(stmt: Stmt) -> bool:
    return any(isinstance(node, ir.Call) and node.name.startswith("requantize") for node in own_nodes(stmt))


def _accumulates(store: ir.Store) -> bool:
    """Tell whether a store adds to its element, which compilers keep in a register where loops are spelled out."""
    return any(
        isinstance(node, ir.Load) and node.buffer is store.buffer and all(map(same_expr, node.indices, store.indices))
        for node in walk_expr(store.value)
    )
