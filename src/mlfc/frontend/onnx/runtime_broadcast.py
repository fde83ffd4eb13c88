"""Operands whose dimension sizes may differ at run time: 1 broadcasts, and runs refuse other sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from mlfc.frontend.onnx.node import Node, shape_of
from mlfc.frontend.onnx.shape import extent_from_end, reshaped_at_run, stretched
from mlfc.relay.ir import TensorType
from mlfc.support.dims import maximum

_OPERATORS = {
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
}  # fmt: skip


def checked_at_run(node: Node) -> Node | None:
    """Return a node whose shapes are checked at run time: of an operator that broadcasts, or a Reshape; else None."""
    operands = node.inputs
    if node.dynamic is not None and node.operator == "Reshape":
        return reshaped_at_run(node)
    if node.dynamic is None or node.operator not in _OPERATORS:
        return None
    if not all(operand is not None and isinstance(operand.type, TensorType) for operand in operands):
        return None
    found = [operand for operand in operands if operand is not None]
    rank = max(len(shape_of(operand)) for operand in found)
    for axis in range(rank):
        extents = [extent_from_end(operand, axis - rank) for operand in found]
        others = list(dict.fromkeys(extent for extent in extents if extent != 1))
        if len(others) > 1:
            fixed = [extent for extent in others if isinstance(extent, int)]
            wide = fixed[0] if fixed else reduce(maximum, others)
            found = [stretched(node, operand, axis - rank, wide) for operand in found]
    return replace(node, inputs=[*found])
