"""Running the importer of one node, and checking what it made of the node."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.errors import MlfcError, ModelError, TypeCheckError, UnsupportedError
from mlfc.frontend.onnx import older, table
from mlfc.frontend.onnx.node import Node, UnknownValueError
from mlfc.frontend.onnx.remedies import Advisor
from mlfc.relay.ir import Expr
from mlfc.support.dims import UndecidedError

# What hostile attribute values can make numpy, Python or an importer stumble over.
MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, MemoryError)


def _result_of(node: Node, found: table.Importer, advisor: Advisor) -> Expr | Sequence[Expr]:
    try:
        result = found.convert(node)
        if node.dynamic is not None:
            for expr in _listed(result):
                node.dynamic.exclude_empty_operands(expr)
        return result
    except UnknownValueError as error:
        raise advisor.advised(node, lambda node: _listed(found.convert(node)), error) from error
    except (UndecidedError, TypeCheckError) as refusal:
        node.undecided(refusal)
        raise UnsupportedError(
            f"{node.operator} cannot be compiled for all extents: {refusal}",
            place=node.name,
            next_step="Give the inputs fixed shapes, or ranges of extents that decide it: --shape x=n:2..512,...",
        ) from refusal


def _listed(result: Expr | Sequence[Expr]) -> list[Expr]:
    return [result] if not isinstance(result, Sequence) else list(result)


def converted(node: Node, found: table.Importer, advisor: Advisor, *, as_opset_7: bool) -> list[Expr]:
    """Run the importer of a node; refuse attributes that it did not look at."""
    try:
        if as_opset_7:
            node = older.as_opset_7(node)
        result = _result_of(node, found, advisor)
    except MlfcError as error:
        if error.place != node.name:
            raise
        error.place = f"node '{node.name}'"
        raise
    except MALFORMED as error:
        raise ModelError(f"{node.operator} is malformed: {error}", place=f"node '{node.name}'") from error
    results = _listed(result)
    unread = sorted(set(node.attributes) - node.read_attributes - found.ignores)
    if unread:
        raise UnsupportedError(
            f"{node.operator} (opset {node.opset}) with the attribute '{unread[0]}' is not supported",
            place=f"node '{node.name}'",
        )
    missing = [tensor for tensor in node.outputs[len(results) :] if tensor]
    if missing:
        raise UnsupportedError(
            f"{node.operator} (opset {node.opset}) with {len(node.outputs)} outputs is not supported",
            place=f"node '{node.name}'",
            next_step=f"Only the first {len(results)} of its outputs can be used",
        )
    return results
